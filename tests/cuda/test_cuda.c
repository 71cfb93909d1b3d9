// The CUDA kernels, run by the CPU with every access checked: experts against a float64 reference at the edges of their
// tiles, and the same bytes alone, in company and for any number of blocks; kernels of rows against the native ones, byte by
// byte; whole pipelines over four ranks against the models' own implementation.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/codegen/fixture.h"
#include "tests/cuda/experts.h"
#include "tests/end_to_end/harness.h"

static const char *chip = "cuda:sm_80"; // or the GPU's there is
// One by one of each way to multiply: by warps, and by warpgroups from boxes.
static const char *const product_chips[] = {"cuda:sm_80", "cuda:sm_90a"};
enum { PRODUCT_CHIPS = sizeof product_chips / sizeof *product_chips };

void no_reports(const char *what)
{
    char reports[8192];
    int found = host_reports(reports, sizeof reports);
    if (found)
        fprintf(stderr, "%s: %d reports\n%s", what, found, reports);
    CU_ASSERT_EQUAL(found, 0);
}

// --------------------------------------------------------------------------------------------------------- experts

enum { COPY, UP, DOWN };

static bool layer_code(struct code *code, const struct layer *l, const struct expert_case *c, const char *level,
                       int blocks)
{
    code->host = (struct host_options){.checked = true, .seed = (uint64_t)blocks * 7 + 1, .most_blocks = blocks};
    int64_t copy[LAYER_COPY], up[LAYER_MLP], down[LAYER_MLP];
    layer_copy(l, copy);
    layer_up(l, c->activation, up);
    layer_down(l, down);
    code_add(code, kernel_role_copy_rows, copy, LAYER_COPY, 1);
    uint32_t row = code_add(code, kernel_role_mlp_up, up, LAYER_MLP, 1);
    ROW(&code->plan, plan_kernel, row)->alpha = LAYER_ALPHA;
    ROW(&code->plan, plan_kernel, row)->limit = LAYER_LIMIT;
    code_add(code, kernel_role_mlp_down, down, LAYER_MLP, 1);
    return code_generate(code, level);
}

/// Every buffer that a kernel writes begins as NaN.
static void poison(struct layer *l)
{
    memset(l->a, 0xff, (size_t)(l->pair_count * l->a_stride));
    memset(l->hidden, 0xff, (size_t)(l->pair_count * l->hidden_stride));
    memset(l->acc, 0xff, (size_t)(l->rows * l->acc_stride));
}

static void run_pieces(const struct code *code, uint32_t kernel, struct moe_kargs args, int64_t units, int64_t piece)
{
    for (int64_t first = 0; first < units; first += piece)
        code_run(code, kernel, &args, first, first + piece < units ? first + piece : units);
}

static void layer_run(const struct code *code, struct layer *l, int64_t piece)
{
    poison(l);
    int64_t panels = ROW(&code->plan, plan_kernel, UP)->unit_count, columns = ROW(&code->plan, plan_kernel, DOWN)->unit_count;
    run_pieces(code, COPY, (struct moe_kargs){.p = {&l->pairs}}, l->pair_count, piece);
    run_pieces(code, UP, (struct moe_kargs){.p = {&l->pairs, l->a, l->packed_up, l->hidden, l->packed_b_up}},
               l->rows ? panels * l->experts : 0, piece);
    run_pieces(code, DOWN, (struct moe_kargs){.p = {&l->pairs, l->hidden, l->packed_down, l->acc, l->packed_b_down}},
               l->rows ? columns : 0, piece);
}

static bool guards_intact(const struct layer *l)
{
    for (int64_t r = 0; r < l->rows; r++)
        for (int64_t i = l->h * number_bytes(l->result); i < l->y_stride; i++)
            if (((const uint8_t *)l->row_dst[r])[i] != 0x5a)
                return false;
    return true;
}

