// Copies of experts: what `replicate` in a placement says, and which ranks hold them. A copy has the weights of its expert
// and computes some of its rows; which ones is decided by who sends them (runtime/exec/routes.c).
#include "compiler/check/check.h"

#include <stdlib.h>
#include <string.h>

static bool read_only(struct checker *checker, const struct scope *scope, node_id value, int64_t experts,
                      struct mod_copy *copy)
{
    const struct ast_node *list = node_of(checker, value);
    copy->only.first = COUNT(checker->module, mod_copied);
    if (list->kind != NODE_LIST || !list->slot[0]) {
        struct diag *diag = diag_error(checker->context, E0201, list->span, "`only` is not a list of experts");
        diag_label(checker->context, diag, "expected as in `[0, 5]`");
        return false;
    }
    EACH_NODE(&checker->program->ast, id, list->slot[0]) {
        struct constant number;
        if (!evaluate_as(checker, scope, "only", id, CONSTANT_INTEGER, &number) ||
            !expect_range(checker, "only", id, number.integer, 0, experts - 1))
            return false;
        uint32_t row = ADD(checker->module, mod_copied);
        ROW(checker->module, mod_copied, row)->expert = (uint32_t)number.integer;
        copy->only.count++;
    }
    return true;
}

/// `{ copies: 2, only: [3, 17] }`
static bool read_extent(struct checker *checker, uint32_t file, node_id record, int64_t ranks, int64_t experts,
                        struct mod_copy *copy)
{
    static const char *const names[] = {"copies", "only"};
    struct scope scope = {.file = file};
    struct constant count;
    node_id fields = record ? node_of(checker, record)->slot[0] : 0;
    if (!check_attributes(checker, fields, names, copy->experts ? 2 : 0, "`replicate`"))
        return false;
    node_id copies = find_attribute(checker, fields, "copies"), only = find_attribute(checker, fields, "only");
    if (copies) {
        node_id value = node_of(checker, copies)->slot[0];
        if (!evaluate_as(checker, &scope, "copies", value, CONSTANT_INTEGER, &count))
            return false;
        if (count.integer < 1 || count.integer > ranks) {
            struct diag *diag = diag_error(checker->context, E0505, place_of(checker, value),
                                           "%lld copies of an expert on %s", (long long)count.integer,
                                           counted(checker->context, ranks, "rank"));
            diag_label(checker->context, diag, "from 1, the expert itself, to %lld", (long long)ranks);
            diag_note(checker->context, diag, "a rank holds an expert once; `copies` counts all ranks that do");
            return false;
        }
        copy->ranks = count.integer;
    }
    return !only || read_only(checker, &scope, node_of(checker, only)->slot[0], experts, copy);
}

bool read_copies(struct checker *checker, struct symbol item, node_id place, int64_t experts, struct mod_placement *row)
{
    bool fine = true;
    const char *shared = source_text(checker, place_of(checker, node_of(checker, place)->slot[0]));
    int64_t ranks = ROW(checker->module, mod_cluster, row->cluster)->ranks;
    row->copies.first = COUNT(checker->module, mod_copy);
    EACH_NODE(&checker->program->ast, id, node_of(checker, item.node)->slot[1]) {
        const struct ast_node *node = node_of(checker, id);
        if (node->kind != NODE_REPLICATE)
            continue;
        const char *name = source_text(checker, place_of(checker, node->slot[0]));
        struct mod_copy copy = {.experts = !strcmp(name, shared), .node = id};
        fine = read_extent(checker, item.file, node->slot[1], ranks, experts, &copy) && fine;
        copy.name = ir_str(checker->module, name);
        uint32_t added = ADD(checker->module, mod_copy);
        *ROW(checker->module, mod_copy, added) = copy;
        row->copies.count++;
    }
    return fine;
}

bool check_copied_stages(struct checker *checker, const struct mod_placement *placement, const struct mod_layer *layer)
{
    bool fine = true;
    struct context *context = checker->context;
    for (uint32_t i = 0; i < placement->copies.count; i++) {
        const struct mod_copy *copy = ROW(checker->module, mod_copy, placement->copies.first + i);
        for (uint32_t s = 0; s < layer->stages.count; s++) {
            const struct mod_stage *stage = ROW(checker->module, mod_stage, layer->stages.first + s);
            const struct mod_arg *rows = stage->args.count ? ROW(checker->module, mod_arg, stage->args.first) : NULL;
            if (copy->experts || !rows || rows->value == NONE ||
                ROW(checker->module, mod_value, rows->value)->kind != value_kind_routed ||
                strcmp(ir_text(checker->module, stage->name), ir_text(checker->module, copy->name)) != 0)
                continue;
            struct span what = place_of(checker, node_of(checker, copy->node)->slot[0]);
            node_id place = 0;
            EACH_NODE(&checker->program->ast, id, node_of(checker, placement->node)->slot[1])
                place = node_of(checker, id)->kind == NODE_PLACE ? id : place;
            const char *experts = source_text(checker, place_of(checker, node_of(checker, place)->slot[0]));
            struct diag *diag = diag_error(context, E0505, what, "stage `%s` runs where its experts are",
                                           ir_text(checker->module, stage->name));
            diag_label(context, diag, "its rows are routed");
            diag_help(context, diag, "copies are of experts: the name behind `place`");
            diag_fix(context, diag, what, experts);
            fine = false;
        }
    }
    return fine;
}

