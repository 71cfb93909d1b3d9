// How many rows travel between two ranks, per token: over one hop, or through relays. With copies of experts that depends
// on who sends them; without, on the ranks that own the experts alone.
#include "compiler/simulate/model.h"

#include <math.h>

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
    return load_of_waves(m, rank, 0, r->wave_begin, r->wave_total);
}

/// Of the experts in some waves of a rank: by their load together, and no less than the heaviest of them has.
static double hit_of_waves(const struct model *m, const struct routing *r, uint32_t rank, double from, double to)
{
    const double *loads = &m->loads[m->first_owner[rank]];
    double most = 0;
    for (uint32_t i = held_before(m, rank, from, r->wave_total); i < held_before(m, rank, to, r->wave_total); i++)
        most = fmax(most, loads[i + 1] - loads[i]);
    return fmax(routing_hit(r, load_of_waves(m, rank, from, to, r->wave_total)), fmin(1, most * r->choices / r->experts));
}

static double hit_at_rank(const struct model *m, const struct routing *r, uint32_t rank)
{
    if (r->combine)
        return hit_of_waves(m, r, rank, r->wave_begin, r->wave_end);
    return hit_of_waves(m, r, rank, 0, r->wave_end) - hit_of_waves(m, r, rank, 0, r->wave_begin);
}

/// The outermost axis along which two ranks differ.
static uint32_t axis_between(const struct model *m, uint32_t a, uint32_t b)
{
    for (uint32_t axis = 0; axis < m->axes; axis++)
        if (a / m->inner[axis] != b / m->inner[axis])
            return axis;
    return m->axes - 1;
}

/// Rows per token that end at a rank, and, through relays, at its group of ranks.
struct hits {
    const struct model *m;
    const struct routing *r;
    double *rank, *group;   // with copies by sender first
    uint32_t inner, groups; // ranks of a group
};

static double rank_hit(const struct hits *h, uint32_t source, uint32_t rank)
{
    return h->rank[(h->m->copies ? source * h->m->ranks : 0) + rank];
}

static double group_hit(const struct hits *h, uint32_t source, uint32_t group)
{
    return h->group[(h->m->copies ? source * h->groups : 0) + group];
}

/// The same summed over ranks that stand where `source` does in other groups.
static double others_hit(const struct hits *h, uint32_t source, uint32_t rank)
{
    if (!h->m->copies)
        return ((double)h->groups - 1) * rank_hit(h, source, rank);
    double sum = 0;
    for (uint32_t s = source % h->inner; s < h->m->ranks; s += h->inner)
        sum += s == source ? 0 : rank_hit(h, s, rank);
    return sum;
}

/// Rows that `from` sends `to` per token of a rank, in one hop of a dispatch or combine, as rows of the axis's own size.
static double rows_between(const struct hits *h, uint32_t from, uint32_t to, uint32_t axis, bool relay)
{
    const struct routing *r = h->r;
    uint32_t experts_at = r->combine ? from : to, source = r->combine ? to : from;
    if (r->via == NONE)
        return relay ? 0 : rank_hit(h, source, experts_at);
    bool crosses = axis <= r->via, same_place = from % h->inner == to % h->inner;
    if (crosses && (!same_place || relay != r->combine))
        return 0;
    if (crosses) { // once per group of ranks; first in a dispatch, last in a combine
        double entries = 0;
        for (uint32_t d = experts_at / h->inner * h->inner; d < (experts_at / h->inner + 1) * h->inner; d++)
            entries += rank_hit(h, source, d);
        return group_hit(h, source, experts_at / h->inner) * (1 - r->entry[axis]) + entries * r->entry[axis];
    }
    if (relay == r->combine)
        return r->combine ? 0 : rank_hit(h, source, experts_at); // neighbours need no second hop
    double others = others_hit(h, source, experts_at);
    return r->combine ? rank_hit(h, source, experts_at) + r->handed[axis] * others : others;
}

