// The matrix product with weights as they are stored: codes with scales (codes.h), or, without codes, tiles.h's.
//
//   global memory                         shared memory, STAGES slots                       one tile
//   A [rows][k]         -- cp.async -->  [BLOCK_M][64]  --------------- ldmatrix ---------------.
//   codes [rows][k]     -- cp.async -->  [BLOCK_N][64] -- expand --> [BLOCK_N][64] - ldmatrix --+--> mma.sync, part f32
//   scales [k / block][rows] cp.async -> [PARTS][BLOCK_N] ---------------------------------.    |
//                                                                                          v    v
//                                                               after each block of k: sums += scale * part
#ifndef MOE_TILES_CODES_H
#define MOE_TILES_CODES_H

#include "tiles.h"

#include "codes.h"

/// tiles.h's multiply, with a tile of codes and scales in the place of B.
template <int BLOCK_M, int BLOCK_N, int STAGES, int MS, int NS>
GPU_INLINE void multiply_codes(Sums<MS, NS> &sums, const Rows &a, const Rows &b, const Scales &scales, int64_t k_end,
                               int row, int column, int apart)
{
    constexpr int CODES_AT = BLOCK_M * ROW_BYTES, SCALES_AT = CODES_AT + BLOCK_N * CODE_SLICE;
    constexpr int SLOT_BYTES = SCALES_AT + PARTS * BLOCK_N * SCALE_BYTES;
    static_assert(STAGES * SLOT_BYTES + BLOCK_N * ROW_BYTES <= SHARED_BYTES, "the compiler counts the same memory");
    char *wide = gpu::shared() + STAGES * SLOT_BYTES;
    Sums<MS, NS> part;
    clear_sums(sums);
    clear_sums(part);
    const auto copy = [&](char *slot, int step) {
        const int64_t k = (int64_t)step * SLICE;
        copy_rows_of<BLOCK_M>(slot, a, k, k_end);
        copy_codes<BLOCK_N>(slot + CODES_AT, b, k, k_end);
        copy_scales<BLOCK_N>(slot + SCALES_AT, scales, b, k, k_end);
    };
    through_slots<STAGES, SLOT_BYTES>((int)((k_end + SLICE - 1) / SLICE), copy, [&](const char *slot, int, const auto &arrive) {
        arrive(); // and the wide tile has been read
        expand<BLOCK_N>(wide, slot + CODES_AT);
        gpu::sync_block(); // the wide tile is whole
        GPU_UNROLL for (int p = 0; p < PARTS; p++)
        {
            multiply_slot<MS, NS, PART>(part, slot, wide, row, column, apart, p * PART);
            add_scaled<NS, true>(sums, part, slot + SCALES_AT + p * BLOCK_N * SCALE_BYTES, column, apart);
        }
    });
}

/// The product with weights as they are stored.
template <int BLOCK_M, int BLOCK_N, int STAGES, int MS, int NS>
GPU_INLINE void multiply_weights(Sums<MS, NS> &sums, const Rows &a, const Rows &b, const Scales &scales, int64_t k_end,
                                 int row, int column, int apart)
{
    if constexpr (CODES == dtype_none)
        multiply<BLOCK_M, BLOCK_N, STAGES>(sums, a, b, k_end, row, column, apart);
    else
        multiply_codes<BLOCK_M, BLOCK_N, STAGES>(sums, a, b, scales, k_end, row, column, apart);
}

#endif
