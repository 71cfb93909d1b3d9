// Runs the statements of a schedule once, for given knobs: loops unroll, conditions choose, and what is left are
// instances in issue order and the relations between them.
#include <string.h>

#include "compiler/schedule/elaborate.h"

enum { ITEMS_MAX = 200000 };

static struct span span_of(const struct elaboration *e, node_id id)
{
    return ast_node_of(e, id)->span;
}

static bool too_many(struct elaboration *e, node_id id)
{
    if (e->item_count < ITEMS_MAX)
        return false;
    elaboration_error(e, E0206, span_of(e, id), "the schedule issues more than %d instances", ITEMS_MAX);
    return true;
}

/// Where a stage's indices come from, in the order of the splits.
struct axis {
    node_id split;
    int64_t count;
    bool wave;
};

static uint32_t axes_of(const struct elaboration *e, uint32_t stage, struct axis axes[2])
{
    struct axis tokens = {e->split, e->parts, false}, experts = {e->wave_split, e->waves, true};
    bool waves = e->wave_split && e->stages[stage].routed;
    uint32_t count = 0;
    if (waves && e->waves_first)
        axes[count++] = experts;
    if (e->split)
        axes[count++] = tokens;
    if (waves && !e->waves_first)
        axes[count++] = experts;
    return count;
}

static bool wrong_indices(struct elaboration *e, const struct ast_node *instance, uint32_t stage, const char *text,
                          uint32_t wanted)
{
    if (wanted) {
        struct diag *diag = elaboration_error(e, E0307, instance->span, "`%s` needs %s", text,
                                              wanted == 1 ? "one index" : "two indices");
        label_splits(e, diag, stage);
        return false;
    }
    const char *why = e->wave_split ? "it handles no routed rows, so waves of experts do not split it"
                                    : "nothing is split";
    struct diag *diag = elaboration_error(e, E0307, instance->span, "`%s` has an index, but %s", text, why);
    diag_help(e->context, diag, "write `%s`, or split the tokens: `split tokens into n as i;`", text);
    return false;
}

/// In a pipelined loop: does the index move with the loop's variable?
static bool index_moves(struct elaboration *e, node_id index, int64_t here)
{
    int64_t next = here;
    e->names[e->loop].value++;
    evaluate_here(e, index, &next);
    e->names[e->loop].value--;
    return next != here;
}

/// The cell that an instance names. False: an error, or (pipelined) outside the loop's range: it vanishes.
static bool instance_cell(struct elaboration *e, node_id id, uint32_t stage, int64_t *cell)
{
    const struct ast_node *instance = ast_node_of(e, id);
    const char *text = text_of(e->context, ast_node_of(e, ast_node_of(e, instance->slot[0])->slot[0])->text);
    struct axis axes[2];
    uint32_t wanted = axes_of(e, stage, axes), given = 0;
    int64_t values[2] = {0, 0}, part = 0, wave = 0;
    bool vanishes = false;
    EACH_NODE(e->ast, index, instance->slot[1])
    {
        if (given++ >= wanted)
            continue;
        if (!evaluate_here(e, index, &values[given - 1]))
            return false;
        vanishes = vanishes || (e->pipelined && index_moves(e, index, values[given - 1]) &&
                                (values[given - 1] < e->low || values[given - 1] >= e->high));
    }
    if (given != wanted)
        return wrong_indices(e, instance, stage, text, wanted);
    if (vanishes)
        return false;
    bool exists = true;
    for (uint32_t i = 0; i < wanted; i++) {
        exists = exists && values[i] >= 0 && values[i] < axes[i].count;
        *(axes[i].wave ? &wave : &part) = values[i];
    }
    *cell = part * e->waves + wave;
    if (exists)
        return true;
    const char *which = wanted == 1 ? context_printf(e->context, "%lld", (long long)values[0])
                                    : context_printf(e->context, "%lld,%lld", (long long)values[0], (long long)values[1]);
    struct diag *diag = elaboration_error(e, E0307, instance->span, "`%s[%s]` does not exist", text, which);
    diag_label(e->context, diag, "index out of range");
    label_splits(e, diag, stage);
    return false;
}

static void issue_step(struct elaboration *e, const struct ast_node *step, node_id flow)
{
    struct item item = {.instance = step->slot[0], .stream = NONE, .flow = flow};
    if (!find_stage(e, ast_node_of(e, item.instance)->slot[0], &item.stage, &item.task))
        return;
    e->stages[item.stage].named = true;
    if (!instance_cell(e, item.instance, item.stage, &item.cell) || too_many(e, item.instance))
        return;
    if (step->slot[1]) {
        const struct ast_node *stream = ast_node_of(e, step->slot[1]);
        item.stream = find_stream(e, stream->text, step->slot[2], stream->span);
    }
    *APPEND(e, items, item_count, item_capacity) = item;
}

static void relate(struct elaboration *e, enum relation_kind kind, struct rows left, struct rows right, node_id node)
{
    if (left.count && right.count)
        *APPEND(e, relations, relation_count, relation_capacity) = (struct relation){kind, left, right, node};
}

