// The table of contents of moecc: one call per arrow of the data flow. A stage that fails has queued its diagnostics;
// `--emit=STAGE` stops after that stage's line. Debug builds run each representation's checker after the pass that made it.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "compiler/codegen/cpu/cpu.h"
#include "compiler/compilation.h"
#include "compiler/lower/program.h"
#include "runtime/output.h"

const char *const driver_stages[] = {"tokens", "ast", "module", "graph", "schedule", "program", "llvm", "cuda", "ptx", "cubin", "plan", NULL};

typedef bool checker(const struct ir *ir, char *error, size_t size);

static double seconds_since(const struct timespec *start)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + 1e-9 * (double)(now.tv_nsec - start->tv_nsec);
}

static void pass_done(struct compilation *c, const char *pass)
{
    if (c->options->time_passes)
        fprintf(stderr, "%-10s %8.2f ms\n", pass, 1e3 * seconds_since(&c->pass_start));
    clock_gettime(CLOCK_MONOTONIC, &c->pass_start);
}

bool emitted(const struct compilation *c, const char *stage)
{
    return c->options->emit && !strcmp(c->options->emit, stage);
}

// A representation that breaks its own rules is a bug in the pass that made it, never the user's.
static void verify_ir(struct compilation *c, const struct ir *ir, const char *pass, checker *rules)
{
    char error[256];
    if (ir->out_of_memory)
        fatal(c->context, EXIT_SYSTEM, "out of memory in %s", pass);
#ifndef NDEBUG
    if (!ir_check(ir, error, sizeof error) || (rules && !rules(ir, error, sizeof error)))
        fatal(c->context, EXIT_BUG, "%s made an inconsistent representation: %s", pass, error);
#else
    (void)rules, (void)error;
#endif
}

/// A root file that the system does not give us is the system's failure, not a mistake in a program. Read once: it may be a
/// pipe.
static void read_root(struct context *context, const char *path)
{
    size_t size;
    for (uint32_t i = 0; i < context->file_count; i++) // given as text: that goes before the file on disk
        if (!context->files[i].module && !strcmp(context->files[i].path, path))
            return;
    const char *text = read_whole_file(context, path, &size);
    if (!text)
        fatal(context, EXIT_SYSTEM, "cannot read %s: %s", path, strerror(errno));
    add_source(context, path, text, size, NULL);
}

static bool parse(struct compilation *c)
{
    bool fine = load_program(c->context, &c->text, c->options->file);
    pass_done(c, "syntax");
    return fine;
}

/// A recorded load is of this layer's experts.
static void read_load(struct compilation *c)
{
    char error[512];
    if (c->options->load && !load_parse(c->context, c->options->load, &c->load, error, sizeof error))
        fatal(c->context, EXIT_USAGE, "%s", error);
    for (uint32_t i = 0; i < c->pipelines.count && c->load.kind == LOAD_TRACE; i++) {
        const struct mod_pipeline *row = ROW(c->module, mod_pipeline, c->pipelines.first + i);
        uint32_t experts = (uint32_t)ROW(c->module, mod_placement, row->placement)->experts;
        if (c->load.experts > experts)
            fatal(c->context, EXIT_INPUT, "%s chooses expert %u, but layer `%s` has %u", c->load.text, c->load.experts - 1,
                  ir_text(c->module, ROW(c->module, mod_layer, row->layer)->name), experts);
    }
}

bool replaces_source(const struct context *context, const char *path)
{
    for (uint32_t i = 0; i < context->file_count && path; i++)
        if (!context->files[i].module && output_same_file(context->files[i].path, path))
            return true;
    return false;
}

/// What a simulation writes goes to files of its own.
static void check_outputs(const struct compilation *c)
{
    const char *const written[] = {c->options->trace, c->options->svg};
    for (int i = 0; i < 2; i++)
        if (replaces_source(c->context, written[i]))
            fatal(c->context, EXIT_USAGE, "%.200s: this would replace a file that the result is made from", written[i]);
    if (written[0] && written[1] && output_same_file(written[0], written[1]))
        fatal(c->context, EXIT_USAGE, "`--trace` and `--svg` need files of their own");
}

