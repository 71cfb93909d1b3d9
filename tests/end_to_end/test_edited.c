// Compiled plans with a few fields changed: what validation lets through may compute nonsense or fail, but touches nothing
// beyond its buffers and is never taken for a good step.
#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/exec/session.h"
#include "runtime/plan/kernels.h"
#include "runtime/plan/slots.h"
#include "tests/end_to_end/harness.h"

enum { RANKS = 4, BOUND = 48 };

static const struct shape shape = {
    .hidden = 64, .ffn = 48, .experts = 12, .choices = 3, .bound = BOUND, .dtype = "bf16", .normalize = true};

static const char square[] = "device = host; axis node[2]; axis gpu[2];\n"
                             "    link ib across node { bandwidth: 1GB/s, latency: 20us, rail: true };\n"
                             "    link nv across gpu { bandwidth: 100GB/s, latency: 0us };";

static const char items[] =
    "format bits = fp8_e4m3 { block: [1, 64], scale: f32 };\n"
    "schedule cut for (route, dispatch, expert, combine) {\n"
    "    split combine into 2 as k;\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0];\n"
    "    bind route, expert to comp; bind dispatch, combine to tx;\n"
    "    route; dispatch; expert; combine[0]; combine[1];\n}\n"
    "schedule routed(n: 1..8 = 2, g: 1..16 = 2) for (route, dispatch, expert, combine) {\n"
    "    split tokens into n as i; split experts into g as w;\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0];\n"
    "    bind route, expert to comp; bind dispatch, combine to tx;\n"
    "    for i in 0..n { route[i]; }\n"
    "    for i in 0..n { for w in 0..g { dispatch[i,w]; expert[i,w]; combine[i,w]; } }\n}\n"
    "schedule rows for (route, dispatch, expert, combine) {\n"
    "    split dispatch into 3 as k; split expert into 2 as t; split combine into 2 as c;\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0];\n"
    "    bind route, expert to comp; bind dispatch, combine to tx;\n"
    "    route; for k in 0..3 { dispatch[k]; } for t in 0..2 { expert[t]; combine[t]; }\n}\n";

static moe_plan *compile_replies(const char *schedule, const char *options, const char *combine)
{
    struct routed_layer layer = {.shape = &shape,
                                 .dispatch = options,
                                 .combine = combine,
                                 .items = items,
                                 .cluster = square,
                                 .place = "place experts over node, gpu;"};
    struct subject subject = {
        .text = routed_layer_text(&layer), .schedule = schedule, .layer = -1, .cpu_level = "v2"}; // quick to compile
    return subject_compile(&subject);
}

static moe_plan *compile(const char *schedule, const char *options)
{
    return compile_replies(schedule, options, NULL);
}

static bool is_launch(const struct ir *ir, const struct plan_instr *in, uint32_t role)
{
    return in->op == opcode_launch && ROW(ir, plan_kernel, in->kernel)->role == role;
}

/// The nth launch of a role, counted over all streams.
static struct plan_instr *launch_of(const moe_plan *plan, uint32_t role, uint32_t nth)
{
    const struct ir *ir = &plan->plan.ir;
    for (uint32_t i = 0; i < COUNT(ir, plan_instr); i++)
        if (is_launch(ir, ROW(ir, plan_instr, i), role) && nth-- == 0)
            return ROW(ir, plan_instr, i);
    CU_FAIL_FATAL("no such launch");
    return NULL;
}

static struct plan_arg *arg_of(const moe_plan *plan, const struct plan_instr *in, uint32_t number)
{
    return ROW(&plan->plan.ir, plan_arg, in->args.first + number);
}

static bool is_valid(const moe_plan *plan, char *error, size_t size)
{
    return plan_validate(&plan->plan.ir, plan->plan.code_bytes, error, size);
}

/// The plan as it is now passes validation, and its run ends with the status and a message that has `part`.
static void expect_run(moe_plan *plan, moe_status status, const char *part)
{
    static const int64_t tokens[RANKS] = {BOUND, BOUND, BOUND, BOUND};
    size_t count = RANKS * BOUND * (size_t)shape.hidden;
    float *in = malloc(count * sizeof *in);
    char error[256] = "";
    gaussian(in, count, 3);
    CU_ASSERT(is_valid(plan, error, sizeof error));
    struct run run = {.in = in, .tokens = tokens, .options = {.device = "sim", .threads = 1, .seed = 5, .poison = 1}};
    struct outcome o = run_plan_once(plan, &run);
    if (o.status != status || !strstr(o.error, part))
        fprintf(stderr, "status %d, %s%s\n", (int)o.status, error, o.error);
    CU_ASSERT_EQUAL(o.status, status);
    CU_ASSERT_PTR_NOT_NULL(strstr(o.error, part));
    outcome_free(&o);
    free(in);
}

