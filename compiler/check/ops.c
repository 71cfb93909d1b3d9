// Operators: their declarations (engines, phases, kernels) and the options of a call, each with its default.
#include "compiler/check/types.h"

#include <math.h>
#include <string.h>

const char *type_word(const struct checker *checker, node_id type)
{
    node_id path = node_of(checker, type)->slot[0];
    return name_text(checker, node_of(checker, node_of(checker, path)->slot[0])->text);
}

static int phase_number(const char *name)
{
    for (uint32_t i = phase_whole + 1; i < phase_words_count; i++)
        if (!strcmp(phase_words[i], name))
            return (int)i;
    return -1;
}

/// Engines and cost of an op's phase, or of an op without phases.
static bool read_work(struct checker *checker, uint32_t file, node_id members, const char *owner,
                      struct mod_phase *phase)
{
    static const char *const names[] = {"flops", "bytes"};
    node_id flops = find_attribute(checker, members, "flops"), bytes = find_attribute(checker, members, "bytes");
    bool fine = check_attributes(checker, members, names, 2, owner);
    phase->flops = flops ? node_of(checker, flops)->slot[0] : 0;
    phase->bytes = bytes ? node_of(checker, bytes)->slot[0] : 0;
    EACH_NODE(&checker->program->ast, id, members)
        if (node_of(checker, id)->kind == NODE_USES)
            fine = read_engines(checker, file, node_of(checker, id)->slot[0], &phase->engines, NULL) && fine;
    return fine;
}

static bool read_phase(struct checker *checker, uint32_t file, node_id id, struct mod_phase *phase)
{
    const struct ast_node *node = node_of(checker, id);
    const char *name = name_text(checker, node->text);
    int number = phase_number(name);
    if (number < 0) {
        struct names candidates = {0};
        for (uint32_t i = phase_whole + 1; i < phase_words_count; i++)
            names_add(checker, &candidates, phase_words[i]);
        report_unknown(checker, "phase", name, name_place(checker, id), &candidates);
        return false;
    }
    phase->phase = (uint32_t)number;
    return read_work(checker, file, node->slot[0], context_printf(checker->context, "phase `%s`", name), phase);
}

/// `kernel cpu "add";`: one for each target, and the declaration must be the kernel's.
static bool read_kernel(struct checker *checker, node_id members, node_id id, struct mod_op *row)
{
    const struct ast_node *node = node_of(checker, id);
    EACH_NODE(&checker->program->ast, other, members) {
        if (other == id)
            break;
        if (node_of(checker, other)->kind != NODE_KERNEL || node_of(checker, other)->text != node->text)
            continue;
        report_twice(checker, "kernel", name_text(checker, node->text), place_of(checker, id),
                     place_of(checker, other));
        return false;
    }
    if (!strcmp(name_text(checker, node->text), "cpu"))
        row->kernel = module_name(checker, node_of(checker, node->slot[0])->text);
    return true;
}

static bool read_op(struct checker *checker, struct symbol item, struct mod_op *row)
{
    enum { MOST = phase_words_count };
    struct mod_phase phases[MOST] = {0};
    uint32_t count = 0;
    const char *name = name_text(checker, node_of(checker, item.node)->text);
    node_id members = node_of(checker, item.node)->slot[2];
    bool fine = true;
    EACH_NODE(&checker->program->ast, id, members) {
        const struct ast_node *node = node_of(checker, id);
        if (node->kind == NODE_KERNEL)
            fine = read_kernel(checker, members, id, row) && fine;
        if (node->kind == NODE_PHASE && count < MOST) {
            fine = read_phase(checker, item.file, id, &phases[count]) && fine;
            count++;
        }
    }
    if (fine && !check_role(checker, ir_text(checker->module, row->kernel), item.node))
        return false;
    if (!count++)
        fine =
            read_work(checker, item.file, members, context_printf(checker->context, "operator `%s`", name), &phases[0]);
    else
        count--;
    row->phases = (struct rows){COUNT(checker->module, mod_phase), count};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t phase = ADD(checker->module, mod_phase);
        *ROW(checker->module, mod_phase, phase) = phases[i];
    }
    return fine;
}

