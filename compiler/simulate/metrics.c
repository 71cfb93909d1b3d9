// A prediction as figures. Shares are of the step, means over ranks; bytes are per layer, the largest over ranks.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/simulate/model.h"

// ---- intervals --------------------------------------------------------------------------------------------------------

void intervals_add(struct context *context, struct intervals *list, double begin, double end)
{
    if (!(end > begin))
        return;
    list->at = context_grow(context, list->at, &list->capacity, list->count + 1, sizeof *list->at);
    list->at[list->count++] = (struct interval){begin, end};
}

static int by_begin(const void *a, const void *b)
{
    const struct interval *left = a, *right = b;
    return (left->begin > right->begin) - (left->begin < right->begin);
}

void intervals_join(struct intervals *list)
{
    uint32_t kept = 0;
    if (!list->count)
        return;
    qsort(list->at, list->count, sizeof *list->at, by_begin);
    for (uint32_t i = 1; i < list->count; i++) {
        if (list->at[i].begin > list->at[kept].end)
            list->at[++kept] = list->at[i];
        else
            list->at[kept].end = fmax(list->at[kept].end, list->at[i].end);
    }
    list->count = kept + 1;
}

double intervals_length(const struct intervals *list)
{
    double length = 0;
    for (uint32_t i = 0; i < list->count; i++)
        length += list->at[i].end - list->at[i].begin;
    return length;
}

struct intervals intervals_cut(struct context *context, const struct intervals *a, const struct intervals *b, bool inside)
{
    struct intervals cut = {0};
    uint32_t next = 0;
    for (uint32_t i = 0; i < a->count; i++) {
        double at = a->at[i].begin, end = a->at[i].end;
        while (next < b->count && b->at[next].end <= at)
            next++;
        for (uint32_t k = next; k < b->count && b->at[k].begin < end; k++) {
            if (inside)
                intervals_add(context, &cut, fmax(at, b->at[k].begin), fmin(end, b->at[k].end));
            else
                intervals_add(context, &cut, at, b->at[k].begin);
            at = fmax(at, b->at[k].end);
        }
        if (!inside)
            intervals_add(context, &cut, at, end);
    }
    return cut;
}

struct intervals computing(const struct prediction *p, uint32_t kind)
{
    struct intervals list = {0};
    for (uint32_t i = 0; i < p->instances; i++) {
        const struct event_task *task = &p->events.tasks[prediction_task(p, kind, i)];
        if (task->kind == EVENT_COMPUTE)
            intervals_add(p->model.context, &list, task->begin, task->worked);
    }
    intervals_join(&list);
    return list;
}

static bool touches(const struct prediction *p, const struct event_flow *flow, uint32_t kind)
{
    return flow->send / p->instances == kind || flow->recv / p->instances == kind;
}

static struct intervals communicating(const struct prediction *p, uint32_t kind)
{
    struct intervals list = {0};
    for (uint32_t f = 0; f < p->events.flow_count; f++)
        if (touches(p, &p->events.flows[f], kind))
            intervals_add(p->model.context, &list, p->events.flows[f].begin, p->events.flows[f].arrived);
    intervals_join(&list);
    return list;
}

struct intervals exposed(const struct prediction *p, uint32_t kind)
{
    struct intervals messages = communicating(p, kind), compute = computing(p, kind);
    return intervals_cut(p->model.context, &messages, &compute, false);
}

uint32_t most_exposed(const struct prediction *p)
{
    uint32_t worst = 0;
    double most = -1;
    for (uint32_t kind = 0; kind < p->model.kind_count; kind++) {
        struct intervals lost = exposed(p, kind);
        if (intervals_length(&lost) > most * (1 + 1e-9)) {
            most = intervals_length(&lost);
            worst = kind;
        }
    }
    return worst;
}

void busy_of_instance(const struct prediction *p, uint32_t kind, uint32_t instance, struct intervals *list)
{
    uint32_t number = prediction_task(p, kind, instance);
    const struct event_task *task = &p->events.tasks[number];
    if (task->kind != EVENT_RECV) {
        intervals_add(p->model.context, list, task->begin, task->end);
        return;
    }
    for (uint32_t f = 0; f < p->events.flow_count; f++)
        if (p->events.flows[f].recv == number)
            intervals_add(p->model.context, list, fmax(task->begin, p->events.flows[f].begin), task->end);
}

// ---- bounds -----------------------------------------------------------------------------------------------------------

