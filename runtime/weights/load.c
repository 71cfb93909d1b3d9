// Loads weights: finds each parameter's tensors in the checkpoint, checks dtype and shape of all of them first, then packs
// blocks in parallel, one block per expert, and lets go of the pages it has read.
#include "runtime/weights/weights.h"

#include "runtime/moe.h"
#include "runtime/weights/pack.h"
#include "runtime/weights/random.h"
#include "runtime/weights/safetensors.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/// One block to pack.
struct block {
    const struct plan_param *param;
    size_t first_source, source_count;
    void *to;
};

struct loader {
    const struct weights_request *request;
    const struct plan_info *info;
    struct tensor_set *tensors; // NULL: random
    struct block *blocks;
    size_t block_count, block_capacity;
    struct pack_source *sources;
    size_t source_count, source_capacity;
    atomic_size_t next, done; // blocks taken and finished
    size_t scratch_bytes;     // largest over the parameters
    pthread_t main_thread;
    char *error;
    size_t error_size;
};

__attribute__((format(printf, 3, 4))) static int fail(struct loader *loader, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (loader->error_size)
        vsnprintf(loader->error, loader->error_size, format, args);
    va_end(args);
    return status;
}

/// Makes room for one more element.
static bool grow(void **array, size_t count, size_t *capacity, size_t element)
{
    if (count < *capacity)
        return true;
    size_t wanted = *capacity ? *capacity * 2 : 64;
    void *grown = realloc(*array, wanted * element);
    if (!grown)
        return false;
    *array = grown;
    *capacity = wanted;
    return true;
}

static int add_source(struct loader *loader, struct pack_source source)
{
    void *sources = loader->sources;
    if (!grow(&sources, loader->source_count, &loader->source_capacity, sizeof source))
        return fail(loader, MOE_NO_MEMORY, "out of memory");
    loader->sources = sources;
    loader->sources[loader->source_count++] = source;
    return MOE_OK;
}

// --- from the checkpoint --------------------------------------------------------------------------------------------

/// `pattern` with {layer} and {expert} replaced. False: too long.
static bool expand(const char *pattern, uint32_t layer, uint32_t expert, char *name, size_t size)
{
    size_t length = 0;
    while (*pattern) {
        bool is_layer = !strncmp(pattern, "{layer}", 7), is_expert = !strncmp(pattern, "{expert}", 8);
        int written;
        if (is_layer || is_expert)
            written = snprintf(name + length, size - length, "%" PRIu32, is_layer ? layer : expert);
        else
            written = snprintf(name + length, size - length, "%c", *pattern);
        if (written < 0 || (size_t)written >= size - length)
            return false;
        length += (size_t)written;
        pattern += is_layer ? 7 : is_expert ? 8 : 1;
    }
    name[length] = 0;
    return true;
}

/// "[64, 128]"
static const char *shape_text(const int64_t *shape, uint32_t dims, char *text, size_t size)
{
    size_t length = (size_t)snprintf(text, size, "[");
    for (uint32_t i = 0; i < dims && length < size; i++)
        length += (size_t)snprintf(text + length, size - length, i ? ", %" PRId64 : "%" PRId64, shape[i]);
    if (length < size)
        snprintf(text + length, size - length, "]");
    return text;
}

/// A matrix of a parameter as a tensor should hold it, or one for each expert.
struct wanted {
    bool fused; // [experts, ...]
    int64_t experts, rows, cols;
};

/// Whether the tensor has the shape. Experts may also be packed into the rows; of a bias, a dimension of 1 may be absent;
/// one shared expert's matrix may have its leading 1, as it is declared, or not.
static bool shape_fits(const struct tensor *tensor, const struct wanted *wanted)
{
    int64_t shape[3] = {wanted->experts, wanted->rows, wanted->cols};
    const int64_t *matrix = wanted->fused ? shape : shape + 1;
    uint32_t dims = wanted->fused ? 3 : 2;
    if (tensor->dims == dims && !memcmp(tensor->shape, matrix, dims * sizeof *matrix))
        return true;
    if (!wanted->fused && tensor->dims == 3 && tensor->shape[0] == 1 && !memcmp(tensor->shape + 1, matrix, 2 * sizeof *matrix))
        return true;
    if (tensor->dims + 1 != dims)
        return false;
    if (wanted->fused && tensor->shape[0] == wanted->experts * wanted->rows && tensor->shape[1] == wanted->cols)
        return true;
    if ((wanted->rows != 1 && wanted->cols != 1) || (wanted->fused && tensor->shape[0] != wanted->experts))
        return false;
    return tensor->shape[dims - 2] == (wanted->cols == 1 ? wanted->rows : wanted->cols);
}

