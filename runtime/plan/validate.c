// What a plan's tables must satisfy before the runtime uses them: after this, no number in them can lead the executor
// or a built-in kernel outside its buffers. Limits (limits.h) come first, so that the sums and products that follow
// cannot overflow. This file: the model, the variants, their parts and exchanges; validate_program.c: what ranks run.
#include "validate.h"

#include <stdarg.h>
#include <string.h>

#include "slots.h"

bool check_fail(const struct check *c, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(c->error, c->size, format, list);
    va_end(list);
    return false;
}

/// Axes make up the ranks; links are finite.
static bool validate_axes(const struct check *c)
{
    struct rows axes = c->info->axes;
    int64_t stride = 1;
    if (!in_range(axes.count, 1, MOE_MAX_AXES))
        return check_fail(c, "plan_info: %u axes", axes.count);
    for (uint32_t i = axes.count; i-- > 0;) {
        const struct plan_axis *axis = ROW(c->ir, plan_axis, axes.first + i);
        if (!in_range(axis->size, 1, MOE_MAX_RANKS) || axis->stride != stride || stride * axis->size > MOE_MAX_RANKS)
            return check_fail(c, "plan_axis %u: size %lld, stride %lld", axes.first + i, (long long)axis->size,
                              (long long)axis->stride);
        if (!(axis->bandwidth >= 0 && axis->bandwidth < 1e30) || !(axis->latency >= 0 && axis->latency < 1e30))
            return check_fail(c, "plan_axis %u: bandwidth %g, latency %g", axes.first + i, axis->bandwidth,
                              axis->latency);
        stride *= axis->size;
    }
    return stride == c->info->ranks ||
           check_fail(c, "plan_info: axes of %lld ranks, not %u", (long long)stride, c->info->ranks);
}

static bool validate_info(struct check *c)
{
    if (COUNT(c->ir, plan_info) != 1)
        return check_fail(c, "plan_info: %u rows, not one", COUNT(c->ir, plan_info));
    c->info = ROW(c->ir, plan_info, 0);
    const struct plan_info *i = c->info;
    if (!in_range(i->ranks, 1, MOE_MAX_RANKS))
        return check_fail(c, "plan_info: %u ranks", i->ranks);
    if (!in_range(i->experts, 1, MOE_MAX_EXPERTS))
        return check_fail(c, "plan_info: %u experts", i->experts);
    if (!in_range(i->choices, 1, MOE_MAX_CHOICES) || i->choices > i->experts)
        return check_fail(c, "plan_info: %u choices of %u experts", i->choices, i->experts);
    if (!in_range(i->width, 1, MOE_MAX_WIDTH))
        return check_fail(c, "plan_info: width %lld", (long long)i->width);
    if (!in_range(i->tokens_bound, 1, MOE_MAX_TOKENS))
        return check_fail(c, "plan_info: tokens_bound %lld", (long long)i->tokens_bound);
    if (!in_range(i->layers, 1, MOE_MAX_LAYERS) || i->first_layer > UINT32_MAX - i->layers)
        return check_fail(c, "plan_info: %u layers from %u", i->layers, i->first_layer);
    if (!validate_axes(c))
        return false;
    if (!dtype_computes(i->x_dtype) || !dtype_computes(i->y_dtype))
        return check_fail(c, "plan_info: x and y are not f32, f16 or bf16");
    return true;
}


/// The choices for whole steps, then, if there are any, those for a layer alone: each run covers 0..bound.
static bool validate_choices(const struct check *c)
{
    int64_t next = 0;
    for (uint32_t i = 0; i < COUNT(c->ir, plan_choice); i++) {
        const struct plan_choice *choice = ROW(c->ir, plan_choice, i);
        if (choice->single > 1 || (choice->single && !i) || (i && choice->single < choice[-1].single))
            return check_fail(c, "plan_choice %u: choices for one layer follow those for whole steps", i);
        if (i && choice->single != choice[-1].single && next == c->info->tokens_bound + 1)
            next = 0;
        if (choice->first_tokens != next || choice->last_tokens < next || choice->last_tokens > c->info->tokens_bound)
            return check_fail(c, "plan_choice %u: does not continue at %lld tokens", i, (long long)next);
        if (choice->variant == NONE || ROW(c->ir, plan_variant, choice->variant)->bound < choice->last_tokens)
            return check_fail(c, "plan_choice %u: its variant is too small", i);
        next = choice->last_tokens + 1;
    }
    return next == c->info->tokens_bound + 1 ||
           check_fail(c, "plan_choice: covers %lld tokens of %lld", (long long)next, (long long)c->info->tokens_bound);
}

