// The `moecc` command: one function a command, diagnostics and exit codes. Options are read in command_line.c; what a
// command does lies in driver.c (compiling), syntax/format.c (fmt) and runtime/cli (run).
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/calibrate/calibrate.h"
#include "compiler/codegen/cpu/cpu.h"
#include "compiler/command_line.h"
#include "compiler/explain/explain.h"
#include "compiler/import/import.h"
#include "compiler/plan/build.h"
#include "compiler/simulate/compare.h"
#include "compiler/tune/tune.h"
#include "runtime/mapped.h"
#include "runtime/moe.h"
#include "runtime/open.h"
#include "runtime/output.h"
#include "runtime/plan/plan.h"

struct command {
    const char *name, *operands, *does;
    enum exit_code (*run)(struct context *context, struct command_line *line);
    bool takes_run_options;
    const char *options;        // its own, one a line, for its --help; NULL: none
};

static const struct command commands[];

static void print_help(void)
{
    printf("moecc %s - compiles descriptions of Mixture-of-Experts pipelines\n\nusage: moecc COMMAND [options]\n\n",
           MOECC_VERSION);
    for (const struct command *c = commands; c->name; c++)
        printf("  %-10s %-14s %s\n", c->name, c->operands, c->does);
    printf("\nshared options:\n"
           "  --pipeline NAME               which pipeline, where a file has several\n"
           "  --schedule 'ladder(n: 4)'     instead of the pipeline's `use`\n"
           "  -D tokens=2048                replace the value of a dim\n"
           "  --ranks N                     resize a cluster of one axis\n"
           "  --layer L                     one checkpoint layer alone\n"
           "  --cpu-level v2|v3|v4|bf16|amx one level of kernels (`build` else has all of x86-64); neon: aarch64\n"
           "  --carrier FILE                `build` for another machine: the moe-stub (or libmoe.so) made for it\n"
           "  --target cpu|sim|cuda:CHIPS   instead of the pipeline's target; cuda:sm_80,host: run by the CPU\n"
           "  --use-cuda FILE               kernels as --emit=cuda prints them, edited\n"
           "  --cluster hgx8|FILE.moe:NAME  what `import` writes for; without it: this machine\n"
           "  --emit=STAGE                  stop after a stage and print it: ");
    for (const char *const *stage = driver_stages; *stage; stage++)
        printf("%s%s", *stage, stage[1] ? "|" : "\n");
    printf("  --diagnostics=text|short|json --color=auto|always|never\n"
           "  --time-passes -q -v\n\nrun options: moecc run --help\n");
}

static void print_command_help(const struct command *c)
{
    printf("usage: moecc %s %s%s[options]\n\n%s\n\n%s%soptions that commands share: moecc --help\n", c->name, c->operands,
           *c->operands ? " " : "", c->does, c->options ? c->options : "", c->options ? "\n" : "");
}

static enum exit_code one_file(struct command_line *line, const char *command)
{
    if (line->operand_count != 1)
        return usage_error("`%s` takes one file", command);
    line->driver.file = line->operands[0];
    return EXIT_FINE;
}

static enum exit_code command_check(struct context *context, struct command_line *line)
{
    enum exit_code code = one_file(line, "check");
    if (code)
        return code;
    line->driver.check_only = true;
    line->driver.check.every_pipeline = !line->driver.emit;
    struct driver_result result;
    code = compile(context, &line->driver, &result);
    free(result.image);
    if (code == EXIT_FINE && !line->quiet && !line->driver.emit && line->diagnostics != DIAG_JSON)
        fprintf(stderr, "%s: fine: %s%s, %u schedules proven, %u instances, %u waits, %u instructions, %.0f ms\n",
                line->driver.file, result.pipelines > 1 ? "pipelines " : result.pipelines ? "pipeline " : "a library",
                result.pipeline ? result.pipeline : "",
                result.schedules, result.instances, result.waits, result.instructions, 1e3 * result.seconds);
    return code;
}

