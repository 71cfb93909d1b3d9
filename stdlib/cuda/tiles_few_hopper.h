// The matrix product of few rows, at most FEW_ROWS, on sm_90a: operands change places. Products by warpgroups have 64 rows, which
// few rows of A would leave mostly empty; rows of B there are always enough of, and columns go by eights.
//
//   a slot of one slice:        weights [64] [64] | [64] [64]     rows [8 .. 32]       both teams, half and half
//   or of DEEP = 4 of them:     weights [64] x 4 (k 64 each)      rows [8 .. 32] x 4   team 0; team 1 only gives slots back
//
//   a team        wgmma m64n(8 .. 32)k16, transposed sums f32: at[half of B][block of eight rows of A]
//
// Lane l of warp w has of each block: rows 16 w + l / 4 and 8 further of B in [0..1] and [2..3], of A 2 (l % 4) and + 1. What
// the kernels do with sums wants neighbouring rows of B in a thread: they exchange.
//
// Whether a tile has few rows depends on a token's company, which may change none of its bytes. So a sum has to be the same
// whichever operand is on which side: products are commutative, both ways take k in the same steps of 16, or 32 codes,
// from the first on, and within a step tensor cores align all products to the largest and add them at once ("Accurate Models
// of NVIDIA Tensor Cores", arXiv 2512.07004), which knows no order. `make gpu-check` compares both ways' bytes on a chip; if one
// should differ, FEW_ROWS = 0 leaves every tile the other way.
//
// Constants from the compiler: FEW_ROWS.
#ifndef MOE_TILES_FEW_HOPPER_H
#define MOE_TILES_FEW_HOPPER_H

#include "slots_hopper.h"

/// A number of columns, as a type.
template <int COLUMNS_OF> struct Width {
    static constexpr int N = COLUMNS_OF;
};

/// body(the least width for so many rows).
template <class Body> GPU_INLINE void with_width(int64_t rows, Body body)
{
    if (rows <= 8)
        body(Width<8>());
    else if (rows <= 16)
        body(Width<16>());
    else if (rows <= 24)
        body(Width<24>());
    else
        body(Width<32>());
}

/// Halves of B that a team multiplies, when steps take DEEP slices.
template <int DEEP> constexpr int HALVES = DEEP == 1 ? 2 : 1;

/// Whether this thread's team multiplies.
template <int DEEP> GPU_INLINE bool has_part()
{
    return DEEP == 1 || team() == 0;
}

/// Where the j-th slice's boxes of a team lie in a slot.
template <int DEEP> GPU_INLINE const char *boxes_of(const char *slot, int j)
{
    return slot + A_BYTES + (DEEP == 1 ? 2 * team() : j) * BOX_BYTES;
}

/// A team's sums, those of halves and blocks that it has.
using FewSums = Sums<2, FEW_MOST / EIGHT>;

/// Those of N rows of A, while they are added to.
template <int N, int DEEP> using OpenSums = Sums<HALVES<DEEP>, N / EIGHT>;

template <int HALVES_OF, int BLOCKS> GPU_INLINE void end_few(Sums<HALVES_OF, BLOCKS> &sums)
{
    GPU_UNROLL for (int m = 0; m < HALVES_OF; m++) gpu::multiply_end(sums.at[m]);
}

template <int HALVES_OF, int BLOCKS> GPU_INLINE void keep_few(FewSums &sums, const Sums<HALVES_OF, BLOCKS> &open)
{
    GPU_UNROLL for (int m = 0; m < HALVES_OF; m++)
        GPU_UNROLL for (int n = 0; n < BLOCKS; n++)
            GPU_UNROLL for (int i = 0; i < 4; i++) sums.at[m][n][i] = open.at[m][n][i];
}

/// A step's products, `HERE` slices of k, started.
template <int N, int DEEP, int HERE>
GPU_INLINE void multiply_step(OpenSums<N, DEEP> &sums, const char *slot, bool first)
{
    gpu::multiply_begin();
    GPU_UNROLL for (int j = 0; j < HERE; j++)
        GPU_UNROLL for (int k = 0; k < ROW_BYTES; k += 32)
            GPU_UNROLL for (int m = 0; m < HALVES<DEEP>; m++)
                gpu::multiply_group<DTYPE == dtype_f16, N>(
                    sums.at[m], gpu::matrix_k(gpu::matrix_at(boxes_of<DEEP>(slot, j) + m * BOX_BYTES), k),
                    gpu::matrix_k(gpu::matrix_at(slot + j * FEW_BYTES), k), !first || j > 0 || k > 0);
    gpu::multiply_commit();
}

/// Calls step(number of the step, how many slices it has) for all of them.
template <int DEEP, int SLICES, class Step> GPU_INLINE void each_step(Step step)
{
    constexpr int WHOLE = SLICES / DEEP, REST = SLICES % DEEP;
    GPU_ROLLED for (int i = 0; i < WHOLE; i++) step(i, Width<DEEP>());
    if constexpr (REST > 0)
        step(WHOLE, Width<REST>());
}

/// A team's part: N rows of A.
template <int N, int DEEP, int SLICES, class Pipe> GPU_INLINE void multiply_few_slices(const Pipe &pipe, FewSums &sums)
{
    OpenSums<N, DEEP> open;
    end_few(open);
    each_step<DEEP, SLICES>([&](int i, auto here) {
        const uint32_t step = pipe.step + i, s = step % STAGES;
        gpu::barrier_wait(pipe.full + s, step / STAGES & 1);
        if (has_part<DEEP>()) {
            multiply_step<N, DEEP, here.N>(open, gpu::shared() + s * SLOT_BYTES, i == 0);
            gpu::multiply_wait<1>();
        }
        if (i > 0 && gpu::lane() == 0) // the step before is done
            gpu::barrier_arrive(pipe.empty + (step - 1) % STAGES);
    });
    gpu::multiply_wait<0>();
    end_few(open);
    keep_few(sums, open);
    if (gpu::lane() == 0)
        gpu::barrier_arrive(pipe.empty + (pipe.step + (SLICES - 1) / DEEP) % STAGES);
}

/// The whole product over K, for all threads of the block together, as tiles_hopper.h's of many rows.
template <int DEEP, int64_t K, class Pipe> GPU_INLINE void multiply(Pipe &pipe, FewSums &sums, const Left &a, const Right &b)
{
    constexpr int SLICES = (int)((K + SLICE - 1) / SLICE);
    if constexpr (!Pipe::MULTIPLIES) {
        copy_boxes<true, DEEP>(pipe, a, b, SLICES);
    } else {
        with_width(a.count, [&](auto n) { multiply_few_slices<n.N, DEEP, SLICES>(pipe, sums); });
        sync_columns(DEEP > 1);
    }
    pipe.step += (SLICES + DEEP - 1) / DEEP;
}

#endif