static bool check(struct compilation *c)
{
    bool fine = check_program(c->context, &c->text, &c->options->check, c->module, &c->pipelines);
    check_outputs(c);
    if (fine)
        verify_ir(c, c->module, "check", module_check);
    pass_done(c, "check");
    return fine;
}

// The most tokens at which a use is the one that runs; -1 when it never is.
static int64_t bound_of_use(const struct compilation *c, const struct mod_pipeline *pipeline, uint32_t use)
{
    int64_t bound = -1;
    for (uint32_t i = 0; i < pipeline->choices.count; i++) {
        const struct mod_choice *choice = ROW(c->module, mod_choice, pipeline->choices.first + i);
        if (choice->use == use && choice->last_tokens > bound)
            bound = choice->last_tokens;
    }
    return bound;
}

// Module -> graph and proven schedule for one use of a schedule.
static bool schedule_use(struct compilation *c, uint32_t layer, uint32_t use, uint32_t layers, int64_t bound,
                         struct ir *graph, struct ir *schedule)
{
    char error[256];
    if (!build_graph(c->context, &c->text, c->module, layer, ROW(c->module, mod_use, use)->schedule, graph))
        return false;
    verify_ir(c, graph, "graph", graph_check);
    bool known = c->pipeline != NONE && ROW(graph, graph_info, 0)->layer_row == ROW(c->module, mod_pipeline, c->pipeline)->layer;
    struct forecast forecast = {0};
    if (known)
        forecast = forecast_make(c->context, &c->text, c->module, c->pipeline, graph, c->load.text ? &c->load : NULL);
    bool fine = elaborate(c->context, &c->text, c->module, graph, use, layers, bound, known ? &forecast : NULL, schedule) &&
                prove(c->context, &c->text, c->module, graph, schedule) && place_waits(c->context, graph, schedule);
    if (!fine)
        return false;
    verify_ir(c, schedule, "schedule", NULL);
#ifndef NDEBUG
    if (!schedule_check(graph, schedule, error, sizeof error))
        fatal(c->context, EXIT_BUG, "the schedule is inconsistent: %s", error);
#else
    (void)error;
#endif
    c->result->schedules++;
    c->result->instances += COUNT(schedule, sched_instance);
    c->result->waits += COUNT(schedule, sched_wait);
    return true;
}

// Can this schedule order that layer: is it for it, or for stages that it has?
static bool schedule_fits(const struct ir *module, const struct mod_schedule *schedule, uint32_t layer)
{
    if (schedule->layer != NONE)
        return schedule->layer == layer;
    const struct mod_layer *row = ROW(module, mod_layer, layer);
    for (uint32_t n = 0; n < schedule->stages.count; n++) {
        const char *name = ir_text(module, ROW(module, mod_name, schedule->stages.first + n)->name);
        bool found = false;
        for (uint32_t s = 0; s < row->stages.count && !found; s++)
            found = !strcmp(name, ir_text(module, ROW(module, mod_stage, row->stages.first + s)->name));
        if (!found)
            return false;
    }
    return true;
}

// The layer that a schedule of the file is checked with: its own, or that of the pipeline at hand, each once.
static uint32_t layer_to_check(const struct compilation *c, const struct mod_schedule *schedule)
{
    if (schedule->layer != NONE || c->pipeline == NONE)
        return c->pipeline == NONE || c->pipeline == c->pipelines.first ? schedule->layer : NONE;
    uint32_t layer = ROW(c->module, mod_pipeline, c->pipeline)->layer;
    for (uint32_t before = c->pipelines.first; before < c->pipeline; before++)
        if (ROW(c->module, mod_pipeline, before)->layer == layer)
            return NONE;
    return layer;
}

// A schedule that the file itself defines is checked at its default knobs even when no pipeline uses it.
static bool check_own_schedules(struct compilation *c)
{
    bool fine = true;
    for (uint32_t s = 0; s < COUNT(c->module, mod_schedule); s++) {
        const struct mod_schedule *own = ROW(c->module, mod_schedule, s);
        uint32_t layer = layer_to_check(c, own);
        if (!own->own || layer == NONE || !schedule_fits(c->module, own, layer))
            continue;
        struct ir *graph = context_ir(c->context), *schedule = context_ir(c->context);
        uint32_t use = ADD(c->module, mod_use);
        struct mod_use *row = ROW(c->module, mod_use, use);
        own = ROW(c->module, mod_schedule, s);
        *row = (struct mod_use){.schedule = s, .knobs = own->knobs, .file = own->file, .node = own->node};
        int64_t bound = ROW(c->module, mod_layer, layer)->tokens_bound;
        fine = schedule_use(c, layer, use, 0, bound, graph, schedule) && fine;
        ir_free(schedule);
        ir_free(graph);
    }
    return fine;
}

