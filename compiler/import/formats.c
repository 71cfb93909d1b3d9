// How each parameter is stored: from the headers of the tensors that its map names or, without a checkpoint, from the
// configuration's `torch_dtype` and `quantization_config`. The result is changes to the module's text: element types, and
// `scaled(...)` around the names of E4M3 tensors.
#include "compiler/import/internal.h"

#include <string.h>

static const struct {
    const char *header, *config, *type;
} types[] = {{"F32", "float32", "f32"}, {"F16", "float16", "f16"}, {"BF16", "bfloat16", "bf16"}, {"F8_E4M3", "", "fp8_w"}};

static const char *const quantised = "fp8_w", *const scale_suffix = "_scale_inv";

static void add_edit(struct storage *storage, struct span span, const char *text)
{
    if (storage->edit_count < sizeof storage->edits / sizeof *storage->edits)
        storage->edits[storage->edit_count++] = (struct edit){span, text};
}

/// The first tensor's name in a map's entry.
static const char *first_name(const struct library *library, node_id source)
{
    const struct ast *ast = &library->program.ast;
    while (node_at(ast, source)->kind == NODE_CALL)
        source = node_at(ast, node_at(ast, source)->slot[1])->slot[0];
    return text_of(library->context, node_at(ast, source)->text);
}

static const char *expand(struct context *context, const char *pattern, int64_t layer)
{
    const char *text = "";
    while (*pattern) {
        size_t plain = strcspn(pattern, "{");
        text = context_printf(context, "%s%.*s", text, (int)plain, pattern);
        pattern += plain;
        if (!strncmp(pattern, "{layer}", 7))
            text = context_printf(context, "%s%lld", text, (long long)layer);
        else if (*pattern)
            text = context_printf(context, "%s0", text);
        pattern += strcspn(pattern, "}") + (*pattern != 0);
    }
    return text;
}

/// What the checkpoint has instead: a tensor of the same layer that speaks of experts.
static const char *similar_name(const struct tensor_set *tensors, int64_t layer, struct context *context)
{
    const char *part = context_printf(context, ".%lld.", (long long)layer);
    for (size_t i = 0; i < tensors_count(tensors); i++) {
        const char *name = tensors_at(tensors, i)->name;
        if (strstr(name, part) && (strstr(name, "expert") || strstr(name, "moe") || strstr(name, "mlp")))
            return name;
    }
    return tensors_count(tensors) ? tensors_at(tensors, 0)->name : NULL;
}

static bool report_layout(const struct config *config, const struct library *library, const struct tensor_set *tensors,
                          const char *name, int64_t layer)
{
    struct context *context = config->context;
    struct diag *diag = diag_error(context, E0602, config_place(config, "model_type"),
                                   "the checkpoint `%s` has no tensor `%s`", config->folder, name);
    diag_label(context, diag, "whose tensors are named so");
    const char *seen = similar_name(tensors, layer, context);
    if (seen)
        diag_note(context, diag, "layer %lld has, for example, `%s`", (long long)layer, seen);
    diag_help(context, diag, "write the map by hand, beginning with `import %s;`",
              context->files[node_at(&library->program.ast, library->root)->span.file].module);
    return false;
}

/// The parameter's type as it is declared in the module.
static node_id declared_type(const struct library *library, const char *param)
{
    const struct ast *ast = &library->program.ast;
    EACH_NODE(ast, id, node_at(ast, library->layer)->slot[2])
        if (node_at(ast, id)->kind == NODE_PARAM_DECL &&
            !strcmp(text_of(library->context, node_at(ast, node_at(ast, id)->slot[0])->text), param))
            return node_at(ast, id)->slot[1];
    return 0;
}

static bool is_matrix(const struct library *library, node_id type)
{
    const struct ast *ast = &library->program.ast;
    uint32_t dims = 0;
    EACH_NODE(ast, id, node_at(ast, type)->slot[1])
        dims++;
    return dims == 3;
}

static const char *type_of_header(const char *dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].header, dtype))
            return types[i].type;
    return NULL;
}

/// The scales beside an E4M3 tensor.
static bool read_scales(const struct config *config, const struct library *library, const struct tensor_set *tensors,
                        const char *name, int64_t layer, struct storage *storage)
{
    const char *scales = context_printf(config->context, "%s%s", name, scale_suffix);
    const struct tensor *tensor = tensors_find(tensors, scales);
    if (!tensor)
        return report_layout(config, library, tensors, scales, layer);
    storage->scale = !strcmp(tensor->dtype, "F32") ? "f32" : "ue8m0";
    return true;
}

