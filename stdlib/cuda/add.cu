// add: the element-wise sum of two tensors of token rows.
//
//   a[token] --.
//              + --- round ---> sum[token]       a warp a token, a lane 8 columns
//   b[token] --'
//
// Constants from the compiler: WIDTH, A, B, RESULT; THREADS, SHARED_BYTES.
#include "rows.h"

GPU_KERNEL(THREADS, 4)
{
    each_row(args, [&](int64_t token) {
        each_column<WIDTH>([&](int64_t column) {
            const int64_t at = token * WIDTH + column;
            float a[VECTOR], b[VECTOR];
            load_vector<A>(a, (const char *)args.k.p[ADD_A] + bytes_of(A, at));
            load_vector<B>(b, (const char *)args.k.p[ADD_B] + bytes_of(B, at));
            GPU_UNROLL for (int i = 0; i < VECTOR; i++) a[i] += b[i];
            store_vector<RESULT>((char *)args.k.p[ADD_RESULT] + bytes_of(RESULT, at), a);
        });
    });
}
