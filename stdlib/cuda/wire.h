// Rows in wire formats: E4M3 codes in blocks of 64 or 128 along the row, then a scale for each block, f32 or a power of two
// (ue8m0). The arithmetic is the CPU backend's, so the bytes are too: maxima are taken of integers, the one division is IEEE's,
// rounding is to nearest even, NaN is a code of its own and leaves its neighbours alone.
#ifndef MOE_WIRE_H
#define MOE_WIRE_H

#include "rows.h"

constexpr int PACKED = 16; // elements that a lane packs: 16 codes are stored at once

/// The code of a scaled value: to nearest even, beyond 448 saturating.
GPU_INLINE uint32_t e4m3_of(float value)
{
    const uint32_t bits = gpu::bits(value), sign = bits >> 24 & 0x80;
    uint32_t magnitude = bits & 0x7fffffffu;
    magnitude = magnitude > 0x43e00000u ? 0x43e00000u : magnitude; // 448
    const uint32_t normal = (magnitude + (magnitude >> 20 & 1) + 0x7ffffu - 0x3c000000u) >> 20;
    // below 2^-6 the addition of 2^14 rounds to multiples of 2^-9, the unit of subnormals
    const uint32_t small = gpu::bits(gpu::number(magnitude) + 0x1p14f) - 0x46800000u;
    const uint32_t code = (magnitude < 0x3c800000u ? small : normal) | sign;
    return value != value ? 0x7fu : code;
}

/// Eight elements of a row in any format, as f32. A code as moe_wire_code makes it.
template <int64_t FORMAT, int64_t WIDTH_OF_ROW> GPU_INLINE void load_wire(float (&to)[VECTOR], const char *row, int64_t column)
{
    constexpr int dtype = (int)(FORMAT & 0xff), scale_type = (int)(FORMAT >> 8 & 0xff);
    constexpr int64_t block = FORMAT >> 16;
    if constexpr (dtype != dtype_fp8_e4m3) {
        load_vector<dtype>(to, row + bytes_of(dtype, column));
    } else {
        const gpu::Pair codes = *(const gpu::Pair *)(row + column);
        // a record is padded to 8 bytes, so the eight that a scale lies in are there
        const int64_t at = column / block * (scale_type == scale_type_f32 ? 4 : 1);
        const gpu::Pair scales = *(const gpu::Pair *)(row + WIDTH_OF_ROW + at / 8 * 8);
        const uint32_t word = at % 8 < 4 ? scales.x : scales.y;
        const float scale = gpu::number(scale_type == scale_type_f32 ? word : (word >> at % 4 * 8 & 0xff) << 23);
        const uint32_t words[2] = {codes.x, codes.y};
        GPU_UNROLL for (int i = 0; i < VECTOR; i++) to[i] = e4m3_value(words[i / 4] >> i % 4 * 8 & 0xff) * scale;
    }
}

/// The factor that brings a block into E4M3's range, from its largest magnitude; `scale`: what undoes it, as stored.
template <int SCALE_TYPE> GPU_INLINE float block_factor(uint32_t largest, uint32_t &scale)
{
    const uint32_t least = gpu::bits(1e-4f);
    const float most = gpu::number(largest > least ? largest : least), exact = most * (1 / 448.0f);
    if (SCALE_TYPE == scale_type_f32) {
        scale = gpu::bits(exact);
        return 448.0f / most;
    }
    const uint32_t bits = gpu::bits(exact), exponent = (bits >> 23) + ((bits & 0x7fffff) != 0 ? 1 : 0);
    scale = exponent;
    return gpu::number((254 - exponent) << 23);
}

/// A stored scale as an f32, in bits.
template <int SCALE_TYPE> GPU_INLINE uint32_t stored_scale(uint32_t scale)
{
    return SCALE_TYPE == scale_type_f32 ? scale : scale << 23;
}

GPU_INLINE uint32_t four_codes(const float *values, float factor)
{
    return e4m3_of(values[0] * factor) | e4m3_of(values[1] * factor) << 8 | e4m3_of(values[2] * factor) << 16 |
           e4m3_of(values[3] * factor) << 24;
}

/// A row's scales on their way to memory: a warp packs STEP elements at a time and has SCALE_WORDS words of scales of them,
/// each lane keeps a pair of words and stores it when all lanes have theirs. The rest of the last pair is zeros.
template <int BLOCK, int SCALE_TYPE, int64_t WIDTH_OF_ROW> struct RowScales {
    static constexpr int STEP = gpu::WARP * PACKED, LANES = BLOCK / PACKED; // lanes that share a block
    static constexpr bool IN_BYTES = SCALE_TYPE == scale_type_ue8m0;
    static constexpr int SCALE_WORDS = STEP / BLOCK / (IN_BYTES ? 4 : 1), STEPS = 2 * gpu::WARP / SCALE_WORDS;
    static constexpr int64_t BYTES = (WIDTH_OF_ROW + BLOCK - 1) / BLOCK * (IN_BYTES ? 1 : 4);
    uint32_t kept[2];
};

