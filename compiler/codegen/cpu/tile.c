// Generates the register tiles (tile.h).
#include "tile.h"
#include "amx.h"
#include "codes.h"

bool uses_dot(struct emit *e, const struct gemm *gemm)
{
    return e->level->dot_bf16 && (gemm->read.dtype == dtype_bf16 || gemm->read.split);
}

unsigned rows_to_prefetch(const struct gemm *gemm)
{
    uint32_t dtype = gemm->read.dtype;
    if (dtype == dtype_fp8_e4m3)
        return gemm->panels == 1 ? 1 : WIDE_E4M3 + 1;
    return dtype == dtype_mxfp4 ? 1 : ROWS_TO_PREFETCH;
}

// Whether a tile of so many rows may have to: the smallest of several tiles has half as many rows as the largest.
static bool prefetches(const struct gemm *gemm, unsigned rows)
{
    unsigned least = rows_to_prefetch(gemm), share = gemm->panels == 1 ? (gemm->most_rows + 1) / 2 : least;
    return gemm->prefetches && rows >= (least < share ? least : share);
}

// k values taken from A by one load: a pair of bf16, or one number
static unsigned step_of(const struct gemm *gemm)
{
    return gemm->a_dtype == dtype_bf16 ? 2 : 1;
}

unsigned unroll_of(const struct gemm *gemm)
{
    return gemm->amx ? AMX_K : step_of(gemm) * 4;
}

int64_t k_bytes(const struct plan_param *weights, int64_t count)
{
    return count * weights->panel * dtype_bits(weights->dtype) / 8;
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
    const struct plan_param *w = &gemm->read;
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

// vectors of a tile's row
static unsigned vectors_of(const struct gemm *gemm)
{
    return gemm->panels * PANEL_VECTORS;
}

// one panel's weights of step k of a round, whose first are at b
static void load_columns(struct emit *e, const struct gemm *gemm, LLVMValueRef b, unsigned k,
                         LLVMValueRef columns[PANEL_VECTORS][2])
{
    if (dtype_quantised(gemm->read.dtype)) {
        load_codes(e, &gemm->read, b, k, step_of(gemm), columns);
        return;
    }
    for (unsigned v = 0; v < PANEL_VECTORS; v++)
        load_b(e, gemm, offset_const(e, b, k_bytes(&gemm->read, k)), v * e->level->lanes, columns[v]);
}

// How a tile reads A.
struct reading {
    LLVMValueRef row[TILE_ROWS_MAX]; // by row; else the first one alone
    LLVMValueRef reader[TILE_VECTORS]; // what each reader of a number adds to its place: 0
    unsigned readers;
};

// Beside the look-ups that expand codes, a number of A is better read by each dot product itself than once into a
// register, and so it is where the load has no other use: each vector has a place of its own then, of which the code
// generator does not know that they are the same. Their offsets are loads that it must not merge.
static void make_readers(struct emit *e, const struct gemm *gemm, struct reading *reading)
{
    reading->readers = 1;
    reading->reader[0] = const_i64(e, 0);
    if (!uses_dot(e, gemm) || !dtype_quantised(gemm->read.dtype))
        return;
    LLVMValueRef place = LLVMBuildAlloca(e->builder, e->i64, "");
    store(e, const_i64(e, 0), place, 8);
    reading->readers = vectors_of(gemm);
    for (unsigned i = 0; i < reading->readers; i++) {
        reading->reader[i] = load(e, e->i64, place, 8);
        LLVMSetVolatile(reading->reader[i], true);
    }
}

// `rows` rows from the tile's first, or (by row) those whose numbers begin there
static struct reading read_rows(struct emit *e, const struct gemm *gemm, unsigned rows)
{
    struct reading reading = {{LLVMGetParam(e->function, TILE_A)}, {NULL}, 0};
    make_readers(e, gemm, &reading);
    for (unsigned r = rows; gemm->by_row && r-- > 0;) {
        LLVMValueRef numbers = LLVMGetParam(e->function, TILE_OWN + ROW_NUMBERS);
        LLVMValueRef number = LLVMBuildZExt(e->builder, load(e, e->i32, offset_const(e, numbers, r * 4), 4), e->i64, "");
        reading.row[r] = offset(e, reading.row[0], scaled(e, number, gemm->a_stride));
    }
    return reading;
}

// the place of byte `at` of a row
static LLVMValueRef place_in_row(struct emit *e, const struct gemm *gemm, const struct reading *reading, unsigned r,
                                 LLVMValueRef at)
{
    return gemm->by_row ? offset(e, reading->row[r], at) : offset_const(e, offset(e, reading->row[0], at), r * gemm->a_stride);
}

// one step of k, at byte `at` of a row, for all rows: sums += A column x panels' row
static void tile_step(struct emit *e, const struct gemm *gemm, unsigned rows, const struct reading *reading,
                      LLVMValueRef at, LLVMValueRef (*columns)[2], LLVMValueRef *sums)
{
    LLVMValueRef row[TILE_VECTORS][2], place[TILE_VECTORS];
    unsigned count = reading->readers;
    for (unsigned i = 0; i < count; i++)
        place[i] = LLVMBuildAdd(e->builder, at, reading->reader[i], "");
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned i = 0; i < count; i++)
            load_a(e, gemm, place_in_row(e, gemm, reading, r, place[i]), row[i]);
        for (unsigned part = 0; part < parts_of(e, gemm); part++)
            for (unsigned v = 0; v < vectors_of(gemm); v++) {
                LLVMValueRef *sum = &sums[r * vectors_of(gemm) + v], number = row[v % count][part];
                *sum = uses_dot(e, gemm) ? dot_bf16(e, *sum, columns[v][part], number)
                                         : multiply_add(e, number, columns[v][part], *sum);
            }
    }
}

