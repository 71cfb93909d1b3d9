// Weights maps: where each parameter of a layer lies in a checkpoint. `{layer}` and `{expert}` in a tensor's name are
// numbers put in when it is read.
#include "compiler/check/check.h"

#include <string.h>

enum { MAX_PATTERNS = 2 };

struct entry {
    str_id patterns[MAX_PATTERNS];
    uint32_t count;
    const char *suffix, *values; // scaled: of the scales, of the codes
    bool interleaved, swapped, transposed;
};

static bool report_pattern(struct checker *checker, node_id string, const char *message, const char *label)
{
    struct diag *diag = diag_error(checker->context, E0601, place_of(checker, string), "%s", message);
    diag_label(checker->context, diag, "%s", label);
    diag_note(checker->context, diag, "a name may hold `{layer}` and `{expert}`");
    return false;
}

static bool check_pattern(struct checker *checker, node_id string, const char *text)
{
    static const char *const known[] = {"layer", "expert"};
    if (!*text)
        return report_pattern(checker, string, "a tensor's name is empty", "no name");
    for (const char *at = text; *at; at++) {
        if (*at == '}')
            return report_pattern(checker, string, "`}` without `{`", "in this name");
        if (*at != '{')
            continue;
        const char *end = strchr(at, '}');
        if (!end)
            return report_pattern(checker, string, "`{` without `}`", "in this name");
        const char *name = context_printf(checker->context, "%.*s", (int)(end - at - 1), at + 1);
        if (strcmp(name, known[0]) != 0 && strcmp(name, known[1]) != 0) {
            const char *nearest = nearest_name(name, known, 2);
            const char *label = nearest ? context_printf(checker->context, "`{%s}`?", nearest) : "unknown placeholder";
            return report_pattern(checker, string, context_printf(checker->context, "unknown placeholder `{%s}`", name),
                                  label);
        }
        at = end;
    }
    return true;
}

static bool read_string(struct checker *checker, node_id expression, struct entry *entry)
{
    const struct ast_node *node = node_of(checker, expression);
    if (node->kind != NODE_STRING) {
        struct diag *diag = diag_error(checker->context, E0201, node->span, "a tensor's name is expected here");
        diag_label(checker->context, diag, "not a string");
        return false;
    }
    entry->patterns[entry->count++] = node->text;
    return check_pattern(checker, expression, name_text(checker, node->text));
}

/// The named arguments of `scaled`: what the names of the scales, and of the codes where they have one, end in.
struct endings {
    node_id suffix, values;
};

/// The arguments of a call without names, at most `most`; named ones are those of `scaled`. NONE with an error queued for
/// another name.
static uint32_t call_arguments(struct checker *checker, node_id call, node_id *arguments, uint32_t most,
                               struct endings *endings)
{
    uint32_t count = 0;
    EACH_NODE(&checker->program->ast, id, node_of(checker, call)->slot[1]) {
        const struct ast_node *node = node_of(checker, id);
        const char *name = name_text(checker, node->text);
        if (node->text && endings && !strcmp(name, "suffix")) {
            endings->suffix = node->slot[0];
        } else if (node->text && endings && !strcmp(name, "values")) {
            endings->values = node->slot[0];
        } else if (node->text) {
            struct diag *diag =
                diag_error(checker->context, E0106, name_place(checker, id), "there is no argument `%s` here", name);
            diag_label(checker->context, diag, "unknown argument");
            return NONE;
        } else {
            if (count < most)
                arguments[count] = node->slot[0];
            count++;
        }
    }
    return count;
}

static bool read_source(struct checker *checker, node_id expression, struct entry *entry,
                        const struct mod_format *format);

static bool has_scales(const struct mod_format *format)
{
    return format->block_cols || format->base == dtype_mxfp4;
}

