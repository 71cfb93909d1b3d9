// `fill`: work without a place of its own goes where its stream would otherwise stall. The step is played through with
// predicted times, every stream in its order, filling pieces left out; a piece is taken when it is ready and the stream
// would wait for a good part of what the piece takes, or when nothing else can go on without it. Where a forecast of the
// whole step is at hand, several drafts are made, each with the times of the best so far, and the quickest stays. What comes out is a place for
// each piece, fixed at compile time; the proof then judges the order like any other.
#include <math.h>
#include <string.h>

#include "compiler/schedule/arcs.h"
#include "compiler/schedule/place.h"

enum { ROUNDS = 2 };

struct rates { // of the first pipeline that uses the layer
    double flops_per_ns, bytes_per_ns, wire_per_ns, latency_ns;
};

struct play {
    struct placement *p;
    const struct ir *schedule;
    struct arcs arcs;    // edges alone
    uint32_t *missing;   // by instance: what it still waits for
    double *ready;       // when the last of what it waited for ended
    double *cost;
    uint32_t *spot;      // by instance
    uint32_t *fixed;     // instances by stream, in order, without those that fill: fixed[first[s]] on
    uint32_t *first, *next;
    uint32_t *filling;   // the pieces, in the order of the layers
    uint32_t filling_count;
    bool *placed;        // by filling number
    double *free_at;     // by stream
    uint32_t *last;      // by stream: the spot that ran last, 0: none
    double part;         // of a piece's time that its stream must stall for
};

static struct rates rates_of(const struct elaboration *e)
{
    struct rates rates = {100, 50, 5, 1000}; // a machine like this one, where no pipeline says
    uint32_t layer = ROW(e->graph, graph_info, 0)->layer_row;
    for (uint32_t i = 0; i < COUNT(e->module, mod_pipeline); i++) {
        const struct mod_pipeline *pipeline = ROW(e->module, mod_pipeline, i);
        if (pipeline->layer != layer || pipeline->cluster == NONE)
            continue;
        const struct mod_cluster *cluster = ROW(e->module, mod_cluster, pipeline->cluster);
        if (cluster->device != NONE) {
            const struct mod_device *device = ROW(e->module, mod_device, cluster->device);
            double peak = device->peak_bf16 > 0 ? device->peak_bf16 : device->peak_f32;
            rates.flops_per_ns = peak > 0 ? peak * (device->derate > 0 ? device->derate : 1) / 1e9 : rates.flops_per_ns;
            rates.bytes_per_ns = device->hbm > 0 ? device->hbm / 1e9 : rates.bytes_per_ns;
        }
        for (uint32_t l = 0; l < cluster->links.count; l++) { // the slowest link decides
            const struct mod_link *link = ROW(e->module, mod_link, cluster->links.first + l);
            double wire = link->bandwidth / 1e9;
            rates.wire_per_ns = wire > 0 && (l == 0 || wire < rates.wire_per_ns) ? wire : rates.wire_per_ns;
            rates.latency_ns = l == 0 || link->latency > rates.latency_ns ? link->latency : rates.latency_ns;
        }
        break;
    }
    return rates;
}

static double cost_of(const struct elaboration *e, const struct rates *rates, const struct sched_instance *instance,
                      int64_t bound)
{
    const struct graph_task *task = ROW(e->graph, graph_task, instance->task);
    double share = (double)(e->shares[instance->part + 1] - e->shares[instance->part]) / (double)e->shares[e->parts];
    const struct stage_info *stage = &e->stages[e->tasks[instance->task].stage];
    int64_t run = stage->shares[instance->piece + 1] - stage->shares[instance->piece];
    double rows = (double)bound * share * (double)run / (double)stage->shares[stage->runs];
    if (stage->routed)
        rows *= (double)(e->wave_shares[instance->wave + 1] - e->wave_shares[instance->wave]) / (double)e->wave_shares[e->waves];
    if (task->phase == phase_recv)
        return rates->latency_ns;
    if (task->phase == phase_send)
        return rates->latency_ns + rows * task->bytes_per_token / rates->wire_per_ns;
    return 100 + rows * task->ns_per_token +
           fmax(rows * task->flops_per_token / rates->flops_per_ns,
                rows * task->bytes_per_token / rates->bytes_per_ns);
}

/// Times where no machine is known or the draft cannot end.
static void guess_costs(const struct elaboration *e, const struct ir *draft, int64_t bound, double *costs)
{
    struct rates rates = rates_of(e);
    for (uint32_t i = 0; i < COUNT(draft, sched_instance); i++)
        costs[i] = cost_of(e, &rates, ROW(draft, sched_instance, i), bound);
}

