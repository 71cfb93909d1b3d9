// Generated CPU kernels against float64 references, and the promises that make schedules neutral: the same bytes alone
// or in company, whole or in pieces, wherever the code lies.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/codegen/fixture.h"

static const char *const level_names[] = {"v2", "v3", "v4", "bf16", "amx"};
enum { LEVELS = sizeof level_names / sizeof *level_names };

static const uint32_t float_types[] = {dtype_f32, dtype_bf16, dtype_f16};

enum { COPY, UP, DOWN };

static bool layer_code(struct code *code, const struct layer *l, const char *level, uint32_t activation)
{
    code_init(code);
    int64_t copy[LAYER_COPY], up[LAYER_MLP], down[LAYER_MLP];
    layer_up(l, activation, up);
    layer_down(l, down);
    layer_copy(l, copy);
    code_add(code, kernel_role_copy_rows, copy, LAYER_COPY, 1);
    uint32_t row = code_add(code, kernel_role_mlp_up, up, LAYER_MLP, 1);
    ROW(&code->plan, plan_kernel, row)->alpha = LAYER_ALPHA;
    ROW(&code->plan, plan_kernel, row)->limit = LAYER_LIMIT;
    code_add(code, kernel_role_mlp_down, down, LAYER_MLP, 1);
    return code_generate(code, level);
}

// runs units [0, count) in pieces of `piece`
static void run_units(const struct code *code, uint32_t kernel, const struct moe_kargs *args, int64_t count,
                      int64_t piece)
{
    for (int64_t first = 0; first < count; first += piece)
        code_run(code, kernel, args, first, first + piece < count ? first + piece : count);
    if (count == 0)
        code_run(code, kernel, args, 0, 0);
}

static void layer_run(const struct code *code, struct layer *l, int64_t piece)
{
    struct moe_kargs copy = {.p = {[COPY_CONTROL] = &l->pairs}};
    struct moe_kargs up = {.p = {&l->pairs, l->a, l->packed_up, l->hidden, l->packed_b_up}};
    struct moe_kargs down = {.p = {&l->pairs, l->hidden, l->packed_down, l->acc, l->packed_b_down}};
    run_units(code, COPY, &copy, l->pairs.tables[TABLES_UNPACK].rows, piece);
    run_units(code, UP, &up, ROW(&code->plan, plan_kernel, UP)->unit_count * l->experts, piece);
    run_units(code, DOWN, &down, ROW(&code->plan, plan_kernel, DOWN)->unit_count, piece);
}

static double *layer_result(const struct layer *l)
{
    double *y = calloc((size_t)(l->rows * l->h) + 1, sizeof *y);
    for (int64_t r = 0; r < l->rows; r++)
        for (int64_t c = 0; c < l->h; c++)
            y[r * l->h + c] = get_number(l->row_dst[r], c, l->result);
    return y;
}

static bool guards_intact(const struct layer *l)
{
    for (int64_t r = 0; r < l->rows; r++)
        for (int64_t i = l->h * number_bytes(l->result); i < l->y_stride; i++)
            if (((const uint8_t *)l->row_dst[r])[i] != 0x5a)
                return false;
    return true;
}

static double tolerance(uint32_t dtype)
{
    return dtype == dtype_f32 ? 1e-6 : dtype == dtype_f16 ? 1e-3 : 5e-3;
}

static void check_form(const struct layer_shape *shape, unsigned form, const char *level, uint32_t activation)
{
    struct layer l;
    struct code code;
    layer_init_form(&l, shape, form, level, 7);
    CU_ASSERT_FATAL(layer_code(&code, &l, level, activation));
    memset(l.acc, 0xff, (size_t)(l.rows * l.acc_stride)); // NaN: must be cleared by the kernel
    layer_run(&code, &l, 1000000);
    double *expected = layer_reference(&l, activation), *got = layer_result(&l);
    double error = relative_error(expected, got, l.rows * l.h);
    if (!(error <= tolerance(shape->result == dtype_f32 ? shape->dtype : dtype_bf16)))
        fprintf(stderr, "%s h=%d f=%d %s: error %g\n", level, (int)l.h, (int)l.f, dtype_words[l.dtype], error);
    CU_ASSERT(error <= tolerance(shape->result == dtype_f32 ? shape->dtype : dtype_bf16));
    CU_ASSERT(guards_intact(&l));
    free(expected);
    free(got);
    code_free(&code);
    layer_free(&l);
}

