// A compiled plan with any byte outside its code changed and the checksum put right again is refused: the code says for
// which tables it was made. What follows the code changes nothing. So it is with code for GPUs; and of an executable that
// carries several plans, any byte behind the program changed leads to the plan that was built or to none.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/plan/build.h"
#include "runtime/plan/plan.h"
#include "tests/end_to_end/harness.h"
#include "tests/end_to_end/lab.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#ifdef NDEBUG
enum { STRIDE = 1 };
#else
enum { STRIDE = 29 }; // sanitizers
#endif
enum { RANKS = 4, TOKENS = 6, WIDTH = 64 };

static const char nodes[] = "device = host; axis node[2]; axis gpu[2];\n"
                            "    link ib across node { bandwidth: 1GB/s, latency: 20us };\n"
                            "    link nv across gpu { bandwidth: 100GB/s, latency: 1us };";
static const char formats[] = "format blocks = fp8_e4m3 { block: [1, 64], scale: f32 };\n";

static const char codes[] = "import std.ops;\nimport std.hw { laptop };\nimport std.schedules { serial };\n"
                            "format by_blocks = fp8_e4m3 { block: [32, 32], scale: f32 };\n"
                            "dim tokens <= 6;\ndim hidden = 64;\ndim ffn = 32;\ndim experts = 4;\n"
                            "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n"
                            "    param w_router: f32[experts, hidden];\n"
                            "    param w_gate_up: mxfp4[experts, 2 * ffn, hidden];\n"
                            "    param w_down: by_blocks[experts, hidden, ffn];\n"
                            "    stage route: r = topk(x, w_router, k: 2);\n    stage dispatch: xd = dispatch(x, r);\n"
                            "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n    stage combine: y = combine(yd, r);\n"
                            "    yield y;\n}\nplacement p on laptop { place experts over rank; }\n"
                            "pipeline main { layer = moe; cluster = laptop; placement = p; target = cpu; use serial; }\n";

static struct outcome run_image(const void *image, size_t bytes)
{
    static float in[RANKS * TOKENS * WIDTH];
    const int64_t tokens[RANKS] = {TOKENS, 1, 0, TOKENS};
    moe_plan *plan = NULL;
    gaussian(in, sizeof in / sizeof *in, 3);
    CU_ASSERT_EQUAL_FATAL(moe_plan_from_memory(image, bytes, &plan), MOE_OK);
    struct run run = {.in = in, .tokens = tokens, .options = {.threads = 1, .device = "sim"}};
    struct outcome o = run_plan_once(plan, &run);
    moe_plan_close(plan);
    return o;
}

static void put_checksum(uint8_t *image, size_t bytes)
{
    uint64_t sum = 0;
    memcpy(image + offsetof(struct plan_header, checksum), &sum, sizeof sum);
    sum = XXH3_64bits(image, bytes);
    memcpy(image + offsetof(struct plan_header, checksum), &sum, sizeof sum);
}

/// How many of the plans with one byte before its code changed can be opened.
static size_t flip_tables(uint8_t *image, size_t bytes)
{
    struct plan_header header;
    struct plan plan;
    char error[512];
    size_t opened = 0;
    memcpy(&header, image, sizeof header);
    size_t sum = offsetof(struct plan_header, checksum), code = header.code_offset;
    CU_ASSERT(header.code_bytes > 1000 && code + header.code_bytes <= bytes);
    for (size_t i = 0; i < code; i += i < sizeof header ? 1 : STRIDE) {
        if (i >= sum && i < sum + 8)
            continue;
        uint8_t bit = (uint8_t)(1u << (i * 5 + i / 8) % 8);
        image[i] ^= bit;
        put_checksum(image, bytes);
        opened += plan_open(&plan, image, bytes, false, error, sizeof error);
        image[i] ^= bit;
    }
    put_checksum(image, bytes);
    CU_ASSERT(plan_open(&plan, image, bytes, false, error, sizeof error)); // as it was
    plan_close(&plan);
    return opened;
}

