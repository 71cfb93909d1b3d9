// Measures this machine (calibrate.h): peak and memory bandwidth by probes, everything else from the timelines of a real
// layer that all ranks run at once, as they would in use: what a row of an expert takes and what an expert costs before
// its first row (`half_rows`), how fast few rows read an expert's weights (`hbm`), what a task costs that has next to nothing
// to do, what a message takes.
#include "compiler/calibrate/calibrate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/calibrate/probe.h"
#include "compiler/driver.h"
#include "compiler/simulate/timeline.h"
#include "runtime/device/topology.h"
#include "runtime/moe.h"
#include "runtime/output.h"

enum { HIDDEN = 1024, FFN = 1024, EXPERTS_EACH = 4, CHOICES = 2, MOST_TOKENS = 1024, REPEATS = 9, COUNTS = 6, PROBES = 3 };
static const int64_t counts[COUNTS] = {2, 16, 128, 256, 512, MOST_TOKENS}; // per rank; rows of an expert are half of it
enum { READING = 1, COMPUTING = 2 }; // counts at which weights are read for few rows, and from which on products count
static const double PROBE_SECONDS = 0.1;

struct calibration {
    struct context *context;
    uint32_t ranks, cores;
    moe_plan *plan;
    moe_session *session;
    moe_step *steps;
    bool progress;
    char where[2048]; // ranks and threads sat, as comments
    // The results, per rank; times in us as in traces.
    double peak_bf16, peak_f32, bandwidth, flops, half_rows, launch, message_bandwidth, latency;
};

/// What one token count came to: the best of the repeats where others on the machine can only add, else medians.
struct point {
    double expert, launch, message, bytes, latency;
};

static void tell(const struct calibration *c, const char *what)
{
    if (c->progress)
        fprintf(stderr, "\r\033[Kcalibrating: %s", what);
}

// ---- the layer

static const char *layer_text(const struct calibration *c)
{
    return context_printf(
        c->context,
        "import std.ops;\nimport std.schedules { serial };\ndim tokens <= %d;\ndim hidden = %d;\ndim ffn = %d;\n"
        "dim experts = %u;\nlayer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n"
        "    param w_router: f32[experts, hidden];\n    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n"
        "    param w_down: bf16[experts, hidden, ffn];\n    stage route: r = topk(x, w_router, k: %d);\n"
        "    stage dispatch: xd = dispatch(x, r, capacity: 2x);\n    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n"
        "    stage combine: y = combine(yd, r);\n    yield y;\n}\ndevice core { sm = 1; }\n"
        "cluster here { device = core; axis rank[%u]; link memory across rank { bandwidth: 1GB/s, latency: 1us }; }\n"
        "placement each on here { place experts over rank; }\n"
        "pipeline probe { layer = moe; cluster = here; placement = each; target = cpu; use serial; }\n",
        MOST_TOKENS, HIDDEN, FFN, EXPERTS_EACH * c->ranks, CHOICES, c->ranks);
}

static char *temporary(struct context *context)
{
    const char *folder = getenv("TMPDIR");
    char *path = context_alloc(context, 4096);
    snprintf(path, 4096, "%s/moe-calibrate-XXXXXX", folder && *folder ? folder : "/tmp");
    int file = mkstemp(path);
    if (file < 0)
        fatal(context, EXIT_SYSTEM, "%s: %s", path, strerror(errno));
    close(file);
    return path;
}

static void compile_layer(struct calibration *c)
{
    const char *text = layer_text(c), *path = temporary(c->context);
    int guard = output_guard(path);
    FILE *file = fopen(path, "w");
    bool written = file && fputs(text, file) >= 0;
    written = file && fclose(file) == 0 && written;
    struct context inner;
    struct driver_options options = {.file = path, .check = {.layer = -1}, .out = stdout};
    struct driver_result result = {0};
    context_init(&inner);
    bool fine = written && !setjmp(inner.fatal) && compile(&inner, &options, &result) == EXIT_FINE &&
                moe_plan_from_memory(result.image, result.image_bytes, &c->plan) == MOE_OK;
    diag_print_all(&inner, DIAG_TEXT, false, stderr);
    context_free(&inner);
    free(result.image);
    remove(path);
    output_unguard(guard);
    if (!fine)
        fatal(c->context, EXIT_SYSTEM, "the layer to measure could not be compiled");
}

