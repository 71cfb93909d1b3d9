// What `moecc import` writes: imports, sizes from the configuration, the family's layer and map, a placement that fits the
// cluster, and a pipeline. Every value that had to be assumed is a comment that names the key.
#include "compiler/import/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "compiler/check/check.h"

struct writer {
    struct context *context;
    const struct config *config;
    const struct import_options *options;
    struct family family;
    struct library library;
    struct moe_layers layers;
    struct storage storage;
    struct option wanted[OPTIONS_MOST];
    uint32_t wanted_count;
    const char *assumed_word;   // a key of find_options
    int64_t experts;
    const char *text;           // so far
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *w, const char *format, ...)
{
    va_list args;
    char line[4096];
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    w->text = context_printf(w->context, "%s%s", w->text, line);
}

static const struct ast_node *node(const struct writer *w, node_id id)
{
    return node_at(&w->library.program.ast, id);
}

static const char *name_of(const struct writer *w, node_id id)
{
    return text_of(w->context, node(w, id)->text);
}

// ---- the layer's text -----------------------------------------------------------------------------------------------

/// The default of an operator's option, as std.ops writes it.
static const char *option_default(const struct writer *w, const char *op, const char *option)
{
    const struct ast *ast = &w->library.program.ast;
    for (uint32_t u = 0; u < w->library.program.unit_count; u++)
        EACH_NODE(ast, item, node(w, w->library.program.units[u].root)->slot[0]) {
            if (node(w, item)->kind != NODE_OP || strcmp(name_of(w, item), op) != 0)
                continue;
            EACH_NODE(ast, id, node(w, item)->slot[2]) {
                if (node(w, id)->kind == NODE_PARAM_DECL && !strcmp(name_of(w, node(w, id)->slot[0]), option) &&
                    node(w, id)->slot[2])
                    return item_text(&w->library, node(w, node(w, id)->slot[2])->span);
            }
        }
    return NULL;
}

/// Puts an option into every call of the layer whose operator has it. Returns whether the text changes.
static bool set_option(struct writer *w, const char *option, const char *value)
{
    uint32_t before = w->storage.edit_count;
    const struct ast *ast = &w->library.program.ast;
    struct storage *s = &w->storage;
    EACH_NODE(ast, stage, node(w, w->library.layer)->slot[2]) {
        if (node(w, stage)->kind != NODE_STAGE)
            continue;
        node_id call = node(w, stage)->slot[1], given = 0;
        const char *usual = option_default(w, item_text(&w->library, node(w, node(w, call)->slot[0])->span), option);
        if (!usual || s->edit_count == sizeof s->edits / sizeof *s->edits)
            continue;
        EACH_NODE(ast, id, node(w, call)->slot[1])
            if (node(w, id)->text && !strcmp(name_of(w, id), option))
                given = node(w, id)->slot[0];
        struct span end = node(w, call)->span;
        if (given && strcmp(item_text(&w->library, node(w, given)->span), value) != 0)
            s->edits[s->edit_count++] = (struct edit){node(w, given)->span, value};
        else if (!given && strcmp(usual, value) != 0)
            s->edits[s->edit_count++] = (struct edit){{end.file, end.end - 1, end.end - 1},
                                                      context_printf(w->context, ", %s: %s", option, value)};
    }
    return s->edit_count > before;
}

static void set_options(struct writer *w)
{
    for (uint32_t i = 0; i < w->wanted_count; i++)
        for (const char *at = w->wanted[i].name; *at; at += strspn(at, ", ")) { // "groups, group_k"
            size_t length = strcspn(at, ",");
            w->wanted[i].changes |=
                set_option(w, context_printf(w->context, "%.*s", (int)length, at), w->wanted[i].value);
            at += length;
        }
}

/// The types of the layer's rows are the checkpoint's.
static void set_row_types(struct writer *w)
{
    struct storage *s = &w->storage;
    node_id types[] = {node(w, node(w, w->library.layer)->slot[0])->slot[0], node(w, w->library.layer)->slot[1]};
    for (int i = 0; i < 2; i++)
        s->edits[s->edit_count++] = (struct edit){node(w, node(w, types[i])->slot[0])->span, s->hidden};
}

