// Overflow rounds under every skew: all tokens to one expert, to the experts of one rank, Zipf, and even; every element
// type, up to 512 experts, a token choosing up to all of them. Slots far too small and large enough give the same bytes,
// which agree with a scalar reference, under `serial`, `ladder` and `waves`.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/weights/random.h"
#include "tests/end_to_end/harness.h"
#include "tests/end_to_end/reference.h"

enum { HIDDEN = 32, FFN = 16, BOUND = 90, SEED = 5, RANKS = 4, CHOICES_MAX = 512 };

enum skew { ONE_EXPERT, ONE_RANK, ZIPF, EVEN, SKEWS };
static const char *const skew_names[SKEWS] = {"one expert", "one rank", "Zipf", "even"};
static const char *const schedule_names[] = {"serial", "ladder(n: 3)", "waves(g: 3)"};
static const char *const dispatches[] = {"capacity: 8x", "capacity: 0.1x, pool: 0.1x", "capacity: 0.02x, pool: 0.02x"};
static const int64_t tokens[RANKS] = {BOUND, 1, 0, BOUND};
enum { TOKENS = BOUND + 1 + BOUND };

static moe_plan *compile(const struct shape *shape, const char *dispatch, const char *schedule)
{
    const char *text = routed_layer_text(&(struct routed_layer){.shape = shape, .dispatch = dispatch});
    return subject_compile(&(struct subject){.text = text, .schedule = schedule, .layer = -1});
}

/// A number in [0, 1) for a token's n-th draw.
static double draw(uint64_t token, uint64_t n)
{
    uint64_t x = (token + 1) * 0x9e3779b97f4a7c15u + n * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 31) * 0x94d049bb133111ebu;
    return (double)((x ^ x >> 29) >> 11) / 9007199254740992.0;
}

static int zipf_expert(double at, int experts)
{
    double sum = 0, all = 0;
    for (int e = 0; e < experts; e++)
        all += pow(e + 1, -1.2);
    for (int e = 0; e < experts; e++)
        if ((sum += pow(e + 1, -1.2) / all) > at)
            return e;
    return experts - 1;
}

/// The expert that a draw asks for; -1: this choice stays empty.
static int wanted(const struct shape *shape, enum skew skew, int token, int choice, int tries)
{
    int owned = shape->experts / RANKS ? shape->experts / RANKS : 1;
    double at = draw((uint64_t)token, (uint64_t)(choice + 64 * tries));
    switch (skew) {
    case ONE_EXPERT:
        return choice ? -1 : shape->experts - 1;
    case ONE_RANK:
        return choice < owned ? (choice + token) % owned : -1;
    case ZIPF:
        return zipf_expert(at, shape->experts);
    default:
        return (int)(at * shape->experts);
    }
}

/// Routes with distinct experts in every token.
static void make_routes(const struct shape *shape, enum skew skew, int32_t *ids, float *weights)
{
    static bool taken[512];
    for (int t = 0; t < TOKENS; t++) {
        memset(taken, 0, sizeof taken);
        for (int c = 0; c < shape->choices; c++) {
            int expert = wanted(shape, skew, t, c, 0);
            for (int tries = 1; expert >= 0 && taken[expert]; tries++)
                expert = tries < 8 ? wanted(shape, skew, t, c, tries) : (expert + 1) % shape->experts;
            ids[t * shape->choices + c] = expert;
            weights[t * shape->choices + c] = expert < 0 ? 0 : 0.25f + 0.5f * (float)draw((uint64_t)t, (uint64_t)(1000 + c));
            if (expert >= 0)
                taken[expert] = true;
        }
    }
}

struct subject_of_skew {
    int32_t ids[TOKENS * CHOICES_MAX];
    float weights[TOKENS * CHOICES_MAX], in[TOKENS * HIDDEN], want[TOKENS * HIDDEN];
};

