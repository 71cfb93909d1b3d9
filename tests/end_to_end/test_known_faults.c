// Faults reported in public for neighbouring projects (tests/data/known_faults.json), each as a test with the right value,
// named by its id. Pipelines are compiled and run whole; a router whose matrix is the identity makes a token's logits
// its own elements, so that inputs say exactly what is scored.
#include <CUnit/CUnit.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/weights/safetensors.h"
#include "tests/end_to_end/lab.h"

enum { RANKS = 4 };

static bool distinct(const int32_t *ids, int k, int experts)
{
    bool fine = true;
    for (int i = 0; i < k; i++) {
        fine = fine && ids[i] >= 0 && ids[i] < experts;
        for (int j = 0; j < i; j++)
            fine = fine && ids[i] != ids[j];
    }
    return fine;
}

// ---------------------------------------------------------------------------------------------------- golden inputs

struct goldens {
    json_t *file;
    float z[16], b[16];
};

static struct goldens goldens_open(void)
{
    struct goldens g = {.file = json_load_file("tests/data/router_goldens.json", 0, NULL)};
    CU_ASSERT_PTR_NOT_NULL_FATAL(g.file);
    for (size_t i = 0; i < 16; i++) {
        g.z[i] = (float)json_number_value(json_array_get(json_object_get(g.file, "logits_z"), i));
        g.b[i] = (float)json_number_value(json_array_get(json_object_get(g.file, "bias_b"), i));
    }
    return g;
}

static const json_t *golden(const struct goldens *g, const char *name)
{
    const json_t *row = json_object_get(json_object_get(g->file, "cases"), name);
    CU_ASSERT_PTR_NOT_NULL_FATAL(row);
    return row;
}

static bool has_ids(const struct outcome *o, const json_t *row)
{
    const json_t *ids = json_object_get(row, "ids");
    for (size_t i = 0; i < json_array_size(ids); i++)
        if (o->ids[i] != json_integer_value(json_array_get(ids, i)))
            return false;
    return true;
}

static double golden_weight(const json_t *row, size_t i)
{
    return json_number_value(json_array_get(json_object_get(row, "weights"), i));
}

// ------------------------------------------------------------------------------------------------------ the routers

#define V3_ROUTE "k: 4, score: sigmoid, groups: 4, group_k: 2, group_score: top2_sum, normalize: true, scale: 2.5"

// All biased scores are negative: a dropped group filled with 0 would win.
static void b01_dropped_groups(void)
{
    struct goldens g = goldens_open();
    float bias[16];
    for (int i = 0; i < 16; i++)
        bias[i] = -3;
    const json_t *right = golden(&g, "deepseek-v3 negative bias -3, fill=-inf (current)");
    const json_t *wrong = golden(&g, "deepseek-v3 negative bias -3, fill=0.0 (old HF: picks masked groups)");
    const struct lab labs[] = {{.experts = 16, .route = V3_ROUTE, .bias = bias},
                               {.experts = 16, .route = V3_ROUTE ", bias: -3.0"}};
    for (int i = 0; i < 2; i++) {
        struct outcome o = lab_route(&labs[i], g.z);
        CU_ASSERT(has_ids(&o, right));
        CU_ASSERT(!has_ids(&o, wrong));
        for (size_t j = 0; j < 4; j++)
            CU_ASSERT_DOUBLE_EQUAL((double)o.weights[j], golden_weight(right, j), 1e-6);
        outcome_free(&o);
    }
    json_decref(g.file);
}

// Group A has one score of .9 and the rest .1, group B .6 twice: 1.2 > 1.0.
static void b02_sum_of_two(void)
{
    const float scores[8] = {0.9f, 0.1f, 0.1f, 0.1f, 0.6f, 0.6f, 0.1f, 0.1f};
    float logits[8];
    for (int i = 0; i < 8; i++)
        logits[i] = logf(scores[i] / (1 - scores[i]));
    struct lab lab = {.experts = 8,
                      .route = "k: 2, score: sigmoid, groups: 2, group_k: 1, group_score: top2_sum, normalize: false"};
    struct outcome o = lab_route(&lab, logits);
    CU_ASSERT(o.ids[0] == 4 && o.ids[1] == 5);
    CU_ASSERT_DOUBLE_EQUAL((double)o.weights[0], 0.6, 1e-6);
    outcome_free(&o);
}

