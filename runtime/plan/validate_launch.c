// Validation of kernels and launches: every argument of the right kind, and large enough for what the kernel's role and
// constants say it touches, and what control data says that it leads to (validate_control.c).
#include "slots.h"
#include "validate.h"

bool validate_kernel(const struct check *c, uint32_t number)
{
    const struct plan_kernel *k = ROW(c->ir, plan_kernel, number);
    const struct role_spec *spec = &role_specs[k->role];
    if (k->builtin != spec->builtin)
        return check_fail(c, "plan_kernel %u: a %s is %sbuilt in", number, kernel_role_words[k->role],
                          spec->builtin ? "" : "not ");
    bool native = !k->builtin && c->info->target != target_cuda; // kernels for CUDA come from elsewhere
    if (native && (k->code_offset < 0 || (uint64_t)k->code_offset >= c->code_bytes))
        return check_fail(c, "plan_kernel %u: code at %lld of %zu bytes", number, (long long)k->code_offset,
                          c->code_bytes);
    if (k->unit != spec->unit || !in_range(k->unit_count, 0, MOE_MAX_UNITS) || !in_range(k->grain, 0, MOE_MAX_UNITS))
        return check_fail(c, "plan_kernel %u: %lld units of %s by %lld", number, (long long)k->unit_count,
                          work_unit_words[k->unit], (long long)k->grain);
    if (!in_range(k->scratch_bytes, 0, MOE_MAX_SCRATCH))
        return check_fail(c, "plan_kernel %u: %lld bytes of scratch", number, (long long)k->scratch_bytes);
    if (k->role == kernel_role_dense && !in_range(k->n[3], 1, MOE_MAX_EXPERTS))
        return check_fail(c, "plan_kernel %u: %lld shared experts", number, (long long)k->n[3]);
    bool bins = k->role == kernel_role_bin || k->role == kernel_role_bin_round;
    if (bins && (!in_range(k->n[0], 1, MOE_MAX_ROW_BYTES) || !in_range(k->n[3], 1, MOE_MAX_ROW_BYTES)))
        return check_fail(c, "plan_kernel %u: rows of %lld numbers of %lld bytes", number, (long long)k->n[0],
                          (long long)k->n[3]);
    for (int i = 0; i < 12; i++)
        if (!in_range(k->n[i], -MOE_MAX_BYTES, MOE_MAX_BYTES))
            return check_fail(c, "plan_kernel %u: constant %d out of range", number, i);
    return true;
}

bool instr_fail(const struct walk *w, const char *what)
{
    return check_fail(w->c, "plan_instr %u (rank %u, %s %s): %s", w->number, w->program->rank,
                      opcode_words[w->instr->op], w->c->ir->strings.bytes + w->instr->label, what);
}

/// The argument has at least `rows` rows of `row_bytes` behind its address.
static bool holds_rows(const struct walk *w, uint32_t i, int64_t rows, int64_t row_bytes)
{
    const struct plan_arg *a = arg_at(w, i);
    const struct plan_buffer *b = ROW(w->c->ir, plan_buffer, a->buffer);
    if (row_bytes < 0 || row_bytes > MOE_MAX_ROW_BYTES)
        return false;
    if (b->kind == buffer_kind_input || b->kind == buffer_kind_output)
        return row_bytes <= b->row_bytes; // as many rows as the caller has tokens
    if (a->slice != NONE) {
        uint32_t whole = ROW(w->c->ir, plan_part, a->slice)->within;
        int64_t behind = whole == NONE ? w->variant->bound : ROW(w->c->ir, plan_part, whole)->bound;
        return row_bytes <= b->row_bytes && extent_bytes(w, a->buffer) / most(b->row_bytes, 1) >= behind;
    }
    return row_bytes == 0 || extent_bytes(w, a->buffer) / row_bytes >= rows;
}

/// A slice is the instruction's part, and its rows lie inside the buffer.
static bool arg_fits_slice(const struct walk *w, uint32_t i)
{
    const struct plan_arg *a = arg_at(w, i);
    const struct plan_buffer *b = ROW(w->c->ir, plan_buffer, a->buffer);
    if (a->slice == NONE)
        return true;
    return a->slice == w->instr->part && b->kind != buffer_kind_param && holds_rows(w, i, 0, b->row_bytes);
}