// ---- sizes ----------------------------------------------------------------------------------------------------------

/// A list's value in the layers that have experts; NULL with an error queued: they differ.
static const json_t *same_in_all(struct writer *w, const struct config_value *value)
{
    const json_t *first = NULL;
    for (int64_t i = 0; i < w->layers.count; i++) {
        int64_t layer = w->layers.first + i * w->layers.step;
        const json_t *here = json_array_get(value->json, (size_t)layer);
        first = first ? first : here;
        if (here && json_equal(here, first))
            continue;
        struct diag *diag = diag_error(w->context, E0602, config_place(w->config, value->name),
                                       "`%s` is not the same in every layer", value->name);
        diag_label(w->context, diag, here ? "layer %lld differs from layer %lld" : "layer %lld has none; layer %lld has",
                   (long long)layer, (long long)w->layers.first);
        diag_help(w->context, diag, "write a pipeline for each kind of layer, beginning with `import models.%s;`",
                  w->family.module);
        return NULL;
    }
    return first;
}

static bool report_needed(struct writer *w, const char *constant, const char *keys)
{
    struct diag *diag = diag_error(w->context, E0602, (struct span){w->config->file, 0, 0}, "`%s` has no `%s`",
                                   w->config->path, first_key(w->context, keys));
    diag_label(w->context, diag, "`%s` is needed for it, and no default is known", constant);
    return false;
}

/// What a constant of the library takes, by the kind of its own value there.
static bool is_wanted(uint16_t kind, const json_t *json)
{
    enum { MOST = 1 << 24 };
    if (kind == NODE_BOOL)
        return json_is_boolean(json);
    if (kind == NODE_FLOAT)
        return json_is_number(json);
    return json_is_integer(json) && json_integer_value(json) >= 1 && json_integer_value(json) <= MOST;
}

/// A number or truth value that .moe writes as the configuration does; NULL with an error queued.
static const char *plain_word(struct writer *w, const struct config_value *value, const json_t *json, uint16_t kind)
{
    if (is_wanted(kind, json))
        return config_word(w->config, json);
    config_refuse(w->config, value->name, json,
                  kind == NODE_BOOL ? "`true` or `false`" : kind == NODE_FLOAT ? "a number" : "a whole number above 0");
    return NULL;
}

/// `dim ffn = hf.moe_intermediate_size; // 768`
static bool put_size(struct writer *w, node_id item)
{
    const char *constant = name_of(w, item), *keys = keys_of(&w->family, constant);
    const char *word = node(w, item)->kind == NODE_DIM ? "dim" : "const";
    const char *own = item_text(&w->library, node(w, node(w, item)->slot[0])->span), *seen = own;
    struct config_value value;
    uint16_t kind = node(w, node(w, item)->slot[0])->kind;
    bool made = kind != NODE_INT && kind != NODE_FLOAT && kind != NODE_BOOL; // from other sizes
    if (!keys || (made && !config_find(w->config, keys, &value))) {
        put(w, "%s %s %s %s;\n", word, constant, node(w, item)->flag ? "<=" : "=", own);
    } else if (!config_find(w->config, keys, &value)) {
        const char *otherwise = default_of(&w->family, constant);
        seen = otherwise ? otherwise : own;
        if (!*seen)
            return report_needed(w, constant, keys);
        put(w, "%s %s = %s; // assumed: %s has no `%s`\n", word, constant, seen, w->config->path,
            first_key(w->context, keys));
    } else if (json_is_array(value.json)) {
        const json_t *same = same_in_all(w, &value);
        if (!same || !(seen = plain_word(w, &value, same, kind)))
            return false;
        put(w, "%s %s = %s; // hf.%s, which lists it for every layer\n", word, constant, seen, value.name);
    } else {
        if (!(seen = plain_word(w, &value, value.json, kind)))
            return false;
        put(w, "%s %s = hf.%s; // %s\n", word, constant, value.name, seen);
    }
    if (!strcmp(constant, "experts"))
        w->experts = strtol(seen, NULL, 10);
    return true;
}

