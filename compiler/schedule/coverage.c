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
    bool whole = was->task == NONE && now->task == NONE, again = was->instance == now->instance;
    node_id loop = again ? loop_around(e, span_of(e, now->instance)) : 0;
    e->failed = true;
    if (loop && !first_complaint(e, E0304, loop, ""))
        return;
    struct point at = {unit->layer, unit->part, unit->piece};
    const char *label = instance_label(e, now->stage, whole ? NONE : unit->task, at);
    struct diag *diag = elaboration_error(e, E0304, span_of(e, now->instance), "`%s` is issued twice", label);
    if (again) {
        diag_label(e->context, diag, "issued in more than one turn of the loop");
        diag_help(e->context, diag, "let its index follow the loop's, or move it out of the loop");
        return;
    }
    diag_label(e->context, diag, "again here");
    diag_label_at(e->context, diag, span_of(e, was->instance), "first here");
    diag_help(e->context, diag, "remove one of the two");
}

static uint32_t *cell_unit(const struct elaboration *e, uint32_t task, struct point at)
{
    return &e->unit_of[(size_t)at.layer * e->cells + cell_of(e, task, at.part, at.piece)];
}

static const struct item *item_of(const struct elaboration *e, uint32_t task, struct point at)
{
    uint32_t unit = *cell_unit(e, task, at);
    return unit == NONE ? NULL : &e->items[e->units[unit].item];
}

/// The instances of a task, numbered: by layer, part and piece.
static int64_t point_count(const struct elaboration *e, uint32_t task)
{
    return e->group * e->parts * e->stages[e->tasks[task].stage].pieces;
}

static struct point point_number(const struct elaboration *e, uint32_t task, int64_t number)
{
    int64_t pieces = e->stages[e->tasks[task].stage].pieces;
    return (struct point){number / pieces / e->parts, number / pieces % e->parts, number % pieces};
}

/// The statement that issues the stage's instances next to the missing one.
static const struct item *neighbour(const struct elaboration *e, uint32_t task, int64_t number)
{
    const struct item *item = NULL;
    for (int64_t p = number - 1; p >= 0 && !item; p--)
        item = item_of(e, task, point_number(e, task, p));
    for (int64_t p = number + 1; p < point_count(e, task) && !item; p++)
        item = item_of(e, task, point_number(e, task, p));
    return item;
}

static const char *parts_issued(const struct elaboration *e, const struct item *by, uint32_t task, const char *name)
{
    const char *list = "issues ";
    uint32_t count = 0;
    for (int64_t p = 0; p < point_count(e, task); p++) {
        struct point at = point_number(e, task, p);
        const struct item *item = item_of(e, task, at);
        if (!item || item->instance != by->instance)
            continue;
        if (count < LISTED_MAX)
            list = context_printf(e->context, "%s%s%s%s", list, count ? ", " : "", count ? "" : name,
                                  index_text(e, e->tasks[task].stage, at));
        count++;
    }
    return count > LISTED_MAX ? context_printf(e->context, "%s and %u more", list, count - LISTED_MAX) : list;
}

/// "the loop runs i in 0..3, so ..."
static void explain_loop(struct elaboration *e, struct diag *diag, node_id id, uint32_t task, struct point at)
{
    const struct ast_node *loop = ast_node_of(e, id), *range = ast_node_of(e, loop->slot[0]);
    bool combine = e->tasks[task].phase == phase_send && at.part == e->parts - 1 &&
                   at.piece / e->stages[e->tasks[task].stage].runs == e->waves - 1;
    const struct stage_info *stage = &e->stages[e->tasks[task].stage];
    combine = combine && e->tasks[stage->first_task].phase == phase_send; // no pack: what it sends was computed
    const char *effect =
        context_printf(e->context, "`%s` is left out", instance_label(e, e->tasks[task].stage, NONE, at));
    if (combine)
        effect = context_printf(e->context, "the last %s is computed but never returned",
                                e->waves > 1 ? "wave" : "microbatch");
    diag_note(e->context, diag, "the loop runs %s in %s..%s, so %s", text_of(e->context, loop->text),
              expression_text(e->context, e->ast, range->slot[0]), expression_text(e->context, e->ast, range->slot[1]),
              effect);
}

/// Does a statement after the loop make what is missing its input?
static bool continues_chain(struct elaboration *e, node_id loop, uint32_t task, struct point at)
{
    const struct graph_task *missing = ROW(e->graph, graph_task, task);
    for (uint32_t i = 0; i < missing->reads.count; i++) {
        uint32_t value = ROW(e->graph, graph_use, missing->reads.first + i)->value;
        uint32_t producer = ROW(e->graph, graph_value, value)->task;
        const struct item *item = producer == NONE ? NULL : item_of(e, producer, (struct point){at.layer, at.part, 0});
        if (item && item->how == ISSUED_HERE && span_of(e, item->instance).begin >= span_of(e, loop).end)
            return true;
    }
    return false;
}

