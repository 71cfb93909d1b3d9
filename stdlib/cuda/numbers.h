// Numbers in kernels: element types as 8-element vectors, the exponential and what is built on it. The arithmetic is that
// of the CPU backend, operation by operation, so that both round alike.
#ifndef MOE_NUMBERS_H
#define MOE_NUMBERS_H

#include "device.h"

constexpr int VECTOR = 8; // elements that a thread loads or stores together: widths are multiples of it

GPU_INLINE float bf16_low(uint32_t pair)
{
    return gpu::number(pair << 16);
}

GPU_INLINE float bf16_high(uint32_t pair)
{
    return gpu::number(pair & 0xffff0000u);
}

/// Bytes of `count` elements of a type that kernels compute with.
constexpr int64_t bytes_of(int dtype, int64_t count)
{
    return count * (dtype == dtype_f32 ? 4 : 2);
}

/// Where the scales of a row of codes begin that is to be multiplied.
constexpr int64_t codes_bytes(int64_t width)
{
    return (width + 63) / 64 * 64;
}

/// The two elements of a word, of 16 bits each.
template <int DTYPE> GPU_INLINE float low_of(uint32_t pair)
{
    return DTYPE == dtype_f16 ? gpu::f16_low(pair) : bf16_low(pair);
}

template <int DTYPE> GPU_INLINE float high_of(uint32_t pair)
{
    return DTYPE == dtype_f16 ? gpu::f16_high(pair) : bf16_high(pair);
}

template <int DTYPE> GPU_INLINE uint32_t pair_of(float low, float high)
{
    return DTYPE == dtype_f16 ? gpu::f16_pair(low, high) : gpu::bf16_pair(low, high);
}

constexpr bool computes_with(int dtype)
{
    return dtype == dtype_f32 || dtype == dtype_bf16 || dtype == dtype_f16;
}

/// Eight elements as f32, by loads of 16 bytes.
template <int DTYPE> GPU_INLINE void load_vector(float (&to)[VECTOR], const char *from)
{
    static_assert(computes_with(DTYPE), "no kernels for this type");
    gpu::Words first = *(const gpu::Words *)from;
    if (DTYPE == dtype_f32) {
        gpu::Words second = ((const gpu::Words *)from)[1];
        const uint32_t words[VECTOR] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
        GPU_UNROLL for (int i = 0; i < VECTOR; i++) to[i] = gpu::number(words[i]);
    } else {
        const uint32_t words[VECTOR / 2] = {first.x, first.y, first.z, first.w};
        GPU_UNROLL for (int i = 0; i < VECTOR / 2; i++)
        {
            to[2 * i] = low_of<DTYPE>(words[i]);
            to[2 * i + 1] = high_of<DTYPE>(words[i]);
        }
    }
}

template <int DTYPE> GPU_INLINE void store_vector(char *to, const float (&from)[VECTOR])
{
    static_assert(computes_with(DTYPE), "no kernels for this type");
    if (DTYPE == dtype_f32) {
        ((gpu::Words *)to)[0] = {gpu::bits(from[0]), gpu::bits(from[1]), gpu::bits(from[2]), gpu::bits(from[3])};
        ((gpu::Words *)to)[1] = {gpu::bits(from[4]), gpu::bits(from[5]), gpu::bits(from[6]), gpu::bits(from[7])};
    } else {
        *(gpu::Words *)to = {pair_of<DTYPE>(from[0], from[1]), pair_of<DTYPE>(from[2], from[3]),
                             pair_of<DTYPE>(from[4], from[5]), pair_of<DTYPE>(from[6], from[7])};
    }
}

/// Rounds to a type and back.
template <int DTYPE> GPU_INLINE void round_vector(float (&values)[VECTOR])
{
    if (DTYPE == dtype_bf16 || DTYPE == dtype_f16)
        GPU_UNROLL for (int i = 0; i < VECTOR; i += 2)
        {
            const uint32_t pair = pair_of<DTYPE>(values[i], values[i + 1]);
            values[i] = low_of<DTYPE>(pair);
            values[i + 1] = high_of<DTYPE>(pair);
        }
}

/// What neighbouring lanes exchange to have more of a row: those whose lane has `bit` get `second` of both, the others
/// `first`; in the lanes' order.
GPU_INLINE void exchange(uint32_t &first, uint32_t &second, int bit)
{
    const bool upper = (gpu::lane() & bit) != 0;
    const uint32_t got = gpu::shuffle_xor(upper ? first : second, bit);
    first = upper ? got : first;
    second = upper ? second : got;
}

