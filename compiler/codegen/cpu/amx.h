// Products of bf16 rows with bf16 panels on AMX tiles, of any number of rows: what gemm.h does with vectors elsewhere.
#ifndef MOECC_CODEGEN_CPU_AMX_H
#define MOECC_CODEGEN_CPU_AMX_H

#include "gemm.h"

enum { AMX_K = 32 }; // bf16 numbers of a tile's row

/// Whether the level has tiles and they multiply these types.
bool amx_multiplies(struct emit *e, const struct gemm *gemm);
/// gemm_tiles and gemm_rows of such a product.
void amx_tiles(struct emit *e, struct gemm *gemm, const char *name);
void amx_rows(struct emit *e, const struct gemm *gemm, LLVMValueRef rows, LLVMValueRef a, LLVMValueRef panels,
              LLVMValueRef panel, LLVMValueRef next, LLVMValueRef p[TILE_POINTERS]);

#endif
