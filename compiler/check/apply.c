// The application of an operator in a stage: its arguments matched to the declaration, by position or by name, then typed.
#include "compiler/check/types.h"

#include <string.h>

static node_id named_argument(const struct checker *checker, node_id call, str_id name)
{
    EACH_NODE(&checker->program->ast, id, node_of(checker, call)->slot[1])
        if (node_of(checker, id)->text == name)
            return id;
    return 0;
}

static bool is_option(const struct checker *checker, node_id op, str_id name)
{
    EACH_NODE(&checker->program->ast, id, node_of(checker, op)->slot[2])
        if (node_of(checker, id)->kind == NODE_PARAM_DECL)
            EACH_NODE(&checker->program->ast, option, node_of(checker, id)->slot[0])
                if (node_of(checker, option)->text == name)
                    return true;
    return false;
}

static void argument_names(struct checker *checker, node_id op, struct names *names)
{
    EACH_NODE(&checker->program->ast, id, node_of(checker, op)->slot[0])
        names_add(checker, names, name_text(checker, node_of(checker, id)->text));
    EACH_NODE(&checker->program->ast, id, node_of(checker, op)->slot[2])
        if (node_of(checker, id)->kind == NODE_PARAM_DECL)
            EACH_NODE(&checker->program->ast, option, node_of(checker, id)->slot[0])
                names_add(checker, names, name_text(checker, node_of(checker, option)->text));
}

/// Named arguments exist and are given once.
static bool check_argument_names(struct application *call)
{
    struct checker *checker = call->layer->checker;
    bool fine = true;
    const char *op = name_text(checker, node_of(checker, call->op.node)->text);
    EACH_NODE(&checker->program->ast, id, node_of(checker, call->call)->slot[1]) {
        const struct ast_node *node = node_of(checker, id);
        bool known = is_option(checker, call->op.node, node->text);
        if (!node->text)
            continue;
        for (uint32_t i = 0; i < call->param_count && !known; i++)
            known = node_of(checker, call->params[i])->text == node->text;
        node_id first = named_argument(checker, call->call, node->text);
        if (known && first == id)
            continue;
        fine = false;
        if (known) {
            report_twice(checker, "argument", name_text(checker, node->text), name_place(checker, id),
                         name_place(checker, first));
            continue;
        }
        struct names candidates = {0};
        argument_names(checker, call->op.node, &candidates);
        struct diag *diag = diag_error(checker->context, E0106, name_place(checker, id), "`%s` has no argument `%s`",
                                       op, name_text(checker, node->text));
        diag_label(checker->context, diag, "unknown argument");
        diag_note_at(checker->context, diag, place_of(checker, call->op.node), "it takes %s",
                     names_join(checker, &candidates));
        suggest(checker, diag, "argument", name_text(checker, node->text), name_place(checker, id), &candidates);
    }
    return fine;
}

static bool report_count(struct application *call, uint32_t found)
{
    struct checker *checker = call->layer->checker;
    struct diag *diag =
        diag_error(checker->context, E0205, place_of(checker, call->call), "`%s` takes %u tensor%s, but is given %u",
                   name_text(checker, node_of(checker, call->op.node)->text), call->param_count,
                   call->param_count == 1 ? "" : "s", found);
    struct names names = {0};
    for (uint32_t i = 0; i < call->param_count; i++)
        names_add(checker, &names, name_text(checker, node_of(checker, call->params[i])->text));
    diag_label(checker->context, diag, "expected %s", names_join(checker, &names));
    diag_note_at(checker->context, diag, place_of(checker, call->op.node), "options are given by name");
    return false;
}

static bool match_arguments(struct application *call)
{
    struct checker *checker = call->layer->checker;
    uint32_t positional = 0, named = 0;
    EACH_NODE(&checker->program->ast, id, node_of(checker, call->call)->slot[1]) {
        if (node_of(checker, id)->text)
            continue;
        if (positional < call->param_count)
            call->given[positional] = node_of(checker, id)->slot[0];
        positional++;
    }
    if (!check_argument_names(call))
        return false;
    for (uint32_t i = 0; i < call->param_count; i++) {
        node_id id = named_argument(checker, call->call, node_of(checker, call->params[i])->text);
        named += id != 0;
        if (id && i < positional) {
            report_twice(checker, "argument", name_text(checker, node_of(checker, call->params[i])->text),
                         name_place(checker, id), place_of(checker, call->given[i]));
            return false;
        }
        if (id)
            call->given[i] = node_of(checker, id)->slot[0];
    }
    return positional + named == call->param_count || report_count(call, positional + named);
}

bool apply_operator(struct layer_state *layer, node_id stage, struct symbol op, const char *kernel,
                    struct tensor *result, struct mod_arg *args, uint32_t *arg_count)
{
    struct checker *checker = layer->checker;
    struct application call = {.layer = layer, .op = op, .stage = stage, .call = node_of(checker, stage)->slot[1]};
    EACH_NODE(&checker->program->ast, id, node_of(checker, op.node)->slot[0])
        if (call.param_count < MAX_ARGS)
            call.params[call.param_count++] = id;
    if (!call.param_count) {
        diag_error(checker->context, E0205, place_of(checker, op.node), "an operator takes at least one tensor");
        return false;
    }
    if (!match_arguments(&call))
        return false;
    bool fine = true;
    for (uint32_t i = 0; i < call.param_count; i++) {
        call.tensors[i] = find_tensor(layer, call.given[i]);
        fine = fine && call.tensors[i];
    }
    if (!fine)
        return false;
    struct tensor copies[MAX_ARGS]; // the table of names may grow while options are read
    for (uint32_t i = 0; i < call.param_count; i++) {
        copies[i] = *call.tensors[i];
        call.tensors[i] = &copies[i];
        args[i] = (struct mod_arg){.name = module_name(checker, node_of(checker, call.params[i])->text),
                                   .value = copies[i].value,
                                   .param = copies[i].param,
                                   .format = NONE,
                                   .given = true};
    }
    *arg_count = call.param_count;
    fine = unify_arguments(&call) && check_role_arguments(&call, kernel);
    return fine && read_options(&call, args, arg_count) && make_result(&call, result);
}
