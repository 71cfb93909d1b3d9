// The router kernel: scores of all experts for a few tokens at a time, then for each token the k best and their
// weights. Chosen by exact comparison of f32 scores (with a bias: of score + bias); equal scores: the lower id; NaN ranks
// below everything. With groups, the best groups are chosen the same way first, and the experts of the others are out,
// whatever their scores. Weights are the scores without the bias.
#include "scores.h"

#include <math.h>

enum { ROUTE_TILE = 4 }; // tokens whose scores are computed together

// Sort keys: the bits of a float, the negative ones reversed, order like integers.
enum { KEY_TAKEN = INT32_MIN, KEY_NAN = INT32_MIN + 1 };

// A vector added to all experts' scores: a parameter, or one number for all.
struct route_bias {
    LLVMValueRef values; // NULL: `number`
    double number;
};

struct route {
    struct gemm gemm;
    int64_t experts, choices, columns, chosen_columns; // columns: padded to whole vectors
    int64_t groups, group_choices, group_columns;
    uint32_t score, group_score;
    bool normalize;
    double scale;
    struct route_bias bias, logit_bias;
    double noise, temperature;
    int64_t seed;
    LLVMValueRef keys, chosen, group_keys, factors; // scratch
};

static void finish_scores(struct emit *e, const struct gemm *gemm, unsigned rows, LLVMValueRef (*sums)[PANEL_VECTORS],
                          LLVMValueRef *p)
{
    const struct route *route = gemm->user;
    unsigned lanes = e->level->lanes;
    for (unsigned r = 0; r < rows; r++)
        for (unsigned v = 0; v < PANEL_VECTORS; v++)
            store_f32(e, sums[r][v], offset_const(e, p[0], (r * route->columns + v * lanes) * 4), dtype_f32, lanes);
}

static LLVMValueRef horizontal(struct emit *e, const char *name, LLVMValueRef vector)
{
    return intrinsic(e, name, LLVMTypeOf(vector), &vector, 1);
}

static LLVMValueRef horizontal_sum(struct emit *e, LLVMValueRef vector)
{
    LLVMValueRef args[] = {LLVMConstReal(e->f32, 0), vector}; // lane by lane: a fixed order
    return intrinsic(e, "llvm.vector.reduce.fadd", LLVMTypeOf(vector), args, 2);
}

// overwrites [used, columns) of an array of 32-bit values
static void pad(struct emit *e, LLVMValueRef array, int64_t used, int64_t columns, uint32_t bits)
{
    unsigned lanes = e->level->lanes;
    for (int64_t first = used / lanes * lanes; first < columns; first += lanes) {
        LLVMValueRef keep[64];
        for (unsigned i = 0; i < lanes; i++)
            keep[i] = LLVMConstInt(LLVMInt1TypeInContext(e->llvm), first + i < used, false);
        LLVMValueRef at = offset_const(e, array, first * 4);
        LLVMValueRef old = load(e, vector_of(e->i32, lanes), at, 4);
        store(e, LLVMBuildSelect(e->builder, LLVMConstVector(keep, lanes), old, splat_i32(e, bits, lanes), ""), at, 4);
    }
}

static LLVMValueRef vector_at(struct emit *e, LLVMValueRef array, LLVMValueRef index)
{
    return offset(e, array, scaled(e, index, 4));
}

static LLVMValueRef maximum(struct emit *e, LLVMValueRef array, int64_t columns)
{
    unsigned lanes = e->level->lanes;
    LLVMValueRef most = splat_f32(e, -INFINITY, lanes);
    struct loop loop = loop_begin_once(e, 0, columns, lanes, &most, 1);
    LLVMValueRef value = load_f32(e, vector_at(e, array, loop.index), dtype_f32, lanes);
    LLVMValueRef more = LLVMBuildFCmp(e->builder, LLVMRealOGT, value, most, "");
    most = LLVMBuildSelect(e->builder, more, value, most, "");
    loop_end(e, &loop, &most);
    return horizontal(e, "llvm.vector.reduce.fmax", most);
}

