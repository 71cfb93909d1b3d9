// Monitors: what is tracked at run time, when to alert, which parameter to move. They do not run yet; names, kinds of
// values, arguments and the parameter are checked in full all the same.
#include "compiler/check/check.h"

#include <string.h>

enum watched { WATCHED_WRONG, WATCHED_NUMBER, WATCHED_VECTOR, WATCHED_TRUTH, WATCHED_TRUTHS };

static const char *const watched_phrases[] = {
    [WATCHED_WRONG] = "", [WATCHED_NUMBER] = "a number", [WATCHED_VECTOR] = "one number per expert",
    [WATCHED_TRUTH] = "a truth value", [WATCHED_TRUTHS] = "one truth value per expert"};

static const struct {
    const char *name;
    enum watched kind;
} signals[] = {
    {"tokens_per_expert", WATCHED_VECTOR}, {"overflow_rate", WATCHED_NUMBER}, {"dropped_rate", WATCHED_NUMBER},
    {"overflow_rounds", WATCHED_NUMBER},   {"queue_depth", WATCHED_NUMBER},   {"stage_time", WATCHED_NUMBER},
};

static const struct {
    const char *name;
    enum watched takes, gives; // WATCHED_WRONG: takes numbers and vectors, gives the same
} functions[] = {
    {"max", WATCHED_VECTOR, WATCHED_NUMBER},   {"min", WATCHED_VECTOR, WATCHED_NUMBER},
    {"mean", WATCHED_VECTOR, WATCHED_NUMBER},  {"sum", WATCHED_VECTOR, WATCHED_NUMBER},
    {"count", WATCHED_TRUTHS, WATCHED_NUMBER}, {"normalized_entropy", WATCHED_VECTOR, WATCHED_NUMBER},
    {"sign", WATCHED_WRONG, WATCHED_WRONG},    {"abs", WATCHED_WRONG, WATCHED_WRONG},
};
enum { SIGNALS = sizeof signals / sizeof *signals, FUNCTIONS = sizeof functions / sizeof *functions };

struct track {
    str_id name;
    enum watched kind;
};

struct monitor {
    struct checker *checker;
    struct symbol item, layer;
    struct track *tracks;
    uint32_t count, capacity;
};

static enum watched kind_of(struct monitor *m, node_id id);

static enum watched report_kind(struct monitor *m, node_id id, enum watched found, const char *wanted)
{
    struct span span = place_of(m->checker, id);
    struct diag *diag = diag_error(m->checker->context, E0201, span, "`%s` is %s", source_text(m->checker, span),
                                   watched_phrases[found]);
    diag_label(m->checker->context, diag, "expected %s", wanted);
    return WATCHED_WRONG;
}

static const struct track *find_track(const struct monitor *m, str_id name)
{
    for (uint32_t i = 0; i < m->count; i++)
        if (m->tracks[i].name == name)
            return &m->tracks[i];
    return NULL;
}

/// What is tracked before, a signal of the runtime, or a constant.
static enum watched kind_of_name(struct monitor *m, node_id id)
{
    struct checker *checker = m->checker;
    struct path path;
    if (!path_of(checker, id, &path))
        return WATCHED_WRONG;
    const struct track *track = path.count == 1 ? find_track(m, path.name[0]) : NULL;
    if (track)
        return track->kind;
    const char *name = name_text(checker, path.name[0]);
    for (uint32_t i = 0; i < SIGNALS && path.count == 1; i++)
        if (!strcmp(signals[i].name, name))
            return signals[i].kind;
    struct scope scope = {.file = m->item.file};
    struct constant value;
    if (resolve(checker, m->item.file, &path, NODE_NONE, true).kind)
        return evaluate(checker, &scope, id, &value) ? WATCHED_NUMBER : WATCHED_WRONG;
    struct names candidates = {0};
    for (uint32_t i = 0; i < m->count; i++)
        names_add(checker, &candidates, name_text(checker, m->tracks[i].name));
    for (uint32_t i = 0; i < SIGNALS; i++)
        names_add(checker, &candidates, signals[i].name);
    report_unknown(checker, "signal", name, path.span[0], &candidates);
    return WATCHED_WRONG;
}

