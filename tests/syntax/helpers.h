// What the tests of this folder share: texts in memory, files, and a context whose fatal errors fail the test.
#ifndef TESTS_SYNTAX_HELPERS_H
#define TESTS_SYNTAX_HELPERS_H

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/syntax/ast.h"

struct text {
    char *bytes;
    size_t size;
};

static inline struct text text_from(const char *text)
{
    return (struct text){(char *)(uintptr_t)text, strlen(text)};
}

static inline struct text read_text(const char *path)
{
    struct text text = {0};
    FILE *in = fopen(path, "rb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(in);
    size_t capacity = 1 << 16;
    text.bytes = malloc(capacity);
    text.size = fread(text.bytes, 1, capacity - 1, in);
    text.bytes[text.size] = 0;
    fclose(in);
    return text;
}

// A macro: setjmp must be called by a function that is still running when the jump comes.
#define START(context)                \
    do {                              \
        context_init(context);        \
        if (setjmp((context)->fatal)) \
            CU_FAIL_FATAL("fatal");   \
    } while (0)

void suite_records(void);     // test_records.c
void suite_diagnostics(void); // test_diagnostics.c

#endif
