// The proof that a schedule is legal on all ranks together. All ranks run the same schedule, so they are projected onto
// one: a cycle among many ranks becomes a cycle here, with a message as an arc from the send to the recv.
#include <string.h>

#include "compiler/schedule/chain.h"
#include "compiler/schedule/elaborate.h"

static struct span node_span(const struct proof *proof, node_id node)
{
    return node_at(&proof->program->ast, node)->span;
}

static const char *source_text(const struct proof *proof, node_id node)
{
    struct span span = node_span(proof, node);
    return context_printf(proof->context, "%.*s", (int)(span.end - span.begin),
                          proof->context->files[span.file].text + span.begin);
}

// Overlaps.

/// `stage expert: yd = swiglu(xd, ...)`
static const char *stage_text(const struct proof *proof, const struct mod_stage *stage)
{
    const struct ir *module = proof->module;
    const char *first = "", *more = "";
    for (uint32_t i = 0; i < stage->args.count; i++) {
        const struct mod_arg *arg = ROW(module, mod_arg, stage->args.first + i);
        if (*first && (arg->value != NONE || arg->param != NONE || arg->given))
            more = ", ...";
        else if (!*first && arg->value != NONE)
            first = ir_text(module, ROW(module, mod_value, arg->value)->name);
    }
    return context_printf(proof->context, "stage %s: %s = %s(%s%s)", ir_text(module, stage->name),
                          ir_text(module, ROW(module, mod_value, stage->result)->name),
                          stage->op == NONE ? "extern" : ir_text(module, ROW(module, mod_op, stage->op)->name), first,
                          more);
}

/// `i` -> `i+1`, `i-1` -> `i`, for the fix; NULL when the index is written otherwise.
static const char *next_index(const struct proof *proof, node_id index)
{
    const struct ast *ast = &proof->program->ast;
    const struct ast_node *node = node_at(ast, index);
    int64_t offset = 1;
    if (node->kind == NODE_BINARY) {
        const struct ast_node *right = node_at(ast, node->slot[1]);
        const char *sign = text_of(proof->context, node->text);
        if (right->kind != NODE_INT || (*sign != '+' && *sign != '-'))
            return NULL;
        offset += *sign == '+' ? right->integer : -right->integer;
        node = node_at(ast, node->slot[0]);
    }
    if (node->kind != NODE_NAME)
        return NULL;
    const char *name = text_of(proof->context, node->text);
    if (offset == 0)
        return context_printf(proof->context, "%s", name);
    return context_printf(proof->context, "%s%+lld", name, (long long)offset);
}

/// Does the place stand in a pipelined loop of the schedule?
static bool within_pipelined(const struct proof *proof, node_id at)
{
    const struct ast *ast = &proof->program->ast;
    node_id block = node_at(ast, ROW(proof->schedule, sched_info, 0)->node)->slot[2];
    node_id loop = innermost_loop(ast, block, node_span(proof, at));
    return loop && node_at(ast, loop)->flag;
}

/// In a pipelined loop, what is waited for can run one microbatch ahead.
static void suggest_ahead(const struct proof *proof, struct diag *diag, uint32_t from, node_id from_node)
{
    const struct ast *ast = &proof->program->ast;
    const struct sched_info *info = ROW(proof->schedule, sched_info, 0);
    const struct ast_node *instance = node_at(ast, from_node);
    node_id index = instance->slot[1];
    const char *next = index && !node_at(ast, index)->next ? next_index(proof, index) : NULL;
    const char *what = info->waves > 1 ? "wave" : "microbatch";
    if (info->parts.count < 2 && info->waves < 2)
        diag_help(proof->context, diag, "split the tokens into microbatches and overlap different ones, or write `->`");
    else if (!next || !within_pipelined(proof, from_node))
        diag_help(proof->context, diag, "overlap different %s, or write `->`",
                  info->waves > 1 ? "waves" : "microbatches");
    else {
        const struct graph_task *task = ROW(proof->graph, graph_task, ROW(proof->schedule, sched_instance, from)->task);
        bool sends = task->phase == phase_recv || task->phase == phase_send;
        diag_help(proof->context, diag, "%s the next %s while this one %s", sends ? "send" : "run", what,
                  sends ? "computes" : "continues");
        diag_fix(proof->context, diag, node_span(proof, index), next);
    }
}

