// E4M3 in plain C, written to be read rather than fast: the nearest of a table's values, and rows in blocks as they
// travel. What generated code is compared with, byte by byte.
#ifndef MOE_TESTS_CODEGEN_FP8_REFERENCE_H
#define MOE_TESTS_CODEGEN_FP8_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

double fp8_decode(unsigned code);
/// To nearest even, saturating; NaN of either sign is 0x7f.
unsigned fp8_encode(float value);

/// A row of `width` values: codes, then a scale for each block of `block` (f32, or with `ue8m0` a byte). Returns its bytes.
int64_t fp8_pack(const float *values, int64_t width, int64_t block, bool ue8m0, uint8_t *row);
void fp8_unpack(const uint8_t *row, int64_t width, int64_t block, bool ue8m0, float *values);

#endif
