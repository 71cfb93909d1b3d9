// What some routers do to scores beside the product: cosine similarity, and noise on the choice. The noise is a function of
// seed, layer, rank, token and expert alone, so that no split, stream or thread can change it.
#include "scores.h"

#include <math.h>

// ---- cosine -----------------------------------------------------------------------------------------------------------

static LLVMValueRef square_root(struct emit *e, LLVMValueRef value)
{
    return intrinsic(e, "llvm.sqrt", LLVMTypeOf(value), &value, 1);
}

/// numerator / max(sqrt(sum), 1e-12)
static LLVMValueRef over_norm(struct emit *e, double numerator, LLVMValueRef sum, unsigned lanes)
{
    LLVMValueRef norm = square_root(e, sum), least = lanes ? splat_f32(e, 1e-12, lanes) : LLVMConstReal(e->f32, 1e-12);
    LLVMValueRef tiny = LLVMBuildFCmp(e->builder, LLVMRealOLT, norm, least, "");
    norm = LLVMBuildSelect(e->builder, tiny, least, norm, "");
    LLVMValueRef over = lanes ? splat_f32(e, numerator, lanes) : LLVMConstReal(e->f32, numerator);
    return LLVMBuildFDiv(e->builder, over, norm, "");
}

void expert_factors(struct emit *e, const struct plan_param *weights, LLVMValueRef w, double temperature, LLVMValueRef to)
{
    unsigned lanes = e->level->lanes;
    struct loop panels = loop_begin_once(e, 0, plan_panels(weights), 1, NULL, 0);
    LLVMValueRef panel = offset(e, w, scaled(e, panels.index, plan_panel_bytes(weights))), sums[PANEL_VECTORS];
    for (unsigned v = 0; v < PANEL_VECTORS; v++)
        sums[v] = splat_f32(e, 0, lanes);
    struct loop loop = loop_begin_once(e, 0, weights->cols, 1, sums, PANEL_VECTORS);
    LLVMValueRef row = offset(e, panel, scaled(e, loop.index, weights->panel * 4));
    for (unsigned v = 0; v < PANEL_VECTORS; v++) {
        LLVMValueRef value = load_f32(e, offset_const(e, row, v * lanes * 4), dtype_f32, lanes);
        sums[v] = multiply_add(e, value, value, sums[v]);
    }
    loop_end(e, &loop, sums);
    LLVMValueRef out = offset(e, to, scaled(e, panels.index, weights->panel * 4));
    for (unsigned v = 0; v < PANEL_VECTORS; v++)
        store_f32(e, over_norm(e, temperature, sums[v], lanes), offset_const(e, out, v * lanes * 4), dtype_f32, lanes);
    loop_end(e, &panels, NULL);
}

static LLVMValueRef squares(struct emit *e, LLVMValueRef x, LLVMValueRef column, uint32_t dtype, LLVMValueRef sum,
                            unsigned lanes)
{
    LLVMValueRef value = load_f32(e, offset(e, x, scaled(e, column, dtype_bytes(dtype))), dtype, lanes);
    return multiply_add(e, value, value, sum);
}

static LLVMValueRef added_up(struct emit *e, LLVMValueRef total, LLVMValueRef vector)
{
    LLVMValueRef args[] = {total, vector}; // lane by lane: a fixed order
    return intrinsic(e, "llvm.vector.reduce.fadd", LLVMTypeOf(vector), args, 2);
}

void scale_to_cosine(struct emit *e, LLVMValueRef scores, int64_t columns, LLVMValueRef factors, LLVMValueRef x,
                     int64_t width, uint32_t dtype)
{
    unsigned lanes = e->level->lanes, rest = (unsigned)(width % lanes);
    LLVMValueRef total = LLVMConstReal(e->f32, 0);
    if (width >= lanes) {
        LLVMValueRef sum = splat_f32(e, 0, lanes);
        struct loop loop = loop_begin_once(e, 0, width - rest, lanes, &sum, 1);
        sum = squares(e, x, loop.index, dtype, sum, lanes);
        loop_end(e, &loop, &sum);
        total = added_up(e, total, sum);
    }
    if (rest)
        total = added_up(e, total, squares(e, x, const_i64(e, width - rest), dtype, splat_f32(e, 0, rest), rest));
    LLVMValueRef factor = splat(e, over_norm(e, 1, total, 0), lanes);
    struct loop each = loop_begin_once(e, 0, columns, lanes, NULL, 0);
    LLVMValueRef at = offset(e, scores, scaled(e, each.index, 4));
    LLVMValueRef score = LLVMBuildFMul(e->builder, load_f32(e, at, dtype_f32, lanes), factor, "");
    LLVMValueRef expert = load_f32(e, offset(e, factors, scaled(e, each.index, 4)), dtype_f32, lanes);
    store_f32(e, LLVMBuildFMul(e->builder, score, expert, ""), at, dtype_f32, lanes);
    loop_end(e, &each, NULL);
}

