// The options of a run: one table from which they are parsed, explained and guessed at.
#include "runtime/cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/output.h"

enum option_kind {
    OPTION_FLAG,
    OPTION_TEXT,
    OPTION_U32,
    OPTION_COUNT,
    OPTION_LAYER,
    OPTION_SEED,
    OPTION_SECONDS,
    OPTION_TOKENS,
    OPTION_EXTERN
};

struct option {
    const char *name; // with its dashes
    enum option_kind kind;
    size_t offset;     // of the field in run_options
    const char *value; // what the help calls the value
    const char *help;
};

#define FIELD(name) offsetof(struct run_options, name)
static const struct option OPTIONS[] = {
    {"--input", OPTION_TEXT, FIELD(input), "F.safetensors",
     "tokens: `hidden_states`, optional `topk_ids`, `topk_weights`"},
    {"--output", OPTION_TEXT, FIELD(output), "F.safetensors", "where results go; without it a summary is printed"},
    {"--reference", OPTION_TEXT, FIELD(reference), "F.safetensors", "prints the output's error against this one"},
    {"--tokens", OPTION_TOKENS, FIELD(tokens), "N[,N...]",
     "random tokens per rank instead of an input; default: the bound"},
    {"--seed", OPTION_SEED, FIELD(seed), "S", "of random tokens and weights; default 0"},
    {"--weights", OPTION_TEXT, FIELD(weights), "PATH", "checkpoint directory or file, or `random`"},
    {"--ranks", OPTION_U32, FIELD(ranks), "N", "ranks in this process"},
    {"--layer", OPTION_LAYER, FIELD(layer), "L", "run this layer of the checkpoint alone"},
    {"--pipeline", OPTION_TEXT, FIELD(pipeline), "NAME", "which pipeline of the file"},
    {"--threads", OPTION_U32, FIELD(threads), "N", "compute threads; default: one per core"},
    {"--iters", OPTION_COUNT, FIELD(iters), "N", "timed steps; prints latencies and rates"},
    {"--warmup", OPTION_COUNT, FIELD(warmup), "N", "steps before the timed ones; default 0"},
    {"--trace", OPTION_TEXT, FIELD(trace), "F.json", "measured timeline of the last step, Chrome trace format"},
    {"--stats", OPTION_TEXT, FIELD(stats), "F.json", "all figures as JSON"},
    {"--gantt", OPTION_FLAG, FIELD(gantt), NULL, "measured timeline of the last step as text"},
    {"--timeout", OPTION_SECONDS, FIELD(timeout_s), "S", "seconds without progress that end a step; default 30"},
    {"--target", OPTION_TEXT, FIELD(target), "cpu|sim", "device; `sim` runs on a virtual clock"},
    {"--cpu-level", OPTION_TEXT, FIELD(cpu_level), "L", "kernel level: v2 v3 v4 bf16 amx"},
    {"--emulate-links", OPTION_FLAG, FIELD(emulate_links), NULL,
     "messages take what the cluster's bandwidth and latency say"},
    {"--bind", OPTION_TEXT, FIELD(bind), "node|core|none",
     "threads stay on their rank's memory node (default), or on a core each"},
    {"--pin", OPTION_FLAG, FIELD(pin), NULL, "the same as `--bind core`"},
    {"--extern", OPTION_EXTERN, FIELD(extern_stages), "NAME=identity|busy:TIME|LIB.so:symbol",
     "what stands for an extern stage; default identity"},
    {"--inject", OPTION_TEXT, FIELD(fault), "FAULT", "testing: drop:RANK, double:RANK, misroute:RANK"},
    {"-q", OPTION_FLAG, FIELD(quiet), NULL, "no notes, no progress"},
    {"-v", OPTION_FLAG, FIELD(verbose), NULL, "more notes"},
    {"--help", OPTION_FLAG, FIELD(help), NULL, "this text"},
    {"--version", OPTION_FLAG, FIELD(version), NULL, "what was built, and for what"},
};
enum { OPTION_COUNT_ALL = sizeof OPTIONS / sizeof *OPTIONS };

void run_options_init(struct run_options *options)
{
    *options = (struct run_options){.layer = -1, .iters = -1, .warmup = -1};
}

void run_options_free(struct run_options *options)
{
    free(options->tokens);
    run_options_init(options);
}

/// Digits only, the whole text; false beyond `most`.
static bool parse_count(const char *text, uint64_t most, uint64_t *value)
{
    if (*text < '0' || *text > '9')
        return false;
    char *end;
    errno = 0;
    unsigned long long parsed = strtoull(text, &end, 10);
    *value = parsed;
    return *end == 0 && errno == 0 && parsed <= most;
}

/// "64" or "64,0,32".
static bool parse_tokens(struct run_options *options, const char *text)
{
    uint32_t count = 1;
    for (const char *c = text; *c; c++)
        count += *c == ',';
    int64_t *tokens = calloc(count, sizeof *tokens);
    char *copy = strdup(text), *rest = copy;
    bool fine = tokens && copy;
    for (uint32_t i = 0; i < count && fine; i++) {
        uint64_t value = 0;
        fine = parse_count(strsep(&rest, ","), INT32_MAX, &value);
        tokens[i] = (int64_t)value;
    }
    free(copy);
    if (!fine) {
        free(tokens);
        return false;
    }
    free(options->tokens);
    options->tokens = tokens;
    options->token_counts = count;
    return true;
}

static bool parse_seconds(const char *text, double *value)
{
    char *end;
    errno = 0;
    *value = strtod(text, &end);
    return end != text && *end == 0 && errno == 0 && *value > 0 && *value < 1e9;
}

