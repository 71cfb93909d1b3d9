// Schedules and their use: knobs with their ranges and values, and whether a schedule is for the layer it is used on. The
// statements stay AST; elaboration interprets them for given knobs.
#include "compiler/check/check.h"

#include <string.h>

static bool read_knob(struct checker *checker, uint32_t file, node_id id, struct mod_knob *row)
{
    const struct ast_node *node = node_of(checker, id);
    const char *name = name_text(checker, node->text);
    struct scope scope = {.file = file};
    struct constant value, low, high;
    *row = (struct mod_knob){.name = module_name(checker, node->text), .low = 1, .high = 0};
    if (!evaluate_as(checker, &scope, name, node->slot[1], CONSTANT_INTEGER, &value))
        return false;
    row->value = value.integer;
    if (!node->slot[0])
        return true;
    const struct ast_node *range = node_of(checker, node->slot[0]);
    if (!evaluate_as(checker, &scope, name, range->slot[0], CONSTANT_INTEGER, &low) ||
        !evaluate_as(checker, &scope, name, range->slot[1], CONSTANT_INTEGER, &high))
        return false;
    if (low.integer > high.integer) {
        struct diag *diag = diag_error(checker->context, E0206, range->span, "the range of `%s` is empty", name);
        diag_label(checker->context, diag, "from %lld to %lld", (long long)low.integer, (long long)high.integer);
        return false;
    }
    row->low = low.integer;
    row->high = high.integer;
    return expect_range(checker, name, node->slot[1], value.integer, low.integer, high.integer);
}

static bool read_knobs(struct checker *checker, struct symbol item, struct mod_schedule *row)
{
    bool fine = true;
    row->knobs.first = COUNT(checker->module, mod_knob);
    EACH_NODE(&checker->program->ast, id, node_of(checker, item.node)->slot[0]) {
        struct mod_knob knob;
        fine = read_knob(checker, item.file, id, &knob) && fine;
        uint32_t number = ADD(checker->module, mod_knob);
        *ROW(checker->module, mod_knob, number) = knob;
        row->knobs.count++;
    }
    return fine;
}

static bool read_schedule(struct checker *checker, struct symbol item, struct mod_schedule *row)
{
    const struct ast_node *node = node_of(checker, item.node);
    struct ir *module = checker->module;
    bool fine = check_schedule_names(checker, item);
    struct symbol layer;
    if (node->flag) {
        row->stages.first = COUNT(module, mod_name);
        EACH_NODE(&checker->program->ast, id, node->slot[1]) {
            str_id name = module_name(checker, node_of(checker, id)->text);
            uint32_t number = ADD(module, mod_name);
            ROW(module, mod_name, number)->name = name;
            row->stages.count++;
        }
    } else if (fine && resolve_item(checker, item.file, node->slot[1], NODE_LAYER, &layer)) {
        row->layer = elaborate_layer(checker, layer);
        fine = row->layer != NONE;
    }
    return read_knobs(checker, item, row) && fine;
}

uint32_t elaborate_schedule(struct checker *checker, struct symbol item, bool own)
{
    uint32_t row;
    if (memo_find(checker, item.node, &row))
        return row;
    struct mod_schedule schedule = {.name = module_name(checker, node_of(checker, item.node)->text),
                                    .layer = NONE,
                                    .file = item.file,
                                    .node = item.node,
                                    .own = own};
    row = NONE;
    if (read_schedule(checker, item, &schedule)) {
        row = ADD(checker->module, mod_schedule);
        *ROW(checker->module, mod_schedule, row) = schedule;
    }
    memo_set(checker, item.node, row);
    return row;
}

// ---- use ----------------------------------------------------------------------------------------------------------------

static bool has_stage(const struct checker *checker, node_id layer, str_id name)
{
    EACH_NODE(&checker->program->ast, id, node_of(checker, layer)->slot[2])
        if (node_of(checker, id)->kind == NODE_STAGE && node_of(checker, id)->text == name)
            return true;
    return false;
}

/// Is the schedule for this layer, or for stages that it has?
static bool check_fit(struct checker *checker, node_id use, struct symbol schedule, struct symbol layer)
{
    const struct ast_node *node = node_of(checker, schedule.node);
    struct span span = place_of(checker, node_of(checker, use)->slot[0]);
    const char *name = name_text(checker, node->text),
               *layer_name = name_text(checker, node_of(checker, layer.node)->text);
    if (!node->flag) {
        struct symbol own;
        if (!resolve_item(checker, schedule.file, node->slot[1], NODE_LAYER, &own))
            return false;
        if (own.node == layer.node)
            return true;
        struct diag *diag = diag_error(checker->context, E0311, span, "schedule `%s` is for layer `%s`, not `%s`", name,
                                       name_text(checker, node_of(checker, own.node)->text), layer_name);
        diag_label(checker->context, diag, "for another layer");
        diag_note_at(checker->context, diag, place_of(checker, schedule.node), "it is declared for one layer");
        return false;
    }
    EACH_NODE(&checker->program->ast, id, node->slot[1]) {
        str_id stage = node_of(checker, id)->text;
        if (has_stage(checker, layer.node, stage))
            continue;
        struct diag *diag =
            diag_error(checker->context, E0311, span, "schedule `%s` needs a stage `%s`, layer `%s` has none", name,
                       name_text(checker, stage), layer_name);
        diag_label(checker->context, diag, "does not fit this layer");
        diag_note_at(checker->context, diag, place_of(checker, schedule.node),
                     "it fits layers that have all of its stages");
        return false;
    }
    return true;
}

