// The CPU device: one thread per (rank, stream), parked between steps, and a worker pool for launches. A stream that
// lends its own engine (`own_thread`) runs launches itself. A session's only stream runs in the thread that asks for the
// step: nobody is woken for it, and no more threads compute than were asked for.
#include <errno.h>
#include <fenv.h>
#include <string.h>

#include "runtime/exec/session.h"
#include "runtime/transport/emulate.h"

enum { GRACE_NS = 2000000000 };

struct cpu_state {
    uint32_t threads; // started
    uint32_t count;
    struct stream **streams;
};

static int64_t cpu_now(const struct stream *s)
{
    return clock_ns() - s->rank->session->step_begin;
}

static bool cpu_carry(const struct passage *p)
{
    struct stream *s = p->stream;
    if (s->rank->session->emulation)
        return emulate_carry(p);
    int64_t from = thread_ns();
    struct span_record record = passage_record(p, cpu_now(s));
    for (uint32_t i = 0; i < 2; i++)
        if (p->piece[i].bytes)
            memcpy(p->piece[i].to, p->piece[i].from, (size_t)p->piece[i].bytes);
    event_add(&s->rank->session->ranks[p->peer].exchanges[p->exchange].arrived[s->rank->number], 1);
    record.end = cpu_now(s);
    s->beside_ns += thread_ns() - from;
    spans_add(&s->messages, record);
    return true;
}

static void cpu_sent(struct stream *s, uint32_t exchange)
{
    if (s->rank->session->emulation)
        emulate_sent(s, exchange);
    else
        event_add(&s->rank->exchanges[exchange].arrived[s->rank->number], 1);
}

/// Whether anything has moved in the session: a stream that waits long for another's honest work is not stuck.
struct watch {
    uint64_t seen;
    int64_t deadline, patience;
};

static uint64_t total_progress(const struct moe_session *session)
{
    uint64_t total = 0;
    for (uint32_t r = 0; r < session->info->ranks; r++)
        for (uint32_t i = 0; i < session->streams_per_rank; i++)
            total += atomic_load_explicit(&session->ranks[r].streams[i].progress, memory_order_relaxed);
    for (uint32_t i = 0; i < session->pool.worker_count; i++)
        total += atomic_load_explicit(&session->pool.workers[i].progress, memory_order_relaxed);
    return total + atomic_load_explicit(&session->pool.helper.progress, memory_order_relaxed);
}

static struct watch watch_begin(const struct moe_session *session, int64_t patience)
{
    return (struct watch){total_progress(session), clock_ns() + patience, patience};
}

static bool watch_over(const struct moe_session *session, struct watch *w)
{
    uint64_t now = total_progress(session);
    if (now != w->seen || emulate_moves(session)) {
        w->seen = now;
        w->deadline = clock_ns() + w->patience;
    }
    return clock_ns() > w->deadline;
}

static bool timed_out(struct stream *s, const char *what)
{
    struct moe_session *session = s->rank->session;
    char where[256];
    return session_fail(session, MOE_TIMEOUT, "%s: no progress for %.3g s, waiting for %s",
                        stream_where(s, where, sizeof where), (double)session->timeout_ns / 1e9, what);
}

/// Sleeps until the launch is done.
static bool await_launch(struct stream *s, struct launch *launch, uint64_t target)
{
    struct moe_session *session = s->rank->session;
    event_sleep(&launch->posted, target);
    if (!event_reached(&launch->posted, target)) {
        struct watch w = watch_begin(session, session->timeout_ns);
        do {
            if (watch_over(session, &w))
                return timed_out(s, "its kernel");
            event_sleep(&launch->posted, target);
        } while (!event_reached(&launch->posted, target));
    }
    pool_retire(launch);
    return true;
}

static bool cpu_launch(struct stream *s, struct launch *launch, double cost)
{
    (void)cost;
    if (launch->units <= 0)
        return true;
    // what one worker would take at once is done before it would have woken; expert kernels and host functions leave streams
    // their threads, where there are others to serve
    struct pool *pool = &s->rank->session->pool;
    bool brief = (launch->urgent || pool->helped) && launch->units <= launch->grain;
    if (s->plan->own_thread || brief) {
        int64_t from = thread_ns();
        for (int64_t at = 0; at < launch->units && !session_failed(s->rank->session); at += launch->grain) {
            launch_run(launch, at, at + launch->grain < launch->units ? at + launch->grain : launch->units, s->scratch);
            atomic_fetch_add_explicit(&s->progress, 1, memory_order_relaxed);
        }
        atomic_fetch_add_explicit(&launch->spent, thread_ns() - from, memory_order_relaxed);
        return true;
    }
    uint64_t target = atomic_load(&launch->posted.value) + 1;
    pool_post(pool, launch);
    if (pool->helped)
        pool_help(pool, launch, target, s->scratch);
    return await_launch(s, launch, target);
}

/// Waits for what blocks an instruction. False: the step has failed, here or elsewhere. A little more patient than
/// await_launch, so that a stuck kernel is named rather than those who wait for it.
static bool await_event(struct stream *s, const struct blocked *on)
{
    struct moe_session *session = s->rank->session;
    event_sleep(on->event, on->at_least);
    if (event_reached(on->event, on->at_least))
        return true;
    struct watch w = watch_begin(session, session->timeout_ns + 4 * EVENT_SLICE_NS);
    while (!event_reached(on->event, on->at_least)) {
        if (session_failed(session))
            return false;
        if (watch_over(session, &w))
            return timed_out(s, on->what);
        event_sleep(on->event, on->at_least);
    }
    return true;
}