static const char *wanted_text(const struct wanted *wanted, char *text, size_t size)
{
    int64_t shape[3] = {wanted->experts, wanted->rows, wanted->cols};
    return shape_text(wanted->fused ? shape : shape + 1, wanted->fused ? 3 : 2, text, size);
}

/// bf16 and f16 widen to f32 without loss; any other difference would change values unseen.
static bool dtype_fits(const char *dtype, uint32_t declared)
{
    if (declared == dtype_mxfp4)
        return !strcmp(dtype, "U8");
    return !strcmp(dtype, element_name(declared)) ||
           (declared == dtype_f32 && (!strcmp(dtype, "BF16") || !strcmp(dtype, "F16")));
}

/// Scales keep their values whatever type holds them; but a power of two is not to be read as a number.
static const char *scale_dtype(const char *dtype, uint32_t scale)
{
    if (scale == scale_type_ue8m0 && (!strcmp(dtype, "U8") || !strcmp(dtype, "F8_E8M0")))
        return "F8_E8M0";
    return !strcmp(dtype, "F32") || !strcmp(dtype, "BF16") || !strcmp(dtype, "F16") ? dtype : NULL;
}

static int find_tensor(struct loader *loader, const struct plan_param *param, const char *pattern, uint32_t layer,
                       uint32_t expert, const struct tensor **tensor)
{
    const char *parameter = ir_text(loader->request->plan, param->name);
    char name[1024];
    if (!*pattern)
        return fail(loader, MOE_BAD_WEIGHTS, "%s: the pipeline says of no tensor that it is parameter `%s`",
                    loader->request->path, parameter);
    if (!expand(pattern, layer, expert, name, sizeof name))
        return fail(loader, MOE_BAD_WEIGHTS, "parameter `%s`: its tensor's name is too long", parameter);
    *tensor = tensors_find(loader->tensors, name);
    if (!*tensor)
        return fail(loader, MOE_BAD_WEIGHTS, "%s: no tensor `%s` (parameter `%s`)", loader->request->path, name,
                    parameter);
    return MOE_OK;
}

static int check_shape(struct loader *loader, const struct plan_param *param, const struct tensor *tensor,
                       const struct wanted *wanted)
{
    char has[200], needs[200];
    if (shape_fits(tensor, wanted))
        return MOE_OK;
    struct wanted other = *wanted;
    other.rows = wanted->cols;
    other.cols = wanted->rows;
    const char *hint = !shape_fits(tensor, &other) ? ""
                       : param->transposed         ? " (it would fit without `transpose`)"
                                                   : " (it would fit as `transpose(...)`)";
    return fail(loader, MOE_BAD_WEIGHTS, "%s: tensor `%s` is %s, parameter `%s` needs %s%s", tensor->file, tensor->name,
                shape_text(tensor->shape, tensor->dims, has, sizeof has), ir_text(loader->request->plan, param->name),
                wanted_text(wanted, needs, sizeof needs), hint);
}

/// MXFP4 codes are [.., rows, cols / 32, 16] bytes; taken as [.., rows, cols / 2].
static struct tensor flat_blocks(const struct tensor *tensor)
{
    struct tensor flat = *tensor;
    if (flat.dims >= 3 && flat.shape[flat.dims - 1] == 16 && flat.shape[flat.dims - 2] <= INT64_MAX / 16) {
        flat.dims--;
        flat.shape[flat.dims - 1] *= 16;
    }
    return flat;
}

