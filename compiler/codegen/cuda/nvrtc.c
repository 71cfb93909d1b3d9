// NVRTC by dlopen (nvrtc.h). A kernel's cubin, PTX and the assembler's report lie together in a folder of the cache.
#include "nvrtc.h"
#include "cache.h"
#include "headers.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// What is used of nvrtc.h, whose functions return 0 when all is well.
typedef struct nvrtc_program *nvrtc_program;
static struct {
    void *handle;
    int (*version)(int *major, int *minor);
    const char *(*error_text)(int result);
    int (*create)(nvrtc_program *program, const char *source, const char *name, int headers, const char *const *texts,
                  const char *const *names);
    int (*compile)(nvrtc_program program, int options, const char *const *option);
    int (*log_size)(nvrtc_program program, size_t *size);
    int (*log)(nvrtc_program program, char *log);
    int (*cubin_size)(nvrtc_program program, size_t *size);
    int (*cubin)(nvrtc_program program, char *cubin);
    int (*ptx_size)(nvrtc_program program, size_t *size);
    int (*ptx)(nvrtc_program program, char *ptx);
    int (*destroy)(nvrtc_program *program);
} nvrtc;

static const struct {
    const char *name;
    void *function;
} functions[] = {{"nvrtcVersion", &nvrtc.version},          {"nvrtcGetErrorString", &nvrtc.error_text},
                 {"nvrtcCreateProgram", &nvrtc.create},     {"nvrtcCompileProgram", &nvrtc.compile},
                 {"nvrtcGetProgramLogSize", &nvrtc.log_size}, {"nvrtcGetProgramLog", &nvrtc.log},
                 {"nvrtcGetCUBINSize", &nvrtc.cubin_size},  {"nvrtcGetCUBIN", &nvrtc.cubin},
                 {"nvrtcGetPTXSize", &nvrtc.ptx_size},      {"nvrtcGetPTX", &nvrtc.ptx},
                 {"nvrtcDestroyProgram", &nvrtc.destroy}};

static const char *const options[] = {"-std=c++17", "-default-device", "--fmad=false", "-lineinfo",
                                      "--ptxas-options=-v", "-diag-suppress=177"};
enum { OPTIONS = sizeof options / sizeof *options };

// --------------------------------------------------------------------------------------------------------- the library

static bool load(void)
{
    const char *own = getenv("MOECC_NVRTC");
    const char *const places[] = {own && *own ? own : "libnvrtc.so.13", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                  "/usr/local/cuda/lib64/libnvrtc.so"};
    size_t count = own && *own ? 1 : sizeof places / sizeof *places;
    for (size_t i = 0; i < count && !nvrtc.handle; i++)
        nvrtc.handle = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof functions / sizeof *functions && nvrtc.handle; i++) {
        void *address = dlsym(nvrtc.handle, functions[i].name);
        memcpy(functions[i].function, &address, sizeof address);
        if (!address)
            nvrtc.handle = NULL; // no library of ours
    }
    return nvrtc.handle != NULL;
}

/// What decides which library is loaded: names are searched for.
static const char *request(struct context *context)
{
    const char *own = getenv("MOECC_NVRTC"), *paths = getenv("LD_LIBRARY_PATH");
    return context_printf(context, "%s|%s", own ? own : "", paths ? paths : "");
}

static const char *status_text(struct context *context, const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return NULL;
    return context_printf(context, "%lld bytes, %lld.%09ld", (long long)status.st_size, (long long)status.st_mtim.tv_sec,
                          status.st_mtim.tv_nsec);
}

/// The version of the library that would be loaded, as a file of the cache has it; loading takes longer than everything else
/// when all kernels are known. NULL: it was never loaded, or is another by now.
static const char *remembered_version(struct context *context)
{
    size_t size;
    const char *text = cache_read(context, cache_named(context, "nvrtc.library"), &size), *lines[4] = {text};
    for (int i = 1; i < 4; i++) {
        const char *end = strchr(lines[i - 1], '\n');
        if (!end)
            return NULL;
        lines[i] = end + 1;
    }
    const char *path = context_printf(context, "%.*s", (int)(lines[2] - lines[1] - 1), lines[1]);
    const char *status = status_text(context, path), *asked = request(context);
    bool same = status && size > 0 && !strncmp(lines[0], asked, strlen(asked)) && lines[0][strlen(asked)] == '\n' &&
                !strncmp(lines[2], status, strlen(status)) && lines[2][strlen(status)] == '\n';
    return same ? lines[3] : NULL;
}

static void remember(struct context *context, const char *version)
{
    Dl_info info;
    void *address;
    memcpy(&address, &nvrtc.version, sizeof address);
    const char *status = dladdr(address, &info) ? status_text(context, info.dli_fname) : NULL;
    if (!status || strchr(request(context), '\n') || strchr(info.dli_fname, '\n'))
        return;
    const char *text = context_printf(context, "%s\n%s\n%s\n%s", request(context), info.dli_fname, status, version);
    cache_replace(context, cache_named(context, "nvrtc.library"), text, strlen(text));
}

static bool loaded(void)
{
    return nvrtc.handle || load();
}

