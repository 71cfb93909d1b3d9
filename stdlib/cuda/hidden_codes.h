// Hidden activations of mlp_up as E4M3 codes (fp8.h): a tile is as wide as the blocks that share a scale, whose threads agree
// on it.
//
//   values, rounded to the rows' type --> largest of a thread --> of four lanes --> shared memory [sharer][row] --> factor
//                                                                  (sharers: who has other features of a row's block)
//   values * factor --> codes, 16 a lane after exchanges --> hidden [pairs][codes | scales]
//
// What other threads of the block may still read of one tile's maxima must not be overwritten by the next: on sm_90a, whose
// teams go through tiles independently, two tiles take turns. Included behind the constants of mlp_up's tile.
#ifndef MOE_HIDDEN_CODES_H
#define MOE_HIDDEN_CODES_H

#include "wire.h"

/// The larger of a magnitude, as bits, and the finite ones of two packed values.
template <int DTYPE> GPU_INLINE uint32_t larger_of(uint32_t largest, uint32_t word)
{
    const uint32_t low = gpu::bits(low_of<DTYPE>(word)) & 0x7fffffffu, high = gpu::bits(high_of<DTYPE>(word)) & 0x7fffffffu;
    largest = low < 0x7f800000u && low > largest ? low : largest;
    return high < 0x7f800000u && high > largest ? high : largest;
}

/// That of the four lanes which have a row.
GPU_INLINE uint32_t largest_of_lanes(uint32_t largest)
{
    GPU_UNROLL for (int mask = 1; mask < 4; mask *= 2)
    {
        const uint32_t other = gpu::shuffle_xor(largest, mask);
        largest = other > largest ? other : largest;
    }
    return largest;
}

/// The codes of two packed values.
template <int DTYPE> GPU_INLINE uint32_t two_codes(uint32_t word, float factor)
{
    return e4m3_of(low_of<DTYPE>(word) * factor) | e4m3_of(high_of<DTYPE>(word) * factor) << 8;
}

/// What four lanes have of two blocks of eight features, two codes of each in a word, as 16 codes in a row.
GPU_INLINE gpu::Words in_order(gpu::Words w)
{
    return {(w.x & 0xffff) | w.y << 16, (w.z & 0xffff) | w.w << 16, w.x >> 16 | (w.y & 0xffff0000u),
            w.z >> 16 | (w.w & 0xffff0000u)};
}

#if GPU_MAPS
constexpr int SHARERS = PLAIN ? 1 : TEAMS, LARGEST_AT = STAGES * SLOT_BYTES;
#else
constexpr int SHARERS = COLUMN_WARPS, LARGEST_AT = STAGES * (BLOCK_M + BLOCK_N) * ROW_BYTES;
#endif
constexpr int SETS = PLAIN ? 2 : 1, EIGHTS = NS / 2; // of eight features that a thread has parts of, FEATURES apart

/// What a thread has of a tile's hidden features: two neighbouring values a word, by block of rows, half of it, set.
struct HiddenPart {
    uint32_t words[MS][2][SETS][EIGHTS];
};
static_assert(!CODED || SHARERS == 1 || LARGEST_AT + 2 * SHARERS * BLOCK_M * 4 <= SHARED_BYTES, "the compiler counts the same");

/// Which of those who share a row's block a thread is.
GPU_INLINE int sharer()
{
#if GPU_MAPS
    return PLAIN ? 0 : team();
#else
    return gpu::warp() % COLUMN_WARPS;
#endif
}

/// Sets the maxima of a thread's rows to those of their blocks.
GPU_INLINE void share_largest(uint32_t (&largest)[MS][2], int turn)
{
    if (SHARERS == 1)
        return;
    uint32_t *shared = (uint32_t *)(gpu::shared() + LARGEST_AT) + turn * SHARERS * BLOCK_M;
    const int first = first_row() + gpu::lane() / 4;
    GPU_UNROLL for (int i = 0; i < 2 * MS; i++)
        if (gpu::lane() % 4 == 0)
            shared[sharer() * BLOCK_M + first + M_STEP * (i / 2) + 8 * (i % 2)] = largest[i / 2][i % 2];
    sync_multiplying();
    GPU_UNROLL for (int i = 0; i < 2 * MS; i++)
        GPU_UNROLL for (int s = 0; s < SHARERS; s++)
        {
            const uint32_t other = shared[s * BLOCK_M + first + M_STEP * (i / 2) + 8 * (i % 2)];
            largest[i / 2][i % 2] = other > largest[i / 2][i % 2] ? other : largest[i / 2][i % 2];
        }
}

/// Codes of a thread's part, which begins at `feature`, and the scales of its rows' blocks; `hidden`: the tile's first row, of
/// `rows`. Only features below the end are stored, in whole runs of 16, for which rows have room. `turn`: of the shared maxima.
template <class Part>
GPU_INLINE void store_coded(const Part &part, char *hidden, int rows, int64_t feature, int64_t feature_end, int turn)
{
    constexpr int RUNS = EIGHTS / 2; // of 16 features, of a set
    static_assert(!CODED || 2 * SETS * RUNS % 4 == 0, "four lanes store four runs");
    const int first = first_row() + gpu::lane() / 4;
    uint32_t largest[MS][2] = {};
    GPU_UNROLL for (int i = 0; i < 2 * MS; i++)
    {
        uint32_t &most = largest[i / 2][i % 2];
        GPU_UNROLL for (int j = 0; j < SETS * EIGHTS; j++)
            most = larger_of<DTYPE>(most, part.words[i / 2][i % 2][j / EIGHTS][j % EIGHTS]);
        most = largest_of_lanes(most);
    }
    share_largest(largest, turn);
    GPU_UNROLL for (int m = 0; m < MS; m++)
    {
        float factors[2];
        GPU_UNROLL for (int half = 0; half < 2; half++)
        {
            uint32_t scale;
            factors[half] = block_factor<ROW_SCALE>(largest[m][half], scale);
            char *scales = hidden + (first + M_STEP * m + 8 * half) * HIDDEN_STRIDE + codes_bytes(FFN);
            if (sharer() == 0 && gpu::lane() % 4 == 0 && first + M_STEP * m + 8 * half < rows && feature < feature_end)
                ((uint32_t *)scales)[feature / ROW_BLOCK] = stored_scale<ROW_SCALE>(scale);
        }
        GPU_UNROLL for (int run = 0; run < 2 * SETS * RUNS; run += 4)
        {
            uint32_t four[4];
            GPU_UNROLL for (int i = 0; i < 4; i++)
            {
                const int half = (run + i) / (SETS * RUNS), set = (run + i) / RUNS % SETS, n = (run + i) % RUNS * 2;
                four[i] = two_codes<DTYPE>(part.words[m][half][set][n], factors[half]) |
                          two_codes<DTYPE>(part.words[m][half][set][n + 1], factors[half]) << 16;
            }
            const gpu::Words codes = in_order(transpose(four));
            const int own = run + gpu::lane() % 4, place = first + M_STEP * m + own / (SETS * RUNS) * 8;
            const int64_t at = feature + own / RUNS % SETS * FEATURES + own % RUNS * 16;
            if (place < rows && at < feature_end)
                *(gpu::Words *)(hidden + place * HIDDEN_STRIDE + at) = codes;
        }
    }
}

#endif
