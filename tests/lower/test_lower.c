// Lowering: slot formulas against exact integer arithmetic, plans of many shapes that validate and are accepted by the
// verifier, mutations that it refuses, and arena sharing checked by an explicit model of several ranks.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "compiler/lower/lower.h"
#include "compiler/plan/build.h"
#include "tests/lower/brute_force.h"
#include "tests/lower/fixture.h"

// Formulas.

typedef unsigned __int128 wide;

static wide choose(int n, int k)
{
    wide result = 1;
    if (k > n)
        return 0;
    for (int i = 1; i <= k; i++) {
        uint64_t factor = (uint64_t)(n - k + i), divisor = (uint64_t)i;
        result *= factor;
        result /= divisor;
    }
    return result;
}

/// ceil(quarters / 4 * bound * (1 - C(E - owned, k) / C(E, k))), at most bound, in integers.
static int64_t exact_rows(int64_t bound, int quarters, int experts, int owned, int k)
{
    wide all = choose(experts, k), hit = all - choose(experts - owned, k);
    wide top = (wide)quarters * (wide)bound * hit, below = 4 * all;
    int64_t rows = (int64_t)((top + below - 1) / below);
    return rows < bound ? rows : bound;
}

static void test_base_rows(void)
{
    static const int experts[] = {8, 60, 64, 256}, ks[] = {1, 2, 6, 8}, quarters[] = {1, 4, 5, 8, 40};
    static const int64_t bounds[] = {0, 1, 7, 512, 1024, 4096, 65536};
    for (size_t e = 0; e < 4; e++)
        for (int owned = 0; owned <= experts[e]; owned += owned < 9 ? 1 : 17)
            for (size_t k = 0; k < 4; k++)
                for (size_t q = 0; q < 5; q++)
                    for (size_t b = 0; b < 7; b++) {
                        double hit = slot_hit_share(experts[e], owned, ks[k]);
                        int64_t rows = slot_base_rows(bounds[b], bounds[b], quarters[q] / 4.0, hit);
                        CU_ASSERT_EQUAL_FATAL(rows, exact_rows(bounds[b], quarters[q], experts[e], owned, ks[k]));
                    }
    CU_ASSERT_EQUAL(slot_base_rows(100, 100, 1.0 / 0.0, 0.5), 100);
    CU_ASSERT_EQUAL(slot_hit_share(8, 8, 2), 1.0);
    CU_ASSERT_EQUAL(slot_hit_share(8, 0, 2), 0.0);
}

static void test_pool_rows(void)
{
    CU_ASSERT_EQUAL(slot_pool_rows(0.25, 4, 595), 595);
    CU_ASSERT_EQUAL(slot_pool_rows(0.25, 4, 3), 3);
    CU_ASSERT_EQUAL(slot_pool_rows(0.1, 3, 10), 3); // 3.0000000000000004 in binary
    CU_ASSERT_EQUAL(slot_pool_rows(0.1, 3, 11), 4);
    CU_ASSERT_EQUAL(slot_pool_rows(0, 4, 595), 0);
    CU_ASSERT_EQUAL(slot_rounds(4, 1024 - 595, 595), 3); // 3 * 429 / 595 = 2.16
    CU_ASSERT_EQUAL(slot_rounds(4, 0, 0), 0);
    CU_ASSERT_EQUAL(slot_rounds(1, 1014, 0), 0);
    CU_ASSERT_EQUAL(slot_rounds(2, 1, 0), -1);
    CU_ASSERT_EQUAL(slot_rounds(2, 2, 2), 1);
}

// Shapes.

static const char *const uses[] = {"serial",       "ladder(n: 2)", "ladder(n: 3)", "ladder(n: 4)",
                                   "ladder(n: 5)", "ladder(n: 6)", "ladder(n: 7)", "ladder(n: 8)"};

