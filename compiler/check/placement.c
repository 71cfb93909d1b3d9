// Placements: over which axes experts are divided, how evenly, with how many spare slots. arrange.c decides which rank
// owns which of them.
#include "compiler/check/check.h"

#include <string.h>

enum { MAX_EXPERTS = 65536 };

static const char *rank_word(const struct checker *checker, const struct mod_cluster *cluster, int64_t count)
{
    uint32_t innermost = cluster->axes.first + cluster->axes.count - 1;
    const char *name = ir_text(checker->module, ROW(checker->module, mod_axis, innermost)->name);
    bool gpu = !strcmp(name, "gpu");
    return count == 1 ? (gpu ? "GPU" : "rank") : (gpu ? "GPUs" : "ranks");
}

/// "6 x 8"
static const char *axes_product(struct checker *checker, const struct mod_cluster *cluster)
{
    const char *text = "";
    for (uint32_t i = 0; i < cluster->axes.count; i++)
        text = context_printf(checker->context, "%s%s%lld", text, i ? " x " : "",
                              (long long)ROW(checker->module, mod_axis, cluster->axes.first + i)->size);
    return text;
}

static void label_ranks(struct checker *checker, struct diag *diag, const struct mod_cluster *cluster)
{
    const char *many = rank_word(checker, cluster, cluster->ranks);
    EACH_NODE(&checker->program->ast, id, node_of(checker, cluster->node)->slot[0]) {
        if (node_of(checker, id)->kind != NODE_AXIS)
            continue;
        struct span axis = name_place(checker, id);
        axis.end = statement_place(checker, id).end;
        const char *product = axes_product(checker, cluster);
        bool resized = place_of(checker, node_of(checker, id)->slot[0]).file != axis.file;
        if (cluster->axes.count > 1)
            diag_label_at(checker->context, diag, axis, "%s = %lld %s", product, (long long)cluster->ranks, many);
        else
            diag_label_at(checker->context, diag, axis, "%s %s%s", product, many, resized ? ", by `--ranks`" : "");
        break;
    }
}

/// Adds ` spare = N;` behind the place, or replaces the N that is there.
static void fix_spare(struct checker *checker, struct diag *diag, struct span place, node_id given, int64_t spare)
{
    struct context *context = checker->context;
    if (given) {
        diag_fix(context, diag, place_of(checker, given), context_printf(context, "%lld", (long long)spare));
        return;
    }
    const struct source_file *file = &context->files[place.file];
    uint32_t end = place.end;
    while (end < file->size && file->text[end] != ';')
        end++;
    diag_fix(context, diag, (struct span){place.file, end + 1, end + 1},
             context_printf(context, " spare = %lld;", (long long)spare));
}

static void report_uneven(struct checker *checker, const struct mod_cluster *cluster, node_id place, int64_t experts,
                          int64_t given, node_id spare_node)
{
    struct context *context = checker->context;
    int64_t ranks = cluster->ranks, share = (experts + given + ranks - 1) / ranks, spare = share * ranks - experts;
    const char *many = rank_word(checker, cluster, ranks), *one = rank_word(checker, cluster, 1);
    struct span span = statement_place(checker, place);
    const char *slots =
        given ? context_printf(context, " and %lld spare slot%s", (long long)given, given == 1 ? "" : "s") : "";
    struct diag *diag = diag_error(context, E0502, span, "%s%s do%s not divide over %lld %s",
                                   counted(context, experts, "expert"), slots, experts == 1 && !given ? "es" : "",
                                   (long long)ranks, many);
    diag_label(context, diag, "%.2f %s per %s", (double)(experts + given) / (double)ranks, given ? "slots" : "experts",
               one);
    label_ranks(checker, diag, cluster);
    diag_note(context, diag, "without `{ balance: even }` behind its axes every %s holds equally many expert slots", one);
    diag_help(context, diag, "%lld spare slot%s for hot experts make%s it %lld = %lld x %lld", (long long)spare,
              spare == 1 ? "" : "s", spare == 1 ? "s" : "", (long long)(experts + spare), (long long)ranks,
              (long long)share);
    fix_spare(checker, diag, span, spare_node, spare);
}

