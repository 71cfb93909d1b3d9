// The cost model against closed forms and sums done by hand, budgets and their diagnostics, and the
// figures of two examples.
#include <CUnit/CUnit.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/weights/safetensors.h"
#include "tests/simulate/fixture.h"

static void test_costs(void)
{
    // Pairs of a rank: 1024 tokens x 2 of each of 4 ranks over 4 experts; 6 x 2048 x 512 x 512 FLOPs at 3.221 TFLOPS.
    const double expert = 1e-3, route = 2.0 * 1024 * 512 * 4 / 3.221225472e12;
    // A token meets another rank's expert with 1 - C(3,2)/C(4,2) = 1/2: 1.5 rows to others. Bytes: 1024 and 16 of ids.
    const double rows = 1024 * 1.5, dispatch_bytes = rows * 1040, combine_bytes = rows * 1024;
    struct simulated o = simulate_text("1GB/s", "", "use serial;", true);
    CU_ASSERT_EQUAL(o.code, EXIT_FINE);
    NEAR(figure(o.out, "bytes", "net_out"), dispatch_bytes + combine_bytes);
    NEAR(figure(o.out, NULL, "latency_s") * 1e3, (expert + route + (dispatch_bytes + combine_bytes) / 1e9) * 1e3);
    NEAR(figure(o.out, NULL, "speedup"), 1);
    NEAR(figure(o.out, NULL, "exposed_comm"), (dispatch_bytes + combine_bytes) / 1e9 / figure(o.out, NULL, "latency_s"));
    NEAR(figure(o.out, NULL, "mfu"), (expert + route) / figure(o.out, NULL, "latency_s"));
    NEAR(figure(o.out, "bubble", "main"), 0);
    simulated_free(&o);
}

/// A task's launch and the rows a GEMM needs to fill the SMs, as the device states them.
static void test_device_figures(void)
{
    const struct setting plain = {.bandwidth = "1000000GB/s", .members = "use serial;"};
    struct setting slow = plain;
    slow.device = "launch = 50us; half_rows = 256;";
    struct simulated a = simulate_setting(&plain, true), b = simulate_setting(&slow, true);
    // Route, pack, expert and merge are launched; an expert has 2048 rows, the router 1024.
    const double expert = 1e-3, route = 2.0 * 1024 * 512 * 4 / 3.221225472e12;
    double more = 4 * 50e-6 + expert * 256 / 2048 + route * 256 / 1024;
    NEAR((figure(b.out, NULL, "latency_s") - figure(a.out, NULL, "latency_s")) * 1e3, more * 1e3);
    double useful = figure(a.out, NULL, "mfu") * figure(a.out, NULL, "latency_s"); // what fills SMs is no use
    NEAR(figure(b.out, NULL, "mfu") * figure(b.out, NULL, "latency_s") * 1e3, useful * 1e3);
    simulated_free(&a);
    simulated_free(&b);
}

/// CUDA kernels compute whole tiles, and all SMs wait for those that have one more: 256 of 64 x 128, and of 64 x 64, on 100 SMs
/// of an sm_80; 64 of 128 x 256, and 32, of an sm_90a. What a device says that was measured stands. The router multiplies and
/// adds in f32, a sixteenth of the tensor cores' rate, 16 tokens a block.
static void test_tiles(void)
{
    static const struct {
        const char *target, *device;
        double times; // as long as the products alone
    } cases[] = {{"cpu", "", 1},
                 {"cuda(sm_80)", "", 300.0 / 256},
                 {"cuda(sm_90a)", "", 2.0 / 3 * 100 / 64 + 1.0 / 3 * 100 / 32},
                 {"cuda(sm_90a)", "half_rows = 256;", 1 + 256.0 / 2048}};
    double latency[4];
    for (int i = 0; i < 4; i++) {
        struct setting setting = {.bandwidth = "1000000GB/s", .members = "use serial;", .target = cases[i].target,
                                  .device = cases[i].device};
        struct simulated o = simulate_setting(&setting, true);
        CU_ASSERT_EQUAL(o.code, EXIT_FINE);
        latency[i] = figure(o.out, NULL, "latency_s");
        simulated_free(&o);
    }
    const double route = (100 * 16 * 16 - 1024) * 2.0 * 512 * 4 / 3.221225472e12;
    for (int i = 0; i < 4; i++)
        NEAR((latency[i] - latency[0]) * 1e3, cases[i].times - 1 + (i > 0 ? route * 1e3 : 0));
}

