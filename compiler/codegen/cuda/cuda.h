// Code generation for CUDA: which templates (stdlib/cuda) a plan's kernels are made of, specialised to their constants;
// compiled for a chip by NVRTC, which needs no GPU, or for this machine's CPU, where the kernels run as fibers.
#ifndef MOECC_CODEGEN_CUDA_H
#define MOECC_CODEGEN_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "compiler/base/base.h"
#include "runtime/plan/kernels.h"
#include "runtime/plan/plan.h"

struct cuda_chip {
    const char *name;     // `sm_80`
    int64_t shared_bytes; // that a block may have
    int64_t sm_shared_bytes, sm_registers, sm_threads; // of a multiprocessor
    int64_t tensor_rate;  // bf16 FLOPs of its tensor cores in the time of one by multiply-adds in f32 (datasheets)
    bool multiplies_codes; // E4M3 by mma.sync; sm_100a takes it, but the assembler widens codes itself, with more registers
    bool warpgroups;      // products by four warps together, from boxes of tensors in shared memory (sm_90a)
};

/// The chip of an architecture; NULL: there are no kernels for it.
const struct cuda_chip *cuda_chip(const char *name);

/// What a block multiplies at once, which is computed whole however little of it there is: an expert's rows and output
/// features, gate and up counted apart; a router's tokens and experts. Kernels of rows: a row, no features.
struct cuda_tile {
    int64_t rows, features;
};
/// `rows`: of an expert, in the mean.
struct cuda_tile cuda_tile_of(const struct cuda_chip *chip, const struct plan_kernel *kernel, double rows);

/// Fills param's layout, panel, group, bytes and dtype for the CUDA kernels: rows as in the checkpoint; `panel` is how
/// many of them a unit of work takes. Calling it again changes nothing. False: a type without kernels.
bool cuda_choose_layout(struct plan_param *param);
/// Whether there is a template for a kernel's role and constants on a chip.
bool cuda_has_kernel(const struct cuda_chip *chip, const struct plan_kernel *kernel);

/// A tensor that a kernel copies boxes of, for the driver's tensor map: which argument it is, its extents in elements of
/// two bytes from the innermost on, its strides in bytes. The outermost extent is what `counts` says the argument holds.
/// Chunks of 16 bytes are permuted within 128 bytes (the 128-byte swizzle); what lies outside reads as zeros.
enum cuda_counts { cuda_counts_pairs, cuda_counts_experts };
struct cuda_map {
    int argument, rank;
    enum cuda_counts counts;
    int64_t extents[4], strides[4], box[4];
};

/// One kernel's source: its constants, then its template.
struct cuda_source {
    const char *name;      // of the kernel, in the source too
    const char *file;      // the template's, or the file that an edited kernel came from
    const char *text;
    const char *stage;     // whose kernel it is: the first of them
    const char *place;     // of that stage in the program, `hello.moe:24:5`, or ""
    bool edited;           // somebody else's text: errors in it are theirs
    int threads, shared_bytes, stages;
    struct cuda_map maps[MOE_MAX_MAPS]; // that a launch brings along
    int map_count;
    int64_t tile_flops, tile_bytes; // of a block's tile, or of a warp's row: computed, and read from global memory
};

/// A plan's sources, one a different kernel.
struct cuda_sources {
    struct cuda_source *at;
    uint32_t count;
    uint32_t *of_kernel; // plan_kernel -> source, NONE: built in
};

/// Chooses the layout of every parameter and writes the source of every kernel that is not built in; sets the kernels'
/// unit_count and grain. False after a diagnostic.
bool cuda_generate(struct context *context, struct ir *plan, const struct cuda_chip *chip, struct cuda_sources *sources);

/// Kernels from a file, in cuda_print's form, instead of their own sources. One that the plan lacks is an error.
void cuda_use_file(struct context *context, struct cuda_sources *sources, const char *path);

/// A compiler refused a kernel: its words, then whose kernel it is, on stderr; and out.
_Noreturn void cuda_refused(struct context *context, const struct cuda_source *source, const char *words);

/// Prints all sources, each after a line that names it.
void cuda_print(const struct cuda_sources *sources, FILE *out);

#endif
