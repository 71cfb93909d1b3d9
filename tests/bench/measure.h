// Measures one shape: every engine in turn, round after round, with what the machine can do probed beside each run.
#ifndef MOE_BENCH_MEASURE_H
#define MOE_BENCH_MEASURE_H

#include "tests/bench/engine.h"

enum { BENCH_MOST_ENGINES = 5, BENCH_MOST_COUNTS = 8, BENCH_MOST_SAMPLES = 64 };

/// One group: what is loaded once a round and engine.
struct bench_group {
    const struct bench_shape *shape;
    enum bench_dtype dtype;
    unsigned threads, rounds, samples;  // samples: a round and engine, twice as many of few tokens
    int64_t tokens[BENCH_MOST_COUNTS];  // ascending, ended by 0
    bool routings[BENCH_ROUTINGS];
};

struct bench_sample {
    double seconds, roofline;           // roofline: time at the probed rates / measured time
    double pace;                        // the same with the bytes of the group's dtype: comparable between engines
};

/// A line of the table: one engine's samples, in the order in which they were taken.
struct bench_line {
    const struct bench_engine *engine;
    const struct bench_shape *shape;
    enum bench_dtype dtype;
    enum bench_routing routing;
    unsigned threads;
    int64_t tokens, active;
    double peak_share;                  // of the FLOP/s peak, mean
    unsigned count;
    struct bench_sample samples[BENCH_MOST_SAMPLES];
};

/// Fills lines for all engines, routings and token counts of a group, moecc's first for each count. False after an error,
/// which it has printed: an engine failed, or a peer's result differs from moecc's.
bool bench_measure(const struct bench_group *group, struct bench_line *lines, unsigned *count);

double bench_median(const double *values, unsigned count);
/// Median of the paired ratios pace(a) / pace(b), and the interval of order statistics that holds it with 95%.
struct bench_ratio {
    double median, low, high;
};
struct bench_ratio bench_compare(const struct bench_line *a, const struct bench_line *b);

#endif
