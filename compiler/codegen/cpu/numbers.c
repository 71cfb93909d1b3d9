// Numbers in generated code: 8- and 16-bit formats widened and rounded by integer arithmetic (so that every level rounds
// alike, subnormals and NaN included), and the one exponential that vector bodies and tails share.
#include "emit.h"

LLVMValueRef bits_to_f32(struct emit *e, LLVMValueRef bits)
{
    unsigned lanes = LLVMGetVectorSize(LLVMTypeOf(bits));
    return LLVMBuildBitCast(e->builder, bits, vector_of(e->f32, lanes), "");
}

LLVMValueRef f32_to_bits(struct emit *e, LLVMValueRef value)
{
    unsigned lanes = LLVMGetVectorSize(LLVMTypeOf(value));
    return LLVMBuildBitCast(e->builder, value, vector_of(e->i32, lanes), "");
}

static LLVMValueRef shift_left(struct emit *e, LLVMValueRef bits, uint32_t by, unsigned lanes)
{
    return LLVMBuildShl(e->builder, bits, splat_i32(e, by, lanes), "");
}

static LLVMValueRef shift_right(struct emit *e, LLVMValueRef bits, uint32_t by, unsigned lanes)
{
    return LLVMBuildLShr(e->builder, bits, splat_i32(e, by, lanes), "");
}

static LLVMValueRef mask(struct emit *e, LLVMValueRef bits, uint32_t keep, unsigned lanes)
{
    return LLVMBuildAnd(e->builder, bits, splat_i32(e, keep, lanes), "");
}

LLVMValueRef half_to_f32(struct emit *e, LLVMValueRef bits, unsigned lanes)
{
    LLVMBuilderRef b = e->builder;
    if (e->level->f16c) {
        LLVMTypeRef half = vector_of(LLVMHalfTypeInContext(e->llvm), lanes);
        return LLVMBuildFPExt(b, LLVMBuildBitCast(b, bits, half, ""), vector_of(e->f32, lanes), "");
    }
    // the 15 magnitude bits moved to f32's place are the value times 2^-112, subnormals included
    LLVMValueRef wide = LLVMBuildZExt(b, bits, vector_of(e->i32, lanes), "");
    LLVMValueRef sign = shift_left(e, mask(e, wide, 0x8000, lanes), 16, lanes);
    LLVMValueRef magnitude = shift_left(e, mask(e, wide, 0x7fff, lanes), 13, lanes);
    LLVMValueRef value = LLVMBuildFMul(b, bits_to_f32(e, magnitude), splat_f32(e, 0x1p112, lanes), "");
    LLVMValueRef special = LLVMBuildOr(b, magnitude, splat_i32(e, 0x7f800000, lanes), "");
    LLVMValueRef is_special = LLVMBuildICmp(b, LLVMIntUGE, magnitude, splat_i32(e, 0x0f800000, lanes), "");
    LLVMValueRef all = LLVMBuildSelect(b, is_special, special, f32_to_bits(e, value), "");
    return bits_to_f32(e, LLVMBuildOr(b, all, sign, ""));
}

LLVMValueRef e4m3_to_f32(struct emit *e, LLVMValueRef codes, unsigned lanes)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef wide = LLVMBuildZExt(b, codes, vector_of(e->i32, lanes), "");
    LLVMValueRef sign = shift_left(e, mask(e, wide, 0x80, lanes), 24, lanes);
    LLVMValueRef rest = mask(e, wide, 0x7f, lanes);
    // the 7 magnitude bits moved to f32's place are the value times 2^-120, subnormals included
    LLVMValueRef tiny = bits_to_f32(e, shift_left(e, rest, 20, lanes));
    LLVMValueRef value = f32_to_bits(e, LLVMBuildFMul(b, tiny, splat_f32(e, 0x1p120, lanes), ""));
    LLVMValueRef is_nan = LLVMBuildICmp(b, LLVMIntEQ, rest, splat_i32(e, 0x7f, lanes), "");
    value = LLVMBuildSelect(b, is_nan, splat_i32(e, 0x7fc00000, lanes), value, "");
    return bits_to_f32(e, LLVMBuildOr(b, value, sign, ""));
}

