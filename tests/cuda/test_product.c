// Every router family of the language times the element types of x: the CUDA kernel run by the CPU with every access
// checked, the native kernel, and a float64 computation choose the same experts with the same weights; a token alone gets
// the bytes that it gets in company, and no token writes nothing. And products whose rows and weights lie more than 4 GB behind
// the beginning of their buffers.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/codegen/fixture.h"

enum { TOKENS = 37, EXPERTS = 64, WIDTH = 72, CHOICES = 6, ALL = TOKENS * CHOICES, RANK = 3, LAYER = 2, FIRST = 5 };

struct family {
    const char *name;
    uint32_t score;
    bool normalize;
    int64_t groups, kept;
    uint32_t group_score;
    int64_t biases;
    double noise, temperature;
    uint32_t dtype; // of x
};

static const struct family families[] = {
    {"softmax", score_softmax, true, 1, 1, group_score_max, 0, 0, 0, dtype_f32},
    {"softmax, groups by maximum", score_softmax, false, 8, 3, group_score_max, 0, 0, 0, dtype_bf16},
    {"softmax with a selection bias", score_softmax, true, 1, 1, group_score_max, ROUTE_HAS_BIAS, 0, 0, dtype_f16},
    {"top k, then softmax", score_softmax_after, false, 1, 1, group_score_max, ROUTE_HAS_LOGIT_BIAS, 0, 0, dtype_bf16},
    {"sigmoid, groups by their best two", score_sigmoid, true, 8, 4, group_score_top2_sum, ROUTE_HAS_BIAS, 0, 0, dtype_bf16},
    {"sigmoid", score_sigmoid, false, 1, 1, group_score_max, 0, 0, 0, dtype_f16},
    {"sparsemixer", score_sparsemixer, false, 1, 1, group_score_max, 0, 0, 0, dtype_f32},
    {"cosine", score_cosine, false, 1, 1, group_score_max, 0, 0, 7, dtype_bf16},
    {"cosine with noise", score_cosine, true, 1, 1, group_score_max, 0, 0.01, 5, dtype_f16},
    {"sigmoid with noise", score_sigmoid, true, 8, 4, group_score_top2_sum, ROUTE_HAS_BIAS, 0.3, 0, dtype_f32},
};

struct inputs {
    uint8_t *x;
    float *w, *bias, *logit_bias;
};

// ------------------------------------------------------------------------------------------------------- reference

