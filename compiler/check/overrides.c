// What the command line changes: sizes (-D), the schedule (--schedule), the ranks (--ranks). Each option becomes a small
// source of its own, parsed like any other, and its value is written into the AST, so that nothing later needs to know.
#include "compiler/check/check.h"

#include <string.h>

/// A place in an option that was parsed inside `prefix`, as a place in the option as it was given.
static struct span unwrapped(const struct checker *checker, struct span span, uint32_t file, uint32_t prefix)
{
    uint32_t size = checker->context->files[file].size;
    span.begin = span.begin < prefix ? 0 : span.begin - prefix;
    span.end = span.end < prefix ? 0 : span.end - prefix;
    return (struct span){file, span.begin < size ? span.begin : size, span.end < size ? span.end : size};
}

/// Parses an option between `prefix` and `suffix`, which make an item of it, and returns that item, its places in `*file`,
/// a source that is the option as given. 0: it is not one item; nothing is queued.
static node_id parse_option(struct checker *checker, struct program_text *program, const char *option,
                            const char *prefix, const char *text, const char *suffix, uint32_t *file)
{
    struct context *context = checker->context;
    struct diag_mark mark = diag_mark(context);
    const char *whole = context_printf(context, "%s%s%s", prefix, text, suffix);
    uint32_t nodes = program->ast.count, wrapped = add_source(context, option, whole, strlen(whole), NULL);
    node_id root = parse_file(context, &program->ast, wrapped);
    bool fine = root && context->error_count == mark.errors;
    diag_forget(context, mark);
    *file = add_source(context, option, text, strlen(text), NULL);
    node_id item = fine ? node_of(checker, root)->slot[0] : 0;
    for (uint32_t i = nodes; i < program->ast.count; i++) {
        struct ast_node *node = &program->ast.nodes[i];
        node->span = unwrapped(checker, node->span, *file, (uint32_t)strlen(prefix));
        node->name_span = unwrapped(checker, node->name_span, *file, (uint32_t)strlen(prefix));
    }
    return item && !node_of(checker, item)->next ? item : 0;
}

static bool refuse_option(struct checker *checker, uint32_t file, const char *what, const char *example)
{
    const struct source_file *source = &checker->context->files[file];
    struct diag *diag =
        diag_error(checker->context, E0003, (struct span){file, 0, source->size}, "`%s` is %s", source->text, what);
    diag_label(checker->context, diag, "expected as in `%s`", example);
    return false;
}

/// A new INT node at the place of another.
static node_id integer_node(struct checker *checker, struct program_text *program, struct span span, int64_t value)
{
    struct ast *ast = &program->ast;
    ast->nodes = context_grow(checker->context, ast->nodes, &ast->capacity, ast->count + 1, sizeof *ast->nodes);
    node_id id = ast->count++;
    str_id text = intern(checker->context, context_printf(checker->context, "%lld", (long long)value));
    ast->nodes[id] = (struct ast_node){.kind = NODE_INT, .text = text, .integer = value, .span = span};
    return id;
}

static node_id find_dim(const struct checker *checker, node_id root, str_id name)
{
    EACH_NODE(&checker->program->ast, id, root ? node_of(checker, root)->slot[0] : 0)
        if (node_of(checker, id)->kind == NODE_DIM && node_of(checker, id)->text == name)
            return id;
    return 0;
}

/// The dim of the root file, or else of what it imports, the nearest first.
static node_id find_any_dim(const struct checker *checker, str_id name)
{
    for (uint32_t i = checker->program->unit_count; i-- > 0;) {
        node_id dim = find_dim(checker, checker->program->units[i].root, name);
        if (dim)
            return dim;
    }
    return 0;
}

static bool override_dim(struct checker *checker, struct program_text *program, const char *text)
{
    uint32_t file;
    node_id item = parse_option(checker, program, "-D", "const ", text, ";", &file);
    if (!item || node_of(checker, item)->kind != NODE_CONST)
        return refuse_option(checker, file, "no `NAME=VALUE`", "tokens=2048");
    str_id name = node_of(checker, item)->text;
    node_id dim = find_any_dim(checker, name), value_node = node_of(checker, item)->slot[0];
    if (!dim) {
        struct names candidates = {0};
        for (uint32_t i = checker->program->unit_count; i-- > 0;)
            visible_names(checker, checker->program->units[i].file, NODE_DIM, &candidates);
        report_unknown(checker, "dim", name_text(checker, name), name_place(checker, item), &candidates);
        return false;
    }
    struct scope scope = {.file = checker->root_file};
    struct constant value;
    if (!evaluate_as(checker, &scope, name_text(checker, name), value_node, CONSTANT_INTEGER, &value))
        return false;
    node_id integer = integer_node(checker, program, place_of(checker, value_node), value.integer);
    program->ast.nodes[dim].slot[0] = integer;
    forget_constants(checker, program);
    return true;
}

