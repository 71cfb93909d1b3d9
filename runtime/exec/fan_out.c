// The built-in kernels `fan_out` and `dense`: rows become (row, local expert) pairs sorted by local expert, so that one
// grouped product serves every source. Within an expert pairs follow source rank, then row, own rows at their rank's
// place: the order in which a row's sum is formed does not depend on who sent first. A wave of experts reads the rows that
// it and earlier waves brought, and takes those with a pair of its own.
#include <string.h>

#include "control.h"
#include "grants.h"
#include "session.h"

/// Rows of one source as they lie in memory: of one slot, or (own) by pointer.
struct source {
    const char *rows;
    int64_t count, stride;
    const char *meta;           // remote: of the first record
    const struct moe_bins *own; // own rows: by pointer, metas in bins
    char *reply;                // of the first row that is answered
    int64_t reply_stride;
    uint32_t table, reply_table; // TABLES_END: sums go to the replies as they are
};

struct fan {
    struct stream *stream;
    const struct plan_exchange *e, *combine;
    const struct exchange_state *combine_state, *base;
    const struct moe_kargs *args;
    int64_t local_experts, first_expert, experts; // of the rank; the wave's
    int64_t x_bytes, a_bytes, own_bytes, stage_bytes; // strides
    bool own_apart, one_table;                        // own rows, and all rows, by table
    bool by_row;                                      // A has a row for each routed row
    uint32_t y_dtype;
    uint32_t slots[MOE_MAX_WAVES]; // exchanges whose rows this wave reads: of waves 0 up to its own
    uint32_t slot_count;
    const struct plan_part *run; // it takes rows of these tokens; NULL: of all
    uint32_t run_number;
    int64_t run_first, run_end; // its tokens of the own part
};

/// Pairs of a row that are the wave's.
struct taken {
    const struct moe_row_meta *meta;
    int64_t count;
};

/// Own rows: none in a pool, none when `bin` failed.
static void find_own(const struct fan *f, struct source *out)
{
    const struct moe_bins *bins = f->args->p[FAN_BINS];
    if (!f->e->pool && bins->head.tokens)
        *out = (struct source){.rows = f->args->p[FAN_X],
                               .count = bins->own_rows,
                               .stride = f->x_bytes,
                               .own = bins,
                               .reply = f->args->p[FAN_OWN],
                               .reply_stride = f->own_bytes,
                               .table = f->own_apart ? TABLE_OWN : TABLES_UNPACK,
                               .reply_table = TABLES_END};
}

/// The header of this wave's answer to a source.
static struct moe_message *answer_to(const struct fan *f, uint32_t from)
{
    return (void *)((char *)f->args->p[FAN_REPLY] + f->combine_state->target_offset[from]);
}

/// In what formats a remote source's rows come and its replies go.
static void find_formats(const struct fan *f, uint32_t from, struct source *out)
{
    const struct rank *rank = f->stream->rank;
    const struct ir *ir = rank->session->ir;
    uint32_t reply = slots_answer_number(ir, f->combine, rank->number, from);
    const struct plan_wire *wire = ROW(ir, plan_wire, f->combine->wires.first + reply);
    bool plain = wire_is_plain(wire, f->y_dtype);
    *out = (struct source){.table = TABLES_UNPACK + slots_wire_number(ir, f->e, from, rank->number),
                           .stride = slots_record_bytes(ir, f->e, from, rank->number),
                           .reply_stride = wire->row_bytes,
                           .reply_table = plain ? TABLES_END : TABLES_REPLY + reply};
}

/// Rows of a slot: of all chunks in which they came; of this wave's, those that a piece waits for.
static int64_t arrived_rows(const struct fan *f, uint32_t slot, const struct plan_exchange *e, const char *at)
{
    const struct ir *ir = f->stream->rank->session->ir;
    bool some = f->run && slot + 1 == f->slot_count;
    int64_t rows = 0;
    for (uint32_t k = 0; (k == 0 || k < e->chunks) && (!some || slots_chunk_needed(ir, e, k, f->run)); k++)
        rows += ((const struct moe_message *)(const void *)(at + slots_header_at(e, k)))->rows;
    return rows;
}