static void check_layer(const struct layer_shape *shape, const char *level, uint32_t activation)
{
    check_form(shape, 0, level, activation);
}

static void test_experts_match_reference(void)
{
    for (unsigned level = 0; level < LEVELS; level++) {
        if (!level_runs_here(level_names[level]))
            continue;
        for (unsigned t = 0; t < 3; t++) {
            uint32_t dtype = float_types[t];
            check_layer(&(struct layer_shape){72, 40, 3, 45, 2, dtype, dtype_f32}, level_names[level], activation_silu);
            check_layer(&(struct layer_shape){128, 64, 8, 7, 3, dtype, dtype}, level_names[level], activation_silu);
            check_layer(&(struct layer_shape){8, 8, 1, 1, 1, dtype, dtype_bf16}, level_names[level], activation_silu);
            check_layer(&(struct layer_shape){72, 40, 2, 0, 1, dtype, dtype_f32}, level_names[level], activation_silu);
        }
        check_layer(&(struct layer_shape){72, 40, 3, 20, 2, dtype_f32, dtype_f32}, level_names[level], activation_relu);
        check_layer(&(struct layer_shape){72, 40, 3, 20, 2, dtype_f32, dtype_f32}, level_names[level], activation_gelu);
    }
}

// Biases, other activations, experts without a gate; sizes that no panel divides.
static void test_expert_forms(void)
{
    for (unsigned level = 0; level < LEVELS; level++)
        for (uint32_t i = 0; i < activation_words_count && level_runs_here(level_names[level]); i++) {
            struct layer_shape wide = {72, 40, 3, 45, 2, dtype_f32, dtype_f32},
                               narrow = {72, 24, 3, 45, 2, dtype_bf16, dtype_f32};
            check_form(i % 2 ? &wide : &narrow, LAYER_BIASED, level_names[level], i);
            if (i != activation_clamped_silu) // which is of a gate alone
                check_form(i % 2 ? &narrow : &wide, LAYER_PLAIN | (i % 2 ? LAYER_BIASED : 0), level_names[level], i);
        }
}

// keeps one row of a layer only
static void keep_row(struct layer *l, int64_t row)
{
    int64_t kept = 0;
    for (int64_t e = 0; e < l->experts; e++) {
        int64_t first = l->expert_first[e], end = l->expert_first[e + 1];
        l->expert_first[e] = kept;
        for (int64_t pair = first; pair < end; pair++)
            if (l->pair_row[pair] == row) {
                l->pair_row[kept] = 0;
                l->pair_weight[kept] = l->pair_weight[pair];
                l->sources[kept] = l->sources[pair];
                kept++;
            }
    }
    l->expert_first[l->experts] = l->pair_count = l->pairs.tables[TABLES_UNPACK].rows = kept;
    l->rows = l->pairs.rows = 1;
}

static void check_alone(const struct layer_shape *shape, const char *level)
{
    struct layer all, one;
    struct code code;
    layer_init(&all, shape, level, 11);
    CU_ASSERT_FATAL(layer_code(&code, &all, level, activation_silu));
    layer_run(&code, &all, 1000000);
    for (int64_t row = 0; row < shape->rows; row += 3) {
        layer_init(&one, shape, level, 11);
        keep_row(&one, row);
        layer_run(&code, &one, 1);
        CU_ASSERT(memcmp(one.row_dst[0], all.row_dst[row], (size_t)(all.h * number_bytes(all.result))) == 0);
        layer_free(&one);
    }
    code_free(&code);
    layer_free(&all);
}