static struct play play_make(struct placement *p, const struct ir *schedule, double *costs, double part)
{
    struct context *context = p->e->context;
    struct play y = {.p = p, .schedule = schedule, .arcs = arcs_make(context, schedule, false), .cost = costs, .part = part};
    uint32_t count = y.arcs.count, streams = p->e->stream_count, used = 0;
    uint32_t **numbers[] = {&y.missing, &y.spot, &y.fixed, &y.filling};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        *numbers[i] = context_alloc(context, (count + 1) * sizeof **numbers[i]);
    y.ready = context_alloc(context, (count + 1) * sizeof *y.ready);
    y.placed = context_alloc(context, count + 1);
    y.first = context_alloc(context, (streams + 1) * sizeof *y.first);
    y.next = context_alloc(context, (streams + 1) * sizeof *y.next);
    y.last = context_alloc(context, (streams + 1) * sizeof *y.last);
    y.free_at = context_alloc(context, (streams + 1) * sizeof *y.free_at);
    for (uint32_t i = p->spots[0].after; i; i = p->spots[i].after)
        if (!p->spots[i].sync)
            y.spot[p->spots[i].position] = i;
    for (uint32_t a = 0; a < y.arcs.first[count]; a++)
        y.missing[y.arcs.list[a].to]++;
    for (uint32_t s = 0; s < streams; s++) {
        struct rows order = ROW(schedule, sched_stream, s)->order;
        y.first[s] = y.next[s] = used;
        for (uint32_t i = 0; i < order.count; i++) {
            uint32_t instance = ROW(schedule, sched_slot, order.first + i)->instance;
            if (!p->spots[y.spot[instance]].filling)
                y.fixed[used++] = instance;
        }
    }
    y.first[streams] = used;
    return y;
}

/// Filling pieces by layer, then in the order of the text, then by piece: units are in that order.
static void list_filling(struct play *y)
{
    const struct placement *p = y->p;
    const struct elaboration *e = p->e;
    for (uint32_t layer = 0; layer < p->layers; layer++)
        for (uint32_t u = 0; u < e->unit_count; u++) {
            const struct issue *unit = &e->units[u];
            if (e->items[unit->item].how != ISSUED_IN_STALLS || unit->layer != layer % e->group)
                continue;
            uint32_t spot = *spot_at(p, layer, unit->task, unit->part, unit->piece);
            y->filling[y->filling_count++] = p->spots[spot].position;
        }
}

static uint32_t head_of(const struct play *y, uint32_t stream)
{
    uint32_t at = y->next[stream];
    if (at == y->first[stream + 1])
        return NONE;
    return y->missing[y->fixed[at]] ? NONE : y->fixed[at];
}

/// The filling piece of a stream that could start first; NONE: none is ready.
static uint32_t ready_piece(const struct play *y, uint32_t stream, double *start)
{
    uint32_t best = NONE;
    for (uint32_t i = 0; i < y->filling_count; i++) {
        uint32_t instance = y->filling[i];
        if (y->placed[i] || y->missing[instance] || y->p->spots[y->spot[instance]].stream != stream)
            continue;
        double begin = fmax(y->free_at[stream], y->ready[instance]);
        if (best != NONE && begin >= *start)
            continue;
        *start = begin;
        best = i;
    }
    return best;
}

static void run_instance(struct play *y, uint32_t instance, double start)
{
    uint32_t stream = y->p->spots[y->spot[instance]].stream;
    double end = start + y->cost[instance];
    y->free_at[stream] = end;
    y->last[stream] = y->spot[instance];
    for (uint32_t a = y->arcs.first[instance]; a < y->arcs.first[instance + 1]; a++) {
        uint32_t to = y->arcs.list[a].to;
        y->missing[to]--;
        y->ready[to] = fmax(y->ready[to], end);
    }
}

/// The piece takes its place: behind what its stream ran last.
static void run_piece(struct play *y, uint32_t number, double start)
{
    uint32_t instance = y->filling[number], spot = y->spot[instance];
    uint32_t stream = y->p->spots[spot].stream, behind = y->last[stream];
    if (!behind && y->first[stream] < y->first[stream + 1])
        behind = y->p->spots[y->spot[y->fixed[y->first[stream]]]].before;
    move_spot(y->p, spot, behind);
    y->placed[number] = true;
    run_instance(y, instance, start);
}

/// The stream whose next instance can start first; NONE: none can.
static uint32_t next_stream(const struct play *y, double *start)
{
    uint32_t best = NONE;
    for (uint32_t s = 0; s < y->p->e->stream_count; s++) {
        uint32_t head = head_of(y, s);
        double begin = head == NONE ? 0 : fmax(y->free_at[s], y->ready[head]);
        if (head == NONE || (best != NONE && begin >= *start))
            continue;
        *start = begin;
        best = s;
    }
    return best;
}

