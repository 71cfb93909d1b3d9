// Every schedule of std.schedules as a variant of one plan, over two layers with attention and a shared expert on four
// ranks: the n-th is chosen when the most tokens of a rank are LIBRARY_FIRST + n.
#ifndef MOE_TEST_LIBRARY_H
#define MOE_TEST_LIBRARY_H

#include "tests/end_to_end/harness.h"

enum { LIBRARY_WIDTH = 64, LIBRARY_FIRST = 40, LIBRARY_MOST = 32, LIBRARY_NAME = 48 };

struct library {
    char name[LIBRARY_MOST][LIBRARY_NAME];
    bool waves[LIBRARY_MOST];   // rounds by itself
    int count;
};

/// What stdlib/std/schedules.moe holds.
void library_read(struct library *library);
/// `options` of the dispatch, as ", capacity: 0.5x".
moe_plan *library_compile(const struct library *library, bool serial, const char *options);
/// Stands for attention: twice its input, which bf16 does without rounding.
int library_attention(void *user, const moe_extern_call *call);

#endif