/// The axes that `over` lists; each at most once.
static bool read_over(struct checker *checker, const struct mod_cluster *cluster, node_id place,
                      struct mod_placement *row)
{
    bool fine = true;
    node_id axes = node_of(checker, place)->slot[1];
    row->over.first = COUNT(checker->module, mod_over);
    EACH_NODE(&checker->program->ast, id, axes) {
        const char *name = name_text(checker, node_of(checker, id)->text);
        uint32_t axis = find_axis(checker, cluster, place_of(checker, id), name);
        fine = fine && axis != NONE;
        EACH_NODE(&checker->program->ast, before, axes) {
            if (before == id)
                break;
            if (node_of(checker, before)->text != node_of(checker, id)->text)
                continue;
            report_twice(checker, "axis", name, place_of(checker, id), place_of(checker, before));
            fine = false;
        }
        uint32_t over = ADD(checker->module, mod_over);
        ROW(checker->module, mod_over, over)->axis = axis;
        row->over.count++;
    }
    return fine;
}

static bool is_over(const struct checker *checker, const struct mod_placement *row, uint32_t axis)
{
    for (uint32_t i = 0; i < row->over.count; i++)
        if (ROW(checker->module, mod_over, row->over.first + i)->axis == axis)
            return true;
    return false;
}

static void report_undivided(struct checker *checker, const struct mod_cluster *cluster,
                             const struct mod_placement *row, node_id place, uint32_t axis)
{
    struct context *context = checker->context;
    const struct mod_axis *left = ROW(checker->module, mod_axis, axis);
    const char *name = ir_text(checker->module, left->name), *all = "";
    node_id first = node_of(checker, place)->slot[1], last = first;
    EACH_NODE(&checker->program->ast, id, first)
        last = id;
    struct span span = {place_of(checker, first).file, place_of(checker, first).begin, place_of(checker, last).end};
    for (uint32_t i = 0; i < cluster->axes.count; i++)
        all = context_printf(context, "%s%s%s", all, i ? ", " : "",
                             ir_text(checker->module, ROW(checker->module, mod_axis, cluster->axes.first + i)->name));
    struct diag *diag = diag_error(context, E0503, span, "experts are not divided over axis `%s`", name);
    diag_label(context, diag, "over %u of %u axes: each of the %lld positions of `%s` would hold all of them",
               row->over.count, cluster->axes.count, (long long)left->size, name);
    diag_help(context, diag, "name every axis; `replicate %s { copies: %lld };` beside it lets each `%s` hold all of them",
              source_text(checker, place_of(checker, node_of(checker, place)->slot[0])), (long long)left->size, name);
    diag_fix(context, diag, span, all);
}

/// Every expert has one owner, whatever copies there are, so that `over` must name each axis of more than one position.
static bool check_divided(struct checker *checker, const struct mod_cluster *cluster, const struct mod_placement *row,
                          node_id place)
{
    for (uint32_t i = 0; i < cluster->axes.count; i++) {
        uint32_t axis = cluster->axes.first + i;
        if (ROW(checker->module, mod_axis, axis)->size == 1 || is_over(checker, row, axis))
            continue;
        report_undivided(checker, cluster, row, place, axis);
        return false;
    }
    return true;
}

static bool read_balance(struct checker *checker, node_id place, struct mod_placement *row)
{
    static const char *const names[] = {"balance"};
    static const char *const words[] = {"even", "rate"};
    node_id record = node_of(checker, place)->slot[2];
    if (!record)
        return true;
    node_id fields = node_of(checker, record)->slot[0], field = find_attribute(checker, fields, "balance");
    bool fine = check_attributes(checker, fields, names, 1, "`place`");
    if (!field || !fine)
        return fine;
    int choice = choose(checker, "balance", node_of(checker, field)->slot[0], words, 2);
    row->balance = choice == 1 ? balance_rate : balance_even;
    return choice >= 0;
}

static bool read_spare(struct checker *checker, struct symbol item, node_id value, struct mod_placement *row)
{
    struct scope scope = {.file = item.file};
    struct constant spare;
    if (!value)
        return true;
    if (!evaluate_as(checker, &scope, "spare", value, CONSTANT_INTEGER, &spare) ||
        !expect_range(checker, "spare", value, spare.integer, 0, MAX_EXPERTS))
        return false;
    row->spare = spare.integer;
    return true;
}

static bool read_groups(struct checker *checker, const struct mod_cluster *cluster, node_id value,
                        struct mod_placement *row)
{
    struct path path;
    if (!value)
        return true;
    if (!path_of(checker, value, &path) || path.count != 1) {
        struct diag *diag = diag_error(checker->context, E0201, place_of(checker, value), "`groups` is not an axis");
        diag_label(checker->context, diag, "expected as in `groups = node;`");
        return false;
    }
    row->group_axis = find_axis(checker, cluster, place_of(checker, value), name_text(checker, path.name[0]));
    return row->group_axis != NONE;
}

