// Generates the register tiles and the loop that cuts rows into them (gemm.h).
#include "gemm.h"
#include "amx.h"
#include "codes.h"

// measured: from so many rows on prefetching gains, and so far ahead of the reads
enum { ROWS_TO_PREFETCH = 7, PREFETCH_AHEAD = 8192 };

enum { WIDE_E4M3 = 1 }; // most rows of E4M3 that meet several panels

unsigned tile_rows(struct emit *e, uint32_t dtype)
{
    bool widened = dtype == dtype_f16 || (dtype == dtype_bf16 && !e->level->dot_bf16);
    return widened ? e->level->widened_rows : e->level->tile_rows;
}

static bool uses_dot(struct emit *e, const struct gemm *gemm)
{
    return e->level->dot_bf16 && (gemm->read.dtype == dtype_bf16 || gemm->read.split);
}

// From so many rows on a tile computes for longer than its weights take to come, and prefetching gains.
static unsigned rows_to_prefetch(const struct gemm *gemm)
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

// k values of a round of the loop; k is a multiple of 8
static unsigned unroll_of(const struct gemm *gemm)
{
    return gemm->amx ? AMX_K : step_of(gemm) * 4;
}

// `count` k values of a panel
static int64_t k_bytes(const struct plan_param *weights, int64_t count)
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

// What a tile function is given besides its finisher's pointers.
enum { TILE_A, TILE_B, TILE_AHEAD, TILE_STEP, TILE_SCALES, TILE_OWN };

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

// a function that expands the codes of a panel, without scales, to what the tiles for many rows read
static void generate_expansion(struct emit *e, struct gemm *gemm, const char *name)
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

// what multiplies a copy of a panel that is expanded to numbers of `dtype`
static struct gemm *expand_to(struct emit *e, struct gemm *gemm, uint32_t dtype, const char *name)
{
    gemm->many = context_alloc(e->context, sizeof *gemm->many);
    *gemm->many = *gemm;
    gemm->many->read = kernel_weights(e, dtype, gemm->weights.rows, gemm->k, false, false);
    generate_expansion(e, gemm, name);
    return gemm->many;
}

static void generate_tiles(struct emit *e, struct gemm *gemm, const char *name)
{
    LLVMTypeRef params[TILE_OWN + TILE_POINTERS];
    for (unsigned i = 0; i < TILE_OWN + TILE_POINTERS; i++)
        params[i] = i == TILE_STEP ? e->i64 : e->ptr;
    gemm->tile_type = LLVMFunctionType(e->none, params, TILE_OWN + TILE_POINTERS, false);
    for (unsigned rows = gemm->least_rows; rows <= gemm->most_rows; rows++)
        generate_tile(e, gemm, rows, name);
}

// Most rows of tiles of so many panels. Look-ups of E4M3 keep one panel's chains busy from two rows on.
static unsigned wide_rows(struct emit *e, const struct gemm *gemm, unsigned panels)
{
    if (!dtype_quantised(gemm->read.dtype))
        return gemm->most_rows / panels;
    if (gemm->read.dtype == dtype_fp8_e4m3 && uses_dot(e, gemm))
        return panels == WIDE_PANELS ? WIDE_E4M3 : 0;
    return e->level->coded_rows / panels;
}

// Tiles of several panels, for as few rows as leave room for their sums: the fewer rows, the more panels. Where a vector
// of weights is 64 bytes from memory, one panel's two chains keep up, and one stream is read the fastest; not so the
// router's, whose panels are few.
static void wide_tiles(struct emit *e, struct gemm *gemm, const char *name)
{
    if (gemm->prefetches && !dtype_quantised(gemm->weights.dtype) && e->level->lanes >= 16)
        return;
    unsigned least = 1;
    for (unsigned i = 0; i < WIDE_SHAPES; i++) {
        unsigned panels = WIDE_PANELS >> i, most = wide_rows(e, gemm, panels);
        if (most < least || plan_panels(&gemm->weights) < panels)
            continue;
        struct gemm *wide = gemm->wide[i] = context_alloc(e->context, sizeof *wide);
        *wide = *gemm;
        wide->panels = panels;
        wide->least_rows = least;
        wide->most_rows = most;
        generate_tiles(e, wide, context_printf(e->context, "%s_%u", name, panels));
        least = most + 1;
    }
}

