// What overlap is worth with emulated links: every schedule of examples/overlap.moe against `serial`, step by step in
// turn, medians of the rounds, beside the bound that holds for it. Usage: moe-bench-overlap [--rounds N] [--require] [FILE]
//
//   a layer alone, n micro-batches    1/n of the communication cannot hide: at best serial / (compute + communication / n)
//   layers in a row                   at best serial / max(compute, communication)
//
// compute and communication are serial's: its step less what is exposed, and what is exposed. The links are made faster or
// slower until that is 45 % on this machine. --require: exit code 1 unless exposed communication shrinks by 0.95 of what
// can hide (in a row: by 90 %) and the speedup is 0.93 of its bound, with the same bytes.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/calibrate/probe.h"
#include "tests/bench/schedules/subject.h"

enum { MOST = 4, MOST_ROUNDS = 64 };
static const double SERIAL_SHARE = 0.45, MOST_OFF = 0.02, HIDDEN_OF_IDEAL = 0.95, HIDDEN_IN_A_ROW = 0.90, SPEED_OF_BOUND = 0.93;

struct group {
    const char *pipeline, *what;
    int64_t tokens; // per rank; 0: the bound
    bool judged;
    struct {
        const char *schedule;
        unsigned parts;         // micro-batches of a layer alone; 0: layers in a row
    } row[MOST];
    unsigned count;
};

static const struct group groups[] = {
    {"one", "one layer, two ranks", 0, true, {{"serial", 1}, {"ladder(n: 2)", 2}, {"ladder(n: 4)", 4}, {"ladder(n: 8)", 8}}, 4},
    {"eight", "eight layers, two ranks", 0, true, {{"serial", 1}, {"ladder(n: 8)", 0}, {"through(n: 4)", 0}, {"through(n: 8)", 0}}, 4},
    {"four", "one layer, four ranks", 1536, false, {{"serial", 1}, {"ladder(n: 4)", 4}, {"ladder(n: 8)", 8}}, 3},
};

struct measured {
    struct subject subject[MOST];
    double latency[MOST][MOST_ROUNDS], exposed[MOST][MOST_ROUNDS], idle[MOST][MOST_ROUNDS], peak[MOST_ROUNDS];
};

static bool open_group(const struct group *g, const char *file, struct measured *m)
{
    bool fine = true;
    for (unsigned i = 0; i < g->count && fine; i++) {
        m->subject[i] = (struct subject){.file = file, .pipeline = g->pipeline, .schedule = g->row[i].schedule,
                                         .tokens = g->tokens};
        fine = subject_open(&m->subject[i]);
    }
    return fine;
}

/// Scales the links until `serial` exposes the share that is wanted.
static bool fit_links(const struct group *g, struct measured *m)
{
    for (int i = 0; i < 4; i++) {
        struct sample s, unused;
        if (!subject_step(&m->subject[0], &unused) || !subject_step(&m->subject[0], &s))
            return false;
        double share = s.exposed / s.latency, wanted = (s.latency - s.exposed) * SERIAL_SHARE / (1 - SERIAL_SHARE);
        if (fabs(share - SERIAL_SHARE) < MOST_OFF)
            return true;
        for (unsigned k = 0; k < g->count; k++)
            subject_scale_links(&m->subject[k], s.exposed / wanted);
    }
    return true;
}

static bool measure(const struct group *g, struct measured *m, unsigned rounds)
{
    struct sample s;
    if (!fit_links(g, m))
        return false;
    for (unsigned i = 1; i < g->count; i++) // a first step touches memory for the first time
        if (!subject_step(&m->subject[i], &s))
            return false;
    for (unsigned r = 0; r < rounds; r++) {
        m->peak[r] = probe_bf16_peak(2, 0.05);
        for (unsigned i = 0; i < g->count; i++) {
            if (!subject_step(&m->subject[i], &s))
                return false;
            m->latency[i][r] = s.latency;
            m->exposed[i][r] = s.exposed;
            m->idle[i][r] = s.idle;
        }
    }
    return true;
}

/// Prints a group's table. False: something that is judged is missed.
static bool report(const struct group *g, struct measured *m, unsigned rounds)
{
    double serial = median_of(m->latency[0], rounds), exposed = median_of(m->exposed[0], rounds);
    uint64_t bytes = subject_output_hash(&m->subject[0]);
    bool met = true;
    printf("\n%s: %u rounds, machine %.0f GFLOP/s bf16\n%-16s %9s %9s %7s %9s %8s %8s %8s\n", g->what, rounds,
           median_of(m->peak, rounds) * 1e-9, "schedule", "step ms", "exposed", "idle", "hidden", "speedup", "of bound", "bytes");
    for (unsigned i = 0; i < g->count; i++) {
        unsigned n = g->row[i].parts;
        double step = median_of(m->latency[i], rounds), left = median_of(m->exposed[i], rounds);
        double compute = serial - exposed, hidden = 1 - left / exposed, can_hide = n ? 1 - 1.0 / n : 1;
        double bound = serial / (n ? compute + exposed / n : fmax(compute, exposed));
        bool same = subject_output_hash(&m->subject[i]) == bytes, last = i + 1 == g->count;
        bool enough = hidden >= (n ? HIDDEN_OF_IDEAL * can_hide : HIDDEN_IN_A_ROW) && serial / step >= SPEED_OF_BOUND * bound;
        printf("%-16s %9.1f %8.1f%% %6.1f%% %8.1f%% %7.2fx %8.3f %8s%s\n", g->row[i].schedule, step * 1e3, 100 * left / step,
               100 * median_of(m->idle[i], rounds) / step, 100 * hidden, serial / step, serial / step / bound,
               same ? "same" : "DIFFER", !i || !g->judged ? "" : enough ? "  met" : n || last ? "  missed" : "");
        met &= same && (!i || !g->judged || enough || !(n || last));
    }
    fflush(stdout);
    return met;
}

int main(int argc, char **argv)
{
    const char *file = "examples/overlap.moe";
    unsigned rounds = 7;
    bool require = false, met = true, fine = true;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--rounds") && i + 1 < argc)
            rounds = (unsigned)strtoul(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--require"))
            require = true;
        else
            file = argv[i];
    }
    rounds = rounds < 1 ? 1 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    for (size_t g = 0; g < sizeof groups / sizeof *groups && fine; g++) {
        struct measured *m = calloc(1, sizeof *m);
        fine = m && open_group(&groups[g], file, m) && measure(&groups[g], m, rounds);
        met = fine && report(&groups[g], m, rounds) && met;
        for (unsigned i = 0; m && i < groups[g].count; i++)
            subject_close(&m->subject[i]);
        free(m);
    }
    return !fine ? 3 : require && !met ? 1 : 0;
}
