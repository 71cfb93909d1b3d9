// Test harness: compile in memory, run a session, collect everything as f32.
#include "tests/end_to_end/harness.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/base/diag.h"
#include "compiler/driver.h"
#include "runtime/open.h"
#include "runtime/weights/safetensors.h"

static const char *write_source(const char *text, char *path, size_t size)
{
    snprintf(path, size, "/tmp/moe-test-%d.moe", (int)getpid());
    FILE *file = fopen(path, "w");
    if (!file)
        return NULL;
    fputs(text, file);
    fclose(file);
    return path;
}

static void *compile_subject(const struct subject *subject, size_t *bytes, moe_kernel_fn ***kernels)
{
    char path[64];
    struct driver_options options = {.out = stdout, .cpu_level = subject->cpu_level};
    options.cuda_host = (struct host_options){.checked = subject->cuda_seed != 0, .seed = subject->cuda_seed,
                                              .most_blocks = (int)(subject->cuda_seed % 6)};
    options.file = subject->path ? subject->path : write_source(subject->text, path, sizeof path);
    options.check = (struct check_options){.schedule = subject->schedule,
                                           .target = subject->target,
                                           .ranks = subject->ranks,
                                           .layer = subject->layer,
                                           .dims = subject->dims,
                                           .dim_count = subject->dim_count};
    struct context *context = malloc(sizeof *context);
    context_init(context);
    struct driver_result result = {0};
    enum exit_code code;
    int jumped = setjmp(context->fatal);
    if (jumped) {
        fprintf(stderr, "fatal: %s\n", context->fatal_message);
        code = (enum exit_code)jumped;
    } else {
        code = compile(context, &options, &result);
    }
    if (code != EXIT_FINE)
        diag_print_all(context, DIAG_TEXT, false, stderr);
    context_free(context);
    free(context);
    CU_ASSERT_PTR_NOT_NULL(result.image);
    *bytes = result.image_bytes;
    *kernels = result.kernels;
    return result.image;
}

void *subject_image(const struct subject *subject, size_t *bytes)
{
    moe_kernel_fn **kernels;
    void *image = compile_subject(subject, bytes, &kernels);
    free(kernels);
    return image;
}

moe_plan *subject_compile(const struct subject *subject)
{
    size_t bytes;
    moe_kernel_fn **kernels;
    void *image = compile_subject(subject, &bytes, &kernels);
    moe_plan *plan = NULL;
    if (image && moe_plan_from_memory(image, bytes, &plan) != MOE_OK)
        fprintf(stderr, "plan: %s\n", moe_last_error());
    if (plan && kernels)
        plan_use_kernels(plan, kernels);
    free(kernels);
    free(image);
    CU_ASSERT_PTR_NOT_NULL(plan);
    return plan;
}

int subject_check(const char *text, uint32_t *unbuilt)
{
    char path[64];
    struct driver_options options = {.check = {.layer = -1}, .check_only = true, .out = stdout};
    struct driver_result result;
    struct context context;
    volatile enum exit_code code = EXIT_BUG;
    options.file = write_source(text, path, sizeof path);
    context_init(&context);
    if (!setjmp(context.fatal))
        code = compile(&context, &options, &result);
    else
        fprintf(stderr, "fatal: %s\n", context.fatal_message);
    if (unbuilt)
        *unbuilt = diag_errors_of(&context, E0901);
    context_free(&context);
    return (int)code;
}

struct bridge {
    moe_step *steps;
    char *in, *out;
    int32_t *ids;
    float *weights;
};