/// Takes in a step's scales, each in the lanes of its block; 0 of blocks that there are not.
template <int BLOCK, int SCALE_TYPE, int64_t WIDTH_OF_ROW>
GPU_INLINE void keep_scales(RowScales<BLOCK, SCALE_TYPE, WIDTH_OF_ROW> &row, char *scales, int step, uint32_t scale, bool last)
{
    using Row = RowScales<BLOCK, SCALE_TYPE, WIDTH_OF_ROW>;
    uint32_t word = 0; // lane l: the step's l-th
    GPU_UNROLL for (int i = 0; i < (Row::IN_BYTES ? 4 : 1); i++)
    {
        const int number = Row::IN_BYTES ? 4 * gpu::lane() + i : gpu::lane();
        word |= gpu::shuffle(scale, number * Row::LANES % gpu::WARP) << 8 * i;
    }
    GPU_UNROLL for (int i = 0; i < 2; i++)
    {
        const int from = 2 * gpu::lane() + i - step % Row::STEPS * Row::SCALE_WORDS;
        const uint32_t got = gpu::shuffle(word, from & (gpu::WARP - 1));
        row.kept[i] = from >= 0 && from < Row::SCALE_WORDS ? got : row.kept[i];
    }
    if (!last && (step + 1) % Row::STEPS != 0)
        return;
    const int64_t at = (step / Row::STEPS * gpu::WARP + gpu::lane()) * 8;
    if (at < Row::BYTES)
        *(gpu::Pair *)(scales + at) = {row.kept[0], row.kept[1]};
    row.kept[0] = row.kept[1] = 0;
}

/// Packs a row, in one warp: BLOCK / 16 lanes share a block, whose maximum they find by exchanges. Values are rounded to
/// BETWEEN first, if to anything. MULTIPLIED: for the tensor cores (fp8.h), not for the wire; scales are f32 then.
template <int DTYPE, int BLOCK, int SCALE_TYPE, int64_t WIDTH_OF_ROW, int BETWEEN, bool MULTIPLIED>
GPU_INLINE void pack_row(char *to, const char *from)
{
    char *scales = to + (MULTIPLIED ? codes_bytes(WIDTH_OF_ROW) : WIDTH_OF_ROW);
    constexpr int STEPS = (int)((WIDTH_OF_ROW + gpu::WARP * PACKED - 1) / (gpu::WARP * PACKED));
    RowScales<BLOCK, MULTIPLIED ? (int)scale_type_f32 : SCALE_TYPE, WIDTH_OF_ROW> kept = {};
    for (int step = 0; step < STEPS; step++) {
        const int64_t column = (int64_t)step * gpu::WARP * PACKED + gpu::lane() * PACKED, left = WIDTH_OF_ROW - column;
        float values[PACKED] = {};
        GPU_UNROLL for (int half = 0; half < 2; half++)
            if (left > half * VECTOR) {
                float(&vector)[VECTOR] = *(float(*)[VECTOR])(values + half * VECTOR);
                load_vector<DTYPE>(vector, from + bytes_of(DTYPE, column + half * VECTOR));
                round_vector<BETWEEN>(vector);
            }
        uint32_t largest = 0, scale;
        GPU_UNROLL for (int i = 0; i < PACKED; i++)
        {
            const uint32_t magnitude = gpu::bits(values[i]) & 0x7fffffffu;
            largest = magnitude < 0x7f800000u && magnitude > largest ? magnitude : largest;
        }
        GPU_UNROLL for (int mask = BLOCK / PACKED / 2; mask > 0; mask /= 2)
        {
            const uint32_t other = gpu::shuffle_xor(largest, mask);
            largest = other > largest ? other : largest;
        }
        const float factor = block_factor<SCALE_TYPE>(largest, scale);
        const gpu::Words codes = {four_codes(values, factor), four_codes(values + 4, factor), four_codes(values + 8, factor),
                                  four_codes(values + 12, factor)};
        if (left >= PACKED)
            *(gpu::Words *)(to + column) = codes;
        else if (left > 0)
            *(gpu::Pair *)(to + column) = {codes.x, codes.y};
        scale = MULTIPLIED ? stored_scale<SCALE_TYPE>(scale) : scale;
        keep_scales(kept, scales, step, column / BLOCK * BLOCK < WIDTH_OF_ROW ? scale : 0, step == STEPS - 1);
    }
}

/// From the wire to the tensor cores, in the same blocks.
template <int BLOCK, int SCALE_TYPE, int64_t WIDTH_OF_ROW> GPU_INLINE void copy_codes_of_row(char *to, const char *from)
{
    for (int64_t column = gpu::lane() * PACKED; column < WIDTH_OF_ROW; column += gpu::WARP * PACKED) {
        if (WIDTH_OF_ROW - column >= PACKED)
            *(gpu::Words *)(to + column) = *(const gpu::Words *)(from + column);
        else
            *(gpu::Pair *)(to + column) = *(const gpu::Pair *)(from + column);
    }
    // a lane two scales at a time; a record is padded to 8 bytes, so the eight that they lie in are there
    constexpr bool f32 = SCALE_TYPE == scale_type_f32;
    for (int64_t i = 2 * gpu::lane(); i * BLOCK < WIDTH_OF_ROW; i += 2 * gpu::WARP) {
        const gpu::Pair stored = *(const gpu::Pair *)(from + WIDTH_OF_ROW + (f32 ? i * 4 : i / 8 * 8));
        const uint32_t word = i % 8 < 4 ? stored.x : stored.y, two = word >> i % 4 * 8;
        const uint32_t first = f32 ? stored.x : two & 0xff, second = f32 ? stored.y : two >> 8 & 0xff;
        *(gpu::Pair *)(to + codes_bytes(WIDTH_OF_ROW) + i * 4) = {
            stored_scale<SCALE_TYPE>(first), (i + 1) * BLOCK < WIDTH_OF_ROW ? stored_scale<SCALE_TYPE>(second) : 0};
    }
}

#endif
