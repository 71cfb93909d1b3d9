// The driver by dlopen (driver.h). $MOECC_LIBCUDA names another library than libcuda.so.1. Every failure is fatal: a test
// cannot go on without its GPU.
#include "driver.h"

#include <dlfcn.h>
#include <malloc.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// What is used of cuda.h, whose functions return 0 when all is well.
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct {
    alignas(64) uint64_t words[16];
} CUtensorMap;
enum { MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76, HOST_POINTERS_WORK = 91 }; // attributes of a device
enum { DYNAMIC_SHARED_BYTES = 8 };                                             // of a function
enum { MAP_UINT16 = 1, MAP_SWIZZLE_128 = 3, MAP_PROMOTION_256 = 3 };

static struct {
    void *handle;
    int (*init)(unsigned flags);
    int (*error_text)(int result, const char **text);
    int (*device_get)(CUdevice *device, int number);
    int (*device_name)(char *name, int size, CUdevice device);
    int (*attribute)(int *value, int which, CUdevice device);
    int (*retain)(void **context, CUdevice device);
    int (*set_current)(void *context);
    int (*synchronize)(void);
    int (*load)(void **module, const void *image);
    int (*function)(void **function, void *module, const char *name);
    int (*set_attribute)(void *function, int which, int value);
    int (*launch)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                  void *stream, void **params, void **extra);
    int (*encode)(CUtensorMap *map, int type, uint32_t rank, void *base, const uint64_t *extents, const uint64_t *strides,
                  const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill);
    int (*host_register)(void *memory, size_t bytes, unsigned flags);
    int (*host_unregister)(void *memory);
    int (*alloc)(CUdeviceptr *memory, size_t bytes);
    int (*free)(CUdeviceptr memory);
    int (*fill)(CUdeviceptr memory, unsigned char byte, size_t bytes);
    int (*upload)(CUdeviceptr to, const void *from, size_t bytes);
    int (*download)(void *to, CUdeviceptr from, size_t bytes);
    int (*copy)(CUdeviceptr to, CUdeviceptr from, size_t bytes);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    int (*event_time)(float *milliseconds, void *start, void *end);
    void (*bind)(void *function, moe_kernel_fn *on_cpu); // the fake driver's own; may be missing
} cuda;

static const struct {
    const char *name;
    void *function;
} functions[] = {{"cuInit", &cuda.init},
                 {"cuGetErrorString", &cuda.error_text},
                 {"cuDeviceGet", &cuda.device_get},
                 {"cuDeviceGetName", &cuda.device_name},
                 {"cuDeviceGetAttribute", &cuda.attribute},
                 {"cuDevicePrimaryCtxRetain", &cuda.retain},
                 {"cuCtxSetCurrent", &cuda.set_current},
                 {"cuCtxSynchronize", &cuda.synchronize},
                 {"cuModuleLoadData", &cuda.load},
                 {"cuModuleGetFunction", &cuda.function},
                 {"cuFuncSetAttribute", &cuda.set_attribute},
                 {"cuLaunchKernel", &cuda.launch},
                 {"cuTensorMapEncodeTiled", &cuda.encode},
                 {"cuMemHostRegister_v2", &cuda.host_register},
                 {"cuMemHostUnregister", &cuda.host_unregister},
                 {"cuMemAlloc_v2", &cuda.alloc},
                 {"cuMemFree_v2", &cuda.free},
                 {"cuMemsetD8_v2", &cuda.fill},
                 {"cuMemcpyHtoD_v2", &cuda.upload},
                 {"cuMemcpyDtoH_v2", &cuda.download},
                 {"cuMemcpyDtoD_v2", &cuda.copy},
                 {"cuEventCreate", &cuda.event_create},
                 {"cuEventRecord", &cuda.event_record},
                 {"cuEventSynchronize", &cuda.event_wait},
                 {"cuEventElapsedTime", &cuda.event_time},
                 {"fake_cuda_bind", &cuda.bind}};

static struct {
    char name[128], level[32], problem[256];
    int multiprocessors;
    bool tried;
    void *context;
} gpu;

static const char *error_of(int result)
{
    const char *text = NULL;
    return cuda.error_text(result, &text) == 0 && text ? text : "an error without a name";
}

static void must(int result, const char *what)
{
    if (result == 0)
        return;
    fprintf(stderr, "GPU: %s: %s (%d)\n", what, error_of(result), result);
    exit(1);
}

// ----------------------------------------------------------------------------------------------------------- opening

static bool find_library(void)
{
    const char *own = getenv("MOECC_LIBCUDA"), *name = own && *own ? own : "libcuda.so.1";
    cuda.handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!cuda.handle) {
        snprintf(gpu.problem, sizeof gpu.problem, "%s cannot be loaded", name);
        return false;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(cuda.handle, functions[i].name);
        memcpy(functions[i].function, &address, sizeof address);
        if (!address && functions[i].function != (void *)&cuda.bind) {
            snprintf(gpu.problem, sizeof gpu.problem, "%s has no %s", name, functions[i].name);
            return false;
        }
    }
    return true;
}

