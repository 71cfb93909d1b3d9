// Matrix products on AMX tiles. A tile has up to 16 rows of 64 bytes; a block of up to 32 rows times a panel of 32
// columns takes two by two tiles of sums, two of A and two of weights: all eight. Every output is one chain whatever the
// number of rows: of each 32 k the even and the odd ones are added up apart, then together, then to the sum. Weights that
// are codes are expanded, panel by panel, into the worker's scratch; sums of their blocks are scaled in vectors.
#include "amx.h"
#include "codes.h"

enum {
    TILE_ROW_BYTES = 64,      // AMX_K numbers of A, or 16 sums
    TILE_HEIGHT = 16,         // most rows of a tile
    BLOCK_TILES = 2,          // most tiles of rows of a block
    CONFIGURATION_BYTES = 64, // of `ldtilecfg`
};

// Of a panel's row of pairs and of the sums in memory, before they are finished: one tile's row for each vector.
enum { PANEL_STRIDE = PANEL_VECTORS * TILE_ROW_BYTES };

struct amx {
    int64_t rest;     // k after whole tiles, wherever a run of k has some
    unsigned columns; // tiles of columns in a pass over k: all, or one where the rest of k needs tiles too
    LLVMTypeRef type;
    LLVMValueRef blocks[BLOCK_TILES + 1]; // functions, by tiles of rows
    LLVMValueRef configurations;          // for 1 ... 16 rows of a tile
};

enum { BLOCK_A, BLOCK_B, BLOCK_AHEAD, BLOCK_STEP, BLOCK_ROWS, BLOCK_SCALES, BLOCK_OWN };

// The tiles' numbers: sums from 0 on, then A and weights; those of the rest stand where a second column has its own.
enum { TILE_REST_A = 2, TILE_A = 4, TILE_B = 6, TILE_REST_B = 7 };

// k that is multiplied in one go: that of a block of codes that shares scales, else all
static int64_t run_of(const struct gemm *gemm)
{
    return gemm->weights.scales && gemm->weights.block_cols < gemm->k ? gemm->weights.block_cols : gemm->k;
}

// What a run leaves after whole tiles, and what the last, shorter one does; a rest of one size has tiles.
static bool rest_of(const struct gemm *gemm, int64_t *rest)
{
    int64_t each = run_of(gemm) % AMX_K, last = gemm->k % run_of(gemm) % AMX_K;
    *rest = each ? each : last;
    return !each || !last || each == last;
}

bool amx_multiplies(struct emit *e, const struct gemm *gemm)
{
    int64_t rest;
    bool bf16 = gemm->weights.dtype == dtype_bf16 || gemm->weights.split;
    return e->level->amx && !gemm->by_row && gemm->a_dtype == dtype_bf16 && bf16 && rest_of(gemm, &rest);
}

static LLVMValueRef tile(struct emit *e, unsigned number)
{
    return LLVMConstInt(e->i8, number, false);
}

static void load_tile(struct emit *e, unsigned number, LLVMValueRef pointer, int64_t stride)
{
    LLVMValueRef args[] = {tile(e, number), pointer, const_i64(e, stride)};
    intrinsic(e, "llvm.x86.tileloadd64", NULL, args, 3);
}

static void store_tile(struct emit *e, unsigned number, LLVMValueRef pointer, int64_t stride)
{
    LLVMValueRef args[] = {tile(e, number), pointer, const_i64(e, stride)};
    intrinsic(e, "llvm.x86.tilestored64", NULL, args, 3);
}

// What a block function works on.
struct block {
    const struct gemm *gemm;
    const struct amx *amx;
    unsigned tiles;               // of rows
    LLVMValueRef rows, sums;      // how many, and their sums in memory
    LLVMValueRef a[BLOCK_TILES]; // their first rows; the last tile ends with the block and may overlap the one before,
    LLVMValueRef to[BLOCK_TILES]; // whose sums, which are the same, it writes again
};

// sums += A x weights over the k of one tile's row, at byte `at` of A's rows and at `b` of the weights
static void multiply_tiles(struct emit *e, const struct block *block, LLVMValueRef at, LLVMValueRef b, unsigned first_a,
                           unsigned first_b)
{
    unsigned columns = block->amx->columns;
    for (unsigned c = 0; c < columns; c++)
        load_tile(e, first_b + c, offset_const(e, b, c * TILE_ROW_BYTES), PANEL_STRIDE);
    for (unsigned r = 0; r < block->tiles; r++) {
        load_tile(e, first_a + r, offset(e, block->a[r], at), block->gemm->a_stride);
        for (unsigned c = 0; c < columns; c++) {
            LLVMValueRef args[] = {tile(e, r * columns + c), tile(e, first_a + r), tile(e, first_b + c)};
            intrinsic(e, "llvm.x86.tdpbf16ps", NULL, args, 3);
        }
    }
}