/// Four words of each of four lanes: lane l % 4 = q gets the q-th of all.
GPU_INLINE gpu::Words transpose(uint32_t (&words)[4])
{
    exchange(words[0], words[1], 1);
    exchange(words[2], words[3], 1);
    exchange(words[0], words[2], 2);
    exchange(words[1], words[3], 2);
    return {words[0], words[1], words[2], words[3]};
}

GPU_INLINE float e4m3_value(uint32_t code)
{
    const uint32_t rest = code & 0x7f, sign = (code & 0x80) << 24;
    const uint32_t value = gpu::bits(gpu::number(rest << 20) * 0x1p120f);
    return gpu::number((rest == 0x7f ? 0x7fc00000u : value) | sign);
}

/// e^x: x = n ln 2 + r, the Taylor series of e^r to r^7, 2^n in two factors; NaN stays.
GPU_INLINE float exponential(float x)
{
    const float magic = 0x1.8p23f;
    x = x > 89.0f ? 89.0f : x;
    x = x < -105.0f ? -105.0f : x;
    float shifted = gpu::fma(x, 0x1.715476p0f, magic), n = shifted - magic;
    float r = gpu::fma(n, -0x1.63p-1f, x);
    r = gpu::fma(n, 0x1.bd0106p-13f, r);
    float sum = 1.0f / 5040;
    sum = gpu::fma(sum, r, 1.0f / 720);
    sum = gpu::fma(sum, r, 1.0f / 120);
    sum = gpu::fma(sum, r, 1.0f / 24);
    sum = gpu::fma(sum, r, 1.0f / 6);
    sum = gpu::fma(sum, r, 0.5f);
    sum = gpu::fma(sum, r, 1.0f);
    sum = gpu::fma(sum, r, 1.0f);
    int32_t whole = (int32_t)(gpu::bits(shifted) - 0x4b400000u), half = whole >> 1, rest = whole - half;
    return sum * gpu::number((uint32_t)(half + 127) << 23) * gpu::number((uint32_t)(rest + 127) << 23);
}

/// factor / (1 + e^-x)
GPU_INLINE float sigmoid(float x, float factor)
{
    return factor / (exponential(-x) + 1.0f);
}

/// x/2 (1 + erf(x / sqrt 2)) by Abramowitz and Stegun's 7.1.26, absolute error 1.5e-7.
GPU_INLINE float gelu(float x)
{
    float z = x * 0.70710678118654752f, size = z < 0 ? -z : z;
    float t = 1.0f / gpu::fma(size, 0.3275911f, 1.0f);
    float sum = gpu::fma(1.061405429f, t, -1.453152027f);
    sum = gpu::fma(sum, t, 1.421413741f);
    sum = gpu::fma(sum, t, -0.284496736f);
    sum = gpu::fma(sum, t, 0.254829592f);
    float erf = 1.0f - sum * t * exponential(-(z * z)), half = x * 0.5f;
    return gpu::fma(half, x < 0 ? -erf : erf, half);
}

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which is x times a sigmoid.
GPU_INLINE float gelu_tanh(float x)
{
    float inner = gpu::fma(x * x, 0.044715f, 1.0f);
    return sigmoid(inner * x * 1.5957691216057308f, x);
}

/// The activation of one product; with a gate this is the gate's factor.
template <int ACTIVATION> GPU_INLINE float activated(float x)
{
    static_assert(activation_words_count == 6, "a new activation: its arithmetic belongs here");
    if (ACTIVATION == activation_relu)
        return x < 0 ? 0.0f : x;
    if (ACTIVATION == activation_squared_relu)
        return x < 0 ? 0.0f : x * x;
    if (ACTIVATION == activation_gelu)
        return gelu(x);
    if (ACTIVATION == activation_gelu_tanh)
        return gelu_tanh(x);
    return sigmoid(x, x);
}

/// activation(gate) * up. `alpha` and `limit` belong to clamped_silu alone.
template <int ACTIVATION> GPU_INLINE float gated(float gate, float up, float alpha, float limit)
{
    if (ACTIVATION != activation_clamped_silu)
        return activated<ACTIVATION>(gate) * up;
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up;
    up = up < -limit ? -limit : up;
    return sigmoid(gate * alpha, gate) * (up + 1.0f);
}

#endif