// What the variant needs on the rank that needs most, weights left out.
static double arena_of(const struct ir *plan, uint32_t variant)
{
    struct rows programs = ROW(plan, plan_variant, variant)->programs;
    int64_t most = 0;
    for (uint32_t i = 0; i < programs.count; i++) {
        int64_t bytes = ROW(plan, plan_program, programs.first + i)->arena_bytes;
        most = bytes > most ? bytes : most;
    }
    return (double)most;
}

// The fewest tokens at which a use is the one that runs.
static int64_t first_tokens_of_use(const struct compilation *c, const struct mod_pipeline *pipeline, uint32_t use)
{
    for (uint32_t i = 0; i < pipeline->choices.count; i++) {
        const struct mod_choice *choice = ROW(c->module, mod_choice, pipeline->choices.first + i);
        if (choice->use == use)
            return choice->first_tokens;
    }
    return 0;
}

// A lowered schedule against its budgets, and, where asked for, its predicted timeline.
static bool simulate_use(struct compilation *c, const struct ir *graph, uint32_t use, struct ir *schedule, uint32_t variant)
{
    struct context *context = c->context;
    const struct mod_pipeline *pipeline = ROW(c->module, mod_pipeline, c->pipeline);
    struct figures figures = {.peak_memory = arena_of(c->plan, variant)};
    uint32_t errors = context->error_count;
    struct prediction *p = predict(context, &c->text, c->module, c->pipeline, graph, schedule, c->load.text ? &c->load : NULL);
    figures.prediction = p;
    figures.serial = predict_serial(p);
    bool at_bound = bound_of_use(c, pipeline, use) == ROW(c->module, mod_layer, pipeline->layer)->tokens_bound;
    check_budgets(context, &c->text, c->module, c->pipeline, use, at_bound, &figures);
    int64_t first = first_tokens_of_use(c, pipeline, use);
    if (c->options->simulate && c->options->json)
        print_prediction_json(context, &figures, first, c->options->out);
    else if (c->options->simulate)
        print_prediction(context, &figures, first, c->options->color, c->options->verbose, c->options->out);
    if (c->options->trace && at_bound && !write_prediction_trace(&figures, c->options->trace))
        fatal(context, EXIT_SYSTEM, "cannot write %s: %s", c->options->trace, strerror(errno));
    if (c->options->svg && at_bound && !write_prediction_svg(&figures, c->options->svg))
        fatal(context, EXIT_SYSTEM, "cannot write %s: %s", c->options->svg, strerror(errno));
    return context->error_count == errors;
}

// Every schedule that the pipeline uses: elaborated, proven, lowered into the plan. An executable of several layers gets
// each once more for a layer alone (`single`).
static bool lower_uses(struct compilation *c, bool single)
{
    struct context *context = c->context;
    struct mod_pipeline pipeline = *ROW(c->module, mod_pipeline, c->pipeline);
    uint32_t *variant = context_alloc(context, sizeof *variant * (pipeline.uses.count + 1));
    bool fine = true;
    for (uint32_t u = 0; u < pipeline.uses.count; u++) {
        uint32_t use = pipeline.uses.first + u;
        int64_t bound = bound_of_use(c, &pipeline, use);
        bool runs = bound >= 0;
        variant[u] = NONE;
        struct ir *graph = context_ir(context), *schedule = context_ir(context);
        uint32_t layers = single ? 1 : (uint32_t)pipeline.repeat;
        if (!schedule_use(c, pipeline.layer, use, layers, runs ? bound : 0, graph, schedule)) {
            fine = false;
        } else if (emitted(c, "schedule")) {
            ir_print(schedule, c->options->out);
        } else if (runs) {
            variant[u] = lower_schedule(context, &c->text, c->module, c->pipeline, graph, schedule, c->plan);
            fine = variant[u] != NONE && (single || c->again || simulate_use(c, graph, use, schedule, variant[u])) && fine;
        }
        ir_free(schedule);
        ir_free(graph);
        pass_done(c, "schedule");
    }
    if (!fine || emitted(c, "schedule"))
        return fine;
    return lower_choices(context, c->module, c->pipeline, variant, single, c->plan);
}

