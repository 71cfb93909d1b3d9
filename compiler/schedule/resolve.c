// Items -> units: which tasks an issued instance stands for, on which stream, and whether that stream has the engines.
#include <string.h>

#include "compiler/schedule/elaborate.h"

static struct span span_of(const struct elaboration *e, node_id id)
{
    return ast_node_of(e, id)->span;
}

static void unbound(struct elaboration *e, const struct item *item, uint32_t task)
{
    const struct stage_info *stage = &e->stages[item->stage];
    const char *name = item->task == NONE && !e->whole[item->stage].given && stage->task_count == 1
                           ? stage->name
                           : e->tasks[task].label;
    bool any = false;
    for (uint32_t i = 0; i < stage->task_count; i++)
        any = any || e->tasks[stage->first_task + i].bound.given;
    if (!any && item->task == NONE)
        name = stage->name;
    struct diag *diag = elaboration_error(e, E0303, span_of(e, item->instance), "`%s` is not bound to a stream", name);
    diag_label(e->context, diag, "issued here");
    for (uint32_t i = 0; i < e->stream_count; i++) {
        if (e->tasks[task].engines & ~e->streams[i].engines)
            continue;
        diag_help(e->context, diag, "bind it: `bind %s to %s;`", name, e->streams[i].label);
        return;
    }
}

/// The stream of one task of an item; `on` moves what the text does not bind by its phase.
static uint32_t stream_of(struct elaboration *e, const struct item *item, uint32_t task, const struct binding **binding)
{
    const struct task_info *info = &e->tasks[task];
    *binding = info->bound.given ? &info->bound : &e->whole[item->stage];
    if (item->stream != NONE && (item->task != NONE || !info->bound.given))
        return item->stream;
    if (!(*binding)->given)
        unbound(e, item, task);
    else if ((*binding)->stream == NONE && !e->failed) {
        const char *name = text_of(e->context, (*binding)->stream_name);
        struct diag *diag =
            elaboration_error(e, E0303, span_of(e, item->instance), "`%s` is an array of streams: which one?", name);
        diag_label(e->context, diag, "issued here");
        diag_help(e->context, diag, "pick one: `... on %s[0]`", name);
    }
    return (*binding)->given ? (*binding)->stream : NONE;
}

static void check_engines(struct elaboration *e, const struct item *item, uint32_t task, uint32_t stream,
                          const struct binding *binding)
{
    uint32_t have = e->streams[stream].engines;
    if (binding->given && binding->sms > 0)
        have |= 1u << engine_sm | 1u << engine_copy; // lent SMs copy by themselves
    uint32_t lacking = e->tasks[task].engines & ~have;
    if (!lacking)
        return;
    e->failed = true;
    if (!first_complaint(e, E0306, e->streams[stream].node, engine_names(e->context, lacking)))
        return;
    bool chosen_here = item->stream == stream || !binding->given;
    struct span place = span_of(e, chosen_here ? item->instance : binding->path);
    struct diag *diag =
        elaboration_error(e, E0306, place, "stream `%s` lacks `%s`, which `%s` needs", e->streams[stream].label,
                          engine_names(e->context, lacking), e->tasks[task].label);
    diag_label(e->context, diag, "put on `%s` here", e->streams[stream].label);
    struct span declared = ast_node_of(e, e->streams[stream].node)->name_span;
    diag_label_at(e->context, diag, declared, "uses %s", engine_names(e->context, e->streams[stream].engines));
    diag_help(e->context, diag, "add it to the stream's `uses`, or bind `%s` to another stream", e->tasks[task].label);
}

static void resolve_task(struct elaboration *e, uint32_t number, uint32_t task)
{
    struct item *item = &e->items[number];
    const struct binding *binding;
    uint32_t stream = stream_of(e, item, task, &binding);
    if (stream == NONE) {
        e->failed = true;
        return;
    }
    check_engines(e, item, task, stream, binding);
    int64_t first = item->at.piece, end = first + 1;
    if (first == ALL_PIECES) {
        first = 0;
        end = e->stages[item->stage].pieces;
    }
    for (int64_t piece = first; piece < end; piece++)
        *APPEND(e, units, unit_count, unit_capacity) =
            (struct issue){number, task, (uint32_t)item->at.layer, (uint32_t)item->at.part, (uint32_t)piece, stream};
}

/// Two sides that end on one stream never overlap. Phases are judged together: a stage whose parts lie on several
/// streams still overlaps with what lies on one of them.
static uint32_t only_stream(const struct elaboration *e, const struct item *item)
{
    uint32_t stream = NONE;
    for (uint32_t i = 0; i < item->units.count; i++) {
        const struct issue *unit = &e->units[item->units.first + i];
        if (stream != NONE && stream != unit->stream)
            return NONE;
        stream = unit->stream;
    }
    return stream;
}

static void check_sides(struct elaboration *e, const struct item *left, const struct item *right)
{
    uint32_t stream = only_stream(e, left);
    if (left->sync || right->sync || stream == NONE || stream != only_stream(e, right))
        return;
    const char *a = instance_label(e, left->stage, left->task, left->at);
    const char *b = instance_label(e, right->stage, right->task, right->at);
    struct diag *diag =
        elaboration_error(e, E0302, span_of(e, right->instance),
                          "`%s` and `%s` cannot overlap: both are on stream `%s`", a, b, e->streams[stream].label);
    diag_label(e->context, diag, "on `%s`...", e->streams[stream].label);
    diag_label_at(e->context, diag, span_of(e, left->instance), "...like this");
    diag_help(e->context, diag, "bind one of them to another stream, or write two statements");
}

void resolve_items(struct elaboration *e)
{
    for (uint32_t i = 0; i < e->item_count; i++) {
        struct item *item = &e->items[i];
        if (item->sync)
            continue;
        item->units.first = e->unit_count;
        const struct stage_info *stage = &e->stages[item->stage];
        for (uint32_t t = stage->first_task; t < stage->first_task + stage->task_count; t++)
            if (item->task == t || (item->task == NONE && !left_to_rule(e, t)))
                resolve_task(e, i, t);
        item->units.count = e->unit_count - item->units.first;
    }
    for (uint32_t i = 0; i < e->relation_count; i++) {
        const struct relation *relation = &e->relations[i];
        if (relation->kind != RELATION_OVERLAP)
            continue;
        for (uint32_t l = 0; l < relation->left.count; l++)
            for (uint32_t r = 0; r < relation->right.count; r++)
                check_sides(e, &e->items[relation->left.first + l], &e->items[relation->right.first + r]);
    }
}
