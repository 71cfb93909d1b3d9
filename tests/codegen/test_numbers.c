// E4M3 in generated code, at every CPU level that runs here: the vectors of tests/data, every code back to its value, and
// every upper half of a float32 against the nearest value of a table, with ties and both neighbours of each tie.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/codegen/fixture.h"

static const char *const level_names[] = {"v2", "v3", "v4", "bf16"};
enum { LEVELS = sizeof level_names / sizeof *level_names, WIDTH = 1032 }; // whole vectors and what is left of one

static double decoded(unsigned code)
{
    unsigned exponent = code >> 3 & 15, fraction = code & 7;
    if ((code & 0x7f) == 0x7f)
        return NAN;
    double value = exponent ? ldexp(8 + fraction, (int)exponent - 10) : ldexp(fraction, -9);
    return code & 0x80 ? -value : value;
}

static unsigned encoded(float value)
{
    if (isnan(value))
        return 0x7f;
    unsigned low = 0, high = 0x7e; // the largest code that is not above it
    double size = fabs((double)value);
    while (low < high) {
        unsigned middle = (low + high + 1) / 2;
        if (decoded(middle) <= size)
            low = middle;
        else
            high = middle - 1;
    }
    if (low < 0x7e) {
        double below = size - decoded(low), above = decoded(low + 1) - size;
        low += above < below || (above == below && low % 2);
    }
    return low | (signbit(value) ? 0x80 : 0);
}

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
        wrong += codes[i] != encoded(values[i]);
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
    for (unsigned level = 0; level < LEVELS && cpu_level_runs_here(level_names[level]); level++) {
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
    for (unsigned level = 0; level < LEVELS && cpu_level_runs_here(level_names[level]); level++) {
        struct code code;
        uint8_t codes[WIDTH];
        float values[WIDTH];
        for (int i = 0; i < WIDTH; i++)
            codes[i] = (uint8_t)(i * 5);
        converter(&code, dtype_fp8_e4m3, dtype_f32, level_names[level]);
        convert(&code, codes, values);
        for (int i = 0; i < WIDTH; i++) {
            double expected = decoded(codes[i]);
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
    for (unsigned level = 0; level < LEVELS && cpu_level_runs_here(level_names[level]); level++) {
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

void suite_numbers(void)
{
    CU_pSuite suite = CU_add_suite("numbers", NULL, NULL);
    CU_add_test(suite, "E4M3: the vectors", test_vectors);
    CU_add_test(suite, "E4M3: every code back to its value", test_every_code);
    CU_add_test(suite, "E4M3: nearest even, saturating, at every level", test_rounding);
}
