// Extern stages: the embedding program's function gets every row of every layer once, its result is what the next stage
// reads, and a function that is missing, unknown or fails is an error that names it.
#include <CUnit/CUnit.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tests/end_to_end/harness.h"

enum { WIDTH = 64, BOUND = 96, RANKS = 2, LAYERS = 2 };

static const char text[] =
    "import std.ops;\nimport std.hw { host };\nimport std.schedules { serial, ladder };\n"
    "dim tokens <= 96;\ndim hidden = 64;\ndim ffn = 64;\ndim experts = 4;\n"
    "cluster two { device = host; axis rank[2]; link shm across rank { bandwidth: 5GB/s, latency: 1us }; }\n"
    "placement even on two { place experts over rank; }\n"
    "layer moe(x: f32[tokens, hidden]) -> f32[tokens, hidden] {\n"
    "    param w_router: f32[experts, hidden];\n    param w_gate_up: f32[experts, 2 * ffn, hidden];\n"
    "    param w_down: f32[experts, hidden, ffn];\n"
    "    %s\n    stage route: r = topk(%s, w_router, k: 2);\n    stage dispatch: xd = dispatch(%s, r);\n"
    "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n    stage combine: yc = combine(yd, r);\n"
    "    %s\n    yield %s;\n}\n"
    "pipeline main { layer = moe; repeat = %d; cluster = two; placement = even; target = cpu; use %s; }\n";

static moe_plan *compile_ranks(bool with_extern, int layers, const char *use, uint32_t ranks)
{
    char source[4096];
    const char *x = with_extern ? "a" : "x";
    snprintf(source, sizeof source, text, with_extern ? "extern stage attn: a = attention(x, cost: 1ms);" : "", x, x,
             with_extern ? "extern stage post: y = residual(yc, a);" : "", with_extern ? "y" : "yc", layers, use);
    return subject_compile(&(struct subject){.text = source, .layer = -1, .ranks = ranks});
}

static moe_plan *compile(bool with_extern, int layers, const char *use)
{
    return compile_ranks(with_extern, layers, use, RANKS);
}

struct log {
    _Atomic int rows[LAYERS][RANKS][BOUND];
    _Atomic int wrong;
    int fail_at_layer; // -1: never
};

/// Twice the first tensor, which f32 does without rounding.
static int twice(void *user, const moe_extern_call *call)
{
    struct log *log = user;
    const float *in = call->in[0];
    float *out = call->out;
    bool wrong = call->layer >= LAYERS || call->rank >= RANKS || call->inputs != 1 || call->row_bytes[0] != WIDTH * 4 ||
                 call->row_bytes[1] != WIDTH * 4 || call->first < 0 || call->first + call->count > BOUND || call->count < 1;
    if (wrong) {
        log->wrong++;
        return 0;
    }
    for (int64_t t = 0; t < call->count; t++)
        log->rows[call->layer][call->rank][call->first + t]++;
    for (int64_t i = 0; i < call->count * WIDTH; i++)
        out[i] = 2 * in[i];
    return (int)call->layer == log->fail_at_layer;
}

/// The first tensor as it is; the second one is there too.
static int first_of_two(void *user, const moe_extern_call *call)
{
    struct log *log = user;
    const float *a = call->in[1];
    log->wrong += call->inputs != 2 || (a[0] != a[0]);
    memcpy(call->out, call->in[0], (size_t)(call->count * WIDTH) * 4);
    return 0;
}

static moe_session *make_session(const moe_plan *plan, const char *device)
{
    moe_session *session = NULL;
    CU_ASSERT_EQUAL(moe_session_create(plan, &(moe_options){.threads = 2, .device = device, .poison = 1}, &session), MOE_OK);
    CU_ASSERT_EQUAL(moe_session_load(session, "random"), MOE_OK);
    return session;
}

static const int64_t tokens[RANKS] = {BOUND, 41};

struct seen_threads {
    _Atomic unsigned long of[RANKS];
    _Atomic int changes;
};

/// The first tensor as it is; notes which thread ran it for the rank.
static int note_thread(void *user, const moe_extern_call *call)
{
    struct seen_threads *seen = user;
    unsigned long self = (unsigned long)pthread_self(), before = atomic_exchange(&seen->of[call->rank], self);
    seen->changes += before && before != self;
    memcpy(call->out, call->in[0], (size_t)(call->count * WIDTH) * 4);
    return 0;
}