static double latency_under(const char *load)
{
    struct simulated o = simulate_loaded("1000000000GB/s", "use serial;", load);
    CU_ASSERT_EQUAL(o.code, EXIT_FINE);
    double latency = o.code == EXIT_FINE ? figure(o.out, NULL, "latency_s") : 0;
    if (o.code != EXIT_FINE)
        fprintf(stderr, "%s", o.errors);
    simulated_free(&o);
    return latency;
}

static double latency_traced(int32_t other)
{
    char path[64], error[256];
    int32_t ids[8];
    for (int i = 0; i < 4; i++) {
        ids[2 * i] = other < 0 ? i : 0;
        ids[2 * i + 1] = other < 0 ? (i + 1) % 4 : other;
    }
    struct tensor tensor = {.name = "topk_ids", .dtype = "I32", .dims = 2, .shape = {4, 2}, .data = ids, .bytes = sizeof ids};
    snprintf(path, sizeof path, "/tmp/simulate_%ld.safetensors", (long)getpid());
    CU_ASSERT_TRUE(tensors_write(path, &tensor, 1, error, sizeof error));
    double latency = latency_under(path);
    unlink(path);
    return latency;
}

/// One expert a rank, two choices a token: the heaviest rank's expert decides, the router costs all the same.
static void test_loads(void)
{
    const double expert = 1e-3, uniform = latency_under("uniform");
    NEAR(latency_under("zipf(0)") * 1e3, uniform * 1e3);
    NEAR(latency_traced(-1) * 1e3, uniform * 1e3);
    NEAR(latency_traced(1) * 1e3, (uniform + expert) * 1e3); // experts 0 and 1 get everything: twice the mean, no more can be
    NEAR(latency_under("zipf(8)") * 1e3, (uniform + expert) * 1e3);
    double some = latency_under("zipf(0.7)"); // 1 / (1 + 2^-0.7 + 3^-0.7 + 4^-0.7) of the pairs
    NEAR(some * 1e3, (uniform + expert * (4 / (1 + pow(2, -0.7) + pow(3, -0.7) + pow(4, -0.7)) - 1)) * 1e3);
    struct simulated bad = simulate_loaded("1GB/s", "use serial;", "zipf(-1)"), none = simulate_loaded("1GB/s", "use serial;", "no.safetensors");
    CU_ASSERT_EQUAL(bad.code, EXIT_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(bad.errors, "`uniform`, `zipf(0.7)` or a file with `topk_ids` is expected"));
    CU_ASSERT_EQUAL(none.code, EXIT_USAGE);
    simulated_free(&bad);
    simulated_free(&none);
}

