// What tests compare: representations and diagnostics as text.
#ifndef MOE_TEST_PRINTED_H
#define MOE_TEST_PRINTED_H

#include "compiler/base/diag.h"
#include "runtime/plan/records.h"

/// Both: the caller frees the text.
char *printed_ir(const struct ir *ir);
char *printed_diagnostics(const struct context *context, enum diag_format format);

#endif
