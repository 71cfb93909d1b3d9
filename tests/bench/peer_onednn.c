// oneDNN: one matmul primitive a row count, made at the first use of that count; weights reordered ahead into the order
// that it prefers for many rows. Its own threads are switched off: they serve one large product, not many small ones.
#include "tests/bench/engine.h"

#if defined(__has_include) && __has_include(<dnnl.h>) && __has_include(<omp.h>)
#include <dnnl.h>
#include <omp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 256, ROWS = 512, SIZES = 32 };

// A matrix shape: how its weights lie, and the primitives made for it by this thread.
struct size {
    enum bench_dtype dtype;
    int64_t columns, k;
    dnnl_memory_desc_t weights;
    dnnl_memory_t b, a[ROWS + 1], c[ROWS + 1];
    dnnl_primitive_t primitive[ROWS + 1];
};
static _Thread_local struct size sizes[SIZES];
static _Thread_local dnnl_engine_t cpu;
static _Thread_local dnnl_stream_t stream;

static void need(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return;
    fprintf(stderr, "oneDNN: %s failed (%d)\n", what, (int)status);
    exit(3);
}

static bool supports(enum bench_dtype dtype)
{
    return !bench_quantised(dtype);
}

static dnnl_data_type_t type_of(enum bench_dtype dtype)
{
    return dtype == BENCH_F32 ? dnnl_f32 : dnnl_bf16;
}

static dnnl_primitive_desc_t describe(enum bench_dtype dtype, int64_t rows, int64_t columns, int64_t k,
                                      const dnnl_memory_desc_t *weights)
{
    dnnl_memory_desc_t a, b, c;
    need(dnnl_memory_desc_init_by_tag(&a, 2, (dnnl_dims_t){rows, k}, type_of(dtype), dnnl_ab), "describing a");
    need(dnnl_memory_desc_init_by_tag(&b, 2, (dnnl_dims_t){k, columns}, type_of(dtype), dnnl_format_tag_any), "describing b");
    need(dnnl_memory_desc_init_by_tag(&c, 2, (dnnl_dims_t){rows, columns}, dnnl_f32, dnnl_ab), "describing c");
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t described;
    need(dnnl_matmul_desc_init(&matmul, &a, weights ? weights : &b, NULL, &c), "describing a product");
    need(dnnl_primitive_desc_create(&described, &matmul, NULL, cpu, NULL), "choosing a product");
    return described;
}

static struct size *find(enum bench_dtype dtype, int64_t columns, int64_t k)
{
    if (!cpu) {
        omp_set_num_threads(1);
        need(dnnl_engine_create(&cpu, dnnl_cpu, 0), "making an engine");
        need(dnnl_stream_create(&stream, cpu, dnnl_stream_default_flags), "making a stream");
    }
    for (int i = 0; i < SIZES; i++) {
        struct size *size = &sizes[i];
        if (size->columns == columns && size->k == k && size->dtype == dtype)
            return size;
        if (size->columns)
            continue;
        *size = (struct size){.dtype = dtype, .columns = columns, .k = k};
        dnnl_primitive_desc_t described = describe(dtype, 64, columns, k, NULL);
        size->weights = *dnnl_primitive_desc_query_md(described, dnnl_query_weights_md, 0);
        dnnl_primitive_desc_destroy(described);
        need(dnnl_memory_create(&size->b, &size->weights, cpu, DNNL_MEMORY_NONE), "holding weights");
        return size;
    }
    abort();
}

static int64_t block_bytes(enum bench_dtype dtype, int64_t columns, int64_t k)
{
    return (int64_t)dnnl_memory_desc_get_size(&find(dtype, columns, k)->weights);
}

static void pack(enum bench_dtype dtype, int64_t columns, int64_t k, const float *weights, void *block)
{
    struct size *size = find(dtype, columns, k);
    dnnl_memory_desc_t plain;
    dnnl_memory_t from;
    dnnl_primitive_desc_t described;
    dnnl_primitive_t reorder;
    need(dnnl_memory_desc_init_by_tag(&plain, 2, (dnnl_dims_t){k, columns}, dnnl_f32, dnnl_ba), "describing weights");
    need(dnnl_memory_create(&from, &plain, cpu, (void *)(uintptr_t)weights), "holding weights");
    need(dnnl_memory_set_data_handle(size->b, block), "holding weights");
    need(dnnl_reorder_primitive_desc_create(&described, &plain, cpu, &size->weights, cpu, NULL), "choosing an order");
    need(dnnl_primitive_create(&reorder, described), "making a reorder");
    need(dnnl_primitive_execute(reorder, stream, 2,
                                (dnnl_exec_arg_t[]){{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, size->b}}), "packing");
    need(dnnl_stream_wait(stream), "packing");
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(described);
    dnnl_memory_destroy(from);
}

static void multiply(enum bench_dtype dtype, int64_t rows, int64_t columns, int64_t k, const void *a, const void *block,
                     float *c)
{
    struct size *size = find(dtype, columns, k);
    if (!size->primitive[rows]) {
        dnnl_primitive_desc_t described = describe(dtype, rows, columns, k, &size->weights);
        need(dnnl_primitive_create(&size->primitive[rows], described), "making a product");
        need(dnnl_memory_create(&size->a[rows], dnnl_primitive_desc_query_md(described, dnnl_query_src_md, 0), cpu,
                                DNNL_MEMORY_NONE), "holding a");
        need(dnnl_memory_create(&size->c[rows], dnnl_primitive_desc_query_md(described, dnnl_query_dst_md, 0), cpu,
                                DNNL_MEMORY_NONE), "holding c");
        dnnl_primitive_desc_destroy(described);
    }
    dnnl_memory_set_data_handle(size->a[rows], (void *)(uintptr_t)a);
    dnnl_memory_set_data_handle(size->b, (void *)(uintptr_t)block);
    dnnl_memory_set_data_handle(size->c[rows], c);
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, size->a[rows]}, {DNNL_ARG_WEIGHTS, size->b}, {DNNL_ARG_DST, size->c[rows]}};
    need(dnnl_primitive_execute(size->primitive[rows], stream, 3, args), "multiplying");
}

static const struct bench_product product = {COLUMNS, ROWS, block_bytes, pack, multiply};
const struct bench_engine bench_onednn = {"onednn", supports, &product, false};
#else
const struct bench_engine bench_onednn = {0};
#endif
