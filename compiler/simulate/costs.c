// What a task costs, for the tokens of a part on one kind of rank: on a CUDA target by the estimates of the kernels that it
// launches; else its operator's `flops` and `bytes` as written in the library, with the sizes of this call. Weights that a
// kernel reads are added to its bytes: they are what a small batch waits for.
#include "compiler/simulate/costs.h"

#include <math.h>
#include <string.h>

#include "runtime/plan/messages.h"

static const struct ast_node *node_of(const struct model *m, node_id id) { return node_at(&m->program->ast, id); }

static const struct mod_stage *stage_of(const struct model *m, uint32_t task)
{
    uint32_t number = ROW(m->graph, graph_task, task)->module_stage;
    return ROW(m->module, mod_stage, ROW(m->graph, mod_stage_number, number)->row);
}

const struct mod_arg *value_arg(const struct model *m, const struct mod_stage *stage, uint32_t number)
{
    for (uint32_t i = 0; i < stage->args.count; i++) {
        const struct mod_arg *arg = ROW(m->module, mod_arg, stage->args.first + i);
        if (arg->value != NONE && number-- == 0)
            return arg;
    }
    return NULL;
}

double number_of(const struct model *m, const struct mod_stage *stage, const char *name, double otherwise)
{
    const struct mod_arg *arg = stage ? stage_arg(m->module, stage, name) : NULL;
    return arg ? arg->number : otherwise;
}

// ---- routing ----------------------------------------------------------------------------------------------------------

/// The stage whose routes this one reads, itself or through the rows it works on.
static const struct mod_stage *router_of(const struct model *m, const struct mod_stage *stage)
{
    for (int depth = 0; depth < 16 && stage; depth++) {
        const struct mod_stage *before = NULL;
        const struct mod_arg *arg;
        for (uint32_t i = 0; (arg = value_arg(m, stage, i)); i++) {
            const struct mod_value *value = ROW(m->module, mod_value, arg->value);
            if (value->kind == value_kind_routes && value->stage != NONE)
                return ROW(m->module, mod_stage, value->stage);
            if (value->kind == value_kind_routed && value->stage != NONE && !before)
                before = ROW(m->module, mod_stage, value->stage);
        }
        stage = before;
    }
    return NULL;
}

const struct mod_stage *dispatch_of_stage(const struct model *m, const struct mod_stage *stage)
{
    for (int depth = 0; depth < 16 && stage; depth++) {
        if (stage_arg(m->module, stage, "via"))
            return stage;
        const struct mod_arg *first = value_arg(m, stage, 0);
        uint32_t maker = first ? ROW(m->module, mod_value, first->value)->stage : NONE;
        stage = maker == NONE ? NULL : ROW(m->module, mod_stage, maker);
    }
    return NULL;
}

const struct mod_stage *dispatch_of_task(const struct model *m, uint32_t task) { return dispatch_of_stage(m, stage_of(m, task)); }

static uint32_t axis_named(const struct model *m, const char *name)
{
    for (uint32_t a = 0; a < m->axes; a++)
        if (!strcmp(ir_text(m->module, ROW(m->module, mod_axis, m->cluster->axes.first + a)->name), name))
            return a;
    return NONE;
}

static bool read_router(const struct model *m, const struct mod_stage *stage, struct routing *routing)
{
    const struct mod_stage *router = router_of(m, stage), *dispatch = dispatch_of_stage(m, stage);
    *routing = (struct routing){.via = NONE, .groups = 1, .group_choices = 1, .choices = 1, .experts = 1, .wave_end = 1, .wave_total = 1};
    if (!router)
        return false;
    routing->experts = (double)ROW(m->module, mod_value, router->result)->width;
    routing->choices = number_of(m, router, "k", 1);
    routing->groups = number_of(m, router, "groups", 1);
    routing->group_choices = number_of(m, router, "group_k", 1);
    if (dispatch)
        routing->via = axis_named(m, ir_text(m->module, stage_arg(m->module, dispatch, "via")->choice));
    const struct mod_arg *first = value_arg(m, stage, 0);
    routing->combine = first && ROW(m->module, mod_value, first->value)->kind == value_kind_routed;
    return true;
}

