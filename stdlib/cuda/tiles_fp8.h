// The matrix product of FP8 arithmetic (fp8.h) by mma.sync: BLOCK_M rows of A times BLOCK_N rows of B, both E4M3 codes with k
// along the row. Slots, copies and fragments are those of tiles.h, whose 64 k of 16 bits are 128 k here.
//
//   global memory                     shared memory, STAGES slots                        registers
//   A [rows][k] ---- cp.async --->  [BLOCK_M][128] | [BLOCK_N][128]  --- ldmatrix --->  mma.sync, part of 128 k
//   B [rows][k] --------'             slot k / 128 % STAGES                                       |
//   scales of rows and weights ----------------------------------------------------->  sums += scales * part
//
// A part lives for eight columns of the warp's tile alone, so that parts take few registers beside the sums.
//
// Chips without FP8 tensor cores (NATIVE_CODES, a constant from the compiler) widen the fragments to f16 in registers: a code
// without its sign, shifted left by seven bits, is the f16 of 2^-8 times its number, subnormals included. Two products of
// 16 k then take the words of one of 32, in another order of k on both sides.
#ifndef MOE_TILES_FP8_H
#define MOE_TILES_FP8_H

#include "fp8.h"
#include "tiles_codes.h"

constexpr int CODE_CHUNK = 16, CODED_SLICE = CHUNKS * CODE_CHUNK; // codes of a chunk, k of a slot
constexpr float UNDONE = NATIVE_CODES ? 1.0f : 0x1p16f;           // what widened products are multiplied with
static_assert(CODED_SLICE == ROW_BLOCK || !CODED, "a slot is a block");

/// Barrier of all threads that multiply.
GPU_INLINE void sync_multiplying()
{
    gpu::sync_block();
}

/// Starts copying k [k, k + CODED_SLICE) of a tile's rows, as copy_rows_of. The last chunk of a row may be half of one.
template <int ROWS_OF_TILE> GPU_INLINE void copy_coded_rows(char *to, const Rows &rows, int64_t k, int64_t k_end)
{
    const int chunk = gpu::thread() % CHUNKS;
    const int64_t left = k_end - k - chunk * CODE_CHUNK;
    const int whole = left >= CODE_CHUNK ? CODE_CHUNK : left > 0 ? (int)left : 0;
    GPU_UNROLL for (int i = 0; i < ROWS_OF_TILE; i += THREADS / CHUNKS)
    {
        const int row = i + gpu::thread() / CHUNKS, place = row % rows.half;
        const char *from = row < rows.half ? rows.halves[0].at : rows.halves[1].at;
        const bool there = whole > 0 && place < (row < rows.half ? rows.halves[0].count : rows.halves[1].count);
        const char *at = there ? from + place * rows.stride + k + chunk * CODE_CHUNK : rows.halves[0].at;
        gpu::copy_async(to + chunk_at(row, chunk), at, there ? whole : 0);
    }
}

/// Two codes, the lower of a word or the upper, as f16 times 2^-8. NaN stays NaN.
GPU_INLINE uint32_t widened(uint32_t codes, bool upper)
{
    const uint32_t two = upper ? codes >> 16 : codes, apart = (two & 0xff) | (two & 0xff00) << 8;
    const uint32_t magnitude = apart & 0x7f007f, nan = (magnitude + 0x10001 & 0x800080) >> 7;
    return magnitude << 7 | (apart & 0x800080) << 8 | nan * 0x7e00;
}

/// d += A B, of 32 k.
GPU_INLINE void multiply_words(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if constexpr (NATIVE_CODES) {
        gpu::multiply_codes(d, a, b0, b1);
    } else {
        GPU_UNROLL for (int i = 0; i < 2; i++) // k 0 .. 15, then 16 .. 31
        {
            const uint32_t b = i ? b1 : b0;
            const uint32_t halves[4] = {widened(a[2 * i], false), widened(a[2 * i + 1], false), widened(a[2 * i], true),
                                        widened(a[2 * i + 1], true)};
            gpu::multiply<true>(d, halves, widened(b, false), widened(b, true));
        }
    }
}

/// A slot's products, two blocks of eight columns after two.
template <int MS, int NS>
GPU_INLINE void multiply_coded_slot(Sums<MS, NS> &sums, const char *a, const char *b, int row, int column, int apart,
                                    const float (&rows)[MS][2], const float (&columns)[2])
{
    constexpr int STEPS = ROW_BYTES / 32;
    const int lane = gpu::lane();
    uint32_t left[STEPS][MS][4];
    GPU_UNROLL for (int k = 0; k < STEPS; k++)
        GPU_UNROLL for (int m = 0; m < MS; m++)
            gpu::load_matrices(left[k][m], a + chunk_at(row + 16 * m + lane % 16, 2 * k + lane / 16));
    GPU_UNROLL for (int n = 0; n < NS / 2; n++)
    {
        const int from = column + 16 * n + (n < NS / 4 ? 0 : apart - 4 * NS);
        float part[MS][2][4] = {};
        GPU_UNROLL for (int k = 0; k < STEPS; k++)
        {
            uint32_t right[4];
            gpu::load_matrices(right, b + chunk_at(from + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
            GPU_UNROLL for (int m = 0; m < MS; m++)
                GPU_UNROLL for (int i = 0; i < 2; i++)
                    multiply_words(part[m][i], left[k][m], right[2 * i], right[2 * i + 1]);
        }
        GPU_UNROLL for (int m = 0; m < MS; m++)
            GPU_UNROLL for (int i = 0; i < 2; i++)
                promote(sums.at[m][2 * n + i], part[m][i], rows[m], columns[n < NS / 4 ? 0 : 1]);
    }
}

/// The whole product over k, as tiles.h's multiply.
template <int BLOCK_M, int BLOCK_N, int STAGES, int MS, int NS>
GPU_INLINE void multiply_coded(Sums<MS, NS> &sums, const Rows &a, const Rows &b, const Factors &factors, int64_t k_end,
                                    int row, int column, int apart)
{
    constexpr int A_BYTES = BLOCK_M * ROW_BYTES, SLOT_BYTES = A_BYTES + BLOCK_N * ROW_BYTES;
    static_assert(STAGES * SLOT_BYTES <= SHARED_BYTES, "the compiler counts the same memory");
    const int steps = (int)((k_end + CODED_SLICE - 1) / CODED_SLICE);
    clear_sums(sums);
    const auto copy = [&](char *slot, int step) {
        copy_coded_rows<BLOCK_M>(slot, a, (int64_t)step * CODED_SLICE, k_end);
        copy_coded_rows<BLOCK_N>(slot + A_BYTES, b, (int64_t)step * CODED_SLICE, k_end);
    };
    through_slots<STAGES, SLOT_BYTES>(steps, copy, [&](const char *slot, int step, const auto &arrive) {
        float rows[MS][2], columns[2]; // on their way while the slot arrives
        GPU_UNROLL for (int i = 0; i < 2; i++)
        {
            columns[i] = column_factor(factors, i, step) * UNDONE;
            GPU_UNROLL for (int m = 0; m < MS; m++)
                rows[m][i] = row_factor(factors, row + 16 * m + gpu::lane() / 4 + 8 * i, step);
        }
        arrive();
        multiply_coded_slot(sums, slot, slot + A_BYTES, row, column, apart, rows, columns);
    });
}

#endif
