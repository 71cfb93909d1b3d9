// The event loop. Between two events every active task and message progresses at a constant rate; an event is the next
// one to finish. Links are shared by progressive filling: every message gets the same share of a link, and what a slower
// link elsewhere keeps it from using goes to the others.
#include "compiler/simulate/events.h"

#include <math.h>

static const double SHARE_THAT_FILLS_MEMORY = 0.25; // a quarter of the SMs pull all that memory gives
static const double TICK = 1e-6; // ns below which work counts as done: far under any cost, far over rounding

struct loop {
    struct context *context;
    struct events *events;
    double now;
    uint32_t *waits;        // by task: arcs and stream neighbours that have not ended
    uint32_t *messages;     // by task: SEND flows not left, RECV flows not arrived
    uint32_t *first, *next; // successors: arcs in lists by their source
    uint32_t *flow_first;   // flows in order of their send: a run of `flow_order` per task
    uint32_t *flow_order;
    bool *begun, *worked, *holds;    // by task: it keeps what it lends
    bool *reached;          // by task: a message to it is under way
    double *taken;          // by pool: share of its SMs that is lent
    double *left;           // by task: work left; by flow: share left
    double *flow_left, *rate, *weight;
    uint32_t *active, *moving, *flying; // computing tasks, flows under way, flows that only their latency holds
    uint32_t active_count, moving_count, flying_count;
    uint32_t *in_pool;      // by pool: tasks computing
    uint32_t *ready;        // tasks to look at
    uint32_t ready_count, done;
    double *capacity, *demand; // by link, for filling
    bool *settled;
};

static void *array(struct loop *l, size_t count, size_t size) { return context_alloc(l->context, (count + 1) * size); }

static void add_arc(struct loop *l, uint32_t number, uint32_t from, uint32_t to, uint32_t *targets)
{
    targets[number] = to;
    l->next[number] = l->first[from];
    l->first[from] = number + 1;
    l->waits[to]++;
}

/// Arcs and the order of streams as one list.
static uint32_t *link_tasks(struct loop *l)
{
    struct events *e = l->events;
    uint32_t *targets = array(l, e->arc_count + e->task_count, sizeof *targets), number = 0;
    uint32_t *last = array(l, e->stream_count, sizeof *last);
    l->next = array(l, e->arc_count + e->task_count, sizeof *l->next);
    for (uint32_t i = 0; i < e->arc_count; i++)
        add_arc(l, number++, e->arcs[i].from, e->arcs[i].to, targets);
    for (uint32_t t = 0; t < e->task_count; t++) {
        uint32_t *before = &last[e->tasks[t].stream];
        if (*before)
            add_arc(l, number++, *before - 1, t, targets);
        *before = t + 1;
    }
    return targets;
}

static void sort_flows(struct loop *l)
{
    struct events *e = l->events;
    l->flow_first = array(l, e->task_count + 1, sizeof *l->flow_first);
    l->flow_order = array(l, e->flow_count, sizeof *l->flow_order);
    for (uint32_t f = 0; f < e->flow_count; f++)
        l->flow_first[e->flows[f].send + 1]++;
    for (uint32_t t = 0; t < e->task_count; t++)
        l->flow_first[t + 1] += l->flow_first[t];
    uint32_t *at = array(l, e->task_count, sizeof *at);
    for (uint32_t f = 0; f < e->flow_count; f++) {
        uint32_t send = e->flows[f].send;
        l->flow_order[l->flow_first[send] + at[send]++] = f;
        l->messages[send]++;
        l->messages[e->flows[f].recv]++;
    }
}

/// Messages of one send over one link share what another send would get alone.
static void weigh_flows(struct loop *l)
{
    struct events *e = l->events;
    for (uint32_t t = 0; t < e->task_count; t++)
        for (uint32_t i = l->flow_first[t]; i < l->flow_first[t + 1]; i++) {
            double all = 0;
            for (uint32_t k = l->flow_first[t]; k < l->flow_first[t + 1]; k++)
                if (e->flows[l->flow_order[k]].out == e->flows[l->flow_order[i]].out)
                    all += e->flows[l->flow_order[k]].out_bytes;
            l->weight[l->flow_order[i]] = all > 0 ? e->flows[l->flow_order[i]].out_bytes / all : 1;
        }
}

static void hold(struct loop *l, uint32_t task, bool holds)
{
    const struct event_task *row = &l->events->tasks[task];
    if (row->lends <= 0 || l->holds[task] == holds)
        return;
    if (holds && (!l->begun[task] || (row->kind == EVENT_RECV && !l->reached[task])))
        return;
    l->holds[task] = holds;
    l->taken[row->lender] += holds ? row->lends : -row->lends;
}

static void end_task(struct loop *l, uint32_t task, const uint32_t *targets)
{
    hold(l, task, false);
    l->events->tasks[task].end = l->now;
    l->done++;
    for (uint32_t i = l->first[task]; i; i = l->next[i - 1])
        if (--l->waits[targets[i - 1]] == 0)
            l->ready[l->ready_count++] = targets[i - 1];
}

