// Between the files of plan validation: the context, and which checks there are.
#ifndef MOE_VALIDATE_H
#define MOE_VALIDATE_H

#include "plan.h"

struct check {
    const struct ir *ir;
    const struct plan_info *info;
    size_t code_bytes;
    char *error;
    size_t size;
};

/// Writes the message and returns false.
bool check_fail(const struct check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline bool in_range(int64_t value, int64_t low, int64_t high)
{
    return value >= low && value <= high;
}

static inline bool in_rows(struct rows rows, uint32_t row)
{
    return row >= rows.first && row - rows.first < rows.count;
}

/// Bytes of `count` elements; 0 for types without a fixed size.
int64_t dtype_bytes(uint32_t dtype, int64_t count);

/// validate_program.c: streams, instructions, kernels' arguments and buffers of one rank under one variant.
bool validate_kernel(const struct check *c, uint32_t number);
bool validate_program(const struct check *c, const struct plan_variant *variant, const struct plan_program *program);

#endif
