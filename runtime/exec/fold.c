// The built-in kernel `fold`: on a relay, which of the node's replies answer the same row of the same source. The marks of
// the relayed dispatch say so; `sum_rows` then adds them, by ascending rank, into what goes back to the source, or, where
// that takes another format, into the first of them, from where `copy_rows` packs it.
#include <string.h>

#include "control.h"
#include "session.h"

/// A relayed message of source `s` as it lies here.
struct relayed {
    const struct ir *ir;
    const struct plan_exchange *e; // its dispatch
    uint32_t me;
    const char *message;
};

static struct relayed relayed_of(const struct rank *rank, uint32_t dispatch, uint32_t s)
{
    const struct ir *ir = rank->session->ir;
    const struct plan_exchange *e = ROW(ir, plan_exchange, dispatch);
    uint32_t me = rank->number;
    return (struct relayed){ir, e, me,
                            (const char *)rank->bases[e->relay] +
                                slots_relay_index(e, me, s) * slots_relay_slot_bytes(ir, e, me)};
}

static const struct moe_message *header_of(const struct relayed *r)
{
    return (const void *)r->message;
}

static const struct moe_row_mark *mark_of(const struct relayed *r, uint32_t position, int64_t row)
{
    return (const void *)(r->message + slots_relay_entries(r->ir, r->e, r->me, position) +
                          row * slots_entry_stride(r->e));
}

static const struct moe_relay_count *counts_of(const struct relayed *r)
{
    return (const void *)(r->message + r->e->header_bytes);
}

static bool refuse(struct stream *s, const struct plan_exchange *e, uint32_t source, const char *what)
{
    struct moe_session *session = s->rank->session;
    return session_fail(session, MOE_LOST, "rank %u received a message of rank %u in `%s` that %s", s->rank->number,
                        source, ir_text(session->ir, e->name), what);
}

bool relayed_message_good(struct stream *stream, uint32_t dispatch, uint32_t s)
{
    const struct moe_session *session = stream->rank->session;
    const struct relayed r = relayed_of(stream->rank, dispatch, s);
    const struct plan_exchange *e = r.e;
    const struct moe_message *m = header_of(&r);
    bool several = slots_has_copies(session->ir); // rows of a token for one rank, which are neighbours
    if (m->source != s || m->step != session->step_number || m->exchange != dispatch)
        return refuse(stream, e, s, "is of another exchange or step");
    if (m->rows > slots_relay_rows(session->ir, e, r.me))
        return refuse(stream, e, s, "has more rows than there is room for");
    for (uint32_t p = 0; p < e->node; p++) {
        int64_t rows = counts_of(&r)[p].rows, before = -1;
        if (rows > slots_rows(session->ir, e, r.me / e->node * e->node + p))
            return refuse(stream, e, s, "has more rows for a rank than it has slots");
        for (int64_t i = 0; i < rows; i++) {
            int64_t row = mark_of(&r, p, i)->row;
            if (row >= m->rows || row < before || (row == before && !several))
                return refuse(stream, e, s, "names a row that it lacks, or out of order");
            before = row;
        }
    }
    return true;
}

bool relayed_messages_good(struct stream *stream, uint32_t dispatch, uint32_t s)
{
    for (uint32_t d = dispatch; d != NONE; d = ROW(stream->rank->session->ir, plan_exchange, d)->earlier)
        if (!relayed_message_good(stream, d, s))
            return false;
    return true;
}

/// Does the wave have an expert among those that a row's meta lists?
static bool is_needed(const struct plan_exchange *wave, const struct ir *ir, const struct moe_row_mark *mark,
                      uint32_t d)
{
    const struct moe_row_meta *meta = (const void *)(mark + 1), *end = meta + ROW(ir, plan_info, 0)->choices;
    int64_t first = slots_wave_first(ir, wave, d), count = slots_wave_experts(ir, wave, d);
    if (wave->waves == 1)
        return true;
    while (meta < end && meta->local >= 0 && (meta->local < first || meta->local >= first + count))
        meta++;
    return meta < end && meta->local >= 0;
}

/// Where the rows of a chunk of the replies begin in a relayed message, and end. Whatever it says, chunks follow one another,
/// and the last takes what is left.
static int64_t chunk_begin(const struct relayed *r, uint32_t chunk, uint32_t chunks)
{
    const uint32_t *cuts = (const uint32_t *)(const void *)(header_of(r) + 1) + ROW(r->ir, plan_info, 0)->ranks;
    int64_t rows = header_of(r)->rows, begin = chunk >= chunks ? rows : 0;
    for (uint32_t k = 0; k < chunk && chunk < chunks; k++)
        begin = cuts[k] > begin ? cuts[k] : begin;
    return begin < rows ? begin : rows;
}

/// Row by row of a relayed message: `number` is what the first of the chunk's is called.
struct answering {
    const struct plan_exchange *combine, *wave;
    uint32_t first; // rank of the node
    int64_t answers[MOE_MAX_RANKS], number, most;
    relayed_row_fn *fn;
    void *user;
};

static void answer_row(struct answering *a, const struct relayed *r, int64_t row, int64_t at[], bool inside)
{
    bool any = false;
    for (uint32_t p = 0; p < a->wave->node; p++)
        for (; at[p] < counts_of(r)[p].rows && at[p] < slots_rows(r->ir, r->e, a->first + p) && mark_of(r, p, at[p])->row == row;
             at[p]++) {
            const struct moe_row_mark *mark = mark_of(r, p, at[p]);
            if (!inside || !is_needed(a->wave, r->ir, mark, a->first + p) ||
                a->answers[p] >= slots_handed_rows(r->ir, a->combine, a->first + p))
                continue;
            a->fn(&(struct relayed_row){a->number, a->answers[p]++, p, !any}, a->user);
            any = true;
        }
}