static struct rows run_flow(struct elaboration *e, node_id flow);

/// `a -> b`: what vanished drops out of the chain.
static struct rows run_chain(struct elaboration *e, node_id chain, node_id flow)
{
    struct rows all = {e->item_count, 0}, previous = {0, 0};
    EACH_NODE(e->ast, id, ast_node_of(e, chain)->slot[0])
    {
        struct rows step = {e->item_count, 0};
        if (ast_node_of(e, id)->kind == NODE_FLOW)
            step = run_flow(e, id);
        else
            issue_step(e, ast_node_of(e, id), flow);
        step.count = e->item_count - step.first;
        relate(e, RELATION_ORDER, previous, step, id);
        if (step.count)
            previous = step;
    }
    all.count = e->item_count - all.first;
    return all;
}

static struct rows run_flow(struct elaboration *e, node_id flow)
{
    struct rows all = {e->item_count, 0};
    node_id first = ast_node_of(e, flow)->slot[0];
    struct rows before = {e->item_count, 0};
    EACH_NODE(e->ast, chain, first)
    {
        struct rows side = run_chain(e, chain, flow);
        relate(e, RELATION_OVERLAP, before, side, chain);
        before.count = e->item_count - before.first;
    }
    all.count = e->item_count - all.first;
    return all;
}

// Pipelined loops (rule 4): every index is the loop's variable plus a constant.

struct offsets {
    int64_t least, most;
    bool any;
};

static bool index_at(struct elaboration *e, str_id name, int64_t value, node_id index, int64_t *result)
{
    uint32_t names = e->name_count;
    *APPEND(e, names, name_count, name_capacity) = (struct name_value){name, value};
    bool good = evaluate_here(e, index, result);
    e->name_count = names;
    return good;
}

/// Of several indices one moves with the loop; the others stay, such as an outer loop's.
static void instance_offset(struct elaboration *e, const struct ast_node *loop, node_id id, struct offsets *offsets)
{
    const struct ast_node *instance = ast_node_of(e, id);
    const char *name = text_of(e->context, loop->text);
    int64_t moving = 0, offset = 0;
    node_id wrong = 0;
    bool still = false;
    if (!instance->slot[1]) {
        elaboration_error(e, E0309, instance->span, "an instance in `pipelined` needs an index");
        return;
    }
    EACH_NODE(e->ast, index, instance->slot[1])
    {
        int64_t at_zero, at_one;
        if (!index_at(e, loop->text, 0, index, &at_zero) || !index_at(e, loop->text, 1, index, &at_one))
            return;
        if (at_one == at_zero && !wrong) {
            still = true;
            continue;
        }
        offset = at_zero;
        moving++;
        wrong = at_one - at_zero != 1 || moving > 1 ? index : wrong;
    }
    if (wrong || !moving) {
        struct diag *diag = elaboration_error(e, E0309, span_of(e, wrong ? wrong : instance->slot[1]),
                                              "an index in `pipelined` is `%s`, plus or minus a constant", name);
        diag_label(e->context, diag, !moving && still ? "does not depend on `%s`"
                                     : moving > 1     ? "a second one that moves with `%s`"
                                                      : "does not move with `%s`",
                   name);
        diag_help(e->context, diag, "issue it outside the loop, or use `for`");
        return;
    }
    if (!offsets->any || offset < offsets->least)
        offsets->least = offset;
    if (!offsets->any || offset > offsets->most)
        offsets->most = offset;
    offsets->any = true;
}

static void flow_offsets(struct elaboration *e, const struct ast_node *loop, node_id flow, struct offsets *offsets)
{
    EACH_NODE(e->ast, chain, ast_node_of(e, flow)->slot[0])
    {
        EACH_NODE(e->ast, step, ast_node_of(e, chain)->slot[0])
        {
            if (ast_node_of(e, step)->kind == NODE_FLOW)
                flow_offsets(e, loop, step, offsets);
            else
                instance_offset(e, loop, ast_node_of(e, step)->slot[0], offsets);
        }
    }
}

static bool pipelined_offsets(struct elaboration *e, const struct ast_node *loop, struct offsets *offsets)
{
    bool failed = e->failed;
    e->failed = false;
    EACH_NODE(e->ast, id, ast_node_of(e, loop->slot[1])->slot[0])
    {
        if (ast_node_of(e, id)->kind == NODE_FLOW) {
            flow_offsets(e, loop, id, offsets);
            continue;
        }
        struct diag *diag = elaboration_error(e, E0309, span_of(e, id), "only instances may stand in `pipelined`");
        diag_label(e->context, diag, "not an instance");
        diag_help(e->context, diag, "move the statement out of the loop, or use `for`");
    }
    bool good = !e->failed && offsets->any;
    e->failed = e->failed || failed;
    return good;
}