// ---- formats ----------------------------------------------------------------------------------------------------------

static double format_bytes(const struct model *m, uint32_t format)
{
    static const double bytes[dtype_words_count] = {
        [dtype_f32] = 4, [dtype_f16] = 2, [dtype_bf16] = 2, [dtype_fp8_e4m3] = 1, [dtype_mxfp4] = 0.5, [dtype_i32] = 4};
    const struct mod_format *f = ROW(m->module, mod_format, format);
    double block = (double)(f->block_rows > 0 ? f->block_rows : 1) * (double)f->block_cols;
    return bytes[f->base] + (f->block_cols ? (f->scale == scale_type_ue8m0 ? 1 : 4) / block : 0);
}

uint32_t wire_format(const struct model *m, const struct mod_stage *stage, uint32_t axis)
{
    const struct mod_arg *wire = stage_arg(m->module, stage, "wire");
    const char *name = ir_text(m->module, ROW(m->module, mod_axis, m->cluster->axes.first + axis)->name);
    for (uint32_t i = 0; wire && i < wire->axis_formats.count; i++) {
        const struct mod_axis_format *named = ROW(m->module, mod_axis_format, wire->axis_formats.first + i);
        if (!strcmp(ir_text(m->module, named->axis), name))
            return named->format;
    }
    return wire ? wire->format : NONE;
}

/// Bytes of an element on the wire over an axis; without a format, the value's own.
static double wire_bytes(const struct model *m, const struct mod_stage *stage, uint32_t axis)
{
    uint32_t format = wire_format(m, stage, axis);
    const struct mod_arg *first = value_arg(m, stage, 0);
    if (format != NONE)
        return format_bytes(m, format);
    return first ? (double)dtype_bytes(ROW(m->module, mod_value, first->value)->dtype) : 0;
}

/// Of a record: ids and weights of its row, and which one it is where a relay passes it on.
static double meta_bytes(const struct model *m, const struct routing *r)
{
    bool relayed = r->via != NONE && m->inner[r->via] > 1 && m->inner[r->via] < m->ranks;
    double each = (double)sizeof(struct moe_row_meta), mark = relayed ? (double)sizeof(struct moe_row_mark) : 0;
    return r->combine ? 0 : r->choices * each + mark;
}

/// Of a record whose elements have so many bytes.
static double record_bytes(const struct model *m, const struct mod_value *rows, const struct routing *r, double element)
{
    double data = (double)rows->width * element;
    return (double)moe_record_bytes((int64_t)(data + 0.999999), (int64_t)meta_bytes(m, r));
}

static bool read_routing(const struct model *m, const struct mod_stage *stage, struct routing *routing)
{
    if (!read_router(m, stage, routing))
        return false;
    const struct mod_arg *first = value_arg(m, stage, 0);
    const struct mod_value *rows = first ? ROW(m->module, mod_value, first->value) : NULL;
    for (uint32_t a = 0; a < m->axes && rows; a++) {
        double record = record_bytes(m, rows, routing, wire_bytes(m, stage, a));
        routing->handed[a] = record_bytes(m, rows, routing, (double)dtype_bytes(rows->dtype)) / record;
        routing->entry[a] = ceil(meta_bytes(m, routing) / 16) * 16 / record;
    }
    return true;
}

bool routing_of_task(const struct model *m, uint32_t task, struct routing *routing)
{
    return read_routing(m, stage_of(m, task), routing);
}