// A bias of +1 brings a weak expert in; its weight is its own sigmoid all the same.
static void b03_bias_only_chooses(void)
{
    struct goldens g = goldens_open();
    float bias[16] = {0};
    bias[7] = 1; // the weakest: logit -2.2
    struct lab lab = {.experts = 16, .route = "k: 4, score: sigmoid, normalize: true, scale: 2.5", .bias = bias};
    struct outcome o = lab_route(&lab, g.z);
    CU_ASSERT_EQUAL(o.ids[0], 7);
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += 1 / (1 + exp(-(double)g.z[o.ids[i]]));
    for (int i = 0; i < 4; i++)
        CU_ASSERT_DOUBLE_EQUAL((double)o.weights[i], 2.5 / (1 + exp(-(double)g.z[o.ids[i]])) / sum, 1e-6);
    outcome_free(&o);
    const json_t *row = golden(&g, "deepseek-v3: sigmoid+bias, 4 groups keep 2 (top2-sum), top4, norm, 2.5");
    o = lab_route(&(struct lab){.experts = 16, .route = V3_ROUTE, .bias = g.b}, g.z);
    CU_ASSERT(has_ids(&o, row));
    for (size_t i = 0; i < 4; i++)
        CU_ASSERT_DOUBLE_EQUAL((double)o.weights[i], golden_weight(row, i), 1e-6);
    outcome_free(&o);
    json_decref(g.file);
}

static void b04_not_renormalised(void)
{
    struct goldens g = goldens_open();
    struct lab lab = {.experts = 16, .route = "k: 4, score: softmax, normalize: false"};
    struct outcome o = lab_route(&lab, g.z);
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        CU_ASSERT(o.weights[i] >= 0);
        sum += (double)o.weights[i];
    }
    CU_ASSERT_DOUBLE_EQUAL(sum, 0.659707556, 1e-6);
    outcome_free(&o);
    json_decref(g.file);
}

// The factor is applied once, with and without renormalisation.
static void b05_scale_once(void)
{
    struct goldens g = goldens_open();
    const json_t *row = golden(&g, "deepseek-v2: group max, 4 groups keep 2, top3, scale 16");
    double sum = 0;
    for (size_t i = 0; i < 3; i++)
        sum += golden_weight(row, i) / 16;
    for (int norm = 0; norm < 2; norm++)
        for (int scale = 1; scale <= 16; scale += 15) {
            char route[160];
            snprintf(route, sizeof route,
                     "k: 3, score: softmax, groups: 4, group_k: 2, group_score: max, normalize: %s, scale: %d.0",
                     norm ? "true" : "false", scale);
            struct lab lab = {.experts = 16, .route = route};
            struct outcome o = lab_route(&lab, g.z);
            CU_ASSERT(has_ids(&o, row));
            for (size_t i = 0; i < 3; i++)
                CU_ASSERT_DOUBLE_EQUAL((double)o.weights[i], golden_weight(row, i) / 16 / (norm ? sum : 1) * scale,
                                       1e-6);
            outcome_free(&o);
        }
    json_decref(g.file);
}

// Kimi-K2's 2.827 beside a shared expert: once, on the routed part, never on the shared one.
static void b06_shared_is_not_scaled(void)
{
    enum { E = 16, TOKENS = 24 };
    static float x[TOKENS * E];
    gaussian(x, TOKENS * E, 6);
    const char *routes[] = {"k: 4, score: sigmoid, normalize: true, scale: 2.827",
                            "k: 4, score: sigmoid, normalize: true, scale: 1.0",
                            "k: 4, score: sigmoid, normalize: true, scale: 0.0"};
    struct outcome o[3];
    for (int i = 0; i < 3; i++) {
        struct lab lab = {.experts = E, .route = routes[i], .shared = true};
        o[i] = lab_run(&lab, x, (int64_t[]){7, 0, 11, 6}, (moe_options){0});
        CU_ASSERT_EQUAL_FATAL(o[i].status, MOE_OK);
    }
    double routed = 0, shared = 0, difference = 0;
    for (int i = 0; i < TOKENS * E; i++) {
        double once = (double)o[0].out[i] - (double)o[2].out[i], plain = (double)o[1].out[i] - (double)o[2].out[i];
        difference += pow(once - 2.827 * plain, 2);
        routed += pow(once, 2);
        shared += pow((double)o[2].out[i], 2);
    }
    CU_ASSERT(shared > 0 && routed > 0);
    CU_ASSERT(sqrt(difference / routed) < 1e-5);
    for (int t = 0; t < TOKENS; t++) {
        double sum = 0;
        for (int i = 0; i < 4; i++)
            sum += (double)o[0].weights[4 * t + i];
        CU_ASSERT_DOUBLE_EQUAL(sum, 2.827, 1e-5);
    }
    for (int i = 0; i < 3; i++)
        outcome_free(&o[i]);
}