static void test_row_is_the_same_alone(void)
{
    for (unsigned level = 0; level < LEVELS; level++)
        for (unsigned t = 0; t < 3 && level_runs_here(level_names[level]); t++)
            check_alone(&(struct layer_shape){72, 40, 3, 58, 2, float_types[t], dtype_f32}, level_names[level]);
}

static void test_pieces_and_addresses(void)
{
    for (unsigned level = 0; level < LEVELS; level++) {
        if (!level_runs_here(level_names[level]))
            continue;
        struct layer_shape shape = {136, 72, 5, 33, 2, dtype_bf16, dtype_bf16};
        struct layer whole, pieces;
        struct code code;
        layer_init(&whole, &shape, level_names[level], 3);
        layer_init(&pieces, &shape, level_names[level], 3);
        CU_ASSERT_FATAL(layer_code(&code, &whole, level_names[level], activation_silu));
        layer_run(&code, &whole, 1000000);
        uint8_t *first = code.mapped, *second = code_map(&code);
        CU_ASSERT(first != second);
        munmap(first, code.bytes); // nothing of the first copy is needed
        code.mapped = second;
        layer_run(&code, &pieces, 3);
        CU_ASSERT(memcmp(whole.y, pieces.y, (size_t)(whole.rows * whole.y_stride)) == 0);
        code_free(&code);
        layer_free(&whole);
        layer_free(&pieces);
    }
}

static void check_by_row(unsigned form, uint32_t dtype, const char *level)
{
    struct layer_shape shape = {136, 40, 3, 150, 2, dtype, dtype_f32}; // about 100 rows an expert
    struct layer by_pair, by_row;
    struct code code;
    layer_init_form(&by_pair, &shape, form, level, 3);
    layer_init_form(&by_row, &shape, form | LAYER_BY_ROW, level, 3);
    CU_ASSERT_FATAL(layer_code(&code, &by_pair, level, activation_silu));
    layer_run(&code, &by_pair, 1000000);
    code_free(&code);
    CU_ASSERT_FATAL(layer_code(&code, &by_row, level, activation_silu));
    memset((uint8_t *)by_row.a + by_row.rows * by_row.a_stride, 0xff, (size_t)by_row.a_stride); // NaN: nobody's row
    layer_run(&code, &by_row, 1000000);
    if (memcmp(by_pair.y, by_row.y, (size_t)(by_pair.rows * by_pair.y_stride)) != 0)
        fprintf(stderr, "%s %s form %u: other bytes by row\n", level, dtype_words[dtype], form);
    CU_ASSERT(memcmp(by_pair.y, by_row.y, (size_t)(by_pair.rows * by_pair.y_stride)) == 0);
    code_free(&code);
    layer_free(&by_pair);
    layer_free(&by_row);
}

// One row of A for each routed row, read by number, instead of one for each pair. (AMX tiles read none by number.)
static void test_rows_by_number(void)
{
    static const unsigned forms[] = {LAYER_PLAIN | LAYER_BIASED | LAYER_WEIGHTED, LAYER_MXFP4, LAYER_FP8};
    for (unsigned level = 0; level < LEVELS; level++) {
        if (!level_runs_here(level_names[level]) || !strcmp(level_names[level], "amx"))
            continue;
        check_by_row(0, dtype_f32, level_names[level]);
        for (unsigned i = 0; i < sizeof forms / sizeof *forms; i++)
            check_by_row(forms[i], dtype_bf16, level_names[level]);
    }
}

