// Reads, draws and writes the tokens of a run (CLI: --input, --tokens, --output). Files are untrusted.
#include "runtime/cli/batch.h"

#include "runtime/weights/random.h"
#include "runtime/weights/safetensors.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *file_dtype(const char *dtype)
{
    return !strcmp(dtype, "f16") ? "F16" : !strcmp(dtype, "bf16") ? "BF16" : "F32";
}

static size_t row_bytes(const moe_plan_info *info, const char *dtype)
{
    return (size_t)info->width * element_bytes(file_dtype(dtype));
}

static moe_status no_memory(char *error, size_t size)
{
    snprintf(error, size, "out of memory for the tokens");
    return MOE_NO_MEMORY;
}

/// Refuses token counts beyond the bound before memory is asked for.
static moe_status check_bound(const struct batch *batch, char *error, size_t size)
{
    for (uint32_t r = 0; r < batch->info->ranks; r++) {
        int64_t tokens = batch->first[r + 1] - batch->first[r];
        if (tokens > batch->info->tokens_bound) {
            snprintf(error, size, "rank %u has %" PRId64 " tokens, more than the bound of %" PRId64, r, tokens,
                     batch->info->tokens_bound);
            return MOE_BAD_INPUT;
        }
    }
    return MOE_OK;
}

/// Buffers for batch->first; with room for at least one byte, so that NULL means that memory is out.
static bool allocate(struct batch *batch, bool given)
{
    const moe_plan_info *info = batch->info;
    size_t sum = (size_t)batch_tokens(batch), x = 0, y = 0, routes = 0;
    if (__builtin_mul_overflow(sum, row_bytes(info, info->x_dtype), &x) ||
        __builtin_mul_overflow(sum, row_bytes(info, info->y_dtype), &y) ||
        __builtin_mul_overflow(sum, info->choices * sizeof(float), &routes))
        return false;
    batch->x = malloc(x + 64);
    batch->y = calloc(y + 64, 1);
    batch->ids = calloc(routes + 4, 1);
    batch->weights = calloc(routes + 4, 1);
    if (given) {
        batch->given_ids = malloc(routes + 4);
        batch->given_weights = malloc(routes + 4);
    }
    batch->steps = calloc(info->ranks, sizeof *batch->steps);
    return batch->x && batch->y && batch->ids && batch->weights && batch->steps &&
           (!given || (batch->given_ids && batch->given_weights));
}

static void fill_steps(struct batch *batch)
{
    const moe_plan_info *info = batch->info;
    for (uint32_t r = 0; r < info->ranks; r++) {
        size_t first = (size_t)batch->first[r], route = first * info->choices;
        batch->steps[r] = (moe_step){.rank = r,
                                     .tokens = batch->first[r + 1] - batch->first[r],
                                     .in = (char *)batch->x + first * row_bytes(info, info->x_dtype),
                                     .out = (char *)batch->y + first * row_bytes(info, info->y_dtype),
                                     .topk_ids = batch->ids + route,
                                     .topk_weights = batch->weights + route,
                                     .given_ids = batch->given_ids ? batch->given_ids + route : NULL,
                                     .given_weights = batch->given_ids ? batch->given_weights + route : NULL};
    }
}

moe_status batch_random(struct batch *batch, const moe_plan_info *info, const int64_t *counts, uint32_t count,
                        uint64_t seed, char *error, size_t size)
{
    *batch =
        (struct batch){.info = info, .shape = BATCH_RANKS, .first = calloc((size_t)info->ranks + 1, sizeof(int64_t))};
    if (count > 1 && count != info->ranks) {
        snprintf(error, size, "`--tokens` has %u counts for %u ranks", count, info->ranks);
        return MOE_INVALID;
    }
    if (!batch->first)
        return no_memory(error, size);
    for (uint32_t r = 0; r < info->ranks; r++) {
        int64_t tokens = count == 0 ? info->tokens_bound : counts[count == 1 ? 0 : r];
        batch->first[r + 1] = batch->first[r] + tokens;
        if (tokens != batch->first[1])
            batch->shape = BATCH_RAGGED;
    }
    moe_status status = check_bound(batch, error, size);
    if (status != MOE_OK)
        return status;
    float *row = malloc((size_t)info->width * sizeof *row);
    if (!row || !allocate(batch, false)) {
        free(row);
        return no_memory(error, size);
    }
    char *to = batch->x;
    for (uint32_t r = 0; r < info->ranks; r++)
        for (int64_t t = 0; t < batch->first[r + 1] - batch->first[r]; t++, to += row_bytes(info, info->x_dtype)) {
            random_token(seed, r, t, row, (size_t)info->width);
            elements_from_f32(file_dtype(info->x_dtype), row, to, (size_t)info->width);
        }
    free(row);
    fill_steps(batch);
    return MOE_OK;
}

// --- reading --------------------------------------------------------------------------------------------------------

