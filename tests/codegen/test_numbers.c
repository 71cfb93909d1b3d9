// E4M3 in generated code, at every CPU level that runs here: the vectors of tests/data, every code back to its value,
// every upper half of a float32 against the nearest value of a table, with ties and both neighbours of each tie; and rows
// in blocks with scales, byte by byte.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/codegen/fixture.h"
#include "tests/codegen/fp8_reference.h"

static const char *const level_names[] = {"v2", "v3", "v4", "bf16", "amx"};
enum { LEVELS = sizeof level_names / sizeof *level_names, WIDTH = 1032 }; // whole vectors and what is left of one

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/// A kernel that converts one row, and what it makes of rows.
static void converter(struct code *code, uint32_t from, uint32_t to, const char *level)
{
    code_init(code);
    code_add(code, kernel_role_copy_rows, (int64_t[]){WIDTH, from, to}, 3, 1);
    CU_ASSERT_FATAL(code_generate(code, level));
}

static void convert(const struct code *code, const void *from, void *to)
{
    struct moe_row_table table = {.rows = 1, .src = &from, .dst = &to};
    code_run(code, 0, &(struct moe_kargs){.p = {[COPY_CONTROL] = &table}}, 0, 1);
}

static unsigned wrong_codes(const struct code *code, const float *values)
{
    uint8_t codes[WIDTH + 1];
    codes[WIDTH] = 0x5a;
    convert(code, values, codes);
    unsigned wrong = codes[WIDTH] != 0x5a;
    for (int i = 0; i < WIDTH; i++)
        wrong += codes[i] != fp8_encode(values[i]);
    return wrong;
}

// --------------------------------------------------------------------------------------------------------- tests

struct vectors {
    float values[WIDTH];
    unsigned codes[WIDTH], count;
};

static void read_vectors(struct vectors *v)
{
    memset(v, 0, sizeof *v);
    FILE *file = fopen("tests/data/fp8_vectors.tsv", "r");
    CU_ASSERT_FATAL(file != NULL);
    char line[512];
    while (fgets(line, sizeof line, file) && v->count < WIDTH) {
        char *fields[4], *rest = line;
        int count = 0;
        while (count < 4 && (fields[count] = strsep(&rest, "\t\n")))
            count++;
        if (count < 4 || line[0] == '#')
            continue;
        v->values[v->count] = from_bits((uint32_t)strtoul(fields[1], NULL, 16));
        v->codes[v->count++] = (unsigned)strtoul(fields[3], NULL, 16);
    }
    fclose(file);
    CU_ASSERT_EQUAL(v->count, 46);
}

static void test_vectors(void)
{
    struct vectors v;
    read_vectors(&v);
    for (unsigned level = 0; level < LEVELS && level_runs_here(level_names[level]); level++) {
        struct code code;
        converter(&code, dtype_f32, dtype_fp8_e4m3, level_names[level]);
        uint8_t codes[WIDTH];
        convert(&code, v.values, codes);
        for (unsigned i = 0; i < v.count; i++)
            CU_ASSERT(isnan(v.values[i]) ? codes[i] == 0x7f && (v.codes[i] & 0x7f) == 0x7f : codes[i] == v.codes[i]);
        code_free(&code);
    }
}

static void test_every_code(void)
{
    for (unsigned level = 0; level < LEVELS && level_runs_here(level_names[level]); level++) {
        struct code code;
        uint8_t codes[WIDTH];
        float values[WIDTH];
        for (int i = 0; i < WIDTH; i++)
            codes[i] = (uint8_t)(i * 5);
        converter(&code, dtype_fp8_e4m3, dtype_f32, level_names[level]);
        convert(&code, codes, values);
        for (int i = 0; i < WIDTH; i++) {
            double expected = fp8_decode(codes[i]);
            CU_ASSERT(isnan(expected) ? isnan(values[i]) : (double)values[i] == expected);
            CU_ASSERT(!signbit(values[i]) == !(codes[i] & 0x80));
        }
        code_free(&code);
    }
}

// All upper halves of a float32, with lower halves that make a tie between codes one, and its neighbours.
static void test_rounding(void)
{
    static const uint32_t low[] = {0, 1, 0xffff};
    for (unsigned level = 0; level < LEVELS && level_runs_here(level_names[level]); level++) {
        struct code code;
        float values[WIDTH];
        unsigned wrong = 0;
        int filled = 0;
        converter(&code, dtype_f32, dtype_fp8_e4m3, level_names[level]);
        for (uint32_t upper = 0; upper < 0x10000; upper++)
            for (unsigned i = 0; i < sizeof low / sizeof *low; i++) {
                values[filled++] = from_bits(upper << 16 | low[i]);
                if (filled == WIDTH)
                    wrong += wrong_codes(&code, values), filled = 0;
            }
        while (filled < WIDTH)
            values[filled++] = -NAN;
        wrong += wrong_codes(&code, values);
        CU_ASSERT_EQUAL(wrong, 0);
        code_free(&code);
    }
}