/// Where the rows of source `from` in one of the slots lie and where the answers go. False with the session failed when
/// its message lies.
static bool find_source(const struct fan *f, uint32_t from, uint32_t slot, struct source *out)
{
    const struct rank *rank = f->stream->rank;
    const struct ir *ir = rank->session->ir;
    uint32_t ranks = rank->session->info->ranks;
    *out = (struct source){.reply_table = TABLES_END};
    if (from == rank->number) {
        find_own(f, out);
        return true;
    }
    find_formats(f, from, out);
    const struct plan_exchange *e = ROW(ir, plan_exchange, f->slots[slot]);
    const char *arrived = rank->bases[e->recv];
    const char *begin = arrived + rank->exchanges[f->slots[slot]].target_offset[from];
    int64_t most = slots_rows(ir, e, rank->number);
    out->count = arrived_rows(f, slot, e, begin);
    out->rows = begin + e->header_bytes;
    out->reply = (char *)answer_to(f, from) + f->combine->header_bytes;
    if (e->pool) {
        struct grant g = grant_of(f->base->from_first[from], f->base->from[from], most, f->stream->round);
        out->rows = arrived + (ranks - 1) * e->header_bytes + g.place * slots_largest_record(ir, e);
        out->reply = (char *)f->args->p[FAN_REPLY] + (ranks - 1) * f->combine->header_bytes +
                     g.place * slots_largest_record(ir, f->combine);
        most = g.count;
    }
    if (out->count > most)
        return session_fail(rank->session, MOE_LOST,
                            "rank %u sent %lld rows to rank %u by `%s`, which has room for %lld", from,
                            (long long)out->count, rank->number, ir_text(ir, e->name), (long long)most);
    out->meta = out->rows + out->stride - e->meta_bytes;
    return true;
}

/// The wave's pairs of a source's row: a run, for a row lists its pairs by ascending local id. A local id that this rank
/// lacks is left out; the conservation check then reports the missing pair.
static struct taken take_pairs(const struct fan *f, const struct source *s, int64_t row, int64_t choices)
{
    if (s->own) {
        int64_t first = s->own->own_first[row];
        return (struct taken){s->own->own_pairs + first, s->own->own_first[row + 1] - first};
    }
    struct taken taken = {(const void *)(s->meta + row * s->stride), 0};
    const struct moe_row_meta *end = taken.meta + choices;
    while (taken.meta < end && taken.meta->local >= 0 && taken.meta->local < f->first_expert)
        taken.meta++;
    while (taken.count < f->experts && taken.meta + taken.count < end &&
           taken.meta[taken.count].local >= f->first_expert &&
           taken.meta[taken.count].local < f->first_expert + f->experts)
        taken.count++;
    return taken;
}

static struct moe_pairs_head *lay_out(const struct fan *f, int64_t **cursor)
{
    const struct rank *rank = f->stream->rank;
    const struct ir *ir = rank->session->ir;
    uint32_t ranks = rank->session->info->ranks;
    uint32_t part = stream_instr(f->stream)->part;
    int64_t rows = slots_fan_rows(ir, f->e, part, rank->number, ranks),
            pairs = slots_fan_pairs(ir, f->e, part, rank->number, ranks);
    struct moe_pairs_head *h = f->args->p[FAN_PAIRS];
    char *at = (char *)h + (sizeof *h + 63) / 64 * 64;
    *h = (struct moe_pairs_head){.experts = f->experts, .first_expert = f->first_expert};
    // one pair of arrays for all tables: divide_tables
    h->tables[0].src = carve(&at, pairs + rows, sizeof(void *));
    h->tables[0].dst = carve(&at, pairs + rows, sizeof(void *));
    h->expert_first = carve(&at, f->experts + 1, sizeof(int64_t));
    *cursor = carve(&at, f->experts + 1, sizeof(int64_t));
    h->pair_row = carve(&at, pairs, sizeof(int32_t));
    h->pair_weight = carve(&at, pairs, sizeof(float));
    h->row_dst = carve(&at, rows, sizeof(void *));
    return h;
}

/// In how many chunks a source is answered; own rows are not.
static uint32_t chunks_for(const struct fan *f, uint32_t from)
{
    return from != f->stream->rank->number && f->combine->chunks > 1 ? f->combine->chunks : 1;
}

