// The built-in kernels `fan_out` and `dense`: rows become (row, local expert) pairs sorted by local expert, so that one
// grouped product serves every source. Within an expert pairs follow source rank, then row, own rows at their rank's
// place: the order in which a row's sum is formed does not depend on who sent first.
#include <string.h>

#include "control.h"
#include "grants.h"
#include "session.h"

/// Rows of one source as they lie in memory.
struct source {
    const char *rows;
    int64_t count, stride;
    const char *meta;           // remote: of the first record
    const struct moe_bins *own; // own rows: by pointer, metas in bins
    char *reply;
    int64_t reply_stride;
};

struct fan {
    struct stream *stream;
    const struct plan_exchange *e, *combine;
    const struct exchange_state *state, *combine_state, *base;
    const struct moe_kargs *args;
    int64_t local_experts, x_bytes;
};

/// Where the rows of source `from` lie and where their replies go. False with the session failed when its message lies.
static bool find_source(const struct fan *f, uint32_t from, struct source *out)
{
    const struct rank *rank = f->stream->rank;
    const struct ir *ir = rank->session->ir;
    uint32_t ranks = rank->session->info->ranks;
    *out = (struct source){.stride = f->e->row_bytes, .reply_stride = f->combine->row_bytes};
    const struct moe_bins *bins = f->args->p[FAN_BINS];
    if (from == rank->number) {
        if (f->e->pool || !bins->head.tokens)
            return true;
        *out = (struct source){.rows = f->args->p[FAN_X],
                               .count = bins->own_rows,
                               .stride = f->x_bytes,
                               .own = bins,
                               .reply = f->args->p[FAN_OWN],
                               .reply_stride = f->combine->row_bytes};
        return true;
    }
    const char *slot = (const char *)f->args->p[FAN_ARRIVED] + f->state->target_offset[from];
    char *answer = (char *)f->args->p[FAN_REPLY] + f->combine_state->target_offset[from];
    const struct moe_message *m = (const void *)slot;
    int64_t most = slots_rows(ir, f->e, rank->number);
    out->count = m->rows;
    out->rows = slot + f->e->header_bytes;
    out->reply = answer + f->combine->header_bytes;
    if (f->e->pool) {
        struct grant g = grant_of(f->base->from_first[from], f->base->from[from], most, f->stream->round);
        out->rows =
            (const char *)f->args->p[FAN_ARRIVED] + (ranks - 1) * f->e->header_bytes + g.place * f->e->row_bytes;
        out->reply =
            (char *)f->args->p[FAN_REPLY] + (ranks - 1) * f->combine->header_bytes + g.place * f->combine->row_bytes;
        most = g.count;
    }
    if (out->count > most)
        return session_fail(rank->session, MOE_LOST,
                            "rank %u sent %lld rows to rank %u by `%s`, which has room for %lld", from,
                            (long long)out->count, rank->number, ir_text(ir, f->e->name), (long long)most);
    *(struct moe_message *)(void *)answer =
        (struct moe_message){.rows = m->rows,
                             .pairs = m->pairs,
                             .source = rank->number,
                             .exchange = (uint32_t)(f->combine - ROW(ir, plan_exchange, 0)),
                             .step = rank->session->step_number};
    out->meta = out->rows + f->e->row_bytes - f->e->meta_bytes;
    return true;
}

/// The pairs of a source's row.
static const struct moe_row_meta *row_pairs(const struct source *s, int64_t row, int64_t choices, int64_t *count)
{
    if (s->own) {
        *count = s->own->own_first[row + 1] - s->own->own_first[row];
        return s->own->own_pairs + s->own->own_first[row];
    }
    const struct moe_row_meta *meta = (const void *)(s->meta + row * s->stride);
    int64_t n = 0;
    while (n < choices && meta[n].local >= 0)
        n++;
    *count = n;
    return meta;
}

static struct moe_pairs_head *lay_out(const struct fan *f, int64_t **cursor)
{
    const struct rank *rank = f->stream->rank;
    const struct ir *ir = rank->session->ir;
    uint32_t ranks = rank->session->info->ranks;
    int64_t rows = slots_fan_rows(ir, f->e, rank->number, ranks),
            pairs = slots_fan_pairs(ir, f->e, rank->number, ranks);
    struct moe_pairs_head *h = f->args->p[FAN_PAIRS];
    char *at = (char *)h + (sizeof *h + 63) / 64 * 64;
    *h = (struct moe_pairs_head){.experts = f->local_experts};
    h->unpack.src = carve(&at, pairs, sizeof(void *));
    h->unpack.dst = carve(&at, pairs, sizeof(void *));
    h->expert_first = carve(&at, f->local_experts + 1, sizeof(int64_t));
    *cursor = carve(&at, f->local_experts + 1, sizeof(int64_t));
    h->pair_row = carve(&at, pairs, sizeof(int32_t));
    h->pair_weight = carve(&at, pairs, sizeof(float));
    h->row_dst = carve(&at, rows, sizeof(void *));
    return h;
}

/// Pairs per local expert, as a prefix sum. A local id that this rank lacks is left out here and in place_pairs; the
/// conservation check then reports the missing pair.
static bool count_pairs(const struct fan *f, int64_t *first)
{
    const struct moe_session *session = f->stream->rank->session;
    memset(first, 0, (size_t)(f->local_experts + 1) * sizeof *first);
    for (uint32_t from = 0; from < session->info->ranks; from++) {
        struct source s;
        if (!find_source(f, from, &s))
            return false;
        for (int64_t row = 0; row < s.count; row++) {
            int64_t count;
            const struct moe_row_meta *meta = row_pairs(&s, row, session->info->choices, &count);
            for (int64_t i = 0; i < count && i < f->local_experts; i++)
                if (meta[i].local < f->local_experts) {
                    first[meta[i].local + 1]++;
                    f->stream->computed[from * f->local_experts + meta[i].local]++;
                }
        }
    }
    for (int64_t l = 0; l < f->local_experts; l++)
        first[l + 1] += first[l];
    return true;
}

