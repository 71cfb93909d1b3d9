// Programs through the whole compiler, with what `moecc simulate` prints and what it complains of.
#ifndef MOE_TEST_SIMULATE_FIXTURE_H
#define MOE_TEST_SIMULATE_FIXTURE_H

#include <math.h>

#include "compiler/driver.h"

struct simulated {
    enum exit_code code;
    char *out, *errors;
};

/// schedule NULL: those of the pipeline. simulate: print each prediction as JSON, else only check.
struct simulated simulate_file(const char *path, const char *schedule, bool simulate);
/// What stands on the terminal, without colours.
struct simulated simulate_report(const char *path);
/// For another target than the pipeline's, as JSON.
struct simulated simulate_file_for(const char *path, const char *schedule, const char *target);
/// A layer on four ranks whose figures are easy: 4096 experts' pairs cost 1 ms a rank, memory costs nothing.
struct setting {
    int experts;                // 0: four
    const char *bandwidth;
    const char *device, *items, *target; // more attributes, more items, else cpu; NULL: none
    const char *members;                 // of the pipeline
};
struct simulated simulate_source(const char *text, bool simulate);
struct simulated simulate_source_with(const char *text, const char *schedule);
/// `load` as after --load.
struct simulated simulate_source_loaded(const char *text, const char *load);
struct simulated simulate_setting(const struct setting *setting, bool simulate);
struct simulated simulate_text(const char *bandwidth, const char *items, const char *members, bool simulate);
struct simulated simulate_loaded(const char *bandwidth, const char *members, const char *load);
void simulated_free(struct simulated *o);
/// A number of a line of JSON, of an object in it where one is named.
double figure(const char *line, const char *object, const char *key);

#define NEAR(value, expected) CU_ASSERT_DOUBLE_EQUAL(value, expected, 1e-6 * (fabs((double)(expected)) + 1))

#endif
