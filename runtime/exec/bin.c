// The built-in kernels `bin` and `bin_round`: routes become rows per destination rank (routes.h). `bin` fills the base
// slots' headers and metas, the pack table, and says where each token's replies will lie; `bin_round` does the same for
// the rows granted in one overflow round. With waves of experts a `bin` looks at its wave's experts only and sends what
// no earlier wave has stored. With relays (slots.h) the rows of a token for one other node share one copy of its data,
// and stay together: where one finds no slot, all of them overflow, and their replies are summed, and their sum packed and
// unpacked, here as the relay would.
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "grants.h"
#include "routes.h"

/// Writes pairs [from, to) as a record's meta; the rest of its entries are unused.
static void write_meta(const struct moe_session *session, const struct route_pair pairs[], int from, int to,
                       const struct plan_exchange *e, int64_t row_bytes, char *record)
{
    struct moe_row_meta *meta = (struct moe_row_meta *)(void *)(record + row_bytes - e->meta_bytes);
    for (int i = 0; i < (int)session->info->choices; i++)
        meta[i] = from + i < to ? (struct moe_row_meta){pairs[from + i].local, pairs[from + i].weight}
                                : (struct moe_row_meta){-1, 0};
}

/// Of pairs [*from, *to) for one rank, those of the wave's experts.
static void wave_run(const struct moe_session *session, const struct plan_exchange *e, const struct route_pair pairs[],
                     uint32_t rank, int *from, int *to)
{
    if (e->waves == 1)
        return;
    int64_t first = slots_wave_first(session->ir, e, rank), end = first + slots_wave_experts(session->ir, e, rank);
    while (*from < *to && pairs[*from].local < first)
        ++*from;
    while (*to > *from && pairs[*to - 1].local >= end)
        --*to;
}

/// Rows that one token can have: one for each rank that owns an expert of it.
static int64_t reach(const struct moe_session *session)
{
    return session->info->choices < session->info->ranks ? session->info->choices : session->info->ranks;
}

static struct moe_bins *lay_out(const struct moe_session *session, const struct plan_exchange *e, void *control,
                                int64_t tokens)
{
    int64_t ranks = session->info->ranks, choices = session->info->choices;
    int64_t rows = tokens * reach(session);
    struct moe_bins *b = control;
    char *at = (char *)control + (sizeof *b + 63) / 64 * 64;
    *b = (struct moe_bins){.head.tokens = tokens, .exchange = (uint32_t)(e - ROW(session->ir, plan_exchange, 0))};
    memset(carve(&at, MOE_MAX_CHUNKS, sizeof(struct moe_bins_head)), 0,
           MOE_MAX_CHUNKS * sizeof(struct moe_bins_head)); // moe_chunk_head: those of another bin point elsewhere
    b->head.pack[0].src = carve(&at, rows, sizeof(void *));
    b->head.pack[0].dst = carve(&at, rows, sizeof(void *));
    b->head.merge_first = carve(&at, tokens + 1, sizeof(int64_t));
    b->head.merge_rows = carve(&at, rows, sizeof(void *));
    b->rank_first = carve(&at, 2 * ranks + 1, sizeof(int64_t));
    b->rank_tokens = carve(&at, rows, sizeof(int32_t));
    b->own_pairs = carve(&at, tokens * choices, sizeof(struct moe_row_meta));
    bool copies = slots_has_copies(session->ir);
    b->own_first = carve(&at, (copies ? rows : tokens) + 1, sizeof(int32_t));
    if (copies)
        b->rank_pairs = carve(&at, rows, sizeof(uint16_t));
    b->load = carve(&at, session->info->experts, sizeof(int64_t));
    b->overflow = carve(&at, ranks, sizeof(uint32_t));
    b->placed = carve(&at, ranks, sizeof(int64_t));
    b->node_rows = carve(&at, ranks, sizeof(int64_t));
    if (e->waves == 1)
        return b;
    b->stored_count = carve(&at, ranks, sizeof(int64_t));
    b->stored_first = carve(&at, ranks, sizeof(int64_t));
    b->needed = carve(&at, ranks, sizeof(int64_t));
    b->answered = carve(&at, ranks, sizeof(int64_t));
    b->chunk_needed = carve(&at, MOE_MAX_CHUNKS * ranks, sizeof(int64_t));
    b->chunk_answered = carve(&at, MOE_MAX_CHUNKS * ranks, sizeof(int64_t));
    b->stored = carve(&at, rows, sizeof(int32_t));
    b->reply = carve(&at, rows, sizeof(int32_t));
    return b;
}