static bool read_endings(struct checker *checker, node_id call, const struct endings *given, struct entry *entry,
                         const struct mod_format *format)
{
    const struct ast_node *suffix = given->suffix ? node_of(checker, given->suffix) : NULL;
    const struct ast_node *values = given->values ? node_of(checker, given->values) : NULL;
    if (!suffix || suffix->kind != NODE_STRING || (values && values->kind != NODE_STRING)) {
        struct diag *diag = diag_error(checker->context, E0107, place_of(checker, call), "`scaled` needs `suffix`");
        diag_label(checker->context, diag, "expected as in `suffix: \"_scale_inv\"`");
        diag_help(checker->context, diag, "where the codes' name has an ending of its own, add `values: \"_blocks\"`");
        return false;
    }
    entry->suffix = name_text(checker, suffix->text);
    entry->values = values ? name_text(checker, values->text) : NULL;
    if (has_scales(format))
        return true;
    struct diag *diag = diag_error(checker->context, E0601, place_of(checker, call), "a parameter of %s has no scales",
                                   ir_text(checker->module, format->name));
    diag_label(checker->context, diag, "names scales");
    return false;
}

/// Codes mean nothing without their scales.
static bool check_scales(struct checker *checker, node_id source, const struct entry *entry,
                         const struct mod_format *format)
{
    if (entry->suffix || !has_scales(format))
        return true;
    struct diag *diag = diag_error(checker->context, E0601, place_of(checker, source),
                                   "a parameter of %s needs its scales", ir_text(checker->module, format->name));
    diag_label(checker->context, diag, "names the codes alone");
    diag_help(checker->context, diag, "write `scaled(%s, suffix: \"_scale_inv\")` with the ending of the scales' name",
              source_text(checker, place_of(checker, source)));
    return false;
}

static bool read_call(struct checker *checker, node_id call, struct entry *entry, const struct mod_format *format)
{
    static const char *const words[] = {"concat", "interleaved", "transpose", "scaled", "swapped"};
    enum { CONCAT, INTERLEAVED, TRANSPOSE, SCALED, SWAPPED, WORDS };
    struct context *context = checker->context;
    node_id callee = node_of(checker, call)->slot[0], arguments[MAX_PATTERNS] = {0};
    struct endings endings = {0};
    const char *name =
        node_of(checker, callee)->kind == NODE_NAME ? name_text(checker, node_of(checker, callee)->text) : "";
    uint32_t which = 0;
    while (which < WORDS && strcmp(words[which], name) != 0)
        which++;
    if (which == WORDS) {
        struct names candidates = {.items = (const char **)(uintptr_t)words, .count = WORDS};
        report_unknown(checker, "layout", source_text(checker, place_of(checker, callee)), place_of(checker, callee),
                       &candidates);
        return false;
    }
    uint32_t wanted = which == CONCAT ? 2 : 1;
    uint32_t found = call_arguments(checker, call, arguments, MAX_PATTERNS, which == SCALED ? &endings : NULL);
    if (found == NONE)
        return false;
    if (found != wanted) {
        struct diag *diag =
            diag_error(context, E0205, place_of(checker, call), "`%s` takes %u tensor%s, but is given %u", name, wanted,
                       wanted == 1 ? "" : "s", found);
        diag_label(context, diag, "expected %u", wanted);
        return false;
    }
    if (which == CONCAT)
        return read_string(checker, arguments[0], entry) && read_string(checker, arguments[1], entry);
    entry->interleaved |= which == INTERLEAVED;
    entry->swapped |= which == SWAPPED;
    entry->transposed |= which == TRANSPOSE;
    if (which == SCALED && !read_endings(checker, call, &endings, entry, format))
        return false;
    return read_source(checker, arguments[0], entry, format);
}

static bool read_source(struct checker *checker, node_id expression, struct entry *entry,
                        const struct mod_format *format)
{
    if (node_of(checker, expression)->kind == NODE_CALL)
        return read_call(checker, expression, entry, format);
    return read_string(checker, expression, entry);
}

static uint32_t find_param(const struct checker *checker, const struct mod_layer *layer, const char *name)
{
    for (uint32_t i = 0; i < layer->params.count; i++)
        if (!strcmp(ir_text(checker->module, ROW(checker->module, mod_param, layer->params.first + i)->name), name))
            return layer->params.first + i;
    return NONE;
}