static int add_scales(struct loader *loader, const struct plan_param *param, const struct plan_source *source,
                      const struct tensor *codes, uint32_t layer, uint32_t expert, bool fused, struct pack_source *to)
{
    const struct ir *plan = loader->request->plan;
    const char *parameter = ir_text(plan, param->name);
    const struct tensor *tensor;
    int status = find_tensor(loader, param, ir_text(plan, source->scales), layer, expert, &tensor);
    if (status != MOE_OK)
        return status;
    int64_t rows = (source->rows + param->block_rows - 1) / param->block_rows;
    int64_t cols = (param->cols + param->block_cols - 1) / param->block_cols;
    struct wanted wanted = {.fused = fused, .experts = param->shared ? param->shared : loader->info->experts};
    wanted.rows = param->transposed ? cols : rows;
    wanted.cols = param->transposed ? rows : cols;
    status = check_shape(loader, param, tensor, &wanted);
    if (status != MOE_OK)
        return status;
    int64_t packed_rows = param->transposed ? param->cols : source->rows;
    if (fused && tensor->dims == 2 && packed_rows % (param->transposed ? param->block_cols : param->block_rows))
        return fail(loader, MOE_BAD_WEIGHTS, "%s: tensor `%s`: blocks would reach from one expert into the next",
                    codes->file, codes->name);
    to->scale_dtype = scale_dtype(tensor->dtype, param->scale);
    if (!to->scale_dtype)
        return fail(loader, MOE_BAD_WEIGHTS, "%s: tensor `%s` is %s, the scales of parameter `%s` are declared %s",
                    tensor->file, tensor->name, tensor->dtype, parameter, scale_type_words[param->scale]);
    size_t slice = (size_t)(rows * cols) * element_bytes(tensor->dtype);
    to->scales = (const uint8_t *)tensor->data + (fused ? expert * slice : 0);
    to->scale_row_step = param->transposed ? 1 : cols;
    to->scale_col_step = param->transposed ? rows : 1;
    return MOE_OK;
}

static int find_source(struct loader *loader, const struct plan_param *param, const struct plan_source *source,
                       uint32_t layer, uint32_t expert)
{
    const struct ir *plan = loader->request->plan;
    const char *pattern = ir_text(plan, source->pattern), *parameter = ir_text(plan, param->name);
    const struct tensor *found;
    int status = find_tensor(loader, param, pattern, layer, expert, &found);
    if (status != MOE_OK)
        return status;
    bool fp4 = param->declared == dtype_mxfp4, fused = (param->per_expert || param->shared) && !strstr(pattern, "{expert}");
    struct tensor tensor = fp4 ? flat_blocks(found) : *found;
    struct wanted wanted = {.fused = fused, .experts = param->shared ? param->shared : loader->info->experts};
    wanted.rows = param->transposed ? param->cols : source->rows;
    wanted.cols = param->transposed ? source->rows : fp4 ? param->cols / 2 : param->cols;
    status = check_shape(loader, param, &tensor, &wanted);
    if (status != MOE_OK)
        return status;
    if (!dtype_fits(tensor.dtype, param->declared))
        return fail(loader, MOE_BAD_WEIGHTS, "%s: tensor `%s` is %s, parameter `%s` is declared %s", tensor.file,
                    tensor.name, tensor.dtype, parameter, dtype_words[param->declared]);
    size_t slice = (size_t)(wanted.rows * wanted.cols) * element_bytes(tensor.dtype);
    const uint8_t *data = tensor.data;
    struct pack_source added = {.data = data + (fused ? expert * slice : 0),
                                .dtype = found->dtype,
                                .rows = source->rows,
                                .row_step = param->transposed ? 1 : 0,
                                .col_step = param->transposed ? source->rows : 0};
    if (dtype_quantised(param->dtype))
        status = add_scales(loader, param, source, found, layer, expert, fused, &added);
    return status == MOE_OK ? add_source(loader, added) : status;
}

// --- the list of blocks ---------------------------------------------------------------------------------------------

