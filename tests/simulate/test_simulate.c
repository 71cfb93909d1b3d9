// The simulator against closed forms, the cost model against sums done by hand, budgets and their diagnostics, and the
// figures of two examples.
#include <CUnit/CUnit.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/driver.h"
#include "compiler/simulate/events.h"

// ---- events -----------------------------------------------------------------------------------------------------------

enum { TASKS = 256, FLOWS = 128, ARCS = 512 };

struct scene {
    struct context context;
    struct event_task tasks[TASKS];
    struct event_flow flows[FLOWS];
    struct event_arc arcs[ARCS];
    double links[8];
    struct events events;
};

static void scene_make(struct scene *s, uint32_t streams)
{
    memset(s, 0, sizeof *s);
    context_init(&s->context);
    s->events = (struct events){
        .tasks = s->tasks, .flows = s->flows, .arcs = s->arcs, .links = s->links, .stream_count = streams, .pool_count = 2};
}

static uint32_t add_task(struct scene *s, enum event_kind kind, uint32_t stream, double work)
{
    s->tasks[s->events.task_count] = (struct event_task){.kind = kind, .stream = stream, .work = work};
    return s->events.task_count++;
}

static void add_arc(struct scene *s, uint32_t from, uint32_t to)
{
    s->arcs[s->events.arc_count++] = (struct event_arc){from, to};
}

static void add_flow(struct scene *s, uint32_t send, uint32_t recv, uint32_t out, uint32_t in, double bytes, double latency)
{
    s->flows[s->events.flow_count++] = (struct event_flow){
        .send = send, .recv = recv, .out = out, .in = in, .out_bytes = bytes, .in_bytes = bytes, .latency = latency};
}

static double finish(struct scene *s)
{
    CU_ASSERT_TRUE(run_events(&s->context, &s->events));
    return s->events.end;
}

#define NEAR(value, expected) CU_ASSERT_DOUBLE_EQUAL(value, expected, 1e-6 * (fabs((double)(expected)) + 1))

static void test_queues(void)
{
    struct scene s;
    scene_make(&s, 2); // one after the other on a stream; an arc between streams
    uint32_t a = add_task(&s, EVENT_COMPUTE, 0, 10), b = add_task(&s, EVENT_COMPUTE, 0, 5);
    uint32_t c = add_task(&s, EVENT_COMPUTE, 1, 7);
    s.tasks[c].pool = 1;
    add_arc(&s, a, c);
    NEAR(finish(&s), 17);
    NEAR(s.tasks[b].begin, 10);
    NEAR(s.tasks[c].begin, 10);
    context_free(&s.context);

    scene_make(&s, 2); // two at once on the same SMs take twice as long, the longer one then runs alone
    add_task(&s, EVENT_COMPUTE, 0, 10);
    add_task(&s, EVENT_COMPUTE, 1, 30);
    NEAR(finish(&s), 40);
    NEAR(s.tasks[0].end, 20);
    context_free(&s.context);

    scene_make(&s, 2); // a stream that lends a fifth of the SMs slows the others while it works, reading less than arithmetic
    add_task(&s, EVENT_COMPUTE, 0, 16);
    b = add_task(&s, EVENT_COMPUTE, 1, 10);
    s.tasks[b].pool = 1;
    s.tasks[b].lends = 0.2;
    NEAR(finish(&s), 18);
    s.tasks[0].memory = 16;
    s.tasks[0].work = 1;
    NEAR(finish(&s), 16);
    context_free(&s.context);

    scene_make(&s, 2); // a circle never ends
    a = add_task(&s, EVENT_COMPUTE, 0, 1);
    b = add_task(&s, EVENT_COMPUTE, 1, 1);
    add_arc(&s, a, b);
    add_arc(&s, b, a);
    CU_ASSERT_FALSE(run_events(&s.context, &s.events));
    context_free(&s.context);
}

static void test_links(void)
{
    struct scene s;
    scene_make(&s, 4); // one message: bytes over bandwidth, then latency; the sender does not wait for the latency
    uint32_t send = add_task(&s, EVENT_SEND, 0, 0), recv = add_task(&s, EVENT_RECV, 1, 0);
    s.events.link_count = 4;
    for (int i = 0; i < 4; i++)
        s.links[i] = 2;
    add_flow(&s, send, recv, 0, 1, 100, 8);
    NEAR(finish(&s), 58);
    NEAR(s.tasks[send].end, 50);
    NEAR(s.tasks[recv].end, 58);

    uint32_t other = add_task(&s, EVENT_SEND, 2, 0), other_recv = add_task(&s, EVENT_RECV, 3, 0);
    add_flow(&s, other, other_recv, 0, 2, 100, 0); // two streams share the link they leave by
    NEAR(finish(&s), 108);
    NEAR(s.tasks[other].end, 100);

    s.flows[1].out_bytes = s.flows[1].in_bytes = 50; // the shorter one ends first, the other then has the link alone
    NEAR(finish(&s), 83);
    NEAR(s.tasks[other].end, 50);
    NEAR(s.tasks[send].end, 75);

    s.flows[1].out_bytes = s.flows[1].in_bytes = 100;
    s.links[2] = 0.5; // what a slow link elsewhere leaves unused goes to the other message
    NEAR(finish(&s), 200);
    NEAR(s.tasks[send].end, 100 / 1.5);
    context_free(&s.context);
}

