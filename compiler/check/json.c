// JSON files as constants: `import "config.json" as hf;` makes `hf.hidden_size` a constant. A key that is missing is an
// error naming file and key; nothing is ever silently 0.
#include "compiler/check/check.h"

#include <errno.h>
#include <string.h>

const char *relative_path(struct checker *checker, uint32_t file, const char *path)
{
    const char *from = checker->context->files[file].path;
    const char *slash = strrchr(from, '/');
    if (path[0] == '/' || !slash)
        return path;
    return context_printf(checker->context, "%.*s%s", (int)(slash - from + 1), from, path);
}

static void release_document(void *root)
{
    json_decref(root);
}

json_t *open_document(struct checker *checker, uint32_t importing, node_id import)
{
    for (uint32_t i = 0; i < checker->document_count; i++)
        if (checker->documents[i].import == import)
            return checker->documents[i].root;
    node_id string = node_of(checker, import)->slot[0];
    uint32_t number = import_target(checker->context, checker->program, importing, import);
    if (number == NONE)
        return NULL; // a file that cannot be read was reported where it was imported
    const struct source_file *file = &checker->context->files[number];
    const char *path = file->path;
    json_error_t error;
    void **kept = context_slot(checker->context, release_document);
    errno = 0;
    json_t *root = json_loadb(file->text, file->size, JSON_REJECT_DUPLICATES, &error);
    if (!root && errno == ENOMEM)
        fatal(checker->context, EXIT_SYSTEM, "out of memory while reading %.200s", path);
    *kept = root;
    if (!root) {
        struct diag *diag =
            diag_error(checker->context, E0105, place_of(checker, string), "`%s` is not valid JSON", path);
        diag_label(checker->context, diag, "line %d, column %d: %s", error.line, error.column, error.text);
    } else if (!json_is_object(root)) {
        struct diag *diag = diag_error(checker->context, E0105, place_of(checker, string), "`%s` has no keys", path);
        diag_label(checker->context, diag, "not a JSON object");
        json_decref(root);
        *kept = root = NULL;
    }
    checker->documents = context_grow(checker->context, checker->documents, &checker->document_capacity,
                                      checker->document_count + 1, sizeof *checker->documents);
    checker->documents[checker->document_count++] = (struct json_document){import, root, kept};
    return root;
}

void json_close(struct checker *checker)
{
    for (uint32_t i = 0; i < checker->document_count; i++) {
        json_decref(checker->documents[i].root);
        *checker->documents[i].kept = NULL;
    }
    checker->document_count = 0;
}

static bool report_missing(struct checker *checker, const char *file, json_t *object, const struct path *path,
                           uint32_t first, uint32_t part)
{
    const char *key = "";
    for (uint32_t i = first; i <= part; i++)
        key = context_printf(checker->context, "%s%s%s", key, i > first ? "." : "", name_text(checker, path->name[i]));
    struct diag *diag = diag_error(checker->context, E0105, path->span[part], "`%s` has no key `%s`", file, key);
    diag_label(checker->context, diag, "missing key");
    struct names candidates = {0};
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
        names_add(checker, &candidates, context_printf(checker->context, "%s", name));
    suggest(checker, diag, "key", name_text(checker, path->name[part]), path->span[part], &candidates);
    return false;
}

static const char *json_word(const json_t *value)
{
    return json_is_object(value)  ? "an object"
           : json_is_array(value) ? "a list"
           : json_is_null(value)  ? "null"
                                  : "a value";
}

static bool convert(struct checker *checker, const json_t *json, struct constant *value)
{
    if (json_is_integer(json))
        *value = integer_constant(json_integer_value(json));
    else if (json_is_real(json))
        *value = (struct constant){.kind = CONSTANT_FLOAT, .number = json_real_value(json)};
    else if (json_is_boolean(json))
        *value = (struct constant){.kind = CONSTANT_BOOL, .integer = json_is_true(json)};
    else if (json_is_string(json))
        *value = (struct constant){.kind = CONSTANT_STRING,
                                   .text = context_printf(checker->context, "%s", json_string_value(json))};
    else
        return false;
    return true;
}

bool json_constant(struct checker *checker, const struct symbol *symbol, const struct path *path,
                   struct constant *value)
{
    json_t *json = open_document(checker, symbol->file, symbol->node);
    if (!json)
        return false;
    const char *file = name_text(checker, node_of(checker, node_of(checker, symbol->node)->slot[0])->text);
    for (uint32_t part = symbol->part + 1; part < path->count; part++) {
        json_t *inner = json_is_object(json) ? json_object_get(json, name_text(checker, path->name[part])) : NULL;
        if (!inner)
            return report_missing(checker, file, json, path, symbol->part + 1, part);
        json = inner;
    }
    if (convert(checker, json, value))
        return true;
    struct diag *diag = diag_error(checker->context, E0105, path->whole, "`%s` is %s, not a constant",
                                   source_text(checker, path->whole), json_word(json));
    diag_label(checker->context, diag, "in `%s`", file);
    return false;
}