static void find_hits(struct hits *h)
{
    const struct model *m = h->m;
    double *before = context_alloc(m->context, (h->groups + 1) * sizeof *before);
    for (uint32_t rank = 0; rank < m->ranks; rank++) {
        double load = load_of_waves(m, rank, h->r->wave_begin, h->r->wave_end, h->r->wave_total);
        h->rank[rank] = hit_at_rank(m, h->r, rank);
        before[rank / h->inner] += load_before(m, h->r, rank);
        h->group[rank / h->inner] += load;
    }
    for (uint32_t g = 0; g < h->groups; g++)
        h->group[g] = wave_hit(h->r, before[g], h->group[g]);
}

/// What one sender asks of every rank, home by home: each is a row of its own. `asked` holds the load of a home's experts
/// in this wave, then of those before it.
static void find_hits_of(const struct hits *h, uint32_t source, const double *shares, double *asked)
{
    const struct model *m = h->m;
    double *rank_hits = h->rank + (size_t)source * m->ranks, *group_hits = h->group + (size_t)source * h->groups;
    double *before = asked + m->ranks, *group_before = asked + 2 * (size_t)m->ranks;
    for (uint32_t d = 0; d < m->ranks; d++) {
        uint32_t first = m->first_owner[d], begin = first + held_before(m, d, h->r->wave_begin, h->r->wave_total),
                 end = first + held_before(m, d, h->r->wave_end, h->r->wave_total);
        for (uint32_t i = first; i < end; i++) {
            const struct mod_owner *o = ROW(m->module, mod_owner, m->placement->owners.first + i);
            double load = m->weights[o->expert] * shares[i];
            (i < begin ? before : asked)[o->home] += load;
            *(i < begin ? &group_before[d / h->inner] : &group_hits[d / h->inner]) += load;
        }
        for (uint32_t i = first; i < end; i++) {
            uint32_t home = ROW(m->module, mod_owner, m->placement->owners.first + i)->home;
            if (before[home] + asked[home] > 0)
                rank_hits[d] += wave_hit(h->r, before[home], asked[home]);
            before[home] = asked[home] = 0;
        }
    }
    for (uint32_t g = 0; g < h->groups; g++) {
        group_hits[g] = wave_hit(h->r, group_before[g], group_hits[g]);
        group_before[g] = 0;
    }
}

static void find_hits_with_copies(struct hits *h)
{
    const struct model *m = h->m;
    double *shares = context_alloc(m->context, (m->placement->owners.count + 1) * sizeof *shares),
           *asked = context_alloc(m->context, 3 * ((size_t)m->ranks + 1) * sizeof *asked);
    struct nearest *near = context_alloc(m->context, (size_t)(m->placement->experts + 1) * sizeof *near);
    for (uint32_t source = 0; source < m->ranks; source++) {
        copy_shares(m->module, m->placement, source, near, shares);
        find_hits_of(h, source, shares, asked);
    }
}

struct traffic *traffic_make(const struct model *m, const struct routing *r, bool relay)
{
    struct traffic *traffic = context_alloc(m->context, sizeof *traffic);
    struct hits h = {.m = m, .r = r, .inner = r->via == NONE ? 1 : (uint32_t)m->inner[r->via]};
    size_t senders = m->copies ? m->ranks : 1;
    h.groups = m->ranks / h.inner;
    h.rank = context_alloc(m->context, (senders * m->ranks + 1) * sizeof *h.rank);
    h.group = context_alloc(m->context, (senders * h.groups + 1) * sizeof *h.group);
    if (m->copies)
        find_hits_with_copies(&h);
    else
        find_hits(&h);
    for (uint32_t k = 0; k < m->kind_count; k++) {
        uint32_t self = m->kinds[k].first;
        for (uint32_t other = 0; other < m->ranks; other++) {
            if (other == self)
                continue;
            uint32_t axis = axis_between(m, self, other), kind = m->kind_of[other];
            traffic->out_rows[k][kind][axis] += rows_between(&h, self, other, axis, relay);
            traffic->in_rows[kind][k][axis] += rows_between(&h, other, self, axis, relay);
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