/// A part's bound holds the most tokens that floor(T end / total) - floor(T begin / total) yields for T up to the bound.
static bool validate_part(const struct check *c, const struct plan_variant *v, uint32_t number)
{
    const struct plan_part *p = ROW(c->ir, plan_part, number);
    if (!in_range(p->total, 1, MOE_MAX_SHARES) || !in_range(p->end, 1, p->total) || !in_range(p->begin, 0, p->end - 1))
        return check_fail(c, "plan_part %u: %lld..%lld of %lld", number, (long long)p->begin, (long long)p->end,
                          (long long)p->total);
    int64_t most = (v->bound * (p->end - p->begin) + p->total - 1) / p->total;
    if (!in_range(p->bound, most, MOE_MAX_TOKENS))
        return check_fail(c, "plan_part %u: bound %lld for up to %lld tokens", number, (long long)p->bound,
                          (long long)most);
    if (p->within == NONE)
        return true;
    if (!in_rows(v->parts, p->within))
        return check_fail(c, "plan_part %u: lies within another variant's part", number);
    const struct plan_part *whole = ROW(c->ir, plan_part, p->within);
    if (whole->within != NONE || !in_range(whole->total, 1, MOE_MAX_SHARES) ||
        p->begin * whole->total < whole->begin * p->total || p->end * whole->total > whole->end * p->total)
        return check_fail(c, "plan_part %u: does not lie within part %u", number, p->within);
    return true;
}

static bool validate_codes(const struct check *c, uint32_t number, const struct plan_param *p)
{
    bool halved = p->interleaved || p->swapped;
    if (halved && (!p->halves || p->rows % 2 || p->sources.count != 1))
        return check_fail(c, "plan_param %u: no halves in one tensor", number);
    if (!dtype_quantised(p->dtype)) {
        if (p->scales || p->split || p->block_rows || p->block_cols)
            return check_fail(c, "plan_param %u: scales without codes", number);
        return true;
    }
    bool in_rows = p->layout == layout_rows && c->info->target == target_cuda;
    if ((p->layout != layout_panels && !in_rows) || p->vector || p->declared != p->dtype || !dtype_computes(p->operand) ||
        !in_range(p->block_rows, 1, MOE_MAX_WIDTH) || !in_range(p->block_cols, 1, MOE_MAX_WIDTH) ||
        !in_range(p->scale_run, 1, MOE_MAX_WIDTH))
        return check_fail(c, "plan_param %u: no panels of codes with scales", number);
    bool fp4 = p->dtype == dtype_mxfp4;
    int64_t group = in_rows ? 1 : (p->split ? 2 : 1) * (fp4 ? 2 : 1), vector = p->panel / 2;
    if (p->group != group || (in_rows && p->split) || p->cols % 8 || p->block_cols % 8 || p->panel % 2 || (p->split && vector != 16))
        return check_fail(c, "plan_param %u: codes in an unknown order", number);
    int64_t each = in_rows ? plan_row_scales(p) : p->panel; // a scale a row
    if (fp4 ? p->scales != each || p->block_rows != 1 || p->block_cols != 32 || p->cols % 32 || p->transposed
            : p->scales != each && (in_rows || p->scales != 2 || p->scale_run % vector))
        return check_fail(c, "plan_param %u: %lld scales of a panel", number, (long long)p->scales);
    return true;
}

