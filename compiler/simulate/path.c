// Why a step takes as long as it does. The critical path: from the task that ends last back to the one that let each begin. And
// the gaps of the streams that compute, each with what it waits for and what held that up.
#include <math.h>
#include <string.h>

#include "compiler/simulate/model.h"

static const double TOGETHER = 1e-3; // ns between an end and the begin that it allows

/// What let a task begin.
struct cause {
    uint32_t task;              // NONE: nothing, it could have begun at once
    enum { CAUSE_STREAM, CAUSE_DATA, CAUSE_MESSAGE } why;
};

static const char *label_of(const struct prediction *p, uint32_t task)
{
    return ir_text(p->schedule, ROW(p->schedule, sched_instance, task % p->instances)->label);
}

/// The last to end of what a task waited for, its own messages left out: for a receive these come after its begin.
static struct cause cause_of_begin(const struct prediction *p, uint32_t task)
{
    const struct event_task *tasks = p->events.tasks;
    struct cause cause = {NONE, CAUSE_STREAM};
    double latest = -1;
    for (uint32_t a = 0; a < p->events.arc_count; a++) {
        const struct event_arc *arc = &p->events.arcs[a];
        if (arc->to != task || tasks[arc->from].end <= latest)
            continue;
        latest = tasks[arc->from].end;
        cause = (struct cause){arc->from, CAUSE_DATA};
    }
    uint32_t kind = task / p->instances, before = NONE;
    for (uint32_t i = 0; i < task % p->instances; i++)
        if (tasks[prediction_task(p, kind, i)].stream == tasks[task].stream)
            before = prediction_task(p, kind, i);
    if (before != NONE && tasks[before].end >= latest - TOGETHER)
        cause = (struct cause){before, CAUSE_STREAM};
    return cause;
}

/// A receive ends with its last message: the send of that.
static struct cause cause_of_end(const struct prediction *p, uint32_t task)
{
    struct cause cause = {NONE, CAUSE_MESSAGE};
    double latest = p->events.tasks[task].begin + TOGETHER;
    for (uint32_t f = 0; f < p->events.flow_count && p->events.tasks[task].kind == EVENT_RECV; f++) {
        const struct event_flow *flow = &p->events.flows[f];
        if (flow->recv != task || flow->arrived <= latest)
            continue;
        latest = flow->arrived;
        cause.task = flow->send;
    }
    return cause;
}

struct critical critical_path(const struct prediction *p)
{
    struct critical path = {0};
    uint32_t capacity = 0, task = 0;
    for (uint32_t t = 1; t < p->events.task_count; t++)
        if (p->events.tasks[t].end > p->events.tasks[task].end)
            task = t;
    for (uint32_t steps = 0; task != NONE && steps <= p->events.task_count; steps++) {
        struct cause message = cause_of_end(p, task), cause = message.task != NONE ? message : cause_of_begin(p, task);
        path.tasks = context_grow(p->model.context, path.tasks, &capacity, path.count + 1, sizeof *path.tasks);
        path.tasks[path.count++] = task;
        task = cause.task;
    }
    return path;
}

/// How long a task is on the path: up to the begin of what comes after it, from the end of what came before.
double critical_time(const struct prediction *p, const struct critical *path, uint32_t at)
{
    const struct event_task *tasks = p->events.tasks;
    double end = tasks[path->tasks[at]].end, begin = tasks[path->tasks[at]].begin;
    if (at > 0) // a send is on the path until its message has arrived, and no longer
        end = fmax(end, tasks[path->tasks[at - 1]].kind == EVENT_RECV ? tasks[path->tasks[at - 1]].end : 0);
    if (at + 1 < path->count && tasks[path->tasks[at]].kind == EVENT_RECV && tasks[path->tasks[at + 1]].kind == EVENT_SEND)
        begin = end;
    return fmax(0, end - begin);
}

// ---- text -------------------------------------------------------------------------------------------------------------

enum { STAGES_MOST = 64, GAPS_MOST = 4 };

