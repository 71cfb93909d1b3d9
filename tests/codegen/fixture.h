// What the code generation tests share: a plan with kernels only, its native code mapped executable, one MoE layer's
// worth of random data in packed and in plain form.
#ifndef MOE_TESTS_CODEGEN_FIXTURE_H
#define MOE_TESTS_CODEGEN_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "compiler/codegen/cpu/cpu.h"
#include "compiler/codegen/cuda/host.h"
#include "tests/gpu/driver.h"
#include "runtime/plan/kernels.h"
#include "runtime/plan/plan.h"

struct code {
    struct context context;
    struct ir plan;
    void *image; // as generated
    size_t bytes;
    uint8_t *mapped; // an executable copy elsewhere
    moe_kernel_fn **kernels;  // level "cuda:...": each kernel built for the CPU
    struct gpu_kernel *on_gpu; // level "gpu:...": each kernel loaded by the driver
    struct host_options host; // and how it runs
    bool rows_left;           // CUDA kernels multiply few rows as they do many
};

/// Levels of native kernels, and "cuda:sm_80": the CUDA kernels of that chip, run by the CPU; "gpu:sm_80": by a GPU.
bool level_runs_here(const char *level);
bool level_choose_layout(const char *level, struct plan_param *param);

void code_init(struct code *code);
uint32_t code_add(struct code *code, enum kernel_role role, const int64_t *n, uint32_t count, double scale);
bool code_generate(struct code *code, const char *level);
/// Another executable copy, at another address.
uint8_t *code_map(const struct code *code);
void code_run(const struct code *code, uint32_t kernel, const struct moe_kargs *args, int64_t begin, int64_t end);
void code_free(struct code *code);

/// Numbers: deterministic, and conversions in plain C.
struct rng {
    uint64_t state;
};
float random_float(struct rng *rng); // in [-1, 1)
void put_number(void *array, int64_t index, uint32_t dtype, float value);
double get_number(const void *array, int64_t index, uint32_t dtype);
int64_t number_bytes(uint32_t dtype);

/// An aligned, zeroed block; freed with free().
void *block(int64_t bytes);
/// Packs [blocks][rows][cols] of param.declared numbers the way plan_param says.
void *pack(const struct plan_param *param, const void *values, int64_t blocks);
double relative_error(const double *expected, const double *got, int64_t count);

/// One expert layer: pairs sorted by expert over `rows` routed rows, hidden and result buffers.
struct layer {
    int64_t h, f, experts, rows, choices, pair_count;
    uint32_t dtype, result;
    int64_t arithmetic; // format (moe_wire_code) of rows of A and of hidden ones; 0: their type
    uint32_t elements;  // of those rows
    uint32_t numbers; // dtype of up and down: that of the rows, or, of what codes stand for, f32
    struct plan_param up_param, down_param; // how they are packed
    int64_t a_stride, hidden_stride, acc_stride;
    void *x, *up, *down; // plain: x[rows][h], up[experts][2f][h], down[experts][h][f]
    bool plain; // up[experts][f][h], no gate
    bool weighted_input;
    bool by_row; // a has a row for each routed row, else one for each pair
    float *b_up, *b_down; // NULL: none; b_up[experts][2f or f], b_down[experts][h]
    void *packed_up, *packed_down, *packed_b_up, *packed_b_down;
    void *a, *hidden, *acc, *y; // y[rows] rows of h results, each followed by a guard
    int64_t y_stride;
    int64_t *expert_first;
    int32_t *pair_row;
    float *pair_weight;
    const void **sources;
    void **targets, **row_dst;
    struct moe_pairs_head pairs;
};

struct layer_shape {
    int64_t h, f, experts, rows, choices;
    uint32_t dtype, result;
};
// Without a gate; with biases; weights are E4M3 in blocks of 64 x 48, or MXFP4, instead of the rows' type; FP8 arithmetic,
// with weights in blocks of 128 x 128 and rows in blocks of 128, whose scales are f32 or powers of two; the routing weight
// multiplies the input; rows of A are read by number.
enum layer_form {
    LAYER_PLAIN = 1,
    LAYER_BIASED = 2,
    LAYER_E4M3 = 4,
    LAYER_MXFP4 = 8,
    LAYER_FP8 = 16,
    LAYER_FP8_POWERS = 32,
    LAYER_WEIGHTED = 64,
    LAYER_BY_ROW = 128
};

void layer_init(struct layer *layer, const struct layer_shape *shape, const char *level, uint64_t seed);
void layer_init_form(struct layer *layer, const struct layer_shape *shape, unsigned form, const char *level, uint64_t seed);
void layer_free(struct layer *layer);
/// The constants of the kernel that copies x to A, and of the two products.
enum { LAYER_COPY = 8, LAYER_MLP = 12 };
void layer_copy(const struct layer *layer, int64_t n[LAYER_COPY]);
void layer_up(const struct layer *layer, uint32_t activation, int64_t n[LAYER_MLP]);
void layer_down(const struct layer *layer, int64_t n[LAYER_MLP]);
/// The numbers that a row of `width` is in the layer's arithmetic.
void layer_coded(const struct layer *layer, double *row, int64_t width);
/// Of the clamped activation.
#define LAYER_ALPHA 1.702
#define LAYER_LIMIT 1.5
/// A hidden feature of a gate's and an up value; up is 1 where there is no gate.
double activated(uint32_t activation, double gate, double up);
/// float64 over the same rounded inputs: [rows][h].
double *layer_reference(const struct layer *layer, uint32_t activation);

#endif
