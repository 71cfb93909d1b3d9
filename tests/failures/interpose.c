// See interpose.h. __real_x is the function that --wrap=x hides.
#include "tests/failures/interpose.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>

static _Atomic int armed = FAULT_CALLS;
static _Atomic uint64_t count, fails_at;
static _Atomic bool did_fail;

void fault_arm(enum fault_call call, uint64_t nth)
{
    atomic_store(&count, 0);
    atomic_store(&fails_at, nth);
    atomic_store(&did_fail, false);
    atomic_store(&armed, (int)call);
}

uint64_t fault_disarm(bool *failed)
{
    atomic_store(&armed, FAULT_CALLS);
    if (failed)
        *failed = atomic_load(&did_fail);
    return atomic_load(&count);
}

static bool fails(enum fault_call call, int error)
{
    if (atomic_load_explicit(&armed, memory_order_relaxed) != (int)call ||
        atomic_fetch_add(&count, 1) + 1 != atomic_load(&fails_at))
        return false;
    atomic_store(&did_fail, true);
    errno = error;
    return true;
}

#define REAL(type, name, ...) \
    type __real_##name(__VA_ARGS__); \
    type __wrap_##name(__VA_ARGS__); \
    type __wrap_##name(__VA_ARGS__)

REAL(void *, malloc, size_t size)
{
    return fails(FAULT_ALLOC, ENOMEM) ? NULL : __real_malloc(size);
}

REAL(void *, calloc, size_t number, size_t size)
{
    return fails(FAULT_ALLOC, ENOMEM) ? NULL : __real_calloc(number, size);
}

REAL(void *, realloc, void *old, size_t size)
{
    return fails(FAULT_ALLOC, ENOMEM) ? NULL : __real_realloc(old, size);
}

REAL(void *, aligned_alloc, size_t alignment, size_t size)
{
    return fails(FAULT_ALLOC, ENOMEM) ? NULL : __real_aligned_alloc(alignment, size);
}

REAL(char *, strdup, const char *text)
{
    return fails(FAULT_ALLOC, ENOMEM) ? NULL : __real_strdup(text);
}

REAL(FILE *, open_memstream, char **text, size_t *size)
{
    return fails(FAULT_ALLOC, ENOMEM) ? NULL : __real_open_memstream(text, size);
}

REAL(void *, mmap, void *at, size_t bytes, int protection, int flags, int file, off_t offset)
{
    bool memory = flags & MAP_ANONYMOUS;
    if (fails(memory ? FAULT_ALLOC : FAULT_READ, memory ? ENOMEM : EIO))
        return MAP_FAILED;
    return __real_mmap(at, bytes, protection, flags, file, offset);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    return fails(FAULT_OPEN, EACCES) ? -1 : __real_open(path, flags, mode);
}

REAL(FILE *, fopen, const char *path, const char *mode)
{
    return fails(FAULT_OPEN, EACCES) ? NULL : __real_fopen(path, mode);
}

/// A stream that has failed: its error indicator is set by writing to a stream of the wrong direction.
static void break_stream(FILE *file)
{
    int saved = errno;
    unsigned char byte = 0;
    if (file->_flags & 0x0008) // _IO_NO_WRITES
        (void)!fputc(byte, file);
    else
        (void)!fgetc(file);
    errno = saved;
}

REAL(size_t, fread, void *to, size_t size, size_t number, FILE *file)
{
    if (fails(FAULT_READ, EIO)) {
        break_stream(file);
        return 0;
    }
    return __real_fread(to, size, number, file);
}

REAL(int, fstat, int file, struct stat *info)
{
    return fails(FAULT_READ, EIO) ? -1 : __real_fstat(file, info);
}

REAL(ssize_t, write, int file, const void *from, size_t bytes)
{
    return fails(FAULT_WRITE, ENOSPC) ? -1 : __real_write(file, from, bytes);
}

REAL(size_t, fwrite, const void *from, size_t size, size_t number, FILE *file)
{
    if (file != stdout && file != stderr && fails(FAULT_WRITE, ENOSPC)) {
        break_stream(file);
        return 0;
    }
    return __real_fwrite(from, size, number, file);
}

REAL(int, fclose, FILE *file)
{
    bool writes = !(file->_flags & 0x0008);
    if (writes && fails(FAULT_WRITE, ENOSPC)) {
        (void)!__real_fclose(file);
        errno = ENOSPC;
        return EOF;
    }
    return __real_fclose(file);
}

REAL(int, close, int file)
{
    if (fails(FAULT_WRITE, EIO)) {
        (void)!__real_close(file);
        errno = EIO;
        return -1;
    }
    return __real_close(file);
}

REAL(int, fchmod, int file, mode_t mode)
{
    return fails(FAULT_WRITE, EPERM) ? -1 : __real_fchmod(file, mode);
}

REAL(int, rename, const char *from, const char *to)
{
    return fails(FAULT_RENAME, EACCES) ? -1 : __real_rename(from, to);
}