// sums (then, where it prefetches, the place to prefetch) += A x panel over `count` k values, from byte `begin` of a row on
static void add_products(struct emit *e, const struct gemm *gemm, unsigned rows, const struct reading *reading,
                         LLVMValueRef begin, LLVMValueRef b, int64_t count, LLVMValueRef *carried)
{
    LLVMValueRef columns[TILE_VECTORS][2];
    unsigned numbers = rows * vectors_of(gemm), unroll = unroll_of(gemm);
    unsigned a_bytes = (unsigned)dtype_bytes(gemm->a_dtype);
    struct loop loop = loop_begin_once(e, 0, count, unroll, carried, numbers + prefetches(gemm, rows));
    LLVMValueRef a_k = LLVMBuildAdd(e->builder, begin, scaled(e, loop.index, a_bytes), "");
    LLVMValueRef b_k = offset(e, b, scaled(e, loop.index, k_bytes(&gemm->read, 1)));
    for (unsigned k = 0; k < unroll; k += step_of(gemm)) {
        for (unsigned i = 0; i < gemm->panels; i++)
            load_columns(e, gemm, offset_const(e, b_k, i * plan_panel_bytes(&gemm->weights)), k,
                         columns + i * PANEL_VECTORS);
        tile_step(e, gemm, rows, reading, LLVMBuildAdd(e->builder, a_k, const_i64(e, k * a_bytes), ""), columns, carried);
    }
    if (prefetches(gemm, rows)) {
        LLVMValueRef step = LLVMGetParam(e->function, TILE_STEP);
        for (unsigned i = 0; i < gemm->panels; i++)
            for (int64_t at = 0; at < k_bytes(&gemm->weights, unroll); at += 64)
                prefetch(e, offset_const(e, carried[numbers], i * plan_panel_bytes(&gemm->weights) + at), PREFETCH_L2);
        carried[numbers] = offset(e, carried[numbers], step);
    }
    loop_end(e, &loop, carried);
}

// a block's scales of the weights, for a row of A whose codes have one of their own
void scale_row(struct emit *e, const struct gemm *gemm, LLVMValueRef row_scale, const LLVMValueRef *factors,
               LLVMValueRef *own)
{
    LLVMValueRef scale = row_scale ? splat(e, load(e, e->f32, row_scale, 4), e->level->lanes) : NULL;
    for (unsigned i = 0; i < vectors_of(gemm); i++)
        own[i] = scale ? LLVMBuildFMul(e->builder, factors[i], scale, "") : factors[i];
}

