// The host back of device.h: a block's threads are fibers of the emulator (host/), which takes the calls below. A place
// in a kernel is told by the return address of such a call, so wrappers are always inlined.
#ifndef MOE_DEVICE_HOST_H
#define MOE_DEVICE_HOST_H

#include <stdint.h>
#include <string.h>

#include "host/emulator.h"

#define GPU_INLINE static inline __attribute__((always_inline))
#define GPU_UNROLL
#define GPU_ROLLED

#if GPU_MAPS
#define GPU_FILL_MAPS(launch) gpu::fill_maps(launch, MAP_SHAPES)
#else
#define GPU_FILL_MAPS(launch)
#endif

#define GPU_TEXT(word) GPU_TEXT_OF(word)
#define GPU_TEXT_OF(word) #word

/// The image of a kernel: the function that the executor calls, as if it were native code (moe_kernel_fn).
#define GPU_KERNEL(threads, resident)                                                                              \
    static void kernel_body(const Launch &args);                                                                   \
    static void kernel_entry(const void *args)                                                                     \
    {                                                                                                              \
        kernel_body(*(const Launch *)args);                                                                        \
    }                                                                                                              \
    extern "C" __attribute__((visibility("default"))) void moe_kernel(const struct moe_kargs *k, int64_t begin,   \
                                                                      int64_t end, void *scratch)                  \
    {                                                                                                              \
        (void)scratch;                                                                                             \
        Launch launch = {};                                                                                        \
        launch.k = *k;                                                                                             \
        launch.begin = begin;                                                                                      \
        launch.end = end;                                                                                          \
        GPU_FILL_MAPS(launch);                                                                                     \
        host_launch(kernel_entry, GPU_TEXT(KERNEL_NAME), &launch, threads, SHARED_BYTES, GPU_CHECKED);             \
    }                                                                                                              \
    static void kernel_body(const Launch &args)

namespace gpu {

#if GPU_MAPS
/// Describes a launch's tensors. Kernels that have some begin with the pairs control.
static void fill_maps(Launch &launch, const MapShape *shapes)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)launch.k.p[0];
    for (int i = 0; i < GPU_MAPS; i++) {
        Map &map = launch.maps[i];
        map.base = (const char *)launch.k.p[shapes[i].argument];
        map.rank = shapes[i].rank;
        for (int d = 0; d < map.rank; d++) {
            map.extents[d] = shapes[i].extents[d];
            map.strides[d] = shapes[i].strides[d];
            map.box[d] = shapes[i].box[d];
        }
        map.extents[map.rank - 1] = shapes[i].counts == MAP_PAIRS ? pairs->expert_first[pairs->experts]
                                                                  : pairs->first_expert + pairs->experts;
    }
}
#endif

GPU_INLINE int thread()
{
    return host_here()->thread;
}

GPU_INLINE int thread_anew()
{
    return thread();
}

GPU_INLINE int block()
{
    return host_here()->block;
}

GPU_INLINE int blocks()
{
    return host_here()->blocks;
}

GPU_INLINE char *shared()
{
    return host_here()->shared;
}

GPU_INLINE void sync_block()
{
    host_sync_block();
}

GPU_INLINE void sync_warp()
{
    host_warp(HOST_SYNC, nullptr);
}

template <class T> GPU_INLINE T shuffle(T value, int lane)
{
    static_assert(sizeof(T) == 4, "shuffles move 4 bytes");
    host_shuffle_lane move = {0, lane, 0};
    memcpy(&move.value, &value, 4);
    host_warp(HOST_SHUFFLE, &move);
    memcpy(&value, &move.result, 4);
    return value;
}

GPU_INLINE void copy_async(void *to, const void *from, int bytes)
{
    host_copy_async(to, from, bytes);
}

GPU_INLINE void copy_async_commit()
{
    host_copy_async_commit();
}

template <int N> GPU_INLINE void copy_async_wait()
{
    host_copy_async_wait(N);
}

GPU_INLINE void load_matrices(uint32_t (&r)[4], const void *row)
{
    host_matrices_lane load = {row, r};
    host_warp(HOST_LOAD_MATRICES, &load);
}

