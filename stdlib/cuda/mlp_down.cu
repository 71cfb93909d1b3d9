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
// BIAS_BYTES (of an expert), those of codes.h and fp8.h; THREADS, RESIDENT, BLOCK_M, COLUMNS (of an item), PANEL (of a unit of work),
// STAGES, SHARED_BYTES. On sm_90a the product is tiles_hopper.h's, each of its teams has half of the columns to itself, and
// threads that copy go through the items with them.
#if GPU_MAPS
#include "tiles_fp8_hopper.h"
#else
#include "tiles_fp8.h"
#endif

constexpr bool HAS_BIAS = (FORM & MLP_HAS_BIAS) != 0;
constexpr int64_t ROW_STRIDE = weight_stride(FFN);
constexpr int TEAM_COLUMNS = COLUMNS / TEAMS, VECTORS = TEAM_COLUMNS / VECTOR; // of a row of the item, a team's
#if GPU_MAPS
/// Columns of an item: fewer when all rows fit into half a tile.
GPU_INLINE int64_t item_columns(int64_t rows)
{
    return rows <= BOX_ROWS ? TEAMS * NARROW : COLUMNS;
}
#else
GPU_INLINE int64_t item_columns(int64_t)
{
    return COLUMNS;
}
constexpr int MS = BLOCK_M / 2 / 16, NS = COLUMNS / COLUMN_WARPS / 8; // a warp's part
using TileSums = Sums<MS, NS>;
#endif

/// Panels of columns and a range of rows. Numbers of 32 bits: a thread keeps them beside the sums.
struct Item {
    int column, column_end, team_columns, row, row_end;
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
    const int place = gpu::thread() % TEAM;
    const int64_t within = place % VECTORS * VECTOR, column = item.column + team() * item.team_columns + within;
    if (within < item.team_columns && column < item.column_end)
        for (int64_t row = item.row + place / VECTORS; row < item.row_end; row += TEAM / VECTORS)
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

/// Two neighbouring sums: four lanes read and write the 32 bytes of a sector.
struct alignas(8) Two {
    float x, y;
};

/// Adds a thread's part of a tile, whose first pair is `first`, to the accumulator. Its columns begin at `column` of the
/// item. `bias`: the expert's.
GPU_INLINE void add(const struct moe_pairs_head *pairs, char *acc, const Item &item, int64_t first, int rows,
                    const TileSums &sums, int column, const float *bias)
{
    GPU_UNROLL for (int m = 0; m < MS; m++)
        GPU_UNROLL for (int half = 0; half < 2; half++)
        {
            const int place = first_row() + M_STEP * m + gpu::lane() / 4 + 8 * half;
            if (place >= rows)
                continue;
            const float weight = UNWEIGHTED ? 1.0f : pairs->pair_weight[first + place];
            char *to = acc + pairs->pair_row[first + place] * ACC_STRIDE;
            GPU_UNROLL for (int n = 0; n < NS; n++)
            {
                const int64_t at = item.column + column + 8 * n + gpu::lane() % 4 * 2;
                if (at >= item.column_end || 8 * n >= item.team_columns)
                    continue;
                const float x = sums.at[m][n][2 * half], y = sums.at[m][n][2 * half + 1];
                Two &two = *(Two *)(to + at * 4);
                const Two before = two;
                two = {gpu::fma(weight, HAS_BIAS ? x + bias[at] : x, before.x),
                       gpu::fma(weight, HAS_BIAS ? y + bias[at + 1] : y, before.y)};
            }
        }
}

/// `columns` rows of the weights, from `column` on.
GPU_INLINE Rows weight_rows(const char *weights, int64_t column, int columns)
{
    const int64_t left = WIDTH - column;
    const char *at = weights + column * ROW_STRIDE;
    return {{{at, left < columns ? (int)left : columns}, {at, 0}}, ROW_STRIDE, columns};
}

/// In FP8 arithmetic: what a thread scales with, the second half of whose columns lies `apart` further.
GPU_INLINE Factors factors_of(const Launch &args, const Item &item, const char *weights, int64_t first, int rows, int column,
                              int apart)
{
    const char *row_scales = (const char *)args.k.p[DOWN_HIDDEN] + first * HIDDEN_STRIDE + codes_bytes(FFN);
    const int64_t at = item.column + column;
    return {row_scales, rows, weight_factors(weights, WIDTH, FFN, at), HIDDEN_STRIDE, apart * 4,
            at + apart < WIDTH ? 2 : at < WIDTH};
}

/// The product of `rows` pairs, and where its columns begin for this thread.
template <class Pipe>
GPU_INLINE int product(const Launch &args, Pipe &pipe, TileSums &sums, const Item &item, int expert, int64_t first, int rows)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[DOWN_PAIRS];
    const char *weights = (const char *)args.k.p[DOWN_W] + (pairs->first_expert + expert) * WEIGHT_BYTES;
#if GPU_MAPS
    const int column = (int)(team() * item.team_columns);
    const Left a = {&args.maps[0], first, rows};
    const int64_t at = item.column + column;
    if constexpr (CODED)
        multiply_coded(pipe, sums, a,
                       {&args.maps[1], item.column, pairs->first_expert + expert, false, item.team_columns == NARROW},
                       factors_of(args, item, weights, first, rows, column, BOX_ROWS), FFN);
    else if constexpr (!EXPANDED)
        multiply(pipe, sums, a, {&args.maps[1], item.column, pairs->first_expert + expert, false, item.team_columns == NARROW}, FFN);
    else
        multiply_weights(pipe, sums, a,
                         {weight_rows(weights, at, (int)item.team_columns), scales_of(weights, WIDTH, FFN, at, at),
                          item.team_columns == NARROW},
                         FFN);
#else
    const char *a_rows = (const char *)args.k.p[DOWN_HIDDEN] + first * HIDDEN_STRIDE;
    const Rows a = {{{a_rows, rows}, {a_rows, 0}}, HIDDEN_STRIDE, BLOCK_M};
    const int column = gpu::warp() % COLUMN_WARPS * (COLUMNS / COLUMN_WARPS);
    const Rows b = weight_rows(weights, item.column, COLUMNS);
    if constexpr (CODED)
        multiply_coded<BLOCK_M, COLUMNS, STAGES>(sums, a, b, factors_of(args, item, weights, first, rows, column, 4 * NS), FFN,
                                                 first_row(), column, 4 * NS);
    else
        multiply_weights<BLOCK_M, COLUMNS, STAGES>(sums, a, b, scales_of(weights, WIDTH, FFN, item.column, item.column), FFN,
                                                   first_row(), column, 4 * NS);
#endif
    return column;
}