static bool validate_gpu_code(const struct check *c, uint32_t number)
{
    const struct plan_gpu_code *g = ROW(c->ir, plan_gpu_code, number);
    uint64_t offset = (uint64_t)g->offset, bytes = (uint64_t)g->bytes;
    if (c->info->target != target_cuda || g->kernel == NONE || ROW(c->ir, plan_kernel, g->kernel)->builtin)
        return check_fail(c, "plan_gpu_code %u: for no kernel of a GPU", number);
    if (g->offset < 0 || g->bytes < 1 || offset % 64 || offset > c->code_bytes || bytes > c->code_bytes - offset)
        return check_fail(c, "plan_gpu_code %u: %lld bytes at %lld of %zu", number, (long long)g->bytes,
                          (long long)g->offset, c->code_bytes);
    if (!in_range(g->threads, 1, 1024) || !in_range(g->shared_bytes, 0, 1 << 20))
        return check_fail(c, "plan_gpu_code %u: blocks of %u threads, %lld bytes", number, g->threads,
                          (long long)g->shared_bytes);
    if (g->maps.count > MOE_MAX_MAPS)
        return check_fail(c, "plan_gpu_code %u: %u tensor maps", number, g->maps.count);
    for (uint32_t m = 0; m < g->maps.count; m++) {
        const struct plan_gpu_map *map = ROW(c->ir, plan_gpu_map, g->maps.first + m);
        bool sizes = in_range(map->rank, 1, 4) && map->argument < MOE_MAX_ARGS;
        for (uint32_t i = 0; i < map->rank && sizes; i++)
            sizes = in_range(map->extents[i], 0, MOE_MAX_BYTES) && in_range(map->strides[i], 0, MOE_MAX_BYTES) &&
                    in_range(map->box[i], 1, 256);
        if (!sizes)
            return check_fail(c, "plan_gpu_code %u: no tensor map", number);
    }
    return true;
}

static bool validate_param(const struct check *c, uint32_t number)
{
    const struct plan_param *p = ROW(c->ir, plan_param, number);
    int64_t rows = 0;
    if (!in_range(p->bytes, 0, MOE_MAX_BYTES / MOE_MAX_EXPERTS) || p->bytes % 64)
        return check_fail(c, "plan_param %u: %lld bytes", number, (long long)p->bytes);
    if (!in_range(p->rows, 1, MOE_MAX_WIDTH) || !in_range(p->cols, 1, MOE_MAX_WIDTH) || p->panel < 0 || p->group < 0)
        return check_fail(c, "plan_param %u: %lld rows, %lld columns", number, (long long)p->rows, (long long)p->cols);
    if (p->layout == layout_panels && (!in_range(p->panel, 1, MOE_MAX_WIDTH) || !in_range(p->group, 1, 64)))
        return check_fail(c, "plan_param %u: panel %lld, group %lld", number, (long long)p->panel, (long long)p->group);
    if (!validate_codes(c, number, p))
        return false;
    for (uint32_t s = 0; s < p->sources.count; s++) {
        int64_t more = ROW(c->ir, plan_source, p->sources.first + s)->rows;
        if (!in_range(more, 0, MOE_MAX_WIDTH) || (rows += more) > p->rows)
            return check_fail(c, "plan_param %u: its sources have more rows than it", number);
    }
    int64_t packed = plan_packed_bytes(p);
    if (p->shared > MOE_MAX_EXPERTS || (p->shared && (p->per_expert || p->vector)))
        return check_fail(c, "plan_param %u: %u shared experts", number, p->shared);
    if (p->vector && (p->per_expert || p->rows != 1 || p->dtype != dtype_f32 || p->layout != layout_rows))
        return check_fail(c, "plan_param %u: no vector", number);
    if (packed > p->bytes)
        return check_fail(c, "plan_param %u: %lld bytes do not hold it", number, (long long)p->bytes);
    return true;
}

