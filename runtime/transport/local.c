// Ranks in one process: a message is a copy of a slot's used part into the peer's recv buffer, then a release of its
// arrival counter (device_ops.carry). The verifier has shown that the peer no longer reads what is overwritten. Also keeps what a receive
// learns: conservation counters, and from the headers' overflow vectors the grants of the rounds to come.
#include <string.h>

#include "runtime/exec/grants.h"
#include "runtime/exec/session.h"
#include "runtime/transport/relay.h"

/// Where a message lies on both sides. Header and records are one block except in a pool's packed buffers.
struct route {
    char *from_header, *from_rows, *to_header, *to_rows;
    int64_t room; // rows that fit on both sides
    int64_t header_bytes;
    int64_t row_bytes; // of a record
};

/// The rows of a chunk follow those of the chunks before.
static struct route chunk_route(struct route r, const struct plan_exchange *e)
{
    int64_t first = 0;
    r.header_bytes = e->header_bytes / e->chunks;
    for (uint32_t k = 0; k < e->chunk; k++)
        first += ((const struct moe_message *)(const void *)(r.from_header + k * r.header_bytes))->rows;
    r.from_rows += first * r.row_bytes;
    r.to_rows += first * r.row_bytes;
    r.from_header += slots_header_at(e, e->chunk);
    r.to_header += slots_header_at(e, e->chunk);
    r.room -= first;
    return r;
}

/// What this round grants between me and a peer, from my own state: both sides come to the same numbers.
static struct grant round_grant(const struct rank *me, const struct plan_exchange *pool_dispatch, uint32_t peer,
                                bool i_am_source, int64_t round)
{
    const struct ir *ir = me->session->ir;
    const struct exchange_state *base = &me->exchanges[pool_dispatch->base];
    if (i_am_source)
        return grant_of(base->ahead[peer], base->mine[peer], slots_rows(ir, pool_dispatch, peer), round);
    return grant_of(base->from_first[peer], base->from[peer], slots_rows(ir, pool_dispatch, me->number), round);
}

static struct route find_route(const struct stream *s, uint32_t exchange, uint32_t peer)
{
    const struct rank *me = s->rank, *other = &me->session->ranks[peer];
    const struct ir *ir = me->session->ir;
    const struct plan_exchange *e = ROW(ir, plan_exchange, exchange);
    const struct exchange_state *mine = &me->exchanges[exchange], *theirs = &other->exchanges[exchange];
    bool dispatch = e->kind == exchange_kind_dispatch;
    char *send = me->bases[e->send], *recv = other->bases[e->recv];
    struct route r;
    r.from_header = send + (dispatch ? mine->source_offset[peer] : mine->target_offset[peer]);
    r.to_header = recv + (dispatch ? theirs->target_offset[me->number] : theirs->source_offset[me->number]);
    r.from_rows = r.from_header + e->header_bytes;
    r.to_rows = r.to_header + e->header_bytes;
    r.room = slots_rows(ir, e, dispatch ? peer : me->number);
    r.header_bytes = e->header_bytes;
    r.row_bytes = slots_record_bytes(ir, e, me->number, peer);
    if (!e->pool)
        return e->chunks > 1 ? chunk_route(r, e) : r;
    int64_t headers = (int64_t)(me->session->info->ranks - 1) * e->header_bytes;
    struct grant g = round_grant(me, slots_dispatch(ir, e), peer, dispatch, s->round);
    r.room = g.count;
    if (dispatch) {
        r.to_rows = recv + headers + g.place * slots_largest_record(ir, e);
    } else {
        r.from_rows = send + headers + g.place * slots_largest_record(ir, e);
        r.to_rows += g.first * r.row_bytes;
    }
    return r;
}

/// Does a direct message go between the two, or does another rank relay it?
static bool is_direct(const struct plan_exchange *e, uint32_t a, uint32_t b)
{
    return !e->node || a / e->node == b / e->node;
}

/// Bytes of a direct message, and, of a combine with relays, of what is handed in with it.
static int64_t message_bytes(struct stream *s, uint32_t exchange, uint32_t peer, const struct route *r)
{
    const struct plan_exchange *e = ROW(s->rank->session->ir, plan_exchange, exchange);
    int64_t handed = e->node && e->kind == exchange_kind_combine ? relay_hand_in_bytes(s, exchange, peer) : 0;
    int64_t rows = ((const struct moe_message *)(const void *)r->from_header)->rows;
    return r->header_bytes + (rows <= r->room ? rows * r->row_bytes : 0) + handed; // more: send_one refuses
}

