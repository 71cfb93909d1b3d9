// Constant expressions: integers, numbers, truth values, strings and quantities with typed units. Integer division rounds
// down, `mod` takes the sign of the divisor; overflow and division by zero are errors. `a * b` and `a / b` combine units
// where that has a meaning (amount / time is a rate).
#include "compiler/check/check.h"

#include <math.h>
#include <string.h>

struct constant integer_constant(int64_t value)
{
    return (struct constant){.kind = CONSTANT_INTEGER, .integer = value, .number = (double)value};
}

static struct constant bool_constant(bool value)
{
    return (struct constant){.kind = CONSTANT_BOOL, .integer = value};
}

static struct constant number_constant(enum constant_kind kind, double number)
{
    return (struct constant){.kind = kind, .number = number};
}

static bool report(struct checker *checker, node_id expression, const char *message, const char *label)
{
    struct diag *diag = diag_error(checker->context, E0202, place_of(checker, expression), "%s", message);
    diag_label(checker->context, diag, "%s", label);
    return false;
}

static bool report_operands(struct checker *checker, node_id expression, const struct constant *a,
                            const struct constant *b)
{
    const struct ast_node *node = node_of(checker, expression);
    bool numbers = a->kind != CONSTANT_BOOL && a->kind != CONSTANT_STRING && b->kind != CONSTANT_BOOL &&
                   b->kind != CONSTANT_STRING;
    struct diag *diag =
        diag_error(checker->context, numbers ? E0207 : E0201, node->span, "`%s` does not take %s and %s",
                   name_text(checker, node->text), kind_phrase(a->kind), kind_phrase(b->kind));
    diag_label(checker->context, diag, "kinds do not fit");
    return false;
}

