// CUDA sources to code for a GPU by NVRTC, which needs none. The library is found when it is needed; moecc builds and runs
// without it.
#ifndef MOECC_CODEGEN_CUDA_NVRTC_H
#define MOECC_CODEGEN_CUDA_NVRTC_H

#include "cuda.h"

/// Where a kernel's code lies and what the assembler says that it takes.
struct cuda_code {
    const char *cubin, *ptx; // files
    int registers, stack_bytes, spill_bytes;
    int blocks;              // that a multiprocessor holds at once
    bool made;               // now: it was not in the cache
};

/// Why there is no NVRTC here; NULL: there is.
const char *nvrtc_missing(struct context *context);
/// `13.0`
const char *nvrtc_version(struct context *context);

/// The code of one source for a chip, from the cache or made now.
struct cuda_code nvrtc_compile(struct context *context, const struct cuda_chip *chip, const struct cuda_source *source);

/// Code for a plan's kernels, several chips one after another: rows of plan_gpu_code, and what they point into.
struct cuda_image {
    uint8_t *bytes; // the context's
    size_t size, capacity;
    uint32_t kernels, made; // compiled for chips; of these, not found in the cache
};

/// Adds the code of a plan's kernels for a chip, cubins and PTX.
void nvrtc_embed(struct context *context, struct ir *plan, const struct cuda_chip *chip,
                 const struct cuda_sources *sources, struct cuda_image *image);

/// Prints every source's PTX, each after a line that names it.
void nvrtc_print_ptx(struct context *context, const struct cuda_chip *chip, const struct cuda_sources *sources, FILE *out);
/// Compiles every source and prints a line about each: what it takes, what a tile computes and reads. `files`: and where
/// its cubin lies.
void nvrtc_print_resources(struct context *context, const struct cuda_chip *chip, const struct cuda_sources *sources,
                           bool files, FILE *out);

#endif
