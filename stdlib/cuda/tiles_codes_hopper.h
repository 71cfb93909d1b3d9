// The matrix product on sm_90a with weights as they are stored: codes with scales (codes.h), expanded by the team that
// multiplies them; without codes, tiles_hopper.h's. A team has 64 rows of B, of which all, or NARROW, are used.
//
//   global memory              shared memory                                         a team
//   A [rows][k]  -- TMA -->    STAGES slots [128][64] --------------------------.
//   codes        -- cp.async -->  CODE_STAGES [64][64] -- expand --> 2 x [64][64] +--> wgmma m64n64k16, part f32
//   scales       -- cp.async -->  CODE_STAGES [PARTS][64] ------------.           |
//                                                                     v           v
//                                              after each block of k: sums += scale * part
//
//   step i:  barrier              the wide tile i is whole
//            wait full            A's slot has come
//            wgmma i   |  wait for the codes of i + 1, barrier, start copying those of i + CODE_STAGES - 1,
//                      |  expand i + 1 into the other wide tile, publish it
//            wait, add the part, give A's slot back
//
// Few rows of A are columns instead (tiles_few_hopper.h), and the 64 rows of the wide tile then go by eights: of the first half
// and the second in turn, so that a thread has sums of both.
//
// Slot (i - 1) % CODE_STAGES of the codes, which the copy in step i fills, was last read in step i - 1, by add_scaled, before
// the barriers of step i. The wide tile that step i expands into was multiplied in step i - 1 and waited for.
#ifndef MOE_TILES_CODES_HOPPER_H
#define MOE_TILES_CODES_HOPPER_H

#include "tiles_hopper.h"

#include "codes.h"

constexpr int CODE_STAGES = STAGES + 1, AHEAD = CODE_STAGES - 2; // slots of codes; steps that their copies are ahead
constexpr int WIDE_BYTES = TEAM_ROWS * ROW_BYTES, CODES_BYTES = TEAM_ROWS * CODE_SLICE;
constexpr int CODE_SLOT_BYTES = CODES_BYTES + PARTS * TEAM_ROWS * SCALE_BYTES;
constexpr int WIDE_AT = STAGES * SLOT_BYTES, CODES_AT = WIDE_AT + TEAMS * 2 * WIDE_BYTES;
static_assert(!EXPANDED || CODES_AT + TEAMS * CODE_STAGES * CODE_SLOT_BYTES <= BARRIERS_AT,
              "the compiler counts the same memory");

/// A team's rows of B with their scales; `narrow`: NARROW rows.
struct CodeRows {
    Rows rows;
    Scales scales;
    bool narrow;
};

GPU_INLINE char *wide_tile(int step)
{
    return gpu::shared() + WIDE_AT + (2 * team() + step % 2) * WIDE_BYTES;
}

GPU_INLINE char *code_slot(int step)
{
    return gpu::shared() + CODES_AT + (team() * CODE_STAGES + step % CODE_STAGES) * CODE_SLOT_BYTES;
}

/// The products of one block of k with A's slot, started.
template <int BLOCKS, int N> GPU_INLINE void multiply_part(TileSums &part, const char *slot, const char *wide, int from)
{
    gpu::multiply_begin();
    GPU_UNROLL for (int k = 0; k < PART * ELEMENT; k += 32)
        GPU_UNROLL for (int m = 0; m < BLOCKS; m++)
            gpu::multiply_group<DTYPE == dtype_f16, N>(part.at[m],
                                                       gpu::matrix_k(gpu::matrix_at(slot + m * BOX_BYTES), from + k),
                                                       gpu::matrix_k(gpu::matrix_at(wide), from + k), k > 0);
    gpu::multiply_commit();
}

/// Slices of codes, copied and expanded ahead of the products, which start(slot, wide tile, first byte of k) begins, and which
/// add(scales) adds when a block of k is done: ROWS of B, in the order of expand<ROWS, MIXED>.
template <int ROWS, bool MIXED, class Pipe, class Start, class Add>
GPU_INLINE void multiply_expanded(const Pipe &pipe, const CodeRows &b, int64_t k_end, int steps, Start start, Add add)
{
    const auto copy = [&](int step) { // a group a step, which may be empty
        if (step < steps) {
            copy_codes<ROWS>(code_slot(step), b.rows, (int64_t)step * SLICE, k_end);
            copy_scales<ROWS>(code_slot(step) + CODES_BYTES, b.scales, b.rows, (int64_t)step * SLICE, k_end);
        }
        gpu::copy_async_commit();
    };
    const auto prepare = [&](int step) { // this thread's part of the wide tile
        gpu::copy_async_wait<AHEAD - 1>();
        sync_team(); // the codes have come for all
        copy(step + AHEAD);
        expand<ROWS, MIXED>(wide_tile(step), code_slot(step));
        gpu::publish();
    };
    GPU_UNROLL for (int s = 0; s < AHEAD; s++) copy(s);
    prepare(0);
    GPU_ROLLED for (int i = 0; i < steps; i++)
    {
        const uint32_t step = pipe.step + i, s = step % STAGES;
        const char *slot = gpu::shared() + s * SLOT_BYTES;
        sync_team(); // the wide tile is whole
        gpu::barrier_wait(pipe.full + s, step / STAGES & 1);
        GPU_UNROLL for (int p = 0; p < PARTS; p++)
        {
            start(slot, wide_tile(i), p * PART * ELEMENT);
            if (p == PARTS - 1 && i + 1 < steps)
                prepare(i + 1);
            gpu::multiply_wait<0>();
            add(code_slot(i) + CODES_BYTES + p * ROWS * SCALE_BYTES);
        }
        if (gpu::lane() == 0)
            gpu::barrier_arrive(pipe.empty + s);
    }
}

