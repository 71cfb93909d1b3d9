// Runs the statements of a schedule once, for given knobs: loops unroll, conditions choose, and what is left are
// instances in issue order and the relations between them.
#include <string.h>

#include "compiler/schedule/elaborate.h"

// No schedule that a machine could run comes near these; a slip of the pen (`route[i+1000000000]`) goes far beyond.
enum { ITEMS_MAX = 200000, TURNS_MAX = 1000000 };

static struct span span_of(const struct elaboration *e, node_id id)
{
    return ast_node_of(e, id)->span;
}

static bool too_many(struct elaboration *e, node_id id)
{
    if (e->item_count < ITEMS_MAX)
        return false;
    e->failed = true;
    if (first_complaint(e, E0206, 0, "instances")) // not by every loop around it
        elaboration_error(e, E0206, span_of(e, id), "the schedule issues more than %d instances", ITEMS_MAX);
    return true;
}

static void issue_step(struct elaboration *e, const struct ast_node *step, node_id flow)
{
    struct item item = {.instance = step->slot[0], .stream = NONE, .flow = flow};
    if (!find_stage(e, ast_node_of(e, item.instance)->slot[0], &item.stage, &item.task))
        return;
    e->stages[item.stage].named = true;
    if (!instance_point(e, item.instance, item.stage, &item.at) || too_many(e, item.instance))
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

/// The one index that moves with the loop; the others stay.
static void instance_offset(struct elaboration *e, const struct ast_node *loop, node_id id, struct offsets *offsets)
{
    const struct ast_node *instance = ast_node_of(e, id);
    const char *name = text_of(e->context, loop->text);
    node_id moving = 0, odd = instance->slot[1];
    int64_t at_zero = 0, at_one = 0, offset = 0;
    if (!instance->slot[1])
        elaboration_error(e, E0309, instance->span, "an instance in `pipelined` needs an index");
    EACH_NODE(e->ast, index, instance->slot[1])
    {
        if (!evaluate_with(e, loop->text, 0, index, &at_zero) || !evaluate_with(e, loop->text, 1, index, &at_one))
            return;
        if (at_one == at_zero)
            continue;
        odd = index;
        if ((uint64_t)at_one - (uint64_t)at_zero != 1 || moving)
            break;
        if (at_zero < -ITEMS_MAX || at_zero > ITEMS_MAX) {
            elaboration_error(e, E0206, span_of(e, index), "an index is at most %d away from `%s`", ITEMS_MAX, name);
            return;
        }
        moving = index;
        offset = at_zero;
    }
    if (!odd)
        return;
    if (!moving || moving != odd) {
        struct diag *diag = elaboration_error(e, E0309, span_of(e, odd),
                                              "an index in `pipelined` is `%s`, plus or minus a constant", name);
        diag_label(e->context, diag, at_one == at_zero ? "does not depend on `%s`" : "does not move with `%s`", name);
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

/// False: no more turns, of this loop or of those around it.
static bool run_turn(struct elaboration *e, const struct ast_node *loop, int64_t i)
{
    if (++e->turns > TURNS_MAX) {
        if (e->turns == TURNS_MAX + 1)
            elaboration_error(e, E0206, loop->span, "the loops of a schedule have at most %d turns together", TURNS_MAX);
        return false;
    }
    uint32_t names = e->name_count;
    if (push_name(e, loop->text, i, loop->name_span))
        interpret_block(e, loop->slot[1]);
    e->name_count = names;
    return e->turns <= TURNS_MAX;
}

static void run_loop(struct elaboration *e, node_id id)
{
    const struct ast_node *loop = ast_node_of(e, id), *range = ast_node_of(e, loop->slot[0]);
    int64_t low, high;
    if (!evaluate_here(e, range->slot[0], &low) || !evaluate_here(e, range->slot[1], &high))
        return;
    if (low < -ITEMS_MAX || high > ITEMS_MAX || low > ITEMS_MAX || high < -ITEMS_MAX || high - low > ITEMS_MAX) {
        elaboration_error(e, E0206, range->span, "a loop has at most %d turns", ITEMS_MAX);
        return;
    }
    if (!loop->flag) {
        uint32_t errors = e->context->error_count;
        for (int64_t i = low; i < high && e->context->error_count < errors + 16 && !too_many(e, id); i++)
            if (!run_turn(e, loop, i))
                return;
        return;
    }
    struct offsets offsets = {0, 0, false};
    uint32_t names = e->name_count;
    if (!push_name(e, loop->text, 0, loop->name_span)) // only to refuse a name that is taken
        return;
    e->name_count = names;
    if (low >= high || !pipelined_offsets(e, loop, &offsets))
        return;
    e->pipelined = loop->text;
    e->low = low;
    e->high = high;
    for (int64_t i = low - offsets.most; i < high - offsets.least && !too_many(e, id); i++)
        if (!run_turn(e, loop, i))
            break;
    e->pipelined = 0;
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
                instance_point(e, claim.instance[side], claim.stage[side], &claim.at[side]);
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

static void run_defer(struct elaboration *e, node_id id)
{
    EACH_NODE(e->ast, instance, ast_node_of(e, id)->slot[0])
    {
        struct item item = {.instance = instance, .stream = NONE, .flow = id, .how = ISSUED_LATE};
        if (!find_stage(e, ast_node_of(e, instance)->slot[0], &item.stage, &item.task))
            continue;
        e->stages[item.stage].named = true;
        if (instance_point(e, instance, item.stage, &item.at) && !too_many(e, instance))
            *APPEND(e, items, item_count, item_capacity) = item;
    }
}

/// One task runs in the stalls of a stream: a stage without phases, or one phase.
static void run_fill(struct elaboration *e, node_id id)
{
    const struct ast_node *fill = ast_node_of(e, id);
    struct item item = {.instance = fill->slot[0], .flow = id, .how = ISSUED_IN_STALLS};
    if (!find_stage(e, ast_node_of(e, item.instance)->slot[0], &item.stage, &item.task))
        return;
    struct stage_info *stage = &e->stages[item.stage];
    stage->named = true;
    item.stream = find_stream(e, fill->text, 0, fill->name_span);
    if (item.stream == NONE || !cut_stage(e, id, fill->slot[1], item.stage))
        return;
    if (item.task == NONE && stage->task_count > 1) {
        const char *last = e->tasks[stage->first_task + stage->task_count - 1].label;
        struct diag *diag = elaboration_error(e, E0309, span_of(e, item.instance),
                                              "`%s` has phases: one task fills the stalls of a stream", stage->name);
        diag_help(e->context, diag, "name one of them, as in `%s`", last);
        return;
    }
    if (instance_point(e, item.instance, item.stage, &item.at) && !too_many(e, item.instance))
        *APPEND(e, items, item_count, item_capacity) = item;
}

/// Budgets are evaluated after the proof, with the names that hold here.
static void run_assertion(struct elaboration *e, node_id id)
{
    struct claim claim = {.node = id, .name_count = e->name_count};
    claim.names = context_alloc(e->context, (e->name_count + 1) * sizeof *claim.names);
    if (e->name_count)
        memcpy(claim.names, e->names, e->name_count * sizeof *claim.names);
    *APPEND(e, claims, claim_count, claim_capacity) = claim;
}

static void refuse(struct elaboration *e, node_id id)
{
    const char *what = "this statement";
    elaboration_error(e, E0901, span_of(e, id), "%s is not built yet", what);
}

/// Declarations: when one is wrong, everything that names what it declares would be one more error for the same mistake.
static bool declare(struct elaboration *e, node_id id)
{
    const struct ast_node *statement = ast_node_of(e, id);
    bool failed = e->failed;
    e->failed = false;
    switch (statement->kind) {
    case NODE_SPLIT:
        declare_split(e, id);
        break;
    case NODE_STREAM:
        declare_stream(e, id);
        break;
    case NODE_LET:
        run_let(e, statement);
        break;
    case NODE_BIND:
        if (!e->undeclared)
            declare_bind(e, id);
        break;
    default:
        e->failed = failed;
        return false;
    }
    e->undeclared = e->undeclared || e->failed;
    e->failed = e->failed || failed;
    return true;
}

static void run_statement(struct elaboration *e, node_id id)
{
    const struct ast_node *statement = ast_node_of(e, id);
    if (statement->kind == NODE_STREAM && !statement->slot[0]) // declared before the statements
        return;
    if (declare(e, id) || e->undeclared)
        return;
    switch (statement->kind) {
    case NODE_LOOP:
        run_loop(e, id);
        break;
    case NODE_IF:
        run_if(e, id);
        break;
    case NODE_ORDER:
        run_order(e, id);
        break;
    case NODE_FILL:
        run_fill(e, id);
        break;
    case NODE_DEFER:
        run_defer(e, id);
        break;
    case NODE_FLOW:
        run_flow(e, id);
        break;
    case NODE_SYNC:
        if (e->item_count && e->items[e->item_count - 1].sync) // nothing that was not waited for
            break;
        *APPEND(e, items, item_count, item_capacity) = (struct item){.sync = true, .instance = id, .stream = NONE};
        break;
    case NODE_ASSERT:
        run_assertion(e, id);
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
            declare(e, id); // known before the statements, in whichever order they stand
    }
    EACH_NODE(e->ast, id, ast_node_of(e, block)->slot[0])
    {
        run_statement(e, id);
    }
    e->name_count = names;
}
