// Element types of safetensors: their sizes, exact widening to f32, and rounding from f32 to nearest even.
// Integer arithmetic only, so that results do not depend on rounding modes, flush-to-zero or the instruction set.
#include "runtime/weights/safetensors.h"

#include <string.h>

size_t element_bytes(const char *dtype)
{
    static const struct {
        const char *name;
        size_t bytes;
    } types[] = {{"F32", 4}, {"F16", 2},     {"BF16", 2},    {"F8_E4M3", 1}, {"U8", 1},   {"I32", 4},
                 {"I64", 8}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I8", 1},      {"BOOL", 1}, {"I16", 2},
                 {"U16", 2}, {"U32", 4},     {"U64", 8},     {"F64", 8}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, dtype))
            return types[i].bytes;
    return 0;
}

const char *element_name(uint32_t dtype)
{
    static const char *const names[] = {[dtype_f32] = "F32",
                                        [dtype_f16] = "F16",
                                        [dtype_bf16] = "BF16",
                                        [dtype_fp8_e4m3] = "F8_E4M3",
                                        [dtype_i32] = "I32"};
    return dtype < sizeof names / sizeof *names ? names[dtype] : NULL;
}

int64_t tensor_bytes(const char *dtype, const int64_t *shape, uint32_t dims)
{
    int64_t bytes = (int64_t)element_bytes(dtype);
    if (bytes == 0)
        return -1;
    bool empty = false;
    for (uint32_t i = 0; i < dims; i++) {
        if (shape[i] < 0)
            return -1;
        if (shape[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(bytes, shape[i], &bytes))
            return -1;
    }
    return empty ? 0 : bytes;
}

static inline uint16_t load16(const uint8_t *from, size_t i)
{
    uint16_t bits;
    memcpy(&bits, from + 2 * i, sizeof bits);
    return bits;
}

static inline uint32_t load32(const float *from, size_t i)
{
    uint32_t bits;
    memcpy(&bits, from + i, sizeof bits);
    return bits;
}

static inline void store32(float *to, size_t i, uint32_t bits)
{
    memcpy(to + i, &bits, sizeof bits);
}

static inline void store16(uint8_t *to, size_t i, uint32_t bits)
{
    uint16_t half = (uint16_t)bits;
    memcpy(to + 2 * i, &half, sizeof half);
}

static inline uint32_t f32_from_f16(uint32_t h)
{
    uint32_t sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) // infinity, NaN
        return sign | 0x7f800000u | (magnitude & 0x3ffu) << 13;
    if (magnitude >= 0x0400u)
        return sign | ((magnitude << 13) + (112u << 23));
    if (magnitude == 0)
        return sign;
    float value = (float)magnitude * 0x1p-24f; // subnormal in f16, normal in f32
    return sign | load32(&value, 0);
}

/// The magnitude x of an f32 to the nearest (ties to even) of a type with `drop` fewer mantissa bits whose least normal
/// number is the f32 `least`; x is less than the type's largest number and half a step.
static inline uint32_t narrow(uint32_t x, uint32_t drop, uint32_t least)
{
    if (x >= least)
        return (x - (least - (1u << 23)) + (1u << (drop - 1u)) - 1u + (x >> drop & 1u)) >> drop;
    uint32_t exponent = (least >> 23) + drop;
    if (x <= (exponent - 24u) << 23) // up to half of the smallest subnormal, a tie that goes to 0
        return 0;
    uint32_t shift = exponent - (x >> 23), mantissa = (x & 0x7fffffu) | 0x800000u;
    uint32_t result = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u), half = 1u << (shift - 1u);
    return result + (rest > half || (rest == half && (result & 1u)));
}

static inline uint32_t f16_from_f32(uint32_t bits)
{
    uint32_t sign = bits >> 16 & 0x8000u, x = bits & 0x7fffffffu;
    if (x > 0x7f800000u) // NaN
        return sign | 0x7e00u | (x >> 13 & 0x3ffu);
    if (x >= 0x477ff000u) // 65520 and beyond round to infinity
        return sign | 0x7c00u;
    return sign | narrow(x, 13, 0x38800000u);
}

static inline uint32_t bf16_from_f32(uint32_t bits)
{
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    uint32_t nan = bits >> 16 | 0x40u;
    return (bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded;
}

/// Saturating: 448 and beyond, infinity included, is 448.
static inline uint32_t e4m3_from_f32(uint32_t bits)
{
    uint32_t sign = bits >> 24 & 0x80u, x = bits & 0x7fffffffu;
    if (x > 0x7f800000u) // NaN
        return sign | 0x7fu;
    if (x >= 0x43e00000u)
        return sign | 0x7eu;
    return sign | narrow(x, 20, 0x3c800000u);
}

static inline uint32_t f32_from_e4m3(uint32_t code)
{
    uint32_t sign = (code & 0x80u) << 24, magnitude = code & 0x7fu;
    if (magnitude == 0x7fu)
        return sign | 0x7fc00000u;
    if (magnitude >= 8u)
        return sign | ((magnitude << 20) + (120u << 23));
    float value = (float)magnitude * 0x1p-9f;
    return sign | load32(&value, 0);
}

bool elements_to_f32(const char *dtype, const void *from, float *to, size_t count)
{
    const uint8_t *bytes = from;
    if (count == 0)
        return element_bytes(dtype) != 0;
    if (!strcmp(dtype, "F32"))
        memcpy(to, from, count * sizeof *to);
    else if (!strcmp(dtype, "BF16"))
        for (size_t i = 0; i < count; i++)
            store32(to, i, (uint32_t)load16(bytes, i) << 16);
    else if (!strcmp(dtype, "F16"))
        for (size_t i = 0; i < count; i++)
            store32(to, i, f32_from_f16(load16(bytes, i)));
    else if (!strcmp(dtype, "F8_E4M3"))
        for (size_t i = 0; i < count; i++)
            store32(to, i, f32_from_e4m3(bytes[i]));
    else if (!strcmp(dtype, "F8_E8M0")) // powers of two from 2^-127, a subnormal; 255 is NaN
        for (size_t i = 0; i < count; i++)
            store32(to, i, bytes[i] == 255 ? 0x7fc00000u : bytes[i] ? (uint32_t)bytes[i] << 23 : 0x00400000u);
    else
        return false;
    return true;
}

bool elements_from_f32(const char *dtype, const float *from, void *to, size_t count)
{
    uint8_t *bytes = to;
    if (count == 0)
        return element_bytes(dtype) != 0;
    if (!strcmp(dtype, "F32"))
        memcpy(to, from, count * sizeof *from);
    else if (!strcmp(dtype, "BF16"))
        for (size_t i = 0; i < count; i++)
            store16(bytes, i, bf16_from_f32(load32(from, i)));
    else if (!strcmp(dtype, "F16"))
        for (size_t i = 0; i < count; i++)
            store16(bytes, i, f16_from_f32(load32(from, i)));
    else if (!strcmp(dtype, "F8_E4M3"))
        for (size_t i = 0; i < count; i++)
            bytes[i] = (uint8_t)e4m3_from_f32(load32(from, i));
    else
        return false;
    return true;
}