/// Leaves the layer one row.
static void keep_row(struct layer *l, int64_t row)
{
    int64_t kept = 0;
    for (int64_t e = 0, pair = 0; e < l->experts; e++) {
        const int64_t end = l->expert_first[e + 1];
        l->expert_first[e] = kept;
        for (; pair < end; pair++) {
            if (l->pair_row[pair] != row)
                continue;
            l->pair_row[kept] = 0;
            l->pair_weight[kept] = l->pair_weight[pair];
            l->sources[kept] = l->sources[pair];
            l->targets[kept] = (uint8_t *)l->a + kept * l->a_stride;
            kept++;
        }
    }
    l->expert_first[l->experts] = l->pair_count = l->pairs.tables[0].rows = kept;
    l->rows = l->pairs.rows = 1;
}

/// A row alone, whose tile is narrow where there are such, has the bytes that it has in company.
static void check_alone(const struct code *code, struct layer *l, const struct layer *company)
{
    const int64_t row = company->rows - 1;
    if (row < 1)
        return;
    keep_row(l, row);
    layer_run(code, l, 1000000);
    CU_ASSERT(!memcmp(l->row_dst[0], company->row_dst[row], (size_t)(l->h * number_bytes(l->result))));
}

void check_experts(const struct expert_case *c, const char *level)
{
    struct layer l, again;
    struct code one, many;
    layer_init_form(&l, &c->shape, c->form, level, 7);
    layer_init_form(&again, &c->shape, c->form, level, 7);
    code_init(&one);
    code_init(&many);
    CU_ASSERT_FATAL(layer_code(&one, &l, c, level, 1));
    layer_run(&one, &l, 1000000);
    CU_ASSERT_FATAL(layer_code(&many, &again, c, level, 6));
    layer_run(&many, &again, 3);
    double *expected = layer_reference(&l, c->activation), *got = calloc((size_t)(l.rows * l.h) + 1, sizeof *got);
    for (int64_t r = 0; r < l.rows; r++) {
        CU_ASSERT(!memcmp(l.row_dst[r], again.row_dst[r], (size_t)(l.h * number_bytes(l.result))));
        for (int64_t i = 0; i < l.h; i++)
            got[r * l.h + i] = get_number(l.row_dst[r], i, l.result);
    }
    double error = relative_error(expected, got, l.rows * l.h), bound = l.dtype == dtype_f32 ? 1e-6 : 5e-3;
    if (!(error <= bound))
        fprintf(stderr, "%s, h %d f %d rows %d form %u: error %g\n", level, (int)l.h, (int)l.f, (int)l.rows, c->form, error);
    CU_ASSERT(error <= bound);
    CU_ASSERT(guards_intact(&l) && guards_intact(&again));
    check_alone(&many, &again, &l);
    no_reports(level);
    free(expected);
    free(got);
    code_free(&one);
    code_free(&many);
    layer_free(&l);
    layer_free(&again);
}

