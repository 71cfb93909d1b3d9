// The rows of a part in pieces, end to end: a dispatch whose pieces are messages of their own, and experts that take them
// piece by piece, give the bytes of one message and one expert whatever overflows, on any number of ranks, in any wire
// format, to copies of experts, and with waves of experts; nothing is lost, and told when it is.
#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/driver.h"
#include "tests/end_to_end/harness.h"

enum { HIDDEN = 64, BOUND = 72, SEED = 5, MOST_RANKS = 4 };

static const char items[] =
    "format row_fp8 = fp8_e4m3 { block: [1, 64], scale: f32 };\n"
    "schedule sent(n: 1..8 = 3) for (route, dispatch, expert, combine) {\n"
    "    split dispatch into n as k; stream comp uses sm; stream more uses sm;\n"
    "    stream tx uses net_out, copy[0]; stream rx uses net_in, net_out, copy[1];\n"
    "    bind route, expert to comp; bind dispatch.pack to more; bind dispatch.send to tx; bind dispatch.recv, combine to rx;\n"
    "    route; for k in 0..n { dispatch.pack[k]; dispatch.send[k] || dispatch.recv[k]; } expert; combine;\n}\n"
    "schedule parts(n: 1..8 = 2, k: 1..8 = 3, c: 1..8 = 2) for (route, dispatch, expert, combine) {\n"
    "    split tokens into n as i; split dispatch into k as d; split combine into c as r;\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
    "    bind route, expert to comp; bind dispatch to tx; bind combine to rx;\n"
    "    for i in 0..n { route[i]; for d in 0..k { dispatch[i,k-1-d]; } }\n"
    "    for i in 0..n { expert[i]; for r in 0..c { combine[i,r]; } }\n}\n"
    "schedule waved(g: 1..8 = 2, n: 1..8 = 3) for (route, dispatch, expert, combine) {\n"
    "    split experts into g as w; split dispatch into n as k; split combine into 2 as c; split expert into 3 as e { ratio: [1, 3, 1] };\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
    "    bind route, expert to comp; bind dispatch to tx; bind combine to rx;\n"
    "    route; for w in 0..g { for k in 0..n { dispatch[w,k]; } }\n"
    "    for w in 0..g { for e in 0..3 { expert[w,e]; } for c in 0..2 { combine[w,c]; } }\n}\n"
    "schedule taken(n: 1..8 = 3, e: 1..8 = 4) for (route, dispatch, expert, combine) {\n"
    "    split dispatch into n as k; split expert into e as t; stream comp uses sm;\n"
    "    stream tx uses net_out, copy[0]; stream rx uses net_in, net_out, copy[1];\n"
    "    bind route, expert to comp; bind dispatch.send to tx; bind dispatch.recv, combine to rx;\n"
    "    route; for k in 0..n { dispatch[k]; } for t in 0..e { expert[t]; } combine;\n}\n"
    "schedule through(i: 1..8 = 2, n: 1..8 = 3) for (route, dispatch, expert, combine) {\n"
    "    split tokens into i as p; split dispatch into n as k; split expert into n as t; split combine into n as c;\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
    "    bind route, expert to comp; bind dispatch to tx; bind combine to rx;\n"
    "    for p in 0..i { route[p]; pipelined k in 0..n { dispatch[p,k+1] || expert[p,k] || combine[p,k-1]; } }\n}\n";

struct setup {
    const char *schedule, *plain; // `plain`: whose bytes it gives
    const char *dispatch, *combine;
    int experts, choices;
    uint32_t ranks;
    const char *place; // NULL: evenly, without copies
};

static const float *tokens_in(void)
{
    static float in[MOST_RANKS * BOUND * HIDDEN];
    gaussian(in, sizeof in / sizeof *in, 1);
    return in;
}

