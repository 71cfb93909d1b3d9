// The worker pool (pool.h).
#include "pool.h"

#include <errno.h>
#include <fenv.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STOP_WAIT_S = 2, LONGEST_PIECE = 64 }; // grains

void thread_prefer_short(void)
{
    struct { // of the kernel's interface, version 0
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } turns = {.size = sizeof turns, .policy = SCHED_OTHER, .runtime = 100000};
    syscall(SYS_sched_setattr, 0, &turns, 0);
}

void launch_run(struct launch *launch, int64_t begin, int64_t end, void *scratch)
{
    if (launch->builtin)
        launch->builtin(launch->stream, &launch->args);
    else if (!launch->groups)
        launch->fn(&launch->args, begin, end, scratch);
    else
        for (int64_t size = launch->group_units, next; begin < end; begin = next) {
            int64_t group = begin / size, moved = (launch->groups[group] - group) * size;
            next = (group + 1) * size < end ? (group + 1) * size : end;
            launch->fn(&launch->args, begin + moved, next + moved, scratch);
        }
}

/// Units that one worker takes of those left. Each piece begins with reads that nothing announced, ends with prefetches
/// for nobody and, of a down projection, goes through all rows: where no urgent launch can come meanwhile, it is three
/// quarters of the worker's share, so that what is left evens out a worker at two thirds of the others' speed.
static int64_t piece_of(const struct pool *pool, const struct launch *launch, int64_t left)
{
    int64_t grains = 1;
    if (pool->helped && !launch->urgent) {
        int64_t hands = pool_hands(pool), round = hands * launch->grain;
        grains = hands == 1 ? left / launch->grain : (left * 3 / 4 + round / 2) / round;
        grains = grains < 1 ? 1 : grains < LONGEST_PIECE ? grains : LONGEST_PIECE;
    }
    int64_t size = grains * launch->grain;
    return size < left ? size : left;
}

/// The units [*begin, *end) are the caller's. False: none are left.
static bool take(const struct pool *pool, struct launch *launch, int64_t *begin, int64_t *end)
{
    *begin = atomic_load_explicit(&launch->next, memory_order_relaxed);
    do {
        if (*begin >= launch->units)
            return false;
        *end = *begin + piece_of(pool, launch, launch->units - *begin);
    } while (!atomic_compare_exchange_weak_explicit(&launch->next, begin, *end, memory_order_acq_rel, memory_order_relaxed));
    return true;
}

/// Takes units until none are left, or something urgent is there and this is not. True when it did some.
static bool work_on(struct launch *launch, struct worker *w)
{
    bool worked = false, urgent = launch->urgent;
    _Atomic uint32_t *waiting = &w->pool->urgent[launch->team];
    int64_t from = thread_ns();
    while (urgent || !atomic_load_explicit(waiting, memory_order_relaxed)) {
        int64_t begin, end;
        if (!take(w->pool, launch, &begin, &end))
            break;
        if (urgent && end == launch->units) // nothing left to hurry for
            atomic_fetch_sub(waiting, 1);
        launch_run(launch, begin, end, w->scratch);
        atomic_fetch_add_explicit(&w->progress, 1, memory_order_relaxed);
        worked = true;
        // The last one to finish reports; acq_rel so that it has seen every other worker's writes.
        if (atomic_fetch_add(&launch->done, end - begin) + (end - begin) == launch->units) {
            atomic_store(&launch->active, 0);
            event_add(&launch->posted, 1);
            break;
        }
    }
    if (worked)
        atomic_fetch_add_explicit(&launch->spent, thread_ns() - from, memory_order_relaxed);
    return worked;
}

