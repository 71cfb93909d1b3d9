// Runs CUDA blocks on a CPU: one fiber a thread, in random order; what a kernel's wrappers (device_host.h) call and what
// whoever loads a kernel's image calls. A block in which nothing can run is a deadlock; in a checked image every access
// to memory is compared with the accesses it is not ordered after. Both become reports, with the places in the kernel.
#ifndef MOE_HOST_EMULATOR_H
#define MOE_HOST_EMULATOR_H

#include <stddef.h>
#include <stdint.h>

extern "C" {

struct host_place {
    int thread, block, blocks;
    char *shared;
};

/// The calling fiber's; the same for as long as it lives.
struct host_place *host_here(void) __attribute__((const));

/// Runs a launch on the calling OS thread, to its end or to its first deadlock.
void host_launch(void (*kernel)(const void *args), const char *name, const void *args, int threads, int shared_bytes,
                 int checked);

void host_sync_block(void);
void host_sync_threads(int id, int threads);

// What all lanes of a warp do together: each gives a record of its own, and goes on when all have come.
enum host_warp_op {
    HOST_SYNC,
    HOST_SHUFFLE,
    HOST_LOAD_MATRICES,
    HOST_MULTIPLY_BF16,
    HOST_MULTIPLY_F16,
    HOST_MULTIPLY_E4M3,
    HOST_WARP_OPS
};
struct host_shuffle_lane {
    uint32_t value;
    int lane;
    uint32_t result;
};
struct host_matrices_lane {
    const void *row;
    uint32_t *result; // [4]
};
struct host_multiply_lane {
    float *d;          // [4]
    const uint32_t *a; // [4]
    uint32_t b[2];
};
void host_warp(enum host_warp_op op, void *lane);

/// The number that the lower 16 bits stand for in f16.
static inline float host_widen_f16(uint32_t bits)
{
    const uint32_t sign = (bits & 0x8000) << 16, rest = bits & 0x7fff;
    uint32_t wide = rest << 13;
    float value;
    __builtin_memcpy(&value, &wide, 4);
    value *= 0x1p112f;
    __builtin_memcpy(&wide, &value, 4);
    wide = (rest >= 0x7c00 ? 0x7f800000 | (rest & 0x3ff) << 13 : wide) | sign;
    __builtin_memcpy(&value, &wide, 4);
    return value;
}

/// The number of an E4M3 code.
static inline float host_widen_e4m3(uint32_t code)
{
    const uint32_t rest = code & 0x7f;
    uint32_t wide = rest << 20;
    float value;
    __builtin_memcpy(&value, &wide, 4);
    value = rest == 0x7f ? __builtin_nanf("") : value * 0x1p120f;
    return code & 0x80 ? -value : value;
}

/// What products multiply.
enum host_operand { HOST_BF16, HOST_F16, HOST_E4M3 };

/// The numbers that a word holds, 2 or 4; how many.
static inline int host_widen(uint32_t word, enum host_operand type, float *to)
{
    for (int i = 0; i < 4 && type == HOST_E4M3; i++)
        to[i] = host_widen_e4m3(word >> 8 * i & 0xff);
    if (type == HOST_E4M3)
        return 4;
    uint32_t low = word << 16, high = word & 0xffff0000u;
    __builtin_memcpy(to, &low, 4);
    __builtin_memcpy(to + 1, &high, 4);
    if (type == HOST_F16) {
        to[0] = host_widen_f16(word);
        to[1] = host_widen_f16(word >> 16);
    }
    return 2;
}

void host_copy_async(void *to, const void *from, int bytes);
void host_copy_async_commit(void);
void host_copy_async_wait(int groups);

// What hopper.h says, of sm_90a. A tensor map is a record here.
struct host_map {
    const char *base;
    int64_t extents[4], strides[4]; // in elements, from the innermost on; in bytes, the innermost an element's
    int box[4];
    int rank;
};
void host_barrier_init(uint64_t *barrier, int arrivals);
void host_barrier_arrive(uint64_t *barrier, int bytes);
void host_barrier_wait(uint64_t *barrier, int parity);
/// Orders what the thread has written, barriers included, before accesses through the asynchronous proxy.
void host_publish(void);
void host_copy_box(void *to, const struct host_map *map, uint64_t *barrier, const int *x, int rank);

/// A lane's record of a warpgroup's product: d [columns / 8][4] in fragments, a and b descriptors.
struct host_group_lane {
    float *d;
    int columns;
    uint64_t a, b;
    int add;
    enum host_operand type;
};
void host_multiply_begin(void);
void host_multiply_group(struct host_group_lane *product);
void host_multiply_commit(void);
void host_multiply_wait(int groups);

/// An ordinary load or store at `place`, from a checked image.
void host_access(const void *at, int bytes, int is_write, const void *place);

// ---- for whoever loads images

/// Every launch from here on draws its order from the seed, and has 1 to `most_blocks` blocks.
void host_configure(uint64_t seed, int most_blocks);
/// Appends what went wrong since the last call to `text`; the number of reports, 0: all is well.
int host_take_reports(char *text, size_t size);
/// Which launches have begun and not ended; how many.
int host_unfinished(char *text, size_t size);
}

#endif
