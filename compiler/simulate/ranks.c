// Which ranks are alike, and which links lie between them. All ranks of a kind behave the same, so one of each is simulated;
// what it sends to and receives from every other rank is added up by kind and by the link that carries it.
#include "compiler/simulate/model.h"

#include <math.h>
#include <stdlib.h>

static void read_axes(struct model *m)
{
    m->axes = m->cluster->axes.count < AXES_MAX ? m->cluster->axes.count : AXES_MAX;
    for (uint32_t a = 0; a < m->axes; a++) {
        const struct mod_axis *axis = ROW(m->module, mod_axis, m->cluster->axes.first + a);
        m->size[a] = axis->size;
        m->inner[a] = axis->stride;
        if (axis->link == NONE)
            continue;
        m->bandwidth[a] = ROW(m->module, mod_link, axis->link)->bandwidth * 1e-9;
        m->latency[a] = ROW(m->module, mod_link, axis->link)->latency;
    }
}

static uint32_t device_of(const struct model *m, uint32_t rank)
{
    return rank < m->cluster->members.count ? ROW(m->module, mod_rank, m->cluster->members.first + rank)->device
                                            : m->cluster->device;
}

static const struct mod_owner *owner_at(const struct model *m, uint32_t number)
{
    return ROW(m->module, mod_owner, m->placement->owners.first + number);
}

/// Experts of a home in its first `share` of `total`.
static double home_before(const struct model *m, uint32_t home, double share, double total)
{
    int64_t own = 0;
    for (uint32_t i = m->first_owner[home]; i < m->first_owner[home + 1]; i++)
        own += owner_at(m, i)->home == home;
    return floor((double)own * share / total);
}

/// Experts of a rank in that share; copies are in the wave that they are in at home.
uint32_t held_before(const struct model *m, uint32_t rank, double share, double total)
{
    if (!m->copies || share <= 0 || share >= total)
        return (uint32_t)floor((double)m->owned_of[rank] * share / total);
    uint32_t count = 0;
    for (uint32_t i = m->first_owner[rank]; i < m->first_owner[rank + 1]; i++)
        count += owner_at(m, i)->place < home_before(m, owner_at(m, i)->home, share, total);
    return count;
}

double load_of_waves(const struct model *m, uint32_t rank, double from, double to, double total)
{
    const double *loads = &m->loads[m->first_owner[rank]];
    return loads[held_before(m, rank, to, total)] - loads[held_before(m, rank, from, total)];
}

static double load_of(const struct model *m, uint32_t rank) { return load_of_waves(m, rank, 0, 1, 1); }

/// How many experts a token chooses: of the layer's router.
static double choices_of(const struct model *m)
{
    for (uint32_t i = 0; i < m->layer->stages.count; i++) {
        const struct mod_stage *stage = ROW(m->module, mod_stage, m->layer->stages.first + i);
        const struct mod_arg *k = ROW(m->module, mod_value, stage->result)->kind == value_kind_routes
                                      ? stage_arg(m->module, stage, "k") : NULL;
        if (k)
            return k->number;
    }
    return 1;
}

/// Sums of the loads of experts, in the order of owners, one more than owners; a rank's begin at first_owner.
static void sum_loads(struct model *m, const struct load *load)
{
    uint32_t owners = m->placement->owners.count, experts = (uint32_t)m->placement->experts;
    m->weights = context_alloc(m->context, (experts + 1) * sizeof *m->weights);
    load_weights(m->context, load, experts, choices_of(m), m->weights);
    m->loads = context_alloc(m->context, (owners + 1) * sizeof *m->loads);
    m->first_owner = context_alloc(m->context, (m->ranks + 1) * sizeof *m->first_owner);
    double *share, *sum = NULL;
    if (m->copies) { // of all senders together
        struct nearest *near = context_alloc(m->context, (experts + 1) * sizeof *near);
        sum = context_alloc(m->context, (owners + 1) * sizeof *sum);
        m->shares = context_alloc(m->context, (size_t)m->ranks * owners * sizeof *m->shares);
        for (uint32_t source = 0; source < m->ranks; source++) {
            share = m->shares + (size_t)source * owners;
            copy_shares(m->module, m->placement, source, near, share);
            for (uint32_t i = 0; i < owners; i++)
                sum[i] += share[i] / m->ranks;
        }
    }
    for (uint32_t i = 0; i < owners; i++)
        m->loads[i + 1] = m->loads[i] + m->weights[owner_at(m, i)->expert] * (m->copies ? sum[i] : 1);
    for (uint32_t rank = 0; rank < m->ranks; rank++)
        m->first_owner[rank + 1] = m->first_owner[rank] + (uint32_t)m->owned_of[rank];
}