static uint32_t mixed(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/// Of standard deviation 1, as runtime/plan/kernels.h describes it.
static double noise_of(uint32_t seed, uint32_t token, uint32_t expert)
{
    uint32_t x = mixed(seed * MOE_NOISE_STEP + 1), sum = 0;
    x = mixed(mixed(mixed(x ^ LAYER) ^ RANK) ^ (FIRST + token));
    x = mixed(x ^ expert * MOE_NOISE_STEP);
    for (uint32_t i = 0; i < MOE_NOISE_WORDS; i++) {
        uint32_t word = mixed(x + i * MOE_NOISE_STEP);
        sum += (word & 0xffff) + (word >> 16);
    }
    return ((double)sum - 65535.0 * (double)MOE_NOISE_WORDS) * MOE_NOISE_FACTOR(1.0);
}

static void scores_of(const struct family *f, const struct inputs *in, int64_t token, double *score)
{
    double most = -INFINITY, sum = 0, xx = 0;
    for (int64_t e = 0; e < EXPERTS; e++) {
        double product = 0, ww = 0;
        xx = 0;
        for (int64_t k = 0; k < WIDTH; k++) {
            double x = get_number(in->x, token * WIDTH + k, f->dtype), w = (double)in->w[e * WIDTH + k];
            product += x * w;
            xx += x * x;
            ww += w * w;
        }
        score[e] = f->score == score_cosine ? product * f->temperature / fmax(sqrt(xx), 1e-12) / fmax(sqrt(ww), 1e-12) : product;
        score[e] += f->biases & ROUTE_HAS_LOGIT_BIAS ? (double)in->logit_bias[e] : 0;
        most = fmax(most, score[e]);
    }
    for (int64_t e = 0; e < EXPERTS; e++)
        sum += exp(score[e] - most);
    for (int64_t e = 0; e < EXPERTS; e++)
        if (f->score == score_softmax || f->score == score_cosine)
            score[e] = exp(score[e] - most) / sum;
        else if (f->score == score_sigmoid)
            score[e] = 1 / (1 + exp(-score[e]));
}

/// Takes the `count` largest, first ones among equals, best first; the smallest distance that decided.
static double take_best(double *values, int64_t all, int64_t count, int32_t *taken)
{
    double gap = INFINITY, last = INFINITY;
    for (int64_t i = 0; i <= count && i < all; i++) {
        int64_t best = 0;
        for (int64_t e = 1; e < all; e++)
            if (values[e] > values[best])
                best = e;
        gap = fmin(gap, last - values[best]);
        last = values[best];
        if (i < count) {
            taken[i] = (int32_t)best;
            values[best] = -INFINITY;
        }
    }
    return gap;
}

/// Puts experts of all but the best groups out of the choice.
static double drop_groups(const struct family *f, double *choice)
{
    double of_group[EXPERTS];
    int32_t kept[EXPERTS];
    int64_t size = EXPERTS / f->groups;
    for (int64_t g = 0; g < f->groups; g++) {
        double two[2] = {-INFINITY, -INFINITY};
        for (int64_t e = g * size; e < (g + 1) * size; e++) {
            two[1] = fmax(two[1], fmin(two[0], choice[e]));
            two[0] = fmax(two[0], choice[e]);
        }
        of_group[g] = f->group_score == group_score_max ? two[0] : two[0] + two[1];
    }
    double gap = f->kept < f->groups ? take_best(of_group, f->groups, f->kept, kept) : INFINITY;
    for (int64_t e = 0; e < EXPERTS && f->kept < f->groups; e++)
        if (!isinf(of_group[e / size]))
            choice[e] = -INFINITY;
    return gap;
}

/// Phi-3.5: the share of `best` among the experts left that are within 2% of it.
static double sparse_weight(const double *score, const int32_t *taken, int count)
{
    double best = score[taken[count]], sum = 1;
    for (int e = 0; e < EXPERTS; e++) {
        bool out = (best - score[e]) / fmax(fabs(score[e]), best) > 0.02;
        for (int i = 0; i <= count; i++)
            out = out || taken[i] == e;
        sum += out ? 0 : exp(score[e] - best);
    }
    return 1 / sum;
}

static double expect(const struct family *f, const struct inputs *in, int64_t token, int32_t *ids, double *weights)
{
    double score[EXPERTS], choice[EXPERTS], sum = 0, most = -INFINITY;
    scores_of(f, in, token, score);
    for (int64_t e = 0; e < EXPERTS; e++) {
        choice[e] = score[e] + (f->biases & ROUTE_HAS_BIAS ? (double)in->bias[e] : 0);
        choice[e] += f->noise > 0 ? f->noise * noise_of(9, (uint32_t)token, (uint32_t)e) : 0;
    }
    double gap = drop_groups(f, choice);
    gap = fmin(gap, take_best(choice, EXPERTS, CHOICES, ids));
    for (int i = 0; i < CHOICES; i++)
        most = fmax(most, score[ids[i]]);
    for (int i = 0; i < CHOICES; i++) {
        weights[i] = f->score == score_sparsemixer     ? sparse_weight(score, ids, i)
                     : f->score == score_softmax_after ? exp(score[ids[i]] - most)
                                                       : score[ids[i]];
        sum += weights[i];
    }
    for (int i = 0; i < CHOICES; i++)
        weights[i] *= 2.5 / (f->normalize || f->score == score_softmax_after ? sum : 1);
    return gap;
}

// ------------------------------------------------------------------------------------------------------------ runs

static void make_inputs(struct inputs *in, uint32_t dtype)
{
    struct rng rng = {17 + dtype};
    *in = (struct inputs){block(TOKENS * WIDTH * 4), block(EXPERTS * WIDTH * 4), block(EXPERTS * 4), block(EXPERTS * 4)};
    for (int i = 0; i < TOKENS * WIDTH; i++)
        put_number(in->x, i, dtype, random_float(&rng));
    for (int i = 0; i < EXPERTS * WIDTH; i++)
        in->w[i] = random_float(&rng);
    for (int i = 0; i < EXPERTS; i++) {
        in->bias[i] = random_float(&rng) * 0.3f;
        in->logit_bias[i] = random_float(&rng) * 2;
    }
}

/// ids, then weights, of all tokens; and of token 4 alone.
static void run_family(const struct family *f, const struct inputs *in, const char *level, int32_t *ids, float *weights)
{
    struct code code;
    struct plan_param param = {.declared = dtype_f32, .rows = EXPERTS, .cols = WIDTH};
    CU_ASSERT_FATAL(level_choose_layout(level, &param));
    void *w = pack(&param, in->w, 1);
    code_init(&code);
    code.host = (struct host_options){.checked = true, .seed = 5, .most_blocks = 4};
    int64_t n[] = {WIDTH, EXPERTS, CHOICES, f->score, f->normalize, f->dtype, f->groups, f->kept, f->group_score, f->biases};
    uint32_t row = code_add(&code, kernel_role_route, n, 10, 2.5);
    struct plan_kernel *kernel = ROW(&code.plan, plan_kernel, row);
    kernel->noise = f->noise;
    kernel->seed = 9;
    kernel->temperature = f->temperature;
    CU_ASSERT_FATAL(code_generate(&code, level));
    float *vectors[2] = {f->biases & ROUTE_HAS_BIAS ? in->bias : in->logit_bias, in->logit_bias};
    struct moe_kargs args = {.p = {in->x, w, ids, weights, vectors[0], vectors[1]}, .n = {TOKENS, FIRST, RANK, LAYER}};
    memset(ids, 0xff, ALL * 4);
    memset(weights, 0xff, ALL * 4);
    code_run(&code, 0, &args, 7, 7);
    for (int i = 0; i < ALL; i++)
        CU_ASSERT_FATAL(ids[i] == -1 && isnan(weights[i]));
    code_run(&code, 0, &args, 4, 5);
    int32_t alone[CHOICES];
    float alone_weights[CHOICES];
    memcpy(alone, ids + 4 * CHOICES, sizeof alone);
    memcpy(alone_weights, weights + 4 * CHOICES, sizeof alone_weights);
    code_run(&code, 0, &args, 0, TOKENS);
    CU_ASSERT(!memcmp(alone, ids + 4 * CHOICES, sizeof alone));
    CU_ASSERT(!memcmp(alone_weights, weights + 4 * CHOICES, sizeof alone_weights));
    code_free(&code);
    free(w);
}

static void check_family(const struct family *f)
{
    const char *const levels[] = {NULL, gpu_level("cuda:sm_80")};
    struct inputs in;
    char reports[4096];
    int32_t ids[ALL], want[CHOICES];
    float weights[ALL];
    double want_weights[CHOICES];
    make_inputs(&in, f->dtype);
    for (int l = 0; l < 2; l++) {
        int decided = 0, wrong = 0;
        run_family(f, &in, levels[l], ids, weights);
        for (int64_t t = 0; t < TOKENS; t++) {
            if (expect(f, &in, t, want, want_weights) < 1e-5)
                continue; // the rounding of f32 may decide
            decided++;
            for (int i = 0; i < CHOICES; i++)
                wrong += ids[t * CHOICES + i] != want[i] ||
                         fabs((double)weights[t * CHOICES + i] - want_weights[i]) > 2e-6 * fmax(1, want_weights[i]);
        }
        if (wrong)
            fprintf(stderr, "%s, %s: %d of %d wrong\n", f->name, levels[l] ? levels[l] : "native", wrong, decided * CHOICES);
        CU_ASSERT_EQUAL(wrong, 0);
        CU_ASSERT(decided > TOKENS / 2);
        CU_ASSERT_EQUAL(host_reports(reports, sizeof reports), 0);
    }
    free(in.x), free(in.w), free(in.bias), free(in.logit_bias);
}

static void test_routers(void)
{
    for (size_t i = 0; i < sizeof families / sizeof *families && level_runs_here("cuda:sm_80"); i++)
        check_family(&families[i]);
}

// --------------------------------------------------------------------------------------------------- 64-bit offsets

enum { FAR_K = 4096, FAR_OUT = 64, FAR_PAIRS = 3, FAR_EXPERT = 8400, FAR_PAIR = 540000 }; // of 512 KB and of 8 KB each

/// A product of some pairs of one expert: all others have none, and pairs before these are nobody's.
struct product_at {
    int64_t expert, pair;
    uint8_t *rows, *weights, *out; // address space that is mostly never touched
    size_t row_space, weight_space, out_space;
    int64_t *expert_first;
    int32_t *pair_row;
    float *pair_weight;
    uint8_t y[FAR_PAIRS][FAR_OUT * 4];
};

static uint8_t *reserve(size_t bytes)
{
    void *space = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CU_ASSERT_FATAL(space != MAP_FAILED);
    return space;
}

static void fill(uint8_t *to, int64_t count, uint64_t seed)
{
    struct rng rng = {seed};
    for (int64_t i = 0; i < count; i++)
        put_number(to, i, dtype_bf16, random_float(&rng));
}

static void product_init(struct product_at *p, int64_t expert, int64_t pair)
{
    const int64_t weights = FAR_K * FAR_OUT * 2, row = FAR_K * 2, pairs = pair + FAR_PAIRS;
    *p = (struct product_at){.expert = expert,
                             .pair = pair,
                             .row_space = (size_t)(pairs * row),
                             .weight_space = (size_t)((expert + 1) * weights),
                             .out_space = (size_t)(pairs * FAR_OUT * 4)};
    p->rows = reserve(p->row_space);
    p->weights = reserve(p->weight_space);
    p->out = reserve(p->out_space);
    p->expert_first = calloc((size_t)expert + 2, sizeof *p->expert_first);
    p->pair_row = calloc((size_t)pairs, sizeof *p->pair_row);
    p->pair_weight = calloc((size_t)pairs, sizeof *p->pair_weight);
    for (int64_t e = 0; e <= expert + 1; e++)
        p->expert_first[e] = e <= expert ? pair : pairs;
    for (int i = 0; i < FAR_PAIRS; i++) {
        p->pair_row[pair + i] = i;
        p->pair_weight[pair + i] = 0.5f + (float)i;
    }
    fill(p->rows + pair * row, FAR_PAIRS * FAR_K, 3);
    fill(p->weights + expert * weights, FAR_K * FAR_OUT, 4);
}

static void product_free(struct product_at *p)
{
    munmap(p->rows, p->row_space);
    munmap(p->weights, p->weight_space);
    munmap(p->out, p->out_space);
    free(p->expert_first);
    free(p->pair_row);
    free(p->pair_weight);
}

/// Up without a gate, into hidden rows; or down, into rows of y.
static void product_run(struct product_at *p, bool up, const char *level)
{
    struct code code;
    code_init(&code);
    code.host = (struct host_options){.checked = true, .seed = 3, .most_blocks = 2};
    if (up)
        code_add(&code, kernel_role_mlp_up,
                 (int64_t[]){FAR_K, FAR_OUT, activation_silu, dtype_bf16, FAR_K * 2, FAR_OUT * 4, 0, MLP_PLAIN}, 8, 1);
    else
        code_add(&code, kernel_role_mlp_down,
                 (int64_t[]){FAR_K, FAR_OUT, dtype_bf16, dtype_f32, FAR_K * 2, FAR_OUT * 4}, 6, 1);
    CU_ASSERT_FATAL(code_generate(&code, level));
    void *targets[FAR_PAIRS] = {p->y[0], p->y[1], p->y[2]};
    struct moe_pairs_head pairs = {.tables = {{p->pair + FAR_PAIRS, NULL, NULL}},
                                   .experts = p->expert + 1,
                                   .expert_first = p->expert_first,
                                   .pair_row = p->pair_row,
                                   .pair_weight = p->pair_weight,
                                   .rows = FAR_PAIRS,
                                   .row_dst = targets};
    int64_t panels = ROW(&code.plan, plan_kernel, 0)->unit_count;
    struct moe_kargs args = {.p = {&pairs, p->rows, p->weights, p->out}};
    code_run(&code, 0, &args, up ? panels * p->expert : 0, up ? panels * (p->expert + 1) : panels);
    for (int i = 0; i < FAR_PAIRS && up; i++)
        memcpy(p->y[i], p->out + (p->pair + i) * FAR_OUT * 4, FAR_OUT * 2);
    code_free(&code);
}

static void test_far(void)
{
    static const char *const levels[] = {"cuda:sm_80", "cuda:sm_90a"};
    for (int i = 0; i < 4 && level_runs_here(levels[i / 2]); i++) {
        struct product_at near, far;
        char reports[4096];
        int zeros = 0;
        product_init(&near, 0, 0);
        product_init(&far, FAR_EXPERT, FAR_PAIR);
        CU_ASSERT(far.row_space > 1ull << 32 && far.weight_space > 1ull << 32);
        product_run(&near, i % 2, levels[i / 2]);
        product_run(&far, i % 2, levels[i / 2]);
        CU_ASSERT(!memcmp(near.y, far.y, sizeof near.y));
        for (int r = 0; r < FAR_PAIRS; r++)
            zeros += get_number(far.y[r], r, i % 2 ? dtype_bf16 : dtype_f32) == 0;
        CU_ASSERT_EQUAL(zeros, 0);
        CU_ASSERT_EQUAL(host_reports(reports, sizeof reports), 0);
        product_free(&near);
        product_free(&far);
    }
}

void suite_product(void);
void suite_product(void)
{
    CU_pSuite suite = CU_add_suite("product", NULL, NULL);
    CU_add_test(suite, "router families: CUDA, native, float64", test_routers);
    if (!gpu_wanted())
        CU_add_test(suite, "rows and weights beyond 4 GB", test_far);
}
