// Builder helpers of the CPU code generator: typed constants, vector loads and stores with number conversion, loops,
// exp. A thin layer over the LLVM C API, so that the kernel generators read like the loops they produce.
#ifndef MOECC_CODEGEN_CPU_EMIT_H
#define MOECC_CODEGEN_CPU_EMIT_H

#include <llvm-c/Core.h>
#include <llvm-c/TargetMachine.h>

#include "compiler/base/base.h"
#include "runtime/plan/kernels.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/roles.h"

/// What a generator needs to know of an instruction set.
struct cpu_level {
    const char *name, *triple, *cpu, *features, *tune;
    unsigned lanes;        // f32 elements of a vector register
    unsigned tile_rows;    // most rows of a fused GEMM tile that leave no accumulator spilled
    unsigned widened_rows; // the same for 16-bit weights without a dot product, which need more registers
    unsigned coded_rows;   // the same for quantised weights expanded by a tile of several panels or without dot products
    bool fma, f16c;
    bool dot_bf16; // vdpbf16ps, and byte permutes to expand quantised weights for it
    bool amx;      // tiles for products of bf16
};

enum { PANEL_VECTORS = 2, TILE_ROWS_MAX = 13, CARRIED_MAX = TILE_ROWS_MAX * PANEL_VECTORS + 2 };

struct emit {
    struct context *context;
    const struct cpu_level *level;
    LLVMContextRef llvm;
    LLVMModuleRef module;
    LLVMBuilderRef builder;
    LLVMTypeRef i8, i16, i32, i64, f32, ptr, none;
    LLVMValueRef function;                  // being built
    LLVMValueRef args, begin, end, scratch; // its parameters, when it is a kernel
};

void emit_init(struct emit *e, struct context *context, const struct cpu_level *level);
void emit_free(struct emit *e);

/// Starts a kernel with the moe_kernel_fn signature, or a tile function that only kernels of this module call.
LLVMValueRef kernel_function(struct emit *e, const char *name);
LLVMValueRef inner_function(struct emit *e, const char *name, LLVMTypeRef type);
LLVMBasicBlockRef new_block(struct emit *e, const char *name);
void enter(struct emit *e, LLVMBasicBlockRef block);

// constants and vectors; a vector has `lanes` elements
LLVMTypeRef vector_of(LLVMTypeRef element, unsigned lanes);
LLVMValueRef const_i32(struct emit *e, int64_t value);
LLVMValueRef const_i64(struct emit *e, int64_t value);
LLVMValueRef splat(struct emit *e, LLVMValueRef scalar, unsigned lanes);
LLVMValueRef splat_i32(struct emit *e, uint32_t value, unsigned lanes);
LLVMValueRef splat_f32(struct emit *e, double value, unsigned lanes);
/// The intrinsic overloaded by `type` (NULL: not overloaded), called.
LLVMValueRef intrinsic(struct emit *e, const char *name, LLVMTypeRef type, LLVMValueRef *args, unsigned count);

// addresses are bytes
LLVMValueRef offset(struct emit *e, LLVMValueRef pointer, LLVMValueRef bytes);
LLVMValueRef offset_const(struct emit *e, LLVMValueRef pointer, int64_t bytes);
LLVMValueRef scaled(struct emit *e, LLVMValueRef index, int64_t bytes);
LLVMValueRef load(struct emit *e, LLVMTypeRef type, LLVMValueRef pointer, unsigned align);
void store(struct emit *e, LLVMValueRef value, LLVMValueRef pointer, unsigned align);
/// Field at a byte offset; element `index` of an array of pointers or integers.
LLVMValueRef field(struct emit *e, LLVMTypeRef type, LLVMValueRef pointer, size_t at);
LLVMValueRef element(struct emit *e, LLVMTypeRef type, unsigned bytes, LLVMValueRef pointer, LLVMValueRef index);
LLVMValueRef kernel_argument(struct emit *e, unsigned number);
enum prefetch_level { PREFETCH_L2 = 2 };
void prefetch(struct emit *e, LLVMValueRef pointer, enum prefetch_level level);

// numbers: everything is computed in f32; narrower formats are widened and rounded to nearest even, NaN stays NaN.
// E4M3 has no infinity: what is beyond 448 becomes 448, NaN of either sign the code 0x7f. Scales are the caller's matter.
LLVMValueRef load_f32(struct emit *e, LLVMValueRef pointer, uint32_t dtype, unsigned lanes);
void store_f32(struct emit *e, LLVMValueRef value, LLVMValueRef pointer, uint32_t dtype, unsigned lanes);
/// As store_f32, for what will be multiplied as it is: denormal numbers may become zeros, as which dot products read them.
void store_operand(struct emit *e, LLVMValueRef value, LLVMValueRef pointer, uint32_t dtype, unsigned lanes);
LLVMValueRef f32_to_e4m3(struct emit *e, LLVMValueRef value, unsigned lanes); // bytes
LLVMValueRef e4m3_to_f32(struct emit *e, LLVMValueRef codes, unsigned lanes);
LLVMValueRef half_to_f32(struct emit *e, LLVMValueRef bits, unsigned lanes);
LLVMValueRef bits_to_f32(struct emit *e, LLVMValueRef bits);
LLVMValueRef f32_to_bits(struct emit *e, LLVMValueRef value);
/// Rounds to one of those formats and widens again.
LLVMValueRef rounded_to(struct emit *e, LLVMValueRef value, uint32_t dtype, unsigned lanes);
/// a * b + c, fused where the level has it; never fused otherwise, so that every use rounds alike.
LLVMValueRef multiply_add(struct emit *e, LLVMValueRef a, LLVMValueRef b, LLVMValueRef c);
/// The larger (beyond: OLT) or smaller (OGT) of x and a limit; NaN stays.
LLVMValueRef limited(struct emit *e, LLVMValueRef x, LLVMRealPredicate beyond, double limit, unsigned lanes);
/// The one exponential of all kernels: relative error about 1e-7, overflow to infinity, NaN stays.
LLVMValueRef emit_exp(struct emit *e, LLVMValueRef x, unsigned lanes);
/// factor / (1 + exp(-x))
LLVMValueRef emit_sigmoid(struct emit *e, LLVMValueRef x, LLVMValueRef factor, unsigned lanes);

