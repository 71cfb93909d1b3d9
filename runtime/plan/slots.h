// Where slots lie and how large buffers of an exchange are: one place for lowering, validation, bin, fan_out and the
// transports.
//
//   base dispatch  send: for each d: header + rows(d) records       recv: for each s: header + rows(me) records
//   base combine   send: for each s: header + rows(me) records      recv: for each d: header + rows(d) records
//   pool dispatch  send: for each d: header + min(pool(d), over(d)) recv: all headers, then pool(me) records
//   pool combine   send: all headers, then pool(me) records         recv: for each d: header + over(d) records
//
// ("for each": ascending, without me.) over(d) are the rows that overflow at rank d in this step, which bin counts: at
// most spill(d) = slots_left_rows, max(0, B - rows(d)), where rank d has a pool, else 0, and over all ranks together at most
// B * min(choices, ranks - 1), as a token goes to so many other ranks. So bin says where the blocks of a pool begin. In the
// packed layouts the records of a source begin where the grants of the sources before it end, so a round never holds more
// than pool(me) records. The pool combine's recv buffer is the `spill`
// buffer: a round's replies land behind those of earlier rounds, at the places to which bin's merge table points.
//
// Waves of experts: the base combine of a wave carries replies for rows that any wave up to it brought, so it has
// min(B, sum over those waves of rows(d)) records, none where rank d has no expert of the wave (slots_reply_rows).
//
// Copies of experts: a token has a row for each rank that owns one of its experts, with or without copies. A row may be
// computed by another rank that holds all of the row's experts, so a rank can have several rows of one token: its own
// and those of its guests (slots_token_rows). Wherever B bounds what one source has for rank d, B * slots_token_rows(d)
// does. A rank's experts are sorted by (place + 1) / (experts of the home), then home: a copy is in the wave of experts
// that it is in at home, so waves cut a row's sum where they do without copies.
//
// Records have the size of the format of the axis that they cross. Packed layouts place them at the largest size, so
// that a source's records begin at a place that does not depend on the other sources' formats.
//
// base of exchanges: a combine's base is the dispatch it answers (pool to pool); a pool dispatch's base is the base
// dispatch. A combine's slots are slots_reply_rows. Sizes fit 64 bits for every plan within the limits of limits.h.
#ifndef MOE_SLOTS_H
#define MOE_SLOTS_H

#include <stdbool.h>

#include "axes.h"
#include "kernels.h"
#include "messages.h"
#include "plan.h"

static inline const struct plan_exchange *slots_dispatch(const struct ir *ir, const struct plan_exchange *e)
{
    return e->kind == exchange_kind_combine ? ROW(ir, plan_exchange, e->base) : e;
}

/// Which of the exchange's formats rows between two ranks take, and the format.
static inline uint32_t slots_wire_number(const struct ir *ir, const struct plan_exchange *e, uint32_t a, uint32_t b)
{
    return e->wires.count < 2 ? 0 : (uint32_t)e->wire_of_axis[axis_between(ir, a, b)];
}

static inline const struct plan_wire *slots_wire(const struct ir *ir, const struct plan_exchange *e, uint32_t a,
                                                 uint32_t b)
{
    return ROW(ir, plan_wire, e->wires.first + slots_wire_number(ir, e, a, b));
}

/// Where the header of an exchange lies in its slot: chunks have one each.
static inline int64_t slots_header_at(const struct plan_exchange *e, uint32_t chunk)
{
    return e->chunks > 1 ? e->header_bytes / e->chunks * chunk : 0;
}

static inline int64_t slots_record_bytes(const struct ir *ir, const struct plan_exchange *e, uint32_t a, uint32_t b)
{
    return slots_wire(ir, e, a, b)->row_bytes;
}

