// The first pass over a program's launches: which buffers are control data, and how much each can come to hold. What a built-in
// writes there bounds what kernels that follow its pointers touch (struct usage).
#include "slots.h"
#include "validate.h"

uint32_t wave_arguments(const struct walk *w, const struct plan_kernel *k)
{
    if (k->role == kernel_role_merge)
        return k->n[3] != 0;
    const struct plan_exchange *e =
        w->instr->exchange == NONE ? NULL : ROW(w->c->ir, plan_exchange, w->instr->exchange);
    bool reads = k->role == kernel_role_fan_out || k->role == kernel_role_fold;
    if (!e || e->pool || e->kind != (k->role == kernel_role_fold ? exchange_kind_combine : exchange_kind_dispatch))
        return 0;
    return k->role == kernel_role_bin ? e->wave > 0 : reads ? e->wave : 0;
}

enum arg_kind argument_kind(const struct walk *w, const struct plan_kernel *k, uint32_t i)
{
    const struct role_spec *spec = &role_specs[k->role];
    uint32_t more = wave_arguments(w, k), count = w->instr->args.count;
    if (k->role == kernel_role_merge)
        return i == MERGE_SUM && more ? ARG_OUT : i < spec->most ? (enum arg_kind)spec->args[i] : ARG_NONE;
    if ((k->role == kernel_role_mlp_up || k->role == kernel_role_mlp_down) && i == spec->most &&
        (k->n[7] & MLP_HAS_BIAS))
        return ARG_ANY;
    if (more && i >= count - more)
        return k->role == kernel_role_bin ? ARG_BINS : ARG_SLOTS;
    return i < spec->most ? (enum arg_kind)spec->args[i] : ARG_NONE;
}

int64_t extent_bytes(const struct walk *w, uint32_t buffer)
{
    return ROW(w->c->ir, plan_extent, w->program->extents.first + (buffer - w->variant->buffers.first))->bytes;
}

const struct plan_exchange *answer_of(const struct walk *w, uint32_t dispatch)
{
    for (uint32_t i = 0; i < w->variant->exchanges.count; i++) {
        const struct plan_exchange *e = ROW(w->c->ir, plan_exchange, w->variant->exchanges.first + i);
        if (e->kind == exchange_kind_combine && e->base == dispatch)
            return e;
    }
    return NULL;
}

const struct plan_exchange *pool_of(const struct walk *w, uint32_t dispatch, uint32_t *number)
{
    for (uint32_t i = 0; i < w->variant->exchanges.count; i++) {
        const struct plan_exchange *e = ROW(w->c->ir, plan_exchange, w->variant->exchanges.first + i);
        if (e->kind == exchange_kind_dispatch && e->pool && e->base == dispatch) {
            *number = w->variant->exchanges.first + i;
            return e;
        }
    }
    return NULL;
}

static void mark(struct usage *u, enum control_kind kind)
{
    if (u->control != CONTROL_NONE && u->control != kind)
        u->plain = true; // two kinds of control: refused like a mixed use
    u->control = (uint8_t)kind;
}

static void hold(struct usage *u, int64_t rows, int64_t pairs)
{
    u->rows = most(u->rows, rows);
    u->pairs = most(u->pairs, pairs);
}

/// What the rows of A are, by the constant of who fills the pairs.
static void hold_a(struct usage *u, const struct plan_kernel *k)
{
    u->by_row = u->by_row || k->n[4];
    u->by_pair = u->by_pair || !k->n[4];
}

/// Each row of a table has at least these bytes on either side.
static void hold_table(struct usage *u, uint32_t table, int64_t src, int64_t dst)
{
    u->src_bytes[table] = least(u->src_bytes[table], src);
    u->dst_bytes[table] = least(u->dst_bytes[table], dst);
}

const struct plan_wire *wire_numbered(const struct walk *w, const struct plan_exchange *e, uint32_t number)
{
    return ROW(w->c->ir, plan_wire, e->wires.first + number);
}

int64_t stride_of(const struct walk *w, uint32_t argument)
{
    return ROW(w->c->ir, plan_buffer, arg_at(w, argument)->buffer)->row_bytes;
}

/// Replies come in the combine's formats, own rows in their buffer's.
static void hold_replies(const struct walk *w, struct usage *u, const struct plan_exchange *reply, uint32_t own,
                         uint32_t y_dtype)
{
    u->row_dst_bytes = least(u->row_dst_bytes, stride_of(w, own));
    u->mixed = u->mixed || (u->y_dtype && u->y_dtype != y_dtype);
    u->y_dtype = y_dtype;
    for (uint32_t i = 0; i < reply->wires.count; i++) {
        const struct plan_wire *wire = wire_numbered(w, reply, i);
        int64_t code = moe_wire_code(wire->dtype, wire->block, wire->scale);
        bool plain = wire_is_plain(wire, y_dtype);
        int64_t *bytes = plain ? &u->row_dst_bytes : &u->reply_bytes[i];
        *bytes = least(*bytes, wire->data_bytes);
        u->mixed = u->mixed || (!plain && u->reply_code[i] && u->reply_code[i] != code);
        u->reply_code[i] = plain ? u->reply_code[i] : code;
    }
}

/// Sums of a combine's replies and their parts are its rows as they are handed to relays, or packed its records.
static void hold_sums(const struct walk *w, struct usage *u, const struct plan_exchange *reply)
{
    int64_t row = wire_numbered(w, reply, reply->handed)->data_bytes;
    hold_table(u, 0, row, row);
    for (uint32_t i = 0; i < reply->wires.count; i++)
        hold_table(u, TABLES_REPLY + i, row, wire_numbered(w, reply, i)->data_bytes);
}

