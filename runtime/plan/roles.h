// The kernels' roles as a table (roles.def): lowering makes launches from it, and the validator of plans judges them by it.
#ifndef MOE_ROLES_H
#define MOE_ROLES_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels.h"
#include "plan.h"

/// What an argument position must be given.
enum arg_kind {
    ARG_ANY,
    ARG_IN,                     // rows of a value that it reads
    ARG_OUT,                    // rows of a value that it writes
    ARG_ARENA,
    ARG_BINS,
    ARG_PAIRS,
    ARG_ROWS,
    ARG_SUMS,
    ARG_TABLE,
    ARG_SLOTS,
    ARG_VECTOR,                 // a parameter f32[width]
    ARG_NONE                    // only declares an access
};

struct role_spec {
    uint8_t least, most;        // listed arguments
    uint8_t args[MOE_MAX_ARGS]; // arg_kind
    uint8_t unit;               // work_unit
    bool builtin, exchange, row_operator;
};

extern const struct role_spec role_specs[kernel_role_words_count];

/// The role of a row operator by its kernel's name; kernel_role_words_count: it is none.
uint32_t row_operator(const char *kernel);

#endif
