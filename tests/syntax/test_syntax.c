// From text to tree and back: every example parses, prints, reads back and formats to one text whatever its white space;
// ten thousand damaged files end in an error message and never in a crash.
#include <glob.h>

#include "compiler/syntax/parser.h"
#include "tests/syntax/helpers.h"

void suite_syntax(void);

static uint64_t random_state;

static uint32_t random_below(uint32_t limit) // xorshift64*: the same numbers everywhere
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (uint32_t)((random_state * 2685821657736338717u) >> 33) % limit;
}

static void each_file(const char *pattern, void (*visit)(const char *path, struct text text))
{
    glob_t found;
    CU_ASSERT_EQUAL_FATAL(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct text text = read_text(found.gl_pathv[i]);
        visit(found.gl_pathv[i], text);
        free(text.bytes);
    }
    globfree(&found);
}

/// Every file that has no syntax error.
static void each_example(void (*visit)(const char *path, struct text text))
{
    each_file("examples/*.moe", visit);
    each_file("examples/errors/0[3-9]*.moe", visit);
    each_file("examples/errors/10*.moe", visit);
    each_file("stdlib/std/*.moe", visit);
}

static void parses(const char *path, struct text text)
{
    struct context context;
    struct ast ast = {0};
    char error[200] = "";
    START(&context);
    node_id root = parse_file(&context, &ast, add_source(&context, path, text.bytes, text.size, NULL));
    CU_ASSERT_EQUAL(context.error_count, 0);
    CU_ASSERT(ast_check(&context, &ast, root, error, sizeof error));
    if (context.error_count)
        diag_print_all(&context, DIAG_TEXT, false, stdout);
    context_free(&context);
}

static void test_examples_parse(void)
{
    each_example(parses);
}

static char *tree_text(const struct context *context, const struct ast *ast, node_id root)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    ast_print(context, ast, root, out);
    fclose(out);
    return text;
}

static void reads_back(const char *path, struct text text)
{
    struct context context;
    struct ast ast = {0}, again = {0};
    char error[200];
    START(&context);
    node_id root = parse_file(&context, &ast, add_source(&context, path, text.bytes, text.size, NULL));
    char *first = tree_text(&context, &ast, root);
    node_id read = ast_read(&context, &again, first, error, sizeof error);
    CU_ASSERT_NOT_EQUAL_FATAL(read, 0);
    char *second = tree_text(&context, &again, read);
    CU_ASSERT_STRING_EQUAL(first, second);
    CU_ASSERT(ast_check(&context, &again, read, error, sizeof error));
    for (size_t end = 1, size = strlen(first); end < size; end += size / 50 + 1) { // cut anywhere: an error, no crash
        first[size - 1 - end] = 0;
        CU_ASSERT_EQUAL(ast_read(&context, &again, first, error, sizeof error), 0);
        CU_ASSERT(*error != 0);
    }
    free(first);
    free(second);
    context_free(&context);
}

static void test_tree_round_trip(void)
{
    each_example(reads_back);
}

/// The tree without its places: what formatting must keep.
static char *meaning_of(struct context *context, const char *path, struct text text)
{
    struct ast ast = {0};
    node_id root = parse_file(context, &ast, add_source(context, path, text.bytes, text.size, NULL));
    for (node_id id = 1; id < ast.count; id++) {
        ast.nodes[id].span = (struct span){0, 0, 0};
        ast.nodes[id].name_span = (struct span){0, 0, 0};
    }
    return tree_text(context, &ast, root);
}

static const char *format_text(struct context *context, struct text text)
{
    return format_source(context, add_source(context, "test.moe", text.bytes, text.size, NULL));
}

static bool is_comment(const struct token *token)
{
    return token->kind == TOKEN_COMMENT || token->kind == TOKEN_DOC;
}

/// White space between two tokens: sometimes none where the signs allow it, sometimes much.
static void write_space(FILE *out, bool needed)
{
    static const char *const spaces[] = {" ", "\n", "  ", "\t", "\r\n", "\n\n\n", " \n  "};
    for (uint32_t n = needed ? 1 + random_below(2) : random_below(3); n; n--)
        fputs(spaces[random_below(7)], out);
}

