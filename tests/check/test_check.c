// The checker: example programs become modules that print and parse back, the golden diagnostics, one error with code and
// place for every mistake, and what the command line changes.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bad_programs.h"
#include "compiler/check/module.h"
#include "compiler/driver.h"

void suite_check(void);

struct checked {
    struct context context;
    struct program_text program;
    struct ir module;
    uint32_t pipeline;
    bool loaded, fine;
};

static const struct check_options no_options = {.layer = -1};

static void check_path(struct checked *checked, const char *path, const struct check_options *options)
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

static void release(struct checked *checked)
{
    ir_free(&checked->module);
    context_free(&checked->context);
}

static char *printed_errors(const struct context *context, enum diag_format format)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    diag_print_all(context, format, false, out);
    fclose(out);
    return text;
}

static char *errors_of(const struct checked *checked, enum diag_format format)
{
    return printed_errors(&checked->context, format);
}

static void expect_fine(const struct checked *checked, const char *what)
{
    CU_ASSERT_TRUE(checked->fine);
    if (checked->fine)
        return;
    char *errors = errors_of(checked, DIAG_SHORT);
    printf("\n%s:\n%s", what, errors);
    free(errors);
}

static char *printed(const struct ir *ir)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    ir_print(ir, out);
    fclose(out);
    return text;
}

static const struct mod_pipeline *pipeline_of(const struct checked *checked)
{
    CU_ASSERT_NOT_EQUAL_FATAL(checked->pipeline, NONE);
    return ROW(&checked->module, mod_pipeline, checked->pipeline);
}

// ---- temporary files ----------------------------------------------------------------------------------------------------

static char folder[64];

static const char *write_file(const char *name, const char *text)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "wb");
    if (!out) {
        perror(path);
        exit(3);
    }
    fputs(text, out);
    fclose(out);
    return path;
}

static int make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/moe_check_XXXXXX");
    if (!mkdtemp(folder))
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