static bool validate_buffer(const struct check *c, uint32_t number)
{
    const struct plan_buffer *b = ROW(c->ir, plan_buffer, number);
    const struct plan_info *i = c->info;
    if (!in_range(b->row_bytes, 0, MOE_MAX_ROW_BYTES))
        return check_fail(c, "plan_buffer %u: row_bytes %lld", number, (long long)b->row_bytes);
    if (b->kind == buffer_kind_param && (b->param == NONE || b->layer >= i->layers))
        return check_fail(c, "plan_buffer %u: names no parameter of a layer", number);
    uint32_t dtype = b->kind == buffer_kind_input ? i->x_dtype : i->y_dtype;
    if ((b->kind == buffer_kind_input || b->kind == buffer_kind_output) &&
        b->row_bytes != dtype_bytes(dtype) * i->width)
        return check_fail(c, "plan_buffer %u: rows of %lld bytes are not the caller's", number,
                          (long long)b->row_bytes);
    return true;
}

static bool arena_buffer(const struct check *c, const struct plan_variant *v, uint32_t buffer)
{
    return buffer != NONE && in_rows(v->buffers, buffer) && ROW(c->ir, plan_buffer, buffer)->kind == buffer_kind_arena;
}

static bool validate_wire(const struct check *c, uint32_t number, int64_t meta)
{
    const struct plan_wire *w = ROW(c->ir, plan_wire, number);
    bool blocks = w->dtype == dtype_fp8_e4m3;
    if (!blocks && !dtype_computes(w->dtype))
        return check_fail(c, "plan_wire %u: no rows travel as %s", number, dtype_words[w->dtype]);
    if (blocks != (w->scale != scale_type_none) || (blocks ? w->block != 64 && w->block != 128 : w->block != 0))
        return check_fail(c, "plan_wire %u: blocks of %u", number, w->block);
    if (!in_range(w->row_bytes, 16, MOE_MAX_ROW_BYTES) || w->row_bytes % 16 ||
        !in_range(w->data_bytes, 1, w->row_bytes - meta))
        return check_fail(c, "plan_wire %u: records of %lld bytes with data %lld and meta %lld", number,
                          (long long)w->row_bytes, (long long)w->data_bytes, (long long)meta);
    return true;
}

static bool validate_exchange_sizes(const struct check *c, uint32_t number)
{
    const struct plan_exchange *e = ROW(c->ir, plan_exchange, number);
    int64_t meta =
        e->kind == exchange_kind_dispatch ? (int64_t)c->info->choices * (int64_t)sizeof(struct moe_row_meta) : 0;
    if (e->chunks == 1 || e->chunks > MOE_MAX_CHUNKS || (e->chunks ? e->chunk >= e->chunks : e->chunk != 0) ||
        (e->chunks && e->pool))
        return check_fail(c, "plan_exchange %u: chunk %u of %u", number, e->chunk, e->chunks);
    if (e->piece != NONE && !e->chunks)
        return check_fail(c, "plan_exchange %u: a piece where no chunk is", number);
    if (e->answers == 1 || e->answers > MOE_MAX_CHUNKS || (e->answers && (e->pool || e->kind == exchange_kind_combine)))
        return check_fail(c, "plan_exchange %u: answered in %u chunks", number, e->answers);
    if (e->runs.count == 1 || e->runs.count > MOE_MAX_CHUNKS ||
        (e->runs.count && (e->pool || e->node || e->kind == exchange_kind_combine)))
        return check_fail(c, "plan_exchange %u: its rows are taken in %u pieces", number, e->runs.count);
    if (e->header_bytes != moe_headers_bytes(c->info->ranks, e->chunks, (int64_t)e->answers + e->runs.count))
        return check_fail(c, "plan_exchange %u: header of %lld bytes", number, (long long)e->header_bytes);
    if (e->meta_bytes != meta || !in_range(e->wires.count, 1, MOE_MAX_WIRES))
        return check_fail(c, "plan_exchange %u: %u formats, meta of %lld bytes", number, e->wires.count,
                          (long long)e->meta_bytes);
    for (uint32_t i = 0; i < e->wires.count; i++)
        if (!validate_wire(c, e->wires.first + i, meta))
            return false;
    for (uint32_t i = 0; i < MOE_MAX_AXES; i++)
        if (!in_range(e->wire_of_axis[i], 0, e->wires.count - 1))
            return check_fail(c, "plan_exchange %u: format %lld of an axis", number, (long long)e->wire_of_axis[i]);
    if (e->handed >= (e->node && e->kind == exchange_kind_combine ? e->wires.count : 1))
        return check_fail(c, "plan_exchange %u: hands relays format %u", number, e->handed);
    if (e->slots.count != c->info->ranks)
        return check_fail(c, "plan_exchange %u: %u slots for %u ranks", number, e->slots.count, c->info->ranks);
    for (uint32_t d = 0; d < c->info->ranks; d++) {
        int64_t most = ROW(c->ir, plan_part, e->part)->bound * slots_token_rows(c->ir, d);
        if (!in_range(slots_rows(c->ir, e, d), 0, e->pool || most > MOE_MAX_POOL_ROWS ? MOE_MAX_POOL_ROWS : most))
            return check_fail(c, "plan_exchange %u: %lld rows for rank %u", number, (long long)slots_rows(c->ir, e, d),
                              d);
    }
    return e->max_rounds <= MOE_MAX_ROUNDS || check_fail(c, "plan_exchange %u: %u rounds", number, e->max_rounds);
}