/// The rows of a slot up to a cut, of those that stand from `first` on in the message that came.
static int64_t rows_to_cut(const struct fan *f, uint32_t from, uint32_t slot, uint32_t first, uint32_t cut, const struct source *s)
{
    const struct rank *rank = f->stream->rank;
    const char *arrived = (const char *)rank->bases[ROW(rank->session->ir, plan_exchange, f->slots[slot])->recv] +
                          rank->exchanges[f->slots[slot]].target_offset[from];
    const uint32_t *cuts =
        (const uint32_t *)(const void *)(arrived + sizeof(struct moe_message)) + rank->session->info->ranks;
    int64_t end = 0;
    for (uint32_t k = first; k <= first + cut; k++) // whatever the message says, chunks follow one another
        end = cuts[k] > end ? cuts[k] : end;
    return end < s->count ? end : s->count;
}

/// The rows up to the end of a chunk's tokens; the last chunk takes what is left.
static int64_t chunk_end(const struct fan *f, uint32_t from, uint32_t slot, uint32_t chunk, const struct source *s)
{
    return chunk + 1 == chunks_for(f, from) ? s->count : rows_to_cut(f, from, slot, 0, chunk, s);
}

/// Own rows of tokens before `end`.
static int64_t own_before(const struct source *s, uint32_t me, int64_t end)
{
    const int32_t *tokens = s->own->rank_tokens + s->own->rank_first[me];
    int64_t rows = 0;
    while (rows < s->count && tokens[rows] < end)
        rows++;
    return rows;
}

/// The rows of a slot that the piece takes: a run of them.
static void find_run(const struct fan *f, uint32_t from, uint32_t slot, const struct source *s, int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = s->count;
    if (!f->run)
        return;
    if (s->own || from == f->stream->rank->number) {
        *begin = s->own ? own_before(s, from, f->run_first) : 0;
        *end = s->own ? own_before(s, from, f->run_end) : 0;
        return;
    }
    if (f->run_number)
        *begin = rows_to_cut(f, from, slot, f->e->answers, f->run_number - 1, s);
    if (f->run_number + 1 < f->e->runs.count)
        *end = rows_to_cut(f, from, slot, f->e->answers, f->run_number, s);
}

static int64_t chunk_begin(const struct fan *f, uint32_t from, uint32_t slot, uint32_t chunk, const struct source *s)
{
    return chunk ? chunk_end(f, from, slot, chunk - 1, s) : 0;
}

/// Rows and pairs of each chunk of an answer.
struct answer {
    uint32_t rows[MOE_MAX_CHUNKS], pairs[MOE_MAX_CHUNKS];
};

/// The header of an answer, or one for each chunk of it. A piece leaves alone those of chunks with none of its tokens, begins
/// those whose first token it has, and adds to those that pieces before it have begun.
static void head_answer(const struct fan *f, uint32_t from, const struct answer *a)
{
    const struct rank *rank = f->stream->rank;
    const struct ir *ir = rank->session->ir;
    for (uint32_t k = 0; k < chunks_for(f, from); k++) {
        const struct plan_exchange *c = f->combine + k;
        const struct plan_part *tokens = ROW(ir, plan_part, c->piece != NONE ? c->piece : c->part);
        struct moe_message *m = (void *)((char *)answer_to(f, from) + slots_header_at(c, k));
        if (f->run && slots_parts_apart(f->run, tokens))
            continue;
        if (!f->run || f->run->begin * tokens->total <= tokens->begin * f->run->total)
            *m = (struct moe_message){.source = rank->number,
                                      .exchange = (uint32_t)(c - ROW(ir, plan_exchange, 0)),
                                      .step = rank->session->step_number};
        m->rows += a->rows[k];
        m->pairs += a->pairs[k];
    }
}

