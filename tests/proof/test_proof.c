// The verifier of lowered programs against the exhaustive explorer: on random small programs both must say the same.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/lower/program.h"
#include "tests/proof/explorer.h"
#include "tests/proof/generator.h"

enum { MOST_STATES = 20000 };

struct tally {
    size_t programs, legal, race, deadlock, overflow, unwritten, relayed, legal_relayed, too_large, wrong, states;
};

static bool verified(const struct ir *plan, char *error, size_t size)
{
    struct context context;
    context_init(&context);
    bool passes = false;
    if (!setjmp(context.fatal))
        passes = program_verify(&context, plan, 0, error, size);
    context_free(&context);
    return passes;
}

static bool has_relays(const struct ir *plan)
{
    for (uint32_t i = 0; i < COUNT(plan, plan_exchange); i++)
        if (ROW(plan, plan_exchange, i)->node)
            return true;
    return false;
}

static void compare(uint64_t seed, struct tally *tally)
{
    struct ir plan;
    char error[512] = "";
    generate_program(seed, &plan);
    struct exploration e = explore(&plan, 0, 1, true, MOST_STATES);
    tally->states += e.states;
    if (e.found & EXPLORED_TOO_LARGE) {
        tally->too_large++;
        ir_free(&plan);
        return;
    }
    bool passes = verified(&plan, error, sizeof error);
    tally->programs++;
    tally->legal += !e.found;
    tally->relayed += has_relays(&plan);
    tally->legal_relayed += !e.found && has_relays(&plan);
    tally->race += (e.found & EXPLORED_RACE) != 0;
    tally->deadlock += (e.found & EXPLORED_DEADLOCK) != 0;
    tally->overflow += (e.found & EXPLORED_OVERFLOW) != 0;
    tally->unwritten += (e.found & EXPLORED_UNWRITTEN) != 0;
    if (passes == !e.found) {
        ir_free(&plan);
        return;
    }
    if (tally->wrong++ < 5) {
        fprintf(stderr, "program %llu: the verifier says `%s`, the explorer `%s` (%u)\n", (unsigned long long)seed,
                passes ? "fine" : error, e.found ? e.what : "fine", e.found);
        if (getenv("PROOF_PRINT"))
            ir_print(&plan, stderr);
    }
    ir_free(&plan);
}

/// Both ways, on MOE_PROOF_PROGRAMS programs from MOE_PROOF_FIRST on (`make check-long`: ten times as many).
static void test_agreement(void)
{
    struct tally t = {0};
    const char *text = getenv("MOE_PROOF_PROGRAMS"), *from = getenv("MOE_PROOF_FIRST");
    uint64_t first = from ? strtoull(from, NULL, 10) : 1, count = text ? strtoull(text, NULL, 10) : 24000;
    for (uint64_t seed = first; seed < first + count; seed++)
        compare(seed, &t);
    fprintf(stderr,
            "[%zu programs: %zu legal, %zu with a race, %zu deadlock, %zu overflow, %zu unwritten; %zu with relays, %zu "
            "of them legal; %zu too large; %zu states] ",
            t.programs, t.legal, t.race, t.deadlock, t.overflow, t.unwritten, t.relayed, t.legal_relayed, t.too_large,
            t.states);
    CU_ASSERT_EQUAL(t.wrong, 0);
    CU_ASSERT_TRUE(t.programs >= count - count / 20 - 1); // few are too large to explore
    if (count < 1000)
        return;
    CU_ASSERT_TRUE(t.legal * 10 >= t.programs * 3);
    CU_ASSERT_TRUE(t.race * 40 >= t.programs && t.deadlock * 40 >= t.programs);
    CU_ASSERT_TRUE(t.relayed * 10 >= t.programs && t.legal_relayed * 40 >= t.programs);
    CU_ASSERT_TRUE(t.overflow * 40 >= t.programs && t.unwritten * 40 >= t.programs);
}

/// Programs about which the two have disagreed: rows read before a relay had passed on all of them, and replies that were
/// thought to be still under way.
static void test_once_wrong(void)
{
    static const uint64_t seeds[] = {157671, 181931, 143569, 176165, 177915};
    struct tally t = {0};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        compare(seeds[i], &t);
    CU_ASSERT(t.relayed == 5 && t.legal == 3 && t.unwritten == 2 && !t.wrong);
}

/// Two consecutive steps with the runtime's barrier between them are as safe as one: what the verifier's proof of a
/// single step relies on. Without the barrier they would not be.
static void test_two_steps(void)
{
    size_t compared = 0, needs_barrier = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct ir plan;
        generate_program(seed, &plan);
        struct exploration one = explore(&plan, 0, 1, true, MOST_STATES);
        if (!one.found && one.states < MOST_STATES / 20) {
            struct exploration two = explore(&plan, 0, 2, true, MOST_STATES);
            struct exploration loose = explore(&plan, 0, 2, false, MOST_STATES);
            CU_ASSERT_EQUAL(two.found & ~(unsigned)EXPLORED_TOO_LARGE, 0);
            compared += !two.found;
            needs_barrier += (loose.found & ~(unsigned)EXPLORED_TOO_LARGE) != 0;
        }
        ir_free(&plan);
    }
    fprintf(stderr, "[%zu programs, %zu of them only because of the barrier] ", compared, needs_barrier);
    CU_ASSERT_TRUE(compared >= 40);
    CU_ASSERT_TRUE(needs_barrier >= 10);
}

void suite_proof(void)
{
    CU_pSuite suite = CU_add_suite("proof", NULL, NULL);
    CU_ADD_TEST(suite, test_agreement);
    CU_ADD_TEST(suite, test_once_wrong);
    CU_ADD_TEST(suite, test_two_steps);
}
