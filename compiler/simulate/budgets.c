// Budgets against figures. What is not met says by how much, where the time goes, and whether any schedule could do
// better here.
#include <math.h>
#include <string.h>

#include "compiler/simulate/model.h"

enum { TIMELINE_COLUMNS = 60, STAGES_MAX = 32, SETS_MAX = 64 };

struct budget_check {
    struct context *context;
    const struct program_text *program;
    const struct ir *module;
    const struct mod_pipeline *pipeline;
    const struct mod_use *use;
    const struct figures *figures;
    uint32_t file;
    const struct name_value *names;
    uint32_t name_count;
    node_id statement;          // ASSERT
};

static const struct ast_node *node_of(const struct budget_check *b, node_id id) { return node_at(&b->program->ast, id); }

static const char *source_text(const struct budget_check *b, struct span span)
{
    return context_printf(b->context, "%.*s", (int)(span.end - span.begin), b->context->files[span.file].text + span.begin);
}

/// A value in its metric's unit.
static const char *value_text(struct context *context, enum metric metric, double value)
{
    static const struct {
        double unit;
        const char *name;
    } amounts[] = {{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "KB"}, {1, "B"}};
    size_t i = 0;
    switch (metric) {
    case metric_speedup:
        return context_printf(context, "%.2fx", value);
    case metric_latency:
        return time_text(context, value);
    case metric_bytes:
    case metric_peak_memory:
        while (i < 4 && value < amounts[i].unit)
            i++;
        return context_printf(context, "%.*f%s", value / amounts[i].unit < 99.95 ? 2 : 1, value / amounts[i].unit,
                              amounts[i].name);
    default:
        return context_printf(context, "%.1f%%", 100 * value);
    }
}

/// `ladder(n: 4)` in `use ladder(n: 4) when ...`
static struct span use_place(const struct budget_check *b)
{
    const struct ast_node *use = node_of(b, b->use->node);
    struct span span = node_of(b, use->slot[0])->span;
    EACH_NODE(&b->program->ast, id, use->slot[1])
    {
        span.end = node_of(b, id)->span.end;
    }
    const struct source_file *file = &b->context->files[span.file];
    while (use->slot[1] && span.end < file->size && file->text[span.end - 1] != ')')
        span.end++;
    return span;
}

static bool holds(const char *compare, double value, double limit)
{
    return !strcmp(compare, "<")    ? value < limit
           : !strcmp(compare, "<=") ? value <= limit
           : !strcmp(compare, ">")  ? value > limit
           : !strcmp(compare, ">=") ? value >= limit
           : !strcmp(compare, "==") ? value == limit
                                    : value != limit;
}

// ---- what a metric is about -------------------------------------------------------------------------------------------

/// `dispatch[i+1]` as the label of an instance: `dispatch[2]`.
static const char *instance_name(const struct budget_check *b, node_id id)
{
    const struct ast_node *node = node_of(b, id);
    if (node->kind != NODE_INDEX)
        return expression_text(b->context, &b->program->ast, id);
    const char *text = expression_text(b->context, &b->program->ast, node->slot[0]), *separator = "[";
    EACH_NODE(&b->program->ast, index, node->slot[1])
    {
        int64_t value;
        if (!evaluate_integer(b->context, b->program, b->file, index, b->names, b->name_count, NULL, &value))
            return NULL;
        text = context_printf(b->context, "%s%s%lld", text, separator, (long long)value);
        separator = ",";
    }
    return context_printf(b->context, "%s]", text);
}

static bool read_argument(const struct budget_check *b, const struct budget *budget, struct metric_argument *argument)
{
    const struct ast_node *call = node_of(b, budget->named);
    const char *text[2] = {NULL, NULL};
    uint32_t count = 0;
    EACH_NODE(&b->program->ast, id, call->kind == NODE_CALL ? call->slot[1] : 0)
    {
        if (count < 2 && !(text[count] = instance_name(b, node_of(b, id)->slot[0])))
            return false;
        count++;
    }
    *argument = (struct metric_argument){.stream = text[0], .a = text[0], .b = text[1]};
    for (uint32_t i = 0; i < engine_words_count && text[0]; i++)
        if (!strcmp(engine_words[i], text[0]))
            argument->engine = i;
    return true;
}

