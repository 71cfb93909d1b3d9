// Plans that passed validation, run on the simulated device (fuzz_plan.c, fuzz_records.c).
#ifndef TESTS_FUZZ_RUN_PLAN_H
#define TESTS_FUZZ_RUN_PLAN_H

#include <stddef.h>

/// Opens a plan's image and, where it is small, runs two steps of it with stand-ins for its native code.
void fuzz_run_plan(const void *image, size_t bytes);

#endif
