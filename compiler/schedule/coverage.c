// Every instance exactly once: what is issued twice, what never, and how the text could be mended.
#include <string.h>

#include "compiler/schedule/elaborate.h"

enum { LISTED_MAX = 6 };

static struct span span_of(const struct elaboration *e, node_id id)
{
    return ast_node_of(e, id)->span;
}

static void issued_twice(struct elaboration *e, uint32_t first, uint32_t second)
{
    const struct issue *unit = &e->units[second];
    const struct item *was = &e->items[e->units[first].item], *now = &e->items[unit->item];
    bool whole = was->task == NONE && now->task == NONE;
    const char *label = instance_label(e, now->stage, whole ? NONE : unit->task, unit->cell);
    struct diag *diag = elaboration_error(e, E0304, span_of(e, now->instance), "`%s` is issued twice", label);
    if (was->instance == now->instance) {
        diag_label(e->context, diag, "issued in more than one turn of the loop");
        diag_help(e->context, diag, "let its index follow the loop's, or move it out of the loop");
        return;
    }
    diag_label(e->context, diag, "again here");
    diag_label_at(e->context, diag, span_of(e, was->instance), "first here");
    diag_help(e->context, diag, "remove one of the two");
}

/// The innermost loop around a place, below a block.
static node_id loop_around(const struct elaboration *e, node_id block, struct span place)
{
    node_id found = 0;
    EACH_NODE(e->ast, id, ast_node_of(e, block)->slot[0])
    {
        const struct ast_node *node = ast_node_of(e, id);
        node_id inner = 0;
        if (node->span.begin > place.begin || node->span.end < place.end)
            continue;
        if (node->kind == NODE_LOOP) {
            inner = loop_around(e, node->slot[1], place);
            found = inner ? inner : id;
        }
        for (int i = 1; i < 3 && node->kind == NODE_IF; i++) {
            node_id branch = node->slot[i];
            if (branch && ast_node_of(e, branch)->kind == NODE_BLOCK)
                inner = loop_around(e, branch, place);
            found = inner ? inner : found;
        }
    }
    return found;
}

static const struct item *item_of(const struct elaboration *e, uint32_t task, int64_t cell)
{
    uint32_t unit = e->unit_of[task * cell_count(e) + cell];
    return unit == NONE ? NULL : &e->items[e->units[unit].item];
}

/// The statement that issues the stage's instances next to the missing one.
static const struct item *neighbour(const struct elaboration *e, uint32_t task, int64_t cell)
{
    const struct item *item = NULL;
    for (int64_t c = cell - 1; c >= 0 && !item; c--)
        item = item_of(e, task, c);
    for (int64_t c = cell + 1; c < cell_count(e) && !item; c++)
        item = item_of(e, task, c);
    return item;
}

static const char *cells_issued(const struct elaboration *e, const struct item *by, uint32_t task, const char *name)
{
    const char *list = "issues ";
    uint32_t count = 0;
    for (int64_t c = 0; c < cell_count(e); c++) {
        const struct item *item = item_of(e, task, c);
        if (!item || item->instance != by->instance)
            continue;
        if (count < LISTED_MAX)
            list = context_printf(e->context, "%s%s%s%s", list, count ? ", " : "", count ? "" : name,
                                  index_label(e, item->stage, c));
        count++;
    }
    return count > LISTED_MAX ? context_printf(e->context, "%s and %u more", list, count - LISTED_MAX) : list;
}

/// "the loop runs i in 0..3, so ..."
static void explain_loop(struct elaboration *e, struct diag *diag, node_id id, uint32_t task, int64_t cell)
{
    const struct ast_node *loop = ast_node_of(e, id), *range = ast_node_of(e, loop->slot[0]);
    bool combine = e->tasks[task].phase == phase_send && cell == cell_count(e) - 1;
    const struct stage_info *stage = &e->stages[e->tasks[task].stage];
    combine = combine && e->tasks[stage->first_task].phase == phase_send; // no pack: what it sends was computed
    const char *effect =
        context_printf(e->context, "`%s` is left out", instance_label(e, e->tasks[task].stage, NONE, cell));
    if (combine)
        effect = context_printf(e->context, "the last %s is computed but never returned",
                                e->wave_split ? "wave" : "microbatch");
    diag_note(e->context, diag, "the loop runs %s in %s..%s, so %s", text_of(e->context, loop->text),
              expression_text(e->context, e->ast, range->slot[0]), expression_text(e->context, e->ast, range->slot[1]),
              effect);
}

