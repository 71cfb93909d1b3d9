// Rows in wire formats: E4M3 codes in blocks along the row with one scale each, packed in registers, and elements of any
// format read back as f32. Every level yields the same bytes: maxima are taken of integers, the one division is IEEE's,
// rounding is to nearest even (runtime/plan/messages.h says how a row is laid out).
#include "emit.h"

enum { MOST_CHUNKS = 128 / 4 };

static const double LARGEST = 448; // of E4M3
static const float FLOOR = 1e-4f;  // of a block's maximum
static const float RECIPROCAL = 1 / 448.f;

struct wire_format wire_of_code(int64_t code)
{
    return (struct wire_format){(uint32_t)(code & 0xff), (uint32_t)(code >> 16), (uint32_t)(code >> 8 & 0xff)};
}

bool wire_built(struct wire_format f)
{
    if (f.dtype == dtype_fp8_e4m3)
        return (f.block == 64 || f.block == 128) && (f.scale == scale_type_f32 || f.scale == scale_type_ue8m0);
    return dtype_computes(f.dtype) && !f.block && f.scale == scale_type_none;
}

static uint32_t float_bits(float value)
{
    union {
        float f;
        uint32_t u;
    } u = {value};
    return u.u;
}

static LLVMValueRef larger(struct emit *e, LLVMValueRef a, LLVMValueRef b)
{
    return LLVMBuildSelect(e->builder, LLVMBuildICmp(e->builder, LLVMIntUGT, a, b, ""), a, b, "");
}

// a vector's largest finite magnitude, as bits: those of numbers without sign order like the numbers
static LLVMValueRef largest_finite(struct emit *e, LLVMValueRef value, unsigned lanes)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef magnitude = LLVMBuildAnd(b, f32_to_bits(e, value), splat_i32(e, 0x7fffffff, lanes), "");
    LLVMValueRef finite = LLVMBuildICmp(b, LLVMIntULT, magnitude, splat_i32(e, 0x7f800000, lanes), "");
    return LLVMBuildSelect(b, finite, magnitude, splat_i32(e, 0, lanes), "");
}

// where a row's scales begin
static LLVMValueRef scales_of(struct emit *e, const struct wire_row *row)
{
    int64_t at = row->elements ? moe_codes_bytes(row->width, dtype_bytes(row->elements)) : row->width;
    return offset_const(e, row->coded, at);
}

// codes, from `column` of the row on
static void store_codes(struct emit *e, const struct wire_row *row, LLVMValueRef codes, LLVMValueRef at, unsigned lanes)
{
    if (row->elements)
        store_f32(e, e4m3_to_f32(e, codes, lanes), at, row->elements, lanes);
    else
        store(e, codes, at, 1);
}

// The factor that brings the block into E4M3's range; stores the scale that undoes it. `number`: of the block.
static LLVMValueRef block_factor(struct emit *e, const struct wire_row *row, LLVMValueRef largest, LLVMValueRef number)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef scales = scales_of(e, row);
    struct wire_format f = row->format;
    largest = larger(e, largest, const_i32(e, float_bits(FLOOR)));
    LLVMValueRef amax = LLVMBuildBitCast(b, largest, e->f32, "");
    LLVMValueRef scale = LLVMBuildFMul(b, amax, LLVMConstReal(e->f32, (double)RECIPROCAL), "");
    if (f.scale == scale_type_f32) {
        store(e, scale, offset(e, scales, scaled(e, number, 4)), 4);
        return LLVMBuildFDiv(b, LLVMConstReal(e->f32, LARGEST), amax, "");
    }
    LLVMValueRef bits = LLVMBuildBitCast(b, scale, e->i32, "");
    LLVMValueRef rest = LLVMBuildAnd(b, bits, const_i32(e, 0x7fffff), "");
    LLVMValueRef up = LLVMBuildZExt(b, LLVMBuildICmp(b, LLVMIntNE, rest, const_i32(e, 0), ""), e->i32, "");
    LLVMValueRef exponent = LLVMBuildAdd(b, LLVMBuildLShr(b, bits, const_i32(e, 23), ""), up, "");
    if (row->elements)
        store(e, LLVMBuildShl(b, exponent, const_i32(e, 23), ""), offset(e, scales, scaled(e, number, 4)), 4);
    else
        store(e, LLVMBuildTrunc(b, exponent, e->i8, ""), offset(e, scales, number), 1);
    LLVMValueRef inverse = LLVMBuildSub(b, const_i32(e, 254), exponent, "");
    return LLVMBuildBitCast(b, LLVMBuildShl(b, inverse, const_i32(e, 23), ""), e->f32, "");
}

