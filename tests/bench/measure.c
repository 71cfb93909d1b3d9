// Rounds over engines, and the statistics of paired samples.
#include "tests/bench/measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "compiler/calibrate/probe.h"

enum { MOST_TRIES = 4, FEW_TOKENS = 8 }; // tries: of a sample

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const double *values, unsigned count)
{
    double sorted[BENCH_MOST_SAMPLES];
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, ascending);
    return count % 2 ? sorted[count / 2] : 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]);
}

// The largest number of samples to leave out at each end: P(fewer than that many of n fall below the median) <= 2.5%.
static unsigned left_out(unsigned n)
{
    double term = pow(0.5, n), below = 0;
    for (unsigned k = 0; k < n / 2; k++) {
        below += term;
        if (below > 0.025)
            return k;
        term *= (double)(n - k) / (k + 1);
    }
    return 0;
}

struct bench_ratio bench_compare(const struct bench_line *a, const struct bench_line *b)
{
    double ratios[BENCH_MOST_SAMPLES];
    unsigned n = a->count < b->count ? a->count : b->count;
    for (unsigned i = 0; i < n; i++)
        ratios[i] = a->samples[i].pace / b->samples[i].pace;
    qsort(ratios, n, sizeof *ratios, ascending);
    unsigned out = left_out(n);
    return (struct bench_ratio){bench_median(ratios, n), ratios[out], ratios[n - 1 - out]};
}

/// Time that the host of a virtual machine gave to others, over all processors, in the system's ticks.
static long long stolen(void)
{
    long long ticks = 0;
    FILE *file = fopen("/proc/stat", "r");
    if (!file || fscanf(file, "cpu %*d %*d %*d %*d %*d %*d %*d %lld", &ticks) != 1)
        ticks = 0;
    if (file)
        fclose(file);
    return ticks;
}

/// What was measured between two probes.
struct reading {
    double seconds, peak, bandwidth; // of one step
};

/// Enough repetitions of a batch to last 10 ms.
static bool read_once(struct bench_loaded *loaded, const struct bench_group *group, struct bench_batch *batch, void *y,
                      struct reading *reading)
{
    unsigned threads = group->threads, repeats = 0;
    double begin = 0, end = 0;
    *reading = (struct reading){0};
    for (int side = 0; side < 2; side++) {
        if (side == 1) {
            begin = now();
            do {
                if (!bench_run(loaded, batch, y))
                    return false;
                repeats++;
                end = now();
            } while (end - begin < 0.01);
        }
        double peak = group->dtype == BENCH_F32 ? probe_f32_peak(threads, 0.01) : probe_bf16_peak(threads, 0.01);
        double bandwidth = probe_read_bandwidth(threads, 0.02);
        if (!(peak > 0) || !(bandwidth > 0)) {
            fprintf(stderr, "out of memory for a probe\n");
            return false;
        }
        reading->peak += 0.5 * peak;
        reading->bandwidth += 0.5 * bandwidth;
    }
    reading->seconds = (end - begin) / repeats;
    return true;
}

/// A sample of a line. One during which a processor was taken away is taken again, a few times.
static bool sample(struct bench_loaded *loaded, const struct bench_group *group, struct bench_batch *batch, void *y,
                   struct bench_line *line)
{
    struct reading r;
    long long before;
    int tries = 0;
    do {
        before = stolen();
        if (!read_once(loaded, group, batch, y, &r))
            return false;
    } while (stolen() != before && ++tries < MOST_TRIES);
    double compute = bench_flops(group->shape, batch->tokens) / r.peak;
    double own = bench_weight_bytes(group->shape, line->dtype, batch) / r.bandwidth;
    double memory = bench_weight_bytes(group->shape, group->dtype, batch) / r.bandwidth;
    line->peak_share += (compute / r.seconds - line->peak_share) / (line->count + 1);
    line->samples[line->count++] =
        (struct bench_sample){r.seconds, fmax(compute, own) / r.seconds, fmax(compute, memory) / r.seconds};
    return true;
}

static double distance(enum bench_dtype dtype, const void *a, const void *b, int64_t count)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        double x = dtype == BENCH_F32 ? ((const float *)a)[i] : bench_from_bf16(((const uint16_t *)a)[i]);
        double y = dtype == BENCH_F32 ? ((const float *)b)[i] : bench_from_bf16(((const uint16_t *)b)[i]);
        error += (x - y) * (x - y);
        size += x * x;
    }
    return sqrt(error / size);
}

