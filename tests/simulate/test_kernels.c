// The estimates of CUDA kernels: units, blocks, FLOPs and bytes against sums done by hand, what bounds a launch; the kernels that
// the simulator sees against those that are generated; and a stage's time, which is theirs.
#include <CUnit/CUnit.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/codegen/cuda/estimate.h"
#include "tests/simulate/fixture.h"

/// FP8 blocks of 128 with f32 scales; of 64, powers of two.
#define WIDE_BLOCKS (128 << 16 | scale_type_f32 << 8 | dtype_fp8_e4m3)
#define NARROW_BLOCKS (64 << 16 | scale_type_ue8m0 << 8 | dtype_fp8_e4m3)

static const struct closed_form {
    const char *chip;
    struct plan_kernel kernel;
    struct cuda_load load;
    double blocks, flops, bytes;
} closed_forms[] = {
    // 16 tokens a block; x, weights in f32 once, ids and weights of the chosen
    {"sm_80", {.role = kernel_role_route, .n = {512, 64, 4, 0, 0, dtype_bf16, 1, 1}}, {.rows = 100}, 7, 2.0 * 100 * 512 * 64,
     100 * (1024 + 32) + 512 * 64 * 4},
    // four warps a block, a row each; codes and five scales
    {"sm_80", {.role = kernel_role_copy_rows, .n = {520, dtype_bf16, dtype_fp8_e4m3, 128, scale_type_f32}}, {.rows = 10}, 3, 0,
     10 * (1040 + 520 + 5 * 4)},
    {"sm_90a", {.role = kernel_role_copy_rows, .n = {520, dtype_fp8_e4m3, dtype_f32, 64, scale_type_ue8m0}}, {.rows = 8}, 2, 0,
     8 * (520 + 9 + 2080)},
    // rows to multiply: whole 64 codes, a scale for each block of 128
    {"sm_90a", {.role = kernel_role_copy_rows, .n = {520, dtype_bf16, dtype_fp8_e4m3, 128, scale_type_f32, 0, 0, dtype_fp8_e4m3}},
     {.rows = 8}, 2, 0, 8 * (1040 + 576 + 5 * 4)},
    // 100 rows for each of two experts: two tiles high of 64, one of 128; gate and up
    {"sm_80", {.role = kernel_role_mlp_up, .n = {256, 384, 0, dtype_bf16}}, {.rows = 200, .experts = 2}, 2 * 2 * 6,
     2.0 * 200 * 768 * 256, 200 * 512 + 2 * 768 * 512 + 200 * 768},
    {"sm_90a", {.role = kernel_role_mlp_up, .n = {256, 384, 0, dtype_bf16}}, {.rows = 200, .experts = 2}, 2 * 1 * 3,
     2.0 * 200 * 768 * 256, 200 * 512 + 2 * 768 * 512 + 200 * 768},
    // 30 rows for each of four experts on 64 columns at once; 40 on 256
    {"sm_90a", {.role = kernel_role_mlp_down, .n = {256, 384, dtype_bf16, dtype_bf16}}, {.rows = 120, .experts = 4, .beside = 60},
     4 * 6, 2.0 * 120 * 384 * 256, 120 * 512 + 4 * 384 * 512 + 60 * 384 * (4 + 4 + 2)},
    {"sm_90a", {.role = kernel_role_mlp_down, .n = {256, 384, dtype_bf16, dtype_bf16}}, {.rows = 160, .experts = 4, .beside = 60},
     4 * 2, 2.0 * 160 * 384 * 256, 160 * 512 + 4 * 384 * 512 + 60 * 384 * (4 + 4 + 2)},
    // no gate, f32: no tensor cores on any chip
    {"sm_90a", {.role = kernel_role_mlp_up, .n = {256, 384, 0, dtype_f32, 0, 0, 0, MLP_PLAIN}}, {.rows = 200, .experts = 2},
     2 * 2 * 6, 2.0 * 200 * 384 * 256, 200 * 1024 + 2 * 384 * 1024 + 200 * 1536},
    // codes, and a scale for each of two blocks of a row
    {"sm_90a", {.role = kernel_role_mlp_up, .n = {256, 384, 0, dtype_bf16, [8] = dtype_fp8_e4m3, [9] = 128}},
     {.rows = 200, .experts = 2}, 2 * 1 * 6, 2.0 * 200 * 768 * 256, 200 * 512 + 2 * 768 * (256 + 2 * 4) + 200 * 768},
    {"sm_80", {.role = kernel_role_mlp_down, .n = {384, 256, dtype_f16, dtype_f16, [8] = dtype_mxfp4, [9] = 32}},
     {.rows = 200, .experts = 2, .beside = 120}, 2 * 2 * 4, 2.0 * 200 * 384 * 256,
     200 * 768 + 2 * 256 * (192 + 12) + 120 * 256 * (4 + 4 + 2)},
    // FP8 arithmetic: rows and hidden rows are codes with scales
    {"sm_90a", {.role = kernel_role_mlp_up, .n = {256, 384, 0, dtype_bf16, [8] = dtype_fp8_e4m3, [9] = 128, [11] = WIDE_BLOCKS}},
     {.rows = 200, .experts = 2}, 2 * 1 * 3, 2.0 * 200 * 768 * 256,
     200 * (256 + 8) + 2 * 768 * (256 + 2 * 4) + 200 * (384 + 12)},
    // replies in blocks of two formats, half of them each; to an earlier wave's sums
    {"sm_80", {.role = kernel_role_merge, .n = {512, dtype_bf16, dtype_bf16, 1, 2, WIDE_BLOCKS, NARROW_BLOCKS}},
     {.rows = 6, .beside = 20}, 2, 0, 20 * (512 + 12) + 6 * (1024 + 2048)},
    {"sm_80", {.role = kernel_role_merge, .n = {512, dtype_bf16, dtype_f32}}, {.rows = 6, .beside = 20}, 2, 0,
     20 * 1024 + 6 * 2048},
    {"sm_80", {.role = kernel_role_sum_rows, .n = {512, dtype_f16}}, {.rows = 6, .beside = 20}, 2, 0, 26 * 1024},
    {"sm_80", {.role = kernel_role_add, .n = {512, dtype_bf16, dtype_f32, dtype_bf16}}, {.rows = 5}, 2, 0, 5 * (1024 + 2048 + 1024)},
    {"sm_80", {.role = kernel_role_shift, .n = {512, dtype_bf16, dtype_f32}}, {.rows = 5}, 2, 0, 5 * (1024 + 2048)},
    {"sm_80", {.role = kernel_role_gate, .n = {512, dtype_bf16, dtype_f32, dtype_bf16}}, {.rows = 5}, 2, 0, 5 * (1024 + 2048 + 1024)},
};

