// Schedule -> tasks, messages and links, for one rank of every kind; run; keep the times. A kernel on k SMs of its own
// (`sm: k`) takes them from the rest while it runs: a stream waits for semaphores and messages without occupying any. A kernel
// that only moves bytes takes as many of the k as keep its links busy; with fewer the message is slower.
#include "compiler/simulate/model.h"

#include <math.h>

// One SM writes 50 GB/s (and reads 200), and a quarter more SMs than that are needed: the figures that DeepEP V2 plans with.
static const double SM_WRITES = 50, SM_MARGIN = 1.25;

struct part_cost {              // of a task, part and kind
    struct task_cost cost;
    double work;
};

struct making {
    struct prediction *p;
    struct part_cost *costs;    // [kind][cell]
    uint32_t *first_cell;       // by task: its cells, [part][wave][piece], and behind the last task how many there are
    struct traffic **traffic;   // by task and wave; NULL: no messages
    uint32_t tasks, parts, waves;
    uint32_t arc_capacity, flow_capacity, axis_capacity, stage_capacity;
    bool *hears;                // by event task: messages lead to it
};

static double part_tokens(const struct prediction *p, const struct sched_instance *instance)
{
    const struct sched_info *info = ROW(p->schedule, sched_info, 0);
    const struct sched_part *row = ROW(p->schedule, sched_part, info->parts.first + instance->part);
    return (double)p->bound * (double)(row->end - row->begin) / (double)row->total;
}

double instance_tokens(const struct prediction *p, const struct sched_instance *instance)
{
    if (ROW(p->model.graph, graph_task, instance->task)->whole)
        return instance->part || instance->piece ? 0 : (double)p->bound;
    double tokens = part_tokens(p, instance);
    struct sched_share share = piece_share(p->schedule, instance->task, instance->piece);
    return tokens * (double)(share.end - share.begin) / (double)share.total;
}

/// SMs of a stream's own; 0: it shares. On the CPU they are a thread, which the system gives cores like any other.
static double lent(const struct prediction *p, uint32_t stream)
{
    const struct sched_stream *row = ROW(p->schedule, sched_stream, stream);
    return row->own_thread && p->model.pipeline->target != target_cpu ? (double)row->sms : 0;
}

/// The share of a device's SMs that a stream's kernels run on.
static double share_of(const struct prediction *p, uint32_t stream, uint32_t kind)
{
    double all = (double)ROW(p->model.module, mod_device, p->model.kinds[kind].device)->sm;
    double own = lent(p, stream) > 0 ? lent(p, stream) : all; // less what others then hold: events.c
    return fmax(1, fmin(own, all)) / fmax(1, all);
}

static const struct part_cost *cost_of(struct making *m, uint32_t kind, const struct sched_instance *row)
{
    uint32_t pieces = piece_count(m->p->schedule, row->task);
    size_t cell = m->first_cell[row->task] + ((size_t)row->part * m->waves + row->wave) * pieces + row->piece;
    struct part_cost *slot = &m->costs[(size_t)kind * m->first_cell[m->tasks] + cell];
    if (slot->cost.peak <= 0) {
        double tokens = instance_tokens(m->p, row);
        struct sched_share wave = wave_share(m->p->schedule, row->wave);
        slot->cost = cost_of_task(&m->p->model, row->task, kind, tokens, &wave);
        slot->cost.peak = fmax(slot->cost.peak, 1);
    }
    slot->work = cost_time(&m->p->model, &slot->cost, kind, share_of(m->p, row->stream, kind));
    return slot;
}