void gemm_tiles(struct emit *e, struct gemm *gemm, const char *name)
{
    gemm->read = gemm->weights;
    gemm->least_rows = gemm->panels = 1;
    if (amx_multiplies(e, gemm)) {
        if (dtype_quantised(gemm->weights.dtype))
            expand_to(e, gemm, dtype_bf16, name);
        amx_tiles(e, gemm, name);
        return;
    }
    if (!dtype_quantised(gemm->weights.dtype) || uses_dot(e, gemm)) { // dot products hide the look-ups beside them
        wide_tiles(e, gemm, name);
        generate_tiles(e, gemm, name);
        return;
    }
    struct gemm *many = expand_to(e, gemm, dtype_f32, name);
    gemm->most_rows = e->level->coded_rows < many->most_rows ? e->level->coded_rows : many->most_rows;
    unsigned least = gemm->most_rows + 1, shared = (many->most_rows + 1) / 2; // by two tiles, evenly
    many->least_rows = least < shared ? least : shared;
    wide_tiles(e, gemm, name);
    generate_tiles(e, gemm, name);
    generate_tiles(e, many, context_printf(e->context, "%s_many", name));
}

int64_t gemm_scratch(const struct gemm *gemm)
{
    return gemm->many ? plan_round_up(plan_panel_codes(&gemm->many->read), 64) : 0;
}

static void call_tile(struct emit *e, const struct gemm *gemm, LLVMValueRef rows, LLVMValueRef *args)
{
    LLVMBasicBlockRef after = new_block(e, "tile_done"), other = new_block(e, "no_tile");
    LLVMValueRef choice = LLVMBuildSwitch(e->builder, rows, other, gemm->most_rows);
    for (unsigned i = gemm->least_rows; i <= gemm->most_rows; i++) {
        LLVMBasicBlockRef block = new_block(e, "tile");
        LLVMAddCase(choice, const_i64(e, i), block);
        enter(e, block);
        LLVMBuildCall2(e->builder, gemm->tile_type, gemm->tiles[i], args, TILE_OWN + TILE_POINTERS, "");
        LLVMBuildBr(e->builder, after);
    }
    enter(e, other);
    LLVMBuildUnreachable(e->builder);
    LLVMMoveBasicBlockAfter(after, other);
    enter(e, after);
}

static LLVMValueRef either(struct emit *e, LLVMValueRef condition, LLVMValueRef yes, LLVMValueRef no)
{
    return LLVMBuildSelect(e->builder, condition, yes, no, "");
}

// A tile alone prefetches a little ahead of its own reads. Of several each brings as much as the others, so that memory is
// read as evenly as they compute: the first, by the same distance ahead of its own reads, what is left of its panel and
// then so far into the next one, which the others, who find theirs in L2, go on with. The first panel of all has only a tile
// alone to bring it. Behind the last one the others bring the rows of A that come next, those of the next expert, where rows
// follow one another; as many as there are now, for nobody has counted them.
static struct ahead spread_reading(struct emit *e, const struct gemm *gemm, struct place at, LLVMValueRef rows,
                                   LLVMValueRef a, LLVMValueRef tiles)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef bytes = const_i64(e, plan_panel_codes(&gemm->weights)), ahead = const_i64(e, PREFETCH_AHEAD);
    LLVMValueRef whole = const_i64(e, k_bytes(&gemm->weights, unroll_of(gemm)));
    LLVMValueRef each = LLVMBuildUDiv(b, bytes, tiles, ""), each_step = LLVMBuildUDiv(b, whole, tiles, "");
    LLVMValueRef brought = LLVMBuildAdd(b, ahead, LLVMBuildSub(b, bytes, each, ""), "");
    LLVMValueRef others = LLVMBuildSub(b, tiles, const_i64(e, 1), "");
    others = either(e, LLVMBuildICmp(b, LLVMIntEQ, others, const_i64(e, 0), ""), tiles, others);
    LLVMValueRef row_bytes = scaled(e, rows, gemm->by_row ? 0 : gemm->a_stride), share = LLVMBuildUDiv(b, row_bytes, others, "");
    LLVMValueRef rounds = const_i64(e, (gemm->k + unroll_of(gemm) - 1) / unroll_of(gemm));
    return (struct ahead){
        .first = offset(e, at.panel, either(e, at.has_before, brought, ahead)),
        .first_step = either(e, at.has_before, each_step, whole),
        .later = either(e, at.has_after, offset(e, at.next, ahead), offset(e, a, row_bytes)),
        .later_step = either(e, at.has_after, each_step, LLVMBuildUDiv(b, share, rounds, "")),
        .each = either(e, at.has_after, each, share),
    };
}

