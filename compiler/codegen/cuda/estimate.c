// Units of work, their FLOPs and bytes, and the roofline of a launch (estimate.h). Bytes are those that must be moved: an
// operand of a launch is read once, whatever blocks read again from the L2 cache.
#include "estimate.h"
#include "tiles.h"
#include "runtime/plan/messages.h"
#include "runtime/plan/roles.h"

#include <math.h>

const char *const cuda_bound_words[cuda_bounds] = {"memory", "compute", "tail"};

enum { WARPS_OF_ROWS = 4 }; // of a block whose warps take a row each

static bool is_product(const struct plan_kernel *kernel)
{
    return kernel->role == kernel_role_mlp_up || kernel->role == kernel_role_mlp_down;
}

bool cuda_on_tensor_cores(const struct plan_kernel *kernel)
{
    return is_product(kernel) && operand_of(kernel) != dtype_f32;
}

/// A row of `width` elements that a product multiplies, coded rows with their scales.
static int64_t multiplied_bytes(const struct plan_kernel *kernel, int64_t width)
{
    const int64_t coded = kernel->n[11];
    return coded ? moe_coded_row_bytes(width, 1, coded >> 16) : width * dtype_bytes(operand_of(kernel));
}

/// A row in a format of the wire (moe_wire_code), or plain.
static int64_t format_bytes(int64_t code, int64_t width)
{
    return moe_wire_bytes((uint32_t)(code & 0xff), width, code >> 16, (uint32_t)(code >> 8 & 0xff));
}

static int64_t copied_bytes(const struct plan_kernel *kernel, bool result)
{
    const int64_t *n = kernel->n, dtype = n[result ? 2 : 1];
    if (result && n[7])
        return moe_coded_row_bytes(n[0], dtype_bytes((uint32_t)n[7]), n[3]);
    return format_bytes(dtype == dtype_fp8_e4m3 ? moe_wire_code((uint32_t)dtype, (uint32_t)n[3], (uint32_t)n[4]) : dtype, n[0]);
}

/// Of a merge: a reply, in the mean over formats.
static double reply_bytes(const struct plan_kernel *kernel)
{
    const int64_t *n = kernel->n;
    double bytes = n[4] > 0 ? 0 : (double)(n[0] * dtype_bytes((uint32_t)n[1]));
    for (int64_t i = 0; i < n[4]; i++)
        bytes += (double)format_bytes(n[5 + i], n[0]) / (double)n[4];
    return bytes;
}

/// Of a row operator: the rows it reads for one of its result (and the vector, which a launch reads once), or that result.
static int64_t operator_bytes(const struct plan_kernel *kernel, bool result, bool vectors)
{
    const struct role_spec *spec = &role_specs[kernel->role];
    const int64_t *n = kernel->n;
    int64_t bytes = 0, values = 0;
    for (uint32_t i = 0; i < spec->most && spec->args[i] != ARG_OUT; i++)
        bytes += spec->args[i] != ARG_VECTOR ? n[0] * dtype_bytes((uint32_t)n[++values]) : vectors ? n[0] * 4 : 0;
    return result ? n[0] * dtype_bytes((uint32_t)n[values + 1]) : bytes;
}

/// Bytes that a kernel of rows reads for one of them, replies and summands once.
static int64_t row_reads(const struct plan_kernel *kernel)
{
    const int64_t *n = kernel->n;
    if (kernel->role == kernel_role_copy_rows)
        return copied_bytes(kernel, false);
    return role_specs[kernel->role].row_operator ? operator_bytes(kernel, false, true) : n[0] * dtype_bytes((uint32_t)n[1]);
}

struct cuda_unit cuda_unit_of(const struct cuda_chip *chip, const struct plan_kernel *kernel, double rows)
{
    const int64_t *n = kernel->n;
    struct cuda_unit unit = {.tile = cuda_tile_of(chip, kernel, rows), .together = 1};
    const struct cuda_tile tile = unit.tile;
    if (is_product(kernel)) {
        struct plan_param weights = weights_of(kernel, false);
        int64_t features = tile.features < weights.rows ? tile.features : weights.rows;
        unit.flops = 2 * tile.rows * tile.features * n[0];
        unit.reads = tile.rows * multiplied_bytes(kernel, n[0]) + features * (plan_rows_bytes(&weights) / weights.rows);
    } else if (kernel->role == kernel_role_route) {
        unit.flops = 2 * tile.rows * n[0] * n[1];
        unit.reads = n[0] * (tile.rows * dtype_bytes((uint32_t)n[5]) + n[1] * 4);
    } else {
        unit.together = WARPS_OF_ROWS;
        unit.reads = row_reads(kernel);
    }
    return unit;
}