static void add_task(struct making *m, uint32_t kind, uint32_t instance)
{
    struct prediction *p = m->p;
    const struct sched_instance *row = ROW(p->schedule, sched_instance, instance);
    const struct part_cost *cost = cost_of(m, kind, row);
    uint32_t stream = kind * p->streams + row->stream, number = prediction_task(p, kind, instance);
    struct event_task *task = &p->events.tasks[number];
    task->kind = cost->cost.compute ? EVENT_COMPUTE : cost->cost.recv ? EVENT_RECV : EVENT_SEND;
    task->stream = stream;
    task->pool = lent(p, row->stream) > 0 ? p->model.kind_count + stream : kind;
    double share = share_of(p, row->stream, kind);
    bool lends = lent(p, row->stream) > 0;
    task->work = cost->cost.compute ? cost->work : 0;
    if (task->work > 0 && !lends) { // bytes apart from arithmetic, which lent SMs slow more
        struct task_cost bytes = cost->cost, rest = cost->cost;
        bytes.flops = bytes.filling_flops = bytes.fixed_ns = rest.bytes = rest.filling_bytes = 0; // rows that are copied delay both
        task->work = cost_time(&p->model, &rest, kind, 1);
        task->memory = cost_time(&p->model, &bytes, kind, 1);
    }
    task->lends = lends ? share : 0;
    task->lender = kind;
    p->flops[number] = cost->cost.compute ? cost->cost.flops : 0;
    p->peaks[number] = cost->cost.peak;
}

/// The slots are the part's, whatever pieces its rows go in.
static struct spill spill_of(const struct making *m, const struct sched_instance *row)
{
    return spill_of_task(&m->p->model, m->p->schedule, row->task, part_tokens(m->p, row), row->wave);
}

/// Are these the experts that work through the rounds?
static bool works_in_rounds(const struct model *m, uint32_t task)
{
    const struct graph_task *row = ROW(m->graph, graph_task, task);
    return row->routed && (row->phase == phase_whole || row->phase == phase_down);
}

/// ...with their last piece.
static bool is_last_piece(const struct prediction *p, const struct sched_instance *row)
{
    return row->piece + 1 == piece_count(p->schedule, row->task);
}

/// In rounds experts read their weights again, for few rows.
static void add_round_work(struct making *m, uint32_t kind, uint32_t instance)
{
    struct prediction *p = m->p;
    const struct sched_instance *row = ROW(p->schedule, sched_instance, instance);
    struct event_task *task = &p->events.tasks[prediction_task(p, kind, instance)];
    struct spill o = works_in_rounds(&p->model, row->task) ? spill_of(m, row) : (struct spill){.rounds = 0};
    if (o.rounds <= 0)
        return;
    bool last = is_last_piece(p, row);
    p->rounds += kind == 0 && last ? o.rounds : 0;
    p->overflowed = fmax(p->overflowed, o.share[kind]);
    double tokens = instance_tokens(p, row), share = share_of(p, row->stream, kind);
    struct sched_share wave = wave_share(p->schedule, row->wave);
    struct task_cost all = cost_of_task(&p->model, row->task, kind, tokens, &wave);
    struct task_cost base = cost_of_task(&p->model, row->task, kind, tokens * (1 - o.share[kind]), &wave);
    struct task_cost round = cost_of_task(&p->model, row->task, kind, part_tokens(p, row) * o.share[kind] / o.rounds, &wave);
    double whole = cost_time(&p->model, &all, kind, share);
    double rounds = last ? o.rounds * cost_time(&p->model, &round, kind, share) : 0;
    double factor = (cost_time(&p->model, &base, kind, share) + rounds) / whole;
    if (whole > 0) {
        task->work *= factor;
        task->memory *= factor;
    }
}

/// The instances of a stream in their order; the table of instances is in issue order over all streams.
static void add_tasks(struct making *m)
{
    struct prediction *p = m->p;
    for (uint32_t kind = 0; kind < p->model.kind_count; kind++)
        for (uint32_t i = 0; i < p->instances; i++) {
            add_task(m, kind, i);
            add_round_work(m, kind, i);
        }
}

static void add_arc(struct making *m, uint32_t from, uint32_t to)
{
    struct events *e = &m->p->events;
    e->arcs = context_grow(m->p->model.context, e->arcs, &m->arc_capacity, e->arc_count + 1, sizeof *e->arcs);
    e->arcs[e->arc_count++] = (struct event_arc){from, to};
}

