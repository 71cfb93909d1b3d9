// Drawing a layer (random_layer.h): sizes and options first, then its text, then the tensors that the text asks for.
#include "tests/cuda/random_layer.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/plan/words.h"
#include "runtime/weights/safetensors.h"
#include "tests/codegen/fixture.h"
#include "tests/codegen/fp8_reference.h"
#include "tests/end_to_end/reference.h"

enum { MOST_TENSORS = 16 };

/// splitmix64 (Steele, Lea, Flood, 2014): layers of neighbouring numbers have nothing in common.
static int64_t draw(struct random_layer *l, int64_t below)
{
    uint64_t z = l->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (int64_t)(((z ^ z >> 31) >> 1) % (uint64_t)below);
}

static bool one_in(struct random_layer *l, int64_t n)
{
    return draw(l, n) == 0;
}

/// About normal, with the deviation.
static double number(struct random_layer *l, double deviation)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (double)draw(l, 1 << 20) * 0x1p-20;
    return sum * deviation;
}

// ----------------------------------------------------------------------------------------------------------- sizes

static const char *const types[] = {"bf16", "f16", "f32"};

/// Codes of the experts' weights: of both matrices, or of one.
static void draw_codes(struct random_layer *l)
{
    static const int64_t across[] = {16, 48, 64, 128}, down[] = {1, 32, 64, 128};
    struct random_matrix *both[] = {&l->up, &l->down};
    l->arithmetic = strcmp(l->type, "f32") && one_in(l, 3) ? 1 + (int)draw(l, 2) : 0;
    bool mxfp4 = !l->arithmetic && one_in(l, 3), powers = one_in(l, 2);
    int64_t rows = l->arithmetic ? 128 : mxfp4 ? 1 : down[draw(l, 4)], cols = l->arithmetic ? 128 : mxfp4 ? 32 : across[draw(l, 4)];
    for (int i = 0; i < 2; i++)
        if (l->arithmetic || !one_in(l, 5)) {
            *both[i] = (struct random_matrix){.block_rows = rows, .block_cols = cols, .powers = powers || mxfp4};
            int64_t *size = i ? &l->ffn : &l->hidden;
            *size = mxfp4 ? (*size + 31) / 32 * 32 : *size;
        }
}

static int64_t draw_size(struct random_layer *l)
{
    static const int64_t edges[] = {8, 56, 64, 72, 120, 128, 136, 256, 264};
    return one_in(l, 2) ? edges[draw(l, 9)] : 8 * (1 + draw(l, 40));
}

static void draw_sizes(struct random_layer *l)
{
    static const int64_t experts[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 33, 130};
    static const int64_t counts[] = {0, 1, 2, 7, 16, 31, RANDOM_BOUND};
    l->type = types[draw(l, 4) % 3];
    l->hidden = draw_size(l);
    l->ffn = draw_size(l);
    l->experts = experts[draw(l, 12)];
    l->choices = 1 + draw(l, l->experts < 8 ? l->experts : 8);
    if (l->experts >= 12) { // each has tiles of its own, and the emulator takes its time
        l->hidden = l->hidden < 72 ? l->hidden : 72;
        l->ffn = l->ffn < 72 ? l->ffn : 72;
    }
    l->nodes = 1 + (uint32_t)draw(l, 3);
    l->gpus = 1 + (uint32_t)draw(l, 3);
    if (l->experts < l->nodes * l->gpus)
        l->nodes = l->gpus = 1;
    for (uint32_t r = 0; r < l->nodes * l->gpus; r++)
        l->all_tokens += l->tokens[r] = counts[draw(l, 7)];
    l->plain = one_in(l, 3);
    l->biased = one_in(l, 3);
    l->activation = (uint32_t)draw(l, activation_words_count);
    if (l->plain && l->activation == activation_clamped_silu)
        l->activation = activation_relu;
    l->up.type = l->down.type = strcmp(l->type, "f32") && one_in(l, 6) ? "f32" : l->type;
    if (!strcmp(l->up.type, l->type) && one_in(l, 2))
        draw_codes(l);
    if (l->arithmetic && !l->plain)
        l->ffn = (l->ffn + 63) / 64 * 64; // scales by runs of 64 rows
    l->up.rows = (l->plain ? 1 : 2) * l->ffn;
    l->up.cols = l->down.rows = l->hidden;
    l->down.cols = l->ffn;
    l->shared_experts = one_in(l, 3) ? 1 + draw(l, 2) : 0;
    int64_t shared_ffn = draw_size(l);
    l->shared_up = (struct random_matrix){.rows = 2 * shared_ffn, .cols = l->hidden, .type = l->type};
    l->shared_down = (struct random_matrix){.rows = l->hidden, .cols = shared_ffn, .type = l->type};
    l->gated_shared = l->shared_experts && one_in(l, 2);
    l->shifted = one_in(l, 8);
    l->router_bias = one_in(l, 3);
    l->logit_bias = one_in(l, 4);
}

