// Every model family from its checkpoint alone: `moecc import` writes the file, the compiled layer runs on a tiny random
// checkpoint in the family's own layout, and the output is Hugging Face's float32 block's (tests/data/make_families.py;
// NLLB: the formulas in float64). Relative L2 at most 1e-5 for f32 checkpoints, 5e-3 for bf16; one and four ranks.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/base/diag.h"
#include "compiler/import/import.h"
#include "tests/end_to_end/harness.h"

struct family_case {
    const char *name, *model;
    double bound;
    int64_t layer;
    bool limited; // drops tokens by their place in a rank's sequence: each of several ranks has the whole sequence
};

static const struct family_case families[] = {
    {"qwen3-next", "Qwen3-Next", 1e-5, 0, false},
    {"deepseek-v2-lite", "DeepSeek-V2-Lite", 1e-5, 1, false},
    {"deepseek-v2", "DeepSeek-V2", 1e-5, 1, false},
    {"glm4-moe", "GLM-4.5", 1e-5, 1, false},
    {"dots1", "dots.llm1", 1e-5, 1, false},
    {"ernie4-5", "ERNIE-4.5", 1e-5, 1, false},
    {"hunyuan", "Hunyuan-A13B", 1e-5, 0, false},
    {"phimoe", "Phi-3.5-MoE", 1e-5, 0, false},
    {"granite", "Granite 3.0", 1e-5, 0, false},
    {"jetmoe", "JetMoE", 1e-5, 0, false},
    {"dbrx", "DBRX", 1e-5, 0, false},
    {"llama4", "Llama-4", 1e-5, 1, false},
    {"gpt-oss-bf16", "gpt-oss, bf16", 5e-3, 0, false},
    {"gpt-oss-mxfp4", "gpt-oss, MXFP4", 5e-3, 0, false},
    {"switch", "Switch Transformers", 1e-5, 1, true},
    {"nllb", "NLLB-MoE", 1e-5, 3, true},
};

/// Of make_references.py: the layer's output stands among others.
static const struct family_case references[] = {
    {"olmoe-tiny-f32", "OLMoE", 1e-5, 1, false},           {"mixtral-tiny-f32", "Mixtral", 1e-5, 1, false},
    {"qwen2-moe-tiny-f32", "Qwen1.5/2-MoE", 1e-5, 1, false}, {"qwen3-moe-tiny-f32", "Qwen3-MoE", 1e-5, 1, false},
    {"deepseek-v3-tiny-f32", "DeepSeek-V3, Kimi-K2", 1e-5, 1, false},
    {"deepseek-v3-fp8-tiny", "DeepSeek-V3, E4M3", 5e-3, 1, false},
};

/// The text that import writes for the checkpoint, copied.
static char *import_family(const char *folder)
{
    struct context context;
    struct import_options options = {.path = folder};
    context_init(&context);
    const char *text = setjmp(context.fatal) ? NULL : import_checkpoint(&context, &options);
    char *copy = text ? strdup(text) : NULL;
    diag_print_all(&context, DIAG_TEXT, false, stderr);
    context_free(&context);
    return copy;
}

static float *repeated(float *values, size_t count, size_t times)
{
    float *all = malloc(count * times * sizeof *all);
    for (size_t i = 0; i < times; i++)
        memcpy(all + i * count, values, count * sizeof *all);
    free(values);
    return all;
}

