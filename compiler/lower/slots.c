// How many rows a slot buffer needs: expected traffic under uniform routing times the capacity factor, an elastic pool
// beside it, and the number of overflow rounds that bounds the worst case. The formulas are in docs of the plan format;
// they are evaluated without cancellation, so that small shares keep their digits.
#include <math.h>

#include "compiler/lower/lower.h"

double slot_hit_share(int64_t experts, double owned, int64_t choices)
{
    // The chance that draw j is the first to hit, summed over j: only positive terms.
    double hit = 0, missed_so_far = 1;
    for (int64_t j = 0; j < choices && j < experts; j++) {
        double left = (double)(experts - j);
        double others = (double)experts - owned - (double)j;
        hit += missed_so_far * owned / left;
        if (others <= 0)
            return owned > 0 ? 1 : 0;
        missed_so_far *= others / left;
    }
    return hit < 1 ? hit : 1;
}

/// Rounds up, but not because of the last bits of a product; saturates.
static int64_t ceil_of(double value)
{
    if (!(value < 4e18))
        return INT64_MAX;
    double below = floor(value), slack = 1e-9 * (value > 1 ? value : 1);
    return value - below <= slack ? (int64_t)below : (int64_t)below + 1;
}

int64_t slot_base_rows(int64_t bound, int64_t most, double capacity, double hit)
{
    if (hit <= 0 || bound <= 0)
        return 0;
    int64_t rows = ceil_of(capacity * (double)bound * hit);
    return rows < most ? rows : most;
}

int64_t slot_pool_rows(double pool, int64_t ranks, int64_t base_rows)
{
    return ceil_of(pool * (double)ranks * (double)base_rows);
}

int64_t slot_rounds(int64_t ranks, int64_t left_rows, int64_t pool_rows)
{
    int64_t left = (ranks - 1) * left_rows;
    if (left <= 0)
        return 0;
    return pool_rows > 0 ? (left - 1) / pool_rows + 1 : -1;
}
