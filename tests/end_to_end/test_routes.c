// Routers beyond softmax and sigmoid, run whole: cosine similarity, seeded noise on the choice, a model's own limit on an
// expert's tokens, masked slots of supplied routes; each against a computation in float64 that shares nothing with it.
#include <CUnit/CUnit.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/driver.h"
#include "tests/end_to_end/lab.h"

enum { E = 16, TOKENS = 150 };

static const int64_t shares[] = {64, 1, 0, 85}; // of the tokens, by rank

/// The k best of `scores`, best first, lower ids first among equals; the smallest gap between them and to the next (B14: a
/// set of experts is compared where that gap is more than rounding).
static double best_of(const double *scores, int k, int32_t *ids)
{
    bool taken[E] = {false};
    double gap = INFINITY, last = INFINITY;
    for (int i = 0; i <= k; i++) {
        int best = -1;
        for (int e = 0; e < E; e++)
            if (!taken[e] && (best < 0 || scores[e] > scores[best]))
                best = e;
        gap = fmin(gap, last - scores[best]);
        last = scores[best];
        taken[best] = true;
        if (i < k)
            ids[i] = best;
    }
    return gap;
}

static struct outcome run_lab(const char *route, const char *schedule, const void *router, const float *x)
{
    struct lab lab = {.experts = E, .route = route, .schedule = schedule, .router = router};
    struct outcome o = lab_run(&lab, x, shares, (moe_options){0});
    CU_ASSERT_EQUAL_FATAL(o.status, MOE_OK);
    return o;
}

static bool same_outcome(const struct outcome *a, const struct outcome *b, int k)
{
    return !memcmp(a->out, b->out, sizeof(float) * TOKENS * E) && !memcmp(a->ids, b->ids, sizeof(int32_t) * TOKENS * (size_t)k) &&
           !memcmp(a->weights, b->weights, sizeof(float) * TOKENS * (size_t)k);
}

// ---- cosine -----------------------------------------------------------------------------------------------------------

static void cosine_scores(const float *x, const float *router, double *scores)
{
    double xx = 0, sum = 0;
    for (int i = 0; i < E; i++)
        xx += (double)x[i] * (double)x[i];
    for (int e = 0; e < E; e++) {
        double product = 0, ww = 0;
        for (int i = 0; i < E; i++) {
            product += (double)x[i] * (double)router[e * E + i];
            ww += (double)router[e * E + i] * (double)router[e * E + i];
        }
        scores[e] = exp(5 * product / fmax(sqrt(xx), 1e-12) / fmax(sqrt(ww), 1e-12));
        sum += scores[e];
    }
    for (int e = 0; e < E; e++)
        scores[e] /= sum;
}

static void test_cosine(void)
{
    enum { K = 3 };
    static float x[TOKENS * E], router[E * E];
    gaussian(x, TOKENS * E, 1);
    gaussian(router, E * E, 2);
    memset(router + 7 * E, 0, E * sizeof *router); // an expert without a direction has similarity 0
    memset(x + 5 * E, 0, E * sizeof *x);
    struct outcome o = run_lab("k: 3, score: cosine, temperature: 5.0, normalize: false", "serial", router, x);
    struct outcome other = run_lab("k: 3, score: cosine, temperature: 5.0, normalize: false", "ladder(n: 3)", router, x);
    CU_ASSERT(same_outcome(&o, &other, K));
    int decided = 0;
    for (int t = 0; t < TOKENS; t++) {
        double scores[E];
        int32_t ids[K];
        cosine_scores(x + t * E, router, scores);
        if (best_of(scores, K, ids) < 1e-6 && t != 5)
            continue;
        decided++;
        for (int i = 0; i < K; i++) {
            CU_ASSERT_EQUAL(o.ids[t * K + i], ids[i]);
            CU_ASSERT_DOUBLE_EQUAL((double)o.weights[t * K + i], scores[ids[i]], 1e-6);
        }
    }
    CU_ASSERT(decided > TOKENS - 5);
    outcome_free(&o);
    outcome_free(&other);
}

