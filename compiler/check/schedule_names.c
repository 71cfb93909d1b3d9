// The names inside a schedule: stages, phases, streams, engines, knobs, indices. Whether the order is legal is not decided
// here.
#include "compiler/check/check.h"

#include <string.h>

struct named {
    str_id name;
    struct span span;
};

struct name_list {
    struct named *items;
    uint32_t count, capacity;
};

struct schedule_scope {
    struct checker *checker;
    struct symbol item;
    struct symbol layer; // the layer it is for; node 0: any with `stages`
    node_id stages;
    struct name_list values; // knobs, lets, indices
    struct name_list streams;
    bool fine;
};

static void add_named(struct schedule_scope *scope, struct name_list *list, str_id name, struct span span,
                      const char *what)
{
    struct checker *checker = scope->checker;
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->items[i].name != name)
            continue;
        report_twice(checker, what, name_text(checker, name), span, list->items[i].span);
        scope->fine = false;
        return;
    }
    list->items = context_grow(checker->context, list->items, &list->capacity, list->count + 1, sizeof *list->items);
    list->items[list->count++] = (struct named){name, span};
}

static bool has_name(const struct name_list *list, str_id name)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->items[i].name == name)
            return true;
    return false;
}

// ---- stages and phases --------------------------------------------------------------------------------------------------

/// The STAGE of the layer, or the NAME in the schedule's own list.
static node_id find_stage(const struct schedule_scope *scope, str_id name)
{
    const struct checker *checker = scope->checker;
    node_id list = scope->layer.node ? node_of(checker, scope->layer.node)->slot[2] : scope->stages;
    uint16_t kind = scope->layer.node ? NODE_STAGE : NODE_NAME;
    EACH_NODE(&checker->program->ast, id, list)
        if (node_of(checker, id)->kind == kind && node_of(checker, id)->text == name)
            return id;
    return 0;
}

static void stage_names(const struct schedule_scope *scope, struct names *names)
{
    struct checker *checker = scope->checker;
    node_id list = scope->layer.node ? node_of(checker, scope->layer.node)->slot[2] : scope->stages;
    uint16_t kind = scope->layer.node ? NODE_STAGE : NODE_NAME;
    EACH_NODE(&checker->program->ast, id, list)
        if (node_of(checker, id)->kind == kind)
            names_add(checker, names, name_text(checker, node_of(checker, id)->text));
}

static void report_stage(struct schedule_scope *scope, str_id name, struct span span)
{
    struct checker *checker = scope->checker;
    struct names candidates = {0};
    node_id owner = scope->layer.node ? scope->layer.node : scope->item.node;
    stage_names(scope, &candidates);
    struct diag *diag =
        diag_error(checker->context, E0101, span, "%s `%s` has no stage `%s`", scope->layer.node ? "layer" : "schedule",
                   name_text(checker, node_of(checker, owner)->text), name_text(checker, name));
    diag_label(checker->context, diag, "unknown stage");
    diag_note_at(checker->context, diag, place_of(checker, owner), "its stages are %s",
                 names_join(checker, &candidates));
    suggest(checker, diag, "stage", name_text(checker, name), span, &candidates);
    scope->fine = false;
}

/// The phases that a stage's operator declares; all there are where the layer is open.
static void phase_names(const struct schedule_scope *scope, node_id stage, struct names *names)
{
    struct checker *checker = scope->checker;
    if (!scope->layer.node) {
        for (uint32_t i = phase_whole + 1; i < phase_words_count; i++)
            names_add(checker, names, phase_words[i]);
        return;
    }
    const struct ast_node *call = node_of(checker, node_of(checker, stage)->slot[1]);
    struct path path;
    if (node_of(checker, stage)->flag || call->kind != NODE_CALL || !path_of(checker, call->slot[0], &path))
        return;
    struct symbol op = resolve(checker, scope->layer.file, &path, NODE_OP, true);
    if (op.kind != SYMBOL_ITEM || node_of(checker, op.node)->kind != NODE_OP)
        return;
    EACH_NODE(&checker->program->ast, id, node_of(checker, op.node)->slot[2])
        if (node_of(checker, id)->kind == NODE_PHASE)
            names_add(checker, names, name_text(checker, node_of(checker, id)->text));
}

