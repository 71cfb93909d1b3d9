// safetensors: files mapped for reading (untrusted), and a writer.
#ifndef MOE_SAFETENSORS_H
#define MOE_SAFETENSORS_H

#include "runtime/plan/words.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TENSOR_DIMS = 8 };

struct tensor {
    const char *name;
    char dtype[12];                 // as the file says: F32, F16, BF16, F8_E4M3, U8, I32, I64
    uint32_t dims;
    int64_t shape[TENSOR_DIMS];
    const void *data;               // inside the mapping
    size_t bytes;
    const char *file;               // path, for messages
};

/// A file; an index (*.json), whose weight_map is an allow-list; or a directory with model.safetensors.index.json or,
/// without one, model.safetensors. NULL with a message that names file and tensor; errno is then 0 when the content is at fault,
/// else what the system said (ENOENT, EACCES, ENOMEM ...).
struct tensor_set;
struct tensor_set *tensors_open(const char *path, char *error, size_t size);
const struct tensor *tensors_find(const struct tensor_set *set, const char *name); // NULL: absent
size_t tensors_count(const struct tensor_set *set);
const struct tensor *tensors_at(const struct tensor_set *set, size_t index);
void tensors_close(struct tensor_set *set);

/// Writes tensors in the given order to a temporary file, then renames it. False with a message. Uses name, dtype, dims,
/// shape, data; `bytes` must agree with them.
bool tensors_write(const char *path, const struct tensor *tensors, size_t count, char *error, size_t size);

size_t element_bytes(const char *dtype);    // 0: unknown
const char *element_name(uint32_t dtype);   // the file's word for an enum dtype: "F32"; NULL: none
/// Product of the shape and of the element size; -1 when unknown, negative or beyond int64_t.
int64_t tensor_bytes(const char *dtype, const int64_t *shape, uint32_t dims);

/// Exact widening to f32 (from F32 F16 BF16 F8_E4M3 F8_E8M0) and rounding, nearest even, from f32 (to F32 F16 BF16
/// F8_E4M3, which saturates); `count` elements, at any alignment. NaN stays NaN (quiet, sign and leading payload bits
/// kept). False: a dtype they do not know.
bool elements_to_f32(const char *dtype, const void *from, float *to, size_t count);
bool elements_from_f32(const char *dtype, const float *from, void *to, size_t count);

#endif
