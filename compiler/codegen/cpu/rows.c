// Kernels that work through rows: copy_rows (gather and convert), merge (sum of a token's replies), add.
#include "emit.h"

// about 5 us of work at a time
enum { ROW_GRAIN = 16 };

struct row_copy {
    LLVMValueRef src, dst;
    uint32_t from, to;
};

static void convert_chunk(struct emit *e, LLVMValueRef column, unsigned lanes, void *user)
{
    struct row_copy *copy = user;
    LLVMValueRef value =
        load_f32(e, offset(e, copy->src, scaled(e, column, dtype_bytes(copy->from))), copy->from, lanes);
    store_f32(e, value, offset(e, copy->dst, scaled(e, column, dtype_bytes(copy->to))), copy->to, lanes);
}

// words of 32 bits, as they are
static void copy_chunk(struct emit *e, LLVMValueRef column, unsigned lanes, void *user)
{
    struct row_copy *copy = user;
    LLVMValueRef at = scaled(e, column, 4);
    LLVMValueRef value = load(e, vector_of(e->i32, lanes), offset(e, copy->src, at), 2);
    store(e, value, offset(e, copy->dst, at), 2);
}

void generate_copy_rows(struct emit *e, struct plan_kernel *kernel, const char *name)
{
    const int64_t *n = kernel->n;
    struct row_copy copy = {.from = (uint32_t)n[1], .to = (uint32_t)n[2]};
    kernel_function(e, name);
    LLVMValueRef table = kernel_argument(e, COPY_CONTROL);
    LLVMValueRef sources = field(e, e->ptr, table, offsetof(struct moe_row_table, src));
    LLVMValueRef targets = field(e, e->ptr, table, offsetof(struct moe_row_table, dst));
    struct loop rows = loop_begin(e, e->begin, e->end, 1, NULL, 0);
    copy.src = element(e, e->ptr, 8, sources, rows.index);
    copy.dst = element(e, e->ptr, 8, targets, rows.index);
    if (copy.from == copy.to)
        for_chunks(e, n[0] * dtype_bytes(copy.from) / 4, 4, copy_chunk, &copy);
    else
        for_chunks(e, n[0], 2, convert_chunk, &copy);
    loop_end(e, &rows, NULL);
    LLVMBuildRetVoid(e->builder);

    kernel->unit = work_unit_rows;
    kernel->grain = ROW_GRAIN;
}

struct merging {
    LLVMValueRef replies, first, end, y;
    uint32_t from, to;
};

static void merge_chunk(struct emit *e, LLVMValueRef column, unsigned lanes, void *user)
{
    struct merging *merge = user;
    LLVMValueRef sum = splat_f32(e, 0, lanes), at = scaled(e, column, dtype_bytes(merge->from));
    struct loop replies = loop_begin(e, merge->first, merge->end, 1, &sum, 1);
    LLVMValueRef reply = element(e, e->ptr, 8, merge->replies, replies.index);
    sum = LLVMBuildFAdd(e->builder, sum, load_f32(e, offset(e, reply, at), merge->from, lanes), "");
    loop_end(e, &replies, &sum);
    store_f32(e, sum, offset(e, merge->y, scaled(e, column, dtype_bytes(merge->to))), merge->to, lanes);
}

void generate_merge(struct emit *e, struct plan_kernel *kernel, const char *name)
{
    const int64_t *n = kernel->n;
    struct merging merge = {.from = (uint32_t)n[1], .to = (uint32_t)n[2]};
    kernel_function(e, name);
    LLVMValueRef bins = kernel_argument(e, MERGE_BINS), y = kernel_argument(e, MERGE_Y);
    LLVMValueRef firsts = field(e, e->ptr, bins, offsetof(struct moe_bins_head, merge_first));
    merge.replies = field(e, e->ptr, bins, offsetof(struct moe_bins_head, merge_rows));
    struct loop tokens = loop_begin(e, e->begin, e->end, 1, NULL, 0);
    merge.first = element(e, e->i64, 8, firsts, tokens.index);
    merge.end = element(e, e->i64, 8, firsts, LLVMBuildAdd(e->builder, tokens.index, const_i64(e, 1), ""));
    merge.y = offset(e, y, scaled(e, tokens.index, n[0] * dtype_bytes(merge.to)));
    for_chunks(e, n[0], 1, merge_chunk, &merge);
    loop_end(e, &tokens, NULL);
    LLVMBuildRetVoid(e->builder);

    kernel->unit = work_unit_tokens;
    kernel->grain = ROW_GRAIN;
}

struct adding {
    LLVMValueRef rows[3];
    uint32_t dtype;
};

static void add_chunk(struct emit *e, LLVMValueRef column, unsigned lanes, void *user)
{
    struct adding *add = user;
    LLVMValueRef at = scaled(e, column, dtype_bytes(add->dtype));
    LLVMValueRef a = load_f32(e, offset(e, add->rows[0], at), add->dtype, lanes);
    LLVMValueRef b = load_f32(e, offset(e, add->rows[1], at), add->dtype, lanes);
    store_f32(e, LLVMBuildFAdd(e->builder, a, b, ""), offset(e, add->rows[2], at), add->dtype, lanes);
}

// p: a, b, sum (slices of token rows); n: width, dtype
void generate_add(struct emit *e, struct plan_kernel *kernel, const char *name)
{
    const int64_t *n = kernel->n;
    struct adding add = {.dtype = (uint32_t)n[1]};
    kernel_function(e, name);
    LLVMValueRef bases[3];
    for (unsigned i = 0; i < 3; i++)
        bases[i] = kernel_argument(e, i);
    struct loop tokens = loop_begin(e, e->begin, e->end, 1, NULL, 0);
    for (unsigned i = 0; i < 3; i++)
        add.rows[i] = offset(e, bases[i], scaled(e, tokens.index, n[0] * dtype_bytes(add.dtype)));
    for_chunks(e, n[0], 2, add_chunk, &add);
    loop_end(e, &tokens, NULL);
    LLVMBuildRetVoid(e->builder);

    kernel->unit = work_unit_tokens;
    kernel->grain = ROW_GRAIN;
}
