// Copies of experts: whatever a placement replicates, outputs are byte for byte those of the placement without copies, under
// every schedule, capacity, device and thread count; rows go to the nearest copy, and nothing is lost on the way.
#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/lower/program.h"
#include "runtime/exec/session.h"
#include "tests/end_to_end/harness.h"
#include "tests/end_to_end/reference.h"

enum { BOUND = 96, SEED = 5, MOST_RANKS = 8, HIDDEN = 64, FFN = 48, EXPERTS = 12, CHOICES = 3 };

static const char line[] = "device = fast; axis rank[4]; link shm across rank { bandwidth: 5GB/s, latency: 1us };";
static const char square[] = "device = fast; axis node[2]; axis gpu[2];\n"
                             "    link ib across node { bandwidth: 1MB/s, latency: 20us, rail: true };\n"
                             "    link nv across gpu { bandwidth: 100GB/s, latency: 0us };";
static const char three[] = "device = fast; axis node[3]; axis gpu[2];\n"
                            "    link ib across node { bandwidth: 1GB/s, latency: 1us };\n"
                            "    link nv across gpu { bandwidth: 100GB/s, latency: 0us };";
static const char mixed[] = "device fast at node[0]; device slow at node[1]; axis node[2]; axis gpu[2];\n"
                            "    link ib across node { bandwidth: 1GB/s, latency: 20us };\n"
                            "    link nv across gpu { bandwidth: 100GB/s, latency: 1us };";

struct setup {
    const char *cluster, *place, *copies; // copies: NULL: none
    const char *dtype, *dispatch, *combine;
    const char *layer; // stages before `route`, on x; NULL: none
};

/// `use`: what the pipeline says beside layer, cluster and placement.
static moe_plan *compile_pipeline(const struct setup *s, const char *schedule, const char *use)
{
    static char text[8192];
    const char *t = s->dtype ? s->dtype : "bf16";
    snprintf(
        text, sizeof text,
        "import std.ops;\nimport std.schedules { serial, ladder, waves };\n"
        "format f128 = fp8_e4m3 { block: [1, 128], scale: f32 };\n"
        "format u64 = fp8_e4m3 { block: [1, 64], scale: ue8m0 };\n"
        "dim tokens <= %d;\ndim hidden = %d;\ndim ffn = %d;\ndim experts = %d;\n"
        "device fast { sm = 4; peak = { bf16: 80GFLOPS }; }\ndevice slow { sm = 4; peak = { bf16: 10GFLOPS }; }\n"
        "layer moe(x: %s[tokens, hidden]) -> %s[tokens, hidden] {\n"
        "    param w_router: f32[experts, hidden];\n"
        "    param w_gate_up: %s[experts, 2 * ffn, hidden];\n"
        "    param w_down: %s[experts, hidden, ffn];\n%s"
        "    stage route: r = topk(%s, w_router, k: %d);\n"
        "    stage dispatch: xd = dispatch(%s, r%s);\n"
        "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n"
        "    stage combine: y = combine(yd, r%s);\n    yield y;\n}\n"
        "cluster room { %s }\nplacement p on room { %s %s }\n"
        "schedule both(n: 1..8 = 2, g: 1..16 = 2) for (route, dispatch, expert, combine) {\n"
        "    split tokens into n as i; split experts into g as w;\n"
        "    stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
        "    bind route, expert to comp; bind dispatch to tx; bind combine to rx { sm: 2 };\n"
        "    for i in 0..n { route[i]; pipelined w in 0..g { dispatch[i,w+1] || expert[i,w] || combine[i,w-1]; } }\n}\n"
        "schedule chunked(n: 1..4 = 2, c: 2..8 = 3) for (route, dispatch, expert, combine) {\n"
        "    split tokens into n as i; split combine into c as k;\n"
        "    stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
        "    bind route, expert to comp; bind dispatch to tx; bind combine to rx;\n"
        "    pipelined i in 0..n { route[i+1]; dispatch[i+1] || expert[i]; combine[i, 0]; combine[i, 1]; combine[i, 2]; }\n"
        "}\n"
        "pipeline main { layer = moe; cluster = room; placement = p; %s }\n",
        BOUND, HIDDEN, FFN, EXPERTS, t, t, t, t, s->layer ? s->layer : "", s->layer ? "a" : "x", CHOICES,
        s->layer ? "a" : "x", s->dispatch ? s->dispatch : "", s->combine ? s->combine : "", s->cluster, s->place,
        s->copies ? s->copies : "", use);
    struct subject subject = {.text = text, .schedule = schedule, .layer = -1, .cpu_level = "v2"};
    return subject_compile(&subject);
}

