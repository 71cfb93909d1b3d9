// A pipeline of a `.moe` file under one schedule, compiled and loaded with emulated links, and its steps one by one: what
// the benchmarks of schedules measure.
#ifndef MOE_BENCH_SUBJECT_H
#define MOE_BENCH_SUBJECT_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/moe.h"

struct subject {
    const char *file, *pipeline, *schedule;
    int64_t tokens;             // per rank; 0: the bound
    double attention_s;         // what an extern stage `attn` takes for a rank's tokens
    moe_plan *plan;
    moe_session *session;
    moe_plan_info info;
    void *in, *out;
    int32_t *ids;               // every pair of experts equally often, in every layer
    float *weights;
    moe_step *steps;
    int64_t running;            // tokens of a step
};

/// A step that was run: seconds, and what of it no compute hid.
struct sample {
    double latency, exposed, idle;
};

/// False after a message.
bool subject_open(struct subject *subject);
/// From now on so many tokens a rank, at most the bound.
void subject_tokens(struct subject *subject, int64_t tokens);
bool subject_step(struct subject *subject, struct sample *sample);
void subject_close(struct subject *subject);
/// Makes every link of the plan `factor` times as fast.
void subject_scale_links(struct subject *subject, double factor);
uint64_t subject_output_hash(const struct subject *subject);

double median_of(double *values, unsigned count);

#endif