// array = exp(array - shift); returns the sum
static LLVMValueRef exponentials(struct emit *e, LLVMValueRef array, int64_t columns, LLVMValueRef shift)
{
    unsigned lanes = e->level->lanes;
    LLVMValueRef shifts = splat(e, shift, lanes), sum = splat_f32(e, 0, lanes);
    struct loop loop = loop_begin_once(e, 0, columns, lanes, &sum, 1);
    LLVMValueRef at = vector_at(e, array, loop.index);
    LLVMValueRef power = emit_exp(e, LLVMBuildFSub(e->builder, load_f32(e, at, dtype_f32, lanes), shifts, ""), lanes);
    store_f32(e, power, at, dtype_f32, lanes);
    sum = LLVMBuildFAdd(e->builder, sum, power, "");
    loop_end(e, &loop, &sum);
    return horizontal_sum(e, sum);
}

// array = array / divisor * scale
static void divide(struct emit *e, LLVMValueRef array, int64_t columns, LLVMValueRef divisor, double scale)
{
    unsigned lanes = e->level->lanes;
    LLVMValueRef divisors = divisor ? splat(e, divisor, lanes) : NULL;
    struct loop loop = loop_begin_once(e, 0, columns, lanes, NULL, 0);
    LLVMValueRef at = vector_at(e, array, loop.index);
    LLVMValueRef value = load_f32(e, at, dtype_f32, lanes);
    if (divisor)
        value = LLVMBuildFDiv(e->builder, value, divisors, "");
    store_f32(e, LLVMBuildFMul(e->builder, value, splat_f32(e, scale, lanes), ""), at, dtype_f32, lanes);
    loop_end(e, &loop, NULL);
}

// array = 1 / (1 + exp(-array))
static void sigmoids(struct emit *e, LLVMValueRef array, int64_t columns)
{
    unsigned lanes = e->level->lanes;
    struct loop loop = loop_begin_once(e, 0, columns, lanes, NULL, 0);
    LLVMValueRef at = vector_at(e, array, loop.index);
    LLVMValueRef score = emit_sigmoid(e, load_f32(e, at, dtype_f32, lanes), splat_f32(e, 1, lanes), lanes);
    store_f32(e, score, at, dtype_f32, lanes);
    loop_end(e, &loop, NULL);
}

static bool has_bias(const struct route_bias *bias)
{
    return bias->values || bias->number != 0;
}

// The bias of the experts from `index` on. A parameter is padded to whole 64-byte lines, not to all columns.
static LLVMValueRef bias_at(struct emit *e, const struct route_bias *bias, LLVMValueRef index)
{
    unsigned lanes = e->level->lanes;
    if (!bias->values)
        return splat_f32(e, bias->number, lanes);
    return load_f32(e, vector_at(e, bias->values, index), dtype_f32, lanes);
}

static int64_t whole_vectors(const struct emit *e, int64_t count)
{
    int64_t lanes = e->level->lanes;
    return (count + lanes - 1) / lanes * lanes;
}

static void add_logit_bias(struct emit *e, const struct route *route, LLVMValueRef scores)
{
    unsigned lanes = e->level->lanes;
    struct loop loop = loop_begin_once(e, 0, whole_vectors(e, route->experts), lanes, NULL, 0);
    LLVMValueRef at = vector_at(e, scores, loop.index), bias = bias_at(e, &route->logit_bias, loop.index);
    store_f32(e, LLVMBuildFAdd(e->builder, load_f32(e, at, dtype_f32, lanes), bias, ""), at, dtype_f32, lanes);
    loop_end(e, &loop, NULL);
}

// A key from a float and back; works on scalars and on vectors of `lanes`.
static LLVMValueRef flip_negative(struct emit *e, LLVMValueRef bits, LLVMValueRef sign_shift, LLVMValueRef mask)
{
    LLVMValueRef sign = LLVMBuildAShr(e->builder, bits, sign_shift, "");
    return LLVMBuildXor(e->builder, bits, LLVMBuildAnd(e->builder, sign, mask, ""), "");
}

static LLVMValueRef key_of_float(struct emit *e, LLVMValueRef value) // scalar
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef bits = LLVMBuildBitCast(b, LLVMBuildFAdd(b, value, LLVMConstReal(e->f32, 0), ""), e->i32, "");
    LLVMValueRef key = flip_negative(e, bits, const_i32(e, 31), const_i32(e, INT32_MAX));
    LLVMValueRef nan = LLVMBuildFCmp(b, LLVMRealUNO, value, value, "");
    return LLVMBuildSelect(b, nan, const_i32(e, KEY_NAN), key, "");
}