// every line of [ahead, ahead + step); returns the end
static LLVMValueRef prefetch_lines(struct emit *e, LLVMValueRef ahead)
{
    LLVMValueRef step = LLVMGetParam(e->function, BLOCK_STEP);
    struct loop lines = loop_begin(e, const_i64(e, 0), step, 64, NULL, 0);
    prefetch(e, offset(e, ahead, lines.index), PREFETCH_L2);
    loop_end(e, &lines, NULL);
    return offset(e, ahead, step);
}

// the sums of a run of `count` k and of the tiles of columns from `column` on, into memory; A's rows at byte `at`, the
// panel at b. Returns the place to prefetch.
static LLVMValueRef add_columns(struct emit *e, const struct block *block, unsigned column, LLVMValueRef at,
                                LLVMValueRef b, int64_t count, LLVMValueRef ahead)
{
    const struct amx *amx = block->amx;
    unsigned sums = block->tiles * amx->columns;
    bool prefetches = block->gemm->prefetches && column == 0;
    int64_t k_bytes = PANEL_STRIDE / 2, whole = count / AMX_K * AMX_K;
    b = offset_const(e, b, column * TILE_ROW_BYTES);
    for (unsigned i = 0; i < sums; i++)
        intrinsic(e, "llvm.x86.tilezero", NULL, (LLVMValueRef[]){tile(e, i)}, 1);
    if (whole > 0) {
        struct loop loop = loop_begin_once(e, 0, whole, AMX_K, &ahead, prefetches);
        LLVMValueRef a_k = LLVMBuildAdd(e->builder, at, scaled(e, loop.index, 2), "");
        multiply_tiles(e, block, a_k, offset(e, b, scaled(e, loop.index, k_bytes)), TILE_A, TILE_B);
        if (prefetches)
            ahead = prefetch_lines(e, ahead);
        loop_end(e, &loop, &ahead);
    }
    if (count > whole) {
        LLVMValueRef a_k = LLVMBuildAdd(e->builder, at, const_i64(e, whole * 2), "");
        multiply_tiles(e, block, a_k, offset_const(e, b, whole * k_bytes), TILE_REST_A, TILE_REST_B);
    }
    for (unsigned i = 0; i < sums; i++) {
        unsigned to = (column + i % amx->columns) * TILE_ROW_BYTES;
        store_tile(e, i, offset_const(e, block->to[i / amx->columns], to), PANEL_STRIDE);
    }
    return ahead;
}

static LLVMValueRef add_run(struct emit *e, const struct block *block, LLVMValueRef at, LLVMValueRef b, int64_t count,
                            LLVMValueRef ahead)
{
    for (unsigned column = 0; column < PANEL_VECTORS; column += block->amx->columns)
        ahead = add_columns(e, block, column, at, b, count, ahead);
    return ahead;
}

static LLVMValueRef place_for_sums(struct emit *e, const struct block *block)
{
    LLVMTypeRef bytes = LLVMArrayType(e->i8, block->tiles * TILE_HEIGHT * PANEL_STRIDE);
    LLVMValueRef place = LLVMBuildAlloca(e->builder, bytes, "sums");
    LLVMSetAlignment(place, TILE_ROW_BYTES);
    return place;
}