static uint32_t link_number(const struct model *m, uint32_t kind, uint32_t axis, bool in)
{
    return (kind * m->axes + axis) * 2 + in;
}

/// Is the second hop of the task's stage a task of its own?
static bool has_relay(const struct model *m, uint32_t task)
{
    uint32_t stage = ROW(m->graph, graph_task, task)->module_stage;
    for (uint32_t t = 0; t < COUNT(m->graph, graph_task); t++)
        if (ROW(m->graph, graph_task, t)->module_stage == stage && ROW(m->graph, graph_task, t)->phase == phase_relay)
            return true;
    return false;
}

static struct traffic *traffic_of(struct making *m, uint32_t task, uint32_t wave)
{
    const struct model *model = &m->p->model;
    struct traffic **slot = &m->traffic[task * m->waves + wave];
    struct routing routing;
    if (!*slot && routing_of_task(model, task, &routing)) {
        bool relay = ROW(model->graph, graph_task, task)->phase == phase_relay;
        struct sched_share share = wave_share(m->p->schedule, wave);
        routing_wave(&routing, &share);
        *slot = traffic_make(model, &routing, relay);
        if (routing.via != NONE && !has_relay(model, task)) // rows stream through both hops while they are sent
            traffic_add(*slot, traffic_make(model, &routing, true));
    }
    return *slot;
}

static void add_flow(struct making *m, struct event_flow flow, uint32_t axis, uint32_t stage)
{
    struct prediction *p = m->p;
    struct events *e = &p->events;
    struct context *context = p->model.context;
    e->flows = context_grow(context, e->flows, &m->flow_capacity, e->flow_count + 1, sizeof *e->flows);
    p->flow_axis = context_grow(context, p->flow_axis, &m->axis_capacity, e->flow_count + 1, sizeof *p->flow_axis);
    p->stage_of_flow =
        context_grow(context, p->stage_of_flow, &m->stage_capacity, e->flow_count + 1, sizeof *p->stage_of_flow);
    p->flow_axis[e->flow_count] = axis;
    p->stage_of_flow[e->flow_count] = stage;
    e->flows[e->flow_count++] = flow;
    m->hears[flow.recv] = true;
}

static bool is_combine(const struct model *m, uint32_t task)
{
    struct routing routing;
    return routing_of_task(m, task, &routing) && routing.combine;
}

/// All rows that come to the experts of an instance's wave, from their own ranks: in rounds nothing is relayed.
static const struct traffic *arrivals(const struct making *m, const struct sched_instance *row)
{
    struct routing routing;
    routing_of_task(&m->p->model, row->task, &routing);
    routing.combine = false;
    routing.via = NONE;
    struct sched_share wave = wave_share(m->p->schedule, row->wave);
    routing_wave(&routing, &wave);
    return traffic_make(&m->p->model, &routing, false);
}

/// Every message that one instance sends, by kind of receiver and link.
static void add_flows(struct making *m, uint32_t from, uint32_t to)
{
    struct prediction *p = m->p;
    const struct model *model = &p->model;
    const struct sched_instance *row = ROW(p->schedule, sched_instance, from);
    const struct traffic *t = traffic_of(m, row->task, row->wave);
    double tokens = instance_tokens(p, row);
    struct spill o = spill_of(m, row);
    struct traffic slots;
    if (t && o.rounds > 0) {
        slots = *t;
        struct routing routing;
        bool relayed = routing_of_task(model, row->task, &routing) && routing.via != NONE;
        spill_take(&o, relayed ? NULL : arrivals(m, row), is_combine(model, row->task), &slots, model->kind_count, model->axes);
        t = &slots;
    }
    for (uint32_t a = 0; t && a < model->axes; a++) {
        double bytes = tokens * row_bytes(model, row->task, a);
        for (uint32_t k = 0; k < model->kind_count; k++)
            for (uint32_t d = 0; d < model->kind_count; d++) {
                if (t->out_rows[k][d][a] <= 0)
                    continue;
                struct event_flow flow = {.send = prediction_task(p, k, from),
                                          .recv = prediction_task(p, d, to),
                                          .out = link_number(model, k, a, false),
                                          .in = link_number(model, d, a, true),
                                          .out_bytes = bytes * t->out_rows[k][d][a],
                                          .in_bytes = bytes * t->in_rows[k][d][a],
                                          .latency = model->latency[a]};
                add_flow(m, flow, a, ROW(model->graph, graph_task, row->task)->module_stage);
            }
    }
}

