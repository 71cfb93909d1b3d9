// What the order of streams and the edges imply: the fewest waits between streams, and the closure that tells which
// instance ends before which other starts, on one rank and between ranks.
#include <string.h>

#include "compiler/schedule/arcs.h"

// Waits. A vector clock says for every instance how far each stream has come before it starts. A wait is needed for an
// edge from another stream only if neither the stream's own past nor another needed wait brings it along; in a graph
// without cycles that set is unique and the smallest.

struct clocks {
    struct context *context;
    uint32_t streams;
    uint32_t *known; // by instance, stream: how many of the stream's instances have ended before it starts
};

static uint32_t *clock_of(const struct clocks *clocks, uint32_t instance)
{
    return clocks->known + (size_t)instance * clocks->streams;
}

static void join_end_of(const struct clocks *clocks, uint32_t *known, const struct ir *schedule, uint32_t instance)
{
    const struct sched_instance *row = ROW(schedule, sched_instance, instance);
    const uint32_t *other = clock_of(clocks, instance);
    for (uint32_t s = 0; s < clocks->streams; s++)
        if (other[s] > known[s])
            known[s] = other[s];
    if (row->position + 1 > known[row->stream])
        known[row->stream] = row->position + 1;
}

/// Is the end of `instance` known to one that waits for `other`?
static bool brings(const struct clocks *clocks, const struct ir *schedule, uint32_t other, uint32_t instance)
{
    const struct sched_instance *row = ROW(schedule, sched_instance, instance);
    return clock_of(clocks, other)[row->stream] > row->position;
}

static void wait_for(struct ir *schedule, struct clocks *clocks, uint32_t to, const uint32_t *needed, uint32_t *base)
{
    for (uint32_t s = 0; s < clocks->streams; s++) {
        if (needed[s] == NONE || ROW(schedule, sched_instance, needed[s])->position < base[s])
            continue;
        bool brought = false;
        for (uint32_t o = 0; o < clocks->streams && !brought; o++)
            brought = o != s && needed[o] != NONE && brings(clocks, schedule, needed[o], needed[s]);
        if (brought)
            continue;
        uint32_t row = NEW_ROW(clocks->context, schedule, sched_wait);
        *ROW(schedule, sched_wait, row) = (struct sched_wait){.from = needed[s], .to = to};
    }
    for (uint32_t s = 0; s < clocks->streams; s++)
        if (needed[s] != NONE)
            join_end_of(clocks, base, schedule, needed[s]);
}

/// Edges that end at each instance, as chains: head[instance], then next[edge]. Message edges need no wait.
static uint32_t *edges_by_end(struct context *context, const struct ir *schedule, uint32_t **next)
{
    uint32_t count = COUNT(schedule, sched_instance), edges = COUNT(schedule, sched_edge);
    uint32_t *head = context_alloc(context, (count + 1) * sizeof *head);
    *next = context_alloc(context, (edges + 1) * sizeof **next);
    for (uint32_t i = 0; i < count; i++)
        head[i] = NONE;
    for (uint32_t i = 0; i < edges; i++) {
        const struct sched_edge *edge = ROW(schedule, sched_edge, i);
        if (edge->why == edge_message)
            continue;
        (*next)[i] = head[edge->to];
        head[edge->to] = i;
    }
    return head;
}

static void latest_needed(const struct ir *schedule, uint32_t edge, const uint32_t *next, uint32_t *needed)
{
    for (; edge != NONE; edge = next[edge]) {
        uint32_t from = ROW(schedule, sched_edge, edge)->from;
        const struct sched_instance *row = ROW(schedule, sched_instance, from);
        uint32_t *slot = &needed[row->stream];
        if (*slot == NONE || ROW(schedule, sched_instance, *slot)->position < row->position)
            *slot = from;
    }
}

