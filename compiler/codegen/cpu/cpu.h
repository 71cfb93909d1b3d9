// Code generation for CPUs: chooses how weights are packed and turns the kernels of a lowered plan into native code
// with LLVM. The code is one block that may be copied anywhere: a plan carries it as bytes.
#ifndef MOECC_CODEGEN_CPU_H
#define MOECC_CODEGEN_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "compiler/base/base.h"
#include "runtime/plan/plan.h"

/// The level's name as recorded in plan_info.cpu_level, or NULL when there is no such level. `level` NULL: the best one
/// this machine has.
const char *cpu_level_name(const char *level);
/// Levels that one executable has code for, the worst first, ended by NULL: all of this machine's architecture.
const char *const *cpu_levels_of_build(void);
/// The ELF machine number (EM_*) of the level's code.
unsigned cpu_level_machine(const char *level);
/// Whether this machine can execute code of the level.
bool cpu_level_runs_here(const char *level);
/// Whether a product with these weights reads rows of A wherever they lie (MLP_BY_ROW) as fast as one behind the other: not
/// AMX tiles, whose rows are at equal distances, nor look-ups of codes, beside which registers do not hold all rows' places.
bool cpu_reads_by_row(const char *level, const struct plan_param *weights);
/// Whether there is a generator for a kernel's role and constants.
bool cpu_has_kernel(const struct plan_kernel *kernel);

/// Fills param's layout, panel, group, bytes and dtype from rows, cols, halves and the element type its kernels compute
/// with: of a per-expert parameter that is `declared`, of any other `dtype` as the caller set it (router weights: f32;
/// none counts as f32). Calling it again changes nothing. False: unknown level or a type without kernels.
bool cpu_choose_layout(const char *level, struct plan_param *param);

/// Chooses the layout of every plan_param and generates native code for every plan_kernel that is not built in; sets
/// the kernels' code_offset, unit, unit_count, grain, scratch_bytes and plan_info.cpu_level. The image is malloc'ed,
/// position-independent, has no external symbol and no absolute relocation; 64-byte alignment is enough for it.
/// False after a diagnostic: unknown level, or a kernel or parameter that has no code.
bool codegen_cpu(struct context *context, struct ir *plan, const char *level, void **image, size_t *image_bytes);

/// For programs: where LLVM finds no memory, the program says so and exits as it does where moecc finds none.
void codegen_cpu_exits_without_memory(void);

/// Prints the LLVM IR of all kernels.
bool codegen_cpu_print(struct context *context, const struct ir *plan, const char *level, FILE *out);

#endif