/// Starts from what earlier waves have stored; nothing of it is known to be needed yet.
static bool carry_over(struct stream *s, const struct plan_exchange *e, const struct moe_bins *earlier,
                       struct moe_bins *b)
{
    const struct moe_session *session = s->rank->session;
    size_t rows = (size_t)(b->head.tokens * reach(session)), ranks = session->info->ranks;
    if (e->waves == 1)
        return true;
    memset(b->reply, 0xff, rows * sizeof *b->reply);
    if (!earlier) {
        memset(b->stored, 0xff, rows * sizeof *b->stored);
        memset(b->stored_count, 0, ranks * sizeof *b->stored_count);
        memset(b->stored_first, 0, ranks * sizeof *b->stored_first);
        return true;
    }
    if (!earlier->stored || earlier->exchange != e->earlier || earlier->head.tokens != b->head.tokens)
        return session_fail(s->rank->session, MOE_LOST, "rank %u: `%s` does not follow the wave before it",
                            s->rank->number, ir_text(session->ir, e->name));
    memcpy(b->stored, earlier->stored, rows * sizeof *b->stored);
    memcpy(b->stored_count, earlier->stored_count, ranks * sizeof *b->stored_count);
    for (size_t d = 0, first = 0; d < ranks; first += (size_t)b->stored_count[d++])
        b->stored_first[d] = (int64_t)first;
    return true;
}

/// Gives the needed rows of earlier waves their places among this wave's replies: chunk by chunk, in each in the order of
/// their storage, before those that the wave stores itself.
static void number_replies(const struct moe_session *session, const struct plan_exchange *e, struct moe_bins *b)
{
    int32_t *reply = b->reply;
    uint32_t ranks = session->info->ranks;
    for (uint32_t d = 0; d < ranks && e->waves > 1; d++) {
        int64_t place = 0;
        b->needed[d] = 0;
        for (size_t at = d; at < (size_t)MOE_MAX_CHUNKS * ranks; at += ranks) {
            int64_t needed = b->chunk_needed[at], answered = b->chunk_answered[at];
            b->chunk_needed[at] = place;
            b->chunk_answered[at] = place + needed;
            b->needed[d] += needed;
            place += needed + answered;
        }
        for (int64_t i = 0; i < b->stored_count[d]; i++, reply++)
            *reply = *reply < 0 ? -1 : (int32_t)b->chunk_needed[(size_t)*reply * ranks + d]++;
    }
}

/// Where the tokens of each chunk of an exchange end; without chunks all are the first's.
static void find_chunks(const struct stream *s, const struct plan_exchange *e, int64_t part_first, int64_t tokens,
                        int64_t ends[MOE_MAX_CHUNKS])
{
    for (uint32_t k = 0; k < MOE_MAX_CHUNKS; k++) {
        int64_t first = part_first, count = tokens;
        if (k < e->chunks)
            part_range(ROW(s->rank->session->ir, plan_part, e[k].piece), s->rank->step->tokens, &first, &count);
        ends[k] = first - part_first + count;
    }
}

/// The chunk of a token: that of the token before it, or a later one.
static uint32_t chunk_of(const int64_t ends[MOE_MAX_CHUNKS], int64_t token, uint32_t chunk)
{
    while (chunk + 1 < MOE_MAX_CHUNKS && token >= ends[chunk])
        chunk++;
    return chunk;
}

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

