// What the kernels do on a GPU: the experts of published models at many counts of tokens, in bf16, in FP8 arithmetic and with
// weights that are codes, rows spot-checked against float64; TFLOP/s beside the peak that a kernel of products alone reaches,
// for few tokens GB/s of weights beside a copy; pack and merge beside a copy, too. It runs where $MOE_GPU is set (make
// gpu-check); with the fake driver the sizes are a 64th, every form has one model, and the figures mean nothing.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/plan/messages.h"
#include "tests/codegen/fixture.h"
#include "tests/codegen/fp8_reference.h"
#include "tests/gpu/peaks.h"

enum { PATTERN = 1048573, MOST_CHOICES = 8 }; // a prime: repeated numbers, of which no two rows are alike

struct model {
    const char *name;
    int64_t h, f, experts, choices; // of one rank
};

static const struct model models[] = {{"DeepSeek-V3, 32 of 256 experts", 7168, 2048, 32, 8},
                                      {"Qwen3-235B, 16 of 128 experts", 4096, 1536, 16, 8},
                                      {"Mixtral 8x7B", 4096, 14336, 8, 2}};
enum { FEW_TOKENS = 32 }; // up to which the weights' bytes are what counts

/// How experts multiply. Rounding hidden rows to codes, which the reference does too, may fall the other way.
struct form {
    const char *name;
    uint32_t codes;             // that weights are; none: bf16
    int64_t block;              // of codes that share a scale
    bool fp8;                   // rows are codes, too
    double bound;               // of the relative error
    int64_t token_counts[8];    // 0 ends them
};

static const struct form forms[] = {
    {"bf16", dtype_none, 0, false, 1e-2, {1, 8, 32, 64, 512, 4096, 8192}},
    {"FP8 arithmetic", dtype_fp8_e4m3, 128, true, 3e-2, {1, 8, 32, 512, 8192}},
    {"E4M3 weights", dtype_fp8_e4m3, 128, false, 1e-2, {1, 32, 4096}},
    {"MXFP4 weights", dtype_mxfp4, 32, false, 1e-2, {1, 32, 4096}},
};
enum { MODELS = sizeof models / sizeof *models, FORMS = sizeof forms / sizeof *forms };

static uint16_t *pattern;     // on the host, and at the beginning of every tensor of numbers
static uint8_t *code_pattern; // the same of codes, none of them NaN
static double e4m3[256];      // what they stand for

/// `bytes` on the device: what lies at `from`, again and again.
static void *repeated(const void *from, size_t length, size_t bytes)
{
    size_t filled = length;
    uint8_t *memory = gpu_alloc(bytes + 4096);
    gpu_upload(memory, from, bytes < filled ? bytes : filled);
    for (; filled < bytes; filled *= 2)
        gpu_copy(memory + filled, memory, bytes - filled < filled ? bytes - filled : filled);
    return memory;
}

/// A tensor of `count` numbers: the pattern.
static void *device_tensor(int64_t count)
{
    return repeated(pattern, PATTERN * 2, (size_t)count * 2);
}

static double pattern_at(int64_t index)
{
    return get_number(pattern, index % PATTERN, dtype_bf16);
}

static void *uploaded(const void *from, size_t bytes)
{
    void *memory = gpu_alloc(bytes + 64);
    gpu_upload(memory, from, bytes);
    return memory;
}

static void make_pattern(void)
{
    struct rng rng = {5};
    pattern = block(PATTERN * 2);
    code_pattern = block(PATTERN);
    for (int64_t i = 0; i < PATTERN; i++) {
        put_number(pattern, i, dtype_bf16, random_float(&rng) / 16);
        code_pattern[i] = (uint8_t)((int)(random_float(&rng) * 128) & 0xbf); // E4M3 below 2
    }
    for (unsigned code = 0; code < 256; code++)
        e4m3[code] = fp8_decode(code);
}

static void free_pattern(void)
{
    free(pattern);
    free(code_pattern);
}

// ------------------------------------------------------------------------------------------------------------ experts