static moe_plan *compile_setup(const struct setup *s, const char *schedule)
{
    struct shape shape = {.hidden = HIDDEN, .ffn = 48, .experts = s->experts, .choices = s->choices, .bound = BOUND, .dtype = "bf16"};
    struct routed_layer layer = {.shape = &shape, .dispatch = s->dispatch, .combine = s->combine, .items = items, .place = s->place};
    return subject_compile(&(struct subject){
        .text = routed_layer_text(&layer), .schedule = schedule, .ranks = s->ranks, .layer = -1, .cpu_level = "v2"}); // quick to compile
}

static struct outcome run_setup(moe_plan *plan, const int64_t *tokens, moe_options options)
{
    options.seed = SEED;
    options.poison = 1;
    return run_plan_once(plan, &(struct run){.in = tokens_in(), .tokens = tokens, .options = options, .steps = 2});
}

static const int64_t counts[][MOST_RANKS] = {{BOUND, 3, 0, 41}, {BOUND, BOUND, BOUND, BOUND}};

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

/// What gives the bytes, compiled once for setups in a row that share it; NULL: the last is no longer needed.
static moe_plan *plain_plan(const struct setup *s)
{
    static struct setup last;
    static moe_plan *plan;
    if (plan && s && same_text(last.plain, s->plain) && same_text(last.dispatch, s->dispatch) &&
        same_text(last.combine, s->combine) && same_text(last.place, s->place) && last.experts == s->experts && last.choices == s->choices && last.ranks == s->ranks)
        return plan;
    moe_plan_close(plan);
    last = s ? *s : (struct setup){.plain = NULL};
    plan = s ? compile_setup(s, s->plain) : NULL;
    return plan;
}

static void expect_same(const struct setup *s)
{
    moe_plan *plan = compile_setup(s, s->schedule), *plain = plain_plan(s);
    for (size_t c = 0; c < sizeof counts / sizeof *counts && plan && plain; c++) {
        struct outcome want = run_setup(plain, counts[c], (moe_options){.threads = 2});
        CU_ASSERT_EQUAL(want.status, MOE_OK);
        for (int device = 0; device < 2; device++) {
            struct outcome o = run_setup(plan, counts[c], (moe_options){.threads = 2, .device = device ? "sim" : NULL, .jitter = 7});
            bool same = outcome_equal(&o, &want);
            CU_ASSERT(same);
            if (!same)
                fprintf(stderr, "%s (%s) on %u ranks, counts %zu: %s%s\n", s->schedule, s->dispatch ? s->dispatch : "", s->ranks,
                        c, o.error, want.error);
            CU_ASSERT(o.stats.overflowed == want.stats.overflowed && o.stats.rounds == want.stats.rounds);
            outcome_free(&o);
        }
        outcome_free(&want);
    }
    moe_plan_close(plan);
}

static void test_ranks(void)
{
    for (uint32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
        if (ranks % 2 == 0) {
            expect_same(&(struct setup){"sent(n: 3)", "serial", "capacity: 8x", NULL, 12, 3, ranks, NULL});
            expect_same(&(struct setup){"parts(n: 3, c: 4)", "serial", "capacity: 8x", NULL, 12, 3, ranks, NULL});
        }
        expect_same(&(struct setup){"through(n: 4)", "serial", "capacity: 8x", NULL, 12, 3, ranks, NULL});
    }
}

/// Overflow is the part's, not the piece's: the same rows go in the same rounds.
static void test_overflow(void)
{
    static const char *const tight[] = {"capacity: 0.5x", "capacity: 0.1x, pool: 0.02x"};
    for (size_t i = 0; i < sizeof tight / sizeof *tight; i++) {
        expect_same(&(struct setup){"sent(n: 8)", "serial", tight[i], NULL, 16, 4, 4, NULL});
        expect_same(&(struct setup){"taken(n: 2, e: 5)", "serial", tight[i], NULL, 16, 4, 4, NULL});
        expect_same(&(struct setup){"parts(n: 1, c: 3)", "serial", tight[i], NULL, 16, 4, 3, NULL});
        expect_same(&(struct setup){"waved(g: 3)", "waves(g: 3)", tight[i], NULL, 16, 4, 4, NULL});
    }
}

