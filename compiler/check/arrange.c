// Arranging experts: how many each rank owns, and which. Experts are dealt in ascending runs over the ranks in the order
// of the placement's axes; with routing groups, whole groups over the positions of an axis first.
#include "compiler/check/check.h"

#include <stdlib.h>

struct remainder {
    int64_t billionths;
    uint32_t number;
};

static int largest_first(const void *a, const void *b)
{
    const struct remainder *x = a, *y = b;
    if (x->billionths != y->billionths)
        return x->billionths > y->billionths ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

void share_out(struct context *context, const double *weights, uint32_t count, int64_t total, int64_t *shares)
{
    struct remainder *rests = context_alloc(context, (count + 1) * sizeof *rests);
    double sum = 0;
    int64_t left = total;
    for (uint32_t i = 0; i < count; i++)
        sum += weights[i];
    for (uint32_t i = 0; i < count; i++) {
        double quota = (double)total * weights[i] / sum;
        shares[i] = (int64_t)(quota + 1e-9); // what should be whole may lie a last bit below
        rests[i] = (struct remainder){(int64_t)((quota - (double)shares[i] + 1) * 1e9 + 0.5), i};
        left -= shares[i];
    }
    qsort(rests, count, sizeof *rests, largest_first);
    for (uint32_t i = 0; i < count && left > 0; i++, left--)
        shares[rests[i].number]++;
}

struct arrangement {
    struct checker *checker;
    const struct mod_placement *placement;
    struct mod_cluster cluster;
    uint32_t ranks;
    uint32_t *order;        // ranks as experts are dealt
    double *weights;        // by rank
    int64_t *first, *owned; // by rank
};

/// Ranks in the order of the listed axes, the first of them the slowest.
static void order_ranks(struct arrangement *a)
{
    const struct ir *module = a->checker->module;
    struct rows over = a->placement->over;
    for (uint32_t i = 0; i < a->ranks; i++) {
        int64_t rest = i, rank = 0;
        for (uint32_t j = over.count; j-- > 0;) {
            const struct mod_axis *axis = ROW(module, mod_axis, ROW(module, mod_over, over.first + j)->axis);
            rank += rest % axis->size * axis->stride;
            rest /= axis->size;
        }
        a->order[i] = (uint32_t)rank;
    }
}

static bool weigh_ranks(struct arrangement *a)
{
    struct checker *checker = a->checker;
    for (uint32_t r = 0; r < a->ranks; r++) {
        const struct mod_device *device = cluster_device(checker->module, &a->cluster, r);
        a->weights[r] = a->placement->balance == balance_rate ? device_rate(device) : 1;
        if (a->weights[r] > 0)
            continue;
        node_id place = 0;
        EACH_NODE(&checker->program->ast, id, node_of(checker, a->placement->node)->slot[1])
            place = node_of(checker, id)->kind == NODE_PLACE ? id : place;
        struct diag *diag = diag_error(checker->context, E0107, statement_place(checker, place),
                                       "device `%s` gives no `peak`, which `balance: rate` shares by",
                                       ir_text(checker->module, device->name));
        diag_label(checker->context, diag, "how many experts for %s?", rank_position(checker, &a->cluster, r));
        diag_label_at(checker->context, diag, name_place(checker, device->node), "defined here");
        return false;
    }
    return true;
}

/// Deals a run of experts over some ranks, `count` of them at `ranks`.
static void deal(struct arrangement *a, const uint32_t *ranks, uint32_t count, int64_t first, int64_t experts)
{
    double *weights = context_alloc(a->checker->context, (count + 1) * sizeof *weights);
    int64_t *shares = context_alloc(a->checker->context, (count + 1) * sizeof *shares);
    for (uint32_t i = 0; i < count; i++)
        weights[i] = a->weights[ranks[i]];
    share_out(a->checker->context, weights, count, experts, shares);
    for (uint32_t i = 0; i < count; i++) {
        a->first[ranks[i]] = first;
        a->owned[ranks[i]] = shares[i];
        first += shares[i];
    }
}

/// Whole groups over the units (positions of the group axis, those of outer axes apart), then each unit's over its ranks.
static void deal_groups(struct arrangement *a, int64_t experts, int64_t groups)
{
    struct context *context = a->checker->context;
    uint32_t size = (uint32_t)ROW(a->checker->module, mod_axis, a->placement->group_axis)->stride;
    uint32_t units = a->ranks / size, seen = 0;
    uint32_t *members = context_alloc(context, (a->ranks + 1) * sizeof *members);
    uint32_t *filled = context_alloc(context, (units + 1) * sizeof *filled),
             *place = context_alloc(context, (units + 1) * sizeof *place);
    double *weights = context_alloc(context, (units + 1) * sizeof *weights);
    int64_t *shares = context_alloc(context, (units + 1) * sizeof *shares), next = 0;
    for (uint32_t i = 0; i < a->ranks; i++) {
        uint32_t unit = a->order[i] / size;
        if (!filled[unit])
            place[unit] = seen++;
        members[place[unit] * size + filled[unit]++] = a->order[i];
        weights[place[unit]] += a->weights[a->order[i]];
    }
    share_out(context, weights, units, groups, shares);
    for (uint32_t u = 0; u < units; u++) {
        int64_t here = shares[u] * (experts / groups);
        deal(a, members + u * size, size, next, here);
        next += here;
    }
}

bool arrange_experts(struct checker *checker, struct mod_placement *placement, int64_t experts, int64_t groups)
{
    struct arrangement a = {
        .checker = checker, .placement = placement, .cluster = *ROW(checker->module, mod_cluster, placement->cluster)};
    a.ranks = (uint32_t)a.cluster.ranks;
    a.order = context_alloc(checker->context, a.ranks * sizeof *a.order);
    a.weights = context_alloc(checker->context, a.ranks * sizeof *a.weights);
    a.first = context_alloc(checker->context, a.ranks * sizeof *a.first);
    a.owned = context_alloc(checker->context, a.ranks * sizeof *a.owned);
    order_ranks(&a);
    if (!weigh_ranks(&a))
        return false;
    if (groups > 1 && placement->group_axis != NONE)
        deal_groups(&a, experts, groups);
    else
        deal(&a, a.order, a.ranks, 0, experts);
    int64_t slots = placement->balance == balance_equal ? (experts + placement->spare) / a.ranks : experts;
    struct mod_owner *owners = context_alloc(checker->context, (size_t)(experts + 1) * sizeof *owners);
    for (uint32_t rank = 0; rank < a.ranks; rank++) {
        if (a.owned[rank] > slots)
            return false;
        for (int64_t place = 0; place < a.owned[rank]; place++) {
            int64_t expert = a.first[rank] + place;
            owners[expert] = (struct mod_owner){(uint32_t)expert, rank, 0, rank, (uint32_t)place};
        }
    }
    return add_owners(checker, placement, owners, experts, a.owned);
}

/// With equal slots the fullest position of the axis needs more than it has.
static void report_groups(struct checker *checker, const struct mod_placement *placement, int64_t groups)
{
    struct context *context = checker->context;
    const struct mod_axis *axis = ROW(checker->module, mod_axis, placement->group_axis);
    const char *name = ir_text(checker->module, axis->name);
    int64_t ranks = ROW(checker->module, mod_cluster, placement->cluster)->ranks, units = ranks / axis->stride;
    int64_t experts = placement->experts, size = experts / groups, most = (groups + units - 1) / units;
    int64_t slots = (experts + placement->spare) / ranks, needed = (most * size + axis->stride - 1) / axis->stride;
    node_id members = node_of(checker, placement->node)->slot[1];
    struct diag *diag = diag_error(context, E0504, statement_place(checker, find_attribute(checker, members, "groups")),
                                   "%lld routing groups of %lld experts do not fit into %lld positions of `%s`",
                                   (long long)groups, (long long)size, (long long)units, name);
    diag_label(context, diag, "some hold %lld group%s, %lld experts, but a `%s` has %lld slots", (long long)most,
               most == 1 ? "" : "s", (long long)(most * size), name, (long long)(slots * axis->stride));
    diag_help(context, diag, "`spare = %lld` gives every rank %lld slots, or `balance: even` lets them differ",
              (long long)(needed * ranks - experts), (long long)needed);
}

uint32_t placement_for_groups(struct checker *checker, uint32_t row, int64_t groups)
{
    struct mod_placement placement = *ROW(checker->module, mod_placement, row);
    int64_t experts = placement.experts;
    if (placement.group_axis == NONE || groups <= 1 || experts % groups)
        return row;
    uint32_t before = checker->context->error_count;
    if (!arrange_experts(checker, &placement, experts, groups)) {
        if (checker->context->error_count == before)
            report_groups(checker, &placement, groups);
        return NONE;
    }
    uint32_t added = ADD(checker->module, mod_placement);
    *ROW(checker->module, mod_placement, added) = placement;
    return added;
}
