// Compiles CUDA sources for the CPU and loads them (host.h). Everything lies in the cache: the headers as a folder of
// their own, the emulator and each kernel as shared objects under the hash of their text.
#include "host.h"
#include "cache.h"
#include "headers.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char *const emulator[] = {"host/block.cc", "host/warp.cc",      "host/copies.cc", "host/boxes.cc",
                                       "host/warpgroup.cc", "host/shadow.cc", "host/report.cc", "host/crash.cc"};
enum { EMULATOR_FILES = sizeof emulator / sizeof *emulator, MOST_ARGS = 40 };

// ---------------------------------------------------------------------------------------------------- the compiler

/// Runs a command; what it says goes to `log`. Its exit code, -1: it could not be started.
static int run_command(const char *const *argv, const char *log)
{
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t child;
    int failed = posix_spawnp(&child, argv[0], &actions, NULL, (char *const *)(uintptr_t)argv, environ), status = 0;
    posix_spawn_file_actions_destroy(&actions);
    if (failed)
        return -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) && WEXITSTATUS(status) != 127 ? WEXITSTATUS(status) : -1;
}

/// $MOECC_CXX names the one, or the first of these that is there. NULL: none.
static const char *compiler(void)
{
    static const char *found;
    const char *own = getenv("MOECC_CXX"), *const names[] = {own && *own ? own : "c++", "g++", "clang++"};
    for (size_t i = 0; i < (own && *own ? 1 : sizeof names / sizeof *names) && !found; i++)
        if (run_command((const char *const[]){names[i], "--version", NULL}, "/dev/null") == 0)
            found = names[i];
    return found;
}

const char *host_missing(struct context *context)
{
    const char *own = getenv("MOECC_CXX");
    if (compiler())
        return NULL;
    if (own && *own)
        return context_printf(context, "MOECC_CXX names `%s`, which is no C++ compiler that runs here", own);
    return context_printf(context, "no C++ compiler (c++, g++ or clang++) is installed");
}

/// Runs the compiler with these arguments. What it says against them, or NULL.
static const char *compile_step(struct context *context, const char *log, const char *const *arguments)
{
    const char *argv[MOST_ARGS] = {compiler()};
    for (int i = 0; arguments[i]; i++)
        argv[i + 1] = arguments[i];
    int code = run_command(argv, log);
    const char *words = code == 0 ? NULL : cache_read_text(context, log);
    unlink(log);
    if (words && !*words) // killed, or of few words
        words = context_printf(context, "`%s` ended with %d\n", argv[0], code);
    return words;
}

// ------------------------------------------------------------------------------------------- headers and emulator

static void make_headers(struct context *context, const char *path, void *user)
{
    (void)user;
    mkdir(path, 0777);
    mkdir(context_printf(context, "%s/host", path), 0777);
    const char *names[CUDA_MOST_HEADERS], *texts[CUDA_MOST_HEADERS];
    int count = cuda_headers(context, CUDA_CPU, names, texts);
    for (int i = 0; i < count; i++)
        cache_write(context, context_printf(context, "%s/%s", path, names[i]), texts[i], strlen(texts[i]));
}

/// The folder that kernels include from.
static const char *header_folder(struct context *context)
{
    const char *key = "headers\n", *names[CUDA_MOST_HEADERS], *texts[CUDA_MOST_HEADERS];
    int count = cuda_headers(context, CUDA_CPU, names, texts);
    for (int i = 0; i < count; i++)
        key = context_printf(context, "%s%s", key, texts[i]);
    return cache_file(context, key, ".include", make_headers, NULL, NULL);
}

#define COMMON "-std=c++17", "-O2", "-g1", "-march=native", "-ffp-contract=off", "-fno-optimize-sibling-calls", "-fPIC"

static void make_emulator(struct context *context, const char *path, void *user)
{
    const char *include = context_printf(context, "-I%s/host", (const char *)user);
    const char *arguments[MOST_ARGS] = {COMMON, "-shared", include, "-o", path};
    int count = 0;
    while (arguments[count])
        count++;
    for (size_t i = 0; i < EMULATOR_FILES; i++) {
        const char *source = context_printf(context, "%s.%zu.cc", path, i);
        const char *text = cuda_file_text(context, emulator[i]);
        cache_write(context, source, text, strlen(text));
        arguments[count++] = source;
    }
    const char *words = compile_step(context, context_printf(context, "%s.log", path), arguments);
    for (size_t i = 0; i < EMULATOR_FILES; i++)
        unlink(context_printf(context, "%s.%zu.cc", path, i));
    if (words) {
        fprintf(stderr, "%s", words);
        fatal(context, EXIT_SYSTEM, "`%s` cannot compile the emulator of CUDA blocks", compiler());
    }
}

/// A machine's own instructions are used: a cache that several machines share must not mix them.
static const char *machine_key(struct context *context)
{
    __builtin_cpu_init();
    return context_printf(context, "%s avx2 %d avx512f %d avx512bf16 %d", compiler(), !!__builtin_cpu_supports("avx2"),
                          !!__builtin_cpu_supports("avx512f"), !!__builtin_cpu_supports("avx512bf16"));
}