// Sizes around tiles of 64 pairs, 64 features and columns, slices of 64; experts without a pair; one pair; codes whose blocks
// of 48 columns straddle the slices, and end partial.
static void test_experts(void)
{
    static const struct expert_case cases[] = {
        {{72, 40, 3, 45, 2, dtype_bf16, dtype_f32}, 0, activation_silu},
        {{64, 64, 1, 64, 1, dtype_bf16, dtype_bf16}, 0, activation_silu},
        {{128, 72, 2, 65, 1, dtype_bf16, dtype_bf16}, 0, activation_gelu},
        {{200, 136, 8, 130, 3, dtype_bf16, dtype_bf16}, LAYER_BIASED, activation_clamped_silu},
        {{8, 8, 1, 1, 1, dtype_bf16, dtype_bf16}, 0, activation_relu},
        {{72, 40, 2, 0, 1, dtype_bf16, dtype_f32}, 0, activation_silu},
        {{56, 104, 5, 70, 2, dtype_bf16, dtype_f32}, LAYER_PLAIN, activation_gelu_tanh},
        {{264, 200, 4, 9, 2, dtype_bf16, dtype_bf16}, LAYER_PLAIN | LAYER_BIASED, activation_relu},
        {{72, 136, 3, 67, 2, dtype_f16, dtype_f16}, LAYER_WEIGHTED | LAYER_BIASED, activation_silu},
        {{200, 72, 5, 66, 2, dtype_bf16, dtype_f32}, LAYER_E4M3, activation_silu},
        {{136, 200, 2, 1, 1, dtype_f16, dtype_f32}, LAYER_PLAIN | LAYER_BIASED | LAYER_E4M3, activation_gelu_tanh},
        {{160, 96, 4, 70, 2, dtype_bf16, dtype_bf16}, LAYER_BIASED | LAYER_MXFP4, activation_clamped_silu},
        {{392, 168, 2, 140, 1, dtype_bf16, dtype_bf16}, LAYER_E4M3 | LAYER_WEIGHTED, activation_silu},
        {{104, 40, 3, 67, 2, dtype_f32, dtype_f32}, LAYER_BIASED, activation_silu},
        {{40, 136, 2, 65, 1, dtype_f32, dtype_f32}, LAYER_PLAIN | LAYER_WEIGHTED, activation_gelu},
        {{136, 72, 3, 66, 2, dtype_f32, dtype_f32}, LAYER_E4M3, activation_silu},
        {{96, 64, 2, 9, 1, dtype_f32, dtype_f32}, LAYER_PLAIN | LAYER_MXFP4, activation_relu},
        {{64, 72, 2, 5, 1, dtype_bf16, dtype_bf16}, LAYER_PLAIN, activation_squared_relu},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases && level_runs_here(chip); i++)
        for (int level = 0; level < (gpu_wanted() || cases[i].shape.dtype == dtype_f32 ? 1 : PRODUCT_CHIPS); level++)
            check_experts(&cases[i], gpu_level(product_chips[level]));
}

// ------------------------------------------------------------------------------------------------------- few rows

/// Gives expert e the first rows[e] rows.
static void give_rows(struct layer *l, const int64_t *rows)
{
    struct rng rng = {3};
    int64_t pair = 0;
    for (int64_t e = 0; e < l->experts; e++) {
        l->expert_first[e] = pair;
        for (int64_t r = 0; r < rows[e]; r++, pair++) {
            l->pair_row[pair] = (int32_t)r;
            l->pair_weight[pair] = random_float(&rng);
            l->sources[pair] = (const uint8_t *)l->x + r * l->h * number_bytes(l->dtype);
            l->targets[pair] = (uint8_t *)l->a + pair * l->a_stride;
        }
    }
    l->expert_first[l->experts] = l->pair_count = l->pairs.tables[0].rows = pair;
}

/// Experts of few rows, and one of a row more than that, against float64; and the same bytes, hidden ones too, as by kernels
/// that multiply few rows as they do many: which way it is depends on a token's company.
static void check_few(const struct expert_case *c, const char *level)
{
    static const int64_t rows[] = {1, 7, 0, 9, 31, 32, 33, 8, 17};
    const struct layer_shape shape = {c->shape.h, c->shape.f, 9, 33, 8, c->shape.dtype, c->shape.result};
    struct layer l[2];
    struct code code[2];
    for (int i = 0; i < 2; i++) {
        layer_init_form(&l[i], &shape, c->form, level, 7);
        give_rows(&l[i], rows);
        code_init(&code[i]);
        code[i].rows_left = i == 1;
        CU_ASSERT_FATAL(layer_code(&code[i], &l[i], c, level, 5));
        layer_run(&code[i], &l[i], 1000000);
    }
    double *expected = layer_reference(&l[0], c->activation), *got = calloc((size_t)(33 * l->h), sizeof *got);
    for (int64_t i = 0; i < 33 * l->h; i++)
        got[i] = get_number(l->row_dst[i / l->h], i % l->h, l->result);
    double error = relative_error(expected, got, 33 * l->h);
    if (!(error <= 5e-3))
        fprintf(stderr, "%s, few rows, form %u: error %g\n", level, c->form, error);
    CU_ASSERT(error <= 5e-3);
    CU_ASSERT(!memcmp(l[0].y, l[1].y, (size_t)(33 * l->y_stride)));
    CU_ASSERT(!memcmp(l[0].hidden, l[1].hidden, (size_t)(l->pair_count * l->hidden_stride)));
    no_reports(level);
    free(expected);
    free(got);
    for (int i = 0; i < 2; i++) {
        code_free(&code[i]);
        layer_free(&l[i]);
    }
}

