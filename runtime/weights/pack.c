// Packs weights into panels: a tile of rows is converted to the packed type in a small scratch area that stays in the
// cache, then interleaved, so that memory is read and written in order.
#include "runtime/weights/pack.h"

#include "runtime/plan/limits.h"
#include "runtime/weights/random.h"
#include "runtime/weights/safetensors.h"
#include <string.h>

enum { TILE_BYTES = 32 * 1024, TILE_MOST = 1024, ROW_PAD = 64 };

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static int64_t panel_count(const struct plan_param *param)
{
    return param->halves ? ceil_div(param->rows / 2, param->panel / 2) : ceil_div(param->rows, param->panel);
}

/// k values that a tile covers: a multiple of the group.
static int64_t tile_width(const struct plan_param *param)
{
    int64_t width = TILE_BYTES / 4 / param->panel;
    if (width > TILE_MOST)
        width = TILE_MOST;
    if (width < 16)
        width = 16;
    return ceil_div(width, param->group) * param->group;
}

static int64_t codes_bytes(const struct plan_param *param)
{
    bool sized = param->rows > 0 && param->rows <= MOE_MAX_WIDTH && param->cols > 0 && param->cols <= MOE_MAX_WIDTH;
    bool blocks = param->block_rows > 0 && param->block_cols > 0;
    if (sized && blocks && param->layout == layout_rows && param->scales == plan_row_scales(param) && param->group == 1 &&
        !param->split && param->cols % 8 == 0 && !(param->halves && param->rows % 2))
        return plan_packed_bytes(param);
    blocks = blocks && (param->scales == 2 || param->scales == param->panel);
    int64_t group = (param->split ? 2 : 1) * (param->dtype == dtype_mxfp4 ? 2 : 1);
    if (!sized || !blocks || param->layout != layout_panels || param->panel < 2 || param->panel % 2 ||
        param->panel > PACK_CODE_COLUMNS || param->group != group || param->cols % group ||
        (param->split && param->panel != PACK_CODE_COLUMNS) || (param->halves && param->rows % 2))
        return -1;
    return plan_packed_bytes(param);
}

int64_t pack_bytes(const struct plan_param *param)
{
    if (dtype_quantised(param->dtype))
        return codes_bytes(param);
    const char *dtype = element_name(param->dtype);
    bool floating = param->dtype == dtype_f32 || param->dtype == dtype_f16 || param->dtype == dtype_bf16;
    if (!floating || param->rows <= 0 || param->cols <= 0)
        return -1;
    if (param->layout == layout_rows)
        return tensor_bytes(dtype, (int64_t[]){param->rows, param->cols}, 2);
    if (param->layout != layout_panels || param->panel <= 0 || param->group <= 0 || param->panel > 65536 ||
        param->group > 65536 || (param->halves && (param->panel % 2 || param->rows % 2)))
        return -1;
    return tensor_bytes(
        dtype, (int64_t[]){panel_count(param), ceil_div(param->cols, param->group), param->panel, param->group}, 4);
}

static size_t tile_stride(const struct plan_param *param)
{
    return (size_t)tile_width(param) * element_bytes(element_name(param->dtype)) + ROW_PAD;
}

size_t pack_scratch_bytes(const struct plan_param *param)
{
    size_t floats = TILE_MOST * sizeof(float);
    if (dtype_quantised(param->dtype))
        return floats;
    if (param->layout == layout_rows)
        return floats;
    if ((size_t)tile_width(param) > TILE_MOST)
        floats = (size_t)tile_width(param) * sizeof(float);
    return floats + (size_t)param->panel * tile_stride(param) + 64;
}

/// `count` elements of a transposed source in a row, each of `size` bytes, from column k on.
static void gather(const struct pack_source *source, size_t size, int64_t row, int64_t k, size_t count, uint8_t *to)
{
    const uint8_t *from = (const uint8_t *)source->data + (size_t)(row * source->row_step + k * source->col_step) * size;
    size_t step = (size_t)source->col_step * size;
    for (size_t i = 0; i < count; i++, from += step, to += size)
        memcpy(to, from, size);
}

/// `count` values of one row from column k on, in the packed type.
static void convert(const struct plan_param *param, const struct pack_source *source, int64_t row, int64_t k,
                    size_t count, float *floats, void *to)
{
    const char *packed = element_name(param->dtype), *declared = element_name(param->declared);
    size_t position = (size_t)(row * param->cols + k);
    if (source->data && source->col_step && count > TILE_MOST) {
        convert(param, source, row, k, TILE_MOST, floats, to);
        convert(param, source, row, k + TILE_MOST, count - TILE_MOST, floats,
                (uint8_t *)to + TILE_MOST * element_bytes(packed));
        return;
    }
    if (source->data) {
        size_t size = element_bytes(source->dtype);
        const uint8_t *from = (const uint8_t *)source->data + position * size;
        uint8_t line[TILE_MOST * 4];
        if (source->col_step) {
            gather(source, size, row, k, count, line);
            from = line;
        }
        bool exact = param->declared == dtype_f32 || !strcmp(declared, source->dtype);
        if (exact && !strcmp(packed, source->dtype)) {
            memcpy(to, from, count * element_bytes(packed));
            return;
        }
        elements_to_f32(source->dtype, from, floats, count);
        if (exact) {
            elements_from_f32(packed, floats, to, count);
            return;
        }
    } else
        random_weights(source->key, position, source->scale, floats, count);
    if (param->declared == dtype_f16 || param->declared == dtype_bf16) {
        elements_from_f32(declared, floats, to,
                          count); // `to` holds at least as many bytes: packed types are 2 or 4 wide
        elements_to_f32(declared, to, floats, count);
    }
    elements_from_f32(packed, floats, to, count);
}

