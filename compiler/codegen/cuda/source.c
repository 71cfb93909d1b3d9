// From a plan's kernels to CUDA source: the table of templates, the constants each is given, the choice of tiles.
#include "cuda.h"
#include "compiler/base/diag.h"
#include "runtime/plan/messages.h"
#include "runtime/plan/roles.h"

#include <math.h>
#include <string.h>

enum { THREADS = 128, BLOCK_M = 64, HALF = 64, COLUMNS = 64, STAGES = 3, SLICE_BYTES = 128 };
enum { CODED_THREADS = 256, CODED_BLOCK = 128 }; // tiles_fp8.h: threads, and features or k that share a scale
enum { WIDE_THREADS = 384, WIDE_BLOCK_M = 128, WIDE_BLOCK_N = 256, WIDE_STAGES = 4, BOX_ROWS = 64, SLICE = 64 }; // tiles_hopper.h
enum { ROUTE_K_STEP = 36, ROW_GRAIN = 64, TILE_GRAIN = 4 };

static const struct cuda_chip chips[] = {
    {"sm_80", 163 << 10, 164 << 10, 65536, 2048, false, false},  {"sm_86", 99 << 10, 100 << 10, 65536, 1536, false, false},
    {"sm_89", 99 << 10, 100 << 10, 65536, 1536, true, false},    {"sm_90a", 227 << 10, 228 << 10, 65536, 2048, true, true},
    {"sm_100a", 227 << 10, 228 << 10, 65536, 2048, false, false}, {"sm_120a", 99 << 10, 100 << 10, 65536, 1536, true, false},
};

const struct cuda_chip *cuda_chip(const char *name)
{
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++)
        if (!strcmp(chips[i].name, name))
            return &chips[i];
    return NULL;
}

/// What codes.h expands: whole steps of 16 k share their scales.
static bool codes_fit(const struct plan_param *param, uint32_t dtype)
{
    bool computes = dtype_computes(param->operand);
    bool blocks = param->block_rows > 0 && param->block_cols > 0 && param->block_cols % 16 == 0 && param->cols % 8 == 0;
    return computes && blocks && (dtype != dtype_mxfp4 || (param->block_rows == 1 && param->block_cols == 32));
}

bool cuda_choose_layout(struct plan_param *param)
{
    uint32_t dtype = param->dtype != dtype_none ? param->dtype : param->per_expert ? param->declared : dtype_f32;
    if (param->vector)
        dtype = dtype_f32;
    bool codes = dtype_quantised(dtype);
    if (param->rows <= 0 || param->cols <= 0 || (codes ? param->vector || !codes_fit(param, dtype) : !dtype_computes(dtype)))
        return false;
    param->dtype = dtype;
    param->layout = layout_rows;
    param->panel = param->vector ? 1 : param->halves && !codes ? 2 * HALF : COLUMNS;
    param->group = 1;
    param->split = false;
    param->scales = codes ? plan_row_scales(param) : 0;
    param->bytes = plan_round_up(plan_packed_bytes(param), 64);
    return true;
}

// ------------------------------------------------------------------------------------------------------- constants

enum constant_kind { LAST, SIZE, COUNT_OF, FLAG, WORD_OF };

/// What one of plan_kernel's n[] is called in a template.
struct constant {
    const char *name;
    enum constant_kind kind;
    const char *vocabulary; // WORD_OF: `score` of score_softmax
    const char *const *words;
};

#define WORD_NAMED(constant, kind) {constant, WORD_OF, #kind, kind##_words}

/// Everything about a role: its constants in the order of n[], what scale, alpha and limit are called.
struct role {
    struct constant n[12];
    const char *scale, *alpha, *limit;
};

