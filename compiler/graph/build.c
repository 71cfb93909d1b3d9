// Module -> Graph. A stage becomes one task, or one per phase of its operator; a table says what each phase reads and
// writes besides the stage's own arguments and result. Own rows never touch the wire, so an expert reads the layer's
// rows and the packed control data beside what arrived.
#include <math.h>
#include <string.h>

#include "compiler/graph/graph.h"
#include "runtime/plan/roles.h"

enum { STAGE_VALUES = 4 }; // sent, packed, replies, hidden

struct origin {      // where routed rows come from; by module value
    uint32_t packed; // graph value of the dispatch's pack, NONE for plain values
    uint32_t own;    // graph value of the rank's own rows; NONE once an expert has read them
};

struct builder {
    struct context *context;
    const struct ir *module;
    const struct ast *ast;
    uint32_t layer;
    double ranks;
    node_id order; // the SCHEDULE node; 0: none
    struct ir *graph;
    uint32_t *value_of;     // graph value by module value
    struct origin *origins; // by module value
};

enum inner { INNER_SENT, INNER_PACKED, INNER_REPLIES, INNER_HIDDEN };
enum source {       // bits: what a task reads
    READ_ARGS = 1,  // every tensor argument
    READ_FIRST = 2, // the first one
    READ_SENT = 4,
    READ_PACKED = 8, // of this stage
    READ_REPLIES = 16,
    READ_CONTROL = 32, // packed data of the dispatch that the rows came from
    READ_OWN = 64,     // that dispatch's own rows
    READ_HIDDEN = 128,
};
enum sink { WRITE_RESULT, WRITE_SENT, WRITE_PACKED, WRITE_REPLIES, WRITE_HIDDEN };

struct rule {
    const char *kernel;
    enum phase phase;
    unsigned reads;
    enum sink writes;
};

static const struct rule rules[] = {
    {"route", phase_whole, READ_ARGS, WRITE_RESULT},
    {"dispatch", phase_pack, READ_ARGS, WRITE_PACKED},
    {"dispatch", phase_send, READ_PACKED, WRITE_SENT},
    {"dispatch", phase_recv, READ_SENT, WRITE_RESULT},
    {"grouped_mlp", phase_whole, READ_ARGS | READ_OWN | READ_CONTROL, WRITE_RESULT},
    {"grouped_mlp", phase_up, READ_ARGS | READ_OWN | READ_CONTROL, WRITE_HIDDEN},
    {"grouped_mlp", phase_down, READ_HIDDEN, WRITE_RESULT},
    {"plain_mlp", phase_whole, READ_ARGS | READ_OWN | READ_CONTROL, WRITE_RESULT},
    {"plain_mlp", phase_up, READ_ARGS | READ_OWN | READ_CONTROL, WRITE_HIDDEN},
    {"plain_mlp", phase_down, READ_HIDDEN, WRITE_RESULT},
    {"combine", phase_send, READ_FIRST, WRITE_SENT},
    {"combine", phase_recv, READ_SENT, WRITE_REPLIES},
    {"combine", phase_merge, READ_REPLIES | READ_ARGS | READ_CONTROL, WRITE_RESULT},
    {"", phase_whole, READ_ARGS, WRITE_RESULT}, // extern
};

/// Operators on rows, whatever they compute.
static const struct rule row_rule = {"", phase_whole, READ_ARGS, WRITE_RESULT};

static const struct rule *rule_of(const char *kernel, uint32_t phase)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].phase == phase && strcmp(rules[i].kernel, kernel) == 0)
            return &rules[i];
    return phase == phase_whole && row_operator(kernel) != kernel_role_words_count ? &row_rule : NULL;
}

static const struct mod_arg *arg_of(const struct builder *b, const struct mod_stage *stage, const char *name)
{
    for (uint32_t i = 0; i < stage->args.count; i++) {
        const struct mod_arg *arg = ROW(b->module, mod_arg, stage->args.first + i);
        if (strcmp(ir_text(b->module, arg->name), name) == 0)
            return arg;
    }
    return NULL;
}