// ------------------------------------------------------------------------------------------------------------ text

__attribute__((format(printf, 2, 3))) static void say(struct random_layer *l, const char *format, ...)
{
    size_t used = strlen(l->text);
    va_list args;
    va_start(args, format);
    int length = vsnprintf(l->text + used, sizeof l->text - used, format, args);
    va_end(args);
    CU_ASSERT_FATAL(length >= 0 && used + (size_t)length < sizeof l->text);
}

/// The name of a matrix's format, which stands before the layer.
static const char *format_of(const struct random_matrix *m)
{
    return m->type ? m->type : m->block_cols == 32 && m->block_rows == 1 ? "mxfp4" : "codes";
}

static void say_formats(struct random_layer *l)
{
    const struct random_matrix *coded = !l->up.type ? &l->up : &l->down;
    if (!coded->type && strcmp(format_of(coded), "codes") == 0)
        say(l, "format codes = fp8_e4m3 { block: [%d, %d], scale: %s };\n", (int)coded->block_rows, (int)coded->block_cols,
            coded->powers ? "ue8m0" : "f32");
    say(l, "format rows = fp8_e4m3 { block: [1, 128], scale: %s };\n", l->arithmetic == 2 ? "ue8m0" : "f32");
    say(l, "format half_rows = fp8_e4m3 { block: [1, 64], scale: %s };\n", one_in(l, 2) ? "ue8m0" : "f32");
}

static void say_router(struct random_layer *l)
{
    static const char *const scores[] = {"softmax", "softmax_after", "sigmoid", "sparsemixer", "cosine"};
    const char *score = scores[draw(l, 5)];
    if (!strcmp(score, "sparsemixer") && l->choices > 2)
        score = "softmax";
    say(l, "    stage route: r = topk(x, w_router, k: %d, score: %s, normalize: %s", (int)l->choices, score,
        one_in(l, 2) ? "true" : "false");
    if (one_in(l, 3))
        say(l, ", scale: 2.5");
    if (!strcmp(score, "cosine"))
        say(l, ", temperature: %d", 1 + (int)draw(l, 9));
    int64_t groups = 1 + draw(l, 4), size = l->experts / groups;
    int64_t kept = size ? (l->choices + size - 1) / size : 0;
    if (one_in(l, 2) && groups > 1 && l->experts % groups == 0 && kept <= groups) {
        kept += draw(l, groups - kept + 1);
        say(l, ", groups: %d, group_k: %d%s", (int)groups, (int)kept, size > 1 && one_in(l, 2) ? ", group_score: top2_sum" : "");
    }
    if (l->router_bias)
        say(l, ", bias: e_bias");
    else if (one_in(l, 8))
        say(l, ", bias: -3");
    if (l->logit_bias)
        say(l, ", logit_bias: l_bias");
    if (one_in(l, 5))
        say(l, ", noise: 0.2, seed: %d", 1 + (int)draw(l, 100));
    l->weight_on_input = one_in(l, 6);
    l->limited = one_in(l, 6);
    say(l, "%s%s);\n", l->weight_on_input ? ", weight_on: input" : "",
        !l->limited ? "" : one_in(l, 2) ? ", expert_tokens: 5" : ", expert_capacity: 1.1x");
}