LLVMValueRef load_f32(struct emit *e, LLVMValueRef pointer, uint32_t dtype, unsigned lanes)
{
    if (dtype == dtype_f32)
        return load(e, vector_of(e->f32, lanes), pointer, 4);
    if (dtype == dtype_fp8_e4m3)
        return e4m3_to_f32(e, load(e, vector_of(e->i8, lanes), pointer, 1), lanes);
    LLVMValueRef bits = load(e, vector_of(e->i16, lanes), pointer, 2);
    if (dtype == dtype_f16)
        return half_to_f32(e, bits, lanes);
    LLVMValueRef wide = LLVMBuildZExt(e->builder, bits, vector_of(e->i32, lanes), "");
    return bits_to_f32(e, shift_left(e, wide, 16, lanes));
}

static LLVMValueRef is_nan(struct emit *e, LLVMValueRef value)
{
    return LLVMBuildFCmp(e->builder, LLVMRealUNO, value, value, "");
}

// adds just under half a unit of the last kept place, and the rest when that place is odd: nearest even
static LLVMValueRef round_bits(struct emit *e, LLVMValueRef bits, uint32_t dropped, unsigned lanes)
{
    LLVMValueRef odd = mask(e, shift_right(e, bits, dropped, lanes), 1, lanes);
    LLVMValueRef half = LLVMBuildAdd(e->builder, odd, splat_i32(e, (1u << (dropped - 1)) - 1, lanes), "");
    return LLVMBuildAdd(e->builder, bits, half, "");
}

static LLVMValueRef f32_to_bf16(struct emit *e, LLVMValueRef value, unsigned lanes)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef bits = f32_to_bits(e, value);
    LLVMValueRef quiet = LLVMBuildOr(b, bits, splat_i32(e, 0x400000, lanes), "");
    LLVMValueRef kept = LLVMBuildSelect(b, is_nan(e, value), quiet, round_bits(e, bits, 16, lanes), "");
    return LLVMBuildTrunc(b, shift_right(e, kept, 16, lanes), vector_of(e->i16, lanes), "");
}

static LLVMValueRef f32_to_half(struct emit *e, LLVMValueRef value, unsigned lanes)
{
    LLVMBuilderRef b = e->builder;
    if (e->level->f16c) {
        LLVMTypeRef half = vector_of(LLVMHalfTypeInContext(e->llvm), lanes);
        return LLVMBuildBitCast(b, LLVMBuildFPTrunc(b, value, half, ""), vector_of(e->i16, lanes), "");
    }
    LLVMValueRef bits = f32_to_bits(e, value);
    LLVMValueRef magnitude = mask(e, bits, 0x7fffffff, lanes);
    LLVMValueRef sign = mask(e, shift_right(e, bits, 16, lanes), 0x8000, lanes);
    LLVMValueRef normal = LLVMBuildSub(b, round_bits(e, magnitude, 13, lanes), splat_i32(e, 0x38000000, lanes), "");
    normal = shift_right(e, normal, 13, lanes);
    // below 2^-14 the addition of 0.5 rounds to multiples of 2^-24, the unit of f16 subnormals
    LLVMValueRef shifted = LLVMBuildFAdd(b, bits_to_f32(e, magnitude), splat_f32(e, 0.5, lanes), "");
    LLVMValueRef small = LLVMBuildSub(b, f32_to_bits(e, shifted), splat_i32(e, 0x3f000000, lanes), "");
    LLVMValueRef is_small = LLVMBuildICmp(b, LLVMIntULT, magnitude, splat_i32(e, 0x38800000, lanes), "");
    LLVMValueRef is_large = LLVMBuildICmp(b, LLVMIntUGE, magnitude, splat_i32(e, 0x477ff000, lanes), "");
    LLVMValueRef result = LLVMBuildSelect(b, is_small, small, normal, "");
    result = LLVMBuildSelect(b, is_large, splat_i32(e, 0x7c00, lanes), result, "");
    result = LLVMBuildSelect(b, is_nan(e, value), splat_i32(e, 0x7e00, lanes), result, "");
    return LLVMBuildTrunc(b, LLVMBuildOr(b, result, sign, ""), vector_of(e->i16, lanes), "");
}