static int remove_folder(void)
{
    static const char *const names[] = {"config.json", "broken.json", "list.json",
                                        "empty.json",  "program.moe", "library.moe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

/// The good program with one line replaced, into `text`; the place of the `@` in it (0, 0 without).
static void make_program(int line, const char *replacement, char *text, size_t size, int *at_line, int *at_column)
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
static void check_line(struct checked *checked, int line, const char *replacement, const struct check_options *options)
{
    char text[8192];
    int at_line, at_column;
    make_program(line, replacement, text, sizeof text, &at_line, &at_column);
    check_path(checked, write_file("program.moe", text), options);
}

// ---- tests --------------------------------------------------------------------------------------------------------------

static void expect_module(const char *path)
{
    struct checked checked;
    struct ir again;
    char error[256] = "";
    check_path(&checked, path, &no_options);
    expect_fine(&checked, path);
    CU_ASSERT_TRUE(ir_check(&checked.module, error, sizeof error));
    CU_ASSERT_STRING_EQUAL(error, "");
    CU_ASSERT_TRUE(module_check(&checked.module, error, sizeof error));
    CU_ASSERT_STRING_EQUAL(error, "");
    char *text = printed(&checked.module);
    CU_ASSERT_TRUE_FATAL(ir_parse(&again, &module_ir, text, error, sizeof error));
    char *text_again = printed(&again);
    CU_ASSERT_STRING_EQUAL(text, text_again);
    free(text);
    free(text_again);
    ir_free(&again);
    release(&checked);
}

static void test_examples(void)
{
    expect_module("examples/hello.moe");
    expect_module("examples/olmoe.moe");
    expect_module("stdlib/std/ops.moe");
    expect_module("stdlib/std/hw.moe");
    expect_module("stdlib/std/schedules.moe");
}

static void test_hello_module(void)
{
    struct checked checked;
    check_path(&checked, "examples/hello.moe", &no_options);
    expect_fine(&checked, "hello");
    const struct ir *module = &checked.module;
    const struct mod_pipeline *pipeline = pipeline_of(&checked);
    CU_ASSERT_STRING_EQUAL(ir_text(module, pipeline->name), "hello");
    CU_ASSERT_EQUAL(pipeline->repeat, 1);
    CU_ASSERT_EQUAL(pipeline->weights, NONE);
    CU_ASSERT_EQUAL_FATAL(pipeline->choices.count, 2);
    const struct mod_choice *choices = ROW(module, mod_choice, pipeline->choices.first);
    CU_ASSERT_EQUAL(choices[0].last_tokens, 63);
    CU_ASSERT_EQUAL(choices[0].use, pipeline->uses.first + 1);
    CU_ASSERT_EQUAL(choices[1].last_tokens, 2048);
    CU_ASSERT_EQUAL(choices[1].use, pipeline->uses.first);
    const struct mod_use *use = ROW(module, mod_use, pipeline->uses.first);
    CU_ASSERT_EQUAL_FATAL(use->knobs.count, 1);
    CU_ASSERT_EQUAL(ROW(module, mod_knob, use->knobs.first)->value, 2);
    const struct mod_layer *layer = ROW(module, mod_layer, pipeline->layer);
    const struct mod_stage *route = ROW(module, mod_stage, layer->stages.first);
    CU_ASSERT_EQUAL(stage_arg(module, route, "k")->number, 2);
    CU_ASSERT_EQUAL(stage_arg(module, route, "k")->given, 1);
    CU_ASSERT_STRING_EQUAL(ir_text(module, stage_arg(module, route, "score")->choice), "softmax");
    CU_ASSERT_FALSE(stage_arg(module, route, "score")->given);
    CU_ASSERT_PTR_NULL(stage_arg(module, route, "nothing"));
    CU_ASSERT_EQUAL(ROW(module, mod_value, layer->stages.first + 2)->kind, value_kind_routed);
    release(&checked);
}

static void test_olmoe_module(void)
{
    struct checked checked;
    check_path(&checked, "examples/olmoe.moe", &no_options);
    expect_fine(&checked, "olmoe");
    const struct ir *module = &checked.module;
    const struct mod_pipeline *pipeline = pipeline_of(&checked);
    CU_ASSERT_EQUAL(pipeline->repeat, 16);
    CU_ASSERT_STRING_EQUAL(ir_text(module, pipeline->weights_path), "examples/OLMoE-1B-7B-0924");
    const struct mod_weights *weights = ROW(module, mod_weights, pipeline->weights);
    CU_ASSERT_EQUAL_FATAL(weights->entries.count, 3);
    CU_ASSERT_EQUAL(ROW(module, mod_weight, weights->entries.first + 1)->patterns.count, 2);
    const struct mod_layer *layer = ROW(module, mod_layer, pipeline->layer);
    const struct mod_stage *route = ROW(module, mod_stage, layer->stages.first);
    CU_ASSERT_EQUAL(stage_arg(module, route, "normalize")->number, 0);
    release(&checked);
}

static char *without(char *text, const char *part)
{
    for (char *at = text; (at = strstr(at, part));)
        memmove(at, at + strlen(part), strlen(at + strlen(part)) + 1);
    return text;
}

/// The files show themselves as written down from their own folder.
static void expect_golden(const char *name)
{
    char path[128], expected[4096] = "";
    struct checked checked;
    snprintf(path, sizeof path, "tests/diagnostics/%s.expected", name);
    FILE *in = fopen(path, "rb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(in);
    expected[fread(expected, 1, sizeof expected - 1, in)] = 0;
    fclose(in);
    snprintf(path, sizeof path, "examples/errors/%s.moe", name);
    check_path(&checked, path, &no_options);
    CU_ASSERT_FALSE(checked.fine);
    char *errors = without(without(errors_of(&checked, DIAG_TEXT), "examples/errors/"), "examples/");
    CU_ASSERT_STRING_EQUAL(errors, expected);
    if (strcmp(errors, expected) != 0)
        printf("\n--- got\n%s--- expected\n%s", errors, expected);
    free(errors);
    release(&checked);
}

static void test_goldens(void)
{
    expect_golden("03_name");
    expect_golden("04_shape");
    expect_golden("05_unit_kind");
    expect_golden("10_placement");
}

/// Programs whose mistake is one of order are fine here.
static void test_later_mistakes(void)
{
    static const char *const paths[] = {"examples/errors/06_overlap_dep.moe", "examples/errors/07_coverage.moe",
                                        "examples/errors/08_deadlock.moe"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct checked checked;
        check_path(&checked, paths[i], &no_options);
        expect_fine(&checked, paths[i]);
        CU_ASSERT_EQUAL(checked.pipeline, NONE);
        CU_ASSERT_EQUAL(COUNT(&checked.module, mod_schedule), 1);
        release(&checked);
    }
}

static void expect_bad(const struct bad_line *bad)
{
    char text[8192], expected[160];
    int line, column;
    struct checked checked;
    make_program(bad->line, bad->text, text, sizeof text, &line, &column);
    check_path(&checked, write_file("program.moe", text), &no_options);
    char *errors = errors_of(&checked, DIAG_SHORT);
    snprintf(expected, sizeof expected, "%s/program.moe:%d:%d: error[%s]", folder, line, column, bad->code);
    bool placed = strstr(errors, line ? expected : bad->code) != NULL; // a warning may stand before the error
    bool one = checked.context.error_count == 1;
    CU_ASSERT_FALSE(checked.fine);
    CU_ASSERT_TRUE(placed && one);
    if (!placed || !one)
        printf("\n%d: %s\n  expected %s, got\n%s", bad->line, bad->text, expected, errors);
    free(errors);
    release(&checked);
}

static void test_bad_lines(void)
{
    struct checked checked;
    check_line(&checked, 0, "", &no_options);
    expect_fine(&checked, "the program that the others are made from");
    release(&checked);
    for (int i = 0; i < BAD_LINES; i++)
        expect_bad(&bad_lines[i]);
}

/// A whole check, proof and lowering included.
static void expect_late(const struct late_line *late)
{
    char text[8192], expected[160];
    int line, column;
    struct context context;
    struct driver_result result;
    make_program(late->line, late->text, text, sizeof text, &line, &column);
    const char *path = write_file("program.moe", text);
    struct driver_options options = {
        .file = path, .check_only = true, .out = stdout, .check = {.layer = -1, .every_pipeline = true, .schedule = late->schedule}};
    context_init(&context);
    if (setjmp(context.fatal)) {
        CU_FAIL_FATAL("the compiler ended in a fatal error");
    }
    enum exit_code code = compile(&context, &options, &result);
    char *errors = printed_errors(&context, DIAG_SHORT);
    snprintf(expected, sizeof expected, "%s/program.moe:%d:%d: error[%s]", folder, line, column, late->code);
    bool good = !*late->code                ? code == EXIT_FINE
                : strchr(late->text, '@')   ? !strncmp(errors, expected, strlen(expected))
                                            : strstr(errors, late->code) != NULL;
    good = good && context.error_count == (*late->code != 0);
    CU_ASSERT_TRUE(good);
    if (!good)
        printf("\n%d: %s\n  expected %s, got\n%s", late->line, late->text, expected, errors);
    free(errors);
    context_free(&context);
}

static void test_late_lines(void)
{
    for (int i = 0; i < LATE_LINES; i++)
        expect_late(&late_lines[i]);
}

static void test_good_lines(void)
{
    static const struct bad_line good[] = {
        {6, "dim hidden = hf.nested.depth * 8 + 8;", ""},
        {6, "dim hidden = hf.sizes[hf.nested.depth - 3];", ""},
        {16, "    stage expert: yd = swiglu(xd, w_gate_up, w_down, activation: hf.sizes[2].deep);", ""},
        {7, "dim ffn = (7 / 2) * 16 + 16 - -5 mod 3 + 1;", ""},
        {9, "const share = 10%; const a = 1GB / 2s; const b = 400Gbps * 1ms; const c = not true or 1 < 2;", ""},
        {9, "format f = fp8_e4m3 { block: [1, 128], scale: ue8m0 };", ""},
        {11, "    let e = experts; param w_router: bf16[e, hidden];", ""},
        {14, "    stage route: r = topk(w: w_router, x: x, k: 2, groups: 4, group_k: 2, scale: hf.scale);", ""},
        {14, "    stage route: r = topk(x, w_router, k: 2, normalize: hf.flag, expert_capacity: inf);", ""},
        {15, "    stage dispatch: xd = dispatch(x, r, capacity: 0.1x, pool: 0x, overflow: error, wire: f32);", ""},
        {16, "    stage expert: yd = swiglu(xd, w_gate_up, w_down, activation: hf.act, limit: 7.5);", ""},
        {17, "    stage combine: y = combine(yd, r); extern stage e: z = f(y, x, cost: 3us);", ""},
        {18, "    stage sum: s = add(y, x); yield s;", ""},
        {18, "    yield x;", ""},
        {23, "    w_down = transpose(interleaved(\"c.{layer}.{expert}\"));", ""},
        {27, "    hbm = 400Gbps; memory = 2GiB; derate = 70%; peak = { f32: 1TFLOPS };", ""},
        {33, "    link shm across rank { bandwidth: 40Gbps, latency: 500ns, rail: true };", ""},
        {36, "    place experts over rank { balance: even };", ""},
        {36, "    place experts over rank; spare = 8; groups = rank; replicate shared; replicate absent;", ""},
        {36, "    place experts over rank; replicate experts;", ""},
        {36, "    place experts over rank; spare = 4; replicate experts { only: [0, 7], copies: 2 };", ""},
        {36, "    place experts over rank; replicate experts { only: [0], copies: 2 }; replicate experts { only: [1] };", ""},
        {33, "    link shm across rank { bandwidth: 5GB/s, latency: 1us }; device box at rank[0], rank[1];", ""},
        {43, "    bind dispatch.pack, dispatch.send to net { sm: n, priority: high };", ""},
        {45, "        let j = i + 1; if j < n { route[i]; } else if n == 2 { route[0]; } else { sync; }", ""},
        {50, "    layers = { first: 3, count: hf.nested.depth };", ""},
        {53, "    target = cuda(sm_90a, sm_80);", ""},
        {54, "    weights = random;", ""},
        {55, "    use mine when tokens mod 2 == 0 and tokens > experts;", ""},
        {57, "} monitor m on moe.route { interval = 1; }", ""},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct checked checked;
        char error[256] = "";
        check_line(&checked, good[i].line, good[i].text, &no_options);
        expect_fine(&checked, good[i].text);
        CU_ASSERT_TRUE(!checked.fine || module_check(&checked.module, error, sizeof error));
        CU_ASSERT_STRING_EQUAL(error, "");
        release(&checked);
    }
}

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

static void expect_error(struct checked *checked, const char *part)
{
    char *errors = errors_of(checked, DIAG_SHORT);
    CU_ASSERT_FALSE(checked->fine);
    CU_ASSERT_PTR_NOT_NULL(strstr(errors, part));
    if (!strstr(errors, part))
        printf("\nexpected %s, got\n%s", part, errors);
    free(errors);
    release(checked);
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

static node_id find_value(const struct checked *checked, const char *name)
{
    const struct ast *ast = &checked->program.ast;
    node_id root = checked->program.units[checked->program.unit_count - 1].root;
    EACH_NODE(ast, id, node_at(ast, root)->slot[0])
        if (!strcmp(text_of(&checked->context, node_at(ast, id)->text), name))
            return node_at(ast, id)->slot[0];
    return 0;
}

static void test_evaluation(void)
{
    struct checked checked;
    int64_t value = 0;
    bool holds = true;
    check_path(&checked,
               write_file("program.moe", "const n = 1; const m = 4; const a = n * 2 + m;\n"
                                         "const b = n mod 3 == 1; const c = -7 / 2;\n"),
               &no_options);
    expect_fine(&checked, "constants");
    uint32_t file = checked.program.units[checked.program.unit_count - 1].file;
    struct name_value names[] = {{intern(&checked.context, "n"), 5}};
    CU_ASSERT_TRUE(
        evaluate_integer(&checked.context, &checked.program, file, find_value(&checked, "a"), names, 1, NULL, &value));
    CU_ASSERT_EQUAL(value, 14);
    CU_ASSERT_TRUE(
        evaluate_condition(&checked.context, &checked.program, file, find_value(&checked, "b"), names, 1, &holds));
    CU_ASSERT_FALSE(holds);
    CU_ASSERT_TRUE(
        evaluate_integer(&checked.context, &checked.program, file, find_value(&checked, "c"), NULL, 0, NULL, &value));
    CU_ASSERT_EQUAL(value, -4);
    CU_ASSERT_FALSE(
        evaluate_integer(&checked.context, &checked.program, file, find_value(&checked, "b"), names, 1, NULL, &value));
    CU_ASSERT_EQUAL(checked.context.error_count, 1);
    release(&checked);
}

/// Definitions that rest on one another: each is evaluated once, and however deep, the stack is not.
static void test_chains(void)
{
    static const struct {
        const char *format; // of definition i; %d: i, i - 1 or, where `up`, i + 1, twice
        int count;
        bool up;
        const char *error;
    } rows[] = {
        {"const a%d = a%d mod 7 + a%d;\n", 60, false, NULL}, // 2^60 paths
        {"const a%d = a%d mod 7 + a%d;\n", 5000, false, NULL},
        {"const a%d = a%d + a%d mod 2;\n", 150, true, NULL},
        {"const a%d = a%d + a%d mod 2;\n", 5000, true, "E0007]: constants rest on one another more than 200 deep"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct checked checked;
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        fprintf(out, "const a0 = 1;\nconst a%d = 1;\n", rows[r].count);
        for (int i = 1; i < rows[r].count; i++) {
            int other = rows[r].up ? i + 1 : i - 1;
            fprintf(out, rows[r].format, i, other, other);
        }
        fclose(out);
        check_path(&checked, write_file("program.moe", text), &no_options);
        free(text);
        if (rows[r].error)
            expect_error(&checked, rows[r].error);
        else {
            expect_fine(&checked, rows[r].format);
            release(&checked);
        }
    }
}

static void test_module_check(void)
{
    struct checked checked;
    char error[256] = "";
    check_line(&checked, 0, "", &no_options);
    struct mod_pipeline pipeline = *pipeline_of(&checked);
    struct mod_placement *placement = ROW(&checked.module, mod_placement, pipeline.placement);
    ROW(&checked.module, mod_owner, placement->owners.first)->expert = 1;
    CU_ASSERT_FALSE(module_check(&checked.module, error, sizeof error));
    CU_ASSERT_PTR_NOT_NULL(strstr(error, "mod_placement 0"));
    ROW(&checked.module, mod_owner, placement->owners.first)->expert = 0;
    ROW(&checked.module, mod_choice, pipeline.choices.first)->last_tokens = 5;
    CU_ASSERT_FALSE(module_check(&checked.module, error, sizeof error));
    CU_ASSERT_PTR_NOT_NULL(strstr(error, "mod_pipeline 0"));
    release(&checked);
}

void suite_check(void)
{
    CU_pSuite suite = CU_add_suite("check", make_folder, remove_folder);
    CU_add_test(suite, "examples become modules", test_examples);
    CU_add_test(suite, "the module of hello", test_hello_module);
    CU_add_test(suite, "the module of olmoe", test_olmoe_module);
    CU_add_test(suite, "golden diagnostics", test_goldens);
    CU_add_test(suite, "mistakes of order are left to later", test_later_mistakes);
    CU_add_test(suite, "one error for every mistake", test_bad_lines);
    CU_add_test(suite, "one error for what lowering refuses", test_late_lines);
    CU_add_test(suite, "what is allowed", test_good_lines);
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
    CU_add_test(suite, "expressions of schedules", test_evaluation);
    CU_add_test(suite, "chains of definitions", test_chains);
    CU_add_test(suite, "module_check finds damage", test_module_check);
}
