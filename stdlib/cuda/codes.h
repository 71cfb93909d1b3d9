// Quantised weights on their way to the products: E4M3 or MXFP4 codes in memory, with a scale for each row and CODE_BLOCK
// columns, are expanded to the type of A in shared memory. Every code is exact in it, so what is multiplied are the
// checkpoint's own numbers; a block's scale is applied in f32 to its sum, as on the CPU. A slot of k has PARTS blocks or lies
// within one. A team's threads do this together (tiles_codes.h, tiles_codes_hopper.h).
//
// Constants from the compiler: CODES (type of the codes, or none), CODE_BLOCK, CODE_SCALES (scales of a block of columns).
#ifndef MOE_CODES_H
#define MOE_CODES_H

#include "slices.h"

constexpr int CODE_BITS = CODES == dtype_mxfp4 ? 4 : 8, SCALE_BYTES = CODES == dtype_mxfp4 ? 1 : 4;
constexpr int CODE_SLICE = SLICE * CODE_BITS / 8; // bytes of a row's codes in a slot

constexpr int common_divisor(int a, int b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

constexpr int PART = CODES == dtype_none ? SLICE : common_divisor(SLICE, CODE_BLOCK); // k that surely share their scales
constexpr int PARTS = SLICE / PART;
static_assert(PART % 16 == 0, "a block's columns are whole steps of k");

/// Bytes between rows of weights with `k` columns.
constexpr int64_t weight_stride(int64_t k)
{
    return CODES == dtype_none ? k * ELEMENT : (k * CODE_BITS / 8 + 15) / 16 * 16;
}

/// Where the scales of a tile's rows lie, a half each as in Rows.
struct Scales {
    const char *halves[2];
};

/// The scales of rows `first` and `second` on, of a matrix of `rows` rows with `k` columns.
GPU_INLINE Scales scales_of(const char *weights, int64_t rows, int64_t k, int64_t first, int64_t second)
{
    const char *at = weights + (rows * weight_stride(k) + 63) / 64 * 64;
    return {{at + first * SCALE_BYTES, at + second * SCALE_BYTES}};
}

/// Starts copying a slot's codes. Rows end with whole 16 bytes, of which those beyond k are zeros.
template <int BLOCK_N> GPU_INLINE void copy_codes(char *to, const Rows &rows, int64_t k, int64_t k_end)
{
    constexpr int EACH = CODE_SLICE / 16; // chunks of a row
    GPU_UNROLL for (int i = 0; i < BLOCK_N * EACH; i += TEAM)
    {
        const int row = (i + team_thread()) / EACH, chunk = (i + team_thread()) % EACH, place = row % rows.half;
        if (BLOCK_N * EACH < TEAM && row >= BLOCK_N)
            return;
        const char *from = row < rows.half ? rows.halves[0].at : rows.halves[1].at;
        const bool there = k + chunk * (128 / CODE_BITS) < k_end &&
                           place < (row < rows.half ? rows.halves[0].count : rows.halves[1].count);
        const char *at = there ? from + place * rows.stride + k * CODE_BITS / 8 + chunk * 16 : rows.halves[0].at;
        gpu::copy_async(to + row * CODE_SLICE + chunk * 16, at, there ? 16 : 0);
    }
}

/// Starts copying the scales of a slot's parts, 16 bytes a thread; those of rows that do not exist become zeros.
template <int BLOCK_N>
GPU_INLINE void copy_scales(char *to, const Scales &scales, const Rows &rows, int64_t k, int64_t k_end)
{
    constexpr int EACH = BLOCK_N * SCALE_BYTES / 16, AT_ONCE = 16 / SCALE_BYTES; // chunks of a part, scales of a chunk
    static_assert(PARTS * EACH <= TEAM, "a chunk a thread at most");
    if (team_thread() >= PARTS * EACH)
        return;
    const int part = team_thread() / EACH, row = team_thread() % EACH * AT_ONCE, place = row % rows.half;
    const bool second = row >= rows.half;
    const int64_t column = k + part * PART;
    const bool there = column < k_end && place < (second ? rows.halves[1].count : rows.halves[0].count);
    const int64_t offset = (column / CODE_BLOCK * CODE_SCALES + place) * SCALE_BYTES;
    const char *at = there ? (second ? scales.halves[1] : scales.halves[0]) + offset : scales.halves[0];
    gpu::copy_async(to + team_thread() * 16, at, there ? 16 : 0);
}

/// The number that the i-th of a word's codes stands for, without its scale.
GPU_INLINE float code_value(uint32_t word, int i)
{
    if (CODES == dtype_fp8_e4m3)
        return e4m3_value(word >> 8 * i & 0xff);
    // twice an E2M1 magnitude is a whole number below 16, a digit of the table
    const uint32_t code = word >> 4 * i & 0xf, twice = 0xc8643210u >> 4 * (code & 7) & 0xf;
    return gpu::number(gpu::bits((float)(int)twice * 0.5f) | (code & 8) << 28);
}

/// 16 bytes of numbers.
GPU_INLINE gpu::Words chunk_of(const float *values)
{
    if constexpr (DTYPE == dtype_f32)
        return {gpu::bits(values[0]), gpu::bits(values[1]), gpu::bits(values[2]), gpu::bits(values[3])};
    else
        return {pair_of<DTYPE>(values[0], values[1]), pair_of<DTYPE>(values[2], values[3]), pair_of<DTYPE>(values[4], values[5]),
                pair_of<DTYPE>(values[6], values[7])};
}

/// Eight codes a thread at a time, to a tile like those that copies make; `MIXED`: eight rows of the tile's first half before
/// eight of its second, and so on.
template <int BLOCK_N, bool MIXED = false> GPU_INLINE void expand(char *to, const char *codes)
{
    constexpr int EACH = SLICE / VECTOR, WIDE = VECTOR / CHUNK_K; // vectors of a row; chunks that one becomes
    GPU_ROLLED for (int i = 0; i < BLOCK_N * EACH; i += TEAM) // unrolled it would need more registers than there are
    {
        const int row = (i + team_thread()) / EACH, place = (i + team_thread()) % EACH;
        const uint32_t *words = (const uint32_t *)(codes + row * CODE_SLICE + place * CODE_BITS);
        const uint32_t first = words[0], second = CODE_BITS == 8 ? words[1] : first >> 16;
        float values[VECTOR];
        GPU_UNROLL for (int j = 0; j < VECTOR / 2; j++)
        {
            values[j] = code_value(first, j);
            values[j + VECTOR / 2] = code_value(second, j);
        }
        const int half = row / (BLOCK_N / 2), within = row % (BLOCK_N / 2);
        const int to_row = MIXED ? within / 8 * 16 + half * 8 + within % 8 : row;
        GPU_UNROLL for (int chunk = 0; chunk < WIDE; chunk++)
            *(gpu::Words *)(to + chunk_at(to_row, place * WIDE + chunk)) = chunk_of(values + chunk * CHUNK_K);
    }
}

/// The scale of a tile's row. 2^-127 is no normal number, and 255 is NaN.
GPU_INLINE float scale_at(const char *scales, int row)
{
    if (SCALE_BYTES == 4)
        return ((const float *)scales)[row];
    const uint32_t exponent = ((const uint8_t *)scales)[row];
    return gpu::number(exponent == 0 ? 0x00400000u : exponent == 255 ? 0x7fc00000u : exponent << 23);
}

/// sums += scale * part, of the first USED blocks of columns; then part may begin anew.
template <int USED, bool CLEAR, int MS, int NS>
GPU_INLINE void add_scaled(Sums<MS, NS> &sums, Sums<MS, NS> &part, const char *scales, int column, int apart)
{
    GPU_UNROLL for (int n = 0; n < USED; n++)
        GPU_UNROLL for (int i = 0; i < 2; i++)
        {
            const int row = column + 8 * n + (n < NS / 2 ? 0 : apart - 4 * NS) + gpu::lane() % 4 * 2 + i;
            const float scale = scale_at(scales, row);
            GPU_UNROLL for (int m = 0; m < MS; m++)
                GPU_UNROLL for (int half = 0; half < 2; half++)
                {
                    float &sum = sums.at[m][n][2 * half + i], &more = part.at[m][n][2 * half + i];
                    sum = gpu::fma(scale, more, sum);
                    if (CLEAR)
                        more = 0;
                }
        }
}

#endif