static void check_phase(struct schedule_scope *scope, node_id stage, const struct path *path)
{
    struct checker *checker = scope->checker;
    struct names candidates = {0};
    const char *name = name_text(checker, path->name[1]);
    phase_names(scope, stage, &candidates);
    for (uint32_t i = 0; i < candidates.count; i++)
        if (!strcmp(candidates.items[i], name))
            return;
    struct diag *diag = diag_error(checker->context, E0101, path->span[1], "stage `%s` has no phase `%s`",
                                   name_text(checker, path->name[0]), name);
    diag_label(checker->context, diag, "unknown phase");
    if (candidates.count)
        diag_note(checker->context, diag, "its phases are %s", names_join(checker, &candidates));
    suggest(checker, diag, "phase", name, path->span[1], &candidates);
    scope->fine = false;
}

static void check_stage_path(struct schedule_scope *scope, node_id node)
{
    struct checker *checker = scope->checker;
    struct path path;
    if (!path_of(checker, node, &path))
        return;
    node_id stage = find_stage(scope, path.name[0]);
    if (!stage) {
        report_stage(scope, path.name[0], path.span[0]);
    } else if (path.count > 2) {
        diag_error(checker->context, E0101, path.span[2], "a phase has no parts");
        scope->fine = false;
    } else if (path.count == 2) {
        check_phase(scope, stage, &path);
    }
}

// ---- expressions and streams --------------------------------------------------------------------------------------------

static void check_expression(struct schedule_scope *scope, node_id id);

static void check_expressions(struct schedule_scope *scope, node_id list)
{
    EACH_NODE(&scope->checker->program->ast, id, list)
        check_expression(scope, id);
}

static void check_value_name(struct schedule_scope *scope, node_id id)
{
    struct checker *checker = scope->checker;
    struct path path;
    if (!path_of(checker, id, &path))
        return;
    if (path.count == 1 && has_name(&scope->values, path.name[0]))
        return;
    struct symbol symbol = resolve(checker, scope->item.file, &path, NODE_NONE, true);
    if (symbol.kind)
        return;
    struct names candidates = {0};
    for (uint32_t i = 0; i < scope->values.count; i++)
        names_add(checker, &candidates, name_text(checker, scope->values.items[i].name));
    visible_names(checker, scope->item.file, NODE_DIM, &candidates);
    visible_names(checker, scope->item.file, NODE_CONST, &candidates);
    report_unknown(checker, "name", name_text(checker, path.name[0]), path.span[0], &candidates);
    scope->fine = false;
}

static void check_expression(struct schedule_scope *scope, node_id id)
{
    if (!id)
        return;
    const struct ast_node *node = node_of(scope->checker, id);
    switch (node->kind) {
    case NODE_NAME:
    case NODE_MEMBER:
        check_value_name(scope, id);
        break;
    case NODE_BINARY:
        check_expression(scope, node->slot[0]);
        check_expression(scope, node->slot[1]);
        break;
    case NODE_UNARY:
    case NODE_PAREN:
        check_expression(scope, node->slot[0]);
        break;
    case NODE_LIST:
        check_expressions(scope, node->slot[0]);
        break;
    default:
        break;
    }
}

static void check_stream(struct schedule_scope *scope, str_id name, struct span span)
{
    struct checker *checker = scope->checker;
    if (has_name(&scope->streams, name))
        return;
    struct names candidates = {0};
    for (uint32_t i = 0; i < scope->streams.count; i++)
        names_add(checker, &candidates, name_text(checker, scope->streams.items[i].name));
    report_unknown(checker, "stream", name_text(checker, name), span, &candidates);
    scope->fine = false;
}

static void check_record(struct schedule_scope *scope, node_id record, const char *const *names, uint32_t count,
                         const char *owner)
{
    struct checker *checker = scope->checker;
    if (!record)
        return;
    node_id fields = node_of(checker, record)->slot[0];
    scope->fine = check_attributes(checker, fields, names, count, owner) && scope->fine;
    EACH_NODE(&checker->program->ast, id, fields) {
        node_id value = node_of(checker, id)->slot[0];
        if (strcmp(name_text(checker, node_of(checker, id)->text), "priority") != 0) {
            check_expression(scope, value);
            continue;
        }
        static const char *const priorities[] = {"low", "normal", "high"};
        scope->fine = choose(checker, "priority", value, priorities, 3) >= 0 && scope->fine;
    }
}