/// The largest record of an exchange.
static inline int64_t slots_largest_record(const struct ir *ir, const struct plan_exchange *e)
{
    int64_t largest = 0;
    for (uint32_t i = 0; i < e->wires.count; i++) {
        int64_t bytes = ROW(ir, plan_wire, e->wires.first + i)->row_bytes;
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

/// The format in which `me` answers a row of rank s. What crosses nodes by a relay is handed to it as it is, for it adds
/// replies up before it packs their sum.
static inline uint32_t slots_answer_number(const struct ir *ir, const struct plan_exchange *combine, uint32_t me, uint32_t s)
{
    bool relayed = combine->node && me / combine->node != s / combine->node;
    return relayed ? combine->handed : slots_wire_number(ir, combine, me, s);
}

static inline int64_t slots_answer_bytes(const struct ir *ir, const struct plan_exchange *combine, uint32_t me, uint32_t s)
{
    return ROW(ir, plan_wire, combine->wires.first + slots_answer_number(ir, combine, me, s))->row_bytes;
}

/// A reply that is handed to a relay.
static inline int64_t slots_handed_bytes(const struct ir *ir, const struct plan_exchange *combine)
{
    return ROW(ir, plan_wire, combine->wires.first + combine->handed)->row_bytes;
}

/// The formats in which ranks answer, as bits.
static inline uint32_t slots_answer_formats(const struct ir *ir, const struct plan_exchange *combine)
{
    uint32_t formats = combine->node ? 1u << combine->handed : 0;
    for (uint32_t i = 0; i < ROW(ir, plan_info, 0)->axes.count; i++)
        if (!combine->node || axis_at(ir, i)->stride < (int64_t)combine->node)
            formats |= 1u << combine->wire_of_axis[i];
    return formats;
}

/// Those that sums of a relay are packed in; none: they travel as they are.
static inline uint32_t slots_sum_formats(const struct ir *ir, const struct plan_exchange *combine)
{
    uint32_t formats = 0;
    for (uint32_t i = 0; i < ROW(ir, plan_info, 0)->axes.count && combine->node; i++)
        if (axis_at(ir, i)->stride >= (int64_t)combine->node)
            formats |= 1u << combine->wire_of_axis[i];
    return formats & ~(1u << combine->handed);
}

/// Rows in this format are those of the type as they are: nothing to convert.
static inline bool wire_is_plain(const struct plan_wire *wire, uint32_t dtype)
{
    return wire->dtype == dtype && !wire->block;
}

/// rows(d) or pool(d): as the plan's slots say.
static inline int64_t slots_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t d)
{
    return ROW(ir, plan_slot, e->slots.first + d)->rows;
}

/// Experts that a rank owns, copies left out.
static inline int64_t slots_own_experts(const struct ir *ir, uint32_t rank)
{
    const struct plan_rank *row = ROW(ir, plan_rank, rank);
    return (int64_t)row->owned.count - row->copied;
}

static inline bool slots_has_copies(const struct ir *ir)
{
    return COUNT(ir, plan_owner) > ROW(ir, plan_info, 0)->experts;
}

/// Rows that one token can have for rank d.
static inline int64_t slots_token_rows(const struct ir *ir, uint32_t d)
{
    int64_t guests = ROW(ir, plan_rank, d)->guests, choices = ROW(ir, plan_info, 0)->choices;
    return !guests ? 1 : guests < choices ? 1 + guests : choices;
}

/// Experts that rank d holds of the first `share` of `total` of every home's: those with a place below
/// floor(share * L / total) of their home's L.
static inline int64_t slots_wave_begin(const struct ir *ir, uint32_t d, int64_t share, int64_t total)
{
    const struct plan_rank *rank = ROW(ir, plan_rank, d);
    int64_t below = 0, end = rank->owned.count;
    if (!rank->copied)
        return end * share / total;
    while (below < end) {
        int64_t middle = (below + end) / 2;
        const struct plan_owner *o = ROW(ir, plan_owner, rank->owned.first + middle);
        if (((int64_t)o->place + 1) * total <= slots_own_experts(ir, o->home) * share)
            below = middle + 1;
        else
            end = middle;
    }
    return below;
}

/// The wave's experts of rank d: local ids [first, first + count). Any exchange of the wave tells.
static inline int64_t slots_wave_first(const struct ir *ir, const struct plan_exchange *e, uint32_t d)
{
    return slots_wave_begin(ir, d, e->wave_begin, e->wave_total);
}

static inline int64_t slots_wave_experts(const struct ir *ir, const struct plan_exchange *e, uint32_t d)
{
    return slots_wave_begin(ir, d, e->wave_end, e->wave_total) - slots_wave_first(ir, e, d);
}

/// Rows of one source that rank d answers in the wave of dispatch `e`, at most; pool: in one round, of all sources.
static inline int64_t slots_reply_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t d)
{
    int64_t rows = slots_rows(ir, e, d), bound = ROW(ir, plan_part, e->part)->bound * slots_token_rows(ir, d);
    if (e->pool || e->waves == 1)
        return rows;
    if (!slots_wave_experts(ir, e, d))
        return 0;
    for (uint32_t earlier = e->earlier; earlier != NONE && rows < bound;) {
        const struct plan_exchange *before = ROW(ir, plan_exchange, earlier);
        rows += slots_rows(ir, before, d);
        earlier = before->earlier;
    }
    return rows < bound ? rows : bound;
}