static bool arg_fits_kind(const struct walk *w, uint32_t i, enum arg_kind kind)
{
    const struct plan_arg *a = arg_at(w, i);
    const struct plan_buffer *b = ROW(w->c->ir, plan_buffer, a->buffer);
    const struct usage *u = usage_at(w, i);
    bool sliced = a->slice != NONE;
    if (a->access != access_read && b->kind != buffer_kind_arena && b->kind != buffer_kind_output)
        return false;
    if (!arg_fits_slice(w, i))
        return false;
    switch (kind) {
    case ARG_ANY:
        return u->control == CONTROL_NONE;
    case ARG_IN:
        return b->kind != buffer_kind_param && b->row_bytes > 0;
    case ARG_VECTOR:
        return b->kind == buffer_kind_param && ROW(w->c->ir, plan_param, b->param)->vector;
    case ARG_OUT:
        return b->kind == buffer_kind_output || b->kind == buffer_kind_arena;
    case ARG_TABLE:
        return b->kind == buffer_kind_arena && u->control != CONTROL_NONE && !u->plain && !sliced;
    case ARG_BINS:
    case ARG_PAIRS:
    case ARG_ROWS:
    case ARG_SUMS:
        return b->kind == buffer_kind_arena && !u->plain && !sliced && b->dtype == dtype_none;
    case ARG_ARENA:
    case ARG_SLOTS:
        return b->kind == buffer_kind_arena && !sliced && u->control == CONTROL_NONE;
    case ARG_NONE:
        return true;
    }
    return false;
}

/// Elements of a vector parameter.
static int64_t param_cols(const struct walk *w, uint32_t i)
{
    return ROW(w->c->ir, plan_param, ROW(w->c->ir, plan_buffer, arg_at(w, i)->buffer)->param)->cols;
}

/// The argument has `rows` rows of its buffer's own stride, aligned so that pointers to them can be marked.
static bool holds_stride(const struct walk *w, uint32_t i, int64_t rows)
{
    int64_t stride = stride_of(w, i);
    return stride > 0 && stride % 16 == 0 && holds_rows(w, i, rows, stride);
}

/// Sums of replies to rows that overflow are packed where relays pack theirs.
static bool check_packed(const struct walk *w, const struct plan_kernel *k, const struct plan_exchange *e,
                         const struct plan_exchange *reply)
{
    bool packs = slots_sum_formats(w->c->ir, reply) != 0;
    if (e->node && !wire_is_plain(wire_numbered(w, reply, reply->handed), (uint32_t)k->n[2]))
        return instr_fail(w, "adds up replies of another type");
    return (moe_bin_has_packed(w->instr->args.count, e->wave) == packs &&
            (!packs || extent_bytes(w, arg_at(w, BIN_PACKED)->buffer) >= slots_packed_bytes(w->c->ir, reply))) ||
           instr_fail(w, "packs what no relay would, or has no room to");
}

static bool check_bin(const struct walk *w, const struct plan_kernel *k)
{
    const struct ir *ir = w->c->ir;
    const struct plan_info *info = w->c->info;
    const struct plan_exchange *e = ROW(ir, plan_exchange, w->instr->exchange), *reply = answer_of(w, w->instr->exchange);
    int64_t bound = ROW(ir, plan_part, w->instr->part)->bound;
    uint32_t number = NONE;
    const struct plan_exchange *pool = pool_of(w, w->instr->exchange, &number);
    if (e->pool || e->part != w->instr->part || k->n[1] != info->choices)
        return instr_fail(w, "does not fit its exchange");
    if (bound * info->choices > MOE_MAX_PAIRS)
        return instr_fail(w, "more pairs than can be numbered");
    if (!holds_rows(w, BIN_IDS, bound, info->choices * 4) || !holds_rows(w, BIN_WEIGHTS, bound, info->choices * 4) ||
        !holds_rows(w, BIN_X, bound, k->n[0] * k->n[3]) ||
        ROW(ir, plan_buffer, arg_at(w, BIN_X)->buffer)->row_bytes != k->n[0] * k->n[3])
        return instr_fail(w, "routes or x are too small");
    int64_t bins = slots_bins_bytes(ir, e);
    if (extent_bytes(w, arg_at(w, BIN_BINS)->buffer) < bins ||
        (e->wave > 0 && extent_bytes(w, arg_at(w, w->instr->args.count - 1)->buffer) < bins))
        return instr_fail(w, "its control buffer is too small");
    if (e->wave > 0 && arg_at(w, w->instr->args.count - 1)->buffer == arg_at(w, BIN_BINS)->buffer)
        return instr_fail(w, "overwrites the wave before");
    if (arg_at(w, BIN_SEND)->buffer != e->send || arg_at(w, BIN_REPLY)->buffer != reply->recv ||
        !holds_stride(w, BIN_OWN, bound * slots_token_rows(ir, w->program->rank)) || !dtype_computes((uint32_t)k->n[2]))
        return instr_fail(w, "its slots are not those of its exchange");
    if (!pool)
        return !moe_bin_has_spill(w->instr->args.count, e->wave) || instr_fail(w, "a spill without a pool");
    const struct plan_exchange *late = answer_of(w, number);
    if (!moe_bin_has_spill(w->instr->args.count, e->wave) || arg_at(w, BIN_SPILL)->buffer != late->recv ||
        !spills_alike(w->c, reply, late))
        return instr_fail(w, "its spill is not the pool combine's");
    if (moe_bin_has_sums(w->instr->args.count, e->wave) != (e->node > 0) ||
        (e->node && extent_bytes(w, arg_at(w, BIN_SUMS)->buffer) < slots_spill_sums_bytes(ir, e)))
        return instr_fail(w, "sums what no relay would, or has no room to");
    return check_packed(w, k, e, reply);
}