static uint32_t find_knob(const struct checker *checker, const struct mod_knob *knobs, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(ir_text(checker->module, knobs[i].name), name))
            return i;
    return NONE;
}

static void report_knob(struct checker *checker, node_id argument, const char *schedule, const struct mod_knob *knobs,
                        uint32_t count)
{
    const char *name = name_text(checker, node_of(checker, argument)->text);
    struct names candidates = {0};
    for (uint32_t i = 0; i < count; i++)
        names_add(checker, &candidates,
                  context_printf(checker->context, "%s", ir_text(checker->module, knobs[i].name)));
    struct diag *diag = diag_error(checker->context, E0106, name_place(checker, argument),
                                   "schedule `%s` has no knob `%s`", schedule, name);
    diag_label(checker->context, diag, "unknown knob");
    if (count)
        diag_note(checker->context, diag, "its knobs are %s", names_join(checker, &candidates));
    suggest(checker, diag, "knob", name, name_place(checker, argument), &candidates);
}

static bool set_knob(struct checker *checker, uint32_t scope_file, node_id use, node_id argument, const char *schedule,
                     struct mod_knob *knobs, uint32_t count)
{
    const struct ast_node *node = node_of(checker, argument);
    struct scope scope = {.file = scope_file};
    struct constant value;
    if (!node->text) {
        struct diag *diag = diag_error(checker->context, E0205, node->span, "a knob is given by name");
        diag_label(checker->context, diag, count ? "expected as in `%s: %s`" : "`%s` has no knobs",
                   count ? context_printf(checker->context, "%s", ir_text(checker->module, knobs[0].name)) : schedule,
                   source_text(checker, node->span));
        return false;
    }
    const char *name = name_text(checker, node->text);
    uint32_t knob = find_knob(checker, knobs, count, name);
    if (knob == NONE) {
        report_knob(checker, argument, schedule, knobs, count);
        return false;
    }
    EACH_NODE(&checker->program->ast, before, node_of(checker, use)->slot[1]) {
        if (before == argument)
            break;
        if (node_of(checker, before)->text != node->text)
            continue;
        report_twice(checker, "knob", name, name_place(checker, argument), name_place(checker, before));
        return false;
    }
    if (!evaluate_as(checker, &scope, name, node->slot[0], CONSTANT_INTEGER, &value))
        return false;
    if (knobs[knob].low <= knobs[knob].high &&
        !expect_range(checker, name, node->slot[0], value.integer, knobs[knob].low, knobs[knob].high))
        return false;
    knobs[knob].value = value.integer;
    return true;
}

static bool find_schedule(struct checker *checker, uint32_t scope_file, node_id use, struct symbol *schedule)
{
    struct path path;
    node_id name = node_of(checker, use)->slot[0];
    if (use != checker->override_use || !path_of(checker, name, &path) || path.count != 1 ||
        resolve(checker, scope_file, &path, NODE_SCHEDULE, true).kind)
        return resolve_item(checker, scope_file, name, NODE_SCHEDULE, schedule);
    for (uint32_t i = checker->program->unit_count;
         i-- > 0;) { // the command line looks further: imports, then std.schedules
        uint32_t file = checker->program->units[i].file;
        struct symbol symbol = resolve(checker, file, &path, NODE_SCHEDULE, true);
        if (symbol.kind == SYMBOL_ITEM && node_of(checker, symbol.node)->kind == NODE_SCHEDULE) {
            *schedule = symbol;
            return true;
        }
    }
    struct names candidates = {0};
    for (uint32_t i = 0; i < checker->program->unit_count; i++)
        visible_names(checker, checker->program->units[i].file, NODE_SCHEDULE, &candidates);
    report_unknown(checker, "schedule", name_text(checker, path.name[0]), path.whole, &candidates);
    return false;
}

bool read_use(struct checker *checker, uint32_t scope_file, node_id use, struct symbol layer, struct mod_use *row)
{
    struct symbol schedule;
    struct ir *module = checker->module;
    if (!find_schedule(checker, scope_file, use, &schedule) || !check_fit(checker, use, schedule, layer))
        return false;
    *row = (struct mod_use){.file = place_of(checker, use).file, .node = use == checker->override_use ? 0 : use};
    row->schedule = elaborate_schedule(checker, schedule, schedule.file == checker->root_file);
    if (row->schedule == NONE)
        return false;
    struct mod_schedule schedule_row = *ROW(module, mod_schedule, row->schedule);
    uint32_t count = schedule_row.knobs.count;
    struct mod_knob *knobs = context_alloc(checker->context, (count + 1) * sizeof *knobs);
    for (uint32_t i = 0; i < count; i++)
        knobs[i] = *ROW(module, mod_knob, schedule_row.knobs.first + i);
    bool fine = true;
    const char *name = name_text(checker, node_of(checker, schedule.node)->text);
    EACH_NODE(&checker->program->ast, id, node_of(checker, use)->slot[1])
        fine = set_knob(checker, scope_file, use, id, name, knobs, count) && fine;
    row->knobs = (struct rows){COUNT(module, mod_knob), count};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = ADD(module, mod_knob);
        *ROW(module, mod_knob, number) = knobs[i];
    }
    return fine;
}