LLVMValueRef f32_to_e4m3(struct emit *e, LLVMValueRef value, unsigned lanes)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef bits = f32_to_bits(e, value), largest = splat_i32(e, 0x43e00000, lanes); // 448
    LLVMValueRef sign = mask(e, shift_right(e, bits, 24, lanes), 0x80, lanes);
    LLVMValueRef magnitude = mask(e, bits, 0x7fffffff, lanes);
    LLVMValueRef beyond = LLVMBuildICmp(b, LLVMIntUGT, magnitude, largest, "");
    magnitude = LLVMBuildSelect(b, beyond, largest, magnitude, "");
    LLVMValueRef normal = LLVMBuildSub(b, round_bits(e, magnitude, 20, lanes), splat_i32(e, 0x3c000000, lanes), "");
    normal = shift_right(e, normal, 20, lanes);
    // below 2^-6 the addition of 2^14 rounds to multiples of 2^-9, the unit of E4M3 subnormals
    LLVMValueRef shifted = LLVMBuildFAdd(b, bits_to_f32(e, magnitude), splat_f32(e, 0x1p14, lanes), "");
    LLVMValueRef small = LLVMBuildSub(b, f32_to_bits(e, shifted), splat_i32(e, 0x46800000, lanes), "");
    LLVMValueRef is_small = LLVMBuildICmp(b, LLVMIntULT, magnitude, splat_i32(e, 0x3c800000, lanes), "");
    LLVMValueRef code = LLVMBuildOr(b, LLVMBuildSelect(b, is_small, small, normal, ""), sign, "");
    code = LLVMBuildSelect(b, is_nan(e, value), splat_i32(e, 0x7f, lanes), code, "");
    return LLVMBuildTrunc(b, code, vector_of(e->i8, lanes), "");
}

void store_f32(struct emit *e, LLVMValueRef value, LLVMValueRef pointer, uint32_t dtype, unsigned lanes)
{
    switch (dtype) {
    case dtype_bf16:
        store(e, f32_to_bf16(e, value, lanes), pointer, 2);
        break;
    case dtype_f16:
        store(e, f32_to_half(e, value, lanes), pointer, 2);
        break;
    case dtype_fp8_e4m3:
        store(e, f32_to_e4m3(e, value, lanes), pointer, 1);
        break;
    default:
        store(e, value, pointer, 4);
        break;
    }
}

void store_operand(struct emit *e, LLVMValueRef value, LLVMValueRef pointer, uint32_t dtype, unsigned lanes)
{
    if (dtype == dtype_bf16 && e->level->dot_bf16 && lanes == 16)
        store(e, intrinsic(e, "llvm.x86.avx512bf16.cvtneps2bf16.512", NULL, &value, 1), pointer, 2);
    else
        store_f32(e, value, pointer, dtype, lanes);
}

LLVMValueRef rounded_to(struct emit *e, LLVMValueRef value, uint32_t dtype, unsigned lanes)
{
    if (dtype == dtype_f16)
        return half_to_f32(e, f32_to_half(e, value, lanes), lanes);
    if (dtype != dtype_bf16)
        return value;
    LLVMValueRef wide = LLVMBuildZExt(e->builder, f32_to_bf16(e, value, lanes), vector_of(e->i32, lanes), "");
    return bits_to_f32(e, shift_left(e, wide, 16, lanes));
}

LLVMValueRef multiply_add(struct emit *e, LLVMValueRef a, LLVMValueRef b, LLVMValueRef c)
{
    if (e->level->fma) {
        LLVMValueRef args[] = {a, b, c};
        return intrinsic(e, "llvm.fma", LLVMTypeOf(a), args, 3);
    }
    return LLVMBuildFAdd(e->builder, LLVMBuildFMul(e->builder, a, b, ""), c, "");
}

