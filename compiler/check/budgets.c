// Budgets, `assert` and `expect`: comparisons of a metric with a limit of its unit, joined by `and`. Here their form is
// checked; compiler/simulate evaluates them against a predicted step. An assertion between the items of a file is one
// about constants.
#include "compiler/check/check.h"

#include <string.h>

enum argument { ARGUMENT_NONE, ARGUMENT_STREAM, ARGUMENT_ENGINE, ARGUMENT_INSTANCES };

static const struct {
    enum constant_kind kind;
    enum argument argument;
    const char *example;
} metrics[metric_words_count] = {
    [metric_exposed_comm] = {CONSTANT_SHARE, ARGUMENT_NONE, "exposed_comm < 10%"},
    [metric_speedup] = {CONSTANT_RATIO, ARGUMENT_NONE, "speedup > 1.4x"},
    [metric_latency] = {CONSTANT_TIME, ARGUMENT_NONE, "latency < 45ms"},
    [metric_bubble] = {CONSTANT_SHARE, ARGUMENT_STREAM, "bubble(comp) < 10%"},
    [metric_utilization] = {CONSTANT_SHARE, ARGUMENT_ENGINE, "utilization(sm) > 85%"},
    [metric_bytes] = {CONSTANT_AMOUNT, ARGUMENT_ENGINE, "bytes(net_out) < 320MB"},
    [metric_peak_memory] = {CONSTANT_AMOUNT, ARGUMENT_NONE, "peak_memory < 6GB"},
    [metric_overlap] = {CONSTANT_SHARE, ARGUMENT_INSTANCES, "overlap(dispatch[1], expert[0]) > 80%"},
    [metric_mfu] = {CONSTANT_SHARE, ARGUMENT_NONE, "mfu > 40%"},
};

static int metric_named(const char *name)
{
    for (uint32_t i = 0; i < metric_words_count; i++)
        if (!strcmp(metric_words[i], name))
            return (int)i;
    return -1;
}

/// The metric that an expression is, a name or a call of one; -1: something else.
static int metric_of(const struct context *context, const struct ast *ast, node_id id)
{
    const struct ast_node *node = node_at(ast, id);
    if (node->kind == NODE_CALL)
        node = node_at(ast, node->slot[0]);
    return node->kind == NODE_NAME ? metric_named(text_of(context, node->text)) : -1;
}