static LLVMValueRef float_of_key(struct emit *e, LLVMValueRef key) // scalar; KEY_NAN and KEY_TAKEN give NaN
{
    LLVMValueRef bits = flip_negative(e, key, const_i32(e, 31), const_i32(e, INT32_MAX));
    return LLVMBuildBitCast(e->builder, bits, e->f32, "");
}

/// `noise`: the token's, NULL where there is none.
static void sort_keys(struct emit *e, const struct route *route, LLVMValueRef scores, LLVMValueRef noise)
{
    LLVMBuilderRef b = e->builder;
    unsigned lanes = e->level->lanes;
    struct loop loop = loop_begin_once(e, 0, whole_vectors(e, route->experts), lanes, NULL, 0);
    LLVMValueRef value = load_f32(e, vector_at(e, scores, loop.index), dtype_f32, lanes);
    if (has_bias(&route->bias))
        value = LLVMBuildFAdd(b, value, bias_at(e, &route->bias, loop.index), "");
    if (noise)
        value = LLVMBuildFAdd(b, value, noise_of_experts(e, noise, loop.index, route->noise), "");
    LLVMValueRef bits = f32_to_bits(e, LLVMBuildFAdd(b, value, splat_f32(e, 0, lanes), "")); // -0 becomes 0
    LLVMValueRef key = flip_negative(e, bits, splat_i32(e, 31, lanes), splat_i32(e, INT32_MAX, lanes));
    LLVMValueRef nan = LLVMBuildFCmp(b, LLVMRealUNO, value, value, "");
    key = LLVMBuildSelect(b, nan, splat_i32(e, (uint32_t)KEY_NAN, lanes), key, "");
    store(e, key, vector_at(e, route->keys, loop.index), 4);
    loop_end(e, &loop, NULL);
    pad(e, route->keys, route->experts, route->columns, (uint32_t)KEY_TAKEN);
}

static LLVMValueRef largest_key(struct emit *e, LLVMValueRef array, int64_t columns)
{
    unsigned lanes = e->level->lanes;
    LLVMValueRef most = splat_i32(e, (uint32_t)KEY_TAKEN, lanes);
    struct loop loop = loop_begin_once(e, 0, columns, lanes, &most, 1);
    LLVMValueRef key = load(e, vector_of(e->i32, lanes), vector_at(e, array, loop.index), 4);
    most = LLVMBuildSelect(e->builder, LLVMBuildICmp(e->builder, LLVMIntSGT, key, most, ""), key, most, "");
    loop_end(e, &loop, &most);
    return horizontal(e, "llvm.vector.reduce.smax", most);
}

// the lowest index of a key
static LLVMValueRef first_with_key(struct emit *e, LLVMValueRef array, int64_t columns, LLVMValueRef key)
{
    LLVMBuilderRef b = e->builder;
    unsigned lanes = e->level->lanes;
    LLVMValueRef wanted = splat(e, key, lanes), least = splat_i32(e, INT32_MAX, lanes), ids[64];
    for (unsigned i = 0; i < lanes; i++)
        ids[i] = const_i32(e, i);
    struct loop loop = loop_begin_once(e, 0, columns, lanes, &least, 1);
    LLVMValueRef keys = load(e, vector_of(e->i32, lanes), vector_at(e, array, loop.index), 4);
    LLVMValueRef base = splat(e, LLVMBuildTrunc(b, loop.index, e->i32, ""), lanes);
    LLVMValueRef id = LLVMBuildAdd(b, base, LLVMConstVector(ids, lanes), "");
    LLVMValueRef equal = LLVMBuildICmp(b, LLVMIntEQ, keys, wanted, "");
    id = LLVMBuildSelect(b, equal, id, splat_i32(e, INT32_MAX, lanes), "");
    least = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, id, least, ""), id, least, "");
    loop_end(e, &loop, &least);
    return horizontal(e, "llvm.vector.reduce.smin", least);
}

// The index of the best key, which is taken out.
static LLVMValueRef take_best(struct emit *e, LLVMValueRef array, int64_t columns)
{
    LLVMValueRef id = first_with_key(e, array, columns, largest_key(e, array, columns));
    LLVMValueRef wide = LLVMBuildZExt(e->builder, id, e->i64, "");
    store(e, const_i32(e, KEY_TAKEN), vector_at(e, array, wide), 4);
    return id;
}

