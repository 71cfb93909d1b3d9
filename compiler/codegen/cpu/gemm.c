// Generates the register tiles and the loop that cuts rows into them (gemm.h).
#include "gemm.h"

enum { ROWS_TO_PREFETCH = 7 }; // measured: from here on the next panel's prefetch gains

int64_t panel_bytes(const struct plan_param *param)
{
    int64_t groups = (param->cols + param->group - 1) / param->group;
    return groups * param->group * param->panel * dtype_bytes(param->dtype);
}

int64_t panel_count(const struct plan_param *param)
{
    return (param->rows + param->panel - 1) / param->panel;
}

unsigned tile_rows(struct emit *e, uint32_t dtype)
{
    bool widened = dtype == dtype_f16 || (dtype == dtype_bf16 && !e->level->dot_bf16);
    return widened ? e->level->widened_rows : e->level->tile_rows;
}

static bool uses_dot(struct emit *e, const struct gemm *gemm)
{
    return e->level->dot_bf16 && gemm->weights.dtype == dtype_bf16;
}

// k values taken from A by one load: a pair of bf16, or one number
static unsigned step_of(const struct gemm *gemm)
{
    return gemm->a_dtype == dtype_bf16 ? 2 : 1;
}

// k values of a round of the loop; k is a multiple of 8
static unsigned unroll_of(const struct gemm *gemm)
{
    return step_of(gemm) * 4;
}

// a panel's weights for one k
static int64_t row_bytes(const struct gemm *gemm)
{
    return gemm->weights.panel * dtype_bytes(gemm->weights.dtype);
}

// multiply-adds of a step: the dot product takes its pair at once
static unsigned parts_of(struct emit *e, const struct gemm *gemm)
{
    return uses_dot(e, gemm) ? 1 : step_of(gemm);
}

// the low and high bf16 of each 32-bit element, widened
static void widen_pairs(struct emit *e, LLVMValueRef pairs, LLVMValueRef *parts)
{
    unsigned lanes = e->level->lanes;
    parts[0] = bits_to_f32(e, LLVMBuildShl(e->builder, pairs, splat_i32(e, 16, lanes), ""));
    parts[1] = bits_to_f32(e, LLVMBuildAnd(e->builder, pairs, splat_i32(e, 0xffff0000, lanes), ""));
}

// one row's A values of a step, each in all lanes
static void load_a(struct emit *e, const struct gemm *gemm, LLVMValueRef pointer, LLVMValueRef *parts)
{
    unsigned lanes = e->level->lanes;
    if (gemm->a_dtype == dtype_f32)
        parts[0] = splat(e, load(e, e->f32, pointer, 4), lanes);
    else if (gemm->a_dtype == dtype_f16)
        parts[0] = half_to_f32(e, splat(e, load(e, e->i16, pointer, 2), lanes), lanes);
    else if (uses_dot(e, gemm))
        parts[0] = splat(e, load(e, e->i32, pointer, 2), lanes);
    else
        widen_pairs(e, splat(e, load(e, e->i32, pointer, 2), lanes), parts);
}

// a vector of weights of a step; `column` is its first
static void load_b(struct emit *e, const struct gemm *gemm, LLVMValueRef pointer, int64_t column, LLVMValueRef *parts)
{
    const struct plan_param *w = &gemm->weights;
    unsigned lanes = e->level->lanes, bytes = (unsigned)dtype_bytes(w->dtype);
    if (w->group == 2) {
        parts[0] = load(e, vector_of(e->i32, lanes), offset_const(e, pointer, column * 4), 16);
        if (!uses_dot(e, gemm))
            widen_pairs(e, parts[0], parts);
        return;
    }
    for (unsigned i = 0; i < step_of(gemm); i++)
        parts[i] = load_f32(e, offset_const(e, pointer, (i * w->panel + column) * bytes), w->dtype, lanes);
}

