// Schedules: what elaboration issues, what is refused and where, and that waits and closure say no more and no less than
// streams and edges imply.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "compiler/schedule/schedule.h"
#include "tests/schedule/schedule_texts.h"
#include "tests/schedule/split_texts.h"
#include "tests/printed.h"

struct subject {
    struct context context;
    struct program_text program;
    struct ir module, graph, schedule;
    bool checked, graphed, legal;
    char *errors; // every diagnostic as text
};

static const char *write_source(const char *text)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/schedule_%ld.moe", (long)getpid());
    FILE *file = fopen(path, "w");
    if (file) {
        fputs(text, file);
        fclose(file);
    }
    return path;
}

static bool run(struct subject *s, const char *path, uint32_t layers)
{
    struct rows pipelines;
    struct check_options options = {.layer = -1};
    ir_init(&s->module, &module_ir);
    if (!load_program(&s->context, &s->program, path) ||
        !check_program(&s->context, &s->program, &options, &s->module, &pipelines) || !pipelines.count)
        return false;
    s->checked = true;
    const struct mod_pipeline *row = ROW(&s->module, mod_pipeline, pipelines.first);
    uint32_t use = row->uses.first, layer = row->layer;
    s->graphed = true;
    if (!build_graph(&s->context, &s->program, &s->module, layer, ROW(&s->module, mod_use, use)->schedule, &s->graph))
        return false;
    int64_t bound = ROW(&s->module, mod_layer, layer)->tokens_bound;
    return elaborate(&s->context, &s->program, &s->module, &s->graph, use, layers, bound, NULL, &s->schedule) &&
           prove(&s->context, &s->program, &s->module, &s->graph, &s->schedule) &&
           place_waits(&s->context, &s->graph, &s->schedule);
}

/// `text` begins the file; what every test shares (a layer, a placement, a pipeline with `use`) follows it.
static void subject_make(struct subject *s, const char *text, const char *layer, const char *use, uint32_t layers,
                         enum diag_format format)
{
    memset(s, 0, sizeof *s);
    context_init(&s->context);
    char *source = NULL;
    if (asprintf(&source, "%s%s%s%s%s", text, PRELUDE, layer, PIPELINE_BEFORE_USE, use) < 0)
        return;
    const char *path = write_source(source);
    free(source);
    if (setjmp(s->context.fatal) == 0)
        s->legal = run(s, path, layers);
    else
        CU_FAIL("fatal");
    s->errors = printed_diagnostics(&s->context, format);
    unlink(path);
}

static void subject_free(struct subject *s)
{
    ir_free(&s->schedule);
    ir_free(&s->graph);
    ir_free(&s->module);
    context_free(&s->context);
    free(s->errors);
}

// What is issued.

/// One line a stream: `comp: route[0] route[1] L1.route[0]`; layers above the first are marked.
static char *streams_text(const struct ir *schedule)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    for (uint32_t s = 0; s < COUNT(schedule, sched_stream); s++) {
        const struct sched_stream *stream = ROW(schedule, sched_stream, s);
        fprintf(out, "%s:", ir_text(schedule, stream->name));
        for (uint32_t i = 0; i < stream->order.count; i++) {
            uint32_t number = ROW(schedule, sched_slot, stream->order.first + i)->instance;
            const struct sched_instance *instance = ROW(schedule, sched_instance, number);
            fprintf(out, " ");
            if (instance->layer)
                fprintf(out, "L%u.", instance->layer);
            fprintf(out, "%s", ir_text(schedule, instance->label));
        }
        fprintf(out, "\n");
    }
    fclose(out);
    return text;
}

static void check_round_trip(const struct ir *ir, const struct ir_type *type)
{
    char *text = printed_ir(ir), error[256] = "";
    struct ir copy;
    bool parsed = ir_parse(&copy, type, text, error, sizeof error);
    CU_ASSERT_TRUE(parsed);
    if (!parsed)
        fprintf(stderr, "%s\n", error);
    char *again = printed_ir(&copy);
    CU_ASSERT_STRING_EQUAL(text, again);
    ir_free(&copy);
    free(again);
    free(text);
}