/// `n` parts through dispatch, expert and combine on three streams, each taking the times given.
static double ladder(struct scene *s, uint32_t n, double dispatch, double expert, double combine)
{
    scene_make(s, 3);
    for (uint32_t i = 0; i < n; i++) {
        double times[3] = {dispatch, expert, combine};
        for (uint32_t k = 0; k < 3; k++) {
            uint32_t task = add_task(s, EVENT_COMPUTE, k, times[k] / n);
            s->tasks[task].pool = k;
            if (k)
                add_arc(s, task - 1, task);
        }
    }
    s->events.pool_count = 3;
    return finish(s);
}

static void test_pipeline(void)
{
    for (uint32_t n = 1; n <= 16; n++) {
        struct scene s;
        NEAR(ladder(&s, n, 1200, 1200, 1200), 1200.0 + 2 * 1200.0 / n); // fill and drain: (n + 2) turns of T / n
        context_free(&s.context);
        // As much communication as compute, half before and half after: all but 1/n of it is hidden.
        double exposed = ladder(&s, n, 600, 1200, 600) - 1200;
        NEAR(1 - exposed / 1200, 1 - 1.0 / n);
        context_free(&s.context);
    }
}

// ---- programs ---------------------------------------------------------------------------------------------------------

struct outcome {
    enum exit_code code;
    char *out, *errors;
};

static struct outcome compile_file(const char *path, const char *schedule, bool simulate)
{
    struct outcome o = {EXIT_BUG, NULL, NULL};
    size_t size, error_size;
    struct context context;
    FILE *out = open_memstream(&o.out, &size), *errors = open_memstream(&o.errors, &error_size);
    struct driver_options options = {
        .file = path, .check = {.layer = -1, .schedule = schedule}, .check_only = true, .simulate = simulate, .json = true, .out = out};
    struct driver_result result = {0};
    context_init(&context);
    if (setjmp(context.fatal) == 0)
        o.code = compile(&context, &options, &result);
    else
        fprintf(errors, "%s\n", context.fatal_message);
    diag_print_all(&context, DIAG_TEXT, false, errors);
    context_free(&context);
    fclose(out);
    fclose(errors);
    return o;
}

static void outcome_free(struct outcome *o)
{
    free(o->out);
    free(o->errors);
}

/// A layer on four ranks whose figures are easy: 4096 experts' pairs cost 1 ms a rank, memory costs nothing.
static const char program[] =
    "import std.ops;\nimport std.schedules { serial, ladder };\n"
    "dim tokens <= 1024;\ndim hidden = 512;\ndim ffn = 512;\ndim experts = 4;\n"
    "device fast { sm = 100; memory = 80GB; hbm = 100000TB/s; peak = { bf16: 3.221225472TFLOPS }; derate = 100%%;\n"
    "    engine copy[2], net_out, net_in; }\n"
    "cluster four { device = fast; axis rank[4]; link wire across rank { bandwidth: %s, latency: 0us }; }\n"
    "placement one_each on four { place experts over rank; }\n"
    "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n"
    "    param w_router: f32[experts, hidden];\n    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n"
    "    param w_down: bf16[experts, hidden, ffn];\n"
    "    stage route: r = topk(x, w_router, k: 2);\n    stage dispatch: xd = dispatch(x, r);\n"
    "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n    stage combine: y = combine(yd, r);\n    yield y;\n}\n%s"
    "pipeline main { layer = moe; cluster = four; placement = one_each; target = cpu;\n%s\n}\n";

static struct outcome compile_text(const char *bandwidth, const char *items, const char *members, bool simulate)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/simulate_%ld.moe", (long)getpid());
    FILE *file = fopen(path, "w");
    if (file) {
        fprintf(file, program, bandwidth, items, members);
        fclose(file);
    }
    struct outcome o = compile_file(path, NULL, simulate);
    unlink(path);
    return o;
}

static double figure(const char *line, const char *object, const char *key)
{
    json_t *root = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
    json_t *inner = object ? json_object_get(root, object) : root;
    double value = json_number_value(json_object_get(inner, key));
    CU_ASSERT_PTR_NOT_NULL(json_object_get(inner, key));
    json_decref(root);
    return value;
}

