// I1, schedules are neutral: schedule, threads, capacity, position in a batch change no byte. I2, nothing is lost: a row
// dropped, doubled or sent astray is reported with its rank.
#include <CUnit/CUnit.h>
#include <fenv.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/exec/session.h"
#include "runtime/plan/plan.h"
#include "tests/end_to_end/harness.h"

enum { HIDDEN = 128, BOUND = 320, CHOICES = 3 };

// Two layers with the given dtype and dispatch options on four ranks.
static const char *layer_text(const char *dtype, const char *dispatch)
{
    struct shape shape = {.hidden = HIDDEN,
                          .ffn = 96,
                          .experts = 12,
                          .choices = CHOICES,
                          .bound = BOUND,
                          .dtype = dtype,
                          .normalize = true};
    return routed_layer_text(&(struct routed_layer){.shape = &shape, .dispatch = dispatch, .repeat = 2});
}

static struct outcome run_once(const char *text, const char *schedule, uint32_t ranks, int64_t layer,
                               const float *in, const int64_t *tokens, moe_options options)
{
    struct subject subject = {.text = text, .schedule = schedule, .ranks = ranks, .layer = layer};
    moe_plan *plan = subject_compile(&subject);
    struct outcome none = {.status = MOE_INVALID};
    if (!plan)
        return none;
    struct run run = {.in = in, .tokens = tokens, .options = options};
    struct outcome o = run_plan_once(plan, &run);
    if (o.status != MOE_OK && !options.fault)
        fprintf(stderr, "%s\n", o.error);
    moe_plan_close(plan);
    return o;
}

static void test_schedules_and_threads(void)
{
    static float in[4 * BOUND * HIDDEN];
    gaussian(in, sizeof in / sizeof *in, 1);
    const int64_t tokens[4] = {BOUND, 3, 0, 131};
    const char *dtypes[] = {"bf16", "f32", "f16"};
    for (size_t d = 0; d < 3; d++) {
        const char *text = layer_text(dtypes[d], "");
        struct outcome first = run_once(text, "serial", 4, -1, in, tokens, (moe_options){.threads = 1});
        CU_ASSERT_EQUAL(first.status, MOE_OK);
        for (int n = 2; n <= 8; n++)
            for (uint32_t threads = 1; threads <= 4; threads *= 2) {
                char schedule[32];
                snprintf(schedule, sizeof schedule, "ladder(n: %d)", n);
                struct outcome o = run_once(text, schedule, 4, -1, in, tokens, (moe_options){.threads = threads});
                CU_ASSERT(outcome_equal(&first, &o));
                outcome_free(&o);
            }
        struct outcome virtual = run_once(text, "ladder(n: 4)", 4, -1, in, tokens, (moe_options){.device = "sim"});
        CU_ASSERT(outcome_equal(&first, &virtual));
        outcome_free(&virtual);
        outcome_free(&first);
    }
}

// The stages of one stream of rank 0, in the order of time, from a Chrome trace; names joined by spaces.
static char *stages_of_stream(const json_t *events, int thread)
{
    char *text = calloc(1, 1 << 16);
    size_t index, used = 0;
    const json_t *event;
    double last = -1;
    json_array_foreach(events, index, event)
    {
        const char *category = json_string_value(json_object_get(event, "cat"));
        if (!category || strcmp(category, "stage") || json_integer_value(json_object_get(event, "pid")) != 0 ||
            json_integer_value(json_object_get(event, "tid")) != thread)
            continue;
        double begin = json_number_value(json_object_get(event, "ts"));
        CU_ASSERT(begin >= last);
        last = begin;
        used += (size_t)snprintf(text + used, (1 << 16) - used, "%s ", json_string_value(json_object_get(event, "name")));
    }
    return text;
}

