// Chrome's trace format (chrome://tracing, Perfetto), for measured and for predicted timelines: a process a rank, a thread
// a stream. Begin, names and events in any order, end.
#ifndef MOE_TRACE_EVENTS_H
#define MOE_TRACE_EVENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct trace_event {
    const char *name, *category;
    uint32_t rank, thread;
    double begin_ns, end_ns;
    uint32_t layer;
    bool message;               // then: to which rank, and how much
    uint32_t to;
    int64_t bytes;
};

void trace_begin(FILE *out);
/// `what` is process_name or thread_name.
void trace_name(FILE *out, const char *what, uint32_t rank, uint32_t thread, const char *name);
void trace_event(FILE *out, const struct trace_event *event);
void trace_end(FILE *out);

#endif