/// After the loop stands `expert[3];` alone, which makes what is missing its input: continue that chain.
static void suggest_chain(struct elaboration *e, struct diag *diag, node_id loop, uint32_t task, int64_t number,
                          const char *label)
{
    const struct graph_task *missing = ROW(e->graph, graph_task, task);
    struct point at = point_number(e, task, number);
    const struct ast_node *turns = ast_node_of(e, loop), *range = ast_node_of(e, turns->slot[0]);
    const struct ast_node *top = ast_node_of(e, range->slot[1]);
    bool stops_short = !turns->flag && e->waves == 1 && e->group == 1 && top->kind == NODE_INT && top->integer == at.part;
    if (stops_short && !continues_chain(e, loop, task, at)) {
        diag_help(e->context, diag, "let the loop run over all of them");
        diag_fix(e->context, diag, top->span, context_printf(e->context, "%lld", (long long)e->parts));
        return;
    }
    diag_help(e->context, diag, "issue it %s the loop", number ? "after" : "before");
    for (uint32_t i = 0; i < missing->reads.count; i++) {
        uint32_t value = ROW(e->graph, graph_use, missing->reads.first + i)->value;
        uint32_t producer = ROW(e->graph, graph_value, value)->task;
        bool waves = producer != NONE && e->stages[e->tasks[producer].stage].routed;
        int64_t runs = e->stages[e->tasks[task].stage].runs, ahead = waves ? e->stages[e->tasks[producer].stage].runs : 0;
        struct point there = {at.layer, at.part, at.piece / runs * ahead};
        const struct item *item = producer == NONE ? NULL : item_of(e, producer, there);
        if (!item || item->how != ISSUED_HERE || span_of(e, item->instance).begin < span_of(e, loop).end)
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

/// What of a stage is not issued: its first instance that lacks something.
struct gap {
    uint32_t task; // NONE: nothing is missing
    bool whole;    // no phase of the instance is there
    int64_t number;
    const struct item *near; // a statement that issues others of the stage
    node_id loop;            // around that
};

static void never_issued(struct elaboration *e, const struct gap *gap, const char *others)
{
    uint32_t task = gap->task;
    const struct task_info *info = &e->tasks[task];
    const struct stage_info *stage = &e->stages[info->stage];
    struct point at = point_number(e, task, gap->number);
    const char *label = instance_label(e, info->stage, gap->whole ? NONE : task, at);
    const struct binding *bound = info->bound.given ? &info->bound : &e->whole[info->stage];
    struct span place = e->text->name_span;
    if (gap->near)
        place = span_of(e, gap->near->instance);
    else if (bound->given)
        place = span_of(e, bound->path);
    bool none = !gap->near && gap->whole && point_count(e, task) > 1; // no statement is about the stage
    struct diag *diag =
        elaboration_error(e, E0305, place, "`%s` is never issued", none ? stage->name : label);
    if (gap->near)
        diag_label(e->context, diag, "%s", parts_issued(e, gap->near, task, gap->whole ? stage->name : info->label));
    else
        diag_label(e->context, diag, bound->given ? "bound here" : "this schedule leaves it out");
    label_splits(e, diag, info->stage);
    if (gap->loop)
        explain_loop(e, diag, gap->loop, task, at);
    if (*others)
        diag_note(e->context, diag, "nor %s %s", strchr(others, ',') ? "are" : "is", others);
    if (gap->loop)
        suggest_chain(e, diag, gap->loop, task, gap->number, label);
    else if (none)
        diag_help(e->context, diag, "issue all %lld instances of it: `%s[%s];` in a loop", (long long)point_count(e, task),
                  stage->name, index_names(e, info->stage));
    else
        diag_help(e->context, diag, "issue it: `%s;`", label);
}

/// Tasks of a stage have equally many instances.
static struct gap find_gap(const struct elaboration *e, const struct stage_info *stage)
{
    struct gap gap = {.task = NONE};
    for (; gap.number < point_count(e, stage->first_task); gap.number++) {
        gap.whole = true;
        for (uint32_t t = stage->first_task; t < stage->first_task + stage->task_count; t++) {
            if (item_of(e, t, point_number(e, t, gap.number)))
                gap.whole = false;
            else if (!left_to_rule(e, t) && gap.task == NONE)
                gap.task = t;
        }
        if (gap.task == NONE)
            continue;
        gap.near = neighbour(e, gap.task, gap.number);
        gap.loop = gap.near ? loop_around(e, span_of(e, gap.near->instance)) : 0;
        break;
    }
    return gap;
}

/// One mistake has one cause: a loop that stops short, or statements that are missing altogether.
static bool same_cause(const struct gap *a, const struct gap *b)
{
    return a->loop ? a->loop == b->loop : !a->near && !b->near;
}

static void check_gaps(struct elaboration *e)
{
    struct gap *gaps = context_alloc(e->context, (e->stage_count + 1) * sizeof *gaps);
    for (uint32_t s = 0; s < e->stage_count; s++)
        gaps[s] = e->stages[s].named ? find_gap(e, &e->stages[s]) : (struct gap){.task = NONE};
    for (uint32_t s = 0; s < e->stage_count; s++) {
        const char *others = "";
        bool said = gaps[s].task == NONE;
        for (uint32_t before = 0; before < s && !said; before++)
            said = gaps[before].task != NONE && same_cause(&gaps[before], &gaps[s]);
        for (uint32_t later = s + 1; later < e->stage_count && !said; later++) {
            const struct gap *gap = &gaps[later];
            if (gap->task != NONE && same_cause(&gaps[s], gap))
                others = context_printf(e->context, "%s%s`%s`", others, *others ? ", " : "",
                                        instance_label(e, later, gap->whole ? NONE : gap->task,
                                                       point_number(e, gap->task, gap->number)));
        }
        if (!said)
            never_issued(e, &gaps[s], others);
    }
}

void check_coverage(struct elaboration *e)
{
    size_t cells = (size_t)e->group * e->cells;
    e->unit_of = context_alloc(e->context, (cells + 1) * sizeof *e->unit_of);
    for (size_t i = 0; i < cells; i++)
        e->unit_of[i] = NONE;
    for (uint32_t i = 0; i < e->unit_count; i++) {
        const struct issue *unit = &e->units[i];
        uint32_t *cell = cell_unit(e, unit->task, (struct point){unit->layer, unit->part, unit->piece});
        if (*cell != NONE)
            issued_twice(e, *cell, i);
        else
            *cell = i;
    }
    check_gaps(e);
}
