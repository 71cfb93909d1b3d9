// Units -> the schedule's tables: the issue order is repeated for every layer as one list, tasks placed by rule go
// between (`pack` after what makes its routes, `merge` before its first reader, unnamed stages by data order), and each
// stream's order is the list's order.
#include <string.h>

#include "compiler/schedule/elaborate.h"

enum { INSTANCES_MAX = 16384 }; // orders between all pairs are kept as bits

struct spot { // an instance in the list
    uint32_t task, part, layer, stream;
    uint32_t before, after; // neighbours in the list; 0: the list's head
    uint32_t position;      // in the list, where `numbered`
    node_id node;
    bool sync, automatic;
};

struct placement {
    struct elaboration *e;
    struct ir *schedule;
    uint32_t layers, parts;
    struct spot *spots; // 0 is the head
    uint32_t spot_count, spot_capacity;
    bool numbered;
    uint32_t *spot_of;   // by cell(): 0 = not placed
    bool *after_message; // by task: waits, through any chain within the layer, for a recv
    bool *feeds_named;   // by task: a named stage reads it, through any chain
    uint32_t sm_stream;  // the first that uses sm; NONE: none does
};

static size_t cell(const struct placement *p, uint32_t layer, uint32_t task, uint32_t part)
{
    return ((size_t)layer * p->e->task_count + task) * p->parts + part;
}

static uint32_t insert_after(struct placement *p, uint32_t where, struct spot spot)
{
    uint32_t number = p->spot_count;
    p->spots = context_grow(p->e->context, p->spots, &p->spot_capacity, number + 1, sizeof *p->spots);
    p->spot_count++;
    spot.before = where;
    spot.after = p->spots[where].after;
    p->spots[number] = spot;
    p->spots[spot.after].before = number;
    p->spots[where].after = number;
    p->numbered = false;
    if (!spot.sync)
        p->spot_of[cell(p, spot.layer, spot.task, spot.part)] = number;
    return number;
}

static uint32_t insert_before(struct placement *p, uint32_t where, struct spot spot)
{
    return insert_after(p, p->spots[where].before, spot); // before the head: at the end
}

static uint32_t position(struct placement *p, uint32_t spot)
{
    if (!p->numbered) {
        uint32_t count = 0;
        for (uint32_t i = p->spots[0].after; i; i = p->spots[i].after)
            p->spots[i].position = count++;
        p->numbered = true;
    }
    return p->spots[spot].position;
}

/// The earlier (or later) of two places, either of which may be 0, none.
static uint32_t choose(struct placement *p, uint32_t a, uint32_t b, bool later)
{
    if (!a || !b || a == b)
        return a ? a : b;
    return (position(p, a) < position(p, b)) != later ? a : b;
}

static void issue_layer(struct placement *p, uint32_t layer)
{
    const struct elaboration *e = p->e;
    for (uint32_t i = 0; i < e->item_count; i++) {
        const struct item *item = &e->items[i];
        if (item->sync)
            insert_before(p, 0, (struct spot){.layer = layer, .node = item->instance, .sync = true});
        for (uint32_t u = 0; u < item->units.count; u++) {
            const struct issue *unit = &e->units[item->units.first + u];
            insert_before(p, 0,
                          (struct spot){.task = unit->task,
                                        .part = unit->part,
                                        .layer = layer,
                                        .stream = unit->stream,
                                        .node = item->instance});
        }
    }
}

// What reads what. Tasks stand in data order, so that one walk each way finds all chains.

static uint32_t producer_of(const struct placement *p, const struct graph_task *task, uint32_t read)
{
    const struct ir *graph = p->e->graph;
    return ROW(graph, graph_value, ROW(graph, graph_use, task->reads.first + read)->value)->task;
}

