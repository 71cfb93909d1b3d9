// The list of spots -> the schedule's tables.
#include <string.h>

#include "compiler/schedule/place.h"

static void add_edge(const struct placement *p, uint32_t from, uint32_t to, enum edge why, str_id value, node_id node)
{
    uint32_t row = NEW_ROW(p->e->context, p->schedule, sched_edge);
    *ROW(p->schedule, sched_edge, row) = (struct sched_edge){
        .from = from, .to = to, .why = why, .value = value, .file = node ? p->e->file : 0, .node = node};
}

static uint32_t instance_at(const struct placement *p, uint32_t layer, uint32_t task, uint32_t part, uint32_t piece)
{
    return p->spots[*spot_at(p, layer, task, part, piece)].position;
}

/// What it needs of the same task.
static void add_chain_edge(const struct placement *p, const struct spot *spot, const struct graph_task *task)
{
    const struct ir *graph = p->e->graph;
    uint32_t needed = piece_needed(p, spot->task, spot->piece);
    if (needed == NONE)
        return;
    uint32_t value = ROW(graph, graph_use, task->writes.first)->value;
    str_id name = ir_str(p->schedule, ir_text(graph, ROW(graph, graph_value, value)->name));
    add_edge(p, instance_at(p, spot->layer, spot->task, spot->part, needed), spot->position, edge_data, name, 0);
}

/// What the first instance of a task that works on all of a rank's tokens has made is there for the others.
static void add_whole_edge(const struct placement *p, const struct spot *spot, const struct graph_task *task)
{
    const struct ir *graph = p->e->graph;
    uint32_t value = ROW(graph, graph_use, task->writes.first)->value;
    str_id name = ir_str(p->schedule, ir_text(graph, ROW(graph, graph_value, value)->name));
    add_edge(p, instance_at(p, spot->layer, spot->task, 0, 0), spot->position, edge_data, name, 0);
}

static void add_data_edges(const struct placement *p, const struct spot *spot)
{
    const struct ir *graph = p->e->graph;
    const struct graph_info *info = ROW(graph, graph_info, 0);
    const struct graph_task *task = ROW(graph, graph_task, spot->task);
    if (task->whole && (spot->part || spot->piece)) {
        add_whole_edge(p, spot, task);
        return;
    }
    add_chain_edge(p, spot, task);
    for (uint32_t r = 0; r < task->reads.count; r++) {
        uint32_t value = ROW(graph, graph_use, task->reads.first + r)->value, layer = spot->layer;
        if (value == info->input) {
            if (layer == 0)
                continue;
            value = info->output;
            layer--;
        }
        const struct graph_value *row = ROW(graph, graph_value, value);
        if (row->task == NONE)
            continue;
        str_id name = ir_str(p->schedule, ir_text(graph, row->name));
        struct rows pieces = pieces_read(p, spot->task, spot->piece, row->task);
        for (uint32_t part = task->whole ? 0 : spot->part; part < (task->whole ? p->parts : spot->part + 1); part++)
            for (uint32_t i = 0; i < pieces.count; i++)
                add_edge(p, instance_at(p, layer, row->task, part, pieces.first + i), spot->position,
                         row->remote ? edge_message : edge_data, name, 0);
    }
}

static void add_overlap(const struct placement *p, uint32_t left, uint32_t right, const struct issue *l,
                        const struct issue *r)
{
    uint32_t row = NEW_ROW(p->e->context, p->schedule, sched_overlap);
    *ROW(p->schedule, sched_overlap, row) = (struct sched_overlap){.left = left,
                                                                   .right = right,
                                                                   .file = p->e->file,
                                                                   .left_node = p->e->items[l->item].instance,
                                                                   .right_node = p->e->items[r->item].instance};
}

static struct rows units_of(const struct elaboration *e, struct rows items)
{
    struct rows units = {0, 0};
    for (uint32_t i = 0; i < items.count; i++) {
        struct rows more = e->items[items.first + i].units;
        if (more.count && units.count == 0)
            units.first = more.first;
        units.count += more.count;
    }
    return units;
}

static void add_relation(struct placement *p, const struct relation *relation, uint32_t first_layer)
{
    struct rows left = units_of(p->e, relation->left), right = units_of(p->e, relation->right);
    if (relation->kind == RELATION_OVERLAP && first_layer > 0)
        return;
    for (uint32_t i = 0; i < left.count; i++) {
        const struct issue *l = &p->e->units[left.first + i];
        for (uint32_t k = 0; k < right.count; k++) {
            const struct issue *r = &p->e->units[right.first + k];
            uint32_t from = instance_at(p, first_layer + l->layer, l->task, l->part, l->piece);
            uint32_t to = instance_at(p, first_layer + r->layer, r->task, r->part, r->piece);
            if (relation->kind == RELATION_ORDER)
                add_edge(p, from, to, edge_order, 0, relation->node);
            else
                add_overlap(p, from, to, l, r);
        }
    }
}

/// An instance named by `order`: the tasks of it that the text, not a rule, places.
static bool claims(const struct elaboration *e, const struct order_claim *claim, int side, uint32_t task)
{
    if (claim->task[side] != NONE)
        return claim->task[side] == task;
    return e->tasks[task].stage == claim->stage[side] &&
           (!e->stages[claim->stage[side]].named || !left_to_rule(e, task));
}

