// Names of ranks for people.
#include "axes.h"

#include <stdio.h>

const char *rank_text(const struct ir *ir, uint32_t rank, char *text)
{
    struct rows axes = ROW(ir, plan_info, 0)->axes;
    int used = snprintf(text, RANK_TEXT, "rank %u", rank);
    for (uint32_t i = 0; i < axes.count && axes.count > 1 && used < RANK_TEXT; i++) {
        const struct plan_axis *axis = axis_at(ir, i);
        used += snprintf(text + used, (size_t)(RANK_TEXT - used), "%s%.24s[%lld]%s", i ? " " : " (",
                         ir_text(ir, axis->name), (long long)(rank / axis->stride % axis->size),
                         i + 1 < axes.count ? "" : ")");
    }
    return text;
}
