// A layer drawn at random from everything that the language lets kernels do, as a `.moe` text, a checkpoint and a float64
// computation of its experts.
#ifndef MOE_TESTS_RANDOM_LAYER_H
#define MOE_TESTS_RANDOM_LAYER_H

#include <stdbool.h>
#include <stdint.h>

enum { RANDOM_RANKS = 9, RANDOM_BOUND = 40 };

/// A matrix of each expert, as the checkpoint has it and as the numbers that stands for.
struct random_matrix {
    int64_t rows, cols;
    int64_t block_rows, block_cols; // of codes; 0: numbers
    bool powers;                    // scales are powers of two
    const char *type;               // declared; NULL: codes
    double *values;                 // [experts][rows][cols]
};

struct random_layer {
    uint64_t number, state;
    int64_t hidden, ffn, experts, choices, shared_experts; // shared_experts 0: none
    uint32_t nodes, gpus;
    int64_t tokens[RANDOM_RANKS], all_tokens;
    const char *type;     // of x and y
    bool plain, biased, gated_shared, shifted, weight_on_input, limited, relayed;
    bool router_bias, logit_bias;
    bool coded_wire, narrow_wire; // rows travel as E4M3 blocks; in 16 bits
    bool given;           // ids and weights are input, some slots masked
    int arithmetic;       // 0: x's type; 1, 2: FP8, with scales in f32 or ue8m0
    uint32_t activation;
    struct random_matrix up, down, shared_up, shared_down;
    double *b_up, *b_down, *gate, *shift;
    float *x;             // [all_tokens][hidden], rounded to `type`; some tokens may be zeros, have a NaN, an infinity
    int32_t *given_ids;   // [all_tokens][choices]
    float *given_weights;
    char schedule[48];
    char text[6144];
};

/// Draws layer `number` and writes its checkpoint to `path`.
void random_layer_draw(struct random_layer *layer, uint64_t number, const char *path);
void random_layer_free(struct random_layer *layer);

/// y of every token that has these ids and weights, in float64; what is rounded on the way to a type of its own is not.
void random_layer_reference(const struct random_layer *layer, const int32_t *ids, const float *weights, float *y);

#endif