/// The same tokens with other white space. A comment keeps what formatting goes by: whether it has its line to itself.
static struct text respaced(const struct source_file *source, const struct token_list *tokens)
{
    struct text text = {0};
    FILE *out = open_memstream(&text.bytes, &text.size);
    uint32_t end = 0;
    bool after_line_comment = false;
    for (uint32_t i = 0; i + 1 < tokens->count; i++) {
        const struct token *token = &tokens->at[i];
        const char *begin = source->text + token->span.begin;
        bool line_before = memchr(source->text + end, '\n', token->span.begin - end) != NULL;
        bool sign = strchr(";,()[]{}", *begin) || (end && strchr(";,()[]{}", source->text[end - 1]));
        if (is_comment(token)) {
            fputs(line_before ? (random_below(2) ? "\n" : " \n\n\t") : random_below(2) ? " " : "   ", out);
        } else {
            if (after_line_comment)
                fputc('\n', out);
            if (sign || token->span.begin > end)
                write_space(out, !sign);
        }
        fwrite(begin, 1, token->span.end - token->span.begin, out);
        after_line_comment = is_comment(token) && begin[1] == '/';
        end = token->span.end;
    }
    fputs(random_below(2) ? "\n" : "\n\n \n", out);
    fclose(out);
    return text;
}

