// Programs for the tests of lowering: a small layer under a given schedule, number of layers, ranks and slot options,
// taken through the whole front end.
#ifndef TESTS_LOWER_FIXTURE_H
#define TESTS_LOWER_FIXTURE_H

#include "compiler/lower/program.h"
#include "tests/printed.h"

struct setting {
    const char *use; // "serial", "ladder(n: 4)"
    int layers, ranks, experts, tokens;
    const char *dispatch;  // more options of dispatch: ", capacity: 8x"
    const char *schedules; // text of further schedules, or NULL
    const char *x_type;    // "bf16" when NULL
    bool shared;           // with a shared expert and an add
    int node;              // ranks of a node of the axis `node`; 0: one axis, `rank`
    const char *combine;   // more options of combine, or NULL
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
/// Lowered, and the program verifier accepts it. Fails the running test otherwise.
bool accepted(struct lowered *lowered);
/// Lowers, verifies and validates; prints parse back; small programs are checked against the brute-force model.
void check_setting(const struct setting *setting);
/// Every wait and every signal matters: without any one of them the program is refused. `round_trips`: a wait may be
/// implied by messages to another rank and back, which placing waits does not count on; the model must agree.
void mutate_semaphores(const struct setting *setting, bool round_trips);

#endif