// ---- noise ------------------------------------------------------------------------------------------------------------

static uint32_t mixed(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/// Eight uniform numbers of 16 bits, added, centred and scaled.
static double noise(uint32_t seed, uint32_t rank, uint32_t token, uint32_t expert, double deviation)
{
    const uint32_t step = 0x9e3779b9u;
    uint32_t x = mixed(mixed(mixed(mixed(seed * step + 1) ^ 0) ^ rank) ^ token), sum = 0;
    x = mixed(x ^ expert * step);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t word = mixed(x + i * step);
        sum += (word & 0xffff) + (word >> 16);
    }
    return ((double)sum - 4 * 65535.0) * deviation / (65536 * sqrt(8 / 12.0));
}

static void check_noise(const struct outcome *o, const float *x)
{
    enum { K = 4 };
    int row = 0, decided = 0, moved = 0;
    for (uint32_t rank = 0; rank < 4; rank++)
        for (uint32_t t = 0; t < (uint32_t)shares[rank]; t++, row++) {
            double scores[E], noisy[E];
            int32_t ids[K], quiet[K];
            for (uint32_t e = 0; e < E; e++) {
                scores[e] = 1 / (1 + exp(-(double)x[row * E + (int)e]));
                noisy[e] = scores[e] + noise(9, rank, t, e, 0.2);
            }
            best_of(scores, K, quiet);
            if (best_of(noisy, K, ids) < 1e-6)
                continue;
            decided++;
            moved += memcmp(ids, quiet, sizeof ids) != 0;
            for (int i = 0; i < K; i++) {
                CU_ASSERT_EQUAL(o->ids[row * K + i], ids[i]);
                CU_ASSERT_DOUBLE_EQUAL((double)o->weights[row * K + i], scores[ids[i]], 1e-6);
            }
        }
    CU_ASSERT(decided > TOKENS - 5 && moved > TOKENS / 2);
}

static void test_noise(void)
{
    static float x[TOKENS * E];
    gaussian(x, TOKENS * E, 3);
    static const char route[] = "k: 4, score: sigmoid, normalize: false, noise: 0.2, seed: 9";
    struct outcome o = run_lab(route, "serial", NULL, x), other = run_lab(route, "ladder(n: 5)", NULL, x);
    struct outcome seeded = run_lab("k: 4, score: sigmoid, normalize: false, noise: 0.2, seed: 10", "serial", NULL, x);
    check_noise(&o, x);
    CU_ASSERT(same_outcome(&o, &other, 4));
    CU_ASSERT(!same_outcome(&o, &seeded, 4));
    outcome_free(&o);
    outcome_free(&other);
    outcome_free(&seeded);
}

/// Mean 0 and the deviation asked for, over tokens and over experts.
static void test_noise_moments(void)
{
    static const uint32_t COUNT = 20000;
    double sum = 0, squares = 0, neighbours = 0, last = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        double value = noise(1, 0, i / 16, i % 16, 1);
        sum += value;
        squares += value * value;
        neighbours += value * last;
        last = value;
    }
    CU_ASSERT(fabs(sum / COUNT) < 0.03);
    CU_ASSERT_DOUBLE_EQUAL(squares / COUNT, 1, 0.03);
    CU_ASSERT(fabs(neighbours / COUNT) < 0.03);
}

// ---- limits -----------------------------------------------------------------------------------------------------------