static void prepare_steps(struct bridge *b, const moe_plan_info *info, const struct run *run, int64_t total)
{
    size_t xb = element_bytes(!strcmp(info->x_dtype, "f32") ? "F32" : !strcmp(info->x_dtype, "f16") ? "F16" : "BF16");
    size_t yb = element_bytes(!strcmp(info->y_dtype, "f32") ? "F32" : !strcmp(info->y_dtype, "f16") ? "F16" : "BF16");
    size_t width = (size_t)info->width, choices = info->choices, rows = (size_t)total + 1;
    b->steps = calloc(info->ranks, sizeof *b->steps);
    b->in = calloc(rows, width * xb);
    b->out = calloc(rows, width * yb);
    b->ids = calloc(rows * choices, sizeof *b->ids);
    b->weights = calloc(rows * choices, sizeof *b->weights);
    elements_from_f32(xb == 4 ? "F32" : !strcmp(info->x_dtype, "f16") ? "F16" : "BF16", run->in, b->in,
                      (size_t)total * width);
    size_t first = 0;
    for (uint32_t r = 0; r < info->ranks; r++) {
        b->steps[r] = (moe_step){.rank = r,
                                 .tokens = run->tokens[r],
                                 .in = b->in + first * width * xb,
                                 .out = b->out + first * width * yb,
                                 .topk_ids = b->ids + first * choices,
                                 .topk_weights = b->weights + first * choices,
                                 .given_ids = run->given_ids ? run->given_ids + first * choices : NULL,
                                 .given_weights = run->given_ids ? run->given_weights + first * choices : NULL};
        first += (size_t)run->tokens[r];
    }
}

static moe_status run_session(const moe_plan *plan, const struct run *run, const struct bridge *b, uint32_t ranks,
                              struct outcome *outcome)
{
    moe_session *session = NULL;
    moe_status status = moe_session_create(plan, &run->options, &session);
    if (status != MOE_OK) {
        snprintf(outcome->error, sizeof outcome->error, "%s", moe_last_error());
        return status;
    }
    if (run->external)
        moe_session_extern(session, "attn", run->external, NULL);
    status = moe_session_load(session, run->weights ? run->weights : "random");
    for (int i = 0; status == MOE_OK && i < (run->steps ? run->steps : 1); i++)
        status = moe_session_run(session, b->steps, ranks);
    if (status == MOE_OK && run->trace)
        status = moe_session_trace(session, run->trace);
    if (status != MOE_OK)
        snprintf(outcome->error, sizeof outcome->error, "%s", moe_session_error(session));
    else if (moe_session_stats(session, &outcome->stats) == MOE_OK && outcome->stats.expert_load) {
        outcome->load = calloc(outcome->stats.experts, sizeof *outcome->load);
        memcpy(outcome->load, outcome->stats.expert_load, outcome->stats.experts * sizeof *outcome->load);
    }
    moe_session_destroy(session);
    return status;
}

/// The comma before more options.
static const char *comma(const char *options)
{
    return options && *options ? ", " : "";
}

static const char *or_else(const char *text, const char *otherwise)
{
    return text ? text : otherwise;
}

const char *routed_layer_text(const struct routed_layer *layer)
{
    static char text[16384];
    const struct shape *s = layer->shape;
    const char *t = s->dtype, *cluster = layer->cluster ? "room" : "laptop";
    int length = snprintf(
        text, sizeof text,
        "import std.ops;\nimport std.hw { %s };\nimport std.schedules { serial, ladder, waves };\n"
        "dim tokens <= %d;\ndim hidden = %d;\ndim ffn = %d;\ndim experts = %d;\n%s"
        "layer moe(x: %s[tokens, hidden]) -> %s[tokens, hidden] {\n"
        "    param w_router: f32[experts, hidden];\n"
        "    param w_gate_up: %s[experts, 2 * ffn, hidden];\n"
        "    param w_down: %s[experts, hidden, ffn];\n"
        "    stage route: r = topk(x, w_router, k: %d, normalize: %s%s%s);\n"
        "    stage dispatch: xd = dispatch(x, r%s%s);\n"
        "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n"
        "    stage combine: y = combine(yd, r%s%s);\n    yield y;\n}\n"
        "%s%s%s\nplacement p on %s { %s }\n"
        "pipeline main { layer = moe; repeat = %d; cluster = %s; placement = p; target = cpu; %s }\n",
        layer->cluster ? "host" : "laptop", s->bound, s->hidden, s->ffn, s->experts, or_else(layer->items, ""), t, t, t,
        t, s->choices, s->normalize ? "true" : "false", comma(layer->route), or_else(layer->route, ""),
        comma(layer->dispatch), or_else(layer->dispatch, ""), comma(layer->combine), or_else(layer->combine, ""),
        layer->cluster ? "cluster room { " : "", or_else(layer->cluster, ""), layer->cluster ? " }" : "", cluster,
        or_else(layer->place, "place experts over rank { balance: even };"), layer->repeat ? layer->repeat : 1, cluster,
        or_else(layer->uses, "use serial;"));
    CU_ASSERT_FATAL(length > 0 && (size_t)length < sizeof text);
    return text;
}