static void test_closed_forms(void)
{
    const struct cuda_speed speed = {4, 1e12, 1e12};
    for (size_t i = 0; i < sizeof closed_forms / sizeof *closed_forms; i++) {
        const struct closed_form *c = &closed_forms[i];
        struct cuda_estimate e = cuda_estimate(cuda_chip(c->chip), &c->kernel, &c->load, &speed);
        if (e.blocks != c->blocks || e.flops != c->flops || e.bytes != c->bytes)
            printf("\n%s %s, form %zu: %.0f blocks, %.0f FLOPs, %.0f bytes\n", c->chip, kernel_role_words[c->kernel.role], i,
                   e.blocks, e.flops, e.bytes);
        CU_ASSERT_EQUAL(e.blocks, c->blocks);
        CU_ASSERT_EQUAL(e.flops, c->flops);
        CU_ASSERT_EQUAL(e.bytes, c->bytes);
        NEAR(e.waves, c->blocks / 4);
    }
}

/// The busiest multiprocessor's tiles, or the bytes: whichever takes longer; few blocks draw less than the memory gives.
static void test_bounds(void)
{
    const struct plan_kernel up = {.role = kernel_role_mlp_up, .n = {1024, 512, 0, dtype_bf16}};
    const struct plan_kernel copy = {.role = kernel_role_copy_rows, .n = {1024, dtype_bf16, dtype_bf16}};
    const double row_of_tiles = 2.0 * 256 * 1024, weights = 1024 * 2048.0, row = 2048 + 1024;
    static const struct {
        double rows, experts, flops, bytes;
        enum cuda_bound bound;
    } cases[] = {{640, 1, 1e12, 1e15, cuda_bound_compute},  // 5 x 4 tiles: five on each of four
                 {130, 1, 1e12, 1e15, cuda_bound_compute},  // the second row of tiles has two rows: 2 of 1.02 turns
                 {33, 1, 1e12, 1e15, cuda_bound_compute},   // a tile each, of which 33 of 64 rows are there
                 {9, 1, 1e12, 1e15, cuda_bound_compute},    // 9 of 16
                 {3, 1, 1e12, 1e15, cuda_bound_tail},       // 3 of 8
                 {8, 1, 1e15, 1e9, cuda_bound_memory}};     // the weights
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cuda_estimate e = cuda_estimate(cuda_chip("sm_90a"), &up, &(struct cuda_load){cases[i].rows, cases[i].experts, 0},
                                               &(struct cuda_speed){4, cases[i].flops, cases[i].bytes});
        double step = cases[i].rows <= 32 ? 8 : cases[i].rows <= 64 ? 64 : 128;
        double arithmetic = ceil(cases[i].rows / step) * step * 4 * row_of_tiles / cases[i].flops;
        double memory = (cases[i].rows * row + weights) / cases[i].bytes;
        NEAR(e.seconds * 1e3, fmax(arithmetic, memory) * 1e3);
        CU_ASSERT_EQUAL(e.bound, cases[i].bound);
    }
    for (int rows = 4; rows <= 400; rows *= 10) { // 1, 10 and 100 blocks on 100 multiprocessors, a quarter of which would do
        struct cuda_estimate e =
            cuda_estimate(cuda_chip("sm_80"), &copy, &(struct cuda_load){.rows = rows}, &(struct cuda_speed){100, 1e12, 1e9});
        NEAR(e.seconds * 1e6, rows * 4096 / 1e3 / fmin(1, rows / 4 / 25.0));
        CU_ASSERT_EQUAL(e.bound, rows < 40 ? cuda_bound_tail : rows < 400 ? cuda_bound_tail : cuda_bound_memory);
    }
    struct cuda_estimate none = cuda_estimate(cuda_chip("sm_80"), &copy, &(struct cuda_load){0}, &(struct cuda_speed){100, 1, 1});
    CU_ASSERT_EQUAL(none.seconds, 0);
}

