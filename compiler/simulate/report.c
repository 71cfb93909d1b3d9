// `moecc simulate`: a prediction as text, as JSON, as a trace.
#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/simulate/model.h"
#include "runtime/output.h"
#include "runtime/watch/trace_events.h"

enum { TIMELINE_COLUMNS = 100 };

static const char *schedule_name(const struct prediction *p)
{
    return ir_text(p->schedule, ROW(p->schedule, sched_info, 0)->name);
}

static double value_of(const struct figures *figures, enum metric metric, uint32_t engine, const char *stream)
{
    return metric_value(figures, metric, &(struct metric_argument){.engine = engine, .stream = stream});
}

static uint32_t engines_of(const struct prediction *p)
{
    uint32_t mask = 1u << engine_sm;
    for (uint32_t s = 0; s < p->streams; s++)
        mask |= ROW(p->schedule, sched_stream, s)->engines;
    return mask;
}

static const char *stream_of(const struct prediction *p, uint32_t stream)
{
    return ir_text(p->schedule, ROW(p->schedule, sched_stream, stream)->name);
}

// ---- text -------------------------------------------------------------------------------------------------------------

static void print_engines(const struct figures *figures, FILE *out)
{
    const struct prediction *p = figures->prediction;
    for (uint32_t engine = 0; engine < engine_words_count; engine++) {
        if (!(engines_of(p) >> engine & 1))
            continue;
        fprintf(out, "  %-8s utilization %5.1f%%", engine_words[engine],
                100 * value_of(figures, metric_utilization, engine, NULL));
        fprintf(out, "   %.1f MB per layer\n", 1e-6 * value_of(figures, metric_bytes, engine, NULL));
    }
    for (uint32_t s = 0; s < p->streams; s++)
        fprintf(out, "  %-8s bubble      %5.1f%%\n", stream_of(p, s),
                100 * value_of(figures, metric_bubble, 0, stream_of(p, s)));
}

/// A timeline for a terminal: a background for each letter, which the digit in its middle shares.
static void print_colored(const char *text, FILE *out)
{
    static const int backgrounds[] = {44, 43, 41, 46, 42, 45, 104, 102, 105};
    int shown = 0;
    bool inside = false;
    for (const char *at = text; *at; at++) {
        inside = *at == '|' ? !inside : inside;
        int color = !inside || *at == '.' || *at == 'x' || *at == '|' ? 0
                    : isupper((unsigned char)*at) ? backgrounds[(*at - 'A') * 7 % (int)(sizeof backgrounds / sizeof *backgrounds)]
                                                  : shown;
        if (color != shown)
            fprintf(out, color ? "\033[30;%dm" : "\033[0m", color);
        shown = color;
        fputc(*at, out);
    }
    if (shown)
        fputs("\033[0m", out);
}

/// Stages that are as quick as predicted with FP8 arithmetic alone.
static void print_fp8(struct context *context, const struct model *m, FILE *out)
{
    const struct mod_device *device = ROW(m->module, mod_device, m->kinds[0].device);
    const char *names = "";
    for (uint32_t i = 0; i < m->layer->stages.count; i++) {
        const struct mod_stage *stage = ROW(m->module, mod_stage, m->layer->stages.first + i);
        if (needs_fp8_arithmetic(m, stage, device))
            names = context_printf(context, "%s%s`%s`", names, *names ? ", " : "", ir_text(m->module, stage->name));
    }
    if (*names)
        fprintf(out, "  %s predicted at the fp8 peak, which takes `arithmetic:`; without it E4M3 weights are multiplied in bf16\n", names);
}

void print_prediction(struct context *context, const struct figures *figures, int64_t first_tokens, bool color, bool kernels,
                      FILE *out)
{
    const struct prediction *p = figures->prediction;
    fprintf(out, "%s: %lld to %lld tokens per rank, %s, %s, predicted for %s\n", schedule_name(p), (long long)first_tokens,
            (long long)p->bound, counted(context, p->model.ranks, "rank"), counted(context, p->layers, "layer"),
            counted(context, p->bound, "token"));
    fprintf(out, "  latency %s, one layer %s, speedup %.2fx over serial\n", time_text(context, p->events.end),
            time_text(context, p->events.end / p->layers), value_of(figures, metric_speedup, 0, NULL));
    fprintf(out, "  exposed communication %.1f%%, mfu %.1f%%", 100 * value_of(figures, metric_exposed_comm, 0, NULL),
            100 * value_of(figures, metric_mfu, 0, NULL));
    if (!isnan(figures->peak_memory))
        fprintf(out, ", peak memory %.1f MB", 1e-6 * figures->peak_memory);
    fputc('\n', out);
    if (p->rounds > 0)
        fprintf(out, "  overflow: %.0f rounds, up to %.1f%% of a rank's rows find no slot\n", p->rounds, 100 * p->overflowed);
    print_fp8(context, &p->model, out);
    print_engines(figures, out);
    for (uint32_t kind = 0; kind < p->model.kind_count; kind++) {
        if (p->model.kind_count > 1)
            fprintf(out, "  rank %u and %u like it\n", p->model.kinds[kind].first, p->model.kinds[kind].count - 1);
        const char *lines = draw_timeline(p, kind, TIMELINE_COLUMNS, true);
        if (color)
            print_colored(lines, out);
        else
            fputs(lines, out);
    }
    print_reasons(p, out);
    print_bound(figures, out);
    if (kernels)
        print_kernels(p, out);
}

// ---- JSON -------------------------------------------------------------------------------------------------------------

static void set_real(json_t *object, const char *key, double value)
{
    json_object_set_new(object, key, isnan(value) ? json_null() : json_real(value));
}

