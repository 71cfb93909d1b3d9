// Fault injection for tests of the conservation check: one row of one message of one rank is dropped, doubled or sent to
// the wrong place, once per session, after the sender has counted what it meant to send.
#include <string.h>

#include "runtime/exec/session.h"

/// Of rows in chunks, the header of this one.
static struct moe_message *slot_header(const struct stream *s, const struct plan_exchange *e, uint32_t exchange,
                                       uint32_t peer)
{
    return (void *)((char *)s->rank->bases[e->send] + s->rank->exchanges[exchange].source_offset[peer] +
                    slots_header_at(e, e->chunk));
}

/// Rows of the slot that went in the chunks before.
static int64_t rows_before(const struct moe_message *m, const struct plan_exchange *e)
{
    int64_t rows = 0;
    for (uint32_t k = 1; k <= e->chunk; k++)
        rows += ((const struct moe_message *)(const void *)((const char *)m - slots_header_at(e, k)))->rows;
    return rows;
}

static char *record_at(struct moe_message *m, const struct plan_exchange *e, int64_t row_bytes, int64_t row)
{
    return (char *)m - slots_header_at(e, e->chunk) + e->header_bytes + (rows_before(m, e) + row) * row_bytes;
}

static bool has_room(const struct stream *s, const struct plan_exchange *e, const struct moe_message *m, uint32_t peer)
{
    return rows_before(m, e) + m->rows < slots_rows(s->rank->session->ir, e, peer);
}

static uint32_t record_pairs(const struct moe_session *session, const struct plan_exchange *e, int64_t row_bytes,
                             const char *record)
{
    const struct moe_row_meta *meta = (const void *)(record + row_bytes - e->meta_bytes);
    uint32_t pairs = 0;
    while (pairs < session->info->choices && meta[pairs].local >= 0)
        pairs++;
    return pairs;
}

/// A peer other than `not` whose slot has a free row, or `ranks`.
static uint32_t peer_with_room(const struct stream *s, const struct plan_exchange *e, uint32_t exchange, uint32_t not )
{
    uint32_t ranks = s->rank->session->info->ranks;
    for (uint32_t p = 0; p < ranks; p++)
        if (p != s->rank->number &&
            p != not &&has_room(s, e, slot_header(s, e, exchange, p), p))
            return p;
    return ranks;
}

/// Moves the last record of `m` to another rank's slot; with nowhere to go, to another expert of the same rank.
static bool misroute(const struct stream *s, const struct plan_exchange *e, uint32_t exchange, uint32_t peer,
                     struct moe_message *m)
{
    const struct moe_session *session = s->rank->session;
    int64_t row_bytes = slots_record_bytes(session->ir, e, s->rank->number, peer);
    char *last = record_at(m, e, row_bytes, m->rows - 1);
    uint32_t pairs = record_pairs(session, e, row_bytes, last), to = peer_with_room(s, e, exchange, peer);
    if (to < session->info->ranks && slots_record_bytes(session->ir, e, s->rank->number, to) == row_bytes) {
        struct moe_message *other = slot_header(s, e, exchange, to);
        memcpy(record_at(other, e, row_bytes, other->rows++), last, (size_t)row_bytes);
        other->pairs += pairs;
        m->rows--;
        m->pairs -= pairs;
        return true;
    }
    struct moe_row_meta *meta = (void *)(last + row_bytes - e->meta_bytes);
    uint32_t owned = ROW(session->ir, plan_rank, peer)->owned.count;
    if (owned < 2 || pairs != 1)
        return false;
    meta[0].local = (meta[0].local + 1) % (int32_t)owned;
    return true;
}

static bool double_last(const struct stream *s, const struct plan_exchange *e, uint32_t peer, struct moe_message *m)
{
    if (!has_room(s, e, m, peer))
        return false;
    int64_t row_bytes = slots_record_bytes(s->rank->session->ir, e, s->rank->number, peer);
    const char *last = record_at(m, e, row_bytes, m->rows - 1);
    memcpy(record_at(m, e, row_bytes, m->rows++), last, (size_t)row_bytes);
    m->pairs += record_pairs(s->rank->session, e, row_bytes, last);
    return true;
}

void fault_apply(struct stream *s, uint32_t exchange)
{
    struct moe_session *session = s->rank->session;
    const struct plan_exchange *e = ROW(session->ir, plan_exchange, exchange);
    if (session->fault == FAULT_NONE || session->fault_rank != s->rank->number || atomic_load(&session->fault_done) ||
        e->kind != exchange_kind_dispatch || e->pool || (e->chunks && e->chunk + 1 < e->chunks))
        return; // behind the last chunk's rows there may be room for one more
    for (uint32_t p = 0; p < session->info->ranks; p++) {
        if (p == s->rank->number)
            continue;
        struct moe_message *m = slot_header(s, e, exchange, p);
        if (!m->rows || m->rows > slots_rows(session->ir, e, p)) // more: the send refuses
            continue;
        bool done = true;
        if (session->fault == FAULT_DROP) {
            m->rows--;
            int64_t row_bytes = slots_record_bytes(session->ir, e, s->rank->number, p);
            m->pairs -= record_pairs(session, e, row_bytes, record_at(m, e, row_bytes, m->rows));
        } else if (session->fault == FAULT_DOUBLE) {
            done = double_last(s, e, p, m);
        } else {
            done = misroute(s, e, exchange, p, m);
        }
        if (done) {
            atomic_store(&session->fault_done, true);
            return;
        }
    }
}
