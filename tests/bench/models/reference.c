// Random weights as their stored codes say, and the layers of the three models that they stand for.
#include "tests/bench/models/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/weights/random.h"
#include "runtime/weights/safetensors.h"

struct matrix { // [rows, cols] of one expert
    const struct plan_param *param;
    uint64_t key;
    float scale;
};

static struct matrix matrix_of(const struct reference_model *model, const struct ir *plan, const char *name, uint32_t expert)
{
    for (uint32_t i = 0; i < COUNT(plan, plan_param); i++) {
        const struct plan_param *param = ROW(plan, plan_param, i);
        if (strcmp(ir_text(plan, param->name), name) != 0)
            continue;
        bool router = !param->per_expert && param->rows == model->experts;
        return (struct matrix){param, random_key(0, name, model->layer, expert), random_scale(param->cols, router)};
    }
    return (struct matrix){0};
}

/// The nearest of the sixteen E2M1 numbers; halfway between two the one with an even code.
static float nearest_e2m1(float value)
{
    static const float sizes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    int best = 0;
    for (int i = 1; i < 8; i++) {
        float off = fabsf(fabsf(value) - sizes[i]), least = fabsf(fabsf(value) - sizes[best]);
        if (off < least || (off <= least && i % 2 == 0))
            best = i;
    }
    return copysignf(sizes[best], value);
}

/// Numbers as the declared format holds them. Codes are of values in units of their scale: of E4M3 a 128th of the deviation,
/// of MXFP4 the power of two at or below it.
static void read_row(const struct matrix *m, int64_t row, float *to)
{
    static const char *const names[] = {[dtype_f32] = "F32", [dtype_f16] = "F16", [dtype_bf16] = "BF16", [dtype_fp8_e4m3] = "F8_E4M3"};
    const struct plan_param *p = m->param;
    size_t count = (size_t)p->cols;
    uint32_t type = p->declared;
    float unit = type == dtype_fp8_e4m3 ? m->scale / 128 : type == dtype_mxfp4 ? exp2f(floorf(log2f(m->scale))) : 1;
    random_weights(m->key, (uint64_t)(row * p->cols), m->scale / unit, to, count);
    if (type == dtype_mxfp4)
        for (size_t i = 0; i < count; i++)
            to[i] = nearest_e2m1(to[i]);
    else if (type != dtype_f32) {
        elements_from_f32(names[type], to, to, count); // narrower, from the front
        for (size_t i = count, size = element_bytes(names[type]); i-- > 0;) {
            float value;
            elements_to_f32(names[type], (const char *)to + i * size, &value, 1);
            to[i] = value;
        }
    }
    for (size_t i = 0; i < count && unit != 1; i++)
        to[i] *= unit;
}

/// y[i] = row first + i of the matrix times x.
static void multiply(const struct matrix *m, int64_t first, int64_t rows, const double *x, float *row, double *y)
{
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        read_row(m, first + r, row);
        for (int64_t c = 0; c < m->param->cols; c++)
            sum += x[c] * (double)row[c];
        y[r] = sum;
    }
}

struct work {
    const struct reference_model *model;
    const struct ir *plan;
    double *x, *gate, *up, *out; // hidden, ffn, ffn, hidden
    float *row;
};

static void add_biases(const struct work *w, const char *name, uint32_t expert, int64_t first, int64_t count, double *to)
{
    struct matrix bias = matrix_of(w->model, w->plan, name, expert);
    for (int64_t i = 0; i < count && w->model->biases; i++) {
        read_row(&bias, first + i, w->row);
        to[i] += (double)w->row[0];
    }
}

static void add_expert(const struct work *w, const char *up_name, const char *down_name, uint32_t expert, double weight, double *y)
{
    const struct reference_model *model = w->model;
    struct matrix up = matrix_of(model, w->plan, up_name, expert), down = matrix_of(model, w->plan, down_name, expert);
    int64_t ffn = up.param->rows / 2;
    multiply(&up, 0, ffn, w->x, w->row, w->gate);
    multiply(&up, ffn, ffn, w->x, w->row, w->up);
    add_biases(w, "b_gate_up", expert, 0, ffn, w->gate);
    add_biases(w, "b_gate_up", expert, ffn, ffn, w->up);
    for (int64_t i = 0; i < ffn; i++) {
        double g = w->gate[i], u = w->up[i];
        if (model->clamped) {
            g = fmin(g, 7);
            u = fmax(-7, fmin(u, 7)) + 1;
        }
        w->gate[i] = u * g / (1 + exp((model->clamped ? -1.702 : -1) * g));
    }
    multiply(&down, 0, model->hidden, w->gate, w->row, w->out);
    add_biases(w, "b_down", expert, 0, model->hidden, w->out);
    for (int64_t i = 0; i < model->hidden; i++)
        y[i] += weight * w->out[i];
}

