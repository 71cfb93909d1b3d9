// The order of the checks: names of every file, the command line's changes, everything in the root file, then its pipeline
// and whatever that needs from other files.
#include "compiler/check/check.h"

#include <string.h>

str_id module_name(struct checker *checker, str_id id)
{
    return ir_str(checker->module, name_text(checker, id));
}

bool memo_find(const struct checker *checker, node_id node, uint32_t *row)
{
    uint32_t stored = checker->rows[node];
    if (!stored)
        return false;
    *row = stored == NONE ? NONE : stored - 1;
    return true;
}

void memo_set(struct checker *checker, node_id node, uint32_t row)
{
    checker->rows[node] = row == NONE ? NONE : row + 1;
}

static void add_dim(struct checker *checker, struct symbol item)
{
    const struct ast_node *node = node_of(checker, item.node);
    struct constant value;
    if (!evaluate_item(checker, item, NULL, &value))
        return;
    str_id name = module_name(checker, node->text);
    uint32_t row = ADD(checker->module, mod_dim);
    *ROW(checker->module, mod_dim, row) =
        (struct mod_dim){.name = name, .value = value.integer, .bound = node->flag, .node = item.node};
}

static void check_item(struct checker *checker, struct symbol item)
{
    struct constant value;
    switch (node_of(checker, item.node)->kind) {
    case NODE_CONST:
        evaluate_item(checker, item, NULL, &value);
        break;
    case NODE_DIM:
        add_dim(checker, item);
        break;
    case NODE_FORMAT:
        elaborate_format_item(checker, item);
        break;
    case NODE_DEVICE:
        elaborate_device(checker, item);
        break;
    case NODE_CLUSTER:
        elaborate_cluster(checker, item);
        break;
    case NODE_PLACEMENT:
        elaborate_placement(checker, item);
        break;
    case NODE_OP:
        elaborate_op(checker, item);
        break;
    case NODE_LAYER:
        elaborate_layer(checker, item);
        break;
    case NODE_WEIGHTS:
        elaborate_weights(checker, item);
        break;
    case NODE_SCHEDULE:
        elaborate_schedule(checker, item, true);
        break;
    case NODE_MONITOR:
        check_monitor(checker, item);
        break;
    default:
        break;
    }
}

static bool is_wanted(const struct checker *checker, node_id item)
{
    const char *wanted = checker->options->pipeline;
    const struct ast_node *node = node_of(checker, item);
    return node->kind == NODE_PIPELINE && (!wanted || !strcmp(wanted, name_text(checker, node->text)));
}

/// Is it clear which pipelines are meant: the one that was asked for, the only one, or every one?
static bool are_pipelines_clear(struct checker *checker)
{
    struct names all = {0};
    const char *wanted = checker->options->pipeline;
    node_id last = 0, found = 0;
    EACH_NODE(&checker->program->ast, id, node_of(checker, checker->root)->slot[0]) {
        if (node_of(checker, id)->kind != NODE_PIPELINE)
            continue;
        names_add(checker, &all, name_text(checker, node_of(checker, id)->text));
        last = id;
        found = is_wanted(checker, id) ? id : found;
    }
    if (wanted && !found) {
        uint32_t file = add_source(checker->context, "--pipeline", wanted, strlen(wanted), NULL);
        struct span span = {file, 0, (uint32_t)strlen(wanted)};
        struct diag *diag = diag_error(checker->context, E0101, span, "unknown pipeline `%s`", wanted);
        diag_label(checker->context, diag, "not defined here");
        if (all.count)
            diag_note(checker->context, diag, "the file has %s", names_join(checker, &all));
        suggest(checker, diag, "pipeline", wanted, span, &all);
        return false;
    }
    if (wanted || all.count < 2 || checker->options->every_pipeline)
        return true;
    struct diag *diag = diag_error(checker->context, E0107, name_place(checker, last),
                                   "the file has several pipelines: %s", names_join(checker, &all));
    diag_label(checker->context, diag, "which one?");
    diag_help(checker->context, diag, "choose one with `--pipeline`");
    return false;
}

static void check_all(struct checker *checker, struct program_text *program, struct rows *pipelines)
{
    for (uint32_t i = 0; i < program->unit_count; i++)
        check_file_names(checker, program->units[i].file);
    forget_constants(checker, program);
    bool fine = apply_overrides(checker, program);
    fine = are_pipelines_clear(checker) && fine;
    EACH_NODE(&program->ast, id, fine ? node_of(checker, checker->root)->slot[0] : 0)
        if (is_wanted(checker, id))
            fine = override_ranks(checker, program, (struct symbol){SYMBOL_ITEM, id, checker->root_file, 0}) && fine;
    forget_constants(checker, program);
    checker->row_count = program->ast.count;
    checker->rows = context_alloc(checker->context, (size_t)checker->row_count * sizeof *checker->rows);
    if (!fine)
        return; // the rest would be checked as something else than was asked for
    EACH_NODE(&program->ast, id, node_of(checker, checker->root)->slot[0])
        check_item(checker, (struct symbol){.kind = SYMBOL_ITEM, .node = id, .file = checker->root_file});
    check_file_assertions(checker);
    pipelines->first = COUNT(checker->module, mod_pipeline);
    EACH_NODE(&program->ast, id, node_of(checker, checker->root)->slot[0])
        if (is_wanted(checker, id) &&
            elaborate_pipeline(checker, (struct symbol){.kind = SYMBOL_ITEM, .node = id, .file = checker->root_file}) == NONE &&
            !checker->context->error_count)
            fatal(checker->context, EXIT_BUG, "a pipeline was refused without saying why");
    pipelines->count = COUNT(checker->module, mod_pipeline) - pipelines->first;
}

bool check_program(struct context *context, struct program_text *program, const struct check_options *options,
                   struct ir *module, struct rows *pipelines)
{
    uint32_t before = context->error_count;
    *pipelines = (struct rows){0};
    if (!module->type)
        context_ir_init(context, module, &module_ir);
    if (!program->unit_count)
        return false;
    struct parsed_file root = program->units[program->unit_count - 1];
    struct checker checker = {.context = context,
                              .program = program,
                              .options = options,
                              .module = module,
                              .root_file = root.file,
                              .root = root.root};
    check_all(&checker, program, pipelines);
    json_close(&checker);
    if (module->out_of_memory)
        fatal(context, EXIT_SYSTEM, "out of memory in check");
    return context->error_count == before;
}