static const char hook[] = "schedule hook for (route, dispatch, expert, combine) {\n"
                           "    split tokens into 3 as i;\n"
                           "    stream comp uses sm, net_in;\n"
                           "    stream tx uses net_out, net_in, copy[0];\n"
                           "    bind route, expert, dispatch.recv to comp;\n"
                           "    bind dispatch.send, combine to tx;\n"
                           "    pipelined i in 0..3 { route[i+1]; dispatch[i]; expert[i]; combine[i]; }\n"
                           "}\n";

/// Replies in chunks, the second of which are merged first, on a stream of their own.
static const char chunks[] = "schedule chunks for (route, dispatch, expert, combine) {\n"
                             "    split tokens into 2 as i;\n"
                             "    split combine into 2 as k { ratio: [2, 1] };\n"
                             "    stream comp uses sm;\n    stream more uses sm;\n"
                             "    stream tx uses net_out, net_in, copy[0];\n    stream rx uses net_out, net_in, copy[0];\n"
                             "    bind route, expert to comp;\n    bind dispatch to tx;\n    bind combine.merge to more;\n"
                             "    bind combine.send to tx;\n    bind combine.recv to rx;\n"
                             "    for i in 0..2 { route[i]; dispatch[i]; expert[i]; combine[i, 1]; combine[i, 0]; }\n"
                             "}\n";

/// Two hops: nodes of two and of three ranks, without a pool, with one, with rounds, waves through relays.
static void test_relayed_shapes(void)
{
    static const char *const relayed[] = {"serial", "ladder(n: 2)", "ladder(n: 3)", "waves(g: 2)", "hook", "chunks"};
    static const char *const options[] = {", via: node, capacity: 8x", ", via: node", ", via: node, capacity: 0.1x, pool: 0.05x"};
    for (size_t u = 0; u < sizeof relayed / sizeof *relayed; u++)
        for (size_t o = 0; o < sizeof options / sizeof *options; o++)
            for (int nodes = 0; nodes < 3; nodes++) {
                static const char *const replies[] = {NULL, ", wire: { node: f32 }", ", wire: f32"};
                struct setting setting = {relayed[u], 1 + (int)(u + o) % 2, nodes ? 6 : 4, 12, 96, options[o], u == 5 ? chunks : hook, NULL, false,
                                          nodes == 2 ? 3 : 2, replies[(u + o + (size_t)nodes) % 3]};
                check_setting(&setting);
            }
}

static const char filled[] = "schedule filled for moe {\n"
                             "    split tokens into 2 as i;\n"
                             "    stream comp uses sm;\n"
                             "    stream tx uses net_out, net_in, copy[0];\n"
                             "    bind route, expert, shared, merge to comp;\n"
                             "    bind dispatch, combine to tx { sm: 1 };\n"
                             "    for i in 0..2 { route[i]; dispatch[i]; expert[i]; combine[i]; }\n"
                             "    for i in 0..2 { fill comp with shared[i] { pieces: 2 }; defer merge[i]; }\n"
                             "}\n";

static void test_shapes(void)
{
    static const int ranks[] = {1, 2, 4, 3}, layers[] = {1, 4, 2};
    for (size_t u = 0; u < sizeof uses / sizeof *uses; u++)
        for (size_t r = 0; r < 4; r++)
            for (size_t d = 0; d < 3; d++) {
                struct setting setting = {uses[u], layers[d], ranks[r], 8, 256, NULL, NULL, NULL, false, 0, NULL};
                check_setting(&setting);
                setting.dispatch = ", capacity: 8x"; // no pool
                check_setting(&setting);
            }
}

