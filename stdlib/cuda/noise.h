// Noise on the choice of experts: a function of seed, layer, rank, token and expert, the CPU's bit by bit.
//
// Constants from the compiler: NOISE (a factor; 0: none), SEED.
#ifndef MOE_NOISE_H
#define MOE_NOISE_H

#include "numbers.h"

/// A permutation of 32-bit numbers in which every bit of the result depends on every bit of the number.
GPU_INLINE uint32_t mixed(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

GPU_INLINE uint32_t noise_of_token(const Launch &args, int64_t token)
{
    uint32_t x = mixed((uint32_t)SEED * MOE_NOISE_STEP + 1);
    x = mixed(x ^ (uint32_t)args.k.n[3]); // layer
    x = mixed(x ^ (uint32_t)args.k.n[2]); // rank
    return mixed(x ^ (uint32_t)(args.k.n[1] + token));
}

/// A sum of uniform numbers, with NOISE for the deviation of one.
GPU_INLINE float noise_of_expert(uint32_t of_token, int expert)
{
    const uint32_t x = mixed(of_token ^ (uint32_t)expert * MOE_NOISE_STEP);
    uint32_t sum = 0;
    GPU_UNROLL for (uint32_t i = 0; i < MOE_NOISE_WORDS; i++)
    {
        const uint32_t word = mixed(x + i * MOE_NOISE_STEP);
        sum += (word & 0xffff) + (word >> 16);
    }
    return ((float)sum - 65535.0f * MOE_NOISE_WORDS) * NOISE;
}

#endif
