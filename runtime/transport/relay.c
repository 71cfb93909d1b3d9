// Two hops between ranks of a process (slots.h). A source's rows for another node travel once, in one message to the rank
// there of its own position; that relay passes them on into the slots that direct messages would have filled. Replies are
// handed to the relay, summed by its kernels, and go back as one row each. What arrives is checked before it is followed.
#include "relay.h"

#include <string.h>

#include "runtime/exec/session.h"

struct hop {
    struct stream *stream;
    struct rank *me;
    struct moe_session *session;
    const struct ir *ir;
    const struct plan_exchange *e, *dispatch; // e: what is sent; dispatch: itself or what it answers
    uint32_t number, ranks, node, position;   // of the exchange; ranks; my node, my place in it
};

static struct hop hop_of(struct stream *s, uint32_t exchange)
{
    struct rank *me = s->rank;
    struct hop h = {.stream = s, .me = me, .session = me->session, .ir = me->session->ir, .number = exchange};
    h.e = ROW(h.ir, plan_exchange, exchange);
    h.dispatch = slots_dispatch(h.ir, h.e);
    h.ranks = me->session->info->ranks;
    h.node = me->number / h.e->node;
    h.position = me->number % h.e->node;
    return h;
}

static const char CHANGED[] = "has changed while it was read";

static bool fail(const struct hop *h, uint32_t from, const char *what)
{
    return session_fail(h->session, MOE_LOST, "rank %u received a message of rank %u in `%s` that %s", h->me->number,
                        from, ir_text(h->ir, h->e->name), what);
}

/// Where the message of source `s` lies in the relay buffer of rank `relay`.
static char *relayed(const struct hop *h, uint32_t relay, uint32_t s)
{
    const struct rank *rank = &h->session->ranks[relay];
    return (char *)rank->bases[h->dispatch->relay] +
           slots_relay_index(h->dispatch, relay, s) * slots_relay_slot_bytes(h->ir, h->dispatch, relay);
}

static struct moe_relay_count *counts_of(const struct hop *h, char *message)
{
    return (struct moe_relay_count *)(void *)(message + h->dispatch->header_bytes);
}

/// What this rank has for rank `to` is not what `bin` or `fan_out` leaves there.
static bool fail_own(const struct hop *h, uint32_t to)
{
    return session_fail(h->session, MOE_LOST, "rank %u has a message for rank %u in `%s` for which there is no room",
                        h->me->number, to, ir_text(h->ir, h->e->name));
}

/// Entries of one rank's slot and, where a record is the first of its row, the row's data. Returns rows seen so far, at
/// most `most`; -1: the session has failed.
static int64_t write_entries(const struct hop *h, uint32_t to, const char *slot, char *entries, char *rows, int64_t seen,
                             int64_t most)
{
    const struct plan_exchange *e = h->e;
    int64_t entry = slots_entry_bytes(e), data = slots_relay_data(h->ir, e, h->me->number, to);
    int64_t count = ((const struct moe_message *)(const void *)slot)->rows;
    if (count > slots_rows(h->ir, e, to))
        return fail_own(h, to), -1;
    for (int64_t i = 0; i < count; i++) {
        const char *record = slot + e->header_bytes + i * (data + entry);
        const struct moe_row_mark mark = *(const struct moe_row_mark *)(const void *)(record + data);
        if (mark.row >= most)
            return fail_own(h, to), -1;
        memcpy(entries + i * slots_entry_stride(e), record + data, (size_t)entry);
        if (mark.first)
            memcpy(rows + mark.row * data, record, (size_t)data);
        seen = mark.row + 1 > seen ? mark.row + 1 : seen;
    }
    return seen;
}

