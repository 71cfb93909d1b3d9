// Instruction-set levels, the choice of weight layouts, and the table of generators: which role becomes which code.
#include "cpu.h"
#include "compiler/base/diag.h"
#include "emit.h"
#include "runtime/device/machine.h"

#include <elf.h>
#include <llvm-c/Analysis.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
#define X86 .triple = "x86_64-unknown-linux-gnu"
#define AVX512                                                                                                         \
    X86, .cpu = "x86-64-v4", .tune = "x86-64-v4", .lanes = 16, .tile_rows = 13, .widened_rows = 11, .coded_rows = 8,   \
    .fma = true, .f16c = true
// clang-format on

enum { LEVEL_V2, LEVEL_V3, LEVEL_V4, LEVEL_BF16, LEVEL_AMX, LEVEL_NEON, LEVEL_COUNT };

// Those of x86-64 in ascending order: each runs the code of those before it. Without -prefer-256-bit 512-bit operations
// are split.
static const struct cpu_level levels[LEVEL_COUNT] = {
    [LEVEL_V2] = {.name = "v2",
                  X86,
                  .cpu = "x86-64-v2",
                  .features = "",
                  .tune = "x86-64-v2",
                  .lanes = 4,
                  .tile_rows = 4,
                  .widened_rows = 4,
                  .coded_rows = 2},
    [LEVEL_V3] = {.name = "v3",
                  X86,
                  .cpu = "x86-64-v3",
                  .features = "",
                  .tune = "x86-64-v3",
                  .lanes = 8,
                  .tile_rows = 6,
                  .widened_rows = 5,
                  .coded_rows = 3,
                  .fma = true,
                  .f16c = true},
    [LEVEL_V4] = {.name = "v4", .features = "-prefer-256-bit", AVX512},
    [LEVEL_BF16] = {.name = "bf16", .features = "-prefer-256-bit,+avx512bf16,+avx512vbmi", AVX512, .dot_bf16 = true},
    [LEVEL_AMX] = {.name = "amx",
                   .features = "-prefer-256-bit,+avx512bf16,+avx512vbmi,+amx-tile,+amx-bf16",
                   AVX512,
                   .dot_bf16 = true,
                   .amx = true},
    [LEVEL_NEON] = {.name = "neon",
                    .triple = "aarch64-unknown-linux-gnu",
                    .cpu = "generic",
                    .features = "",
                    .tune = "neoverse-n1",
                    .lanes = 4,
                    .tile_rows = 12,
                    .widened_rows = 10,
                    .coded_rows = 4,
                    .fma = true,
                    .f16c = true},
};

static unsigned best_level(void)
{
    unsigned best = LEVEL_COUNT;
    while (best > 0 && !machine_runs(levels[--best].name)) {
    }
    return best;
}

static const struct cpu_level *level_named(const char *name)
{
    if (!name)
        return &levels[best_level()];
    for (unsigned i = 0; i < LEVEL_COUNT; i++)
        if (strcmp(levels[i].name, name) == 0)
            return &levels[i];
    return NULL;
}

const char *cpu_level_name(const char *level)
{
    const struct cpu_level *found = level_named(level);
    return found ? found->name : NULL;
}

const char *const *cpu_levels_of_build(void)
{
    static const char *names[LEVEL_COUNT + 1];
    unsigned count = 0;
    for (unsigned i = 0; i < LEVEL_COUNT; i++)
        if (!strcmp(levels[i].triple, levels[best_level()].triple))
            names[count++] = levels[i].name;
    return names;
}

unsigned cpu_level_machine(const char *level)
{
    const struct cpu_level *found = level_named(level);
    return found == &levels[LEVEL_NEON] ? EM_AARCH64 : EM_X86_64;
}

bool cpu_level_runs_here(const char *level)
{
    const struct cpu_level *found = level_named(level);
    return found && machine_runs(found->name);
}

bool cpu_reads_by_row(const char *level, const struct plan_param *weights)
{
    const struct cpu_level *found = level_named(level);
    return found && weights->layout == layout_panels && !found->amx && !weights->split;
}

/// Codes lie k by k, a byte or a nibble a column; for the dot product, whose operand is pairs, in pairs of k and in the
/// order that unpacking bytes to words puts right. The lower nibble is the earlier k.
static bool choose_codes(const struct cpu_level *level, struct plan_param *param, uint32_t dtype)
{
    bool blocks = param->block_rows > 0 && param->block_cols > 0 && param->block_cols % 8 == 0;
    if (!blocks || !dtype_computes(param->operand) || param->rows <= 0 || param->cols <= 0 || param->cols % 8)
        return false;
    if (dtype == dtype_mxfp4 && (param->block_rows != 1 || param->block_cols != 32))
        return false;
    param->dtype = dtype;
    param->layout = layout_panels;
    param->panel = (int64_t)level->lanes * PANEL_VECTORS;
    param->split = level->dot_bf16 && param->operand == dtype_bf16;
    param->group = (param->split ? 2 : 1) * (dtype == dtype_mxfp4 ? 2 : 1);
    bool alike = dtype != dtype_mxfp4 && param->scale_run % level->lanes == 0;
    param->scales = alike ? PANEL_VECTORS : param->panel;
    param->bytes = plan_packed_bytes(param);
    return true;
}

