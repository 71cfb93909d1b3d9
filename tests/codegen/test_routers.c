// Router families: the golden vectors of tests/data/router_goldens.json, a float64 reference over many sizes, exact ties
// at the boundary of the choice and of the groups, rows of NaN and infinities; and the gate of shared experts. Every CPU
// level that runs here, and the CUDA kernels run by the CPU.
#include <CUnit/CUnit.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/codegen/fixture.h"

static const char *const level_names[] = {"v2", "v3", "v4", "bf16", "cuda:sm_80"};
enum { LEVELS = sizeof level_names / sizeof *level_names };

struct family {
    int64_t choices;
    uint32_t score;
    bool normalize;
    double scale; // 0: 1
    int64_t groups, kept;
    uint32_t group_score;
    double bias_number, logit_bias_number;
    const float *bias, *logit_bias; // or vectors
};

// k, score, normalize, scale; groups, groups kept, their score
#define PLAIN(k, function, norm, factor) .choices = (k), .score = (function), .normalize = (norm), .scale = (factor)
#define GROUPED(k, function, norm, factor, all, few, how) \
    PLAIN(k, function, norm, factor), .groups = (all), .kept = (few), .group_score = (how)

struct router {
    struct family family;
    int64_t experts;
    struct code code;
    void *packed;
    float *bias, *logit_bias; // padded to whole lines, as parameters are
};

static float *line_padded(const float *values, int64_t count)
{
    int64_t padded = (count + 15) / 16 * 16;
    float *copy = block(padded * 4);
    for (int64_t i = 0; i < padded; i++)
        copy[i] = i < count ? values[i] : NAN; // what lies behind must not matter
    return copy;
}

// The logits of a token are its x: the router's matrix is the identity, padded to a multiple of 8 columns.
static void router_init(struct router *r, const struct family *family, int64_t experts, const char *level)
{
    int64_t h = (experts + 7) / 8 * 8;
    *r = (struct router){.family = *family, .experts = experts};
    float *identity = block(experts * h * 4);
    for (int64_t i = 0; i < experts; i++)
        identity[i * h + i] = 1;
    struct plan_param param = {.declared = dtype_f32, .rows = experts, .cols = h};
    CU_ASSERT_FATAL(level_choose_layout(level, &param));
    r->packed = pack(&param, identity, 1);
    free(identity);
    if (family->bias)
        r->bias = line_padded(family->bias, experts);
    if (family->logit_bias)
        r->logit_bias = line_padded(family->logit_bias, experts);
    code_init(&r->code);
    int64_t biases = (family->bias ? ROUTE_HAS_BIAS : 0) | (family->logit_bias ? ROUTE_HAS_LOGIT_BIAS : 0);
    int64_t groups = family->groups ? family->groups : 1, kept = family->kept ? family->kept : 1;
    int64_t n[] = {h,      experts, family->choices,     family->score, family->normalize, dtype_f32,
                   groups, kept,    family->group_score, biases};
    uint32_t row = code_add(&r->code, kernel_role_route, n, 10, family->scale != 0 ? family->scale : 1);
    ROW(&r->code.plan, plan_kernel, row)->alpha = family->bias_number;
    ROW(&r->code.plan, plan_kernel, row)->limit = family->logit_bias_number;
    CU_ASSERT_FATAL(code_generate(&r->code, level));
}

static void router_free(struct router *r)
{
    code_free(&r->code);
    free(r->packed);
    free(r->bias);
    free(r->logit_bias);
}

/// Routes tokens of `experts` logits each; the ids must be distinct and in range.
static void router_run(const struct router *r, const float *logits, int64_t tokens, int32_t *ids, float *weights)
{
    int64_t h = (r->experts + 7) / 8 * 8, k = r->family.choices;
    float *x = block(tokens * h * 4);
    for (int64_t t = 0; t < tokens; t++)
        memcpy(x + t * h, logits + t * r->experts, (size_t)r->experts * 4);
    struct moe_kargs args = {.p = {x, r->packed, ids, weights}};
    int next = ROUTE_ARGS;
    if (r->bias)
        args.p[next++] = r->bias;
    if (r->logit_bias)
        args.p[next++] = r->logit_bias;
    code_run(&r->code, 0, &args, 0, tokens);
    for (int64_t t = 0; t < tokens; t++) {
        bool seen[512] = {false};
        for (int64_t i = 0; i < k; i++) {
            int32_t id = ids[t * k + i];
            CU_ASSERT_FATAL(id >= 0 && id < r->experts && !seen[id]);
            seen[id] = true;
        }
    }
    free(x);
}

