// Shared helpers of the code generation tests (fixture.h).
#include "runtime/weights/pack.h"
#include "runtime/weights/safetensors.h"
#include "tests/amx/amx.h"
#include "tests/codegen/fixture.h"
#include "tests/codegen/fp8_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void code_init(struct code *code)
{
    *code = (struct code){0};
    context_init(&code->context);
    ir_init(&code->plan, &plan_ir);
}

uint32_t code_add(struct code *code, enum kernel_role role, const int64_t *n, uint32_t count, double scale)
{
    uint32_t number = ADD(&code->plan, plan_kernel);
    str_id name = ir_str(&code->plan, kernel_role_words[role]);
    struct plan_kernel *kernel = ROW(&code->plan, plan_kernel, number);
    kernel->name = name;
    kernel->role = role;
    kernel->scale = scale;
    memcpy(kernel->n, n, count * sizeof *n);
    return number;
}

uint8_t *code_map(const struct code *code)
{
    uint8_t *mapped = mmap(NULL, code->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(mapped, code->image, code->bytes);
    mprotect(mapped, code->bytes, PROT_READ | PROT_EXEC);
    return mapped;
}

static const struct cuda_chip *chip_of(const char *level)
{
    bool cuda = level && (!strncmp(level, "cuda:", 5) || !strncmp(level, "gpu:", 4));
    return cuda ? cuda_chip(strchr(level, ':') + 1) : NULL;
}

bool level_choose_layout(const char *level, struct plan_param *param)
{
    return chip_of(level) ? cuda_choose_layout(param) : cpu_choose_layout(level, param);
}

bool level_runs_here(const char *level)
{
    static bool said;
    const char *missing = NULL;
    struct context context;
    if (!chip_of(level))
        return level && !strcmp(level, "amx") ? amx_runs() : cpu_level_runs_here(level);
    context_init(&context);
    if ((missing = host_missing(&context)) && !said)
        fprintf(stderr, "\n    skipped: CUDA kernels on the CPU: %s\n", missing);
    said = missing != NULL;
    context_free(&context);
    return !missing;
}

/// Every kernel by the driver; the fake one runs what is built for the CPU.
static void load_on_gpu(struct code *code, const struct cuda_chip *chip, const struct cuda_sources *sources)
{
    uint32_t count = COUNT(&code->plan, plan_kernel);
    if (gpu_is_fake())
        host_load(&code->context, &code->plan, sources, &code->host, code->kernels);
    code->on_gpu = calloc(count + 1, sizeof *code->on_gpu);
    for (uint32_t i = 0; i < count; i++)
        if (sources->of_kernel[i] != NONE)
            gpu_load(&code->context, chip, &sources->at[sources->of_kernel[i]], code->kernels[i], &code->on_gpu[i]);
}

/// The sources of kernels that know no other way for few rows.
static void keep_rows_left(struct code *code, struct cuda_sources *sources)
{
    static const char constant[] = "constexpr int FEW_ROWS = 32;";
    for (uint32_t i = 0; i < sources->count; i++) {
        const char *text = sources->at[i].text, *at = strstr(text, constant);
        if (at)
            sources->at[i].text = context_printf(&code->context, "%.*sconstexpr int FEW_ROWS = 0;%s", (int)(at - text), text,
                                                 at + strlen(constant));
        else if (sources->at[i].map_count)
            fatal(&code->context, EXIT_BUG, "kernel `%s` does not say what few rows are", sources->at[i].name);
    }
}

// Compiled kernels are shared by every build of the tests.
static bool generate_cuda(struct code *code, const struct cuda_chip *chip, bool on_gpu)
{
    struct cuda_sources sources;
    setenv("MOECC_CACHE", "build/cuda-cache", 0);
    if (!cuda_generate(&code->context, &code->plan, chip, &sources))
        return false;
    if (code->rows_left)
        keep_rows_left(code, &sources);
    code->kernels = calloc(COUNT(&code->plan, plan_kernel) + 1, sizeof *code->kernels);
    if (on_gpu)
        load_on_gpu(code, chip, &sources);
    else
        host_load(&code->context, &code->plan, &sources, &code->host, code->kernels);
    return true;
}

bool code_generate(struct code *code, const char *level)
{
    if (setjmp(code->context.fatal)) {
        fprintf(stderr, "code generation: %s\n", code->context.fatal_message);
        return false;
    }
    if (chip_of(level))
        return generate_cuda(code, chip_of(level), !strncmp(level, "gpu:", 4));
    if (!codegen_cpu(&code->context, &code->plan, level, &code->image, &code->bytes))
        return false;
    code->mapped = code_map(code);
    return true;
}

void code_run(const struct code *code, uint32_t number, const struct moe_kargs *args, int64_t begin, int64_t end)
{
    const struct plan_kernel *kernel = ROW(&code->plan, plan_kernel, number);
    moe_kernel_fn *function;
    if (code->on_gpu) {
        gpu_run(&code->on_gpu[number], args, begin, end);
        return;
    }
    if (code->kernels) {
        code->kernels[number](args, begin, end, NULL);
        return;
    }
    uint8_t *address = code->mapped + kernel->code_offset;
    memcpy(&function, &address, sizeof function);
    void *scratch = kernel->scratch_bytes ? block(kernel->scratch_bytes) : NULL;
    function(args, begin, end, scratch);
    free(scratch);
}

void code_free(struct code *code)
{
    if (code->mapped)
        munmap(code->mapped, code->bytes);
    free(code->image);
    free(code->kernels);
    free(code->on_gpu);
    ir_free(&code->plan);
    context_free(&code->context);
}

float random_float(struct rng *rng)
{
    rng->state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = rng->state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (float)((double)((z ^ (z >> 31)) >> 40) / 0x1p23 - 1.0);
}

// the nearest number with `digits` binary digits and no bit below 2^least
static double round_to(double value, int digits, int least)
{
    if (value == 0 || !isfinite(value))
        return value;
    int exponent;
    frexp(value, &exponent);
    int unit = exponent - digits < least ? least : exponent - digits;
    return ldexp(nearbyint(ldexp(value, -unit)), unit);
}

void put_number(void *array, int64_t index, uint32_t dtype, float value)
{
    uint32_t bits;
    if (dtype == dtype_f32) {
        ((float *)array)[index] = value;
        return;
    }
    uint16_t *to = (uint16_t *)array + index;
    if (dtype == dtype_bf16) {
        float rounded = (float)round_to(value, 8, -133);
        memcpy(&bits, &rounded, 4);
        *to = (uint16_t)(bits >> 16 | (isnan(value) ? 0x40 : 0));
        return;
    }
    double rounded = round_to(value, 11, -24);
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    int exponent;
    double fraction = frexp(fabs(rounded), &exponent);
    if (isnan(value))
        *to = 0x7e00;
    else if (fabs(rounded) > 65504)
        *to = sign | 0x7c00;
    else if (fabs(rounded) < 0x1p-14)
        *to = (uint16_t)(sign | (uint16_t)ldexp(fabs(rounded), 24));
    else
        *to = (uint16_t)(sign | (((uint32_t)exponent + 14) << 10) | ((uint32_t)ldexp(fraction, 11) & 0x3ff));
}

double get_number(const void *array, int64_t index, uint32_t dtype)
{
    if (dtype == dtype_f32)
        return ((const float *)array)[index];
    uint32_t bits = ((const uint16_t *)array)[index];
    if (dtype == dtype_bf16) {
        float value;
        bits <<= 16;
        memcpy(&value, &bits, 4);
        return value;
    }
    int exponent = bits >> 10 & 31;
    double fraction = bits & 0x3ff, value;
    if (exponent == 31)
        value = fraction > 0 ? NAN : INFINITY;
    else
        value = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000 ? -value : value;
}

int64_t number_bytes(uint32_t dtype)
{
    return dtype == dtype_f32 ? 4 : 2;
}

void *block(int64_t bytes)
{
    size_t size = ((size_t)bytes + 63) / 64 * 64 + 64;
    void *memory = aligned_alloc(64, size);
    return memset(memory, 0, size);
}

void *pack(const struct plan_param *param, const void *values, int64_t blocks)
{
    uint8_t *packed = block(param->bytes * blocks);
    int64_t size = param->rows * param->cols;
    for (int64_t i = 0; i < blocks * size && param->layout == layout_rows; i++)
        put_number(packed + i / size * param->bytes, i % size, param->dtype, (float)get_number(values, i, param->declared));
    if (param->layout == layout_rows)
        return packed;
    int64_t half = param->panel / 2, panels = (param->rows + param->panel - 1) / param->panel;
    int64_t groups = (param->cols + param->group - 1) / param->group;
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t p = 0; p < panels; p++)
            for (int64_t c = 0; c < param->panel; c++) {
                int64_t row = p * param->panel + c, limit = param->rows;
                if (param->halves) {
                    limit = c < half ? param->rows / 2 : param->rows;
                    row = c < half ? p * half + c : param->rows / 2 + p * half + (c - half);
                }
                for (int64_t k = 0; k < param->cols && row < limit; k++) {
                    int64_t at = ((p * groups + k / param->group) * param->panel + c) * param->group + k % param->group;
                    double value = get_number(values, (b * param->rows + row) * param->cols + k, param->declared);
                    put_number(packed + b * param->bytes, at, param->dtype, (float)value);
                }
            }
    return packed;
}

