// Kernels that work through rows: copy_rows (gather and convert), merge (sum of a token's replies, added to earlier
// waves' sum), add, gate.
#include "emit.h"
#include "runtime/plan/limits.h"

// about 5 us of work at a time
enum { ROW_GRAIN = 16 };

struct row_copy {
    LLVMValueRef src, dst;
    struct wire_format from;
    uint32_t to, between; // between: rounded to on the way, none: not
    int64_t width;
};

static void convert_chunk(struct emit *e, LLVMValueRef column, unsigned lanes, void *user)
{
    struct row_copy *copy = user;
    LLVMValueRef value = load_wire(e, copy->src, copy->width, column, copy->from, lanes);
    value = rounded_to(e, value, copy->between, lanes);
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
    struct wire_format format = {dtype_fp8_e4m3, (uint32_t)n[3], (uint32_t)n[4]};
    struct row_copy copy = {.from = {.dtype = (uint32_t)n[1]}, .to = (uint32_t)n[2], .between = (uint32_t)n[6]};
    copy.width = n[0];
    if (n[1] == dtype_fp8_e4m3)
        copy.from = format;
    kernel_function(e, name);
    LLVMValueRef table =
        offset_const(e, kernel_argument(e, COPY_CONTROL), n[5] * (int64_t)sizeof(struct moe_row_table));
    LLVMValueRef sources = field(e, e->ptr, table, offsetof(struct moe_row_table, src));
    LLVMValueRef targets = field(e, e->ptr, table, offsetof(struct moe_row_table, dst));
    struct loop rows = loop_begin(e, e->begin, e->end, 1, NULL, 0);
    copy.src = element(e, e->ptr, 8, sources, rows.index);
    copy.dst = element(e, e->ptr, 8, targets, rows.index);
    struct wire_row row = {copy.src, copy.dst, copy.from.dtype, n[0], format, copy.between, (uint32_t)n[7]};
    if (copy.to == dtype_fp8_e4m3 && format.block && copy.from.dtype == dtype_fp8_e4m3)
        widen_row(e, copy.src, &row);
    else if (copy.to == dtype_fp8_e4m3 && format.block)
        pack_row(e, &row);
    else if (copy.from.dtype == copy.to)
        for_chunks(e, n[0] * dtype_bytes(copy.to) / 4, 4, copy_chunk, &copy);
    else
        for_chunks(e, n[0], 2, convert_chunk, &copy);
    loop_end(e, &rows, NULL);
    LLVMBuildRetVoid(e->builder);

    kernel->unit = work_unit_rows;
    kernel->grain = ROW_GRAIN;
}

struct merging {
    LLVMValueRef replies, first, end, y;
    LLVMValueRef before; // f32 row of earlier waves' sum, or NULL
    struct wire_format formats[1 + MOE_MAX_WIRES]; // by the mark of a reply's pointer; dtype none: does not occur
    bool marked;                                   // several occur
    uint32_t to;
    int64_t width;
};

// a reply's elements, whatever its pointer says that it holds
static LLVMValueRef load_reply(struct emit *e, const struct merging *merge, LLVMValueRef reply, LLVMValueRef column,
                               unsigned lanes)
{
    LLVMBuilderRef b = e->builder;
    if (!merge->marked)
        return load_wire(e, reply, merge->width, column, merge->formats[0], lanes);
    LLVMBasicBlockRef after = new_block(e, "loaded"), other = new_block(e, "no_format");
    LLVMValueRef mark = LLVMBuildAnd(b, LLVMBuildPtrToInt(b, reply, e->i64, ""), const_i64(e, 15), "");
    LLVMValueRef choice = LLVMBuildSwitch(b, mark, other, 1 + MOE_MAX_WIRES), values[1 + MOE_MAX_WIRES];
    LLVMBasicBlockRef blocks[1 + MOE_MAX_WIRES];
    unsigned count = 0;
    for (unsigned i = 0; i <= MOE_MAX_WIRES; i++) {
        if (merge->formats[i].dtype == dtype_none)
            continue;
        blocks[count] = new_block(e, "reply");
        LLVMAddCase(choice, const_i64(e, i), blocks[count]);
        enter(e, blocks[count]);
        values[count] =
            load_wire(e, offset_const(e, reply, -(int64_t)i), merge->width, column, merge->formats[i], lanes);
        LLVMBuildBr(b, after);
        count++;
    }
    enter(e, other);
    LLVMBuildUnreachable(b);
    LLVMMoveBasicBlockAfter(after, other);
    enter(e, after);
    LLVMValueRef value = LLVMBuildPhi(b, vector_of(e->f32, lanes), "");
    LLVMAddIncoming(value, values, blocks, count);
    return value;
}

