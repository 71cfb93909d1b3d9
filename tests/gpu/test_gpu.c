// What the kernels do on a GPU: the experts of published models at many counts of tokens, rows spot-checked against float64,
// TFLOP/s beside the peak that a kernel of products alone reaches; pack and merge in GB/s beside a copy. It runs where $MOE_GPU
// is set (make gpu-check); with the fake driver the sizes are a 64th and the figures mean nothing.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/plan/messages.h"
#include "tests/codegen/fixture.h"

enum { PATTERN = 1048573, MOST_CHOICES = 8 }; // a prime: repeated numbers, of which no two rows are alike

struct model {
    const char *name;
    int64_t h, f, experts, choices; // of one rank
};

static const struct model models[] = {{"DeepSeek-V3, 32 of 256 experts", 7168, 2048, 32, 8},
                                      {"Qwen3-235B, 16 of 128 experts", 4096, 1536, 16, 8},
                                      {"Mixtral 8x7B", 4096, 14336, 8, 2}};
static const int64_t token_counts[] = {1, 8, 64, 512, 4096, 8192};

static uint16_t *pattern; // on the host, and at the beginning of every tensor

/// A tensor of `count` numbers on the device: the pattern, again and again.
static void *device_tensor(int64_t count)
{
    size_t bytes = (size_t)count * 2, filled = PATTERN * 2;
    uint8_t *memory = gpu_alloc(bytes + 4096);
    gpu_upload(memory, pattern, bytes < filled ? bytes : filled);
    for (; filled < bytes; filled *= 2)
        gpu_copy(memory + filled, memory, bytes - filled < filled ? bytes - filled : filled);
    return memory;
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
    for (int64_t i = 0; i < PATTERN; i++)
        put_number(pattern, i, dtype_bf16, random_float(&rng) / 16);
}

// ------------------------------------------------------------------------------------------------------------ experts

/// A model's experts on the device, and what one launch of each kernel needs.
struct experts {
    struct model m;
    int64_t tokens, pairs;
    struct code code;
    int64_t *first;
    int32_t *row_of;
    float *weights;
    void *a, *up, *down, *hidden, *acc, *y, *held[5];
    struct moe_kargs up_args, down_args;
};