enum { MOST_RANGES = 512 };
static struct range {
    char *from, *to;
} registered[MOST_RANGES];
static int registered_count;

/// What of [from, to) is not registered yet.
static void register_range(char *from, char *to)
{
    for (bool cut = true; cut;) { // the first gap; a range that begins within is followed by another
        cut = false;
        for (int i = 0; i < registered_count; i++)
            if (registered[i].from <= from && from < registered[i].to) {
                from = registered[i].to < to ? registered[i].to : to;
                cut = true;
            }
    }
    char *end = to;
    for (int i = 0; i < registered_count; i++)
        if (registered[i].from > from && registered[i].from < end)
            end = registered[i].from;
    if (from >= to)
        return;
    must(registered_count == MOST_RANGES, "more pieces of memory than are expected");
    must(cuda.host_register(from, (size_t)(end - from), 1 | 2), "registering the process's memory");
    registered[registered_count++] = (struct range){from, end};
    if (end < to)
        register_range(end, to);
}

/// Makes what the process has in memory by now reachable for the device: heap, stack, its own data; `all`: and what it has
/// mapped without a file.
static void register_memory(bool all)
{
    char line[512], exe[256] = "";
    ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[length > 0 ? length : 0] = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to, inode;
        char access[8], name[256] = "";
        if (sscanf(line, "%lx-%lx %7s %*x %*s %lu %255s", &from, &to, access, &inode, name) < 4 || access[1] != 'w')
            continue;
        bool own = !strcmp(name, "[heap]") || !strcmp(name, "[stack]") || (*exe && !strcmp(name, exe));
        if (own || (all && !inode && !*name))
            register_range((char *)from, (char *)to);
    }
    if (maps)
        fclose(maps);
}

/// The heap grows once, in one piece, before it is registered, and all threads take from it.
static void prepare_memory(void)
{
    enum { HEAP = 256 << 20, STACK = 1 << 20 };
    volatile char deep[STACK];
    int sum = 0;
    for (int i = 0; i < STACK; i += 4096)
        sum += deep[i] = 1;
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_TRIM_THRESHOLD, -1);
    mallopt(M_TOP_PAD, HEAP);
    free(malloc((size_t)(sum ? HEAP / 2 : 1))); // the heap grows, and the stack has been used
    mallopt(M_TOP_PAD, 0);
    register_memory(false);
}

int gpu_reach_mapped(void)
{
    int before = registered_count;
    register_memory(true);
    return before;
}

void gpu_forget_mapped(int before)
{
    while (registered_count > before)
        cuda.host_unregister(registered[--registered_count].from); // it may have been unmapped
}

static bool open_device(void)
{
    CUdevice device;
    int major = 0, minor = 0, works = 0, result = cuda.init(0);
    if (!result)
        result = cuda.device_get(&device, 0);
    if (result) {
        snprintf(gpu.problem, sizeof gpu.problem, "the driver finds no GPU: %s", error_of(result));
        return false;
    }
    must(cuda.device_name(gpu.name, sizeof gpu.name, device), "its name");
    must(cuda.attribute(&gpu.multiprocessors, MULTIPROCESSORS, device), "its multiprocessors");
    must(cuda.attribute(&major, MAJOR, device), "its architecture");
    must(cuda.attribute(&minor, MINOR, device), "its architecture");
    must(cuda.attribute(&works, HOST_POINTERS_WORK, device), "its use of memory");
    must(cuda.retain(&gpu.context, device), "its context");
    must(cuda.set_current(gpu.context), "its context");
    char chip[16];
    snprintf(chip, sizeof chip, "sm_%d%d%s", major, minor, major >= 9 ? "a" : "");
    if (!cuda_chip(chip) || !works) {
        snprintf(gpu.problem, sizeof gpu.problem, "%s is of %s, %s", gpu.name, chip,
                 works ? "which has no kernels" : "and cannot reach the process's memory");
        return false;
    }
    snprintf(gpu.level, sizeof gpu.level, "gpu:%s", chip);
    prepare_memory();
    return true;
}

bool gpu_wanted(void)
{
    const char *wanted = getenv("MOE_GPU");
    return wanted && *wanted;
}

const char *gpu_open(void)
{
    struct context context;
    if (!gpu.tried) {
        gpu.tried = true;
        context_init(&context);
        const char *missing = nvrtc_missing(&context);
        if (missing)
            snprintf(gpu.problem, sizeof gpu.problem, "%s", missing);
        else if (find_library())
            open_device();
        context_free(&context);
    }
    return *gpu.problem ? gpu.problem : NULL;
}

const char *gpu_level(const char *otherwise)
{
    return gpu_wanted() && !gpu_open() ? gpu.level : otherwise;
}

const char *gpu_name(void)
{
    return gpu.name;
}

int gpu_multiprocessors(void)
{
    return gpu.multiprocessors;
}

bool gpu_is_fake(void)
{
    return cuda.bind != NULL;
}

// ----------------------------------------------------------------------------------------------------------- kernels

