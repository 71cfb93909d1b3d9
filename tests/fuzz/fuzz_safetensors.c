// Any bytes as a safetensors file: opened, every tensor's first and last byte read.
#include "runtime/weights/safetensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char error[512];
    struct tensor_set *set = tensors_open(fuzz_file("fuzz.safetensors", data, size), error, sizeof error);
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
