// One instruction of a lowered program is deleted or moved: a wait, a signal, a message. For every library schedule each
// such mutant is either refused by the verifier, or harmless: it runs on the simulated device, where everything takes
// random times, and gives the bytes of the unchanged program. MOE_MUTATIONS says how many.
#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/lower/program.h"
#include "runtime/exec/session.h"
#include "tests/end_to_end/library.h"
#include "tests/proof/explorer.h"

enum { RANKS = 4, RUNS = 3, FEW = 1000, TINY = 40, MOST_STATES = 200000 };

struct trial {
    struct library library;
    moe_plan *plan;
    struct ir *ir;
    const float *in;
    struct outcome expected[LIBRARY_MOST];
    struct plan_instr *before; // the mutated stream's, unchanged
    uint64_t random;
    unsigned refused, harmless, wrong;
};

static uint32_t draw(struct trial *t, uint32_t below)
{
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(t->random >> 33) % below;
}

static struct outcome run_variant(const struct trial *t, int n, uint64_t jitter)
{
    const int64_t tokens[RANKS] = {3, LIBRARY_FIRST + n, 0, 17};
    struct run run = {.in = t->in, .tokens = tokens, .external = library_attention};
    run.options = (moe_options){.threads = 1, .seed = 5, .device = "sim", .poison = 1, .jitter = jitter};
    return run_plan_once(t->plan, &run);
}

static bool same_bytes(const struct outcome *a, const struct outcome *b)
{
    return a->status == MOE_OK && !memcmp(a->out, b->out, (size_t)b->tokens * LIBRARY_WIDTH * sizeof *a->out);
}

static bool verified(const struct ir *plan, uint32_t variant, char *error, size_t size)
{
    struct context context;
    context_init(&context);
    bool passes = false;
    if (!setjmp(context.fatal))
        passes = program_verify(&context, plan, variant, error, size);
    context_free(&context);
    return passes;
}

/// The plan's row of the variant that n stands for: lowered in the order in which the pipeline uses them, the last first.
static uint32_t variant_of(const struct trial *t, int n)
{
    return (uint32_t)(t->library.count - 1 - n);
}

static bool is_target(uint32_t op)
{
    return op == opcode_wait || op == opcode_signal || op == opcode_send || op == opcode_recv;
}

/// Ranks that run the same share the rows; others have copies at other places, of the same length.
static void set_count(struct trial *t, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < COUNT(t->ir, plan_stream); i++)
        if (ROW(t->ir, plan_stream, i)->instrs.first == first)
            ROW(t->ir, plan_stream, i)->instrs.count = count;
}

struct mutation {
    uint32_t stream, first, count, at, to; // rows; to == at: deleted
};

/// A random wait, signal or message of a variant, and what becomes of it. False: the stream drawn has none.
static bool choose(struct trial *t, int n, struct mutation *m)
{
    const struct plan_variant *v = ROW(t->ir, plan_variant, variant_of(t, n));
    struct rows streams = ROW(t->ir, plan_program, v->programs.first)->streams;
    m->stream = streams.first + draw(t, streams.count);
    m->first = ROW(t->ir, plan_stream, m->stream)->instrs.first;
    m->count = ROW(t->ir, plan_stream, m->stream)->instrs.count;
    uint32_t targets = 0;
    for (uint32_t i = 0; i < m->count; i++)
        targets += is_target(ROW(t->ir, plan_instr, m->first + i)->op);
    if (!targets)
        return false;
    uint32_t pick = draw(t, targets);
    for (m->at = 0; !is_target(ROW(t->ir, plan_instr, m->first + m->at)->op) || pick--; m->at++)
        ;
    bool moves = draw(t, 2) && m->count > 1;
    m->to = moves ? (m->at + 1 + draw(t, m->count - 1)) % m->count : m->at;
    return true;
}