/// The message to node `node`'s relay. Returns its bytes; -1: the session has failed.
static int64_t send_to_relay(const struct hop *h, uint32_t node)
{
    const struct plan_exchange *e = h->e;
    const struct exchange_state *state = &h->me->exchanges[h->number];
    uint32_t relay = node * e->node + h->position;
    char *message = relayed(h, relay, h->me->number), *data = message + slots_relay_entries(h->ir, e, relay, e->node);
    struct moe_relay_count *counts = counts_of(h, message);
    struct moe_message *header = (void *)message;
    const char *any = (const char *)h->me->bases[e->send] + state->source_offset[node * e->node];
    int64_t entries = 0, rows = 0, data_bytes = slots_relay_data(h->ir, e, h->me->number, relay);
    memcpy(message, any, (size_t)e->header_bytes); // step, source and the overflow vector
    header->pairs = 0;
    for (uint32_t p = 0; p < e->node; p++) {
        const char *slot = (const char *)h->me->bases[e->send] + state->source_offset[node * e->node + p];
        const struct moe_message *m = (const void *)slot;
        counts[p] = (struct moe_relay_count){m->rows, m->pairs};
        rows = write_entries(h, node * e->node + p, slot, message + slots_relay_entries(h->ir, e, relay, p), data, rows,
                             slots_relay_rows(h->ir, e, relay));
        if (rows < 0)
            return -1;
        header->pairs += m->pairs;
        entries += m->rows;
    }
    header->rows = (uint32_t)rows;
    return e->header_bytes + e->node * (int64_t)sizeof *counts + entries * slots_entry_stride(e) + rows * data_bytes;
}

/// The replies to source `s`, or a chunk of them, as they lie here.
struct replies {
    const char *header, *rows;
    int64_t bytes; // of the rows; -1: more than there is room for
};

static struct replies replies_to(const struct hop *h, uint32_t s)
{
    const char *slot = (const char *)h->me->bases[h->e->send] + h->me->exchanges[h->number].target_offset[s];
    int64_t head = slots_head_bytes(h->e), record = slots_handed_bytes(h->ir, h->e), before = 0;
    for (uint32_t k = 0; k < h->e->chunk; k++)
        before += ((const struct moe_message *)(const void *)(slot + k * head))->rows;
    struct replies r = {.header = slot + h->e->chunk * head, .rows = slot + h->e->header_bytes + before * record};
    int64_t rows = ((const struct moe_message *)(const void *)r.header)->rows;
    bool fit = rows <= slots_handed_rows(h->ir, h->e, h->me->number) && before + rows <= slots_rows(h->ir, h->e, h->me->number);
    r.bytes = fit ? rows * record : -1;
    return r;
}

/// ...handed to the relay that serves it. False: the session has failed.
static bool hand_in(const struct hop *h, uint32_t s)
{
    const struct plan_exchange *e = h->e;
    uint32_t relay = h->node * e->node + s % e->node;
    char *to = (char *)h->session->ranks[relay].bases[e->relay] +
               slots_gather_offset(h->ir, e, relay, h->me->number, s, h->ranks);
    struct replies r = replies_to(h, s);
    if (r.bytes < 0)
        return fail_own(h, s);
    memcpy(to, r.header, (size_t)slots_head_bytes(e));
    memcpy(to + slots_head_bytes(e), r.rows, (size_t)r.bytes);
    return true;
}

/// A message that the relay's work has already put in place: one of `count` that leave together.
static bool put(const struct hop *h, uint32_t peer, int64_t bytes, uint32_t count, bool relayed)
{
    struct passage p = {.stream = h->stream,
                        .exchange = h->number,
                        .peer = peer,
                        .bytes = bytes,
                        .share = 1.0 / count,
                        .relayed = relayed};
    h->stream->bytes_sent[axis_between(h->ir, h->me->number, peer)] += bytes;
    return h->session->device->carry(&p);
}

bool relay_hand_in(struct stream *s, uint32_t exchange, uint32_t peer)
{
    struct hop h = hop_of(s, exchange);
    for (uint32_t source = peer % h.e->node; source < h.ranks; source += h.e->node)
        if (source / h.e->node != h.node && !hand_in(&h, source))
            return false;
    return true;
}

