// Messages as fluids in links (links.h). Between two events every message passes at a constant rate.
#include "links.h"

#include <math.h>
#include <string.h>

static const double TICK = 1e-3; // bytes below which a message counts as gone: far under one, far over rounding

static uint32_t link_count(const struct links *l)
{
    return l->session->info->ranks * l->session->info->axes.count * 2;
}

/// A rank's link along an axis; `in`: 0 out, 1 in.
static uint32_t link_of(const struct links *l, uint32_t rank, uint32_t axis, uint32_t in)
{
    return (rank * l->session->info->axes.count + axis) * 2 + in;
}

static double bandwidth_of(const struct links *l, uint32_t link)
{
    return axis_at(l->session->ir, link / 2 % l->session->info->axes.count)->bandwidth * 1e-9;
}

struct links *links_create(struct moe_session *session)
{
    struct links *l = session_alloc(session, 1, sizeof *l);
    if (!l)
        return NULL;
    uint32_t capacity = 0;
    for (uint32_t r = 0; r < session->info->ranks; r++)
        for (uint32_t i = 0; i < session->streams_per_rank; i++)
            capacity += session->ranks[r].streams[i].messages.capacity;
    l->session = session;
    l->flows = session_alloc(session, capacity, sizeof *l->flows);
    uint32_t **const lists[] = {&l->idle, &l->moving, &l->flying, &l->copying};
    bool fine = l->flows != NULL;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        fine = (*lists[i] = session_alloc(session, capacity, sizeof **lists[i])) && fine;
    fine = (l->touched = session_alloc(session, link_count(l), sizeof *l->touched)) && fine;
    fine = (l->room = session_alloc(session, link_count(l), sizeof *l->room)) && fine;
    fine = (l->demand = session_alloc(session, link_count(l), sizeof *l->demand)) && fine;
    for (uint32_t i = 0; i < capacity && fine; i++)
        l->idle[i] = capacity - 1 - i;
    l->idle_count = capacity;
    return fine ? l : NULL;
}

static bool is_copied(const struct flow *f) { return !f->piece[0].bytes && !f->piece[1].bytes; }

void links_reset(struct links *l)
{
    while (l->moving_count)
        l->idle[l->idle_count++] = l->moving[--l->moving_count];
    while (l->flying_count)
        l->idle[l->idle_count++] = l->flying[--l->flying_count];
    l->copying_count = 0;
    l->now = 0;
    atomic_store(&l->under_way, 0);
}

// ---- sharing

static void want(struct links *l, uint32_t link, double weight)
{
    if (l->demand[link] <= 0) {
        l->touched[l->touched_count++] = link;
        l->room[link] = bandwidth_of(l, link);
        l->demand[link] = 0;
    }
    l->demand[link] += weight;
}

/// Of the links that messages still want, the one that gives least to each; NONE: no link is wanted.
static uint32_t tightest(const struct links *l, double *level)
{
    uint32_t best = NONE;
    for (uint32_t i = 0; i < l->touched_count; i++) {
        uint32_t link = l->touched[i];
        double own = l->demand[link] > 0 ? fmax(0, l->room[link]) / l->demand[link] : INFINITY;
        if (l->demand[link] > 0 && (best == NONE || own < *level)) {
            best = link;
            *level = own;
        }
    }
    return best;
}

static void set_rates(struct links *l)
{
    l->touched_count = 0;
    for (uint32_t i = 0; i < l->moving_count; i++) {
        struct flow *f = &l->flows[l->moving[i]];
        f->rate = -1;
        want(l, f->out, f->weight);
        want(l, f->in, f->weight);
    }
    double level = 0;
    for (uint32_t link; (link = tightest(l, &level)) != NONE;) {
        for (uint32_t i = 0; i < l->moving_count; i++) {
            struct flow *f = &l->flows[l->moving[i]];
            if (f->rate >= 0 || (f->out != link && f->in != link))
                continue;
            f->rate = f->weight * level;
            uint32_t ends[2] = {f->out, f->in};
            for (uint32_t k = 0; k < 2; k++) {
                l->room[ends[k]] -= f->rate;
                l->demand[ends[k]] = fmax(0, l->demand[ends[k]] - f->weight);
            }
        }
        l->demand[link] = 0;
    }
    for (uint32_t i = 0; i < l->touched_count; i++)
        l->demand[l->touched[i]] = 0;
}

// ---- time

/// One fewer is on its way out: of the messages of a send, and of the send itself.
void links_sent(struct rank *rank, uint32_t exchange)
{
    struct exchange_state *state = &rank->exchanges[exchange];
    if (state->leaving-- == 0) {
        state->leaving = 0;
        event_add(&state->arrived[rank->number], 1);
    }
}