/// One expert a rank, two choices a token: slots for 640 of 1024 tokens, 1.25 times a half. Two experts that get everything
/// leave 384 rows of each of three ranks over, for a pool of as many rows as four ranks have in a quarter of their slots.
static void test_rounds(void)
{
    static const struct {
        const char *use, *load;
        int rounds;
    } cases[] = {{"use serial;", "uniform", 0}, {"use serial;", "zipf(8)", 2}, {"use ladder(n: 2);", "zipf(8)", 4},
                 {"use ladder(n: 4);", "zipf(0.1)", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct simulated o = simulate_loaded("1GB/s", cases[i].use, cases[i].load);
        CU_ASSERT_EQUAL((int)figure(o.out, NULL, "overflow_rounds"), cases[i].rounds);
        simulated_free(&o);
    }
    // Each link carries what it would with slots for all; one after the other, as `serial` does: rows, rows of rounds, their
    // replies, replies. Experts work longer by what weights cost that are read again, which is nothing here.
    struct simulated o = simulate_loaded("1GB/s", "use serial;", "zipf(8)");
    double wire = 3 * 1024 * (1040 + 1024) / 1e9, compute = latency_under("zipf(8)");
    CU_ASSERT_DOUBLE_EQUAL(figure(o.out, NULL, "latency_s"), wire + compute, 0.01 * wire);
    CU_ASSERT(figure(o.out, NULL, "exposed_comm") * figure(o.out, NULL, "latency_s") > 0.99 * wire); // rounds are no compute
    simulated_free(&o);
}

static double latency_with(const char *target, const char *sms)
{
    char schedule[640];
    snprintf(schedule, sizeof schedule,
             "schedule mine for (route, dispatch, expert, combine) {\n    split tokens into 4 as i;\n"
             "    stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
             "    bind route, expert to comp; bind dispatch to tx; bind combine.recv to rx;\n"
             "    bind combine.send to rx%s;\n"
             "    pipelined i in 0..4 { route[i+2]; dispatch[i+1] || expert[i] || combine[i-1]; }\n}\n", sms);
    struct simulated o = simulate_setting(
        &(struct setting){.bandwidth = "10GB/s", .items = schedule, .target = target, .members = "use mine;",
                          .device = "half_rows = 1;"}, true); // measured: what tiles a target has is no matter
    CU_ASSERT_EQUAL(o.code, EXIT_FINE);
    double latency = figure(o.out, NULL, "latency_s");
    simulated_free(&o);
    return latency;
}

/// SMs of their own are gone for compute while a kernel runs on them; on the CPU they are a thread, and take nothing.
static void test_lent_sms(void)
{
    NEAR(latency_with("cpu", " { sm: 30 }"), latency_with("cpu", ""));
    double none = latency_with("cuda(sm_90a)", ""), some = latency_with("cuda(sm_90a)", " { sm: 30 }");
    CU_ASSERT_TRUE(some > none * 1.01 && some < none / 0.7);
    // One SM writes 50 GB/s, 40 with a margin: a tenth of a fast link.
    CU_ASSERT_TRUE(latency_with("cuda(sm_90a)", " { sm: 1 }") < none * 1.02);
}

static double latency_filling(const char *fourth, const char *after)
{
    char text[4096];
    snprintf(text, sizeof text,
             "import std.ops;\ndim tokens <= 1024;\ndim hidden = 512;\ndim ffn = 512;\ndim experts = 4;\n"
             "device fast { sm = 100; memory = 80GB; hbm = 100000TB/s; peak = { bf16: 3.221225472TFLOPS };\n"
             "    engine copy[2], net_out, net_in; }\n"
             "cluster four { device = fast; axis node[2]; axis rank[2]; link slow across node { bandwidth: 8GB/s, latency: 0us };\n"
             "    link wire across rank { bandwidth: 400GB/s, latency: 0us }; }\n"
             "placement one_each on four { place experts over node, rank; replicate shared; }\n"
             "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n"
             "    param w_router: f32[experts, hidden];\n    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n"
             "    param w_down: bf16[experts, hidden, ffn];\n    param s_gate_up: bf16[1, 2 * ffn, hidden];\n"
             "    param s_down: bf16[1, hidden, ffn];\n    stage route: r = topk(x, w_router, k: 2);\n"
             "    stage dispatch: xd = dispatch(x, r, via: node);\n    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n"
             "    stage combine: yr = combine(yd, r);\n    stage shared: ys = swiglu(x, s_gate_up, s_down);\n"
             "    stage merge: y = add(yr, ys);\n    yield y;\n}\n"
             "schedule mine for moe {\n    split tokens into 4 as i;\n    stream comp uses sm;\n"
             "    stream out uses net_out, copy[0]; stream back uses net_out, copy[1];\n"
             "    stream d_in uses net_in; stream c_in uses net_in;\n    bind route, expert, shared, merge to comp;\n"
             "    bind dispatch.send to out; bind dispatch.recv to d_in; bind combine.send to back; bind combine.recv to c_in;\n"
             "    for i in 0..4 { route[i]; dispatch[i]; }\n"
             "    for i in 0..3 { expert[i]; combine[i]; }\n    %s expert[3]; combine[3];\n"
             "    order combine.send[0] before dispatch.send[3];\n    for i in 0..4 { %s defer merge[i]; }\n}\n"
             "pipeline main { layer = moe; cluster = four; placement = one_each; target = cpu; use mine; }\n", fourth, after);
    struct simulated o = simulate_source(text, true);
    CU_ASSERT_EQUAL(o.code, EXIT_FINE);
    double latency = o.code == EXIT_FINE ? figure(o.out, NULL, "latency_s") : 0;
    simulated_free(&o);
    return latency;
}

/// Two hops, replies in blocks: direct ones inside the node, and sums across it; what is handed to a relay keeps its type.
static void test_relayed_bytes(void)
{
    static const char *const wires[] = {"", ", wire: { node: blocks }", ", wire: blocks"};
    for (int i = 0; i < 3; i++) {
        char text[2048];
        snprintf(text, sizeof text,
                 "import std.ops;\nimport std.hw { host };\nimport std.schedules { serial };\n"
                 "dim tokens <= 1024;\ndim hidden = 512;\ndim ffn = 64;\ndim experts = 4;\n"
                 "format blocks = fp8_e4m3 { block: [1, 128], scale: f32 };\n"
                 "cluster four { device = host; axis node[2]; axis rank[2]; link slow across node { bandwidth: 8GB/s, latency: 0us };\n"
                 "    link wire across rank { bandwidth: 400GB/s, latency: 0us }; }\n"
                 "placement one_each on four { place experts over node, rank; }\n"
                 "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n"
                 "    param w_router: f32[experts, hidden];\n    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n"
                 "    param w_down: bf16[experts, hidden, ffn];\n    stage route: r = topk(x, w_router, k: 2);\n"
                 "    stage dispatch: xd = dispatch(x, r, via: node, capacity: 8x);\n"
                 "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n    stage combine: y = combine(yd, r%s);\n    yield y;\n}\n"
                 "pipeline main { layer = moe; cluster = four; placement = one_each; target = cpu; use serial; }\n", wires[i]);
        struct simulated o = simulate_source(text, true);
        CU_ASSERT_EQUAL(o.code, EXIT_FINE);
        // A token has one of the other node's two experts with 5/6, a rank's with 1/2. Rows: 1024, 512 and 16 of scales; 32 of
        // ids, weights and a mark, for every rank of the node.
        const double across = 1024 * 5.0 / 6, beside = 1024 / 2.0, sum = i ? 528 : 1024, direct = i == 2 ? 528 : 1024;
        double net = across * (1024 + sum) + 2 * beside * 32, inside = beside * (2 * 1056 + direct + 1024);
        NEAR(figure(o.out, "bytes", "net_out"), net);
        NEAR(figure(o.out, "bytes", "copy"), net + inside);
        simulated_free(&o);
    }
}

/// Work without a place of its own goes where the whole model says that its stream stalls: the last expert's rows wait
/// until the first replies have left.
static void test_fill_in_stalls(void)
{
    double before = latency_filling("for k in 0..4 { shared[k]; }", ""), last = latency_filling("", "shared[i];");
    double filling = latency_filling("", "fill comp with shared[i];");
    CU_ASSERT_TRUE(filling < 0.985 * fmin(before, last)); // some before the last expert, the rest under its replies
}

/// With an infinitely quick router, and as much on the wire as on the SMs, 1 - 1/n of the wire's time is hidden.
static void test_hidden_share(void)
{
    static const int counts[] = {2, 4, 8};
    const double wire = 1024 * 1.5 * (1040 + 1024), compute = 1e-3 + 2.0 * 1024 * 512 * 4 / 3.221225472e12;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char bandwidth[64], use[64];
        snprintf(bandwidth, sizeof bandwidth, "%.6fGB/s", wire / compute / 1e9);
        snprintf(use, sizeof use, "use ladder(n: %d);", counts[i]);
        struct simulated o = simulate_text(bandwidth, "", use, true);
        CU_ASSERT_EQUAL(o.code, EXIT_FINE);
        double exposed = figure(o.out, NULL, "exposed_comm") * figure(o.out, NULL, "latency_s");
        CU_ASSERT_DOUBLE_EQUAL(1 - exposed / compute, 1 - 1.0 / counts[i], 0.02);
        simulated_free(&o);
    }
}