/// The task that sends it, in a schedule or (without one) in serial's steps.
static uint32_t sending_task(const struct prediction *p, const struct event_flow *flow)
{
    uint32_t instance = flow->send % p->instances;
    return p->schedule ? ROW(p->schedule, sched_instance, instance)->task : instance % COUNT(p->model.graph, graph_task);
}

/// ns that the busiest link of a kind of rank needs at least; a combine's bytes count `combine_scale` times.
static double wire_of(const struct prediction *p, uint32_t kind, double combine_scale)
{
    const struct model *m = &p->model;
    double most = 0;
    for (uint32_t link = kind * m->axes * 2; link < (kind + 1) * m->axes * 2; link++) {
        double time = 0;
        for (uint32_t f = 0; f < p->events.flow_count; f++) {
            const struct event_flow *flow = &p->events.flows[f];
            double bytes = (flow->out == link ? flow->out_bytes : 0) + (flow->in == link ? flow->in_bytes : 0);
            if (bytes <= 0)
                continue;
            struct routing routing;
            bool combine =
                combine_scale != 1 && routing_of_task(m, sending_task(p, flow), &routing) && routing.combine;
            time += bytes * (combine ? combine_scale : 1) / p->events.links[link];
        }
        most = fmax(most, time);
    }
    return most;
}

/// ns that a kind of rank computes at least, all SMs at work.
static double compute_of(const struct prediction *p, uint32_t kind)
{
    const struct model *m = &p->model;
    double time = 0;
    for (uint32_t t = 0; t < COUNT(m->graph, graph_task); t++) {
        struct task_cost cost = cost_of_task(m, t, kind, (double)p->bound, NULL);
        if (cost.compute)
            time += cost_time(m, &cost, kind, 1);
    }
    return time * p->layers;
}

struct bounds bounds_of(const struct figures *figures, double combine_scale)
{
    const struct prediction *p = figures->prediction;
    struct bounds bounds = {0};
    for (uint32_t kind = 0; kind < p->model.kind_count; kind++) { // of waves, more rows travel than must
        double wire = fmin(wire_of(p, kind, combine_scale), wire_of(figures->serial, kind, combine_scale)), compute = compute_of(p, kind);
        struct intervals busy = computing(p, kind);
        double hiding = fmax(compute, intervals_length(&busy)), share = wire > hiding ? 1 - hiding / wire : 0;
        bounds.hiding_ns = fmax(bounds.hiding_ns, hiding);
        bounds.wire_ns = fmax(bounds.wire_ns, wire);
        bounds.compute_ns = fmax(bounds.compute_ns, compute);
        bounds.exposed += share * p->model.kinds[kind].count / p->model.ranks;
    }
    return bounds;
}

// ---- metrics ----------------------------------------------------------------------------------------------------------

static double step_of(const struct prediction *p) { return p->events.end > 0 ? p->events.end : 1; }

/// Mean over ranks of what is so of each kind.
#define MEAN(p, kind, sum, value)                                                    \
    double sum = 0;                                                                  \
    for (uint32_t kind = 0; kind < (p)->model.kind_count; kind++)                    \
        sum += (value) * (p)->model.kinds[kind].count / (double)(p)->model.ranks;

static double exposed_share(const struct prediction *p, uint32_t kind)
{
    struct intervals lost = exposed(p, kind);
    return intervals_length(&lost) / step_of(p);
}

static double stream_share(const struct prediction *p, uint32_t kind, uint32_t stream)
{
    struct intervals list = {0};
    for (uint32_t i = 0; i < p->instances; i++)
        if (ROW(p->schedule, sched_instance, i)->stream == stream)
            busy_of_instance(p, kind, i, &list);
    intervals_join(&list);
    return intervals_length(&list) / step_of(p);
}

/// Does a message keep an engine of this kind of rank busy? The two directions of the net are the links across the
/// outermost axis; copy engines carry whatever leaves.
static bool uses_engine(const struct prediction *p, const struct event_flow *flow, uint32_t axis, uint32_t kind,
                        uint32_t engine)
{
    const struct model *m = &p->model;
    uint32_t outermost = 0;
    while (outermost + 1 < m->axes && m->size[outermost] <= 1)
        outermost++;
    bool sends = flow->send / p->instances == kind, receives = flow->recv / p->instances == kind;
    if (engine == engine_copy)
        return sends;
    return axis == outermost && (engine == engine_net_out ? sends : engine == engine_net_in && receives);
}

