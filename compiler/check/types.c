// The type rules of an operator: its declaration names sizes (`w_down: any[e, h, g]`), the arguments give them values, and
// a size written as `2 * g` is solved for g. A mismatch says where each size came from.
#include "compiler/check/types.h"

#include <string.h>

bool dims_equal(const struct dim *a, const struct dim *b)
{
    return a->value == b->value && a->owner == b->owner;
}

const char *dims_text(struct checker *checker, const struct dim *dims, uint32_t count)
{
    const char *text = "[";
    for (uint32_t i = 0; i < count; i++)
        text = context_printf(checker->context, "%s%s%s", text, i ? ", " : "", dims[i].text);
    return context_printf(checker->context, "%s]", text);
}

struct variable *find_variable(struct application *call, str_id name)
{
    for (uint32_t i = 0; i < call->variable_count; i++)
        if (call->variables[i].name == name)
            return &call->variables[i];
    return NULL;
}

static bool bind_variable(struct application *call, str_id name, struct dim dim, const char *source)
{
    if (call->variable_count == MAX_VARIABLES)
        return false;
    call->variables[call->variable_count++] = (struct variable){name, dim, source};
    return true;
}

/// constant + factor * variable; `fine` is false for what is not of this form.
struct linear {
    bool fine;
    int64_t constant, factor;
    str_id variable;
};

static struct linear combine(const char *op, struct linear a, struct linear b)
{
    struct linear result = {.fine = a.fine && b.fine && (!a.variable || !b.variable)};
    result.variable = a.variable ? a.variable : b.variable;
    bool overflow = false;
    if (!strcmp(op, "*")) {
        int64_t scale = a.variable ? b.constant : a.constant;
        struct linear scaled = a.variable ? a : b;
        overflow = __builtin_mul_overflow(scaled.constant, scale, &result.constant) ||
                   __builtin_mul_overflow(scaled.factor, scale, &result.factor);
    } else if (!strcmp(op, "+")) {
        overflow = __builtin_add_overflow(a.constant, b.constant, &result.constant) ||
                   __builtin_add_overflow(a.factor, b.factor, &result.factor);
    } else if (!strcmp(op, "-")) {
        overflow = __builtin_sub_overflow(a.constant, b.constant, &result.constant) ||
                   __builtin_sub_overflow(a.factor, b.factor, &result.factor);
    } else {
        result.fine = false;
    }
    result.fine = result.fine && !overflow;
    return result;
}

/// An op's size expression with the sizes known so far put in.
static struct linear linear_form(struct application *call, node_id expression)
{
    const struct checker *checker = call->layer->checker;
    const struct ast_node *node = node_of(checker, expression);
    if (node->kind == NODE_INT)
        return (struct linear){.fine = true, .constant = node->integer};
    if (node->kind == NODE_PAREN)
        return linear_form(call, node->slot[0]);
    if (node->kind == NODE_NAME) {
        struct variable *known = find_variable(call, node->text);
        if (known)
            return (struct linear){.fine = !known->dim.owner, .constant = known->dim.value};
        return (struct linear){.fine = true, .factor = 1, .variable = node->text};
    }
    if (node->kind == NODE_BINARY)
        return combine(name_text(checker, node->text), linear_form(call, node->slot[0]),
                       linear_form(call, node->slot[1]));
    return (struct linear){0};
}

/// The size expression as it reads with the layer's sizes: `2 * g` is "2 * ffn".
static const char *substitute(struct application *call, node_id expression)
{
    struct checker *checker = call->layer->checker;
    const struct ast_node *node = node_of(checker, expression);
    if (node->kind == NODE_NAME) {
        struct variable *known = find_variable(call, node->text);
        return known ? known->dim.text : name_text(checker, node->text);
    }
    if (node->kind == NODE_BINARY)
        return context_printf(checker->context, "%s %s %s", substitute(call, node->slot[0]),
                              name_text(checker, node->text), substitute(call, node->slot[1]));
    return source_text(checker, node->span);
}

/// The text of the g in `2 * g` where the layer wrote `2 * ffn`.
static const char *solved_text(struct checker *checker, const struct dim *found, int64_t factor, int64_t value)
{
    if (found->node) {
        const struct ast_node *node = node_of(checker, found->node);
        if (node->kind == NODE_BINARY && !strcmp(name_text(checker, node->text), "*")) {
            for (int side = 0; side < 2; side++) {
                const struct ast_node *literal = node_of(checker, node->slot[side]);
                if (literal->kind == NODE_INT && literal->integer == factor)
                    return source_text(checker, place_of(checker, node->slot[!side]));
            }
        }
    }
    return context_printf(checker->context, "%lld", (long long)value);
}