/// The group that begins at row `nth` of a token. Returns the row behind it. A relayed row travels with the first wave that
/// needs it anywhere in the node, to all that need it then or later.
static int find_group(const struct moe_session *session, const struct plan_exchange *e, uint32_t me,
                      const struct route *route, int nth, int32_t *stored, struct group *g)
{
    uint32_t first = route->rows[nth].rank;
    bool relayed = e->node && first / e->node != me / e->node;
    g->count = 0;
    g->needed = g->there = false;
    do {
        const struct route_row *row = &route->rows[nth];
        int32_t *at = stored ? stored + nth : NULL;
        struct member m = {row->rank, row->first, row->end, row->end, at};
        wave_run(session, e, route->pairs, row->rank, &m.first, &m.wave_end);
        if (m.first == row->end)
            continue;
        g->needed = g->needed || m.first < m.wave_end;
        g->there = g->there || (at && *at >= 0);
        g->members[g->count++] = m;
    } while (++nth < route->count && relayed && route->rows[nth].rank / e->node == first / e->node);
    return nth;
}

/// Does every row of the group find a free slot? `taken` counts those that are not. Rows for one rank are neighbours.
static bool all_fit(const struct moe_session *session, const struct plan_exchange *e, uint32_t me,
                    const struct group *g, const int64_t *taken)
{
    for (int i = 0, before = 0; i < g->count; i++) {
        uint32_t d = g->members[i].rank;
        before = i && g->members[i - 1].rank == d ? before + 1 : 0;
        if (d != me && taken[d] + before >= slots_rows(session->ir, e, d))
            return false;
    }
    return true;
}

/// Counts a group: pairs of its experts; rows that are not there yet, in slots and beyond; what earlier rows answer. False:
/// what an earlier wave has stored is not what these routes say.
static bool count_group(const struct stream *s, const struct plan_exchange *e, const struct route_pair pairs[],
                        const struct group *g, uint32_t chunk, struct moe_bins *b)
{
    const struct moe_session *session = s->rank->session;
    size_t row = (size_t)chunk * session->info->ranks;
    bool fit = g->there || all_fit(session, e, s->rank->number, g, b->placed);
    for (int i = 0; i < g->count; i++) {
        const struct member *m = &g->members[i];
        bool needed = m->first < m->wave_end;
        for (int j = m->first; j < m->wave_end; j++)
            b->load[pairs[j].expert]++;
        b->pairs += m->wave_end - m->first;
        if (g->there && needed) {
            int32_t *reply = b->reply + b->stored_first[m->rank] + *m->stored;
            if (*m->stored < 0 || *m->stored >= b->stored_count[m->rank] || *reply >= 0)
                return false;
            *reply = (int32_t)chunk;
            b->chunk_needed[row + m->rank]++;
        } else if (m->stored && needed && fit)
            b->chunk_answered[row + m->rank]++;
        b->placed[m->rank] += !g->there && fit;
        b->overflow[m->rank] += !fit && needed;
    }
    return true;
}

/// First pass: rows per rank that are not there yet (as a prefix sum), how many of them overflow, pairs per expert.
static bool count_rows(struct stream *s, const struct routes *r, const struct plan_exchange *e, struct moe_bins *b)
{
    const struct moe_session *session = r->session;
    uint32_t ranks = session->info->ranks;
    struct route route;
    struct group g;
    uint32_t chunk = 0;
    memset(b->load, 0, session->info->experts * sizeof *b->load);
    for (size_t i = 0; i < (size_t)MOE_MAX_CHUNKS * ranks && e->waves > 1; i++)
        b->chunk_needed[i] = b->chunk_answered[i] = 0;
    memset(b->placed, 0, ranks * sizeof *b->placed);
    memset(b->overflow, 0, ranks * sizeof *b->overflow);
    for (int64_t t = 0; t < b->head.tokens; t++) {
        if (!route_token(r, t, &route))
            return session_fail(s->rank->session, MOE_LOST,
                                "rank %u: the router gave an expert that does not exist, or one twice",
                                s->rank->number);
        int32_t *stored = e->waves > 1 ? b->stored + t * reach(session) : NULL;
        chunk = chunk_of(b->chunk_end, t, chunk);
        for (int i = 0; i < route.count;) {
            i = find_group(session, e, s->rank->number, &route, i, stored, &g);
            if (g.needed && !count_group(s, e, route.pairs, &g, chunk, b))
                return session_fail(s->rank->session, MOE_LOST,
                                    "rank %u: the routes of `%s` are not those of the wave before it", s->rank->number,
                                    ir_text(session->ir, e->name));
        }
    }
    b->rank_first[0] = 0;
    for (uint32_t d = 0; d < ranks; d++)
        b->rank_first[d + 1] = b->rank_first[d] + b->placed[d] + b->overflow[d];
    number_replies(session, e, b);
    return true;
}

