// Pipelines on clusters of several axes and devices: results equal the reference whatever the placement, bytes are
// counted for the axis that they cross, and the simulated device takes that axis' time and each device's pace.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/end_to_end/harness.h"
#include "tests/end_to_end/reference.h"

enum { RANKS = 4, BOUND = 96 };

static const struct shape shape = {
    .hidden = 64, .ffn = 48, .experts = 12, .choices = 3, .bound = BOUND, .dtype = "bf16", .normalize = true};

static const char square[] = "device = fast; axis node[2]; axis gpu[2];\n"
                             "    link ib across node { bandwidth: 1MB/s, latency: 20us, rail: true };\n"
                             "    link nv across gpu { bandwidth: 100GB/s, latency: 0us };";
static const char mixed[] = "device fast at node[0]; device slow at node[1]; axis node[2]; axis gpu[2];\n"
                            "    link ib across node { bandwidth: 1GB/s, latency: 20us };\n"
                            "    link nv across gpu { bandwidth: 100GB/s, latency: 1us };";

static moe_plan *compile(const char *cluster, const char *placement, const char *schedule, const char *options)
{
    char text[4096];
    snprintf(text, sizeof text,
             "import std.ops;\nimport std.schedules { serial, ladder };\n"
             "dim tokens <= %d;\ndim hidden = %d;\ndim ffn = %d;\ndim experts = %d;\n"
             "device fast { sm = 4; peak = { bf16: 80GFLOPS }; }\ndevice slow { sm = 4; peak = { bf16: 10GFLOPS }; }\n"
             "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n"
             "    param w_router: f32[experts, hidden];\n"
             "    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n"
             "    param w_down: bf16[experts, hidden, ffn];\n"
             "    stage route: r = topk(x, w_router, k: %d);\n"
             "    stage dispatch: xd = dispatch(x, r%s);\n"
             "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n"
             "    stage combine: y = combine(yd, r);\n    yield y;\n}\n"
             "cluster room { %s }\nplacement p on room { %s }\n"
             "pipeline main { layer = moe; cluster = room; placement = p; use serial; }\n",
             BOUND, shape.hidden, shape.ffn, shape.experts, shape.choices, options, cluster, placement);
    struct subject subject = {.text = text, .schedule = schedule, .layer = -1};
    return subject_compile(&subject);
}

static const struct {
    const char *cluster, *place;
} placements[] = {
    {square, "place experts over node, gpu;"},
    {square, "place experts over gpu, node;"},
    {square, "place experts over node, gpu; spare = 4;"},
    {mixed, "place experts over node, gpu { balance: rate };"},
    {mixed, "place experts over gpu, node { balance: even }; groups = node; replicate shared;"},
};

/// Every placement's result equals the reference within rounding, and every schedule and device gives the same bits.
static void test_results(void)
{
    static const char *const schedules[] = {"serial", "ladder(n: 3)"};
    static const char *const devices[] = {"cpu", "sim"};
    const int64_t tokens[RANKS] = {70, 0, BOUND, 9}, sum = 70 + BOUND + 9;
    size_t count = (size_t)sum * (size_t)shape.hidden;
    float *in = malloc(count * sizeof *in), *want = malloc(count * sizeof *want),
          *first = malloc(count * sizeof *first);
    gaussian(in, count, 11);
    round_to_dtype(shape.dtype, in, count);
    for (size_t i = 0; i < sizeof placements / sizeof *placements; i++)
        for (size_t j = 0; j < 4; j++) {
            moe_plan *plan = compile(placements[i].cluster, placements[i].place, schedules[j / 2], "");
            if (!plan)
                continue;
            struct run run = {.in = in,
                              .tokens = tokens,
                              .steps = 2,
                              .options = {.device = devices[j % 2], .threads = 2, .seed = 5, .poison = 1}};
            struct outcome o = run_plan_once(plan, &run);
            CU_ASSERT_EQUAL_FATAL(o.status, MOE_OK);
            reference_layer(&shape, 5, in, sum, o.ids, o.weights, want);
            CU_ASSERT(relative_l2(o.out, want, count) <= 5e-3);
            if (j == 0)
                memcpy(first, o.out, count * sizeof *first);
            CU_ASSERT(!memcmp(first, o.out, count * sizeof *first));
            outcome_free(&o);
            moe_plan_close(plan);
        }
    free(in);
    free(want);
    free(first);
}

