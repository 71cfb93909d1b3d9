// A stand-in for libcuda.so.1, for machines without a GPU: memory is the process's own, a kernel is the same source built
// for the CPU, which `fake_cuda_bind` gives; everything happens at once. It checks what the driver would refuse: sizes,
// alignments, launches of functions whose shared memory was not asked for, tensor maps of impossible tensors; and what a
// device would fault on: arguments in memory that is neither registered nor its own.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "runtime/plan/kernels.h"

#define CUDA_API __attribute__((visibility("default")))
enum { OK = 0, INVALID = 1, NOT_FOUND = 500, FAULT = 700, REGISTERED = 712 };
enum { MOST_FUNCTIONS = 4096, SHARED_BYTES = 227 << 10, PLAIN_SHARED_BYTES = 48 << 10 };

struct function {
    moe_kernel_fn *on_cpu;
    int shared_bytes;
};
static struct function functions[MOST_FUNCTIONS];
static int function_count;

CUDA_API void fake_cuda_bind(void *function, moe_kernel_fn *on_cpu)
{
    ((struct function *)function)->on_cpu = on_cpu;
}

CUDA_API int cuInit(unsigned flags)
{
    return flags ? INVALID : OK;
}

CUDA_API int cuGetErrorString(int result, const char **text)
{
    *text = result == OK ? "no error" : result == NOT_FOUND    ? "named symbol not found"
            : result == FAULT      ? "an illegal memory access was encountered"
            : result == REGISTERED ? "part or all of the requested memory range is already mapped"
                                   : "invalid argument";
    return OK;
}

CUDA_API int cuDeviceGet(int *device, int number)
{
    *device = number;
    return number == 0 ? OK : INVALID;
}

CUDA_API int cuDeviceGetName(char *name, int size, int device)
{
    if (device || size < 16)
        return INVALID;
    memcpy(name, "fake GPU", sizeof "fake GPU");
    return OK;
}

/// An sm_90 with two multiprocessors, or what $MOE_FAKE_CHIP says, as `80`.
CUDA_API int cuDeviceGetAttribute(int *value, int which, int device)
{
    const char *chip = getenv("MOE_FAKE_CHIP");
    int architecture = chip ? atoi(chip) : 90;
    *value = which == 16 ? 2 : which == 75 ? architecture / 10 : which == 76 ? architecture % 10 : which == 91 ? 1 : 0;
    return device ? INVALID : OK;
}

CUDA_API int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = functions;
    return device ? INVALID : OK;
}

CUDA_API int cuCtxSetCurrent(void *context)
{
    return context == functions ? OK : INVALID;
}

CUDA_API int cuCtxSynchronize(void)
{
    return OK;
}

CUDA_API int cuModuleLoadData(void **module, const void *image)
{
    static const char elf[4] = "\177ELF";
    *module = (void *)(uintptr_t)image;
    return memcmp(image, elf, sizeof elf) == 0 ? OK : INVALID;
}

CUDA_API int cuModuleGetFunction(void **function, void *module, const char *name)
{
    if (!module || !*name || function_count == MOST_FUNCTIONS)
        return NOT_FOUND;
    *function = &functions[function_count++];
    return OK;
}

CUDA_API int cuFuncSetAttribute(void *function, int which, int value)
{
    if (which != 8 || value < 0 || value > SHARED_BYTES)
        return INVALID;
    ((struct function *)function)->shared_bytes = value;
    return OK;
}

enum { MOST_RANGES = 4096 };
static struct range {
    const char *from;
    size_t bytes; // 0: free
} ranges[MOST_RANGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/// Memory that the device reaches. Pieces do not overlap.
static int add_range(const void *memory, size_t bytes)
{
    const char *from = memory;
    int free = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_RANGES; i++) {
        if (!ranges[i].bytes)
            free = i;
        else if (from < ranges[i].from + ranges[i].bytes && ranges[i].from < from + bytes)
            bytes = 0;
    }
    if (free >= 0 && bytes)
        ranges[free] = (struct range){from, bytes};
    pthread_mutex_unlock(&lock);
    return free >= 0 && bytes ? OK : REGISTERED;
}

