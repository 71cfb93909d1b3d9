// Overflow rounds: under a skewed load more rows want to go to a rank than its slots hold. What finds none travels in rounds
// through the rank's pool, after the experts have computed the rest: a message there, the experts again, a message back. All
// ranks take part in as many rounds as the fullest needs. Slots are given as the runtime gives them (runtime/exec/bin_group.c): with
// waves of experts what found none comes again with the next wave that needs it, through relays the rows of a token for one
// node find slots together, and with copies of experts every sender asks other ranks.
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

/// The rows of a layer's dispatch under a schedule's waves.
struct flood {
    const struct model *m;
    const struct ir *schedule;
    const struct mod_stage *dispatch;
    struct routing r, even; // even: under uniform routing, for which slots are planned
    double tokens;          // of the part
    uint32_t wave, waves, inner; // the wave at hand; ranks of a node behind a relay, or 1
};

struct asked { // of some experts, over the mean: together, and the heaviest
    double load, most;
};

static const struct mod_owner *owner_at(const struct flood *f, uint32_t i)
{
    return ROW(f->m->module, mod_owner, f->m->placement->owners.first + i);
}

/// A rank's experts of waves before `wave`.
static uint32_t held(const struct flood *f, uint32_t rank, uint32_t wave)
{
    struct sched_share share = wave_share(f->schedule, wave < f->waves ? wave : f->waves - 1);
    return held_before(f->m, rank, (double)(wave < f->waves ? share.begin : share.end), (double)share.total);
}

static void ask(const struct flood *f, bool even, uint32_t source, uint32_t owner, struct asked *a)
{
    double load = even ? 1 : f->m->weights[owner_at(f, owner)->expert];
    load *= f->m->copies ? f->m->shares[(size_t)source * f->m->placement->owners.count + owner] : 1;
    a->load += load;
    a->most = fmax(a->most, load);
}

/// What a source asks of `count` ranks, of their experts in waves [from, to).
static struct asked asked_of(const struct flood *f, bool even, uint32_t source, uint32_t rank, uint32_t count, uint32_t from, uint32_t to)
{
    struct asked a = {0};
    for (uint32_t x = rank; x < rank + count && from < to; x++)
        for (uint32_t i = held(f, x, from); i < held(f, x, to); i++)
            ask(f, even, source, f->m->first_owner[x] + i, &a);
    return a;
}

static struct asked both(struct asked a, struct asked b)
{
    return (struct asked){a.load + b.load, fmax(a.most, b.most)};
}

/// The chance that a token has one of them.
static double hit(const struct flood *f, bool even, struct asked a)
{
    return fmax(routing_hit(even ? &f->even : &f->r, a.load), fmin(1, a.most * f->r.choices / f->r.experts));
}

/// Rows per token for a rank's experts in waves [from, to), of tokens that have none of those asked before: one for each home
/// of experts there.
static double rows_at(const struct flood *f, bool even, uint32_t source, uint32_t rank, uint32_t from, uint32_t to, struct asked before)
{
    const struct model *m = f->m;
    double rows = 0, missed = hit(f, even, before);
    if (!m->copies)
        return hit(f, even, both(before, asked_of(f, even, source, rank, 1, from, to))) - missed;
    for (uint32_t home = 0; home < m->ranks; home++) {
        struct asked a = {0};
        for (uint32_t i = held(f, rank, from); i < held(f, rank, to) && from < to; i++)
            if (owner_at(f, m->first_owner[rank] + i)->home == home)
                ask(f, even, source, m->first_owner[rank] + i, &a);
        rows += a.load > 0 ? hit(f, even, both(before, a)) - missed : 0;
    }
    return rows;
}

/// As the slots are planned (compiler/lower/exchanges.c): the rows expected under uniform routing, of the source that has most.
static double direct_slots(const struct flood *f, uint32_t rank, uint32_t wave)
{
    double rows = 0;
    if (held(f, rank, wave) == held(f, rank, wave + 1))
        return 0;
    for (uint32_t source = 0; source < (f->m->copies ? f->m->ranks : 1); source++)
        if (!f->m->copies || source != rank)
            rows = fmax(rows, rows_at(f, true, source, rank, wave, wave + 1, (struct asked){0}));
    return f->m->copies ? fmax(rows, routing_hit(&f->even, 1)) : rows;
}

