// The plan's head: what the pipeline is, who owns which expert, and the parameters in the layout that the backend's
// kernels want. Also which variant runs for which token count.
#include <string.h>

#include "compiler/codegen/cpu/cpu.h"
#include "compiler/codegen/cuda/cuda.h"
#include "compiler/lower/lower.h"

struct begin {
    struct context *context;
    const struct program_text *program;
    const struct ir *module;
    const struct mod_pipeline *pipeline;
    const struct mod_layer *layer;
    const char *cpu_level;
    struct ir *plan;
    bool routed; // the layer has a router
};

uint32_t lower_add(struct context *context, struct ir *plan, uint32_t table)
{
    uint32_t row = ir_add(plan, table);
    if (row == NONE)
        fatal(context, EXIT_SYSTEM, "out of memory");
    return row;
}

struct span lower_place(const struct context *context, const struct program_text *program,
                        const struct mod_stage *stage, const char *option)
{
    if (!program || !stage->node)
        return (struct span){.file = stage->file};
    const struct ast_node *node = node_at(&program->ast, stage->node);
    struct span place = node->span;
    if (!option || node->kind != NODE_STAGE || !node->slot[1])
        return place;
    const struct ast_node *call = node_at(&program->ast, node->slot[1]);
    EACH_NODE(&program->ast, id, call->slot[1]) {
        const struct ast_node *arg = node_at(&program->ast, id);
        if (arg->kind == NODE_ARG && !strcmp(text_of(context, arg->text), option))
            place = arg->span;
    }
    return place;
}

static void copy_text(struct begin *b, str_id *to, str_id from)
{
    *to = ir_str(b->plan, ir_text(b->module, from));
}

static struct diag *refuse_stage(struct begin *b, enum diag_code code, const struct mod_stage *stage,
                                 const char *message)
{
    return diag_error(b->context, code, lower_place(b->context, b->program, stage, NULL), "%s", message);
}

// The first route stage's k, and E from the routes it makes.
static void read_routes(struct begin *b, struct plan_info *info)
{
    for (uint32_t i = 0; i < b->layer->stages.count; i++) {
        const struct mod_stage *stage = ROW(b->module, mod_stage, b->layer->stages.first + i);
        const struct mod_value *result = ROW(b->module, mod_value, stage->result);
        const struct mod_arg *k = stage_arg(b->module, stage, "k");
        if (result->kind != value_kind_routes || !k)
            continue;
        info->experts = (uint32_t)result->width;
        info->choices = (uint32_t)k->number;
        b->routed = true;
        return;
    }
    info->experts = info->choices = 1; // nothing is routed
}

static struct rows add_axes(struct begin *b, const struct mod_cluster *cluster)
{
    struct rows axes = {COUNT(b->plan, plan_axis), cluster->axes.count};
    for (uint32_t i = 0; i < axes.count; i++) {
        const struct mod_axis *from = ROW(b->module, mod_axis, cluster->axes.first + i);
        const struct mod_link *link = from->link == NONE ? NULL : ROW(b->module, mod_link, from->link);
        struct plan_axis axis = {.size = from->size,
                                 .stride = from->stride,
                                 .bandwidth = link ? link->bandwidth : 0,
                                 .latency = link ? link->latency : 0};
        copy_text(b, &axis.name, from->name);
        uint32_t row = lower_add(b->context, b->plan, T_plan_axis);
        *ROW(b->plan, plan_axis, row) = axis;
    }
    return axes;
}