static bool unify_dim(struct application *call, node_id expression, const struct dim *found, const char *source)
{
    struct checker *checker = call->layer->checker;
    const struct ast_node *node = node_of(checker, expression);
    if (node->kind == NODE_NAME) {
        struct variable *known = find_variable(call, node->text);
        return known ? dims_equal(&known->dim, found) : bind_variable(call, node->text, *found, source);
    }
    struct linear form = linear_form(call, expression);
    if (!form.fine || found->owner)
        return false;
    if (!form.variable)
        return form.constant == found->value;
    int64_t rest;
    if (__builtin_sub_overflow(found->value, form.constant, &rest) || form.factor == 0 || rest % form.factor ||
        rest / form.factor < 1)
        return false;
    int64_t value = rest / form.factor;
    struct dim dim = {.value = value, .text = solved_text(checker, found, form.factor, value)};
    return bind_variable(call, form.variable, dim, source);
}

/// Adds "h = hidden comes from `xd`" for the variables of one expression that do not come from the argument `own`.
static const char *origins(struct application *call, node_id expression, const char *own, const char *text)
{
    struct checker *checker = call->layer->checker;
    const struct ast_node *node = node_of(checker, expression);
    if (node->kind == NODE_BINARY)
        return origins(call, node->slot[1], own, origins(call, node->slot[0], own, text));
    struct variable *known = node->kind == NODE_NAME ? find_variable(call, node->text) : NULL;
    if (!known || !strcmp(known->source, own) ||
        strstr(text, context_printf(checker->context, " %s = ", name_text(checker, node->text))))
        return text;
    return context_printf(checker->context, "%s%c %s = %s%s from `%s`", text, *text ? ',' : ';',
                          name_text(checker, node->text), known->dim.text, *text ? "" : " comes", known->source);
}

static void suggest_swap(struct checker *checker, struct diag *diag, const struct tensor *tensor,
                         const struct dim *expected, const bool *wrong)
{
    int32_t first = -1, last = -1;
    uint32_t count = 0;
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        if (!wrong[i])
            continue;
        first = first < 0 ? (int32_t)i : first;
        last = (int32_t)i;
        count++;
    }
    if (!tensor->is_declared || count != 2 || strcmp(tensor->dims[first].text, expected[last].text) != 0 ||
        strcmp(tensor->dims[last].text, expected[first].text) != 0)
        return;
    const char *format = source_text(checker, tensor->declared);
    const char *bracket = strchr(format, '[');
    const char *which = (uint32_t)last == tensor->dim_count - 1 && last == first + 1 ? "the last two dimensions"
                        : first == 0 && last == 1
                            ? "the first two dimensions"
                            : context_printf(checker->context, "dimensions %d and %d", first + 1, last + 1);
    diag_help(checker->context, diag, "swap %s", which);
    fix_in_column(checker, diag, tensor->declared,
                  context_printf(checker->context, "%.*s%s", bracket ? (int)(bracket - format) : 0, format,
                                 dims_text(checker, expected, tensor->dim_count)));
}

/// `declared`: the op's PARAM, or its PARAM_DECL's name for an option. `one_expert`: all that is missing is the leading 1.
static void report_shape(struct application *call, node_id type, const struct tensor *tensor, node_id expression,
                         node_id declared, const bool *wrong, bool one_expert)
{
    struct checker *checker = call->layer->checker;
    struct context *context = checker->context;
    const char *op = name_text(checker, node_of(checker, call->op.node)->text);
    const char *name = source_text(checker, place_of(checker, expression)), *sources = "";
    struct dim expected[MAX_DIMS];
    uint32_t count = 0;
    EACH_NODE(&checker->program->ast, id, node_of(checker, type)->slot[1]) {
        if (count < tensor->dim_count && wrong[count])
            sources = origins(call, id, name, sources);
        if (count < MAX_DIMS)
            expected[count++] = (struct dim){.text = substitute(call, id)};
    }
    struct diag *diag =
        diag_error(context, E0204, place_of(checker, expression), "`%s` has the wrong shape for `%s`", name, op);
    diag_label(context, diag, "expected %s, found %s", dims_text(checker, expected, count),
               dims_text(checker, tensor->dims, tensor->dim_count));
    diag_label_at(context, diag, tensor->declared, tensor->is_declared ? "declared here" : "made here");
    diag_note_at(context, diag, place_of(checker, call->op.node), "`%s` is declared with %s: %s%s", op,
                 name_text(checker, node_of(checker, declared)->text), source_text(checker, place_of(checker, type)),
                 sources);
    if (count == tensor->dim_count)
        suggest_swap(checker, diag, tensor, expected, wrong);
    if (one_expert) {
        expected[0].text = "1";
        const char *format = source_text(checker, tensor->declared), *bracket = strchr(format, '[');
        diag_help(context, diag, "one expert for all tokens is `%s`", dims_text(checker, expected, count));
        fix_in_column(checker, diag, tensor->declared,
                      context_printf(context, "%.*s%s", bracket ? (int)(bracket - format) : 0, format,
                                     dims_text(checker, expected, count)));
    }
}