/// Ranks alike in device and experts; beyond the number of groups that are told apart they count with the nearest.
static uint32_t group_of(const struct model *m, uint32_t rank, const uint32_t *heads, uint32_t *count)
{
    uint32_t nearest = 0;
    for (uint32_t g = 0; g < *count; g++) {
        if (device_of(m, heads[g]) == device_of(m, rank) && m->owned_of[heads[g]] == m->owned_of[rank])
            return g;
        if (llabs(m->owned_of[heads[g]] - m->owned_of[rank]) < llabs(m->owned_of[heads[nearest]] - m->owned_of[rank]))
            nearest = g;
    }
    return *count == KINDS_MAX ? nearest : (*count)++;
}

struct loaded {
    uint32_t rank, group;
    double load;
};

/// By group, the heaviest first.
static int by_load(const void *a, const void *b)
{
    const struct loaded *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (fabs(x->load - y->load) > 1e-9)
        return x->load > y->load ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static void add_kind(struct model *m, const struct loaded *ranks, uint32_t count)
{
    const struct loaded *middle = &ranks[fabs(ranks[0].load - ranks[count - 1].load) > 1e-9 ? count / 2 : 0];
    m->kinds[m->kind_count] = (struct rank_kind){
        .device = device_of(m, middle->rank), .owned = m->owned_of[middle->rank], .first = middle->rank, .count = count};
    for (uint32_t i = 0; i < count; i++)
        m->kind_of[ranks[i].rank] = m->kind_count;
    m->kind_count++;
}

/// A group is one kind, or a few by load: the heaviest rank by itself, as it is the one that others wait for.
static void split_group(struct model *m, const struct loaded *ranks, uint32_t count, uint32_t kinds)
{
    if (kinds <= 1 || fabs(ranks[0].load - ranks[count - 1].load) <= 1e-9) {
        add_kind(m, ranks, count);
        return;
    }
    add_kind(m, ranks, 1);
    uint32_t rest = count - 1, parts = kinds - 1 < rest ? kinds - 1 : rest, from = 0;
    for (uint32_t i = 0; i < parts; i++) {
        uint32_t to = (uint32_t)((uint64_t)rest * (i + 1) / parts);
        add_kind(m, ranks + 1 + from, to - from);
        from = to;
    }
}

static void find_kinds(struct model *m)
{
    uint32_t heads[KINDS_MAX], groups = 0, first = 0;
    struct loaded *ranks = context_alloc(m->context, (m->ranks + 1) * sizeof *ranks);
    for (uint32_t rank = 0; rank < m->ranks; rank++) {
        uint32_t before = groups, group = group_of(m, rank, heads, &groups);
        if (groups > before)
            heads[group] = rank;
        ranks[rank] = (struct loaded){rank, group, load_of(m, rank)};
    }
    qsort(ranks, m->ranks, sizeof *ranks, by_load);
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t count = 0;
        while (first + count < m->ranks && ranks[first + count].group == g)
            count++;
        split_group(m, ranks + first, count, groups * LOADS_MAX <= KINDS_MAX ? LOADS_MAX : KINDS_MAX / groups);
        first += count;
    }
}

void model_make(struct model *m, struct context *context, const struct program_text *program, const struct ir *module,
                uint32_t pipeline, const struct ir *graph, const struct load *load)
{
    const struct mod_pipeline *row = ROW(module, mod_pipeline, pipeline);
    *m = (struct model){.context = context, .program = program, .module = module, .graph = graph, .pipeline = row};
    m->layer = ROW(module, mod_layer, row->layer);
    m->cluster = ROW(module, mod_cluster, row->cluster);
    m->ranks = (uint32_t)m->cluster->ranks;
    read_axes(m);
    m->kind_of = context_alloc(context, (m->ranks + 1) * sizeof *m->kind_of);
    m->owned_of = context_alloc(context, (m->ranks + 1) * sizeof *m->owned_of);
    m->placement = ROW(module, mod_placement, row->placement);
    m->copies = m->placement->owners.count > m->placement->experts;
    for (uint32_t i = 0; i < m->placement->owners.count; i++)
        if (owner_at(m, i)->rank < m->ranks)
            m->owned_of[owner_at(m, i)->rank]++;
    sum_loads(m, load);
    find_kinds(m);
}