// -------------------------------------------------------------------------------------------------------- blocks

enum { MOST_WIDTH = 2880, MOST_BYTES = MOST_WIDTH * 4 + 64 };

struct format {
    int64_t block;
    bool ue8m0;
};

static const struct format formats[] = {{128, false}, {64, false}, {128, true}, {64, true}};

static bool block_code(struct code *code, int64_t width, const struct format *f, uint32_t dtype, uint32_t between,
                       const char *level)
{
    int64_t scale = f->ue8m0 ? scale_type_ue8m0 : scale_type_f32;
    code_init(code);
    code_add(code, kernel_role_copy_rows, (int64_t[]){width, dtype, dtype_fp8_e4m3, f->block, scale}, 5, 1);
    code_add(code, kernel_role_copy_rows, (int64_t[]){width, dtype_fp8_e4m3, dtype, f->block, scale, 0, between}, 7, 1);
    return code_generate(code, level);
}

/// Packs a row and unpacks it again with generated code; both must be what plain C makes of it.
static void check_blocks(const float *values, int64_t width, const struct format *f, uint32_t dtype, const char *level)
{
    struct code code;
    CU_ASSERT_FATAL(block_code(&code, width, f, dtype, dtype_none, level));
    uint8_t *row = block(MOST_BYTES), *want = block(MOST_BYTES), *from = block(MOST_BYTES), *back = block(MOST_BYTES);
    float *rounded = block(MOST_BYTES), *decoded = block(MOST_BYTES);
    for (int64_t i = 0; i < width; i++) {
        put_number(from, i, dtype, values[i]);
        rounded[i] = (float)get_number(from, i, dtype);
    }
    memset(row, 0x5a, MOST_BYTES);
    memset(want, 0x5a, MOST_BYTES);
    code_run(&code, 0, &(struct moe_kargs){.p = {&(struct moe_row_table){1, (const void *[]){from}, (void *[]){row}}}},
             0, 1);
    int64_t bytes = fp8_pack(rounded, width, f->block, f->ue8m0, want);
    CU_ASSERT(memcmp(row, want, (size_t)bytes + 16) == 0); // nothing behind it
    code_run(&code, 1, &(struct moe_kargs){.p = {&(struct moe_row_table){1, (const void *[]){row}, (void *[]){back}}}},
             0, 1);
    fp8_unpack(want, width, f->block, f->ue8m0, decoded);
    unsigned wrong = 0;
    for (int64_t i = 0; i < width; i++) {
        put_number(from, i, dtype, decoded[i]);
        int64_t at = i * number_bytes(dtype);
        bool same = memcmp(from + at, back + at, (size_t)number_bytes(dtype)) == 0;
        if (isnan(decoded[i]) ? !isnan(get_number(back, i, dtype)) : !same)
            wrong++;
    }
    CU_ASSERT_EQUAL(wrong, 0);
    void *blocks[] = {row, want, from, back, rounded, decoded};
    for (unsigned i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
    code_free(&code);
}

static void test_rows_in_blocks(void)
{
    static const int64_t widths[] = {8, 72, 128, 200, 2880};
    float values[MOST_WIDTH];
    struct rng rng = {12};
    for (int i = 0; i < MOST_WIDTH; i++)
        values[i] = random_float(&rng) * (i % 640 < 128 ? 1e-6f : i % 640 < 256 ? 3e4f : 1);
    values[5] = NAN, values[6] = INFINITY, values[70] = -INFINITY, values[71] = -NAN, values[3] = -0.0f;
    for (unsigned level = 0; level < LEVELS && level_runs_here(level_names[level]); level++)
        for (unsigned f = 0; f < sizeof formats / sizeof *formats; f++)
            for (unsigned w = 0; w < sizeof widths / sizeof *widths; w++)
                check_blocks(values, widths[w], &formats[f], (w + f) % 2 ? dtype_bf16 : dtype_f32, level_names[level]);
}

static void test_all_bad(void)
{
    float values[128];
    for (unsigned level = 0; level < LEVELS && level_runs_here(level_names[level]); level++)
        for (unsigned f = 0; f < sizeof formats / sizeof *formats; f++)
            for (int kind = 0; kind < 3; kind++) {
                for (int i = 0; i < 128; i++)
                    values[i] = kind == 0 ? NAN : kind == 1 ? INFINITY : i % 2 ? 3.4e38f : -1e-45f;
                check_blocks(values, 128, &formats[f], dtype_f32, level_names[level]);
            }
}

/// A row of a dispatch has the dispatch's own type, whatever carried it: it is rounded to that on its way to a wider one.
static void test_rounded_between(void)
{
    for (unsigned level = 0; level < LEVELS && level_runs_here(level_names[level]); level++) {
        struct code code;
        float values[128], back[128];
        uint8_t row[256];
        struct rng rng = {3};
        for (int i = 0; i < 128; i++)
            values[i] = random_float(&rng);
        CU_ASSERT_FATAL(block_code(&code, 128, &formats[0], dtype_f32, dtype_bf16, level_names[level]));
        fp8_pack(values, 128, 128, false, row);
        code_run(&code, 1,
                 &(struct moe_kargs){.p = {&(struct moe_row_table){1, (const void *[]){row}, (void *[]){back}}}}, 0, 1);
        fp8_unpack(row, 128, 128, false, values);
        uint16_t rounded[128];
        for (int i = 0; i < 128; i++) {
            put_number(rounded, i, dtype_bf16, values[i]);
            CU_ASSERT((double)back[i] == get_number(rounded, i, dtype_bf16));
        }
        code_free(&code);
    }
}

/// Hexadecimal numbers, separated by commas; returns how many.
static unsigned numbers(char *text, uint32_t *out, unsigned most)
{
    unsigned count = 0;
    for (char *one; (one = strsep(&text, ",\n")) && count < most;)
        out[count++] = (uint32_t)strtoul(one, NULL, 16);
    return count;
}

static void check_vector(char *const *fields, const char *level)
{
    uint32_t inputs[8], codes[8], scale = 0;
    float values[8] = {0}; // zeros fill the row: they change no maximum
    unsigned count = numbers(fields[1], inputs, 8);
    for (unsigned i = 0; i < count; i++)
        values[i] = from_bits(inputs[i]);
    for (int ue8m0 = 0; ue8m0 < 2; ue8m0++) {
        struct code code;
        uint8_t row[16] = {0};
        CU_ASSERT_FATAL(block_code(&code, 8, &(struct format){128, ue8m0}, dtype_f32, dtype_none, level));
        code_run(&code, 0,
                 &(struct moe_kargs){.p = {&(struct moe_row_table){1, (const void *[]){values}, (void *[]){row}}}}, 0,
                 1);
        CU_ASSERT_EQUAL(numbers(fields[ue8m0 ? 8 : 4], codes, 8), count);
        for (unsigned i = 0; i < count; i++)
            CU_ASSERT_EQUAL(row[i], codes[i]);
        numbers(fields[ue8m0 ? 9 : 5], &scale, 1);
        CU_ASSERT(ue8m0 ? row[8] == scale : memcmp(row + 8, &scale, 4) == 0);
        code_free(&code);
    }
}

static void test_block_vectors(void)
{
    unsigned checked = 0;
    for (unsigned level = 0; level < LEVELS && level_runs_here(level_names[level]); level++) {
        FILE *file = fopen("tests/data/fp8_block_vectors.tsv", "r");
        CU_ASSERT_FATAL(file != NULL);
        char line[1024];
        while (fgets(line, sizeof line, file)) {
            char *fields[10], *rest = line;
            int count = 0;
            while (count < 10 && (fields[count] = strsep(&rest, "\t\n")))
                count++;
            if (count == 10 && line[0] != '#') {
                check_vector(fields, level_names[level]);
                checked += level == 0;
            }
        }
        fclose(file);
    }
    CU_ASSERT_EQUAL(checked, 8);
}

/// A row of Gaussian numbers in blocks of 128 loses at most 2.7% in L2 and 0.035% in 1 - cosine.
static void test_loss(void)
{
    float values[MOST_WIDTH], back[MOST_WIDTH];
    uint8_t row[MOST_BYTES];
    struct rng rng = {1};
    for (int ue8m0 = 0; ue8m0 < 2; ue8m0++) {
        double difference = 0, norm = 0, product = 0, other = 0;
        for (int i = 0; i < MOST_WIDTH; i++) {
            values[i] = 0;
            for (int k = 0; k < 12; k++)
                values[i] += random_float(&rng) / 2;
        }
        struct code code;
        CU_ASSERT_FATAL(block_code(&code, MOST_WIDTH, &(struct format){128, ue8m0}, dtype_f32, dtype_none, NULL));
        code_run(&code, 0,
                 &(struct moe_kargs){.p = {&(struct moe_row_table){1, (const void *[]){values}, (void *[]){row}}}}, 0,
                 1);
        code_run(&code, 1,
                 &(struct moe_kargs){.p = {&(struct moe_row_table){1, (const void *[]){row}, (void *[]){back}}}}, 0, 1);
        for (int i = 0; i < MOST_WIDTH; i++) {
            double x = (double)values[i], y = (double)back[i];
            difference += (x - y) * (x - y), norm += x * x, other += y * y, product += x * y;
        }
        fprintf(stderr, "[%s: relative L2 %.4f, 1 - cosine %.6f] ", ue8m0 ? "ue8m0" : "f32", sqrt(difference / norm),
                1 - product / sqrt(norm * other));
        CU_ASSERT(sqrt(difference / norm) <= 0.027);
        CU_ASSERT(1 - product / sqrt(norm * other) <= (ue8m0 ? 0.00036 : 0.00035));
        code_free(&code);
    }
}

// ------------------------------------------------------------------ faults seen elsewhere: tests/data/known_faults.json

static void expect_codes(const float *values, const uint8_t *expected, int count)
{
    for (unsigned level = 0; level < LEVELS && level_runs_here(level_names[level]); level++) {
        struct code code;
        float row[WIDTH] = {0};
        uint8_t codes[WIDTH];
        memcpy(row, values, (size_t)count * sizeof *row);
        converter(&code, dtype_f32, dtype_fp8_e4m3, level_names[level]);
        convert(&code, row, codes);
        CU_ASSERT(memcmp(codes, expected, (size_t)count) == 0);
        code_free(&code);
    }
}

static void b24_saturates(void)
{
    expect_codes((float[]){1000, 448, 464, 465, -1000}, (uint8_t[]){0x7e, 0x7e, 0x7e, 0x7e, 0xfe}, 5);
}

static void b25_ties_and_subnormals(void)
{
    expect_codes((float[]){1.0625f, 1.1875f, 0x1p-9f, -0.0f, 0x1p-10f, -0x1p-10f, 0x1.8p-9f},
                 (uint8_t[]){0x38, 0x3a, 0x01, 0x80, 0x00, 0x80, 0x02}, 7);
}

/// One NaN and one infinity in a block: they alone differ from what a row without them would be.
static void b26_bad_neighbours(void)
{
    for (unsigned level = 0; level < LEVELS && level_runs_here(level_names[level]); level++) {
        struct code code;
        float values[256];
        uint8_t clean[272], bad[272];
        struct rng rng = {26};
        for (int i = 0; i < 256; i++)
            values[i] = random_float(&rng);
        values[0] = 2; // the block's largest stays
        CU_ASSERT_FATAL(block_code(&code, 256, &formats[0], dtype_f32, dtype_none, level_names[level]));
        for (int i = 0; i < 2; i++) {
            code_run(&code, 0,
                     &(struct moe_kargs){
                         .p = {&(struct moe_row_table){1, (const void *[]){values}, (void *[]){i ? bad : clean}}}},
                     0, 1);
            values[17] = NAN, values[90] = -INFINITY;
        }
        CU_ASSERT(bad[17] == 0x7f && bad[90] == 0xfe);
        bad[17] = clean[17], bad[90] = clean[90];
        CU_ASSERT(memcmp(clean, bad, 256 + 2 * 4) == 0);
        code_free(&code);
    }
}

void suite_numbers(void)
{
    CU_pSuite suite = CU_add_suite("numbers", NULL, NULL);
    CU_add_test(suite, "E4M3: the vectors", test_vectors);
    CU_add_test(suite, "E4M3: every code back to its value", test_every_code);
    CU_add_test(suite, "E4M3: nearest even, saturating, at every level", test_rounding);
    CU_add_test(suite, "blocks: the vectors", test_block_vectors);
    CU_add_test(suite, "blocks: rows of every length, NaN and infinities", test_rows_in_blocks);
    CU_add_test(suite, "blocks of nothing finite, and of the largest", test_all_bad);
    CU_add_test(suite, "blocks: rounded to the row's own type", test_rounded_between);
    CU_add_test(suite, "blocks: what Gaussian rows lose", test_loss);
    CU_add_test(suite, "B24 beyond 448 is 448", b24_saturates);
    CU_add_test(suite, "B25 ties, subnormals, the sign of zero", b25_ties_and_subnormals);
    CU_add_test(suite, "B26 NaN and infinity among neighbours", b26_bad_neighbours);
}