/// Most rows that one source can have left over for rank d after its base slots, of `bound` tokens. Through relays the rows
/// of a token for one node are left over together, and with copies a rank there may be full after fewer tokens than it has
/// slots: until all of them have a slot for every row, all rows may be left.
static inline int64_t slots_left_rows(const struct ir *ir, const struct plan_exchange *base, int64_t bound, uint32_t d)
{
    int64_t all = bound * slots_token_rows(ir, d);
    uint32_t first = base->node ? d / base->node * base->node : 0;
    for (uint32_t x = first; x < first + base->node && slots_has_copies(ir); x++)
        if (slots_rows(ir, base, x) > 0 && slots_rows(ir, base, x) < bound * slots_token_rows(ir, x))
            return all;
    return all > slots_rows(ir, base, d) ? all - slots_rows(ir, base, d) : 0;
}

/// ...where it has a pool: `e` is a pool exchange.
static inline int64_t slots_spill_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t d)
{
    const struct plan_exchange *base = ROW(ir, plan_exchange, slots_dispatch(ir, e)->base);
    return slots_rows(ir, e, d) > 0 ? slots_left_rows(ir, base, ROW(ir, plan_part, e->part)->bound, d) : 0;
}

/// Most rows that travel between a source and dispatch destination d in one message, or that the buffer holds for them.
static inline int64_t slots_pair_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t d)
{
    if (!e->pool)
        return slots_rows(ir, e, d);
    int64_t spill = slots_spill_rows(ir, e, d), pool = slots_rows(ir, e, d);
    return e->kind == exchange_kind_combine || spill < pool ? spill : pool;
}

/// Records that the source side of an exchange holds on rank me.
static inline int64_t slots_source_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t me, uint32_t ranks)
{
    int64_t rows = 0, choices = ROW(ir, plan_info, 0)->choices;
    for (uint32_t d = 0; d < ranks; d++)
        rows += d == me ? 0 : slots_pair_rows(ir, e, d);
    int64_t most = ROW(ir, plan_part, e->part)->bound * (choices < (int64_t)ranks - 1 ? choices : (int64_t)ranks - 1);
    return e->pool && rows > most ? most : rows;
}

/// The buffer on the dispatch's source side: dispatch send, combine recv. Pools: before bin has counted, headers alone.
static inline int64_t slots_source_offset(const struct ir *ir, const struct plan_exchange *e, uint32_t me, uint32_t d)
{
    int64_t offset = 0;
    for (uint32_t i = 0; i < d; i++)
        if (i != me)
            offset += e->header_bytes + (e->pool ? 0 : slots_pair_rows(ir, e, i) * slots_record_bytes(ir, e, me, i));
    return offset;
}

/// The buffer on the dispatch's destination side: dispatch recv, combine send. Pool: offset of the header alone.
static inline int64_t slots_target_offset(const struct ir *ir, const struct plan_exchange *e, uint32_t me, uint32_t s)
{
    int64_t offset = ((int64_t)s - (s > me ? 1 : 0)) * e->header_bytes;
    for (uint32_t i = 0; i < s && !e->pool; i++)
        if (i != me)
            offset += slots_rows(ir, e, me) * (e->kind == exchange_kind_combine ? slots_answer_bytes(ir, e, me, i)
                                                                                : slots_record_bytes(ir, e, me, i));
    return offset;
}

