// The estimates of a CUDA target's kernels as a table and as JSON: a launch of each task's first instance (of a layer, a
// micro-batch, a wave, a piece), on the first kind of rank.
#include <jansson.h>

#include "compiler/simulate/costs.h"
#include "runtime/plan/kernels.h"

struct table_row {
    const char *stage, *kernel, *chip;
    const struct cuda_estimate *estimate;
};

/// Calls `body` for each kernel. False: the target has none.
static bool each_kernel(const struct prediction *p, void (*body)(const struct prediction *, const struct table_row *, void *),
                        void *user)
{
    bool any = false;
    for (uint32_t i = 0; i < p->instances; i++) {
        const struct sched_instance *instance = ROW(p->schedule, sched_instance, i);
        struct sched_share wave = wave_share(p->schedule, 0);
        struct task_kernels kernels;
        if (instance->layer || instance->part || instance->wave || instance->piece ||
            !kernels_of_task(&p->model, instance->task, 0, instance_tokens(p, instance), &wave, &kernels))
            continue;
        for (uint32_t k = 0; k < kernels.count; k++, any = true)
            body(p,
                 &(struct table_row){ir_text(p->schedule, instance->label), kernel_role_words[kernels.at[k].kernel.role],
                                     kernels.chip->name, &kernels.at[k].estimate},
                 user);
    }
    return any;
}

static void print_row(const struct prediction *p, const struct table_row *row, void *user)
{
    const struct cuda_estimate *e = row->estimate;
    struct context *context = p->model.context;
    const struct cuda_tile *tile = &e->unit.tile;
    const char *shape = tile->features ? context_printf(context, "%lld x %lld", (long long)tile->rows, (long long)tile->features) : "row";
    fprintf(user, "  %-16s %-10s %-10s %9.0f %8.2f %9.3f %9.3f %9s  %s\n", row->stage, row->kernel, shape, e->blocks, e->waves,
            1e-9 * e->flops, 1e-6 * e->bytes, time_text(context, 1e9 * e->seconds), cuda_bound_words[e->bound]);
}

static void keep_chip(const struct prediction *p, const struct table_row *row, void *user)
{
    (void)p;
    *(const char **)user = row->chip;
}

void print_kernels(const struct prediction *p, FILE *out)
{
    const char *chip;
    if (!each_kernel(p, keep_chip, &chip))
        return;
    fprintf(out, "  kernels on %s, the first launch of each: least times, by tiles and memory\n", chip);
    fprintf(out, "  %-16s %-10s %-10s %9s %8s %9s %9s %9s  %s\n", "stage", "kernel", "tile", "blocks", "waves", "GFLOP", "MB", "time", "bound");
    each_kernel(p, print_row, out);
}

static void append_row(const struct prediction *p, const struct table_row *row, void *user)
{
    const struct cuda_estimate *e = row->estimate;
    (void)p;
    json_array_append_new(
        user, json_pack("{s:s, s:s, s:s, s:[I, I], s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:s}", "stage", row->stage, "kernel",
                        row->kernel, "chip", row->chip, "tile", (json_int_t)e->unit.tile.rows, (json_int_t)e->unit.tile.features,
                        "tile_flops", (json_int_t)e->unit.flops, "tile_bytes", (json_int_t)e->unit.reads, "blocks", e->blocks,
                        "waves", e->waves, "flops", e->flops, "bytes", e->bytes, "least_s", e->seconds, "bound",
                        cuda_bound_words[e->bound]));
}

json_t *kernels_json(const struct prediction *p)
{
    json_t *list = json_array();
    each_kernel(p, append_row, list);
    return list;
}
