// Between the files of the explorer: what an execution is made of. A *site* is one execution of one instruction on one
// rank, or one transfer; which bytes it touches is worked out from the plan alone (touches.c).
#ifndef TESTS_PROOF_SITES_H
#define TESTS_PROOF_SITES_H

#include "runtime/plan/plan.h"

enum { MOST_RANKS = 4, MOST_TOUCHES = 24, TRANSFER = 1000 };

struct touched {
    uint32_t rank, buffer, slice; // whose memory
    int64_t first, bytes;         // within the buffer; bytes < 0: all of it, or the slice
    bool write;
};

struct site {
    uint32_t op; // enum opcode or TRANSFER
    uint32_t rank, stream, instr, exchange, peer;
    bool passed_on;   // a transfer: by a relay's `forward`, not by a `send`
    bool last_signal; // nothing follows it in its stream
    uint32_t step, round;
    uint32_t before; // site that must have been executed: the one ahead in its stream, a transfer's send; or NONE
    uint32_t touch_count;
    struct touched touched[MOST_TOUCHES];
};

/// Two hops: ranks of one node, and ranks of one position in different nodes, each other than the rank itself.
static inline bool is_near(const struct plan_exchange *e, uint32_t a, uint32_t b)
{
    return e->node && a != b && a / e->node == b / e->node;
}

static inline bool is_alike(const struct plan_exchange *e, uint32_t a, uint32_t b)
{
    return e->node && a != b && a % e->node == b % e->node;
}

/// Does a message of rank a to rank b go directly (or, `passed_on`, from a relay)?
static inline bool transfers(const struct plan_exchange *e, uint32_t a, uint32_t b, bool passed_on)
{
    if (!e->node)
        return a != b && !passed_on;
    bool dispatch = e->kind == exchange_kind_dispatch;
    return is_near(e, a, b) ? dispatch || !passed_on : is_alike(e, a, b) && dispatch != passed_on;
}

/// Fills the site's touches.
void list_touches(const struct ir *plan, const struct plan_variant *variant, struct site *site);

#endif
