// mlp_up: the gate and up projections of every expert's rows, their biases and the activation between them,
// hidden[pair] = activation(A[pair] . W_gate + b) * (A[pair] . W_up + b), or, without a gate, activation(A[pair] . W + b).
//
//   tile list, in order:  expert, panel of features, BLOCK_M of the expert's pairs
//   block b takes tiles b, b + blocks, ...; an expert without pairs has no tiles
//
//           W of the expert                          A: rows of the expert's pairs
//      gate [FFN][HIDDEN]  up [FFN][HIDDEN]          [pairs][HIDDEN]
//        FEATURES rows       FEATURES rows              BLOCK_M rows
//              '------ B tile ------'                      A tile
//                        '---- tiles.h, codes.h ----------'
//                                       |
//         registers: gate and up of one feature lie in one thread, so the activation needs no exchange
//         (without a gate the two halves of the B tile are 2 FEATURES features side by side)
//                                       |
//         four lanes have blocks of eight features between them; by exchanges each gets whole ones
//                                       |
//                       hidden [pairs][FFN], 16 bytes at a time; in FP8 arithmetic as codes: hidden_codes.h
//
// Tiles that use the same weights follow one another, so a panel is read from memory once and then from L2.
//
// Constants from the compiler: HIDDEN, FFN, ACTIVATION, DTYPE, A_STRIDE, HIDDEN_STRIDE, WEIGHTED_INPUT, FORM, ALPHA, LIMIT,
// WEIGHT_BYTES and BIAS_BYTES (of an expert), those of codes.h and fp8.h; THREADS, RESIDENT, BLOCK_M, FEATURES, PANEL (features of a unit
// of work), TILE_PANELS, STAGES, SHARED_BYTES. On sm_90a the product is tiles_hopper.h's: the tile is as wide as both its teams,
// each with a B tile as above, and threads that copy go through the tiles with them; of few rows tiles_few_hopper.h's.
#if GPU_MAPS
#include "tiles_fp8_hopper.h"
#else
#include "tiles_fp8.h"
#endif

constexpr bool PLAIN = (FORM & MLP_PLAIN) != 0, HAS_BIAS = (FORM & MLP_HAS_BIAS) != 0;
constexpr int64_t PANELS = (FFN + PANEL - 1) / PANEL;
constexpr int TEAM_FEATURES = PLAIN ? 2 * FEATURES : FEATURES;
constexpr int64_t ROW_STRIDE = weight_stride(HIDDEN);
constexpr int PAIR_WORDS = DTYPE == dtype_f32 ? 2 : 1; // of two neighbouring features
#if !GPU_MAPS
constexpr int BLOCK_N = 2 * FEATURES, MS = BLOCK_M / 2 / 16, NS = BLOCK_N / COLUMN_WARPS / 8; // a warp's part
using TileSums = Sums<MS, NS>;
#endif
#include "hidden_codes.h"

/// What a block works on.
struct Tile {
    int64_t expert, first, rows;  // first pair, and how many of them
    int64_t feature, feature_end; // of an expert's
};

/// How far a block has come through the launch's tiles: it asks for ascending numbers.
struct Progress {
    int64_t expert, before; // tiles of the experts before that one
};

/// The tile of a number, or false when there are fewer.
GPU_INLINE bool find_tile(const Launch &args, Progress &at, int64_t number, Tile &tile)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[UP_PAIRS];
    for (; at.expert * PANELS < args.end; at.expert++) {
        const int64_t first = pairs->expert_first[at.expert], rows = pairs->expert_first[at.expert + 1] - first;
        const int64_t units = at.expert * PANELS, high = (rows + BLOCK_M - 1) / BLOCK_M;
        const int64_t from = args.begin > units ? args.begin - units : 0;
        const int64_t to = args.end < units + PANELS ? args.end - units : PANELS;
        const int64_t wide = (to - from + TILE_PANELS - 1) / TILE_PANELS, place = number - at.before;
        if (place < wide * high) {
            const int64_t m = place % high, left = rows - m * BLOCK_M, end = to * PANEL;
            tile = {at.expert, first + m * BLOCK_M, left < BLOCK_M ? left : BLOCK_M,
                    (from + place / high * TILE_PANELS) * PANEL, end < FFN ? end : FFN};
            return true;
        }
        at.before += wide * high;
    }
    return false;
}

