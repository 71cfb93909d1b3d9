// What a name means. A file sees its own items, its aliases, the names it selects from modules, and all items of modules it
// imports whole; through an alias it sees whatever the aliased file sees. Lookup walks the AST: files are small, and nothing
// has to be kept in step with it.
#include "compiler/check/check.h"

#include <string.h>

static const char *const item_words[node_kind_count] = {
    [NODE_CONST] = "constant",    [NODE_DIM] = "dim",         [NODE_FORMAT] = "format",
    [NODE_DEVICE] = "device",     [NODE_CLUSTER] = "cluster", [NODE_PLACEMENT] = "placement",
    [NODE_OP] = "operator",       [NODE_LAYER] = "layer",     [NODE_WEIGHTS] = "weights map",
    [NODE_SCHEDULE] = "schedule", [NODE_MONITOR] = "monitor", [NODE_PIPELINE] = "pipeline",
};

const char *item_word(uint16_t kind)
{
    const char *word = kind < node_kind_count ? item_words[kind] : NULL;
    return word ? word : "name";
}

static node_id file_root(const struct checker *checker, uint32_t file)
{
    for (uint32_t i = 0; i < checker->program->unit_count; i++)
        if (checker->program->units[i].file == file)
            return checker->program->units[i].root;
    return 0;
}

static node_id first_item(const struct checker *checker, uint32_t file)
{
    node_id root = file_root(checker, file);
    return root ? node_of(checker, root)->slot[0] : 0;
}

static bool is_json(const struct checker *checker, const struct ast_node *import)
{
    if (import->flag != 1)
        return false;
    const char *path = name_text(checker, node_of(checker, import->slot[0])->text);
    size_t length = strlen(path);
    return length >= 5 && !strcmp(path + length - 5, ".json");
}

static struct symbol own_item(const struct checker *checker, uint32_t file, str_id name)
{
    EACH_NODE(&checker->program->ast, item, first_item(checker, file)) {
        const struct ast_node *node = node_of(checker, item);
        if (item_words[node->kind] && node->text == name)
            return (struct symbol){.kind = SYMBOL_ITEM, .node = item, .file = file};
    }
    return (struct symbol){0};
}

static bool selects(const struct checker *checker, const struct ast_node *import, str_id name)
{
    EACH_NODE(&checker->program->ast, selected, import->slot[1])
        if (node_of(checker, selected)->text == name)
            return true;
    return false;
}

/// What one import brings in under `name`; `whole`: only imports of all names, else only aliases and selections.
static struct symbol imported(struct checker *checker, uint32_t file, node_id import, str_id name, bool whole)
{
    const struct ast_node *node = node_of(checker, import);
    bool brings_all = !node->text && !node->slot[1];
    if (node->text) {
        if (whole || node->text != name)
            return (struct symbol){0};
        if (is_json(checker, node))
            return (struct symbol){.kind = SYMBOL_JSON, .node = import, .file = file};
        uint32_t target = import_target(checker->context, checker->program, file, import);
        return target == NONE ? (struct symbol){0}
                              : (struct symbol){.kind = SYMBOL_MODULE, .node = import, .file = target};
    }
    if (brings_all != whole || (!whole && !selects(checker, node, name)))
        return (struct symbol){0};
    uint32_t target = import_target(checker->context, checker->program, file, import);
    return target == NONE ? (struct symbol){0} : own_item(checker, target, name);
}

struct symbol find_name(struct checker *checker, uint32_t file, str_id name)
{
    struct symbol symbol = own_item(checker, file, name);
    for (int whole = 0; whole < 2 && !symbol.kind; whole++) {
        EACH_NODE(&checker->program->ast, item, first_item(checker, file)) {
            if (node_of(checker, item)->kind != NODE_IMPORT)
                continue;
            symbol = imported(checker, file, item, name, whole);
            if (symbol.kind)
                break;
        }
    }
    return symbol;
}

