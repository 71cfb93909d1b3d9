// One schedule through the compiler, in a context of its own, up to its prediction. The schedule's text is put behind the
// file's, as an editor would before saving; nothing is written.
#include "compiler/tune/search.h"

#include <stdlib.h>
#include <string.h>

enum { STUDY_LAYERS = 4 }; // enough for what layers do to each other, and even

struct view {
    struct tuning *t;
    struct candidate *candidate;
    bool seen;
};

// ---- the layer --------------------------------------------------------------------------------------------------------

static const char *copy_text(struct tuning *t, const char *text) { return context_printf(t->context, "%s", text); }

static void add_name(struct tuning *t, const char **names, uint32_t *count, const char *name)
{
    for (uint32_t i = 0; i < *count; i++)
        if (!strcmp(names[i], name))
            return;
    if (*count < STAGES_MOST)
        names[(*count)++] = copy_text(t, name);
}

/// By task: does it depend on a message; does a dispatch depend on it?
static void trace(const struct ir *graph, bool *after, bool *leads)
{
    uint32_t tasks = COUNT(graph, graph_task);
    for (uint32_t i = 0; i < tasks; i++) {
        const struct graph_task *task = ROW(graph, graph_task, i);
        after[i] = task->phase == phase_recv;
        for (uint32_t r = 0; r < task->reads.count; r++) {
            uint32_t maker = ROW(graph, graph_value, ROW(graph, graph_use, task->reads.first + r)->value)->task;
            after[i] = after[i] || (maker != NONE && maker < i && after[maker]);
        }
    }
    for (uint32_t i = tasks; i-- > 0;) {
        const struct graph_task *task = ROW(graph, graph_task, i);
        leads[i] = leads[i] || task->phase == phase_pack;
        for (uint32_t r = 0; r < task->reads.count && leads[i]; r++) {
            uint32_t maker = ROW(graph, graph_value, ROW(graph, graph_use, task->reads.first + r)->value)->task;
            if (maker != NONE)
                leads[maker] = true;
        }
    }
}

static void read_shape(struct tuning *t, const struct ir *graph)
{
    struct layer_shape *shape = &t->shape;
    uint32_t tasks = COUNT(graph, graph_task), dispatches = 0, combines = 0;
    bool *after = context_alloc(t->context, tasks + 1), *leads = context_alloc(t->context, tasks + 1);
    trace(graph, after, leads);
    for (uint32_t i = 0; i < tasks; i++) {
        const struct graph_task *task = ROW(graph, graph_task, i);
        const char *name = ir_text(graph, task->stage);
        shape->relayed = shape->relayed || task->phase == phase_relay;
        if (task->phase == phase_pack) {
            shape->dispatch = copy_text(t, name);
            dispatches++;
        } else if (task->phase == phase_merge) {
            shape->combine = copy_text(t, name);
            combines++;
        } else if (task->phase != phase_whole) {
            continue;
        } else if (task->routed) {
            add_name(t, shape->experts, &shape->expert_count, name);
        } else if (leads[i]) {
            add_name(t, shape->before, &shape->before_count, name);
        } else if (!after[i]) {
            add_name(t, shape->free, &shape->free_count, name);
        }
    }
    if (dispatches != 1 || combines != 1)
        shape->dispatch = shape->combine = NULL;
}

static void read_externs(struct tuning *t, const struct driver_study *study, const struct mod_layer *layer)
{
    for (uint32_t i = 0; i < layer->stages.count; i++) {
        const struct mod_stage *stage = ROW(study->module, mod_stage, layer->stages.first + i);
        if (stage->external && t->shape.extern_count < STAGES_MOST)
            t->shape.externs[t->shape.extern_count++] =
                context_printf(t->context, "%s=busy:%.0fns", ir_text(study->module, stage->name), stage->cost);
    }
}

