// Every legal schedule of the tables in tests/schedule runs and gives the bytes of `serial` (I1). All of one layer are
// variants of one plan, each chosen by its own token count, so that kernels are compiled once.
#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/end_to_end/harness.h"
#include "tests/schedule/split_texts.h"

enum { WIDTH = 64, FIRST_TOKENS = 24, REPEAT = 2 };

struct table {
    const struct schedule_case *cases;
    size_t count;
};

static const struct table tables[] = {{accepted, sizeof accepted / sizeof *accepted},
                                      {split_accepted, sizeof split_accepted / sizeof *split_accepted}};

/// Waves of experts round partial sums elsewhere: they are compared within rounding by their own tests.
static bool is_neutral(const struct schedule_case *c)
{
    return !strstr(c->text, "split experts");
}

static bool has_layer(const struct schedule_case *c, const char *layer)
{
    return is_neutral(c) && (c->layer ? c->layer : LAYER) == layer;
}

/// The schedules of one layer as `s0`, `s1`, ...; returns how many.
static int write_schedules(FILE *out, const char *layer)
{
    int number = 0;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (size_t i = 0; i < tables[t].count; i++) {
            const char *text = tables[t].cases[i].text, *name = strstr(text, "schedule s");
            if (!has_layer(&tables[t].cases[i], layer))
                continue;
            fprintf(out, "%.*s%d%s", (int)(name - text) + 10, text, number, name + 10);
            number++;
        }
    return number;
}

static char *plan_text(const char *layer, bool serial, int *count)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    *count = write_schedules(out, layer);
    fprintf(out, "%s%s%srepeat = %d;\n", PRELUDE, layer, PIPELINE_BEFORE_USE, REPEAT);
    for (int n = *count; n-- > 0 && !serial;)
        fprintf(out, "    use s%d when tokens >= %d;\n", n, FIRST_TOKENS + n);
    fprintf(out, "    use serial;\n}\n");
    fclose(out);
    if (getenv("SCHEDULE_TEXTS"))
        fprintf(stderr, "%s", text);
    return text;
}

static moe_plan *compile_text(char *text)
{
    moe_plan *plan = subject_compile(&(struct subject){.text = text, .layer = -1});
    free(text);
    return plan;
}

/// The n-th schedule is the one chosen for these counts; all ranks differ, one has nothing.
static bool same_bytes(moe_plan *plan, moe_plan *serial, const float *in, int n, const char *device)
{
    const int64_t tokens[4] = {3, FIRST_TOKENS + n, 0, 17};
    struct run run = {.in = in, .tokens = tokens, .steps = 2, .options = {.threads = 2, .seed = 3, .device = device, .poison = 1}};
    struct outcome a = run_plan_once(plan, &run), b = run_plan_once(serial, &run);
    bool same = outcome_equal(&a, &b);
    if (!same)
        fprintf(stderr, "schedule %d on %s: %s%s\n", n, device ? device : "cpu", a.error, b.error);
    outcome_free(&a);
    outcome_free(&b);
    return same;
}

static void run_layer(const char *layer)
{
    int count;
    static float in[4 * 256 * WIDTH];
    moe_plan *plan = compile_text(plan_text(layer, false, &count)), *serial = compile_text(plan_text(layer, true, &count));
    gaussian(in, sizeof in / sizeof *in, 7);
    CU_ASSERT(count > 20 && count < 128);
    for (int n = 0; plan && serial && n < count; n++) {
        CU_ASSERT(same_bytes(plan, serial, in, n, NULL));
        CU_ASSERT(same_bytes(plan, serial, in, n, "sim"));
    }
    moe_plan_close(plan);
    moe_plan_close(serial);
}

static void test_plain(void)
{
    run_layer(LAYER);
}

static void test_shared(void)
{
    run_layer(SHARED_LAYER);
}

/// Schedules at the bound and at every small count of tokens: parts and pieces that are empty or of one row.
static void test_small_counts(void)
{
    static float in[4 * 16 * WIDTH];
    gaussian(in, sizeof in / sizeof *in, 8);
    for (size_t i = 0; i < tables[1].count; i += 5) {
        const struct schedule_case *c = &split_accepted[i];
        char *text = NULL;
        if (asprintf(&text, "%s%s%s%srepeat = %d; use serial;\n}\n", c->text, PRELUDE, c->layer ? c->layer : LAYER,
                     PIPELINE_BEFORE_USE, REPEAT) < 0)
            return;
        moe_plan *plan = subject_compile(&(struct subject){.text = text, .layer = -1, .schedule = "s"});
        moe_plan *serial = subject_compile(&(struct subject){.text = text, .layer = -1});
        for (int64_t t = 0; t < 12 && plan && serial; t++) {
            const int64_t tokens[4] = {t, 1, 0, t / 2};
            struct run run = {.in = in, .tokens = tokens, .options = {.threads = 1, .poison = 1}};
            struct outcome a = run_plan_once(plan, &run), b = run_plan_once(serial, &run);
            CU_ASSERT(outcome_equal(&a, &b));
            outcome_free(&a);
            outcome_free(&b);
        }
        moe_plan_close(plan);
        moe_plan_close(serial);
        free(text);
    }
}

/// The schedules that ship as examples; waves of experts round elsewhere (examples/schedules/expert_waves.moe).
static void test_examples(void)
{
    static const char *const names[] = {"bidirectional", "hook_receive", "chunked_combine", "expert_waves"};
    static const int64_t tokens[4] = {150, 5, 0, 77};
    enum { EXAMPLE_WIDTH = 256 };
    static float in[256 * EXAMPLE_WIDTH];
    gaussian(in, sizeof in / sizeof *in, 9);
    struct run run = {.in = in, .tokens = tokens, .steps = 2, .options = {.threads = 2, .poison = 1}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        snprintf(path, sizeof path, "examples/schedules/%s.moe", names[i]);
        moe_plan *plan = subject_compile(&(struct subject){.path = path, .layer = -1});
        moe_plan *serial = subject_compile(&(struct subject){.path = path, .layer = -1, .schedule = "serial"});
        if (plan && serial) {
            struct outcome a = run_plan_once(plan, &run), b = run_plan_once(serial, &run);
            size_t count = (size_t)a.tokens * EXAMPLE_WIDTH;
            CU_ASSERT(a.status == MOE_OK && b.status == MOE_OK);
            CU_ASSERT(strstr(names[i], "waves") ? relative_l2(a.out, b.out, count) < 5e-3 : outcome_equal(&a, &b));
            outcome_free(&a);
            outcome_free(&b);
        }
        moe_plan_close(plan);
        moe_plan_close(serial);
    }
}

void suite_schedules(void);
void suite_schedules(void)
{
    CU_pSuite suite = CU_add_suite("schedules", NULL, NULL);
    CU_add_test(suite, "every legal schedule of a plain layer gives the bytes of serial", test_plain);
    CU_add_test(suite, "every legal schedule of a layer with a shared expert gives the bytes of serial", test_shared);
    CU_add_test(suite, "parts and pieces without rows", test_small_counts);
    CU_add_test(suite, "the examples give the bytes of serial", test_examples);
}
