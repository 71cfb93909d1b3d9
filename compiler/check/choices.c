// Which schedule of a pipeline runs for which token count: the first `use` whose condition holds. Conditions are evaluated
// at every count where one can change, and the result is kept as ranges that cover 0 to the bound.
#include "compiler/check/check.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 1 << 24, MOST_TRIED = 1 << 20 };

struct uses {
    struct checker *checker;
    struct symbol pipeline;
    node_id tokens_dim;
    int64_t bound;
    node_id *nodes; // the USE of each row
    struct mod_use *rows;
    uint32_t count, node_capacity, row_capacity;
    int64_t *changes; // token counts from which a condition may be another one
    uint32_t change_count, change_capacity;
};

/// The `<=` dim that a layer's rows are counted by.
static node_id find_tokens_dim(struct checker *checker, struct symbol layer)
{
    node_id param = node_of(checker, layer.node)->slot[0];
    node_id type = param ? node_of(checker, param)->slot[0] : 0;
    node_id rows = type ? node_of(checker, type)->slot[1] : 0;
    struct path path;
    if (!rows || !path_of(checker, rows, &path))
        return 0;
    struct symbol symbol = resolve(checker, layer.file, &path, NODE_DIM, true);
    return symbol.kind == SYMBOL_ITEM ? symbol.node : 0;
}

static bool is_tokens(struct uses *uses, node_id id)
{
    struct path path;
    if (!path_of(uses->checker, id, &path))
        return false;
    struct symbol symbol = resolve(uses->checker, uses->pipeline.file, &path, NODE_DIM, true);
    return symbol.kind == SYMBOL_ITEM && symbol.node == uses->tokens_dim;
}

static bool mentions_tokens(struct uses *uses, node_id id)
{
    const struct ast_node *node = node_of(uses->checker, id);
    if (node->kind == NODE_BINARY)
        return mentions_tokens(uses, node->slot[0]) || mentions_tokens(uses, node->slot[1]);
    if (node->kind == NODE_UNARY || node->kind == NODE_PAREN)
        return mentions_tokens(uses, node->slot[0]);
    return is_tokens(uses, id);
}

static void add_change(struct uses *uses, int64_t tokens)
{
    if (tokens < 0 || tokens > uses->bound)
        return;
    uses->changes = context_grow(uses->checker->context, uses->changes, &uses->change_capacity, uses->change_count + 1,
                                 sizeof *uses->changes);
    uses->changes[uses->change_count++] = tokens;
}

/// Collects where a condition can change, if it only compares the token count with constants.
static bool find_changes(struct uses *uses, node_id id)
{
    const struct ast_node *node = node_of(uses->checker, id);
    const char *op = name_text(uses->checker, node->text);
    if (!mentions_tokens(uses, id))
        return true;
    if (node->kind == NODE_PAREN || node->kind == NODE_UNARY)
        return find_changes(uses, node->slot[0]);
    if (node->kind != NODE_BINARY)
        return false;
    if (!strcmp(op, "and") || !strcmp(op, "or"))
        return find_changes(uses, node->slot[0]) && find_changes(uses, node->slot[1]);
    int side = is_tokens(uses, node->slot[0]) ? 0 : 1;
    struct scope scope = {.file = uses->pipeline.file};
    struct constant value;
    if (!strchr("<>=!", op[0]) || !is_tokens(uses, node->slot[side]) || mentions_tokens(uses, node->slot[!side]) ||
        !evaluate(uses->checker, &scope, node->slot[!side], &value))
        return false;
    double limit = value.kind == CONSTANT_INTEGER || value.kind == CONSTANT_FLOAT ? value.number : -2;
    if (limit > -2 && limit < (double)MOST_TOKENS + 2)
        for (int64_t near = -1; near <= 2; near++)
            add_change(uses, (int64_t)limit + near);
    return true;
}