static moe_status read_offsets(struct batch *batch, const struct tensor *offsets, int64_t sum, char *error, size_t size)
{
    uint32_t ranks = batch->info->ranks;
    if (strcmp(offsets->dtype, "I64") != 0 || offsets->dims != 1 || offsets->shape[0] != (int64_t)ranks + 1) {
        snprintf(error, size, "%s: `rank_offsets` must be I64 [%u] for %u ranks", offsets->file, ranks + 1, ranks);
        return MOE_BAD_INPUT;
    }
    memcpy(batch->first, offsets->data, offsets->bytes);
    bool rising = batch->first[0] == 0 && batch->first[ranks] == sum;
    for (uint32_t r = 0; r < ranks && rising; r++)
        rising = batch->first[r] <= batch->first[r + 1] && batch->first[r + 1] <= sum;
    if (!rising) {
        snprintf(error, size, "%s: `rank_offsets` must rise from 0 to %" PRId64, offsets->file, sum);
        return MOE_BAD_INPUT;
    }
    batch->shape = BATCH_RAGGED;
    return MOE_OK;
}

/// Finds out who has which rows from the shapes.
static moe_status read_shape(struct batch *batch, const struct tensor_set *set, const struct tensor *x, char *error,
                             size_t size)
{
    const moe_plan_info *info = batch->info;
    bool floating = !strcmp(x->dtype, "F32") || !strcmp(x->dtype, "F16") || !strcmp(x->dtype, "BF16");
    if (!floating) {
        snprintf(error, size, "%s: `hidden_states` is %s, not F32, F16 or BF16", x->file, x->dtype);
        return MOE_BAD_INPUT;
    }
    if ((x->dims != 2 && x->dims != 3) || x->shape[x->dims - 1] != info->width) {
        snprintf(error, size, "%s: `hidden_states` must be [tokens, %" PRId64 "] or [%u, tokens, %" PRId64 "]", x->file,
                 info->width, info->ranks, info->width);
        return MOE_BAD_INPUT;
    }
    const struct tensor *offsets = tensors_find(set, "rank_offsets");
    if (x->dims == 2 && offsets)
        return read_offsets(batch, offsets, x->shape[0], error, size);
    if (x->dims == 3 && (offsets || x->shape[0] != info->ranks)) {
        snprintf(error, size,
                 offsets ? "%s: `rank_offsets` goes with a `hidden_states` of two dimensions"
                         : "%s: `hidden_states` is for %" PRId64 " ranks, the plan has %u",
                 x->file, x->shape[0], info->ranks);
        return MOE_BAD_INPUT;
    }
    batch->shape = x->dims == 3 ? BATCH_RANKS : BATCH_FLAT;
    for (uint32_t r = 0; r <= info->ranks;
         r++) // sizes in bytes are below 2^63, and so is tokens * ranks for real files
        batch->first[r] = x->dims == 3 ? r * x->shape[1] : (int64_t)((__int128)r * x->shape[0] / info->ranks);
    return MOE_OK;
}

/// A tensor with the leading dimensions of x and `choices` as its last.
static bool route_fits(const struct tensor *route, const char *dtype, const struct tensor *x, uint32_t choices)
{
    return !strcmp(route->dtype, dtype) && route->dims == x->dims &&
           !memcmp(route->shape, x->shape, (x->dims - 1) * sizeof *x->shape) && route->shape[x->dims - 1] == choices;
}

/// Supplied routes: ids -1..experts-1, none twice in a token. False with a message that names the token.
static bool check_routes(const int32_t *ids, int64_t tokens, uint32_t choices, uint32_t experts, char *error,
                         size_t size)
{
    for (int64_t t = 0; t < tokens; t++) {
        const int32_t *row = ids + t * (int64_t)choices;
        for (uint32_t i = 0; i < choices; i++) {
            if (row[i] < -1 || row[i] >= (int64_t)experts) {
                snprintf(error, size, "`topk_ids`: token %" PRId64 ": expert %" PRId32 " is outside -1..%u", t, row[i],
                         experts - 1);
                return false;
            }
            for (uint32_t j = 0; j < i && row[i] >= 0; j++)
                if (row[j] == row[i]) {
                    snprintf(error, size, "`topk_ids`: token %" PRId64 ": expert %" PRId32 " comes twice", t, row[i]);
                    return false;
                }
        }
    }
    return true;
}

static moe_status read_routes(struct batch *batch, const struct tensor *ids, const struct tensor *weights, char *error,
                              size_t size)
{
    const moe_plan_info *info = batch->info;
    if (ids->bytes)
        memcpy(batch->given_ids, ids->data, ids->bytes);
    if (weights->bytes)
        memcpy(batch->given_weights, weights->data, weights->bytes);
    char reason[160];
    if (check_routes(batch->given_ids, batch_tokens(batch), info->choices, info->experts, reason, sizeof reason))
        return MOE_OK;
    snprintf(error, size, "%s: %s", ids->file, reason);
    return MOE_BAD_INPUT;
}

