// Which ranks are alike and how many rows travel between them. All ranks of a kind behave the same, so one of each is
// simulated; what it sends to and receives from every other rank is added up by kind and by the link that carries it.
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

double load_of_waves(const struct model *m, uint32_t rank, double from, double to, double waves)
{
    double owned = (double)m->owned_of[rank];
    const double *loads = &m->loads[m->first_owner[rank]];
    return loads[(uint32_t)floor(owned * to / waves)] - loads[(uint32_t)floor(owned * from / waves)];
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
static void sum_loads(struct model *m, const struct mod_placement *placement, const struct load *load)
{
    uint32_t owners = placement->owners.count;
    double *weights = context_alloc(m->context, (owners + 1) * sizeof *weights);
    load_weights(m->context, load, owners, choices_of(m), weights);
    m->loads = context_alloc(m->context, (owners + 1) * sizeof *m->loads);
    m->first_owner = context_alloc(m->context, (m->ranks + 1) * sizeof *m->first_owner);
    for (uint32_t i = 0; i < owners; i++) {
        uint32_t expert = ROW(m->module, mod_owner, placement->owners.first + i)->expert;
        m->loads[i + 1] = m->loads[i] + (expert < owners ? weights[expert] : 1);
    }
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
    const struct mod_placement *placement = ROW(module, mod_placement, row->placement);
    for (uint32_t i = 0; i < placement->owners.count; i++) {
        uint32_t rank = ROW(module, mod_owner, placement->owners.first + i)->rank;
        if (rank < m->ranks)
            m->owned_of[rank]++;
    }
    sum_loads(m, placement, load);
    find_kinds(m);
}

/// 1 - C(total - part, draws) / C(total, draws): the chance to draw at least one of `part`.
static double chance(double total, double part, double draws)
{
    double missed = 1;
    for (double i = 0; i < draws && i < total; i++)
        missed *= fmax(0, total - part - i) / (total - i);
    return 1 - missed;
}

double routing_hit(const struct routing *r, double owned)
{
    if (owned <= 0)
        return 0;
    if (r->groups <= 1)
        return chance(r->experts, owned, r->choices);
    double size = r->experts / r->groups;
    if (owned >= size) // whole groups: whether one of them is chosen
        return chance(r->groups, floor(owned / size), r->group_choices);
    return r->group_choices / r->groups * chance(size * r->group_choices, owned, r->choices);
}

/// Of the wave of a split into waves: a row is sent with the first wave that needs it, and every wave answers. `load`: of this
/// wave, `before`: of the waves before it.
static double wave_hit(const struct routing *r, double before, double load)
{
    return r->combine ? routing_hit(r, load) : routing_hit(r, before + load) - routing_hit(r, before);
}

/// The load of the waves before this one.
static double load_before(const struct model *m, const struct routing *r, uint32_t rank)
{
    return load_of_waves(m, rank, 0, r->wave, r->waves);
}

/// The outermost axis along which two ranks differ.
static uint32_t axis_between(const struct model *m, uint32_t a, uint32_t b)
{
    for (uint32_t axis = 0; axis < m->axes; axis++)
        if (a / m->inner[axis] != b / m->inner[axis])
            return axis;
    return m->axes - 1;
}

/// Rows that `from` sends `to` per token of a rank, in one hop of a dispatch or combine.
static double rows_between(const struct model *m, const struct routing *r, const double *hit, const double *group_hit,
                           uint32_t from, uint32_t to, uint32_t axis, bool relay)
{
    uint32_t experts_at = r->combine ? from : to;
    if (r->via == NONE)
        return relay ? 0 : hit[experts_at];
    int64_t inner = m->inner[r->via];
    bool crosses = axis <= r->via, same_place = from % inner == to % inner;
    double others = (double)(m->ranks / inner) - 1;
    if (crosses) // once per group of ranks; first in a dispatch, last in a combine
        return same_place && relay == r->combine ? group_hit[experts_at / inner] : 0;
    if (relay == r->combine)
        return r->combine ? 0 : hit[experts_at]; // neighbours need no second hop
    return (r->combine ? 1 + others : others) * hit[experts_at];
}

struct traffic *traffic_make(const struct model *m, const struct routing *r, bool relay)
{
    struct traffic *traffic = context_alloc(m->context, sizeof *traffic);
    double *hit = context_alloc(m->context, (m->ranks + 1) * sizeof *hit), *group_hit = hit;
    int64_t inner = r->via == NONE ? 1 : m->inner[r->via];
    for (uint32_t rank = 0; rank < m->ranks; rank++)
        hit[rank] = wave_hit(r, load_before(m, r, rank), load_of_waves(m, rank, r->wave, r->wave + 1, r->waves));
    if (r->via != NONE) {
        size_t groups = m->ranks / (size_t)inner;
        double *before = context_alloc(m->context, (groups + 1) * sizeof *before);
        group_hit = context_alloc(m->context, (groups + 1) * sizeof *group_hit);
        for (uint32_t rank = 0; rank < m->ranks; rank++) {
            before[rank / inner] += load_before(m, r, rank);
            group_hit[rank / inner] += load_of_waves(m, rank, r->wave, r->wave + 1, r->waves);
        }
        for (uint32_t g = 0; g < groups; g++)
            group_hit[g] = wave_hit(r, before[g], group_hit[g]);
    }
    for (uint32_t k = 0; k < m->kind_count; k++) {
        uint32_t self = m->kinds[k].first;
        for (uint32_t other = 0; other < m->ranks; other++) {
            if (other == self)
                continue;
            uint32_t axis = axis_between(m, self, other), kind = m->kind_of[other];
            traffic->out_rows[k][kind][axis] += rows_between(m, r, hit, group_hit, self, other, axis, relay);
            traffic->in_rows[kind][k][axis] += rows_between(m, r, hit, group_hit, other, self, axis, relay);
        }
    }
    return traffic;
}

void traffic_add(struct traffic *sum, const struct traffic *more)
{
    for (uint32_t k = 0; k < KINDS_MAX; k++)
        for (uint32_t d = 0; d < KINDS_MAX; d++)
            for (uint32_t a = 0; a < AXES_MAX; a++) {
                sum->out_rows[k][d][a] += more->out_rows[k][d][a];
                sum->in_rows[k][d][a] += more->in_rows[k][d][a];
            }
}