/// As seen from the limit: `10% > exposed_comm` is `exposed_comm < 10%`.
static const char *turned(const char *op)
{
    static const char *const pairs[][2] = {{"<", ">"}, {">", "<"}, {"<=", ">="}, {">=", "<="}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (!strcmp(op, pairs[i][0]))
            return pairs[i][1];
    return op;
}

bool read_budget(const struct context *context, const struct ast *ast, node_id comparison, struct budget *budget)
{
    const struct ast_node *node = node_at(ast, comparison);
    const char *op = text_of(context, node->text);
    if (node->kind != NODE_BINARY || !strchr("<>=!", *op))
        return false;
    int left = metric_of(context, ast, node->slot[0]), right = metric_of(context, ast, node->slot[1]);
    if ((left < 0) == (right < 0))
        return false;
    bool turn = left < 0;
    *budget = (struct budget){.metric = (enum metric)(turn ? right : left),
                              .node = comparison,
                              .named = node->slot[turn],
                              .limit = node->slot[!turn],
                              .compare = turn ? turned(op) : op};
    return true;
}

bool evaluate_limit(struct context *context, const struct program_text *program, uint32_t file,
                    const struct budget *budget, const struct name_value *names, uint32_t name_count, double *value)
{
    struct constant constant;
    bool fine = evaluate_among(context, program, file, budget->limit, names, name_count, metrics[budget->metric].kind,
                               metric_words[budget->metric], &constant);
    if (fine)
        *value = constant.number;
    return fine;
}

// ---- form -------------------------------------------------------------------------------------------------------------

static bool report_form(struct checker *checker, node_id id)
{
    const struct ast_node *node = node_of(checker, id);
    struct span span = place_of(checker, id);
    const struct ast_node *side = node;
    while (side->kind == NODE_BINARY || side->kind == NODE_PAREN || side->kind == NODE_CALL || side->kind == NODE_INDEX)
        side = node_of(checker, side->slot[0]);
    struct names candidates = {0};
    for (uint32_t i = 0; i < metric_words_count; i++)
        names_add(checker, &candidates, metric_words[i]);
    if (node->kind == NODE_BINARY && strchr("<>=!", *name_text(checker, node->text)) && side->kind == NODE_NAME &&
        metric_named(name_text(checker, side->text)) < 0) {
        const char *name = name_text(checker, side->text);
        struct diag *diag = diag_error(checker->context, E0101, side->span, "unknown metric `%s`", name);
        diag_label(checker->context, diag, "not a metric");
        diag_note(checker->context, diag, "the metrics are %s", names_join(checker, &candidates));
        suggest(checker, diag, "metric", name, side->span, &candidates);
        return false;
    }
    struct diag *diag = diag_error(checker->context, E0201, span, "a budget compares one metric with a limit");
    diag_label(checker->context, diag, "expected as in `exposed_comm < 10%%`");
    diag_note(checker->context, diag, "the metrics are %s", names_join(checker, &candidates));
    diag_help(checker->context, diag, "join several with `and`, or write a statement for each");
    return false;
}

static bool report_arguments(struct checker *checker, const struct budget *budget, const char *takes)
{
    const char *name = metric_words[budget->metric];
    struct diag *diag =
        diag_error(checker->context, E0205, place_of(checker, budget->named), "`%s` takes %s", name, takes);
    diag_label(checker->context, diag, "expected as in `%s`", metrics[budget->metric].example);
    return false;
}

/// `net` alone is what a stream's engines look like in many minds; what it sends is the side that budgets are about.
static bool check_engine(struct checker *checker, const struct budget *budget, node_id value)
{
    struct names candidates = {0};
    struct span span = place_of(checker, value);
    const struct ast_node *node = node_of(checker, value);
    const char *word = node->kind == NODE_NAME ? name_text(checker, node->text) : source_text(checker, span);
    for (uint32_t i = 0; i < engine_words_count; i++) {
        if (node->kind == NODE_NAME && !strcmp(word, engine_words[i]))
            return true;
        names_add(checker, &candidates, engine_words[i]);
    }
    struct diag *diag = diag_error(checker->context, E0208, span, "`%s` takes an engine, which `%s` is not",
                                   metric_words[budget->metric], word);
    diag_label(checker->context, diag, "one of %s", names_join(checker, &candidates));
    if (strcmp(word, "net"))
        suggest(checker, diag, "engine", word, span, &candidates);
    else {
        diag_help(checker->context, diag, "`net_out` is what a rank sends, `net_in` what it receives");
        diag_fix(checker->context, diag, span, "net_out");
    }
    return false;
}

static bool check_arguments(struct checker *checker, const struct budget *budget)
{
    static const char *const takes[] = {[ARGUMENT_NONE] = "no argument",
                                        [ARGUMENT_STREAM] = "the name of a stream",
                                        [ARGUMENT_ENGINE] = "an engine",
                                        [ARGUMENT_INSTANCES] = "two instances"};
    enum argument wanted = metrics[budget->metric].argument;
    const struct ast_node *call = node_of(checker, budget->named);
    node_id values[2] = {0};
    uint32_t count = 0;
    EACH_NODE(&checker->program->ast, id, call->kind == NODE_CALL ? call->slot[1] : 0) {
        if (count < 2)
            values[count] = node_of(checker, id)->text ? 0 : node_of(checker, id)->slot[0];
        count++;
    }
    uint32_t needed = wanted == ARGUMENT_NONE ? 0 : wanted == ARGUMENT_INSTANCES ? 2 : 1;
    if (count != needed || (needed && !values[0]) || (needed == 2 && !values[1]) || (!needed && call->kind == NODE_CALL))
        return report_arguments(checker, budget, takes[wanted]);
    if (wanted == ARGUMENT_ENGINE)
        return check_engine(checker, budget, values[0]);
    for (uint32_t i = 0; i < count; i++) {
        uint16_t kind = node_of(checker, values[i])->kind;
        bool stream = kind == NODE_NAME || kind == NODE_INDEX;
        if (!stream && (wanted != ARGUMENT_INSTANCES || kind != NODE_MEMBER))
            return report_arguments(checker, budget, takes[wanted]);
    }
    return true;
}

bool check_condition(struct checker *checker, const struct scope *scope, node_id condition)
{
    const struct ast_node *node = node_of(checker, condition);
    struct budget budget;
    struct constant limit;
    if (node->kind == NODE_PAREN)
        return check_condition(checker, scope, node->slot[0]);
    if (node->kind == NODE_BINARY && !strcmp(name_text(checker, node->text), "and")) {
        bool left = check_condition(checker, scope, node->slot[0]);
        return check_condition(checker, scope, node->slot[1]) && left;
    }
    if (!read_budget(checker->context, &checker->program->ast, condition, &budget))
        return report_form(checker, condition);
    return check_arguments(checker, &budget) &&
           (!scope || evaluate_as(checker, scope, metric_words[budget.metric], budget.limit, metrics[budget.metric].kind,
                                  &limit));
}

bool check_pipeline_budgets(struct checker *checker, struct symbol pipeline)
{
    bool fine = true;
    struct scope scope = {.file = pipeline.file};
    EACH_NODE(&checker->program->ast, id, node_of(checker, pipeline.node)->slot[0])
        if (node_of(checker, id)->kind == NODE_ASSERT)
            fine = check_condition(checker, &scope, node_of(checker, id)->slot[0]) && fine;
    return fine;
}

void check_file_assertions(struct checker *checker)
{
    struct scope scope = {.file = checker->root_file};
    EACH_NODE(&checker->program->ast, id, node_of(checker, checker->root)->slot[0]) {
        const struct ast_node *node = node_of(checker, id);
        struct constant value;
        if (node->kind != NODE_ASSERT ||
            !evaluate_as(checker, &scope, "assert", node->slot[0], CONSTANT_BOOL, &value) || value.integer)
            continue;
        const char *text = node->slot[1] ? name_text(checker, node_of(checker, node->slot[1])->text) : "it does not hold";
        struct span span = place_of(checker, node->slot[0]);
        struct diag *diag = node->flag ? diag_warning(checker->context, E0401, span, "expectation not met: %s", text)
                                       : diag_error(checker->context, E0401, span, "assertion not met: %s", text);
        diag_label(checker->context, diag, "false for these constants");
    }
}