static void learn_fan_out(const struct walk *w, const struct plan_kernel *k, const struct plan_exchange *e)
{
    const struct ir *ir = w->c->ir;
    uint32_t me = w->program->rank, ranks = w->c->info->ranks;
    struct usage *u = usage_at(w, FAN_PAIRS);
    const struct plan_exchange *reply = answer_of(w, w->instr->exchange);
    bool staged = moe_fan_has_stage(w->instr->args.count, wave_arguments(w, k));
    int64_t x_row = stride_of(w, FAN_X), stage = staged ? stride_of(w, FAN_STAGE) : 0;
    hold(u, slots_fan_rows(ir, e, w->instr->part, me, ranks), slots_fan_pairs(ir, e, w->instr->part, me, ranks));
    hold_a(u, k);
    u->routed = true;
    u->row_dst_bytes = least(u->row_dst_bytes, stride_of(w, FAN_OWN));
    for (uint32_t i = 0; i < e->wires.count; i++)
        hold_table(u, TABLES_UNPACK + i, wire_numbered(w, e, i)->data_bytes, k->n[0]);
    for (uint32_t i = 0; i < reply->wires.count; i++) {
        bool plain = wire_is_plain(wire_numbered(w, reply, i), (uint32_t)k->n[3]);
        int64_t bytes = wire_numbered(w, reply, i)->data_bytes;
        if (!(slots_answer_formats(ir, reply) >> i & 1))
            continue;
        u->row_dst_bytes = least(u->row_dst_bytes, plain ? bytes : stage);
        hold_table(u, TABLES_REPLY + i, stage, bytes);
    }
    if (!e->pool)
        hold_table(u, k->n[2] ? TABLE_OWN : TABLES_UNPACK, x_row, k->n[0]);
}

static void learn_built_in(const struct walk *w, const struct plan_kernel *k)
{
    const struct ir *ir = w->c->ir;
    const struct plan_exchange *e = w->instr->exchange == NONE ? NULL : ROW(ir, plan_exchange, w->instr->exchange);
    int64_t bound = ROW(ir, plan_part, w->instr->part)->bound;
    if (k->role == kernel_role_bin || k->role == kernel_role_bin_round) {
        bool base = k->role == kernel_role_bin;
        int64_t x_bytes = k->n[0] * k->n[3];
        struct usage *u = usage_at(w, base ? BIN_BINS : ROUND_CONTROL);
        for (uint32_t i = 0; i < e->wires.count; i++)
            hold_table(u, TABLES_PACK + i, x_bytes, wire_numbered(w, e, i)->data_bytes);
        if (base)
            hold_replies(w, u, answer_of(w, w->instr->exchange), BIN_OWN, (uint32_t)k->n[2]);
        u->tokens = base ? most(u->tokens, bound) : u->tokens;
        if (base && e->node && moe_bin_has_sums(w->instr->args.count, e->wave))
            hold_sums(w, usage_at(w, BIN_SUMS), answer_of(w, w->instr->exchange));
    } else if (k->role == kernel_role_fan_out) {
        learn_fan_out(w, k, e);
    } else if (k->role == kernel_role_fold) {
        hold_sums(w, usage_at(w, FOLD_CONTROL), e);
        usage_at(w, FOLD_CONTROL)->folded = true;
    } else if (k->role == kernel_role_dense) {
        struct usage *u = usage_at(w, DENSE_PAIRS);
        hold(u, bound, bound * k->n[3]);
        hold_a(u, k);
        hold_table(u, TABLES_UNPACK, k->n[1], k->n[0]);
        u->row_dst_bytes = least(u->row_dst_bytes, k->n[2]);
        u->shared = most(u->shared, k->n[3]);
    }
}

bool learn_launch(struct walk *w)
{
    const struct plan_instr *in = w->instr;
    if (in->kernel == NONE)
        return instr_fail(w, "no kernel");
    const struct plan_kernel *k = ROW(w->c->ir, plan_kernel, in->kernel);
    const struct role_spec *spec = &role_specs[k->role];
    uint32_t more = wave_arguments(w, k);
    if (in->args.count < spec->least + more || (spec->builtin && in->args.count > spec->most + more))
        return instr_fail(w, "its kernel takes another number of arguments");
    if (in->part == NONE)
        return instr_fail(w, "no part");
    bool folds = k->role == kernel_role_fold;
    const struct plan_exchange *e = in->exchange == NONE ? NULL : ROW(w->c->ir, plan_exchange, in->exchange);
    if (spec->exchange && (!e || (folds ? e->kind != exchange_kind_combine : e->kind != exchange_kind_dispatch || e->chunk)))
        return instr_fail(w, folds ? "names no combine" : "names no dispatch");
    for (uint32_t i = 0; i < in->args.count; i++) {
        enum arg_kind kind = argument_kind(w, k, i);
        if (kind == ARG_NONE)
            continue;
        struct usage *u = usage_at(w, i);
        if (kind == ARG_BINS || kind == ARG_PAIRS || kind == ARG_ROWS || kind == ARG_SUMS)
            mark(u, kind == ARG_BINS    ? CONTROL_BINS
                    : kind == ARG_PAIRS ? CONTROL_PAIRS
                    : kind == ARG_ROWS  ? CONTROL_ROWS
                                        : CONTROL_SUMS);
        else if (kind != ARG_TABLE)
            u->plain = true;
    }
    if (k->builtin)
        learn_built_in(w, k);
    return true;
}
