// Expanding quantised weights: what a panel of codes and its scales become in registers.
#ifndef MOECC_CODEGEN_CPU_CODES_H
#define MOECC_CODEGEN_CPU_CODES_H

#include "emit.h"

/// The numbers of a panel for k, ..., k + step - 1, without their scale, from codes at `pointer` (of k 0). With `split`
/// columns[v][0] holds pairs of bf16, as the dot product takes them; else columns[v][i] is f32, of k + i.
void load_codes(struct emit *e, const struct plan_param *w, LLVMValueRef pointer, unsigned k, unsigned step,
                LLVMValueRef columns[PANEL_VECTORS][2]);

/// The scales of one block of a panel, one a column.
void load_scales(struct emit *e, const struct plan_param *w, LLVMValueRef pointer, LLVMValueRef scales[PANEL_VECTORS]);

#endif
