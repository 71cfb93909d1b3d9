// A small layer for trying a router out end to end: its matrix is the identity unless given, so that a token's logits are
// its own elements, and its checkpoint is written for the test.
#ifndef MOE_TEST_LAB_H
#define MOE_TEST_LAB_H

#include "tests/end_to_end/harness.h"

enum { LAB_BOUND = 128 }; // tokens a rank

struct lab {
    const char *dtype; // NULL: f32
    int experts;       // and hidden size: a multiple of 8
    const char *route; // options of topk after the tensors
    const float *bias; // of the selection, in the checkpoint
    bool shared;
    const char *router_dtype; // in the checkpoint; NULL: F32
    const void *router;       // its bytes; NULL: the identity
    const char *schedule;
    uint32_t ranks;
};

/// A folder of this process for files that a test makes, and the path of one in it, valid until the next call.
const char *lab_folder(void);
const char *lab_file(const char *name);
int lab_clean_up(void);
/// Its text, valid until the next call.
const char *lab_text(const struct lab *lab);
/// The plan, on four ranks unless said otherwise; and its checkpoint: the router, a bias, random experts in the layer's type.
moe_plan *lab_compile(const struct lab *lab);
const char *lab_weights(const struct lab *lab);
/// Both, run with every buffer poisoned. Prints what went wrong.
struct outcome lab_run(const struct lab *lab, const float *x, const int64_t *tokens, moe_options options);
/// Routes of one token given its logits, on two ranks.
struct outcome lab_route(const struct lab *lab, const float *logits);

#endif
