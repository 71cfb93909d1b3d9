// Expert waves, end to end: the same bytes for any threads, device, capacity, order and further split; close to a scalar
// reference; nothing lost, and told when it is; a row travels once.
#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/end_to_end/harness.h"
#include "tests/end_to_end/reference.h"

enum { HIDDEN = 64, FFN = 48, BOUND = 150, SEED = 5, RANKS = 4 };

// Expert order reversed, merges on a stream of their own; waves and micro-batches together, either one outside.
static const char schedules[] =
    "schedule backwards(g: 1..16 = 3) for (route, dispatch, expert, combine) {\n"
    "    split experts into g as w;\n"
    "    stream comp uses sm; stream more uses sm;\n"
    "    stream tx uses sm, net_out, net_in, copy[0]; stream rx uses sm, net_out, net_in, copy[1];\n"
    "    bind route, expert to comp; bind dispatch to tx { sm: 4 };\n"
    "    bind combine.send, combine.recv to rx; bind combine.merge to more;\n"
    "    route; for w in 0..g { dispatch[w]; }\n"
    "    for w in 0..g { expert[g-1-w]; combine.send[g-1-w]; combine.recv[g-1-w]; }\n"
    "    for w in 0..g { combine.merge[w]; }\n}\n"
    "schedule both(n: 1..8 = 2, g: 1..16 = 2) for (route, dispatch, expert, combine) {\n"
    "    split tokens into n as i; split experts into g as w;\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
    "    bind route, expert to comp; bind dispatch to tx; bind combine to rx { sm: 2 };\n"
    "    for i in 0..n { route[i]; pipelined w in 0..g { dispatch[i,w+1] || expert[i,w] || combine[i,w-1]; } }\n}\n"
    "schedule outside(n: 1..8 = 2, g: 1..16 = 2) for (route, dispatch, expert, combine) {\n"
    "    split experts into g as w; split tokens into n as i;\n"
    "    stream comp uses sm; stream tx[2] uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
    "    bind route, expert to comp; bind dispatch to tx; bind combine to rx;\n"
    "    for i in 0..n { route[i]; }\n"
    "    for w in 0..g { for i in 0..n { dispatch[w,i] on tx[w mod 2]; } for i in 0..n { expert[w,i]; combine[w,i]; } }\n"
    "}\n"
    "schedule chunks(n: 1..8 = 2, g: 1..16 = 2) for (route, dispatch, expert, combine) {\n"
    "    split tokens into n as i; split experts into g as w; split combine into 3 as k { ratio: [1, 3, 2] };\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
    "    bind route, expert to comp; bind dispatch to tx; bind combine to rx;\n"
    "    for i in 0..n { route[i]; for w in 0..g { dispatch[i,w]; } }\n"
    "    for i in 0..n { for w in 0..g { expert[i,w]; for k in 0..3 { combine[i,w,2-k]; } } }\n}\n"
    "schedule uneven_waves(n: 1..8 = 1, a: 1..9 = 1, b: 1..9 = 3) for (route, dispatch, expert, combine) {\n"
    "    split tokens into n as i; split experts into 3 as w { ratio: [a, b, 1] };\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
    "    bind route, expert to comp; bind dispatch to tx; bind combine to rx;\n"
    "    for i in 0..n { route[i]; pipelined w in 0..3 { dispatch[i,w+1] || expert[i,w] || combine[i,w-1]; } }\n}\n"
    "schedule lagging(n: 1..8 = 2, g: 1..16 = 2) for (route, dispatch, expert, combine) {\n"
    "    split tokens into n as i; split experts into g as w; stream comp uses sm; stream more uses sm;\n"
    "    stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
    "    bind route, expert.up to comp; bind expert.down to more; bind dispatch to tx; bind combine to rx;\n"
    "    for i in 0..n { route[i]; for w in 0..g { dispatch[i,w]; } }\n"
    "    for i in 0..n { pipelined w in 0..g { expert.up[i,w] || expert.down[i,w-2]; combine[i,w-2]; } }\n}\n";

struct setup {
    const char *dtype, *dispatch, *schedule;
    int experts, choices;
    uint32_t ranks;
};

static struct shape shape_of(const struct setup *s)
{
    return (struct shape){.hidden = HIDDEN,
                          .ffn = FFN,
                          .experts = s->experts,
                          .choices = s->choices,
                          .bound = BOUND,
                          .dtype = s->dtype,
                          .normalize = true};
}