static void test_other_shapes(void)
{
    static const struct setting settings[] = {
        {"serial", 3, 5, 3, 64, NULL, NULL, NULL, false, 0, NULL}, // ranks without experts
        {"ladder(n: 4)", 3, 3, 8, 64, ", capacity: 0.1x", NULL, NULL, false, 0, NULL},
        {"ladder(n: 4)", 2, 3, 8, 64, ", overflow: error", NULL, NULL, false, 0, NULL},
        {"ladder(n: 8)", 2, 2, 8, 3, NULL, NULL, NULL, false, 0, NULL}, // fewer tokens than parts
        {"serial", 2, 2, 8, 64, ", wire: f32", NULL, "bf16", false, 0, NULL},
        {"ladder(n: 2)", 2, 3, 8, 64, ", wire: bf16", NULL, "f32", false, 0, NULL},
        {"hook", 3, 3, 8, 64, NULL, hook, NULL, false, 0, NULL},
        {"serial", 2, 2, 8, 64, NULL, NULL, NULL, true, 0, NULL},
        {"filled", 2, 2, 8, 64, NULL, filled, NULL, true, 0, NULL}, // all pieces of one part are all that its sum reads
        {"ladder(n: 3)", 3, 3, 8, 64, NULL, NULL, NULL, true, 0, NULL},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        check_setting(&settings[i]);
}

static void test_rounds(void)
{
    struct lowered l;
    struct setting setting = {"serial", 1, 4, 8, 1024, NULL, NULL, NULL, false, 0, NULL};
    lower_setting(&l, &setting);
    if (accepted(&l)) {
        const struct plan_variant *v = ROW(&l.plan, plan_variant, l.variant);
        CU_ASSERT_EQUAL_FATAL(v->exchanges.count, 4);
        const struct plan_exchange *e = ROW(&l.plan, plan_exchange, v->exchanges.first);
        CU_ASSERT_EQUAL(ROW(&l.plan, plan_slot, e[0].slots.first)->rows, 595); // ceil(1.25 * 1024 * 13 / 28)
        CU_ASSERT_EQUAL(ROW(&l.plan, plan_slot, e[2].slots.first)->rows, 595); // ceil(0.25 * 4 * 595)
        CU_ASSERT_EQUAL(e[2].max_rounds, 3);
        CU_ASSERT_TRUE(e[2].pool && e[3].pool && !e[0].pool);
    }
    lowered_free(&l);
    setting.dispatch = ", pool: 0x";
    lower_setting(&l, &setting);
    CU_ASSERT_EQUAL(l.variant, NONE);
    CU_ASSERT_PTR_NOT_NULL(strstr(l.errors, "E0206"));
    CU_ASSERT_PTR_NOT_NULL(strstr(l.errors, "without a pool every row needs a slot"));
    lowered_free(&l);
    setting.dispatch = ", pool: 0x, capacity: 4x";
    lower_setting(&l, &setting);
    accepted(&l);
    lowered_free(&l);
    setting.dispatch = ", overflow: error";
    lower_setting(&l, &setting);
    if (accepted(&l))
        CU_ASSERT_EQUAL(COUNT(&l.plan, plan_exchange), 2);
    lowered_free(&l);
}

// Mutations.

static void test_mutations(void)
{
    static const int ranks[] = {1, 2, 4, 3};
    for (size_t u = 0; u < sizeof uses / sizeof *uses; u++)
        for (size_t r = 0; r < 4; r++) {
            struct setting setting = {uses[u], r % 2 ? 2 : 1, ranks[r], 8, 128, NULL, NULL, NULL, false, 0, NULL};
            mutate_semaphores(&setting, false);
        }
    struct setting setting = {"hook", 2, 3, 8, 64, NULL, hook, NULL, false, 0, NULL};
    mutate_semaphores(&setting, true);
    setting = (struct setting){"ladder(n: 3)", 2, 3, 8, 64, NULL, NULL, NULL, true, 0, NULL};
    mutate_semaphores(&setting, false);
    setting = (struct setting){"ladder(n: 2)", 2, 4, 8, 64, ", via: node", NULL, NULL, false, 2, NULL};
    mutate_semaphores(&setting, true);
    setting = (struct setting){"hook", 1, 6, 12, 64, ", via: node, capacity: 8x", hook, NULL, false, 3, NULL};
    mutate_semaphores(&setting, true);
    setting = (struct setting){"chunks", 1, 4, 8, 64, ", via: node", chunks, NULL, false, 2, ", wire: { node: f32 }"};
    mutate_semaphores(&setting, true);
}

static bool refused_with(struct lowered *l, const char *words)
{
    char error[512] = "";
    bool passes = program_verify(&l->context, &l->plan, l->variant, error, sizeof error);
    bool fits = !passes && strstr(error, words);
    if (!fits)
        fprintf(stderr, "expected `%s`, got `%s`\n", words, passes ? "accepted" : error);
    return fits;
}

static struct plan_instr *find_instr(struct lowered *l, uint32_t op, const char *label)
{
    for (uint32_t i = 0; i < COUNT(&l->plan, plan_instr); i++) {
        struct plan_instr *instr = ROW(&l->plan, plan_instr, i);
        if (instr->op == op && !strcmp(ir_text(&l->plan, instr->label), label))
            return instr;
    }
    return NULL;
}

static const struct plan_instr *find_kernel(struct lowered *l, uint32_t role)
{
    for (uint32_t i = 0; i < COUNT(&l->plan, plan_instr); i++) {
        const struct plan_instr *instr = ROW(&l->plan, plan_instr, i);
        if (instr->op == opcode_launch && ROW(&l->plan, plan_kernel, instr->kernel)->role == role)
            return instr;
    }
    return NULL;
}

static void test_refusals(void)
{
    struct lowered l;
    struct setting setting = {"ladder(n: 2)", 1, 3, 8, 128, NULL, NULL, NULL, false, 0, NULL};
    lower_setting(&l, &setting);
    if (!accepted(&l)) {
        lowered_free(&l);
        return;
    }
    // a message received before it is sent: all ranks wait
    struct plan_instr *send = find_instr(&l, opcode_send, "dispatch.send[0]"),
                      *recv = find_instr(&l, opcode_recv, "dispatch.recv[0]");
    CU_ASSERT_PTR_NOT_NULL_FATAL(send);
    CU_ASSERT_PTR_NOT_NULL_FATAL(recv);
    struct plan_instr a = *send, b = *recv;
    *send = b, *recv = a;
    CU_ASSERT_TRUE(refused_with(&l, "deadlock"));
    *send = a, *recv = b;
    // a recv without a send
    send->op = opcode_host;
    CU_ASSERT_TRUE(refused_with(&l, "no send"));
    send->op = opcode_send;
    // rounds without an end
    struct plan_instr *end = find_instr(&l, opcode_end, "expert[1]");
    CU_ASSERT_PTR_NOT_NULL_FATAL(end);
    end->op = opcode_host;
    CU_ASSERT_TRUE(refused_with(&l, "rounds and ends"));
    end->op = opcode_end;
    // two buffers in one place
    const struct plan_program *program = ROW(&l.plan, plan_program, 0);
    const struct plan_exchange *e = ROW(&l.plan, plan_exchange, 0);
    struct plan_extent *x = ROW(&l.plan, plan_extent, program->extents.first + e->recv), saved = *x;
    x->offset = ROW(&l.plan, plan_extent, program->extents.first + e->send)->offset;
    CU_ASSERT_TRUE(refused_with(&l, "dispatch.send"));
    *x = saved;
    // a peer's overflow rows arrive while this rank still computes with its base rows
    e = ROW(&l.plan, plan_exchange, 2);
    struct plan_extent *late = ROW(&l.plan, plan_extent, program->extents.first + e->recv), saved_late = *late;
    const struct plan_instr *up = find_kernel(&l, kernel_role_mlp_up);
    uint32_t a_rows = ROW(&l.plan, plan_arg, up->args.first + UP_A)->buffer;
    late->offset = ROW(&l.plan, plan_extent, program->extents.first + a_rows)->offset;
    CU_ASSERT_TRUE(refused_with(&l, "of another rank"));
    *late = saved_late;
    // rows of A by another number than who fills them gave them
    struct plan_kernel *up_kernel = ROW(&l.plan, plan_kernel, up->kernel);
    up_kernel->n[7] ^= MLP_BY_ROW;
    CU_ASSERT_TRUE(refused_with(&l, "rows of A by another number"));
    up_kernel->n[7] ^= MLP_BY_ROW;
    // a slot too small
    x->bytes -= 64;
    CU_ASSERT_TRUE(refused_with(&l, "do not hold its slots"));
    *x = saved;
    CU_ASSERT_TRUE(accepted(&l));
    lowered_free(&l);
}

static const char halves[] = "schedule halves for moe {\n"
                             "    split tokens into 2 as i; split shared into 2 as k; split merge into 2 as m;\n"
                             "    stream comp uses sm; stream side[2] uses sm; stream tx uses net_out, net_in, copy[0];\n"
                             "    bind route, expert, merge to comp; bind shared to side; bind dispatch, combine to tx;\n"
                             "    for i in 0..2 { route[i]; dispatch[i]; expert[i]; combine[i]; }\n"
                             "    for i in 0..2 { for k in 0..2 { shared[i, k] on side[i]; } for m in 0..2 { merge[i, m]; } }\n"
                             "}\n";

/// Pieces of two micro-batches begin at the start of what holds their batch: in one buffer they would meet.
static void test_pieces_meet(void)
{
    struct lowered l;
    struct setting setting = {"halves", 1, 2, 8, 128, NULL, halves, NULL, true, 0, NULL};
    lower_setting(&l, &setting);
    uint32_t values[2] = {NONE, NONE}, moved = 0;
    for (uint32_t i = 0; accepted(&l) && i < COUNT(&l.plan, plan_buffer); i++)
        for (int part = 0; part < 2; part++)
            if (!strcmp(ir_text(&l.plan, ROW(&l.plan, plan_buffer, i)->name), part ? "ys[1]" : "ys[0]"))
                values[part] = i;
    CU_ASSERT(values[0] != NONE && values[1] != NONE);
    for (uint32_t i = 0; i < COUNT(&l.plan, plan_arg); i++) {
        struct plan_arg *arg = ROW(&l.plan, plan_arg, i);
        moved += arg->buffer == values[1];
        arg->buffer = arg->buffer == values[1] ? values[0] : arg->buffer;
    }
    CU_ASSERT(moved > 0 && refused_with(&l, "nothing orders them"));
    lowered_free(&l);
}

// Sizes.

static int64_t largest_arena(const struct ir *plan)
{
    int64_t most = 0;
    for (uint32_t i = 0; i < COUNT(plan, plan_program); i++)
        if (ROW(plan, plan_program, i)->arena_bytes > most)
            most = ROW(plan, plan_program, i)->arena_bytes;
    return most;
}

/// More tokens never need a smaller buffer; layers beyond a few need no more memory.
static void test_sizes(void)
{
    static const int tokens[] = {0, 1, 8, 64, 65, 512, 4096};
    struct ir before;
    ir_init(&before, &plan_ir);
    for (size_t i = 1; i < sizeof tokens / sizeof *tokens; i++) {
        struct lowered l;
        struct setting setting = {"ladder(n: 3)", 2, 3, 8, tokens[i], ", capacity: 1x", NULL, NULL, false, 0, NULL};
        lower_setting(&l, &setting);
        uint32_t count = COUNT(&l.plan, plan_extent);
        for (uint32_t x = 0; x < count && COUNT(&before, plan_extent) == count; x++)
            CU_ASSERT_TRUE(ROW(&l.plan, plan_extent, x)->bytes >= ROW(&before, plan_extent, x)->bytes);
        ir_free(&before);
        before = l.plan;
        ir_init(&l.plan, &plan_ir);
        lowered_free(&l);
    }
    ir_free(&before);
    int64_t few = 0;
    for (int layers = 3; layers <= 12; layers += 9) {
        struct lowered l;
        struct setting setting = {"ladder(n: 4)", layers, 4, 8, 512, NULL, NULL, NULL, false, 0, NULL};
        lower_setting(&l, &setting);
        if (accepted(&l) && layers == 3)
            few = largest_arena(&l.plan);
        CU_ASSERT_TRUE(largest_arena(&l.plan) <= few * 11 / 10);
        lowered_free(&l);
    }
}

static void test_sharing(void)
{
    struct lowered l;
    struct setting setting = {"serial", 1, 2, 8, 512, NULL, NULL, NULL, false, 0, NULL};
    lower_setting(&l, &setting);
    if (accepted(&l)) {
        int64_t sum = 0;
        const struct plan_program *program = ROW(&l.plan, plan_program, 0);
        for (uint32_t i = 0; i < program->extents.count; i++)
            if (ROW(&l.plan, plan_buffer, i)->kind == buffer_kind_arena)
                sum += ROW(&l.plan, plan_extent, program->extents.first + i)->bytes;
        CU_ASSERT_TRUE(program->arena_bytes < sum * 9 / 10);
    }
    lowered_free(&l);
}

/// A large step: 61 layers of 8 parts on 64 ranks.
/// The processor time that a large schedule takes to be lowered and proven; the bound is far above both, also under sanitizers.
static void time_setting(const struct setting *setting, const char *what)
{
    struct lowered l;
    struct timespec start, middle, end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    lower_setting(&l, setting);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &middle);
    accepted(&l);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    double made = (double)(middle.tv_sec - start.tv_sec) + 1e-9 * (double)(middle.tv_nsec - start.tv_nsec);
    double proven = (double)(end.tv_sec - middle.tv_sec) + 1e-9 * (double)(end.tv_nsec - middle.tv_nsec);
    fprintf(stderr, "[%s: front end and lowering %.2f s, proof %.2f s, %u instructions, %u buffers] ", what, made, proven,
            COUNT(&l.plan, plan_instr), COUNT(&l.plan, plan_buffer));
    CU_ASSERT_TRUE(made + proven < 60);
    lowered_free(&l);
}

