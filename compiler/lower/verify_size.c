// Every buffer is large enough on every rank: exchanges hold a header and slots for each peer, what built-ins fill
// holds their bounds, and nothing reaches beyond the arena.
#include "compiler/lower/verify.h"
#include "runtime/plan/slots.h"

struct sizes {
    const struct verifier *v;
    const struct plan_program *program;
    const struct plan_instr *instr;
    uint32_t event;
};

static int64_t bytes_of(const struct sizes *s, uint32_t buffer)
{
    return ROW(s->v->plan, plan_extent, s->program->extents.first + buffer - s->v->variant->buffers.first)->bytes;
}

static bool holds(const struct sizes *s, uint32_t arg, int64_t rows, int64_t row_bytes)
{
    const struct plan_arg *a = ROW(s->v->plan, plan_arg, s->instr->args.first + arg);
    const struct plan_buffer *b = ROW(s->v->plan, plan_buffer, a->buffer);
    uint32_t whole = a->slice == NONE ? NONE : ROW(s->v->plan, plan_part, a->slice)->within;
    if (whole != NONE) // a piece begins somewhere in its micro-batch
        rows = ROW(s->v->plan, plan_part, whole)->bound;
    if (b->kind == buffer_kind_input || b->kind == buffer_kind_output ||
        (rows >= 0 && (!row_bytes || bytes_of(s, a->buffer) / row_bytes >= rows)))
        return true;
    return verify_fail(s->v, "rank %u, %s: `%s` has %lld bytes, too few for %lld rows of %lld", s->program->rank,
                       event_text(s->v, s->event), ir_text(s->v->plan, b->name), (long long)bytes_of(s, a->buffer),
                       (long long)rows, (long long)row_bytes);
}

/// `rows` rows of the buffer's own stride.
static bool holds_stride(const struct sizes *s, uint32_t arg, int64_t rows)
{
    const struct plan_arg *a = ROW(s->v->plan, plan_arg, s->instr->args.first + arg);
    return holds(s, arg, rows, ROW(s->v->plan, plan_buffer, a->buffer)->row_bytes);
}

static const struct plan_exchange *reply_of(const struct sizes *s, uint32_t dispatch)
{
    struct rows rows = s->v->variant->exchanges;
    for (uint32_t i = 0; i < rows.count; i++) { // a combine stands right behind its dispatch
        const struct plan_exchange *e =
            ROW(s->v->plan, plan_exchange, rows.first + (dispatch - rows.first + i) % rows.count);
        if (e->kind == exchange_kind_combine && e->base == dispatch)
            return e;
    }
    return NULL;
}

static bool bin_fits(const struct sizes *s, int64_t bound)
{
    const struct plan_info *info = s->v->info;
    const struct plan_exchange *reply = reply_of(s, s->instr->exchange);
    if (!reply)
        return verify_fail(s->v, "%s: no combine answers its dispatch", event_text(s->v, s->event));
    const struct plan_exchange *e = ROW(s->v->plan, plan_exchange, s->instr->exchange);
    int64_t bins = slots_bins_bytes(s->v->plan, e), own = bound * slots_token_rows(s->v->plan, s->program->rank);
    if (e->wave > 0 && !holds(s, s->instr->args.count - 1, 1, bins))
        return false;
    return holds(s, BIN_IDS, bound, 4 * (int64_t)info->choices) &&
           holds(s, BIN_WEIGHTS, bound, 4 * (int64_t)info->choices) && holds_stride(s, BIN_OWN, own) &&
           (!e->node || !moe_bin_has_sums(s->instr->args.count, e->wave) ||
            holds(s, BIN_SUMS, 1, slots_spill_sums_bytes(s->v->plan, e))) &&
           (!moe_bin_has_packed(s->instr->args.count, e->wave) ||
            holds(s, BIN_PACKED, 1, slots_packed_bytes(s->v->plan, reply))) &&
           holds(s, BIN_BINS, 1, bins);
}

static bool fan_out_fits(const struct sizes *s)
{
    const struct ir *plan = s->v->plan;
    const struct plan_exchange *e = ROW(plan, plan_exchange, s->instr->exchange);
    uint32_t rank = s->program->rank, ranks = s->v->info->ranks;
    int64_t rows = slots_fan_rows(plan, e, s->instr->part, rank, ranks),
            pairs = slots_fan_pairs(plan, e, s->instr->part, rank, ranks);
    const struct plan_exchange *reply = reply_of(s, s->instr->exchange);
    uint32_t y_dtype = (uint32_t)ROW(plan, plan_kernel, s->instr->kernel)->n[3];
    bool staged = moe_fan_has_stage(s->instr->args.count, e->pool ? 0 : e->wave);
    for (uint32_t i = 0; reply && !staged && i < reply->wires.count; i++)
        if (slots_answer_formats(plan, reply) >> i & 1 && !wire_is_plain(ROW(plan, plan_wire, reply->wires.first + i), y_dtype))
            return verify_fail(s->v, "%s: sums that travel in another format have no staging rows",
                               event_text(s->v, s->event));
    if (staged && !holds_stride(s, FAN_STAGE, rows))
        return false;
    const int64_t *n = ROW(plan, plan_kernel, s->instr->kernel)->n;
    return holds(s, FAN_A, moe_a_rows(n[4] != 0, rows, pairs), n[0]) &&
           holds(s, FAN_PAIRS, 1, moe_pairs_bytes(slots_wave_experts(plan, e, rank), rows, pairs));
}

