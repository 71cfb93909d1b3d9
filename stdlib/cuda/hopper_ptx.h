// The GPU back of hopper.h: inline PTX for sm_90a.
#ifndef MOE_HOPPER_PTX_H
#define MOE_HOPPER_PTX_H

namespace gpu {

using Barrier = uint64_t;
using Matrix = uint64_t; // a descriptor

GPU_INLINE void barrier_init(Barrier *b, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}

GPU_INLINE void publish()
{
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}

GPU_INLINE void barrier_arrive(Barrier *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

GPU_INLINE void barrier_expect(Barrier *b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}

GPU_INLINE void barrier_wait(Barrier *b, int parity)
{
    uint32_t ended;
    do {
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(ended)
                     : "r"(shared_address(b)), "r"(parity)
                     : "memory");
    } while (!ended);
}

GPU_INLINE void copy_box(void *to, const Map &map, Barrier *b, int x0, int x1)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 ::"r"(shared_address(to)), "l"(&map), "r"(shared_address(b)), "r"(x0), "r"(x1)
                 : "memory");
}

GPU_INLINE void copy_box(void *to, const Map &map, Barrier *b, int x0, int x1, int x2, int x3)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];"
                 ::"r"(shared_address(to)), "l"(&map), "r"(shared_address(b)), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
                 : "memory");
}

template <int THREADS_OF_BARRIER> GPU_INLINE void sync_threads(int id)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS_OF_BARRIER) : "memory");
}

template <int N> GPU_INLINE void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> GPU_INLINE void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/// Rows of 128 bytes in groups of eight, 1024 bytes apart; chunks permuted by row (the 128-byte swizzle).
GPU_INLINE Matrix matrix_at(const void *at)
{
    return (uint64_t)((shared_address(at) & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

GPU_INLINE Matrix matrix_k(Matrix m, int bytes)
{
    return m + (bytes >> 4);
}

GPU_INLINE void multiply_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

GPU_INLINE void multiply_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> GPU_INLINE void multiply_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

template <int BLOCKS> GPU_INLINE void multiply_end(float (&d)[BLOCKS][4])
{
    GPU_UNROLL for (int n = 0; n < BLOCKS; n++)
        GPU_UNROLL for (int i = 0; i < 4; i++) asm volatile("" : "+f"(d[n][i])::"memory");
}

#define GPU_SUMS_4(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define GPU_SUMS_8(n) GPU_SUMS_4(n), GPU_SUMS_4(n + 1)
#define GPU_SUMS_16(n) GPU_SUMS_8(n), GPU_SUMS_8(n + 2)
#define GPU_SUMS_32(n) GPU_SUMS_16(n), GPU_SUMS_16(n + 4)
#define GPU_NAMES_4 "%0, %1, %2, %3"
#define GPU_NAMES_8 GPU_NAMES_4 ", %4, %5, %6, %7"
#define GPU_NAMES_12 GPU_NAMES_8 ", %8, %9, %10, %11"
#define GPU_NAMES_16 GPU_NAMES_12 ", %12, %13, %14, %15"
#define GPU_NAMES_32 GPU_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GPU_NAMES_64 \
    GPU_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GPU_MULTIPLY_GROUP(n, types, after, names, a_name, b_name, add_name, ...)                                              \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add_name ", 0;\n\t"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" n types " {" names "}, " a_name ", " b_name ", p, 1, 1" after      \
                 ";\n\t}"                                                                                             \
                 : __VA_ARGS__                                                                                        \
                 : "l"(a), "l"(b), "r"((int)add))
#define GPU_K_MAJOR ", 0, 0" // both matrices; those of codes are never anything else
/// Products of N columns, N a constant.
#define GPU_MULTIPLY_GROUPS(types, after)                                                                             \
    if constexpr (N == 128)                                                                                           \
        GPU_MULTIPLY_GROUP("128", types, after, GPU_NAMES_64, "%64", "%65", "%66", GPU_SUMS_32(0), GPU_SUMS_32(8));    \
    else if constexpr (N == 64)                                                                                       \
        GPU_MULTIPLY_GROUP("64", types, after, GPU_NAMES_32, "%32", "%33", "%34", GPU_SUMS_32(0));                     \
    else if constexpr (N == 32)                                                                                       \
        GPU_MULTIPLY_GROUP("32", types, after, GPU_NAMES_16, "%16", "%17", "%18", GPU_SUMS_16(0));                     \
    else if constexpr (N == 24)                                                                                       \
        GPU_MULTIPLY_GROUP("24", types, after, GPU_NAMES_12, "%12", "%13", "%14", GPU_SUMS_8(0), GPU_SUMS_4(2));       \
    else if constexpr (N == 16)                                                                                       \
        GPU_MULTIPLY_GROUP("16", types, after, GPU_NAMES_8, "%8", "%9", "%10", GPU_SUMS_8(0));                         \
    else                                                                                                              \
        GPU_MULTIPLY_GROUP("8", types, after, GPU_NAMES_4, "%4", "%5", "%6", GPU_SUMS_4(0))

template <int N> constexpr bool is_width = N == 128 || N == 64 || (N % 8 == 0 && N > 0 && N <= 32);

template <bool HALF, int N, int BLOCKS> GPU_INLINE void multiply_group(float (&d)[BLOCKS][4], Matrix a, Matrix b, bool add)
{
    static_assert(is_width<N> && N <= 8 * BLOCKS, "no such product is used");
    if constexpr (HALF) {
        GPU_MULTIPLY_GROUPS("k16.f32.f16.f16", GPU_K_MAJOR);
    } else {
        GPU_MULTIPLY_GROUPS("k16.f32.bf16.bf16", GPU_K_MAJOR);
    }
}

template <int N, int BLOCKS> GPU_INLINE void multiply_group_codes(float (&d)[BLOCKS][4], Matrix a, Matrix b, bool add)
{
    static_assert(is_width<N> && N <= 8 * BLOCKS, "no such product is used");
    GPU_MULTIPLY_GROUPS("k32.f32.e4m3.e4m3", "");
}

} // namespace gpu

#endif
