// What a CUDA kernel does, from its constants alone and without a compiler: the FLOPs and bytes of a unit of work, and the
// least time that a launch takes on a GPU of given speed (a roofline whose tiles are whole). The only place with these
// formulas: the table of resources and the simulator take them from here.
#ifndef MOECC_CODEGEN_CUDA_ESTIMATE_H
#define MOECC_CODEGEN_CUDA_ESTIMATE_H

#include "cuda.h"

/// What a block takes at once: the tile of a product, the tokens of a router; of kernels of rows, what a warp takes: a row.
struct cuda_unit {
    struct cuda_tile tile;
    int64_t together;       // units that a block takes side by side
    int64_t flops, reads;   // of a whole one; bytes of global memory, each operand once
};
/// Whether the kernel's FLOPs are the tensor cores'; else they are multiply-adds in f32.
bool cuda_on_tensor_cores(const struct plan_kernel *kernel);
/// `rows`: of an expert, in the mean, as a product's tiles go by them.
struct cuda_unit cuda_unit_of(const struct cuda_chip *chip, const struct plan_kernel *kernel, double rows);

/// A launch. Numbers may be expectations.
struct cuda_load {
    double rows;            // (row, expert) pairs of a product, tokens of a router and a merge, else rows
    double experts;         // that the pairs are spread over
    double beside;          // rows that a merge or a sum reads for them; rows that mlp_down adds its pairs up to
};

/// A GPU, per second.
struct cuda_speed {
    double multiprocessors, flops, bytes; // flops: of what the kernel multiplies with
};

/// What a launch waits for: memory, arithmetic, or, for more than half of its time, the rest of tiles that are not full and
/// blocks that are too few for the multiprocessors.
enum cuda_bound { cuda_bound_memory, cuda_bound_compute, cuda_bound_tail, cuda_bounds };
extern const char *const cuda_bound_words[cuda_bounds];

struct cuda_estimate {
    struct cuda_unit unit;
    double blocks;          // of the work: each takes a unit, or those of its warps
    double waves;           // blocks over multiprocessors
    double flops, whole_flops; // of what there is; as if all multiprocessors had as many whole units as the busiest
    double bytes;           // of memory, every operand once
    double reach;           // the share of the memory's speed that so many blocks draw
    double seconds;
    enum cuda_bound bound;
};
struct cuda_estimate cuda_estimate(const struct cuda_chip *chip, const struct plan_kernel *kernel, const struct cuda_load *load,
                                   const struct cuda_speed *speed);

/// The share of the multiprocessors that draws all bytes the memory gives.
#define CUDA_SHARE_THAT_FILLS_MEMORY 0.25

#endif
