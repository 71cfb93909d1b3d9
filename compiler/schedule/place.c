// Units -> the schedule's tables: the issue order is repeated for every layer as one list, tasks placed by rule go
// between (`pack` after what makes its routes, `merge` before its first reader, unnamed stages by data order), and each
// stream's order is the list's order.
#include <string.h>

#include "compiler/schedule/elaborate.h"

enum { INSTANCES_MAX = 16384 }; // orders between all pairs are kept as bits

struct spot { // an instance in the list
    uint32_t task, cell, layer, stream;
    uint32_t before, after; // neighbours in the list; 0: the list's head
    uint32_t position;      // in the list, where `numbered`
    node_id node;
    bool sync, automatic;
};

struct placement {
    struct elaboration *e;
    struct ir *schedule;
    uint32_t layers, cells, waves;
    struct spot *spots; // 0 is the head
    uint32_t spot_count, spot_capacity;
    bool numbered;
    uint32_t *spot_of;   // by place_number(): 0 = not placed
    bool *after_message; // by task: waits, through any chain within the layer, for a recv
    bool *feeds_named;   // by task: a named stage reads it, through any chain
    uint32_t sm_stream;  // the first that uses sm; NONE: none does
};

static size_t place_number(const struct placement *p, uint32_t layer, uint32_t task, uint32_t cell)
{
    return ((size_t)layer * p->e->task_count + task) * p->cells + cell;
}