static uint8_t *aligned_copy(const void *bytes, size_t size)
{
    uint8_t *copy = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    CU_ASSERT_FATAL(copy != NULL);
    return memcpy(copy, bytes, size);
}

static void flip_all(const struct subject *subject)
{
    struct plan_header header;
    size_t bytes;
    uint8_t *given = subject_image(subject, &bytes);
    CU_ASSERT_FATAL(given && bytes > sizeof header);
    uint8_t *image = aligned_copy(given, bytes);
    memcpy(&header, image, sizeof header);
    CU_ASSERT_EQUAL(flip_tables(image, bytes), 0);
    for (size_t i = header.code_offset + header.code_bytes; i < bytes; i++)
        image[i] ^= 0xff;
    put_checksum(image, bytes);
    struct outcome a = run_image(given, bytes), b = run_image(image, bytes);
    CU_ASSERT(outcome_equal(&a, &b));
    outcome_free(&a);
    outcome_free(&b);
    free(image);
    free(given);
}

static void test_flips(void)
{
    static const struct shape shape = {.bound = TOKENS, .hidden = WIDTH, .ffn = 32, .experts = 8, .choices = 2, .dtype = "bf16"};
    const struct routed_layer layers[] = {
        {.shape = &shape, .uses = "use ladder(n: 2) when tokens >= 4;\n    use serial;", .dispatch = "capacity: 0.5x"},
        {.shape = &shape, .uses = "use waves(g: 2);", .dispatch = "via: node, capacity: 0.3x", .items = NULL,
         .cluster = nodes, .place = "place experts over node, gpu;"},
        {.shape = &shape, .dispatch = "wire: { node: blocks, gpu: bf16 }", .combine = "wire: { node: blocks, gpu: bf16 }",
         .items = formats, .cluster = nodes, .place = "place experts over node, gpu;", .repeat = 2},
    };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        flip_all(&(struct subject){.text = routed_layer_text(&layers[i]), .layer = -1});
    flip_all(&(struct subject){.text = codes, .layer = -1});
}

static const struct shape small_shape = {.bound = TOKENS, .hidden = WIDTH, .ffn = 32, .experts = 8, .choices = 2, .dtype = "bf16"};
static const struct routed_layer small_layer = {.shape = &small_shape};

/// The tables of a plan for GPUs: every kernel has a row of code for two chips, and one of them a tensor map.
static void add_gpu_code(struct ir *ir, size_t code_bytes)
{
    str_id chips[] = {ir_str(ir, "sm_80"), ir_str(ir, "sm_90a")}, function = ir_str(ir, "kernel");
    uint32_t map = ADD(ir, plan_gpu_map);
    *ROW(ir, plan_gpu_map, map) = (struct plan_gpu_map){.argument = 1, .rank = 2, .extents = {64, 8}, .strides = {2, 128}, .box = {64, 8}};
    ROW(ir, plan_info, 0)->target = target_cuda;
    for (uint32_t k = 0; k < COUNT(ir, plan_kernel); k++)
        for (int chip = 0; chip < 2 && !ROW(ir, plan_kernel, k)->builtin; chip++) {
            uint32_t row = ADD(ir, plan_gpu_code);
            *ROW(ir, plan_gpu_code, row) = (struct plan_gpu_code){.kernel = k, .function = function, .chip = chips[chip], .form = (uint32_t)chip,
                .offset = 64 * chip, .bytes = (int64_t)code_bytes - 64, .threads = 128, .shared_bytes = 1 << 10,
                .maps = {map, (uint32_t)chip}};
        }
}

