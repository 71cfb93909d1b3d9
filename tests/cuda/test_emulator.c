// The emulator of CUDA blocks: kernels that are wrong are found and told where, in any order of their threads, and the same
// kernels mended are not.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

#include "tests/codegen/fixture.h"

enum { THREADS = 128, SEEDS = 5 };

struct program {
    const char *name, *body, *finding; // finding NULL: a right program
};

// sm_90a: a barrier at 8192 and a box of eight rows that it waits for.
#define BOX(publish, bytes)                                                                              \
    "gpu::Barrier *b = (gpu::Barrier *)(gpu::shared() + 8192);\n"                                        \
    "if (gpu::thread() == 0) { gpu::barrier_init(b, 1); " publish " }\n"                                 \
    "gpu::sync_block();\n"                                                                               \
    "gpu::Map map = {(const char *)args.k.p[1], {64, 8}, {2, 128}, {64, 8}, 2};\n"                        \
    "if (gpu::thread() == 0) { gpu::barrier_expect(b, " bytes "); gpu::copy_box(gpu::shared(), map, b, 0, 0); }\n"
#define READ_BOX "if (gpu::block() == 0) ((int *)args.k.p[0])[gpu::thread()] = ((int *)gpu::shared())[gpu::thread()];\n"
// Rows of A at 0 and of B at 8192, all ones, written by threads and multiplied.
#define WRITE_MATRICES                                                                                   \
    "for (int i = gpu::thread(); i < 9 * 256; i += 128) ((uint32_t *)gpu::shared())[i] = 0x3f803f80u;\n"
#define MATRICES(publish) WRITE_MATRICES publish "gpu::sync_block();\nfloat d[1][4];\n"
#define PRODUCT "gpu::multiply_group<false, 8>(d, gpu::matrix_at(gpu::shared()), gpu::matrix_at(gpu::shared() + 8192), false);\n"
#define USE_SUMS "if (gpu::block() == 0 && d[0][0] != 16) ((int *)args.k.p[0])[gpu::thread()] = 1;\n"

