// The session's worker threads. A launch is a kernel over a range of units; several may be in flight, one per stream.
// Workers take `grain` units at a time from the launch's counter, or more while many are left and nothing can wait for
// them; the stream that posted it sleeps until all are done.
// Workers are one team for all ranks, so that none idles while another has work; where links are emulated, each rank
// stands for a machine of its own, and has a team of its own if there are workers enough.
#ifndef MOE_POOL_H
#define MOE_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "event.h"
#include "runtime/device/placement.h"
#include "runtime/plan/kernels.h"

struct stream;

struct launch {
    moe_kernel_fn *fn; // generated
    bool (*builtin)(struct stream *stream, const struct moe_kargs *args);
    struct stream *stream;
    struct moe_kargs args;
    int64_t units, grain;
    // Where units come in groups of which some are empty: those that are not, by number, of `group_units` each; unit u is
    // then unit u % group_units of groups[u / group_units]. NULL: there are no others.
    const int32_t *groups;
    int64_t group_units;
    uint32_t team;           // whose workers take units of it
    bool urgent;             // other ranks wait for it: goes before all that is not
    _Atomic int64_t next;    // first unit nobody has taken
    _Atomic int64_t done;    // units finished
    _Atomic int64_t spent;   // ns in its kernel, over all who ran pieces of it; whole once nobody looks at it
    struct event posted;     // counts launches of this stream that finished
    _Atomic uint32_t active; // workers may take units
    _Atomic uint32_t users;  // workers looking at it
};

struct worker {
    struct pool *pool;
    pthread_t thread;
    void *scratch;
    _Atomic uint64_t progress; // pieces of work done: nothing hangs as long as it grows
    uint32_t number;
    const uint32_t *order; // [group] ranks, in which it looks for their work
    bool started;
};

struct pool {
    struct worker *workers;
    uint32_t worker_count;
    uint32_t teams;        // worker i is in team i % teams, and so is rank i
    const struct placement *placement;
    uint32_t idle_spins;   // looks before an idle worker sleeps
    bool helped;           // the session's only stream works on its launches: one worker less
    struct worker helper;  // that stream, while it does
    struct launch **slots; // one per stream, by descending priority
    uint32_t slot_count, group; // a group of slots: the same stream of every rank
    _Atomic uint32_t epoch; // bumped with every launch; futex
    _Atomic uint32_t sleepers;
    _Atomic uint32_t *urgent; // [teams] urgent launches with units left
    _Atomic bool stop;
};

/// Threads that compute.
static inline uint32_t pool_hands(const struct pool *pool)
{
    return pool->worker_count + pool->helped;
}

bool pool_start(struct pool *pool);
/// Ends the workers. False: one is stuck in a kernel; nothing it can reach may be freed.
bool pool_stop(struct pool *pool);
/// Starts a launch; its end raises launch->posted by one.
void pool_post(struct pool *pool, struct launch *launch);
/// The posting thread takes units too, in a helped pool, then looks for a while whether the others are done: `target`
/// is what launch->posted will be.
void pool_help(struct pool *pool, struct launch *launch, uint64_t target, void *scratch);
/// Waits until no worker looks at a finished launch any more, so that it can be used again.
void pool_retire(struct launch *launch);
/// For threads that mostly sleep: the calling thread asks for short turns, so that it gets a core soon after it wakes
/// while others compute. Where the system knows no such wish, nothing changes.
void thread_prefer_short(void);
/// Runs units [begin, end) here.
void launch_run(struct launch *launch, int64_t begin, int64_t end, void *scratch);

#endif
