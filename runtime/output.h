// Files that commands write: a reader never sees a part of one, what is no file is written to and never replaced, and a
// symbolic link stays one. Shared by safetensors, built executables and the formatter.
#ifndef MOE_OUTPUT_H
#define MOE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct output_file {
    char *path;      // where the bytes end up, links followed
    char *temporary; // beside it; NULL: something special (a device, a pipe) is written to as it is
    int file;
};

/// Opens for writing. mode: of a new file, less the umask; one that exists keeps its own, with mode's x bits where it can
/// be read. false with errno: nothing to close.
bool output_begin(struct output_file *out, const char *path, mode_t mode);
bool output_write(struct output_file *out, const void *data, size_t bytes);
/// Puts the file in its place, or, unless `fine`, takes it away. false with errno: the place is as it was.
bool output_end(struct output_file *out, bool fine);

/// The same file on disk under both paths, or two spellings of one path in which nothing exists yet.
bool output_same_file(const char *a, const char *b);

#endif
