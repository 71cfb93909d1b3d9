// The all-to-alls of a variant: for every routed path, layer, part and wave of experts a dispatch and the combine that
// answers it, and, where rows can find no slot, the pool's pair of them. Slot rows depend on the destination's number of
// experts in the wave only; a wave's combine also answers rows that earlier waves brought.
#include <string.h>

#include "compiler/lower/lower.h"

struct slot_plan {                   // of one path, part and wave
    struct rows base, replies, pool; // plan_slot rows
    uint32_t max_rounds;
};

static struct diag *refuse_pool(struct lowering *l, const struct path *p, uint32_t rank, int64_t rows, int64_t bound)
{
    if (rows <= 0 && p->pool > 0) { // a pool is a share of the slots
        struct diag *none = lower_refuse(l, E0206, p->dispatch, "capacity",
                                         "`capacity: %gx` leaves no slots, and so no pool, which is a share of them",
                                         p->capacity);
        diag_help(l->context, none, "a larger one will do, such as `0.1x`: what finds no slot goes through the pool");
        return none;
    }
    struct diag *diag = lower_refuse(l, E0206, p->dispatch, "pool",
                                     "without a pool every row needs a slot, but rank %u has %lld for %s",
                                     rank, (long long)rows, counted(l->context, bound, "token"));
    diag_help(l->context, diag, "give a pool, raise `capacity`, or say `overflow: error`");
    return diag;
}

static void add_slot(struct lowering *l, int64_t rows)
{
    uint32_t row = lower_add(l->context, l->plan, T_plan_slot);
    ROW(l->plan, plan_slot, row)->rows = rows;
}

