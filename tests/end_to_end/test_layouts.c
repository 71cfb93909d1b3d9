// Layouts of checkpoints: the same experts stored in every way that a weights map can describe give the same bytes, and
// codes with scales give what the numbers they stand for give, within 1e-6 in f32; CUDA kernels run by the CPU likewise. The map alone says how a tensor
// lies: the same bytes read another way are other experts.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/weights/safetensors.h"
#include "tests/codegen/fixture.h"
#include "tests/end_to_end/harness.h"

enum { E = 3, H = 160, F = 96, TOKENS = 20, MOST_TENSORS = 16, BLOCK = 128 };

/// How one checkpoint lies: `dtype` of the file, where each number goes, and what the map says.
enum order { SEPARATE, FUSED, SWAPPED, INTERLEAVED, SWAPPED_INTERLEAVED, PACKED };

struct checkpoint {
    struct tensor tensors[MOST_TENSORS];
    size_t count;
};

static float gate_up[E][2 * F][H], down[E][H][F], biases_up[E][2 * F], biases_down[E][H], router[E][H], x[TOKENS][H];

static const char *path(void)
{
    static char text[96];
    snprintf(text, sizeof text, "/tmp/moe-layouts-%d.safetensors", (int)getpid());
    return text;
}

static void *add(struct checkpoint *to, const char *name, const char *dtype, uint32_t dims, const int64_t *shape)
{
    CU_ASSERT_FATAL(to->count < MOST_TENSORS);
    struct tensor *t = &to->tensors[to->count++];
    *t = (struct tensor){.name = name, .dims = dims};
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    memcpy(t->shape, shape, dims * sizeof *shape);
    t->bytes = (size_t)tensor_bytes(dtype, shape, dims);
    t->data = calloc(t->bytes, 1);
    return (void *)(uintptr_t)t->data;
}

static void add_floats(struct checkpoint *to, const char *name, const char *dtype, uint32_t dims, const int64_t *shape,
                       const float *values)
{
    void *data = add(to, name, dtype, dims, shape);
    elements_from_f32(dtype, values, data, to->tensors[to->count - 1].bytes / element_bytes(dtype));
}

static void store_and_free(struct checkpoint *c)
{
    char error[256] = "";
    add_floats(c, "router", "F32", 2, (int64_t[]){E, H}, &router[0][0]);
    CU_ASSERT_FATAL(tensors_write(path(), c->tensors, c->count, error, sizeof error));
    for (size_t i = 0; i < c->count; i++)
        free((void *)(uintptr_t)c->tensors[i].data);
}

static void draw(void)
{
    gaussian(&gate_up[0][0][0], E * 2 * F * H, 1);
    gaussian(&down[0][0][0], E * H * F, 2);
    gaussian(&router[0][0], E * H, 3);
    gaussian(&x[0][0], TOKENS * H, 4);
    gaussian(&biases_up[0][0], E * 2 * F, 5);
    gaussian(&biases_down[0][0], E * H, 6);
    for (int i = 0; i < E * 2 * F * H; i++)
        (&gate_up[0][0][0])[i] *= 0.1f;
    for (int i = 0; i < E * H * F; i++)
        (&down[0][0][0])[i] *= 0.1f;
    for (int i = 0; i < E * 2 * F; i++) // exact in bf16, in which some checkpoints hold them
        (&biases_up[0][0])[i] = rintf((&biases_up[0][0])[i] * 16) / 32;
    for (int i = 0; i < E * H; i++)
        (&biases_down[0][0])[i] = rintf((&biases_down[0][0])[i] * 16) / 32;
}

/// The layer with x and y of `type`, weights of `format`, under the map's entries.
struct reading {
    const char *type, *format, *gate_up, *down;
    bool biased;
    uint32_t ranks;
    const char *down_format; // NULL: as the others
    const char *target;      // NULL: cpu
};

static const char emulated[] = "cuda:sm_80,host";