static moe_plan *compile(const struct setup *s, const char *schedule)
{
    return compile_pipeline(s, schedule, "use serial;");
}

static const float *tokens_in(const char *dtype)
{
    static float in[MOST_RANKS * BOUND * HIDDEN];
    gaussian(in, sizeof in / sizeof *in, 1);
    round_to_dtype(dtype ? dtype : "bf16", in, sizeof in / sizeof *in);
    return in;
}

static const int64_t counts[MOST_RANKS] = {70, 0, BOUND, 9, 1, 33, 64, 2};

static int identity(void *user, const moe_extern_call *call)
{
    (void)user;
    memcpy(call->out, call->in[0], (size_t)(call->count * call->row_bytes[0]));
    return 0;
}

static struct outcome run_setup(const struct setup *s, const char *schedule, moe_options options)
{
    struct outcome o = {.status = MOE_INVALID};
    moe_plan *plan = compile(s, schedule);
    if (!plan)
        return o;
    options.seed = SEED;
    options.poison = 1;
    options.threads = options.threads ? options.threads : 2;
    struct run run = {.in = tokens_in(s->dtype), .tokens = counts, .options = options, .steps = 2,
                      .external = s->layer ? identity : NULL};
    o = run_plan_once(plan, &run);
    if (o.status != MOE_OK && !options.fault)
        fprintf(stderr, "%s, %s %s: %s\n", schedule, s->place, s->copies ? s->copies : "", o.error);
    CU_ASSERT_EQUAL(o.status, options.fault ? MOE_LOST : MOE_OK);
    moe_plan_close(plan);
    return o;
}

static bool expect_same(const struct outcome *first, const struct setup *s, const char *schedule, moe_options options)
{
    struct outcome o = run_setup(s, schedule, options);
    bool same = first->status == MOE_OK && o.status == MOE_OK && o.tokens == first->tokens &&
                !memcmp(first->out, o.out, (size_t)(o.tokens * HIDDEN) * sizeof *o.out);
    CU_ASSERT(same);
    if (!same)
        fprintf(stderr, "%s, %s %s%s: other bytes\n", schedule, s->place, s->copies ? s->copies : "",
                s->dispatch ? s->dispatch : "");
    bool counted = !memcmp(first->load, o.load, EXPERTS * sizeof *o.load);
    CU_ASSERT(counted);
    bool tight = s->dispatch && strstr(s->dispatch, "0.1x");
    CU_ASSERT(!tight || o.stats.overflowed > 0);
    outcome_free(&o);
    return same;
}

static void expect_reference(const struct outcome *o, const char *dtype, double most)
{
    struct shape shape = {.hidden = HIDDEN, .ffn = FFN, .experts = EXPERTS, .choices = CHOICES, .bound = BOUND,
                          .dtype = dtype, .normalize = true};
    size_t count = (size_t)o->tokens * HIDDEN;
    float *want = malloc((count + 1) * sizeof *want);
    reference_layer(&shape, SEED, tokens_in(dtype), o->tokens, o->ids, o->weights, want);
    CU_ASSERT(relative_l2(o->out, want, count) <= most);
    free(want);
}

static const char by_rank[] = "place experts over rank;", by_node[] = "place experts over node, gpu;",
                  crossed[] = "place experts over gpu, node;", by_rate[] = "place experts over node, gpu { balance: rate };",
                  dealt[] = "place experts over node, gpu { balance: even };";

