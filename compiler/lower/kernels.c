// Rows of plan_kernel: which kernels a path needs, with the constants that kernels.h lists. Equal ones are one row in
// the whole plan. Code, units and grain of generated kernels are filled in by code generation.
#include <math.h>
#include <string.h>

#include "compiler/lower/lower.h"

static bool same_kernel(const struct plan_kernel *a, const struct plan_kernel *b)
{
    return a->role == b->role && !memcmp(a->n, b->n, sizeof a->n) && a->scale == b->scale && a->alpha == b->alpha &&
           a->limit == b->limit && a->temperature == b->temperature && a->noise == b->noise && a->seed == b->seed && a->unit_count == b->unit_count;
}

uint32_t kernel_row(struct lowering *l, struct plan_kernel kernel)
{
    kernel.builtin = role_specs[kernel.role].builtin;
    kernel.unit = role_specs[kernel.role].unit;
    kernel.grain = 1;
    for (uint32_t i = 0; i < COUNT(l->plan, plan_kernel); i++)
        if (same_kernel(ROW(l->plan, plan_kernel, i), &kernel))
            return i;
    uint32_t row = lower_add(l->context, l->plan, T_plan_kernel);
    const char *name = context_printf(l->context, "%s_%u", kernel_role_words[kernel.role], row);
    kernel.name = ir_str(l->plan, name);
    *ROW(l->plan, plan_kernel, row) = kernel;
    return row;
}

/// `wire`: the side in blocks, if any. `table`: of its control buffer.
static uint32_t copy_kernel(struct lowering *l, const struct path *p, uint32_t from, uint32_t to, uint32_t table,
                            const struct plan_wire *wire)
{
    struct plan_kernel kernel = {.role = kernel_role_copy_rows, .n = {p->width, from, to, 0, 0, table}};
    if (wire) {
        kernel.n[3] = wire->block;
        kernel.n[4] = wire->scale;
    }
    return kernel_row(l, kernel);
}

/// Rows of A, from `from` or from a format in blocks: of the type that the expert computes with, or coded for its arithmetic.
static struct plan_kernel rows_kernel(const struct path *p, uint32_t from, uint32_t table)
{
    struct plan_kernel kernel = {.role = kernel_role_copy_rows, .n = {p->width, from, p->a_dtype, 0, 0, table}};
    if (p->arithmetic) {
        kernel.n[2] = p->arithmetic & 0xff;
        kernel.n[3] = p->arithmetic >> 16;
        kernel.n[4] = p->arithmetic >> 8 & 0xff;
        kernel.n[7] = p->a_elements;
    }
    return kernel;
}

/// Arrived rows: first what the dispatch's result is, then what the expert computes with. Rows that travelled in the blocks
/// that they are multiplied in stay what they are.
static uint32_t unpack_kernel(struct lowering *l, const struct path *p, uint32_t number)
{
    const struct plan_wire *wire = &p->wire.wires[number];
    struct plan_kernel kernel = rows_kernel(p, wire->dtype, TABLES_UNPACK + number);
    if (!p->arithmetic) {
        kernel.n[3] = wire->block;
        kernel.n[4] = wire->scale;
    }
    bool narrows = wire->dtype != p->x_dtype && p->x_dtype != dtype_f32;
    if (narrows && (p->arithmetic ? !wire->block : p->x_dtype != p->a_dtype))
        kernel.n[6] = p->x_dtype;
    return kernel_row(l, kernel);
}

static void make_wire_kernels(struct lowering *l, struct path *p)
{
    for (uint32_t i = 0; i < p->wire.count; i++) {
        const struct plan_wire *wire = &p->wire.wires[i];
        p->pack_kernel[i] = copy_kernel(l, p, p->x_dtype, wire->dtype, TABLES_PACK + i, wire);
        p->unpack_kernel[i] = unpack_kernel(l, p, i);
    }
    p->own_kernel = p->own_apart ? kernel_row(l, rows_kernel(p, p->x_dtype, TABLE_OWN)) : NONE;
    for (uint32_t i = 0; i < p->reply.count; i++) {
        const struct plan_wire *wire = &p->reply.wires[i];
        p->reply_kernel[i] =
            wire_is_plain(wire, p->y_dtype) ? NONE : copy_kernel(l, p, p->y_dtype, wire->dtype, TABLES_REPLY + i, wire);
    }
}

static double option_number(const struct lowering *l, uint32_t stage, const char *name, double otherwise)
{
    const struct mod_arg *arg = stage_arg(l->module, lower_stage(l, stage), name);
    return arg ? arg->number : otherwise;
}

static uint32_t option_choice(const struct lowering *l, uint32_t stage, const char *name, const char *const *words,
                              uint32_t count)
{
    const struct mod_arg *arg = stage_arg(l->module, lower_stage(l, stage), name);
    for (uint32_t i = 0; arg && i < count; i++)
        if (!strcmp(words[i], ir_text(l->module, arg->choice)))
            return i;
    return 0;
}

/// The three constants that say how quantised weights are stored.
static void set_stored(struct plan_kernel *kernel, const struct plan_param *weights)
{
    if (!dtype_quantised(weights->dtype))
        return;
    kernel->n[8] = weights->dtype;
    kernel->n[9] = weights->block_cols;
    kernel->n[10] = weights->scales;
}