static int64_t floor_divide(int64_t a, int64_t b)
{
    int64_t quotient = a / b;
    return a % b && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

static bool integer_operation(struct checker *checker, node_id expression, const char *op, int64_t a, int64_t b,
                              struct constant *value)
{
    int64_t result = 0;
    bool overflow = false;
    if (!strcmp(op, "+"))
        overflow = __builtin_add_overflow(a, b, &result);
    else if (!strcmp(op, "-"))
        overflow = __builtin_sub_overflow(a, b, &result);
    else if (!strcmp(op, "*"))
        overflow = __builtin_mul_overflow(a, b, &result);
    else if (b == 0)
        return report(checker, expression, "division by zero", "the divisor is 0");
    else if (a == INT64_MIN && b == -1)
        overflow = strcmp(op, "mod") != 0;
    else
        result = !strcmp(op, "/") ? floor_divide(a, b) : a - b * floor_divide(a, b);
    if (overflow)
        return report(checker, expression, "the result does not fit 64 bits", "overflows");
    *value = integer_constant(result);
    return true;
}

static bool is_plain(enum constant_kind kind)
{
    return kind == CONSTANT_INTEGER || kind == CONSTANT_FLOAT;
}

static bool is_factor(enum constant_kind kind)
{
    return is_plain(kind) || kind == CONSTANT_RATIO || kind == CONSTANT_SHARE;
}

static bool product_kind(enum constant_kind a, enum constant_kind b, enum constant_kind *kind)
{
    if (is_plain(a) && is_plain(b))
        *kind = CONSTANT_FLOAT;
    else if (is_plain(b) || (is_factor(b) && !is_plain(a)))
        *kind = a;
    else if (is_factor(a))
        *kind = b;
    else if ((a == CONSTANT_RATE && b == CONSTANT_TIME) || (a == CONSTANT_TIME && b == CONSTANT_RATE))
        *kind = CONSTANT_AMOUNT;
    else
        return false;
    return true;
}

static bool quotient_kind(enum constant_kind a, enum constant_kind b, enum constant_kind *kind)
{
    if (a == b || (is_plain(a) && is_plain(b)))
        *kind = CONSTANT_FLOAT;
    else if (is_factor(b))
        *kind = a;
    else if (a == CONSTANT_AMOUNT && b == CONSTANT_TIME)
        *kind = CONSTANT_RATE;
    else if (a == CONSTANT_AMOUNT && b == CONSTANT_RATE)
        *kind = CONSTANT_TIME;
    else
        return false;
    return true;
}

/// Times are in ns, rates per second.
static double unit_factor(enum constant_kind a, enum constant_kind b, enum constant_kind result)
{
    if (result == CONSTANT_AMOUNT && a != CONSTANT_AMOUNT && b != CONSTANT_AMOUNT)
        return 1e-9;
    bool crosses = a == CONSTANT_AMOUNT && (result == CONSTANT_RATE || result == CONSTANT_TIME);
    return crosses ? 1e9 : 1;
}

static bool arithmetic(struct checker *checker, node_id expression, const char *op, const struct constant *a,
                       const struct constant *b, struct constant *value)
{
    if (a->kind == CONSTANT_INTEGER && b->kind == CONSTANT_INTEGER)
        return integer_operation(checker, expression, op, a->integer, b->integer, value);
    enum constant_kind kind = CONSTANT_FLOAT;
    bool fits = a->kind != CONSTANT_BOOL && a->kind != CONSTANT_STRING && b->kind != CONSTANT_BOOL &&
                b->kind != CONSTANT_STRING;
    if (!strcmp(op, "*")) {
        if (!fits || !product_kind(a->kind, b->kind, &kind))
            return report_operands(checker, expression, a, b);
        *value = number_constant(kind, a->number * b->number * unit_factor(a->kind, b->kind, kind));
    } else if (!strcmp(op, "/")) {
        if (!fits || !quotient_kind(a->kind, b->kind, &kind))
            return report_operands(checker, expression, a, b);
        if (b->number == 0)
            return report(checker, expression, "division by zero", "the divisor is 0");
        *value = number_constant(kind, a->number / b->number * unit_factor(a->kind, b->kind, kind));
    } else {
        if (!fits || !(a->kind == b->kind || (is_plain(a->kind) && is_plain(b->kind))) || !strcmp(op, "mod"))
            return report_operands(checker, expression, a, b);
        kind = a->kind == b->kind ? a->kind : CONSTANT_FLOAT;
        *value = number_constant(kind, !strcmp(op, "+") ? a->number + b->number : a->number - b->number);
    }
    return isfinite(value->number) || !isfinite(a->number) || !isfinite(b->number) ||
           report(checker, expression, "the result is not a finite number", "overflows");
}

static bool comparison(struct checker *checker, node_id expression, const char *op, const struct constant *a,
                       const struct constant *b, struct constant *value)
{
    int order = 0;
    bool equality = !strcmp(op, "==") || !strcmp(op, "!=");
    if (a->kind == CONSTANT_INTEGER && b->kind == CONSTANT_INTEGER)
        order = (a->integer > b->integer) - (a->integer < b->integer);
    else if (a->kind == CONSTANT_STRING && b->kind == CONSTANT_STRING && equality)
        order = strcmp(a->text, b->text);
    else if (a->kind == CONSTANT_BOOL && b->kind == CONSTANT_BOOL && equality)
        order = (int)(a->integer - b->integer);
    else if ((a->kind == b->kind && a->kind != CONSTANT_STRING && a->kind != CONSTANT_BOOL) ||
             (is_plain(a->kind) && is_plain(b->kind)))
        order = (a->number > b->number) - (a->number < b->number);
    else
        return report_operands(checker, expression, a, b);
    bool result = !strcmp(op, "<")    ? order < 0
                  : !strcmp(op, ">")  ? order > 0
                  : !strcmp(op, "<=") ? order <= 0
                  : !strcmp(op, ">=") ? order >= 0
                  : !strcmp(op, "==") ? order == 0
                                      : order != 0;
    *value = bool_constant(result);
    return true;
}

static bool evaluate_truth(struct checker *checker, const struct scope *scope, const char *op, node_id operand,
                           struct constant *value)
{
    if (!evaluate(checker, scope, operand, value))
        return false;
    if (value->kind == CONSTANT_BOOL)
        return true;
    struct span span = place_of(checker, operand);
    struct diag *diag = diag_error(checker->context, E0201, span, "`%s` takes truth values, but `%s` is %s", op,
                                   source_text(checker, span), kind_phrase(value->kind));
    diag_label(checker->context, diag, "expected `true`, `false` or a comparison");
    return false;
}

static bool evaluate_binary(struct checker *checker, const struct scope *scope, node_id expression,
                            struct constant *value)
{
    const struct ast_node *node = node_of(checker, expression);
    const char *op = name_text(checker, node->text);
    node_id left = node->slot[0], right = node->slot[1];
    struct constant a, b;
    if (!strcmp(op, "and") || !strcmp(op, "or")) { // the right side counts only where the left leaves it open
        if (!evaluate_truth(checker, scope, op, left, &a))
            return false;
        bool decided = a.integer == !strcmp(op, "or");
        if (!decided && !evaluate_truth(checker, scope, op, right, &a))
            return false;
        *value = bool_constant(a.integer);
        return true;
    }
    if (!evaluate(checker, scope, left, &a) || !evaluate(checker, scope, right, &b))
        return false;
    if (strchr("<>=!", op[0]))
        return comparison(checker, expression, op, &a, &b, value);
    return arithmetic(checker, expression, op, &a, &b, value);
}

static bool evaluate_unary(struct checker *checker, const struct scope *scope, node_id expression,
                           struct constant *value)
{
    const struct ast_node *node = node_of(checker, expression);
    const char *op = name_text(checker, node->text);
    node_id operand = node->slot[0];
    if (!strcmp(op, "not")) {
        if (!evaluate_truth(checker, scope, op, operand, value))
            return false;
        *value = bool_constant(!value->integer);
        return true;
    }
    if (!evaluate(checker, scope, operand, value))
        return false;
    if (value->kind == CONSTANT_INTEGER)
        return integer_operation(checker, expression, "-", 0, value->integer, value);
    if (value->kind == CONSTANT_BOOL || value->kind == CONSTANT_STRING)
        return report(checker, expression, "`-` takes numbers", kind_phrase(value->kind));
    value->number = -value->number;
    return true;
}

static bool is_pending(const struct checker *checker, node_id node)
{
    for (const struct pending *outer = checker->pending; outer; outer = outer->outer)
        if (outer->node == node)
            return true;
    return false;
}

static uint32_t pending_depth(const struct checker *checker)
{
    uint32_t depth = 0;
    for (const struct pending *outer = checker->pending; outer; outer = outer->outer)
        depth++;
    return depth;
}

/// Reported at the first of the circle in the source, so that there is one message wherever evaluation began.
static bool report_circle(struct checker *checker, node_id node)
{
    node_id first = node;
    for (const struct pending *outer = checker->pending; outer && outer->node != node; outer = outer->outer)
        first = outer->node < first ? outer->node : first;
    const struct ast_node *item = node_of(checker, first);
    return report(checker, item->slot[0],
                  context_printf(checker->context, "`%s` needs itself", name_text(checker, item->text)),
                  "part of a circle");
}

enum { CHAIN_LIMIT = 200 }; // definitions that rest on one another, each with frames on the stack

struct known_constant {
    enum { CONSTANT_UNKNOWN, CONSTANT_GOOD, CONSTANT_WRONG } is;
    struct constant value;
};

void forget_constants(struct checker *checker, struct program_text *program)
{
    program->known_count = program->ast.count;
    program->known = context_alloc(checker->context, (size_t)program->known_count * sizeof *program->known);
}

static bool evaluate_definition(struct checker *checker, struct symbol symbol, struct constant *value)
{
    const struct ast_node *node = node_of(checker, symbol.node);
    if (is_pending(checker, symbol.node))
        return report_circle(checker, symbol.node);
    if (pending_depth(checker) >= CHAIN_LIMIT) {
        diag_error(checker->context, E0007, name_place(checker, symbol.node),
                   "constants rest on one another more than %d deep", CHAIN_LIMIT);
        return false;
    }
    struct pending pending = {symbol.node, checker->pending};
    checker->pending = &pending;
    struct scope inner = {.file = symbol.file};
    bool fine = evaluate(checker, &inner, node->slot[0], value);
    if (fine && node->kind == NODE_DIM)
        fine = expect_kind(checker, name_text(checker, node->text), node->slot[0], value, CONSTANT_INTEGER) &&
               expect_range(checker, name_text(checker, node->text), node->slot[0], value->integer, 1, INT32_MAX);
    checker->pending = pending.outer;
    return fine;
}

/// A definition has one value wherever it is used, so each is evaluated once, however many others rest on it.
bool evaluate_item(struct checker *checker, struct symbol symbol, const struct scope *scope, struct constant *value)
{
    if (scope && symbol.node == scope->tokens_dim && symbol.node) {
        *value = integer_constant(scope->tokens);
        return true;
    }
    const struct program_text *program = checker->program;
    struct known_constant none = {CONSTANT_UNKNOWN, {0}};
    struct known_constant *known = symbol.node < program->known_count ? &program->known[symbol.node] : &none;
    if (known->is == CONSTANT_UNKNOWN)
        known->is = evaluate_definition(checker, symbol, &known->value) ? CONSTANT_GOOD : CONSTANT_WRONG;
    *value = known->value;
    return known->is == CONSTANT_GOOD;
}

static bool evaluate_name(struct checker *checker, const struct scope *scope, node_id expression,
                          struct constant *value)
{
    struct path path;
    if (!path_of(checker, expression, &path))
        return json_element(checker, scope, expression, value);
    if (path.count == 1) {
        for (uint32_t i = scope->local_count; i-- > 0;) {
            if (scope->locals[i].name == path.name[0]) {
                *value = scope->locals[i].value;
                return true;
            }
        }
    }
    if (path.count == 1 && !strcmp(name_text(checker, path.name[0]), "inf") &&
        !find_name(checker, scope->file, path.name[0]).kind) {
        *value = number_constant(CONSTANT_FLOAT, INFINITY);
        return true;
    }
    struct symbol symbol = resolve(checker, scope->file, &path, NODE_NONE, false);
    if (!symbol.kind)
        return false;
    if (symbol.kind == SYMBOL_JSON)
        return json_constant(checker, &symbol, &path, value);
    uint16_t kind = symbol.kind == SYMBOL_ITEM ? node_of(checker, symbol.node)->kind : NODE_NONE;
    if (kind == NODE_DIM || kind == NODE_CONST)
        return evaluate_item(checker, symbol, scope, value);
    const char *word = kind ? item_word(kind) : "module";
    struct diag *diag = diag_error(checker->context, E0201, path.whole, "`%s` is %s %s, not a constant",
                                   source_text(checker, path.whole), article(word), word);
    diag_label(checker->context, diag, "a dim, a constant or a JSON key is expected");
    return false;
}

bool evaluate(struct checker *checker, const struct scope *scope, node_id expression, struct constant *value)
{
    const struct ast_node *node = node_of(checker, expression);
    switch (node->kind) {
    case NODE_INT:
        *value = integer_constant(node->integer);
        return true;
    case NODE_BOOL:
        *value = bool_constant(node->integer);
        return true;
    case NODE_FLOAT:
        *value = number_constant(CONSTANT_FLOAT, node->number);
        return true;
    case NODE_PERCENT:
        *value = number_constant(CONSTANT_SHARE, node->number / 100);
        return true;
    case NODE_QUANTITY:
        return unit_constant(name_text(checker, node->text), node->number, value) ||
               report(checker, expression, "unknown unit", "not a unit");
    case NODE_STRING:
        *value = (struct constant){.kind = CONSTANT_STRING, .text = name_text(checker, node->text)};
        return true;
    case NODE_PAREN:
        return evaluate(checker, scope, node->slot[0], value);
    case NODE_BINARY:
        return evaluate_binary(checker, scope, expression, value);
    case NODE_UNARY:
        return evaluate_unary(checker, scope, expression, value);
    case NODE_NAME:
    case NODE_MEMBER:
    case NODE_INDEX:
    case NODE_PATH:
        return evaluate_name(checker, scope, expression, value);
    default:
        return report(checker, expression, "this is not a constant", "not known before a run");
    }
}

bool evaluate_among(struct context *context, const struct program_text *program, uint32_t file, node_id expression,
                    const struct name_value *names, uint32_t name_count, enum constant_kind kind, const char *what,
                    struct constant *constant)
{
    enum { FEW = 32 };
    struct local few[FEW];
    struct local *locals = name_count <= FEW ? few : context_alloc(context, name_count * sizeof *locals);
    for (uint32_t i = 0; i < name_count; i++)
        locals[i] = (struct local){names[i].name, integer_constant(names[i].value)};
    struct checker checker = {.context = context, .program = program};
    struct scope scope = {.file = file, .locals = locals, .local_count = name_count};
    bool fine = evaluate_as(&checker, &scope, what, expression, kind, constant);
    json_close(&checker);
    return fine;
}

bool evaluate_integer(struct context *context, const struct program_text *program, uint32_t file, node_id expression,
                      const struct name_value *names, uint32_t name_count, const char *what, int64_t *value)
{
    struct constant result;
    bool fine = evaluate_among(context, program, file, expression, names, name_count, CONSTANT_INTEGER, what, &result);
    if (fine)
        *value = result.integer;
    return fine;
}

bool evaluate_condition(struct context *context, const struct program_text *program, uint32_t file, node_id expression,
                        const struct name_value *names, uint32_t name_count, bool *value)
{
    struct constant result;
    bool fine =
        evaluate_among(context, program, file, expression, names, name_count, CONSTANT_BOOL, "the condition", &result);
    if (fine)
        *value = result.integer != 0;
    return fine;
}