/// A team's part of a product: `BLOCKS` blocks of 64 rows, N columns.
template <int BLOCKS, int N, class Pipe>
GPU_INLINE void multiply_codes(const Pipe &pipe, TileSums &sums, const CodeRows &b, int64_t k_end, int steps)
{
    TileSums part;
    clear_sums(sums);
    clear_sums(part);
    multiply_expanded<N, false>(
        pipe, b, k_end, steps,
        [&](const char *slot, const char *wide, int from) { multiply_part<BLOCKS, N>(part, slot, wide, from); },
        [&](const char *scales) {
            GPU_UNROLL for (int m = 0; m < BLOCKS; m++) gpu::multiply_end(part.at[m]);
            add_scaled<N / 8, false>(sums, part, scales, 0, 4 * NS);
        });
}

/// That of a team with N rows of A, which change places with B's (tiles_few_hopper.h): a thread has of eight rows of B's first
/// half [0..1], and of the same rows of its second half [2..3].
template <int N, class Pipe>
GPU_INLINE void multiply_codes_few(const Pipe &pipe, FewSums &sums, const CodeRows &b, int64_t k_end, int steps)
{
    Sums<1, N / 8> open, part;
    clear_sums(open);
    clear_sums(part);
    multiply_expanded<TEAM_ROWS, true>(
        pipe, b, k_end, steps,
        [&](const char *slot, const char *wide, int from) {
            gpu::multiply_begin();
            GPU_UNROLL for (int k = 0; k < PART * ELEMENT; k += 32)
                gpu::multiply_group<DTYPE == dtype_f16, N>(part.at[0], gpu::matrix_k(gpu::matrix_at(wide), from + k),
                                                           gpu::matrix_k(gpu::matrix_at(slot), from + k), k > 0);
            gpu::multiply_commit();
        },
        [&](const char *scales) {
            gpu::multiply_end(part.at[0]);
            const int row = first_row() / 2 + gpu::lane() / 4;
            const float of[2] = {scale_at(scales, row), scale_at(scales, row + TEAM_ROWS / 2)};
            GPU_UNROLL for (int n = 0; n < N / 8; n++)
                GPU_UNROLL for (int i = 0; i < 4; i++)
                    open.at[0][n][i] = gpu::fma(of[i / 2], part.at[0][n][i], open.at[0][n][i]);
        });
    keep_few(sums, open);
}

/// tiles_hopper.h's multiply, with codes in the place of B: of many rows.
template <int64_t K, class Pipe>
GPU_INLINE void multiply_weights(Pipe &pipe, TileSums &sums, const Left &a, const CodeRows &b)
{
    constexpr int STEPS = (int)((K + SLICE - 1) / SLICE);
    if constexpr (!Pipe::MULTIPLIES) {
        copy_slices<false, 1>(pipe, a, STEPS, 0, [](char *, gpu::Barrier *, int) {});
    } else {
        if (b.narrow)
            multiply_codes<1, NARROW>(pipe, sums, b, K, STEPS);
        else if (a.count > BOX_ROWS)
            multiply_codes<2, TEAM_ROWS>(pipe, sums, b, K, STEPS);
        else
            multiply_codes<1, TEAM_ROWS>(pipe, sums, b, K, STEPS);
        sync_team();
    }
    pipe.step += STEPS;
}

/// Of few.
template <int64_t K, class Pipe>
GPU_INLINE void multiply_weights(Pipe &pipe, FewSums &sums, const Left &a, const CodeRows &b)
{
    constexpr int STEPS = (int)((K + SLICE - 1) / SLICE);
    if constexpr (!Pipe::MULTIPLIES) {
        copy_slices<true, 1>(pipe, a, STEPS, 0, [](char *, gpu::Barrier *, int) {});
    } else {
        with_width(a.count, [&](auto n) { multiply_codes_few<n.N>(pipe, sums, b, K, STEPS); });
        sync_team();
    }
    pipe.step += STEPS;
}

#endif
