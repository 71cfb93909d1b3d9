// Every allocation fails once, and every call that opens, reads, writes or renames a file: compiling a layer, opening its
// plan, loading weights, running a step, writing the result and an executable. Each time the answer is an error of the
// system (exit code 3, or a status with a text), nothing crashes, nothing is left half written; the sanitizers see leaks.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compiler/driver.h"
#include "compiler/plan/build.h"
#include "runtime/moe.h"
#include "runtime/plan/plan.h"
#include "runtime/weights/safetensors.h"
#include "tests/failures/interpose.h"

static const char layer[] = "import std.ops;\nimport std.hw { laptop };\nimport std.schedules { serial, ladder };\n"
                            "import \"config.json\" as hf;\n"
                            "dim tokens <= 64;\ndim hidden = hf.hidden_size;\ndim ffn = 64;\ndim experts = 4;\n"
                            "layer moe(x: f32[tokens, hidden]) -> f32[tokens, hidden] {\n"
                            "    param w_router: f32[experts, hidden];\n"
                            "    param w_gate_up: f32[experts, 2 * ffn, hidden];\n"
                            "    param w_down: f32[experts, hidden, ffn];\n"
                            "    stage route: r = topk(x, w_router, k: 2);\n"
                            "    stage dispatch: xd = dispatch(x, r);\n"
                            "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n"
                            "    stage combine: y = combine(yd, r);\n    yield y;\n}\n"
                            "weights names for moe {\n    w_router = \"router\";\n    w_gate_up = \"up.{expert}\";\n"
                            "    w_down = \"down.{expert}\";\n}\n"
                            "placement all on laptop {\n    place experts over rank;\n}\n"
                            "pipeline hello {\n    layer = moe;\n    cluster = laptop;\n    placement = all;\n"
                            "    target = cpu;\n    weights = names(safetensors(\"model.safetensors\"));\n"
                            "    use ladder(n: 2) when tokens >= 16;\n    use serial;\n}\n";

enum { HIDDEN = 32, FFN = 64, EXPERTS = 4, TOKENS = 8, RANKS = 4, MOST_FAULTS = 20000 };

static char folder[64], source[96], config[96], model[96], output[96];

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fputs(text, file);
    fclose(file);
}

static void write_model(void)
{
    static float zeros[2 * FFN * HIDDEN];
    struct tensor tensors[1 + 2 * EXPERTS] = {{.name = "router", .dims = 2, .shape = {EXPERTS, HIDDEN}}};
    char names[2 * EXPERTS][16], error[256];
    for (int e = 0; e < EXPERTS; e++) {
        snprintf(names[e], sizeof names[e], "up.%d", e);
        snprintf(names[EXPERTS + e], sizeof names[e], "down.%d", e);
        tensors[1 + e] = (struct tensor){.name = names[e], .dims = 2, .shape = {2 * FFN, HIDDEN}};
        tensors[1 + EXPERTS + e] = (struct tensor){.name = names[EXPERTS + e], .dims = 2, .shape = {HIDDEN, FFN}};
    }
    for (int i = 0; i < 1 + 2 * EXPERTS; i++) {
        strcpy(tensors[i].dtype, "F32");
        tensors[i].data = zeros;
        tensors[i].bytes = (size_t)(tensors[i].shape[0] * tensors[i].shape[1]) * sizeof(float);
    }
    CU_ASSERT_TRUE_FATAL(tensors_write(model, tensors, 1 + 2 * EXPERTS, error, sizeof error));
}

