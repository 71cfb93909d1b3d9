// Graph -> Schedule: elaborate the schedule's text for given knobs, place phases, prove it legal, find the fewest waits.
#ifndef MOECC_SCHEDULE_H
#define MOECC_SCHEDULE_H

#include "compiler/graph/graph.h"

#define RECORDS_DEF "compiler/schedule/schedule.def"
#include "runtime/plan/records_structs.h"

extern const struct ir_type schedule_ir;

/// Pieces of a task's rows; one where the schedule (of a prediction's own) says nothing.
static inline uint32_t piece_count(const struct ir *schedule, uint32_t task)
{
    return task < COUNT(schedule, sched_task) ? ROW(schedule, sched_task, task)->pieces : 1;
}

static inline struct sched_share piece_share(const struct ir *schedule, uint32_t task, uint32_t piece)
{
    struct rows shares = task < COUNT(schedule, sched_task) ? ROW(schedule, sched_task, task)->shares : (struct rows){0, 0};
    return shares.count ? *ROW(schedule, sched_share, shares.first + piece) : (struct sched_share){0, 1, 1};
}

/// The experts of a wave.
static inline struct sched_share wave_share(const struct ir *schedule, uint32_t wave)
{
    struct rows shares = ROW(schedule, sched_info, 0)->wave_shares;
    return shares.count ? *ROW(schedule, sched_share, shares.first + wave) : (struct sched_share){0, 1, 1};
}

/// A prediction of draft schedules, for `fill` (compiler/simulate supplies it): the ns that each instance takes, of a receive
/// those between the end of its own rank's send and its last message. Returns the step's ns; NAN: it cannot end.
struct forecast {
    void *of;
    double (*times)(void *of, struct ir *draft, double *durations);
};

/// Elaborates one use of a schedule over `layers` layers of the step (0: as few as its own text orders together) for token
/// counts up to `bound`. What needs only the
/// text is diagnosed here: names, indices, engines, binds, both sides of an overlap on one stream, and that every
/// instance is issued exactly once. False when errors were queued; `schedule` then holds no rows. `forecast` NULL: no
/// machine is known, stalls are guessed.
bool elaborate(struct context *context, const struct program_text *program, const struct ir *module,
               const struct ir *graph, uint32_t use, uint32_t layers, int64_t bound, const struct forecast *forecast,
               struct ir *schedule);

/// Legality of what was elaborated, all ranks together: overlaps independent, no cycle through data, order, stream order
/// and messages, communication in one compatible order. Each failure is a diagnostic with its places and chain.
bool prove(struct context *context, const struct program_text *program, const struct ir *module, const struct ir *graph,
           struct ir *schedule);

/// Fills sched_wait from the edges.
bool place_waits(struct context *context, const struct ir *graph, struct ir *schedule);

bool schedule_check(const struct ir *graph, const struct ir *schedule, char *error, size_t size);

/// All orders that streams, edges and messages imply. NULL when the schedule has a cycle (it was not proven).
struct order_closure;
struct order_closure *order_closure_make(struct context *context, const struct ir *graph, const struct ir *schedule);
/// Does `before` end before `after` starts? other_rank false: both on one rank, without help of messages. True: `before`
/// on any rank a, `after` on any other rank b; only a chain that passes a message orders those.
bool ordered(const struct order_closure *closure, uint32_t before, uint32_t after, bool other_rank);
/// The same by streams: how many instances of each have ended, on the instance's own rank or on any other, before it starts.
const uint32_t *order_clock(const struct order_closure *closure, uint32_t instance, bool other_rank);

#endif
