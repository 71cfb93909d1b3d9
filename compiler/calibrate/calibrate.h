// `moecc calibrate`: what this machine does, as the `device` and `cluster` of a `.moe` file.
#ifndef MOECC_CALIBRATE_H
#define MOECC_CALIBRATE_H

#include "compiler/base/base.h"

/// Measures with `ranks` ranks at work at once (0: as many as cores, at least two and at most eight) and writes the text to
/// `out`. Leaves through `fatal` when a plan does not compile or run.
void calibrate(struct context *context, uint32_t ranks, bool progress, FILE *out);

#endif