static const char *how_to_get(struct context *context)
{
    const char *own = getenv("MOECC_NVRTC");
    void *handle = own && *own ? dlopen(own, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (own && *own)
        return context_printf(context, "MOECC_NVRTC names `%s`, which is no NVRTC: %s", own,
                              handle ? "it has other functions" : dlerror());
    return context_printf(context, "NVRTC is not installed: it comes with CUDA 12.8 or newer, or `pip install "
                                   "nvidia-cuda-nvrtc`; MOECC_NVRTC names a libnvrtc.so elsewhere");
}

const char *nvrtc_missing(struct context *context)
{
    return remembered_version(context) || loaded() ? NULL : how_to_get(context);
}

static void require(struct context *context)
{
    if (!loaded())
        fatal(context, EXIT_SYSTEM, "%s", how_to_get(context));
}

const char *nvrtc_version(struct context *context)
{
    int major = 0, minor = 0;
    const char *known = nvrtc.handle ? NULL : remembered_version(context);
    if (known)
        return known;
    require(context);
    nvrtc.version(&major, &minor);
    const char *version = context_printf(context, "%d.%d", major, minor);
    remember(context, version);
    return version;
}

// ----------------------------------------------------------------------------------------------------------- compiling

struct job {
    const struct cuda_chip *chip;
    const struct cuda_source *source;
};

static void must(struct context *context, int result)
{
    if (result)
        fatal(context, EXIT_SYSTEM, "NVRTC: %s", nvrtc.error_text(result));
}

/// One of the compilation's results.
static char *take(struct context *context, nvrtc_program program, int (*size_of)(nvrtc_program, size_t *),
                  int (*copy)(nvrtc_program, char *), size_t *size)
{
    must(context, size_of(program, size));
    char *bytes = context_alloc(context, *size + 1);
    must(context, copy(program, bytes));
    return bytes;
}

/// Into the folder `path`.
static void make_code(struct context *context, const char *path, void *user)
{
    const struct job *job = user;
    const char *arguments[OPTIONS + 1], *names[CUDA_MOST_HEADERS], *texts[CUDA_MOST_HEADERS];
    nvrtc_program program;
    size_t log_size, size;
    require(context);
    for (size_t i = 0; i < OPTIONS; i++)
        arguments[i] = options[i];
    arguments[OPTIONS] = context_printf(context, "-arch=%s", job->chip->name);
    int count = cuda_headers(context, CUDA_GPU, names, texts);
    must(context, nvrtc.create(&program, job->source->text, job->source->name, count, texts, names));
    int result = nvrtc.compile(program, OPTIONS + 1, arguments);
    char *log = take(context, program, nvrtc.log_size, nvrtc.log, &log_size);
    if (result) {
        nvrtc.destroy(&program);
        cuda_refused(context, job->source, log);
    }
    mkdir(path, 0777);
    cache_write(context, context_printf(context, "%s/log", path), log, strlen(log));
    char *ptx = take(context, program, nvrtc.ptx_size, nvrtc.ptx, &size);
    cache_write(context, context_printf(context, "%s/ptx", path), ptx, strlen(ptx));
    char *cubin = take(context, program, nvrtc.cubin_size, nvrtc.cubin, &size);
    cache_write(context, context_printf(context, "%s/cubin", path), cubin, size);
    nvrtc.destroy(&program);
}

/// The number before the words, 0 where they are missing.
static int number_before(const char *log, const char *words)
{
    const char *at = strstr(log, words);
    if (!at)
        return 0;
    while (at > log && (at[-1] == ' ' || (at[-1] >= '0' && at[-1] <= '9')))
        at--;
    return atoi(at);
}

/// How many of the kernel's blocks a multiprocessor holds: registers go to warps in units of 256 per 32 threads.
static int resident_blocks(const struct cuda_chip *chip, const struct cuda_source *source, int registers)
{
    int64_t warps = source->threads / 32, warp_registers = ((int64_t)registers * 32 + 255) / 256 * 256;
    int64_t by_registers = warp_registers ? chip->sm_registers / (warp_registers * warps) : 32;
    int64_t by_shared = chip->sm_shared_bytes / (source->shared_bytes + 1024), by_threads = chip->sm_threads / source->threads;
    int64_t least = by_registers < by_shared ? by_registers : by_shared;
    return (int)(least < by_threads ? least : by_threads);
}

struct cuda_code nvrtc_compile(struct context *context, const struct cuda_chip *chip, const struct cuda_source *source)
{
    const char *key = context_printf(context, "nvrtc %s %s\n", nvrtc_version(context), chip->name);
    for (size_t i = 0; i < OPTIONS; i++)
        key = context_printf(context, "%s%s\n", key, options[i]);
    key = context_printf(context, "%s%s%s", key, cuda_headers_of(context, CUDA_GPU, source->text), source->text);
    bool made;
    struct job job = {chip, source};
    const char *folder = cache_file(context, key, ".gpu", make_code, &job, &made);
    const char *log = cache_read_text(context, context_printf(context, "%s/log", folder));
    struct cuda_code code = {.made = made,
                             .cubin = context_printf(context, "%s/cubin", folder),
                             .ptx = context_printf(context, "%s/ptx", folder),
                             .registers = number_before(log, " registers"),
                             .stack_bytes = number_before(log, " bytes stack frame"),
                             .spill_bytes = number_before(log, " bytes spill stores") +
                                            number_before(log, " bytes spill loads")};
    code.blocks = resident_blocks(chip, source, code.registers);
    return code;
}

enum { IMAGE_ALIGN = 64 };

/// Appends a file; where it lies.
static int64_t append(struct context *context, struct cuda_image *image, const char *path, int64_t *bytes)
{
    size_t size, at = (image->size + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;
    const char *file = cache_read(context, path, &size);
    if (!size)
        fatal(context, EXIT_SYSTEM, "a file of the cache is empty: %s", path);
    if (at + size > image->capacity) {
        image->capacity = 2 * (at + size);
        uint8_t *grown = context_alloc(context, image->capacity); // zeros
        if (image->size)
            memcpy(grown, image->bytes, image->size);
        image->bytes = grown;
    }
    memcpy(image->bytes + at, file, size);
    image->size = at + size;
    *bytes = (int64_t)size;
    return (int64_t)at;
}

static void add_row(struct context *context, struct ir *plan, struct plan_gpu_code row)
{
    uint32_t number = ir_add(plan, T_plan_gpu_code);
    if (number == NONE)
        fatal(context, EXIT_SYSTEM, "out of memory");
    *ROW(plan, plan_gpu_code, number) = row;
}

/// The tensor maps that a source's launches bring along.
static struct rows add_maps(struct context *context, struct ir *plan, const struct cuda_source *source)
{
    struct rows rows = {COUNT(plan, plan_gpu_map), (uint32_t)source->map_count};
    for (int i = 0; i < source->map_count; i++) {
        const struct cuda_map *map = &source->maps[i];
        struct plan_gpu_map row = {.argument = (uint32_t)map->argument,
                                   .rank = (uint32_t)map->rank,
                                   .outermost = map->counts == cuda_counts_pairs ? gpu_extent_pairs : gpu_extent_experts};
        memcpy(row.extents, map->extents, sizeof row.extents);
        memcpy(row.strides, map->strides, sizeof row.strides);
        memcpy(row.box, map->box, sizeof row.box);
        uint32_t number = ir_add(plan, T_plan_gpu_map);
        if (number == NONE)
            fatal(context, EXIT_SYSTEM, "out of memory");
        *ROW(plan, plan_gpu_map, number) = row;
    }
    return rows;
}

void nvrtc_embed(struct context *context, struct ir *plan, const struct cuda_chip *chip,
                 const struct cuda_sources *sources, struct cuda_image *image)
{
    for (uint32_t i = 0; i < sources->count; i++) {
        const struct cuda_source *source = &sources->at[i];
        struct cuda_code code = nvrtc_compile(context, chip, source);
        struct plan_gpu_code row = {.function = ir_str(plan, source->name),
                                    .chip = ir_str(plan, chip->name),
                                    .threads = (uint32_t)source->threads,
                                    .shared_bytes = source->shared_bytes,
                                    .maps = add_maps(context, plan, source)};
        image->kernels++;
        image->made += code.made;
        for (uint32_t form = 0; form < gpu_code_words_count; form++) {
            row.form = form;
            row.offset = append(context, image, form == gpu_code_ptx ? code.ptx : code.cubin, &row.bytes);
            for (row.kernel = 0; row.kernel < COUNT(plan, plan_kernel); row.kernel++)
                if (sources->of_kernel[row.kernel] == i)
                    add_row(context, plan, row);
        }
    }
}

void nvrtc_print_ptx(struct context *context, const struct cuda_chip *chip, const struct cuda_sources *sources, FILE *out)
{
    for (uint32_t i = 0; i < sources->count; i++) {
        struct cuda_code code = nvrtc_compile(context, chip, &sources->at[i]);
        fprintf(out, "%s// kernel %s for %s\n%s", i ? "\n" : "", sources->at[i].name, chip->name,
                cache_read_text(context, code.ptx));
    }
}

void nvrtc_print_resources(struct context *context, const struct cuda_chip *chip, const struct cuda_sources *sources,
                           bool files, FILE *out)
{
    fprintf(out, "NVRTC %s\n", nvrtc_version(context));
    fprintf(out, "%-14s %-8s %9s %6s %6s %7s %6s %6s %14s %12s%s\n", "kernel", "chip", "registers", "stack", "spills",
            "shared", "stages", "blocks", "tile flops", "tile bytes", files ? "  file" : "");
    for (uint32_t i = 0; i < sources->count; i++) {
        const struct cuda_source *source = &sources->at[i];
        struct cuda_code code = nvrtc_compile(context, chip, source);
        fprintf(out, "%-14s %-8s %9d %6d %6d %7d %6d %6d %14lld %12lld%s%s\n", source->name, chip->name, code.registers,
                code.stack_bytes, code.spill_bytes, source->shared_bytes, source->stages, code.blocks,
                (long long)source->tile_flops, (long long)source->tile_bytes, files ? "  " : "", files ? code.cubin : "");
    }
}