static void run_stream(struct stream *s)
{
    struct blocked on;
    while (!session_failed(s->rank->session)) {
        enum stepped result = executor_step(s, &on);
        if (result == STEP_FINISHED || result == STEP_FAILED || (result == STEP_BLOCKED && !await_event(s, &on)))
            return;
    }
}

static void *stream_main(void *argument)
{
    struct stream *s = argument;
    struct moe_session *session = s->rank->session;
    uint32_t seen = 0;
    fesetenv(FE_DFL_ENV); // not that of the thread that made the session
    thread_prefer_short();
    for (;;) {
        while (atomic_load(&session->epoch) == seen)
            futex_sleep(&session->epoch, seen, FUTEX_FOREVER_NS);
        seen = atomic_load(&session->epoch);
        if (atomic_load(&session->stop))
            return NULL;
        run_stream(s);
        event_add(&session->finished, 1);
    }
}

static bool cpu_create(struct moe_session *session)
{
    struct cpu_state *state = session_alloc(session, 1, sizeof *state);
    uint32_t count = session->pool.helped ? 0 : session->info->ranks * session->streams_per_rank;
    if (!state || !(state->streams = session_alloc(session, count, sizeof *state->streams)))
        return false;
    session->device_state = state;
    state->count = count;
    if (!pool_start(&session->pool) || (session->options.emulate_links && !emulate_start(session)))
        return false;
    for (; state->threads < count; state->threads++) {
        struct stream *s = &session->ranks[state->threads / session->streams_per_rank]
                                .streams[state->threads % session->streams_per_rank];
        state->streams[state->threads] = s;
        if ((errno = pthread_create(&s->thread, NULL, stream_main, s)) != 0)
            return false;
        cpu_set_t processors;
        placement_rank(&session->placement, s->rank->number, &processors);
        placement_keep(&session->placement, s->thread, &processors);
    }
    return true;
}

static void cpu_destroy(struct moe_session *session)
{
    struct cpu_state *state = session->device_state;
    session->stuck = false; // a kernel that was late may have come back since
    atomic_store(&session->stop, true);
    atomic_fetch_add(&session->epoch, 1);
    futex_wake(&session->epoch, INT_MAX);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    for (uint32_t i = 0; state && i < state->threads; i++)
        if (pthread_timedjoin_np(state->streams[i]->thread, NULL, &until) != 0)
            session->stuck = true;
    emulate_stop(session);
    if (!pool_stop(&session->pool))
        session->stuck = true;
}

/// The session's only stream, in the caller's thread, which stays for so long where the session's threads are.
static void run_here(struct moe_session *session)
{
    const struct placement *placement = &session->placement;
    cpu_set_t seat, before;
    placement_thread(placement, 0, &seat);
    bool moved = CPU_COUNT(&seat) && sched_getaffinity(0, sizeof before, &before) == 0;
    if (moved)
        placement_keep(placement, pthread_self(), &seat);
    run_stream(&session->ranks[0].streams[0]);
    if (moved)
        placement_keep(placement, pthread_self(), &before);
}

/// All streams, each in its thread.
static void run_threads(struct moe_session *session)
{
    const struct cpu_state *state = session->device_state;
    uint64_t target = atomic_load(&session->finished.value) + state->count;
    atomic_fetch_add(&session->epoch, 1);
    futex_wake(&session->epoch, INT_MAX);
    // Streams end by themselves, failed or not; only a kernel that never returns on a stream's own thread does not. Where no
    // other stream waits for it, it is missed here, later than it would be there.
    int64_t deadline = INT64_MAX, seen = 0;
    struct watch w = watch_begin(session, session->timeout_ns + 8 * EVENT_SLICE_NS);
    while (!event_reached(&session->finished, target)) {
        event_sleep(&session->finished, target);
        if (!session_failed(session) && watch_over(session, &w))
            session_fail(session, MOE_TIMEOUT, "no progress for %.3g s: a kernel on a stream's own thread does not return",
                         (double)session->timeout_ns / 1e9);
        if (session_failed(session) && seen == 0)
            seen = clock_ns(), deadline = seen + session->timeout_ns + GRACE_NS;
        if (seen && clock_ns() > deadline) {
            session->stuck = true;
            break;
        }
    }
}

static void cpu_run(struct moe_session *session)
{
    if (session->emulation)
        emulate_reset(session);
    else
        session->step_begin = clock_ns();
    if (session->pool.helped)
        run_here(session);
    else
        run_threads(session);
    session->step_end = clock_ns() - session->step_begin;
    if (session->emulation)
        emulate_end(session);
}

const struct device_ops device_cpu = {.name = "cpu",
                                      .create = cpu_create,
                                      .destroy = cpu_destroy,
                                      .run = cpu_run,
                                      .launch = cpu_launch,
                                      .now = cpu_now,
                                      .carry = cpu_carry,
                                      .sent = cpu_sent};
