// Predicted against measured: every schedule of the library, on three clusters of emulated links, from 64 to 4096 tokens a
// rank. The device is what `moecc calibrate` finds on this machine (with a layer of another shape), the links are the
// clusters' own. Usage: moe-bench-predict [--rounds N] [--require]
//
// Prints a line each, then the median and the 90th percentile of how far the latency is off, and the median of how far
// exposed communication is. --require: exit code 1 unless those are within 10 %, 25 % and 5 points.
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/calibrate/calibrate.h"
#include "compiler/driver.h"
#include "runtime/cli/report.h"
#include "runtime/device/topology.h"
#include "tests/bench/schedules/subject.h"

enum { MOST_LINES = 512, MOST_ROUNDS = 16, COUNTS = 4 };
static const int64_t counts[COUNTS] = {64, 256, 1024, 4096};
static const double ATTENTION_S = 4e-3; // of a step's tokens and layer, on a core
static const double MEDIAN_OFF = 0.10, P90_OFF = 0.25, EXPOSED_OFF = 0.05;

static const struct {
    const char *name, *links, *place;
    uint32_t ranks;
} clusters[] = {
    {"slow pair", "axis node[2]; link wire across node { bandwidth: 60MB/s, latency: 200us };", "node", 2},
    {"fast pair", "axis node[2]; link wire across node { bandwidth: 400MB/s, latency: 50us };", "node", 2},
    {"square", "axis node[2]; axis rank[2]; link wire across node { bandwidth: 100MB/s, latency: 100us };\n"
               "    link board across rank { bandwidth: 500MB/s, latency: 20us };", "node, rank", 4},
};

static const char *const schedules[] = {"serial", "ladder(n: 2)", "ladder(n: 4)", "double_buffer(n: 4)", "waves(g: 2)", "two_batch",
                                        "filler(n: 2)", "hook_receive(n: 4)", "wave_streams(g: 2)",
                                        "chunked_combine(n: 2, c: 2)", "uneven", "lagged(g: 2, lag: 1)", "decode", "bidirectional"};

struct line {
    double predicted, measured, exposed_predicted, exposed_measured;
};

static void write_file(const char *path, unsigned cluster, const char *device)
{
    FILE *out = fopen(path, "w");
    double cores = machine_cores(), share = fmax(1, clusters[cluster].ranks / cores); // ranks on a core
    if (!out) {
        perror(path);
        exit(3);
    }
    fprintf(out,
            "import std.ops;\nimport std.schedules { serial };\ndim tokens <= %lld;\ndim hidden = 512;\ndim ffn = 1536;\n"
            "dim experts = 8;\nlayer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n"
            "    param w_router: f32[experts, hidden];\n    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n"
            "    param w_down: bf16[experts, hidden, ffn];\n    param s_gate_up: bf16[1, 2 * ffn, hidden];\n"
            "    param s_down: bf16[1, hidden, ffn];\n    extern stage attn: a = attention(x, cost: %.0fus);\n"
            "    stage route: r = topk(a, w_router, k: 2);\n    stage dispatch: xd = dispatch(a, r);\n"
            "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n    stage combine: yr = combine(yd, r);\n"
            "    stage shared: ys = swiglu(a, s_gate_up, s_down);\n    stage merge: y = add(yr, ys);\n    yield y;\n}\n"
            "%s\ncluster room { device = this_machine; %s }\n"
            "placement p on room { place experts over %s; replicate shared; }\n"
            "pipeline main { layer = moe; repeat = 2; cluster = room; placement = p; target = cpu; use serial; }\n",
            (long long)counts[COUNTS - 1], 1e6 * ATTENTION_S * share, device, clusters[cluster].links, clusters[cluster].place);
    fclose(out);
}

/// The device block of what `moecc calibrate` prints.
static char *calibrated_device(uint32_t ranks)
{
    static struct context context;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    context_init(&context);
    if (!setjmp(context.fatal))
        calibrate(&context, ranks, false, out);
    else
        fprintf(stderr, "%s\n", context.fatal_message);
    context_free(&context);
    fclose(out);
    char *cluster = strstr(text, "\ncluster ");
    if (!cluster)
        exit(3);
    *cluster = 0;
    return text;
}

