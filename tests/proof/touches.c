// See sites.h. Slots lie as runtime/plan/slots.h has them, worked out here a second time.
#include "tests/proof/sites.h"

struct view {
    const struct ir *plan;
    const struct plan_variant *variant;
    uint32_t ranks;
};

static void touch(struct site *site, uint32_t rank, uint32_t buffer, int64_t first, int64_t bytes, bool write)
{
    if (site->touch_count < MOST_TOUCHES)
        site->touched[site->touch_count++] = (struct touched){rank, buffer, NONE, first, bytes, write};
}

static int64_t rows_for(const struct view *x, const struct plan_exchange *e, uint32_t rank)
{
    return ROW(x->plan, plan_slot, e->slots.first + rank)->rows;
}

/// Most rows from one source to `target` in one message of a pool.
static int64_t spill_for(const struct view *x, const struct plan_exchange *e, uint32_t target)
{
    const struct plan_exchange *pool = e->kind == exchange_kind_combine ? ROW(x->plan, plan_exchange, e->base) : e;
    const struct plan_exchange *base = ROW(x->plan, plan_exchange, pool->base);
    int64_t left = ROW(x->plan, plan_part, e->part)->bound - rows_for(x, base, target);
    int64_t places = rows_for(x, pool, target);
    return places <= 0 || left <= 0 ? 0 : left;
}

/// Rows of the message from `source` to `target`: as its dispatch's destination says.
static int64_t message_rows(const struct view *x, const struct plan_exchange *e, uint32_t source, uint32_t target)
{
    uint32_t owner = e->kind == exchange_kind_dispatch ? target : source;
    int64_t rows = rows_for(x, e, owner);
    if (!e->pool)
        return rows;
    int64_t spill = spill_for(x, e, owner);
    return e->kind == exchange_kind_combine || spill < rows ? spill : rows;
}

/// Bytes of a row record between two ranks: in the format of the outermost axis on which they differ.
static int64_t record_between(const struct view *x, const struct plan_exchange *e, uint32_t a, uint32_t b)
{
    struct rows axes = ROW(x->plan, plan_info, 0)->axes;
    uint32_t axis = 0;
    while (axis + 1 < axes.count && a / ROW(x->plan, plan_axis, axes.first + axis)->stride ==
                                        b / ROW(x->plan, plan_axis, axes.first + axis)->stride)
        axis++;
    return ROW(x->plan, plan_wire, e->wires.first + (uint32_t)e->wire_of_axis[axis])->row_bytes;
}

static int64_t largest_record(const struct view *x, const struct plan_exchange *e)
{
    int64_t largest = 0;
    for (uint32_t i = 0; i < e->wires.count; i++)
        if (ROW(x->plan, plan_wire, e->wires.first + i)->row_bytes > largest)
            largest = ROW(x->plan, plan_wire, e->wires.first + i)->row_bytes;
    return largest;
}

/// Rows of all messages of a pool between a source and its peers: a token goes to so many other ranks at most.
static int64_t pool_rows(const struct view *x, const struct plan_exchange *e, uint32_t me, bool sending)
{
    int64_t rows = 0, choices = ROW(x->plan, plan_info, 0)->choices, others = (int64_t)x->ranks - 1;
    for (uint32_t r = 0; r < x->ranks; r++)
        if (r != me)
            rows += sending ? message_rows(x, e, me, r) : message_rows(x, e, r, me);
    int64_t most = ROW(x->plan, plan_part, e->part)->bound * (choices < others ? choices : others);
    return rows < most ? rows : most;
}