// Tiles of an expanded copy have nothing else to read from memory: an equal share of the next panel's codes behind each.
static struct ahead share_codes(struct emit *e, const struct gemm *gemm, struct place at, LLVMValueRef tiles)
{
    LLVMValueRef each = LLVMBuildUDiv(e->builder, const_i64(e, plan_panel_bytes(&gemm->weights)), tiles, "");
    LLVMValueRef whole = const_i64(e, k_bytes(&gemm->weights, unroll_of(gemm)));
    LLVMValueRef step = LLVMBuildUDiv(e->builder, whole, tiles, "");
    return (struct ahead){at.next, step, offset(e, at.next, each), step, each};
}

// Very few rows are bound by memory anyway and only lose by prefetching.
struct ahead place_to_prefetch(struct emit *e, const struct gemm *gemm, struct place at, LLVMValueRef rows,
                               LLVMValueRef a, LLVMValueRef tiles, bool direct)
{
    struct ahead ahead = direct ? spread_reading(e, gemm, at, rows, a, tiles) : share_codes(e, gemm, at, tiles);
    LLVMValueRef least = const_i64(e, rows_to_prefetch(gemm)), none = const_i64(e, 0);
    LLVMValueRef enough = LLVMBuildICmp(e->builder, LLVMIntSGE, rows, least, "");
    ahead.first = either(e, enough, ahead.first, at.panel);
    ahead.later = either(e, enough, ahead.later, at.panel);
    ahead.first_step = either(e, enough, ahead.first_step, none);
    ahead.later_step = either(e, enough, ahead.later_step, none);
    return ahead;
}

void ahead_of(struct emit *e, const struct ahead *ahead, LLVMValueRef tile, LLVMValueRef *from, LLVMValueRef *step)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef is_first = LLVMBuildICmp(b, LLVMIntEQ, tile, const_i64(e, 0), "");
    LLVMValueRef off = LLVMBuildMul(b, LLVMBuildSub(b, tile, const_i64(e, 1), ""), ahead->each, "");
    *from = either(e, is_first, ahead->first, offset(e, ahead->later, off));
    *step = either(e, is_first, ahead->first_step, ahead->later_step);
}

// `read` is where the tiles read the panel, or its expanded copy
static void multiply_rows(struct emit *e, const struct gemm *gemm, LLVMValueRef rows, LLVMValueRef a,
                          struct place at, LLVMValueRef read, LLVMValueRef *p)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef most = const_i64(e, gemm->most_rows);
    LLVMValueRef rounded = LLVMBuildAdd(b, rows, const_i64(e, gemm->most_rows - 1), "");
    LLVMValueRef tiles = LLVMBuildUDiv(b, rounded, most, "");
    LLVMBasicBlockRef after = if_begin(e, LLVMBuildICmp(b, LLVMIntSGT, rows, const_i64(e, 0), ""));
    LLVMValueRef small = LLVMBuildUDiv(b, rows, tiles, ""), larger = LLVMBuildURem(b, rows, tiles, "");

    struct ahead ahead = place_to_prefetch(e, gemm, at, rows, a, tiles, read == at.panel);
    LLVMValueRef first = const_i64(e, 0), from, step;
    struct loop loop = loop_begin(e, const_i64(e, 0), tiles, 1, &first, 1);
    LLVMValueRef is_larger = LLVMBuildICmp(b, LLVMIntSLT, loop.index, larger, "");
    LLVMValueRef count = LLVMBuildAdd(b, small, LLVMBuildZExt(b, is_larger, e->i64, ""), "");

    ahead_of(e, &ahead, loop.index, &from, &step);
    LLVMValueRef scales = offset_const(e, at.panel, plan_panel_codes(&gemm->weights));
    LLVMValueRef own_a = gemm->by_row ? a : offset(e, a, scaled(e, first, gemm->a_stride));
    LLVMValueRef args[TILE_OWN + TILE_POINTERS] = {own_a, read, from, step, scales};
    for (unsigned i = 0; i < TILE_POINTERS; i++)
        args[TILE_OWN + i] = p[i] ? offset(e, p[i], scaled(e, first, gemm->p_row[i])) : LLVMConstNull(e->ptr);
    call_tile(e, gemm, count, args);
    first = LLVMBuildAdd(b, first, count, "");
    loop_end(e, &loop, &first);
    if_end(e, after);
}

