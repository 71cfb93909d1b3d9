// The executable that `moecc build` makes: this program with a plan behind it, in one file. It needs nothing else.
#include "runtime/cli/cli.h"
#include "runtime/mapped.h"
#include "runtime/output.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    const char *program = argc > 0 ? argv[0] : "moe";
    output_clean_on_signals();
    mapped_tell_loss(program);
    moe_plan *plan = NULL;
    moe_status status = moe_plan_open("/proc/self/exe", &plan);
    if (status != MOE_OK) {
        const char *words = moe_last_error();
        fprintf(stderr, "%s: error: %s\n", program, words && *words ? words : moe_status_text(status));
        return run_exit_code(status);
    }
    int code = moe_run_main(plan, program, argc > 0 ? argc - 1 : 0, argv + (argc > 0));
    moe_plan_close(plan);
    return code;
}
