// Reads the layer: which stages belong to one routed computation, with what constants, and which buffers it needs. What
// the CPU backend has no kernels for is refused here, at the stage or option that asks for it.
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "compiler/codegen/cpu/cpu.h"
#include "compiler/lower/lower.h"

struct diag *lower_refuse(struct lowering *l, enum diag_code code, uint32_t stage, const char *option,
                          const char *format, ...)
{
    va_list list;
    char message[512];
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    l->failed = true;
    return diag_error(l->context, code, lower_place(l->context, l->program, lower_stage(l, stage), option), "%s",
                      message);
}

const struct mod_stage *lower_stage(const struct lowering *l, uint32_t stage)
{
    return ROW(l->module, mod_stage, stage);
}

const char *lower_kernel_name(const struct lowering *l, uint32_t stage)
{
    uint32_t op = lower_stage(l, stage)->op;
    return op == NONE ? "" : ir_text(l->module, ROW(l->module, mod_op, op)->kernel);
}

bool lower_is_mlp(const struct lowering *l, uint32_t stage)
{
    const char *kernel = lower_kernel_name(l, stage);
    return !strcmp(kernel, "grouped_mlp") || !strcmp(kernel, "plain_mlp");
}

struct path *path_of_stage(const struct lowering *l, uint32_t stage)
{
    for (uint32_t i = 0; i < l->path_count; i++) {
        struct path *p = &l->paths[i];
        if (p->route == stage || p->dispatch == stage || p->expert == stage || p->combine == stage)
            return p;
    }
    return NULL;
}

static uint32_t value_arg(const struct lowering *l, uint32_t stage, const char *name)
{
    const struct mod_arg *arg = stage_arg(l->module, lower_stage(l, stage), name);
    return arg ? arg->value : NONE;
}

/// The one stage of that kernel whose argument `name` is `value`; NONE: none or several.
static uint32_t reader_of(const struct lowering *l, const char *kernel, const char *name, uint32_t value)
{
    uint32_t found = NONE;
    for (uint32_t i = 0; i < l->layer->stages.count; i++) {
        uint32_t stage = l->layer->stages.first + i;
        if (strcmp(lower_kernel_name(l, stage), kernel) || value_arg(l, stage, name) != value)
            continue;
        if (found != NONE)
            return NONE;
        found = stage;
    }
    return found;
}

/// An option whose value the backend does not implement.
static void refuse_option(struct lowering *l, uint32_t stage, const char *option, bool unsupported)
{
    if (unsupported)
        lower_refuse(l, E0901, stage, option, "this value of `%s` is not built yet", option);
}

/// What a format is as a row on the wire; the checker has seen that rows can travel so.
static struct plan_wire wire_of(const struct lowering *l, uint32_t number)
{
    const struct mod_format *format = ROW(l->module, mod_format, number);
    return (struct plan_wire){.dtype = format->base,
                              .block = (uint32_t)format->block_cols,
                              .scale = format->block_cols ? format->scale : scale_type_none};
}

/// The number of a format in the set; equal formats are one.
static int64_t add_format(struct lowering *l, uint32_t stage, struct wire_set *set, const struct plan_wire *wire)
{
    for (uint32_t i = 0; i < set->count; i++)
        if (set->wires[i].dtype == wire->dtype && set->wires[i].block == wire->block &&
            set->wires[i].scale == wire->scale)
            return i;
    if (set->count == MOE_MAX_WIRES) {
        lower_refuse(l, E0901, stage, "wire", "more than %d formats of one exchange are not built yet", MOE_MAX_WIRES);
        return 0;
    }
    set->wires[set->count] = *wire;
    return set->count++;
}

/// The option's format for an axis: the one for all, the one named for it, or the rows' own type.
static uint32_t format_for(const struct lowering *l, const struct mod_arg *arg, const char *axis)
{
    if (!arg)
        return NONE;
    for (uint32_t i = 0; i < arg->axis_formats.count; i++) {
        const struct mod_axis_format *named = ROW(l->module, mod_axis_format, arg->axis_formats.first + i);
        if (!strcmp(ir_text(l->module, named->axis), axis))
            return named->format;
    }
    return arg->axis_formats.count ? NONE : arg->format;
}