static moe_status run_step(moe_session *session, float in[RANKS][BOUND * WIDTH], float out[RANKS][BOUND * WIDTH])
{
    moe_step steps[RANKS];
    for (uint32_t r = 0; r < RANKS; r++)
        steps[r] = (moe_step){.rank = r, .tokens = tokens[r], .in = in[r], .out = out[r]};
    return moe_session_run(session, steps, RANKS);
}

static float in[RANKS][BOUND * WIDTH], doubled[RANKS][BOUND * WIDTH], out[RANKS][BOUND * WIDTH], plain[RANKS][BOUND * WIDTH];

static void test_called(void)
{
    static const char *const uses[] = {"serial", "ladder(n: 3)"}, *const devices[] = {"cpu", "sim"};
    gaussian(&in[0][0], RANKS * BOUND * WIDTH, 11);
    for (size_t i = 0; i < 4; i++) {
        struct log *log = calloc(1, sizeof *log);
        moe_plan *plan = compile(true, LAYERS, uses[i / 2]);
        if (!log || !plan)
            break;
        log->fail_at_layer = -1;
        moe_session *session = make_session(plan, devices[i % 2]);
        CU_ASSERT_EQUAL(moe_session_extern(session, "attn", twice, log), MOE_OK);
        CU_ASSERT_EQUAL(moe_session_extern(session, "post", first_of_two, log), MOE_OK);
        CU_ASSERT_EQUAL(run_step(session, in, out), MOE_OK);
        CU_ASSERT_EQUAL(log->wrong, 0);
        bool once = true;
        for (int l = 0; l < LAYERS; l++)
            for (int r = 0; r < RANKS; r++)
                for (int t = 0; t < BOUND; t++)
                    once = once && log->rows[l][r][t] == (t < tokens[r]);
        CU_ASSERT_TRUE(once);
        if (i == 0)
            memcpy(plain, out, sizeof out);
        for (int r = 0; r < RANKS; r++) // the same bytes under every schedule and device
            CU_ASSERT_EQUAL(memcmp(plain[r], out[r], (size_t)tokens[r] * WIDTH * 4), 0);
        moe_session_destroy(session);
        moe_plan_close(plan);
        free(log);
    }
}

/// One layer with a doubling stage is the layer without, on doubled rows.
static void test_result(void)
{
    struct log *log = calloc(1, sizeof *log);
    moe_plan *with = compile(true, 1, "ladder(n: 2)"), *without = compile(false, 1, "ladder(n: 2)");
    if (!log || !with || !without)
        return;
    log->fail_at_layer = -1;
    gaussian(&in[0][0], RANKS * BOUND * WIDTH, 11);
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < BOUND * WIDTH; i++)
            doubled[r][i] = 2 * in[r][i];
    moe_session *a = make_session(with, "cpu"), *b = make_session(without, "cpu");
    moe_session_extern(a, "attn", twice, log);
    moe_session_extern(a, "post", first_of_two, log);
    CU_ASSERT_EQUAL(run_step(a, in, out), MOE_OK);
    CU_ASSERT_EQUAL(run_step(b, doubled, plain), MOE_OK);
    for (int r = 0; r < RANKS; r++)
        CU_ASSERT_EQUAL(memcmp(plain[r], out[r], (size_t)tokens[r] * WIDTH * 4), 0);
    moe_session_destroy(a);
    moe_session_destroy(b);
    moe_plan_close(with);
    moe_plan_close(without);
    free(log);
}

/// With emulated links a rank is a machine of its own: its threads work for no other rank.
static void test_teams(void)
{
    struct seen_threads seen = {0};
    moe_plan *plan = compile(true, LAYERS, "ladder(n: 6)");
    moe_session *session = NULL;
    if (!plan)
        return;
    CU_ASSERT_EQUAL(moe_session_create(plan, &(moe_options){.threads = 2, .emulate_links = 1}, &session), MOE_OK);
    CU_ASSERT_EQUAL(moe_session_load(session, "random"), MOE_OK);
    CU_ASSERT_EQUAL(moe_session_extern(session, "attn", note_thread, &seen), MOE_OK);
    CU_ASSERT_EQUAL(moe_session_extern(session, "post", note_thread, &seen), MOE_OK);
    for (int step = 0; step < 4; step++)
        CU_ASSERT_EQUAL(run_step(session, in, out), MOE_OK);
    CU_ASSERT_EQUAL(seen.changes, 0);
    CU_ASSERT(seen.of[0] && seen.of[1] && seen.of[0] != seen.of[1]);
    moe_session_destroy(session);
    moe_plan_close(plan);
}

struct visit {
    moe_session *session;
    pthread_t caller;
    int calls, elsewhere, loose, rounded, entered;
};