// Schedules that somebody compares: proven and predicted, no further.
static bool study_uses(struct compilation *c)
{
    const struct mod_pipeline pipeline = *ROW(c->module, mod_pipeline, c->pipeline);
    uint32_t layers = (uint32_t)pipeline.repeat, most = c->options->study_layers;
    bool fine = true;
    for (uint32_t u = 0; u < pipeline.uses.count; u++) {
        int64_t bound = bound_of_use(c, &pipeline, pipeline.uses.first + u);
        struct ir *graph = context_ir(c->context), *schedule = context_ir(c->context);
        if (bound >= 0 && schedule_use(c, pipeline.layer, pipeline.uses.first + u, most && layers > most ? most : layers,
                                       bound, graph, schedule)) {
            struct prediction *p = predict(c->context, &c->text, c->module, c->pipeline, graph, schedule, c->load.text ? &c->load : NULL);
            struct driver_study study = {c->context, &c->text, c->module, graph, schedule, c->pipeline,
                                         {.prediction = p, .serial = predict_serial(p), .peak_memory = NAN}};
            c->options->study(c->options->study_user, &study);
        } else {
            fine = bound < 0 && fine;
        }
        ir_free(schedule);
        ir_free(graph);
    }
    return fine;
}

// What will really run is proven once more: instructions, semaphores, messages and bytes.
static void verify_programs(struct compilation *c)
{
    char error[512];
    for (uint32_t v = 0; v < COUNT(c->plan, plan_variant); v++)
        if (!program_verify(c->context, c->plan, v, error, sizeof error))
            fatal(c->context, EXIT_BUG, "the lowered schedule `%s` is not safe: %s",
                  ir_text(c->plan, ROW(c->plan, plan_variant, v)->name), error);
    c->result->instructions += c->again ? 0 : COUNT(c->plan, plan_instr);
    pass_done(c, "verify");
}

static bool lower(struct compilation *c)
{
    bool alone = c->options->check.deployed && ROW(c->module, mod_pipeline, c->pipeline)->repeat > 1;
    bool fine = lower_begin(c->context, &c->text, c->module, c->pipeline, c->cpu_level, c->plan) &&
                lower_uses(c, false) && (!alone || lower_uses(c, true));
    if (fine && !emitted(c, "schedule") && !c->options->simulate) // nothing of a simulation runs
        verify_programs(c);
    return fine;
}

static bool generate(struct compilation *c)
{
    void *code = NULL;
    size_t code_bytes = 0;
    bool cuda = ROW(c->module, mod_pipeline, c->pipeline)->target == target_cuda;
    if (c->options->use_cuda && !cuda)
        fatal(c->context, EXIT_USAGE, "`--use-cuda` is for a CUDA target, as in `--target cuda:sm_80,host`");
    if (!(cuda ? generate_cuda(c, &code, &code_bytes) : codegen_cpu(c->context, c->plan, c->cpu_level, &code, &code_bytes))) {
        if (!c->context->error_count)
            fatal(c->context, EXIT_BUG, "code generation failed without saying why");
        return false;
    }
    verify_ir(c, c->plan, "code generation", NULL);
    pass_done(c, "codegen");
    bool written = plan_write(c->plan, code, code_bytes, &c->result->image, &c->result->image_bytes);
    free(code);
    if (!written)
        fatal(c->context, EXIT_SYSTEM, "out of memory while writing the plan");
    char error[256];
    struct plan plan;
    if (!plan_open(&plan, c->result->image, c->result->image_bytes, false, error, sizeof error))
        fatal(c->context, strcmp(error, PLAN_NO_MEMORY) ? EXIT_BUG : EXIT_SYSTEM, "the plan does not validate: %s", error);
    plan_close(&plan);
    pass_done(c, "plan");
    return true;
}

