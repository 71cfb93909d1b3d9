// The pages of `moecc explain`: every code has one; its refused (or warned) example gets that code and no other, its
// accepted one none. And every code is raised somewhere: a code that nothing raises has no refused example that shows it.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/base/diag_record.h"
#include "compiler/driver.h"
#include "compiler/explain/explain.h"
#include "compiler/import/import.h"

/// The text of the block "```KIND NAME", copied; NULL when the page has none.
static char *block_of(const char *page, size_t size, const char *kind)
{
    char open[64];
    snprintf(open, sizeof open, "```%s\n", kind);
    const char *begin = memmem(page, size, open, strlen(open));
    if (!begin)
        return NULL;
    begin += strlen(open);
    const char *end = memmem(begin, size - (size_t)(begin - page), "```", 3);
    return end ? strndup(begin, (size_t)(end - begin)) : NULL;
}

static bool write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    bool fine = file && fputs(text, file) >= 0;
    return file && !fclose(file) && fine;
}

static enum exit_code check_file(struct context *context, const char *path)
{
    struct driver_options options = {.file = path, .check_only = true, .out = stdout, .check = {.layer = -1}};
    struct driver_result result = {0};
    context_init(context);
    int jumped = setjmp(context->fatal);
    if (jumped)
        return (enum exit_code)jumped;
    enum exit_code code = compile(context, &options, &result);
    free(result.image);
    return code;
}

static enum exit_code import_file(struct context *context, const char *path)
{
    struct import_options options = {.path = path};
    context_init(context);
    int jumped = setjmp(context->fatal);
    return jumped ? (enum exit_code)jumped : import_checkpoint(context, &options) ? EXIT_FINE : EXIT_INPUT;
}

/// What an example gets from the compiler.
enum verdict { ACCEPTED, WARNED, REFUSED };

static bool only_code(const struct context *context, enum diag_level level, enum diag_code code)
{
    uint32_t found = 0;
    for (const struct diag *d = context->diags; d; d = d->next) {
        found += d->level == level;
        if (d->level == level && d->code != code)
            return false;
    }
    return found > 0;
}

/// `json`: the example is a checkpoint's config.json.
static void try_example(enum diag_code code, const char *folder, const char *text, enum verdict verdict, bool json)
{
    char path[128];
    struct context context;
    snprintf(path, sizeof path, "%s/%s", folder, json ? "config.json" : "example.moe");
    CU_ASSERT_TRUE_FATAL(write_text(path, text));
    enum exit_code exit = json ? import_file(&context, path) : check_file(&context, path);
    bool fine = exit == EXIT_FINE && !context.error_count;
    bool good = verdict == REFUSED  ? exit != EXIT_FINE && only_code(&context, LEVEL_ERROR, code)
                : verdict == WARNED ? fine && only_code(&context, LEVEL_WARNING, code)
                                    : fine && !context.warning_count;
    CU_ASSERT_TRUE(good);
    if (!good) {
        static const char *const words[] = {"accepted", "warned", "refused"};
        fprintf(stderr, "explain %s, the %s example:\n", diag_code_name(code), words[verdict]);
        diag_print_all(&context, DIAG_SHORT, false, stderr);
    }
    context_free(&context);
    unlink(path);
}

static void try_page(enum diag_code code, const char *folder)
{
    char config[128], title[128];
    size_t size = 0;
    const char *page = explain_page(diag_code_name(code), &size);
    if (!page) {
        fprintf(stderr, "%s has no page in compiler/explain/pages\n", diag_code_name(code));
        CU_FAIL("a code without a page");
        return;
    }
    snprintf(config, sizeof config, "%s/config.json", folder);
    snprintf(title, sizeof title, "# %s: %s\n", diag_code_name(code), diag_code_title(code));
    bool titled = size > strlen(title) && !memcmp(page, title, strlen(title));
    if (!titled)
        fprintf(stderr, "the page of %s does not begin with `%s`\n", diag_code_name(code), title);
    CU_ASSERT_TRUE(titled);
    char *refused = block_of(page, size, "moe refused"), *accepted = block_of(page, size, "moe accepted");
    char *json = block_of(page, size, "json config.json"), *warned = block_of(page, size, "moe warned");
    bool imports = !refused && !accepted;
    if (imports) {
        refused = block_of(page, size, "json refused");
        accepted = block_of(page, size, "json accepted");
    }
    CU_ASSERT_TRUE((refused || warned) && accepted);
    if (json)
        CU_ASSERT_TRUE(write_text(config, json));
    if (refused)
        try_example(code, folder, refused, REFUSED, imports);
    if (warned)
        try_example(code, folder, warned, WARNED, false);
    if (accepted)
        try_example(code, folder, accepted, ACCEPTED, imports);
    unlink(config);
    free(refused);
    free(warned);
    free(accepted);
    free(json);
}

static void test_pages(void)
{
    char folder[] = "/tmp/moe_explain_XXXXXX";
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    for (int code = 0; code < diag_code_count; code++)
        try_page((enum diag_code)code, folder);
    rmdir(folder);
}

static void test_names(void)
{
    size_t size = 0;
    CU_ASSERT_PTR_NOT_NULL(explain_page("e0301", &size));
    CU_ASSERT_PTR_NULL(explain_page("E9999", &size));
    CU_ASSERT_PTR_NULL(explain_page("", &size));
    CU_ASSERT_PTR_NULL(explain_page("a very long text that is no code of anything", &size));
    CU_ASSERT_PTR_NULL(explain_page("../std/ops", &size));
}

void suite_explain(void)
{
    CU_pSuite suite = CU_add_suite("explain", NULL, NULL);
    CU_ADD_TEST(suite, test_pages);
    CU_ADD_TEST(suite, test_names);
}