/// Bytes of a row of what sends a dispatch's rows, or their replies.
static double bytes_of(const struct model *m, const struct mod_stage *dispatch, bool combine, uint32_t axis)
{
    for (uint32_t t = 0; t < COUNT(m->graph, graph_task); t++)
        if (ROW(m->graph, graph_task, t)->phase == phase_send && dispatch_of_task(m, t) == dispatch && is_combine(m, t) == combine)
            return row_bytes(m, t, axis);
    return 0;
}

/// What travels in rounds between two kinds of ranks, by one rank of the first and to one of the second: rows and replies.
struct crossing {
    double there_out, there_in, back_out, back_in;
};

static struct crossing crossing_of(const struct model *model, const struct spill *o, const struct traffic *t,
                                   const struct mod_stage *dispatch, double tokens, uint32_t k, uint32_t d, uint32_t axis)
{
    double there = tokens * bytes_of(model, dispatch, false, axis), back = tokens * bytes_of(model, dispatch, true, axis);
    return (struct crossing){there * o->share[d] * t->out_rows[k][d][axis], there * o->share[d] * t->in_rows[k][d][axis],
                             back * o->share[k] * t->in_rows[d][k][axis], back * o->share[k] * t->out_rows[d][k][axis]};
}

/// Replies follow the rows, mostly over the links' other directions: what that takes beyond both together on the busiest link.
static double turn_time(const struct model *model, const struct spill *o, const struct traffic *t, const struct mod_stage *dispatch,
                        double tokens)
{
    double there = 0, back = 0, both = 0;
    for (uint32_t a = 0; a < model->axes; a++)
        for (uint32_t k = 0; k < model->kind_count; k++) {
            struct crossing out = {0}, in = {0};
            for (uint32_t d = 0; d < model->kind_count; d++) {
                struct crossing c = crossing_of(model, o, t, dispatch, tokens, k, d, a), e = crossing_of(model, o, t, dispatch, tokens, d, k, a);
                out.there_out += c.there_out;
                out.back_out += c.back_out;
                in.there_in += e.there_in;
                in.back_in += e.back_in;
            }
            double speed = fmax(model->bandwidth[a], 1e-12);
            there = fmax(there, fmax(out.there_out, in.there_in) / speed);
            back = fmax(back, fmax(out.back_out, in.back_in) / speed);
            both = fmax(both, fmax(out.there_out + out.back_out, in.there_in + in.back_in) / speed);
        }
    return there + back - both;
}

