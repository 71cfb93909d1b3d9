// Units -> one list of spots: the issue order is repeated for every group of layers, tasks placed by rule go between
// (`pack` after what makes its routes, `merge` and what is deferred before its first reader, unnamed stages by data
// order), and each stream's order is the list's order.
#include "compiler/schedule/place.h"

enum { INSTANCES_MAX = 16384 }; // orders between all pairs are kept as bits

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
        *spot_at(p, spot.layer, spot.task, spot.part, spot.piece) = number;
    return number;
}

void move_spot(struct placement *p, uint32_t spot, uint32_t behind)
{
    struct spot *at = &p->spots[spot];
    if (spot == behind)
        return;
    p->spots[at->before].after = at->after;
    p->spots[at->after].before = at->before;
    at->before = behind;
    at->after = p->spots[behind].after;
    p->spots[at->after].before = spot;
    p->spots[behind].after = spot;
    p->numbered = false;
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

static struct spot unit_spot(const struct placement *p, const struct issue *unit, uint32_t first_layer)
{
    const struct item *item = &p->e->items[unit->item];
    return (struct spot){.task = unit->task,
                         .part = unit->part,
                         .piece = unit->piece,
                         .layer = first_layer + unit->layer,
                         .stream = unit->stream,
                         .node = item->instance,
                         .filling = item->how == ISSUED_IN_STALLS};
}

/// What flows issue, for one group of layers. Deferred and filling instances wait for their readers' places.
static void issue_group(struct placement *p, uint32_t first_layer)
{
    const struct elaboration *e = p->e;
    for (uint32_t i = 0; i < e->item_count; i++) {
        const struct item *item = &e->items[i];
        if (item->sync)
            insert_before(p, 0, (struct spot){.layer = first_layer, .node = item->instance, .sync = true});
        for (uint32_t u = 0; u < item->units.count && item->how == ISSUED_HERE; u++)
            insert_before(p, 0, unit_spot(p, &e->units[item->units.first + u], first_layer));
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

/// The first (or last) placed piece of a task's instance for a part.
static uint32_t extreme_piece(struct placement *p, uint32_t layer, uint32_t task, uint32_t part, bool later)
{
    uint32_t found = 0;
    for (uint32_t piece = 0; piece < pieces_of(p, task); piece++)
        found = choose(p, found, *spot_at(p, layer, task, part, piece), later);
    return found;
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
                first = choose(p, first, extreme_piece(p, layer, t, part, false), false);
            if (value == info->output && layer + 1 < p->layers && reads_value(graph, t, info->input))
                first = choose(p, first, extreme_piece(p, layer + 1, t, part, false), false);
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
        if (producer != NONE)
            last = choose(p, last, extreme_piece(p, layer, producer, part, true), true);
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
    struct spot spot = {.task = task, .part = part, .layer = layer, .automatic = true, .node = p->e->source->node};
    const struct elaboration *e = p->e;
    const struct stage_info *stage = &e->stages[e->tasks[task].stage];
    for (uint32_t t = stage->first_task; t < stage->first_task + stage->task_count; t++) {
        uint32_t unit = e->unit_of[(size_t)(layer % e->group) * e->cells + cell_of(e, t, part, 0)];
        if (unit != NONE)
            spot.node = e->items[e->units[unit].item].instance;
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
        uint32_t spot = extreme_piece(p, layer, t, part, false);
        if (spot && p->after_message[t] && p->spots[spot].stream == p->sm_stream)
            first = choose(p, first, spot, false);
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

/// Just before its first reader, wherever in the step that is; what fills stalls begins there too.
static void place_issued(struct placement *p, uint32_t layer, uint32_t task, uint32_t part)
{
    const struct elaboration *e = p->e;
    for (uint32_t piece = 0; piece < pieces_of(p, task); piece++) {
        uint32_t unit = e->unit_of[(size_t)(layer % e->group) * e->cells + cell_of(e, task, part, piece)];
        if (unit == NONE || e->items[e->units[unit].item].how == ISSUED_HERE)
            continue;
        struct spot spot = unit_spot(p, &e->units[unit], layer - layer % (uint32_t)e->group);
        insert_before(p, first_reader(p, layer, task, part), spot);
    }
}

static bool is_issued(const struct placement *p, uint32_t layer, uint32_t task, uint32_t part)
{
    const struct elaboration *e = p->e;
    return e->unit_of[(size_t)(layer % e->group) * e->cells + cell_of(e, task, part, 0)] != NONE;
}

static void place_automatic(struct placement *p)
{
    uint32_t tasks = p->e->task_count;
    for (uint32_t layer = 0; layer < p->layers; layer++)
        for (uint32_t t = 0; t < tasks; t++)
            for (uint32_t part = 0; part < p->parts && p->e->tasks[t].phase == phase_pack; part++)
                if (!is_issued(p, layer, t, part))
                    place_early(p, layer, t, part);
    for (uint32_t layer = p->layers; layer-- > 0;)
        for (uint32_t t = tasks; t-- > 0;)
            for (uint32_t part = 0; part < p->parts; part++) {
                if (is_issued(p, layer, t, part))
                    place_issued(p, layer, t, part);
                else if (!*spot_at(p, layer, t, part, 0))
                    place_late(p, layer, t, part);
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

void place(struct elaboration *e, struct ir *schedule)
{
    uint32_t layers = (uint32_t)e->layers;
    if (e->layers * e->cells > INSTANCES_MAX) {
        const struct split_info *split = find_split(e, SPLIT_TOKENS, NONE);
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
    p.spot_of = context_alloc(e->context, ((size_t)layers * e->cells + 1) * sizeof *p.spot_of);
    p.sm_stream = NONE;
    for (uint32_t s = e->stream_count; s-- > 0;)
        if (e->streams[s].engines & 1u << engine_sm)
            p.sm_stream = s;
    if (!check_automatic(&p))
        return;
    trace_tasks(&p);
    for (uint32_t layer = 0; layer < layers; layer += (uint32_t)e->group)
        issue_group(&p, layer);
    place_automatic(&p);
    fill_stalls(&p);
    write_tables(&p);
}
