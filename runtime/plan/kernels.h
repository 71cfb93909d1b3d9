// The calling convention between the executor and kernels, generated and built in. Fixed layout: generated code reads
// these structs by offset (compiler/codegen/cpu checks them with _Static_assert).
#ifndef MOE_KERNELS_H
#define MOE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "limits.h"

/// p: the instruction's arguments in order, resolved to addresses (sliced to the part's token rows where the argument
/// says so). n[0] = tokens of the part, n[1] = first token of the part in x, n[2] = this rank, n[3] = layer.
struct moe_kargs {
    void *p[MOE_MAX_ARGS];
    int64_t n[4];
};

/// Runs units [begin, end) of the launch. Called concurrently for disjoint ranges. `scratch` is the worker's own.
typedef void moe_kernel_fn(const struct moe_kargs *args, int64_t begin, int64_t end, void *scratch);

/// Rows to copy, by pointer: what `copy_rows` works through. Control structs begin with tables; the kernel's constant
/// says which is its own.
struct moe_row_table {
    int64_t rows;
    const void *const *src;
    void *const *dst;
};

/// Tables by number. A format is a row of the exchange's wires.
enum {
    TABLES_PACK = 0, // bins and round control: x row -> row record, one table a format
    TABLES_PACK_END = TABLES_PACK + MOE_MAX_WIRES,
    TABLES_UNPACK = 0,                            // pairs: arrived row -> row of A, one a format
    TABLES_REPLY = TABLES_UNPACK + MOE_MAX_WIRES, // pairs: staged sum -> reply record, one a format of the combine
                                                  // sums: sum -> record, one a format of the combine
    TABLE_OWN = TABLES_REPLY + MOE_MAX_WIRES,     // pairs: own x row -> row of A, where such rows are kept apart
    TABLES_END
};

/// Control data that `bin` writes for one part: rows to pack for other ranks, and how to merge their replies.
/// (struct moe_bins, runtime/exec/control.h, begins with this.)
struct moe_bins_head {
    struct moe_row_table pack[TABLES_PACK_END];
    int64_t tokens;
    const int64_t *merge_first;         // [tokens + 1]
    // Replies of token t, by rank: merge_rows[merge_first[t] .. merge_first[t+1]). The low four bits of a pointer, which
    // would be zero, say in what format the reply is: 0 like own rows, else 1 + the number of the combine's format.
    const void *const *merge_rows;
};

/// Rows to add up, by pointer: what `sum_rows` works through, from `fold` or (rows that overflowed) from `bin`.
struct moe_sums_head {
    union {
        struct moe_row_table sums;      // dst alone: where each sum goes, which may be its first row
        struct moe_row_table tables[TABLE_OWN]; // TABLES_REPLY and on: sums (also of one row) to pack
    };
    const int64_t *first;               // [rows + 1]
    const void *const *parts;           // of sum i: parts[first[i] .. first[i+1]), by ascending rank
};

/// Control data that `fan_out` writes: (row, local expert) pairs sorted by local expert.
struct moe_pairs_head {
    struct moe_row_table tables[TABLES_END];
    int64_t experts;                    // local experts (of the wave)
    const int64_t *expert_first;        // [experts + 1]: pairs of local expert first_expert + e
    const int32_t *pair_row;            // [pairs] routed row of each pair
    const float *pair_weight;           // [pairs] routing weight
    int64_t rows;                       // routed rows
    void *const *row_dst;               // [rows] where the row's sum goes: own row, reply record or staging row
    int64_t first_expert;               // local id of the wave's first expert
};

