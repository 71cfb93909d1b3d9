// A layer as a server runs it: calls whose token counts change, for a long time. Counts allocations after the start, watches
// the process's size, and compares the spread of latencies with that of a loop of fixed work on as many threads, in turn.
// Usage: moe-bench-serving [SECONDS]
// A call's latency counts in terms of the median for its token count. Exit code 1: something was allocated, the process
// grew by more than a megabyte, or p99 / p50 is more than 1.5 times the fixed work's; 3: a call failed.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "runtime/device/topology.h"
#include "tests/bench/engine.h"

enum { COUNTS = 16, MOST_TOKENS = 256, CALLS_A_SECOND = 4000, WORK_BYTES = 32 << 20, WORK_EVERY = 4, GROWTH = 1 << 20 };

static const int64_t counts[COUNTS] = {1, 2, 3, 5, 8, 13, 16, 24, 32, 48, 64, 96, 128, 160, 192, MOST_TOKENS};
static const struct bench_shape shape = {"coarse H 1024 F 3584 E 8 k 2", 1024, 3584, 8, 2, 0};

// ---- allocations of the runtime: the linker sends them here

static atomic_long allocations;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void *__real_mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset);

void *__wrap_malloc(size_t bytes)
{
    allocations++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    allocations++;
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    allocations++;
    return __real_realloc(old, bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    allocations++;
    return __real_aligned_alloc(align, bytes);
}

void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset)
{
    allocations++;
    return __real_mmap(at, bytes, access, flags, file, offset);
}

// ---- fixed work: every thread reads as many bytes as ever from its own block

struct reader {
    pthread_t thread;
    const uint64_t *block;
};

static pthread_barrier_t start, end;
static atomic_bool stop;
static volatile uint64_t sink;

static void read_block(const uint64_t *block)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < WORK_BYTES / sizeof *block; i++)
        sum ^= block[i];
    sink = sum;
}

static void *reader_main(void *argument)
{
    const struct reader *reader = argument;
    for (;;) {
        pthread_barrier_wait(&start);
        if (stop)
            return NULL;
        read_block(reader->block);
        pthread_barrier_wait(&end);
    }
}

static void fixed_work(const struct reader *own)
{
    pthread_barrier_wait(&start);
    read_block(own->block);
    pthread_barrier_wait(&end);
}

// ---- latencies

struct sample {
    uint32_t kind;   // a token count's number; COUNTS: fixed work
    float seconds;
};

