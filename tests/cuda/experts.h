// Experts of one layer, compiled for a level (a CUDA chip run by the CPU, a GPU, or native code) and compared with the float64
// reference; what suites of several kinds of experts share (test_cuda.c).
#ifndef MOE_TESTS_CUDA_EXPERTS_H
#define MOE_TESTS_CUDA_EXPERTS_H

#include "tests/codegen/fixture.h"

struct expert_case {
    struct layer_shape shape;
    unsigned form;
    uint32_t activation;
};

/// The results, the same bytes whole and in pieces, by one block and by several, in company and alone.
void check_experts(const struct expert_case *c, const char *level);

/// The emulator has found nothing since the last call.
void no_reports(const char *what);

#endif