static void test_nan_stays_in_its_row(void)
{
    for (unsigned level = 0; level < LEVELS; level++) {
        if (!level_runs_here(level_names[level]))
            continue;
        struct layer_shape shape = {72, 40, 3, 30, 2, dtype_bf16, dtype_f32};
        struct layer clean, dirty;
        struct code code;
        layer_init(&clean, &shape, level_names[level], 5);
        layer_init(&dirty, &shape, level_names[level], 5);
        put_number(dirty.x, 4 * dirty.h + 9, dirty.dtype, NAN);
        CU_ASSERT_FATAL(layer_code(&code, &clean, level_names[level], activation_silu));
        layer_run(&code, &clean, 1000000);
        layer_run(&code, &dirty, 1000000);
        for (int64_t r = 0; r < shape.rows; r++) {
            bool same = memcmp(clean.row_dst[r], dirty.row_dst[r], (size_t)(shape.h * 4)) == 0;
            CU_ASSERT(same == (r != 4));
        }
        for (int64_t c = 0; c < shape.h; c++)
            CU_ASSERT(isnan(get_number(dirty.row_dst[4], c, dtype_f32)));
        code_free(&code);
        layer_free(&clean);
        layer_free(&dirty);
    }
}

// ---------------------------------------------------------------------------------------------------- route

struct routing {
    int64_t h, experts, choices, tokens;
    uint32_t score, dtype;
    bool normalize;
    double scale;
    void *x, *w, *packed; // x[tokens][h]; w[experts][h] f32
    int32_t *ids;
    float *weights;
};

static void routing_init(struct routing *r, const char *level)
{
    struct rng rng = {(uint64_t)(r->experts * 1000 + r->choices)};
    r->x = block(r->tokens * r->h * 4);
    r->w = block(r->experts * r->h * 4);
    for (int64_t i = 0; i < r->tokens * r->h; i++)
        put_number(r->x, i, r->dtype, random_float(&rng));
    for (int64_t i = 0; i < r->experts * r->h; i++)
        put_number(r->w, i, dtype_f32, random_float(&rng) * 0.5f);
    struct plan_param param = {.declared = dtype_f32, .rows = r->experts, .cols = r->h};
    CU_ASSERT(cpu_choose_layout(level, &param) && param.dtype == dtype_f32 && param.group == 1);
    r->packed = pack(&param, r->w, 1);
    r->ids = block(r->tokens * r->choices * 4);
    r->weights = block(r->tokens * r->choices * 4);
}

static void routing_repack(struct routing *r, const char *level)
{
    struct plan_param param = {.declared = dtype_f32, .rows = r->experts, .cols = r->h};
    cpu_choose_layout(level, &param);
    free(r->packed);
    r->packed = pack(&param, r->w, 1);
}

static void routing_run(struct routing *r, struct code *code, const char *level, int64_t piece)
{
    code_init(code);
    int64_t n[] = {r->h, r->experts, r->choices, r->score, r->normalize, r->dtype, 1, 1, group_score_max, 0};
    code_add(code, kernel_role_route, n, 10, r->scale);
    CU_ASSERT_FATAL(code_generate(code, level));
    struct moe_kargs args = {.p = {r->x, r->packed, r->ids, r->weights}};
    run_units(code, 0, &args, r->tokens, piece);
}

static void routing_free(struct routing *r)
{
    free(r->x);
    free(r->w);
    free(r->packed);
    free(r->ids);
    free(r->weights);
}

static void check_token(const struct routing *r, int64_t token)
{
    double *z = calloc((size_t)r->experts, sizeof *z), most = -INFINITY, sum = 0, chosen_sum = 0, worst = INFINITY;
    bool *chosen = calloc((size_t)r->experts, sizeof *chosen);
    for (int64_t e = 0; e < r->experts; e++) {
        for (int64_t i = 0; i < r->h; i++)
            z[e] += get_number(r->x, token * r->h + i, r->dtype) * get_number(r->w, e * r->h + i, dtype_f32);
        most = fmax(most, z[e]);
    }
    for (int64_t e = 0; e < r->experts; e++)
        sum += exp(z[e] - most);
    for (int64_t j = 0; j < r->choices; j++) {
        int32_t id = r->ids[token * r->choices + j];
        CU_ASSERT_FATAL(id >= 0 && id < r->experts);
        CU_ASSERT(!chosen[id]);
        CU_ASSERT(z[id] <= worst + 1e-4); // best first
        chosen[id] = true;
        worst = z[id];
        chosen_sum += exp(z[id] - most) / sum;
    }
    for (int64_t e = 0; e < r->experts; e++)
        CU_ASSERT(chosen[e] || z[e] <= worst + 1e-4);
    for (int64_t j = 0; j < r->choices; j++) {
        double weight = exp(z[r->ids[token * r->choices + j]] - most) / sum;
        if (r->normalize || r->score == score_softmax_after)
            weight /= chosen_sum;
        double got = r->weights[token * r->choices + j];
        CU_ASSERT(fabs(got - weight * r->scale) <= 2e-5 * weight * r->scale + 1e-12);
    }
    free(z);
    free(chosen);
}