int64_t relay_hand_in_bytes(struct stream *s, uint32_t exchange, uint32_t peer)
{
    struct hop h = hop_of(s, exchange);
    int64_t all = 0;
    for (uint32_t source = peer % h.e->node; source < h.ranks; source += h.e->node)
        if (source / h.e->node != h.node && peer != h.me->number) {
            int64_t rows = replies_to(&h, source).bytes;
            all += slots_head_bytes(h.e) + (rows > 0 ? rows : 0);
        }
    return all;
}

bool relay_send(struct stream *s, uint32_t exchange)
{
    struct hop h = hop_of(s, exchange);
    uint32_t nodes = h.ranks / h.e->node;
    for (uint32_t i = 1; i < nodes; i++) {
        uint32_t node = (h.node + i) % nodes;
        int64_t bytes = send_to_relay(&h, node);
        if (bytes < 0 || !put(&h, node * h.e->node + h.position, bytes, nodes - 1, false))
            return false;
    }
    return true;
}

/// A relayed message says where the rows for the node are cut into chunks of the replies; a rank's slot, where its own are.
static void cut_slot(const struct hop *h, char *slot, const char *entries, int64_t rows)
{
    uint32_t *cuts = (uint32_t *)(void *)(slot + sizeof(struct moe_message)) + h->ranks;
    for (uint32_t k = 0; k < h->e->answers; k++) {
        uint32_t below = 0;
        while (below < rows && ((const struct moe_row_mark *)(const void *)(entries + below * slots_entry_stride(h->e)))->row < cuts[k])
            below++;
        cuts[k] = below;
    }
}

/// The slot of source `s` at the node's p-th rank, as the source itself would have sent it. Returns its bytes; -1: the
/// message is no longer the one that was looked at, and the session has failed.
static int64_t pass_on(const struct hop *h, uint32_t s, char *message, uint32_t p)
{
    const struct plan_exchange *e = h->e;
    const struct rank *to = &h->session->ranks[h->node * e->node + p];
    const struct moe_relay_count count = counts_of(h, message)[p];
    const char *entries = message + slots_relay_entries(h->ir, e, h->me->number, p),
               *rows = message + slots_relay_entries(h->ir, e, h->me->number, e->node);
    char *slot = (char *)to->bases[e->recv] + to->exchanges[h->number].target_offset[s];
    struct moe_message *header = (void *)slot;
    int64_t data = slots_relay_data(h->ir, e, h->me->number, s), entry = slots_entry_bytes(e);
    if (count.rows > slots_rows(h->ir, e, h->node * e->node + p))
        return fail(h, s, CHANGED), -1;
    memcpy(slot, message, (size_t)e->header_bytes);
    header->rows = count.rows;
    header->pairs = count.pairs;
    cut_slot(h, slot, entries, count.rows);
    for (int64_t i = 0; i < count.rows; i++) {
        char *record = slot + e->header_bytes + i * (data + entry);
        const char *mark = entries + i * slots_entry_stride(e);
        uint32_t row = ((const struct moe_row_mark *)(const void *)mark)->row;
        if (row >= slots_relay_rows(h->ir, e, h->me->number))
            return fail(h, s, CHANGED), -1;
        memcpy(record, rows + row * data, (size_t)data);
        memcpy(record + data, mark, (size_t)entry);
    }
    return e->header_bytes + count.rows * (data + entry);
}

static bool forward_rows(const struct hop *h)
{
    int64_t bytes[MOE_MAX_RANKS] = {0};
    for (uint32_t s = h->position; s < h->ranks; s += h->e->node) {
        char *message = s == h->me->number ? NULL : relayed(h, h->me->number, s);
        if (message && !relayed_message_good(h->stream, h->number, s))
            return false;
        for (uint32_t p = 0; p < h->e->node && message; p++) {
            int64_t passed = pass_on(h, s, message, p);
            if (passed < 0)
                return false;
            bytes[p] += passed;
        }
    }
    for (uint32_t p = 0; p < h->e->node; p++)
        if (p != h->position && !put(h, h->node * h->e->node + p, bytes[p], h->e->node - 1, true))
            return false;
    return true;
}

struct returning {
    const struct hop *hop;
    const char *sums;
    uint32_t source;
    int64_t record, stride, rows;  // bytes of a sum as the source gets it, and here; sums
    int64_t before[MOE_MAX_RANKS]; // by rank of the node: answers in earlier chunks
};

