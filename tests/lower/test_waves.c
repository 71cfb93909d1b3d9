// Waves of experts, lowered: slots and pools of each wave, replies to rows of earlier waves, every buffer's last reader,
// for ranks with fewer experts than waves and with none.
#include <CUnit/CUnit.h>
#include <string.h>

#include "tests/lower/fixture.h"

// By copy engines alone: the packs of all waves stand behind the route, the merges at the end.
static const char copies[] = "schedule copies(g: 1..16 = 2) for (route, dispatch, expert, combine) {\n"
                             "    split experts into g as w;\n"
                             "    stream comp uses sm;\n"
                             "    stream tx[2] uses net_out, net_in, copy[0];\n"
                             "    stream rx uses net_out, net_in, copy[1];\n"
                             "    bind route, expert to comp; bind dispatch to tx; bind combine to rx;\n"
                             "    route;\n"
                             "    for w in 0..g { dispatch[w] on tx[w mod 2]; }\n"
                             "    for w in 0..g { expert[w]; combine[w]; }\n"
                             "}\n"
                             "schedule backwards(g: 1..16 = 3) for (route, dispatch, expert, combine) {\n"
                             "    split experts into g as w;\n"
                             "    stream comp uses sm; stream more uses sm;\n"
                             "    stream tx uses sm, net_out, net_in, copy[0];\n"
                             "    stream rx uses sm, net_out, net_in, copy[1];\n"
                             "    bind route, expert to comp; bind dispatch to tx { sm: 4 };\n"
                             "    bind combine.send, combine.recv to rx; bind combine.merge to more;\n"
                             "    route;\n"
                             "    for w in 0..g { dispatch[w]; }\n"
                             "    for w in 0..g { expert[g-1-w]; combine.send[g-1-w]; combine.recv[g-1-w]; }\n"
                             "    for w in 0..g { combine.merge[w]; }\n"
                             "}\n"
                             "schedule both(n: 1..8 = 2, g: 1..16 = 2) for (route, dispatch, expert, combine) {\n"
                             "    split tokens into n as i;\n"
                             "    split experts into g as w;\n"
                             "    stream comp uses sm;\n"
                             "    stream tx uses net_out, net_in, copy[0];\n"
                             "    stream rx uses net_out, net_in, copy[1];\n"
                             "    bind route, expert to comp; bind dispatch to tx; bind combine to rx { sm: 2 };\n"
                             "    for i in 0..n {\n"
                             "        route[i];\n"
                             "        pipelined w in 0..g { dispatch[i,w+1] || expert[i,w] || combine[i,w-1]; }\n"
                             "    }\n"
                             "}\n";

static void test_wave_shapes(void)
{
    static const char *const wave_uses[] = {"waves(g: 2)",   "waves(g: 3)",     "waves(g: 8)",        "copies(g: 3)",
                                            "copies(g: 16)", "backwards(g: 3)", "both(n: 2, g: 3)", "both(n: 3, g: 1)"};
    static const int ranks[] = {1, 2, 4, 3};
    static const char *const options[] = {NULL, ", capacity: 8x", ", capacity: 0.1x, pool: 0.05x"};
    for (size_t u = 0; u < sizeof wave_uses / sizeof *wave_uses; u++)
        for (size_t r = 0; r < 4; r++)
            for (size_t o = 0; o < 3; o++) {
                struct setting setting = {wave_uses[u], 1 + (int)o % 2, ranks[r], 8, 96, options[o], copies, NULL, false, 0, NULL};
                check_setting(&setting);
            }
}