/// A matrix of every expert on the device.
struct weights {
    struct plan_param param;
    uint8_t *at;
};

/// A model's experts on the device, and what one launch of each kernel needs.
struct experts {
    struct model m;
    struct form form;
    int64_t tokens, pairs, a_stride, hidden_stride;
    struct code code;
    struct weights up, down;
    int64_t *first;
    int32_t *row_of;
    float *weights;
    void *a, *hidden, *acc, *y, *held[5];
    struct moe_kargs up_args, down_args;
};

/// The byte that all bytes of an expert's scales are: f32 numbers of about 1/88 and 1/350, powers of two 2^-7 and 2^-8.
static int scale_byte(const struct weights *w, int64_t expert)
{
    return (w->param.dtype == dtype_mxfp4 ? 0x78 : 0x3c) - (int)(expert % 2);
}

static double scale_of(const struct weights *w, int64_t expert)
{
    float scale;
    memset(&scale, scale_byte(w, expert), sizeof scale);
    return w->param.dtype == dtype_mxfp4 ? ldexp(1, scale_byte(w, expert) - 127) : (double)scale;
}

static void make_weights(struct weights *w, const struct form *form, int64_t experts, int64_t rows, int64_t cols, bool halves)
{
    w->param = (struct plan_param){.dtype = form->codes ? form->codes : dtype_bf16, .operand = dtype_bf16, .rows = rows, .cols = cols,
                                   .block_rows = 1, .block_cols = form->block, .halves = halves};
    CU_ASSERT_FATAL(cuda_choose_layout(&w->param));
    if (!form->codes) {
        w->at = device_tensor(experts * rows * cols);
        return;
    }
    w->at = repeated(code_pattern, PATTERN, (size_t)(experts * w->param.bytes));
    int64_t codes = plan_round_up(rows * plan_row_bytes(&w->param), 64);
    for (int64_t e = 0; e < experts; e++)
        gpu_fill(w->at + e * w->param.bytes + codes, scale_byte(w, e), (size_t)(w->param.bytes - codes));
}

/// Of an expert, without the scale that all of its codes have.
static double weight_at(const struct weights *w, int64_t expert, int64_t row, int64_t k)
{
    static const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    if (w->param.dtype == dtype_bf16)
        return pattern_at((expert * w->param.rows + row) * w->param.cols + k);
    bool fp4 = w->param.dtype == dtype_mxfp4;
    unsigned code = code_pattern[(expert * w->param.bytes + row * plan_row_bytes(&w->param) + (fp4 ? k / 2 : k)) % PATTERN];
    if (!fp4)
        return e4m3[code];
    code = code >> k % 2 * 4 & 15; // the lower one first
    return code & 8 ? -e2m1[code & 7] : e2m1[code];
}

static void compile_experts(struct experts *e)
{
    const struct model *m = &e->m;
    const int64_t block = e->form.block, arithmetic = e->form.fp8 ? moe_wire_code(dtype_fp8_e4m3, 128, scale_type_f32) : 0;
    e->a_stride = e->form.fp8 ? moe_row_stride(moe_coded_row_bytes(m->h, 1, 128), 1) : m->h * 2;
    e->hidden_stride = e->form.fp8 ? moe_row_stride(moe_coded_row_bytes(m->f, 1, 128), 1) : m->f * 2;
    make_weights(&e->up, &e->form, m->experts, 2 * m->f, m->h, true);
    make_weights(&e->down, &e->form, m->experts, m->h, m->f, false);
    code_init(&e->code);
    code_add(&e->code, kernel_role_mlp_up,
             (int64_t[]){m->h, m->f, activation_silu, dtype_bf16, e->a_stride, e->hidden_stride, 0, 0, e->form.codes, block,
                         e->up.param.scales, arithmetic}, 12, 1);
    code_add(&e->code, kernel_role_mlp_down,
             (int64_t[]){m->f, m->h, dtype_bf16, dtype_bf16, e->hidden_stride, m->h * 4, 0, 0, e->form.codes, block,
                         e->down.param.scales, arithmetic}, 12, 1);
    if (e->form.fp8)
        code_add(&e->code, kernel_role_copy_rows,
                 (int64_t[]){m->h, dtype_bf16, dtype_fp8_e4m3, 128, scale_type_f32, 0, 0, dtype_fp8_e4m3}, 8, 1);
    e->code.host = (struct host_options){.seed = 1, .most_blocks = 2};
    CU_ASSERT_FATAL(code_generate(&e->code, gpu_level("")));
}

