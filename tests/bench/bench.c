// Times whole layers against what the machine can do, probed between the measurements of the same run: medians of paired
// ratios. Usage: moe-bench [--check]; with --check exit code 1 when the coarse layer stays below 40% of the bf16 peak.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "compiler/driver.h"
#include "runtime/moe.h"
#include "tests/bench/probe.h"

struct bench_shape {
    const char *name;
    int hidden, ffn, experts, choices;
};

static const struct bench_shape shapes[] = {{"coarse H 1024 F 3584 E 8 k 2", 1024, 3584, 8, 2},
                                            {"fine H 2048 F 1024 E 64 k 8", 2048, 1024, 64, 8}};
enum { ROUNDS = 15, BOUND = 512 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}

static moe_plan *compile_shape(const struct bench_shape *shape)
{
    char path[64], text[2048];
    snprintf(path, sizeof path, "/tmp/moe-bench-%d.moe", (int)getpid());
    snprintf(text, sizeof text,
             "import std.ops;\nimport std.hw { laptop };\nimport std.schedules { serial };\n"
             "dim tokens <= %d;\ndim hidden = %d;\ndim ffn = %d;\ndim experts = %d;\n"
             "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n"
             "    param w_router: f32[experts, hidden];\n    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n"
             "    param w_down: bf16[experts, hidden, ffn];\n"
             "    stage route: r = topk(x, w_router, k: %d);\n    stage dispatch: xd = dispatch(x, r);\n"
             "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n    stage combine: y = combine(yd, r);\n"
             "    yield y;\n}\nplacement p on laptop { place experts over rank; }\n"
             "pipeline bench { layer = moe; cluster = laptop; placement = p; target = cpu; use serial; }\n",
             BOUND, shape->hidden, shape->ffn, shape->experts, shape->choices);
    FILE *file = fopen(path, "w");
    if (!file)
        return NULL;
    fputs(text, file);
    fclose(file);
    struct driver_options options = {.file = path, .check = {.ranks = 1, .layer = -1}, .out = stdout};
    struct context *context = malloc(sizeof *context);
    struct driver_result result = {0};
    moe_plan *plan = NULL;
    context_init(context);
    if (!setjmp(context->fatal) && compile(context, &options, &result) == EXIT_FINE)
        moe_plan_from_memory(result.image, result.image_bytes, &plan);
    diag_print_all(context, DIAG_TEXT, false, stderr);
    context_free(context);
    free(context);
    free(result.image);
    remove(path);
    return plan;
}

// Median over rounds of (compute or memory time at the probed rates) / measured time.
static double measure(moe_session *session, const struct bench_shape *shape, const moe_step *step, uint32_t threads,
                      double *milliseconds, double *peak_share)
{
    double share[ROUNDS], roof[ROUNDS], times[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        double peak = probe_bf16_peak(threads, 0.05), bandwidth = step->tokens < 64 ? probe_read_bandwidth(threads, 0.1) : 1e15;
        double begin = now();
        int repeats = step->tokens < 64 ? 5 : 1;
        for (int r = 0; r < repeats; r++)
            if (moe_session_run(session, step, 1) != MOE_OK)
                return -1;
        times[i] = (now() - begin) / repeats;
        moe_stats stats;
        moe_session_stats(session, &stats);
        double active = 0;
        for (uint32_t e = 0; e < stats.experts; e++)
            active += stats.expert_load[e] > 0;
        double bytes = active * 3.0 * shape->hidden * shape->ffn * 2;
        double compute = stats.flops / peak, memory = bytes / bandwidth;
        share[i] = compute / times[i];
        roof[i] = (compute > memory ? compute : memory) / times[i];
    }
    *milliseconds = 1e3 * median(times, ROUNDS);
    *peak_share = median(share, ROUNDS);
    return median(roof, ROUNDS);
}

int main(int argc, char **argv)
{
    bool check = argc > 1 && !strcmp(argv[1], "--check"), fine = true;
    uint32_t threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    printf("%-30s %7s %10s %12s %9s %9s\n", "bf16, whole layer, one rank", "tokens", "ms", "tokens/s", "of peak", "roofline");
    for (size_t s = 0; s < (check ? 1 : sizeof shapes / sizeof *shapes); s++) {
        const struct bench_shape *shape = &shapes[s];
        moe_plan *plan = compile_shape(shape);
        moe_session *session = NULL;
        moe_options options = {.threads = threads};
        if (!plan || moe_session_create(plan, &options, &session) != MOE_OK ||
            moe_session_load(session, "random") != MOE_OK)
            return 3;
        uint16_t *in = calloc((size_t)BOUND * (size_t)shape->hidden, 2), *out = calloc((size_t)BOUND * (size_t)shape->hidden, 2);
        for (size_t i = 0; i < (size_t)BOUND * (size_t)shape->hidden; i++)
            in[i] = (uint16_t)(0x3f00 + (i * 2654435761u >> 24) + (i * 40503u >> 7 & 1) * 0x8000u);
        for (int64_t tokens = check ? BOUND : 1; tokens <= BOUND; tokens *= 8) {
            moe_step step = {.tokens = tokens, .in = in, .out = out};
            double milliseconds, share, roof = measure(session, shape, &step, threads, &milliseconds, &share);
            if (roof < 0) {
                fprintf(stderr, "%s\n", moe_session_error(session));
                return 3;
            }
            printf("%-30s %7d %10.3f %12.0f %8.1f%% %8.2f\n", shape->name, (int)tokens, milliseconds,
                   (double)tokens / milliseconds * 1e3, 100 * share, roof);
            fine = fine && (!check || share >= 0.40);
        }
        moe_session_destroy(session);
        moe_plan_close(plan);
        free(in);
        free(out);
    }
    return fine ? 0 : 1;
}
