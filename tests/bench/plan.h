// A plan for a benchmark.
#ifndef MOE_BENCH_PLAN_H
#define MOE_BENCH_PLAN_H

#include "compiler/driver.h"
#include "runtime/moe.h"

/// Compiles in memory. NULL: it did not; why is on stderr. The caller closes it.
moe_plan *bench_plan(const char *file, const struct check_options *check);

#endif
