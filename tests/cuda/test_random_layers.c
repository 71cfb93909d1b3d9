// Layers drawn at random: router, experts, weights, wire, cluster, schedule, sizes and tokens together. The CUDA kernels run
// by the CPU, every access checked, choose the experts that the native ones choose, and what either computes is float64's
// within the bound of its types. MOE_RANDOM_LAYERS says how many are drawn, MOE_RANDOM_FIRST where the numbers begin.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/codegen/fixture.h"
#include "tests/cuda/experts.h"
#include "tests/cuda/random_layer.h"
#include "tests/end_to_end/harness.h"

static const char *checkpoint(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/moe-random-%d.safetensors", (int)getpid());
    return path;
}

static struct outcome run_layer(const struct random_layer *l, const char *target)
{
    struct subject subject = {.text = l->text, .schedule = l->schedule, .target = target, .layer = -1, .cuda_seed = l->number};
    moe_plan *plan = subject_compile(&subject);
    struct outcome o = {.status = MOE_INVALID};
    if (!plan)
        return o;
    struct run run = {.in = l->x, .tokens = l->tokens, .weights = checkpoint(),
                      .given_ids = l->given_ids, .given_weights = l->given_weights,
                      .options = {.threads = 1 + (uint32_t)(l->number % 2), .poison = 1}};
    o = run_plan_once(plan, &run);
    if (o.status != MOE_OK)
        fprintf(stderr, "%s: %s\n", target, o.error);
    moe_plan_close(plan);
    return o;
}

/// What the types of rows, weights and wires may lose; and how far two computations of the same may be apart, where a number
/// that is rounded one way in one falls to the other side in the other.
static double bound_of(const struct random_layer *l, bool apart)
{
    bool f32 = !strcmp(l->type, "f32"), bf16 = !strcmp(l->type, "bf16");
    if (l->arithmetic || l->coded_wire)
        return apart ? 3e-3 : 0.08;
    if (l->narrow_wire)
        return apart ? 1e-3 : 8e-3;
    return f32 ? 2e-6 : bf16 ? (apart ? 1e-3 : 6e-3) : (apart ? 3e-4 : 1e-3);
}

/// Slots whose experts differ, or whose weights do by more than the rounding of f32.
static int64_t different_choices(const struct random_layer *l, const struct outcome *a, const struct outcome *b)
{
    int64_t different = 0;
    for (int64_t i = 0; i < l->all_tokens * l->choices; i++) {
        double x = (double)a->weights[i], y = (double)b->weights[i];
        bool near = isfinite(x) ? fabs(x - y) <= 1e-5 * fmax(fabs(x), 0.01) : isnan(x) ? isnan(y) : x == y;
        different += a->ids[i] != b->ids[i] || !near;
    }
    return different;
}

/// Numbers that are finite in one and not in another; they become 0 in all three, where they are no longer compared.
static int64_t take_infinities(float *a, float *b, float *want, size_t count)
{
    int64_t different = 0;
    for (size_t i = 0; i < count; i++) {
        if (isfinite(a[i]) && isfinite(b[i]) && isfinite(want[i]))
            continue;
        different += isfinite(a[i]) != isfinite(b[i]) || isnan(a[i]) != isnan(b[i]);
        a[i] = b[i] = want[i] = 0;
    }
    return different;
}

static bool agree(const struct random_layer *l, const struct outcome *native, const struct outcome *cuda)
{
    size_t count = (size_t)(l->all_tokens * l->hidden);
    float *want = calloc(count + 1, sizeof *want);
    int64_t choices = l->given ? 0 : different_choices(l, native, cuda);
    random_layer_reference(l, l->given ? l->given_ids : native->ids, l->given ? l->given_weights : native->weights, want);
    int64_t infinite = take_infinities(native->out, cuda->out, want, count);
    double error = relative_l2(native->out, want, count), other = relative_l2(cuda->out, want, count);
    double bound = bound_of(l, false), apart = relative_l2(cuda->out, native->out, count);
    bool fine = !choices && !infinite && error <= bound && other <= bound && apart <= bound_of(l, true);
    if (!fine || getenv("MOE_RANDOM_LAYERS"))
        fprintf(stderr, "layer %llu: %lld choices and %lld NaNs differ, native %.2e, CUDA %.2e of %.0e, apart %.2e of %.0e\n",
                (unsigned long long)l->number, (long long)choices, (long long)infinite, error, other, bound, apart,
                bound_of(l, true));
    free(want);
    return fine;
}

static void check_layer(uint64_t number, const char *target)
{
    struct random_layer l;
    random_layer_draw(&l, number, checkpoint());
    if (getenv("MOE_RANDOM_LAYERS"))
        fprintf(stderr, "layer %llu\n", (unsigned long long)number);
    struct outcome native = run_layer(&l, "cpu"), cuda = run_layer(&l, target);
    bool fine = native.status == MOE_OK && cuda.status == MOE_OK && agree(&l, &native, &cuda);
    CU_ASSERT(fine);
    if (!fine)
        fprintf(stderr, "layer %llu for %s by %s:\n%s\n", (unsigned long long)number, target, l.schedule, l.text);
    no_reports("random layers");
    outcome_free(&native);
    outcome_free(&cuda);
    random_layer_free(&l);
}

/// One of each way to multiply, by number.
static const char *target_of(uint64_t number)
{
    static const char *const targets[] = {"cuda:sm_80,host", "cuda:sm_90a,host", "cuda:sm_89,host"};
    return targets[number % 7 == 6 ? 2 : number % 2];
}

// Of the first hundred three that have most of what is rare: the weight on the input of E4M3 experts in f32 beside a shared
// expert with a gate, in waves; grouped scores with both biases, 16 experts on six ranks; MXFP4 experts without a gate through
// relays, with rows in blocks and supplied routes.
static void test_random(void)
{
    static const uint64_t chosen[] = {6, 12, 25};
    const char *text = getenv("MOE_RANDOM_LAYERS"), *from = getenv("MOE_RANDOM_FIRST");
    uint64_t first = from ? strtoull(from, NULL, 10) : 1, drawn = text ? strtoull(text, NULL, 10) : sizeof chosen / sizeof *chosen;
    setenv("MOECC_CACHE", "build/cuda-cache", 0);
    for (uint64_t i = 0; i < drawn && level_runs_here("cuda:sm_80"); i++) {
        uint64_t number = text ? first + i : chosen[i];
        check_layer(number, target_of(number));
    }
    remove(checkpoint());
}

void suite_random_layers(void);
void suite_random_layers(void)
{
    CU_pSuite suite = CU_add_suite("random_layers", NULL, NULL);
    CU_add_test(suite, "random layers: CUDA, native, float64", test_random);
}
