// What a newcomer writes: a file that is right, and for each of many mistakes (habits of other languages, words left out,
// guesses) the whole text that answers it. tests/diagnostics/habits.txt has a block for each, divided by lines of `=`: what is
// replaced in habits.moe, `->`, by what, and behind a line of `-` the answer. MOE_WRITE_HABITS=1 writes the answers anew.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

void suite_habits(void);

static char *read_all(const char *path)
{
    char *text = NULL;
    size_t size = 0;
    FILE *in = fopen(path, "rb"), *out = open_memstream(&text, &size);
    CU_ASSERT_FATAL(in && out);
    for (int c; (c = fgetc(in)) != EOF;)
        fputc(c, out);
    fclose(in);
    fclose(out);
    return text;
}

/// Cuts `*text` at a line that is `divider`; the part before it, `*text` moves behind.
static char *next_part(char **text, const char *divider)
{
    char *part = *text, *end = part ? strstr(part, divider) : NULL;
    if (end)
        *end = 0;
    *text = end ? end + strlen(divider) : NULL;
    return part;
}

/// The diagnostics of the program with `wrong` in the place of `right`.
static char *answer_to(const char *program, const char *right, const char *wrong)
{
    const char *at = strstr(program, right);
    char *text = NULL, *answer = NULL;
    CU_ASSERT_PTR_NOT_NULL_FATAL(at);
    CU_ASSERT_FATAL(asprintf(&text, "%.*s%s%s", (int)(at - program), program, wrong, at + strlen(right)) > 0);
    struct checked checked;
    check_path(&checked, write_file("program.moe", text), &no_options);
    answer = errors_of(&checked, DIAG_TEXT);
    size_t folder = strlen(check_folder) + 1; // which has another name each time
    for (char *name = answer; (name = strstr(name, check_folder));)
        memmove(name, name + folder, strlen(name + folder) + 1);
    for (char *line = answer; (line = strstr(line, "(std/")) && (line = strchr(line, ':'));) // grows with the library
        memmove(line, line + strcspn(line, ")"), strlen(line + strcspn(line, ")")) + 1);
    release(&checked);
    free(text);
    return answer;
}

static void test_habits(void)
{
    const char *golden = "tests/diagnostics/habits.txt";
    char *program = read_all("tests/diagnostics/habits.moe"), *blocks = read_all(golden), *rest = blocks;
    FILE *out = getenv("MOE_WRITE_HABITS") ? fopen(golden, "wb") : NULL;
    int count = 0;
    for (char *block; (block = next_part(&rest, "\n====\n")); count++) {
        char *right = next_part(&block, "\n->\n"), *wrong = next_part(&block, "\n----\n"), *expected = block;
        char *answer = answer_to(program, right, wrong);
        CU_ASSERT(*answer != 0);
        if (out)
            fprintf(out, "%s%s\n->\n%s\n----\n%s", count ? "\n====\n" : "", right, wrong, answer);
        else if (!expected || strcmp(expected, answer) != 0) {
            CU_FAIL("another answer");
            fprintf(stderr, "\n%s\n--- got\n%s--- expected\n%s", wrong, answer, expected ? expected : "");
        }
        free(answer);
    }
    CU_ASSERT(count >= 25);
    if (out)
        fclose(out);
    free(program);
    free(blocks);
}

void suite_habits(void)
{
    CU_pSuite suite = CU_add_suite("habits", make_folder, remove_folder);
    CU_add_test(suite, "what a newcomer writes, and what answers it", test_habits);
}
