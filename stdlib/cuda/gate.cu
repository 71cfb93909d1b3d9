// gate: rows times the sigmoid of a product, the gate of shared experts, result = y * sigmoid(x . w).
//
//   x[token] . w : a lane sums its columns in ascending order, then the lanes meet in five exchanges, always the same
//   ones, so a token's factor does not depend on its company
//   y[token] --- * factor --- round ---> result[token]       a warp a token, a lane 8 columns
//
// Constants from the compiler: WIDTH, SOURCE (x), REPLY (y), RESULT; THREADS, SHARED_BYTES.
#include "rows.h"

GPU_KERNEL(THREADS, 4)
{
    each_row(args, [&](int64_t token) {
        float product = 0;
        each_column<WIDTH>([&](int64_t column) {
            float x[VECTOR], w[VECTOR];
            load_vector<SOURCE>(x, (const char *)args.k.p[GATE_X] + bytes_of(SOURCE, token * WIDTH + column));
            load_vector<dtype_f32>(w, (const char *)args.k.p[GATE_W] + column * 4);
            GPU_UNROLL for (int i = 0; i < VECTOR; i++) product = gpu::fma(x[i], w[i], product);
        });
        GPU_UNROLL for (int mask = gpu::WARP / 2; mask > 0; mask /= 2) product += gpu::shuffle_xor(product, mask);
        const float factor = sigmoid(product, 1.0f);
        each_column<WIDTH>([&](int64_t column) {
            float y[VECTOR];
            load_vector<REPLY>(y, (const char *)args.k.p[GATE_Y] + bytes_of(REPLY, token * WIDTH + column));
            GPU_UNROLL for (int i = 0; i < VECTOR; i++) y[i] *= factor;
            store_vector<RESULT>((char *)args.k.p[GATE_RESULT] + bytes_of(RESULT, token * WIDTH + column), y);
        });
    });
}
