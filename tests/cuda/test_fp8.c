// FP8 arithmetic: rows and hidden activations rounded to E4M3 blocks of 128, times E4M3 weights in blocks of 128 x 128, every
// block's sum scaled in f32. Native code of every level and the CUDA kernels of every way to multiply, run by the CPU with
// every access checked, against a float64 computation that rounds at the same places; codes of rows byte by byte.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/plan/messages.h"
#include "tests/codegen/fp8_reference.h"
#include "tests/cuda/experts.h"
#include "tests/end_to_end/harness.h"

static const char *const levels[] = {"v2", "v3", "v4", "bf16"};
// One of each way to multiply: codes widened, as they are, by warpgroups.
static const char *const chips[] = {"cuda:sm_80", "cuda:sm_89", "cuda:sm_90a"};
enum { LEVELS = sizeof levels / sizeof *levels, CHIPS = sizeof chips / sizeof *chips };

// ----------------------------------------------------------------------------------------------------------- experts

// Sizes around blocks of 128 and tiles of 64 and 128: blocks that end partial, an expert's last features and columns, one
// pair, no pair, many blocks along k.
static void test_experts(void)
{
    static const struct expert_case cases[] = {
        {{264, 200, 3, 70, 2, dtype_bf16, dtype_f32}, LAYER_FP8 | LAYER_PLAIN, activation_silu},
        {{136, 320, 4, 9, 2, dtype_bf16, dtype_bf16}, LAYER_FP8 | LAYER_BIASED, activation_clamped_silu},
        {{128, 128, 2, 131, 1, dtype_f16, dtype_f16}, LAYER_FP8_POWERS | LAYER_WEIGHTED, activation_gelu},
        {{72, 64, 1, 1, 1, dtype_bf16, dtype_f32}, LAYER_FP8, activation_silu},
        {{8, 8, 2, 3, 1, dtype_bf16, dtype_bf16}, LAYER_FP8_POWERS | LAYER_PLAIN | LAYER_BIASED, activation_relu},
        {{72, 64, 2, 0, 1, dtype_bf16, dtype_f32}, LAYER_FP8, activation_silu},
        {{2056, 192, 2, 5, 1, dtype_bf16, dtype_f32}, LAYER_FP8, activation_gelu_tanh},
    };
    static const unsigned chips_of[sizeof cases / sizeof *cases] = {6, 7, 4, 2, 0, 4, 1}; // bits: compiling takes most of the time
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (level_runs_here(levels[i % LEVELS]))
            check_experts(&cases[i], levels[i % LEVELS]);
        if (level_runs_here("amx"))
            check_experts(&cases[i], "amx");
        for (int c = 0; c < CHIPS; c++)
            if (chips_of[i] >> c & 1 && level_runs_here(chips[c]))
                check_experts(&cases[i], chips[c]);
    }
}

// Rows of A: the reference's codes and scales, byte by byte; on the CPU the numbers that the codes are. So too for what came
// in the same blocks.
static void check_rows(const char *level, int64_t width, uint32_t scale, bool travelled)
{
    enum { ROWS = 5 };
    bool cuda = !strncmp(level, "cuda:", 5), powers = scale == scale_type_ue8m0;
    uint32_t elements = cuda ? dtype_fp8_e4m3 : dtype_bf16;
    int64_t packed_bytes = moe_record_bytes(moe_wire_bytes(dtype_fp8_e4m3, width, 128, scale), 0), size = dtype_bytes(elements);
    int64_t stride = moe_row_stride(moe_coded_row_bytes(width, size, 128), 1);
    uint8_t *x = block(ROWS * width * 2), *packed = block(ROWS * packed_bytes), *a = block(ROWS * stride);
    float *values = block(ROWS * width * 4);
    const void *sources[ROWS];
    void *targets[ROWS];
    struct rng rng = {(uint64_t)width};
    for (int64_t i = 0; i < ROWS * width; i++) {
        put_number(x, i, dtype_bf16, i == 3 ? NAN : i == width + 1 ? INFINITY : random_float(&rng) * (i / width == 2 ? 1e-7f : 3));
        values[i] = (float)get_number(x, i, dtype_bf16);
    }
    for (int64_t r = 0; r < ROWS; r++) {
        fp8_pack(values + r * width, width, 128, powers, packed + r * packed_bytes);
        sources[r] = travelled ? packed + r * packed_bytes : x + r * width * 2;
        targets[r] = a + r * stride;
    }
    struct moe_pairs_head pairs = {.tables = {{ROWS, sources, targets}}};
    struct code code;
    code_init(&code);
    code.host = (struct host_options){.checked = true, .seed = 3, .most_blocks = 2};
    code_add(&code, kernel_role_copy_rows,
             (int64_t[]){width, travelled ? dtype_fp8_e4m3 : dtype_bf16, dtype_fp8_e4m3, 128, scale, 0, 0, elements}, 8, 1);
    CU_ASSERT_FATAL(code_generate(&code, level));
    code_run(&code, 0, &(struct moe_kargs){.p = {&pairs}}, 0, ROWS);
    int wrong = 0;
    for (int64_t i = 0; i < ROWS * width; i++) {
        const uint8_t *row = a + i / width * stride, *want = packed + i / width * packed_bytes;
        double got = cuda ? 0 : get_number(row, i % width, dtype_bf16), number = fp8_decode(want[i % width]);
        wrong += cuda ? row[i % width] != want[i % width] : !(got == number || (isnan(got) && isnan(number)));
        float own, expected = powers ? ldexpf(1, want[width + i % width / 128] - 127) : 0;
        if (!powers)
            memcpy(&expected, want + width + i % width / 128 * 4, 4);
        memcpy(&own, row + moe_codes_bytes(width, size) + i % width / 128 * 4, 4);
        wrong += own != expected;
    }
    if (wrong)
        fprintf(stderr, "%s, width %d: %d wrong\n", level, (int)width, wrong);
    CU_ASSERT_EQUAL(wrong, 0);
    no_reports(level);
    code_free(&code);
    free(x), free(packed), free(a), free(values);
}