static void expect_streams(const char *text, const char *layer, const char *use, uint32_t layers, const char *expected)
{
    struct subject s;
    char error[256] = "";
    subject_make(&s, text, layer, use, layers, DIAG_TEXT);
    CU_ASSERT_TRUE(s.legal);
    if (!s.legal)
        fprintf(stderr, "\n%s\n%s", use, s.errors);
    else {
        CU_ASSERT_TRUE(graph_check(&s.graph, error, sizeof error));
        CU_ASSERT_TRUE(schedule_check(&s.graph, &s.schedule, error, sizeof error));
        if (*error)
            fprintf(stderr, "%s\n", error);
        char *streams = streams_text(&s.schedule);
        if (expected) {
            CU_ASSERT_STRING_EQUAL(streams, expected);
            if (strcmp(streams, expected) != 0)
                fprintf(stderr, "\n%s, %u layers\nexpected\n%sfound\n%s", use, layers, expected, streams);
        }
        free(streams);
        check_round_trip(&s.graph, &graph_ir);
        check_round_trip(&s.schedule, &schedule_ir);
    }
    subject_free(&s);
}

static void test_streams(void)
{
    for (size_t i = 0; i < sizeof stream_cases / sizeof *stream_cases; i++) {
        const struct stream_case *c = &stream_cases[i];
        expect_streams(c->text, c->layer ? c->layer : LAYER, c->use, c->layers, c->streams);
    }
}

static void test_ladders(void)
{
    for (int n = 2; n <= 8; n++) {
        char use[64];
        snprintf(use, sizeof use, "use ladder(n: %d); }\n", n);
        expect_streams("", LAYER, use, 1, NULL);
        expect_streams("", LAYER, use, 3, NULL);
    }
}

static void test_graph(void)
{
    struct subject s;
    subject_make(&s, "", SHARED_LAYER, "use serial; }\n", 1, DIAG_TEXT);
    CU_ASSERT_TRUE_FATAL(s.legal);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    for (uint32_t t = 0; t < COUNT(&s.graph, graph_task); t++) {
        const struct graph_task *task = ROW(&s.graph, graph_task, t);
        fprintf(out, "%s.%s:", ir_text(&s.graph, task->stage), phase_words[task->phase]);
        for (uint32_t i = 0; i < task->reads.count; i++) {
            uint32_t value = ROW(&s.graph, graph_use, task->reads.first + i)->value;
            fprintf(out, " %s", ir_text(&s.graph, ROW(&s.graph, graph_value, value)->name));
        }
        for (uint32_t i = 0; i < task->writes.count; i++) {
            uint32_t value = ROW(&s.graph, graph_use, task->writes.first + i)->value;
            fprintf(out, " -> %s", ir_text(&s.graph, ROW(&s.graph, graph_value, value)->name));
        }
        fprintf(out, " %g %g\n", task->flops_per_token, task->bytes_per_token);
    }
    fclose(out);
    CU_ASSERT_STRING_EQUAL(text, SHARED_GRAPH);
    if (strcmp(text, SHARED_GRAPH) != 0)
        fprintf(stderr, "\n%s", text);
    free(text);
    subject_free(&s);
}

// What is refused.

/// "E0304 2:5" of the first diagnostic, from its short form `path:line:col: error[CODE]: ...`.
static void first_error(const char *errors, char *text, size_t size)
{
    unsigned line = 0, column = 0;
    char code[16] = "";
    const char *rest = strstr(errors, ".moe:");
    if (!rest || sscanf(rest, ".moe:%u:%u: error[%5[E0-9]]", &line, &column, code) != 3)
        snprintf(text, size, "%s", *errors ? "another text" : "legal");
    else
        snprintf(text, size, "%s %u:%u", code, line, column);
}