/// A wire: plain, in blocks on all axes or on one.
static void say_wire(struct random_layer *l)
{
    const char *const formats[] = {"rows", l->arithmetic ? "rows" : "half_rows", "f32", "bf16", "f16"};
    if (!one_in(l, 2))
        return;
    const char *across = formats[draw(l, 4)], *inside = formats[draw(l, 5)];
    if (one_in(l, 2))
        inside = across;
    l->coded_wire = l->coded_wire || strstr(across, "rows") || strstr(inside, "rows");
    l->narrow_wire = l->narrow_wire || strstr(across, "16") || strstr(inside, "16");
    if (across == inside)
        say(l, ", wire: %s", across);
    else
        say(l, ", wire: { node: %s, gpu: %s }", across, inside);
}

static void say_stages(struct random_layer *l)
{
    static const char *const dispatches[] = {"", ", capacity: 8x", ", capacity: 0.3x, pool: 0.1x", ", capacity: 0.05x"};
    say_router(l);
    l->relayed = one_in(l, 3);
    say(l, "    stage dispatch: xd = dispatch(x, r%s%s", dispatches[draw(l, 4)], l->relayed ? ", via: node" : "");
    say_wire(l);
    say(l, ");\n    stage expert: yd = %s(xd, w_up, w_down", l->plain ? "mlp" : "swiglu");
    say(l, ", activation: %s", activation_words[l->activation]);
    if (l->activation == activation_clamped_silu)
        say(l, ", alpha: %g, limit: %g", LAYER_ALPHA, LAYER_LIMIT);
    if (l->biased)
        say(l, ", %s: b_up, b_down: b_down", l->plain ? "b_up" : "b_gate_up");
    if (l->arithmetic)
        say(l, ", arithmetic: rows");
    say(l, ");\n    stage combine: y0 = combine(yd, r");
    say_wire(l);
    say(l, ");\n");
    int last = 0;
    if (l->shared_experts) {
        say(l, "    stage shared: ys = swiglu(x, s_up, s_down);\n");
        if (l->gated_shared)
            say(l, "    stage gate: yg = gate(x, w_gate, ys);\n");
        say(l, "    stage merge: y1 = add(y0, %s);\n", l->gated_shared ? "yg" : "ys");
        last = 1;
    }
    if (l->shifted)
        say(l, "    stage bias: y2 = shift(y%d, b_out);\n", last);
    say(l, "    yield y%d;\n}\n", l->shifted ? 2 : last);
}

static const struct {
    const char *name, *shape;
    size_t wanted; // a bool of the layer
} vectors[] = {{"e_bias", "[experts]", offsetof(struct random_layer, router_bias)},
               {"l_bias", "[experts]", offsetof(struct random_layer, logit_bias)},
               {"w_gate", "[1, hidden]", offsetof(struct random_layer, gated_shared)},
               {"b_out", "[hidden]", offsetof(struct random_layer, shifted)}};
enum { VECTORS = sizeof vectors / sizeof *vectors };

static bool has_vector(const struct random_layer *l, size_t i)
{
    return *(const bool *)((const char *)l + vectors[i].wanted);
}

static void say_layer(struct random_layer *l)
{
    const char *t = l->type;
    say(l, "layer moe(x: %s[tokens, hidden]) -> %s[tokens, hidden] {\n    param w_router: %s[experts, hidden];\n", t, t,
        one_in(l, 3) ? t : "f32");
    say(l, "    param w_up: %s[experts, %d, hidden];\n", format_of(&l->up), (int)l->up.rows);
    say(l, "    param w_down: %s[experts, hidden, ffn];\n", format_of(&l->down));
    if (l->biased)
        say(l, "    param b_up: f32[experts, %d];\n    param b_down: f32[experts, hidden];\n", (int)l->up.rows);
    if (l->shared_experts)
        say(l, "    param s_up: %s[%d, %d, hidden];\n    param s_down: %s[%d, hidden, %d];\n", t, (int)l->shared_experts,
            (int)l->shared_up.rows, t, (int)l->shared_experts, (int)l->shared_down.cols);
    for (size_t i = 0; i < VECTORS; i++)
        if (has_vector(l, i))
            say(l, "    param %s: f32%s;\n", vectors[i].name, vectors[i].shape);
    say_stages(l);
}

