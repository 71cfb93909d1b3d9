// From a plan's kernels to CUDA source: a template behind its constants, one source a different kernel.
#include "tiles.h"
#include "compiler/base/diag.h"

#include <string.h>

enum { ROW_GRAIN = 64, TILE_GRAIN = 4 };

static struct cuda_source write_source(struct context *context, const struct cuda_chip *chip,
                                       const struct plan_kernel *kernel, const char *name)
{
    const char *file = context_printf(context, "%s.cu", kernel_role_words[kernel->role]);
    size_t size;
    const char *template = embedded_file(context_printf(context, "cuda/%s", file), &size);
    if (!template)
        fatal(context, EXIT_BUG, "there is no template %s", file);
    struct cuda_source source = {.name = name, .file = file, .place = ""};
    if (is_wide(chip, kernel))
        set_maps(&source, kernel);
    struct writer w = {context, context_printf(context, "#define KERNEL_NAME %s\n#define GPU_MAPS %d\n#include \"device.h\"\n\n",
                                               name, source.map_count)};
    put_role(&w, kernel);
    put_tiles(&w, chip, kernel, &source);
    source.text = context_printf(context, "%s\n#line 1 \"%s\"\n%.*s", w.text, file, (int)size, template);
    return source;
}

/// Units of work as plan.def counts them. A unit of the expert kernels is a panel: of an expert, or of all of them.
static void set_units(struct plan_kernel *kernel)
{
    bool expert_kernel = kernel->role == kernel_role_mlp_up || kernel->role == kernel_role_mlp_down;
    if (expert_kernel) {
        struct plan_param param = weights_of(kernel, false);
        bool up = kernel->role == kernel_role_mlp_up;
        kernel->unit_count = plan_up_units(&param, up ? kernel->n[11] >> 16 : 0);
    }
    kernel->grain = expert_kernel ? TILE_GRAIN : ROW_GRAIN;
    kernel->scratch_bytes = kernel->code_offset = 0;
}

static bool same_code(const struct plan_kernel *a, const struct plan_kernel *b)
{
    return a->role == b->role && !memcmp(a->n, b->n, sizeof a->n) && a->scale == b->scale && a->alpha == b->alpha &&
           a->limit == b->limit && a->temperature == b->temperature && a->noise == b->noise && a->seed == b->seed;
}

/// The source of a kernel before row `row` that is the same code; NONE: there is none.
static uint32_t known_source(const struct ir *plan, const struct cuda_sources *sources, uint32_t row)
{
    for (uint32_t i = 0; i < row; i++)
        if (sources->of_kernel[i] != NONE && same_code(ROW(plan, plan_kernel, i), ROW(plan, plan_kernel, row)))
            return sources->of_kernel[i];
    return NONE;
}

static bool choose_layouts(struct context *context, struct ir *plan)
{
    for (uint32_t i = 0; i < COUNT(plan, plan_param); i++) {
        struct plan_param *param = ROW(plan, plan_param, i);
        if (cuda_choose_layout(param))
            continue;
        diag_error(context, E0901, (struct span){0}, "weights `%s` have no CUDA layout yet", ir_text(plan, param->name));
        return false;
    }
    return true;
}

/// The stage that launches a kernel first.
static const char *stage_of(const struct ir *plan, uint32_t kernel)
{
    for (uint32_t i = 0; i < COUNT(plan, plan_instr); i++) {
        const struct plan_instr *instr = ROW(plan, plan_instr, i);
        if (instr->op == opcode_launch && instr->kernel == kernel)
            return ir_text(plan, instr->stage);
    }
    return "";
}

bool cuda_generate(struct context *context, struct ir *plan, const struct cuda_chip *chip, struct cuda_sources *sources)
{
    uint32_t count = COUNT(plan, plan_kernel);
    *sources = (struct cuda_sources){.at = context_alloc(context, (count + 1) * sizeof *sources->at),
                                     .of_kernel = context_alloc(context, (count + 1) * sizeof *sources->of_kernel)};
    if (!choose_layouts(context, plan))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        struct plan_kernel *kernel = ROW(plan, plan_kernel, i);
        sources->of_kernel[i] = NONE;
        if (kernel->builtin)
            continue;
        if (!cuda_has_kernel(chip, kernel)) {
            diag_error(context, E0901, (struct span){0}, "kernel `%s` has no CUDA code for %s yet",
                       ir_text(plan, kernel->name), chip->name);
            return false;
        }
        uint32_t source = known_source(plan, sources, i);
        if (source == NONE) {
            source = sources->count++;
            const char *name = context_printf(context, "%s_%u", kernel_role_words[kernel->role], source);
            sources->at[source] = write_source(context, chip, kernel, name);
            sources->at[source].stage = context_printf(context, "%s", stage_of(plan, i));
        }
        sources->of_kernel[i] = source;
        set_units(kernel);
    }
    return true;
}

_Noreturn void cuda_refused(struct context *context, const struct cuda_source *source, const char *words)
{
    fprintf(stderr, "%s", words);
    if (*source->stage)
        fprintf(stderr, "%s%snote: kernel `%s` is stage `%s`'s\n", source->place, *source->place ? ": " : "", source->name,
                source->stage);
    fatal(context, source->edited ? EXIT_INPUT : EXIT_BUG, "kernel `%s` does not compile", source->name);
}

void cuda_print(const struct cuda_sources *sources, FILE *out)
{
    for (uint32_t i = 0; i < sources->count; i++)
        fprintf(out, "%s// kernel %s, %d threads\n%s", i ? "\n" : "", sources->at[i].name, sources->at[i].threads,
                sources->at[i].text);
}
