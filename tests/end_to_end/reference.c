// The float64 reference layer.
#include "tests/end_to_end/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/weights/random.h"
#include "runtime/weights/safetensors.h"

static const char *file_dtype(const char *dtype)
{
    return !strcmp(dtype, "f32") ? "F32" : !strcmp(dtype, "f16") ? "F16" : "BF16";
}

void round_to_dtype(const char *dtype, float *values, size_t count)
{
    void *narrow = malloc(count * 4 + 4);
    elements_from_f32(file_dtype(dtype), values, narrow, count);
    elements_to_f32(file_dtype(dtype), narrow, values, count);
    free(narrow);
}

static float *expert_weights(const struct shape *shape, uint64_t seed, const char *name, int expert, int rows, int cols)
{
    size_t count = (size_t)rows * (size_t)cols;
    float *values = malloc(count * sizeof *values);
    random_weights(random_key(seed, name, 0, (uint64_t)expert), 0, random_scale(cols, 0), values, count);
    round_to_dtype(shape->dtype, values, count);
    return values;
}

static double dot(const float *a, const float *b, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void add_expert(const struct shape *shape, const float *gate_up, const float *down, const float *x, double weight,
                       double *hidden, double *sum)
{
    for (int f = 0; f < shape->ffn; f++) {
        double gate = dot(x, gate_up + (size_t)f * (size_t)shape->hidden, shape->hidden);
        double up = dot(x, gate_up + (size_t)(f + shape->ffn) * (size_t)shape->hidden, shape->hidden);
        hidden[f] = gate / (1 + exp(-gate)) * up;
    }
    for (int h = 0; h < shape->hidden; h++) {
        double value = 0;
        for (int f = 0; f < shape->ffn; f++)
            value += hidden[f] * (double)down[(size_t)h * (size_t)shape->ffn + (size_t)f];
        sum[h] += weight * value;
    }
}

void reference_layer(const struct shape *shape, uint64_t seed, const float *x, int64_t tokens, const int32_t *ids,
                     const float *weights, float *y)
{
    size_t width = (size_t)shape->hidden, choices = (size_t)shape->choices;
    double *sums = calloc((size_t)tokens * width + 1, sizeof *sums), *hidden = malloc((size_t)shape->ffn * sizeof *hidden);
    for (int e = 0; e < shape->experts; e++) {
        float *gate_up = expert_weights(shape, seed, "w_gate_up", e, 2 * shape->ffn, shape->hidden);
        float *down = expert_weights(shape, seed, "w_down", e, shape->hidden, shape->ffn);
        for (size_t t = 0; t < (size_t)tokens; t++)
            for (size_t i = 0; i < choices; i++)
                if (ids[t * choices + i] == e)
                    add_expert(shape, gate_up, down, x + t * width, (double)weights[t * choices + i], hidden,
                               sums + t * width);
        free(gate_up);
        free(down);
    }
    for (size_t i = 0; i < (size_t)tokens * width; i++)
        y[i] = (float)sums[i];
    free(sums);
    free(hidden);
}