static void expect_refusal(const moe_plan *plan, const char *part)
{
    char error[256] = "it validates";
    CU_ASSERT(!is_valid(plan, error, sizeof error));
    if (!strstr(error, part))
        fprintf(stderr, "%s\n", error);
    CU_ASSERT_PTR_NOT_NULL(strstr(error, part));
}

/// Rank 0's slots for the other node are overwritten after `bin` has filled them: the accumulator, whose lifetime then seems
/// to begin with packing, lies there. What a source has for a relay is not followed where it is garbage.
static void test_relays(void)
{
    moe_plan *plan = compile("serial", "capacity: 8x, via: node");
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    const struct ir *ir = &plan->plan.ir;
    const struct plan_exchange *e = ROW(ir, plan_exchange, launch_of(plan, kernel_role_bin, 0)->exchange);
    uint32_t acc = arg_of(plan, launch_of(plan, kernel_role_mlp_down, 0), DOWN_ACC)->buffer;
    for (uint32_t r = 0; r < RANKS; r++) {
        struct plan_program *p = ROW(ir, plan_program, r);
        struct plan_extent *send = ROW(ir, plan_extent, p->extents.first + e->send),
                           *over = ROW(ir, plan_extent, p->extents.first + acc);
        int64_t far = slots_source_offset(ir, e, 0, 2) / 64 * 64, end = (p->arena_bytes + 63) / 64 * 64;
        send->offset = r ? send->offset : end; // all ranks share their extents
        over->offset = send->offset + far;
        p->arena_bytes = over->offset + over->bytes + send->bytes;
    }
    *arg_of(plan, launch_of(plan, kernel_role_copy_rows, 0), 1) =
        (struct plan_arg){.buffer = acc, .access = access_write, .first = 1, .slice = NONE};
    expect_run(plan, MOE_LOST, "for which there is no room");
    moe_plan_close(plan);
}

/// Own rows of another wave name experts that this wave's lists have no place for.
static void test_bins_of_another_wave(void)
{
    moe_plan *plan = compile("waves(g: 2)", "capacity: 8x");
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    struct plan_arg *first = arg_of(plan, launch_of(plan, kernel_role_fan_out, 0), FAN_BINS),
                    *second = arg_of(plan, launch_of(plan, kernel_role_fan_out, 1), FAN_BINS);
    CU_ASSERT_NOT_EQUAL(first->buffer, second->buffer);
    second->buffer = first->buffer;
    expect_run(plan, MOE_LOST, "are another part's");
    moe_plan_close(plan);
}

/// The second micro-batch's last launch of a role reads the routes of the first.
static void take_first_routes(const moe_plan *plan, uint32_t role)
{
    const struct ir *ir = &plan->plan.ir;
    uint32_t first = arg_of(plan, launch_of(plan, kernel_role_route, 0), ROUTE_IDS)->buffer;
    struct plan_arg *last = NULL;
    for (uint32_t i = 0; i < COUNT(ir, plan_instr); i++) {
        const struct plan_instr *in = ROW(ir, plan_instr, i);
        if (is_launch(ir, in, role) && arg_of(plan, in, BIN_IDS)->buffer != first)
            last = arg_of(plan, in, BIN_IDS);
    }
    CU_ASSERT_PTR_NOT_NULL_FATAL(last);
    last->buffer = first;
}

/// Routes that are others in a later wave, where the second micro-batch's come too early, or in overflow rounds.
static void test_changed_routes(void)
{
    moe_plan *plan = compile("routed(n: 2, g: 2)", "capacity: 8x");
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    struct plan_instr *wave = launch_of(plan, kernel_role_bin, 1), *route = launch_of(plan, kernel_role_route, 1),
                      kept = *wave;
    CU_ASSERT_EQUAL(arg_of(plan, wave, BIN_IDS)->buffer, arg_of(plan, route, ROUTE_IDS)->buffer);
    CU_ASSERT(wave < route);
    *wave = *route;
    *route = kept;
    expect_run(plan, MOE_LOST, "are not those of the wave before");
    moe_plan_close(plan);

    plan = compile("routed(n: 2, g: 1)", "capacity: 0.1x");
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    take_first_routes(plan, kernel_role_bin_round);
    expect_run(plan, MOE_LOST, "are not those announced");
    moe_plan_close(plan);
}

