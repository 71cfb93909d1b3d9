// Layers: parameters, stages and the result. Every name is assigned once; stages may stand in any order and are typed in the
// order of their data.
#include "compiler/check/types.h"
#include "runtime/plan/limits.h"

#include <string.h>

struct layer_name *find_layer_name(const struct layer_state *layer, str_id name)
{
    for (uint32_t i = 0; i < layer->name_count; i++)
        if (layer->names[i].name == name)
            return &layer->names[i];
    return NULL;
}

static struct layer_name *add_name(struct layer_state *layer, node_id node, struct span span, node_id stage)
{
    struct checker *checker = layer->checker;
    str_id name = node_of(checker, node)->text;
    struct layer_name *first = find_layer_name(layer, name);
    if (first) {
        report_twice(checker, "name", name_text(checker, name), span, first->span);
        return NULL;
    }
    layer->names = context_grow(checker->context, layer->names, &layer->name_capacity, layer->name_count + 1,
                                sizeof *layer->names);
    struct layer_name *added = &layer->names[layer->name_count++];
    *added =
        (struct layer_name){.name = name,
                            .node = node,
                            .span = span,
                            .stage = stage,
                            .tensor = {.name = name, .value = NONE, .param = NONE, .format = NONE, .declared = span}};
    return added;
}

// ---- declared types ---------------------------------------------------------------------------------------------------

/// The `<=` dim that an expression is, or has inside it.
static node_id bound_dim(struct layer_state *layer, node_id expression, bool inside)
{
    struct checker *checker = layer->checker;
    const struct ast_node *node = node_of(checker, expression);
    struct path path;
    if (node->kind == NODE_PAREN || node->kind == NODE_UNARY)
        return inside ? bound_dim(layer, node->slot[0], true) : 0;
    if (node->kind == NODE_BINARY && inside) {
        node_id left = bound_dim(layer, node->slot[0], true);
        return left ? left : bound_dim(layer, node->slot[1], true);
    }
    if (!path_of(checker, expression, &path))
        return 0;
    for (uint32_t i = 0; i < layer->scope.local_count && path.count == 1; i++)
        if (layer->scope.locals[i].name == path.name[0])
            return 0;
    struct symbol symbol = resolve(checker, layer->item.file, &path, NODE_DIM, true);
    bool bound = symbol.kind == SYMBOL_ITEM && node_of(checker, symbol.node)->kind == NODE_DIM &&
                 node_of(checker, symbol.node)->flag;
    return bound ? symbol.node : 0;
}

static bool read_dim(struct layer_state *layer, node_id expression, struct dim *dim)
{
    struct checker *checker = layer->checker;
    struct constant value;
    const char *text = source_text(checker, place_of(checker, expression));
    if (!evaluate_as(checker, &layer->scope, text, expression, CONSTANT_INTEGER, &value) ||
        !expect_range(checker, text, expression, value.integer, 1, INT32_MAX))
        return false;
    *dim = (struct dim){.value = value.integer, .text = text, .node = expression};
    dim->owner = bound_dim(layer, expression, false);
    if (dim->owner || !bound_dim(layer, expression, true))
        return true;
    struct diag *diag =
        diag_error(checker->context, E0204, place_of(checker, expression), "`%s` is no size: it varies", text);
    diag_label(checker->context, diag, "made from a dim that is only bounded");
    return false;
}

/// A type of a layer: format and sizes.
static bool read_type(struct layer_state *layer, node_id type, struct tensor *tensor)
{
    struct checker *checker = layer->checker;
    const struct ast_node *node = node_of(checker, type);
    tensor->format = elaborate_format(checker, layer->item.file, node->slot[0]);
    tensor->declared = node->span;
    tensor->is_declared = true;
    bool fine = tensor->format != NONE;
    EACH_NODE(&checker->program->ast, id, node->slot[1]) {
        if (tensor->dim_count == MAX_DIMS) {
            struct diag *diag =
                diag_error(checker->context, E0204, place_of(checker, id), "a tensor has at most %d sizes", MAX_DIMS);
            diag_label(checker->context, diag, "one too many");
            return false;
        }
        fine = read_dim(layer, id, &tensor->dims[tensor->dim_count]) && fine;
        tensor->dim_count++;
    }
    return fine;
}