static double engine_share(const struct prediction *p, uint32_t kind, uint32_t engine)
{
    struct intervals list = engine == engine_sm ? computing(p, kind) : (struct intervals){0};
    for (uint32_t f = 0; f < p->events.flow_count; f++)
        if (uses_engine(p, &p->events.flows[f], p->flow_axis[f], kind, engine))
            intervals_add(p->model.context, &list, p->events.flows[f].begin, p->events.flows[f].left);
    intervals_join(&list);
    return intervals_length(&list) / step_of(p);
}

static double engine_bytes(const struct prediction *p, uint32_t engine)
{
    double most = 0;
    for (uint32_t kind = 0; kind < p->model.kind_count; kind++) {
        double bytes = 0;
        for (uint32_t f = 0; f < p->events.flow_count; f++)
            if (uses_engine(p, &p->events.flows[f], p->flow_axis[f], kind, engine))
                bytes += engine == engine_net_in ? p->events.flows[f].in_bytes : p->events.flows[f].out_bytes;
        for (uint32_t t = 0; t < COUNT(p->model.graph, graph_task) && engine == engine_sm; t++) {
            struct task_cost cost = cost_of_task(&p->model, t, kind, (double)p->bound, NULL);
            bytes += (cost.bytes + cost.moved_bytes) * p->layers;
        }
        most = fmax(most, bytes / p->layers);
    }
    return most;
}

/// Is this one of the instances that a text such as `dispatch[1]` or `dispatch.send[1]` names?
static bool is_named(const char *label, const char *name)
{
    size_t stem = strcspn(name, "["), length = strcspn(label, "[");
    if (strcmp(label + length, name + stem) != 0 || strncmp(label, name, stem) != 0)
        return false;
    return stem == length || (label[stem] == '.' && !memchr(name, '.', stem));
}

static bool busy_of_name(const struct prediction *p, uint32_t kind, const char *name, struct intervals *list)
{
    bool found = false;
    for (uint32_t i = 0; i < p->instances; i++) {
        const struct sched_instance *row = ROW(p->schedule, sched_instance, i);
        if (!is_named(ir_text(p->schedule, row->label), name))
            continue;
        found = true;
        if (!row->automatic)
            busy_of_instance(p, kind, i, list);
    }
    intervals_join(list);
    return found;
}

static double overlap_share(const struct prediction *p, uint32_t kind, const struct metric_argument *argument)
{
    struct intervals a = {0}, b = {0};
    if (!busy_of_name(p, kind, argument->a, &a) || !busy_of_name(p, kind, argument->b, &b))
        return NAN;
    struct intervals both = intervals_cut(p->model.context, &a, &b, true);
    double length = intervals_length(&a);
    return length > 0 ? intervals_length(&both) / length : 0;
}

static double peak_share(const struct prediction *p, uint32_t kind)
{
    double time = 0;
    for (uint32_t i = 0; i < p->instances; i++) {
        uint32_t task = prediction_task(p, kind, i);
        time += 1e9 * p->flops[task] / p->peaks[task];
    }
    return time / step_of(p);
}

static uint32_t stream_named(const struct prediction *p, const char *name)
{
    for (uint32_t s = 0; s < p->streams; s++)
        if (!strcmp(ir_text(p->schedule, ROW(p->schedule, sched_stream, s)->name), name))
            return s;
    return NONE;
}

double metric_value(const struct figures *figures, enum metric metric, const struct metric_argument *argument)
{
    const struct prediction *p = figures->prediction;
    switch (metric) {
    case metric_exposed_comm: {
        MEAN(p, kind, share, exposed_share(p, kind))
        return share;
    }
    case metric_speedup:
        return figures->serial->events.end / step_of(p);
    case metric_latency:
        return p->events.end;
    case metric_bubble: {
        uint32_t stream = stream_named(p, argument->stream);
        if (stream == NONE)
            return NAN;
        MEAN(p, kind, share, stream_share(p, kind, stream))
        return 1 - share;
    }
    case metric_utilization: {
        MEAN(p, kind, share, engine_share(p, kind, argument->engine))
        return share;
    }
    case metric_bytes:
        return engine_bytes(p, argument->engine);
    case metric_peak_memory:
        return figures->peak_memory;
    case metric_overlap: {
        MEAN(p, kind, share, overlap_share(p, kind, argument))
        return share;
    }
    case metric_mfu: {
        MEAN(p, kind, share, peak_share(p, kind))
        return share;
    }
    default:
        return NAN;
    }
}
