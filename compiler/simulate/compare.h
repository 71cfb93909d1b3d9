// Two timelines of one schedule side by side: predicted and measured, or two runs. Both are Chrome traces as `simulate
// --trace` and `run --trace` write them; stages are matched by name, layer and rank.
#ifndef MOECC_COMPARE_H
#define MOECC_COMPARE_H

#include "compiler/base/base.h"

/// Prints the time per stage and its ratio, then where the two part. `merged` (or NULL): a file for both timelines in one.
/// EXIT_INPUT after a message when a file cannot be read as a trace, or when the two have no stage in common.
enum exit_code compare_traces(struct context *context, const char *a, const char *b, const char *merged, FILE *out);

#endif