// Each line of a body is a line of the kernel, from 1 on.
static const struct program programs[] = {
    {"a barrier between a write and another thread's read",
     "int *at = (int *)gpu::shared(), *out = (int *)args.k.p[0];\n"
     "at[gpu::thread()] = gpu::thread();\n"
     "gpu::sync_block();\n"
     "if (gpu::block() == 0) out[gpu::thread()] = at[(gpu::thread() + 1) % 128];\n",
     NULL},
    {"the barrier is missing",
     "int *at = (int *)gpu::shared(), *out = (int *)args.k.p[0];\n"
     "at[gpu::thread()] = gpu::thread();\n"
     "\n"
     "if (gpu::block() == 0) out[gpu::thread()] = at[(gpu::thread() + 1) % 128];\n",
     "body.cu:4"},
    {"a warp's barrier is enough within a warp",
     "int *at = (int *)gpu::shared(), *out = (int *)args.k.p[0];\n"
     "at[gpu::thread()] = gpu::thread();\n"
     "gpu::sync_warp();\n"
     "if (gpu::block() == 0) out[gpu::thread()] = at[gpu::thread() ^ 1];\n",
     NULL},
    {"a shuffle orders no memory",
     "int *at = (int *)gpu::shared(), *out = (int *)args.k.p[0];\n"
     "at[gpu::thread()] = gpu::thread();\n"
     "int other = gpu::shuffle_xor(gpu::thread(), 1);\n"
     "if (gpu::block() == 0) out[gpu::thread()] = at[other];\n",
     "is not ordered after the"},
    {"a barrier that half of the threads pass by",
     "if (gpu::thread() < 64)\n"
     "    gpu::sync_block();\n",
     "64 threads (0 to 63) wait in sync_block at body.cu:2"},
    {"what the barrier of the deadlock lacks",
     "if (gpu::thread() < 64)\n"
     "    gpu::sync_block();\n",
     "the block's barrier has 64 of 128 threads; 64 have ended"},
    {"lanes that meet in different operations",
     "if (gpu::lane() < 16)\n"
     "    gpu::sync_warp();\n"
     "else\n"
     "    gpu::shuffle(1, 0);\n",
     "lanes of a warp meet in different operations"},
    {"a copy that is waited for",
     "char *to = gpu::shared() + 16 * gpu::thread();\n"
     "gpu::copy_async(to, (const char *)args.k.p[1] + 16 * gpu::thread(), 16);\n"
     "gpu::copy_async_commit();\n"
     "gpu::copy_async_wait<0>();\n"
     "if (gpu::block() == 0) ((int *)args.k.p[0])[gpu::thread()] = *(int *)to;\n",
     NULL},
    {"a copy that is not waited for",
     "char *to = gpu::shared() + 16 * gpu::thread();\n"
     "gpu::copy_async(to, (const char *)args.k.p[1] + 16 * gpu::thread(), 16);\n"
     "gpu::copy_async_commit();\n"
     "gpu::copy_async_wait<1>();\n"
     "if (gpu::block() == 0) ((int *)args.k.p[0])[gpu::thread()] = *(int *)to;\n",
     "is not ordered after the write by a copy started by thread"},
    {"a copy that another thread waits for",
     "char *to = gpu::shared() + 16 * gpu::thread();\n"
     "gpu::copy_async(to, (const char *)args.k.p[1] + 16 * gpu::thread(), 16);\n"
     "gpu::copy_async_commit();\n"
     "gpu::copy_async_wait<0>();\n"
     "if (gpu::block() == 0) ((int *)args.k.p[0])[gpu::thread()] = *(int *)(gpu::shared() + 16 * (gpu::thread() ^ 1));\n",
     "body.cu:5"},
    {"a copy at the end",
     "gpu::copy_async(gpu::shared() + 16 * gpu::thread(), args.k.p[1], 16);\n",
     "ends with asynchronous copies it has not waited for"},
    {"a copy to where nothing is shared",
     "gpu::copy_async(gpu::shared() + 65536, args.k.p[1], 16);\n"
     "gpu::copy_async_wait<0>();\n",
     "not to shared memory"},
    {"shared memory that nobody has written",
     "if (gpu::block() == 0) ((int *)args.k.p[0])[gpu::thread()] = ((int *)gpu::shared())[gpu::thread()];\n",
     "reads shared memory that nobody has written"},
    {"two blocks that write the same word",
     "((int *)args.k.p[0])[gpu::thread()] = gpu::block();\n",
     "write of global memory by block"},
    {"two threads that write the same word",
     "if (gpu::block() == 0) ((int *)args.k.p[0])[gpu::thread() / 2] = 1;\n",
     "is not ordered after the write by thread"},
    {"a box that is waited for", BOX("gpu::publish();", "1024") "gpu::barrier_wait(b, 0);\n" READ_BOX, NULL},
    {"a box that is not waited for",
     BOX("gpu::publish();", "1024") "gpu::sync_block();\n" READ_BOX "gpu::barrier_wait(b, 0);\n",
     "is not ordered after the write by a box copied for barrier 0"},
    {"a barrier that is not published", BOX("", "1024") "gpu::barrier_wait(b, 0);\n" READ_BOX, "has not published"},
    {"a barrier that expects more bytes", BOX("gpu::publish();", "1040") "gpu::barrier_wait(b, 0);\n",
     "phase 0 lacks 0 of 1 arrivals and 16 bytes"},
    {"a barrier that expects fewer bytes", BOX("gpu::publish();", "512") "gpu::barrier_wait(b, 0);\n",
     "deadlock"},
    {"a barrier whose initialisation is not seen",
     "gpu::Barrier *b = (gpu::Barrier *)gpu::shared();\n"
     "if (gpu::thread() == 0) gpu::barrier_init(b, 128);\n"
     "gpu::shuffle(1, 0);\n"
     "if (gpu::warp() == 0) gpu::barrier_arrive(b);\n",
     "it is not ordered after"},
    {"arrivals that do not suffice",
     "gpu::Barrier *b = (gpu::Barrier *)gpu::shared();\n"
     "if (gpu::thread() == 0) gpu::barrier_init(b, 129);\n"
     "gpu::sync_block();\n"
     "gpu::barrier_arrive(b);\n"
     "gpu::barrier_wait(b, 0);\n",
     "barrier_wait for barrier 0, whose phase 0 lacks 1 of 129 arrivals and 0 bytes"},
    {"a barrier orders what came before its arrivals",
     "gpu::Barrier *b = (gpu::Barrier *)gpu::shared();\n"
     "int *at = (int *)(gpu::shared() + 1024);\n"
     "if (gpu::thread() == 0) gpu::barrier_init(b, 128);\n"
     "gpu::sync_block();\n"
     "at[gpu::thread()] = gpu::thread();\n"
     "gpu::barrier_arrive(b);\n"
     "gpu::barrier_wait(b, 0);\n"
     "if (gpu::block() == 0) ((int *)args.k.p[0])[gpu::thread()] = at[(gpu::thread() + 1) % 128];\n",
     NULL},
    {"a product that is waited for",
     MATRICES("gpu::publish();") "gpu::multiply_begin();\n" PRODUCT
                                           "gpu::multiply_commit();\ngpu::multiply_wait<0>();\n" USE_SUMS,
     NULL},
    {"a product of rows that are not published",
     MATRICES("") "gpu::multiply_begin();\n" PRODUCT "gpu::multiply_commit();\ngpu::multiply_wait<0>();\n" USE_SUMS,
     "meets a write that was not published"},
    {"sums that are not waited for",
     MATRICES("gpu::publish();") "gpu::multiply_begin();\n" PRODUCT "gpu::multiply_commit();\n" USE_SUMS
                                          "gpu::multiply_wait<0>();\n",
     "touches sums of products it has not waited for"},
    {"a product without a beginning",
     MATRICES("gpu::publish();") PRODUCT "gpu::multiply_commit();\ngpu::multiply_wait<0>();\n" USE_SUMS,
     "without multiply_begin"},
    {"a product that is not committed",
     MATRICES("gpu::publish();") "gpu::multiply_begin();\n" PRODUCT "gpu::multiply_wait<0>();\n",
     "ends with products it has not waited for"},
    {"rows that a product may still read",
     MATRICES("gpu::publish();") "gpu::multiply_begin();\n" PRODUCT
                                          "gpu::multiply_commit();\n((uint32_t *)gpu::shared())[gpu::thread()] = 0;\n"
                                          "gpu::multiply_wait<0>();\n",
     "is not ordered after the read by the products of warp"},
    {"a barrier of some threads",
     "int *at = (int *)gpu::shared(), *out = (int *)args.k.p[0];\n"
     "at[gpu::thread()] = gpu::thread();\n"
     "gpu::sync_threads<64>(1 + gpu::thread() / 64);\n"
     "if (gpu::block() == 0) out[gpu::thread()] = at[gpu::thread() ^ 32];\n",
     NULL},
    {"a barrier of the wrong threads",
     "int *at = (int *)gpu::shared(), *out = (int *)args.k.p[0];\n"
     "at[gpu::thread()] = gpu::thread();\n"
     "gpu::sync_threads<64>(1 + gpu::thread() / 64);\n"
     "if (gpu::block() == 0) out[gpu::thread()] = at[gpu::thread() ^ 64];\n",
     "is not ordered after the write by thread"},
};