// `count` elements, a multiple of 8 known now: read once, their maximum taken, quantised
static void pack_block(struct emit *e, const struct wire_row *row, LLVMValueRef number, unsigned count)
{
    LLVMValueRef values[MOST_CHUNKS], largest = const_i32(e, 0);
    unsigned widths[MOST_CHUNKS], chunks = 0, bytes = (unsigned)dtype_bytes(row->plain_dtype);
    LLVMValueRef first = scaled(e, number, row->format.block);
    unsigned element = row->elements ? (unsigned)dtype_bytes(row->elements) : 1;
    LLVMValueRef from = offset(e, row->plain, scaled(e, first, bytes));
    LLVMValueRef to = offset(e, row->coded, scaled(e, first, element));
    LLVMValueRef wide = NULL;
    for (unsigned at = 0; at < count; at += widths[chunks++]) {
        unsigned lanes = count - at < e->level->lanes ? count - at : e->level->lanes;
        widths[chunks] = lanes;
        values[chunks] = load_f32(e, offset_const(e, from, at * bytes), row->plain_dtype, lanes);
        values[chunks] = rounded_to(e, values[chunks], row->between, lanes);
        LLVMValueRef finite = largest_finite(e, values[chunks], lanes);
        if (lanes == e->level->lanes) {
            wide = wide ? larger(e, wide, finite) : finite;
            continue;
        }
        LLVMValueRef one = intrinsic(e, "llvm.vector.reduce.umax", LLVMTypeOf(finite), &finite, 1);
        largest = larger(e, largest, one);
    }
    if (wide)
        largest = larger(e, largest, intrinsic(e, "llvm.vector.reduce.umax", LLVMTypeOf(wide), &wide, 1));
    LLVMValueRef factor = block_factor(e, row, largest, number);
    for (unsigned i = 0, at = 0; i < chunks; at += widths[i++]) {
        LLVMValueRef scaled_value = LLVMBuildFMul(e->builder, values[i], splat(e, factor, widths[i]), "");
        store_codes(e, row, f32_to_e4m3(e, scaled_value, widths[i]), offset_const(e, to, at * element), widths[i]);
    }
}

void pack_blocks(struct emit *e, const struct wire_row *row, LLVMValueRef begin, LLVMValueRef end)
{
    int64_t block = row->format.block, rest = row->width % block;
    LLVMValueRef whole = const_i64(e, row->width / block);
    LLVMValueRef beyond = LLVMBuildICmp(e->builder, LLVMIntSGT, end, whole, "");
    struct loop blocks = loop_begin(e, begin, LLVMBuildSelect(e->builder, beyond, whole, end, ""), 1, NULL, 0);
    pack_block(e, row, blocks.index, (unsigned)block);
    loop_end(e, &blocks, NULL);
    if (!rest)
        return;
    LLVMBasicBlockRef after = if_begin(e, beyond);
    pack_block(e, row, whole, (unsigned)rest);
    if_end(e, after);
}

void pack_row(struct emit *e, const struct wire_row *row)
{
    int64_t block = row->format.block;
    pack_blocks(e, row, const_i64(e, 0), const_i64(e, (row->width + block - 1) / block));
}

// a block's scale, from where those of a row on the wire begin
static LLVMValueRef load_scale(struct emit *e, struct wire_format f, LLVMValueRef scales, LLVMValueRef number)
{
    LLVMBuilderRef b = e->builder;
    if (f.scale == scale_type_f32)
        return load(e, e->f32, offset(e, scales, scaled(e, number, 4)), 4);
    LLVMValueRef exponent = LLVMBuildZExt(b, load(e, e->i8, offset(e, scales, number), 1), e->i32, "");
    return LLVMBuildBitCast(b, LLVMBuildShl(b, exponent, const_i32(e, 23), ""), e->f32, "");
}

struct widening {
    LLVMValueRef from;
    const struct wire_row *row;
};

static void widen_chunk(struct emit *e, LLVMValueRef column, unsigned lanes, void *user)
{
    const struct widening *w = user;
    LLVMValueRef codes = load(e, vector_of(e->i8, lanes), offset(e, w->from, column), 1);
    LLVMValueRef to = offset(e, w->row->coded, scaled(e, column, dtype_bytes(w->row->elements)));
    store_codes(e, w->row, codes, to, lanes);
}

void widen_row(struct emit *e, LLVMValueRef from, const struct wire_row *row)
{
    int64_t blocks = (row->width + row->format.block - 1) / row->format.block;
    for_chunks(e, row->width, 2, widen_chunk, &(struct widening){from, row});
    struct loop loop = loop_begin_once(e, 0, blocks, 1, NULL, 0);
    LLVMValueRef scale = load_scale(e, row->format, offset_const(e, from, row->width), loop.index);
    store(e, scale, offset(e, scales_of(e, row), scaled(e, loop.index, 4)), 4);
    loop_end(e, &loop, NULL);
}

LLVMValueRef load_wire(struct emit *e, LLVMValueRef row, int64_t width, LLVMValueRef column, struct wire_format f,
                       unsigned lanes)
{
    LLVMBuilderRef b = e->builder;
    if (!f.block)
        return load_f32(e, offset(e, row, scaled(e, column, dtype_bytes(f.dtype))), f.dtype, lanes);
    LLVMValueRef codes = load(e, vector_of(e->i8, lanes), offset(e, row, column), 1);
    LLVMValueRef number = LLVMBuildUDiv(b, column, const_i64(e, f.block), "");
    LLVMValueRef scale = load_scale(e, f, offset_const(e, row, width), number);
    return LLVMBuildFMul(b, e4m3_to_f32(e, codes, lanes), splat(e, scale, lanes), "");
}