// one panel, from memory or by way of an expanded copy
static void multiply_panel(struct emit *e, const struct gemm *gemm, LLVMValueRef rows, LLVMValueRef a, struct place at,
                           LLVMValueRef *p)
{
    if (!gemm->many) {
        multiply_rows(e, gemm, rows, a, at, at.panel, p);
        return;
    }
    LLVMValueRef few = const_i64(e, gemm->most_rows);
    LLVMBasicBlockRef many = new_block(e, "many"), after = new_block(e, "multiplied");
    LLVMBasicBlockRef coded = new_block(e, "few");
    LLVMBuildCondBr(e->builder, LLVMBuildICmp(e->builder, LLVMIntSGT, rows, few, ""), many, coded);
    enter(e, coded);
    multiply_rows(e, gemm, rows, a, at, at.panel, p);
    LLVMBuildBr(e->builder, after);
    LLVMMoveBasicBlockAfter(many, LLVMGetInsertBlock(e->builder));
    enter(e, many);
    LLVMBuildCall2(e->builder, gemm->expand_type, gemm->expand, (LLVMValueRef[]){at.panel, e->scratch}, 2, "");
    multiply_rows(e, gemm->many, rows, a, at, e->scratch, p);
    LLVMBuildBr(e->builder, after);
    LLVMMoveBasicBlockAfter(after, LLVMGetInsertBlock(e->builder));
    enter(e, after);
}

void move_to_panel(struct emit *e, const struct gemm *gemm, LLVMValueRef panel, LLVMValueRef *p, LLVMValueRef *moved)
{
    for (unsigned i = 0; i < TILE_POINTERS; i++)
        moved[i] = p[i] ? offset(e, p[i], scaled(e, panel, gemm->p_panel[i])) : NULL;
}

// The panels from `begin` on, in whole groups, where there are as few rows as these tiles are for. Returns the number of
// the first panel that is left.
static LLVMValueRef multiply_wide(struct emit *e, const struct gemm *wide, LLVMValueRef rows, LLVMValueRef a,
                                  LLVMValueRef begin, LLVMValueRef panels, LLVMValueRef panel, LLVMValueRef *p)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef above = LLVMBuildSub(b, rows, const_i64(e, wide->least_rows), ""), none = const_i64(e, 0);
    LLVMValueRef few = LLVMBuildICmp(b, LLVMIntULT, above, const_i64(e, wide->most_rows - wide->least_rows + 1), "");
    LLVMValueRef left = LLVMBuildSub(b, panels, begin, "");
    LLVMValueRef rest = LLVMBuildURem(b, left, const_i64(e, wide->panels), "");
    LLVMValueRef end = LLVMBuildSelect(b, few, LLVMBuildSub(b, panels, rest, ""), begin, "");
    struct loop loop = loop_begin(e, begin, end, wide->panels, NULL, 0);
    LLVMValueRef own = offset(e, panel, scaled(e, loop.index, plan_panel_bytes(&wide->weights))), moved[TILE_POINTERS];
    move_to_panel(e, wide, loop.index, p, moved);
    LLVMValueRef enough = LLVMBuildICmp(b, LLVMIntSGE, rows, const_i64(e, rows_to_prefetch(wide)), "");
    LLVMValueRef from = LLVMBuildSelect(b, enough, offset_const(e, own, PREFETCH_AHEAD / wide->panels), own, "");
    LLVMValueRef step = LLVMBuildSelect(b, enough, const_i64(e, k_bytes(&wide->weights, unroll_of(wide))), none, "");
    LLVMValueRef args[TILE_OWN + TILE_POINTERS] = {a, own, from, step,
                                                   offset_const(e, own, plan_panel_codes(&wide->weights))};
    for (unsigned i = 0; i < TILE_POINTERS; i++)
        args[TILE_OWN + i] = moved[i] ? moved[i] : LLVMConstNull(e->ptr);
    call_tile(e, wide, rows, args);
    loop_end(e, &loop, NULL);
    return end;
}

