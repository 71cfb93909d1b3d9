// Runs every CUnit suite, or those named on the command line; ends in CUnit's summary. Exit code 1 when a test failed.
#include <CUnit/Basic.h>
#include <stdio.h>
#include <string.h>

#define SUITES(S)                                                                                                      \
    S(syntax) S(check) S(schedule) S(lower) S(codegen) S(runtime) S(weights) S(cli) S(models) S(invariants) S(shapes)

#define DECLARE(name) void suite_##name(void);
SUITES(DECLARE)

static const struct {
    const char *name;
    void (*add)(void);
} suites[] = {
#define ROW_OF(name) {#name, suite_##name},
    SUITES(ROW_OF)};

int main(int argc, char **argv)
{
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
    CU_basic_run_tests();
    unsigned failed = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
    CU_cleanup_registry();
    return failed ? 1 : 0;
}