static const struct role roles[kernel_role_words_count] = {
    [kernel_role_route] = {{{"HIDDEN", SIZE, 0, 0},
                            {"EXPERTS", COUNT_OF, 0, 0},
                            {"CHOICES", COUNT_OF, 0, 0},
                            WORD_NAMED("SCORE", score),
                            {"NORMALIZE", FLAG, 0, 0},
                            WORD_NAMED("SOURCE", dtype),
                            {"GROUPS", COUNT_OF, 0, 0},
                            {"GROUPS_KEPT", COUNT_OF, 0, 0},
                            WORD_NAMED("GROUP_SCORE", group_score),
                            {"BIASES", COUNT_OF, 0, 0}},
                           "SCALE",
                           "BIAS_NUMBER",
                           "LOGIT_BIAS_NUMBER"},
    [kernel_role_copy_rows] = {{{"WIDTH", SIZE, 0, 0},
                                WORD_NAMED("SOURCE", dtype),
                                WORD_NAMED("RESULT", dtype),
                                {"BLOCK", COUNT_OF, 0, 0},
                                WORD_NAMED("SCALE_TYPE", scale_type),
                                {"TABLE", COUNT_OF, 0, 0},
                                WORD_NAMED("BETWEEN", dtype),
                                WORD_NAMED("MULTIPLIED", dtype)},
                               0,
                               0,
                               0},
    [kernel_role_mlp_up] = {{{"HIDDEN", SIZE, 0, 0},
                             {"FFN", SIZE, 0, 0},
                             WORD_NAMED("ACTIVATION", activation),
                             WORD_NAMED("DTYPE", dtype),
                             {"A_STRIDE", SIZE, 0, 0},
                             {"HIDDEN_STRIDE", SIZE, 0, 0},
                             {"WEIGHTED_INPUT", FLAG, 0, 0},
                             {"FORM", COUNT_OF, 0, 0},
                             WORD_NAMED("CODES", dtype),
                             {"CODE_BLOCK", COUNT_OF, 0, 0},
                             {"CODE_SCALES", SIZE, 0, 0},
                             {"ARITHMETIC", SIZE, 0, 0}},
                            0,
                            "ALPHA",
                            "LIMIT"},
    [kernel_role_mlp_down] = {{{"FFN", SIZE, 0, 0},
                               {"WIDTH", SIZE, 0, 0},
                               WORD_NAMED("DTYPE", dtype),
                               WORD_NAMED("RESULT", dtype),
                               {"HIDDEN_STRIDE", SIZE, 0, 0},
                               {"ACC_STRIDE", SIZE, 0, 0},
                               {"UNWEIGHTED", FLAG, 0, 0},
                               {"FORM", COUNT_OF, 0, 0},
                               WORD_NAMED("CODES", dtype),
                               {"CODE_BLOCK", COUNT_OF, 0, 0},
                               {"CODE_SCALES", SIZE, 0, 0},
                               {"ARITHMETIC", SIZE, 0, 0}},
                              0,
                              0,
                              0},
    [kernel_role_merge] = {{{"WIDTH", SIZE, 0, 0},
                            WORD_NAMED("REPLY", dtype),
                            WORD_NAMED("RESULT", dtype),
                            {"ADDS", FLAG, 0, 0},
                            {"FORMATS", COUNT_OF, 0, 0},
                            {"FORMAT_1", SIZE, 0, 0},
                            {"FORMAT_2", SIZE, 0, 0},
                            {"FORMAT_3", SIZE, 0, 0},
                            {"FORMAT_4", SIZE, 0, 0}},
                           0,
                           0,
                           0},
    [kernel_role_add] =
        {{{"WIDTH", SIZE, 0, 0}, WORD_NAMED("A", dtype), WORD_NAMED("B", dtype), WORD_NAMED("RESULT", dtype)}, 0, 0, 0},
    [kernel_role_sum_rows] = {{{"WIDTH", SIZE, 0, 0}, WORD_NAMED("DTYPE", dtype)}, 0, 0, 0},
    [kernel_role_gate] =
        {{{"WIDTH", SIZE, 0, 0}, WORD_NAMED("SOURCE", dtype), WORD_NAMED("REPLY", dtype), WORD_NAMED("RESULT", dtype)},
         0,
         0,
         0},
    [kernel_role_shift] = {{{"WIDTH", SIZE, 0, 0}, WORD_NAMED("SOURCE", dtype), WORD_NAMED("RESULT", dtype)}, 0, 0, 0},
};

