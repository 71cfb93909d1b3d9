// The simulated device: the same instructions, driven by one thread with a virtual clock. A launch really runs, at its
// start, and takes its predicted cost; a message's bytes are copied when it is sent and arrive after latency and
// bytes / bandwidth of the axis between its ranks. Launches of a rank follow one another on its SMs, messages on each
// axis' links at both ends. Always the earliest event goes first, so results and times are the same in every run.
#include <string.h>

#include "runtime/exec/session.h"

struct arrival {
    double time;
    struct event *event;
};

struct sim_state {
    struct arrival *pending; // messages under way, in no order
    uint32_t count, capacity;
    double now;
};

static int64_t sim_now(const struct stream *s)
{
    return (int64_t)s->time;
}

/// What the stream's launch takes here over its cost: the device's pace, and for experts' work the share it owns.
static double sim_pace(const struct stream *s)
{
    const struct moe_session *session = s->rank->session;
    const struct plan_rank *rank = ROW(session->ir, plan_rank, s->rank->number);
    double owned = (double)rank->owned.count * session->info->ranks / session->info->experts;
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

static void sim_arrive(struct stream *s, uint32_t exchange, uint32_t peer, int64_t bytes, int64_t begin)
{
    struct moe_session *session = s->rank->session;
    struct sim_state *sim = session->device_state;
    struct rank *from = s->rank, *to = &session->ranks[peer];
    uint32_t number = axis_between(session->ir, from->number, peer);
    const struct plan_axis *axis = axis_at(session->ir, number);
    double start = s->time, latency = axis->latency;
    start = from->out_free[number] > start ? from->out_free[number] : start;
    start = to->in_free[number] > start ? to->in_free[number] : start;
    double busy = axis->bandwidth > 0 ? (double)bytes * 1e9 / axis->bandwidth : 0;
    from->out_free[number] = to->in_free[number] = start + busy;
    if (sim->count < sim->capacity)
        sim->pending[sim->count++] =
            (struct arrival){start + busy + latency, &to->exchanges[exchange].arrived[from->number]};
    else
        session_fail(session, MOE_NO_MEMORY, "sim: more than %u messages under way", sim->capacity);
    spans_add(&s->messages, (struct span_record){.begin = begin,
                                                 .end = (int64_t)(start + busy + latency),
                                                 .peer = peer,
                                                 .bytes = bytes,
                                                 .instr = s->plan->instrs.first + s->pc});
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

static uint32_t next_arrival(const struct sim_state *sim)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < sim->count; i++)
        if (sim->pending[i].time < sim->pending[best].time)
            best = i;
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
    if (in && (in->op == opcode_launch || in->op == opcode_host) && !s->plan->own_thread && s->rank->sm_free > s->time) {
        s->time = s->rank->sm_free; // its turn comes again when the SMs are free
        return;
    }
    struct blocked on = {0};
    enum stepped result = executor_step(s, &on);
    if (result == STEP_BLOCKED) {
        s->blocked_on = on.event;
        s->blocked_for = on.at_least;
    }
    s->finished = result == STEP_FINISHED;
}

static void sim_run(struct moe_session *session)
{
    struct sim_state *sim = session->device_state;
    sim->count = 0;
    sim->now = 0;
    session->step_begin = 0;
    double end = 0;
    for (uint32_t r = 0; r < session->info->ranks; r++) {
        struct rank *rank = &session->ranks[r];
        rank->sm_free = 0;
        memset(rank->out_free, 0, sizeof rank->out_free);
        memset(rank->in_free, 0, sizeof rank->in_free);
    }
    while (!session_failed(session)) {
        struct stream *s = next_stream(session);
        uint32_t a = next_arrival(sim);
        if (sim->count && (!s || sim->pending[a].time <= s->time)) {
            sim->now = sim->pending[a].time;
            event_add(sim->pending[a].event, 1);
            sim->pending[a] = sim->pending[--sim->count];
        } else if (s) {
            sim->now = s->time;
            advance(s);
            end = s->time > end ? s->time : end;
        } else {
            break;
        }
        end = sim->now > end ? sim->now : end;
        unblock(session, sim->now);
    }
    session->step_end = (int64_t)end;
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
    for (uint32_t r = 0; r < session->info->ranks; r++)
        for (uint32_t i = 0; i < session->streams_per_rank; i++)
            sim->capacity += session->ranks[r].streams[i].messages.capacity;
    sim->pending = session_alloc(session, sim->capacity, sizeof *sim->pending);
    return sim->pending != NULL;
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
                                      .arrive = sim_arrive};
