// The slots of shared memory that products on sm_90a are fed from (tiles_hopper.h, tiles_few_hopper.h), and the team of warps that
// fills them: of it one thread copies, and all of it leaves most of its registers to the two teams that multiply.
//
//   team 2           global memory           shared memory, STAGES slots                  teams 0 and 1
//   waits empty[s]   A [rows][k] --- TMA -->    rows      [128][64]                     wait full[s]
//   expects bytes    B [rows][k] --- TMA -->    weights   [64][64] four times   ----->  multiply
//   copies                                                                              arrive at empty[s]
//
//      full[s]:  ends when the slot's bytes have come (1 arrival: the copying thread's, which says how many)
//      empty[s]: ends when all eight warps have done with what they read of the slot (8 arrivals)
//
// Both barriers go through one phase each time round the slots, so a step's number gives slot and parity. The copying team
// runs through the same tiles as the teams, ahead of them by the slots there are, also across tiles: while a team stores
// its results, the next tile's slices arrive. Rows beyond the tensor and k beyond the row are zeros; rows beyond the tile are
// other rows' numbers, whose sums nobody stores.
//
// A step takes a slice of k, 128 bytes of each row. With few rows of A and one box of B a slice leaves most of the slot free,
// so that a step takes DEEP slices: then as many bytes of weights are on their way as ever.
#ifndef MOE_SLOTS_HOPPER_H
#define MOE_SLOTS_HOPPER_H

#include "hopper.h"
#include "slices.h"

constexpr int TEAMS = 2, TEAM = 128, WARPS = TEAMS * TEAM / gpu::WARP;
constexpr int REGISTERS = 232, COPY_REGISTERS = 40; // of a thread that multiplies, and of one of those that copy
static_assert(THREADS == (TEAMS + 1) * TEAM && BLOCK_M == 128, "two teams that multiply, and one that copies");
static_assert(TEAM * (TEAMS * REGISTERS + COPY_REGISTERS) <= 65536, "a multiprocessor's registers");
constexpr int M_STEP = 64;         // rows between a thread's blocks of sums
constexpr int BOX_ROWS = 64;       // of A and of B that come with one copy
constexpr int BOX_BYTES = BOX_ROWS * ROW_BYTES;
constexpr int EIGHT = 8; // rows of A that come with one copy when there are few; a slot has room for FEW_MOST of each slice
constexpr int FEW_MOST = 32, FEW_BYTES = FEW_MOST * ROW_BYTES;
static_assert(FEW_ROWS <= FEW_MOST && FEW_ROWS % EIGHT == 0, "whole copies");
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

/// Barrier of a team.
GPU_INLINE void sync_team()
{
    gpu::sync_threads<TEAM>(1 + gpu::thread_anew() / TEAM);
}

/// Barrier of all threads that multiply.
GPU_INLINE void sync_multiplying()
{
    gpu::sync_threads<TEAMS * TEAM>(1 + TEAMS);
}

/// Barrier of the threads that may write to the same columns: a team's, or all, where one team may do the other's work.
GPU_INLINE void sync_columns(bool together)
{
    if (together)
        sync_multiplying();
    else
        sync_team();
}

/// Rows of A: `count` of them, from `first` on. `eights`: the map with boxes of eight rows.
struct Left {
    const gpu::Map *map, *eights;
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

/// Whether a tile is one of few rows (tiles_few_hopper.h), whose steps take DEEP slices: those of one slice are as wide as with
/// many rows, those of several narrow. With no slices none is.
template <int DEEP> GPU_INLINE bool is_few(int64_t rows, bool narrow)
{
    return DEEP > 0 && rows <= FEW_ROWS && narrow == (DEEP > 1);
}

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

/// Rows of A that come with one copy.
template <bool FEW> constexpr int BOX_OF = FEW ? EIGHT : BOX_ROWS;

/// Starts copying a slice of A.
template <bool FEW> GPU_INLINE void copy_rows(char *to, const Left &a, gpu::Barrier *full, int k)
{
    const gpu::Map &map = FEW ? *a.eights : *a.map;
    GPU_ROLLED for (int row = 0; row < (int)a.count; row += BOX_OF<FEW>)
        gpu::copy_box(to + row * ROW_BYTES, map, full, k, (int)a.first + row);
}

/// The bytes of it.
template <bool FEW> GPU_INLINE int rows_bytes(const Left &a)
{
    return ((int)a.count + BOX_OF<FEW> - 1) / BOX_OF<FEW> * BOX_OF<FEW> * ROW_BYTES;
}

/// The copying team's part of a product: one thread fills the slots, DEEP slices a step, with rows of A and what
/// `copy_right(slot, full, k)` copies of B, `boxes` a slice.
template <bool FEW, int DEEP, class Pipe, class Copy>
GPU_INLINE void copy_slices(const Pipe &pipe, const Left &a, int slices, int boxes, Copy copy_right)
{
    if (gpu::thread() != TEAMS * TEAM)
        return;
    GPU_ROLLED for (int i = 0; i * DEEP < slices; i++)
    {
        const uint32_t step = pipe.step + i, s = step % STAGES;
        const int left = slices - i * DEEP, here = left < DEEP ? left : DEEP;
        char *slot = gpu::shared() + s * SLOT_BYTES;
        gpu::Barrier *full = pipe.full + s;
        gpu::barrier_wait(pipe.empty + s, (step / STAGES & 1) ^ 1); // passes at once the first time round
        gpu::barrier_expect(full, here * (rows_bytes<FEW>(a) + boxes * BOX_BYTES));
        GPU_ROLLED for (int j = 0; j < here; j++)
        {
            copy_rows<FEW>(slot + j * FEW_BYTES, a, full, (i * DEEP + j) * SLICE);
            copy_right(slot + A_BYTES + j * BOX_BYTES, full, (i * DEEP + j) * SLICE);
        }
    }
}

/// That of a product of tensors: boxes of both.
template <bool FEW, int DEEP, class Pipe>
GPU_INLINE void copy_boxes(const Pipe &pipe, const Left &a, const Right &b, int slices)
{
    const int boxes = b.narrow ? 1 : 2 * TEAMS;
    copy_slices<FEW, DEEP>(pipe, a, slices, boxes, [&](char *right, gpu::Barrier *full, int k) {
        for (int half = 0; half < boxes; half++) {
            const int place = b.apart ? half / 2 : half;
            gpu::copy_box(right + half * BOX_BYTES, *b.map, full, k, (int)b.row + place * BOX_ROWS, b.apart ? half % 2 : 0,
                          (int)b.expert);
        }
    });
}

#endif