/// Bytes of the two buffers on rank me; ranks = plan_info.ranks.
static inline int64_t slots_source_bytes(const struct ir *ir, const struct plan_exchange *e, uint32_t me,
                                         uint32_t ranks)
{
    // a pool's rows may all be for ranks that take the largest record
    return slots_source_offset(ir, e, me, ranks) +
           (e->pool ? slots_source_rows(ir, e, me, ranks) * slots_largest_record(ir, e) : 0);
}

static inline int64_t slots_target_bytes(const struct ir *ir, const struct plan_exchange *e, uint32_t me,
                                         uint32_t ranks)
{
    return slots_target_offset(ir, e, me, ranks) + (e->pool ? slots_rows(ir, e, me) * slots_largest_record(ir, e) : 0);
}

/// Bytes that the send and the recv buffer of an exchange need on rank me.
static inline int64_t slots_send_bytes(const struct ir *ir, const struct plan_exchange *e, uint32_t me, uint32_t ranks)
{
    return e->kind == exchange_kind_dispatch ? slots_source_bytes(ir, e, me, ranks)
                                             : slots_target_bytes(ir, e, me, ranks);
}

static inline int64_t slots_recv_bytes(const struct ir *ir, const struct plan_exchange *e, uint32_t me, uint32_t ranks)
{
    return e->kind == exchange_kind_dispatch ? slots_target_bytes(ir, e, me, ranks)
                                             : slots_source_bytes(ir, e, me, ranks);
}

static inline int64_t slots_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/// Rows of one source that a fan_out over dispatch `e` on rank d can yield; `part` holds the tokens whose rows it takes: those of
/// the exchange, or a piece of them. Pool: in one round, of all sources.
static inline int64_t slots_taken_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t part, uint32_t d)
{
    int64_t rows = slots_reply_rows(ir, e, d);
    return e->pool ? rows : slots_least(rows, ROW(ir, plan_part, part)->bound * slots_token_rows(ir, d));
}

/// All rows that it can yield: arrived rows that the wave needs, and the own rows in a base dispatch.
static inline int64_t slots_fan_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t part, uint32_t me,
                                     uint32_t ranks)
{
    int64_t rows = slots_taken_rows(ir, e, part, me);
    return e->pool ? rows : rows * (ranks - 1) + ROW(ir, plan_part, part)->bound * slots_token_rows(ir, me);
}

/// Pairs that it can yield at most: a row that arrived has at most min(choices, local experts) of them, and so have all
/// own rows of a token.
static inline int64_t slots_fan_pairs(const struct ir *ir, const struct plan_exchange *e, uint32_t part, uint32_t me,
                                      uint32_t ranks)
{
    int64_t owned = slots_wave_experts(ir, e, me), choices = ROW(ir, plan_info, 0)->choices;
    int64_t rows = slots_taken_rows(ir, e, part, me) * (e->pool ? 1 : ranks - 1);
    return (rows + (e->pool ? 0 : ROW(ir, plan_part, part)->bound)) * (owned < choices ? owned : choices);
}

/// Do two parts, or pieces of parts, have no token in common, whatever their number?
static inline bool slots_parts_apart(const struct plan_part *x, const struct plan_part *y)
{
    return x->end * y->total <= y->begin * x->total || y->end * x->total <= x->begin * y->total;
}

/// Has chunk `chunk` of a dispatch come before a piece of its rows can be taken? The first one has the cuts, in any case.
static inline bool slots_chunk_needed(const struct ir *ir, const struct plan_exchange *first, uint32_t chunk,
                                      const struct plan_part *piece)
{
    const struct plan_part *c = first->chunks ? ROW(ir, plan_part, first[chunk].piece) : NULL;
    return !chunk || c->begin * piece->total < piece->end * c->total;
}

/// Bytes of a bins control for dispatch `e`.
static inline int64_t slots_bins_bytes(const struct ir *ir, const struct plan_exchange *e)
{
    const struct plan_info *info = ROW(ir, plan_info, 0);
    int64_t bound = ROW(ir, plan_part, e->part)->bound;
    return moe_bins_bytes(info->ranks, info->experts, info->choices, bound, e->waves, slots_has_copies(ir));
}