uint32_t elaborate_op(struct checker *checker, struct symbol item)
{
    uint32_t row;
    if (memo_find(checker, item.node, &row))
        return row;
    struct mod_op op = {
        .name = module_name(checker, node_of(checker, item.node)->text), .file = item.file, .node = item.node};
    row = NONE;
    if (read_op(checker, item, &op)) {
        row = ADD(checker->module, mod_op);
        *ROW(checker->module, mod_op, row) = op;
    }
    memo_set(checker, item.node, row);
    return row;
}

// ---- options ----------------------------------------------------------------------------------------------------------

static const char *const weight_on_words[] = {"output", "input"};

/// The words that a choice takes; options that are not listed take any name (`via` names an axis of the cluster).
static const struct {
    const char *option;
    const char *const *words;
    uint32_t count;
} choices[] = {
    {"score", score_words, score_words_count},
    {"activation", activation_words, activation_words_count},
    {"overflow", overflow_words, overflow_words_count},
    {"group_score", group_score_words, group_score_words_count},
    {"weight_on", weight_on_words, 2},
};

static bool read_choice(struct application *call, const struct scope *scope, const char *name, node_id expression,
                        struct mod_arg *arg)
{
    struct checker *checker = call->layer->checker;
    const struct ast_node *node = node_of(checker, expression);
    const char *word = name_text(checker, node->text);
    struct constant value;
    if (node->kind != NODE_NAME) { // a string of a configuration: `activation: hf.hidden_act`
        if (!evaluate_as(checker, scope, name, expression, CONSTANT_STRING, &value))
            return false;
        word = value.text;
    }
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        if (strcmp(choices[i].option, name) != 0)
            continue;
        bool known = false;
        for (uint32_t w = 0; w < choices[i].count && !known; w++)
            known = !strcmp(choices[i].words[w], word);
        if (!known) {
            choose(checker, name, expression, choices[i].words, choices[i].count);
            return false;
        }
    }
    arg->choice = ir_str(checker->module, word);
    return true;
}

static bool read_format_option(struct application *call, uint32_t file, node_id expression, struct mod_arg *arg);

/// A format for each axis that the record names; which axes there are, the pipeline's cluster says.
static bool read_axis_formats(struct application *call, uint32_t file, node_id record, struct mod_arg *arg)
{
    struct checker *checker = call->layer->checker;
    node_id fields = node_of(checker, record)->slot[0];
    struct mod_axis_format *rows = NULL;
    uint32_t count = 0, capacity = 0;
    bool fine = true;
    EACH_NODE(&checker->program->ast, id, fields) {
        const struct ast_node *node = node_of(checker, id);
        const char *name = name_text(checker, node->text);
        node_id first = find_attribute(checker, fields, name);
        struct mod_arg one = {.format = NONE};
        if (first != id) {
            report_twice(checker, "attribute", name, name_place(checker, id), name_place(checker, first));
            fine = false;
        } else if (!read_format_option(call, file, node->slot[0], &one)) {
            fine = false;
        } else {
            rows = context_grow(checker->context, rows, &capacity, count + 1, sizeof *rows);
            rows[count++] = (struct mod_axis_format){module_name(checker, node->text), one.format, id};
        }
    }
    arg->axis_formats = (struct rows){COUNT(checker->module, mod_axis_format), count};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t row = ADD(checker->module, mod_axis_format);
        *ROW(checker->module, mod_axis_format, row) = rows[i];
    }
    if (fine && !count)
        diag_error(checker->context, E0107, place_of(checker, record), "no axis has a format");
    return fine && count;
}