struct outcome run_plan_once(moe_plan *plan, const struct run *run)
{
    struct outcome outcome = {0};
    moe_plan_info info;
    moe_plan_describe(plan, &info);
    outcome.choices = info.choices;
    outcome.width = info.width;
    for (uint32_t r = 0; r < info.ranks; r++)
        outcome.tokens += run->tokens[r];
    struct bridge b;
    prepare_steps(&b, &info, run, outcome.tokens);
    outcome.status = run_session(plan, run, &b, info.ranks, &outcome);
    size_t count = (size_t)outcome.tokens * (size_t)info.width;
    outcome.out = calloc(count + 1, sizeof *outcome.out);
    elements_to_f32(!strcmp(info.y_dtype, "f32") ? "F32" : !strcmp(info.y_dtype, "f16") ? "F16" : "BF16", b.out,
                    outcome.out, count);
    outcome.ids = b.ids;
    outcome.weights = b.weights;
    free(b.in);
    free(b.out);
    free(b.steps);
    return outcome;
}

bool outcome_equal(const struct outcome *a, const struct outcome *b)
{
    return a->status == MOE_OK && b->status == MOE_OK && a->tokens == b->tokens && a->width == b->width &&
           !memcmp(a->out, b->out, (size_t)(a->tokens * a->width) * sizeof *a->out);
}

void outcome_free(struct outcome *outcome)
{
    free(outcome->out);
    free(outcome->ids);
    free(outcome->weights);
    free(outcome->load);
    *outcome = (struct outcome){0};
}

double relative_l2(const float *a, const float *b, size_t count)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        double d = (double)a[i] - (double)b[i];
        difference += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

void gaussian(float *values, size_t count, uint64_t seed)
{
    uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        for (int k = 0; k < 12; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += (double)(state >> 40) * 0x1p-24;
        }
        values[i] = (float)(sum - 6);
    }
}

static const struct tensor *find(struct tensor_set *set, const char *file, const char *name)
{
    const struct tensor *tensor = set ? tensors_find(set, name) : NULL;
    if (!tensor)
        fprintf(stderr, "%s: no tensor %s\n", file, name);
    CU_ASSERT_PTR_NOT_NULL_FATAL(tensor);
    return tensor;
}

float *read_f32(const char *file, const char *name, int64_t *rows, int64_t *cols)
{
    char error[256];
    struct tensor_set *set = tensors_open(file, error, sizeof error);
    const struct tensor *tensor = find(set, file, name);
    *rows = tensor->shape[0];
    *cols = tensor->dims > 1 ? tensor->shape[1] : 1;
    size_t count = (size_t)(*rows * *cols);
    float *values = malloc(count * sizeof *values);
    elements_to_f32(tensor->dtype, tensor->data, values, count);
    tensors_close(set);
    return values;
}

int32_t *read_i32(const char *file, const char *name)
{
    char error[256];
    struct tensor_set *set = tensors_open(file, error, sizeof error);
    const struct tensor *tensor = find(set, file, name);
    int32_t *values = malloc(tensor->bytes);
    memcpy(values, tensor->data, tensor->bytes);
    tensors_close(set);
    return values;
}
