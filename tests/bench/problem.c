// Shapes' weights, tokens and routes.
#include "tests/bench/problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/weights/random.h"

int64_t bench_element_bytes(enum bench_dtype dtype)
{
    return dtype == BENCH_F32 ? 4 : 2;
}

bool bench_quantised(enum bench_dtype dtype)
{
    return dtype == BENCH_E4M3 || dtype == BENCH_MXFP4;
}

const char *bench_dtype_name(enum bench_dtype dtype)
{
    static const char *const names[] = {"f32", "bf16", "e4m3", "mxfp4"};
    return names[dtype];
}

const char *bench_routing_name(enum bench_routing routing)
{
    return routing == BENCH_UNIFORM ? "uniform" : "zipf 0.7";
}

uint16_t bench_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

float bench_from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

void bench_weights(const struct bench_shape *shape, enum bench_dtype dtype, int32_t expert, enum bench_matrix matrix,
                   int64_t row, int64_t first, int64_t count, float *to)
{
    bool is_shared = expert >= shape->experts;
    const char *name = is_shared ? (matrix == BENCH_DOWN ? "shared_down" : "shared_gate_up")
                                 : (matrix == BENCH_DOWN ? "w_down" : "w_gate_up");
    uint64_t number = (uint64_t)(is_shared ? expert - shape->experts : expert);
    int64_t cols = matrix == BENCH_DOWN ? shape->ffn : shape->hidden;
    row += matrix == BENCH_UP ? shape->ffn : 0;
    random_weights(random_key(0, name, 0, number), (uint64_t)(row * cols + first), random_scale(cols, 0), to,
                   (size_t)count);
    if (dtype == BENCH_BF16)
        for (int64_t i = 0; i < count; i++)
            to[i] = bench_from_bf16(bench_to_bf16(to[i]));
}

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

// Expert number `rank` in popularity has a weight of (rank + 1)^-0.7, or all have the same.
static int32_t draw_expert(const struct bench_shape *shape, enum bench_routing routing, uint64_t *state)
{
    if (routing == BENCH_UNIFORM)
        return (int32_t)(uniform(state) * shape->experts);
    double total = 0, sum = 0;
    for (int32_t e = 0; e < shape->experts; e++)
        total += pow(e + 1, -0.7);
    double at = uniform(state) * total;
    for (int32_t e = 0; e < shape->experts; e++)
        if ((sum += pow(e + 1, -0.7)) > at)
            return (int32_t)((e * 29) % shape->experts); // popular experts are no neighbours
    return 0;
}

static void draw_choices(const struct bench_shape *shape, enum bench_routing routing, uint64_t *state, int32_t *ids)
{
    for (int32_t c = 0; c < shape->choices;) {
        ids[c] = draw_expert(shape, routing, state);
        bool is_new = true;
        for (int32_t d = 0; d < c; d++)
            is_new = is_new && ids[d] != ids[c];
        c += is_new;
    }
}

// Noise plus the chosen experts' router rows: rows of random numbers are nearly orthogonal, so their scores stand out.
static void draw_token(const struct bench_shape *shape, const float *router, const int32_t *ids, int64_t token, float *x)
{
    random_token(1, 0, token, x, (size_t)shape->hidden);
    for (int32_t c = 0; c < shape->choices; c++) {
        const float *row = router + ids[c] * shape->hidden;
        for (int64_t h = 0; h < shape->hidden; h++)
            x[h] += 4.0f * row[h];
    }
}

bool bench_batch_make(const struct bench_shape *shape, enum bench_dtype dtype, enum bench_routing routing, int64_t tokens,
                      uint64_t seed, struct bench_batch *batch)
{
    size_t width = (size_t)shape->hidden, routes = (size_t)(tokens * shape->choices);
    *batch = (struct bench_batch){.tokens = tokens,
                                  .x = malloc((size_t)tokens * width * 4),
                                  .ids = malloc(routes * sizeof *batch->ids),
                                  .weights = malloc(routes * sizeof *batch->weights)};
    float *router = malloc((size_t)shape->experts * width * sizeof *router), *row = malloc(width * sizeof *row);
    bool fine = batch->x && batch->ids && batch->weights && router && row;
    if (fine)
        random_weights(random_key(0, "w_router", 0, 0), 0, random_scale(shape->hidden, 1), router,
                       (size_t)shape->experts * width);
    uint64_t state = seed * 977 + 11;
    for (int64_t t = 0; fine && t < tokens; t++) {
        int32_t *ids = batch->ids + t * shape->choices;
        draw_choices(shape, routing, &state, ids);
        draw_token(shape, router, ids, t, row);
        for (int32_t c = 0; c < shape->choices; c++)
            batch->weights[t * shape->choices + c] = 1.0f / (float)shape->choices;
        if (dtype == BENCH_F32)
            memcpy((float *)batch->x + t * shape->hidden, row, width * sizeof *row);
        else
            for (size_t h = 0; h < width; h++)
                ((uint16_t *)batch->x)[(size_t)t * width + h] = bench_to_bf16(row[h]);
    }
    free(router);
    free(row);
    if (fine)
        bench_batch_count(shape, batch);
    else
        bench_batch_free(batch);
    return fine;
}

void bench_batch_count(const struct bench_shape *shape, struct bench_batch *batch)
{
    batch->active = shape->shared;
    for (int32_t e = 0; e < shape->experts; e++) {
        int64_t i = 0, routes = batch->tokens * shape->choices;
        while (i < routes && batch->ids[i] != e)
            i++;
        batch->active += i < routes;
    }
}

void bench_batch_free(struct bench_batch *batch)
{
    free(batch->x);
    free(batch->ids);
    free(batch->weights);
    *batch = (struct bench_batch){0};
}

double bench_flops(const struct bench_shape *shape, int64_t tokens)
{
    return 6.0 * (double)shape->hidden * (double)shape->ffn * (double)tokens * (shape->choices + shape->shared);
}

double bench_weight_bytes(const struct bench_shape *shape, enum bench_dtype dtype, const struct bench_batch *batch)
{
    static const double bytes[] = {4, 2, 1 + 4.0 / (128 * 128), 0.5 + 1.0 / 32}; // with the blocks' scales
    return (double)batch->active * 3.0 * (double)shape->hidden * (double)shape->ffn * bytes[dtype];
}