static void test_costs(void)
{
    // Pairs of a rank: 1024 tokens x 2 of each of 4 ranks over 4 experts; 6 x 2048 x 512 x 512 FLOPs at 3.221 TFLOPS.
    const double expert = 1e-3, route = 2.0 * 1024 * 512 * 4 / 3.221225472e12;
    // A token meets another rank's expert with 1 - C(3,2)/C(4,2) = 1/2: 1.5 rows to others. Bytes: 1024 and 16 of ids.
    const double rows = 1024 * 1.5, dispatch_bytes = rows * 1040, combine_bytes = rows * 1024;
    struct outcome o = compile_text("1GB/s", "", "use serial;", true);
    CU_ASSERT_EQUAL(o.code, EXIT_FINE);
    NEAR(figure(o.out, "bytes", "net_out"), dispatch_bytes + combine_bytes);
    NEAR(figure(o.out, NULL, "latency_s") * 1e3, (expert + route + (dispatch_bytes + combine_bytes) / 1e9) * 1e3);
    NEAR(figure(o.out, NULL, "speedup"), 1);
    NEAR(figure(o.out, NULL, "exposed_comm"), (dispatch_bytes + combine_bytes) / 1e9 / figure(o.out, NULL, "latency_s"));
    NEAR(figure(o.out, NULL, "mfu"), (expert + route) / figure(o.out, NULL, "latency_s"));
    NEAR(figure(o.out, "bubble", "main"), 0);
    outcome_free(&o);
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
        struct outcome o = compile_text(bandwidth, "", use, true);
        CU_ASSERT_EQUAL(o.code, EXIT_FINE);
        double exposed = figure(o.out, NULL, "exposed_comm") * figure(o.out, NULL, "latency_s");
        CU_ASSERT_DOUBLE_EQUAL(1 - exposed / compute, 1 - 1.0 / counts[i], 0.02);
        outcome_free(&o);
    }
}

static void expect_missed(const char *bandwidth, const char *items, const char *members, enum exit_code code, const char *const *parts)
{
    struct outcome o = compile_text(bandwidth, items, members, false);
    CU_ASSERT_EQUAL(o.code, code);
    if (o.code != code)
        printf("\n%s: exit code %d\n%s", members, o.code, o.errors);
    for (; *parts; parts++) {
        CU_ASSERT_PTR_NOT_NULL(strstr(o.errors, *parts));
        if (!strstr(o.errors, *parts))
            printf("\nno `%s` in\n%s", *parts, o.errors);
    }
    outcome_free(&o);
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
                  PARTS("bytes(net_out) is 3.17MB, the limit is 1MB", "what is sent does not depend on the order"));
    expect_missed("1GB/s", "", "use serial; assert peak_memory < 1KB;", EXIT_BUDGET, PARTS("peak_memory is ", "the limit is 1KB"));
    expect_missed("1GB/s", "", "use serial; expect speedup > 2x;", EXIT_FINE,
                  PARTS("warning[E0401]: expectation not met: speedup is 1.00x, the limit is 2x"));
    expect_missed("1GB/s", "", "use serial; assert bubble(comp) < 2%;", EXIT_INPUT,
                  PARTS("`bubble(comp)` names nothing of the schedule `serial`", "its streams are main"));
    expect_missed("1GB/s", "assert experts mod 3 == 0 else \"three per group\";\n", "use serial;", EXIT_BUDGET,
                  PARTS("error[E0401]: assertion not met: three per group"));
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
    struct outcome o = compile_text("1GB/s", mine, "use mine(n: 8) when tokens <= 512; use serial;", false);
    CU_ASSERT_EQUAL(o.code, EXIT_BUDGET);
    CU_ASSERT_PTR_NOT_NULL(strstr(o.errors, "overlap(dispatch[n-1], expert[n-2]) is "));
    CU_ASSERT_PTR_NOT_NULL(strstr(o.errors, "for 512 tokens"));
    CU_ASSERT_PTR_NULL(strstr(o.errors, "latency"));
    outcome_free(&o);
    o = compile_text("1GB/s", mine, "use mine(n: 3);", false);
    CU_ASSERT_PTR_NOT_NULL(strstr(o.errors, "latency is "));
    CU_ASSERT_PTR_NOT_NULL(strstr(o.errors, "the limit is n * 1ms"));
    outcome_free(&o);
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
    struct outcome o = compile_file(path, NULL, true);
    CU_ASSERT_EQUAL(o.code, EXIT_FINE);
    FILE *file = fopen(golden, getenv("MOE_GOLDENS") ? "w" : "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    uint32_t lines = 0;
    for (char *at = o.out; *at; lines++) {
        json_t *found = json_loads(at, JSON_DISABLE_EOF_CHECK, NULL);
        json_object_del(found, "peak_memory");
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
    outcome_free(&o);
}

static void test_goldens(void)
{
    check_golden("hello");
    check_golden("mixtral");
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
    CU_add_test(suite, "streams are queues, SMs are shared", test_queues);
    CU_add_test(suite, "links are shared", test_links);
    CU_add_test(suite, "pipelines fill and drain", test_pipeline);
    CU_add_test(suite, "costs", test_costs);
    CU_add_test(suite, "what m micro-batches hide", test_hidden_share);
    CU_add_test(suite, "budgets", test_budgets);
    CU_add_test(suite, "budgets in schedules", test_schedule_budgets);
    CU_add_test(suite, "figures of the examples", test_goldens);
    CU_add_test(suite, "traces", test_trace);
}