// The placements whose bytes are those without the copies; few slots in every second.
static const struct setup setups[] = {
    {line, by_rank, "replicate experts;", NULL, NULL, NULL, NULL},
    {line, by_rank, "replicate experts { copies: 2 };", "f32", ", capacity: 0.1x, pool: 0.05x", NULL, NULL},
    {line, by_rank, "replicate experts { only: [0, 1, 7], copies: 3 };", NULL, ", capacity: 8x", NULL, NULL},
    {line, by_rank, "spare = 4; replicate experts { only: [3, 4], copies: 2 }; replicate experts { only: [11], copies: 3 };",
     "f16", ", capacity: 0.1x, pool: 0.05x", NULL, NULL},
    {square, by_node, "replicate experts { copies: 2 };", NULL, ", capacity: 0.1x, pool: 0.05x", NULL, NULL},
    {square, crossed, "spare = 8; replicate experts { copies: 2, only: [0, 2, 4, 6, 8, 10] };", NULL, NULL, NULL, NULL},
    {mixed, by_rate, "replicate experts { copies: 2 };", NULL, ", capacity: 0.1x, pool: 0.05x", NULL, NULL},
    {mixed, dealt, "groups = node; replicate experts { only: [5], copies: 4 }; replicate shared;", NULL, NULL, NULL, NULL},
};
enum { SETUPS = sizeof setups / sizeof *setups };

static void test_same_bytes(void)
{
    static const struct {
        const char *schedule;
        moe_options options;
    } ways[] = {{"serial", {.threads = 1}},
                {"ladder(n: 3)", {.threads = 3}},
                {"chunked", {.device = "sim"}},
                {"ladder(n: 2)", {.device = "sim"}}};
    for (size_t i = 0; i < SETUPS; i++) {
        struct setup without = setups[i];
        without.copies = without.dispatch = NULL;
        struct outcome first = run_setup(&without, "serial", (moe_options){0});
        expect_reference(&first, without.dtype ? without.dtype : "bf16", 5e-3);
        for (size_t w = 0; w < 2; w++)
            expect_same(&first, &setups[i], ways[(i + 2 * w) % 4].schedule, ways[(i + 2 * w) % 4].options);
        outcome_free(&first);
    }
}

/// Several layers, and a schedule for each size of step: one of few tokens, and one of many, in one session's plan.
static void test_layers(void)
{
    static const int64_t few[MOST_RANKS] = {3, 9, 0, 1};
    struct setup s = {line, by_rank, "replicate experts { only: [0, 5, 7], copies: 3 };", NULL, ", capacity: 0.1x, pool: 0.05x", NULL, NULL};
    struct setup without = {line, by_rank, NULL, NULL, NULL, NULL, NULL};
    moe_plan *plans[2] = {
        compile_pipeline(&s, NULL, "repeat = 3; use ladder(n: 3) when tokens >= 64; use both(n: 2, g: 1) when tokens >= 8; use serial;"),
        compile_pipeline(&without, NULL, "repeat = 3; use serial;")};
    for (int i = 0; i < 2 && plans[0] && plans[1]; i++) {
        struct run run = {.in = tokens_in(NULL), .tokens = i ? few : counts, .options = {.seed = SEED, .poison = 1, .threads = 2}};
        struct outcome a = run_plan_once(plans[0], &run), b = run_plan_once(plans[1], &run);
        CU_ASSERT_TRUE(outcome_equal(&a, &b));
        CU_ASSERT_STRING_EQUAL(a.stats.schedule, i ? "both(n: 2, g: 1)" : "ladder(n: 3)");
        outcome_free(&a);
        outcome_free(&b);
    }
    moe_plan_close(plans[0]);
    moe_plan_close(plans[1]);
}

/// The order in which `only` names experts is no part of who holds what.
static void test_order(void)
{
    struct setup s = {line, by_rank, "replicate experts { only: [0, 5, 7, 11], copies: 3 };", NULL, NULL, NULL, NULL}, other = s;
    other.copies = "replicate experts { only: [7, 0, 11, 5], copies: 3 };";
    moe_plan *a = compile(&s, "serial"), *b = compile(&other, "serial");
    CU_ASSERT_FATAL(a && b && COUNT(&a->plan.ir, plan_owner) == EXPERTS + 4 * 2);
    CU_ASSERT_EQUAL(COUNT(&a->plan.ir, plan_owner), COUNT(&b->plan.ir, plan_owner));
    for (uint32_t i = 0; i < COUNT(&a->plan.ir, plan_owner); i++)
        CU_ASSERT_EQUAL(memcmp(ROW(&a->plan.ir, plan_owner, i), ROW(&b->plan.ir, plan_owner, i), sizeof(struct plan_owner)), 0);
    moe_plan_close(a);
    moe_plan_close(b);
}