// Partial features, columns and slices; steps of four slices of mlp_down that end with one, two, three and none.
static void test_few(void)
{
    static const struct expert_case cases[] = {
        {{72, 328, 0, 0, 0, dtype_bf16, dtype_f32}, LAYER_BIASED, activation_clamped_silu},
        {{136, 40, 0, 0, 0, dtype_f16, dtype_f16}, LAYER_PLAIN, activation_gelu},
        {{264, 640, 0, 0, 0, dtype_bf16, dtype_bf16}, LAYER_FP8, activation_silu},
        {{136, 320, 0, 0, 0, dtype_bf16, dtype_f32}, LAYER_FP8_POWERS | LAYER_PLAIN | LAYER_BIASED, activation_relu},
        {{200, 72, 0, 0, 0, dtype_bf16, dtype_f32}, LAYER_E4M3 | LAYER_BIASED, activation_silu},
        {{96, 64, 0, 0, 0, dtype_bf16, dtype_f32}, LAYER_MXFP4 | LAYER_PLAIN, activation_gelu},
    };
    const char *level = gpu_level("cuda:sm_90a");
    for (size_t i = 0; i < sizeof cases / sizeof *cases && level_runs_here(chip); i++)
        check_few(&cases[i], level);
}

// ------------------------------------------------------------------------------------------- rows, byte by byte

enum { TOKENS = 21, REPLIES = 3, WIDTH_MOST = 264 };

/// Inputs and outputs of any kernel of rows: token t has t % REPLIES + 1 replies.
struct row_data {
    uint8_t *a, *b, *result;
    float *vector;
    const void *rows[TOKENS * REPLIES];
    void *targets[TOKENS];
    int64_t first[TOKENS + 1];
    struct moe_bins_head bins;
    struct moe_sums_head sums;
    struct moe_row_table table;
};

static void fill_rows(struct row_data *d, int64_t width, uint32_t from, uint32_t to)
{
    struct rng rng = {(uint64_t)width * 3 + from};
    *d = (struct row_data){.a = block(TOKENS * REPLIES * width * 4),
                           .b = block(TOKENS * width * 4),
                           .result = block(TOKENS * width * 4),
                           .vector = block(width * 4)};
    for (int64_t i = 0; i < TOKENS * REPLIES * width; i++)
        put_number(d->a, i, from, random_float(&rng));
    for (int64_t i = 0; i < TOKENS * width; i++)
        put_number(d->b, i, from, random_float(&rng));
    for (int64_t i = 0; i < width; i++)
        d->vector[i] = random_float(&rng);
    int64_t count = 0;
    for (int64_t t = 0; t < TOKENS; t++) {
        d->first[t] = count;
        d->targets[t] = d->result + t * width * number_bytes(to);
        for (int64_t i = 0; i <= t % REPLIES; i++)
            d->rows[count++] = d->a + (t * REPLIES + i) * width * number_bytes(from);
    }
    d->first[TOKENS] = count;
    d->bins = (struct moe_bins_head){.tokens = TOKENS, .merge_first = d->first, .merge_rows = d->rows};
    d->table = (struct moe_row_table){TOKENS, d->rows, d->targets};
    d->sums = (struct moe_sums_head){.sums = d->table, .first = d->first, .parts = d->rows};
}

