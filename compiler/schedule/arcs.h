// A schedule as a directed graph: instances, and an arc for every edge and for every step along a stream.
#ifndef MOECC_ARCS_H
#define MOECC_ARCS_H

#include "compiler/schedule/schedule.h"

struct arc {
    uint32_t to;
    uint32_t edge; // row of sched_edge; NONE: the next on the same stream
};

struct arcs {
    uint32_t count;  // instances
    uint32_t *first; // by instance: its arcs are list[first[i]] to list[first[i + 1]]
    struct arc *list;
};

/// streams: with the steps along streams.
struct arcs arcs_make(struct context *context, const struct ir *schedule, bool streams);
/// Instances so that every arc leads forward. Returns how many have their place: fewer than count means a cycle, and
/// `left` (when given, by instance) marks what lies on or behind one.
uint32_t arcs_sort(struct context *context, const struct arcs *arcs, uint32_t *sorted, bool *left);

#endif
