// Elaboration: a schedule's text, for the knob values of one use, becomes streams of task instances.
#include <string.h>

#include "compiler/schedule/elaborate.h"
#include "runtime/plan/roles.h"

/// The operator's kernel; "" for an extern stage.
static const char *kernel_of(const struct elaboration *e, const struct graph_task *task)
{
    const struct mod_stage *stage =
        ROW(e->module, mod_stage, ROW(e->graph, mod_stage_number, task->module_stage)->row);
    return stage->op == NONE ? "" : ir_text(e->module, ROW(e->module, mod_op, stage->op)->kernel);
}

/// A router, an expert on plain rows, or a row operator: a row of the result needs that row of the arguments alone, and the
/// kernels take a range of rows.
static bool is_row_wise(const struct elaboration *e, const struct graph_task *task)
{
    const char *kernel = kernel_of(e, task);
    if (strcmp(kernel, "route") && strcmp(kernel, "grouped_mlp") && strcmp(kernel, "plain_mlp") &&
        row_operator(kernel) == kernel_role_words_count)
        return false;
    for (uint32_t i = 0; i < task->reads.count; i++)
        if (ROW(e->graph, graph_value, ROW(e->graph, graph_use, task->reads.first + i)->value)->kind !=
            value_kind_plain)
            return false;
    return true;
}

static void name_tasks(struct elaboration *e)
{
    const struct ir *graph = e->graph;
    e->task_count = COUNT(graph, graph_task);
    e->stage_count = COUNT(graph, mod_stage_number);
    e->tasks = context_alloc(e->context, (e->task_count + 1) * sizeof *e->tasks);
    e->stages = context_alloc(e->context, (e->stage_count + 1) * sizeof *e->stages);
    e->whole = context_alloc(e->context, (e->stage_count + 1) * sizeof *e->whole);
    for (uint32_t t = 0; t < e->task_count; t++) {
        const struct graph_task *task = ROW(graph, graph_task, t);
        struct stage_info *stage = &e->stages[task->module_stage];
        const char *name = ir_text(graph, task->stage), *phase = phase_words[task->phase];
        if (stage->task_count++ == 0)
            stage->first_task = t;
        stage->name = name;
        stage->pieces = stage->runs = 1;
        stage->shares = equal_shares(e, 1);
        stage->routed = task->routed;
        stage->row_wise = is_row_wise(e, task);
        stage->expert = stage->routed && (!strcmp(kernel_of(e, task), "grouped_mlp") || !strcmp(kernel_of(e, task), "plain_mlp"));
        stage->chunked = !strcmp(kernel_of(e, task), "dispatch") || !strcmp(kernel_of(e, task), "combine");
        stage->external = *kernel_of(e, task) == '\0';
        e->tasks[t].label = task->phase == phase_whole ? name : context_printf(e->context, "%s.%s", name, phase);
        e->tasks[t].stage = task->module_stage;
        e->tasks[t].phase = task->phase;
        e->tasks[t].engines = task->engines;
    }
}

/// Marks the stages that the schedule must issue: those it lists, or all when it is for one layer. The checker has seen
/// that the layer has them.
static void list_stages(struct elaboration *e)
{
    for (uint32_t s = 0; s < e->stage_count; s++) {
        e->stages[s].named = e->source->layer != NONE;
        for (uint32_t i = 0; i < e->source->stages.count; i++) {
            const char *name = ir_text(e->module, ROW(e->module, mod_name, e->source->stages.first + i)->name);
            e->stages[s].named = e->stages[s].named || strcmp(e->stages[s].name, name) == 0;
        }
    }
}

static void set_knobs(struct elaboration *e, const struct mod_use *use)
{
    for (uint32_t i = 0; i < use->knobs.count; i++) {
        const struct mod_knob *knob = ROW(e->module, mod_knob, use->knobs.first + i);
        push_name(e, intern(e->context, ir_text(e->module, knob->name)), knob->value, e->text->name_span);
    }
}

/// `ladder(n: 2)`
static const char *use_text(const struct elaboration *e, const struct mod_use *use)
{
    const char *text = ir_text(e->module, e->source->name);
    for (uint32_t i = 0; i < use->knobs.count; i++) {
        const struct mod_knob *knob = ROW(e->module, mod_knob, use->knobs.first + i);
        text = context_printf(e->context, "%s%s%s: %lld", text, i ? ", " : "(", ir_text(e->module, knob->name),
                              (long long)knob->value);
    }
    return use->knobs.count ? context_printf(e->context, "%s)", text) : text;
}