/// FLOP/s of all ranks in the type of the experts' weights, as far as their devices state it.
static double peak_flops(const struct begin *b, const struct mod_cluster *cluster)
{
    uint32_t type = dtype_none;
    double sum = 0;
    for (uint32_t i = 0; i < b->layer->params.count; i++) {
        const struct mod_param *param = ROW(b->module, mod_param, b->layer->params.first + i);
        if (param->ndims == 3)
            type = ROW(b->module, mod_format, param->format)->base;
    }
    for (uint32_t r = 0; r < cluster->members.count; r++) {
        uint32_t number = ROW(b->module, mod_rank, cluster->members.first + r)->device;
        const struct mod_device *device = ROW(b->module, mod_device, number);
        double peak = device->peak_bf16 > 0 ? device->peak_bf16 : device->peak_f32;
        peak = type == dtype_f32 && device->peak_f32 > 0 ? device->peak_f32 : peak;
        sum += type == dtype_fp8_e4m3 && device->peak_fp8 > 0 ? device->peak_fp8 : peak;
    }
    return sum;
}

static bool fill_info(struct begin *b)
{
    const struct mod_value *x = ROW(b->module, mod_value, b->layer->input);
    const struct mod_value *y = ROW(b->module, mod_value, b->layer->output);
    const struct mod_cluster *cluster = ROW(b->module, mod_cluster, b->pipeline->cluster);
    struct plan_info info = {.target = b->pipeline->target,
                             .ranks = (uint32_t)cluster->ranks,
                             .x_dtype = x->dtype,
                             .y_dtype = y->dtype,
                             .width = x->width,
                             .tokens_bound = b->layer->tokens_bound,
                             .layers = (uint32_t)b->pipeline->repeat,
                             .first_layer = (uint32_t)b->pipeline->first_layer};
    read_routes(b, &info);
    copy_text(b, &info.name, b->pipeline->name);
    copy_text(b, &info.layer, b->layer->name);
    copy_text(b, &info.weights, b->pipeline->weights_path);
    if (b->pipeline->file < b->context->file_count)
        info.source = ir_str(b->plan, b->context->files[b->pipeline->file].path);
    info.compiler = ir_str(b->plan, MOECC_VERSION);
    info.cpu_level = ir_str(b->plan, b->cpu_level);
    info.peak_flops = peak_flops(b, cluster);
    info.axes = add_axes(b, cluster);
    uint32_t row = lower_add(b->context, b->plan, T_plan_info);
    *ROW(b->plan, plan_info, row) = info;
    if (x->width == y->width)
        return true;
    const struct mod_stage *last = ROW(b->module, mod_stage, b->layer->stages.first + b->layer->stages.count - 1);
    refuse_stage(b, E0901, last, "a layer whose output is not as wide as its input is not built yet");
    return false;
}

static void fill_owners(struct begin *b)
{
    const struct mod_cluster *cluster = ROW(b->module, mod_cluster, b->pipeline->cluster);
    struct rows owners = ROW(b->module, mod_placement, b->pipeline->placement)->owners;
    double first_rate = device_rate(cluster_device(b->module, cluster, 0));
    uint32_t next = 0;
    if (!b->routed && owners.count > 1)
        owners.count = 1; // the layer's one expert, who has no rows: what the placement shares out is not there
    for (uint32_t rank = 0; rank < (uint32_t)cluster->ranks; rank++) {
        uint32_t row = lower_add(b->context, b->plan, T_plan_rank), first = COUNT(b->plan, plan_owner), count = 0;
        uint32_t copied = 0, guests = 0, before;
        for (; next < owners.count; next++, count++) {
            const struct mod_owner *owner = ROW(b->module, mod_owner, owners.first + next);
            if (owner->rank != rank)
                break;
            uint32_t added = lower_add(b->context, b->plan, T_plan_owner);
            struct plan_owner held = {owner->expert, rank, owner->local, owner->home, owner->place};
            *ROW(b->plan, plan_owner, added) = b->routed ? held : (struct plan_owner){.rank = rank, .home = rank};
            copied += b->routed && owner->home != rank;
            for (before = first; before < added && ROW(b->plan, plan_owner, before)->home != owner->home;)
                before++;
            guests += b->routed && owner->home != rank && before == added;
        }
        double rate = device_rate(cluster_device(b->module, cluster, rank));
        *ROW(b->plan, plan_rank, row) =
            (struct plan_rank){.owned = {first, count},
                               .copied = copied,
                               .guests = guests,
                               .pace = rate > 0 && first_rate > 0 ? first_rate / rate : 1};
    }
}

