// merge: adds up a token's replies, by ascending rank, to its result or to the sum of earlier waves.
//
//   bins: merge_rows[merge_first[token] .. merge_first[token + 1])     a warp a token, a lane 8 columns:
//   sum so far (ADDS) or 0 --- + reply --- + reply --- ... --- round ---> y[token]
//
// The low four bits of a reply's pointer say in what format it is: 0 like own rows, else the number of one of FORMATS.
//
// Constants from the compiler: WIDTH, REPLY (own rows), RESULT, ADDS, FORMATS, FORMAT_1 to FORMAT_4 (moe_wire_code); THREADS,
// SHARED_BYTES.
#include "wire.h"

/// Some replies are in another format than own rows.
constexpr bool MARKED = (FORMATS > 0 && FORMAT_1 != REPLY) || (FORMATS > 1 && FORMAT_2 != REPLY) ||
                        (FORMATS > 2 && FORMAT_3 != REPLY) || (FORMATS > 3 && FORMAT_4 != REPLY);

template <int NUMBER, int64_t FORMAT>
GPU_INLINE void load_format(float (&to)[VECTOR], const char *row, int mark, int64_t column)
{
    if constexpr (NUMBER <= FORMATS)
        if (mark == NUMBER)
            load_wire<FORMAT, WIDTH>(to, row, column);
}

GPU_INLINE void load_reply(float (&to)[VECTOR], const char *reply, int64_t column)
{
    const int mark = (int)((uint64_t)reply & 15);
    const char *row = reply - mark;
    if (mark == 0)
        load_wire<REPLY, WIDTH>(to, row, column);
    load_format<1, FORMAT_1>(to, row, mark, column);
    load_format<2, FORMAT_2>(to, row, mark, column);
    load_format<3, FORMAT_3>(to, row, mark, column);
    load_format<4, FORMAT_4>(to, row, mark, column);
}

GPU_KERNEL(THREADS, 4)
{
    const struct moe_bins_head *bins = (const struct moe_bins_head *)args.k.p[MERGE_BINS];
    each_row(args, [&](int64_t token) {
        const int64_t first = bins->merge_first[token], end = bins->merge_first[token + 1];
        each_column<WIDTH>([&](int64_t column) {
            float sum[VECTOR] = {};
            if (ADDS)
                load_vector<dtype_f32>(sum, (const char *)args.k.p[MERGE_SUM] + (token * WIDTH + column) * 4);
            if (!MARKED) {
                add_rows<REPLY>(sum, bins->merge_rows, first, end, column);
            } else {
                for (int64_t i = first; i < end; i++) {
                    float more[VECTOR] = {};
                    load_reply(more, (const char *)bins->merge_rows[i], column);
                    GPU_UNROLL for (int k = 0; k < VECTOR; k++) sum[k] += more[k];
                }
            }
            store_vector<RESULT>((char *)args.k.p[MERGE_Y] + bytes_of(RESULT, token * WIDTH + column), sum);
        });
    });
}