static void say_map(struct random_layer *l)
{
    const struct random_matrix *both[] = {&l->up, &l->down};
    say(l, "weights file for moe {\n    w_router = \"w_router\";\n");
    if (l->biased)
        say(l, "    b_up = \"b_up\";\n    b_down = \"b_down\";\n");
    for (size_t i = 0; i < VECTORS; i++)
        if (has_vector(l, i))
            say(l, "    %s = \"%s\";\n", vectors[i].name, vectors[i].name);
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "w_down" : "w_up", *values = strcmp(format_of(both[i]), "mxfp4") ? "" : ", values: \"_blocks\"";
        if (both[i]->type)
            say(l, "    %s = \"%s\";\n", name, name);
        else
            say(l, "    %s = scaled(\"%s\", suffix: \"_scales\"%s);\n", name, name, values);
    }
    if (l->shared_experts)
        say(l, "    s_up = \"s_up\";\n    s_down = \"s_down\";\n");
    say(l, "}\n");
}

/// Not every schedule is for every layer: waves need experts to split, limits whole batches, relays whole rows.
static void choose_schedule(struct random_layer *l)
{
    static const struct {
        const char *name;
        int most; // of its count of parts; 0: it has none
        bool waves, runs;
    } schedules[] = {{"ladder", 4, false, false},   {"double_buffer", 4, false, false}, {"hook_receive", 4, false, false},
                     {"uneven", 0, false, false},   {"decode", 0, false, false},        {"waves", 2, true, false},
                     {"lagged", 2, true, false},    {"pieces", 4, false, true},         {"chunked_combine", 4, false, false},
                     {"serial", 0, false, false}};
    int64_t i = draw(l, sizeof schedules / sizeof *schedules), count = 2 + draw(l, 3);
    if (l->limited || (schedules[i].waves && l->experts < 2 * l->nodes * l->gpus) || (schedules[i].runs && l->relayed))
        i = sizeof schedules / sizeof *schedules - 1;
    if (schedules[i].most)
        snprintf(l->schedule, sizeof l->schedule, "%s(%s: %d)", schedules[i].name, schedules[i].waves ? "g" : "n",
                 (int)(count < schedules[i].most ? count : schedules[i].most));
    else
        snprintf(l->schedule, sizeof l->schedule, "%s", schedules[i].name);
}

static void write_text(struct random_layer *l)
{
    say(l, "import std.ops;\nimport std.hw { host };\n"
           "import std.schedules { serial, ladder, double_buffer, hook_receive, uneven, decode, waves, lagged, pieces,\n"
           "    chunked_combine };\n"
           "dim tokens <= %d;\ndim hidden = %d;\ndim ffn = %d;\ndim experts = %d;\n",
        RANDOM_BOUND, (int)l->hidden, (int)l->ffn, (int)l->experts);
    say_formats(l);
    say_layer(l);
    say_map(l);
    say(l, "cluster room { device = host; axis node[%u]; axis gpu[%u]; link far across node { bandwidth: 1GB/s, latency: 5us };\n"
           "    link near across gpu { bandwidth: 5GB/s, latency: 1us }; }\n",
        l->nodes, l->gpus);
    say(l, "placement p on room { place experts over node, gpu { balance: even };");
    if (l->nodes * l->gpus > 1 && one_in(l, 4))
        say(l, " replicate experts { copies: %d };", 2 + (int)draw(l, l->nodes * l->gpus - 1));
    choose_schedule(l);
    say(l, " }\npipeline main { layer = moe; cluster = room; placement = p; target = cpu;\n"
           "    weights = file(safetensors(\"none\")); use serial; }\n");
}

// ------------------------------------------------------------------------------------------------------ checkpoint

struct checkpoint {
    struct tensor tensors[MOST_TENSORS];
    size_t count;
};