static void check_routing(struct routing r, const char *level)
{
    struct code code;
    routing_init(&r, level);
    routing_run(&r, &code, level, 1000000);
    for (int64_t t = 0; t < r.tokens; t++)
        check_token(&r, t);
    int32_t *ids = r.ids;
    float *weights = r.weights;
    r.ids = block(r.tokens * r.choices * 4);
    r.weights = block(r.tokens * r.choices * 4);
    struct moe_kargs args = {.p = {r.x, r.packed, r.ids, r.weights}};
    run_units(&code, 0, &args, r.tokens, 1);
    CU_ASSERT(memcmp(ids, r.ids, (size_t)(r.tokens * r.choices * 4)) == 0);
    CU_ASSERT(memcmp(weights, r.weights, (size_t)(r.tokens * r.choices * 4)) == 0);
    free(ids);
    free(weights);
    code_free(&code);
    routing_free(&r);
}

static void test_route_matches_reference(void)
{
    static const struct {
        int64_t experts, choices;
    } sizes[] = {{1, 1}, {3, 1}, {3, 3}, {16, 2}, {16, 16}, {60, 4}, {60, 60}, {512, 10}, {512, 512}};
    for (unsigned level = 0; level < LEVELS; level++)
        for (unsigned i = 0; i < sizeof sizes / sizeof *sizes && level_runs_here(level_names[level]); i++) {
            uint32_t dtype = float_types[i % 3];
            struct routing r = {.h = 72,
                                .experts = sizes[i].experts,
                                .choices = sizes[i].choices,
                                .tokens = 11,
                                .dtype = dtype,
                                .score = score_softmax,
                                .scale = 1};
            check_routing(r, level_names[level]);
            r.normalize = true;
            r.scale = 2.5;
            r.h = 128;
            check_routing(r, level_names[level]);
            r.score = score_softmax_after;
            r.tokens = 1;
            check_routing(r, level_names[level]);
        }
}

static void test_route_ties_and_nan(void)
{
    for (unsigned level = 0; level < LEVELS; level++) {
        if (!level_runs_here(level_names[level]))
            continue;
        for (unsigned after = 0; after < 2; after++) {
            struct routing r = {.h = 8,
                                .experts = 40,
                                .choices = 6,
                                .tokens = 3,
                                .dtype = dtype_f32,
                                .scale = 1,
                                .score = after ? score_softmax_after : score_softmax};
            struct code code;
            routing_init(&r, level_names[level]);
            float *x = r.x, *w = r.w;
            memset(w, 0, (size_t)(r.experts * r.h * 4));
            for (int64_t e = 0; e < r.experts; e++)
                w[e * r.h] = e == 37 || e == 21 ? 2 : e == 5 ? 3 : e % 2 ? 0.0f : -0.0f;
            routing_repack(&r, level_names[level]);
            for (int64_t i = 0; i < r.tokens * r.h; i++)
                x[i] = i < r.h ? 1 : 0;
            x[2 * r.h] = NAN;
            routing_run(&r, &code, level_names[level], 2);
            static const int32_t best[] = {5, 21, 37, 0, 1, 2};
            CU_ASSERT(memcmp(r.ids, best, sizeof best) == 0);
            for (int32_t j = 0; j < 6; j++) {
                CU_ASSERT(r.ids[6 + j] == j);  // all equal
                CU_ASSERT(r.ids[12 + j] == j); // all NaN
            }
            code_free(&code);
            routing_free(&r);
        }
    }
}