static void route_once(const struct family *family, int64_t experts, const char *level, const float *logits,
                       int64_t tokens, int32_t *ids, float *weights)
{
    struct router r;
    router_init(&r, family, experts, level);
    router_run(&r, logits, tokens, ids, weights);
    router_free(&r);
}

// ------------------------------------------------------------------------------------------------------- goldens

struct golden {
    const char *name; // a prefix of the case's
    struct family family;
    bool biased; // by bias_b: the selection, for logit_bias the logits
    bool logits;
};

static const struct golden goldens[] = {
    {.name = "mixtral", .family = {PLAIN(2, score_softmax, true, 1)}},
    {.name = "qwen1.5/qwen2/olmoe", .family = {PLAIN(4, score_softmax, false, 1)}},
    {.name = "qwen3/qwen3-next", .family = {PLAIN(4, score_softmax, true, 1)}},
    {.name = "dbrx", .family = {PLAIN(4, score_softmax, true, 1)}},
    {.name = "granite/jetmoe", .family = {PLAIN(4, score_softmax_after, false, 1)}},
    {.name = "gpt-oss", .family = {PLAIN(4, score_softmax_after, false, 1)}, .biased = true, .logits = true},
    {.name = "deepseek-v2-lite", .family = {PLAIN(6, score_softmax, false, 1)}},
    {.name = "deepseek-v2: group max", .family = {GROUPED(3, score_softmax, false, 16, 4, 2, group_score_max)}},
    {.name = "deepseek-v3: sigmoid+bias",
     .family = {GROUPED(4, score_sigmoid, true, 2.5, 4, 2, group_score_top2_sum)},
     .biased = true},
    {.name = "deepseek-v3 negative bias -3, fill=-inf",
     .family = {GROUPED(4, score_sigmoid, true, 2.5, 4, 2, group_score_top2_sum), .bias_number = -3}},
    {.name = "glm4.5/kimi-k2/dots1", .family = {PLAIN(4, score_sigmoid, true, 2.5)}, .biased = true},
    {.name = "ernie-4.5", .family = {PLAIN(4, score_softmax, true, 1)}, .biased = true},
    {.name = "switch", .family = {PLAIN(1, score_softmax, false, 1)}},
    {.name = "llama-4", .family = {PLAIN(1, score_sigmoid, false, 1)}}, // what the weight multiplies: mlp_up
    {.name = "phi-3.5 sparsemixer eps", .family = {PLAIN(2, score_sparsemixer, true, 1)}},
    {.name = "phi-3.5 sparsemixer near tie", .family = {PLAIN(2, score_sparsemixer, true, 1)}},
    {.name = "tie: all logits equal", .family = {PLAIN(8, score_softmax, true, 1)}},
};

// Known wrong results.
static const char *const others[] = {"deepseek-v3 negative bias -3, fill=0.0"};

static void read_floats(const json_t *array, float *to)
{
    for (size_t i = 0; i < json_array_size(array); i++)
        to[i] = (float)json_number_value(json_array_get(array, i));
}

static void check_golden(const struct golden *golden, const json_t *row, const float *z, const float *b,
                         const char *level)
{
    struct family family = golden->family;
    if (golden->biased && golden->logits)
        family.logit_bias = b;
    else if (golden->biased)
        family.bias = b;
    static const float equal[16], near[16] = {2.05f, 2.04f, 2.02f, 1, -1, 0.5f};
    const float *logits = !strncmp(golden->name, "tie", 3) ? equal : strstr(golden->name, "near tie") ? near : z;
    int32_t ids[16];
    float weights[16];
    const json_t *want = json_object_get(row, "ids"), *want_weights = json_object_get(row, "weights");
    CU_ASSERT_EQUAL_FATAL((int64_t)json_array_size(want), family.choices);
    route_once(&family, 16, level, logits, 1, ids, weights);
    for (size_t i = 0; i < json_array_size(want); i++) {
        // each id with its weight; the goldens' order is that of choice
        CU_ASSERT_EQUAL(ids[i], json_integer_value(json_array_get(want, i)));
        CU_ASSERT_DOUBLE_EQUAL((double)weights[i], json_number_value(json_array_get(want_weights, i)), 1e-6);
    }
}

