// Builder helpers: constants, addresses, loops. Numbers (conversion, exp) are in numbers.c.
#include "emit.h"

#include <string.h>

void emit_init(struct emit *e, struct context *context, const struct cpu_level *level)
{
    LLVMContextRef llvm = LLVMContextCreate();
    *e = (struct emit){
        .context = context,
        .level = level,
        .llvm = llvm,
        .module = LLVMModuleCreateWithNameInContext("moecc", llvm),
        .builder = LLVMCreateBuilderInContext(llvm),
        .i8 = LLVMInt8TypeInContext(llvm),
        .i16 = LLVMInt16TypeInContext(llvm),
        .i32 = LLVMInt32TypeInContext(llvm),
        .i64 = LLVMInt64TypeInContext(llvm),
        .f32 = LLVMFloatTypeInContext(llvm),
        .ptr = LLVMPointerTypeInContext(llvm, 0),
        .none = LLVMVoidTypeInContext(llvm),
    };
}

void emit_free(struct emit *e)
{
    LLVMDisposeBuilder(e->builder);
    LLVMDisposeModule(e->module);
    LLVMContextDispose(e->llvm);
}

static void set_text_attribute(struct emit *e, LLVMValueRef function, const char *name, const char *value)
{
    LLVMAttributeRef attribute =
        LLVMCreateStringAttribute(e->llvm, name, (unsigned)strlen(name), value, (unsigned)strlen(value));
    LLVMAddAttributeAtIndex(function, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, attribute);
}

static LLVMValueRef new_function(struct emit *e, const char *name, LLVMTypeRef type)
{
    LLVMValueRef function = LLVMAddFunction(e->module, name, type);
    static const char nounwind[] = "nounwind";
    unsigned kind = LLVMGetEnumAttributeKindForName(nounwind, sizeof nounwind - 1);
    LLVMAddAttributeAtIndex(function, (LLVMAttributeIndex)LLVMAttributeFunctionIndex,
                            LLVMCreateEnumAttribute(e->llvm, kind, 0));
    // no call to memset and the like may appear: the image links with nothing
    set_text_attribute(e, function, "no-builtins", "");
    // without these the x86 backend splits 512-bit operations in halves
    const char *width = context_printf(e->context, "%u", e->level->lanes * 32);
    set_text_attribute(e, function, "prefer-vector-width", width);
    set_text_attribute(e, function, "min-legal-vector-width", width);
    set_text_attribute(e, function, "tune-cpu", e->level->tune);
    e->function = function;
    enter(e, new_block(e, "entry"));
    return function;
}

LLVMValueRef kernel_function(struct emit *e, const char *name)
{
    LLVMTypeRef params[] = {e->ptr, e->i64, e->i64, e->ptr};
    LLVMValueRef function = new_function(e, name, LLVMFunctionType(e->none, params, 4, false));
    e->args = LLVMGetParam(function, 0);
    e->begin = LLVMGetParam(function, 1);
    e->end = LLVMGetParam(function, 2);
    e->scratch = LLVMGetParam(function, 3);
    return function;
}

LLVMValueRef inner_function(struct emit *e, const char *name, LLVMTypeRef type)
{
    LLVMValueRef function = new_function(e, name, type);
    LLVMSetLinkage(function, LLVMInternalLinkage);
    return function;
}

LLVMBasicBlockRef new_block(struct emit *e, const char *name)
{
    return LLVMAppendBasicBlockInContext(e->llvm, e->function, name);
}

void enter(struct emit *e, LLVMBasicBlockRef block)
{
    LLVMPositionBuilderAtEnd(e->builder, block);
}

LLVMTypeRef vector_of(LLVMTypeRef element_type, unsigned lanes)
{
    return LLVMVectorType(element_type, lanes);
}

LLVMValueRef const_i32(struct emit *e, int64_t value)
{
    return LLVMConstInt(e->i32, (unsigned long long)value, true);
}

LLVMValueRef const_i64(struct emit *e, int64_t value)
{
    return LLVMConstInt(e->i64, (unsigned long long)value, true);
}