/// Pairs of one source per expert of the wave; heads the answer to it. False: with the session failed, or rows changed.
static bool count_source(const struct fan *f, uint32_t from, int64_t *first, int64_t table_rows[TABLES_END])
{
    struct rank *rank = f->stream->rank;
    const struct moe_session *session = rank->session;
    int64_t *computed = f->stream->computed + from * f->local_experts, rows = 0;
    struct answer answer = {{0}, {0}};
    for (uint32_t slot = 0; slot < (from == rank->number ? 1 : f->slot_count); slot++) {
        struct source s;
        uint32_t chunk = 0;
        if (!find_source(f, from, slot, &s))
            return false;
        int64_t end = chunk_end(f, from, slot, chunk, &s), first_row, last_row;
        find_run(f, from, slot, &s, &first_row, &last_row);
        for (int64_t row = first_row; row < last_row; row++) {
            struct taken taken = take_pairs(f, &s, row, session->info->choices);
            while (row >= end)
                end = chunk_end(f, from, slot, ++chunk, &s);
            answer.rows[chunk] += taken.count > 0;
            answer.pairs[chunk] += (uint32_t)taken.count;
            rows += taken.count > 0;
            table_rows[s.table] += f->by_row ? taken.count > 0 : taken.count;
            if (s.reply_table < TABLES_END)
                table_rows[s.reply_table] += taken.count > 0;
            for (int64_t i = 0; i < taken.count; i++) {
                int64_t local = taken.meta[i].local;
                if (local < f->first_expert || local >= f->first_expert + f->experts)
                    return false; // another one than a moment ago
                first[local - f->first_expert + 1]++;
                computed[local]++;
            }
        }
    }
    if (from == rank->number)
        return true;
    uint32_t part = f->run ? stream_instr(f->stream)->part : f->e->part;
    int64_t most = slots_taken_rows(session->ir, f->e, part, rank->number);
    if (rows > most)
        return session_fail(rank->session, MOE_LOST, "rank %u has %lld rows of rank %u to answer by `%s`, at most %lld",
                            rank->number, (long long)rows, from, ir_text(session->ir, f->combine->name),
                            (long long)most);
    head_answer(f, from, &answer);
    return true;
}

/// Pairs per expert of the wave, as a prefix sum.
static bool count_pairs(const struct fan *f, int64_t *first, int64_t table_rows[TABLES_END])
{
    memset(first, 0, (size_t)(f->experts + 1) * sizeof *first);
    for (uint32_t from = 0; from < f->stream->rank->session->info->ranks; from++)
        if (!count_source(f, from, first, table_rows))
            return false;
    for (int64_t l = 0; l < f->experts; l++)
        first[l + 1] += first[l];
    return true;
}

/// What has been counted: rows that change while they are read lead nobody beyond it.
struct counted {
    int64_t *cursor;           // [experts] next pair of each
    const int64_t *table_rows; // of every table
};

/// Where the sum of row h->rows goes: to its reply, or to a staging row from which its reply is packed.
static bool place_sum(const struct fan *f, struct moe_pairs_head *h, const struct counted *c, const struct source *s,
                      char *reply)
{
    void **sum = (void **)(uintptr_t)h->row_dst + h->rows;
    *sum = reply;
    if (s->reply_table == TABLES_END)
        return true;
    struct moe_row_table *table = &h->tables[s->reply_table];
    if (table->rows >= c->table_rows[s->reply_table])
        return false;
    *sum = (char *)f->args->p[FAN_STAGE] + h->rows * f->stage_bytes;
    add_table_row(table, table->rows, *sum, reply);
    return true;
}

/// Row `to` of A is filled from `data`. With one table its entries are in the order of A, which workers then write in order.
static bool place_a(const struct fan *f, struct moe_pairs_head *h, const struct counted *c, const struct source *s, int64_t to,
                    const char *data)
{
    struct moe_row_table *table = &h->tables[s->table];
    if (table->rows >= c->table_rows[s->table])
        return false;
    add_table_row(table, f->one_table ? to : table->rows, data, (char *)f->args->p[FAN_A] + to * f->a_bytes);
    return true;
}

static bool place_row(const struct fan *f, struct moe_pairs_head *h, const struct counted *c, const struct source *s,
                      const struct taken *taken, const char *data)
{
    for (int64_t i = 0; i < taken->count; i++) {
        struct moe_row_meta meta = taken->meta[i];
        int64_t expert = meta.local - f->first_expert;
        if (expert < 0 || expert >= f->experts || c->cursor[expert] >= h->expert_first[expert + 1])
            return false;
        int64_t at = c->cursor[expert]++;
        ((int32_t *)(uintptr_t)h->pair_row)[at] = (int32_t)h->rows;
        ((float *)(uintptr_t)h->pair_weight)[at] = meta.weight;
        if (!f->by_row && !place_a(f, h, c, s, at, data))
            return false;
    }
    if (f->by_row && !place_a(f, h, c, s, h->rows, data))
        return false;
    h->rows++;
    return true;
}

