// What kernels that work through rows share: a warp takes a row, a lane every 32nd vector of eight elements, so that a
// warp's loads and stores are whole 16-byte accesses side by side.
#ifndef MOE_ROWS_H
#define MOE_ROWS_H

#include "numbers.h"

/// Calls body(row) for the launch's rows, each in one warp.
template <class Body> GPU_INLINE void each_row(const Launch &args, Body body)
{
    const int64_t warps = THREADS / gpu::WARP;
    for (int64_t row = args.begin + gpu::block() * warps + gpu::warp(); row < args.end; row += gpu::blocks() * warps)
        body(row);
}

/// Calls body(column) for a lane's vectors of a row.
template <int64_t WIDTH_OF_ROW, class Body> GPU_INLINE void each_column(Body body)
{
    for (int64_t column = gpu::lane() * VECTOR; column < WIDTH_OF_ROW; column += gpu::WARP * VECTOR)
        body(column);
}

/// sum += the rows parts[first .. end), in that order.
template <int DTYPE> GPU_INLINE void add_rows(float (&sum)[VECTOR], const void *const *parts, int64_t first, int64_t end,
                                              int64_t column)
{
    for (int64_t i = first; i < end; i++) {
        float more[VECTOR];
        load_vector<DTYPE>(more, (const char *)parts[i] + bytes_of(DTYPE, column));
        GPU_UNROLL for (int k = 0; k < VECTOR; k++) sum[k] += more[k];
    }
}

#endif
