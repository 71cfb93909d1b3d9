// Random schedules, larger than what can be explored exhaustively: micro-batches in any order that their data allows, on any
// streams, with stages in unequal pieces, replies in chunks, experts' phases apart; every other one over nodes with relays,
// which send home sums in blocks. What the compiler accepts runs on the simulated device, where everything takes random times, and on threads, and
// gives the bytes of `serial`. MOE_RANDOM_SCHEDULES says how many are drawn, MOE_RANDOM_FIRST where the numbers begin.
#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/driver.h"
#include "tests/end_to_end/harness.h"

enum { RANKS = 4, BOUND = 160, FIRST = 20, WIDTH = 32, AT_ONCE = 60, JITTERS = 3, STAGES = 7, PARTS = 6, PIECES = 4 };
enum { ROUTE, DISPATCH, UP, EXPERT, COMBINE, SHARED, MERGE };
static const char *const stages[STAGES] = {"route", "dispatch", "expert.up", "expert", "combine", "shared", "merge"};

struct cut { // of a layer's stages
    uint32_t pieces[STAGES]; // 1: whole
    bool phases;             // the expert's stand apart
};

struct random {
    uint64_t state;
};

static uint32_t draw(struct random *r, uint32_t below)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->state >> 33) % below;
}

/// May this instance come next, what is issued so far given?
static bool ready(bool issued[STAGES][PARTS], uint32_t stage, uint32_t part)
{
    if (issued[stage][part])
        return false;
    if (stage == MERGE)
        return issued[COMBINE][part] && issued[SHARED][part];
    return stage == ROUTE || stage == SHARED || issued[stage - 1][part];
}

/// One instance, or all pieces of it from either end.
static void write_instance(struct random *r, const struct cut *cut, uint32_t stage, uint32_t part, FILE *out)
{
    uint32_t pieces = cut->pieces[stage], backwards = draw(r, 2) && stage != EXPERT; // they follow one another
    const char *name = stage == EXPERT && cut->phases ? "expert.down" : stages[stage];
    for (uint32_t k = 0; k < pieces && pieces > 1; k++)
        fprintf(out, "    %s[%u, %u];\n", name, part, backwards ? pieces - 1 - k : k);
    if (pieces == 1 && (stage != UP || cut->phases))
        fprintf(out, "    %s[%u];\n", name, part);
}

static void write_order(struct random *r, const struct cut *cut, uint32_t parts, FILE *out)
{
    bool issued[STAGES][PARTS] = {{false}};
    for (uint32_t left = STAGES * parts; left > 0;) {
        uint32_t stage = draw(r, STAGES), part = draw(r, parts);
        if (!ready(issued, stage, part))
            continue;
        issued[stage][part] = true;
        left--;
        write_instance(r, cut, stage, part, out);
    }
}

/// A send and its receive on one stream or on two, with SMs of their own or without.
static void write_messages(struct random *r, const char *stage, uint32_t streams, FILE *out)
{
    const char *lent = draw(r, 4) ? "" : " { sm: 1 }";
    if (draw(r, 3) == 0)
        fprintf(out, "    bind %s.send to m%u;\n    bind %s.recv to m%u;\n", stage, draw(r, streams), stage, draw(r, streams));
    else
        fprintf(out, "    bind %s to m%u%s;\n", stage, draw(r, streams), lent);
}

static void write_ratio(struct random *r, uint32_t parts, FILE *out)
{
    for (uint32_t p = 0; draw(r, 3) == 0 && p == 0;) {
        fprintf(out, " { ratio: [");
        for (; p < parts; p++)
            fprintf(out, "%s%u", p ? ", " : "", 1 + draw(r, 3));
        fprintf(out, "] }");
    }
    fprintf(out, ";\n");
}

