// Between the files of the program verifier. It knows nothing of schedules and graphs: it reads the plan that will run.
//
// All ranks run one program, so the happens-before relation of all ranks is that of a rank and of each kind of others: for
// every event, how far each stream had come for certain on the event's own rank and on every rank of each kind. Where
// every rank sends to every other there is one kind of others. With relays there are three: ranks of the own node, ranks
// of the own position in other nodes, and the rest, with which no message is exchanged directly.
// Overflow rounds run zero or more times, agreed by all ranks; they appear as two iterations whose messages order
// events of the same rounds only, so that what is proven holds for any number of rounds of each exchange.
//
// Two consecutive steps need no second proof: the runtime begins a step when every stream of every rank has ended the one
// before (moe_session_run), with semaphores and arrivals at zero. A step leaves nothing behind that could meet the next:
// every message sent is received (match_messages), `count` is last on its rank (check_count), and what a step reads it has
// written itself (check_written), so that no step sees an earlier one's bytes.
#ifndef MOECC_VERIFY_H
#define MOECC_VERIFY_H

#include "compiler/lower/program.h"

enum kind { OWN, NEAR, ALIKE, FAR, KINDS }; // without relays: OWN and NEAR, any other rank
enum { FROM_NEAR = 1 << NEAR, FROM_ALIKE = 1 << ALIKE, FROM_ALL = 1 << NEAR | 1 << ALIKE | 1 << FAR };

struct event {
    uint32_t stream, position; // event number = first event of the stream + position
    uint32_t instr;            // plan row
    uint32_t loop;             // number of the overflow rounds it belongs to, or NONE
    uint32_t iteration;
    uint32_t wakes; // wait: the event of its signal; recv, settle: of other ranks' send, forward; else NONE
    uint32_t from;  // recv, settle: kinds of other ranks whose messages it waits for
};

struct verifier {
    struct context *context;
    const struct ir *plan;
    const struct plan_variant *variant;
    const struct plan_info *info;
    const struct plan_program *programs;
    struct rows streams;
    char *error;
    size_t size;

    struct event *events;
    uint32_t event_count, event_capacity;
    uint32_t *stream_first; // by stream; one more than streams
    uint32_t *order;        // events, each after all it waits for
    uint32_t node;          // ranks that share a relay; 0: no relays
    uint32_t kinds;         // 2 or KINDS
    uint32_t *clocks;       // [event][kinds][streams]: events of each stream known to have ended; base orders
    uint32_t *round_clocks; // the same with the messages of the event's own rounds
};

/// Writes the message and returns false.
bool verify_fail(const struct verifier *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
/// "`expert[0]` (launch mlp_up, layer 3)"
const char *event_text(const struct verifier *v, uint32_t event);

static inline const struct plan_instr *event_instr(const struct verifier *v, uint32_t event)
{
    return ROW(v->plan, plan_instr, v->events[event].instr);
}

static inline const uint32_t *event_clock(const struct verifier *v, uint32_t event, enum kind kind)
{
    const uint32_t *clocks = v->events[event].loop == NONE ? v->clocks : v->round_clocks;
    return clocks + ((size_t)event * v->kinds + kind) * v->streams.count;
}

/// Ranks of a kind, for any rank.
static inline uint32_t kind_size(const struct verifier *v, enum kind kind)
{
    uint32_t near = v->node ? v->node - 1 : v->info->ranks - 1, alike = v->node ? v->info->ranks / v->node - 1 : 0;
    return kind == OWN ? 1 : kind == NEAR ? near : kind == ALIKE ? alike : near * alike;
}

bool verify_events(struct verifier *v);   // verify_order.c: events, what wakes them, no cycle, clocks
bool verify_accesses(struct verifier *v); // verify_access.c: conflicting accesses are ordered
bool verify_formats(struct verifier *v);  // verify_formats.c: rows are packed before they are sent, unpacked before use
bool verify_sizes(struct verifier *v);    // verify_size.c: buffers hold what their bounds say

#endif
