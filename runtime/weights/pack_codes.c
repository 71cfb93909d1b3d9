// Packing quantised parameters: the checkpoint's codes and scales, in the order in which kernels expand them. No code
// changes but in blocks whose scale is NaN, so nothing is lost.
#include "runtime/weights/pack.h"

#include "runtime/weights/random.h"
#include "runtime/weights/safetensors.h"
#include <math.h>
#include <string.h>

enum { TILE_K = 256 }; // columns fetched at a time: a multiple of every group

/// A column of a panel: a row of the checkpoint.
struct column {
    const struct pack_source *source; // NULL: padding
    int64_t row;
};

/// Random weights are up to 3.5 times their scale. The largest code stands for that much.
static float random_unit(const struct plan_param *param, float scale)
{
    int exponent;
    if (param->dtype == dtype_fp8_e4m3)
        return scale / 128;
    frexpf(scale, &exponent); // the power of two that does not exceed it: MXFP4's scales are no other numbers
    return ldexpf(1.0f, exponent - 1);
}

/// The nearest E2M1, ties to even: as many magnitudes lie below it as borders between them do.
static uint8_t e2m1_from_f32(float value)
{
    float size = fabsf(value);
    int code = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) + (size > 2.5f) + (size >= 3.5f) +
               (size > 5.0f);
    return (uint8_t)(code | (signbit(value) ? 8 : 0));
}

static void random_codes(const struct plan_param *param, const struct pack_source *source, int64_t position,
                         size_t count, uint8_t *to)
{
    float values[TILE_K];
    random_weights(source->key, (uint64_t)position, source->scale / random_unit(param, source->scale), values, count);
    if (param->dtype == dtype_fp8_e4m3)
        elements_from_f32("F8_E4M3", values, to, count);
    else
        for (size_t i = 0; i < count; i++)
            to[i] = e2m1_from_f32(values[i]);
}

/// `count` codes of a column from k on, one a byte.
static void fetch(const struct plan_param *param, const struct column *column, int64_t k, size_t count, uint8_t *to)
{
    const struct pack_source *source = column->source;
    int64_t position = column->row * param->cols + k;
    if (!source) {
        memset(to, 0, count);
        return;
    }
    if (!source->data) {
        random_codes(param, source, position, count, to);
        return;
    }
    const uint8_t *from = source->data;
    if (param->dtype == dtype_mxfp4)
        for (size_t i = 0; i < count; i++) // rows and k begin with whole bytes
            to[i] = (uint8_t)(from[(size_t)position / 2 + i / 2] >> (i % 2 ? 4 : 0) & 0xf);
    else if (source->col_step)
        for (size_t i = 0; i < count; i++)
            to[i] = from[column->row * source->row_step + (k + (int64_t)i) * source->col_step];
    else
        memcpy(to, from + position, count);
}

/// Where each byte of a group comes from: column, and k within the group; of MXFP4 that of the lower and the upper nibble.
struct place {
    uint8_t column[2], k[2];
};

static void order_bytes(const struct plan_param *param, struct place *places)
{
    uint8_t half = (uint8_t)(param->panel / 2);
    for (uint8_t c = 0; c < param->panel; c++)
        for (uint8_t j = 0; j < (param->split ? 2 : 1); j++) {
            uint8_t word = (uint8_t)(c % half * 2 + j), second = c >= half;
            if (!param->split)
                places[c] = (struct place){{c, c}, {0, 1}};
            else if (param->dtype == dtype_mxfp4) // a byte: this column and the other vector's, of an earlier or later pair
                places[2 * word + second] = (struct place){{word / 2, (uint8_t)(half + word / 2)},
                                                           {(uint8_t)(2 * second + j), (uint8_t)(2 * second + j)}};
            else
                places[word / 8 * 16 + second * 8 + word % 8] = (struct place){{c}, {j}};
        }
}

/// Blocks are those of the checkpoint's tensor, whose rows `column` counts.
static float scale_of(const struct plan_param *param, const struct column *column, int64_t block)
{
    const struct pack_source *source = column->source;
    if (!source)
        return 0;
    if (!source->data)
        return random_unit(param, source->scale);
    int64_t at = column->row / param->block_rows * source->scale_row_step + block * source->scale_col_step;
    float value = 0;
    elements_to_f32(source->scale_dtype, (const uint8_t *)source->scales + (size_t)at * element_bytes(source->scale_dtype),
                    &value, 1);
    return value;
}

/// Kernels take the exponent 255 for infinity, which makes NaN of a sum of zeros.
static void clear_nan_blocks(const struct plan_param *param, const struct column *column, int64_t k, int64_t count,
                             uint8_t *codes)
{
    for (int64_t i = 0; i < count; i += param->block_cols)
        if (isnan(scale_of(param, column, (k + i) / param->block_cols)))
            memset(codes + i, 0, (size_t)(count - i < param->block_cols ? count - i : param->block_cols));
}

