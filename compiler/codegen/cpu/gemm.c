// Cuts the rows of a matrix product into register tiles, and has them prefetch what comes next (gemm.h).
#include "amx.h"
#include "tile.h"

enum { PREFETCH_AHEAD = 8192 }; // of a tile's own reads; measured

unsigned tile_rows(struct emit *e, uint32_t dtype)
{
    bool widened = dtype == dtype_f16 || (dtype == dtype_bf16 && !e->level->dot_bf16);
    return widened ? e->level->widened_rows : e->level->tile_rows;
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