static void trace_tasks(struct placement *p)
{
    const struct elaboration *e = p->e;
    p->after_message = context_alloc(e->context, e->task_count + 1);
    p->feeds_named = context_alloc(e->context, e->task_count + 1);
    for (uint32_t t = 0; t < e->task_count; t++) {
        const struct graph_task *task = ROW(e->graph, graph_task, t);
        p->after_message[t] = task->phase == phase_recv;
        for (uint32_t r = 0; r < task->reads.count; r++) {
            uint32_t producer = producer_of(p, task, r);
            p->after_message[t] = p->after_message[t] || (producer != NONE && p->after_message[producer]);
        }
    }
    for (uint32_t t = e->task_count; t-- > 0;) {
        const struct graph_task *task = ROW(e->graph, graph_task, t);
        for (uint32_t r = 0; r < task->reads.count; r++) {
            uint32_t producer = producer_of(p, task, r);
            if (producer != NONE && (p->feeds_named[t] || e->stages[task->module_stage].named))
                p->feeds_named[producer] = true;
        }
    }
}

static bool reads_value(const struct ir *graph, uint32_t task, uint32_t value)
{
    const struct graph_task *row = ROW(graph, graph_task, task);
    for (uint32_t r = 0; r < row->reads.count; r++)
        if (ROW(graph, graph_use, row->reads.first + r)->value == value)
            return true;
    return false;
}

/// The first placed reader of what a task writes, in this layer or, for the layer's output, in the next.
static uint32_t first_reader(struct placement *p, uint32_t layer, uint32_t task, uint32_t part)
{
    const struct ir *graph = p->e->graph;
    const struct graph_info *info = ROW(graph, graph_info, 0);
    const struct graph_task *row = ROW(graph, graph_task, task);
    uint32_t first = 0;
    for (uint32_t w = 0; w < row->writes.count; w++) {
        uint32_t value = ROW(graph, graph_use, row->writes.first + w)->value;
        for (uint32_t t = 0; t < p->e->task_count; t++) {
            if (reads_value(graph, t, value))
                first = choose(p, first, p->spot_of[cell(p, layer, t, part)], false);
            if (value == info->output && layer + 1 < p->layers && reads_value(graph, t, info->input))
                first = choose(p, first, p->spot_of[cell(p, layer + 1, t, part)], false);
        }
    }
    return first;
}

static uint32_t last_producer(struct placement *p, uint32_t layer, uint32_t task, uint32_t part)
{
    const struct graph_task *row = ROW(p->e->graph, graph_task, task);
    uint32_t last = 0;
    for (uint32_t r = 0; r < row->reads.count; r++) {
        uint32_t producer = producer_of(p, row, r);
        if (producer != NONE)
            last = choose(p, last, p->spot_of[cell(p, layer, producer, part)], true);
    }
    return last;
}

static bool has_engines(const struct placement *p, uint32_t stream, uint32_t task)
{
    return (p->e->tasks[task].engines & ~p->e->streams[stream].engines) == 0;
}

/// The stream of the spot where it has the engines, else that of `sm`.
static uint32_t stream_near(const struct placement *p, uint32_t spot, uint32_t task)
{
    if (spot && has_engines(p, p->spots[spot].stream, task))
        return p->spots[spot].stream;
    return p->sm_stream;
}

/// An automatic task's text: the instance of its stage, where there is one.
static struct spot automatic_spot(const struct placement *p, uint32_t layer, uint32_t task, uint32_t part)
{
    struct spot spot = {.task = task, .part = part, .layer = layer, .automatic = true, .node = p->e->source->node};
    const struct stage_info *stage = &p->e->stages[p->e->tasks[task].stage];
    for (uint32_t t = stage->first_task; t < stage->first_task + stage->task_count; t++) {
        uint32_t other = p->spot_of[cell(p, layer, t, part)];
        if (other)
            spot.node = p->spots[other].node;
    }
    return spot;
}

/// A `pack` goes right after its producer, where that has its place already.
static void place_early(struct placement *p, uint32_t layer, uint32_t task, uint32_t part)
{
    uint32_t producer = last_producer(p, layer, task, part);
    if (!producer)
        return;
    struct spot spot = automatic_spot(p, layer, task, part);
    spot.stream = stream_near(p, producer, task);
    insert_after(p, producer, spot);
}