static void test_goldens(void)
{
    json_error_t error;
    json_t *file = json_load_file("tests/data/router_goldens.json", 0, &error);
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    float z[16], b[16];
    read_floats(json_object_get(file, "logits_z"), z);
    read_floats(json_object_get(file, "bias_b"), b);
    size_t found = 0, known = 0;
    const char *name;
    json_t *row;
    json_object_foreach(json_object_get(file, "cases"), name, row) {
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            known += !strncmp(name, others[i], strlen(others[i]));
        for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
            if (strncmp(name, goldens[i].name, strlen(goldens[i].name)))
                continue;
            found++;
            for (unsigned level = 0; level < LEVELS; level++)
                if (level_runs_here(level_names[level]))
                    check_golden(&goldens[i], row, z, b, level_names[level]);
        }
    }
    CU_ASSERT_EQUAL(found, sizeof goldens / sizeof *goldens);
    CU_ASSERT_EQUAL(found + known, json_object_size(json_object_get(file, "cases")));
    json_decref(file);
}

// ------------------------------------------------------------------------------------------- the float64 reference

struct expected {
    double *score, *choice; // without and with the selection bias; choice is -inf in dropped groups
};

static void reference_scores(const struct family *f, int64_t experts, const float *logits, struct expected *e)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < experts; i++) {
        e->score[i] = (double)logits[i] + f->logit_bias_number + (f->logit_bias ? (double)f->logit_bias[i] : 0);
        most = fmax(most, e->score[i]);
    }
    for (int64_t i = 0; i < experts; i++)
        sum += exp(e->score[i] - most);
    for (int64_t i = 0; i < experts; i++) {
        if (f->score == score_softmax)
            e->score[i] = exp(e->score[i] - most) / sum;
        else if (f->score == score_sigmoid)
            e->score[i] = 1 / (1 + exp(-e->score[i]));
        e->choice[i] = e->score[i] + f->bias_number + (f->bias ? (double)f->bias[i] : 0);
    }
}

static double reference_group(const struct family *f, const double *choice, int64_t size)
{
    double best = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < size; i++) {
        second = fmax(second, fmin(best, choice[i]));
        best = fmax(best, choice[i]);
    }
    return f->group_score == group_score_max || size == 1 ? best : best + second;
}

// Groups whose rank the rounding of f32 may decide: the last kept and the first dropped are too close.
static bool reference_drop(const struct family *f, int64_t experts, struct expected *e)
{
    if (f->groups <= 1 || f->kept >= f->groups)
        return true;
    int64_t size = experts / f->groups;
    double *score = calloc((size_t)f->groups, sizeof *score), last = INFINITY, next = -INFINITY;
    for (int64_t j = 0; j < f->groups; j++)
        score[j] = reference_group(f, e->choice + j * size, size);
    for (int64_t j = 0; j < f->groups; j++) {
        int64_t better = 0;
        for (int64_t i = 0; i < f->groups; i++)
            better += score[i] > score[j] || (score[i] == score[j] && i < j);
        if (better < f->kept)
            last = fmin(last, score[j]);
        else
            next = fmax(next, score[j]);
        for (int64_t i = j * size; better >= f->kept && i < (j + 1) * size; i++)
            e->choice[i] = -INFINITY;
    }
    free(score);
    return last - next > 1e-5;
}