/// Every third schedule cuts a stage, some two.
static struct cut write_cuts(struct random *r, FILE *out)
{
    static const uint32_t cuttable[] = {DISPATCH, EXPERT, COMBINE, SHARED, MERGE};
    struct cut cut = {.phases = draw(r, 3) == 0};
    for (uint32_t stage = 0; stage < STAGES; stage++)
        cut.pieces[stage] = 1;
    for (uint32_t i = 0; i < sizeof cuttable / sizeof *cuttable; i++) {
        uint32_t stage = cuttable[i], pieces = draw(r, 4) || (stage == EXPERT && cut.phases) ? 1 : 2 + draw(r, PIECES - 1);
        cut.pieces[stage] = pieces;
        if (pieces == 1)
            continue;
        fprintf(out, "    split %s into %u as k%u", stages[stage], pieces, stage);
        write_ratio(r, pieces, out);
    }
    return cut;
}

static void write_schedule(uint64_t number, FILE *out)
{
    struct random r = {number * 0x9e3779b97f4a7c15u + 1};
    uint32_t parts = 2 + draw(&r, PARTS - 1), computes = 1 + draw(&r, 2), streams = 1 + draw(&r, 3);
    fprintf(out, "schedule s%llu for (route, dispatch, expert, combine, shared, merge) {\n    split tokens into %u as i",
            (unsigned long long)number, parts);
    write_ratio(&r, parts, out);
    struct cut cut = write_cuts(&r, out);
    for (uint32_t s = 0; s < computes; s++)
        fprintf(out, "    stream c%u uses sm;\n", s);
    for (uint32_t s = 0; s < streams; s++)
        fprintf(out, "    stream m%u uses net_out, net_in, copy[%u];\n", s, s);
    for (uint32_t stage = 0; stage < STAGES; stage++)
        if (stage == DISPATCH || stage == COMBINE)
            write_messages(&r, stages[stage], streams, out);
        else if (stage != UP)
            fprintf(out, "    bind %s to c%u;\n", stages[stage], draw(&r, computes));
    if (cut.phases)
        fprintf(out, "    bind expert.up to c%u;\n", draw(&r, computes));
    write_order(&r, &cut, parts, out);
    fprintf(out, "}\n");
}

/// The layer with these schedules, each chosen by its own count of tokens; none: `serial`.
static char *program_text(const uint64_t *numbers, uint32_t count, bool relayed)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    fprintf(out,
            "import std.ops;\nimport std.schedules { serial };\n"
            "dim tokens <= %d;\ndim hidden = %d;\ndim ffn = 24;\ndim experts = 8;\n"
            "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n    param w_router: f32[experts, hidden];\n"
            "    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n    param w_down: bf16[experts, hidden, ffn];\n"
            "    param s_gate_up: bf16[1, 2 * ffn, hidden];\n    param s_down: bf16[1, hidden, ffn];\n"
            "    stage route: r = topk(x, w_router, k: 2);\n    stage dispatch: xd = dispatch(x, r, capacity: 0.8x%s);\n"
            "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n    stage combine: yr = combine(yd, r%s);\n"
            "    stage shared: ys = swiglu(x, s_gate_up, s_down);\n    stage merge: y = add(yr, ys);\n    yield y;\n}\n"
            "device core { sm = 4; engine copy[3], net_out, net_in; }\n"
            "cluster four { device = core; axis node[2]; axis rank[2]; link net across node { bandwidth: 1GB/s, latency: 5us };\n"
            "    link shm across rank { bandwidth: 5GB/s, latency: 1us }; }\n"
            "format blocks = fp8_e4m3 { block: [1, 64], scale: f32 };\n"
            "placement p on four { place experts over node, rank; }\n",
            BOUND, WIDTH, relayed ? ", via: node" : "", relayed ? ", wire: { node: blocks }" : "");
    for (uint32_t i = 0; i < count; i++)
        write_schedule(numbers[i], out);
    fprintf(out, "pipeline main { layer = moe; repeat = 2; cluster = four; placement = p; target = cpu;\n");
    for (uint32_t i = count; i-- > 0;)
        fprintf(out, "    use s%llu when tokens >= %u;\n", (unsigned long long)numbers[i], FIRST + i);
    fprintf(out, "    use serial;\n}\n");
    fclose(out);
    return text;
}

