// The GPU back of device.h: built-ins and inline PTX, compiled by NVRTC.
#ifndef MOE_DEVICE_PTX_H
#define MOE_DEVICE_PTX_H

#define GPU_INLINE static __device__ __forceinline__
#define GPU_UNROLL _Pragma("unroll")
#define GPU_ROLLED _Pragma("unroll 1")

/// Opens a kernel's body, which finds its launch in `args`. `threads` a block, at least `resident` blocks on an SM.
#define GPU_KERNEL(threads, resident) \
    extern "C" __global__ void __launch_bounds__(threads, resident) KERNEL_NAME(const __grid_constant__ Launch args)

extern __shared__ __align__(1024) char gpu_shared_memory[];

namespace gpu {

GPU_INLINE int thread()
{
    return (int)threadIdx.x;
}

GPU_INLINE int thread_anew()
{
    int number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
}

GPU_INLINE int block()
{
    return (int)blockIdx.x;
}

GPU_INLINE int blocks()
{
    return (int)gridDim.x;
}

GPU_INLINE char *shared()
{
    return gpu_shared_memory;
}

GPU_INLINE uint32_t shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

GPU_INLINE void sync_block()
{
    __syncthreads();
}

GPU_INLINE void sync_warp()
{
    __syncwarp();
}

template <class T> GPU_INLINE T shuffle(T value, int lane)
{
    return __shfl_sync(0xffffffffu, value, lane);
}

GPU_INLINE void copy_async(void *to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}

GPU_INLINE void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> GPU_INLINE void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

GPU_INLINE void load_matrices(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

#define GPU_MULTIPLY(type)                                                                                             \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "    \
                 "{%8, %9}, {%0, %1, %2, %3};"                                                                         \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

GPU_INLINE uint32_t transpose_matrix(uint32_t row)
{
    uint32_t column;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(row));
    return column;
}

template <bool HALF> GPU_INLINE void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (HALF)
        GPU_MULTIPLY("f16");
    else
        GPU_MULTIPLY("bf16");
}

GPU_INLINE void multiply_codes(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

GPU_INLINE float fma(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}

GPU_INLINE uint32_t bf16_pair(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

GPU_INLINE float square_root(float value)
{
    return __fsqrt_rn(value);
}

GPU_INLINE uint32_t f16_pair(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

GPU_INLINE float f16_low(uint32_t pair)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((uint16_t)pair));
    return value;
}

GPU_INLINE float f16_high(uint32_t pair)
{
    return f16_low(pair >> 16);
}

GPU_INLINE uint32_t bits(float value)
{
    return __float_as_uint(value);
}

GPU_INLINE float number(uint32_t bits)
{
    return __uint_as_float(bits);
}

} // namespace gpu

#endif