/// The first size is a dim, but one that is fixed: where it is declared, and how it would vary.
static void show_fixed_dim(struct layer_state *layer, struct diag *diag, const struct tensor *tensor)
{
    struct checker *checker = layer->checker;
    struct path path;
    if (!tensor->dim_count || !path_of(checker, tensor->dims[0].node, &path))
        return;
    struct symbol symbol = resolve(checker, layer->item.file, &path, NODE_DIM, true);
    const struct ast_node *dim = symbol.kind == SYMBOL_ITEM ? node_of(checker, symbol.node) : NULL;
    if (!dim || dim->kind != NODE_DIM || dim->flag)
        return;
    const char *text = checker->context->files[dim->span.file].text;
    const char *sign = memchr(text + dim->name_span.end, '=', dim->span.end - dim->name_span.end);
    diag_label_at(checker->context, diag, dim->span, "fixed here");
    if (sign)
        diag_fix(checker->context, diag, (struct span){dim->span.file, (uint32_t)(sign - text), (uint32_t)(sign - text) + 1}, "<=");
}

static bool check_row_type(struct layer_state *layer, node_id type, const struct tensor *tensor, const char *what)
{
    struct checker *checker = layer->checker;
    if (tensor->dim_count != 2 || !tensor->dims[0].owner || tensor->dims[1].owner) {
        struct diag *diag =
            diag_error(checker->context, E0204, place_of(checker, type), "the %s of a layer is [tokens, width]", what);
        diag_label(checker->context, diag, "found %s", dims_text(checker, tensor->dims, tensor->dim_count));
        diag_help(checker->context, diag,
                  "the first size is the dim that is declared with a bound, `dim tokens <= 4096;`");
        if (tensor->dim_count == 2 && !tensor->dims[1].owner)
            show_fixed_dim(layer, diag, tensor);
        return false;
    }
    const struct mod_format *format = ROW(checker->module, mod_format, tensor->format);
    if (!format->node && (format->base == dtype_f32 || format->base == dtype_f16 || format->base == dtype_bf16))
        return true;
    struct diag *diag = diag_error(checker->context, E0203, place_of(checker, type), "the %s of a layer cannot be %s",
                                   what, ir_text(checker->module, format->name));
    diag_label(checker->context, diag, "expected f32, f16 or bf16");
    return false;
}

// ---- members ----------------------------------------------------------------------------------------------------------

static bool read_param(struct layer_state *layer, node_id declaration, node_id name, struct mod_layer *row)
{
    struct checker *checker = layer->checker;
    const struct ast_node *node = node_of(checker, declaration);
    node_id type = node->slot[1], fallback = node->slot[2];
    struct tensor tensor = {.name = node_of(checker, name)->text, .value = NONE};
    struct constant value = {0};
    bool fine = read_type(layer, type, &tensor);
    int64_t elements = 1;
    for (uint32_t i = 0; i < tensor.dim_count && fine; i++) {
        bool large = __builtin_mul_overflow(elements, tensor.dims[i].value, &elements) || elements > INT64_C(1) << 42;
        if (!large && !tensor.dims[i].owner)
            continue;
        struct diag *diag = diag_error(checker->context, large ? E0206 : E0204, place_of(checker, type), "`%s` %s",
                                       name_text(checker, tensor.name), large ? "is too large" : "has no fixed size");
        diag_label(checker->context, diag,
                   large ? "more than 2^42 elements" : "a parameter cannot depend on the token count");
        fine = false;
    }
    if (fallback)
        fine = evaluate_as(checker, &layer->scope, name_text(checker, tensor.name), fallback, CONSTANT_FLOAT, &value) &&
               fine;
    struct layer_name *added = add_name(layer, name, place_of(checker, name), 0);
    if (!added || !fine)
        return false;
    uint32_t param = ADD(checker->module, mod_param);
    struct mod_param *param_row = ROW(checker->module, mod_param, param);
    *param_row = (struct mod_param){.format = tensor.format,
                                    .ndims = tensor.dim_count,
                                    .has_default = fallback != 0,
                                    .default_value = value.number,
                                    .node = name};
    for (uint32_t i = 0; i < tensor.dim_count; i++)
        param_row->dims[i] = tensor.dims[i].value;
    str_id text = module_name(checker, tensor.name);
    ROW(checker->module, mod_param, param)->name = text;
    tensor.param = param;
    added->tensor = tensor;
    row->params.count++;
    return true;
}

