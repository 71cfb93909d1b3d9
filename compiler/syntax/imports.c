// A program is a file and everything it imports. load_program parses them all, imported files before importing ones;
// modules (`std.ops`) come from the embedded library, other .moe files from beside the importing file. JSON files are only
// checked to exist here: the checker reads them.
#include "compiler/syntax/ast.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { IMPORT_DEPTH_LIMIT = 100 };

struct loader {
    struct context *context;
    struct program_text *program;
    const struct importing *open; // the files being loaded, innermost first
    uint32_t depth;
};

struct importing {
    const struct importing *outer;
    const char *path;
    node_id import; // of this file in the outer one
};

static bool ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && !strcmp(text + length - end_length, end);
}

/// Takes "./" and "folder/../" out of a path, so that one file has one name however it is reached.
const char *source_path(struct context *context, const char *path)
{
    size_t length = strlen(path), used = 0, floor = path[0] == '/';
    char *plain = context_alloc(context, length + 2);
    if (floor)
        plain[used++] = '/';
    for (const char *at = path; *at;) {
        at += strspn(at, "/");
        size_t part = strcspn(at, "/");
        if (part == 2 && !strncmp(at, "..", 2) && used > floor) { // drop the folder before
            while (used > floor && plain[used - 1] != '/')
                used--;
            used -= used > floor;
        } else if (part && !(part == 1 && *at == '.')) {
            bool up = part == 2 && !strncmp(at, "..", 2);
            if (used && plain[used - 1] != '/')
                plain[used++] = '/';
            memcpy(plain + used, at, part);
            used += part;
            floor = up ? used : floor; // a leading ".." stays
        }
        at += part;
    }
    plain[used] = 0;
    return plain;
}

static const char *beside(struct context *context, const char *importing, const char *path)
{
    const char *slash = strrchr(importing, '/');
    if (!slash || path[0] == '/')
        return source_path(context, path);
    return source_path(context, context_printf(context, "%.*s/%s", (int)(slash - importing), importing, path));
}

/// The path of a module in the library: "std/ops.moe".
static const char *module_path(struct context *context, const struct ast *ast, node_id path)
{
    const char *joined = "";
    EACH_NODE(ast, name, node_at(ast, path)->slot[0])
    joined = context_printf(context, "%s%s%s", joined, *joined ? "/" : "", text_of(context, node_at(ast, name)->text));
    return context_printf(context, "%s.moe", joined);
}

/// Where an import leads: the path under which its file is, or will be, among the context's files.
static const char *target_path(struct context *context, const struct ast *ast, uint32_t importing, node_id import)
{
    const struct ast_node *node = node_at(ast, import);
    if (!node->flag)
        return module_path(context, ast, node->slot[0]);
    const char *path = text_of(context, node_at(ast, node->slot[0])->text);
    return beside(context, context->files[importing].path, path);
}

/// "std.ops" of "std/ops.moe".
static char *module_name(struct context *context, const char *path)
{
    char *name = context_alloc(context, strlen(path) + 1);
    memcpy(name, path, strlen(path) - strlen(".moe"));
    for (char *at = name; *at; at++)
        *at = *at == '/' ? '.' : *at;
    return name;
}

static uint32_t find_file(const struct context *context, const char *path, bool module)
{
    for (uint32_t i = 0; i < context->file_count; i++)
        if ((context->files[i].module != NULL) == module && !strcmp(context->files[i].path, path))
            return i;
    return NONE;
}

/// A file that is not there is the program's mistake; one that the system does not give us is the system's failure.
static void refuse_file(struct context *context, const char *path)
{
    if (errno && errno != ENOENT && errno != ENOTDIR && errno != EISDIR && errno != ENAMETOOLONG && errno != ELOOP &&
        errno != EFBIG)
        fatal(context, EXIT_SYSTEM, "cannot read %.200s: %s", path, strerror(errno));
}

static uint32_t add_module(struct context *context, const char *path)
{
    size_t size;
    const char *text = embedded_file(path, &size);
    if (!text)
        return NONE;
    return add_source(context, path, text, size, module_name(context, path));
}