static bool send_one(struct stream *s, uint32_t exchange, uint32_t peer, const int64_t *axis_bytes)
{
    struct rank *me = s->rank;
    struct moe_session *session = me->session;
    const struct plan_exchange *e = ROW(session->ir, plan_exchange, exchange);
    struct route r = find_route(s, exchange, peer);
    int64_t rows = ((const struct moe_message *)(const void *)r.from_header)->rows, bytes = rows * r.row_bytes;
    uint32_t axis = axis_between(session->ir, me->number, peer);
    struct passage p = {.stream = s, .exchange = exchange, .peer = peer, .bytes = message_bytes(s, exchange, peer, &r)};
    p.share = (double)p.bytes / (double)axis_bytes[axis];
    p.piece[0] = (struct piece){r.to_header, r.from_header, r.header_bytes};
    p.piece[1] = (struct piece){r.to_rows, r.from_rows, bytes};
    if (rows > r.room)
        return session_fail(session, MOE_LOST, "rank %u has %lld rows for rank %u in `%s`, which has room for %lld",
                            me->number, (long long)rows, peer, ir_text(session->ir, e->name), (long long)r.room);
    // A pool's blocks lie where the last bin put them; a plan may let another one have counted the rows.
    if (!rank_holds(me, e->send, r.from_rows, bytes) || !rank_holds(&session->ranks[peer], e->recv, r.to_rows, bytes))
        return session_fail(session, MOE_LOST, "rank %u has %lld rows for rank %u in `%s` where it has no room for them",
                            me->number, (long long)rows, peer, ir_text(session->ir, e->name));
    if (e->node && e->kind == exchange_kind_combine && !relay_hand_in(s, exchange, peer))
        return false;
    s->bytes_sent[axis] += p.bytes;
    return session->device->carry(&p);
}

static enum stepped local_send(struct stream *s, uint32_t exchange)
{
    struct rank *me = s->rank;
    struct moe_session *session = me->session;
    struct exchange_state *state = &me->exchanges[exchange];
    uint32_t ranks = session->info->ranks;
    const struct plan_exchange *e = ROW(session->ir, plan_exchange, exchange);
    int64_t axis_bytes[MOE_MAX_AXES] = {0};
    for (uint32_t p = 0; p < ranks; p++) {
        if (p == me->number)
            continue;
        const struct moe_message *m = (const void *)find_route(s, exchange, p).from_header;
        state->sent_rows[p] += m->rows;
        state->sent_pairs[p] += m->pairs;
    }
    fault_apply(s, exchange);
    for (uint32_t p = 0; p < ranks; p++) {
        struct route r = {0};
        if (p == me->number || !is_direct(e, me->number, p))
            continue;
        r = find_route(s, exchange, p);
        axis_bytes[axis_between(session->ir, me->number, p)] += message_bytes(s, exchange, p, &r);
    }
    // Each rank begins with its right neighbour, so that no receiver gets all messages at once.
    for (uint32_t i = 1; i < ranks; i++) {
        uint32_t peer = (me->number + i) % ranks;
        if (is_direct(e, me->number, peer) && !send_one(s, exchange, peer, axis_bytes))
            return STEP_FAILED;
    }
    if (e->node && e->kind == exchange_kind_dispatch && !relay_send(s, exchange))
        return STEP_FAILED;
    if (e->node && e->kind == exchange_kind_combine && !relay_hand_in(s, exchange, me->number))
        return STEP_FAILED;
    session->device->sent(s, exchange); // orders the own send before the own receive: recv reads own headers
    return STEP_DONE;
}

/// Rows of `from` that overflowed at rank d, as its header says; `own` is this rank's own send buffer.
static const uint32_t *overflow_vector(const struct rank *me, const struct plan_exchange *e, uint32_t exchange,
                                       uint32_t from)
{
    const struct exchange_state *state = &me->exchanges[exchange];
    const char *header;
    if (from != me->number)
        header = (const char *)me->bases[e->recv] + state->target_offset[from];
    else // any of the own headers
        header = (const char *)me->bases[e->send] + state->source_offset[me->number == 0 ? 1 : 0];
    return (const uint32_t *)(const void *)(header + sizeof(struct moe_message));
}