static bool has_cuda(void)
{
    setenv("MOECC_CACHE", "build/cuda-cache", 0);
    return level_runs_here("cuda:sm_80");
}

static moe_plan *compile_reading(const struct reading *r)
{
    static char text[4096];
    snprintf(text, sizeof text,
             "import std.ops;\nimport std.hw { laptop };\nimport std.schedules { serial };\n"
             "dim tokens <= 32;\ndim hidden = %d;\ndim ffn = %d;\ndim experts = %d;\n"
             "format e4m3 = fp8_e4m3 { block: [128, 128], scale: f32 };\n"
             "format e4m3_powers = fp8_e4m3 { block: [128, 128], scale: ue8m0 };\n"
             "layer moe(x: %s[tokens, hidden]) -> %s[tokens, hidden] {\n"
             "    param w_router: f32[experts, hidden];\n    param w_gate_up: %s[experts, 2 * ffn, hidden];\n"
             "    param w_down: %s[experts, hidden, ffn];\n%s"
             "    stage route: r = topk(x, w_router, k: 2);\n    stage dispatch: xd = dispatch(x, r);\n"
             "    stage expert: yd = swiglu(xd, w_gate_up, w_down%s);\n    stage combine: y = combine(yd, r);\n"
             "    yield y;\n}\n"
             "weights map for moe {\n    w_router = \"router\";\n    w_gate_up = %s;\n    w_down = %s;\n%s}\n"
             "placement p on laptop { place experts over rank { balance: even }; }\n"
             "pipeline main { layer = moe; cluster = laptop; placement = p; target = cpu; "
             "weights = map(safetensors(\"none\")); use serial; }\n",
             H, F, E, r->type, r->type, r->format, r->down_format ? r->down_format : r->format,
             r->biased ? "    param b_up: bf16[experts, 2 * ffn];\n    param b_down: bf16[experts, hidden];\n" : "",
             r->biased ? ", b_gate_up: b_up, b_down: b_down" : "", r->gate_up, r->down,
             r->biased ? "    b_up = interleaved(\"b_up\");\n    b_down = \"b_down\";\n" : "");
    return subject_compile(&(struct subject){.text = text, .layer = -1, .ranks = r->ranks ? r->ranks : 1,
                                             .target = r->target});
}

static struct outcome run_reading(const struct reading *r)
{
    moe_plan *plan = compile_reading(r);
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    int64_t tokens[4] = {r->ranks == 4 ? 7 : TOKENS, 0, 4, 9};
    struct run run = {.in = &x[0][0], .tokens = tokens, .weights = path(), .options = {.threads = 2, .poison = 1}};
    struct outcome o = run_plan_once(plan, &run);
    moe_plan_close(plan);
    return o;
}

static struct outcome run_fine(const struct reading *r)
{
    struct outcome o = run_reading(r);
    if (o.status != MOE_OK)
        fprintf(stderr, "%s\n", o.error);
    CU_ASSERT_EQUAL_FATAL(o.status, MOE_OK);
    return o;
}

// ---------------------------------------------------------------------------------------------------- numbers

/// Row r of expert e as the order has it, r counting gate rows first.
static int64_t place(enum order order, int64_t r)
{
    int64_t half = r / F, within = r % F;
    switch (order) {
    case SWAPPED:
        return (1 - half) * F + within;
    case INTERLEAVED:
        return 2 * within + half;
    case SWAPPED_INTERLEAVED:
        return 2 * within + 1 - half;
    default:
        return r;
    }
}

