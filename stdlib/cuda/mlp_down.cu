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
// threads that copy go through the items with them. Where experts have few rows items are narrow, 64 columns, for more blocks.
#if GPU_MAPS
#include "tiles_fp8_hopper.h"
#else
#include "tiles_fp8.h"
#endif

constexpr bool HAS_BIAS = (FORM & MLP_HAS_BIAS) != 0;
constexpr int64_t ROW_STRIDE = weight_stride(FFN);
#if GPU_MAPS
constexpr int DEEP = EXPANDED ? 0 : 4; // slices of a step, of few rows; 0: no tile is one of few rows
constexpr int NARROW_COLUMNS = NARROW, NARROW_M = BOX_ROWS; // of a narrow item's team; of its tiles

/// Whether items are narrow: all rows fit into half a tile, or experts have few, so that reading weights is what takes time.
GPU_INLINE bool narrow_items(const struct moe_pairs_head *pairs)
{
    return pairs->rows <= BOX_ROWS || pairs->expert_first[pairs->experts] <= FEW_ROWS * pairs->experts;
}
#else
constexpr int DEEP = 0, NARROW_COLUMNS = COLUMNS, NARROW_M = BLOCK_M; // there are none
constexpr int MS = BLOCK_M / 2 / 16, NS = COLUMNS / COLUMN_WARPS / 8; // a warp's part
using TileSums = Sums<MS, NS>;
#endif

/// Panels of columns and a range of rows. Numbers of 32 bits: a thread keeps them beside the sums.
template <bool THAT_IS_NARROW> struct Item {
    static constexpr bool IS_NARROW = THAT_IS_NARROW;
    static constexpr int TEAM_COLUMNS = IS_NARROW ? NARROW_COLUMNS : COLUMNS / TEAMS, MOST_ROWS = IS_NARROW ? NARROW_M : BLOCK_M;
    int column, column_end, row, row_end;
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
template <class AnItem, class Body> GPU_INLINE void each_vector(const AnItem &item, Body body)
{
    constexpr int VECTORS = AnItem::TEAM_COLUMNS / VECTOR; // of a row, a team's
    const int place = gpu::thread() % TEAM, column = item.column + team() * AnItem::TEAM_COLUMNS + place % VECTORS * VECTOR;
    if (column < item.column_end)
        for (int row = item.row + place / VECTORS; row < item.row_end; row += TEAM / VECTORS)
            body((int64_t)row, (int64_t)column);
}

template <class AnItem> GPU_INLINE void clear(const AnItem &item, char *acc)
{
    each_vector(item, [&](int64_t row, int64_t column) {
        const float zeros[VECTOR] = {};
        store_vector<dtype_f32>(acc + row * ACC_STRIDE + column * 4, zeros);
    });
}

template <class AnItem> GPU_INLINE void store(const AnItem &item, const char *acc, const struct moe_pairs_head *pairs)
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

/// Adds two neighbouring sums of a pair, times its weight, to its row of the accumulator. `bias`: the expert's.
GPU_INLINE void add_two(char *row, float weight, const float *bias, int64_t column, float x, float y)
{
    Two &two = *(Two *)(row + column * 4);
    const Two before = two;
    two = {gpu::fma(weight, HAS_BIAS ? x + bias[column] : x, before.x),
           gpu::fma(weight, HAS_BIAS ? y + bias[column + 1] : y, before.y)};
}

/// Adds a thread's part of a tile, whose first pair is `first`, to the accumulator. Its columns begin at `column` of the
/// item.
template <class AnItem>
GPU_INLINE void add(const struct moe_pairs_head *pairs, char *acc, const AnItem &item, int64_t first, int rows,
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
                if (at < item.column_end && 8 * n < AnItem::TEAM_COLUMNS)
                    add_two(to, weight, bias, at, sums.at[m][n][2 * half], sums.at[m][n][2 * half + 1]);
            }
        }
}

#if GPU_MAPS
/// add, of few rows (tiles_few_hopper.h): threads whose columns are neighbours exchange a row, so that each has two columns of one.
template <class AnItem>
GPU_INLINE void add(const struct moe_pairs_head *pairs, char *acc, const AnItem &item, int64_t first, int rows,
                    const FewSums &sums, int, const float *bias)
{
    if (!has_part<DEEP>())
        return;
    const int lane = gpu::lane(), odd = lane / 4 % 2, column = first_row() + lane / 8 * 2;
    GPU_UNROLL for (int n = 0; n < FEW_MOST / 8; n++)
    {
        const int place = 8 * n + lane % 4 * 2 + odd;
        if (8 * n >= rows)
            return;
        const float weight = UNWEIGHTED || place >= rows ? 1.0f : pairs->pair_weight[first + place];
        char *to = acc + (place < rows ? pairs->pair_row[first + place] : 0) * ACC_STRIDE;
        GPU_UNROLL for (int half = 0; half < 2; half++)
        {
            const float even_row = sums.at[0][n][2 * half], odd_row = sums.at[0][n][2 * half + 1];
            const float other = gpu::shuffle_xor(odd ? even_row : odd_row, 4);
            const int64_t at = item.column + column + 8 * half;
            if (place < rows && at < item.column_end)
                add_two(to, weight, bias, at, odd ? other : even_row, odd ? odd_row : other);
        }
    }
}
#endif

/// `columns` rows of the weights, from `column` on.
GPU_INLINE Rows weight_rows(const char *weights, int64_t column, int columns)
{
    const int64_t left = WIDTH - column;
    const char *at = weights + column * ROW_STRIDE;
    return {{{at, left < columns ? (int)left : columns}, {at, 0}}, ROW_STRIDE, columns};
}

