// Between the verifier's files of accesses: places of memory, and which of them an event uses.
#ifndef MOECC_VERIFY_PLACES_H
#define MOECC_VERIFY_PLACES_H

#include "compiler/lower/verify.h"

struct use {
    uint32_t place;
    enum kind kind; // whose memory: the own, or that of every rank of a kind
    bool read, write;
};

struct history; // of the accesses to a place: verify_access.c

struct places {
    struct verifier *v;
    uint32_t buffers, parts, count;     // place = buffer, or buffers + buffer * parts + part for a slice
    uint32_t *overlap_first, *overlaps; // by place: the places that share bytes with it, itself first
    struct history *histories;
    uint32_t *writer; // by buffer: the instruction that wrote a control buffer, or NONE
    struct use uses[8 * MOE_MAX_ARGS];
    uint32_t use_count;
};
static inline uint32_t buffer_of(const struct places *p, uint32_t place)
{
    return place < p->buffers ? place : (place - p->buffers) / p->parts;
}

static inline const struct plan_buffer *buffer_row(const struct places *p, uint32_t buffer)
{
    return ROW(p->v->plan, plan_buffer, p->v->variant->buffers.first + buffer);
}

/// Places of the variant's buffers, and which of them share bytes.
void places_init(struct places *p, struct verifier *v);
/// Do two places share bytes?
bool places_meet(const struct places *p, uint32_t a, uint32_t b);
/// What the event uses, into p->uses. False: refused, with a message. Events are given in the verifier's order:
/// what was given to the writer of a control buffer is what those who work through it use.
bool places_use(struct places *p, uint32_t event);
/// Adds what a message of the exchange uses while it is under way; `op`: what puts it there.
void places_use_message(struct places *p, uint32_t op, uint32_t exchange);

#endif
