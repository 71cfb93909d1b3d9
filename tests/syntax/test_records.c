// The tables that every intermediate representation is made of: text and back to the same text, references checked, bad
// text refused with the line, whatever it is.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/plan/records.h"
#include "runtime/plan/words.h"

#define RECORDS_DEF "tests/syntax/records_test.def"
#include "runtime/plan/records_structs.h"

extern const struct ir_type test_ir;
#define RECORDS_DEF "tests/syntax/records_test.def"
#define RECORDS_TYPE test_ir
#define RECORDS_NAME "test"
#define RECORDS_TABLES test_tables
#include "runtime/plan/records_describe.h"
#include "tests/printed.h"

void suite_records(void);

static void fill(struct ir *ir)
{
    static const double reals[] = {0.1, -0.0, 1e308, 5e-324, 3, INFINITY, -INFINITY, NAN};
    static const char *const names[] = {"", "plain", "with \"quotes\" and \\", "line\nbreak\ttab\x7f",
                                        "caf\xc3\xa9 \xff"};
    ir_init(ir, &test_ir);
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t row = ADD(ir, test_item);
        str_id name = ir_str(ir, names[i % 5]);
        *ROW(ir, test_item, row) = (struct test_item){.name = name,
                                                      .dtype = i % dtype_words_count,
                                                      .flag = i % 2,
                                                      .count = i * 1000003u,
                                                      .big = i % 3 ? INT64_MIN + i : INT64_MAX - i,
                                                      .real = reals[i % 8],
                                                      .dims = {i, -1, INT64_MIN},
                                                      .parent = i ? i - 1 : NONE,
                                                      .parts = {i / 2, i % 2}};
        if (i % 2) {
            uint32_t part = ADD(ir, test_part); // before ROW: it may move the table
            ROW(ir, test_part, part)->item = row;
        }
    }
}

static void test_round_trip(void)
{
    struct ir ir, again;
    char error[200] = "";
    fill(&ir);
    CU_ASSERT(ir_check(&ir, error, sizeof error));
    char *text = printed_ir(&ir);
    CU_ASSERT_FATAL(ir_parse(&again, &test_ir, text, error, sizeof error));
    char *second = printed_ir(&again);
    CU_ASSERT_STRING_EQUAL(text, second);
    CU_ASSERT(ir_check(&again, error, sizeof error));
    CU_ASSERT(isnan(ROW(&again, test_item, 7)->real));
    CU_ASSERT_EQUAL(ROW(&again, test_item, 3)->real, 5e-324);
    free(text);
    free(second);
    ir_free(&ir);
    ir_free(&again);
}

static void test_rows_and_strings(void)
{
    struct ir ir;
    ir_init(&ir, &test_ir);
    CU_ASSERT_EQUAL(ADD(&ir, test_part), 0);
    CU_ASSERT_EQUAL(ROW(&ir, test_part, 0)->item, NONE);
    CU_ASSERT_EQUAL(ir_str(&ir, ""), 0);
    CU_ASSERT_EQUAL(ir_strn(&ir, "abc\0def", 7), ir_str(&ir, "abc"));
    str_id ids[5000];
    char name[20];
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "name%d", i);
        ids[i] = ir_str(&ir, name);
    }
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "name%d", i);
        CU_ASSERT_EQUAL(ir_str(&ir, name), ids[i]);
        CU_ASSERT_STRING_EQUAL(ir_text(&ir, ids[i]), name);
    }
    ir_free(&ir);
}

static void test_check(void)
{
    struct ir ir;
    char error[200];
    fill(&ir);
    ROW(&ir, test_item, 5)->parent = 40;
    CU_ASSERT(!ir_check(&ir, error, sizeof error));
    CU_ASSERT_STRING_EQUAL(error, "test_item 5: parent: row number out of range");
    ROW(&ir, test_item, 5)->parent = NONE;
    ROW(&ir, test_item, 6)->parts = (struct rows){UINT32_MAX, 2};
    CU_ASSERT(!ir_check(&ir, error, sizeof error));
    CU_ASSERT_STRING_EQUAL(error, "test_item 6: parts: rows out of range");
    ROW(&ir, test_item, 6)->parts = (struct rows){0, 0};
    ROW(&ir, test_item, 1)->name++;
    CU_ASSERT(!ir_check(&ir, error, sizeof error));
    CU_ASSERT_STRING_EQUAL(error, "test_item 1: name: no text starts there");
    ROW(&ir, test_item, 1)->name = 0;
    ROW(&ir, test_item, 1)->dtype = dtype_words_count;
    CU_ASSERT(!ir_check(&ir, error, sizeof error));
    CU_ASSERT_STRING_EQUAL(error, "test_item 1: dtype: not a word");
    ir_free(&ir);
}

static void refused(const char *text, const char *message)
{
    struct ir ir;
    char error[200] = "";
    CU_ASSERT(!ir_parse(&ir, &test_ir, text, error, sizeof error));
    CU_ASSERT_STRING_EQUAL(error, message);
    ir_free(&ir);
}

static void test_bad_text(void)
{
    refused("", "line 1: expected `ir test`");
    refused("ir other\n", "line 1: expected `ir test`");
    refused("ir test\nnothing 0\n", "line 2: no record of test has this name");
    refused("ir test\ntest_part 1 name=\"\" item=-\n", "line 2: test_part: expected row number 0");
    refused("ir test\ntest_part 0 name=\"\" item=-\ntest_part 1 name=\"a\\q\" item=-\n",
            "line 3: test_part: bad value of field name");
    refused("ir test\ntest_part 0 name=\"\" item=4294967296\n", "line 2: test_part: bad value of field item");
    refused("ir test\ntest_part 0 name=\"\"\n", "line 2: test_part: expected field item");
    refused("ir test\ntest_part 0 name=\"\" item=- more\n", "line 2: test_part: text after the last field");
}

static void test_damaged_text(void)
{
    struct ir ir;
    fill(&ir);
    char *text = printed_ir(&ir);
    size_t size = strlen(text);
    ir_free(&ir);
    uint32_t state = 1;
    for (int round = 0; round < 3000; round++) {
        char error[200];
        char *copy = strdup(text);
        for (int n = 0; n < 3; n++) {
            state = state * 1664525u + 1013904223u;
            copy[(state >> 4) % size] = (char)(state >> 24);
        }
        if (ir_parse(&ir, &test_ir, copy, error, sizeof error))
            ir_check(&ir, error, sizeof error);
        ir_free(&ir);
        free(copy);
    }
    free(text);
}

void suite_records(void)
{
    CU_pSuite suite = CU_add_suite("records", NULL, NULL);
    CU_add_test(suite, "text and back", test_round_trip);
    CU_add_test(suite, "rows and strings", test_rows_and_strings);
    CU_add_test(suite, "references are checked", test_check);
    CU_add_test(suite, "bad text is refused", test_bad_text);
    CU_add_test(suite, "damaged text", test_damaged_text);
}