static uint8_t *block_copy(const void *from, int64_t bytes)
{
    return memcpy(block(bytes), from, (size_t)bytes);
}

static void free_rows(struct row_data *d)
{
    free(d->a);
    free(d->b);
    free(d->result);
    free(d->vector);
}

static void run_rows(struct row_data *d, uint32_t role, const int64_t *n, const char *level)
{
    struct code code;
    code_init(&code);
    code.host = (struct host_options){.checked = true, .seed = 3, .most_blocks = 5};
    code_add(&code, (enum kernel_role)role, n, 9, 1);
    CU_ASSERT_FATAL(code_generate(&code, level));
    struct moe_kargs args = {.p = {d->a, d->vector, d->result}}; // shift
    if (role == kernel_role_copy_rows)
        args = (struct moe_kargs){.p = {&d->table}};
    else if (role == kernel_role_merge)
        args = (struct moe_kargs){.p = {&d->bins, d->result, d->b}};
    else if (role == kernel_role_sum_rows)
        args = (struct moe_kargs){.p = {&d->sums}};
    else if (role == kernel_role_add)
        args = (struct moe_kargs){.p = {d->a, d->b, d->result}};
    code_run(&code, 0, &args, 0, TOKENS);
    code_free(&code);
}

static void compare_rows(uint32_t role, const int64_t *n, uint32_t from, uint32_t to)
{
    struct row_data native, emulated;
    fill_rows(&native, n[0], from, to);
    fill_rows(&emulated, n[0], from, to);
    run_rows(&native, role, n, "v3");
    run_rows(&emulated, role, n, chip);
    CU_ASSERT(!memcmp(native.result, emulated.result, (size_t)(TOKENS * n[0] * 4)));
    no_reports(kernel_role_words[role]);
    free_rows(&native);
    free_rows(&emulated);
}

static void test_rows(void)
{
    static const int64_t widths[] = {8, 72, WIDTH_MOST};
    static const uint32_t types[] = {dtype_f32, dtype_bf16};
    static const uint32_t halves[][2] = {{dtype_f16, dtype_f16}, {dtype_f32, dtype_f16}, {dtype_f16, dtype_bf16}};
    for (int pair = 0; pair < 3 && level_runs_here(chip); pair++) {
        compare_rows(kernel_role_copy_rows, (int64_t[9]){72, halves[pair][0], halves[pair][1]}, halves[pair][0], halves[pair][1]);
        compare_rows(kernel_role_merge, (int64_t[9]){72, halves[pair][0], halves[pair][1]}, halves[pair][0], halves[pair][1]);
    }
    for (size_t w = 0; w < sizeof widths / sizeof *widths && level_runs_here(chip); w++)
        for (int pair = 0; pair < 4; pair++) {
            if (w != 1 && (w == 2) != (pair % 2 == 0)) // at the edges of a width every other pair: compiling takes the time
                continue;
            int64_t width = widths[w];
            uint32_t from = types[pair / 2], to = types[pair % 2];
            compare_rows(kernel_role_copy_rows, (int64_t[9]){width, from, to}, from, to);
            compare_rows(kernel_role_merge, (int64_t[9]){width, from, to, 0}, from, to);
            compare_rows(kernel_role_shift, (int64_t[9]){width, from, to}, from, to);
            if (from == dtype_f32)
                compare_rows(kernel_role_merge, (int64_t[9]){width, from, to, 1}, from, to);
            if (from != to)
                continue;
            compare_rows(kernel_role_sum_rows, (int64_t[9]){width, from}, from, to);
            compare_rows(kernel_role_add, (int64_t[9]){width, from, from, from}, from, to);
        }
}

/// bf16: the same bits, but NaN is one number whatever its bits.
static bool same_numbers(const void *a, const void *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double x = get_number(a, i, dtype_bf16), y = get_number(b, i, dtype_bf16);
        if (!(isnan(x) && isnan(y)) && ((const uint16_t *)a)[i] != ((const uint16_t *)b)[i])
            return false;
    }
    return true;
}

