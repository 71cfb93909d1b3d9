// Emulated links: messages take what bandwidth, latency and sharing say, also beside compute, and no byte changes.
#include <CUnit/CUnit.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/end_to_end/lab.h"

enum { HIDDEN = 64, BOUND = 96, MOST_RANKS = 4, MESSAGES = 256 };

static moe_plan *compile(const char *cluster, const char *options, const char *schedule, int repeat)
{
    static const struct shape shape = {
        .hidden = HIDDEN, .ffn = 512, .experts = 12, .choices = 3, .bound = BOUND, .dtype = "bf16", .normalize = true};
    char body[512];
    snprintf(body, sizeof body, "device = d; %s", cluster);
    struct routed_layer layer = {.shape = &shape,
                                 .dispatch = options,
                                 .cluster = body,
                                 .repeat = repeat,
                                 .items = "device d { sm = 1; peak = { bf16: 80GFLOPS }; }\n",
                                 .place = strstr(cluster, "gpu") ? "place experts over node, gpu;"
                                                                 : "place experts over node;"};
    struct subject subject = {.text = routed_layer_text(&layer), .schedule = schedule, .layer = -1};
    return subject_compile(&subject);
}

static const char square[] = "axis node[2]; axis gpu[2]; link ib across node { bandwidth: 4MB/s, latency: 200us };\n"
                             "link nv across gpu { bandwidth: 40MB/s, latency: 20us };";

/// Relays, overflow rounds, waves, micro-batches: the bytes of links that take no time.
static void test_bytes(void)
{
    static const struct {
        const char *schedule, *options;
    } cases[] = {{"serial", ""},
                 {"ladder(n: 3)", ""},
                 {"waves(g: 2)", ""},
                 {"ladder(n: 2)", "via: node"},
                 {"waves(g: 2)", "via: node"},
                 {"ladder(n: 2)", "capacity: 0.2x"},
                 {"serial", "capacity: 0.2x"}};
    const int64_t tokens[MOST_RANKS] = {70, 0, BOUND, 9}, sum = 70 + BOUND + 9;
    size_t count = (size_t)sum * HIDDEN;
    float *in = malloc(count * sizeof *in);
    gaussian(in, count, 3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        moe_plan *plan = compile(square, cases[i].options, cases[i].schedule, 1);
        if (!plan)
            continue;
        struct run run = {.in = in, .tokens = tokens, .steps = 2, .options = {.threads = 2, .poison = 1}};
        struct outcome at_once = run_plan_once(plan, &run);
        run.options.emulate_links = 1;
        struct outcome emulated = run_plan_once(plan, &run);
        CU_ASSERT_EQUAL_FATAL(at_once.status, MOE_OK);
        CU_ASSERT_EQUAL_FATAL(emulated.status, MOE_OK);
        CU_ASSERT(!memcmp(at_once.out, emulated.out, count * sizeof *in));
        CU_ASSERT(emulated.stats.bytes_sent == at_once.stats.bytes_sent);
        CU_ASSERT(emulated.stats.comm_s >= 2 * 200e-6);
        outcome_free(&at_once);
        outcome_free(&emulated);
        moe_plan_close(plan);
    }
    free(in);
}

struct message {
    double begin, us, bytes;
    int from, to;
};

static size_t read_messages(const char *path, const char *stage, struct message *messages)
{
    json_t *root = json_load_file(path, 0, NULL), *event;
    size_t count = 0, i;
    CU_ASSERT_PTR_NOT_NULL_FATAL(root);
    json_array_foreach(json_object_get(root, "traceEvents"), i, event) {
        const char *category = json_string_value(json_object_get(event, "cat"));
        const char *name = json_string_value(json_object_get(event, "name"));
        json_t *arguments = json_object_get(event, "args");
        if (!category || strcmp(category, "message") != 0 || strncmp(name, stage, strlen(stage)) != 0 ||
            count == MESSAGES)
            continue;
        messages[count++] = (struct message){json_number_value(json_object_get(event, "ts")),
                                             json_number_value(json_object_get(event, "dur")),
                                             json_number_value(json_object_get(arguments, "bytes")),
                                             (int)json_integer_value(json_object_get(event, "pid")),
                                             (int)json_integer_value(json_object_get(arguments, "to"))};
    }
    json_decref(root);
    return count;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/// A message alone on its links takes latency + bytes / bandwidth: the median to 3 %, none much less.
static void test_times(void)
{
    static const char pair[] = "axis node[2]; link ib across node { bandwidth: 2MB/s, latency: 2ms };";
    const int64_t tokens[2] = {BOUND, BOUND};
    float *in = malloc(2 * BOUND * HIDDEN * sizeof *in);
    gaussian(in, 2 * BOUND * HIDDEN, 4);
    moe_plan *plan = compile(pair, "", "serial", 6);
    struct run run = {.in = in, .tokens = tokens, .trace = lab_file("links.json")};
    run.options = (moe_options){.threads = 2, .trace = 1, .emulate_links = 1, .bind = "core"};
    struct outcome o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL_FATAL(o.status, MOE_OK);
    struct message messages[MESSAGES];
    double ratios[MESSAGES];
    size_t count = read_messages(lab_file("links.json"), "", messages);
    CU_ASSERT_EQUAL(count, 2 * 2 * 6);
    for (size_t i = 0; i < count; i++) {
        ratios[i] = messages[i].us / (2000 + messages[i].bytes / 2);
        CU_ASSERT(ratios[i] > 0.99);
    }
    qsort(ratios, count, sizeof *ratios, by_value);
    fprintf(stderr, "[%.4f of the links' time] ", count ? ratios[count / 2] : 0);
    CU_ASSERT(count && ratios[count / 2] < 1.03);
    outcome_free(&o);
    moe_plan_close(plan);
    free(in);
}

/// Three ranks send to one: each message takes three times as long, on the virtual clock exactly.
static void test_sharing(void)
{
    static const char four[] = "axis node[4]; link ib across node { bandwidth: 2MB/s, latency: 1ms };";
    const int64_t tokens[MOST_RANKS] = {0, 40, 40, 40};
    int32_t ids[120 * 3];
    float weights[120 * 3], *in = calloc(120 * HIDDEN, sizeof *in);
    for (size_t i = 0; i < 120 * 3; i++) {
        ids[i] = i % 3 ? -1 : 0; // an expert of rank 0
        weights[i] = 1;
    }
    moe_plan *plan = compile(four, "capacity: 8x", "serial", 1);
    struct run run = {.in = in, .tokens = tokens, .given_ids = ids, .given_weights = weights};
    run.trace = lab_file("links.json");
    run.options = (moe_options){.device = "sim", .trace = 1};
    struct outcome o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL_FATAL(o.status, MOE_OK);
    struct message messages[MESSAGES];
    size_t count = read_messages(lab_file("links.json"), "dispatch", messages), seen = 0;
    for (size_t i = 0; i < count; i++) {
        if (messages[i].to != 0 || messages[i].from == 0)
            continue;
        CU_ASSERT_DOUBLE_EQUAL(messages[i].us, 1000 + 3 * messages[i].bytes / 2, 150); // beside empty messages to others
        seen++;
    }
    CU_ASSERT_EQUAL(seen, 3);
    outcome_free(&o);
    moe_plan_close(plan);
    free(in);
}

void suite_links(void)
{
    CU_pSuite suite = CU_add_suite("links", NULL, lab_clean_up);
    CU_add_test(suite, "emulated links change no byte", test_bytes);
    CU_add_test(suite, "messages take the links' time", test_times);
    CU_add_test(suite, "senders share a receiver's link", test_sharing);
}