void gpu_load(struct context *context, const struct cuda_chip *chip, const struct cuda_source *source, moe_kernel_fn *on_cpu,
              struct gpu_kernel *kernel)
{
    struct cuda_code code = nvrtc_compile(context, chip, source);
    FILE *file = fopen(code.cubin, "rb");
    char *image = context_alloc(context, 16 << 20);
    void *module;
    size_t bytes = file ? fread(image, 1, 16 << 20, file) : 0;
    if (file)
        fclose(file);
    must(bytes ? 0 : 1, source->name);
    must(cuda.load(&module, image), source->name);
    must(cuda.function(&kernel->function, module, source->name), source->name);
    must(cuda.set_attribute(kernel->function, DYNAMIC_SHARED_BYTES, source->shared_bytes), source->name);
    if (cuda.bind)
        cuda.bind(kernel->function, on_cpu);
    kernel->source = source;
    kernel->blocks = gpu.multiprocessors * code.blocks;
}

/// The driver's form of a tensor map; an extent of 0 has none, and no kernel then copies.
static void encode(CUtensorMap *to, const struct cuda_map *map, void *base, int64_t count)
{
    uint64_t extents[4], strides[4];
    uint32_t box[4], steps[4];
    for (int d = 0; d < map->rank; d++) {
        extents[d] = (uint64_t)(d == map->rank - 1 ? count > 0 ? count : 1 : map->extents[d]);
        strides[d] = (uint64_t)map->strides[d];
        box[d] = (uint32_t)map->box[d];
        steps[d] = 1;
    }
    must(cuda.encode(to, MAP_UINT16, (uint32_t)map->rank, base, extents, strides + 1, box, steps, 0, MAP_SWIZZLE_128,
                     MAP_PROMOTION_256, 0),
         "a tensor map");
}

void gpu_launch(const struct gpu_kernel *kernel, const struct moe_kargs *args, int64_t begin, int64_t end, int64_t pairs,
                int64_t experts)
{
    struct { // as device.h's Launch
        struct moe_kargs k;
        int64_t begin, end;
        CUtensorMap maps[MOE_MAX_MAPS];
    } launch = {.k = *args, .begin = begin, .end = end};
    const struct cuda_source *source = kernel->source;
    for (int i = 0; i < source->map_count; i++)
        encode(&launch.maps[i], &source->maps[i], args->p[source->maps[i].argument],
               source->maps[i].counts == cuda_counts_pairs ? pairs : experts);
    void *params[] = {&launch};
    must(cuda.launch(kernel->function, (unsigned)kernel->blocks, 1, 1, (unsigned)source->threads, 1, 1,
                     (unsigned)source->shared_bytes, NULL, params, NULL),
         source->name);
}

void gpu_run(const struct gpu_kernel *kernel, const struct moe_kargs *args, int64_t begin, int64_t end)
{
    const struct moe_pairs_head *head = args->p[0];
    bool maps = kernel->source->map_count > 0;
    must(cuda.set_current(gpu.context), "a thread's context");
    gpu_launch(kernel, args, begin, end, maps ? head->expert_first[head->experts] : 0,
               maps ? head->first_expert + head->experts : 0);
    must(cuda.synchronize(), kernel->source->name);
}

void gpu_wait(void)
{
    must(cuda.synchronize(), "waiting");
}

// ------------------------------------------------------------------------------------------------------------ memory

void *gpu_alloc(size_t bytes)
{
    CUdeviceptr memory;
    must(cuda.alloc(&memory, bytes), "memory");
    return (void *)memory;
}

void gpu_free(void *memory)
{
    must(cuda.free((CUdeviceptr)memory), "memory");
}

void gpu_fill(void *to, int byte, size_t bytes)
{
    must(cuda.fill((CUdeviceptr)to, (unsigned char)byte, bytes), "filling memory");
}

void gpu_upload(void *to, const void *from, size_t bytes)
{
    must(cuda.upload((CUdeviceptr)to, from, bytes), "a copy to the device");
}

void gpu_download(void *to, const void *from, size_t bytes)
{
    must(cuda.download(to, (CUdeviceptr)from, bytes), "a copy from the device");
}

void gpu_copy(void *to, const void *from, size_t bytes)
{
    must(cuda.copy((CUdeviceptr)to, (CUdeviceptr)from, bytes), "a copy on the device");
}

double gpu_seconds(void (*work)(void *user), void *user)
{
    enum { RUNS = 5 };
    void *start, *end;
    float least = 0, milliseconds;
    must(cuda.event_create(&start, 0), "an event");
    must(cuda.event_create(&end, 0), "an event");
    work(user);
    for (int i = 0; i < (gpu_is_fake() ? 1 : RUNS); i++) {
        must(cuda.event_record(start, NULL), "an event");
        work(user);
        must(cuda.event_record(end, NULL), "an event");
        must(cuda.event_wait(end), "the work");
        must(cuda.event_time(&milliseconds, start, end), "its time");
        least = i == 0 || milliseconds < least ? milliseconds : least;
    }
    return least > 0 ? least / 1e3 : 1e-9;
}