static LLVMValueRef greater(struct emit *e, LLVMValueRef a, LLVMValueRef b, bool wanted)
{
    LLVMValueRef more = LLVMBuildICmp(e->builder, LLVMIntSGT, a, b, "");
    return wanted ? LLVMBuildSelect(e->builder, more, a, b, "") : LLVMBuildSelect(e->builder, more, b, a, "");
}

// The key of a group's score: its largest key, or that of the sum of its two best scores.
static LLVMValueRef group_key(struct emit *e, const struct route *route, LLVMValueRef group)
{
    int64_t size = route->experts / route->groups;
    LLVMValueRef best[2] = {const_i32(e, KEY_TAKEN), const_i32(e, KEY_TAKEN)};
    LLVMValueRef keys = offset(e, route->keys, scaled(e, group, size * 4));
    struct loop loop = loop_begin_once(e, 0, size, 1, best, 2);
    LLVMValueRef key = element(e, e->i32, 4, keys, loop.index);
    best[1] = greater(e, best[1], greater(e, best[0], key, false), true);
    best[0] = greater(e, best[0], key, true);
    loop_end(e, &loop, best);
    if (route->group_score == group_score_max || size == 1)
        return best[0];
    return key_of_float(e, LLVMBuildFAdd(e->builder, float_of_key(e, best[0]), float_of_key(e, best[1]), ""));
}

// Takes out the experts of all but the best groups.
static void keep_groups(struct emit *e, const struct route *route)
{
    int64_t size = route->experts / route->groups;
    pad(e, route->group_keys, 0, route->group_columns, (uint32_t)KEY_TAKEN);
    struct loop scored = loop_begin_once(e, 0, route->groups, 1, NULL, 0);
    store(e, group_key(e, route, scored.index), vector_at(e, route->group_keys, scored.index), 4);
    loop_end(e, &scored, NULL);
    struct loop kept = loop_begin_once(e, 0, route->group_choices, 1, NULL, 0);
    take_best(e, route->group_keys, route->group_columns);
    loop_end(e, &kept, NULL);

    struct loop each = loop_begin_once(e, 0, route->groups, 1, NULL, 0);
    LLVMValueRef left = LLVMBuildICmp(e->builder, LLVMIntNE, element(e, e->i32, 4, route->group_keys, each.index),
                                      const_i32(e, KEY_TAKEN), "");
    LLVMValueRef keys = offset(e, route->keys, scaled(e, each.index, size * 4));
    LLVMBasicBlockRef after = if_begin(e, left);
    struct loop out = loop_begin_once(e, 0, size, 1, NULL, 0);
    store(e, const_i32(e, KEY_TAKEN), vector_at(e, keys, out.index), 4);
    loop_end(e, &out, NULL);
    if_end(e, after);
    loop_end(e, &each, NULL);
}

// Sparsemixer (Phi-3.5): an expert's weight is its share of the softmax over the experts left whose scores are within 2%
// of its own, relative to the larger of its score and theirs. `best` itself is taken out already.
static LLVMValueRef sparse_weight(struct emit *e, const struct route *route, LLVMValueRef scores, LLVMValueRef best)
{
    LLVMBuilderRef b = e->builder;
    unsigned lanes = e->level->lanes;
    LLVMValueRef bests = splat(e, best, lanes), zero = splat_f32(e, 0, lanes), sum = zero;
    struct loop loop = loop_begin_once(e, 0, route->columns, lanes, &sum, 1);
    LLVMValueRef score = load_f32(e, vector_at(e, scores, loop.index), dtype_f32, lanes);
    LLVMValueRef key = load(e, vector_of(e->i32, lanes), vector_at(e, route->keys, loop.index), 4);
    LLVMValueRef below = LLVMBuildFSub(b, bests, score, ""),
                 size = intrinsic(e, "llvm.fabs", LLVMTypeOf(score), &score, 1);
    size = LLVMBuildSelect(b, LLVMBuildFCmp(b, LLVMRealOLT, size, bests, ""), bests, size, "");
    LLVMValueRef far = LLVMBuildFCmp(b, LLVMRealOGT, LLVMBuildFDiv(b, below, size, ""), splat_f32(e, 0.02, lanes), "");
    LLVMValueRef taken = LLVMBuildICmp(b, LLVMIntEQ, key, splat_i32(e, (uint32_t)KEY_TAKEN, lanes), "");
    LLVMValueRef share = emit_exp(e, LLVMBuildFNeg(b, below, ""), lanes);
    sum = LLVMBuildFAdd(b, sum, LLVMBuildSelect(b, LLVMBuildOr(b, far, taken, ""), zero, share, ""), "");
    loop_end(e, &loop, &sum);
    LLVMValueRef one = LLVMConstReal(e->f32, 1);
    return LLVMBuildFDiv(b, one, LLVMBuildFAdd(b, one, horizontal_sum(e, sum), ""), "");
}

