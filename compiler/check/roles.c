// The built-in kernels as operators: what each takes, makes and can be told. A declaration that names a kernel must be
// that kernel's own, because later stages read arguments and options by these names; its costs, engines and defaults are
// free. What an argument may be made from is checked at every call.
#include "compiler/check/types.h"

#include <string.h>

enum takes { TAKES_PLAIN, TAKES_ROWS, TAKES_ROUTED, TAKES_ROUTES, TAKES_PARAM }; // TAKES_ROWS: plain or routed

enum { ROLE_ARGS = 3, ROLE_OPTIONS = 16, ROLE_PHASES = 3 };

struct role {
    const char *kernel;
    struct {
        const char *name, *type;
        enum takes takes;
    } args[ROLE_ARGS];
    const char *result;
    struct {
        const char *name, *type;
    } options[ROLE_OPTIONS];
    enum phase phases[ROLE_PHASES]; // in order; none: phase_whole alone
};

static const struct role roles[] = {
    {"route",
     {{"x", "any[n, h]", TAKES_PLAIN}, {"w", "any[e, h]", TAKES_PARAM}},
     "routes[n]",
     {{"k", "int"},
      {"score", "choice"},
      {"bias", "f32[e]"},
      {"logit_bias", "f32[e]"},
      {"noise", "f32"},
      {"groups", "int"},
      {"group_k", "int"},
      {"group_score", "choice"},
      {"normalize", "bool"},
      {"scale", "f32"},
      {"weight_on", "choice"},
      {"expert_capacity", "ratio"},
      {"expert_tokens", "f32"},
      {"temperature", "f32"},
      {"seed", "int"}},
     {phase_whole}},
    {"dispatch",
     {{"x", "any[n, h]", TAKES_PLAIN}, {"r", "routes[n]", TAKES_ROUTES}},
     "routed[m, h]",
     {{"wire", "format"}, {"capacity", "ratio"}, {"overflow", "choice"}, {"pool", "ratio"}, {"via", "choice"}},
     {phase_pack, phase_send, phase_recv}},
    {"grouped_mlp",
     {{"x", "any[m, h]", TAKES_ROWS},
      {"w_gate_up", "any[e, 2 * g, h]", TAKES_PARAM},
      {"w_down", "any[e, h, g]", TAKES_PARAM}},
     "any[m, h]",
     {{"activation", "choice"},
      {"alpha", "f32"},
      {"limit", "f32"},
      {"b_gate_up", "f32[e, 2 * g]"},
      {"b_down", "f32[e, h]"},
      {"arithmetic", "format"}},
     {phase_up, phase_down}},
    {"plain_mlp",
     {{"x", "any[m, h]", TAKES_ROWS}, {"w_up", "any[e, g, h]", TAKES_PARAM}, {"w_down", "any[e, h, g]", TAKES_PARAM}},
     "any[m, h]",
     {{"activation", "choice"}, {"b_up", "f32[e, g]"}, {"b_down", "f32[e, h]"}, {"arithmetic", "format"}},
     {phase_up, phase_down}},
    {"combine",
     {{"y", "routed[m, h]", TAKES_ROUTED}, {"r", "routes[n]", TAKES_ROUTES}},
     "any[n, h]",
     {{"wire", "format"}},
     {phase_send, phase_recv, phase_merge}},
    {"add",
     {{"a", "any[n, h]", TAKES_PLAIN}, {"b", "any[n, h]", TAKES_PLAIN}},
     "any[n, h]",
     {{NULL, NULL}},
     {phase_whole}},
    {"shift",
     {{"x", "any[n, h]", TAKES_PLAIN}, {"b", "any[h]", TAKES_PARAM}},
     "any[n, h]",
     {{NULL, NULL}},
     {phase_whole}},
    {"gate",
     {{"x", "any[n, h]", TAKES_PLAIN}, {"w_gate", "any[1, h]", TAKES_PARAM}, {"y", "any[n, h]", TAKES_PLAIN}},
     "any[n, h]",
     {{NULL, NULL}},
     {phase_whole}},
};

/// Options that a declaration may leave out: their value is then the one that changes nothing.
static bool is_optional(const char *option)
{
    static const char *const names[] = {"expert_tokens", "temperature", "seed", "b_gate_up", "b_up", "b_down", "arithmetic"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], option))
            return true;
    return false;
}

