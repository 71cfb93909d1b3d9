// What some routers do to scores: cosine similarity, and noise on the choice.
#ifndef MOECC_CODEGEN_CPU_SCORES_H
#define MOECC_CODEGEN_CPU_SCORES_H

#include "gemm.h"

/// temperature / |w_e| of every column of the router's panels.
void expert_factors(struct emit *e, const struct plan_param *weights, LLVMValueRef w, double temperature, LLVMValueRef to);
/// Products x . w_e become temperature * cos(x, w_e). x: one row.
void scale_to_cosine(struct emit *e, LLVMValueRef scores, int64_t columns, LLVMValueRef factors, LLVMValueRef x,
                     int64_t width, uint32_t dtype);

// Noise (kernels.h has its constants).
/// A token's own number, in every lane. token: its place in the launch's rows.
LLVMValueRef noise_of_token(struct emit *e, int64_t seed, LLVMValueRef token);
/// The noise of the experts from `index` on for that token.
LLVMValueRef noise_of_experts(struct emit *e, LLVMValueRef token, LLVMValueRef index, double deviation);

#endif
