// The cache of compiled kernels (cache.h): content hash, a lock a key, a temporary file that is renamed.
#include "cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/// Creates a folder and those above it.
static bool make_folder(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        bool made = mkdir(path, 0777) == 0 || errno == EEXIST;
        *slash = '/';
        if (!made)
            return false;
    }
    return mkdir(path, 0777) == 0 || errno == EEXIST;
}

static const char *cache_folder(struct context *context)
{
    const char *own = getenv("MOECC_CACHE"), *shared = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const char *path = own && *own          ? own
                       : shared && *shared  ? context_printf(context, "%s/moecc", shared)
                       : home && *home      ? context_printf(context, "%s/.cache/moecc", home)
                                            : NULL;
    if (!path)
        fatal(context, EXIT_SYSTEM, "no folder for compiled kernels: neither MOECC_CACHE nor HOME is set");
    char *copy = context_alloc(context, strlen(path) + 1);
    memcpy(copy, path, strlen(path));
    if (!make_folder(copy))
        fatal(context, EXIT_SYSTEM, "cannot make the folder for compiled kernels %s: %s", path, strerror(errno));
    return path;
}

const char *cache_named(struct context *context, const char *name)
{
    return context_printf(context, "%s/%s", cache_folder(context), name);
}

static bool is_there(const char *path)
{
    return access(path, R_OK) == 0;
}

/// Under the key's lock: makes the file beside its place, then moves it there.
static void make_locked(struct context *context, const char *path, cache_maker *make, void *user)
{
    const char *temporary = context_printf(context, "%s.%ld.tmp", path, (long)getpid());
    make(context, temporary, user);
    if (rename(temporary, path) != 0)
        fatal(context, EXIT_SYSTEM, "cannot write %s: %s", path, strerror(errno));
}

static void close_lock(void *held)
{
    close((int)(intptr_t)held - 1);
}

const char *cache_file(struct context *context, const char *key, const char *suffix, cache_maker *make, void *user,
                       bool *made)
{
    XXH128_hash_t hash = XXH3_128bits(key, strlen(key));
    const char *base = context_printf(context, "%s/%016llx%016llx", cache_folder(context),
                                      (unsigned long long)hash.high64, (unsigned long long)hash.low64);
    const char *path = context_printf(context, "%s%s", base, suffix);
    if (made)
        *made = false;
    if (is_there(path))
        return path;
    const char *lock_path = context_printf(context, "%s.lock", base);
    int lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock < 0 || flock(lock, LOCK_EX) != 0)
        fatal(context, EXIT_SYSTEM, "cannot lock %s: %s", lock_path, strerror(errno));
    void **slot = context_slot(context, close_lock); // the maker may leave through `fatal`
    *slot = (void *)((intptr_t)lock + 1);
    if (!is_there(path)) { // else another process was faster
        make_locked(context, path, make, user);
        if (made)
            *made = true;
    }
    close_lock(*slot);
    *slot = NULL;
    return path;
}

const char *cache_read(struct context *context, const char *path, size_t *size)
{
    struct stat status;
    FILE *file = fopen(path, "rb");
    *size = file && fstat(fileno(file), &status) == 0 ? (size_t)status.st_size : 0;
    char *bytes = context_alloc(context, *size + 1);
    bool fine = !file || fread(bytes, 1, *size, file) == *size;
    if (file)
        fclose(file);
    if (!fine)
        fatal(context, EXIT_SYSTEM, "cannot read %s", path);
    return bytes;
}

const char *cache_read_text(struct context *context, const char *path)
{
    size_t size;
    return cache_read(context, path, &size);
}

void cache_write(struct context *context, const char *path, const char *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    bool fine = file && fwrite(bytes, 1, size, file) == size;
    if ((file && fclose(file) != 0) || !fine)
        fatal(context, EXIT_SYSTEM, "cannot write %s: %s", path, strerror(errno));
}

void cache_replace(struct context *context, const char *path, const char *bytes, size_t size)
{
    const char *temporary = context_printf(context, "%s.%ld.tmp", path, (long)getpid());
    cache_write(context, temporary, bytes, size);
    if (rename(temporary, path) != 0)
        fatal(context, EXIT_SYSTEM, "cannot write %s: %s", path, strerror(errno));
}
