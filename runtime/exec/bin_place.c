// The second pass of `bin`: where rows and their replies lie, token by token (bin.h).
#include <string.h>

#include "bin.h"

struct placing {
    const struct stream *stream;
    struct moe_bins *bins;
    struct targets *to;
    int64_t *cursor; // [ranks] slots taken
    const void **merge;
    int64_t replies, own_pairs;
    uint32_t piece, chunk; // of the rows, of the replies: the token's
};

/// A reply's address, marked with the number of its format.
static const void *marked(const struct moe_session *session, const struct targets *to, uint32_t number,
                          const char *reply)
{
    bool plain = wire_is_plain(ROW(session->ir, plan_wire, to->combine->wires.first + number), to->y_dtype);
    return reply + (plain ? 0 : 1 + number);
}

/// The address of a reply in this wave's base combine.
static const void *reply_at(const struct moe_session *session, const struct targets *to, uint32_t d, int64_t place)
{
    const char *rows = to->reply + to->reply_state->source_offset[d] + to->combine->header_bytes;
    return marked(session, to, slots_wire_number(session->ir, to->combine, to->me, d),
                  rows + place * slots_record_bytes(session->ir, to->combine, to->me, d));
}

/// The address of the reply to a row that goes in rounds, by its number among those. It comes as its rank answers.
static const void *spilled_at(const struct moe_session *session, const struct targets *to, uint32_t d, int64_t number)
{
    const char *rows = to->spill + to->spill_state->source_offset[d] + moe_header_bytes(session->info->ranks);
    return marked(session, to, slots_answer_number(session->ir, to->combine, d, to->me),
                  rows + number * slots_answer_bytes(session->ir, to->combine, d, to->me));
}

/// A row into a slot: its record, and where its data is its own (`first`) a pack entry.
static void place_row(const struct placing *p, int64_t t, const struct member *m, int64_t place,
                      const struct route_pair pairs[], bool first)
{
    const struct moe_session *session = p->stream->rank->session;
    const struct ir *ir = session->ir;
    const struct targets *to = p->to;
    struct moe_bins *b = p->bins;
    uint32_t d = m->rank, wire = slots_wire_number(ir, to->e, to->me, d);
    int64_t row_bytes = ROW(ir, plan_wire, to->e->wires.first + wire)->row_bytes;
    char *slot = to->send + to->state->source_offset[d];
    char *record = slot + to->e->header_bytes + place * row_bytes;
    struct moe_message *header = (void *)(slot + slots_header_at(to->e, p->piece));
    bin_write_meta(session, pairs, m->first, m->end, to->e, row_bytes, record);
    header->rows++;
    header->pairs += (uint32_t)(m->end - m->first);
    if (to->e->node)
        *(struct moe_row_mark *)(void *)(record + row_bytes - slots_entry_bytes(to->e)) =
            (struct moe_row_mark){.row = (uint32_t)b->node_rows[d / to->e->node], .first = first};
    if (first)
        add_table_row(&b->head.pack[wire], b->head.pack[wire].rows, to->x + t * to->x_bytes, record);
}

/// An own row: its pairs stay here.
static void place_own(struct moe_bins *b, int64_t place, const struct route_pair pairs[], int from, int to,
                      int64_t *own_pairs)
{
    b->own_first[place] = (int32_t)*own_pairs;
    for (int j = from; j < to; j++)
        b->own_pairs[(*own_pairs)++] = (struct moe_row_meta){pairs[j].local, pairs[j].weight};
}

/// Replies [from, to) of one node that come in rounds are one sum, in the place of the first: what a relay sends.
static int64_t sum_replies(const struct targets *to, const void **merge, int64_t from, int64_t end)
{
    if (!to->sums || end - from < 2)
        return end;
    struct moe_sums_head *sums = to->sums;
    int64_t *first = (int64_t *)(uintptr_t)sums->first, number = sums->sums.rows++, at = first[number];
    ((void **)(uintptr_t)sums->sums.dst)[number] = (void *)(uintptr_t)merge[from];
    for (int64_t i = from; i < end; i++)
        ((const void **)(uintptr_t)sums->parts)[at++] = merge[i];
    first[number + 1] = at;
    return from + 1;
}

/// ...and what a relay would pack goes through its format: the sum, or the only reply, of rank d's node.
static void pack_reply(const struct moe_session *session, struct targets *to, uint32_t d, const void **reply)
{
    const struct plan_exchange *combine = to->combine;
    uint32_t number = slots_wire_number(session->ir, combine, to->me, d);
    if (!to->packed || d / combine->node == to->me / combine->node || number == combine->handed)
        return;
    struct moe_row_table *table = &to->sums->tables[TABLES_REPLY + number];
    add_table_row(table, table->rows, *reply, to->packed);
    *reply = marked(session, to, number, to->packed);
    to->packed += slots_largest_record(session->ir, combine);
}

/// Where the reply to a row that the wave has just stored lies.
static int64_t answer_place(struct placing *p, const struct member *m, int64_t place)
{
    struct moe_bins *b = p->bins;
    if (!m->stored)
        return place;
    b->answered[m->rank]++;
    return b->chunk_answered[(size_t)p->chunk * p->stream->rank->session->info->ranks + m->rank]++;
}