static bool read_rows(struct batch *batch, const struct tensor *x)
{
    const moe_plan_info *info = batch->info;
    const char *wanted = file_dtype(info->x_dtype);
    if (x->bytes && !strcmp(wanted, x->dtype))
        memcpy(batch->x, x->data, x->bytes);
    if (!x->bytes || !strcmp(wanted, x->dtype))
        return true;
    size_t width = (size_t)info->width;
    float *row = malloc(width * sizeof *row);
    for (size_t t = 0; row && t < (size_t)batch_tokens(batch); t++) {
        elements_to_f32(x->dtype, (const char *)x->data + t * width * element_bytes(x->dtype), row, width);
        elements_from_f32(wanted, row, (char *)batch->x + t * row_bytes(info, info->x_dtype), width);
    }
    bool fine = row != NULL;
    free(row);
    return fine;
}

static moe_status read_tensors(struct batch *batch, const struct tensor_set *set, const char *path, char *error,
                               size_t size)
{
    const struct tensor *x = tensors_find(set, "hidden_states");
    const struct tensor *ids = tensors_find(set, "topk_ids"), *weights = tensors_find(set, "topk_weights");
    const char *problem = NULL;
    if (!x)
        problem = "no tensor `hidden_states`";
    else if (!ids != !weights)
        problem = ids ? "`topk_ids` without `topk_weights`" : "`topk_weights` without `topk_ids`";
    else if (ids && x->dims && !route_fits(ids, "I32", x, batch->info->choices))
        problem = "`topk_ids` must be I32, as many rows as `hidden_states`, one id per choice";
    else if (ids && x->dims && !route_fits(weights, "F32", x, batch->info->choices))
        problem = "`topk_weights` must be F32, as many rows as `hidden_states`, one weight per choice";
    if (problem) {
        snprintf(error, size, "%s: %s", path, problem);
        return MOE_BAD_INPUT;
    }
    moe_status status = read_shape(batch, set, x, error, size);
    if (status == MOE_OK)
        status = check_bound(batch, error, size);
    if (status != MOE_OK)
        return status;
    if (!allocate(batch, ids != NULL) || !read_rows(batch, x))
        return no_memory(error, size);
    if (ids)
        status = read_routes(batch, ids, weights, error, size);
    fill_steps(batch);
    return status;
}

moe_status batch_read(struct batch *batch, const moe_plan_info *info, const char *path, char *error, size_t size)
{
    *batch = (struct batch){.info = info, .first = calloc((size_t)info->ranks + 1, sizeof(int64_t))};
    if (!batch->first)
        return no_memory(error, size);
    struct tensor_set *set = tensors_open(path, error, size);
    if (!set)
        return errno == 0 ? MOE_BAD_INPUT : errno == ENOMEM ? MOE_NO_MEMORY : MOE_IO;
    moe_status status = read_tensors(batch, set, path, error, size);
    tensors_close(set);
    return status;
}

// --- writing --------------------------------------------------------------------------------------------------------

/// A result with the batch's leading dimensions and `last` elements a row.
static struct tensor result_tensor(const struct batch *batch, const char *name, const char *dtype, int64_t last,
                                   const void *data)
{
    struct tensor tensor = {.name = name, .dims = 2, .shape = {batch_tokens(batch), last}, .data = data};
    if (batch->shape == BATCH_RANKS) {
        tensor.dims = 3;
        tensor.shape[0] = batch->info->ranks;
        tensor.shape[1] = batch->first[1];
        tensor.shape[2] = last;
    }
    snprintf(tensor.dtype, sizeof tensor.dtype, "%s", dtype);
    tensor.bytes = (size_t)batch_tokens(batch) * (size_t)last * element_bytes(dtype);
    return tensor;
}

moe_status batch_write(const struct batch *batch, const char *path, char *error, size_t size)
{
    const moe_plan_info *info = batch->info;
    struct tensor tensors[4] = {
        result_tensor(batch, "hidden_states", file_dtype(info->y_dtype), info->width, batch->y),
        result_tensor(batch, "topk_ids", "I32", info->choices, batch->ids),
        result_tensor(batch, "topk_weights", "F32", info->choices, batch->weights),
        {.name = "rank_offsets",
         .dtype = "I64",
         .dims = 1,
         .shape = {(int64_t)info->ranks + 1},
         .data = batch->first,
         .bytes = ((size_t)info->ranks + 1) * sizeof(int64_t)},
    };
    return tensors_write(path, tensors, batch->shape == BATCH_RAGGED ? 4 : 3, error, size) ? MOE_OK : MOE_IO;
}

void batch_free(struct batch *batch)
{
    free(batch->first);
    free(batch->x);
    free(batch->y);
    free(batch->given_ids);
    free(batch->ids);
    free(batch->given_weights);
    free(batch->weights);
    free(batch->steps);
    *batch = (struct batch){0};
}