static int remove_range(const void *memory)
{
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_RANGES; i++)
        if (ranges[i].bytes && ranges[i].from == memory) {
            ranges[i].bytes = 0;
            found = 1;
        }
    pthread_mutex_unlock(&lock);
    return found ? OK : INVALID;
}

static int reached(const void *memory)
{
    const char *at = memory;
    int found = !memory;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_RANGES && !found; i++)
        found = ranges[i].bytes && at >= ranges[i].from && at < ranges[i].from + ranges[i].bytes;
    pthread_mutex_unlock(&lock);
    return found;
}

CUDA_API int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, void *stream, void **params, void **extra)
{
    const struct function *f = function;
    const struct moe_kargs *args = params[0];
    int64_t range[2];
    unsigned most = f->shared_bytes > PLAIN_SHARED_BYTES ? (unsigned)f->shared_bytes : PLAIN_SHARED_BYTES;
    if (!f->on_cpu || !gx || gy != 1 || gz != 1 || !bx || bx > 1024 || by != 1 || bz != 1 || shared > most || stream || extra)
        return INVALID;
    for (size_t i = 0; i < sizeof args->p / sizeof *args->p; i++)
        if (!reached(args->p[i]))
            return FAULT;
    memcpy(range, args + 1, sizeof range); // the units follow the arguments
    f->on_cpu(args, range[0], range[1], NULL);
    return OK;
}

CUDA_API int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *base, const uint64_t *extents,
                                    const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                                    int swizzle, int promotion, int fill)
{
    if ((uintptr_t)map % 64 || (uintptr_t)base % 16 || rank < 1 || rank > 5 || type != 1 || interleave || swizzle != 3 ||
        promotion > 3 || fill)
        return INVALID;
    for (uint32_t d = 0; d < rank; d++)
        if (!extents[d] || extents[d] > UINT64_C(1) << 32 || !box[d] || box[d] > 256 || steps[d] != 1)
            return INVALID;
    for (uint32_t d = 0; d + 1 < rank; d++)
        if (strides[d] % 16 || !strides[d] || strides[d] >= UINT64_C(1) << 40)
            return INVALID;
    return box[0] * 2 == 128 ? OK : INVALID;
}

CUDA_API int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    return (uintptr_t)memory % 4096 || bytes % 4096 || !bytes || flags > 3 ? INVALID : add_range(memory, bytes);
}

CUDA_API int cuMemHostUnregister(void *memory)
{
    return remove_range(memory);
}

/// Mapped for itself, as no memory of the process's: shared, so that it has a file of its own in /proc/self/maps.
CUDA_API int cuMemAlloc_v2(uint64_t *memory, size_t bytes)
{
    bytes = (bytes + 4095) / 4096 * 4096;
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *memory = (uint64_t)(uintptr_t)block;
    return block == MAP_FAILED ? 2 : add_range(block, bytes);
}

CUDA_API int cuMemFree_v2(uint64_t memory)
{
    void *block = (void *)(uintptr_t)memory;
    size_t bytes = 0;
    for (int i = 0; i < MOST_RANGES; i++)
        bytes = ranges[i].bytes && ranges[i].from == block ? ranges[i].bytes : bytes;
    return remove_range(block) == OK && munmap(block, bytes) == 0 ? OK : INVALID;
}

CUDA_API int cuMemsetD8_v2(uint64_t memory, unsigned char byte, size_t bytes)
{
    memset((void *)(uintptr_t)memory, byte, bytes);
    return OK;
}

CUDA_API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    return OK;
}

CUDA_API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return OK;
}

CUDA_API int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes)
{
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return OK;
}

CUDA_API int cuEventCreate(void **event, unsigned flags)
{
    *event = calloc(1, sizeof(struct timespec));
    return flags || !*event ? INVALID : OK;
}

CUDA_API int cuEventRecord(void *event, void *stream)
{
    return stream ? INVALID : clock_gettime(CLOCK_MONOTONIC, event);
}

CUDA_API int cuEventSynchronize(void *event)
{
    return event ? OK : INVALID;
}

CUDA_API int cuEventElapsedTime(float *milliseconds, const struct timespec *start, const struct timespec *end)
{
    *milliseconds = (float)((double)(end->tv_sec - start->tv_sec) * 1e3 + (double)(end->tv_nsec - start->tv_nsec) / 1e6);
    return OK;
}
