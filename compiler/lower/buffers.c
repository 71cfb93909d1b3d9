// Logical buffers -> plan_buffer rows. A buffer that one layer or part is done with serves a later one of the same family,
// where the order proves it: so a step of many layers and parts needs few buffers. Sizes follow the exchanges' slots.
#include <stdlib.h>
#include <string.h>

#include "compiler/lower/lower.h"

// Sizes are products of bounded factors, but not of bounded product: overflow saturates and is refused at the end.
static int64_t times(int64_t a, int64_t b)
{
    int64_t result;
    return __builtin_mul_overflow(a, b, &result) || result > MOE_MAX_BYTES ? MOE_MAX_BYTES + 1 : result;
}

static int compare_touches(const void *a, const void *b)
{
    const struct touch *x = a, *y = b;
    if (x->logical != y->logical)
        return x->logical < y->logical ? -1 : 1;
    if (x->instance != y->instance)
        return x->instance < y->instance ? -1 : 1;
    return (int)x->remote - (int)y->remote;
}

static void sort_touches(struct lowering *l)
{
    l->logicals = context_alloc(l->context, (l->arena_count + 1) * sizeof *l->logicals);
    for (uint32_t i = 0; i < l->arena_count; i++)
        l->logicals[i].buffer = NONE;
    if (l->touch_count)
        qsort(l->touches, l->touch_count, sizeof *l->touches, compare_touches);
    for (uint32_t i = 0; i < l->touch_count; i++) {
        struct logical *logical = &l->logicals[l->touches[i].logical];
        if (!logical->touch_count++)
            logical->first_touch = i;
    }
}

/// On one rank both local; remote touches are made by another rank than the buffer's.
static bool touch_before(const struct lowering *l, const struct touch *a, const struct touch *b)
{
    if (a->instance == b->instance)
        return !a->remote && !b->remote && a->last_step < b->first_step;
    if (a->remote && b->remote) // by one rank, or by two
        return ordered(l->order, a->instance, b->instance, false) && ordered(l->order, a->instance, b->instance, true);
    return ordered(l->order, a->instance, b->instance, a->remote != b->remote);
}

static bool touches_before(const struct lowering *l, const struct logical *a, const struct logical *b)
{
    for (uint32_t i = 0; i < a->touch_count; i++)
        for (uint32_t j = 0; j < b->touch_count; j++)
            if (!touch_before(l, &l->touches[a->first_touch + i], &l->touches[b->first_touch + j]))
                return false;
    return true;
}

static void lower_to(uint32_t *least, uint32_t value)
{
    *least = value < *least ? value : *least;
}

/// What `logical_before` asks, for all touches of a buffer at once: how far each stream must have come when they have ended,
/// and how far it has come for certain before the first of them starts, each on the rank that touches from near or afar.
static void sum_up(struct lowering *l, struct logical *logical)
{
    uint32_t streams = COUNT(l->schedule, sched_stream);
    logical->first_instance = NONE;
    for (uint32_t i = 0; i < logical->touch_count; i++) {
        const struct touch *t = &l->touches[logical->first_touch + i];
        const struct sched_instance *row = ROW(l->schedule, sched_instance, t->instance);
        const uint32_t *here = order_clock(l->order, t->instance, false), *there = order_clock(l->order, t->instance, true);
        uint32_t *end = logical->ends + t->remote * streams + row->stream;
        *end = row->position + 1 > *end ? row->position + 1 : *end;
        for (uint32_t s = 0; s < streams; s++) {
            lower_to(&logical->begins[s], t->remote ? there[s] : here[s]);
            lower_to(&logical->begins[streams + s], there[s]);
            if (t->remote)
                lower_to(&logical->begins[streams + s], here[s]);
        }
        lower_to(&logical->first_instance, t->instance);
        logical->last_instance = t->instance > logical->last_instance ? t->instance : logical->last_instance;
    }
}

static void sum_up_all(struct lowering *l)
{
    size_t width = 2 * (size_t)COUNT(l->schedule, sched_stream), used = 0;
    for (uint32_t i = 0; i < l->arena_count; i++)
        used += l->logicals[i].touch_count > 0;
    uint32_t *clocks = context_alloc(l->context, (2 * used * width + 1) * sizeof *clocks);
    for (uint32_t i = 0; i < l->arena_count; i++) {
        if (!l->logicals[i].touch_count)
            continue;
        l->logicals[i].ends = clocks;
        l->logicals[i].begins = clocks + width;
        memset(l->logicals[i].begins, 0xff, width * sizeof *clocks);
        clocks += 2 * width;
        sum_up(l, &l->logicals[i]);
    }
}

