// Runs a plan as the options say: tokens in, a session, weights, steps, results out. The exit code is the verdict.
#include "runtime/cli/batch.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/compare.h"
#include "runtime/cli/report.h"
#include "runtime/device/topology.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_OK = 0, EXIT_WRONG = 1, EXIT_USAGE_ERROR = 2, EXIT_FAILED = 3 };

struct run {
    moe_plan *plan;
    const char *program;
    const struct run_options *options;
    moe_plan_info info;
    moe_session *session;
    struct batch batch;
    struct report report;
    bool shows_progress, drew_progress;
    int percent; // last drawn
};

int run_exit_code(moe_status status)
{
    switch (status) {
    case MOE_OK:
        return EXIT_OK;
    case MOE_INVALID:
        return EXIT_USAGE_ERROR;
    case MOE_BAD_PLAN:
    case MOE_BAD_WEIGHTS:
    case MOE_BAD_INPUT:
    case MOE_OVERFLOW:
        return EXIT_WRONG;
    case MOE_UNSUPPORTED:
    case MOE_NO_MEMORY:
    case MOE_IO:
    case MOE_TIMEOUT:
    case MOE_LOST:
    case MOE_BROKEN:
        return EXIT_FAILED;
    }
    return EXIT_FAILED;
}

static void clear_progress(struct run *run)
{
    if (run->drew_progress)
        fputs("\r\033[K", stderr);
    run->drew_progress = false;
}