/// The stream or instance that a metric names is not of this schedule.
static void report_absent(struct budget_check *b, const struct budget *budget)
{
    const struct prediction *p = b->figures->prediction;
    const char *list = "";
    for (uint32_t s = 0; s < p->streams; s++)
        list = context_printf(b->context, "%s%s%s", list, s ? ", " : "",
                              ir_text(p->schedule, ROW(p->schedule, sched_stream, s)->name));
    struct span span = node_of(b, budget->named)->span;
    struct diag *diag = diag_error(b->context, E0101, span, "`%s` names nothing of the schedule `%s`", source_text(b, span),
                                   ir_text(p->schedule, ROW(p->schedule, sched_info, 0)->name));
    diag_label(b->context, diag, budget->metric == metric_bubble ? "no such stream" : "no such instance");
    diag_note(b->context, diag, "its streams are %s", list);
}

// ---- notes ------------------------------------------------------------------------------------------------------------

/// Exposed time by which stages have messages under way.
struct sets {
    uint32_t mask[SETS_MAX];
    double time[SETS_MAX];
    uint32_t count;
};

static void add_set(struct sets *sets, uint32_t mask, double time)
{
    uint32_t i = 0;
    while (i < sets->count && sets->mask[i] != mask)
        i++;
    if (i == SETS_MAX)
        return;
    sets->count += i == sets->count;
    sets->mask[i] = mask;
    sets->time[i] += time;
}

static struct sets exposed_by_stage(const struct prediction *p, uint32_t kind)
{
    struct context *context = p->model.context;
    struct intervals lost = exposed(p, kind), stage[STAGES_MAX] = {0};
    struct sets sets = {0};
    for (uint32_t f = 0; f < p->events.flow_count; f++) {
        const struct event_flow *flow = &p->events.flows[f];
        bool ours = flow->send / p->instances == kind || flow->recv / p->instances == kind;
        if (ours && p->stage_of_flow[f] < STAGES_MAX)
            intervals_add(context, &stage[p->stage_of_flow[f]], flow->begin, flow->arrived);
    }
    for (uint32_t s = 0; s < STAGES_MAX; s++)
        intervals_join(&stage[s]);
    for (uint32_t s = 0; s < STAGES_MAX; s++) {
        struct intervals alone = intervals_cut(context, &lost, &stage[s], true);
        for (uint32_t o = 0; o < STAGES_MAX; o++) {
            if (o == s || !stage[o].count)
                continue;
            struct intervals both = intervals_cut(context, &alone, &stage[o], true);
            if (o > s && intervals_length(&both) > 0)
                add_set(&sets, 1u << s | 1u << o, intervals_length(&both));
            alone = intervals_cut(context, &alone, &stage[o], false);
        }
        if (intervals_length(&alone) > 0)
            add_set(&sets, 1u << s, intervals_length(&alone));
    }
    return sets;
}

static const char *set_name(const struct prediction *p, uint32_t mask, bool only_pair)
{
    const struct model *m = &p->model;
    const char *text = "";
    bool pair = mask & (mask - 1);
    if (pair && only_pair)
        return "both";
    for (uint32_t s = 0; s < STAGES_MAX; s++)
        if (mask >> s & 1)
            text = context_printf(m->context, "%s%s%s", text, *text ? " and " : "",
                                  ir_text(m->module, ROW(m->module, mod_stage, ROW(m->graph, mod_stage_number, s)->row)->name));
    return pair ? text : context_printf(m->context, "%s alone", text);
}

static void note_exposed(const struct budget_check *b, struct diag *diag, uint32_t kind)
{
    const struct prediction *p = b->figures->prediction;
    struct sets sets = exposed_by_stage(p, kind);
    uint32_t pairs = 0, stages = 0;
    const char *text = "";
    for (uint32_t i = 0; i < sets.count; i++) {
        bool pair = sets.mask[i] & (sets.mask[i] - 1);
        pairs += pair;
        stages |= sets.mask[i];
    }
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < sets.count; i++)
            if (((sets.mask[i] & (sets.mask[i] - 1)) != 0) == (pass == 1))
                text = context_printf(b->context, "%s%s%s %s", text, *text ? ", " : "", set_name(p, sets.mask[i], pairs == 1),
                                      time_text(b->context, sets.time[i] / p->layers));
    if (stages)
        diag_note(b->context, diag, "%s", text);
}

/// Where the time of a layer goes, and its timeline.
static void note_timeline(const struct budget_check *b, struct diag *diag)
{
    const struct prediction *p = b->figures->prediction;
    uint32_t kind = most_exposed(p);
    struct intervals lost = exposed(p, kind);
    const char *where = p->model.kind_count > 1 ? context_printf(b->context, " on rank %u", p->model.kinds[kind].first) : "";
    diag_note(b->context, diag, "one layer takes %s; for %s of it the wire works and the SMs wait%s",
              time_text(b->context, p->events.end / p->layers), time_text(b->context, intervals_length(&lost) / p->layers),
              where);
    note_exposed(b, diag, kind);
    diag_lines(b->context, diag, draw_timeline(p, kind, TIMELINE_COLUMNS, true));
}

