// shift: token rows plus one vector, a bias after the combine.
//
//   x[token] --- + vector --- round ---> result[token]       a warp a token, a lane 8 columns
//
// Constants from the compiler: WIDTH, SOURCE, RESULT; THREADS, SHARED_BYTES.
#include "rows.h"

GPU_KERNEL(THREADS, 4)
{
    each_row(args, [&](int64_t token) {
        each_column<WIDTH>([&](int64_t column) {
            float x[VECTOR], more[VECTOR];
            load_vector<SOURCE>(x, (const char *)args.k.p[SHIFT_X] + bytes_of(SOURCE, token * WIDTH + column));
            load_vector<dtype_f32>(more, (const char *)args.k.p[SHIFT_VECTOR] + column * 4);
            GPU_UNROLL for (int i = 0; i < VECTOR; i++) x[i] += more[i];
            store_vector<RESULT>((char *)args.k.p[SHIFT_RESULT] + bytes_of(RESULT, token * WIDTH + column), x);
        });
    });
}
