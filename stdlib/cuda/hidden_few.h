// Hidden activations of mlp_up's tiles of few rows (tiles_few_hopper.h), whose sums a thread has of two neighbouring rows and
// of single features: transposed eight by eight, they are what the other tiles' threads have.
//
//   sums of gate and up --> activation --> two rows of a feature --> transpose_matrix --> two features of a row
//                                                                     |
//     rounded: four lanes exchange blocks of eight features ----------+---> hidden [pairs][FFN], 16 bytes at a time
//     in FP8 arithmetic: largest of a row's 16 features in a warp ----'---> shared memory [warp][row] --> factor --> codes
//
// What other threads may still read of one tile's maxima the next must not overwrite: hidden_codes.h. Included behind mlp_up's
// activation.
#ifndef MOE_HIDDEN_FEW_H
#define MOE_HIDDEN_FEW_H

constexpr int FEW_BLOCKS = FEW_MOST / EIGHT;     // of eight rows
constexpr int FEW_EIGHTS = EXPANDED ? 1 : 2;     // of features that a warp has, of each projection
constexpr int FEW_SHARERS = PLAIN ? TEAM / gpu::WARP : WARPS; // warps that have parts of a row's block

/// Two features of a row, of the n-th block of rows and the e-th eight of features, which begin at `first`; `further`: those
/// FEATURES further.
GPU_INLINE void few_words(const Launch &args, const Tile &tile, const FewSums &sums, const float *bias, int64_t first, int n,
                          int e, uint32_t &word, uint32_t &further)
{
    float x[2], y[2];
    GPU_UNROLL for (int i = 0; i < 2; i++)
    {
        x[i] = sums.at[0][n][2 * e + i];
        y[i] = EXPANDED ? sums.at[0][n][2 + i] : sums.at[1][n][2 * e + i];
        activate(x[i], y[i], weight_of(args, tile, 8 * n + gpu::lane() % 4 * 2 + i), bias, first + 8 * e + gpu::lane() / 4);
    }
    word = gpu::transpose_matrix(pair_of<DTYPE>(x[0], x[1]));
    if (PLAIN)
        further = gpu::transpose_matrix(pair_of<DTYPE>(y[0], y[1]));
}

/// finish, of few rows.
GPU_INLINE void finish(const Launch &args, const Tile &tile, const FewSums &sums, int column)
{
    const float *bias = bias_of(args, tile);
    const int64_t first = tile.feature + column + gpu::warp() % (TEAM / gpu::WARP) * 8 * FEW_EIGHTS;
    GPU_UNROLL for (int block = 0; block < FEW_BLOCKS * FEW_EIGHTS; block += 4)
    {
        uint32_t words[PAIR_WORDS][4] = {}, further[PAIR_WORDS][4] = {};
        if (block / FEW_EIGHTS * 8 >= tile.rows)
            return;
        GPU_UNROLL for (int i = 0; i < 4; i++)
        {
            const int n = (block + i) / FEW_EIGHTS, e = (block + i) % FEW_EIGHTS;
            if (8 * n < tile.rows)
                few_words(args, tile, sums, bias, first, n, e, words[0][i], further[0][i]);
        }
        const int own = block + gpu::lane() % 4, place = own / FEW_EIGHTS * 8 + gpu::lane() / 4;
        store_blocks(args, tile, words, place, first + own % FEW_EIGHTS * 8);
        if (PLAIN)
            store_blocks(args, tile, further, place, first + own % FEW_EIGHTS * 8 + FEATURES);
    }
}