static const struct role *find_role(const char *kernel)
{
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(roles[i].kernel, kernel))
            return &roles[i];
    return NULL;
}

static const char *skip_blanks(const char *at)
{
    for (;;) {
        at += strspn(at, " \t\r\n");
        const char *end = !strncmp(at, "//", 2) ? strchr(at, '\n') : !strncmp(at, "/*", 2) ? strstr(at + 2, "*/") : at;
        if (end == at)
            return at;
        at = !end ? at + strlen(at) : *end == '*' ? end + 2 : end;
    }
}

/// Equal but for blanks and comments.
static bool same_type(const char *a, const char *b)
{
    for (a = skip_blanks(a), b = skip_blanks(b); *a && *a == *b; a = skip_blanks(a + 1), b = skip_blanks(b + 1))
        ;
    return *a == *b;
}

/// "(a: any[n, h], b: any[n, h]) -> any[n, h]"
static const char *signature(struct checker *checker, const struct role *role)
{
    const char *text = "(";
    for (size_t i = 0; i < ROLE_ARGS && role->args[i].name; i++)
        text = context_printf(checker->context, "%s%s%s: %s", text, i ? ", " : "", role->args[i].name,
                              role->args[i].type);
    return context_printf(checker->context, "%s) -> %s", text, role->result);
}

static bool refuse_signature(struct checker *checker, const struct role *role, struct span place, const char *found)
{
    struct diag *diag =
        diag_error(checker->context, E0201, place, "this is not the signature of the kernel `%s`", role->kernel);
    diag_label(checker->context, diag, "%s", found);
    diag_help(checker->context, diag, "declare it as `%s`", signature(checker, role));
    return false;
}

static bool check_signature(struct checker *checker, const struct role *role, node_id op)
{
    uint32_t count = 0;
    EACH_NODE(&checker->program->ast, id, node_of(checker, op)->slot[0]) {
        const char *name = name_text(checker, node_of(checker, id)->text);
        const char *type = source_text(checker, place_of(checker, node_of(checker, id)->slot[0]));
        if (count == ROLE_ARGS || !role->args[count].name)
            return refuse_signature(checker, role, place_of(checker, id), "one too many");
        if (strcmp(name, role->args[count].name) != 0 || !same_type(type, role->args[count].type))
            return refuse_signature(checker, role, place_of(checker, id),
                                    context_printf(checker->context, "expected `%s: %s`", role->args[count].name,
                                                   role->args[count].type));
        count++;
    }
    if (count < ROLE_ARGS && role->args[count].name)
        return refuse_signature(checker, role, name_place(checker, op),
                                context_printf(checker->context, "`%s` is missing", role->args[count].name));
    node_id result = node_of(checker, op)->slot[1];
    if (same_type(source_text(checker, place_of(checker, result)), role->result))
        return true;
    return refuse_signature(checker, role, place_of(checker, result),
                            context_printf(checker->context, "expected `%s`", role->result));
}

static bool check_option(struct checker *checker, const struct role *role, node_id declaration, node_id name,
                         uint32_t *seen)
{
    const char *text = name_text(checker, node_of(checker, name)->text);
    node_id type = node_of(checker, declaration)->slot[1];
    struct names candidates = {0};
    for (uint32_t i = 0; i < ROLE_OPTIONS && role->options[i].name; i++) {
        names_add(checker, &candidates, role->options[i].name);
        if (strcmp(role->options[i].name, text) != 0)
            continue;
        *seen |= 1u << i;
        if (same_type(source_text(checker, place_of(checker, type)), role->options[i].type))
            return true;
        struct diag *diag = diag_error(checker->context, E0201, place_of(checker, type),
                                       "option `%s` of the kernel `%s` has another type", text, role->kernel);
        diag_label(checker->context, diag, "expected `%s`", role->options[i].type);
        return false;
    }
    struct diag *diag = diag_error(checker->context, E0106, place_of(checker, name),
                                   "the kernel `%s` has no option `%s`", role->kernel, text);
    diag_label(checker->context, diag, "nothing would read it");
    suggest(checker, diag, "option", text, place_of(checker, name), &candidates);
    return false;
}

