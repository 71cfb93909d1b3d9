// The links between ranks, as the cluster declares them: along every axis a rank has one way out and one way in, each of
// the axis' bandwidth. Messages under way share them by progressive filling: every message gets its weight of a link, and
// what a slower link elsewhere keeps it from using goes to the others. It knows no clock: whoever drives it (sim's event
// loop, the thread of emulate.h) says how late it is.
#ifndef MOE_LINKS_H
#define MOE_LINKS_H

#include "runtime/exec/session.h"

struct flow {
    uint32_t out, in;              // links that it passes; NONE: nothing holds it back
    double left, weight, rate;     // bytes still to leave, share of a link, bytes per ns
    double latency, due;           // ns; due: when it arrives, once it has left
    struct piece piece[2];         // what is still to be copied; it does not arrive before
    struct event *arrives;
    bool gone;                     // all bytes have left
    struct rank *sender;           // waits until all messages of its send are copied and gone; NULL: nobody waits
    uint32_t exchange;
    struct span_record *record;    // NULL: no room for it
};

struct links {
    struct moe_session *session;
    struct flow *flows;
    uint32_t *idle, *moving, *flying, *copying, *touched; // numbers of flows; of links
    uint32_t idle_count, moving_count, flying_count, copying_count, touched_count;
    double *room, *demand;         // by link, while rates are found
    double now;                    // ns since the step began
    _Atomic uint32_t under_way;    // neither arrived nor lost
};

/// NULL: no memory. It lives as long as the session.
struct links *links_create(struct moe_session *session);
/// Nothing under way, time 0.
void links_reset(struct links *links);
/// The message leaves from now, links->now, on; `record` (or NULL) gets its end. False: too many are under way, the session
/// has failed.
bool links_start(struct links *links, const struct passage *passage, struct span_record *record);
/// All messages of a send have been started.
void links_sent(struct rank *rank, uint32_t exchange);
/// Copies up to `most` bytes of one message that has been started. False: there is nothing to copy.
bool links_copy(struct links *links, int64_t most);
/// When something happens next: a message has left or is due. INFINITY: never.
double links_next(const struct links *links);
/// All that happens until `now`: events of what has left and arrived are raised.
void links_advance(struct links *links, double now);

#endif
