// Rows and replies in pieces: which rows of each slot are of which (bin.h).
#include "bin.h"

/// Into the headers: how many rows of each slot are of tokens before `end`.
static void write_cut(const struct stream *s, const struct moe_bins *b, const struct targets *to, uint32_t cut,
                      int64_t end)
{
    uint32_t ranks = s->rank->session->info->ranks;
    for (uint32_t d = 0; d < ranks; d++) {
        const int32_t *tokens = b->rank_tokens + b->rank_first[d];
        uint32_t rows = 0;
        if (d == s->rank->number)
            continue;
        while (rows < slotted(b, d) && tokens[rows] < end)
            rows++;
        struct moe_message *m = (void *)(to->send + to->state->source_offset[d]);
        ((uint32_t *)(void *)(m + 1))[ranks + cut] = rows;
    }
}

void bin_cut_chunks(const struct stream *s, struct moe_bins *b, const struct targets *to)
{
    for (uint32_t k = 0; k < to->combine->chunks; k++) {
        int64_t first = k ? b->chunk_end[k - 1] : 0;
        struct moe_bins_head *head = moe_chunk_head(b, k);
        head->tokens = b->chunk_end[k] - first;
        head->merge_first = b->head.merge_first + first;
        head->merge_rows = b->head.merge_rows;
        write_cut(s, b, to, k, b->chunk_end[k]);
    }
}

void bin_cut_runs(const struct stream *s, const struct moe_bins *b, const struct targets *to, int64_t part_first)
{
    const struct ir *ir = s->rank->session->ir;
    for (uint32_t k = 0; k < to->e->runs.count; k++) {
        int64_t first, count;
        part_range(ROW(ir, plan_part, to->e->runs.first + k), s->rank->step->tokens, &first, &count);
        write_cut(s, b, to, to->e->answers + k, first - part_first + count);
    }
}

void bin_cut_pack(const struct stream *s, struct moe_bins *b, const struct targets *to)
{
    const struct moe_session *session = s->rank->session;
    int64_t rows[MOE_MAX_CHUNKS][TABLES_PACK_END] = {{0}}, first[TABLES_PACK_END] = {0};
    for (uint32_t d = 0; d < session->info->ranks && to->e->chunks; d++) {
        int64_t end = d == s->rank->number ? 0 : slotted(b, d), row = 0;
        uint32_t chunk = 0;
        for (const int32_t *tokens = b->rank_tokens + b->rank_first[d]; row < end; row++) {
            chunk = bin_chunk_of(b->piece_end, tokens[row], chunk);
            rows[chunk][slots_wire_number(session->ir, to->e, s->rank->number, d)]++;
        }
    }
    for (uint32_t k = 0; k < to->e->chunks; k++)
        for (uint32_t t = 0; t < TABLES_PACK_END; t++) {
            const struct moe_row_table *all = &b->head.pack[t];
            int64_t left = all->rows - first[t], count = rows[k][t] < left ? rows[k][t] : left;
            moe_chunk_head(b, k)->pack[t] = (struct moe_row_table){count, all->src + first[t], all->dst + first[t]};
            first[t] += count;
        }
}

/// Rows of a slot for another node that a relay passes on: those of the node that are in its first `rows`.
static uint32_t node_cut(const struct moe_session *session, const struct targets *to, uint32_t d, int64_t rows)
{
    int64_t row_bytes = slots_record_bytes(session->ir, to->e, to->me, d);
    const char *last = to->send + to->state->source_offset[d] + to->e->header_bytes + (rows - 1) * row_bytes;
    return rows ? 1 + ((const struct moe_row_mark *)(const void *)(last + row_bytes - slots_entry_bytes(to->e)))->row
                : 0;
}

void bin_cut_node_chunks(const struct stream *s, const struct moe_bins *b, const struct targets *to)
{
    const struct moe_session *session = s->rank->session;
    uint32_t ranks = session->info->ranks, node = to->e->node;
    for (uint32_t first = 0; first < ranks; first += node)
        for (uint32_t k = 0; k < to->combine->chunks && first / node != to->me / node; k++) {
            uint32_t *cuts[MOE_MAX_RANKS], most = 0;
            for (uint32_t p = 0; p < node; p++) {
                cuts[p] =
                    (uint32_t *)(void *)(to->send + to->state->source_offset[first + p] + sizeof(struct moe_message)) +
                    ranks + k;
                uint32_t cut = node_cut(session, to, first + p, slots_least(*cuts[p], slotted(b, first + p)));
                most = cut > most ? cut : most;
            }
            for (uint32_t p = 0; p < node; p++)
                *cuts[p] = most;
        }
}
