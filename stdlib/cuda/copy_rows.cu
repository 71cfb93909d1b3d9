// copy_rows: gathers rows by pointer and converts them; it packs rows into the slots of other ranks and unpacks those that
// arrived into the rows of A.
//
//   control: src[row], dst[row]       a warp a row, a lane 8 elements:
//   x [tokens][WIDTH] --- src[row] ---> 16-byte loads --- convert ---> 16-byte stores --- dst[row] ---> slot or A
//
// Constants from the compiler: WIDTH, SOURCE, RESULT, TABLE (of the control), BETWEEN (rounded to on the way, or none); THREADS, SHARED_BYTES.
#include "rows.h"

GPU_KERNEL(THREADS, 4)
{
    const struct moe_row_table *table = (const struct moe_row_table *)args.k.p[COPY_CONTROL] + TABLE;
    each_row(args, [&](int64_t row) {
        const char *from = (const char *)table->src[row];
        char *to = (char *)table->dst[row];
        each_column<WIDTH>([&](int64_t column) {
            float values[VECTOR];
            if (SOURCE == RESULT) {
                GPU_UNROLL for (int64_t at = 0; at < bytes_of(SOURCE, VECTOR); at += 16)
                    *(gpu::Words *)(to + bytes_of(SOURCE, column) + at) =
                        *(const gpu::Words *)(from + bytes_of(SOURCE, column) + at);
            } else {
                load_vector<SOURCE>(values, from + bytes_of(SOURCE, column));
                round_vector<BETWEEN>(values);
                store_vector<RESULT>(to + bytes_of(RESULT, column), values);
            }
        });
    });
}
