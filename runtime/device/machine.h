// What this machine's processor and its kernel let a program do.
#ifndef MOE_MACHINE_H
#define MOE_MACHINE_H

#include <stdbool.h>

/// Whether this machine runs code of a level: v2 v3 v4 bf16 amx, neon. For amx the kernel is asked for leave, which then
/// holds for the whole process.
bool machine_runs(const char *cpu_level);

#endif