static void add_fused(struct checkpoint *c, const char *dtype, enum order order, bool transposed)
{
    float *up = calloc(E * 2 * F * H, sizeof *up), *out = calloc(E * H * F, sizeof *out);
    for (int64_t e = 0; e < E; e++) {
        for (int64_t r = 0; r < 2 * F; r++)
            for (int64_t h = 0; h < H; h++)
                up[e * 2 * F * H + (transposed ? h * 2 * F + place(order, r) : place(order, r) * H + h)] = gate_up[e][r][h];
        for (int64_t h = 0; h < H; h++)
            for (int64_t f = 0; f < F; f++)
                out[e * H * F + (transposed ? f * H + h : h * F + f)] = down[e][h][f];
    }
    add_floats(c, "up", dtype, 3, transposed ? (int64_t[]){E, H, 2 * F} : (int64_t[]){E, 2 * F, H}, up);
    add_floats(c, "down", dtype, 3, transposed ? (int64_t[]){E, F, H} : (int64_t[]){E, H, F}, out);
    free(up);
    free(out);
}

/// Matrices of experts one below the other, the last one's transposed, as DBRX has them.
static void add_packed(struct checkpoint *c, const char *dtype)
{
    float *parts[3];
    for (int p = 0; p < 3; p++)
        parts[p] = calloc(E * F * H, sizeof *parts[p]);
    for (int64_t e = 0; e < E; e++)
        for (int64_t f = 0; f < F; f++)
            for (int64_t h = 0; h < H; h++) {
                int64_t at = (e * F + f) * H + h;
                parts[0][at] = gate_up[e][f][h];
                parts[1][at] = gate_up[e][F + f][h];
                parts[2][at] = down[e][h][f];
            }
    static const char *const names[] = {"w1", "v1", "w2"};
    for (int p = 0; p < 3; p++) {
        add_floats(c, names[p], dtype, 2, (int64_t[]){E * F, H}, parts[p]);
        free(parts[p]);
    }
}

static void add_separate(struct checkpoint *c, const char *dtype)
{
    static const char *const names[] = {"e0.g", "e1.g", "e2.g", "e0.u", "e1.u", "e2.u", "e0.d", "e1.d", "e2.d"};
    for (int e = 0; e < E; e++) {
        add_floats(c, names[e], dtype, 2, (int64_t[]){F, H}, &gate_up[e][0][0]);
        add_floats(c, names[E + e], dtype, 2, (int64_t[]){F, H}, &gate_up[e][F][0]);
        add_floats(c, names[2 * E + e], dtype, 2, (int64_t[]){H, F}, &down[e][0][0]);
    }
}

#define SEPARATE_UP "concat(\"e{expert}.g\", \"e{expert}.u\")"
#define SEPARATE_DOWN "\"e{expert}.d\""

static void store(const char *dtype, enum order order, bool transposed)
{
    struct checkpoint c = {.count = 0};
    if (order == SEPARATE)
        add_separate(&c, dtype);
    else if (order == PACKED)
        add_packed(&c, dtype);
    else
        add_fused(&c, dtype, order, transposed);
    store_and_free(&c);
}

static void test_same_experts(void)
{
    static const struct {
        enum order order;
        bool transposed;
        const char *gate_up, *down;
    } layouts[] = {{FUSED, false, "\"up\"", "\"down\""},
                   {FUSED, true, "transpose(\"up\")", "transpose(\"down\")"},
                   {SWAPPED, false, "swapped(\"up\")", "\"down\""},
                   {SWAPPED, true, "swapped(transpose(\"up\"))", "transpose(\"down\")"},
                   {INTERLEAVED, false, "interleaved(\"up\")", "\"down\""},
                   {INTERLEAVED, true, "transpose(interleaved(\"up\"))", "transpose(\"down\")"},
                   {SWAPPED_INTERLEAVED, false, "interleaved(swapped(\"up\"))", "\"down\""},
                   {PACKED, false, "concat(\"w1\", \"v1\")", "transpose(\"w2\")"}};
    static const struct {
        const char *type, *of_file, *target;
    } types[] = {{"bf16", "BF16", NULL}, {"f32", "F32", NULL}, {"bf16", "BF16", emulated}, {"f16", "F16", emulated}};
    draw();
    for (int t = 0; t < 4 && (t < 2 || has_cuda()); t++) {
        struct reading reading = {.type = types[t].type, .format = types[t].type, .gate_up = SEPARATE_UP, .down = SEPARATE_DOWN};
        store(types[t].of_file, SEPARATE, false);
        struct outcome native = run_fine(&reading);
        reading.target = types[t].target;
        struct outcome first = run_fine(&reading);
        CU_ASSERT(relative_l2(first.out, native.out, TOKENS * H) <= 5e-3);
        outcome_free(&native);
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
            store(types[t].of_file, layouts[i].order, layouts[i].transposed);
            reading.gate_up = layouts[i].gate_up;
            reading.down = layouts[i].down;
            struct outcome o = run_fine(&reading);
            if (memcmp(o.out, first.out, sizeof x) != 0)
                fprintf(stderr, "%s: %s, %s differ\n", types[t].type, layouts[i].gate_up, layouts[i].down);
            CU_ASSERT(!memcmp(o.out, first.out, sizeof x));
            outcome_free(&o);
        }
        outcome_free(&first);
    }
}