/// The module value of the stage's number-th tensor argument, or NONE.
static uint32_t tensor_arg(const struct builder *b, const struct mod_stage *stage, uint32_t number)
{
    for (uint32_t i = 0; i < stage->args.count; i++) {
        uint32_t value = ROW(b->module, mod_arg, stage->args.first + i)->value;
        if (value != NONE && number-- == 0)
            return value;
    }
    return NONE;
}

// Costs: per token of the part on an average rank, under uniform routing. They feed the cost model only.

static double format_bytes(const struct builder *b, uint32_t format, uint32_t dtype)
{
    static const double bytes[] = {
        [dtype_f32] = 4, [dtype_f16] = 2, [dtype_bf16] = 2, [dtype_fp8_e4m3] = 1, [dtype_mxfp4] = 0.5, [dtype_i32] = 4};
    if (format == NONE)
        return bytes[dtype];
    const struct mod_format *f = ROW(b->module, mod_format, format);
    double block = (double)(f->block_rows > 0 ? f->block_rows : 1) * (double)f->block_cols;
    double scale = f->block_cols == 0 ? 0 : (f->scale == scale_type_ue8m0 ? 1 : 4) / block;
    return bytes[f->base] + scale;
}

/// Bytes of an element on the wire; of formats by axis the largest, for the graph knows no cluster.
static double wire_bytes(const struct builder *b, const struct mod_arg *wire, uint32_t dtype)
{
    double most = wire && wire->axis_formats.count ? 0 : format_bytes(b, wire ? wire->format : NONE, dtype);
    for (uint32_t i = 0; wire && i < wire->axis_formats.count; i++) {
        uint32_t format = ROW(b->module, mod_axis_format, wire->axis_formats.first + i)->format;
        most = fmax(most, format_bytes(b, format, dtype));
    }
    return most;
}

static double number_arg(const struct builder *b, const struct mod_stage *stage, const char *name, double otherwise)
{
    const struct mod_arg *arg = stage ? arg_of(b, stage, name) : NULL;
    return arg ? arg->number : otherwise;
}

/// The stage that made the routes which this stage (a dispatch or combine) reads.
static const struct mod_stage *router_of(const struct builder *b, const struct mod_stage *stage)
{
    for (uint32_t i = 0, value; (value = tensor_arg(b, stage, i)) != NONE; i++) {
        const struct mod_value *v = ROW(b->module, mod_value, value);
        if (v->kind == value_kind_routes && v->stage != NONE)
            return ROW(b->module, mod_stage, v->stage);
    }
    return NULL;
}

/// Expected number of other ranks that a token travels to: (R - 1) (1 - C(E - E/R, k) / C(E, k)).
static double fan_out(const struct builder *b, const struct mod_stage *stage)
{
    const struct mod_stage *router = router_of(b, stage);
    double ranks = b->ranks, k = number_arg(b, router, "k", 1), experts = ranks, missed = 1;
    if (router && router->result != NONE)
        experts = (double)ROW(b->module, mod_value, router->result)->width;
    for (double i = 0; i < k && i < experts; i++)
        missed *= fmax(0, experts - experts / ranks - i) / (experts - i);
    return (ranks - 1) * (1 - missed);
}

/// Experts that a row of the layer meets: k of its router on routed rows, all of them on plain rows.
static double pairs(const struct builder *b, const struct mod_stage *stage, const struct mod_param *down)
{
    uint32_t value = tensor_arg(b, stage, 0);
    while (value != NONE && ROW(b->module, mod_value, value)->kind == value_kind_routed) {
        uint32_t producer = ROW(b->module, mod_value, value)->stage;
        const struct mod_stage *maker = ROW(b->module, mod_stage, producer);
        const struct mod_stage *router = router_of(b, maker);
        if (router)
            return number_arg(b, router, "k", 1);
        value = tensor_arg(b, maker, 0);
    }
    return (double)down->dims[0];
}

static double values_of(const struct builder *b, const struct mod_stage *stage)
{
    uint32_t count = 0;
    while (tensor_arg(b, stage, count) != NONE)
        count++;
    return count;
}

