// E4M3 and its blocks in plain C (fp8_reference.h).
#include "tests/codegen/fp8_reference.h"

#include <math.h>
#include <string.h>

double fp8_decode(unsigned code)
{
    unsigned exponent = code >> 3 & 15, fraction = code & 7;
    if ((code & 0x7f) == 0x7f)
        return NAN;
    double value = exponent ? ldexp(8 + fraction, (int)exponent - 10) : ldexp(fraction, -9);
    return code & 0x80 ? -value : value;
}

unsigned fp8_encode(float value)
{
    if (isnan(value))
        return 0x7f;
    unsigned low = 0, high = 0x7e; // the largest code that is not above it
    double size = fabs((double)value);
    while (low < high) {
        unsigned middle = (low + high + 1) / 2;
        if (fp8_decode(middle) <= size)
            low = middle;
        else
            high = middle - 1;
    }
    if (low < 0x7e) {
        double below = size - fp8_decode(low), above = fp8_decode(low + 1) - size;
        low += above < below || (above == below && low % 2);
    }
    return low | (signbit(value) ? 0x80 : 0);
}

int64_t fp8_pack(const float *values, int64_t width, int64_t block, bool ue8m0, uint8_t *row)
{
    uint8_t *scales = row + width;
    for (int64_t first = 0; first < width; first += block) {
        float amax = 1e-4f;
        int64_t end = first + block < width ? first + block : width;
        for (int64_t i = first; i < end; i++)
            if (isfinite(values[i]) && fabsf(values[i]) > amax)
                amax = fabsf(values[i]);
        float scale = amax * (1 / 448.0f), factor = 448 / amax;
        if (ue8m0) {
            int exponent;
            double fraction = frexp((double)scale, &exponent);
            exponent -= fraction == 0.5; // 2^exponent is at or above the scale
            factor = (float)ldexp(1, -exponent);
            *scales++ = (uint8_t)(exponent + 127);
        } else {
            memcpy(scales, &scale, sizeof scale);
            scales += sizeof scale;
        }
        for (int64_t i = first; i < end; i++)
            row[i] = (uint8_t)fp8_encode(values[i] * factor);
    }
    return scales - row;
}

void fp8_unpack(const uint8_t *row, int64_t width, int64_t block, bool ue8m0, float *values)
{
    for (int64_t i = 0; i < width; i++) {
        float scale;
        if (ue8m0)
            scale = (float)ldexp(1, row[width + i / block] - 127);
        else
            memcpy(&scale, row + width + i / block * 4, sizeof scale);
        values[i] = (float)fp8_decode(row[i]) * scale;
    }
}
