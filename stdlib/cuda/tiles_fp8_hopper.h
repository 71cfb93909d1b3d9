// The matrix product of FP8 arithmetic (fp8.h) on sm_90a: slots, copies and barriers are those of tiles_hopper.h, whose boxes
// of 64 k of 16 bits are 128 k of codes here.
//
//   team 2                    shared memory, STAGES slots                 teams 0 and 1
//   A, B codes --- TMA --->   [128][128] | [64][128] x 4 --------------->  wait full[s]
//   scales of rows and weights, from global memory ---------------------->  4 parts in turn, of 64 rows by 64 columns:
//                                                                             wgmma m64n64k32 x 4, part f32
//                                                                             wait; sums += scales * part
//                                                                           arrive at empty[s]
//
// A part is waited for before it is added, and there are no registers for a second one: it is the other team whose products
// run meanwhile.
#ifndef MOE_TILES_FP8_HOPPER_H
#define MOE_TILES_FP8_HOPPER_H

#include "fp8.h"
#include "tiles_codes_hopper.h"

/// A team's part: `BLOCKS` blocks of 64 rows, N columns.
template <int BLOCKS, int N, class Pipe>
GPU_INLINE void multiply_coded_slices(const Pipe &pipe, TileSums &sums, const Factors &factors, int steps)
{
    constexpr int WIDTH = N < BOX_ROWS ? N : BOX_ROWS; // of a part: more would take too many registers
    GPU_UNROLL for (int m = 0; m < BLOCKS; m++)
        GPU_UNROLL for (int n = 0; n < N / 8; n++)
            GPU_UNROLL for (int i = 0; i < 4; i++) sums.at[m][n][i] = 0;
    GPU_ROLLED for (int i = 0; i < steps; i++)
    {
        const uint32_t step = pipe.step + i, s = step % STAGES;
        const char *slot = gpu::shared() + s * SLOT_BYTES;
        const float columns[2] = {column_factor(factors, 0, i), column_factor(factors, 1, i)};
        float rows[BLOCKS][2]; // on their way while the slot arrives
        GPU_UNROLL for (int m = 0; m < BLOCKS; m++)
            GPU_UNROLL for (int half = 0; half < 2; half++)
                rows[m][half] = row_factor(factors, first_row() + M_STEP * m + gpu::lane() / 4 + 8 * half, i);
        gpu::barrier_wait(pipe.full + s, step / STAGES & 1);
        GPU_UNROLL for (int number = 0; number < BLOCKS * N / WIDTH; number++)
        {
            const int m = number / (N / WIDTH), half = number % (N / WIDTH);
            const char *left = slot + m * BOX_BYTES, *right = slot + A_BYTES + (team() * N + half * WIDTH) * ROW_BYTES;
            float part[WIDTH / 8][4];
            gpu::multiply_end(part);
            gpu::multiply_begin();
            GPU_UNROLL for (int k = 0; k < ROW_BYTES; k += 32)
                gpu::multiply_group_codes<WIDTH>(part, gpu::matrix_k(gpu::matrix_at(left), k),
                                                 gpu::matrix_k(gpu::matrix_at(right), k), k > 0);
            gpu::multiply_commit();
            gpu::multiply_wait<0>();
            gpu::multiply_end(part);
            if (number == BLOCKS * N / WIDTH - 1 && gpu::lane() == 0)
                gpu::barrier_arrive(pipe.empty + s);
            GPU_UNROLL for (int n = 0; n < WIDTH / 8; n++)
                promote(sums.at[m][half * WIDTH / 8 + n], part[n], rows[m], columns[half]);
        }
    }
}