/// A format, or the element type of an argument: the default `x.dtype`.
static bool read_format_option(struct application *call, uint32_t file, node_id expression, struct mod_arg *arg)
{
    struct checker *checker = call->layer->checker;
    const struct ast_node *node = node_of(checker, expression);
    struct path path;
    if (node->kind == NODE_RECORD)
        return read_axis_formats(call, file, expression, arg);
    if (path_of(checker, expression, &path) && path.count == 2 && !strcmp(name_text(checker, path.name[1]), "dtype")) {
        for (uint32_t i = 0; i < call->param_count; i++) {
            if (node_of(checker, call->params[i])->text == path.name[0] && file == call->op.file) {
                arg->format = call->tensors[i]->format;
                return true;
            }
        }
    }
    arg->format = elaborate_format(checker, file, expression);
    return arg->format != NONE;
}

static bool read_number(struct application *call, const struct scope *scope, const char *name, const char *type,
                        node_id expression, struct mod_arg *arg)
{
    static const struct {
        const char *type;
        enum constant_kind kind;
    } kinds[] = {{"int", CONSTANT_INTEGER}, {"f32", CONSTANT_FLOAT},   {"float", CONSTANT_FLOAT},
                 {"bool", CONSTANT_BOOL},   {"ratio", CONSTANT_RATIO}, {"amount", CONSTANT_AMOUNT},
                 {"rate", CONSTANT_RATE},   {"time", CONSTANT_TIME},   {"share", CONSTANT_SHARE}};
    struct checker *checker = call->layer->checker;
    struct constant value;
    if (!evaluate(checker, scope, expression, &value))
        return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].type, type) != 0)
            continue;
        bool unlimited = value.kind == CONSTANT_FLOAT && isinf(value.number) && value.number > 0;
        if (!(unlimited && kinds[i].kind == CONSTANT_RATIO) &&
            !expect_kind(checker, name, expression, &value, kinds[i].kind))
            return false;
        if (kinds[i].kind == CONSTANT_RATIO && value.number < 0) {
            struct diag *diag =
                diag_error(checker->context, E0206, place_of(checker, expression), "`%s` is negative", name);
            diag_label(checker->context, diag, "at least `0x`");
            return false;
        }
        arg->number = kinds[i].kind == CONSTANT_BOOL ? (double)value.integer : value.number;
        return kinds[i].kind != CONSTANT_INTEGER ||
               expect_range(checker, name, expression, value.integer, 1, INT32_MAX);
    }
    return diag_error(checker->context, E0201, call->layer->checker->program->ast.nodes[call->op.node].name_span,
                      "option `%s` has the unknown type `%s`", name, type),
           false;
}

static bool read_tensor_option(struct application *call, const struct scope *scope, const char *name, node_id type,
                               node_id declared, node_id expression, bool given, struct mod_arg *arg)
{
    struct checker *checker = call->layer->checker;
    const struct ast_node *node = node_of(checker, expression);
    if (!given || node->kind != NODE_NAME || !find_layer_name(call->layer, node->text)) {
        struct constant value;
        if (!evaluate_as(checker, scope, name, expression, CONSTANT_FLOAT, &value))
            return false;
        arg->number = value.number;
        return true;
    }
    const struct tensor *tensor = find_tensor(call->layer, expression);
    if (!tensor || !unify_tensor(call, type, tensor, expression, declared))
        return false;
    arg->value = tensor->value;
    arg->param = tensor->param;
    uint32_t wanted = dtype_format(checker, dtype_f32);
    if (tensor->format != NONE && formats_meet(checker, tensor->format, wanted))
        return true;
    struct diag *diag =
        diag_error(checker->context, E0203, place_of(checker, expression), "`%s` is f32, but `%s` is %s", name,
                   source_text(checker, place_of(checker, expression)), format_name(checker, tensor->format));
    diag_label(checker->context, diag, "element types differ");
    return false;
}

