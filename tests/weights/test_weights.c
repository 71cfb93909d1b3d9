// Weights: element conversions over every 16-bit value, packing against a naive reference, random numbers, and
// weights_load as a whole. Files: test_files.c.
#include "tests/weights/files.h"

#include "runtime/moe.h"
#include "runtime/plan/plan.h"
#include "runtime/weights/pack.h"
#include "runtime/weights/random.h"
#include "runtime/weights/safetensors.h"
#include "runtime/weights/weights.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void suite_weights(void);

// --- conversions ----------------------------------------------------------------------------------------------------

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/// A finite value of a small format, by its definition.
static double decode(uint32_t code, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, e = (int)(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double value = (double)(code & ((1u << mantissa_bits) - 1u)) + (e ? (double)(1u << mantissa_bits) : 0.0);
    int shift = (e ? e : 1) - bias - mantissa_bits;
    for (; shift < 0; shift++)
        value *= 0.5;
    for (; shift > 0; shift--)
        value *= 2.0;
    return code >> (exponent_bits + mantissa_bits) ? -value : value;
}

static uint16_t narrow(const char *dtype, float value)
{
    uint16_t code = 0;
    CU_ASSERT(elements_from_f32(dtype, &value, &code, 1));
    return code;
}

/// All codes there and back, and every boundary between neighbours: the midpoint goes to the even one, anything below
/// to the lower, anything above to the upper.
static void check_format(const char *dtype, int exponent_bits, int mantissa_bits)
{
    uint32_t infinity = ((1u << exponent_bits) - 1u) << mantissa_bits, quiet = 1u << (mantissa_bits - 1);
    unsigned wrong = 0;
    for (uint32_t code = 0; code < 65536; code++) {
        uint16_t half = (uint16_t)code, magnitude = half & 0x7fff;
        float wide = 0;
        elements_to_f32(dtype, &half, &wide, 1);
        if (magnitude > infinity)
            wrong += wide == wide || narrow(dtype, wide) != (code | quiet);
        else if (magnitude == infinity)
            wrong += bits_of(wide) != (0x7f800000u | (code >> 15) << 31) || narrow(dtype, wide) != code;
        else
            wrong += (double)wide != decode(code, exponent_bits, mantissa_bits) || narrow(dtype, wide) != code ||
                     bits_of(wide) >> 31 != code >> 15;
    }
    CU_ASSERT_EQUAL(wrong, 0);
    for (uint32_t code = 0; code < infinity; code++) {
        double upper = code + 1 < infinity ? decode(code + 1, exponent_bits, mantissa_bits)
                                           : 2 * decode(code, exponent_bits, mantissa_bits) -
                                                 decode(code - 1, exponent_bits, mantissa_bits);
        float middle = (float)((decode(code, exponent_bits, mantissa_bits) + upper) / 2);
        uint32_t bits = bits_of(middle), even = code & 1 ? code + 1 : code;
        wrong += narrow(dtype, middle) != even || narrow(dtype, float_of(bits - 1)) != code ||
                 narrow(dtype, float_of(bits + 1)) != code + 1 || narrow(dtype, -middle) != (even | 0x8000u);
    }
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_EQUAL(narrow(dtype, float_of(0x7f800001)) & 0x7fffu, infinity | quiet);
    CU_ASSERT_EQUAL(narrow(dtype, float_of(0xffffffff)), 0xffffu);
    CU_ASSERT_EQUAL(narrow(dtype, float_of(0x7f7fffff)), infinity);
}

static void test_conversions(void)
{
    check_format("F16", 5, 10);
    check_format("BF16", 8, 7);
    for (uint32_t code = 0; code < 256; code++) {
        uint8_t byte = (uint8_t)code;
        float wide = 0;
        CU_ASSERT(elements_to_f32("F8_E4M3", &byte, &wide, 1));
        CU_ASSERT((code & 0x7f) == 0x7f ? wide != wide : (double)wide == decode(code, 4, 3));
        CU_ASSERT_EQUAL(bits_of(wide) >> 31, code >> 7);
        uint8_t again = 0;
        CU_ASSERT(elements_from_f32("F8_E4M3", &wide, &again, 1));
        CU_ASSERT_EQUAL(again, byte);
        CU_ASSERT(elements_to_f32("F8_E8M0", &byte, &wide, 1));
        CU_ASSERT(code == 255 ? wide != wide : wide == ldexpf(1.0f, (int)code - 127));
    }
    float value = 1;
    CU_ASSERT_FALSE(elements_to_f32("I32", &value, &value, 1));
    CU_ASSERT_FALSE(elements_from_f32("F8_E8M0", &value, &value, 1));
    static const struct {
        const char *name;
        size_t bytes;
    } sizes[] = {{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1}, {"U8", 1},
                 {"I32", 4}, {"I64", 8}, {"F4", 0},   {"", 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        CU_ASSERT_EQUAL(element_bytes(sizes[i].name), sizes[i].bytes);
}

/// The vectors of tests/data, where the tests run from the repository root.
static void test_fp8_vectors(void)
{
    FILE *file = fopen("tests/data/fp8_vectors.tsv", "r");
    if (!file)
        return;
    char line[512];
    unsigned checked = 0;
    while (fgets(line, sizeof line, file)) {
        char *field[7], *rest = line;
        int count = 0;
        while (count < 7 && (field[count] = strsep(&rest, "\t\n")))
            count++;
        if (count < 5 || line[0] == '#')
            continue;
        uint8_t code = (uint8_t)strtoul(field[3], NULL, 16);
        float wide = 0;
        elements_to_f32("F8_E4M3", &code, &wide, 1);
        double expected = strtod(field[4], NULL);
        CU_ASSERT(expected != expected ? wide != wide : (double)wide == expected);
        float value = float_of((uint32_t)strtoul(field[1], NULL, 16));
        uint8_t got = 0;
        elements_from_f32("F8_E4M3", &value, &got, 1);
        CU_ASSERT(value != value ? (got & 0x7f) == 0x7f : got == code);
        checked++;
    }
    fclose(file);
    CU_ASSERT(checked > 40);
}

// --- random numbers -------------------------------------------------------------------------------------------------

static void test_random(void)
{
    enum { COUNT = 40000 };
    float *all = malloc(COUNT * sizeof *all), part[7];
    CU_ASSERT_FATAL(all != NULL);
    void (*const draw[])(uint64_t, uint64_t, float, float *, size_t) = {random_normal, random_weights};
    for (int kind = 0; kind < 2; kind++) {
        uint64_t key = random_key(1, "w", 2, 3);
        draw[kind](key, 0, 1.0f, all, COUNT);
        double sum = 0, squares = 0;
        for (size_t i = 0; i < COUNT; i++) {
            sum += (double)all[i];
            squares += (double)all[i] * (double)all[i];
        }
        CU_ASSERT(sum > -0.02 * (double)COUNT && sum < 0.02 * (double)COUNT);
        CU_ASSERT(squares > 0.98 * (double)COUNT && squares < 1.02 * (double)COUNT);
        draw[kind](key, 1234, 1.0f, part, 7); // a position alone decides
        CU_ASSERT(!memcmp(part, all + 1234, sizeof part));
        draw[kind](random_key(1, "w", 3, 2), 1234, 1.0f, part, 7);
        CU_ASSERT(memcmp(part, all + 1234, sizeof part) != 0);
    }
    uint64_t keys[] = {random_key(1, "w", 0, 0), random_key(2, "w", 0, 0), random_key(1, "v", 0, 0),
                       random_key(1, "w", 1, 0), random_key(1, "w", 0, 1), random_key(1, "", 0, 0)};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        for (size_t j = 0; j < i; j++)
            CU_ASSERT_NOT_EQUAL(keys[i], keys[j]);
    random_token(5, 1, 9, all, 16);
    random_token(5, 1, 9, part, 7);
    CU_ASSERT(!memcmp(all, part, sizeof part));
    random_normal(random_key(0, "golden", 0, 0), 0, 1.0f, part, 2); // the sequences are part of what users reproduce
    CU_ASSERT(bits_of(part[0]) == bits_of(0x1.01dp-1f) && bits_of(part[1]) == bits_of(0x1.e428p-3f));
    random_weights(random_key(0, "golden", 0, 0), 0, 1.0f, part, 2);
    CU_ASSERT(bits_of(part[0]) == bits_of(0x1.a60666p-3f) && bits_of(part[1]) == bits_of(0x1.f2f05ap-4f));
    CU_ASSERT_EQUAL(bits_of(random_scale(64, 0)), bits_of(0.125f));
    CU_ASSERT_EQUAL(bits_of(random_scale(64, 1)), bits_of(0.25f));
    free(all);
}

// --- packing --------------------------------------------------------------------------------------------------------

static struct plan_param make_param(int64_t rows, int64_t cols, int64_t panel, int64_t group, bool halves,
                                    uint32_t declared, uint32_t packed)
{
    struct plan_param param = {.rows = rows,
                               .cols = cols,
                               .panel = panel,
                               .group = group,
                               .halves = halves,
                               .declared = declared,
                               .dtype = packed,
                               .layout = panel ? layout_panels : layout_rows};
    param.bytes = (pack_bytes(&param) + 63) / 64 * 64 + 64;
    return param;
}

static float rounded(uint32_t dtype, float value)
{
    uint8_t bytes[4];
    elements_from_f32(element_name(dtype), &value, bytes, 1);
    elements_to_f32(element_name(dtype), bytes, &value, 1);
    return value;
}

/// The layout as plan_param defines it, one element after the other. `values` is [rows][cols].
static void naive_pack(const struct plan_param *param, const float *values, uint8_t *to)
{
    memset(to, 0, (size_t)param->bytes);
    const char *dtype = element_name(param->dtype);
    size_t element = element_bytes(dtype), at = 0;
    int64_t half = param->panel / 2, panels, groups, columns = param->panel, group = param->group;
    if (param->layout == layout_rows)
        panels = param->rows, groups = param->cols, columns = group = 1;
    else {
        groups = (param->cols + group - 1) / group;
        panels = param->halves ? (param->rows / 2 + half - 1) / half : (param->rows + param->panel - 1) / param->panel;
    }
    for (int64_t p = 0; p < panels; p++)
        for (int64_t g = 0; g < groups; g++)
            for (int64_t c = 0; c < columns; c++)
                for (int64_t j = 0; j < group; j++, at++) {
                    int64_t k = g * group + j, row = p * columns + c;
                    bool inside = row < param->rows && k < param->cols;
                    if (param->halves) {
                        int64_t i = p * half + (c < half ? c : c - half);
                        row = c < half ? i : param->rows / 2 + i;
                        inside = i < param->rows / 2 && k < param->cols;
                    }
                    float value = inside ? rounded(param->declared, values[row * param->cols + k]) : 0.0f;
                    elements_from_f32(dtype, &value, to + at * element, 1);
                }
}

/// Packs from a file's dtype, split into two sources, and compares.
static void check_pack(const struct plan_param *param, const char *from)
{
    size_t count = (size_t)(param->rows * param->cols), element = element_bytes(from);
    float *values = malloc(count * sizeof *values);
    uint8_t *stored = malloc(count * element + 1), *got = malloc((size_t)param->bytes),
            *wanted = malloc((size_t)param->bytes);
    void *scratch = aligned_alloc(64, (pack_scratch_bytes(param) + 63) / 64 * 64);
    CU_ASSERT_FATAL(values && stored && got && wanted && scratch);
    random_weights(random_key(7, "pack", (uint64_t)param->rows, (uint64_t)param->cols), 0, 1.0f, values, count);
    elements_from_f32(from, values, stored + 1, count); // unaligned, as in files
    elements_to_f32(from, stored + 1, values, count);
    int64_t split = param->rows / 3;
    struct pack_source sources[2] = {
        {.data = stored + 1, .dtype = from, .rows = split},
        {.data = stored + 1 + (size_t)(split * param->cols) * element, .dtype = from, .rows = param->rows - split}};
    memset(got, 0xee, (size_t)param->bytes);
    pack_block(param, sources, 2, scratch, got);
    naive_pack(param, values, wanted);
    if (memcmp(got, wanted, (size_t)param->bytes) != 0) {
        fprintf(stderr, "pack %" PRId64 "x%" PRId64 " panel %" PRId64 " group %" PRId64 " halves %u from %s\n",
                param->rows, param->cols, param->panel, param->group, param->halves, from);
        CU_FAIL("packing");
    }
    struct pack_source random = {
        .rows = param->rows, .scale = 1.0f, .key = random_key(7, "pack", (uint64_t)param->rows, (uint64_t)param->cols)};
    random_weights(random.key, 0, 1.0f, values, count);
    memset(got, 0xee, (size_t)param->bytes);
    pack_block(param, &random, 1, scratch, got);
    naive_pack(param, values, wanted);
    CU_ASSERT(!memcmp(got, wanted, (size_t)param->bytes));
    free(values), free(stored), free(got), free(wanted), free(scratch);
}

static void test_pack(void)
{
    static const int64_t sizes[][2] = {{1, 1}, {2, 3}, {6, 5}, {40, 72}, {34, 33}, {64, 128}, {66, 1100}, {130, 257}};
    static const int64_t shapes[][2] = {{0, 1}, {2, 1}, {4, 2}, {16, 1}, {32, 2}, {6, 3}, {48, 4}, {64, 32}};
    static const uint32_t types[][2] = {{dtype_f32, dtype_f32},  {dtype_bf16, dtype_bf16}, {dtype_bf16, dtype_f32},
                                        {dtype_f32, dtype_bf16}, {dtype_f16, dtype_f32},   {dtype_f16, dtype_bf16}};
    static const char *const from[] = {"F32", "F16", "BF16"};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t l = 0; l < sizeof shapes / sizeof *shapes; l++)
            for (size_t t = 0; t < sizeof types / sizeof *types; t++)
                for (int halves = 0; halves < 2; halves++) {
                    if (halves && (sizes[s][0] % 2 || !shapes[l][0]))
                        continue;
                    struct plan_param param = make_param(sizes[s][0], sizes[s][1], shapes[l][0], shapes[l][1], halves,
                                                         types[t][0], types[t][1]);
                    check_pack(&param, from[(s + l + t) % 3]);
                }
    struct plan_param bad = make_param(64, 64, 16, 1, false, dtype_f32, dtype_f32);
    bad.panel = 0;
    CU_ASSERT_EQUAL(pack_bytes(&bad), -1);
    bad = (struct plan_param){.rows = INT64_MAX / 2, .cols = 9, .layout = layout_rows, .dtype = dtype_f32};
    CU_ASSERT_EQUAL(pack_bytes(&bad), -1);
    bad = (struct plan_param){
        .rows = 3, .cols = 9, .layout = layout_panels, .dtype = dtype_f32, .panel = 4, .group = 1, .halves = 1};
    CU_ASSERT_EQUAL(pack_bytes(&bad), -1);
}

// --- weights_load ---------------------------------------------------------------------------------------------------

enum { EXPERTS = 4, RANKS = 2, HIDDEN = 10, FFN = 6 };

static uint32_t add_param(struct ir *plan, const char *name, bool per_expert, int64_t rows, int64_t cols, bool halves,
                          uint32_t declared, const char *first, const char *second)
{
    uint32_t number = ADD(plan, plan_param), source = COUNT(plan, plan_source);
    const char *patterns[2] = {first, second};
    uint32_t count = second ? 2 : 1;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t row = ADD(plan, plan_source);
        ROW(plan, plan_source, row)->pattern = ir_str(plan, patterns[i]);
        ROW(plan, plan_source, row)->rows = rows / count;
    }
    struct plan_param *param = ROW(plan, plan_param, number);
    *param = make_param(rows, cols, per_expert ? 4 : 0, 2, halves, declared, declared);
    param->name = ir_str(plan, name);
    param->per_expert = per_expert;
    param->sources = (struct rows){source, count};
    return number;
}

static void make_plan(struct ir *plan, const char *up_pattern)
{
    ir_init(plan, &plan_ir);
    ADD(plan, plan_info);
    ROW(plan, plan_info, 0)->experts = EXPERTS;
    ROW(plan, plan_info, 0)->ranks = RANKS;
    for (uint32_t r = 0; r < RANKS; r++) {
        ADD(plan, plan_rank);
        ROW(plan, plan_rank, r)->owned = (struct rows){r * EXPERTS / RANKS, EXPERTS / RANKS};
        for (uint32_t i = 0; i < EXPERTS / RANKS; i++) {
            uint32_t row = ADD(plan, plan_owner);
            *ROW(plan, plan_owner, row) = (struct plan_owner){.expert = row, .rank = r, .local = i};
        }
    }
    add_param(plan, "router", false, EXPERTS, HIDDEN, false, dtype_f32, "l{layer}.gate", NULL);
    if (up_pattern)
        add_param(plan, "up", true, 2 * FFN, HIDDEN, true, dtype_bf16, up_pattern, NULL);
    else
        add_param(plan, "up", true, 2 * FFN, HIDDEN, true, dtype_bf16, "l{layer}.{expert}.g", "l{layer}.{expert}.u");
    add_param(plan, "down", true, HIDDEN, FFN, false, dtype_bf16, "l{layer}.{expert}.d", NULL);
}

struct destinations {
    void *block[3][RANKS];
};

static void *destination(void *user, uint32_t param, uint32_t layer_index, uint32_t rank_index)
{
    (void)layer_index;
    return ((struct destinations *)user)->block[param][rank_index];
}

static void count_progress(void *user, double share)
{
    *(double *)user = share;
}

static int load(const struct ir *plan, const char *path, struct destinations *to, uint32_t threads, char *error)
{
    double share = 0;
    const uint32_t layers[1] = {3}, ranks[RANKS] = {0, 1};
    for (uint32_t p = 0; p < 3; p++)
        for (uint32_t r = 0; r < RANKS; r++) {
            size_t bytes = (size_t)ROW(plan, plan_param, p)->bytes * (p ? EXPERTS / RANKS : 1);
            to->block[p][r] = realloc(to->block[p][r], bytes);
            memset(to->block[p][r], 0xee, bytes);
        }
    struct weights_request request = {.plan = plan,
                                      .path = path,
                                      .seed = 11,
                                      .threads = threads,
                                      .layer_count = 1,
                                      .layers = layers,
                                      .rank_count = RANKS,
                                      .ranks = ranks,
                                      .destination = destination,
                                      .user = to,
                                      .progress = count_progress,
                                      .progress_user = &share};
    error[0] = 0;
    int status = weights_load(&request, error, 256);
    CU_ASSERT(status != MOE_OK || share == 1.0);
    return status;
}

/// A checkpoint of layer 3: values are random_weights of a key per tensor, rounded to bf16.
static void write_checkpoint(const char *path, const char *down_dtype, int64_t down_rows, bool fused)
{
    struct tensor tensors[1 + 3 * EXPERTS + 1];
    char names[1 + 3 * EXPERTS + 1][32];
    size_t count = 0;
    static uint16_t values[4 * 2 * FFN * HIDDEN];
    float floats[2 * FFN * HIDDEN * EXPERTS];
    random_weights(random_key(1, "file", 0, 0), 0, 1.0f, floats, sizeof floats / sizeof *floats);
    elements_from_f32("BF16", floats, values, sizeof floats / sizeof *floats);
    for (int e = -1; e < EXPERTS; e++)
        for (int part = 0; part < 3; part++) {
            struct tensor *t = &tensors[count];
            if (e < 0 && part > 0)
                continue;
            if (fused && e >= 0 && part < 2 && (e > 0 || part > 0))
                continue;
            *t = (struct tensor){.dims = 2, .shape = {part == 2 ? down_rows : FFN, part == 2 ? FFN : HIDDEN}};
            strcpy(t->dtype, part == 2 ? down_dtype : "BF16");
            t->data = (const uint8_t *)values + 2 * (e < 0 ? 0 : e * 20 + part * 7);
            snprintf(names[count], sizeof names[count], "l3.%d.%c", e, "gud"[part]);
            if (e < 0) {
                t->shape[0] = EXPERTS;
                strcpy(names[count], "l3.gate");
            } else if (fused && part == 0) {
                *t = (struct tensor){.dims = 3, .shape = {EXPERTS, 2 * FFN, HIDDEN}, .dtype = "BF16", .data = values};
                strcpy(names[count], "l3.fused");
            } else if (fused) { // one matrix with a leading 1, as one shared expert's is declared
                t->dims = 3;
                memcpy(t->shape, (const int64_t[]){1, down_rows, FFN}, 3 * sizeof *t->shape);
            }
            t->name = names[count++];
            t->bytes = (size_t)tensor_bytes(t->dtype, t->shape, t->dims);
        }
    char error[256];
    CU_ASSERT(tensors_write(path, tensors, count, error, sizeof error));
}

/// Expert `e`'s block of a parameter, as the naive packer makes it from the file.
static void check_block(const struct ir *plan, const struct destinations *got, const struct tensor_set *set, uint32_t p,
                        uint32_t e, const char *const *names, size_t count, size_t skip)
{
    const struct plan_param *param = ROW(plan, plan_param, p);
    float values[2 * FFN * HIDDEN];
    size_t filled = 0, total = (size_t)(param->rows * param->cols);
    for (size_t i = 0; i < count; i++) {
        const struct tensor *tensor = tensors_find(set, names[i]);
        CU_ASSERT_PTR_NOT_NULL_FATAL(tensor);
        elements_to_f32("BF16", (const uint8_t *)tensor->data + 2 * skip, values + filled, total / count);
        filled += total / count;
    }
    uint8_t *wanted = malloc((size_t)param->bytes);
    CU_ASSERT_FATAL(wanted != NULL);
    naive_pack(param, values, wanted);
    const uint8_t *block = (const uint8_t *)got->block[p][e / 2] + (p ? e % 2 : 0) * (size_t)param->bytes;
    CU_ASSERT(!memcmp(block, wanted, (size_t)param->bytes));
    free(wanted);
}

static void test_load(void)
{
    const char *path = weights_path("checkpoint.safetensors");
    char error[256];
    struct ir plan;
    struct destinations got = {0};
    make_plan(&plan, NULL);
    write_checkpoint(path, "BF16", HIDDEN, false);
    CU_ASSERT_EQUAL(load(&plan, path, &got, 3, error), MOE_OK);
    struct tensor_set *set = tensors_open(path, error, sizeof error);
    CU_ASSERT_PTR_NOT_NULL_FATAL(set);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        char gate[16], up[16], down[16];
        snprintf(gate, sizeof gate, "l3.%u.g", e);
        snprintf(up, sizeof up, "l3.%u.u", e);
        snprintf(down, sizeof down, "l3.%u.d", e);
        check_block(&plan, &got, set, 0, e, (const char *[]){"l3.gate"}, 1, 0);
        check_block(&plan, &got, set, 1, e, (const char *[]){gate, up}, 2, 0);
        check_block(&plan, &got, set, 2, e, (const char *[]){down}, 1, 0);
    }
    tensors_close(set);

    write_checkpoint(path, "F32", HIDDEN, false);
    CU_ASSERT_EQUAL(load(&plan, path, &got, 1, error), MOE_BAD_WEIGHTS);
    CU_ASSERT(strstr(error, "`l3.0.d` is F32") && strstr(error, "declared bf16") && strstr(error, path));
    write_checkpoint(path, "BF16", HIDDEN + 1, false);
    CU_ASSERT_EQUAL(load(&plan, path, &got, 1, error), MOE_BAD_WEIGHTS);
    CU_ASSERT(strstr(error, "`l3.0.d` is [11, 6]") && strstr(error, "needs [10, 6]"));
    write_checkpoint(path, "BF16", HIDDEN, true);
    CU_ASSERT_EQUAL(load(&plan, path, &got, 1, error), MOE_BAD_WEIGHTS);
    CU_ASSERT_PTR_NOT_NULL(strstr(error, "no tensor `l3.0.g`"));
    CU_ASSERT_EQUAL(load(&plan, weights_path("absent"), &got, 1, error), MOE_IO);
    write_test_file(path, "{", 0, -1);
    CU_ASSERT_EQUAL(load(&plan, path, &got, 1, error), MOE_BAD_WEIGHTS);
    ir_free(&plan);
    for (uint32_t p = 0; p < 3; p++)
        for (uint32_t r = 0; r < RANKS; r++)
            free(got.block[p][r]);
}

