// Which model a configuration describes, what its keys are called, what its words mean, and which of its layers have
// experts: families.def, looked up.
#include "compiler/import/internal.h"

#include <string.h>

static const struct {
    const char *model_type, *module, *layer, *with;
} families[] = {
#define FAMILY(...) {__VA_ARGS__},
#include "families.def"
#undef FAMILY
};

static const struct {
    const char *modules, *constant, *keys;
} key_table[] = {
#define KEY(...) {__VA_ARGS__},
#include "families.def"
#undef KEY
};

static const struct {
    const char *module, *constant, *value;
} default_table[] = {
#define DEFAULT(...) {__VA_ARGS__},
#include "families.def"
#undef DEFAULT
};

static const struct word {
    const char *module, *keys, *word, *option, *value;
} word_table[] = {
#define WORD(...) {__VA_ARGS__},
#include "families.def"
#undef WORD
};

static const struct {
    const char *module, *total, *first, *last, *step, *without;
} layer_table[] = {
#define LAYERS(...) {__VA_ARGS__},
#include "families.def"
#undef LAYERS
};

#define EACH_ROW(table, i) for (size_t i = 0; i < sizeof table / sizeof *table; i++)

/// Not a list or an object without anything, 0 or false.
static bool is_set(const struct config *config, const char *keys)
{
    struct config_value value;
    if (!config_find(config, keys, &value) || json_is_false(value.json))
        return false;
    if (json_is_array(value.json))
        return json_array_size(value.json) > 0;
    return !json_is_number(value.json) || json_number_value(value.json) != 0;
}

static bool report_model(const struct config *config, const char *seen, struct span place)
{
    struct context *context = config->context;
    const char *known = "", *candidates[sizeof families / sizeof *families];
    EACH_ROW(families, i)
    {
        candidates[i] = families[i].model_type;
        if (!i || strcmp(families[i - 1].model_type, families[i].model_type) != 0)
            known = context_printf(context, "%s%s%s", known, i ? ", " : "", families[i].model_type);
    }
    struct diag *diag = seen ? diag_error(context, E0602, place, "no model of the library has the type `%s`", seen)
                             : diag_error(context, E0602, place, "`%s` does not say which model it is", config->path);
    diag_label(context, diag, seen ? "unknown model" : "no `model_type`");
    const char *nearest = seen ? nearest_name(seen, candidates, sizeof candidates / sizeof *candidates) : NULL;
    if (nearest)
        diag_help(context, diag, "the nearest known type is `%s`", nearest);
    diag_note(context, diag, "known types are %s", known);
    return false;
}

bool find_family(const struct config *config, struct family *family)
{
    const json_t *type = json_object_get(config->root, "model_type");
    const char *seen = json_string_value(type);
    EACH_ROW(families, i)
    {
        if (!seen || strcmp(families[i].model_type, seen) != 0 || (*families[i].with && !is_set(config, families[i].with)))
            continue;
        *family = (struct family){families[i].model_type, families[i].module, families[i].layer};
        return true;
    }
    return report_model(config, seen, seen ? config_place(config, "model_type") : (struct span){config->file, 0, 0});
}

/// Whether "mixtral|olmoe" names the module; "" names all.
static bool is_among(const char *modules, const char *module)
{
    size_t length = strlen(module);
    for (const char *at = modules; *at; at += strcspn(at, "|"), at += *at == '|')
        if (strcspn(at, "|") == length && !strncmp(at, module, length))
            return true;
    return !*modules;
}

const char *keys_of(const struct family *family, const char *constant)
{
    EACH_ROW(key_table, i)
    if (is_among(key_table[i].modules, family->module) && !strcmp(key_table[i].constant, constant))
        return key_table[i].keys;
    return NULL;
}

const char *default_of(const struct family *family, const char *constant)
{
    EACH_ROW(default_table, i)
    if (!strcmp(default_table[i].module, family->module) && !strcmp(default_table[i].constant, constant))
        return default_table[i].value;
    return NULL;
}

// ---- words ------------------------------------------------------------------------------------------------------------

/// Whether a row is one of the family's: for all, unless the module has rows for the same key.
static bool row_counts(const struct family *family, const struct word *row)
{
    if (*row->module)
        return !strcmp(row->module, family->module);
    EACH_ROW(word_table, i)
    if (!strcmp(word_table[i].module, family->module) &&
        !strncmp(word_table[i].keys, row->keys, strcspn(row->keys, "|")))
        return false;
    return true;
}

static bool report_word(const struct config *config, const struct family *family, const struct config_value *value,
                        const char *keys)
{
    struct context *context = config->context;
    const char *seen = config_word(config, value->json), *known = "";
    EACH_ROW(word_table, i)
    if (row_counts(family, &word_table[i]) && !strcmp(word_table[i].keys, keys))
        known = context_printf(context, "%s%s`%s`", known, *known ? ", " : "", word_table[i].word);
    struct diag *diag = diag_error(context, E0602, config_place(config, value->name), "`%s` of %s is `%s`", value->name,
                                   family->model_type, seen ? seen : "a list or an object");
    diag_label(context, diag, "not known to mean anything here");
    diag_note(context, diag, "known values are %s", known);
    diag_help(context, diag, "write the layer by hand, beginning with `import models.%s;`", family->module);
    return false;
}

