// OLMoE, Mixtral, Qwen2-MoE, Qwen3-MoE and DeepSeek-V3 (bf16 and E4M3): tiny checkpoints in the models' own layouts against outputs of the Hugging Face implementation
// (tests/data/make_references.py). Relative L2 at most 1e-5 for f32 pipelines (1e-6 with codes), 5e-3 for bf16; the same experts wherever
// the k-th and the next score differ by more than 1e-6.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/amx/amx.h"
#include "tests/end_to_end/harness.h"

struct model_case {
    const char *name;
    double bound;
    int64_t first; // layer with experts; each model has two
    const char *checkpoint; // NULL: of the same name
};

static const struct model_case models[] = {
    {"olmoe-tiny", 5e-3, 0, NULL},
    {"olmoe-tiny-f32", 1e-5, 0, NULL},
    {"mixtral-tiny", 5e-3, 0, NULL},
    {"mixtral-tiny-f32", 1e-5, 0, NULL},
    {"qwen2-moe-tiny", 5e-3, 0, NULL},
    {"qwen2-moe-tiny-f32", 1e-5, 0, NULL},
    {"qwen3-moe-tiny", 5e-3, 0, NULL},
    {"qwen3-moe-tiny-f32", 1e-5, 0, NULL},
    {"deepseek-v3-tiny", 5e-3, 1, NULL},
    {"deepseek-v3-tiny-f32", 1e-5, 1, NULL},
    {"deepseek-v3-fp8-tiny", 5e-3, 1, NULL},
    {"deepseek-v3-fp8-tiny-f32", 1e-6, 1, "deepseek-v3-fp8-tiny"},
};

static const char *checkpoint_of(const struct model_case *model)
{
    return model->checkpoint ? model->checkpoint : model->name;
}

// Is expert e's score within 1e-6 of the k-th: may it be in or out?
static bool undecided(const float *scores, int experts, const int32_t *want, int k)
{
    double kth = 1e30, next = -1e30;
    for (int i = 0; i < k; i++)
        kth = fmin(kth, (double)scores[want[i]]);
    for (int e = 0; e < experts; e++) {
        bool chosen = false;
        for (int i = 0; i < k; i++)
            chosen |= want[i] == e;
        if (!chosen)
            next = fmax(next, (double)scores[e]);
    }
    return kth - next <= 1e-6;
}

static bool same_set(const int32_t *a, const int32_t *b, int k)
{
    for (int i = 0; i < k; i++) {
        bool found = false;
        for (int j = 0; j < k; j++)
            found |= a[i] == b[j];
        if (!found)
            return false;
    }
    return true;
}

static void compare_routes(const struct outcome *o, const char *file, const char *prefix, int k)
{
    char name[64];
    int64_t rows, experts;
    snprintf(name, sizeof name, "%s.topk_ids", prefix);
    int32_t *want = read_i32(file, name);
    snprintf(name, sizeof name, "%s.router_scores", prefix);
    float *scores = read_f32(file, name, &rows, &experts);
    int64_t wrong = 0;
    for (int64_t t = 0; t < o->tokens; t++)
        wrong += !same_set(o->ids + t * k, want + t * k, k) &&
                 !undecided(scores + t * experts, (int)experts, want + t * k, k);
    CU_ASSERT_EQUAL(wrong, 0);
    snprintf(name, sizeof name, "%s.topk_weights", prefix);
    int64_t width;
    float *weights = read_f32(file, name, &rows, &width);
    for (int64_t i = 0; i < o->tokens * k; i++)
        CU_ASSERT(o->ids[i] != want[i] || fabs((double)o->weights[i] - (double)weights[i]) <= 4e-6);
    free(weights);
    free(want);
    free(scores);
}

static void share_out(int64_t tokens, uint32_t ranks, int64_t *counts)
{
    for (uint32_t r = 0; r < ranks; r++)
        counts[r] = tokens * (r + 1) / ranks - tokens * r / ranks;
}

static double run_layer(const struct model_case *model, int64_t layer, uint32_t ranks, const char *reference)
{
    char moe[96], input[96], file[96];
    snprintf(moe, sizeof moe, "tests/end_to_end/%s.moe", model->name);
    snprintf(input, sizeof input, "tests/data/%s/input.safetensors", checkpoint_of(model));
    snprintf(file, sizeof file, "tests/data/%s/reference.safetensors", checkpoint_of(model));
    struct subject subject = {.path = moe, .layer = layer, .ranks = ranks};
    moe_plan *plan = subject_compile(&subject);
    if (!plan)
        return NAN;
    int64_t rows, width, want_rows;
    float *in = read_f32(input, "hidden_states", &rows, &width);
    char name[64];
    snprintf(name, sizeof name, "%s.hidden_states", reference);
    float *want = read_f32(file, name, &want_rows, &width);
    int64_t counts[16];
    share_out(rows, ranks, counts);
    char weights[96];
    snprintf(weights, sizeof weights, "tests/data/%s", checkpoint_of(model));
    struct run run = {.in = in, .tokens = counts, .weights = weights, .options = {.threads = 2}};
    struct outcome o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL(o.status, MOE_OK);
    if (o.status != MOE_OK)
        fprintf(stderr, "%s: %s\n", model->name, o.error);
    double error = relative_l2(o.out, want, (size_t)(rows * width));
    moe_plan_info info;
    moe_plan_describe(plan, &info);
    if (layer >= 0)
        compare_routes(&o, file, reference, (int)info.choices);
    outcome_free(&o);
    free(in);
    free(want);
    moe_plan_close(plan);
    return error;
}

