// Inside the cost of a task (costs.c): a call of an operator for a part on a kind of rank; and what a CUDA target's kernels
// make of it (kernels.c).
#ifndef MOECC_SIMULATE_COSTS_H
#define MOECC_SIMULATE_COSTS_H

#include "compiler/codegen/cuda/estimate.h"
#include "compiler/simulate/model.h"

enum { SIZES_MAX = 32 };

struct formula {
    const struct model *model;
    const struct mod_stage *stage;
    const struct mod_op *op;
    struct routing routing;
    uint32_t kind;
    double tokens;
    str_id names[SIZES_MAX];    // n, h, e of this call
    double sizes[SIZES_MAX];
    uint32_t size_count;
};

/// The argument that is a value, by number; NULL: none.
const struct mod_arg *value_arg(const struct model *model, const struct mod_stage *stage, uint32_t number);
/// The dispatch whose rows a stage works on or brings home.
const struct mod_stage *dispatch_of_stage(const struct model *model, const struct mod_stage *stage);
double number_of(const struct model *model, const struct mod_stage *stage, const char *name, double otherwise);
/// (row, expert) pairs of a part: of routed rows on this kind of rank, or every expert for plain ones.
double pairs(const struct formula *f, const struct mod_value *x);
/// Experts of a rank of this kind that the wave has.
double owned_in_wave(const struct formula *f);
/// Rows that one rank of the kind sends (or, back, receives) per token, by axis, in first hops.
void rows_by_axis(const struct formula *f, bool back, double rows[AXES_MAX]);
/// The mod_format of rows over an axis; NONE: the value's own type.
uint32_t wire_format(const struct model *model, const struct mod_stage *stage, uint32_t axis);

/// The kernels that a task launches, as lowering makes them, in the constants that an estimate reads.
struct task_kernels {
    const struct cuda_chip *chip; // the first of the target
    struct {
        struct plan_kernel kernel;
        struct cuda_load load;
        double rate;            // FLOP/s of what it multiplies with, datasheet
        struct cuda_estimate estimate;
    } at[2 * AXES_MAX + 4];
    uint32_t count;
};
/// Of one phase, or of all of them. False: the target is none of CUDA, or the operator has no kernels. `tensor`: FLOP/s of the
/// tensor cores on what the stage multiplies.
bool kernels_of_phase(const struct formula *f, enum phase phase, double tensor, struct task_kernels *kernels);
/// Those of a task, for `tokens` tokens (cost_of_task).
bool kernels_of_task(const struct model *model, uint32_t task, uint32_t kind, double tokens, const struct sched_share *wave,
                     struct task_kernels *kernels);
static inline bool is_expert_kernel(const struct plan_kernel *kernel)
{
    return kernel->role == kernel_role_mlp_up || kernel->role == kernel_role_mlp_down;
}

#endif