/// What the activation gets: the product, times the pair's weight, plus the bias.
GPU_INLINE float biased(float product, float weight, const float *bias, int64_t feature)
{
    const float value = WEIGHTED_INPUT ? product * weight : product;
    return HAS_BIAS && feature < FFN ? value + bias[feature] : value;
}

/// The activation of a feature, in x; without a gate of that FEATURES further, too, in y.
GPU_INLINE void activate(float &x, float &y, float weight, const float *bias, int64_t feature)
{
    x = biased(x, weight, bias, feature);
    y = biased(y, weight, PLAIN ? bias : bias + FFN, PLAIN ? feature + FEATURES : feature);
    if (PLAIN) {
        x = activated<ACTIVATION>(x);
        y = activated<ACTIVATION>(y);
    } else {
        x = gated<ACTIVATION>(x, y, ALPHA, LIMIT);
    }
}

/// That of two neighbouring features of a row: what a thread has of a half.
GPU_INLINE void activate_pair(const float (&first)[4], const float (&second)[4], int half, float weight, const float *bias,
                              int64_t feature, float (&x)[2], float (&y)[2])
{
    GPU_UNROLL for (int i = 0; i < 2; i++)
    {
        x[i] = first[2 * half + i];
        y[i] = second[2 * half + i];
        activate(x[i], y[i], weight, bias, feature + i);
    }
}

/// Two neighbouring features as they are stored, in the i-th place.
GPU_INLINE void put_pair(uint32_t (&words)[PAIR_WORDS][4], int i, const float (&pair)[2])
{
    if constexpr (PAIR_WORDS == 2) {
        words[0][i] = gpu::bits(pair[0]);
        words[PAIR_WORDS - 1][i] = gpu::bits(pair[1]);
    } else {
        words[0][i] = pair_of<DTYPE>(pair[0], pair[1]);
    }
}

/// Blocks of eight features of a row that four lanes have, one of each: lane l stores the (l % 4)-th, which belongs to row
/// `place` of the tile, feature `at` on.
GPU_INLINE void store_blocks(const Launch &args, const Tile &tile, uint32_t (&words)[PAIR_WORDS][4], int place, int64_t at)
{
    const gpu::Words vector = transpose(words[0]), odd = PAIR_WORDS == 2 ? transpose(words[PAIR_WORDS - 1]) : vector;
    if (place >= tile.rows || at >= tile.feature_end)
        return;
    gpu::Words *to =
        (gpu::Words *)((char *)args.k.p[UP_HIDDEN] + (tile.first + place) * HIDDEN_STRIDE + bytes_of(DTYPE, at));
    to[0] = PAIR_WORDS == 1 ? vector : gpu::Words{vector.x, odd.x, vector.y, odd.y};
    if (PAIR_WORDS == 2)
        to[PAIR_WORDS - 1] = {vector.z, odd.z, vector.w, odd.w};
}

/// The biases of the tile's expert.
GPU_INLINE const float *bias_of(const Launch &args, const Tile &tile)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[UP_PAIRS];
    const int64_t expert = pairs->first_expert + tile.expert;
    return HAS_BIAS ? (const float *)((const char *)args.k.p[UP_ARGS] + expert * BIAS_BYTES) : nullptr;
}

/// What a row's products are multiplied with before the activation.
GPU_INLINE float weight_of(const Launch &args, const Tile &tile, int place)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[UP_PAIRS];
    return WEIGHTED_INPUT && place < tile.rows ? pairs->pair_weight[tile.first + place] : 1.0f;
}