static void mutate(struct trial *t, const struct mutation *m)
{
    struct plan_instr *rows = ROW(t->ir, plan_instr, m->first), moved = rows[m->at];
    memcpy(t->before, rows, m->count * sizeof *rows);
    memmove(rows + m->at, rows + m->at + 1, (m->count - m->at - 1) * sizeof *rows);
    if (m->to == m->at) {
        set_count(t, m->first, m->count - 1);
        return;
    }
    memmove(rows + m->to + 1, rows + m->to, (m->count - 1 - m->to) * sizeof *rows);
    rows[m->to] = moved;
}

static void restore(struct trial *t, const struct mutation *m)
{
    memcpy(ROW(t->ir, plan_instr, m->first), t->before, m->count * sizeof *t->before);
    set_count(t, m->first, m->count);
}

static void complain(struct trial *t, int n, const struct mutation *m, const char *what)
{
    const struct plan_instr *in = &t->before[m->at];
    t->wrong++;
    fprintf(stderr, "%s, stream %s: `%s` (%s) at %u %s %u: the verifier accepts it, and %s\n", t->library.name[n],
            ir_text(t->ir, ROW(t->ir, plan_stream, m->stream)->name), ir_text(t->ir, in->label), opcode_words[in->op], m->at,
            m->to == m->at ? "deleted from" : "moved to", m->to, what);
}

static void try_mutation(struct trial *t, int n)
{
    struct mutation m;
    char error[512] = "";
    while (!choose(t, n, &m))
        ;
    mutate(t, &m);
    if (!verified(t->ir, variant_of(t, n), error, sizeof error)) {
        t->refused++;
        restore(t, &m);
        return;
    }
    bool good = true;
    for (uint64_t run = 0; run < RUNS && good; run++) {
        struct outcome o = run_variant(t, n, 1 + draw(t, 1u << 30));
        good = same_bytes(&o, &t->expected[n]);
        if (!good)
            complain(t, n, &m, o.status == MOE_OK ? "its bytes differ" : o.error);
        outcome_free(&o);
    }
    t->harmless += good;
    restore(t, &m);
}

/// The unchanged programs: verified, and the same bytes whatever the delays.
static void check_unchanged(struct trial *t)
{
    char error[512];
    for (int n = 0; n < t->library.count; n++) {
        CU_ASSERT_TRUE(verified(t->ir, variant_of(t, n), error, sizeof error));
        const char *name = ir_text(t->ir, ROW(t->ir, plan_variant, variant_of(t, n))->name);
        CU_ASSERT(!strncmp(name, t->library.name[n], strlen(t->library.name[n])));
        t->expected[n] = run_variant(t, n, 0);
        CU_ASSERT_EQUAL(t->expected[n].status, MOE_OK);
        for (uint64_t jitter = 1; jitter <= RUNS; jitter++) {
            struct outcome o = run_variant(t, n, jitter);
            CU_ASSERT_TRUE(same_bytes(&o, &t->expected[n]));
            if (o.status != MOE_OK)
                fprintf(stderr, "%s: %s\n", t->library.name[n], o.error);
            outcome_free(&o);
        }
    }
}

static void mutate_library(const char *options, unsigned count)
{
    static struct trial t;
    static float in[RANKS * 256 * LIBRARY_WIDTH];
    memset(&t, 0, sizeof t);
    gaussian(in, sizeof in / sizeof *in, 13);
    library_read(&t.library);
    t.in = in;
    t.random = 0x5eed;
    t.plan = library_compile(&t.library, false, options);
    CU_ASSERT_PTR_NOT_NULL_FATAL(t.plan);
    t.ir = &t.plan->plan.ir;
    t.before = calloc(COUNT(t.ir, plan_instr) + 1, sizeof *t.before);
    check_unchanged(&t);
    for (unsigned i = 0; i < count; i++)
        try_mutation(&t, (int)(i % (unsigned)t.library.count));
    fprintf(stderr, "[%u refused, %u harmless] ", t.refused, t.harmless);
    CU_ASSERT_EQUAL(t.wrong, 0);
    CU_ASSERT(t.refused > count / 2);
    CU_ASSERT(count < 100 || t.harmless);
    for (int n = 0; n < t.library.count; n++)
        outcome_free(&t.expected[n]);
    free(t.before);
    moe_plan_close(t.plan);
}

