// A layer's experts around somebody else's matrix product: gather, SwiGLU, routing weights and sum, on threads of our own
// (a library's threading is worse for many small products). Columns of all experts are cut into blocks that threads take
// in turn: each thread reads its own blocks' weights, once, and owns its output columns.
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/bench/engine.h"

struct part {
    int32_t expert;
    int64_t first, rows;                // pairs
};

struct bench_peer {
    const struct bench_product *product;
    struct bench_shape shape;
    enum bench_dtype dtype;
    int64_t experts, tokens;            // with shared ones; the bound
    int64_t up_blocks, down_blocks;     // of one matrix
    int64_t up_bytes, down_bytes;       // of one packed block
    char *up, *down;                    // [experts][blocks][gate, up] and [experts][blocks]
    size_t up_size, down_size;
    char *a, *hidden;                   // [pairs, hidden] and [pairs, ffn] of the dtype
    float *sum;                         // [tokens, hidden]
    int64_t *first;                     // [experts + 1]
    int32_t *row;                       // [pairs] token
    float *weight;                      // [pairs]
    struct bench_batch *batch;
    void *y;
    // the team
    unsigned threads;
    pthread_t *ids;
    pthread_barrier_t start, end;
    void (*phase)(struct bench_peer *peer, int64_t unit, float *scratch);
    int64_t units;
    atomic_llong next;
    float **scratch;                    // [threads], two blocks' results
    bool stop;
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t columns_of(int64_t block, int64_t columns, int64_t total)
{
    int64_t rest = total - block * columns;
    return rest < columns ? rest : columns;
}

// ---- the team

static void take_units(struct bench_peer *peer, unsigned me)
{
    for (;;) {
        int64_t unit = atomic_fetch_add_explicit(&peer->next, 1, memory_order_relaxed);
        if (unit >= peer->units)
            return;
        peer->phase(peer, unit, peer->scratch[me]);
    }
}

struct member {
    struct bench_peer *peer;
    unsigned number;
};

static void *work(void *argument)
{
    struct member member = *(struct member *)argument;
    free(argument);
    for (;;) {
        pthread_barrier_wait(&member.peer->start);
        if (member.peer->stop)
            return NULL;
        take_units(member.peer, member.number);
        pthread_barrier_wait(&member.peer->end);
    }
}

static void run_phase(struct bench_peer *peer, void (*phase)(struct bench_peer *, int64_t, float *), int64_t units)
{
    peer->phase = phase;
    peer->units = units;
    atomic_store(&peer->next, 0);
    if (peer->threads > 1)
        pthread_barrier_wait(&peer->start);
    take_units(peer, 0);
    if (peer->threads > 1)
        pthread_barrier_wait(&peer->end);
}

static void start_team(struct bench_peer *peer)
{
    pthread_barrier_init(&peer->start, NULL, peer->threads);
    pthread_barrier_init(&peer->end, NULL, peer->threads);
    peer->ids = calloc(peer->threads, sizeof *peer->ids);
    for (unsigned i = 1; i < peer->threads; i++) {
        struct member *member = malloc(sizeof *member);
        *member = (struct member){peer, i};
        if (pthread_create(&peer->ids[i], NULL, work, member))
            abort();
    }
}

static void stop_team(struct bench_peer *peer)
{
    if (!peer->ids)
        return;
    peer->stop = true;
    if (peer->threads > 1)
        pthread_barrier_wait(&peer->start);
    for (unsigned i = 1; i < peer->threads; i++)
        pthread_join(peer->ids[i], NULL);
    pthread_barrier_destroy(&peer->start);
    pthread_barrier_destroy(&peer->end);
    free(peer->ids);
}

// ---- weights

static void pack_block(struct bench_peer *peer, int64_t unit, float *scratch)
{
    (void)scratch;
    const struct bench_shape *shape = &peer->shape;
    int64_t of_expert = 2 * peer->up_blocks + peer->down_blocks, at = unit % of_expert, columns = peer->product->columns;
    int32_t expert = (int32_t)(unit / of_expert);
    bool is_down = at >= 2 * peer->up_blocks;
    int64_t block = is_down ? at - 2 * peer->up_blocks : at / 2, k = is_down ? shape->ffn : shape->hidden;
    enum bench_matrix matrix = is_down ? BENCH_DOWN : at % 2 ? BENCH_UP : BENCH_GATE;
    int64_t count = columns_of(block, columns, is_down ? shape->hidden : shape->ffn);
    char *to = is_down ? peer->down + (expert * peer->down_blocks + block) * peer->down_bytes
                       : peer->up + (expert * peer->up_blocks * 2 + at) * peer->up_bytes;
    float *rows = malloc((size_t)(count * k) * sizeof *rows);
    if (!rows)
        abort();
    for (int64_t c = 0; c < count; c++)
        bench_weights(shape, peer->dtype, expert, matrix, block * columns + c, 0, k, rows + c * k);
    peer->product->pack(peer->dtype, count, k, rows, to);
    free(rows);
}

static char *map_block(size_t bytes)
{
    char *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return NULL;
    madvise(block, bytes, MADV_HUGEPAGE);
    return block;
}

struct bench_peer *bench_peer_load(const struct bench_product *product, const struct bench_shape *shape,
                                   enum bench_dtype dtype, unsigned threads, int64_t tokens)
{
    struct bench_peer *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    size_t pairs = (size_t)(tokens * (shape->choices + shape->shared)), element = (size_t)bench_element_bytes(dtype);
    *p = (struct bench_peer){.product = product, .shape = *shape, .dtype = dtype, .tokens = tokens, .threads = threads,
                             .experts = shape->experts + shape->shared};
    p->up_blocks = ceil_div(shape->ffn, product->columns);
    p->down_blocks = ceil_div(shape->hidden, product->columns);
    p->up_bytes = (product->block_bytes(dtype, product->columns, shape->hidden) + 63) / 64 * 64;
    p->down_bytes = (product->block_bytes(dtype, product->columns, shape->ffn) + 63) / 64 * 64;
    p->up_size = (size_t)(p->experts * p->up_blocks * 2 * p->up_bytes);
    p->down_size = (size_t)(p->experts * p->down_blocks * p->down_bytes);
    p->up = map_block(p->up_size);
    p->down = map_block(p->down_size);
    p->a = map_block(pairs * (size_t)shape->hidden * element + 4096);
    p->hidden = map_block(pairs * (size_t)shape->ffn * element + 4096);
    p->sum = malloc((size_t)(tokens * shape->hidden) * sizeof *p->sum);
    p->first = malloc((size_t)(p->experts + 1) * sizeof *p->first);
    p->row = malloc(pairs * sizeof *p->row);
    p->weight = malloc(pairs * sizeof *p->weight);
    p->scratch = calloc(threads, sizeof *p->scratch);
    bool fine = p->up && p->down && p->a && p->hidden && p->sum && p->first && p->row && p->weight && p->scratch;
    for (unsigned i = 0; fine && i < threads; i++)
        fine = (p->scratch[i] = aligned_alloc(64, (size_t)(2 * product->most_rows * product->columns) * sizeof(float))) != NULL;
    if (!fine) {
        fprintf(stderr, "out of memory for %s\n", shape->name);
        bench_peer_unload(p);
        return NULL;
    }
    start_team(p);
    run_phase(p, pack_block, p->experts * (2 * p->up_blocks + p->down_blocks));
    return p;
}

void bench_peer_unload(struct bench_peer *p)
{
    stop_team(p);
    size_t pairs = (size_t)(p->tokens * (p->shape.choices + p->shape.shared)), element = (size_t)bench_element_bytes(p->dtype);
    if (p->up)
        munmap(p->up, p->up_size);
    if (p->down)
        munmap(p->down, p->down_size);
    if (p->a)
        munmap(p->a, pairs * (size_t)p->shape.hidden * element + 4096);
    if (p->hidden)
        munmap(p->hidden, pairs * (size_t)p->shape.ffn * element + 4096);
    for (unsigned i = 0; p->scratch && i < p->threads; i++)
        free(p->scratch[i]);
    free(p->scratch);
    free(p->sum);
    free(p->first);
    free(p->row);
    free(p->weight);
    free(p);
}

// ---- a batch

static void sort_pairs(struct bench_peer *p)
{
    const struct bench_batch *batch = p->batch;
    memset(p->first, 0, (size_t)(p->experts + 1) * sizeof *p->first);
    int64_t routes = batch->tokens * p->shape.choices;
    for (int64_t i = 0; i < routes; i++)
        p->first[batch->ids[i] + 1]++;
    for (int64_t e = p->shape.experts; e < p->experts; e++)
        p->first[e + 1] = batch->tokens;
    for (int64_t e = 0; e < p->experts; e++)
        p->first[e + 1] += p->first[e];
    for (int64_t i = 0; i < routes; i++) {
        int64_t at = p->first[batch->ids[i]]++;
        p->row[at] = (int32_t)(i / p->shape.choices);
        p->weight[at] = batch->weights[i];
    }
    for (int64_t e = p->shape.experts - 1; e > 0; e--) // each first has become its expert's end
        p->first[e] = p->first[e - 1];
    p->first[0] = 0;
    for (int64_t e = p->shape.experts; e < p->experts; e++)
        for (int64_t t = 0; t < batch->tokens; t++) {
            p->row[p->first[e] + t] = (int32_t)t;
            p->weight[p->first[e] + t] = 1;
        }
}

static void gather_row(struct bench_peer *p, int64_t unit, float *scratch)
{
    (void)scratch;
    size_t bytes = (size_t)(p->shape.hidden * bench_element_bytes(p->dtype));
    memcpy(p->a + (size_t)unit * bytes, (const char *)p->batch->x + (size_t)p->row[unit] * bytes, bytes);
}

// exp by a polynomial of degree 6 on [-ln2/2, ln2/2], so that the loops below become vectors
static inline float quick_exp(float x)
{
    x = x < -87 ? -87 : x > 88 ? 88 : x;
    float n = x * 1.44269504f;
    n = (n + 12582912.0f) - 12582912.0f;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1 + r * (1 + r * (0.5f + r * (0.16666667f + r * (0.041666668f + r * (0.008333334f + r * 0.0013888889f)))));
    int32_t bits = ((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

#if defined(__x86_64__)
#define WIDEST __attribute__((target_clones("default", "avx2", "avx512f"))) // built with -O3
#else
#define WIDEST
#endif

WIDEST static void swiglu_bf16(const float *gate, const float *up, uint16_t *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float value = gate[i] / (1 + quick_exp(-gate[i])) * up[i];
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        to[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    }
}

WIDEST static void swiglu_f32(const float *gate, const float *up, float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = gate[i] / (1 + quick_exp(-gate[i])) * up[i];
}

WIDEST static void add_weighted(const float *from, float weight, float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] += weight * from[i];
}

// one column block of gate and up of one expert
static void up_block(struct bench_peer *p, int64_t unit, float *scratch)
{
    const struct bench_product *product = p->product;
    int64_t expert = unit / p->up_blocks, block = unit % p->up_blocks, element = bench_element_bytes(p->dtype);
    int64_t columns = columns_of(block, product->columns, p->shape.ffn);
    const char *gate = p->up + unit * 2 * p->up_bytes, *up = gate + p->up_bytes;
    float *gate_c = scratch, *up_c = scratch + product->most_rows * product->columns;
    for (int64_t first = p->first[expert]; first < p->first[expert + 1]; first += product->most_rows) {
        int64_t rows = p->first[expert + 1] - first;
        rows = rows < product->most_rows ? rows : product->most_rows;
        const char *a = p->a + first * p->shape.hidden * element;
        product->multiply(p->dtype, rows, columns, p->shape.hidden, a, gate, gate_c);
        product->multiply(p->dtype, rows, columns, p->shape.hidden, a, up, up_c);
        for (int64_t r = 0; r < rows; r++) {
            char *to = p->hidden + ((first + r) * p->shape.ffn + block * product->columns) * element;
            if (p->dtype == BENCH_F32)
                swiglu_f32(gate_c + r * columns, up_c + r * columns, (float *)(void *)to, columns);
            else
                swiglu_bf16(gate_c + r * columns, up_c + r * columns, (uint16_t *)(void *)to, columns);
        }
    }
}

static void store_columns(struct bench_peer *p, int64_t first, int64_t columns)
{
    for (int64_t t = 0; t < p->batch->tokens; t++) {
        int64_t at = t * p->shape.hidden + first;
        if (p->dtype == BENCH_F32)
            memcpy((float *)p->y + at, p->sum + at, (size_t)columns * sizeof(float));
        else
            for (int64_t c = 0; c < columns; c++)
                ((uint16_t *)p->y)[at + c] = bench_to_bf16(p->sum[at + c]);
    }
}

// one column block of the layer's output: all experts' down projections, weighted and summed
static void down_block(struct bench_peer *p, int64_t unit, float *scratch)
{
    const struct bench_product *product = p->product;
    int64_t columns = columns_of(unit, product->columns, p->shape.hidden), at = unit * product->columns;
    for (int64_t t = 0; t < p->batch->tokens; t++)
        memset(p->sum + t * p->shape.hidden + at, 0, (size_t)columns * sizeof(float));
    for (int64_t e = 0; e < p->experts; e++)
        for (int64_t first = p->first[e]; first < p->first[e + 1]; first += product->most_rows) {
            int64_t rows = p->first[e + 1] - first;
            rows = rows < product->most_rows ? rows : product->most_rows;
            product->multiply(p->dtype, rows, columns, p->shape.ffn,
                              p->hidden + first * p->shape.ffn * bench_element_bytes(p->dtype),
                              p->down + (e * p->down_blocks + unit) * p->down_bytes, scratch);
            for (int64_t r = 0; r < rows; r++)
                add_weighted(scratch + r * columns, p->weight[first + r],
                             p->sum + p->row[first + r] * p->shape.hidden + at, columns);
        }
    store_columns(p, at, columns);
}

bool bench_peer_run(struct bench_peer *p, struct bench_batch *batch, void *y)
{
    p->batch = batch;
    p->y = y;
    sort_pairs(p);
    run_phase(p, gather_row, p->first[p->experts]);
    run_phase(p, up_block, p->experts * p->up_blocks);
    run_phase(p, down_block, p->down_blocks);
    return true;
}