/// A source in the making.
struct writer {
    struct context *context;
    const char *text;
};

static void put_size(struct writer *w, const char *name, int64_t value)
{
    w->text = context_printf(w->context, "%sconstexpr int64_t %s = %lld;\n", w->text, name, (long long)value);
}

static void put_count(struct writer *w, const char *name, int64_t value)
{
    w->text = context_printf(w->context, "%sconstexpr int %s = %lld;\n", w->text, name, (long long)value);
}

static void put_number(struct writer *w, const char *name, double value)
{
    if (name && isinf(value)) // NVRTC has no constant for it; nothing but infinity is beyond the largest number
        w->text = context_printf(w->context, "%sconstexpr float %s = %s0x1.fffffep127f; // none\n", w->text, name,
                                 value < 0 ? "-" : "");
    else if (name)
        w->text = context_printf(w->context, "%sconstexpr float %s = %af; // %g\n", w->text, name, (double)(float)value,
                                 value);
}

static void put_constant(struct writer *w, const struct constant *c, int64_t value)
{
    if (c->kind == SIZE)
        put_size(w, c->name, value);
    else if (c->kind == COUNT_OF)
        put_count(w, c->name, value);
    else if (c->kind == FLAG)
        w->text = context_printf(w->context, "%sconstexpr bool %s = %s;\n", w->text, c->name, value ? "true" : "false");
    else
        w->text = context_printf(w->context, "%sconstexpr int %s = %s_%s;\n", w->text, c->name, c->vocabulary,
                                 c->words[value]);
}

// ----------------------------------------------------------------------------------------------------------- tiles

static int64_t expert_tile(int64_t experts)
{
    return experts > 64 ? 128 : experts > 32 ? 64 : 32;
}

/// What route.cu's struct Memory takes.
static int64_t route_bytes(const int64_t *n, int64_t tokens)
{
    int64_t warps = THREADS / 32, scores = 2 * tokens * n[1], chosen = warps * (n[2] + n[6]);
    return (scores + chosen) * 4 + 16 + (tokens + expert_tile(n[1])) * ROUTE_K_STEP * 4;
}

/// Most tokens of a block whose scores fit the chip; 0: not even a token a warp.
static int64_t route_tokens(const struct cuda_chip *chip, const int64_t *n)
{
    for (int64_t tokens = 16; tokens >= THREADS / 32; tokens /= 2)
        if (route_bytes(n, tokens) <= chip->shared_bytes)
            return tokens;
    return 0;
}

static bool is_plain(const struct plan_kernel *kernel)
{
    return kernel->role == kernel_role_mlp_up && (kernel->n[7] & MLP_PLAIN);
}

/// Rows of the B tile; fewer for codes that are expanded, whose sums take twice the registers. In FP8 arithmetic the hidden
/// features of a block that shares a scale.
static int64_t block_n(const struct plan_kernel *kernel)
{
    if (kernel->n[11])
        return kernel->role == kernel_role_mlp_up && !is_plain(kernel) ? 2 * CODED_BLOCK : CODED_BLOCK;
    return kernel->role == kernel_role_mlp_up && !is_plain(kernel) && !kernel->n[8] ? 2 * HALF : COLUMNS;
}

/// Element type of the rows that a product multiplies.
static uint32_t operand_of(const struct plan_kernel *kernel)
{
    return (uint32_t)kernel->n[kernel->role == kernel_role_mlp_up ? 3 : 2];
}

/// The parameters that the kernel's weights and biases are, with `cols` 1 for biases.
static struct plan_param weights_of(const struct plan_kernel *kernel, bool biases)
{
    const int64_t *n = kernel->n;
    bool up = kernel->role == kernel_role_mlp_up, gated = up && !is_plain(kernel);
    uint32_t operand = operand_of(kernel);
    struct plan_param param = {.dtype = biases ? dtype_f32 : n[8] ? (uint32_t)n[8] : operand,
                               .operand = operand,
                               .rows = gated ? 2 * n[1] : n[1],
                               .cols = biases ? 1 : n[0],
                               .block_rows = 1,
                               .block_cols = n[9],
                               .halves = gated};
    cuda_choose_layout(&param);
    return param;
}

