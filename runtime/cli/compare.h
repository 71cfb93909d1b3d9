// The error of a run's output against a stored reference.
#ifndef MOE_COMPARE_H
#define MOE_COMPARE_H

#include "runtime/cli/batch.h"

struct difference {
    double relative_l2;         // |y - reference| / |reference|, Frobenius norms
    double cosine;              // 1 - cosine of the two
    double largest;             // absolute
};

/// Compares with tensor `hidden_states` of the file, or `layerL.hidden_states` for a run of layer L alone. MOE_OK, or a
/// status with a message that names file and tensor.
moe_status compare_output(const struct batch *batch, const char *path, struct difference *difference, char *error,
                          size_t size);

#endif
