// add: the element-wise sum of two tensors of token rows.
//
//   a[token] --.
//              + --- round ---> sum[token]       a warp a token, a lane 8 columns
//   b[token] --'
//
// Constants from the compiler: WIDTH, DTYPE; THREADS, SHARED_BYTES.
#include "rows.h"

GPU_KERNEL(THREADS, 4)
{
    each_row(args, [&](int64_t token) {
        each_column<WIDTH>([&](int64_t column) {
            const int64_t at = bytes_of(DTYPE, token * WIDTH + column);
            float a[VECTOR], b[VECTOR];
            load_vector<DTYPE>(a, (const char *)args.k.p[0] + at);
            load_vector<DTYPE>(b, (const char *)args.k.p[1] + at);
            GPU_UNROLL for (int i = 0; i < VECTOR; i++) a[i] += b[i];
            store_vector<DTYPE>((char *)args.k.p[2] + at, a);
        });
    });
}