static void check_token(const struct family *f, int64_t experts, const float *logits, const int32_t *ids,
                        const float *weights)
{
    struct expected e = {calloc((size_t)experts, sizeof(double)), calloc((size_t)experts, sizeof(double))};
    reference_scores(f, experts, logits, &e);
    if (reference_drop(f, experts, &e)) {
        double worst = INFINITY, sum = 0, most = -INFINITY;
        for (int64_t j = 0; j < f->choices; j++) {
            CU_ASSERT(e.choice[ids[j]] <= worst + 1e-6); // best first, and never of a dropped group
            CU_ASSERT(isfinite(e.choice[ids[j]]));
            worst = e.choice[ids[j]];
            most = fmax(most, e.score[ids[j]]);
        }
        for (int64_t i = 0; i < experts; i++) {
            bool chosen = e.choice[i] <= worst + 1e-6;
            for (int64_t j = 0; j < f->choices && !chosen; j++)
                chosen = ids[j] == i;
            CU_ASSERT(chosen);
        }
        bool after = f->score == score_softmax_after;
        for (int64_t j = 0; j < f->choices; j++)
            sum += after ? exp(e.score[ids[j]] - most) : e.score[ids[j]];
        for (int64_t j = 0; j < f->choices; j++) {
            double weight = after ? exp(e.score[ids[j]] - most) : e.score[ids[j]];
            if (f->normalize || after)
                weight /= sum;
            weight *= f->scale != 0 ? f->scale : 1;
            CU_ASSERT_DOUBLE_EQUAL((double)weights[j], weight, 1e-6 * fmax(1, weight));
        }
    }
    free(e.score);
    free(e.choice);
}

static void check_random(struct family f, int64_t experts, const char *level)
{
    enum { TOKENS = 5 };
    struct rng rng = {(uint64_t)(experts * 100 + f.choices * 7 + f.score)};
    float *logits = block(TOKENS * experts * 4), *bias = block(experts * 4), *logit_bias = block(experts * 4);
    for (int64_t i = 0; i < TOKENS * experts; i++)
        logits[i] = random_float(&rng) * 4;
    for (int64_t i = 0; i < experts; i++) {
        bias[i] = random_float(&rng) * 0.3f;
        logit_bias[i] = random_float(&rng) * 2;
    }
    int32_t *ids = block(TOKENS * f.choices * 4), *alone = block(f.choices * 4);
    float *weights = block(TOKENS * f.choices * 4), *alone_weights = block(f.choices * 4);
    for (int biases = f.normalize; biases < 4; biases += 2) {
        f.bias = biases & 1 ? bias : NULL;
        f.logit_bias = biases & 2 ? logit_bias : NULL;
        struct router r;
        router_init(&r, &f, experts, level);
        router_run(&r, logits, TOKENS, ids, weights);
        for (int64_t t = 0; t < TOKENS; t++) {
            check_token(&f, experts, logits + t * experts, ids + t * f.choices, weights + t * f.choices);
            router_run(&r, logits + t * experts, 1, alone, alone_weights);
            CU_ASSERT(!memcmp(alone, ids + t * f.choices, (size_t)f.choices * 4));
            CU_ASSERT(!memcmp(alone_weights, weights + t * f.choices, (size_t)f.choices * 4));
        }
        router_free(&r);
    }
    void *blocks[] = {logits, bias, logit_bias, ids, weights, alone, alone_weights};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
}

static void test_families(void)
{
    static const struct {
        int64_t experts, choices, groups, kept;
    } sizes[] = {{1, 1, 1, 1},  {12, 3, 1, 1},    {12, 5, 4, 2},  {16, 16, 4, 4},   {40, 10, 40, 10},
                 {64, 6, 8, 3}, {160, 160, 1, 1}, {256, 8, 8, 4}, {512, 10, 16, 3}, {512, 512, 1, 1}};
    static const uint32_t scores[] = {score_softmax, score_softmax_after, score_sigmoid};
    for (unsigned level = 0; level < LEVELS; level++)
        for (unsigned i = 0; i < sizeof sizes / sizeof *sizes && level_runs_here(level_names[level]); i++) {
            struct family f = {.choices = sizes[i].choices,
                               .score = scores[i % 3],
                               .normalize = i % 2,
                               .scale = i % 4 ? 2.5 : 0,
                               .groups = sizes[i].groups,
                               .kept = sizes[i].kept,
                               .group_score = i % 2 ? group_score_max : group_score_top2_sum};
            check_random(f, sizes[i].experts, level_names[level]);
            f.score = score_sigmoid;
            f.normalize = !f.normalize;
            f.group_score = group_score_top2_sum;
            check_random(f, sizes[i].experts, level_names[level]);
        }
}