static uint8_t *write_codes(const struct plan_param *param, const struct column *columns, const struct place *places,
                            uint8_t *to)
{
    uint8_t tile[PACK_CODE_COLUMNS][TILE_K];
    size_t bytes = (size_t)param->panel * (param->split ? 2 : 1); // of a group
    for (int64_t k = 0; k < param->cols; k += TILE_K) {
        int64_t count = param->cols - k < TILE_K ? param->cols - k : TILE_K;
        for (int64_t c = 0; c < param->panel; c++) {
            fetch(param, &columns[c], k, (size_t)count, tile[c]);
            if (param->dtype == dtype_mxfp4)
                clear_nan_blocks(param, &columns[c], k, count, tile[c]);
        }
        for (int64_t g = 0; g < count; g += param->group)
            for (size_t i = 0; i < bytes; i++) {
                const struct place *at = &places[i];
                uint8_t upper = param->dtype == dtype_mxfp4 ? tile[at->column[1]][g + at->k[1]] : 0;
                *to++ = (uint8_t)(tile[at->column[0]][g + at->k[0]] | upper << 4);
            }
    }
    return to;
}

static void write_scale(const struct plan_param *param, float scale, uint8_t *to)
{
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    if (param->dtype == dtype_mxfp4)
        *to = (uint8_t)(bits >> 23); // the exponent alone of a power of two; 255 of NaN
    else
        memcpy(to, &bits, sizeof bits);
}

static void write_scales(const struct plan_param *param, const struct column *columns, uint8_t *to)
{
    int64_t blocks = (param->cols + param->block_cols - 1) / param->block_cols, each = param->panel / param->scales;
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t s = 0; s < param->scales; s++) {
            write_scale(param, scale_of(param, &columns[s * each], b), to);
            to += plan_scale_bytes(param);
        }
}

/// `count` codes of a row from k on, packed as densely as they can be.
static void write_row(const struct plan_param *param, const struct column *row, int64_t k, int64_t count, uint8_t *to)
{
    uint8_t codes[TILE_K];
    fetch(param, row, k, (size_t)count, codes);
    if (param->dtype != dtype_mxfp4)
        memcpy(to, codes, (size_t)count);
    else
        for (int64_t i = 0; i < count; i += 2)
            to[i / 2] = (uint8_t)(codes[i] | codes[i + 1] << 4);
}

/// Layout rows (plan_rows_bytes). Returns the end.
static uint8_t *pack_code_rows(const struct plan_param *param, const struct pack_source *sources, size_t count,
                               uint8_t *to)
{
    int64_t stride = plan_row_bytes(param), blocks = (param->cols + param->block_cols - 1) / param->block_cols;
    int64_t size = plan_scale_bytes(param), half = param->halves ? param->rows / 2 : param->rows;
    uint8_t *scales = to + plan_round_up(param->rows * stride, 64);
    memset(to, 0, (size_t)plan_packed_bytes(param));
    for (int64_t r = 0; r < param->rows; r++) {
        struct column row = {.row = r};
        row.source = pack_find_row(param, sources, count, &row.row);
        for (int64_t k = 0; k < param->cols; k += TILE_K)
            write_row(param, &row, k, param->cols - k < TILE_K ? param->cols - k : TILE_K,
                      to + r * stride + k * dtype_bits(param->dtype) / 8);
        int64_t place = r < half ? r : plan_round_up(half, 16) + r - half;
        for (int64_t b = 0; b < blocks; b++)
            write_scale(param, scale_of(param, &row, b), scales + (b * param->scales + place) * size);
    }
    return to + plan_packed_bytes(param);
}

uint8_t *pack_codes(const struct plan_param *param, const struct pack_source *sources, size_t count, uint8_t *to)
{
    if (param->layout == layout_rows)
        return pack_code_rows(param, sources, count, to);
    struct column columns[PACK_CODE_COLUMNS];
    struct place places[2 * PACK_CODE_COLUMNS] = {{{0}, {0}}};
    size_t panel_bytes = (size_t)plan_panel_bytes(param);
    order_bytes(param, places);
    for (int64_t p = 0; p < plan_panels(param); p++, to += panel_bytes) {
        for (int64_t c = 0; c < param->panel; c++)
            columns[c].source = pack_find(param, sources, count, p, c, &columns[c].row);
        uint8_t *end = write_codes(param, columns, places, to);
        memset(end, 0, panel_bytes - (size_t)(end - to));
        write_scales(param, columns, end);
    }
    return to;
}