/// The activation of a thread's part of the tile, to memory. Its features begin at `column` of the tile.
GPU_INLINE void finish(const Launch &args, const Tile &tile, const TileSums &sums, int column)
{
    const float *bias = bias_of(args, tile);
    const int64_t first = tile.feature + column;
    GPU_UNROLL for (int m = 0; m < MS; m++)
        GPU_UNROLL for (int block = 0; block < NS; block += 4) // of eight features, NS / 2 of a row before those of the row 8 further
        {
            const int place = first_row() + M_STEP * m + gpu::lane() / 4;
            uint32_t words[PAIR_WORDS][4], further[PAIR_WORDS][4];
            GPU_UNROLL for (int i = 0; i < 4; i++)
            {
                const int half = (block + i) / (NS / 2), n = (block + i) % (NS / 2);
                float x[2], y[2]; // gate and up, or features FEATURES apart
                activate_pair(sums.at[m][n], sums.at[m][n + NS / 2], half, weight_of(args, tile, place + 8 * half), bias,
                              first + 8 * n + gpu::lane() % 4 * 2, x, y);
                put_pair(words, i, x);
                if (PLAIN)
                    put_pair(further, i, y);
            }
            const int own = block + gpu::lane() % 4, own_place = place + own / (NS / 2) * 8;
            const int64_t at = first + own % (NS / 2) * 8;
            store_blocks(args, tile, words, own_place, at);
            if (PLAIN)
                store_blocks(args, tile, further, own_place, at + FEATURES);
        }
}
static_assert(NS % 4 == 0, "four lanes store four blocks");

/// finish in FP8 arithmetic.
GPU_INLINE void finish_coded(const Launch &args, const Tile &tile, const TileSums &sums, int column, int turn)
{
    char *hidden = (char *)args.k.p[UP_HIDDEN] + tile.first * HIDDEN_STRIDE;
    const int64_t first = tile.feature + column;
    HiddenPart part;
    const float *bias = bias_of(args, tile);
    GPU_UNROLL for (int m = 0; m < MS; m++)
        GPU_UNROLL for (int half = 0; half < 2; half++)
        {
            const float weight = weight_of(args, tile, first_row() + M_STEP * m + gpu::lane() / 4 + 8 * half);
            GPU_UNROLL for (int n = 0; n < EIGHTS; n++)
            {
                float x[2], y[2];
                activate_pair(sums.at[m][n], sums.at[m][n + EIGHTS], half, weight, bias, first + 8 * n + gpu::lane() % 4 * 2, x, y);
                part.words[m][half][0][n] = pair_of<DTYPE>(x[0], x[1]);
                if (PLAIN)
                    part.words[m][half][SETS - 1][n] = pair_of<DTYPE>(y[0], y[1]);
            }
        }
    store_coded(part, hidden, (int)tile.rows, first, tile.feature_end, turn);
}

#if GPU_MAPS
#include "hidden_few.h"
#endif

/// The B tile: rows of the gate and of the up projection, or of the one there is.
GPU_INLINE Rows weight_rows(const char *weights, int64_t feature)
{
    const int64_t left = FFN - feature, first = left < FEATURES ? left : FEATURES;
    const int64_t more = left - FEATURES < FEATURES ? left - FEATURES : FEATURES, second = PLAIN ? more : first;
    const int64_t apart = PLAIN ? FEATURES : FFN;
    const char *at = weights + feature * ROW_STRIDE;
    return {{{at, (int)first}, {at + apart * ROW_STRIDE, (int)second}}, ROW_STRIDE, FEATURES};
}

/// Theirs. The scales of the up projection begin at a multiple of 16.
GPU_INLINE Scales weight_scales(const char *weights, int64_t feature)
{
    const int64_t apart = PLAIN ? FEATURES : (FFN + 15) / 16 * 16;
    return scales_of(weights, PLAIN ? FFN : 2 * FFN, HIDDEN, feature, feature + apart);
}

