// Clusters: ranks in a grid of axes, numbered row by row with the last axis fastest, each with its device, and a link
// across every axis. A message between two ranks crosses the outermost axis in which they differ.
#include "compiler/check/check.h"
#include "runtime/plan/limits.h"

#include <string.h>

enum { MAX_RANKS = 65536 };

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
        } else if (row->axes.count == MOE_MAX_AXES) {
            struct diag *diag = diag_error(checker->context, E0206, name_place(checker, id), "a cluster has at most %d axes",
                                           MOE_MAX_AXES);
            diag_label(checker->context, diag, "one too many");
            return false;
        } else if (!evaluate_as(checker, &scope, name, node->slot[0], CONSTANT_INTEGER, &size) ||
                   !expect_range(checker, name, node->slot[0], size.integer, 1, MAX_RANKS) ||
                   !expect_range(checker, "ranks", node->slot[0], size.integer * row->ranks, 1, MAX_RANKS)) {
            fine = false;
        } else {
            uint32_t axis = ADD(checker->module, mod_axis);
            *ROW(checker->module, mod_axis, axis) = (struct mod_axis){
                .name = module_name(checker, node_of(checker, id)->text), .size = size.integer, .link = NONE};
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

static bool read_link(struct checker *checker, struct symbol item, node_id link, const struct mod_cluster *cluster,
                      struct mod_link *row)
{
    static const struct attribute table[] = {
        {"bandwidth", CONSTANT_RATE, true}, {"latency", CONSTANT_TIME, true}, {"rail", CONSTANT_BOOL, false}};
    struct attribute_value values[3];
    const struct ast_node *node = node_of(checker, link);
    const char *owner = context_printf(checker->context, "link `%s`", name_text(checker, node->text));
    node_id record = node->slot[1];
    row->axis = find_axis(checker, cluster, place_of(checker, node->slot[0]),
                          name_text(checker, node_of(checker, node->slot[0])->text));
    bool fine = read_attributes(checker, item.file, node_of(checker, record)->slot[0], table, 3,
                                name_place(checker, link), owner, values);
    if (!fine || row->axis == NONE)
        return false;
    if (!expect_quantity(checker, "bandwidth", node_of(checker, values[0].node)->slot[0], values[0].value.number, false,
                         MACHINE_RATE) ||
        !expect_quantity(checker, "latency", node_of(checker, values[1].node)->slot[0], values[1].value.number, true,
                         MACHINE_TIME))
        return false;
    row->name = module_name(checker, node_of(checker, link)->text);
    row->bandwidth = values[0].value.number;
    row->latency = values[1].value.number;
    row->rail = values[2].node && values[2].value.integer;
    return true;
}

static bool read_links(struct checker *checker, struct symbol item, struct mod_cluster *row)
{
    bool fine = true;
    struct mod_link links[MOE_MAX_AXES];
    node_id nodes[MOE_MAX_AXES];
    uint32_t count = 0;
    EACH_NODE(&checker->program->ast, id, node_of(checker, item.node)->slot[0]) {
        if (node_of(checker, id)->kind != NODE_LINK)
            continue;
        struct mod_link link = {0};
        if (!read_link(checker, item, id, row, &link)) {
            fine = false;
            continue;
        }
        uint32_t same = 0;
        while (same < count && links[same].axis != link.axis)
            same++;
        if (same < count) {
            node_id axis = node_of(checker, id)->slot[0], first = node_of(checker, nodes[same])->slot[0];
            report_twice(checker, "link across", name_text(checker, node_of(checker, axis)->text),
                         place_of(checker, axis), place_of(checker, first));
            fine = false;
            continue;
        }
        nodes[count] = id; // one an axis: there is room
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

/// Axes know their strides and links.
static void connect_axes(struct checker *checker, const struct mod_cluster *row)
{
    int64_t stride = 1;
    for (uint32_t i = row->axes.count; i-- > 0;) {
        struct mod_axis *axis = ROW(checker->module, mod_axis, row->axes.first + i);
        axis->stride = stride;
        stride *= axis->size;
        for (uint32_t l = 0; l < row->links.count; l++)
            if (ROW(checker->module, mod_link, row->links.first + l)->axis == row->axes.first + i)
                axis->link = row->links.first + l;
    }
}

// ---- which device each rank is ------------------------------------------------------------------------------------------

uint32_t find_axis(struct checker *checker, const struct mod_cluster *cluster, struct span place, const char *text)
{
    struct names candidates = {0};
    for (uint32_t i = 0; i < cluster->axes.count; i++) {
        uint32_t axis = cluster->axes.first + i;
        const char *axis_name = ir_text(checker->module, ROW(checker->module, mod_axis, axis)->name);
        if (!strcmp(axis_name, text))
            return axis;
        names_add(checker, &candidates, context_printf(checker->context, "%s", axis_name));
    }
    report_unknown(checker, "axis", text, place, &candidates);
    return NONE;
}

const char *rank_position(struct checker *checker, const struct mod_cluster *cluster, int64_t rank)
{
    const char *text = "";
    for (uint32_t i = 0; i < cluster->axes.count; i++) {
        const struct mod_axis *axis = ROW(checker->module, mod_axis, cluster->axes.first + i);
        text = context_printf(checker->context, "%s%s%s[%lld]", text, i ? " " : "",
                              ir_text(checker->module, axis->name), (long long)(rank / axis->stride % axis->size));
    }
    return text;
}

struct members {
    uint32_t *devices; // by rank: row of mod_device, or NONE
    node_id *places;   // the instance that said so
};

/// `node[1]` of `device a100 at node[1];`: the axis and the position.
static bool read_position(struct checker *checker, struct symbol item, const struct mod_cluster *row, node_id instance,
                          uint32_t *axis, int64_t *position)
{
    struct path path;
    node_id indices = node_of(checker, instance)->slot[1];
    struct scope scope = {.file = item.file};
    struct constant value;
    if (!path_of(checker, node_of(checker, instance)->slot[0], &path))
        return false;
    if (path.count != 1 || !indices || node_of(checker, indices)->next) {
        struct diag *diag =
            diag_error(checker->context, E0205, place_of(checker, instance), "`%s` is not one position on an axis",
                       source_text(checker, place_of(checker, instance)));
        diag_label(checker->context, diag, "expected as in `node[0]`");
        return false;
    }
    const char *name = name_text(checker, path.name[0]);
    *axis = find_axis(checker, row, place_of(checker, node_of(checker, instance)->slot[0]), name);
    if (*axis == NONE || !evaluate_as(checker, &scope, name, indices, CONSTANT_INTEGER, &value) ||
        !expect_range(checker, name, indices, value.integer, 0, ROW(checker->module, mod_axis, *axis)->size - 1))
        return false;
    *position = value.integer;
    return true;
}

static bool set_devices(struct checker *checker, const struct mod_cluster *row, node_id instance, uint32_t axis,
                        int64_t position, uint32_t device, struct members *members)
{
    struct mod_axis along = *ROW(checker->module, mod_axis, axis);
    for (int64_t rank = 0; rank < row->ranks; rank++) {
        if (rank / along.stride % along.size != position)
            continue;
        if (members->places[rank]) {
            report_twice(checker, "the device of", rank_position(checker, row, rank), place_of(checker, instance),
                         place_of(checker, members->places[rank]));
            return false;
        }
        members->devices[rank] = device;
        members->places[rank] = instance;
    }
    return true;
}

/// device a100 at node[1], node[2];
static bool read_mixed(struct checker *checker, struct symbol item, const struct mod_cluster *row, node_id mixed,
                       struct members *members)
{
    struct symbol symbol;
    bool fine = resolve_item(checker, item.file, node_of(checker, mixed)->slot[0], NODE_DEVICE, &symbol);
    uint32_t device = fine ? elaborate_device(checker, symbol) : NONE;
    if (device == NONE)
        return false;
    EACH_NODE(&checker->program->ast, id, node_of(checker, mixed)->slot[1]) {
        uint32_t axis;
        int64_t position;
        fine = read_position(checker, item, row, id, &axis, &position) &&
               set_devices(checker, row, id, axis, position, device, members) && fine;
    }
    return fine;
}

static bool report_no_device(struct checker *checker, struct symbol item, const struct mod_cluster *row, int64_t rank,
                             bool mixed)
{
    const char *name = name_text(checker, node_of(checker, item.node)->text);
    struct diag *diag = mixed ? diag_error(checker->context, E0107, name_place(checker, item.node),
                                           "%s of cluster `%s` has no device", rank_position(checker, row, rank), name)
                              : diag_error(checker->context, E0107, name_place(checker, item.node),
                                           "cluster `%s` lacks `device`", name);
    diag_label(checker->context, diag, "what each of its ranks is");
    if (mixed)
        diag_help(checker->context, diag, "`device = NAME;` is for all ranks that no `at` names");
    return false;
}

/// The kind that `at` gives a rank, or else the cluster's own `device`.
static bool read_devices(struct checker *checker, struct symbol item, struct mod_cluster *row)
{
    node_id list = node_of(checker, item.node)->slot[0], attribute = find_attribute(checker, list, "device");
    size_t ranks = (size_t)row->ranks;
    struct members members = {context_alloc(checker->context, ranks * sizeof *members.devices),
                              context_alloc(checker->context, ranks * sizeof *members.places)};
    uint32_t own = NONE;
    struct symbol device;
    bool fine = true, mixed = false;
    if (attribute) {
        fine = resolve_item(checker, item.file, node_of(checker, attribute)->slot[0], NODE_DEVICE, &device);
        own = fine ? elaborate_device(checker, device) : NONE;
        fine = own != NONE;
    }
    for (size_t r = 0; r < ranks; r++)
        members.devices[r] = own;
    EACH_NODE(&checker->program->ast, id, list) {
        if (node_of(checker, id)->kind != NODE_MIXED)
            continue;
        mixed = true;
        fine = read_mixed(checker, item, row, id, &members) && fine;
    }
    row->members = (struct rows){COUNT(checker->module, mod_rank), (uint32_t)row->ranks};
    for (int64_t r = 0; r < row->ranks && fine; r++) {
        if (members.devices[r] == NONE)
            return report_no_device(checker, item, row, r, mixed);
        uint32_t member = ADD(checker->module, mod_rank);
        ROW(checker->module, mod_rank, member)->device = members.devices[r];
    }
    row->device = members.devices[0];
    return fine;
}

static bool read_cluster(struct checker *checker, struct symbol item, struct mod_cluster *row)
{
    static const char *const names[] = {"device"};
    node_id members = node_of(checker, item.node)->slot[0];
    const char *name = name_text(checker, node_of(checker, item.node)->text);
    bool fine = check_attributes(checker, members, names, 1, context_printf(checker->context, "cluster `%s`", name));
    if (!read_axes(checker, item, row) || !read_links(checker, item, row) || !check_reach(checker, item, row))
        return false;
    connect_axes(checker, row);
    return read_devices(checker, item, row) && fine;
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
