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

/// What the keys of a path lead to; NULL with a message queued.
static json_t *find_value(struct checker *checker, const struct symbol *symbol, const struct path *path)
{
    json_t *json = open_document(checker, symbol->file, symbol->node);
    const char *file = name_text(checker, node_of(checker, node_of(checker, symbol->node)->slot[0])->text);
    for (uint32_t part = symbol->part + 1; json && part < path->count; part++) {
        json_t *inner = json_is_object(json) ? json_object_get(json, name_text(checker, path->name[part])) : NULL;
        if (!inner)
            report_missing(checker, file, json, path, symbol->part + 1, part);
        json = inner;
    }
    return json;
}

static bool report_json(struct checker *checker, struct span span, const json_t *json, const char *wanted)
{
    struct diag *diag = diag_error(checker->context, E0105, span, "`%s` is %s, not %s", source_text(checker, span),
                                   json_word(json), wanted);
    diag_label(checker->context, diag, "in the imported JSON file");
    return false;
}

bool json_constant(struct checker *checker, const struct symbol *symbol, const struct path *path,
                   struct constant *value)
{
    const json_t *json = find_value(checker, symbol, path);
    return json && (convert(checker, json, value) || report_json(checker, path->whole, json, "a constant"));
}

/// `[i]` of what stands before it.
static json_t *find_element(struct checker *checker, const struct scope *scope, node_id expression, json_t *list)
{
    const struct ast_node *node = node_of(checker, expression);
    struct span place = place_of(checker, node->slot[0]), at = place_of(checker, node->slot[1]);
    const char *name = source_text(checker, place);
    struct constant index;
    if (!json_is_array(list)) {
        report_json(checker, place, list, "a list");
        return NULL;
    }
    if (node_of(checker, node->slot[1])->next) {
        struct diag *diag = diag_error(checker->context, E0205, place_of(checker, expression), "a list has one index");
        diag_label(checker->context, diag, "more are given");
        return NULL;
    }
    if (!evaluate_as(checker, scope, "an index", node->slot[1], CONSTANT_INTEGER, &index))
        return NULL;
    size_t size = json_array_size(list);
    if (index.integer >= 0 && (uint64_t)index.integer < size)
        return json_array_get(list, (size_t)index.integer);
    struct diag *diag = diag_error(checker->context, E0105, at, "`%s` has no element %lld", name, (long long)index.integer);
    diag_label(checker->context, diag, "it has %s, counted from 0", counted(checker->context, (int64_t)size, "element"));
    return NULL;
}

/// What a chain of keys and indices below a JSON import leads to; NULL with a message queued.
static json_t *walk(struct checker *checker, const struct scope *scope, node_id expression)
{
    const struct ast_node *node = node_of(checker, expression);
    struct path path;
    if (path_of(checker, expression, &path)) {
        struct symbol symbol = resolve(checker, scope->file, &path, NODE_NONE, false);
        if (symbol.kind == SYMBOL_JSON)
            return find_value(checker, &symbol, &path);
        if (symbol.kind)
            diag_label(checker->context,
                       diag_error(checker->context, E0201, path.whole, "`%s` has no elements", source_text(checker, path.whole)),
                       "only lists of an imported JSON file have");
        return NULL;
    }
    bool chain = node->kind == NODE_INDEX || node->kind == NODE_MEMBER;
    json_t *outer = chain ? walk(checker, scope, node->slot[0]) : NULL;
    if (!chain)
        diag_label(checker->context, diag_error(checker->context, E0202, node->span, "this is not a constant"),
                   "not known before a run");
    if (!outer || node->kind == NODE_INDEX)
        return outer ? find_element(checker, scope, expression, outer) : NULL;
    const char *key = name_text(checker, node->text);
    json_t *inner = json_is_object(outer) ? json_object_get(outer, key) : NULL;
    if (!inner)
        diag_label(checker->context,
                   diag_error(checker->context, E0105, name_place(checker, expression), "`%s` has no key `%s`",
                              source_text(checker, place_of(checker, node->slot[0])), key),
                   "missing key");
    return inner;
}

bool json_element(struct checker *checker, const struct scope *scope, node_id expression, struct constant *value)
{
    const json_t *json = walk(checker, scope, expression);
    return json && (convert(checker, json, value) || report_json(checker, place_of(checker, expression), json, "a constant"));
}