/// Waves cut sums; with copies they cut them at the same experts.
static void test_waves(void)
{
    static const char *const waves[] = {"waves(g: 2)", "waves(g: 3)", "waves(g: 5)"};
    static const char *const both[] = {"both(n: 3, g: 2)", "both(n: 2, g: 3)", "both(n: 2, g: 5)"};
    for (size_t i = 0; i < SETUPS; i++) {
        struct setup without = setups[i];
        without.copies = without.dispatch = NULL;
        struct outcome first = run_setup(&without, waves[i % 3], (moe_options){0});
        expect_same(&first, &setups[i], (i % 2 ? waves : both)[i % 3], (moe_options){.device = i % 3 ? "cpu" : "sim"});
        outcome_free(&first);
    }
}

// ------------------------------------------------------------------------------------------- where rows are computed

/// Pairs of each expert that each rank computed for each source.
static int64_t computed[MOST_RANKS][MOST_RANKS][EXPERTS];

static enum stepped count_recv(struct stream *stream, uint32_t exchange, struct blocked *on)
{
    const struct moe_session *session = stream->rank->session;
    const struct ir *ir = session->ir;
    const struct plan_exchange *e = ROW(ir, plan_exchange, exchange);
    enum stepped done = transport_local.recv(stream, exchange, on);
    uint32_t me = stream->rank->number;
    for (uint32_t from = 0; from < session->info->ranks && e->kind == exchange_kind_dispatch && done == STEP_DONE; from++) {
        if (from == me)
            continue;
        const char *slot =
            (const char *)stream->rank->bases[e->recv] + stream->rank->exchanges[exchange].target_offset[from];
        int64_t bytes = slots_record_bytes(ir, e, from, me);
        for (uint32_t i = 0; i < ((const struct moe_message *)(const void *)slot)->rows; i++) {
            const struct moe_row_meta *meta =
                (const void *)(slot + e->header_bytes + (i + 1) * bytes - e->meta_bytes);
            for (int c = 0; c < CHOICES && meta[c].local >= 0; c++) {
                struct rows held = ROW(ir, plan_rank, me)->owned;
                computed[me][from][ROW(ir, plan_owner, held.first + (uint32_t)meta[c].local)->expert]++;
            }
        }
    }
    return done;
}

/// Full tokens on every rank, each with the one expert `ids` says by token; the stats.
static moe_stats watch(const struct setup *s, int (*id)(int token))
{
    static struct transport_ops spy;
    static int32_t ids[MOST_RANKS * BOUND * CHOICES];
    static float weights[MOST_RANKS * BOUND * CHOICES];
    static uint16_t x[MOST_RANKS * BOUND * HIDDEN], y[MOST_RANKS * BOUND * HIDDEN];
    moe_plan *plan = compile(s, "serial");
    moe_session *session = NULL;
    moe_stats stats = {0};
    CU_ASSERT_FATAL(plan && moe_session_create(plan, &(moe_options){.device = "sim", .seed = SEED}, &session) == MOE_OK);
    spy = transport_local;
    spy.recv = count_recv;
    session->transport = &spy;
    memset(computed, 0, sizeof computed);
    moe_step steps[MOST_RANKS];
    for (uint32_t r = 0; r < session->info->ranks; r++) {
        for (int t = 0; t < BOUND; t++)
            for (int c = 0; c < CHOICES; c++) {
                size_t at = (r * BOUND + (size_t)t) * CHOICES + (size_t)c;
                ids[at] = c ? -1 : id(t);
                weights[at] = 1;
            }
        steps[r] = (moe_step){.rank = r,
                              .tokens = BOUND,
                              .in = x + r * BOUND * HIDDEN,
                              .out = y + r * BOUND * HIDDEN,
                              .given_ids = ids + r * BOUND * CHOICES,
                              .given_weights = weights + r * BOUND * CHOICES};
    }
    CU_ASSERT_EQUAL(moe_session_load(session, "random"), MOE_OK);
    CU_ASSERT_EQUAL(moe_session_run(session, steps, session->info->ranks), MOE_OK);
    CU_ASSERT_EQUAL(moe_session_stats(session, &stats), MOE_OK);
    moe_session_destroy(session);
    moe_plan_close(plan);
    return stats;
}

