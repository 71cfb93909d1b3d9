// Schedule -> prediction: what a cost model says about a proven schedule, the figures that budgets are about, and the
// budgets themselves. Costs come from the operators' own formulas, the device's datasheet peak times its derate, its
// memory bandwidth, and the cluster's links (per rank and direction; axes run in parallel).
#ifndef MOECC_SIMULATE_H
#define MOECC_SIMULATE_H

#include "compiler/schedule/schedule.h"

struct prediction;

enum load_kind { LOAD_UNIFORM, LOAD_ZIPF, LOAD_TRACE };
enum { LOAD_EXPERTS_MAX = 4096 };
/// How tokens spread over experts.
struct load {
    enum load_kind kind;
    const char *text;           // as given
    double exponent;            // zipf
    int64_t *counts, total;     // trace: by expert
    uint32_t experts;
};
/// `uniform`, `zipf(0.7)` or a safetensors file with `topk_ids`. False with a message.
bool load_parse(struct context *context, const char *text, struct load *load, char *error, size_t size);

/// One step of the schedule at its bound, under a load (NULL: uniform). The prediction lives as long as the context and keeps a pointer to `schedule`,
/// but never to the other tables' rows across calls.
struct prediction *predict(struct context *context, const struct program_text *program, const struct ir *module,
                           uint32_t pipeline, const struct ir *graph, struct ir *schedule, const struct load *load);
/// What elaboration asks about drafts of a schedule for this pipeline. Lives as long as the context and the module.
struct forecast forecast_make(struct context *context, const struct program_text *program, const struct ir *module,
                              uint32_t pipeline, const struct ir *graph, const struct load *load);
/// The same step with no overlap at all: every task after the one before it. Allocates its own schedule.
struct prediction *predict_serial(const struct prediction *like);

/// The ns of that step where every rank holds all experts and computes its own tokens: no message is sent. On the slowest
/// device of the cluster; `weights`: the bytes that a rank then holds.
double predict_alone(const struct prediction *like, double *weights);

/// `4.31ms`
const char *time_text(struct context *context, double ns);

/// What a metric's argument names.
struct metric_argument {
    const char *stream;         // bubble
    uint32_t engine;            // utilization, bytes
    const char *a, *b;          // overlap: `dispatch[1]`, `expert.send[0]`
};
/// NAN when the metric has no value here: a stream or an instance that the schedule lacks. `peak_memory` is the
/// variant's arena, from lowering.
struct figures {
    const struct prediction *prediction, *serial;
    double peak_memory;
};
double metric_value(const struct figures *figures, enum metric metric, const struct metric_argument *argument);

/// Evaluates the budgets of a pipeline (at its bound) and of the schedule, and queues what they miss.
void check_budgets(struct context *context, const struct program_text *program, const struct ir *module,
                   uint32_t pipeline, uint32_t use, bool at_bound, const struct figures *figures);

/// `moecc simulate`: one schedule's timeline and figures as text; `color`: for a terminal; `kernels`: and a CUDA target's
/// kernels.
void print_prediction(struct context *context, const struct figures *figures, int64_t first_tokens, bool color, bool kernels,
                      FILE *out);
/// The same as a JSON object in one line.
void print_prediction_json(struct context *context, const struct figures *figures, int64_t first_tokens, FILE *out);
/// Chrome trace of one step. False when the file cannot be written.
bool write_prediction_svg(const struct figures *figures, const char *path);
bool write_prediction_trace(const struct figures *figures, const char *path);

#endif
