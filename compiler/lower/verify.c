// The proof of a lowered program, on the plan that will run: it cannot deadlock, no two unordered accesses meet in a
// byte unless both read, and every buffer is large enough. Independent of the schedule's own proof.
#include <stdarg.h>

#include "compiler/lower/verify.h"

bool verify_fail(const struct verifier *v, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(v->error, v->size, format, list);
    va_end(list);
    return false;
}

const char *event_text(const struct verifier *v, uint32_t event)
{
    const struct plan_instr *instr = event_instr(v, event);
    const char *role = "", *blank = "";
    if (instr->op == opcode_launch && instr->kernel != NONE) {
        role = kernel_role_words[ROW(v->plan, plan_kernel, instr->kernel)->role];
        blank = " ";
    }
    return context_printf(v->context, "`%s` (%s%s%s, layer %u)", ir_text(v->plan, instr->label),
                          opcode_words[instr->op], blank, role, instr->layer);
}

static bool same_programs(struct verifier *v)
{
    if (v->variant->programs.count != v->info->ranks || !v->info->ranks)
        return verify_fail(v, "%u programs for %u ranks", v->variant->programs.count, v->info->ranks);
    v->programs = ROW(v->plan, plan_program, v->variant->programs.first);
    v->streams = v->programs->streams;
    for (uint32_t r = 0; r < v->variant->programs.count; r++) {
        const struct plan_program *program = &v->programs[r];
        if (program->streams.first != v->streams.first || program->streams.count != v->streams.count)
            return verify_fail(v, "rank %u runs another program than rank 0", r);
        if (program->extents.count != v->variant->buffers.count)
            return verify_fail(v, "rank %u has %u extents for %u buffers", r, program->extents.count,
                               v->variant->buffers.count);
    }
    return true;
}

bool program_verify(struct context *context, const struct ir *plan, uint32_t variant, char *error, size_t size)
{
    struct verifier v = {.context = context,
                         .plan = plan,
                         .variant = ROW(plan, plan_variant, variant),
                         .info = ROW(plan, plan_info, 0),
                         .error = error,
                         .size = size};
    v.kinds = 2;
    for (uint32_t i = 0; i < v.variant->exchanges.count; i++) {
        uint32_t node = ROW(plan, plan_exchange, v.variant->exchanges.first + i)->node;
        if (node && v.node && node != v.node)
            return verify_fail(&v, "nodes of %u and of %u ranks", v.node, node);
        v.node = node ? node : v.node;
        v.kinds = v.node ? KINDS : v.kinds;
    }
    return same_programs(&v) && verify_events(&v) && verify_accesses(&v) && verify_formats(&v) && verify_sizes(&v);
}