// What the plan says: labels of a stream's instructions, each instance once.
static char *stages_of_plan(const struct ir *ir, uint32_t variant, uint32_t stream)
{
    char *text = calloc(1, 1 << 16);
    size_t used = 0;
    const struct plan_program *program = ROW(ir, plan_program, ROW(ir, plan_variant, variant)->programs.first);
    const struct plan_stream *row = ROW(ir, plan_stream, program->streams.first + stream);
    str_id last = 0;
    for (uint32_t i = 0; i < row->instrs.count; i++) {
        const struct plan_instr *in = ROW(ir, plan_instr, row->instrs.first + i);
        if ((in->op == opcode_launch || in->op == opcode_send || in->op == opcode_recv) && in->label != last) {
            used += (size_t)snprintf(text + used, (1 << 16) - used, "%s ", ir_text(ir, in->label));
            last = in->label;
        }
    }
    return text;
}

static uint32_t occurrences(const char *text, const char *what)
{
    uint32_t count = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        count++;
    return count;
}

// A measured trace holds each stage n times, and each stream in the plan's order.
static void test_trace(void)
{
    static float in[4 * 64 * HIDDEN];
    gaussian(in, sizeof in / sizeof *in, 13);
    char path[64], error[256];
    snprintf(path, sizeof path, "/tmp/moe-trace-%d.json", (int)getpid());
    for (uint32_t n = 2; n <= 8; n++) {
        char schedule[32];
        snprintf(schedule, sizeof schedule, "ladder(n: %u)", n);
        struct subject subject = {.text = layer_text("bf16", ""), .schedule = schedule, .layer = 0};
        size_t bytes;
        void *image = subject_image(&subject, &bytes);
        struct plan plan;
        moe_plan *opened = NULL;
        CU_ASSERT_FATAL(image && plan_open(&plan, image, bytes, true, error, sizeof error) &&
                        moe_plan_from_memory(image, bytes, &opened) == MOE_OK);
        const int64_t tokens[4] = {64, 64, 64, 64};
        struct run run = {.in = in, .tokens = tokens, .options = {.threads = 2, .trace = 1}, .trace = path};
        struct outcome o = run_plan_once(opened, &run);
        CU_ASSERT_EQUAL(o.status, MOE_OK);
        json_t *trace = json_load_file(path, 0, NULL);
        CU_ASSERT_PTR_NOT_NULL_FATAL(trace);
        const char *stages[] = {"route[", "dispatch.pack[", "dispatch.send[", "dispatch.recv[", "expert[",
                                "combine.send[", "combine.recv[", "combine.merge["};
        uint32_t total[8] = {0};
        for (int stream = 0; stream < 3; stream++) {
            char *ran = stages_of_stream(json_object_get(trace, "traceEvents"), stream);
            char *planned = stages_of_plan(&plan.ir, 0, (uint32_t)stream);
            CU_ASSERT_STRING_EQUAL(ran, planned);
            for (int s = 0; s < 8; s++)
                total[s] += occurrences(ran, stages[s]);
            free(ran);
            free(planned);
        }
        for (int s = 0; s < 8; s++)
            CU_ASSERT_EQUAL(total[s], n);
        json_decref(trace);
        outcome_free(&o);
        plan_close(&plan);
        moe_plan_close(opened);
        free(image);
    }
    remove(path);
}

static void test_token_invariance(void)
{
    static float in[BOUND * HIDDEN], alone[HIDDEN];
    gaussian(alone, HIDDEN, 7);
    const char *text = layer_text("bf16", "");
    const int64_t one = 1;
    struct outcome single = run_once(text, "ladder(n: 2)", 1, -1, alone, &one, (moe_options){.threads = 2});
    CU_ASSERT_EQUAL(single.status, MOE_OK);
    const int64_t batches[] = {7, 64, 300};
    for (size_t b = 0; b < 3; b++) {
        const int64_t places[] = {0, batches[b] / 2, batches[b] - 1};
        for (size_t p = 0; p < 3; p++) {
            gaussian(in, (size_t)batches[b] * HIDDEN, 100 + b);
            memcpy(in + places[p] * HIDDEN, alone, sizeof alone);
            struct outcome o = run_once(text, b == 1 ? "serial" : "ladder(n: 3)", 1, -1, in, &batches[b],
                                        (moe_options){.threads = 2});
            CU_ASSERT_EQUAL(o.status, MOE_OK);
            CU_ASSERT(!memcmp(o.out + places[p] * HIDDEN, single.out, sizeof alone));
            outcome_free(&o);
        }
    }
    outcome_free(&single);
}

