// The trial layer's text, checkpoint and runs (lab.h).
#include "tests/end_to_end/lab.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/weights/safetensors.h"

enum { FFN = 8 };

const char *lab_folder(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/moe-faults-%d", (int)getpid());
    mkdir(path, 0700);
    return path;
}

const char *lab_file(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", lab_folder(), name);
    return path;
}

int lab_clean_up(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", lab_folder());
    return system(command);
}

const char *lab_text(const struct lab *lab)
{
    static char text[4096];
    const char *t = lab->dtype ? lab->dtype : "f32";
    snprintf(
        text, sizeof text,
        "import std.ops;\nimport std.hw { laptop };\nimport std.schedules { serial, ladder, double_buffer, uneven, chunked_combine, hook_receive, decode, "
        "bidirectional };\n"
        "dim tokens <= %d;\ndim hidden = %d;\ndim ffn = %d;\ndim experts = %d;\n"
        "layer lab(x: %s[tokens, hidden]) -> %s[tokens, hidden] {\n"
        "    param w_router: f32[experts, hidden];\n    param e_bias: f32[experts];\n"
        "    param w_gate_up: %s[experts, 2 * ffn, hidden];\n    param w_down: %s[experts, hidden, ffn];\n"
        "    param s_gate_up: %s[1, 2 * ffn, hidden];\n    param s_down: %s[1, hidden, ffn];\n"
        "    stage route: r = topk(x, w_router, %s%s);\n    stage dispatch: xd = dispatch(x, r);\n"
        "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n    stage combine: yr = combine(yd, r);\n"
        "%s    yield %s;\n}\n"
        "weights file for lab { w_router = \"router\"; e_bias = \"bias\"; w_gate_up = \"up\"; w_down = \"down\"; "
        "s_gate_up = \"s_up\"; s_down = \"s_down\"; }\n"
        "placement p on laptop { place experts over rank; }\n"
        "pipeline main { layer = lab; cluster = laptop; placement = p; target = cpu; "
        "weights = file(safetensors(\"lab\")); use serial; }\n",
        LAB_BOUND, lab->experts, FFN, lab->experts, t, t, t, t, t, t, lab->route, lab->bias ? ", bias: e_bias" : "",
        lab->shared ? "    stage shared: ys = swiglu(x, s_gate_up, s_down);\n    stage merge: y = add(yr, ys);\n" : "",
        lab->shared ? "y" : "yr");
    return text;
}

static float *random_values(size_t count, uint64_t seed)
{
    float *values = malloc(count * sizeof *values);
    gaussian(values, count, seed);
    for (size_t i = 0; i < count; i++)
        values[i] *= 0.3f;
    return values;
}

const char *lab_weights(const struct lab *lab)
{
    int64_t e = lab->experts;
    size_t up_count = (size_t)(e * 2 * FFN * e), down_count = (size_t)(e * e * FFN);
    float *identity = calloc((size_t)(e * e), sizeof *identity), *zeros = calloc((size_t)e, sizeof *zeros);
    float *up = random_values(up_count, 3), *down = random_values(down_count, 4);
    for (int64_t i = 0; i < e; i++)
        identity[i * e + i] = 1;
    const char *dtype = !lab->dtype || !strcmp(lab->dtype, "f32") ? "F32" : !strcmp(lab->dtype, "f16") ? "F16" : "BF16";
    elements_from_f32(dtype, up, up, up_count); // narrower, from the front
    elements_from_f32(dtype, down, down, down_count);
    const char *router_dtype = lab->router_dtype ? lab->router_dtype : "F32";
    struct tensor tensors[] = {
        {.name = "router", .dims = 2, .shape = {e, e}, .data = lab->router ? lab->router : identity},
        {.name = "bias", .dtype = "F32", .dims = 1, .shape = {e}, .data = lab->bias ? lab->bias : zeros},
        {.name = "up", .dims = 3, .shape = {e, 2 * FFN, e}, .data = up},
        {.name = "down", .dims = 3, .shape = {e, e, FFN}, .data = down},
        {.name = "s_up", .dims = 2, .shape = {2 * FFN, e}, .data = up},
        {.name = "s_down", .dims = 2, .shape = {e, FFN}, .data = down}};
    size_t count = sizeof tensors / sizeof *tensors;
    for (size_t i = 0; i < count; i++) {
        if (i != 1)
            snprintf(tensors[i].dtype, sizeof tensors[i].dtype, "%s", i ? dtype : router_dtype);
        tensors[i].bytes = (size_t)tensor_bytes(tensors[i].dtype, tensors[i].shape, tensors[i].dims);
    }
    const char *path = lab_file("lab.safetensors");
    char error[256];
    CU_ASSERT(tensors_write(path, tensors, count, error, sizeof error));
    free(identity);
    free(zeros);
    free(up);
    free(down);
    return path;
}

moe_plan *lab_compile(const struct lab *lab)
{
    struct subject subject = {.text = lab_text(lab), .schedule = lab->schedule, .ranks = lab->ranks, .layer = -1};
    return subject_compile(&subject);
}

struct outcome lab_run(const struct lab *lab, const float *x, const int64_t *tokens, moe_options options)
{
    moe_plan *plan = lab_compile(lab);
    struct outcome none = {.status = MOE_INVALID};
    if (!plan)
        return none;
    options.threads = options.threads ? options.threads : 2;
    options.poison = 1;
    struct run run = {.in = x, .tokens = tokens, .weights = lab_weights(lab), .options = options};
    struct outcome outcome = run_plan_once(plan, &run);
    if (outcome.status != MOE_OK)
        fprintf(stderr, "%s\n", outcome.error);
    moe_plan_close(plan);
    return outcome;
}

struct outcome lab_route(const struct lab *lab, const float *logits)
{
    struct lab two = *lab;
    two.ranks = 2;
    struct outcome o = lab_run(&two, logits, (int64_t[]){1, 0}, (moe_options){0});
    CU_ASSERT_EQUAL_FATAL(o.status, MOE_OK);
    return o;
}
