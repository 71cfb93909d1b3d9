// Where the ranks of this process and its threads sit: ranks are spread over the machine's domains by their cores, a
// rank's memory lies in its domain, its threads run on the domain's cores. A rank has several domains where there are
// more of them than ranks. Nothing here decides what is computed: results depend on no placement.
#ifndef MOE_PLACEMENT_H
#define MOE_PLACEMENT_H

#include <pthread.h>

#include "runtime/device/topology.h"

enum bind { BIND_NONE, BIND_NODE, BIND_CORE };

/// none, node or core; NULL: node. False: another word.
bool bind_named(const char *name, enum bind *bind);

struct seat {
    uint32_t domain;
    uint32_t number; // among the threads there
};

struct placement {
    struct topology topology; // without domains: nothing is placed
    enum bind bind;
    uint32_t ranks, threads, teams;
    struct range {
        uint32_t first, count;
    } *homes;                 // [ranks] domains of each rank: numbers of `used`
    uint32_t *used;           // domains with threads
    uint32_t used_count;
    struct seat *seats;       // [threads]
    uint32_t *seated;         // [domains] threads in each
};

/// Places `threads`, of which thread i works for rank i % teams where there are teams (a multiple of them), on a topology
/// that was read: it becomes the placement's. False: out of memory.
bool placement_make(struct placement *placement, uint32_t ranks, uint32_t threads, uint32_t teams, enum bind bind);
void placement_free(struct placement *placement);

/// The processors that a rank's streams, and that a thread may run on. Empty: any.
void placement_rank(const struct placement *placement, uint32_t rank, cpu_set_t *processors);
void placement_thread(const struct placement *placement, uint32_t thread, cpu_set_t *processors);
/// Keeps a thread on processors, where there are any and the system agrees.
void placement_keep(const struct placement *placement, pthread_t thread, const cpu_set_t *processors);
/// The rank's fresh pages will lie near its threads.
void placement_pages(const struct placement *placement, uint32_t rank, void *at, size_t bytes);
/// Ranks in the order in which a thread looks at their work: those of its own domain first, each thread from another on.
void placement_order(const struct placement *placement, uint32_t ranks, uint32_t thread, uint32_t *order);
/// The number-th line about who sits where; false when there are no more.
bool placement_line(const struct placement *placement, uint32_t number, char *text, size_t size);

#endif
