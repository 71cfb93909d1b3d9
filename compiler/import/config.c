// config.json: keys under any of their names, at the top or nested, and where they stand in the text.
#include "compiler/import/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/// Objects in which a model that does more than text keeps its language model's keys.
static const char *const inner_objects[] = {"text_config", "language_config", "llm_config"};

static void release_root(void *root)
{
    json_decref(root);
}

bool config_open(struct context *context, const char *path, struct config *config)
{
    struct stat status;
    if (stat(path, &status))
        fatal(context, errno == ENOENT || errno == ENOTDIR ? EXIT_INPUT : EXIT_SYSTEM, "cannot read %.200s: %s", path,
              strerror(errno));
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    const char *slash = strrchr(path, '/'), *end = strrchr(path, '.');
    if (end && !strcmp(end, ".safetensors"))
        fatal(context, EXIT_INPUT, "%.200s holds tensors: import reads their directory, or its config.json", path);
    bool folder = S_ISDIR(status.st_mode);
    *config = (struct config){.context = context};
    config->folder = folder  ? context_printf(context, "%.*s", (int)length, path)
                     : slash ? context_printf(context, "%.*s", slash == path ? 1 : (int)(slash - path), path)
                             : ".";
    config->path = folder ? context_printf(context, "%s/config.json", config->folder) : path;
    size_t size;
    const char *text = read_whole_file(context, config->path, &size);
    if (!text)
        fatal(context, errno == ENOENT ? EXIT_INPUT : EXIT_SYSTEM, "cannot read %.200s: %s", config->path, strerror(errno));
    config->file = add_source(context, config->path, text, size, NULL);
    const struct source_file *file = &context->files[config->file];
    json_error_t error;
    void **kept = context_slot(context, release_root);
    *kept = config->root = json_loadb(file->text, file->size, 0, &error);
    if (json_is_object(config->root))
        return true;
    struct span place = {config->file, 0, 0};
    if (!config->root && error.position > 0 && (uint32_t)error.position <= file->size)
        place.begin = place.end = (uint32_t)error.position;
    struct diag *diag = diag_error(context, E0105, place, "`%s` is %s", config->path,
                                   config->root ? "no JSON object" : "not valid JSON");
    diag_label(context, diag, "%s", config->root ? "keys are expected" : error.text);
    return false;
}

/// "ffn_config.moe_top_k" below an object.
static const json_t *find_path(const json_t *object, const char *path)
{
    while (object && *path) {
        size_t length = strcspn(path, ".");
        object = json_is_object(object) ? json_object_getn(object, path, length) : NULL;
        path += length + (path[length] == '.');
    }
    return json_is_null(object) ? NULL : object;
}

const char *first_key(struct context *context, const char *keys)
{
    return context_printf(context, "%.*s", (int)strcspn(keys, "|"), keys);
}

bool config_find(const struct config *config, const char *keys, struct config_value *value)
{
    struct context *context = config->context;
    for (const char *at = keys; *at; at += strcspn(at, "|"), at += *at == '|') {
        const char *key = first_key(context, at);
        *value = (struct config_value){key, find_path(config->root, key)};
        for (size_t i = 0; i < sizeof inner_objects / sizeof *inner_objects && !value->json; i++) {
            value->name = context_printf(context, "%s.%s", inner_objects[i], key);
            value->json = find_path(config->root, value->name);
        }
        if (value->json)
            return true;
    }
    return false;
}

const char *config_word(const struct config *config, const json_t *json)
{
    struct context *context = config->context;
    if (json_is_string(json))
        return context_printf(context, "%s", json_string_value(json));
    if (json_is_boolean(json))
        return json_is_true(json) ? "true" : "false";
    if (json_is_integer(json))
        return context_printf(context, "%lld", (long long)json_integer_value(json));
    if (!json_is_real(json))
        return NULL;
    for (int digits = 1; digits < 17; digits++) { // the shortest that reads back
        const char *text = context_printf(context, "%.*g", digits, json_real_value(json));
        if (strtod(text, NULL) == json_real_value(json))
            return text;
    }
    return context_printf(context, "%.17g", json_real_value(json));
}

void config_refuse(const struct config *config, const char *name, const json_t *json, const char *expected)
{
    const char *word = config_word(config, json), *quote = json_is_string(json) ? "\"" : "";
    struct diag *diag = diag_error(config->context, E0602, config_place(config, name), "`%s` is `%s%s%s`", name, quote,
                                   word ? word : json_is_array(json) ? "[...]" : "{...}", quote);
    diag_label(config->context, diag, "%s is expected", expected);
}

struct span config_place(const struct config *config, const char *name)
{
    const char *dot = strrchr(name, '.'), *key = dot ? dot + 1 : name;
    const struct source_file *file = &config->context->files[config->file];
    const char *quoted = context_printf(config->context, "\"%s\"", key), *from = file->text;
    for (const char *outer = name; dot && from; outer += strcspn(outer, ".") + 1) { // nested: behind the outer keys
        size_t length = strcspn(outer, ".");
        if (!outer[length])
            break;
        from = strstr(from, context_printf(config->context, "\"%.*s\"", (int)length, outer));
    }
    const char *found = from ? strstr(from, quoted) : NULL;
    if (!found)
        return (struct span){config->file, 0, 0};
    uint32_t begin = (uint32_t)(found - file->text);
    return (struct span){config->file, begin, begin + (uint32_t)strlen(quoted)};
}
