// The two fused expert kernels: gate and up projection (or one projection without a gate) with the bias and the
// activation, and the down projection with its bias, the routing weight and the sum over a row's experts.
#include "gemm.h"

#include <string.h>

struct up {
    struct gemm gemm;
    const struct plan_kernel *kernel;
    uint32_t activation, dtype;
    int64_t hidden_stride;
    bool weighted; // the routing weight multiplies the input, that is, both products
    bool plain;    // one projection, without a gate
    bool biased;
    struct wire_format coded; // what hidden rows are multiplied in; block 0: their own type
    int64_t features;
};

// The biases of an expert's outputs, packed like a matrix of one column: a panel's are in the order of its columns.
static struct plan_param bias_panels(struct emit *e, const struct plan_param *weights)
{
    return kernel_weights(e, dtype_f32, weights->rows, 1, weights->halves, true);
}

// x/2 (1 + erf(x / sqrt 2)) with Abramowitz and Stegun's rational approximation 7.1.26, absolute error 1.5e-7:
// erf(z) = 1 - (a1 t + ... + a5 t^5) exp(-z^2), t = 1 / (1 + 0.3275911 z), z >= 0
static LLVMValueRef gelu_of(struct emit *e, LLVMValueRef x, unsigned lanes)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef one = splat_f32(e, 1, lanes);
    LLVMValueRef z = LLVMBuildFMul(b, x, splat_f32(e, 0.70710678118654752, lanes), "");
    LLVMValueRef size = intrinsic(e, "llvm.fabs", LLVMTypeOf(x), &z, 1);
    LLVMValueRef t = LLVMBuildFDiv(b, one, multiply_add(e, size, splat_f32(e, 0.3275911, lanes), one), "");
    static const double coefficients[] = {-1.453152027, 1.421413741, -0.284496736, 0.254829592};
    LLVMValueRef sum = splat_f32(e, 1.061405429, lanes);
    for (unsigned i = 0; i < 4; i++)
        sum = multiply_add(e, sum, t, splat_f32(e, coefficients[i], lanes));
    LLVMValueRef square = LLVMBuildFNeg(b, LLVMBuildFMul(b, z, z, ""), "");
    LLVMValueRef tail = LLVMBuildFMul(b, LLVMBuildFMul(b, sum, t, ""), emit_exp(e, square, lanes), "");
    LLVMValueRef args[] = {LLVMBuildFSub(b, one, tail, ""), x};
    LLVMValueRef erf = intrinsic(e, "llvm.copysign", LLVMTypeOf(x), args, 2);
    LLVMValueRef half = LLVMBuildFMul(b, x, splat_f32(e, 0.5, lanes), "");
    return multiply_add(e, half, erf, half);
}

// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which is x times a sigmoid
static LLVMValueRef gelu_tanh_of(struct emit *e, LLVMValueRef x, unsigned lanes)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef square = LLVMBuildFMul(b, x, x, "");
    LLVMValueRef inner = multiply_add(e, square, splat_f32(e, 0.044715, lanes), splat_f32(e, 1, lanes));
    inner = LLVMBuildFMul(b, LLVMBuildFMul(b, inner, x, ""), splat_f32(e, 1.5957691216057308, lanes), "");
    return emit_sigmoid(e, inner, x, lanes);
}

// of one product; with a gate this is the gate's factor
static LLVMValueRef activated_plain(struct emit *e, const struct up *up, LLVMValueRef x)
{
    unsigned lanes = e->level->lanes;
    switch ((enum activation)up->activation) { // every word, so that a new one is missed by the C compiler
    case activation_relu:
        return limited(e, x, LLVMRealOLT, 0, lanes);
    case activation_squared_relu:
        x = limited(e, x, LLVMRealOLT, 0, lanes);
        return LLVMBuildFMul(e->builder, x, x, "");
    case activation_gelu:
        return gelu_of(e, x, lanes);
    case activation_gelu_tanh:
        return gelu_tanh_of(e, x, lanes);
    case activation_silu:
        return emit_sigmoid(e, x, x, lanes);
    case activation_clamped_silu: // of a gate alone: the kernel is refused
    case activation_words_count:
        break;
    }
    return NULL;
}

