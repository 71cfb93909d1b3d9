// Where slots lie and how large buffers of an exchange are: one place for lowering, validation, bin, fan_out and the
// transports.
//
//   base dispatch  send: for each d: header + rows(d) records       recv: for each s: header + rows(me) records
//   base combine   send: for each s: header + rows(me) records      recv: for each d: header + rows(d) records
//   pool dispatch  send: for each d: header + min(pool(d), over(d)) recv: all headers, then pool(me) records
//   pool combine   send: all headers, then pool(me) records         recv: for each d: header + over(d) records
//
// ("for each": ascending, without me.) over(d) are the rows that overflow at rank d in this step, which bin counts: at
// most spill(d) = max(0, B - rows(d)) where rank d has a pool, else 0, and over all ranks together at most
// B * min(choices, ranks - 1), as a token goes to so many other ranks. So bin says where the blocks of a pool begin. In the packed layouts the records of a source begin where the grants of the sources
// before it end, so a round never holds more than pool(me) records. The pool combine's recv buffer is the `spill`
// buffer: a round's replies land behind those of earlier rounds, at the places to which bin's merge table points.
//
// Waves of experts: the base combine of a wave carries replies for rows that any wave up to it brought, so it has
// min(B, sum over those waves of rows(d)) records, none where rank d has no expert of the wave (slots_reply_rows).
//
// base of exchanges: a combine's base is the dispatch it answers (pool to pool); a pool dispatch's base is the base
// dispatch. A combine's slots are slots_reply_rows. Sizes fit 64 bits for every plan within the limits of limits.h.
#ifndef MOE_SLOTS_H
#define MOE_SLOTS_H

#include "messages.h"
#include "plan.h"

static inline const struct plan_exchange *slots_dispatch(const struct ir *ir, const struct plan_exchange *e)
{
    return e->kind == exchange_kind_combine ? ROW(ir, plan_exchange, e->base) : e;
}

/// rows(d) or pool(d): as the plan's slots say.
static inline int64_t slots_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t d)
{
    return ROW(ir, plan_slot, e->slots.first + d)->rows;
}

/// The wave's experts of rank d: local ids [first, first + count). Any exchange of the wave tells.
static inline int64_t slots_wave_first(const struct ir *ir, const struct plan_exchange *e, uint32_t d)
{
    return (int64_t)ROW(ir, plan_rank, d)->owned.count * e->wave / e->waves;
}

static inline int64_t slots_wave_experts(const struct ir *ir, const struct plan_exchange *e, uint32_t d)
{
    return (int64_t)ROW(ir, plan_rank, d)->owned.count * (e->wave + 1) / e->waves - slots_wave_first(ir, e, d);
}

/// Rows of one source that rank d answers in the wave of dispatch `e`, at most; pool: in one round, of all sources.
static inline int64_t slots_reply_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t d)
{
    int64_t rows = slots_rows(ir, e, d), bound = ROW(ir, plan_part, e->part)->bound;
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

/// Most rows that one source can have left over for rank d after its base slots; `e` is a pool exchange.
static inline int64_t slots_spill_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t d)
{
    const struct plan_exchange *base = ROW(ir, plan_exchange, slots_dispatch(ir, e)->base);
    int64_t left = ROW(ir, plan_part, e->part)->bound - slots_rows(ir, base, d);
    return slots_rows(ir, e, d) > 0 && left > 0 ? left : 0;
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
            offset += e->header_bytes + (e->pool ? 0 : slots_pair_rows(ir, e, i) * e->row_bytes);
    return offset;
}

/// The buffer on the dispatch's destination side: dispatch recv, combine send. Pool: offset of the header alone.
static inline int64_t slots_target_offset(const struct ir *ir, const struct plan_exchange *e, uint32_t me, uint32_t s)
{
    int64_t index = (int64_t)s - (s > me ? 1 : 0);
    return index * (e->header_bytes + (e->pool ? 0 : slots_rows(ir, e, me) * e->row_bytes));
}

/// Bytes of the two buffers on rank me; ranks = plan_info.ranks.
static inline int64_t slots_source_bytes(const struct ir *ir, const struct plan_exchange *e, uint32_t me,
                                         uint32_t ranks)
{
    return (int64_t)(ranks - 1) * e->header_bytes + slots_source_rows(ir, e, me, ranks) * e->row_bytes;
}

static inline int64_t slots_target_bytes(const struct ir *ir, const struct plan_exchange *e, uint32_t me,
                                         uint32_t ranks)
{
    return slots_target_offset(ir, e, me, ranks) + (e->pool ? slots_rows(ir, e, me) * e->row_bytes : 0);
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

/// Rows that one fan_out over dispatch `e` on rank me can yield: arrived rows that the wave needs, and the own rows in a
/// base dispatch.
static inline int64_t slots_fan_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t me, uint32_t ranks)
{
    int64_t rows = slots_reply_rows(ir, e, me);
    return e->pool ? rows : rows * (ranks - 1) + ROW(ir, plan_part, e->part)->bound;
}

/// Pairs that it can yield at most: a row has at most min(choices, local experts) of them.
static inline int64_t slots_fan_pairs(const struct ir *ir, const struct plan_exchange *e, uint32_t me, uint32_t ranks)
{
    int64_t owned = slots_wave_experts(ir, e, me), choices = ROW(ir, plan_info, 0)->choices;
    return slots_fan_rows(ir, e, me, ranks) * (owned < choices ? owned : choices);
}

/// Rows that one bin_round of pool dispatch `e` can pack on rank me.
static inline int64_t slots_round_rows(const struct ir *ir, const struct plan_exchange *e, uint32_t me, uint32_t ranks)
{
    return slots_source_rows(ir, e, me, ranks);
}

#endif
