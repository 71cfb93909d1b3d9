// Devices and clusters: what the machine is. Peaks that a device does not state stay 0, "not given".
#include "compiler/check/check.h"

#include <string.h>

enum { MAX_RANKS = 65536, MAX_AXES = 8 };

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
        *mask |= 1u << engine;
        node_id count = node_of(checker, id)->slot[0];
        struct constant value = integer_constant(1);
        if (count)
            fine = evaluate_as(checker, &scope, name, count, CONSTANT_INTEGER, &value) &&
                   expect_range(checker, name, count, value.integer, 0, 64) && fine;
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
    row->peak_f32 = values[0].value.number;
    row->peak_bf16 = values[1].value.number;
    row->peak_fp8 = values[2].value.number;
    return true;
}

static bool read_device(struct checker *checker, struct symbol item, struct mod_device *row)
{
    static const char *const names[] = {"sm", "memory", "hbm", "derate", "peak"};
    static const enum constant_kind kinds[] = {CONSTANT_INTEGER, CONSTANT_AMOUNT, CONSTANT_RATE, CONSTANT_SHARE};
    const struct ast_node *node = node_of(checker, item.node);
    const char *owner = context_printf(checker->context, "device `%s`", name_text(checker, node->text));
    node_id members = node->slot[0], sm = find_attribute(checker, members, "sm");
    bool fine = check_attributes(checker, members, names, 5, owner);
    struct scope scope = {.file = item.file};
    struct constant value[4] = {[3] = {.kind = CONSTANT_SHARE, .number = 1}};
    for (uint32_t i = 0; i < 4; i++) {
        node_id attribute = find_attribute(checker, members, names[i]);
        if (attribute)
            fine = evaluate_as(checker, &scope, names[i], node_of(checker, attribute)->slot[0], kinds[i], &value[i]) &&
                   fine;
    }
    if (!sm) {
        struct diag *diag = diag_error(checker->context, E0107, name_place(checker, item.node), "%s lacks `sm`", owner);
        diag_label(checker->context, diag, "its number of SMs, or of cores, is required");
        return false;
    }
    if (fine)
        fine = expect_range(checker, "sm", node_of(checker, sm)->slot[0], value[0].integer, 1, 65536);
    row->sm = value[0].integer;
    row->memory = value[1].number;
    row->hbm = value[2].number;
    row->derate = value[3].number;
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

static node_id find_member(const struct checker *checker, node_id list, uint16_t kind, str_id name)
{
    EACH_NODE(&checker->program->ast, id, list)
        if (node_of(checker, id)->kind == kind && node_of(checker, id)->text == name)
            return id;
    return 0;
}

static bool read_axes(struct checker *checker, struct symbol item, struct mod_cluster *row)
{
    bool fine = true;
    struct scope scope = {.file = item.file};
    node_id members = node_of(checker, item.node)->slot[0];
    row->ranks = 1;
    row->axes.first = COUNT(checker->module, mod_axis);
    EACH_NODE(&checker->program->ast, id, members) {
        const struct ast_node *node = node_of(checker, id);
        if (node->kind != NODE_AXIS)
            continue;
        const char *name = name_text(checker, node->text);
        node_id first = find_member(checker, members, NODE_AXIS, node->text);
        struct constant size;
        if (first != id) {
            report_twice(checker, "axis", name, name_place(checker, id), name_place(checker, first));
            fine = false;
        } else if (!evaluate_as(checker, &scope, name, node->slot[0], CONSTANT_INTEGER, &size) ||
                   !expect_range(checker, name, node->slot[0], size.integer, 1, MAX_RANKS) ||
                   !expect_range(checker, "ranks", node->slot[0], size.integer * row->ranks, 1, MAX_RANKS)) {
            fine = false;
        } else {
            uint32_t axis = ADD(checker->module, mod_axis);
            *ROW(checker->module, mod_axis, axis) =
                (struct mod_axis){.name = module_name(checker, node_of(checker, id)->text), .size = size.integer};
            row->axes.count++;
            row->ranks *= size.integer;
        }
    }
    if (fine && !row->axes.count) {
        struct diag *diag =
            diag_error(checker->context, E0107, name_place(checker, item.node), "cluster `%s` has no axis",
                       name_text(checker, node_of(checker, item.node)->text));
        diag_label(checker->context, diag, "at least one, as in `axis rank[4];`, is required");
        return false;
    }
    return fine;
}

static uint32_t axis_of_link(struct checker *checker, const struct mod_cluster *row, node_id link)
{
    node_id name = node_of(checker, link)->slot[0];
    const char *text = name_text(checker, node_of(checker, name)->text);
    struct names candidates = {0};
    for (uint32_t i = 0; i < row->axes.count; i++) {
        uint32_t axis = row->axes.first + i;
        const char *axis_name = ir_text(checker->module, ROW(checker->module, mod_axis, axis)->name);
        if (!strcmp(axis_name, text))
            return axis;
        names_add(checker, &candidates, context_printf(checker->context, "%s", axis_name));
    }
    report_unknown(checker, "axis", text, place_of(checker, name), &candidates);
    return NONE;
}

static bool read_link(struct checker *checker, struct symbol item, node_id link, const struct mod_cluster *cluster,
                      struct mod_link *row)
{
    static const struct attribute table[] = {
        {"bandwidth", CONSTANT_RATE, true}, {"latency", CONSTANT_TIME, true}, {"rail", CONSTANT_BOOL, false}};
    struct attribute_value values[3];
    const struct ast_node *node = node_of(checker, link);
    const char *owner = context_printf(checker->context, "link `%s`", name_text(checker, node->text));
    node_id record = node->slot[1];
    row->axis = axis_of_link(checker, cluster, link);
    bool fine = read_attributes(checker, item.file, node_of(checker, record)->slot[0], table, 3,
                                name_place(checker, link), owner, values);
    if (!fine || row->axis == NONE)
        return false;
    if (values[0].value.number <= 0) {
        node_id bandwidth = node_of(checker, values[0].node)->slot[0];
        struct diag *diag =
            diag_error(checker->context, E0206, place_of(checker, bandwidth), "`bandwidth` is not above 0");
        diag_label(checker->context, diag, "nothing could cross this link");
        return false;
    }
    row->name = module_name(checker, node_of(checker, link)->text);
    row->bandwidth = values[0].value.number;
    row->latency = values[1].value.number;
    row->rail = values[2].node && values[2].value.integer;
    return true;
}

static bool read_links(struct checker *checker, struct symbol item, struct mod_cluster *row)
{
    bool fine = true;
    struct mod_link links[MAX_AXES];
    node_id nodes[MAX_AXES];
    uint32_t count = 0;
    EACH_NODE(&checker->program->ast, id, node_of(checker, item.node)->slot[0]) {
        if (node_of(checker, id)->kind != NODE_LINK)
            continue;
        struct mod_link link = {0};
        if (count == MAX_AXES || !read_link(checker, item, id, row, &link)) {
            fine = false;
            continue;
        }
        for (uint32_t i = 0; i < count; i++) {
            if (links[i].axis == link.axis) {
                node_id axis = node_of(checker, id)->slot[0], first = node_of(checker, nodes[i])->slot[0];
                report_twice(checker, "link across", name_text(checker, node_of(checker, axis)->text),
                             place_of(checker, axis), place_of(checker, first));
                fine = false;
            }
        }
        nodes[count] = id;
        links[count++] = link;
    }
    row->links = (struct rows){COUNT(checker->module, mod_link), count};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t link = ADD(checker->module, mod_link);
        *ROW(checker->module, mod_link, link) = links[i];
    }
    return fine;
}