static void learn(struct tuning *t, const struct driver_study *study)
{
    const struct mod_pipeline *pipeline = ROW(study->module, mod_pipeline, study->pipeline);
    const struct mod_cluster *cluster = ROW(study->module, mod_cluster, pipeline->cluster);
    t->known = true;
    t->layer = copy_text(t, ir_text(study->module, ROW(study->module, mod_layer, pipeline->layer)->name));
    t->cluster = copy_text(t, ir_text(study->module, cluster->name));
    t->ranks = (uint32_t)cluster->ranks;
    t->tokens = ROW(study->schedule, sched_info, 0)->bound;
    t->layers = ROW(study->schedule, sched_info, 0)->layers;
    t->memory = ROW(study->module, mod_device, cluster->device)->memory;
    t->serial_ns = metric_value(&study->figures, metric_latency, NULL) * metric_value(&study->figures, metric_speedup, NULL);
    t->alone_ns = predict_alone(study->figures.prediction, &t->weights);
    read_shape(t, study->graph);
    read_externs(t, study, ROW(study->module, mod_layer, pipeline->layer));
    list_offers(t, study);
}

/// In how many parts the schedule works: micro-batches, waves, or pieces of what travels and of its experts.
static uint32_t parts_of(const struct driver_study *study)
{
    const struct sched_info *info = ROW(study->schedule, sched_info, 0);
    uint32_t most = info->parts.count > info->waves ? info->parts.count : info->waves;
    for (uint32_t i = 0; i < COUNT(study->schedule, sched_task); i++) {
        const struct graph_task *task = ROW(study->graph, graph_task, i);
        uint32_t pieces = ROW(study->schedule, sched_task, i)->pieces;
        if ((task->routed || task->phase != phase_whole) && pieces > most)
            most = pieces;
    }
    return most;
}

static void study(void *user, const struct driver_study *study)
{
    struct view *view = user;
    const struct sched_info *info = ROW(study->schedule, sched_info, 0);
    view->seen = true;
    view->candidate->step_ns = metric_value(&study->figures, metric_latency, NULL);
    view->candidate->exposed = metric_value(&study->figures, metric_exposed_comm, NULL);
    view->candidate->waves = info->waves > 1;
    view->candidate->parts = parts_of(study);
    if (!view->t->known)
        learn(view->t, study);
}

// ---- compiling --------------------------------------------------------------------------------------------------------

static void add_text(struct tuning *t, struct context *context, const struct candidate *candidate)
{
    const char *text = context_printf(context, "%.*s\n%s\n", (int)t->base_size, t->base, candidate->text ? candidate->text : "");
    add_source(context, source_path(context, t->options->driver.file), text, strlen(text), NULL);
}

/// In a context of its own, which is freed; what was queued is printed only when asked for.
static enum exit_code compile_with(struct tuning *t, const struct candidate *candidate, struct driver_options *options,
                                   struct driver_result *result, bool queue)
{
    struct context own, *context = queue ? t->context : &own;
    options->check.schedule = candidate->use;
    if (queue) {
        add_text(t, context, candidate);
        return compile(context, options, result);
    }
    context_init(&own);
    volatile enum exit_code code = EXIT_BUG;
    int left = setjmp(own.fatal);
    if (!left) {
        add_text(t, context, candidate);
        code = compile(context, options, result);
    }
    char message[sizeof own.fatal_message];
    memcpy(message, own.fatal_message, sizeof message);
    context_free(&own);
    if (left)
        fatal(t->context, (enum exit_code)left, "%s", message);
    return code;
}

bool judge(struct tuning *t, struct candidate *candidate, bool queue)
{
    struct driver_options options = t->options->driver;
    struct driver_result result = {0};
    struct view view = {.t = t, .candidate = candidate};
    if (t->evaluations >= t->most)
        return false;
    t->evaluations++;
    options.study = study;
    options.study_user = &view;
    options.study_layers = STUDY_LAYERS;
    return compile_with(t, candidate, &options, &result, queue) == EXIT_FINE && view.seen;
}

void *compile_candidate(struct tuning *t, const struct candidate *candidate, size_t *bytes)
{
    struct driver_options options = t->options->driver;
    struct driver_result result = {0};
    enum exit_code code = compile_with(t, candidate, &options, &result, false);
    if (code == EXIT_FINE || code == EXIT_BUDGET) {
        *bytes = result.image_bytes;
        return result.image;
    }
    free(result.image);
    return NULL;
}