/// Before the part's first task on the stream of `sm` that waits for a message: that is where it would stall.
static uint32_t first_stall(struct placement *p, uint32_t layer, uint32_t part)
{
    uint32_t first = 0;
    for (uint32_t t = 0; t < p->e->task_count; t++) {
        uint32_t spot = p->spot_of[cell(p, layer, t, part)];
        if (spot && p->after_message[t] && p->spots[spot].stream == p->sm_stream)
            first = choose(p, first, spot, false);
    }
    return first;
}

static void place_late(struct placement *p, uint32_t layer, uint32_t task, uint32_t part)
{
    bool unnamed = !p->e->stages[p->e->tasks[task].stage].named;
    uint32_t where = first_reader(p, layer, task, part);
    struct spot spot = automatic_spot(p, layer, task, part);
    spot.stream = unnamed ? p->sm_stream : stream_near(p, where, task);
    if (!where && !unnamed)
        spot.stream = stream_near(p, last_producer(p, layer, task, part), task);
    if (unnamed && !p->after_message[task] && !p->feeds_named[task])
        where = choose(p, where, first_stall(p, layer, part), false);
    insert_before(p, where, spot);
}

static void place_automatic(struct placement *p)
{
    uint32_t tasks = p->e->task_count;
    for (uint32_t layer = 0; layer < p->layers; layer++)
        for (uint32_t t = 0; t < tasks; t++)
            for (uint32_t part = 0; part < p->parts && p->e->tasks[t].phase == phase_pack; part++)
                if (!p->spot_of[cell(p, layer, t, part)])
                    place_early(p, layer, t, part);
    for (uint32_t layer = p->layers; layer-- > 0;)
        for (uint32_t t = tasks; t-- > 0;)
            for (uint32_t part = 0; part < p->parts; part++)
                if (!p->spot_of[cell(p, layer, t, part)])
                    place_late(p, layer, t, part);
}

/// Tasks placed by rule run on SMs alone: there must be such a stream, and nothing unnamed may need more.
static bool check_automatic(struct placement *p)
{
    struct elaboration *e = p->e;
    for (uint32_t t = 0; t < e->task_count; t++) {
        const struct stage_info *stage = &e->stages[e->tasks[t].stage];
        if (stage->named && !left_to_rule(e, t))
            continue;
        if (p->sm_stream != NONE && has_engines(p, p->sm_stream, t))
            continue;
        struct diag *diag =
            elaboration_error(e, E0303, e->text->name_span, "`%s` is not bound to a stream", e->tasks[t].label);
        diag_label(e->context, diag, "no stream here fits it by rule: it needs %s",
                   engine_names(e->context, e->tasks[t].engines));
        diag_help(e->context, diag, "name `%s` in this schedule, and bind it", stage->name);
        return false;
    }
    return true;
}

// The tables.

static void add_edge(const struct placement *p, uint32_t from, uint32_t to, enum edge why, str_id value, node_id node)
{
    uint32_t row = NEW_ROW(p->e->context, p->schedule, sched_edge);
    *ROW(p->schedule, sched_edge, row) = (struct sched_edge){
        .from = from, .to = to, .why = why, .value = value, .file = node ? p->e->file : 0, .node = node};
}

static uint32_t instance_at(struct placement *p, uint32_t layer, uint32_t task, uint32_t part)
{
    return p->spots[p->spot_of[cell(p, layer, task, part)]].position;
}