void relayed_rows(const struct rank *rank, uint32_t combine, uint32_t s, relayed_row_fn *fn, void *user)
{
    const struct ir *ir = rank->session->ir;
    const struct plan_exchange *e = ROW(ir, plan_exchange, combine);
    struct answering a = {.combine = e,
                          .wave = ROW(ir, plan_exchange, e->base),
                          .first = rank->number / e->node * e->node,
                          .most = slots_relay_rows(ir, e, rank->number),
                          .fn = fn,
                          .user = user};
    uint32_t chain[MOE_MAX_WAVES], waves = 0, chunks = slots_is_chunk(e) ? e->chunks : 1;
    for (uint32_t d = e->base; d != NONE && waves < MOE_MAX_WAVES; d = ROW(ir, plan_exchange, d)->earlier)
        chain[waves++] = d;
    while (waves-- > 0) {
        struct relayed r = relayed_of(rank, chain[waves], s);
        int64_t at[MOE_MAX_RANKS] = {0}, begin = chunk_begin(&r, e->chunk, chunks), end = chunk_begin(&r, e->chunk + 1, chunks);
        for (int64_t row = 0; row < end && a.number < a.most; row++) {
            answer_row(&a, &r, row, at, row >= begin);
            a.number += row >= begin;
        }
    }
}

struct fold {
    const struct ir *ir;
    const struct plan_exchange *combine;
    char *replies, *target; // of the source's sums
    uint32_t me, source, ranks, format; // format: in which the source gets them
    int64_t handed, record, parts;      // bytes of a reply, of a sum
    struct moe_sums_head *head;
};

static void fold_row(const struct relayed_row *row, void *user)
{
    struct fold *f = user;
    struct moe_sums_head *h = f->head;
    uint32_t from = f->me / f->combine->node * f->combine->node + row->position;
    char *reply = f->replies + slots_gather_offset(f->ir, f->combine, f->me, from, f->source, f->ranks) +
                  slots_head_bytes(f->combine) + row->answer * f->handed, *record = f->target + row->number * f->record;
    bool packed = f->format != f->combine->handed;
    if (row->first)
        ((void **)(uintptr_t)h->sums.dst)[h->sums.rows++] = packed ? reply : record;
    if (row->first && packed)
        add_table_row(&h->tables[TABLES_REPLY + f->format], h->tables[TABLES_REPLY + f->format].rows, reply, record);
    ((const void **)(uintptr_t)h->parts)[f->parts++] = reply;
    ((int64_t *)(uintptr_t)h->first)[h->sums.rows] = f->parts;
}

/// Sources of one format share arrays with those of others: each may have as many sums as any.
static void lay_out(struct fold *f, int64_t sums, int64_t parts)
{
    struct moe_sums_head *h = f->head;
    char *at = (char *)h + (sizeof *h + 63) / 64 * 64;
    *h = (struct moe_sums_head){.sums = {0}};
    h->sums.dst = carve(&at, sums, sizeof(void *));
    int64_t *first = carve(&at, sums + 1, sizeof(int64_t));
    h->parts = carve(&at, parts, sizeof(void *));
    h->first = first;
    first[0] = 0;
    struct moe_row_table *packs = &h->tables[TABLES_REPLY];
    int64_t rows[MOE_MAX_WIRES] = {0}, each = sums / (f->ranks / f->combine->node - 1);
    for (uint32_t source = f->me % f->combine->node; source < f->ranks; source += f->combine->node)
        if (source != f->me)
            rows[slots_wire_number(f->ir, f->combine, f->me, source)] += each;
    packs[0].src = carve(&at, sums, sizeof(void *));
    packs[0].dst = carve(&at, sums, sizeof(void *));
    divide_tables(packs, rows, MOE_MAX_WIRES);
}

bool builtin_fold(struct stream *s, const struct moe_kargs *a)
{
    const struct moe_session *session = s->rank->session;
    const struct ir *ir = session->ir;
    const struct plan_instr *in = stream_instr(s);
    struct fold f = {.ir = ir,
                     .combine = ROW(ir, plan_exchange, in->exchange),
                     .replies = a->p[FOLD_REPLIES],
                     .me = s->rank->number,
                     .ranks = session->info->ranks,
                     .head = a->p[FOLD_CONTROL]};
    uint32_t node = f.combine->node, others = f.ranks / node - 1;
    int64_t rows = others * slots_relay_rows(ir, f.combine, f.me),
            parts = others * slots_node_rows(ir, f.combine, f.me);
    lay_out(&f, rows, parts);
    f.handed = slots_handed_bytes(ir, f.combine);
    f.record = slots_largest_record(ir, f.combine);
    for (f.source = f.me % node; f.source < f.ranks; f.source += node) {
        if (f.source == f.me)
            continue;
        if (!relayed_messages_good(s, f.combine->base, f.source)) {
            f.head->sums.rows = 0;
            return false;
        }
        f.format = slots_wire_number(ir, f.combine, f.me, f.source);
        f.target = (char *)a->p[FOLD_SUMS] +
                   slots_relay_index(f.combine, f.me, f.source) * slots_relay_slot_bytes(ir, f.combine, f.me) +
                   slots_head_bytes(f.combine);
        relayed_rows(s->rank, in->exchange, f.source, fold_row, &f);
    }
    return true;
}