static bool predict_line(const char *path, const char *schedule, int64_t tokens, struct line *line)
{
    char dim[32], *text = NULL;
    size_t size = 0;
    snprintf(dim, sizeof dim, "tokens=%lld", (long long)tokens);
    const char *dims[] = {dim};
    FILE *out = open_memstream(&text, &size);
    struct driver_options options = {.file = path, .out = out, .check_only = true, .simulate = true, .json = true};
    options.check = (struct check_options){.schedule = schedule, .layer = -1, .dims = dims, .dim_count = 1};
    static struct context context;
    struct driver_result result = {0};
    context_init(&context);
    bool fine = !setjmp(context.fatal) && compile(&context, &options, &result) == EXIT_FINE;
    diag_print_all(&context, DIAG_TEXT, false, stderr);
    context_free(&context);
    free(result.image);
    fclose(out);
    json_t *json = fine ? json_loads(text, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    line->predicted = json_number_value(json_object_get(json, "latency_s"));
    line->exposed_predicted = json_number_value(json_object_get(json, "exposed_comm"));
    json_decref(json);
    free(text);
    return line->predicted > 0;
}

static bool measure(struct subject *s, int64_t tokens, unsigned rounds, struct line *line)
{
    double latency[MOST_ROUNDS], exposed[MOST_ROUNDS];
    struct sample sample;
    subject_tokens(s, tokens);
    if (!subject_step(s, &sample))
        return false;
    for (unsigned r = 0; r < rounds; r++) {
        if (!subject_step(s, &sample))
            return false;
        latency[r] = sample.latency;
        exposed[r] = sample.exposed / sample.latency;
    }
    line->measured = median_of(latency, rounds);
    line->exposed_measured = median_of(exposed, rounds);
    return true;
}

/// All token counts of a schedule on a cluster.
static bool run_schedule(const char *path, unsigned cluster, const char *schedule, unsigned rounds, struct line *lines, unsigned *count)
{
    struct subject s = {.file = path, .schedule = schedule, .attention_s = ATTENTION_S};
    bool fine = subject_open(&s);
    for (int i = 0; i < COUNTS && fine; i++) {
        struct line *line = &lines[(*count)++];
        fine = predict_line(path, schedule, counts[i], line) && measure(&s, counts[i], rounds, line);
        if (fine)
            printf("%-10s %-28s %6lld %10.2f %10.2f %7.3f %9.1f%% %8.1f%%\n", clusters[cluster].name, schedule,
                   (long long)counts[i], line->predicted * 1e3, line->measured * 1e3, line->predicted / line->measured,
                   100 * line->exposed_predicted, 100 * line->exposed_measured);
        fflush(stdout);
    }
    subject_close(&s);
    return fine;
}

static bool summarise(const struct line *lines, unsigned count)
{
    static double off[MOST_LINES], exposed[MOST_LINES];
    for (unsigned i = 0; i < count; i++) {
        off[i] = fabs(lines[i].predicted / lines[i].measured - 1);
        exposed[i] = fabs(lines[i].exposed_predicted - lines[i].exposed_measured);
    }
    double points = median_of(exposed, count), median = median_of(off, count), p90 = report_percentile(off, count, 0.9);
    printf("\n%u lines: latency off by %.1f%% (median), %.1f%% (p90); exposed communication by %.1f points (median), %.1f (p90)\n",
           count, 100 * median, 100 * p90, 100 * points, 100 * report_percentile(exposed, count, 0.9));
    return median <= MEDIAN_OFF && p90 <= P90_OFF && points <= EXPOSED_OFF;
}

int main(int argc, char **argv)
{
    unsigned rounds = 5, count = 0;
    bool require = false, fine = true;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--rounds") && i + 1 < argc)
            rounds = (unsigned)strtoul(argv[++i], NULL, 10);
        require |= !strcmp(argv[i], "--require");
    }
    rounds = rounds < 1 ? 1 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    static struct line lines[MOST_LINES];
    char path[] = "/tmp/moe-predict-XXXXXX";
    int file = mkstemp(path);
    if (file < 0)
        return 3;
    close(file);
    printf("%-10s %-28s %6s %10s %10s %7s %10s %9s\n", "cluster", "schedule", "tokens", "predicted", "measured", "ratio", "exposed:",
           "measured");
    for (unsigned c = 0; c < sizeof clusters / sizeof *clusters && fine; c++) {
        char *device = calibrated_device(clusters[c].ranks);
        write_file(path, c, device);
        free(device);
        for (size_t s = 0; s < sizeof schedules / sizeof *schedules && fine; s++)
            fine = run_schedule(path, c, schedules[s], rounds, lines, &count);
    }
    remove(path);
    bool met = fine && summarise(lines, count);
    return !fine ? 3 : require && !met ? 1 : 0;
}