static void test_refusals(void)
{
    // Sums are no table of sources and targets.
    moe_plan *plan = compile("serial", "capacity: 8x, via: node");
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    uint32_t sums = arg_of(plan, launch_of(plan, kernel_role_fold, 0), FOLD_CONTROL)->buffer;
    arg_of(plan, launch_of(plan, kernel_role_copy_rows, 0), COPY_CONTROL)->buffer = sums;
    expect_refusal(plan, "too small for its kernel");
    moe_plan_close(plan);

    // Sums are packed where there is room, what comes in rounds comes as it is handed to relays, and that is no code.
    for (int i = 0; i < 4; i++) {
        plan = compile_replies("serial", "capacity: 0.3x, via: node", "wire: { node: bits }");
        CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
        const struct ir *ir = &plan->plan.ir;
        struct plan_instr *bin = launch_of(plan, kernel_role_bin, 0);
        struct plan_exchange *e = ROW(ir, plan_exchange, bin->exchange);
        if (i == 0)
            ROW(ir, plan_extent, ROW(ir, plan_program, 0)->extents.first + arg_of(plan, bin, BIN_PACKED)->buffer)->bytes -= 16;
        else if (i == 1)
            bin->args.count--;
        else if (i == 2)
            e[3].wire_of_axis[0] = e[1].wire_of_axis[0];
        else
            e[1].handed = (uint32_t)e[1].wire_of_axis[0];
        static const char *const parts[] = {"has no room to", "packs what no relay would", "its spill is not the pool combine's",
                                            "cannot be added up"};
        expect_refusal(plan, parts[i]);
        moe_plan_close(plan);
    }

    // A relay's list of sums has no chunks, what folds names what it folds for, and only chunks are about a piece.
    for (int i = 0; i < 3; i++) {
        plan = compile("cut", "capacity: 0.3x, via: node");
        CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
        struct plan_instr *fold = launch_of(plan, kernel_role_fold, 1), *sum = launch_of(plan, kernel_role_sum_rows, 0);
        for (uint32_t n = 1; sum->exchange != NONE; n++)
            sum = launch_of(plan, kernel_role_sum_rows, n);
        struct plan_exchange *chunk = ROW(&plan->plan.ir, plan_exchange, fold->exchange);
        CU_ASSERT_EQUAL(chunk->chunk, 1);
        if (i == 0)
            sum->exchange = fold->exchange;
        else if (i == 1)
            fold->exchange = chunk->base;
        else
            ROW(&plan->plan.ir, plan_exchange, chunk->base)->piece = chunk->piece;
        static const char *const parts[] = {"control data that is whole", "names no combine", "a piece where no chunk is"};
        expect_refusal(plan, parts[i]);
        moe_plan_close(plan);
    }

    // Own rows lie as far apart as their buffer says.
    plan = compile("serial", "capacity: 8x");
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    struct plan_arg *x = arg_of(plan, launch_of(plan, kernel_role_fan_out, 0), FAN_X),
                    *ids = arg_of(plan, launch_of(plan, kernel_role_route, 0), ROUTE_IDS);
    x->buffer = ids->buffer;
    x->slice = NONE;
    ROW(&plan->plan.ir, plan_buffer, ids->buffer)->row_bytes = 1 << 20;
    expect_refusal(plan, "the own rows are too small");
    moe_plan_close(plan);
}

/// A row of A for each routed row, or one for each pair: who fills it, who reads it and its size agree.
static void test_rows_of_a(void)
{
    moe_plan *plan = compile("serial", "capacity: 8x");
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    const struct ir *ir = &plan->plan.ir;
    struct plan_kernel *up = ROW(ir, plan_kernel, launch_of(plan, kernel_role_mlp_up, 0)->kernel),
                       *fan_out = ROW(ir, plan_kernel, launch_of(plan, kernel_role_fan_out, 0)->kernel);
    CU_ASSERT(up->n[7] & MLP_BY_ROW && fan_out->n[4] == 1);
    up->n[7] ^= MLP_BY_ROW;
    expect_refusal(plan, "not those that its control tells of");
    fan_out->n[4] = 0;
    expect_refusal(plan, "A or the own rows are too small");
    up->n[7] ^= MLP_BY_ROW;
    fan_out->n[4] = 1;
    expect_run(plan, MOE_OK, "");
    moe_plan_close(plan);
}

