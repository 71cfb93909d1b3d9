// What this machine's processor can run, so that a plan built for more is refused instead of dying of SIGILL.
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "machine.h"

#if defined(__x86_64__)
#include <cpuid.h>

enum { ARCH_REQUEST_FEATURE = 0x1023, FEATURE_TILE_DATA = 18 };

static bool runs_v2(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("ssse3");
}

static bool runs_v3(void)
{
    return runs_v2() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi2");
}

static bool runs_v4(void)
{
    return runs_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

static bool runs_bf16(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool has = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1); // AVX512_BF16
    return runs_v4() && has && __builtin_cpu_supports("avx512vbmi");    // which expands codes
}

/// Tiles need the processor and the kernel's leave. Every thread of the process then has it, and signal frames on its stack
/// grow by the 8 KB of tiles, of which the kernel makes sure that alternate signal stacks hold them. Code of the level sets
/// its tiles up and releases them within a kernel, so that no thread is switched with tiles outside of one.
static bool runs_amx(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1) && (d >> 22 & 1); // AMX_TILE, AMX_BF16
    return runs_bf16() && has && syscall(SYS_arch_prctl, ARCH_REQUEST_FEATURE, FEATURE_TILE_DATA) == 0;
}

static const struct {
    const char *level;
    bool (*runs)(void);
} levels[] = {{"v2", runs_v2}, {"v3", runs_v3}, {"v4", runs_v4}, {"bf16", runs_bf16}, {"amx", runs_amx}};

bool machine_runs(const char *cpu_level)
{
    __builtin_cpu_init();
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (!strcmp(levels[i].level, cpu_level))
            return levels[i].runs();
    return false;
}
#elif defined(__aarch64__)
bool machine_runs(const char *cpu_level)
{
    return !strcmp(cpu_level, "neon");
}
#else
bool machine_runs(const char *cpu_level)
{
    (void)cpu_level;
    return false;
}
#endif