static void set_cost(const struct builder *b, const struct mod_stage *stage, const struct rule *rule,
                     struct graph_task *task)
{
    uint32_t first = tensor_arg(b, stage, 0);
    const struct mod_value *x = ROW(b->module, mod_value, first);
    double h = (double)x->width;
    const struct mod_arg *wire = arg_of(b, stage, "wire"), *down = arg_of(b, stage, "w_down");
    if (strcmp(rule->kernel, "route") == 0)
        task->flops_per_token = 2 * h * (double)ROW(b->module, mod_value, stage->result)->width;
    else if (rule == &row_rule)
        task->bytes_per_token = (values_of(b, stage) + 1) * h * 2;
    else if (down && down->param != NONE) {
        const struct mod_param *p = ROW(b->module, mod_param, down->param);
        double up = strcmp(rule->kernel, "plain_mlp") == 0 ? 2 : 4;
        double products = (rule->phase == phase_down ? 0 : up) + (rule->phase == phase_up ? 0 : 2);
        task->flops_per_token = products * pairs(b, stage, p) * h * (double)p->dims[2];
    } else if (rule->phase == phase_merge)
        task->bytes_per_token = fan_out(b, stage) * h * 4;
    else if (rule->phase != phase_whole)
        task->bytes_per_token = fan_out(b, stage) * h * wire_bytes(b, wire, x->dtype);
}

// Values and tasks.

static uint32_t add_value(const struct builder *b, const char *name, const struct mod_value *like, uint32_t kind)
{
    uint32_t row = NEW_ROW(b->context, b->graph, graph_value);
    str_id text = ir_str(b->graph, name);
    struct graph_value *value = ROW(b->graph, graph_value, row);
    value->name = text;
    value->kind = kind;
    value->dtype = like->dtype;
    value->width = like->width;
    value->task = NONE;
    return row;
}

static void add_use(const struct builder *b, struct rows *rows, uint32_t value)
{
    for (uint32_t i = 0; i < rows->count; i++)
        if (ROW(b->graph, graph_use, rows->first + i)->value == value)
            return;
    uint32_t row = NEW_ROW(b->context, b->graph, graph_use);
    ROW(b->graph, graph_use, row)->value = value;
    if (rows->count++ == 0)
        rows->first = row;
}

static void add_reads(const struct builder *b, const struct mod_stage *stage, unsigned reads, const uint32_t *inner,
                      struct rows *rows)
{
    static const enum source inner_bits[STAGE_VALUES] = {READ_SENT, READ_PACKED, READ_REPLIES, READ_HIDDEN};
    for (uint32_t i = 0; i < STAGE_VALUES; i++)
        if (reads & inner_bits[i])
            add_use(b, rows, inner[i]);
    for (uint32_t i = 0, value; (value = tensor_arg(b, stage, i)) != NONE; i++) {
        struct origin origin = b->origins[value];
        if (reads & READ_ARGS || (reads & READ_FIRST && i == 0))
            add_use(b, rows, b->value_of[value]);
        if (reads & READ_OWN && origin.own != NONE)
            add_use(b, rows, origin.own);
        if (reads & READ_CONTROL && origin.packed != NONE)
            add_use(b, rows, origin.packed);
    }
}

/// The value a task writes, made here; a stage's result gets the module value's name.
static uint32_t make_value(const struct builder *b, const struct mod_stage *stage, enum sink sink, uint32_t *inner)
{
    static const char *const names[] = {[WRITE_SENT] = "sent",
                                        [WRITE_PACKED] = "packed",
                                        [WRITE_REPLIES] = "replies",
                                        [WRITE_HIDDEN] = "hidden"};
    static const enum inner number[] = {[WRITE_SENT] = INNER_SENT,
                                        [WRITE_PACKED] = INNER_PACKED,
                                        [WRITE_REPLIES] = INNER_REPLIES,
                                        [WRITE_HIDDEN] = INNER_HIDDEN};
    const struct mod_value *result = ROW(b->module, mod_value, stage->result);
    if (sink == WRITE_RESULT) {
        uint32_t row = add_value(b, ir_text(b->module, result->name), result, result->kind);
        b->value_of[stage->result] = row;
        return row;
    }
    const char *name = context_printf(b->context, "%s.%s", ir_text(b->module, stage->name), names[sink]);
    uint32_t row = add_value(b, name, ROW(b->module, mod_value, tensor_arg(b, stage, 0)),
                             sink == WRITE_HIDDEN ? result->kind : value_kind_routed);
    const struct mod_arg *wire = arg_of(b, stage, "wire");
    if (wire && wire->format != NONE)
        ROW(b->graph, graph_value, row)->dtype = ROW(b->module, mod_format, wire->format)->base;
    ROW(b->graph, graph_value, row)->remote = sink == WRITE_SENT;
    inner[number[sink]] = row;
    return row;
}