static bool choose_layout(const struct cpu_level *level, struct plan_param *param)
{
    uint32_t dtype = param->dtype != dtype_none ? param->dtype : param->per_expert ? param->declared : dtype_f32;
    if (dtype_quantised(dtype))
        return !param->vector && choose_codes(level, param, dtype);
    unsigned bytes = dtype == dtype_f32 ? 4 : dtype == dtype_bf16 || dtype == dtype_f16 ? 2 : 0;
    if (!bytes || param->rows <= 0 || param->cols <= 0)
        return false;
    if (param->vector) { // read along its elements: f32, as it is
        param->dtype = dtype_f32;
        param->layout = layout_rows;
        param->panel = param->group = 1;
        param->bytes = (param->rows * param->cols * 4 + 63) / 64 * 64;
        return true;
    }
    param->dtype = dtype;
    param->layout = layout_panels;
    param->panel = (int64_t)level->lanes * PANEL_VECTORS;
    param->group = dtype == dtype_bf16 ? 2 : 1;
    param->bytes = plan_round_up(plan_panels(param) * plan_panel_bytes(param), 64);
    return true;
}

bool cpu_choose_layout(const char *level, struct plan_param *param)
{
    const struct cpu_level *found = level_named(level);
    return found && choose_layout(found, param);
}

struct plan_param kernel_weights(struct emit *e, uint32_t dtype, int64_t rows, int64_t cols, bool halves, bool router)
{
    struct plan_param param = {.per_expert = !router, .declared = dtype, .rows = rows, .cols = cols, .halves = halves};
    if (!choose_layout(e->level, &param))
        fatal(e->context, EXIT_BUG, "no layout for %s weights of %lld x %lld", dtype_words[dtype], (long long)rows,
              (long long)cols);
    return param;
}

struct plan_param expert_weights(struct emit *e, uint32_t operand, const int64_t stored[3], int64_t rows, int64_t cols,
                                 bool halves)
{
    if (!stored[0])
        return kernel_weights(e, operand, rows, cols, halves, false);
    struct plan_param param = {.per_expert = true,
                               .declared = (uint32_t)stored[0],
                               .operand = operand,
                               .rows = rows,
                               .cols = cols,
                               .halves = halves,
                               .block_rows = 1,
                               .block_cols = stored[1],
                               .scale_run = stored[2] == PANEL_VECTORS ? e->level->lanes : 1};
    if (!choose_layout(e->level, &param) || param.scales != stored[2])
        fatal(e->context, EXIT_BUG, "no layout for %s weights of %lld x %lld", dtype_words[param.declared],
              (long long)rows, (long long)cols);
    return param;
}

static bool computes(int64_t dtype)
{
    return dtype > 0 && dtype_computes((uint32_t)dtype);
}

static bool can_route(const int64_t *n)
{
    bool sizes = n[0] > 0 && n[0] % 8 == 0 && n[1] > 0 && n[2] > 0 && n[2] <= n[1];
    bool scored =
        n[3] == score_softmax || n[3] == score_softmax_after || n[3] == score_sigmoid || n[3] == score_sparsemixer ||
        n[3] == score_cosine;
    bool grouped = n[6] > 0 && n[1] % n[6] == 0 && n[7] > 0 && n[7] <= n[6] && n[2] <= n[1] / n[6] * n[7];
    return sizes && scored && grouped && computes(n[5]);
}

// Elements as they are: E4M3 without scales too.
static bool can_copy(const int64_t *n)
{
    struct wire_format blocks = {dtype_fp8_e4m3, (uint32_t)n[3], (uint32_t)n[4]};
    bool from = computes(n[1]) || n[1] == dtype_fp8_e4m3, to = computes(n[2]) || n[2] == dtype_fp8_e4m3;
    bool plain = n[4] == scale_type_none, coded = (computes(n[1]) || computes(n[2])) && wire_built(blocks);
    if (n[7]) // rows to multiply: from their type, or from the wire
        return n[0] > 0 && n[0] % 8 == 0 && from && n[2] == dtype_fp8_e4m3 && wire_built(blocks) && computes(n[7]) &&
               (n[6] == dtype_none || computes(n[6]));
    return n[0] > 0 && n[0] % 8 == 0 && from && to && (plain || coded) && n[5] >= 0 && n[5] < TABLES_END &&
           (n[6] == dtype_none || computes(n[6]));
}

