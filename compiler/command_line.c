// Options of the `moecc` command: what each sets, and the values that are refused at once.
#include "compiler/command_line.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum exit_code usage_error(const char *format, const char *what)
{
    fprintf(stderr, "moecc: ");
    fprintf(stderr, format, what);
    fprintf(stderr, "; `moecc --help` lists commands and options\n");
    return EXIT_USAGE;
}

struct option {
    const char *name;
    void (*set)(struct command_line *line, const char *value); // value NULL: takes none
    bool has_value;
    const char *of; // the commands that take it; NULL: every one
};

#define COMPILING "check verify run build simulate"

static void set_pipeline(struct command_line *l, const char *v) { l->driver.check.pipeline = v; }
static void set_schedule(struct command_line *l, const char *v) { l->driver.check.schedule = v; }
static void set_target(struct command_line *l, const char *v) { l->driver.check.target = v; }
static void set_ranks(struct command_line *l, const char *v) { l->driver.check.ranks = (uint32_t)strtoul(v, NULL, 10); }
static void set_layer(struct command_line *l, const char *v) { l->driver.check.layer = strtol(v, NULL, 10); }
static void set_level(struct command_line *l, const char *v) { l->driver.cpu_level = v; }
static void set_emit(struct command_line *l, const char *v) { l->driver.emit = v; }
static void set_output(struct command_line *l, const char *v) { l->output = v; }
static void set_times(struct command_line *l, const char *v) { (void)v, l->driver.time_passes = true; }
static void set_check(struct command_line *l, const char *v) { (void)v, l->check_format = true; }
static void set_carrier(struct command_line *l, const char *v) { l->carrier = v; }
static void set_library(struct command_line *l, const char *v) { (void)v, l->library = true; }
static void set_cluster(struct command_line *l, const char *v) { l->cluster = v; }
static void set_trace(struct command_line *l, const char *v) { l->driver.trace = v; }
static void set_svg(struct command_line *l, const char *v) { l->driver.svg = v; }
static void set_load(struct command_line *l, const char *v) { l->driver.load = v; }
static void set_json(struct command_line *l, const char *v) { (void)v, l->driver.json = true; }
static void set_use_cuda(struct command_line *l, const char *v) { l->driver.use_cuda = v; }
static void set_quiet(struct command_line *l, const char *v) { (void)v, l->quiet = true; }
static void set_verbose(struct command_line *l, const char *v) { (void)v, l->verbose = l->driver.verbose = true; }

static void set_dim(struct command_line *l, const char *v)
{
    l->dims[l->driver.check.dim_count++] = v;
}

static void set_diagnostics(struct command_line *l, const char *v)
{
    l->diagnostics = !strcmp(v, "json") ? DIAG_JSON : !strcmp(v, "short") ? DIAG_SHORT : DIAG_TEXT;
}

/// A terminal that shows colours, unless NO_COLOR says, with any text at all, that they are not wanted.
bool wants_color(int stream)
{
    const char *refused = getenv("NO_COLOR"), *terminal = getenv("TERM");
    return isatty(stream) && !(refused && *refused) && !(terminal && !strcmp(terminal, "dumb"));
}

static void set_color(struct command_line *l, const char *v)
{
    l->color = !strcmp(v, "always") || (!strcmp(v, "auto") && wants_color(2));
    l->driver.color = !strcmp(v, "always") || (!strcmp(v, "auto") && wants_color(1));
}

static const struct option options[] = {
    {"--pipeline", set_pipeline, true, COMPILING " tune"},
    {"--schedule", set_schedule, true, COMPILING},
    {"--target", set_target, true, COMPILING " tune"},
    {"--ranks", set_ranks, true, COMPILING " tune calibrate"},
    {"--layer", set_layer, true, COMPILING " tune"},
    {"--cpu-level", set_level, true, COMPILING " tune"},
    {"--emit", set_emit, true, COMPILING},
    {"-o", set_output, true, "build compare calibrate"},
    {"-D", set_dim, true, COMPILING " tune"},
    {"--diagnostics", set_diagnostics, true, NULL},
    {"--color", set_color, true, NULL},
    {"--time-passes", set_times, false, COMPILING},
    {"--carrier", set_carrier, true, "build"},
    {"--check", set_check, false, "fmt"},
    {"--lib", set_library, false, "build"},
    {"-q", set_quiet, false, NULL},
    {"--cluster", set_cluster, true, "import"},
    {"-v", set_verbose, false, NULL},
    {"--use-cuda", set_use_cuda, true, COMPILING},
    {"--trace", set_trace, true, COMPILING},
    {"--json", set_json, false, "simulate tune"},
    {"--load", set_load, true, COMPILING " tune"},
    {"--svg", set_svg, true, COMPILING},
};

