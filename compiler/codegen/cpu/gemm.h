// The register tile all matrix products share: up to 13 rows of A times one panel of packed weights. Every output is
// one chain of multiply-adds over k in ascending order whatever the number of rows, so a row's result does not depend
// on its company.
#ifndef MOECC_CODEGEN_CPU_GEMM_H
#define MOECC_CODEGEN_CPU_GEMM_H

#include "emit.h"

struct gemm {
    uint32_t a_dtype;
    struct plan_param weights;
    int64_t k;
    int64_t a_stride;
    unsigned most_rows; // of a tile
    bool prefetches;    // brings the next panel into L2 while there are several tiles to hide it behind

    /// What becomes of a tile's sums; p[] are the tile function's own pointers, moved to the tile's first row.
    void (*finish)(struct emit *e, const struct gemm *gemm, unsigned rows, LLVMValueRef (*sums)[PANEL_VECTORS],
                   LLVMValueRef *p);
    void *user;

    LLVMTypeRef tile_type;
    LLVMValueRef tiles[TILE_ROWS_MAX + 1];
};

enum { TILE_POINTERS = 4 };

int64_t panel_bytes(const struct plan_param *param);
int64_t panel_count(const struct plan_param *param);

/// The most rows a tile of these weights can have without spilling registers.
unsigned tile_rows(struct emit *e, uint32_t dtype);

/// Generates gemm->tiles[1..most_rows]; `name` prefixes their names.
void gemm_tiles(struct emit *e, struct gemm *gemm, const char *name);

/// Rows of A times one panel, as evenly sized tiles. p[i] advances by p_stride[i] bytes a row; `next` is the panel that
/// comes after.
void gemm_rows(struct emit *e, const struct gemm *gemm, LLVMValueRef rows, LLVMValueRef a, LLVMValueRef panel,
               LLVMValueRef next, LLVMValueRef p[TILE_POINTERS], const int64_t p_stride[TILE_POINTERS]);

#endif