static LLVMValueRef activated(struct emit *e, const struct up *up, LLVMValueRef gate, LLVMValueRef value)
{
    LLVMBuilderRef b = e->builder;
    unsigned lanes = e->level->lanes;
    switch (up->activation) {
    case activation_clamped_silu: {
        double limit = up->kernel->limit;
        gate = limited(e, gate, LLVMRealOGT, limit, lanes);
        value = limited(e, limited(e, value, LLVMRealOGT, limit, lanes), LLVMRealOLT, -limit, lanes);
        LLVMValueRef sharp = LLVMBuildFMul(b, gate, splat_f32(e, up->kernel->alpha, lanes), "");
        value = LLVMBuildFAdd(b, value, splat_f32(e, 1, lanes), "");
        return LLVMBuildFMul(b, emit_sigmoid(e, sharp, gate, lanes), value, "");
    }
    case activation_silu:
        return LLVMBuildFMul(b, emit_sigmoid(e, gate, gate, lanes), value, "");
    default:
        return LLVMBuildFMul(b, activated_plain(e, up, gate), value, "");
    }
}

static void store_hidden(struct emit *e, const struct up *up, LLVMValueRef value, LLVMValueRef to)
{
    if (up->coded.block) // codes are made of them
        store_f32(e, value, to, up->dtype, e->level->lanes);
    else
        store_operand(e, value, to, up->dtype, e->level->lanes);
}

static void finish_up(struct emit *e, const struct gemm *gemm, unsigned rows, LLVMValueRef (*sums)[PANEL_VECTORS],
                      LLVMValueRef *p)
{
    const struct up *up = gemm->user;
    unsigned lanes = e->level->lanes;
    LLVMValueRef bias[PANEL_VECTORS];
    for (unsigned v = 0; v < PANEL_VECTORS && up->biased; v++)
        bias[v] = load_f32(e, offset_const(e, p[2], v * lanes * 4), dtype_f32, lanes);
    for (unsigned r = 0; r < rows; r++) {
        LLVMValueRef to = offset_const(e, p[0], r * up->hidden_stride), weight = NULL;
        if (up->weighted)
            weight = splat(e, load(e, e->f32, offset_const(e, p[1], r * 4), 4), lanes);
        for (unsigned v = 0; v < PANEL_VECTORS; v++) {
            if (weight)
                sums[r][v] = LLVMBuildFMul(e->builder, sums[r][v], weight, "");
            if (up->biased)
                sums[r][v] = LLVMBuildFAdd(e->builder, sums[r][v], bias[v], "");
            if (up->plain)
                store_hidden(e, up, activated_plain(e, up, sums[r][v]),
                             offset_const(e, to, v * lanes * (int64_t)dtype_bytes(up->dtype)));
        }
        if (!up->plain)
            store_hidden(e, up, activated(e, up, sums[r][0], sums[r][1]), to);
    }
}

// first pair and number of pairs of a local expert
static LLVMValueRef expert_rows(struct emit *e, LLVMValueRef expert_first, LLVMValueRef expert, LLVMValueRef *first)
{
    *first = element(e, e->i64, 8, expert_first, expert);
    LLVMValueRef next = LLVMBuildAdd(e->builder, expert, const_i64(e, 1), "");
    return LLVMBuildSub(e->builder, element(e, e->i64, 8, expert_first, next), *first, "");
}

// number of pairs of the expert behind this one; 0: that is `end`
static LLVMValueRef rows_after(struct emit *e, LLVMValueRef expert_first, LLVMValueRef expert, LLVMValueRef end)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef next = LLVMBuildAdd(b, expert, const_i64(e, 1), ""), is_end = LLVMBuildICmp(b, LLVMIntEQ, next, end, ""), first;
    LLVMValueRef rows = expert_rows(e, expert_first, LLVMBuildSelect(b, is_end, expert, next, ""), &first);
    return LLVMBuildSelect(b, is_end, const_i64(e, 0), rows, "");
}

// units one worker takes at a time: enough that the next panel is usually its own, few enough to balance, and whole
// groups of panels for few rows
static int64_t grain_for(int64_t panel)
{
    int64_t grain = 384 * 1024 / panel / WIDE_PANELS * WIDE_PANELS;
    return grain < WIDE_PANELS ? WIDE_PANELS : grain > 2 * WIDE_PANELS ? 2 * WIDE_PANELS : grain;
}

/// Where the weights of the wave's first expert begin.
static LLVMValueRef wave_weights(struct emit *e, LLVMValueRef pairs, LLVMValueRef w, const struct plan_param *weights)
{
    LLVMValueRef first = field(e, e->i64, pairs, offsetof(struct moe_pairs_head, first_expert));
    return offset(e, w, scaled(e, first, weights->bytes));
}