/// In FP8 arithmetic: what a thread scales with, whose features begin at `column` of the tile.
GPU_INLINE Factors factors_of(const Launch &args, const Tile &tile, const char *weights, int column)
{
    const char *rows = (const char *)args.k.p[UP_A] + tile.first * A_STRIDE + codes_bytes(HIDDEN);
    constexpr int64_t APART = PLAIN ? FEATURES : (FFN + 15) / 16 * 16, ROWS = PLAIN ? FFN : 2 * FFN;
    const int64_t first = tile.feature + column;
    const bool second = (PLAIN ? first + FEATURES : first) < FFN;
    return {rows, (int)tile.rows, weight_factors(weights, ROWS, HIDDEN, first), A_STRIDE, APART * 4, second ? 2 : first < FFN};
}

/// The tile's product, and where its features begin for this thread.
template <class Pipe, class TheSums> GPU_INLINE int product(const Launch &args, Pipe &pipe, TheSums &sums, const Tile &tile)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[UP_PAIRS];
    const int64_t expert = pairs->first_expert + tile.expert;
    const char *weights = (const char *)args.k.p[UP_W] + expert * WEIGHT_BYTES;
#if GPU_MAPS
    const int column = team() * TEAM_FEATURES;
    const Left a = {&args.maps[0], &args.maps[GPU_MAPS - 1], tile.first, tile.rows};
    if constexpr (CODED)
        multiply_coded<1, HIDDEN>(pipe, sums, a, {&args.maps[1], tile.feature, expert, !PLAIN, false},
                                  factors_of(args, tile, weights, column));
    else if constexpr (!EXPANDED)
        multiply<1, HIDDEN>(pipe, sums, a, {&args.maps[1], tile.feature, expert, !PLAIN, false});
    else
        multiply_weights<HIDDEN>(
            pipe, sums, a,
            {weight_rows(weights, tile.feature + column), weight_scales(weights, tile.feature + column), false});
#else
    const char *a_rows = (const char *)args.k.p[UP_A] + tile.first * A_STRIDE;
    const Rows a = {{{a_rows, (int)tile.rows}, {a_rows, 0}}, A_STRIDE, BLOCK_M};
    const int column = gpu::warp() % COLUMN_WARPS * (FEATURES / COLUMN_WARPS);
    const Rows b = weight_rows(weights, tile.feature);
    if constexpr (CODED)
        multiply_coded<BLOCK_M, BLOCK_N, STAGES>(sums, a, b, factors_of(args, tile, weights, column), HIDDEN, first_row(), column,
                                                 FEATURES);
    else
        multiply_weights<BLOCK_M, BLOCK_N, STAGES>(sums, a, b, weight_scales(weights, tile.feature), HIDDEN, first_row(), column,
                                                   FEATURES);
#endif
    return column;
}

/// The whole tile of a number.
template <class TheSums, class Pipe> GPU_INLINE void do_tile(const Launch &args, Pipe &pipe, const Tile &tile, int64_t number)
{
    TheSums sums;
    const int column = product(args, pipe, sums, tile);
    if constexpr (CODED && Pipe::MULTIPLIES)
        finish_coded(args, tile, sums, column, (int)(number / gpu::blocks() % 2));
    else if constexpr (Pipe::MULTIPLIES)
        finish(args, tile, sums, column);
}

GPU_KERNEL(THREADS, RESIDENT)
{
    with_pipeline([&](auto pipe) {
        Progress at = {args.begin / PANELS, 0};
        Tile tile;
        for (int64_t number = gpu::block(); find_tile(args, at, number, tile); number += gpu::blocks()) {
#if GPU_MAPS
            if (is_few<1>(tile.rows, false)) {
                do_tile<FewSums>(args, pipe, tile, number);
                continue;
            }
#endif
            do_tile<TileSums>(args, pipe, tile, number);
        }
    });
}
