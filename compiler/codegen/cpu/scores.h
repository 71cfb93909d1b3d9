// What some routers do to scores: cosine similarity, and noise on the choice.
#ifndef MOECC_CODEGEN_CPU_SCORES_H
#define MOECC_CODEGEN_CPU_SCORES_H

#include "gemm.h"

/// temperature / |w_e| of every column of the router's panels.
void expert_factors(struct emit *e, const struct plan_param *weights, LLVMValueRef w, double temperature, LLVMValueRef to);
/// Products x . w_e become temperature * cos(x, w_e). x: one row.
void scale_to_cosine(struct emit *e, LLVMValueRef scores, int64_t columns, LLVMValueRef factors, LLVMValueRef x,
                     int64_t width, uint32_t dtype);

// Noise: the sum of 2 * NOISE_WORDS uniform numbers, which is nearly normal and needs no function whose last bit depends
// on a library.
enum { NOISE_WORDS = 4 };
#define NOISE_STEP 0x9e3779b9u
/// A token's own number, in every lane. token: its place in the launch's rows.
LLVMValueRef noise_of_token(struct emit *e, int64_t seed, LLVMValueRef token);
/// The noise of the experts from `index` on for that token.
LLVMValueRef noise_of_experts(struct emit *e, LLVMValueRef token, LLVMValueRef index, double deviation);

#endif