static int always_zero(int token)
{
    (void)token;
    return 0;
}

static int each_in_turn(int token)
{
    return token % EXPERTS;
}

/// Own copies first, then those of the own node; those equally near in turn.
static void test_nearest(void)
{
    // Ranks 0 and 2 hold expert 0: its owner, and the rank of the same position in the other node.
    struct setup s = {square, by_node, "replicate experts { copies: 2 };", NULL, ", capacity: 8x", NULL, NULL};
    moe_stats both = watch(&s, always_zero);
    CU_ASSERT_EQUAL(computed[0][1][0], BOUND);
    CU_ASSERT_EQUAL(computed[2][3][0], BOUND);
    CU_ASSERT_EQUAL(computed[0][2][0] + computed[0][3][0] + computed[2][0][0] + computed[2][1][0], 0);
    s.copies = NULL;
    moe_stats without = watch(&s, always_zero);
    CU_ASSERT_EQUAL(computed[0][3][0], BOUND);
    // rank 0 answered both of the other node
    CU_ASSERT(without.axis[0].bytes - both.axis[0].bytes >= 2 * BOUND * 2 * HIDDEN);
    // On one axis ranks 0 and 2 hold it; 1 and 3 ask them in turn.
    struct setup flat = {line, by_rank, "replicate experts { only: [0], copies: 2 };", NULL, ", capacity: 8x", NULL, NULL};
    (void)watch(&flat, always_zero);
    for (int from = 1; from < 4; from += 2) {
        CU_ASSERT_EQUAL(computed[0][from][0], BOUND / 2);
        CU_ASSERT_EQUAL(computed[2][from][0], BOUND / 2);
    }
    CU_ASSERT_EQUAL(computed[0][2][0] + computed[2][0][0], 0);
    // Every rank holds everything: nothing travels but headers.
    struct setup all = {line, by_rank, "replicate experts;", NULL, ", capacity: 8x", NULL, NULL};
    moe_stats still = watch(&all, each_in_turn);
    CU_ASSERT(still.bytes_sent < 4 * 3 * 2 * 128);
}

// --------------------------------------------------------------------------------------------------- what is proven

/// A number of who holds what, changed by one, and the sizes that follow from copies.
static uint32_t *held_number(struct ir *ir, uint32_t number)
{
    uint32_t owners = COUNT(ir, plan_owner);
    if (number >= 5 * owners) {
        struct plan_rank *rank = ROW(ir, plan_rank, (number - 5 * owners) / 2);
        return number % 2 == (5 * owners) % 2 ? &rank->copied : &rank->guests;
    }
    struct plan_owner *o = ROW(ir, plan_owner, number / 5);
    uint32_t *const fields[] = {&o->expert, &o->rank, &o->local, &o->home, &o->place};
    return fields[number % 5];
}