static enum exit_code command_simulate(struct context *context, struct command_line *line)
{
    enum exit_code code = one_file(line, "simulate");
    if (code)
        return code;
    line->driver.check_only = line->driver.simulate = true;
    struct driver_result result;
    code = compile(context, &line->driver, &result);
    free(result.image);
    if (!result.pipeline && code == EXIT_FINE && !line->driver.emit) {
        fprintf(stderr, "moecc: %s has no pipeline to simulate\n", line->driver.file);
        return EXIT_INPUT;
    }
    return code;
}

static enum exit_code command_tune(struct context *context, struct command_line *line)
{
    enum exit_code code = one_file(line, "tune");
    if (code)
        return code;
    struct tune_options options = {.driver = line->driver, .confirm = 3, .progress = isatty(2) && !line->quiet, .out = stdout};
    struct tune_result result;
    return tune(context, &options, &result);
}

static enum exit_code compile_plan(struct context *context, struct command_line *line, struct driver_result *result)
{
    enum exit_code code = compile(context, &line->driver, result);
    if (code == EXIT_FINE && !result->pipeline && !line->driver.emit) {
        fprintf(stderr, "moecc: %s has no pipeline to compile\n", line->driver.file);
        return EXIT_INPUT;
    }
    return code;
}

/// What the emulator of CUDA blocks has seen goes before what the run made of it.
static enum exit_code judge_kernels(enum exit_code code)
{
    char reports[8192];
    if (code != EXIT_FINE && host_unfinished_kernels(reports, sizeof reports))
        fprintf(stderr, "%s", reports);
    int count = host_reports(reports, sizeof reports);
    if (count)
        fprintf(stderr, "%smoecc: error: the CUDA kernels are wrong: %d reports\n", reports, count);
    return count ? EXIT_BUG : code;
}

static enum exit_code command_run(struct context *context, struct command_line *line)
{
    if (line->run.help) {
        printf("usage: moecc run FILE [options]\n\n");
        run_options_help(stdout);
        return EXIT_FINE;
    }
    if (line->run.version) {
        printf("moecc %s\n", MOECC_VERSION);
        return EXIT_FINE;
    }
    enum exit_code code = one_file(line, "run");
    if (code)
        return code;
    struct driver_result result;
    code = compile_plan(context, line, &result);
    if (code || !result.image)
        return code;
    const char *const written[] = {line->run.output, line->run.stats, line->run.trace};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        if (replaces_source(context, written[i])) {
            free(result.image);
            free(result.kernels);
            return usage_error("%s: this would replace a file that the result is made from", written[i]);
        }
    moe_plan *plan;
    moe_status status = moe_plan_from_memory(result.image, result.image_bytes, &plan);
    free(result.image);
    if (status != MOE_OK)
        fatal(context, EXIT_BUG, "%s", moe_last_error());
    if (result.kernels)
        plan_use_kernels(plan, result.kernels);
    free(result.kernels);
    line->run.layer = -1;       // compiled in: the plan has that layer alone
    line->run.pipeline = NULL;
    code = (enum exit_code)run_plan(plan, "moecc", &line->run);
    moe_plan_close(plan);
    return judge_kernels(code);
}

/// Results never replace what they were made from, nor one another. NULL: all is well.
static const char *output_conflict(struct context *context, const struct command_line *line)
{
    const char *header = line->library ? library_header_path(context, line->output) : line->output;
    if (line->library && output_same_file(header, line->output))
        return "the library's header would replace it; give the library another ending, as in `-o libname.so`";
    bool source = replaces_source(context, line->output) || replaces_source(context, header);
    return source ? "this would replace a file that the result is made from; give another name with `-o`" : NULL;
}

