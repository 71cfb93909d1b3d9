// The matrix product that the expert kernels share, by mma.sync: BLOCK_M rows of A times BLOCK_N rows of B, both with k
// along the row, bf16 or f16 (DTYPE) in and f32 sums; f32 by multiply-adds of its own, as no tensor core multiplies it. A block
// of 128 threads; its warps lie 2 x 2 over the tile (2 x 4 where there are 256).
//
//   global memory                      shared memory, STAGES slots                      registers
//   A [rows][k] ---- cp.async ---->  [BLOCK_M][64] | [BLOCK_N][64]  --- ldmatrix --->  mma.sync, sums f32
//   B [rows][k] --------'              slot k / 64 % STAGES                            (f32: k 32, 16-byte loads, fma)
//
// While slot s is multiplied, the next STAGES - 1 are on their way. One barrier a step does two things: the slot that has
// arrived is visible to all, and the slot multiplied in the step before is free for the copy that starts now.
// Rows beyond the tile and k beyond the row are zeros in shared memory. Every sum runs over k in ascending order whatever
// the tile's company, so a row's result does not depend on it.
#ifndef MOE_TILES_H
#define MOE_TILES_H

#include "slices.h"

static_assert(THREADS == 128 || THREADS == 256, "two rows of two or four warps");
constexpr int COLUMN_WARPS = THREADS / 64;

constexpr int TEAMS = 1, TEAM = THREADS; // threads that write to the same columns: all (tiles_hopper.h has two teams)
constexpr int M_STEP = 16;               // rows between a thread's blocks of sums

GPU_INLINE int team()
{
    return 0;
}

GPU_INLINE int team_thread()
{
    return gpu::thread();
}

GPU_INLINE void sync_columns(bool)
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
    return gpu::warp() / COLUMN_WARPS * (BLOCK_M / 2);
}

/// Starts copying k [k, k + SLICE) of a tile's rows.
template <int ROWS_OF_TILE> GPU_INLINE void copy_rows_of(char *to, const Rows &rows, int64_t k, int64_t k_end)
{
    const int chunk = gpu::thread() % CHUNKS;
    const bool inside = k + chunk * CHUNK_K < k_end;
    GPU_UNROLL for (int i = 0; i < ROWS_OF_TILE; i += THREADS / CHUNKS)
    {
        const int row = i + gpu::thread() / CHUNKS, place = row % rows.half;
        const char *from = row < rows.half ? rows.halves[0].at : rows.halves[1].at;
        const bool there = inside && place < (row < rows.half ? rows.halves[0].count : rows.halves[1].count);
        const char *at = there ? from + place * rows.stride + (k + chunk * CHUNK_K) * ELEMENT : rows.halves[0].at;
        gpu::copy_async(to + chunk_at(row, chunk), at, there ? 16 : 0);
    }
}

/// A slot's product without tensor cores: chunk by chunk, a thread multiplies the rows and columns whose sums it has.
template <int MS, int NS, int K>
GPU_INLINE void multiply_exact(Sums<MS, NS> &sums, const char *a, const char *b, int row, int column, int apart, int k_from)
{
    const auto load = [](float(&to)[CHUNK_K], const char *from) {
        const gpu::Words words = *(const gpu::Words *)from;
        to[0] = gpu::number(words.x), to[1] = gpu::number(words.y), to[2] = gpu::number(words.z), to[3] = gpu::number(words.w);
    };
    GPU_ROLLED for (int chunk = k_from / CHUNK_K; chunk < (k_from + K) / CHUNK_K; chunk++)
    {
        float left[2 * MS][CHUNK_K], right[CHUNK_K];
        GPU_UNROLL for (int m = 0; m < 2 * MS; m++) load(left[m], a + chunk_at(row + 8 * m + gpu::lane() / 4, chunk));
        GPU_UNROLL for (int n = 0; n < NS; n++)
            GPU_UNROLL for (int i = 0; i < 2; i++)
            {
                const int from = column + 8 * n + (n < NS / 2 ? 0 : apart - 4 * NS);
                load(right, b + chunk_at(from + gpu::lane() % 4 * 2 + i, chunk));
                GPU_UNROLL for (int m = 0; m < 2 * MS; m++)
                    GPU_UNROLL for (int k = 0; k < CHUNK_K; k++)
                    {
                        float &sum = sums.at[m / 2][n][m % 2 * 2 + i];
                        sum = gpu::fma(left[m][k], right[k], sum);
                    }
            }
    }
}

/// By tensor cores, in steps of 16 k.
template <int MS, int NS, int K>
GPU_INLINE void multiply_by_cores(Sums<MS, NS> &sums, const char *a, const char *b, int row, int column, int apart,
                                  int k_from)
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

/// `K` of a slot's k from `k_from` on, in steps of 16. A warp's columns are blocks of 8 rows of B from `column` on; the second
/// half of them lies `apart` rows further.
template <int MS, int NS, int K = SLICE>
GPU_INLINE void multiply_slot(Sums<MS, NS> &sums, const char *a, const char *b, int row, int column, int apart,
                              int k_from = 0)
{
    if constexpr (DTYPE == dtype_f32)
        multiply_exact<MS, NS, K>(sums, a, b, row, column, apart, k_from);
    else
        multiply_by_cores<MS, NS, K>(sums, a, b, row, column, apart, k_from);
}

/// A product's steps over k through slots of SLOT_BYTES, from the beginning of shared memory: copy(slot, step) starts a
/// step's copies, multiply(slot, step, arrive) calls arrive() once, before it reads what they have brought. Begins with a
/// barrier: what the block read of the slots before, or wrote to global memory after the product before, is over for every
/// thread. Ends with none: every copy has been waited for, and nobody writes a slot before the barrier of the next product.
template <int STAGES, int SLOT_BYTES, class Copy, class Multiply>
GPU_INLINE void through_slots(int steps, const Copy &copy, const Multiply &multiply)
{
    const auto start = [&](int step) {
        if (step < steps)
            copy(gpu::shared() + step % STAGES * SLOT_BYTES, step);
        gpu::copy_async_commit(); // empty where there is nothing to copy: waits count groups
    };
    gpu::sync_block();
    GPU_UNROLL for (int s = 0; s < STAGES - 1; s++) start(s);
    GPU_ROLLED for (int step = 0; step < steps; step++)
    {
        multiply(gpu::shared() + step % STAGES * SLOT_BYTES, step, [&] {
            gpu::copy_async_wait<STAGES - 2>();
            gpu::sync_block(); // the slot has arrived for all; the one before has been read
            start(step + STAGES - 1);
        });
    }
}

/// The whole product over k.
template <int BLOCK_M, int BLOCK_N, int STAGES, int MS, int NS>
GPU_INLINE void multiply(Sums<MS, NS> &sums, const Rows &a, const Rows &b, int64_t k_end, int row, int column, int apart)
{
    constexpr int A_BYTES = BLOCK_M * ROW_BYTES, SLOT_BYTES = A_BYTES + BLOCK_N * ROW_BYTES;
    clear_sums(sums);
    const auto copy = [&](char *slot, int step) {
        copy_rows_of<BLOCK_M>(slot, a, (int64_t)step * SLICE, k_end);
        copy_rows_of<BLOCK_N>(slot + A_BYTES, b, (int64_t)step * SLICE, k_end);
    };
    through_slots<STAGES, SLOT_BYTES>((int)((k_end + SLICE - 1) / SLICE), copy, [&](const char *slot, int, const auto &arrive) {
        arrive();
        multiply_slot(sums, slot, slot + A_BYTES, row, column, apart);
    });
}

#endif
