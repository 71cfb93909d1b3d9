// The command line of `moecc` as the commands see it.
#ifndef MOECC_COMMAND_LINE_H
#define MOECC_COMMAND_LINE_H

#include "compiler/driver.h"
#include "runtime/cli/cli.h"

struct command_line {
    struct driver_options driver;
    const char *dims[32];
    const char *output;         // -o
    enum diag_format diagnostics;
    bool color, quiet, verbose, check_format, library;
    const char *carrier;        // `build`: what the plan is appended to; NULL: the runtime inside this moecc
    const char *operands[64];   // what is no option
    int operand_count;
    const char *cluster;        // of `import`
    struct run_options run;     // the `run` command's own
};

/// What is wrong with the command line, on stderr: `format` with one %s. Returns the exit code for it.
enum exit_code usage_error(const char *format, const char *what);
/// A terminal that shows colours, unless NO_COLOR says, with any text at all, that they are not wanted.
bool wants_color(int stream);
/// What follows the command's name. `takes_run_options`: those of an executable too. `line` is as the defaults are.
enum exit_code parse_arguments(struct command_line *line, const char *command, bool takes_run_options, int argc,
                               char **argv);

#endif
