// Any bytes as a safetensors file, or, where they begin with a brace, as the index of a checkpoint of two shards: opened,
// every tensor's first and last byte read.
#include "runtime/weights/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <string.h>

/// A shard of two tensors of four bytes.
static void write_shard(const char *name, const char *first, const char *second)
{
    char header[256], file[300] = {0};
    int length = snprintf(header, sizeof header,
                          "{\"%s\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                          "\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                          first, second);
    file[0] = (char)length;
    memcpy(file + 8, header, (size_t)length);
    fuzz_file(name, file, (size_t)length + 16);
}

static const char *write_index(const uint8_t *data, size_t size)
{
    static char folder[160];
    write_shard("a.safetensors", "x", "y");
    write_shard("b.safetensors", "z", "x");
    fuzz_file("broken.safetensors", "12345678", 8);
    snprintf(folder, sizeof folder, "%s", fuzz_file("model.safetensors.index.json", data, size));
    *strrchr(folder, '/') = 0;
    return folder;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char error[512];
    bool index = size && data[0] == '{';
    const char *path = index ? write_index(data, size) : fuzz_file("fuzz.safetensors", data, size);
    struct tensor_set *set = tensors_open(path, error, sizeof error);
    unsigned sum = 0;
    for (size_t i = 0; set && i < tensors_count(set); i++) {
        const struct tensor *t = tensors_at(set, i);
        const uint8_t *bytes = t->data;
        if (t->bytes)
            sum += bytes[0] + bytes[t->bytes - 1] + (unsigned)(tensors_find(set, t->name) != t);
    }
    tensors_close(set);
    return sum == UINT32_MAX;
}
