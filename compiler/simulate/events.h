// The discrete-event simulator itself, which knows nothing of layers: tasks in the queues of streams, compute shared by
// those that run at once, messages that share links. Deterministic: equal inputs, equal times. Times are in ns.
#ifndef MOECC_SIMULATE_EVENTS_H
#define MOECC_SIMULATE_EVENTS_H

#include "compiler/base/base.h"

enum event_kind {
    EVENT_COMPUTE,              // runs for `work`, slower where others of its pool run beside it; then starts its flows, if it
                                // has any, and ends when they have left and those that lead to it have arrived
    EVENT_SEND,                 // starts its flows, ends when all of them have left
    EVENT_RECV,                 // ends when every flow that leads to it has arrived
};

struct event_task {
    enum event_kind kind;
    uint32_t stream;            // tasks of a stream run one after the other, in the order of the table
    uint32_t pool;              // COMPUTE: who shares SMs with whom
    double work, memory;        // COMPUTE: ns with the pool to itself, by arithmetic and by bytes; the longer counts
    double lends;               // share of `lender`'s SMs that the task keeps while it works; a receive works from its first message on
    uint32_t lender;            // a pool
    double begin, end;          // the result; a RECV begins when its stream has come to it
    double worked;              // COMPUTE: the result; when its work was done
};

struct event_flow {             // a message, or all equal ones between two kinds of ranks
    uint32_t send, recv;        // tasks
    uint32_t out, in;           // links that it passes
    double out_bytes, in_bytes; // over each
    double latency;             // ns from the last byte sent to arrival
    double limit;               // bytes per ns that its ends can move; 0: any
    double begin, left, arrived; // the result
};

struct event_arc {              // `to` begins after `from` has ended
    uint32_t from, to;
};

struct events {
    struct event_task *tasks;
    struct event_flow *flows;
    struct event_arc *arcs;
    double *links;              // bytes per ns
    uint32_t task_count, flow_count, arc_count, link_count, stream_count, pool_count;
    double end;                 // the result: when the last task has ended
};

/// Runs everything. False when it cannot end: some tasks wait for each other.
bool run_events(struct context *context, struct events *events);

#endif