/// Five tokens at one expert that takes `places`; the weight is the golden one.
static void check_places(const char *route, int places)
{
    json_t *file = json_load_file("tests/data/router_goldens.json", 0, NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    const json_t *row = json_object_get(json_object_get(file, "cases"), "switch: softmax, top1, weight = p");
    double weight = json_number_value(json_array_get(json_object_get(row, "weights"), 0));
    float x[5 * E];
    for (size_t i = 0; i < 5 * E; i++)
        x[i] = (float)json_number_value(json_array_get(json_object_get(file, "logits_z"), i % E));
    struct lab lab = {.experts = E, .route = route, .ranks = 2};
    struct outcome o = lab_run(&lab, x, (int64_t[]){5, 0}, (moe_options){0});
    CU_ASSERT_EQUAL_FATAL(o.status, MOE_OK);
    for (int t = 0; t < 5; t++) {
        bool kept = t < places, zero = true;
        CU_ASSERT_EQUAL(o.ids[t], kept ? 2 : -1);
        CU_ASSERT_DOUBLE_EQUAL((double)o.weights[t], kept ? weight : 0, 1e-6);
        for (int i = 0; i < E; i++)
            zero = zero && o.out[t * E + i] == 0;
        CU_ASSERT_EQUAL(zero, !kept);
    }
    CU_ASSERT_EQUAL(o.stats.dropped, 5 - places);
    outcome_free(&o);
    json_decref(file);
}

static void b47_limits(void)
{
    check_places("k: 1, normalize: false, expert_tokens: 2", 2);
    check_places("k: 1, normalize: false, expert_tokens: 0", 0);
    check_places("k: 1, normalize: false, expert_tokens: 1000", 5);  // more than there are tokens
    check_places("k: 1, normalize: false, expert_capacity: 6.4x", 2); // 6.4 * 5 / 16, rounded up
    check_places("k: 1, normalize: false, expert_capacity: 100x", 5); // more than all of them
    check_places("k: 1, normalize: false, expert_capacity: 0x", 0);
    check_places("k: 1, normalize: false, expert_capacity: 100x, expert_tokens: 3", 3);
}

/// Positions counted as NLLB does: second choices behind all first ones, whether those fit or not.
static void check_second_choices(const struct outcome *o, const float *x, int places)
{
    enum { K = 2 };
    int row = 0;
    int64_t dropped = 0;
    for (int rank = 0; rank < 4; rank++) {
        int n = (int)shares[rank], first_count[E] = {0}, second_count[E] = {0};
        int32_t ids[TOKENS][K];
        for (int t = 0; t < n; t++) {
            double scores[E];
            for (int e = 0; e < E; e++)
                scores[e] = (double)x[(row + t) * E + e];
            best_of(scores, K, ids[t]);
        }
        int limit = (int)ceil((double)places * 0.01 * (double)(n * K) / (double)E - 1e-9);
        int firsts[E] = {0};
        for (int t = 0; t < n; t++)
            firsts[ids[t][0]]++;
        for (int t = 0; t < n; t++, row++) {
            double p[K] = {exp((double)x[row * E + ids[t][0]]), exp((double)x[row * E + ids[t][1]])}, sum = 0;
            bool kept[K] = {first_count[ids[t][0]]++ < limit,
                            firsts[ids[t][1]] + second_count[ids[t][1]]++ < limit};
            for (int i = 0; i < K; i++)
                sum += kept[i] ? p[i] : 0;
            for (int i = 0; i < K; i++) {
                CU_ASSERT_EQUAL(o->ids[row * K + i], kept[i] ? ids[t][i] : -1);
                CU_ASSERT_DOUBLE_EQUAL((double)o->weights[row * K + i], kept[i] ? 0.8 * p[i] / sum : 0, 1e-6);
                dropped += !kept[i];
            }
        }
    }
    CU_ASSERT_EQUAL(o->stats.dropped, dropped);
    CU_ASSERT(dropped > 0);
}

static void test_second_choices(void)
{
    static float x[TOKENS * E];
    gaussian(x, TOKENS * E, 4);
    static const char route[] = "k: 2, scale: 0.8, expert_capacity: 0.9x";
    struct outcome o = run_lab(route, "serial", NULL, x), waves = run_lab(route, "serial", NULL, x);
    check_second_choices(&o, x, 90);
    CU_ASSERT(same_outcome(&o, &waves, 2)); // the counts are a step's own
    outcome_free(&o);
    outcome_free(&waves);
}

static const char *const counting[] = {"k: 1, normalize: false, expert_tokens: 3",
                                       "k: 2, scale: 0.8, expert_capacity: 0.7x", "k: 4, expert_capacity: 0.8x"};

/// Micro-batches count on where the one before stopped, whatever their number, order and stages.
static void test_limits_and_parts(void)
{
    static const char *const schedules[] = {"ladder(n: 2)", "ladder(n: 5)", "double_buffer(n: 7)", "uneven(ends: 1, middle: 3)",
                                            "chunked_combine(n: 3, c: 2)", "hook_receive(n: 4)", "decode"};
    static float x[TOKENS * E];
    gaussian(x, TOKENS * E, 6);
    for (size_t i = 0; i < sizeof counting / sizeof *counting; i++) {
        int k = counting[i][3] - '0';
        struct outcome want = run_lab(counting[i], "serial", NULL, x);
        CU_ASSERT(want.stats.dropped > 0);
        for (size_t s = i; s < sizeof schedules / sizeof *schedules; s += sizeof counting / sizeof *counting) {
            struct outcome o = run_lab(counting[i], schedules[s], NULL, x);
            CU_ASSERT(same_outcome(&o, &want, k));
            CU_ASSERT_EQUAL(o.stats.dropped, want.stats.dropped);
            outcome_free(&o);
        }
        outcome_free(&want);
    }
    struct outcome o = run_lab("k: 2, scale: 0.8, expert_capacity: 0.9x", "ladder(n: 6)", NULL, x);
    check_second_choices(&o, x, 90);
    outcome_free(&o);
}

/// A rank's tokens are a sequence of their own: what it drops does not depend on which other ranks there are.
static void test_limits_and_ranks(void)
{
    static float x[TOKENS * E];
    gaussian(x, TOKENS * E, 7);
    for (size_t i = 0; i < sizeof counting / sizeof *counting; i++) {
        int64_t k = counting[i][3] - '0', first = 0, dropped = 0;
        struct outcome four = run_lab(counting[i], "ladder(n: 3)", NULL, x);
        for (int rank = 0; rank < 4; first += shares[rank++]) {
            struct lab lab = {.experts = E, .route = counting[i], .schedule = "serial", .ranks = 1};
            struct outcome one = lab_run(&lab, x + first * E, &shares[rank], (moe_options){0});
            CU_ASSERT_EQUAL_FATAL(one.status, MOE_OK);
            CU_ASSERT(!memcmp(one.ids, four.ids + first * k, sizeof(int32_t) * (size_t)(shares[rank] * k)));
            CU_ASSERT(!shares[rank] || relative_l2(one.out, four.out + first * E, (size_t)(shares[rank] * E)) < 1e-6);
            dropped += one.stats.dropped;
            outcome_free(&one);
        }
        CU_ASSERT_EQUAL(four.stats.dropped, dropped);
        outcome_free(&four);
    }
}

/// Over two layers: the first micro-batch's router reads what the layer before made of all of them.
static enum exit_code check_layers(const char *schedule, const char *limit, size_t *cycles)
{
    char route[64];
    snprintf(route, sizeof route, "k: 2, %s", limit);
    const char *path = lab_file("layers.moe");
    FILE *file = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fprintf(file, "%spipeline two { layer = lab; cluster = laptop; placement = p; target = cpu; repeat = 2; use %s; }\n",
            lab_text(&(struct lab){.experts = E, .route = route}), schedule);
    fclose(file);
    struct context context;
    struct driver_options options = {.file = path, .check_only = true, .out = stdout, .check = {.layer = -1, .pipeline = "two"}};
    struct driver_result result = {0};
    context_init(&context);
    enum exit_code code = setjmp(context.fatal) ? EXIT_BUG : compile(&context, &options, &result);
    *cycles = diag_errors_of(&context, E0308) + diag_errors_of(&context, E0301);
    if (code != EXIT_FINE && !*cycles)
        diag_print_all(&context, DIAG_TEXT, false, stderr);
    context_free(&context);
    return code;
}

static void test_limits_and_layers(void)
{
    size_t cycles;
    CU_ASSERT_EQUAL(check_layers("ladder(n: 4)", "expert_tokens: 9", &cycles), EXIT_FINE);
    CU_ASSERT_EQUAL(check_layers("bidirectional", "expert_tokens: 9", &cycles), EXIT_INPUT);
    CU_ASSERT_EQUAL(cycles, 1);
    CU_ASSERT_EQUAL(check_layers("bidirectional", "expert_tokens: 128", &cycles), EXIT_FINE); // no token can meet it
    CU_ASSERT_EQUAL(check_layers("bidirectional", "expert_capacity: 8x", &cycles), EXIT_FINE);
}

// ---- supplied routes --------------------------------------------------------------------------------------------------

/// Token t's slot (t mod 4) is masked; of t mod 4 = 3 all are. A masked slot's weight plays no part, the others stay.
static void b37_masked_slots(void)
{
    enum { K = 3 };
    static float x[TOKENS * E], weights[TOKENS * K], without[TOKENS * K];
    static int32_t ids[TOKENS * K], all[TOKENS * K];
    gaussian(x, TOKENS * E, 5);
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < K; i++) {
            bool masked = t % 4 == i || t % 4 == 3;
            all[t * K + i] = (t + 5 * i) % E;
            ids[t * K + i] = masked ? -1 : all[t * K + i];
            weights[t * K + i] = masked ? 7 : 0.25f + 0.125f * (float)i;
            without[t * K + i] = masked ? 0 : weights[t * K + i];
        }
    const char *schedules[] = {"serial", "ladder(n: 3)"};
    for (int s = 0; s < 2; s++) {
        struct lab lab = {.experts = E, .route = "k: 3", .schedule = schedules[s]};
        moe_plan *plan = lab_compile(&lab);
        CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
        struct run run = {.in = x, .tokens = shares, .weights = lab_weights(&lab), .options = {.threads = 2, .poison = 1}};
        run.given_ids = ids;
        run.given_weights = weights;
        struct outcome masked = run_plan_once(plan, &run);
        run.given_ids = all;
        run.given_weights = without;
        struct outcome weightless = run_plan_once(plan, &run);
        CU_ASSERT_EQUAL_FATAL(masked.status, MOE_OK);
        CU_ASSERT_EQUAL_FATAL(weightless.status, MOE_OK);
        CU_ASSERT(relative_l2(masked.out, weightless.out, TOKENS * E) < 1e-6);
        for (int t = 3; t < TOKENS; t += 4)
            for (int i = 0; i < E; i++)
                CU_ASSERT(masked.out[t * E + i] == 0);
        outcome_free(&masked);
        outcome_free(&weightless);
        moe_plan_close(plan);
    }
}

void suite_routes(void);
void suite_routes(void)
{
    CU_pSuite suite = CU_add_suite("routes", NULL, lab_clean_up);
    CU_add_test(suite, "cosine similarity", test_cosine);
    CU_add_test(suite, "seeded noise on the choice", test_noise);
    CU_add_test(suite, "the noise's mean and deviation", test_noise_moments);
    CU_add_test(suite, "B47 an expert's limit, in token order", b47_limits);
    CU_add_test(suite, "first choices before second ones", test_second_choices);
    CU_add_test(suite, "limits and micro-batches", test_limits_and_parts);
    CU_add_test(suite, "limits and ranks", test_limits_and_ranks);
    CU_add_test(suite, "limits and layers", test_limits_and_layers);
    CU_add_test(suite, "B37 masked slots of supplied routes", b37_masked_slots);
}
