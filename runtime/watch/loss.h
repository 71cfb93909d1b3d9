// What rows lose in their wire format: the rows of a step, before they are packed and as they will be unpacked.
#ifndef MOE_LOSS_H
#define MOE_LOSS_H

#include "runtime/moe.h"
#include "runtime/plan/kernels.h"
#include "runtime/plan/plan.h"

/// Sums over elements: (after - before)^2, before^2, after^2, before * after.
struct loss_sums {
    int64_t rows;
    double difference, before, after, product;
};

enum loss_kind { LOSS_DISPATCH, LOSS_COMBINE, LOSS_KINDS };

/// Does a kernel pack rows into blocks, and whose?
bool loss_concerns(const struct plan_kernel *kernel, enum loss_kind *kind);
/// Adds the rows that such a kernel has packed. Elements that are not finite are left out.
void loss_add(struct loss_sums *sums, const struct plan_kernel *kernel, const struct moe_row_table *table);
moe_wire_loss loss_of(const struct loss_sums *sums);

#endif
