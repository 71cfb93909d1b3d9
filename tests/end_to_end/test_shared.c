// Shared experts, which every token takes: several of them as one parameter, against the float64 reference, from a
// checkpoint in either layout, and as stages of their own. The routed part is switched off by given routes of -1.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/weights/safetensors.h"
#include "tests/end_to_end/lab.h"
#include "tests/end_to_end/reference.h"

enum { HIDDEN = 72, WIDE = 40, SHARED = 3, TOKENS = 50 };

static const int64_t counts[] = {17, 0, 1, 32};

/// `stages`: one stage an expert, s0, s1, ..., instead of one stage for all.
static const char *shared_text(const char *dtype, const char *up, const char *down, bool stages)
{
    static char text[4096];
    char parameters[512], applied[512], entries[256];
    snprintf(parameters, sizeof parameters,
             "    param w_gate_up: %s[%d, 2 * ffn, hidden];\n    param w_down: %s[%d, hidden, ffn];\n", dtype, SHARED,
             dtype, SHARED);
    snprintf(applied, sizeof applied,
             "    stage shared: ys = swiglu(x, w_gate_up, w_down);\n"
             "    stage merge: y = add(yr, ys);\n");
    snprintf(entries, sizeof entries, "w_gate_up = \"%s\"; w_down = \"%s\";", up, down);
    if (stages) {
        *parameters = *applied = *entries = 0;
        for (int i = 0; i < SHARED; i++) {
            size_t used = strlen(parameters), taken = strlen(applied), written = strlen(entries);
            snprintf(entries + written, sizeof entries - written, "u%d = \"u.%d\"; d%d = \"d.%d\"; ", i, i, i, i);
            snprintf(parameters + used, sizeof parameters - used,
                     "    param u%d: %s[1, 2 * ffn, hidden];\n    param d%d: %s[1, hidden, ffn];\n", i, dtype, i,
                     dtype);
            snprintf(applied + taken, sizeof applied - taken,
                     "    stage s%d: ys%d = swiglu(x, u%d, d%d);\n    stage m%d: %s%d = add(%s%d, ys%d);\n", i, i, i, i,
                     i, i + 1 < SHARED ? "a" : "y", i + 1, i ? "a" : "yr", i, i);
        }
    }
    snprintf(text, sizeof text,
             "import std.ops;\nimport std.hw { laptop };\nimport std.schedules { serial, ladder };\n"
             "dim tokens <= 32;\ndim hidden = %d;\ndim ffn = %d;\ndim experts = 8;\n"
             "layer moe(x: %s[tokens, hidden]) -> %s[tokens, hidden] {\n"
             "    param w_router: f32[experts, hidden];\n    param r_up: %s[experts, 2 * ffn, hidden];\n"
             "    param r_down: %s[experts, hidden, ffn];\n%s"
             "    stage route: r = topk(x, w_router, k: 2);\n    stage dispatch: xd = dispatch(x, r);\n"
             "    stage expert: yd = swiglu(xd, r_up, r_down);\n    stage combine: yr%s = combine(yd, r);\n%s"
             "    yield y%s;\n}\n"
             "weights file for moe { w_router = \"router\"; r_up = \"r_up\"; r_down = \"r_down\"; %s }\n"
             "placement p on laptop { place experts over rank; }\n"
             "pipeline main { layer = moe; cluster = laptop; placement = p; target = cpu; "
             "weights = file(safetensors(\"none\")); use serial; }\n",
             HIDDEN, WIDE, dtype, dtype, dtype, dtype, parameters, stages ? "0" : "", applied, stages ? "3" : "",
             entries);
    return text;
}

static struct outcome shared_run(const char *text, const char *schedule, const char *weights, const float *x,
                                 uint32_t threads)
{
    static int32_t ids[TOKENS * 2];
    static float ones[TOKENS * 2];
    for (int i = 0; i < TOKENS * 2; i++) {
        ids[i] = -1;
        ones[i] = 1;
    }
    moe_plan *plan = subject_compile(&(struct subject){.text = text, .schedule = schedule, .layer = -1});
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    struct run run = {.in = x,
                      .tokens = counts,
                      .weights = weights,
                      .given_ids = ids,
                      .given_weights = ones,
                      .options = {.threads = threads, .poison = 1, .seed = 7},
                      .steps = 2};
    struct outcome o = run_plan_once(plan, &run);
    if (o.status != MOE_OK)
        fprintf(stderr, "%s\n", o.error);
    CU_ASSERT_EQUAL_FATAL(o.status, MOE_OK);
    moe_plan_close(plan);
    return o;
}