static bool is_relayed(uint64_t number)
{
    return number % 2;
}

/// Does the compiler accept it? A refusal is an answer too; only a bug is not.
static bool is_accepted(uint64_t number)
{
    char *text = program_text(&number, 1, is_relayed(number));
    int code = subject_check(text, NULL);
    CU_ASSERT(code == EXIT_FINE || code == EXIT_INPUT);
    if (code != EXIT_FINE && code != EXIT_INPUT)
        fprintf(stderr, "schedule %llu\n", (unsigned long long)number);
    free(text);
    return code == EXIT_FINE;
}

static struct outcome run_nth(moe_plan *plan, const float *in, uint32_t n, const char *device, uint64_t jitter)
{
    const int64_t tokens[RANKS] = {5, FIRST + n, 0, 17};
    struct run run = {.in = in, .tokens = tokens};
    run.options = (moe_options){.threads = 2, .seed = 9, .device = device, .jitter = jitter, .poison = 1};
    return run_plan_once(plan, &run);
}

static void compare(moe_plan *plan, moe_plan *serial, const float *in, uint32_t n, uint64_t number)
{
    struct outcome want = run_nth(serial, in, n, NULL, 0);
    CU_ASSERT_EQUAL_FATAL(want.status, MOE_OK);
    for (uint64_t j = 0; j <= JITTERS; j++) {
        struct outcome o = run_nth(plan, in, n, j ? "sim" : NULL, j ? number * 16 + j : 0);
        bool same = outcome_equal(&o, &want);
        CU_ASSERT(same);
        if (!same)
            fprintf(stderr, "schedule %llu: %s\n", (unsigned long long)number, o.status ? o.error : "other bytes than serial");
        outcome_free(&o);
    }
    outcome_free(&want);
}

static moe_plan *compile_text(char *text)
{
    moe_plan *plan = subject_compile(&(struct subject){.text = text, .layer = -1});
    free(text);
    return plan;
}

/// Those from `number` up to `last` with or without relays, so many in one plan; returns how many were accepted.
static uint32_t run_drawn(uint64_t number, uint64_t last, bool relayed)
{
    static float in[RANKS * BOUND * WIDTH];
    uint64_t numbers[AT_ONCE];
    uint32_t accepted = 0;
    gaussian(in, sizeof in / sizeof *in, 21);
    moe_plan *serial = compile_text(program_text(NULL, 0, relayed));
    while (number < last) {
        uint32_t count = 0;
        for (; number < last && count < AT_ONCE; number++)
            if (is_relayed(number) == relayed && is_accepted(number))
                numbers[count++] = number;
        moe_plan *plan = compile_text(program_text(numbers, count, relayed));
        for (uint32_t n = 0; n < count && plan && serial; n++)
            compare(plan, serial, in, n, numbers[n]);
        accepted += count;
        moe_plan_close(plan);
    }
    moe_plan_close(serial);
    return accepted;
}

static void test_random(void)
{
    const char *text = getenv("MOE_RANDOM_SCHEDULES"), *from = getenv("MOE_RANDOM_FIRST");
    uint64_t number = from ? strtoull(from, NULL, 10) : 1, drawn = text ? strtoull(text, NULL, 10) : 60;
    uint32_t direct = run_drawn(number, number + drawn, false), relayed = run_drawn(number, number + drawn, true),
             accepted = direct + relayed;
    CU_ASSERT(direct > 0 && relayed > 0);
    fprintf(stderr, "[%u of %u accepted, %u with relays] ", accepted, (uint32_t)drawn, relayed);
    CU_ASSERT(accepted * 5 > drawn);
}

void suite_random_schedules(void);
void suite_random_schedules(void)
{
    CU_pSuite suite = CU_add_suite("random_schedules", NULL, NULL);
    CU_add_test(suite, "random schedules give the bytes of serial whatever the delays", test_random);
}