static void read_wires(struct lowering *l, uint32_t stage, enum dtype dtype, struct wire_set *set)
{
    const struct mod_arg *arg = stage_arg(l->module, lower_stage(l, stage), "wire");
    struct rows axes = ROW(l->module, mod_cluster, l->pipeline->cluster)->axes;
    for (uint32_t i = 0; i < axes.count && i < MOE_MAX_AXES && !l->failed; i++) {
        uint32_t format = format_for(l, arg, ir_text(l->module, ROW(l->module, mod_axis, axes.first + i)->name));
        struct plan_wire wire = format == NONE ? (struct plan_wire){.dtype = dtype} : wire_of(l, format);
        set->of_axis[i] = add_format(l, stage, set, &wire);
    }
    if (!set->count)
        add_format(l, stage, set, &(struct plan_wire){.dtype = dtype});
}

/// Does an axis lead out of the nodes that relays serve?
static bool leaves_node(const struct lowering *l, const struct path *p, uint32_t axis)
{
    return p->node && axis_at(l->plan, axis)->stride >= (int64_t)p->node;
}

bool is_answer_format(const struct lowering *l, const struct path *p, uint32_t format)
{
    bool is = p->node && format == p->handed;
    for (uint32_t i = 0; i < ROW(l->plan, plan_info, 0)->axes.count; i++)
        is = is || (!leaves_node(l, p, i) && p->reply.of_axis[i] == format);
    return is;
}

bool is_sum_format(const struct lowering *l, const struct path *p, uint32_t format)
{
    bool is = false;
    for (uint32_t i = 0; i < ROW(l->plan, plan_info, 0)->axes.count; i++)
        is = is || (leaves_node(l, p, i) && p->reply.of_axis[i] == format);
    return is;
}

/// A rank's own rows are never rounded to a wire format: they are kept apart where there is one.
static void read_formats(struct lowering *l, struct path *p)
{
    read_wires(l, p->dispatch, p->x_dtype, &p->wire);
    read_wires(l, p->combine, p->y_dtype, &p->reply);
    p->own_apart = p->wire.count != 1 || !wire_is_plain(&p->wire.wires[0], p->x_dtype);
    if (p->node)
        p->handed = (uint32_t)add_format(l, p->combine, &p->reply, &(struct plan_wire){.dtype = p->y_dtype});
    p->staged = false;
    for (uint32_t i = 0; i < p->reply.count; i++)
        p->staged = p->staged || (is_answer_format(l, p, i) && !wire_is_plain(&p->reply.wires[i], p->y_dtype));
    for (uint32_t i = 0; i < p->wire.count && p->arithmetic; i++) {
        const struct plan_wire *wire = &p->wire.wires[i];
        if (wire->block && moe_wire_code(wire->dtype, wire->block, wire->scale) != p->arithmetic)
            lower_refuse(l, E0901, p->expert, "arithmetic",
                         "rows that travel in other blocks than they are multiplied in are not built yet");
    }
}

/// Ranks at one position of an axis and of those around it; 0 where two hops would be one: `direct`, a single node, or
/// nodes of a single rank.
static uint32_t ranks_of_node(const struct lowering *l, const char *axis)
{
    struct rows axes = ROW(l->plan, plan_info, 0)->axes;
    for (uint32_t i = 0; i < axes.count; i++) {
        const struct plan_axis *row = ROW(l->plan, plan_axis, axes.first + i);
        if (!strcmp(ir_text(l->plan, row->name), axis) && row->stride > 1 && row->stride < l->ranks)
            return (uint32_t)row->stride;
    }
    return 0;
}

static void read_dispatch(struct lowering *l, struct path *p)
{
    const struct mod_stage *dispatch = lower_stage(l, p->dispatch);
    const struct mod_arg *capacity = stage_arg(l->module, dispatch, "capacity"),
                         *pool = stage_arg(l->module, dispatch, "pool"),
                         *overflow = stage_arg(l->module, dispatch, "overflow"),
                         *via = stage_arg(l->module, dispatch, "via");
    p->capacity = capacity ? capacity->number : 1.25;
    p->pool = pool ? pool->number : 0.25;
    p->overflow = overflow && !strcmp(ir_text(l->module, overflow->choice), "error") ? overflow_error : overflow_pool;
    p->node = via ? ranks_of_node(l, ir_text(l->module, via->choice)) : 0;
    read_formats(l, p);
}