static void test_capacity(void)
{
    static float in[4 * BOUND * HIDDEN];
    gaussian(in, sizeof in / sizeof *in, 3);
    const int64_t tokens[4] = {BOUND, BOUND, 17, 200};
    struct outcome wide =
        run_once(layer_text("bf16", "capacity: 8x"), "ladder(n: 2)", 4, -1, in, tokens, (moe_options){.threads = 2});
    const char *tight[] = {"capacity: 0.1x", "capacity: 0.5x", "capacity: 0.1x, pool: 0.01x"};
    CU_ASSERT_EQUAL(wide.status, MOE_OK);
    CU_ASSERT_EQUAL(wide.stats.overflowed, 0);
    CU_ASSERT_EQUAL(wide.stats.rounds, 0);
    for (size_t i = 0; i < 3; i++) {
        struct outcome o = run_once(layer_text("bf16", tight[i]), i == 1 ? "serial" : "ladder(n: 2)", 4, -1, in, tokens,
                                    (moe_options){.threads = 2});
        CU_ASSERT(outcome_equal(&wide, &o));
        CU_ASSERT(o.stats.overflowed > 0);
        CU_ASSERT(o.stats.rounds > wide.stats.rounds);
        CU_ASSERT(o.stats.slot_bytes < wide.stats.slot_bytes);
        printf("\n    %s: %d rows overflowed, %d rounds, slots %d bytes (8x: %d)", tight[i] + 2, (int)o.stats.overflowed,
               (int)o.stats.rounds, (int)o.stats.slot_bytes, (int)wide.stats.slot_bytes);
        outcome_free(&o);
    }
    printf("\n");
    struct outcome refused = run_once(layer_text("bf16", "capacity: 0.1x, overflow: error"), "serial", 4, -1, in,
                                      tokens, (moe_options){.threads = 2, .fault = ""});
    CU_ASSERT_EQUAL(refused.status, MOE_OVERFLOW);
    outcome_free(&refused);
    outcome_free(&wide);
}

static void test_rank_counts(void)
{
    static float in[BOUND * HIDDEN];
    gaussian(in, sizeof in / sizeof *in, 5);
    const int64_t one[] = {120}, two[] = {60, 60}, four[] = {30, 30, 30, 30};
    struct outcome a = run_once(layer_text("bf16", ""), "serial", 1, 0, in, one, (moe_options){.threads = 2});
    struct outcome b = run_once(layer_text("bf16", ""), "serial", 2, 0, in, two, (moe_options){.threads = 2});
    struct outcome c = run_once(layer_text("bf16", ""), "serial", 4, 0, in, four, (moe_options){.threads = 2});
    CU_ASSERT(a.status == MOE_OK && b.status == MOE_OK && c.status == MOE_OK);
    CU_ASSERT(relative_l2(b.out, a.out, 120 * HIDDEN) < 5e-3);
    CU_ASSERT(relative_l2(c.out, a.out, 120 * HIDDEN) < 5e-3);
    outcome_free(&a);
    outcome_free(&b);
    outcome_free(&c);
}

// Each kind of damage to one row of one rank's messages is found, and the message names that rank.
static void test_conservation(void)
{
    static float in[4 * 64 * HIDDEN];
    gaussian(in, sizeof in / sizeof *in, 9);
    const int64_t tokens[4] = {64, 64, 64, 64};
    const char *kinds[] = {"drop", "double", "misroute"};
    for (size_t k = 0; k < 3; k++)
        for (int rank = 0; rank < 4; rank++) {
            char fault[32], name[16];
            snprintf(fault, sizeof fault, "%s:%d", kinds[k], rank);
            snprintf(name, sizeof name, "rank %d", rank);
            struct outcome o = run_once(layer_text("bf16", ""), "ladder(n: 2)", 4, 0, in, tokens,
                                        (moe_options){.threads = 2, .fault = fault});
            CU_ASSERT_EQUAL(o.status, MOE_LOST);
            CU_ASSERT_PTR_NOT_NULL(strstr(o.error, name));
            if (o.status != MOE_LOST || !strstr(o.error, name))
                fprintf(stderr, "%s: %s\n", fault, o.error);
            outcome_free(&o);
        }
}