static void dependent_sides(const struct proof *proof, const struct sched_overlap *overlap, const struct chain *chain)
{
    struct context *context = proof->context;
    const struct hop *last = &chain->hops[chain->count - 1];
    bool right_waits = last->to == overlap->right;
    node_id waiting = right_waits ? overlap->right_node : overlap->left_node;
    node_id ahead = right_waits ? overlap->left_node : overlap->right_node;
    struct diag *diag =
        diag_error(context, E0301, node_span(proof, waiting), "`%s` and `%s` cannot overlap: one waits for the other",
                   source_text(proof, overlap->left_node), source_text(proof, overlap->right_node));
    const struct sched_edge *edge = ROW(proof->schedule, sched_edge, last->edge);
    if (chain->count == 1 && edge->why == edge_data) {
        const struct sched_info *info = ROW(proof->schedule, sched_info, 0);
        bool apart = ROW(proof->schedule, sched_instance, overlap->left)->part !=
                     ROW(proof->schedule, sched_instance, overlap->right)->part;
        const char *same = apart                  ? ", for all microbatches"
                           : info->waves > 1      ? ", for the same wave"
                           : info->parts.count > 1 ? ", for the same microbatch"
                                                   : "";
        diag_label(context, diag, "reads `%s`...", ir_text(proof->schedule, edge->value));
        diag_label_at(context, diag, node_span(proof, ahead), "...which this writes%s", same);
        const struct mod_stage *stage = stage_of(proof, last->to);
        diag_note_at(context, diag, node_span(proof, stage->node), "%s ", stage_text(proof, stage));
    } else {
        diag_label(context, diag, "waits...");
        diag_label_at(context, diag, node_span(proof, ahead), "...for this");
        note_chain(proof, diag, chain);
    }
    suggest_ahead(proof, diag, chain->hops[0].from, ahead);
}

static bool travels(uint32_t phase)
{
    return phase == phase_send || phase == phase_relay || phase == phase_recv;
}

/// `send` and `recv` of one instance may stand on both sides of `||`: rows stream.
static bool same_exchange(const struct proof *proof, uint32_t left, uint32_t right)
{
    const struct sched_instance *l = ROW(proof->schedule, sched_instance, left);
    const struct sched_instance *r = ROW(proof->schedule, sched_instance, right);
    const struct graph_task *a = ROW(proof->graph, graph_task, l->task), *b = ROW(proof->graph, graph_task, r->task);
    return a->module_stage == b->module_stage && l->part == r->part && l->layer == r->layer &&
           l->wave == r->wave && travels(a->phase) && travels(b->phase);
}

/// Of the chains between the tasks of two sides, direct ones are told first: a second error at a place is dropped.
static bool prove_sides(const struct proof *proof, struct finder *finder, bool direct)
{
    bool good = true;
    for (uint32_t i = 0; i < COUNT(proof->schedule, sched_overlap); i++) {
        const struct sched_overlap *overlap = ROW(proof->schedule, sched_overlap, i);
        if (overlap->left != overlap->right && same_exchange(proof, overlap->left, overlap->right))
            continue;
        // In a loop, an `order` statement concerns one turn of the `||`: said on purpose, it is no contradiction.
        bool orders = !within_pipelined(proof, overlap->left_node);
        struct chain chain = find_chain(finder, overlap->left, overlap->right, orders);
        if (!chain.count)
            chain = find_chain(finder, overlap->right, overlap->left, orders);
        if (!chain.count)
            continue;
        good = false;
        if (!direct || chain.count == 1)
            dependent_sides(proof, overlap, &chain);
    }
    return good;
}

static bool prove_overlaps(const struct proof *proof)
{
    struct finder *finder = finder_make(proof, false);
    return prove_sides(proof, finder, true) || prove_sides(proof, finder, false);
}

