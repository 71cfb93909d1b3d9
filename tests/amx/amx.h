// AMX in software: where the processor has no tiles, the instructions that need them trap, and a handler performs them,
// so that the machine code of CPU level `amx` runs in every test. A machine with AMX runs it as it is.
#ifndef MOE_TESTS_AMX_H
#define MOE_TESTS_AMX_H

#include <stdbool.h>
#include <stdint.h>

/// Whether code of the level can run in this process from now on: the machine has tiles, or all but tiles.
bool amx_runs(void);
/// Whether tiles are emulated here.
bool amx_emulated(void);
/// While true, the runtime and the compiler take a machine that emulates tiles for one that has them.
void amx_pretend(bool has_tiles);

/// What one thread did, of emulated instructions.
struct amx_counts {
    uint64_t products, loads, stores, configurations;
    bool configured; // and tiles not yet released
};
struct amx_counts amx_counts(void);
/// Products of all threads.
uint64_t amx_all_products(void);

/// One product of tiles as the processor is said to do it, number by number: sums[rows][16] += a[rows][2 * pairs] x
/// b[pairs][16][2], with bf16 as bits.
void amx_product_rule(float *sums, const uint16_t *a, const uint16_t *b, int rows, int pairs);

#endif