/// A layer so small that every interleaving of two ranks can be run. Slots of two rows fill their buffers to the last
/// byte, as the explorer expects of what is read whole.
static moe_plan *compile_tiny(const char *schedule)
{
    static const char text[] =
        "import std.ops;\nimport std.hw { host };\nimport std.schedules as lib;\n"
        "dim tokens <= 4;\ndim hidden = 8;\ndim ffn = 8;\ndim experts = 2;\n"
        "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n    param w_router: f32[experts, hidden];\n"
        "    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n    param w_down: bf16[experts, hidden, ffn];\n"
        "    stage route: r = topk(x, w_router, k: 1);\n    stage dispatch: xd = dispatch(x, r, capacity: 8x);\n"
        "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n    stage combine: y = combine(yd, r);\n    yield y;\n}\n"
        "cluster two { device = host; axis rank[2]; link l across rank { bandwidth: 1GB/s, latency: 1us }; }\nplacement each on two { place experts over rank; }\n"
        "pipeline p { layer = moe; cluster = two; placement = each; target = cpu; use lib.serial; }\n";
    return subject_compile(&(struct subject){.text = text, .schedule = schedule, .layer = -1});
}

/// Verifier and explorer say the same of the tiny programs, unchanged and mutated; but the verifier also refuses a wait
/// whose signal is gone where a later one would end it, and signals that do not grow.
static void test_small(void)
{
    static const char *const schedules[] = {"serial", "decode", "double_buffer(n: 2)", "ladder(n: 2)", "hook_receive(n: 2)"};
    unsigned compared = 0, legal = 0, stricter = 0, large = 0;
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        struct trial t = {.random = 77 + i, .plan = compile_tiny(schedules[i]), .library = {.count = 1}};
        CU_ASSERT_PTR_NOT_NULL_FATAL(t.plan);
        t.ir = &t.plan->plan.ir;
        t.before = calloc(COUNT(t.ir, plan_instr) + 1, sizeof *t.before);
        for (int n = 0; n < TINY; n++) {
            struct mutation m = {.at = NONE};
            char error[512] = "";
            if (n && choose(&t, 0, &m))
                mutate(&t, &m);
            struct exploration e = explore(t.ir, 0, 1, true, MOST_STATES);
            bool passes = verified(t.ir, 0, error, sizeof error);
            if (e.found & EXPLORED_TOO_LARGE) {
                large++;
            } else {
                bool strict = !passes && !e.found && (strstr(error, "nobody signals") || strstr(error, "does not grow"));
                compared++;
                stricter += strict;
                legal += passes;
                CU_ASSERT(strict || passes == !e.found);
                if (!strict && passes != !e.found)
                    fprintf(stderr, "%s, mutation %d (%u to %u): the verifier says `%s`, the explorer `%s`\n", schedules[i], n,
                            m.at, m.to, passes ? "fine" : error, e.found ? e.what : "fine");
            }
            if (m.at != NONE)
                restore(&t, &m);
        }
        free(t.before);
        moe_plan_close(t.plan);
    }
    fprintf(stderr, "[%u compared, %u of them legal, %u of them legal but refused, %u too large] ", compared, legal, stricter,
            large);
    CU_ASSERT(compared > 100 && legal > 5);
}

static void test_mutations(void)
{
    const char *text = getenv("MOE_MUTATIONS");
    mutate_library("", text ? (unsigned)strtoul(text, NULL, 10) : FEW);
}

/// Slots too few: what overflows goes in rounds.
static void test_mutations_of_rounds(void)
{
    const char *text = getenv("MOE_MUTATIONS");
    mutate_library(", capacity: 0.3x", text ? (unsigned)strtoul(text, NULL, 10) / 2 : FEW / 2);
}

void suite_mutations(void);
void suite_mutations(void)
{
    CU_pSuite suite = CU_add_suite("mutations", NULL, NULL);
    CU_add_test(suite, "a deleted or moved wait, signal or message is refused or harmless", test_mutations);
    CU_add_test(suite, "so it is with overflow rounds", test_mutations_of_rounds);
    CU_add_test(suite, "the explorer agrees on small ones", test_small);
}