static LLVMValueRef dot_bf16(struct emit *e, LLVMValueRef sum, LLVMValueRef a, LLVMValueRef b)
{
    static const char name[] = "llvm.x86.avx512bf16.dpbf16ps.512";
    unsigned id = LLVMLookupIntrinsicID(name, sizeof name - 1);
    LLVMValueRef function = LLVMGetIntrinsicDeclaration(e->module, id, NULL, 0);
    LLVMTypeRef type = LLVMGlobalGetValueType(function), params[3];
    LLVMGetParamTypes(type, params); // newer LLVM takes bf16 vectors, older ones i32
    LLVMValueRef args[] = {sum, LLVMBuildBitCast(e->builder, a, params[1], ""),
                           LLVMBuildBitCast(e->builder, b, params[2], "")};
    return LLVMBuildCall2(e->builder, type, function, args, 3, "");
}

// one step of k for all rows: sums += A column x panel row
static void tile_step(struct emit *e, const struct gemm *gemm, unsigned rows, LLVMValueRef a, LLVMValueRef b,
                      LLVMValueRef (*sums)[PANEL_VECTORS])
{
    LLVMValueRef columns[PANEL_VECTORS][2], row[2];
    for (unsigned v = 0; v < PANEL_VECTORS; v++)
        load_b(e, gemm, b, v * e->level->lanes, columns[v]);
    for (unsigned r = 0; r < rows; r++) {
        load_a(e, gemm, offset_const(e, a, r * gemm->a_stride), row);
        for (unsigned part = 0; part < parts_of(e, gemm); part++)
            for (unsigned v = 0; v < PANEL_VECTORS; v++)
                sums[r][v] = uses_dot(e, gemm) ? dot_bf16(e, sums[r][v], row[part], columns[v][part])
                                               : multiply_add(e, row[part], columns[v][part], sums[r][v]);
    }
}

static void generate_tile(struct emit *e, struct gemm *gemm, unsigned rows, const char *name)
{
    LLVMValueRef tile = inner_function(e, context_printf(e->context, "%s_%u", name, rows), gemm->tile_type);
    gemm->tiles[rows] = tile;
    LLVMValueRef a = LLVMGetParam(tile, 0), b = LLVMGetParam(tile, 1), step = LLVMGetParam(tile, 3);
    LLVMValueRef carried[CARRIED_MAX];
    LLVMValueRef(*sums)[PANEL_VECTORS] = (LLVMValueRef(*)[PANEL_VECTORS])carried;
    unsigned count = rows * PANEL_VECTORS;
    for (unsigned i = 0; i < count; i++)
        carried[i] = splat_f32(e, 0, e->level->lanes);
    carried[count] = LLVMGetParam(tile, 2);

    unsigned unroll = unroll_of(gemm), a_bytes = (unsigned)dtype_bytes(gemm->a_dtype);
    int64_t b_bytes = row_bytes(gemm);
    struct loop loop = loop_begin_once(e, 0, gemm->k, unroll, carried, count + gemm->prefetches);
    LLVMValueRef a_k = offset(e, a, scaled(e, loop.index, a_bytes)), b_k = offset(e, b, scaled(e, loop.index, b_bytes));
    for (unsigned k = 0; k < unroll; k += step_of(gemm))
        tile_step(e, gemm, rows, offset_const(e, a_k, k * a_bytes), offset_const(e, b_k, k * b_bytes), sums);
    if (gemm->prefetches) {
        for (int64_t at = 0; at < unroll * b_bytes; at += 64)
            prefetch(e, offset_const(e, carried[count], at), PREFETCH_L2);
        carried[count] = offset(e, carried[count], step);
    }
    loop_end(e, &loop, carried);

    LLVMValueRef p[TILE_POINTERS];
    for (unsigned i = 0; i < TILE_POINTERS; i++)
        p[i] = LLVMGetParam(tile, 4 + i);
    gemm->finish(e, gemm, rows, sums, p);
    LLVMBuildRetVoid(e->builder);
}

