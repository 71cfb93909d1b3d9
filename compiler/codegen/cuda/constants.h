// A source in the making, and the constants that stand at its head.
#ifndef MOECC_CUDA_CONSTANTS_H
#define MOECC_CUDA_CONSTANTS_H

#include "cuda.h"

struct writer {
    struct context *context;
    const char *text;
};

void put_size(struct writer *w, const char *name, int64_t value);
void put_count(struct writer *w, const char *name, int64_t value);
void put_flag(struct writer *w, const char *name, bool value);

/// What the kernel's role calls its constants.
void put_role(struct writer *w, const struct plan_kernel *kernel);

#endif