static enum watched kind_of_call(struct monitor *m, node_id id)
{
    struct checker *checker = m->checker;
    const struct ast_node *node = node_of(checker, id), *callee = node_of(checker, node->slot[0]);
    struct names candidates = {0};
    for (uint32_t i = 0; i < FUNCTIONS; i++) {
        names_add(checker, &candidates, functions[i].name);
        if (callee->kind != NODE_NAME || strcmp(functions[i].name, name_text(checker, callee->text)) != 0)
            continue;
        node_id argument = node->slot[1];
        if (!argument || node_of(checker, argument)->next || node_of(checker, argument)->text) {
            struct diag *diag =
                diag_error(checker->context, E0205, node->span, "`%s` takes one value", functions[i].name);
            diag_label(checker->context, diag, "expected as in `%s(load)`", functions[i].name);
            return WATCHED_WRONG;
        }
        node_id value = node_of(checker, argument)->slot[0];
        enum watched found = kind_of(m, value);
        if (found == WATCHED_WRONG)
            return WATCHED_WRONG;
        if (functions[i].takes == WATCHED_WRONG)
            return found == WATCHED_NUMBER || found == WATCHED_VECTOR ? found
                                                                     : report_kind(m, value, found, "numbers");
        return found == functions[i].takes ? functions[i].gives
                                           : report_kind(m, value, found, watched_phrases[functions[i].takes]);
    }
    report_unknown(checker, "function", source_text(checker, callee->span), callee->span, &candidates);
    return WATCHED_WRONG;
}

static enum watched kind_of_binary(struct monitor *m, node_id id)
{
    const struct ast_node *node = node_of(m->checker, id);
    const char *op = name_text(m->checker, node->text);
    bool logic = !strcmp(op, "and") || !strcmp(op, "or"), compares = !logic && strchr("<>=!", *op);
    enum watched side[2];
    bool vector = false;
    for (int i = 0; i < 2; i++)
        side[i] = kind_of(m, node->slot[i]);
    for (int i = 0; i < 2; i++) {
        bool truth = side[i] == WATCHED_TRUTH || side[i] == WATCHED_TRUTHS;
        if (side[i] == WATCHED_WRONG)
            return WATCHED_WRONG;
        if (truth != logic)
            return report_kind(m, node->slot[i], side[i], logic ? "a truth value" : "numbers");
        vector = vector || side[i] == WATCHED_VECTOR || side[i] == WATCHED_TRUTHS;
    }
    if (logic || compares)
        return vector ? WATCHED_TRUTHS : WATCHED_TRUTH;
    return vector ? WATCHED_VECTOR : WATCHED_NUMBER;
}

static enum watched kind_of(struct monitor *m, node_id id)
{
    struct checker *checker = m->checker;
    const struct ast_node *node = node_of(checker, id);
    struct scope scope = {.file = m->item.file};
    struct constant value;
    switch (node->kind) {
    case NODE_NAME:
    case NODE_MEMBER:
        return kind_of_name(m, id);
    case NODE_CALL:
        return kind_of_call(m, id);
    case NODE_BINARY:
        return kind_of_binary(m, id);
    case NODE_PAREN:
    case NODE_UNARY:
        return kind_of(m, node->slot[0]);
    default:
        if (!evaluate(checker, &scope, id, &value))
            return WATCHED_WRONG;
        if (value.kind == CONSTANT_BOOL)
            return WATCHED_TRUTH;
        if (value.kind != CONSTANT_STRING)
            return WATCHED_NUMBER;
        struct diag *diag = diag_error(checker->context, E0201, node->span, "a monitor counts numbers, not text");
        diag_label(checker->context, diag, "expected a number");
        return WATCHED_WRONG;
    }
}

// ---- members ----------------------------------------------------------------------------------------------------------

static bool add_track(struct monitor *m, node_id id)
{
    struct checker *checker = m->checker;
    const struct ast_node *node = node_of(checker, id);
    enum watched kind = kind_of(m, node->slot[0]);
    EACH_NODE(&checker->program->ast, before, node_of(checker, m->item.node)->slot[1]) {
        if (before == id)
            break;
        if (node_of(checker, before)->kind != NODE_TRACK || node_of(checker, before)->text != node->text)
            continue;
        report_twice(checker, "tracked value", name_text(checker, node->text), name_place(checker, id),
                     name_place(checker, before));
        return false;
    }
    m->tracks = context_grow(checker->context, m->tracks, &m->capacity, m->count + 1, sizeof *m->tracks);
    m->tracks[m->count++] = (struct track){node->text, kind};
    return kind != WATCHED_WRONG;
}

