// What the command line and conditions choose from a program: ranks, dims, schedules, targets; names that imports bring.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

void suite_selections(void);

static void test_uncovered(void)
{
    struct checked checked;
    check_line(&checked, 56, "", &no_options);
    CU_ASSERT_FALSE(checked.fine);
    char *errors = errors_of(&checked, DIAG_SHORT);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(errors, ":48:10: error[E0312]: no schedule of pipeline `main` covers 0 to 63 tokens\n"));
    free(errors);
    release(&checked);
}

static void test_ranks(void)
{
    static const struct {
        uint32_t ranks;
        const char *place;
    } rows[] = {{1, ";"}, {3, " { balance: even };"}, {4, ";"}, {60, " { balance: even };"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct checked checked;
        char line[80], error[256] = "";
        struct check_options options = {.layer = -1, .ranks = rows[i].ranks};
        snprintf(line, sizeof line, "    place experts over rank%s", rows[i].place);
        check_line(&checked, 36, line, &options);
        expect_fine(&checked, line);
        CU_ASSERT_TRUE(module_check(&checked.module, error, sizeof error));
        const struct mod_pipeline *pipeline = pipeline_of(&checked);
        const struct mod_placement *placement = ROW(&checked.module, mod_placement, pipeline->placement);
        const struct mod_owner *owners = ROW(&checked.module, mod_owner, placement->owners.first);
        CU_ASSERT_EQUAL(ROW(&checked.module, mod_cluster, pipeline->cluster)->ranks, rows[i].ranks);
        uint32_t held[60] = {0};
        for (uint32_t o = 0; o < placement->owners.count; o++) {
            CU_ASSERT_EQUAL(owners[o].expert, o);
            held[owners[o].rank]++;
        }
        for (uint32_t r = 0; r < rows[i].ranks; r++)
            CU_ASSERT_EQUAL(held[r], 8 / rows[i].ranks + (r < 8 % rows[i].ranks));
        release(&checked);
    }
}

static void test_refused_ranks(void)
{
    struct checked checked;
    struct check_options three = {.layer = -1, .ranks = 3};
    check_line(&checked, 0, "", &three);
    expect_error(&checked, "E0502]: 8 experts do not divide over 3 ranks");
    check_line(&checked, 32, "    axis rank[2]; axis node[1];", &three);
    expect_error(&checked, "--ranks:1:1: error[E0501]: cluster `pair` has 2 axes, only one can be resized");
}

static void test_dims(void)
{
    const char *dims[] = {"tokens=2048", "ffn=2*experts"};
    struct check_options options = {.layer = -1, .dims = dims, .dim_count = 2};
    struct checked checked;
    check_line(&checked, 0, "", &options);
    expect_fine(&checked, "-D");
    const struct mod_pipeline *pipeline = pipeline_of(&checked);
    const struct mod_layer *layer = ROW(&checked.module, mod_layer, pipeline->layer);
    CU_ASSERT_EQUAL(layer->tokens_bound, 2048);
    CU_ASSERT_EQUAL(ROW(&checked.module, mod_param, layer->params.first + 2)->dims[2], 16);
    release(&checked);
    static const char *const wrong[][2] = {{"token=3", "-D:1:1: error[E0101]: unknown dim `token`"},
                                           {"tokens", "-D:1:1: error[E0003]"},
                                           {"tokens=0", "-D:1:8: error[E0206]"},
                                           {"tokens=1.5", "-D:1:8: error[E0201]"},
                                           {"tokens=;", "-D:1:1: error[E0003]: `tokens=;` is no `NAME=VALUE`"},
                                           {"tokens=16; dim zz=3", "-D:1:1: error[E0003]"},
                                           {"tokens=16;", "-D:1:1: error[E0003]"},
                                           {"tokens=16 // five", "-D:1:1: error[E0003]"},
                                           {"", "-D:1:1: error[E0003]"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct check_options one = {.layer = -1, .dims = wrong[i], .dim_count = 1};
        check_line(&checked, 0, "", &one);
        expect_error(&checked, wrong[i][1]);
    }
}

/// Conditions of any form are tried at every count: too many are refused.
static void test_odd_conditions(void)
{
    const char *dims[] = {"tokens=2000000"};
    struct check_options options = {.layer = -1, .dims = dims, .dim_count = 1};
    struct checked checked;
    check_line(&checked, 55, "    use mine when tokens mod 2 == 0;", &options);
    expect_error(&checked, ":55:19: error[E0206]: this condition would be tried at each of 2000000 counts");
    check_line(&checked, 55, "    use mine when not (tokens < 1000000 or tokens == 1500000);", &options);
    expect_fine(&checked, "comparisons of tokens");
    release(&checked);
}

static void test_schedule_text(void)
{
    static const struct {
        const char *text, *name;
        int64_t knob;
    } rows[] = {
        {"ladder(n: 8)", "ladder", 8}, {"serial", "serial", -1}, {"waves(g: 3)", "waves", 3}, {"mine", "mine", 2}};
    struct checked checked;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct check_options options = {.layer = 5, .schedule = rows[i].text};
        check_line(&checked, 0, "", &options);
        expect_fine(&checked, rows[i].text);
        const struct mod_pipeline *pipeline = pipeline_of(&checked);
        CU_ASSERT_EQUAL(pipeline->repeat, 1);
        CU_ASSERT_EQUAL(pipeline->first_layer, 5);
        CU_ASSERT_EQUAL_FATAL(pipeline->uses.count, 1);
        CU_ASSERT_EQUAL(pipeline->choices.count, 1);
        const struct mod_use *use = ROW(&checked.module, mod_use, pipeline->uses.first);
        CU_ASSERT_EQUAL(use->node, 0);
        const struct mod_schedule *schedule = ROW(&checked.module, mod_schedule, use->schedule);
        CU_ASSERT_STRING_EQUAL(ir_text(&checked.module, schedule->name), rows[i].name);
        CU_ASSERT_EQUAL(use->knobs.count, rows[i].knob >= 0);
        if (use->knobs.count)
            CU_ASSERT_EQUAL(ROW(&checked.module, mod_knob, use->knobs.first)->value, rows[i].knob);
        release(&checked);
    }
    static const char *const wrong[][2] = {{"laddr", "E0101]: unknown schedule `laddr`"},
                                           {"ladder(n: 9)", "E0206]: `n` is 9, out of range"},
                                           {"ladder(m: 2)", "E0106]: schedule `ladder` has no knob `m`"},
                                           {"ladder(", "--schedule:1:1: error[E0003]: `ladder(` is not one schedule"},
                                           {"serial when tokens > 3", "--schedule:1:1: error[E0003]"},
                                           {"serial; } pipeline q { use serial", "--schedule:1:1: error[E0003]"},
                                           {"serial; use serial", "--schedule:1:1: error[E0003]"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct check_options options = {.layer = -1, .schedule = wrong[i][0]};
        check_line(&checked, 0, "", &options);
        expect_error(&checked, wrong[i][1]);
    }
}

static void test_target_and_pipeline(void)
{
    struct checked checked;
    struct check_options cuda = {.layer = -1, .target = "cuda:sm_90a", .pipeline = "main"};
    check_line(&checked, 57, "} pipeline second { layer = moe; }", &cuda);
    expect_fine(&checked, "--target");
    CU_ASSERT_EQUAL(pipeline_of(&checked)->target, target_cuda);
    CU_ASSERT_STRING_EQUAL(ir_text(&checked.module, pipeline_of(&checked)->target_text), "sm_90a");
    release(&checked);
    struct check_options wrong_target = {.layer = -1, .target = "cuda"};
    check_line(&checked, 0, "", &wrong_target);
    expect_error(&checked, "--target:1:1: error[E0208]: unknown target `cuda`");
    struct check_options wrong_pipeline = {.layer = -1, .pipeline = "mian"};
    check_line(&checked, 0, "", &wrong_pipeline);
    expect_error(&checked, "--pipeline:1:1: error[E0101]: unknown pipeline `mian`");
    check_line(&checked, 57, "} pipeline second { layer = moe; }", &no_options);
    expect_error(&checked, "the file has several pipelines: main, second");
    struct check_options every = {.layer = -1, .every_pipeline = true};
    check_line(&checked, 57, "} pipeline second { layer = moe; }", &every);
    expect_error(&checked, ":57:12: error[E0107]: pipeline `second` lacks `cluster`");
    check_line(&checked, 57, "} pipeline second { layer = moe; cluster = pair; placement = spread; use serial; }", &every);
    expect_fine(&checked, "two pipelines");
    CU_ASSERT_EQUAL(COUNT(&checked.module, mod_pipeline), 2);
    release(&checked);
}

/// The words and the fix-its of mistakes that are easy to make: each must say what is really wrong.
static void test_words(void)
{
    static const struct bad_line rows[] = {
        {11, "    param w_router: f32[hidden, experts];", "expected [experts, hidden], found [hidden, experts]"},
        {11, "    param w_router: f32[hidden, experts];", "+     param w_router: f32[experts, hidden];"},
        {17, "    param s_up: bf16[2 * ffn, hidden]; stage shared: ys = swiglu(x, s_up, w_down); stage combine: y = combine(yd, r);",
         "one expert for all tokens is `[1, 2 * ffn, hidden]`"},
        {21, "    w_router = \"gate.{expert}\";", "one matrix, not one for each expert"},
        {53, "    target = gpu;", "+     target = cuda(sm_90a);"},
        {53, "    target = gpu;", "--target cuda:sm_80,host"},
        {14, "    stage route: r = topc(x, w_router, k: 2);", "unknown operator `topc`"},
        {13, "    param w_down: bfloat16[experts, hidden, ffn];", "it is one of "},
        {49, "    layer: moe;", "+     layer = moe;"},
        {1, "// none", "an operator of std.ops, which is not imported"},
        {33, "    link shm across rank { bandwidth: 5Gb/s, latency: 1us };", "{ bandwidth: 5Gbps, latency"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct checked checked;
        check_line(&checked, rows[i].line, rows[i].text, &no_options);
        char *said = errors_of(&checked, DIAG_TEXT);
        CU_ASSERT_FALSE(checked.fine);
        bool has = strstr(said, rows[i].code) != NULL;
        CU_ASSERT_TRUE(has);
        if (!has)
            printf("\n%d: %s\n  expected %s, got\n%s", rows[i].line, rows[i].text, rows[i].code, said);
        free(said);
        release(&checked);
    }
}

/// What works, and is worth a word.
static void test_warnings(void)
{
    static const struct bad_line rows[] = {
        {56, "    use serial; use ladder(n: 2);", ":56:17: warning[E0309]: this `use` is never reached\n"},
        {56, "    use serial;", ""},
        {18, "    stage sum: s = add(y, x); yield y;", ":18:16: warning[E0108]: nothing reads `s`, the result of stage `sum`\n"},
        {18, "    stage sum: s = add(y, x); stage more: t = add(s, x); yield y;", ":18:43: warning[E0108]: nothing reads `t`"},
        {18, "    stage sum: s = add(y, x); stage more: t = add(s, x); yield t;", ""},
        {18, "    extern stage seen: s = f(y); yield y;", ""}, // for what it does
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct checked checked;
        check_line(&checked, rows[i].line, rows[i].text, &no_options);
        char *said = errors_of(&checked, DIAG_SHORT);
        CU_ASSERT_TRUE(checked.fine);
        CU_ASSERT_PTR_NOT_NULL(strstr(said, rows[i].code));
        CU_ASSERT_EQUAL(checked.context.warning_count, *rows[i].code != 0);
        free(said);
        release(&checked);
    }
}

/// What an alias shows: the file's own names and those it imports, its constants too.
static void test_alias(void)
{
    char text[8192];
    int line, column;
    struct checked checked;
    make_program(0, "", text, sizeof text, &line, &column);
    write_file("library.moe", text);
    check_path(&checked,
               write_file("program.moe", "import \"library.moe\" as lib;\n"
                                         "const depth = lib.hf.nested.depth;\n"
                                         "placement odd on small { place lib.experts over rank { balance: even }; }\n"
                                         "cluster small { device = lib.box; axis rank[3];\n"
                                         "  link l across rank { bandwidth: 1GB/s, latency: 1us }; }\n"
                                         "pipeline p { layer = lib.moe; cluster = small; placement = odd;\n"
                                         "  use lib.mine(n: depth) when lib.tokens > 9; use lib.serial; }\n"),
               &no_options);
    expect_fine(&checked, "alias");
    if (checked.fine)
        CU_ASSERT_EQUAL(ROW(&checked.module, mod_choice, pipeline_of(&checked)->choices.first)->last_tokens, 9);
    release(&checked);
    check_path(&checked,
               write_file("program.moe", "import \"library.moe\" as lib;\nconst depth = lib.hf.nested.dept;\n"),
               &no_options);
    expect_error(&checked, ":2:29: error[E0105]: `config.json` has no key `nested.dept`");
    check_path(&checked, write_file("program.moe", "import \"library.moe\" as lib;\nconst depth = lib.fnn;\n"),
               &no_options);
    expect_error(&checked, ":2:19: error[E0101]");
}

/// A file's items under their own names, and those of an alias after `on`: the same cluster however it is reached.
static void test_selected_names(void)
{
    static const char *const good[] = {
        "import \"library.moe\" { moe, pair, spread, mine };\n"
        "pipeline p { layer = moe; cluster = pair; placement = spread; use mine(n: 2); }\n",
        "import \"library.moe\" as lib; import \"library.moe\" { moe, mine, experts };\n"
        "placement here on lib.pair { place experts over rank; }\n"
        "pipeline p { layer = moe; cluster = lib.pair; placement = here; use mine; }\n",
    };
    static const char *const bad[][2] = {
        {"import \"library.moe\" { pare };\n", ":1:24: error[E0101]"},
        {"import \"config.json\" { hidden_size };\n", ":1:24: error[E0101]: keys of a JSON file"},
        {"import \"library.moe\" as lib;\nplacement here on lib.pear { place lib.experts over rank; }\n",
         ":2:23: error[E0101]"},
    };
    char text[8192];
    int line, column;
    struct checked checked;
    make_program(0, "", text, sizeof text, &line, &column);
    write_file("library.moe", text);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        check_path(&checked, write_file("program.moe", good[i]), &no_options);
        expect_fine(&checked, good[i]);
        release(&checked);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        check_path(&checked, write_file("program.moe", bad[i][0]), &no_options);
        expect_error(&checked, bad[i][1]);
    }
}

/// What is imported and not used cannot fail.
static void test_unused_library(void)
{
    char text[8192];
    int line, column;
    struct checked checked;
    make_program(36, "    place experts over rank; spare = 3;", text, sizeof text, &line, &column);
    write_file("library.moe", text);
    check_path(&checked, write_file("program.moe", "import \"library.moe\" as lib;\ndim experts = lib.experts;\n"),
               &no_options);
    expect_fine(&checked, "an unused library");
    CU_ASSERT_EQUAL(COUNT(&checked.module, mod_placement), 0);
    release(&checked);
}

void suite_selections(void)
{
    CU_pSuite suite = CU_add_suite("selections", make_folder, remove_folder);
    CU_add_test(suite, "uncovered token counts", test_uncovered);
    CU_add_test(suite, "--ranks", test_ranks);
    CU_add_test(suite, "--ranks refused", test_refused_ranks);
    CU_add_test(suite, "-D", test_dims);
    CU_add_test(suite, "conditions of any form", test_odd_conditions);
    CU_add_test(suite, "--schedule", test_schedule_text);
    CU_add_test(suite, "--target and --pipeline", test_target_and_pipeline);
    CU_add_test(suite, "words", test_words);
    CU_add_test(suite, "warnings", test_warnings);
    CU_add_test(suite, "aliases", test_alias);
    CU_add_test(suite, "selected names", test_selected_names);
    CU_add_test(suite, "unused libraries", test_unused_library);
}
