// Compiling for benchmarks (plan.h).
#include "tests/bench/plan.h"

#include <stdlib.h>

moe_plan *bench_plan(const char *file, const struct check_options *check)
{
    struct driver_options options = {.file = file, .out = stdout, .check = *check};
    static struct context context;
    struct driver_result result = {0};
    moe_plan *plan = NULL;
    context_init(&context);
    if (!setjmp(context.fatal) && compile(&context, &options, &result) == EXIT_FINE)
        moe_plan_from_memory(result.image, result.image_bytes, &plan);
    diag_print_all(&context, DIAG_TEXT, false, stderr);
    context_free(&context);
    free(result.image);
    return plan;
}
