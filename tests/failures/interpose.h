// Makes a call to the system fail once: the linker sends the calls of the compiler, the runtime and libjansson in the test
// binary through interpose.c (-Wl,--wrap, see the Makefile), which passes them on unless told otherwise.
#ifndef TESTS_FAILURES_INTERPOSE_H
#define TESTS_FAILURES_INTERPOSE_H

#include <stdbool.h>
#include <stdint.h>

enum fault_call {
    FAULT_ALLOC, // malloc, calloc, realloc, aligned_alloc, strdup, anonymous mmap: out of memory
    FAULT_OPEN,  // open, fopen: EACCES
    FAULT_READ,  // fread, fgetc, fstat, mmap of a file: EIO
    FAULT_WRITE, // write, fwrite, fputs, fclose after writing, fchmod, fsync: ENOSPC
    FAULT_RENAME,
    FAULT_CALLS
};

/// From now on the n-th call (from 1) of this kind fails; 0: none, calls are counted only.
void fault_arm(enum fault_call call, uint64_t nth);
/// Calls of that kind since fault_arm; nothing fails any more. *failed: did one?
uint64_t fault_disarm(bool *failed);

#endif
