// Weights: from safetensors (or a seed) into the kernels' packed layout (plan_param).
#ifndef MOE_WEIGHTS_H
#define MOE_WEIGHTS_H

#include "runtime/plan/plan.h"

struct weights_request {
    const struct ir *plan;
    const char *path;               // file, checkpoint directory, or "random"
    uint64_t seed;
    uint32_t threads;
    uint32_t layer_count;           // checkpoint layers to load: layers[i]
    const uint32_t *layers;
    uint32_t rank_count;            // ranks to load for
    const uint32_t *ranks;
    /// Where rank ranks[r]'s packed copy of a parameter of layers[i] goes; written by weights_load, 64-byte aligned.
    /// A per-expert parameter has owned-expert-count blocks of plan_param.bytes, by local id.
    void *(*destination)(void *user, uint32_t param, uint32_t layer_index, uint32_t rank_index);
    void *user;
    void (*progress)(void *user, double share);
    void *progress_user;
};

/// Reads only what the ranks own. Every problem names file and tensor in `error`: missing shard, truncated file, overlap,
/// hole, dtype or shape that does not fit. Returns 0, or a moe_status.
int weights_load(const struct weights_request *request, char *error, size_t size);

#endif