/// Everything that one expert adds to the item.
template <class Pipe> GPU_INLINE void add_expert(const Launch &args, Pipe &pipe, const Item &item, int expert)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[DOWN_PAIRS];
    const int64_t begin = pairs->expert_first[expert], end = pairs->expert_first[expert + 1];
    const int64_t last = first_pair(pairs, begin, end, item.row_end);
    const float *bias = nullptr;
    if (HAS_BIAS)
        bias = (const float *)((const char *)args.k.p[DOWN_ARGS] + (pairs->first_expert + expert) * BIAS_BYTES);
    for (int64_t first = first_pair(pairs, begin, last, item.row); first < last; first += BLOCK_M) {
        const int rows = last - first < BLOCK_M ? (int)(last - first) : BLOCK_M;
        TileSums sums;
        // its barrier parts this add from the one before, whose sums other threads have written, and the first from the
        // clearing; barriers order global memory among their threads too. A token names an expert once, so no two pairs of a
        // tile have the same row
        const int column = product(args, pipe, sums, item, expert, first, rows);
        if (pipe.MULTIPLIES)
            add(pairs, (char *)args.k.p[DOWN_ACC], item, first, rows, sums, column, bias);
    }
}

/// Into how many ranges the rows are cut: the fewest with which the blocks are busy nearly as long as the best would let
/// them be, of 16 or fewer. An item more than there are blocks makes all wait for one.
GPU_INLINE int64_t row_ranges(int64_t rows, int64_t panels)
{
    const int64_t blocks = gpu::blocks(), most = (rows + BLOCK_M - 1) / BLOCK_M;
    int64_t best = 1, best_turns = (panels + blocks - 1) / blocks;
    for (int64_t ranges = 2; ranges <= most && ranges <= 16; ranges++) {
        const int64_t turns = (panels * ranges + blocks - 1) / blocks;
        if (10 * turns * best < 9 * best_turns * ranges) {
            best = ranges;
            best_turns = turns;
        }
    }
    return best;
}

GPU_KERNEL(THREADS, RESIDENT)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[DOWN_PAIRS];
    char *acc = (char *)args.k.p[DOWN_ACC];
    const int width = (int)(args.end * PANEL < WIDTH ? args.end * PANEL : WIDTH), begin = (int)(args.begin * PANEL);
    const int columns = (int)item_columns(pairs->rows), panels = (width - begin + columns - 1) / columns;
    const int ranges = (int)row_ranges(pairs->rows, panels);
    with_pipeline([&](auto pipe) {
        for (int number = gpu::block(); number < panels * ranges; number += gpu::blocks()) {
            const int range = number % ranges;
            const Item item = {begin + number / ranges * columns, width, columns / TEAMS,
                               (int)(pairs->rows * range / ranges), (int)(pairs->rows * (range + 1) / ranges)};
            if (pipe.MULTIPLIES)
                clear(item, acc);
            for (int expert = 0; expert < pairs->experts; expert++)
                add_expert(args, pipe, item, expert);
            if (pipe.MULTIPLIES) {
                sync_team(); // what other threads have added
                store(item, acc, pairs);
            }
            // no barrier before the next item: its part of the accumulator is another
        }
    });
}