/// Sides that nothing makes dependent, but whose streams' orders let them never run at the same time: legal and in vain.
static void warn_serial_sides(const struct proof *proof)
{
    struct finder *finder = finder_make(proof, true);
    for (uint32_t i = 0; i < COUNT(proof->schedule, sched_overlap); i++) {
        const struct sched_overlap *overlap = ROW(proof->schedule, sched_overlap, i);
        if (overlap->left == overlap->right || same_exchange(proof, overlap->left, overlap->right))
            continue;
        if (within_pipelined(proof, overlap->left_node))
            continue; // its text is about many turns, and some of them may well be ordered
        struct chain chain = find_chain(finder, overlap->left, overlap->right, true);
        bool right_waits = chain.count != 0;
        if (!right_waits)
            chain = find_chain(finder, overlap->right, overlap->left, true);
        if (!chain.count)
            continue;
        node_id waiting = right_waits ? overlap->right_node : overlap->left_node;
        node_id ahead = right_waits ? overlap->left_node : overlap->right_node;
        struct diag *diag = diag_warning(proof->context, E0301, node_span(proof, waiting),
                                         "`%s` and `%s` will not overlap: their streams run one after the other",
                                         source_text(proof, overlap->left_node), source_text(proof, overlap->right_node));
        diag_label(proof->context, diag, "waits...");
        diag_label_at(proof->context, diag, node_span(proof, ahead), "...for this");
        note_chain(proof, diag, &chain);
        diag_help(proof->context, diag, "issue what the waiting side needs earlier on its stream, or write `->`");
    }
}

// Cycles.

/// How much a hop may be changed: an order first, then a barrier, then the order of a stream.
static int changeable(const struct proof *proof, const struct hop *hop)
{
    if (hop->edge == NONE)
        return 1;
    uint32_t why = ROW(proof->schedule, sched_edge, hop->edge)->why;
    return why == edge_order ? 3 : why == edge_sync ? 2 : 0;
}

static struct span hop_span(const struct proof *proof, const struct hop *hop)
{
    if (hop->edge != NONE && ROW(proof->schedule, sched_edge, hop->edge)->node)
        return node_span(proof, ROW(proof->schedule, sched_edge, hop->edge)->node);
    return issue_span(proof, hop->to);
}

/// Turns the cycle so that the last hop is what closes it: the most changeable one that stands last in the text.
static void close_last(const struct proof *proof, struct chain *cycle)
{
    uint32_t last = 0;
    for (uint32_t i = 1; i < cycle->count; i++) {
        int a = changeable(proof, &cycle->hops[last]), b = changeable(proof, &cycle->hops[i]);
        if (b > a || (b == a && hop_span(proof, &cycle->hops[i]).begin > hop_span(proof, &cycle->hops[last]).begin))
            last = i;
    }
    struct hop *turned = context_alloc(proof->context, cycle->count * sizeof *turned);
    for (uint32_t i = 0; i < cycle->count; i++)
        turned[i] = cycle->hops[(last + 1 + i) % cycle->count];
    cycle->hops = turned;
}

/// Statements of a kind in the cycle, each counted once.
static uint32_t orders_in(const struct proof *proof, const struct chain *cycle, bool *only_statements)
{
    uint32_t count = 0;
    *only_statements = true;
    for (uint32_t i = 0; i < cycle->count; i++) {
        if (changeable(proof, &cycle->hops[i]) != 3)
            continue;
        node_id node = ROW(proof->schedule, sched_edge, cycle->hops[i].edge)->node;
        bool seen = false;
        for (uint32_t k = 0; k < i; k++)
            seen = seen || (changeable(proof, &cycle->hops[k]) == 3 &&
                            ROW(proof->schedule, sched_edge, cycle->hops[k].edge)->node == node);
        count += !seen;
        *only_statements = *only_statements && node_at(&proof->program->ast, node)->kind == NODE_ORDER;
    }
    return count;
}

static void help_cycle(const struct proof *proof, struct diag *diag, const struct chain *cycle)
{
    bool statements, data = false;
    uint32_t orders = orders_in(proof, cycle, &statements);
    for (uint32_t i = 0; i < cycle->count; i++)
        data = data || changeable(proof, &cycle->hops[i]) == 0;
    const char *what = statements ? "`order` statement" : "order";
    const char *tail = data ? "; the data dependency cannot be removed" : "";
    const struct hop *last = &cycle->hops[cycle->count - 1];
    if (orders == 1)
        diag_help(proof->context, diag, "remove the %s%s", what, tail);
    else if (orders == 2)
        diag_help(proof->context, diag, "remove one of the two %ss%s", what, tail);
    else if (orders > 2)
        diag_help(proof->context, diag, "remove one of the %u %ss%s", orders, what, tail);
    else if (last->edge == NONE)
        diag_help(proof->context, diag, "issue `%s` before `%s`", shown(proof, last->to), shown(proof, last->from));
    else
        diag_help(proof->context, diag, "remove the `sync`%s", tail);
}

