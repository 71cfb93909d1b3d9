// The built-in kernel `fold`: on a relay, which of the node's replies answer the same row of the same source. The marks of
// the relayed dispatch say so; `sum_rows` then adds them, by ascending rank, into what goes back to the source.
#include <string.h>

#include "control.h"
#include "session.h"

struct fold {
    const struct rank *rank;
    const struct ir *ir;
    const struct plan_exchange *e, *combine;
    const char *relayed;
    char *replies, *sums;
    uint32_t ranks, first; // first rank of the node
};

/// The message of source `s` to this relay.
static const char *message_of(const struct fold *f, uint32_t s)
{
    return f->relayed +
           slots_relay_index(f->e, f->rank->number, s) * slots_relay_slot_bytes(f->ir, f->e, f->rank->number);
}

static const struct moe_row_mark *mark_of(const struct fold *f, const char *message, uint32_t position, int64_t row)
{
    return (const void *)(message + slots_relay_entries(f->ir, f->e, f->rank->number, position) +
                          row * slots_entry_stride(f->e));
}

static const struct moe_relay_count *counts_of(const struct fold *f, const char *message)
{
    return (const void *)(message + f->e->header_bytes);
}

/// The rows of one source: their targets, and their replies' addresses by row, then rank.
static void fold_source(const struct fold *f, uint32_t s, struct moe_sums_head *h, int64_t *cursor)
{
    const char *message = message_of(f, s);
    const struct moe_relay_count *counts = counts_of(f, message);
    int64_t rows = ((const struct moe_message *)(const void *)message)->rows;
    int64_t *first = (int64_t *)(uintptr_t)h->first + h->sums.rows, begin = first[0];
    uint32_t me = f->rank->number;
    int64_t record = slots_largest_record(f->ir, f->combine);
    char *target = f->sums + slots_relay_index(f->e, me, s) * slots_relay_slot_bytes(f->ir, f->combine, me) +
                   f->combine->header_bytes;
    memset(cursor, 0, (size_t)(rows + 1) * sizeof *cursor);
    for (uint32_t p = 0; p < f->e->node; p++)
        for (int64_t i = 0; i < counts[p].rows; i++)
            cursor[mark_of(f, message, p, i)->row]++;
    for (int64_t i = 0; i < rows; i++) {
        ((void **)(uintptr_t)h->sums.dst)[h->sums.rows + i] = target + i * record;
        first[i + 1] = first[i] + cursor[i];
        cursor[i] = first[i];
    }
    first[0] = begin;
    for (uint32_t p = 0; p < f->e->node; p++) {
        const char *reply = f->replies + slots_gather_offset(f->ir, f->combine, me, f->first + p, s, f->ranks) +
                            f->combine->header_bytes;
        for (int64_t i = 0; i < counts[p].rows; i++)
            ((const void **)(uintptr_t)h->parts)[cursor[mark_of(f, message, p, i)->row]++] = reply + i * record;
    }
    h->sums.rows += rows;
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
    const struct plan_exchange *e = ROW(session->ir, plan_exchange, dispatch);
    struct fold f = {.rank = stream->rank, .ir = session->ir, .e = e, .relayed = stream->rank->bases[e->relay]};
    uint32_t me = stream->rank->number;
    const char *message = message_of(&f, s);
    const struct moe_message *m = (const void *)message;
    if (m->source != s || m->step != session->step_number || m->exchange != dispatch)
        return refuse(stream, e, s, "is of another exchange or step");
    if (m->rows > slots_relay_rows(session->ir, e, me))
        return refuse(stream, e, s, "has more rows than there is room for");
    for (uint32_t p = 0; p < e->node; p++) {
        int64_t rows = counts_of(&f, message)[p].rows;
        if (rows > slots_rows(session->ir, e, me / e->node * e->node + p))
            return refuse(stream, e, s, "has more rows for a rank than it has slots");
        for (int64_t i = 0; i < rows; i++)
            if (mark_of(&f, message, p, i)->row >= m->rows)
                return refuse(stream, e, s, "names a row that it lacks");
    }
    return true;
}

bool builtin_fold(struct stream *s, const struct moe_kargs *a)
{
    const struct moe_session *session = s->rank->session;
    const struct plan_instr *in = stream_instr(s);
    const struct plan_exchange *e = ROW(session->ir, plan_exchange, in->exchange);
    uint32_t me = s->rank->number, ranks = session->info->ranks, others = ranks / e->node - 1;
    struct fold f = {.rank = s->rank,
                     .ir = session->ir,
                     .e = e,
                     .combine = ROW(session->ir, plan_exchange, s->rank->exchanges[in->exchange].combine),
                     .relayed = a->p[FOLD_RELAYED],
                     .replies = a->p[FOLD_REPLIES],
                     .sums = a->p[FOLD_SUMS],
                     .ranks = ranks,
                     .first = me / e->node * e->node};
    int64_t rows = others * slots_relay_rows(session->ir, e, me), parts = others * slots_node_rows(session->ir, e, me);
    struct moe_sums_head *h = a->p[FOLD_CONTROL];
    char *at = (char *)h + (sizeof *h + 63) / 64 * 64;
    *h = (struct moe_sums_head){0};
    h->sums.dst = carve(&at, rows, sizeof(void *));
    int64_t *first = carve(&at, rows + 1, sizeof(int64_t));
    h->parts = carve(&at, parts, sizeof(void *));
    int64_t *cursor = carve(&at, slots_relay_rows(session->ir, e, me) + 1, sizeof(int64_t));
    h->first = first;
    first[0] = 0;
    for (uint32_t source = me % e->node; source < ranks; source += e->node)
        if (source != me) {
            if (!relayed_message_good(s, in->exchange, source)) {
                h->sums.rows = 0;
                return false;
            }
            fold_source(&f, source, h, cursor);
        }
    return true;
}