/// Is the word among those of a list with blanks between?
static bool is_listed(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == length && !strncmp(at, word, length))
            return true;
    return false;
}

static const struct option *find_option(const char *argument, const char **value)
{
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        size_t length = strlen(options[i].name);
        if (strncmp(argument, options[i].name, length))
            continue;
        *value = NULL;
        if (argument[length] == '=' && argument[1] == '-')
            *value = argument + length + 1;
        else if (argument[length] && !(argument[1] != '-' && options[i].has_value)) // -Dtokens=8 is one argument
            continue;
        else if (argument[length])
            *value = argument + length;
        return &options[i];
    }
    return NULL;
}

static bool one_of(const char *word, const char *const *words)
{
    for (; *words; words++)
        if (!strcmp(word, *words))
            return true;
    return false;
}

// Values that a later stage would only misread are refused here.
static enum exit_code check_values(const char *option, const char *value)
{
    static const char *const formats[] = {"text", "short", "json", NULL}, *const colors[] = {"auto", "always", "never", NULL};
    char *end = NULL;
    if ((!strcmp(option, "--diagnostics") && !one_of(value, formats)) || (!strcmp(option, "--color") && !one_of(value, colors)) ||
        (!strcmp(option, "--emit") && !one_of(value, driver_stages)))
        return usage_error("unknown value `%s`", value);
    if (!strcmp(option, "--ranks") && (strtol(value, &end, 10) < 1 || *end || strtol(value, NULL, 10) > 1024))
        return usage_error("`--ranks %s`: a number from 1 to 1024 is expected", value);
    if (!strcmp(option, "--layer") && (strtol(value, &end, 10) < 0 || *end || !*value || strtol(value, NULL, 10) > 1000000))
        return usage_error("`--layer %s`: a layer's number is expected", value);
    return EXIT_FINE;
}

// One option and its value from argv[*i] on; *i is left at the last argument used.
static enum exit_code take_option(struct command_line *line, const char *command, bool takes_run_options, int argc,
                                  char **argv, int *i)
{
    const char *given = argv[*i], *value = NULL;
    char error[256];
    int next = *i;
    enum run_option_result taken = RUN_OPTION_UNKNOWN;
    if (takes_run_options)
        taken = run_option_take(&line->run, argc, argv, &next, error, sizeof error);
    if (taken == RUN_OPTION_TAKEN) {
        *i = next - 1;
        return EXIT_FINE;
    }
    if (taken == RUN_OPTION_BAD)
        return usage_error("%s", error);
    const struct option *option = find_option(given, &value);
    if (!option && !strncmp(given, "--tokens", strlen("--tokens")))
        return usage_error("`%s` is an option of `run`; the token count of a file is set as in `-D tokens=10`", given);
    if (!option)
        return usage_error("unknown option `%s`", given);
    if (option->of && !is_listed(option->of, command)) { // what nothing would read
        snprintf(error, sizeof error, "`%s` is no option of `%s`", option->name, command);
        return usage_error("%s", error);
    }
    if (option->has_value && !value && !(value = *i + 1 < argc ? argv[++*i] : NULL))
        return usage_error("`%s` needs a value", given);
    enum exit_code wrong = option->has_value ? check_values(option->name, value) : EXIT_FINE;
    if (option->set == set_dim && line->driver.check.dim_count == sizeof line->dims / sizeof *line->dims)
        wrong = usage_error("too many `-D` at `%s`", value);
    if (!wrong)
        option->set(line, value);
    return wrong;
}

// A run's options that the compiler needs as well.
static void share_run_options(struct command_line *line)
{
    const struct run_options *run = &line->run;
    struct check_options *check = &line->driver.check;
    check->pipeline = run->pipeline;
    check->target = run->target;
    check->ranks = run->ranks;
    check->layer = run->layer;
    line->driver.cpu_level = run->cpu_level;
    line->driver.cuda_host.checked = getenv("MOECC_CUDA_CHECK") != NULL;
    line->quiet = run->quiet;
    line->verbose = run->verbose;
}

enum exit_code parse_arguments(struct command_line *line, const char *command, bool takes_run_options, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1]) {
            enum exit_code wrong = take_option(line, command, takes_run_options, argc, argv, &i);
            if (wrong)
                return wrong;
        } else if (line->operand_count == sizeof line->operands / sizeof *line->operands) {
            return usage_error("too many files at `%s`", argv[i]);
        } else {
            line->operands[line->operand_count++] = argv[i];
        }
    }
    char error[256];
    if (takes_run_options) {
        if (!run_options_check(&line->run, error, sizeof error))
            return usage_error("%s", error);
        share_run_options(line);
    }
    return EXIT_FINE;
}