/// Ranks along an axis of more than one must be able to reach each other.
static bool check_reach(struct checker *checker, struct symbol item, const struct mod_cluster *row)
{
    bool fine = true;
    EACH_NODE(&checker->program->ast, id, node_of(checker, item.node)->slot[0]) {
        const struct ast_node *node = node_of(checker, id);
        if (node->kind != NODE_AXIS)
            continue;
        for (uint32_t i = 0; i < row->axes.count; i++) {
            uint32_t axis = row->axes.first + i;
            const struct mod_axis *axis_row = ROW(checker->module, mod_axis, axis);
            if (strcmp(ir_text(checker->module, axis_row->name), name_text(checker, node->text)) != 0)
                continue;
            bool linked = axis_row->size == 1;
            for (uint32_t l = 0; l < row->links.count; l++)
                linked = linked || ROW(checker->module, mod_link, row->links.first + l)->axis == axis;
            if (linked)
                continue;
            struct diag *diag = diag_error(checker->context, E0107, name_place(checker, id), "axis `%s` has no link",
                                           name_text(checker, node->text));
            diag_label(checker->context, diag, "its %lld members cannot reach each other", (long long)axis_row->size);
            fine = false;
        }
    }
    return fine;
}

static bool read_cluster(struct checker *checker, struct symbol item, struct mod_cluster *row)
{
    static const char *const names[] = {"device"};
    node_id members = node_of(checker, item.node)->slot[0];
    const char *name = name_text(checker, node_of(checker, item.node)->text);
    bool fine = check_attributes(checker, members, names, 1, context_printf(checker->context, "cluster `%s`", name));
    bool mixed = false;
    EACH_NODE(&checker->program->ast, id, members) {
        struct symbol device;
        if (node_of(checker, id)->kind != NODE_MIXED)
            continue;
        mixed = true;
        if (resolve_item(checker, item.file, node_of(checker, id)->slot[0], NODE_DEVICE, &device))
            report_unbuilt(checker, statement_place(checker, id),
                           "a cluster of several kinds of device is not built yet");
    }
    node_id attribute = find_attribute(checker, members, "device");
    struct symbol device;
    if (attribute) {
        bool found = resolve_item(checker, item.file, node_of(checker, attribute)->slot[0], NODE_DEVICE, &device);
        row->device = found ? elaborate_device(checker, device) : NONE;
        fine = fine && row->device != NONE;
    } else if (!mixed) {
        struct diag *diag =
            diag_error(checker->context, E0107, name_place(checker, item.node), "cluster `%s` lacks `device`", name);
        diag_label(checker->context, diag, "what each of its ranks is");
        fine = false;
    }
    return read_axes(checker, item, row) && read_links(checker, item, row) && check_reach(checker, item, row) && fine &&
           !mixed;
}

uint32_t elaborate_cluster(struct checker *checker, struct symbol item)
{
    uint32_t row;
    if (memo_find(checker, item.node, &row))
        return row;
    struct mod_cluster cluster = {
        .name = module_name(checker, node_of(checker, item.node)->text), .node = item.node, .device = NONE};
    row = NONE;
    if (read_cluster(checker, item, &cluster)) {
        row = ADD(checker->module, mod_cluster);
        *ROW(checker->module, mod_cluster, row) = cluster;
    }
    memo_set(checker, item.node, row);
    return row;
}