/// Of all choices, or of those that are next.
static bool check_limit(const struct walk *w, const struct plan_kernel *k)
{
    const struct plan_part *part = ROW(w->c->ir, plan_part, w->instr->part);
    const struct plan_info *info = w->c->info;
    if (k->n[0] != info->experts || k->n[1] != info->choices || k->n[3] < 0 || k->n[3] >= k->n[4] ||
        k->n[4] > k->n[1] || part->within != NONE)
        return instr_fail(w, "limits something else than choices of a part");
    return (holds_rows(w, LIMIT_IDS, part->bound, info->choices * 4) &&
            holds_rows(w, LIMIT_WEIGHTS, part->bound, info->choices * 4) && holds_rows(w, LIMIT_TAKEN, info->experts, 4)) ||
           instr_fail(w, "routes or counts are too small");
}

static bool check_fold(const struct walk *w)
{
    const struct ir *ir = w->c->ir;
    const struct plan_exchange *reply = ROW(ir, plan_exchange, w->instr->exchange), *e = slots_dispatch(ir, reply);
    if (!e->node || w->instr->part != (slots_is_chunk(reply) ? reply->piece : reply->part))
        return instr_fail(w, "does not fit its exchange");
    if (arg_at(w, FOLD_RELAYED)->buffer != e->relay || arg_at(w, FOLD_REPLIES)->buffer != reply->relay ||
        arg_at(w, FOLD_SUMS)->buffer != reply->sums)
        return instr_fail(w, "its slots are not those of its exchange");
    uint32_t at = w->instr->args.count;
    for (uint32_t earlier = e->earlier; earlier != NONE; earlier = ROW(ir, plan_exchange, earlier)->earlier)
        if (arg_at(w, --at)->buffer != ROW(ir, plan_exchange, earlier)->relay)
            return instr_fail(w, "its slots are not those of the earlier waves");
    return extent_bytes(w, arg_at(w, FOLD_CONTROL)->buffer) >=
               slots_fold_bytes(ir, reply, w->program->rank, w->c->info->ranks) ||
           instr_fail(w, "its control buffer is too small");
}

static bool check_bin_round(const struct walk *w, const struct plan_kernel *k)
{
    const struct ir *ir = w->c->ir;
    const struct plan_info *info = w->c->info;
    const struct plan_exchange *e = ROW(ir, plan_exchange, w->instr->exchange);
    int64_t bound = ROW(ir, plan_part, w->instr->part)->bound;
    if (!e->pool || e->part != w->instr->part || k->n[1] != info->choices || w->rounds != w->instr->exchange)
        return instr_fail(w, "stands outside the rounds of its pool");
    if (!holds_rows(w, ROUND_IDS, bound, info->choices * 4) ||
        !holds_rows(w, ROUND_WEIGHTS, bound, info->choices * 4) || !holds_rows(w, ROUND_X, bound, k->n[0] * k->n[3]) ||
        ROW(ir, plan_buffer, arg_at(w, ROUND_X)->buffer)->row_bytes != k->n[0] * k->n[3])
        return instr_fail(w, "routes or x are too small");
    if (extent_bytes(w, arg_at(w, ROUND_BINS)->buffer) < slots_bins_bytes(ir, e) ||
        extent_bytes(w, arg_at(w, ROUND_CONTROL)->buffer) <
            moe_rows_bytes(slots_round_rows(ir, e, w->program->rank, info->ranks)))
        return instr_fail(w, "a control buffer is too small");
    return arg_at(w, ROUND_SEND)->buffer == e->send || instr_fail(w, "its slots are not those of its exchange");
}