/// Through a relay rows come with the first wave that needs them in the node.
static double relayed_slots(const struct flood *f, uint32_t rank, uint32_t wave)
{
    double before = 0, later = held(f, rank, f->waves) - held(f, rank, wave);
    for (uint32_t x = rank / f->inner * f->inner; x < (rank / f->inner + 1) * f->inner; x++)
        before += held(f, x, wave);
    double rows = f->inner > 1 && f->waves > 1 ? routing_hit(&f->even, before + later) - routing_hit(&f->even, before) : 0;
    return fmax(rows, direct_slots(f, rank, wave));
}

/// Slots of a rank, in rows; those of a node have equally many.
static double slots_of(const struct flood *f, uint32_t rank, uint32_t wave)
{
    double rows = relayed_slots(f, rank, wave);
    for (uint32_t x = rank / f->inner * f->inner; rows > 0 && x < (rank / f->inner + 1) * f->inner; x++)
        rows = fmax(rows, relayed_slots(f, x, wave));
    return fmin(f->tokens * (f->m->copies ? f->r.choices : 1), whole(option(f->m, f->dispatch, "capacity", 1.25) * f->tokens * rows));
}

/// Ranks whose rows of a token find slots together: one, or those of a node. All per token of one source.
struct group {
    uint32_t source, first, count;
    double *rows, *room, *placed; // by rank: per token that comes; slots; rows that have one
    double left;                  // tokens that an earlier wave needed and that have no slot
};

/// Tokens come one after the other, a share `coming` of them, until rank after rank is full: those that need a full one go in
/// rounds, with all of their rows. Returns those that find slots.
static double fill_slots(struct group *g, double coming)
{
    double left = coming, placed = 0;
    for (uint32_t turn = 0; turn <= g->count && left > 1e-12; turn++) {
        double fit = 1, step = left;
        for (uint32_t x = 0; x < g->count; x++)
            fit *= g->room[x] - g->placed[x] <= 1e-12 ? 1 - fmin(1, g->rows[x]) : 1;
        for (uint32_t x = 0; x < g->count; x++)
            if (g->room[x] - g->placed[x] > 1e-12 && g->rows[x] * fit > 0)
                step = fmin(step, (g->room[x] - g->placed[x]) / (g->rows[x] * fit));
        for (uint32_t x = 0; x < g->count; x++)
            if (g->room[x] - g->placed[x] > 1e-12)
                g->placed[x] += g->rows[x] * fit * step;
        placed += fit * step;
        left -= step;
    }
    return placed;
}

/// One wave's tokens into its slots. Returns what of them comes, per token.
static double flood_wave(const struct flood *f, struct group *g, uint32_t wave)
{
    struct asked before = asked_of(f, false, g->source, g->first, g->count, 0, wave),
                 now = asked_of(f, false, g->source, g->first, g->count, wave, wave + 1), until = both(before, now);
    double earlier = hit(f, false, before), fresh = hit(f, false, until) - earlier;
    double again = earlier > 0 ? fmin(1, fmax(0, (hit(f, false, now) + earlier - hit(f, false, until)) / earlier)) : 0;
    double coming = fresh + g->left * again;
    for (uint32_t x = 0; x < g->count; x++) {
        uint32_t rank = g->first + x;
        double rows = rows_at(f, false, g->source, rank, wave, f->waves, before) -
                      rows_at(f, false, g->source, rank, wave + 1, f->waves, until);
        if (fresh <= 1e-9) // nothing new: as many as of all that are needed here
            rows = rows_at(f, false, g->source, rank, wave, f->waves, (struct asked){0});
        g->rows[x] = fmax(0, rows) / fmax(1e-9, fresh <= 1e-9 ? hit(f, false, now) : fresh);
        g->room[x] = slots_of(f, rank, wave) / f->tokens;
        g->placed[x] = 0;
    }
    g->left = fmax(0, g->left + fresh - fill_slots(g, coming));
    return coming;
}

struct left { // of one source's rows for a rank, per token: all, and those that go in rounds
    double all, rounds;
};

