// See fixture.h.
#include "tests/lower/fixture.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char template[] = "import std.ops;\n"
                               "import std.hw { host };\n"
                               "import std.schedules { serial, ladder };\n"
                               "dim tokens <= %d;\n"
                               "dim hidden = 64;\n"
                               "dim ffn = 128;\n"
                               "dim experts = %d;\n"
                               "layer moe(x: %s[tokens, hidden]) -> %s[tokens, hidden] {\n"
                               "    param w_router:  f32[experts, hidden];\n"
                               "    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n"
                               "    param w_down:    bf16[experts, hidden, ffn];\n"
                               "%s"
                               "    stage route:    r  = topk(x, w_router, k: 2);\n"
                               "    stage dispatch: xd = dispatch(x, r%s);\n"
                               "    stage expert:   yd = swiglu(xd, w_gate_up, w_down);\n"
                               "    stage combine:  yc = combine(yd, r);\n"
                               "%s"
                               "}\n"
                               "cluster box {\n"
                               "    device = host;\n"
                               "    axis rank[%d];\n"
                               "    link shm across rank { bandwidth: 5GB/s, latency: 1us };\n"
                               "}\n"
                               "placement spread on box { place experts over rank { balance: even }; }\n"
                               "%s"
                               "pipeline test {\n"
                               "    layer = moe;\n"
                               "    repeat = %d;\n"
                               "    cluster = box;\n"
                               "    placement = spread;\n"
                               "    target = cpu;\n"
                               "    use %s;\n"
                               "}\n";

static bool write_source(const struct setting *s, const char *path)
{
    const char *type = s->x_type ? s->x_type : "bf16";
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    fprintf(file, template, s->tokens, s->experts, type, type,
            s->shared ? "    param s_up: bf16[1, 2 * ffn, hidden];\n    param s_down: bf16[1, hidden, ffn];\n" : "",
            s->dispatch ? s->dispatch : "",
            s->shared ? "    stage shared:   ys = swiglu(x, s_up, s_down);\n"
                        "    stage merge:    y  = add(yc, ys);\n    yield y;\n"
                      : "    yield yc;\n",
            s->ranks, s->schedules ? s->schedules : "", s->layers, s->use);
    return fclose(file) == 0;
}

static void compile_setting(struct lowered *l, const struct setting *s, const char *path)
{
    struct check_options options = {.layer = -1};
    if (!load_program(&l->context, &l->program, path) ||
        !check_program(&l->context, &l->program, &options, &l->module, &l->pipeline))
        return;
    const struct mod_pipeline *pipeline = ROW(&l->module, mod_pipeline, l->pipeline);
    uint32_t use = pipeline->uses.first, none = NONE;
    if (!build_graph(&l->context, &l->program, &l->module, pipeline->layer, &l->graph) ||
        !lower_begin(&l->context, &l->program, &l->module, l->pipeline, "v3", &l->plan) ||
        !elaborate(&l->context, &l->program, &l->module, &l->graph, use, (uint32_t)s->layers, s->tokens,
                   &l->schedule) ||
        !prove(&l->context, &l->program, &l->module, &l->graph, &l->schedule) ||
        !place_waits(&l->context, &l->graph, &l->schedule))
        return;
    l->variant = lower_schedule(&l->context, &l->program, &l->module, l->pipeline, &l->graph, &l->schedule, &l->plan);
    if (l->variant != none)
        lower_choices(&l->context, &l->module, l->pipeline, &l->variant, false, &l->plan);
}

void lower_setting(struct lowered *l, const struct setting *s)
{
    char path[64];
    memset(l, 0, sizeof *l);
    l->variant = NONE;
    snprintf(path, sizeof path, "/tmp/lower_%ld.moe", (long)getpid());
    context_init(&l->context);
    ir_init(&l->plan, &plan_ir);
    CU_ASSERT_TRUE(write_source(s, path));
    if (setjmp(l->context.fatal) == 0)
        compile_setting(l, s, path);
    else
        CU_FAIL("fatal");
    if (l->context.fatal_message[0])
        fprintf(stderr, "%s\n", l->context.fatal_message);
    unlink(path);
    size_t size;
    FILE *out = open_memstream(&l->errors, &size);
    diag_print_all(&l->context, DIAG_SHORT, false, out);
    fclose(out);
}

void lowered_free(struct lowered *l)
{
    ir_free(&l->plan);
    ir_free(&l->schedule);
    ir_free(&l->graph);
    ir_free(&l->module);
    context_free(&l->context);
    free(l->errors);
}

char *ir_printed(const struct ir *ir)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    ir_print(ir, out);
    fclose(out);
    return text;
}