static struct rows claimed_pieces(const struct placement *p, const struct order_claim *claim, int side, uint32_t task)
{
    if (claim->at[side].piece != ALL_PIECES)
        return (struct rows){(uint32_t)claim->at[side].piece, 1};
    return (struct rows){0, pieces_of(p, task)};
}

static void add_claimed(struct placement *p, const struct order_claim *claim, uint32_t first_layer, uint32_t from,
                        uint32_t to)
{
    struct rows left = claimed_pieces(p, claim, 0, from), right = claimed_pieces(p, claim, 1, to);
    const struct point *a = &claim->at[0], *b = &claim->at[1];
    for (uint32_t i = 0; i < left.count; i++)
        for (uint32_t k = 0; k < right.count; k++)
            add_edge(p, instance_at(p, first_layer + (uint32_t)a->layer, from, (uint32_t)a->part, left.first + i),
                     instance_at(p, first_layer + (uint32_t)b->layer, to, (uint32_t)b->part, right.first + k),
                     edge_order, 0, claim->node);
}

static void add_claim(struct placement *p, const struct order_claim *claim, uint32_t first_layer)
{
    const struct elaboration *e = p->e;
    for (uint32_t from = 0; from < e->task_count; from++)
        for (uint32_t to = 0; to < e->task_count && claims(e, claim, 0, from); to++)
            if (claims(e, claim, 1, to))
                add_claimed(p, claim, first_layer, from, to);
}

/// A barrier: the last instance of each stream before it ends before the first of every other after it starts. What
/// fills stalls has no place of its own, so no barrier either.
static void add_sync(struct placement *p, uint32_t sync)
{
    uint32_t streams = p->e->stream_count;
    uint32_t *last = context_alloc(p->e->context, 2 * streams * sizeof *last), *first = last + streams;
    for (uint32_t i = p->spots[sync].before; i; i = p->spots[i].before)
        if (!p->spots[i].sync && !p->spots[i].filling && !last[p->spots[i].stream])
            last[p->spots[i].stream] = i;
    for (uint32_t i = p->spots[sync].after; i; i = p->spots[i].after)
        if (!p->spots[i].sync && !p->spots[i].filling && !first[p->spots[i].stream])
            first[p->spots[i].stream] = i;
    for (uint32_t a = 0; a < streams; a++)
        for (uint32_t b = 0; b < streams; b++)
            if (a != b && last[a] && first[b])
                add_edge(p, p->spots[last[a]].position, p->spots[first[b]].position, edge_sync, 0, p->spots[sync].node);
}

static void add_streams(struct placement *p)
{
    for (uint32_t s = 0; s < p->e->stream_count; s++) {
        const struct stream_info *info = &p->e->streams[s];
        uint32_t row = NEW_ROW(p->e->context, p->schedule, sched_stream);
        str_id name = ir_str(p->schedule, info->label);
        struct rows order = {COUNT(p->schedule, sched_slot), 0};
        for (uint32_t i = 0; i < COUNT(p->schedule, sched_instance); i++) {
            struct sched_instance *instance = ROW(p->schedule, sched_instance, i);
            if (instance->stream != s)
                continue;
            instance->position = order.count++;
            uint32_t slot = NEW_ROW(p->e->context, p->schedule, sched_slot);
            ROW(p->schedule, sched_slot, slot)->instance = i;
        }
        *ROW(p->schedule, sched_stream, row) = (struct sched_stream){.name = name,
                                                                     .engines = info->engines,
                                                                     .own_thread = info->sms > 0,
                                                                     .sms = info->sms,
                                                                     .priority = info->priority,
                                                                     .order = order};
    }
}

static void add_instances(struct placement *p)
{
    uint32_t count = 0;
    for (uint32_t i = p->spots[0].after; i; i = p->spots[i].after) {
        struct spot *spot = &p->spots[i];
        spot->position = count; // from here on an instance's row; a barrier has none
        if (spot->sync)
            continue;
        const struct task_info *task = &p->e->tasks[spot->task];
        const struct stage_info *stage = &p->e->stages[task->stage];
        uint32_t runs = (uint32_t)stage->runs;
        struct point at = {spot->layer % p->e->group, spot->part, spot->piece};
        str_id label = ir_str(p->schedule, instance_label(p->e, task->stage, spot->task, at));
        uint32_t row = NEW_ROW(p->e->context, p->schedule, sched_instance);
        *ROW(p->schedule, sched_instance, row) = (struct sched_instance){.task = spot->task,
                                                                         .layer = spot->layer,
                                                                         .part = spot->part,
                                                                         .wave = spot->piece / runs,
                                                                         .piece = spot->piece % runs,
                                                                         .label = label,
                                                                         .stream = spot->stream,
                                                                         .automatic = spot->automatic,
                                                                         .file = p->e->file,
                                                                         .node = spot->node};
        count++;
    }
}

static void add_edges(struct placement *p)
{
    for (uint32_t i = p->spots[0].after; i; i = p->spots[i].after) {
        if (p->spots[i].sync)
            add_sync(p, i);
        else
            add_data_edges(p, &p->spots[i]);
    }
    for (uint32_t layer = 0; layer < p->layers; layer += (uint32_t)p->e->group) {
        for (uint32_t i = 0; i < p->e->relation_count; i++)
            add_relation(p, &p->e->relations[i], layer);
        for (uint32_t i = 0; i < p->e->order_count; i++)
            add_claim(p, &p->e->orders[i], layer);
    }
}

void write_tables(struct placement *p)
{
    p->numbered = false;
    add_instances(p);
    add_streams(p);
    add_edges(p);
}