static void expect_refused(const struct schedule_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct subject s;
        char found[32];
        subject_make(&s, cases[i].text, cases[i].layer ? cases[i].layer : LAYER, "use s; }\n", 2, DIAG_SHORT);
        first_error(s.errors, found, sizeof found);
        bool one = s.context.error_count == 1; // error a mistake
        CU_ASSERT_FALSE(s.legal);
        CU_ASSERT_STRING_EQUAL(found, cases[i].error);
        CU_ASSERT_TRUE(one);
        if (strcmp(found, cases[i].error) != 0 || !one)
            fprintf(stderr, "\nexpected %s, found %s\n%s%s", cases[i].error, found, cases[i].text, s.errors);
        subject_free(&s);
    }
}

static void test_refused(void)
{
    expect_refused(refused, sizeof refused / sizeof *refused);
    expect_refused(split_refused, sizeof split_refused / sizeof *split_refused);
}

static void test_accepted(void)
{
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++)
        for (uint32_t layers = 1; layers <= 3; layers += 2)
            expect_streams(accepted[i].text, accepted[i].layer ? accepted[i].layer : LAYER, "use s; }\n", layers, NULL);
    for (size_t i = 0; i < sizeof split_accepted / sizeof *split_accepted; i++)
        for (uint32_t layers = 1; layers <= 4; layers += layers)
            expect_streams(split_accepted[i].text, split_accepted[i].layer ? split_accepted[i].layer : LAYER,
                           "use s; }\n", layers, NULL);
}

/// Legal, but sides of `||` whose streams order them: "" for what is left alone.
static void test_serial_sides(void)
{
    static const char *const cases[][2] = {
        {SPLIT(2) "route[0] -> route[1]; dispatch[1] || expert[0]; dispatch[0]; expert[1]; combine[0]; combine[1]; }\n",
         "warning[E0301]: `dispatch[1]` and `expert[0]` will not overlap"},
        {SPLIT(2) "route[0] -> route[1]; dispatch[0]; dispatch[1] || expert[0]; expert[1]; combine[0]; combine[1]; }\n", ""},
        {SPLIT(3) "pipelined i in 0..3 { route[i+2]; dispatch[i+1] || expert[i] || combine[i-1]; } }\n", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct subject s;
        subject_make(&s, cases[i][0], LAYER, "use s; }\n", 2, DIAG_SHORT);
        CU_ASSERT_TRUE(s.legal);
        CU_ASSERT_EQUAL(s.context.warning_count, *cases[i][1] != 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(s.errors, cases[i][1]));
        subject_free(&s);
    }
}

/// The file's name is left out of the comparison.
static char *without_path(char *text)
{
    const char *path = write_source("");
    unlink(path);
    for (char *at; (at = strstr(text, path));)
        memmove(at, at + strlen(path), strlen(at + strlen(path)) + 1);
    return text;
}

static void test_diagnostics(void)
{
    for (size_t i = 0; i < sizeof full_texts / sizeof *full_texts; i++) {
        struct subject s;
        subject_make(&s, full_texts[i].text, LAYER, "use s; }\n", 1, DIAG_TEXT);
        CU_ASSERT_FALSE(s.legal);
        without_path(s.errors);
        CU_ASSERT_STRING_EQUAL(s.errors, full_texts[i].errors);
        if (strcmp(s.errors, full_texts[i].errors) != 0)
            fprintf(stderr, "\nexpected\n%s\nfound\n%s", full_texts[i].errors, s.errors);
        subject_free(&s);
    }
}

// Waits and closure against brute force.

enum { NODES_MAX = 256 };
static bool reach[2 * NODES_MAX][2 * NODES_MAX];

static void close_reach(uint32_t count)
{
    for (uint32_t k = 0; k < count; k++)
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t j = 0; j < count && reach[i][k]; j++)
                reach[i][j] = reach[i][j] || reach[k][j];
}