// ------------------------------------------------------------------------------------------------------- which ranks

struct held {
    struct mod_owner owner;
    int64_t of_home; // experts that its home owns
};

struct holding {
    struct checker *checker;
    const struct mod_placement *placement;
    int64_t experts, ranks, slots; // slots: of a rank
    int64_t left;                  // copies for which there is room
    int64_t *used;                 // by rank
    const int64_t *own;            // by rank: experts that it owns
    uint8_t *holds;                // bit by rank, expert
    node_id *copied_by;            // by expert: the statement that copies it
    struct held *rows;
    uint32_t count, capacity;
};

static bool is_held(const struct holding *h, int64_t rank, int64_t expert)
{
    int64_t bit = rank * h->experts + expert;
    return h->holds[bit / 8] >> bit % 8 & 1;
}

static void hold(struct holding *h, struct mod_owner owner)
{
    int64_t bit = owner.rank * h->experts + owner.expert;
    h->holds[bit / 8] = (uint8_t)(h->holds[bit / 8] | 1u << bit % 8);
    h->used[owner.rank]++;
    h->rows = context_grow(h->checker->context, h->rows, &h->capacity, h->count + 1, sizeof *h->rows);
    h->rows[h->count++] = (struct held){owner, h->own[owner.home]};
}

/// Copies that all statements ask for.
static int64_t copies_wanted(const struct holding *h)
{
    int64_t sum = 0;
    for (uint32_t i = 0; i < h->placement->copies.count; i++) {
        const struct mod_copy *copy = ROW(h->checker->module, mod_copy, h->placement->copies.first + i);
        if (copy->experts)
            sum += ((copy->ranks ? copy->ranks : h->ranks) - 1) * (copy->only.count ? copy->only.count : h->experts);
    }
    return sum;
}

static void report_full(struct holding *h, const struct mod_copy *copy, int64_t expert)
{
    struct context *context = h->checker->context;
    node_id spare = find_attribute(h->checker, node_of(h->checker, h->placement->node)->slot[1], "spare");
    int64_t all = h->experts + copies_wanted(h), slots = (all + h->ranks - 1) / h->ranks * h->ranks - h->experts;
    if (slots <= h->placement->spare) // as many as there are, where they cannot be
        slots = h->placement->spare + h->ranks;
    struct span place = statement_place(h->checker, copy->node);
    struct diag *diag = diag_error(context, E0505, place, "no slot is left for a copy of expert %lld", (long long)expert);
    diag_label(context, diag, "%lld copies in all", (long long)copies_wanted(h));
    diag_label_at(context, diag, statement_place(h->checker, spare), "room for %lld", (long long)h->placement->spare);
    diag_help(context, diag, "give each of them a slot, or leave `spare` out: ranks then hold what they are to hold");
    diag_fix(context, diag, place_of(h->checker, node_of(h->checker, spare)->slot[0]),
             context_printf(context, "%lld", (long long)slots));
}

/// An expert's copies lie evenly between the ranks, counted from its owner: as many steps of the outermost axis apart as
/// there are, where that can be. A rank without a free slot leaves it to the next.
static bool copy_expert(struct holding *h, const struct mod_copy *copy, int64_t expert, const struct mod_owner *owner)
{
    int64_t copies = copy->ranks ? copy->ranks : h->ranks;
    for (int64_t i = 1; i < copies; i++) {
        int64_t rank = (owner->rank + i * h->ranks / copies) % h->ranks, tried = 0;
        while (tried < h->ranks && (h->used[rank] >= h->slots || is_held(h, rank, expert))) {
            rank = (rank + 1) % h->ranks;
            tried++;
        }
        if (tried == h->ranks || h->left-- == 0) {
            report_full(h, copy, expert);
            return false;
        }
        hold(h, (struct mod_owner){(uint32_t)expert, (uint32_t)rank, 0, owner->rank, owner->place});
    }
    return true;
}

