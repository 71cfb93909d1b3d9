// Ranks and threads on the machine's cores (placement.h).
#include "runtime/device/placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool bind_named(const char *name, enum bind *bind)
{
    static const char *const names[] = {[BIND_NONE] = "none", [BIND_NODE] = "node", [BIND_CORE] = "core"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name ? name : "node", names[i])) {
            *bind = (enum bind)i;
            return true;
        }
    return false;
}

static const struct domain *home_of(const struct placement *p, uint32_t used)
{
    return &p->topology.domains[p->used[used]];
}

/// Of used domains, the one with the least load for its cores; the largest of those.
static uint32_t least_loaded(const struct placement *p, const uint32_t *load, struct range among)
{
    uint32_t best = among.first;
    for (uint32_t i = among.first + 1; i < among.first + among.count; i++) {
        uint64_t mine = (uint64_t)load[p->used[i]] * home_of(p, best)->count;
        uint64_t others = (uint64_t)load[p->used[best]] * home_of(p, i)->count;
        if (mine < others || (mine == others && home_of(p, i)->count > home_of(p, best)->count))
            best = i;
    }
    return best;
}

/// As many domains as have threads, the largest, in the machine's order.
static void choose_domains(struct placement *p)
{
    uint32_t domains = p->topology.domain_count;
    for (uint32_t d = 0; d < domains; d++) {
        uint32_t larger = 0, mine = p->topology.domains[d].count;
        for (uint32_t k = 0; k < domains; k++) {
            uint32_t other = p->topology.domains[k].count;
            larger += other > mine || (other == mine && k < d);
        }
        if (larger < p->threads)
            p->used[p->used_count++] = d;
    }
}

static void place_ranks(struct placement *p, uint32_t *load)
{
    if (p->ranks < p->used_count) {
        for (uint32_t r = 0; r < p->ranks; r++) {
            uint32_t first = r * p->used_count / p->ranks;
            p->homes[r] = (struct range){first, (r + 1) * p->used_count / p->ranks - first};
        }
        return;
    }
    for (uint32_t r = 0; r < p->ranks; r++)
        load[p->used[least_loaded(p, load, (struct range){0, p->used_count})]]++;
    uint32_t rank = 0;
    for (uint32_t u = 0; u < p->used_count; u++)
        for (; load[p->used[u]]; load[p->used[u]]--) // neighbours stay together
            p->homes[rank++] = (struct range){u, 1};
}

static void place_threads(struct placement *p)
{
    for (uint32_t t = 0; t < p->threads; t++) {
        struct range among = p->teams > 1 ? p->homes[t % p->teams] : (struct range){0, p->used_count};
        uint32_t domain = p->used[least_loaded(p, p->seated, among)];
        p->seats[t] = (struct seat){domain, p->seated[domain]++};
    }
}

bool placement_make(struct placement *p, uint32_t ranks, uint32_t threads, uint32_t teams, enum bind bind)
{
    uint32_t domains = p->topology.domain_count;
    p->ranks = ranks;
    p->threads = threads;
    p->teams = teams;
    p->bind = bind;
    p->homes = calloc(ranks, sizeof *p->homes);
    p->used = calloc(domains, sizeof *p->used);
    p->seats = calloc(threads, sizeof *p->seats);
    p->seated = calloc(domains, sizeof *p->seated);
    if (!p->homes || !p->used || !p->seats || !p->seated)
        return false;
    choose_domains(p);
    place_ranks(p, p->seated);
    place_threads(p);
    return true;
}

void placement_free(struct placement *p)
{
    topology_free(&p->topology);
    free(p->homes);
    free(p->used);
    free(p->seats);
    free(p->seated);
    *p = (struct placement){0};
}

static void add_domain(const struct placement *p, const struct domain *domain, cpu_set_t *processors)
{
    for (uint32_t c = 0; c < domain->count; c++)
        CPU_OR(processors, processors, &p->topology.cores[domain->first + c]);
}

void placement_rank(const struct placement *p, uint32_t rank, cpu_set_t *processors)
{
    CPU_ZERO(processors);
    if (p->bind == BIND_NONE || p->topology.domain_count < 2)
        return;
    for (uint32_t u = 0; u < p->homes[rank].count; u++)
        add_domain(p, home_of(p, p->homes[rank].first + u), processors);
}