double row_bytes(const struct model *m, uint32_t task, uint32_t axis)
{
    const struct mod_stage *stage = stage_of(m, task);
    const struct mod_arg *first = value_arg(m, stage, 0);
    struct routing routing;
    if (!first || !read_routing(m, stage, &routing))
        return 0;
    return record_bytes(m, ROW(m->module, mod_value, first->value), &routing, wire_bytes(m, stage, axis));
}

// ---- formulas ---------------------------------------------------------------------------------------------------------

void rows_by_axis(const struct formula *f, bool back, double rows[AXES_MAX])
{
    struct traffic *t = traffic_make(f->model, &f->routing, f->routing.combine && f->routing.via != NONE);
    for (uint32_t a = 0; a < f->model->axes; a++) {
        rows[a] = 0;
        for (uint32_t k = 0; k < f->model->kind_count; k++)
            rows[a] += back ? t->in_rows[k][f->kind][a] : t->out_rows[f->kind][k][a];
    }
}

/// Over all axes.
static double rows_moved(const struct formula *f, bool back)
{
    double rows[AXES_MAX], sum = 0;
    rows_by_axis(f, back, rows);
    for (uint32_t a = 0; a < f->model->axes; a++)
        sum += rows[a];
    return sum;
}

double owned_in_wave(const struct formula *f)
{
    const struct model *m = f->model;
    uint32_t rank = m->kinds[f->kind].first;
    return (double)(held_before(m, rank, f->routing.wave_end, f->routing.wave_total) -
                    held_before(m, rank, f->routing.wave_begin, f->routing.wave_total));
}

static double load_in_wave(const struct formula *f)
{
    return load_of_waves(f->model, f->model->kinds[f->kind].first, f->routing.wave_begin, f->routing.wave_end,
                         f->routing.wave_total);
}

double pairs(const struct formula *f, const struct mod_value *x)
{
    const struct model *m = f->model;
    if (x->kind == value_kind_routed)
        return (double)m->ranks * f->tokens * f->routing.choices * load_in_wave(f) / f->routing.experts;
    for (uint32_t i = 0; i < f->size_count; i++)
        if (!strcmp(text_of(m->context, f->names[i]), "e"))
            return f->tokens * f->sizes[i];
    return f->tokens;
}

static double unknown(const struct formula *f, const struct ast_node *node)
{
    struct context *context = f->model->context;
    struct diag *diag = diag_error(context, E0202, node->span, "the cost of `%s` cannot be evaluated",
                                   ir_text(f->model->module, f->op->name));
    diag_label(context, diag, "not known to the cost model");
    diag_note(context, diag, "it knows the sizes of tensor arguments, numbers, `.fanout` and `.fanin` of routes, `.pairs` "
                             "of rows and `.bytes` of formats");
    return 0;
}

static double member(const struct formula *f, const struct ast_node *node)
{
    const struct model *m = f->model;
    const char *name = text_of(m->context, node_of(m, node->slot[0])->text), *what = text_of(m->context, node->text);
    const struct mod_arg *arg = stage_arg(m->module, f->stage, name);
    if (!arg)
        return unknown(f, node);
    if (!strcmp(what, "fanout") || !strcmp(what, "fanin")) // a dispatch's out is its combine's in
        return rows_moved(f, !strcmp(what, "fanin") != f->routing.combine);
    if (!strcmp(what, "pairs") && arg->value != NONE)
        return pairs(f, ROW(m->module, mod_value, arg->value));
    if (!strcmp(what, "bytes") && !strcmp(name, "wire"))
        return wire_bytes(m, f->stage, 0);
    if (!strcmp(what, "bytes") && arg->format != NONE)
        return format_bytes(m, arg->format);
    return unknown(f, node);
}

