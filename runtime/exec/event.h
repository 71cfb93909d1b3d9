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

// Under ThreadSanitizer an ordinary acquire would also see what later raises published, and hide that a wait for them is
// missing. There the counters are relaxed, and each value has a mark of its own: reaching v acquires what the raise that
// first reached v released, nothing more.
#if defined(__SANITIZE_THREAD__)
#define EVENT_MARKS 128
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define EVENT_MARKS 128
#endif
#endif

struct event {
    _Atomic uint64_t value;
    _Atomic uint32_t waiters;
    uint32_t unused;
#ifdef EVENT_MARKS
    uint64_t marks[EVENT_MARKS];
#endif
};

#ifdef EVENT_MARKS
void __tsan_acquire(void *address);
void __tsan_release(void *address);
enum { EVENT_ACQUIRE = memory_order_relaxed, EVENT_BOTH = memory_order_relaxed };
static inline void event_publish(struct event *e, uint64_t from, uint64_t to)
{
    if (to - from > EVENT_MARKS)
        from = to - EVENT_MARKS;
    for (uint64_t v = from + 1; v <= to; v++)
        __tsan_release(&e->marks[v % EVENT_MARKS]);
}
static inline void event_observe(const struct event *e, uint64_t at_least)
{
    __tsan_acquire((void *)(uintptr_t)&e->marks[at_least % EVENT_MARKS]);
}
#else
enum { EVENT_ACQUIRE = memory_order_acquire, EVENT_BOTH = memory_order_seq_cst };
static inline void event_publish(struct event *e, uint64_t from, uint64_t to) { (void)e, (void)from, (void)to; }
static inline void event_observe(const struct event *e, uint64_t at_least) { (void)e, (void)at_least; }
#endif

/// A simulated time in whole ns: what a plan says of costs and links may add up to anything.
static inline int64_t whole_ns(double ns)
{
    return ns < 9e18 ? (int64_t)ns : INT64_C(9000000000000000000);
}

static inline int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/// What the calling thread has computed: on a core that others use too, less than what has passed.
static inline int64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
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
    if (atomic_load_explicit(&e->value, EVENT_ACQUIRE) < at_least)
        return false;
    event_observe(e, at_least);
    return true;
}

static inline void event_wake(struct event *e)
{
    if (atomic_load_explicit(&e->waiters, EVENT_BOTH))
        futex_wake(&e->value, INT_MAX);
}

/// value = max(value, to): several streams may signal one semaphore.
static inline void event_raise(struct event *e, uint64_t to)
{
    uint64_t value = atomic_load_explicit(&e->value, memory_order_relaxed);
    if (value < to)
        event_publish(e, value, to);
    while (value < to && !atomic_compare_exchange_weak_explicit(&e->value, &value, to, EVENT_BOTH, memory_order_relaxed))
        ;
    event_wake(e);
}

/// Several threads may add to one event: whoever reaches a value passes on what reached the one before.
static inline void event_add(struct event *e, uint64_t count)
{
    uint64_t value = atomic_load_explicit(&e->value, memory_order_relaxed);
    do {
        event_observe(e, value);
        event_publish(e, value, value + count);
    } while (!atomic_compare_exchange_weak_explicit(&e->value, &value, value + count, EVENT_BOTH, memory_order_relaxed));
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
    atomic_fetch_add_explicit(&e->waiters, 1, EVENT_BOTH);
    uint64_t value = atomic_load_explicit(&e->value, EVENT_BOTH);
    if (value < at_least)
        futex_sleep(&e->value, (uint32_t)value, EVENT_SLICE_NS);
    atomic_fetch_sub_explicit(&e->waiters, 1, EVENT_BOTH);
}

#endif