static bool is_loaded(const struct checker *checker, const char *module)
{
    for (uint32_t i = 0; i < checker->program->unit_count; i++) {
        const char *loaded = checker->context->files[checker->program->units[i].file].module;
        if (loaded && !strcmp(loaded, module))
            return true;
    }
    return false;
}

/// std.schedules serves --schedule whether or not the file imports it.
static bool load_schedules(struct checker *checker, struct program_text *program)
{
    size_t size;
    const char *text = embedded_file("std/schedules.moe", &size);
    if (!text || is_loaded(checker, "std.schedules"))
        return true;
    uint32_t before = checker->context->error_count;
    uint32_t file = add_source(checker->context, "std/schedules.moe", text, size, "std.schedules");
    node_id root = parse_file(checker->context, &program->ast, file);
    program->units = context_grow(checker->context, program->units, &program->unit_capacity, program->unit_count + 1,
                                  sizeof *program->units);
    memmove(program->units + 1, program->units, program->unit_count * sizeof *program->units);
    program->units[0] = (struct parsed_file){file, root}; // the root stays the last
    program->unit_count++;
    return checker->context->error_count == before;
}

/// Does the root file itself define the schedule that a use names?
static bool is_own(const struct checker *checker, node_id use)
{
    struct path path;
    node_id root = checker->program->units[checker->program->unit_count - 1].root;
    if (!path_of(checker, node_of(checker, use)->slot[0], &path) || path.count != 1)
        return false;
    EACH_NODE(&checker->program->ast, id, node_of(checker, root)->slot[0])
        if (node_of(checker, id)->kind == NODE_SCHEDULE && node_of(checker, id)->text == path.name[0])
            return true;
    return false;
}

static bool override_schedule(struct checker *checker, struct program_text *program, const char *text)
{
    uint32_t file;
    node_id item = parse_option(checker, program, "--schedule", "pipeline p { use ", text, "; }", &file);
    node_id use = item && node_of(checker, item)->kind == NODE_PIPELINE ? node_of(checker, item)->slot[0] : 0;
    if (!use || node_of(checker, use)->kind != NODE_USE || node_of(checker, use)->next || node_of(checker, use)->slot[2])
        return refuse_option(checker, file, "not one schedule", "ladder(n: 4)");
    checker->override_use = use;
    return is_own(checker, use) || load_schedules(checker, program);
}

bool apply_overrides(struct checker *checker, struct program_text *program)
{
    bool fine = true;
    for (uint32_t i = 0; i < checker->options->dim_count; i++)
        fine = override_dim(checker, program, checker->options->dims[i]) && fine;
    if (checker->options->schedule)
        fine = override_schedule(checker, program, checker->options->schedule) && fine;
    return fine;
}

bool override_ranks(struct checker *checker, struct program_text *program, struct symbol pipeline)
{
    uint32_t ranks = checker->options->ranks;
    node_id attribute = find_attribute(checker, node_of(checker, pipeline.node)->slot[0], "cluster"), axis = 0;
    struct symbol cluster;
    if (!ranks || !attribute)
        return true;
    if (!resolve_item(checker, pipeline.file, node_of(checker, attribute)->slot[0], NODE_CLUSTER, &cluster))
        return false;
    const char *text = context_printf(checker->context, "%u", ranks);
    uint32_t file = add_source(checker->context, "--ranks", text, strlen(text), NULL), axes = 0;
    struct span span = {file, 0, (uint32_t)strlen(text)};
    EACH_NODE(&checker->program->ast, id, node_of(checker, cluster.node)->slot[0]) {
        if (node_of(checker, id)->kind != NODE_AXIS)
            continue;
        axis = id;
        axes++;
    }
    if (axes != 1) {
        struct diag *diag =
            diag_error(checker->context, E0501, span, "cluster `%s` has %u axes, only one can be resized",
                       name_text(checker, node_of(checker, cluster.node)->text), axes);
        diag_label(checker->context, diag, "of which axis?");
        diag_label_at(checker->context, diag, name_place(checker, cluster.node), "defined here");
        return false;
    }
    node_id size = integer_node(checker, program, span, ranks);
    program->ast.nodes[axis].slot[0] = size;
    return true;
}
