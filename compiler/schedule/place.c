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

uint32_t piece_needed(const struct placement *p, uint32_t task, uint32_t piece)
{
    const struct task_info *info = &p->e->tasks[task];
    uint32_t runs = runs_of(p, task), first = piece / runs * runs;
    if (!p->e->stages[info->stage].routed)
        return NONE;
    if (p->e->stages[info->stage].expert)
        return piece > first ? piece - 1 : NONE;
    if (!is_placed_phase(info->phase))
        return NONE;
    if (info->phase == phase_pack && piece > first)
        return first;
    return piece < runs ? NONE : info->phase == phase_pack ? first - runs : piece - runs;
}

/// Where rules place the pieces of a task: a `pack` behind that of the piece before it, whatever it needs.
static uint32_t piece_before(const struct placement *p, uint32_t task, uint32_t piece)
{
    bool packs = p->e->tasks[task].phase == phase_pack && p->e->stages[p->e->tasks[task].stage].routed;
    return packs ? piece - 1 : piece_needed(p, task, piece); // of the first: NONE
}

/// How many runs of one stage's rows begin before a run of another's ends.
static uint32_t runs_begun(const struct stage_info *from, const struct stage_info *to, uint32_t run)
{
    uint32_t count = 1;
    while (count < from->runs && from->shares[count] * to->shares[to->runs] < to->shares[run + 1] * from->shares[from->runs])
        count++;
    return count;
}

struct rows pieces_read(const struct placement *p, uint32_t reader, uint32_t piece, uint32_t producer)
{
    const struct task_info *from = &p->e->tasks[producer], *to = &p->e->tasks[reader];
    uint32_t runs = runs_of(p, producer), wave = piece / runs_of(p, reader);
    if (from->stage == to->stage)
        return (struct rows){piece, 1};
    if (!p->e->stages[from->stage].routed)
        return (struct rows){0, pieces_of(p, producer)};
    if (!p->e->stages[to->stage].routed)
        return (struct rows){pieces_of(p, producer) - runs, runs};
    uint32_t begun = runs_begun(&p->e->stages[from->stage], &p->e->stages[to->stage], piece % runs_of(p, reader));
    if (from->phase == phase_recv) // of an earlier wave all, so that the answers to its rows have their places
        return (struct rows){0, wave * runs + begun};
    if (to->phase == phase_send)
        return (struct rows){wave * runs, begun};
    if (from->phase == phase_pack) // who is whose is known with the first
        return (struct rows){wave * runs, 1};
    return (struct rows){wave * runs, runs};
}

/// The first placed instance of `task`, for a part, that reads what a piece of `producer` wrote.
static uint32_t first_reading(struct placement *p, uint32_t layer, uint32_t task, uint32_t producer, uint32_t part,
                              uint32_t piece)
{
    uint32_t first = 0;
    if (ROW(p->e->graph, graph_task, task)->whole)
        return *spot_at(p, layer, task, 0, 0);
    for (uint32_t i = 0; i < pieces_of(p, task); i++) {
        struct rows read = pieces_read(p, task, i, producer);
        if (piece >= read.first && piece - read.first < read.count)
            first = choose(p, first, *spot_at(p, layer, task, part, i), false);
    }
    return first;
}

/// The first placed reader of what a task writes, in this layer or, for the layer's output, in the next.
static uint32_t first_reader(struct placement *p, uint32_t layer, uint32_t task, uint32_t part, uint32_t piece)
{
    const struct ir *graph = p->e->graph;
    const struct graph_info *info = ROW(graph, graph_info, 0);
    const struct graph_task *row = ROW(graph, graph_task, task);
    uint32_t first = 0;
    for (uint32_t next = piece + 1; next < pieces_of(p, task); next++)
        if (piece_needed(p, task, next) == piece || piece_before(p, task, next) == piece)
            first = choose(p, first, *spot_at(p, layer, task, part, next), false);
    for (uint32_t w = 0; w < row->writes.count; w++) {
        uint32_t value = ROW(graph, graph_use, row->writes.first + w)->value;
        for (uint32_t t = 0; t < p->e->task_count; t++) {
            if (reads_value(graph, t, value))
                first = choose(p, first, first_reading(p, layer, t, task, part, piece), false);
            if (value == info->output && layer + 1 < p->layers && reads_value(graph, t, info->input))
                first = choose(p, first, first_reading(p, layer + 1, t, task, part, piece), false);
        }
    }
    return first;
}

