// The search and its report.
#include "compiler/tune/search.h"

#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EVALUATIONS = 3000, TABLE_LINES = 10 };
// Predictions closer than this are equal: the simpler schedule goes first, and talk of other hardware needs more.
static const double EQUAL = 0.005, WORTH = 0.02;

static uint64_t key_of(const struct candidate *c)
{
    uint64_t key = 0xcbf29ce484222325u; // FNV-1a
    for (const char *at = c->use; *at; at++)
        key = (key ^ (uint8_t)*at) * 0x100000001b3u;
    for (const char *at = c->text ? c->text : ""; *at; at++)
        key = (key ^ (uint8_t)*at) * 0x100000001b3u;
    return key;
}

/// Judged before, legal or not.
static bool is_known(struct tuning *t, uint64_t key)
{
    for (uint32_t i = 0; i < t->seen_count; i++)
        if (t->seen[i] == key)
            return true;
    t->seen = context_grow(t->context, t->seen, &t->seen_capacity, t->seen_count + 1, sizeof *t->seen);
    t->seen[t->seen_count++] = key;
    return false;
}

static void show_progress(const struct tuning *t)
{
    if (t->options->progress)
        fprintf(stderr, "\r%u of %u schedules, best %s  ", t->evaluations, t->most,
                t->kept_count ? time_text(t->context, t->kept[0].step_ns) : "-");
}

const struct candidate *consider(struct tuning *t, struct candidate candidate)
{
    if (is_known(t, key_of(&candidate)) || !judge(t, &candidate, false))
        return NULL;
    t->kept = context_grow(t->context, t->kept, &t->kept_capacity, t->kept_count + 1, sizeof *t->kept);
    uint32_t at = t->kept_count++;
    for (; at > 0 && t->kept[at - 1].step_ns > candidate.step_ns * (1 + 1e-9); at--)
        t->kept[at] = t->kept[at - 1];
    t->kept[at] = candidate;
    if (t->evaluations % 32 == 0)
        show_progress(t);
    return &t->kept[at];
}

static const struct candidate *best_offer(const struct tuning *t)
{
    for (uint32_t i = 0; i < t->kept_count; i++)
        if (!t->kept[i].text)
            return &t->kept[i];
    return NULL;
}

static bool same_name(const struct candidate *a, const struct candidate *b)
{
    size_t stem = strcspn(a->use, "(");
    return stem == strcspn(b->use, "(") && !strncmp(a->use, b->use, stem);
}

/// Simpler: fewer parts; then one that has a name.
static bool simpler(const struct candidate *a, const struct candidate *b)
{
    return a->parts != b->parts ? a->parts < b->parts : !a->text && b->text;
}

static void move_up(struct tuning *t, uint32_t from, uint32_t to)
{
    struct candidate moving = t->kept[from];
    memmove(&t->kept[to + 1], &t->kept[to], (from - to) * sizeof moving);
    t->kept[to] = moving;
}

/// Of those that are as good as the best, the simplest first; then the best of other names.
static void rank_first(struct tuning *t, uint32_t count)
{
    const struct candidate *offer = best_offer(t);
    double equal = t->kept[0].step_ns * (1 + EQUAL);
    equal = offer ? fmin(equal, offer->step_ns * (1 + 1e-9)) : equal; // never worse than the library
    for (uint32_t place = 0; place < count && place < t->kept_count; place++) {
        uint32_t chosen = NONE;
        for (uint32_t i = place; i < t->kept_count; i++) {
            bool taken = false;
            for (uint32_t k = 0; k < place; k++)
                taken = taken || same_name(&t->kept[k], &t->kept[i]);
            if (!taken && (chosen == NONE || (place == 0 && t->kept[i].step_ns <= equal && simpler(&t->kept[i], &t->kept[chosen]))))
                chosen = i;
        }
        if (chosen != NONE)
            move_up(t, chosen, place);
    }
}

// ---- report -----------------------------------------------------------------------------------------------------------

static bool fits(const struct tuning *t) { return t->memory > 0 && t->weights < 0.9 * t->memory; }

static void print_line(const struct tuning *t, const struct candidate *c)
{
    char measured[32] = "-";
    if (c->measured_ns > 0)
        snprintf(measured, sizeof measured, "%s", time_text(t->context, c->measured_ns));
    fprintf(t->options->out, "// %-36s %10s %8.2fx %8.1f%% %10s%s\n", c->use, time_text(t->context, c->step_ns),
            t->serial_ns / c->step_ns, 100 * c->exposed, measured, c->waves ? "  rounds per wave" : "");
}