static moe_plan *compile_setup(const struct setup *s)
{
    struct shape shape = shape_of(s);
    struct routed_layer layer = {.shape = &shape, .dispatch = s->dispatch, .items = schedules};
    struct subject subject = {
        .text = routed_layer_text(&layer), .schedule = s->schedule, .ranks = s->ranks, .layer = -1};
    return subject_compile(&subject);
}

static const float *tokens_in(const char *dtype)
{
    static float in[8 * BOUND * HIDDEN];
    gaussian(in, sizeof in / sizeof *in, 1);
    round_to_dtype(dtype, in, sizeof in / sizeof *in);
    return in;
}

static struct outcome run_compiled(const struct setup *s, moe_plan *plan, const int64_t *tokens, moe_options options)
{
    struct outcome o = {.status = MOE_INVALID};
    if (!plan)
        return o;
    options.seed = SEED;
    options.poison = 1;
    struct run run = {.in = tokens_in(s->dtype), .tokens = tokens, .options = options, .steps = 2};
    o = run_plan_once(plan, &run);
    if (o.status != MOE_OK && !options.fault)
        fprintf(stderr, "%s: %s\n", s->schedule, o.error);
    return o;
}

static struct outcome run_setup(const struct setup *s, const int64_t *tokens, moe_options options)
{
    moe_plan *plan = compile_setup(s);
    struct outcome o = run_compiled(s, plan, tokens, options);
    moe_plan_close(plan);
    return o;
}

/// Runs it again, or another setup (plan NULL: not compiled yet), and compares the bytes.
static void expect_same(const struct outcome *first, const struct setup *s, moe_plan *plan, const int64_t *tokens,
                        moe_options options)
{
    struct outcome o = plan ? run_compiled(s, plan, tokens, options) : run_setup(s, tokens, options);
    bool same = outcome_equal(first, &o);
    CU_ASSERT(same);
    if (!same)
        fprintf(stderr, "%s%s, %s, %d experts of %d, %u ranks: other bytes\n", s->schedule, s->dispatch ? s->dispatch : "",
                s->dtype, s->choices, s->experts, s->ranks);
    outcome_free(&o);
}

static double reference_error(const struct setup *s, const struct outcome *o)
{
    struct shape shape = shape_of(s);
    size_t count = (size_t)o->tokens * HIDDEN;
    float *want = malloc((count + 1) * sizeof *want);
    reference_layer(&shape, SEED, tokens_in(s->dtype), o->tokens, o->ids, o->weights, want);
    double error = relative_l2(o->out, want, count);
    free(want);
    return error;
}

static const char *named(const char *format, int a, int b)
{
    static char names[4][48];
    static unsigned next;
    char *name = names[next++ % 4];
    snprintf(name, sizeof names[0], format, a, b);
    return name;
}

static const int64_t mixed[] = {BOUND, 3, 0, 71};

// One set of bytes per element type and number of waves, whatever else differs.
static void test_neutral(void)
{
    const char *dtypes[] = {"bf16", "f32", "f16"};
    const int waves[] = {2, 3, 5};
    for (size_t d = 0; d < 3; d++)
        for (size_t g = 0; g < 3; g++) {
            struct setup s = {dtypes[d], NULL, named("waves(g: %d)", waves[g], 0), 22, 4, RANKS};
            moe_plan *plan = compile_setup(&s);
            struct outcome first = run_compiled(&s, plan, mixed, (moe_options){.threads = 1});
            CU_ASSERT_EQUAL_FATAL(first.status, MOE_OK);
            CU_ASSERT(reference_error(&s, &first) <= (d == 1 ? 1e-5 : 5e-3));
            for (uint32_t threads = 2; threads <= 4; threads *= 2)
                expect_same(&first, &s, plan, mixed, (moe_options){.threads = threads});
            expect_same(&first, &s, plan, mixed, (moe_options){.device = "sim"});
            moe_plan_close(plan);
            struct setup other = s;
            other.schedule = named("backwards(g: %d)", waves[g], 0);
            expect_same(&first, &other, NULL, mixed, (moe_options){.threads = 3});
            other.schedule = named("both(n: %d, g: %d)", 3, waves[g]);
            expect_same(&first, &other, NULL, mixed, (moe_options){.threads = 2});
            other.schedule = named("outside(n: %d, g: %d)", 2, waves[g]);
            expect_same(&first, &other, NULL, mixed, (moe_options){.threads = 2});
            other.schedule = named("lagging(n: %d, g: %d)", 2, waves[g]);
            expect_same(&first, &other, NULL, mixed, (moe_options){.threads = 2});
            other.schedule = named("chunks(n: %d, g: %d)", 2, waves[g]);
            expect_same(&first, &other, NULL, mixed, (moe_options){.threads = 2});
            expect_same(&first, &other, NULL, mixed, (moe_options){.device = "sim"});
            outcome_free(&first);
        }
}

