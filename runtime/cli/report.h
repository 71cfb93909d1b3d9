// The figures of a run: gathered step by step, printed as text or written as JSON.
#ifndef MOE_REPORT_H
#define MOE_REPORT_H

#include "runtime/cli/batch.h"
#include "runtime/cli/cli.h"

struct report {
    const moe_plan_info *info;
    const struct run_options *options;
    const struct batch *batch;
    uint32_t threads;
    double *latency_s; // one a timed step
    int64_t capacity, count;
    double exposed_comm, idle, beside_experts, comm_s, compute_s; // sums over the timed steps
    moe_stats last;
    moe_wire_loss dispatch_loss, combine_loss; // of the step that measured it
};

bool report_init(struct report *report, const moe_plan_info *info, const struct run_options *options,
                 const struct batch *batch, int64_t iters);
void report_free(struct report *report);
void report_add(struct report *report, double latency_s, const moe_stats *stats);

/// One step: a short summary. Several: the table of latencies and rates.
void report_print(struct report *report, FILE *out);
/// All figures; CLI `--stats`. False with errno set when the file cannot be written.
bool report_write(struct report *report, const char *path);

/// The value that a share q of the sorted values does not exceed (nearest rank).
double report_percentile(const double *sorted, int64_t count, double q);

#endif
