// The checker in tests (fixture.h).
#include "bad_programs.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct check_options no_options = {.layer = -1};

void check_path(struct checked *checked, const char *path, const struct check_options *options)
{
    memset(checked, 0, sizeof *checked);
    context_init(&checked->context);
    ir_init(&checked->module, &module_ir);
    if (setjmp(checked->context.fatal)) {
        CU_FAIL_FATAL("the checker ended in a fatal error");
    }
    struct rows pipelines = {0};
    checked->loaded = load_program(&checked->context, &checked->program, path);
    checked->fine = checked->loaded &&
                    check_program(&checked->context, &checked->program, options, &checked->module, &pipelines);
    checked->pipeline = pipelines.count ? pipelines.first : NONE;
}

void release(struct checked *checked)
{
    ir_free(&checked->module);
    context_free(&checked->context);
}

char *errors_of(const struct checked *checked, enum diag_format format)
{
    return printed_diagnostics(&checked->context, format);
}

void expect_fine(const struct checked *checked, const char *what)
{
    CU_ASSERT_TRUE(checked->fine);
    if (checked->fine)
        return;
    char *errors = errors_of(checked, DIAG_SHORT);
    printf("\n%s:\n%s", what, errors);
    free(errors);
}

const struct mod_pipeline *pipeline_of(const struct checked *checked)
{
    CU_ASSERT_NOT_EQUAL_FATAL(checked->pipeline, NONE);
    return ROW(&checked->module, mod_pipeline, checked->pipeline);
}

char check_folder[64];

const char *write_file(const char *name, const char *text)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", check_folder, name);
    FILE *out = fopen(path, "wb");
    if (!out) {
        perror(path);
        exit(3);
    }
    fputs(text, out);
    fclose(out);
    return path;
}

int make_folder(void)
{
    snprintf(check_folder, sizeof check_folder, "/tmp/moe_check_XXXXXX");
    if (!mkdtemp(check_folder))
        return 1;
    write_file("config.json",
               "{\"hidden_size\": 32, \"scale\": 2.5, \"flag\": true, \"model_type\": \"tiny\", \"act\": \"relu\",\n"
               " \"nothing\": null, \"nested\": {\"depth\": 3},\n"
               " \"sizes\": [32, [5], {\"deep\": \"silu\"}]}");
    write_file("broken.json", "{\"a\": }");
    write_file("list.json", "[1]");
    write_file("empty.json", "");
    return 0;
}

int remove_folder(void)
{
    static const char *const names[] = {"config.json", "broken.json", "list.json",
                                        "empty.json",  "program.moe", "library.moe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", check_folder, names[i]);
        unlink(path);
    }
    return rmdir(check_folder);
}

/// The good program with one line replaced, into `text`; the place of the `@` in it (0, 0 without).
void make_program(int line, const char *replacement, char *text, size_t size, int *at_line, int *at_column)
{
    size_t used = 0;
    int row = 1, column = 1;
    *at_line = *at_column = 0;
    for (int i = 1; i <= GOOD_LINES; i++) {
        for (const char *c = i == line ? replacement : good_program[i - 1]; *c; c++) {
            if (*c == '@') {
                *at_line = row;
                *at_column = column;
                continue;
            }
            CU_ASSERT_FATAL(used + 2 < size);
            text[used++] = *c;
            column++;
            if (*c == '\n') {
                row++;
                column = 1;
            }
        }
        text[used++] = '\n';
        row++;
        column = 1;
    }
    text[used] = 0;
}

/// The good program with one line replaced, checked.
void check_line(struct checked *checked, int line, const char *replacement, const struct check_options *options)
{
    char text[8192];
    int at_line, at_column;
    make_program(line, replacement, text, sizeof text, &at_line, &at_column);
    check_path(checked, write_file("program.moe", text), options);
}

void expect_error(struct checked *checked, const char *part)
{
    char *errors = errors_of(checked, DIAG_SHORT);
    CU_ASSERT_FALSE(checked->fine);
    CU_ASSERT_PTR_NOT_NULL(strstr(errors, part));
    if (!strstr(errors, part))
        printf("\nexpected %s, got\n%s", part, errors);
    free(errors);
    release(checked);
}