// ---- noise ------------------------------------------------------------------------------------------------------------

/// A permutation of 32-bit numbers in which every bit of the result depends on every bit of the number.
static LLVMValueRef mixed(struct emit *e, LLVMValueRef x, unsigned lanes)
{
    static const struct {
        uint32_t shift, factor;
    } rounds[] = {{16, 0x7feb352d}, {15, 0x846ca68b}, {16, 1}};
    LLVMBuilderRef b = e->builder;
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        x = LLVMBuildXor(b, x, LLVMBuildLShr(b, x, splat_i32(e, rounds[i].shift, lanes), ""), "");
        x = LLVMBuildMul(b, x, splat_i32(e, rounds[i].factor, lanes), "");
    }
    return x;
}

static LLVMValueRef mixed_with(struct emit *e, LLVMValueRef x, LLVMValueRef number, unsigned lanes)
{
    LLVMValueRef narrow = LLVMBuildTrunc(e->builder, number, e->i32, "");
    return mixed(e, LLVMBuildXor(e->builder, x, splat(e, narrow, lanes), ""), lanes);
}

static LLVMValueRef step_number(struct emit *e, unsigned number) // of moe_kargs
{
    return field(e, e->i64, e->args, offsetof(struct moe_kargs, n) + number * sizeof(int64_t));
}

LLVMValueRef noise_of_token(struct emit *e, int64_t seed, LLVMValueRef token)
{
    unsigned lanes = e->level->lanes;
    LLVMValueRef x = mixed(e, splat_i32(e, (uint32_t)seed * MOE_NOISE_STEP + 1, lanes), lanes);
    x = mixed_with(e, x, step_number(e, 3), lanes); // layer
    x = mixed_with(e, x, step_number(e, 2), lanes); // rank
    return mixed_with(e, x, LLVMBuildAdd(e->builder, step_number(e, 1), token, ""), lanes);
}

LLVMValueRef noise_of_experts(struct emit *e, LLVMValueRef token, LLVMValueRef index, double deviation)
{
    LLVMBuilderRef b = e->builder;
    unsigned lanes = e->level->lanes;
    LLVMValueRef ids[64], sum = splat_i32(e, 0, lanes);
    for (unsigned i = 0; i < lanes; i++)
        ids[i] = const_i32(e, i);
    LLVMValueRef id = LLVMBuildAdd(b, splat(e, LLVMBuildTrunc(b, index, e->i32, ""), lanes), LLVMConstVector(ids, lanes), "");
    LLVMValueRef x = mixed(e, LLVMBuildXor(b, token, LLVMBuildMul(b, id, splat_i32(e, MOE_NOISE_STEP, lanes), ""), ""), lanes);
    for (uint32_t i = 0; i < MOE_NOISE_WORDS; i++) {
        LLVMValueRef word = mixed(e, LLVMBuildAdd(b, x, splat_i32(e, i * MOE_NOISE_STEP, lanes), ""), lanes);
        LLVMValueRef low = LLVMBuildAnd(b, word, splat_i32(e, 0xffff, lanes), "");
        sum = LLVMBuildAdd(b, sum, LLVMBuildAdd(b, low, LLVMBuildLShr(b, word, splat_i32(e, 16, lanes), ""), ""), "");
    }
    LLVMValueRef value = LLVMBuildUIToFP(b, sum, vector_of(e->f32, lanes), ""); // exact: below 2^19
    value = LLVMBuildFSub(b, value, splat_f32(e, 65535.0 * (double)MOE_NOISE_WORDS, lanes), "");
    return LLVMBuildFMul(b, value, splat_f32(e, MOE_NOISE_FACTOR(deviation), lanes), "");
}