static node_id given_option(const struct application *call, str_id name)
{
    const struct checker *checker = call->layer->checker;
    EACH_NODE(&checker->program->ast, id, node_of(checker, call->call)->slot[1])
        if (node_of(checker, id)->text == name)
            return id;
    return 0;
}

static bool read_option(struct application *call, node_id declaration, node_id name_node, struct mod_arg *arg)
{
    struct checker *checker = call->layer->checker;
    const struct ast_node *node = node_of(checker, declaration);
    str_id id = node_of(checker, name_node)->text;
    const char *name = name_text(checker, id), *type = type_word(checker, node->slot[1]);
    node_id given = given_option(call, id), type_node = node->slot[1];
    node_id expression = given ? node_of(checker, given)->slot[0] : node->slot[2];
    *arg = (struct mod_arg){
        .name = module_name(checker, id), .value = NONE, .param = NONE, .format = NONE, .given = given != 0};
    if (!expression) {
        struct diag *diag = diag_error(checker->context, E0107, place_of(checker, call->call), "`%s` needs `%s`",
                                       name_text(checker, node_of(checker, call->op.node)->text), name);
        diag_label(checker->context, diag, "`%s:` is missing", name);
        diag_note_at(checker->context, diag, place_of(checker, declaration), "it has no default");
        return false;
    }
    struct scope scope = call->layer->scope;
    if (!given)
        scope = (struct scope){.file = call->op.file};
    if (node_of(checker, type_node)->slot[1])
        return read_tensor_option(call, &scope, name, type_node, name_node, expression, given, arg);
    if (!strcmp(type, "choice"))
        return read_choice(call, &scope, name, expression, arg);
    if (!strcmp(type, "format"))
        return read_format_option(call, scope.file, expression, arg);
    return read_number(call, &scope, name, type, expression, arg);
}

static const struct mod_arg *find_arg(const struct checker *checker, const struct mod_arg *args, uint32_t count,
                                      const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(ir_text(checker->module, args[i].name), name))
            return &args[i];
    return NULL;
}

/// Where an option's value stands; the call where it is a default.
static node_id option_place(const struct application *call, const char *name)
{
    struct checker *checker = call->layer->checker;
    node_id given = given_option(call, intern(checker->context, name));
    return given ? node_of(checker, given)->slot[0] : call->call;
}

/// What a router's numbers must be to one another.
static bool check_router(struct application *call, const struct mod_arg *args, uint32_t count)
{
    struct checker *checker = call->layer->checker;
    const struct mod_arg *k = find_arg(checker, args, count, "k"), *groups = find_arg(checker, args, count, "groups");
    const struct mod_arg *group_k = find_arg(checker, args, count, "group_k");
    struct variable *experts = find_variable(call, intern(checker->context, "e"));
    if (!k || !groups || !group_k || !experts)
        return true;
    node_id k_node = option_place(call, "k"), groups_node = option_place(call, "groups");
    node_id group_k_node = option_place(call, "group_k");
    int64_t e = experts->dim.value, g = (int64_t)groups->number;
    if (e % g) {
        struct diag *diag =
            diag_error(checker->context, E0206, place_of(checker, groups_node), "%s do%s not divide into %lld groups",
                       counted(checker->context, e, "expert"), e == 1 ? "es" : "", (long long)g);
        diag_label(checker->context, diag, "%lld left over", (long long)(e % g));
        return false;
    }
    const struct mod_arg *group_score = find_arg(checker, args, count, "group_score");
    const struct mod_arg *stray = group_k->given ? group_k : group_score && group_score->given ? group_score : NULL;
    if (!groups->given && stray) {
        const char *name = ir_text(checker->module, stray->name);
        struct diag *diag = diag_error(checker->context, E0106, place_of(checker, option_place(call, name)),
                                       "`%s` is for a router with `groups`", name);
        diag_label(checker->context, diag, "nothing would read it");
        diag_help(checker->context, diag, "say how many groups there are, as in `groups: 8`");
        return false;
    }
    if (!expect_range(checker, "group_k", group_k_node, (int64_t)group_k->number, 1, g))
        return false;
    int64_t reachable = e / g * (int64_t)group_k->number;
    return expect_range(checker, "k", k_node, (int64_t)k->number, 1, reachable);
}

