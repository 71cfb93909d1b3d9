// The register tile of gemm.h itself. A tile function is given the places below and the finisher's pointers.
#ifndef MOECC_CODEGEN_CPU_TILE_H
#define MOECC_CODEGEN_CPU_TILE_H

#include "gemm.h"

/// Ahead: where it prefetches; step: bytes that this moves by in each round of the loop over k.
enum { TILE_A, TILE_B, TILE_AHEAD, TILE_STEP, TILE_SCALES, TILE_OWN };

// measured: from so many rows on prefetching gains; most rows of E4M3 that meet several panels
enum { ROWS_TO_PREFETCH = 7, WIDE_E4M3 = 1 };

/// Whether the products are dot products of pairs of bf16.
bool uses_dot(struct emit *e, const struct gemm *gemm);
/// From so many rows on a tile computes for longer than its weights take to come, and prefetching gains.
unsigned rows_to_prefetch(const struct gemm *gemm);
/// k values of a round of the loop; k is a multiple of 8.
unsigned unroll_of(const struct gemm *gemm);
/// Bytes of `count` k values of a panel.
int64_t k_bytes(const struct plan_param *weights, int64_t count);

/// Tile functions for least_rows to most_rows rows.
void generate_tiles(struct emit *e, struct gemm *gemm, const char *name);
/// A function that expands the codes of a panel, without scales, to what the tiles for many rows read.
void generate_expansion(struct emit *e, struct gemm *gemm, const char *name);

#endif