static void test_validated(void)
{
    struct setup s = {line, by_rank, "replicate experts { only: [0, 1, 5, 9], copies: 3 };", NULL, NULL, NULL, NULL};
    moe_plan *plan = compile(&s, "waves(g: 2)");
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    struct ir *ir = &plan->plan.ir;
    struct context context;
    char error[256];
    context_init(&context);
    CU_ASSERT_TRUE(plan_validate(ir, 1 << 20, error, sizeof error));
    CU_ASSERT_TRUE(program_verify(&context, ir, 0, error, sizeof error));
    for (uint32_t n = 0; n < 5 * COUNT(ir, plan_owner) + 2 * 4; n++)
        for (uint32_t step = 1; step < 3; step++) {
            uint32_t *number = held_number(ir, n), saved = *number;
            *number = step == 1 ? saved + 1 : saved - 1;
            bool refused = !plan_validate(ir, 1 << 20, error, sizeof error);
            CU_ASSERT_TRUE(refused);
            if (!refused)
                fprintf(stderr, "number %u of who holds what: %u instead of %u\n", n, *number, saved);
            *number = saved;
        }
    // Own rows, of which a token may have several, need room.
    unsigned tried = 0;
    for (uint32_t r = 0; r < 4; r++) {
        const struct plan_program *p = ROW(ir, plan_program, ROW(ir, plan_variant, 0)->programs.first + r);
        for (uint32_t b = 0; b < p->extents.count; b++) {
            const struct plan_buffer *buffer = ROW(ir, plan_buffer, ROW(ir, plan_variant, 0)->buffers.first + b);
            struct plan_extent *x = ROW(ir, plan_extent, p->extents.first + b);
            int64_t bytes = x->bytes;
            if (buffer->kind != buffer_kind_arena || !strstr(ir_text(ir, buffer->name), "own"))
                continue;
            x->bytes -= buffer->row_bytes;
            CU_ASSERT_FALSE(plan_validate(ir, 1 << 20, error, sizeof error));
            CU_ASSERT_FALSE(program_verify(&context, ir, 0, error, sizeof error));
            x->bytes = bytes;
            tried++;
        }
    }
    CU_ASSERT(tried >= 4);
    CU_ASSERT_TRUE(plan_validate(ir, 1 << 20, error, sizeof error));
    context_free(&context);
    moe_plan_close(plan);
}

// --------------------------------------------------------------------------------------------------------- elsewhere

/// A relay adds up what its node computed, so that copies regroup sums; still one set of bytes, and the reference's values.
static void test_relays(void)
{
    static const struct {
        const char *dispatch, *schedule, *device;
    } runs[] = {{", via: node, capacity: 8x", "ladder(n: 3)", "cpu"},
                {", via: node, capacity: 0.1x, pool: 0.05x", "serial", "sim"},
                {", via: node, capacity: 0.1x, pool: 0.05x", "ladder(n: 2)", "cpu"}};
    static const char *const copies[] = {"replicate experts { only: [0, 1, 5, 6, 9], copies: 3 };",
                                         "replicate experts { only: [7, 8, 10, 11], copies: 2 };"};
    for (size_t i = 0; i < 2; i++) {
        struct setup s = {square, by_node, copies[i], NULL, ", via: node", NULL, NULL};
        struct outcome first = run_setup(&s, "serial", (moe_options){0}),
                       waves = run_setup(&s, "waves(g: 2)", (moe_options){0});
        expect_reference(&first, "bf16", 6e-3);
        expect_reference(&waves, "bf16", 8e-3);
        for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
            s.dispatch = runs[r].dispatch;
            expect_same(&first, &s, runs[r].schedule, (moe_options){.device = runs[r].device});
            expect_same(&waves, &s, r ? "both" : "waves(g: 2)", (moe_options){.device = runs[r].device, .threads = 3});
        }
        outcome_free(&first);
        outcome_free(&waves);
    }
}

/// Rows for a node overflow together. A rank there that gets two rows of one token is full after fewer tokens than it has
/// slots, and then all rows for the node overflow, those of ranks with one row a token too.
static void test_relays_overflow(void)
{
    static const int64_t one_source[MOST_RANKS] = {[4] = BOUND};
    static int32_t ids[BOUND * CHOICES];
    static float weights[BOUND * CHOICES];
    struct setup s = {three, by_node, "replicate experts { only: [0], copies: 2 };", "f32", ", via: node, capacity: 0.1x, pool: 0.05x",
                      NULL, NULL};
    for (int t = 0; t < BOUND; t++)
        for (int i = 0; i < CHOICES; i++) {
            // of odd tokens rank 3 computes expert 0, a copy, and 6, its own
            ids[t * CHOICES + i] = t % 2 && t < 4 ? (const int32_t[]){0, 6, 8}[i] : (const int32_t[]){4, 6, 8}[i];
            weights[t * CHOICES + i] = 0.25f;
        }
    for (int wide = 0; wide < 2; wide++) {
        moe_plan *plan = compile(&s, "serial");
        struct run run = {.in = tokens_in("f32"), .tokens = one_source, .given_ids = ids, .given_weights = weights,
                          .options = {.seed = SEED, .poison = 1, .threads = 2}};
        struct outcome o = run_plan_once(plan, &run);
        CU_ASSERT_STRING_EQUAL(o.error, "");
        CU_ASSERT(o.status == MOE_OK && (o.stats.overflowed > 0) == !wide);
        if (o.status == MOE_OK)
            expect_reference(&o, "f32", 1e-5);
        outcome_free(&o);
        moe_plan_close(plan);
        s.dispatch = ", via: node, capacity: 99x";
    }
}