/// In FP8 arithmetic: what a thread scales with, the second half of whose columns lies `apart` further.
template <class AnItem>
GPU_INLINE Factors factors_of(const Launch &args, const AnItem &item, const char *weights, int64_t first, int rows, int column,
                              int apart)
{
    const char *row_scales = (const char *)args.k.p[DOWN_HIDDEN] + first * HIDDEN_STRIDE + codes_bytes(FFN);
    const int64_t at = item.column + column;
    return {row_scales, rows, weight_factors(weights, WIDTH, FFN, at), HIDDEN_STRIDE, apart * 4,
            at + apart < WIDTH ? 2 : at < WIDTH};
}

/// The product of `rows` pairs, and where its columns begin for this thread.
template <class Pipe, class TheSums, class AnItem>
GPU_INLINE int product(const Launch &args, Pipe &pipe, TheSums &sums, const AnItem &item, int expert, int64_t first, int rows)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[DOWN_PAIRS];
    const char *weights = (const char *)args.k.p[DOWN_W] + (pairs->first_expert + expert) * WEIGHT_BYTES;
#if GPU_MAPS
    const int column = team() * AnItem::TEAM_COLUMNS;
    const Left a = {&args.maps[0], &args.maps[GPU_MAPS - 1], first, rows};
    const Right b = {&args.maps[GPU_MAPS - 2], item.column, pairs->first_expert + expert, false, AnItem::IS_NARROW};
    const int64_t at = item.column + column;
    if constexpr (CODED)
        multiply_coded<DEEP, FFN>(pipe, sums, a, b, factors_of(args, item, weights, first, rows, column, BOX_ROWS));
    else if constexpr (!EXPANDED)
        multiply<DEEP, FFN>(pipe, sums, a, b);
    else
        multiply_weights<FFN>(
            pipe, sums, a,
            {weight_rows(weights, at, AnItem::TEAM_COLUMNS), scales_of(weights, WIDTH, FFN, at, at), AnItem::IS_NARROW});
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

/// What `rows` pairs of an expert add to the item.
template <class TheSums, class Pipe, class AnItem>
GPU_INLINE void add_tile(const Launch &args, Pipe &pipe, const AnItem &item, int expert, int64_t first, int rows, const float *bias)
{
    TheSums sums;
    // its barrier parts this add from the one before, whose sums other threads have written, and the first from the
    // clearing; barriers order global memory among their threads too. A token names an expert once, so no two pairs of a
    // tile have the same row
    const int column = product(args, pipe, sums, item, expert, first, rows);
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[DOWN_PAIRS];
    if constexpr (Pipe::MULTIPLIES)
        add(pairs, (char *)args.k.p[DOWN_ACC], item, first, rows, sums, column, bias);
}

/// Everything that one expert adds to the item.
template <class Pipe, class AnItem>
GPU_INLINE void add_expert(const Launch &args, Pipe &pipe, const AnItem &item, int expert)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[DOWN_PAIRS];
    const int64_t begin = pairs->expert_first[expert], end = pairs->expert_first[expert + 1];
    const int last = (int)first_pair(pairs, begin, end, item.row_end);
    const float *bias = nullptr;
    if (HAS_BIAS)
        bias = (const float *)((const char *)args.k.p[DOWN_ARGS] + (pairs->first_expert + expert) * BIAS_BYTES);
    for (int first = (int)first_pair(pairs, begin, last, item.row); first < last; first += AnItem::MOST_ROWS) {
        const int rows = last - first < AnItem::MOST_ROWS ? last - first : AnItem::MOST_ROWS;
#if GPU_MAPS
        if constexpr (AnItem::IS_NARROW)
            if (is_few<DEEP>(rows, true)) {
                add_tile<FewSums>(args, pipe, item, expert, first, rows, bias);
                continue;
            }
#endif
        add_tile<TileSums>(args, pipe, item, expert, first, rows, bias);
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

/// All items of a block.
template <bool IS_NARROW, class Pipe> GPU_INLINE void do_items(const Launch &args, Pipe &pipe)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[DOWN_PAIRS];
    char *acc = (char *)args.k.p[DOWN_ACC];
    constexpr int WIDE = TEAMS * Item<IS_NARROW>::TEAM_COLUMNS;
    const int width = (int)(args.end * PANEL < WIDTH ? args.end * PANEL : WIDTH), begin = (int)(args.begin * PANEL);
    const int panels = (width - begin + WIDE - 1) / WIDE, ranges = IS_NARROW ? 1 : (int)row_ranges(pairs->rows, panels);
    for (int number = gpu::block(); begin + number / ranges * WIDE < width; number += gpu::blocks()) {
        const int range = number % ranges;
        const Item<IS_NARROW> item = {begin + number / ranges * WIDE, width, (int)(pairs->rows * range / ranges),
                                      (int)(pairs->rows * (range + 1) / ranges)};
        if (pipe.MULTIPLIES)
            clear(item, acc);
        for (int expert = 0; expert < pairs->experts; expert++)
            add_expert(args, pipe, item, expert);
        if (pipe.MULTIPLIES) {
            sync_columns(DEEP > 1 && IS_NARROW); // what other threads have added
            store(item, acc, pairs);
        }
        // no barrier before the next item: its part of the accumulator is another
    }
}

GPU_KERNEL(THREADS, RESIDENT)
{
    with_pipeline([&](auto pipe) {
#if GPU_MAPS
        if (narrow_items((const struct moe_pairs_head *)args.k.p[DOWN_PAIRS])) {
            do_items<true>(args, pipe);
            return;
        }
#endif
        do_items<false>(args, pipe);
    });
}
