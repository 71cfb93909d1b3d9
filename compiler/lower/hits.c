// How many rows of a token a rank gets in expectation, under uniform routing. With copies of experts that depends on who
// sends: slots are sized for the source that sends most.
#include <math.h>

#include "compiler/lower/lower.h"

struct hits {
    struct lowering *l;
    const struct path *path;
    double *shares;   // by row of plan_owner
    double *by_home;  // experts of each home that the source asks for there
};

/// What one source sends rank d: a row for each home of which d has experts.
static double hit_from(const struct hits *h, uint32_t d, uint32_t wave)
{
    const struct lowering *l = h->l;
    struct rows held = ROW(l->plan, plan_rank, d)->owned;
    struct sched_share share = wave_share(l->schedule, wave);
    int64_t first = slots_wave_begin(l->plan, d, share.begin, share.total),
            end = slots_wave_begin(l->plan, d, share.end, share.total);
    double hit = 0;
    for (int64_t i = first; i < end; i++)
        h->by_home[ROW(l->plan, plan_owner, held.first + i)->home] += h->shares[held.first + i];
    for (int64_t i = first; i < end; i++) {
        double *asked = &h->by_home[ROW(l->plan, plan_owner, held.first + i)->home];
        if (*asked > 0)
            hit += slot_hit_share(h->path->experts, *asked, h->path->choices);
        *asked = 0;
    }
    return hit;
}

/// A row that no copy can compute whole goes to its owner: there is always room for some.
static void find_largest(const struct hits *h, uint32_t source, double *hits)
{
    const struct lowering *l = h->l;
    double least = slot_hit_share(h->path->experts, 1, h->path->choices);
    for (uint32_t wave = 0; wave < l->waves; wave++)
        for (uint32_t d = 0; d < l->ranks; d++)
            if (d != source && wave_experts(l, d, wave)) {
                double *hit = &hits[(size_t)wave * l->ranks + d];
                *hit = fmax(*hit, fmax(least, hit_from(h, d, wave)));
            }
}

static void find_path_hits(struct lowering *l, const struct path *p)
{
    struct hits h = {.l = l, .path = p};
    const struct mod_placement *placement = ROW(l->module, mod_placement, l->pipeline->placement);
    if (!slots_has_copies(l->plan)) {
        for (uint32_t wave = 0; wave < l->waves; wave++)
            for (uint32_t d = 0; d < l->ranks; d++)
                p->hits[(size_t)wave * l->ranks + d] = slot_hit_share(p->experts, (double)wave_experts(l, d, wave), p->choices);
        return;
    }
    h.shares = context_alloc(l->context, (COUNT(l->plan, plan_owner) + 1) * sizeof *h.shares);
    h.by_home = context_alloc(l->context, l->ranks * sizeof *h.by_home);
    struct nearest *near = context_alloc(l->context, (size_t)(placement->experts + 1) * sizeof *near);
    for (uint32_t source = 0; source < l->ranks; source++) {
        copy_shares(l->module, placement, source, near, h.shares);
        find_largest(&h, source, p->hits);
    }
}

void find_hits(struct lowering *l)
{
    for (uint32_t i = 0; i < l->path_count; i++) {
        l->paths[i].hits = context_alloc(l->context, (size_t)l->waves * l->ranks * sizeof *l->paths[i].hits);
        if (!l->paths[i].dense)
            find_path_hits(l, &l->paths[i]);
    }
}
