// Chains of waits, for messages: which instance waits for which, why, and where the text says so.
#ifndef MOECC_CHAIN_H
#define MOECC_CHAIN_H

#include "compiler/schedule/arcs.h"

struct proof {
    struct context *context;
    const struct program_text *program;
    const struct ir *module, *graph, *schedule;
};

struct hop { // `to` waits for `from`
    uint32_t from, to;
    uint32_t edge; // row of sched_edge; NONE: stream order
};

struct chain {
    struct hop *hops; // each begins where the one before ends
    uint32_t count;
};

/// As the text names it: `dispatch[1]`, or `dispatch.pack[1]` for what a rule placed.
const char *shown(const struct proof *proof, uint32_t instance);
struct span issue_span(const struct proof *proof, uint32_t instance);
/// The module's stage of an instance.
const struct mod_stage *stage_of(const struct proof *proof, uint32_t instance);
/// One note per hop, from the last to the first.
void note_chain(const struct proof *proof, struct diag *diag, const struct chain *chain);
struct finder;
/// `streams`: with the order of each stream, else only what data, messages and statements order.
struct finder *finder_make(const struct proof *proof, bool streams);
/// The shortest chain from one instance to another along edges alone, inside their group of layers. count 0: none.
/// `orders`: also through `order` statements.
struct chain find_chain(struct finder *finder, uint32_t from, uint32_t to, bool orders);
/// A shortest cycle through edges and stream order; `core`: by instance, where to look.
struct chain find_cycle(const struct proof *proof, const bool *core);

#endif