/// Token t goes to experts t * choices + i; pairs by expert, and by token within one.
static void route(struct experts *e)
{
    const struct model *m = &e->m;
    struct rng rng = {9};
    e->pairs = 0;
    e->first = block((m->experts + 1) * 8);
    e->row_of = block(e->tokens * m->choices * 4);
    e->weights = block(e->tokens * m->choices * 4);
    for (int64_t x = 0; x < m->experts; x++) {
        e->first[x] = e->pairs;
        for (int64_t t = 0; t < e->tokens; t++)
            if ((x - t * m->choices % m->experts + m->experts) % m->experts < m->choices) {
                e->weights[e->pairs] = random_float(&rng);
                e->row_of[e->pairs++] = (int32_t)t;
            }
    }
    e->first[m->experts] = e->pairs;
}

/// Pointers to rows of a tensor on the device, themselves there.
static void *row_pointers(void *tensor, int64_t rows, int64_t stride)
{
    void **pointers = block(rows * 8);
    for (int64_t r = 0; r < rows; r++)
        pointers[r] = (uint8_t *)tensor + r * stride;
    void *there = uploaded(pointers, (size_t)rows * 8);
    free(pointers);
    return there;
}

/// Rows of A, a row a pair: the pattern, in FP8 arithmetic as the kernel that packs them makes codes of it.
static void make_rows(struct experts *e)
{
    const struct model *m = &e->m;
    void *rows = device_tensor(e->pairs * m->h);
    e->a = rows;
    if (!e->form.fp8)
        return;
    e->a = gpu_alloc((size_t)(e->pairs * e->a_stride));
    gpu_fill(e->a, 0xff, (size_t)(e->pairs * e->a_stride));
    struct moe_row_table table = {e->pairs, row_pointers(rows, e->pairs, m->h * 2), row_pointers(e->a, e->pairs, e->a_stride)};
    void *control = uploaded(&table, sizeof table);
    gpu_launch(&e->code.on_gpu[2], &(struct moe_kargs){.p = {control}}, 0, e->pairs, 0, 0);
    gpu_wait();
    gpu_free((void *)(uintptr_t)table.src), gpu_free((void *)(uintptr_t)table.dst), gpu_free(control), gpu_free(rows);
}

static void set_up(struct experts *e)
{
    const struct model *m = &e->m;
    route(e);
    make_rows(e);
    e->hidden = gpu_alloc((size_t)(e->pairs * e->hidden_stride));
    e->acc = gpu_alloc((size_t)(e->tokens * m->h * 4));
    e->y = gpu_alloc((size_t)(e->tokens * m->h * 2));
    void **rows = block(e->tokens * 8);
    for (int64_t t = 0; t < e->tokens; t++)
        rows[t] = (uint8_t *)e->y + t * m->h * 2;
    struct moe_pairs_head head = {.experts = m->experts, .rows = e->tokens};
    head.expert_first = e->held[0] = uploaded(e->first, (size_t)(m->experts + 1) * 8);
    head.pair_row = e->held[1] = uploaded(e->row_of, (size_t)e->pairs * 4);
    head.pair_weight = e->held[2] = uploaded(e->weights, (size_t)e->pairs * 4);
    head.row_dst = e->held[3] = uploaded(rows, (size_t)e->tokens * 8);
    e->held[4] = uploaded(&head, sizeof head);
    e->up_args = (struct moe_kargs){.p = {e->held[4], e->a, e->up.at, e->hidden}};
    e->down_args = (struct moe_kargs){.p = {e->held[4], e->hidden, e->down.at, e->acc}};
    gpu_fill(e->hidden, 0xff, (size_t)(e->pairs * e->hidden_stride));
    gpu_fill(e->acc, 0xff, (size_t)(e->tokens * m->h * 4));
    gpu_fill(e->y, 0xff, (size_t)(e->tokens * m->h * 2));
    free(rows);
}