struct samples {
    struct sample *at;
    size_t count, capacity;
    float *sorted;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void add(struct samples *s, uint32_t kind, double seconds)
{
    if (s->count < s->capacity)
        s->at[s->count++] = (struct sample){kind, (float)seconds};
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float quantile(struct samples *s, size_t count, double q)
{
    qsort(s->sorted, count, sizeof *s->sorted, ascending);
    return count ? s->sorted[(size_t)(q * (double)(count - 1))] : 0;
}

/// Puts every latency in terms of the median of its kind.
static void make_relative(struct samples *s)
{
    for (uint32_t kind = 0; kind <= COUNTS; kind++) {
        size_t n = 0;
        for (size_t i = 0; i < s->count; i++)
            if (s->at[i].kind == kind)
                s->sorted[n++] = s->at[i].seconds;
        float median = quantile(s, n, 0.5);
        for (size_t i = 0; i < s->count; i++)
            if (s->at[i].kind == kind)
                s->at[i].seconds /= median;
    }
}

/// p99 in terms of p50, of the calls or of the fixed work.
static double spread(struct samples *s, bool calls)
{
    size_t n = 0;
    for (size_t i = 0; i < s->count; i++)
        if ((s->at[i].kind < COUNTS) == calls)
            s->sorted[n++] = s->at[i].seconds;
    return quantile(s, n, 0.99);
}

static long resident_bytes(void)
{
    char text[128] = "";
    FILE *file = fopen("/proc/self/statm", "r");
    size_t got = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    char *second = got ? strchr(text, ' ') : NULL;
    return second ? strtol(second, NULL, 10) * sysconf(_SC_PAGESIZE) : 0;
}

// ---- the run

struct server {
    struct bench_moecc *layer;
    struct bench_batch batches[COUNTS];
    void *y;
    struct samples samples;
    struct reader *readers;
    unsigned threads;
};

static bool serve(struct server *s, double seconds, bool timed)
{
    uint64_t state = 1;
    unsigned long calls = 0;
    for (double until = now() + seconds; now() < until; calls++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t kind = (uint32_t)(state >> 33) % COUNTS;
        double begin = now();
        if (!bench_moecc_run(s->layer, &s->batches[kind], s->y))
            return false;
        if (timed)
            add(&s->samples, kind, now() - begin);
        if (calls % WORK_EVERY)
            continue;
        begin = now();
        fixed_work(&s->readers[0]);
        if (timed)
            add(&s->samples, COUNTS, now() - begin);
    }
    return true;
}

static bool prepare(struct server *s, double seconds)
{
    s->threads = machine_cores();
    s->samples.capacity = (size_t)(seconds * (double)CALLS_A_SECOND);
    s->samples.at = malloc(s->samples.capacity * sizeof *s->samples.at);
    s->samples.sorted = malloc(s->samples.capacity * sizeof *s->samples.sorted);
    s->y = malloc((size_t)(MOST_TOKENS * shape.hidden * 4));
    s->readers = calloc(s->threads, sizeof *s->readers);
    s->layer = bench_moecc_load(&shape, BENCH_BF16, s->threads, MOST_TOKENS);
    if (!s->samples.at || !s->samples.sorted || !s->y || !s->readers || !s->layer)
        return false;
    memset(s->samples.at, 1, s->samples.capacity * sizeof *s->samples.at); // in memory from the start
    memset(s->samples.sorted, 1, s->samples.capacity * sizeof *s->samples.sorted);
    for (int i = 0; i < COUNTS; i++)
        if (!bench_batch_make(&shape, BENCH_BF16, BENCH_UNIFORM, counts[i], 1, &s->batches[i]))
            return false;
    pthread_barrier_init(&start, NULL, s->threads);
    pthread_barrier_init(&end, NULL, s->threads);
    for (unsigned i = 0; i < s->threads; i++) {
        uint64_t *block = aligned_alloc(4096, WORK_BYTES);
        if (!block)
            return false;
        memset(block, 1, WORK_BYTES);
        s->readers[i].block = block;
        if (i && pthread_create(&s->readers[i].thread, NULL, reader_main, &s->readers[i]))
            return false;
    }
    return true;
}

static void finish(struct server *s)
{
    stop = true;
    if (s->threads > 1)
        pthread_barrier_wait(&start);
    for (unsigned i = 1; i < s->threads; i++)
        pthread_join(s->readers[i].thread, NULL);
    for (unsigned i = 0; i < s->threads; i++)
        free((void *)(uintptr_t)s->readers[i].block);
    for (int i = 0; i < COUNTS; i++)
        bench_batch_free(&s->batches[i]);
    bench_moecc_unload(s->layer);
    free(s->readers);
    free(s->y);
    free(s->samples.at);
    free(s->samples.sorted);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 600;
    static struct server server;
    if (seconds <= 0 || !prepare(&server, seconds) || !serve(&server, 1, false)) {
        fprintf(stderr, "usage: moe-bench-serving [SECONDS]\n");
        return 3;
    }
    long before = resident_bytes(), allocated = allocations;
    if (!serve(&server, seconds, true))
        return 3;
    allocated = allocations - allocated;
    long grown = resident_bytes() - before;
    make_relative(&server.samples);
    double calls = spread(&server.samples, true), fixed = spread(&server.samples, false), ratio = calls / fixed;
    printf("%s, bf16, %u threads, %lld to %lld tokens, %.0f s: %zu calls and loops of fixed work\n", shape.name,
           server.threads, (long long)counts[0], (long long)counts[COUNTS - 1], seconds, server.samples.count);
    printf("allocations after the start %ld, resident %.1f MB and %+.2f MB\n", allocated, 1e-6 * (double)before,
           1e-6 * (double)grown);
    printf("p99 / p50: calls %.3f, fixed work %.3f, ratio %.2f (at most 1.5)\n", calls, fixed, ratio);
    finish(&server);
    return allocated == 0 && grown <= GROWTH && ratio <= 1.5 ? 0 : 1;
}