/// Pairs of experts in turn, so that every expert of every rank has equally many rows.
static void make_steps(struct calibration *c)
{
    size_t rows = (size_t)c->ranks * MOST_TOKENS, experts = (size_t)EXPERTS_EACH * c->ranks;
    uint16_t *in = context_alloc(c->context, rows * HIDDEN * 2), *out = context_alloc(c->context, rows * HIDDEN * 2);
    int32_t *ids = context_alloc(c->context, rows * CHOICES * sizeof *ids);
    float *weights = context_alloc(c->context, rows * CHOICES * sizeof *weights);
    c->steps = context_alloc(c->context, c->ranks * sizeof *c->steps);
    for (size_t i = 0; i < rows * HIDDEN; i++)
        in[i] = (uint16_t)(0x3c00 + i * 2654435761u % 509);
    for (size_t t = 0; t < rows; t++) {
        ids[2 * t] = (int32_t)(t % experts);
        ids[2 * t + 1] = (int32_t)((t + 1 + t / experts % (experts - 1)) % experts);
        weights[2 * t] = weights[2 * t + 1] = 0.5f;
    }
    for (uint32_t r = 0; r < c->ranks; r++) {
        size_t first = (size_t)r * MOST_TOKENS;
        c->steps[r] = (moe_step){.rank = r,
                                 .in = in + first * HIDDEN,
                                 .out = out + first * HIDDEN,
                                 .given_ids = ids + first * CHOICES,
                                 .given_weights = weights + first * CHOICES};
    }
}

/// Who sat where, as comments of the result.
static void keep_line(void *user, const char *line)
{
    struct calibration *c = user;
    size_t used = strlen(c->where);
    snprintf(c->where + used, sizeof c->where - used, "// %s\n", line);
}

static void open_session(struct calibration *c)
{
    compile_layer(c);
    make_steps(c);
    moe_options options = {.threads = c->cores, .trace = 1, .bind = "core", .log = keep_line, .log_user = c};
    if (moe_session_create(c->plan, &options, &c->session) != MOE_OK)
        fatal(c->context, EXIT_SYSTEM, "%s", moe_last_error());
    if (moe_session_load(c->session, "random") != MOE_OK)
        fatal(c->context, EXIT_SYSTEM, "%s", moe_session_error(c->session));
}

// ---- timelines

static bool is_named(const struct span_event *e, const char *stem)
{
    return !strncmp(e->name, stem, strlen(stem)) && (!e->name[strlen(stem)] || e->name[strlen(stem)] == '[');
}

/// From the first rank's begin to the last one's end: ranks share cores, so one alone says little.
static double wall_of(const struct timeline *t, const char *stem)
{
    double begin = INFINITY, end = 0;
    for (uint32_t i = 0; i < t->count; i++)
        if (!t->events[i].message && is_named(&t->events[i], stem)) {
            begin = fmin(begin, t->events[i].begin);
            end = fmax(end, t->events[i].end);
        }
    return end - begin;
}

static double mean_of(const struct timeline *t, const char *stem)
{
    double sum = 0, count = 0;
    for (uint32_t i = 0; i < t->count; i++)
        if (!t->events[i].message && is_named(&t->events[i], stem)) {
            sum += t->events[i].end - t->events[i].begin;
            count++;
        }
    return count > 0 ? sum / count : 0;
}

static void read_messages(const struct timeline *t, struct point *point)
{
    double count = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const struct span_event *e = &t->events[i];
        if (!e->message)
            continue;
        point->message += e->end - e->begin;
        point->bytes += e->bytes;
        count++;
    }
    point->message /= fmax(count, 1);
    point->bytes /= fmax(count, 1);
    double sent = 0, received = 0; // by the last rank to send, which no one waits for longer than the message takes
    for (uint32_t i = 0; i < t->count; i++) {
        if (is_named(&t->events[i], "combine.send") && !t->events[i].message)
            sent = fmax(sent, t->events[i].begin);
        if (is_named(&t->events[i], "combine.recv"))
            received = fmax(received, t->events[i].end);
    }
    point->latency = fmax(0, received - sent);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, REPEATS, sizeof *values, by_value);
    return values[REPEATS / 2];
}

static struct point measure_once(struct calibration *c, int64_t tokens, const char *path)
{
    struct timeline t;
    struct point point = {0};
    for (uint32_t r = 0; r < c->ranks; r++)
        c->steps[r].tokens = tokens;
    if (moe_session_run(c->session, c->steps, c->ranks) != MOE_OK || moe_session_trace(c->session, path) != MOE_OK)
        fatal(c->context, EXIT_SYSTEM, "%s", moe_session_error(c->session));
    if (!timeline_read(c->context, path, &t))
        fatal(c->context, EXIT_SYSTEM, "%s: cannot be read back", path);
    read_messages(&t, &point);
    point.expert = wall_of(&t, "expert");
    point.launch = (mean_of(&t, "dispatch.pack") + mean_of(&t, "combine.merge")) / 2;
    return point;
}

/// Every count in turn, round after round: what disturbs the machine for a while disturbs one round of each.
static void measure_points(struct calibration *c, struct point *points)
{
    double expert[COUNTS][REPEATS], launch[COUNTS][REPEATS], message[COUNTS][REPEATS], latency[COUNTS][REPEATS];
    const char *path = temporary(c->context);
    int guard = output_guard(path);
    for (int k = -1; k < REPEATS; k++) // the first round warms up
        for (int i = 0; i < COUNTS; i++) {
            struct point point = measure_once(c, counts[i], path);
            int at = k < 0 ? 0 : k;
            expert[i][at] = point.expert;
            launch[i][at] = point.launch;
            message[i][at] = point.message;
            latency[i][at] = point.latency;
            points[i].bytes = point.bytes;
        }
    remove(path);
    output_unguard(guard);
    for (int i = 0; i < COUNTS; i++) {
        median(expert[i]); // sorts
        points[i].expert = expert[i][0];
        points[i].launch = median(launch[i]);
        points[i].message = median(message[i]);
        points[i].latency = median(latency[i]);
    }
}