static void add_streams(const struct ir *schedule, uint32_t copies)
{
    uint32_t count = COUNT(schedule, sched_instance);
    memset(reach, 0, sizeof reach);
    for (uint32_t s = 0; s < COUNT(schedule, sched_stream); s++) {
        struct rows order = ROW(schedule, sched_stream, s)->order;
        for (uint32_t i = 1; i < order.count; i++)
            for (uint32_t c = 0; c < copies; c++)
                reach[c * count + ROW(schedule, sched_slot, order.first + i - 1)->instance]
                     [c * count + ROW(schedule, sched_slot, order.first + i)->instance] = true;
    }
}

/// Streams and all waits but `without`.
static void waits_reach(const struct ir *schedule, uint32_t without)
{
    add_streams(schedule, 1);
    for (uint32_t i = 0; i < COUNT(schedule, sched_wait); i++) {
        const struct sched_wait *wait = ROW(schedule, sched_wait, i);
        if (i != without)
            reach[wait->from][wait->to] = true;
    }
    close_reach(COUNT(schedule, sched_instance));
}

static bool every_edge_implied(const struct ir *schedule)
{
    for (uint32_t i = 0; i < COUNT(schedule, sched_edge); i++) {
        const struct sched_edge *edge = ROW(schedule, sched_edge, i);
        if (edge->why != edge_message && !reach[edge->from][edge->to])
            return false;
    }
    return true;
}

static bool closure_agrees(struct context *context, const struct ir *graph, const struct ir *schedule)
{
    uint32_t count = COUNT(schedule, sched_instance);
    struct order_closure *closure = order_closure_make(context, graph, schedule);
    if (!closure)
        return false;
    for (int messages = 0; messages < 2; messages++) {
        add_streams(schedule, 2);
        for (uint32_t i = 0; i < COUNT(schedule, sched_edge); i++) {
            const struct sched_edge *edge = ROW(schedule, sched_edge, i);
            for (uint32_t c = 0; c < 2; c++)
                if (edge->why != edge_message)
                    reach[c * count + edge->from][c * count + edge->to] = true;
                else if (messages)
                    reach[c * count + edge->from][(1 - c) * count + edge->to] = true;
        }
        close_reach(2 * count);
        for (uint32_t a = 0; a < count; a++)
            for (uint32_t b = 0; b < count; b++)
                if (reach[a][messages ? count + b : b] != ordered(closure, a, b, messages))
                    return false;
    }
    return true;
}

struct random {
    uint64_t state;
};

static uint32_t below(struct random *random, uint32_t limit)
{
    random->state = random->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random->state >> 33) % limit;
}

static const char *const whole_stages[] = {"route", "dispatch", "expert", "combine", NULL};
static const char *const split_stages[] = {"route", "dispatch.send", "dispatch.recv", "expert", "combine", NULL};

/// The parts in some order, the same for every stage.
static void shuffle(struct random *random, uint32_t *parts, uint32_t count)
{
    for (uint32_t p = 0; p < count; p++)
        parts[p] = p;
    for (uint32_t p = 0; p < count; p++) {
        uint32_t other = below(random, count), swap = parts[p];
        parts[p] = parts[other];
        parts[other] = swap;
    }
}

/// Stages of all parts in some order that respects the data, with barriers and `order` statements that follow the text.
static void random_body(struct random *random, const char *const *stages, uint32_t stage_count, uint32_t parts,
                        FILE *out)
{
    uint32_t order[8], done[8] = {0}, last_stage = 0, last_part = 0;
    shuffle(random, order, parts);
    for (uint32_t issued = 0; issued < stage_count * parts; issued++) {
        uint32_t stage = below(random, stage_count);
        while (done[stage] == parts || (stage > 0 && done[stage - 1] <= done[stage]))
            stage = (stage + stage_count - 1) % stage_count;
        uint32_t part = order[done[stage]++];
        fprintf(out, "  %s[%u];\n", stages[stage], part);
        if (issued && below(random, 5) == 0)
            fprintf(out, "  order %s[%u] before %s[%u];\n", stages[last_stage], last_part, stages[stage], part);
        if (below(random, 8) == 0)
            fprintf(out, "  sync;\n");
        last_stage = stage;
        last_part = part;
    }
}