static bool read_input(struct layer_state *layer, struct mod_layer *row)
{
    struct checker *checker = layer->checker;
    node_id param = node_of(checker, layer->item.node)->slot[0];
    if (!param || node_of(checker, param)->next) {
        struct span span =
            param ? place_of(checker, node_of(checker, param)->next) : name_place(checker, layer->item.node);
        struct diag *diag = diag_error(checker->context, E0205, span, "a layer takes one tensor");
        diag_label(checker->context, diag, param ? "one too many" : "expected as in `(x: bf16[tokens, hidden])`");
        EACH_NODE(&checker->program->ast, id, param) // known, so that nothing is reported where they are read
            add_name(layer, id, name_place(checker, id), 0);
        return false;
    }
    node_id type = node_of(checker, param)->slot[0];
    struct tensor tensor = {.name = node_of(checker, param)->text, .param = NONE};
    struct layer_name *added = add_name(layer, param, name_place(checker, param), 0);
    if (!read_type(layer, type, &tensor) || !check_row_type(layer, type, &tensor, "input"))
        return false;
    tensor.value = ADD(checker->module, mod_value);
    row->input = tensor.value;
    row->tokens_bound = tensor.dims[0].value;
    *ROW(checker->module, mod_value, tensor.value) =
        (struct mod_value){.kind = value_kind_plain,
                           .dtype = ROW(checker->module, mod_format, tensor.format)->base,
                           .width = tensor.dims[1].value,
                           .stage = NONE};
    str_id text = module_name(checker, tensor.name);
    ROW(checker->module, mod_value, tensor.value)->name = text;
    added->tensor = tensor;
    return true;
}

static bool add_let(struct layer_state *layer, node_id id)
{
    struct checker *checker = layer->checker;
    struct local local = {.name = node_of(checker, id)->text};
    if (!evaluate(checker, &layer->scope, node_of(checker, id)->slot[0], &local.value))
        return false;
    for (uint32_t i = 0; i < layer->scope.local_count; i++) {
        if (layer->lets[i].name == local.name) {
            struct diag *diag = diag_error(checker->context, E0102, name_place(checker, id),
                                           "name `%s` is defined twice", name_text(checker, local.name));
            diag_label(checker->context, diag, "again here");
            return false;
        }
    }
    layer->lets = context_grow(checker->context, layer->lets, &layer->let_capacity, layer->scope.local_count + 1,
                               sizeof *layer->lets);
    layer->lets[layer->scope.local_count++] = local;
    layer->scope.locals = layer->lets;
    return true;
}

static bool add_stage(struct layer_state *layer, node_id id)
{
    struct checker *checker = layer->checker;
    const struct ast_node *node = node_of(checker, id);
    bool fine = true;
    for (uint32_t i = 0; i < layer->stage_count; i++) {
        node_id other = layer->stages[i].node;
        if (node_of(checker, other)->text != node->text)
            continue;
        report_twice(checker, "stage", name_text(checker, node->text), name_place(checker, id),
                     name_place(checker, other));
        fine = false;
    }
    node_id results = node->slot[0];
    if (node_of(checker, results)->next) {
        struct diag *diag = diag_error(checker->context, E0205, place_of(checker, node_of(checker, results)->next),
                                       "a stage has one result");
        diag_label(checker->context, diag, "one too many");
        fine = false;
    }
    layer->stages = context_grow(checker->context, layer->stages, &layer->stage_capacity, layer->stage_count + 1,
                                 sizeof *layer->stages);
    layer->stages[layer->stage_count++] = (struct layer_stage){.node = id};
    return add_name(layer, results, place_of(checker, results), id) && fine;
}