static void merge_chunk(struct emit *e, LLVMValueRef column, unsigned lanes, void *user)
{
    struct merging *merge = user;
    LLVMValueRef sum = splat_f32(e, 0, lanes);
    if (merge->before)
        sum = load_f32(e, offset(e, merge->before, scaled(e, column, 4)), dtype_f32, lanes);
    struct loop replies = loop_begin(e, merge->first, merge->end, 1, &sum, 1);
    LLVMValueRef reply = element(e, e->ptr, 8, merge->replies, replies.index);
    sum = LLVMBuildFAdd(e->builder, sum, load_reply(e, merge, reply, column, lanes), "");
    loop_end(e, &replies, &sum);
    store_f32(e, sum, offset(e, merge->y, scaled(e, column, dtype_bytes(merge->to))), merge->to, lanes);
}

void generate_merge(struct emit *e, struct plan_kernel *kernel, const char *name)
{
    const int64_t *n = kernel->n;
    struct merging merge = {.formats = {{.dtype = (uint32_t)n[1]}}, .to = (uint32_t)n[2], .width = n[0]};
    for (int64_t i = 0; i < n[4]; i++) {
        struct wire_format format = wire_of_code(n[5 + i]);
        if (format.block || format.dtype != merge.formats[0].dtype) {
            merge.formats[1 + i] = format;
            merge.marked = true;
        }
    }
    kernel_function(e, name);
    LLVMValueRef bins = kernel_argument(e, MERGE_BINS), y = kernel_argument(e, MERGE_Y);
    LLVMValueRef firsts = field(e, e->ptr, bins, offsetof(struct moe_bins_head, merge_first));
    merge.replies = field(e, e->ptr, bins, offsetof(struct moe_bins_head, merge_rows));
    struct loop tokens = loop_begin(e, e->begin, e->end, 1, NULL, 0);
    merge.first = element(e, e->i64, 8, firsts, tokens.index);
    merge.end = element(e, e->i64, 8, firsts, LLVMBuildAdd(e->builder, tokens.index, const_i64(e, 1), ""));
    merge.y = offset(e, y, scaled(e, tokens.index, n[0] * dtype_bytes(merge.to)));
    if (n[3])
        merge.before = offset(e, kernel_argument(e, MERGE_SUM), scaled(e, tokens.index, n[0] * 4));
    for_chunks(e, n[0], 1, merge_chunk, &merge);
    loop_end(e, &tokens, NULL);
    LLVMBuildRetVoid(e->builder);

    kernel->unit = work_unit_tokens;
    kernel->grain = ROW_GRAIN;
}

void generate_sum_rows(struct emit *e, struct plan_kernel *kernel, const char *name)
{
    const int64_t *n = kernel->n;
    struct merging merge = {.formats = {{.dtype = (uint32_t)n[1]}}, .to = (uint32_t)n[1], .width = n[0]};
    kernel_function(e, name);
    LLVMValueRef table = kernel_argument(e, SUM_CONTROL);
    LLVMValueRef targets = field(e, e->ptr, table, offsetof(struct moe_row_table, dst));
    LLVMValueRef firsts = field(e, e->ptr, table, offsetof(struct moe_sums_head, first));
    merge.replies = field(e, e->ptr, table, offsetof(struct moe_sums_head, parts));
    struct loop rows = loop_begin(e, e->begin, e->end, 1, NULL, 0);
    merge.first = element(e, e->i64, 8, firsts, rows.index);
    merge.end = element(e, e->i64, 8, firsts, LLVMBuildAdd(e->builder, rows.index, const_i64(e, 1), ""));
    merge.y = element(e, e->ptr, 8, targets, rows.index);
    for_chunks(e, n[0], 1, merge_chunk, &merge);
    loop_end(e, &rows, NULL);
    LLVMBuildRetVoid(e->builder);

    kernel->unit = work_unit_rows;
    kernel->grain = ROW_GRAIN;
}

/// An element-wise operator at work: its operands and last the result, each at the current row (a vector: at its begin).
struct elementwise {
    LLVMValueRef row[MOE_MAX_ARGS];
    uint32_t dtype[MOE_MAX_ARGS], count;
};

static LLVMValueRef at_column(struct emit *e, const struct elementwise *o, uint32_t operand, LLVMValueRef column)
{
    return offset(e, o->row[operand], scaled(e, column, dtype_bytes(o->dtype[operand])));
}

/// `add` and `shift`: the sum of the operands.
static void sum_chunk(struct emit *e, LLVMValueRef column, unsigned lanes, void *user)
{
    const struct elementwise *o = user;
    LLVMValueRef a = load_f32(e, at_column(e, o, 0, column), o->dtype[0], lanes);
    LLVMValueRef b = load_f32(e, at_column(e, o, 1, column), o->dtype[1], lanes);
    store_f32(e, LLVMBuildFAdd(e->builder, a, b, ""), at_column(e, o, 2, column), o->dtype[2], lanes);
}