static bool check_fan_out(const struct walk *w, const struct plan_kernel *k)
{
    const struct ir *ir = w->c->ir;
    const struct plan_info *info = w->c->info;
    const struct plan_exchange *e = ROW(ir, plan_exchange, w->instr->exchange), *reply = answer_of(w, w->instr->exchange);
    uint32_t me = w->program->rank;
    uint32_t part = w->instr->part;
    int64_t bound = ROW(ir, plan_part, e->part)->bound, rows = slots_fan_rows(ir, e, part, me, info->ranks),
            pairs = slots_fan_pairs(ir, e, part, me, info->ranks), owned = slots_wave_experts(ir, e, me);
    if ((e->runs.count ? !in_rows(e->runs, part) || arg_at(w, FAN_X)->slice != part : e->part != part) || k->n[1] != info->choices || (e->pool && w->rounds != w->instr->exchange))
        return instr_fail(w, "does not fit its exchange");
    if (extent_bytes(w, arg_at(w, FAN_BINS)->buffer) < slots_bins_bytes(ir, e) ||
        extent_bytes(w, arg_at(w, FAN_PAIRS)->buffer) < moe_pairs_bytes(owned, rows, pairs))
        return instr_fail(w, "a control buffer is too small");
    if (rows > MOE_MAX_PAIRS || pairs > MOE_MAX_PAIRS)
        return instr_fail(w, "more pairs than can be numbered");
    bool staged = moe_fan_has_stage(w->instr->args.count, wave_arguments(w, k));
    for (uint32_t i = 0; i < reply->wires.count; i++)
        if (!staged && slots_answer_formats(ir, reply) >> i & 1 && !wire_is_plain(wire_numbered(w, reply, i), (uint32_t)k->n[3]))
            return instr_fail(w, "sums of replies in another format have no staging rows");
    if (!k->n[2] && !e->pool && e->wires.count != 1)
        return instr_fail(w, "own rows share a table with several formats");
    if (arg_at(w, FAN_ARRIVED)->buffer != e->recv || arg_at(w, FAN_REPLY)->buffer != reply->send)
        return instr_fail(w, "its slots are not those of its exchange");
    uint32_t at = w->instr->args.count;
    for (uint32_t earlier = e->earlier; earlier != NONE; earlier = ROW(ir, plan_exchange, earlier)->earlier)
        if (arg_at(w, --at)->buffer != ROW(ir, plan_exchange, earlier)->recv)
            return instr_fail(w, "its slots are not those of the earlier waves");
    if (!holds_rows(w, FAN_A, moe_a_rows(k->n[4] != 0, rows, pairs), k->n[0]) || !holds_stride(w, FAN_OWN, bound * slots_token_rows(ir, me)) ||
        (staged && !holds_stride(w, FAN_STAGE, rows)) || !holds_rows(w, FAN_X, bound, stride_of(w, FAN_X)))
        return instr_fail(w, "A or the own rows are too small");
    return true;
}

/// A row of `copy_rows` on one side: in blocks where the format has them; the result coded, to be multiplied.
static int64_t side_bytes(const int64_t *n, int64_t dtype, bool coded)
{
    bool blocks = dtype == dtype_fp8_e4m3;
    if (coded)
        return moe_coded_row_bytes(n[0], dtype_bytes((uint32_t)n[7]), n[3]);
    return moe_wire_bytes((uint32_t)dtype, n[0], blocks ? n[3] : 0, (uint32_t)n[4]);
}