// B31: only the map tells [gate; up], [up; gate] and interleaved apart. A wrong one has nothing to do with the right one.
static void b31_wrong_readings(void)
{
    draw();
    store("F32", INTERLEAVED, false);
    struct outcome right = run_fine(&(struct reading){"f32", "f32", "interleaved(\"up\")", "\"down\"", false, 1, NULL, NULL});
    static const char *const wrong[] = {"\"up\"", "swapped(\"up\")", "swapped(interleaved(\"up\"))"};
    for (int i = 0; i < 3; i++) {
        struct outcome o = run_fine(&(struct reading){"f32", "f32", wrong[i], "\"down\"", false, 1, NULL, NULL});
        CU_ASSERT(relative_l2(o.out, right.out, TOKENS * H) > 0.2);
        outcome_free(&o);
    }
    struct outcome o = run_reading(&(struct reading){"f32", "f32", "transpose(\"up\")", "\"down\"", false, 1, NULL, NULL});
    CU_ASSERT_EQUAL(o.status, MOE_BAD_WEIGHTS);
    CU_ASSERT_PTR_NOT_NULL(strstr(o.error, "tensor `up` is [3, 192, 160], parameter `w_gate_up` needs [3, 160, 192]"));
    CU_ASSERT_PTR_NOT_NULL(strstr(o.error, "without `transpose`"));
    outcome_free(&o);
    outcome_free(&right);
}

// ------------------------------------------------------------------------------------------------------ codes

/// E4M3 codes and scales of a matrix of `rows` x `cols` as it lies in the file; `values` becomes what they stand for.
static void quantise(float *values, int64_t rows, int64_t cols, bool powers, uint8_t *codes, float *scales)
{
    int64_t across = (cols + BLOCK - 1) / BLOCK;
    for (int64_t b = 0; b < (rows + BLOCK - 1) / BLOCK * across; b++)
        scales[b] = powers ? ldexpf(1.0f, -(int)(8 + b % 3)) : (0.5f + (float)(b % 5) / 7) / 448;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            float scale = scales[r / BLOCK * across + c / BLOCK], code = values[r * cols + c] / scale;
            elements_from_f32("F8_E4M3", &code, &codes[r * cols + c], 1);
            elements_to_f32("F8_E4M3", &codes[r * cols + c], &code, 1);
            values[r * cols + c] = code * scale;
        }
}

/// The scales, as f32 or as bytes.
static void add_scales(struct checkpoint *c, const char *name, const char *dtype, const int64_t *shape, const float *scales)
{
    void *data = add(c, name, dtype, 3, shape);
    for (int64_t i = 0; i < shape[0] * shape[1] * shape[2]; i++)
        if (!strcmp(dtype, "F32"))
            ((float *)data)[i] = scales[i];
        else
            ((uint8_t *)data)[i] = (uint8_t)(127 + ilogbf(scales[i]));
}