void placement_thread(const struct placement *p, uint32_t thread, cpu_set_t *processors)
{
    CPU_ZERO(processors);
    if (p->bind == BIND_NONE || (p->bind == BIND_NODE && p->topology.domain_count < 2))
        return;
    struct seat seat = p->seats[thread];
    const struct domain *domain = &p->topology.domains[seat.domain];
    if (p->bind == BIND_NODE) {
        add_domain(p, domain, processors);
        return;
    }
    const cpu_set_t *core = &p->topology.cores[domain->first + seat.number % domain->count];
    uint32_t left = seat.number / domain->count % (uint32_t)CPU_COUNT(core), processor = 0;
    *processors = *core;
    if (p->seated[seat.domain] <= domain->count)
        return;
    while (!CPU_ISSET(processor, core) || left--) // cores have to be shared: a processor each
        processor++;
    CPU_ZERO(processors);
    CPU_SET(processor, processors);
}

void placement_keep(const struct placement *p, pthread_t thread, const cpu_set_t *processors)
{
    if (CPU_COUNT(processors) && !p->topology.imagined)
        pthread_setaffinity_np(thread, sizeof *processors, processors);
}

void placement_pages(const struct placement *p, uint32_t rank, void *at, size_t bytes)
{
    if (p->bind != BIND_NONE && p->topology.domain_count > 1)
        hwloc_place(&p->topology, p->used + p->homes[rank].first, p->homes[rank].count, at, bytes);
}

static bool has_home(const struct placement *p, uint32_t rank, uint32_t domain)
{
    for (uint32_t u = 0; u < p->homes[rank].count; u++)
        if (p->used[p->homes[rank].first + u] == domain)
            return true;
    return false;
}

/// The ranks of a domain, which are neighbours.
static struct range ranks_of(const struct placement *p, uint32_t domain)
{
    struct range ranks = {0};
    while (ranks.first < p->ranks && !has_home(p, ranks.first, domain))
        ranks.first++;
    while (ranks.first + ranks.count < p->ranks && has_home(p, ranks.first + ranks.count, domain))
        ranks.count++;
    return ranks;
}

void placement_order(const struct placement *p, uint32_t ranks, uint32_t thread, uint32_t *order)
{
    bool placed = p->bind != BIND_NONE && p->topology.domain_count > 1;
    struct range near = placed ? ranks_of(p, p->seats[thread].domain) : (struct range){0};
    uint32_t count = 0;
    for (; count < near.count; count++)
        order[count] = near.first + (p->seats[thread].number + count) % near.count;
    for (uint32_t i = 0; i < ranks; i++) {
        uint32_t rank = (thread + i) % ranks;
        if (rank - near.first >= near.count) // unsigned: below it, too
            order[count++] = rank;
    }
}

static const char *how_bound(const struct placement *p, uint32_t threads, uint32_t cores)
{
    if (p->topology.imagined)
        return "nothing bound: hwloc describes another machine";
    if (p->bind == BIND_CORE)
        return threads <= cores ? "each bound to a core" : "each bound to a processor";
    return p->bind == BIND_NODE && p->topology.domain_count > 1 ? "bound to these" : "not bound";
}

static const char *several(uint32_t count)
{
    return count == 1 ? "" : "s";
}

static void name_ranks(struct range ranks, char *text, size_t size)
{
    if (ranks.count == 0)
        snprintf(text, size, "no rank");
    else if (ranks.count == 1)
        snprintf(text, size, "rank %u", ranks.first);
    else
        snprintf(text, size, "ranks %u to %u", ranks.first, ranks.first + ranks.count - 1);
}

bool placement_line(const struct placement *p, uint32_t number, char *text, size_t size)
{
    const struct topology *t = &p->topology;
    bool apart = p->bind != BIND_NONE && t->domain_count > 1;
    if (number >= (apart ? p->used_count : 1))
        return false;
    struct domain all = {.name = "this machine", .count = t->core_count};
    const struct domain *domain = apart ? home_of(p, number) : &all;
    uint32_t threads = apart ? p->seated[p->used[number]] : p->threads;
    cpu_set_t processors;
    char list[128], ranks[48];
    CPU_ZERO(&processors);
    add_domain(p, domain, &processors);
    processors_text(&processors, list, sizeof list);
    name_ranks(apart ? ranks_of(p, p->used[number]) : (struct range){0, p->ranks}, ranks, sizeof ranks);
    snprintf(text, size, "%s: processor%s %s (%u core%s), %s, %u thread%s, %s", domain->name,
             several((uint32_t)CPU_COUNT(&processors)), list, domain->count, several(domain->count), ranks, threads,
             several(threads), how_bound(p, threads, domain->count));
    return true;
}