static const char *const nan_routes[] = {
    "k: 8, score: softmax", "k: 8, score: softmax_after",
    "k: 8, score: sigmoid, groups: 8, group_k: 4, group_score: top2_sum, scale: 2.5"};

// One token of eight is NaN: its ids are distinct, and the other tokens are what they are without it.
static void b09_one_nan_token(void)
{
    enum { E = 32, K = 8 };
    static float x[8 * E], without[7 * E];
    gaussian(without, 7 * E, 9);
    memcpy(x, without, 3 * E * sizeof *x);
    memcpy(x + 4 * E, without + 3 * E, 4 * E * sizeof *x);
    for (int i = 0; i < E; i++)
        x[3 * E + i] = NAN;
    for (size_t r = 0; r < 3; r++)
        for (uint32_t ranks = 1; ranks <= RANKS; ranks *= 4) {
            struct lab lab = {.experts = E, .route = nan_routes[r], .ranks = ranks};
            const int64_t all[] = {ranks == 1 ? 8 : 4, 2, 2, 0}, fewer[] = {ranks == 1 ? 7 : 3, 2, 2, 0};
            struct outcome o = lab_run(&lab, x, all, (moe_options){0});
            struct outcome w = lab_run(&lab, without, fewer, (moe_options){0});
            CU_ASSERT_FATAL(o.status == MOE_OK && w.status == MOE_OK);
            CU_ASSERT(distinct(o.ids + 3 * K, K, E));
            CU_ASSERT(!memcmp(o.out, w.out, 3 * E * sizeof *x));
            CU_ASSERT(!memcmp(o.out + 4 * E, w.out + 3 * E, 4 * E * sizeof *x));
            CU_ASSERT(!memcmp(o.ids + 4 * K, w.ids + 3 * K, 4 * K * sizeof *w.ids));
            outcome_free(&o);
            outcome_free(&w);
        }
}

// 128 experts; a row of NaN and rows of infinities: never an id of 128, and every pair is counted at an expert.
static void b10_no_id_beyond_the_experts(void)
{
    enum { E = 128, K = 8, TOKENS = 6 };
    static float x[TOKENS * E];
    gaussian(x, TOKENS * E, 10);
    for (int i = 0; i < E; i++) {
        x[1 * E + i] = NAN;
        x[3 * E + i] = -INFINITY;
        x[4 * E + i] = INFINITY;
    }
    for (size_t r = 0; r < 3; r++) {
        struct lab lab = {.experts = E, .route = nan_routes[r]};
        struct outcome o = lab_run(&lab, x, (int64_t[]){3, 1, 2, 0}, (moe_options){0});
        CU_ASSERT_EQUAL_FATAL(o.status, MOE_OK);
        for (int t = 0; t < TOKENS; t++)
            CU_ASSERT(distinct(o.ids + t * K, K, E));
        int64_t pairs = 0;
        for (int e = 0; e < E; e++)
            pairs += o.load[e];
        CU_ASSERT_EQUAL(pairs, TOKENS * K);
        for (int i = 0; i < E; i++)
            CU_ASSERT(isfinite(o.out[i]) && isfinite(o.out[5 * E + i]));
        outcome_free(&o);
    }
}

