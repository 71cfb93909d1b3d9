// What is measured: something that holds a shape's weights and computes a batch. One engine holds weights at a time.
#ifndef MOE_BENCH_ENGINE_H
#define MOE_BENCH_ENGINE_H

#include "tests/bench/problem.h"

/// For an engine that is not moecc: its matrix product alone; peer.c does the rest of the layer the same way for all of
/// them (gather, activation, routing weights, sum, threads). A block is `columns` outputs of one matrix.
struct bench_product {
    int64_t columns;                    // outputs in a block (the last one of a matrix may have fewer)
    int64_t most_rows;                  // rows given at once
    /// Bytes of a packed block of `columns` outputs and k inputs.
    int64_t (*block_bytes)(enum bench_dtype dtype, int64_t columns, int64_t k);
    /// Packs a block: weights[c * k + i], f32 values that are exact in the dtype.
    void (*pack)(enum bench_dtype dtype, int64_t columns, int64_t k, const float *weights, void *block);
    /// c[r * columns + j] = sum over i of a[r * k + i] * block(j, i). a has the dtype; c is f32. Called by many threads.
    void (*multiply)(enum bench_dtype dtype, int64_t rows, int64_t columns, int64_t k, const void *a, const void *block,
                     float *c);
};

struct bench_engine {
    const char *name;
    bool (*supports)(enum bench_dtype dtype);
    const struct bench_product *product; // NULL: moecc
    bool plain;                          // moecc with bf16 weights, for what quantised ones are compared with
};

/// Engines that were found when this was built, moecc first.
extern const struct bench_engine *const bench_engines[];
extern const unsigned bench_engine_count;

/// Holds weights and work space for up to `tokens` tokens. NULL, with a line on stderr, when that fails.
struct bench_loaded *bench_load(const struct bench_engine *engine, const struct bench_shape *shape, enum bench_dtype dtype,
                                unsigned threads, int64_t tokens);
/// Computes the batch into y [tokens, hidden] of the dtype. moecc replaces the batch's ids and weights by its router's.
bool bench_run(struct bench_loaded *loaded, struct bench_batch *batch, void *y);
void bench_unload(struct bench_loaded *loaded);

// The two kinds behind the three functions above.
struct bench_moecc *bench_moecc_load(const struct bench_shape *shape, enum bench_dtype dtype, unsigned threads,
                                     int64_t tokens);
bool bench_moecc_run(struct bench_moecc *moecc, struct bench_batch *batch, void *y);
void bench_moecc_unload(struct bench_moecc *moecc);
struct bench_peer *bench_peer_load(const struct bench_product *product, const struct bench_shape *shape,
                                   enum bench_dtype dtype, unsigned threads, int64_t tokens);
bool bench_peer_run(struct bench_peer *peer, struct bench_batch *batch, void *y);
void bench_peer_unload(struct bench_peer *peer);

#endif
