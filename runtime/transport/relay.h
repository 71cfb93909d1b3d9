// Between the files of the local transport: messages of exchanges with two hops.
#ifndef MOE_RELAY_H
#define MOE_RELAY_H

#include "runtime/exec/session.h"

/// Dispatch: one message to every other node, each raising one arrival. False with the session failed.
bool relay_send(struct stream *s, uint32_t exchange);
/// Combine: the replies that rank `peer` of the own node relays, into its buffer; and their bytes on the wire.
bool relay_hand_in(struct stream *s, uint32_t exchange, uint32_t peer);
int64_t relay_hand_in_bytes(struct stream *s, uint32_t exchange, uint32_t peer);
/// Passes on what this rank relays: a dispatch's rows inside the node, a combine's sums to their sources.
enum stepped relay_forward(struct stream *s, uint32_t exchange);
/// After a combine's replies were handed in: are they those of this step, as many as asked for?
bool relay_replies_good(struct stream *s, uint32_t exchange);

#endif