// the place of the scale of block `number` of a row; NULL: it has none
static LLVMValueRef scale_in_row(struct emit *e, const struct gemm *gemm, const struct reading *reading, unsigned r,
                                 LLVMValueRef number)
{
    if (!gemm->row_scales)
        return NULL;
    return offset_const(e, place_in_row(e, gemm, reading, r, scaled(e, number, 4)), gemm->row_scales);
}

// totals (then, where it prefetches, the place to prefetch) += scales x (A x panel) over block `number` of the row, `count` k
// values; b and scales are the panel's first
static void add_block(struct emit *e, const struct gemm *gemm, unsigned rows, const struct reading *reading, LLVMValueRef b,
                      LLVMValueRef scales, LLVMValueRef number, int64_t count, LLVMValueRef *totals)
{
    const struct plan_param *w = &gemm->weights;
    int64_t a_bytes = w->block_cols * dtype_bytes(gemm->a_dtype), b_bytes = k_bytes(&gemm->read, w->block_cols);
    LLVMValueRef carried[CARRIED_MAX], factors[TILE_VECTORS], own[TILE_VECTORS];
    unsigned numbers = rows * vectors_of(gemm), lanes = e->level->lanes;
    for (unsigned i = 0; i < numbers; i++)
        carried[i] = splat_f32(e, 0, lanes);
    carried[numbers] = totals[numbers];
    add_products(e, gemm, rows, reading, scaled(e, number, a_bytes), offset(e, b, scaled(e, number, b_bytes)), count,
                 carried);
    totals[numbers] = carried[numbers];
    scales = offset(e, scales, scaled(e, number, w->scales * plan_scale_bytes(w)));
    for (unsigned i = 0; i < gemm->panels; i++) {
        LLVMValueRef own = offset_const(e, scales, i * plan_panel_bytes(&gemm->weights));
        load_scales(e, &gemm->weights, own, factors + i * PANEL_VECTORS);
        if (gemm->prefetches) // scales are read long before what precedes them in memory: no prefetching of codes meets them
            prefetch(e, offset_const(e, own, gemm->panels * plan_panel_bytes(&gemm->weights)), PREFETCH_L2);
    }
    for (unsigned i = 0; i < numbers; i++) {
        if (i % vectors_of(gemm) == 0)
            scale_row(e, gemm, scale_in_row(e, gemm, reading, i / vectors_of(gemm), number), factors, own);
        totals[i] = multiply_add(e, carried[i], own[i % vectors_of(gemm)], totals[i]);
    }
}

// sums = A x panels, block after block of k that shares scales
static void multiply_blocks(struct emit *e, const struct gemm *gemm, unsigned rows, LLVMValueRef *sums)
{
    unsigned numbers = rows * vectors_of(gemm), lanes = e->level->lanes;
    const struct plan_param *w = &gemm->weights;
    int64_t block = w->block_cols, whole = gemm->k / block, rest = gemm->k % block;
    LLVMValueRef b = LLVMGetParam(e->function, TILE_B), scales = LLVMGetParam(e->function, TILE_SCALES);
    struct reading reading = read_rows(e, gemm, rows);
    for (unsigned i = 0; i < numbers; i++)
        sums[i] = splat_f32(e, 0, lanes);
    sums[numbers] = LLVMGetParam(e->function, TILE_AHEAD);
    if (whole > 0) {
        struct loop loop = loop_begin_once(e, 0, whole, 1, sums, numbers + prefetches(gemm, rows));
        add_block(e, gemm, rows, &reading, b, scales, loop.index, block, sums);
        loop_end(e, &loop, sums);
    }
    if (rest > 0)
        add_block(e, gemm, rows, &reading, b, scales, const_i64(e, whole), rest, sums);
}

// The tile function's own pointers, moved to a panel.
static void pointers_at(struct emit *e, const struct gemm *gemm, unsigned panel, LLVMValueRef *p)
{
    for (unsigned i = 0; i < TILE_POINTERS; i++)
        p[i] = offset_const(e, LLVMGetParam(e->function, TILE_OWN + i), panel * gemm->p_panel[i]);
}