/// Rows beyond the slots are refused where the layer says so.
static bool check_overflow(struct stream *s, const struct plan_exchange *e, const struct moe_bins *b)
{
    struct moe_session *session = s->rank->session;
    for (uint32_t d = 0; d < session->info->ranks; d++) {
        int64_t rows = b->rank_first[d + 1] - b->rank_first[d], slots = slots_rows(session->ir, e, d);
        if (!b->overflow[d])
            continue;
        if (e->overflow == overflow_error || s->rank->exchanges[e - ROW(session->ir, plan_exchange, 0)].pool == NONE)
            return session_fail(session, MOE_OVERFLOW, "rank %u has %lld rows for rank %u in `%s`, its slots hold %lld",
                                s->rank->number, (long long)rows, d, ir_text(session->ir, e->name), (long long)slots);
        s->overflowed += b->overflow[d];
    }
    return true;
}

/// Where a pool's blocks begin on this side, now that the rows for each rank are known: one behind the other.
static void place_pool(struct stream *s, uint32_t pool, const struct moe_bins *b)
{
    const struct moe_session *session = s->rank->session;
    struct exchange_state *state = &s->rank->exchanges[pool], *reply = &s->rank->exchanges[state->combine];
    const struct plan_exchange *e = ROW(session->ir, plan_exchange, pool), *c = ROW(session->ir, plan_exchange, state->combine);
    int64_t at = 0, reply_at = 0;
    for (uint32_t d = 0; d < session->info->ranks; d++) {
        int64_t rows = b->overflow[d], places = slots_rows(session->ir, e, d);
        state->source_offset[d] = at;
        reply->source_offset[d] = reply_at;
        if (d == s->rank->number)
            continue;
        at +=
            e->header_bytes + (rows < places ? rows : places) * slots_record_bytes(session->ir, e, s->rank->number, d);
        reply_at += c->header_bytes + rows * slots_record_bytes(session->ir, c, s->rank->number, d);
    }
}

/// Headers of slots that have no rows yet: place_row counts them.
static void write_headers(struct stream *s, const struct plan_exchange *e, const struct moe_bins *b, char *slots)
{
    const struct moe_session *session = s->rank->session;
    uint32_t number = (uint32_t)(e - ROW(session->ir, plan_exchange, 0)), ranks = session->info->ranks;
    for (uint32_t d = 0; d < ranks; d++) {
        if (d == s->rank->number)
            continue;
        char *slot = slots + s->rank->exchanges[number].source_offset[d];
        for (uint32_t k = 0; k == 0 || k < e->chunks; k++)
            *(struct moe_message *)(void *)(slot + slots_header_at(e, k)) = (struct moe_message){
                .source = s->rank->number, .exchange = number + k, .step = session->step_number};
        memcpy(slot + sizeof(struct moe_message), b->overflow, ranks * sizeof *b->overflow);
    }
}

/// Rows of the base slots by format.
static void divide_pack(const struct stream *s, const struct plan_exchange *e, struct moe_bins *b)
{
    const struct moe_session *session = s->rank->session;
    int64_t rows[TABLES_PACK_END] = {0};
    for (uint32_t d = 0; d < session->info->ranks; d++)
        if (d != s->rank->number)
            rows[slots_wire_number(session->ir, e, s->rank->number, d)] +=
                b->rank_first[d + 1] - b->rank_first[d] - b->overflow[d];
    divide_tables(b->head.pack, rows, TABLES_PACK_END);
}

