// Mapped files and their names (mapped.h). The table is read by a signal handler, on whatever thread touched the file: its
// rows are filled before they are shown.
#include "runtime/mapped.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/output.h"

enum { MOST_NAMED = 1024, EXIT_SYSTEM_FAILED = 3 }; // further files have no name in the message

static struct {
    atomic_bool taken;
    _Atomic uintptr_t begin; // 0: nothing to be read
    size_t bytes;
    char *path;
} files[MOST_NAMED];

static const char *program_name = "moe";

void *mapped_open(int file, size_t bytes, const char *path)
{
    void *map = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (map == MAP_FAILED)
        return NULL;
    for (size_t i = 0; i < MOST_NAMED; i++) {
        if (atomic_exchange(&files[i].taken, true))
            continue;
        files[i].bytes = bytes;
        files[i].path = strdup(path);
        atomic_store(&files[i].begin, (uintptr_t)map);
        break;
    }
    return map;
}

void mapped_close(void *map, size_t bytes)
{
    if (!map)
        return;
    for (size_t i = 0; i < MOST_NAMED; i++)
        if (atomic_load(&files[i].begin) == (uintptr_t)map) {
            atomic_store(&files[i].begin, 0);
            free(files[i].path);
            atomic_store(&files[i].taken, false);
            break;
        }
    munmap(map, bytes);
}

/// The path of the file at an address; NULL: no file of ours lies there.
static const char *file_at(uintptr_t at)
{
    for (size_t i = 0; i < MOST_NAMED; i++) {
        uintptr_t begin = atomic_load(&files[i].begin);
        if (begin && at >= begin && at - begin < files[i].bytes)
            return files[i].path ? files[i].path : "a file";
    }
    return NULL;
}

static void say(const char *text)
{
    ssize_t told = write(STDERR_FILENO, text, strlen(text));
    (void)told;
}

static void tell_and_exit(int number, siginfo_t *info, void *context)
{
    (void)context;
    const char *path = file_at((uintptr_t)info->si_addr);
    if (!path) {
        signal(number, SIG_DFL); // not ours: it happens again, as it always does
        return;
    }
    output_clean();
    say(program_name);
    say(": error: ");
    say(path);
    say(": was cut off, or cannot be read any more, while it was in use\n");
    _exit(EXIT_SYSTEM_FAILED);
}

void mapped_tell_loss(const char *program)
{
    struct sigaction action = {.sa_sigaction = tell_and_exit, .sa_flags = SA_SIGINFO};
    program_name = program;
    sigaction(SIGBUS, &action, NULL);
}