static double evaluate(const struct formula *f, node_id id)
{
    const struct ast_node *node = node_of(f->model, id);
    if (node->kind == NODE_INT)
        return (double)node->integer;
    if (node->kind == NODE_FLOAT)
        return node->number;
    if (node->kind == NODE_PAREN)
        return evaluate(f, node->slot[0]);
    if (node->kind == NODE_MEMBER && node_of(f->model, node->slot[0])->kind == NODE_NAME)
        return member(f, node);
    if (node->kind == NODE_BINARY) {
        double a = evaluate(f, node->slot[0]), b = evaluate(f, node->slot[1]);
        switch (*text_of(f->model->context, node->text)) {
        case '+':
            return a + b;
        case '-':
            return a - b;
        case '*':
            return a * b;
        case '/':
            return b != 0 ? a / b : 0;
        default:
            return unknown(f, node);
        }
    }
    for (uint32_t i = 0; i < f->size_count && node->kind == NODE_NAME; i++)
        if (f->names[i] == node->text)
            return f->sizes[i];
    return unknown(f, node);
}

/// n, h, e: what the op's types call the sizes of this call's tensors.
static void bind_sizes(struct formula *f)
{
    const struct model *m = f->model;
    uint32_t number = 0;
    EACH_NODE(&m->program->ast, param, node_of(m, f->op->node)->slot[0])
    {
        if (number == f->stage->args.count)
            return;
        const struct mod_arg *arg = ROW(m->module, mod_arg, f->stage->args.first + number++);
        uint32_t place = 0;
        EACH_NODE(&m->program->ast, dim, node_of(m, node_of(m, param)->slot[0])->slot[1])
        {
            double size = f->tokens;
            if (arg->param != NONE && place < 4)
                size = (double)ROW(m->module, mod_param, arg->param)->dims[place];
            else if (arg->value != NONE && place > 0)
                size = (double)ROW(m->module, mod_value, arg->value)->width;
            place++;
            if (node_of(m, dim)->kind != NODE_NAME || f->size_count == SIZES_MAX)
                continue;
            f->names[f->size_count] = node_of(m, dim)->text;
            f->sizes[f->size_count++] = size;
        }
    }
}

static double param_bytes(const struct model *m, const struct mod_param *param)
{
    double bytes = format_bytes(m, param->format);
    for (uint32_t d = 0; d < param->ndims; d++)
        bytes *= (double)param->dims[d];
    return bytes;
}

double layer_weight_bytes(const struct model *m)
{
    double bytes = 0;
    for (uint32_t i = 0; i < m->layer->params.count; i++)
        bytes += param_bytes(m, ROW(m->module, mod_param, m->layer->params.first + i));
    return bytes;
}

/// Does this phase of an expert, or all of it, read the parameter?
static bool phase_reads(const struct formula *f, const struct mod_arg *arg, enum phase phase)
{
    const char *name = ir_text(f->model->module, arg->name);
    bool down = !strcmp(name, "w_down") || !strcmp(name, "b_down");
    return phase == phase_up ? !down : phase != phase_down || down;
}

/// Bytes of the weights that a call reads on this kind of rank: of experts, those that some row needs.
static double weight_bytes(const struct formula *f, enum phase phase)
{
    const struct model *m = f->model;
    const struct mod_arg *first = value_arg(m, f->stage, 0);
    bool routed = first && ROW(m->module, mod_value, first->value)->kind == value_kind_routed;
    double bytes = 0;
    for (uint32_t i = 0; i < f->stage->args.count; i++) {
        const struct mod_arg *arg = ROW(m->module, mod_arg, f->stage->args.first + i);
        if (arg->param == NONE || !phase_reads(f, arg, phase))
            continue;
        const struct mod_param *param = ROW(m->module, mod_param, arg->param);
        double share = 1;
        if (routed && param->ndims == 3 && param->dims[0] > 0)
            share = fmin(owned_in_wave(f), pairs(f, ROW(m->module, mod_value, first->value))) / (double)param->dims[0];
        bytes += share * param_bytes(m, param);
    }
    return bytes;
}