static void test_formats(void)
{
    expect_same(&(struct setup){"sent(n: 4)", "serial", "wire: row_fp8", "wire: row_fp8", 12, 3, 4, NULL});
    expect_same(&(struct setup){"through(i: 1, n: 8)", "serial", "capacity: 0.4x, wire: row_fp8", "wire: row_fp8", 12, 3, 4, NULL});
    expect_same(&(struct setup){"waved(g: 2, n: 4)", "waves(g: 2)", "capacity: 0.3x, wire: row_fp8", NULL, 12, 3, 4, NULL});
}

/// A token may have several rows for a rank, all of one piece.
static void test_copies(void)
{
    static const char place[] = "place experts over rank; replicate experts { copies: 2 };";
    expect_same(&(struct setup){"through(i: 1, n: 5)", "serial", "capacity: 0.3x", NULL, 12, 4, 4, place});
    expect_same(&(struct setup){"taken(n: 2, e: 3)", "serial", "capacity: 0.3x", NULL, 12, 4, 4, place});
    expect_same(&(struct setup){"waved(g: 3)", "waves(g: 3)", "capacity: 0.3x", NULL, 12, 4, 4, place});
}

static void test_waves(void)
{
    expect_same(&(struct setup){"waved(g: 2)", "waves(g: 2)", NULL, NULL, 12, 3, 4, NULL});
    expect_same(&(struct setup){"waved(g: 4, n: 2)", "waves(g: 4)", NULL, NULL, 16, 16, 2, NULL});
    plain_plan(NULL);
}

/// Headers and cuts of pieces do not pass relays yet: said where the relays are asked for.
static void test_relays(void)
{
    static const char square[] = "device = host; axis node[2]; axis gpu[2];\n"
                                 "    link ib across node { bandwidth: 1GB/s, latency: 20us };\n"
                                 "    link nv across gpu { bandwidth: 100GB/s, latency: 0us };";
    static const char *const uses[] = {"use serial;", "use sent;", "use taken(n: 1);"};
    struct shape shape = {.hidden = HIDDEN, .ffn = 48, .experts = 12, .choices = 3, .bound = BOUND, .dtype = "bf16"};
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        const char *text = routed_layer_text(&(struct routed_layer){.shape = &shape,
                                                                    .dispatch = "via: node",
                                                                    .items = items,
                                                                    .cluster = square,
                                                                    .place = "place experts over node, gpu;",
                                                                    .uses = uses[i]});
        uint32_t unbuilt;
        CU_ASSERT_EQUAL(subject_check(text, &unbuilt), i > 0 ? EXIT_INPUT : EXIT_FINE);
        CU_ASSERT_EQUAL(unbuilt, i > 0);
    }
}

static void test_faults(void)
{
    static const char *const kinds[] = {"drop", "double", "misroute"};
    struct setup s = {"through(i: 1)", NULL, NULL, NULL, 12, 3, 4, NULL};
    moe_plan *plan = compile_setup(&s, s.schedule);
    for (size_t k = 0; k < 3 && plan; k++)
        for (int rank = 0; rank < MOST_RANKS; rank++) {
            char fault[32];
            snprintf(fault, sizeof fault, "%s:%d", kinds[k], rank);
            struct outcome o = run_setup(plan, counts[1], (moe_options){.threads = 2, .fault = fault});
            CU_ASSERT_EQUAL(o.status, MOE_LOST);
            outcome_free(&o);
        }
    moe_plan_close(plan);
}

void suite_pieces(void);
void suite_pieces(void)
{
    CU_pSuite suite = CU_add_suite("pieces", NULL, NULL);
    CU_add_test(suite, "the bytes of serial on 1 to 4 ranks", test_ranks);
    CU_add_test(suite, "the same rows overflow", test_overflow);
    CU_add_test(suite, "wire formats", test_formats);
    CU_add_test(suite, "copies of experts", test_copies);
    CU_add_test(suite, "pieces of waves", test_waves);
    CU_add_test(suite, "not through relays", test_relays);
    CU_add_test(suite, "what is lost is told", test_faults);
}