/// The best value of a metric that any schedule could reach here; NAN: unknown. `whole`: its value where nothing is split.
static double best_of(const struct figures *figures, enum metric metric, const struct bounds *bounds, double value, double whole)
{
    double least = fmax(bounds->wire_ns, bounds->compute_ns), step = figures->prediction->events.end;
    switch (metric) {
    case metric_exposed_comm:
        return bounds->exposed;
    case metric_latency:
        return least;
    case metric_speedup:
        return least > 0 ? figures->serial->events.end / least : NAN;
    case metric_mfu:
        return least > 0 ? value * step / least : NAN;
    case metric_bytes:
        return fmin(value, whole);
    default:
        return NAN;
    }
}

static bool is_below(const char *compare) { return *compare == '<'; }

static bool note_bound(const struct budget_check *b, struct diag *diag, const struct budget *budget, double value, double whole,
                       double limit)
{
    struct bounds made = bounds_of(b->figures, 1), *bounds = &made;
    double best = best_of(b->figures, budget->metric, bounds, value, whole);
    uint32_t layers = b->figures->prediction->layers;
    if (isnan(best) || holds(budget->compare, best, limit))
        return false;
    const char *wire = time_text(b->context, bounds->wire_ns / layers);
    const char *compute = time_text(b->context, bounds->compute_ns / layers);
    const char *reached = value_text(b->context, budget->metric, best);
    if (budget->metric == metric_exposed_comm)
        diag_note(b->context, diag,
                  "no schedule can meet this budget here: %s on the wire against %s of compute leaves at least %s exposed",
                  wire, time_text(b->context, bounds->hiding_ns / layers), reached);
    else if (budget->metric == metric_bytes)
        diag_note(b->context, diag, "no schedule can meet this budget here: nothing sends less than %s", reached);
    else
        diag_note(b->context, diag,
                  "no schedule can meet this budget here: %s on the wire and %s of compute allow %s %s", wire, compute,
                  is_below(budget->compare) ? "no less than" : "at most", reached);
    return true;
}

/// The combine's wire format, where it is not packed already: what packing it would save.
static double packed_share(const struct budget_check *b)
{
    const struct prediction *p = b->figures->prediction;
    static const double FP8_BYTES = 1 + 4.0 / 128; // E4M3 in 1x128 blocks with f32 scales
    for (uint32_t t = 0; t < COUNT(p->model.graph, graph_task); t++) {
        const struct graph_task *task = ROW(p->model.graph, graph_task, t);
        struct routing routing;
        if (task->phase != phase_send || !routing_of_task(&p->model, t, &routing) || !routing.combine)
            continue;
        double width = (double)ROW(p->model.graph, graph_value, ROW(p->model.graph, graph_use, task->reads.first)->value)->width;
        double bytes = row_bytes(&p->model, t, 0) / (width > 0 ? width : 1);
        return bytes > 1.5 ? FP8_BYTES / bytes : 1;
    }
    return 1;
}

static void help_budget(const struct budget_check *b, struct diag *diag, const struct budget *budget, bool hopeless)
{
    double packed = packed_share(b);
    switch (budget->metric) {
    case metric_exposed_comm: {
        struct bounds better = bounds_of(b->figures, packed);
        if (hopeless && packed < 1)
            diag_help(b->context, diag,
                      "give the schedule something to hide behind (an `extern stage`, a shared expert, the next layer); an fp8 "
                      "combine alone only lowers that bound to %.0f%%",
                      100 * better.exposed);
        else if (hopeless)
            diag_help(b->context, diag,
                      "give the schedule something to hide behind: an `extern stage`, a shared expert, the next layer");
        else
            diag_help(b->context, diag, "split into more micro-batches, or let neighbours (a shared expert, the next layer) fill "
                                        "what stays exposed");
        break;
    }
    case metric_bytes:
        diag_help(b->context, diag, hopeless ? "a narrower `wire` format, or two hops (`via`) where ranks share a node, send less"
                                             : "every wave of experts has replies of its own: fewer waves send less");
        break;
    case metric_peak_memory:
        diag_help(b->context, diag, "fewer micro-batches in flight need fewer copies; a smaller `capacity` makes slots smaller");
        break;
    default:
        diag_help(b->context, diag, "`moecc simulate` shows where the time of each schedule goes");
        break;
    }
}