/// The parameter that an option of the router names, or NONE where it is a number.
static uint32_t option_param(const struct lowering *l, uint32_t stage, const char *option)
{
    const struct mod_arg *arg = stage_arg(l->module, lower_stage(l, stage), option);
    return arg && arg->param != NONE ? plan_param_of(l->plan, l->module, arg->param) : NONE;
}

static bool read_routing(struct lowering *l, struct path *p, uint32_t rows)
{
    p->dispatch = ROW(l->module, mod_value, rows)->stage;
    p->combine = reader_of(l, "combine", "y", lower_stage(l, p->expert)->result);
    bool others = strcmp(lower_kernel_name(l, p->dispatch), "dispatch") != 0;
    if (others || reader_of(l, lower_kernel_name(l, p->expert), "x", rows) == NONE) {
        lower_refuse(l, E0901, p->expert, NULL, others ? "experts on the rows of another expert are not built yet"
                                                       : "several experts on the rows of one dispatch are not built yet");
        return false;
    }
    if (p->combine == NONE) {
        lower_refuse(l, E0901, p->expert, NULL, "rows that not exactly one `combine` brings home are not built yet");
        return false;
    }
    uint32_t routes = value_arg(l, p->dispatch, "r");
    p->route = ROW(l->module, mod_value, routes)->stage;
    if (value_arg(l, p->combine, "r") != routes || value_arg(l, p->dispatch, "x") != value_arg(l, p->route, "x"))
        lower_refuse(l, E0901, p->combine, NULL, "rows routed by another stage's result are not built yet");
    const struct mod_arg *k = stage_arg(l->module, lower_stage(l, p->route), "k");
    p->experts = ROW(l->module, mod_value, routes)->width;
    p->choices = k ? (int64_t)k->number : 1;
    p->w_router = plan_param_of(l->plan, l->module, stage_arg(l->module, lower_stage(l, p->route), "w")->param);
    const struct mod_arg *on = stage_arg(l->module, lower_stage(l, p->route), "weight_on");
    p->weighted_input = on && !strcmp(ir_text(l->module, on->choice), "input");
    p->bias = option_param(l, p->route, "bias");
    p->logit_bias = option_param(l, p->route, "logit_bias");
    const struct plan_info *info = ROW(l->plan, plan_info, 0);
    if (p->experts != info->experts || p->choices != info->choices)
        lower_refuse(l, E0901, p->route, NULL, "routers of different sizes in one layer are not built yet");
    return true;
}

static int64_t round_up(int64_t value, int64_t to)
{
    return to > 0 ? (value + to - 1) / to * to : value;
}

/// The element type of rows and hidden activations: codes are expanded, other weights are multiplied as they are.
static uint32_t computed_with(const struct plan_param *weights)
{
    return dtype_quantised(weights->dtype) ? weights->operand : weights->dtype;
}