/// Rows of the B tile by warpgroups; fewer for codes, as above.
static int64_t wide_block_n(const struct plan_kernel *kernel)
{
    return kernel->n[8] && !kernel->n[11] ? WIDE_BLOCK_N / 2 : WIDE_BLOCK_N;
}

/// What a slot of codes.h takes for `rows` rows.
static int64_t code_slot_bytes(const struct plan_param *weights, int64_t rows)
{
    int64_t slice = SLICE_BYTES / dtype_bytes(weights->operand), part = slice;
    while (weights->block_cols % part != 0)
        part /= 2;
    return rows * (slice * dtype_bits(weights->dtype) / 8 + slice / part * plan_scale_bytes(weights));
}

/// The slots of tiles.h, or of tiles_codes.h with the tile that codes are expanded to.
static int64_t product_bytes(const struct plan_kernel *kernel, const struct plan_param *weights)
{
    int64_t b = block_n(kernel);
    if (!weights->scales)
        return STAGES * (BLOCK_M + b) * SLICE_BYTES;
    return STAGES * (BLOCK_M * SLICE_BYTES + code_slot_bytes(weights, b)) + b * SLICE_BYTES;
}

/// Those of tiles_hopper.h or tiles_codes_hopper.h; each slot has a barrier for full and one for empty.
static int64_t wide_bytes(const struct plan_kernel *kernel, const struct plan_param *weights)
{
    int64_t b = wide_block_n(kernel), a_and_barriers = WIDE_STAGES * (WIDE_BLOCK_M * SLICE_BYTES + 16);
    if (!weights->scales || kernel->n[11])
        return a_and_barriers + WIDE_STAGES * b * SLICE_BYTES;
    return a_and_barriers + 2 * b * SLICE_BYTES + (WIDE_STAGES + 1) * code_slot_bytes(weights, b);
}

