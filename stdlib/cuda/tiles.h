// The matrix product that the expert kernels share, by mma.sync: BLOCK_M rows of A times BLOCK_N rows of B, both with k
// along the row, bf16 or f16 (DTYPE) in and f32 sums. A block of 128 threads; its warps lie 2 x 2 over the tile.
//
//   global memory                      shared memory, STAGES slots                      registers
//   A [rows][k] ---- cp.async ---->  [BLOCK_M][64] | [BLOCK_N][64]  --- ldmatrix --->  mma.sync, sums f32
//   B [rows][k] --------'              slot k / 64 % STAGES
//
// While slot s is multiplied, the next STAGES - 1 are on their way. One barrier a step does two things: the slot that has
// arrived is visible to all, and the slot multiplied in the step before is free for the copy that starts now.
// Rows beyond the tile and k beyond the row are zeros in shared memory. Every sum runs over k in ascending order whatever
// the tile's company, so a row's result does not depend on it.
#ifndef MOE_TILES_H
#define MOE_TILES_H

#include "numbers.h"

static_assert(THREADS == 128, "four warps");
constexpr int SLICE = 64;              // k of a slot
constexpr int ROW_BYTES = SLICE * 2;   // of a row in a slot: eight chunks of 16 bytes
constexpr int CHUNKS = ROW_BYTES / 16;

/// Rows in global memory; those that do not exist read as zeros. The rows of a tile may come from two places, a half each.
struct Rows {
    struct {
        const char *at;
        int count; // rows that exist
    } halves[2];
    int64_t stride;
    int half; // rows of the tile that belong to the first; a tile may have no second
};

/// A warp's part of the tile: MS blocks of 16 rows, NS blocks of 8 columns. Lane l has of each block: rows l / 4 and
/// l / 4 + 8 in [0..1] and [2..3], columns 2 (l % 4) and + 1.
template <int MS, int NS> struct Sums {
    float at[MS][NS][4];
};

constexpr int TEAMS = 1, TEAM = THREADS; // threads that write to the same columns: all (tiles_hopper.h has two teams)
constexpr int M_STEP = 16;               // rows between a thread's blocks of sums

GPU_INLINE int team()
{
    return 0;
}

GPU_INLINE void sync_team()
{
    gpu::sync_block();
}

/// What lasts from one product to the next: nothing. All threads multiply.
struct Pipeline {
    static constexpr bool MULTIPLIES = true;
};

template <class Body> GPU_INLINE void with_pipeline(Body body)
{
    body(Pipeline{});
}

/// Where a thread's sums begin among the tile's rows.
GPU_INLINE int first_row()
{
    return gpu::warp() / 2 * (BLOCK_M / 2);
}

/// Where a row's chunk lies in a slot: chunks are permuted by row, so that neither copies nor ldmatrix meet in a bank.
GPU_INLINE int chunk_at(int row, int chunk)
{
    return row * ROW_BYTES + ((chunk ^ (row & (CHUNKS - 1))) << 4);
}

/// Starts copying k [k, k + SLICE) of a tile's rows.
template <int ROWS_OF_TILE> GPU_INLINE void copy_rows_of(char *to, const Rows &rows, int64_t k, int64_t k_end)
{
    const int chunk = gpu::thread() % CHUNKS;
    const bool inside = k + chunk * 8 < k_end;
    GPU_UNROLL for (int i = 0; i < ROWS_OF_TILE; i += THREADS / CHUNKS)
    {
        const int row = i + gpu::thread() / CHUNKS, place = row % rows.half;
        const char *from = row < rows.half ? rows.halves[0].at : rows.halves[1].at;
        const bool there = inside && place < (row < rows.half ? rows.halves[0].count : rows.halves[1].count);
        const char *at = there ? from + place * rows.stride + (k + chunk * 8) * 2 : rows.halves[0].at;
        gpu::copy_async(to + chunk_at(row, chunk), at, there ? 16 : 0);
    }
}

template <int MS, int NS> GPU_INLINE void clear_sums(Sums<MS, NS> &sums)
{
    GPU_UNROLL for (int m = 0; m < MS; m++)
        GPU_UNROLL for (int n = 0; n < NS; n++)
            GPU_UNROLL for (int i = 0; i < 4; i++) sums.at[m][n][i] = 0;
}

/// `K` of a slot's k from `k_from` on, in steps of 16. A warp's columns are blocks of 8 rows of B from `column` on; the second
/// half of them lies `apart` rows further.
template <int MS, int NS, int K = SLICE>
GPU_INLINE void multiply_slot(Sums<MS, NS> &sums, const char *a, const char *b, int row, int column, int apart,
                              int k_from = 0)
{
    const int lane = gpu::lane();
    GPU_UNROLL for (int k = k_from / 16; k < (k_from + K) / 16; k++)
    {
        uint32_t left[MS][4], right[NS / 2][4];
        GPU_UNROLL for (int m = 0; m < MS; m++)
            gpu::load_matrices(left[m], a + chunk_at(row + 16 * m + lane % 16, 2 * k + lane / 16));
        GPU_UNROLL for (int n = 0; n < NS / 2; n++)
        {
            const int from = column + 16 * n + (n < NS / 4 ? 0 : apart - 4 * NS);
            gpu::load_matrices(right[n], b + chunk_at(from + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
        }
        GPU_UNROLL for (int m = 0; m < MS; m++)
            GPU_UNROLL for (int n = 0; n < NS; n++)
                gpu::multiply<DTYPE == dtype_f16>(sums.at[m][n], left[m], right[n / 2][n % 2 * 2],
                                                  right[n / 2][n % 2 * 2 + 1]);
    }
}

/// The whole product over k. Begins with a barrier: what the block read of the slots before, or wrote to global memory
/// after the product before, is over for every thread.
template <int BLOCK_M, int BLOCK_N, int STAGES, int MS, int NS>
GPU_INLINE void multiply(Sums<MS, NS> &sums, const Rows &a, const Rows &b, int64_t k_end, int row, int column, int apart)
{
    constexpr int A_BYTES = BLOCK_M * ROW_BYTES, SLOT_BYTES = A_BYTES + BLOCK_N * ROW_BYTES;
    const int steps = (int)((k_end + SLICE - 1) / SLICE);
    clear_sums(sums);
    gpu::sync_block();
    GPU_UNROLL for (int s = 0; s < STAGES - 1; s++)
    {
        if (s < steps) {
            copy_rows_of<BLOCK_M>(gpu::shared() + s * SLOT_BYTES, a, (int64_t)s * SLICE, k_end);
            copy_rows_of<BLOCK_N>(gpu::shared() + s * SLOT_BYTES + A_BYTES, b, (int64_t)s * SLICE, k_end);
        }
        gpu::copy_async_commit();
    }
    GPU_ROLLED for (int step = 0; step < steps; step++)
    {
        gpu::copy_async_wait<STAGES - 2>();
        gpu::sync_block();
        const int next = step + STAGES - 1;
        if (next < steps) {
            char *slot = gpu::shared() + next % STAGES * SLOT_BYTES;
            copy_rows_of<BLOCK_M>(slot, a, (int64_t)next * SLICE, k_end);
            copy_rows_of<BLOCK_N>(slot + A_BYTES, b, (int64_t)next * SLICE, k_end);
        }
        gpu::copy_async_commit();
        const char *slot = gpu::shared() + step % STAGES * SLOT_BYTES;
        multiply_slot(sums, slot, slot + A_BYTES, row, column, apart);
    }
    // no barrier here: every copy has been waited for, and nobody writes a slot before the barrier that the next product
    // begins with
}

#endif