static void test_against_reference(void)
{
    static float x[TOKENS * HIDDEN], want[TOKENS * HIDDEN], ones[TOKENS * SHARED];
    static int32_t all[TOKENS * SHARED];
    const char *dtypes[] = {"f32", "f16", "bf16"};
    const double bounds[] = {1e-6, 6e-4, 5e-3};
    for (int i = 0; i < TOKENS * SHARED; i++) {
        all[i] = i % SHARED;
        ones[i] = 1;
    }
    for (int d = 0; d < 3; d++) {
        gaussian(x, TOKENS * HIDDEN, 50);
        round_to_dtype(dtypes[d], x, TOKENS * HIDDEN);
        struct shape shape = {
            .hidden = HIDDEN, .ffn = WIDE, .experts = SHARED, .choices = SHARED, .bound = 32, .dtype = dtypes[d]};
        reference_layer(&shape, 7, x, TOKENS, all, ones, want);
        const char *text = shared_text(dtypes[d], "up", "down", false);
        struct outcome serial = shared_run(text, "serial", "random", x, 1);
        CU_ASSERT(relative_l2(serial.out, want, TOKENS * HIDDEN) < bounds[d]);
        for (int n = 2; n <= 8; n += 2) {
            char schedule[32];
            snprintf(schedule, sizeof schedule, "ladder(n: %d)", n);
            struct outcome o = shared_run(text, schedule, "random", x, (uint32_t)n / 2);
            CU_ASSERT(!memcmp(o.out, serial.out, sizeof x));
            outcome_free(&o);
        }
        outcome_free(&serial);
    }
}

/// All layouts of the same weights in one file.
static const char *write_layouts(void)
{
    enum { MOST = 16, UP = 2 * WIDE * HIDDEN, DOWN = HIDDEN * WIDE };
    static float values[8 * UP];
    static char names[2 * SHARED][8];
    gaussian(values, 8 * UP, 51);
    for (int i = 0; i < 8 * UP; i++)
        values[i] *= 0.1f;
    struct tensor tensors[MOST] = {
        {.name = "router", .dims = 2, .shape = {8, HIDDEN}, .data = values},
        {.name = "r_up", .dims = 3, .shape = {8, 2 * WIDE, HIDDEN}, .data = values},
        {.name = "r_down", .dims = 3, .shape = {8, HIDDEN, WIDE}, .data = values},
        {.name = "up", .dims = 3, .shape = {SHARED, 2 * WIDE, HIDDEN}, .data = values},
        {.name = "down", .dims = 3, .shape = {SHARED, HIDDEN, WIDE}, .data = values},
    };
    size_t count = 5;
    for (int i = 0; i < SHARED; i++) {
        snprintf(names[2 * i], sizeof *names, "u.%d", i);
        snprintf(names[2 * i + 1], sizeof *names, "d.%d", i);
        tensors[count++] =
            (struct tensor){.name = names[2 * i], .dims = 2, .shape = {2 * WIDE, HIDDEN}, .data = values + i * UP};
        tensors[count++] =
            (struct tensor){.name = names[2 * i + 1], .dims = 2, .shape = {HIDDEN, WIDE}, .data = values + i * DOWN};
    }
    for (size_t i = 0; i < count; i++) {
        strcpy(tensors[i].dtype, "F32");
        tensors[i].bytes = (size_t)tensor_bytes("F32", tensors[i].shape, tensors[i].dims);
    }
    const char *path = lab_file("shared.safetensors");
    char error[256];
    CU_ASSERT(tensors_write(path, tensors, count, error, sizeof error));
    return path;
}

static void test_layouts(void)
{
    static float x[TOKENS * HIDDEN];
    gaussian(x, TOKENS * HIDDEN, 52);
    const char *path = write_layouts();
    struct outcome stacked = shared_run(shared_text("f32", "up", "down", false), "serial", path, x, 2);
    struct outcome single = shared_run(shared_text("f32", "u.{expert}", "d.{expert}", false), "serial", path, x, 2);
    CU_ASSERT(!memcmp(stacked.out, single.out, sizeof x));
    struct outcome staged = shared_run(shared_text("f32", "", "", true), "ladder(n: 2)", path, x, 2);
    CU_ASSERT(relative_l2(staged.out, stacked.out, TOKENS * HIDDEN) < 1e-6);
    double size = 0;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        size += fabs((double)stacked.out[i]);
    CU_ASSERT(size > 1);
    outcome_free(&stacked);
    outcome_free(&single);
    outcome_free(&staged);
}

void suite_shared(void);
void suite_shared(void)
{
    CU_pSuite suite = CU_add_suite("shared", NULL, lab_clean_up);
    CU_add_test(suite, "several as one parameter, against the reference", test_against_reference);
    CU_add_test(suite, "several in every layout of a checkpoint, and as stages", test_layouts);
}