/// Sizes that the layer's text, or another size that it needs, mentions.
static bool is_needed(const struct writer *w, node_id item, const char *layer)
{
    const struct ast *ast = &w->library.program.ast;
    const char *name = name_of(w, item);
    if (has_word(layer, name))
        return true;
    EACH_NODE(ast, other, node(w, w->library.root)->slot[0]) {
        bool size = node(w, other)->kind == NODE_DIM || node(w, other)->kind == NODE_CONST;
        if (size && other != item && has_word(item_text(&w->library, node(w, node(w, other)->slot[0])->span), name) &&
            is_needed(w, other, layer))
            return true;
    }
    return false;
}

static bool put_sizes(struct writer *w, const char *layer)
{
    const struct ast *ast = &w->library.program.ast;
    bool fine = true;
    EACH_NODE(ast, item, node(w, w->library.root)->slot[0])
        if ((node(w, item)->kind == NODE_DIM || node(w, item)->kind == NODE_CONST) && is_needed(w, item, layer))
            fine = put_size(w, item) && fine;
    return fine;
}

// ---- where and when -------------------------------------------------------------------------------------------------

/// "node, gpu", and how many ranks there are. NULL with an error queued: an axis has no size.
static const char *cluster_axes(const struct writer *w, int64_t *ranks)
{
    enum { MOST = 1 << 20 };
    const struct ast *ast = &w->library.program.ast;
    const char *axes = "";
    *ranks = 1;
    EACH_NODE(ast, id, node(w, w->library.cluster)->slot[0]) {
        int64_t size = 0;
        if (node(w, id)->kind != NODE_AXIS)
            continue;
        if (!evaluate_integer(w->context, &w->library.program, node(w, id)->span.file, node(w, id)->slot[0], NULL, 0, NULL,
                              &size) ||
            size < 1 || size > MOST / *ranks) {
            struct diag *diag = diag_error(w->context, E0602, node(w, id)->span, "axis `%s` has no size to place experts over",
                                           name_of(w, id));
            diag_label(w->context, diag, "from 1 to %d ranks are expected", MOST);
            return NULL;
        }
        axes = context_printf(w->context, "%s%s%s", axes, *axes ? ", " : "", name_of(w, id));
        *ranks *= size;
    }
    return axes;
}

/// What code is for the cluster's device: the CPU unless it is one of std.hw's GPUs.
static const char *target_of(const struct writer *w)
{
    static const struct {
        const char *device, *target;
    } targets[] = {{"h100", "cuda(sm_90a)"}, {"h800", "cuda(sm_90a)"}, {"a100", "cuda(sm_80)"}};
    const char *text = item_text(&w->library, node(w, w->library.cluster)->span);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        if (has_word(text, targets[i].device))
            return targets[i].target;
    return "cpu";
}

/// The layers that the pipeline runs. Those between which others stand are run one at a time.
static void put_layers(struct writer *w)
{
    const struct moe_layers *l = &w->layers;
    bool all = l->first + l->count == l->total && l->step == 1 && l->count_key;
    if (all && !l->first && !l->first_key)
        put(w, "    repeat    = hf.%s; // %lld\n", l->count_key, (long long)l->count);
    else if (all && l->first && l->first_key)
        put(w, "    layers    = { first: hf.%s, count: hf.%s - hf.%s }; // %lld and %lld\n", l->first_key, l->count_key,
            l->first_key, (long long)l->first, (long long)l->count);
    else if (l->step == 1)
        put(w, "    layers    = { first: %lld, count: %lld }; // of %lld\n", (long long)l->first, (long long)l->count,
            (long long)l->total);
    else
        put(w, "    layers    = { first: %lld, count: 1 }; // %lld, %lld, ... have experts: `--layer` names one\n",
            (long long)l->first, (long long)l->first, (long long)(l->first + l->step));
}

static bool put_machines(struct writer *w)
{
    int64_t ranks;
    const char *axes = cluster_axes(w, &ranks), *cluster = name_of(w, w->library.cluster);
    bool own = w->options->cluster && strrchr(w->options->cluster, ':');
    if (!axes)
        return false;
    put(w, "\nplacement spread on %s%s {\n    place experts over %s%s;\n}\n", own ? "machines." : "", cluster, axes,
        w->experts % ranks ? " { balance: even }" : "");
    put(w, "\npipeline main {\n    layer     = %s;\n", w->family.layer);
    put_layers(w);
    put(w, "    cluster   = %s%s;\n    placement = spread;\n    target    = %s;\n", own ? "machines." : "", cluster,
        target_of(w));
    put(w, "    weights   = %s(safetensors(\"%s\"));\n\n", name_of(w, w->library.weights),
        quotable(w->context, w->config->folder));
    put(w, "    use ladder(n: 4) when tokens >= 256;\n    use serial;\n}\n");
    return true;
}