// Blocks [begin, end) of the hidden rows of `rows` pairs, in place: what the activation gave becomes codes and scales.
static void code_hidden(struct emit *e, const struct up *up, LLVMValueRef hidden, LLVMValueRef rows, LLVMValueRef begin,
                        LLVMValueRef end)
{
    struct loop loop = loop_begin(e, const_i64(e, 0), rows, 1, NULL, 0);
    LLVMValueRef row = offset(e, hidden, scaled(e, loop.index, up->hidden_stride));
    pack_blocks(e,
                &(struct wire_row){.plain = row,
                                   .coded = row,
                                   .plain_dtype = up->dtype,
                                   .width = up->features,
                                   .format = up->coded,
                                   .elements = up->dtype},
                begin, end);
    loop_end(e, &loop, NULL);
}

// panels of a unit of work: one, or those of a block of hidden features
static int64_t unit_panels(const struct up *up)
{
    int64_t panel = up->gemm.weights.panel;
    return up->coded.block ? up->coded.block / (up->plain ? panel : panel / 2) : 1;
}

// Units [begin, end): expert after expert, each with the panels that are its own among them.
static void up_body(struct emit *e, const struct up *up, const struct plan_param *bias)
{
    LLVMBuilderRef b = e->builder;
    const struct gemm *gemm = &up->gemm;
    int64_t bytes = plan_panel_bytes(&gemm->weights);
    LLVMValueRef units = const_i64(e, plan_up_units(&gemm->weights, up->coded.block)), one = const_i64(e, 1);
    LLVMValueRef pairs = kernel_argument(e, UP_PAIRS), w = kernel_argument(e, UP_W);
    LLVMValueRef hidden = kernel_argument(e, UP_HIDDEN);
    LLVMValueRef expert_first = field(e, e->ptr, pairs, offsetof(struct moe_pairs_head, expert_first));
    LLVMValueRef pair_weight = field(e, e->ptr, pairs, offsetof(struct moe_pairs_head, pair_weight));
    w = wave_weights(e, pairs, w, &gemm->weights);
    LLVMValueRef biases = up->biased ? wave_weights(e, pairs, kernel_argument(e, UP_ARGS), bias) : NULL;

    LLVMValueRef last = LLVMBuildUDiv(b, LLVMBuildSub(b, e->end, one, ""), units, "");
    LLVMValueRef from = LLVMBuildUDiv(b, e->begin, units, ""), to = LLVMBuildAdd(b, last, one, "");
    struct loop experts = loop_begin(e, from, to, 1, NULL, 0);
    LLVMValueRef unit = LLVMBuildMul(b, experts.index, units, ""), after = LLVMBuildAdd(b, unit, units, "");
    LLVMValueRef begin = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSGT, e->begin, unit, ""), e->begin, unit, "");
    LLVMValueRef end = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, e->end, after, ""), e->end, after, "");
    LLVMValueRef first, rows = expert_rows(e, expert_first, experts.index, &first);
    struct a_rows a = {kernel_argument(e, UP_A), rows, const_i64(e, 0)};
    begin = LLVMBuildSub(b, begin, unit, "");
    end = LLVMBuildSub(b, end, unit, "");
    LLVMValueRef panels = const_i64(e, plan_panels(&gemm->weights)), panel = scaled(e, begin, unit_panels(up));
    LLVMValueRef stop = scaled(e, end, unit_panels(up)), own = LLVMBuildMul(b, experts.index, panels, "");
    stop = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, stop, panels, ""), stop, panels, "");
    LLVMValueRef out = offset(e, hidden, scaled(e, first, up->hidden_stride));
    LLVMValueRef p[TILE_POINTERS] = {offset(e, out, scaled(e, panel, gemm->p_panel[0])),
                                     offset(e, pair_weight, scaled(e, first, 4))};
    if (gemm->by_row) {
        a.after = rows_after(e, expert_first, experts.index, to);
        p[ROW_NUMBERS] = offset(e, field(e, e->ptr, pairs, offsetof(struct moe_pairs_head, pair_row)), scaled(e, first, 4));
    } else {
        a.first = offset(e, a.first, scaled(e, first, gemm->a_stride));
    }
    if (up->biased)
        p[2] = offset(e, offset(e, biases, scaled(e, experts.index, bias->bytes)), scaled(e, panel, gemm->p_panel[2]));
    gemm_rows(e, gemm, a, LLVMBuildSub(b, stop, panel, ""),
              offset(e, w, scaled(e, LLVMBuildAdd(b, own, panel, ""), bytes)),
              offset(e, w, scaled(e, LLVMBuildAdd(b, own, stop, ""), bytes)), p);
    if (up->coded.block)
        code_hidden(e, up, out, rows, begin, end);
    loop_end(e, &experts, NULL);
    LLVMBuildRetVoid(b);
}

