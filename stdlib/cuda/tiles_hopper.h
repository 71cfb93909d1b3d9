// The matrix product that the expert kernels share on sm_90a: 128 rows of A times 256 rows of B, both with k along the
// row, bf16 or f16 (DTYPE) in and f32 sums. One block on a multiprocessor: two teams of four warps that multiply, and a third
// that copies (slots_hopper.h). A tile of few rows is multiplied the other way round (tiles_few_hopper.h).
//
//   a slot          rows [64] [64]  (k 64 each)                  weights [64] [64] | [64] [64]
//                          |   '----------------.                first and second half of team 0 | team 1
//                          v                    v                                |
//   a team   wgmma m64n128k16, sums f32   and once more when there are more than 64 rows
//
// While a step's products run, the one before is waited for and its slot given back. Every sum runs over k in ascending order
// whatever the tile's company, in steps of 16 k whatever its width.
#ifndef MOE_TILES_HOPPER_H
#define MOE_TILES_HOPPER_H

#include "tiles_few_hopper.h"

/// A team's part: `BLOCKS` blocks of 64 rows, N columns.
template <int BLOCKS, int N, class Pipe> GPU_INLINE void multiply_slices(const Pipe &pipe, TileSums &sums, int steps)
{
    GPU_UNROLL for (int m = 0; m < BLOCKS; m++) gpu::multiply_end(sums.at[m]);
    GPU_ROLLED for (int i = 0; i < steps; i++)
    {
        const uint32_t step = pipe.step + i, s = step % STAGES;
        const char *slot = gpu::shared() + s * SLOT_BYTES;
        gpu::barrier_wait(pipe.full + s, step / STAGES & 1);
        gpu::multiply_begin();
        GPU_UNROLL for (int k = 0; k < ROW_BYTES; k += 32)
            GPU_UNROLL for (int m = 0; m < BLOCKS; m++)
                gpu::multiply_group<DTYPE == dtype_f16, N>(
                    sums.at[m], gpu::matrix_k(gpu::matrix_at(slot + m * BOX_BYTES), k),
                    gpu::matrix_k(gpu::matrix_at(slot + A_BYTES + team() * N * ROW_BYTES), k), i > 0 || k > 0);
        gpu::multiply_commit();
        gpu::multiply_wait<1>();
        if (i > 0 && gpu::lane() == 0) // the step before is done
            gpu::barrier_arrive(pipe.empty + (step - 1) % STAGES);
    }
    gpu::multiply_wait<0>();
    GPU_UNROLL for (int m = 0; m < BLOCKS; m++) gpu::multiply_end(sums.at[m]);
    if (gpu::lane() == 0)
        gpu::barrier_arrive(pipe.empty + (pipe.step + steps - 1) % STAGES);
}

/// The whole product over K, for all threads of the block together. Holds a barrier of those that write to the same
/// columns: what they wrote to global memory before is over for each of them.
template <int DEEP, int64_t K, class Pipe> GPU_INLINE void multiply(Pipe &pipe, TileSums &sums, const Left &a, const Right &b)
{
    constexpr int SLICES = (int)((K + SLICE - 1) / SLICE);
    if constexpr (!Pipe::MULTIPLIES) {
        copy_boxes<false, 1>(pipe, a, b, SLICES);
    } else {
        if (b.narrow)
            multiply_slices<1, NARROW>(pipe, sums, SLICES);
        else if (a.count > BOX_ROWS)
            multiply_slices<2, 8 * NS>(pipe, sums, SLICES);
        else
            multiply_slices<1, 8 * NS>(pipe, sums, SLICES);
        sync_columns(DEEP > 1 && b.narrow);
    }
    pipe.step += SLICES;
}

#endif