static bool place_experts(struct checker *checker, struct symbol item, node_id place, const struct mod_cluster *cluster,
                          struct mod_placement *row)
{
    struct scope scope = {.file = item.file};
    struct constant experts;
    node_id members = node_of(checker, item.node)->slot[1], what = node_of(checker, place)->slot[0];
    node_id spare = find_attribute(checker, members, "spare"), groups = find_attribute(checker, members, "groups");
    spare = spare ? node_of(checker, spare)->slot[0] : 0;
    const char *name = source_text(checker, place_of(checker, what));
    bool fine = evaluate_as(checker, &scope, name, what, CONSTANT_INTEGER, &experts) &&
                expect_range(checker, name, what, experts.integer, 1, MAX_EXPERTS);
    fine = read_over(checker, cluster, place, row) && fine;
    fine = read_balance(checker, place, row) && fine;
    fine = read_spare(checker, item, spare, row) && fine;
    fine = read_groups(checker, cluster, groups ? node_of(checker, groups)->slot[0] : 0, row) && fine;
    fine = fine && read_copies(checker, item, place, experts.integer, row);
    if (!fine || !check_divided(checker, cluster, row, place))
        return false;
    if (row->balance == balance_equal && (experts.integer + row->spare) % cluster->ranks) {
        report_uneven(checker, cluster, place, experts.integer, row->spare, spare);
        return false;
    }
    return arrange_experts(checker, row, experts.integer, 1);
}

/// What is not the experts' dim has no parts that ranks could own: a shared expert is on every rank, in any number of blocks.
static void report_second(struct checker *checker, node_id again, node_id first)
{
    const char *what = source_text(checker, place_of(checker, node_of(checker, again)->slot[0])),
               *placed = source_text(checker, place_of(checker, node_of(checker, first)->slot[0]));
    if (!strcmp(what, placed)) {
        report_twice(checker, "the place of", what, statement_place(checker, again), statement_place(checker, first));
        return;
    }
    struct diag *diag = diag_error(checker->context, E0501, statement_place(checker, again),
                                   "`%s` cannot be divided beside `%s`", what, placed);
    diag_label(checker->context, diag, "one dim of experts is divided over ranks");
    diag_label_at(checker->context, diag, statement_place(checker, first), "this one");
    diag_help(checker->context, diag, "let every rank hold all of it");
    diag_fix(checker->context, diag, statement_place(checker, again), context_printf(checker->context, "replicate %s;", what));
}

static bool read_placement(struct checker *checker, struct symbol item, struct mod_placement *row)
{
    static const char *const names[] = {"groups", "spare"};
    const char *owner =
        context_printf(checker->context, "placement `%s`", name_text(checker, node_of(checker, item.node)->text));
    node_id members = node_of(checker, item.node)->slot[1], place = 0;
    struct symbol cluster;
    if (!resolve_item(checker, item.file, node_of(checker, item.node)->slot[0], NODE_CLUSTER, &cluster))
        return false;
    row->cluster = elaborate_cluster(checker, cluster);
    bool fine = check_attributes(checker, members, names, 2, owner);
    EACH_NODE(&checker->program->ast, id, members) {
        if (node_of(checker, id)->kind != NODE_PLACE)
            continue;
        if (place) {
            report_second(checker, id, place);
            return false;
        }
        place = id;
    }
    if (!place) {
        struct diag *diag =
            diag_error(checker->context, E0107, name_place(checker, item.node), "%s places nothing", owner);
        diag_label(checker->context, diag, "expected as in `place experts over rank;`");
        return false;
    }
    if (row->cluster == NONE)
        return false;
    struct mod_cluster cluster_row = *ROW(checker->module, mod_cluster, row->cluster);
    return place_experts(checker, item, place, &cluster_row, row) && fine;
}

uint32_t elaborate_placement(struct checker *checker, struct symbol item)
{
    uint32_t row;
    if (memo_find(checker, item.node, &row))
        return row;
    struct mod_placement placement = {.name = module_name(checker, node_of(checker, item.node)->text),
                                      .cluster = NONE,
                                      .group_axis = NONE,
                                      .file = item.file,
                                      .node = item.node};
    row = NONE;
    if (read_placement(checker, item, &placement)) {
        row = ADD(checker->module, mod_placement);
        *ROW(checker->module, mod_placement, row) = placement;
    }
    memo_set(checker, item.node, row);
    return row;
}