/// Messages of the rounds, while the experts' instance lasts: a latency each way and round.
static void add_round_flows(struct making *m, uint32_t instance)
{
    struct prediction *p = m->p;
    const struct model *model = &p->model;
    const struct sched_instance *row = ROW(p->schedule, sched_instance, instance);
    struct spill o = spill_of(m, row);
    if (!works_in_rounds(model, row->task) || o.rounds <= 0 || !is_last_piece(p, row))
        return;
    const struct traffic *t = arrivals(m, row);
    const struct mod_stage *dispatch = dispatch_of_task(model, row->task);
    double tokens = part_tokens(p, row), turn = turn_time(model, &o, t, dispatch, tokens);
    for (uint32_t a = 0; a < model->axes; a++)
        for (uint32_t k = 0; k < model->kind_count; k++)
            for (uint32_t d = 0; d < model->kind_count; d++) {
                struct crossing c = crossing_of(model, &o, t, dispatch, tokens, k, d, a);
                struct event_flow flow = {.send = prediction_task(p, k, instance),
                                          .recv = prediction_task(p, d, instance),
                                          .out = link_number(model, k, a, false),
                                          .in = link_number(model, d, a, true),
                                          .out_bytes = c.there_out + c.back_out,
                                          .in_bytes = c.there_in + c.back_in,
                                          .latency = 2 * o.rounds * model->latency[a] + turn};
                if (flow.out_bytes > 0)
                    add_flow(m, flow, a, ROW(model->graph, graph_task, row->task)->module_stage);
            }
}

static void add_edges(struct making *m)
{
    struct prediction *p = m->p;
    for (int messages = 1; messages >= 0; messages--)
        for (uint32_t i = 0; i < COUNT(p->schedule, sched_edge); i++) {
            const struct sched_edge *edge = ROW(p->schedule, sched_edge, i);
            bool message = edge->why == edge_message;
            if (message && messages)
                add_flows(m, edge->from, edge->to);
            for (uint32_t kind = 0; kind < p->model.kind_count && !messages; kind++) {
                uint32_t to = prediction_task(p, kind, edge->to);
                if (!message || !m->hears[to]) // with no message to wait for, the own send stands for it
                    add_arc(m, prediction_task(p, kind, edge->from), to);
            }
        }
}

/// Bytes per ns that a task's messages take when nothing else uses its links: all of them in the time of the busiest link.
static double rate_of_messages(const struct prediction *p, uint32_t task, bool in, double *bytes)
{
    double time = 0;
    *bytes = 0;
    for (uint32_t a = 0; a < p->model.axes; a++) {
        double over = 0;
        for (uint32_t f = 0; f < p->events.flow_count; f++) {
            const struct event_flow *flow = &p->events.flows[f];
            if (p->flow_axis[f] == a && (in ? flow->recv : flow->send) == task)
                over += in ? flow->in_bytes : flow->out_bytes;
        }
        time = fmax(time, over / fmax(p->model.bandwidth[a], 1e-12));
        *bytes += over;
    }
    return time > 0 ? *bytes / time : 0;
}

/// Messages on SMs: how many of those given they keep, and how fast those are.
static void lend_to_messages(struct prediction *p)
{
    for (uint32_t i = 0; i < p->events.task_count; i++) {
        struct event_task *task = &p->events.tasks[i];
        if (task->lends <= 0 || task->kind == EVENT_COMPUTE)
            continue;
        bool in = task->kind == EVENT_RECV;
        double bytes, all = (double)ROW(p->model.module, mod_device, p->model.kinds[i / p->instances].device)->sm;
        double rate = rate_of_messages(p, i, in, &bytes), given = task->lends * all;
        if (given * SM_WRITES / SM_MARGIN >= rate)
            continue;
        for (uint32_t f = 0; f < p->events.flow_count; f++) {
            struct event_flow *flow = &p->events.flows[f];
            if ((in ? flow->recv : flow->send) != i)
                continue;
            double limit = given * SM_WRITES / SM_MARGIN * (in ? flow->in_bytes : flow->out_bytes) / bytes;
            limit *= in && flow->in_bytes > 0 ? flow->out_bytes / flow->in_bytes : 1;
            flow->limit = flow->limit > 0 ? fmin(flow->limit, limit) : limit;
        }
    }
}

static void add_links(struct prediction *p)
{
    const struct model *m = &p->model;
    p->events.link_count = m->kind_count * m->axes * 2;
    p->events.links = context_alloc(m->context, (p->events.link_count + 1) * sizeof *p->events.links);
    for (uint32_t k = 0; k < m->kind_count; k++)
        for (uint32_t a = 0; a < m->axes; a++)
            for (int in = 0; in < 2; in++)
                p->events.links[link_number(m, k, a, in)] = fmax(m->bandwidth[a], 1e-12);
}