// Roles: arguments p[] and constants n[] of plan_kernel, in order.
//
// route      p: x (slice), router weights, ids i32[B,k], weights f32[B,k] (of a piece: slices); then the vectors f32[E] that
//               n[9] says there are, selection bias before logit bias
//            n: H, E, k, score, normalize, x dtype, groups, groups kept, group score, ROUTE_HAS_* bits
//            scale: factor on the weights; alpha, limit: a selection or logit bias that is one number; temperature: of
//            cosine scores; noise, seed: of the noise on the choice, a function of seed, layer, rank, token and expert
//            unit tokens
// limit      p: ids, weights, places taken i32[E]
//            n: E, k, 1: the weights left to a token add up to `scale`, the first of its choices that find places here, the
//            end of them; alpha: places over tokens * k / E, rounded up, tokens all of the rank's; limit: places. unit one.
//            The first part's first choices begin with no place taken
// bin        p: ids, weights, x (slice), bins control, send slots, reply slots (recv buffer of the combine), own y rows,
//               spill (recv buffer of the pool combine; this argument is absent where there is no pool), with relays
//               and a pool the sums control (replies of one node to one token that come in rounds), and where relays pack
//               sums, records for such sums,
//               bins control of the wave before (last; waves but the first)
//            n: width, choices, y dtype, x dtype size; unit one; instr.exchange: the base dispatch
//               It fills the headers and tables of all chunks of the dispatch
// bin_round  p: ids, weights, x (slice), bins control (read), pool send slots, round control
//            n: as bin; unit one; instr.exchange: the pool dispatch; inside its rounds..end
// copy_rows  p: control (it begins with tables)
//            n: width, source dtype, destination dtype, block, scale type, table, dtype in between, dtype of coded
//               elements; unit rows
//            instr.exchange, where it packs the rows of one chunk of a dispatch: that chunk
//            One side at most is in blocks: codes, then scales. Values are rounded to the dtype in between first, when
//            it is given: a dispatch's result has its own type, whatever carried it and whatever reads it.
//            n[7]: the result is rows to multiply (moe_coded_row_bytes), elements of this dtype; the source may then be in
//            the same blocks, whose codes are taken as they are.
// fan_out    p: bins control, arrived slots, pairs control, A, reply send slots, own y rows, x (slice),
//               staging rows (only where replies travel in another format than y's: sums lie there until packed),
//               arrived slots of the part's waves 0, 1, ... before this one (last; base dispatches)
//            n: A row bytes, choices, own rows apart (their table is TABLE_OWN, else the first), y dtype,
//               1: A has one row for each routed row, in their order, else one for each pair; unit one;
//               instr.exchange: the dispatch, base or pool (pool: no own rows)
// dense      p: pairs control, A, x (slice), y (slice): every token of the part to each of the shared experts, weight 1
//            n: A row bytes, x row bytes, y row bytes, experts, 1: as fan_out; unit one
// mlp_up     p: pairs control, A, weights, hidden activations; then the biases f32 (packed like weights of one column),
//               where n[7] says there are
//            n: H, F, activation, dtype, A row bytes, hidden row bytes, 1: times the pair's weight before the activation,
//               MLP_* bits (MLP_BY_ROW: A has a row for each routed row); quantised weights: their dtype, columns and scales of a block (plan_param); else 0;
//               n[11]: the format (moe_wire_code) of the rows of A and of the hidden activations, which are coded
//               rows then, rounded to the dtype first and to the format behind it; 0: they are of the dtype
//            unit fixed, unit_count panels per local expert: unit u is local expert u / panels, panel u % panels; with n[11]
//            a unit is a block of hidden features
// mlp_down   p: pairs control, hidden activations, weights, accumulator f32[rows, round_up(H, panel)]
//            n: F, H, dtype of weights and hidden, dtype of the result, hidden row bytes, accumulator row bytes,
//               1: without the pair's weight (mlp_up has it), MLP_HAS_BIAS: the biases follow the accumulator;
//               quantised weights and n[11] as mlp_up
//            unit fixed: column panels; every unit zeroes, accumulates (ascending expert) and stores its own columns
// merge      p: bins control, y (slice) or the sum so far f32[B, H], the sum that it adds to (where n[3] is 1); sums are
//               slices where it merges one chunk
//            n: width, dtype of own rows, dtype of what it writes, 1: adds to an earlier wave's sum, number of formats,
//               formats (moe_wire_code); unit tokens
//            instr.exchange, where it merges one chunk: that chunk's combine
// gate       p: x (slice), weights f32[H], y (slice), result (slice): result = y * sigmoid(x . weights)
//            n: H, x dtype, y dtype, result dtype; unit tokens
// add        p: a, b, result (slices)
//            n: H, dtypes of a, b, result; unit tokens
// shift      p: x (slice), vector f32[H], result (slice): result = x + vector
//            n: H, x dtype, result dtype; unit tokens
//
// fold       p: relayed messages of the dispatch (read), the node's replies, sums, sums control,
//               relayed messages of the part's waves 0, 1, ... before this one (last)
//            n: width; unit one; instr.exchange: the combine, or its chunk
// sum_rows   p: sums control
//            n: width, dtype of the rows and of their sum; unit rows
//            instr.exchange, as of copy_rows that packs such sums: the chunk's combine where bin's control has several
//
// instr.exchange is set on launches of bin, bin_round, fan_out (and fold): built-ins take the slots' layout from it (slots.h).
// Own y rows and staging rows have the stride that their buffer names. `rounds X` names the pool dispatch. Between `rounds` and `end`
// a stream has neither wait nor signal: bin_round, copy_rows, send, recv, fan_out, copy_rows, mlp_up, mlp_down, send,
// recv follow one another on that one stream, once a round. It may begin after the recv of the base dispatch.
// Generated roles may have further arguments after those listed: they declare what memory the pointers in control data
// lead to (copy_rows: x, slots, A; mlp_down: reply slots, own rows; merge: the replies), for the verifier and
// ThreadSanitizer, and kernels ignore them. At most MOE_MAX_ARGS arguments in all. A slice is always the instruction's own part.
// Control buffers (bins, pairs, round) are dtype none, are used as that one kind only, share no byte with any other
// buffer, and are cleared when a step starts.
enum {
    ROUTE_X, ROUTE_W, ROUTE_IDS, ROUTE_WEIGHTS, ROUTE_ARGS,
    ROUTE_HAS_BIAS = 1, ROUTE_HAS_LOGIT_BIAS = 2, ROUTE_BIASES = 2,
    LIMIT_IDS = 0, LIMIT_WEIGHTS, LIMIT_TAKEN, LIMIT_ARGS,
    BIN_IDS = 0, BIN_WEIGHTS, BIN_X, BIN_BINS, BIN_SEND, BIN_REPLY, BIN_OWN, BIN_SPILL, BIN_SUMS, BIN_PACKED, BIN_ARGS,
    ROUND_IDS = 0, ROUND_WEIGHTS, ROUND_X, ROUND_BINS, ROUND_SEND, ROUND_CONTROL, ROUND_ARGS,
    COPY_CONTROL = 0, COPY_ARGS,
    FAN_BINS = 0, FAN_ARRIVED, FAN_PAIRS, FAN_A, FAN_REPLY, FAN_OWN, FAN_X, FAN_STAGE, FAN_ARGS,
    DENSE_PAIRS = 0, DENSE_A, DENSE_X, DENSE_Y, DENSE_ARGS,
    UP_PAIRS = 0, UP_A, UP_W, UP_HIDDEN, UP_ARGS,
    MLP_HAS_BIAS = 1, MLP_PLAIN = 2, MLP_BY_ROW = 4, // plain: one projection, without a gate; by row: see mlp_up
    DOWN_PAIRS = 0, DOWN_HIDDEN, DOWN_W, DOWN_ACC, DOWN_ARGS,
    MERGE_BINS = 0, MERGE_Y, MERGE_SUM, MERGE_ARGS = MERGE_SUM,
    FOLD_RELAYED = 0, FOLD_REPLIES, FOLD_SUMS, FOLD_CONTROL, FOLD_ARGS,
    SUM_CONTROL = 0, SUM_ARGS,
    ADD_A = 0, ADD_B, ADD_RESULT, ADD_ARGS,
    GATE_X = 0, GATE_W, GATE_Y, GATE_RESULT, GATE_ARGS,
    SHIFT_X = 0, SHIFT_VECTOR, SHIFT_RESULT, SHIFT_ARGS,
};

