// OpenBLAS: one sgemm a block; it packs weights anew in each call. Debian's build has no bf16 product.
#include "tests/bench/engine.h"

#if defined(__has_include) && __has_include(<cblas.h>)
#include <cblas.h>
#include <string.h>

static bool supports(enum bench_dtype dtype)
{
    return dtype == BENCH_F32;
}

static int64_t block_bytes(enum bench_dtype dtype, int64_t columns, int64_t k)
{
    return columns * k * bench_element_bytes(dtype);
}

static void pack(enum bench_dtype dtype, int64_t columns, int64_t k, const float *weights, void *block)
{
    (void)dtype;
    openblas_set_num_threads(1); // the threads are ours
    memcpy(block, weights, (size_t)(columns * k) * sizeof(float));
}

static void multiply(enum bench_dtype dtype, int64_t rows, int64_t columns, int64_t k, const void *a, const void *block,
                     float *c)
{
    (void)dtype;
    if (rows == 1)
        cblas_sgemv(CblasRowMajor, CblasNoTrans, (int)columns, (int)k, 1, block, (int)k, a, 1, 0, c, 1);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)columns, (int)k, 1, a, (int)k, block, (int)k, 0,
                    c, (int)columns);
}

static const struct bench_product product = {512, 4096, block_bytes, pack, multiply};
const struct bench_engine bench_openblas = {"openblas", supports, &product, false};
#else
const struct bench_engine bench_openblas = {0};
#endif