// Unequal waves: bytes of their own, whatever else differs, and those of equal ones where the shares are equal.
static void test_uneven(void)
{
    struct setup s = {"bf16", NULL, "uneven_waves(a: 2, b: 5)", 22, 4, RANKS};
    struct outcome first = run_setup(&s, mixed, (moe_options){.threads = 2});
    CU_ASSERT_EQUAL_FATAL(first.status, MOE_OK);
    CU_ASSERT(reference_error(&s, &first) <= 5e-3);
    s.schedule = "uneven_waves(n: 3, a: 2, b: 5)";
    expect_same(&first, &s, NULL, mixed, (moe_options){.device = "sim"});
    outcome_free(&first);
    s.schedule = "uneven_waves(a: 1, b: 1)";
    struct outcome equal = run_setup(&s, mixed, (moe_options){.threads = 2});
    s.schedule = "waves(g: 3)";
    expect_same(&equal, &s, NULL, mixed, (moe_options){.threads = 2});
    outcome_free(&equal);
}

// One wave is no wave: the bytes of `serial`.
static void test_one_wave(void)
{
    struct setup s = {"bf16", NULL, "serial", 12, 3, RANKS};
    struct outcome first = run_setup(&s, mixed, (moe_options){.threads = 2});
    s.schedule = "both(n: 2, g: 1)";
    expect_same(&first, &s, NULL, mixed, (moe_options){.threads = 2});
    outcome_free(&first);
}

static void test_wave_capacity(void)
{
    const int64_t tokens[] = {BOUND, BOUND, 17, 120};
    const char *tight[] = {"", "capacity: 0.5x", "capacity: 0.1x", "capacity: 0.1x, pool: 0.01x",
                           "capacity: 1x, pool: 4x"};
    const char *names[] = {"waves(g: 2)", "waves(g: 4)", "backwards(g: 3)", "both(n: 2, g: 3)", "lagging(n: 2, g: 3)",
                           "chunks(n: 2, g: 3)", "uneven_waves(a: 2, b: 5)"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        struct setup s = {"bf16", "capacity: 8x", names[n], 24, 5, RANKS};
        struct outcome wide = run_setup(&s, tokens, (moe_options){.threads = 2});
        CU_ASSERT_EQUAL(wide.status, MOE_OK);
        CU_ASSERT_EQUAL(wide.stats.overflowed, 0);
        CU_ASSERT(reference_error(&s, &wide) <= 5e-3);
        s.dispatch = "capacity: 8x, overflow: error";
        expect_same(&wide, &s, NULL, tokens, (moe_options){.threads = 2});
        for (size_t i = 0; i < sizeof tight / sizeof *tight; i++) {
            s.dispatch = tight[i];
            struct outcome o = run_setup(&s, tokens, (moe_options){.threads = 2});
            CU_ASSERT(outcome_equal(&wide, &o));
            CU_ASSERT(i != 2 || (o.stats.overflowed > 0 && o.stats.rounds > 0));
            outcome_free(&o);
        }
        outcome_free(&wide);
        s.dispatch = "capacity: 0.1x, overflow: error";
        struct outcome refused = run_setup(&s, tokens, (moe_options){.threads = 2, .fault = ""});
        CU_ASSERT_EQUAL(refused.status, MOE_OVERFLOW);
        outcome_free(&refused);
    }
}