static int by_value(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

/// False with an error queued: a condition would have to be tried at more counts than there is time for.
static bool collect_changes(struct uses *uses)
{
    node_id odd = 0;
    add_change(uses, 0);
    for (uint32_t i = 0; i < uses->count && !odd; i++) {
        node_id when = node_of(uses->checker, uses->nodes[i])->slot[2];
        odd = when && !find_changes(uses, when) ? when : 0;
    }
    if (odd && uses->bound > MOST_TRIED) {
        struct diag *diag = diag_error(uses->checker->context, E0206, place_of(uses->checker, odd),
                                       "this condition would be tried at each of %lld counts", (long long)uses->bound);
        diag_label(uses->checker->context, diag, "at most %d can be", MOST_TRIED);
        diag_help(uses->checker->context, diag, "compare `tokens` itself with constants, as in `tokens >= 64`");
        return false;
    }
    if (odd) {
        uses->change_count = 0;
        for (int64_t tokens = 0; tokens <= uses->bound; tokens++)
            add_change(uses, tokens);
    }
    qsort(uses->changes, uses->change_count, sizeof *uses->changes, by_value);
    return true;
}

/// The first use that holds; count when none does; NONE when a condition is wrong.
static uint32_t first_use(struct uses *uses, int64_t tokens)
{
    struct scope scope = {.file = uses->pipeline.file, .tokens_dim = uses->tokens_dim, .tokens = tokens};
    for (uint32_t i = 0; i < uses->count; i++) {
        node_id when = node_of(uses->checker, uses->nodes[i])->slot[2];
        struct constant value = {.integer = 1};
        if (when && !evaluate_as(uses->checker, &scope, "when", when, CONSTANT_BOOL, &value))
            return NONE;
        if (value.integer)
            return i;
    }
    return uses->count;
}

static void report_uncovered(struct uses *uses, int64_t first, int64_t last)
{
    struct checker *checker = uses->checker;
    const char *range = first == last
                            ? context_printf(checker->context, "%lld", (long long)first)
                            : context_printf(checker->context, "%lld to %lld", (long long)first, (long long)last);
    struct diag *diag = diag_error(checker->context, E0312, name_place(checker, uses->pipeline.node),
                                   "no schedule of pipeline `%s` covers %s tokens",
                                   name_text(checker, node_of(checker, uses->pipeline.node)->text), range);
    diag_label(checker->context, diag, "every count from 0 to %lld needs one", (long long)uses->bound);
    if (uses->count)
        diag_label_at(checker->context, diag, statement_place(checker, uses->nodes[uses->count - 1]),
                      "the last one tried");
    diag_help(checker->context, diag, "end with a `use` without a condition, such as `use serial;`");
}

static bool make_choices(struct uses *uses, struct mod_pipeline *row)
{
    struct ir *module = uses->checker->module;
    uint32_t before = COUNT(module, mod_choice);
    if (!collect_changes(uses))
        return false;
    for (uint32_t i = 0; i < uses->change_count; i++) {
        int64_t first = uses->changes[i];
        int64_t last = i + 1 < uses->change_count ? uses->changes[i + 1] - 1 : uses->bound;
        if (last < first)
            continue; // the same count twice
        uint32_t use = first_use(uses, first);
        if (use == NONE)
            return false;
        if (use == uses->count) {
            while (i + 1 < uses->change_count && first_use(uses, uses->changes[i + 1]) == uses->count) {
                i++;
                last = i + 1 < uses->change_count ? uses->changes[i + 1] - 1 : uses->bound;
            }
            report_uncovered(uses, first, last);
            return false;
        }
        uint32_t count = COUNT(module, mod_choice);
        struct mod_choice *previous = count > before ? ROW(module, mod_choice, count - 1) : NULL;
        if (previous && previous->use == row->uses.first + use) {
            previous->last_tokens = last;
            continue;
        }
        uint32_t choice = ADD(module, mod_choice);
        *ROW(module, mod_choice, choice) =
            (struct mod_choice){.first_tokens = first, .last_tokens = last, .use = row->uses.first + use};
    }
    row->choices = (struct rows){before, COUNT(module, mod_choice) - before};
    return true;
}

static bool add_use(struct uses *uses, uint32_t file, node_id use, struct symbol layer)
{
    struct checker *checker = uses->checker;
    struct mod_use row = {0};
    bool fine = read_use(checker, file, use, layer, &row);
    uses->nodes =
        context_grow(checker->context, uses->nodes, &uses->node_capacity, uses->count + 1, sizeof *uses->nodes);
    uses->rows = context_grow(checker->context, uses->rows, &uses->row_capacity, uses->count + 1, sizeof *uses->rows);
    uses->nodes[uses->count] = use;
    uses->rows[uses->count++] = row;
    return fine;
}

/// The first use without a condition is the last that can be chosen.
static void warn_unreachable(struct uses *uses)
{
    struct checker *checker = uses->checker;
    for (uint32_t i = 0; i + 1 < uses->count; i++) {
        if (node_of(checker, uses->nodes[i])->slot[2])
            continue;
        struct diag *diag = diag_warning(checker->context, E0309, statement_place(checker, uses->nodes[i + 1]),
                                         "this `use` is never reached");
        diag_label(checker->context, diag, "the first that holds is taken...");
        diag_label_at(checker->context, diag, statement_place(checker, uses->nodes[i]), "...and this one always holds");
        diag_help(checker->context, diag, "put it before the one without a condition, with a `when`");
        return;
    }
}

bool read_uses(struct checker *checker, struct symbol pipeline, struct symbol layer, struct mod_pipeline *row)
{
    struct uses uses = {.checker = checker, .pipeline = pipeline, .tokens_dim = find_tokens_dim(checker, layer)};
    struct ir *module = checker->module;
    bool fine = true;
    EACH_NODE(&checker->program->ast, id, node_of(checker, pipeline.node)->slot[0])
        if (node_of(checker, id)->kind == NODE_USE && !checker->override_use)
            fine = add_use(&uses, pipeline.file, id, layer) && fine;
    if (checker->override_use)
        fine = add_use(&uses, pipeline.file, checker->override_use, layer);
    if (!uses.count) {
        struct diag *diag =
            diag_error(checker->context, E0107, name_place(checker, pipeline.node), "pipeline `%s` uses no schedule",
                       name_text(checker, node_of(checker, pipeline.node)->text));
        diag_label(checker->context, diag, "expected as in `use serial;`");
        return false;
    }
    if (!fine || row->layer == NONE)
        return false;
    warn_unreachable(&uses);
    row->uses = (struct rows){COUNT(module, mod_use), uses.count};
    for (uint32_t i = 0; i < uses.count; i++) {
        uint32_t use = ADD(module, mod_use);
        *ROW(module, mod_use, use) = uses.rows[i];
    }
    uses.bound = ROW(module, mod_layer, row->layer)->tokens_bound;
    if (uses.bound > MOST_TOKENS) {
        node_id value = node_of(checker, uses.tokens_dim)->slot[0];
        expect_range(checker, name_text(checker, node_of(checker, uses.tokens_dim)->text), value, uses.bound, 1,
                     MOST_TOKENS);
        return false;
    }
    return make_choices(&uses, row);
}