bool place_waits(struct context *context, const struct ir *graph, struct ir *schedule)
{
    (void)graph;
    struct arcs arcs = arcs_make(context, schedule, true);
    uint32_t *sorted = context_alloc(context, (arcs.count + 1) * sizeof *sorted), *next;
    struct clocks clocks = {.context = context, .streams = COUNT(schedule, sched_stream)};
    if (arcs_sort(context, &arcs, sorted, NULL) != arcs.count)
        return false;
    uint32_t *head = edges_by_end(context, schedule, &next);
    uint32_t *needed = context_alloc(context, (clocks.streams + 1) * sizeof *needed);
    clocks.known = context_alloc(context, ((size_t)arcs.count * clocks.streams + 1) * sizeof *clocks.known);
    for (uint32_t i = 0; i < arcs.count; i++) {
        uint32_t to = sorted[i];
        const struct sched_instance *row = ROW(schedule, sched_instance, to);
        uint32_t *base = clock_of(&clocks, to);
        if (row->position > 0) {
            struct rows order = ROW(schedule, sched_stream, row->stream)->order;
            join_end_of(&clocks, base, schedule, ROW(schedule, sched_slot, order.first + row->position - 1)->instance);
        }
        for (uint32_t s = 0; s < clocks.streams; s++)
            needed[s] = NONE;
        latest_needed(schedule, head[to], next, needed);
        needed[row->stream] = NONE;
        wait_for(schedule, &clocks, to, needed, base);
    }
    return true;
}

// The closure. Two ranks stand for all: an arc stays on its rank, a message crosses to the other. What one rank's end
// reaches on the other holds for any two different ranks, since every rank sends to every other. A stream's instances end
// in their order, so what has ended before an instance starts is a number for each stream.

struct order_closure {
    const struct ir *schedule;
    uint32_t streams;
    uint32_t *here;       // by instance, stream: how many have ended before it starts, on its rank, by arcs alone
    uint32_t *even, *odd; // on its rank (round trips too) and on the other rank
};

static void join(const struct order_closure *closure, uint32_t *clock, const uint32_t *more)
{
    for (uint32_t s = 0; s < closure->streams; s++)
        if (more[s] > clock[s])
            clock[s] = more[s];
}

/// `instance` itself has ended.
static void join_end(uint32_t *clock, const struct sched_instance *instance)
{
    if (instance->position + 1 > clock[instance->stream])
        clock[instance->stream] = instance->position + 1;
}

static void close_arc(struct order_closure *closure, uint32_t from, uint32_t to, bool message)
{
    const struct sched_instance *ended = ROW(closure->schedule, sched_instance, from);
    size_t a = (size_t)from * closure->streams, b = (size_t)to * closure->streams;
    join(closure, (message ? closure->odd : closure->even) + b, closure->even + a);
    join(closure, (message ? closure->even : closure->odd) + b, closure->odd + a);
    join_end((message ? closure->odd : closure->even) + b, ended);
    if (message)
        return;
    join(closure, closure->here + b, closure->here + a);
    join_end(closure->here + b, ended);
}

struct order_closure *order_closure_make(struct context *context, const struct ir *graph, const struct ir *schedule)
{
    (void)graph;
    struct arcs arcs = arcs_make(context, schedule, true);
    uint32_t *sorted = context_alloc(context, (arcs.count + 1) * sizeof *sorted);
    if (arcs_sort(context, &arcs, sorted, NULL) != arcs.count)
        return NULL;
    struct order_closure *closure = context_alloc(context, sizeof *closure);
    *closure = (struct order_closure){.schedule = schedule, .streams = COUNT(schedule, sched_stream)};
    size_t size = (size_t)arcs.count * closure->streams;
    closure->here = context_alloc(context, (3 * size + 1) * sizeof *closure->here);
    closure->even = closure->here + size;
    closure->odd = closure->even + size;
    for (uint32_t i = 0; i < arcs.count; i++) {
        uint32_t from = sorted[i];
        for (uint32_t a = arcs.first[from]; a < arcs.first[from + 1]; a++) {
            uint32_t edge = arcs.list[a].edge;
            bool message = edge != NONE && ROW(schedule, sched_edge, edge)->why == edge_message;
            close_arc(closure, from, arcs.list[a].to, message);
        }
    }
    return closure;
}

const uint32_t *order_clock(const struct order_closure *closure, uint32_t instance, bool other_rank)
{
    return (other_rank ? closure->odd : closure->here) + (size_t)instance * closure->streams;
}

bool ordered(const struct order_closure *closure, uint32_t before, uint32_t after, bool other_rank)
{
    const struct sched_instance *row = ROW(closure->schedule, sched_instance, before);
    return order_clock(closure, after, other_rank)[row->stream] > row->position;
}