/// How rows are multiplied, and what holds them: their own type, or E4M3 blocks, which must be those of the weights along k.
static void read_arithmetic(struct lowering *l, struct path *p, const struct plan_param *up, const struct plan_param *down)
{
    const struct mod_arg *arg = stage_arg(l->module, lower_stage(l, p->expert), "arithmetic");
    bool cuda = l->pipeline->target == target_cuda, fit = true;
    p->a_elements = p->a_dtype;
    if (!arg || arg->format == NONE || !ROW(l->module, mod_format, arg->format)->block_cols)
        return;
    struct plan_wire blocks = wire_of(l, arg->format);
    const struct plan_param *both[] = {up, down};
    bool whole = true; // 64 rows of a tile share their scales
    for (int i = 0; i < 2; i++) {
        fit = fit && both[i]->dtype == dtype_fp8_e4m3 && both[i]->block_cols == blocks.block;
        whole = whole && (!cuda || both[i]->scale_run == 64);
    }
    if (p->a_dtype == dtype_f32)
        lower_refuse(l, E0901, p->expert, "arithmetic", "f32 rows in FP8 arithmetic are not built yet");
    else if (!fit)
        lower_refuse(l, E0901, p->expert, "arithmetic",
                     "FP8 arithmetic with other weights than `fp8_e4m3 { block: [128, 128], scale: f32 }` is not built yet");
    else if (!whole)
        diag_help(l->context,
                  lower_refuse(l, E0901, p->expert, "arithmetic",
                               "FP8 arithmetic on CUDA where scales change within 64 gate rows, up rows or outputs is not built yet"),
                  "blocks of [128, 128], and gate and up in two tensors (`concat` in the map) where `ffn` is no multiple of 64");
    p->arithmetic = moe_wire_code(blocks.dtype, blocks.block, blocks.scale);
    p->a_elements = cuda ? dtype_fp8_e4m3 : p->a_dtype; // on the CPU the numbers that the codes are, which are exact
}

/// Bytes between rows to multiply.
static int64_t row_stride(const struct path *p, int64_t width)
{
    int64_t element = dtype_bytes(p->a_elements);
    return p->arithmetic ? moe_row_stride(moe_coded_row_bytes(width, element, p->arithmetic >> 16), 1)
                         : moe_row_stride(width, element);
}

static void read_mlp(struct lowering *l, struct path *p)
{
    const struct mod_stage *expert = lower_stage(l, p->expert);
    p->plain = !strcmp(lower_kernel_name(l, p->expert), "plain_mlp");
    p->w_up = plan_param_of(l->plan, l->module, stage_arg(l->module, expert, p->plain ? "w_up" : "w_gate_up")->param);
    p->b_up = option_param(l, p->expert, p->plain ? "b_up" : "b_gate_up");
    p->b_down = option_param(l, p->expert, "b_down");
    p->w_down = plan_param_of(l->plan, l->module, stage_arg(l->module, expert, "w_down")->param);
    const struct plan_param *up = ROW(l->plan, plan_param, p->w_up), *down = ROW(l->plan, plan_param, p->w_down);
    p->width = up->cols;
    p->ffn = down->cols;
    p->a_dtype = computed_with(up);
    p->y_dtype = ROW(l->module, mod_value, expert->result)->dtype;
    read_arithmetic(l, p, up, down);
    p->by_row = cpu_reads_by_row(ir_text(l->plan, ROW(l->plan, plan_info, 0)->cpu_level), up);
    p->a_stride = row_stride(p, p->width);
    p->hidden_stride = row_stride(p, p->ffn);
    p->acc_stride = down->layout == layout_panels ? moe_row_stride(round_up(p->width, down->panel), 4) : p->width * 4;
    if (computed_with(down) != p->a_dtype)
        lower_refuse(l, E0901, p->expert, NULL, "experts that compute with two element types are not built yet");
    const struct mod_arg *activation = stage_arg(l->module, expert, "activation");
    refuse_option(l, p->expert, "activation",
                  p->plain && activation && !strcmp(ir_text(l->module, activation->choice), "clamped_silu"));
    if (p->dense)
        p->experts = plan_param_blocks(up, 0);
    if (p->width % 8 || p->ffn % 8)
        lower_refuse(l, E0901, p->expert, NULL, "sizes that are no multiple of 8 (%lld x %lld) are not built yet",
                     (long long)p->width, (long long)p->ffn);
}

static void add_path(struct lowering *l, uint32_t expert)
{
    struct path p = {.route = NONE, .dispatch = NONE, .expert = expert, .combine = NONE};
    uint32_t rows = value_arg(l, expert, "x");
    p.dense = ROW(l->module, mod_value, rows)->kind != value_kind_routed;
    if (!p.dense && !read_routing(l, &p, rows))
        return;
    p.x_dtype = ROW(l->module, mod_value, p.dense ? rows : value_arg(l, p.dispatch, "x"))->dtype;
    read_mlp(l, &p);
    if (!p.dense) {
        read_dispatch(l, &p);
        p.limited = route_is_limited(l->module, lower_stage(l, p.route), l->layer->tokens_bound);
    }
    if (l->failed)
        return;
    make_kernels(l, &p);
    l->paths = context_grow(l->context, l->paths, &l->path_capacity, l->path_count + 1, sizeof p);
    l->paths[l->path_count++] = p;
}