/// A GEMM of few rows keeps the SMs from their full speed as `half_rows` more rows per expert would, where the device says
/// how many were measured.
static double filling_flops(const struct formula *f, double flops)
{
    const struct mod_arg *first = value_arg(f->model, f->stage, 0);
    double half = (double)ROW(f->model->module, mod_device, f->model->kinds[f->kind].device)->half_rows;
    double rows = first ? pairs(f, ROW(f->model->module, mod_value, first->value)) : 0, experts = 1;
    bool routed = first && ROW(f->model->module, mod_value, first->value)->kind == value_kind_routed;
    if (rows <= 0)
        return 0;
    if (routed)
        experts = fmin(owned_in_wave(f), rows);
    else
        experts = rows / f->tokens;
    return flops / rows * half * experts;
}

// ---- tasks ------------------------------------------------------------------------------------------------------------

/// The peak for what a stage multiplies: its weights' type, as far as the device has it. Of E4M3 weights it is what they reach
/// with `arithmetic:`, also where the layer does not ask for it (needs_fp8_arithmetic).
static double peak_of(const struct model *m, const struct mod_stage *stage, const struct mod_device *device)
{
    bool fp8 = false, f32 = false;
    for (uint32_t i = 0; i < stage->args.count; i++) {
        const struct mod_arg *arg = ROW(m->module, mod_arg, stage->args.first + i);
        if (arg->param == NONE)
            continue;
        uint32_t base = ROW(m->module, mod_format, ROW(m->module, mod_param, arg->param)->format)->base;
        fp8 = fp8 || base == dtype_fp8_e4m3;
        f32 = f32 || base == dtype_f32;
    }
    double usual = device->peak_bf16 > 0 ? device->peak_bf16 : device->peak_f32;
    if (fp8 && device->peak_fp8 > 0)
        return device->peak_fp8;
    return f32 && !fp8 && device->peak_f32 > 0 ? device->peak_f32 : usual;
}

bool needs_fp8_arithmetic(const struct model *m, const struct mod_stage *stage, const struct mod_device *device)
{
    const struct mod_arg *arithmetic = stage->op == NONE ? NULL : stage_arg(m->module, stage, "arithmetic");
    bool codes = arithmetic && arithmetic->format != NONE && ROW(m->module, mod_format, arithmetic->format)->block_cols > 0;
    return arithmetic && !codes && device->peak_fp8 > device->peak_bf16 && peak_of(m, stage, device) == device->peak_fp8;
}

void routing_wave(struct routing *routing, const struct sched_share *wave)
{
    routing->wave_begin = (double)wave->begin;
    routing->wave_end = (double)wave->end;
    routing->wave_total = (double)wave->total;
}

/// Of an operator's formulas.
static void add_formulas(const struct formula *f, enum phase task, struct task_cost *cost)
{
    for (uint32_t i = 0; i < f->op->phases.count; i++) {
        const struct mod_phase *phase = ROW(f->model->module, mod_phase, f->op->phases.first + i);
        if (phase->phase != task && task != phase_whole) // a whole stage is all of its phases
            continue;
        double flops = phase->flops ? evaluate(f, phase->flops) : 0;
        cost->flops += flops;
        cost->filling_flops += filling_flops(f, flops);
        cost->bytes += (phase->bytes ? evaluate(f, phase->bytes) : 0) +
                       (f->tokens > 0 ? weight_bytes(f, (enum phase)phase->phase) : 0);
    }
}

/// Of a CUDA target's kernels, by their estimates. Rows that are copied to and from the experts' products wait for memory alone.
static void add_kernels(const struct formula *f, const struct task_kernels *kernels, struct task_cost *cost)
{
    const struct model *m = f->model;
    const struct mod_device *device = ROW(m->module, mod_device, m->kinds[f->kind].device);
    for (uint32_t i = 0; i < kernels->count; i++) {
        const struct cuda_estimate *e = &kernels->at[i].estimate;
        bool experts = is_expert_kernel(&kernels->at[i].kernel), alone = !experts && kernels->count > 1;
        bool measured = experts && device->half_rows > 0;
        *(alone ? &cost->moved_bytes : &cost->bytes) += e->bytes;
        cost->filling_bytes += alone || measured || e->reach <= 0 ? 0 : e->bytes / e->reach - e->bytes;
        cost->flops += e->flops;
        cost->filling_flops += measured ? filling_flops(f, e->flops) : e->whole_flops - e->flops;
        cost->peak = e->flops > 0 ? kernels->at[i].rate : cost->peak;
    }
}