static int read_trace(int32_t (*rows)[4], int most)
{
    FILE *file = fopen("tests/data/qwen15moe_layer0_routes.tsv", "r");
    char line[256], step[8];
    int number, count = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    while (count < most && fgets(line, sizeof line, file)) {
        int32_t *row = rows[count];
        count += sscanf(line, "%7s %d %d %d %d %d", step, &number, &row[0], &row[1], &row[2], &row[3]) == 6;
    }
    fclose(file);
    return count;
}

static int compare_ids(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

// Real routes as exact ties: the experts of a row, and a fifth one above them all, have one score. The lower ids win at
// the boundary, in every order of work, twenty times.
static void b12_ties(void)
{
    enum { E = 64, K = 3, ROWS = 107 };
    static int32_t rows[ROWS][4];
    static float x[ROWS * E];
    CU_ASSERT_EQUAL_FATAL(read_trace(rows, ROWS), ROWS);
    for (int t = 0; t < ROWS; t++) {
        qsort(rows[t], 4, sizeof(int32_t), compare_ids);
        for (int e = 0; e < E; e++)
            x[t * E + e] = -1 - (float)(e % 5);
        for (int i = 0; i < 4; i++)
            x[t * E + rows[t][i]] = 1.4375f;
        x[t * E + 63] = 1.4375f;
    }
    struct lab lab = {.experts = E, .route = "k: 3, score: softmax"};
    const char *schedules[] = {"serial", "ladder(n: 4)"};
    struct outcome first = {0};
    for (int s = 0; s < 2; s++) {
        lab.schedule = schedules[s];
        moe_plan *plan = lab_compile(&lab);
        CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
        struct run run = {.in = x, .tokens = (int64_t[]){40, 0, 27, 40}, .weights = lab_weights(&lab)};
        for (int again = 0; again < 10; again++) {
            run.options.threads = 1 + (uint32_t)again % 3;
            struct outcome o = run_plan_once(plan, &run);
            CU_ASSERT_EQUAL_FATAL(o.status, MOE_OK);
            for (int t = 0; t < ROWS; t++)
                CU_ASSERT(!memcmp(o.ids + t * K, rows[t], K * sizeof(int32_t)));
            if (!first.out) {
                first = o;
                continue;
            }
            CU_ASSERT(!memcmp(o.out, first.out, sizeof x) && !memcmp(o.weights, first.weights, ROWS * K * 4));
            outcome_free(&o);
        }
        moe_plan_close(plan);
    }
    outcome_free(&first);
    // at the boundary of groups: 1 and 3 score alike, and so do 0 and 2
    const float grouped[16] = {1, 0, 0, 2, 0, 3, 4, 0, 2, 1, 0, 0, 4, 0, 0, 3};
    struct outcome o = lab_route(
        &(struct lab){.experts = 16,
                      .route = "k: 6, score: sigmoid, groups: 4, group_k: 3, group_score: top2_sum, normalize: false"},
        grouped);
    CU_ASSERT(!memcmp(o.ids, (int32_t[]){6, 12, 5, 15, 3, 0}, 6 * sizeof(int32_t)));
    outcome_free(&o);
}

// Logits that differ by less than a bf16 ulp, in a bf16 layer: chosen by their f32 probabilities.
static void b15_chosen_in_f32(void)
{
    enum { E = 16, K = 5 };
    float router[E * E] = {0}, x[E] = {1};
    for (int e = 0; e < E; e++)
        router[e * E] = 3 + (float)(e * 7 % E) * 0.0005f; // a bf16 ulp at 3 is 0.0156
    const char *scores[] = {"k: 5, score: softmax", "k: 5, score: softmax_after", "k: 5, score: sigmoid"};
    for (int s = 0; s < 3; s++) {
        struct lab lab = {.dtype = "bf16", .experts = E, .route = scores[s], .router = router};
        struct outcome o = lab_route(&lab, x);
        for (int i = 0; i < K; i++)
            CU_ASSERT_EQUAL(o.ids[i] * 7 % E, E - 1 - i);
        outcome_free(&o);
    }
}

// ------------------------------------------------------------------------------------------------------ checkpoints

static void link_file(const char *folder, const char *name)
{
    char from[256], source[4096];
    snprintf(from, sizeof from, "%s/%s", folder, name);
    CU_ASSERT_PTR_NOT_NULL_FATAL(realpath(from, source));
    CU_ASSERT_EQUAL(symlink(source, lab_file(name)), 0);
}

// The index names three files and one is absent: an error with its name, before anything is computed.
static void b27_absent_shard(void)
{
    const char *folder = "tests/data/qwen3-moe-tiny";
    link_file(folder, "model.safetensors.index.json");
    link_file(folder, "model-00001-of-00003.safetensors");
    link_file(folder, "model-00003-of-00003.safetensors");
    moe_plan *plan = subject_compile(&(struct subject){.path = "tests/end_to_end/qwen3-moe-tiny.moe", .layer = -1});
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    static float x[64];
    struct run run = {.in = x, .tokens = (int64_t[]){1, 0, 0, 0}, .weights = lab_folder()};
    struct outcome o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL(o.status, MOE_IO);
    CU_ASSERT_PTR_NOT_NULL(strstr(o.error, "model-00002-of-00003.safetensors"));
    CU_ASSERT_EQUAL(o.stats.tokens, 0);
    outcome_free(&o);
    link_file(folder, "model-00002-of-00003.safetensors");
    o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL(o.status, MOE_OK);
    outcome_free(&o);
    moe_plan_close(plan);
}

// A type a tensor, from its header: the same 16 bits are other numbers as F16 and as BF16.
static void b32_types_by_tensor(void)
{
    enum { E = 16, K = 4 };
    uint16_t bits[E * E] = {0};
    float x[E] = {1}, values[2][E];
    for (int e = 0; e < E; e++) {
        // as BF16: rising powers of two; as F16: falling mantissas in between
        bits[e * E] = (uint16_t)(0x3c00 + (e * 7 % E) * 0x35);
        elements_to_f32("F16", &bits[e * E], &values[0][e], 1);
        elements_to_f32("BF16", &bits[e * E], &values[1][e], 1);
    }
    const char *dtypes[] = {"F16", "BF16"};
    struct outcome o[2];
    for (int d = 0; d < 2; d++) {
        struct lab lab = {.dtype = d ? "f16" : "bf16", // the experts' type is another one than the router's
                          .experts = E,
                          .route = "k: 4, score: sigmoid, normalize: false",
                          .router = bits,
                          .router_dtype = dtypes[d]};
        o[d] = lab_route(&lab, x);
        for (int i = 0; i < K; i++)
            CU_ASSERT_DOUBLE_EQUAL((double)o[d].weights[i], 1 / (1 + exp(-(double)values[d][o[d].ids[i]])), 1e-6);
    }
    CU_ASSERT(memcmp(o[0].weights, o[1].weights, K * sizeof(float)) != 0);
    outcome_free(&o[0]);
    outcome_free(&o[1]);
    // where the declared type cannot hold the stored one, an error that names the tensor
    struct lab stored = {.dtype = "f16", .experts = E, .route = "k: 4"}, declared = {.experts = E, .route = "k: 4"};
    declared.dtype = "bf16";
    moe_plan *plan = lab_compile(&declared);
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    struct run run = {.in = x, .tokens = (int64_t[]){1, 0, 0, 0}, .weights = lab_weights(&stored)};
    struct outcome refused = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL(refused.status, MOE_BAD_WEIGHTS);
    CU_ASSERT_PTR_NOT_NULL(strstr(refused.error, "`up` is F16"));
    outcome_free(&refused);
    moe_plan_close(plan);
}

// ---------------------------------------------------------------------------------------------------------- tokens

static void b33_ranks_without_tokens(void)
{
    enum { E = 16, MOST = 24 };
    static float x[MOST * E];
    gaussian(x, MOST * E, 33);
    static const int64_t counts[][RANKS] = {{9, 4, 0, 11}, {0, 0, 0, 0}, {0, 0, 24, 0}};
    const char *schedules[] = {"serial", "ladder(n: 4)"};
    for (int c = 0; c < 3; c++)
        for (int s = 0; s < 2; s++) {
            struct lab lab = {.experts = E, .route = "k: 4", .shared = true, .schedule = schedules[s]};
            struct outcome o = lab_run(&lab, x, counts[c], (moe_options){.timeout_s = 20});
            CU_ASSERT_EQUAL(o.status, MOE_OK);
            CU_ASSERT_EQUAL(o.tokens, c == 1 ? 0 : MOST);
            for (int64_t i = 0; i < o.tokens * E; i++)
                CU_ASSERT(isfinite(o.out[i]));
            outcome_free(&o);
        }
}

// Token counts 1, 0, 128, 129 where 128 are declared: refused on every rank before any data moves, and without a hang.
static void b35_too_many_tokens(void)
{
    enum { E = 16 };
    static float x[(1 + 128 + 129) * E];
    gaussian(x, sizeof x / sizeof *x, 35);
    struct lab lab = {.experts = E, .route = "k: 4", .schedule = "ladder(n: 2)"};
    moe_plan *plan = lab_compile(&lab);
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    struct run run = {.in = x,
                      .tokens = (int64_t[]){1, 0, 128, 129},
                      .weights = lab_weights(&lab),
                      .options = {.threads = 2, .timeout_s = 20}};
    struct outcome o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL(o.status, MOE_BAD_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(o.error, "rank 3"));
    CU_ASSERT_PTR_NOT_NULL(strstr(o.error, "128"));
    for (int64_t i = 0; i < o.tokens * E; i++)
        CU_ASSERT_EQUAL(o.out[i], 0); // no rank wrote any row
    outcome_free(&o);
    run.tokens = (int64_t[]){1, 0, 128, 128};
    o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL(o.status, MOE_OK);
    outcome_free(&o);
    moe_plan_close(plan);
}

// All tokens at one expert, every buffer full of NaN before its first write: what is computed is finite and the same.
static void b40_nothing_from_padding(void)
{
    enum { E = 16, TOKENS = 150, K = 1 };
    static float x[TOKENS * E], weights[TOKENS];
    static int32_t ids[TOKENS];
    gaussian(x, TOKENS * E, 40);
    for (int t = 0; t < TOKENS; t++) {
        ids[t] = 5;
        weights[t] = 1;
    }
    const char *dtypes[] = {"f32", "bf16", "f16"}, *schedules[] = {"serial", "ladder(n: 8)"};
    for (int d = 0; d < 3; d++)
        for (int s = 0; s < 2; s++) {
            struct lab lab = {
                .dtype = dtypes[d], .experts = E, .route = "k: 1", .shared = true, .schedule = schedules[s]};
            moe_plan *plan = lab_compile(&lab);
            CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
            struct run run = {.in = x,
                              .tokens = (int64_t[]){128, 1, 0, 21},
                              .weights = lab_weights(&lab),
                              .given_ids = ids,
                              .given_weights = weights,
                              .steps = 2};
            struct outcome o[2];
            for (int poison = 0; poison < 2; poison++) {
                run.options.poison = poison;
                o[poison] = run_plan_once(plan, &run);
                CU_ASSERT_EQUAL_FATAL(o[poison].status, MOE_OK);
            }
            for (int i = 0; i < TOKENS * E; i++)
                CU_ASSERT(isfinite(o[1].out[i]));
            CU_ASSERT(!memcmp(o[0].out, o[1].out, sizeof x));
            outcome_free(&o[0]);
            outcome_free(&o[1]);
            moe_plan_close(plan);
        }
}

static void scale_rows(float *to, const float *from, const float *weights, int rows, int width)
{
    for (int i = 0; i < rows * width; i++)
        to[i] = from[i] * weights[i / width];
}

// Llama-4: the weight multiplies the expert's input. The same as an unweighted expert on inputs multiplied beforehand, and
// another thing than a weighted output.
static void b46_weight_on_the_input(void)
{
    enum { E = 16, TOKENS = 40 };
    static float x[TOKENS * E], scaled[TOKENS * E], weights[TOKENS], ones[TOKENS];
    static int32_t ids[TOKENS];
    gaussian(x, TOKENS * E, 46);
    for (int t = 0; t < TOKENS; t++) {
        ids[t] = t * 7 % E;
        ones[t] = 1;
        weights[t] = 0.5f + (float)(t % 3) / 8;
    }
    scale_rows(scaled, x, weights, TOKENS, E);
    const char *routes[] = {"k: 1, score: sigmoid, normalize: false, weight_on: input",
                            "k: 1, score: sigmoid, normalize: false"};
    const float *given[] = {weights, ones, weights}, *inputs[] = {x, scaled, x};
    struct outcome o[3]; // weighted input; multiplied beforehand; weighted output
    for (int i = 0; i < 3; i++) {
        struct lab lab = {.experts = E, .route = routes[i == 2], .schedule = i ? "serial" : "ladder(n: 3)"};
        moe_plan *plan = lab_compile(&lab);
        CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
        struct run run = {.in = inputs[i],
                          .tokens = (int64_t[]){19, 0, 1, 20},
                          .weights = lab_weights(&lab),
                          .given_ids = ids,
                          .given_weights = given[i],
                          .options = {.threads = 2, .poison = 1}};
        o[i] = run_plan_once(plan, &run);
        CU_ASSERT_EQUAL_FATAL(o[i].status, MOE_OK);
        moe_plan_close(plan);
    }
    CU_ASSERT(relative_l2(o[0].out, o[1].out, TOKENS * E) < 1e-6);
    CU_ASSERT(relative_l2(o[0].out, o[2].out, TOKENS * E) > 0.05);
    for (int i = 0; i < 3; i++)
        outcome_free(&o[i]);
}

// ------------------------------------------------------------------------------------------------- the table of tests

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t size = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    FILE *copy = open_memstream(&text, &size);
    for (int c; (c = fgetc(file)) != EOF;)
        fputc(c, copy);
    fclose(copy);
    fclose(file);
    return text;
}