static void *add(struct checkpoint *c, const char *name, const char *dtype, uint32_t dims, const int64_t *shape)
{
    struct tensor *t = &c->tensors[c->count++];
    CU_ASSERT_FATAL(c->count <= MOST_TENSORS);
    *t = (struct tensor){.name = name, .dims = dims};
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    memcpy(t->shape, shape, dims * sizeof *shape);
    t->bytes = (size_t)tensor_bytes(dtype, shape, dims);
    t->data = calloc(t->bytes + 1, 1);
    return (void *)(uintptr_t)t->data;
}

/// Random numbers of a type, and what they are in it.
static double *add_numbers(struct random_layer *l, struct checkpoint *c, const char *name, const char *type, uint32_t dims,
                           const int64_t *shape, double deviation)
{
    const char *dtype = !strcmp(type, "f32") ? "F32" : !strcmp(type, "f16") ? "F16" : "BF16";
    int64_t count = tensor_bytes("U8", shape, dims);
    float *values = calloc((size_t)count + 1, sizeof *values);
    double *exact = calloc((size_t)count + 1, sizeof *exact);
    void *data = add(c, name, dtype, dims, shape);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)number(l, deviation);
    elements_from_f32(dtype, values, data, (size_t)count);
    elements_to_f32(dtype, data, values, (size_t)count);
    for (int64_t i = 0; i < count; i++)
        exact[i] = (double)values[i];
    free(values);
    return exact;
}

/// Random codes, their scales each its own; MXFP4 two a byte.
static double *add_codes(struct random_layer *l, struct checkpoint *c, const struct random_matrix *m, const char *name,
                         const char *values_name, const char *scales_name)
{
    static const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    bool fp4 = !strcmp(format_of(m), "mxfp4");
    int64_t high = (m->rows + m->block_rows - 1) / m->block_rows, wide = (m->cols + m->block_cols - 1) / m->block_cols;
    int64_t e4m3_shape[] = {l->experts, m->rows, m->cols}, e2m1_shape[] = {l->experts, m->rows, m->cols / 32, 16};
    uint8_t *codes = fp4 ? add(c, values_name, "U8", 4, e2m1_shape) : add(c, name, "F8_E4M3", 3, e4m3_shape);
    void *scales = add(c, scales_name, fp4 ? "U8" : m->powers ? "F8_E8M0" : "F32", 3, (int64_t[]){l->experts, high, wide});
    double *values = calloc((size_t)(l->experts * m->rows * m->cols) + 1, sizeof *values);
    double unit = 0.25 / sqrt((double)m->cols);
    for (int64_t s = 0; s < l->experts * high * wide; s++)
        if (m->powers)
            ((uint8_t *)scales)[s] = (uint8_t)(127 + ilogb(unit) - draw(l, 4) - (fp4 ? 0 : 3));
        else
            ((float *)scales)[s] = (float)(unit / 8 * (0.5 + (double)draw(l, 1000) / 1000));
    for (int64_t i = 0; i < l->experts * m->rows * m->cols; i++) {
        int64_t e = i / (m->rows * m->cols), r = i / m->cols % m->rows, k = i % m->cols;
        int64_t s = (e * high + r / m->block_rows) * wide + k / m->block_cols;
        double scale = m->powers ? ldexp(1, ((uint8_t *)scales)[s] - 127) : (double)((float *)scales)[s];
        unsigned code = fp4 ? (unsigned)draw(l, 16) : fp8_encode((float)number(l, 4));
        if (fp4)
            codes[i / 2] = (uint8_t)(codes[i / 2] | code << (i % 2 ? 4 : 0));
        else
            codes[i] = (uint8_t)code;
        values[i] = scale * (!fp4 ? fp8_decode(code) : code & 8 ? -e2m1[code & 7] : e2m1[code]);
    }
    return values;
}

static void add_matrix(struct random_layer *l, struct checkpoint *c, struct random_matrix *m, const char *const *names,
                       int64_t experts)
{
    int64_t shape[] = {experts, m->rows, m->cols};
    m->values = m->type ? add_numbers(l, c, names[0], m->type, 3, shape, 1 / sqrt((double)m->cols))
                        : add_codes(l, c, m, names[0], names[1], names[2]);
}