static void leave(struct links *l, uint32_t number, double at)
{
    struct flow *f = &l->flows[number];
    f->due = at + f->latency;
    f->gone = true;
    l->flying[l->flying_count++] = number;
    if (f->sender && is_copied(f))
        links_sent(f->sender, f->exchange);
}

bool links_start(struct links *l, const struct passage *p, struct span_record *record)
{
    struct rank *me = p->stream->rank;
    if (!l->idle_count)
        return session_fail(l->session, MOE_NO_MEMORY, "more messages under way than the plan's %u",
                            l->moving_count + l->flying_count);
    uint32_t axis = axis_between(l->session->ir, me->number, p->peer);
    uint32_t number = l->idle[--l->idle_count];
    struct flow *f = &l->flows[number];
    *f = (struct flow){.out = link_of(l, me->number, axis, 0),
                       .in = link_of(l, p->peer, axis, 1),
                       .left = (double)p->bytes,
                       .weight = p->share > 0 ? p->share : 1e-6,
                       .latency = axis_at(l->session->ir, axis)->latency,
                       .arrives = &l->session->ranks[p->peer].exchanges[p->exchange].arrived[me->number],
                       .sender = p->relayed ? NULL : me,
                       .exchange = p->exchange,
                       .piece = {p->piece[0], p->piece[1]},
                       .record = record};
    atomic_fetch_add(&l->under_way, 1);
    me->exchanges[p->exchange].leaving += f->sender != NULL;
    if (!is_copied(f))
        l->copying[l->copying_count++] = number;
    if (bandwidth_of(l, f->out) > 0) {
        l->moving[l->moving_count++] = number;
        set_rates(l);
    } else {
        leave(l, number, l->now);
    }
    return true;
}

bool links_copy(struct links *l, int64_t most)
{
    if (!l->copying_count)
        return false;
    struct flow *f = &l->flows[l->copying[0]];
    for (uint32_t i = 0; i < 2; i++) {
        struct piece *piece = &f->piece[i];
        int64_t bytes = piece->bytes < most ? piece->bytes : most;
        if (bytes)
            memcpy(piece->to, piece->from, (size_t)bytes);
        *piece = (struct piece){piece->to + bytes, piece->from + bytes, piece->bytes - bytes};
        most -= bytes;
    }
    if (!is_copied(f))
        return true;
    memmove(l->copying, l->copying + 1, --l->copying_count * sizeof *l->copying);
    if (f->sender && f->gone)
        links_sent(f->sender, f->exchange);
    return true;
}

/// Until the next message has left.
static double next_gone(const struct links *l)
{
    double least = INFINITY;
    for (uint32_t i = 0; i < l->moving_count; i++) {
        const struct flow *f = &l->flows[l->moving[i]];
        least = fmin(least, f->rate > 0 ? f->left / f->rate : INFINITY);
    }
    return least;
}

double links_next(const struct links *l)
{
    double next = l->now + next_gone(l);
    for (uint32_t i = 0; i < l->flying_count; i++)
        if (is_copied(&l->flows[l->flying[i]]))
            next = fmin(next, l->flows[l->flying[i]].due);
    return next;
}

/// What takes no longer than `step` has left after it, whatever rounding says: times may be so large that a step is lost.
static void pass(struct links *l, double step)
{
    uint32_t kept = 0;
    l->now += step;
    for (uint32_t i = 0; i < l->moving_count; i++) {
        struct flow *f = &l->flows[l->moving[i]];
        bool gone = f->left <= f->rate * step + TICK || f->left / f->rate <= step;
        f->left -= f->rate * step;
        if (gone)
            leave(l, l->moving[i], l->now);
        else
            l->moving[kept++] = l->moving[i];
    }
    bool left = kept != l->moving_count;
    l->moving_count = kept;
    if (left)
        set_rates(l);
}

static void deliver(struct links *l)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->flying_count; i++) {
        uint32_t number = l->flying[i];
        const struct flow *f = &l->flows[number];
        if (f->due > l->now || !is_copied(f)) {
            l->flying[kept++] = number;
            continue;
        }
        if (f->record)
            f->record->end = whole_ns(l->now);
        event_add(f->arrives, 1);
        l->idle[l->idle_count++] = number;
        atomic_fetch_sub(&l->under_way, 1);
    }
    l->flying_count = kept;
}

void links_advance(struct links *l, double now)
{
    for (double step; l->moving_count && l->now + (step = next_gone(l)) <= now;)
        pass(l, step);
    if (now > l->now)
        pass(l, now - l->now);
    l->now = now;
    deliver(l);
}
