// Arcs of a schedule, by instance, and their topological order.
#include "compiler/schedule/arcs.h"

struct arc_sink {
    struct arcs *arcs;
    uint32_t *next; // NULL while counting
};

static void put(struct arc_sink *sink, uint32_t from, uint32_t to, uint32_t edge)
{
    if (sink->next)
        sink->arcs->list[sink->next[from]++] = (struct arc){to, edge};
    else
        sink->arcs->first[from + 1]++;
}

static void each_arc(struct arc_sink *sink, const struct ir *schedule, bool streams)
{
    for (uint32_t i = 0; i < COUNT(schedule, sched_edge); i++) {
        const struct sched_edge *edge = ROW(schedule, sched_edge, i);
        put(sink, edge->from, edge->to, i);
    }
    for (uint32_t s = 0; s < COUNT(schedule, sched_stream) && streams; s++) {
        struct rows order = ROW(schedule, sched_stream, s)->order;
        for (uint32_t i = 1; i < order.count; i++)
            put(sink, ROW(schedule, sched_slot, order.first + i - 1)->instance,
                ROW(schedule, sched_slot, order.first + i)->instance, NONE);
    }
}

struct arcs arcs_make(struct context *context, const struct ir *schedule, bool streams)
{
    struct arcs arcs = {.count = COUNT(schedule, sched_instance)};
    struct arc_sink sink = {&arcs, NULL};
    arcs.first = context_alloc(context, (arcs.count + 1) * sizeof *arcs.first);
    each_arc(&sink, schedule, streams);
    for (uint32_t i = 0; i < arcs.count; i++)
        arcs.first[i + 1] += arcs.first[i];
    arcs.list = context_alloc(context, (arcs.first[arcs.count] + 1) * sizeof *arcs.list);
    sink.next = context_alloc(context, (arcs.count + 1) * sizeof *sink.next);
    for (uint32_t i = 0; i < arcs.count; i++)
        sink.next[i] = arcs.first[i];
    each_arc(&sink, schedule, streams);
    return arcs;
}

uint32_t arcs_sort(struct context *context, const struct arcs *arcs, uint32_t *sorted, bool *left)
{
    uint32_t *waiting = context_alloc(context, (arcs->count + 1) * sizeof *waiting), done = 0;
    for (uint32_t i = 0; i < arcs->first[arcs->count]; i++)
        waiting[arcs->list[i].to]++;
    for (uint32_t i = 0; i < arcs->count; i++)
        if (!waiting[i])
            sorted[done++] = i;
    for (uint32_t i = 0; i < done; i++)
        for (uint32_t a = arcs->first[sorted[i]]; a < arcs->first[sorted[i] + 1]; a++)
            if (--waiting[arcs->list[a].to] == 0)
                sorted[done++] = arcs->list[a].to;
    for (uint32_t i = 0; i < arcs->count && left; i++)
        left[i] = waiting[i] > 0;
    return done;
}