static const struct mod_weight *weight_of(const struct begin *b, uint32_t param)
{
    if (b->pipeline->weights == NONE)
        return NULL;
    struct rows entries = ROW(b->module, mod_weights, b->pipeline->weights)->entries;
    for (uint32_t i = 0; i < entries.count; i++) {
        const struct mod_weight *weight = ROW(b->module, mod_weight, entries.first + i);
        if (weight->param == param)
            return weight;
    }
    return NULL;
}

static void add_source_row(struct begin *b, const char *pattern, const char *scales, int64_t rows)
{
    uint32_t row = lower_add(b->context, b->plan, T_plan_source);
    str_id text = ir_str(b->plan, pattern), scale_text = ir_str(b->plan, scales);
    *ROW(b->plan, plan_source, row) = (struct plan_source){text, scale_text, rows};
}

/// Where the parameter's rows lie in the checkpoint; concatenated patterns hold equally many.
static bool add_sources(struct begin *b, const struct mod_stage *stage, uint32_t param, struct plan_param *to)
{
    const struct mod_weight *weight = weight_of(b, param);
    uint32_t first = COUNT(b->plan, plan_source);
    if (!weight || !weight->patterns.count) {
        add_source_row(b, "", "", to->rows);
    } else if (to->rows % weight->patterns.count) {
        refuse_stage(b, E0601, stage, "concatenated weights do not divide its rows");
        return false;
    } else {
        const char *suffix = ir_text(b->module, weight->suffix), *values = ir_text(b->module, weight->values);
        for (uint32_t i = 0; i < weight->patterns.count; i++) {
            const struct mod_pattern *pattern = ROW(b->module, mod_pattern, weight->patterns.first + i);
            const char *text = ir_text(b->module, pattern->text);
            const char *scales = *suffix ? context_printf(b->context, "%s%s", text, suffix) : "";
            add_source_row(b, context_printf(b->context, "%s%s", text, values), scales, to->rows / weight->patterns.count);
        }
    }
    to->sources = (struct rows){first, COUNT(b->plan, plan_source) - first};
    return true;
}

/// How the checkpoint lays out a matrix; `halves` of it are what can be interleaved or swapped.
static bool read_layout(struct begin *b, const struct mod_stage *stage, uint32_t param, struct plan_param *to)
{
    const struct mod_weight *weight = weight_of(b, param);
    if (!weight)
        return true;
    to->interleaved = weight->interleaved;
    to->swapped = weight->swapped;
    to->transposed = weight->transposed;
    bool halved = weight->interleaved || weight->swapped;
    if ((!halved && !weight->transposed) || (to->halves && (!halved || weight->patterns.count == 1)) ||
        (!to->vector && !halved))
        return true;
    const char *name = ir_text(b->module, ROW(b->module, mod_param, param)->name);
    struct diag *diag = refuse_stage(b, E0601, stage,
                                     context_printf(b->context, "`%s` cannot lie %s in the checkpoint", name,
                                                    halved ? "interleaved or swapped" : "transposed"));
    diag_help(b->context, diag, halved ? "those are layouts of gate and up in one tensor" : "it is a vector");
    return false;
}

/// Blocks that share a scale; the largest power of two of adjacent rows that surely lie in one.
static void read_blocks(struct begin *b, const struct mod_format *format, uint32_t param, struct plan_param *to)
{
    const struct mod_weight *weight = weight_of(b, param);
    bool fp4 = format->base == dtype_mxfp4;
    to->block_rows = fp4 && !format->block_rows ? 1 : format->block_rows;
    to->block_cols = fp4 && !format->block_cols ? 32 : format->block_cols;
    int64_t run = 1, whole = to->halves && weight && weight->patterns.count == 1 ? to->rows / 2 : 0;
    while (run < 64 && to->block_rows % (2 * run) == 0 && whole % (2 * run) == 0)
        run *= 2;
    to->scale_run = to->interleaved ? 1 : run;
}

