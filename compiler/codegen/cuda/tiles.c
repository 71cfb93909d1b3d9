// What a block works on: the tiles of each template on each chip, and what follows from them: threads, stages, shared memory,
// tensor maps; bytes and FLOPs of a tile are estimate.h's.
#include "tiles.h"
#include "estimate.h"

#include <math.h>

enum { STAGES = 3, SLICE_BYTES = 128 };
enum { CODED_THREADS = 256 }; // tiles_fp8.h
enum { WIDE_THREADS = 384, WIDE_BLOCK_M = 128, WIDE_BLOCK_N = 256, WIDE_STAGES = 4, BOX_ROWS = 64, SLICE = 64 }; // slots_hopper.h
enum { FEW_ROWS = 32, EIGHT = 8 }; // tiles_few_hopper.h
enum { ROUTE_K_STEP = 36 };

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

int64_t route_tokens(const struct cuda_chip *chip, const int64_t *n)
{
    for (int64_t tokens = 16; tokens >= THREADS / 32; tokens /= 2)
        if (route_bytes(n, tokens) <= chip->shared_bytes)
            return tokens;
    return 0;
}

bool is_plain(const struct plan_kernel *kernel)
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

uint32_t operand_of(const struct plan_kernel *kernel)
{
    return (uint32_t)kernel->n[kernel->role == kernel_role_mlp_up ? 3 : 2];
}

struct plan_param weights_of(const struct plan_kernel *kernel, bool biases)
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

bool is_wide(const struct cuda_chip *chip, const struct plan_kernel *kernel)
{
    bool product = kernel->role == kernel_role_mlp_up || kernel->role == kernel_role_mlp_down;
    return product && chip->warpgroups && operand_of(kernel) != dtype_f32;
}

/// Of a product by warpgroups: as high as there are rows, by eights, by boxes, or whole; and of mlp_down as narrow as a box where
/// reading weights is what takes time.
static struct cuda_tile wide_tile(const struct plan_kernel *kernel, double rows)
{
    bool up = kernel->role == kernel_role_mlp_up, expanded = kernel->n[8] && !kernel->n[11], few = rows <= (double)FEW_ROWS;
    int64_t high = rows <= (double)BOX_ROWS ? BOX_ROWS : WIDE_BLOCK_M, whole = (int64_t)ceil(rows);
    if (few && (up || !expanded))
        high = whole > EIGHT ? (whole + EIGHT - 1) / EIGHT * EIGHT : EIGHT;
    return (struct cuda_tile){high, few && !up ? BOX_ROWS : wide_block_n(kernel)};
}

struct cuda_tile cuda_tile_of(const struct cuda_chip *chip, const struct plan_kernel *kernel, double rows)
{
    if (kernel->role == kernel_role_route)
        return (struct cuda_tile){route_tokens(chip, kernel->n), kernel->n[1]};
    if (kernel->role != kernel_role_mlp_up && kernel->role != kernel_role_mlp_down)
        return (struct cuda_tile){1, 0};
    return is_wide(chip, kernel) ? wide_tile(kernel, rows) : (struct cuda_tile){BLOCK_M, block_n(kernel)};
}

void set_maps(struct cuda_source *source, const struct plan_kernel *kernel)
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
    if (!n[8] || n[11])
        source->maps[source->map_count++] = (struct cuda_map){.argument = up ? UP_W : DOWN_W,
                                                              .rank = 4,
                                                              .counts = cuda_counts_experts,
                                                              .extents = {k, rows, weights.rows / rows, 1},
                                                              .strides = {2, row_bytes, row_bytes * rows, weights.bytes},
                                                              .box = {SLICE, BOX_ROWS, 1, 1}};
    struct cuda_map *few = &source->maps[source->map_count++];
    *few = source->maps[0];
    few->box[1] = EIGHT;
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
    int64_t unit = coded && up ? CODED_BLOCK : weights.panel / (gated ? 2 : 1);
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
    put_count(w, "STAGES", source->stages);
    put_count(w, "RESIDENT", wide || coded ? 1 : 2);
    put_flag(w, "NATIVE_CODES", chip->multiplies_codes);
    if (wide)
        put_count(w, "FEW_ROWS", FEW_ROWS);
    if (!wide)
        return coded ? source->stages * (high + rows) * SLICE_BYTES + shared : product_bytes(kernel, &weights);
    put_maps(w, source);
    return wide_bytes(kernel, &weights) + shared;
}

void put_tiles(struct writer *w, const struct cuda_chip *chip, const struct plan_kernel *kernel,
                      struct cuda_source *source)
{
    const struct cuda_unit unit = cuda_unit_of(chip, kernel, INFINITY);
    int64_t shared = 0;
    source->tile_flops = unit.flops;
    source->tile_bytes = unit.reads;
    source->threads = THREADS;
    if (kernel->role == kernel_role_route) {
        int64_t tokens = route_tokens(chip, kernel->n);
        put_count(w, "TOKENS", tokens);
        put_count(w, "EXPERT_TILE", expert_tile(kernel->n[1]));
        shared = route_bytes(kernel->n, tokens);
    } else if (kernel->role == kernel_role_mlp_up || kernel->role == kernel_role_mlp_down) {
        shared = put_product(w, chip, kernel, source);
    }
    put_count(w, "THREADS", source->threads);
    put_count(w, "SHARED_BYTES", shared);
    source->shared_bytes = (int)shared;
}