/// Packed by both, byte for byte; then unpacked by both; then merged with rows that stayed at home.
static void compare_wire(int64_t width, int64_t block, uint32_t scale, uint32_t type)
{
    struct row_data native, emulated;
    fill_rows(&native, width, type, dtype_bf16);
    fill_rows(&emulated, width, type, dtype_bf16);
    struct row_data *both[] = {&native, &emulated};
    const char *const levels[] = {"v3", chip};
    for (int i = 0; i < 2; i++) {
        put_number(both[i]->a, 3, type, NAN);
        put_number(both[i]->a, width + 1, type, INFINITY);
        put_number(both[i]->a, 2 * width, type, -1e-9f);
        run_rows(both[i], kernel_role_copy_rows, (int64_t[9]){width, type, dtype_fp8_e4m3, block, scale}, levels[i]);
    }
    CU_ASSERT(!memcmp(native.result, emulated.result, (size_t)(TOKENS * width * 4)));
    uint8_t *packed = block_copy(native.result, TOKENS * width * 4);
    for (int i = 0; i < 2; i++) {
        const void *rows[TOKENS];
        for (int64_t t = 0; t < TOKENS; t++)
            rows[t] = packed + t * width * 2;
        both[i]->table.src = rows;
        run_rows(both[i], kernel_role_copy_rows, (int64_t[9]){width, dtype_fp8_e4m3, dtype_bf16, block, scale, 0, dtype_bf16},
                 levels[i]);
    }
    CU_ASSERT(same_numbers(native.result, emulated.result, TOKENS * width));
    for (int i = 0; i < 2; i++) {
        for (int64_t k = 0; k < native.first[TOKENS]; k++)
            if (k % 3)
                both[i]->rows[k] = packed + k % TOKENS * width * 2 + 1; // the first format
        run_rows(both[i], kernel_role_merge,
                 (int64_t[9]){width, type, dtype_bf16, 0, 1, moe_wire_code(dtype_fp8_e4m3, (uint32_t)block, scale)},
                 levels[i]);
    }
    CU_ASSERT(same_numbers(native.result, emulated.result, TOKENS * width));
    no_reports("wire formats");
    free(packed);
    free_rows(&native);
    free_rows(&emulated);
}

static void test_wires(void)
{
    static const int64_t widths[] = {8, 72, 136, 600, 8712};
    for (size_t w = 0; w < sizeof widths / sizeof *widths && level_runs_here(chip); w++)
        for (int form = 0; form < 4; form++)
            compare_wire(widths[w], form % 2 ? 64 : 128, form / 2 ? scale_type_ue8m0 : scale_type_f32,
                         w % 2 ? dtype_bf16 : dtype_f32);
}

// -------------------------------------------------------------------------------------------------- whole pipelines

struct pipeline_run {
    const char *model, *data, *schedule, *target; // data: the checkpoint's name, NULL: the model's
    int64_t layer;
    const char *const *dims;
    uint32_t dim_count;
};

static struct outcome run_model(const struct pipeline_run *r, const float *in, const int64_t *counts, moe_options options)
{
    char moe[96], weights[96];
    snprintf(moe, sizeof moe, "tests/end_to_end/%s.moe", r->model);
    snprintf(weights, sizeof weights, "tests/data/%s", r->data ? r->data : r->model);
    setenv("MOECC_CACHE", "build/cuda-cache", 0);
    struct subject subject = {.path = moe, .layer = r->layer, .ranks = 4, .schedule = r->schedule, .target = r->target};
    moe_plan *plan = subject_compile(&subject);
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    struct run run = {.in = in, .tokens = counts, .weights = weights, .options = options};
    struct outcome o = run_plan_once(plan, &run);
    if (o.status != MOE_OK)
        fprintf(stderr, "%s: %s\n", r->model, o.error);
    CU_ASSERT_EQUAL_FATAL(o.status, MOE_OK);
    moe_plan_close(plan);
    return o;
}

