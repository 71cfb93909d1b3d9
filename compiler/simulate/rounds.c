// Overflow rounds: under a skewed load more rows want to go to a rank than its slots hold. What finds none travels in rounds
// through the rank's pool, after the experts have computed the rest: a message there, the experts again, a message back. All
// ranks take part in as many rounds as the fullest needs. Rows through relays, and to copies of experts, find slots by other
// rules: no rounds are predicted for them.
#include <math.h>
#include <string.h>

#include "compiler/simulate/model.h"

static double option(const struct model *m, const struct mod_stage *stage, const char *name, double otherwise)
{
    const struct mod_arg *arg = stage_arg(m->module, stage, name);
    return arg ? arg->number : otherwise;
}

static bool waits_for_slots(const struct model *m, const struct mod_stage *dispatch)
{
    const struct mod_arg *overflow = stage_arg(m->module, dispatch, "overflow");
    return !overflow || strcmp(ir_text(m->module, overflow->choice), "error") != 0;
}

/// Rounded up, but not because of the last bits of a product.
static double whole(double rows) { return ceil(rows - 1e-9 * fmax(1, rows)); }

/// As the slots are planned: the rows expected under uniform routing, times the capacity.
static double base_rows(const struct model *m, const struct mod_stage *dispatch, const struct routing *r, double tokens, uint32_t rank)
{
    double wave = (double)held_before(m, rank, r->wave_end, r->wave_total) - (double)held_before(m, rank, r->wave_begin, r->wave_total);
    struct routing plain = {.experts = r->experts, .choices = r->choices, .groups = 1, .wave_end = 1, .wave_total = 1};
    return fmin(tokens, whole(option(m, dispatch, "capacity", 1.25) * tokens * routing_hit(&plain, wave)));
}

struct spill spill_of_task(const struct model *m, uint32_t task, double tokens, const struct sched_share *wave)
{
    struct spill o = {.rounds = 0};
    struct routing r;
    const struct mod_stage *dispatch = dispatch_of_task(m, task);
    if (m->ranks < 2 || m->copies || tokens < 1 || !dispatch || !routing_of_task(m, task, &r) || r.via != NONE || !waits_for_slots(m, dispatch))
        return o;
    r.combine = false; // rows that come
    routing_wave(&r, wave);
    for (uint32_t d = 0; d < m->kind_count; d++) {
        uint32_t rank = m->kinds[d].first;
        double rows = tokens * hit_at_rank(m, &r, rank), base = base_rows(m, dispatch, &r, tokens, rank);
        if (rows <= base + 0.5) // means of many tokens: no row is half
            continue;
        double pool = whole(option(m, dispatch, "pool", 0.25) * m->ranks * base);
        o.share[d] = 1 - base / rows;
        o.rows[d] = rows - base;
        o.rounds = fmax(o.rounds, whole((m->ranks - 1) * (rows - base) / fmax(1, pool)));
    }
    return o;
}

/// Without what goes in rounds. Of replies, those to such rows.
void spill_take(const struct spill *o, const struct traffic *dispatch, bool combine, struct traffic *t, uint32_t kinds, uint32_t axes)
{
    for (uint32_t k = 0; k < kinds; k++)
        for (uint32_t d = 0; d < kinds; d++)
            for (uint32_t a = 0; a < axes; a++) {
                double share = o->share[combine ? k : d];
                t->out_rows[k][d][a] -= share * (combine ? dispatch->in_rows[d][k][a] : dispatch->out_rows[k][d][a]);
                t->in_rows[k][d][a] -= share * (combine ? dispatch->out_rows[d][k][a] : dispatch->in_rows[k][d][a]);
            }
}
