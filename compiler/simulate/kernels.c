// Which CUDA kernels a task launches, on how much: lowering's choice (lower/kernels.c) without lowering, for the constants that
// their estimates read (codegen/cuda/estimate.h). Built-in kernels, which write control data, are left out, and so is what
// relays do.
#include "compiler/simulate/costs.h"

#include <math.h>
#include <string.h>

#include "runtime/plan/kernels.h"
#include "runtime/plan/roles.h"

/// What kernels of a stage have in common.
struct maker {
    const struct formula *f;
    struct task_kernels *kernels;
    const struct mod_value *x, *y; // first value, result
    double tensor;
};

static const struct cuda_chip *chip_of(const struct model *m)
{
    const char *target = ir_text(m->module, m->pipeline->target_text);
    if (m->pipeline->target != target_cuda)
        return NULL;
    return cuda_chip(context_printf(m->context, "%.*s", (int)strcspn(target, ","), target));
}

/// FLOP/s of multiply-adds in f32, as the device says, or as its chip's tensor cores allow to conclude.
static double plain_rate(const struct mod_device *device, const struct cuda_chip *chip)
{
    return device->peak_f32 > 0 ? device->peak_f32 : device->peak_bf16 / (double)chip->tensor_rate;
}

static void add(const struct maker *k, const struct plan_kernel *kernel, const struct cuda_load *load)
{
    const struct model *m = k->f->model;
    const struct mod_device *device = ROW(m->module, mod_device, m->kinds[k->f->kind].device);
    struct task_kernels *list = k->kernels;
    double rate = cuda_on_tensor_cores(kernel) ? k->tensor : plain_rate(device, list->chip);
    struct cuda_speed speed = {(double)device->sm, device->derate * rate, device->hbm};
    if (load->rows <= 0)
        return;
    uint32_t same = 0;
    while (same < list->count && memcmp(&list->at[same].kernel, kernel, sizeof *kernel) != 0)
        same++;
    if (same == list->count)
        list->at[list->count++].kernel = *kernel;
    struct cuda_load *sum = &list->at[same].load; // zeros of a new one
    *sum = (struct cuda_load){sum->rows + load->rows, load->experts, sum->beside + load->beside};
    list->at[same].rate = rate;
    list->at[same].estimate = cuda_estimate(list->chip, kernel, sum, &speed);
}

/// moe_wire_code of a format; of none, the plain type.
static int64_t code_of(const struct model *m, uint32_t format, uint32_t dtype)
{
    if (format == NONE)
        return dtype;
    const struct mod_format *row = ROW(m->module, mod_format, format);
    return moe_wire_code(row->base, (uint32_t)row->block_cols, row->block_cols ? row->scale : scale_type_none);
}

static void set_blocks(struct plan_kernel *kernel, int64_t code)
{
    kernel->n[3] = code >> 16;
    kernel->n[4] = code >> 8 & 0xff;
}

static void add_route(const struct maker *k)
{
    const struct mod_stage *stage = k->f->stage;
    struct plan_kernel kernel = {.role = kernel_role_route, .n = {k->x->width, k->y->width}};
    kernel.n[2] = (int64_t)number_of(k->f->model, stage, "k", 1);
    kernel.n[5] = k->x->dtype;
    kernel.n[6] = (int64_t)number_of(k->f->model, stage, "groups", 1);
    add(k, &kernel, &(struct cuda_load){.rows = k->f->tokens});
}

/// Copies of rows to and from the formats of a stage's wire, by axis; an axis carries its share of the rows, or `rows` say.
static void add_wires(const struct maker *k, const struct mod_stage *stage, struct plan_kernel kernel, bool packs, double all,
                      const double *rows)
{
    const struct model *m = k->f->model;
    for (uint32_t a = 0; a < m->axes; a++) {
        double share = rows ? rows[a] : (double)((m->size[a] - 1) * m->inner[a]) / (double)m->ranks;
        int64_t code = code_of(m, wire_format(m, stage, a), (uint32_t)kernel.n[packs ? 1 : 2]);
        struct plan_kernel copy = kernel;
        copy.n[packs ? 2 : 1] = code & 0xff;
        if (!copy.n[7])
            set_blocks(&copy, code);
        add(k, &copy, &(struct cuda_load){.rows = all * share});
    }
}