static void expect_missed(const char *bandwidth, const char *items, const char *members, enum exit_code code, const char *const *parts)
{
    struct simulated o = simulate_text(bandwidth, items, members, false);
    CU_ASSERT_EQUAL(o.code, code);
    if (o.code != code)
        printf("\n%s: exit code %d\n%s", members, o.code, o.errors);
    for (; *parts; parts++) {
        CU_ASSERT_PTR_NOT_NULL(strstr(o.errors, *parts));
        if (!strstr(o.errors, *parts))
            printf("\nno `%s` in\n%s", *parts, o.errors);
    }
    simulated_free(&o);
}

#define PARTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_budgets(void)
{
    expect_missed("1GB/s", "", "use serial; assert exposed_comm < 80% and speedup >= 1x; expect latency < 1s;", EXIT_FINE,
                  PARTS(""));
    expect_missed("1GB/s", "", "use serial when tokens < 9;\n use ladder(n: 4);\n assert exposed_comm < 10%;", EXIT_BUDGET,
                  PARTS("error[E0401]: budget not met: exposed_comm is ", ", the limit is 10%", "------------ with this schedule",
                        "predicted by the cost model for 1024 tokens", "one layer takes ", "the wire works and the SMs wait",
                        "dispatch alone ", "         comp |", "           tx |", "      exposed |",
                        "no schedule can meet this budget here: 3.17ms on the wire against 1.00ms of compute leaves at least "
                        "68.4% exposed",
                        "= help: give the schedule something to hide behind"));
    expect_missed("4GB/s", "", "use serial;\n assert exposed_comm < 30%;", EXIT_BUDGET, PARTS("= help: split into more"));
    expect_missed("1GB/s", "", "use serial; assert latency < 2ms else \"decode must keep up\";", EXIT_BUDGET,
                  PARTS("latency is 4.17ms, the limit is 2ms", "note: decode must keep up",
                        "no schedule can meet this budget here: 3.17ms on the wire and 1.00ms of compute allow no less than 3.17ms"));
    expect_missed("1GB/s", "", "use serial; assert bytes(net_out) < 1MB;", EXIT_BUDGET,
                  PARTS("bytes(net_out) is 3.17MB, the limit is 1MB", "nothing sends less than 3.17MB", "a narrower `wire` format"));
    expect_missed("1GB/s", "", "use serial; assert peak_memory < 1KB;", EXIT_BUDGET, PARTS("peak_memory is ", "the limit is 1KB"));
    expect_missed("1GB/s", "", "use serial; expect speedup > 2x;", EXIT_FINE,
                  PARTS("warning[E0401]: expectation not met: speedup is 1.00x, the limit is 2x"));
    expect_missed("1GB/s", "", "use serial; assert bubble(comp) < 2%;", EXIT_INPUT,
                  PARTS("`bubble(comp)` names nothing of the schedule `serial`", "its streams are main"));
    expect_missed("1GB/s", "assert experts mod 3 == 0 else \"three per group\";\n", "use serial;", EXIT_BUDGET,
                  PARTS("error[E0401]: assertion not met: three per group"));
}

