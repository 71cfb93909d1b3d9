// Peak and bandwidth probes: independent chains in registers, and a sum over a large block.
#include "compiler/calibrate/probe.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "runtime/device/machine.h"
#include "runtime/device/placement.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { CHAINS = 16, LANES = 16, INNER = 4096, HUGE_PAGE = 2 << 20, SLICE = 1 << 20 };

struct probe {
    void (*work)(struct probe *probe);  // one slice of work
    double seconds, amount;             // amount done: FLOPs or bytes
    double rate;                        // per second of this thread
    const char *block;                  // to read: slice after slice, again and again
    size_t block_bytes, at;
    volatile float sink;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) static void bf16_dots(struct probe *probe)
{
    __m512 sum[CHAINS];
    __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f803f80), b = (__m512bh)_mm512_set1_epi32(0x3c003c00);
#pragma GCC unroll 16
    for (int c = 0; c < CHAINS; c++) {
        sum[c] = _mm512_setzero_ps();
        __asm__ volatile("" : "+v"(sum[c])); // else the compiler sees that all chains are equal and keeps one
    }
    for (int i = 0; i < INNER; i++) {
        __asm__ volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 16
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm512_dpbf16_ps(sum[c], a, b);
    }
    float total = 0;
#pragma GCC unroll 16
    for (int c = 0; c < CHAINS; c++)
        total += _mm512_reduce_add_ps(sum[c]);
    probe->sink = total;
    probe->amount += 4.0 * (double)(LANES * CHAINS * INNER);
}