static bool answers_all(const struct check *c, const struct plan_exchange *dispatch,
                        const struct plan_exchange *combine)
{
    for (uint32_t d = 0; d < c->info->ranks; d++)
        if (slots_reply_rows(c->ir, dispatch, d) != slots_rows(c->ir, combine, d))
            return false;
    return true;
}

static bool same_formats(const struct check *c, const struct plan_exchange *a, const struct plan_exchange *b)
{
    bool same = a->wires.count == b->wires.count;
    for (uint32_t i = 0; same && i < a->wires.count; i++) {
        const struct plan_wire *x = ROW(c->ir, plan_wire, a->wires.first + i),
                               *y = ROW(c->ir, plan_wire, b->wires.first + i);
        same = x->dtype == y->dtype && x->block == y->block && x->scale == y->scale && x->data_bytes == y->data_bytes &&
               x->row_bytes == y->row_bytes;
    }
    return same;
}

/// Do two exchanges have the same formats over the same axes?
static bool same_wires(const struct check *c, const struct plan_exchange *a, const struct plan_exchange *b)
{
    return same_formats(c, a, b) && a->handed == b->handed && !memcmp(a->wire_of_axis, b->wire_of_axis, sizeof a->wire_of_axis);
}

bool spills_alike(const struct check *c, const struct plan_exchange *combine, const struct plan_exchange *spill)
{
    bool same = same_formats(c, combine, spill);
    for (uint32_t i = 0; same && i < c->info->axes.count; i++) {
        bool relayed = combine->node && axis_at(c->ir, i)->stride >= (int64_t)combine->node;
        same = spill->wire_of_axis[i] == (relayed ? combine->handed : combine->wire_of_axis[i]);
    }
    return same;
}

/// Waves stand in a chain that ends at the first: each link is a base dispatch of the wave before with rows alike.
static bool validate_wave(const struct check *c, const struct plan_variant *v, uint32_t number)
{
    const struct plan_exchange *e = ROW(c->ir, plan_exchange, number);
    if (!in_range(e->waves, 1, MOE_MAX_WAVES) || e->wave >= e->waves)
        return check_fail(c, "plan_exchange %u: wave %u of %u", number, e->wave, e->waves);
    if (!in_range(e->wave_total, 1, MOE_MAX_SHARES) || e->wave_begin < 0 || e->wave_begin > e->wave_end ||
        (e->wave == 0 && e->wave_begin) || (e->wave + 1 == e->waves ? e->wave_end != e->wave_total : e->wave_end > e->wave_total))
        return check_fail(c, "plan_exchange %u: wave %u is no share of the experts", number, e->wave);
    if ((e->earlier != NONE) != (e->wave > 0 && e->kind == exchange_kind_dispatch && !e->pool))
        return check_fail(c, "plan_exchange %u: an earlier wave where none can be, or none where one must", number);
    if (e->earlier == NONE)
        return true;
    if (!in_rows(v->exchanges, e->earlier))
        return check_fail(c, "plan_exchange %u: its earlier wave is not the variant's", number);
    const struct plan_exchange *before = ROW(c->ir, plan_exchange, e->earlier);
    return (before->kind == exchange_kind_dispatch && !before->pool && before->part == e->part &&
            before->waves == e->waves && before->wave + 1 == e->wave && before->wave_total == e->wave_total &&
            before->wave_end == e->wave_begin && before->slots.count == c->info->ranks &&
            before->node == e->node && !before->chunk && before->runs.first == e->runs.first &&
            before->runs.count == e->runs.count && before->answers == e->answers && same_wires(c, before, e)) ||
           check_fail(c, "plan_exchange %u: does not carry on its earlier wave", number);
}