/// One step: an instance of a stream, or a piece into the gap before it. False: nothing can go on.
static bool play_on(struct play *y)
{
    double start = 0, begin = 0;
    uint32_t stream = next_stream(y, &start);
    if (stream == NONE) { // what comes next waits for a piece, or all is done: pieces go on at the end
        uint32_t best = NONE;
        for (uint32_t s = 0; s < y->p->e->stream_count; s++) {
            double at = 0;
            uint32_t piece = ready_piece(y, s, &at);
            if (piece == NONE || (best != NONE && at >= begin))
                continue;
            begin = at;
            best = piece;
        }
        if (best != NONE)
            run_piece(y, best, begin);
        return best != NONE;
    }
    uint32_t piece = ready_piece(y, stream, &begin);
    if (piece != NONE && begin < start && start - begin >= y->cost[y->filling[piece]] * y->part)
        run_piece(y, piece, begin);
    else
        run_instance(y, y->fixed[y->next[stream]++], start);
    return true;
}

/// The tables of the list as it stands, with what a forecast needs beside them.
static struct ir *write_draft(struct placement *p)
{
    struct ir *real = p->schedule, *draft = context_ir(p->e->context);
    context_ir_init(p->e->context, draft, &schedule_ir);
    NEW_ROW(p->e->context, draft, sched_info);
    *ROW(draft, sched_info, 0) = *ROW(real, sched_info, 0);
    ROW(draft, sched_info, 0)->name = ir_str(draft, ir_text(real, ROW(real, sched_info, 0)->name));
    for (uint32_t i = 0; i < COUNT(real, sched_part); i++) {
        uint32_t row = NEW_ROW(p->e->context, draft, sched_part);
        *ROW(draft, sched_part, row) = *ROW(real, sched_part, i);
    }
    for (uint32_t i = 0; i < COUNT(real, sched_share); i++) {
        uint32_t row = NEW_ROW(p->e->context, draft, sched_share);
        *ROW(draft, sched_share, row) = *ROW(real, sched_share, i);
    }
    for (uint32_t i = 0; i < COUNT(real, sched_task); i++) {
        uint32_t row = NEW_ROW(p->e->context, draft, sched_task);
        *ROW(draft, sched_task, row) = *ROW(real, sched_task, i);
    }
    p->schedule = draft;
    write_tables(p);
    p->schedule = real;
    return draft;
}

static void play_draft(struct placement *p, const struct ir *draft, double *costs, double part)
{
    struct play y = play_make(p, draft, costs, part);
    list_filling(&y);
    while (play_on(&y))
        ;
    p->numbered = false;
}

static bool fills(const struct elaboration *e)
{
    for (uint32_t i = 0; i < e->item_count; i++)
        if (e->items[i].how == ISSUED_IN_STALLS)
            return true;
    return false;
}

/// The list as it stands: its predicted time and the times of its instances. NAN: unknown.
static double evaluate_draft(struct placement *p, struct ir **draft, double **costs)
{
    const struct forecast *forecast = p->e->forecast;
    *draft = write_draft(p);
    *costs = context_alloc(p->e->context, (COUNT(*draft, sched_instance) + 1) * sizeof **costs);
    return forecast ? forecast->times(forecast->of, *draft, *costs) : NAN;
}

/// From the best list so far: the same pieces by times of that list, taken for stalls of different lengths.
static bool improve(struct placement *p, struct spot *best, double *least, struct ir **draft, double **costs)
{
    static const double parts[] = {0.5, 0.1, 1};
    bool improved = false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        memcpy(p->spots, best, p->spot_count * sizeof *best);
        p->numbered = false;
        play_draft(p, *draft, *costs, parts[i]);
        struct ir *next;
        double *times, step = evaluate_draft(p, &next, &times);
        if (!(step < *least * (1 - 1e-9))) {
            ir_free(next);
            continue;
        }
        ir_free(*draft);
        *draft = next;
        *costs = times;
        *least = step;
        memcpy(best, p->spots, p->spot_count * sizeof *best);
        improved = true;
    }
    return improved;
}

void fill_stalls(struct placement *p)
{
    const struct elaboration *e = p->e;
    if (!fills(e))
        return;
    struct ir *draft, *guess;
    double *costs, *times, late = evaluate_draft(p, &draft, &costs); // each piece just before its first reader
    struct spot *best = context_alloc(e->context, p->spot_count * sizeof *best);
    memcpy(best, p->spots, p->spot_count * sizeof *best);
    double *guessed = context_alloc(e->context, (COUNT(draft, sched_instance) + 1) * sizeof *guessed);
    guess_costs(e, draft, ROW(p->schedule, sched_info, 0)->bound, guessed);
    play_draft(p, draft, guessed, 0.5);
    double least = evaluate_draft(p, &guess, &times);
    if (late < least) { // the guess is worse
        memcpy(p->spots, best, p->spot_count * sizeof *best);
        least = late;
    } else {
        memcpy(best, p->spots, p->spot_count * sizeof *best);
        struct ir *other = draft;
        draft = guess;
        guess = other;
        costs = times;
    }
    ir_free(guess);
    for (int round = 0; round < ROUNDS && !isnan(least) && improve(p, best, &least, &draft, &costs); round++)
        ;
    memcpy(p->spots, best, p->spot_count * sizeof *best);
    p->numbered = false;
    ir_free(draft);
}