/// What carries the plan: the file given, or the runtime inside this moecc. Refused where it is for another machine than
/// the kernels. False: context->fatal_message says why.
static bool choose_carrier(struct context *context, const struct command_line *line, const char **carrier, size_t *size)
{
    *carrier = embedded_file(line->library ? "stub/lib" : "stub/run", size);
    if (line->carrier && !(*carrier = read_whole_file(context, line->carrier, size))) {
        snprintf(context->fatal_message, sizeof context->fatal_message, "%.150s: %.90s", line->carrier, strerror(errno));
        return false;
    }
    return !*carrier || carrier_fits(context, line->carrier ? line->carrier : line->output, *carrier, *size,
                                     cpu_level_machine(line->driver.cpu_level));
}

static void free_images(struct driver_result *result)
{
    for (size_t i = 0; i < DRIVER_LEVELS; i++)
        free(result->images[i].bytes);
}

static enum exit_code command_build(struct context *context, struct command_line *line)
{
    enum exit_code code = one_file(line, "build");
    if (code)
        return code;
    if (!line->output && !line->driver.emit)
        return usage_error("%s: name the result with -o", "build");
    struct driver_result result;
    line->driver.check.deployed = true;
    const char *const *levels = line->driver.cpu_level ? (const char *const[]){line->driver.cpu_level, NULL}
                                                       : cpu_levels_of_build();
    line->driver.levels = line->driver.emit ? NULL : levels;
    code = compile_plan(context, line, &result);
    if (code || !result.images[0].bytes) {
        free_images(&result);
        return code;
    }
    const char *conflict = output_conflict(context, line);
    if (conflict) {
        free_images(&result);
        return usage_error(context_printf(context, "%s: %s", "%s", conflict), line->output);
    }
    struct carried_plan plans[DRIVER_LEVELS];
    size_t bytes, count = 0;
    bool cuda = result.images[0].cuda;
    for (; cuda ? count < 1 : levels[count] != NULL; count++)
        plans[count] = (struct carried_plan){result.images[count].bytes, result.images[count].size,
                                             cuda ? "cuda" : cpu_level_name(levels[count])};
    const char *carrier;
    bool written = choose_carrier(context, line, &carrier, &bytes) &&
                   (line->library ? write_library(context, carrier, bytes, plans, count, line->output)
                                  : write_executable(context, carrier, bytes, plans, count, line->output));
    free_images(&result);
    if (!written)
        fprintf(stderr, "moecc: %s\n", context->fatal_message);
    return written ? EXIT_FINE : EXIT_SYSTEM;
}

static bool replace_file(const char *path, const char *text)
{
    struct output_file out;
    return output_begin(&out, path, 0666) && output_end(&out, output_write(&out, text, strlen(text)));
}

static enum exit_code command_fmt(struct context *context, struct command_line *line)
{
    enum exit_code worst = EXIT_FINE;
    if (!line->operand_count)
        return usage_error("`%s` takes files", "fmt");
    for (int i = 0; i < line->operand_count; i++) {
        size_t size;
        const char *path = line->operands[i], *text = read_whole_file(context, path, &size);
        if (!text) {
            fprintf(stderr, "moecc: cannot read %s: %s\n", path, strerror(errno));
            worst = EXIT_SYSTEM;
            continue;
        }
        const char *formatted = format_source(context, add_source(context, path, text, size, NULL));
        bool same = formatted && strlen(formatted) == size && !memcmp(formatted, text, size);
        if (!formatted || (!same && line->check_format))
            worst = worst ? worst : EXIT_INPUT;
        if (formatted && !same && line->check_format)
            fprintf(stderr, "%s: not in canonical form\n", path);
        else if (formatted && !same && !replace_file(path, formatted)) {
            fprintf(stderr, "moecc: cannot write %s: %s\n", path, strerror(errno));
            worst = EXIT_SYSTEM;
        }
    }
    return worst;
}

static enum exit_code command_inspect(struct context *context, struct command_line *line)
{
    (void)context;
    enum exit_code code = one_file(line, "inspect");
    if (code)
        return code;
    char error[512];
    struct plan plan;
    if (!plan_open_file(&plan, line->driver.file, cpu_level_runs_here, error, sizeof error)) {
        fprintf(stderr, "moecc: %s\n", error); // which names the file
        return access(line->driver.file, R_OK) ? EXIT_SYSTEM : EXIT_INPUT;
    }
    ir_print(&plan.ir, stdout);
    plan_close(&plan);
    return EXIT_FINE;
}