/// From the first task to the last: its instance, layer, a rank, its time, and how much of that lies on the path.
static json_t *path_json(const struct prediction *p)
{
    struct critical path = critical_path(p);
    json_t *list = json_array();
    for (uint32_t i = path.count; i-- > 0;) {
        const struct event_task *task = &p->events.tasks[path.tasks[i]];
        const struct sched_instance *row = ROW(p->schedule, sched_instance, path.tasks[i] % p->instances);
        json_array_append_new(list, json_pack("{s:s, s:i, s:i, s:f, s:f, s:f}", "instance", ir_text(p->schedule, row->label), "layer",
                                              (int)row->layer, "rank", (int)p->model.kinds[path.tasks[i] / p->instances].first,
                                              "begin_s", 1e-9 * task->begin, "end_s", 1e-9 * task->end, "on_path_s",
                                              1e-9 * critical_time(p, &path, i)));
    }
    return list;
}

void print_prediction_json(struct context *context, const struct figures *figures, int64_t first_tokens, FILE *out)
{
    const struct prediction *p = figures->prediction;
    json_t *root = json_object(), *streams = json_object(), *used = json_object(), *bytes = json_object();
    json_object_set_new(root, "schedule", json_string(schedule_name(p)));
    json_object_set_new(root, "first_tokens", json_integer(first_tokens));
    json_object_set_new(root, "tokens", json_integer(p->bound));
    json_object_set_new(root, "ranks", json_integer(p->model.ranks));
    json_object_set_new(root, "layers", json_integer(p->layers));
    set_real(root, "latency_s", 1e-9 * p->events.end);
    set_real(root, "speedup", value_of(figures, metric_speedup, 0, NULL));
    set_real(root, "exposed_comm", value_of(figures, metric_exposed_comm, 0, NULL));
    set_real(root, "mfu", value_of(figures, metric_mfu, 0, NULL));
    set_real(root, "peak_memory", figures->peak_memory);
    json_object_set_new(root, "overflow_rounds", json_integer((json_int_t)p->rounds));
    for (uint32_t s = 0; s < p->streams; s++)
        set_real(streams, stream_of(p, s), value_of(figures, metric_bubble, 0, stream_of(p, s)));
    for (uint32_t engine = 0; engine < engine_words_count; engine++) {
        if (!(engines_of(p) >> engine & 1))
            continue;
        set_real(used, engine_words[engine], value_of(figures, metric_utilization, engine, NULL));
        set_real(bytes, engine_words[engine], value_of(figures, metric_bytes, engine, NULL));
    }
    struct bounds bounds = bounds_of(figures, 1);
    set_real(root, "least_latency_s", 1e-9 * fmax(bounds.wire_ns, bounds.compute_ns));
    set_real(root, "least_exposed_comm", bounds.exposed);
    json_object_set_new(root, "critical_path", path_json(p));
    json_object_set_new(root, "kernels", kernels_json(p));
    json_object_set_new(root, "bubble", streams);
    json_object_set_new(root, "utilization", used);
    json_object_set_new(root, "bytes", bytes);
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (!text)
        fatal(context, EXIT_SYSTEM, "out of memory");
    fprintf(out, "%s\n", text);
    free(text);
}

// ---- trace ------------------------------------------------------------------------------------------------------------

static void trace_kind(const struct prediction *p, uint32_t kind, FILE *out)
{
    struct context *context = p->model.context;
    uint32_t rank = p->model.kinds[kind].first;
    trace_name(out, "process_name", rank, 0,
               context_printf(context, "rank %u (one of %u alike)", rank, p->model.kinds[kind].count));
    trace_name(out, "thread_name", rank, p->streams, "messages");
    for (uint32_t s = 0; s < p->streams; s++)
        trace_name(out, "thread_name", rank, s, stream_of(p, s));
    for (uint32_t i = 0; i < p->instances; i++) {
        const struct sched_instance *row = ROW(p->schedule, sched_instance, i);
        const struct event_task *task = &p->events.tasks[prediction_task(p, kind, i)];
        trace_event(out, &(struct trace_event){.name = ir_text(p->schedule, row->label),
                                               .category = "stage",
                                               .rank = rank,
                                               .thread = row->stream,
                                               .begin_ns = task->begin,
                                               .end_ns = task->end,
                                               .layer = row->layer});
    }
    for (uint32_t f = 0; f < p->events.flow_count; f++) {
        const struct event_flow *flow = &p->events.flows[f];
        if (flow->send / p->instances != kind)
            continue;
        const struct sched_instance *row = ROW(p->schedule, sched_instance, flow->send % p->instances);
        uint32_t to = p->model.kinds[flow->recv / p->instances].first;
        const char *label = ir_text(p->schedule, row->label);
        trace_event(out, &(struct trace_event){.name = context_printf(context, "%s to %u and alike", label, to),
                                               .category = "message",
                                               .rank = rank,
                                               .thread = p->streams,
                                               .begin_ns = flow->begin,
                                               .end_ns = flow->arrived,
                                               .layer = row->layer,
                                               .message = true,
                                               .to = to,
                                               .bytes = (int64_t)flow->out_bytes});
    }
}

bool write_prediction_trace(const struct figures *figures, const char *path)
{
    const struct prediction *p = figures->prediction;
    struct output_file file;
    FILE *out = output_open(&file, path);
    if (!out)
        return false;
    trace_begin(out);
    for (uint32_t kind = 0; kind < p->model.kind_count; kind++)
        trace_kind(p, kind, out);
    trace_end(out);
    return output_close(&file, out);
}