/// Fused E4M3 experts in the order, with scales of scale_dtype, exact powers of two or not. The blocks lie over the
/// tensor as it is stored; gate_up and down become what the codes stand for.
static void store_e4m3(enum order order, bool transposed, const char *scale_dtype, bool powers)
{
    struct checkpoint c = {.count = 0};
    int64_t up_rows = transposed ? H : 2 * F, up_cols = transposed ? 2 * F : H, rows = transposed ? F : H,
            cols = transposed ? H : F;
    int64_t up_grid[] = {E, (up_rows + BLOCK - 1) / BLOCK, (up_cols + BLOCK - 1) / BLOCK},
            grid[] = {E, (rows + BLOCK - 1) / BLOCK, (cols + BLOCK - 1) / BLOCK};
    float *up = calloc(2 * F * H, sizeof *up), *out = calloc(H * F, sizeof *out), scales[2][E * 8];
    uint8_t *up_codes = add(&c, "up", "F8_E4M3", 3, (int64_t[]){E, up_rows, up_cols});
    uint8_t *out_codes = add(&c, "down", "F8_E4M3", 3, (int64_t[]){E, rows, cols});
    for (int64_t e = 0; e < E; e++) {
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t r = 0; r < 2 * F; r++)
                for (int64_t h = 0; h < H; h++) {
                    float *stored = &up[transposed ? h * 2 * F + place(order, r) : place(order, r) * H + h];
                    *(pass ? &gate_up[e][r][h] : stored) = pass ? *stored : gate_up[e][r][h];
                }
            for (int64_t h = 0; h < H; h++)
                for (int64_t f = 0; f < F; f++) {
                    float *stored = &out[transposed ? f * H + h : h * F + f];
                    *(pass ? &down[e][h][f] : stored) = pass ? *stored : down[e][h][f];
                }
            if (pass)
                continue;
            quantise(up, up_rows, up_cols, powers, up_codes + e * 2 * F * H, scales[0] + e * up_grid[1] * up_grid[2]);
            quantise(out, rows, cols, powers, out_codes + e * H * F, scales[1] + e * grid[1] * grid[2]);
        }
    }
    add_scales(&c, "up_s", scale_dtype, up_grid, scales[0]);
    add_scales(&c, "down_s", scale_dtype, grid, scales[1]);
    store_and_free(&c);
    free(up);
    free(out);
}

/// The checkpoint that is there against the numbers that it stands for, in f32 and in bf16, on one rank and four.
static void compare_with_numbers(const char *format, const char *gate_up_map, const char *down_map, bool biased,
                                 void (*store_numbers)(void))
{
    struct reading codes = {"f32", format, gate_up_map, down_map, biased, 1, NULL, NULL}, narrow = codes, spread = codes;
    narrow.type = "bf16";
    spread.ranks = 4;
    struct outcome o = run_fine(&codes), low = run_fine(&narrow), four = run_fine(&spread);
    narrow.target = has_cuda() ? emulated : NULL;
    struct outcome gpu = run_fine(&narrow);
    store_numbers();
    struct outcome want = run_fine(&(struct reading){"f32", "f32", SEPARATE_UP, SEPARATE_DOWN, biased, 1, NULL, NULL});
    double error = relative_l2(o.out, want.out, TOKENS * H);
    if (!(error <= 1e-6))
        fprintf(stderr, "%s %s: %g\n", format, gate_up_map, error);
    CU_ASSERT(error <= 1e-6);
    CU_ASSERT(relative_l2(four.out, want.out, TOKENS * H) <= 1e-6);
    CU_ASSERT(relative_l2(low.out, want.out, TOKENS * H) <= 6e-3);
    CU_ASSERT(relative_l2(gpu.out, want.out, TOKENS * H) <= 6e-3);
    CU_ASSERT(relative_l2(gpu.out, low.out, TOKENS * H) <= 3e-3);
    outcome_free(&o), outcome_free(&low), outcome_free(&four), outcome_free(&want), outcome_free(&gpu);
}

static void store_plain(void)
{
    store("F32", SEPARATE, false);
}

