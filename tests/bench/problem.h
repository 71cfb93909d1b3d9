// What a benchmark row computes: one MoE layer's sizes, its weights, a batch of tokens and where they go. The weights are
// the runtime's own random ones (runtime/weights/random.h), so that every engine multiplies the same numbers.
#ifndef MOE_BENCH_PROBLEM_H
#define MOE_BENCH_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

enum { BENCH_MOST_TOKENS = 4096 };

/// Of the weights; tokens are f32 or bf16.
enum bench_dtype { BENCH_F32, BENCH_BF16, BENCH_E4M3, BENCH_MXFP4, BENCH_DTYPES };
enum bench_routing { BENCH_UNIFORM, BENCH_ZIPF, BENCH_ROUTINGS };

struct bench_shape {
    const char *name;
    int64_t hidden, ffn;
    int32_t experts, choices, shared;   // shared: experts that every token goes to, besides its choices
};

/// One matrix of an expert: gate and up [ffn, hidden], down [hidden, ffn]. Experts from `shape.experts` on are shared.
enum bench_matrix { BENCH_GATE, BENCH_UP, BENCH_DOWN };

/// A batch. `x` is made so that the layer's router sends each token to the experts drawn for it.
struct bench_batch {
    int64_t tokens;
    void *x;                            // [tokens, hidden], f32 or bf16
    int32_t *ids;                       // [tokens, choices]
    float *weights;                     // [tokens, choices]
    int64_t active;                     // experts that have a token, shared ones too
};

/// Of tokens and results. bench_quantised: weights are codes with scales, tokens bf16.
int64_t bench_element_bytes(enum bench_dtype dtype);
bool bench_quantised(enum bench_dtype dtype);
const char *bench_dtype_name(enum bench_dtype dtype);
const char *bench_routing_name(enum bench_routing routing);

/// `count` values of one row of a matrix from column `first` on, rounded to the dtype, as f32.
void bench_weights(const struct bench_shape *shape, enum bench_dtype dtype, int32_t expert, enum bench_matrix matrix,
                   int64_t row, int64_t first, int64_t count, float *to);

/// Draws `tokens` tokens; `seed` picks the draw. ids and weights are the drawn experts, in no order, with weight 1/choices:
/// an engine with a router of its own replaces them by what that router says. bench_batch_free; false without memory.
bool bench_batch_make(const struct bench_shape *shape, enum bench_dtype dtype, enum bench_routing routing, int64_t tokens,
                      uint64_t seed, struct bench_batch *batch);
void bench_batch_free(struct bench_batch *batch);
/// Counts the active experts anew, after `ids` have changed.
void bench_batch_count(const struct bench_shape *shape, struct bench_batch *batch);

/// FLOPs of the experts (a multiply-add is two) and bytes of the weights of the active ones.
double bench_flops(const struct bench_shape *shape, int64_t tokens);
double bench_weight_bytes(const struct bench_shape *shape, enum bench_dtype dtype, const struct bench_batch *batch);

/// Round to nearest even; what the runtime stores. Finite numbers.
uint16_t bench_to_bf16(float value);
float bench_from_bf16(uint16_t bits);

#endif
