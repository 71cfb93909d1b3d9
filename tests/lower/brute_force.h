// A second opinion on a lowered program: every rank spelled out, every pair of accesses compared.
#ifndef TESTS_LOWER_BRUTE_FORCE_H
#define TESTS_LOWER_BRUTE_FORCE_H

#include "runtime/plan/plan.h"

/// Are all conflicting accesses of all ranks ordered, with no overflow round and with one each? Prints the first pair
/// that is not. For small programs: time and memory grow with the square of ranks times instructions.
bool brute_force_agrees(const struct ir *plan, uint32_t variant);

#endif