static void check_engines(struct schedule_scope *scope, node_id uses)
{
    struct checker *checker = scope->checker;
    struct names candidates = {0};
    for (uint32_t i = 0; i < engine_words_count; i++)
        names_add(checker, &candidates, engine_words[i]);
    EACH_NODE(&checker->program->ast, id, uses) {
        const char *name = name_text(checker, node_of(checker, id)->text);
        bool known = false;
        for (uint32_t i = 0; i < engine_words_count && !known; i++)
            known = !strcmp(engine_words[i], name);
        if (!known)
            report_unknown(checker, "engine", name, name_place(checker, id), &candidates);
        node_id index = node_of(checker, id)->slot[0];
        if (known && index && strcmp(name, engine_words[engine_copy]) != 0) {
            report_single_engine(checker, id);
            known = false;
        }
        scope->fine = scope->fine && known;
        check_expression(scope, index);
    }
}

// ---- statements ---------------------------------------------------------------------------------------------------------

static void check_instances(struct schedule_scope *scope, node_id list)
{
    EACH_NODE(&scope->checker->program->ast, id, list) {
        check_stage_path(scope, node_of(scope->checker, id)->slot[0]);
        check_expressions(scope, node_of(scope->checker, id)->slot[1]);
    }
}

static void check_flow(struct schedule_scope *scope, node_id flow)
{
    const struct checker *checker = scope->checker;
    EACH_NODE(&checker->program->ast, chain, node_of(checker, flow)->slot[0]) {
        EACH_NODE(&checker->program->ast, step, node_of(checker, chain)->slot[0]) {
            const struct ast_node *node = node_of(checker, step);
            if (node->kind == NODE_FLOW) {
                check_flow(scope, step);
                continue;
            }
            check_instances(scope, node->slot[0]);
            if (node->slot[1])
                check_stream(scope, node_of(checker, node->slot[1])->text, place_of(checker, node->slot[1]));
            check_expression(scope, node->slot[2]);
        }
    }
}

static void check_split(struct schedule_scope *scope, node_id id)
{
    static const char *const names[] = {"ratio"};
    struct checker *checker = scope->checker;
    const struct ast_node *node = node_of(checker, id);
    struct path path;
    if (path_of(checker, node->slot[0], &path)) {
        const char *what = name_text(checker, path.name[0]);
        bool word = path.count == 1 && (!strcmp(what, "tokens") || !strcmp(what, "experts") || !strcmp(what, "layers"));
        if (!word && (path.count != 1 || !find_stage(scope, path.name[0]))) {
            struct names candidates = {0};
            stage_names(scope, &candidates);
            names_add(checker, &candidates, "tokens");
            names_add(checker, &candidates, "experts");
            names_add(checker, &candidates, "layers");
            report_unknown(checker, "part", source_text(checker, path.whole), path.whole, &candidates);
            scope->fine = false;
        }
    }
    check_expression(scope, node->slot[1]);
    check_record(scope, node->slot[2], names, 1, "`split`");
    add_named(scope, &scope->values, node->text, name_place(checker, id), "name");
}

static void check_statement(struct schedule_scope *scope, node_id id);
static void check_statements(struct schedule_scope *scope, node_id list);

static void check_block(struct schedule_scope *scope, node_id block)
{
    uint32_t values = scope->values.count;
    if (node_of(scope->checker, block)->kind == NODE_IF) // `else if`
        check_statement(scope, block);
    else
        check_statements(scope, node_of(scope->checker, block)->slot[0]);
    scope->values.count = values;
}

static void check_loop(struct schedule_scope *scope, node_id id)
{
    struct checker *checker = scope->checker;
    const struct ast_node *node = node_of(checker, id), *range = node_of(checker, node->slot[0]);
    uint32_t values = scope->values.count;
    check_expression(scope, range->slot[0]);
    check_expression(scope, range->slot[1]);
    if (!has_name(&scope->values, node->text)) // a loop may run over the index of a split
        add_named(scope, &scope->values, node->text, name_place(checker, id), "name");
    check_block(scope, node->slot[1]);
    scope->values.count = values;
}

static void check_bind(struct schedule_scope *scope, node_id id)
{
    static const char *const names[] = {"sm", "priority"};
    const struct checker *checker = scope->checker;
    const struct ast_node *node = node_of(checker, id);
    EACH_NODE(&checker->program->ast, path, node->slot[0])
        check_stage_path(scope, path);
    check_stream(scope, node->text, name_place(checker, id));
    check_expression(scope, node->slot[1]);
    check_record(scope, node->slot[2], names, 2, "`bind`");
}