static void put_head(struct writer *w)
{
    bool own = w->options->cluster && strrchr(w->options->cluster, ':');
    put(w, "// %s from %s, as `moecc import` reads it.\n", w->family.model_type, quotable(w->context, w->config->folder));
    for (uint32_t i = 0; i < w->wanted_count; i++)
        if (w->wanted[i].changes)
            put(w, "// %s: `%s: %s`.\n", w->wanted[i].seen, w->wanted[i].name, w->wanted[i].value);
    if (w->assumed_word)
        put(w, "// assumed: %s has no `%s`, so the experts' activation is the family's usual one.\n", w->config->path,
            w->assumed_word);
    if (w->storage.assumed)
        put(w, "// assumed: %s has no `torch_dtype`, so rows and weights are %s.\n", w->config->path, w->storage.hidden);
    put(w, "\nimport std.ops;\n");
    if (own)
        put(w, "import \"%s\" as machines;\n",
            quotable(w->context, context_printf(w->context, "%.*s", (int)(strrchr(w->options->cluster, ':') - w->options->cluster),
                                                w->options->cluster)));
    else
        put(w, "import std.hw { %s };\n", name_of(w, w->library.cluster));
    put(w, "import std.schedules { serial, ladder };\nimport \"%s\" as hf;\n\n", quotable(w->context, w->config->path));
}

static const char *write_file(struct writer *w)
{
    const struct storage *s = &w->storage;
    set_options(w);
    set_row_types(w);
    const char *layer = edited_text(&w->library, node(w, w->library.layer)->span, s->edits, s->edit_count);
    const char *map = edited_text(&w->library, node(w, w->library.weights)->span, s->edits, s->edit_count);
    put_head(w);
    if (!put_sizes(w, layer))
        return NULL;
    if (s->blocks)
        put(w, "\nformat fp8_w = fp8_e4m3 { block: [128, 128], scale: %s };\n", s->scale);
    w->text = context_printf(w->context, "%s\n%s\n\n%s\n", w->text, layer, map);
    if (!put_machines(w))
        return NULL;
    uint32_t file = add_source(w->context, "moecc import: result", w->text, strlen(w->text), NULL);
    const char *formatted = format_source(w->context, file);
    if (!formatted)
        fatal(w->context, EXIT_BUG, "the file that import wrote cannot be parsed");
    return formatted;
}

static void close_tensors(void *tensors)
{
    tensors_close(tensors);
}

/// The checkpoint's tensors; *tensors stays NULL where only a configuration was named.
static bool open_tensors(struct writer *w, const struct tensor_set **tensors)
{
    char error[512];
    *tensors = NULL;
    if (w->config->path == w->options->path)
        return true;
    void **kept = context_slot(w->context, close_tensors);
    errno = 0;
    struct tensor_set *set = tensors_open(w->config->folder, error, sizeof error);
    if (!set)
        fatal(w->context, errno && errno != ENOENT ? EXIT_SYSTEM : EXIT_INPUT, "%.200s", error);
    *tensors = *kept = set;
    return true;
}

const char *import_checkpoint(struct context *context, const struct import_options *options)
{
    struct config config;
    const struct tensor_set *tensors;
    struct writer w = {.context = context, .config = &config, .options = options, .text = ""};
    if (!config_open(context, options->path, &config) || !find_family(&config, &w.family))
        return NULL;
    bool fine = find_options(&config, &w.family, w.wanted, &w.wanted_count, &w.assumed_word);
    fine = find_layers(&config, &w.family, &w.layers) && fine;
    if (!fine || !library_open(context, &w.family, options, &w.library) || !open_tensors(&w, &tensors) ||
        !find_storage(&config, &w.library, tensors, &w.layers, &w.storage))
        return NULL;
    return write_file(&w);
}
