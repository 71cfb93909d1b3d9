// Files that are made once and kept: compiled kernels, under the hash of everything that went into them. Processes that
// want the same file at the same time wait for the one that makes it; a reader never sees a part of one, nor one that is
// not as it was made.
#ifndef MOECC_CODEGEN_CUDA_CACHE_H
#define MOECC_CODEGEN_CUDA_CACHE_H

#include <stdbool.h>

#include "compiler/base/base.h"

/// Makes the file at `path`, or leaves through `fatal`.
typedef void cache_maker(struct context *context, const char *path, void *user);

/// The file for `key`, a text of everything it depends on, made now if it is not there. The folder is $MOECC_CACHE,
/// $XDG_CACHE_HOME/moecc or ~/.cache/moecc. `made` (may be NULL): whether it had to be made.
const char *cache_file(struct context *context, const char *key, const char *suffix, cache_maker *make, void *user,
                       bool *made);

/// The path of a file in that folder whose name is no hash: it may be replaced.
const char *cache_named(struct context *context, const char *name);
/// Puts such a file in place, whole at once.
void cache_replace(struct context *context, const char *path, const char *bytes, size_t size);

/// What makers and users of such files read and write: a whole file, with a NUL behind it; no file reads as "", writing
/// leaves through `fatal`.
const char *cache_read(struct context *context, const char *path, size_t *size);
const char *cache_read_text(struct context *context, const char *path);
void cache_write(struct context *context, const char *path, const char *bytes, size_t size);

#endif