GPU_INLINE uint32_t transpose_matrix(uint32_t row)
{
    const int column = thread() % 32 / 4, from = thread() % 4 * 8 + column / 2, half = column % 2 * 16;
    const uint32_t first = shuffle(row, from), second = shuffle(row, from + 4);
    return (first >> half & 0xffff) | (second >> half & 0xffff) << 16;
}

template <bool HALF> GPU_INLINE void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    host_multiply_lane product = {d, a, {b0, b1}};
    host_warp(HALF ? HOST_MULTIPLY_F16 : HOST_MULTIPLY_BF16, &product);
}

GPU_INLINE void multiply_codes(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    host_multiply_lane product = {d, a, {b0, b1}};
    host_warp(HOST_MULTIPLY_E4M3, &product);
}

GPU_INLINE float fma(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

GPU_INLINE float square_root(float value)
{
    return __builtin_sqrtf(value);
}

GPU_INLINE uint32_t bits(float value)
{
    uint32_t u;
    memcpy(&u, &value, 4);
    return u;
}

GPU_INLINE float number(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

GPU_INLINE uint32_t host_bf16(float value)
{
    uint32_t u = bits(value);
    return value != value ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

GPU_INLINE uint32_t bf16_pair(float low, float high)
{
    return host_bf16(low) | host_bf16(high) << 16;
}

GPU_INLINE uint32_t host_f16(float value)
{
    const uint32_t sign = bits(value) >> 16 & 0x8000;
    uint32_t magnitude = bits(value) & 0x7fffffff;
    if (value != value)
        return 0x7fff;
    if (magnitude >= 0x477ff000) // rounds beyond 65504
        return sign | 0x7c00;
    if (magnitude < 0x38800000) // below 2^-14: multiples of 2^-24
        return sign | (bits(number(magnitude) + 0.5f) - bits(0.5f));
    return sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
}

GPU_INLINE uint32_t f16_pair(float low, float high)
{
    return host_f16(low) | host_f16(high) << 16;
}

GPU_INLINE float f16_low(uint32_t pair)
{
    return host_widen_f16(pair);
}

GPU_INLINE float f16_high(uint32_t pair)
{
    return host_widen_f16(pair >> 16);
}

} // namespace gpu

// Ordinary loads and stores: the compiler is told to instrument them for a race detector, and these take the calls.
#if GPU_CHECKED
#define GPU_HOOK __attribute__((visibility("hidden"), no_sanitize("thread")))
#define GPU_HOOKS(size)                                       \
    GPU_HOOK void __tsan_read##size(const void *at)           \
    {                                                         \
        host_access(at, size, 0, __builtin_return_address(0)); \
    }                                                         \
    GPU_HOOK void __tsan_write##size(void *at)                \
    {                                                         \
        host_access(at, size, 1, __builtin_return_address(0)); \
    }                                                         \
    GPU_HOOK void __tsan_unaligned_read##size(const void *at) \
    {                                                         \
        host_access(at, size, 0, __builtin_return_address(0)); \
    }                                                         \
    GPU_HOOK void __tsan_unaligned_write##size(void *at)      \
    {                                                         \
        host_access(at, size, 1, __builtin_return_address(0)); \
    }
extern "C" {
GPU_HOOKS(1)
GPU_HOOKS(2)
GPU_HOOKS(4)
GPU_HOOKS(8)
GPU_HOOKS(16)
GPU_HOOK void __tsan_read_range(const void *at, unsigned long bytes)
{
    host_access(at, (int)bytes, 0, __builtin_return_address(0));
}
GPU_HOOK void __tsan_write_range(void *at, unsigned long bytes)
{
    host_access(at, (int)bytes, 1, __builtin_return_address(0));
}
GPU_HOOK void *__tsan_memcpy(void *to, const void *from, unsigned long bytes)
{
    host_access(from, (int)bytes, 0, __builtin_return_address(0));
    host_access(to, (int)bytes, 1, __builtin_return_address(0));
    return memcpy(to, from, bytes);
}
GPU_HOOK void *__tsan_memset(void *to, int value, unsigned long bytes)
{
    host_access(to, (int)bytes, 1, __builtin_return_address(0));
    return memset(to, value, bytes);
}
GPU_HOOK void __tsan_init(void) {}
GPU_HOOK void __tsan_func_entry(void *) {}
GPU_HOOK void __tsan_func_exit(void) {}
}
#endif

#endif
