// `moecc tune`: which schedule is the quickest here? Library schedules over their knobs, then schedules of its own: numbers and
// sizes of micro-batches, streams, fillers, and the order within streams (beam search). Everything is judged by the simulator;
// the best are measured where the target runs on this machine. Deterministic but for the measuring.
//
//   tune.c       the search and its report
//   evaluate.c   one schedule through the compiler, up to its prediction
//   library.c    what the file and std.schedules offer, and their knobs
//   design.c     a schedule of tune's own: as numbers, as text, and its neighbours
//   confirm.c    measured steps
#ifndef MOECC_TUNE_H
#define MOECC_TUNE_H

#include "compiler/driver.h"

struct tune_options {
    struct driver_options driver; // file, pipeline, dims, target
    uint32_t evaluations;       // at most; 0: as many as usual
    uint32_t confirm;           // how many to measure
    uint32_t threads;
    bool progress;              // a line on stderr that tells how far it is
    FILE *out;
};

/// What came of it; texts live as long as the context.
struct tune_result {
    double best_ns, library_ns, serial_ns, alone_ns;
    const char *winner;         // `ladder(n: 4)`, or `name`
    const char *library;        // the best of what the file and std.schedules offer
    const char *name, *text;    // `.moe` text that holds it, under a name that the file does not have
    bool split;                 // it has more than one micro-batch, wave or chunk
    bool alone;                 // better without expert parallelism
    uint32_t evaluations;
};

/// Searches and prints the table and the winner. Diagnostics of the file itself are queued in the context.
enum exit_code tune(struct context *context, const struct tune_options *options, struct tune_result *result);

#endif