static uint32_t add_file(struct context *context, const char *path)
{
    size_t size;
    const char *text = read_whole_file(context, path, &size);
    if (!text)
        refuse_file(context, path);
    return text ? add_source(context, path, text, size, NULL) : NONE;
}

static void load_unit(struct loader *loader, uint32_t file, const char *path, node_id import);

static void report_missing(struct loader *loader, node_id import, const char *path)
{
    struct context *context = loader->context;
    const struct ast *ast = &loader->program->ast;
    const struct ast_node *node = node_at(ast, import);
    struct span span = node_at(ast, node->slot[0])->span;
    struct diag *diag;
    if (node->flag) {
        diag = diag_error(context, E0103, span, "cannot read `%s`", path);
        diag_label(context, diag, "paths are relative to the importing file");
        return;
    }
    char *module = module_name(context, path);
    diag = diag_error(context, E0103, span, "there is no module `%s`", module);
    diag_label(context, diag, "unknown module");
    diag_note(context, diag, "modules are std.ops, std.hw, std.schedules and those of models.*; a file is imported as \"file.moe\"");
}

static bool report_circle(struct loader *loader, node_id import, const char *path)
{
    const struct importing *inner = NULL;
    for (const struct importing *open = loader->open; open; inner = open, open = open->outer) {
        if (strcmp(open->path, path) != 0)
            continue;
        const struct ast *ast = &loader->program->ast;
        struct span span = node_at(ast, node_at(ast, import)->slot[0])->span;
        struct diag *diag = diag_error(loader->context, E0104, span, "`%s` imports itself", path);
        diag_label(loader->context, diag, "closes the circle");
        if (inner)
            diag_label_at(loader->context, diag, node_at(ast, inner->import)->span, "which leads here");
        return true;
    }
    return false;
}

static void load_import(struct loader *loader, uint32_t importing, node_id import)
{
    struct context *context = loader->context;
    const struct ast *ast = &loader->program->ast;
    const char *path = target_path(context, ast, importing, import);
    bool module = !node_at(ast, import)->flag;
    if (!module && ends_in(path, ".json")) {
        if (find_file(context, path, false) == NONE && add_file(context, path) == NONE)
            report_missing(loader, import, path);
        return;
    }
    if (report_circle(loader, import, path) || find_file(context, path, module) != NONE)
        return;
    uint32_t file = loader->depth >= IMPORT_DEPTH_LIMIT ? NONE
                    : module                            ? add_module(context, path)
                                                        : add_file(context, path);
    if (file == NONE)
        report_missing(loader, import, path);
    else
        load_unit(loader, file, path, import);
}

static void load_unit(struct loader *loader, uint32_t file, const char *path, node_id import)
{
    struct program_text *program = loader->program;
    struct importing here = {.outer = loader->open, .path = path, .import = import};
    loader->open = &here;
    loader->depth++;
    node_id root = parse_file(loader->context, &program->ast, file);
    // The tree grows while its imports are loaded, so nodes are looked up anew each time.
    for (node_id item = program->ast.nodes[root].slot[0]; item; item = program->ast.nodes[item].next)
        if (program->ast.nodes[item].kind == NODE_IMPORT)
            load_import(loader, file, item);
    program->units = context_grow(loader->context, program->units, &program->unit_capacity, program->unit_count + 1,
                                  sizeof *program->units);
    program->units[program->unit_count++] = (struct parsed_file){file, root};
    loader->depth--;
    loader->open = here.outer;
}

bool load_program(struct context *context, struct program_text *program, const char *path)
{
    uint32_t errors = context->error_count;
    struct loader loader = {.context = context, .program = program};
    const char *plain = source_path(context, path);
    uint32_t file = find_file(context, path, false); // an editor's text, added before, goes before the file on disk
    if (file == NONE)
        file = add_file(context, path);
    if (file == NONE) {
        diag_error(context, E0103, (struct span){NONE, 0, 0}, "cannot read `%s`", path);
        return false;
    }
    load_unit(&loader, file, plain, 0);
    return context->error_count == errors;
}

uint32_t import_target(struct context *context, const struct program_text *program, uint32_t importing, node_id import)
{
    const char *path = target_path(context, &program->ast, importing, import);
    return find_file(context, path, !node_at(&program->ast, import)->flag);
}