/// Own rows never take a wire format, so that copies lose less; one set of bytes all the same, behind an extern stage, in
/// micro-batches, waves, rounds and through relays.
static void test_quantised(void)
{
    static const char attention[] = "    extern stage attn: a = attention(x, cost: 5us);\n";
    static const struct setup wires[] = {
        {line, by_rank, "replicate experts { only: [0, 5, 7, 9], copies: 3 };", NULL, ", wire: f128", ", wire: u64", attention},
        {square, by_node, "replicate experts { copies: 2 };", "f32", ", wire: { node: u64, gpu: f128 }", ", wire: f128", NULL},
        {square, by_node, "replicate experts { only: [1, 4, 7, 11], copies: 2 };", NULL,
         ", wire: { node: f128, gpu: u64 }, via: node", NULL, attention}};
    for (size_t i = 0; i < sizeof wires / sizeof *wires; i++) {
        char few[128];
        struct setup tight = wires[i], without = wires[i];
        snprintf(few, sizeof few, "%s, capacity: 0.1x, pool: 0.05x", wires[i].dispatch);
        tight.dispatch = few;
        without.copies = NULL;
        struct outcome first = run_setup(&wires[i], "serial", (moe_options){0}),
                       waves = run_setup(&wires[i], "waves(g: 2)", (moe_options){0}),
                       plain = run_setup(&without, "serial", (moe_options){0});
        const char *dtype = wires[i].dtype ? wires[i].dtype : "bf16";
        expect_reference(&first, dtype, 0.05);
        expect_reference(&waves, dtype, 0.05);
        expect_same(&first, &tight, "ladder(n: 3)", (moe_options){.device = "sim"});
        expect_same(&waves, &tight, "both", (moe_options){.threads = 3});
        CU_ASSERT(first.status == MOE_OK && plain.status == MOE_OK &&
                  memcmp(first.out, plain.out, (size_t)(first.tokens * HIDDEN) * sizeof *first.out) != 0);
        outcome_free(&first);
        outcome_free(&waves);
        outcome_free(&plain);
    }
}

/// A row that is lost, doubled or sent to the wrong rank is found, copies or not.
static void test_faults(void)
{
    static const char *const faults[] = {"drop:0", "double:2", "misroute:0"};
    struct setup s = {line, by_rank, "replicate experts { only: [0, 4], copies: 2 };", NULL, NULL, NULL, NULL};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct outcome o = run_setup(&s, "serial", (moe_options){.fault = faults[i]});
        outcome_free(&o);
    }
}

void suite_copies(void);
void suite_copies(void)
{
    CU_pSuite suite = CU_add_suite("copies", NULL, NULL);
    CU_add_test(suite, "the bytes without copies", test_same_bytes);
    CU_add_test(suite, "the bytes without copies, waves of experts", test_waves);
    CU_add_test(suite, "several layers, a schedule for each size of step", test_layers);
    CU_add_test(suite, "`only` in another order", test_order);
    CU_add_test(suite, "the nearest copy", test_nearest);
    CU_add_test(suite, "who holds what is validated", test_validated);
    CU_add_test(suite, "two hops", test_relays);
    CU_add_test(suite, "rows of a node that overflow together", test_relays_overflow);
    CU_add_test(suite, "quantised rows", test_quantised);
    CU_add_test(suite, "nothing is lost unnoticed", test_faults);
}