/// Rows that one bin_round of pool dispatch `e` can pack on rank me.
static inline int64_t slots_round_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t me, uint32_t ranks)
{
    return slots_source_rows(ir, e, me, ranks);
}

// Two hops (`node` = G > 0). Node m holds ranks [m * G, (m + 1) * G). A rank sends to its own node as above, and to every
// other node one message, to the rank there of its own position (the relay), which passes the rows on into the slots that
// a direct message would have filled; replies return the same way, summed. So every slot above is as without relays.
//
//   dispatch relay  for each other node's rank s of my position: header, G counts, for each d of the node rows(d) entries
//                   (mark, meta), then relay_rows records' data
//   combine relay   for each d of the node (me too), for each such s: header + rows(d) records
//   combine sums    for each such s: header + relay_rows records
//
// Replies reach the relay in the format `handed`, which can be added up. A sum that takes another one across its axis is
// made where its first part lies, and packed into the sums.
//
// Replies in chunks: every chunk has a relay buffer and sums of its own, for the rows of its tokens.

/// Of a combine in chunks, that of one.
static inline bool slots_is_chunk(const struct plan_exchange *e)
{
    return e->kind == exchange_kind_combine && e->chunks > 1;
}

/// Most tokens that the messages of an exchange are about.
static inline int64_t slots_tokens(const struct ir *ir, const struct plan_exchange *e)
{
    int64_t part = ROW(ir, plan_part, e->part)->bound;
    return slots_is_chunk(e) ? slots_least(part, ROW(ir, plan_part, e->piece)->bound) : part;
}

/// The header of one message.
static inline int64_t slots_head_bytes(const struct plan_exchange *e)
{
    return slots_is_chunk(e) ? e->header_bytes / e->chunks : e->header_bytes;
}

/// Rows that rank d of a node hands to a relay of it for one source.
static inline int64_t slots_handed_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t d)
{
    return slots_least(slots_rows(ir, e, d), slots_tokens(ir, e) * slots_token_rows(ir, d));
}

/// Rows that one source can send to the node of rank `me`; combine: that it can have sent there in all waves up to this, of
/// the tokens of a chunk.
static inline int64_t slots_relay_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t me)
{
    int64_t rows = 0, bound = slots_tokens(ir, e);
    const struct plan_exchange *wave = slots_dispatch(ir, e);
    for (bool more = true; more; wave = more ? ROW(ir, plan_exchange, wave->earlier) : wave) {
        for (uint32_t d = me / e->node * e->node; d < (me / e->node + 1) * e->node; d++)
            rows += slots_rows(ir, wave, d);
        more = e->kind == exchange_kind_combine && wave->earlier != NONE && rows < bound;
    }
    return slots_least(rows, bound);
}

/// All replies that the node of `me` can give to one source.
static inline int64_t slots_node_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t me)
{
    int64_t rows = 0;
    for (uint32_t d = me / e->node * e->node; d < (me / e->node + 1) * e->node; d++)
        rows += slots_handed_rows(ir, e, d);
    return rows;
}

static inline int64_t slots_entry_bytes(const struct plan_exchange *dispatch)
{
    return (int64_t)sizeof(struct moe_row_mark) + dispatch->meta_bytes;
}

static inline int64_t slots_entry_stride(const struct plan_exchange *dispatch)
{
    return (slots_entry_bytes(dispatch) + 15) / 16 * 16;
}

/// Data of a record with its scales, up to the mark: between two ranks, and the most of any format.
static inline int64_t slots_relay_data(const struct ir *ir, const struct plan_exchange *dispatch, uint32_t a,
                                       uint32_t b)
{
    return slots_record_bytes(ir, dispatch, a, b) - slots_entry_bytes(dispatch);
}

static inline int64_t slots_largest_data(const struct ir *ir, const struct plan_exchange *dispatch)
{
    return slots_largest_record(ir, dispatch) - slots_entry_bytes(dispatch);
}