/// Where rows of a token go and where its replies will come from.
struct targets {
    char *x, *send, *reply, *own, *spill, *packed; // packed: where its next record goes; NULL: relays do not pack
    int64_t x_bytes, own_bytes;
    uint32_t me, y_dtype;
    const struct plan_exchange *e, *combine;
    const struct exchange_state *state, *reply_state, *spill_state; // state: its counters grow
    struct moe_sums_head *sums; // of the chunk; NULL: nothing overflows, or every row goes by itself
};

/// Rows for rank d that have a slot; those behind them overflow.
static int64_t slotted(const struct moe_bins *b, uint32_t d)
{
    return b->rank_first[d + 1] - b->rank_first[d] - b->overflow[d];
}

/// A reply's address, marked with the number of its format.
static const void *marked(const struct moe_session *session, const struct targets *to, uint32_t number, const char *reply)
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

/// Second pass: where rows and their replies lie, token by token.
struct placing {
    const struct stream *stream;
    struct moe_bins *bins;
    struct targets *to;
    int64_t *cursor; // [ranks] slots taken
    const void **merge;
    int64_t replies, own_pairs;
    uint32_t piece, chunk; // of the rows, of the replies: the token's
};

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
    write_meta(session, pairs, m->first, m->end, to->e, row_bytes, record);
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
            next->tables[TABLES_REPLY + i] = (struct moe_row_table){0, table->src + table->rows, table->dst + table->rows};
        }
    }
}

/// Looks at the routes a second time: whoever has written to them since leads nobody beyond what was counted. False: so it is.
static bool place_rows(const struct stream *s, const struct routes *r, struct moe_bins *b, struct targets *to)
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
        uint32_t chunk = chunk_of(b->chunk_end, t, p.chunk);
        next_chunk(to, chunk - p.chunk);
        p.chunk = chunk;
        p.piece = chunk_of(b->piece_end, t, p.piece);
        for (int i = 0; i < route.count;) {
            i = find_group(session, to->e, to->me, &route, i, stored, &g);
            if (!g.needed)
                continue;
            bool slots = !g.there && all_fit(session, to->e, to->me, &g, p.cursor);
            if (slots ? !place_slotted(&p, t, route.pairs, &g) : !place_others(&p, t, &g))
                return false;
        }
    }
    first[b->head.tokens] = p.replies;
    b->own_rows = p.cursor[to->me];
    b->own_first[b->own_rows] = (int32_t)p.own_pairs;
    return true;
}

/// What this wave adds to the rows that are there, and how many replies it is to get.
static void count_stored(const struct stream *s, struct moe_bins *b, const struct targets *to)
{
    const struct moe_session *session = s->rank->session;
    for (uint32_t d = 0; d < session->info->ranks; d++) {
        int64_t sent = d == s->rank->number ? 0 : b->rank_first[d + 1] - b->rank_first[d] - b->overflow[d];
        to->state->awaited[d] += to->e->waves > 1 ? b->needed[d] + b->answered[d] : sent;
        if (to->e->waves > 1)
            b->stored_count[d] += sent;
    }
}

/// Into the headers: how many rows of each slot are of tokens before `end`.
static void write_cut(const struct stream *s, const struct moe_bins *b, const struct targets *to, uint32_t cut, int64_t end)
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

/// Replies in chunks: a chunk's tokens are a run of the part's, so its rows are a run of every slot's.
static void cut_chunks(const struct stream *s, struct moe_bins *b, const struct targets *to)
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