// ---- checking ---------------------------------------------------------------------------------------------------------

static void report_missed(struct budget_check *b, const struct budget *budget, double value, double whole, double limit)
{
    const struct prediction *p = b->figures->prediction;
    const struct ast_node *statement = node_of(b, b->statement);
    struct span span = node_of(b, budget->node)->span;
    const char *what = source_text(b, node_of(b, budget->named)->span);
    const char *found = value_text(b->context, budget->metric, value);
    const char *wanted = source_text(b, node_of(b, budget->limit)->span);
    struct diag *diag = statement->flag ? diag_warning(b->context, E0401, span, "expectation not met: %s is %s, the limit is %s",
                                                       what, found, wanted)
                                        : diag_error(b->context, E0401, span, "budget not met: %s is %s, the limit is %s",
                                                     what, found, wanted);
    diag_label(b->context, diag, "predicted by the cost model for %lld tokens", (long long)p->bound);
    if (b->use->node)
        diag_label_at(b->context, diag, use_place(b), "with this schedule");
    if (statement->slot[1])
        diag_note(b->context, diag, "%s", text_of(b->context, node_of(b, statement->slot[1])->text));
    if (budget->metric != metric_bytes && budget->metric != metric_peak_memory)
        note_timeline(b, diag);
    bool hopeless = note_bound(b, diag, budget, value, whole, limit);
    help_budget(b, diag, budget, hopeless);
}

static void check_comparison(struct budget_check *b, node_id id)
{
    struct budget budget;
    struct metric_argument argument;
    double limit;
    if (!read_budget(b->context, &b->program->ast, id, &budget) ||
        !evaluate_limit(b->context, b->program, b->file, &budget, b->names, b->name_count, &limit) ||
        !read_argument(b, &budget, &argument))
        return;
    struct figures serial = {b->figures->serial, b->figures->serial, NAN};
    double value = metric_value(b->figures, budget.metric, &argument);
    if (isnan(value))
        report_absent(b, &budget);
    else if (!holds(budget.compare, value, limit))
        report_missed(b, &budget, value, budget.metric == metric_bytes ? metric_value(&serial, metric_bytes, &argument) : NAN, limit);
}

static void check_condition(struct budget_check *b, node_id id)
{
    const struct ast_node *node = node_of(b, id);
    if (node->kind == NODE_PAREN) {
        check_condition(b, node->slot[0]);
    } else if (node->kind == NODE_BINARY && !strcmp(text_of(b->context, node->text), "and")) {
        check_condition(b, node->slot[0]);
        check_condition(b, node->slot[1]);
    } else {
        check_comparison(b, id);
    }
}

static void check_claim(struct budget_check *b, const struct ir *schedule, uint32_t number)
{
    const struct sched_claim *claim = ROW(schedule, sched_claim, number);
    struct name_value *names = context_alloc(b->context, (claim->names.count + 1) * sizeof *names);
    for (uint32_t i = 0; i < claim->names.count; i++) {
        const struct sched_name *name = ROW(schedule, sched_name, claim->names.first + i);
        names[i] = (struct name_value){intern(b->context, ir_text(schedule, name->name)), name->value};
    }
    b->file = claim->file;
    b->names = names;
    b->name_count = claim->names.count;
    b->statement = claim->node;
    check_condition(b, node_of(b, claim->node)->slot[0]);
}

void check_budgets(struct context *context, const struct program_text *program, const struct ir *module,
                   uint32_t pipeline, uint32_t use, bool at_bound, const struct figures *figures)
{
    struct budget_check b = {.context = context,
                             .program = program,
                             .module = module,
                             .pipeline = ROW(module, mod_pipeline, pipeline),
                             .use = ROW(module, mod_use, use),
                             .figures = figures};
    const struct ir *schedule = figures->prediction->schedule;
    for (uint32_t i = 0; i < COUNT(schedule, sched_claim); i++)
        check_claim(&b, schedule, i);
    if (!at_bound || !b.pipeline->node)
        return;
    b.file = b.pipeline->file;
    b.name_count = 0;
    EACH_NODE(&program->ast, id, node_of(&b, b.pipeline->node)->slot[0])
    {
        if (node_of(&b, id)->kind != NODE_ASSERT)
            continue;
        b.statement = id;
        check_condition(&b, node_of(&b, id)->slot[0]);
    }
}