/// The slot of a message at one end: at `me`, to or from `peer`. At a pool's target headers stand alone and rows lie
/// anywhere behind them all; at its source the blocks begin where what has overflowed says, so anywhere.
static void touch_slot(const struct view *x, struct site *site, const struct plan_exchange *e, uint32_t me,
                       uint32_t peer, bool sending, bool write, bool header_only)
{
    bool packed = e->pool && sending != (e->kind == exchange_kind_dispatch);
    if (e->pool && !packed) {
        touch(site, me, sending ? e->send : e->recv, 0,
              (x->ranks - 1) * e->header_bytes + pool_rows(x, e, me, sending) * largest_record(x, e), write);
        return;
    }
    int64_t at = 0, rows = sending ? message_rows(x, e, me, peer) : message_rows(x, e, peer, me);
    for (uint32_t r = 0; r < peer; r++)
        if (r != me && packed)
            at += e->header_bytes;
        else if (r != me)
            at += e->header_bytes +
                  record_between(x, e, me, r) * (sending ? message_rows(x, e, me, r) : message_rows(x, e, r, me));
    uint32_t buffer = sending ? e->send : e->recv;
    touch(site, me, buffer, at, e->header_bytes + (packed || header_only ? 0 : rows * record_between(x, e, me, peer)),
          write);
    if (packed && !header_only)
        touch(site, me, buffer, (x->ranks - 1) * e->header_bytes, rows_for(x, e, me) * largest_record(x, e), write);
}

static bool has_pool(const struct view *x, uint32_t exchange)
{
    for (uint32_t i = 0; i < x->variant->exchanges.count; i++) {
        const struct plan_exchange *e = ROW(x->plan, plan_exchange, x->variant->exchanges.first + i);
        if (e->pool && e->kind == exchange_kind_dispatch && e->base == exchange)
            return true;
    }
    return false;
}

// Two hops. A message to another node goes to the rank there of the source's own position: header, counts, an entry for
// every record of every rank of the node, rows. Replies are gathered there by rank of the node and source, and summed.

/// Rows to, or replies from, all ranks of the node of `me`.
static int64_t node_rows(const struct view *x, const struct plan_exchange *e, uint32_t me)
{
    int64_t rows = 0;
    for (uint32_t d = 0; d < x->ranks; d++)
        rows += d == me || is_near(e, me, d) ? rows_for(x, e, d) : 0;
    return rows;
}

/// The block of source `s` among those that `me` relays for: in a dispatch its message, in a combine its sums.
static void touch_block(const struct view *x, struct site *site, const struct plan_exchange *e, uint32_t me, uint32_t s,
                        bool write)
{
    int64_t rows = node_rows(x, e, me), bound = ROW(x->plan, plan_part, e->part)->bound, number = 0;
    int64_t distinct = rows < bound ? rows : bound, bytes = e->header_bytes + distinct * largest_record(x, e);
    if (e->kind == exchange_kind_dispatch) {
        int64_t entry = 16 + e->meta_bytes, counts = (8 * (int64_t)e->node + 15) / 16 * 16;
        bytes = e->header_bytes + counts + rows * ((entry + 15) / 16 * 16) + distinct * (largest_record(x, e) - entry);
        bytes = (bytes + 63) / 64 * 64;
    }
    for (uint32_t r = 0; r < s; r++)
        number += is_alike(e, me, r);
    touch(site, me, e->kind == exchange_kind_dispatch ? e->relay : e->sums, number * bytes, bytes, write);
}

/// The replies of rank `d` to source `s`, as the relay `me` of their node has them.
static void touch_handed(const struct view *x, struct site *site, const struct plan_exchange *e, uint32_t me, uint32_t d,
                         uint32_t s, bool write, bool header_only)
{
    int64_t record = largest_record(x, e), at = 0, sources = x->ranks / e->node - 1;
    for (uint32_t p = 0; p < d; p++)
        at += p == me || is_near(e, me, p) ? sources * (e->header_bytes + rows_for(x, e, p) * record) : 0;
    int64_t bytes = e->header_bytes + rows_for(x, e, d) * record;
    for (uint32_t r = 0; r < s; r++)
        at += is_alike(e, me, r) ? bytes : 0;
    touch(site, me, e->relay, at, header_only ? e->header_bytes : bytes, write);
}