// B17, B23: blocks that reach over the border of gate and up, partial ones, scales that are no powers of two under a
// format that says ue8m0.
static void test_e4m3(void)
{
    static const struct {
        enum order order;
        bool transposed, powers;
        const char *scale_dtype, *format, *gate_up, *down;
    } cases[] = {
        {FUSED, false, false, "F32", "e4m3", "scaled(\"up\", suffix: \"_s\")", "scaled(\"down\", suffix: \"_s\")"},
        {FUSED, true, false, "F32", "e4m3", "scaled(transpose(\"up\"), suffix: \"_s\")",
         "scaled(transpose(\"down\"), suffix: \"_s\")"},
        {INTERLEAVED, false, false, "F32", "e4m3", "interleaved(scaled(\"up\", suffix: \"_s\"))",
         "scaled(\"down\", suffix: \"_s\")"},
        {SWAPPED, false, true, "U8", "e4m3_powers", "scaled(swapped(\"up\"), suffix: \"_s\")",
         "scaled(\"down\", suffix: \"_s\")"},
        {FUSED, false, true, "F8_E8M0", "e4m3_powers", "scaled(\"up\", suffix: \"_s\")", "scaled(\"down\", suffix: \"_s\")"},
        {FUSED, false, false, "F32", "e4m3_powers", "scaled(\"up\", suffix: \"_s\")", "scaled(\"down\", suffix: \"_s\")"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        draw();
        store_e4m3(cases[i].order, cases[i].transposed, cases[i].scale_dtype, cases[i].powers);
        compare_with_numbers(cases[i].format, cases[i].gate_up, cases[i].down, false, store_plain);
    }
    draw();
    store_e4m3(FUSED, false, "U8", true);
    struct outcome o = run_reading(&(struct reading){"f32", "e4m3", cases[0].gate_up, cases[0].down, false, 1, NULL, NULL});
    CU_ASSERT_EQUAL(o.status, MOE_BAD_WEIGHTS);
    CU_ASSERT_PTR_NOT_NULL(strstr(o.error, "tensor `up_s` is U8, the scales of parameter `w_gate_up` are declared f32"));
    outcome_free(&o);
}

// B32: the router in f32, one matrix of the experts in codes, the other in bf16: each tensor's type is its own.
static void b32_types_by_tensor(void)
{
    static float scales[E * 4];
    struct checkpoint c = {.count = 0};
    draw();
    for (int i = 0; i < E * H * F; i++)
        (&down[0][0][0])[i] = rintf((&down[0][0][0])[i] * 64) / 64;
    uint8_t *codes = add(&c, "up", "F8_E4M3", 3, (int64_t[]){E, 2 * F, H});
    for (int64_t e = 0; e < E; e++)
        quantise(&gate_up[e][0][0], 2 * F, H, false, codes + e * 2 * F * H, scales + e * 4);
    add_scales(&c, "up_s", "F32", (int64_t[]){E, 2, 2}, scales);
    add_floats(&c, "down", "BF16", 3, (int64_t[]){E, H, F}, &down[0][0][0]);
    store_and_free(&c);
    struct reading mixed = {"bf16", "e4m3", "scaled(\"up\", suffix: \"_s\")", "\"down\"", false, 1, "bf16", NULL}, wrong = mixed;
    struct outcome o = run_fine(&mixed);
    wrong.down_format = "f16"; // as many bytes, other numbers
    wrong.type = "f16";
    struct outcome refused = run_reading(&wrong);
    CU_ASSERT_EQUAL(refused.status, MOE_BAD_WEIGHTS);
    CU_ASSERT_PTR_NOT_NULL(strstr(refused.error, "tensor `down` is BF16, parameter `w_down` is declared f16"));
    store_plain();
    struct outcome want = run_fine(&(struct reading){"f32", "f32", SEPARATE_UP, SEPARATE_DOWN, false, 1, NULL, NULL});
    CU_ASSERT(relative_l2(o.out, want.out, TOKENS * H) <= 6e-3);
    outcome_free(&o), outcome_free(&refused), outcome_free(&want);
}

static void add_biases(struct checkpoint *c)
{
    static float stored[E][2 * F];
    for (int64_t e = 0; e < E; e++)
        for (int64_t r = 0; r < 2 * F; r++)
            stored[e][place(INTERLEAVED, r)] = biases_up[e][r];
    add_floats(c, "b_up", "BF16", 2, (int64_t[]){E, 2 * F}, &stored[0][0]);
    add_floats(c, "b_down", "BF16", 2, (int64_t[]){E, H}, &biases_down[0][0]);
}

/// One row of `cols` MXFP4 codes, lower nibble first, with a scale for each 32; `row` becomes what they stand for.
static void quantise_mxfp4(float *row, int64_t cols, int64_t seed, uint8_t *codes, uint8_t *scales)
{
    static const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int64_t k = 0; k < cols; k++) {
        scales[k / 32] = (uint8_t)(123 - (seed + k / 32) % 4);
        float scale = ldexpf(1.0f, scales[k / 32] - 127), size = fabsf(row[k]) / scale;
        uint8_t code = 0;
        while (code < 7 && size > (values[code] + values[code + 1]) / 2)
            code++;
        uint8_t sign = row[k] < 0 ? 8 : 0;
        codes[k / 2] = (uint8_t)(codes[k / 2] | (code | sign) << (k % 2 ? 4 : 0));
        row[k] = (row[k] < 0 ? -scale : scale) * values[code];
    }
}

