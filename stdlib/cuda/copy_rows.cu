// copy_rows: gathers rows by pointer and converts them; it packs rows into the slots of other ranks and unpacks those that
// arrived into the rows of A.
//
//   control: src[row], dst[row]       a warp a row, a lane 8 elements:
//   x [tokens][WIDTH] --- src[row] ---> 16-byte loads --- convert ---> 16-byte stores --- dst[row] ---> slot or A
//
//   to E4M3: a lane has 16 elements, BLOCK / 16 lanes find the block's maximum by exchanges
//   x --- src[row] ---> registers --- maximum ---> factor ---> 16 codes a store, a scale a block --- dst[row] ---> slot
//
// Constants from the compiler: WIDTH, SOURCE, RESULT, BLOCK and SCALE_TYPE (of the side in blocks), TABLE (of the control),
// BETWEEN (rounded to on the way, or none), MULTIPLIED (type of the codes of rows for FP8 arithmetic, or none); THREADS,
// SHARED_BYTES.
#include "wire.h"

constexpr bool IN_BLOCKS = SOURCE == dtype_fp8_e4m3;
constexpr int64_t FORMAT = SOURCE | (IN_BLOCKS ? (int64_t)SCALE_TYPE << 8 | (int64_t)BLOCK << 16 : 0);

/// One row, in one warp.
template <int TO> GPU_INLINE void copy_row(char *to, const char *from)
{
    if constexpr (TO == dtype_fp8_e4m3 && IN_BLOCKS) {
        copy_codes_of_row<BLOCK, SCALE_TYPE, WIDTH>(to, from);
    } else if constexpr (TO == dtype_fp8_e4m3) {
        pack_row<SOURCE, BLOCK, SCALE_TYPE, WIDTH, BETWEEN, MULTIPLIED != dtype_none>(to, from);
    } else if constexpr (SOURCE == TO) {
        each_column<WIDTH>([&](int64_t column) {
            GPU_UNROLL for (int64_t at = bytes_of(TO, column); at < bytes_of(TO, column + VECTOR); at += 16)
                *(gpu::Words *)(to + at) = *(const gpu::Words *)(from + at);
        });
    } else {
        each_column<WIDTH>([&](int64_t column) {
            float values[VECTOR];
            load_wire<FORMAT, WIDTH>(values, from, column);
            round_vector<BETWEEN>(values);
            store_vector<TO>(to + bytes_of(TO, column), values);
        });
    }
}

GPU_KERNEL(THREADS, 4)
{
    const struct moe_row_table *table = (const struct moe_row_table *)args.k.p[COPY_CONTROL] + TABLE;
    each_row(args, [&](int64_t row) { copy_row<RESULT>((char *)table->dst[row], (const char *)table->src[row]); });
}
