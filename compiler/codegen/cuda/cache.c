// The cache of compiled kernels (cache.h): content hash, a lock a key, a temporary file that is renamed, a digest of what was
// made beside it: what a crash, a full disk or anybody else has damaged is made anew.
#include "cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static bool is_folder(const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return false;
    errno = ENOTDIR;
    return S_ISDIR(status.st_mode);
}

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
    return mkdir(path, 0777) == 0 || (errno == EEXIST && is_folder(path));
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
        fatal(context, EXIT_SYSTEM, "cannot make the folder for compiled kernels %s: %s; MOECC_CACHE names another", path,
              strerror(errno));
    return path;
}

const char *cache_named(struct context *context, const char *name)
{
    return context_printf(context, "%s/%s", cache_folder(context), name);
}

// --------------------------------------------------------------------------------------------------------- entries

static const char *digest_of_text(struct context *context, const char *text, size_t size)
{
    XXH128_hash_t hash = XXH3_128bits(text, size);
    return context_printf(context, "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}

/// Of a file's bytes; of a folder's files with their names, in the names' order. "": there is nothing.
static const char *digest_of(struct context *context, const char *path)
{
    struct dirent **names;
    size_t size;
    if (!is_folder(path)) {
        const char *bytes = cache_read(context, path, &size);
        return size ? digest_of_text(context, bytes, size) : "";
    }
    const char *all = "";
    int count = scandir(path, &names, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        const char *name = names[i]->d_name;
        if (*name != '.')
            all = context_printf(context, "%s%s %s\n", all, name, digest_of(context, context_printf(context, "%s/%s", path, name)));
        free(names[i]);
    }
    if (count >= 0)
        free(names);
    return digest_of_text(context, all, strlen(all));
}

static const char *digest_path(struct context *context, const char *path)
{
    return context_printf(context, "%s.sum", path);
}

/// Whether what is there is what was made.
static bool is_intact(struct context *context, const char *path)
{
    const char *digest = cache_read_text(context, digest_path(context, path));
    return *digest && !strcmp(digest, digest_of(context, path));
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *level)
{
    (void)status, (void)kind, (void)level;
    remove(path);
    return 0;
}

static void remove_tree(const char *path)
{
    nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/// The lock of a key, and what its maker writes to.
struct making {
    int lock;
    char *folder, *temporary; // a name: what begins so
};

/// The maker may leave through `fatal`, or have been killed: then parts of what it wrote are there, for nobody.
static void remove_parts(const struct making *m)
{
    DIR *folder = opendir(m->folder);
    char path[4096];
    for (const struct dirent *entry; folder && (entry = readdir(folder));)
        if (!strncmp(entry->d_name, m->temporary, strlen(m->temporary)) &&
            snprintf(path, sizeof path, "%s/%s", m->folder, entry->d_name) < (int)sizeof path)
            remove_tree(path);
    if (folder)
        closedir(folder);
}

static void end_making(void *held)
{
    struct making *m = held;
    remove_parts(m);
    close(m->lock);
    free(m->folder);
    free(m->temporary);
    free(m);
}

static struct making *begin_making(struct context *context, const char *name)
{
    struct making *m = calloc(1, sizeof *m);
    const char *folder = cache_folder(context), *path = context_printf(context, "%s/%s.lock", folder, name);
    if (m)
        *m = (struct making){open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), strdup(folder),
                             strdup(context_printf(context, "%s.tmp", name))};
    if (!m || !m->folder || !m->temporary)
        fatal(context, EXIT_SYSTEM, "out of memory");
    if (m->lock < 0 || flock(m->lock, LOCK_EX) != 0)
        fatal(context, EXIT_SYSTEM, "cannot keep compiled kernels: %s: %s; MOECC_CACHE names another folder", path,
              strerror(errno));
    return m;
}

/// Under the key's lock: makes the file beside its place, then moves it there.
static void make_locked(struct context *context, const struct making *m, const char *path, cache_maker *make, void *user)
{
    const char *temporary = context_printf(context, "%s/%s", m->folder, m->temporary);
    remove_parts(m);
    remove_tree(path);
    make(context, temporary, user);
    const char *digest = digest_of(context, temporary);
    cache_replace(context, digest_path(context, path), digest, strlen(digest));
    if (rename(temporary, path) != 0)
        fatal(context, EXIT_SYSTEM, "cannot write %s: %s", path, strerror(errno));
}

const char *cache_file(struct context *context, const char *key, const char *suffix, cache_maker *make, void *user,
                       bool *made)
{
    const char *name = digest_of_text(context, key, strlen(key));
    const char *path = cache_named(context, context_printf(context, "%s%s", name, suffix));
    if (made)
        *made = false;
    if (is_intact(context, path))
        return path;
    void **slot = context_slot(context, end_making);
    *slot = begin_making(context, name);
    if (!is_intact(context, path)) { // else another process was faster
        make_locked(context, *slot, path, make, user);
        if (made)
            *made = true;
    }
    end_making(*slot);
    *slot = NULL;
    return path;
}

// ----------------------------------------------------------------------------------------------------------- files

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
