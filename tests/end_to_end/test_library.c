// The schedules of std.schedules, all that the file holds: each runs on a layer with attention and a shared expert over two
// layers and gives the bytes of `serial`; expert waves, which round by themselves, give one another's.
#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/end_to_end/library.h"

enum { WIDTH = LIBRARY_WIDTH };

static struct outcome run_with(moe_plan *plan, const float *in, int n, const char *device, uint32_t threads)
{
    const int64_t tokens[4] = {3, LIBRARY_FIRST + n, 0, 17}; // all ranks differ, one has nothing; the n-th is chosen
    struct run run = {.in = in, .tokens = tokens, .steps = 2, .external = library_attention,
                      .options = {.threads = threads, .seed = 5, .device = device, .poison = 1}};
    struct outcome o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL(o.status, MOE_OK);
    if (o.status != MOE_OK)
        fprintf(stderr, "schedule %d: %s\n", n, o.error);
    return o;
}

static void compare(const struct library *l, int n, moe_plan *plan, moe_plan *serial, const float *in)
{
    struct outcome a = run_with(plan, in, n, NULL, 2), b = run_with(serial, in, n, NULL, 1), c = run_with(plan, in, n, "sim", 1);
    bool good = outcome_equal(&a, &c) &&
                (l->waves[n] ? relative_l2(a.out, b.out, (size_t)a.tokens * WIDTH) < 5e-3 : outcome_equal(&a, &b));
    CU_ASSERT_TRUE(good);
    if (!good)
        fprintf(stderr, "%s: other bytes, relative L2 %.2e, sim %s\n", l->name[n],
                relative_l2(a.out, b.out, (size_t)a.tokens * WIDTH), outcome_equal(&a, &c) ? "agrees" : "differs");
    outcome_free(&a);
    outcome_free(&b);
    outcome_free(&c);
}

static void test_library(void)
{
    static struct library l;
    static float in[4 * 256 * WIDTH];
    gaussian(in, sizeof in / sizeof *in, 11);
    library_read(&l);
    CU_ASSERT_TRUE(l.count >= 13);
    moe_plan *plan = library_compile(&l, false, ""), *serial = library_compile(&l, true, "");
    for (int n = 0; n < l.count && plan && serial; n++)
        compare(&l, n, plan, serial, in);
    moe_plan_close(plan);
    moe_plan_close(serial);
}

/// The same waves in another order, on other streams: the same tokens, so the same bytes.
static void test_waves(void)
{
    static struct library l;
    static float in[4 * 256 * WIDTH];
    gaussian(in, sizeof in / sizeof *in, 12);
    library_read(&l);
    moe_plan *first = NULL;
    for (int n = 0; n < l.count; n++) {
        if (!l.waves[n])
            continue;
        struct library one = {.count = 1, .waves = {true}};
        memcpy(one.name[0], l.name[n], LIBRARY_NAME);
        moe_plan *plan = library_compile(&one, false, "");
        if (first && plan) {
            struct outcome a = run_with(first, in, 0, NULL, 2), b = run_with(plan, in, 0, NULL, 2);
            CU_ASSERT_TRUE(outcome_equal(&a, &b));
            outcome_free(&a);
            outcome_free(&b);
        }
        if (first)
            moe_plan_close(plan);
        else
            first = plan;
    }
    CU_ASSERT_PTR_NOT_NULL(first);
    moe_plan_close(first);
}

void suite_library(void);
void suite_library(void)
{
    CU_pSuite suite = CU_add_suite("library", NULL, NULL);
    CU_add_test(suite, "every library schedule gives the bytes of serial", test_library);
    CU_add_test(suite, "library schedules of waves give one another's bytes", test_waves);
}