static void report_param(struct checker *checker, node_id attribute, const struct mod_layer *layer,
                         const char *layer_name)
{
    struct names candidates = {0};
    const char *name = name_text(checker, node_of(checker, attribute)->text);
    for (uint32_t i = 0; i < layer->params.count; i++) {
        str_id param = ROW(checker->module, mod_param, layer->params.first + i)->name;
        names_add(checker, &candidates, context_printf(checker->context, "%s", ir_text(checker->module, param)));
    }
    struct diag *diag = diag_error(checker->context, E0601, name_place(checker, attribute),
                                   "layer `%s` has no parameter `%s`", layer_name, name);
    diag_label(checker->context, diag, "unknown parameter");
    diag_note_at(checker->context, diag, place_of(checker, layer->node), "its parameters are %s",
                 names_join(checker, &candidates));
    suggest(checker, diag, "parameter", name, name_place(checker, attribute), &candidates);
}

/// `strays`: some entries name no parameter; what they leave unmapped is the same mistake.
static bool check_complete(struct checker *checker, struct symbol item, const struct mod_layer *layer, bool strays)
{
    bool fine = true;
    node_id members = node_of(checker, item.node)->slot[1];
    for (uint32_t i = 0; i < layer->params.count; i++) {
        const struct mod_param *param = ROW(checker->module, mod_param, layer->params.first + i);
        const char *name = ir_text(checker->module, param->name);
        if (find_attribute(checker, members, name) || strays)
            continue;
        if (param->has_default) {
            report_unbuilt(checker, name_place(checker, param->node),
                           "a parameter that has its default and no entry in a weights map is not built yet");
            return false;
        }
        struct diag *diag =
            diag_error(checker->context, E0601, name_place(checker, item.node), "parameter `%s` is not mapped", name);
        diag_label(checker->context, diag, "no entry for it");
        diag_label_at(checker->context, diag, name_place(checker, param->node), "declared here, without a default");
        fine = false;
        break; // one message at this place
    }
    return fine;
}

/// Whether experts add the parameter to their products: [experts, outputs].
static bool is_expert_bias(const struct checker *checker, const struct mod_layer *layer, uint32_t param)
{
    static const char *const names[] = {"b_gate_up", "b_up", "b_down"};
    for (uint32_t s = 0; s < layer->stages.count; s++) {
        const struct mod_stage *stage = ROW(checker->module, mod_stage, layer->stages.first + s);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            const struct mod_arg *arg = stage_arg(checker->module, stage, names[i]);
            if (arg && arg->param == param)
                return true;
        }
    }
    return false;
}

/// `{expert}` counts the experts of a parameter that has a block for each.
static bool check_placeholders(struct checker *checker, const struct mod_layer *layer, node_id attribute,
                               const struct entry *entry, uint32_t param)
{
    const struct mod_param *row = ROW(checker->module, mod_param, param);
    bool blocks = row->ndims == 3 || (row->ndims == 2 && is_expert_bias(checker, layer, param));
    for (uint32_t i = 0; i < entry->count && !blocks; i++) {
        if (!strstr(name_text(checker, entry->patterns[i]), "{expert}"))
            continue;
        struct diag *diag =
            diag_error(checker->context, E0601, place_of(checker, node_of(checker, attribute)->slot[0]),
                       "`{expert}` in a name for `%s`, of which a layer has one", ir_text(checker->module, row->name));
        diag_label(checker->context, diag, "one tensor in each layer");
        diag_label_at(checker->context, diag, name_place(checker, row->node), "%s, not one for each expert",
                      row->ndims == 1 ? "one vector" : "one matrix");
        return false;
    }
    return true;
}