/// NULL: the schedule cannot end.
static struct prediction *run_model(struct model model, struct ir *schedule)
{
    struct context *context = model.context;
    struct prediction *p = context_alloc(context, sizeof *p);
    const struct sched_info *info = ROW(schedule, sched_info, 0);
    p->model = model;
    p->schedule = schedule;
    p->instances = COUNT(schedule, sched_instance);
    p->streams = COUNT(schedule, sched_stream);
    p->layers = info->layers;
    p->bound = info->bound;
    struct making m = {.p = p, .tasks = COUNT(model.graph, graph_task), .parts = info->parts.count, .waves = info->waves};
    size_t all = (size_t)model.kind_count * p->instances;
    p->events.task_count = (uint32_t)all;
    p->events.stream_count = model.kind_count * p->streams;
    p->events.pool_count = model.kind_count * (1 + p->streams);
    p->events.tasks = context_alloc(context, (all + 1) * sizeof *p->events.tasks);
    p->flops = context_alloc(context, (all + 1) * sizeof *p->flops);
    p->peaks = context_alloc(context, (all + 1) * sizeof *p->peaks);
    m.hears = context_alloc(context, all + 1);
    m.first_cell = context_alloc(context, (m.tasks + 1) * sizeof *m.first_cell);
    for (uint32_t t = 0; t < m.tasks; t++)
        m.first_cell[t + 1] = m.first_cell[t] + m.parts * m.waves * piece_count(schedule, t);
    m.costs = context_alloc(context, ((size_t)model.kind_count * m.first_cell[m.tasks] + 1) * sizeof *m.costs);
    m.traffic = context_alloc(context, ((size_t)m.tasks * m.waves + 1) * sizeof *m.traffic);
    add_tasks(&m);
    add_edges(&m);
    for (uint32_t i = 0; i < p->instances; i++)
        add_round_flows(&m, i);
    add_links(p);
    lend_to_messages(p);
    return run_events(context, &p->events) ? p : NULL;
}

static struct prediction *run_proven(struct model model, struct ir *schedule)
{
    struct prediction *p = run_model(model, schedule);
    if (!p)
        fatal(model.context, EXIT_BUG, "the simulation of a proven schedule cannot end");
    return p;
}

struct prediction *predict(struct context *context, const struct program_text *program, const struct ir *module,
                           uint32_t pipeline, const struct ir *graph, struct ir *schedule, const struct load *load)
{
    struct model model;
    model_make(&model, context, program, module, pipeline, graph, load);
    return run_proven(model, schedule);
}

static double draft_times(void *of, struct ir *draft, double *durations)
{
    struct prediction *p = run_model(*(struct model *)of, draft);
    if (!p)
        return NAN;
    for (uint32_t i = 0; i < p->instances; i++)
        durations[i] = 0;
    for (uint32_t kind = 0; kind < p->model.kind_count; kind++) {
        const struct event_task *tasks = &p->events.tasks[prediction_task(p, kind, 0)];
        for (uint32_t i = 0; i < p->instances; i++)
            if (tasks[i].kind != EVENT_RECV)
                durations[i] = fmax(durations[i], tasks[i].end - tasks[i].begin);
        for (uint32_t e = 0; e < COUNT(draft, sched_edge); e++) {
            const struct sched_edge *edge = ROW(draft, sched_edge, e);
            if (edge->why == edge_message)
                durations[edge->to] = fmax(durations[edge->to], tasks[edge->to].end - fmax(tasks[edge->to].begin, tasks[edge->from].end));
        }
    }
    return p->events.end;
}

struct forecast forecast_make(struct context *context, const struct program_text *program, const struct ir *module,
                              uint32_t pipeline, const struct ir *graph, const struct load *load)
{
    struct model *model = context_alloc(context, sizeof *model);
    model_make(model, context, program, module, pipeline, graph, load);
    return (struct forecast){model, draft_times};
}

