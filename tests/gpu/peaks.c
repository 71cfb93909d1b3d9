// What a GPU reaches at most (peaks.h), measured: a kernel of products alone, from random numbers in shared memory, by
// warpgroups or by warps; a copy by the driver.
#include "tests/gpu/peaks.h"

#include <CUnit/CUnit.h>
#include <string.h>

#include "tests/codegen/fixture.h"

// Products and nothing else, on random numbers in shared memory. `end` is how many rounds.
static const char peak_text[] =
    "#define KERNEL_NAME peak\n#include \"device.h\"\nconstexpr int SHARED_BYTES = 65536;\n"
    "GPU_KERNEL(256, 1)\n{\n"
    "    uint32_t *words = (uint32_t *)gpu::shared(), state = gpu::thread() + 1;\n"
    "    for (int i = gpu::thread(); i < SHARED_BYTES / 4; i += 256) {\n"
    "        state = state * 1664525u + 1013904223u;\n"
    "        words[i] = CODED ? state & 0xbfbfbfbfu : 0x3c003c00u | (state & 0x83ff83ffu);\n"
    "    }\n"
    "    float sum = 0;\n"
    "%s"
    "    if (sum == 12345.0f) *(float *)args.k.p[0] = sum;\n"
    "}\n";
static const char wide_products[] =
    "    gpu::publish();\n    gpu::sync_block();\n"
    "    char *a = gpu::shared() + gpu::thread() / 128 * 32768, *b = a + 16384;\n"
    "    float d[2][16][4];\n"
    "    for (int64_t r = 0; r < args.end; r++) {\n"
    "        gpu::multiply_begin();\n"
    "        GPU_UNROLL for (int k = 0; k < 128; k += 32)\n"
    "            GPU_UNROLL for (int m = 0; m < 2; m++)\n"
    "                gpu::multiply_group<false, 128>(d[m], gpu::matrix_k(gpu::matrix_at(a + m * 8192), k),\n"
    "                                                gpu::matrix_k(gpu::matrix_at(b), k), r > 0 || k > 0);\n"
    "        gpu::multiply_commit();\n        gpu::multiply_wait<0>();\n"
    "    }\n"
    "    GPU_UNROLL for (int m = 0; m < 2; m++) gpu::multiply_end(d[m]);\n"
    "    GPU_UNROLL for (int m = 0; m < 2; m++)\n"
    "        GPU_UNROLL for (int n = 0; n < 16; n++) sum += d[m][n][0] + d[m][n][1] + d[m][n][2] + d[m][n][3];\n";
static const char wide_coded_products[] =
    "    gpu::publish();\n    gpu::sync_block();\n"
    "    char *a = gpu::shared() + gpu::thread() / 128 * 32768, *b = a + 16384;\n"
    "    float d[2][8][4];\n"
    "    for (int64_t r = 0; r < args.end; r++) {\n"
    "        gpu::multiply_begin();\n"
    "        GPU_UNROLL for (int k = 0; k < 128; k += 32)\n"
    "            GPU_UNROLL for (int m = 0; m < 2; m++)\n"
    "                gpu::multiply_group_codes<64>(d[m], gpu::matrix_k(gpu::matrix_at(a + m * 8192), k),\n"
    "                                              gpu::matrix_k(gpu::matrix_at(b), k), r > 0 || k > 0);\n"
    "        gpu::multiply_commit();\n        gpu::multiply_wait<0>();\n"
    "    }\n"
    "    GPU_UNROLL for (int m = 0; m < 2; m++) gpu::multiply_end(d[m]);\n"
    "    GPU_UNROLL for (int m = 0; m < 2; m++)\n"
    "        GPU_UNROLL for (int n = 0; n < 8; n++) sum += d[m][n][0] + d[m][n][1] + d[m][n][2] + d[m][n][3];\n";
static const char narrow_products[] =
    "    gpu::sync_block();\n"
    "    float d[8][4] = {};\n    uint32_t a[4];\n"
    "    for (int i = 0; i < 4; i++) a[i] = words[gpu::thread() + 256 * i];\n"
    "    for (int64_t r = 0; r < args.end; r++)\n"
    "        GPU_UNROLL for (int n = 0; n < 8; n++) %s(d[n], a, a[n %% 4], a[(n + 1) %% 4]);\n"
    "    GPU_UNROLL for (int n = 0; n < 8; n++) sum += d[n][0] + d[n][1] + d[n][2] + d[n][3];\n";

struct peak {
    struct code code;
    struct cuda_source source;
    struct gpu_kernel kernel;
    int64_t rounds;
};

static void run_peak(void *user)
{
    struct peak *p = user;
    gpu_launch(&p->kernel, &(struct moe_kargs){.n = {0}}, 0, p->rounds, 0, 0);
}

/// Its text, and the FLOPs of a block's round.
static const char *peak_source(struct context *context, const struct cuda_chip *chip, bool fp8, double *flops)
{
    const char *products = fp8 ? wide_coded_products : wide_products;
    *flops = fp8 ? 2.0 * 2 * 128 * 64 * 128 : 2.0 * 2 * 128 * 128 * 64;
    if (!chip->warpgroups) {
        products = context_printf(context, narrow_products, fp8 ? "gpu::multiply_codes" : "gpu::multiply<false>");
        *flops = 8.0 * 8 * 2 * 16 * 8 * (fp8 ? 32 : 16);
    }
    return context_printf(context, "%sconstexpr bool CODED = %s;\n%s", chip->warpgroups ? "#include \"hopper.h\"\n" : "",
                          fp8 ? "true" : "false", context_printf(context, peak_text, products));
}

double measure_peak(bool fp8)
{
    struct peak p = {.rounds = gpu_is_fake() ? 2 : 20000};
    const struct cuda_chip *chip = cuda_chip(strchr(gpu_level(""), ':') + 1);
    double flops;
    code_init(&p.code);
    if (setjmp(p.code.context.fatal)) {
        CU_FAIL("the peak's kernel does not compile");
        return 1;
    }
    const char *text = peak_source(&p.code.context, chip, fp8, &flops);
    p.source = (struct cuda_source){.name = "peak", .file = "peak.cu", .text = text, .stage = "", .place = "", .threads = 256,
                                    .shared_bytes = 65536};
    code_add(&p.code, kernel_role_copy_rows, (int64_t[]){8, dtype_f32, dtype_f32}, 3, 1);
    moe_kernel_fn *on_cpu = NULL;
    struct cuda_sources sources = {&p.source, 1, &(uint32_t){0}};
    if (gpu_is_fake())
        host_load(&p.code.context, &p.code.plan, &sources, &(struct host_options){.seed = 1, .most_blocks = 1}, &on_cpu);
    gpu_load(&p.code.context, chip, &p.source, on_cpu, &p.kernel);
    double seconds = gpu_seconds(run_peak, &p), rate = (double)p.kernel.blocks * (double)p.rounds * flops / seconds / 1e12;
    code_free(&p.code);
    return rate;
}

struct copy {
    void *to, *from;
    size_t bytes;
};

static void run_copy(void *user)
{
    const struct copy *c = user;
    gpu_copy(c->to, c->from, c->bytes);
}

double measure_copy(void)
{
    struct copy c = {.bytes = gpu_is_fake() ? 1 << 16 : 1 << 30};
    c.to = gpu_alloc(c.bytes);
    c.from = gpu_alloc(c.bytes);
    gpu_fill(c.from, 1, c.bytes);
    double rate = 2 * (double)c.bytes / gpu_seconds(run_copy, &c) / 1e9;
    gpu_free(c.to);
    gpu_free(c.from);
    return rate;
}
