// The table of headers and the walk along their includes (headers.h).
#include "headers.h"

#include <string.h>

/// NVRTC has no headers of its own to find, so the two of C's that are needed are embedded; a C++ compiler has them.
static const struct {
    const char *name, *file;
    int backs;
} headers[] = {{"device.h", "device.h", CUDA_GPU | CUDA_CPU},
               {"device_ptx.h", "device_ptx.h", CUDA_GPU},
               {"device_host.h", "device_host.h", CUDA_CPU},
               {"hopper.h", "hopper.h", CUDA_GPU | CUDA_CPU},
               {"hopper_ptx.h", "hopper_ptx.h", CUDA_GPU},
               {"hopper_host.h", "hopper_host.h", CUDA_CPU},
               {"numbers.h", "numbers.h", CUDA_GPU | CUDA_CPU},
               {"slices.h", "slices.h", CUDA_GPU | CUDA_CPU},
               {"tiles.h", "tiles.h", CUDA_GPU | CUDA_CPU},
               {"slots_hopper.h", "slots_hopper.h", CUDA_GPU | CUDA_CPU},
               {"tiles_few_hopper.h", "tiles_few_hopper.h", CUDA_GPU | CUDA_CPU},
               {"tiles_hopper.h", "tiles_hopper.h", CUDA_GPU | CUDA_CPU},
               {"codes.h", "codes.h", CUDA_GPU | CUDA_CPU},
               {"tiles_codes.h", "tiles_codes.h", CUDA_GPU | CUDA_CPU},
               {"tiles_codes_hopper.h", "tiles_codes_hopper.h", CUDA_GPU | CUDA_CPU},
               {"fp8.h", "fp8.h", CUDA_GPU | CUDA_CPU},
               {"tiles_fp8.h", "tiles_fp8.h", CUDA_GPU | CUDA_CPU},
               {"tiles_fp8_hopper.h", "tiles_fp8_hopper.h", CUDA_GPU | CUDA_CPU},
               {"hidden_codes.h", "hidden_codes.h", CUDA_GPU | CUDA_CPU},
               {"hidden_few.h", "hidden_few.h", CUDA_GPU | CUDA_CPU},
               {"rows.h", "rows.h", CUDA_GPU | CUDA_CPU},
               {"noise.h", "noise.h", CUDA_GPU | CUDA_CPU},
               {"wire.h", "wire.h", CUDA_GPU | CUDA_CPU},
               {"kernels.h", "kernels.h", CUDA_GPU | CUDA_CPU},
               {"limits.h", "limits.h", CUDA_GPU | CUDA_CPU},
               {"words.def", "words.def", CUDA_GPU | CUDA_CPU},
               {"stdint.h", "nvrtc/stdint.h", CUDA_GPU},
               {"stddef.h", "nvrtc/stddef.h", CUDA_GPU},
               {"host/emulator.h", "host/emulator.h", CUDA_CPU},
               {"host/block.h", "host/block.h", CUDA_CPU}};
enum { HEADERS = sizeof headers / sizeof *headers };
_Static_assert((int)HEADERS <= (int)CUDA_MOST_HEADERS, "room for all of them");

const char *cuda_file_text(struct context *context, const char *name)
{
    size_t size;
    const char *text = embedded_file(context_printf(context, "cuda/%s", name), &size);
    if (!text)
        fatal(context, EXIT_BUG, "%s is not embedded", name);
    return context_printf(context, "%.*s", (int)size, text);
}

int cuda_headers(struct context *context, enum cuda_back back, const char **names, const char **texts)
{
    int count = 0;
    for (int i = 0; i < HEADERS; i++)
        if (headers[i].backs & (int)back) {
            names[count] = headers[i].name;
            texts[count++] = cuda_file_text(context, headers[i].file);
        }
    return count;
}

/// Marks the headers that a text includes, in `#if`s too.
static void follow(struct context *context, enum cuda_back back, const char *text, const char **texts)
{
    static const char include[] = "#include ";
    for (const char *at = text; (at = strstr(at, include));) {
        at += sizeof include - 1;
        for (int i = 0; i < HEADERS; i++) {
            size_t length = strlen(headers[i].name);
            bool named = (*at == '"' || *at == '<') && !strncmp(at + 1, headers[i].name, length) &&
                         (at[1 + length] == '"' || at[1 + length] == '>');
            if (!named || texts[i] || !(headers[i].backs & (int)back))
                continue;
            texts[i] = cuda_file_text(context, headers[i].file);
            follow(context, back, texts[i], texts);
        }
    }
}

const char *cuda_headers_of(struct context *context, enum cuda_back back, const char *source)
{
    const char *texts[HEADERS] = {NULL};
    size_t size = 0, length;
    follow(context, back, source, texts);
    for (int i = 0; i < HEADERS; i++)
        size += texts[i] ? strlen(texts[i]) : 0;
    char *all = context_alloc(context, size + 1), *end = all;
    for (int i = 0; i < HEADERS; i++, end += length) {
        length = texts[i] ? strlen(texts[i]) : 0;
        if (length)
            memcpy(end, texts[i], length);
    }
    return all;
}
