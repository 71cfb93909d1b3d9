// Overflow rounds, predicted and run: for the routes that a step takes, `simulate --load` with those routes comes near their
// number, with waves of experts, through relays, to copies of experts, with micro-batches, and where experts take rows in pieces.
#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/weights/safetensors.h"
#include "tests/end_to_end/harness.h"
#include "tests/simulate/fixture.h"

enum { RANKS = 4, BOUND = 1024, HIDDEN = 16, EXPERTS = 16, CHOICES = 3, TOKENS = RANKS * BOUND };

static const char square[] = "device = host; axis node[2]; axis gpu[2];\n"
                             "    link ib across node { bandwidth: 1GB/s, latency: 20us };\n"
                             "    link nv across gpu { bandwidth: 100GB/s, latency: 0us };";

static const char items[] =
    "schedule rows for (route, dispatch, expert, combine) {\n"
    "    split dispatch into 3 as k; split expert into 4 as t { ratio: [1, 2, 2, 3] }; split combine into 2 as c;\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0];\n"
    "    bind route, expert to comp; bind dispatch, combine to tx;\n"
    "    route; for k in 0..3 { dispatch[k]; } for t in 0..4 { expert[t]; } for c in 0..2 { combine[c]; }\n}\n";

/// Distinct experts of every token, lower ones more often.
static void draw_routes(int32_t *ids, float *weights)
{
    uint64_t state = 7;
    for (size_t i = 0; i < (size_t)TOKENS * CHOICES; i++) {
        bool again = true;
        while (again) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            double u = (double)(state >> 40) / (double)(1 << 24);
            ids[i] = (int32_t)((double)EXPERTS * (0.4 * u + 0.6 * u * u));
            again = false;
            for (size_t j = i / CHOICES * CHOICES; j < i; j++)
                again = again || ids[j] == ids[i];
        }
        weights[i] = 0.25f;
    }
}

static double predicted_rounds(const char *text, const int32_t *ids)
{
    char path[64], error[256];
    snprintf(path, sizeof path, "/tmp/rounds_%ld.safetensors", (long)getpid());
    struct tensor tensor = {.name = "topk_ids", .dtype = "I32", .dims = 2, .shape = {TOKENS, CHOICES}, .data = ids,
                            .bytes = (size_t)TOKENS * CHOICES * sizeof *ids};
    CU_ASSERT_TRUE(tensors_write(path, &tensor, 1, error, sizeof error));
    struct simulated o = simulate_source_loaded(text, path);
    CU_ASSERT_EQUAL(o.code, EXIT_FINE);
    double rounds = o.code == EXIT_FINE ? figure(o.out, NULL, "overflow_rounds") : -1;
    simulated_free(&o);
    unlink(path);
    return rounds;
}

static void test_rounds_run(void)
{
    static const struct {
        const char *uses, *dispatch, *copies;
        double most_off; // share of those that are run
    } cases[] = {{"use serial;", "", "", 0.05},
                 {"use ladder(n: 3);", "", "", 0.05},
                 {"use rows;", "", "", 0.05},
                 {"use waves(g: 2);", "", "", 0.1},
                 {"use waves(g: 4);", "", "", 0.1},
                 {"use ladder(n: 2);", ", via: node", "", 0.05},
                 {"use waves(g: 2);", ", via: node", "", 0.1},
                 {"use waves(g: 4);", ", via: node", "", 0.15},
                 {"use serial;", "", " replicate experts { copies: 2 };", 0.1},
                 {"use waves(g: 2);", "", " replicate experts { copies: 2 };", 0.2},
                 {"use serial;", ", via: node", " replicate experts { copies: 2 };", 0.1}};
    static const int64_t tokens[RANKS] = {BOUND, BOUND, BOUND, BOUND};
    static float in[TOKENS * HIDDEN], weights[TOKENS * CHOICES];
    static int32_t ids[TOKENS * CHOICES];
    static const struct shape shape = {
        .hidden = HIDDEN, .ffn = 8, .experts = EXPERTS, .choices = CHOICES, .bound = BOUND, .dtype = "bf16", .normalize = true};
    gaussian(in, sizeof in / sizeof *in, 3);
    draw_routes(ids, weights);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dispatch[128], place[128];
        snprintf(dispatch, sizeof dispatch, "capacity: 0.4x, pool: 0.02x%s", cases[i].dispatch);
        snprintf(place, sizeof place, "place experts over node, gpu;%s", cases[i].copies);
        const char *text = routed_layer_text(&(struct routed_layer){
            .shape = &shape, .dispatch = dispatch, .items = items, .cluster = square, .place = place, .uses = cases[i].uses});
        double rounds = predicted_rounds(text, ids);
        moe_plan *plan = subject_compile(&(struct subject){.text = text, .layer = -1, .cpu_level = "v2"});
        CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
        struct run run = {.in = in, .tokens = tokens, .given_ids = ids, .given_weights = weights, .options = {.threads = 2, .seed = 5}};
        struct outcome o = run_plan_once(plan, &run);
        CU_ASSERT_EQUAL(o.status, MOE_OK);
        double off = fabs(rounds - (double)o.stats.rounds) / (double)o.stats.rounds;
        bool near = o.stats.rounds > 10 && off <= cases[i].most_off;
        CU_ASSERT_TRUE(near);
        if (!near || getenv("MOE_ROUNDS"))
            fprintf(stderr, "%s%s%s: %.0f rounds predicted, %lld run\n", cases[i].uses, cases[i].dispatch, cases[i].copies, rounds,
                    (long long)o.stats.rounds);
        outcome_free(&o);
        moe_plan_close(plan);
    }
}

void suite_rounds(void);
void suite_rounds(void)
{
    CU_pSuite suite = CU_add_suite("rounds", NULL, NULL);
    CU_add_test(suite, "as many overflow rounds as are predicted", test_rounds_run);
}
