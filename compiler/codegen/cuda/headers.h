// The embedded headers that CUDA sources include, and which of them a source depends on: what is compiled once is compiled
// again when one of those changes, and only then.
#ifndef MOECC_CODEGEN_CUDA_HEADERS_H
#define MOECC_CODEGEN_CUDA_HEADERS_H

#include "compiler/base/base.h"

enum cuda_back { CUDA_GPU = 1, CUDA_CPU = 2 };
enum { CUDA_MOST_HEADERS = 32 };

/// Every header that kernels may include when they are compiled for a back: the names that they include it by, and texts.
/// How many there are.
int cuda_headers(struct context *context, enum cuda_back back, const char **names, const char **texts);

/// The texts of those that `source` includes, directly or by one another, one behind the other.
const char *cuda_headers_of(struct context *context, enum cuda_back back, const char *source);

/// An embedded file of stdlib/cuda; leaves through `fatal` without it.
const char *cuda_file_text(struct context *context, const char *name);

#endif
