// Quantised weights in generated kernels: every level and operand type against a float64 product with the numbers that
// the codes stand for; few rows, whose tiles expand codes themselves, and many, which may share an expanded copy, give a
// row the same bytes.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/weights/pack.h"
#include "tests/amx/amx.h"
#include "tests/codegen/fixture.h"

enum { ROWS = 72, COLS = 160, MOST_TOKENS = 40 };

struct product {
    struct plan_param weights;
    uint8_t *codes, *packed; // codes: [ROWS][COLS] of E4M3, [ROWS][COLS / 2] of MXFP4
    float *scales;           // [ROWS / block_rows][COLS / block_cols], rounded up
    uint8_t *powers;         // the same as bytes, of MXFP4
    int64_t blocks;          // along a row
};

static double e4m3(uint8_t code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    if ((code & 0x7f) == 0x7f)
        value = NAN;
    return code & 0x80 ? -value : value;
}

static double value_at(const struct product *p, int64_t row, int64_t k)
{
    static const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    double scale = (double)p->scales[row / p->weights.block_rows * p->blocks + k / p->weights.block_cols];
    if (p->weights.dtype == dtype_fp8_e4m3)
        return scale * e4m3(p->codes[row * COLS + k]);
    uint8_t code = p->codes[(row * COLS + k) / 2] >> (k % 2 ? 4 : 0) & 15;
    return scale * (code & 8 ? -e2m1[code & 7] : e2m1[code & 7]);
}

static void product_init(struct product *p, const char *level, uint32_t dtype, uint32_t operand, int64_t run)
{
    struct rng rng = {dtype + operand};
    bool fp4 = dtype == dtype_mxfp4;
    p->weights = (struct plan_param){.per_expert = true,
                                     .declared = dtype,
                                     .operand = operand,
                                     .rows = ROWS,
                                     .cols = COLS,
                                     .block_rows = fp4 ? 1 : 64,
                                     .block_cols = fp4 ? 32 : 128,
                                     .scale_run = run};
    CU_ASSERT_FATAL(level_choose_layout(level, &p->weights));
    p->blocks = (COLS + p->weights.block_cols - 1) / p->weights.block_cols;
    p->codes = block(ROWS * COLS);
    p->scales = block(ROWS * p->blocks * 4);
    p->powers = block(ROWS * p->blocks);
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        p->codes[i] = (uint8_t)((random_float(&rng) + 1) * 127.99f);
        if (!fp4 && (p->codes[i] & 0x7f) == 0x7f)
            p->codes[i]--;
    }
    for (int64_t i = 0; i < ROWS * p->blocks; i++) {
        p->powers[i] = (uint8_t)(120 + (int)(random_float(&rng) * 6));
        p->scales[i] = fp4 ? ldexpf(1.0f, p->powers[i] - 127) : 0.01f + fabsf(random_float(&rng)) / 64;
    }
    p->packed = block(p->weights.bytes);
}

static void product_pack(struct product *p)
{
    bool fp4 = p->weights.dtype == dtype_mxfp4;
    struct pack_source source = {.data = p->codes,
                                 .dtype = fp4 ? "U8" : "F8_E4M3",
                                 .rows = ROWS,
                                 .scales = fp4 ? (const void *)p->powers : p->scales,
                                 .scale_dtype = fp4 ? "F8_E8M0" : "F32",
                                 .scale_row_step = p->blocks,
                                 .scale_col_step = 1};
    CU_ASSERT_EQUAL_FATAL(pack_bytes(&p->weights), p->weights.bytes);
    void *scratch = block((int64_t)pack_scratch_bytes(&p->weights));
    pack_block(&p->weights, &source, 1, scratch, p->packed);
    free(scratch);
}

static void product_free(struct product *p)
{
    free(p->codes);
    free(p->packed);
    free(p->scales);
    free(p->powers);
}