static uint32_t add_family(struct lowering *l, struct family family, const char *name)
{
    family.name = ir_str(l->plan, name);
    l->families = context_grow(l->context, l->families, &l->family_capacity, l->family_count + 1, sizeof family);
    l->families[l->family_count] = family;
    return l->family_count++;
}

static void describe_mlp(const struct path *p, struct family *f)
{
    f[F_A].dtype = f[F_HIDDEN].dtype = p->a_elements;
    f[F_A].row_bytes = p->a_stride;
    f[F_HIDDEN].row_bytes = p->hidden_stride;
    f[F_ACC].dtype = dtype_f32;
    f[F_ACC].row_bytes = p->acc_stride;
}

/// Pieces of an expert on one stream follow one another in one set of buffers; on several, or where other pieces may come
/// between a piece's `up` and its `down`, each has its own.
static uint32_t count_workplaces(const struct lowering *l, const struct path *p)
{
    uint32_t stream = NONE, pieces = 1;
    for (uint32_t i = 0; i < COUNT(l->schedule, sched_instance) && p->dense; i++) {
        const struct sched_instance *row = ROW(l->schedule, sched_instance, i);
        const struct graph_task *task = ROW(l->graph, graph_task, row->task);
        if (ROW(l->graph, mod_stage_number, task->module_stage)->row != p->expert)
            continue;
        if ((stream != NONE && stream != row->stream) || task->phase != phase_whole)
            pieces = ROW(l->schedule, sched_task, row->task)->pieces;
        stream = row->stream;
    }
    return pieces;
}

uint32_t task_of_stage(const struct lowering *l, uint32_t stage)
{
    uint32_t t = 0;
    while (ROW(l->graph, mod_stage_number, ROW(l->graph, graph_task, t)->module_stage)->row != stage)
        t++;
    return t;
}

static void count_pieces(const struct lowering *l, struct path *p)
{
    p->pieces = p->chunks = p->runs = 1;
    if (p->dense)
        return;
    p->runs = ROW(l->schedule, sched_task, task_of_stage(l, p->expert))->pieces;
    p->pieces = ROW(l->schedule, sched_task, task_of_stage(l, p->dispatch))->pieces;
    p->chunks = ROW(l->schedule, sched_task, task_of_stage(l, p->combine))->pieces;
}

