// Overflow grants. The rows that found no slot at rank d queue by ascending source; round r grants places
// [r * pool(d), (r+1) * pool(d)) of that queue. Every rank computes the same from the overflow vectors of all headers,
// so nobody asks or answers.
#ifndef MOE_GRANTS_H
#define MOE_GRANTS_H

#include <stdint.h>

struct grant {
    int64_t first; // of the source's overflow rows
    int64_t count;
    int64_t place; // in the pool
};

/// What round `round` grants to a source with `rows` overflow rows behind `ahead` rows of lower sources.
static inline struct grant grant_of(int64_t ahead, int64_t rows, int64_t pool, int64_t round)
{
    int64_t low = round * pool, high = low + pool;
    int64_t begin = ahead > low ? ahead : low, end = ahead + rows < high ? ahead + rows : high;
    if (begin >= end)
        return (struct grant){0, 0, 0};
    return (struct grant){begin - ahead, end - begin, begin - low};
}

#endif
