// Whole layers whose kernels a GPU runs: the executor of this machine's CPU calls functions that launch, with the plan's own
// arguments, in memory that the driver has registered. So a layer is checked before there is an executor on the device. It
// runs where $MOE_GPU is set (make gpu-check).
#include <CUnit/CUnit.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/open.h"
#include "tests/codegen/fixture.h"
#include "tests/end_to_end/harness.h"

enum { MOST_KERNELS = 16 };

/// The plan whose kernels are on the GPU: one at a time.
static struct {
    struct code code;
    struct gpu_kernel kernels[MOST_KERNELS];
    pthread_mutex_t lock;
    int mapped; // before the plan's memory was reached; -1: it is not yet
    int launches;
} on_gpu = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void launch(int kernel, const struct moe_kargs *args, int64_t begin, int64_t end)
{
    pthread_mutex_lock(&on_gpu.lock); // a session's memory is there when its first kernel runs
    if (on_gpu.mapped < 0)
        on_gpu.mapped = gpu_reach_mapped();
    on_gpu.launches++;
    pthread_mutex_unlock(&on_gpu.lock);
    gpu_run(&on_gpu.kernels[kernel], args, begin, end);
}

#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define FUNCTION(n)                                                                                  \
    static void launch_##n(const struct moe_kargs *args, int64_t begin, int64_t end, void *scratch) \
    {                                                                                                \
        (void)scratch;                                                                               \
        launch(n, args, begin, end);                                                                 \
    }
EACH(FUNCTION)
#define NAME(n) launch_##n,
static moe_kernel_fn *const functions[MOST_KERNELS] = {EACH(NAME)};

/// Compiles the plan's kernels for the GPU and lets the executor call them there.
static void use_gpu(struct moe_plan *plan, const char *chip)
{
    const struct ir *ir = &plan->plan.ir;
    uint32_t count = COUNT(ir, plan_kernel);
    moe_kernel_fn *through[MOST_KERNELS] = {NULL};
    struct cuda_sources sources;
    CU_ASSERT_FATAL(count <= MOST_KERNELS);
    code_init(&on_gpu.code);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = ADD(&on_gpu.code.plan, plan_kernel);
        struct plan_kernel kernel = *ROW(ir, plan_kernel, i);
        kernel.name = ir_str(&on_gpu.code.plan, ir_text(ir, kernel.name));
        *ROW(&on_gpu.code.plan, plan_kernel, number) = kernel;
    }
    if (setjmp(on_gpu.code.context.fatal)) {
        fprintf(stderr, "%s\n", on_gpu.code.context.fatal_message);
        CU_FAIL_FATAL("the plan's kernels do not compile for the GPU");
    }
    CU_ASSERT_FATAL(cuda_generate(&on_gpu.code.context, &on_gpu.code.plan, cuda_chip(chip), &sources));
    for (uint32_t i = 0; i < count; i++) {
        if (sources.of_kernel[i] == NONE)
            continue;
        gpu_load(&on_gpu.code.context, cuda_chip(chip), &sources.at[sources.of_kernel[i]], plan->kernels[i], &on_gpu.kernels[i]);
        through[i] = functions[i];
    }
    plan_use_kernels(plan, through);
    on_gpu.mapped = -1;
    on_gpu.launches = 0;
}

static void check_layer(const char *model, int64_t layer, double bound)
{
    char moe[96], data[96], input[128], file[128], name[32], target[32];
    int64_t rows, width, counts[4];
    const char *chip = strchr(gpu_level("gpu:none"), ':') + 1;
    snprintf(moe, sizeof moe, "tests/end_to_end/%s.moe", model);
    snprintf(data, sizeof data, "tests/data/%s", model);
    snprintf(input, sizeof input, "%s/input.safetensors", data);
    snprintf(file, sizeof file, "%s/reference.safetensors", data);
    snprintf(name, sizeof name, "layer%d.hidden_states", (int)layer);
    snprintf(target, sizeof target, "cuda:%s,host", chip);
    struct subject subject = {.path = moe, .layer = layer, .ranks = 4, .target = target};
    moe_plan *plan = subject_compile(&subject);
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    use_gpu(plan, chip);
    float *in = read_f32(input, "hidden_states", &rows, &width), *want = read_f32(file, name, &rows, &width);
    for (int64_t r = 0; r < 4; r++)
        counts[r] = rows * (r + 1) / 4 - rows * r / 4;
    struct run run = {.in = in, .tokens = counts, .weights = data, .options = {.threads = 2, .poison = 1}};
    struct outcome o = run_plan_once(plan, &run);
    CU_ASSERT_EQUAL(o.status, MOE_OK);
    double error = relative_l2(o.out, want, (size_t)(rows * width));
    printf("\n    %s layer %d on %s: %d launches, relative L2 %.2e", model, (int)layer, gpu_name(), on_gpu.launches, error);
    CU_ASSERT(error <= bound && on_gpu.launches > 0);
    gpu_forget_mapped(on_gpu.mapped);
    outcome_free(&o);
    moe_plan_close(plan);
    code_free(&on_gpu.code);
    free(in), free(want);
}

static void test_layers(void)
{
    setenv("MOECC_CACHE", "build/cuda-cache", 0);
    if (!level_runs_here(gpu_level("cuda:sm_80")))
        return; // the plan is made with kernels for the CPU
    check_layer("olmoe-tiny", 0, 5e-3);
    check_layer("deepseek-v3-tiny", 2, 5e-3);
    check_layer("deepseek-v3-fp8-tiny", 2, 5e-3);
    printf("\n");
}

void suite_layers(void);
void suite_layers(void)
{
    CU_pSuite suite = CU_add_suite("layers", NULL, NULL);
    if (gpu_wanted())
        CU_add_test(suite, "whole layers by the GPU's kernels match their reference", test_layers);
}