struct place panel_at(struct emit *e, const struct gemm *gemm, const struct loop *loop, LLVMValueRef begin,
                      LLVMValueRef panel, LLVMValueRef next)
{
    LLVMBuilderRef b = e->builder;
    int64_t bytes = plan_panel_bytes(&gemm->weights);
    LLVMValueRef own = offset(e, panel, scaled(e, loop->index, bytes));
    LLVMValueRef after = LLVMBuildAdd(b, loop->index, const_i64(e, 1), "");
    LLVMValueRef is_last = LLVMBuildICmp(b, LLVMIntEQ, after, loop->end, "");
    return (struct place){.panel = own,
                          .next = either(e, is_last, next, offset_const(e, own, bytes)),
                          .has_before = LLVMBuildICmp(b, LLVMIntSGT, loop->index, begin, ""),
                          .has_after = LLVMBuildNot(b, is_last, "")};
}

// Beside each panel one more of the rows of A that come next goes on its way, where rows are read by number.
static void bring_next_row(struct emit *e, const struct gemm *gemm, struct a_rows a, LLVMValueRef panel, LLVMValueRef numbers)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef there = LLVMBuildICmp(b, LLVMIntSLT, panel, a.after, "");
    LLVMValueRef enough = LLVMBuildICmp(b, LLVMIntSGE, a.count, const_i64(e, rows_to_prefetch(gemm)), "");
    LLVMBasicBlockRef brought = if_begin(e, LLVMBuildAnd(b, there, enough, ""));
    LLVMValueRef number = element(e, e->i32, 4, numbers, LLVMBuildAdd(b, a.count, panel, ""));
    LLVMValueRef row = offset(e, a.first, scaled(e, LLVMBuildZExt(b, number, e->i64, ""), gemm->a_stride));
    struct loop lines = loop_begin_once(e, 0, gemm->a_stride, 64, NULL, 0);
    prefetch(e, offset(e, row, lines.index), PREFETCH_L2);
    loop_end(e, &lines, NULL);
    if_end(e, brought);
}

void gemm_rows(struct emit *e, const struct gemm *gemm, struct a_rows a, LLVMValueRef panels, LLVMValueRef panel,
               LLVMValueRef next, LLVMValueRef p[TILE_POINTERS])
{
    if (gemm->amx) {
        amx_rows(e, gemm, a.count, a.first, panels, panel, next, p);
        return;
    }
    LLVMValueRef begin = const_i64(e, 0);
    for (unsigned i = 0; i < WIDE_SHAPES; i++)
        if (gemm->wide[i])
            begin = multiply_wide(e, gemm->wide[i], a.count, a.first, begin, panels, panel, p);
    struct loop loop = loop_begin(e, begin, panels, 1, NULL, 0);
    LLVMValueRef moved[TILE_POINTERS];
    struct place at = panel_at(e, gemm, &loop, begin, panel, next);
    move_to_panel(e, gemm, loop.index, p, moved);
    if (gemm->by_row)
        bring_next_row(e, gemm, a, loop.index, p[ROW_NUMBERS]);
    multiply_panel(e, gemm, a.count, a.first, at, moved);
    loop_end(e, &loop, NULL);
}