/// A task of an operator as a call of it.
static struct formula formula_of(const struct model *m, uint32_t task, uint32_t kind, double tokens, const struct sched_share *wave)
{
    const struct mod_stage *stage = stage_of(m, task);
    struct formula f = {.model = m, .stage = stage, .op = ROW(m->module, mod_op, stage->op), .kind = kind, .tokens = tokens};
    read_routing(m, stage, &f.routing);
    if (ROW(m->graph, graph_task, task)->routed && wave)
        routing_wave(&f.routing, wave);
    bind_sizes(&f);
    return f;
}

bool kernels_of_task(const struct model *m, uint32_t task, uint32_t kind, double tokens, const struct sched_share *wave,
                     struct task_kernels *kernels)
{
    const struct graph_task *row = ROW(m->graph, graph_task, task);
    const struct mod_stage *stage = stage_of(m, task);
    bool moves = row->phase == phase_send || row->phase == phase_recv || row->phase == phase_relay;
    if (stage->op == NONE || moves)
        return false;
    struct formula f = formula_of(m, task, kind, tokens, wave);
    double tensor = peak_of(m, stage, ROW(m->module, mod_device, m->kinds[kind].device));
    return kernels_of_phase(&f, (enum phase)row->phase, tensor, kernels);
}

struct task_cost cost_of_task(const struct model *m, uint32_t task, uint32_t kind, double tokens,
                              const struct sched_share *wave)
{
    const struct graph_task *row = ROW(m->graph, graph_task, task);
    const struct mod_stage *stage = stage_of(m, task);
    struct task_cost cost = {.relay = row->phase == phase_relay, .recv = row->phase == phase_recv};
    cost.send = row->phase == phase_send || cost.relay;
    cost.compute = !cost.send && !cost.recv;
    cost.launch_ns = cost.compute && tokens > 0 ? ROW(m->module, mod_device, m->kinds[kind].device)->launch : 0;
    cost.peak = peak_of(m, stage, ROW(m->module, mod_device, m->kinds[kind].device));
    if (stage->op == NONE) {
        cost.fixed_ns = stage->cost * tokens / (double)(m->layer->tokens_bound ? m->layer->tokens_bound : 1);
        return cost;
    }
    if (!cost.compute)
        return cost;
    struct formula f = formula_of(m, task, kind, tokens, wave);
    struct task_kernels kernels;
    if (kernels_of_phase(&f, (enum phase)row->phase, cost.peak, &kernels))
        add_kernels(&f, &kernels, &cost);
    else
        add_formulas(&f, (enum phase)row->phase, &cost);
    return cost;
}

/// Fewer SMs than fill the memory pull their share of its bytes.
double cost_time(const struct model *m, const struct task_cost *cost, uint32_t kind, double share)
{
    const struct mod_device *device = ROW(m->module, mod_device, m->kinds[kind].device);
    double speed = cost->peak * device->derate * share, memory = device->hbm * fmin(1, share / CUDA_SHARE_THAT_FILLS_MEMORY);
    double compute = speed > 0 ? 1e9 * (cost->flops + cost->filling_flops) / speed : 0, bytes = memory > 0 ? 1e9 * (cost->bytes + cost->filling_bytes) / memory : 0;
    double moved = memory > 0 ? 1e9 * cost->moved_bytes / memory : 0;
    return cost->launch_ns + fmax(compute, bytes) + moved + (share > 0 ? cost->fixed_ns / share : 0);
}
