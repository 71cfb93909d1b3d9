// The matrix product that the expert kernels share on sm_90a: 128 rows of A times 256 rows of B, both with k along the
// row, bf16 or f16 (DTYPE) in and f32 sums. One block on a multiprocessor: two teams of four warps that multiply, and a third, which leaves
// them most of its registers, of which one thread copies.
//
//   team 2           global memory           shared memory, STAGES slots                teams 0 and 1
//   waits empty[s]   A [rows][k] --- TMA --> [128][64] --------------------------.      wait full[s]
//   expects bytes    B [rows][k] --- TMA --> [64] [64] | [64] [64]  (k 64 each) -+--->  wgmma m64n128k16, sums f32
//   copies           first and second half     team 0  |  team 1                        arrive at empty[s], a slot later
//
//      full[s]:  ends when the slot's bytes have come (1 arrival: the copying thread's, which says how many)
//      empty[s]: ends when all eight warps have done with what they read of the slot (8 arrivals)
//
// Both barriers go through one phase each time round the slots, so a step's number gives slot and parity. The copying team
// runs through the same tiles as the teams, ahead of them by the slots there are, also across tiles: while a team stores
// its results, the next tile's slices arrive. While a step's products run, the one before is waited for and its slot
// given back. Rows beyond the tensor and k beyond the row are zeros; rows beyond the tile are other rows' numbers, whose
// sums nobody stores. Every sum runs over k in ascending order whatever the tile's company, in steps of 16 k whatever its width.
#ifndef MOE_TILES_HOPPER_H
#define MOE_TILES_HOPPER_H

#include "hopper.h"
#include "slices.h"

constexpr int TEAMS = 2, TEAM = 128, WARPS = TEAMS * TEAM / gpu::WARP;
constexpr int REGISTERS = 232, COPY_REGISTERS = 40; // of a thread that multiplies, and of one of those that copy
static_assert(THREADS == (TEAMS + 1) * TEAM && BLOCK_M == 128, "two teams that multiply, and one that copies");
static_assert(TEAM * (TEAMS * REGISTERS + COPY_REGISTERS) <= 65536, "a multiprocessor's registers");
constexpr int M_STEP = 64;         // rows between a thread's blocks of sums
constexpr int BOX_ROWS = 64;       // of A and of B that come with one copy
constexpr int BOX_BYTES = BOX_ROWS * ROW_BYTES;
constexpr int A_BYTES = 2 * BOX_BYTES, SLOT_BYTES = A_BYTES + (EXPANDED ? 0 : 2 * TEAMS * BOX_BYTES);
constexpr int TEAM_ROWS = EXPANDED ? BOX_ROWS : 2 * BOX_ROWS; // of B; fewer for expanded codes, whose sums take twice the registers
constexpr int MS = BLOCK_M / M_STEP, NS = TEAM_ROWS / 8;                // blocks of 64 rows and of 8 columns of a team's sums
constexpr int BARRIERS_AT = SHARED_BYTES - 2 * STAGES * (int)sizeof(gpu::Barrier); // behind everything else

/// A team's part of the tile: rows from 16 w on of each block of 64 are warp w's; columns of the second half of B begin at
/// block NS / 2.
using TileSums = Sums<MS, NS>;

GPU_INLINE int team()
{
    return gpu::thread() / TEAM;
}

GPU_INLINE int team_thread()
{
    return gpu::thread() % TEAM;
}

/// Where a thread's sums begin among the tile's rows.
GPU_INLINE int first_row()
{
    return gpu::warp() % (TEAM / gpu::WARP) * 16;
}

/// Barrier of the threads that write to the same columns.
GPU_INLINE void sync_team()
{
    gpu::sync_threads<TEAM>(1 + team());
}

/// Rows of A: `count` of them, from `first` on.
struct Left {
    const gpu::Map *map;
    int64_t first, count;
};

/// Rows of B: 64 from `row` on for each half of each team. Halves lie side by side, or in the map's third extent. For a few
/// rows of A a tile may be `narrow`: 64 rows of B, of which each team has NARROW. Then there are enough tiles for all
/// multiprocessors to read weights; the sums are the same.
struct Right {
    const gpu::Map *map;
    int64_t row, expert;
    bool apart, narrow;
};
constexpr int NARROW = BOX_ROWS / TEAMS;

