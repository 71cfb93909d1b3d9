// Small plans built by hand, with kernels in C: one layer, f32 everywhere, an expert multiplies its rows by its number
// plus one. They exercise the executor, dispatch and combine without the compiler.
#ifndef SMALL_PLAN_H
#define SMALL_PLAN_H

#include "runtime/exec/session.h"
#include "runtime/moe.h"

struct small {
    uint32_t ranks, experts, choices, parts;
    int64_t width, bound;
    int64_t rows;         // base slots of every rank, capped by the part's bound; < 0: the bound
    int64_t pool;         // pool rows of every rank; 0: no pool
    uint32_t empty_ranks; // the last so many ranks own no experts
    bool overflow_error, own_thread;
    bool lost_signal;     // leave out one signal: the step cannot end
    enum { MEDDLE_NOT, MEDDLE_ROUTES, MEDDLE_ROWS } meddles; // a kernel `meddle` that the test brings is given what the
                                                             // built-in behind it reads: routes, or rows that arrived
    uint32_t rank_of[64]; // filled by small_plan: expert -> rank
};

/// Builds the tables; the caller frees them with ir_free.
void small_plan(struct ir *ir, struct small *small);
/// Opens the plan and a session on it with the C kernels in place.
moe_status small_session(struct small *small, const moe_options *options, moe_plan **plan, moe_session **session);
/// The same result in plain loops: by rank, then expert, in f32.
void small_reference(const struct small *small, int64_t tokens, const float *x, const int32_t *ids,
                     const float *weights, float *y);
/// Puts the C kernels in place; they work on `small` until the next call.
void small_override(moe_session *session, const struct small *small);

#endif