static void compare_model(const char *model, const char *data, int64_t layer, const char *target, double bound)
{
    char input[96], file[96], name[32];
    int64_t rows, width;
    snprintf(input, sizeof input, "tests/data/%s/input.safetensors", data);
    snprintf(file, sizeof file, "tests/data/%s/reference.safetensors", data);
    snprintf(name, sizeof name, "layer%d.hidden_states", (int)layer);
    float *in = read_f32(input, "hidden_states", &rows, &width), *want = read_f32(file, name, &rows, &width);
    int64_t counts[4];
    for (int64_t r = 0; r < 4; r++)
        counts[r] = rows * (r + 1) / 4 - rows * r / 4;
    moe_options options = {.threads = 2, .poison = 1};
    struct pipeline_run cuda = {.model = model, .data = data, .layer = layer, .target = target};
    struct pipeline_run cpu = {.model = model, .data = data, .layer = layer};
    struct outcome o = run_model(&cuda, in, counts, options), native = run_model(&cpu, in, counts, options);
    double error = relative_l2(o.out, want, (size_t)(rows * width)), apart = relative_l2(o.out, native.out, (size_t)(rows * width));
    printf("\n    %s layer %d, %s: relative L2 %.2e, from the CPU backend %.2e", model, (int)layer, target,
           error, apart);
    CU_ASSERT(error <= bound && apart <= bound);
    outcome_free(&o);
    outcome_free(&native);
    free(in);
    free(want);
}