/// for (index = begin; index < end; index += step), with values carried from one round to the next.
struct loop {
    LLVMValueRef index;
    LLVMValueRef end;
    int64_t step;
    LLVMBasicBlockRef head, exit;
    LLVMValueRef phis[CARRIED_MAX];
    unsigned carried;
    bool once; // runs at least once: the test stands at the bottom
};
/// carried[] holds the initial values before, the values of this round after the call.
struct loop loop_begin(struct emit *e, LLVMValueRef begin, LLVMValueRef end, int64_t step, LLVMValueRef *carried,
                       unsigned count);
struct loop loop_begin_once(struct emit *e, int64_t begin, int64_t end, int64_t step, LLVMValueRef *carried,
                            unsigned count);
/// carried[] holds the values for the next round before, the final values after the call.
void loop_end(struct emit *e, struct loop *loop, LLVMValueRef *carried);

/// if (condition) { ... }: the block to continue in is entered by if_end.
LLVMBasicBlockRef if_begin(struct emit *e, LLVMValueRef condition);
void if_end(struct emit *e, LLVMBasicBlockRef after);

/// Calls body for every chunk of a row of `width` elements (a multiple of 8): whole vectors, then what remains in
/// 8 or 4 lanes; so no masks are needed and no store goes beyond the row.
typedef void chunk_fn(struct emit *e, LLVMValueRef column, unsigned lanes, void *user);
void for_chunks(struct emit *e, int64_t width, unsigned unroll, chunk_fn *body, void *user);

// rows in wire formats: wire.c
struct wire_format {
    uint32_t dtype, block, scale; // block 0: elements as they are
};
struct wire_format wire_of_code(int64_t code); // moe_wire_code
bool wire_built(struct wire_format format);

struct wire_row {
    LLVMValueRef plain, coded; // the same row as elements and in blocks; in one place, where `elements` are as large
    uint32_t plain_dtype;
    int64_t width;
    struct wire_format format;
    uint32_t between;  // elements are rounded to it first; none: not
    uint32_t elements; // type of the codes of a row to multiply (kernels.h); none: a row on the wire
};
void pack_row(struct emit *e, const struct wire_row *row);
/// Blocks [begin, end) of it.
void pack_blocks(struct emit *e, const struct wire_row *row, LLVMValueRef begin, LLVMValueRef end);
/// From a row on the wire to one to multiply, in the same blocks.
void widen_row(struct emit *e, LLVMValueRef from, const struct wire_row *row);
/// Elements [column, column + lanes) of a row as f32; column is a multiple of lanes.
LLVMValueRef load_wire(struct emit *e, LLVMValueRef row, int64_t width, LLVMValueRef column, struct wire_format format,
                       unsigned lanes);

// generators, by role: gemm.c, route.c, rows.c
void generate_route(struct emit *e, struct plan_kernel *kernel, const char *name);
void generate_copy_rows(struct emit *e, struct plan_kernel *kernel, const char *name);
void generate_mlp_up(struct emit *e, struct plan_kernel *kernel, const char *name);
void generate_mlp_down(struct emit *e, struct plan_kernel *kernel, const char *name);
void generate_merge(struct emit *e, struct plan_kernel *kernel, const char *name);
void generate_sum_rows(struct emit *e, struct plan_kernel *kernel, const char *name);
void generate_sum(struct emit *e, struct plan_kernel *kernel, const char *name);
void generate_gate(struct emit *e, struct plan_kernel *kernel, const char *name);

/// The layout a kernel's weights have: what cpu_choose_layout gives for them.
struct plan_param kernel_weights(struct emit *e, uint32_t dtype, int64_t rows, int64_t cols, bool halves, bool router);
/// The same for the experts' weights of a kernel that multiplies rows of `operand` with them; `stored`: the three
/// constants that say how they are stored (kernels.h).
struct plan_param expert_weights(struct emit *e, uint32_t operand, const int64_t stored[3], int64_t rows, int64_t cols,
                                 bool halves);

/// Compiles the module and links it into one position-independent block (image.c). offsets[i] is where the function
/// names[i] begins.
void link_image(struct emit *e, LLVMTargetMachineRef machine, const char *const *names, size_t count, void **image,
                size_t *image_bytes, int64_t *offsets);
LLVMTargetMachineRef target_machine(struct emit *e);

#endif