/// A router's numbers that are no counts: finite, or a limit that may be missing, and not negative.
static bool check_numbers(struct application *call, const struct mod_arg *args, uint32_t count)
{
    static const struct {
        const char *name;
        bool above, unlimited; // more than 0; may be inf
    } rules[] = {{"noise", false, false}, {"temperature", true, false}, {"expert_tokens", false, true}};
    struct checker *checker = call->layer->checker;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const struct mod_arg *arg = find_arg(checker, args, count, rules[i].name);
        bool endless = arg && !isfinite(arg->number) && !rules[i].unlimited;
        if (!arg || (!endless && arg->number >= 0 && (arg->number > 0 || !rules[i].above)))
            continue;
        const char *what = endless ? "not finite" : rules[i].above ? "not above 0" : "negative";
        struct diag *diag = diag_error(checker->context, E0206, place_of(checker, option_place(call, rules[i].name)),
                                       "`%s` is %s", rules[i].name, what);
        diag_label(checker->context, diag, rules[i].above ? "more than 0 is expected" : "at least 0 is expected");
        return false;
    }
    return true;
}

/// Numbers of the clamped activation, given where another one is chosen or where they clamp nothing sensible.
static bool check_activation(struct application *call, const struct mod_arg *args, uint32_t count)
{
    static const char *const only[] = {"alpha", "limit"};
    struct checker *checker = call->layer->checker;
    const struct mod_arg *activation = find_arg(checker, args, count, "activation");
    bool clamped = activation && !strcmp(ir_text(checker->module, activation->choice), "clamped_silu");
    // A configuration's activation may be the clamped one in another checkpoint.
    bool open = activation && activation->given &&
                node_of(checker, option_place(call, "activation"))->kind != NODE_NAME;
    for (size_t i = 0; activation && i < sizeof only / sizeof *only; i++) {
        const struct mod_arg *arg = find_arg(checker, args, count, only[i]);
        bool read = clamped || open;
        if (!arg || !arg->given || (read && arg->number > 0))
            continue;
        struct diag *diag = diag_error(checker->context, read ? E0206 : E0106,
                                       place_of(checker, option_place(call, only[i])),
                                       read ? "`%s` is not above 0" : "`%s` is for `clamped_silu` alone", only[i]);
        diag_label(checker->context, diag, read ? "more than 0 is expected" : "nothing would read it");
        return false;
    }
    const struct mod_arg *scale = find_arg(checker, args, count, "scale");
    if (!scale || isfinite(scale->number))
        return true;
    struct diag *diag =
        diag_error(checker->context, E0206, place_of(checker, option_place(call, "scale")), "`scale` is not finite");
    diag_label(checker->context, diag, "a number is expected");
    return false;
}

bool read_options(struct application *call, struct mod_arg *args, uint32_t *arg_count)
{
    struct checker *checker = call->layer->checker;
    bool fine = true;
    uint32_t first = *arg_count;
    EACH_NODE(&checker->program->ast, id, node_of(checker, call->op.node)->slot[2]) {
        if (node_of(checker, id)->kind != NODE_PARAM_DECL)
            continue;
        EACH_NODE(&checker->program->ast, name, node_of(checker, id)->slot[0]) {
            if (*arg_count == MAX_ARGS)
                return fine;
            fine = read_option(call, id, name, &args[*arg_count]) && fine;
            (*arg_count)++;
        }
    }
    return fine && check_router(call, args + first, *arg_count - first) &&
           check_numbers(call, args + first, *arg_count - first) &&
           check_activation(call, args + first, *arg_count - first);
}
