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
//                       hidden [pairs][FFN], two elements at a time
//
// Tiles that use the same weights follow one another, so a panel is read from memory once and then from L2.
//
// Constants from the compiler: HIDDEN, FFN, ACTIVATION, DTYPE, A_STRIDE, HIDDEN_STRIDE, WEIGHTED_INPUT, FORM, ALPHA, LIMIT,
// WEIGHT_BYTES and BIAS_BYTES (of an expert), those of codes.h; THREADS, RESIDENT, BLOCK_M, FEATURES, PANEL (features of a unit
// of work), TILE_PANELS, STAGES, SHARED_BYTES. On sm_90a the product is tiles_hopper.h's: the tile is as wide as both its teams,
// each with a B tile as above, and threads that copy go through the tiles with them.
#if GPU_MAPS
#include "tiles_hopper.h"
#else
#include "codes.h"
#endif

static_assert(DTYPE == dtype_bf16 || DTYPE == dtype_f16, "what tensor cores multiply");

constexpr bool PLAIN = (FORM & MLP_PLAIN) != 0, HAS_BIAS = (FORM & MLP_HAS_BIAS) != 0;
constexpr int64_t PANELS = (FFN + PANEL - 1) / PANEL;
constexpr int TEAM_FEATURES = PLAIN ? 2 * FEATURES : FEATURES;
#if GPU_MAPS
using TileSums = Sums;
#else
constexpr int BLOCK_N = 2 * FEATURES, MS = BLOCK_M / 2 / 16, NS = BLOCK_N / 2 / 8; // a warp's part
constexpr int64_t ROW_STRIDE = weight_stride(HIDDEN);
using TileSums = Sums<MS, NS>;
#endif

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

/// Two neighbouring features of one pair.
GPU_INLINE void store_features(char *hidden_row, int64_t feature, int64_t end, const float (&value)[2])
{
    if (feature < end)
        store_pair<DTYPE>(hidden_row + feature * 2, value[0], value[1]);
}

/// What the activation gets: the product, times the pair's weight, plus the bias.
GPU_INLINE float biased(float product, float weight, const float *bias, int64_t feature)
{
    const float value = WEIGHTED_INPUT ? product * weight : product;
    return HAS_BIAS && feature < FFN ? value + bias[feature] : value;
}

/// The activation of a thread's part of the tile, to memory. Its features begin at `column` of the tile.
GPU_INLINE void finish(const Launch &args, const Tile &tile, const TileSums &sums, int column)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[UP_PAIRS];
    const float *bias = nullptr;
    if (HAS_BIAS)
        bias = (const float *)((const char *)args.k.p[UP_ARGS] + (pairs->first_expert + tile.expert) * BIAS_BYTES);
    GPU_UNROLL for (int m = 0; m < MS; m++)
        GPU_UNROLL for (int half = 0; half < 2; half++)
        {
            const int place = first_row() + M_STEP * m + gpu::lane() / 4 + 8 * half;
            if (place >= tile.rows)
                continue;
            const float weight = WEIGHTED_INPUT ? pairs->pair_weight[tile.first + place] : 1.0f;
            char *to = (char *)args.k.p[UP_HIDDEN] + (tile.first + place) * HIDDEN_STRIDE;
            GPU_UNROLL for (int n = 0; n < NS / 2; n++)
            {
                const int64_t feature = tile.feature + column + 8 * n + gpu::lane() % 4 * 2;
                float first[2], second[2]; // gate and up, or features FEATURES apart
                GPU_UNROLL for (int i = 0; i < 2; i++)
                {
                    const int64_t other = PLAIN ? feature + FEATURES + i : feature + i;
                    first[i] = biased(sums.at[m][n][2 * half + i], weight, bias, feature + i);
                    second[i] = biased(sums.at[m][n + NS / 2][2 * half + i], weight, PLAIN ? bias : bias + FFN, other);
                    if (PLAIN) {
                        first[i] = activated<ACTIVATION>(first[i]);
                        second[i] = activated<ACTIVATION>(second[i]);
                    } else {
                        first[i] = gated<ACTIVATION>(first[i], second[i], ALPHA, LIMIT);
                    }
                }
                store_features(to, feature, tile.feature_end, first);
                if (PLAIN)
                    store_features(to, feature + FEATURES, tile.feature_end, second);
            }
        }
}

#if GPU_MAPS
/// The tile's product, and where its features begin for this thread.
template <class Pipe> GPU_INLINE int product(const Launch &args, Pipe &pipe, TileSums &sums, const Tile &tile)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[UP_PAIRS];
    multiply(pipe, sums, {&args.maps[0], tile.first, tile.rows},
             {&args.maps[1], tile.feature, pairs->first_expert + tile.expert, !PLAIN}, HIDDEN);
    return team() * TEAM_FEATURES;
}
#else
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

template <class Pipe> GPU_INLINE int product(const Launch &args, Pipe &, TileSums &sums, const Tile &tile)
{
    const struct moe_pairs_head *pairs = (const struct moe_pairs_head *)args.k.p[UP_PAIRS];
    const char *weights = (const char *)args.k.p[UP_W] + (pairs->first_expert + tile.expert) * WEIGHT_BYTES;
    const char *a_rows = (const char *)args.k.p[UP_A] + tile.first * A_STRIDE;
    const Rows a = {{{a_rows, (int)tile.rows}, {a_rows, 0}}, A_STRIDE, BLOCK_M};
    const int column = gpu::warp() % 2 * (FEATURES / 2);
    multiply_weights<BLOCK_M, BLOCK_N, STAGES>(sums, a, weight_rows(weights, tile.feature), weight_scales(weights, tile.feature),
                                               HIDDEN, first_row(), column, FEATURES);
    return column;
}
#endif

GPU_KERNEL(THREADS, RESIDENT)
{
    with_pipeline([&](auto pipe) {
        Progress at = {args.begin / PANELS, 0};
        Tile tile;
        for (int64_t number = gpu::block(); find_tile(args, at, number, tile); number += gpu::blocks()) {
            TileSums sums;
            const int column = product(args, pipe, sums, tile);
            if (pipe.MULTIPLIES)
                finish(args, tile, sums, column);
        }
    });
}