// ids of the best scores, best first; their scores to route->chosen. Returns the sum of the chosen scores.
static LLVMValueRef choose(struct emit *e, const struct route *route, LLVMValueRef scores, LLVMValueRef ids)
{
    LLVMValueRef sum = LLVMConstReal(e->f32, 0);
    struct loop loop = loop_begin_once(e, 0, route->choices, 1, &sum, 1);
    LLVMValueRef id = take_best(e, route->keys, route->columns);
    LLVMValueRef score = element(e, e->f32, 4, scores, LLVMBuildZExt(e->builder, id, e->i64, ""));
    if (route->score == score_sparsemixer)
        score = sparse_weight(e, route, scores, score);
    store(e, id, vector_at(e, ids, loop.index), 4);
    store(e, score, vector_at(e, route->chosen, loop.index), 4);
    sum = LLVMBuildFAdd(e->builder, sum, score, "");
    loop_end(e, &loop, &sum);
    return sum;
}

// What the chosen scores are divided by: their sum, kept away from 0 the way the models do it.
static LLVMValueRef divisor(struct emit *e, const struct route *route, LLVMValueRef sum)
{
    if (!route->normalize || route->score == score_sparsemixer)
        return NULL;
    if (route->score == score_sigmoid) // DeepSeek-V3
        return LLVMBuildFAdd(e->builder, sum, LLVMConstReal(e->f32, 1e-20), "");
    LLVMValueRef least = LLVMConstReal(e->f32, 1e-12); // ERNIE; NaN stays
    LLVMValueRef tiny = LLVMBuildFCmp(e->builder, LLVMRealOLT, sum, least, "");
    return LLVMBuildSelect(e->builder, tiny, least, sum, "");
}

/// x: the token's row; token: its place among the launch's.
static void route_token(struct emit *e, const struct route *route, LLVMValueRef x, LLVMValueRef token,
                        LLVMValueRef scores, LLVMValueRef ids, LLVMValueRef weights)
{
    const uint32_t minus_infinity = 0xff800000;
    if (route->score == score_cosine)
        scale_to_cosine(e, scores, route->columns, route->factors, x, route->gemm.k, route->gemm.a_dtype);
    if (has_bias(&route->logit_bias))
        add_logit_bias(e, route, scores);
    pad(e, scores, route->experts, route->columns, minus_infinity);
    if (route->score == score_softmax || route->score == score_cosine) {
        LLVMValueRef sum = exponentials(e, scores, route->columns, maximum(e, scores, route->columns));
        divide(e, scores, route->columns, sum, 1);
    } else if (route->score == score_sigmoid) {
        sigmoids(e, scores, route->columns);
    }
    sort_keys(e, route, scores, route->noise > 0 ? noise_of_token(e, route->seed, token) : NULL);
    if (route->group_choices < route->groups)
        keep_groups(e, route);
    LLVMValueRef sum = choose(e, route, scores, ids);
    if (route->score == score_softmax_after) {
        pad(e, route->chosen, route->choices, route->chosen_columns, minus_infinity);
        LLVMValueRef best = maximum(e, route->chosen, route->chosen_columns); // with a bias not always the first
        sum = exponentials(e, route->chosen, route->chosen_columns, best);
    } else {
        sum = divisor(e, route, sum);
    }
    divide(e, route->chosen, route->chosen_columns, sum, route->scale);
    struct loop loop = loop_begin_once(e, 0, route->choices, 1, NULL, 0);
    store(e, element(e, e->f32, 4, route->chosen, loop.index), vector_at(e, weights, loop.index), 4);
    loop_end(e, &loop, NULL);
}

