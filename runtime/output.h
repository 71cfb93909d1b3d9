// Files that commands write: a reader never sees a part of one, what is no file is written to and never replaced, and a
// symbolic link stays one. Shared by safetensors, built executables and the formatter.
#ifndef MOE_OUTPUT_H
#define MOE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

struct output_file {
    char *path;      // where the bytes end up, links followed
    char *temporary; // beside it; NULL: something special (a device, a pipe) is written to as it is
    int file;
    int guard;       // its number among the files that a signal takes away
};

/// Opens for writing. mode: of a new file, less the umask; one that exists keeps its own, with mode's x bits where it can
/// be read. false with errno: nothing to close.
bool output_begin(struct output_file *out, const char *path, mode_t mode);
bool output_write(struct output_file *out, const void *data, size_t bytes);
/// Puts the file in its place, or, unless `fine`, takes it away. false with errno: the place is as it was.
bool output_end(struct output_file *out, bool fine);

/// The same for text: a stream, NULL with errno where nothing can be written; what was written is put in its place when
/// all of it could be.
FILE *output_open(struct output_file *out, const char *path);
bool output_close(struct output_file *out, FILE *stream);

/// Takes unfinished files away, where a program gives up before it ends them.
void output_clean(void);
/// For programs: SIGINT, SIGTERM and SIGHUP take unfinished files away, then end the process as they always do.
void output_clean_on_signals(void);
/// A file of any other name that a signal takes away, until the number is given back. -1 (nothing to give back): no room.
int output_guard(const char *path);
void output_unguard(int guard);

/// The same file on disk under both paths, or two spellings of one path in which nothing exists yet.
bool output_same_file(const char *a, const char *b);

#endif
