// The built-in kernel `bin_round`: records, headers and pack entries of the rows granted in one overflow round.
#include "bin.h"
#include "grants.h"

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
        bin_wave_run(session, e, route.pairs, d, &from, &end);
        char *record = slot + e->header_bytes + i * row_bytes;
        bin_write_meta(session, route.pairs, from, end, e, row_bytes, record);
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