/// The rows of one key: the one that says what is seen.
static bool find_option(const struct config *config, const struct family *family, const char *keys,
                        struct option *option, bool *missing)
{
    struct config_value value;
    *missing = !config_find(config, keys, &value);
    if (*missing)
        return true;
    const char *seen = config_word(config, value.json);
    EACH_ROW(word_table, i)
    {
        const struct word *row = &word_table[i];
        if (!seen || !row_counts(family, row) || strcmp(row->keys, keys) != 0 || strcmp(row->word, seen) != 0)
            continue;
        *option = (struct option){.name = row->option,
                                  .value = row->value,
                                  .seen = context_printf(config->context, "%s = %s", value.name, seen)};
        return true;
    }
    return report_word(config, family, &value, keys);
}

bool find_options(const struct config *config, const struct family *family, struct option *options, uint32_t *count,
                  const char **missing)
{
    const char *done = NULL;
    bool fine = true;
    *missing = NULL;
    EACH_ROW(word_table, i)
    {
        const struct word *row = &word_table[i];
        struct option option = {0};
        bool absent = false;
        if (!row_counts(family, row) || (done && !strcmp(done, row->keys)))
            continue;
        done = row->keys;
        fine = find_option(config, family, row->keys, &option, &absent) && fine;
        if (absent && *row->option && !strcmp(row->option, "activation"))
            *missing = first_key(config->context, row->keys);
        if (option.name && *option.name && *count < OPTIONS_MOST)
            options[(*count)++] = option;
    }
    return fine;
}

// ---- layers -----------------------------------------------------------------------------------------------------------

/// A whole number under one of the keys, `otherwise` where there is none. False, with an error queued: something else.
static bool read_integer(const struct config *config, const char *keys, int64_t otherwise, int64_t least, int64_t *number,
                         const char **name)
{
    struct config_value value;
    *number = otherwise;
    if (!config_find(config, keys, &value))
        return true;
    if (!json_is_integer(value.json) || json_integer_value(value.json) < least) {
        config_refuse(config, value.name, value.json,
                      least < 0 ? "a whole number" : context_printf(config->context, "a whole number from %lld on", (long long)least));
        return false;
    }
    *number = json_integer_value(value.json);
    if (name)
        *name = value.name;
    return true;
}

static bool has_experts(const struct config *config, const struct family *family, size_t row, int64_t layer, int64_t step)
{
    struct config_value without;
    if (config_find(config, layer_table[row].without, &without))
        for (size_t i = 0; i < json_array_size(without.json); i++)
            if (json_integer_value(json_array_get(without.json, i)) == layer)
                return false;
    if (step > 1 && !strcmp(family->module, "switch_transformers"))
        return layer % step == 1;
    return (layer + 1) % step == 0;
}

bool find_layers(const struct config *config, const struct family *family, struct moe_layers *layers)
{
    enum { MOST = 4096 };
    size_t row = 0;
    while (*layer_table[row].module && strcmp(layer_table[row].module, family->module) != 0)
        row++;
    *layers = (struct moe_layers){0};
    int64_t first, last, step;
    if (!read_integer(config, layer_table[row].total, 1, 1, &layers->total, &layers->count_key) ||
        !read_integer(config, layer_table[row].first, 0, 0, &first, &layers->first_key) ||
        !read_integer(config, layer_table[row].last, -1, -1, &last, NULL) ||
        !read_integer(config, layer_table[row].step, 1, 0, &step, NULL))
        return false;
    if (layers->total > MOST) {
        const char *name = layers->count_key ? layers->count_key : "num_hidden_layers";
        struct diag *diag = diag_error(config->context, E0602, config_place(config, name), "%lld layers",
                                       (long long)layers->total);
        diag_label(config->context, diag, "from 1 to %d are expected", MOST);
        return false;
    }
    int64_t *numbers = context_alloc(config->context, (size_t)layers->total * sizeof *numbers);
    for (int64_t i = first; i < layers->total && (last < 0 || i <= last); i++)
        if (step >= 1 && has_experts(config, family, row, i, step))
            numbers[layers->count++] = i;
    layers->numbers = numbers;
    if (!layers->count) {
        struct diag *diag = diag_error(config->context, E0602, (struct span){config->file, 0, 0},
                                       "no layer of `%s` has experts", config->path);
        diag_label(config->context, diag, "%lld layers, the first with experts %lld, every %lld", (long long)layers->total,
                   (long long)first, (long long)step);
        return false;
    }
    layers->first = numbers[0];
    layers->step = layers->count > 1 ? numbers[1] - numbers[0] : 1;
    for (int64_t i = 1; i < layers->count; i++)
        if (numbers[i] - numbers[i - 1] != layers->step) { // in no order: the first ones that are
            layers->count = i;
            layers->count_key = NULL;
        }
    return true;
}