/// Works on the first launch that has units; of streams alike, on that of the worker's own rank first, so that ranks which
/// share cores get on evenly and nobody waits for a peer that was served last; on those of its own memory node before
/// those of others, so that none idles either. `users` keeps a launch from being reused while a worker is between looking
/// and taking.
static bool find_work(struct worker *w, bool urgent)
{
    struct pool *pool = w->pool;
    for (uint32_t i = 0; i < pool->slot_count; i++) {
        uint32_t group = i / pool->group * pool->group;
        struct launch *launch = pool->slots[group + w->order[i - group]];
        if (launch->team != w->number % pool->teams || !atomic_load_explicit(&launch->active, memory_order_relaxed))
            continue;
        bool worked = false;
        atomic_fetch_add(&launch->users, 1);
        if (atomic_load(&launch->active) && launch->urgent == urgent)
            worked = work_on(launch, w);
        atomic_fetch_sub(&launch->users, 1);
        if (worked)
            return true;
    }
    return false;
}

static void *worker_main(void *argument)
{
    struct worker *w = argument;
    struct pool *pool = w->pool;
    fesetenv(FE_DFL_ENV); // not that of the thread that made the session
    while (!atomic_load(&pool->stop)) {
        uint32_t seen = atomic_load(&pool->epoch);
        if (find_work(w, true) || find_work(w, false))
            continue;
        for (uint32_t i = 0; i < pool->idle_spins && atomic_load_explicit(&pool->epoch, memory_order_relaxed) == seen; i++)
            ;
        atomic_fetch_add(&pool->sleepers, 1);
        if (atomic_load(&pool->epoch) == seen && !atomic_load(&pool->stop))
            futex_sleep(&pool->epoch, seen, FUTEX_FOREVER_NS);
        atomic_fetch_sub(&pool->sleepers, 1);
    }
    return NULL;
}

bool pool_start(struct pool *pool)
{
    for (uint32_t i = 0; i < pool->worker_count; i++) {
        struct worker *w = &pool->workers[i];
        w->pool = pool;
        w->number = i;
        if ((errno = pthread_create(&w->thread, NULL, worker_main, w)) != 0)
            return false;
        w->started = true;
        cpu_set_t processors;
        placement_thread(pool->placement, i + pool->helped, &processors);
        placement_keep(pool->placement, w->thread, &processors);
    }
    return true;
}

bool pool_stop(struct pool *pool)
{
    bool all = true;
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->epoch, 1);
    futex_wake(&pool->epoch, INT_MAX);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_WAIT_S;
    for (uint32_t i = 0; i < pool->worker_count; i++)
        if (pool->workers[i].started && pthread_timedjoin_np(pool->workers[i].thread, NULL, &until) != 0)
            all = false;
    return all;
}

/// Sleeping workers that a launch of so many pieces can use; all of them, where only some are in its team. A stream that
/// helps takes a piece itself.
static int64_t wanted_workers(const struct pool *pool, const struct launch *launch)
{
    int64_t pieces = (launch->units + launch->grain - 1) / launch->grain, sleepers = atomic_load(&pool->sleepers);
    if (!sleepers || pool->teams > 1)
        return sleepers ? INT32_MAX : 0;
    return pool->helped ? pieces - 1 - (pool->worker_count - sleepers) : pieces;
}

void pool_post(struct pool *pool, struct launch *launch)
{
    atomic_store_explicit(&launch->next, 0, memory_order_relaxed);
    atomic_store_explicit(&launch->done, 0, memory_order_relaxed);
    if (launch->urgent)
        atomic_fetch_add(&pool->urgent[launch->team], 1);
    atomic_store(&launch->active, 1);
    atomic_fetch_add(&pool->epoch, 1);
    int64_t wanted = wanted_workers(pool, launch);
    if (wanted > 0)
        futex_wake(&pool->epoch, wanted < INT_MAX ? (int)wanted : INT_MAX);
}

void pool_help(struct pool *pool, struct launch *launch, uint64_t target, void *scratch)
{
    pool->helper.pool = pool;
    pool->helper.scratch = scratch;
    work_on(launch, &pool->helper);
    for (uint32_t i = 0; i < pool->idle_spins && !event_reached(&launch->posted, target); i++)
        ;
}

void pool_retire(struct launch *launch)
{
    while (atomic_load(&launch->users))
        sched_yield();
}