/// How weights are stored: as their rows are, or as codes with scales.
static bool can_expand(const int64_t *stored)
{
    bool codes = stored[0] > 0 && dtype_quantised((uint32_t)stored[0]);
    return !stored[0] || (codes && stored[1] > 0 && stored[1] % 8 == 0 && stored[2] > 0);
}

/// Rows coded as the weights are, in blocks of as many columns.
static bool can_code(const int64_t *n, int64_t dtype)
{
    struct wire_format format = wire_of_code(n[11]);
    return !n[11] || (n[8] == dtype_fp8_e4m3 && format.dtype == dtype_fp8_e4m3 && format.block == 128 && n[9] == 128 &&
                      wire_built(format) && dtype != dtype_f32);
}

static bool can_up(const int64_t *n)
{
    return can_expand(n + 8) && can_code(n, n[3]) && n[0] > 0 && n[0] % 8 == 0 && n[1] > 0 && n[2] >= 0 &&
           n[2] < activation_words_count && computes(n[3]) &&
           !((n[7] & MLP_PLAIN) && n[2] == activation_clamped_silu);
}

static bool can_down(const int64_t *n)
{
    return can_expand(n + 8) && can_code(n, n[2]) && n[0] > 0 && n[0] % 8 == 0 && n[1] > 0 && n[1] % 8 == 0 && computes(n[2]) && computes(n[3]);
}

static bool can_merge(const int64_t *n)
{
    for (int64_t i = 0; i < n[4] && i < 4; i++)
        if (!wire_built(wire_of_code(n[5 + i])))
            return false;
    return n[0] > 0 && n[0] % 8 == 0 && computes(n[1]) && computes(n[2]) && n[4] >= 0 && n[4] <= 4;
}

static bool can_sum(const int64_t *n)
{
    return n[0] > 0 && n[0] % 8 == 0 && computes(n[1]);
}

/// Row operators: every operand's type.
static bool can_rows(const struct plan_kernel *kernel)
{
    const struct role_spec *spec = &role_specs[kernel->role];
    bool can = kernel->n[0] > 0 && kernel->n[0] % 8 == 0;
    for (uint32_t i = 0, values = 0; i < spec->most; i++)
        can = can && (spec->args[i] == ARG_VECTOR || computes(kernel->n[++values]));
    return can;
}

static const struct {
    bool (*can)(const int64_t *n); // NULL: a row operator
    void (*generate)(struct emit *e, struct plan_kernel *kernel, const char *name);
} generators[kernel_role_words_count] = {
    [kernel_role_route] = {can_route, generate_route}, [kernel_role_copy_rows] = {can_copy, generate_copy_rows},
    [kernel_role_mlp_up] = {can_up, generate_mlp_up},  [kernel_role_mlp_down] = {can_down, generate_mlp_down},
    [kernel_role_merge] = {can_merge, generate_merge}, [kernel_role_add] = {NULL, generate_sum},
    [kernel_role_gate] = {NULL, generate_gate},        [kernel_role_sum_rows] = {can_sum, generate_sum_rows},
    [kernel_role_shift] = {NULL, generate_sum},
};

bool cpu_has_kernel(const struct plan_kernel *kernel)
{
    return kernel->role < kernel_role_words_count && generators[kernel->role].generate &&
           (role_specs[kernel->role].row_operator ? can_rows(kernel) : generators[kernel->role].can(kernel->n));
}

struct generated {
    const char **names;          // one a distinct function
    struct plan_kernel *kernels; // what the generator filled in
    uint32_t *function_of;       // plan_kernel -> function, NONE: built in
    uint32_t count;
};

static bool same_code(const struct plan_kernel *a, const struct plan_kernel *b)
{
    return a->role == b->role && memcmp(a->n, b->n, sizeof a->n) == 0 && a->scale == b->scale && a->alpha == b->alpha &&
           a->limit == b->limit && a->temperature == b->temperature && a->noise == b->noise && a->seed == b->seed;
}

static uint32_t function_for(struct emit *e, struct generated *all, const struct plan_kernel *kernel)
{
    for (uint32_t i = 0; i < all->count; i++)
        if (same_code(&all->kernels[i], kernel))
            return i;
    uint32_t number = all->count++;
    all->names[number] = context_printf(e->context, "%s_%u", kernel_role_words[kernel->role], number);
    all->kernels[number] = *kernel;
    generators[kernel->role].generate(e, &all->kernels[number], all->names[number]);
    return number;
}

