// Pipelines: one layer, one cluster, one placement, a target, weights, and the schedules with the token counts they are for.
#include "compiler/check/types.h"

#include <string.h>

static node_id attribute_value(const struct checker *checker, node_id members, const char *name)
{
    node_id attribute = find_attribute(checker, members, name);
    return attribute ? node_of(checker, attribute)->slot[0] : 0;
}

static node_id required(struct checker *checker, struct symbol item, const char *name, const char *label)
{
    node_id value = attribute_value(checker, node_of(checker, item.node)->slot[0], name);
    if (value)
        return value;
    struct diag *diag = diag_error(checker->context, E0107, name_place(checker, item.node), "pipeline `%s` lacks `%s`",
                                   name_text(checker, node_of(checker, item.node)->text), name);
    diag_label(checker->context, diag, "%s", label);
    return 0;
}

// ---- target -------------------------------------------------------------------------------------------------------------

static const char *const architectures[] = {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"};
enum { ARCHITECTURES = sizeof architectures / sizeof *architectures };

static bool read_architectures(struct checker *checker, node_id call, struct mod_pipeline *row)
{
    const char *text = "";
    EACH_NODE(&checker->program->ast, id, node_of(checker, call)->slot[1]) {
        node_id value = node_of(checker, id)->slot[0];
        int choice = choose(checker, "cuda", value, architectures, ARCHITECTURES);
        if (choice < 0)
            return false;
        text = context_printf(checker->context, "%s%s%s", text, *text ? "," : "", architectures[choice]);
    }
    row->target_text = ir_str(checker->module, text);
    if (*text)
        return true;
    struct diag *diag = diag_error(checker->context, E0107, place_of(checker, call), "`cuda` needs an architecture");
    diag_label(checker->context, diag, "expected as in `cuda(sm_90a)`");
    return false;
}

static bool read_target(struct checker *checker, node_id value, struct mod_pipeline *row)
{
    if (!value)
        return true; // the CPU
    node_id callee = node_of(checker, value)->kind == NODE_CALL ? node_of(checker, value)->slot[0] : value;
    if (!strcmp(source_text(checker, place_of(checker, callee)), "gpu")) {
        struct diag *diag =
            diag_error(checker->context, E0208, place_of(checker, callee), "`target` cannot be `gpu`");
        diag_label(checker->context, diag, "which one?");
        diag_note(checker->context, diag, "`--target cuda:sm_80,host` runs a GPU's kernels on the CPU");
        diag_help(checker->context, diag, "name the architecture");
        diag_fix(checker->context, diag, place_of(checker, callee), "cuda(sm_90a)");
        return false;
    }
    int target = choose(checker, "target", callee, target_words, target_words_count);
    if (target < 0)
        return false;
    row->target = (uint32_t)target;
    if (target == target_cuda)
        return read_architectures(checker, value, row);
    if (callee == value)
        return true;
    struct diag *diag =
        diag_error(checker->context, E0205, place_of(checker, value), "`%s` takes no arguments", target_words[target]);
    diag_label(checker->context, diag, "none expected");
    return false;
}

/// `sm_80`, several of them between commas, and at the end `host`: run by this machine's CPU.
static bool known_architectures(const char *text)
{
    bool any = false;
    for (const char *end; text; text = end ? end + 1 : NULL) {
        end = strchr(text, ',');
        size_t length = end ? (size_t)(end - text) : strlen(text);
        bool known = any && !end && !strcmp(text, "host");
        for (uint32_t a = 0; a < ARCHITECTURES && !known; a++)
            known = strlen(architectures[a]) == length && !strncmp(architectures[a], text, length);
        if (!known)
            return false;
        any = true;
    }
    return any;
}

static bool override_target(struct checker *checker, const char *text, struct mod_pipeline *row)
{
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    for (uint32_t i = 0; i < target_words_count; i++) {
        if (strlen(target_words[i]) != length || strncmp(target_words[i], text, length) != 0)
            continue;
        bool fine = i == target_cuda ? colon && known_architectures(colon + 1) : !colon;
        row->target = i;
        row->target_text = ir_str(checker->module, colon ? colon + 1 : "");
        if (fine)
            return true;
    }
    uint32_t file = add_source(checker->context, "--target", text, strlen(text), NULL);
    struct diag *diag = diag_error(checker->context, E0208, (struct span){file, 0, (uint32_t)strlen(text)},
                                   "unknown target `%s`", text);
    diag_label(checker->context, diag, "expected `cpu`, `sim` or as in `cuda:sm_90a` or `cuda:sm_80,host`");
    return false;
}

// ---- layers and weights -------------------------------------------------------------------------------------------------

static bool read_layers(struct checker *checker, struct symbol item, struct mod_pipeline *row)
{
    static const struct attribute table[] = {{"first", CONSTANT_INTEGER, true}, {"count", CONSTANT_INTEGER, true}};
    struct attribute_value values[2];
    struct scope scope = {.file = item.file};
    struct constant repeat = integer_constant(1);
    node_id members = node_of(checker, item.node)->slot[0];
    node_id repeats = attribute_value(checker, members, "repeat"), layers = attribute_value(checker, members, "layers");
    if (repeats && layers) {
        report_twice(checker, "the number of layers of", name_text(checker, node_of(checker, item.node)->text),
                     name_place(checker, find_attribute(checker, members, "layers")),
                     name_place(checker, find_attribute(checker, members, "repeat")));
        return false;
    }
    if (repeats && (!evaluate_as(checker, &scope, "repeat", repeats, CONSTANT_INTEGER, &repeat) ||
                    !expect_range(checker, "repeat", repeats, repeat.integer, 1, 65536)))
        return false;
    row->repeat = repeat.integer;
    if (layers) {
        const struct ast_node *record = node_of(checker, layers);
        if (record->kind != NODE_RECORD) {
            struct diag *diag = diag_error(checker->context, E0201, record->span, "`layers` is a record");
            diag_label(checker->context, diag, "expected as in `{ first: 3, count: 58 }`");
            return false;
        }
        if (!read_attributes(checker, item.file, record->slot[0], table, 2, record->span, "`layers`", values) ||
            !expect_range(checker, "first", node_of(checker, values[0].node)->slot[0], values[0].value.integer, 0,
                          65536) ||
            !expect_range(checker, "count", node_of(checker, values[1].node)->slot[0], values[1].value.integer, 1,
                          65536))
            return false;
        row->first_layer = values[0].value.integer;
        row->repeat = values[1].value.integer;
    }
    if (checker->options->layer >= 0) {
        row->first_layer = checker->options->layer;
        row->repeat = 1;
    }
    return true;
}

/// What one layer yields is what the next takes.
static bool check_repeat(struct checker *checker, struct symbol item, const struct mod_pipeline *row)
{
    const struct mod_layer *layer = ROW(checker->module, mod_layer, row->layer);
    const struct mod_value *input = ROW(checker->module, mod_value, layer->input);
    const struct mod_value *output = ROW(checker->module, mod_value, layer->output);
    if (row->repeat == 1 || (input->dtype == output->dtype && input->width == output->width))
        return true;
    node_id members = node_of(checker, item.node)->slot[0];
    node_id place = find_attribute(checker, members, "repeat");
    place = place ? place : find_attribute(checker, members, "layers");
    struct diag *diag = diag_error(checker->context, E0204, statement_place(checker, place),
                                   "layer `%s` cannot follow itself", ir_text(checker->module, layer->name));
    diag_label(checker->context, diag, "its result is %s of width %lld, its input %s of width %lld",
               dtype_words[output->dtype], (long long)output->width, dtype_words[input->dtype],
               (long long)input->width);
    return false;
}

static bool report_weights(struct checker *checker, node_id value)
{
    struct diag *diag =
        diag_error(checker->context, E0201, place_of(checker, value), "`weights` is a map of a checkpoint");
    diag_label(checker->context, diag, "expected as in `map(safetensors(\"folder\"))` or `random`");
    return false;
}

/// weights = map(safetensors("folder")), or `random`.
static bool read_weights_source(struct checker *checker, struct symbol item, node_id value, struct mod_pipeline *row)
{
    const struct ast_node *node = value ? node_of(checker, value) : NULL;
    if (!value || (node->kind == NODE_NAME && !strcmp(name_text(checker, node->text), "random")))
        return true;
    node_id argument = node->kind == NODE_CALL ? node->slot[1] : 0;
    if (!argument)
        return report_weights(checker, value);
    struct symbol map;
    if (!resolve_item(checker, item.file, node->slot[0], NODE_WEIGHTS, &map))
        return false;
    const struct ast_node *source = node_of(checker, node_of(checker, argument)->slot[0]);
    const struct ast_node *callee = source->kind == NODE_CALL ? node_of(checker, source->slot[0]) : NULL;
    node_id path = source->kind == NODE_CALL && source->slot[1] ? node_of(checker, source->slot[1])->slot[0] : 0;
    if (!callee || callee->kind != NODE_NAME || strcmp(name_text(checker, callee->text), "safetensors") != 0 || !path ||
        node_of(checker, path)->kind != NODE_STRING || node_of(checker, source->slot[1])->next ||
        node_of(checker, argument)->next)
        return report_weights(checker, value);
    row->weights = elaborate_weights(checker, map);
    if (row->weights == NONE)
        return false;
    const char *written = name_text(checker, node_of(checker, path)->text);
    row->weights_path =
        ir_str(checker->module, checker->options->deployed ? written : relative_path(checker, item.file, written));
    if (!*written) {
        struct diag *diag = diag_error(checker->context, E0206, place_of(checker, path), "the checkpoint has no name");
        diag_label(checker->context, diag, "a folder or a file");
        diag_help(checker->context, diag, "random weights are `weights = random;`");
        return false;
    }
    if (ROW(checker->module, mod_weights, row->weights)->layer == row->layer)
        return check_layer_names(checker, place_of(checker, value), row->weights, row->repeat);
    struct diag *diag =
        diag_error(checker->context, E0601, place_of(checker, node->slot[0]), "weights `%s` is for another layer",
                   source_text(checker, place_of(checker, node->slot[0])));
    diag_label(checker->context, diag, "not for this pipeline's layer");
    diag_label_at(checker->context, diag, place_of(checker, node_of(checker, map.node)->slot[0]), "for this one");
    return false;
}

// ---- what does not run yet ----------------------------------------------------------------------------------------------

/// Codes mean something only with their scales.
static bool is_unbuilt_param(const struct checker *checker, uint32_t format)
{
    if (format == NONE)
        return false;
    const struct mod_format *row = ROW(checker->module, mod_format, format);
    return row->base == dtype_i32 || (row->base == dtype_fp8_e4m3 ? !row->block_cols : row->block_cols && row->base != dtype_mxfp4);
}

/// The value of a stage's argument where it is written, or the stage.
static node_id argument_node(const struct checker *checker, const struct mod_stage *stage, const char *name)
{
    node_id call = node_of(checker, stage->node)->slot[1];
    EACH_NODE(&checker->program->ast, id, node_of(checker, call)->slot[1])
        if (node_of(checker, id)->text && !strcmp(name_text(checker, node_of(checker, id)->text), name))
            return node_of(checker, id)->slot[0];
    return stage->node;
}

static bool refuse_unbuilt(struct checker *checker, const struct mod_layer *layer, const struct mod_cluster *cluster)
{
    uint32_t before = checker->context->error_count;
    for (uint32_t i = 0; i < layer->params.count; i++) {
        const struct mod_param *param = ROW(checker->module, mod_param, layer->params.first + i);
        if (is_unbuilt_param(checker, param->format))
            report_unbuilt(
                checker, place_of(checker, param->node),
                context_printf(checker->context, "parameters of `%s` are not built yet",
                               ir_text(checker->module, ROW(checker->module, mod_format, param->format)->name)));
    }
    for (uint32_t s = 0; s < layer->stages.count; s++) {
        const struct mod_stage *stage = ROW(checker->module, mod_stage, layer->stages.first + s);
        for (uint32_t a = 0; a < stage->args.count; a++) {
            const struct mod_arg *arg = ROW(checker->module, mod_arg, stage->args.first + a);
            const char *name = ir_text(checker->module, arg->name);
            if (!strcmp(name, "wire"))
                check_wire(checker, cluster, arg, place_of(checker, argument_node(checker, stage, name)));
            if (!strcmp(name, "arithmetic"))
                check_arithmetic(checker, arg, ROW(checker->module, mod_value, stage->result)->dtype,
                                 place_of(checker, argument_node(checker, stage, name)));
            if (!strcmp(name, "via") && strcmp(ir_text(checker->module, arg->choice), "direct") != 0 && cluster)
                find_axis(checker, cluster, place_of(checker, argument_node(checker, stage, name)),
                          ir_text(checker->module, arg->choice));
        }
    }
    return checker->context->error_count == before;
}

// ---- the pipeline -------------------------------------------------------------------------------------------------------

/// Experts that the layer routes to; 0: it has no router.
static int64_t layer_experts(const struct checker *checker, const struct mod_layer *layer)
{
    for (uint32_t s = 0; s < layer->stages.count; s++) {
        const struct mod_stage *stage = ROW(checker->module, mod_stage, layer->stages.first + s);
        const struct mod_value *value = ROW(checker->module, mod_value, stage->result);
        if (value->kind == value_kind_routes)
            return value->width;
    }
    return 0;
}

/// Runs of experts that the router picks among first (`groups:` of topk); 1: none.
static int64_t layer_groups(const struct checker *checker, const struct mod_layer *layer)
{
    for (uint32_t s = 0; s < layer->stages.count; s++) {
        const struct mod_stage *stage = ROW(checker->module, mod_stage, layer->stages.first + s);
        const struct mod_arg *groups = stage_arg(checker->module, stage, "groups");
        if (ROW(checker->module, mod_value, stage->result)->kind == value_kind_routes && groups)
            return groups->number >= 1 ? (int64_t)groups->number : 1;
    }
    return 1;
}

static bool check_place(struct checker *checker, struct symbol item, struct mod_pipeline *row)
{
    node_id value = attribute_value(checker, node_of(checker, item.node)->slot[0], "placement");
    const struct mod_placement *placement = ROW(checker->module, mod_placement, row->placement);
    const struct mod_layer *layer = ROW(checker->module, mod_layer, row->layer);
    int64_t experts = layer_experts(checker, layer);
    if (placement->cluster != row->cluster) {
        struct diag *diag =
            diag_error(checker->context, E0501, place_of(checker, value), "placement `%s` is on another cluster",
                       ir_text(checker->module, placement->name));
        diag_label(checker->context, diag, "on `%s`",
                   ir_text(checker->module, ROW(checker->module, mod_cluster, placement->cluster)->name));
        return false;
    }
    if (!check_copied_stages(checker, placement, layer))
        return false;
    if (!experts || experts == placement->experts) {
        row->placement = placement_for_groups(checker, row->placement, layer_groups(checker, layer));
        return row->placement != NONE;
    }
    struct diag *diag = diag_error(checker->context, E0501, place_of(checker, value),
                                   "placement `%s` places %s, but layer `%s` has %lld",
                                   ir_text(checker->module, placement->name),
                                   counted(checker->context, placement->experts, "expert"),
                                   ir_text(checker->module, layer->name), (long long)experts);
    diag_label(checker->context, diag, "of another number of experts");
    diag_label_at(checker->context, diag, name_place(checker, placement->node), "defined here");
    return false;
}

static bool read_parts(struct checker *checker, struct symbol item, struct mod_pipeline *row, struct symbol *layer)
{
    struct symbol cluster, placement;
    node_id members = node_of(checker, item.node)->slot[0];
    node_id layer_node = required(checker, item, "layer", "what it computes");
    bool fine = layer_node && resolve_item(checker, item.file, layer_node, NODE_LAYER, layer);
    if (!fine)
        *layer = (struct symbol){0};
    row->layer = fine ? elaborate_layer(checker, *layer) : NONE;
    node_id cluster_node = layer_node ? required(checker, item, "cluster", "where it runs") : 0;
    if (cluster_node && resolve_item(checker, item.file, cluster_node, NODE_CLUSTER, &cluster))
        row->cluster = elaborate_cluster(checker, cluster);
    node_id placement_node = cluster_node ? required(checker, item, "placement", "which rank owns which expert") : 0;
    if (placement_node && resolve_item(checker, item.file, placement_node, NODE_PLACEMENT, &placement))
        row->placement = elaborate_placement(checker, placement);
    fine = row->layer != NONE && row->cluster != NONE && row->placement != NONE;
    fine = read_layers(checker, item, row) && fine;
    if (checker->options->target)
        fine = override_target(checker, checker->options->target, row) && fine;
    else
        fine = read_target(checker, attribute_value(checker, members, "target"), row) && fine;
    if (row->layer != NONE)
        fine = read_weights_source(checker, item, attribute_value(checker, members, "weights"), row) && fine;
    return fine && check_place(checker, item, row) && check_repeat(checker, item, row);
}

static bool check_copy_engine(struct checker *checker, const struct mod_cluster *cluster, node_id use)
{
    node_id index = node_of(checker, use)->slot[0];
    if (!index || node_of(checker, index)->kind != NODE_INT)
        return true;
    for (uint32_t r = 0; r < cluster->members.count; r++) {
        uint32_t number = ROW(checker->module, mod_rank, cluster->members.first + r)->device;
        const struct mod_device *device = ROW(checker->module, mod_device, number);
        if (node_of(checker, index)->integer < device->copies)
            continue;
        struct diag *diag = diag_error(checker->context, E0306, place_of(checker, use), "device `%s` has no `%s`",
                                       ir_text(checker->module, device->name), source_text(checker, place_of(checker, use)));
        diag_label(checker->context, diag, "it has %s", counted(checker->context, device->copies, "copy engine"));
        return false;
    }
    return true;
}

/// Copy engines by number, where the target is a machine that has just so many of them. On the CPU they are only names.
static bool check_copy_engines(struct checker *checker, const struct mod_pipeline *row)
{
    const struct mod_cluster *cluster = ROW(checker->module, mod_cluster, row->cluster);
    const struct ast *ast = &checker->program->ast;
    bool fine = true, emulated = strstr(ir_text(checker->module, row->target_text), ",host") != NULL;
    for (uint32_t u = 0; u < row->uses.count && row->target == target_cuda && !emulated; u++) {
        uint32_t number = ROW(checker->module, mod_use, row->uses.first + u)->schedule;
        node_id block = node_of(checker, ROW(checker->module, mod_schedule, number)->node)->slot[2];
        EACH_NODE(ast, stream, node_of(checker, block)->slot[0])
            EACH_NODE(ast, use, node_of(checker, stream)->kind == NODE_STREAM ? node_of(checker, stream)->slot[1] : 0)
                fine = check_copy_engine(checker, cluster, use) && fine;
    }
    return fine;
}

/// Monitors do not run yet: one that a pipeline names is checked, and a note says so.
static bool read_monitor(struct checker *checker, struct symbol item)
{
    node_id members = node_of(checker, item.node)->slot[0], monitor = find_attribute(checker, members, "monitor");
    struct symbol symbol;
    if (!monitor)
        return true;
    if (!resolve_item(checker, item.file, node_of(checker, monitor)->slot[0], NODE_MONITOR, &symbol) ||
        !check_monitor(checker, symbol))
        return false;
    struct diag *diag = diag_warning(checker->context, E0901, statement_place(checker, monitor),
                                     "monitor `%s` is checked, but monitors do not run yet",
                                     name_text(checker, node_of(checker, symbol.node)->text));
    diag_label(checker->context, diag, "has no effect on a run");
    return true;
}

static bool read_pipeline(struct checker *checker, struct symbol item, struct mod_pipeline *row)
{
    static const char *const names[] = {"layer",     "repeat", "layers",  "cluster",
                                        "placement", "target", "weights", "monitor"};
    const char *owner =
        context_printf(checker->context, "pipeline `%s`", name_text(checker, node_of(checker, item.node)->text));
    struct symbol layer = {0};
    bool fine = check_attributes(checker, node_of(checker, item.node)->slot[0], names, 8, owner);
    bool parts = read_parts(checker, item, row, &layer);
    if (row->layer != NONE) {
        struct mod_layer layer_row = *ROW(checker->module, mod_layer, row->layer);
        struct mod_cluster cluster = {0};
        if (row->cluster != NONE)
            cluster = *ROW(checker->module, mod_cluster, row->cluster);
        fine = refuse_unbuilt(checker, &layer_row, row->cluster == NONE ? NULL : &cluster) && fine;
    }
    fine = read_monitor(checker, item) && check_pipeline_budgets(checker, item) && fine;
    if (layer.node)
        fine = read_uses(checker, item, layer, row) && fine;
    return fine && parts && check_copy_engines(checker, row);
}

uint32_t elaborate_pipeline(struct checker *checker, struct symbol item)
{
    uint32_t row;
    if (memo_find(checker, item.node, &row))
        return row;
    struct mod_pipeline pipeline = {.name = module_name(checker, node_of(checker, item.node)->text),
                                    .layer = NONE,
                                    .cluster = NONE,
                                    .placement = NONE,
                                    .weights = NONE,
                                    .target = target_cpu,
                                    .file = item.file,
                                    .node = item.node};
    row = NONE;
    if (read_pipeline(checker, item, &pipeline)) {
        row = ADD(checker->module, mod_pipeline);
        *ROW(checker->module, mod_pipeline, row) = pipeline;
    }
    memo_set(checker, item.node, row);
    return row;
}