/// Relays: whole nodes, records with marks, buffers for what passes through.
static bool validate_relays(const struct check *c, const struct plan_variant *v, uint32_t number)
{
    const struct plan_exchange *e = ROW(c->ir, plan_exchange, number);
    bool combine = e->kind == exchange_kind_combine;
    if (!e->node)
        return true;
    if (e->pool || (!combine && e->chunks) || e->node < 2 || e->node >= c->info->ranks || c->info->ranks % e->node)
        return check_fail(c, "plan_exchange %u: nodes of %u ranks", number, e->node);
    if (!arena_buffer(c, v, e->relay) || (combine && !arena_buffer(c, v, e->sums)))
        return check_fail(c, "plan_exchange %u: no buffers for what it relays", number);
    for (uint32_t i = 0; i < e->wires.count && !combine; i++) {
        const struct plan_wire *wire = ROW(c->ir, plan_wire, e->wires.first + i);
        if (wire->row_bytes - slots_entry_bytes(e) < wire->data_bytes)
            return check_fail(c, "plan_exchange %u: records without marks", number);
    }
    return !combine || !ROW(c->ir, plan_wire, e->wires.first + e->handed)->block ||
           check_fail(c, "plan_exchange %u: hands relays replies that cannot be added up", number);
}

/// A combine answers a dispatch with the same part and slots; a pool dispatch carries on a base dispatch.
static bool validate_exchange(const struct check *c, const struct plan_variant *v, uint32_t number)
{
    const struct plan_exchange *e = ROW(c->ir, plan_exchange, number);
    if (e->part == NONE || !in_rows(v->parts, e->part) || !arena_buffer(c, v, e->send) || !arena_buffer(c, v, e->recv))
        return check_fail(c, "plan_exchange %u: part or buffers are not the variant's", number);
    if (!validate_wave(c, v, number) || !validate_exchange_sizes(c, number) || !validate_relays(c, v, number))
        return false;
    bool combine = e->kind == exchange_kind_combine;
    if (!combine && !e->pool)
        return true;
    if (e->base == NONE || !in_rows(v->exchanges, e->base))
        return check_fail(c, "plan_exchange %u: its base is not the variant's", number);
    const struct plan_exchange *base = ROW(c->ir, plan_exchange, e->base);
    if (base->kind != exchange_kind_dispatch || base->chunk || base->part != e->part || base->slots.count != c->info->ranks ||
        base->wave != e->wave || base->waves != e->waves || base->wave_begin != e->wave_begin ||
        base->wave_end != e->wave_end || base->wave_total != e->wave_total)
        return check_fail(c, "plan_exchange %u: its base is no dispatch of the same part and wave", number);
    if (combine ? base->pool != e->pool || base->node != e->node : base->pool || !same_wires(c, base, e))
        return check_fail(c, "plan_exchange %u: does not fit its base", number);
    return true;
}

static bool same_slots(const struct check *c, const struct plan_exchange *a, const struct plan_exchange *b)
{
    bool same = a->slots.count == b->slots.count;
    for (uint32_t d = 0; same && d < a->slots.count; d++)
        same = slots_rows(c->ir, a, d) == slots_rows(c->ir, b, d);
    return same;
}

