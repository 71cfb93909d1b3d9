// The register tile all matrix products share: up to 13 rows of A times one panel of packed weights, or (quantised
// weights, narrower vectors) very few rows times several panels. Every output is one chain of multiply-adds over k in
// ascending order whatever the tile, so a row's result does not depend on its company.
#ifndef MOECC_CODEGEN_CPU_GEMM_H
#define MOECC_CODEGEN_CPU_GEMM_H

#include "emit.h"

enum { TILE_POINTERS = 4, ROW_NUMBERS = TILE_POINTERS - 1, WIDE_PANELS = 4, WIDE_SHAPES = 2, TILE_VECTORS = WIDE_PANELS * PANEL_VECTORS };

struct gemm {
    uint32_t a_dtype;
    struct plan_param weights; // in memory
    int64_t k;
    int64_t a_stride;
    bool by_row;        // rows of A lie anywhere: the finisher's p[ROW_NUMBERS] leads to the number of each, i32
    int64_t row_scales; // in a row of A: where the scales of its codes begin, one for each block of the weights; 0: none
    unsigned most_rows; // of a tile
    int64_t p_row[TILE_POINTERS], p_panel[TILE_POINTERS]; // bytes from a row (a panel) to the next, of the finisher's p[]
    bool prefetches;    // into L2, where there are enough rows to hide it behind

    /// Brings near what `finish` will read, before the products of a tile of many rows, which take longer; NULL: nothing.
    void (*prepare)(struct emit *e, const struct gemm *gemm, unsigned rows, LLVMValueRef *p);
    /// What becomes of a tile's sums, panel by panel; p[] are the tile function's own pointers, moved to the tile's first
    /// row and to the panel.
    void (*finish)(struct emit *e, const struct gemm *gemm, unsigned rows, LLVMValueRef (*sums)[PANEL_VECTORS],
                   LLVMValueRef *p);
    void *user;

    // by gemm_tiles: quantised weights are expanded by the tiles themselves where dot products hide that or there are few
    // rows; else once for all of them into the worker's scratch when there are more than most_rows
    struct plan_param read;  // what the tiles read: the weights, or an expanded copy of a panel
    unsigned least_rows;     // that it makes a tile for
    struct gemm *many;       // for more rows; NULL: none
    struct gemm *wide[WIDE_SHAPES]; // for very few: 4 or 2 panels at once, whose chains hide each other's latency, or NULL
    unsigned panels;         // of a tile
    struct amx *amx;         // NULL: not by AMX tiles
    LLVMTypeRef tile_type, expand_type;
    LLVMValueRef tiles[TILE_ROWS_MAX + 1], expand;
};

/// The most rows a tile of these weights can have without spilling registers.
unsigned tile_rows(struct emit *e, uint32_t dtype);

/// Generates the tiles; `name` prefixes their names.
void gemm_tiles(struct emit *e, struct gemm *gemm, const char *name);
/// Scratch that a worker needs for gemm_rows.
int64_t gemm_scratch(const struct gemm *gemm);

/// Rows of A of one call.
struct a_rows {
    LLVMValueRef first; // of them or, by row, of all
    LLVMValueRef count;
    LLVMValueRef after; // by row: behind their numbers stand those of so many that come next
};
/// Rows of A times `panels` consecutive panels, which begin at `panel`; the one at `next` comes after them.
void gemm_rows(struct emit *e, const struct gemm *gemm, struct a_rows a, LLVMValueRef panels, LLVMValueRef panel,
               LLVMValueRef next, LLVMValueRef p[TILE_POINTERS]);

// What gemm_rows and amx_rows share.

/// A panel in memory and the one that comes after it.
struct place {
    LLVMValueRef panel, next;
    LLVMValueRef has_before, has_after; // another panel of the same call
};
/// Of a loop over panels: the one that it is at. It began at `begin`; `panel` is panel 0, the one at `next` comes last.
struct place panel_at(struct emit *e, const struct gemm *gemm, const struct loop *loop, LLVMValueRef begin,
                      LLVMValueRef panel, LLVMValueRef next);
/// The finisher's pointers at a panel.
void move_to_panel(struct emit *e, const struct gemm *gemm, LLVMValueRef panel, LLVMValueRef *p, LLVMValueRef *moved);

/// own[]: a block's factors for a row of A, the weights' and, at `row_scale`, its own; NULL: none.
void scale_row(struct emit *e, const struct gemm *gemm, LLVMValueRef row_scale, const LLVMValueRef *factors,
               LLVMValueRef *own);

/// Where the tiles of a panel prefetch, and how far they go in each round of the loop over k: the first one, and the one
/// after it, from which each further one is `each` bytes off. Who has nothing to prefetch fetches the panel's first lines
/// again and again, which costs nothing.
struct ahead {
    LLVMValueRef first, first_step, later, later_step, each;
};
/// For `rows` rows, from `a` on, in `tiles` tiles; `direct`: they read the panel itself and no expanded copy.
struct ahead place_to_prefetch(struct emit *e, const struct gemm *gemm, struct place at, LLVMValueRef rows,
                               LLVMValueRef a, LLVMValueRef tiles, bool direct);
/// Of the tile with that number.
void ahead_of(struct emit *e, const struct ahead *ahead, LLVMValueRef tile, LLVMValueRef *from, LLVMValueRef *step);

#endif
