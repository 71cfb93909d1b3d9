// The checker: example programs become modules that print and parse back, the golden diagnostics, one error with code and
// place for every mistake.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

#include "bad_programs.h"

void suite_check(void);

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
    char *text = printed_ir(&checked.module);
    CU_ASSERT_TRUE_FATAL(ir_parse(&again, &module_ir, text, error, sizeof error));
    char *text_again = printed_ir(&again);
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
    snprintf(expected, sizeof expected, "%s/program.moe:%d:%d: error[%s]", check_folder, line, column, bad->code);
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
    char *errors = printed_diagnostics(&context, DIAG_SHORT);
    snprintf(expected, sizeof expected, "%s/program.moe:%d:%d: error[%s]", check_folder, line, column, late->code);
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
    CU_add_test(suite, "expressions of schedules", test_evaluation);
    CU_add_test(suite, "chains of definitions", test_chains);
    CU_add_test(suite, "module_check finds damage", test_module_check);
}
