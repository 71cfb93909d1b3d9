// The command line of a run: what `moecc run FILE` and every built executable share once they have a plan.
// Parsing is separate from running, as the compiler's driver needs ranks, layer and target before there is a plan.
#ifndef MOE_CLI_H
#define MOE_CLI_H

#include "runtime/moe.h"
#include <stdbool.h>
#include <stdio.h>

struct run_options {
    // texts point into argv; NULL: not given
    const char *input, *output, *reference, *weights, *pipeline, *trace, *stats, *cpu_level, *target, *fault, *bind;
    const char *extern_stages[16]; // --extern, as given
    uint32_t extern_count;
    int64_t *tokens;       // --tokens: one count for every rank, or one a rank; owned
    uint32_t token_counts; // 0: not given
    uint64_t seed;
    uint32_t ranks;        // 0: not given
    int32_t layer;         // -1: not given
    uint32_t threads;      // 0: one per core
    int64_t iters, warmup; // -1: not given
    double timeout_s;      // 0: the default
    bool emulate_links, pin, gantt, quiet, verbose, help, version;
};

/// Not given, all of them.
void run_options_init(struct run_options *options);
void run_options_free(struct run_options *options);

enum run_option_result {
    RUN_OPTION_TAKEN,   // *index moved past the option and its value
    RUN_OPTION_UNKNOWN, // not an option of this table; *index unmoved
    RUN_OPTION_BAD,     // one of the table's, but its value is missing or wrong: message in `error`
};

/// Takes argv[*index] if it is an option of a run: `--tokens 64`, `--tokens=64`, `-q`.
enum run_option_result run_option_take(struct run_options *options, int argc, char **argv, int *index, char *error,
                                       size_t size);
/// Takes all of argv (options only, no program name). False with a message: unknown option (and what it may have meant),
/// bad value, options that exclude each other.
bool run_options_parse(struct run_options *options, int argc, char **argv, char *error, size_t size);
/// What run_options_parse checks after the last option: combinations, and options that are not built yet.
bool run_options_check(const struct run_options *options, char *error, size_t size);
/// The run option nearest to a mistyped one, or NULL.
const char *run_option_nearest(const char *given);
/// The table as help text.
void run_options_help(FILE *out);

/// Checks the form of `NAME=identity`, `NAME=busy:4.4ms`, `NAME=LIB.so:symbol`.
bool extern_option_check(const char *text, char *error, size_t size);
/// Gives every extern stage of the plan what the options say, identity where they say nothing; `note` is told so.
moe_status externs_attach(const moe_plan *plan, moe_session *session, const struct run_options *options,
                          void (*note)(void *user, const char *text), void *user, char *error, size_t size);

/// Runs a plan as the options say. Returns the exit code. Messages on stderr, begun with `program`; data on stdout.
int run_plan(moe_plan *plan, const char *program, const struct run_options *options);

/// Parses argv (options only) and runs: the whole of a built executable after it has its plan. Returns the exit code.
int moe_run_main(moe_plan *plan, const char *program, int argc, char **argv);

/// The exit code that a failed call stands for.
int run_exit_code(moe_status status);

#endif
