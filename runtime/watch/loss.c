// What rows lose in their wire format (loss.h), in plain C: only steps that measure it come here.
#include "loss.h"

#include <math.h>
#include <string.h>

#include "runtime/weights/safetensors.h"

enum { AT_ONCE = 64 }; // elements, a divisor of every block

bool loss_concerns(const struct plan_kernel *kernel, enum loss_kind *kind)
{
    *kind = kernel->n[5] >= TABLES_REPLY ? LOSS_COMBINE : LOSS_DISPATCH;
    return kernel->role == kernel_role_copy_rows && kernel->n[2] == dtype_fp8_e4m3 && kernel->n[3] > 0 && !kernel->n[7];
}

static float scale_of(const struct plan_kernel *kernel, const uint8_t *row, int64_t block)
{
    const uint8_t *scales = row + kernel->n[0];
    uint32_t bits = (uint32_t)scales[kernel->n[4] == scale_type_f32 ? block * 4 : block] << 23; // ue8m0: an exponent
    float scale;
    memcpy(&scale, kernel->n[4] == scale_type_f32 ? (const void *)(scales + block * 4) : &bits, sizeof scale);
    return scale;
}

static void add_row(struct loss_sums *sums, const struct plan_kernel *kernel, const uint8_t *from, const uint8_t *row)
{
    float before[AT_ONCE], after[AT_ONCE];
    int64_t width = kernel->n[0], bytes = dtype_bytes((uint32_t)kernel->n[1]);
    for (int64_t first = 0; first < width; first += AT_ONCE) {
        int64_t count = width - first < AT_ONCE ? width - first : AT_ONCE;
        elements_to_f32(element_name((uint32_t)kernel->n[1]), from + first * bytes, before, (size_t)count);
        elements_to_f32("F8_E4M3", row + first, after, (size_t)count);
        double scale = (double)scale_of(kernel, row, first / kernel->n[3]);
        for (int64_t i = 0; i < count; i++) {
            double x = (double)before[i], y = (double)after[i] * scale;
            if (!isfinite(before[i]))
                continue;
            sums->difference += (y - x) * (y - x);
            sums->before += x * x;
            sums->after += y * y;
            sums->product += x * y;
        }
    }
    sums->rows++;
}

void loss_add(struct loss_sums *sums, const struct plan_kernel *kernel, const struct moe_row_table *table)
{
    for (int64_t i = 0; i < table->rows; i++)
        add_row(sums, kernel, table->src[i], table->dst[i]);
}

moe_wire_loss loss_of(const struct loss_sums *sums)
{
    moe_wire_loss loss = {.rows = sums->rows};
    if (sums->before > 0)
        loss.relative_l2 = sqrt(sums->difference / sums->before);
    if (sums->before > 0 && sums->after > 0)
        loss.cosine = 1 - sums->product / sqrt(sums->before * sums->after);
    if (loss.cosine < 0) // by rounding
        loss.cosine = 0;
    return loss;
}
