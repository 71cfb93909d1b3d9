// Where ranks are: which axis of the cluster a message between two of them crosses, and what a rank is called.
#ifndef MOE_AXES_H
#define MOE_AXES_H

#include "plan.h"

/// The outermost axis in which two ranks differ, counted from 0; the innermost for a == b.
static inline uint32_t axis_between(const struct ir *ir, uint32_t a, uint32_t b)
{
    struct rows axes = ROW(ir, plan_info, 0)->axes;
    for (uint32_t i = 0; i < axes.count; i++) {
        int64_t stride = ROW(ir, plan_axis, axes.first + i)->stride;
        if (a / stride != b / stride)
            return i;
    }
    return axes.count - 1;
}

static inline const struct plan_axis *axis_at(const struct ir *ir, uint32_t number)
{
    return ROW(ir, plan_axis, ROW(ir, plan_info, 0)->axes.first + number);
}

/// Others that a rank reaches across an axis: the same number for every rank.
static inline int64_t axis_peers(const struct plan_axis *axis)
{
    return (axis->size - 1) * axis->stride;
}

enum { RANK_TEXT = 96 };

/// "rank 5", or in a cluster of several axes "rank 5 (node[1] gpu[1])". Returns `text`, of RANK_TEXT bytes.
const char *rank_text(const struct ir *ir, uint32_t rank, char *text);

#endif