static void begin_flows(struct loop *l, uint32_t send)
{
    for (uint32_t i = l->flow_first[send]; i < l->flow_first[send + 1]; i++) {
        uint32_t flow = l->flow_order[i];
        l->events->flows[flow].begin = l->now;
        l->flow_left[flow] = 1;
        l->moving[l->moving_count++] = flow;
        l->reached[l->events->flows[flow].recv] = true;
        hold(l, l->events->flows[flow].recv, true);
    }
}

/// Of a task that computes: what is left are its messages.
static void finish_work(struct loop *l, uint32_t number, const uint32_t *targets)
{
    l->events->tasks[number].worked = l->now;
    l->worked[number] = true;
    if (!l->messages[number]) {
        end_task(l, number, targets);
        return;
    }
    hold(l, number, false);
    begin_flows(l, number);
}

static void begin_task(struct loop *l, uint32_t number, const uint32_t *targets)
{
    struct event_task *task = &l->events->tasks[number];
    task->begin = l->now;
    l->begun[number] = true;
    hold(l, number, true);
    if (task->kind == EVENT_COMPUTE && fmax(task->work, task->memory) > TICK) {
        l->left[number] = fmax(task->work, task->memory);
        l->active[l->active_count++] = number;
        l->in_pool[task->pool]++;
        return;
    }
    if (task->kind == EVENT_COMPUTE) {
        finish_work(l, number, targets);
        return;
    }
    if (task->kind == EVENT_SEND)
        begin_flows(l, number);
    if (!l->messages[number])
        end_task(l, number, targets);
}

/// Of the links where messages meet that are not settled yet, the one that settles first; NONE when all are.
static uint32_t tightest(const struct loop *l, double *level)
{
    uint32_t best = NONE;
    for (uint32_t link = 0; link < l->events->link_count; link++) {
        if (l->demand[link] <= 0)
            continue;
        double own = fmax(0, l->capacity[link]) / l->demand[link];
        if (best == NONE || own < *level) {
            best = link;
            *level = own;
        }
    }
    return best;
}

/// Bytes that a flow puts on its `in` link for each on its `out` link.
static double spread(const struct event_flow *flow)
{
    return flow->out_bytes > 0 ? flow->in_bytes / flow->out_bytes : 0;
}

static void settle(struct loop *l, uint32_t number, double bytes)
{
    const struct event_flow *flow = &l->events->flows[number];
    l->settled[number] = true;
    l->rate[number] = bytes / flow->out_bytes;
    l->capacity[flow->out] -= bytes;
    l->capacity[flow->in] -= bytes * spread(flow);
    l->demand[flow->out] -= l->weight[number];
    l->demand[flow->in] -= l->weight[number] * spread(flow);
}

/// A message that its ends cannot move as fast as the links would; NONE: every open one can.
static uint32_t limited(const struct loop *l, double level)
{
    uint32_t slowest = NONE;
    for (uint32_t i = 0; i < l->moving_count; i++) {
        uint32_t number = l->moving[i];
        double limit = l->events->flows[number].limit / l->weight[number];
        if (l->settled[number] || limit <= 0 || limit >= level)
            continue;
        level = limit;
        slowest = number;
    }
    return slowest;
}

/// The share of each moving flow that passes per ns.
static void set_rates(struct loop *l)
{
    const struct events *e = l->events;
    for (uint32_t i = 0; i < e->link_count; i++) {
        l->capacity[i] = e->links[i];
        l->demand[i] = 0;
    }
    for (uint32_t i = 0; i < l->moving_count; i++) {
        const struct event_flow *flow = &e->flows[l->moving[i]];
        l->settled[l->moving[i]] = flow->out_bytes <= 0;
        l->rate[l->moving[i]] = flow->out_bytes <= 0 ? INFINITY : 0;
        if (flow->out_bytes <= 0)
            continue;
        l->demand[flow->out] += l->weight[l->moving[i]];
        l->demand[flow->in] += l->weight[l->moving[i]] * spread(flow);
    }
    double level = 0;
    for (uint32_t link; (link = tightest(l, &level)) != NONE;) {
        uint32_t slow = limited(l, level);
        if (slow != NONE) {
            settle(l, slow, e->flows[slow].limit);
            continue;
        }
        for (uint32_t i = 0; i < l->moving_count; i++) {
            uint32_t number = l->moving[i];
            const struct event_flow *flow = &e->flows[number];
            if (!l->settled[number] && (flow->out == link || flow->in == link))
                settle(l, number, l->weight[number] * level);
        }
        l->demand[link] = 0;
    }
}

/// Progress per ns: the pool is shared evenly, and what is lent of its SMs slows arithmetic more than reading.
static double compute_rate(const struct loop *l, uint32_t task)
{
    const struct event_task *row = &l->events->tasks[task];
    double share = fmax(0.01, 1 - l->taken[row->pool]), full = fmax(row->work, row->memory);
    double slow = fmax(row->work / share, row->memory / fmin(1, share / SHARE_THAT_FILLS_MEMORY));
    return full / slow / l->in_pool[row->pool];
}