/// After the loop stands `expert[3];` alone, which makes what is missing its input: continue that chain.
static void suggest_chain(struct elaboration *e, struct diag *diag, node_id loop, uint32_t task, const char *label,
                          int64_t cell)
{
    const struct graph_task *missing = ROW(e->graph, graph_task, task);
    diag_help(e->context, diag, "issue it after the loop");
    for (uint32_t i = 0; i < missing->reads.count; i++) {
        uint32_t value = ROW(e->graph, graph_use, missing->reads.first + i)->value;
        uint32_t producer = ROW(e->graph, graph_value, value)->task;
        const struct item *item = producer == NONE ? NULL : item_of(e, producer, cell);
        if (!item || span_of(e, item->instance).begin < span_of(e, loop).end)
            continue;
        const struct ast_node *chain = ast_node_of(e, ast_node_of(e, item->flow)->slot[0]);
        const struct ast_node *step = ast_node_of(e, chain->slot[0]);
        if (chain->next || step->next || step->slot[0] != item->instance)
            continue;
        struct span end = span_of(e, item->instance);
        end.begin = end.end;
        diag_fix(e->context, diag, end, context_printf(e->context, " -> %s", label));
        return;
    }
}

static void never_issued(struct elaboration *e, uint32_t task, bool whole, int64_t cell)
{
    const struct task_info *info = &e->tasks[task];
    const struct stage_info *stage = &e->stages[info->stage];
    const char *label = instance_label(e, info->stage, whole ? NONE : task, cell);
    const struct item *near = neighbour(e, task, cell);
    const struct binding *bound = info->bound.given ? &info->bound : &e->whole[info->stage];
    struct span place = e->text->name_span;
    if (near)
        place = span_of(e, near->instance);
    else if (bound->given)
        place = span_of(e, bound->path);
    struct diag *diag = elaboration_error(e, E0305, place, "`%s` is never issued", label);
    if (near)
        diag_label(e->context, diag, "%s", cells_issued(e, near, task, whole ? stage->name : info->label));
    else
        diag_label(e->context, diag, bound->given ? "bound here" : "this schedule leaves it out");
    label_splits(e, diag, info->stage);
    node_id loop = near ? loop_around(e, e->text->slot[2], place) : 0;
    if (loop) {
        explain_loop(e, diag, loop, task, cell);
        suggest_chain(e, diag, loop, task, label, cell);
    } else
        diag_help(e->context, diag, "issue it: `%s;`", label);
}

static bool issued(const struct elaboration *e, uint32_t task, int64_t cell)
{
    return e->unit_of[task * cell_count(e) + cell] != NONE;
}

/// One error per stage: the first cell that lacks something.
static void check_stage(struct elaboration *e, const struct stage_info *stage)
{
    for (int64_t cell = 0; cell < cell_count(e); cell++) {
        if (!stage->routed && cell % e->waves)
            continue;
        uint32_t missing = NONE;
        bool whole = true;
        for (uint32_t t = stage->first_task; t < stage->first_task + stage->task_count; t++) {
            if (issued(e, t, cell))
                whole = false;
            else if (!left_to_rule(e, t) && missing == NONE)
                missing = t;
        }
        if (missing == NONE)
            continue;
        never_issued(e, missing, whole, cell);
        return;
    }
}

void check_coverage(struct elaboration *e)
{
    size_t cells = (size_t)e->task_count * (size_t)cell_count(e);
    e->unit_of = context_alloc(e->context, cells * sizeof *e->unit_of);
    for (size_t i = 0; i < cells; i++)
        e->unit_of[i] = NONE;
    for (uint32_t i = 0; i < e->unit_count; i++) {
        uint32_t *cell = &e->unit_of[e->units[i].task * cell_count(e) + e->units[i].cell];
        if (*cell != NONE)
            issued_twice(e, *cell, i);
        else
            *cell = i;
    }
    for (uint32_t s = 0; s < e->stage_count; s++)
        if (e->stages[s].named)
            check_stage(e, &e->stages[s]);
}