// ------------------------------------------------------------------------------------------------- ties and NaN

// Real routes (Qwen1.5-MoE, layer 0) as exact ties: the four experts of a row have one score, the others a lower one.
// B12: the lower ids win at every k, again and again.
static void check_trace_row(const struct router *routers, const int32_t *row)
{
    float logits[60] = {0}, weights[4], first[4];
    int32_t sorted[4], ids[4];
    memcpy(sorted, row, sizeof sorted);
    for (int i = 0; i < 4; i++)
        for (int j = i; j > 0 && sorted[j] < sorted[j - 1]; j--) {
            int32_t swap = sorted[j];
            sorted[j] = sorted[j - 1];
            sorted[j - 1] = swap;
        }
    for (int i = 0; i < 60; i++)
        logits[i] = -1 - (float)(i % 7);
    for (int i = 0; i < 4; i++)
        logits[row[i]] = 1.4375f; // a bf16 number
    for (int k = 1; k <= 4; k++)
        for (int again = 0; again < 20; again++) {
            router_run(&routers[k - 1], logits, 1, ids, weights);
            CU_ASSERT(!memcmp(ids, sorted, (size_t)k * sizeof *ids));
            if (!again)
                memcpy(first, weights, sizeof first);
            CU_ASSERT(!memcmp(first, weights, (size_t)k * sizeof *weights));
            CU_ASSERT(weights[0] == weights[k - 1]);
        }
}

static void test_trace_ties(void)
{
    FILE *file = fopen("tests/data/qwen15moe_layer0_routes.tsv", "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    struct router routers[LEVELS][4];
    for (unsigned level = 0; level < LEVELS; level++)
        for (int64_t k = 1; k <= 4 && level_runs_here(level_names[level]); k++)
            router_init(&routers[level][k - 1], &(struct family){PLAIN(k, score_softmax, false, 1)}, 60,
                        level_names[level]);
    char line[256], step[8];
    int number, rows = 0;
    int32_t row[4];
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%7s %d %d %d %d %d", step, &number, &row[0], &row[1], &row[2], &row[3]) != 6)
            continue;
        rows++;
        for (unsigned level = 0; level < LEVELS; level++)
            if (level_runs_here(level_names[level]))
                check_trace_row(routers[level], row);
    }
    fclose(file);
    CU_ASSERT_EQUAL(rows, 107);
    for (unsigned level = 0; level < LEVELS; level++)
        for (int k = 0; k < 4 && level_runs_here(level_names[level]); k++)
            router_free(&routers[level][k]);
}

static void test_group_ties(void)
{
    // 4 groups of 4, two kept. Groups 1 and 3 have the same two best, in other places; so have 0 and 2.
    static const float logits[16] = {1, 0, 0, 2, 0, 3, 4, 0, 2, 1, 0, 0, 4, 0, 0, 3};
    static const float level_logits[16] = {0};
    const struct family f = {GROUPED(4, score_sigmoid, true, 1, 4, 2, group_score_top2_sum)};
    const struct family three = {GROUPED(4, score_sigmoid, true, 1, 4, 3, group_score_top2_sum)};
    for (unsigned level = 0; level < LEVELS; level++) {
        if (!level_runs_here(level_names[level]))
            continue;
        int32_t ids[4];
        float weights[4];
        route_once(&f, 16, level_names[level], logits, 1, ids, weights);
        CU_ASSERT(!memcmp(ids, (int32_t[]){6, 12, 5, 15}, sizeof ids));
        route_once(&three, 16, level_names[level], logits, 1, ids, weights);
        CU_ASSERT(!memcmp(ids, (int32_t[]){6, 12, 5, 15}, sizeof ids));
        route_once(&f, 16, level_names[level], level_logits, 1, ids, weights);
        CU_ASSERT(!memcmp(ids, (int32_t[]){0, 1, 2, 3}, sizeof ids));
        for (int i = 0; i < 4; i++)
            CU_ASSERT(weights[i] == 0.25f);
    }
}