// totals += scales x sums, row by row; `block_number`: of the codes' blocks along k
static void add_scaled(struct emit *e, const struct block *block, LLVMValueRef totals, LLVMValueRef block_number)
{
    const struct gemm *gemm = block->gemm;
    const struct plan_param *w = &gemm->weights;
    unsigned lanes = e->level->lanes;
    LLVMValueRef scales = LLVMGetParam(e->function, BLOCK_SCALES), factors[PANEL_VECTORS], own[PANEL_VECTORS];
    scales = offset(e, scales, scaled(e, block_number, w->scales * plan_scale_bytes(w)));
    load_scales(e, w, scales, factors);
    struct loop loop = loop_begin(e, const_i64(e, 0), block->rows, 1, NULL, 0);
    LLVMValueRef at = scaled(e, loop.index, PANEL_STRIDE), row_scales = NULL;
    if (gemm->row_scales) {
        row_scales = offset(e, block->a[0], scaled(e, loop.index, gemm->a_stride));
        row_scales = offset_const(e, offset(e, row_scales, scaled(e, block_number, 4)), gemm->row_scales);
    }
    scale_row(e, gemm, row_scales, factors, own);
    for (unsigned v = 0; v < PANEL_VECTORS; v++) {
        LLVMValueRef from = offset_const(e, offset(e, block->sums, at), v * TILE_ROW_BYTES);
        LLVMValueRef to = offset_const(e, offset(e, totals, at), v * TILE_ROW_BYTES);
        LLVMValueRef sum = load_f32(e, from, dtype_f32, lanes), total = load_f32(e, to, dtype_f32, lanes);
        store_f32(e, multiply_add(e, sum, own[v], total), to, dtype_f32, lanes);
    }
    loop_end(e, &loop, NULL);
}

// The totals of all blocks of codes, in memory.
static LLVMValueRef add_blocks(struct emit *e, const struct block *block, LLVMValueRef b)
{
    const struct gemm *gemm = block->gemm;
    int64_t run = run_of(gemm), whole = gemm->k / run, rest = gemm->k % run;
    LLVMValueRef totals = place_for_sums(e, block), ahead = LLVMGetParam(e->function, BLOCK_AHEAD);
    struct loop clear = loop_begin(e, const_i64(e, 0), scaled(e, block->rows, PANEL_STRIDE), TILE_ROW_BYTES, NULL, 0);
    store_f32(e, splat_f32(e, 0, e->level->lanes), offset(e, totals, clear.index), dtype_f32, e->level->lanes);
    loop_end(e, &clear, NULL);
    struct loop loop = loop_begin_once(e, 0, whole, 1, &ahead, 1);
    ahead = add_run(e, block, scaled(e, loop.index, run * 2), offset(e, b, scaled(e, loop.index, run * PANEL_STRIDE / 2)),
                    run, ahead);
    add_scaled(e, block, totals, loop.index);
    loop_end(e, &loop, &ahead);
    if (rest > 0) {
        add_run(e, block, const_i64(e, whole * run * 2), offset_const(e, b, whole * run * PANEL_STRIDE / 2), rest, ahead);
        add_scaled(e, block, totals, const_i64(e, whole));
    }
    return totals;
}

// hands the sums to the finisher, row by row
static void finish_rows(struct emit *e, const struct gemm *gemm, LLVMValueRef sums, LLVMValueRef rows)
{
    unsigned lanes = e->level->lanes;
    struct loop loop = loop_begin(e, const_i64(e, 0), rows, 1, NULL, 0);
    LLVMValueRef row = offset(e, sums, scaled(e, loop.index, PANEL_STRIDE)), p[TILE_POINTERS], own[1][PANEL_VECTORS];
    for (unsigned v = 0; v < PANEL_VECTORS; v++)
        own[0][v] = load_f32(e, offset_const(e, row, v * TILE_ROW_BYTES), dtype_f32, lanes);
    for (unsigned i = 0; i < TILE_POINTERS; i++)
        p[i] = offset(e, LLVMGetParam(e->function, BLOCK_OWN + i), scaled(e, loop.index, gemm->p_row[i]));
    gemm->finish(e, gemm, 1, own, p);
    loop_end(e, &loop, NULL);
}

static void generate_block(struct emit *e, struct gemm *gemm, unsigned tiles, const char *name)
{
    struct amx *amx = gemm->amx;
    amx->blocks[tiles] = inner_function(e, context_printf(e->context, "%s_%u", name, tiles * TILE_HEIGHT), amx->type);
    struct block block = {.gemm = gemm, .amx = amx, .tiles = tiles, .rows = LLVMGetParam(e->function, BLOCK_ROWS)};
    LLVMValueRef b = LLVMGetParam(e->function, BLOCK_B);
    block.a[0] = LLVMGetParam(e->function, BLOCK_A);
    block.to[0] = block.sums = place_for_sums(e, &block);
    if (tiles == BLOCK_TILES) {
        LLVMValueRef last = LLVMBuildSub(e->builder, block.rows, const_i64(e, TILE_HEIGHT), "");
        block.a[1] = offset(e, block.a[0], scaled(e, last, gemm->a_stride));
        block.to[1] = offset(e, block.sums, scaled(e, last, PANEL_STRIDE));
    }
    if (gemm->weights.scales)
        block.sums = add_blocks(e, &block, b);
    else
        add_run(e, &block, const_i64(e, 0), b, gemm->k, LLVMGetParam(e->function, BLOCK_AHEAD));
    finish_rows(e, gemm, block.sums, block.rows);
    LLVMBuildRetVoid(e->builder);
}

