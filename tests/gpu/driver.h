// A GPU for tests, by the driver's own library, which is found when it is needed: kernels are compiled by NVRTC, loaded and
// launched. The process's heap and stack are registered with the driver, so that kernels reach what tests hand them at
// the same addresses; what is measured lies in the device's memory.
#ifndef MOE_TESTS_GPU_DRIVER_H
#define MOE_TESTS_GPU_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compiler/codegen/cuda/nvrtc.h"
#include "runtime/plan/kernels.h"

/// Whether the tests are to run on a GPU: $MOE_GPU is set.
bool gpu_wanted(void);
/// Opens the first GPU, once. What is missing, or NULL.
const char *gpu_open(void);
/// `gpu:sm_90a` of the GPU there is where one is wanted and there, else `otherwise`.
const char *gpu_level(const char *otherwise);
const char *gpu_name(void);
int gpu_multiprocessors(void);
/// Whether the driver is the tests' own, whose kernels the CPU runs.
bool gpu_is_fake(void);

/// A loaded kernel. `on_cpu`: the same source built for the CPU, for the fake driver.
struct gpu_kernel {
    void *function;
    const struct cuda_source *source;
    int blocks; // of a launch
};
void gpu_load(struct context *context, const struct cuda_chip *chip, const struct cuda_source *source, moe_kernel_fn *on_cpu,
              struct gpu_kernel *kernel);
/// Launches units [begin, end) and does not wait. Tensor maps count `pairs` pairs and `experts` experts.
void gpu_launch(const struct gpu_kernel *kernel, const struct moe_kargs *args, int64_t begin, int64_t end, int64_t pairs,
                int64_t experts);
/// Launches and waits; for kernels whose arguments are the process's memory.
void gpu_run(const struct gpu_kernel *kernel, const struct moe_kargs *args, int64_t begin, int64_t end);
void gpu_wait(void);

/// What the process has mapped beside its heap becomes reachable, too, until it is forgotten, by the number that reaching gave.
int gpu_reach_mapped(void);
void gpu_forget_mapped(int before);

/// The device's own memory, by its addresses.
void *gpu_alloc(size_t bytes);
void gpu_free(void *memory);
void gpu_fill(void *to, int byte, size_t bytes);
void gpu_upload(void *to, const void *from, size_t bytes);
void gpu_download(void *to, const void *from, size_t bytes);
void gpu_copy(void *to, const void *from, size_t bytes);

/// Seconds that `work` takes on the device, the least of some runs.
double gpu_seconds(void (*work)(void *user), void *user);

#endif