static void test_route_nan_ranks_last(void)
{
    for (unsigned level = 0; level < LEVELS; level++) {
        if (!level_runs_here(level_names[level]))
            continue;
        struct routing r = {.h = 8,
                            .experts = 6,
                            .choices = 5,
                            .tokens = 1,
                            .dtype = dtype_f32,
                            .scale = 1,
                            .score = score_softmax_after};
        struct code code;
        routing_init(&r, level_names[level]);
        float *x = r.x, *w = r.w;
        for (int64_t i = 0; i < r.h; i++)
            x[i] = 1;
        for (int64_t i = 0; i < r.experts * r.h; i++)
            w[i] = (float)(i / r.h);
        w[2 * r.h] = NAN;
        w[1 * r.h] = -INFINITY;
        routing_repack(&r, level_names[level]);
        routing_run(&r, &code, level_names[level], 1);
        static const int32_t best[] = {5, 4, 3, 0, 1};
        CU_ASSERT(memcmp(r.ids, best, sizeof best) == 0);
        code_free(&code);
        routing_free(&r);
    }
}

// ---------------------------------------------------------------------------------------------------- rows

static void check_copy(int64_t width, uint32_t from, uint32_t to, const char *level)
{
    static const float special[] = {0,        -0.0f, 1,           NAN,         INFINITY, -INFINITY, 1e-7f, -65519.0f,
                                    65520.0f, 3e38f, 1.00390625f, 1.01171875f, 6e-8f,    2.9e-8f,   1e-40f};
    enum { ROWS = 5, GUARD = 16, SPECIALS = sizeof special / sizeof *special };
    int64_t in = width * number_bytes(from), out = width * number_bytes(to) + GUARD;
    uint8_t *source = block(ROWS * in), *target = block(ROWS * out);
    struct rng rng = {1};
    for (int64_t i = 0; i < ROWS * width; i++)
        put_number(source, i, from, i % 3 ? random_float(&rng) * 3 : special[i / 3 % SPECIALS]);
    const void *sources[ROWS];
    void *targets[ROWS];
    for (int r = 0; r < ROWS; r++) {
        sources[r] = source + r * in;
        targets[r] = target + (ROWS - 1 - r) * out;
    }
    struct moe_row_table table = {ROWS, sources, targets};
    struct code code;
    code_init(&code);
    code_add(&code, kernel_role_copy_rows, (int64_t[]){width, from, to}, 3, 1);
    CU_ASSERT_FATAL(code_generate(&code, level));
    run_units(&code, 0, &(struct moe_kargs){.p = {&table}}, ROWS, 2);
    void *expected = block(8);
    for (int r = 0; r < ROWS; r++) {
        for (int64_t c = 0; c < width; c++) {
            double value = get_number(source, r * width + c, from);
            put_number(expected, 0, to, (float)value);
            const uint8_t *got = (uint8_t *)targets[r] + c * number_bytes(to);
            bool same = memcmp(got, expected, (size_t)number_bytes(to)) == 0;
            CU_ASSERT(same || (isnan(value) && isnan(get_number(got, 0, to))));
        }
        for (int64_t i = 0; i < GUARD; i++)
            CU_ASSERT(((uint8_t *)targets[r])[out - GUARD + i] == 0);
    }
    free(expected);
    free(source);
    free(target);
    code_free(&code);
}

static void test_copy_rows(void)
{
    static const int64_t widths[] = {8, 24, 72, 136, 1000};
    for (unsigned level = 0; level < LEVELS; level++)
        for (unsigned w = 0; w < 5 && level_runs_here(level_names[level]); w++)
            for (unsigned i = 0; i < 9; i++)
                check_copy(widths[w], float_types[i / 3], float_types[i % 3], level_names[level]);
}