static void tear_down(struct experts *e)
{
    void *const memory[] = {e->a, e->hidden, e->acc, e->y};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        gpu_free(memory[i]);
    for (size_t i = 0; i < sizeof e->held / sizeof *e->held; i++)
        gpu_free(e->held[i]);
    free(e->first), free(e->row_of), free(e->weights);
}

static void run_experts(void *user)
{
    const struct experts *e = user;
    const struct code *code = &e->code;
    const int64_t panels = ROW(&code->plan, plan_kernel, 0)->unit_count;
    gpu_launch(&code->on_gpu[0], &e->up_args, 0, panels * e->m.experts, e->pairs, e->m.experts);
    gpu_launch(&code->on_gpu[1], &e->down_args, 0, ROW(&code->plan, plan_kernel, 1)->unit_count, e->pairs, e->m.experts);
}

/// In FP8 arithmetic the numbers that a row's codes stand for, which it had in bf16 before.
static void coded(const struct experts *e, double *row, int64_t width)
{
    if (!e->form.fp8)
        return;
    float *values = block(width * 4);
    uint8_t *packed = block(width + (width + 127) / 128 * 4);
    for (int64_t i = 0; i < width; i++) {
        uint16_t narrow;
        put_number(&narrow, 0, dtype_bf16, (float)row[i]);
        values[i] = (float)get_number(&narrow, 0, dtype_bf16);
    }
    fp8_pack(values, width, 128, false, packed);
    fp8_unpack(packed, width, 128, false, values);
    for (int64_t i = 0; i < width; i++)
        row[i] = values[i];
    free(values), free(packed);
}

/// What a pair adds to some columns of its token.
static void add_pair(const struct experts *e, int64_t expert, int64_t pair, const int64_t *columns, double *sums, int count)
{
    const struct model *m = &e->m;
    double *hidden = block(m->f * 8), *x = block(m->h * 8);
    double up_scale = e->form.codes ? scale_of(&e->up, expert) : 1, down_scale = e->form.codes ? scale_of(&e->down, expert) : 1;
    for (int64_t k = 0; k < m->h; k++)
        x[k] = pattern_at(pair * m->h + k);
    coded(e, x, m->h);
    for (int64_t f = 0; f < m->f; f++) {
        double gate = 0, up = 0;
        for (int64_t k = 0; k < m->h; k++) {
            gate += x[k] * weight_at(&e->up, expert, f, k);
            up += x[k] * weight_at(&e->up, expert, m->f + f, k);
        }
        gate *= up_scale;
        hidden[f] = gate / (1 + exp(-gate)) * up * up_scale;
    }
    coded(e, hidden, m->f);
    for (int c = 0; c < count; c++) {
        double sum = 0;
        for (int64_t f = 0; f < m->f; f++)
            sum += hidden[f] * weight_at(&e->down, expert, columns[c], f);
        sums[c] += e->weights[pair] * sum * down_scale;
    }
    free(hidden), free(x);
}

/// Relative error of a token's result, in some of its columns.
static double token_error(const struct experts *e, int64_t token)
{
    enum { COLUMNS = 64 };
    int64_t columns[COLUMNS];
    double want[COLUMNS] = {0}, got[COLUMNS];
    uint16_t *y = block(e->m.h * 2);
    for (int c = 0; c < COLUMNS; c++)
        columns[c] = c * (e->m.h - 1) / (COLUMNS - 1);
    for (int64_t x = 0; x < e->m.experts; x++)
        for (int64_t p = e->first[x]; p < e->first[x + 1]; p++)
            if (e->row_of[p] == token)
                add_pair(e, x, p, columns, want, COLUMNS);
    gpu_download(y, (uint8_t *)e->y + token * e->m.h * 2, (size_t)e->m.h * 2);
    for (int c = 0; c < COLUMNS; c++)
        got[c] = get_number(y, columns[c], dtype_bf16);
    free(y);
    return relative_error(want, got, COLUMNS);
}