/// The same of the pieces in which experts take the rows.
static void cut_runs(const struct stream *s, const struct moe_bins *b, const struct targets *to, int64_t part_first)
{
    const struct ir *ir = s->rank->session->ir;
    for (uint32_t k = 0; k < to->e->runs.count; k++) {
        int64_t first, count;
        part_range(ROW(ir, plan_part, to->e->runs.first + k), s->rank->step->tokens, &first, &count);
        write_cut(s, b, to, to->e->answers + k, first - part_first + count);
    }
}

/// Rows in chunks: of every format's pack table, too, a chunk's rows are a run.
static void cut_pack(const struct stream *s, struct moe_bins *b, const struct targets *to)
{
    const struct moe_session *session = s->rank->session;
    int64_t rows[MOE_MAX_CHUNKS][TABLES_PACK_END] = {{0}}, first[TABLES_PACK_END] = {0};
    for (uint32_t d = 0; d < session->info->ranks && to->e->chunks; d++) {
        int64_t end = d == s->rank->number ? 0 : slotted(b, d), row = 0;
        uint32_t chunk = 0;
        for (const int32_t *tokens = b->rank_tokens + b->rank_first[d]; row < end; row++) {
            chunk = chunk_of(b->piece_end, tokens[row], chunk);
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
    return rows ? 1 + ((const struct moe_row_mark *)(const void *)(last + row_bytes - slots_entry_bytes(to->e)))->row : 0;
}

/// ...and all slots for a node say so.
static void cut_node_chunks(const struct stream *s, const struct moe_bins *b, const struct targets *to)
{
    const struct moe_session *session = s->rank->session;
    uint32_t ranks = session->info->ranks, node = to->e->node;
    for (uint32_t first = 0; first < ranks; first += node)
        for (uint32_t k = 0; k < to->combine->chunks && first / node != to->me / node; k++) {
            uint32_t *cuts[MOE_MAX_RANKS], most = 0;
            for (uint32_t p = 0; p < node; p++) {
                cuts[p] = (uint32_t *)(void *)(to->send + to->state->source_offset[first + p] + sizeof(struct moe_message)) + ranks + k;
                uint32_t cut = node_cut(session, to, first + p, slots_least(*cuts[p], slotted(b, first + p)));
                most = cut > most ? cut : most;
            }
            for (uint32_t p = 0; p < node; p++)
                *cuts[p] = most;
        }
}

/// The control for `sum_rows`; NULL where the instruction has none.
static struct moe_sums_head *lay_out_sums(const struct moe_session *session, const struct plan_instr *in, void *control,
                                          int64_t tokens)
{
    struct moe_sums_head *sums = control;
    const size_t heads = MOE_MAX_CHUNKS * sizeof *sums; // those of another bin point elsewhere
    const struct plan_exchange *e = ROW(session->ir, plan_exchange, in->exchange);
    if (!e->node || !moe_bin_has_sums(in->args.count, e->wave))
        return NULL;
    int64_t parts = tokens * session->info->choices;
    char *at = (char *)control + (heads + 63) / 64 * 64;
    memset(sums, 0, heads);
    sums->sums.dst = carve(&at, parts / 2, sizeof(void *));
    int64_t *first = carve(&at, parts / 2 + 1, sizeof(int64_t));
    sums->parts = carve(&at, parts, sizeof(void *));
    sums->first = first;
    first[0] = 0;
    sums->tables[TABLES_REPLY].src = carve(&at, parts, sizeof(void *));
    sums->tables[TABLES_REPLY].dst = carve(&at, parts, sizeof(void *));
    return sums;
}

/// What overflows for other nodes by format: each row may be packed alone.
static void divide_sums(const struct stream *s, const struct moe_bins *b, const struct targets *to)
{
    const struct moe_session *session = s->rank->session;
    int64_t rows[MOE_MAX_WIRES] = {0};
    uint32_t node = to->e->node;
    for (uint32_t d = 0; d < session->info->ranks && to->packed; d++)
        if (d / node != to->me / node)
            rows[slots_wire_number(session->ir, to->combine, to->me, d)] += b->overflow[d];
    if (to->packed)
        divide_tables(&to->sums->tables[TABLES_REPLY], rows, MOE_MAX_WIRES);
}

bool builtin_bin(struct stream *s, const struct moe_kargs *a)
{
    struct moe_session *session = s->rank->session;
    const struct plan_instr *in = stream_instr(s);
    const struct plan_kernel *k = ROW(session->ir, plan_kernel, in->kernel);
    const struct plan_exchange *e = ROW(session->ir, plan_exchange, in->exchange);
    const struct exchange_state *states = s->rank->exchanges, *state = &states[in->exchange];
    struct routes routes = routes_of(s, a->p[BIN_IDS], a->p[BIN_WEIGHTS], a->n[1], e->node);
    const struct moe_bins *earlier = e->wave > 0 ? a->p[in->args.count - 1] : NULL;
    struct moe_bins *b = lay_out(session, e, a->p[BIN_BINS], a->n[0]);
    struct targets to = {
        .x = a->p[BIN_X],
        .send = a->p[BIN_SEND],
        .reply = a->p[BIN_REPLY],
        .own = a->p[BIN_OWN],
        .spill = a->p[BIN_SPILL],
        .packed = e->node && moe_bin_has_packed(in->args.count, e->wave) ? a->p[BIN_PACKED] : NULL,
        .x_bytes = k->n[0] * k->n[3],
        .own_bytes =
            ROW(session->ir, plan_buffer, ROW(session->ir, plan_arg, in->args.first + BIN_OWN)->buffer)->row_bytes,
        .me = s->rank->number,
        .y_dtype = (uint32_t)k->n[2],
        .e = e,
        .combine = ROW(session->ir, plan_exchange, state->combine),
        .state = state,
        .reply_state = &states[state->combine],
        .spill_state = state->pool == NONE ? NULL : &states[states[state->pool].combine],
        .sums = lay_out_sums(session, in, a->p[BIN_SUMS], a->n[0])};
    find_chunks(s, to.combine, a->n[1], a->n[0], b->chunk_end);
    find_chunks(s, e, a->n[1], a->n[0], b->piece_end);
    if (!carry_over(s, e, earlier, b) || !count_rows(s, &routes, e, b) || !check_overflow(s, e, b)) {
        b->head.tokens = 0;
        return false;
    }
    if (state->pool != NONE)
        place_pool(s, state->pool, b);
    write_headers(s, e, b, to.send);
    divide_pack(s, e, b);
    divide_sums(s, b, &to);
    if (!place_rows(s, &routes, b, &to)) {
        b->head.tokens = 0;
        return session_fail(session, MOE_LOST, "rank %u: the routes of `%s` have changed while they were read",
                            s->rank->number, ir_text(session->ir, e->name));
    }
    count_stored(s, b, &to);
    if (to.combine->chunks > 1)
        cut_chunks(s, b, &to);
    if (to.combine->chunks > 1 && e->node)
        cut_node_chunks(s, b, &to);
    cut_runs(s, b, &to, a->n[1]);
    cut_pack(s, b, &to);
    for (uint32_t i = 0; i < session->info->experts; i++) {
        s->routed[i] += b->load[i];
        s->last_routed[i] += in->layer == session->layers - 1 ? b->load[i] : 0;
    }
    return true;
}

/// Is this the row of a token that its entry in rank_tokens stands for? With copies it is one of several for the rank.
static bool is_granted(const struct moe_bins *b, const struct route_row *row, uint32_t d, const int32_t *entry)
{
    if (row->rank != d)
        return false;
    uint16_t first = b->rank_pairs ? b->rank_pairs[entry - b->rank_tokens] : 0;
    return !b->rank_pairs || (row->first <= first && first < row->end);
}

/// The rows of this source for rank d that a round grants: records, header, pack entries. False: the routes are no longer
/// those that `bin` saw, or another one has moved the pool's blocks.
static bool place_grant(const struct stream *s, const struct routes *r, const struct moe_bins *b,
                        const struct plan_exchange *e, uint32_t d, struct grant g, char *slot,
                        struct moe_row_table *tables, const char *x, int64_t x_bytes)
{
    const struct moe_session *session = s->rank->session;
    const int32_t *tokens = b->rank_tokens + b->rank_first[d] + slotted(b, d);
    struct moe_message *m = (void *)slot;
    *m = (struct moe_message){.rows = (uint32_t)g.count,
                              .source = s->rank->number,
                              .exchange = (uint32_t)(e - ROW(session->ir, plan_exchange, 0)),
                              .step = session->step_number};
    struct route route;
    uint32_t wire = slots_wire_number(session->ir, e, s->rank->number, d);
    int64_t row_bytes = ROW(session->ir, plan_wire, e->wires.first + wire)->row_bytes;
    if (!rank_holds(s->rank, e->send, slot + e->header_bytes, g.count * row_bytes))
        return false;
    for (int64_t i = 0; i < g.count; i++) {
        int64_t t = tokens[g.first + i];
        int row = 0;
        bool good = route_token(r, t, &route);
        while (row < route.count && !is_granted(b, &route.rows[row], d, tokens + g.first + i))
            row++;
        if (!good || row == route.count)
            return false;
        int from = route.rows[row].first, end = route.rows[row].end;
        wave_run(session, e, route.pairs, d, &from, &end);
        char *record = slot + e->header_bytes + i * row_bytes;
        write_meta(session, route.pairs, from, end, e, row_bytes, record);
        m->pairs += (uint32_t)(end - from);
        add_table_row(&tables[wire], tables[wire].rows, x + t * x_bytes, record);
    }
    return true;
}

bool builtin_bin_round(struct stream *s, const struct moe_kargs *a)
{
    struct moe_session *session = s->rank->session;
    const struct plan_instr *in = stream_instr(s);
    const struct plan_kernel *k = ROW(session->ir, plan_kernel, in->kernel);
    const struct plan_exchange *e = ROW(session->ir, plan_exchange, in->exchange);
    struct routes routes = routes_of(s, a->p[ROUND_IDS], a->p[ROUND_WEIGHTS], a->n[1], 0);
    const struct moe_bins *b = a->p[ROUND_BINS];
    struct moe_row_table *tables = a->p[ROUND_CONTROL];
    char *at = (char *)a->p[ROUND_CONTROL] + 128;
    int64_t rows = slots_round_rows(session->ir, e, s->rank->number, session->info->ranks);
    tables[0] = (struct moe_row_table){.src = carve(&at, rows, sizeof(void *))};
    tables[0].dst = carve(&at, rows, sizeof(void *));
    // The rows promised in the headers must be those in bins: a plan that mixes up its parts is stopped here.
    const struct exchange_state *base = &s->rank->exchanges[e->base];
    struct grant grants[MOE_MAX_RANKS];
    int64_t granted[TABLES_PACK_END] = {0};
    for (uint32_t d = 0; d < session->info->ranks; d++) {
        int64_t mine = base->mine[d];
        if (b->head.tokens != a->n[0] || (d != s->rank->number && mine != b->overflow[d]))
            return session_fail(session, MOE_LOST, "rank %u: overflow rows of `%s` are not those announced",
                                s->rank->number, ir_text(session->ir, e->name));
        grants[d] = grant_of(base->ahead[d], mine, slots_rows(session->ir, e, d), s->round);
        if (d != s->rank->number)
            granted[slots_wire_number(session->ir, e, s->rank->number, d)] += grants[d].count;
    }
    divide_tables(tables, granted, TABLES_PACK_END);
    for (uint32_t d = 0; d < session->info->ranks; d++)
        if (d != s->rank->number &&
            !place_grant(s, &routes, b, e, d, grants[d],
                         (char *)a->p[ROUND_SEND] + s->rank->exchanges[in->exchange].source_offset[d], tables,
                         a->p[ROUND_X], k->n[0] * k->n[3]))
            return session_fail(session, MOE_LOST, "rank %u: overflow rows of `%s` are not those announced",
                                s->rank->number, ir_text(session->ir, e->name));
    return true;
}
