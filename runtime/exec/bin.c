// The built-in kernel `bin`: routes become rows per destination rank (routes.h). It counts them (here), then fills the base
// slots' headers and metas and the pack table, and says where each token's replies will lie (bin_place.c); `bin_round` does
// the same for the rows granted in one overflow round. With waves of experts a `bin` looks at its wave's experts only and
// sends what no earlier wave has stored. With relays (slots.h) the rows of a token for one other node share one copy of its
// data, and stay together: where one finds no slot, all of them overflow, and their replies are summed, and their sum packed
// and unpacked, here as the relay would.
#include <string.h>

#include "bin.h"

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

/// Counts a group: pairs of its experts; rows that are not there yet, in slots and beyond; what earlier rows answer. False:
/// what an earlier wave has stored is not what these routes say.
static bool count_group(const struct stream *s, const struct plan_exchange *e, const struct route_pair pairs[],
                        const struct group *g, uint32_t chunk, struct moe_bins *b)
{
    const struct moe_session *session = s->rank->session;
    size_t row = (size_t)chunk * session->info->ranks;
    bool fit = g->there || bin_all_fit(session, e, s->rank->number, g, b->placed);
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
        chunk = bin_chunk_of(b->chunk_end, t, chunk);
        for (int i = 0; i < route.count;) {
            i = bin_find_group(session, e, s->rank->number, &route, i, stored, &g);
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
            rows[slots_wire_number(session->ir, e, s->rank->number, d)] += slotted(b, d);
    divide_tables(b->head.pack, rows, TABLES_PACK_END);
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

/// What this wave adds to the rows that are there, and how many replies it is to get.
static void count_stored(const struct stream *s, struct moe_bins *b, const struct targets *to)
{
    const struct moe_session *session = s->rank->session;
    for (uint32_t d = 0; d < session->info->ranks; d++) {
        int64_t sent = d == s->rank->number ? 0 : slotted(b, d);
        to->state->awaited[d] += to->e->waves > 1 ? b->needed[d] + b->answered[d] : sent;
        if (to->e->waves > 1)
            b->stored_count[d] += sent;
    }
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
    if (!bin_place_rows(s, &routes, b, &to)) {
        b->head.tokens = 0;
        return session_fail(session, MOE_LOST, "rank %u: the routes of `%s` have changed while they were read",
                            s->rank->number, ir_text(session->ir, e->name));
    }
    count_stored(s, b, &to);
    if (to.combine->chunks > 1)
        bin_cut_chunks(s, b, &to);
    if (to.combine->chunks > 1 && e->node)
        bin_cut_node_chunks(s, b, &to);
    bin_cut_runs(s, b, &to, a->n[1]);
    bin_cut_pack(s, b, &to);
    for (uint32_t i = 0; i < session->info->experts; i++) {
        s->routed[i] += b->load[i];
        s->last_routed[i] += in->layer == session->layers - 1 ? b->load[i] : 0;
    }
    return true;
}
