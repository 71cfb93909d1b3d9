// mlp_down: the down projection of every pair, plus its bias, times its routing weight, summed over a row's experts,
// y[row] = sum over the row's pairs, by ascending expert, of weight[pair] * (hidden[pair] . W_down + b).
//
//   work list: panel of COLUMNS, range of rows; block b takes items b, b + blocks, ...
//
//        accumulator [rows][WIDTH] f32:  1. the item's part is zeroed
//              ^                         2. expert by expert, tile by tile:   tiles.h product of
//              |  acc[row] += weight * sum    hidden rows of the expert's pairs that belong to the row range
//              '--------------------------    and COLUMNS rows of W [WIDTH][FFN]
//        3. the part is rounded and stored where each row's sum belongs (reply slot or own row), 16 bytes at a time
//
// An item owns its part of the accumulator, so no block waits for another and every row meets its experts in ascending
// order. Pairs of an expert are sorted by row, so those of a row range are a run, found by bisection. Into how many ranges
// the rows are cut depends on the number of blocks and changes no bit.
//
// Constants from the compiler: FFN, WIDTH, DTYPE, RESULT, HIDDEN_STRIDE, ACC_STRIDE, UNWEIGHTED, FORM, WEIGHT_BYTES and
// BIAS_BYTES (of an expert), those of codes.h; THREADS, BLOCK_M, COLUMNS, STAGES, SHARED_BYTES.
#include "codes.h"

static_assert(DTYPE == dtype_bf16 || DTYPE == dtype_f16, "what tensor cores multiply");

constexpr bool HAS_BIAS = (FORM & MLP_HAS_BIAS) != 0;
constexpr int MS = BLOCK_M / 2 / 16, NS = COLUMNS / 2 / 8; // a warp's part
constexpr int64_t ROW_STRIDE = weight_stride(FFN);
constexpr int VECTORS = COLUMNS / VECTOR;                  // of a row of the item

/// A panel of columns and a range of rows.
struct Item {
    int64_t column, row, row_end;
};

/// The first of an expert's pairs [from, to) whose row is not below `row`.
GPU_INLINE int64_t first_pair(const struct moe_pairs_head *pairs, int64_t from, int64_t to, int64_t row)
{
    while (from < to) {
        const int64_t middle = (from + to) / 2;
        if (pairs->pair_row[middle] < row)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/// A thread's vectors of the item: rows and columns that it zeroes, and later stores.
template <class Body> GPU_INLINE void each_vector(const Item &item, Body body)
{
    const int64_t column = item.column + gpu::thread() % VECTORS * VECTOR;
    if (column < WIDTH)
        for (int64_t row = item.row + gpu::thread() / VECTORS; row < item.row_end; row += THREADS / VECTORS)
            body(row, column);
}

GPU_INLINE void clear(const Item &item, char *acc)
{
    each_vector(item, [&](int64_t row, int64_t column) {
        const float zeros[VECTOR] = {};
        store_vector<dtype_f32>(acc + row * ACC_STRIDE + column * 4, zeros);
    });
}

GPU_INLINE void store(const Item &item, const char *acc, const struct moe_pairs_head *pairs)
{
    each_vector(item, [&](int64_t row, int64_t column) {
        float sums[VECTOR];
        load_vector<dtype_f32>(sums, acc + row * ACC_STRIDE + column * 4);
        store_vector<RESULT>((char *)pairs->row_dst[row] + bytes_of(RESULT, column), sums);
    });
}

/// Adds a warp's part of a tile, whose first pair is `first`, to the accumulator. `bias`: the expert's.
GPU_INLINE void add(const struct moe_pairs_head *pairs, char *acc, const Item &item, int64_t first, int64_t rows,
                    const Sums<MS, NS> &sums, int row, int column, const float *bias)
{
    GPU_UNROLL for (int m = 0; m < MS; m++)
        GPU_UNROLL for (int half = 0; half < 2; half++)
        {
            const int place = row + 16 * m + gpu::lane() / 4 + 8 * half;
            if (place >= rows)
                continue;
            const float weight = UNWEIGHTED ? 1.0f : pairs->pair_weight[first + place];
            char *to = acc + pairs->pair_row[first + place] * ACC_STRIDE;
            GPU_UNROLL for (int n = 0; n < NS; n++)
            {
                const int64_t at = item.column + column + 8 * n + gpu::lane() % 4 * 2;
                if (at >= WIDTH)
                    continue;
                float *two = (float *)(to + at * 4);
                GPU_UNROLL for (int i = 0; i < 2; i++)
                {
                    const float sum = sums.at[m][n][2 * half + i];
                    two[i] = gpu::fma(weight, HAS_BIAS ? sum + bias[at + i] : sum, two[i]);
                }
            }
        }
}

/// Everything that one expert adds to the item.
GPU_INLINE void add_expert(const Launch &args, const Item &item, int64_t expert)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[DOWN_PAIRS];
    const char *hidden = (const char *)args.k.p[DOWN_HIDDEN];
    const char *weights = (const char *)args.k.p[DOWN_W] + (pairs->first_expert + expert) * WEIGHT_BYTES;
    const int row = gpu::warp() / 2 * (BLOCK_M / 2), column = gpu::warp() % 2 * (COLUMNS / 2);
    const int64_t begin = pairs->expert_first[expert], end = pairs->expert_first[expert + 1], left = WIDTH - item.column;
    const int64_t last = first_pair(pairs, begin, end, item.row_end);
    const char *b_rows = weights + item.column * ROW_STRIDE;
    const Rows b = {{{b_rows, left < COLUMNS ? (int)left : COLUMNS}, {b_rows, 0}}, ROW_STRIDE, COLUMNS};
    const Scales scales = scales_of(weights, WIDTH, FFN, item.column, item.column);
    const float *bias = nullptr;
    if (HAS_BIAS)
        bias = (const float *)((const char *)args.k.p[DOWN_ARGS] + (pairs->first_expert + expert) * BIAS_BYTES);
    for (int64_t first = first_pair(pairs, begin, last, item.row); first < last; first += BLOCK_M) {
        const int64_t rows = last - first < BLOCK_M ? last - first : BLOCK_M;
        const char *a_rows = hidden + first * HIDDEN_STRIDE;
        const Rows a = {{{a_rows, (int)rows}, {a_rows, 0}}, HIDDEN_STRIDE, BLOCK_M};
        Sums<MS, NS> sums;
        // its first barrier parts this add from the one before, and the first from the clearing
        multiply_weights<BLOCK_M, COLUMNS, STAGES>(sums, a, b, scales, FFN, row, column, 4 * NS);
        add(pairs, (char *)args.k.p[DOWN_ACC], item, first, rows, sums, row, column, bias);
    }
}

GPU_KERNEL(THREADS, 2)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[DOWN_PAIRS];
    char *acc = (char *)args.k.p[DOWN_ACC];
    const int64_t panels = args.end - args.begin, most = (pairs->rows + BLOCK_M - 1) / BLOCK_M;
    const int64_t wanted = (2 * gpu::blocks() + panels - 1) / panels, ranges = wanted < most ? wanted : most;
    for (int64_t number = gpu::block(); number < panels * ranges; number += gpu::blocks()) {
        const int64_t range = number % ranges;
        const Item item = {(args.begin + number / ranges) * COLUMNS, pairs->rows * range / ranges,
                           pairs->rows * (range + 1) / ranges};
        clear(item, acc);
        for (int64_t expert = 0; expert < pairs->experts; expert++)
            add_expert(args, item, expert);
        gpu::sync_block(); // what other threads have added
        store(item, acc, pairs);
    }
}