/// A group whose rows all have slots, or a rank's own rows. False: more than were counted.
static bool place_slotted(struct placing *p, int64_t t, const struct route_pair pairs[], struct group *g)
{
    const struct moe_session *session = p->stream->rank->session;
    const struct targets *to = p->to;
    struct moe_bins *b = p->bins;
    for (int i = 0; i < g->count; i++) {
        struct member *m = &g->members[i];
        int64_t place = p->cursor[m->rank]++;
        if (place >= slotted(b, m->rank))
            return false;
        b->rank_tokens[b->rank_first[m->rank] + place] = (int32_t)t;
        if (m->rank == to->me) {
            place_own(b, place, pairs, m->first, m->wave_end, &p->own_pairs);
            p->merge[p->replies++] = to->own + place * to->own_bytes;
            continue;
        }
        place_row(p, t, m, place, pairs, i == 0);
        if (m->stored)
            *m->stored = (int32_t)(b->stored_count[m->rank] + place);
        int64_t answer = m->first < m->wave_end ? answer_place(p, m, place) : 0;
        if (answer >= slots_rows(session->ir, to->combine, m->rank))
            return false;
        if (m->first < m->wave_end)
            p->merge[p->replies++] = reply_at(session, to, m->rank, answer);
    }
    if (to->e->node)
        b->node_rows[g->members[0].rank / to->e->node]++;
    return true;
}

/// Where an earlier wave has stored a row: the place of this wave's reply to it, -1 where none was counted.
static int64_t reply_place(const struct moe_bins *b, const struct member *m)
{
    bool known = *m->stored >= 0 && *m->stored < b->stored_count[m->rank];
    return known ? b->reply[b->stored_first[m->rank] + *m->stored] : -1;
}

/// A group for which there is no slot: rows of the wave go in rounds. Or one that is there: only its replies come. False:
/// more than were counted.
static bool place_others(struct placing *p, int64_t t, const struct group *g)
{
    const struct moe_session *session = p->stream->rank->session;
    struct moe_bins *b = p->bins;
    int64_t begin = p->replies;
    for (int i = 0; i < g->count; i++) {
        const struct member *m = &g->members[i];
        if (m->first == m->wave_end)
            continue;
        if (g->there) {
            int64_t place = reply_place(b, m);
            if (place < 0)
                return false;
            p->merge[p->replies++] = reply_at(session, p->to, m->rank, place);
            continue;
        }
        int64_t number = b->placed[m->rank]++, entry = b->rank_first[m->rank] + slotted(b, m->rank) + number;
        if (number >= b->overflow[m->rank])
            return false;
        b->rank_tokens[entry] = (int32_t)t;
        if (b->rank_pairs)
            b->rank_pairs[entry] = (uint16_t)m->first;
        p->merge[p->replies++] = spilled_at(session, p->to, m->rank, number);
    }
    if (g->there || p->replies == begin)
        return true;
    p->replies = sum_replies(p->to, p->merge, begin, p->replies);
    pack_reply(session, p->to, g->members[0].rank, &p->merge[begin]);
    return true;
}

/// Goes on to a later chunk, whose sums follow those before.
static void next_chunk(struct targets *to, uint32_t chunks)
{
    for (; to->sums && chunks > 0; chunks--, to->sums++) {
        const struct moe_sums_head *before = to->sums;
        struct moe_sums_head *next = to->sums + 1;
        *next = (struct moe_sums_head){.parts = before->parts, .first = before->first + before->sums.rows};
        next->sums.dst = before->sums.dst + before->sums.rows;
        for (int i = 0; i < MOE_MAX_WIRES; i++) {
            const struct moe_row_table *table = &before->tables[TABLES_REPLY + i];
            next->tables[TABLES_REPLY + i] =
                (struct moe_row_table){0, table->src + table->rows, table->dst + table->rows};
        }
    }
}

bool bin_place_rows(const struct stream *s, const struct routes *r, struct moe_bins *b, struct targets *to)
{
    const struct moe_session *session = r->session;
    size_t ranks = session->info->ranks;
    int64_t *first = (int64_t *)(uintptr_t)b->head.merge_first;
    struct placing p = {.stream = s, .bins = b, .to = to, .cursor = b->rank_first + ranks + 1};
    struct route route;
    struct group g;
    p.merge = (const void **)(uintptr_t)b->head.merge_rows;
    memset(p.cursor, 0, ranks * sizeof *p.cursor);
    memset(b->placed, 0, ranks * sizeof *b->placed);
    memset(b->node_rows, 0, ranks * sizeof *b->node_rows);
    if (to->e->waves > 1)
        memset(b->answered, 0, ranks * sizeof *b->answered);
    for (int64_t t = 0; t < b->head.tokens; t++) {
        int32_t *stored = to->e->waves > 1 ? b->stored + t * reach(session) : NULL;
        (void)route_token(r, t, &route);
        first[t] = p.replies;
        uint32_t chunk = bin_chunk_of(b->chunk_end, t, p.chunk);
        next_chunk(to, chunk - p.chunk);
        p.chunk = chunk;
        p.piece = bin_chunk_of(b->piece_end, t, p.piece);
        for (int i = 0; i < route.count;) {
            i = bin_find_group(session, to->e, to->me, &route, i, stored, &g);
            if (!g.needed)
                continue;
            bool slots = !g.there && bin_all_fit(session, to->e, to->me, &g, p.cursor);
            if (slots ? !place_slotted(&p, t, route.pairs, &g) : !place_others(&p, t, &g))
                return false;
        }
    }
    first[b->head.tokens] = p.replies;
    b->own_rows = p.cursor[to->me];
    b->own_first[b->own_rows] = (int32_t)p.own_pairs;
    return true;
}