bool logical_before(const struct lowering *l, uint32_t first, uint32_t second)
{
    const struct logical *a = &l->logicals[first], *b = &l->logicals[second];
    uint32_t width = 2 * COUNT(l->schedule, sched_stream), i = 0;
    if (!a->touch_count || !b->touch_count)
        return true;
    while (i < width && a->ends[i] <= b->begins[i])
        i++;
    if (i == width)
        return true;
    // An instance may be the last to touch one and, in a later step of its own, the first to touch the other.
    return a->last_instance >= b->first_instance && a->first_instance <= b->last_instance && touches_before(l, a, b);
}

static uint32_t new_buffer(struct lowering *l, uint32_t number, uint32_t cell, uint32_t copy)
{
    const struct family *family = &l->families[number];
    const char *name = ir_text(l->plan, family->name);
    uint32_t row = lower_add(l->context, l->plan, T_plan_buffer);
    const char *full = copy ? context_printf(l->context, "%s[%s].%u", name, cell_text(l, cell), copy)
                            : context_printf(l->context, "%s[%s]", name, cell_text(l, cell));
    str_id text = ir_str(l->plan, full);
    *ROW(l->plan, plan_buffer, row) = (struct plan_buffer){
        .name = text, .kind = buffer_kind_arena, .dtype = family->dtype, .row_bytes = family->row_bytes, .param = NONE};
    return row;
}

struct copy { // of a family: one plan_buffer
    uint32_t last; // logical buffer: its last user so far
    uint32_t cell; // of its first
};

/// Equal parts, and the same wave of them, need equally large buffers.
static bool sizes_agree(const struct lowering *l, uint32_t a, uint32_t b)
{
    return a % l->waves == b % l->waves && ROW(l->plan, plan_part, l->first_part + a / l->waves)->bound ==
                                               ROW(l->plan, plan_part, l->first_part + b / l->waves)->bound;
}

/// Layer by layer and part by part: the first buffer whose last user is done, else a new one.
static void assign_family(struct lowering *l, uint32_t number)
{
    struct copy *copies = NULL;
    uint32_t count = 0, capacity = 0;
    for (uint32_t i = 0; i < l->layers * l->cells; i++) {
        uint32_t cell = i % l->cells, logical = logical_of(l, number, i / l->cells, cell), copy = 0, same = 0;
        if (!l->logicals[logical].touch_count)
            continue;
        for (; copy < count; copy++) {
            same += copies[copy].cell == cell;
            if (sizes_agree(l, copies[copy].cell, cell) && logical_before(l, copies[copy].last, logical))
                break;
        }
        if (copy == count) {
            copies = context_grow(l->context, copies, &capacity, ++count, sizeof *copies);
            copies[copy].cell = cell;
            l->logicals[logical].buffer = new_buffer(l, number, cell, same);
        } else {
            l->logicals[logical].buffer = l->logicals[copies[copy].last].buffer;
        }
        copies[copy].last = logical;
    }
}

static void add_caller_buffer(struct lowering *l, const char *name, enum buffer_kind kind, enum dtype dtype)
{
    uint32_t row = lower_add(l->context, l->plan, T_plan_buffer);
    str_id text = ir_str(l->plan, name);
    *ROW(l->plan, plan_buffer, row) =
        (struct plan_buffer){.name = text,
                             .kind = kind,
                             .dtype = dtype,
                             .row_bytes = ROW(l->plan, plan_info, 0)->width * dtype_bytes(dtype),
                             .param = NONE};
}

static void add_param_buffers(struct lowering *l)
{
    for (uint32_t p = 0; p < COUNT(l->plan, plan_param); p++)
        for (uint32_t layer = 0; layer < l->layers; layer++) {
            uint32_t row = lower_add(l->context, l->plan, T_plan_buffer);
            const struct plan_param *param = ROW(l->plan, plan_param, p);
            *ROW(l->plan, plan_buffer, row) = (struct plan_buffer){
                .name = param->name, .kind = buffer_kind_param, .dtype = param->dtype, .param = p, .layer = layer};
        }
}

