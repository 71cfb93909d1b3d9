// Finding and explaining chains of waits. Only refused schedules pay for this.
#include <string.h>

#include "compiler/schedule/chain.h"

enum { STARTS_MAX = 1000 };

const struct mod_stage *stage_of(const struct proof *proof, uint32_t instance)
{
    uint32_t task = ROW(proof->schedule, sched_instance, instance)->task;
    uint32_t number = ROW(proof->graph, graph_task, task)->module_stage;
    return ROW(proof->module, mod_stage, ROW(proof->graph, mod_stage_number, number)->row);
}

struct span issue_span(const struct proof *proof, uint32_t instance)
{
    return node_at(&proof->program->ast, ROW(proof->schedule, sched_instance, instance)->node)->span;
}

const char *shown(const struct proof *proof, uint32_t instance)
{
    const struct ast *ast = &proof->program->ast;
    const struct sched_instance *row = ROW(proof->schedule, sched_instance, instance);
    const char *label = ir_text(proof->schedule, row->label), *index = strchr(label, '[');
    const struct ast_node *text = node_at(ast, row->node);
    if (row->automatic || text->kind != NODE_INSTANCE || node_at(ast, node_at(ast, text->slot[0])->slot[0])->next)
        return context_printf(proof->context, "%s", label);
    const char *stage = ir_text(proof->graph, ROW(proof->graph, graph_task, row->task)->stage);
    return context_printf(proof->context, "%s%s", stage, index ? index : "");
}

static const char *shown_in_layer(const struct proof *proof, const struct chain *chain, uint32_t instance)
{
    uint32_t layer = ROW(proof->schedule, sched_instance, instance)->layer;
    bool several = false;
    for (uint32_t i = 0; i < chain->count; i++)
        several = several || ROW(proof->schedule, sched_instance, chain->hops[i].to)->layer !=
                                 ROW(proof->schedule, sched_instance, chain->hops[i].from)->layer;
    const char *label = shown(proof, instance);
    return several ? context_printf(proof->context, "%s of layer %u", label, layer) : label;
}

/// Why a hop waits, and the place that says so.
static const char *reason(const struct proof *proof, const struct hop *hop, struct span *place)
{
    const struct ast *ast = &proof->program->ast;
    *place = node_at(ast, stage_of(proof, hop->to)->node)->span;
    if (hop->edge == NONE) {
        *place = issue_span(proof, hop->from);
        uint32_t stream = ROW(proof->schedule, sched_instance, hop->to)->stream;
        const char *name = ir_text(proof->schedule, ROW(proof->schedule, sched_stream, stream)->name);
        return context_printf(proof->context, "issued before it on `%s`", name);
    }
    const struct sched_edge *edge = ROW(proof->schedule, sched_edge, hop->edge);
    if (edge->why == edge_data)
        return context_printf(proof->context, "it reads `%s`", ir_text(proof->schedule, edge->value));
    if (edge->why == edge_message)
        return "it receives what the other ranks send";
    *place = node_at(ast, edge->node)->span;
    return edge->why == edge_sync ? "`sync` stands between" : "ordered here";
}

void note_chain(const struct proof *proof, struct diag *diag, const struct chain *chain)
{
    int left = 0, right = 0;
    for (uint32_t i = 0; i < chain->count; i++) {
        int to = (int)strlen(shown_in_layer(proof, chain, chain->hops[i].to));
        int from = (int)strlen(shown_in_layer(proof, chain, chain->hops[i].from));
        left = to > left ? to : left;
        right = from > right ? from : right;
    }
    for (uint32_t i = chain->count; i-- > 0;) {
        const struct hop *hop = &chain->hops[i];
        const char *to = shown_in_layer(proof, chain, hop->to), *from = shown_in_layer(proof, chain, hop->from);
        struct span place;
        const char *why = reason(proof, hop, &place);
        if (strcmp(to, from) != 0)
            diag_note_at(proof->context, diag, place, "%-*s waits for %-*s   %s", left, to, right, from, why);
    }
}

