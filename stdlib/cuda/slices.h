// What the matrix products of every chip share: operands lie in slots of shared memory, rows of 128 bytes of k each, and
// their sums in registers.
#ifndef MOE_SLICES_H
#define MOE_SLICES_H

#include "numbers.h"

constexpr bool CODED = ARITHMETIC != 0, EXPANDED = CODES != dtype_none && !CODED; // weights as codes: multiplied so, or widened
constexpr int ELEMENT = (int)bytes_of(DTYPE, 1);
constexpr int ROW_BYTES = 128, CHUNKS = ROW_BYTES / 16; // of a row in a slot: eight chunks of 16 bytes
constexpr int SLICE = ROW_BYTES / ELEMENT;              // k of a slot
constexpr int CHUNK_K = 16 / ELEMENT;                   // and of a chunk

/// Rows in global memory; those that do not exist read as zeros. The rows of a tile may come from two places, a half each.
struct Rows {
    struct {
        const char *at;
        int count; // rows that exist
    } halves[2];
    int64_t stride;
    int half; // rows of the tile that belong to the first; a tile may have no second
};

/// A thread's part of a tile, blocks of 8 columns by MS blocks of rows. Lane l has of each block: rows l / 4 and l / 4 + 8 in
/// [0..1] and [2..3], columns 2 (l % 4) and + 1.
template <int MS, int NS> struct Sums {
    float at[MS][NS][4];
};

template <int MS, int NS> GPU_INLINE void clear_sums(Sums<MS, NS> &sums)
{
    GPU_UNROLL for (int m = 0; m < MS; m++)
        GPU_UNROLL for (int n = 0; n < NS; n++)
            GPU_UNROLL for (int i = 0; i < 4; i++) sums.at[m][n][i] = 0;
}

/// Where a row's chunk lies in a slot: chunks are permuted by row, so that neither copies nor ldmatrix meet in a bank.
GPU_INLINE int chunk_at(int row, int chunk)
{
    return row * ROW_BYTES + ((chunk ^ (row & (CHUNKS - 1))) << 4);
}

#endif