// ---- stages -----------------------------------------------------------------------------------------------------------

/// An extern stage's call: tensors by position, and `cost:`.
static bool apply_extern(struct layer_state *layer, node_id stage, struct tensor *result, struct mod_arg *args,
                         uint32_t *count, double *cost)
{
    struct checker *checker = layer->checker;
    node_id call = node_of(checker, stage)->slot[1];
    bool fine = true;
    EACH_NODE(&checker->program->ast, id, node_of(checker, call)->slot[1]) {
        const struct ast_node *node = node_of(checker, id);
        node_id expression = node->slot[0];
        const char *name = name_text(checker, node->text);
        struct constant value;
        if (node->text && !strcmp(name, "cost")) {
            fine = evaluate_as(checker, &layer->scope, "cost", expression, CONSTANT_TIME, &value) &&
                   expect_quantity(checker, "cost", expression, value.number, true, MACHINE_TIME) && fine;
            *cost = fine ? value.number : 0;
            continue;
        }
        if (node->text) {
            static const char *const known[] = {"cost"};
            struct diag *diag = diag_error(checker->context, E0106, name_place(checker, id),
                                           "an extern stage has no argument `%s`", name);
            diag_label(checker->context, diag, "unknown argument");
            suggest(checker, diag, "argument", name, name_place(checker, id),
                    &(struct names){.items = (const char **)(uintptr_t)known, .count = 1});
            fine = false;
            continue;
        }
        const struct tensor *tensor = find_tensor(layer, expression);
        if (!tensor)
            return false;
        if (*count + 1 == MOE_MAX_ARGS) { // and the result
            report_unbuilt(checker, place_of(checker, id),
                           context_printf(checker->context, "extern stages of more than %d tensors are not built yet",
                                          MOE_MAX_ARGS - 1));
            return false;
        }
        if (!*count) {
            struct span declared = result->declared;
            str_id own = result->name;
            *result = *tensor;
            result->declared = declared;
            result->is_declared = false;
            result->name = own;
        }
        args[(*count)++] = (struct mod_arg){.name = module_name(checker, tensor->name),
                                            .value = tensor->value,
                                            .param = tensor->param,
                                            .format = NONE,
                                            .given = true};
    }
    if (*count)
        return fine;
    struct diag *diag =
        diag_error(checker->context, E0205, place_of(checker, call), "an extern stage takes at least one tensor");
    diag_label(checker->context, diag, "its result has the type of the first");
    return false;
}

static void finish_stage(struct layer_state *layer, node_id stage, struct mod_stage row, struct tensor *result,
                         const struct mod_arg *args, uint32_t count)
{
    struct checker *checker = layer->checker;
    struct ir *module = checker->module;
    row.name = module_name(checker, node_of(checker, stage)->text);
    row.args = (struct rows){COUNT(module, mod_arg), count};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t arg = ADD(module, mod_arg);
        *ROW(module, mod_arg, arg) = args[i];
    }
    struct dim width = result->dims[result->dim_count ? result->dim_count - 1 : 0];
    struct mod_value value = {
        .name = module_name(checker, result->name), .kind = result->kind, .stage = COUNT(module, mod_stage)};
    value.width = result->kind == value_kind_routes ? result->experts : width.value;
    value.dtype = result->format == NONE ? dtype_none : ROW(module, mod_format, result->format)->base;
    result->param = NONE;
    result->value = row.result = ADD(module, mod_value);
    *ROW(module, mod_value, result->value) = value;
    uint32_t number = ADD(module, mod_stage);
    *ROW(module, mod_stage, number) = row;
}

