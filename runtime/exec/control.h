// What the built-in kernels write into control buffers, and the functions themselves. Generated kernels see the heads
// only (kernels.h).
#ifndef MOE_CONTROL_H
#define MOE_CONTROL_H

#include "runtime/plan/kernels.h"
#include "runtime/plan/messages.h"

#include "runtime/plan/limits.h"

#include <stdbool.h>

struct moe_bins {
    struct moe_bins_head head;
    int64_t pairs; // all (token, expert) pairs of the part
    int64_t own_rows;
    int64_t *rank_first;  // [ranks + 1] rows for each rank that are not there yet, the own ones too, in rank_tokens
    int32_t *rank_tokens; // tokens, ascending within a rank: the first rows(d) go by slot, the rest overflow
    uint16_t *rank_pairs; // with copies of experts, else NULL: of those that overflow, a pair of the row in its token's
    int32_t *own_first;   // [own_rows + 1] pairs of each own row in own_pairs
    struct moe_row_meta *own_pairs;
    int64_t *load;      // [experts] pairs routed to each expert
    uint32_t *overflow; // [ranks]
    int64_t *placed;    // [ranks] while rows are placed: of those that overflow
    int64_t *node_rows; // [ranks] with relays, by node: rows that go there so far
    // Waves of experts: rows that this wave or an earlier one has stored at each rank.
    uint32_t exchange;     // the dispatch that this was filled for
    int64_t *stored_count; // [ranks]
    int64_t *stored_first; // [ranks] where a rank's rows of earlier waves begin in `reply`
    int64_t *needed;       // [ranks] of those stored by earlier waves, that this wave reads: they are answered first
    int64_t *answered;     // [ranks] of those that it stores itself, that it reads
    // [chunks][ranks] how many of either kind a chunk of the combine answers, earlier waves' first; then where the next
    // reply of a chunk's lies. Without chunks there is one.
    int64_t *chunk_needed, *chunk_answered;
    int64_t chunk_end[MOE_MAX_CHUNKS]; // its tokens of the part end there
    int64_t piece_end[MOE_MAX_CHUNKS]; // the same of the chunks in which the rows go there
    int32_t *stored;       // [tokens * ranks a token can reach] where a token's row to its n-th rank is stored, or -1
    int32_t *reply;        // rows of earlier waves, rank by rank: the place of this wave's reply (first its chunk), or -1
};

/// Where `bin` puts what `merge` needs of one chunk of the replies, and what packs one chunk of the rows; empty before it runs.
static inline struct moe_bins_head *moe_chunk_head(void *bins, uint32_t chunk)
{
    return (struct moe_bins_head *)(void *)((char *)bins + (sizeof(struct moe_bins) + 63) / 64 * 64) + chunk;
}

/// The same of the sums that bin's second control lists: heads, one for each chunk, then their arrays.
static inline struct moe_sums_head *moe_sums_chunk(void *sums, uint32_t chunk)
{
    return (struct moe_sums_head *)sums + chunk;
}

struct moe_pairs {
    struct moe_pairs_head head;
};

struct stream;
struct launch;
struct plan_instr;

/// The built-ins: false with the session failed. `launch` names rank, exchange and round.
bool builtin_bin(struct stream *s, const struct moe_kargs *a);
bool builtin_bin_round(struct stream *s, const struct moe_kargs *a);
bool builtin_fan_out(struct stream *s, const struct moe_kargs *a);
bool builtin_fold(struct stream *s, const struct moe_kargs *a);
bool builtin_limit(struct stream *s, const struct moe_kargs *a);
bool builtin_dense(struct stream *s, const struct moe_kargs *a);

/// Takes what a launch uses of control data for it alone, or for it and other readers, until it is released. False with the
/// session failed, for good: another launch is there.
bool control_claim(struct stream *s, const struct plan_instr *in);
void control_release(struct stream *s, const struct plan_instr *in);

/// Divides the arrays of the first table into `count` tables, which begin where those before them end.
static inline void divide_tables(struct moe_row_table *tables, const int64_t *rows, int count)
{
    for (int i = 1; i < count; i++)
        tables[i] = (struct moe_row_table){0, tables[i - 1].src + rows[i - 1], tables[i - 1].dst + rows[i - 1]};
}

static inline void add_table_row(struct moe_row_table *table, int64_t entry, const void *src, void *dst)
{
    ((const void **)(uintptr_t)table->src)[entry] = src;
    ((void **)(uintptr_t)table->dst)[entry] = dst;
    table->rows++;
}

/// Takes arrays one after the other from a control buffer whose size validation has proved.
static inline void *carve(char **at, int64_t count, size_t size)
{
    char *taken = *at;
    *at += ((size_t)count * size + 15) / 16 * 16;
    return taken;
}

#endif