static enum exit_code command_explain(struct context *context, struct command_line *line)
{
    (void)context;
    size_t size;
    if (line->operand_count > 1)
        return usage_error("`%s` takes one code", "explain");
    if (!line->operand_count) {
        explain_list(stdout);
        return EXIT_FINE;
    }
    const char *page = explain_page(line->operands[0], &size);
    if (!page)
        return usage_error("`%s` is no code of a diagnostic: `moecc explain` lists them", line->operands[0]);
    fwrite(page, 1, size, stdout);
    return EXIT_FINE;
}

static enum exit_code command_import(struct context *context, struct command_line *line)
{
    if (line->operand_count != 1)
        return usage_error("`%s` takes one checkpoint directory or config.json", "import");
    struct import_options options = {.path = line->operands[0], .cluster = line->cluster};
    const char *text = import_checkpoint(context, &options);
    if (!text)
        return EXIT_INPUT;
    fputs(text, stdout);
    return EXIT_FINE;
}

static enum exit_code command_compare(struct context *context, struct command_line *line)
{
    if (line->operand_count != 2)
        return usage_error("`%s` takes two traces, as `run --trace` and `simulate --trace` write them", "compare");
    for (int i = 0; i < 2 && line->output; i++)
        if (output_same_file(line->operands[i], line->output))
            return usage_error("%s: this would replace one of the traces; give another name with `-o`", line->output);
    return compare_traces(context, line->operands[0], line->operands[1], line->output, stdout);
}

static enum exit_code command_calibrate(struct context *context, struct command_line *line)
{
    if (line->operand_count)
        return usage_error("`%s` takes no file", "calibrate");
    struct output_file file;
    FILE *out = line->output ? output_open(&file, line->output) : stdout;
    if (!out)
        fatal(context, EXIT_SYSTEM, "%s: %s", line->output, strerror(errno));
    calibrate(context, line->driver.check.ranks, isatty(2) && !line->quiet, out);
    if (line->output ? !output_close(&file, out) : fflush(out) != 0)
        fatal(context, EXIT_SYSTEM, "%s: %s", line->output ? line->output : "standard output", strerror(errno));
    return EXIT_FINE;
}