/// Does the stage take or make rows that were routed? Its instances are then split by waves of experts.
static bool is_routed(const struct builder *b, const struct mod_stage *stage)
{
    bool routed = ROW(b->module, mod_value, stage->result)->kind == value_kind_routed;
    for (uint32_t i = 0, value; (value = tensor_arg(b, stage, i)) != NONE; i++)
        routed = routed || ROW(b->module, mod_value, value)->kind == value_kind_routed;
    return routed;
}

static void add_task(const struct builder *b, const struct mod_stage *stage, uint32_t number, const struct rule *rule,
                     uint32_t engines, uint32_t *inner)
{
    struct graph_task task = {.phase = rule->phase, .module_stage = number, .engines = engines, .routed = is_routed(b, stage)};
    task.stage = ir_str(b->graph, ir_text(b->module, stage->name));
    add_reads(b, stage, rule->reads, inner, &task.reads);
    uint32_t written = make_value(b, stage, rule->writes, inner);
    add_use(b, &task.writes, written);
    set_cost(b, stage, rule, &task);
    task.whole = strcmp(rule->kernel, "route") == 0 &&
                 route_is_limited(b->module, stage, ROW(b->module, mod_layer, b->layer)->tokens_bound);
    uint32_t row = NEW_ROW(b->context, b->graph, graph_task);
    *ROW(b->graph, graph_task, row) = task;
    ROW(b->graph, graph_value, written)->task = row;
}

/// Where the rows of the stage's result come from: a dispatch starts, an expert passes on.
static void trace_origin(const struct builder *b, const struct mod_stage *stage, const uint32_t *inner)
{
    uint32_t first = tensor_arg(b, stage, 0);
    struct origin *origin = &b->origins[stage->result];
    if (inner[INNER_PACKED] != NONE)
        *origin = (struct origin){inner[INNER_PACKED], b->value_of[first]};
    else if (ROW(b->module, mod_value, stage->result)->kind == value_kind_routed)
        *origin = (struct origin){b->origins[first].packed, NONE};
}

static bool not_built(const struct builder *b, const struct mod_stage *stage, const char *what)
{
    struct span span = node_at(b->ast, stage->node)->span;
    struct diag *diag =
        diag_error(b->context, E0901, span, "stage `%s`: %s not built yet", ir_text(b->module, stage->name), what);
    diag_help(b->context, diag, "the operators built so far are those of `std.ops`");
    return false;
}

/// The host's own function on rows of this rank: weights and routes have no form that it could be given.
static bool add_extern(const struct builder *b, const struct mod_stage *stage, uint32_t number, double bound)
{
    uint32_t inner[STAGE_VALUES] = {NONE, NONE, NONE, NONE};
    for (uint32_t i = 0; i < stage->args.count; i++) {
        const struct mod_arg *arg = ROW(b->module, mod_arg, stage->args.first + i);
        if (arg->value == NONE || ROW(b->module, mod_value, arg->value)->kind != value_kind_plain)
            return not_built(b, stage, "extern stages of parameters or routed rows are");
    }
    add_task(b, stage, number, rule_of("", phase_whole), 1u << engine_sm, inner);
    uint32_t task = COUNT(b->graph, graph_task) - 1;
    ROW(b->graph, graph_task, task)->ns_per_token = bound > 0 ? stage->cost / bound : 0;
    return true;
}

/// Does a list of nodes, or anything in it, name a phase of the stage?
static bool names_phase(const struct builder *b, node_id list, const char *stage)
{
    EACH_NODE(b->ast, id, list) {
        const struct ast_node *node = node_at(b->ast, id), *name;
        if (node->kind == NODE_PATH) {
            name = node_at(b->ast, node->slot[0]);
            if (name->next && strcmp(text_of(b->context, name->text), stage) == 0)
                return true;
            continue;
        }
        for (int i = 0; i < AST_SLOTS; i++)
            if (names_phase(b, node->slot[i], stage))
                return true;
    }
    return false;
}

