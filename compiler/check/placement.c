// Placements: which rank owns which experts. Experts go to ranks in contiguous blocks, the first ranks one more where
// `balance: even` allows unequal counts.
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

static void report_uneven(struct checker *checker, const struct mod_cluster *cluster, node_id place, int64_t experts)
{
    struct context *context = checker->context;
    int64_t ranks = cluster->ranks, share = (experts + ranks - 1) / ranks, spare = share * ranks - experts;
    const char *many = rank_word(checker, cluster, ranks), *one = rank_word(checker, cluster, 1);
    struct span span = statement_place(checker, place);
    struct diag *diag = diag_error(context, E0502, span, "%lld experts do not divide over %lld %s", (long long)experts,
                                   (long long)ranks, many);
    diag_label(context, diag, "%.2f experts per %s", (double)experts / (double)ranks, one);
    EACH_NODE(&checker->program->ast, id, node_of(checker, cluster->node)->slot[0]) {
        if (node_of(checker, id)->kind != NODE_AXIS)
            continue;
        struct span axis = name_place(checker, id);
        axis.end = statement_place(checker, id).end;
        const char *product = axes_product(checker, cluster);
        bool resized = place_of(checker, node_of(checker, id)->slot[0]).file != axis.file;
        if (cluster->axes.count > 1)
            diag_label_at(context, diag, axis, "%s = %lld %s", product, (long long)ranks, many);
        else
            diag_label_at(context, diag, axis, "%s %s%s", product, many, resized ? ", by `--ranks`" : "");
        break;
    }
    diag_note(context, diag, "without `balance: even` every %s holds equally many expert slots", one);
    diag_help(context, diag, "%lld spare slot%s for hot experts make%s it %lld = %lld x %lld", (long long)spare,
              spare == 1 ? "" : "s", spare == 1 ? "s" : "", (long long)(experts + spare), (long long)ranks,
              (long long)share);
    const struct source_file *file = &context->files[span.file];
    uint32_t end = span.end;
    while (end < file->size && file->text[end] != ';')
        end++;
    diag_fix(context, diag, (struct span){span.file, end + 1, end + 1},
             context_printf(context, " spare = %lld;", (long long)spare));
}

/// `over` must name every axis of the cluster.
static bool check_axes(struct checker *checker, const struct mod_cluster *cluster, node_id place)
{
    uint32_t named = 0;
    bool fine = true;
    struct names candidates = {0};
    for (uint32_t i = 0; i < cluster->axes.count; i++) {
        str_id name = ROW(checker->module, mod_axis, cluster->axes.first + i)->name;
        names_add(checker, &candidates, context_printf(checker->context, "%s", ir_text(checker->module, name)));
    }
    node_id axes = node_of(checker, place)->slot[1];
    EACH_NODE(&checker->program->ast, id, axes) {
        const char *name = name_text(checker, node_of(checker, id)->text);
        bool known = false;
        for (uint32_t i = 0; i < candidates.count && !known; i++)
            known = !strcmp(candidates.items[i], name);
        if (!known)
            report_unknown(checker, "axis", name, place_of(checker, id), &candidates);
        EACH_NODE(&checker->program->ast, before, axes) {
            if (before == id)
                break;
            if (node_of(checker, before)->text != node_of(checker, id)->text)
                continue;
            report_twice(checker, "axis", name, place_of(checker, id), place_of(checker, before));
            fine = false;
        }
        fine = fine && known;
        named++;
    }
    if (fine && named < cluster->axes.count) {
        report_unbuilt(checker, statement_place(checker, place),
                       "placing experts over some axes of a cluster is not built yet");
        return false;
    }
    return fine;
}

static bool read_balance(struct checker *checker, node_id place, bool *even)
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
    if (choice == 1)
        report_unbuilt(checker, place_of(checker, field), "`balance: rate` is not built yet");
    *even = choice == 0;
    return choice == 0;
}

static bool place_experts(struct checker *checker, struct symbol item, node_id place, const struct mod_cluster *cluster,
                          struct mod_placement *row)
{
    struct scope scope = {.file = item.file};
    struct constant experts;
    bool even = false;
    node_id what = node_of(checker, place)->slot[0];
    const char *name = source_text(checker, place_of(checker, what));
    bool fine = evaluate_as(checker, &scope, name, what, CONSTANT_INTEGER, &experts) &&
                expect_range(checker, name, what, experts.integer, 1, MAX_EXPERTS);
    fine = check_axes(checker, cluster, place) && fine;
    fine = read_balance(checker, place, &even) && fine;
    if (!fine)
        return false;
    if (!even && experts.integer % cluster->ranks) {
        report_uneven(checker, cluster, place, experts.integer);
        return false;
    }
    uint32_t expert = 0;
    row->owners.first = COUNT(checker->module, mod_owner);
    row->owners.count = (uint32_t)experts.integer;
    for (int64_t rank = 0; rank < cluster->ranks; rank++) {
        int64_t share = experts.integer / cluster->ranks + (rank < experts.integer % cluster->ranks);
        for (uint32_t local = 0; local < share; local++) {
            uint32_t owner = ADD(checker->module, mod_owner);
            *ROW(checker->module, mod_owner, owner) =
                (struct mod_owner){.expert = expert++, .rank = (uint32_t)rank, .local = local};
        }
    }
    return true;
}

static bool refuse_features(struct checker *checker, node_id members)
{
    bool fine = true;
    EACH_NODE(&checker->program->ast, id, members) {
        const struct ast_node *node = node_of(checker, id);
        const char *what = NULL;
        if (node->kind == NODE_REPLICATE)
            what = "`replicate` is not built yet";
        else if (node->kind == NODE_ATTR && !strcmp(name_text(checker, node->text), "groups"))
            what = "`groups` in a placement is not built yet";
        else if (node->kind == NODE_ATTR && !strcmp(name_text(checker, node->text), "spare"))
            what = "`spare` slots are not built yet";
        if (what)
            report_unbuilt(checker, statement_place(checker, id), what);
        fine = fine && !what;
    }
    return fine;
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
    fine = refuse_features(checker, members) && fine;
    EACH_NODE(&checker->program->ast, id, members) {
        if (node_of(checker, id)->kind != NODE_PLACE)
            continue;
        if (place) {
            report_twice(checker, "the place of",
                         source_text(checker, place_of(checker, node_of(checker, id)->slot[0])),
                         statement_place(checker, id), statement_place(checker, place));
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