/// The rows of one source that one chunk of the replies answers, of all slots. False: there are more than were counted.
static bool place_source(const struct fan *f, struct moe_pairs_head *h, const struct counted *c, uint32_t from,
                         uint32_t chunk, int64_t *answered)
{
    const struct moe_session *session = f->stream->rank->session;
    int64_t most = slots_rows(session->ir, f->combine, f->stream->rank->number);
    for (uint32_t slot = 0; slot < (from == f->stream->rank->number ? 1 : f->slot_count); slot++) {
        struct source s;
        if (!find_source(f, from, slot, &s))
            return false;
        const int32_t *tokens = s.own ? s.own->rank_tokens + s.own->rank_first[from] : NULL;
        int64_t end = chunk_end(f, from, slot, chunk, &s), first_row, last_row;
        find_run(f, from, slot, &s, &first_row, &last_row);
        if (slot + 1 == f->slot_count && last_row < end) // of this wave's rows, later ones may still be on their way
            end = last_row;
        for (int64_t row = chunk_begin(f, from, slot, chunk, &s); row < end; row++) {
            struct taken taken = take_pairs(f, &s, row, session->info->choices);
            if (!taken.count)
                continue;
            if (row < first_row || row >= last_row) { // another piece's: its answer has its place
                ++*answered;
                continue;
            }
            if ((!s.own && *answered >= most) || !place_sum(f, h, c, &s, s.reply + *answered * s.reply_stride) ||
                !place_row(f, h, c, &s, &taken, s.rows + (tokens ? tokens[row] - f->run_first : row) * s.stride))
                return false;
            ++*answered;
        }
    }
    return true;
}

static bool place_pairs(const struct fan *f, struct moe_pairs_head *h, const struct counted *c)
{
    memcpy(c->cursor, h->expert_first, (size_t)f->experts * sizeof *c->cursor);
    for (uint32_t from = 0; from < f->stream->rank->session->info->ranks; from++) {
        int64_t answered = 0;
        for (uint32_t chunk = 0; chunk < chunks_for(f, from); chunk++)
            if (!place_source(f, h, c, from, chunk, &answered))
                return false;
    }
    return true;
}

/// The slots that the wave reads, in the order of their waves.
static void find_slots(struct fan *f, uint32_t exchange)
{
    const struct ir *ir = f->stream->rank->session->ir;
    f->slot_count = f->e->pool ? 1 : f->e->wave + 1;
    for (uint32_t i = f->slot_count; i-- > 0; exchange = ROW(ir, plan_exchange, exchange)->earlier)
        f->slots[i] = exchange;
}

static int64_t argument_stride(const struct ir *ir, const struct plan_instr *in, uint32_t argument)
{
    return ROW(ir, plan_buffer, ROW(ir, plan_arg, in->args.first + argument)->buffer)->row_bytes;
}

static void find_strides(struct fan *f, const struct plan_instr *in)
{
    const struct ir *ir = f->stream->rank->session->ir;
    const struct plan_kernel *k = ROW(ir, plan_kernel, in->kernel);
    f->x_bytes = argument_stride(ir, in, FAN_X);
    f->a_bytes = k->n[0];
    f->own_bytes = argument_stride(ir, in, FAN_OWN);
    if (moe_fan_has_stage(in->args.count, f->slot_count - 1))
        f->stage_bytes = argument_stride(ir, in, FAN_STAGE);
    f->own_apart = k->n[2] != 0;
    f->one_table = !f->own_apart && f->e->wires.count == 1;
    f->y_dtype = (uint32_t)k->n[3];
    f->by_row = k->n[4] != 0;
}

/// Of experts in pieces: whose tokens' rows this launch takes. Returns the tokens of the part.
static int64_t find_tokens(struct fan *f, const struct plan_instr *in, const struct moe_kargs *a)
{
    const struct rank *rank = f->stream->rank;
    const struct ir *ir = rank->session->ir;
    int64_t first, count;
    part_range(ROW(ir, plan_part, f->e->part), rank->step->tokens, &first, &count);
    if (f->e->runs.count) {
        f->run = ROW(ir, plan_part, in->part);
        f->run_number = in->part - f->e->runs.first;
        f->run_first = a->n[1] - first;
        f->run_end = f->run_first + a->n[0];
    }
    return count;
}

