// What the tests of weights share: a temporary folder, and files made byte by byte.
#ifndef TESTS_WEIGHTS_FILES_H
#define TESTS_WEIGHTS_FILES_H

#include <CUnit/CUnit.h>
#include <stddef.h>
#include <stdint.h>

int make_weights_folder(void);
int remove_weights_folder(void);
/// The path of a file in the folder; valid for four more calls.
const char *weights_path(const char *name);
void write_test_bytes(const char *path, const void *bytes, size_t size);
/// A file with this header and so many bytes of data; `claimed` replaces the header's length unless negative.
void write_test_file(const char *path, const char *header, size_t data, int64_t claimed);

void add_file_tests(CU_pSuite suite);

#endif
