// Writes a safetensors file: to a temporary name beside the target, then renamed, so that a reader never sees a part.
#include "runtime/weights/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool write_all(int file, const void *data, size_t bytes)
{
    const char *from = data;
    while (bytes) {
        ssize_t done = write(file, from, bytes < 1u << 30 ? bytes : 1u << 30);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        from += done;
        bytes -= (size_t)done;
    }
    return true;
}

static json_t *describe(const struct tensor *tensor, uint64_t begin)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->dims; i++)
        json_array_append_new(shape, json_integer(tensor->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor->dtype, "shape", shape, "data_offsets", (json_int_t)begin,
                     (json_int_t)(begin + tensor->bytes));
}

/// The header as text, padded with blanks so that the data begins at a multiple of 8; free() it. NULL: memory.
static char *make_header(const struct tensor *tensors, size_t count, size_t *bytes)
{
    json_t *header = json_object();
    uint64_t offset = 0;
    bool fine = header != NULL;
    for (size_t i = 0; i < count && fine; i++) {
        fine = json_object_set_new(header, tensors[i].name, describe(&tensors[i], offset)) == 0;
        offset += tensors[i].bytes;
    }
    char *text = fine ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (!text)
        return NULL;
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    char *grown = realloc(text, padded + 1);
    if (!grown) {
        free(text);
        return NULL;
    }
    memset(grown + length, ' ', padded - length);
    *bytes = padded;
    return grown;
}

static bool write_file(int file, const char *header, size_t header_bytes, const struct tensor *tensors, size_t count)
{
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)header_bytes >> (8 * i));
    bool fine = write_all(file, length, sizeof length) && write_all(file, header, header_bytes);
    for (size_t i = 0; i < count && fine; i++)
        fine = write_all(file, tensors[i].data, tensors[i].bytes);
    return fine;
}

/// Something that exists and is no regular file (a pipe, /dev/null) is written to, not replaced.
static bool is_special(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && !S_ISREG(info.st_mode);
}

static bool write_and_rename(const char *path, const char *header, size_t header_bytes, const struct tensor *tensors,
                             size_t count)
{
    char *temporary = NULL;
    bool special = is_special(path);
    if (!special && asprintf(&temporary, "%s.%ld.tmp", path, (long)getpid()) < 0)
        return false;
    int file = special ? open(path, O_WRONLY | O_CLOEXEC)
                       : open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    bool fine = file >= 0 && write_file(file, header, header_bytes, tensors, count);
    int cause = errno;
    if (file >= 0 && close(file) != 0 && fine) {
        fine = false;
        cause = errno;
    }
    if (!special && fine && rename(temporary, path) != 0) {
        fine = false;
        cause = errno;
    }
    if (!special && !fine && file >= 0)
        unlink(temporary);
    free(temporary);
    errno = cause;
    return fine;
}

bool tensors_write(const char *path, const struct tensor *tensors, size_t count, char *error, size_t size)
{
    for (size_t i = 0; i < count; i++) {
        const struct tensor *tensor = &tensors[i];
        bool fits = tensor->dims <= TENSOR_DIMS &&
                    tensor_bytes(tensor->dtype, tensor->shape, tensor->dims) == (int64_t)tensor->bytes;
        for (size_t j = 0; j < i && fits; j++)
            fits = strcmp(tensors[j].name, tensor->name) != 0;
        if (!fits) {
            snprintf(error, size, "%s: tensor `%s`: size and shape disagree, or the name comes twice", path,
                     tensor->name);
            return false;
        }
    }
    size_t header_bytes = 0;
    char *header = make_header(tensors, count, &header_bytes);
    if (!header) {
        snprintf(error, size, "%s: out of memory", path);
        return false;
    }
    bool fine = write_and_rename(path, header, header_bytes, tensors, count);
    if (!fine)
        snprintf(error, size, "%s: cannot write: %s", path, strerror(errno));
    free(header);
    return fine;
}