/// Waves send more than must be sent; what no schedule can beat is without them.
static void test_budgets_of_waves(void)
{
    static const struct {
        const char *claim, *part;
    } cases[] = {{"bytes(net_out) < 2.9MB", "= help: every wave of experts has replies of its own: fewer waves send less"},
                 {"bytes(net_out) < 1MB", "nothing sends less than 2.8"},
                 {"latency < 2.9ms", "= help: `moecc simulate`"},
                 {"latency < 2ms", "no schedule can meet this budget here: 2.8"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char members[128];
        snprintf(members, sizeof members, "use waves(g: 4); assert %s;", cases[i].claim);
        struct simulated o = simulate_setting(&(struct setting){.bandwidth = "1GB/s", .experts = 16, .members = members}, false);
        CU_ASSERT_EQUAL(o.code, EXIT_BUDGET);
        CU_ASSERT_PTR_NOT_NULL(strstr(o.errors, cases[i].part));
        simulated_free(&o);
    }
}

/// In a schedule: at the most tokens for which it is picked, with the knobs of the use.
static void test_schedule_budgets(void)
{
    static const char mine[] = "schedule mine(n: 2..8 = 2) for moe {\n    split tokens into n as i;\n    stream comp uses sm;\n"
                               "    stream tx uses net_out, net_in, copy[0];\n    stream rx uses net_out, net_in, copy[1];\n"
                               "    bind route, expert to comp;\n    bind dispatch to tx;\n    bind combine to rx;\n"
                               "    pipelined i in 0..n { route[i+2]; dispatch[i+1] || expert[i] || combine[i-1]; }\n"
                               "    assert latency < n * 1ms;\n    assert overlap(dispatch[n-1], expert[n-2]) > 99%;\n"
                               "    assert mfu > 1%;\n}\n";
    struct simulated o = simulate_text("1GB/s", mine, "use mine(n: 8) when tokens <= 512; use serial;", false);
    CU_ASSERT_EQUAL(o.code, EXIT_BUDGET);
    CU_ASSERT_PTR_NOT_NULL(strstr(o.errors, "overlap(dispatch[n-1], expert[n-2]) is "));
    CU_ASSERT_PTR_NOT_NULL(strstr(o.errors, "for 512 tokens"));
    CU_ASSERT_PTR_NULL(strstr(o.errors, "latency"));
    simulated_free(&o);
    o = simulate_text("1GB/s", mine, "use mine(n: 3);", false);
    CU_ASSERT_PTR_NOT_NULL(strstr(o.errors, "latency is "));
    CU_ASSERT_PTR_NOT_NULL(strstr(o.errors, "the limit is n * 1ms"));
    simulated_free(&o);
}

// ---- goldens ----------------------------------------------------------------------------------------------------------

static bool same_figures(json_t *found, json_t *expected, const char *path)
{
    const char *key;
    json_t *value;
    bool same = true;
    json_object_foreach(expected, key, value)
    {
        json_t *other = json_object_get(found, key);
        if (json_is_object(value))
            same = same_figures(other, value, path) && same;
        else if (json_is_number(value)) {
            double a = json_number_value(other), b = json_number_value(value);
            bool near = fabs(a - b) <= 1e-6 * (fabs(b) + 1e-3);
            if (!near)
                printf("\n%s: %s is %.9g, expected %.9g\n", path, key, a, b);
            same = same && near;
        } else
            same = json_equal(other, value) && same;
    }
    return same;
}

/// tests/simulate/NAME.json holds a line a schedule, as `moecc simulate --json` prints it; the arena's size, which
/// lowering decides, is left out. MOE_GOLDENS=1 writes them anew.
static void check_golden(const char *name)
{
    char path[100], golden[100], line[4096];
    snprintf(path, sizeof path, "examples/%s.moe", name);
    snprintf(golden, sizeof golden, "tests/simulate/%s.json", name);
    struct simulated o = simulate_file(path, NULL, true);
    CU_ASSERT_EQUAL(o.code, EXIT_FINE);
    FILE *file = fopen(golden, getenv("MOE_GOLDENS") ? "w" : "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    uint32_t lines = 0;
    for (char *at = o.out; *at; lines++) {
        json_t *found = json_loads(at, JSON_DISABLE_EOF_CHECK, NULL);
        json_object_del(found, "peak_memory");
        json_object_del(found, "critical_path"); // tests of their own
        json_object_del(found, "kernels");
        if (getenv("MOE_GOLDENS")) {
            json_dumpf(found, file, JSON_COMPACT | JSON_REAL_PRECISION(9));
            fputc('\n', file);
        } else {
            json_t *expected = fgets(line, sizeof line, file) ? json_loads(line, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
            CU_ASSERT_PTR_NOT_NULL(expected);
            CU_ASSERT_TRUE(same_figures(found, expected, golden));
            json_decref(expected);
        }
        json_decref(found);
        at = strchr(at, '\n') + 1;
    }
    CU_ASSERT_TRUE(lines > 0);
    if (!getenv("MOE_GOLDENS"))
        CU_ASSERT_PTR_NULL(fgets(line, sizeof line, file));
    fclose(file);
    simulated_free(&o);
}

static void test_goldens(void)
{
    check_golden("hello");
    check_golden("mixtral");
    check_golden("my_schedule"); // with its budgets
}

/// Weights in E4M3 are predicted at the fp8 peak: said, where the layer does not ask for the arithmetic that it takes and the
/// device has more of it than of bf16.
static void test_fp8_peak(void)
{
    static const struct {
        const char *path, *line;
    } cases[] = {{"examples/my_schedule.moe", "\n  `expert`, `shared` predicted at the fp8 peak, which takes `arithmetic:`"},
                 {"examples/fp8_arithmetic.moe", NULL},
                 {"examples/hello.moe", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct simulated o = simulate_report(cases[i].path);
        CU_ASSERT_EQUAL(o.code, EXIT_FINE);
        CU_ASSERT(strstr(o.out, cases[i].line ? cases[i].line : "latency") != NULL);
        CU_ASSERT_EQUAL(strstr(o.out, "fp8 peak") != NULL, cases[i].line != NULL);
        simulated_free(&o);
    }
}

/// The path is the step: what is on it adds up to the latency, and it begins with the first task.
static void test_critical_path(void)
{
    static const char *const names[] = {"serial", "ladder(n: 8)", "two_batch", "waves", "hook_receive", "bidirectional"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct simulated o = simulate_file("examples/schedules/library.moe", names[i], true);
        json_t *root = json_loads(o.out, JSON_DISABLE_EOF_CHECK, NULL), *path = json_object_get(root, "critical_path"), *step;
        double sum = 0, latency = json_number_value(json_object_get(root, "latency_s"));
        size_t at;
        json_array_foreach(path, at, step)
            sum += json_number_value(json_object_get(step, "on_path_s"));
        CU_ASSERT_DOUBLE_EQUAL(sum / latency, 1, 1e-6);
        CU_ASSERT_TRUE(json_array_size(path) > 20);
        CU_ASSERT_TRUE(json_number_value(json_object_get(root, "least_latency_s")) <= latency * (1 + 1e-9));
        const char *first = json_string_value(json_object_get(json_array_get(path, 0), "instance"));
        CU_ASSERT_PTR_NOT_NULL(first && !strncmp(first, "attn", 4) ? first : NULL);
        json_decref(root);
        simulated_free(&o);
    }
}

/// As text: the reason for a gap, the bound; in colours; as a picture.
static void test_text(void)
{
    char path[64], *text = NULL;
    size_t size;
    struct context context;
    struct driver_result result = {0};
    snprintf(path, sizeof path, "/tmp/simulate_%ld.svg", (long)getpid());
    struct driver_options options = {.file = "examples/schedules/library.moe", .check = {.layer = -1, .schedule = "waves(g: 4)"},
                                     .check_only = true, .simulate = true, .color = true, .svg = path};
    options.out = open_memstream(&text, &size);
    context_init(&context);
    CU_ASSERT_EQUAL(setjmp(context.fatal), 0);
    CU_ASSERT_EQUAL(compile(&context, &options, &result), EXIT_FINE);
    context_free(&context);
    fclose(options.out);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "critical path: attn "));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "comp idle for "));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "before expert[0]: it waits for dispatch.recv[0]: its rows travel "));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, ", sent after dispatch.pack[0]"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "no schedule takes less than 4.27ms a layer: 3.32ms on the busiest link, 4.27ms of compute"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\033[30;46mDDDDDD0DDDDDDDD1"));
    free(text);
    char svg[256] = "";
    FILE *file = fopen(path, "r");
    int boxes = 0, ended = 0;
    while (file && fgets(svg, sizeof svg, file)) {
        boxes += !strncmp(svg, "<g><title>", 10);
        ended += !strcmp(svg, "</svg>\n");
    }
    CU_ASSERT_TRUE(boxes > 100 && ended == 1);
    if (file)
        fclose(file);
    unlink(path);
}

