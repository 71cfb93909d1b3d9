// A timeline read back from a Chrome trace, as `moecc run --trace` and `moecc simulate --trace` write them.
#ifndef MOECC_TIMELINE_H
#define MOECC_TIMELINE_H

#include <jansson.h>

#include "compiler/base/base.h"

struct span_event {
    const char *name;           // `expert[0]`; of a message `dispatch.send[0]`
    uint32_t rank, to, layer;
    bool message;
    double begin, end;          // us
    double bytes;               // of a message
};

struct timeline {
    const char *path;
    json_t *root;
    struct span_event *events;
    uint32_t count, capacity;
    uint32_t ranks;             // that have events
    double step, exposed;       // us; share of it
};

/// Lives as long as the context. False after a message: no JSON, or nothing in it that is a stage.
bool timeline_read(struct context *context, const char *path, struct timeline *timeline);
/// Is it the name of a phase in which a stream sends or waits for messages?
bool timeline_moves(const char *name);

#endif