/// Time to the next event; INFINITY when nothing is under way.
static double next_step(const struct loop *l)
{
    double step = INFINITY;
    for (uint32_t i = 0; i < l->active_count; i++)
        step = fmin(step, l->left[l->active[i]] / compute_rate(l, l->active[i]));
    for (uint32_t i = 0; i < l->moving_count; i++)
        if (l->rate[l->moving[i]] > 0)
            step = fmin(step, isinf(l->rate[l->moving[i]]) ? 0 : l->flow_left[l->moving[i]] / l->rate[l->moving[i]]);
    for (uint32_t i = 0; i < l->flying_count; i++)
        step = fmin(step, l->events->flows[l->flying[i]].arrived - l->now);
    return fmax(step, 0);
}

static void count_message(struct loop *l, uint32_t task, const uint32_t *targets)
{
    bool ready = l->events->tasks[task].kind == EVENT_COMPUTE ? l->worked[task] : l->begun[task];
    if (--l->messages[task] == 0 && ready)
        end_task(l, task, targets);
}

static void advance_compute(struct loop *l, double step, uint32_t *ended, uint32_t *ended_count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->active_count; i++) {
        uint32_t task = l->active[i];
        l->left[task] -= step * compute_rate(l, task);
        if (l->left[task] > TICK)
            l->active[kept++] = task;
        else
            ended[(*ended_count)++] = task;
    }
    l->active_count = kept;
    for (uint32_t i = 0; i < *ended_count; i++)
        l->in_pool[l->events->tasks[ended[i]].pool]--;
}

static void advance_flows(struct loop *l, double step, const uint32_t *targets)
{
    uint32_t kept = 0, flying = 0;
    for (uint32_t i = 0; i < l->flying_count; i++) {
        struct event_flow *flow = &l->events->flows[l->flying[i]];
        if (flow->arrived > l->now + TICK)
            l->flying[flying++] = l->flying[i];
        else
            count_message(l, flow->recv, targets);
    }
    l->flying_count = flying;
    for (uint32_t i = 0; i < l->moving_count; i++) {
        uint32_t number = l->moving[i];
        struct event_flow *flow = &l->events->flows[number];
        double rate = l->rate[number];
        l->flow_left[number] -= isinf(rate) ? 1 : step * rate;
        if (!isinf(rate) && l->flow_left[number] > TICK * rate) {
            l->moving[kept++] = number;
            continue;
        }
        flow->left = l->now;
        flow->arrived = l->now + flow->latency;
        l->flying[l->flying_count++] = number;
        count_message(l, flow->send, targets);
    }
    l->moving_count = kept;
}

static void make_arrays(struct loop *l)
{
    struct events *e = l->events;
    uint32_t **of_tasks[] = {&l->waits, &l->messages, &l->first, &l->active, &l->ready};
    for (size_t i = 0; i < sizeof of_tasks / sizeof *of_tasks; i++)
        *of_tasks[i] = array(l, e->task_count, sizeof **of_tasks[i]);
    l->begun = array(l, e->task_count, sizeof *l->begun);
    l->worked = array(l, e->task_count, sizeof *l->worked);
    l->holds = array(l, e->task_count, sizeof *l->holds);
    l->reached = array(l, e->task_count, sizeof *l->reached);
    l->taken = array(l, e->pool_count, sizeof *l->taken);
    l->left = array(l, e->task_count, sizeof *l->left);
    l->moving = array(l, e->flow_count, sizeof *l->moving);
    l->flying = array(l, e->flow_count, sizeof *l->flying);
    l->settled = array(l, e->flow_count, sizeof *l->settled);
    double **of_flows[] = {&l->flow_left, &l->rate, &l->weight};
    for (size_t i = 0; i < sizeof of_flows / sizeof *of_flows; i++)
        *of_flows[i] = array(l, e->flow_count, sizeof **of_flows[i]);
    l->in_pool = array(l, e->pool_count, sizeof *l->in_pool);
    l->capacity = array(l, e->link_count, sizeof *l->capacity);
    l->demand = array(l, e->link_count, sizeof *l->demand);
}

bool run_events(struct context *context, struct events *events)
{
    struct loop l = {.context = context, .events = events};
    make_arrays(&l);
    uint32_t *targets = link_tasks(&l), *ended = array(&l, events->task_count, sizeof *ended);
    sort_flows(&l);
    weigh_flows(&l);
    for (uint32_t t = 0; t < events->task_count; t++)
        if (!l.waits[t])
            l.ready[l.ready_count++] = t;
    for (;;) {
        for (uint32_t i = 0; i < l.ready_count; i++) // grows while tasks that take no time end at once
            begin_task(&l, l.ready[i], targets);
        l.ready_count = 0;
        set_rates(&l);
        double step = next_step(&l);
        if (isinf(step))
            break;
        l.now += step;
        uint32_t count = 0;
        advance_compute(&l, step, ended, &count);
        advance_flows(&l, step, targets);
        for (uint32_t i = 0; i < count; i++)
            finish_work(&l, ended[i], targets);
    }
    events->end = l.now;
    return l.done == events->task_count;
}
