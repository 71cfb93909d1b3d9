// `emulate_links` on the cpu device: messages of the local transport arrive when the cluster's links would have brought
// them. One thread stands for the network: it copies what was sent, as an adapter would, and sleeps until the next message
// is due; nobody waits in a loop. It comes before all others where the system allows that (SCHED_FIFO), so that kernels on
// every core do not delay it.
#ifndef MOE_EMULATE_H
#define MOE_EMULATE_H

#include "runtime/exec/session.h"

/// Starts the thread. False: no memory or no thread.
bool emulate_start(struct moe_session *session);
void emulate_stop(struct moe_session *session);
/// A step begins: nothing is under way.
void emulate_reset(struct moe_session *session);
/// A step has ended: returns when the thread has let go of its events.
void emulate_end(struct moe_session *session);
bool emulate_carry(const struct passage *passage);
/// All messages of a send are on their way.
void emulate_sent(struct stream *stream, uint32_t exchange);
/// Messages under way are progress although no stream moves.
bool emulate_moves(const struct moe_session *session);

#endif
