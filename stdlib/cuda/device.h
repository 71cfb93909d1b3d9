// What kernels are written with: a thin layer of names over CUDA's built-ins and the PTX instructions the templates use.
// It has two backs: device_ptx.h for a GPU (NVRTC) and device_host.h, which runs a block's threads as fibers on a CPU.
// A template includes this header, uses `gpu::` for everything that is not plain C++, and so runs on both.
//
// Every wrapper is documented here, once; the backs only implement.
//
//   int thread(), lane(), warp()          place in the block; blocks are one-dimensional
//   int thread_anew()                     thread(), asked for again: where a register to keep it in would be one too many
//   int block(), blocks()                 place in the grid
//   char *shared()                        the block's dynamic shared memory, 1024-byte aligned
//   void sync_block()                     barrier of all threads; orders shared and global memory among them
//   void sync_warp()                      barrier of a warp; orders memory among its lanes
//   T shuffle(v, lane)                    another lane's v; T of 4 bytes; every lane takes part; orders no memory
//   T shuffle_xor(v, mask)                that of lane() ^ mask
//   void copy_async(to, from, bytes)      16 bytes to shared memory, of which the first `bytes` (0..16) come from global
//                                         memory and the others are zero; takes effect at any time until waited for
//   void copy_async_commit()              copies since the last commit are a group
//   void copy_async_wait<N>()             all but this thread's last N groups are done, and visible to this thread alone
//   void load_matrices(r, row)            four 8x8 matrices of 16-bit elements; lane 8 i + j gives row j of matrix i,
//                                         r[i] are elements 2 (lane % 4) and + 1 of row lane / 4 of matrix i (ldmatrix)
//   uint32_t transpose_matrix(row)        an 8x8 matrix of 16-bit elements, of whose row lane / 4 a lane has elements 2 (lane % 4)
//                                         and + 1, transposed: the same of its column lane / 4 (movmatrix)
//   void multiply<HALF>(d, a, b0, b1)     d += A B, A 16x16, B 16x8, in mma.sync.m16n8k16 fragments; bf16, or f16
//   void multiply_codes(d, a, b0, b1)     the same of E4M3 codes, A 16x32, B 32x8, in fragments of mma.sync.m16n8k32, which are
//                                         those of m16n8k16 with four codes in the place of two elements; from sm_89 on
//   float fma(a, b, c)                    one rounding
//   float square_root(x)                  to nearest
//   uint32_t bf16_pair(low, high)         rounded to nearest even, packed
//   uint32_t f16_pair(low, high)          the same in f16
//   float f16_low(pair), f16_high(pair)   and back
//   uint32_t bits(f), float number(u)     a float's representation and back
//   args.maps[i]                          with GPU_MAPS, a number defined before this header: tensors for hopper.h
//   GPU_UNROLL, GPU_ROLLED for (...)      a loop that must, or must not, be unrolled
#ifndef MOE_DEVICE_H
#define MOE_DEVICE_H

#include "kernels.h"
#ifndef __CUDACC_RTC__
#include "host/emulator.h"
#endif

// The words that constants of a kernel are given in: dtype_bf16, score_softmax, activation_silu, ...
#define WORDS(kind) enum kind {
#define WORD(kind, name) kind##_##name,
#define WORDS_END(kind) kind##_words_count };
#include "words.def"
#undef WORDS
#undef WORD
#undef WORDS_END

#ifndef GPU_MAPS
#define GPU_MAPS 0 // tensor maps of a launch: hopper.h
#endif

namespace gpu {

/// A tensor in global memory, as copies by boxes want it described: the driver's CUtensorMap on a GPU.
#ifdef __CUDACC_RTC__
struct alignas(64) Map {
    uint64_t words[16];
};
#else
using Map = host_map;
#endif

/// How a launch's map is made: the argument that it describes, and its extents; of the outermost, which differs from
/// launch to launch, what it counts.
enum MapCounts { MAP_PAIRS, MAP_EXPERTS };
struct MapShape {
    int argument, rank, counts;
    int64_t extents[4], strides[4]; // in elements, from the innermost on; in bytes, the innermost an element's
    int box[4];
};

} // namespace gpu

/// What a kernel is launched with: the instruction's arguments and the range of units it is to work on.
struct Launch {
    struct moe_kargs k;
    int64_t begin, end;
#if GPU_MAPS
    gpu::Map maps[GPU_MAPS];
#endif
};

namespace gpu {

enum { WARP = 32 };

/// 16 bytes that are loaded and stored at once.
struct alignas(16) Words {
    uint32_t x, y, z, w;
};

/// And 8: the least that kernels of rows load and store.
struct alignas(8) Pair {
    uint32_t x, y;
};

} // namespace gpu

#ifdef __CUDACC_RTC__
#include "device_ptx.h"
#else
#include "device_host.h"
#endif

namespace gpu {

GPU_INLINE int lane()
{
    return thread() % WARP;
}

GPU_INLINE int warp()
{
    return thread() / WARP;
}

template <class T> GPU_INLINE T shuffle_xor(T value, int mask)
{
    return shuffle(value, lane() ^ mask);
}

} // namespace gpu

#endif