/// From all overflow vectors: this rank's places in every queue, every rank's place in its own, and the rounds.
static bool learn_overflow(struct rank *me, const struct plan_exchange *e, uint32_t exchange)
{
    struct moe_session *session = me->session;
    struct exchange_state *state = &me->exchanges[exchange];
    const struct plan_exchange *pool = ROW(session->ir, plan_exchange, state->pool);
    uint32_t ranks = session->info->ranks;
    state->rounds = 0;
    for (uint32_t d = 0; d < ranks && ranks > 1; d++) {
        int64_t total = 0, places = slots_rows(session->ir, pool, d), most = slots_spill_rows(session->ir, pool, d);
        for (uint32_t from = 0; from < ranks; from++) {
            int64_t rows = overflow_vector(me, e, exchange, from)[d];
            if (rows > (d == from ? 0 : most))
                return session_fail(
                    session, MOE_LOST,
                    "rank %u announces %lld overflow rows for rank %u in `%s`, at most %lld are possible", from,
                    (long long)rows, d, ir_text(session->ir, e->name), (long long)most);
            if (from == me->number) {
                state->mine[d] = rows;
                state->ahead[d] = total;
            }
            if (d == me->number) {
                state->from[from] = rows;
                state->from_first[from] = total;
            }
            total += rows;
        }
        int64_t rounds = places ? (total + places - 1) / places : 0;
        state->rounds = rounds > state->rounds ? rounds : state->rounds;
    }
    return true;
}

/// Have so many messages of each rank that sends directly (`near`: of the own node and the own rank; `far`: of the own
/// position in other nodes, with relays) arrived in this step?
static bool all_arrived(struct stream *s, uint32_t exchange, uint64_t near, uint64_t far, struct blocked *on)
{
    struct rank *me = s->rank;
    struct moe_session *session = me->session;
    const struct plan_exchange *e = ROW(session->ir, plan_exchange, exchange);
    struct exchange_state *state = &me->exchanges[exchange];
    for (uint32_t from = 0; from < session->info->ranks; from++) {
        bool relayed = e->node && !is_direct(e, me->number, from) && from % e->node == me->number % e->node;
        uint64_t needed = is_direct(e, me->number, from) ? near : relayed ? far : 0;
        needed = e->node && from == me->number && needed ? state->received + 1 : needed;
        if (event_reached(&state->arrived[from], needed))
            continue;
        on->event = &state->arrived[from];
        on->at_least = needed;
        char text[RANK_TEXT];
        snprintf(on->what, sizeof on->what, "the message of %s in `%.60s`", rank_text(session->ir, from, text),
                 ir_text(session->ir, e->name));
        return false;
    }
    return true;
}

/// Checks and counts what arrived, of all ranks or of those that send directly.
static bool take_messages(struct stream *s, uint32_t exchange)
{
    struct rank *me = s->rank;
    struct moe_session *session = me->session;
    const struct plan_exchange *e = ROW(session->ir, plan_exchange, exchange);
    struct exchange_state *state = &me->exchanges[exchange];
    bool dispatch = e->kind == exchange_kind_dispatch;
    for (uint32_t from = 0; from < session->info->ranks; from++) {
        if (from == me->number)
            continue;
        const struct moe_message *m =
            (const void *)((const char *)me->bases[e->recv] +
                           (dispatch ? state->target_offset[from] : state->source_offset[from]) +
                           slots_header_at(e, e->chunk));
        if (m->source != from || m->exchange != exchange || m->step != session->step_number)
            return session_fail(session, MOE_LOST,
                                "rank %u received a message of another exchange or step from rank %u in `%s`",
                                me->number, from, ir_text(session->ir, e->name));
        state->got_rows[from] += m->rows;
        state->got_pairs[from] += m->pairs;
    }
    return !dispatch || e->pool || state->pool == NONE || learn_overflow(me, e, exchange);
}

static enum stepped local_recv(struct stream *s, uint32_t exchange, struct blocked *on)
{
    struct exchange_state *state = &s->rank->exchanges[exchange];
    const struct plan_exchange *e = ROW(s->rank->session->ir, plan_exchange, exchange);
    bool relayed = e->node && e->kind == exchange_kind_dispatch; // from each of the node two messages come: `settle`
    uint64_t near = relayed ? 2 * state->received + 1 : state->received + 1;
    if (!all_arrived(s, exchange, near, state->received + 1, on))
        return STEP_BLOCKED;
    if (relayed)
        return STEP_DONE;
    state->received++;
    return take_messages(s, exchange) ? STEP_DONE : STEP_FAILED;
}

static enum stepped local_settle(struct stream *s, uint32_t exchange, struct blocked *on)
{
    struct exchange_state *state = &s->rank->exchanges[exchange];
    const struct plan_exchange *e = ROW(s->rank->session->ir, plan_exchange, exchange);
    bool dispatch = e->kind == exchange_kind_dispatch;
    if (!all_arrived(s, exchange, dispatch ? 2 * state->received + 2 : state->received + 1, 0, on))
        return STEP_BLOCKED;
    if (!dispatch)
        return relay_replies_good(s, exchange) ? STEP_DONE : STEP_FAILED;
    state->received++;
    return take_messages(s, exchange) ? STEP_DONE : STEP_FAILED;
}

const struct transport_ops transport_local = {
    .name = "local", .send = local_send, .recv = local_recv, .forward = relay_forward, .settle = local_settle};