static void add_items(struct checker *checker, uint32_t file, uint16_t kind, struct names *names)
{
    EACH_NODE(&checker->program->ast, item, first_item(checker, file)) {
        const struct ast_node *node = node_of(checker, item);
        if (item_words[node->kind] && (kind == NODE_NONE || node->kind == kind))
            names_add(checker, names, name_text(checker, node->text));
    }
}

void visible_names(struct checker *checker, uint32_t file, uint16_t kind, struct names *names)
{
    add_items(checker, file, kind, names);
    EACH_NODE(&checker->program->ast, item, first_item(checker, file)) {
        const struct ast_node *node = node_of(checker, item);
        if (node->kind != NODE_IMPORT)
            continue;
        if (node->text && kind == NODE_NONE)
            names_add(checker, names, name_text(checker, node->text));
        if (node->text)
            continue;
        uint32_t target = import_target(checker->context, checker->program, file, item);
        if (target != NONE && !node->slot[1])
            add_items(checker, target, kind, names);
        EACH_NODE(&checker->program->ast, selected, node->slot[1]) {
            str_id name = node_of(checker, selected)->text;
            struct symbol symbol = target == NONE ? (struct symbol){0} : own_item(checker, target, name);
            if (symbol.kind && (kind == NODE_NONE || node_of(checker, symbol.node)->kind == kind))
                names_add(checker, names, name_text(checker, name));
        }
    }
}

static bool add_part(const struct checker *checker, struct path *path, str_id name, struct span span)
{
    if (path->count == PATH_PARTS)
        return false;
    (void)checker;
    path->name[path->count] = name;
    path->span[path->count++] = span;
    return true;
}

static bool collect(const struct checker *checker, node_id id, struct path *path)
{
    const struct ast_node *node = node_of(checker, id);
    if (node->kind == NODE_NAME)
        return add_part(checker, path, node->text, node->span);
    if (node->kind == NODE_MEMBER)
        return collect(checker, node->slot[0], path) && add_part(checker, path, node->text, name_place(checker, id));
    if (node->kind != NODE_PATH)
        return false;
    EACH_NODE(&checker->program->ast, name, node->slot[0])
        if (!add_part(checker, path, node_of(checker, name)->text, place_of(checker, name)))
            return false;
    return path->count > 0;
}

bool path_of(const struct checker *checker, node_id node, struct path *path)
{
    *path = (struct path){.whole = place_of(checker, node)};
    return collect(checker, node, path);
}

/// An operator of std.ops in a file that does not import it: one mistake, said once, whatever operators follow.
static bool report_missing_ops(struct checker *checker, uint32_t file, const struct path *path, uint16_t kind)
{
    const char *name = name_text(checker, path->name[0]);
    size_t size;
    const char *ops = embedded_file("std/ops.moe", &size), *head = context_printf(checker->context, "op %s(", name);
    if (kind != NODE_OP || path->count > 1 || !ops || !memmem(ops, size, head, strlen(head)))
        return false;
    EACH_NODE(&checker->program->ast, item, first_item(checker, file)) {
        const struct ast_node *node = node_of(checker, item);
        uint32_t target = node->kind == NODE_IMPORT && !is_json(checker, node)
                              ? import_target(checker->context, checker->program, file, item)
                              : NONE;
        const char *module = target == NONE ? NULL : checker->context->files[target].module;
        if (module && !strcmp(module, "std.ops"))
            return false; // imported under an alias, or other names of it
    }
    if (checker->ops_missing)
        return true;
    checker->ops_missing = true;
    struct diag *diag = diag_error(checker->context, E0101, path->span[0], "unknown operator `%s`", name);
    diag_label(checker->context, diag, "an operator of std.ops, which is not imported");
    diag_help(checker->context, diag, "import the operators");
    struct span begin = place_of(checker, first_item(checker, file));
    begin.end = begin.begin;
    diag_fix(checker->context, diag, begin, "import std.ops; ");
    return true;
}

