// A monotonic 64-bit counter that threads wait for: semaphores, message arrivals, finished launches. Raising it costs a
// system call only when somebody sleeps; waiting sleeps on a futex, bounded by a deadline and by the session's failure.
#ifndef MOE_EVENT_H
#define MOE_EVENT_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct event {
    _Atomic uint64_t value;
    _Atomic uint32_t waiters;
    uint32_t unused;
};

static inline int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#define FUTEX_FOREVER_NS (INT64_C(1) << 62)

static inline void futex_sleep(const void *word, uint32_t seen, int64_t ns)
{
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0);
}

static inline void futex_wake(const void *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static inline bool event_reached(const struct event *e, uint64_t at_least)
{
    return atomic_load_explicit(&e->value, memory_order_acquire) >= at_least;
}

static inline void event_wake(struct event *e)
{
    if (atomic_load(&e->waiters))
        futex_wake(&e->value, INT_MAX);
}

/// value = max(value, to): several streams may signal one semaphore.
static inline void event_raise(struct event *e, uint64_t to)
{
    uint64_t value = atomic_load_explicit(&e->value, memory_order_relaxed);
    while (value < to && !atomic_compare_exchange_weak(&e->value, &value, to))
        ;
    event_wake(e);
}

static inline void event_add(struct event *e, uint64_t count)
{
    atomic_fetch_add(&e->value, count);
    event_wake(e);
}

enum { EVENT_SPINS = 64, EVENT_SLICE_NS = 20 * 1000 * 1000 };

/// Sleeps once until the event may have changed, at most one slice: the caller looks again, at its deadline and at
/// whether the step still lives. The futex is the low half of the value, which changes with every raise.
static inline void event_sleep(struct event *e, uint64_t at_least)
{
    for (int i = 0; i < EVENT_SPINS; i++)
        if (event_reached(e, at_least))
            return;
    atomic_fetch_add(&e->waiters, 1);
    uint64_t value = atomic_load(&e->value);
    if (value < at_least)
        futex_sleep(&e->value, (uint32_t)value, EVENT_SLICE_NS);
    atomic_fetch_sub(&e->waiters, 1);
}

#endif