bool check_layer_names(struct checker *checker, struct span place, uint32_t weights, int64_t layers)
{
    struct rows entries = ROW(checker->module, mod_weights, weights)->entries;
    for (uint32_t i = 0; i < entries.count && layers > 1; i++) {
        const struct mod_weight *entry = ROW(checker->module, mod_weight, entries.first + i);
        for (uint32_t p = 0; p < entry->patterns.count; p++) {
            const char *text = ir_text(checker->module, ROW(checker->module, mod_pattern, entry->patterns.first + p)->text);
            if (strstr(text, "{layer}"))
                continue;
            const char *name = ir_text(checker->module, ROW(checker->module, mod_param, entry->param)->name);
            node_id members = node_of(checker, ROW(checker->module, mod_weights, weights)->node)->slot[1];
            node_id source = node_of(checker, find_attribute(checker, members, name))->slot[0];
            struct diag *diag = diag_error(checker->context, E0601, place_of(checker, source),
                                           "%lld layers would all take `%s` from the one tensor `%s`",
                                           (long long)layers, name, text);
            diag_label(checker->context, diag, "lacks `{layer}`");
            diag_label_at(checker->context, diag, place, "used for %lld layers here", (long long)layers);
            diag_help(checker->context, diag, "write the layer's number in the name as `{layer}`");
            return false;
        }
    }
    return true;
}

static void add_entry(struct checker *checker, const struct entry *entry, uint32_t param, uint32_t number)
{
    struct ir *module = checker->module;
    struct mod_weight weight = {.param = param,
                                .interleaved = entry->interleaved,
                                .swapped = entry->swapped,
                                .transposed = entry->transposed};
    weight.suffix = ir_str(module, entry->suffix ? entry->suffix : "");
    weight.values = ir_str(module, entry->values ? entry->values : "");
    weight.patterns = (struct rows){COUNT(module, mod_pattern), entry->count};
    for (uint32_t i = 0; i < entry->count; i++) {
        str_id text = module_name(checker, entry->patterns[i]);
        uint32_t pattern = ADD(module, mod_pattern);
        ROW(module, mod_pattern, pattern)->text = text;
    }
    *ROW(module, mod_weight, number) = weight;
}

static bool read_weights(struct checker *checker, struct symbol item, struct mod_weights *row)
{
    struct symbol layer_item;
    node_id members = node_of(checker, item.node)->slot[1];
    if (!resolve_item(checker, item.file, node_of(checker, item.node)->slot[0], NODE_LAYER, &layer_item))
        return false;
    row->layer = elaborate_layer(checker, layer_item);
    if (row->layer == NONE)
        return false;
    struct mod_layer layer = *ROW(checker->module, mod_layer, row->layer);
    const char *layer_name = name_text(checker, node_of(checker, layer_item.node)->text);
    bool fine = true, strays = false;
    row->entries.first = COUNT(checker->module, mod_weight);
    EACH_NODE(&checker->program->ast, id, members) {
        const char *name = name_text(checker, node_of(checker, id)->text);
        uint32_t param = find_param(checker, &layer, name);
        node_id first = find_attribute(checker, members, name);
        struct entry entry = {0};
        if (param == NONE) {
            report_param(checker, id, &layer, layer_name);
            strays = true;
        } else if (first != id) {
            report_twice(checker, "parameter", name, name_place(checker, id), name_place(checker, first));
            fine = false;
        } else {
            struct mod_format format =
                *ROW(checker->module, mod_format, ROW(checker->module, mod_param, param)->format);
            node_id source = node_of(checker, id)->slot[0];
            fine = read_source(checker, source, &entry, &format) && check_scales(checker, source, &entry, &format) &&
                   check_placeholders(checker, &layer, id, &entry, param) && fine;
            uint32_t number = ADD(checker->module, mod_weight);
            row->entries.count++;
            add_entry(checker, &entry, param, number);
        }
    }
    return check_complete(checker, item, &layer, strays) && fine && !strays;
}

uint32_t elaborate_weights(struct checker *checker, struct symbol item)
{
    uint32_t row;
    if (memo_find(checker, item.node, &row))
        return row;
    struct mod_weights weights = {
        .name = module_name(checker, node_of(checker, item.node)->text), .layer = NONE, .node = item.node};
    row = NONE;
    if (read_weights(checker, item, &weights)) {
        row = ADD(checker->module, mod_weights);
        *ROW(checker->module, mod_weights, row) = weights;
    }
    memo_set(checker, item.node, row);
    return row;
}