// ---- in a simulation --------------------------------------------------------------------------------------------------

static double number_in(json_t *row, const char *key) { return json_number_value(json_object_get(row, key)); }

static const char *text_in(json_t *row, const char *key) { return json_string_value(json_object_get(row, key)); }

/// Without overlap a step is its kernels and its messages.
static void test_stage_times(void)
{
    static const char *const targets[] = {"cuda(sm_80)", "cuda(sm_90a)"};
    for (int i = 0; i < 2; i++) {
        struct simulated o = simulate_setting(
            &(struct setting){.bandwidth = "1GB/s", .members = "use serial;", .target = targets[i], .device = "launch = 3us;"}, true);
        CU_ASSERT_EQUAL_FATAL(o.code, EXIT_FINE);
        json_t *root = json_loads(o.out, JSON_DISABLE_EOF_CHECK, NULL), *kernels = json_object_get(root, "kernels"), *row;
        double sum = 0, wire = 1024 * 1.5 * (1040 + 1024) / 1e9;
        size_t at;
        json_array_foreach(kernels, at, row)
            sum += number_in(row, "least_s");
        CU_ASSERT_EQUAL(json_array_size(kernels), 6); // route, pack, unpack, up, down, merge
        NEAR((number_in(root, "latency_s") - wire) * 1e3, (sum + 4 * 3e-6) * 1e3);
        // Multiply-adds in f32 take 16 times as long as the tensor cores; 64 blocks of 16 tokens on 100 multiprocessors.
        row = json_array_get(kernels, 0);
        CU_ASSERT_STRING_EQUAL(text_in(row, "kernel"), "route");
        NEAR(number_in(row, "least_s") * 1e3, 100.0 * 16 * 2 * 512 * 4 / (3.221225472e12 / 16) * 1e3);
        row = json_array_get(kernels, 5); // replies of 1536 rows and 512 of its own
        CU_ASSERT_STRING_EQUAL(text_in(row, "kernel"), "merge");
        NEAR(number_in(row, "bytes"), 2048 * 1024 + 1024 * 1024);
        json_decref(root);
        simulated_free(&o);
    }
}