// hands the sums to the finisher, panel by panel
static void finish_tile(struct emit *e, const struct gemm *gemm, unsigned rows, const LLVMValueRef *sums)
{
    for (unsigned panel = 0; panel < gemm->panels; panel++) {
        LLVMValueRef p[TILE_POINTERS], own[TILE_ROWS_MAX][PANEL_VECTORS];
        pointers_at(e, gemm, panel, p);
        for (unsigned r = 0; r < rows; r++)
            for (unsigned v = 0; v < PANEL_VECTORS; v++)
                own[r][v] = sums[r * vectors_of(gemm) + panel * PANEL_VECTORS + v];
        gemm->finish(e, gemm, rows, own, p);
    }
}

static void generate_tile(struct emit *e, struct gemm *gemm, unsigned rows, const char *name)
{
    LLVMValueRef tile = inner_function(e, context_printf(e->context, "%s_%u", name, rows), gemm->tile_type);
    gemm->tiles[rows] = tile;
    LLVMValueRef carried[CARRIED_MAX], p[TILE_POINTERS];
    for (unsigned panel = 0; gemm->prepare && rows >= ROWS_TO_PREFETCH && panel < gemm->panels; panel++) {
        pointers_at(e, gemm, panel, p);
        gemm->prepare(e, gemm, rows, p);
    }
    if (gemm->weights.scales) {
        multiply_blocks(e, gemm, rows, carried);
    } else {
        for (unsigned i = 0; i < rows * vectors_of(gemm); i++)
            carried[i] = splat_f32(e, 0, e->level->lanes);
        carried[rows * vectors_of(gemm)] = LLVMGetParam(tile, TILE_AHEAD);
        struct reading reading = read_rows(e, gemm, rows);
        add_products(e, gemm, rows, &reading, const_i64(e, 0), LLVMGetParam(tile, TILE_B), gemm->k, carried);
    }
    finish_tile(e, gemm, rows, carried);
    LLVMBuildRetVoid(e->builder);
}

void generate_expansion(struct emit *e, struct gemm *gemm, const char *name)
{
    const struct gemm *many = gemm->many;
    LLVMTypeRef params[] = {e->ptr, e->ptr};
    gemm->expand_type = LLVMFunctionType(e->none, params, 2, false);
    gemm->expand = inner_function(e, context_printf(e->context, "%s_expand", name), gemm->expand_type);
    LLVMValueRef codes = LLVMGetParam(gemm->expand, 0), to = LLVMGetParam(gemm->expand, 1);
    unsigned step = step_of(gemm), unroll = step * 4, lanes = e->level->lanes;
    struct loop loop = loop_begin_once(e, 0, gemm->k / unroll, 1, NULL, 0);
    codes = offset(e, codes, scaled(e, loop.index, k_bytes(&gemm->read, unroll)));
    to = offset(e, to, scaled(e, loop.index, k_bytes(&many->read, unroll)));
    for (unsigned k = 0; k < unroll; k += step) {
        LLVMValueRef columns[PANEL_VECTORS][2];
        load_columns(e, gemm, codes, k, columns);
        for (unsigned part = 0; part < parts_of(e, gemm); part++)
            for (unsigned v = 0; v < PANEL_VECTORS; v++)
                store(e, columns[v][part],
                      offset_const(e, to, k_bytes(&many->read, k) + (part * PANEL_VECTORS + v) * lanes * 4), lanes * 4);
    }
    loop_end(e, &loop, NULL);
    LLVMBuildRetVoid(e->builder);
}

void generate_tiles(struct emit *e, struct gemm *gemm, const char *name)
{
    LLVMTypeRef params[TILE_OWN + TILE_POINTERS];
    for (unsigned i = 0; i < TILE_OWN + TILE_POINTERS; i++)
        params[i] = i == TILE_STEP ? e->i64 : e->ptr;
    gemm->tile_type = LLVMFunctionType(e->none, params, TILE_OWN + TILE_POINTERS, false);
    for (unsigned rows = gemm->least_rows; rows <= gemm->most_rows; rows++)
        generate_tile(e, gemm, rows, name);
}