static void add_data_edges(struct placement *p, const struct spot *spot)
{
    const struct ir *graph = p->e->graph;
    const struct graph_info *info = ROW(graph, graph_info, 0);
    const struct graph_task *task = ROW(graph, graph_task, spot->task);
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
        add_edge(p, instance_at(p, layer, row->task, spot->part), spot->position,
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

static void add_relation(struct placement *p, const struct relation *relation, uint32_t layer)
{
    struct rows left = units_of(p->e, relation->left), right = units_of(p->e, relation->right);
    if (relation->kind == RELATION_OVERLAP && layer > 0)
        return;
    for (uint32_t i = 0; i < left.count; i++) {
        const struct issue *l = &p->e->units[left.first + i];
        for (uint32_t k = 0; k < right.count; k++) {
            const struct issue *r = &p->e->units[right.first + k];
            uint32_t from = instance_at(p, layer, l->task, l->part), to = instance_at(p, layer, r->task, r->part);
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

static void add_claim(struct placement *p, const struct order_claim *claim, uint32_t layer)
{
    const struct elaboration *e = p->e;
    for (uint32_t from = 0; from < e->task_count; from++)
        for (uint32_t to = 0; to < e->task_count && claims(e, claim, 0, from); to++)
            if (claims(e, claim, 1, to))
                add_edge(p, instance_at(p, layer, from, (uint32_t)claim->part[0]),
                         instance_at(p, layer, to, (uint32_t)claim->part[1]), edge_order, 0, claim->node);
}

/// A barrier: the last instance of each stream before it ends before the first of every other after it starts.
static void add_sync(struct placement *p, uint32_t sync)
{
    uint32_t streams = p->e->stream_count;
    uint32_t *last = context_alloc(p->e->context, 2 * streams * sizeof *last), *first = last + streams;
    for (uint32_t i = p->spots[sync].before; i; i = p->spots[i].before)
        if (!p->spots[i].sync && !last[p->spots[i].stream])
            last[p->spots[i].stream] = i;
    for (uint32_t i = p->spots[sync].after; i; i = p->spots[i].after)
        if (!p->spots[i].sync && !first[p->spots[i].stream])
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
        str_id label = ir_str(p->schedule, instance_label(p->e, task->stage, spot->task, spot->part));
        uint32_t row = NEW_ROW(p->e->context, p->schedule, sched_instance);
        *ROW(p->schedule, sched_instance, row) = (struct sched_instance){.task = spot->task,
                                                                         .layer = spot->layer,
                                                                         .part = spot->part,
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
    for (uint32_t layer = 0; layer < p->layers; layer++) {
        for (uint32_t i = 0; i < p->e->relation_count; i++)
            add_relation(p, &p->e->relations[i], layer);
        for (uint32_t i = 0; i < p->e->order_count; i++)
            add_claim(p, &p->e->orders[i], layer);
    }
}

void place(struct elaboration *e, uint32_t layers, struct ir *schedule)
{
    if ((int64_t)layers * e->task_count * e->parts > INSTANCES_MAX) {
        struct span span = e->split ? split_span(e) : e->text->name_span;
        struct diag *diag = elaboration_error(e, E0206, span, "the step has more than %d instances", INSTANCES_MAX);
        diag_label(e->context, diag, "%lld parts of %u layers", (long long)e->parts, layers);
        return;
    }
    struct placement p = {.e = e, .schedule = schedule, .layers = layers, .parts = (uint32_t)e->parts};
    p.spots = context_grow(e->context, NULL, &p.spot_capacity, 64, sizeof *p.spots);
    p.spots[0] = (struct spot){.sync = true};
    p.spot_count = 1;
    p.spot_of = context_alloc(e->context, ((size_t)layers * e->task_count * p.parts + 1) * sizeof *p.spot_of);
    p.sm_stream = NONE;
    for (uint32_t s = e->stream_count; s-- > 0;)
        if (e->streams[s].engines & 1u << engine_sm)
            p.sm_stream = s;
    if (!check_automatic(&p))
        return;
    trace_tasks(&p);
    for (uint32_t layer = 0; layer < layers; layer++)
        issue_layer(&p, layer);
    place_automatic(&p);
    add_instances(&p);
    add_streams(&p);
    add_edges(&p);
}