/// Phases that need each other's rows alone are one task where the schedule does not tell them apart.
static bool is_joined(const struct builder *b, const struct mod_stage *stage, const struct mod_op *op)
{
    bool joined = op->phases.count && ROW(b->module, mod_phase, op->phases.first)->phase == phase_up;
    return joined && !(b->order && names_phase(b, node_at(b->ast, b->order)->slot[2], ir_text(b->module, stage->name)));
}

static bool add_stage(const struct builder *b, const struct mod_stage *stage, uint32_t number, double bound)
{
    if (stage->external)
        return add_extern(b, stage, number, bound);
    const struct mod_op *op = ROW(b->module, mod_op, stage->op);
    uint32_t inner[STAGE_VALUES] = {NONE, NONE, NONE, NONE};
    bool joined = is_joined(b, stage, op);
    for (uint32_t i = 0; i < (joined ? 1 : op->phases.count); i++) {
        const struct mod_phase *phase = ROW(b->module, mod_phase, op->phases.first + i);
        const struct rule *rule = rule_of(ir_text(b->module, op->kernel), joined ? phase_whole : phase->phase);
        if (!rule || tensor_arg(b, stage, 0) == NONE)
            return not_built(b, stage, context_printf(b->context, "operator `%s` is", ir_text(b->module, op->name)));
        add_task(b, stage, number, rule, phase->engines, inner);
    }
    if (b->value_of[stage->result] == NONE)
        return not_built(b, stage, context_printf(b->context, "operator `%s` is", ir_text(b->module, op->name)));
    trace_origin(b, stage, inner);
    return true;
}

static double ranks_of(const struct ir *module, uint32_t layer)
{
    for (uint32_t i = 0; i < COUNT(module, mod_pipeline); i++) {
        const struct mod_pipeline *pipeline = ROW(module, mod_pipeline, i);
        if (pipeline->layer == layer && pipeline->cluster != NONE)
            return (double)ROW(module, mod_cluster, pipeline->cluster)->ranks;
    }
    return 2;
}

bool build_graph(struct context *context, const struct program_text *program, const struct ir *module, uint32_t layer,
                 uint32_t schedule, struct ir *graph)
{
    const struct mod_layer *source = ROW(module, mod_layer, layer);
    uint32_t values = COUNT(module, mod_value);
    node_id order = schedule == NONE ? 0 : ROW(module, mod_schedule, schedule)->node;
    struct builder b = {context, module, &program->ast, layer, ranks_of(module, layer), order, graph, NULL, NULL};
    b.value_of = context_alloc(context, values * sizeof *b.value_of);
    b.origins = context_alloc(context, values * sizeof *b.origins);
    for (uint32_t i = 0; i < values; i++) {
        b.value_of[i] = NONE;
        b.origins[i] = (struct origin){NONE, NONE};
    }
    context_ir_init(context, graph, &graph_ir);
    const struct mod_value *input = ROW(module, mod_value, source->input);
    b.value_of[source->input] = add_value(&b, ir_text(module, input->name), input, input->kind);
    bool good = true;
    for (uint32_t i = 0; i < source->stages.count; i++) {
        uint32_t number = NEW_ROW(context, graph, mod_stage_number);
        ROW(graph, mod_stage_number, number)->row = source->stages.first + i;
        good = good && add_stage(&b, ROW(module, mod_stage, source->stages.first + i), number,
                                 (double)source->tokens_bound);
    }
    if (!good) {
        ir_free(graph);
        return false;
    }
    uint32_t info = NEW_ROW(context, graph, graph_info);
    str_id name = ir_str(graph, ir_text(module, source->name));
    *ROW(graph, graph_info, info) = (struct graph_info){
        .layer = name, .layer_row = layer, .input = b.value_of[source->input], .output = b.value_of[source->output]};
    if (graph->out_of_memory)
        fatal(context, EXIT_SYSTEM, "out of memory");
    return true;
}