static bool read_header(const struct config *config, const struct library *library, const struct tensor_set *tensors,
                        const char *name, int64_t layer, const char **type, struct storage *storage)
{
    if (!strcmp(*type, "mxfp4")) // codes and scales have names of their own
        return true;
    const struct tensor *tensor = tensors_find(tensors, name);
    if (!tensor)
        return report_layout(config, library, tensors, name, layer);
    *type = type_of_header(tensor->dtype);
    if (*type)
        return strcmp(*type, quantised) != 0 || read_scales(config, library, tensors, name, layer, storage);
    struct diag *diag = diag_error(config->context, E0602, config_place(config, "model_type"), "tensor `%s` is %s", name,
                                   tensor->dtype);
    diag_label(config->context, diag, "F32, F16, BF16 and F8_E4M3 are known");
    return false;
}

/// Changes one parameter's type and, where that has become E4M3, its entry in the map.
static void change_type(const struct library *library, node_id entry, node_id type, const char *to,
                        struct storage *storage)
{
    const struct ast *ast = &library->program.ast;
    struct span place = node_at(ast, node_at(ast, type)->slot[0])->span, source = node_at(ast, entry)->span;
    if (strcmp(item_text(library, place), to) != 0)
        add_edit(storage, place, to);
    if (strcmp(to, quantised) != 0)
        return;
    storage->blocks = true;
    add_edit(storage, (struct span){source.file, source.begin, source.begin}, "scaled(");
    add_edit(storage, (struct span){source.file, source.end, source.end},
             context_printf(library->context, ", suffix: \"%s\")", scale_suffix));
}

/// "bf16" for `torch_dtype: bfloat16`.
static bool read_dtype(const struct config *config, struct storage *storage)
{
    struct config_value value;
    storage->hidden = "bf16";
    storage->assumed = !config_find(config, "torch_dtype|dtype", &value);
    if (storage->assumed)
        return true;
    const char *seen = config_word(config, value.json);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (seen && *types[i].config && !strcmp(types[i].config, seen)) {
            storage->hidden = types[i].type;
            return true;
        }
    }
    struct diag *diag = diag_error(config->context, E0602, config_place(config, value.name), "`%s` is `%s`", value.name,
                                   seen ? seen : "no word");
    diag_label(config->context, diag, "float32, float16 and bfloat16 are known");
    return false;
}

/// Whether matrices of experts are E4M3 in blocks of 128 x 128. Other quantisations are refused by name.
static bool read_quantisation(const struct config *config, bool *blocks)
{
    struct config_value method, block;
    *blocks = false;
    if (!config_find(config, "quantization_config.quant_method", &method))
        return true;
    const char *seen = config_word(config, method.json);
    bool fp8 = seen && !strcmp(seen, "fp8"), sized = config_find(config, "quantization_config.weight_block_size", &block);
    bool square = sized && json_array_size(block.json) == 2 && json_integer_value(json_array_get(block.json, 0)) == 128 &&
                  json_integer_value(json_array_get(block.json, 1)) == 128;
    *blocks = fp8 && square;
    if (*blocks || (seen && !strcmp(seen, "mxfp4")))
        return true;
    const char *name = fp8 && sized ? block.name : method.name;
    struct diag *diag = diag_error(config->context, E0602, config_place(config, name),
                                   fp8 ? "E4M3 weights with scales that are not for blocks of 128 x 128"
                                       : "weights quantised by `%s`", seen ? seen : "");
    diag_label(config->context, diag, "`fp8` with `weight_block_size: [128, 128]` and `mxfp4` are known");
    return false;
}

/// The layer's rows are of the experts' type where that is one to compute in.
static void take_hidden(struct storage *storage, const char *param, const char *type)
{
    bool experts = !strcmp(param, "w_down");
    if (experts && (!strcmp(type, "f32") || !strcmp(type, "f16") || !strcmp(type, "bf16"))) {
        storage->hidden = type;
        storage->assumed = false;
    }
}

bool find_storage(const struct config *config, const struct library *library, const struct tensor_set *tensors,
                  const struct moe_layers *layers, struct storage *storage)
{
    const struct ast *ast = &library->program.ast;
    bool blocks = false, fine = true;
    *storage = (struct storage){.scale = "f32"};
    if (!read_dtype(config, storage) || (!tensors && !read_quantisation(config, &blocks)))
        return false;
    EACH_NODE(ast, id, node_at(ast, library->weights)->slot[1]) {
        const char *param = text_of(library->context, node_at(ast, id)->text);
        node_id entry = node_at(ast, id)->slot[0], type = declared_type(library, param);
        const char *to = type ? item_text(library, node_at(ast, node_at(ast, type)->slot[0])->span) : "";
        const char *name = expand(library->context, first_name(library, entry), layers->first);
        if (tensors)
            fine = fine && read_header(config, library, tensors, name, layers->first, &to, storage);
        else if (!strcmp(to, "bf16"))
            to = blocks && is_matrix(library, type) ? quantised : storage->hidden;
        if (!fine)
            return false;
        if (tensors)
            take_hidden(storage, param, to);
        change_type(library, entry, type, to, storage);
    }
    return true;
}