static void configure(uint8_t *configuration, unsigned number, unsigned rows, unsigned row_bytes)
{
    configuration[16 + 2 * number] = (uint8_t)row_bytes; // of two bytes
    configuration[48 + number] = (uint8_t)rows;
}

// One for each number of rows that the tiles of A and of sums can have. Who has more rows uses the last, 16: its tiles
// overlap.
static void add_configurations(struct emit *e, struct amx *amx, const char *name)
{
    uint8_t all[TILE_HEIGHT][CONFIGURATION_BYTES] = {{0}};
    for (unsigned rows = 1; rows <= TILE_HEIGHT; rows++) {
        uint8_t *own = all[rows - 1];
        own[0] = 1; // palette
        for (unsigned i = 0; i < BLOCK_TILES * amx->columns; i++)
            configure(own, i, rows, TILE_ROW_BYTES);
        for (unsigned r = 0; r < BLOCK_TILES; r++)
            configure(own, TILE_A + r, rows, TILE_ROW_BYTES);
        for (unsigned c = 0; c < amx->columns; c++)
            configure(own, TILE_B + c, AMX_K / 2, TILE_ROW_BYTES);
        for (unsigned r = 0; r < BLOCK_TILES && amx->rest; r++)
            configure(own, TILE_REST_A + r, rows, (unsigned)amx->rest * 2);
        if (amx->rest)
            configure(own, TILE_REST_B, (unsigned)amx->rest / 2, TILE_ROW_BYTES);
    }
    LLVMValueRef bytes = LLVMConstStringInContext(e->llvm, (const char *)all, sizeof all, true);
    amx->configurations = LLVMAddGlobal(e->module, LLVMTypeOf(bytes), context_printf(e->context, "%s_tiles", name));
    LLVMSetInitializer(amx->configurations, bytes);
    LLVMSetLinkage(amx->configurations, LLVMInternalLinkage);
    LLVMSetGlobalConstant(amx->configurations, true);
    LLVMSetAlignment(amx->configurations, CONFIGURATION_BYTES);
}

void amx_tiles(struct emit *e, struct gemm *gemm, const char *name)
{
    struct amx *amx = gemm->amx = context_alloc(e->context, sizeof *amx);
    rest_of(gemm, &amx->rest);
    amx->columns = amx->rest ? 1 : PANEL_VECTORS;
    LLVMTypeRef params[BLOCK_OWN + TILE_POINTERS];
    for (unsigned i = 0; i < BLOCK_OWN + TILE_POINTERS; i++)
        params[i] = i == BLOCK_STEP || i == BLOCK_ROWS ? e->i64 : e->ptr;
    amx->type = LLVMFunctionType(e->none, params, BLOCK_OWN + TILE_POINTERS, false);
    add_configurations(e, amx, name);
    for (unsigned tiles = 1; tiles <= BLOCK_TILES; tiles++)
        generate_block(e, gemm, tiles, name);
}

// How rows become blocks: blocks of two tiles that share them evenly, and one of one tile where the number of tiles is odd.
struct blocks {
    LLVMValueRef height; // rows of a tile
    LLVMValueRef pairs, count;
    LLVMValueRef least, larger; // rows of a block of two tiles; the first `larger` ones have one more
};

static struct blocks cut_rows(struct emit *e, LLVMValueRef rows)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef high = const_i64(e, TILE_HEIGHT), one = const_i64(e, 1), none = const_i64(e, 0);
    LLVMValueRef height = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, rows, high, ""), rows, high, "");
    LLVMValueRef tiles = LLVMBuildUDiv(b, LLVMBuildAdd(b, rows, const_i64(e, TILE_HEIGHT - 1), ""), high, "");
    LLVMValueRef pairs = LLVMBuildLShr(b, tiles, one, ""), single = LLVMBuildAnd(b, tiles, one, "");
    LLVMValueRef shared = LLVMBuildSub(b, rows, LLVMBuildMul(b, single, height, ""), "");
    LLVMValueRef by = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntEQ, pairs, none, ""), one, pairs, "");
    return (struct blocks){height, pairs, LLVMBuildAdd(b, pairs, single, ""), LLVMBuildUDiv(b, shared, by, ""),
                           LLVMBuildURem(b, shared, by, "")};
}