static char *reply_slot(const struct hop *h, uint32_t s, uint32_t position)
{
    const struct rank *to = &h->session->ranks[s];
    return (char *)to->bases[h->e->recv] + to->exchanges[h->number].source_offset[h->node * h->e->node + position];
}

static void return_row(const struct relayed_row *row, void *user)
{
    struct returning *r = user;
    const struct plan_exchange *e = r->hop->e;
    int64_t place = r->before[row->position] + row->answer;
    char *to = reply_slot(r->hop, r->source, row->position) + e->header_bytes + place * r->record;
    r->rows += row->first;
    if (place >= slots_rows(r->hop->ir, e, r->hop->node * e->node + row->position))
        return;
    if (row->first)
        memcpy(to, r->sums + row->number * r->stride, (size_t)r->record);
    else
        memset(to, 0, (size_t)r->record);
}

static void count_answer(const struct relayed_row *row, void *user)
{
    ((int64_t *)user)[row->position]++;
}

/// Into the reply slots of source `s`: each sum in the place of the row's first rank, zeros in those of the others.
static int64_t return_sums(const struct hop *h, uint32_t s)
{
    const struct plan_exchange *e = h->e;
    uint32_t me = h->me->number;
    struct returning r = {.hop = h, .source = s, .record = slots_record_bytes(h->ir, e, me, s)};
    r.stride = slots_largest_record(h->ir, e);
    r.sums = (const char *)h->me->bases[e->sums] + slots_relay_index(e, me, s) * slots_relay_slot_bytes(h->ir, e, me) +
             slots_head_bytes(e);
    for (uint32_t p = 0; p < e->node; p++)
        memcpy(reply_slot(h, s, p) + e->chunk * slots_head_bytes(e),
               (const char *)h->me->bases[e->relay] +
                   slots_gather_offset(h->ir, e, me, h->node * e->node + p, s, h->ranks),
               (size_t)slots_head_bytes(e));
    for (uint32_t k = 0; k < e->chunk; k++)
        relayed_rows(h->me, h->number - e->chunk + k, s, count_answer, r.before);
    relayed_rows(h->me, h->number, s, return_row, &r);
    return slots_head_bytes(e) + e->node * (int64_t)sizeof(struct moe_relay_count) + r.rows * r.record;
}

enum stepped relay_forward(struct stream *s, uint32_t exchange)
{
    struct hop h = hop_of(s, exchange);
    if (h.e->kind == exchange_kind_dispatch)
        return forward_rows(&h) ? STEP_DONE : STEP_FAILED;
    for (uint32_t source = h.position; source < h.ranks; source += h.e->node) {
        if (source == h.me->number)
            continue;
        if (!relayed_messages_good(s, h.e->base, source))
            return STEP_FAILED;
        if (!put(&h, source, return_sums(&h, source), h.ranks / h.e->node - 1, true))
            return STEP_FAILED;
    }
    return STEP_DONE;
}

bool relay_replies_good(struct stream *s, uint32_t exchange)
{
    struct hop h = hop_of(s, exchange);
    for (uint32_t source = h.position; source < h.ranks; source += h.e->node) {
        int64_t answers[MOE_MAX_RANKS] = {0};
        if (source == h.me->number)
            continue;
        if (!relayed_messages_good(s, h.e->base, source))
            return false;
        relayed_rows(h.me, exchange, source, count_answer, answers);
        for (uint32_t p = 0; p < h.e->node; p++) {
            uint32_t from = h.node * h.e->node + p;
            const struct moe_message *m =
                (const void *)((const char *)h.me->bases[h.e->relay] +
                               slots_gather_offset(h.ir, h.e, h.me->number, from, source, h.ranks));
            if (m->source != from || m->exchange != exchange || m->step != h.session->step_number)
                return fail(&h, from, "is of another exchange or step");
            if (m->rows != answers[p])
                return fail(&h, from, "does not answer the rows that were passed on");
        }
    }
    return true;
}