// The noise of a token and expert is the sum of 2 * MOE_NOISE_WORDS uniform numbers of 16 bits, which is nearly normal and
// needs no function whose last bit depends on a library.
#define MOE_NOISE_STEP 0x9e3779b9u
enum { MOE_NOISE_WORDS = 4 };

/// What their sum, less its mean, is multiplied with: a standard deviation over that of the sum.
#define MOE_NOISE_FACTOR(deviation) ((deviation) / (65536 * sqrt(2 * MOE_NOISE_WORDS / 12.0)))

/// A wire format as a kernel's constant.
static inline int64_t moe_wire_code(uint32_t dtype, uint32_t block, uint32_t scale)
{
    return (int64_t)dtype | (int64_t)scale << 8 | (int64_t)block << 16;
}

// Waves of experts (`split experts into g`): wave w of a part has a bin, dispatch, fan_out, mlp and merge of its own, for
// local experts [w L / g, (w + 1) L / g) of every rank. A row travels with the first wave that needs it at a rank and has
// a slot for it; its meta lists the rank's experts of that wave and later ones, and it stays in that wave's arrived slots
// until the last wave has read it. A row that finds no slot goes through the wave's pool, for this wave's experts alone,
// and tries again with the next wave. Every rank answers a wave's rows in the order of their storage, by wave, then place;
// in chunks, chunk by chunk.
// Through relays a row travels to a node with the first wave that needs it anywhere there, to all its ranks that need it
// then or later; so a token's replies from a node in one wave all come by the relay, or all in rounds.

