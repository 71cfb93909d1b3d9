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

static const char items[] =
    "device fast { sm = 4; peak = { bf16: 80GFLOPS }; }\ndevice slow { sm = 4; peak = { bf16: 10GFLOPS }; }\n"
    "schedule both(n: 1..8 = 2, g: 1..16 = 2) for (route, dispatch, expert, combine) {\n"
    "    split tokens into n as i; split experts into g as w;\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
    "    bind route, expert to comp; bind dispatch to tx; bind combine to rx { sm: 2 };\n"
    "    for i in 0..n { route[i]; pipelined w in 0..g { dispatch[i,w+1] || expert[i,w] || combine[i,w-1]; } }\n}\n";

static moe_plan *compile_layer(const struct shape *of, const char *cluster, const char *placement, const char *schedule,
                               const char *options)
{
    struct routed_layer layer = {
        .shape = of, .dispatch = options, .items = items, .cluster = cluster, .place = placement};
    struct subject subject = {
        .text = routed_layer_text(&layer), .schedule = schedule, .layer = -1, .cpu_level = "v2"}; // quick to compile
    return subject_compile(&subject);
}

static moe_plan *compile(const char *cluster, const char *placement, const char *schedule, const char *options)
{
    return compile_layer(&shape, cluster, placement, schedule, options);
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
    moe_plan *plan = compile(cluster, "place experts over node, gpu;", "serial", "capacity: 8x");
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

// Thirteen experts: the first rank has one more than others, those of its node slots for as many rows.
static const struct grid {
    const char *axes;
    uint32_t ranks;
    int experts;
} grids[] = {{"axis node[2]; axis gpu[2];", 4, 12},
             {"axis node[3]; axis gpu[2];", 6, 13},
             {"axis node[2]; axis gpu[3];", 6, 12},
             {"axis rack[2]; axis node[2]; axis gpu[2];", 8, 12}};
enum { GRIDS = sizeof grids / sizeof *grids };
static const int64_t grid_tokens[8] = {70, 0, BOUND, 9, 1, 33, 64, 2};

static moe_plan *compile_grid(const struct grid *grid, const struct shape *layer, const char *schedule, const char *options)
{
    bool racks = strstr(grid->axes, "rack") != NULL;
    char cluster[512];
    snprintf(cluster, sizeof cluster,
             "device = fast; %s\n%s link ib across node { bandwidth: 1GB/s, latency: 20us, rail: true };\n"
             "    link nv across gpu { bandwidth: 100GB/s, latency: 0us };",
             grid->axes, racks ? "link far across rack { bandwidth: 1GB/s, latency: 50us };" : "");
    return compile_layer(layer, cluster,
                         racks ? "place experts over rack, node, gpu { balance: even };"
                               : "place experts over node, gpu { balance: even };",
                         schedule, options);
}

struct hop_run {
    const char *options, *schedule, *device;
};

/// Runs on a grid: close to the reference, and all of them the same bytes.
static void check_hops(const struct grid *grid, const struct hop_run *runs, size_t run_count)
{
    struct shape layer = shape;
    int64_t sum = 0;
    layer.experts = grid->experts;
    for (uint32_t r = 0; r < grid->ranks; r++)
        sum += grid_tokens[r];
    size_t count = (size_t)sum * (size_t)shape.hidden;
    float *in = malloc(count * sizeof *in), *want = malloc(count * sizeof *want),
          *first = malloc(count * sizeof *first);
    gaussian(in, count, 11);
    round_to_dtype(shape.dtype, in, count);
    for (size_t i = 0; i < run_count; i++) {
        moe_plan *plan = compile_grid(grid, &layer, runs[i].schedule, runs[i].options);
        if (!plan)
            continue;
        struct run run = {
            .in = in,
            .tokens = grid_tokens,
            .steps = 2,
            .options = {.device = runs[i].device, .threads = 1 + (uint32_t)i % 3, .seed = 5, .poison = 1}};
        struct outcome o = run_plan_once(plan, &run);
        CU_ASSERT_EQUAL(o.status, MOE_OK);
        if (o.status != MOE_OK)
            fprintf(stderr, "%s %s %s: %s\n", grid->axes, runs[i].schedule, runs[i].options, o.error);
        reference_layer(&layer, 5, in, sum, o.ids, o.weights, want);
        CU_ASSERT(relative_l2(o.out, want, count) <= 6e-3);
        if (i == 0)
            memcpy(first, o.out, count * sizeof *first);
        CU_ASSERT(!memcmp(first, o.out, count * sizeof *first));
        CU_ASSERT((o.stats.overflowed > 0) == (strstr(runs[i].options, "0.3x") || strstr(runs[i].options, "0.1x")));
        outcome_free(&o);
        moe_plan_close(plan);
    }
    free(in);
    free(want);
    free(first);
}

/// Rows through relays, whatever the capacity: within rounding of the reference, the same bits under every schedule,
/// thread count and device, and whether rows find slots or go in rounds.
static void test_two_hops(void)
{
    static const struct hop_run runs[] = {{"via: node, capacity: 8x", "serial", "cpu"},
                                          {"via: node, capacity: 8x", "ladder(n: 3)", "cpu"},
                                          {"via: node, capacity: 0.3x", "serial", "cpu"},
                                          {"via: node, capacity: 0.3x", "ladder(n: 2)", "sim"},
                                          {"via: node, capacity: 0.1x, pool: 0.05x", "ladder(n: 2)", "cpu"},
                                          {"via: node, capacity: 2x", "serial", "sim"}};
    for (size_t g = 0; g < GRIDS; g++)
        check_hops(&grids[g], runs, sizeof runs / sizeof *runs);
}

/// The same with waves of experts, which have bytes of their own.
static void test_hops_of_waves(void)
{
    static const struct hop_run runs[] = {{"via: node, capacity: 8x", "waves(g: 2)", "cpu"},
                                          {"via: node, capacity: 8x", "both", "sim"},
                                          {"via: node, capacity: 0.3x", "waves(g: 2)", "sim"},
                                          {"via: node, capacity: 0.1x, pool: 0.05x", "both(n: 3)", "cpu"}};
    for (size_t g = 0; g < GRIDS; g++)
        check_hops(&grids[g], runs, sizeof runs / sizeof *runs);
}

/// Bytes across nodes when every token of rank 0 has two experts in the other one.
static int64_t bytes_across(const char *schedule, const char *options, int a, int b)
{
    const int64_t tokens[RANKS] = {BOUND, 0, 0, 0};
    int32_t ids[BOUND * 3];
    float weights[BOUND * 3], *in = calloc((size_t)BOUND * (size_t)shape.hidden, sizeof *in);
    for (size_t i = 0; i < BOUND * 3; i++) {
        ids[i] = i % 3 == 2 ? -1 : i % 3 ? b : a;
        weights[i] = 0.5f;
    }
    moe_plan *plan = compile(square, "place experts over node, gpu;", schedule, options);
    struct run run = {.in = in,
                      .tokens = tokens,
                      .given_ids = ids,
                      .given_weights = weights,
                      .options = {.device = "sim", .seed = 5}};
    struct outcome o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL(o.status, MOE_OK);
    int64_t bytes = o.stats.axis[0].bytes;
    outcome_free(&o);
    moe_plan_close(plan);
    free(in);
    return bytes;
}

/// A token with experts on all ranks of the other node crosses to it once, and its replies come back as one; with waves it
/// still crosses once, though another wave needs it elsewhere, and is answered in each.
static void test_hops_save_bytes(void)
{
    const int64_t row = 64 * 2;
    int64_t direct = bytes_across("serial", "capacity: 8x", 6, 9), // ranks 2 and 3
        relayed = bytes_across("serial", "capacity: 8x, via: node", 6, 9);
    CU_ASSERT(direct >= BOUND * 2 * row); // rank 0 sends each row to two ranks
    CU_ASSERT(relayed >= BOUND * row && relayed < direct * 3 / 4);
    // Expert 6 is of the first wave, 11 of the second.
    int64_t alike = bytes_across("waves(g: 2)", "capacity: 8x, via: node", 6, 9),
            apart = bytes_across("waves(g: 2)", "capacity: 8x, via: node", 6, 11);
    CU_ASSERT(apart >= alike && apart < BOUND * 2 * (row + 24)); // rank 0 sends no row again
}

/// A row that a relay loses, doubles or sends elsewhere is found by the counters.
static void test_hops_faults(void)
{
    static const char *const faults[] = {"drop:1", "double:0", "misroute:3"};
    const int64_t tokens[RANKS] = {40, 40, 40, 40};
    float *in = malloc(160 * (size_t)shape.hidden * sizeof *in);
    gaussian(in, 160 * (size_t)shape.hidden, 3);
    moe_plan *plan = compile(square, "place experts over node, gpu;", "serial", "capacity: 8x, via: node");
    for (size_t i = 0; plan && i < sizeof faults / sizeof *faults; i++) {
        struct run run = {.in = in, .tokens = tokens, .options = {.threads = 2, .seed = 5, .fault = faults[i]}};
        struct outcome o = run_plan_once(plan, &run);
        CU_ASSERT_EQUAL(o.status, MOE_LOST);
        outcome_free(&o);
    }
    moe_plan_close(plan);
    free(in);
}

void suite_clusters(void);
void suite_clusters(void)
{
    CU_pSuite suite = CU_add_suite("clusters", NULL, NULL);
    CU_add_test(suite, "two nodes of two ranks, every placement", test_results);
    CU_add_test(suite, "bytes by the axis they cross", test_bytes);
    CU_add_test(suite, "simulated messages take their axis' time", test_times);
    CU_add_test(suite, "simulated devices have their own pace", test_pace);
    CU_add_test(suite, "two hops", test_two_hops);
    CU_add_test(suite, "two hops, waves of experts", test_hops_of_waves);
    CU_add_test(suite, "two hops send less", test_hops_save_bytes);
    CU_add_test(suite, "two hops lose nothing unnoticed", test_hops_faults);
}