static uint32_t last_producer(struct placement *p, uint32_t layer, uint32_t task, uint32_t part, uint32_t piece)
{
    const struct graph_task *row = ROW(p->e->graph, graph_task, task);
    uint32_t needed = piece_needed(p, task, piece), before = piece_before(p, task, piece);
    uint32_t last = needed == NONE ? 0 : *spot_at(p, layer, task, part, needed);
    last = before == NONE ? last : choose(p, last, *spot_at(p, layer, task, part, before), true);
    for (uint32_t r = 0; r < row->reads.count; r++) {
        uint32_t producer = producer_of(p, row, r);
        struct rows read = producer == NONE ? (struct rows){0, 0} : pieces_read(p, task, piece, producer);
        for (uint32_t i = 0; i < read.count; i++)
            last = choose(p, last, *spot_at(p, layer, producer, part, read.first + i), true);
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

static uint32_t unit_at(const struct placement *p, uint32_t layer, uint32_t task, uint32_t part, uint32_t piece)
{
    const struct elaboration *e = p->e;
    return e->unit_of[(size_t)(layer % e->group) * e->cells + cell_of(e, task, part, piece)];
}

/// An automatic task's text: the instance of its stage, where there is one.
static struct spot automatic_spot(const struct placement *p, uint32_t layer, uint32_t task, uint32_t part,
                                  uint32_t piece)
{
    const struct elaboration *e = p->e;
    struct spot spot = {
        .task = task, .part = part, .piece = piece, .layer = layer, .automatic = true, .node = e->source->node};
    const struct stage_info *stage = &e->stages[e->tasks[task].stage];
    for (uint32_t t = stage->first_task; t < stage->first_task + stage->task_count; t++) {
        uint32_t unit = unit_at(p, layer, t, part, piece);
        if (unit != NONE)
            spot.node = e->items[e->units[unit].item].instance;
    }
    return spot;
}

/// A `pack` goes right after its producer, where that has its place already.
static void place_early(struct placement *p, uint32_t layer, uint32_t task, uint32_t part, uint32_t piece)
{
    uint32_t producer = last_producer(p, layer, task, part, piece);
    if (!producer)
        return;
    struct spot spot = automatic_spot(p, layer, task, part, piece);
    spot.stream = stream_near(p, producer, task);
    insert_after(p, producer, spot);
}

/// Before the part's first task on the stream of `sm` that waits for a message: that is where it would stall.
static uint32_t first_stall(struct placement *p, uint32_t layer, uint32_t part)
{
    uint32_t first = 0;
    for (uint32_t t = 0; t < p->e->task_count; t++)
        for (uint32_t piece = 0; piece < pieces_of(p, t) && p->after_message[t]; piece++) {
            uint32_t spot = *spot_at(p, layer, t, part, piece);
            if (spot && p->spots[spot].stream == p->sm_stream)
                first = choose(p, first, spot, false);
        }
    return first;
}

static void place_late(struct placement *p, uint32_t layer, uint32_t task, uint32_t part, uint32_t piece)
{
    bool unnamed = !p->e->stages[p->e->tasks[task].stage].named;
    uint32_t where = first_reader(p, layer, task, part, piece);
    struct spot spot = automatic_spot(p, layer, task, part, piece);
    spot.stream = unnamed ? p->sm_stream : stream_near(p, where, task);
    if (!where && !unnamed)
        spot.stream = stream_near(p, last_producer(p, layer, task, part, piece), task);
    if (unnamed && !p->after_message[task] && !p->feeds_named[task])
        where = choose(p, where, first_stall(p, layer, part), false);
    insert_before(p, where, spot);
}

/// What the text issues goes just before its first reader, wherever in the step that is; what fills stalls begins there
/// too. What the text leaves to rules goes by rule.
static void place_unplaced(struct placement *p, uint32_t layer, uint32_t task, uint32_t part, uint32_t piece)
{
    uint32_t unit = unit_at(p, layer, task, part, piece);
    if (*spot_at(p, layer, task, part, piece))
        return;
    if (unit == NONE)
        place_late(p, layer, task, part, piece);
    else
        insert_before(p, first_reader(p, layer, task, part, piece),
                      unit_spot(p, &p->e->units[unit], layer - layer % (uint32_t)p->e->group));
}

static void place_automatic(struct placement *p)
{
    uint32_t tasks = p->e->task_count;
    for (uint32_t layer = 0; layer < p->layers; layer++)
        for (uint32_t t = 0; t < tasks; t++)
            for (uint32_t i = 0; i < p->parts * pieces_of(p, t) && p->e->tasks[t].phase == phase_pack; i++) {
                uint32_t part = i / pieces_of(p, t), piece = i % pieces_of(p, t);
                if (unit_at(p, layer, t, part, piece) == NONE)
                    place_early(p, layer, t, part, piece);
            }
    for (uint32_t layer = p->layers; layer-- > 0;)
        for (uint32_t t = tasks; t-- > 0;)
            for (uint32_t i = 0; i < p->parts * pieces_of(p, t); i++) {
                uint32_t piece = i % pieces_of(p, t), runs = runs_of(p, t);
                if (p->e->tasks[t].phase == phase_pack) // of what follows itself, the last finds its reader first
                    piece = pieces_of(p, t) - 1 - piece;
                else if (p->e->tasks[t].phase == phase_merge)
                    piece = pieces_of(p, t) - runs - piece / runs * runs + piece % runs;
                place_unplaced(p, layer, t, i / pieces_of(p, t), piece);
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
        diag_label(e->context, diag, "%lld parts of %u layers", (long long)e->parts, layers);
        return;
    }
    struct placement p = {.e = e, .schedule = schedule, .layers = layers, .parts = (uint32_t)e->parts};
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