static struct {
    void *handle;
    int (*take_reports)(char *text, size_t size);
    int (*unfinished)(char *text, size_t size);
    void (*configure)(uint64_t seed, int most_blocks);
} loaded_emulator;

static void *load(struct context *context, const char *path, int visibility)
{
    void *handle = dlopen(path, RTLD_NOW | visibility);
    if (!handle)
        fatal(context, EXIT_SYSTEM, "%s", dlerror());
    return handle;
}

/// dlsym gives an object pointer, and a function pointer is wanted.
static void function_of(struct context *context, void *handle, const char *name, void *function)
{
    void *address = dlsym(handle, name);
    if (!address)
        fatal(context, EXIT_BUG, "a compiled kernel lacks `%s`", name);
    memcpy(function, &address, sizeof address);
}

static void load_emulator(struct context *context, const char *folder)
{
    if (loaded_emulator.handle)
        return;
    const char *key = context_printf(context, "emulator\n%s\n", machine_key(context));
    for (size_t i = 0; i < EMULATOR_FILES; i++)
        key = context_printf(context, "%s%s", key, cuda_file_text(context, emulator[i]));
    key = context_printf(context, "%s%s", key, cuda_headers_of(context, CUDA_CPU, key));
    const char *path = cache_file(context, key, ".so", make_emulator, (void *)(uintptr_t)folder, NULL);
    loaded_emulator.handle = load(context, path, RTLD_GLOBAL); // kernels find its functions
    function_of(context, loaded_emulator.handle, "host_take_reports", &loaded_emulator.take_reports);
    function_of(context, loaded_emulator.handle, "host_unfinished", &loaded_emulator.unfinished);
    function_of(context, loaded_emulator.handle, "host_configure", &loaded_emulator.configure);
}

// ------------------------------------------------------------------------------------------------------ the kernels

struct kernel_job {
    const struct cuda_source *source;
    const char *folder;
    bool checked;
};

/// The compiler is told to instrument a checked kernel for a race detector, and its calls go to the emulator: so the
/// object is linked without the detector.
static void make_kernel(struct context *context, const char *path, void *user)
{
    const struct kernel_job *job = user;
    const char *source = context_printf(context, "%s.cu", path), *object = context_printf(context, "%s.o", path);
    const char *log = context_printf(context, "%s.log", path), *include = context_printf(context, "-I%s", job->folder);
    cache_write(context, source, job->source->text, strlen(job->source->text));
    const char *checked[] = {COMMON, "-x", "c++", "-c", include, source, "-o", object, "-DGPU_CHECKED=1",
                             "-fsanitize=thread", NULL};
    const char *plain[] = {COMMON, "-x", "c++", "-c", include, source, "-o", object, "-DGPU_CHECKED=0", NULL};
    const char *linked[] = {"-shared", object, "-o", path, NULL};
    const char *words = compile_step(context, log, job->checked ? checked : plain);
    if (!words)
        words = compile_step(context, log, linked);
    unlink(source);
    unlink(object);
    if (words)
        cuda_refused(context, job->source, words);
}

static moe_kernel_fn *load_kernel(struct context *context, const struct kernel_job *job)
{
    const char *key = context_printf(context, "kernel\n%s\nchecked %d\n%s%s", machine_key(context), job->checked,
                                     cuda_headers_of(context, CUDA_CPU, job->source->text), job->source->text);
    const char *path = cache_file(context, key, ".so", make_kernel, (void *)(uintptr_t)job, NULL);
    moe_kernel_fn *function;
    function_of(context, load(context, path, RTLD_LOCAL), "moe_kernel", &function);
    return function;
}

void host_load(struct context *context, const struct ir *plan, const struct cuda_sources *sources,
               const struct host_options *options, moe_kernel_fn **kernels)
{
    const char *missing = host_missing(context);
    if (missing)
        fatal(context, EXIT_SYSTEM, "CUDA kernels cannot be compiled for the CPU: %s", missing);
    const char *folder = header_folder(context);
    load_emulator(context, folder);
    loaded_emulator.configure(options->seed, options->most_blocks > 0 ? options->most_blocks : 3);
    moe_kernel_fn **loaded = context_alloc(context, (sources->count + 1) * sizeof *loaded);
    for (uint32_t i = 0; i < sources->count; i++) {
        struct kernel_job job = {&sources->at[i], folder, options->checked};
        loaded[i] = load_kernel(context, &job);
    }
    for (uint32_t i = 0; i < COUNT(plan, plan_kernel); i++)
        kernels[i] = sources->of_kernel[i] == NONE ? NULL : loaded[sources->of_kernel[i]];
}

int host_reports(char *text, size_t size)
{
    return loaded_emulator.handle ? loaded_emulator.take_reports(text, size) : 0;
}

int host_unfinished_kernels(char *text, size_t size)
{
    return loaded_emulator.handle ? loaded_emulator.unfinished(text, size) : 0;
}