static int run_program(const struct program *program, uint64_t seed, char *reports, size_t size)
{
    struct code code;
    int *out = block(THREADS * 4), *in = block(THREADS * 16);
    code_init(&code);
    int64_t n[] = {8, dtype_f32, dtype_f32};
    code_add(&code, kernel_role_copy_rows, n, 3, 1);
    if (setjmp(code.context.fatal)) {
        CU_FAIL("a program does not compile");
        return -1;
    }
    const char *text = context_printf(&code.context,
                                      "#define KERNEL_NAME body\n#include \"device.h\"\n#include \"hopper.h\"\n"
                                      "constexpr int SHARED_BYTES = 16384;\n"
                                      "GPU_KERNEL(128, 1)\n{\n#line 1 \"body.cu\"\n%s}\n",
                                      program->body);
    struct cuda_source source = {.name = "body", .file = "body.cu", .text = text, .stage = "", .place = ""};
    struct cuda_sources sources = {&source, 1, &(uint32_t){0}};
    struct host_options options = {.checked = true, .seed = seed, .most_blocks = 4};
    code.kernels = calloc(1, sizeof *code.kernels);
    host_load(&code.context, &code.plan, &sources, &options, code.kernels);
    struct moe_kargs args = {.p = {out, in}};
    for (int i = 0; i < 4; i++)
        code_run(&code, 0, &args, 0, 1);
    int found = host_reports(reports, size);
    code_free(&code);
    free(out);
    free(in);
    return found;
}

static void test_programs(void)
{
    char reports[8192];
    if (!level_runs_here("cuda:sm_80"))
        return;
    for (size_t p = 0; p < sizeof programs / sizeof *programs; p++)
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            int found = run_program(&programs[p], seed, reports, sizeof reports);
            bool right = programs[p].finding ? found > 0 && strstr(reports, programs[p].finding) : found == 0;
            if (!right)
                fprintf(stderr, "%s, seed %d: %d reports\n%s", programs[p].name, (int)seed, found, reports);
            CU_ASSERT(right);
        }
}

void suite_emulator(void);
void suite_emulator(void)
{
    CU_pSuite suite = CU_add_suite("emulator", NULL, NULL);
    CU_add_test(suite, "wrong kernels are found, right ones are not", test_programs);
}
