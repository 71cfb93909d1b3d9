// Compiles `.moe` text in memory and runs it, for tests of whole pipelines; and the float64 reference they compare with.
#ifndef MOE_TEST_HARNESS_H
#define MOE_TEST_HARNESS_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/moe.h"
#include "tests/end_to_end/reference.h"

/// A layer of a routed SwiGLU (param names w_router, w_gate_up, w_down; stages route, dispatch, expert, combine) in a pipeline.
struct routed_layer {
    const struct shape *shape;
    const char *route, *dispatch, *combine; // more options of the stages, as "capacity: 0.1x"; NULL: none
    const char *items;   // formats, devices, schedules that the layer or the pipeline names; NULL: none
    const char *cluster; // body of a cluster; NULL: std.hw's laptop
    const char *place;   // body of the placement; NULL: evenly over `rank`
    const char *uses;    // NULL: serial
    int repeat;          // 0: one layer
};

/// Its text, valid until the next call. Schedules of std.schedules that it may name: serial, ladder, waves.
const char *routed_layer_text(const struct routed_layer *layer);

/// What to compile: text is written to `file` under a temporary folder, unless path names an existing file.
struct subject {
    const char *text;           // or
    const char *path;
    const char *schedule;       // NULL: the pipeline's uses
    const char *target;         // NULL: the pipeline's
    uint32_t ranks;             // 0: the cluster's
    int64_t layer;              // -1: all
    const char *cpu_level;      // NULL: best
    uint64_t cuda_seed;         // CUDA kernels run by the CPU have every access checked, threads in this order; 0: unchecked
    const char *const *dims;
    uint32_t dim_count;
};

/// A compiled plan's image; free with free().
void *subject_image(const struct subject *subject, size_t *bytes);
/// A compiled plan. Fails the running CUnit test (and returns NULL) with the diagnostics when it does not compile.
moe_plan *subject_compile(const struct subject *subject);

/// The exit code of checking a text as `moecc check` does; `unbuilt`, unless NULL: how many E0901 it is given.
int subject_check(const char *text, uint32_t *unbuilt);

struct outcome {
    moe_status status;
    char error[512];
    float *out;                 // [sum of tokens, width], widened to f32
    int32_t *ids;               // [sum, choices]
    float *weights;
    int64_t tokens, width;
    uint32_t choices;
    moe_stats stats;            // expert_load copied
    int64_t *load;
};

struct run {
    const char *weights;        // path or "random"
    const float *in;            // [sum of tokens, width]; rounded to the plan's x_dtype
    const int64_t *tokens;      // per rank
    const int32_t *given_ids;
    const float *given_weights;
    moe_options options;
    int steps;                  // 0: one
    const char *trace;          // file for the last step's timeline
    moe_extern_fn *external;    // for the stage `attn`; NULL: the plan has none
};

struct outcome run_plan_once(moe_plan *plan, const struct run *run);
void outcome_free(struct outcome *outcome);
/// Did both succeed, with the same bytes?
bool outcome_equal(const struct outcome *a, const struct outcome *b);

/// relative L2 of a against b.
double relative_l2(const float *a, const float *b, size_t count);
/// Reproducible N(0,1)-like values.
void gaussian(float *values, size_t count, uint64_t seed);
/// One tensor of a safetensors file as f32 (or i32); fails the test when absent. Free with free().
float *read_f32(const char *file, const char *name, int64_t *rows, int64_t *cols);
int32_t *read_i32(const char *file, const char *name);

#endif