/// The best of each name.
static void print_table(const struct tuning *t)
{
    FILE *out = t->options->out;
    fprintf(out, "// layer %s on %s: %u ranks, %lld tokens each, %u layer%s, %u schedules tried\n", t->layer, t->cluster, t->ranks,
            (long long)t->tokens, t->layers, t->layers == 1 ? "" : "s", t->evaluations);
    fprintf(out, "// %-36s %10s %9s %9s %10s\n", "schedule", "predicted", "speedup", "exposed", "measured");
    uint32_t lines = 0;
    for (uint32_t i = 0; i < t->kept_count && lines < TABLE_LINES; i++) {
        bool again = false;
        for (uint32_t k = 0; k < i; k++)
            again = again || same_name(&t->kept[k], &t->kept[i]);
        if (again)
            continue;
        print_line(t, &t->kept[i]);
        lines++;
    }
    fprintf(out, "// %-36s %10s %8.2fx\n", "serial", time_text(t->context, t->serial_ns), 1.0); // what speedups are over
    fprintf(out, "// %-36s %10s %8.2fx\n", "every rank alone", time_text(t->context, t->alone_ns), t->serial_ns / t->alone_ns);
}

static void print_verdicts(const struct tuning *t, const struct tune_result *result)
{
    FILE *out = t->options->out;
    double gigabytes = 1e-9 * t->weights;
    if (result->alone)
        fprintf(out, "// do not use expert parallelism here: a rank that holds all experts (%.1f GB of %.0f GB) takes %s, %.0f%% less\n",
                gigabytes, 1e-9 * t->memory, time_text(t->context, t->alone_ns), 100 * (1 - t->alone_ns / result->best_ns));
    else if (t->alone_ns < result->best_ns * (1 - WORTH))
        fprintf(out, "// every rank alone would be quicker, but %.1f GB of weights do not fit beside %.0f GB\n", gigabytes,
                1e-9 * t->memory);
    if (!result->split)
        fprintf(out, "// do not split: no schedule of several micro-batches, waves or pieces is quicker here; any split below is\n"
                     "// into one part at the knobs' defaults\n");
}

static void finish(struct tuning *t, struct tune_result *result)
{
    const struct candidate *best = &t->kept[0], *offer = best_offer(t);
    for (uint32_t i = 1; i < t->kept_count && t->kept[i].measured_ns > 0; i++) // what was measured decides
        if (t->kept[i].measured_ns < best->measured_ns)
            best = &t->kept[i];
    *result = (struct tune_result){.best_ns = t->kept[0].step_ns,
                                   .library_ns = offer ? offer->step_ns : NAN,
                                   .serial_ns = t->serial_ns,
                                   .alone_ns = t->alone_ns,
                                   .winner = best->use,
                                   .library = offer ? offer->use : "serial",
                                   .split = best->parts > 1,
                                   .evaluations = t->evaluations};
    result->alone = t->alone_ns < t->kept[0].step_ns * (1 - WORTH) && fits(t) && t->ranks > 1;
    result->name = t->name;
    const char *text = best->text ? best->text : offer_text(t, best);
    uint32_t file = add_source(t->context, "tuned.moe", text, strlen(text), NULL);
    const char *canonical = format_source(t->context, file);
    result->text = canonical ? canonical : text;
}

static void print_json(const struct tune_result *r, FILE *out)
{
    fprintf(out, "{\"winner\":\"%s\",\"predicted_s\":%.9g,\"library_s\":%.9g,\"serial_s\":%.9g,\"alone_s\":%.9g,"
                 "\"split\":%s,\"expert_parallel\":%s,\"schedules\":%u}\n",
            r->winner, 1e-9 * r->best_ns, 1e-9 * r->library_ns, 1e-9 * r->serial_ns, 1e-9 * r->alone_ns,
            r->split ? "true" : "false", r->alone ? "false" : "true", r->evaluations);
}

enum exit_code tune(struct context *context, const struct tune_options *options, struct tune_result *result)
{
    struct tuning *t = context_alloc(context, sizeof *t);
    *t = (struct tuning){.context = context, .options = options, .most = options->evaluations ? options->evaluations : EVALUATIONS};
    mallopt(M_MMAP_THRESHOLD, 64 << 20); // contexts come and go: their pages stay with the process
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
    t->base = read_whole_file(context, options->driver.file, &t->base_size);
    if (!t->base)
        fatal(context, EXIT_SYSTEM, "cannot read %s: %s", options->driver.file, strerror(errno));
    t->name = "tuned";
    for (int i = 2; strstr(t->base, context_printf(context, "schedule %s", t->name)); i++)
        t->name = context_printf(context, "tuned%d", i);
    struct candidate serial = {.use = "serial"};
    if (!judge(t, &serial, true)) { // what is wrong with the file itself is told once
        if (!context->error_count)
            fprintf(stderr, "moecc: %s has no pipeline to tune\n", options->driver.file);
        return EXIT_INPUT;
    }
    try_offers(t);
    try_designs(t);
    if (!t->kept_count)
        fatal(context, EXIT_BUG, "not even `serial` was legal twice");
    rank_first(t, options->confirm ? options->confirm : 1);
    confirm(t, options->confirm);
    if (options->progress)
        fprintf(stderr, "\r%60s\r", "");
    finish(t, result);
    if (options->out && options->driver.json) {
        print_json(result, options->out);
    } else if (options->out) {
        print_table(t);
        print_verdicts(t, result);
        const char *of = !strcmp(result->winner, t->name) ? "" : context_printf(context, "// this is %s\n", result->winner);
        fprintf(options->out, "// in the pipeline: use %s;\n%s\n%s", t->name, of, result->text);
    }
    return EXIT_FINE;
}