static void call_block(struct emit *e, const struct amx *amx, LLVMValueRef is_pair, LLVMValueRef *args)
{
    LLVMBasicBlockRef pair = new_block(e, "pair"), single = new_block(e, "single"), after = new_block(e, "multiplied");
    LLVMBuildCondBr(e->builder, is_pair, pair, single);
    for (unsigned tiles = BLOCK_TILES; tiles >= 1; tiles--) {
        enter(e, tiles == BLOCK_TILES ? pair : single);
        LLVMBuildCall2(e->builder, amx->type, amx->blocks[tiles], args, BLOCK_OWN + TILE_POINTERS, "");
        LLVMBuildBr(e->builder, after);
    }
    enter(e, after);
}

// one panel, block by block; `read` is where they read it, or its expanded copy
static void multiply_blocks(struct emit *e, const struct gemm *gemm, const struct blocks *cut, LLVMValueRef a,
                            LLVMValueRef panel, LLVMValueRef read, const struct ahead *ahead, LLVMValueRef *p)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef first = const_i64(e, 0);
    struct loop loop = loop_begin(e, first, cut->count, 1, &first, 1);
    LLVMValueRef is_larger = LLVMBuildICmp(b, LLVMIntSLT, loop.index, cut->larger, "");
    LLVMValueRef is_pair = LLVMBuildICmp(b, LLVMIntSLT, loop.index, cut->pairs, "");
    LLVMValueRef rows = LLVMBuildAdd(b, cut->least, LLVMBuildZExt(b, is_larger, e->i64, ""), "");
    rows = LLVMBuildSelect(b, is_pair, rows, cut->height, "");
    LLVMValueRef args[BLOCK_OWN + TILE_POINTERS] = {[BLOCK_A] = offset(e, a, scaled(e, first, gemm->a_stride)),
                                                    [BLOCK_B] = read, [BLOCK_ROWS] = rows};
    args[BLOCK_SCALES] = offset_const(e, panel, plan_panel_codes(&gemm->weights));
    ahead_of(e, ahead, loop.index, &args[BLOCK_AHEAD], &args[BLOCK_STEP]);
    for (unsigned i = 0; i < TILE_POINTERS; i++)
        args[BLOCK_OWN + i] = p[i] ? offset(e, p[i], scaled(e, first, gemm->p_row[i])) : LLVMConstNull(e->ptr);
    call_block(e, gemm->amx, is_pair, args);
    first = LLVMBuildAdd(b, first, rows, "");
    loop_end(e, &loop, &first);
}

void amx_rows(struct emit *e, const struct gemm *gemm, LLVMValueRef rows, LLVMValueRef a, LLVMValueRef panels,
              LLVMValueRef panel, LLVMValueRef next, LLVMValueRef p[TILE_POINTERS])
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef none = const_i64(e, 0), one = const_i64(e, 1), moved[TILE_POINTERS];
    LLVMBasicBlockRef after = if_begin(e, LLVMBuildICmp(b, LLVMIntSGT, rows, none, ""));
    struct blocks cut = cut_rows(e, rows);
    LLVMValueRef number = scaled(e, LLVMBuildSub(b, cut.height, one, ""), CONFIGURATION_BYTES);
    LLVMValueRef configuration = offset(e, gemm->amx->configurations, number);
    intrinsic(e, "llvm.x86.ldtilecfg", NULL, &configuration, 1);
    struct loop loop = loop_begin(e, none, panels, 1, NULL, 0);
    struct place at = panel_at(e, gemm, &loop, none, panel, next);
    LLVMValueRef read = gemm->expand ? e->scratch : at.panel;
    if (gemm->expand)
        LLVMBuildCall2(b, gemm->expand_type, gemm->expand, (LLVMValueRef[]){at.panel, read}, 2, "");
    struct ahead ahead = place_to_prefetch(e, gemm, at, rows, a, cut.count, !gemm->expand);
    move_to_panel(e, gemm, loop.index, p, moved);
    multiply_blocks(e, gemm, &cut, a, at.panel, read, &ahead, moved);
    loop_end(e, &loop, NULL);
    intrinsic(e, "llvm.x86.tilerelease", NULL, NULL, 0);
    if_end(e, after);
}