/// What the library has under that name, and the file does not import.
static bool report_missing_import(struct checker *checker, uint32_t file, const struct path *path, uint16_t kind)
{
    static const struct {
        uint16_t kind;
        const char *file, *module;
    } library[] = {{NODE_SCHEDULE, "std/schedules.moe", "std.schedules"},
                   {NODE_DEVICE, "std/hw.moe", "std.hw"},
                   {NODE_CLUSTER, "std/hw.moe", "std.hw"}};
    const char *name = name_text(checker, path->name[0]), *what = item_word(kind);
    const char *head = context_printf(checker->context, "\n%s %s", what, name);
    for (size_t i = 0; i < sizeof library / sizeof *library && path->count == 1; i++) {
        size_t size, length = strlen(head);
        const char *text = library[i].kind == kind ? embedded_file(library[i].file, &size) : NULL;
        const char *at = text ? memmem(text, size, head, length) : NULL;
        if (!at || at + length == text + size || !strchr(" (", at[length]))
            continue;
        struct diag *diag = diag_error(checker->context, E0101, path->span[0], "unknown %s `%s`", what, name);
        diag_label(checker->context, diag, "a %s of %s, which is not imported", what, library[i].module);
        diag_help(checker->context, diag, "import it");
        struct span begin = place_of(checker, first_item(checker, file));
        begin.end = begin.begin;
        diag_fix(checker->context, diag, begin,
                 context_printf(checker->context, "import %s { %s }; ", library[i].module, name));
        return true;
    }
    return false;
}

static void report_unresolved(struct checker *checker, uint32_t file, const struct path *path, uint32_t part,
                              uint16_t kind, uint32_t module)
{
    struct names candidates = {0};
    const char *name = name_text(checker, path->name[part]);
    if (!part && (report_missing_ops(checker, file, path, kind) || report_missing_import(checker, file, path, kind)))
        return;
    if (!part) {
        visible_names(checker, file, path->count > 1 ? NODE_NONE : kind, &candidates);
        report_unknown(checker, path->count > 1 ? "name" : item_word(kind), name, path->span[0], &candidates);
        return;
    }
    visible_names(checker, module, kind, &candidates);
    struct diag *diag = diag_error(checker->context, E0101, path->span[part], "`%s` has no %s `%s`",
                                   checker->context->files[module].path, item_word(kind), name);
    diag_label(checker->context, diag, "unknown %s", item_word(kind));
    suggest(checker, diag, item_word(kind), name, path->span[part], &candidates);
}

static void report_member(struct checker *checker, const struct path *path, const struct symbol *symbol)
{
    uint32_t part = symbol->part + 1;
    struct diag *diag = diag_error(checker->context, E0101, path->span[part], "%s `%s` has no member `%s`",
                                   item_word(node_of(checker, symbol->node)->kind),
                                   name_text(checker, path->name[part - 1]), name_text(checker, path->name[part]));
    diag_label(checker->context, diag, "unknown member");
}

struct symbol resolve(struct checker *checker, uint32_t file, const struct path *path, uint16_t kind, bool quiet)
{
    struct symbol symbol = {.file = file};
    uint32_t part = 0;
    do { // an alias shows what its file sees
        uint32_t looked_in = symbol.file;
        symbol = find_name(checker, looked_in, path->name[part]);
        symbol.part = part;
        if (!symbol.kind && !quiet)
            report_unresolved(checker, file, path, part, kind, looked_in);
    } while (symbol.kind == SYMBOL_MODULE && ++part < path->count);
    if (symbol.kind != SYMBOL_ITEM || symbol.part + 1 == path->count)
        return symbol;
    if (!quiet)
        report_member(checker, path, &symbol);
    return (struct symbol){0};
}