/// The router's matrix, in which some experts are twins: their scores are equal to the bit.
static void add_router(struct random_layer *l, struct checkpoint *c)
{
    bool narrow = !strstr(l->text, "w_router: f32");
    int64_t shape[] = {l->experts, l->hidden}, size = l->hidden * (narrow ? 2 : 4);
    free(add_numbers(l, c, "w_router", narrow ? l->type : "f32", 2, shape, 2 / sqrt((double)l->hidden)));
    uint8_t *rows = (uint8_t *)(uintptr_t)c->tensors[c->count - 1].data;
    for (int64_t e = 1; e < l->experts; e++)
        if (one_in(l, 6))
            memcpy(rows + e * size, rows + draw(l, e) * size, (size_t)size);
}

static void write_checkpoint(struct random_layer *l, const char *path)
{
    static const char *const up[] = {"w_up", "w_up_blocks", "w_up_scales"}, *const down[] = {"w_down", "w_down_blocks", "w_down_scales"};
    struct checkpoint c = {.count = 0};
    char error[256] = "";
    add_router(l, &c);
    free(add_numbers(l, &c, "e_bias", "f32", 1, (int64_t[]){l->experts}, one_in(l, 3) ? 0 : 0.3));
    free(add_numbers(l, &c, "l_bias", "f32", 1, (int64_t[]){l->experts}, 1));
    add_matrix(l, &c, &l->up, up, l->experts);
    add_matrix(l, &c, &l->down, down, l->experts);
    l->b_up = add_numbers(l, &c, "b_up", "f32", 2, (int64_t[]){l->experts, l->up.rows}, 0.3);
    l->b_down = add_numbers(l, &c, "b_down", "f32", 2, (int64_t[]){l->experts, l->hidden}, 0.3);
    if (l->shared_experts) {
        add_matrix(l, &c, &l->shared_up, (const char *const[]){"s_up", "", ""}, l->shared_experts);
        add_matrix(l, &c, &l->shared_down, (const char *const[]){"s_down", "", ""}, l->shared_experts);
    }
    l->gate = add_numbers(l, &c, "w_gate", "f32", 2, (int64_t[]){1, l->hidden}, 0.3);
    l->shift = add_numbers(l, &c, "b_out", "f32", 1, (int64_t[]){l->hidden}, 0.5);
    CU_ASSERT_FATAL(tensors_write(path, c.tensors, c.count, error, sizeof error));
    for (size_t i = 0; i < c.count; i++)
        free((void *)(uintptr_t)c.tensors[i].data);
}

static void draw_tokens(struct random_layer *l)
{
    int64_t count = l->all_tokens * l->hidden;
    l->x = calloc((size_t)count + 1, sizeof *l->x);
    for (int64_t i = 0; i < count; i++)
        l->x[i] = (float)number(l, 1);
    for (int64_t t = 0; t < l->all_tokens && one_in(l, 2); t += 1 + draw(l, 5)) {
        float *row = l->x + t * l->hidden;
        int64_t kind = draw(l, 3);
        if (kind == 0)
            memset(row, 0, (size_t)l->hidden * sizeof *row);
        else
            row[draw(l, l->hidden)] = kind == 1 ? NAN : INFINITY;
    }
    round_to_dtype(l->type, l->x, (size_t)count);
}

/// Routes as input: distinct ids, slots without one, weights of any sign.
static void draw_routes(struct random_layer *l)
{
    l->given = true;
    l->given_ids = calloc((size_t)(l->all_tokens * l->choices) + 1, sizeof *l->given_ids);
    l->given_weights = calloc((size_t)(l->all_tokens * l->choices) + 1, sizeof *l->given_weights);
    for (int64_t t = 0; t < l->all_tokens; t++) {
        int64_t first = draw(l, l->experts);
        for (int64_t i = 0; i < l->choices; i++) {
            l->given_ids[t * l->choices + i] = one_in(l, 4) ? -1 : (int32_t)((first + i) % l->experts);
            l->given_weights[t * l->choices + i] = (float)number(l, 1);
        }
    }
}