static void formats(const char *path, struct text text)
{
    struct context context;
    START(&context);
    const char *once = format_text(&context, text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(once);
    struct text formatted = text_from(once);
    const char *twice = format_text(&context, formatted);
    CU_ASSERT_STRING_EQUAL(once, twice);
    char *before = meaning_of(&context, path, text), *after = meaning_of(&context, path, formatted);
    uint32_t file = add_source(&context, path, text.bytes, text.size, NULL);
    struct token_list tokens = {0};
    scan_file(&context, file, &tokens);
    for (int round = 0; round < 20; round++) {
        struct text other = respaced(&context.files[file], &tokens);
        const char *result = format_text(&context, other);
        CU_ASSERT_PTR_NOT_NULL_FATAL(result);
        CU_ASSERT_STRING_EQUAL(once, result);
        free(other.bytes);
    }
    // The file number is the first line of a tree's text.
    CU_ASSERT_STRING_EQUAL(strchr(before, '\n'), strchr(after, '\n'));
    free(before);
    free(after);
    context_free(&context);
}

/// The same tokens with comments between them, each a number.
static struct text commented(const struct source_file *source, const struct token_list *tokens, uint32_t *comments)
{
    static const char *const kinds[] = {" // %u\n",   "\n// %u\n", " /* %u */ ", "\n/* %u */ ", "\n/* %u\n   more */\n",
                                        " /* %u */\n"};
    struct text text = {0};
    FILE *out = open_memstream(&text.bytes, &text.size);
    uint32_t end = 0;
    for (uint32_t i = 0; i < tokens->count; i++) {
        const struct token *token = &tokens->at[i];
        fwrite(source->text + end, 1, token->span.begin - end, out);
        while (random_below(12) == 0)
            fprintf(out, kinds[random_below(6)], (*comments)++);
        fwrite(source->text + token->span.begin, 1, token->span.end - token->span.begin, out);
        end = token->span.end;
    }
    fputs("\n", out);
    fclose(out);
    return text;
}

static void keeps_comments(const char *path, struct text text)
{
    struct context context;
    START(&context);
    uint32_t file = add_source(&context, path, text.bytes, text.size, NULL);
    struct token_list tokens = {0};
    scan_file(&context, file, &tokens);
    for (int round = 0; round < 30; round++) {
        uint32_t comments = 0;
        struct text other = commented(&context.files[file], &tokens, &comments);
        const char *once = format_text(&context, other);
        CU_ASSERT_PTR_NOT_NULL_FATAL(once);
        const char *twice = format_text(&context, text_from(once));
        CU_ASSERT_PTR_NOT_NULL_FATAL(twice);
        CU_ASSERT_STRING_EQUAL(once, twice);
        for (uint32_t i = 0; i < comments; i++) {
            char line[20], block[20];
            snprintf(line, sizeof line, "// %u\n", i);
            snprintf(block, sizeof block, "/* %u", i);
            CU_ASSERT(strstr(once, line) || strstr(once, block) || strstr(once, context_printf(&context, "// %u ", i)));
        }
        char *before = meaning_of(&context, path, other), *after = meaning_of(&context, path, text_from(once));
        CU_ASSERT_STRING_EQUAL(strchr(before, '\n'), strchr(after, '\n'));
        free(before);
        free(after);
        free(other.bytes);
    }
    context_free(&context);
}

static void test_format_random_comments(void)
{
    random_state = 424242;
    each_example(keeps_comments);
}

static void test_format(void)
{
    random_state = 20240607;
    each_example(formats);
}

static void check_format(const char *source, const char *expected)
{
    struct context context;
    START(&context);
    const char *once = format_text(&context, text_from(source));
    CU_ASSERT_PTR_NOT_NULL_FATAL(once);
    CU_ASSERT_STRING_EQUAL(once, expected);
    if (strcmp(once, expected) != 0)
        printf("\n--- got\n%s--- expected\n%s", once, expected);
    const char *twice = format_text(&context, text_from(once));
    CU_ASSERT_STRING_EQUAL(once, twice);
    context_free(&context);
}

static void test_format_comments(void)
{
    check_format("", "");
    check_format("// only\n", "// only\n");
    check_format("dim a=1// one\n;/* two */dim bb<=- 2 ;", "dim a   = 1;  // one /* two */\ndim bb <= -2;\n");
    check_format("const a={x:1,// first\n// own\ny:2 // last\n,};",
                 "const a = {\n    x: 1,  // first\n    // own\n    y: 2  // last\n};\n");
    check_format("schedule s for m{if a>1{}else if b{x;}// end\nelse{sync;}\n// tail\n}",
                 "schedule s for m {\n    if a > 1 {} else if b {\n        x;\n    } else {  // end\n"
                 "        sync;\n    }\n    // tail\n}\n");
    check_format("/// doc\nconst a=[1,2][i + 1];const b=f(- x,not y,)(z);",
                 "/// doc\nconst a = [1, 2][i+1];\nconst b = f(-x, not y)(z);\n");
    check_format("op f()->t{phase a{uses sm;}phase bcd{uses sm;flops=1;}}",
                 "op f() -> t {\n    phase a   { uses sm; }\n    phase bcd { uses sm; flops = 1; }\n}\n");
}

static void test_format_long_lines(void)
{
    check_format(
        "schedule s for m{aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa[i]||bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb[i]"
        "||cccccccccccccccccccccccccccccccccccccccccccccc[i];}",
        "schedule s for m {\n    aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa[i]\n"
        "        || bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb[i]\n"
        "        || cccccccccccccccccccccccccccccccccccccccccccccc[i];\n}\n");
    check_format(
        "const "
        "a={xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx:1,yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy:2,z:"
        "{a:1},};",
        "const a = {\n    xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx: 1,\n"
        "    yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy: 2,\n    z: { a: 1 }\n};\n");
}

static void test_tokens(void)
{
    static const char source[] = "dim n = 0x1F; // c\n3.5TB/s 64KB/seq 10% 0..n \"a\\n\" 1_000 2e3 ||";
    static const char expected[] =
        "1:1 word dim\n1:5 name n\n1:7 sign =\n1:9 int 0x1F\n1:13 sign ;\n1:15 comment // c\n"
        "2:1 quantity 3.5TB/s\n2:9 quantity 64KB\n2:13 sign /\n2:14 name seq\n2:18 percent 10%\n"
        "2:22 int 0\n2:23 sign ..\n2:25 name n\n2:27 string \"a\\n\"\n2:33 int 1_000\n"
        "2:39 float 2e3\n2:43 sign ||\n2:45 end\n";
    struct context context;
    char *text = NULL;
    size_t size = 0;
    START(&context);
    FILE *out = open_memstream(&text, &size);
    print_tokens(&context, add_source(&context, "t.moe", source, strlen(source), NULL), out);
    fclose(out);
    CU_ASSERT_STRING_EQUAL(text, expected);
    free(text);
    context_free(&context);
}

/// Flips, drops, doubles and moves bytes of a file.
static struct text damaged(struct text text)
{
    struct text result = {malloc(text.size * 2 + 600), text.size};
    memcpy(result.bytes, text.bytes, text.size);
    for (uint32_t n = 1 + random_below(4); n && result.size > 300; n--) {
        uint32_t at = random_below((uint32_t)result.size - 200), length = 1 + random_below(100);
        switch (random_below(4)) {
        case 0:
            result.bytes[at] = (char)(result.bytes[at] ^ (1 << random_below(8)));
            break;
        case 1:
            result.bytes[at] = (char)random_below(256);
            break;
        case 2:
            memmove(result.bytes + at, result.bytes + at + length, result.size - at - length);
            result.size -= length;
            break;
        default:
            memmove(result.bytes + at + length, result.bytes + at, result.size - at);
            memcpy(result.bytes + at, text.bytes + random_below((uint32_t)text.size - 100), length);
            result.size += length;
        }
    }
    return result;
}

static void survive(const char *path, struct text damage, enum diag_format format, bool color)
{
    struct context context;
    struct ast ast = {0};
    char error[200] = "", *printed = NULL;
    size_t size = 0;
    START(&context);
    uint32_t file = add_source(&context, path, damage.bytes, damage.size, NULL);
    node_id root = parse_file(&context, &ast, file);
    CU_ASSERT(ast_check(&context, &ast, root, error, sizeof error));
    FILE *out = open_memstream(&printed, &size);
    diag_print_all(&context, format, color, out);
    fclose(out);
    free(printed);
    if (!context.error_count) {
        const char *once = format_source(&context, file);
        CU_ASSERT_PTR_NOT_NULL_FATAL(once);
        const char *twice = format_text(&context, text_from(once));
        CU_ASSERT_PTR_NOT_NULL_FATAL(twice);
        CU_ASSERT_STRING_EQUAL(once, twice);
    }
    context_free(&context);
}

static void survives(const char *path, struct text text)
{
    for (int round = 0; round < 600; round++) {
        struct text damage = damaged(text);
        survive(path, damage, round % 2 ? DIAG_TEXT : DIAG_JSON, round % 3 == 0);
        free(damage.bytes);
    }
}

static void test_damaged_files(void)
{
    random_state = 88172645463325252u;
    each_example(survives); // with those below 19 files: 11400 times
    each_file("examples/errors/0[12]*.moe", survives);
}

static void check_load(const char *path, uint32_t files, const char *first)
{
    struct context context;
    struct program_text program = {0};
    START(&context);
    CU_ASSERT(load_program(&context, &program, path));
    CU_ASSERT_EQUAL_FATAL(program.unit_count, files);
    CU_ASSERT_STRING_EQUAL(context.files[program.units[0].file].path, first);
    const struct parsed_file *last = &program.units[files - 1];
    CU_ASSERT_STRING_EQUAL(context.files[last->file].path, path);
    EACH_NODE(&program.ast, item, node_at(&program.ast, last->root)->slot[0])
    if (node_at(&program.ast, item)->kind == NODE_IMPORT)
        CU_ASSERT(import_target(&context, &program, last->file, item) != NONE);
    context_free(&context);
}

static void test_load_program(void)
{
    check_load("examples/hello.moe", 4, "std/ops.moe");
    check_load("examples/errors/03_name.moe", 4, "std/ops.moe");
    check_load("examples/my_schedule.moe", 4, "std/ops.moe");
    struct context context;
    struct program_text program = {0};
    START(&context);
    CU_ASSERT(!load_program(&context, &program, "examples/absent.moe"));
    context_free(&context);
}

static void test_expression_text(void)
{
    static const char source[] = "const a = f(x[i + 1], k: 2*n, w: { node: 1.25x })  mod -g.b[3] or not (true) ;";
    struct context context;
    struct ast ast = {0};
    START(&context);
    node_id root = parse_file(&context, &ast, add_source(&context, "t", source, strlen(source), NULL));
    const char *text = expression_text(&context, &ast, node_at(&ast, node_at(&ast, root)->slot[0])->slot[0]);
    CU_ASSERT_STRING_EQUAL(text, "f(x[i+1], k: 2 * n, w: { node: 1.25x }) mod -g.b[3] or not (true)");
    context_free(&context);
}

static void test_nearest_name(void)
{
    static const char *const names[] = {"attn", "dispatch", "expert", "combine"};
    CU_ASSERT_STRING_EQUAL(nearest_name("dispach", names, 4), "dispatch");
    CU_ASSERT_STRING_EQUAL(nearest_name("xepert", names, 4), "expert");
    CU_ASSERT_PTR_NULL(nearest_name("router", names, 4));
    CU_ASSERT_PTR_NULL(nearest_name("", names, 4));
}

void suite_syntax(void)
{
    CU_pSuite suite = CU_add_suite("syntax", NULL, NULL);
    CU_add_test(suite, "all examples parse", test_examples_parse);
    CU_add_test(suite, "a tree reads back from its text", test_tree_round_trip);
    CU_add_test(suite, "formatting is idempotent and ignores white space", test_format);
    CU_add_test(suite, "formatting keeps comments", test_format_comments);
    CU_add_test(suite, "formatting keeps comments anywhere", test_format_random_comments);
    CU_add_test(suite, "formatting breaks long lines", test_format_long_lines);
    CU_add_test(suite, "tokens", test_tokens);
    CU_add_test(suite, "damaged files", test_damaged_files);
    CU_add_test(suite, "imports", test_load_program);
    CU_add_test(suite, "expressions as text", test_expression_text);
    CU_add_test(suite, "similar names", test_nearest_name);
    suite_diagnostics();
    suite_records();
}