static void test_models(void)
{
    static const struct {
        const char *model, *data, *chip;
        int64_t layer;
    } cases[] = {
        {"olmoe-tiny", NULL, "sm_80", 0},           {"mixtral-tiny", NULL, "sm_80", 0},
        {"qwen2-moe-tiny", NULL, "sm_80", 1},       {"qwen3-moe-tiny", NULL, "sm_80", 0},
        {"deepseek-v3-tiny", NULL, "sm_80", 2},     {"deepseek-v3-fp8-tiny", NULL, "sm_80", 2},
        {"olmoe-tiny", NULL, "sm_90a", 0},          {"deepseek-v3-fp8-tiny", NULL, "sm_90a", 2},
        {"qwen2-moe-tiny-f32", NULL, "sm_80", 1},   {"deepseek-v3-fp8-tiny-f32", "deepseek-v3-fp8-tiny", "sm_80", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases && level_runs_here(chip); i++) {
        char target[32];
        snprintf(target, sizeof target, "cuda:%s,host", cases[i].chip);
        compare_model(cases[i].model, cases[i].data ? cases[i].data : cases[i].model, cases[i].layer, target,
                      strstr(cases[i].model, "-f32") ? 1e-5 : 5e-3);
    }
    printf("\n");
    no_reports("models");
}

// `serial` and ladders, any threads, uneven counts, one token and none: the same bytes; and a token alone.
static void test_schedules_change_no_byte(void)
{
    static const char *const schedules[] = {"serial", "ladder(n: 2)", "ladder(n: 5)"};
    const int64_t counts[4] = {17, 0, 1, 29};
    int64_t rows, width;
    if (!level_runs_here(chip))
        return;
    float *in = read_f32("tests/data/deepseek-v3-tiny/input.safetensors", "hidden_states", &rows, &width);
    struct pipeline_run r = {.model = "deepseek-v3-tiny", .layer = -1, .target = "cuda:sm_80,host", .schedule = "serial"};
    struct outcome first = run_model(&r, in, counts, (moe_options){.threads = 1, .poison = 1});
    for (size_t s = 0; s < sizeof schedules / sizeof *schedules; s++) {
        r.schedule = schedules[s];
        struct outcome o = run_model(&r, in, counts, (moe_options){.threads = 2, .device = s == 1 ? "sim" : "cpu"});
        CU_ASSERT(!memcmp(o.out, first.out, (size_t)(o.tokens * width) * sizeof *o.out));
        outcome_free(&o);
    }
    outcome_free(&first);
    free(in);
    no_reports("schedules");
}

// Rows that find no slot go through rounds, and their bytes stay; also of sums that relays pack.
static void test_overflow(void)
{
    static const char layer[] =
        "import std.ops;\nimport std.hw { host };\nimport std.schedules { serial, ladder, waves };\n"
        "dim tokens <= 40;\ndim hidden = 40;\ndim ffn = 24;\ndim experts = 8;\n"
        "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n"
        "    param w_router: f32[experts, hidden];\n    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n"
        "    param w_down: bf16[experts, hidden, ffn];\n    stage route: r = topk(x, w_router, k: 3);\n"
        "    stage dispatch: xd = dispatch(x, r%s);\n    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n"
        "    stage combine: y = combine(yd, r%s);\n    yield y;\n}\n"
        "format blocks = fp8_e4m3 { block: [1, 64], scale: f32 };\n"
        "cluster four { device = host; axis node[2]; axis rank[2]; link far across node { bandwidth: 1GB/s, latency: 5us };\n"
        "    link shm across rank { bandwidth: 5GB/s, latency: 1us }; }\n"
        "placement p on four { place experts over node, rank; }\n"
        "pipeline main { layer = moe; cluster = four; placement = p; target = cuda(sm_80); use serial; }\n";
    static const char *const dispatches[] = {", capacity: 8x", ", capacity: 0.1x, pool: 0.1x"};
    static const struct {
        const char *schedule, *dispatch, *combine;
    } cases[] = {{"serial", "", ""}, {"waves(g: 2)", "", ""}, {"ladder(n: 2)", ", via: node", ", wire: { node: blocks }"}};
    float in[4 * 40 * 40];
    if (!level_runs_here(chip))
        return;
    gaussian(in, sizeof in / sizeof *in, 3);
    for (size_t s = 0; s < sizeof cases / sizeof *cases; s++) {
        struct outcome o[2];
        for (int d = 0; d < 2; d++) {
            char text[2048], options[64];
            snprintf(options, sizeof options, "%s%s", dispatches[d], cases[s].dispatch);
            snprintf(text, sizeof text, layer, options, cases[s].combine);
            moe_plan *plan = subject_compile(&(struct subject){
                .text = text, .schedule = cases[s].schedule, .layer = -1, .target = "cuda:sm_80,host"});
            CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
            struct run run = {.in = in, .tokens = (int64_t[]){40, 1, 0, 33}, .options = {.threads = 2, .poison = 1}};
            o[d] = run_plan_once(plan, &run);
            CU_ASSERT_EQUAL_FATAL(o[d].status, MOE_OK);
            moe_plan_close(plan);
        }
        CU_ASSERT(o[1].stats.rounds > 0);
        CU_ASSERT(!memcmp(o[0].out, o[1].out, (size_t)(o[0].tokens * 40) * sizeof *o[0].out));
        outcome_free(&o[0]);
        outcome_free(&o[1]);
    }
    no_reports("overflow");
}

void suite_cuda(void);
void suite_cuda(void)
{
    chip = gpu_level(chip);
    CU_pSuite suite = CU_add_suite("cuda", NULL, NULL);
    CU_add_test(suite, "experts match the float64 reference", test_experts);
    CU_add_test(suite, "experts of few rows, both ways", test_few);
    CU_add_test(suite, "kernels of rows give the native ones' bytes", test_rows);
    CU_add_test(suite, "rows in blocks: the native ones' bytes", test_wires);
    if (gpu_wanted()) // the rest needs an executor on the device
        return;
    CU_add_test(suite, "models agree with their reference", test_models);
    CU_add_test(suite, "schedules change no byte", test_schedules_change_no_byte);
    CU_add_test(suite, "overflow rounds change no byte", test_overflow);
}