/// Scores of groups that are not kept become -inf. A group counts its two best.
static void keep_groups(const struct reference_model *model, double *choice)
{
    uint32_t size = model->experts / model->groups;
    double sums[64];
    bool kept[64] = {false};
    for (uint32_t g = 0; g < model->groups; g++) {
        double best = -INFINITY, second = -INFINITY;
        for (uint32_t i = g * size; i < (g + 1) * size; i++) {
            second = fmax(second, fmin(best, choice[i]));
            best = fmax(best, choice[i]);
        }
        sums[g] = best + second;
    }
    for (uint32_t round = 0; round < model->groups_kept; round++) {
        uint32_t best = 0;
        while (kept[best])
            best++;
        for (uint32_t g = best + 1; g < model->groups; g++)
            best = !kept[g] && sums[g] > sums[best] ? g : best;
        kept[best] = true;
    }
    for (uint32_t i = 0; i < model->experts; i++)
        choice[i] = kept[i / size] ? choice[i] : -INFINITY;
}

static bool route(const struct work *w, int32_t *ids, double *weights)
{
    const struct reference_model *model = w->model;
    uint32_t experts = model->experts;
    double *scores = malloc(2 * experts * sizeof *scores), *choice = scores + experts, sum = 0;
    bool after = model->router == ROUTER_SOFTMAX_AFTER, sigmoid = model->router == ROUTER_SIGMOID_GROUPS;
    struct matrix router = matrix_of(model, w->plan, "w_router", 0), bias = matrix_of(model, w->plan, after ? "b_router" : "e_bias", 0);
    if (!scores)
        return false;
    multiply(&router, 0, experts, w->x, w->row, scores);
    memset(w->row, 0, experts * sizeof *w->row);
    if (bias.param)
        read_row(&bias, 0, w->row);
    for (uint32_t i = 0; i < experts; i++) {
        double shift = (double)w->row[i];
        scores[i] = sigmoid ? 1 / (1 + exp(-scores[i])) : scores[i] + shift;
        choice[i] = scores[i] + (sigmoid ? shift : 0);
    }
    if (sigmoid)
        keep_groups(model, choice);
    for (uint32_t k = 0; k < model->choices; k++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < experts; i++)
            best = choice[i] > choice[best] ? i : best;
        ids[k] = (int32_t)best;
        choice[best] = -INFINITY;
        weights[k] = sigmoid ? scores[best] : exp(scores[best] - scores[ids[0]]); // softmax over all, renormalised, is this too
        sum += weights[k];
    }
    for (uint32_t k = 0; k < model->choices; k++)
        weights[k] *= model->scale / sum;
    free(scores);
    return true;
}

bool reference_token(const struct reference_model *model, const struct ir *plan, const float *x, double *y, int32_t *ids,
                     double *weights)
{
    size_t hidden = (size_t)model->hidden, ffn = (size_t)model->ffn, most = hidden > ffn ? hidden : ffn;
    double *memory = malloc((2 * hidden + 2 * ffn) * sizeof *memory);
    struct work w = {model, plan, memory, memory + hidden, memory + hidden + ffn, memory + hidden + 2 * ffn,
                     malloc(most * sizeof *w.row)};
    bool fine = memory && w.row;
    for (size_t i = 0; i < hidden && fine; i++) {
        w.x[i] = (double)x[i];
        y[i] = 0;
    }
    fine = fine && route(&w, ids, weights);
    for (uint32_t k = 0; k < model->choices && fine; k++)
        add_expert(&w, "w_gate_up", "w_down", (uint32_t)ids[k], weights[k], y);
    if (fine && model->shared)
        add_expert(&w, "s_gate_up", "s_down", 0, 1, y);
    free(memory);
    free(w.row);
    return fine;
}