/// What the kernels must know of weights that are codes with scales.
static bool read_codes(struct begin *b, const struct mod_stage *stage, const char *role, uint32_t param,
                       const struct mod_value *x, struct plan_param *to)
{
    const struct mod_format *format = ROW(b->module, mod_format, ROW(b->module, mod_param, param)->format);
    const char *name = ir_text(b->module, ROW(b->module, mod_param, param)->name), *unbuilt = NULL;
    read_blocks(b, format, param, to);
    to->scale = format->base == dtype_mxfp4 ? (uint32_t)scale_type_ue8m0 : format->scale;
    to->operand = x ? x->dtype : dtype_none;
    if (strcmp(role, "w_gate_up") != 0 && strcmp(role, "w_up") != 0 && strcmp(role, "w_down") != 0)
        unbuilt = "weights of a router or a gate as codes";
    else if (!to->block_cols)
        unbuilt = "codes without block scales";
    else if (to->block_cols % 8 || to->cols % 8)
        unbuilt = "blocks or rows that are no multiple of 8 columns";
    else if (format->base == dtype_mxfp4 && (to->block_rows != 1 || to->block_cols != 32 || to->cols % 32 ||
                                             format->scale == scale_type_f32))
        unbuilt = "MXFP4 other than whole blocks of [1, 32] with ue8m0 scales";
    else if (format->base == dtype_mxfp4 && to->transposed)
        unbuilt = "transposed MXFP4";
    if (!unbuilt)
        return true;
    refuse_stage(b, E0901, stage, context_printf(b->context, "`%s`: %s are not built yet", name, unbuilt));
    return false;
}

/// Arguments that kernels read along their elements, in f32.
static bool is_vector(const char *role)
{
    return !strcmp(role, "bias") || !strcmp(role, "logit_bias") || !strcmp(role, "w_gate") || !strcmp(role, "b");
}

/// Biases of experts: packed like weights of one column, so that they stand in the order of the weights' columns.
static bool is_expert_bias(const char *role)
{
    return !strcmp(role, "b_gate_up") || !strcmp(role, "b_up") || !strcmp(role, "b_down");
}

static bool is_matrix(const char *role)
{
    return !strcmp(role, "w") || !strcmp(role, "w_gate_up") || !strcmp(role, "w_up") || !strcmp(role, "w_down");
}

/// The layout that the target's kernels want. Weights that CUDA has no kernels for yet can be checked and simulated.
static bool choose_layout(const struct begin *b, struct plan_param *param)
{
    return (b->pipeline->target == target_cuda && cuda_choose_layout(param)) || cpu_choose_layout(b->cpu_level, param);
}

/// Is a parameter, packed for one stage, as another stage's kernels read it?
static bool read_alike(const struct plan_param *a, const struct plan_param *b)
{
    return a->per_expert == b->per_expert && a->shared == b->shared && a->vector == b->vector && a->dtype == b->dtype &&
           a->rows == b->rows && a->cols == b->cols && a->halves == b->halves && a->layout == b->layout &&
           a->panel == b->panel && a->group == b->group && a->split == b->split && a->operand == b->operand;
}

static bool refuse_second_way(struct begin *b, const struct mod_stage *stage, const struct mod_param *param)
{
    const char *name = ir_text(b->module, param->name);
    struct diag *diag = refuse_stage(b, E0901, stage,
                                     context_printf(b->context, "`%s` in another role than before is not built yet", name));
    diag_label(b->context, diag, "an earlier stage has it stored for its own kernel");
    diag_help(b->context, diag, "declare a parameter of this stage's own; a map may take both from one tensor");
    return false;
}

