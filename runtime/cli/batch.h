// The tokens of a run, for all ranks, and their results: read from a file or drawn at random, written to a file.
#ifndef MOE_BATCH_H
#define MOE_BATCH_H

#include "runtime/moe.h"
#include <stdbool.h>

/// How the leading dimensions of the files look.
enum batch_shape {
    BATCH_FLAT,   // [tokens, width], shared out over the ranks
    BATCH_RANKS,  // [ranks, tokens, width]
    BATCH_RAGGED, // [sum, width] and rank_offsets [ranks + 1]
};

struct batch {
    const moe_plan_info *info;
    enum batch_shape shape;
    int64_t *first;           // [ranks + 1]: rank r has rows first[r] .. first[r + 1]
    void *x, *y;              // [sum, width] of x_dtype and of y_dtype
    int32_t *given_ids, *ids; // [sum, choices]; given_*: NULL when the router chooses
    float *given_weights, *weights;
    moe_step *steps; // [ranks], ready for moe_session_run
};

/// Both return MOE_OK, or a status with a message in `error`; batch_free in any case.
moe_status batch_read(struct batch *batch, const moe_plan_info *info, const char *path, char *error, size_t size);
/// `counts`: one for all ranks, one a rank, or none: the bound.
moe_status batch_random(struct batch *batch, const moe_plan_info *info, const int64_t *counts, uint32_t count,
                        uint64_t seed, char *error, size_t size);
moe_status batch_write(const struct batch *batch, const char *path, char *error, size_t size);
void batch_free(struct batch *batch);

static inline int64_t batch_tokens(const struct batch *batch)
{
    return batch->first[batch->info->ranks];
}

#endif