static uint32_t spot_at(const struct placement *p, uint32_t layer, uint32_t task, uint32_t cell)
{
    return p->spot_of[place_number(p, layer, task, cell)];
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
        p->spot_of[place_number(p, spot.layer, spot.task, spot.cell)] = number;
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
                                        .cell = unit->cell,
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

/// The instances of `producer` that one instance of a reader waits for, as cells [first, first + count). Rows stay where
/// they arrived, so an expert reads what all waves up to its own brought; what reads no waves reads after the last one.
static struct rows cells_read(const struct placement *p, uint32_t reader, uint32_t cell, uint32_t producer)
{
    const struct task_info *from = &p->e->tasks[producer], *to = &p->e->tasks[reader];
    uint32_t wave = cell % p->waves, first = cell - wave;
    bool routed = p->e->stages[to->stage].routed;
    if (!p->e->stages[from->stage].routed)
        return (struct rows){first, 1};
    if (!routed)
        return (struct rows){first + p->waves - 1, 1};
    if (from->phase == phase_recv && from->stage != to->stage)
        return (struct rows){first, wave + 1};
    return (struct rows){cell, 1};
}

/// Waves of these follow one another: a `pack` must know which rows are there already, a `merge` adds to the sum so far.
static bool is_chained(const struct placement *p, uint32_t task)
{
    const struct task_info *info = &p->e->tasks[task];
    return p->e->stages[info->stage].routed && is_placed_phase(info->phase);
}

static bool in_cells(struct rows cells, uint32_t cell)
{
    return cell >= cells.first && cell - cells.first < cells.count;
}

/// The first placed instance of `task`, in the part of `cell`, that reads what `producer` wrote there.
static uint32_t first_of_part(struct placement *p, uint32_t layer, uint32_t task, uint32_t producer, uint32_t cell)
{
    uint32_t part = cell - cell % p->waves, first = 0;
    for (uint32_t c = part; c < part + p->waves; c++)
        if (in_cells(cells_read(p, task, c, producer), cell))
            first = choose(p, first, spot_at(p, layer, task, c), false);
    return first;
}

/// The first placed reader of what a task writes, in this layer or, for the layer's output, in the next.
static uint32_t first_reader(struct placement *p, uint32_t layer, uint32_t task, uint32_t cell)
{
    const struct ir *graph = p->e->graph;
    const struct graph_info *info = ROW(graph, graph_info, 0);
    const struct graph_task *row = ROW(graph, graph_task, task);
    bool last = (cell + 1) % p->waves == 0;
    uint32_t first = is_chained(p, task) && !last ? spot_at(p, layer, task, cell + 1) : 0;
    for (uint32_t w = 0; w < row->writes.count; w++) {
        uint32_t value = ROW(graph, graph_use, row->writes.first + w)->value;
        for (uint32_t t = 0; t < p->e->task_count; t++) {
            if (reads_value(graph, t, value))
                first = choose(p, first, first_of_part(p, layer, t, task, cell), false);
            if (value == info->output && layer + 1 < p->layers && reads_value(graph, t, info->input))
                first = choose(p, first, first_of_part(p, layer + 1, t, task, cell), false);
        }
    }
    return first;
}

static uint32_t last_producer(struct placement *p, uint32_t layer, uint32_t task, uint32_t cell)
{
    const struct graph_task *row = ROW(p->e->graph, graph_task, task);
    uint32_t last = is_chained(p, task) && cell % p->waves ? spot_at(p, layer, task, cell - 1) : 0;
    for (uint32_t r = 0; r < row->reads.count; r++) {
        uint32_t producer = producer_of(p, row, r);
        struct rows cells = producer == NONE ? (struct rows){0, 0} : cells_read(p, task, cell, producer);
        for (uint32_t c = cells.first; c < cells.first + cells.count; c++)
            last = choose(p, last, spot_at(p, layer, producer, c), true);
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
static struct spot automatic_spot(const struct placement *p, uint32_t layer, uint32_t task, uint32_t cell)
{
    struct spot spot = {.task = task, .cell = cell, .layer = layer, .automatic = true, .node = p->e->source->node};
    const struct stage_info *stage = &p->e->stages[p->e->tasks[task].stage];
    for (uint32_t t = stage->first_task; t < stage->first_task + stage->task_count; t++) {
        uint32_t other = spot_at(p, layer, t, cell);
        if (other)
            spot.node = p->spots[other].node;
    }
    return spot;
}

/// A `pack` goes right after its producer, where that has its place already.
static void place_early(struct placement *p, uint32_t layer, uint32_t task, uint32_t cell)
{
    uint32_t producer = last_producer(p, layer, task, cell);
    if (!producer)
        return;
    struct spot spot = automatic_spot(p, layer, task, cell);
    spot.stream = stream_near(p, producer, task);
    insert_after(p, producer, spot);
}

/// Before the part's first task on the stream of `sm` that waits for a message: that is where it would stall.
static uint32_t first_stall(struct placement *p, uint32_t layer, uint32_t cell)
{
    uint32_t first = 0, part = cell - cell % p->waves;
    for (uint32_t t = 0; t < p->e->task_count; t++) {
        for (uint32_t c = part; c < part + p->waves && p->after_message[t]; c++) {
            uint32_t spot = spot_at(p, layer, t, c);
            if (spot && p->spots[spot].stream == p->sm_stream)
                first = choose(p, first, spot, false);
        }
    }
    return first;
}

static void place_late(struct placement *p, uint32_t layer, uint32_t task, uint32_t cell)
{
    bool unnamed = !p->e->stages[p->e->tasks[task].stage].named;
    uint32_t where = first_reader(p, layer, task, cell);
    struct spot spot = automatic_spot(p, layer, task, cell);
    spot.stream = unnamed ? p->sm_stream : stream_near(p, where, task);
    if (!where && !unnamed)
        spot.stream = stream_near(p, last_producer(p, layer, task, cell), task);
    if (unnamed && !p->after_message[task] && !p->feeds_named[task])
        where = choose(p, where, first_stall(p, layer, cell), false);
    insert_before(p, where, spot);
}

static bool is_unplaced(const struct placement *p, uint32_t layer, uint32_t task, uint32_t cell)
{
    return has_cell(p->e, p->e->tasks[task].stage, cell) && !spot_at(p, layer, task, cell);
}

static void place_automatic(struct placement *p)
{
    uint32_t tasks = p->e->task_count;
    for (uint32_t layer = 0; layer < p->layers; layer++)
        for (uint32_t t = 0; t < tasks; t++)
            for (uint32_t c = 0; c < p->cells && p->e->tasks[t].phase == phase_pack; c++)
                if (is_unplaced(p, layer, t, c))
                    place_early(p, layer, t, c);
    for (uint32_t layer = p->layers; layer-- > 0;)
        for (uint32_t t = tasks; t-- > 0;)
            for (uint32_t i = 0; i < p->cells; i++) {
                uint32_t wave = i % p->waves; // of what follows itself, the last wave finds its reader first
                uint32_t c = is_chained(p, t) ? i - wave + p->waves - 1 - wave : i;
                if (is_unplaced(p, layer, t, c))
                    place_late(p, layer, t, c);
            }
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

static uint32_t instance_at(struct placement *p, uint32_t layer, uint32_t task, uint32_t cell)
{
    return p->spots[spot_at(p, layer, task, cell)].position;
}

/// The wave before, where waves follow one another.
static void add_chain_edge(struct placement *p, const struct spot *spot, const struct graph_task *task)
{
    const struct ir *graph = p->e->graph;
    if (!is_chained(p, spot->task) || spot->cell % p->waves == 0)
        return;
    uint32_t value = ROW(graph, graph_use, task->writes.first)->value;
    str_id name = ir_str(p->schedule, ir_text(graph, ROW(graph, graph_value, value)->name));
    add_edge(p, instance_at(p, spot->layer, spot->task, spot->cell - 1), spot->position, edge_data, name, 0);
}

static void add_data_edges(struct placement *p, const struct spot *spot)
{
    const struct ir *graph = p->e->graph;
    const struct graph_info *info = ROW(graph, graph_info, 0);
    const struct graph_task *task = ROW(graph, graph_task, spot->task);
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
        struct rows cells = cells_read(p, spot->task, spot->cell, row->task);
        for (uint32_t c = cells.first; c < cells.first + cells.count; c++)
            add_edge(p, instance_at(p, layer, row->task, c), spot->position, row->remote ? edge_message : edge_data,
                     name, 0);
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
            uint32_t from = instance_at(p, layer, l->task, l->cell), to = instance_at(p, layer, r->task, r->cell);
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
                add_edge(p, instance_at(p, layer, from, (uint32_t)claim->cell[0]),
                         instance_at(p, layer, to, (uint32_t)claim->cell[1]), edge_order, 0, claim->node);
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
        str_id label = ir_str(p->schedule, instance_label(p->e, task->stage, spot->task, spot->cell));
        uint32_t row = NEW_ROW(p->e->context, p->schedule, sched_instance);
        *ROW(p->schedule, sched_instance, row) = (struct sched_instance){.task = spot->task,
                                                                         .layer = spot->layer,
                                                                         .part = spot->cell / p->waves,
                                                                         .wave = spot->cell % p->waves,
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
    if ((int64_t)layers * e->task_count * cell_count(e) > INSTANCES_MAX) {
        node_id split = e->split ? e->split : e->wave_split;
        struct span span = split ? split_span(e, split) : e->text->name_span;
        struct diag *diag = elaboration_error(e, E0206, span, "the step has more than %d instances", INSTANCES_MAX);
        diag_label(e->context, diag, "%lld parts of %u layers", (long long)cell_count(e), layers);
        return;
    }
    struct placement p = {.e = e, .schedule = schedule, .layers = layers};
    p.cells = (uint32_t)cell_count(e);
    p.waves = (uint32_t)e->waves;
    p.spots = context_grow(e->context, NULL, &p.spot_capacity, 64, sizeof *p.spots);
    p.spots[0] = (struct spot){.sync = true};
    p.spot_count = 1;
    p.spot_of = context_alloc(e->context, ((size_t)layers * e->task_count * p.cells + 1) * sizeof *p.spot_of);
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
