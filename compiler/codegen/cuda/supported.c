// What there are CUDA kernels for: chips, layouts of weights, constants of every role.
#include "tiles.h"
#include "runtime/plan/roles.h"

#include <string.h>

static const struct cuda_chip chips[] = {
    {"sm_80", 163 << 10, 164 << 10, 65536, 2048, 16, false, false},   {"sm_86", 99 << 10, 100 << 10, 65536, 1536, 4, false, false},
    {"sm_89", 99 << 10, 100 << 10, 65536, 1536, 4, true, false},      {"sm_90a", 227 << 10, 228 << 10, 65536, 2048, 16, true, true},
    {"sm_100a", 227 << 10, 228 << 10, 65536, 2048, 32, false, false}, {"sm_120a", 99 << 10, 100 << 10, 65536, 1536, 4, true, false},
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
// --------------------------------------------------------------------------------------------------------- kernels

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
    return sizes && computes(n[3]) && n[2] >= 0 && n[2] < activation_words_count && !(n[7] & MLP_BY_ROW) &&
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