/// What passes through a relay has room there, and is listed.
static bool relays_fit(const struct sizes *s, const struct plan_exchange *e)
{
    uint32_t rank = s->program->rank, ranks = s->v->info->ranks;
    if (!e->node)
        return true;
    if (bytes_of(s, e->relay) >= slots_relay_bytes(s->v->plan, e, rank, ranks) &&
        (e->kind == exchange_kind_dispatch || bytes_of(s, e->sums) >= slots_sums_bytes(s->v->plan, e, rank, ranks)))
        return true;
    return verify_fail(s->v, "rank %u: the buffers of exchange `%s` do not hold what it relays", rank,
                       ir_text(s->v->plan, e->name));
}

static bool fold_fits(const struct sizes *s)
{
    const struct plan_exchange *reply = ROW(s->v->plan, plan_exchange, s->instr->exchange);
    return holds(s, FOLD_CONTROL, 1, slots_fold_bytes(s->v->plan, reply, s->program->rank, s->v->info->ranks));
}

static bool launch_fits(struct sizes *s)
{
    const struct plan_kernel *k = ROW(s->v->plan, plan_kernel, s->instr->kernel);
    int64_t bound = s->instr->part == NONE ? 0 : ROW(s->v->plan, plan_part, s->instr->part)->bound;
    switch (k->role) {
    case kernel_role_bin:
        return bin_fits(s, bound);
    case kernel_role_fan_out:
        return fan_out_fits(s);
    case kernel_role_fold:
        return fold_fits(s);
    case kernel_role_bin_round: {
        const struct plan_exchange *e = ROW(s->v->plan, plan_exchange, s->instr->exchange);
        int64_t rows = slots_round_rows(s->v->plan, e, s->program->rank, s->v->info->ranks);
        return holds(s, ROUND_CONTROL, 1, moe_rows_bytes(rows));
    }
    case kernel_role_dense:
        return holds(s, DENSE_PAIRS, 1, moe_pairs_bytes(k->n[3], bound, bound * k->n[3])) &&
               holds(s, DENSE_A, moe_a_rows(k->n[4] != 0, bound, bound * k->n[3]), k->n[0]) && holds(s, DENSE_Y, bound, k->n[2]);
    case kernel_role_merge:
        return holds(s, MERGE_Y, bound, k->n[0] * dtype_bytes((uint32_t)k->n[2])) &&
               (!k->n[3] || holds(s, MERGE_SUM, bound, k->n[0] * 4));
    default:
        return true;
    }
}

/// Every buffer that a host function is given holds the part's rows.
static bool host_fits(struct sizes *s)
{
    int64_t bound = s->instr->part == NONE ? 0 : ROW(s->v->plan, plan_part, s->instr->part)->bound;
    for (uint32_t i = 0; i < s->instr->args.count; i++) {
        const struct plan_arg *arg = ROW(s->v->plan, plan_arg, s->instr->args.first + i);
        const struct plan_buffer *b = ROW(s->v->plan, plan_buffer, arg->buffer);
        if (b->kind == buffer_kind_arena && !holds(s, i, bound, b->row_bytes))
            return false;
    }
    return true;
}

static bool extents_fit(const struct sizes *s)
{
    struct rows buffers = s->v->variant->buffers, exchanges = s->v->variant->exchanges;
    uint32_t rank = s->program->rank, ranks = s->v->info->ranks;
    for (uint32_t i = 0; i < buffers.count; i++) {
        const struct plan_buffer *b = ROW(s->v->plan, plan_buffer, buffers.first + i);
        const struct plan_extent *x = ROW(s->v->plan, plan_extent, s->program->extents.first + i);
        if (b->kind == buffer_kind_arena && (x->offset < 0 || x->bytes < 0 || x->bytes > s->program->arena_bytes ||
                                             x->offset > s->program->arena_bytes - x->bytes || x->offset % 64))
            return verify_fail(s->v, "rank %u: `%s` lies outside the arena", rank, ir_text(s->v->plan, b->name));
    }
    for (uint32_t i = 0; i < exchanges.count; i++) {
        const struct plan_exchange *e = ROW(s->v->plan, plan_exchange, exchanges.first + i);
        if (bytes_of(s, e->send) < slots_send_bytes(s->v->plan, e, rank, ranks) ||
            bytes_of(s, e->recv) < slots_recv_bytes(s->v->plan, e, rank, ranks))
            return verify_fail(s->v, "rank %u: the buffers of exchange `%s` do not hold its slots", rank,
                               ir_text(s->v->plan, e->name));
        if (!relays_fit(s, e))
            return false;
    }
    return true;
}

bool verify_sizes(struct verifier *v)
{
    for (uint32_t r = 0; r < v->variant->programs.count; r++) {
        struct sizes s = {.v = v, .program = &v->programs[r]};
        // Ranks with the same extents own equally many experts, so that the same bounds hold, but for slots whose
        // records depend on the axes between ranks: extents_fit looks at every rank. With copies ranks differ in more.
        if (r && !slots_has_copies(v->plan) && v->programs[r].extents.first == v->programs[r - 1].extents.first &&
            ROW(v->plan, plan_rank, r)->owned.count == ROW(v->plan, plan_rank, r - 1)->owned.count) {
            if (v->info->axes.count > 1 && !extents_fit(&s))
                return false;
            continue;
        }
        if (!extents_fit(&s))
            return false;
        for (s.event = 0; s.event < v->event_count; s.event++) {
            s.instr = event_instr(v, s.event);
            if (s.instr->op == opcode_launch && !launch_fits(&s))
                return false;
            if (s.instr->op == opcode_host && !host_fits(&s))
                return false;
        }
    }
    return true;
}
