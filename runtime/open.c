// The public functions about plans: open, describe, close. Opening also makes an executable copy of the native code, so
// that the plan's own bytes stay read-only and may lie anywhere.
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "open.h"
#include "runtime/device/machine.h"

static _Thread_local char last_error[512];

moe_status open_fail(moe_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(last_error, sizeof last_error, format, list);
    va_end(list);
    return status;
}

const char *moe_last_error(void)
{
    return last_error;
}

const char *moe_status_text(moe_status status)
{
    static const char *const texts[] = {
#define STATUS_TEXT(name, text) [name] = #name ": " text,
        MOE_STATUSES(STATUS_TEXT)
#undef STATUS_TEXT
    };
    return status < sizeof texts / sizeof *texts ? texts[status] : "unknown status";
}

/// Copies the code to fresh pages and makes them executable; resolves every generated kernel's address. A plan for GPUs has
/// code that is none of this machine's.
static moe_status map_code(moe_plan *plan)
{
    const struct ir *ir = &plan->plan.ir;
    uint32_t count = COUNT(ir, plan_kernel);
    plan->kernels = calloc((size_t)count + 1, sizeof(moe_kernel_fn *));
    if (!plan->kernels)
        return open_fail(MOE_NO_MEMORY, "out of memory");
    if (!plan->plan.code_bytes || ROW(ir, plan_info, 0)->target == target_cuda)
        return MOE_OK;
    plan->code_map_bytes = plan->plan.code_bytes;
    void *code = mmap(NULL, plan->code_map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED)
        return open_fail(MOE_NO_MEMORY, "out of memory for %zu bytes of code", plan->code_map_bytes);
    plan->code = code;
    memcpy(code, plan->plan.code, plan->plan.code_bytes);
    if (mprotect(code, plan->code_map_bytes, PROT_READ | PROT_EXEC) != 0)
        return open_fail(MOE_UNSUPPORTED, "this system does not allow generated code to run");
    __builtin___clear_cache((char *)code, (char *)code + plan->code_map_bytes);
    for (uint32_t i = 0; i < count; i++) {
        const struct plan_kernel *k = ROW(ir, plan_kernel, i);
        if (k->builtin)
            continue;
        void *address = (char *)code + k->code_offset; // inside: plan_validate
        memcpy(&plan->kernels[i], &address, sizeof address); // an object pointer becomes a function pointer, as with dlsym
    }
    return MOE_OK;
}

void plan_use_kernels(struct moe_plan *plan, moe_kernel_fn *const *kernels)
{
    for (uint32_t i = 0; i < COUNT(&plan->plan.ir, plan_kernel); i++)
        if (kernels[i])
            plan->kernels[i] = kernels[i];
}

static moe_status finish(moe_plan *opened, bool good, const char *problem, moe_plan **plan)
{
    moe_status status = good ? map_code(opened) : open_fail(strcmp(problem, PLAN_NO_MEMORY) ? MOE_BAD_PLAN : MOE_NO_MEMORY, "%s", problem);
    if (status != MOE_OK) {
        moe_plan_close(opened);
        return status;
    }
    *plan = opened;
    return MOE_OK;
}

moe_status moe_plan_open(const char *path, moe_plan **plan)
{
    if (!path || !plan)
        return open_fail(MOE_INVALID, "no path or no place for the plan");
    moe_plan *opened = calloc(1, sizeof *opened);
    if (!opened)
        return open_fail(MOE_NO_MEMORY, "out of memory");
    char problem[512] = "";
    return finish(opened, plan_open_file(&opened->plan, path, machine_runs, problem, sizeof problem), problem, plan);
}

moe_status moe_plan_from_memory(const void *bytes, size_t size, moe_plan **plan)
{
    if (!bytes || !plan)
        return open_fail(MOE_INVALID, "no bytes or no place for the plan");
    moe_plan *opened = calloc(1, sizeof *opened);
    if (!opened)
        return open_fail(MOE_NO_MEMORY, "out of memory");
    char problem[512] = "";
    return finish(opened, plan_open(&opened->plan, bytes, size, true, problem, sizeof problem), problem, plan);
}

void moe_plan_close(moe_plan *plan)
{
    if (!plan)
        return;
    if (plan->code)
        munmap(plan->code, plan->code_map_bytes);
    free(plan->kernels);
    plan_close(&plan->plan);
    free(plan);
}

void moe_plan_describe(const moe_plan *plan, moe_plan_info *info)
{
    const struct ir *ir = &plan->plan.ir;
    const struct plan_info *i = ROW(ir, plan_info, 0);
    *info = (moe_plan_info){.name = ir_text(ir, i->name),
                            .ranks = i->ranks,
                            .experts = i->experts,
                            .choices = i->choices,
                            .layers = i->layers,
                            .first_layer = i->first_layer,
                            .width = i->width,
                            .peak_flops = i->peak_flops,
                            .tokens_bound = i->tokens_bound,
                            .x_dtype = dtype_words[i->x_dtype],
                            .y_dtype = dtype_words[i->y_dtype],
                            .weights = ir_text(ir, i->weights),
                            .target = target_words[i->target],
                            .cpu_level = ir_text(ir, i->cpu_level),
                            .hash = plan->plan.hash};
    for (uint32_t w = 0; w < COUNT(ir, plan_wire); w++)
        info->quantised |= ROW(ir, plan_wire, w)->block > 0;
}