static void test_load_fused(void)
{
    const char *path = weights_path("fused.safetensors");
    char error[256];
    struct ir plan;
    struct destinations got = {0};
    make_plan(&plan, "l{layer}.fused");
    write_checkpoint(path, "BF16", HIDDEN, true);
    CU_ASSERT_EQUAL(load(&plan, path, &got, 2, error), MOE_OK);
    struct tensor_set *set = tensors_open(path, error, sizeof error);
    CU_ASSERT_PTR_NOT_NULL_FATAL(set);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        char down[16];
        snprintf(down, sizeof down, "l3.%u.d", e);
        check_block(&plan, &got, set, 1, e, (const char *[]){"l3.fused"}, 1, e * 2 * FFN * HIDDEN);
        check_block(&plan, &got, set, 2, e, (const char *[]){down}, 1, 0);
    }
    tensors_close(set);
    write_checkpoint(path, "BF16", HIDDEN + 1, true);
    CU_ASSERT_EQUAL(load(&plan, path, &got, 1, error), MOE_BAD_WEIGHTS);
    CU_ASSERT_PTR_NOT_NULL(strstr(error, "`l3.0.d` is [1, 11, 6]"));
    ir_free(&plan);
    for (uint32_t p = 0; p < 3; p++)
        for (uint32_t r = 0; r < RANKS; r++)
            free(got.block[p][r]);
}

