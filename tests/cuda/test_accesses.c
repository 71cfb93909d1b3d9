// Kernels of rows load and store 8 bytes of global memory or more at once, never 4 or less, and 16 where they can: packs and
// unpacks of every type and wire format, merges of every format of replies, sums, row operators. NVRTC's PTX says so; which chip
// a kernel is compiled for alternates, as compiling takes the time ($MOE_CUDA_EXAMPLES: every kernel for every chip).
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/plan/messages.h"
#include "tests/codegen/fixture.h"

static const char *const chips[] = {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"};
static const uint32_t types[] = {dtype_bf16, dtype_f16, dtype_f32};
static const struct {
    int64_t block;
    uint32_t scale;
} formats[] = {{128, scale_type_f32}, {128, scale_type_ue8m0}, {64, scale_type_f32}, {64, scale_type_ue8m0}};
enum { CHIPS = 6, TYPES = 3, FORMATS = 4, WIDTH = 1096, MOST = 80 }; // the last block of a row is partial

struct kernel {
    enum kernel_role role;
    int64_t n[9];
};

static int row_kernels(struct kernel *list)
{
    int count = 0;
    for (int t = 0; t < TYPES; t++) {
        const uint32_t type = types[t], other = types[(t + 1) % TYPES];
        for (int f = 0; f < FORMATS; f++) {
            const int64_t block = formats[f].block, scale = formats[f].scale;
            const int64_t code = moe_wire_code(dtype_fp8_e4m3, (uint32_t)block, formats[f].scale);
            list[count++] = (struct kernel){kernel_role_copy_rows, {WIDTH, type, dtype_fp8_e4m3, block, scale}};
            list[count++] = (struct kernel){kernel_role_copy_rows, {WIDTH, dtype_fp8_e4m3, type, block, scale}};
            list[count++] = (struct kernel){kernel_role_merge, {WIDTH, type, other, f % 2, 1, code}};
        }
        list[count++] = (struct kernel){kernel_role_copy_rows, {WIDTH, type, other}};
        list[count++] = (struct kernel){kernel_role_merge, {WIDTH, type, type}};
        list[count++] = (struct kernel){kernel_role_sum_rows, {WIDTH, type}};
        list[count++] = (struct kernel){kernel_role_add, {WIDTH, type, other, type}};
        list[count++] = (struct kernel){kernel_role_shift, {WIDTH, type, other}};
        list[count++] = (struct kernel){kernel_role_gate, {WIDTH, type, other, type}};
    }
    for (int f = 0; f < FORMATS; f++) // rows to multiply, from bf16 and from the wire
        for (int i = 0; i < 2; i++)
            list[count++] = (struct kernel){kernel_role_copy_rows,
                                            {WIDTH, i ? dtype_fp8_e4m3 : dtype_bf16, dtype_fp8_e4m3, formats[f].block,
                                             formats[f].scale, 0, 0, dtype_fp8_e4m3}};
    return count;
}

/// Bits that an instruction of PTX moves between registers and global memory; 0: none. Addresses are generic here: what names
/// another space is none.
static int bits_moved(const char *line, int length)
{
    char text[128];
    int lanes = 1, bits = 0;
    if (length <= 0 || length >= (int)sizeof text || (strncmp(line, "ld.", 3) != 0 && strncmp(line, "st.", 3) != 0))
        return 0;
    memcpy(text, line, (size_t)length);
    text[length] = 0;
    for (char *word = strtok(text, "."); word; word = strtok(NULL, ".")) {
        if (!strcmp(word, "param") || !strcmp(word, "shared") || !strcmp(word, "const"))
            return 0;
        if (word[0] == 'v' && strchr("248", word[1]) && word[1])
            lanes = word[1] - '0';
        if (strchr("busf", word[0]) && strchr("1368", word[1]) && word[1])
            bits = atoi(word + 1);
    }
    return lanes * bits;
}

/// The PTX's narrow accesses, which it prints; `*wide`: those of 16 bytes.
static int narrow_accesses(const char *path, const char *whose, int *wide)
{
    FILE *file = fopen(path, "r");
    char line[512];
    int narrow = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    while (fgets(line, sizeof line, file)) {
        const char *at = line + strspn(line, " \t");
        at += *at == '@' ? strcspn(at, " \t") : 0;
        at += strspn(at, " \t");
        int bits = bits_moved(at, (int)strcspn(at, " \t\n"));
        if (bits > 0 && bits < 64 && ++narrow)
            printf("\n%s: %s", whose, at);
        *wide += bits == 128;
    }
    fclose(file);
    return narrow;
}

static void check_accesses(const struct kernel *kernel, const char *chip)
{
    struct code code;
    struct cuda_sources sources;
    static int wide;
    wide = 0;
    code_init(&code);
    if (setjmp(code.context.fatal)) {
        CU_FAIL_FATAL("the kernel does not compile");
        return;
    }
    code_add(&code, kernel->role, kernel->n, 9, 1);
    CU_ASSERT_FATAL(cuda_generate(&code.context, &code.plan, cuda_chip(chip), &sources));
    struct cuda_code compiled = nvrtc_compile(&code.context, cuda_chip(chip), &sources.at[0]);
    const char *whose = context_printf(&code.context, "%s of %d, %d (%d, %d) on %s", kernel_role_words[kernel->role], (int)kernel->n[1],
                                       (int)kernel->n[2], (int)kernel->n[3], (int)kernel->n[4], chip);
    CU_ASSERT_EQUAL(compiled.spill_bytes + compiled.stack_bytes, 0);
    CU_ASSERT_EQUAL(narrow_accesses(compiled.ptx, whose, &wide), 0);
    CU_ASSERT(wide > 0);
    code_free(&code);
}

static void test_accesses(void)
{
    static struct kernel list[MOST];
    struct context context;
    context_init(&context);
    setenv("MOECC_CACHE", "build/cuda-cache", 0);
    const char *missing = nvrtc_missing(&context), *every = getenv("MOE_CUDA_EXAMPLES");
    if (missing)
        printf("\n    skipped: %s\n", missing);
    int count = row_kernels(list);
    CU_ASSERT_FATAL(count <= MOST);
    for (int i = 0; i < count && !missing; i++)
        for (int c = 0; c < CHIPS; c++)
            if (every || (i % 3 == 0 && c == i / 3 % CHIPS))
                check_accesses(&list[i], chips[c]);
    context_free(&context);
}

/// What counts as narrow.
static void test_words(void)
{
    static const struct {
        const char *text;
        int bits;
    } cases[] = {{"ld.global.nc.v4.u32", 128}, {"ld.v2.b32", 64}, {"st.b32", 32},        {"st.global.v2.b16", 32}, {"ld.param.b32", 0},
                 {"st.shared.b32", 0},         {"ld.u8", 8},      {"st.v4.f32", 128},    {"ld.b64", 64},           {"ld.relaxed.gpu.b32", 32},
                 {"setp.lt.s32", 0},           {"st.v2.b64", 128}, {"ld.global.v8.b32", 256}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CU_ASSERT_EQUAL(bits_moved(cases[i].text, (int)strlen(cases[i].text)), cases[i].bits);
}

void suite_accesses(void);
void suite_accesses(void)
{
    CU_pSuite suite = CU_add_suite("accesses", NULL, NULL);
    CU_add_test(suite, "what an instruction moves", test_words);
    CU_add_test(suite, "kernels of rows, every type and format", test_accesses);
}
