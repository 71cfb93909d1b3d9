// The simulated device: the same instructions, driven by one thread with a virtual clock. A launch really runs, at its
// start, and takes its predicted cost; a message's bytes are copied when it is sent and arrive when the links between its
// ranks have brought them (links.h). Launches of a rank follow one another on its SMs. Always the earliest event goes first, so results and times are the same in every run.
#include <math.h>

#include "runtime/exec/session.h"
#include "runtime/transport/links.h"

struct sim_state {
    struct links *links;
    double now;
    uint64_t random; // options.jitter: state of the generator
};

/// Any time from 1 ns to 10 ms, every order of magnitude as likely: delays that turn every order around.
static double delay(struct sim_state *sim)
{
    static const double magnitude[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7};
    uint64_t x = sim->random += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return magnitude[x % 8] * (double)(x >> 40) / (double)(1 << 24);
}

static int64_t sim_now(const struct stream *s)
{
    return whole_ns(s->time);
}

/// What the stream's launch takes here over its cost: the device's pace, and for experts' work the share it owns.
static double sim_pace(const struct stream *s)
{
    const struct moe_session *session = s->rank->session;
    const struct plan_rank *rank = ROW(session->ir, plan_rank, s->rank->number);
    double owned = (double)rank->owned.count * session->info->ranks / COUNT(session->ir, plan_owner);
    return rank->pace * (stream_instr(s)->by_experts ? owned : 1);
}

static bool sim_launch(struct stream *s, struct launch *launch, double cost)
{
    if (launch->units > 0)
        launch_run(launch, 0, launch->units, s->scratch);
    s->time += cost > 0 ? cost * sim_pace(s) : 0;
    if (!s->plan->own_thread)
        s->rank->sm_free = s->time;
    return true;
}

static struct links *links_of(const struct stream *s)
{
    return ((struct sim_state *)s->rank->session->device_state)->links;
}

static bool sim_carry(const struct passage *p)
{
    struct links *links = links_of(p->stream);
    if (!links_start(links, p, spans_add(&p->stream->messages, passage_record(p, sim_now(p->stream)))))
        return false;
    if (!p->stream->rank->session->options.jitter) // otherwise copied at any time
        links_copy(links, INT64_MAX);
    return true;
}

static void sim_sent(struct stream *s, uint32_t exchange)
{
    links_sent(s->rank, exchange);
}

/// The stream that acts next: the earliest that is neither blocked nor finished; ties by rank, then stream.
static struct stream *next_stream(struct moe_session *session)
{
    struct stream *best = NULL;
    for (uint32_t r = 0; r < session->info->ranks; r++) {
        for (uint32_t i = 0; i < session->streams_per_rank; i++) {
            struct stream *s = &session->ranks[r].streams[i];
            if (!s->finished && !s->blocked_on && (!best || s->time < best->time))
                best = s;
        }
    }
    return best;
}

/// Streams whose wait is over go on, not earlier than now.
static void unblock(struct moe_session *session, double now)
{
    for (uint32_t r = 0; r < session->info->ranks; r++) {
        for (uint32_t i = 0; i < session->streams_per_rank; i++) {
            struct stream *s = &session->ranks[r].streams[i];
            if (!s->blocked_on || !event_reached(s->blocked_on, s->blocked_for))
                continue;
            s->blocked_on = NULL;
            s->time = s->time > now ? s->time : now;
        }
    }
}

/// Nothing can happen any more although a stream still waits: a deadlock, told at once.
static void report_deadlock(struct moe_session *session)
{
    for (uint32_t i = 0; i < session->info->ranks * session->streams_per_rank; i++) {
        struct stream *s = &session->ranks[i / session->streams_per_rank].streams[i % session->streams_per_rank];
        struct blocked on = {0};
        char where[256];
        if (s->finished || executor_step(s, &on) != STEP_BLOCKED)
            continue;
        session_fail(session, MOE_TIMEOUT, "%s: no rank can go on, waiting for %s",
                     stream_where(s, where, sizeof where), on.what);
        return;
    }
}

static void advance(struct stream *s)
{
    const struct plan_instr *in = s->plan && s->pc < s->plan->instrs.count ? stream_instr(s) : NULL;
    bool jitter = s->rank->session->options.jitter != 0;
    if (in && (in->op == opcode_launch || in->op == opcode_host) && !s->plan->own_thread && s->rank->sm_free > s->time &&
        !jitter) {
        s->time = s->rank->sm_free; // its turn comes again when the SMs are free
        return;
    }
    struct blocked on = {0};
    enum stepped result = executor_step(s, &on);
    if (jitter && result == STEP_DONE)
        s->time += delay(s->rank->session->device_state);
    if (result == STEP_BLOCKED) {
        s->blocked_on = on.event;
        s->blocked_for = on.at_least;
    }
    s->finished = result == STEP_FINISHED;
}

/// With jitter: one of the messages that are not copied yet.
static void copy_any(struct sim_state *sim)
{
    struct links *l = sim->links;
    uint32_t which = (uint32_t)delay(sim) % l->copying_count, number = l->copying[which];
    l->copying[which] = l->copying[0];
    l->copying[0] = number;
    links_copy(l, INT64_MAX);
}

static void sim_run(struct moe_session *session)
{
    struct sim_state *sim = session->device_state;
    sim->now = 0;
    links_reset(sim->links);
    session->step_begin = 0;
    sim->random = session->options.jitter * 0x9e3779b97f4a7c15u + session->step_number;
    double end = 0;
    for (uint32_t r = 0; r < session->info->ranks; r++)
        session->ranks[r].sm_free = 0;
    while (!session_failed(session)) {
        struct stream *s = next_stream(session);
        double passed = links_next(sim->links);
        if (sim->links->copying_count && (delay(sim) < 1e3 || (isinf(passed) && !s))) {
            copy_any(sim);
        } else if (!isinf(passed) && (!s || passed <= s->time)) {
            sim->now = fmax(passed, sim->now);
            links_advance(sim->links, sim->now);
        } else if (s) {
            sim->now = s->time;
            links_advance(sim->links, s->time);
            advance(s);
            end = s->time > end ? s->time : end;
        } else {
            break;
        }
        end = sim->now > end ? sim->now : end;
        unblock(session, sim->now);
    }
    session->step_end = whole_ns(end);
    if (session_failed(session))
        return;
    for (uint32_t i = 0; i < session->info->ranks * session->streams_per_rank; i++)
        if (!session->ranks[i / session->streams_per_rank].streams[i % session->streams_per_rank].finished) {
            report_deadlock(session);
            return;
        }
}

static bool sim_create(struct moe_session *session)
{
    struct sim_state *sim = session_alloc(session, 1, sizeof *sim);
    if (!sim)
        return false;
    session->device_state = sim;
    return (sim->links = links_create(session)) != NULL;
}

static void sim_destroy(struct moe_session *session)
{
    (void)session;
}

const struct device_ops device_sim = {.name = "sim",
                                      .create = sim_create,
                                      .destroy = sim_destroy,
                                      .run = sim_run,
                                      .launch = sim_launch,
                                      .now = sim_now,
                                      .carry = sim_carry,
                                      .sent = sim_sent};
