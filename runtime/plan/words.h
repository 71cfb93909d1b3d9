// The shared vocabularies of words.def as C enums and name tables.
#ifndef MOE_WORDS_H
#define MOE_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#define WORDS(kind) enum kind {
#define WORD(kind, name) kind##_##name,
#define WORDS_END(kind) kind##_words_count };
#include "words.def"
#undef WORDS
#undef WORD
#undef WORDS_END

#define WORDS(kind) extern const char *const kind##_words[];
#define WORD(kind, name)
#define WORDS_END(kind)
#include "words.def"
#undef WORDS
#undef WORD
#undef WORDS_END

/// Bytes of one element; 0 for none and for formats of less than a byte.
static inline int64_t dtype_bytes(uint32_t dtype)
{
    static const int8_t bytes[dtype_words_count] = {
        [dtype_f32] = 4, [dtype_f16] = 2, [dtype_bf16] = 2, [dtype_fp8_e4m3] = 1, [dtype_i32] = 4};
    return dtype < dtype_words_count ? bytes[dtype] : 0;
}

/// Bits of one element; 0 for none.
static inline int64_t dtype_bits(uint32_t dtype)
{
    return dtype == dtype_mxfp4 ? 4 : 8 * dtype_bytes(dtype);
}

/// Codes that stand for a number together with a scale.
static inline bool dtype_quantised(uint32_t dtype)
{
    return dtype == dtype_fp8_e4m3 || dtype == dtype_mxfp4;
}

/// Element types that kernels compute with.
static inline bool dtype_computes(uint32_t dtype)
{
    return dtype == dtype_f32 || dtype == dtype_f16 || dtype == dtype_bf16;
}

#endif