static bool check_copy_rows(const struct usage *u, const int64_t *n)
{
    uint32_t tables = u->control == CONTROL_PAIRS  ? TABLES_END
                      : u->control == CONTROL_SUMS ? TABLE_OWN
                                                   : TABLES_PACK_END;
    return (u->control != CONTROL_SUMS || n[5] >= TABLES_REPLY) && // the first has no sources
           in_range(n[0], 0, MOE_MAX_WIDTH) && in_range(n[1], 0, dtype_words_count - 1) &&
           in_range(n[2], 0, dtype_words_count - 1) && in_range(n[3], 0, MOE_MAX_WIDTH) &&
           in_range(n[4], 0, scale_type_words_count - 1) && in_range(n[5], 0, tables - 1) && in_range(n[7], 0, dtype_words_count - 1) &&
           side_bytes(n, n[1], false) <= u->src_bytes[n[5]] && side_bytes(n, n[2], n[7] != 0) <= u->dst_bytes[n[5]];
}

/// A reply in any of the combine's formats lies whole in its record, and the kernel knows the mark of its address.
static bool check_merge(const struct walk *w, const struct usage *u, const int64_t *n)
{
    if (!in_range(n[0], 0, MOE_MAX_WIDTH) || !in_range(n[4], 0, MOE_MAX_WIRES) || u->mixed ||
        (u->y_dtype && n[1] != u->y_dtype) || dtype_bytes((uint32_t)n[1]) * n[0] > u->row_dst_bytes)
        return false;
    for (uint32_t i = 0; i < MOE_MAX_WIRES; i++) {
        uint32_t dtype = (uint32_t)(u->reply_code[i] & 0xff), scale = (uint32_t)(u->reply_code[i] >> 8 & 0xff);
        if (u->reply_code[i] && (i >= n[4] || n[5 + i] != u->reply_code[i] ||
                                 moe_wire_bytes(dtype, n[0], n[5 + i] >> 16, scale) > u->reply_bytes[i]))
            return false;
    }
    int64_t bound = ROW(w->c->ir, plan_part, w->instr->part)->bound;
    return holds_rows(w, MERGE_Y, bound, dtype_bytes((uint32_t)n[2]) * n[0]) &&
           (!n[3] || holds_rows(w, MERGE_SUM, bound, 4 * n[0]));
}

static bool check_route(const struct walk *w, const int64_t *n)
{
    int64_t bound = ROW(w->c->ir, plan_part, w->instr->part)->bound, k4 = (int64_t)w->c->info->choices * 4;
    uint32_t biases = (uint32_t)(n[9] & 1) + (uint32_t)(n[9] >> 1 & 1);
    const struct plan_buffer *weights = ROW(w->c->ir, plan_buffer, arg_at(w, ROUTE_W)->buffer);
    if (weights->kind == buffer_kind_param) {
        const struct plan_param *p = ROW(w->c->ir, plan_param, weights->param);
        if (p->rows != n[1] || p->cols != n[0] || p->per_expert || p->shared)
            return false;
    }
    if (n[2] != w->c->info->choices || n[1] != w->c->info->experts || !holds_rows(w, ROUTE_X, bound, dtype_bytes((uint32_t)n[5]) * n[0]) ||
        !holds_rows(w, ROUTE_IDS, bound, k4) || !holds_rows(w, ROUTE_WEIGHTS, bound, k4))
        return false;
    if (!in_range(n[9], 0, ROUTE_HAS_BIAS | ROUTE_HAS_LOGIT_BIAS) || w->instr->args.count < ROUTE_ARGS + biases)
        return false;
    for (uint32_t i = 0; i < biases; i++)
        if (param_cols(w, ROUTE_ARGS + i) != n[1])
            return false;
    return true;
}

/// Weights that generated code walks by units: as many panels as units, as large as its constants, and a block for every
/// expert that its pairs can name. `stored`, of quantised ones: dtype, columns and scales of a block.
static bool check_matrix(const struct walk *w, const struct plan_kernel *k, const int64_t *stored, uint32_t weights,
                         int64_t rows, int64_t cols, int64_t dtype)
{
    const struct plan_buffer *b = ROW(w->c->ir, plan_buffer, arg_at(w, weights)->buffer);
    const struct usage *u = usage_at(w, 0);
    if (b->kind != buffer_kind_param)
        return true;
    const struct plan_param *p = ROW(w->c->ir, plan_param, b->param);
    bool in_panels = stored || p->layout == layout_panels; // biases in rows are read where they are needed
    int64_t block = k->role == kernel_role_mlp_up ? k->n[11] >> 16 : 0;
    if ((in_panels && k->unit_count != plan_up_units(p, block)) || p->rows != rows || p->cols != cols)
        return instr_fail(w, "its weights are of another size than its kernel");
    bool same = p->dtype == dtype;
    if (stored && stored[0])
        same = p->dtype == stored[0] && p->block_cols == stored[1] && p->scales == stored[2] && p->operand == dtype;
    if (!same)
        return instr_fail(w, "its weights are stored in another way than its kernel reads them");
    int64_t expanded = p->split ? 0 : p->cols * p->panel * 4; // a panel's copy in f32; dot products take codes as they are
    if (stored && stored[0] && w->c->info->target != target_cuda && k->scratch_bytes < expanded)
        return instr_fail(w, "its kernel has no room to expand its weights");
    if ((u->routed && !p->per_expert) || (u->shared && (p->per_expert || u->shared > most(p->shared, 1))))
        return instr_fail(w, "its weights have no block for each of its experts");
    return true;
}

