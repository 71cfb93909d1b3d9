// Programs for the tests of lowering: a small layer under a given schedule, number of layers, ranks and slot options,
// taken through the whole front end.
#ifndef TESTS_LOWER_FIXTURE_H
#define TESTS_LOWER_FIXTURE_H

#include "compiler/lower/program.h"

struct setting {
    const char *use; // "serial", "ladder(n: 4)"
    int layers, ranks, experts, tokens;
    const char *dispatch;  // more options of dispatch: ", capacity: 8x"
    const char *schedules; // text of further schedules, or NULL
    const char *x_type;    // "bf16" when NULL
    bool shared;           // with a shared expert and an add
};

struct lowered {
    struct context context;
    struct program_text program;
    struct ir module, graph, schedule, plan;
    uint32_t pipeline, variant; // variant NONE: refused
    char *errors;               // diagnostics as short text
};

void lower_setting(struct lowered *lowered, const struct setting *setting);
void lowered_free(struct lowered *lowered);
char *ir_printed(const struct ir *ir); // free with free()

#endif