static void connect_exchanges(struct lowering *l)
{
    static const uint8_t sends[] = {F_SEND, F_REPLY_SEND, F_POOL_SEND, F_POOL_REPLY};
    static const uint8_t recvs[] = {F_RECV, F_REPLY_RECV, F_POOL_RECV, F_SPILL};
    for (uint32_t path = 0; path < l->path_count; path++)
        for (uint32_t layer = 0; layer < l->layers; layer++)
            for (uint32_t cell = 0; cell < l->cells; cell++)
                for (uint32_t kind = 0; kind < EXCHANGE_KINDS; kind++) {
                    const struct path *p = &l->paths[path];
                    uint32_t row = p->dense ? NONE : exchange_of(l, path, layer, cell, kind);
                    if (row == NONE)
                        continue;
                    uint32_t send = logical_of(l, p->first_family + sends[kind], layer, cell);
                    uint32_t recv = logical_of(l, p->first_family + recvs[kind], layer, cell);
                    bool combine = kind == EXCHANGE_COMBINE;
                    for (uint32_t k = 0; k == 0 || k < ROW(l->plan, plan_exchange, row)->chunks; k++) {
                        ROW(l->plan, plan_exchange, row + k)->send = l->logicals[send].buffer;
                        ROW(l->plan, plan_exchange, row + k)->recv = l->logicals[recv].buffer;
                        if (!ROW(l->plan, plan_exchange, row + k)->node)
                            continue;
                        uint32_t relay = combine ? chunk_family(F_GATHER, k) : F_RELAY;
                        uint32_t relays = logical_of(l, p->first_family + relay, layer, cell);
                        uint32_t sums = logical_of(l, p->first_family + chunk_family(F_SUMS, k), layer, cell);
                        ROW(l->plan, plan_exchange, row + k)->relay = l->logicals[relays].buffer;
                        ROW(l->plan, plan_exchange, row + k)->sums = combine ? l->logicals[sums].buffer : NONE;
                    }
                }
}

bool make_buffers(struct lowering *l)
{
    const struct plan_info *info = ROW(l->plan, plan_info, 0);
    enum dtype y = info->y_dtype;
    sort_touches(l);
    sum_up_all(l);
    l->first_buffer = COUNT(l->plan, plan_buffer);
    add_caller_buffer(l, "x", buffer_kind_input, info->x_dtype);
    add_caller_buffer(l, "y", buffer_kind_output, y);
    add_param_buffers(l);
    for (uint32_t family = 0; family < l->family_count; family++)
        assign_family(l, family);
    connect_exchanges(l);
    ROW(l->plan, plan_variant, l->variant)->buffers =
        (struct rows){l->first_buffer, COUNT(l->plan, plan_buffer) - l->first_buffer};
    return !l->failed;
}

uint32_t buffer_of_operand(const struct lowering *l, const struct operand *operand)
{
    if (operand->buffer < l->arena_count)
        return l->logicals[operand->buffer].buffer;
    return l->first_buffer + (operand->buffer - l->arena_count);
}

// Sizes.

struct sizing {
    const struct ir *plan;
    uint32_t rank, ranks;
    const struct plan_exchange *base, *reply, *pool, *pool_reply; // pool may be NULL
    int64_t bound, choices, experts, owned, waves, fan_rows, fan_pairs, pool_rows, pool_pairs;
    bool by_row; // rows of A
};

static struct sizing sizing_of(const struct lowering *l, uint32_t path, uint32_t layer, uint32_t cell, uint32_t rank)
{
    struct sizing s = {.plan = l->plan, .rank = rank, .ranks = l->ranks};
    const struct plan_exchange **slots[EXCHANGE_KINDS] = {&s.base, &s.reply, &s.pool, &s.pool_reply};
    for (uint32_t kind = 0; kind < EXCHANGE_KINDS; kind++) {
        uint32_t row = exchange_of(l, path, layer, cell, kind);
        *slots[kind] = row == NONE ? NULL : ROW(l->plan, plan_exchange, row);
    }
    s.bound = ROW(l->plan, plan_part, l->first_part + cell / l->waves)->bound;
    s.choices = l->paths[path].choices;
    s.experts = l->paths[path].experts;
    s.by_row = l->paths[path].by_row;
    s.owned = wave_experts(l, rank, cell % l->waves);
    s.waves = l->waves;
    for (uint32_t k = 0; k == 0 || k < s.base->runs.count; k++) { // pieces of an expert follow one another in one place
        uint32_t part = s.base->runs.count ? s.base->runs.first + k : s.base->part;
        int64_t rows = slots_fan_rows(l->plan, s.base, part, rank, l->ranks),
                pairs = slots_fan_pairs(l->plan, s.base, part, rank, l->ranks);
        s.fan_rows = rows > s.fan_rows ? rows : s.fan_rows;
        s.fan_pairs = pairs > s.fan_pairs ? pairs : s.fan_pairs;
    }
    if (s.pool) {
        s.pool_rows = slots_fan_rows(l->plan, s.pool, s.pool->part, rank, l->ranks);
        s.pool_pairs = slots_fan_pairs(l->plan, s.pool, s.pool->part, rank, l->ranks);
    }
    return s;
}

