// Files that commands write: to a temporary name beside their place, then renamed into it. Devices and pipes are opened
// instead; links are followed first, so that the rename replaces what they lead to. A signal that ends the program takes
// the temporary files away.
#include "runtime/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/// The mode of what replaces `old`: as it was, with the x bits wanted for whoever may read it.
static mode_t kept_mode(mode_t old, mode_t mode)
{
    mode_t executable = mode & 0111 ? (old & 0444) >> 2 : 0;
    return (old & 0777) | executable;
}

static bool keep_owner_and_mode(int file, const struct stat *old, mode_t mode)
{
    // Only root gives files away; for anybody else the new file is theirs, as any file they write.
    if (fchown(file, old->st_uid, old->st_gid) != 0 && errno != EPERM)
        return false;
    return fchmod(file, kept_mode(old->st_mode, mode)) == 0;
}

enum { MOST_GUARDED = 16 };

static struct {
    atomic_bool taken, set; // set: the path may be read
    char path[PATH_MAX];
} guarded[MOST_GUARDED];

int output_guard(const char *path)
{
    for (int i = 0; i < MOST_GUARDED; i++) {
        if (strlen(path) >= sizeof guarded[i].path || atomic_exchange(&guarded[i].taken, true))
            continue;
        strcpy(guarded[i].path, path);
        atomic_store(&guarded[i].set, true);
        return i;
    }
    return -1;
}

void output_unguard(int guard)
{
    if (guard < 0)
        return;
    atomic_store(&guarded[guard].set, false);
    atomic_store(&guarded[guard].taken, false);
}

void output_clean(void)
{
    for (int i = 0; i < MOST_GUARDED; i++)
        if (atomic_load(&guarded[i].set))
            unlink(guarded[i].path);
}

static void clean_and_die(int number)
{
    output_clean();
    raise(number); // its default again, by SA_RESETHAND
}

void output_clean_on_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = clean_and_die, .sa_flags = (int)SA_RESETHAND}, before;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) // nohup stays in force
            sigaction(numbers[i], &action, NULL);
}

bool output_begin(struct output_file *out, const char *path, mode_t mode)
{
    struct stat info;
    bool exists = stat(path, &info) == 0, special = exists && !S_ISREG(info.st_mode);
    *out = (struct output_file){.file = -1, .guard = -1};
    if (!exists && lstat(path, &info) == 0)
        return false; // a link to nothing; errno is stat's
    out->path = exists && !special ? realpath(path, NULL) : strdup(path);
    if (out->path && special)
        out->file = open(path, O_WRONLY | O_CLOEXEC);
    else if (out->path && asprintf(&out->temporary, "%s.%ld.tmp", out->path, (long)getpid()) >= 0) {
        out->guard = output_guard(out->temporary);
        out->file = open(out->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
    }
    if (out->file >= 0 && (!out->temporary || !exists || keep_owner_and_mode(out->file, &info, mode)))
        return true;
    output_end(out, false);
    return false;
}

bool output_write(struct output_file *out, const void *data, size_t bytes)
{
    const char *from = data;
    while (bytes) {
        ssize_t done = write(out->file, from, bytes < 1u << 30 ? bytes : 1u << 30);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        from += done;
        bytes -= (size_t)done;
    }
    return true;
}

bool output_end(struct output_file *out, bool fine)
{
    int cause = errno;
    if (out->file >= 0 && close(out->file) != 0 && fine) {
        fine = false;
        cause = errno;
    }
    if (fine && out->temporary && rename(out->temporary, out->path) != 0) {
        fine = false;
        cause = errno;
    }
    if (!fine && out->temporary && out->file >= 0)
        unlink(out->temporary);
    output_unguard(out->guard);
    free(out->temporary);
    free(out->path);
    *out = (struct output_file){.file = -1, .guard = -1};
    errno = cause;
    return fine;
}

FILE *output_open(struct output_file *out, const char *path)
{
    if (!output_begin(out, path, 0666))
        return NULL;
    int copy = fcntl(out->file, F_DUPFD_CLOEXEC, 0);
    FILE *stream = copy < 0 ? NULL : fdopen(copy, "w");
    if (stream)
        return stream;
    if (copy >= 0)
        close(copy);
    output_end(out, false);
    return NULL;
}

bool output_close(struct output_file *out, FILE *stream)
{
    bool fine = fflush(stream) == 0 && !ferror(stream);
    int cause = errno;
    if (fclose(stream) != 0 && fine) {
        fine = false;
        cause = errno;
    }
    errno = cause;
    return output_end(out, fine);
}

/// The folder of a path, with links followed; free() it.
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    char *real = folder ? realpath(folder, NULL) : NULL;
    free(folder);
    return real;
}

bool output_same_file(const char *a, const char *b)
{
    struct stat first, second;
    bool have_first = stat(a, &first) == 0, have_second = stat(b, &second) == 0;
    if (have_first || have_second) // two names of one device do no harm to each other
        return have_first && have_second && S_ISREG(first.st_mode) && first.st_dev == second.st_dev &&
               first.st_ino == second.st_ino;
    const char *slash_a = strrchr(a, '/'), *slash_b = strrchr(b, '/');
    if (strcmp(slash_a ? slash_a + 1 : a, slash_b ? slash_b + 1 : b) != 0)
        return false;
    char *folder_a = folder_of(a), *folder_b = folder_of(b);
    bool same = folder_a && folder_b && !strcmp(folder_a, folder_b);
    free(folder_a);
    free(folder_b);
    return same;
}
