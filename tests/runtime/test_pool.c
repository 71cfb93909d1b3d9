// How the worker pool cuts a launch: every unit that has work once, whoever takes it; a session's only stream has long
// pieces first and none shorter than a grain but the last, while others, and all that is urgent, go grain by grain.
#include <CUnit/CUnit.h>
#include <string.h>

#include "runtime/device/placement.h"
#include "runtime/exec/pool.h"

void suite_pool(void);

enum { MOST_UNITS = 1000, MOST_HANDS = 3 };

static _Atomic uint32_t taken[MOST_UNITS];
static _Atomic int64_t length[MOST_UNITS]; // of the piece that begins there; 0: none does

static void note_units(const struct moe_kargs *args, int64_t begin, int64_t end, void *scratch)
{
    (void)args, (void)scratch;
    atomic_store(&length[begin], end - begin);
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add(&taken[i], 1);
}

static void run_launch(struct launch *launch, uint32_t hands, bool helped)
{
    struct worker workers[MOST_HANDS] = {0};
    struct launch *slots[] = {launch};
    struct placement anywhere = {0};
    static const uint32_t order[] = {0};
    _Atomic uint32_t urgent = 0;
    struct pool pool = {.workers = workers, .worker_count = hands - helped, .teams = 1, .placement = &anywhere, .helped = helped,
                        .slots = slots, .slot_count = 1, .group = 1, .urgent = &urgent};
    memset(taken, 0, sizeof taken);
    memset(length, 0, sizeof length);
    for (uint32_t i = 0; i < MOST_HANDS; i++)
        workers[i].order = order;
    CU_ASSERT_FATAL(pool_start(&pool));
    uint64_t target = atomic_load(&launch->posted.value) + 1;
    pool_post(&pool, launch);
    if (helped)
        pool_help(&pool, launch, target, NULL);
    while (!event_reached(&launch->posted, target))
        event_sleep(&launch->posted, target);
    pool_retire(launch);
    CU_ASSERT_FATAL(pool_stop(&pool));
}

/// Every unit below `units` was taken once, no other was.
static void expect_all(int64_t units)
{
    for (int64_t i = 0; i < MOST_UNITS; i++)
        CU_ASSERT_EQUAL(taken[i], i < units);
}

static void test_alike(void)
{
    for (uint32_t kind = 0; kind < 2 * MOST_HANDS; kind++) { // another stream may wait; this one is what others wait for
        struct launch launch = {.fn = note_units, .units = 403, .grain = 4, .urgent = kind % 2 == 1};
        run_launch(&launch, kind / 2 + 1, kind % 2 == 1);
        expect_all(launch.units);
        for (int64_t at = 0; at < launch.units; at += launch.grain)
            CU_ASSERT_EQUAL(length[at], at + launch.grain < launch.units ? launch.grain : launch.units - at);
    }
}

static void test_long_first(void)
{
    static const struct {
        int64_t units, grain, first;
        uint32_t hands;
    } cases[] = {{64, 4, 24, 2}, {403, 4, 152, 2}, {1000, 1, 64, 2}, {7, 4, 4, 2}, {1, 4, 1, 2}, {64, 4, 64, 1}, {64, 4, 16, 3}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct launch launch = {.fn = note_units, .units = cases[i].units, .grain = cases[i].grain};
        run_launch(&launch, cases[i].hands, true);
        expect_all(launch.units);
        CU_ASSERT_EQUAL(length[0], cases[i].first);
        int64_t last = cases[i].first;
        for (int64_t at = 0; at < launch.units && length[at]; at += length[at]) {
            CU_ASSERT(length[at] <= last && (length[at] % launch.grain == 0 || at + length[at] == launch.units));
            last = length[at];
        }
    }
}

/// Of groups of 10 units those with work alone, and no call across the end of one; sizes that end within and at groups.
static void test_groups(void)
{
    static const int32_t groups[] = {0, 3, 4, 9, 57, 99};
    enum { SIZE = 10, COUNT = sizeof groups / sizeof *groups };
    for (uint32_t kind = 0; kind < 2 * MOST_HANDS; kind++)
        for (int64_t grain = 1; grain <= 25; grain += 4) {
            struct launch launch = {.fn = note_units, .units = COUNT * SIZE, .grain = grain, .groups = groups, .group_units = SIZE};
            bool expected[MOST_UNITS] = {false};
            run_launch(&launch, kind / 2 + 1, kind % 2 == 1);
            for (int g = 0; g < COUNT; g++)
                memset(expected + groups[g] * SIZE, true, SIZE);
            for (int64_t i = 0; i < MOST_UNITS; i++) {
                CU_ASSERT_EQUAL(taken[i], expected[i]);
                CU_ASSERT(i % SIZE + length[i] <= SIZE);
            }
        }
}

void suite_pool(void)
{
    CU_pSuite suite = CU_add_suite("pool", NULL, NULL);
    CU_add_test(suite, "grain by grain", test_alike);
    CU_add_test(suite, "long pieces first", test_long_first);
    CU_add_test(suite, "groups without work are left out", test_groups);
}
