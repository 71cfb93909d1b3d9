// See fixture.h.
#include "tests/lower/fixture.h"
#include "tests/lower/brute_force.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char template[] = "import std.ops;\n"
                               "import std.hw { host };\n"
                               "import std.schedules { serial, ladder, waves };\n"
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
                               "    stage combine:  yc = combine(yd, r%s);\n"
                               "%s"
                               "}\n"
                               "cluster box {\n"
                               "    device = host;\n"
                               "    axis node[%d]; axis rank[%d];\n"
                               "    link net across node { bandwidth: 1GB/s, latency: 5us };\n"
                               "    link shm across rank { bandwidth: 5GB/s, latency: 1us };\n"
                               "}\n"
                               "placement spread on box { place experts over node, rank { balance: even }; }\n"
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
            s->dispatch ? s->dispatch : "", s->combine ? s->combine : "",
            s->shared ? "    stage shared:   ys = swiglu(x, s_up, s_down);\n"
                        "    stage merge:    y  = add(yc, ys);\n    yield y;\n"
                      : "    yield yc;\n",
            s->node ? s->ranks / s->node : 1, s->node ? s->node : s->ranks, s->schedules ? s->schedules : "", s->layers, s->use);
    return fclose(file) == 0;
}

static void compile_setting(struct lowered *l, const struct setting *s, const char *path)
{
    struct check_options options = {.layer = -1};
    struct rows pipelines;
    if (!load_program(&l->context, &l->program, path) ||
        !check_program(&l->context, &l->program, &options, &l->module, &pipelines))
        return;
    l->pipeline = pipelines.first;
    const struct mod_pipeline *pipeline = ROW(&l->module, mod_pipeline, l->pipeline);
    uint32_t use = pipeline->uses.first, none = NONE;
    if (!build_graph(&l->context, &l->program, &l->module, pipeline->layer,
                     ROW(&l->module, mod_use, use)->schedule, &l->graph) ||
        !lower_begin(&l->context, &l->program, &l->module, l->pipeline, "v3", &l->plan) ||
        !elaborate(&l->context, &l->program, &l->module, &l->graph, use, (uint32_t)s->layers, s->tokens,
                   NULL, &l->schedule) ||
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

bool accepted(struct lowered *l)
{
    char error[512] = "";
    CU_ASSERT_NOT_EQUAL(l->variant, NONE);
    if (l->variant == NONE) {
        fprintf(stderr, "%s", l->errors);
        return false;
    }
    bool good = program_verify(&l->context, &l->plan, l->variant, error, sizeof error);
    CU_ASSERT_TRUE(good);
    if (!good)
        fprintf(stderr, "%s\n", error);
    return good;
}

static void check_plan(struct lowered *l)
{
    char error[512] = "";
    bool good = ir_check(&l->plan, error, sizeof error) && plan_validate(&l->plan, 1, error, sizeof error);
    CU_ASSERT_TRUE(good);
    if (!good)
        fprintf(stderr, "%s\n", error);
    char *text = printed_ir(&l->plan);
    struct ir copy;
    good = ir_parse(&copy, &plan_ir, text, error, sizeof error);
    CU_ASSERT_TRUE(good);
    if (good) {
        char *again = printed_ir(&copy);
        CU_ASSERT_STRING_EQUAL(text, again);
        free(again);
    }
    ir_free(&copy);
    free(text);
}

void check_setting(const struct setting *setting)
{
    struct lowered l;
    lower_setting(&l, setting);
    if (accepted(&l)) {
        check_plan(&l);
        if (setting->ranks <= (setting->node ? 6 : 3) && COUNT(&l.plan, plan_instr) < 600)
            CU_ASSERT_TRUE(brute_force_agrees(&l.plan, l.variant));
    }
    lowered_free(&l);
}

void mutate_semaphores(const struct setting *setting, bool round_trips)
{
    struct lowered l;
    char error[512];
    lower_setting(&l, setting);
    uint32_t mutations = 0;
    if (accepted(&l))
        for (uint32_t i = 0; i < COUNT(&l.plan, plan_instr); i++) {
            struct plan_instr *instr = ROW(&l.plan, plan_instr, i);
            struct plan_instr saved = *instr;
            if (saved.op != opcode_wait && saved.op != opcode_signal)
                continue;
            *instr = (struct plan_instr){.op = opcode_host, .label = saved.label, .exchange = NONE, .kernel = NONE};
            bool passes = program_verify(&l.context, &l.plan, l.variant, error, sizeof error);
            bool redundant = passes && round_trips && saved.op == opcode_wait && brute_force_agrees(&l.plan, l.variant);
            CU_ASSERT_TRUE(!passes || redundant);
            if (passes && !redundant)
                fprintf(stderr, "%s, %d layers, %d ranks: without %s %s (semaphore %u, %lld) it still passes\n",
                        setting->use, setting->layers, setting->ranks, opcode_words[saved.op],
                        ir_text(&l.plan, saved.label), saved.semaphore, (long long)saved.value);
            *instr = saved;
            mutations++;
        }
    CU_ASSERT_TRUE(!strcmp(setting->use, "serial") || mutations > 0);
    lowered_free(&l);
}