void random_layer_draw(struct random_layer *l, uint64_t number_of_it, const char *path)
{
    *l = (struct random_layer){.number = number_of_it, .state = number_of_it << 32};
    draw_sizes(l);
    write_text(l);
    write_checkpoint(l, path);
    draw_tokens(l);
    if (!l->limited && one_in(l, 6))
        draw_routes(l);
}

void random_layer_free(struct random_layer *l)
{
    double *const blocks[] = {l->up.values, l->down.values, l->shared_up.values, l->shared_down.values,
                              l->b_up,      l->b_down,      l->gate,             l->shift};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
    free(l->x);
    free(l->given_ids);
    free(l->given_weights);
}

// ------------------------------------------------------------------------------------------------------- reference

static double dot(const float *x, const double *w, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)x[i] * w[i];
    return sum;
}

struct expert_of {
    const struct random_matrix *up, *down;
    int64_t expert;
    const double *b_up, *b_down; // NULL: none
    bool plain;
    uint32_t activation;
    double on_input, on_output; // weights
};

static void add_expert(const struct expert_of *e, const float *x, double *sum)
{
    int64_t ffn = e->down->cols, width = e->down->rows;
    const double *up = e->up->values + e->expert * e->up->rows * e->up->cols;
    const double *down = e->down->values + e->expert * width * ffn;
    double *hidden = calloc((size_t)ffn, sizeof *hidden);
    for (int64_t f = 0; f < ffn; f++) {
        const double *bias = e->b_up ? e->b_up + e->expert * e->up->rows : NULL;
        double gate = e->on_input * dot(x, up + f * e->up->cols, e->up->cols) + (bias ? bias[f] : 0);
        double value = e->plain ? 1 : e->on_input * dot(x, up + (ffn + f) * e->up->cols, e->up->cols) + (bias ? bias[ffn + f] : 0);
        hidden[f] = activated(e->activation, gate, value);
    }
    for (int64_t i = 0; i < width; i++) {
        double value = e->b_down ? e->b_down[e->expert * width + i] : 0;
        for (int64_t f = 0; f < ffn; f++)
            value += hidden[f] * down[i * ffn + f];
        sum[i] += e->on_output * value;
    }
    free(hidden);
}

static void add_shared(const struct random_layer *l, const float *x, double *sum)
{
    double *own = calloc((size_t)l->hidden, sizeof *own);
    for (int64_t e = 0; e < l->shared_experts; e++)
        add_expert(&(struct expert_of){.up = &l->shared_up, .down = &l->shared_down, .expert = e,
                                       .activation = activation_silu, .on_input = 1, .on_output = 1}, x, own);
    double factor = l->gated_shared ? 1 / (1 + exp(-dot(x, l->gate, l->hidden))) : 1;
    for (int64_t i = 0; i < l->hidden; i++)
        sum[i] += factor * own[i];
    free(own);
}

void random_layer_reference(const struct random_layer *l, const int32_t *ids, const float *weights, float *y)
{
    double *sum = calloc((size_t)l->hidden, sizeof *sum);
    for (int64_t t = 0; t < l->all_tokens; t++) {
        const float *x = l->x + t * l->hidden;
        memset(sum, 0, (size_t)l->hidden * sizeof *sum);
        for (int64_t i = t * l->choices; i < (t + 1) * l->choices; i++)
            if (ids[i] >= 0)
                add_expert(&(struct expert_of){.up = &l->up, .down = &l->down, .expert = ids[i], .plain = l->plain,
                                               .b_up = l->biased ? l->b_up : NULL, .b_down = l->biased ? l->b_down : NULL,
                                               .activation = l->activation,
                                               .on_input = l->weight_on_input ? (double)weights[i] : 1,
                                               .on_output = l->weight_on_input ? 1 : (double)weights[i]}, x, sum);
        if (l->shared_experts)
            add_shared(l, x, sum);
        for (int64_t i = 0; i < l->hidden; i++)
            y[t * l->hidden + i] = (float)(sum[i] + (l->shifted ? l->shift[i] : 0));
    }
    free(sum);
}