static bool check_alert(struct monitor *m, node_id id)
{
    struct checker *checker = m->checker;
    const struct ast_node *node = node_of(checker, id);
    struct scope scope = {.file = m->item.file};
    struct constant value;
    enum watched kind = kind_of(m, node->slot[1]);
    if (kind != WATCHED_TRUTH && kind != WATCHED_WRONG)
        kind = report_kind(m, node->slot[1], kind, "a truth value, as in `max(load) > 100`");
    if (!node->slot[2])
        return kind == WATCHED_TRUTH;
    return evaluate_as(checker, &scope, "for", node->slot[2], CONSTANT_INTEGER, &value) &&
           expect_range(checker, "for", node->slot[2], value.integer, 1, INT32_MAX) && kind == WATCHED_TRUTH;
}

/// A parameter of the watched layer, f32 with one value per expert; only it may be moved while a model runs.
static bool check_update(struct monitor *m, node_id id)
{
    struct checker *checker = m->checker;
    const struct ast_node *node = node_of(checker, id);
    struct path path;
    enum watched kind = kind_of(m, node->slot[1]);
    if (kind == WATCHED_TRUTH || kind == WATCHED_TRUTHS)
        kind = report_kind(m, node->slot[1], kind, "numbers");
    if (!path_of(checker, node->slot[0], &path) || path.count < 2) {
        struct diag *diag = diag_error(checker->context, E0201, place_of(checker, node->slot[0]),
                                       "an update moves a parameter of the watched layer");
        diag_label(checker->context, diag, "expected as in `moe.e_bias`");
        return false;
    }
    struct path owner = path;
    owner.count--;
    owner.whole.end = path.span[owner.count - 1].end;
    struct symbol layer = resolve(checker, m->item.file, &owner, NODE_LAYER, false);
    if (!layer.kind)
        return false;
    if (layer.node != m->layer.node) {
        struct diag *diag = diag_error(checker->context, E0201, owner.whole, "`%s` is not the layer this monitor watches",
                                       source_text(checker, owner.whole));
        diag_label_at(checker->context, diag, place_of(checker, node_of(checker, m->item.node)->slot[0]), "it watches this");
        return false;
    }
    struct names candidates = {0};
    str_id wanted = path.name[path.count - 1];
    struct span span = path.span[path.count - 1];
    EACH_NODE(&checker->program->ast, member, node_of(checker, layer.node)->slot[2]) {
        const struct ast_node *declared = node_of(checker, member);
        EACH_NODE(&checker->program->ast, name, declared->kind == NODE_PARAM_DECL ? declared->slot[0] : 0) {
            names_add(checker, &candidates, name_text(checker, node_of(checker, name)->text));
            if (node_of(checker, name)->text != wanted)
                continue;
            const struct ast_node *type = node_of(checker, declared->slot[1]);
            node_id base = node_of(checker, type->slot[0])->slot[0];
            bool vector = type->slot[1] && !node_of(checker, type->slot[1])->next;
            if (vector && !strcmp(name_text(checker, node_of(checker, base)->text), "f32"))
                return kind != WATCHED_WRONG;
            struct diag *diag = diag_error(checker->context, E0203, span, "`%s` cannot be moved by a monitor",
                                           name_text(checker, wanted));
            diag_label(checker->context, diag, "expected a parameter f32[experts]");
            diag_label_at(checker->context, diag, type->span, "declared here");
            return false;
        }
    }
    report_unknown(checker, "parameter", name_text(checker, wanted), span, &candidates);
    return false;
}