static bool generate_all(struct emit *e, const struct ir *plan, struct generated *all)
{
    uint32_t count = COUNT(plan, plan_kernel);
    all->names = context_alloc(e->context, (count + 1) * sizeof *all->names);
    all->kernels = context_alloc(e->context, (count + 1) * sizeof *all->kernels);
    all->function_of = context_alloc(e->context, (count + 1) * sizeof *all->function_of);
    for (uint32_t i = 0; i < count; i++) {
        const struct plan_kernel *kernel = ROW(plan, plan_kernel, i);
        all->function_of[i] = NONE;
        if (kernel->builtin)
            continue;
        if (!cpu_has_kernel(kernel)) {
            diag_error(e->context, E0901, (struct span){0}, "kernel `%s` has no CPU code yet",
                       ir_text(plan, kernel->name));
            return false;
        }
        all->function_of[i] = function_for(e, all, kernel);
    }
#ifndef NDEBUG
    char *message = NULL;
    if (LLVMVerifyModule(e->module, LLVMReturnStatusAction, &message))
        fatal(e->context, EXIT_BUG, "generated code is malformed: %s", message);
    LLVMDisposeMessage(message);
#endif
    return true;
}

static void record(struct ir *plan, const struct generated *all, const int64_t *offsets)
{
    for (uint32_t i = 0; i < COUNT(plan, plan_kernel); i++) {
        uint32_t function = all->function_of[i];
        if (function == NONE)
            continue;
        struct plan_kernel *kernel = ROW(plan, plan_kernel, i);
        const struct plan_kernel *from = &all->kernels[function];
        kernel->code_offset = offsets[function];
        kernel->unit = from->unit;
        kernel->unit_count = from->unit_count;
        kernel->grain = from->grain;
        kernel->scratch_bytes = from->scratch_bytes;
    }
}

static bool choose_layouts(struct context *context, struct ir *plan, const struct cpu_level *level)
{
    for (uint32_t i = 0; i < COUNT(plan, plan_param); i++) {
        struct plan_param *param = ROW(plan, plan_param, i);
        if (choose_layout(level, param))
            continue;
        diag_error(context, E0901, (struct span){0}, "weights `%s` have no CPU layout yet", ir_text(plan, param->name));
        return false;
    }
    return true;
}

static const struct cpu_level *known_level(struct context *context, const char *name)
{
    const struct cpu_level *level = level_named(name);
    if (!level)
        diag_error(context, E0901, (struct span){0}, "there is no CPU level `%s`", name);
    return level;
}

/// The module of all kernels of a plan. LLVM's things are released with the context where generation leaves through
/// `fatal`.
struct generation {
    struct emit e;
    LLVMTargetMachineRef machine;
    struct generated all;
    void **slot;
};

static void release_generation(void *held)
{
    struct generation *g = held;
    if (g->machine)
        LLVMDisposeTargetMachine(g->machine);
    emit_free(&g->e);
}

static struct generation *generation_begin(struct context *context, const struct cpu_level *level)
{
    struct generation *g = context_alloc(context, sizeof *g);
    g->slot = context_slot(context, release_generation);
    emit_init(&g->e, context, level);
    *g->slot = g;
    g->machine = target_machine(&g->e);
    return g;
}

static void generation_end(struct generation *g)
{
    *g->slot = NULL;
    release_generation(g);
}

bool codegen_cpu(struct context *context, struct ir *plan, const char *level_name, void **image, size_t *image_bytes)
{
    const struct cpu_level *level = known_level(context, level_name);
    if (!level || !choose_layouts(context, plan, level))
        return false;
    struct generation *g = generation_begin(context, level);
    bool good = generate_all(&g->e, plan, &g->all);
    if (good) {
        int64_t *offsets = context_alloc(context, (g->all.count + 1) * sizeof *offsets);
        str_id name = ir_str(plan, level->name);
        link_image(&g->e, g->machine, g->all.names, g->all.count, image, image_bytes, offsets);
        record(plan, &g->all, offsets);
        if (COUNT(plan, plan_info) > 0)
            ROW(plan, plan_info, 0)->cpu_level = name;
    }
    generation_end(g);
    return good;
}

bool codegen_cpu_print(struct context *context, const struct ir *plan, const char *level_name, FILE *out)
{
    const struct cpu_level *level = known_level(context, level_name);
    if (!level)
        return false;
    struct generation *g = generation_begin(context, level);
    bool good = generate_all(&g->e, plan, &g->all);
    if (good) {
        char *text = LLVMPrintModuleToString(g->e.module);
        fputs(text, out);
        LLVMDisposeMessage(text);
    }
    generation_end(g);
    return good;
}
