// A compiled plan with any byte outside its code changed and the checksum put right again is refused: the code says for
// which tables it was made. What follows the code changes nothing.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/plan/plan.h"
#include "tests/end_to_end/harness.h"

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

static void flip_all(const struct subject *subject)
{
    struct plan_header header;
    struct plan plan;
    char error[512];
    size_t bytes, opened = 0;
    uint8_t *given = subject_image(subject, &bytes), *image = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    CU_ASSERT_FATAL(given && image && bytes > sizeof header);
    memcpy(image, given, bytes);
    memcpy(&header, image, sizeof header);
    size_t sum = offsetof(struct plan_header, checksum), code = header.code_offset, end = code + header.code_bytes;
    CU_ASSERT(header.code_bytes > 1000 && end <= bytes);
    for (size_t i = 0; i < code; i += i < sizeof header ? 1 : STRIDE) {
        if (i >= sum && i < sum + 8)
            continue;
        uint8_t bit = (uint8_t)(1u << (i * 5 + i / 8) % 8);
        image[i] ^= bit;
        put_checksum(image, bytes);
        opened += plan_open(&plan, image, bytes, false, error, sizeof error);
        image[i] ^= bit;
    }
    CU_ASSERT_EQUAL(opened, 0);
    for (size_t i = end; i < bytes; i++)
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

void suite_flips(void);
void suite_flips(void)
{
    CU_pSuite suite = CU_add_suite("flips", NULL, NULL);
    CU_add_test(suite, "any byte outside the code: refused", test_flips);
}
