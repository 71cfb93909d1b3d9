// Tiles: what a block works on, within the compiler of CUDA sources.
#ifndef MOECC_CUDA_TILES_H
#define MOECC_CUDA_TILES_H

#include "constants.h"

enum { THREADS = 128, BLOCK_M = 64, HALF = 64, COLUMNS = 64 };
enum { CODED_BLOCK = 128 }; // tiles_fp8.h: features or k that share a scale

/// An `mlp_up` without a gate.
bool is_plain(const struct plan_kernel *kernel);
/// Element type of the rows that a product multiplies.
uint32_t operand_of(const struct plan_kernel *kernel);
/// The parameters that the kernel's weights and biases are, with `cols` 1 for biases.
struct plan_param weights_of(const struct plan_kernel *kernel, bool biases);
/// Whether the product goes by warpgroups and tensor maps.
bool is_wide(const struct cuda_chip *chip, const struct plan_kernel *kernel);
/// Most tokens of a block whose scores fit the chip; 0: not even a token a warp.
int64_t route_tokens(const struct cuda_chip *chip, const int64_t *n);

/// The tensors of a wide product: A, a row a pair; B, a row an output feature of an expert, gate and up apart, unless it is codes
/// that are expanded; and last A again, a few rows at once.
void set_maps(struct cuda_source *source, const struct plan_kernel *kernel);
/// Tile sizes and what follows from them, in the text and in `source`.
void put_tiles(struct writer *w, const struct cuda_chip *chip, const struct plan_kernel *kernel, struct cuda_source *source);

#endif