/// Every token of rank 0 to one expert, on the simulated device.
static moe_stats run_to(const char *cluster, int expert)
{
    moe_stats stats = {0};
    moe_plan *plan = compile(cluster, "place experts over node, gpu;", "serial", ", capacity: 8x");
    int32_t ids[BOUND * 3];
    float weights[BOUND * 3], *in = calloc((size_t)BOUND * (size_t)shape.hidden, sizeof *in);
    const int64_t tokens[RANKS] = {BOUND, 0, 0, 0};
    for (size_t i = 0; i < BOUND * 3; i++) {
        ids[i] = i % 3 ? -1 : expert;
        weights[i] = 1;
    }
    struct run run = {.in = in,
                      .tokens = tokens,
                      .given_ids = ids,
                      .given_weights = weights,
                      .options = {.device = "sim", .seed = 5}};
    if (plan) {
        struct outcome o = run_plan_once(plan, &run);
        CU_ASSERT_EQUAL(o.status, MOE_OK);
        stats = o.stats;
        outcome_free(&o);
        moe_plan_close(plan);
    }
    free(in);
    return stats;
}

static void test_bytes(void)
{
    // Experts 0-2 on rank 0, 3-5 on rank 1 (same node), 6-8 on rank 2 (the other one).
    moe_stats home = run_to(square, 0), near = run_to(square, 3), far = run_to(square, 6);
    CU_ASSERT_EQUAL_FATAL(near.axes, 2);
    CU_ASSERT(home.axis[0].bytes > 0 && home.axis[1].bytes > 0); // headers
    CU_ASSERT_EQUAL(near.axis[0].bytes, home.axis[0].bytes);
    CU_ASSERT_EQUAL(far.axis[1].bytes, home.axis[1].bytes);
    CU_ASSERT_EQUAL(far.axis[0].bytes - home.axis[0].bytes, near.axis[1].bytes - home.axis[1].bytes);
    // A row is at least its 64 bf16 elements.
    CU_ASSERT(far.axis[0].bytes - home.axis[0].bytes >= BOUND * 64 * 2);
    CU_ASSERT_EQUAL(far.bytes_sent, far.axis[0].bytes + far.axis[1].bytes);
}

static void test_times(void)
{
    moe_stats home = run_to(square, 0), near = run_to(square, 3), far = run_to(square, 6);
    double bytes = (double)(far.axis[0].bytes - home.axis[0].bytes);
    CU_ASSERT(near.step_s - home.step_s < 1e-4);
    CU_ASSERT(far.step_s - home.step_s >= 1.5 * bytes / 1e6); // there and back, at 1 MB/s
}

static void test_pace(void)
{
    moe_stats near = run_to(mixed, 3), far = run_to(mixed, 6), even = run_to(square, 6);
    CU_ASSERT_DOUBLE_EQUAL(near.compute_s, even.compute_s, 1e-3 * even.compute_s);
    CU_ASSERT(far.compute_s > even.compute_s * 2); // rank 2 computes at an eighth of the speed
}

void suite_clusters(void);
void suite_clusters(void)
{
    CU_pSuite suite = CU_add_suite("clusters", NULL, NULL);
    CU_add_test(suite, "two nodes of two ranks, every placement", test_results);
    CU_add_test(suite, "bytes by the axis they cross", test_bytes);
    CU_add_test(suite, "simulated messages take their axis' time", test_times);
    CU_add_test(suite, "simulated devices have their own pace", test_pace);
}
