// A module of stdlib/models/ as text: its items' places, and copies of it with some places replaced.
#include "compiler/import/internal.h"

#include <stdlib.h>
#include <string.h>

static bool is_word(char c)
{
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

const char *quotable(struct context *context, const char *path)
{
    char *text = context_alloc(context, 2 * strlen(path) + 1), *to = text;
    for (; *path; path++) {
        bool line = *path == '\n';
        if (line || *path == '"' || *path == '\\')
            *to++ = '\\';
        *to++ = line ? 'n' : *path;
    }
    *to = 0;
    return text;
}

bool has_word(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = strstr(text, name); at; at = strstr(at + 1, name))
        if ((at == text || !is_word(at[-1])) && !is_word(at[length]) && (at == text || at[-1] != '.'))
            return true;
    return false;
}

const char *item_text(const struct library *library, struct span span)
{
    const char *text = library->context->files[span.file].text;
    return context_printf(library->context, "%.*s", (int)(span.end - span.begin), text + span.begin);
}

static int by_place(const void *a, const void *b)
{
    const struct edit *x = a, *y = b;
    return (x->span.begin > y->span.begin) - (x->span.begin < y->span.begin);
}

const char *edited_text(const struct library *library, struct span span, const struct edit *edits, uint32_t count)
{
    struct context *context = library->context;
    struct edit *sorted = context_alloc(context, (count + 1) * sizeof *sorted);
    uint32_t inside = 0;
    for (uint32_t i = 0; i < count; i++)
        if (edits[i].span.file == span.file && edits[i].span.begin >= span.begin && edits[i].span.end <= span.end)
            sorted[inside++] = edits[i];
    qsort(sorted, inside, sizeof *sorted, by_place);
    const char *text = "";
    uint32_t at = span.begin;
    for (uint32_t i = 0; i < inside; i++) {
        const char *before = item_text(library, (struct span){span.file, at, sorted[i].span.begin});
        text = context_printf(context, "%s%s%s", text, before, sorted[i].text);
        at = sorted[i].span.end;
    }
    return context_printf(context, "%s%s", text, item_text(library, (struct span){span.file, at, span.end}));
}

/// The root of a module or file among the program's.
static node_id root_of(const struct library *library, const char *module, const char *path)
{
    for (uint32_t i = 0; i < library->program.unit_count; i++) {
        const struct source_file *file = &library->context->files[library->program.units[i].file];
        if (module ? file->module && !strcmp(file->module, module) : !file->module && !strcmp(file->path, path))
            return library->program.units[i].root;
    }
    return 0;
}

static node_id find_item(const struct library *library, node_id root, uint16_t kind, const char *name)
{
    const struct ast *ast = &library->program.ast;
    EACH_NODE(ast, id, root ? node_at(ast, root)->slot[0] : 0)
        if (node_at(ast, id)->kind == kind && !strcmp(text_of(library->context, node_at(ast, id)->text), name))
            return id;
    return 0;
}

/// The first map for the family's layer.
static node_id find_map(const struct library *library, const char *layer)
{
    const struct ast *ast = &library->program.ast;
    EACH_NODE(ast, id, node_at(ast, library->root)->slot[0])
        if (node_at(ast, id)->kind == NODE_WEIGHTS &&
            !strcmp(item_text(library, node_at(ast, node_at(ast, id)->slot[0])->span), layer))
            return id;
    return 0;
}

static bool report_cluster(struct library *library, const char *given, const char *in, node_id root)
{
    struct context *context = library->context;
    uint32_t file = add_source(context, "--cluster", given, strlen(given), NULL);
    struct diag *diag = diag_error(context, E0101, (struct span){file, 0, (uint32_t)strlen(given)},
                                   "there is no cluster `%s` in %s", given, in);
    const char *known = "";
    const struct ast *ast = &library->program.ast;
    EACH_NODE(ast, id, root ? node_at(ast, root)->slot[0] : 0)
        if (node_at(ast, id)->kind == NODE_CLUSTER)
            known = context_printf(context, "%s%s%s", known, *known ? ", " : "", text_of(context, node_at(ast, id)->text));
    diag_label(context, diag, "unknown cluster");
    diag_note(context, diag, "%s has %s; another file's is `FILE.moe:NAME`", in, *known ? known : "none");
    return false;
}

bool library_open(struct context *context, const struct family *family, const struct import_options *options,
                  struct library *library)
{
    *library = (struct library){.context = context};
    const char *given = options->cluster ? options->cluster : "laptop", *colon = strrchr(given, ':');
    const char *path = colon ? context_printf(context, "%.*s", (int)(colon - given), given) : NULL;
    const char *text = context_printf(context, "import models.%s;\nimport std.hw;\n", family->module);
    if (path)
        text = context_printf(context, "%simport \"%s\" as machines;\n", text, quotable(context, path));
    static const char name[] = "moecc import";
    add_source(context, name, text, strlen(text), NULL);
    if (!load_program(context, &library->program, name))
        return false;
    library->root = root_of(library, context_printf(context, "models.%s", family->module), NULL);
    library->layer = find_item(library, library->root, NODE_LAYER, family->layer);
    library->weights = library->root ? find_map(library, family->layer) : 0;
    if (!library->layer || !library->weights)
        fatal(context, EXIT_BUG, "models.%s has no layer and map for `%s`", family->module, family->layer);
    node_id machines = path ? root_of(library, NULL, path) : root_of(library, "std.hw", NULL);
    library->cluster = find_item(library, machines, NODE_CLUSTER, colon ? colon + 1 : given);
    return library->cluster || report_cluster(library, colon ? colon + 1 : given, path ? path : "std.hw", machines);
}