/// Least squares of expert time over rows per expert, by relative error: a row's share of the slope, an expert's of the
/// intercept.
static void fit_experts(struct calibration *c, const struct point *points)
{
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;
    for (int i = COMPUTING; i < COUNTS; i++) {
        double rows = (double)(counts[i] * CHOICES) / (double)EXPERTS_EACH, time = points[i].expert, weight = 1 / (time * time);
        n += weight, x += weight * rows, y += weight * time, xx += weight * rows * rows, xy += weight * rows * time;
    }
    double slope = (n * xy - x * y) / (n * xx - x * x), intercept = (y - slope * x) / n;
    double flops = 6.0 * (double)(EXPERTS_EACH * HIDDEN * FFN); // of one row for each expert of a rank
    c->flops = slope > 0 ? fmin(flops / slope * 1e6, c->peak_bf16) : c->peak_bf16;
    c->half_rows = slope > 0 ? fmax(0, (intercept - c->launch) / slope) : 0;
    double reading = points[READING].expert - c->launch, weights = 6.0 * (double)(EXPERTS_EACH * HIDDEN * FFN);
    if (reading > 0) // bf16, three matrices; the probe's figure where that is less than memory gives
        c->bandwidth = fmax(c->bandwidth, weights / reading * 1e6);
}

static void measure_layer(struct calibration *c)
{
    struct point points[COUNTS];
    tell(c, "a layer of experts");
    open_session(c);
    measure_points(c, points);
    c->launch = points[0].launch;
    c->latency = points[0].latency;
    double copied = points[COUNTS - 1].message - points[0].message;
    c->message_bandwidth = copied > 0 ? (points[COUNTS - 1].bytes - points[0].bytes) / copied * 1e6 : c->bandwidth / 2;
    fit_experts(c, points);
    moe_session_destroy(c->session);
    moe_plan_close(c->plan);
}

// ---- the text

static void processor_name(char *name, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256], *colon;
    snprintf(name, size, "this machine");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "model name", 10) && (colon = strchr(line, ':'))) {
            snprintf(name, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
            break;
        }
    if (file)
        fclose(file);
}

static void write_text(const struct calibration *c, FILE *out)
{
    char name[128];
    uint32_t sm = c->cores / c->ranks ? c->cores / c->ranks : 1;
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / c->ranks;
    processor_name(name, sizeof name);
    fprintf(out,
            "// Measured by `moecc calibrate`: %s, %u cores, %u ranks at work at once.\n%s\n"
            "/// What one of the ranks gets.\ndevice this_machine {\n"
            "    sm        = %u;\n    memory    = %.0fMB;\n    hbm       = %.2fGB/s;\n"
            "    peak      = { f32: %.1fGFLOPS, bf16: %.1fGFLOPS };\n    derate    = %.1f%%;\n"
            "    half_rows = %.0f;\n    launch    = %.1fus;\n    engine copy[2], net_out, net_in;\n}\n\n",
            name, c->cores, c->ranks, c->where, sm, memory * 1e-6, c->bandwidth * 1e-9, c->peak_f32 * 1e-9, c->peak_bf16 * 1e-9,
            100 * c->flops / c->peak_bf16, c->half_rows, c->launch);
    fprintf(out,
            "cluster here {\n    device = this_machine;\n    axis rank[%u];\n"
            "    link memory across rank { bandwidth: %.2fGB/s, latency: %.1fus };\n}\n",
            c->ranks, c->message_bandwidth * 1e-9, c->latency);
}

void calibrate(struct context *context, uint32_t ranks, bool progress, FILE *out)
{
    struct calibration c = {.context = context, .cores = machine_cores(), .progress = progress};
    c.ranks = ranks ? ranks : c.cores < 2 ? 2 : c.cores > 8 ? 8 : c.cores;
    if (c.ranks < 2)
        c.ranks = 2; // messages need a peer
    tell(&c, "peak and bandwidth");
    for (int i = 0; i < PROBES; i++) { // the best of several: others may use the machine
        c.peak_f32 = fmax(c.peak_f32, probe_f32_peak(c.cores, PROBE_SECONDS) / c.ranks);
        c.peak_bf16 = fmax(c.peak_bf16, probe_bf16_peak(c.cores, PROBE_SECONDS) / c.ranks);
        c.bandwidth = fmax(c.bandwidth, probe_read_bandwidth(c.cores, PROBE_SECONDS) / c.ranks);
    }
    c.peak_bf16 = fmax(c.peak_bf16, c.peak_f32);
    measure_layer(&c);
    if (progress)
        fputs("\r\033[K", stderr);
    write_text(&c, out);
}