void generate_mlp_up(struct emit *e, struct plan_kernel *kernel, const char *name)
{
    const int64_t *n = kernel->n;
    struct up up = {.kernel = kernel,
                    .activation = (uint32_t)n[2],
                    .dtype = (uint32_t)n[3],
                    .hidden_stride = n[5],
                    .weighted = n[6] != 0,
                    .plain = (n[7] & MLP_PLAIN) != 0,
                    .biased = (n[7] & MLP_HAS_BIAS) != 0,
                    .coded = wire_of_code(n[11]),
                    .features = n[1]};
    up.gemm = (struct gemm){
        .a_dtype = up.dtype,
        .weights = expert_weights(e, up.dtype, n + 8, up.plain ? n[1] : 2 * n[1], n[0], !up.plain),
        .k = n[0],
        .a_stride = n[4],
        .by_row = (n[7] & MLP_BY_ROW) != 0,
        .row_scales = n[11] ? moe_codes_bytes(n[0], dtype_bytes(up.dtype)) : 0,
        .most_rows = tile_rows(e, up.dtype),
        .prefetches = true,
        .finish = finish_up,
        .user = &up,
    };
    struct plan_param bias = bias_panels(e, &up.gemm.weights);
    int64_t out_bytes = (up.plain ? bias.panel : bias.panel / 2) * (int64_t)dtype_bytes(up.dtype);
    memcpy(up.gemm.p_row, (int64_t[TILE_POINTERS]){up.hidden_stride, 4, 0, 4}, sizeof up.gemm.p_row);
    memcpy(up.gemm.p_panel, (int64_t[TILE_POINTERS]){out_bytes, 0, bias.panel * 4}, sizeof up.gemm.p_panel);
    gemm_tiles(e, &up.gemm, context_printf(e->context, "%s_tile", name));

    kernel_function(e, name);
    up_body(e, &up, &bias);

    int64_t bytes = plan_panel_bytes(&up.gemm.weights);
    kernel->unit = work_unit_fixed;
    kernel->unit_count = plan_up_units(&up.gemm.weights, up.coded.block);
    kernel->scratch_bytes = gemm_scratch(&up.gemm);
    kernel->grain = up.coded.block ? 1 : grain_for(bytes);
}

struct down {
    struct gemm gemm;
    uint32_t result; // dtype
    int64_t width, acc_stride;
    bool unweighted; // the weight is in the hidden activations already
    bool biased;
};

// where the sums of row r of a tile go: acc[pair_row[r]]
static LLVMValueRef sum_of_row(struct emit *e, const struct down *down, unsigned r, LLVMValueRef *p)
{
    LLVMValueRef row = load(e, e->i32, offset_const(e, p[1], r * 4), 4);
    return offset(e, p[0], scaled(e, LLVMBuildZExt(e->builder, row, e->i64, ""), down->acc_stride));
}

// The experts before this one have left the sums in a farther cache.
static void prepare_down(struct emit *e, const struct gemm *gemm, unsigned rows, LLVMValueRef *p)
{
    for (unsigned r = 0; r < rows; r++) {
        LLVMValueRef acc = sum_of_row(e, gemm->user, r, p);
        for (unsigned at = 0; at < gemm->weights.panel * 4; at += 64)
            prefetch(e, offset_const(e, acc, at), PREFETCH_L2);
    }
}