/// One statement's copies. An expert is in one statement, once.
static bool add_copies(struct holding *h, const struct mod_copy *copy, const struct mod_owner *owners)
{
    struct context *context = h->checker->context;
    int64_t count = copy->only.count ? copy->only.count : h->experts;
    for (int64_t i = 0; i < count; i++) {
        int64_t expert =
            copy->only.count ? ROW(h->checker->module, mod_copied, copy->only.first + (uint32_t)i)->expert : i;
        if (h->copied_by[expert]) {
            struct diag *diag = diag_error(context, E0505, statement_place(h->checker, copy->node),
                                           "expert %lld is copied twice", (long long)expert);
            bool same = h->copied_by[expert] == copy->node;
            diag_label(context, diag, same ? "it is listed twice" : "a second time here");
            if (!same)
                diag_label_at(context, diag, statement_place(h->checker, h->copied_by[expert]), "first here");
            diag_help(context, diag, "`copies` says how many ranks hold it, its owner among them");
            return false;
        }
        h->copied_by[expert] = copy->node;
        if (!copy_expert(h, copy, expert, &owners[expert]))
            return false;
    }
    return true;
}

/// The order of waves (runtime/plan/slots.h), rank by rank.
static int by_place(const void *a, const void *b)
{
    const struct held *x = a, *y = b;
    if (x->owner.rank != y->owner.rank)
        return x->owner.rank < y->owner.rank ? -1 : 1;
    int64_t first = ((int64_t)x->owner.place + 1) * y->of_home, second = ((int64_t)y->owner.place + 1) * x->of_home;
    if (first != second)
        return first < second ? -1 : 1;
    return x->owner.home < y->owner.home ? -1 : x->owner.home > y->owner.home;
}

bool add_owners(struct checker *checker, struct mod_placement *placement, const struct mod_owner *owners,
                int64_t experts, const int64_t *own)
{
    struct context *context = checker->context;
    struct holding h = {.checker = checker, .placement = placement, .experts = experts, .own = own};
    h.ranks = ROW(checker->module, mod_cluster, placement->cluster)->ranks;
    bool limited = placement->spare > 0;
    h.slots = limited && placement->balance == balance_equal ? (experts + placement->spare) / h.ranks : experts;
    h.left = limited ? placement->spare : h.ranks * experts;
    h.used = context_alloc(context, (size_t)(h.ranks + 1) * sizeof *h.used);
    h.holds = context_alloc(context, (size_t)(h.ranks * experts / 8 + 1));
    h.copied_by = context_alloc(context, (size_t)(experts + 1) * sizeof *h.copied_by);
    for (int64_t e = 0; e < experts; e++)
        hold(&h, owners[e]);
    for (uint32_t i = 0; i < placement->copies.count; i++) {
        const struct mod_copy *copy = ROW(checker->module, mod_copy, placement->copies.first + i);
        if (copy->experts && !add_copies(&h, copy, owners))
            return false;
    }
    qsort(h.rows, h.count, sizeof *h.rows, by_place);
    placement->experts = experts;
    placement->owners = (struct rows){COUNT(checker->module, mod_owner), h.count};
    for (uint32_t i = 0; i < h.count; i++) {
        bool same = i && h.rows[i - 1].owner.rank == h.rows[i].owner.rank;
        h.rows[i].owner.local = same ? h.rows[i - 1].owner.local + 1 : 0;
        uint32_t row = ADD(checker->module, mod_owner);
        *ROW(checker->module, mod_owner, row) = h.rows[i].owner;
    }
    return true;
}

void copy_shares(const struct ir *module, const struct mod_placement *placement, int64_t source, struct nearest *near,
                 double *shares)
{
    const struct mod_cluster *cluster = ROW(module, mod_cluster, placement->cluster);
    const struct mod_owner *owners = ROW(module, mod_owner, placement->owners.first);
    for (int64_t e = 0; e < placement->experts; e++)
        near[e] = (struct nearest){0, 0};
    for (uint32_t i = 0; i < placement->owners.count; i++) { // the axis's row: a nearer one's is larger, NONE the largest
        struct nearest *n = &near[owners[i].expert];
        uint32_t axis = cluster_axis_between(module, cluster, source, owners[i].rank);
        if (axis > n->axis || !n->count)
            *n = (struct nearest){axis, 0};
        n->count += axis == n->axis;
    }
    for (uint32_t i = 0; i < placement->owners.count; i++) {
        const struct nearest *n = &near[owners[i].expert];
        bool nearest = cluster_axis_between(module, cluster, source, owners[i].rank) == n->axis;
        shares[i] = nearest ? 1.0 / n->count : 0;
    }
}