/// Begins a row operator's loop over tokens and finds its operands there.
static struct loop begin_rows(struct emit *e, const struct plan_kernel *kernel, const char *name, struct elementwise *o)
{
    const struct role_spec *spec = &role_specs[kernel->role];
    LLVMValueRef base[MOE_MAX_ARGS];
    kernel_function(e, name);
    o->count = spec->most;
    for (uint32_t i = 0, values = 0; i < o->count; i++) {
        base[i] = kernel_argument(e, i);
        o->dtype[i] = spec->args[i] == ARG_VECTOR ? dtype_f32 : (uint32_t)kernel->n[++values];
    }
    struct loop tokens = loop_begin(e, e->begin, e->end, 1, NULL, 0);
    for (uint32_t i = 0; i < o->count; i++)
        o->row[i] = spec->args[i] == ARG_VECTOR
                        ? base[i]
                        : offset(e, base[i], scaled(e, tokens.index, kernel->n[0] * dtype_bytes(o->dtype[i])));
    return tokens;
}

static void end_rows(struct emit *e, struct plan_kernel *kernel, struct loop *tokens)
{
    loop_end(e, tokens, NULL);
    LLVMBuildRetVoid(e->builder);
    kernel->unit = work_unit_tokens;
    kernel->grain = ROW_GRAIN;
}

void generate_sum(struct emit *e, struct plan_kernel *kernel, const char *name)
{
    struct elementwise o;
    struct loop tokens = begin_rows(e, kernel, name, &o);
    for_chunks(e, kernel->n[0], 2, sum_chunk, &o);
    end_rows(e, kernel, &tokens);
}

struct gating {
    struct elementwise o;
    LLVMValueRef factor;
};

// x . w from `column` on, added lane by lane
static LLVMValueRef products(struct emit *e, const struct gating *gate, LLVMValueRef column, LLVMValueRef sum,
                             unsigned lanes)
{
    const struct elementwise *o = &gate->o;
    LLVMValueRef x = load_f32(e, at_column(e, o, GATE_X, column), o->dtype[GATE_X], lanes);
    return multiply_add(e, x, load_f32(e, at_column(e, o, GATE_W, column), dtype_f32, lanes), sum);
}

// In one order whatever the row's company: lanes by ascending column, then the lanes, then what is left of the row.
static LLVMValueRef row_product(struct emit *e, const struct gating *gate, int64_t width)
{
    unsigned lanes = e->level->lanes;
    int64_t whole = width / lanes * lanes;
    LLVMValueRef total = LLVMConstReal(e->f32, 0);
    if (whole > 0) {
        LLVMValueRef sum = splat_f32(e, 0, lanes);
        struct loop loop = loop_begin_once(e, 0, whole, lanes, &sum, 1);
        sum = products(e, gate, loop.index, sum, lanes);
        loop_end(e, &loop, &sum);
        LLVMValueRef args[] = {total, sum};
        total = intrinsic(e, "llvm.vector.reduce.fadd", LLVMTypeOf(sum), args, 2);
    }
    if (whole < width) {
        unsigned rest = (unsigned)(width - whole);
        LLVMValueRef sum = products(e, gate, const_i64(e, whole), splat_f32(e, 0, rest), rest);
        LLVMValueRef args[] = {total, sum};
        total = intrinsic(e, "llvm.vector.reduce.fadd", LLVMTypeOf(sum), args, 2);
    }
    return total;
}

static void gate_chunk(struct emit *e, LLVMValueRef column, unsigned lanes, void *user)
{
    const struct gating *gate = user;
    const struct elementwise *o = &gate->o;
    LLVMValueRef y = load_f32(e, at_column(e, o, GATE_Y, column), o->dtype[GATE_Y], lanes);
    LLVMValueRef value = LLVMBuildFMul(e->builder, y, splat(e, gate->factor, lanes), "");
    store_f32(e, value, at_column(e, o, GATE_RESULT, column), o->dtype[GATE_RESULT], lanes);
}

void generate_gate(struct emit *e, struct plan_kernel *kernel, const char *name)
{
    unsigned lanes = e->level->lanes;
    struct gating gate;
    struct loop tokens = begin_rows(e, kernel, name, &gate.o);
    LLVMValueRef product = splat(e, row_product(e, &gate, kernel->n[0]), lanes);
    LLVMValueRef factors = emit_sigmoid(e, product, splat_f32(e, 1, lanes), lanes);
    gate.factor = LLVMBuildExtractElement(e->builder, factors, const_i32(e, 0), "");
    for_chunks(e, kernel->n[0], 2, gate_chunk, &gate);
    end_rows(e, kernel, &tokens);
}
