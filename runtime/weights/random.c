// Counter-based random numbers on the finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
// generators, 2014). Sums of uniform integers stand for normal numbers: exact in f32 until the one multiplication.
#include "runtime/weights/random.h"

static const uint64_t STEP = 0x9e3779b97f4a7c15u;

static inline uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline int32_t sum4(uint64_t bits)
{
    return (int32_t)(bits & 0xffffu) + (int32_t)(bits >> 16 & 0xffffu) + (int32_t)(bits >> 32 & 0xffffu) +
           (int32_t)(bits >> 48);
}

uint64_t random_key(uint64_t seed, const char *name, uint64_t layer, uint64_t expert)
{
    uint64_t key = mix(seed + STEP);
    for (; *name; name++)
        key = mix((key ^ (uint8_t)*name) + STEP);
    key = mix((key ^ layer) + STEP);
    return mix((key ^ expert) + STEP);
}

void random_normal(uint64_t key, uint64_t first, float scale, float *to, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t position = key + (first + i) * 3 * STEP;
        int32_t sum = sum4(mix(position)) + sum4(mix(position + STEP)) + sum4(mix(position + 2 * STEP));
        to[i] = (float)(sum - 393210) * (0x1p-16f * scale);
    }
}

void random_weights(uint64_t key, uint64_t first, float scale, float *to, size_t count)
{
    float factor = 0x1.bb67aep-16f * scale; // sqrt(3) / 65536: the variance of four uniform numbers is 1/3
    for (size_t i = 0; i < count; i++)
        to[i] = (float)(sum4(mix(key + (first + i) * STEP)) - 131070) * factor;
}

void random_token(uint64_t seed, uint32_t rank, int64_t index, float *to, size_t width)
{
    random_normal(random_key(seed, "tokens", rank, (uint64_t)index), 0, 1.0f, to, width);
}

float random_scale(int64_t cols, int router)
{
    if (cols <= 1)
        return 0.1f;
    double root = (double)cols; // Newton's iteration: no libm, the same bits everywhere
    for (int i = 0; i < 64; i++)
        root = 0.5 * (root + (double)cols / root);
    return (float)((router ? 2.0 : 1.0) / root);
}