static void test_speed(void)
{
    static const char many[] = "schedule many for (route, dispatch, expert, combine) {"
                               "    split tokens into 1024 as i; stream comp uses sm; stream tx uses net_out, net_in, copy[0];"
                               "    stream rx uses net_out, net_in, copy[1]; bind route, expert to comp; bind dispatch to tx;"
                               "    bind combine to rx;"
                               "    pipelined i in 0..1024 { route[i+2]; dispatch[i+1] || expert[i] || combine[i-1]; } }";
    time_setting(&(struct setting){"ladder(n: 8)", 61, 64, 256, 4096, NULL, NULL, NULL, false, 0, NULL},
                 "61 layers, 8 parts, 64 ranks");
    time_setting(&(struct setting){"many", 1, 4, 8, 4096, NULL, many, NULL, false, 0, NULL}, "1024 parts");
}

// Carriers.

static void test_carriers(void)
{
    struct lowered l;
    struct setting setting = {"serial", 1, 2, 8, 64, NULL, NULL, NULL, false, 0, NULL};
    static const char stub[] = "not really an executable";
    char path[64], header[64], error[256] = "";
    void *image = NULL;
    size_t size = 0;
    lower_setting(&l, &setting);
    snprintf(path, sizeof path, "/tmp/lower_%ld.so", (long)getpid());
    snprintf(header, sizeof header, "/tmp/lower_%ld.h", (long)getpid());
    CU_ASSERT_TRUE_FATAL(accepted(&l) && plan_write(&l.plan, "x", 1, &image, &size));
    struct carried_plan plan_in = {image, size, "v3"};
    CU_ASSERT_TRUE(write_executable(&l.context, stub, sizeof stub, &plan_in, 1, path));
    CU_ASSERT_EQUAL(access(path, X_OK), 0);
    struct plan plan;
    CU_ASSERT_TRUE(plan_open_file(&plan, path, NULL, error, sizeof error));
    CU_ASSERT_EQUAL(COUNT(&plan.ir, plan_instr), COUNT(&l.plan, plan_instr));
    plan_close(&plan);
    char library[1000] = "no library either: ";
    CU_ASSERT_FALSE(write_library(&l.context, library, sizeof library, &plan_in, 1, path));
    memset(library + 20, '=', SONAME_ROOM);
    CU_ASSERT_TRUE(write_library(&l.context, library, sizeof library, &plan_in, 1, path));
    CU_ASSERT_EQUAL(access(header, R_OK), 0);
    CU_ASSERT_TRUE(plan_open_file(&plan, path, NULL, error, sizeof error));
    plan_close(&plan);
    CU_ASSERT_FALSE(write_executable(&l.context, stub, sizeof stub, &plan_in, 1, "/nowhere/at/all"));
    CU_ASSERT_PTR_NOT_NULL(strstr(l.context.fatal_message, "/nowhere/at/all: No such file"));
    unlink(path);
    unlink(header);
    free(image);
    lowered_free(&l);
}

