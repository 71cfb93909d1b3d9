// `moecc explain`: a page for every diagnostic code (pages/CODE.md, embedded): why it is an error, an example that is
// refused with it and one that is accepted. Tests run all examples.
#ifndef MOECC_EXPLAIN_H
#define MOECC_EXPLAIN_H

#include "compiler/base/diag.h"

/// The page of a code as the user writes it ("E0301", "e0301"): a text with its size, or NULL.
const char *explain_page(const char *code, size_t *size);
/// Every code with its title, a line each.
void explain_list(FILE *out);

#endif