static void add_path_families(struct lowering *l, uint32_t number)
{
    static const char *const suffixes[F_COUNT] = {
        "pairs",      "a",      "hidden",      "acc",      "ids",        "weights",   "bins",       "send",
        "recv",       "stage",  "own",         "send",     "recv",       "pool.send", "pool.recv",  "pool.round",
        "pool.pairs", "pool.a", "pool.hidden", "pool.acc", "pool.stage", "pool.send", "pool.spill", "sum",
        "pool.sums",  "pool.packed", "relay",  "gather",      "sums",     "folds",      "taken"};
    struct path *p = &l->paths[number];
    p->first_family = l->family_count;
    p->workplaces = count_workplaces(l, p);
    count_pieces(l, p);
    if (p->node && (p->pieces > 1 || p->runs > 1))
        diag_help(l->context, lower_refuse(l, E0901, p->dispatch, "via", "rows in pieces through relays are not built yet"),
                  "split the tokens: each part sends its own messages");
    uint32_t more = p->node && p->chunks > 1 ? (p->chunks - 1) * F_CHUNK_COUNT : 0;
    for (uint32_t n = 0; n < (p->dense ? F_DENSE_COUNT * p->workplaces : F_COUNT + more); n++) {
        uint32_t i = p->dense ? n % F_DENSE_COUNT : n < F_COUNT ? n : F_CHUNK_FIRST + (n - F_COUNT) % F_CHUNK_COUNT;
        uint32_t chunk = p->dense || n < F_COUNT ? 0 : 1 + (n - F_COUNT) / F_CHUNK_COUNT;
        uint32_t stage = (i >= F_IDS && i <= F_WEIGHTS) || i == F_TAKEN                                ? p->route
                         : (i >= F_BINS && i <= F_RECV) || (i >= F_POOL_SEND && i <= F_ROUND)          ? p->dispatch
                         : i == F_RELAY                                                                ? p->dispatch
                         : i == F_REPLY_SEND || i == F_REPLY_RECV || i == F_POOL_REPLY || i >= F_SPILL ? p->combine
                                                                                                       : p->expert;
        struct family family = {.kind = (enum path_family)i, .path = number, .chunk = chunk, .value = NONE, .dtype = dtype_none};
        family.control =
            i == F_PAIRS || i == F_BINS || i == F_ROUND || i == F_POOL_PAIRS || i == F_SPILL_SUMS || i == F_FOLDS;
        const char *result = ir_text(l->module, lower_stage(l, stage)->name);
        const char *name = context_printf(l->context, "%s.%s", result, suffixes[i]);
        uint32_t copy = p->workplaces > 1 ? n / F_DENSE_COUNT : chunk;
        add_family(l, family, p->workplaces > 1 || chunk ? context_printf(l->context, "%s.%u", name, copy) : name);
    }
    for (uint32_t i = 0; i < p->workplaces; i++)
        describe_mlp(p, l->families + p->first_family + i * F_DENSE_COUNT);
    struct family *f = l->families + p->first_family;
    if (p->dense)
        return;
    f[F_POOL_A].dtype = p->a_elements;
    f[F_POOL_A].row_bytes = p->a_stride;
    f[F_POOL_HIDDEN].dtype = p->a_elements;
    f[F_POOL_HIDDEN].row_bytes = p->hidden_stride;
    f[F_POOL_ACC].dtype = dtype_f32;
    f[F_POOL_ACC].row_bytes = p->acc_stride;
    f[F_IDS].dtype = dtype_i32;
    f[F_WEIGHTS].dtype = dtype_f32;
    f[F_IDS].row_bytes = f[F_WEIGHTS].row_bytes = p->choices * 4;
    f[F_TAKEN].dtype = dtype_i32;
    f[F_TAKEN].row_bytes = 4;
    f[F_SUM].dtype = dtype_f32;
    f[F_SUM].row_bytes = p->width * 4;
    f[F_OWN].dtype = f[F_STAGE].dtype = f[F_POOL_STAGE].dtype = p->y_dtype;
    f[F_OWN].row_bytes = f[F_STAGE].row_bytes = f[F_POOL_STAGE].row_bytes =
        moe_record_bytes(p->width * dtype_bytes(p->y_dtype), 0);
}

/// One family for every plain value that a stage makes.
static void add_value_families(struct lowering *l)
{
    uint32_t count = COUNT(l->module, mod_value);
    l->value_family = context_alloc(l->context, (count + 1) * sizeof *l->value_family);
    for (uint32_t v = 0; v < count; v++) {
        const struct mod_value *value = ROW(l->module, mod_value, v);
        bool ours = value->stage != NONE && value->stage - l->layer->stages.first < l->layer->stages.count;
        l->value_family[v] = NONE;
        if (!ours || value->kind != value_kind_plain)
            continue;
        struct family family = {
            .dtype = value->dtype, .row_bytes = value->width * dtype_bytes(value->dtype), .path = NONE, .value = v};
        l->value_family[v] = add_family(l, family, ir_text(l->module, value->name));
    }
}

bool read_layer(struct lowering *l)
{
    for (uint32_t i = 0; i < l->layer->stages.count && !l->failed; i++) // what follows may be wrong for the same reason
        if (lower_is_mlp(l, l->layer->stages.first + i))
            add_path(l, l->layer->stages.first + i);
    if (l->failed)
        return false;
    for (uint32_t i = 0; i < l->path_count && !l->failed; i++)
        add_path_families(l, i);
    if (l->failed)
        return false;
    add_value_families(l);
    return true;
}
