// Devices: what a machine can do. Peaks that a device does not state stay 0, "not given".
#include "compiler/check/check.h"

#include <string.h>

void report_single_engine(struct checker *checker, node_id use)
{
    const char *name = name_text(checker, node_of(checker, use)->text);
    struct diag *diag = diag_error(checker->context, E0307, place_of(checker, use), "`%s` has no number", name);
    diag_label(checker->context, diag, "a device has one `%s`", name);
    diag_help(checker->context, diag, "only copy engines are several: `copy[0]`, `copy[1]`");
    diag_fix(checker->context, diag, place_of(checker, use), name);
}

bool read_engines(struct checker *checker, uint32_t file, node_id uses, uint32_t *mask, int64_t *copies)
{
    bool fine = true;
    struct scope scope = {.file = file};
    EACH_NODE(&checker->program->ast, id, uses) {
        const char *name = name_text(checker, node_of(checker, id)->text);
        struct names candidates = {0};
        uint32_t engine = engine_words_count;
        for (uint32_t i = 0; i < engine_words_count; i++) {
            names_add(checker, &candidates, engine_words[i]);
            if (!strcmp(engine_words[i], name))
                engine = i;
        }
        if (engine == engine_words_count) {
            report_unknown(checker, "engine", name, name_place(checker, id), &candidates);
            fine = false;
            continue;
        }
        if (*mask & 1u << engine && engine != engine_copy) { // copy engines are several
            struct diag *diag = diag_error(checker->context, E0102, name_place(checker, id),
                                           "engine `%s` is listed twice", name);
            diag_label(checker->context, diag, "again here");
            fine = false;
            continue;
        }
        *mask |= 1u << engine;
        node_id count = node_of(checker, id)->slot[0];
        struct constant value = integer_constant(1);
        if (count && engine != engine_copy) {
            report_single_engine(checker, id);
            fine = false;
        } else if (count)
            fine = evaluate_as(checker, &scope, name, count, CONSTANT_INTEGER, &value) &&
                   expect_range(checker, name, count, value.integer, 0, COPY_ENGINES_MAX) && fine;
        if (copies && engine == engine_copy)
            *copies = value.integer;
    }
    return fine;
}

static bool read_peak(struct checker *checker, uint32_t file, node_id attribute, struct mod_device *row)
{
    static const struct attribute table[] = {
        {"f32", CONSTANT_FLOPS, false}, {"bf16", CONSTANT_FLOPS, false}, {"fp8", CONSTANT_FLOPS, false}};
    struct attribute_value values[3];
    if (!attribute)
        return true;
    const struct ast_node *record = node_of(checker, node_of(checker, attribute)->slot[0]);
    if (record->kind != NODE_RECORD) {
        struct diag *diag =
            diag_error(checker->context, E0201, record->span, "`peak` is a record, one rate for each format");
        diag_label(checker->context, diag, "expected as in `{ bf16: 989TFLOPS }`");
        return false;
    }
    if (!read_attributes(checker, file, record->slot[0], table, 3, record->span, "`peak`", values))
        return false;
    bool any = false, fine = true;
    for (uint32_t i = 0; i < 3; i++) {
        any = any || values[i].node;
        fine = (!values[i].node || expect_quantity(checker, table[i].name, node_of(checker, values[i].node)->slot[0],
                                                   values[i].value.number, false, MACHINE_RATE)) &&
               fine;
    }
    if (!any) {
        struct diag *diag = diag_error(checker->context, E0107, record->span, "`peak` names no format");
        diag_label(checker->context, diag, "expected as in `{ bf16: 989TFLOPS }`");
    }
    if (!any || !fine)
        return false;
    row->peak_f32 = values[0].value.number;
    row->peak_bf16 = values[1].value.number;
    row->peak_fp8 = values[2].value.number;
    return true;
}

static bool read_device(struct checker *checker, struct symbol item, struct mod_device *row)
{
    enum { SM, MEMORY, HBM, DERATE, LAUNCH, HALF_ROWS, VALUES };
    static const char *const names[] = {"sm", "memory", "hbm", "derate", "launch", "half_rows", "peak"};
    static const enum constant_kind kinds[VALUES] = {CONSTANT_INTEGER, CONSTANT_AMOUNT, CONSTANT_RATE,
                                                     CONSTANT_SHARE,   CONSTANT_TIME,   CONSTANT_INTEGER};
    static const double most[VALUES] = {[MEMORY] = MACHINE_RATE, [HBM] = MACHINE_RATE, [DERATE] = 1, [LAUNCH] = MACHINE_TIME};
    const struct ast_node *node = node_of(checker, item.node);
    const char *owner = context_printf(checker->context, "device `%s`", name_text(checker, node->text));
    node_id members = node->slot[0], sm = find_attribute(checker, members, "sm");
    bool fine = check_attributes(checker, members, names, VALUES + 1, owner);
    struct scope scope = {.file = item.file};
    struct constant value[VALUES] = {[DERATE] = {.kind = CONSTANT_SHARE, .number = 1}};
    for (uint32_t i = 0; i < VALUES; i++) {
        node_id attribute = find_attribute(checker, members, names[i]), given = attribute ? node_of(checker, attribute)->slot[0] : 0;
        if (!given)
            continue;
        fine = evaluate_as(checker, &scope, names[i], given, kinds[i], &value[i]) &&
               (most[i] > 0 ? expect_quantity(checker, names[i], given, value[i].number, i == LAUNCH, most[i])
                            : expect_range(checker, names[i], given, value[i].integer, i == SM, SM_MAX)) &&
               fine;
    }
    if (!sm) {
        struct diag *diag = diag_error(checker->context, E0107, name_place(checker, item.node), "%s lacks `sm`", owner);
        diag_label(checker->context, diag, "its number of SMs, or of cores, is required");
        return false;
    }
    row->sm = value[SM].integer;
    row->memory = value[MEMORY].number;
    row->hbm = value[HBM].number;
    row->derate = value[DERATE].number;
    row->launch = value[LAUNCH].number;
    row->half_rows = value[HALF_ROWS].integer;
    row->engines = 1u << engine_sm;
    EACH_NODE(&checker->program->ast, id, members)
        if (node_of(checker, id)->kind == NODE_ENGINE)
            fine = read_engines(checker, item.file, node_of(checker, id)->slot[0], &row->engines, &row->copies) && fine;
    return read_peak(checker, item.file, find_attribute(checker, members, "peak"), row) && fine;
}

uint32_t elaborate_device(struct checker *checker, struct symbol item)
{
    uint32_t row;
    if (memo_find(checker, item.node, &row))
        return row;
    struct mod_device device = {.name = module_name(checker, node_of(checker, item.node)->text), .node = item.node};
    row = NONE;
    if (read_device(checker, item, &device)) {
        row = ADD(checker->module, mod_device);
        *ROW(checker->module, mod_device, row) = device;
    }
    memo_set(checker, item.node, row);
    return row;
}