// ---- no overlap -------------------------------------------------------------------------------------------------------

static uint32_t add_serial_instance(const struct model *m, struct ir *schedule, uint32_t layer, uint32_t task)
{
    str_id label = ir_str(schedule, ir_text(m->graph, ROW(m->graph, graph_task, task)->stage));
    uint32_t row = NEW_ROW(m->context, schedule, sched_instance);
    *ROW(schedule, sched_instance, row) =
        (struct sched_instance){.task = task, .layer = layer, .label = label, .stream = 0, .position = row};
    return row;
}

struct prediction *predict_serial(const struct prediction *like)
{
    const struct model *m = &like->model;
    const struct ir *graph = m->graph;
    struct ir *schedule = context_ir(m->context);
    uint32_t tasks = COUNT(graph, graph_task);
    context_ir_init(m->context, schedule, &schedule_ir);
    uint32_t part = NEW_ROW(m->context, schedule, sched_part), stream = NEW_ROW(m->context, schedule, sched_stream);
    NEW_ROW(m->context, schedule, sched_info);
    *ROW(schedule, sched_part, part) = (struct sched_part){.begin = 0, .end = 1, .total = 1, .bound = like->bound};
    str_id name = ir_str(schedule, "serial"), main = ir_str(schedule, "main");
    *ROW(schedule, sched_stream, stream) = (struct sched_stream){.name = main};
    *ROW(schedule, sched_info, 0) =
        (struct sched_info){.name = name, .layers = like->layers, .bound = like->bound, .parts = {part, 1}, .waves = 1};
    for (uint32_t layer = 0; layer < like->layers; layer++)
        for (uint32_t t = 0; t < tasks; t++)
            add_serial_instance(m, schedule, layer, t);
    for (uint32_t i = 0; i < like->layers * tasks; i++) {
        const struct graph_task *task = ROW(graph, graph_task, i % tasks);
        for (uint32_t r = 0; r < task->reads.count; r++) {
            const struct graph_value *value =
                ROW(graph, graph_value, ROW(graph, graph_use, task->reads.first + r)->value);
            if (!value->remote || value->task == NONE)
                continue;
            uint32_t edge = NEW_ROW(m->context, schedule, sched_edge);
            *ROW(schedule, sched_edge, edge) =
                (struct sched_edge){.from = i - i % tasks + value->task, .to = i, .why = edge_message};
        }
    }
    if (schedule->out_of_memory)
        fatal(m->context, EXIT_SYSTEM, "out of memory");
    struct prediction *p = run_proven(*m, schedule);
    ir_free(schedule);
    p->schedule = NULL;
    return p;
}

double predict_alone(const struct prediction *like, double *weights)
{
    struct model m = like->model;
    double slowest = 0;
    uint32_t kind_of = 0, first_owner = 0;
    int64_t owned = ROW(m.module, mod_placement, m.pipeline->placement)->experts;
    m.ranks = 1;
    m.axes = 0;
    m.kind_of = &kind_of;
    m.owned_of = &owned;
    m.first_owner = &first_owner;
    if (m.copies) { // one rank has none
        m.copies = false;
        m.loads = context_alloc(m.context, (size_t)(owned + 1) * sizeof *m.loads);
        m.loads[owned] = (double)owned;
    }
    m.kind_count = 1;
    for (uint32_t kind = 0; kind < like->model.kind_count; kind++) {
        m.kinds[0] = (struct rank_kind){.device = like->model.kinds[kind].device, .owned = owned, .count = 1};
        struct prediction alone = {.model = m, .bound = like->bound, .layers = like->layers};
        slowest = fmax(slowest, predict_serial(&alone)->events.end);
    }
    *weights = layer_weight_bytes(&m) * (double)m.pipeline->repeat;
    return slowest;
}