static bool set_value(struct run_options *options, const struct option *option, const char *text)
{
    char *field = (char *)options + option->offset;
    uint64_t value = 0;
    switch (option->kind) {
    case OPTION_FLAG:
        *(bool *)(void *)field = true;
        return true;
    case OPTION_TEXT:
        *(const char **)(void *)field = text;
        return *text != 0;
    case OPTION_EXTERN:
        if (options->extern_count == sizeof options->extern_stages / sizeof *options->extern_stages)
            return false;
        options->extern_stages[options->extern_count++] = text;
        return strchr(text, '=') && *text != '=';
    case OPTION_SECONDS:
        return parse_seconds(text, (double *)(void *)field);
    case OPTION_TOKENS:
        return parse_tokens(options, text);
    case OPTION_SEED:
        if (!parse_count(text, UINT64_MAX, &value))
            return false;
        *(uint64_t *)(void *)field = value;
        return true;
    case OPTION_U32:
        if (!parse_count(text, 65536, &value) || value == 0)
            return false;
        *(uint32_t *)(void *)field = (uint32_t)value;
        return true;
    case OPTION_LAYER:
        if (!parse_count(text, 1000000, &value))
            return false;
        *(int32_t *)(void *)field = (int32_t)value;
        return true;
    case OPTION_COUNT:
        if (!parse_count(text, 100000000, &value))
            return false;
        *(int64_t *)(void *)field = (int64_t)value;
        return true;
    }
    return false;
}

enum run_option_result run_option_take(struct run_options *options, int argc, char **argv, int *index, char *error,
                                       size_t size)
{
    const char *given = argv[*index], *equals = strncmp(given, "--", 2) ? NULL : strchr(given, '=');
    size_t length = equals ? (size_t)(equals - given) : strlen(given);
    for (size_t i = 0; i < OPTION_COUNT_ALL; i++) {
        const struct option *option = &OPTIONS[i];
        if (strlen(option->name) != length || strncmp(option->name, given, length) != 0)
            continue;
        const char *text = equals ? equals + 1 : NULL;
        int used = 1;
        if (option->kind == OPTION_FLAG && text) {
            snprintf(error, size, "`%s` takes no value", option->name);
            return RUN_OPTION_BAD;
        }
        if (option->kind != OPTION_FLAG && !text) {
            if (*index + 1 >= argc) {
                snprintf(error, size, "`%s` needs a value: %s", option->name, option->value);
                return RUN_OPTION_BAD;
            }
            text = argv[*index + 1];
            used = 2;
        }
        if (!set_value(options, option, text)) {
            snprintf(error, size, "`%s %s`: expected %s", option->name, text, option->value);
            return RUN_OPTION_BAD;
        }
        *index += used;
        return RUN_OPTION_TAKEN;
    }
    return RUN_OPTION_UNKNOWN;
}

/// Edits (insert, delete, replace) between two short texts; 99 when either is long.
static size_t edit_distance(const char *a, const char *b)
{
    enum { LONGEST = 40 };
    size_t n = strlen(a), m = strlen(b), row[LONGEST + 1];
    if (n > LONGEST || m > LONGEST)
        return 99;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    return row[m];
}

const char *run_option_nearest(const char *given)
{
    const char *nearest = NULL;
    size_t least = 4; // at most three edits, and fewer than half of the letters
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(given, "="), given);
    for (size_t i = 0; i < OPTION_COUNT_ALL; i++) {
        size_t edits = edit_distance(name, OPTIONS[i].name);
        if (strlen(OPTIONS[i].name) > 2 && edits < least && 2 * edits < strlen(name)) {
            least = edits;
            nearest = OPTIONS[i].name;
        }
    }
    return nearest;
}

bool run_options_check(const struct run_options *options, char *error, size_t size)
{
    const char *problem = NULL;
    if (options->input && options->token_counts)
        problem = "`--input` and `--tokens` exclude each other";
    else if (options->quiet && options->verbose)
        problem = "`-q` and `-v` exclude each other";
    else if (options->pin && options->bind)
        problem = "`--pin` and `--bind` exclude each other";
    else if (options->iters == 0)
        problem = "`--iters` must be at least 1";
    const char *const written[] = {options->output, options->stats, options->trace};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) // each in turn would replace the one before
        for (size_t j = 0; j < i; j++)
            if (written[i] && written[j] && output_same_file(written[i], written[j]))
                problem = "`--output`, `--stats` and `--trace` need files of their own";
    // Results are in place before they are compared: they would equal themselves.
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        if (written[i] && options->reference && output_same_file(written[i], options->reference))
            problem = "`--reference` is a file that this run would write";
    if (problem)
        snprintf(error, size, "%s", problem);
    for (uint32_t i = 0; i < options->extern_count && !problem; i++)
        if (!extern_option_check(options->extern_stages[i], error, size))
            return false;
    return !problem;
}

bool run_options_parse(struct run_options *options, int argc, char **argv, char *error, size_t size)
{
    for (int i = 0; i < argc;) {
        enum run_option_result result = run_option_take(options, argc, argv, &i, error, size);
        if (result == RUN_OPTION_BAD)
            return false;
        if (result == RUN_OPTION_UNKNOWN) {
            const char *nearest = run_option_nearest(argv[i]);
            const char *what = argv[i][0] == '-' ? "unknown option" : "unexpected argument";
            snprintf(error, size, "%s `%s`%s%s%s", what, argv[i], nearest ? "; did you mean `" : "",
                     nearest ? nearest : "", nearest ? "`?" : "");
            return false;
        }
    }
    return run_options_check(options, error, size);
}

void run_options_help(FILE *out)
{
    for (size_t i = 0; i < OPTION_COUNT_ALL; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", OPTIONS[i].name, OPTIONS[i].value ? OPTIONS[i].value : "");
        fprintf(out, "  %-26s %s\n", left, OPTIONS[i].help);
    }
}