static int64_t most_rows(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/// Rows that one source can have for a rank.
static int64_t source_rows(const struct lowering *l, int64_t bound, uint32_t rank)
{
    int64_t rows = bound * slots_token_rows(l->plan, rank);
    return slots_least(rows, MOE_MAX_POOL_ROWS);
}

static int64_t direct_rows(const struct lowering *l, const struct path *p, int64_t bound, uint32_t wave, uint32_t rank)
{
    return slot_base_rows(bound, source_rows(l, bound, rank), p->capacity, rank_hit(l, p, rank, wave));
}

/// Experts of a rank in a wave and those after it.
static int64_t later_experts(const struct lowering *l, uint32_t rank, uint32_t wave)
{
    int64_t experts = 0;
    for (uint32_t w = wave; w < l->waves; w++)
        experts += wave_experts(l, rank, w);
    return experts;
}

/// Through a relay a row comes with the first wave that needs it in the node: that misses the experts of earlier waves
/// there, and hits one of the rank's own that are left.
static int64_t relayed_rows(const struct lowering *l, const struct path *p, int64_t bound, uint32_t wave, uint32_t rank)
{
    int64_t before = 0, later = later_experts(l, rank, wave);
    for (uint32_t d = rank / p->node * p->node; d < (rank / p->node + 1) * p->node; d++)
        before += later_experts(l, d, 0) - later_experts(l, d, wave);
    double missed = slot_hit_share(p->experts, (double)before, p->choices);
    double hit = slot_hit_share(p->experts, (double)(before + later), p->choices) - missed;
    return slot_base_rows(bound, bound, p->capacity, hit);
}

/// With relays the rows of a token for one node find slots together: its ranks that own experts have equally many, where
/// one source can have so many for them.
static int64_t base_rows(const struct lowering *l, const struct path *p, int64_t bound, uint32_t wave, uint32_t rank)
{
    int64_t rows = direct_rows(l, p, bound, wave, rank), other;
    if (p->node && l->waves > 1)
        rows = most_rows(rows, relayed_rows(l, p, bound, wave, rank));
    for (uint32_t d = 0; d < p->node && rows > 0; d++) {
        other = direct_rows(l, p, bound, wave, rank / p->node * p->node + d);
        if (l->waves > 1)
            other = most_rows(other, relayed_rows(l, p, bound, wave, rank / p->node * p->node + d));
        rows = most_rows(rows, other);
    }
    return slots_least(rows, source_rows(l, bound, rank));
}

static void add_base_slots(struct lowering *l, const struct path *p, int64_t bound, uint32_t wave,
                           struct slot_plan *slots)
{
    slots->base = slots->replies = (struct rows){COUNT(l->plan, plan_slot), l->ranks};
    for (uint32_t d = 0; d < l->ranks; d++)
        add_slot(l, base_rows(l, p, bound, wave, d));
    if (l->waves == 1)
        return;
    slots->replies.first = COUNT(l->plan, plan_slot);
    for (uint32_t d = 0; d < l->ranks; d++) {
        int64_t rows = 0, most = bound * slots_token_rows(l->plan, d);
        for (uint32_t w = 0; w <= wave && rows < most; w++)
            rows += base_rows(l, p, bound, w, d);
        add_slot(l, !wave_experts(l, d, wave) ? 0 : rows < most ? rows : most);
    }
}

/// The pool's rows per rank, and the most rounds that any rank can need.
static void add_pool_slots(struct lowering *l, const struct path *p, int64_t bound, uint32_t wave,
                           struct slot_plan *slots)
{
    int64_t most = 0;
    for (uint32_t d = 0; d < l->ranks && p->overflow == overflow_pool; d++) {
        int64_t rows = base_rows(l, p, bound, wave, d);
        if (!wave_experts(l, d, wave))
            continue;
        int64_t left = slots_left_rows(l->plan, &(struct plan_exchange){.node = p->node, .slots = slots->base}, bound, d);
        int64_t rounds = slot_rounds(l->ranks, left, slot_pool_rows(p->pool, l->ranks, rows));
        if (rounds < 0) {
            refuse_pool(l, p, d, rows, bound);
            return;
        }
        most = rounds > most ? rounds : most;
    }
    if (most > MOE_MAX_ROUNDS)
        lower_refuse(l, E0206, p->dispatch, "pool", "%lld overflow rounds, at most %u are possible", (long long)most,
                     MOE_MAX_ROUNDS);
    slots->max_rounds = (uint32_t)most;
    slots->pool = (struct rows){COUNT(l->plan, plan_slot), most > 0 ? l->ranks : 0};
    for (uint32_t d = 0; d < slots->pool.count; d++) {
        int64_t rows = base_rows(l, p, bound, wave, d), pool = slot_pool_rows(p->pool, l->ranks, rows);
        add_slot(l, pool < MOE_MAX_POOL_ROWS ? pool : MOE_MAX_POOL_ROWS);
    }
}

/// Parts with equal bounds share slots.
static struct slot_plan *plan_slots(struct lowering *l, const struct path *p)
{
    struct slot_plan *slots = context_alloc(l->context, l->cells * sizeof *slots);
    for (uint32_t i = 0; i < l->cells; i++) {
        int64_t bound = ROW(l->plan, plan_part, l->first_part + i / l->waves)->bound;
        uint32_t same = i % l->waves;
        while (same < i && ROW(l->plan, plan_part, l->first_part + same / l->waves)->bound != bound)
            same += l->waves;
        if (same < i) {
            slots[i] = slots[same];
            continue;
        }
        add_base_slots(l, p, bound, i % l->waves, &slots[i]);
        add_pool_slots(l, p, bound, i % l->waves, &slots[i]);
    }
    return slots;
}

static int64_t meta_bytes(const struct path *p)
{
    return p->choices * (int64_t)sizeof(struct moe_row_meta);
}

/// Sizes of a set's formats, and their rows in the plan.
static void add_wires(struct lowering *l, const struct path *p, struct wire_set *set, int64_t meta)
{
    set->rows = (struct rows){COUNT(l->plan, plan_wire), set->count};
    for (uint32_t i = 0; i < set->count; i++) {
        struct plan_wire *wire = &set->wires[i];
        wire->data_bytes = moe_wire_bytes(wire->dtype, p->width, wire->block, wire->scale);
        wire->row_bytes = moe_record_bytes(wire->data_bytes, meta);
        uint32_t row = lower_add(l->context, l->plan, T_plan_wire);
        *ROW(l->plan, plan_wire, row) = *wire;
    }
}

static struct plan_exchange describe(const struct lowering *l, const struct path *p, uint32_t kind,
                                     const struct slot_plan *slots)
{
    bool combine = kind == EXCHANGE_COMBINE || kind == EXCHANGE_POOL_COMBINE;
    bool pool = kind == EXCHANGE_POOL_DISPATCH || kind == EXCHANGE_POOL_COMBINE;
    const struct wire_set *set = combine ? &p->reply : &p->wire;
    struct plan_exchange e = {.kind = combine ? exchange_kind_combine : exchange_kind_dispatch,
                              .pool = pool,
                              .send = NONE,
                              .recv = NONE,
                              .node = pool ? 0 : p->node,
                              .handed = combine && !pool ? p->handed : 0,
                              .relay = NONE,
                              .sums = NONE,
                              .base = NONE,
                              .waves = l->waves,
                              .earlier = NONE,
                              .piece = NONE,
                              .header_bytes = moe_header_bytes(l->ranks),
                              .meta_bytes = combine ? 0 : meta_bytes(p),
                              .max_rounds = pool ? slots->max_rounds : 0,
                              .overflow = p->overflow,
                              .wires = set->rows,
                              .slots = pool      ? slots->pool
                                       : combine ? slots->replies
                                                 : slots->base};
    memcpy(e.wire_of_axis, set->of_axis, sizeof e.wire_of_axis);
    for (uint32_t i = 0; i < ROW(l->plan, plan_info, 0)->axes.count && combine && pool && p->node; i++)
        if (axis_at(l->plan, i)->stride >= (int64_t)p->node)
            e.wire_of_axis[i] = p->handed; // whoever gets them adds them up and packs the sum, as a relay would
    return e;
}

const char *cell_text(const struct lowering *l, uint32_t cell)
{
    return l->waves > 1 ? context_printf(l->context, "%u,%u", cell / l->waves, cell % l->waves)
                        : context_printf(l->context, "%u", cell);
}

/// The rows of one exchange, in the chunks that its stage works in.
static void add_chunks(struct lowering *l, struct plan_exchange e, uint32_t stage, uint32_t part)
{
    uint32_t first = l->first_piece[task_of_stage(l, stage)];
    for (uint32_t k = 0; k == 0 || k < e.chunks; k++) {
        e.chunk = k;
        e.piece = e.chunks ? l->first_part + first + part * e.chunks + k : NONE;
        uint32_t row = lower_add(l->context, l->plan, T_plan_exchange);
        *ROW(l->plan, plan_exchange, row) = e;
    }
}

static void add_exchanges(struct lowering *l, uint32_t path, uint32_t layer, uint32_t cell,
                          const struct slot_plan *slots)
{
    static const uint8_t bases[] = {EXCHANGE_KINDS, EXCHANGE_DISPATCH, EXCHANGE_DISPATCH, EXCHANGE_POOL_DISPATCH};
    const struct path *p = &l->paths[path];
    uint32_t *rows = &l->exchanges[((path * l->layers + layer) * l->cells + cell) * EXCHANGE_KINDS];
    for (uint32_t kind = 0; kind < EXCHANGE_KINDS; kind++) {
        bool combine = kind == EXCHANGE_COMBINE || kind == EXCHANGE_POOL_COMBINE;
        rows[kind] = NONE;
        if (kind >= EXCHANGE_POOL_DISPATCH && !slots->max_rounds)
            continue;
        struct plan_exchange e = describe(l, p, kind, slots);
        uint32_t stage = combine ? p->combine : p->dispatch;
        const char *name = ir_text(l->module, lower_stage(l, stage)->name);
        const char *infix = kind >= EXCHANGE_POOL_DISPATCH ? ".pool" : "";
        e.name = ir_str(l->plan, context_printf(l->context, "%s%s[%s]", name, infix, cell_text(l, cell)));
        e.part = l->first_part + cell / l->waves;
        e.wave = cell % l->waves;
        struct sched_share share = wave_share(l->schedule, e.wave);
        e.wave_begin = share.begin;
        e.wave_end = share.end;
        e.wave_total = share.total;
        if (kind == EXCHANGE_DISPATCH && e.wave > 0)
            e.earlier = exchange_of(l, path, layer, cell - 1, kind);
        e.base = bases[kind] == EXCHANGE_KINDS ? NONE : rows[bases[kind]];
        uint32_t chunks = kind == EXCHANGE_DISPATCH ? p->pieces : kind == EXCHANGE_COMBINE ? p->chunks : 1;
        e.chunks = chunks > 1 ? chunks : 0;
        e.answers = kind == EXCHANGE_DISPATCH && p->chunks > 1 ? p->chunks : 0;
        if (kind == EXCHANGE_DISPATCH && p->runs > 1)
            e.runs = (struct rows){l->first_part + l->first_piece[task_of_stage(l, p->expert)] + cell / l->waves * p->runs, p->runs};
        e.header_bytes = moe_headers_bytes(l->ranks, e.chunks, (int64_t)e.answers + e.runs.count);
        rows[kind] = COUNT(l->plan, plan_exchange);
        add_chunks(l, e, stage, cell / l->waves);
    }
}

bool make_exchanges(struct lowering *l)
{
    size_t count = (size_t)l->path_count * l->layers * l->cells * EXCHANGE_KINDS;
    uint32_t first = COUNT(l->plan, plan_exchange);
    l->exchanges = context_alloc(l->context, (count + 1) * sizeof *l->exchanges);
    for (uint32_t path = 0; path < l->path_count; path++) {
        if (l->paths[path].dense)
            continue;
        struct slot_plan *slots = plan_slots(l, &l->paths[path]);
        struct path *p = &l->paths[path];
        add_wires(l, p, &p->wire, meta_bytes(p) + (p->node ? (int64_t)sizeof(struct moe_row_mark) : 0));
        add_wires(l, p, &p->reply, 0);
        for (uint32_t layer = 0; layer < l->layers && !l->failed; layer++)
            for (uint32_t cell = 0; cell < l->cells; cell++)
                add_exchanges(l, path, layer, cell, &slots[cell]);
    }
    ROW(l->plan, plan_variant, l->variant)->exchanges = (struct rows){first, COUNT(l->plan, plan_exchange) - first};
    return !l->failed;
}
