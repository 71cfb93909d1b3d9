// Schedule -> Program: instructions per rank and stream, buffers with arena offsets, semaphores, exchanges. It is
// written in the plan's own records (plan.def): lowering appends one plan_variant per schedule to the plan being built.
#ifndef MOECC_PROGRAM_H
#define MOECC_PROGRAM_H

#include "compiler/schedule/schedule.h"
#include "runtime/plan/kernels.h"
#include "runtime/plan/messages.h"
#include "runtime/plan/plan.h"

/// Starts a plan (an initialised ir of type plan_ir) for a pipeline: info, ranks, owners, parameters with the backend's
/// layouts. `program` gives diagnostics their places; it may be NULL here and below. False when errors were queued.
bool lower_begin(struct context *context, const struct program_text *program, const struct ir *module,
                 uint32_t pipeline, const char *cpu_level, struct ir *plan);
/// Appends one proven schedule as a variant. Returns its row, or NONE with errors queued.
uint32_t lower_schedule(struct context *context, const struct program_text *program, const struct ir *module,
                        uint32_t pipeline, const struct ir *graph, const struct ir *schedule, struct ir *plan);
/// Adds plan_choice rows: variant_of_use[u] is the variant of the pipeline's u-th use. `single`: they are for one layer
/// run alone.
bool lower_choices(struct context *context, const struct ir *module, uint32_t pipeline, const uint32_t *variant_of_use,
                   bool single, struct ir *plan);

/// On the lowered program: no cycle through streams, semaphores and messages over all ranks; any two accesses to
/// overlapping bytes ordered unless both read; every buffer large enough. What will really run is what is checked.
bool program_verify(struct context *context, const struct ir *plan, uint32_t variant, char *error, size_t size);

#endif
