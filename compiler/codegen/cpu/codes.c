// Quantised weights in generated code: E4M3 and MXFP4 codes of a panel expanded to the numbers that the register tile
// multiplies, exactly, and the scales of their blocks. With byte permutes two table look-ups, for the low and the high byte
// of 64 E4M3 codes, or one for 32 MXFP4 codes; elsewhere integer arithmetic in f32 lanes.
#include "codes.h"

#include <string.h>

// the bits of a bf16 that a code stands for; codes of 4 bits are E2M1
static uint32_t bf16_of(uint32_t dtype, uint32_t code)
{
    uint32_t mantissa_bits = dtype == dtype_mxfp4 ? 1 : 3, bias = dtype == dtype_mxfp4 ? 1 : 7;
    uint32_t sign_bit = dtype == dtype_mxfp4 ? 8 : 0x80, magnitude = code & (sign_bit - 1);
    uint32_t sign = code & sign_bit ? 0x8000 : 0, exponent = magnitude >> mantissa_bits;
    if (dtype == dtype_fp8_e4m3 && magnitude == 0x7f)
        return sign | 0x7fc0;
    float value = (float)magnitude; // of a subnormal, in units of the last place
    if (exponent)
        value = (float)(magnitude - ((exponent - 1) << mantissa_bits));
    for (uint32_t i = 1; i < exponent; i++)
        value *= 2;
    for (uint32_t i = 1; i < bias + mantissa_bits; i++)
        value /= 2;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return sign | bits >> 16;
}

// bytes `shift` bits up of the bf16 that the codes from `first` on stand for, as a vector of 64; `distinct` codes
static LLVMValueRef table(struct emit *e, uint32_t dtype, uint32_t first, uint32_t distinct, uint32_t shift)
{
    LLVMValueRef bytes[64];
    for (uint32_t i = 0; i < 64; i++)
        bytes[i] = LLVMConstInt(e->i8, bf16_of(dtype, first + i % distinct) >> shift & 0xff, false);
    return LLVMConstVector(bytes, 64);
}

static LLVMValueRef splat_bytes(struct emit *e, uint32_t value)
{
    LLVMValueRef bytes[64];
    for (uint32_t i = 0; i < 64; i++)
        bytes[i] = LLVMConstInt(e->i8, value, false);
    return LLVMConstVector(bytes, 64);
}

static LLVMValueRef look_up_e4m3(struct emit *e, LLVMValueRef codes, uint32_t shift)
{
    LLVMValueRef args[] = {table(e, dtype_fp8_e4m3, 0, 64, shift), codes, table(e, dtype_fp8_e4m3, 64, 64, shift)};
    return intrinsic(e, "llvm.x86.avx512.vpermi2var.qi.512", NULL, args, 3);
}

// 64 codes, one a byte, in unpacking order: two vectors of 16 pairs of bf16
static void expand_e4m3(struct emit *e, LLVMValueRef codes, LLVMValueRef columns[PANEL_VECTORS][2])
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef low = look_up_e4m3(e, codes, 0), high = look_up_e4m3(e, codes, 8);
    // no `or`: the ternary operation it would become takes from the dot products beside it
    high = LLVMBuildAdd(b, high, LLVMBuildAnd(b, codes, splat_bytes(e, 0x80), ""), "");
    for (uint32_t v = 0; v < PANEL_VECTORS; v++) {
        LLVMValueRef order[64];
        for (uint32_t i = 0; i < 64; i++) {
            uint32_t word = i / 2, from = word / 8 * 16 + v * 8 + word % 8;
            order[i] = const_i32(e, from + i % 2 * 64);
        }
        LLVMValueRef bytes = LLVMBuildShuffleVector(b, low, high, LLVMConstVector(order, 64), "");
        columns[v][0] = LLVMBuildBitCast(b, bytes, vector_of(e->i32, 16), "");
    }
}

// 32 words of four codes each: the two vectors' pairs, then those of the next two k. A look-up takes the lowest five bits
// of a word for its index, so the table holds every number twice.
static void expand_mxfp4(struct emit *e, LLVMValueRef words, bool later, LLVMValueRef columns[PANEL_VECTORS][2])
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef numbers[32], shift[32];
    for (uint32_t i = 0; i < 32; i++)
        numbers[i] = LLVMConstInt(e->i16, bf16_of(dtype_mxfp4, i % 16), false);
    for (uint32_t v = 0; v < PANEL_VECTORS; v++) {
        for (uint32_t i = 0; i < 32; i++)
            shift[i] = LLVMConstInt(e->i16, 4 * (2 * later + v), false);
        LLVMValueRef index = later || v ? LLVMBuildLShr(b, words, LLVMConstVector(shift, 32), "") : words;
        LLVMValueRef args[] = {LLVMConstVector(numbers, 32), index};
        LLVMValueRef pairs = intrinsic(e, "llvm.x86.avx512.permvar.hi.512", NULL, args, 2);
        columns[v][0] = LLVMBuildBitCast(b, pairs, vector_of(e->i32, 16), "");
    }
}