static bool type_stage(struct layer_state *layer, node_id stage)
{
    struct checker *checker = layer->checker;
    const struct ast_node *node = node_of(checker, stage);
    node_id call = node->slot[1], name = node->slot[0];
    struct mod_arg args[MAX_ARGS];
    uint32_t count = 0;
    struct mod_stage row = {.op = NONE, .external = node->flag != 0, .file = layer->item.file, .node = stage};
    struct tensor result = {
        .name = node_of(checker, name)->text, .param = NONE, .format = NONE, .declared = place_of(checker, name)};
    if (node_of(checker, call)->kind != NODE_CALL) {
        struct diag *diag = diag_error(checker->context, E0201, place_of(checker, call), "a stage applies an operator");
        diag_label(checker->context, diag, "not a call");
        return false;
    }
    if (row.external) {
        if (!apply_extern(layer, stage, &result, args, &count, &row.cost))
            return false;
    } else {
        struct symbol op;
        if (!resolve_item(checker, layer->item.file, node_of(checker, call)->slot[0], NODE_OP, &op))
            return false;
        row.op = elaborate_op(checker, op);
        if (row.op == NONE)
            return false;
        str_id kernel = ROW(checker->module, mod_op, row.op)->kernel;
        const char *text = context_printf(checker->context, "%s", ir_text(checker->module, kernel));
        if (!apply_operator(layer, stage, op, text, &result, args, &count))
            return false;
    }
    finish_stage(layer, stage, row, &result, args, count);
    struct layer_name *named = find_layer_name(layer, result.name);
    if (named && named->stage == stage) // not of a name that is taken
        named->tensor = result;
    return true;
}

static bool ensure_stage(struct layer_state *layer, node_id stage, struct span reader)
{
    struct checker *checker = layer->checker;
    uint32_t number = 0;
    while (number < layer->stage_count && layer->stages[number].node != stage)
        number++;
    if (number == layer->stage_count)
        return false;
    if (layer->stages[number].state == STAGE_PENDING) {
        struct diag *diag = diag_error(checker->context, E0101, reader, "stage `%s` needs its own result",
                                       name_text(checker, node_of(checker, stage)->text));
        diag_label(checker->context, diag, "not made yet");
        diag_label_at(checker->context, diag, name_place(checker, stage), "this stage makes it");
        return false;
    }
    if (layer->stages[number].state != STAGE_NEW)
        return layer->stages[number].state == STAGE_DONE;
    layer->stages[number].state = STAGE_PENDING;
    bool fine = type_stage(layer, stage);
    layer->stages[number].state = fine ? STAGE_DONE : STAGE_FAILED;
    return fine;
}

struct tensor *find_tensor(struct layer_state *layer, node_id expression)
{
    struct checker *checker = layer->checker;
    const struct ast_node *node = node_of(checker, expression);
    if (node->kind != NODE_NAME) {
        struct diag *diag =
            diag_error(checker->context, E0201, node->span, "the name of a value or a parameter is expected here");
        diag_label(checker->context, diag, "not a name");
        if (node->kind == NODE_CALL)
            diag_help(checker->context, diag, "make it a stage of its own");
        return NULL;
    }
    struct layer_name *found = find_layer_name(layer, node->text);
    if (!found) {
        struct names candidates = {0};
        for (uint32_t i = 0; i < layer->name_count; i++)
            names_add(checker, &candidates, name_text(checker, layer->names[i].name));
        report_unknown(checker, "value", name_text(checker, node->text), node->span, &candidates);
        return NULL;
    }
    if (found->stage && !ensure_stage(layer, found->stage, node->span))
        return NULL;
    found = find_layer_name(layer, node->text);
    bool made = found->tensor.value != NONE || found->tensor.param != NONE;
    return made ? &found->tensor : NULL;
}

// ---- the layer --------------------------------------------------------------------------------------------------------