bool builtin_fan_out(struct stream *s, const struct moe_kargs *a)
{
    const struct moe_session *session = s->rank->session;
    const struct ir *ir = session->ir;
    const struct plan_instr *in = stream_instr(s);
    const struct exchange_state *states = s->rank->exchanges;
    const struct exchange_state *state = &states[in->exchange];
    struct fan f = {.stream = s, .e = ROW(ir, plan_exchange, in->exchange), .args = a};
    f.combine = ROW(ir, plan_exchange, state->combine);
    f.combine_state = &states[state->combine];
    f.base = f.e->pool ? &states[f.e->base] : state;
    f.local_experts = ROW(ir, plan_rank, s->rank->number)->owned.count;
    f.first_expert = slots_wave_first(ir, f.e, s->rank->number);
    f.experts = slots_wave_experts(ir, f.e, s->rank->number);
    find_slots(&f, in->exchange);
    find_strides(&f, in);
    const struct moe_bins *bins = a->p[FAN_BINS];
    int64_t tokens = find_tokens(&f, in, a);
    // Of another wave or dispatch, they would name experts that this one does not list.
    if (!f.e->pool && (bins->head.tokens != tokens || (tokens && bins->exchange != in->exchange)))
        return session_fail(s->rank->session, MOE_LOST, "rank %u: the own rows of `%s` are another part's",
                            s->rank->number, ir_text(ir, f.e->name));
    int64_t *cursor, table_rows[TABLES_END] = {0};
    struct moe_pairs_head *h = lay_out(&f, &cursor);
    bool counted = count_pairs(&f, (int64_t *)(uintptr_t)h->expert_first, table_rows);
    divide_tables(h->tables, table_rows, TABLES_END);
    if (counted && place_pairs(&f, h, &(struct counted){cursor, table_rows}))
        return true;
    h->experts = 0;
    return session_fail(s->rank->session, MOE_LOST, "rank %u: rows of `%s` have changed while they were read",
                        s->rank->number, ir_text(ir, f.e->name));
}

bool builtin_dense(struct stream *s, const struct moe_kargs *a)
{
    const struct ir *ir = s->rank->session->ir;
    const struct plan_instr *in = stream_instr(s);
    const struct plan_kernel *k = ROW(ir, plan_kernel, in->kernel);
    int64_t tokens = a->n[0], bound = ROW(ir, plan_part, in->part)->bound, experts = k->n[3];
    struct moe_pairs_head *h = a->p[DENSE_PAIRS];
    char *at = (char *)h + (sizeof *h + 63) / 64 * 64;
    const void **src = carve(&at, bound * experts, sizeof(void *));
    void **dst = carve(&at, bound * experts, sizeof(void *));
    int64_t *first = carve(&at, experts + 1, sizeof(int64_t));
    int32_t *row = carve(&at, bound * experts, sizeof(int32_t));
    float *weight = carve(&at, bound * experts, sizeof(float));
    void **row_dst = carve(&at, bound, sizeof(void *));
    for (int64_t expert = 0; expert <= experts; expert++)
        first[expert] = expert * tokens;
    int64_t a_rows = moe_a_rows(k->n[4] != 0, tokens, experts * tokens);
    for (int64_t r = 0; r < a_rows; r++) {
        src[r] = (char *)a->p[DENSE_X] + r % tokens * k->n[1];
        dst[r] = (char *)a->p[DENSE_A] + r * k->n[0];
    }
    for (int64_t pair = 0; pair < experts * tokens; pair++) {
        row[pair] = (int32_t)(pair % tokens);
        weight[pair] = 1;
    }
    for (int64_t t = 0; t < tokens; t++)
        row_dst[t] = (char *)a->p[DENSE_Y] + t * k->n[2];
    *h = (struct moe_pairs_head){.tables = {[TABLES_UNPACK] = {a_rows, src, dst}},
                                 .experts = experts,
                                 .expert_first = first,
                                 .pair_row = row,
                                 .pair_weight = weight,
                                 .rows = tokens,
                                 .row_dst = row_dst};
    return true;
}