// --------------------------------------------------------------------------------------------------------- rows

/// Kernel 0 of `code` on a control struct in the device's memory.
struct row_work {
    struct code code;
    struct moe_kargs args;
    int64_t rows;
};

static void run_row_work(void *user)
{
    const struct row_work *w = user;
    gpu_launch(&w->code.on_gpu[0], &w->args, 0, w->rows, 0, 0);
}

static void compile_row_work(struct row_work *w, enum kernel_role role, const int64_t *n)
{
    code_init(&w->code);
    w->code.host = (struct host_options){.seed = 1, .most_blocks = 2};
    code_add(&w->code, role, n, 9, 1);
    CU_ASSERT_FATAL(code_generate(&w->code, gpu_level("")));
}

/// GB/s of packing rows of bf16 into E4M3 blocks of 128.
static double measure_pack(int64_t h, int64_t rows)
{
    struct row_work w = {.rows = rows};
    int64_t packed = moe_wire_bytes(dtype_fp8_e4m3, h, 128, scale_type_f32);
    int64_t stride = (packed + 63) / 64 * 64;
    void *from = device_tensor(rows * h), *to = gpu_alloc((size_t)(rows * stride));
    compile_row_work(&w, kernel_role_copy_rows, (int64_t[9]){h, dtype_bf16, dtype_fp8_e4m3, 128, scale_type_f32});
    struct moe_row_table table = {rows, row_pointers(from, rows, h * 2), row_pointers(to, rows, stride)};
    w.args.p[0] = uploaded(&table, sizeof table);
    double rate = (double)(rows * (h * 2 + packed)) / gpu_seconds(run_row_work, &w) / 1e9;
    gpu_free((void *)(uintptr_t)table.src), gpu_free((void *)(uintptr_t)table.dst), gpu_free(w.args.p[0]);
    gpu_free(from), gpu_free(to);
    code_free(&w.code);
    return rate;
}

/// GB/s of adding up four replies a token.
static double measure_merge(int64_t h, int64_t tokens)
{
    enum { REPLIES = 4 };
    struct row_work w = {.rows = tokens};
    int64_t *first = block((tokens + 1) * 8);
    void *from = device_tensor(tokens * REPLIES * h), *to = gpu_alloc((size_t)(tokens * h * 2));
    for (int64_t t = 0; t <= tokens; t++)
        first[t] = t * REPLIES;
    compile_row_work(&w, kernel_role_merge, (int64_t[9]){h, dtype_bf16, dtype_bf16});
    struct moe_bins_head bins = {.tokens = tokens,
                                 .merge_first = uploaded(first, (size_t)(tokens + 1) * 8),
                                 .merge_rows = row_pointers(from, tokens * REPLIES, h * 2)};
    w.args.p[MERGE_BINS] = uploaded(&bins, sizeof bins);
    w.args.p[MERGE_Y] = to;
    double rate = (double)(tokens * h * 2 * (REPLIES + 1)) / gpu_seconds(run_row_work, &w) / 1e9;
    gpu_free((void *)(uintptr_t)bins.merge_first), gpu_free((void *)(uintptr_t)bins.merge_rows), gpu_free(w.args.p[MERGE_BINS]);
    gpu_free(from), gpu_free(to);
    free(first);
    code_free(&w.code);
    return rate;
}

// -------------------------------------------------------------------------------------------------------------- tests

static void test_opens(void)
{
    const char *problem = gpu_open();
    if (problem)
        fprintf(stderr, "\nno GPU to check the kernels on: %s\n", problem);
    else
        printf("\n    %s, %d multiprocessors, %s", gpu_name(), gpu_multiprocessors(), gpu_level(""));
    CU_ASSERT_PTR_NULL_FATAL(problem);
}