/// Does a launch with `args` arguments, for a dispatch of the given wave, name a spill (bin), staging rows (fan_out)?
static inline int moe_bin_has_spill(uint32_t args, uint32_t wave)
{
    return args > BIN_SPILL + (wave > 0 ? 1u : 0u);
}

/// ...the sums control?
static inline int moe_bin_has_sums(uint32_t args, uint32_t wave)
{
    return args > BIN_SUMS + (wave > 0 ? 1u : 0u);
}

/// ...records for packed sums?
static inline int moe_bin_has_packed(uint32_t args, uint32_t wave)
{
    return args > BIN_PACKED + (wave > 0 ? 1u : 0u);
}

static inline int moe_fan_has_stage(uint32_t args, uint32_t earlier)
{
    return args > FAN_STAGE + earlier;
}

/// Bytes of control buffers. bound: B of the part; rows and pairs: slots_fan_rows, slots_fan_pairs, slots_round_rows
/// (dense: rows = B, pairs = B * experts).
static inline int64_t moe_bins_bytes(int64_t ranks, int64_t experts, int64_t choices, int64_t bound, int64_t waves,
                                     int copies)
{
    int64_t rows = bound * (choices < ranks ? choices : ranks);
    // copies of experts: which of its token's rows each is; a token may have several own rows
    int64_t several = copies ? (rows + 16) * 6 : 0;
    // waves: where each row is stored, and its reply; stored rows of each rank, and those that the wave needs
    // and of each chunk of the replies
    int64_t stored = waves > 1 ? (rows + 16) * 8 + (ranks + 8) * (32 + 16 * MOE_MAX_CHUNKS) : 0;
    // head; a head per chunk; pack sources and targets; merge_first; merge_rows; rank_first and cursors; tokens by rank;
    // own pairs and where each own row's begin; loads; overflow; rows placed, by rank and node
    return 2048 + stored + several + rows * 16 + (bound + 8) * 8 + rows * 8 + (ranks + 8) * 32 + (rows + 16) * 4 +
           bound * choices * 8 + (bound + 16) * 4 + (experts + 8) * 8 + (ranks + 16) * 4;
}

static inline int64_t moe_pairs_bytes(int64_t local_experts, int64_t rows, int64_t pairs)
{
    // head; sources and targets of pairs and replies; expert_first and a cursor each; row and weight of pairs; row_dst
    return 1024 + (pairs + rows) * 16 + (local_experts + 8) * 16 + (pairs + 16) * 8 + (rows + 8) * 8;
}

/// Rows of A: one for each routed row, of which each has a pair at least, or one for each pair.
static inline int64_t moe_a_rows(int by_row, int64_t rows, int64_t pairs)
{
    return by_row && rows < pairs ? rows : pairs;
}

/// sums: most of them; parts: rows that they add up; packed: rows that are packed.
static inline int64_t moe_sums_bytes(int64_t sums, int64_t parts, int64_t packed)
{
    // head; targets and first parts; parts; a cursor each; sources and targets of what is packed
    return 512 + sums * 16 + parts * 8 + sums * 8 + packed * 16;
}

static inline int64_t moe_rows_bytes(int64_t rows) // round control
{
    return 256 + rows * 16;
}

/// Coded rows, which are multiplied as codes with scales: the codes as elements of some bytes each (codes, or the numbers
/// that they are), and behind them, so many bytes from the row's start, an f32 scale for each block.
static inline int64_t moe_codes_bytes(int64_t width, int64_t element_bytes)
{
    return (width + 63) / 64 * 64 * element_bytes;
}

static inline int64_t moe_coded_row_bytes(int64_t width, int64_t element_bytes, int64_t block)
{
    return moe_codes_bytes(width, element_bytes) + (block > 0 ? (width + block - 1) / block * 4 : 0);
}

/// Bytes between rows of A, of the hidden activations and, beside packed weights, of their sums: padded against 4096-byte
/// aliasing, whole cache lines.
static inline int64_t moe_row_stride(int64_t width, int64_t element_bytes)
{
    int64_t bytes = (width * element_bytes + 63) / 64 * 64;
    return bytes + 64;
}

#endif