static void add_pack(const struct maker *k)
{
    double rows[AXES_MAX];
    rows_by_axis(k->f, false, rows);
    struct plan_kernel kernel = {.role = kernel_role_copy_rows, .n = {k->x->width, k->x->dtype}};
    add_wires(k, k->f->stage, kernel, true, k->f->tokens, rows);
}

static const struct mod_param *matrix(const struct maker *k, bool down)
{
    const struct model *m = k->f->model;
    const struct mod_arg *arg = stage_arg(m->module, k->f->stage, down ? "w_down" : "w_gate_up");
    arg = arg ? arg : stage_arg(m->module, k->f->stage, "w_up");
    return ROW(m->module, mod_param, arg->param);
}

static int64_t arithmetic_of(const struct maker *k)
{
    const struct mod_arg *arg = stage_arg(k->f->model->module, k->f->stage, "arithmetic");
    if (!arg || arg->format == NONE || !ROW(k->f->model->module, mod_format, arg->format)->block_cols)
        return 0;
    return code_of(k->f->model, arg->format, 0);
}

static struct plan_kernel product(const struct maker *k, bool down)
{
    const struct model *m = k->f->model;
    const struct mod_param *weights = matrix(k, down), *second = matrix(k, true);
    const struct mod_format *stored = ROW(m->module, mod_format, weights->format);
    bool codes = dtype_quantised(stored->base);
    struct plan_kernel kernel = {.role = down ? kernel_role_mlp_down : kernel_role_mlp_up};
    kernel.n[0] = weights->dims[2];
    kernel.n[1] = down ? weights->dims[1] : second->dims[2];
    kernel.n[down ? 2 : 3] = codes ? k->x->dtype : stored->base;
    if (down)
        kernel.n[3] = k->y->dtype;
    else
        kernel.n[7] = stage_arg(m->module, k->f->stage, "w_gate_up") ? 0 : MLP_PLAIN;
    kernel.n[8] = codes ? stored->base : 0;
    kernel.n[9] = codes ? stored->block_cols : 0;
    kernel.n[11] = arithmetic_of(k);
    return kernel;
}

/// Rows that arrived, or that are here, to the rows of A: one a pair.
static void add_unpack(const struct maker *k, const struct mod_stage *dispatch, double all)
{
    const struct model *m = k->f->model;
    const struct plan_kernel up = product(k, false);
    struct plan_kernel kernel = {.role = kernel_role_copy_rows, .n = {k->x->width, k->x->dtype, up.n[3]}};
    if (up.n[11]) {
        kernel.n[2] = kernel.n[7] = up.n[11] & 0xff;
        set_blocks(&kernel, up.n[11]);
    }
    add(k, &kernel, &(struct cuda_load){.rows = dispatch ? all / (double)m->ranks : all});
    if (dispatch)
        add_wires(k, dispatch, kernel, false, all, NULL);
}

/// The combine that sends an expert's rows home; NULL: they are plain.
static const struct mod_stage *combine_of(const struct maker *k)
{
    const struct model *m = k->f->model;
    for (uint32_t s = 0; s < m->layer->stages.count; s++) {
        const struct mod_stage *stage = ROW(m->module, mod_stage, m->layer->stages.first + s);
        const struct mod_arg *first = value_arg(m, stage, 0);
        if (first && first->value == k->f->stage->result && stage_arg(m->module, stage, "wire"))
            return stage;
    }
    return NULL;
}

/// Sums that travel in another format than their own.
static void add_replies(const struct maker *k, double rows)
{
    struct task_kernels plain = *k->kernels;
    const struct mod_stage *combine = combine_of(k);
    struct plan_kernel kernel = {.role = kernel_role_copy_rows, .n = {k->y->width, k->y->dtype}};
    struct maker other = *k;
    other.kernels = &plain;
    if (!combine)
        return;
    add_wires(&other, combine, kernel, true, rows, NULL);
    for (uint32_t i = k->kernels->count; i < plain.count; i++)
        if (plain.at[i].kernel.n[1] != plain.at[i].kernel.n[2])
            k->kernels->at[k->kernels->count++] = plain.at[i];
}