// Two tiles of rows, two of columns and their four of sums: no product waits for the one before it.
__attribute__((target("amx-tile,amx-bf16"))) static void tile_products(struct probe *probe)
{
    enum { TILES = 8, ROWS = 16, ROW_BYTES = 64, PRODUCTS = 4 };
    uint16_t values[ROWS * ROW_BYTES / 2];
    struct {
        uint8_t palette, start, none[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < TILES; i++) {
        shape.row_bytes[i] = ROW_BYTES;
        shape.rows[i] = ROWS;
    }
    for (int i = 0; i < ROWS * ROW_BYTES / 2; i++)
        values[i] = 0x3f80;
    __asm__ volatile("" : : "r"(&shape), "r"(values) : "memory"); // gcc's intrinsics do not say that they read all of it
    _tile_loadconfig(&shape);
    _tile_loadd(4, values, ROW_BYTES);
    _tile_loadd(5, values, ROW_BYTES);
    _tile_loadd(6, values, ROW_BYTES);
    _tile_loadd(7, values, ROW_BYTES);
    for (int i = 0; i < INNER / ROWS; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    probe->amount += 2.0 * (double)(PRODUCTS * ROWS * (ROW_BYTES / 4) * (ROW_BYTES / 2)) * (INNER / ROWS);
}

__attribute__((target("avx512f"))) static void fma_512(struct probe *probe)
{
    __m512 sum[CHAINS], a = _mm512_set1_ps(1.0f), b = _mm512_set1_ps(1e-3f);
#pragma GCC unroll 16
    for (int c = 0; c < CHAINS; c++) {
        sum[c] = _mm512_setzero_ps();
        __asm__ volatile("" : "+v"(sum[c])); // else the compiler sees that all chains are equal and keeps one
    }
    for (int i = 0; i < INNER; i++) {
        __asm__ volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 16
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm512_fmadd_ps(a, b, sum[c]);
    }
    float total = 0;
#pragma GCC unroll 16
    for (int c = 0; c < CHAINS; c++)
        total += _mm512_reduce_add_ps(sum[c]);
    probe->sink = total;
    probe->amount += 2.0 * (double)(LANES * CHAINS * INNER);
}

__attribute__((target("avx2,fma"))) static void fma_256(struct probe *probe)
{
    enum { HALF = 12 };
    __m256 sum[HALF], a = _mm256_set1_ps(1.0f), b = _mm256_set1_ps(1e-3f);
#pragma GCC unroll 12
    for (int c = 0; c < HALF; c++) {
        sum[c] = _mm256_setzero_ps();
        __asm__ volatile("" : "+x"(sum[c]));
    }
    for (int i = 0; i < INNER; i++) {
        __asm__ volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 12
        for (int c = 0; c < HALF; c++)
            sum[c] = _mm256_fmadd_ps(a, b, sum[c]);
    }
    __m256 total = sum[0];
#pragma GCC unroll 12
    for (int c = 1; c < HALF; c++)
        total = _mm256_add_ps(total, sum[c]);
    probe->sink = _mm256_cvtss_f32(total);
    probe->amount += 2.0 * (double)(8 * HALF * INNER);
}
#endif

static void fma_plain(struct probe *probe)
{
    float sum[CHAINS] = {0}, a = 1.0f;
    __asm__ volatile("" : "+m"(sum));
    for (int i = 0; i < INNER; i++)
#pragma GCC unroll 16
        for (int c = 0; c < CHAINS; c++)
            sum[c] += a * 1e-3f;
    for (int c = 1; c < CHAINS; c++)
        sum[0] += sum[c];
    probe->sink = sum[0];
    probe->amount += 2.0 * (double)(CHAINS * INNER);
}

static const char *next_slice(struct probe *probe)
{
    const char *slice = probe->block + probe->at;
    probe->at = (probe->at + SLICE) % probe->block_bytes;
    probe->amount += (double)SLICE;
    return slice;
}

// A sum over a slice, by loads as wide as an instruction set has: narrower ones would be what bounds it where memory is fast.
#define READ_SLICE(bytes)                                                              \
    static void read_##bytes(struct probe *probe)                                      \
    {                                                                                  \
        typedef uint64_t vector __attribute__((vector_size(bytes)));                   \
        const vector *slice = (const vector *)(const void *)next_slice(probe);         \
        vector sum[4] = {0};                                                           \
        for (size_t i = 0; i < SLICE / sizeof *slice; i += 4) {                        \
            sum[0] ^= slice[i];                                                        \
            sum[1] ^= slice[i + 1];                                                    \
            sum[2] ^= slice[i + 2];                                                    \
            sum[3] ^= slice[i + 3];                                                    \
        }                                                                              \
        probe->sink = (float)(sum[0] ^ sum[1] ^ sum[2] ^ sum[3])[0];                   \
    }

#if defined(__x86_64__)
__attribute__((target("avx512f"))) READ_SLICE(64)
__attribute__((target("avx2"))) READ_SLICE(32)
#endif
READ_SLICE(16)

static void *probe_thread(void *argument)
{
    struct probe *probe = argument;
    double begin = now(), time;
    do {
        probe->work(probe);
        time = now() - begin;
    } while (time < probe->seconds);
    probe->rate = probe->amount / time;
    return NULL;
}

/// Memory to read, huge pages where there are any: page walks are no part of what memory can do. Kept from probe to probe,
/// for touching new pages takes longer than reading them. NULL: out of memory.
static char *block_of(size_t bytes)
{
    static char *block;
    static size_t held;
    if (bytes > held) {
        free(block);
        held = bytes;
        block = aligned_alloc(HUGE_PAGE, held);
        if (!block)
            held = 0;
        else {
            madvise(block, held, MADV_HUGEPAGE);
            memset(block, 1, held);
        }
    }
    return block;
}

/// A core for each thread. A probe lasts for milliseconds, and for as long the system may leave two new threads on one core
/// while another idles. Read once a count of threads; NULL: out of memory.
static const struct placement *cores_for(uint32_t threads)
{
    static struct placement placement;
    if (placement.threads != threads) {
        placement_free(&placement);
        if (!topology_read(&placement.topology) || !placement_make(&placement, 1, threads, 1, BIND_CORE)) {
            placement_free(&placement);
            return NULL;
        }
    }
    return &placement;
}

static double run_probe(uint32_t threads, double seconds, void (*work)(struct probe *), size_t block_bytes)
{
    struct probe *probes = calloc(threads, sizeof *probes);
    pthread_t *ids = calloc(threads, sizeof *ids);
    char *block = block_bytes ? block_of(block_bytes * threads) : NULL;
    const struct placement *cores = cores_for(threads);
    bool fine = probes && ids && cores && (block || !block_bytes);
    double rate = 0;
    for (uint32_t t = 0; fine && t < threads; t++) {
        cpu_set_t core;
        probes[t] = (struct probe){.work = work, .seconds = seconds, .block_bytes = block_bytes};
        probes[t].block = block_bytes ? block + t * block_bytes : NULL;
        pthread_create(&ids[t], NULL, probe_thread, &probes[t]);
        placement_thread(cores, t, &core);
        placement_keep(cores, ids[t], &core);
    }
    for (uint32_t t = 0; fine && t < threads; t++) {
        pthread_join(ids[t], NULL);
        rate += probes[t].rate;
    }
    free(ids);
    free(probes);
    return rate;
}

double probe_f32_peak(uint32_t threads, double seconds)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return run_probe(threads, seconds, fma_512, 0);
    if (__builtin_cpu_supports("avx2"))
        return run_probe(threads, seconds, fma_256, 0);
#endif
    return run_probe(threads, seconds, fma_plain, 0);
}

double probe_bf16_peak(uint32_t threads, double seconds)
{
#if defined(__x86_64__)
    if (machine_runs("amx"))
        return run_probe(threads, seconds, tile_products, 0);
    if (__builtin_cpu_supports("avx512bf16"))
        return run_probe(threads, seconds, bf16_dots, 0);
#endif
    return probe_f32_peak(threads, seconds);
}

double probe_read_bandwidth(uint32_t threads, double seconds)
{
    size_t block = (size_t)256 << 20;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return run_probe(threads, seconds, read_64, block);
    if (__builtin_cpu_supports("avx2"))
        return run_probe(threads, seconds, read_32, block);
#endif
    return run_probe(threads, seconds, read_16, block);
}
