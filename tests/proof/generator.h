// Random small programs in the plan's records: launches over arena buffers, semaphores, exchanges, overflow rounds, on
// two or three ranks, or with relays on two nodes of two ranks, and one to three streams. Most are ordered with care and then damaged, or not.
//
// The language of these programs, in which the verifier must be exact: every exchange is sent and received once (in
// rounds: once a round), a semaphore is signalled by one stream with growing values, a wait names a value that is
// signalled or none that ever is, one `count` ends the step, parts are shares of one total, buffers that are sliced share
// no bytes with others, launches name all that they touch and are for no one part: unsliced means every row. What a rank
// does for one relayed exchange after its send stands in one stream.
#ifndef TESTS_PROOF_GENERATOR_H
#define TESTS_PROOF_GENERATOR_H

#include "runtime/plan/plan.h"

enum { GENERATED_MOST_INSTRUCTIONS = 40 };

/// Program number `seed` as variant 0 of a plan. The same number, the same program.
void generate_program(uint64_t seed, struct ir *plan);

#endif
