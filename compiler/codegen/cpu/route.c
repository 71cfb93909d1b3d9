// The router kernel: scores of all experts for a few tokens at a time, then for each token the k best and their
// weights. Chosen by exact comparison of f32 scores; equal scores: the lower id; NaN ranks below everything.
#include "gemm.h"

#include <math.h>

enum { ROUTE_TILE = 4 }; // tokens whose scores are computed together

// Sort keys: the bits of a float, the negative ones reversed, order like integers.
enum { KEY_TAKEN = INT32_MIN, KEY_NAN = INT32_MIN + 1 };

struct route {
    struct gemm gemm;
    int64_t experts, choices, columns, chosen_columns; // columns: padded to whole vectors
    uint32_t score;
    bool normalize;
    double scale;
    LLVMValueRef keys, chosen; // scratch
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

static void sort_keys(struct emit *e, const struct route *route, LLVMValueRef scores)
{
    LLVMBuilderRef b = e->builder;
    unsigned lanes = e->level->lanes;
    struct loop loop = loop_begin_once(e, 0, route->columns, lanes, NULL, 0);
    LLVMValueRef value = load_f32(e, vector_at(e, scores, loop.index), dtype_f32, lanes);
    LLVMValueRef bits = f32_to_bits(e, LLVMBuildFAdd(b, value, splat_f32(e, 0, lanes), "")); // -0 becomes 0
    LLVMValueRef sign = LLVMBuildAShr(b, bits, splat_i32(e, 31, lanes), "");
    LLVMValueRef key = LLVMBuildXor(b, bits, LLVMBuildAnd(b, sign, splat_i32(e, INT32_MAX, lanes), ""), "");
    LLVMValueRef nan = LLVMBuildFCmp(b, LLVMRealUNO, value, value, "");
    key = LLVMBuildSelect(b, nan, splat_i32(e, (uint32_t)KEY_NAN, lanes), key, "");
    store(e, key, vector_at(e, route->keys, loop.index), 4);
    loop_end(e, &loop, NULL);
    pad(e, route->keys, route->experts, route->columns, (uint32_t)KEY_TAKEN);
}

static LLVMValueRef largest_key(struct emit *e, const struct route *route)
{
    unsigned lanes = e->level->lanes;
    LLVMValueRef most = splat_i32(e, (uint32_t)KEY_TAKEN, lanes);
    struct loop loop = loop_begin_once(e, 0, route->columns, lanes, &most, 1);
    LLVMValueRef key = load(e, vector_of(e->i32, lanes), vector_at(e, route->keys, loop.index), 4);
    most = LLVMBuildSelect(e->builder, LLVMBuildICmp(e->builder, LLVMIntSGT, key, most, ""), key, most, "");
    loop_end(e, &loop, &most);
    return horizontal(e, "llvm.vector.reduce.smax", most);
}

// the lowest index of a key
static LLVMValueRef first_with_key(struct emit *e, const struct route *route, LLVMValueRef key)
{
    LLVMBuilderRef b = e->builder;
    unsigned lanes = e->level->lanes;
    LLVMValueRef wanted = splat(e, key, lanes), least = splat_i32(e, INT32_MAX, lanes), ids[64];
    for (unsigned i = 0; i < lanes; i++)
        ids[i] = const_i32(e, i);
    struct loop loop = loop_begin_once(e, 0, route->columns, lanes, &least, 1);
    LLVMValueRef keys = load(e, vector_of(e->i32, lanes), vector_at(e, route->keys, loop.index), 4);
    LLVMValueRef base = splat(e, LLVMBuildTrunc(b, loop.index, e->i32, ""), lanes);
    LLVMValueRef id = LLVMBuildAdd(b, base, LLVMConstVector(ids, lanes), "");
    LLVMValueRef equal = LLVMBuildICmp(b, LLVMIntEQ, keys, wanted, "");
    id = LLVMBuildSelect(b, equal, id, splat_i32(e, INT32_MAX, lanes), "");
    least = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, id, least, ""), id, least, "");
    loop_end(e, &loop, &least);
    return horizontal(e, "llvm.vector.reduce.smin", least);
}