static bool check_options(struct checker *checker, const struct role *role, node_id op)
{
    uint32_t seen = 0;
    bool fine = true;
    EACH_NODE(&checker->program->ast, id, node_of(checker, op)->slot[2])
        if (node_of(checker, id)->kind == NODE_PARAM_DECL)
            EACH_NODE(&checker->program->ast, name, node_of(checker, id)->slot[0])
                fine = check_option(checker, role, id, name, &seen) && fine;
    for (uint32_t i = 0; i < ROLE_OPTIONS && role->options[i].name && fine; i++) {
        if (seen & 1u << i || is_optional(role->options[i].name))
            continue;
        struct diag *diag =
            diag_error(checker->context, E0107, name_place(checker, op), "operator `%s` lacks the option `%s`",
                       name_text(checker, node_of(checker, op)->text), role->options[i].name);
        diag_label(checker->context, diag, "the kernel `%s` reads it", role->kernel);
        diag_help(checker->context, diag, "declare `param %s: %s`", role->options[i].name, role->options[i].type);
        return false;
    }
    return fine;
}

static bool check_phases(struct checker *checker, const struct role *role, node_id op)
{
    const char *expected = "";
    bool whole = role->phases[0] == phase_whole;
    uint32_t count = 0, found = 0;
    while (!whole && count < ROLE_PHASES && role->phases[count] != phase_whole)
        count++;
    for (uint32_t i = 0; i < count; i++)
        expected = context_printf(checker->context, "%s%s%s", expected, i ? ", " : "", phase_words[role->phases[i]]);
    EACH_NODE(&checker->program->ast, id, node_of(checker, op)->slot[2]) {
        if (node_of(checker, id)->kind != NODE_PHASE)
            continue;
        const char *name = name_text(checker, node_of(checker, id)->text);
        if (found < count && !strcmp(name, phase_words[role->phases[found]])) {
            found++;
            continue;
        }
        struct diag *diag = diag_error(checker->context, E0201, name_place(checker, id),
                                       "these are not the phases of the kernel `%s`", role->kernel);
        diag_label(checker->context, diag, whole ? "it has none" : "expected %s, in this order", expected);
        return false;
    }
    bool joined = role->phases[0] == phase_up; // one task, unless a schedule names its phases: they may be left out
    if (found == count || (joined && !found))
        return true;
    struct diag *diag = diag_error(checker->context, E0107, name_place(checker, op), "operator `%s` lacks phase `%s`",
                                   name_text(checker, node_of(checker, op)->text), phase_words[role->phases[found]]);
    diag_label(checker->context, diag, "the kernel `%s` has %s, in this order", role->kernel, expected);
    return false;
}

bool check_role(struct checker *checker, const char *kernel, node_id op)
{
    const struct role *role = find_role(kernel);
    return !role || (check_signature(checker, role, op) && check_options(checker, role, op) &&
                     check_phases(checker, role, op));
}

/// What an argument is not, in words; NULL: it fits.
static const char *misfit(enum takes takes, const struct tensor *tensor)
{
    if (takes == TAKES_PARAM)
        return tensor->param == NONE ? "a parameter" : NULL;
    return tensor->value == NONE ? "rows of the layer" : NULL;
}

bool check_role_arguments(struct application *call, const char *kernel)
{
    struct checker *checker = call->layer->checker;
    const struct role *role = find_role(kernel);
    for (uint32_t i = 0; role && i < call->param_count; i++) {
        struct span place = place_of(checker, call->given[i]);
        const char *name = source_text(checker, place), *wanted = misfit(role->args[i].takes, call->tensors[i]);
        if (!wanted && role->args[i].takes == TAKES_PLAIN && call->tensors[i]->kind == value_kind_routed) {
            report_unbuilt(checker, place, context_printf(checker->context, "`%s` on routed rows is not built yet",
                                                          name_text(checker, node_of(checker, call->op.node)->text)));
            return false;
        }
        if (!wanted)
            continue;
        struct diag *diag = diag_error(checker->context, E0201, place, "`%s` takes %s here, and `%s` is %s",
                                       name_text(checker, node_of(checker, call->op.node)->text), wanted, name,
                                       role->args[i].takes == TAKES_PARAM ? "a value" : "a parameter");
        diag_label(checker->context, diag, "expected %s", wanted);
        diag_label_at(checker->context, diag, call->tensors[i]->declared,
                      call->tensors[i]->is_declared ? "declared here" : "made here");
        return false;
    }
    return true;
}