/// gpt-oss: interleaved, blocks of 16 bytes, biases.
static void store_mxfp4(void)
{
    struct checkpoint c = {.count = 0};
    uint8_t *up = add(&c, "up_blocks", "U8", 4, (int64_t[]){E, 2 * F, H / 32, 16});
    uint8_t *up_scales = add(&c, "up_scales", "U8", 3, (int64_t[]){E, 2 * F, H / 32});
    uint8_t *out = add(&c, "down_blocks", "U8", 4, (int64_t[]){E, H, F / 32, 16});
    uint8_t *out_scales = add(&c, "down_scales", "U8", 3, (int64_t[]){E, H, F / 32});
    for (int64_t e = 0; e < E; e++) {
        for (int64_t r = 0; r < 2 * F; r++) {
            int64_t at = e * 2 * F + place(INTERLEAVED, r);
            quantise_mxfp4(gate_up[e][r], H, at, up + at * H / 2, up_scales + at * H / 32);
        }
        for (int64_t h = 0; h < H; h++)
            quantise_mxfp4(down[e][h], F, h, out + (e * H + h) * F / 2, out_scales + (e * H + h) * F / 32);
    }
    add_biases(&c);
    store_and_free(&c);
}

static void store_plain_biased(void)
{
    struct checkpoint c = {.count = 0};
    add_separate(&c, "F32");
    add_biases(&c);
    store_and_free(&c);
}

static void test_mxfp4(void)
{
    draw();
    store_mxfp4();
    compare_with_numbers("mxfp4", "scaled(interleaved(\"up\"), suffix: \"_scales\", values: \"_blocks\")",
                         "scaled(\"down\", suffix: \"_scales\", values: \"_blocks\")", true, store_plain_biased);
}

static int remove_file(void)
{
    remove(path());
    return 0;
}

void suite_layouts(void);
void suite_layouts(void)
{
    CU_pSuite suite = CU_add_suite("layouts", NULL, remove_file);
    CU_add_test(suite, "the same experts, however they lie", test_same_experts);
    CU_add_test(suite, "B31 the map alone says how", b31_wrong_readings);
    CU_add_test(suite, "E4M3 with scales, B17 and B23", test_e4m3);
    CU_add_test(suite, "B32 codes beside numbers", b32_types_by_tensor);
    CU_add_test(suite, "MXFP4 with biases, as gpt-oss", test_mxfp4);
}