// acc[pair_row[r]] += pair_weight[r] * (sum + bias); all are read before any is stored, since a read whose address has a
// store's lowest bits, as rows' addresses can, waits for that store
static void finish_down(struct emit *e, const struct gemm *gemm, unsigned rows, LLVMValueRef (*sums)[PANEL_VECTORS],
                        LLVMValueRef *p)
{
    const struct down *down = gemm->user;
    unsigned lanes = e->level->lanes;
    LLVMValueRef bias[PANEL_VECTORS];
    for (unsigned v = 0; v < PANEL_VECTORS && down->biased; v++)
        bias[v] = load_f32(e, offset_const(e, p[3], v * lanes * 4), dtype_f32, lanes);
    LLVMValueRef acc[TILE_ROWS_MAX];
    for (unsigned r = 0; r < rows; r++) {
        LLVMValueRef weight = splat(e, load(e, e->f32, offset_const(e, p[2], r * 4), 4), lanes);
        acc[r] = sum_of_row(e, down, r, p);
        for (unsigned v = 0; v < PANEL_VECTORS; v++) {
            LLVMValueRef old = load_f32(e, offset_const(e, acc[r], v * lanes * 4), dtype_f32, lanes);
            if (down->biased)
                sums[r][v] = LLVMBuildFAdd(e->builder, sums[r][v], bias[v], "");
            sums[r][v] = down->unweighted ? LLVMBuildFAdd(e->builder, sums[r][v], old, "")
                                          : multiply_add(e, weight, sums[r][v], old);
        }
    }
    for (unsigned r = 0; r < rows; r++)
        for (unsigned v = 0; v < PANEL_VECTORS; v++)
            store_f32(e, sums[r][v], offset_const(e, acc[r], v * lanes * 4), dtype_f32, lanes);
}

// zeroes the columns of units [begin, end) in every row
static void clear_columns(struct emit *e, const struct down *down, LLVMValueRef rows, LLVMValueRef acc)
{
    unsigned lanes = e->level->lanes;
    LLVMValueRef columns = scaled(e, LLVMBuildSub(e->builder, e->end, e->begin, ""), down->gemm.weights.panel);
    struct loop loop = loop_begin(e, const_i64(e, 0), rows, 1, NULL, 0);
    LLVMValueRef row = offset(e, acc, scaled(e, loop.index, down->acc_stride));
    struct loop at = loop_begin(e, const_i64(e, 0), columns, lanes, NULL, 0);
    store_f32(e, splat_f32(e, 0, lanes), offset(e, row, scaled(e, at.index, 4)), dtype_f32, lanes);
    loop_end(e, &at, NULL);
    loop_end(e, &loop, NULL);
}

// rounds `columns` columns of a finished sum and stores them where the row's sum belongs
static void store_columns(struct emit *e, const struct down *down, LLVMValueRef from, LLVMValueRef to, int64_t columns)
{
    unsigned bytes = (unsigned)dtype_bytes(down->result);
    for (int64_t at = 0; at < columns;) {
        unsigned lanes = columns - at < e->level->lanes ? (unsigned)(columns - at) : e->level->lanes;
        LLVMValueRef sum = load_f32(e, offset_const(e, from, at * 4), dtype_f32, lanes);
        store_f32(e, sum, offset_const(e, to, at * bytes), down->result, lanes);
        at += lanes;
    }
}

// what units [begin, end) have summed up, row by row
static void store_rows(struct emit *e, const struct down *down, LLVMValueRef rows, LLVMValueRef acc, LLVMValueRef row_dst)
{
    int64_t columns = down->gemm.weights.panel, whole = down->width / columns, rest = down->width % columns;
    unsigned bytes = (unsigned)dtype_bytes(down->result);
    LLVMValueRef has_rest = LLVMBuildICmp(e->builder, LLVMIntSGT, e->end, const_i64(e, whole), "");
    LLVMValueRef end = LLVMBuildSelect(e->builder, has_rest, const_i64(e, whole), e->end, "");
    struct loop loop = loop_begin(e, const_i64(e, 0), rows, 1, NULL, 0);
    LLVMValueRef from = offset(e, acc, scaled(e, loop.index, down->acc_stride));
    LLVMValueRef to = element(e, e->ptr, 8, row_dst, loop.index);
    struct loop units = loop_begin(e, e->begin, end, 1, NULL, 0);
    store_columns(e, down, offset(e, from, scaled(e, units.index, columns * 4)),
                  offset(e, to, scaled(e, units.index, columns * bytes)), columns);
    loop_end(e, &units, NULL);
    if (rest) {
        LLVMBasicBlockRef after = if_begin(e, has_rest);
        store_columns(e, down, offset_const(e, from, whole * columns * 4), offset_const(e, to, whole * columns * bytes),
                      rest);
        if_end(e, after);
    }
    loop_end(e, &loop, NULL);
}