static void new_plan(struct compilation *c)
{
    ir_free(c->plan); // of what was compiled before
    context_ir_init(c->context, c->plan, &plan_ir);
}

/// Code for what has been lowered; then, where several levels are asked for, lowered and generated again for each of the
/// others: layouts, and with them buffers, are a level's own. One plan has the code of all GPUs.
static bool generate_levels(struct compilation *c)
{
    static const char *const gpu[] = {"cuda", NULL};
    bool cuda = ROW(c->module, mod_pipeline, c->pipeline)->target == target_cuda;
    const char *const *levels = c->options->levels && cuda ? gpu : c->options->levels;
    bool fine = generate(c);
    for (uint32_t i = 0; fine && levels && levels[i]; i++) {
        if (i > 0) {
            new_plan(c);
            c->cpu_level = levels[i];
            c->again = true;
            fine = lower(c) && generate(c);
        }
        c->result->images[i] = (struct driver_image){c->result->image, c->result->image_bytes, cuda};
        c->result->image = NULL;
    }
    return fine;
}

static void compile_pipeline(struct compilation *c)
{
    const struct mod_pipeline *pipeline = ROW(c->module, mod_pipeline, c->pipeline);
    c->result->pipeline = context_printf(c->context, "%s%s%s", c->result->pipeline ? c->result->pipeline : "",
                                         c->result->pipeline ? ", " : "", ir_text(c->module, pipeline->name));
    c->result->pipelines++;
    new_plan(c);
    struct ir *graph = context_ir(c->context);
    if (!build_graph(c->context, &c->text, c->module, pipeline->layer, NONE, graph))
        return;
    verify_ir(c, graph, "graph", graph_check);
    pass_done(c, "graph");
    if (emitted(c, "graph"))
        ir_print(graph, c->options->out);
    else if (c->options->study)
        study_uses(c);
    else if (lower(c) && !emitted(c, "schedule")) {
        verify_ir(c, c->plan, "lowering", NULL);
        if (emitted(c, "program"))
            ir_print(c->plan, c->options->out);
        else if (emitted(c, "llvm"))
            codegen_cpu_print(c->context, c->plan, c->cpu_level, c->options->out);
        else if (!print_cuda(c) && !c->options->check_only && generate_levels(c) && emitted(c, "plan")) {
            ir_print(c->plan, c->options->out);
            free(c->result->image); // printed, not run
            c->result->image = NULL;
        }
    }
    ir_free(graph);
}

static void compile_stages(struct compilation *c)
{
    if (emitted(c, "tokens")) {
        load_program(c->context, &c->text, c->options->file);
        if (c->context->file_count)
            print_tokens(c->context, 0, c->options->out);
        return;
    }
    if (!parse(c))
        return;
    if (emitted(c, "ast")) {
        const struct parsed_file *root = &c->text.units[c->text.unit_count - 1];
        ast_print(c->context, &c->text.ast, root->root, c->options->out);
        return;
    }
    if (!check(c))
        return;
    read_load(c);
    if (emitted(c, "module"))
        ir_print(c->module, c->options->out);
    else if (!c->pipelines.count)
        check_own_schedules(c);
    for (uint32_t i = 0; i < c->pipelines.count && !emitted(c, "module"); i++) {
        c->pipeline = c->pipelines.first + i;
        if (c->options->study || check_own_schedules(c))
            compile_pipeline(c);
    }
}

enum exit_code compile(struct context *context, const struct driver_options *options, struct driver_result *result)
{
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    *result = (struct driver_result){0};
    read_root(context, options->file);
    struct compilation *c = context_alloc(context, sizeof *c);
    *c = (struct compilation){.context = context, .options = options, .result = result, .pipeline = NONE, .pass_start = start};
    c->cpu_level = options->levels ? options->levels[0] : options->cpu_level;
    c->module = context_ir(context);
    c->plan = context_ir(context);
    context_ir_init(context, c->module, &module_ir);
    context_ir_init(context, c->plan, &plan_ir);
    compile_stages(c);
    ir_free(c->module);
    ir_free(c->plan);
    result->seconds = seconds_since(&start);
    if (!context->error_count)
        return EXIT_FINE;
    return context->error_count == diag_errors_of(context, E0401) ? EXIT_BUDGET : EXIT_INPUT;
}
