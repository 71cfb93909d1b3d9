// Files that are read where they lie. One that is cut off, or cannot be read any more, while it is in use ends the process
// by SIGBUS: a program may have that told with the file's name.
#ifndef MOE_MAPPED_H
#define MOE_MAPPED_H

#include <stddef.h>

/// The first `bytes` of a file, which may be closed afterwards. NULL with errno.
void *mapped_open(int file, size_t bytes, const char *path);
/// NULL is fine.
void mapped_close(void *map, size_t bytes);

/// For programs, never the library: where a file that is in use goes away, says which and exits as for any other failure
/// of the system; unfinished output is taken away. `program` begins the message and stays as it is.
void mapped_tell_loss(const char *program);

#endif