static int set_up(void)
{
    snprintf(folder, sizeof folder, "/tmp/moe_failures_XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    snprintf(source, sizeof source, "%s/hello.moe", folder);
    snprintf(config, sizeof config, "%s/config.json", folder);
    snprintf(model, sizeof model, "%s/model.safetensors", folder);
    snprintf(output, sizeof output, "%s/out", folder);
    return 0;
}

static int tear_down(void)
{
    unlink(source);
    unlink(config);
    unlink(model);
    unlink(output);
    return rmdir(folder); // fails where something temporary was left behind
}

static void write_inputs(void)
{
    write_text(source, layer);
    write_text(config, "{ \"hidden_size\": 32 }\n");
    write_model();
}

// What is done under faults: true when it succeeded; `told`: it failed as a failing system should.

struct outcome {
    bool fine, told;
    char text[600];
};

static struct outcome compile_file(const struct driver_options *given, void **image, size_t *bytes)
{
    struct context *context = calloc(1, sizeof *context);
    struct driver_options options = *given;
    struct driver_result *result = calloc(1, sizeof *result);
    struct outcome o = {false, false, ""};
    if (context && result) {
        context_init(context);
        int jumped = setjmp(context->fatal);
        enum exit_code code = jumped ? (enum exit_code)jumped : compile(context, &options, result);
        o.fine = code == EXIT_FINE;
        o.told = code == EXIT_SYSTEM;
        snprintf(o.text, sizeof o.text, "exit %d: %s", (int)code, context->fatal_message);
        if (image && o.fine) {
            *image = result->image;
            *bytes = result->image_bytes;
        } else {
            free(result->image);
        }
        context_free(context);
    } else {
        o.told = true;
    }
    free(context);
    free(result);
    return o;
}

static struct outcome compile_it(bool check_only, void **image, size_t *bytes)
{
    const struct driver_options options = {
        .file = source, .check_only = check_only, .cpu_level = "v2", .out = stdout, .check = {.layer = -1}};
    return compile_file(&options, image, bytes);
}

static struct outcome check_it(void)
{
    return compile_it(true, NULL, NULL);
}

static struct outcome generate_it(void)
{
    void *image = NULL;
    size_t bytes;
    struct outcome o = compile_it(false, &image, &bytes);
    free(image);
    return o;
}

/// Pipelines that together lower to every instruction and exchange.
static const char *lowered;

static struct outcome lower_it(void)
{
    const struct driver_options options = {.file = "tests/fuzz/small.moe", .check_only = true, .out = stdout,
                                           .check = {.layer = -1, .pipeline = lowered}};
    return compile_file(&options, NULL, NULL);
}

static void *plan_image;
static size_t plan_bytes;

static struct outcome run_it(void)
{
    static float in[RANKS * TOKENS * HIDDEN], out[RANKS * TOKENS * HIDDEN];
    moe_plan *plan = NULL;
    moe_session *session = NULL;
    moe_step steps[RANKS];
    for (uint32_t r = 0; r < RANKS; r++)
        steps[r] = (moe_step){
            .rank = r, .tokens = TOKENS, .in = in + r * TOKENS * HIDDEN, .out = out + r * TOKENS * HIDDEN};
    moe_status status = moe_plan_from_memory(plan_image, plan_bytes, &plan);
    moe_options options = {.device = "sim", .threads = 1};
    if (status == MOE_OK)
        status = moe_session_create(plan, &options, &session);
    if (status == MOE_OK)
        status = moe_session_load(session, model);
    if (status == MOE_OK)
        status = moe_session_run(session, steps, RANKS);
    const char *text = session && status != MOE_OK ? moe_session_error(session) : moe_last_error();
    struct outcome o = {.fine = status == MOE_OK, .told = status != MOE_OK && text && *text};
    snprintf(o.text, sizeof o.text, "status %d: %s", (int)status, text ? text : "");
    moe_session_destroy(session);
    moe_plan_close(plan);
    return o;
}

static struct outcome write_it(void)
{
    struct outcome o = {false, false, ""};
    float values[16] = {0};
    struct tensor tensor = {.name = "hidden_states", .dtype = "F32", .dims = 2, .shape = {4, 4}, .data = values, .bytes = 64};
    o.fine = tensors_write(output, &tensor, 1, o.text, sizeof o.text);
    o.told = !o.fine && o.text[0];
    return o;
}

static struct outcome read_it(void)
{
    struct outcome o = {false, false, ""};
    struct tensor_set *set = tensors_open(model, o.text, sizeof o.text);
    o.fine = set != NULL;
    o.told = !set && o.text[0];
    tensors_close(set);
    return o;
}

static struct outcome build_it(void)
{
    struct context *context = calloc(1, sizeof *context);
    struct outcome o = {false, true, "no context"};
    if (!context)
        return o;
    context_init(context);
    if (!setjmp(context->fatal))
        o.fine = write_executable(context, "stub", 4, &(struct carried_plan){plan_image, plan_bytes, "v3"}, 1, output);
    o.told = !o.fine && context->fatal_message[0];
    snprintf(o.text, sizeof o.text, "%s", context->fatal_message);
    context_free(context);
    free(context);
    return o;
}

static struct outcome inspect_it(void)
{
    struct outcome o = {false, false, ""};
    struct plan plan;
    o.fine = plan_open_file(&plan, output, NULL, o.text, sizeof o.text);
    o.told = !o.fine && o.text[0];
    if (o.fine)
        plan_close(&plan);
    return o;
}

/// Lets each call of a kind, from the `first` on, fail once. A failure may also be tolerated; then the work is done all the
/// same.
static void fail_from(const char *name, enum fault_call call, struct outcome (*work)(void), uint64_t first, uint64_t least)
{
    uint64_t n = first - 1;
    unsigned wrong = 0;
    for (bool failed = true; failed && n < MOST_FAULTS;) {
        fault_arm(call, ++n);
        struct outcome o = work();
        fault_disarm(&failed);
        if ((failed && (o.fine || o.told)) || (!failed && o.fine))
            continue;
        if (wrong++ < 5)
            fprintf(stderr, "%s, call %llu: %s\n", name, (unsigned long long)n, o.text);
    }
    fprintf(stderr, "[%s: %llu] ", name, (unsigned long long)(n - first));
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_TRUE(n - first + 1 > least && n < MOST_FAULTS);
}

static void fail_each(const char *name, enum fault_call call, struct outcome (*work)(void), uint64_t least)
{
    fail_from(name, call, work, 1, least);
}

static uint64_t calls_of(enum fault_call call, struct outcome (*work)(void))
{
    fault_arm(call, 0);
    CU_ASSERT_TRUE(work().fine);
    return fault_disarm(NULL);
}

static void test_allocations(void)
{
    write_inputs();
    fail_each("check", FAULT_ALLOC, check_it, 50);
    CU_ASSERT_TRUE_FATAL(compile_it(false, &plan_image, &plan_bytes).fine);
    fail_from("generate", FAULT_ALLOC, generate_it, calls_of(FAULT_ALLOC, check_it), 5); // up to there they are the same
    static const char *const pipelines[] = {"relayed", "gated"};
    for (size_t i = 0; i < sizeof pipelines / sizeof *pipelines; i++) {
        lowered = pipelines[i];
        fail_each(lowered, FAULT_ALLOC, lower_it, 50);
    }
    fail_each("run", FAULT_ALLOC, run_it, 50);
    fail_each("write", FAULT_ALLOC, write_it, 1);
    fail_each("read", FAULT_ALLOC, read_it, 3);
    fail_each("build", FAULT_ALLOC, build_it, 1);
}

static void test_files(void)
{
    write_inputs();
    if (!plan_image)
        CU_ASSERT_TRUE_FATAL(compile_it(false, &plan_image, &plan_bytes).fine);
    fail_each("check, open", FAULT_OPEN, check_it, 1);
    fail_each("check, read", FAULT_READ, check_it, 1);
    fail_each("weights, open", FAULT_OPEN, run_it, 0);
    fail_each("weights, read", FAULT_READ, run_it, 1);
    fail_each("output, open", FAULT_OPEN, write_it, 0);
    fail_each("output, write", FAULT_WRITE, write_it, 2);
    fail_each("output, rename", FAULT_RENAME, write_it, 0);
    fail_each("executable, open", FAULT_OPEN, build_it, 0);
    fail_each("executable, write", FAULT_WRITE, build_it, 3);
    fail_each("executable, rename", FAULT_RENAME, build_it, 0);
    fail_each("plan, open", FAULT_OPEN, inspect_it, 0);
    fail_each("plan, read", FAULT_READ, inspect_it, 1);
    free(plan_image);
    plan_image = NULL;
}

void suite_failures(void)
{
    CU_pSuite suite = CU_add_suite("failures", set_up, tear_down);
    CU_ADD_TEST(suite, test_allocations);
    CU_ADD_TEST(suite, test_files);
}