static void check_merge(int64_t width, uint32_t from, uint32_t to, const char *level)
{
    enum { TOKENS = 4, REPLIES = 6 };
    static const int64_t first[TOKENS + 1] = {0, 2, 2, 3, 6};
    uint8_t *replies = block(REPLIES * width * 4), *y = block(TOKENS * width * 4);
    memset(y, 0xff, (size_t)(TOKENS * width * 4));
    struct rng rng = {2};
    const void *rows[REPLIES];
    for (int r = 0; r < REPLIES; r++)
        rows[r] = replies + r * width * number_bytes(from);
    for (int64_t i = 0; i < REPLIES * width; i++)
        put_number(replies, i, from, random_float(&rng));
    struct moe_bins_head bins = {.tokens = TOKENS, .merge_first = first, .merge_rows = rows};
    struct code code;
    code_init(&code);
    code_add(&code, kernel_role_merge, (int64_t[]){width, from, to}, 3, 1);
    CU_ASSERT_FATAL(code_generate(&code, level));
    run_units(&code, 0, &(struct moe_kargs){.p = {&bins, y}}, TOKENS, 3);
    void *expected = block(8);
    for (int t = 0; t < TOKENS; t++)
        for (int64_t c = 0; c < width; c++) {
            float sum = 0;
            for (int64_t r = first[t]; r < first[t + 1]; r++)
                sum += (float)get_number(rows[r], c, from);
            put_number(expected, 0, to, sum);
            const uint8_t *got = y + (t * width + c) * number_bytes(to);
            CU_ASSERT(memcmp(got, expected, (size_t)number_bytes(to)) == 0);
        }
    for (int64_t i = TOKENS * width * number_bytes(to); i < TOKENS * width * 4; i++)
        CU_ASSERT(y[i] == 0xff);
    free(expected);
    free(replies);
    free(y);
    code_free(&code);
}

static void test_merge(void)
{
    for (unsigned level = 0; level < LEVELS; level++)
        for (unsigned i = 0; i < 9 && level_runs_here(level_names[level]); i++) {
            check_merge(72, float_types[i / 3], float_types[i % 3], level_names[level]);
            check_merge(128, float_types[i / 3], float_types[i % 3], level_names[level]);
        }
}

static void test_add(void)
{
    enum { WIDTH = 72, TOKENS = 5 };
    for (unsigned level = 0; level < LEVELS; level++) {
        if (!level_runs_here(level_names[level]))
            continue;
        float *a = block(WIDTH * TOKENS * 4), *b = block(WIDTH * TOKENS * 4), *y = block(WIDTH * TOKENS * 4);
        for (int i = 0; i < WIDTH * TOKENS; i++)
            a[i] = (float)i, b[i] = 0.5f;
        struct code code;
        code_init(&code);
        code_add(&code, kernel_role_add, (int64_t[]){WIDTH, dtype_f32, dtype_f32, dtype_f32}, 4, 1);
        CU_ASSERT_FATAL(code_generate(&code, level_names[level]));
        run_units(&code, 0, &(struct moe_kargs){.p = {a, b, y}}, TOKENS, 2);
        for (int i = 0; i < WIDTH * TOKENS; i++)
            CU_ASSERT(y[i] == (float)i + 0.5f);
        free(a);
        free(b);
        free(y);
        code_free(&code);
    }
}

// ---------------------------------------------------------------------------------------------------- the generator

static void test_equal_kernels_share_code(void)
{
    struct code code;
    code_init(&code);
    for (unsigned i = 0; i < 3; i++)
        code_add(&code, kernel_role_copy_rows, (int64_t[]){i < 2 ? 64 : 72, dtype_f32, dtype_f32}, 3, 1);
    ROW(&code.plan, plan_kernel, code_add(&code, kernel_role_bin, (int64_t[]){8}, 1, 1))->builtin = true;
    CU_ASSERT_FATAL(code_generate(&code, NULL));
    CU_ASSERT(ROW(&code.plan, plan_kernel, 0)->code_offset == ROW(&code.plan, plan_kernel, 1)->code_offset);
    CU_ASSERT(ROW(&code.plan, plan_kernel, 0)->code_offset != ROW(&code.plan, plan_kernel, 2)->code_offset);
    code_free(&code);
}

