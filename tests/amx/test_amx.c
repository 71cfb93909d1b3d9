// CPU level `amx`: products on tiles are the processor's rule number by number, for every number of rows and sizes that no
// tile divides; kernels use tiles and leave none behind; whole layers on several threads, by any schedule, give the same
// bytes; the runtime takes the level where the machine has it, and the peak is measured with it. Where a machine has none,
// tiles are emulated (amx.h).
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/calibrate/probe.h"
#include "compiler/plan/build.h"
#include "runtime/device/machine.h"
#include "runtime/open.h"
#include "tests/amx/amx.h"
#include "tests/codegen/fixture.h"
#include "tests/end_to_end/harness.h"
#include "tests/end_to_end/lab.h"

static bool skipped(void)
{
    static bool said;
    if (amx_runs())
        return false;
    if (!said)
        fprintf(stderr, "\n    skipped: AMX needs AVX-512 with bf16 beside it\n");
    return said = true;
}

// ---------------------------------------------------------------------------------------------- products

enum { MOST_ROWS = 100 };

/// Rows of x[rows][k] times w[columns][k]: one expert's down projection, to which nothing is added.
struct product {
    int64_t k, columns, stride;
    uint16_t *x, *w;
    void *packed;
    struct code code;
};

static uint16_t bf16_of(float value)
{
    uint16_t bits;
    put_number(&bits, 0, dtype_bf16, value);
    return bits;
}

// Of every size: some so small that they or their products are denormal, some that cancel.
static uint16_t draw(struct rng *rng)
{
    static const float sizes[] = {1, 1, 1, 0x1p-10f, 0x1p-66f, 0x1p-126f, 0x1p-130f, 0x1p40f};
    return bf16_of(random_float(rng) * sizes[(int)((random_float(rng) + 1) * 3.99f)]);
}

static void product_init(struct product *p, int64_t k, int64_t columns)
{
    struct rng rng = {(uint64_t)(k * 100 + columns)};
    struct plan_param weights = {.per_expert = true, .declared = dtype_bf16, .rows = columns, .cols = k};
    CU_ASSERT_FATAL(level_choose_layout("amx", &weights));
    *p = (struct product){.k = k, .columns = columns, .stride = k * 2 + 64};
    p->x = block(MOST_ROWS * p->stride);
    p->w = block(columns * k * 2);
    memset(p->x, 0xff, (size_t)(MOST_ROWS * p->stride)); // NaN beside and behind the rows
    for (int64_t i = 0; i < MOST_ROWS * k; i++)
        p->x[i / k * p->stride / 2 + i % k] = draw(&rng);
    for (int64_t i = 0; i < columns * k; i++)
        p->w[i] = draw(&rng);
    p->packed = pack(&weights, p->w, 1);
    code_init(&p->code);
    int64_t acc = (columns + 31) / 32 * 128;
    int64_t n[] = {k, columns, dtype_bf16, dtype_f32, p->stride, acc, 1, 0};
    code_add(&p->code, kernel_role_mlp_down, n, 8, 1);
    CU_ASSERT_FATAL(code_generate(&p->code, "amx"));
}

static void product_free(struct product *p)
{
    free(p->x), free(p->w), free(p->packed);
    code_free(&p->code);
}

static void product_run(const struct product *p, int64_t rows, float *y)
{
    int64_t first[2] = {0, rows};
    int32_t row[MOST_ROWS];
    float weight[MOST_ROWS];
    void *dst[MOST_ROWS];
    for (int64_t i = 0; i < rows; i++) {
        row[i] = (int32_t)i;
        weight[i] = NAN; // not used: in the hidden activations already
        dst[i] = y + i * p->columns;
    }
    struct moe_pairs_head pairs = {.experts = 1, .expert_first = first, .pair_row = row, .pair_weight = weight,
                                   .rows = rows, .row_dst = dst};
    float *acc = block(MOST_ROWS * (p->columns + 31) * 4);
    struct moe_kargs args = {.p = {&pairs, p->x, p->packed, acc}};
    code_run(&p->code, 0, &args, 0, ROW(&p->code.plan, plan_kernel, 0)->unit_count);
    free(acc);
}

