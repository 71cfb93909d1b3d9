// merge: adds up a token's replies, by ascending rank, to its result or to the sum of earlier waves.
//
//   bins: merge_rows[merge_first[token] .. merge_first[token + 1])     a warp a token, a lane 8 columns:
//   sum so far (ADDS) or 0 --- + reply --- + reply --- ... --- round ---> y[token]
//
// Constants from the compiler: WIDTH, REPLY, RESULT, ADDS; THREADS, SHARED_BYTES.
#include "rows.h"

GPU_KERNEL(THREADS, 4)
{
    const struct moe_bins_head *bins = (const struct moe_bins_head *)args.k.p[MERGE_BINS];
    each_row(args, [&](int64_t token) {
        const int64_t first = bins->merge_first[token], end = bins->merge_first[token + 1];
        each_column<WIDTH>([&](int64_t column) {
            float sum[VECTOR] = {};
            if (ADDS)
                load_vector<dtype_f32>(sum, (const char *)args.k.p[MERGE_SUM] + (token * WIDTH + column) * 4);
            add_rows<REPLY>(sum, bins->merge_rows, first, end, column);
            store_vector<RESULT>((char *)args.k.p[MERGE_Y] + bytes_of(RESULT, token * WIDTH + column), sum);
        });
    });
}