struct measuring {
    const struct bench_group *group;
    const struct bench_engine *engines[BENCH_MOST_ENGINES];
    unsigned engine_count, batch_count;
    struct bench_batch batches[BENCH_MOST_COUNTS * BENCH_ROUTINGS];
    enum bench_routing routing[BENCH_MOST_COUNTS * BENCH_ROUTINGS];
    void *first[BENCH_MOST_COUNTS * BENCH_ROUTINGS]; // moecc's result
    void *y;
    struct bench_line *lines;           // [batches][engines]
};

static bool make_batches(struct measuring *m)
{
    const struct bench_group *group = m->group;
    for (int r = 0; r < BENCH_ROUTINGS; r++)
        for (int i = 0; group->routings[r] && i < BENCH_MOST_COUNTS && group->tokens[i]; i++) {
            size_t bytes = (size_t)(group->tokens[i] * group->shape->hidden * bench_element_bytes(group->dtype));
            unsigned at = m->batch_count++;
            m->routing[at] = (enum bench_routing)r;
            if (!bench_batch_make(group->shape, group->dtype, (enum bench_routing)r, group->tokens[i], 1, &m->batches[at]) ||
                !(m->first[at] = malloc(bytes)) || !(m->y = realloc(m->y, bytes > 4096 ? bytes : 4096)))
                return false;
        }
    return true;
}

static bool check_result(struct measuring *m, const struct bench_engine *engine, unsigned at)
{
    const struct bench_group *group = m->group;
    int64_t count = m->batches[at].tokens * group->shape->hidden;
    if (!engine->product) {
        memcpy(m->first[at], m->y, (size_t)(count * bench_element_bytes(group->dtype)));
        bench_batch_count(group->shape, &m->batches[at]);
        return true;
    }
    double error = distance(group->dtype, m->first[at], m->y, count);
    if (error <= (group->dtype == BENCH_F32 ? 1e-5 : 1e-2))
        return true;
    fprintf(stderr, "%s: %s differs from moecc by %.2g at %lld tokens\n", group->shape->name, engine->name, error,
            (long long)m->batches[at].tokens);
    return false;
}

static bool measure_engine(struct measuring *m, unsigned number, bool is_first)
{
    const struct bench_group *group = m->group;
    const struct bench_engine *engine = m->engines[number];
    int64_t most = m->batches[m->batch_count - 1].tokens;
    struct bench_loaded *loaded = bench_load(engine, group->shape, group->dtype, group->threads, most);
    bool fine = loaded != NULL;
    for (unsigned i = 0; fine && i < m->batch_count; i++) {
        struct bench_line *line = &m->lines[i * m->engine_count + number];
        fine = bench_run(loaded, &m->batches[i], m->y) && (!is_first || check_result(m, engine, i));
        unsigned samples = m->batches[i].tokens <= FEW_TOKENS ? 2 * group->samples : group->samples; // short, and noisy
        for (unsigned s = 0; fine && s < samples; s++)
            fine = sample(loaded, group, &m->batches[i], m->y, line);
    }
    if (loaded)
        bench_unload(loaded);
    return fine;
}

bool bench_measure(const struct bench_group *group, struct bench_line *lines, unsigned *count)
{
    struct measuring m = {.group = group, .lines = lines};
    for (unsigned i = 0; i < bench_engine_count; i++)
        if (bench_engines[i]->name && bench_engines[i]->supports(group->dtype))
            m.engines[m.engine_count++] = bench_engines[i];
    bool fine = make_batches(&m);
    for (unsigned i = 0; i < m.batch_count * m.engine_count; i++)
        lines[i] = (struct bench_line){.engine = m.engines[i % m.engine_count], .shape = group->shape,
                                       .dtype = m.engines[i % m.engine_count]->plain ? BENCH_BF16 : group->dtype,
                                       .routing = m.routing[i / m.engine_count], .threads = group->threads,
                                       .tokens = m.batches[i / m.engine_count].tokens};
    for (unsigned round = 0; fine && round < group->rounds; round++)
        for (unsigned e = 0; fine && e < m.engine_count; e++) // moecc first in the first round: the others take its routes
            fine = measure_engine(&m, (e + round) % m.engine_count, round == 0);
    *count = m.batch_count * m.engine_count;
    for (unsigned i = 0; i < m.batch_count; i++) {
        for (unsigned e = 0; e < m.engine_count; e++)
            lines[i * m.engine_count + e].active = m.batches[i].active;
        free(m.first[i]);
        bench_batch_free(&m.batches[i]);
    }
    free(m.y);
    return fine;
}