void gemm_tiles(struct emit *e, struct gemm *gemm, const char *name)
{
    LLVMTypeRef params[4 + TILE_POINTERS] = {e->ptr, e->ptr, e->ptr, e->i64};
    for (unsigned i = 0; i < TILE_POINTERS; i++)
        params[4 + i] = e->ptr;
    gemm->tile_type = LLVMFunctionType(e->none, params, 4 + TILE_POINTERS, false);
    for (unsigned rows = 1; rows <= gemm->most_rows; rows++)
        generate_tile(e, gemm, rows, name);
}

static void call_tile(struct emit *e, const struct gemm *gemm, LLVMValueRef rows, LLVMValueRef *args)
{
    LLVMBasicBlockRef after = new_block(e, "tile_done"), other = new_block(e, "no_tile");
    LLVMValueRef choice = LLVMBuildSwitch(e->builder, rows, other, gemm->most_rows);
    for (unsigned i = 1; i <= gemm->most_rows; i++) {
        LLVMBasicBlockRef block = new_block(e, "tile");
        LLVMAddCase(choice, const_i64(e, i), block);
        enter(e, block);
        LLVMBuildCall2(e->builder, gemm->tile_type, gemm->tiles[i], args, 4 + TILE_POINTERS, "");
        LLVMBuildBr(e->builder, after);
    }
    enter(e, other);
    LLVMBuildUnreachable(e->builder);
    LLVMMoveBasicBlockAfter(after, other);
    enter(e, after);
}

void gemm_rows(struct emit *e, const struct gemm *gemm, LLVMValueRef rows, LLVMValueRef a, LLVMValueRef panel,
               LLVMValueRef next, LLVMValueRef p[TILE_POINTERS], const int64_t p_stride[TILE_POINTERS])
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef most = const_i64(e, gemm->most_rows);
    LLVMValueRef rounded = LLVMBuildAdd(b, rows, const_i64(e, gemm->most_rows - 1), "");
    LLVMValueRef tiles = LLVMBuildUDiv(b, rounded, most, "");
    LLVMBasicBlockRef after = if_begin(e, LLVMBuildICmp(b, LLVMIntSGT, rows, const_i64(e, 0), ""));
    LLVMValueRef small = LLVMBuildUDiv(b, rows, tiles, ""), larger = LLVMBuildURem(b, rows, tiles, "");

    LLVMValueRef first = const_i64(e, 0);
    struct loop loop = loop_begin(e, const_i64(e, 0), tiles, 1, &first, 1);
    LLVMValueRef is_larger = LLVMBuildICmp(b, LLVMIntSLT, loop.index, larger, "");
    LLVMValueRef count = LLVMBuildAdd(b, small, LLVMBuildZExt(b, is_larger, e->i64, ""), "");

    // behind the first tile the whole next panel comes in, line by line; fewer rows are bound by memory anyway and only
    // lose by it: they fetch their own first lines again and again, which costs nothing
    LLVMValueRef enough = LLVMBuildICmp(b, LLVMIntSGE, rows, const_i64(e, ROWS_TO_PREFETCH), "");
    LLVMValueRef is_first = LLVMBuildICmp(b, LLVMIntEQ, loop.index, const_i64(e, 0), "");
    LLVMValueRef fetches = LLVMBuildAnd(b, enough, is_first, "");
    int64_t bytes = unroll_of(gemm) * row_bytes(gemm);
    LLVMValueRef step = LLVMBuildSelect(b, fetches, const_i64(e, bytes), const_i64(e, 0), "");
    LLVMValueRef from = LLVMBuildSelect(b, fetches, next, panel, "");

    LLVMValueRef args[4 + TILE_POINTERS] = {offset(e, a, scaled(e, first, gemm->a_stride)), panel, from, step};
    for (unsigned i = 0; i < TILE_POINTERS; i++)
        args[4 + i] = p[i] ? offset(e, p[i], scaled(e, first, p_stride[i])) : LLVMConstNull(e->ptr);
    call_tile(e, gemm, count, args);
    first = LLVMBuildAdd(b, first, count, "");
    loop_end(e, &loop, &first);
    if_end(e, after);
}