bool resolve_item(struct checker *checker, uint32_t file, node_id node, uint16_t kind, struct symbol *symbol)
{
    struct path path;
    const char *wanted = item_word(kind);
    if (!path_of(checker, node, &path)) {
        struct diag *diag =
            diag_error(checker->context, E0201, place_of(checker, node), "%s %s is expected here", article(wanted), wanted);
        diag_label(checker->context, diag, "not a name");
        return false;
    }
    *symbol = resolve(checker, file, &path, kind, false);
    if (!symbol->kind)
        return false;
    uint16_t found = symbol->kind == SYMBOL_ITEM ? node_of(checker, symbol->node)->kind : NODE_NONE;
    if (found == kind)
        return true;
    const char *found_word = symbol->kind == SYMBOL_ITEM ? item_word(found) : "module";
    struct diag *diag = diag_error(checker->context, E0201, path.whole, "`%s` is %s %s, but %s %s is expected here",
                                   source_text(checker, path.whole), article(found_word), found_word, article(wanted),
                                   wanted);
    diag_label(checker->context, diag, "not %s %s", article(wanted), wanted);
    if (symbol->kind == SYMBOL_ITEM)
        diag_label_at(checker->context, diag, name_place(checker, symbol->node), "defined here");
    return false;
}

struct definition {
    str_id name;
    struct span span;
    const char *what;
};

struct definitions {
    struct definition *items;
    uint32_t count, capacity;
};

static void define(struct checker *checker, struct definitions *all, str_id name, struct span span, const char *what)
{
    for (uint32_t i = 0; i < all->count; i++) {
        if (all->items[i].name == name) {
            report_twice(checker, what, name_text(checker, name), span, all->items[i].span);
            return;
        }
    }
    all->items = context_grow(checker->context, all->items, &all->capacity, all->count + 1, sizeof *all->items);
    all->items[all->count++] = (struct definition){name, span, what};
}

static void check_import(struct checker *checker, uint32_t file, node_id import, struct definitions *all)
{
    const struct ast_node *node = node_of(checker, import);
    if (node->text)
        define(checker, all, node->text, name_place(checker, import), "import");
    if (is_json(checker, node))
        open_document(checker, file, import); // a bad one is an error even where nothing uses it
    if (!node->slot[1])
        return;
    if (is_json(checker, node)) {
        struct diag *diag = diag_error(checker->context, E0101, place_of(checker, node->slot[1]),
                                       "keys of a JSON file are reached through an alias");
        diag_label(checker->context, diag, "not a name of a `.moe` file");
        diag_help(checker->context, diag, "write `import %s as hf;`, then `hf.%s`",
                  source_text(checker, place_of(checker, node->slot[0])),
                  name_text(checker, node_of(checker, node->slot[1])->text));
        return;
    }
    uint32_t target = import_target(checker->context, checker->program, file, import);
    EACH_NODE(&checker->program->ast, selected, node->slot[1]) {
        str_id name = node_of(checker, selected)->text;
        define(checker, all, name, place_of(checker, selected), "import");
        if (target == NONE || own_item(checker, target, name).kind)
            continue;
        struct names candidates = {0};
        add_items(checker, target, NODE_NONE, &candidates);
        const struct source_file *module = &checker->context->files[target];
        struct diag *diag = diag_error(checker->context, E0101, place_of(checker, selected), "`%s` has no `%s`",
                                       module->module ? module->module : module->path, name_text(checker, name));
        diag_label(checker->context, diag, "unknown name");
        suggest(checker, diag, "name", name_text(checker, name), place_of(checker, selected), &candidates);
    }
}

void check_file_names(struct checker *checker, uint32_t file)
{
    struct definitions all = {0};
    EACH_NODE(&checker->program->ast, item, first_item(checker, file)) {
        const struct ast_node *node = node_of(checker, item);
        if (node->kind == NODE_IMPORT)
            check_import(checker, file, item, &all);
        else if (item_words[node->kind])
            define(checker, &all, node->text, name_place(checker, item), item_words[node->kind]);
    }
}