static pthread_t caller;

static void slow_kernel(const struct moe_kargs *a, int64_t begin, int64_t end, void *scratch)
{
    (void)a, (void)begin, (void)end, (void)scratch;
    if (!pthread_equal(pthread_self(), caller))
        usleep(900000);
    else
        usleep(1000); // until a worker has taken a piece
}

/// A worker that does not come back ends the step also where nobody else waits for it: in a session with one stream.
static void test_stuck(void)
{
    static float in[8 * HIDDEN];
    const int64_t tokens[1] = {8};
    struct subject subject = {
        .text = layer_text("bf16", ""), .schedule = "serial", .ranks = 1, .layer = 0, .cpu_level = "v2"};
    moe_plan *plan = subject_compile(&subject);
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    for (uint32_t i = 0; i < COUNT(&plan->plan.ir, plan_kernel); i++)
        if (ROW(&plan->plan.ir, plan_kernel, i)->role == kernel_role_mlp_up)
            plan->kernels[i] = slow_kernel;
    caller = pthread_self();
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct run run = {.in = in, .tokens = tokens, .options = {.threads = threads, .timeout_s = 0.1}};
        struct outcome o = run_plan_once(plan, &run);
        CU_ASSERT_EQUAL(o.status, threads == 1 ? MOE_OK : MOE_TIMEOUT);
        CU_ASSERT(threads == 1 || strstr(o.error, "no progress for 0.1 s"));
        outcome_free(&o);
    }
    moe_plan_close(plan);
}

/// What the calling thread has done to its arithmetic changes no byte, and is as it was afterwards.
static void test_arithmetic(void)
{
    static float in[BOUND * HIDDEN];
    gaussian(in, sizeof in / sizeof *in, 1);
    const int64_t tokens[1] = {BOUND};
    struct subject subject = {.text = layer_text("f32", ""), .schedule = "serial", .ranks = 1, .layer = -1};
    moe_plan *plan = subject_compile(&subject);
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct outcome o[2];
        for (int k = 0; k < 2; k++) {
            struct run run = {.in = in, .tokens = tokens, .options = {.threads = threads}};
            fesetround(k ? FE_UPWARD : FE_TONEAREST);
            o[k] = run_plan_once(plan, &run);
            CU_ASSERT_EQUAL(fegetround(), k ? FE_UPWARD : FE_TONEAREST);
        }
        fesetround(FE_TONEAREST);
        CU_ASSERT(outcome_equal(&o[0], &o[1]));
        outcome_free(&o[0]);
        outcome_free(&o[1]);
    }
    moe_plan_close(plan);
}

void suite_invariants(void);
void suite_invariants(void)
{
    CU_pSuite suite = CU_add_suite("invariants", NULL, NULL);
    CU_add_test(suite, "a stuck kernel beside the only stream", test_stuck);
    CU_add_test(suite, "the caller's rounding changes no byte", test_arithmetic);
    CU_add_test(suite, "schedules, threads and devices give the same bytes", test_schedules_and_threads);
    CU_add_test(suite, "a trace holds each stage n times, in the plan's order", test_trace);
    CU_add_test(suite, "a token's bytes are the same alone and in any batch", test_token_invariance);
    CU_add_test(suite, "capacity changes no byte", test_capacity);
    CU_add_test(suite, "1, 2 and 4 ranks agree within rounding", test_rank_counts);
    CU_add_test(suite, "a lost, doubled or misrouted row is reported with its rank", test_conservation);
}