/// Constants of kernels as large as they may be, two at a time: nothing that is worked out from them overflows, and what a
/// built-in would work with is refused.
static void test_large_constants(void)
{
    moe_plan *plan = compile("rows", "capacity: 0.3x, pool: 0.1x");
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    struct ir *ir = &plan->plan.ir;
    char error[256];
    for (uint32_t i = 0; i < COUNT(ir, plan_kernel); i++)
        for (int a = 0; a < 12; a++)
            for (int b = a; b < 12; b++) {
                struct plan_kernel *k = ROW(ir, plan_kernel, i), saved = *k;
                bool bins = k->role == kernel_role_bin || k->role == kernel_role_bin_round;
                k->n[a] = k->n[b] = MOE_MAX_BYTES;
                bool refused = !plan_validate(ir, 1 << 20, error, sizeof error);
                CU_ASSERT(refused || !bins || (a != 0 && a != 3 && b != 3));
                *k = saved;
            }
    CU_ASSERT_TRUE(plan_validate(ir, 1 << 20, error, sizeof error));
    moe_plan_close(plan);
}

static struct plan_exchange *dispatch_of(const moe_plan *plan)
{
    return ROW(&plan->plan.ir, plan_exchange, launch_of(plan, kernel_role_fan_out, 0)->exchange);
}

/// Rows in pieces: every field of theirs is looked at.
static void test_pieces_refused(void)
{
    moe_plan *plan = compile("rows", "capacity: 8x");
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    struct plan_exchange *e = dispatch_of(plan), first = e[0], second = e[1];
    CU_ASSERT(e->chunks == 3 && e->answers == 2 && e->runs.count == 2);
    e[1].chunk = 2;
    expect_refusal(plan, "is not chunk 1 of its exchange");
    e[1] = second;
    e[1].piece = e->part;
    expect_refusal(plan, "its chunk is no piece of its part");
    e[1] = second;
    e[1].send = e->recv;
    expect_refusal(plan, "is not chunk 1 of its exchange");
    e[1] = second;
    e->answers = 3;
    expect_refusal(plan, "header of");
    *e = first;
    e->runs.first++;
    expect_refusal(plan, "is not chunk 1 of its exchange");
    *e = first;
    for (int k = 0; k < 3; k++)
        e[k].runs.count = 9;
    expect_refusal(plan, "taken in 9 pieces");
    for (int k = 0; k < 3; k++)
        e[k].runs = (struct rows){first.runs.first - 1, 2};
    expect_refusal(plan, "does not follow the one before");
    for (int k = 0; k < 3; k++)
        e[k].runs = first.runs;
    struct plan_instr *fan_out = launch_of(plan, kernel_role_fan_out, 0);
    fan_out->part = e->part;
    expect_refusal(plan, "is of the wrong kind"); // its rows of x are the piece's
    fan_out->part = e->runs.first;
    launch_of(plan, kernel_role_bin, 0)->exchange++;
    expect_refusal(plan, "names no dispatch");
    launch_of(plan, kernel_role_bin, 0)->exchange--;
    struct plan_instr *unpack = fan_out + 1;
    unpack->exchange = fan_out->exchange;
    expect_refusal(plan, "control data that is whole");
    moe_plan_close(plan);
}

/// Pieces in another order than that in which the headers of their answers are begun.
static void test_pieces_run(void)
{
    moe_plan *plan = compile("rows", "capacity: 8x");
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    struct plan_instr *a = launch_of(plan, kernel_role_fan_out, 0), *b = launch_of(plan, kernel_role_fan_out, 1);
    uint32_t part = a->part;
    a->part = arg_of(plan, a, FAN_X)->slice = b->part;
    b->part = arg_of(plan, b, FAN_X)->slice = part;
    expect_run(plan, MOE_LOST, "");
    moe_plan_close(plan);
}

void suite_edited(void);
void suite_edited(void)
{
    CU_pSuite suite = CU_add_suite("edited", NULL, NULL);
    CU_add_test(suite, "large constants of kernels", test_large_constants);
    CU_add_test(suite, "relays are given garbage", test_relays);
    CU_add_test(suite, "bins of another wave", test_bins_of_another_wave);
    CU_add_test(suite, "routes that change", test_changed_routes);
    CU_add_test(suite, "refused by validation", test_refusals);
    CU_add_test(suite, "rows of A, by row or by pair", test_rows_of_a);
    CU_add_test(suite, "rows in pieces are refused", test_pieces_refused);
    CU_add_test(suite, "pieces in another order", test_pieces_run);
}