static struct rows add_shares(const struct elaboration *e, const int64_t *shares, int64_t count, struct ir *schedule)
{
    struct rows rows = {COUNT(schedule, sched_share), (uint32_t)count};
    for (int64_t i = 0; i < count; i++) {
        uint32_t row = NEW_ROW(e->context, schedule, sched_share);
        *ROW(schedule, sched_share, row) = (struct sched_share){shares[i], shares[i + 1], shares[count]};
    }
    return rows;
}

static void add_info(const struct elaboration *e, const struct mod_use *use, int64_t bound, struct ir *schedule)
{
    NEW_ROW(e->context, schedule, sched_info);
    str_id name = ir_str(schedule, use_text(e, use));
    int64_t total = e->shares[e->parts];
    for (int64_t i = 0; i < e->parts; i++) {
        uint32_t row = NEW_ROW(e->context, schedule, sched_part);
        int64_t begin = e->shares[i], end = e->shares[i + 1];
        *ROW(schedule, sched_part, row) = (struct sched_part){
            .begin = begin, .end = end, .total = total, .bound = (bound * (end - begin) + total - 1) / total};
    }
    for (uint32_t t = 0; t < e->task_count; t++) {
        uint32_t row = NEW_ROW(e->context, schedule, sched_task);
        const struct stage_info *stage = &e->stages[e->tasks[t].stage];
        struct rows shares = add_shares(e, stage->shares, stage->runs, schedule);
        *ROW(schedule, sched_task, row) = (struct sched_task){.pieces = (uint32_t)stage->runs, .shares = shares};
    }
    struct rows wave_shares = add_shares(e, e->wave_shares, e->waves, schedule);
    *ROW(schedule, sched_info, 0) = (struct sched_info){.name = name,
                                                        .layers = (uint32_t)e->layers,
                                                        .group = (uint32_t)e->group,
                                                        .bound = bound,
                                                        .parts = {0, (uint32_t)e->parts},
                                                        .waves = (uint32_t)e->waves,
                                                        .wave_shares = wave_shares,
                                                        .file = e->file,
                                                        .node = e->source->node};
}

static void number_cells(struct elaboration *e)
{
    for (uint32_t t = 0; t < e->task_count; t++) {
        e->tasks[t].first_cell = e->cells;
        e->cells += (uint32_t)(e->parts * e->stages[e->tasks[t].stage].pieces);
    }
}

static void add_claims(const struct elaboration *e, struct ir *schedule)
{
    for (uint32_t i = 0; i < e->claim_count; i++) {
        const struct claim *claim = &e->claims[i];
        struct rows names = {COUNT(schedule, sched_name), claim->name_count};
        for (uint32_t n = 0; n < claim->name_count; n++) {
            str_id name = ir_str(schedule, text_of(e->context, claim->names[n].name));
            uint32_t row = NEW_ROW(e->context, schedule, sched_name);
            *ROW(schedule, sched_name, row) = (struct sched_name){name, claim->names[n].value};
        }
        uint32_t row = NEW_ROW(e->context, schedule, sched_claim);
        *ROW(schedule, sched_claim, row) = (struct sched_claim){.file = e->file, .node = claim->node, .names = names};
    }
}

bool elaborate(struct context *context, const struct program_text *program, const struct ir *module,
               const struct ir *graph, uint32_t use, uint32_t layers, int64_t bound, const struct forecast *forecast,
               struct ir *schedule)
{
    const struct mod_use *chosen = ROW(module, mod_use, use);
    const struct mod_schedule *source = ROW(module, mod_schedule, chosen->schedule);
    struct elaboration e = {
        .context = context,
        .program = program,
        .ast = &program->ast,
        .module = module,
        .graph = graph,
        .forecast = forecast,
        .source = source,
        .text = node_at(&program->ast, source->node),
        .file = source->file,
        .parts = 1,
        .layers = layers,
        .group = 1,
        .waves = 1,
    };
    e.shares = e.wave_shares = equal_shares(&e, 1);
    context_ir_init(context, schedule, &schedule_ir);
    name_tasks(&e);
    list_stages(&e);
    set_knobs(&e, chosen);
    interpret_block(&e, e.text->slot[2]);
    if (!e.layers) // checked by itself, without a split of layers
        e.layers = 1;
    number_cells(&e);
    if (!e.failed)
        resolve_items(&e);
    if (!e.failed)
        check_coverage(&e);
    if (!e.failed) {
        add_info(&e, chosen, bound, schedule);
        place(&e, schedule);
        add_claims(&e, schedule);
    }
    if (schedule->out_of_memory)
        fatal(context, EXIT_SYSTEM, "out of memory");
    if (e.failed)
        ir_free(schedule);
    return !e.failed;
}