static void place_pairs(const struct fan *f, struct moe_pairs_head *h, int64_t *cursor, struct moe_row_table *own,
                        int64_t a_bytes)
{
    const struct moe_session *session = f->stream->rank->session;
    memcpy(cursor, h->expert_first, (size_t)f->local_experts * sizeof *cursor);
    for (uint32_t from = 0; from < session->info->ranks; from++) {
        struct source s;
        if (!find_source(f, from, &s))
            return;
        const int32_t *tokens = s.own ? s.own->rank_tokens + s.own->rank_first[from] : NULL;
        struct moe_row_table *table = s.own && own ? own : &h->unpack;
        for (int64_t row = 0; row < s.count; row++) {
            int64_t count;
            const struct moe_row_meta *meta = row_pairs(&s, row, session->info->choices, &count);
            const char *data = s.rows + (tokens ? tokens[row] : row) * s.stride;
            ((void **)(uintptr_t)h->row_dst)[h->rows] = s.reply + row * s.reply_stride;
            for (int64_t i = 0; i < count && i < f->local_experts; i++) {
                if (meta[i].local >= f->local_experts)
                    continue;
                int64_t at = cursor[meta[i].local]++;
                ((int32_t *)(uintptr_t)h->pair_row)[at] = (int32_t)h->rows;
                ((float *)(uintptr_t)h->pair_weight)[at] = meta[i].weight;
                // With one table, entry = pair, so that workers write A in order.
                int64_t entry = own ? table->rows : at;
                table->rows++;
                ((const void **)(uintptr_t)table->src)[entry] = data;
                ((void **)(uintptr_t)table->dst)[entry] = (char *)f->args->p[FAN_A] + at * a_bytes;
            }
            h->rows++;
        }
    }
}

bool builtin_fan_out(struct stream *s, const struct moe_kargs *a)
{
    const struct moe_session *session = s->rank->session;
    const struct ir *ir = session->ir;
    const struct plan_instr *in = stream_instr(s);
    const struct plan_kernel *k = ROW(ir, plan_kernel, in->kernel);
    const struct exchange_state *states = s->rank->exchanges;
    struct fan f = {.stream = s, .e = ROW(ir, plan_exchange, in->exchange), .state = &states[in->exchange], .args = a};
    f.combine = ROW(ir, plan_exchange, f.state->combine);
    f.combine_state = &states[f.state->combine];
    f.base = f.e->pool ? &states[f.e->base] : f.state;
    f.local_experts = ROW(ir, plan_rank, s->rank->number)->owned.count;
    f.x_bytes = ROW(ir, plan_buffer, ROW(ir, plan_arg, in->args.first + FAN_X)->buffer)->row_bytes;
    const struct moe_bins *bins = a->p[FAN_BINS];
    if (!f.e->pool && bins->head.tokens != a->n[0])
        return session_fail(s->rank->session, MOE_LOST, "rank %u: the own rows of `%s` are another part's",
                            s->rank->number, ir_text(ir, f.e->name));
    int64_t *cursor;
    struct moe_pairs_head *h = lay_out(&f, &cursor);
    struct moe_row_table *own = in->args.count > FAN_OWN_TABLE ? a->p[FAN_OWN_TABLE] : NULL;
    if (own) {
        int64_t most = ROW(ir, plan_part, f.e->part)->bound *
                       (f.local_experts < session->info->choices ? f.local_experts : session->info->choices);
        char *at = (char *)own + 64;
        *own = (struct moe_row_table){.src = carve(&at, most, sizeof(void *))};
        own->dst = carve(&at, most, sizeof(void *));
    }
    if (!count_pairs(&f, (int64_t *)(uintptr_t)h->expert_first)) {
        h->experts = 0;
        return false;
    }
    place_pairs(&f, h, cursor, own, k->n[0]);
    return true;
}

bool builtin_dense(struct stream *s, const struct moe_kargs *a)
{
    const struct ir *ir = s->rank->session->ir;
    const struct plan_instr *in = stream_instr(s);
    const struct plan_kernel *k = ROW(ir, plan_kernel, in->kernel);
    int64_t tokens = a->n[0], bound = ROW(ir, plan_part, in->part)->bound;
    struct moe_pairs_head *h = a->p[DENSE_PAIRS];
    char *at = (char *)h + (sizeof *h + 63) / 64 * 64;
    const void **src = carve(&at, bound, sizeof(void *));
    void **dst = carve(&at, bound, sizeof(void *));
    int64_t *first = carve(&at, 2, sizeof(int64_t));
    int32_t *row = carve(&at, bound, sizeof(int32_t));
    float *weight = carve(&at, bound, sizeof(float));
    void **row_dst = carve(&at, bound, sizeof(void *));
    first[0] = 0;
    first[1] = tokens;
    for (int64_t t = 0; t < tokens; t++) {
        src[t] = (char *)a->p[DENSE_X] + t * k->n[1];
        dst[t] = (char *)a->p[DENSE_A] + t * k->n[0];
        row[t] = (int32_t)t;
        weight[t] = 1;
        row_dst[t] = (char *)a->p[DENSE_Y] + t * k->n[2];
    }
    *h = (struct moe_pairs_head){.unpack = {tokens, src, dst},
                                 .experts = 1,
                                 .expert_first = first,
                                 .pair_row = row,
                                 .pair_weight = weight,
                                 .rows = tokens,
                                 .row_dst = row_dst};
    return true;
}