static void test_load_random(void)
{
    char error[256];
    struct ir plan;
    struct destinations one = {0}, many = {0};
    make_plan(&plan, NULL);
    CU_ASSERT_EQUAL(load(&plan, "random", &one, 1, error), MOE_OK);
    CU_ASSERT_EQUAL(load(&plan, "random", &many, 8, error), MOE_OK);
    for (uint32_t p = 0; p < 3; p++)
        for (uint32_t r = 0; r < RANKS; r++) {
            size_t bytes = (size_t)ROW(&plan, plan_param, p)->bytes * (p ? EXPERTS / RANKS : 1);
            CU_ASSERT(!memcmp(one.block[p][r], many.block[p][r], bytes));
            if (r)
                CU_ASSERT_EQUAL(memcmp(one.block[p][0], one.block[p][r], bytes) == 0, p == 0); // only routers agree
        }
    ROW(&plan, plan_param, 1)->bytes = 64; // a plan that lies
    CU_ASSERT_EQUAL(load(&plan, "random", &many, 1, error), MOE_BAD_PLAN);
    CU_ASSERT_PTR_NOT_NULL(strstr(error, "`up`"));
    ir_free(&plan);
    for (uint32_t p = 0; p < 3; p++)
        for (uint32_t r = 0; r < RANKS; r++)
            free(one.block[p][r]), free(many.block[p][r]);
}

void suite_weights(void)
{
    CU_pSuite suite = CU_add_suite("weights", make_weights_folder, remove_weights_folder);
    add_file_tests(suite);
    CU_add_test(suite, "conversions, every value", test_conversions);
    CU_add_test(suite, "fp8 vectors", test_fp8_vectors);
    CU_add_test(suite, "random numbers", test_random);
    CU_add_test(suite, "packing", test_pack);
    CU_add_test(suite, "loading", test_load);
    CU_add_test(suite, "loading fused experts", test_load_fused);
    CU_add_test(suite, "loading random weights", test_load_random);
}