static void add_experts(const struct maker *k, enum phase phase)
{
    const struct formula *f = k->f;
    const struct model *m = f->model;
    const struct mod_stage *dispatch = k->x->kind == value_kind_routed ? dispatch_of_stage(m, f->stage) : NULL;
    double all = pairs(f, k->x), experts = (double)matrix(k, true)->dims[0], rows = f->tokens;
    if (dispatch) {
        experts = fmin(owned_in_wave(f), all);
        rows = fmin(all, (double)m->ranks * f->tokens * routing_hit(&f->routing, owned_in_wave(f)));
    }
    if (phase != phase_down) {
        struct plan_kernel kernel = product(k, false);
        add_unpack(k, dispatch, all);
        add(k, &kernel, &(struct cuda_load){.rows = all, .experts = experts});
    }
    if (phase != phase_up) {
        struct plan_kernel kernel = product(k, true);
        add(k, &kernel, &(struct cuda_load){.rows = all, .experts = experts, .beside = rows});
        if (dispatch)
            add_replies(k, rows);
    }
}

/// Own rows are merged with those that come back.
static void add_merge(const struct maker *k)
{
    const struct formula *f = k->f;
    const struct model *m = f->model;
    double rows[AXES_MAX], all = routing_hit(&f->routing, owned_in_wave(f));
    bool ends = f->routing.wave_end >= f->routing.wave_total;
    struct plan_kernel kernel = {.role = kernel_role_merge,
                                 .n = {k->y->width, k->x->dtype, ends ? k->y->dtype : dtype_f32, f->routing.wave_begin > 0}};
    rows_by_axis(f, true, rows);
    for (uint32_t a = 0; a < m->axes; a++) {
        all += rows[a];
        if (rows[a] > 0 && kernel.n[4] < MOE_MAX_WIRES)
            kernel.n[5 + kernel.n[4]++] = code_of(m, wire_format(m, f->stage, a), k->x->dtype);
    }
    add(k, &kernel, &(struct cuda_load){.rows = f->tokens, .beside = f->tokens * all});
}

static void add_row_operator(const struct maker *k, uint32_t role)
{
    const struct model *m = k->f->model;
    struct plan_kernel kernel = {.role = role, .n = {k->y->width}};
    uint32_t values = 0;
    for (const struct mod_arg *arg; (arg = value_arg(m, k->f->stage, values));)
        kernel.n[++values] = ROW(m->module, mod_value, arg->value)->dtype;
    kernel.n[values + 1] = k->y->dtype;
    add(k, &kernel, &(struct cuda_load){.rows = k->f->tokens});
}

bool kernels_of_phase(const struct formula *f, enum phase phase, double tensor, struct task_kernels *kernels)
{
    const struct model *m = f->model;
    const struct mod_arg *first = value_arg(m, f->stage, 0);
    const char *name = ir_text(m->module, f->op->kernel);
    uint32_t role = row_operator(name);
    *kernels = (struct task_kernels){.chip = chip_of(m)};
    if (!kernels->chip || !first)
        return false;
    struct maker k = {f, kernels, ROW(m->module, mod_value, first->value), ROW(m->module, mod_value, f->stage->result), tensor};
    bool experts = !strcmp(name, "grouped_mlp") || !strcmp(name, "plain_mlp");
    if (role != kernel_role_words_count)
        add_row_operator(&k, role);
    else if (!strcmp(name, "route"))
        add_route(&k);
    else if (!strcmp(name, "dispatch") && (phase == phase_pack || phase == phase_whole))
        add_pack(&k);
    else if (!strcmp(name, "combine") && (phase == phase_merge || phase == phase_whole))
        add_merge(&k);
    else if (experts)
        add_experts(&k, phase);
    else
        return false;
    return true;
}
