// A token's routes as rows: one for each rank that owns one of its experts. Where experts have copies a row may be computed
// by another rank than their owner, which changes neither the row's sum nor its place among the token's rows.
#ifndef MOE_ROUTES_H
#define MOE_ROUTES_H

#include "session.h"

/// One (token, expert) pair.
struct route_pair {
    uint32_t owner;  // row of the expert's owner in plan_owner: orders by rank, then expert id
    uint32_t expert;
    int32_t local;   // at the rank that computes it
    float weight;
};

/// Pairs [first, end) of one owner, which `rank` computes.
struct route_row {
    uint32_t rank;
    int first, end;
};

struct route {
    struct route_pair pairs[MOE_MAX_CHOICES];
    struct route_row rows[MOE_MAX_CHOICES]; // by owner; through relays by rank, then owner
    int count;                              // of rows
};

struct routes {
    const struct moe_session *session;
    const int32_t *ids;
    const float *weights;
    uint32_t choices, me, node; // node: ranks that share a relay, 0: none do
    int64_t first_token;        // of the rank, where ids begin
};

struct routes routes_of(const struct stream *s, const void *ids, const void *weights, int64_t first_token,
                        uint32_t node);
/// False for an id that is impossible or there twice: control buffers have room for distinct ones. -1 is skipped.
bool route_token(const struct routes *r, int64_t token, struct route *route);

#endif