LLVMValueRef limited(struct emit *e, LLVMValueRef x, LLVMRealPredicate beyond, double limit, unsigned lanes)
{
    LLVMValueRef edge = splat_f32(e, limit, lanes);
    return LLVMBuildSelect(e->builder, LLVMBuildFCmp(e->builder, beyond, x, edge, ""), edge, x, "");
}

// 2^n for -126 <= n <= 127
static LLVMValueRef power_of_two(struct emit *e, LLVMValueRef n, unsigned lanes)
{
    LLVMValueRef biased = LLVMBuildAdd(e->builder, n, splat_i32(e, 127, lanes), "");
    return bits_to_f32(e, shift_left(e, biased, 23, lanes));
}

// beyond these bounds exp is zero or infinity all the same
#define EXP_LEAST (-105.0)
#define EXP_MOST 89.0

static LLVMValueRef exp_within(struct emit *e, LLVMValueRef x, unsigned lanes)
{
    LLVMBuilderRef b = e->builder;
    // x = n ln2 + r, |r| <= ln2 / 2: adding 1.5 * 2^23 leaves n in the low bits; ln2 in two parts, the first short
    // enough that n times it is exact
    LLVMValueRef magic = splat_f32(e, 0x1.8p23, lanes);
    LLVMValueRef shifted = multiply_add(e, x, splat_f32(e, 0x1.715476p0, lanes), magic);
    LLVMValueRef n = LLVMBuildFSub(b, shifted, magic, "");
    LLVMValueRef r = multiply_add(e, n, splat_f32(e, -0x1.63p-1, lanes), x);
    r = multiply_add(e, n, splat_f32(e, 0x1.bd0106p-13, lanes), r);
    // the Taylor series to r^7: the rest is below 6e-9
    static const double coefficients[] = {1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1, 1};
    LLVMValueRef sum = splat_f32(e, 1.0 / 5040, lanes);
    for (unsigned i = 0; i < sizeof coefficients / sizeof *coefficients; i++)
        sum = multiply_add(e, sum, r, splat_f32(e, coefficients[i], lanes));
    if (lanes == 16 && e->level->lanes == 16) { // AVX-512 scales by any 2^n, rounded once as below
        enum { CURRENT_ROUNDING = 4 };
        LLVMValueRef args[] = {sum, n, sum, LLVMConstAllOnes(e->i16), const_i32(e, CURRENT_ROUNDING)};
        return intrinsic(e, "llvm.x86.avx512.mask.scalef.ps.512", NULL, args, 5);
    }
    // 2^n in two factors, for n may exceed the exponent's range
    LLVMValueRef whole = LLVMBuildSub(b, f32_to_bits(e, shifted), splat_i32(e, 0x4b400000, lanes), "");
    LLVMValueRef half = LLVMBuildAShr(b, whole, splat_i32(e, 1, lanes), "");
    LLVMValueRef rest = LLVMBuildSub(b, whole, half, "");
    sum = LLVMBuildFMul(b, sum, power_of_two(e, half, lanes), "");
    return LLVMBuildFMul(b, sum, power_of_two(e, rest, lanes), "");
}

LLVMValueRef emit_exp(struct emit *e, LLVMValueRef x, unsigned lanes)
{
    x = limited(e, limited(e, x, LLVMRealOGT, EXP_MOST, lanes), LLVMRealOLT, EXP_LEAST, lanes);
    return exp_within(e, x, lanes);
}

LLVMValueRef emit_sigmoid(struct emit *e, LLVMValueRef x, LLVMValueRef factor, unsigned lanes)
{
    // bounded first, the sign goes into the multiply-adds
    x = limited(e, limited(e, x, LLVMRealOLT, -EXP_MOST, lanes), LLVMRealOGT, -EXP_LEAST, lanes);
    LLVMValueRef power = exp_within(e, LLVMBuildFNeg(e->builder, x, ""), lanes);
    LLVMValueRef sum = LLVMBuildFAdd(e->builder, power, splat_f32(e, 1, lanes), "");
    return LLVMBuildFDiv(e->builder, factor, sum, "");
}
