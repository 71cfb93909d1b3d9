// What the statements of a schedule name: stages and phases, streams, knobs, lets and indices.
#include <string.h>

#include "compiler/schedule/elaborate.h"

bool push_name(struct elaboration *e, str_id name, int64_t value, struct span span)
{
    for (uint32_t i = 0; i < e->name_count; i++) {
        if (e->names[i].name != name)
            continue;
        struct diag *diag = elaboration_error(e, E0102, span, "`%s` is defined twice", text_of(e->context, name));
        diag_label(e->context, diag, "a knob, a `let` or an index has this name already");
        diag_help(e->context, diag, "choose another name");
        return false;
    }
    *APPEND(e, names, name_count, name_capacity) = (struct name_value){name, value};
    return true;
}

bool evaluate_named(struct elaboration *e, const char *what, node_id expression, int64_t *value)
{
    bool good = evaluate_integer(e->context, e->program, e->file, expression, e->names, e->name_count, what, value);
    e->failed = e->failed || !good;
    return good;
}

bool evaluate_here(struct elaboration *e, node_id expression, int64_t *value)
{
    return evaluate_named(e, NULL, expression, value);
}

bool evaluate_with(struct elaboration *e, str_id name, int64_t value, node_id expression, int64_t *result)
{
    uint32_t names = e->name_count;
    for (uint32_t i = 0; i < names; i++)
        if (e->names[i].name == name) {
            int64_t before = e->names[i].value;
            e->names[i].value = value;
            bool good = evaluate_here(e, expression, result);
            e->names[i].value = before;
            return good;
        }
    *APPEND(e, names, name_count, name_capacity) = (struct name_value){name, value};
    bool good = evaluate_here(e, expression, result);
    e->name_count = names;
    return good;
}

/// The checker knows the phases of a layer; a schedule for any layer may name one that this layer's operator lacks.
static bool unknown_phase(struct elaboration *e, const struct ast_node *name, const struct stage_info *stage)
{
    struct diag *diag = elaboration_error(e, E0101, name->span, "stage `%s` has no phase `%s`", stage->name,
                                          text_of(e->context, name->text));
    diag_label(e->context, diag, "unknown phase");
    const char *list = "";
    for (uint32_t i = 0; i < stage->task_count; i++)
        list = context_printf(e->context, "%s%s%s", list, i ? ", " : "",
                              phase_words[e->tasks[stage->first_task + i].phase]);
    diag_note(e->context, diag, "its phases are %s", list);
    return false;
}

bool find_stage(struct elaboration *e, node_id path, uint32_t *stage, uint32_t *task)
{
    const struct ast_node *name = ast_node_of(e, ast_node_of(e, path)->slot[0]);
    *task = NONE;
    for (*stage = 0; *stage < e->stage_count; ++*stage)
        if (strcmp(e->stages[*stage].name, text_of(e->context, name->text)) == 0)
            break;
    if (*stage == e->stage_count) { // a stage that the layer lacks: said where the schedule lists it
        e->failed = true;
        return false;
    }
    if (!name->next)
        return true;
    name = ast_node_of(e, name->next);
    const struct stage_info *found = &e->stages[*stage];
    for (uint32_t i = found->first_task; i < found->first_task + found->task_count; i++)
        if (strcmp(phase_words[e->tasks[i].phase], text_of(e->context, name->text)) == 0 && !name->next)
            *task = i;
    return *task != NONE || unknown_phase(e, name, found);
}

uint32_t find_stream(struct elaboration *e, str_id name, node_id index, struct span span)
{
    int64_t number = -1;
    if (index && !evaluate_here(e, index, &number))
        return NONE;
    for (uint32_t i = 0; i < e->stream_count; i++)
        if (e->streams[i].name == name && e->streams[i].index == number && (number >= 0) == (index != 0))
            return i;
    const char *text = text_of(e->context, name);
    struct diag *diag = elaboration_error(
        e, E0307, span, index ? "there is no stream `%s[%lld]`" : "`%s` is no single stream", text, (long long)number);
    diag_help(e->context, diag, "write `%s[k]` for an array of streams, `%s` for a single one", text, text);
    return NONE;
}

const char *engine_names(struct context *context, uint32_t mask)
{
    const char *list = "";
    for (uint32_t i = 0; i < engine_words_count; i++)
        if (mask & 1u << i)
            list = context_printf(context, "%s%s%s", list, *list ? ", " : "", engine_words[i]);
    return list;
}

bool left_to_rule(const struct elaboration *e, uint32_t task)
{
    const struct task_info *info = &e->tasks[task];
    const struct binding *whole = &e->whole[info->stage];
    return is_placed_phase(info->phase) && !info->bound.given && !(whole->given && whole->sms > 0);
}

static node_id loop_in_branches(const struct ast *ast, const struct ast_node *branch, struct span place);

node_id innermost_loop(const struct ast *ast, node_id block, struct span place)
{
    node_id found = 0;
    EACH_NODE(ast, id, node_at(ast, block)->slot[0])
    {
        const struct ast_node *node = node_at(ast, id);
        if (node->span.begin > place.begin || node->span.end < place.end)
            continue;
        node_id inner = node->kind == NODE_LOOP ? innermost_loop(ast, node->slot[1], place)
                        : node->kind == NODE_IF ? loop_in_branches(ast, node, place)
                                                : 0;
        found = inner ? inner : node->kind == NODE_LOOP ? id : found;
    }
    return found;
}

static node_id loop_in_branches(const struct ast *ast, const struct ast_node *branch, struct span place)
{
    node_id found = innermost_loop(ast, branch->slot[1], place), other = branch->slot[2];
    if (found || !other)
        return found;
    const struct ast_node *otherwise = node_at(ast, other);
    return otherwise->kind == NODE_IF ? loop_in_branches(ast, otherwise, place) : innermost_loop(ast, other, place);
}

node_id loop_around(const struct elaboration *e, struct span place)
{
    return innermost_loop(e->ast, e->text->slot[2], place);
}

bool first_complaint(struct elaboration *e, enum diag_code code, node_id cause, const char *about)
{
    struct complaint complaint = {code, cause, intern(e->context, about)};
    for (uint32_t i = 0; i < e->complaint_count; i++)
        if (e->complaints[i].code == code && e->complaints[i].cause == cause && e->complaints[i].about == complaint.about)
            return false;
    *APPEND(e, complaints, complaint_count, complaint_capacity) = complaint;
    return true;
}