static void test_rows(void)
{
    static const char *const both[] = {"v2", "bf16", "cuda:sm_80"};
    for (int l = 0; l < 3; l++)
        for (int form = 0; form < 4 && level_runs_here(both[l]); form++)
            check_rows(both[l], form % 2 ? 264 : 72, form / 2 ? scale_type_ue8m0 : scale_type_f32, form == 1 || form == 2);
}

// ------------------------------------------------------------------------------------------------------ whole layers

static const char program[] =
    "import std.ops;\nimport std.hw { laptop };\nimport std.schedules { serial, ladder, waves };\n"
    "dim tokens <= 40;\ndim hidden = 136;\ndim ffn = 192;\ndim experts = 8;\n"
    "format codes = fp8_e4m3 { block: [128, 128], scale: f32 };\nformat rows = fp8_e4m3 { block: [1, 128], scale: %s };\n"
    "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n"
    "    param w_router: f32[experts, hidden];\n    param w_gate_up: codes[experts, 2 * ffn, hidden];\n"
    "    param w_down: codes[experts, hidden, ffn];\n    stage route: r = topk(x, w_router, k: 3);\n"
    "    stage dispatch: xd = dispatch(x, r, wire: %s, capacity: %s);\n"
    "    stage expert: yd = swiglu(xd, w_gate_up, w_down, arithmetic: %s);\n"
    "    stage combine: y = combine(yd, r);\n    yield y;\n}\n"
    "placement p on laptop { place experts over rank; }\n"
    "pipeline main { layer = moe; cluster = laptop; placement = p; target = %s; use serial; }\n";

struct layer_run {
    const char *scale, *wire, *capacity, *arithmetic, *target, *schedule;
};

static struct outcome run_layer(const struct layer_run *r)
{
    char text[2048];
    float in[4 * 40 * 136];
    gaussian(in, sizeof in / sizeof *in, 3);
    bool cuda = r->target != NULL;
    snprintf(text, sizeof text, program, r->scale, r->wire, r->capacity, r->arithmetic, cuda ? "cuda(sm_80)" : "cpu");
    setenv("MOECC_CACHE", "build/cuda-cache", 0);
    moe_plan *plan = subject_compile(
        &(struct subject){.text = text, .schedule = r->schedule, .layer = -1, .target = cuda ? r->target : "cpu"});
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    struct run run = {.in = in, .tokens = (int64_t[]){40, 1, 0, 33}, .options = {.threads = 2, .poison = 1}};
    struct outcome o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL_FATAL(o.status, MOE_OK);
    moe_plan_close(plan);
    return o;
}

// Rows that travel in the blocks that they are multiplied in are multiplied as they came, so that travelling so loses
// nothing; neither does a schedule, nor rounds of what finds no slot.
static void check_layers(const char *target, int runs_of_them)
{
    const struct layer_run runs[] = {
        {"f32", "bf16", "8x", "rows", target, "serial"},         {"f32", "rows", "8x", "rows", target, "ladder(n: 2)"},
        {"f32", "rows", "0.1x", "rows", target, "serial"},       {"ue8m0", "bf16", "8x", "rows", target, "serial"},
        {"ue8m0", "rows", "8x", "rows", target, "ladder(n: 3)"}, {"f32", "bf16", "8x", "bf16", target, "serial"},
    };
    enum { RUNS = sizeof runs / sizeof *runs, WITHOUT = RUNS - 1 };
    struct outcome o[RUNS];
    for (int i = 0; i < runs_of_them; i++)
        o[i] = run_layer(&runs[i]);
    size_t count = (size_t)(o[0].tokens * 136);
    CU_ASSERT(!memcmp(o[0].out, o[1].out, count * sizeof *o[0].out));
    CU_ASSERT(!memcmp(o[0].out, o[2].out, count * sizeof *o[0].out) && o[2].stats.rounds > 0);
    if (runs_of_them < RUNS) {
        for (int i = 0; i < runs_of_them; i++)
            outcome_free(&o[i]);
        return;
    }
    CU_ASSERT(!memcmp(o[3].out, o[4].out, count * sizeof *o[0].out));
    for (int i = 0; i < WITHOUT; i += 3) { // two roundings to E4M3 of 2.6 % each, and the activation between them
        double apart = relative_l2(o[i].out, o[WITHOUT].out, count);
        if (!(apart > 0.01 && apart < 0.06))
            fprintf(stderr, "%s scales: %g from bf16 arithmetic\n", runs[i].scale, apart);
        CU_ASSERT(apart > 0.01 && apart < 0.06);
    }
    for (int i = 0; i < RUNS; i++)
        outcome_free(&o[i]);
}

static void test_layers(void)
{
    check_layers(NULL, 6);
    if (level_runs_here(chips[0]))
        check_layers("cuda:sm_90a,host", 3);
}

void suite_fp8(void);
void suite_fp8(void)
{
    CU_pSuite suite = CU_add_suite("fp8", NULL, NULL);
    CU_add_test(suite, "experts in FP8 arithmetic match the float64 reference", test_experts);
    CU_add_test(suite, "rows to multiply: the reference's bytes", test_rows);
    CU_add_test(suite, "rows that travel as they are multiplied lose nothing", test_layers);
}