/// Experts of routes and routed rows are the op's size `e`, so that weights for another number of experts are found.
static bool unify_experts(struct application *call, const struct tensor *tensor, node_id expression)
{
    struct checker *checker = call->layer->checker;
    if (!tensor->experts)
        return true;
    str_id name = intern(checker->context, "e");
    const char *source = source_text(checker, place_of(checker, expression));
    struct dim dim = {.value = tensor->experts, .text = tensor->experts_text};
    struct variable *known = find_variable(call, name);
    if (!known)
        return bind_variable(call, name, dim, source);
    if (dims_equal(&known->dim, &dim))
        return true;
    struct diag *diag = diag_error(checker->context, E0204, place_of(checker, expression),
                                   "`%s` routes to %lld experts, but `%s` to %lld", source, (long long)tensor->experts,
                                   known->source, (long long)known->dim.value);
    diag_label(checker->context, diag, "%s, expected %s", dim.text, known->dim.text);
    diag_label_at(checker->context, diag, tensor->declared, "made here");
    return false;
}

/// Gives the sizes of a type, from the one numbered `from` on, their values; `wrong`: which do not fit.
static bool unify_dims(struct application *call, node_id type, uint32_t from, const struct dim *dims, const char *source,
                       bool *wrong)
{
    const struct checker *checker = call->layer->checker;
    uint32_t number = 0;
    bool fine = true;
    EACH_NODE(&checker->program->ast, id, node_of(checker, type)->slot[1]) {
        if (number >= from) {
            wrong[number - from] = !unify_dim(call, id, &dims[number - from], source);
            fine = fine && !wrong[number - from];
        }
        number++;
    }
    return fine;
}

/// Where exchanging two sizes makes them fit, these two are what is wrong: the first of them may have named a size of the
/// operator (`e`) that the second one has. The variables are left as of the exchanged sizes.
static bool fits_swapped(struct application *call, node_id type, const struct tensor *tensor, const char *source,
                         bool *wrong)
{
    uint32_t before = call->variable_count;
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        for (uint32_t j = i + 1; j < tensor->dim_count; j++) {
            struct tensor swapped = *tensor;
            swapped.dims[i] = tensor->dims[j];
            swapped.dims[j] = tensor->dims[i];
            if (unify_dims(call, type, 0, swapped.dims, source, wrong)) {
                wrong[i] = wrong[j] = true;
                return true;
            }
            call->variable_count = before;
        }
    }
    return false;
}

bool unify_tensor(struct application *call, node_id type, const struct tensor *tensor, node_id expression,
                  node_id declared)
{
    struct checker *checker = call->layer->checker;
    bool wrong[MAX_DIMS] = {0}, fine = unify_experts(call, tensor, expression);
    const char *source = source_text(checker, place_of(checker, expression));
    uint32_t count = 0, before = call->variable_count;
    node_id leading = node_of(checker, type)->slot[1];
    if (!fine)
        return false;
    EACH_NODE(&checker->program->ast, id, leading)
        count++;
    if (count != tensor->dim_count) {
        bool unbound = leading && node_of(checker, leading)->kind == NODE_NAME &&
                       !find_variable(call, node_of(checker, leading)->text);
        bool one = count == 3 && tensor->dim_count == 2 && unbound && tensor->is_declared &&
                   unify_dims(call, type, 1, tensor->dims, source, wrong);
        memset(wrong, 0, sizeof wrong);
        report_shape(call, type, tensor, expression, declared, wrong, one);
        return false;
    }
    if (unify_dims(call, type, 0, tensor->dims, source, wrong))
        return true;
    call->variable_count = before;
    if (!fits_swapped(call, type, tensor, source, wrong))
        unify_dims(call, type, 0, tensor->dims, source, wrong);
    report_shape(call, type, tensor, expression, declared, wrong, false);
    return false;
}

static const char *kind_word(enum value_kind kind)
{
    return kind == value_kind_plain ? "a plain tensor" : kind == value_kind_routes ? "routes" : "a routed tensor";
}

