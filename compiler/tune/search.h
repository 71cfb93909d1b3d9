// Inside tune: candidates, what is known of the layer, and how a candidate is judged.
#ifndef MOECC_TUNE_SEARCH_H
#define MOECC_TUNE_SEARCH_H

#include "compiler/tune/tune.h"

enum { STAGES_MOST = 16, KNOBS_MOST = 6, OFFERS_MOST = 128 };

/// The stages of the layer by what they depend on.
struct layer_shape {
    const char *before[STAGES_MOST];  // they lead to the dispatch
    const char *dispatch, *combine;   // NULL: the layer has not just one
    const char *experts[STAGES_MOST]; // on routed rows
    const char *free[STAGES_MOST];    // of neither: they can fill stalls
    const char *externs[STAGES_MOST]; // `attn=busy:2000000ns`: what stands for it when measuring
    uint32_t before_count, expert_count, free_count, extern_count;
    bool relayed;                     // rows go by two hops
};

struct knob_range {
    const char *name;
    int64_t low, high, value;
};

/// A schedule that the file or std.schedules offers.
struct offer {
    const char *name, *source;        // its text in its file
    uint32_t name_at;                 // where its name stands there
    struct knob_range knobs[KNOBS_MOST];
    uint32_t knob_count;
    uint32_t value_at[KNOBS_MOST], value_end[KNOBS_MOST]; // where the defaults stand in `source`
};

struct candidate {
    const char *use;                  // `ladder(n: 4)`
    const char *text;                 // of a schedule of tune's own; NULL: an offer
    uint32_t offer;                   // else which
    const struct design *design;
    double step_ns, exposed, measured_ns;
    uint32_t parts;                   // micro-batches, waves, or pieces of rows
    bool waves;
};

struct tuning {
    struct context *context;
    const struct tune_options *options;
    const char *base;                 // the file's text
    size_t base_size;
    struct layer_shape shape;
    struct offer offers[OFFERS_MOST];
    uint32_t offer_count;
    bool known;                       // the shape and the offers
    uint32_t evaluations, most;
    uint64_t *seen;                   // a key for each that was judged
    uint32_t seen_count, seen_capacity;
    struct candidate *kept;           // by step_ns
    uint32_t kept_count, kept_capacity;
    double serial_ns, alone_ns, weights, memory;
    int64_t tokens;
    uint32_t ranks, layers;
    const char *layer, *cluster;
    const char *name;                 // of a schedule of tune's own, and of the winner: one that the file does not have
};

// evaluate.c
/// False: not legal here, or the search has had its evaluations. `queue`: diagnostics go to the tuning's own context.
bool judge(struct tuning *t, struct candidate *candidate, bool queue);
/// Compiles a candidate for good; the image is the caller's. NULL: it does not compile.
void *compile_candidate(struct tuning *t, const struct candidate *candidate, size_t *bytes);

// library.c
void list_offers(struct tuning *t, const struct driver_study *study);
void try_offers(struct tuning *t);
/// The offer's text with other defaults, under tune's own name.
const char *offer_text(struct tuning *t, const struct candidate *candidate);

// design.c
void try_designs(struct tuning *t);

// tune.c
/// Evaluates and keeps it among the others. NULL: not legal.
const struct candidate *consider(struct tuning *t, struct candidate candidate);

// confirm.c
/// Measures the best `count` by turns; their measured_ns stay 0 where they do not run here.
void confirm(struct tuning *t, uint32_t count);

#endif