// Experts that do not divide by waves or ranks, waves and ranks without experts, one rank, every choice taken.
static void test_wave_shapes(void)
{
    static const struct setup setups[] = {
        {"bf16", NULL, "waves(g: 4)", 12, 3, 1},     {"bf16", NULL, "waves(g: 8)", 5, 2, 1},
        {"f32", NULL, "waves(g: 2)", 3, 2, 4},       {"bf16", NULL, "waves(g: 8)", 7, 7, 3},
        {"f32", NULL, "waves(g: 3)", 16, 16, 2},     {"bf16", "capacity: 0.2x", "waves(g: 5)", 11, 11, 4},
        {"f16", NULL, "backwards(g: 16)", 40, 6, 4}, {"bf16", NULL, "waves(g: 2)", 1, 1, 4},
    };
    const int64_t counts[][4] = {{BOUND, 3, 0, 71}, {0, 0, 0, 0}, {1, 0, 0, 0}, {BOUND, BOUND, BOUND, BOUND}, {0, 2, 1, 149}};
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        struct setup serial = setups[i];
        serial.schedule = "serial";
        moe_plan *plan = compile_setup(&setups[i]), *one = compile_setup(&serial);
        for (size_t c = 0; c < 5; c++) {
            struct outcome o = run_compiled(&setups[i], plan, counts[c], (moe_options){.threads = 2});
            CU_ASSERT_EQUAL(o.status, MOE_OK);
            double error = o.status == MOE_OK && o.tokens ? reference_error(&setups[i], &o) : 0;
            CU_ASSERT(error <= (strcmp(setups[i].dtype, "f32") ? 5e-3 : 1e-5));
            struct outcome whole = run_compiled(&serial, one, counts[c], (moe_options){.threads = 2});
            CU_ASSERT(!o.tokens || relative_l2(o.out, whole.out, (size_t)o.tokens * HIDDEN) <=
                                       (strcmp(setups[i].dtype, "f32") ? 4e-3 : 1e-6));
            outcome_free(&whole);
            outcome_free(&o);
        }
        moe_plan_close(plan);
        moe_plan_close(one);
    }
}

// With slots enough, dispatches of all waves carry what one carries: rows travel once. The difference is headers, and
// replies, of which a rank sends one per wave that a row needs.
static void test_travel_once(void)
{
    const int64_t tokens[] = {BOUND, BOUND, BOUND, BOUND};
    struct setup s = {"bf16", "capacity: 8x", "serial", 24, 24, RANKS}; // every token needs every expert
    struct outcome one = run_setup(&s, tokens, (moe_options){.threads = 2});
    s.schedule = "waves(g: 3)";
    struct outcome three = run_setup(&s, tokens, (moe_options){.threads = 2});
    CU_ASSERT(one.status == MOE_OK && three.status == MOE_OK);
    int64_t peers = RANKS - 1, header = 64, reply = HIDDEN * 2; // headers of 32 + 4 * ranks bytes, padded
    int64_t more = three.stats.bytes_sent - one.stats.bytes_sent;
    CU_ASSERT_EQUAL(more, 2 * (2 * peers * header + peers * BOUND * reply));
    outcome_free(&one);
    outcome_free(&three);
}

static void test_wave_conservation(void)
{
    const int64_t tokens[4] = {64, 64, 64, 64};
    const char *kinds[] = {"drop", "double", "misroute"}, *names[] = {"waves(g: 2)", "backwards(g: 3)", "both(n: 2, g: 2)"};
    for (size_t n = 0; n < 3; n++) {
        struct setup s = {"bf16", NULL, names[n], 12, 3, RANKS};
        moe_plan *plan = compile_setup(&s);
        for (size_t k = 0; k < 3; k++)
            for (int rank = 0; rank < RANKS; rank++) {
                char fault[32], name[16];
                snprintf(fault, sizeof fault, "%s:%d", kinds[k], rank);
                snprintf(name, sizeof name, "rank %d", rank);
                struct outcome o = run_compiled(&s, plan, tokens, (moe_options){.threads = 2, .fault = fault});
                CU_ASSERT_EQUAL(o.status, MOE_LOST);
                CU_ASSERT_PTR_NOT_NULL(strstr(o.error, name));
                if (o.status != MOE_LOST || !strstr(o.error, name))
                    fprintf(stderr, "%s, %s: %s\n", names[n], fault, o.error);
                outcome_free(&o);
            }
        moe_plan_close(plan);
    }
}

void suite_waves(void);
void suite_waves(void)
{
    CU_pSuite suite = CU_add_suite("waves", NULL, NULL);
    CU_add_test(suite, "threads, devices, order and further splits give the same bytes", test_neutral);
    CU_add_test(suite, "unequal waves", test_uneven);
    CU_add_test(suite, "one wave gives the bytes of `serial`", test_one_wave);
    CU_add_test(suite, "capacity and pool change no byte", test_wave_capacity);
    CU_add_test(suite, "any experts, ranks and choices agree with the reference", test_wave_shapes);
    CU_add_test(suite, "a row travels once", test_travel_once);
    CU_add_test(suite, "a lost, doubled or misrouted row is reported with its rank", test_wave_conservation);
}