/// Bytes that a kernel of rows reads for one of them, replies once.
static int64_t row_bytes(const struct plan_kernel *kernel)
{
    const int64_t *n = kernel->n;
    int64_t bytes = n[0] * dtype_bytes((uint32_t)n[1]);
    if (kernel->role == kernel_role_copy_rows && n[1] == dtype_fp8_e4m3)
        bytes = moe_wire_bytes((uint32_t)n[1], n[0], n[3], (uint32_t)n[4]);
    const struct role_spec *spec = &role_specs[kernel->role];
    for (uint32_t i = 1, values = 1; spec->row_operator && i < spec->most && spec->args[i] != ARG_OUT; i++)
        bytes += n[0] * (spec->args[i] == ARG_VECTOR ? 4 : dtype_bytes((uint32_t)n[++values]));
    return bytes;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/// Whether the product goes by warpgroups and tensor maps.
static bool is_wide(const struct cuda_chip *chip, const struct plan_kernel *kernel)
{
    bool product = kernel->role == kernel_role_mlp_up || kernel->role == kernel_role_mlp_down;
    return product && chip->warpgroups && operand_of(kernel) != dtype_f32;
}

struct cuda_tile cuda_tile_of(const struct cuda_chip *chip, bool gated, uint32_t operand, bool codes, bool fp8)
{
    struct plan_kernel kernel = {.role = gated ? kernel_role_mlp_up : kernel_role_mlp_down, .n[8] = codes, .n[11] = fp8};
    kernel.n[gated ? 3 : 2] = operand;
    bool wide = is_wide(chip, &kernel);
    return (struct cuda_tile){wide ? WIDE_BLOCK_M : BLOCK_M, wide ? wide_block_n(&kernel) : block_n(&kernel)};
}

/// The tensors of a wide product: A, a row a pair; and B, a row an output feature of an expert, gate and up apart; codes that
/// are expanded are no tensors.
static void set_maps(struct cuda_source *source, const struct plan_kernel *kernel)
{
    const int64_t *n = kernel->n, rows = n[1], k = n[11] ? n[0] / 2 : n[0]; // two codes are an element
    bool up = kernel->role == kernel_role_mlp_up;
    struct plan_param weights = weights_of(kernel, false);
    int64_t row_bytes = plan_row_bytes(&weights);
    source->maps[0] = (struct cuda_map){.argument = up ? UP_A : DOWN_HIDDEN,
                                        .rank = 2,
                                        .counts = cuda_counts_pairs,
                                        .extents = {k, 1},
                                        .strides = {2, n[4]},
                                        .box = {SLICE, BOX_ROWS}};
    source->map_count = 1;
    if (n[8] && !n[11])
        return;
    source->maps[1] = (struct cuda_map){.argument = up ? UP_W : DOWN_W,
                                        .rank = 4,
                                        .counts = cuda_counts_experts,
                                        .extents = {k, rows, weights.rows / rows, 1},
                                        .strides = {2, row_bytes, row_bytes * rows, weights.bytes},
                                        .box = {SLICE, BOX_ROWS, 1, 1}};
    source->map_count = 2;
}

static void put_numbers(struct writer *w, const int64_t *numbers, const char *after)
{
    for (int i = 0; i < 4; i++)
        w->text = context_printf(w->context, "%s%s%lld", w->text, i ? ", " : "{", (long long)numbers[i]);
    w->text = context_printf(w->context, "%s}%s", w->text, after);
}

static void put_maps(struct writer *w, const struct cuda_source *source)
{
    static const char *const counts[] = {[cuda_counts_pairs] = "MAP_PAIRS", [cuda_counts_experts] = "MAP_EXPERTS"};
    w->text = context_printf(w->context, "%sconstexpr gpu::MapShape MAP_SHAPES[GPU_MAPS] = {\n", w->text);
    for (int i = 0; i < source->map_count; i++) {
        const struct cuda_map *map = &source->maps[i];
        w->text = context_printf(w->context, "%s    {%d, %d, gpu::%s, ", w->text, map->argument, map->rank, counts[map->counts]);
        put_numbers(w, map->extents, ", ");
        put_numbers(w, map->strides, ", ");
        put_numbers(w, map->box, "},\n");
    }
    w->text = context_printf(w->context, "%s};\n", w->text);
}

/// Sizes of an expert kernel: the tile's, and those of a unit of work. The shared memory it takes.
static int64_t put_product(struct writer *w, const struct cuda_chip *chip, const struct plan_kernel *kernel,
                           struct cuda_source *source)
{
    struct plan_param weights = weights_of(kernel, false);
    bool up = kernel->role == kernel_role_mlp_up, gated = up && !is_plain(kernel), wide = is_wide(chip, kernel);
    int64_t high = wide ? WIDE_BLOCK_M : BLOCK_M, rows = wide ? wide_block_n(kernel) : block_n(kernel);
    bool coded = kernel->n[11] != 0;
    int64_t unit = coded && up ? CODED_BLOCK : weights.panel / (gated ? 2 : 1), columns = least(rows, weights.rows);
    put_size(w, "WEIGHT_BYTES", weights.bytes);
    put_size(w, "BIAS_BYTES", weights_of(kernel, true).bytes);
    put_count(w, "BLOCK_M", high);
    put_count(w, "PANEL", unit);
    if (up) {
        put_count(w, "FEATURES", wide ? rows / 4 : rows / 2); // two teams
        put_count(w, "TILE_PANELS", rows / (gated ? 2 : 1) / unit);
    } else {
        put_count(w, "COLUMNS", rows);
    }
    // maxima of hidden rows, of each of those who share their blocks, twice
    int64_t shared = coded && up ? 2 * high * 4 * (wide ? 2 : CODED_THREADS / 64) : 0;
    source->stages = wide ? WIDE_STAGES : STAGES;
    while (coded && !wide && source->stages > 2 && source->stages * (high + rows) * SLICE_BYTES + shared > chip->shared_bytes)
        source->stages--;
    source->threads = wide ? WIDE_THREADS : coded ? CODED_THREADS : THREADS;
    source->tile_flops = 2 * high * columns * kernel->n[0];
    source->tile_bytes = high * kernel->n[0] * (coded ? 1 : dtype_bytes(operand_of(kernel))) + columns * (plan_rows_bytes(&weights) / weights.rows);
    put_count(w, "STAGES", source->stages);
    put_count(w, "RESIDENT", wide || coded ? 1 : 2);
    put_constant(w, &(struct constant){"NATIVE_CODES", FLAG, 0, 0}, chip->multiplies_codes);
    if (!wide)
        return coded ? source->stages * (high + rows) * SLICE_BYTES + shared : product_bytes(kernel, &weights);
    put_maps(w, source);
    return wide_bytes(kernel, &weights) + shared;
}

/// Tile sizes and what follows from them, in the text and in `source`.
static void put_tiles(struct writer *w, const struct cuda_chip *chip, const struct plan_kernel *kernel,
                      struct cuda_source *source)
{
    int64_t shared = 0;
    const int64_t *n = kernel->n;
    source->threads = THREADS;
    source->tile_bytes = row_bytes(kernel);
    if (kernel->role == kernel_role_route) {
        int64_t tokens = route_tokens(chip, kernel->n);
        put_count(w, "TOKENS", tokens);
        put_count(w, "EXPERT_TILE", expert_tile(kernel->n[1]));
        shared = route_bytes(kernel->n, tokens);
        source->tile_flops = 2 * tokens * n[0] * n[1];
        source->tile_bytes = n[0] * (tokens * dtype_bytes((uint32_t)n[5]) + n[1] * 4);
    } else if (kernel->role == kernel_role_mlp_up || kernel->role == kernel_role_mlp_down) {
        shared = put_product(w, chip, kernel, source);
    }
    put_count(w, "THREADS", source->threads);
    put_count(w, "SHARED_BYTES", shared);
    source->shared_bytes = (int)shared;
}

// --------------------------------------------------------------------------------------------------------- sources

static bool computes(int64_t dtype)
{
    return dtype > 0 && dtype_computes((uint32_t)dtype);
}

/// Operands of a row operator that are rows, and its result.
static int values_of(uint32_t role)
{
    int count = 0;
    for (uint32_t i = 0; i < role_specs[role].most; i++)
        count += role_specs[role].args[i] != ARG_VECTOR;
    return count;
}

static bool row_kernel(const int64_t *n, int types)
{
    for (int i = 1; i <= types; i++)
        if (!computes(n[i]))
            return false;
    return n[0] > 0 && n[0] % 8 == 0;
}

/// E4M3 in blocks along the row, or plain elements.
static bool known_format(int64_t dtype, int64_t block, int64_t scale)
{
    if (dtype == dtype_fp8_e4m3)
        return (block == 64 || block == 128) && (scale == scale_type_f32 || scale == scale_type_ue8m0);
    return computes(dtype) && !block && scale == scale_type_none;
}

/// Plain to plain, or to or from blocks.
static bool can_copy(const int64_t *n)
{
    bool packs = n[2] == dtype_fp8_e4m3, unpacks = n[1] == dtype_fp8_e4m3;
    bool in_blocks = known_format(dtype_fp8_e4m3, n[3], n[4]), sizes = n[0] > 0 && n[0] % 8 == 0;
    if (n[7]) // rows to multiply: from their type, or from the wire
        return sizes && in_blocks && packs && n[7] == dtype_fp8_e4m3 && (unpacks || computes(n[1]));
    if (packs || unpacks)
        return sizes && in_blocks && computes(packs ? n[1] : n[2]);
    return row_kernel(n, 2) && !n[3];
}

static bool known_replies(const int64_t *n)
{
    for (int64_t i = 0; i < n[4]; i++)
        if (!known_format(n[5 + i] & 0xff, n[5 + i] >> 16, n[5 + i] >> 8 & 0xff))
            return false;
    return n[4] >= 0 && n[4] <= MOE_MAX_WIRES;
}

static bool can_route(const struct cuda_chip *chip, const int64_t *n)
{
    bool scored = n[3] == score_softmax || n[3] == score_softmax_after || n[3] == score_sigmoid ||
                  n[3] == score_sparsemixer || n[3] == score_cosine;
    bool grouped = n[6] > 0 && n[1] % n[6] == 0 && n[7] > 0 && n[7] <= n[6] && n[2] <= n[1] / n[6] * n[7];
    return n[0] > 0 && n[0] % 8 == 0 && n[1] > 0 && n[2] > 0 && n[2] <= n[1] && scored && grouped && computes(n[5]) &&
           route_tokens(chip, n) > 0;
}

/// Weights in the rows' own type, or as codes.
static bool can_multiply(const struct plan_kernel *kernel)
{
    const int64_t *n = kernel->n;
    bool up = kernel->role == kernel_role_mlp_up, sizes = n[0] > 0 && n[0] % 8 == 0 && n[1] > 0 && n[1] % 8 == 0;
    if (n[11] && (n[8] != dtype_fp8_e4m3 || n[9] != CODED_BLOCK || n[11] >> 16 != CODED_BLOCK || operand_of(kernel) == dtype_f32 ||
                  !known_format(n[11] & 0xff, n[11] >> 16, n[11] >> 8 & 0xff)))
        return false;
    if (n[8] && (n[8] < 0 || !dtype_quantised((uint32_t)n[8]) || n[9] <= 0 || n[9] % 16 ||
                 n[10] != weights_of(kernel, false).scales))
        return false;
    if (!up)
        return sizes && computes(n[2]) && computes(n[3]);
    return sizes && computes(n[3]) && n[2] >= 0 && n[2] < activation_words_count &&
           !(is_plain(kernel) && n[2] == activation_clamped_silu);
}

bool cuda_has_kernel(const struct cuda_chip *chip, const struct plan_kernel *kernel)
{
    const int64_t *n = kernel->n;
    switch (kernel->role) {
    case kernel_role_route:
        return can_route(chip, n);
    case kernel_role_mlp_up:
    case kernel_role_mlp_down:
        return can_multiply(kernel);
    case kernel_role_copy_rows:
        return can_copy(n);
    case kernel_role_merge:
        return row_kernel(n, 2) && known_replies(n);
    case kernel_role_sum_rows:
        return row_kernel(n, 1);
    default:
        return role_specs[kernel->role].row_operator && row_kernel(n, values_of(kernel->role));
    }
}

static struct cuda_source write_source(struct context *context, const struct cuda_chip *chip,
                                       const struct plan_kernel *kernel, const char *name)
{
    const struct role *role = &roles[kernel->role];
    const char *file = context_printf(context, "%s.cu", kernel_role_words[kernel->role]);
    size_t size;
    const char *template = embedded_file(context_printf(context, "cuda/%s", file), &size);
    if (!template)
        fatal(context, EXIT_BUG, "there is no template %s", file);
    struct cuda_source source = {.name = name, .file = file, .place = ""};
    if (is_wide(chip, kernel))
        set_maps(&source, kernel);
    struct writer w = {context, context_printf(context, "#define KERNEL_NAME %s\n#define GPU_MAPS %d\n#include \"device.h\"\n\n",
                                               name, source.map_count)};
    for (const struct constant *c = role->n; c < role->n + 12 && c->kind != LAST; c++)
        put_constant(&w, c, kernel->n[c - role->n]);
    put_number(&w, role->scale, kernel->scale);
    put_number(&w, role->alpha, kernel->alpha);
    put_number(&w, role->limit, kernel->limit);
    if (kernel->role == kernel_role_route) {
        put_number(&w, "TEMPERATURE", kernel->temperature);
        put_number(&w, "NOISE", MOE_NOISE_FACTOR(kernel->noise));
        put_size(&w, "SEED", kernel->seed);
    }
    put_tiles(&w, chip, kernel, &source);
    source.text = context_printf(context, "%s\n#line 1 \"%s\"\n%.*s", w.text, file, (int)size, template);
    return source;
}

/// Units of work as plan.def counts them. A unit of the expert kernels is a panel: of an expert, or of all of them.
static void set_units(struct plan_kernel *kernel)
{
    bool expert_kernel = kernel->role == kernel_role_mlp_up || kernel->role == kernel_role_mlp_down;
    if (expert_kernel) {
        struct plan_param param = weights_of(kernel, false);
        bool up = kernel->role == kernel_role_mlp_up;
        kernel->unit_count = plan_up_units(&param, up ? kernel->n[11] >> 16 : 0);
    }
    kernel->grain = expert_kernel ? TILE_GRAIN : ROW_GRAIN;
    kernel->scratch_bytes = kernel->code_offset = 0;
}

static bool same_code(const struct plan_kernel *a, const struct plan_kernel *b)
{
    return a->role == b->role && !memcmp(a->n, b->n, sizeof a->n) && a->scale == b->scale && a->alpha == b->alpha &&
           a->limit == b->limit && a->temperature == b->temperature && a->noise == b->noise && a->seed == b->seed;
}

/// The source of a kernel before row `row` that is the same code; NONE: there is none.
static uint32_t known_source(const struct ir *plan, const struct cuda_sources *sources, uint32_t row)
{
    for (uint32_t i = 0; i < row; i++)
        if (sources->of_kernel[i] != NONE && same_code(ROW(plan, plan_kernel, i), ROW(plan, plan_kernel, row)))
            return sources->of_kernel[i];
    return NONE;
}

static bool choose_layouts(struct context *context, struct ir *plan)
{
    for (uint32_t i = 0; i < COUNT(plan, plan_param); i++) {
        struct plan_param *param = ROW(plan, plan_param, i);
        if (cuda_choose_layout(param))
            continue;
        diag_error(context, E0901, (struct span){0}, "weights `%s` have no CUDA layout yet", ir_text(plan, param->name));
        return false;
    }
    return true;
}

/// The stage that launches a kernel first.
static const char *stage_of(const struct ir *plan, uint32_t kernel)
{
    for (uint32_t i = 0; i < COUNT(plan, plan_instr); i++) {
        const struct plan_instr *instr = ROW(plan, plan_instr, i);
        if (instr->op == opcode_launch && instr->kernel == kernel)
            return ir_text(plan, instr->stage);
    }
    return "";
}

bool cuda_generate(struct context *context, struct ir *plan, const struct cuda_chip *chip, struct cuda_sources *sources)
{
    uint32_t count = COUNT(plan, plan_kernel);
    *sources = (struct cuda_sources){.at = context_alloc(context, (count + 1) * sizeof *sources->at),
                                     .of_kernel = context_alloc(context, (count + 1) * sizeof *sources->of_kernel)};
    if (!choose_layouts(context, plan))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        struct plan_kernel *kernel = ROW(plan, plan_kernel, i);
        sources->of_kernel[i] = NONE;
        if (kernel->builtin)
            continue;
        if (!cuda_has_kernel(chip, kernel)) {
            diag_error(context, E0901, (struct span){0}, "kernel `%s` has no CUDA code for %s yet",
                       ir_text(plan, kernel->name), chip->name);
            return false;
        }
        uint32_t source = known_source(plan, sources, i);
        if (source == NONE) {
            source = sources->count++;
            const char *name = context_printf(context, "%s_%u", kernel_role_words[kernel->role], source);
            sources->at[source] = write_source(context, chip, kernel, name);
            sources->at[source].stage = context_printf(context, "%s", stage_of(plan, i));
        }
        sources->of_kernel[i] = source;
        set_units(kernel);
    }
    return true;
}

_Noreturn void cuda_refused(struct context *context, const struct cuda_source *source, const char *words)
{
    fprintf(stderr, "%s", words);
    if (*source->stage)
        fprintf(stderr, "%s%snote: kernel `%s` is stage `%s`'s\n", source->place, *source->place ? ": " : "", source->name,
                source->stage);
    fatal(context, source->edited ? EXIT_INPUT : EXIT_BUG, "kernel `%s` does not compile", source->name);
}

void cuda_print(const struct cuda_sources *sources, FILE *out)
{
    for (uint32_t i = 0; i < sources->count; i++)
        fprintf(out, "%s// kernel %s, %d threads\n%s", i ? "\n" : "", sources->at[i].name, sources->at[i].threads,
                sources->at[i].text);
}