static void compile_experts(struct experts *e)
{
    const struct model *m = &e->m;
    code_init(&e->code);
    code_add(&e->code, kernel_role_mlp_up, (int64_t[]){m->h, m->f, activation_silu, dtype_bf16, m->h * 2, m->f * 2, 0, 0}, 8, 1);
    code_add(&e->code, kernel_role_mlp_down, (int64_t[]){m->f, m->h, dtype_bf16, dtype_bf16, m->f * 2, m->h * 4, 0, 0}, 8, 1);
    e->code.host = (struct host_options){.seed = 1, .most_blocks = 2};
    CU_ASSERT_FATAL(code_generate(&e->code, gpu_level("")));
    int64_t up = 2 * m->f * m->h, down = m->h * m->f;
    e->up = device_tensor(m->experts * up);
    e->down = device_tensor(m->experts * down);
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

static void set_up(struct experts *e)
{
    const struct model *m = &e->m;
    route(e);
    e->a = device_tensor(e->pairs * m->h);
    e->hidden = gpu_alloc((size_t)(e->pairs * m->f * 2));
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
    e->up_args = (struct moe_kargs){.p = {e->held[4], e->a, e->up, e->hidden}};
    e->down_args = (struct moe_kargs){.p = {e->held[4], e->hidden, e->down, e->acc}};
    gpu_fill(e->hidden, 0xff, (size_t)(e->pairs * m->f * 2));
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

/// What a pair adds to some columns of its token.
static void add_pair(const struct experts *e, int64_t expert, int64_t pair, const int64_t *columns, double *sums, int count)
{
    const struct model *m = &e->m;
    double *hidden = block(m->f * 8);
    for (int64_t f = 0; f < m->f; f++) {
        double gate = 0, up = 0;
        int64_t row = (expert * 2 * m->f + f) * m->h;
        for (int64_t k = 0; k < m->h; k++) {
            double x = pattern_at(pair * m->h + k);
            gate += x * pattern_at(row + k);
            up += x * pattern_at(row + m->f * m->h + k);
        }
        hidden[f] = gate / (1 + exp(-gate)) * up;
    }
    for (int c = 0; c < count; c++) {
        double sum = 0;
        for (int64_t f = 0; f < m->f; f++)
            sum += hidden[f] * pattern_at((expert * m->h + columns[c]) * m->f + f);
        sums[c] += e->weights[pair] * sum;
    }
    free(hidden);
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

// -------------------------------------------------------------------------------------------------------------- peaks

// Products and nothing else, on random numbers in shared memory. `end` is how many rounds.
static const char peak_text[] =
    "#define KERNEL_NAME peak\n#include \"device.h\"\nconstexpr int SHARED_BYTES = 65536;\n"
    "GPU_KERNEL(256, 1)\n{\n"
    "    uint32_t *words = (uint32_t *)gpu::shared(), state = gpu::thread() + 1;\n"
    "    for (int i = gpu::thread(); i < SHARED_BYTES / 4; i += 256) {\n"
    "        state = state * 1664525u + 1013904223u;\n"
    "        words[i] = 0x3c003c00u | (state & 0x83ff83ffu);\n"
    "    }\n"
    "    float sum = 0;\n"
    "%s"
    "    if (sum == 12345.0f) *(float *)args.k.p[0] = sum;\n"
    "}\n";
static const char wide_products[] =
    "    gpu::publish();\n    gpu::sync_block();\n"
    "    char *a = gpu::shared() + gpu::thread() / 128 * 32768, *b = a + 16384;\n"
    "    float d[2][16][4];\n"
    "    for (int64_t r = 0; r < args.end; r++) {\n"
    "        gpu::multiply_begin();\n"
    "        GPU_UNROLL for (int k = 0; k < 128; k += 32)\n"
    "            GPU_UNROLL for (int m = 0; m < 2; m++)\n"
    "                gpu::multiply_group<false, 128>(d[m], gpu::matrix_k(gpu::matrix_at(a + m * 8192), k),\n"
    "                                                gpu::matrix_k(gpu::matrix_at(b), k), r > 0 || k > 0);\n"
    "        gpu::multiply_commit();\n        gpu::multiply_wait<0>();\n"
    "    }\n"
    "    GPU_UNROLL for (int m = 0; m < 2; m++) gpu::multiply_end(d[m]);\n"
    "    GPU_UNROLL for (int m = 0; m < 2; m++)\n"
    "        GPU_UNROLL for (int n = 0; n < 16; n++) sum += d[m][n][0] + d[m][n][1] + d[m][n][2] + d[m][n][3];\n";
static const char narrow_products[] =
    "    gpu::sync_block();\n"
    "    float d[8][4] = {};\n    uint32_t a[4];\n"
    "    for (int i = 0; i < 4; i++) a[i] = words[gpu::thread() + 256 * i];\n"
    "    for (int64_t r = 0; r < args.end; r++)\n"
    "        GPU_UNROLL for (int n = 0; n < 8; n++) gpu::multiply<false>(d[n], a, a[n % 4], a[(n + 1) % 4]);\n"
    "    GPU_UNROLL for (int n = 0; n < 8; n++) sum += d[n][0] + d[n][1] + d[n][2] + d[n][3];\n";

struct peak {
    struct code code;
    struct cuda_source source;
    struct gpu_kernel kernel;
    int64_t rounds;
};

static void run_peak(void *user)
{
    struct peak *p = user;
    gpu_launch(&p->kernel, &(struct moe_kargs){.n = {0}}, 0, p->rounds, 0, 0);
}

/// Dense bf16 TFLOP/s that the tensor cores reach.
static double measure_peak(void)
{
    struct peak p = {.rounds = gpu_is_fake() ? 2 : 20000};
    const struct cuda_chip *chip = cuda_chip(strchr(gpu_level(""), ':') + 1);
    code_init(&p.code);
    if (setjmp(p.code.context.fatal)) {
        CU_FAIL("the peak's kernel does not compile");
        return 1;
    }
    const char *text = context_printf(&p.code.context, peak_text, chip->warpgroups ? wide_products : narrow_products);
    if (chip->warpgroups)
        text = context_printf(&p.code.context, "#include \"hopper.h\"\n%s", text);
    p.source = (struct cuda_source){.name = "peak", .file = "peak.cu", .text = text, .stage = "", .place = "", .threads = 256,
                                    .shared_bytes = 65536};
    code_add(&p.code, kernel_role_copy_rows, (int64_t[]){8, dtype_f32, dtype_f32}, 3, 1);
    moe_kernel_fn *on_cpu = NULL;
    struct cuda_sources sources = {&p.source, 1, &(uint32_t){0}};
    if (gpu_is_fake())
        host_load(&p.code.context, &p.code.plan, &sources, &(struct host_options){.seed = 1, .most_blocks = 1}, &on_cpu);
    gpu_load(&p.code.context, chip, &p.source, on_cpu, &p.kernel);
    double seconds = gpu_seconds(run_peak, &p), flops = chip->warpgroups ? 2.0 * 2 * 128 * 128 * 64 : 8.0 * 8 * 2 * 16 * 8 * 16;
    double rate = (double)p.kernel.blocks * (double)p.rounds * flops / seconds / 1e12;
    code_free(&p.code);
    return rate;
}

struct copy {
    void *to, *from;
    size_t bytes;
};

static void run_copy(void *user)
{
    const struct copy *c = user;
    gpu_copy(c->to, c->from, c->bytes);
}

/// GB/s read and written by a copy on the device.
static double measure_copy(void)
{
    struct copy c = {.bytes = gpu_is_fake() ? 1 << 16 : 1 << 30};
    c.to = gpu_alloc(c.bytes);
    c.from = gpu_alloc(c.bytes);
    gpu_fill(c.from, 1, c.bytes);
    double rate = 2 * (double)c.bytes / gpu_seconds(run_copy, &c) / 1e9;
    gpu_free(c.to);
    gpu_free(c.from);
    return rate;
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

static void check_model(const struct model *model, double peak)
{
    struct experts e = {.m = *model};
    int64_t part = gpu_is_fake() ? 64 : 1;
    e.m.h /= part, e.m.f /= part;
    e.m.experts = gpu_is_fake() && e.m.experts > 8 ? 8 : e.m.experts;
    compile_experts(&e);
    for (size_t i = 0; i < sizeof token_counts / sizeof *token_counts; i++) {
        e.tokens = token_counts[i];
        if (gpu_is_fake() && e.tokens > 64)
            break;
        set_up(&e);
        run_experts(&e);
        double error = token_error(&e, e.tokens / 2), seconds = gpu_seconds(run_experts, &e);
        double rate = 2.0 * 3 * (double)(e.pairs * e.m.h * e.m.f) / seconds / 1e12;
        printf("\n    %-32s %6d tokens %9.1f us %8.1f TFLOP/s %5.1f%% of the peak, error %.1e", e.m.name, (int)e.tokens,
               seconds * 1e6, rate, 100 * rate / peak, error);
        CU_ASSERT(error <= 1e-2);
        tear_down(&e);
    }
    gpu_free(e.up);
    gpu_free(e.down);
    code_free(&e.code);
}

static void test_experts(void)
{
    CU_ASSERT_PTR_NULL_FATAL(gpu_open());
    double peak = measure_peak();
    make_pattern();
    printf("\n    products alone reach %.1f TFLOP/s in bf16", peak);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        check_model(&models[i], peak);
    free(pattern);
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
    free(pattern);
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