/// y[rows][columns] by the rule: 32 k after the other, 16 columns at a time.
static void product_by_rule(const struct product *p, int64_t rows, float *y)
{
    for (int64_t first = 0; first < p->columns; first += 16) {
        int64_t columns = p->columns - first < 16 ? p->columns - first : 16;
        float sums[MOST_ROWS * 16] = {0};
        for (int64_t k = 0; k < p->k; k += 32) {
            int pairs = (int)(p->k - k < 32 ? p->k - k : 32) / 2;
            uint16_t a[MOST_ROWS * 32], b[16 * 16 * 2] = {0};
            for (int64_t r = 0; r < rows; r++)
                memcpy(a + r * pairs * 2, p->x + r * p->stride / 2 + k, (size_t)pairs * 4);
            for (int pair = 0; pair < pairs; pair++)
                for (int64_t c = 0; c < columns; c++)
                    memcpy(b + (pair * 16 + c) * 2, p->w + (first + c) * p->k + k + pair * 2, 4);
            amx_product_rule(sums, a, b, (int)rows, pairs);
        }
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++)
                y[r * p->columns + first + c] = 0 + sums[r * 16 + c]; // the accumulator's zero has no sign
    }
}

static void test_products_by_rule(void)
{
    static const int64_t sizes[][2] = {{8, 8}, {24, 40}, {32, 32}, {40, 72}, {64, 64}, {72, 24}, {96, 136}, {248, 40}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes && !skipped(); s++) {
        struct product p;
        product_init(&p, sizes[s][0], sizes[s][1]);
        size_t bytes = (size_t)(MOST_ROWS * p.columns) * 4;
        float *got = malloc(bytes), *expected = malloc(bytes);
        product_by_rule(&p, MOST_ROWS, expected);
        int64_t wrong = 0, extreme = 0;
        for (int64_t rows = 1; rows <= MOST_ROWS; rows += rows < 40 ? 1 : 12) {
            memset(got, 0xff, bytes);
            product_run(&p, rows, got);
            for (int64_t i = 0; i < rows * p.columns; i++) {
                wrong += memcmp(got + i, expected + i, 4) != 0;
                extreme += got[i] == 0 || fabsf(got[i]) > 0x1p30f;
            }
            CU_ASSERT(memcmp(got + rows * p.columns, &(uint32_t){0xffffffff}, 4 * (rows < MOST_ROWS)) == 0);
        }
        CU_ASSERT_EQUAL(wrong, 0);
        CU_ASSERT(extreme > 0);
        free(got), free(expected);
        product_free(&p);
    }
}

static void test_tiles_are_used_and_released(void)
{
    struct product p;
    if (skipped() || !amx_emulated()) // elsewhere nothing counts
        return;
    product_init(&p, 64, 64);
    float y[MOST_ROWS * 64];
    static const int64_t rows[] = {1, 16, 17, 33, 48, 97}, row_tiles[] = {1, 1, 2, 3, 3, 7};
    for (int i = 0; i < 6; i++) {
        struct amx_counts before = amx_counts();
        product_run(&p, rows[i], y);
        struct amx_counts after = amx_counts();
        CU_ASSERT_EQUAL(after.products - before.products, (uint64_t)row_tiles[i] * 4 * 2); // tiles of columns, steps of k
        CU_ASSERT_EQUAL(after.stores - before.stores, (uint64_t)row_tiles[i] * 4);
        CU_ASSERT_EQUAL(after.configurations - before.configurations, 1);
        CU_ASSERT_FALSE(after.configured);
    }
    product_free(&p);
}

// ---------------------------------------------------------------------------------------------- layers

static const struct shape layer_shape = {.hidden = 72, .ffn = 40, .experts = 8, .choices = 3, .bound = 64, .dtype = "bf16",
                                         .normalize = true};

static struct outcome run_layer(const char *level, const char *schedule, uint32_t threads)
{
    static float in[4 * 64 * 72];
    static const int64_t tokens[4] = {64, 3, 0, 41};
    gaussian(in, sizeof in / sizeof *in, 3);
    struct routed_layer layer = {.shape = &layer_shape, .repeat = 2};
    moe_plan *plan = subject_compile(&(struct subject){
        .text = routed_layer_text(&layer), .schedule = schedule, .ranks = 4, .layer = -1, .cpu_level = level});
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    struct run run = {.in = in, .tokens = tokens, .options = {.threads = threads, .seed = 5, .poison = 1}, .steps = 2};
    struct outcome o = run_plan_once(plan, &run);
    moe_plan_close(plan);
    return o;
}