/// Time of the path by stage, of a layer.
static void print_stages(const struct prediction *p, const struct critical *path, FILE *out)
{
    const struct model *m = &p->model;
    double time[STAGES_MOST] = {0};
    uint32_t stages = COUNT(m->graph, mod_stage_number) < STAGES_MOST ? COUNT(m->graph, mod_stage_number) : STAGES_MOST;
    for (uint32_t i = 0; i < path->count; i++) {
        uint32_t task = ROW(p->schedule, sched_instance, path->tasks[i] % p->instances)->task;
        uint32_t stage = ROW(m->graph, graph_task, task)->module_stage;
        if (stage < stages)
            time[stage] += critical_time(p, path, i);
    }
    fprintf(out, "  critical path:");
    for (uint32_t s = 0; s < stages; s++)
        if (time[s] / p->events.end >= 0.001)
            fprintf(out, " %s %.0f%%", ir_text(m->module, ROW(m->module, mod_stage, ROW(m->graph, mod_stage_number, s)->row)->name),
                    100 * time[s] / p->events.end);
    fputc('\n', out);
}

/// "its rows arrive with ...; that began after ..." of what a task waits for.
static void print_reason(const struct prediction *p, uint32_t task, FILE *out)
{
    struct cause cause = cause_of_begin(p, task);
    if (cause.task == NONE)
        return;
    struct cause message = cause_of_end(p, cause.task);
    fprintf(out, "waits for %s", label_of(p, cause.task));
    if (message.task == NONE)
        return;
    const struct event_task *send = &p->events.tasks[message.task];
    struct cause held = cause_of_begin(p, message.task);
    fprintf(out, ": its rows travel %s", time_text(p->model.context, p->events.tasks[cause.task].end - send->begin));
    if (held.task != NONE)
        fprintf(out, ", sent after %s", label_of(p, held.task));
}

struct gap {
    uint32_t task;
    double time;
};

/// The longest gaps of one stream within a layer from the middle of the step.
static uint32_t find_gaps(const struct prediction *p, uint32_t kind, uint32_t stream, struct gap gaps[GAPS_MOST])
{
    double layer = p->events.end / p->layers, from = layer * (p->layers / 2), to = from + layer, free_at = from;
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->instances; i++) {
        const struct event_task *task = &p->events.tasks[prediction_task(p, kind, i)];
        if (ROW(p->schedule, sched_instance, i)->stream != stream || task->end < from || task->begin > to)
            continue;
        struct gap gap = {prediction_task(p, kind, i), task->begin - free_at};
        free_at = fmax(free_at, task->end);
        if (gap.time < 0.01 * layer)
            continue;
        if (count < GAPS_MOST)
            gaps[count++] = gap;
        else {
            uint32_t least = 0;
            for (uint32_t g = 1; g < count; g++)
                least = gaps[g].time < gaps[least].time ? g : least;
            if (gaps[least].time < gap.time)
                gaps[least] = gap;
        }
    }
    return count;
}

void print_reasons(const struct prediction *p, FILE *out)
{
    struct critical path = critical_path(p);
    uint32_t kind = most_exposed(p);
    print_stages(p, &path, out);
    for (uint32_t s = 0; s < p->streams; s++) {
        struct gap gaps[GAPS_MOST];
        if (!(ROW(p->schedule, sched_stream, s)->engines >> engine_sm & 1))
            continue;
        uint32_t count = find_gaps(p, kind, s, gaps);
        for (uint32_t g = 0; g < count; g++) {
            fprintf(out, "  %s idle for %s before %s: it ", ir_text(p->schedule, ROW(p->schedule, sched_stream, s)->name),
                    time_text(p->model.context, gaps[g].time), label_of(p, gaps[g].task));
            print_reason(p, gaps[g].task, out);
            fputc('\n', out);
        }
    }
}

void print_bound(const struct figures *figures, FILE *out)
{
    const struct prediction *p = figures->prediction;
    struct bounds bounds = bounds_of(figures, 1);
    struct context *context = p->model.context;
    double least = fmax(bounds.wire_ns, bounds.compute_ns) / p->layers;
    fprintf(out, "  no schedule takes less than %s a layer: %s on the busiest link, %s of compute\n", time_text(context, least),
            time_text(context, bounds.wire_ns / p->layers), time_text(context, bounds.compute_ns / p->layers));
}
