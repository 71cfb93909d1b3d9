// How errors read: the exact text of syntax errors, carets and labels, one error per mistake, the limits of the parser, JSON.
#include "tests/printed.h"
#include "tests/syntax/helpers.h"

/// All diagnostics of a text, as text.
static char *errors_of(const char *path, struct text source, enum diag_format format)
{
    struct context context;
    struct ast ast = {0};
    START(&context);
    parse_file(&context, &ast, add_source(&context, path, source.bytes, source.size, NULL));
    char *text = printed_diagnostics(&context, format);
    context_free(&context);
    return text;
}

static void check_golden(const char *name)
{
    char path[100];
    snprintf(path, sizeof path, "examples/errors/%s.moe", name);
    struct text source = read_text(path);
    snprintf(path, sizeof path, "tests/diagnostics/%s.expected", name);
    struct text expected = read_text(path);
    snprintf(path, sizeof path, "%s.moe", name);
    char *errors = errors_of(path, source, DIAG_TEXT);
    CU_ASSERT_STRING_EQUAL(errors, expected.bytes);
    free(errors);
    free(source.bytes);
    free(expected.bytes);
}

static void test_golden_errors(void)
{
    check_golden("01_semicolon");
    check_golden("02_unit");
}

/// The place of a text in a file.
static struct span place_of(const struct context *context, const char *text, const char *part)
{
    const char *begin = strstr(context->files[0].text, text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(begin);
    uint32_t offset = (uint32_t)(strstr(begin, part) - context->files[0].text);
    return (struct span){0, offset, offset + (uint32_t)strlen(part)};
}

static void queue_shape(struct context *context)
{
    struct span use = place_of(context, "xd, w_gate_up, w_down", "w_down");
    struct span type = place_of(context, "param w_down", "bf16[experts, ffn, hidden]");
    struct diag *diag = diag_error(context, E0204, use, "`w_down` has the wrong shape for `swiglu`");
    diag_label(context, diag, "expected [experts, hidden, ffn], found [experts, ffn, hidden]");
    diag_label_at(context, diag, type, "declared here");
    diag_note(context, diag,
              "`swiglu` is declared with w_down: any[e, h, g]; h = hidden comes from `xd`, g = ffn from "
              "`w_gate_up` (std/ops.moe:39:1)");
    diag_help(context, diag, "swap the last two dimensions");
    diag_fix(context, diag, place_of(context, "param w_down", "ffn, hidden"), "hidden, ffn");
}

static void queue_overlap(struct context *context)
{
    struct span expert = place_of(context, "dispatch[i] ||", "expert[i]");
    struct span dispatch = place_of(context, "dispatch[i] ||", "dispatch[i]");
    const char *message = "`dispatch[i]` and `expert[i]` cannot overlap: one waits for the other";
    struct diag *diag = diag_error(context, E0301, expert, "%s", message);
    diag_label(context, diag, "reads `xd`...");
    diag_label_at(context, diag, dispatch, "...which this writes, for the same microbatch");
    diag_note(context, diag, "stage expert: yd = swiglu(xd, ...)  (mixtral.moe:24:5)");
    diag_help(context, diag, "send the next microbatch while this one computes");
    diag_fix(context, diag, place_of(context, "dispatch[i] ||", "i]"), "i+1]");
}

static void check_layout(const char *name, void (*queue)(struct context *context))
{
    char path[100], *printed = NULL;
    size_t size = 0;
    struct context context;
    snprintf(path, sizeof path, "examples/errors/%s.moe", name);
    struct text source = read_text(path);
    snprintf(path, sizeof path, "tests/diagnostics/%s.expected", name);
    struct text expected = read_text(path);
    snprintf(path, sizeof path, "%s.moe", name);
    START(&context);
    add_source(&context, path, source.bytes, source.size, NULL);
    queue(&context);
    FILE *out = open_memstream(&printed, &size);
    diag_print_all(&context, DIAG_TEXT, false, out);
    fclose(out);
    CU_ASSERT_STRING_EQUAL(printed, expected.bytes);
    if (strcmp(printed, expected.bytes) != 0)
        printf("\n--- got\n%s--- expected\n%s", printed, expected.bytes);
    free(printed);
    free(source.bytes);
    free(expected.bytes);
    context_free(&context);
}

static void queue_tabs(struct context *context)
{
    struct span span = place_of(context, "\tx\ty", "y");
    struct diag *diag = diag_error(context, E0101, span, "a");
    diag_label(context, diag, "b");
    diag_error(context, E0102, span, "dropped: the same place");
    diag_label_at(context, diag, place_of(context, "\xc3\xa9", "z"), "c");
}

static void test_layout_of_labels(void)
{
    check_layout("04_shape", queue_shape);
    check_layout("06_overlap_dep", queue_overlap);
    struct context context;
    char *printed = NULL;
    size_t size = 0;
    START(&context);
    add_source(&context, "t", "\tx\ty\n\n\"\xc3\xa9\" z\r\n", 13, NULL);
    queue_tabs(&context);
    FILE *out = open_memstream(&printed, &size);
    diag_print_all(&context, DIAG_TEXT, false, out);
    fclose(out);
    CU_ASSERT_STRING_EQUAL(printed, "t:1:4: error[E0101]: a\n   1 |     x   y\n     |         ^ b\n     ...\n"
                                    "   3 | \"\xc3\xa9\" z\n     |     - c\n");
    free(printed);
    context_free(&context);
}

static void check_errors(const char *source, const char *expected)
{
    char *errors = errors_of("t", text_from(source), DIAG_SHORT);
    CU_ASSERT_STRING_EQUAL(errors, expected);
    if (strcmp(errors, expected) != 0)
        printf("\n--- got\n%s--- expected\n%s", errors, expected);
    free(errors);
}

static void test_one_error_per_mistake(void)
{
    check_errors("import std.ops\ndim a = 64kb;\nconst b = 99999999999999999999;\ndim d = ;\n",
                 "t:1:14: error[E0001]: expected `;`\nt:2:9: error[E0002]: unknown unit `kb`\n"
                 "t:3:11: error[E0006]: this number is too large\nt:4:9: error[E0003]: unexpected `;`\n");
    check_errors("cluster c { link a across b { bandwidth 4GB/s, latency: 3us }; axis g[3]; }\nconst z = \"abc;\n",
                 "t:1:41: error[E0003]: unexpected `4GB/s`\nt:2:11: error[E0005]: this string does not end\n");
    check_errors(
        "schedule s for m {\n    for i in 0 n { a[i]; b[i]; c[i]; d[i]; }\n    sync;\n}\ndim a = 1;\ndim b == 2;\n",
        "t:2:16: error[E0003]: unexpected `n`\nt:6:7: error[E0003]: unexpected `==`\n");
    check_errors("layer m() -> t {\n    yield f(a;\n    yield b;\n    yield c\n}\n",
                 "t:2:13: error[E0001]: expected `)`\nt:4:11: error[E0001]: expected `;`\n");
    check_errors("device d {\n    sm = 1;\n", "t:2:11: error[E0001]: expected `}`\n");
    check_errors("const a = @@ \xc3\xa9;\n/* open", "t:1:11: error[E0004]: unexpected character `@`\n"
                                                    "t:1:14: error[E0004]: unexpected character `\xc3\xa9`\n"
                                                    "t:2:1: error[E0005]: this comment does not end\n");
    check_errors("/* \xc3\xa9 */ const b = @;\n", "t:1:19: error[E0004]: unexpected character `@`\n"); // not bytes
    check_errors("const a = \xff;\n", "t:1:11: error[E0004]: this is not UTF-8\n");
}

static void test_limits(void)
{
    static const char *const openings[] = {"(", "[", "-", "not ", "f(", "a[", "{x:"};
    for (size_t i = 0; i < sizeof openings / sizeof *openings; i++) {
        struct text source = {0};
        FILE *out = open_memstream(&source.bytes, &source.size);
        fputs("const a = ", out);
        for (int depth = 0; depth < 30000; depth++)
            fputs(openings[i], out);
        fclose(out);
        char *errors = errors_of("t", source, DIAG_SHORT);
        CU_ASSERT_PTR_NOT_NULL(strstr(errors, "E0007"));
        free(errors);
        free(source.bytes);
    }
    struct text sum = {0}; // deep to the left: no stack in the parser, but a deep tree
    FILE *out = open_memstream(&sum.bytes, &sum.size);
    fputs("const a = 1", out);
    for (int i = 0; i < 30000; i++)
        fputs("+1", out);
    fputs(";", out);
    fclose(out);
    char *errors = errors_of("t", sum, DIAG_SHORT);
    CU_ASSERT_PTR_NOT_NULL(strstr(errors, "E0007"));
    free(errors);
    free(sum.bytes);
}

static void test_at_most_twenty(void)
{
    struct text source = {0};
    FILE *out = open_memstream(&source.bytes, &source.size);
    for (int i = 0; i < 30; i++)
        fputs("const a = 1QQ;\n", out);
    fclose(out);
    char *errors = errors_of("t", source, DIAG_SHORT);
    int lines = 0;
    for (const char *at = errors; (at = strchr(at, '\n')); at++)
        lines++;
    CU_ASSERT_EQUAL(lines, 21);
    CU_ASSERT_PTR_NOT_NULL(strstr(errors, "and 10 more errors\n"));
    free(errors);
    free(source.bytes);
}

static void test_json(void)
{
    struct text source = {(char *)(uintptr_t) "const a = 4\n", 12};
    char *errors = errors_of("t", source, DIAG_JSON);
    CU_ASSERT_STRING_EQUAL(
        errors,
        "{\"code\":\"E0001\",\"level\":\"error\",\"message\":\"expected "
        "`;`\",\"file\":\"t\",\"line\":1,\"col\":11,\"end_line\":1,"
        "\"end_col\":12,\"byte_start\":10,\"byte_end\":11,\"labels\":[{\"message\":\"after "
        "this\",\"primary\":true,\"file\":\"t\","
        "\"line\":1,\"col\":11,\"end_line\":1,\"end_col\":12,\"byte_start\":10,\"byte_end\":11}],\"notes\":[],\"fix\":{"
        "\"help\":"
        "\"end the "
        "statement\",\"edits\":[{\"text\":\";\",\"file\":\"t\",\"line\":1,\"col\":12,\"end_line\":1,\"end_col\":12,"
        "\"byte_start\":11,\"byte_end\":11}]}}\n");
    free(errors);
}

void suite_diagnostics(void)
{
    CU_pSuite suite = CU_add_suite("diagnostics", NULL, NULL);
    CU_add_test(suite, "syntax errors read as they should", test_golden_errors);
    CU_add_test(suite, "labels stand under their places", test_layout_of_labels);
    CU_add_test(suite, "one error per mistake", test_one_error_per_mistake);
    CU_add_test(suite, "deep nesting is refused", test_limits);
    CU_add_test(suite, "at most twenty errors", test_at_most_twenty);
    CU_add_test(suite, "diagnostics as JSON", test_json);
}
