// What `moecc build` leaves behind: a carrier (the run stub, or the runtime as a shared object) with the plan appended.
#ifndef MOECC_PLAN_BUILD_H
#define MOECC_PLAN_BUILD_H

#include "compiler/base/base.h"

/// Plans of one pipeline for several CPU levels, the worst first: whoever opens the file takes the last that runs.
struct carried_plan {
    const void *image;
    size_t bytes;
    const char *cpu_level;
};

/// Writes `stub` and each plan, at a 64-byte boundary and with a plan_trailer behind it, to `path`, executable. The file
/// appears whole or not at all. False: context->fatal_message says why.
bool write_executable(struct context *context, const void *stub, size_t stub_size, const struct carried_plan *plans,
                      size_t count, const char *path);

/// Whether a carrier (read from `path`, for words) is a program for `machine`, an ELF number as cpu_level_machine gives it.
/// False: context->fatal_message says why.
bool carrier_fits(struct context *context, const char *path, const void *carrier, size_t size, unsigned machine);

/// A carrier's soname is so many `=`, where the library's own name goes: the longest that a file can have.
enum { SONAME_ROOM = 255 };

/// The same for the runtime's shared object, under the name that programs will load it by, and a C header beside it (`libhello.so` -> `libhello.h`) that names the
/// pipeline's sizes and opens the plan.
bool write_library(struct context *context, const void *library, size_t library_size, const struct carried_plan *plans,
                   size_t count, const char *path);
/// Where that header goes.
const char *library_header_path(struct context *context, const char *path);

#endif
