// Writes a safetensors file, as runtime/output.h says: a reader never sees a part.
#include "runtime/weights/safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/output.h"

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

static bool write_file(const char *path, const char *header, size_t header_bytes, const struct tensor *tensors,
                       size_t count)
{
    struct output_file out;
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)header_bytes >> (8 * i));
    if (!output_begin(&out, path, 0666))
        return false;
    bool fine = output_write(&out, length, sizeof length) && output_write(&out, header, header_bytes);
    for (size_t i = 0; i < count && fine; i++)
        fine = output_write(&out, tensors[i].data, tensors[i].bytes);
    return output_end(&out, fine);
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
    bool fine = write_file(path, header, header_bytes, tensors, count);
    if (!fine)
        snprintf(error, size, "%s: cannot write: %s", path, strerror(errno));
    free(header);
    return fine;
}