/// A legal schedule on some streams.
static char *random_schedule(struct random *random)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    uint32_t parts = 1 + below(random, 4), streams = 1 + below(random, 4), count = 0;
    const char *const *stages = below(random, 3) ? whole_stages : split_stages;
    fprintf(out, "schedule s for moe {\n  split tokens into %u as i;\n", parts);
    for (uint32_t i = 0; i < streams; i++)
        fprintf(out, "  stream s%u uses sm, net_out, net_in, copy[0];\n", i);
    for (; stages[count]; count++)
        fprintf(out, "  bind %s to s%u { sm: %u };\n", stages[count], below(random, streams), 8 * below(random, 2));
    random_body(random, stages, count, parts, out);
    fprintf(out, "}\n");
    fclose(out);
    return text;
}

static void test_waits(void)
{
    struct random random = {1};
    for (int turn = 0; turn < 150; turn++) {
        char *text = random_schedule(&random), error[256] = "";
        struct subject s;
        subject_make(&s, text, LAYER, "use s; }\n", 1 + below(&random, 3), DIAG_TEXT);
        bool good = s.legal && schedule_check(&s.graph, &s.schedule, error, sizeof error);
        if (good) {
            waits_reach(&s.schedule, NONE);
            good = every_edge_implied(&s.schedule);
            for (uint32_t w = 0; w < COUNT(&s.schedule, sched_wait) && good; w++) {
                waits_reach(&s.schedule, w);
                good = !every_edge_implied(&s.schedule);
            }
            good = good && closure_agrees(&s.context, &s.graph, &s.schedule);
        }
        CU_ASSERT_TRUE(good);
        if (!good)
            fprintf(stderr, "\n%s%s%s\n", text, s.errors, error);
        subject_free(&s);
        free(text);
    }
}

static void test_large(void)
{
    struct subject s;
    struct timespec start, end;
    subject_make(&s, "", LAYER, "use ladder(n: 8); }\n", 1, DIAG_TEXT);
    CU_ASSERT_TRUE_FATAL(s.legal);
    ir_free(&s.schedule);
    clock_gettime(CLOCK_MONOTONIC, &start);
    bool good = elaborate(&s.context, &s.program, &s.module, &s.graph, 0, 61, 4096, NULL, &s.schedule) &&
                prove(&s.context, &s.program, &s.module, &s.graph, &s.schedule) &&
                place_waits(&s.context, &s.graph, &s.schedule);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ms = 1e3 * (double)(end.tv_sec - start.tv_sec) + 1e-6 * (double)(end.tv_nsec - start.tv_nsec);
    CU_ASSERT_TRUE(good);
    CU_ASSERT_EQUAL(COUNT(&s.schedule, sched_instance), 61 * 8 * 8);
    CU_ASSERT_PTR_NOT_NULL(order_closure_make(&s.context, &s.graph, &s.schedule));
    CU_ASSERT_TRUE(ms < 2000); // some milliseconds; sanitizers and busy machines take longer
    if (getenv("SCHEDULE_TIMES"))
        fprintf(stderr, "61 layers, 8 parts: %.1f ms, %u waits, %u edges\n", ms, COUNT(&s.schedule, sched_wait),
                COUNT(&s.schedule, sched_edge));
    subject_free(&s);
}

void suite_schedule(void);
void suite_schedule(void)
{
    CU_pSuite suite = CU_add_suite("schedule", NULL, NULL);
    CU_add_test(suite, "the graph of a layer", test_graph);
    CU_add_test(suite, "stream contents", test_streams);
    CU_add_test(suite, "ladders of 2 to 8 parts", test_ladders);
    CU_add_test(suite, "refused schedules", test_refused);
    CU_add_test(suite, "sides that cannot overlap", test_serial_sides);
    CU_add_test(suite, "accepted schedules", test_accepted);
    CU_add_test(suite, "texts of diagnostics", test_diagnostics);
    CU_add_test(suite, "fewest waits, closure", test_waits);
    CU_add_test(suite, "61 layers of 8 parts", test_large);
}
