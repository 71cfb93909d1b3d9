// Runs every CUnit suite, or those named on the command line; ends in CUnit's summary. Exit code 1 when a test failed.
#include <CUnit/Basic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

// A suite a row.
#define SUITES(S) \
    S(syntax)     \
    S(check)      \
    S(selections) \
    S(places)     \
    S(habits)     \
    S(schedule)   \
    S(lower)      \
    S(waves_lowered) \
    S(waves)      \
    S(pieces)     \
    S(events)     \
    S(wire)       \
    S(simulate)   \
    S(rounds)     \
    S(kernels)    \
    S(tune)       \
    S(externs)    \
    S(skew)       \
    S(codegen)    \
    S(numbers)    \
    S(codes)      \
    S(amx)        \
    S(routers)    \
    S(emulator)   \
    S(cuda)       \
    S(fp8)        \
    S(planted)    \
    S(accesses)   \
    S(product)    \
    S(random_layers) \
    S(gpu_opens)  \
    S(gpu)        \
    S(layers)     \
    S(runtime)    \
    S(placement)  \
    S(pool)       \
    S(weights)    \
    S(cli)        \
    S(models)     \
    S(layouts)    \
    S(faults)     \
    S(routes)     \
    S(families)   \
    S(shared)     \
    S(invariants) \
    S(shapes)     \
    S(schedules)  \
    S(library)    \
    S(clusters)   \
    S(copies)     \
    S(edited)     \
    S(links)      \
    S(random_schedules) \
    S(races)      \
    S(flips)      \
    S(proof)      \
    S(mutations)  \
    S(explain)    \
    S(import)     \
    S(failures)

#define DECLARE(name) void suite_##name(void);
SUITES(DECLARE)

static const struct {
    const char *name;
    void (*add)(void);
} suites[] = {
#define ROW_OF(name) {#name, suite_##name},
    SUITES(ROW_OF)};

// A test may run this binary again with a plan file: three steps of it, for what only a process of its own can show.
int run_plan_file(const char *path);

static double began[2];

/// Seconds gone by, and of work on all processors.
static void seconds(double now[2])
{
    struct timespec t[2];
    clock_gettime(CLOCK_MONOTONIC, &t[0]);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t[1]);
    for (int i = 0; i < 2; i++)
        now[i] = (double)t[i].tv_sec + (double)t[i].tv_nsec * 1e-9;
}

static void suite_begins(const CU_pSuite suite)
{
    (void)suite;
    seconds(began);
}

static void suite_ends(const CU_pSuite suite, const CU_pFailureRecord failures)
{
    (void)failures;
    double now[2];
    seconds(now);
    printf("\nseconds %s %.1f, of processors %.1f", suite->pName, now[0] - began[0], now[1] - began[1]);
}

static int is_suite(const char *name)
{
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++)
        if (!strcmp(suites[i].name, name))
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--run-plan"))
        return run_plan_file(argv[2]);
    for (int a = 1; a < argc; a++)
        if (!is_suite(argv[a])) {
            fprintf(stderr, "moe-tests: there is no suite `%s`\n", argv[a]);
            return 2;
        }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 3;
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++) {
        int wanted = argc < 2;
        for (int a = 1; a < argc; a++)
            wanted |= !strcmp(argv[a], suites[i].name);
        if (wanted)
            suites[i].add();
    }
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_set_suite_start_handler(suite_begins);
    CU_set_suite_complete_handler(suite_ends);
    CU_basic_run_tests();
    unsigned failed = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
    CU_cleanup_registry();
    return failed ? 1 : 0;
}
