// What the fuzz targets share: input as a file, and a compilation that must end in a proper exit code.
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/// Writes a file under a folder of this process; returns its path.
const char *fuzz_file(const char *name, const void *data, size_t size);
/// Checks a `.moe` file; a bug in moecc (exit code 70) ends the process.
void fuzz_check(const char *path);

#endif