static void test_trace(void)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/simulate_%ld.json", (long)getpid());
    struct context context;
    struct driver_options options = {
        .file = "examples/hello.moe", .check = {.layer = -1}, .check_only = true, .simulate = true, .trace = path};
    struct driver_result result = {0};
    options.out = fopen("/dev/null", "w");
    context_init(&context);
    CU_ASSERT_EQUAL(setjmp(context.fatal), 0);
    CU_ASSERT_EQUAL(compile(&context, &options, &result), EXIT_FINE);
    context_free(&context);
    fclose(options.out);
    json_t *trace = json_load_file(path, 0, NULL), *events = json_object_get(trace, "traceEvents"), *event;
    size_t i;
    int stages = 0, messages = 0;
    json_array_foreach(events, i, event)
    {
        const char *category = json_string_value(json_object_get(event, "cat"));
        stages += category && !strcmp(category, "stage");
        messages += category && !strcmp(category, "message");
    }
    CU_ASSERT_EQUAL(stages, 16); // eight tasks of two parts
    CU_ASSERT_EQUAL(messages, 4);
    json_decref(trace);
    unlink(path);
}

void suite_simulate(void)
{
    CU_pSuite suite = CU_add_suite("simulate", NULL, NULL);
    CU_add_test(suite, "costs", test_costs);
    CU_add_test(suite, "figures of a device", test_device_figures);
    CU_add_test(suite, "tiles of CUDA kernels", test_tiles);
    CU_add_test(suite, "loads", test_loads);
    CU_add_test(suite, "SMs of a stream's own", test_lent_sms);
    CU_add_test(suite, "bytes through relays", test_relayed_bytes);
    CU_add_test(suite, "fill goes where its stream stalls", test_fill_in_stalls);
    CU_add_test(suite, "what m micro-batches hide", test_hidden_share);
    CU_add_test(suite, "budgets", test_budgets);
    CU_add_test(suite, "overflow rounds", test_rounds);
    CU_add_test(suite, "budgets of waves", test_budgets_of_waves);
    CU_add_test(suite, "budgets in schedules", test_schedule_budgets);
    CU_add_test(suite, "figures of the examples", test_goldens);
    CU_add_test(suite, "E4M3 weights at the fp8 peak", test_fp8_peak);
    CU_add_test(suite, "the critical path", test_critical_path);
    CU_add_test(suite, "text and pictures", test_text);
    CU_add_test(suite, "traces", test_trace);
}