static double run_family(const struct family_case *family, const char *folder, const char *text, uint32_t ranks,
                         const char *schedule)
{
    char input[1100], output[1100], name[32] = "output";
    bool reference = family >= references && family < references + sizeof references / sizeof *references;
    snprintf(input, sizeof input, "%s/%s.safetensors", folder, reference ? "input" : "case");
    snprintf(output, sizeof output, "%s/%s.safetensors", folder, reference ? "reference" : "case");
    if (reference)
        snprintf(name, sizeof name, "layer%d.hidden_states", (int)family->layer);
    struct subject subject = {.text = text, .layer = family->layer, .ranks = ranks, .schedule = schedule};
    moe_plan *plan = subject_compile(&subject);
    if (!plan)
        return NAN;
    int64_t rows, width, counts[4];
    float *in = read_f32(input, "hidden_states", &rows, &width), *want = read_f32(output, name, &rows, &width);
    for (uint32_t r = 0; r < ranks; r++)
        counts[r] = family->limited ? rows : rows * (r + 1) / ranks - rows * r / ranks;
    if (family->limited) {
        in = repeated(in, (size_t)(rows * width), ranks);
        want = repeated(want, (size_t)(rows * width), ranks);
        rows *= ranks;
    }
    struct run run = {.in = in, .tokens = counts, .weights = folder, .options = {.threads = 2, .poison = 1}};
    struct outcome o = run_plan_once(plan, &run);
    if (o.status != MOE_OK)
        fprintf(stderr, "%s: %s\n", family->name, o.error);
    double error = o.status == MOE_OK ? relative_l2(o.out, want, (size_t)(rows * width)) : NAN;
    CU_ASSERT_EQUAL(o.stats.dropped > 0, family->limited);
    outcome_free(&o);
    free(in);
    free(want);
    moe_plan_close(plan);
    return error;
}

static void check_families(const char *parent, const struct family_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct family_case *f = &cases[i];
        char relative[128];
        snprintf(relative, sizeof relative, "%s/%s", parent, f->name);
        char *folder = realpath(relative, NULL); // the written file is compiled elsewhere
        CU_ASSERT_PTR_NOT_NULL_FATAL(folder);
        char *text = import_family(folder);
        CU_ASSERT_PTR_NOT_NULL_FATAL(text);
        double one = run_family(f, folder, text, 1, "serial");
        double four = run_family(f, folder, text, 4, "ladder(n: 3)");
        printf("    | %s | runs | %.1e | %.0e |\n", f->model, fmax(one, four), f->bound);
        CU_ASSERT(one <= f->bound);
        CU_ASSERT(four <= f->bound);
        free(text);
        free(folder);
    }
}

static void test_families(void)
{
    printf("\n");
    check_families("tests/data", references, sizeof references / sizeof *references);
    check_families("tests/data/families", families, sizeof families / sizeof *families);
}

/// A checkpoint of a router that no library has: its noise belongs to the ranks, so four have an output of their own.
static void test_cosine_checkpoint(void)
{
    static const char folder[] = "tests/data/cosine", file[] = "tests/data/cosine/case.safetensors";
    for (uint32_t ranks = 1; ranks <= 4; ranks += 3) {
        int64_t rows, width, counts[4];
        struct subject subject = {
            .path = "tests/data/cosine/layer.moe", .layer = -1, .ranks = ranks, .schedule = ranks > 1 ? "ladder(n: 3)" : "serial"};
        moe_plan *plan = subject_compile(&subject);
        CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
        float *in = read_f32(file, "hidden_states", &rows, &width),
              *want = read_f32(file, ranks > 1 ? "output_4" : "output", &rows, &width);
        for (uint32_t r = 0; r < ranks; r++)
            counts[r] = rows / ranks;
        struct run run = {.in = in, .tokens = counts, .weights = folder, .options = {.threads = 2, .poison = 1}};
        struct outcome o = run_plan_once(plan, &run);
        CU_ASSERT_EQUAL_FATAL(o.status, MOE_OK);
        CU_ASSERT(relative_l2(o.out, want, (size_t)(rows * width)) <= 1e-5);
        outcome_free(&o);
        free(in);
        free(want);
        moe_plan_close(plan);
    }
}

void suite_families(void);
void suite_families(void)
{
    CU_pSuite suite = CU_add_suite("families", NULL, NULL);
    CU_add_test(suite, "imported checkpoints agree with the reference implementation", test_families);
    CU_add_test(suite, "cosine similarity with seeded noise, from a checkpoint", test_cosine_checkpoint);
}