/// Whether tests/cuda/resources.txt has a kernel of that role on that chip, in that example, with the same tile.
static bool is_generated(const char *example, json_t *row)
{
    char line[256], name[64], kernel[64], chip[16];
    double flops, bytes;
    bool found = false;
    size_t role = strlen(text_in(row, "kernel"));
    FILE *file = fopen("tests/cuda/resources.txt", "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    while (fgets(line, sizeof line, file))
        found = found || (sscanf(line, "%63s %63s %15s %*s %*s %*s %*s %*s %*s %lf %lf", name, kernel, chip, &flops, &bytes) == 5 &&
                          !strcmp(name, example) && !strcmp(chip, text_in(row, "chip")) &&
                          !strncmp(kernel, text_in(row, "kernel"), role) && kernel[role] == '_' &&
                          flops == number_in(row, "tile_flops") && bytes == number_in(row, "tile_bytes"));
    fclose(file);
    return found;
}

/// The kernels of a simulation are those that lowering makes: their tiles are in the table of generated ones.
static void test_generated_kernels(void)
{
    static const char *const examples[] = {"hello", "mixtral", "wire_formats", "fp8_arithmetic", "deepseek_v3"};
    static const char *const chips[] = {"sm_80", "sm_90a"};
    for (size_t i = 0; i < 2 * sizeof examples / sizeof *examples; i++) {
        const char *example = examples[i / 2];
        char path[64], target[32];
        snprintf(path, sizeof path, "examples/%s.moe", example);
        snprintf(target, sizeof target, "cuda:%s,host", chips[i % 2]);
        struct simulated o = simulate_file_for(path, NULL, target);
        CU_ASSERT_FATAL(o.code == EXIT_FINE || o.code == EXIT_BUDGET); // budgets are for another chip
        json_t *root = json_loads(o.out, JSON_DISABLE_EOF_CHECK, NULL), *row;
        size_t at, products = 0;
        json_array_foreach(json_object_get(root, "kernels"), at, row)
        {
            bool there = is_generated(example, row);
            CU_ASSERT_TRUE(there);
            if (!there)
                printf("\n%s: no %s of %.0f FLOPs and %.0f bytes a tile on %s\n", example, text_in(row, "kernel"),
                       number_in(row, "tile_flops"), number_in(row, "tile_bytes"), chips[i % 2]);
            products += !strncmp(text_in(row, "kernel"), "mlp_", 4);
        }
        CU_ASSERT(at >= 5 && products >= 2);
        json_decref(root);
        simulated_free(&o);
    }
}

/// No estimates where no CUDA kernels run; the readable table is one of `-v`.
static void test_table(void)
{
    struct simulated o = simulate_file_for("examples/hello.moe", "serial", "cpu");
    json_t *root = json_loads(o.out, JSON_DISABLE_EOF_CHECK, NULL);
    CU_ASSERT_EQUAL(json_array_size(json_object_get(root, "kernels")), 0);
    json_decref(root);
    simulated_free(&o);
    for (int verbose = 0; verbose < 2; verbose++) {
        char *text = NULL;
        size_t size;
        struct context context;
        struct driver_result result = {0};
        struct driver_options options = {.file = "examples/mixtral.moe", .check = {.layer = -1, .schedule = "serial"},
                                         .check_only = true, .simulate = true, .verbose = verbose};
        options.out = open_memstream(&text, &size);
        context_init(&context);
        CU_ASSERT_EQUAL(setjmp(context.fatal), 0);
        CU_ASSERT_EQUAL(compile(&context, &options, &result), EXIT_BUDGET); // which is for another schedule
        context_free(&context);
        fclose(options.out);
        CU_ASSERT_EQUAL(strstr(text, "  kernels on sm_90a, ") != NULL, verbose);
        // 8192 tokens of 2 choices on 8 ranks: 16384 pairs of each rank's expert; 128 x 112 tiles, 108.6 turns
        CU_ASSERT_EQUAL(strstr(text, "mlp_up     128 x 256      14336   108.61  3848.291") != NULL, verbose);
        free(text);
    }
}

void suite_kernels(void);
void suite_kernels(void)
{
    CU_pSuite suite = CU_add_suite("kernels", NULL, NULL);
    CU_add_test(suite, "blocks, FLOPs and bytes by hand", test_closed_forms);
    CU_add_test(suite, "what bounds a launch", test_bounds);
    CU_add_test(suite, "a stage takes what its kernels take", test_stage_times);
    CU_add_test(suite, "the kernels that are generated", test_generated_kernels);
    CU_add_test(suite, "as a table", test_table);
}