static void test_single_layers(void)
{
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (uint32_t ranks = 1; ranks <= 4; ranks *= 2)
            for (int64_t layer = models[m].first; layer < models[m].first + 2; layer++) {
                char reference[16];
                snprintf(reference, sizeof reference, "layer%d", (int)layer);
                double error = run_layer(&models[m], layer, ranks, reference);
                if (ranks == 4)
                    printf("\n    %s layer %d, %u ranks: relative L2 %.2e (bound %.0e)", models[m].name, (int)layer,
                           ranks, error, models[m].bound);
                CU_ASSERT(error <= models[m].bound);
            }
    printf("\n");
}

static void test_two_layers_chained(void)
{
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        double error = run_layer(&models[m], -1, 4, "chain");
        printf("\n    %s, both layers: relative L2 %.2e", models[m].name, error);
        CU_ASSERT(error <= 2 * models[m].bound);
    }
    printf("\n");
}

// Products on tiles: experts, and shared ones.
static void test_tiles(void)
{
    amx_pretend(true);
    for (size_t m = 0; m < sizeof models / sizeof *models && amx_runs(); m++) {
        if (strstr(models[m].name, "f32"))
            continue;
        char reference[16];
        snprintf(reference, sizeof reference, "layer%d", (int)models[m].first);
        uint64_t before = amx_all_products();
        double error = run_layer(&models[m], models[m].first, 2, reference);
        printf("\n    %s layer %d: relative L2 %.2e", models[m].name, (int)models[m].first, error);
        CU_ASSERT(error <= models[m].bound);
        CU_ASSERT(!amx_emulated() || amx_all_products() > before);
    }
    printf("\n");
    amx_pretend(false);
}

/// Both layers of a model on some of its tokens.
static struct outcome run_some(const struct model_case *model, const char *schedule, const float *in,
                               const int64_t *counts, uint32_t ranks, moe_options options)
{
    char moe[96], weights[96];
    snprintf(moe, sizeof moe, "tests/end_to_end/%s.moe", model->name);
    snprintf(weights, sizeof weights, "tests/data/%s", checkpoint_of(model));
    struct subject subject = {.path = moe, .layer = -1, .ranks = ranks, .schedule = schedule};
    moe_plan *plan = subject_compile(&subject);
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    struct run run = {.in = in, .tokens = counts, .weights = weights, .options = options};
    struct outcome o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL_FATAL(o.status, MOE_OK);
    moe_plan_close(plan);
    return o;
}

// Biases, groups, shared experts and their gates included.
static void test_schedules_change_no_byte(void)
{
    const int64_t counts[] = {17, 0, 1, 29};
    for (size_t m = 4; m < sizeof models / sizeof *models; m++) {
        char input[96];
        snprintf(input, sizeof input, "tests/data/%s/input.safetensors", checkpoint_of(&models[m]));
        int64_t rows, width;
        float *in = read_f32(input, "hidden_states", &rows, &width);
        struct outcome first = run_some(&models[m], "serial", in, counts, 4, (moe_options){.threads = 1});
        for (int n = 2; n <= 8; n += 3) {
            char schedule[32];
            snprintf(schedule, sizeof schedule, "ladder(n: %d)", n);
            moe_options options = {.threads = (uint32_t)n / 2, .poison = 1, .device = n == 5 ? "sim" : "cpu"};
            struct outcome o = run_some(&models[m], schedule, in, counts, 4, options);
            CU_ASSERT(!memcmp(o.out, first.out, (size_t)(o.tokens * width) * sizeof *o.out));
            CU_ASSERT(!memcmp(o.weights, first.weights, (size_t)o.tokens * o.choices * sizeof *o.weights));
            outcome_free(&o);
        }
        outcome_free(&first);
        free(in);
    }
}

static void test_a_token_alone(void)
{
    for (size_t m = 4; m < sizeof models / sizeof *models; m++) {
        char input[96];
        snprintf(input, sizeof input, "tests/data/%s/input.safetensors", checkpoint_of(&models[m]));
        int64_t rows, width;
        float *in = read_f32(input, "hidden_states", &rows, &width);
        struct outcome all = run_some(&models[m], "ladder(n: 3)", in, (int64_t[]){40}, 1, (moe_options){.threads = 2});
        for (int64_t t = 0; t < 40; t += 13) {
            struct outcome one =
                run_some(&models[m], "serial", in + t * width, (int64_t[]){1}, 1, (moe_options){.threads = 1});
            CU_ASSERT(!memcmp(one.out, all.out + t * width, (size_t)width * sizeof *one.out));
            outcome_free(&one);
        }
        outcome_free(&all);
        free(in);
    }
}

void suite_models(void);
void suite_models(void)
{
    CU_pSuite suite = CU_add_suite("models", NULL, NULL);
    CU_add_test(suite, "single layers agree with the reference implementation", test_single_layers);
    CU_add_test(suite, "layers chain: y of one is x of the next", test_two_layers_chained);
    CU_add_test(suite, "the same on AMX tiles", test_tiles);
    CU_add_test(suite, "schedules change no byte of them", test_schedules_change_no_byte);
    CU_add_test(suite, "a token is the same alone", test_a_token_alone);
}