static bool check_yield(struct layer_state *layer, node_id yield, struct mod_layer *row)
{
    struct checker *checker = layer->checker;
    node_id type = node_of(checker, layer->item.node)->slot[1];
    struct tensor declared = {0};
    bool fine = read_type(layer, type, &declared) && check_row_type(layer, type, &declared, "result");
    if (!yield) {
        struct diag *diag =
            diag_error(checker->context, E0107, name_place(checker, layer->item.node), "layer `%s` yields nothing",
                       name_text(checker, node_of(checker, layer->item.node)->text));
        diag_label(checker->context, diag, "a `yield` is required");
        return false;
    }
    node_id expression = node_of(checker, yield)->slot[0];
    const struct tensor *found = find_tensor(layer, expression);
    if (!found || !fine)
        return false;
    const char *name = source_text(checker, place_of(checker, expression));
    if (found->kind != value_kind_plain || found->value == NONE) {
        struct diag *diag =
            diag_error(checker->context, E0201, place_of(checker, expression), "`%s` cannot be yielded", name);
        diag_label(checker->context, diag, "%s", found->value == NONE ? "a parameter" : "not a plain tensor");
        return false;
    }
    bool same = found->dim_count == declared.dim_count;
    for (uint32_t i = 0; i < declared.dim_count && same; i++)
        same = dims_equal(&found->dims[i], &declared.dims[i]);
    if (!same || found->format != declared.format) {
        struct diag *diag = diag_error(checker->context, same ? E0203 : E0204, place_of(checker, expression),
                                       "`%s` is not what the layer promises", name);
        diag_label(checker->context, diag, "found %s%s",
                   context_printf(checker->context, "%s", format_name(checker, found->format)),
                   dims_text(checker, found->dims, found->dim_count));
        diag_label_at(checker->context, diag, declared.declared, "promised here");
        return false;
    }
    row->output = found->value;
    return true;
}

static bool read_members(struct layer_state *layer, struct mod_layer *row, node_id *yield)
{
    struct checker *checker = layer->checker;
    node_id members = node_of(checker, layer->item.node)->slot[2];
    bool fine = true;
    EACH_NODE(&checker->program->ast, id, members)
        if (node_of(checker, id)->kind == NODE_LET)
            fine = add_let(layer, id) && fine;
    if (!read_input(layer, row))
        return false; // whatever has its rows would be one more error
    row->params.first = COUNT(checker->module, mod_param);
    EACH_NODE(&checker->program->ast, id, members)
        if (node_of(checker, id)->kind == NODE_PARAM_DECL)
            EACH_NODE(&checker->program->ast, name, node_of(checker, id)->slot[0])
                fine = read_param(layer, id, name, row) && fine;
    EACH_NODE(&checker->program->ast, id, members) {
        const struct ast_node *node = node_of(checker, id);
        if (node->kind == NODE_STAGE)
            fine = add_stage(layer, id) && fine;
        if (node->kind == NODE_YIELD && *yield)
            report_twice(checker, "the result of layer", name_text(checker, node_of(checker, layer->item.node)->text),
                         statement_place(checker, id), statement_place(checker, *yield));
        if (node->kind == NODE_YIELD)
            *yield = id;
    }
    return fine;
}

static bool read_layer(struct checker *checker, struct symbol item, struct mod_layer *row, node_id *yield)
{
    struct layer_state layer = {.checker = checker, .item = item, .scope = {.file = item.file}};
    bool fine = read_members(&layer, row, yield);
    if (row->input == NONE)
        return false;
    row->stages.first = COUNT(checker->module, mod_stage);
    for (uint32_t i = 0; i < layer.stage_count; i++)
        fine = ensure_stage(&layer, layer.stages[i].node, place_of(checker, layer.stages[i].node)) && fine;
    row->stages.count = COUNT(checker->module, mod_stage) - row->stages.first;
    return check_yield(&layer, *yield, row) && fine;
}

uint32_t elaborate_layer(struct checker *checker, struct symbol item)
{
    uint32_t row;
    if (memo_find(checker, item.node, &row))
        return row;
    struct mod_layer layer = {.name = module_name(checker, node_of(checker, item.node)->text),
                              .input = NONE,
                              .output = NONE,
                              .file = item.file,
                              .node = item.node};
    uint32_t before = checker->context->error_count;
    row = NONE;
    node_id yield = 0;
    if (read_layer(checker, item, &layer, &yield) && checker->context->error_count == before) {
        row = ADD(checker->module, mod_layer);
        *ROW(checker->module, mod_layer, row) = layer;
        warn_unused(checker, &layer, yield);
    }
    memo_set(checker, item.node, row);
    return row;
}
