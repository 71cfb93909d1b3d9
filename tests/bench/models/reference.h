// What one MoE layer of random weights makes of a token, in float64 from the models' published formulas: its own router,
// its own codes and scales. Only the random numbers are the runtime's (runtime/weights/random.h).
#ifndef MOE_BENCH_REFERENCE_H
#define MOE_BENCH_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/plan/plan.h"

enum reference_router { ROUTER_SOFTMAX, ROUTER_SIGMOID_GROUPS, ROUTER_SOFTMAX_AFTER };

struct reference_model {
    const char *name, *config; // of tests/data/configs
    const char *stored;        // what its experts are stored as
    uint32_t layer;            // its first with experts
    enum reference_router router;
    uint32_t experts, choices, groups, groups_kept;
    int64_t hidden, ffn;
    double scale;              // of the weights of chosen experts
    bool clamped, biases, shared;
};

enum { REFERENCE_MOST_CHOICES = 16 };

/// `x` and `y` are rows of `hidden`; ids and weights the token's choices, in order. False: out of memory.
bool reference_token(const struct reference_model *model, const struct ir *plan, const float *x, double *y, int32_t *ids,
                     double *weights);

#endif
