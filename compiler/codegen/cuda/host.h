// CUDA kernels on this machine's CPU: compiled by a C++ compiler that is found when they are needed, run by the emulator
// in stdlib/cuda/host as if they were native kernels.
#ifndef MOECC_CODEGEN_CUDA_HOST_H
#define MOECC_CODEGEN_CUDA_HOST_H

#include "cuda.h"

struct host_options {
    bool checked;     // compare every memory access with those it is not ordered after
    uint64_t seed;    // of the order in which threads run
    int most_blocks;  // of a launch, which has 1 to so many; 0: 3
};

/// Why host execution is not to be had here: there is no C++ compiler. NULL: it is.
const char *host_missing(struct context *context);

/// The function of every plan_kernel (NULL for built-ins), compiled for the CPU and loaded for as long as the process
/// lives.
void host_load(struct context *context, const struct ir *plan, const struct cuda_sources *sources,
               const struct host_options *options, moe_kernel_fn **kernels);

/// What kernels have done wrong since the last call: deadlocks, unordered accesses. 0: nothing.
int host_reports(char *text, size_t size);

/// Which kernels run right now, in words: after a step that was given up. 0: none.
int host_unfinished_kernels(char *text, size_t size);

#endif