__attribute__((format(printf, 3, 4))) static int complain(struct run *run, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    clear_progress(run);
    fprintf(stderr, "%s: error: ", run->program);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

static void note(struct run *run, const char *text)
{
    if (run->options->quiet)
        return;
    clear_progress(run);
    fprintf(stderr, "%s: note: %s\n", run->program, text);
}

static int session_failed(struct run *run, moe_status status)
{
    const char *words = run->session ? moe_session_error(run->session) : moe_last_error();
    return complain(run, run_exit_code(status), "%s", words && *words ? words : moe_status_text(status));
}

static void show_log(void *user, const char *message)
{
    struct run *run = user;
    clear_progress(run);
    fprintf(stderr, "%s: %s\n", run->program, message);
}

static void show_progress(void *user, double share)
{
    struct run *run = user;
    static const int BAR = 30;
    int filled = (int)(share * BAR), percent = (int)(share * 100);
    if (run->drew_progress && percent == run->percent)
        return;
    fprintf(stderr, "\rweights [%.*s%*s] %3d %%", filled, "##############################", BAR - filled, "", percent);
    run->drew_progress = true;
    run->percent = percent;
}

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static bool is_sim(const struct run_options *options)
{
    return options->target && !strcmp(options->target, "sim");
}

/// Options that have to agree with the plan.
static int check_against_plan(struct run *run)
{
    const struct run_options *o = run->options;
    const moe_plan_info *info = &run->info;
    if (o->ranks && o->ranks != info->ranks)
        return complain(run, EXIT_USAGE_ERROR, "`--ranks %u`: this was built for %u", o->ranks, info->ranks);
    if (o->cpu_level && strcmp(o->cpu_level, info->cpu_level) != 0)
        return complain(run, EXIT_USAGE_ERROR, "`--cpu-level %s`: this was built for %s", o->cpu_level,
                        info->cpu_level);
    if (o->pipeline && strcmp(o->pipeline, info->name) != 0)
        return complain(run, EXIT_USAGE_ERROR, "`--pipeline %s`: this holds %s", o->pipeline, info->name);
    bool plans = o->target && !strncmp(o->target, info->target, strlen(info->target)); // `cuda:sm_80,host` of a CUDA plan
    if (o->target && !is_sim(o) && !plans && strcmp(o->target, "cpu") != 0)
        return complain(run, EXIT_USAGE_ERROR, "`--target %s`: only cpu and sim are built yet", o->target);
    return EXIT_OK;
}

static int make_batch(struct run *run)
{
    const struct run_options *o = run->options;
    char error[512] = "";
    moe_status status =
        o->input ? batch_read(&run->batch, &run->info, o->input, error, sizeof error)
                 : batch_random(&run->batch, &run->info, o->tokens, o->token_counts, o->seed, error, sizeof error);
    return status == MOE_OK ? EXIT_OK : complain(run, run_exit_code(status), "%s", error);
}

static uint32_t thread_count(const struct run_options *options)
{
    return options->threads ? options->threads : machine_cores();
}

static int make_session(struct run *run)
{
    const struct run_options *o = run->options;
    run->shows_progress = !o->quiet && isatty(STDERR_FILENO);
    moe_options options = {.device = is_sim(o) ? "sim" : "cpu",
                           .transport = "local",
                           .threads = thread_count(o),
                           .timeout_s = o->timeout_s,
                           .seed = o->seed,
                           .trace = o->trace || o->gantt,
                           .emulate_links = o->emulate_links,
                           .bind = o->pin ? "core" : o->bind,
                           .fault = o->fault,
                           .log = o->verbose ? show_log : NULL,
                           .log_user = run,
                           .progress = run->shows_progress ? show_progress : NULL,
                           .progress_user = run};
    bool planned_for_layer = run->info.layers == 1 && (int64_t)run->info.first_layer == o->layer;
    if (o->layer >= 0 && !planned_for_layer) {
        options.use_single_layer = 1;
        options.single_layer = o->layer;
        run->info.layers = 1;
        run->info.first_layer = (uint32_t)o->layer;
    }
    moe_status status = moe_session_create(run->plan, &options, &run->session);
    return status == MOE_OK ? EXIT_OK : session_failed(run, status);
}

static int load_weights(struct run *run)
{
    const char *path = run->options->weights ? run->options->weights : run->info.weights;
    if (!path || !*path) {
        char text[128];
        snprintf(text, sizeof text, "no weights given; using reproducible random ones (seed %" PRIu64 ")",
                 run->options->seed);
        note(run, text);
        path = "random";
    }
    moe_status status = moe_session_load(run->session, path);
    clear_progress(run);
    if (status == MOE_OK)
        return EXIT_OK;
    int code = session_failed(run, status);
    if (!run->options->weights && *path != '/' && access(path, F_OK) != 0)
        note(run, "a relative path of weights is looked for from the working directory; `--weights PATH` names another");
    return code;
}

static void note_extern(void *user, const char *text)
{
    note(user, text);
}

static int attach_externs(struct run *run)
{
    char error[512];
    moe_status status = externs_attach(run->plan, run->session, run->options, note_extern, run, error, sizeof error);
    return status == MOE_OK ? EXIT_OK : complain(run, run_exit_code(status), "%s", error);
}

static int run_step(struct run *run, bool timed)
{
    double begin = now_s();
    moe_status status = moe_session_run(run->session, run->batch.steps, run->info.ranks);
    double latency = now_s() - begin;
    if (status != MOE_OK)
        return session_failed(run, status);
    if (!timed)
        return EXIT_OK;
    moe_stats stats = {0};
    status = moe_session_stats(run->session, &stats);
    if (status != MOE_OK)
        return session_failed(run, status);
    report_add(&run->report, is_sim(run->options) ? stats.step_s : latency, &stats); // a virtual clock has its own time
    return EXIT_OK;
}

/// What the rows lose on the wire, in a step of its own: it is slower.
static int measure_loss(struct run *run)
{
    moe_stats stats = {0};
    moe_session_measure_loss(run->session, 1);
    int code = run_step(run, false);
    moe_session_measure_loss(run->session, 0);
    if (code == EXIT_OK && moe_session_stats(run->session, &stats) == MOE_OK) {
        run->report.dispatch_loss = stats.dispatch_loss;
        run->report.combine_loss = stats.combine_loss;
    }
    return code;
}

static int run_steps(struct run *run)
{
    const struct run_options *o = run->options;
    int64_t iters = o->iters > 0 ? o->iters : 1, warmup = o->warmup > 0 ? o->warmup : 0;
    if (!report_init(&run->report, &run->info, o, &run->batch, iters))
        return complain(run, EXIT_FAILED, "out of memory");
    run->report.threads = thread_count(o);
    int code = run->info.quantised && (!o->quiet || o->stats) ? measure_loss(run) : EXIT_OK;
    for (int64_t i = 0; i < warmup + iters && code == EXIT_OK; i++)
        code = run_step(run, i >= warmup);
    return code;
}

static int print_gantt(struct run *run)
{
    struct winsize window = {0};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col >= 40;
    char *text = NULL;
    moe_status status = moe_session_gantt(run->session, known ? window.ws_col : 100u, &text);
    if (status != MOE_OK)
        return session_failed(run, status);
    fputs(text, stdout);
    free(text);
    return EXIT_OK;
}

static int print_difference(struct run *run)
{
    char error[512] = "out of memory";
    struct difference d;
    moe_status status = compare_output(&run->batch, run->options->reference, &d, error, sizeof error);
    if (status != MOE_OK)
        return complain(run, run_exit_code(status), "%s", error);
    printf("against %s: relative L2 %.2e, 1 - cosine %.1e, largest difference %.1e\n", run->options->reference,
           d.relative_l2, d.cosine, d.largest);
    return EXIT_OK;
}

static int finish_output(struct run *run)
{
    return fflush(stdout) == 0 ? EXIT_OK : complain(run, EXIT_FAILED, "standard output: %s", strerror(errno));
}

/// Everything that a finished run leaves behind, results first.
static int deliver(struct run *run)
{
    const struct run_options *o = run->options;
    char error[512];
    if (o->output) {
        moe_status status = batch_write(&run->batch, o->output, error, sizeof error);
        if (status != MOE_OK)
            return complain(run, run_exit_code(status), "%s", error);
    }
    if (o->stats && !report_write(&run->report, o->stats))
        return complain(run, EXIT_FAILED, "%s: cannot write: %s", o->stats, strerror(errno));
    if (o->trace) {
        errno = 0;
        moe_status status = moe_session_trace(run->session, o->trace);
        if (status == MOE_IO)
            return complain(run, EXIT_FAILED, "%s: cannot write: %s", o->trace, strerror(errno));
        if (status != MOE_OK)
            return session_failed(run, status);
    }
    if (!o->output || o->iters > 0)
        report_print(&run->report, stdout);
    int code = o->reference ? print_difference(run) : EXIT_OK;
    if (o->gantt && code == EXIT_OK)
        code = print_gantt(run);
    int written = finish_output(run);
    return code == EXIT_OK ? written : code;
}

int run_plan(moe_plan *plan, const char *program, const struct run_options *options)
{
    struct run run = {.plan = plan, .program = program, .options = options};
    moe_plan_describe(plan, &run.info);
    static int (*const steps[])(struct run *) = {check_against_plan, make_batch, make_session,
                                                 attach_externs,     load_weights, run_steps, deliver};
    int code = EXIT_OK;
    for (size_t i = 0; i < sizeof steps / sizeof *steps && code == EXIT_OK; i++)
        code = steps[i](&run);
    if (run.session)
        moe_session_destroy(run.session);
    report_free(&run.report);
    batch_free(&run.batch);
    return code;
}

static void print_version(const moe_plan_info *info)
{
    printf("pipeline %s\nranks %u\nexperts %u, %u per token\nlayers %u, from %u\ntokens <= %" PRId64 " per rank\n"
           "width %" PRId64 ", %s in, %s out\ncpu level %s\nweights %s\nplan %016" PRIx64 "\n",
           info->name, info->ranks, info->experts, info->choices, info->layers, info->first_layer, info->tokens_bound,
           info->width, info->x_dtype, info->y_dtype, info->cpu_level, *info->weights ? info->weights : "none",
           info->hash);
}

int moe_run_main(moe_plan *plan, const char *program, int argc, char **argv)
{
    struct run_options options;
    run_options_init(&options);
    char error[256];
    int code = EXIT_OK;
    if (!run_options_parse(&options, argc, argv, error, sizeof error)) {
        fprintf(stderr, "%s: error: %s\n", program, error);
        code = EXIT_USAGE_ERROR;
    } else if (options.help) {
        printf("usage: %s [OPTION...]\n\n", program);
        run_options_help(stdout);
        code = finish_output(&(struct run){.program = program});
    } else if (options.version) {
        moe_plan_info info;
        moe_plan_describe(plan, &info);
        print_version(&info);
        code = finish_output(&(struct run){.program = program});
    } else
        code = run_plan(plan, program, &options);
    run_options_free(&options);
    return code;
}