static void test_schedules_and_threads(void)
{
    if (skipped())
        return;
    amx_pretend(true);
    uint64_t before = amx_all_products();
    struct outcome first = run_layer("amx", "serial", 1);
    CU_ASSERT(first.status == MOE_OK && (!amx_emulated() || amx_all_products() > before));
    for (uint32_t threads = 1; threads <= 4; threads *= 2) {
        static const char *const schedules[] = {"serial", "ladder(n: 3)", "ladder(n: 8)"};
        for (int i = 0; i < 3; i++) {
            struct outcome other = run_layer("amx", schedules[i], threads);
            CU_ASSERT(outcome_equal(&first, &other));
            outcome_free(&other);
        }
    }
    amx_pretend(false);
    struct outcome dots = run_layer("bf16", "serial", 2);
    CU_ASSERT_EQUAL_FATAL(dots.status, MOE_OK);
    CU_ASSERT(relative_l2(first.out, dots.out, (size_t)(first.tokens * first.width)) < 5e-3);
    outcome_free(&first);
    outcome_free(&dots);
}

// ---------------------------------------------------------------------------------------------- the choice

static const char *level_taken(const char *path)
{
    static char text[16];
    moe_plan *plan = NULL;
    moe_plan_info info;
    CU_ASSERT_FATAL(moe_plan_open(path, &plan) == MOE_OK);
    moe_plan_describe(plan, &info);
    snprintf(text, sizeof text, "%s", info.cpu_level);
    moe_plan_close(plan);
    return text;
}

static void test_choice_at_start(void)
{
    struct carried_plan plans[16];
    struct context context;
    struct routed_layer layer = {.shape = &layer_shape};
    size_t count = 0, tiles = 0;
    context_init(&context);
    for (const char *const *level = cpu_levels_of_build(); *level; level++, count++) {
        struct subject subject = {.text = routed_layer_text(&layer), .ranks = 2, .layer = -1, .cpu_level = *level};
        plans[count].cpu_level = *level;
        plans[count].image = subject_image(&subject, &plans[count].bytes);
        tiles += !strcmp(*level, "amx");
    }
    const char *path = lab_file("levels");
    CU_ASSERT_FATAL(write_executable(&context, "\177ELF", 5, plans, count, path));
    if (!skipped()) {
        CU_ASSERT_EQUAL(tiles, 1);
        amx_pretend(true);
        CU_ASSERT_STRING_EQUAL(level_taken(path), "amx");
        CU_ASSERT_STRING_EQUAL(cpu_level_name(NULL), "amx");
        amx_pretend(false);
    }
    if (!machine_runs("amx")) {
        CU_ASSERT(strcmp(level_taken(path), "amx") != 0);
        CU_ASSERT(strcmp(cpu_level_name(NULL), "amx") != 0);
    }
    for (size_t i = 0; i < count; i++)
        free((void *)(uintptr_t)plans[i].image);
    context_free(&context);
}

static void test_machine_without(void)
{
    if (machine_runs("amx"))
        return;
    struct routed_layer layer = {.shape = &layer_shape};
    moe_plan *plan = subject_compile(
        &(struct subject){.text = routed_layer_text(&layer), .ranks = 2, .layer = -1, .cpu_level = "amx"});
    moe_session *session = NULL;
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    CU_ASSERT_EQUAL(moe_session_create(plan, &(moe_options){.threads = 1}, &session), MOE_UNSUPPORTED);
    CU_ASSERT_PTR_NOT_NULL(strstr(moe_last_error(), "needs CPU level `amx`, which this machine lacks"));
    moe_plan_close(plan);
}

static void test_peak(void)
{
    if (skipped())
        return;
    uint64_t before = amx_all_products();
    CU_ASSERT(probe_bf16_peak(1, 0.001) > 0);
    CU_ASSERT_EQUAL(amx_all_products(), before); // what dot products do
    amx_pretend(true);
    CU_ASSERT(probe_bf16_peak(2, 0.001) > 0);
    amx_pretend(false);
    CU_ASSERT(!amx_emulated() || amx_all_products() > before);
    CU_ASSERT_FALSE(amx_counts().configured);
}

void suite_amx(void);
void suite_amx(void)
{
    CU_pSuite suite = CU_add_suite("amx", NULL, lab_clean_up);
    CU_add_test(suite, "products are the processor's rule, for any number of rows", test_products_by_rule);
    CU_add_test(suite, "tiles are used, and released", test_tiles_are_used_and_released);
    CU_add_test(suite, "schedules and threads: the same bytes", test_schedules_and_threads);
    CU_add_test(suite, "an executable's level is chosen at start", test_choice_at_start);
    CU_add_test(suite, "a machine without tiles is told", test_machine_without);
    CU_add_test(suite, "the peak is that of tiles", test_peak);
}