// NaN never beats a number, not even one of a group with only bad scores in it; ids stay distinct (router_run). The
// values come as a logit bias, for a product with NaN or infinity would spread them to every expert.
static void check_nan(struct family f, const char *level)
{
    enum { ALL_NAN, ALL_LOWEST, ONE_GROUP, ONE_EACH, PATTERNS };
    float logits[PATTERNS][128], zeros[128] = {0}, weights[128];
    for (int i = 0; i < 128; i++) {
        logits[ALL_NAN][i] = NAN;
        logits[ALL_LOWEST][i] = -INFINITY;
        logits[ONE_GROUP][i] = i / 16 == 2 ? -5 : NAN;
        logits[ONE_EACH][i] = i % 16 ? NAN : (float)i / 64;
    }
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        int32_t ids[128];
        f.logit_bias = logits[pattern];
        route_once(&f, 128, level, zeros, 1, ids, weights);
        if (f.score == score_softmax || pattern < ONE_GROUP) { // one NaN makes all probabilities NaN
            for (int32_t j = 0; j < f.choices; j++)
                CU_ASSERT_EQUAL(ids[j], j);
        } else if (pattern == ONE_GROUP) {
            CU_ASSERT_EQUAL(ids[0], 32);
            CU_ASSERT_EQUAL(ids[1], 33);
        } else if (f.group_score == group_score_max) {
            for (int32_t j = 0; j < 4; j++)
                CU_ASSERT_EQUAL(ids[j], 112 - 16 * j);
        }
    }
}

static void test_nan(void)
{
    const struct family families[] = {{PLAIN(8, score_softmax, true, 1)},
                                      {PLAIN(8, score_softmax_after, false, 1)},
                                      {GROUPED(8, score_sigmoid, true, 2.5, 8, 4, group_score_top2_sum)},
                                      {GROUPED(8, score_sigmoid, true, 2.5, 8, 4, group_score_max)},
                                      {PLAIN(128, score_sigmoid, false, 1)}};
    for (unsigned level = 0; level < LEVELS; level++)
        for (size_t i = 0; i < sizeof families / sizeof *families && level_runs_here(level_names[level]); i++)
            check_nan(families[i], level_names[level]);
}

// Group scores where the rules part: A has one score of .9 and the rest .1, B has .6 twice.
static void test_group_score(void)
{
    float scores[8] = {0.9f, 0.1f, 0.1f, 0.1f, 0.6f, 0.6f, 0.1f, 0.1f}, logits[8];
    for (int i = 0; i < 8; i++)
        logits[i] = logf(scores[i] / (1 - scores[i]));
    struct family f = {GROUPED(2, score_sigmoid, false, 1, 2, 1, group_score_top2_sum)};
    for (unsigned level = 0; level < LEVELS; level++) {
        if (!level_runs_here(level_names[level]))
            continue;
        int32_t ids[2];
        float weights[2];
        f.group_score = group_score_top2_sum;
        route_once(&f, 8, level_names[level], logits, 1, ids, weights);
        CU_ASSERT(ids[0] == 4 && ids[1] == 5);
        f.group_score = group_score_max;
        route_once(&f, 8, level_names[level], logits, 1, ids, weights);
        CU_ASSERT(ids[0] == 0 && ids[1] == 1);
    }
}

// ---------------------------------------------------------------------------------------------------------- gate

