// sum_rows: adds up rows by pointer, as a relay does with its node's replies. The sum may go where its first part lies.
//
//   control: parts[first[row] .. first[row + 1])     a warp a row, a lane 8 columns:
//   0 --- + part --- + part --- ... --- round ---> dst[row]
//
// Constants from the compiler: WIDTH, DTYPE; THREADS, SHARED_BYTES.
#include "rows.h"

GPU_KERNEL(THREADS, 4)
{
    const struct moe_sums_head *control = (const struct moe_sums_head *)args.k.p[SUM_CONTROL];
    each_row(args, [&](int64_t row) {
        each_column<WIDTH>([&](int64_t column) {
            float sum[VECTOR] = {};
            add_rows<DTYPE>(sum, control->parts, control->first[row], control->first[row + 1], column);
            store_vector<DTYPE>((char *)control->sums.dst[row] + bytes_of(DTYPE, column), sum);
        });
    });
}
