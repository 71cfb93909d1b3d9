// `--reference`: how far the output lies from a stored one, in the two measures that people quote.
#include "runtime/cli/compare.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/weights/safetensors.h"

static const struct tensor *find_reference(const struct tensor_set *set, const moe_plan_info *info)
{
    const struct tensor *tensor = tensors_find(set, "hidden_states");
    if (tensor || info->layers != 1)
        return tensor;
    char name[48];
    snprintf(name, sizeof name, "layer%u.hidden_states", info->first_layer);
    return tensors_find(set, name);
}

/// Of a type that elements_to_f32 widens.
static bool is_floating(const struct tensor *tensor)
{
    return !strcmp(tensor->dtype, "F32") || !strcmp(tensor->dtype, "F16") || !strcmp(tensor->dtype, "BF16") ||
           !strcmp(tensor->dtype, "F8_E4M3");
}

// Accumulates row by row in float64, so that two rows of memory are enough for any file.
static void accumulate(const struct batch *batch, const struct tensor *reference, float *rows, struct difference *out)
{
    const moe_plan_info *info = batch->info;
    size_t width = (size_t)info->width;
    const char *dtype = !strcmp(info->y_dtype, "f32") ? "F32" : !strcmp(info->y_dtype, "f16") ? "F16" : "BF16";
    size_t y_row = width * element_bytes(dtype), reference_row = width * element_bytes(reference->dtype);
    double error = 0, norm = 0, other = 0, product = 0, largest = 0;
    for (int64_t t = 0; t < batch_tokens(batch); t++) {
        elements_to_f32(dtype, (const char *)batch->y + (size_t)t * y_row, rows, width);
        elements_to_f32(reference->dtype, (const char *)reference->data + (size_t)t * reference_row, rows + width, width);
        for (size_t i = 0; i < width; i++) {
            double y = (double)rows[i], r = (double)rows[width + i], d = y - r;
            error += d * d;
            norm += r * r;
            other += y * y;
            product += y * r;
            largest = d > largest ? d : -d > largest ? -d : largest;
        }
    }
    out->relative_l2 = norm > 0 ? sqrt(error / norm) : sqrt(error);
    out->cosine = norm > 0 && other > 0 ? 1 - product / sqrt(norm * other) : 0;
    out->largest = largest;
}

moe_status compare_output(const struct batch *batch, const char *path, struct difference *difference, char *error,
                          size_t size)
{
    struct tensor_set *set = tensors_open(path, error, size);
    if (!set)
        return errno ? MOE_IO : MOE_BAD_INPUT;
    const struct tensor *reference = find_reference(set, batch->info);
    int64_t elements = batch_tokens(batch) * batch->info->width;
    moe_status status = MOE_BAD_INPUT;
    float *rows = malloc((size_t)batch->info->width * 2 * sizeof *rows);
    if (!reference)
        snprintf(error, size, "%s: no tensor `hidden_states`", path);
    else if (!is_floating(reference) ||
             (int64_t)(reference->bytes / element_bytes(reference->dtype)) != elements)
        snprintf(error, size, "%s: `%s` does not have the %" PRId64 " numbers of the output", path, reference->name, elements);
    else if (!rows)
        status = MOE_NO_MEMORY;
    else {
        accumulate(batch, reference, rows, difference);
        status = MOE_OK;
    }
    free(rows);
    tensors_close(set);
    return status;
}