static void make_mlp(struct lowering *l, struct path *p)
{
    const struct plan_param *up = ROW(l->plan, plan_param, p->w_up), *down = ROW(l->plan, plan_param, p->w_down);
    struct plan_kernel kernel = {
        .role = kernel_role_mlp_up,
        .unit_count = plan_up_units(up, p->arithmetic >> 16),
        .n = {p->width, p->ffn, option_choice(l, p->expert, "activation", activation_words, activation_words_count),
              p->a_dtype, p->a_stride, p->hidden_stride, p->weighted_input,
              (p->b_up == NONE ? 0 : MLP_HAS_BIAS) | (p->plain ? MLP_PLAIN : 0) | (p->by_row ? MLP_BY_ROW : 0)},
        .alpha = option_number(l, p->expert, "alpha", 1),
        .limit = option_number(l, p->expert, "limit", 0)};
    set_stored(&kernel, up);
    kernel.n[11] = p->arithmetic;
    p->up_kernel = kernel_row(l, kernel);
    kernel = (struct plan_kernel){
        .role = kernel_role_mlp_down,
        .unit_count = plan_panels(down),
        .n = {p->ffn, p->width, p->a_dtype, p->y_dtype, p->hidden_stride, p->acc_stride, p->weighted_input,
              p->b_down == NONE ? 0 : MLP_HAS_BIAS}};
    set_stored(&kernel, down);
    kernel.n[11] = p->arithmetic;
    p->down_kernel = kernel_row(l, kernel);
}

static uint32_t route_kernel(struct lowering *l, const struct path *p)
{
    uint32_t score = option_choice(l, p->route, "score", score_words, score_words_count);
    uint32_t group_score = option_choice(l, p->route, "group_score", group_score_words, group_score_words_count);
    int64_t groups = (int64_t)option_number(l, p->route, "groups", 1);
    int64_t kept = (int64_t)option_number(l, p->route, "group_k", 1);
    int64_t biases = (p->bias == NONE ? 0 : ROUTE_HAS_BIAS) | (p->logit_bias == NONE ? 0 : ROUTE_HAS_LOGIT_BIAS);
    return kernel_row(l, (struct plan_kernel){.role = kernel_role_route,
                                              .n = {p->width, p->experts, p->choices, score,
                                                    option_number(l, p->route, "normalize", 1) != 0, p->x_dtype, groups,
                                                    kept, group_score, biases},
                                              .scale = option_number(l, p->route, "scale", 1),
                                              .alpha = option_number(l, p->route, "bias", 0),
                                              .limit = option_number(l, p->route, "logit_bias", 0),
                                              .temperature = option_number(l, p->route, "temperature", 1),
                                              .noise = option_number(l, p->route, "noise", 0),
                                              .seed = (int64_t)option_number(l, p->route, "seed", 1)});
}

static void make_routing(struct lowering *l, struct path *p)
{
    p->route_kernel = route_kernel(l, p);
    struct plan_kernel kernel = {.role = kernel_role_bin,
                                 .n = {p->width, p->choices, p->y_dtype, dtype_bytes(p->x_dtype)}};
    p->bin_kernel = kernel_row(l, kernel);
    kernel.role = kernel_role_bin_round;
    if (p->overflow == overflow_pool)
        p->round_kernel = kernel_row(l, kernel);
    kernel = (struct plan_kernel){.role = kernel_role_fan_out,
                                  .n = {p->a_stride, p->choices, p->own_apart, p->y_dtype, p->by_row}};
    p->fan_kernel = kernel_row(l, kernel);
    make_wire_kernels(l, p);
    const struct mod_value *y = ROW(l->module, mod_value, lower_stage(l, p->combine)->result);
    for (int adds = 0; adds < (l->waves > 1 ? 2 : 1); adds++)
        for (int ends = l->waves > 1 ? 0 : 1; ends < 2; ends++) {
            if (ends && !adds && l->waves > 1)
                continue;
            kernel =
                (struct plan_kernel){.role = kernel_role_merge,
                                     .n = {p->width, p->y_dtype, ends ? y->dtype : dtype_f32, adds, p->reply.count}};
            for (uint32_t i = 0; i < p->reply.count; i++) {
                const struct plan_wire *wire = &p->reply.wires[i];
                kernel.n[5 + i] = moe_wire_code(wire->dtype, wire->block, wire->scale);
            }
            p->merge_kernels[adds][ends] = kernel_row(l, kernel);
        }
    if (!p->node)
        return;
    p->fold_kernel = kernel_row(l, (struct plan_kernel){.role = kernel_role_fold, .n = {p->width}});
    p->sum_kernel = kernel_row(l, (struct plan_kernel){.role = kernel_role_sum_rows, .n = {p->width, p->y_dtype}});
}

void make_kernels(struct lowering *l, struct path *p)
{
    make_mlp(l, p);
    if (!p->dense) {
        make_routing(l, p);
        return;
    }
    int64_t x_bytes = p->width * dtype_bytes(p->x_dtype), y_bytes = p->width * dtype_bytes(p->y_dtype);
    struct plan_kernel kernel = {.role = kernel_role_dense, .n = {p->a_stride, x_bytes, y_bytes, p->experts, p->by_row}};
    p->dense_kernel = kernel_row(l, kernel);
    p->unpack_kernel[0] = kernel_row(l, rows_kernel(p, p->x_dtype, TABLES_UNPACK));
    p->wire.count = 1;
}

uint32_t limit_kernel(struct lowering *l, const struct path *p, int64_t first, int64_t end)
{
    bool normalize = option_number(l, p->route, "normalize", 1) != 0;
    return kernel_row(l, (struct plan_kernel){.role = kernel_role_limit,
                                              .n = {p->experts, p->choices, normalize, first, end},
                                              .scale = option_number(l, p->route, "scale", 1),
                                              .alpha = option_number(l, p->route, "expert_capacity", INFINITY),
                                              .limit = option_number(l, p->route, "expert_tokens", INFINITY)});
}
