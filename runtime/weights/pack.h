// Packing one block of a parameter (one expert, or the whole) into the kernels' layout.
#ifndef MOE_PACK_H
#define MOE_PACK_H

#include "runtime/plan/plan.h"

enum { PACK_CODE_COLUMNS = 32 }; // most columns of a panel of codes

/// Rows of a block: [rows, cols] elements of a file's dtype, or (data NULL) random numbers. Of quantised parameters the
/// elements are codes, [rows, cols / 2] bytes of MXFP4, lower nibble first.
struct pack_source {
    const void *data;
    const char *dtype;
    int64_t rows;
    int64_t row_step, col_step;     // elements from one row, one column to the next; both 0: cols and 1
    const void *scales;             // quantised: one for each block_rows x block_cols of it
    const char *scale_dtype;
    int64_t scale_row_step, scale_col_step;
    uint64_t key; // random: see random.h; the position is row * cols + col
    float scale;
};

/// The source that holds column c of panel p, and its row there, as the checkpoint orders them; NULL: padding.
const struct pack_source *pack_find(const struct plan_param *param, const struct pack_source *sources, size_t count,
                                    int64_t p, int64_t c, int64_t *row);

/// The source that holds a row of the block; `row` becomes its number there.
const struct pack_source *pack_find_row(const struct plan_param *param, const struct pack_source *sources, size_t count,
                                        int64_t *row);

/// pack_block of quantised parameters: codes stay as they are, in another order.
uint8_t *pack_codes(const struct plan_param *param, const struct pack_source *sources, size_t count, uint8_t *to);

/// Bytes that the layout of a block needs; -1 when the parameter makes no sense (sizes, panel, group, dtype) or overflows.
int64_t pack_bytes(const struct plan_param *param);

/// Per call in flight: what pack_block needs as `scratch`, 64-byte aligned.
size_t pack_scratch_bytes(const struct plan_param *param);

/// Fills `to`, param->bytes long (at least pack_bytes). The sources' rows add up to param->rows. Values are rounded to
/// the declared type, then to the packed one. Layout `panels`, for panel p, k group g, column c and j < group:
/// value(row(p, c), g * group + j), where row(p, c) = p * panel + c, or with halves, h = panel / 2: p * h + c for c < h,
/// rows / 2 + p * h + (c - h) for the others. Zero where the row leaves `rows` (its half) or k leaves `cols`.
void pack_block(const struct plan_param *param, const struct pack_source *sources, size_t count, void *scratch,
                void *to);

#endif