static void test_layouts(void)
{
    struct plan_param router = {.declared = dtype_bf16, .dtype = dtype_f32, .rows = 60, .cols = 72};
    CU_ASSERT(cpu_choose_layout("bf16", &router));
    CU_ASSERT(router.dtype == dtype_f32 && router.panel == 32 && router.group == 1 && router.bytes == 2 * 32 * 72 * 4);
    struct plan_param shared = {.declared = dtype_bf16, .dtype = dtype_bf16, .rows = 72, .cols = 40};
    for (int again = 0; again < 2; again++) {
        CU_ASSERT(cpu_choose_layout("bf16", &shared));
        CU_ASSERT(shared.dtype == dtype_bf16 && shared.group == 2 && shared.bytes == 3 * 32 * 40 * 2);
    }
    struct plan_param fp8 = {.per_expert = true, .declared = dtype_fp8_e4m3, .rows = 72, .cols = 40};
    CU_ASSERT(!cpu_choose_layout("bf16", &fp8));
    CU_ASSERT(!cpu_choose_layout("v9", &router));
}

static void test_refusals(void)
{
    struct code code;
    code_init(&code);
    CU_ASSERT(!code_generate(&code, "v9"));
    CU_ASSERT(code.context.error_count == 1);
    code_add(&code, kernel_role_copy_rows, (int64_t[]){8, dtype_mxfp4, dtype_f32}, 3, 1);
    CU_ASSERT(!cpu_has_kernel(ROW(&code.plan, plan_kernel, 0)));
    CU_ASSERT(!code_generate(&code, "v3"));
    CU_ASSERT(code.image == NULL);
    CU_ASSERT(cpu_level_name("v9") == NULL);
    CU_ASSERT_STRING_EQUAL(cpu_level_name("amx"), "amx");
    code_free(&code);
}

static void test_print(void)
{
    struct code code;
    code_init(&code);
    code_add(&code, kernel_role_merge, (int64_t[]){64, dtype_f32, dtype_bf16}, 3, 1);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    CU_ASSERT(codegen_cpu_print(&code.context, &code.plan, "v3", out));
    fclose(out);
    CU_ASSERT(strstr(text, "define void @merge_0(") != NULL);
    free(text);
    code_free(&code);
}

void suite_codegen(void)
{
    CU_pSuite suite = CU_add_suite("codegen", NULL, NULL);
    CU_add_test(suite, "experts match the float64 reference", test_experts_match_reference);
    CU_add_test(suite, "forms of experts", test_expert_forms);
    CU_add_test(suite, "a row is the same alone and in company", test_row_is_the_same_alone);
    CU_add_test(suite, "units in pieces, code moved: the same bytes", test_pieces_and_addresses);
    CU_add_test(suite, "rows of A by number: the same bytes", test_rows_by_number);
    CU_add_test(suite, "NaN stays in its row", test_nan_stays_in_its_row);
    CU_add_test(suite, "route matches the float64 reference", test_route_matches_reference);
    CU_add_test(suite, "route: ties and NaN rows", test_route_ties_and_nan);
    CU_add_test(suite, "route: a NaN score ranks last", test_route_nan_ranks_last);
    CU_add_test(suite, "copy_rows converts and keeps to its rows", test_copy_rows);
    CU_add_test(suite, "merge sums replies in order", test_merge);
    CU_add_test(suite, "add", test_add);
    CU_add_test(suite, "equal kernels share code", test_equal_kernels_share_code);
    CU_add_test(suite, "weight layouts", test_layouts);
    CU_add_test(suite, "what it refuses", test_refusals);
    CU_add_test(suite, "prints its IR", test_print);
}