static bool check_export(struct monitor *m, node_id value)
{
    static const char *const exporters[] = {"prometheus"}, *const details[] = {"layer", "expert"};
    struct checker *checker = m->checker;
    const struct ast_node *node = node_of(checker, value);
    node_id callee = node->kind == NODE_CALL ? node->slot[0] : value;
    struct scope scope = {.file = m->item.file};
    bool fine = choose(checker, "export", callee, exporters, 1) >= 0;
    EACH_NODE(&checker->program->ast, id, node->kind == NODE_CALL ? node->slot[1] : 0) {
        const struct ast_node *argument = node_of(checker, id);
        const char *name = argument->text ? name_text(checker, argument->text) : "";
        struct constant port;
        if (!strcmp(name, "port")) {
            fine = evaluate_as(checker, &scope, "port", argument->slot[0], CONSTANT_INTEGER, &port) &&
                   expect_range(checker, "port", argument->slot[0], port.integer, 1, 65535) && fine;
        } else if (!strcmp(name, "detail")) {
            fine = choose(checker, "detail", argument->slot[0], details, 2) >= 0 && fine;
        } else {
            struct names candidates = {0};
            names_add(checker, &candidates, "port");
            names_add(checker, &candidates, "detail");
            struct diag *diag = diag_error(checker->context, E0106, argument->span, "`prometheus` has no argument `%s`",
                                           *name ? name : source_text(checker, argument->span));
            diag_label(checker->context, diag, "it takes `port` and `detail`");
            suggest(checker, diag, "argument", name, argument->text ? name_place(checker, id) : argument->span, &candidates);
            fine = false;
        }
    }
    return fine;
}

static bool check_attributes_of(struct monitor *m, node_id members)
{
    static const char *const names[] = {"interval", "window", "export"};
    struct checker *checker = m->checker;
    const char *owner =
        context_printf(checker->context, "monitor `%s`", name_text(checker, node_of(checker, m->item.node)->text));
    struct scope scope = {.file = m->item.file};
    bool fine = check_attributes(checker, members, names, 3, owner);
    for (int i = 0; i < 2; i++) {
        node_id attribute = find_attribute(checker, members, names[i]);
        node_id value = attribute ? node_of(checker, attribute)->slot[0] : 0;
        struct constant steps;
        if (value)
            fine = evaluate_as(checker, &scope, names[i], value, CONSTANT_INTEGER, &steps) &&
                   expect_range(checker, names[i], value, steps.integer, 1, INT32_MAX) && fine;
    }
    node_id exported = find_attribute(checker, members, "export");
    return (!exported || check_export(m, node_of(checker, exported)->slot[0])) && fine;
}

/// `moe.route`: the layer, and that it has the stage.
static bool find_watched(struct monitor *m)
{
    struct checker *checker = m->checker;
    struct path path, owner;
    node_id watched = node_of(checker, m->item.node)->slot[0];
    if (!path_of(checker, watched, &path) || path.count < 2) {
        struct diag *diag =
            diag_error(checker->context, E0201, place_of(checker, watched), "a monitor watches a stage of a layer");
        diag_label(checker->context, diag, "expected as in `moe.route`");
        return false;
    }
    owner = path;
    owner.count--;
    owner.whole.end = path.span[owner.count - 1].end;
    m->layer = resolve(checker, m->item.file, &owner, NODE_LAYER, false);
    if (!m->layer.kind)
        return false;
    if (m->layer.kind != SYMBOL_ITEM || node_of(checker, m->layer.node)->kind != NODE_LAYER) {
        struct diag *diag =
            diag_error(checker->context, E0201, owner.whole, "`%s` is not a layer", source_text(checker, owner.whole));
        diag_label(checker->context, diag, "a layer is expected");
        return false;
    }
    struct names stages = {0};
    str_id name = path.name[path.count - 1];
    EACH_NODE(&checker->program->ast, id, node_of(checker, m->layer.node)->slot[2]) {
        const struct ast_node *node = node_of(checker, id);
        if (node->kind != NODE_STAGE)
            continue;
        if (node->text == name)
            return true;
        names_add(checker, &stages, name_text(checker, node->text));
    }
    report_unknown(checker, "stage", name_text(checker, name), path.span[path.count - 1], &stages);
    return false;
}

bool check_monitor(struct checker *checker, struct symbol item)
{
    uint32_t row;
    if (memo_find(checker, item.node, &row))
        return row != NONE;
    struct monitor m = {.checker = checker, .item = item};
    node_id members = node_of(checker, item.node)->slot[1];
    bool fine = find_watched(&m);
    EACH_NODE(&checker->program->ast, id, fine ? members : 0) {
        uint16_t kind = node_of(checker, id)->kind;
        if (kind == NODE_TRACK)
            fine = add_track(&m, id) && fine;
        else if (kind == NODE_ALERT)
            fine = check_alert(&m, id) && fine;
        else if (kind == NODE_UPDATE)
            fine = check_update(&m, id) && fine;
    }
    fine = check_attributes_of(&m, members) && fine;
    memo_set(checker, item.node, fine ? 0 : NONE);
    return fine;
}