/// The weights, and behind the `listed` arguments the biases: weights of one column, in panels of the same columns.
static bool check_weights(const struct walk *w, const struct plan_kernel *k, uint32_t weights, uint32_t listed,
                          int64_t rows, int64_t cols, int64_t dtype)
{
    if (!check_matrix(w, k, k->n + 8, weights, rows, cols, dtype))
        return false;
    if (!(k->n[7] & MLP_HAS_BIAS))
        return true;
    if (w->instr->args.count <= listed)
        return instr_fail(w, "lacks its biases");
    const struct plan_buffer *b = ROW(w->c->ir, plan_buffer, arg_at(w, listed)->buffer);
    uint32_t layout = w->c->info->target == target_cuda ? layout_rows : layout_panels;
    if (b->kind != buffer_kind_param || ROW(w->c->ir, plan_param, b->param)->layout != layout ||
        ROW(w->c->ir, plan_param, b->param)->halves != (k->role == kernel_role_mlp_up && !(k->n[7] & MLP_PLAIN)))
        return instr_fail(w, "its biases are not packed like its weights");
    return check_matrix(w, k, NULL, listed, rows, 1, dtype_f32);
}

/// Of a row operator: its rows, and vectors as wide as they.
static bool check_row_operator(const struct walk *w, const struct plan_kernel *k)
{
    const struct role_spec *spec = &role_specs[k->role];
    int64_t bound = ROW(w->c->ir, plan_part, w->instr->part)->bound, width = k->n[0];
    bool good = true;
    for (uint32_t i = 0, values = 0; i < spec->most && good; i++)
        good = spec->args[i] == ARG_VECTOR ? param_cols(w, i) == width
                                           : holds_rows(w, i, bound, dtype_bytes((uint32_t)k->n[++values]) * width);
    return good;
}

/// A chunk of what a merge needs, of the rows that are packed, or of the sums of replies to rows that overflow: bin's controls
/// begin with heads of those.
static bool check_chunk(const struct walk *w, const struct plan_kernel *k)
{
    const struct usage *u = usage_at(w, 0);
    bool copies = k->role == kernel_role_copy_rows;
    if (w->instr->exchange == NONE || (!copies && k->role != kernel_role_sum_rows))
        return true;
    if (ROW(w->c->ir, plan_exchange, w->instr->exchange)->kind == exchange_kind_dispatch)
        return copies && u->control == CONTROL_BINS;
    return u->control == CONTROL_SUMS && !u->folded;
}

static bool check_generated(const struct walk *w, const struct plan_kernel *k)
{
    const int64_t *n = k->n;
    const struct usage *u = usage_at(w, 0);
    bool good = true;
    if (!check_chunk(w, k))
        return instr_fail(w, "names a chunk of control data that is whole");
    switch (k->role) {
    case kernel_role_route:
        good = check_route(w, n);
        break;
    case kernel_role_copy_rows: // before any built-in writes it, the table is empty
        good = check_copy_rows(u, n);
        break;
    case kernel_role_sum_rows:
        good = dtype_bytes((uint32_t)n[1]) * n[0] <= least(u->src_bytes[0], u->dst_bytes[0]);
        break;
    case kernel_role_mlp_up:
        if (!check_weights(w, k, UP_W, UP_ARGS, n[7] & MLP_PLAIN ? n[1] : 2 * n[1], n[0], n[3]))
            return false;
        if (n[7] & MLP_BY_ROW ? u->by_pair : u->by_row)
            return instr_fail(w, "its rows of A are not those that its control tells of");
        good = holds_rows(w, UP_A, moe_a_rows((n[7] & MLP_BY_ROW) != 0, u->rows, u->pairs), n[4]) &&
               holds_rows(w, UP_HIDDEN, u->pairs, n[5]);
        break;
    case kernel_role_mlp_down:
        if (!check_weights(w, k, DOWN_W, DOWN_ARGS, n[1], n[0], n[2]))
            return false;
        good = holds_rows(w, DOWN_HIDDEN, u->pairs, n[4]) && holds_rows(w, DOWN_ACC, u->rows, n[5]) &&
               dtype_bytes((uint32_t)n[3]) * n[1] <= u->row_dst_bytes;
        break;
    case kernel_role_merge:
        good = check_merge(w, u, n);
        break;
    default:
        good = check_row_operator(w, k);
        break;
    }
    return good || instr_fail(w, "a buffer is too small for its kernel");
}