static void touch_relayed_transfer(const struct view *x, struct site *site, const struct plan_exchange *e)
{
    uint32_t me = site->rank, peer = site->peer;
    bool dispatch = e->kind == exchange_kind_dispatch;
    for (uint32_t r = 0; r < x->ranks; r++) {
        if (dispatch && !site->passed_on && is_alike(e, me, peer) && (r == peer || is_near(e, r, peer)))
            touch_slot(x, site, e, me, r, true, false, false); // to the relay: what is for any rank of its node
        if (dispatch && site->passed_on && is_alike(e, me, r)) {
            touch_block(x, site, e, me, r, false);
            touch_slot(x, site, e, peer, r, false, true, false);
        }
        if (!dispatch && !site->passed_on && is_alike(e, peer, r)) {
            touch_slot(x, site, e, me, r, true, false, false); // with the own replies those that the peer relays
            touch_handed(x, site, e, peer, me, r, true, false);
        }
        if (!dispatch && site->passed_on && (r == me || is_near(e, r, me)))
            touch_slot(x, site, e, peer, r, false, true, false);
    }
    if (dispatch && !site->passed_on && is_alike(e, me, peer))
        touch_block(x, site, e, peer, me, true);
    if (!dispatch && site->passed_on)
        touch_block(x, site, e, me, peer, false);
}

/// What a relay itself does for source `s`.
static void touch_relay(const struct view *x, struct site *site, const struct plan_exchange *e, uint32_t s)
{
    uint32_t me = site->rank;
    bool dispatch = e->kind == exchange_kind_dispatch;
    if (site->op == opcode_send && !dispatch) // its own replies
        touch_handed(x, site, e, me, me, s, true, false);
    if (site->op == opcode_forward) {
        touch_block(x, site, e, me, s, false);
        if (dispatch)
            touch_slot(x, site, e, me, s, false, true, false);
    }
    if (dispatch || (site->op != opcode_forward && site->op != opcode_settle))
        return;
    touch_block(x, site, ROW(x->plan, plan_exchange, e->base), me, s, false); // which of the replies belong together
    for (uint32_t d = 0; d < x->ranks; d++)
        if (d == me || is_near(e, me, d))
            touch_handed(x, site, e, me, d, s, false, true);
}

// ---------------------------------------------------------------------------------------------------------- sites

static void touch_arguments(const struct view *x, struct site *site, const struct plan_instr *in)
{
    for (uint32_t i = 0; i < in->args.count; i++) {
        const struct plan_arg *arg = ROW(x->plan, plan_arg, in->args.first + i);
        for (int write = arg->access == access_write; write <= (arg->access != access_read); write++) {
            touch(site, site->rank, arg->buffer, 0, -1, write != 0);
            site->touched[site->touch_count - 1].slice = arg->slice;
        }
    }
}

void list_touches(const struct ir *plan, const struct plan_variant *variant, struct site *site)
{
    struct view view = {plan, variant, variant->programs.count}, *x = &view;
    const struct plan_instr *in = ROW(plan, plan_instr, site->instr);
    const struct plan_exchange *e = in->exchange == NONE ? NULL : ROW(plan, plan_exchange, in->exchange);
    if (site->op == opcode_launch)
        touch_arguments(x, site, in);
    if (!e)
        return;
    if (site->op == TRANSFER && e->node)
        touch_relayed_transfer(x, site, e);
    if (site->op == TRANSFER && !site->passed_on && (!e->node || is_near(e, site->rank, site->peer))) {
        touch_slot(x, site, e, site->rank, site->peer, true, false, false);
        touch_slot(x, site, e, site->peer, site->rank, false, true, false);
    }
    bool received = site->op == opcode_recv;
    if (e->node && e->kind == exchange_kind_dispatch)
        received = site->op == opcode_settle;
    for (uint32_t peer = 0; peer < x->ranks && site->op != TRANSFER; peer++) {
        if (peer == site->rank)
            continue;
        if (site->op == opcode_send)
            touch_slot(x, site, e, site->rank, peer, true, false, false);
        if (received)
            touch_slot(x, site, e, site->rank, peer, false, false, true);
        if (received && !e->pool && has_pool(x, in->exchange)) // the own overflow vector
            touch_slot(x, site, e, site->rank, peer, true, false, true);
        if (is_alike(e, site->rank, peer))
            touch_relay(x, site, e, peer);
    }
}