LLVMValueRef splat(struct emit *e, LLVMValueRef scalar, unsigned lanes)
{
    LLVMTypeRef type = vector_of(LLVMTypeOf(scalar), lanes);
    LLVMValueRef first = LLVMBuildInsertElement(e->builder, LLVMGetUndef(type), scalar, const_i32(e, 0), "");
    LLVMValueRef zeros = LLVMConstNull(vector_of(e->i32, lanes));
    return LLVMBuildShuffleVector(e->builder, first, LLVMGetUndef(type), zeros, "");
}

static LLVMValueRef const_splat(LLVMValueRef scalar, unsigned lanes)
{
    LLVMValueRef elements[64];
    for (unsigned i = 0; i < lanes; i++)
        elements[i] = scalar;
    return LLVMConstVector(elements, lanes);
}

LLVMValueRef splat_i32(struct emit *e, uint32_t value, unsigned lanes)
{
    return const_splat(LLVMConstInt(e->i32, value, false), lanes);
}

LLVMValueRef splat_f32(struct emit *e, double value, unsigned lanes)
{
    return const_splat(LLVMConstReal(e->f32, value), lanes);
}

LLVMValueRef intrinsic(struct emit *e, const char *name, LLVMTypeRef type, LLVMValueRef *args, unsigned count)
{
    unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    if (!id)
        fatal(e->context, EXIT_BUG, "this LLVM has no intrinsic %s", name);
    LLVMValueRef function = LLVMGetIntrinsicDeclaration(e->module, id, &type, type ? 1 : 0);
    return LLVMBuildCall2(e->builder, LLVMGlobalGetValueType(function), function, args, count, "");
}

LLVMValueRef offset(struct emit *e, LLVMValueRef pointer, LLVMValueRef bytes)
{
    return LLVMBuildGEP2(e->builder, e->i8, pointer, &bytes, 1, "");
}

LLVMValueRef offset_const(struct emit *e, LLVMValueRef pointer, int64_t bytes)
{
    return bytes ? offset(e, pointer, const_i64(e, bytes)) : pointer;
}

LLVMValueRef scaled(struct emit *e, LLVMValueRef index, int64_t bytes)
{
    return LLVMBuildMul(e->builder, index, const_i64(e, bytes), "");
}

LLVMValueRef load(struct emit *e, LLVMTypeRef type, LLVMValueRef pointer, unsigned align)
{
    LLVMValueRef value = LLVMBuildLoad2(e->builder, type, pointer, "");
    LLVMSetAlignment(value, align);
    return value;
}

void store(struct emit *e, LLVMValueRef value, LLVMValueRef pointer, unsigned align)
{
    LLVMSetAlignment(LLVMBuildStore(e->builder, value, pointer), align);
}

LLVMValueRef field(struct emit *e, LLVMTypeRef type, LLVMValueRef pointer, size_t at)
{
    return load(e, type, offset_const(e, pointer, (int64_t)at), type == e->i32 || type == e->f32 ? 4 : 8);
}

LLVMValueRef element(struct emit *e, LLVMTypeRef type, unsigned bytes, LLVMValueRef pointer, LLVMValueRef index)
{
    return load(e, type, offset(e, pointer, scaled(e, index, bytes)), bytes);
}

LLVMValueRef kernel_argument(struct emit *e, unsigned number)
{
    _Static_assert(offsetof(struct moe_kargs, p) == 0 && sizeof(void *) == 8, "arguments are read by offset");
    return field(e, e->ptr, e->args, number * sizeof(void *));
}

void prefetch(struct emit *e, LLVMValueRef pointer, enum prefetch_level level)
{
    LLVMValueRef args[] = {pointer, const_i32(e, 0), const_i32(e, level), const_i32(e, 1)};
    intrinsic(e, "llvm.prefetch", e->ptr, args, 4);
}