static void run_turn(struct elaboration *e, const struct ast_node *loop, int64_t i)
{
    uint32_t names = e->name_count;
    if (loop->flag)
        e->loop = names;
    if (push_name(e, loop->text, i, loop->name_span))
        interpret_block(e, loop->slot[1]);
    e->name_count = names;
}

static void run_loop(struct elaboration *e, node_id id)
{
    const struct ast_node *loop = ast_node_of(e, id), *range = ast_node_of(e, loop->slot[0]);
    int64_t low, high;
    if (!evaluate_here(e, range->slot[0], &low) || !evaluate_here(e, range->slot[1], &high))
        return;
    if (high - low > ITEMS_MAX || low < -ITEMS_MAX || high > ITEMS_MAX) {
        elaboration_error(e, E0206, range->span, "a loop has at most %d turns", ITEMS_MAX);
        return;
    }
    if (!loop->flag) {
        uint32_t errors = e->context->error_count;
        for (int64_t i = low; i < high && e->context->error_count < errors + 16 && !too_many(e, id); i++)
            run_turn(e, loop, i);
        return;
    }
    struct offsets offsets = {0, 0, false};
    uint32_t names = e->name_count;
    if (!push_name(e, loop->text, 0, loop->name_span)) // only to refuse a name that is taken
        return;
    e->name_count = names;
    if (low >= high || !pipelined_offsets(e, loop, &offsets))
        return;
    e->pipelined = true;
    e->low = low;
    e->high = high;
    for (int64_t i = low - offsets.most; i < high - offsets.least && !too_many(e, id); i++)
        run_turn(e, loop, i);
    e->pipelined = false;
}

static void run_if(struct elaboration *e, node_id id)
{
    const struct ast_node *branch = ast_node_of(e, id);
    bool chosen;
    if (!evaluate_condition(e->context, e->program, e->file, branch->slot[0], e->names, e->name_count, &chosen)) {
        e->failed = true;
        return;
    }
    node_id taken = branch->slot[chosen ? 1 : 2];
    if (taken && ast_node_of(e, taken)->kind == NODE_IF)
        run_if(e, taken);
    else if (taken)
        interpret_block(e, taken);
}

static void run_order(struct elaboration *e, node_id id)
{
    const struct ast_node *order = ast_node_of(e, id);
    EACH_NODE(e->ast, other, order->slot[1])
    {
        struct order_claim claim = {.node = id};
        claim.instance[0] = order->flag ? order->slot[0] : other;
        claim.instance[1] = order->flag ? other : order->slot[0];
        bool good = true;
        for (int side = 0; side < 2 && good; side++)
            good =
                find_stage(e, ast_node_of(e, claim.instance[side])->slot[0], &claim.stage[side], &claim.task[side]) &&
                instance_cell(e, claim.instance[side], claim.stage[side], &claim.cell[side]);
        if (good)
            *APPEND(e, orders, order_count, order_capacity) = claim;
    }
}

static void run_let(struct elaboration *e, const struct ast_node *let)
{
    int64_t value;
    if (evaluate_here(e, let->slot[0], &value))
        push_name(e, let->text, value, let->name_span);
}

static void refuse(struct elaboration *e, node_id id)
{
    static const struct {
        uint16_t kind;
        const char *text;
    } texts[] = {{NODE_FILL, "`fill`"}, {NODE_DEFER, "`defer`"}, {NODE_ASSERT, "an assertion in a schedule"}};
    const char *what = "this statement";
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].kind == ast_node_of(e, id)->kind)
            what = texts[i].text;
    elaboration_error(e, E0901, span_of(e, id), "%s is not built yet", what);
}

static void run_statement(struct elaboration *e, node_id id)
{
    const struct ast_node *statement = ast_node_of(e, id);
    switch (statement->kind) {
    case NODE_SPLIT:
        declare_split(e, id);
        break;
    case NODE_STREAM:
        if (statement->slot[0])
            declare_stream(e, id);
        break;
    case NODE_BIND:
        declare_bind(e, id);
        break;
    case NODE_LOOP:
        run_loop(e, id);
        break;
    case NODE_IF:
        run_if(e, id);
        break;
    case NODE_ORDER:
        run_order(e, id);
        break;
    case NODE_LET:
        run_let(e, statement);
        break;
    case NODE_FLOW:
        run_flow(e, id);
        break;
    case NODE_SYNC:
        *APPEND(e, items, item_count, item_capacity) = (struct item){.sync = true, .instance = id, .stream = NONE};
        break;
    default:
        refuse(e, id);
        break;
    }
}

void interpret_block(struct elaboration *e, node_id block)
{
    uint32_t names = e->name_count;
    EACH_NODE(e->ast, id, ast_node_of(e, block)->slot[0])
    {
        if (ast_node_of(e, id)->kind == NODE_STREAM && !ast_node_of(e, id)->slot[0])
            declare_stream(e, id); // known before the statements, in whichever order they stand
    }
    EACH_NODE(e->ast, id, ast_node_of(e, block)->slot[0])
    {
        run_statement(e, id);
    }
    e->name_count = names;
}