static LLVMValueRef nibbles(struct emit *e, LLVMValueRef bytes, unsigned lanes, bool upper)
{
    LLVMBuilderRef b = e->builder;
    LLVMTypeRef words = vector_of(e->i16, lanes / 2), type = LLVMTypeOf(bytes);
    LLVMValueRef mask[64];
    for (unsigned i = 0; i < lanes; i++)
        mask[i] = LLVMConstInt(e->i8, 0xf, false);
    if (upper) {
        LLVMValueRef shift[32];
        for (unsigned i = 0; i < lanes / 2; i++)
            shift[i] = LLVMConstInt(e->i16, 4, false);
        LLVMValueRef wide = LLVMBuildBitCast(b, bytes, words, "");
        bytes = LLVMBuildBitCast(b, LLVMBuildLShr(b, wide, LLVMConstVector(shift, lanes / 2), ""), type, "");
    }
    return LLVMBuildAnd(b, bytes, LLVMConstVector(mask, lanes), "");
}

// twice the value of an E2M1 magnitude is a whole number below 16, a hexadecimal digit of this table
static LLVMValueRef mxfp4_to_f32(struct emit *e, LLVMValueRef codes, unsigned lanes)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef wide = LLVMBuildZExt(b, codes, vector_of(e->i32, lanes), "");
    LLVMValueRef magnitude = LLVMBuildAnd(b, wide, splat_i32(e, 7, lanes), "");
    LLVMValueRef by = LLVMBuildShl(b, magnitude, splat_i32(e, 2, lanes), "");
    LLVMValueRef twice = LLVMBuildLShr(b, splat_i32(e, 0xc8643210, lanes), by, "");
    twice = LLVMBuildAnd(b, twice, splat_i32(e, 15, lanes), "");
    LLVMValueRef value = LLVMBuildSIToFP(b, twice, vector_of(e->f32, lanes), "");
    value = LLVMBuildFMul(b, value, splat_f32(e, 0.5, lanes), "");
    LLVMValueRef sign = LLVMBuildAnd(b, wide, splat_i32(e, 8, lanes), "");
    sign = LLVMBuildShl(b, sign, splat_i32(e, 28, lanes), "");
    return bits_to_f32(e, LLVMBuildOr(b, f32_to_bits(e, value), sign, ""));
}

void load_codes(struct emit *e, const struct plan_param *w, LLVMValueRef pointer, unsigned k, unsigned step,
                LLVMValueRef columns[PANEL_VECTORS][2])
{
    bool packed = w->dtype == dtype_mxfp4; // two codes a byte
    unsigned lanes = e->level->lanes, per = packed ? 2 : 1;
    if (w->split) {
        LLVMTypeRef type = packed ? vector_of(e->i16, 32) : vector_of(e->i8, 64);
        LLVMValueRef codes = load(e, type, offset_const(e, pointer, k / (2 * per) * 64), 64);
        if (packed)
            expand_mxfp4(e, codes, k / 2 % 2, columns);
        else
            expand_e4m3(e, codes, columns);
        return;
    }
    for (unsigned v = 0; v < PANEL_VECTORS; v++)
        for (unsigned i = 0; i < step; i++) {
            int64_t at = (k + i) / per * w->panel + v * lanes;
            LLVMValueRef bytes = load(e, vector_of(e->i8, lanes), offset_const(e, pointer, at), 1);
            columns[v][i] = packed ? mxfp4_to_f32(e, nibbles(e, bytes, lanes, (k + i) % 2), lanes)
                                   : e4m3_to_f32(e, bytes, lanes);
        }
}

// 2^(byte - 127), of which 2^-127 has no normal f32; 255, infinity here, stands for NaN: its block's codes are zeros
static LLVMValueRef power_of(struct emit *e, LLVMValueRef bytes, unsigned lanes)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef wide = LLVMBuildZExt(b, bytes, vector_of(e->i32, lanes), "");
    LLVMValueRef bits = LLVMBuildShl(b, wide, splat_i32(e, 23, lanes), ""), smallest = splat_i32(e, 0x00400000, lanes);
    return bits_to_f32(e, LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSGT, bits, smallest, ""), bits, smallest, ""));
}

void load_scales(struct emit *e, const struct plan_param *w, LLVMValueRef pointer, LLVMValueRef scales[PANEL_VECTORS])
{
    unsigned lanes = e->level->lanes;
    for (unsigned v = 0; v < PANEL_VECTORS; v++) {
        if (w->dtype == dtype_mxfp4)
            scales[v] = power_of(e, load(e, vector_of(e->i8, lanes), offset_const(e, pointer, v * lanes), 1), lanes);
        else if (w->scales == PANEL_VECTORS)
            scales[v] = splat(e, load(e, e->f32, offset_const(e, pointer, v * 4), 4), lanes);
        else
            scales[v] = load_f32(e, offset_const(e, pointer, v * lanes * 4), dtype_f32, lanes);
    }
}