struct finder {
    const struct proof *proof;
    struct arcs arcs;
    struct hop *by;   // by instance: how it was reached, in turn `turn[instance]`
    uint32_t *turn, *queue, turns;
};

struct finder *finder_make(const struct proof *proof, bool streams)
{
    struct finder *finder = context_alloc(proof->context, sizeof *finder);
    *finder = (struct finder){.proof = proof, .arcs = arcs_make(proof->context, proof->schedule, streams)};
    finder->by = context_alloc(proof->context, (finder->arcs.count + 1) * sizeof *finder->by);
    finder->turn = context_alloc(proof->context, (finder->arcs.count + 1) * sizeof *finder->turn);
    finder->queue = context_alloc(proof->context, (finder->arcs.count + 1) * sizeof *finder->queue);
    return finder;
}

static bool is_order_statement(const struct proof *proof, uint32_t edge)
{
    if (edge == NONE)
        return false; // the order of a stream
    const struct sched_edge *row = ROW(proof->schedule, sched_edge, edge);
    return row->why == edge_order && row->node && node_at(&proof->program->ast, row->node)->kind == NODE_ORDER;
}

static bool search_chain(struct finder *f, uint32_t from, uint32_t to, bool orders)
{
    const struct ir *schedule = f->proof->schedule;
    uint32_t group = ROW(schedule, sched_info, 0)->group, first = ROW(schedule, sched_instance, from)->layer / group;
    uint32_t head = 0, tail = 0, turn = ++f->turns;
    f->queue[tail++] = from;
    while (head < tail && f->turn[to] != turn) {
        uint32_t at = f->queue[head++];
        for (uint32_t a = f->arcs.first[at]; a < f->arcs.first[at + 1]; a++) {
            struct arc arc = f->arcs.list[a];
            if (f->turn[arc.to] == turn || ROW(schedule, sched_instance, arc.to)->layer / group != first ||
                (!orders && is_order_statement(f->proof, arc.edge)))
                continue;
            f->turn[arc.to] = turn;
            f->by[arc.to] = (struct hop){at, arc.to, arc.edge};
            if (arc.to != from)
                f->queue[tail++] = arc.to;
        }
    }
    return f->turn[to] == turn;
}

struct chain find_chain(struct finder *finder, uint32_t from, uint32_t to, bool orders)
{
    struct chain chain = {NULL, 0};
    if (from == to || !search_chain(finder, from, to, orders))
        return chain;
    for (uint32_t at = to; at != from; at = finder->by[at].from)
        chain.count++;
    chain.hops = context_alloc(finder->proof->context, chain.count * sizeof *chain.hops);
    for (uint32_t at = to, i = chain.count; at != from; at = finder->by[at].from)
        chain.hops[--i] = finder->by[at];
    return chain;
}

// Cycles. Node i is instance i; node count + i is "further along the stream, up to i", entered at cost 1 and left for
// free, so that any distance along one stream counts as one wait. Leaving it for an instance that a rule placed costs
// one more: a cycle is better told by what the text says.

struct search {
    const struct ir *schedule;
    struct arcs edges; // without stream order
    uint32_t *next;    // by instance: the next on its stream, or NONE
    uint32_t *cost, *parent, *via;
    uint32_t *now, *later; // nodes at this cost, and at the next
    uint32_t now_count, later_count;
};

static void reach(struct search *s, uint32_t node, uint32_t cost, uint32_t parent, uint32_t via, bool free_step)
{
    if (s->cost[node] <= cost)
        return;
    s->cost[node] = cost;
    s->parent[node] = parent;
    s->via[node] = via;
    if (free_step)
        s->now[s->now_count++] = node;
    else
        s->later[s->later_count++] = node;
}

