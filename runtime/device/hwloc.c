// All that is asked of libhwloc: which cores are near which memory or share a cache, and that pages lie in a node's
// memory. It is opened where it is needed and there; a program that has no use for it needs nothing but libc.
#include "runtime/device/topology.h"

// Built without its header (for an architecture whose libhwloc-dev is not installed), it is never there.
#if __has_include(<hwloc.h>) && __has_include(<hwloc/autogen/config.h>)
#include <dlfcn.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS(C)                                                                                                       \
    C(hwloc_get_api_version)                                                                                           \
    C(hwloc_topology_init)                                                                                             \
    C(hwloc_topology_load)                                                                                             \
    C(hwloc_topology_destroy)                                                                                          \
    C(hwloc_topology_is_thissystem)                                                                                    \
    C(hwloc_get_type_depth)                                                                                            \
    C(hwloc_get_nbobjs_by_depth)                                                                                       \
    C(hwloc_get_obj_by_depth)                                                                                          \
    C(hwloc_bitmap_alloc)                                                                                              \
    C(hwloc_bitmap_free)                                                                                               \
    C(hwloc_bitmap_set)                                                                                                \
    C(hwloc_bitmap_isset)                                                                                              \
    C(hwloc_set_area_membind)

struct hwloc_use {
    void *library;
    hwloc_topology_t topology;
#define POINTER(name) __typeof__(&(name)) name;
    CALLS(POINTER)
#undef POINTER
};

static bool open_library(struct hwloc_use *use)
{
    bool all = true;
    use->library = dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL); // every 2.x, as the header is
    if (!use->library)
        return false;
#define FIND(name)                                                                                                     \
    use->name = (__typeof__(&(name)))dlsym(use->library, #name);                                                       \
    all = all && use->name;
    CALLS(FIND)
#undef FIND
    return all && use->hwloc_get_api_version() >> 16 == HWLOC_API_VERSION >> 16;
}

static bool load_topology(struct hwloc_use *use)
{
    if (use->hwloc_topology_init(&use->topology) != 0) {
        use->topology = NULL;
        return false;
    }
    return use->hwloc_topology_load(use->topology) == 0;
}

static uint32_t count_of(const struct hwloc_use *use, hwloc_obj_type_t type)
{
    int depth = use->hwloc_get_type_depth(use->topology, type);
    return depth == HWLOC_TYPE_DEPTH_UNKNOWN ? 0 : use->hwloc_get_nbobjs_by_depth(use->topology, depth);
}

static hwloc_obj_t object_of(const struct hwloc_use *use, hwloc_obj_type_t type, uint32_t number)
{
    return use->hwloc_get_obj_by_depth(use->topology, use->hwloc_get_type_depth(use->topology, type), number);
}

/// Usable processors of an object that no core before has.
static bool processors_of(const struct hwloc_use *use, hwloc_obj_t object, const cpu_set_t *left, cpu_set_t *processors)
{
    CPU_ZERO(processors);
    for (unsigned i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, left) && use->hwloc_bitmap_isset(object->cpuset, i))
            CPU_SET(i, processors);
    return CPU_COUNT(processors) > 0;
}

static uint32_t node_near(const struct hwloc_use *use, hwloc_obj_t object)
{
    for (uint32_t n = 0; n < count_of(use, HWLOC_OBJ_NUMANODE); n++) {
        hwloc_obj_t node = object_of(use, HWLOC_OBJ_NUMANODE, n);
        if (use->hwloc_bitmap_isset(object->nodeset, node->os_index))
            return node->os_index;
    }
    return 0;
}

/// Each core becomes part of the first object of the type that has it; objects without any (memory alone, or a second kind
/// of it beside the same cores) are no domains.
static void split_by(struct topology *topology, hwloc_obj_type_t type, const char *name, const cpu_set_t *usable)
{
    const struct hwloc_use *use = topology->hwloc;
    hwloc_obj_type_t unit = count_of(use, HWLOC_OBJ_CORE) ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    cpu_set_t left = *usable, inside, core;
    topology->core_count = topology->domain_count = 0;
    for (uint32_t d = 0; d < count_of(use, type); d++) {
        hwloc_obj_t object = object_of(use, type, d);
        struct domain *domain = &topology->domains[topology->domain_count];
        *domain = (struct domain){.first = topology->core_count, .node = node_near(use, object)};
        snprintf(domain->name, sizeof domain->name, "%s %u", name,
                 type == HWLOC_OBJ_NUMANODE ? object->os_index : object->logical_index);
        if (!processors_of(use, object, &left, &inside))
            continue;
        for (uint32_t c = 0; c < count_of(use, unit); c++)
            if (processors_of(use, object_of(use, unit, c), &inside, &core)) {
                CPU_XOR(&left, &left, &core);
                topology->cores[topology->core_count++] = core;
            }
        domain->count = topology->core_count - domain->first;
        topology->domain_count += domain->count > 0;
    }
}

bool hwloc_read(struct topology *topology, const cpu_set_t *usable)
{
    struct hwloc_use *use = calloc(1, sizeof *use);
    topology->hwloc = use;
    if (!use || !open_library(use) || !load_topology(use))
        return false;
    cpu_set_t known = *usable;
    topology->imagined = !use->hwloc_topology_is_thissystem(use->topology);
    if (topology->imagined)
        memset(&known, 0xff, sizeof known);
    size_t units = count_of(use, HWLOC_OBJ_PU), nodes = count_of(use, HWLOC_OBJ_NUMANODE), caches = count_of(use, HWLOC_OBJ_L3CACHE);
    topology->cores = calloc(units + 1, sizeof *topology->cores);
    topology->domains = calloc(nodes + caches + 1, sizeof *topology->domains);
    if (!topology->cores || !topology->domains)
        return false;
    split_by(topology, HWLOC_OBJ_NUMANODE, "node", &known);
    topology->apart = topology->domain_count > 1;
    if (topology->domain_count == 1 && caches > 1)
        split_by(topology, HWLOC_OBJ_L3CACHE, "cache", &known);
    return topology->core_count > 0;
}

void hwloc_close(struct topology *topology)
{
    struct hwloc_use *use = topology->hwloc;
    if (use && use->topology)
        use->hwloc_topology_destroy(use->topology);
    if (use && use->library)
        dlclose(use->library);
    free(use);
    topology->hwloc = NULL;
}

void hwloc_place(const struct topology *topology, const uint32_t *domains, uint32_t count, void *at, size_t bytes)
{
    const struct hwloc_use *use = topology->hwloc;
    if (!use || !topology->apart || topology->imagined)
        return;
    hwloc_bitmap_t nodes = use->hwloc_bitmap_alloc();
    for (uint32_t i = 0; i < count && nodes; i++)
        use->hwloc_bitmap_set(nodes, topology->domains[domains[i]].node);
    if (nodes)
        use->hwloc_set_area_membind(use->topology, at, bytes, nodes,
                                    count > 1 ? HWLOC_MEMBIND_INTERLEAVE : HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET);
    use->hwloc_bitmap_free(nodes);
}
#else
bool hwloc_read(struct topology *topology, const cpu_set_t *usable)
{
    (void)topology, (void)usable;
    return false;
}

void hwloc_close(struct topology *topology)
{
    (void)topology;
}

void hwloc_place(const struct topology *topology, const uint32_t *domains, uint32_t count, void *at, size_t bytes)
{
    (void)topology, (void)domains, (void)count, (void)at, (void)bytes;
}
#endif