static bool prove_acyclic(const struct proof *proof)
{
    struct arcs arcs = arcs_make(proof->context, proof->schedule, true);
    uint32_t *sorted = context_alloc(proof->context, (arcs.count + 1) * sizeof *sorted);
    bool *core = context_alloc(proof->context, arcs.count + 1);
    if (arcs_sort(proof->context, &arcs, sorted, core) == arcs.count)
        return true;
    struct chain cycle = find_cycle(proof, core);
    if (!cycle.count)
        fatal(proof->context, EXIT_BUG, "a schedule has a cycle that cannot be found again");
    close_last(proof, &cycle);
    struct diag *diag = diag_error(proof->context, E0308, hop_span(proof, &cycle.hops[cycle.count - 1]),
                                   "this order can never run: it waits for itself");
    diag_label(proof->context, diag, "closes the cycle");
    note_chain(proof, diag, &cycle);
    help_cycle(proof, diag, &cycle);
    return false;
}

// Communication.

/// Messages of one exchange arrive in the order in which a stream sends them: a stream must receive them in that order.
static bool prove_stream(const struct proof *proof, uint32_t stream, const uint32_t *send_of)
{
    const struct ir *schedule = proof->schedule;
    uint32_t tasks = COUNT(proof->graph, graph_task), streams = COUNT(schedule, sched_stream);
    uint32_t *latest = context_alloc(proof->context, ((size_t)tasks * streams + 1) * sizeof *latest);
    struct rows order = ROW(schedule, sched_stream, stream)->order;
    for (uint32_t i = 0; i < tasks * streams; i++)
        latest[i] = NONE;
    for (uint32_t i = 0; i < order.count; i++) {
        uint32_t recv = ROW(schedule, sched_slot, order.first + i)->instance, send = send_of[recv];
        if (send == NONE)
            continue;
        const struct sched_instance *row = ROW(schedule, sched_instance, send);
        uint32_t *before = &latest[row->task * streams + row->stream];
        if (*before == NONE || ROW(schedule, sched_instance, send_of[*before])->position < row->position) {
            *before = recv;
            continue;
        }
        struct diag *diag = diag_error(proof->context, E0308, issue_span(proof, recv),
                                       "`%s` is received after `%s`, but every rank sends it first", shown(proof, recv),
                                       shown(proof, *before));
        diag_label(proof->context, diag, "received here");
        diag_label_at(proof->context, diag, issue_span(proof, send), "sent here");
        diag_help(proof->context, diag, "receive in the order of sending, or on another stream");
        return false;
    }
    return true;
}

static bool prove_communication(const struct proof *proof)
{
    const struct ir *schedule = proof->schedule;
    uint32_t count = COUNT(schedule, sched_instance);
    uint32_t *send_of = context_alloc(proof->context, (count + 1) * sizeof *send_of);
    for (uint32_t i = 0; i < count; i++)
        send_of[i] = NONE;
    for (uint32_t i = 0; i < COUNT(schedule, sched_edge); i++) {
        const struct sched_edge *edge = ROW(schedule, sched_edge, i);
        if (edge->why == edge_message)
            send_of[edge->to] = edge->from;
    }
    bool good = true;
    for (uint32_t s = 0; s < COUNT(schedule, sched_stream); s++)
        good = prove_stream(proof, s, send_of) && good;
    return good;
}

bool prove(struct context *context, const struct program_text *program, const struct ir *module, const struct ir *graph,
           struct ir *schedule)
{
    struct proof proof = {context, program, module, graph, schedule};
    if (!prove_overlaps(&proof) || !prove_acyclic(&proof) || !prove_communication(&proof))
        return false;
    warn_serial_sides(&proof);
    return true;
}