static struct loop open_loop(struct emit *e, LLVMValueRef begin, LLVMValueRef end, int64_t step, LLVMValueRef *carried,
                             unsigned count, bool once)
{
    struct loop loop = {.end = end, .step = step, .carried = count, .once = once};
    if (count > CARRIED_MAX)
        fatal(e->context, EXIT_BUG, "a loop carries %u values", count);
    LLVMBasicBlockRef before = LLVMGetInsertBlock(e->builder);
    loop.head = new_block(e, "loop");
    LLVMBuildBr(e->builder, loop.head);
    enter(e, loop.head);
    loop.index = LLVMBuildPhi(e->builder, e->i64, "");
    LLVMAddIncoming(loop.index, &begin, &before, 1);
    for (unsigned i = 0; i < count; i++) {
        loop.phis[i] = LLVMBuildPhi(e->builder, LLVMTypeOf(carried[i]), "");
        LLVMAddIncoming(loop.phis[i], &carried[i], &before, 1);
        carried[i] = loop.phis[i];
    }
    LLVMBasicBlockRef body = once ? NULL : new_block(e, "body");
    loop.exit = new_block(e, "exit");
    if (!once) {
        LLVMValueRef more = LLVMBuildICmp(e->builder, LLVMIntSLT, loop.index, end, "");
        LLVMBuildCondBr(e->builder, more, body, loop.exit);
        enter(e, body);
    }
    return loop;
}

struct loop loop_begin(struct emit *e, LLVMValueRef begin, LLVMValueRef end, int64_t step, LLVMValueRef *carried,
                       unsigned count)
{
    return open_loop(e, begin, end, step, carried, count, false);
}

struct loop loop_begin_once(struct emit *e, int64_t begin, int64_t end, int64_t step, LLVMValueRef *carried,
                            unsigned count)
{
    return open_loop(e, const_i64(e, begin), const_i64(e, end), step, carried, count, true);
}

void loop_end(struct emit *e, struct loop *loop, LLVMValueRef *carried)
{
    LLVMBasicBlockRef latch = LLVMGetInsertBlock(e->builder);
    LLVMValueRef next = LLVMBuildAdd(e->builder, loop->index, const_i64(e, loop->step), "");
    LLVMAddIncoming(loop->index, &next, &latch, 1);
    for (unsigned i = 0; i < loop->carried; i++)
        LLVMAddIncoming(loop->phis[i], &carried[i], &latch, 1);
    if (loop->once) {
        LLVMValueRef more = LLVMBuildICmp(e->builder, LLVMIntSLT, next, loop->end, "");
        LLVMBuildCondBr(e->builder, more, loop->head, loop->exit);
    } else {
        LLVMBuildBr(e->builder, loop->head);
        for (unsigned i = 0; i < loop->carried; i++)
            carried[i] = loop->phis[i];
    }
    LLVMMoveBasicBlockAfter(loop->exit, latch);
    enter(e, loop->exit);
}

LLVMBasicBlockRef if_begin(struct emit *e, LLVMValueRef condition)
{
    LLVMBasicBlockRef then = new_block(e, "then"), after = new_block(e, "after");
    LLVMBuildCondBr(e->builder, condition, then, after);
    enter(e, then);
    return after;
}

void if_end(struct emit *e, LLVMBasicBlockRef after)
{
    LLVMBuildBr(e->builder, after);
    LLVMMoveBasicBlockAfter(after, LLVMGetInsertBlock(e->builder));
    enter(e, after);
}

void for_chunks(struct emit *e, int64_t width, unsigned unroll, chunk_fn *body, void *user)
{
    unsigned lanes = e->level->lanes;
    int64_t round = (int64_t)lanes * unroll, column = width / round * round;
    if (column > 0) {
        struct loop loop = loop_begin_once(e, 0, column, round, NULL, 0);
        for (unsigned i = 0; i < unroll; i++)
            body(e, LLVMBuildAdd(e->builder, loop.index, const_i64(e, i * lanes), ""), lanes, user);
        loop_end(e, &loop, NULL);
    }
    for (; width - column >= lanes; column += lanes)
        body(e, const_i64(e, column), lanes, user);
    if (column < width)
        body(e, const_i64(e, column), (unsigned)(width - column), user);
}