/// The first tensor as it is; looks where it is called.
static int look(void *user, const moe_extern_call *call)
{
    struct visit *v = user;
    cpu_set_t processors;
    moe_step step = {.tokens = call->count, .in = call->in[0], .out = call->out};
    v->calls++;
    v->elsewhere += !pthread_equal(pthread_self(), v->caller);
    v->loose += sched_getaffinity(0, sizeof processors, &processors) || CPU_COUNT(&processors) != 1;
    v->rounded += fegetround() != FE_TONEAREST;
    v->entered += moe_session_run(v->session, &step, 1) != MOE_INVALID || !strstr(moe_last_error(), "is in a step");
    memcpy(call->out, call->in[0], (size_t)(call->count * WIDTH) * 4);
    return 0;
}

/// A session's only stream runs in the caller's thread, which is a session's thread for so long and its own again after.
static void test_caller(void)
{
    moe_plan *plan = compile_ranks(true, LAYERS, "serial", 1);
    struct visit v = {.caller = pthread_self()};
    cpu_set_t before, after;
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    CU_ASSERT_EQUAL(moe_session_create(plan, &(moe_options){.threads = 2, .bind = "core"}, &v.session), MOE_OK);
    CU_ASSERT_EQUAL(moe_session_load(v.session, "random"), MOE_OK);
    CU_ASSERT_EQUAL(moe_session_extern(v.session, "attn", look, &v), MOE_OK);
    CU_ASSERT_EQUAL(moe_session_extern(v.session, "post", look, &v), MOE_OK);
    moe_step step = {.tokens = BOUND, .in = in[0], .out = out[0]};
    sched_getaffinity(0, sizeof before, &before);
    fesetround(FE_UPWARD);
    for (int i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(moe_session_run(v.session, &step, 1), MOE_OK);
    CU_ASSERT_EQUAL(fegetround(), FE_UPWARD);
    fesetround(FE_TONEAREST);
    sched_getaffinity(0, sizeof after, &after);
    CU_ASSERT(CPU_EQUAL(&before, &after));
    CU_ASSERT_EQUAL(v.calls, 3 * 2 * LAYERS);
    CU_ASSERT_EQUAL(v.elsewhere, 0);
    CU_ASSERT_EQUAL(v.loose, 0);
    CU_ASSERT_EQUAL(v.rounded, 0);
    CU_ASSERT_EQUAL(v.entered, 0);
    moe_session_destroy(v.session);
    moe_plan_close(plan);
}

static void test_refused(void)
{
    struct log *log = calloc(1, sizeof *log);
    moe_plan *plan = compile(true, LAYERS, "serial");
    if (!log || !plan)
        return;
    CU_ASSERT_STRING_EQUAL(moe_plan_extern(plan, 0), "attn");
    CU_ASSERT_STRING_EQUAL(moe_plan_extern(plan, 1), "post");
    CU_ASSERT_PTR_NULL(moe_plan_extern(plan, 2));
    moe_session *session = make_session(plan, "cpu");
    log->fail_at_layer = -1;
    CU_ASSERT_EQUAL(moe_session_extern(session, "atten", twice, log), MOE_INVALID);
    CU_ASSERT_PTR_NOT_NULL(strstr(moe_session_error(session), "`atten`"));
    CU_ASSERT_EQUAL(moe_session_extern(session, "post", first_of_two, log), MOE_OK);
    CU_ASSERT_EQUAL(run_step(session, in, out), MOE_INVALID);
    CU_ASSERT_PTR_NOT_NULL(strstr(moe_session_error(session), "`attn` has no function"));
    CU_ASSERT_EQUAL(moe_session_extern(session, "attn", twice, log), MOE_OK); // still usable: nothing had moved
    CU_ASSERT_EQUAL(run_step(session, in, out), MOE_OK);
    log->fail_at_layer = 1;
    CU_ASSERT_EQUAL(run_step(session, in, out), MOE_BAD_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(moe_session_error(session), "extern stage `attn` returned 1"));
    CU_ASSERT_EQUAL(run_step(session, in, out), MOE_BROKEN);
    moe_session_destroy(session);
    moe_plan_close(plan);
    free(log);
}

void suite_externs(void)
{
    CU_pSuite suite = CU_add_suite("externs", NULL, NULL);
    CU_add_test(suite, "every row once, the same bytes under every schedule", test_called);
    CU_add_test(suite, "the next stage reads its result", test_result);
    CU_add_test(suite, "emulated links: a rank's threads work for no other", test_teams);
    CU_add_test(suite, "an only stream runs in the caller's thread", test_caller);
    CU_add_test(suite, "missing, unknown, failing", test_refused);
}