const struct pack_source *pack_find_row(const struct plan_param *param, const struct pack_source *sources, size_t count,
                                        int64_t *row)
{
    int64_t half = param->rows / 2, within = *row < half ? *row : *row - half;
    bool second = (*row >= half) != (param->swapped != 0);
    if (param->interleaved && sources->data)
        *row = 2 * within + second;
    else if (param->swapped && sources->data)
        *row = second ? half + within : within;
    for (size_t i = 0; i < count; i++) {
        if (*row < sources[i].rows)
            return &sources[i];
        *row -= sources[i].rows;
    }
    return NULL;
}

/// The block's row in column c of panel p; -1: padding.
static int64_t row_of(const struct plan_param *param, int64_t p, int64_t c)
{
    if (!param->halves) {
        int64_t row = p * param->panel + c;
        return row < param->rows ? row : -1;
    }
    int64_t half = param->panel / 2, rows = param->rows / 2, within = p * half + c % half;
    if (within >= rows)
        return -1;
    return c < half ? within : rows + within;
}

const struct pack_source *pack_find(const struct plan_param *param, const struct pack_source *sources, size_t count,
                                    int64_t p, int64_t c, int64_t *row)
{
    *row = row_of(param, p, c);
    return *row < 0 ? NULL : pack_find_row(param, sources, count, row);
}

/// Columns of `unit` bytes from rows `stride` apart, group by group. A constant unit makes the copies single moves.
#define INTERLEAVE(unit)                                   \
    for (size_t g = 0; g < groups; g++)                    \
        for (size_t c = 0; c < columns; c++, to += (unit)) \
    memcpy(to, tile + c * stride + g * (unit), (unit))

static uint8_t *interleave(const uint8_t *tile, size_t stride, size_t columns, size_t groups, size_t unit, uint8_t *to)
{
    switch (unit) {
    case 2:
        INTERLEAVE((size_t)2);
        break;
    case 4:
        INTERLEAVE((size_t)4);
        break;
    case 8:
        INTERLEAVE((size_t)8);
        break;
    default:
        INTERLEAVE(unit);
        break;
    }
    return to;
}

static uint8_t *pack_panels(const struct plan_param *param, const struct pack_source *sources, size_t count,
                            void *scratch, uint8_t *to)
{
    size_t element = element_bytes(element_name(param->dtype)), stride = tile_stride(param);
    int64_t width = tile_width(param), padded = ceil_div(param->cols, param->group) * param->group;
    float *floats = scratch;
    uint8_t *tile = (uint8_t *)scratch + (size_t)(width > TILE_MOST ? width : TILE_MOST) * sizeof *floats;
    int64_t panels = panel_count(param);
    for (int64_t p = 0; p < panels; p++)
        for (int64_t k = 0; k < padded; k += width) {
            int64_t tile_k = padded - k < width ? padded - k : width;
            int64_t valid = param->cols - k < tile_k ? param->cols - k : tile_k;
            for (int64_t c = 0; c < param->panel; c++) {
                uint8_t *line = tile + (size_t)c * stride;
                int64_t row = row_of(param, p, c), used = row < 0 ? 0 : valid;
                if (used > 0) {
                    const struct pack_source *source = pack_find_row(param, sources, count, &row);
                    convert(param, source, row, k, (size_t)used, floats, line);
                }
                memset(line + (size_t)used * element, 0, (size_t)(tile_k - used) * element);
            }
            to = interleave(tile, stride, (size_t)param->panel, (size_t)(tile_k / param->group),
                            (size_t)param->group * element, to);
        }
    return to;
}

static uint8_t *pack_rows(const struct plan_param *param, const struct pack_source *sources, size_t count,
                          void *scratch, uint8_t *to)
{
    size_t element = element_bytes(element_name(param->dtype));
    for (int64_t r = 0; r < param->rows; r++) {
        int64_t row = r;
        const struct pack_source *source = pack_find_row(param, sources, count, &row);
        for (int64_t k = 0; k < param->cols; k += TILE_MOST) {
            size_t used = (size_t)(param->cols - k < TILE_MOST ? param->cols - k : TILE_MOST);
            convert(param, source, row, k, used, scratch, to);
            to += used * element;
        }
    }
    return to;
}

void pack_block(const struct plan_param *param, const struct pack_source *sources, size_t count, void *scratch,
                void *to)
{
    uint8_t *end = dtype_quantised(param->dtype)         ? pack_codes(param, sources, count, to)
                   : param->layout == layout_rows ? pack_rows(param, sources, count, scratch, to)
                                                  : pack_panels(param, sources, count, scratch, to);
    memset(end, 0, (size_t)param->bytes - (size_t)(end - (uint8_t *)to));
}
