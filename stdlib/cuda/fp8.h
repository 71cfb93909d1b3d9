// FP8 arithmetic: rows and weights as E4M3 codes, multiplied as such. Rows have an f32 scale for each block of 128 along k,
// behind their codes; weights one for each 128 of k and at least 64 rows, of the many that lie behind theirs (codes.h).
//
//   k of a slot: 128 codes, which share their scales
//
//      A codes ---.
//                 +--> tensor cores, one part a slot --> sums = part * (scale of the row * scale of the weights) + sums
//      B codes ---'                                       f32, in registers; parts begin anew every slot
//
// Tensor cores may keep fewer bits than f32 between the products of a part, so that none is longer than a block.
//
// Constants from the compiler: ARITHMETIC (format of the rows, as moe_wire_code makes it; 0: their own type), CODES,
// CODE_SCALES (codes.h).
#ifndef MOE_FP8_H
#define MOE_FP8_H

#include "slices.h"

constexpr int ROW_BLOCK = 128, ROW_SCALE = (int)(ARITHMETIC >> 8 & 0xff);
static_assert(!CODED || (ARITHMETIC >> 16 == ROW_BLOCK && CODES == dtype_fp8_e4m3 && CODE_BLOCK == ROW_BLOCK),
              "one scale each for a slot's rows and weights");

/// What the sums of a thread's products are multiplied with. `rows`: the scales of the tile's first row; `weights`: those of the
/// first block for the first half of a thread's columns, `apart` from the second's. Few numbers: they live beside the sums.
struct Factors {
    const char *rows;
    int count; // rows that exist
    const char *weights;
    int64_t stride, apart;
    int halves; // whose columns exist
};

/// Where the scales of row `row` of an expert's weights begin: `rows` rows of `k` codes.
GPU_INLINE const char *weight_factors(const char *weights, int64_t rows, int64_t k, int64_t row)
{
    return weights + (rows * ((k + 15) / 16 * 16) + 63) / 64 * 64 + row * 4;
}

GPU_INLINE float row_factor(const Factors &factors, int place, int block)
{
    return place < factors.count ? ((const float *)(factors.rows + place * factors.stride))[block] : 0;
}

GPU_INLINE float column_factor(const Factors &factors, int half, int block)
{
    const char *at = factors.weights + half * factors.apart + (int64_t)block * CODE_SCALES * 4;
    return half < factors.halves ? *(const float *)at : 0;
}

/// sums += part * (row's factor * columns' factor), for a block of 16 or 64 rows by eight columns.
GPU_INLINE void promote(float (&sums)[4], const float (&part)[4], const float (&rows)[2], float columns)
{
    GPU_UNROLL for (int i = 0; i < 4; i++) sums[i] = gpu::fma(part[i], rows[i / 2] * columns, sums[i]);
}

/// The same where operands have changed places: a thread's columns are rows, and all of its rows share the columns' factor.
GPU_INLINE void promote_few(float (&sums)[4], const float (&part)[4], const float (&rows)[2], float columns)
{
    GPU_UNROLL for (int i = 0; i < 4; i++) sums[i] = gpu::fma(part[i], rows[i % 2] * columns, sums[i]);
}

#endif