/// Sets the maxima of a thread's rows to those of their blocks.
GPU_INLINE void share_few(uint32_t (&largest)[FEW_BLOCKS], int turn)
{
    static_assert(!CODED || LARGEST_AT + 2 * WARPS * FEW_MOST * 4 <= BARRIERS_AT, "the compiler counts the same");
    uint32_t *shared = (uint32_t *)(gpu::shared() + LARGEST_AT) + turn * WARPS * FEW_MOST;
    const int row = gpu::lane() / 4, from = gpu::warp() / FEW_SHARERS * FEW_SHARERS;
    GPU_UNROLL for (int n = 0; n < FEW_BLOCKS; n++)
        if (gpu::lane() % 4 == 0)
            shared[gpu::warp() * FEW_MOST + 8 * n + row] = largest[n];
    if (PLAIN)
        sync_team();
    else
        sync_multiplying();
    GPU_UNROLL for (int n = 0; n < FEW_BLOCKS; n++)
        GPU_UNROLL for (int s = 0; s < FEW_SHARERS; s++)
        {
            const uint32_t other = shared[(from + s) * FEW_MOST + 8 * n + row];
            largest[n] = other > largest[n] ? other : largest[n];
        }
}

/// Codes of a warp's 16 features, and of those FEATURES further, with the rows' scales: store_coded, of few rows. Words are
/// numbered by block of rows, set, and eight of features; `block` is the one of features that shares a scale.
GPU_INLINE void store_coded_few(const Launch &args, const Tile &tile, const uint32_t (&words)[FEW_BLOCKS][SETS][2], int64_t first,
                                int64_t block, int turn)
{
    char *hidden = (char *)args.k.p[UP_HIDDEN] + tile.first * HIDDEN_STRIDE;
    uint32_t largest[FEW_BLOCKS] = {}, scale;
    float factors[FEW_BLOCKS];
    GPU_UNROLL for (int n = 0; n < FEW_BLOCKS; n++)
    {
        GPU_UNROLL for (int j = 0; j < 2 * SETS; j++) largest[n] = larger_of<DTYPE>(largest[n], words[n][j / 2][j % 2]);
        largest[n] = largest_of_lanes(largest[n]);
    }
    share_few(largest, turn);
    GPU_UNROLL for (int n = 0; n < FEW_BLOCKS; n++)
    {
        const int place = 8 * n + gpu::lane() / 4;
        factors[n] = block_factor<ROW_SCALE>(largest[n], scale);
        uint32_t *scales = (uint32_t *)(hidden + place * HIDDEN_STRIDE + codes_bytes(FFN));
        if (gpu::warp() % FEW_SHARERS == 0 && gpu::lane() % 4 == 0 && place < tile.rows && block < tile.feature_end)
            scales[block / ROW_BLOCK] = stored_scale<ROW_SCALE>(scale);
    }
    GPU_UNROLL for (int set = 0; set < SETS; set++)
    {
        uint32_t four[4];
        GPU_UNROLL for (int n = 0; n < FEW_BLOCKS; n++)
            four[n] = two_codes<DTYPE>(words[n][set][0], factors[n]) | two_codes<DTYPE>(words[n][set][1], factors[n]) << 16;
        const gpu::Words codes = in_order(transpose(four));
        const int place = gpu::lane() % 4 * 8 + gpu::lane() / 4;
        const int64_t at = first + set * FEATURES;
        if (place < tile.rows && at < tile.feature_end)
            *(gpu::Words *)(hidden + place * HIDDEN_STRIDE + at) = codes;
    }
}
static_assert(FEW_BLOCKS == 4, "four lanes store four runs");

/// finish in FP8 arithmetic.
GPU_INLINE void finish_coded(const Launch &args, const Tile &tile, const FewSums &sums, int column, int turn)
{
    const float *bias = bias_of(args, tile);
    const int64_t first = tile.feature + column + first_row();
    uint32_t words[FEW_BLOCKS][SETS][2] = {};
    GPU_UNROLL for (int n = 0; n < FEW_BLOCKS; n++)
        GPU_UNROLL for (int e = 0; e < 2; e++)
            if (8 * n < tile.rows)
                few_words(args, tile, sums, bias, first, n, e, words[n][0][e], words[n][SETS - 1][e]);
    store_coded_few(args, tile, words, first, tile.feature + column, turn);
}

#endif