static void test_gpu_code(void)
{
    size_t bytes;
    struct subject subject = {.text = routed_layer_text(&small_layer), .layer = -1};
    void *given = subject_image(&subject, &bytes), *written = NULL;
    static const char code[2048] = "a cubin";
    char error[256], *text = NULL;
    struct plan plan;
    struct ir ir;
    CU_ASSERT_FATAL(given && plan_open(&plan, given, bytes, true, error, sizeof error));
    FILE *out = open_memstream(&text, &bytes);
    ir_print(&plan.ir, out);
    fclose(out);
    plan_close(&plan);
    CU_ASSERT_FATAL(ir_parse(&ir, &plan_ir, text, error, sizeof error));
    add_gpu_code(&ir, sizeof code);
    CU_ASSERT_FATAL(plan_write(&ir, code, sizeof code, &written, &bytes));
    uint8_t *image = aligned_copy(written, bytes);
    CU_ASSERT_EQUAL(flip_tables(image, bytes), 0);
    struct plan_header header;
    memcpy(&header, image, sizeof header);
    for (size_t i = 0; i < sizeof code; i += 97) { // what the code itself is the checksum alone tells
        image[header.code_offset + i] ^= 4;
        CU_ASSERT_FALSE(plan_open(&plan, image, bytes, false, error, sizeof error));
        image[header.code_offset + i] ^= 4;
    }
    ir_free(&ir);
    free(image);
    free(written);
    free(text);
    free(given);
}

static bool runs_v3(const char *level) { return !strcmp(level, "v2") || !strcmp(level, "v3"); }

/// The hash of the plan that is taken from a file; 0: none is.
static uint64_t taken(const char *path, bool (*runs)(const char *))
{
    struct plan plan;
    char error[512];
    if (!plan_open_file(&plan, path, runs, error, sizeof error))
        return 0;
    uint64_t hash = plan.hash;
    plan_close(&plan);
    return hash;
}

static void test_carriers(void)
{
    static const char program[100] = "\177ELF";
    static const char *const levels[] = {"v2", "v3", "v4"};
    struct carried_plan plans[3];
    struct context context;
    char path[160];
    for (int i = 0; i < 3; i++) {
        struct subject subject = {.text = routed_layer_text(&small_layer), .layer = -1, .cpu_level = levels[i]};
        plans[i].cpu_level = levels[i];
        plans[i].image = subject_image(&subject, &plans[i].bytes);
        CU_ASSERT_PTR_NOT_NULL_FATAL(plans[i].image);
    }
    context_init(&context);
    snprintf(path, sizeof path, "%s", lab_file("carrier"));
    CU_ASSERT_FATAL(write_executable(&context, program, sizeof program, plans, 3, path));
    uint64_t best = taken(path, NULL), second = taken(path, runs_v3);
    CU_ASSERT(best && second && best != second);
    FILE *file = fopen(path, "r+b");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fseek(file, 0, SEEK_END);
    long size = ftell(file), changed = 0;
    for (long i = sizeof program; i < size; i += size - i < 200 ? 1 : 61 * STRIDE) {
        long at[] = {i, i < 200 ? i : (long)(plans[0].bytes + 100 + (size_t)i % 120)}; // and about the first trailer
        for (int k = 0; k < 2; k++) {
            fseek(file, at[k], SEEK_SET);
            int byte = fgetc(file), bit = 1 << (at[k] * 5 + at[k] / 8) % 8;
            fseek(file, at[k], SEEK_SET);
            fputc(byte ^ bit, file);
            fflush(file);
            uint64_t a = taken(path, NULL), b = taken(path, runs_v3);
            CU_ASSERT((a == best || !a) && (b == second || b == best || !b)); // `best` then says what it lacks
            changed += !a || b != second;
            fseek(file, at[k], SEEK_SET);
            fputc(byte, file);
            fflush(file);
        }
    }
    CU_ASSERT(changed > 20);
    CU_ASSERT(taken(path, NULL) == best && taken(path, runs_v3) == second);
    fclose(file);
    for (int i = 0; i < 3; i++)
        free((void *)(uintptr_t)plans[i].image);
    context_free(&context);
}

void suite_flips(void);
void suite_flips(void)
{
    CU_pSuite suite = CU_add_suite("flips", NULL, lab_clean_up);
    CU_add_test(suite, "any byte outside the code: refused", test_flips);
    CU_add_test(suite, "the same with code for GPUs", test_gpu_code);
    CU_add_test(suite, "any byte of an executable's plans", test_carriers);
}