/// The names in a budget: the metric's stream or instances, and what its limit is made of.
static void check_budget_names(struct schedule_scope *scope, node_id condition)
{
    struct checker *checker = scope->checker;
    const struct ast_node *node = node_of(checker, condition);
    struct budget budget;
    if (node->kind == NODE_PAREN) {
        check_budget_names(scope, node->slot[0]);
        return;
    }
    if (!read_budget(checker->context, &checker->program->ast, condition, &budget)) { // `and`
        check_budget_names(scope, node->slot[0]);
        check_budget_names(scope, node->slot[1]);
        return;
    }
    check_expression(scope, budget.limit);
    const struct ast_node *call = node_of(checker, budget.named);
    EACH_NODE(&checker->program->ast, id, call->kind == NODE_CALL ? call->slot[1] : 0) {
        node_id named = node_of(checker, id)->slot[0];
        const struct ast_node *value = node_of(checker, named);
        bool indexed = value->kind == NODE_INDEX;
        if (indexed)
            check_expressions(scope, value->slot[1]);
        named = indexed ? value->slot[0] : named;
        if (budget.metric == metric_overlap)
            check_stage_path(scope, named);
        if (budget.metric == metric_bubble)
            check_stream(scope, node_of(checker, named)->text, place_of(checker, named));
    }
}

static void check_assertion(struct schedule_scope *scope, node_id condition)
{
    if (check_condition(scope->checker, NULL, condition))
        check_budget_names(scope, condition);
    else
        scope->fine = false;
}

static void check_statement(struct schedule_scope *scope, node_id id)
{
    static const char *const fill_names[] = {"pieces"};
    struct checker *checker = scope->checker;
    const struct ast_node *node = node_of(checker, id);
    switch (node->kind) {
    case NODE_SPLIT:
        check_split(scope, id);
        break;
    case NODE_STREAM:
        check_expression(scope, node->slot[0]);
        check_engines(scope, node->slot[1]);
        break; // its name was added before, so that statements may stand in any order
    case NODE_BIND:
        check_bind(scope, id);
        break;
    case NODE_LOOP:
        check_loop(scope, id);
        break;
    case NODE_IF:
        check_expression(scope, node->slot[0]);
        check_block(scope, node->slot[1]);
        if (node->slot[2])
            check_block(scope, node->slot[2]);
        break;
    case NODE_FILL:
        check_stream(scope, node->text, name_place(checker, id));
        check_instances(scope, node->slot[0]);
        check_record(scope, node->slot[1], fill_names, 1, "`fill`");
        break;
    case NODE_DEFER:
        check_instances(scope, node->slot[0]);
        break;
    case NODE_ORDER:
        check_instances(scope, node->slot[0]);
        check_instances(scope, node->slot[1]);
        break;
    case NODE_LET:
        check_expression(scope, node->slot[0]);
        add_named(scope, &scope->values, node->text, name_place(checker, id), "name");
        break;
    case NODE_FLOW:
        check_flow(scope, id);
        break;
    case NODE_ASSERT:
        check_assertion(scope, node->slot[0]);
        break;
    default:
        break;
    }
}

static void check_statements(struct schedule_scope *scope, node_id list)
{
    const struct checker *checker = scope->checker;
    EACH_NODE(&checker->program->ast, id, list)
        if (node_of(checker, id)->kind == NODE_STREAM)
            add_named(scope, &scope->streams, node_of(checker, id)->text, name_place(checker, id), "stream");
    EACH_NODE(&checker->program->ast, id, list)
        check_statement(scope, id);
}

bool check_schedule_names(struct checker *checker, struct symbol item)
{
    const struct ast_node *node = node_of(checker, item.node);
    struct schedule_scope scope = {.checker = checker, .item = item, .fine = true};
    if (node->flag)
        scope.stages = node->slot[1];
    else if (!resolve_item(checker, item.file, node->slot[1], NODE_LAYER, &scope.layer))
        return false;
    EACH_NODE(&checker->program->ast, id, scope.stages)
        EACH_NODE(&checker->program->ast, before, scope.stages) {
            if (before == id)
                break;
            if (node_of(checker, before)->text != node_of(checker, id)->text)
                continue;
            report_twice(checker, "stage", name_text(checker, node_of(checker, id)->text), place_of(checker, id),
                         place_of(checker, before));
            scope.fine = false;
        }
    EACH_NODE(&checker->program->ast, id, node->slot[0])
        add_named(&scope, &scope.values, node_of(checker, id)->text, name_place(checker, id), "knob");
    check_statements(&scope, node_of(checker, node->slot[2])->slot[0]);
    return scope.fine;
}
