// What the system itself tells of this process's part of the machine, by affinity and files: enough where all its cores
// share memory and cache, and to see whether they do.
#include "runtime/device/topology.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/// The numbers of a file such as "0-3,8". False: no such file, or not that.
static bool read_list(const char *path, cpu_set_t *numbers)
{
    CPU_ZERO(numbers);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    unsigned first, last;
    while (fscanf(file, "%u", &first) == 1 && first < CPU_SETSIZE) {
        last = first;
        if (fscanf(file, "-%u", &last) != 1 || last >= CPU_SETSIZE)
            last = first;
        for (unsigned n = first; n <= last; n++)
            CPU_SET(n, numbers);
        if (fgetc(file) != ',')
            break;
    }
    fclose(file);
    return CPU_COUNT(numbers) > 0;
}

static bool read_processor(uint32_t processor, const char *what, cpu_set_t *numbers)
{
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/%s", processor, what);
    return read_list(path, numbers);
}

static void usable_processors(cpu_set_t *usable)
{
    if (sched_getaffinity(0, sizeof *usable, usable) == 0 && CPU_COUNT(usable))
        return;
    long all = sysconf(_SC_NPROCESSORS_ONLN); // more than a set can name
    CPU_ZERO(usable);
    for (long i = 0; i < (all > 0 ? all : 1) && i < CPU_SETSIZE; i++)
        CPU_SET((size_t)i, usable);
}

/// Of the usable processors, those of the next core from *at on; false when there are no more.
static bool next_core(const cpu_set_t *usable, uint32_t *at, cpu_set_t *core)
{
    for (; *at < CPU_SETSIZE; ++*at) {
        if (!CPU_ISSET(*at, usable))
            continue;
        uint32_t lowest = 0;
        if (!read_processor(*at, "topology/thread_siblings_list", core))
            CPU_SET(*at, core);
        CPU_AND(core, core, usable);
        while (lowest < *at && !CPU_ISSET(lowest, core))
            lowest++;
        if (lowest == *at) { // else counted with its core
            ++*at;
            return true;
        }
    }
    return false;
}

/// The quota of one group, whose folder is `path`; 0: none.
static double group_quota(const char *path)
{
    char name[PATH_MAX];
    double quota = 0, period = 0;
    FILE *file = snprintf(name, sizeof name, "%s/cpu.max", path) < (int)sizeof name ? fopen(name, "r") : NULL;
    bool limited = file && fscanf(file, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0; // else `max`
    if (file)
        fclose(file);
    return limited ? quota / period : 0;
}

double quota_processors(const char *self, const char *root)
{
    char line[PATH_MAX], path[2 * PATH_MAX] = "";
    double least = 0;
    FILE *file = fopen(self, "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "0::", 3)) // the hierarchy of version 2
            snprintf(path, sizeof path, "%s%.*s", root, (int)strcspn(line + 3, "\n"), line + 3);
    if (file)
        fclose(file);
    while (strlen(path) >= strlen(root) && *path) { // limits of groups above hold, too
        double quota = group_quota(path);
        least = quota > 0 && (least == 0 || quota < least) ? quota : least;
        char *slash = strrchr(path, '/');
        if (!slash)
            break;
        *slash = 0;
    }
    return least;
}

uint32_t machine_cores(void)
{
    cpu_set_t usable, core;
    uint32_t count = 0, at = 0;
    usable_processors(&usable);
    while (next_core(&usable, &at, &core))
        count++;
    double quota = quota_processors("/proc/self/cgroup", "/sys/fs/cgroup");
    if (quota > 0 && quota < count)
        count = (uint32_t)ceil(quota);
    return count ? count : 1;
}

uint32_t machine_processors(void)
{
    cpu_set_t usable;
    usable_processors(&usable);
    return (uint32_t)CPU_COUNT(&usable);
}

static bool may_have_domains(const cpu_set_t *usable)
{
    cpu_set_t shared;
    uint32_t first = 0;
    if (getenv("HWLOC_SYNTHETIC") || getenv("HWLOC_XMLFILE"))
        return true; // hwloc is told of a machine
    while (!CPU_ISSET(first, usable))
        first++;
    if (read_list("/sys/devices/system/node/has_cpu", &shared) && CPU_COUNT(&shared) > 1)
        return true;
    if (!read_processor(first, "cache/index3/shared_cpu_list", &shared))
        return false;
    CPU_AND(&shared, &shared, usable);
    return !CPU_EQUAL(&shared, usable);
}

bool topology_read(struct topology *topology)
{
    cpu_set_t usable;
    *topology = (struct topology){0};
    usable_processors(&usable);
    bool several = may_have_domains(&usable);
    if (several && hwloc_read(topology, &usable))
        return true;
    topology_free(topology);
    topology->unread = several;
    topology->cores = calloc((size_t)CPU_COUNT(&usable), sizeof *topology->cores);
    topology->domains = calloc(1, sizeof *topology->domains);
    if (!topology->cores || !topology->domains)
        return false;
    for (uint32_t at = 0; next_core(&usable, &at, &topology->cores[topology->core_count]);)
        topology->core_count++;
    topology->domain_count = 1;
    topology->domains[0] = (struct domain){.name = "one node", .count = topology->core_count};
    return true;
}

void topology_free(struct topology *topology)
{
    hwloc_close(topology);
    free(topology->cores);
    free(topology->domains);
    *topology = (struct topology){0};
}

const char *processors_text(const cpu_set_t *processors, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < CPU_SETSIZE && used < size; i++) {
        uint32_t last = i;
        if (!CPU_ISSET(i, processors))
            continue;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, processors))
            last++;
        used += (size_t)snprintf(text + used, size - used, last > i ? "%s%u-%u" : "%s%u", used ? "," : "", i, last);
        i = last;
    }
    return text;
}
