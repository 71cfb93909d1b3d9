// Every size that a user may meet: token counts around tiles, micro-batches and the bound, unequal ranks, experts that do
// not divide, all tokens to one expert, odd widths. Compared with a scalar float64 reference.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/weights/random.h"
#include "runtime/weights/safetensors.h"
#include "tests/end_to_end/harness.h"
#include "tests/end_to_end/reference.h"

static moe_plan *compile_shape(const struct shape *shape, uint32_t ranks, const char *schedule)
{
    struct routed_layer layer = {.shape = shape, .uses = "use ladder(n: 2) when tokens >= 64; use serial;"};
    struct subject subject = {.text = routed_layer_text(&layer), .ranks = ranks, .schedule = schedule, .layer = -1};
    return subject_compile(&subject);
}

static void check_against_reference(const struct shape *shape, uint32_t ranks, const int64_t *tokens,
                                    const int32_t *ids, const float *weights)
{
    moe_plan *plan = compile_shape(shape, ranks, NULL);
    if (!plan)
        return;
    int64_t total = 0;
    for (uint32_t r = 0; r < ranks; r++)
        total += tokens[r];
    size_t count = (size_t)total * (size_t)shape->hidden;
    float *in = malloc((count + 1) * sizeof *in), *want = malloc((count + 1) * sizeof *want);
    gaussian(in, count, 11);
    round_to_dtype(shape->dtype, in, count);
    struct run run = {.in = in, .tokens = tokens, .given_ids = ids, .given_weights = weights,
                      .options = {.threads = 2, .seed = 5, .poison = 1}, .steps = 2};
    struct outcome o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL(o.status, MOE_OK);
    if (o.status == MOE_OK) {
        // The reference takes the routes that ran: routing itself is compared in the kernel tests and the models.
        reference_layer(shape, 5, in, total, o.ids, o.weights, want);
        double error = relative_l2(o.out, want, count), bound = strcmp(shape->dtype, "f32") ? 5e-3 : 1e-5;
        CU_ASSERT(error <= bound);
        if (error > bound)
            fprintf(stderr, "hidden %d ffn %d experts %d k %d %s, %u ranks, %d tokens: relative L2 %.3g\n", shape->hidden,
                    shape->ffn, shape->experts, shape->choices, shape->dtype, ranks, (int)total, error);
    } else {
        fprintf(stderr, "%s\n", o.error);
    }
    outcome_free(&o);
    free(in);
    free(want);
    moe_plan_close(plan);
}

static const struct shape common = {.hidden = 64, .ffn = 48, .experts = 8, .choices = 2, .bound = 130, .dtype = "bf16",
                                    .normalize = true};

static void test_token_counts(void)
{
    const int64_t counts[] = {0, 1, 2, 63, 64, 65, 130};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int64_t equal[4] = {counts[i], counts[i], counts[i], counts[i]};
        check_against_reference(&common, 4, equal, NULL, NULL);
        const int64_t unequal[4] = {counts[i], 0, 1, 130 - counts[i]};
        check_against_reference(&common, 4, unequal, NULL, NULL);
        check_against_reference(&common, 1, equal, NULL, NULL);
    }
}

static void test_over_the_bound(void)
{
    moe_plan *plan = compile_shape(&common, 4, NULL);
    static float in[4 * 131 * 64];
    const int64_t tokens[4] = {1, 0, 131, 130};
    struct run run = {.in = in, .tokens = tokens, .options = {.threads = 1}};
    struct outcome o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL(o.status, MOE_BAD_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(o.error, "rank 2"));
    CU_ASSERT_PTR_NOT_NULL(strstr(o.error, "131"));
    CU_ASSERT_PTR_NOT_NULL(strstr(o.error, "130"));
    for (size_t i = 0; i < (size_t)o.tokens * 64; i++)
        CU_ASSERT_FATAL(o.out[i] == 0);
    outcome_free(&o);
    moe_plan_close(plan);
}

static void test_one_expert_takes_all(void)
{
    enum { TOKENS = 100 };
    const int64_t tokens[4] = {TOKENS, TOKENS, TOKENS, TOKENS};
    int32_t ids[4 * TOKENS * 2];
    float weights[4 * TOKENS * 2];
    for (int expert = 0; expert < 8; expert += 7) { // the rank without tokens is the last, then the first
        for (size_t i = 0; i < 4 * TOKENS * 2; i++) {
            ids[i] = i % 2 ? -1 : expert;
            weights[i] = 0.75f;
        }
        check_against_reference(&common, 4, tokens, ids, weights);
    }
}

static void test_expert_counts(void)
{
    const int counts[] = {1, 3, 6, 60};
    const int64_t tokens[4] = {70, 0, 9, 130};
    for (size_t i = 0; i < 4; i++) {
        struct shape shape = common;
        shape.experts = counts[i];
        shape.choices = counts[i] < 4 ? 1 : 4;
        check_against_reference(&shape, 4, tokens, NULL, NULL);
        shape.choices = counts[i] < 4 ? counts[i] : 6;
        check_against_reference(&shape, 3, tokens, NULL, NULL);
    }
}

static void test_odd_widths(void)
{
    const int64_t tokens[4] = {70, 0, 9, 130};
    const char *dtypes[] = {"bf16", "f32", "f16"};
    const int widths[][2] = {{72, 40}, {8, 8}, {104, 24}, {512, 136}};
    for (size_t d = 0; d < 3; d++)
        for (size_t w = 0; w < 4; w++) {
            struct shape shape = common;
            shape.dtype = dtypes[d];
            shape.hidden = widths[w][0];
            shape.ffn = widths[w][1];
            shape.normalize = w & 1;
            check_against_reference(&shape, 4, tokens, NULL, NULL);
        }
}

void suite_shapes(void);
void suite_shapes(void)
{
    CU_pSuite suite = CU_add_suite("shapes", NULL, NULL);
    CU_add_test(suite, "token counts 0, 1, 2, 63, 64, 65, the bound, unequal", test_token_counts);
    CU_add_test(suite, "more than the bound on one rank is refused before anything is written", test_over_the_bound);
    CU_add_test(suite, "all tokens to one expert, ranks without any", test_one_expert_takes_all);
    CU_add_test(suite, "1, 3, 6, 60 experts on 4 and 3 ranks", test_expert_counts);
    CU_add_test(suite, "odd widths in every element type", test_odd_widths);
}