/// y[tokens][ROWS] = x . W, by mlp_down with one expert and weights of 1.
static void run_down(const struct code *code, const struct product *p, const uint8_t *x, int64_t tokens, float *y)
{
    int64_t first[2] = {0, tokens};
    int32_t rows[MOST_TOKENS];
    float ones[MOST_TOKENS];
    void *dst[MOST_TOKENS];
    for (int64_t t = 0; t < tokens; t++) {
        rows[t] = (int32_t)t;
        ones[t] = 1;
        dst[t] = y + t * ROWS;
    }
    struct moe_pairs_head pairs = {.experts = 1, .expert_first = first, .pair_row = rows, .pair_weight = ones,
                                   .rows = tokens, .row_dst = dst};
    float *acc = block(MOST_TOKENS * 128 * 4);
    struct moe_kargs args = {.p = {&pairs, (void *)(uintptr_t)x, p->packed, acc}};
    code_run(code, 0, &args, 0, ROW(&code->plan, plan_kernel, 0)->unit_count);
    free(acc);
}

static void check_product(const char *level, uint32_t dtype, uint32_t operand, int64_t run)
{
    struct product p;
    struct code code;
    struct rng rng = {5};
    product_init(&p, level, dtype, operand, run);
    product_pack(&p);
    int64_t x_stride = COLS * number_bytes(operand);
    uint8_t *x = block(MOST_TOKENS * x_stride);
    for (int64_t i = 0; i < MOST_TOKENS * COLS; i++)
        put_number(x, i, operand, random_float(&rng));
    code_init(&code);
    int64_t n[] = {COLS, ROWS, operand, dtype_f32, x_stride, 128 * 4, 0, 0, dtype, p.weights.block_cols, p.weights.scales};
    code_add(&code, kernel_role_mlp_down, n, 11, 1);
    CU_ASSERT_FATAL(code_generate(&code, level));
    float *all = block(MOST_TOKENS * ROWS * 4), *some = block(MOST_TOKENS * ROWS * 4);
    double *expected = calloc(MOST_TOKENS * ROWS, sizeof *expected), *got = calloc(MOST_TOKENS * ROWS, sizeof *got);
    uint64_t before = amx_all_products();
    run_down(&code, &p, x, MOST_TOKENS, all);
    bool tiles = !strcmp(level, "amx") && operand == dtype_bf16;
    CU_ASSERT(!amx_emulated() || (amx_all_products() > before) == tiles);
    for (int64_t t = 0; t < MOST_TOKENS; t++)
        for (int64_t r = 0; r < ROWS; r++) {
            got[t * ROWS + r] = (double)all[t * ROWS + r];
            for (int64_t k = 0; k < COLS; k++)
                expected[t * ROWS + r] += get_number(x, t * COLS + k, operand) * value_at(&p, r, k);
        }
    double error = relative_error(expected, got, MOST_TOKENS * ROWS);
    if (!(error <= 1e-6))
        fprintf(stderr, "%s %s x %s, scales of %d rows: error %g\n", level, dtype_words[operand], dtype_words[dtype],
                (int)run, error);
    CU_ASSERT(error <= 1e-6);
    for (int64_t tokens = 1; tokens < MOST_TOKENS; tokens += tokens < 16 ? 1 : 5) {
        run_down(&code, &p, x, tokens, some);
        CU_ASSERT(!memcmp(some, all, (size_t)(tokens * ROWS) * sizeof *all));
    }
    free(x), free(all), free(some), free(expected), free(got);
    code_free(&code);
    product_free(&p);
}

static bool on_cuda(const char *level)
{
    return level && !strncmp(level, "cuda:", 5);
}