/// The chunks of an exchange are consecutive ones over the same buffers, each for a piece of the part; `number` is the first.
static bool validate_chunks(const struct check *c, const struct plan_variant *v, uint32_t number)
{
    const struct plan_exchange *head = ROW(c->ir, plan_exchange, number);
    for (uint32_t k = 0; k < head->chunks; k++) {
        const struct plan_exchange *e = in_rows(v->exchanges, number + k) ? ROW(c->ir, plan_exchange, number + k) : NULL;
        if (!e || e->kind != head->kind || e->pool != head->pool || e->chunks != head->chunks || e->chunk != k ||
            e->answers != head->answers || e->runs.first != head->runs.first || e->runs.count != head->runs.count || e->part != head->part || e->base != head->base || e->earlier != head->earlier ||
            e->wave != head->wave || e->send != head->send || e->recv != head->recv || e->node != head->node ||
            !same_slots(c, e, head) || !same_wires(c, e, head))
            return check_fail(c, "plan_exchange %u: is not chunk %u of its exchange", number + k, k);
        if (e->piece == NONE || !in_rows(v->parts, e->piece) || ROW(c->ir, plan_part, e->piece)->within != e->part)
            return check_fail(c, "plan_exchange %u: its chunk is no piece of its part", number + k);
    }
    return true;
}

/// The pieces in which the rows are taken are pieces of the part, one behind the other.
static bool validate_runs(const struct check *c, const struct plan_variant *v, uint32_t number)
{
    const struct plan_exchange *e = ROW(c->ir, plan_exchange, number);
    for (uint32_t k = 0; k < e->runs.count; k++) {
        uint32_t row = e->runs.first + k;
        const struct plan_part *p = in_rows(v->parts, row) ? ROW(c->ir, plan_part, row) : NULL;
        if (!p || p->within != e->part || (k && (p[-1].end * p->total != p->begin * p[-1].total)))
            return check_fail(c, "plan_exchange %u: its piece %u does not follow the one before", number, k);
    }
    return true;
}

/// As many combines as the dispatch says, which are one, in so many chunks.
static bool validate_combines(const struct check *c, const struct plan_variant *v, uint32_t dispatch, uint32_t first,
                              uint32_t combines)
{
    uint32_t answers = ROW(c->ir, plan_exchange, dispatch)->answers;
    if (combines != (answers ? answers : 1))
        return check_fail(c, "plan_exchange %u: answered by %u combines, not %u", dispatch, combines, answers ? answers : 1);
    if (ROW(c->ir, plan_exchange, first)->chunks != answers)
        return check_fail(c, "plan_exchange %u: in %u chunks, not %u", first, ROW(c->ir, plan_exchange, first)->chunks, answers);
    return validate_chunks(c, v, first);
}

/// One combine (or all its chunks) for every dispatch, at most one pool for a base dispatch: the executor finds them by `base`.
static bool validate_answers(const struct check *c, const struct plan_variant *v)
{
    for (uint32_t i = 0; i < v->exchanges.count; i++) {
        uint32_t number = v->exchanges.first + i, combines = 0, pools = 0, first = 0;
        const struct plan_exchange *e = ROW(c->ir, plan_exchange, number);
        if (e->kind == exchange_kind_combine)
            continue;
        if (e->chunk) { // the row before is the chunk before: so the first of them is there, and judges them all
            const struct plan_exchange *before = in_rows(v->exchanges, number - 1) ? e - 1 : NULL;
            if (!before || before->kind != e->kind || before->chunks != e->chunks || before->chunk + 1 != e->chunk)
                return check_fail(c, "plan_exchange %u: chunk %u without those before it", number, e->chunk);
            continue;
        }
        for (uint32_t j = 0; j < v->exchanges.count; j++) {
            const struct plan_exchange *other = ROW(c->ir, plan_exchange, v->exchanges.first + j);
            if (other->base == number && other->kind == exchange_kind_combine) {
                first = combines++ ? first : v->exchanges.first + j;
                if (!answers_all(c, e, other))
                    return check_fail(c, "plan_exchange %u: its combine has other slots than its answers need", number);
            } else if (other->base == number && other->pool)
                pools++;
        }
        if (pools > (e->pool ? 0u : 1u))
            return check_fail(c, "plan_exchange %u: carried on by %u pools", number, pools);
        if (!validate_chunks(c, v, number) || !validate_runs(c, v, number) || !validate_combines(c, v, number, first, combines))
            return false;
    }
    return true;
}