double relative_error(const double *expected, const double *got, int64_t count)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        error += (got[i] - expected[i]) * (got[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    return size > 0 ? sqrt(error / size) : sqrt(error);
}

static void make_biases(struct layer *l, const char *level);

/// Random codes with scales, packed; `values`: the numbers that they stand for, [blocks][rows][cols] of f32.
static void *pack_random_codes(struct rng *rng, const struct plan_param *param, int64_t blocks, float *values)
{
    static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    bool fp4 = param->dtype == dtype_mxfp4;
    int64_t size = param->rows * param->cols, across = (param->cols + param->block_cols - 1) / param->block_cols;
    int64_t scale_count = (param->rows + param->block_rows - 1) / param->block_rows * across;
    uint8_t *codes = block(size), *powers = block(scale_count), *packed = block(param->bytes * blocks);
    float *scales = block(scale_count * 4);
    void *scratch = block((int64_t)pack_scratch_bytes(param));
    struct pack_source source = {.data = codes,
                                 .dtype = fp4 ? "U8" : "F8_E4M3",
                                 .rows = param->rows,
                                 .scales = fp4 ? (const void *)powers : scales,
                                 .scale_dtype = fp4 ? "F8_E8M0" : "F32",
                                 .scale_row_step = across,
                                 .scale_col_step = 1};
    for (int64_t b = 0; b < blocks; b++) {
        for (int64_t i = 0; i < scale_count; i++) {
            powers[i] = (uint8_t)(122 + (int)((random_float(rng) + 1) * 2));
            scales[i] = fp4 ? ldexpf(1, powers[i] - 127) : 0.0005f + fabsf(random_float(rng)) / 800;
        }
        memset(codes, 0, (size_t)size);
        for (int64_t i = 0; i < size; i++) {
            uint8_t code = (uint8_t)((random_float(rng) + 1) * 127.99f);
            float value = e2m1[code & 7], scale = scales[i / param->cols / param->block_rows * across +
                                                         i % param->cols / param->block_cols];
            code = !fp4 && (code & 0x7f) == 0x7f ? 0 : code; // no NaN
            if (!fp4)
                elements_to_f32("F8_E4M3", &code, &value, 1);
            codes[fp4 ? i / 2 : i] |= (uint8_t)(fp4 ? (code & 15) << (i % 2 * 4) : code);
            values[b * size + i] = (fp4 && code & 8 ? -value : value) * scale;
        }
        pack_block(param, &source, 1, scratch, packed + b * param->bytes);
    }
    free(codes), free(powers), free(scales), free(scratch);
    return packed;
}

static void *random_block(struct rng *rng, int64_t count, uint32_t dtype, double scale)
{
    void *values = block(count * number_bytes(dtype));
    for (int64_t i = 0; i < count; i++)
        put_number(values, i, dtype, (float)(random_float(rng) * scale));
    return values;
}

/// Weights of `param`, their numbers in `*numbers`.
static void *make_weights(struct layer *l, struct rng *rng, const struct plan_param *param, void **numbers)
{
    int64_t count = l->experts * param->rows * param->cols;
    if (dtype_quantised(param->dtype)) {
        *numbers = block(count * 4);
        return pack_random_codes(rng, param, l->experts, *numbers);
    }
    *numbers = random_block(rng, count, l->dtype, 4 / sqrt((double)param->cols));
    return pack(param, *numbers, l->experts);
}

// every row chooses `choices` distinct experts, a run of them from a random one on; some experts stay empty
static void make_pairs(struct layer *l, struct rng *rng)
{
    l->expert_first = block((l->experts + 1) * 8);
    int64_t capacity = l->rows * l->choices;
    l->pair_row = block(capacity * 4);
    l->pair_weight = block(capacity * 4);
    l->sources = block(capacity * 8);
    l->targets = block(capacity * 8);
    l->row_dst = block(l->rows * 8);
    int64_t *chosen = block(l->rows * 8);
    for (int64_t r = 0; r < l->rows; r++)
        chosen[r] = (int64_t)((random_float(rng) + 1) / 2 * (float)l->experts) % l->experts;
    for (int64_t e = 0; e < l->experts; e++) {
        l->expert_first[e] = l->pair_count;
        for (int64_t r = 0; r < l->rows; r++)
            if ((e - chosen[r] + l->experts) % l->experts < l->choices) {
                int64_t pair = l->pair_count++;
                l->pair_row[pair] = (int32_t)r;
                l->pair_weight[pair] = random_float(rng);
                int64_t at = l->by_row ? r : pair;
                l->sources[at] = (const uint8_t *)l->x + r * l->h * number_bytes(l->dtype);
                l->targets[at] = (uint8_t *)l->a + at * l->a_stride;
            }
    }
    l->expert_first[l->experts] = l->pair_count;
    for (int64_t r = 0; r < l->rows; r++)
        l->row_dst[r] = (uint8_t *)l->y + r * l->y_stride;
    free(chosen);
}

void layer_init_form(struct layer *l, const struct layer_shape *shape, unsigned form, const char *level, uint64_t seed)
{
    struct rng rng = {seed};
    *l = (struct layer){.h = shape->h,
                        .f = shape->f,
                        .experts = shape->experts,
                        .rows = shape->rows,
                        .choices = shape->choices,
                        .dtype = shape->dtype,
                        .result = shape->result,
                        .plain = (form & LAYER_PLAIN) != 0,
                        .weighted_input = (form & LAYER_WEIGHTED) != 0,
                        .by_row = (form & LAYER_BY_ROW) != 0};
    int64_t outputs = l->plain ? l->f : 2 * l->f; // of the first matrix
    int64_t size = number_bytes(l->dtype), capacity = l->rows * l->choices + 1;
    bool fp8 = (form & (LAYER_FP8 | LAYER_FP8_POWERS)) != 0;
    l->elements = l->dtype;
    if (fp8) {
        l->arithmetic = moe_wire_code(dtype_fp8_e4m3, 128, form & LAYER_FP8 ? scale_type_f32 : scale_type_ue8m0);
        l->elements = chip_of(level) ? dtype_fp8_e4m3 : l->dtype;
    }
    uint32_t codes = form & LAYER_E4M3 || fp8 ? dtype_fp8_e4m3 : form & LAYER_MXFP4 ? dtype_mxfp4 : dtype_none;
    uint32_t stored = codes ? codes : l->dtype;
    struct plan_param up = {.per_expert = true, .declared = stored, .rows = outputs, .cols = l->h, .halves = !l->plain};
    struct plan_param down = {.per_expert = true, .declared = stored, .rows = l->h, .cols = l->f};
    if (codes) {
        up.operand = down.operand = l->dtype;
        up.block_rows = down.block_rows = codes == dtype_mxfp4 ? 1 : 64;
        up.block_cols = down.block_cols = codes == dtype_mxfp4 ? 32 : 48;
        up.scale_run = down.scale_run = 1;
    }
    if (fp8) {
        up.block_rows = down.block_rows = up.block_cols = down.block_cols = 128;
        down.scale_run = 64;
        up.scale_run = l->plain || l->f % 64 == 0 ? 64 : 1; // the gate and the up projection are one tensor here
    }
    level_choose_layout(level, &up);
    level_choose_layout(level, &down);
    l->numbers = codes ? dtype_f32 : l->dtype;
    l->up_param = up;
    l->down_param = down;
    l->a_stride = moe_row_stride(fp8 ? moe_coded_row_bytes(l->h, dtype_bytes(l->elements), 128) : l->h * size, 1);
    l->hidden_stride = moe_row_stride(fp8 ? moe_coded_row_bytes(l->f, dtype_bytes(l->elements), 128) : l->f * size, 1);
    l->acc_stride = (l->h + down.panel - 1) / down.panel * down.panel * 4;
    l->y_stride = l->h * number_bytes(l->result) + 16;
    l->x = random_block(&rng, l->rows * l->h, l->dtype, 1);
    l->packed_up = make_weights(l, &rng, &up, &l->up);
    l->packed_down = make_weights(l, &rng, &down, &l->down);
    l->a = block(capacity * l->a_stride);
    l->hidden = block(capacity * l->hidden_stride);
    l->acc = block(l->rows * l->acc_stride);
    l->y = block(l->rows * l->y_stride + 64);
    memset(l->y, 0x5a, (size_t)(l->rows * l->y_stride));
    make_pairs(l, &rng);
    if (form & LAYER_BIASED)
        make_biases(l, level);
    l->pairs = (struct moe_pairs_head){
        .tables = {{l->by_row ? l->rows : l->pair_count, l->sources, l->targets}},
        .experts = l->experts,
        .expert_first = l->expert_first,
        .pair_row = l->pair_row,
        .pair_weight = l->pair_weight,
        .rows = l->rows,
        .row_dst = l->row_dst,
    };
}

void layer_init(struct layer *l, const struct layer_shape *shape, const char *level, uint64_t seed)
{
    layer_init_form(l, shape, 0, level, seed);
}

/// Weights of one column, in the panels of the matrices that they belong to.
static void make_biases(struct layer *l, const char *level)
{
    struct rng rng = {99};
    int64_t outputs = l->plain ? l->f : 2 * l->f;
    struct plan_param up = {.per_expert = true, .declared = dtype_f32, .rows = outputs, .cols = 1, .halves = !l->plain};
    struct plan_param down = {.per_expert = true, .declared = dtype_f32, .rows = l->h, .cols = 1};
    level_choose_layout(level, &up);
    level_choose_layout(level, &down);
    l->b_up = random_block(&rng, l->experts * outputs, dtype_f32, 1);
    l->b_down = random_block(&rng, l->experts * l->h, dtype_f32, 1);
    l->packed_b_up = pack(&up, l->b_up, l->experts);
    l->packed_b_down = pack(&down, l->b_down, l->experts);
}

void layer_free(struct layer *l)
{
    free(l->b_up);
    free(l->b_down);
    free(l->packed_b_up);
    free(l->packed_b_down);
    void *blocks[] = {l->x, l->up,           l->down,     l->packed_up,   l->packed_down, l->a,       l->hidden, l->acc,
                      l->y, l->expert_first, l->pair_row, l->pair_weight, l->sources,     l->targets, l->row_dst};
    for (unsigned i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
}

double activated(uint32_t activation, double gate, double up)
{
    switch ((enum activation)activation) {
    case activation_relu:
        return fmax(gate, 0) * up;
    case activation_squared_relu:
        return fmax(gate, 0) * fmax(gate, 0) * up;
    case activation_gelu_tanh:
        return 0.5 * gate * (1 + tanh(sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
    case activation_clamped_silu:
        gate = fmin(gate, LAYER_LIMIT);
        return gate / (1 + exp(-LAYER_ALPHA * gate)) * (fmax(fmin(up, LAYER_LIMIT), -LAYER_LIMIT) + 1);
    case activation_gelu:
        return 0.5 * gate * (1 + erf(gate / sqrt(2))) * up;
    case activation_silu:
        return gate / (1 + exp(-gate)) * up;
    case activation_words_count:
        break;
    }
    return NAN;
}

void layer_copy(const struct layer *l, int64_t n[LAYER_COPY])
{
    memset(n, 0, LAYER_COPY * sizeof *n);
    n[0] = l->h;
    n[1] = n[2] = l->dtype;
    if (l->arithmetic) {
        n[2] = dtype_fp8_e4m3;
        n[3] = 128;
        n[4] = l->arithmetic >> 8 & 0xff;
        n[7] = l->elements;
    }
}

/// How quantised weights are stored, and what the rows are multiplied in.
static void stored_constants(const struct layer *l, const struct plan_param *weights, int64_t n[LAYER_MLP])
{
    if (dtype_quantised(weights->dtype)) {
        n[8] = weights->dtype;
        n[9] = weights->block_cols;
        n[10] = weights->scales;
    }
    n[11] = l->arithmetic;
}

void layer_up(const struct layer *l, uint32_t activation, int64_t n[LAYER_MLP])
{
    int64_t form = (l->b_up ? MLP_HAS_BIAS : 0) | (l->plain ? MLP_PLAIN : 0) | (l->by_row ? MLP_BY_ROW : 0);
    int64_t shape[LAYER_MLP] = {l->h, l->f, activation, l->dtype, l->a_stride, l->hidden_stride, l->weighted_input, form};
    memcpy(n, shape, sizeof shape);
    stored_constants(l, &l->up_param, n);
}

void layer_down(const struct layer *l, int64_t n[LAYER_MLP])
{
    int64_t shape[LAYER_MLP] = {l->f, l->h, l->dtype, l->result, l->hidden_stride, l->acc_stride, l->weighted_input,
                                l->b_up ? MLP_HAS_BIAS : 0};
    memcpy(n, shape, sizeof shape);
    stored_constants(l, &l->down_param, n);
}

void layer_coded(const struct layer *l, double *row, int64_t width)
{
    bool powers = (l->arithmetic >> 8 & 0xff) == scale_type_ue8m0;
    float *values = block(width * 4);
    uint8_t *packed = block(width + (width + 127) / 128 * 4);
    for (int64_t i = 0; i < width; i++) {
        put_number(values, 0, l->dtype, (float)row[i]); // the first becomes what it was below
        row[i] = get_number(values, 0, l->dtype);
    }
    for (int64_t i = 0; i < width; i++)
        values[i] = (float)row[i];
    if (l->arithmetic)
        fp8_pack(values, width, 128, powers, packed);
    for (int64_t i = 0; i < width && l->arithmetic; i++) {
        float scale = powers ? (float)ldexp(1, packed[width + i / 128] - 127) : 0;
        if (!powers)
            memcpy(&scale, packed + width + i / 128 * 4, sizeof scale);
        row[i] = fp8_decode(packed[i]) * (double)scale;
    }
    free(values);
    free(packed);
}

/// x . up[of]
static double dot(const struct layer *l, const double *x, int64_t of)
{
    double sum = 0;
    for (int64_t i = 0; i < l->h; i++)
        sum += x[i] * get_number(l->up, of * l->h + i, l->numbers);
    return sum;
}

double *layer_reference(const struct layer *l, uint32_t activation)
{
    double *y = calloc((size_t)(l->rows * l->h) + 1, sizeof *y), *hidden = calloc((size_t)l->f, sizeof *hidden);
    double *x = calloc((size_t)l->h, sizeof *x);
    for (int64_t e = 0; e < l->experts; e++)
        for (int64_t pair = l->expert_first[e]; pair < l->expert_first[e + 1]; pair++) {
            int64_t row = l->pair_row[pair], up = e * (l->plain ? 1 : 2) * l->f;
            double weight = (double)l->pair_weight[pair], before = l->weighted_input ? weight : 1;
            for (int64_t i = 0; i < l->h; i++)
                x[i] = get_number(l->x, row * l->h + i, l->dtype);
            if (l->arithmetic)
                layer_coded(l, x, l->h);
            for (int64_t j = 0; j < l->f; j++) {
                int64_t gate = up + j, value = up + l->f + j;
                double g = before * dot(l, x, gate) + (l->b_up ? (double)l->b_up[gate] : 0);
                double u = l->plain ? 1 : before * dot(l, x, value);
                hidden[j] = activated(activation, g, u + (l->b_up && !l->plain ? (double)l->b_up[value] : 0));
            }
            if (l->arithmetic)
                layer_coded(l, hidden, l->f);
            for (int64_t c = 0; c < l->h; c++) {
                double sum = l->b_down ? (double)l->b_down[e * l->h + c] : 0;
                for (int64_t j = 0; j < l->f; j++)
                    sum += hidden[j] * get_number(l->down, (e * l->h + c) * l->f + j, l->numbers);
                y[row * l->h + c] += (l->weighted_input ? 1 : weight) * sum;
            }
        }
    free(hidden);
    free(x);
    return y;
}