// Crafted plans.

static bool is_valid(const struct lowered *l)
{
    char error[256];
    return plan_validate(&l->plan, 1 << 20, error, sizeof error);
}

/// Sizes that only generated code follows: validation holds them against the parameters and the experts of the launch.
static void test_crafted(void)
{
    struct lowered l;
    struct setting setting = {"serial", 1, 2, 8, 64, NULL, NULL, NULL, false, 0, NULL};
    lower_setting(&l, &setting);
    CU_ASSERT_TRUE_FATAL(accepted(&l) && is_valid(&l));
    uint32_t refused = 0;
    for (uint32_t i = 0; i < COUNT(&l.plan, plan_kernel); i++) {
        struct plan_kernel *kernel = ROW(&l.plan, plan_kernel, i), saved = *kernel;
        if (kernel->role != kernel_role_mlp_up && kernel->role != kernel_role_mlp_down)
            continue;
        for (int bit = 0; bit < 24; bit++, refused++) {
            kernel->unit_count ^= INT64_C(1) << bit;
            CU_ASSERT_FALSE(is_valid(&l));
            *kernel = saved;
        }
    }
    CU_ASSERT_EQUAL(refused, 48);
    for (uint32_t i = 0; i < COUNT(&l.plan, plan_param); i++) {
        struct plan_param *param = ROW(&l.plan, plan_param, i), saved = *param;
        param->per_expert = !param->per_expert;
        CU_ASSERT_FALSE(is_valid(&l));
        *param = saved;
        param->cols -= 8;
        CU_ASSERT_FALSE(is_valid(&l));
        *param = saved;
        param->rows = param->rows / 2;
        CU_ASSERT_FALSE(is_valid(&l));
        *param = saved;
    }
    for (uint32_t i = 0; i < COUNT(&l.plan, plan_stream); i++) {
        struct plan_stream *stream = ROW(&l.plan, plan_stream, i), saved = *stream;
        stream->instrs.first = i ? 0 : 1;
        CU_ASSERT_FALSE(is_valid(&l));
        *stream = saved;
        stream->instrs.count--;
        CU_ASSERT_FALSE(is_valid(&l));
        *stream = saved;
        stream->priority = INT64_C(3530463117312);
        CU_ASSERT_FALSE(is_valid(&l));
        *stream = saved;
    }
    CU_ASSERT_TRUE(is_valid(&l));
    lowered_free(&l);
}

void suite_lower(void)
{
    CU_pSuite suite = CU_add_suite("lower", NULL, NULL);
    CU_ADD_TEST(suite, test_base_rows);
    CU_ADD_TEST(suite, test_pool_rows);
    CU_ADD_TEST(suite, test_shapes);
    CU_ADD_TEST(suite, test_relayed_shapes);
    CU_ADD_TEST(suite, test_other_shapes);
    CU_ADD_TEST(suite, test_rounds);
    CU_ADD_TEST(suite, test_mutations);
    CU_ADD_TEST(suite, test_refusals);
    CU_ADD_TEST(suite, test_pieces_meet);
    CU_ADD_TEST(suite, test_sizes);
    CU_ADD_TEST(suite, test_sharing);
    CU_ADD_TEST(suite, test_speed);
    CU_ADD_TEST(suite, test_carriers);
    CU_ADD_TEST(suite, test_crafted);
}