static int add_block(struct loader *loader, const struct plan_param *param, uint32_t layer, uint32_t expert, void *to)
{
    const struct ir *plan = loader->request->plan;
    void *blocks = loader->blocks;
    if (!grow(&blocks, loader->block_count, &loader->block_capacity, sizeof(struct block)))
        return fail(loader, MOE_NO_MEMORY, "out of memory");
    loader->blocks = blocks;
    struct block *block = &loader->blocks[loader->block_count++];
    *block = (struct block){.param = param, .first_source = loader->source_count, .to = to};
    int status = MOE_OK;
    if (!loader->tensors) {
        bool router = !param->per_expert && param->rows == (int64_t)loader->info->experts;
        uint64_t key = random_key(loader->request->seed, ir_text(plan, param->name), layer, expert);
        status = add_source(
            loader, (struct pack_source){.rows = param->rows, .key = key, .scale = random_scale(param->cols, router)});
    } else
        for (uint32_t i = 0; i < param->sources.count && status == MOE_OK; i++)
            status = find_source(loader, param, ROW(plan, plan_source, param->sources.first + i), layer, expert);
    block->source_count = loader->source_count - block->first_source;
    return status;
}

/// What plan_validate does not promise about parameters, and this file relies on.
static int check_param(struct loader *loader, const struct plan_param *param)
{
    const struct ir *plan = loader->request->plan;
    const char *name = ir_text(plan, param->name);
    if (!dtype_computes(param->declared) && !dtype_quantised(param->declared))
        return fail(loader, MOE_UNSUPPORTED, "parameter `%s`: weights of this type cannot be loaded yet", name);
    if (dtype_quantised(param->declared) != dtype_quantised(param->dtype))
        return fail(loader, MOE_UNSUPPORTED, "parameter `%s`: its codes would not stay codes", name);
    int64_t needed = pack_bytes(param), rows = 0;
    if (needed < 0 || needed > param->bytes)
        return fail(loader, MOE_BAD_PLAN, "parameter `%s`: its layout needs %" PRId64 " bytes, the plan has %" PRId64,
                    name, needed, param->bytes);
    for (uint32_t i = 0; i < param->sources.count; i++) {
        int64_t more = ROW(plan, plan_source, param->sources.first + i)->rows;
        if (more <= 0 || more > param->rows - rows)
            return fail(loader, MOE_BAD_PLAN, "parameter `%s`: its sources have too many rows", name);
        rows += more;
    }
    if (loader->tensors && param->sources.count == 0)
        return fail(loader, MOE_BAD_WEIGHTS, "%s: the pipeline says of no tensor that it is parameter `%s`",
                    loader->request->path, name);
    if (param->sources.count && rows != param->rows)
        return fail(loader, MOE_BAD_PLAN, "parameter `%s`: its sources have %" PRId64 " of %" PRId64 " rows", name,
                    rows, param->rows);
    size_t scratch = pack_scratch_bytes(param);
    if (scratch > loader->scratch_bytes)
        loader->scratch_bytes = scratch;
    return MOE_OK;
}

static int list_param(struct loader *loader, uint32_t number, uint32_t layer_index, uint32_t rank_index)
{
    const struct weights_request *request = loader->request;
    const struct ir *plan = request->plan;
    const struct plan_param *param = ROW(plan, plan_param, number);
    uint32_t layer = request->layers[layer_index];
    struct rows owned = ROW(plan, plan_rank, request->ranks[rank_index])->owned;
    if (param->per_expert && owned.count == 0)
        return MOE_OK;
    uint8_t *to = request->destination(request->user, number, layer_index, rank_index);
    if (!to)
        return fail(loader, MOE_NO_MEMORY, "no memory for parameter `%s`", ir_text(plan, param->name));
    int status = MOE_OK;
    for (uint32_t i = 0; !param->per_expert && i < plan_param_blocks(param, 0) && status == MOE_OK; i++)
        status = add_block(loader, param, layer, i, to + (size_t)i * (size_t)param->bytes);
    if (!param->per_expert)
        return status;
    for (uint32_t i = 0; i < owned.count && status == MOE_OK; i++) {
        const struct plan_owner *owner = ROW(plan, plan_owner, owned.first + i);
        if (owner->local >= owned.count || owner->expert >= loader->info->experts)
            return fail(loader, MOE_BAD_PLAN, "expert %u of rank %u has no place there", owner->expert,
                        request->ranks[rank_index]);
        status = add_block(loader, param, layer, owner->expert, to + (size_t)owner->local * (size_t)param->bytes);
    }
    return status;
}