/// Bytes of a product: rows, weights of the experts that have any; hidden rows, or sums, in f32 and back, and what they become.
static double product_bytes(const struct plan_kernel *kernel, const struct cuda_load *load)
{
    const int64_t *n = kernel->n;
    struct plan_param weights = weights_of(kernel, false);
    double bytes = load->rows * (double)multiplied_bytes(kernel, n[0]) + load->experts * (double)plan_rows_bytes(&weights);
    if (kernel->role == kernel_role_mlp_up)
        return bytes + load->rows * (double)multiplied_bytes(kernel, n[1]);
    return bytes + load->beside * (double)(n[1] * (4 + 4 + dtype_bytes((uint32_t)n[3])));
}

static double launch_bytes(const struct plan_kernel *kernel, const struct cuda_load *load)
{
    const int64_t *n = kernel->n;
    if (is_product(kernel))
        return product_bytes(kernel, load);
    switch (kernel->role) {
    case kernel_role_route:
        return load->rows * (double)(n[0] * dtype_bytes((uint32_t)n[5]) + n[2] * 8) + (double)(n[0] * n[1] * 4);
    case kernel_role_copy_rows:
        return load->rows * (double)(copied_bytes(kernel, false) + copied_bytes(kernel, true));
    case kernel_role_merge:
        return load->beside * reply_bytes(kernel) +
               load->rows * (double)(n[0] * (dtype_bytes((uint32_t)n[2]) + (n[3] ? 4 : 0)));
    case kernel_role_sum_rows:
        return (load->beside + load->rows) * (double)(n[0] * dtype_bytes((uint32_t)n[1]));
    default:
        return load->rows * (double)(operator_bytes(kernel, false, false) + operator_bytes(kernel, true, false));
    }
}

/// Tiles of a product, of all experts.
static double tiles_of(const struct plan_kernel *kernel, const struct cuda_tile *tile, const struct cuda_load *load)
{
    struct plan_param weights = weights_of(kernel, false);
    double high = ceil(load->rows / load->experts / (double)tile->rows);
    return load->experts * high * ceil((double)weights.rows / (double)tile->features);
}

struct cuda_estimate cuda_estimate(const struct cuda_chip *chip, const struct plan_kernel *kernel, const struct cuda_load *load,
                                   const struct cuda_speed *speed)
{
    struct cuda_estimate e = {.unit = cuda_unit_of(chip, kernel, load->experts > 0 ? load->rows / load->experts : 0), .reach = 1};
    const struct cuda_unit *unit = &e.unit;
    const int64_t *n = kernel->n;
    if (load->rows <= 0 || speed->multiprocessors <= 0)
        return e;
    if (is_product(kernel)) {
        e.flops = 2 * load->rows * (double)(weights_of(kernel, false).rows * n[0]);
        e.blocks = tiles_of(kernel, &unit->tile, load);
    } else {
        e.flops = kernel->role == kernel_role_route ? 2 * load->rows * (double)(n[0] * n[1]) : 0;
        e.blocks = ceil(load->rows / (double)(unit->tile.rows * unit->together));
    }
    e.bytes = launch_bytes(kernel, load);
    e.waves = e.blocks / speed->multiprocessors;
    e.whole_flops = fmax(e.flops, ceil(e.waves) * speed->multiprocessors * (double)(unit->flops * unit->together));
    e.reach = fmin(1, e.waves / CUDA_SHARE_THAT_FILLS_MEMORY);
    double memory = e.bytes / (speed->bytes * e.reach), arithmetic = e.whole_flops / speed->flops;
    e.seconds = fmax(memory, arithmetic);
    double least = fmax(e.bytes / speed->bytes, e.flops / speed->flops);
    e.bound = e.seconds > 2 * least ? cuda_bound_tail : memory >= arithmetic ? cuda_bound_memory : cuda_bound_compute;
    return e;
}