/// tests/data/README.md has a row for every fault: the file that names it, or why there is none.
static void test_table(void)
{
    char *table = read_text("tests/data/README.md");
    json_t *file = json_load_file("tests/data/known_faults.json", 0, NULL), *faults = json_object_get(file, "cases");
    size_t i, tested = 0;
    json_t *fault;
    CU_ASSERT_FATAL(json_array_size(faults) > 30);
    json_array_foreach(faults, i, fault)
    {
        const char *id = json_string_value(json_object_get(fault, "id"));
        char row[32], path[128] = "";
        snprintf(row, sizeof row, "| %s | ", id);
        const char *found = strstr(table, row);
        CU_ASSERT_PTR_NOT_NULL_FATAL(found);
        if (sscanf(found + strlen(row), "`%127[^`]`", path) != 1) {
            CU_ASSERT_EQUAL(strncmp(found + strlen(row), "no test: ", 9), 0);
            continue;
        }
        char *text = read_text(path);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, id));
        free(text);
        tested++;
    }
    CU_ASSERT(tested + 3 >= json_array_size(faults));
    json_decref(file);
    free(table);
}

void suite_faults(void);
void suite_faults(void)
{
    CU_pSuite suite = CU_add_suite("faults", NULL, lab_clean_up);
    CU_add_test(suite, "B01 dropped groups stay out, whatever the bias", b01_dropped_groups);
    CU_add_test(suite, "B02 a group's score is the sum of its two best", b02_sum_of_two);
    CU_add_test(suite, "B03 the bias chooses and does not weigh", b03_bias_only_chooses);
    CU_add_test(suite, "B04 weights that are not renormalised", b04_not_renormalised);
    CU_add_test(suite, "B05 the scale is applied once", b05_scale_once);
    CU_add_test(suite, "B06 the shared expert is not scaled", b06_shared_is_not_scaled);
    CU_add_test(suite, "B09 one token of NaN", b09_one_nan_token);
    CU_add_test(suite, "B10 no id beyond the experts", b10_no_id_beyond_the_experts);
    CU_add_test(suite, "B12 exact ties", b12_ties);
    CU_add_test(suite, "B15 chosen by f32 scores", b15_chosen_in_f32);
    CU_add_test(suite, "B27 an absent shard", b27_absent_shard);
    CU_add_test(suite, "B32 element types by tensor", b32_types_by_tensor);
    CU_add_test(suite, "B33 ranks without tokens", b33_ranks_without_tokens);
    CU_add_test(suite, "B35 more tokens than declared", b35_too_many_tokens);
    CU_add_test(suite, "B40 nothing from padding", b40_nothing_from_padding);
    CU_add_test(suite, "B46 the weight on the input", b46_weight_on_the_input);
    CU_add_test(suite, "every fault has its test", test_table);
}