static const struct command commands[] = {
    {"check", "FILE", "parse, check, schedule, prove; silent on success but for a line on stderr", command_check, false,
     "  -D tokens=2048        replace the value of a dim\n"
     "  --schedule 'NAME(n: 4)' instead of the pipeline's `use`\n"
     "  --pipeline NAME       which pipeline, where a file has several\n"
     "  --emit=STAGE          stop after a stage and print it\n"},
    {"run", "FILE", "compile in memory and execute", command_run, true, NULL},
    {"build", "FILE -o OUT", "a self-contained executable; --lib a shared object and a header instead", command_build, false,
     "  -o OUT                the result; required\n"
     "  --lib                 a shared object and its header\n"
     "  --cpu-level LEVEL     one level of kernels alone\n"
     "  --carrier FILE        the moe-stub or libmoe.so of another machine\n"},
    {"fmt", "[--check] FILE...", "canonical text, in place", command_fmt, false,
     "  --check               change nothing; exit code 1 where a file is not in canonical form\n"},
    {"inspect", "PLAN|EXE", "print a plan: ranks, streams, instructions, buffers, kernels, sizes", command_inspect, false, NULL},
    {"verify", "FILE", "the proof alone, with statistics", command_check, false,
     "  -D tokens=2048        replace the value of a dim\n"
     "  --schedule 'NAME(n: 4)' instead of the pipeline's `use`\n"
     "  --pipeline NAME       which pipeline, where a file has several\n"},
    {"simulate", "FILE", "predicted timeline per schedule; --json, --trace T.json, --svg F, --load zipf(0.7)", command_simulate, false,
     "  -D tokens=2048        replace the value of a dim\n"
     "  --schedule 'NAME(n: 4)' instead of the pipeline's `use`\n"
     "  --pipeline NAME       which pipeline, where a file has several\n"
     "  --load 'zipf(0.7)'    tokens that do not spread evenly, or a file of `run --output`\n"
     "  --json                figures as JSON\n"
     "  --trace T.json        the timeline as a trace\n"
     "  --svg F.svg           the timeline as a picture\n"
     "  -v                    and what each kernel of a CUDA target takes at least\n"},
    {"compare", "A.json B.json", "two traces, predicted or measured: ratios per stage, where they part; -o BOTH.json",
     command_compare, false,
     "  -o BOTH.json          both timelines in one file\n"},
    {"tune", "FILE", "search knobs, schedules and orders; a ranked table and the winner's text", command_tune, false,
     "  -D tokens=2048        replace the value of a dim\n"
     "  --pipeline NAME       which pipeline, where a file has several\n"
     "  --load 'zipf(0.7)'    tokens that do not spread evenly\n"},
    {"explain", "[CODE]", "a page about a diagnostic; without a code: all codes", command_explain, false, NULL},
    {"calibrate", "[--ranks N]", "measure this machine: a `device` and a `cluster` block, on stdout or -o FILE", command_calibrate, false,
     "  --ranks N             ranks that share this machine\n"
     "  -o FILE               where the blocks go; else stdout\n"},
    {"import", "DIR|config.json", "a `.moe` file for a Hugging Face checkpoint, on stdout", command_import, false,
     "  --cluster hgx8|FILE.moe:NAME  what the file is written for; without it: this machine\n"},
    {"lsp", "", "language server (not built yet)", NULL, false, NULL},
    {NULL, NULL, NULL, NULL, false, NULL},
};

static enum exit_code run_command(const struct command *command, int argc, char **argv)
{
    struct context context;
    struct command_line line = {.driver = {.out = stdout, .color = wants_color(1), .check = {.layer = -1}}, .color = wants_color(2)};
    line.driver.check.dims = line.dims;
    run_options_init(&line.run);
    enum exit_code code = parse_arguments(&line, command->name, command->takes_run_options, argc, argv);
    if (!code) {
        context_init(&context);
        int jumped = setjmp(context.fatal);
        if (jumped) {
            fprintf(stderr, "moecc: %s%s\n", jumped == EXIT_BUG ? "a bug in moecc: " : "", context.fatal_message);
            code = (enum exit_code)jumped;
        } else {
            code = command->run(&context, &line);
        }
        diag_print_all(&context, line.diagnostics, line.color, stderr);
        context_free(&context);
    }
    run_options_free(&line.run);
    return code;
}

static enum exit_code dispatch(int argc, char **argv)
{
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        print_help();
        return argc < 2 ? EXIT_USAGE : EXIT_FINE;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("moecc %s\n", MOECC_VERSION);
        return EXIT_FINE;
    }
    for (const struct command *command = commands; command->name; command++) {
        if (strcmp(command->name, argv[1]))
            continue;
        bool helps = argc > 2 && (!strcmp(argv[2], "--help") || !strcmp(argv[2], "-h"));
        if (command->run && helps && !command->takes_run_options) {
            print_command_help(command);
            return EXIT_FINE;
        }
        if (command->run)
            return run_command(command, argc - 2, argv + 2);
        fprintf(stderr, "moecc: `%s` is not built yet\n", command->name);
        return EXIT_USAGE;
    }
    return usage_error("unknown command `%s`", argv[1]);
}

int main(int argc, char **argv)
{
    output_clean_on_signals();
    mapped_tell_loss("moecc");
    codegen_cpu_exits_without_memory();
    enum exit_code code = dispatch(argc, argv);
    output_clean(); // of what has left through fatal
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "moecc: cannot write to standard output\n");
        return code ? (int)code : EXIT_SYSTEM;
    }
    return (int)code;
}
