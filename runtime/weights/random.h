// Counter-based random numbers: a value depends on a key and a position alone, never on the order of generation, so that
// weights and tokens are the same for any number of ranks, threads and layers. The bits are the same on every machine.
#ifndef MOE_RANDOM_H
#define MOE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/// Keys: a hash chain over what identifies the sequence.
uint64_t random_key(uint64_t seed, const char *name, uint64_t layer, uint64_t expert);

/// to[i] = value number `first + i` of the sequence, times scale: mean 0, variance 1, a sum of 12 uniform numbers (close
/// to normal, within +-6). For tokens.
void random_normal(uint64_t key, uint64_t first, float scale, float *to, size_t count);
/// The same with a sum of 4 (within +-3.5), three times as fast. For weights.
void random_weights(uint64_t key, uint64_t first, float scale, float *to, size_t count);

/// Row `index` of the random tokens of a rank: `width` values of random_normal.
void random_token(uint64_t seed, uint32_t rank, int64_t index, float *to, size_t width);

/// What random weights are scaled by: 1/sqrt(cols), so that a product has the variance of its input; twice that for a
/// router, so that scores are spread as in trained models; 0.1 for vectors (cols 1: biases).
float random_scale(int64_t cols, int router);

#endif