bool check_launch(const struct walk *w)
{
    const struct plan_kernel *k = ROW(w->c->ir, plan_kernel, w->instr->kernel);
    for (uint32_t i = 0; i < w->instr->args.count; i++)
        if (!arg_fits_kind(w, i, argument_kind(w, k, i))) {
            char what[64];
            snprintf(what, sizeof what, "argument %u is of the wrong kind", i);
            return instr_fail(w, what);
        }
    int64_t bound = ROW(w->c->ir, plan_part, w->instr->part)->bound;
    switch (k->role) {
    case kernel_role_bin:
        return check_bin(w, k);
    case kernel_role_bin_round:
        return check_bin_round(w, k);
    case kernel_role_fan_out:
        return check_fan_out(w, k);
    case kernel_role_fold:
        return check_fold(w);
    case kernel_role_limit:
        return check_limit(w, k);
    case kernel_role_dense:
        if (extent_bytes(w, arg_at(w, DENSE_PAIRS)->buffer) < moe_pairs_bytes(k->n[3], bound, bound * k->n[3]) ||
            !holds_rows(w, DENSE_A, moe_a_rows(k->n[4] != 0, bound, bound * k->n[3]), k->n[0]) || !holds_rows(w, DENSE_X, bound, k->n[1]) ||
            !holds_rows(w, DENSE_Y, bound, k->n[2]))
            return instr_fail(w, "a buffer is too small");
        return bound * k->n[3] <= MOE_MAX_PAIRS || instr_fail(w, "more pairs than can be numbered");
    default:
        return check_generated(w, k);
    }
}

/// A host function reads rows of values and writes rows of one; it is known by its stage's name.
bool check_host(const struct walk *w)
{
    uint32_t count = w->instr->args.count;
    if (count < 2 || w->instr->part == NONE || w->rounds != NONE || !*ir_text(w->c->ir, w->instr->stage))
        return instr_fail(w, "gives a host function no rows");
    int64_t bound = ROW(w->c->ir, plan_part, w->instr->part)->bound;
    for (uint32_t i = 0; i < count; i++) {
        const struct plan_arg *a = arg_at(w, i);
        const struct plan_buffer *b = ROW(w->c->ir, plan_buffer, a->buffer);
        bool last = i + 1 == count;
        if (a->access != (last ? access_write : access_read) || !arg_fits_kind(w, i, last ? ARG_OUT : ARG_IN) ||
            usage_at(w, i)->control != CONTROL_NONE || b->row_bytes <= 0 || !holds_rows(w, i, bound, b->row_bytes))
            return instr_fail(w, "gives a host function rows that are not there");
    }
    return true;
}

bool check_copy(const struct walk *w)
{
    if (w->instr->args.count != 2 || w->instr->part == NONE || !arg_fits_kind(w, 0, ARG_OUT) ||
        !arg_fits_kind(w, 1, ARG_ANY) || usage_at(w, 0)->control != CONTROL_NONE)
        return instr_fail(w, "does not copy one buffer to another");
    const struct plan_arg *dst = arg_at(w, 0), *src = arg_at(w, 1);
    const struct plan_buffer *d = ROW(w->c->ir, plan_buffer, dst->buffer), *s = ROW(w->c->ir, plan_buffer, src->buffer);
    int64_t bound = ROW(w->c->ir, plan_part, w->instr->part)->bound;
    if (s->kind == buffer_kind_param || d->row_bytes != s->row_bytes || d->row_bytes <= 0 ||
        !holds_rows(w, 0, bound, d->row_bytes) || !holds_rows(w, 1, bound, s->row_bytes))
        return instr_fail(w, "copies rows between buffers that do not hold them");
    return true;
}