/// `role`: the operator's name for the argument, which decides how its kernels read it.
static bool add_param(struct begin *b, const struct mod_stage *stage, uint32_t param, const char *role,
                      const struct mod_value *x)
{
    bool routed = x && x->kind == value_kind_routed;
    uint32_t known = plan_param_of(b->plan, b->module, param);
    const struct mod_param *from = ROW(b->module, mod_param, param);
    const struct mod_format *format = ROW(b->module, mod_format, from->format);
    bool bias = is_expert_bias(role);
    bool experts = from->ndims == (bias ? 2 : 3); // has a block for each
    struct plan_param row = {.per_expert = routed && experts,
                             .declared = format->base,
                             .vector = is_vector(role),
                             .shared = !routed && experts && from->dims[0] > 1 ? (uint32_t)from->dims[0] : 0,
                             .dtype = !strcmp(role, "w") || bias ? dtype_f32 : format->base, // routers compute in f32
                             .rows = from->ndims == 1 ? 1 : bias ? from->dims[1] : from->dims[from->ndims - 2],
                             .cols = bias ? 1 : from->dims[from->ndims - 1],
                             .halves = !strcmp(role, "w_gate_up") || !strcmp(role, "b_gate_up")};
    if (from->ndims < (row.vector ? 1 : 2) || from->ndims > 3) {
        refuse_stage(b, E0901, stage, "parameters that are no plain matrices are not built yet");
        return false;
    }
    if (!read_layout(b, stage, param, &row) || (dtype_quantised(format->base) && !read_codes(b, stage, role, param, x, &row)))
        return false;
    if (!choose_layout(b, &row)) {
        diag_error(b->context, E0901, lower_place(b->context, b->program, stage, NULL),
                   "`%s` weights of `%s` are not built yet", dtype_words[format->base], ir_text(b->module, from->name));
        return false;
    }
    if (known != NONE)
        return read_alike(ROW(b->plan, plan_param, known), &row) || refuse_second_way(b, stage, from);
    if (!add_sources(b, stage, param, &row))
        return false;
    copy_text(b, &row.name, from->name);
    uint32_t number = lower_add(b->context, b->plan, T_plan_param);
    *ROW(b->plan, plan_param, number) = row;
    return true;
}

static bool add_params(struct begin *b, const struct mod_stage *stage)
{
    const struct mod_arg *input = stage_arg(b->module, stage, "x");
    const struct mod_value *x = input && input->value != NONE ? ROW(b->module, mod_value, input->value) : NULL;
    for (uint32_t i = 0; i < stage->args.count; i++) {
        const struct mod_arg *arg = ROW(b->module, mod_arg, stage->args.first + i);
        const char *role = ir_text(b->module, arg->name);
        bool known = is_matrix(role) || is_expert_bias(role) || is_vector(role);
        if (arg->param == NONE)
            continue;
        if (!known) {
            diag_error(b->context, E0901, lower_place(b->context, b->program, stage, role), "`%s` is not built yet",
                       role);
            return false;
        }
        if (!add_param(b, stage, arg->param, role, x))
            return false;
    }
    return true;
}

uint32_t plan_param_of(const struct ir *plan, const struct ir *module, uint32_t param)
{
    const char *name = ir_text(module, ROW(module, mod_param, param)->name);
    for (uint32_t i = 0; i < COUNT(plan, plan_param); i++)
        if (!strcmp(ir_text(plan, ROW(plan, plan_param, i)->name), name))
            return i;
    return NONE;
}

/// A layer that only hands its input on has nothing to run.
static bool has_stages(struct begin *b)
{
    if (b->layer->stages.count)
        return true;
    const struct ast_node *node = &b->program->ast.nodes[b->layer->node];
    diag_error(b->context, E0901, node->name_span, "a layer without stages is not built yet");
    return false;
}