static void route_tokens(struct emit *e, const struct route *route)
{
    LLVMBuilderRef b = e->builder;
    const struct gemm *gemm = &route->gemm;
    LLVMValueRef x = kernel_argument(e, ROUTE_X), w = kernel_argument(e, ROUTE_W);
    LLVMValueRef ids = kernel_argument(e, ROUTE_IDS), weights = kernel_argument(e, ROUTE_WEIGHTS);
    if (route->score == score_cosine)
        expert_factors(e, &gemm->weights, w, route->temperature, route->factors);
    struct loop tiles = loop_begin(e, e->begin, e->end, ROUTE_TILE, NULL, 0);
    LLVMValueRef left = LLVMBuildSub(b, e->end, tiles.index, ""), most = const_i64(e, ROUTE_TILE);
    LLVMValueRef rows = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, left, most, ""), left, most, "");
    LLVMValueRef a = offset(e, x, scaled(e, tiles.index, gemm->a_stride));

    LLVMValueRef p[TILE_POINTERS] = {e->scratch};
    gemm_rows(e, gemm, (struct a_rows){a, rows, const_i64(e, 0)}, const_i64(e, plan_panels(&gemm->weights)), w, w, p);

    struct loop each = loop_begin(e, const_i64(e, 0), rows, 1, NULL, 0);
    LLVMValueRef scores = offset(e, e->scratch, scaled(e, each.index, route->columns * 4));
    LLVMValueRef token = LLVMBuildAdd(b, tiles.index, each.index, ""), out = scaled(e, token, route->choices * 4);
    route_token(e, route, offset(e, x, scaled(e, token, gemm->a_stride)), token, scores, offset(e, ids, out), offset(e, weights, out));
    loop_end(e, &each, NULL);
    loop_end(e, &tiles, NULL);
}

void generate_route(struct emit *e, struct plan_kernel *kernel, const char *name)
{
    const int64_t *n = kernel->n;
    struct route route = {.experts = n[1],
                          .choices = n[2],
                          .score = (uint32_t)n[3],
                          .normalize = n[4] != 0,
                          .scale = kernel->scale,
                          .groups = n[6],
                          .group_choices = n[7],
                          .group_score = (uint32_t)n[8],
                          .bias.number = kernel->alpha,
                          .logit_bias.number = kernel->limit,
                          .noise = kernel->noise,
                          .temperature = kernel->temperature,
                          .seed = kernel->seed};
    route.gemm = (struct gemm){
        .a_dtype = (uint32_t)n[5],
        .weights = kernel_weights(e, dtype_f32, n[1], n[0], false, true),
        .k = n[0],
        .a_stride = n[0] * dtype_bytes((uint32_t)n[5]),
        .most_rows = ROUTE_TILE,
        .finish = finish_scores,
        .user = &route,
    };
    route.columns = plan_panels(&route.gemm.weights) * route.gemm.weights.panel;
    route.gemm.p_row[0] = route.columns * 4;
    route.gemm.p_panel[0] = route.gemm.weights.panel * 4;
    route.chosen_columns = whole_vectors(e, route.choices);
    route.group_columns = whole_vectors(e, route.groups);
    gemm_tiles(e, &route.gemm, context_printf(e->context, "%s_tile", name));

    kernel_function(e, name);
    route.keys = offset_const(e, e->scratch, ROUTE_TILE * route.columns * 4);
    route.chosen = offset_const(e, route.keys, route.columns * 4);
    route.group_keys = offset_const(e, route.chosen, route.chosen_columns * 4);
    route.factors = offset_const(e, route.group_keys, route.group_columns * 4);
    unsigned argument = ROUTE_ARGS;
    if (n[9] & ROUTE_HAS_BIAS)
        route.bias.values = kernel_argument(e, argument++);
    if (n[9] & ROUTE_HAS_LOGIT_BIAS)
        route.logit_bias.values = kernel_argument(e, argument++);
    route_tokens(e, &route);
    LLVMBuildRetVoid(e->builder);

    kernel->unit = work_unit_tokens;
    kernel->grain = route.score == score_cosine ? 16 * ROUTE_TILE : ROUTE_TILE; // each call norms the experts' vectors
    kernel->scratch_bytes = ((ROUTE_TILE + 2) * route.columns + route.chosen_columns + route.group_columns) * 4;
    kernel->scratch_bytes = (kernel->scratch_bytes + 63) / 64 * 64;
}
