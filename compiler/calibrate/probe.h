// What this machine can do at the moment: peak FLOP/s and read bandwidth, measured on the same number of threads as the
// code under test and beside it, because shared machines drift. Each thread has a core of its own. 0: out of memory.
#ifndef MOECC_PROBE_H
#define MOECC_PROBE_H

#include <stdint.h>

/// Products of bf16 by the best that the chip has, AMX tiles, dot products or f32 FMA, FLOP/s over all threads, for about `seconds`.
double probe_bf16_peak(uint32_t threads, double seconds);
/// f32 FMA of the widest vectors.
double probe_f32_peak(uint32_t threads, double seconds);
/// Bytes/s read from memory far larger than the caches.
double probe_read_bandwidth(uint32_t threads, double seconds);

#endif