static void check_gate(int64_t width, uint32_t x_dtype, uint32_t y_dtype, const char *level)
{
    enum { ROWS = 19 };
    struct rng rng = {(uint64_t)width};
    struct code code;
    code_init(&code);
    code_add(&code, kernel_role_gate, (int64_t[]){width, x_dtype, y_dtype, x_dtype}, 4, 1);
    CU_ASSERT_FATAL(code_generate(&code, level));
    void *x = block(ROWS * width * 4), *y = block(ROWS * width * 4), *result = block(ROWS * width * 4 + 64);
    void *alone = block(width * 4);
    float *w = block(width * 4);
    for (int64_t i = 0; i < ROWS * width; i++) {
        put_number(x, i, x_dtype, random_float(&rng));
        put_number(y, i, y_dtype, random_float(&rng));
    }
    for (int64_t i = 0; i < width; i++)
        w[i] = random_float(&rng);
    struct moe_kargs args = {.p = {[GATE_X] = x, [GATE_W] = w, [GATE_Y] = y, [GATE_RESULT] = result}};
    code_run(&code, 0, &args, 0, 7);
    code_run(&code, 0, &args, 7, ROWS);
    int64_t x_row = width * number_bytes(x_dtype), y_row = width * number_bytes(y_dtype);
    for (int64_t t = 0; t < ROWS; t++) {
        double product = 0, tolerance = x_dtype == dtype_f32 ? 1e-6 : x_dtype == dtype_f16 ? 1e-3 : 8e-3;
        for (int64_t i = 0; i < width; i++)
            product += get_number(x, t * width + i, x_dtype) * (double)w[i];
        for (int64_t i = 0; i < width; i++)
            CU_ASSERT_DOUBLE_EQUAL(get_number(result, t * width + i, x_dtype),
                                   get_number(y, t * width + i, y_dtype) / (1 + exp(-product)), tolerance);
        struct moe_kargs one = {.p = {(char *)x + t * x_row, w, (char *)y + t * y_row, alone}};
        code_run(&code, 0, &one, 0, 1);
        CU_ASSERT(!memcmp(alone, (char *)result + t * x_row, (size_t)x_row));
    }
    for (int64_t i = 0; i < 64; i++)
        CU_ASSERT(((uint8_t *)result)[ROWS * x_row + i] == 0);
    void *blocks[] = {x, y, result, alone, w};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
    code_free(&code);
}

static void test_gate(void)
{
    for (unsigned level = 0; level < LEVELS; level++)
        for (int64_t width = 8; width <= 136 && level_runs_here(level_names[level]); width += 64) {
            check_gate(width, dtype_f32, dtype_f32, level_names[level]);
            check_gate(width, dtype_bf16, dtype_bf16, level_names[level]);
            check_gate(width, dtype_f16, dtype_f32, level_names[level]);
        }
}

/// Where one probability is 1 the others are the exponential alone, whatever the order of their sum: by the same polynomial
/// at every level with FMA, whether 2^n is multiplied in one factor or in two, down to the last denormal number.
static void test_small_probabilities(void)
{
    enum { EXPERTS = 32, CHOICES = 16, TOKENS = 120 };
    static float logits[TOKENS * EXPERTS], weights[TOKENS * CHOICES], first[TOKENS * CHOICES];
    int32_t ids[TOKENS * CHOICES];
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < EXPERTS; i++)
            logits[t * EXPERTS + i] = i < CHOICES ? -20.0f * (i > 0) - 0.0473f * (float)(t * i) : -200;
    static const char *const with_fma[] = {"v3", "v4", "bf16"}; // who runs a level runs those before it
    struct family family = {PLAIN(CHOICES, score_softmax, false, 1)};
    for (unsigned level = 0; level < sizeof with_fma / sizeof *with_fma && level_runs_here(with_fma[level]); level++) {
        route_once(&family, EXPERTS, with_fma[level], logits, TOKENS, ids, level > 0 ? weights : first);
        CU_ASSERT(level == 0 || memcmp(weights, first, sizeof first) == 0);
    }
    for (int i = 0; i < TOKENS * CHOICES && level_runs_here(with_fma[0]); i++) {
        double exact = exp((double)logits[i / CHOICES * EXPERTS + i % CHOICES]);
        CU_ASSERT(fabs((double)first[i] - exact) <= 2e-7 * exact + 0x1p-149);
    }
}

void suite_routers(void);
void suite_routers(void)
{
    CU_pSuite suite = CU_add_suite("routers", NULL, NULL);
    CU_add_test(suite, "golden vectors of public models", test_goldens);
    CU_add_test(suite, "families match the float64 reference", test_families);
    CU_add_test(suite, "real routes as exact ties", test_trace_ties);
    CU_add_test(suite, "groups that tie", test_group_ties);
    CU_add_test(suite, "NaN and infinities", test_nan);
    CU_add_test(suite, "group scores", test_group_score);
    CU_add_test(suite, "probabilities down to denormal numbers", test_small_probabilities);
    CU_add_test(suite, "the gate of shared experts", test_gate);
}