static bool check_kind(struct application *call, node_id param, const struct tensor *tensor, node_id expression)
{
    struct checker *checker = call->layer->checker;
    const char *word = type_word(checker, node_of(checker, param)->slot[0]);
    enum value_kind wanted = !strcmp(word, "routes")   ? value_kind_routes
                             : !strcmp(word, "routed") ? value_kind_routed
                                                       : value_kind_plain;
    bool any = !strcmp(word, "any") && tensor->kind == value_kind_routed;
    if (any || tensor->kind == wanted)
        return true;
    struct diag *diag =
        diag_error(checker->context, E0201, place_of(checker, expression), "`%s` is %s, but `%s` takes %s here",
                   source_text(checker, place_of(checker, expression)), kind_word(tensor->kind),
                   name_text(checker, node_of(checker, call->op.node)->text), kind_word(wanted));
    diag_label(checker->context, diag, "expected %s", source_text(checker, place_of(checker, param)));
    diag_label_at(checker->context, diag, tensor->declared, tensor->is_declared ? "declared here" : "made here");
    return false;
}

/// Elements must meet those of the first argument, or the type that the op's declaration names.
static bool check_elements(struct application *call, node_id param, const struct tensor *tensor, node_id expression)
{
    struct checker *checker = call->layer->checker;
    const char *word = type_word(checker, node_of(checker, param)->slot[0]);
    uint32_t wanted = call->tensors[0]->format;
    const char *of = source_text(checker, place_of(checker, call->given[0]));
    if (tensor->kind == value_kind_routes)
        return true;
    for (uint32_t i = dtype_none + 1; i < dtype_words_count; i++) {
        if (!strcmp(word, dtype_words[i])) {
            wanted = dtype_format(checker, (enum dtype)i);
            of = word;
        }
    }
    if (wanted == NONE || formats_meet(checker, tensor->format, wanted))
        return true;
    struct diag *diag = diag_error(checker->context, E0203, place_of(checker, expression), "`%s` is %s, but `%s` is %s",
                                   source_text(checker, place_of(checker, expression)),
                                   context_printf(checker->context, "%s", format_name(checker, tensor->format)), of,
                                   context_printf(checker->context, "%s", format_name(checker, wanted)));
    diag_label(checker->context, diag, "element types differ");
    diag_label_at(checker->context, diag, tensor->declared, tensor->is_declared ? "declared here" : "made here");
    diag_note(checker->context, diag, "bf16 and f16 widen to f32; other types do not mix");
    return false;
}

bool unify_arguments(struct application *call)
{
    bool fine = true;
    for (uint32_t i = 0; i < call->param_count; i++)
        fine = check_kind(call, call->params[i], call->tensors[i], call->given[i]) && fine;
    for (uint32_t i = 0; i < call->param_count && fine; i++)
        fine = unify_tensor(call, node_of(call->layer->checker, call->params[i])->slot[0], call->tensors[i],
                            call->given[i], call->params[i]);
    for (uint32_t i = 1; i < call->param_count && fine; i++)
        fine = check_elements(call, call->params[i], call->tensors[i], call->given[i]);
    return fine;
}

bool make_result(struct application *call, struct tensor *result)
{
    struct checker *checker = call->layer->checker;
    node_id type = node_of(checker, call->op.node)->slot[1];
    const char *word = type_word(checker, type);
    const struct tensor *first = call->tensors[0];
    struct variable *experts = find_variable(call, intern(checker->context, "e"));
    result->format = first->format;
    result->kind = !strcmp(word, "routes")   ? value_kind_routes
                   : !strcmp(word, "routed") ? value_kind_routed
                                             : value_kind_plain;
    for (uint32_t i = dtype_none + 1; i < dtype_words_count; i++)
        if (!strcmp(word, dtype_words[i]))
            result->format = dtype_format(checker, (enum dtype)i);
    EACH_NODE(&checker->program->ast, id, node_of(checker, type)->slot[1]) {
        struct linear form = linear_form(call, id);
        const struct ast_node *node = node_of(checker, id);
        struct variable *known = node->kind == NODE_NAME ? find_variable(call, node->text) : NULL;
        struct dim dim = {.value = form.constant, .text = substitute(call, id)};
        if (known)
            dim = known->dim;
        else if (node->kind == NODE_NAME)
            dim = (struct dim){.owner = call->stage, .text = "rows"};
        else if (!form.fine || form.variable)
            return diag_error(checker->context, E0202, place_of(checker, id),
                              "this size does not follow from the arguments"),
                   false;
        if (result->dim_count < MAX_DIMS)
            result->dims[result->dim_count++] = dim;
    }
    // `any` keeps routed rows routed; an op that brings rows home has other rows than its argument.
    if (!strcmp(word, "any") && first->kind == value_kind_routed && result->dim_count &&
        dims_equal(&result->dims[0], &first->dims[0]))
        result->kind = value_kind_routed;
    if (result->kind == value_kind_routes)
        result->format = NONE;
    if (result->kind != value_kind_plain && experts) {
        result->experts = experts->dim.value;
        result->experts_text = experts->dim.text;
    }
    return true;
}
