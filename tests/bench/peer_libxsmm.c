// libxsmm's small products: one kernel a row count, weights packed ahead in its own order (pairs of k for bf16).
#include "tests/bench/engine.h"

#if defined(__has_include) && __has_include(<libxsmm.h>)
#pragma GCC diagnostic ignored "-Wconversion"
#include <libxsmm.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 64, ROWS = 64, SIZES = 32 };

static bool supports(enum bench_dtype dtype)
{
    return !bench_quantised(dtype);
}

static int64_t block_bytes(enum bench_dtype dtype, int64_t columns, int64_t k)
{
    return columns * k * bench_element_bytes(dtype);
}

// its matrices are column-major: M = outputs, N = rows of a, K = k
static void pack(enum bench_dtype dtype, int64_t columns, int64_t k, const float *weights, void *block)
{
    for (int64_t c = 0; c < columns; c++)
        for (int64_t i = 0; i < k; i++)
            if (dtype == BENCH_F32)
                ((float *)block)[i * columns + c] = weights[c * k + i];
            else
                ((uint16_t *)block)[(i / 2 * columns + c) * 2 + i % 2] = bench_to_bf16(weights[c * k + i]);
}

// Looking a kernel up takes its own time: each thread remembers those it has used.
struct found {
    int64_t columns, k;
    libxsmm_xmmfunction kernel[ROWS + 1];
};
static _Thread_local struct found found[BENCH_DTYPES][SIZES];

static libxsmm_xmmfunction find(enum bench_dtype dtype, int64_t rows, int64_t columns, int64_t k)
{
    for (int i = 0; i < SIZES; i++) {
        struct found *f = &found[dtype][i];
        if (f->columns == 0) {
            f->columns = columns;
            f->k = k;
        }
        if (f->columns != columns || f->k != k)
            continue;
        libxsmm_xmmfunction *kernel = &f->kernel[rows];
        libxsmm_blasint m = (libxsmm_blasint)columns, n = (libxsmm_blasint)rows, inner = (libxsmm_blasint)k;
        int flags = LIBXSMM_GEMM_FLAG_NONE | (dtype == BENCH_BF16 ? LIBXSMM_GEMM_FLAG_VNNI_A : 0);
        float alpha = 1, beta = 0;
        if (!kernel->xmm && dtype == BENCH_BF16)
            kernel->bsmm = libxsmm_bsmmdispatch(m, n, inner, &m, &inner, &m, &alpha, &beta, &flags, NULL);
        else if (!kernel->xmm)
            kernel->smm = libxsmm_smmdispatch(m, n, inner, &m, &inner, &m, &alpha, &beta, &flags, NULL);
        if (!kernel->xmm)
            abort();
        return *kernel;
    }
    abort();
}

static void multiply(enum bench_dtype dtype, int64_t rows, int64_t columns, int64_t k, const void *a, const void *block,
                     float *c)
{
    libxsmm_xmmfunction kernel = find(dtype, rows, columns, k);
    if (dtype == BENCH_BF16)
        kernel.bsmm(block, a, c);
    else
        kernel.smm(block, a, c);
}

static const struct bench_product product = {COLUMNS, ROWS, block_bytes, pack, multiply};
const struct bench_engine bench_libxsmm = {"libxsmm", supports, &product, false};
#else
const struct bench_engine bench_libxsmm = {0};
#endif