static void down_body(struct emit *e, const struct down *down)
{
    const struct plan_param *weights = &down->gemm.weights;
    LLVMValueRef pairs = kernel_argument(e, DOWN_PAIRS), hidden = kernel_argument(e, DOWN_HIDDEN);
    LLVMValueRef w = kernel_argument(e, DOWN_W), accumulator = kernel_argument(e, DOWN_ACC);
    LLVMValueRef experts = field(e, e->i64, pairs, offsetof(struct moe_pairs_head, experts));
    LLVMValueRef expert_first = field(e, e->ptr, pairs, offsetof(struct moe_pairs_head, expert_first));
    LLVMValueRef pair_row = field(e, e->ptr, pairs, offsetof(struct moe_pairs_head, pair_row));
    LLVMValueRef pair_weight = field(e, e->ptr, pairs, offsetof(struct moe_pairs_head, pair_weight));
    LLVMValueRef rows = field(e, e->i64, pairs, offsetof(struct moe_pairs_head, rows));
    LLVMValueRef row_dst = field(e, e->ptr, pairs, offsetof(struct moe_pairs_head, row_dst));
    w = wave_weights(e, pairs, w, weights);
    struct plan_param bias = bias_panels(e, weights);
    LLVMValueRef biases = down->biased ? wave_weights(e, pairs, kernel_argument(e, DOWN_ARGS), &bias) : NULL;

    LLVMValueRef acc = offset(e, accumulator, scaled(e, e->begin, weights->panel * 4));
    LLVMValueRef column = offset(e, w, scaled(e, e->begin, plan_panel_bytes(weights)));
    clear_columns(e, down, rows, acc);
    struct loop loop = loop_begin(e, const_i64(e, 0), experts, 1, NULL, 0);
    LLVMValueRef first, count = expert_rows(e, expert_first, loop.index, &first);
    LLVMValueRef own = offset(e, column, scaled(e, loop.index, weights->bytes));
    LLVMValueRef p[TILE_POINTERS] = {acc, offset(e, pair_row, scaled(e, first, 4)),
                                     offset(e, pair_weight, scaled(e, first, 4))};
    if (down->biased)
        p[3] = offset(e, offset(e, biases, scaled(e, loop.index, bias.bytes)), scaled(e, e->begin, bias.panel * 4));
    struct a_rows a = {offset(e, hidden, scaled(e, first, down->gemm.a_stride)), count, const_i64(e, 0)};
    gemm_rows(e, &down->gemm, a, LLVMBuildSub(e->builder, e->end, e->begin, ""), own, offset_const(e, own, weights->bytes), p);
    loop_end(e, &loop, NULL);
    store_rows(e, down, rows, accumulator, row_dst);
    LLVMBuildRetVoid(e->builder);
}

void generate_mlp_down(struct emit *e, struct plan_kernel *kernel, const char *name)
{
    const int64_t *n = kernel->n;
    uint32_t dtype = (uint32_t)n[2];
    struct down down = {.result = (uint32_t)n[3], .width = n[1], .acc_stride = n[5], .unweighted = n[6] != 0,
                        .biased = (n[7] & MLP_HAS_BIAS) != 0};
    down.gemm = (struct gemm){
        .a_dtype = dtype,
        .weights = expert_weights(e, dtype, n + 8, n[1], n[0], false),
        .k = n[0],
        .a_stride = n[4],
        .row_scales = n[11] ? moe_codes_bytes(n[0], dtype_bytes(dtype)) : 0,
        .most_rows = tile_rows(e, dtype),
        .prefetches = true,
        .prepare = prepare_down,
        .finish = finish_down,
        .user = &down,
    };
    int64_t columns = down.gemm.weights.panel * 4; // of the accumulator and the biases
    memcpy(down.gemm.p_row, (int64_t[TILE_POINTERS]){0, 4, 4}, sizeof down.gemm.p_row);
    memcpy(down.gemm.p_panel, (int64_t[TILE_POINTERS]){columns, 0, 0, columns}, sizeof down.gemm.p_panel);
    gemm_tiles(e, &down.gemm, context_printf(e->context, "%s_tile", name));
    kernel_function(e, name);
    down_body(e, &down);

    kernel->unit = work_unit_fixed;
    kernel->unit_count = plan_panels(&down.gemm.weights);
    kernel->scratch_bytes = gemm_scratch(&down.gemm);
    kernel->grain = WIDE_PANELS;
}