static bool validate_variant(const struct check *c, uint32_t number)
{
    const struct plan_variant *v = ROW(c->ir, plan_variant, number);
    if (!in_range(v->bound, 0, c->info->tokens_bound) || v->semaphores > MOE_MAX_SEMAPHORES)
        return check_fail(c, "plan_variant %u: bound %lld, %u semaphores", number, (long long)v->bound, v->semaphores);
    if (v->programs.count != c->info->ranks)
        return check_fail(c, "plan_variant %u: %u programs for %u ranks", number, v->programs.count, c->info->ranks);
    for (uint32_t i = 0; i < v->parts.count; i++)
        if (!validate_part(c, v, v->parts.first + i))
            return false;
    for (uint32_t i = 0; i < v->buffers.count; i++)
        if (!validate_buffer(c, v->buffers.first + i))
            return false;
    // In two passes: a base may stand behind what refers to it.
    for (uint32_t i = 0; i < v->exchanges.count; i++)
        if (!validate_exchange(c, v, v->exchanges.first + i))
            return false;
    if (!validate_answers(c, v))
        return false;
    for (uint32_t r = 0; r < v->programs.count; r++) {
        const struct plan_program *program = ROW(c->ir, plan_program, v->programs.first + r);
        if (program->rank != r)
            return check_fail(c, "plan_variant %u: program %u is rank %u's", number, r, program->rank);
        if (!validate_program(c, v, program))
            return false;
    }
    return true;
}

/// A variant for a layer alone knows no other one.
static bool validate_single(const struct check *c, const struct plan_variant *v)
{
    for (uint32_t i = v->buffers.first; i < v->buffers.first + v->buffers.count; i++)
        if (ROW(c->ir, plan_buffer, i)->kind == buffer_kind_param && ROW(c->ir, plan_buffer, i)->layer)
            return check_fail(c, "plan_buffer %u: of layer %u in a step of one", i, ROW(c->ir, plan_buffer, i)->layer);
    for (uint32_t p = v->programs.first; p < v->programs.first + v->programs.count; p++) {
        struct rows streams = ROW(c->ir, plan_program, p)->streams;
        for (uint32_t s = streams.first; s < streams.first + streams.count; s++) {
            struct rows instrs = ROW(c->ir, plan_stream, s)->instrs;
            for (uint32_t i = instrs.first; i < instrs.first + instrs.count; i++)
                if (ROW(c->ir, plan_instr, i)->layer)
                    return check_fail(c, "plan_instr %u: of layer %u in a step of one", i, ROW(c->ir, plan_instr, i)->layer);
        }
    }
    return true;
}

bool plan_validate(const struct ir *ir, size_t code_bytes, char *error, size_t size)
{
    struct check c = {.ir = ir, .code_bytes = code_bytes, .error = error, .size = size};
    if (!validate_info(&c) || !validate_owners(&c) || !validate_choices(&c) || !validate_streams(&c))
        return false;
    for (uint32_t i = 0; i < COUNT(ir, plan_param); i++)
        if (!validate_param(&c, i))
            return false;
    for (uint32_t i = 0; i < COUNT(ir, plan_kernel); i++)
        if (!validate_kernel(&c, i))
            return false;
    for (uint32_t i = 0; i < COUNT(ir, plan_gpu_code); i++)
        if (!validate_gpu_code(&c, i))
            return false;
    for (uint32_t i = 0; i < COUNT(ir, plan_variant); i++)
        if (!validate_variant(&c, i))
            return false;
    for (uint32_t i = 0; i < COUNT(ir, plan_choice); i++) {
        const struct plan_choice *choice = ROW(ir, plan_choice, i);
        if (choice->single && !validate_single(&c, ROW(ir, plan_variant, choice->variant)))
            return false;
    }
    return true;
}