static void expand(struct search *s, uint32_t node, uint32_t cost)
{
    uint32_t count = s->edges.count;
    if (node >= count) {
        uint32_t next = s->next[node - count];
        bool automatic = ROW(s->schedule, sched_instance, node - count)->automatic;
        reach(s, node - count, cost + automatic, node, NONE, !automatic);
        if (next != NONE)
            reach(s, count + next, cost, node, NONE, true);
        return;
    }
    for (uint32_t a = s->edges.first[node]; a < s->edges.first[node + 1]; a++)
        reach(s, s->edges.list[a].to, cost + 1, node, s->edges.list[a].edge, false);
    if (s->next[node] != NONE)
        reach(s, count + s->next[node], cost + 1, node, NONE, false);
}

/// The cost of the cheapest way back to `start`, below `limit`; else `limit`. Leaves parents for read_cycle.
static uint32_t way_back(struct search *s, uint32_t start, uint32_t limit)
{
    uint32_t nodes = 2 * s->edges.count;
    for (uint32_t i = 0; i < nodes; i++)
        s->cost[i] = NONE;
    s->now_count = s->later_count = 0;
    expand(s, start, 0); // the start itself stays unreached until the way comes back
    for (uint32_t cost = 1; cost < limit && s->later_count; cost++) {
        uint32_t *swap = s->now;
        s->now = s->later;
        s->later = swap;
        s->now_count = s->later_count;
        s->later_count = 0;
        for (uint32_t i = 0; i < s->now_count; i++)
            if (s->cost[s->now[i]] == cost && s->now[i] != start)
                expand(s, s->now[i], cost);
        if (s->cost[start] != NONE)
            return s->cost[start];
    }
    return limit;
}

/// The instance before one on the way found.
static uint32_t step_back(const struct search *s, uint32_t at)
{
    uint32_t from = s->parent[at];
    while (from >= s->edges.count)
        from = s->parent[from];
    return from;
}

static struct chain read_cycle(const struct proof *proof, const struct search *s, uint32_t start)
{
    struct chain chain = {NULL, 1};
    for (uint32_t at = step_back(s, start); at != start; at = step_back(s, at))
        chain.count++;
    chain.hops = context_alloc(proof->context, chain.count * sizeof *chain.hops);
    for (uint32_t at = start, i = chain.count; i-- > 0; at = step_back(s, at))
        chain.hops[i] = (struct hop){step_back(s, at), at, s->via[at]};
    return chain;
}

static struct search search_make(const struct proof *proof)
{
    struct search s = {.schedule = proof->schedule, .edges = arcs_make(proof->context, proof->schedule, false)};
    uint32_t count = s.edges.count, slots = 4 * count + 4 * s.edges.first[count] + 4;
    uint32_t **arrays[] = {&s.next, &s.cost, &s.parent, &s.via, &s.now, &s.later};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        *arrays[i] = context_alloc(proof->context, slots * sizeof **arrays[i]);
    for (uint32_t i = 0; i < count; i++) {
        const struct sched_instance *row = ROW(proof->schedule, sched_instance, i);
        struct rows order = ROW(proof->schedule, sched_stream, row->stream)->order;
        bool last = row->position + 1 == order.count;
        s.next[i] = last ? NONE : ROW(proof->schedule, sched_slot, order.first + row->position + 1)->instance;
    }
    return s;
}

struct chain find_cycle(const struct proof *proof, const bool *core)
{
    struct search s = search_make(proof);
    struct chain best = {NULL, 0};
    uint32_t length = 2 * s.edges.count + 1, starts = 0;
    for (uint32_t i = 0; i < s.edges.count && starts < STARTS_MAX && length > 1; i++) {
        if (!core[i])
            continue;
        starts++;
        uint32_t found = way_back(&s, i, length);
        if (found >= length)
            continue;
        length = found;
        best = read_cycle(proof, &s, i);
    }
    return best;
}