// ids of the best scores, best first; their scores to route->chosen. Returns the sum of the chosen scores.
static LLVMValueRef choose(struct emit *e, const struct route *route, LLVMValueRef scores, LLVMValueRef ids)
{
    LLVMValueRef sum = LLVMConstReal(e->f32, 0);
    struct loop loop = loop_begin_once(e, 0, route->choices, 1, &sum, 1);
    LLVMValueRef id = first_with_key(e, route, largest_key(e, route));
    LLVMValueRef wide = LLVMBuildZExt(e->builder, id, e->i64, "");
    LLVMValueRef score = element(e, e->f32, 4, scores, wide);
    store(e, id, vector_at(e, ids, loop.index), 4);
    store(e, score, vector_at(e, route->chosen, loop.index), 4);
    store(e, const_i32(e, KEY_TAKEN), vector_at(e, route->keys, wide), 4);
    sum = LLVMBuildFAdd(e->builder, sum, score, "");
    loop_end(e, &loop, &sum);
    return sum;
}

static void route_token(struct emit *e, const struct route *route, LLVMValueRef scores, LLVMValueRef ids,
                        LLVMValueRef weights)
{
    const uint32_t minus_infinity = 0xff800000;
    pad(e, scores, route->experts, route->columns, minus_infinity);
    if (route->score == score_softmax) {
        LLVMValueRef sum = exponentials(e, scores, route->columns, maximum(e, scores, route->columns));
        divide(e, scores, route->columns, sum, 1);
    }
    sort_keys(e, route, scores);
    LLVMValueRef sum = choose(e, route, scores, ids);
    if (route->score == score_softmax_after) {
        pad(e, route->chosen, route->choices, route->chosen_columns, minus_infinity);
        LLVMValueRef best = load(e, e->f32, route->chosen, 4);
        sum = exponentials(e, route->chosen, route->chosen_columns, best);
    } else if (!route->normalize) {
        sum = NULL;
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
    struct loop tiles = loop_begin(e, e->begin, e->end, ROUTE_TILE, NULL, 0);
    LLVMValueRef left = LLVMBuildSub(b, e->end, tiles.index, ""), most = const_i64(e, ROUTE_TILE);
    LLVMValueRef rows = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, left, most, ""), left, most, "");
    LLVMValueRef a = offset(e, x, scaled(e, tiles.index, gemm->a_stride));

    struct loop panels = loop_begin_once(e, 0, panel_count(&gemm->weights), 1, NULL, 0);
    LLVMValueRef panel = offset(e, w, scaled(e, panels.index, panel_bytes(&gemm->weights)));
    LLVMValueRef p[TILE_POINTERS] = {offset(e, e->scratch, scaled(e, panels.index, gemm->weights.panel * 4))};
    gemm_rows(e, gemm, rows, a, panel, panel, p, (int64_t[TILE_POINTERS]){route->columns * 4});
    loop_end(e, &panels, NULL);

    struct loop each = loop_begin(e, const_i64(e, 0), rows, 1, NULL, 0);
    LLVMValueRef scores = offset(e, e->scratch, scaled(e, each.index, route->columns * 4));
    LLVMValueRef out = scaled(e, LLVMBuildAdd(b, tiles.index, each.index, ""), route->choices * 4);
    route_token(e, route, scores, offset(e, ids, out), offset(e, weights, out));
    loop_end(e, &each, NULL);
    loop_end(e, &tiles, NULL);
}

void generate_route(struct emit *e, struct plan_kernel *kernel, const char *name)
{
    const int64_t *n = kernel->n;
    struct route route = {
        .experts = n[1], .choices = n[2], .score = (uint32_t)n[3], .normalize = n[4] != 0, .scale = kernel->scale};
    route.gemm = (struct gemm){
        .a_dtype = (uint32_t)n[5],
        .weights = kernel_weights(e, dtype_f32, n[1], n[0], false, true),
        .k = n[0],
        .a_stride = n[0] * dtype_bytes((uint32_t)n[5]),
        .most_rows = ROUTE_TILE,
        .finish = finish_scores,
        .user = &route,
    };
    int64_t lanes = e->level->lanes;
    route.columns = panel_count(&route.gemm.weights) * route.gemm.weights.panel;
    route.chosen_columns = (route.choices + lanes - 1) / lanes * lanes;
    gemm_tiles(e, &route.gemm, context_printf(e->context, "%s_tile", name));

    kernel_function(e, name);
    route.keys = offset_const(e, e->scratch, ROUTE_TILE * route.columns * 4);
    route.chosen = offset_const(e, route.keys, route.columns * 4);
    route_tokens(e, &route);
    LLVMBuildRetVoid(e->builder);

    kernel->unit = work_unit_tokens;
    kernel->grain = ROUTE_TILE;
    kernel->scratch_bytes = ((ROUTE_TILE + 1) * route.columns + route.chosen_columns) * 4;
    kernel->scratch_bytes = (kernel->scratch_bytes + 63) / 64 * 64;
}
