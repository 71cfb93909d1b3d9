// The part of the machine that this process may use: its cores, and the domains they belong to, memory nodes where there
// are several, else last-level caches where there are several, else one. What lies outside the affinity and the cpuset
// that the process was given is not there.
#ifndef MOE_TOPOLOGY_H
#define MOE_TOPOLOGY_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct domain {
    char name[24];         // "node 1", "cache 3"
    uint32_t first, count; // of the cores
    uint32_t node;         // whose memory is nearest, as the system numbers them
};

struct topology {
    cpu_set_t *cores; // [core_count] the processors of each: several where it runs several threads. By domain
    uint32_t core_count;
    struct domain *domains;
    uint32_t domain_count;
    bool apart;              // the domains have memory of their own
    bool imagined;           // hwloc was told of another machine: nothing can be bound
    bool unread;             // there are several domains, and no libhwloc to tell them apart
    struct hwloc_use *hwloc; // NULL: not needed, or not there
};

/// False: out of memory. Asks hwloc only where there can be more than one domain; one is all there is without it.
bool topology_read(struct topology *topology);
void topology_free(struct topology *topology);

/// "0-3,8"; cut short where it does not fit.
const char *processors_text(const cpu_set_t *processors, char *text, size_t size);

/// Cores that this process may use, at least one: what `one thread per core` means. No more than its control groups give it
/// time for.
uint32_t machine_cores(void);
/// ...and processors: more than cores where a core runs several threads.
uint32_t machine_processors(void);
/// Processors' worth of time that the control groups of `self` (as /proc/self/cgroup) leave, by the tree under `root`; 0:
/// without limit.
double quota_processors(const char *self, const char *root);

/// hwloc.c. Fills cores and domains, of processors that are in `usable`. False: no library, or it says nothing.
bool hwloc_read(struct topology *topology, const cpu_set_t *usable);
void hwloc_close(struct topology *topology);
/// Pages that nobody has touched yet will lie in the memory of these domains: in turn, where there are several. A system
/// that cannot do so leaves them where they are touched first.
void hwloc_place(const struct topology *topology, const uint32_t *domains, uint32_t count, void *at, size_t bytes);

#endif