static int list_blocks(struct loader *loader)
{
    const struct weights_request *request = loader->request;
    int status = MOE_OK;
    for (uint32_t p = 0; p < COUNT(request->plan, plan_param) && status == MOE_OK; p++)
        status = check_param(loader, ROW(request->plan, plan_param, p));
    for (uint32_t r = 0; r < request->rank_count && status == MOE_OK; r++)
        if (request->ranks[r] >= COUNT(request->plan, plan_rank))
            status = fail(loader, MOE_INVALID, "there is no rank %u", request->ranks[r]);
    for (uint32_t l = 0; l < request->layer_count; l++)
        for (uint32_t r = 0; r < request->rank_count; r++)
            for (uint32_t p = 0; p < COUNT(request->plan, plan_param) && status == MOE_OK; p++)
                status = list_param(loader, p, l, r);
    return status;
}

// --- packing --------------------------------------------------------------------------------------------------------

/// Tells the kernel that whole pages of a mapped source will be, or no longer are, needed.
static void advise(const struct plan_param *param, const struct pack_source *source, int advice)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)source->data;
    size_t elements = (size_t)(source->rows * param->cols) / (param->declared == dtype_mxfp4 ? 2 : 1);
    uintptr_t end = begin + elements * element_bytes(source->dtype);
    begin = (begin + page - 1) / page * page;
    end = end / page * page;
    if (end > begin)
        madvise((void *)begin, end - begin, advice);
}

static void *pack_blocks(void *argument)
{
    struct loader *loader = argument;
    const struct weights_request *request = loader->request;
    bool reports = request->progress && pthread_equal(pthread_self(), loader->main_thread);
    void *scratch = aligned_alloc(64, (loader->scratch_bytes + 63) / 64 * 64);
    if (!scratch)
        return NULL; // the others do the work; weights_load sees what is left
    size_t at;
    while ((at = atomic_fetch_add(&loader->next, 1)) < loader->block_count) {
        const struct block *block = &loader->blocks[at];
        const struct pack_source *sources = &loader->sources[block->first_source];
        for (size_t i = 0; i < block->source_count && loader->tensors; i++)
            advise(block->param, &sources[i], MADV_WILLNEED);
        pack_block(block->param, sources, block->source_count, scratch, block->to);
        for (size_t i = 0; i < block->source_count && loader->tensors; i++)
            advise(block->param, &sources[i], MADV_DONTNEED);
        size_t done = atomic_fetch_add(&loader->done, 1) + 1;
        if (reports)
            request->progress(request->progress_user, (double)done / (double)loader->block_count);
    }
    free(scratch);
    return NULL;
}

enum { THREADS_MOST = 256 };

static int pack_all(struct loader *loader)
{
    pthread_t threads[THREADS_MOST];
    size_t wanted = loader->request->threads, started = 0;
    if (wanted > THREADS_MOST)
        wanted = THREADS_MOST;
    if (wanted > loader->block_count)
        wanted = loader->block_count;
    loader->main_thread = pthread_self();
    while (started + 1 < wanted && pthread_create(&threads[started], NULL, pack_blocks, loader) == 0)
        started++;
    pack_blocks(loader);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (atomic_load(&loader->done) != loader->block_count)
        return fail(loader, MOE_NO_MEMORY, "out of memory");
    if (loader->request->progress)
        loader->request->progress(loader->request->progress_user, 1.0);
    return MOE_OK;
}

int weights_load(const struct weights_request *request, char *error, size_t size)
{
    struct loader loader = {.request = request, .error = error, .error_size = size};
    if (COUNT(request->plan, plan_info) != 1)
        return fail(&loader, MOE_BAD_PLAN, "the plan has no plan_info");
    loader.info = ROW(request->plan, plan_info, 0);
    if (strcmp(request->path, "random") != 0) {
        loader.tensors = tensors_open(request->path, error, size);
        if (!loader.tensors)
            return errno == 0 ? MOE_BAD_WEIGHTS : errno == ENOMEM ? MOE_NO_MEMORY : MOE_IO;
    }
    int status = list_blocks(&loader);
    if (status == MOE_OK)
        status = pack_all(&loader);
    free(loader.blocks);
    free(loader.sources);
    tensors_close(loader.tensors);
    return status;
}