/// The slots: their barriers, and how many steps have been taken so far. Two kinds of threads go through them.
template <bool THAT_MULTIPLIES> struct Pipeline {
    static constexpr bool MULTIPLIES = THAT_MULTIPLIES;
    gpu::Barrier *full, *empty;
    uint32_t step;
};

/// Calls body(pipeline), for threads that multiply and for those that copy.
template <class Body> GPU_INLINE void with_pipeline(Body body)
{
    gpu::Barrier *full = (gpu::Barrier *)(gpu::shared() + BARRIERS_AT), *empty = full + STAGES;
    if (gpu::thread() == 0) {
        GPU_ROLLED for (int s = 0; s < STAGES; s++)
        {
            gpu::barrier_init(full + s, 1);
            gpu::barrier_init(empty + s, WARPS);
        }
        gpu::publish();
    }
    gpu::sync_block();
    if (team() < TEAMS) {
        gpu::take_registers<REGISTERS>();
        body(Pipeline<true>{full, empty, 0});
    } else {
        gpu::give_registers<COPY_REGISTERS>();
        body(Pipeline<false>{full, empty, 0});
    }
}

/// The copying team's part of a product: one thread fills the slots with boxes of A and what `copy_right(slot, full, k)`
/// copies of B, `right_bytes` a slot.
template <class Pipe, class Copy>
GPU_INLINE void copy_slices(const Pipe &pipe, const Left &a, int steps, int right_bytes, Copy copy_right)
{
    const bool two = a.count > BOX_ROWS;
    if (gpu::thread() == TEAMS * TEAM) {
        GPU_ROLLED for (int i = 0; i < steps; i++)
        {
            const uint32_t step = pipe.step + i, s = step % STAGES;
            char *slot = gpu::shared() + s * SLOT_BYTES;
            gpu::Barrier *full = pipe.full + s;
            gpu::barrier_wait(pipe.empty + s, (step / STAGES & 1) ^ 1); // passes at once the first time round
            gpu::barrier_expect(full, A_BYTES - (two ? 0 : BOX_BYTES) + right_bytes);
            gpu::copy_box(slot, *a.map, full, i * SLICE, (int)a.first);
            if (two)
                gpu::copy_box(slot + BOX_BYTES, *a.map, full, i * SLICE, (int)a.first + BOX_ROWS);
            copy_right(slot + A_BYTES, full, i * SLICE);
        }
    }
}

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

/// The copying team's part of a product of tensors: boxes of both.
template <class Pipe> GPU_INLINE void copy_boxes(const Pipe &pipe, const Left &a, const Right &b, int steps)
{
    const int boxes = b.narrow ? 1 : 2 * TEAMS;
    copy_slices(pipe, a, steps, boxes * BOX_BYTES, [&](char *right, gpu::Barrier *full, int k) {
        for (int half = 0; half < boxes; half++) {
            const int place = b.apart ? half / 2 : half;
            gpu::copy_box(right + half * BOX_BYTES, *b.map, full, k, (int)b.row + place * BOX_ROWS, b.apart ? half % 2 : 0,
                          (int)b.expert);
        }
    });
}

/// The whole product over k, for all threads of the block together. Holds a barrier of the team: what it wrote to global
/// memory before is over for each of its threads.
template <class Pipe> GPU_INLINE void multiply(Pipe &pipe, TileSums &sums, const Left &a, const Right &b, int64_t k_end)
{
    const int steps = (int)((k_end + SLICE - 1) / SLICE);
    if constexpr (!Pipe::MULTIPLIES) {
        copy_boxes(pipe, a, b, steps);
    } else {
        if (b.narrow)
            multiply_slices<1, NARROW>(pipe, sums, steps);
        else if (a.count > BOX_ROWS)
            multiply_slices<2, 8 * NS>(pipe, sums, steps);
        else
            multiply_slices<1, 8 * NS>(pipe, sums, steps);
        sync_team();
    }
    pipe.step += steps;
}

#endif