static void test_wave_ranks(void)
{
    static const struct setting settings[] = {
        {"waves(g: 2)", 2, 5, 3, 64, NULL, copies, NULL, false, 0, NULL}, // ranks without experts
        {"waves(g: 4)", 1, 3, 7, 64, NULL, copies, NULL, false, 0, NULL}, // waves without experts on some ranks
        {"copies(g: 8)", 2, 3, 3, 64, ", capacity: 0.1x", copies, NULL, false, 0, NULL},
        {"both(n: 8, g: 2)", 1, 2, 8, 3, NULL, copies, NULL, false, 0, NULL}, // fewer tokens than parts
        {"waves(g: 2)", 2, 2, 8, 64, ", wire: f32", copies, "bf16", false, 0, NULL},
        {"waves(g: 3)", 2, 3, 8, 64, ", overflow: error", copies, NULL, false, 0, NULL},
        {"waves(g: 2)", 2, 3, 8, 64, NULL, copies, NULL, true, 0, NULL},
        {"backwards(g: 4)", 2, 3, 8, 64, ", wire: bf16", copies, "f32", true, 0, NULL},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        check_setting(&settings[i]);
}

static void test_wave_slots(void)
{
    struct lowered l;
    struct setting setting = {"waves(g: 2)", 1, 4, 8, 1024, NULL, NULL, NULL, false, 0, NULL};
    lower_setting(&l, &setting);
    if (accepted(&l)) {
        const struct plan_variant *v = ROW(&l.plan, plan_variant, l.variant);
        CU_ASSERT_EQUAL_FATAL(v->exchanges.count, 8);
        const struct plan_exchange *e = ROW(&l.plan, plan_exchange, v->exchanges.first);
        for (uint32_t w = 0; w < 2; w++, e += 4) {
            CU_ASSERT_EQUAL(e->wave, w);
            CU_ASSERT_EQUAL(e->waves, 2);
            CU_ASSERT_EQUAL(e->earlier, w ? v->exchanges.first : NONE);
            CU_ASSERT_EQUAL(ROW(&l.plan, plan_slot, e[0].slots.first)->rows, 320); // ceil(1.25 * 1024 * 7 / 28)
            CU_ASSERT_EQUAL(ROW(&l.plan, plan_slot, e[1].slots.first)->rows, w ? 640 : 320);
            CU_ASSERT_EQUAL(ROW(&l.plan, plan_slot, e[2].slots.first)->rows, 320); // ceil(0.25 * 4 * 320)
            CU_ASSERT_EQUAL(e[2].max_rounds, 7);                                   // 3 * 704 / 320 = 6.6
        }
    }
    lowered_free(&l);
}

static void test_wave_mutations(void)
{
    static const int ranks[] = {1, 2, 4, 3};
    static const char *const mutated[] = {"waves(g: 2)", "waves(g: 4)", "copies(g: 3)"};
    for (size_t u = 0; u < sizeof mutated / sizeof *mutated; u++)
        for (size_t r = 0; r < 4; r++) {
            struct setting setting = {mutated[u], r % 2 ? 2 : 1, ranks[r], 8, 128, NULL, copies, NULL, false, 0, NULL};
            mutate_semaphores(&setting, false);
        }
    struct setting setting = {"backwards(g: 3)", 2, 3, 9, 64, NULL, copies, NULL, false, 0, NULL};
    mutate_semaphores(&setting, true);
    setting = (struct setting){"both(n: 2, g: 2)", 2, 3, 8, 64, NULL, copies, NULL, true, 0, NULL};
    mutate_semaphores(&setting, false);
}

static bool is_refused(struct lowered *l, const char *words)
{
    char error[512] = "";
    bool refused = !plan_validate(&l->plan, 1, error, sizeof error) && strstr(error, words);
    if (!refused)
        fprintf(stderr, "expected `%s`, got `%s`\n", words, error);
    return refused;
}

/// What the runtime relies on is validated whatever the bytes: chains of waves, slots of answers, arguments.
static void test_wave_refusals(void)
{
    struct lowered l;
    struct setting setting = {"waves(g: 3)", 1, 3, 9, 64, NULL, NULL, NULL, false, 0, NULL};
    lower_setting(&l, &setting);
    CU_ASSERT_TRUE_FATAL(accepted(&l));
    struct plan_exchange *e = ROW(&l.plan, plan_exchange, ROW(&l.plan, plan_variant, l.variant)->exchanges.first);
    struct plan_exchange *second = e + 4, *third = e + 8, saved = *second;
    CU_ASSERT_EQUAL_FATAL(third->wave, 2);
    second->earlier = NONE;
    CU_ASSERT_TRUE(is_refused(&l, "an earlier wave where none can be"));
    second->earlier = (uint32_t)(third - e);
    CU_ASSERT_TRUE(is_refused(&l, "does not carry on"));
    *second = saved;
    second->wave = 3;
    CU_ASSERT_TRUE(is_refused(&l, "wave 3 of 3"));
    *second = saved;
    second->waves = 0;
    CU_ASSERT_TRUE(is_refused(&l, "wave 1 of 0"));
    *second = saved;
    e[9].slots = e[8].slots; // the last combine: as if it answered no rows of earlier waves
    CU_ASSERT_TRUE(is_refused(&l, "other slots than its answers need"));
    lowered_free(&l);
    lower_setting(&l, &setting);
    CU_ASSERT_TRUE_FATAL(accepted(&l));
    for (uint32_t i = 0; i < COUNT(&l.plan, plan_instr); i++) {
        const struct plan_instr *in = ROW(&l.plan, plan_instr, i);
        uint32_t role = in->op == opcode_launch ? ROW(&l.plan, plan_kernel, in->kernel)->role : NONE;
        if ((role != kernel_role_bin && role != kernel_role_fan_out) ||
            !ROW(&l.plan, plan_exchange, in->exchange)->wave || ROW(&l.plan, plan_exchange, in->exchange)->pool)
            continue;
        struct plan_arg *last = ROW(&l.plan, plan_arg, in->args.first + in->args.count - 1);
        uint32_t buffer = last->buffer, own = role == kernel_role_bin ? BIN_BINS : FAN_ARRIVED;
        last->buffer = ROW(&l.plan, plan_arg, in->args.first + own)->buffer;
        CU_ASSERT_TRUE(is_refused(&l, role == kernel_role_bin ? "overwrites the wave before" : "of the earlier waves"));
        last->buffer = buffer;
    }
    lowered_free(&l);
}

void suite_waves_lowered(void)
{
    CU_pSuite suite = CU_add_suite("waves_lowered", NULL, NULL);
    CU_add_test(suite, "every shape is lowered and proven", test_wave_shapes);
    CU_add_test(suite, "ranks with few experts or none", test_wave_ranks);
    CU_add_test(suite, "slots, replies and pools of waves", test_wave_slots);
    CU_add_test(suite, "without a wait or signal it is refused", test_wave_mutations);
    CU_add_test(suite, "damaged plans are refused", test_wave_refusals);
}