static struct left left_from(const struct flood *f, uint32_t source, uint32_t rank)
{
    bool together = source / f->inner != rank / f->inner;
    struct group g = {source, together ? rank / f->inner * f->inner : rank, together ? f->inner : 1, NULL, NULL, NULL, 0};
    g.rows = context_alloc(f->m->context, 3 * g.count * sizeof *g.rows);
    g.room = g.rows + g.count;
    g.placed = g.room + g.count;
    double coming = 0, node = hit(f, false, asked_of(f, false, source, g.first, g.count, f->wave, f->wave + 1));
    for (uint32_t wave = 0; wave <= f->wave; wave++)
        coming = flood_wave(f, &g, wave);
    uint32_t x = rank - g.first;
    // Behind a relay rows come along that a later wave needs: in rounds only this one's do.
    double now = g.count > 1 ? rows_at(f, false, source, rank, f->wave, f->wave + 1, (struct asked){0}) / fmax(1e-9, node) : 0;
    double needed = g.count > 1 ? fmin(1, now / fmax(1e-9, g.rows[x])) : 1;
    double all = coming * g.rows[x];
    return (struct left){all * needed, fmax(0, all - g.placed[x]) * needed};
}

static void add_left(struct left *sum, double times, struct left one)
{
    sum->all += times * one.all;
    sum->rounds += times * one.rounds;
}

/// Of all sources. Without copies those of the own node are alike, and all others.
static struct left left_at(const struct flood *f, uint32_t rank)
{
    struct left sum = {0};
    uint32_t ranks = f->m->ranks;
    for (uint32_t source = 0; f->m->copies && source < ranks; source++)
        if (source != rank)
            add_left(&sum, 1, left_from(f, source, rank));
    if (!f->m->copies && f->inner > 1)
        add_left(&sum, f->inner - 1, left_from(f, rank, rank));
    if (!f->m->copies)
        add_left(&sum, ranks - f->inner, left_from(f, (rank + f->inner) % ranks, rank));
    return sum;
}

struct spill spill_of_task(const struct model *m, const struct ir *schedule, uint32_t task, double tokens, uint32_t wave)
{
    struct spill o = {.rounds = 0};
    struct flood f = {.m = m, .schedule = schedule, .dispatch = dispatch_of_task(m, task), .tokens = tokens, .wave = wave, .inner = 1};
    if (m->ranks < 2 || tokens < 1 || !f.dispatch || !routing_of_task(m, task, &f.r) || !waits_for_slots(m, f.dispatch))
        return o;
    f.even = (struct routing){.experts = f.r.experts, .choices = f.r.choices, .groups = 1, .wave_end = 1, .wave_total = 1};
    uint32_t waves = ROW(schedule, sched_info, 0)->wave_shares.count;
    f.waves = waves ? waves : 1;
    if (f.r.via != NONE && m->inner[f.r.via] < m->ranks)
        f.inner = (uint32_t)m->inner[f.r.via];
    for (uint32_t d = 0; d < m->kind_count; d++) {
        uint32_t rank = m->kinds[d].first;
        struct left left = left_at(&f, rank);
        double rows = tokens * left.rounds / (m->ranks - 1), pool = whole(option(m, f.dispatch, "pool", 0.25) * m->ranks * slots_of(&f, rank, wave));
        if (rows <= 0.5) // means of many tokens: no row is half
            continue;
        o.share[d] = left.rounds / left.all;
        o.rows[d] = rows;
        o.rounds = fmax(o.rounds, whole((m->ranks - 1) * rows / fmax(1, pool)));
    }
    return o;
}

/// Without what goes in rounds. Of replies, those to such rows; through relays (`dispatch` NULL) in proportion, on both hops.
void spill_take(const struct spill *o, const struct traffic *dispatch, bool combine, struct traffic *t, uint32_t kinds, uint32_t axes)
{
    for (uint32_t k = 0; k < kinds; k++)
        for (uint32_t d = 0; d < kinds; d++)
            for (uint32_t a = 0; a < axes; a++) {
                double share = o->share[combine ? k : d], out = t->out_rows[k][d][a], in = t->in_rows[k][d][a];
                if (dispatch) {
                    out = combine ? dispatch->in_rows[d][k][a] : dispatch->out_rows[k][d][a];
                    in = combine ? dispatch->out_rows[d][k][a] : dispatch->in_rows[k][d][a];
                }
                t->out_rows[k][d][a] -= share * out;
                t->in_rows[k][d][a] -= share * in;
            }
}
