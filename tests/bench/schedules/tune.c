// What `moecc tune` is worth here: the layers of tests/tune that run on two ranks of this machine, tuned for the device that
// `moecc calibrate` finds now, tune's own measurement of its best three included; then the winner beside the best schedule of
// the library, step by step in turn. Usage: moe-bench-tune [--rounds N] [--require]
//
// Prints a line each: predicted and measured gain, the latter the median of paired ratios with the interval that holds it
// with 95 %. --require: exit code 1 unless the winner is at least 3 % ahead on two of them, both predicted and measured.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/calibrate/calibrate.h"
#include "compiler/tune/tune.h"
#include "tests/bench/schedules/subject.h"

enum { MOST_ROUNDS = 101 };
static const double AHEAD = 1.03;

static const struct {
    const char *name;
    double attention_s; // as its file says
} pairs[] = {{"cpu_latency", 0}, {"cpu_layers", 0}, {"cpu_attention", 40e-3}, {"cpu_shared", 0}};

static char folder[] = "/tmp/moe-tune-XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s.moe", folder, name);
    return path;
}

static bool write_calibrated(void)
{
    static struct context context;
    FILE *out = fopen(in_folder("calibrated"), "w");
    if (!out)
        return false;
    context_init(&context);
    bool fine = !setjmp(context.fatal);
    if (fine)
        calibrate(&context, 2, false, out);
    else
        fprintf(stderr, "%s\n", context.fatal_message);
    context_free(&context);
    return fclose(out) == 0 && fine;
}

/// The pair's file beside the fresh calibration, with `more` behind it.
static bool write_pair(const char *name, const char *more)
{
    char from[128];
    snprintf(from, sizeof from, "tests/tune/%s.moe", name);
    FILE *in = fopen(from, "r"), *out = fopen(in_folder(name), "w");
    bool fine = in && out;
    for (int c; fine && (c = fgetc(in)) != EOF;)
        fputc(c, out);
    if (fine)
        fprintf(out, "\n%s", more);
    if (in)
        fclose(in);
    return out && fclose(out) == 0 && fine;
}

struct outcome {
    char winner[64], name[64], library[64];
    double predicted; // library over winner
    double ratio, low, high, library_s, winner_s;
};

static bool tune_pair(const char *name, struct outcome *o)
{
    static struct context context;
    struct tune_options options = {.driver = {.file = in_folder(name), .check = {.layer = -1}}, .confirm = 3};
    struct tune_result result = {0};
    context_init(&context);
    bool fine = !setjmp(context.fatal) && tune(&context, &options, &result) == EXIT_FINE && write_pair(name, result.text);
    if (fine) {
        snprintf(o->winner, sizeof o->winner, "%s", result.winner);
        snprintf(o->name, sizeof o->name, "%s", result.name);
        snprintf(o->library, sizeof o->library, "%s", result.library);
        o->predicted = result.library_ns / result.best_ns;
    }
    diag_print_all(&context, DIAG_TEXT, false, stderr);
    context_free(&context);
    return fine;
}

/// Half the width, in ranks, of the interval of order statistics that holds the median with 95 %.
static unsigned half_width(unsigned count)
{
    return (unsigned)fmin(0.98 * sqrt(count), (count - 1) / 2);
}

static bool measure(const char *name, double attention_s, unsigned rounds, struct outcome *o)
{
    struct subject s[2] = {{.file = in_folder(name), .schedule = o->name, .attention_s = attention_s},
                           {.file = in_folder(name), .schedule = o->library, .attention_s = attention_s}};
    double times[2][MOST_ROUNDS], ratios[MOST_ROUNDS];
    bool fine = subject_open(&s[0]) && subject_open(&s[1]);
    for (unsigned r = 0; r < rounds + 1 && fine; r++) // the first warms up
        for (unsigned k = 0; k < 2 && fine; k++) {
            struct sample sample;
            unsigned which = (r + k) % 2;
            fine = subject_step(&s[which], &sample);
            times[which][r ? r - 1 : 0] = sample.latency;
        }
    for (unsigned r = 0; r < rounds && fine; r++)
        ratios[r] = times[1][r] / times[0][r];
    subject_close(&s[0]);
    subject_close(&s[1]);
    if (!fine)
        return false;
    o->ratio = median_of(ratios, rounds); // sorts them
    o->low = ratios[(rounds - 1) / 2 - half_width(rounds)];
    o->high = ratios[rounds / 2 + half_width(rounds)];
    o->winner_s = median_of(times[0], rounds);
    o->library_s = median_of(times[1], rounds);
    return true;
}

int main(int argc, char **argv)
{
    unsigned rounds = 21, ahead = 0;
    bool require = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--rounds") && i + 1 < argc)
            rounds = (unsigned)strtoul(argv[++i], NULL, 10);
        require |= !strcmp(argv[i], "--require");
    }
    rounds = rounds < 3 ? 3 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    bool fine = mkdtemp(folder) && write_calibrated();
    if (fine)
        printf("%-14s %-12s %-26s %10s %10s   %9s %9s\n", "layer", "winner", "best of the library", "winner", "library", "predicted",
               "measured");
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && fine; i++) {
        struct outcome o;
        fine = write_pair(pairs[i].name, "") && tune_pair(pairs[i].name, &o) && measure(pairs[i].name, pairs[i].attention_s, rounds, &o);
        if (fine)
            printf("%-14s %-12s %-26s %7.1f ms %7.1f ms   %8.1f%% %8.1f%% (%.1f to %.1f)\n", pairs[i].name, o.winner, o.library,
                   1e3 * o.winner_s, 1e3 * o.library_s, 100 * (o.predicted - 1), 100 * (o.ratio - 1), 100 * (o.low - 1),
                   100 * (o.high - 1));
        ahead += fine && o.predicted >= AHEAD && o.ratio >= AHEAD;
        fflush(stdout);
        remove(in_folder(pairs[i].name));
    }
    remove(in_folder("calibrated"));
    rmdir(folder);
    if (fine)
        printf("%u of %zu ahead by 3%% and more, predicted and measured\n", ahead, sizeof pairs / sizeof *pairs);
    return !fine ? 3 : require && ahead < 2 ? 1 : 0;
}
