// A scalar float64 MoE layer in plain C, on the loader's own random weights: the yardstick of the end-to-end tests.
#ifndef MOE_TEST_REFERENCE_H
#define MOE_TEST_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shape {
    int hidden, ffn, experts, choices, bound;
    const char *dtype;          // of x, the expert weights and y
    bool normalize;
};

/// Rounds values to a dtype ("bf16") and back.
void round_to_dtype(const char *dtype, float *values, size_t count);

/// y[t] = sum over the token's ids of weight * SwiGLU(x[t]); ids of -1 are skipped. Weights w_gate_up [E, 2F, H] and w_down
/// [E, H, F] are those of `seed`, rounded to the dtype; nothing else is rounded.
void reference_layer(const struct shape *shape, uint64_t seed, const float *x, int64_t tokens, const int32_t *ids,
                     const float *weights, float *y);

#endif