/// Where, in a relayed dispatch message, the entries of the node's d-th rank and the rows lie; `position` = G: the rows.
static inline int64_t slots_relay_entries(const struct ir *ir, const struct plan_exchange *e, uint32_t me,
                                          uint32_t position)
{
    int64_t at = e->header_bytes + ((int64_t)e->node * (int64_t)sizeof(struct moe_relay_count) + 15) / 16 * 16;
    for (uint32_t p = 0; p < position; p++)
        at += slots_rows(ir, e, me / e->node * e->node + p) * slots_entry_stride(e);
    return at;
}

/// Number of rank `s` among the sources that `me` relays for: ranks of its position in other nodes.
static inline uint32_t slots_relay_index(const struct plan_exchange *e, uint32_t me, uint32_t s)
{
    return s / e->node - (s > me ? 1 : 0);
}

static inline int64_t slots_relay_slot_bytes(const struct ir *ir, const struct plan_exchange *e, uint32_t me)
{
    if (e->kind == exchange_kind_dispatch)
        return (slots_relay_entries(ir, e, me, e->node) + slots_relay_rows(ir, e, me) * slots_largest_data(ir, e) +
                63) /
               64 * 64;
    return slots_head_bytes(e) + slots_relay_rows(ir, e, me) * slots_largest_record(ir, e); // of the sums
}

/// Bytes of the relay buffer and of the sums on rank me.
static inline int64_t slots_relay_bytes(const struct ir *ir, const struct plan_exchange *e, uint32_t me, uint32_t ranks)
{
    int64_t others = ranks / e->node - 1;
    if (e->kind == exchange_kind_dispatch)
        return others * slots_relay_slot_bytes(ir, e, me);
    return others * ((int64_t)e->node * slots_head_bytes(e) + slots_node_rows(ir, e, me) * slots_handed_bytes(ir, e));
}

static inline int64_t slots_sums_bytes(const struct ir *ir, const struct plan_exchange *e, uint32_t me, uint32_t ranks)
{
    return (ranks / e->node - 1) * slots_relay_slot_bytes(ir, e, me);
}

/// Combine: where, in the relay buffer of `me`, the replies of the node's rank d to source s lie.
static inline int64_t slots_gather_offset(const struct ir *ir, const struct plan_exchange *e, uint32_t me, uint32_t d,
                                          uint32_t s, uint32_t ranks)
{
    int64_t at = 0, others = ranks / e->node - 1, record = slots_handed_bytes(ir, e);
    for (uint32_t p = me / e->node * e->node; p < d; p++)
        at += others * (slots_head_bytes(e) + slots_handed_rows(ir, e, p) * record);
    return at + slots_relay_index(e, me, s) * (slots_head_bytes(e) + slots_handed_rows(ir, e, d) * record);
}

/// The control of `fold` on rank me, for the replies of combine `e`.
static inline int64_t slots_fold_bytes(const struct ir *ir, const struct plan_exchange *e, uint32_t me, uint32_t ranks)
{
    int64_t others = ranks / e->node - 1;
    int64_t sums = others * slots_relay_rows(ir, e, me);
    return moe_sums_bytes(sums, others * slots_node_rows(ir, e, me), sums);
}

/// The control of the sums that `bin` makes of replies to rows that overflow, and of those one by one: at most one for each
/// choice of a token.
static inline int64_t slots_spill_sums_bytes(const struct ir *ir, const struct plan_exchange *dispatch)
{
    int64_t parts = ROW(ir, plan_part, dispatch->part)->bound * ROW(ir, plan_info, 0)->choices;
    return MOE_MAX_CHUNKS * (int64_t)sizeof(struct moe_sums_head) + moe_sums_bytes(parts / 2, parts, parts);
}

/// Where they are packed, one record for each node of a token: only where relays pack sums.
static inline int64_t slots_packed_bytes(const struct ir *ir, const struct plan_exchange *combine)
{
    const struct plan_info *info = ROW(ir, plan_info, 0);
    int64_t nodes = info->ranks / combine->node - 1;
    return ROW(ir, plan_part, combine->part)->bound * slots_least(nodes, info->choices) * slots_largest_record(ir, combine);
}

#endif