static void test_products(void)
{
    static const char *const levels[] = {"v2", "v3", "v4", "bf16", "amx", "cuda:sm_80"};
    static const uint32_t operands[] = {dtype_f32, dtype_bf16, dtype_f16};
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++)
        for (size_t o = on_cuda(levels[l]); o < 3 && level_runs_here(levels[l]); o++) { // no f32 on tensor cores
            check_product(levels[l], dtype_fp8_e4m3, operands[o], 16);
            check_product(levels[l], dtype_fp8_e4m3, operands[o], 1);
            check_product(levels[l], dtype_mxfp4, operands[o], 1);
        }
}

/// Every code, NaN among them, reaches its own output alone and exactly; so do scales at their limits.
static void test_codes_are_exact(void)
{
    static const struct {
        const char *level; // NULL: this machine's best
        bool fp4;
        uint32_t operand;
    } cases[] = {{NULL, false, dtype_f32},         {NULL, false, dtype_bf16}, {NULL, true, dtype_f32}, {NULL, true, dtype_bf16},
                 {"amx", false, dtype_bf16},        {"amx", true, dtype_bf16},
                 {"cuda:sm_80", false, dtype_bf16}, {"cuda:sm_80", false, dtype_f16}, {"cuda:sm_80", true, dtype_bf16}};
    for (size_t o = 0; o < sizeof cases / sizeof *cases; o++) {
        bool fp4 = cases[o].fp4;
        const char *level = cases[o].level;
        uint32_t operand = cases[o].operand;
        struct product p;
        struct code code;
        if (level && !level_runs_here(level))
            continue;
        product_init(&p, level, fp4 ? dtype_mxfp4 : dtype_fp8_e4m3, operand, 1);
        for (int i = 0; i < ROWS * (fp4 ? COLS / 2 : COLS); i++)
            p.codes[i] = (uint8_t)(fp4 ? i % COLS * 2 % 16 | (i % COLS * 2 + 1) % 16 << 4 : i % 256 - (i % 128 == 127 && i / COLS % 4));
        if (fp4) {
            p.powers[0] = 0;
            p.powers[5] = 254; // of row 1
            p.scales[0] = 0x1p-127f;
            p.scales[5] = 0x1p127f;
            p.powers[10] = 255; // of row 2
            p.scales[10] = NAN;
        }
        product_pack(&p);
        uint8_t *x = block(MOST_TOKENS * COLS * 4);
        float y[MOST_TOKENS * ROWS];
        int64_t size = number_bytes(operand);
        for (int64_t t = 0; t < MOST_TOKENS; t++) // token t picks column 4 t
            put_number(x, t * COLS + t * 4, operand, 1);
        code_init(&code);
        int64_t n[] = {COLS, ROWS, operand, dtype_f32, COLS * size, 128 * 4, 0, 0, p.weights.dtype, p.weights.block_cols,
                       p.weights.scales};
        code_add(&code, kernel_role_mlp_down, n, 11, 1);
        CU_ASSERT_FATAL(code_generate(&code, level));
        run_down(&code, &p, x, MOST_TOKENS, y);
        int wrong = 0, nans = 0;
        for (int64_t r = 0; r < ROWS; r++) {
            bool poisoned = false; // 0 * NaN is NaN: the row's whole sum
            for (int64_t k = 0; k < COLS; k++)
                poisoned |= isnan(value_at(&p, r, k));
            nans += poisoned;
            for (int64_t t = 0; t < MOST_TOKENS; t++)
                wrong += poisoned ? !isnan(y[t * ROWS + r]) : y[t * ROWS + r] != (float)value_at(&p, r, t * 4);
        }
        CU_ASSERT_EQUAL(wrong, 0);
        CU_ASSERT(fp4 ? nans == 1 : nans > 0 && nans < ROWS);
        free(x);
        code_free(&code);
        product_free(&p);
    }
}

void suite_codes(void);
void suite_codes(void)
{
    CU_pSuite suite = CU_add_suite("codes", NULL, NULL);
    CU_add_test(suite, "products with codes match the float64 reference, few rows like many", test_products);
    CU_add_test(suite, "every code and scale is exact", test_codes_are_exact);
}
