// What the parts of `bin` share: a token's rows as groups that find slots together (bin_group.c), the second pass, which
// gives rows and replies their places (bin_place.c), and the cuts that pieces of the rows and of the replies need
// (bin_cut.c).
#ifndef MOE_BIN_H
#define MOE_BIN_H

#include "control.h"
#include "routes.h"

/// One of a token's rows, as a dispatch sees it.
struct member {
    uint32_t rank;
    int first, wave_end,
        end;         // its pairs: of the wave [first, wave_end), which may be none, and of later ones up to `end`
    int32_t *stored; // waves: where the row is stored at the rank, or -1
};

/// Rows of a token that find slots together: one, or those for a node behind a relay.
struct group {
    struct member members[MOE_MAX_CHOICES];
    int count;
    bool needed, there; // by the wave; where an earlier wave has stored it
};

/// Where rows of a token go and where its replies will come from.
struct targets {
    char *x, *send, *reply, *own, *spill, *packed; // packed: where its next record goes; NULL: relays do not pack
    int64_t x_bytes, own_bytes;
    uint32_t me, y_dtype;
    const struct plan_exchange *e, *combine;
    const struct exchange_state *state, *reply_state, *spill_state; // state: its counters grow
    struct moe_sums_head *sums; // of the chunk; NULL: nothing overflows, or every row goes by itself
};

/// Rows that one token can have: one for each rank that owns an expert of it.
static inline int64_t reach(const struct moe_session *session)
{
    return session->info->choices < session->info->ranks ? session->info->choices : session->info->ranks;
}

/// Rows for rank d that have a slot; those behind them overflow.
static inline int64_t slotted(const struct moe_bins *b, uint32_t d)
{
    return b->rank_first[d + 1] - b->rank_first[d] - b->overflow[d];
}

/// Writes pairs [from, to) as a record's meta; the rest of its entries are unused.
void bin_write_meta(const struct moe_session *session, const struct route_pair pairs[], int from, int to,
                    const struct plan_exchange *e, int64_t row_bytes, char *record);
/// Of pairs [*from, *to) for one rank, those of the wave's experts.
void bin_wave_run(const struct moe_session *session, const struct plan_exchange *e, const struct route_pair pairs[],
                  uint32_t rank, int *from, int *to);
/// The chunk of a token: that of the token before it, or a later one.
uint32_t bin_chunk_of(const int64_t ends[MOE_MAX_CHUNKS], int64_t token, uint32_t chunk);
/// The group that begins at row `nth` of a token. Returns the row behind it. A relayed row travels with the first wave that
/// needs it anywhere in the node, to all that need it then or later.
int bin_find_group(const struct moe_session *session, const struct plan_exchange *e, uint32_t me,
                   const struct route *route, int nth, int32_t *stored, struct group *g);
/// Does every row of the group find a free slot? `taken` counts those that are not. Rows for one rank are neighbours.
bool bin_all_fit(const struct moe_session *session, const struct plan_exchange *e, uint32_t me, const struct group *g,
                 const int64_t *taken);

/// Looks at the routes a second time: whoever has written to them since leads nobody beyond what was counted. False: so it is.
bool bin_place_rows(const struct stream *s, const struct routes *r, struct moe_bins *b, struct targets *to);

/// Replies in chunks: a chunk's tokens are a run of the part's, so its rows are a run of every slot's.
void bin_cut_chunks(const struct stream *s, struct moe_bins *b, const struct targets *to);
/// ...and through relays all slots for a node say so: how many of its rows that are.
void bin_cut_node_chunks(const struct stream *s, const struct moe_bins *b, const struct targets *to);
/// The same of the pieces in which experts take the rows.
void bin_cut_runs(const struct stream *s, const struct moe_bins *b, const struct targets *to, int64_t part_first);
/// Rows in chunks: of every format's pack table, too, a chunk's rows are a run.
void bin_cut_pack(const struct stream *s, struct moe_bins *b, const struct targets *to);

#endif
