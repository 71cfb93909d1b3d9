// Between the public entry points: the thread's last error.
#ifndef MOE_OPEN_H
#define MOE_OPEN_H

#include "runtime/exec/session.h"

/// Sets moe_last_error and returns the status.
moe_status open_fail(moe_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/// session_memory.c: ranks, streams, arenas, counters. False when memory is out.
bool session_build(struct moe_session *session);
void session_release(struct moe_session *session);
/// What the ranks' weights and buffers take, whether or not they could be had.
size_t session_weight_bytes(const struct moe_session *session);
size_t session_arena_bytes(const struct moe_session *session);

/// Kernels that somebody else has compiled, one a plan_kernel (NULL: keeps its own): CUDA kernels built for the CPU.
void plan_use_kernels(struct moe_plan *plan, moe_kernel_fn *const *kernels);

#endif