static struct outcome run_skew(const struct subject_of_skew *s, moe_plan *plan)
{
    struct run run = {.in = s->in, .tokens = tokens, .given_ids = s->ids, .given_weights = s->weights,
                      .options = {.threads = 2, .seed = SEED, .poison = 1}};
    struct outcome o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL(o.status, MOE_OK);
    if (o.status != MOE_OK)
        fprintf(stderr, "%s\n", o.error);
    return o;
}

static void prepare(struct subject_of_skew *s, const struct shape *shape, enum skew skew)
{
    make_routes(shape, skew, s->ids, s->weights);
    gaussian(s->in, sizeof s->in / sizeof *s->in, 3);
    round_to_dtype(shape->dtype, s->in, sizeof s->in / sizeof *s->in);
    reference_layer(shape, SEED, s->in, TOKENS, s->ids, s->weights, s->want);
}

/// Slots from far too small to large enough: the same bytes, close to the reference, with rounds where they are needed.
static void check_skews(const struct shape *shape, const char *schedule)
{
    static struct subject_of_skew subjects[SKEWS];
    static float first[SKEWS][TOKENS * HIDDEN];
    for (size_t d = 0; d < sizeof dispatches / sizeof *dispatches; d++) {
        moe_plan *plan = compile(shape, dispatches[d], schedule);
        for (enum skew skew = 0; plan && skew < SKEWS; skew++) {
            if (d == 0)
                prepare(&subjects[skew], shape, skew);
            struct outcome o = run_skew(&subjects[skew], plan);
            double error = relative_l2(o.out, subjects[skew].want, TOKENS * HIDDEN);
            if (d == 0)
                memcpy(first[skew], o.out, sizeof first[skew]);
            bool same = !memcmp(first[skew], o.out, sizeof first[skew]);
            CU_ASSERT(same);
            CU_ASSERT(error <= (strcmp(shape->dtype, "f32") ? 6e-3 : 1e-5));
            CU_ASSERT(d == 0 ? o.stats.overflowed == 0 : o.stats.overflowed > 0 && o.stats.rounds > 0);
            if (!same || error > 6e-3)
                fprintf(stderr, "%s, %s%s, %d of %d experts, %s: %s, error %.3g\n", skew_names[skew], schedule, dispatches[d],
                        shape->choices, shape->experts, shape->dtype, same ? "same" : "other bytes", error);
            outcome_free(&o);
        }
        moe_plan_close(plan);
    }
}

static void check_schedules(const struct shape *shape)
{
    for (size_t n = 0; n < sizeof schedule_names / sizeof *schedule_names; n++)
        check_skews(shape, schedule_names[n]);
}

static void test_dtypes(void)
{
    const char *dtypes[] = {"f32", "f16", "bf16"};
    for (size_t d = 0; d < 3; d++)
        check_schedules(&(struct shape){.hidden = HIDDEN, .ffn = FFN, .experts = 24, .choices = 5, .bound = BOUND,
                                        .dtype = dtypes[d], .normalize = true});
}

static void test_many_experts(void)
{
    check_schedules(&(struct shape){.hidden = HIDDEN, .ffn = FFN, .experts = 512, .choices = 10, .bound = BOUND,
                                    .dtype = "bf16", .normalize = true});
}

static void test_every_expert(void)
{
    const int counts[] = {1, 6, 64, 512};
    for (size_t i = 0; i < 4; i++)
        check_schedules(&(struct shape){.hidden = HIDDEN, .ffn = FFN, .experts = counts[i], .choices = counts[i],
                                        .bound = BOUND, .dtype = "f32", .normalize = true});
}

void suite_skew(void);
void suite_skew(void)
{
    CU_pSuite suite = CU_add_suite("skew", NULL, NULL);
    CU_add_test(suite, "f32, f16 and bf16 under every skew", test_dtypes);
    CU_add_test(suite, "512 experts under every skew", test_many_experts);
    CU_add_test(suite, "a token that chooses every expert", test_every_expert);
}
