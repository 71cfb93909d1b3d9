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

/// Ranks beyond the number of kinds that are told apart count as the kind nearest in experts.
static uint32_t kind_of(struct model *m, uint32_t rank)
{
    uint32_t device = device_of(m, rank), nearest = 0;
    for (uint32_t k = 0; k < m->kind_count; k++) {
        if (m->kinds[k].device == device && m->kinds[k].owned == m->owned_of[rank])
            return k;
        if (llabs(m->kinds[k].owned - m->owned_of[rank]) < llabs(m->kinds[nearest].owned - m->owned_of[rank]))
            nearest = k;
    }
    if (m->kind_count == KINDS_MAX)
        return nearest;
    m->kinds[m->kind_count] = (struct rank_kind){.device = device, .owned = m->owned_of[rank], .first = rank};
    return m->kind_count++;
}

void model_make(struct model *m, struct context *context, const struct program_text *program, const struct ir *module,
                uint32_t pipeline, const struct ir *graph)
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
    for (uint32_t rank = 0; rank < m->ranks; rank++) {
        m->kind_of[rank] = kind_of(m, rank);
        m->kinds[m->kind_of[rank]].count++;
    }
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

/// Of the wave of a split into waves: a row is sent with the first wave that needs it, and every wave answers.
static double wave_hit(const struct routing *r, double owned)
{
    double first = floor(owned * r->wave / r->waves), end = floor(owned * (r->wave + 1) / r->waves);
    return r->combine ? routing_hit(r, end - first) : routing_hit(r, end) - routing_hit(r, first);
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
        hit[rank] = wave_hit(r, (double)m->owned_of[rank]);
    if (r->via != NONE) {
        group_hit = context_alloc(m->context, (m->ranks / (size_t)inner + 1) * sizeof *group_hit);
        for (uint32_t rank = 0; rank < m->ranks; rank++)
            group_hit[rank / inner] += (double)m->owned_of[rank];
        for (uint32_t g = 0; g < m->ranks / inner; g++)
            group_hit[g] = wave_hit(r, group_hit[g]);
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