/// That of a team with N rows of A, which change places with B's. A part is added while the next is multiplied.
template <int N, int DEEP, int SLICES, class Pipe>
GPU_INLINE void multiply_coded_few(const Pipe &pipe, FewSums &sums, const Factors &factors)
{
    OpenSums<N, DEEP> open;
    clear_sums(open);
    each_step<DEEP, SLICES>([&](int i, auto here) {
        constexpr int PARTS_OF = here.N * HALVES<DEEP>;
        const uint32_t step = pipe.step + i, s = step % STAGES;
        const char *slot = gpu::shared() + s * SLOT_BYTES;
        float rows[here.N][N / 8][2], part[2][N / 8][4]; // rows' scales are on their way while the slot arrives
        GPU_UNROLL for (int j = 0; j < here.N; j++)
            GPU_UNROLL for (int p = 0; p < N / 4; p++)
                rows[j][p / 2][p % 2] = row_factor(factors, p / 2 * 8 + gpu::lane() % 4 * 2 + p % 2, i * DEEP + j);
        gpu::barrier_wait(pipe.full + s, step / STAGES & 1);
        if (has_part<DEEP>()) {
            GPU_UNROLL for (int number = 0; number <= PARTS_OF; number++)
            {
                if (number < PARTS_OF) {
                    const int j = number / HALVES<DEEP>, m = number % HALVES<DEEP>;
                    gpu::multiply_end(part[number % 2]);
                    gpu::multiply_begin();
                    GPU_UNROLL for (int k = 0; k < ROW_BYTES; k += 32)
                        gpu::multiply_group_codes<N>(part[number % 2],
                                                     gpu::matrix_k(gpu::matrix_at(boxes_of<DEEP>(slot, j) + m * BOX_BYTES), k),
                                                     gpu::matrix_k(gpu::matrix_at(slot + j * FEW_BYTES), k), k > 0);
                    gpu::multiply_commit();
                }
                if (number > 0) {
                    const int before = number - 1, j = before / HALVES<DEEP>, m = before % HALVES<DEEP>;
                    if (number < PARTS_OF)
                        gpu::multiply_wait<1>();
                    else
                        gpu::multiply_wait<0>();
                    gpu::multiply_end(part[before % 2]);
                    const float columns = column_factor(factors, m, i * DEEP + j);
                    GPU_UNROLL for (int n = 0; n < N / 8; n++)
                        promote_few(open.at[m][n], part[before % 2][n], rows[j][n], columns);
                }
            }
        }
        if (gpu::lane() == 0)
            gpu::barrier_arrive(pipe.empty + s);
    });
    keep_few(sums, open);
}

/// The whole product over K, for all threads of the block together, as tiles_hopper.h's multiply: of many rows.
template <int DEEP, int64_t K, class Pipe>
GPU_INLINE void multiply_coded(Pipe &pipe, TileSums &sums, const Left &a, const Right &b, const Factors &factors)
{
    constexpr int SLICES = (int)((K + ROW_BLOCK - 1) / ROW_BLOCK);
    if constexpr (!Pipe::MULTIPLIES) {
        copy_boxes<false, 1>(pipe, a, b, SLICES);
    } else {
        if (b.narrow)
            multiply_coded_slices<1, NARROW>(pipe, sums, factors, SLICES);
        else if (a.count > BOX_ROWS)
            multiply_coded_slices<2, 8 * NS>(pipe, sums, factors, SLICES);
        else
            multiply_coded_slices<1, 8 * NS>(pipe, sums, factors, SLICES);
        sync_columns(DEEP > 1 && b.narrow);
    }
    pipe.step += SLICES;
}

/// Of few.
template <int DEEP, int64_t K, class Pipe>
GPU_INLINE void multiply_coded(Pipe &pipe, FewSums &sums, const Left &a, const Right &b, const Factors &factors)
{
    constexpr int SLICES = (int)((K + ROW_BLOCK - 1) / ROW_BLOCK);
    if constexpr (!Pipe::MULTIPLIES) {
        copy_boxes<true, DEEP>(pipe, a, b, SLICES);
    } else {
        with_width(a.count, [&](auto n) { multiply_coded_few<n.N, DEEP, SLICES>(pipe, sums, factors); });
        sync_columns(DEEP > 1 && b.narrow);
    }
    pipe.step += (SLICES + DEEP - 1) / DEEP;
}

#endif
