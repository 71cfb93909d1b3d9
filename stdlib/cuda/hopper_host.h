// The host back of hopper.h: calls of the emulator, which models what each instruction promises and no more.
#ifndef MOE_HOPPER_HOST_H
#define MOE_HOPPER_HOST_H

namespace gpu {

using Barrier = uint64_t;
using Matrix = uint64_t; // a descriptor; its address is counted from the block's shared memory

GPU_INLINE void barrier_init(Barrier *b, int arrivals)
{
    host_barrier_init(b, arrivals);
}

GPU_INLINE void publish()
{
    host_publish();
}

GPU_INLINE void barrier_arrive(Barrier *b)
{
    host_barrier_arrive(b, 0);
}

GPU_INLINE void barrier_expect(Barrier *b, int bytes)
{
    host_barrier_arrive(b, bytes);
}

GPU_INLINE void barrier_wait(Barrier *b, int parity)
{
    host_barrier_wait(b, parity);
}

GPU_INLINE void copy_box(void *to, const Map &map, Barrier *b, int x0, int x1)
{
    const int x[4] = {x0, x1, 0, 0};
    host_copy_box(to, &map, b, x, 2);
}

GPU_INLINE void copy_box(void *to, const Map &map, Barrier *b, int x0, int x1, int x2, int x3)
{
    const int x[4] = {x0, x1, x2, x3};
    host_copy_box(to, &map, b, x, 4);
}

template <int THREADS_OF_BARRIER> GPU_INLINE void sync_threads(int id)
{
    host_sync_threads(id, THREADS_OF_BARRIER);
}

template <int N> GPU_INLINE void take_registers()
{
}

template <int N> GPU_INLINE void give_registers()
{
}

GPU_INLINE Matrix matrix_at(const void *at)
{
    const uint64_t address = (uint64_t)((const char *)at - shared());
    return (address & 0x3ffff) >> 4 | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

GPU_INLINE Matrix matrix_k(Matrix m, int bytes)
{
    return m + (uint64_t)(bytes >> 4);
}

GPU_INLINE void multiply_begin()
{
    host_multiply_begin();
}

GPU_INLINE void multiply_commit()
{
    host_multiply_commit();
}

template <int N> GPU_INLINE void multiply_wait()
{
    host_multiply_wait(N);
}

template <int BLOCKS> GPU_INLINE void multiply_end(float (&)[BLOCKS][4])
{
}

template <bool HALF, int N, int BLOCKS> GPU_INLINE void multiply_group(float (&d)[BLOCKS][4], Matrix a, Matrix b, bool add)
{
    static_assert(N <= 8 * BLOCKS, "sums for all columns");
    host_group_lane product = {d[0], N, a, b, add, HALF ? HOST_F16 : HOST_BF16};
    host_multiply_group(&product);
}

template <int N, int BLOCKS> GPU_INLINE void multiply_group_codes(float (&d)[BLOCKS][4], Matrix a, Matrix b, bool add)
{
    static_assert(N <= 8 * BLOCKS, "sums for all columns");
    host_group_lane product = {d[0], N, a, b, add, HOST_E4M3};
    host_multiply_group(&product);
}

} // namespace gpu

#endif
