// Code for a CUDA target: sources of the plan's kernels, compiled for every chip that is asked for, or for this machine's CPU,
// or printed.
#include <stdlib.h>
#include <string.h>

#include "compiler/codegen/cuda/nvrtc.h"
#include "compiler/compilation.h"

// Where the pipeline's layer has a stage, for messages about its kernels.
static const char *stage_place(const struct compilation *c, const char *name)
{
    const struct mod_layer *layer = ROW(c->module, mod_layer, ROW(c->module, mod_pipeline, c->pipeline)->layer);
    for (uint32_t i = 0; i < layer->stages.count; i++) {
        const struct mod_stage *stage = ROW(c->module, mod_stage, layer->stages.first + i);
        uint32_t line, column;
        if (strcmp(name, ir_text(c->module, stage->name)) != 0 || !stage->node)
            continue;
        struct span span = node_at(&c->text.ast, stage->node)->span;
        line_column(&c->context->files[span.file], span.begin, &line, &column);
        return context_printf(c->context, "%s:%u:%u", c->context->files[span.file].path, line, column);
    }
    return "";
}

/// The chips of a CUDA target's text; true: and there is another, at *at.
static const struct cuda_chip *next_chip(struct compilation *c, const char **at)
{
    size_t length = strcspn(*at, ",");
    const struct cuda_chip *chip = cuda_chip(context_printf(c->context, "%.*s", (int)length, *at));
    *at += length + ((*at)[length] == ',');
    return chip;
}

static const char *cuda_target(struct compilation *c)
{
    return ir_text(c->module, ROW(c->module, mod_pipeline, c->pipeline)->target_text);
}

/// The plan's kernels as CUDA source for a chip.
static bool generate_sources(struct compilation *c, const struct cuda_chip *chip, struct cuda_sources *sources)
{
    if (!cuda_generate(c->context, c->plan, chip, sources))
        return false;
    for (uint32_t i = 0; i < sources->count; i++)
        sources->at[i].place = stage_place(c, sources->at[i].stage);
    if (c->options->use_cuda)
        cuda_use_file(c->context, sources, c->options->use_cuda);
    return true;
}

/// Kernels that no GPU runs: compiled for this machine's CPU, beside a plan without native code.
static bool load_for_host(struct compilation *c)
{
    const char *target = cuda_target(c);
    struct cuda_sources sources;
    if (!generate_sources(c, next_chip(c, &target), &sources))
        return false;
    c->result->kernels = calloc(COUNT(c->plan, plan_kernel) + 1, sizeof *c->result->kernels);
    if (!c->result->kernels)
        fatal(c->context, EXIT_SYSTEM, "out of memory");
    host_load(c->context, c->plan, &sources, &c->options->cuda_host, c->result->kernels);
    str_id level = ir_str(c->plan, "emulated");
    ROW(c->plan, plan_info, 0)->cpu_level = level;
    return true;
}

/// Code for every chip of the target, behind the plan's tables. Chips that cut a product into other units than the first
/// would need a plan of their own.
static bool embed_for_chips(struct compilation *c, void **code, size_t *code_bytes)
{
    struct cuda_image image = {0};
    int64_t *units = context_alloc(c->context, (COUNT(c->plan, plan_kernel) + 1) * sizeof *units);
    for (const char *target = cuda_target(c), *first = target; *target;) {
        bool again = target > first;
        const struct cuda_chip *chip = next_chip(c, &target);
        struct cuda_sources sources;
        if (!generate_sources(c, chip, &sources))
            return false;
        for (uint32_t i = 0; i < COUNT(c->plan, plan_kernel); i++) {
            int64_t count = ROW(c->plan, plan_kernel, i)->unit_count;
            if (again && count != units[i])
                fatal(c->context, EXIT_INPUT, "`%s` and the chips before it have products in other tiles: build for each alone",
                      chip->name);
            units[i] = count;
        }
        nvrtc_embed(c->context, c->plan, chip, &sources, &image);
    }
    *code = malloc(image.size + 1);
    if (!*code)
        fatal(c->context, EXIT_SYSTEM, "out of memory");
    memcpy(*code, image.bytes, image.size);
    *code_bytes = image.size;
    str_id level = ir_str(c->plan, "cuda");
    ROW(c->plan, plan_info, 0)->cpu_level = level;
    if (c->options->verbose)
        fprintf(stderr, "%u CUDA kernels, %u of them compiled now, the others from the cache; %zu bytes\n", image.kernels,
                image.made, image.size);
    return true;
}

bool generate_cuda(struct compilation *c, void **code, size_t *code_bytes)
{
    const struct mod_pipeline *pipeline = ROW(c->module, mod_pipeline, c->pipeline);
    bool host = strstr(cuda_target(c), ",host") != NULL, deployed = c->options->check.deployed;
    if (host != deployed)
        return host ? load_for_host(c) : embed_for_chips(c, code, code_bytes);
    struct span place = pipeline->node ? node_at(&c->text.ast, pipeline->node)->name_span : (struct span){.file = NONE};
    if (deployed) {
        const char *target = cuda_target(c);
        const char *chip = context_printf(c->context, "%.*s", (int)strcspn(target, ","), target);
        struct diag *diag =
            diag_error(c->context, E0901, place, "an executable cannot carry the CUDA kernels that `cuda(%s)` runs on the CPU", target);
        diag_note(c->context, diag, "`host` compiles them with a C++ compiler when they run; an executable needs nothing but libc");
        diag_help(c->context, diag, "`build --target cuda:%s` carries their code for the GPU, `--target cpu` native kernels; "
                                    "`run --target cuda:%s` tries them here",
                  chip, target);
        return false;
    }
    struct diag *diag = diag_error(c->context, E0901, place, "running kernels for `cuda(%s)` on a GPU is not built yet",
                                   cuda_target(c));
    diag_help(c->context, diag, "`moecc run --target cuda:sm_80,host` runs CUDA kernels on this machine's CPU, "
                                "`--target cpu` native ones");
    return false;
}

bool print_cuda(struct compilation *c)
{
    struct cuda_sources sources;
    bool ptx = emitted(c, "ptx"), cubin = emitted(c, "cubin");
    if (!ptx && !cubin && !emitted(c, "cuda"))
        return false;
    if (ROW(c->module, mod_pipeline, c->pipeline)->target != target_cuda)
        fatal(c->context, EXIT_USAGE, "`--emit=%s` is for a CUDA target, as in `--target cuda:sm_80`", c->options->emit);
    const char *target = cuda_target(c);
    const struct cuda_chip *chip = next_chip(c, &target);
    if (!generate_sources(c, chip, &sources))
        return true;
    if (ptx)
        nvrtc_print_ptx(c->context, chip, &sources, c->options->out);
    else if (cubin)
        nvrtc_print_resources(c->context, chip, &sources, true, c->options->out);
    else
        cuda_print(&sources, c->options->out);
    return true;
}