static bool within_limits(struct begin *b)
{
    const struct plan_info *info = ROW(b->plan, plan_info, 0);
    const struct {
        const char *what;
        int64_t have, most;
    } limits[] = {{"ranks", info->ranks, MOE_MAX_RANKS},
                  {"experts", info->experts, MOE_MAX_EXPERTS},
                  {"choices per token", info->choices, MOE_MAX_CHOICES},
                  {"elements of a row", info->width, MOE_MAX_WIDTH},
                  {"tokens", info->tokens_bound, MOE_MAX_TOKENS},
                  {"choices of all tokens", info->tokens_bound * info->choices, MOE_MAX_PAIRS},
                  {"layers", info->layers, MOE_MAX_LAYERS}};
    const struct mod_stage *stage = ROW(b->module, mod_stage, b->layer->stages.first);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        if (limits[i].have <= limits[i].most)
            continue;
        diag_error(b->context, E0206, lower_place(b->context, b->program, stage, NULL),
                   "%lld %s, more than the %lld that a plan can hold", (long long)limits[i].have, limits[i].what,
                   (long long)limits[i].most);
        return false;
    }
    return true;
}

/// The plan's parameters that this stage added, from row `first` on.
static bool params_within_limits(struct begin *b, const struct mod_stage *stage, uint32_t first)
{
    const int64_t most = MOE_MAX_BYTES / MOE_MAX_EXPERTS;
    for (uint32_t i = first; i < COUNT(b->plan, plan_param); i++) {
        const struct plan_param *param = ROW(b->plan, plan_param, i);
        const char *name = ir_text(b->plan, param->name), *each = param->per_expert || param->shared ? "an expert's " : "";
        bool wide = param->rows > MOE_MAX_WIDTH || param->cols > MOE_MAX_WIDTH;
        if (!wide && param->bytes <= most)
            continue;
        struct span place = lower_place(b->context, b->program, stage, NULL);
        if (wide)
            diag_error(b->context, E0206, place, "`%s` has %lld rows and columns, more than the %lld that a plan can hold",
                       name, (long long)(param->rows > param->cols ? param->rows : param->cols),
                       (long long)MOE_MAX_WIDTH);
        else
            diag_error(b->context, E0206, place, "%s`%s` takes %lld bytes, more than the %lld that a plan can hold", each,
                       name, (long long)param->bytes, (long long)most);
        return false;
    }
    return true;
}

bool lower_begin(struct context *context, const struct program_text *program, const struct ir *module,
                 uint32_t pipeline, const char *cpu_level, struct ir *plan)
{
    const char *level = cpu_level_name(cpu_level);
    if (!level)
        fatal(context, EXIT_USAGE, "there is no CPU level `%s`", cpu_level);
    const struct mod_pipeline *from = ROW(module, mod_pipeline, pipeline);
    struct begin b = {context, program, module, from, ROW(module, mod_layer, from->layer), level, plan, false};
    if (!has_stages(&b) || !fill_info(&b) || !within_limits(&b))
        return false;
    fill_owners(&b);
    for (uint32_t i = 0; i < b.layer->stages.count; i++) {
        const struct mod_stage *stage = ROW(module, mod_stage, b.layer->stages.first + i);
        uint32_t first = COUNT(plan, plan_param);
        if (!add_params(&b, stage) || !params_within_limits(&b, stage, first))
            return false;
    }
    return true;
}

bool lower_choices(struct context *context, const struct ir *module, uint32_t pipeline, const uint32_t *variant_of_use,
                   bool single, struct ir *plan)
{
    const struct mod_pipeline *from = ROW(module, mod_pipeline, pipeline);
    for (uint32_t i = 0; i < from->choices.count; i++) {
        const struct mod_choice *choice = ROW(module, mod_choice, from->choices.first + i);
        uint32_t variant = variant_of_use[choice->use - from->uses.first],
                 row = lower_add(context, plan, T_plan_choice);
        if (variant == NONE)
            fatal(context, EXIT_BUG, "a schedule that runs was not lowered");
        *ROW(plan, plan_choice, row) = (struct plan_choice){.single = single,
                                                            .first_tokens = choice->first_tokens,
                                                            .last_tokens = choice->last_tokens,
                                                            .variant = variant};
    }
    return true;
}