static int64_t send_bytes(const struct sizing *s, const struct plan_exchange *e)
{
    return e ? slots_send_bytes(s->plan, e, s->rank, s->ranks) : 0;
}

static int64_t recv_bytes(const struct sizing *s, const struct plan_exchange *e)
{
    return e ? slots_recv_bytes(s->plan, e, s->rank, s->ranks) : 0;
}

static int64_t routed_bytes(const struct sizing *s, const struct family *family)
{
    switch (family->kind) {
    case F_PAIRS:
        return moe_pairs_bytes(s->owned, s->fan_rows, s->fan_pairs);
    case F_A:
        return times(moe_a_rows(s->by_row, s->fan_rows, s->fan_pairs), family->row_bytes);
    case F_HIDDEN:
        return times(s->fan_pairs, family->row_bytes);
    case F_ACC:
    case F_STAGE:
        return times(s->fan_rows, family->row_bytes);
    case F_IDS:
    case F_WEIGHTS:
    case F_SUM:
        return times(s->bound, family->row_bytes);
    case F_OWN:
        return times(s->bound * slots_token_rows(s->plan, s->rank), family->row_bytes);
    case F_BINS:
        return slots_bins_bytes(s->plan, s->base);
    case F_SEND:
        return send_bytes(s, s->base);
    case F_RECV:
        return recv_bytes(s, s->base);
    case F_REPLY_SEND:
        return send_bytes(s, s->reply);
    case F_REPLY_RECV:
        return recv_bytes(s, s->reply);
    case F_POOL_SEND:
        return send_bytes(s, s->pool);
    case F_POOL_RECV:
        return recv_bytes(s, s->pool);
    case F_ROUND:
        return s->pool ? moe_rows_bytes(slots_round_rows(s->plan, s->pool, s->rank, s->ranks)) : 0;
    case F_POOL_PAIRS:
        return moe_pairs_bytes(s->owned, s->pool_rows, s->pool_pairs);
    case F_POOL_A:
        return times(moe_a_rows(s->by_row, s->pool_rows, s->pool_pairs), family->row_bytes);
    case F_POOL_HIDDEN:
        return times(s->pool_pairs, family->row_bytes);
    case F_POOL_ACC:
    case F_POOL_STAGE:
        return times(s->pool_rows, family->row_bytes);
    case F_POOL_REPLY:
        return send_bytes(s, s->pool_reply);
    case F_SPILL:
        return recv_bytes(s, s->pool_reply);
    case F_SPILL_SUMS:
        return slots_spill_sums_bytes(s->plan, s->base);
    case F_PACKED:
        return slots_packed_bytes(s->plan, s->reply);
    case F_RELAY:
        return slots_relay_bytes(s->plan, s->base, s->rank, s->ranks);
    case F_GATHER:
        return slots_relay_bytes(s->plan, s->reply, s->rank, s->ranks);
    case F_SUMS:
        return slots_sums_bytes(s->plan, s->reply, s->rank, s->ranks);
    case F_TAKEN:
        return times(s->experts, family->row_bytes);
    case F_FOLDS:
        return slots_fold_bytes(s->plan, s->reply, s->rank, s->ranks);
    case F_COUNT:
        break;
    }
    return 0;
}

int64_t logical_bytes(struct lowering *l, uint32_t logical, uint32_t rank)
{
    uint32_t cell = logical % l->cells, layer = logical / l->cells % l->layers;
    const struct family *family = &l->families[logical / l->cells / l->layers];
    int64_t bound = ROW(l->plan, plan_part, l->first_part + cell / l->waves)->bound;
    if (family->path == NONE)
        return times(bound, family->row_bytes);
    const struct path *path = &l->paths[family->path];
    if (path->dense) { // each of several workplaces holds a piece of the rows
        int64_t rows = (bound + path->workplaces - 1) / path->workplaces;
        int64_t pairs = times(rows, path->experts);
        if (family->kind == F_PAIRS)
            return moe_pairs_bytes(path->experts, rows, pairs);
        bool by_row = family->kind == F_ACC || (family->kind == F_A && path->by_row);
        return times(by_row ? rows : pairs, family->row_bytes);
    }
    struct sizing s = sizing_of(l, family->path, layer, cell, rank);
    s.reply += family->chunk;
    return routed_bytes(&s, family);
}
