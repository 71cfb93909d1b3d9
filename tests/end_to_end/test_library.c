// The schedules of std.schedules, all that the file holds: each runs on a layer with attention and a shared expert over two
// layers and gives the bytes of `serial`; expert waves, which round by themselves, give one another's.
#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/end_to_end/harness.h"

enum { WIDTH = 64, FIRST_TOKENS = 40, NAMES_MAX = 32, NAME_SIZE = 48 };

struct library {
    char name[NAMES_MAX][NAME_SIZE];
    bool waves[NAMES_MAX];
    int count;
};

static void read_library(struct library *l)
{
    char line[256];
    FILE *file = fopen("stdlib/std/schedules.moe", "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    l->count = 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "schedule %47[a-z_]", l->name[l->count]) == 1 && l->count + 1 < NAMES_MAX)
            l->waves[l->count++] = false;
        else if (strstr(line, "split experts") && l->count)
            l->waves[l->count - 1] = true;
    }
    fclose(file);
}

static moe_plan *compile_library(const struct library *l, bool serial)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    fprintf(out, "import std.ops;\nimport std.hw { laptop };\nimport std.schedules as lib;\n"
                 "dim tokens <= 256;\ndim hidden = %d;\ndim ffn = 96;\ndim experts = 16;\n"
                 "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n    param w_router: f32[experts, hidden];\n"
                 "    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n    param w_down: bf16[experts, hidden, ffn];\n"
                 "    param s_gate_up: bf16[1, 2 * ffn, hidden];\n    param s_down: bf16[1, hidden, ffn];\n"
                 "    extern stage attn: a = attention(x, cost: 1ms);\n    stage route: r = topk(a, w_router, k: 3);\n"
                 "    stage dispatch: xd = dispatch(a, r);\n    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n"
                 "    stage combine: yr = combine(yd, r);\n    stage shared: ys = swiglu(a, s_gate_up, s_down);\n"
                 "    stage merge: y = add(yr, ys);\n    yield y;\n}\n"
                 "placement four_each on laptop { place experts over rank; }\n"
                 "pipeline main {\n    layer = moe;\n    repeat = 2;\n    cluster = laptop;\n    placement = four_each;\n"
                 "    target = cpu;\n", WIDTH);
    for (int n = l->count; n-- > 0 && !serial;)
        fprintf(out, "    use lib.%s when tokens >= %d;\n", l->name[n], FIRST_TOKENS + n);
    fprintf(out, "    use lib.serial;\n}\n");
    fclose(out);
    moe_plan *plan = subject_compile(&(struct subject){.text = text, .layer = -1});
    free(text);
    return plan;
}

/// Stands for attention: twice its input, which bf16 does without rounding.
static int attention(void *user, const moe_extern_call *call)
{
    (void)user;
    const uint16_t *in = call->in[0];
    uint16_t *out = call->out;
    for (int64_t i = 0; i < call->count * WIDTH; i++)
        out[i] = in[i] & 0x7f80 ? (uint16_t)(in[i] + 0x80) : in[i];
    return 0;
}

static struct outcome run_with(moe_plan *plan, const float *in, int n, const char *device, uint32_t threads)
{
    const int64_t tokens[4] = {3, FIRST_TOKENS + n, 0, 17}; // all ranks differ, one has nothing; the n-th is chosen
    struct run run = {.in = in, .tokens = tokens, .steps = 2, .external = attention,
                      .options = {.threads = threads, .seed = 5, .device = device, .poison = 1}};
    struct outcome o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL(o.status, MOE_OK);
    if (o.status != MOE_OK)
        fprintf(stderr, "schedule %d: %s\n", n, o.error);
    return o;
}

static bool same(const struct outcome *a, const struct outcome *b)
{
    return a->tokens == b->tokens && !memcmp(a->out, b->out, (size_t)a->tokens * WIDTH * sizeof *a->out);
}

static void compare(const struct library *l, int n, moe_plan *plan, moe_plan *serial, const float *in)
{
    struct outcome a = run_with(plan, in, n, NULL, 2), b = run_with(serial, in, n, NULL, 1), c = run_with(plan, in, n, "sim", 1);
    bool good = same(&a, &c) && (l->waves[n] ? relative_l2(a.out, b.out, (size_t)a.tokens * WIDTH) < 5e-3 : same(&a, &b));
    CU_ASSERT_TRUE(good);
    if (!good)
        fprintf(stderr, "%s: other bytes, relative L2 %.2e, sim %s\n", l->name[n],
                relative_l2(a.out, b.out, (size_t)a.tokens * WIDTH), same(&a, &c) ? "agrees" : "differs");
    outcome_free(&a);
    outcome_free(&b);
    outcome_free(&c);
}

static void test_library(void)
{
    static struct library l;
    static float in[4 * 256 * WIDTH];
    gaussian(in, sizeof in / sizeof *in, 11);
    read_library(&l);
    CU_ASSERT_TRUE(l.count >= 13);
    moe_plan *plan = compile_library(&l, false), *serial = compile_library(&l, true);
    for (int n = 0; n < l.count && plan && serial; n++)
        compare(&l, n, plan, serial, in);
    moe_plan_close(plan);
    moe_plan_close(serial);
}

/// The same waves in another order, on other streams: the same tokens, so the same bytes.
static void test_waves(void)
{
    static struct library l;
    static float in[4 * 256 * WIDTH];
    gaussian(in, sizeof in / sizeof *in, 12);
    read_library(&l);
    moe_plan *first = NULL;
    for (int n = 0; n < l.count; n++) {
        if (!l.waves[n])
            continue;
        struct library one = {.count = 1, .waves = {true}};
        memcpy(one.name[0], l.name[n], NAME_SIZE);
        moe_plan *plan = compile_library(&one, false);
        if (first && plan) {
            struct outcome a = run_with(first, in, 0, NULL, 2), b = run_with(plan, in, 0, NULL, 2);
            CU_ASSERT_TRUE(same(&a, &b));
            outcome_free(&a);
            outcome_free(&b);
        }
        if (first)
            moe_plan_close(plan);
        else
            first = plan;
    }
    CU_ASSERT_PTR_NOT_NULL(first);
    moe_plan_close(first);
}

void suite_library(void);
void suite_library(void)
{
    CU_pSuite suite = CU_add_suite("library", NULL, NULL);
    CU_add_test(suite, "every library schedule gives the bytes of serial", test_library);
    CU_add_test(suite, "library schedules of waves give one another's bytes", test_waves);
}
