// A second opinion on small lowered programs: runs every interleaving of all ranks and says which faults can be reached.
// It shares no code and no idea with compiler/lower/verify*.c: no clocks, no symmetry between ranks, only states.
//
// The machine. Every rank has its streams; a stream executes its instructions in order. `signal` raises a semaphore,
// `wait` stands until it is high enough. `send` starts one transfer per peer, an agent of its own that reads the slot
// on this side and writes the slot on the other at any later time; transfers of one exchange between two ranks keep
// their order. `recv` stands until every transfer to it has ended and the own send is done. With relays a dispatch's send
// goes to the own node and to the ranks of the own position, a combine's to the own node; `forward` sends what is passed
// on, `settle` stands until that, or the node's replies, have come. Overflow rounds run 0, 1 or 2 times, the same number on
// all ranks, all combinations. Launches take time: two that may begin in one state may run at
// once.
//
// An instruction that may go on stays able to, whatever others do. So an instruction that no instruction still to come
// could disturb, but for those that must wait for it, is executed at once, alone: nothing that can meet is lost. All other
// choices are tried, states hashed.
#ifndef TESTS_PROOF_EXPLORER_H
#define TESTS_PROOF_EXPLORER_H

#include "runtime/plan/plan.h"

enum explored {
    EXPLORED_RACE = 1,     // two accesses to one byte, one of them a write, can happen at once
    EXPLORED_DEADLOCK = 2, // a state from which nothing goes on although some stream is not at its end
    EXPLORED_OVERFLOW = 4, // bytes beyond a buffer or the arena; a slot or buffer overwritten before it was read
    EXPLORED_UNWRITTEN = 8, // something is read that this step has not written
    EXPLORED_TOO_LARGE = 16, // more states than asked for: nothing is known
};

struct exploration {
    unsigned found; // enum explored
    size_t states;
    char what[256]; // the first fault
};

/// `steps`: that many steps after one another. `barrier`: a step begins when all streams of all ranks have ended the one
/// before, with semaphores at zero, as moe_session_run has it; otherwise every stream just goes on.
struct exploration explore(const struct ir *plan, uint32_t variant, unsigned steps, bool barrier, size_t most_states);

#endif
