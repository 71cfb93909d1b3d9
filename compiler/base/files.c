// Whole files as text. Pipes are read to their end, and nothing without one for ever: a device that gives bytes without end is
// refused like a file that is too large.
#include "compiler/base/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { FILE_BYTES_LIMIT = 64 << 20 };

const char *read_whole_file(struct context *context, const char *path, size_t *size)
{
    void **text = context_slot(context, free);
    errno = 0;
    FILE *file = fopen(path, "rb");
    size_t capacity = 0, used = 0;
    bool more = file != NULL;
    while (more && used <= FILE_BYTES_LIMIT) {
        if (capacity - used < 2) {
            void *grown = realloc(*text, capacity = capacity ? capacity * 2 : 16384);
            if (!grown) {
                fclose(file);
                fatal(context, EXIT_SYSTEM, "out of memory while reading %.200s", path);
            }
            *text = grown;
        }
        size_t got = fread((char *)*text + used, 1, capacity - used - 1, file);
        used += got;
        more = got > 0;
    }
    int cause = !file ? errno : more ? EFBIG : ferror(file) ? errno : 0; // a folder opens, but cannot be read
    if (file)
        fclose(file);
    errno = cause;
    if (cause || !*text)
        return NULL;
    ((char *)*text)[used] = 0;
    *size = used;
    return *text;
}