/// Bytes of the weights that some row needs.
static double weights_read(const struct experts *e)
{
    int64_t experts = 0;
    for (int64_t x = 0; x < e->m.experts; x++)
        experts += e->first[x + 1] > e->first[x];
    return (double)experts * (double)(plan_packed_bytes(&e->up.param) + plan_packed_bytes(&e->down.param));
}

static void check_tokens(struct experts *e, double peak, double copy)
{
    set_up(e);
    run_experts(e);
    double error = token_error(e, e->tokens / 2), seconds = gpu_seconds(run_experts, e);
    double rate = 2.0 * 3 * (double)(e->pairs * e->m.h * e->m.f) / seconds / 1e12;
    printf("\n    %-32s %-14s %6d tokens %9.1f us %8.1f TFLOP/s %5.1f%% of the peak, error %.1e", e->m.name, e->form.name,
           (int)e->tokens, seconds * 1e6, rate, 100 * rate / peak, error);
    if (e->tokens <= FEW_TOKENS) {
        double bytes = weights_read(e) / seconds / 1e9;
        printf(", weights %.0f GB/s, %.1f%% of a copy", bytes, 100 * bytes / copy);
    }
    CU_ASSERT(error <= e->form.bound);
    tear_down(e);
}

static void check_model(const struct model *model, const struct form *form, double peak, double copy)
{
    struct experts e = {.m = *model, .form = *form};
    int64_t part = gpu_is_fake() ? 64 : 1;
    e.m.h /= part, e.m.f /= part;
    e.m.experts = gpu_is_fake() && e.m.experts > 8 ? 8 : e.m.experts;
    compile_experts(&e);
    for (const int64_t *tokens = form->token_counts; *tokens; tokens++) {
        e.tokens = *tokens;
        if (!gpu_is_fake() || e.tokens <= FEW_TOKENS)
            check_tokens(&e, peak, copy);
    }
    gpu_free(e.up.at);
    gpu_free(e.down.at);
    code_free(&e.code);
}

/// FP8 arithmetic without FP8 tensor cores widens codes.
static void test_experts(void)
{
    CU_ASSERT_PTR_NULL_FATAL(gpu_open());
    const struct cuda_chip *chip = cuda_chip(strchr(gpu_level(""), ':') + 1);
    double peak = measure_peak(false), coded_peak = chip->multiplies_codes ? measure_peak(true) : peak, copy = measure_copy();
    make_pattern();
    printf("\n    products alone reach %.1f TFLOP/s in bf16, %.1f of E4M3 codes; a copy %.0f GB/s", peak, coded_peak, copy);
    for (size_t i = 0; i < MODELS * FORMS; i++)
        if (!gpu_is_fake() || i % FORMS % MODELS == i / FORMS)
            check_model(&models[i / FORMS], &forms[i % FORMS], forms[i % FORMS].fp8 ? coded_peak : peak, copy);
    free_pattern();
}

static void test_rows(void)
{
    CU_ASSERT_PTR_NULL_FATAL(gpu_open());
    double copy = measure_copy();
    int64_t h = gpu_is_fake() ? 448 : 7168, rows = gpu_is_fake() ? 16 : 8192;
    make_pattern();
    double pack = measure_pack(h, rows), merge = measure_merge(h, rows);
    printf("\n    a copy moves %.0f GB/s; pack %.0f GB/s, %.1f%% of it; merge %.0f GB/s, %.1f%%", copy, pack, 100 * pack / copy,
           merge, 100 * merge / copy);
    CU_ASSERT(pack > 0 && merge > 0);
    free_pattern();
}

void suite_gpu_opens(void);
void suite_gpu_opens(void)
{
    CU_pSuite suite = CU_add_suite("gpu_opens", NULL, NULL);
    if (gpu_wanted())
        CU_add_test(suite, "a GPU is there", test_opens);
}

void suite_gpu(void);
void suite_gpu(void)
{
    CU_pSuite suite = CU_add_suite("gpu", NULL, NULL);
    if (!gpu_wanted())
        return;
    CU_add_test(suite, "experts of published models", test_experts);
    CU_add_test(suite, "pack and merge", test_rows);
}
