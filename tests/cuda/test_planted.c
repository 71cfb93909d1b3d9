// Planted faults: every barrier, wait, arrival, commit, fence and copy of every CUDA kernel is taken out, one at a time, and
// a few other mistakes are made (wrong swizzle, bounds, byte counts, slots used too early); each run must be found out, by a
// report or by its results. A fault runs in a process of its own, for it may write anywhere. Two kinds of statements are left
// alone, as nothing the CPU executes depends on them: multiply_end, which keeps a compiler from moving registers, and what
// shares registers out among warps.
#include <CUnit/CUnit.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/codegen/fixture.h"

enum { SEEDS = 6, MOST_FAULTS = 340 };
enum subject_kind { EXPERTS, CODES, ROUTER, WIDE, WIDE_CODES, FP8, WIDE_FP8, FEW, FEW_HIDDEN, KINDS }; // wide: by warpgroups

/// In `file`, the n-th `from` becomes `to`; without `to`, the statement that begins so is taken out.
struct fault {
    const char *file, *from, *to;
    int number;
};

static const struct {
    const char *file;
    enum subject_kind kind;
} files[] = {{"slices.h", EXPERTS}, {"tiles.h", EXPERTS}, {"mlp_up.cu", EXPERTS}, {"mlp_down.cu", EXPERTS}, {"codes.h", CODES},
             {"tiles_codes.h", CODES}, {"route.cu", ROUTER}, {"slots_hopper.h", FEW}, {"tiles_hopper.h", WIDE},
             {"tiles_few_hopper.h", FEW}, {"mlp_down.cu", WIDE}, {"hidden_few.h", FEW_HIDDEN},
             {"tiles_codes_hopper.h", WIDE_CODES}, {"tiles_fp8.h", FP8}, {"tiles_fp8_hopper.h", WIDE_FP8},
             {"hidden_codes.h", WIDE_FP8}};
enum { FILES = sizeof files / sizeof *files };

/// Taken out wherever they stand.
static const char *const orders[] = {
    "gpu::copy_async(",      "gpu::sync_block(",      "gpu::sync_warp(",       "gpu::copy_async_commit(", "gpu::copy_async_wait<",  "sync_team();",
    "gpu::sync_threads<",    "gpu::barrier_init(",    "gpu::publish(",  "gpu::barrier_arrive(",  "gpu::barrier_expect(",
    "gpu::barrier_wait(",    "gpu::copy_box(",        "gpu::multiply_begin(",    "gpu::multiply_commit(", "gpu::multiply_wait<",
    "sync_multiplying();",   "sync_columns(DEEP",
};

/// What orders nothing: places, numbers, exchanges of registers, products whose results say when they are missing.
static const char *const no_orders[] = {
    "thread",    "thread_anew", "block",     "blocks",      "shared",   "shared_address", "shuffle",        "load_matrices", "multiply",
    "fma",       "bf16_pair", "square_root", "f16_pair", "f16_low",        "f16_high",       "bits",          "number",
    "transpose_matrix", "matrix_at", "matrix_k",  "multiply_end", "take_registers", "give_registers", "multiply_group",
    "multiply_codes", "multiply_group_codes",
};

static const struct fault others[] = {
    {"slices.h", "(chunk ^ (row & (CHUNKS - 1)))", "(chunk ^ (row & gpu::lane() & (CHUNKS - 1)))", 0}, // swizzle
    {"tiles.h", "gpu::copy_async_wait<STAGES - 2>();", "gpu::copy_async_wait<STAGES - 1>();", 0},
    {"tiles.h", "copy(gpu::shared() + step % STAGES", "copy(gpu::shared() + (step + 1) % STAGES", 0}, // a slot reused early
    {"tiles.h", "start(step + STAGES - 1);", "start(step + STAGES);", 0},
    {"tiles.h", "there ? 16 : 0", "16", 0},                                                  // rows that do not exist
    {"tiles.h", "there ? 16 : 0", "there ? 8 : 0", 0},                                       // half of the bytes
    {"tiles.h", "const bool inside = k + chunk * CHUNK_K < k_end;", "const bool inside = k < k_end;", 0}, // the last slice
    {"tiles.h", "STAGES - 1; s++)", "STAGES; s++)", 0},
    {"codes.h", "column / CODE_BLOCK * CODE_SCALES", "k / CODE_BLOCK * CODE_SCALES", 0}, // the scales of another block
    {"codes.h", "more = 0;", ";", 0},
    {"tiles_codes.h", "slot + SCALES_AT + p * BLOCK_N", "slot + SCALES_AT + (PARTS - 1 - p) * BLOCK_N", 0},
    {"tiles_codes.h", "expand<BLOCK_N>(wide, slot + CODES_AT);", "expand<BLOCK_N / 2>(wide, slot + CODES_AT);", 0},
    {"codes.h", "team_thread() >= PARTS * EACH", "team_thread() >= PARTS * EACH - 1", 0},
    {"tiles_hopper.h", "gpu::matrix_k(gpu::matrix_at(slot + A_BYTES + team() * N * ROW_BYTES), k)",
     "gpu::matrix_k(gpu::matrix_at(slot + A_BYTES + team() * N * ROW_BYTES), k ^ 32)", 0},  // the wrong k
    {"tiles_hopper.h", "team() * N * ROW_BYTES", "team() * 2 * BOX_BYTES", 0}, // the rows of a wide tile
    {"tiles_hopper.h", "slot + m * BOX_BYTES", "slot + m * 1024", 0},
    {"slots_hopper.h", "(int)a.first + row", "(int)a.first", 0},
    {"slots_hopper.h", "to + row * ROW_BYTES", "to + row * ROW_BYTES / 2", 0},
    {"slots_hopper.h", "rows_bytes<FEW>(a) + boxes", "A_BYTES + boxes", 0},
    {"slots_hopper.h", "rows_bytes<FEW>(a) + boxes", "BOX_OF<FEW> * ROW_BYTES + boxes", 0},
    {"slots_hopper.h", "here * (rows_bytes", "(rows_bytes", 0},
    {"slots_hopper.h", "slot + j * FEW_BYTES", "slot + j * FEW_BYTES / 4", 0},
    {"slots_hopper.h", "slot + A_BYTES + j * BOX_BYTES", "slot + A_BYTES", 0},
    {"slots_hopper.h", "(i * DEEP + j) * SLICE", "i * DEEP * SLICE", 0},
    {"slots_hopper.h", "gpu::barrier_init(empty + s, WARPS)", "gpu::barrier_init(empty + s, WARPS - 1)", 0},
    {"slots_hopper.h", "(step / STAGES & 1) ^ 1", "step / STAGES & 1", 0},
    {"slots_hopper.h", "b.apart ? half / 2 : half", "half", 0},
    {"tiles_few_hopper.h", "boxes_of<DEEP>(slot, j) + m * BOX_BYTES", "boxes_of<DEEP>(slot, j) + m * 1024", 0},
    {"tiles_few_hopper.h", "gpu::matrix_at(slot + j * FEW_BYTES), k)", "gpu::matrix_at(slot + j * FEW_BYTES), k ^ 32)", 0}, // the wrong k
    {"tiles_few_hopper.h", "slot + j * FEW_BYTES", "slot", 0},
    {"tiles_few_hopper.h", "2 * team() : j", "team() : j", 0},
    {"tiles_few_hopper.h", "!first || j > 0 || k > 0", "j > 0 || k > 0", 0},
    {"tiles_few_hopper.h", "pipe.empty + (step - 1) % STAGES", "pipe.empty + step % STAGES", 0}, // given back too early
    {"tiles_few_hopper.h", "gpu::multiply_wait<1>();", "gpu::multiply_wait<2>();", 0},
    {"tiles_few_hopper.h", "gpu::multiply_wait<0>();", "gpu::multiply_wait<1>();", 0},
    {"tiles_few_hopper.h", "(pipe.step + (SLICES - 1) / DEEP)", "(pipe.step + SLICES / DEEP)", 0},
    {"tiles_few_hopper.h", "step(WHOLE, Width<REST>())", "step(WHOLE - 1, Width<REST>())", 0},
    {"tiles_few_hopper.h", "if (rows <= 16)", "if (rows <= 24)", 0}, // fewer columns than rows
    {"hidden_few.h", "turn * WARPS * FEW_MOST", "0", 0}, // maxima that others may still read
    {"hidden_few.h", "gpu::warp() / FEW_SHARERS * FEW_SHARERS", "0", 0}, // those of another block
    {"hidden_few.h", "s < FEW_SHARERS;", "s < FEW_SHARERS - 1;", 0},
    {"hidden_few.h", "first + 8 * e + gpu::lane() / 4", "first + gpu::lane() / 4", 0}, // the bias of other features
    {"hidden_few.h", "own / FEW_EIGHTS * 8", "own * 8", 0},
    {"hidden_few.h", "if (place < tile.rows && at", "if (place <= tile.rows && at", 0},
    {"hidden_few.h", "&& at < tile.feature_end)", "&& at <= tile.feature_end)", 0},
    {"hidden_few.h", "place < tile.rows && block", "place <= tile.rows && block", 0},
    {"tiles_hopper.h", "pipe.empty + (step - 1) % STAGES", "pipe.empty + step % STAGES", 0}, // given back too early
    {"tiles_hopper.h", "gpu::multiply_wait<1>();", "gpu::multiply_wait<2>();", 0},
    {"tiles_hopper.h", "gpu::multiply_wait<0>();", "gpu::multiply_wait<1>();", 0},
    {"tiles_hopper.h", "i > 0 || k > 0", "k > 0", 0},
    {"tiles_hopper.h", "pipe.step += SLICES", "pipe.step += SLICES + 1", 0},
    {"tiles_codes_hopper.h", "p * PART * ELEMENT", "(PARTS - 1 - p) * PART * ELEMENT", 0},
    {"tiles_codes_hopper.h", "k > 0);", "true);", 0},                                     // a part that goes on
    {"tiles_codes_hopper.h", "(2 * team() + step % 2)", "2 * team()", 0},                 // one wide tile
    {"tiles_codes_hopper.h", "(2 * team() + step % 2)", "step % 2", 0},                   // for both teams
    {"tiles_codes_hopper.h", "(team() * CODE_STAGES + step % CODE_STAGES)", "(step % CODE_STAGES)", 0},
    {"tiles_codes_hopper.h", "copy(step + AHEAD);", "copy(step + AHEAD + 1);", 0},
    {"tiles_codes_hopper.h", "gpu::copy_async_wait<AHEAD - 1>();", "gpu::copy_async_wait<AHEAD>();", 0},
    {"tiles_codes_hopper.h", "code_slot(i) + CODES_BYTES", "code_slot(i + 1) + CODES_BYTES", 0},
    {"tiles_codes_hopper.h", "expand<ROWS, MIXED>(wide_tile(step)", "expand<ROWS / 2, MIXED>(wide_tile(step)", 0},
    {"tiles_codes_hopper.h", "first_row() / 2 + gpu::lane() / 4", "first_row() + gpu::lane() / 4", 0}, // scales of other rows
    {"tiles_codes_hopper.h", "slot + m * BOX_BYTES", "slot + m * 1024", 0},
    {"tiles_codes_hopper.h", "step / STAGES & 1", "(step / STAGES & 1) ^ 1", 0},
    {"tiles_fp8_hopper.h", "number == BLOCKS * N / WIDTH - 1 &&", "number == 0 &&", 0},
    {"tiles_fp8_hopper.h", "part[n], rows[m], columns[half])", "part[n], rows[m], columns[0])", 0}, // scales of the other projection
    {"tiles_fp8_hopper.h", "+ 8 * half, i);", "+ 8 * half, 0);", 0},                          // those of the first block
    {"tiles_fp8_hopper.h", "(team() * N + half * WIDTH) * ROW_BYTES", "team() * N * ROW_BYTES", 0},
    {"tiles_fp8_hopper.h", "k > 0);", "true);", 0},
    {"tiles_fp8_hopper.h", "rows[j][n], columns)", "rows[0][n], columns)", 0},
    {"tiles_fp8_hopper.h", "column_factor(factors, m, i * DEEP + j)", "column_factor(factors, 0, i * DEEP + j)", 0},
    {"tiles_fp8_hopper.h", "multiply_group_codes<N>(part[number % 2]", "multiply_group_codes<N>(part[0]", 0},
    {"tiles_fp8.h", "there ? whole : 0", "there ? 8 : 0", 0},
    {"tiles_fp8.h", "const int64_t left = k_end - k - chunk * CODE_CHUNK;", "const int64_t left = k_end - k;", 0}, // the last slice
    {"tiles_fp8.h", "columns[n < NS / 4 ? 0 : 1]", "columns[0]", 0},
    {"tiles_fp8.h", "+ 8 * i, step);", "+ 8 * i, 0);", 0},
    {"tiles_fp8.h", "2 * k + lane / 16)", "2 * k + 1 - lane / 16)", 0}, // the two halves of 32 k
    {"hidden_codes.h", "int mask = 1; mask < 4", "int mask = 2; mask < 4", 0},
    {"hidden_codes.h", "turn * SHARERS * BLOCK_M", "0", 0}, // maxima that others may still read
    {"hidden_codes.h", "if (place < rows &&", "if (place <= rows &&", 0},
    {"hidden_codes.h", "&& at < feature_end)", "&& at <= feature_end)", 0},
    {"hidden_codes.h", "w.x >> 16 | (w.y & 0xffff0000u)", "w.y >> 16 | (w.x & 0xffff0000u)", 0},
    {"mlp_up.cu", "if (place >= tile.rows ||", "if (place > tile.rows ||", 0},
    {"mlp_up.cu", "|| at >= tile.feature_end)", "|| at > tile.feature_end)", 0},
    {"mlp_up.cu", "number += gpu::blocks()", "number += gpu::blocks() + 1", 0},
    {"mlp_up.cu", "at.before += wide * high;", "at.before += wide;", 0},
    {"mlp_down.cu", "if (place >= rows)", "if (place > rows)", 0},
    {"mlp_down.cu", "if (at < item.column_end &&", "if (at <= item.column_end &&", 0},
    {"mlp_down.cu", "pairs->rows * (range + 1) / ranges", "pairs->rows * (range + 1) / ranges + 1", 0},
    {"mlp_down.cu", "clear(item, acc);", ";", 0},
    {"route.cu", "keys[i] > best ||", "keys[i] >= best ||", 0},
    {"route.cu", "if (id % gpu::WARP == gpu::lane())", "if (id % gpu::WARP == 0)", 0},
    {"route.cu", "i < width; i += 4", "i < K_STEP; i += 4", 0},
};

static const char *embedded_text(struct context *context, const char *file)
{
    size_t size;
    const char *text = embedded_file(context_printf(context, "cuda/%s", file), &size);
    return context_printf(context, "%.*s", (int)size, text);
}

/// The n-th place of a text in a file that is no comment; NULL: there are not so many.
static const char *nth(const char *text, const char *wanted, int number)
{
    for (const char *at = text; (at = strstr(at, wanted)); at += strlen(wanted))
        if (number-- == 0)
            return at;
    return NULL;
}

/// Is it a header that stands for the chip, which the emulator has its own of?
static bool is_back(const char *name)
{
    return !strncmp(name, "device", 6) || !strncmp(name, "hopper", 6);
}

/// The source with the fault in it; NULL: the file is none of its own. Every header is put in the place of each #include of it:
/// which of them is compiled the preprocessor decides.
static const char *faulty(struct context *context, const char *text, const char *file, const char *whole, const char *wrong)
{
    const char *own = strstr(text, whole);
    bool there = false;
    if (own)
        return context_printf(context, "%.*s%s%s", (int)(own - text), text, wrong, own + strlen(whole));
    for (size_t from = 0;;) {
        const char *at = strstr(text + from, "#include \""), *name_at = at ? at + strlen("#include \"") : NULL;
        if (!at)
            return there ? text : NULL;
        const char *name = context_printf(context, "%.*s", (int)strcspn(name_at, "\""), name_at);
        from = (size_t)(at - text);
        if (is_back(name)) {
            from++;
            continue;
        }
        there = there || !strcmp(name, file);
        text = context_printf(context, "%.*s#line 1 \"%s\"\n%s%s", (int)from, text, name,
                              strcmp(name, file) ? embedded_text(context, name) : wrong, name_at + strlen(name) + 1);
    }
}

/// The sources with the fault in them; a test that plants nothing is wrong.
static void plant(struct context *context, struct cuda_sources *sources, const struct fault *fault)
{
    const char *file = embedded_text(context, fault->file), *at = nth(file, fault->from, fault->number);
    const char *rest = fault->to ? at + strlen(fault->from) : strchr(at, ';');
    const char *wrong = context_printf(context, "%.*s%s%s", (int)(at - file), file, fault->to ? fault->to : "", rest);
    int planted = 0;
    for (uint32_t i = 0; i < sources->count; i++) {
        const char *found = faulty(context, sources->at[i].text, fault->file, file, wrong);
        sources->at[i].text = found ? found : sources->at[i].text;
        planted += found != NULL;
    }
    if (!planted)
        fatal(context, EXIT_BUG, "`%s` is in no source", fault->file);
}

/// Generates and loads with a fault, or without (NULL).
static void load(struct code *code, const char *chip, const struct fault *fault, uint64_t seed)
{
    struct cuda_sources sources;
    setenv("MOECC_CACHE", "build/cuda-cache", 0);
    if (setjmp(code->context.fatal)) {
        fprintf(stderr, "planted: %s\n", code->context.fatal_message);
        _exit(3);
    }
    if (!cuda_generate(&code->context, &code->plan, cuda_chip(chip), &sources))
        _exit(3);
    if (fault)
        plant(&code->context, &sources, fault);
    code->kernels = calloc(COUNT(&code->plan, plan_kernel) + 1, sizeof *code->kernels);
    struct host_options options = {.checked = true, .seed = seed, .most_blocks = 6};
    host_load(&code->context, &code->plan, &sources, &options, code->kernels);
}

// --------------------------------------------------------------------------------------------------------- subjects

static void run_shape(const char *chip, const struct fault *fault, uint64_t seed, void *result, size_t size, unsigned form,
                      int64_t h, int64_t rows, int64_t f, bool down)
{
    const struct layer_shape shape = {h, f, 3, rows, 2, dtype_bf16, dtype_bf16};
    struct layer l;
    struct code code;
    layer_init_form(&l, &shape, form, "cuda:sm_80", 5);
    l.acc_stride = l.h * 4; // no room between rows
    int64_t copy[LAYER_COPY], first[LAYER_MLP], second[LAYER_MLP];
    layer_copy(&l, copy);
    layer_up(&l, activation_silu, first);
    layer_down(&l, second);
    code_init(&code);
    code_add(&code, kernel_role_mlp_up, first, LAYER_MLP, 1);
    code_add(&code, kernel_role_copy_rows, copy, LAYER_COPY, 1);
    if (down)
        code_add(&code, kernel_role_mlp_down, second, LAYER_MLP, 1);
    load(&code, chip, fault, seed);
    memset(l.hidden, 0xff, (size_t)(l.pair_count * l.hidden_stride));
    memset(l.acc, 0xff, (size_t)(l.rows * l.acc_stride));
    code_run(&code, 1, &(struct moe_kargs){.p = {&l.pairs}}, 0, l.pair_count);
    struct moe_kargs up = {.p = {&l.pairs, l.a, l.packed_up, l.hidden, l.packed_b_up}};
    struct moe_kargs down_args = {.p = {&l.pairs, l.hidden, l.packed_down, l.acc, l.packed_b_down}};
    code_run(&code, 0, &up, 0, ROW(&code.plan, plan_kernel, 0)->unit_count * l.experts);
    if (down)
        code_run(&code, 2, &down_args, 0, ROW(&code.plan, plan_kernel, 2)->unit_count);
    // hidden rows too, gaps between them included: what is written beside the results counts
    size_t y = (size_t)(l.rows * l.y_stride), hidden = (size_t)(l.pair_count * l.hidden_stride);
    memset(result, 0, size);
    memcpy(result, l.y, y < size ? y : size);
    memcpy((char *)result + y, l.hidden, y + hidden < size ? hidden : size - y);
    layer_free(&l);
    code_free(&code);
}

static void run_layer(const char *chip, const struct fault *fault, uint64_t seed, void *result, size_t size, unsigned form,
                      int64_t h, int64_t rows)
{
    run_shape(chip, fault, seed, result, size, form, h, rows, form & LAYER_FP8 ? 192 : 200, true);
}

static void run_experts(const struct fault *fault, uint64_t seed, void *result, size_t size)
{
    run_layer("sm_80", fault, seed, result, size, 0, 264, 100);
}

static void run_codes(const struct fault *fault, uint64_t seed, void *result, size_t size)
{
    run_layer("sm_80", fault, seed, result, size, LAYER_E4M3, 264, 100);
}

/// Tiles of more than 64 pairs and fewer, then rows so few that columns are narrow.
static void run_wide(const struct fault *fault, uint64_t seed, void *result, size_t size)
{
    run_layer("sm_90a", fault, seed, result, size / 2, 0, 264, 100);
    run_layer("sm_90a", fault, seed, (char *)result + size / 2, size / 2, 0, 264, 60);
}

/// Few rows, whose columns take several steps; and many, where teams have columns of their own.
static void run_few(const struct fault *fault, uint64_t seed, void *result, size_t size)
{
    run_shape("sm_90a", fault, seed, result, size / 2, 0, 264, 24, 584, true);
    run_layer("sm_90a", fault, seed, (char *)result + size / 2, size / 2, 0, 264, 100);
}

/// The second and the third, of few rows, with six steps of k, so that the next product's first copies go where the last
/// step's codes are.
static void run_wide_codes(const struct fault *fault, uint64_t seed, void *result, size_t size)
{
    run_layer("sm_90a", fault, seed, result, size / 2, LAYER_E4M3, 264, 100);
    run_layer("sm_90a", fault, seed, (char *)result + size / 2, size / 4, LAYER_E4M3, 328, 100);
    run_layer("sm_90a", fault, seed, (char *)result + size * 3 / 4, size / 4, LAYER_E4M3, 328, 40);
}

static void run_fp8(const struct fault *fault, uint64_t seed, void *result, size_t size)
{
    run_layer("sm_89", fault, seed, result, size, LAYER_FP8, 264, 100);
}

static void run_wide_fp8(const struct fault *fault, uint64_t seed, void *result, size_t size)
{
    run_layer("sm_90a", fault, seed, result, size / 2, LAYER_FP8, 264, 100);
    run_shape("sm_90a", fault, seed, (char *)result + size / 2, size / 2, LAYER_FP8, 264, 24, 1152, true);
}

/// Hidden activations of few rows: as codes of a block of both teams and of each team's own, and rounded.
static void run_few_hidden(const struct fault *fault, uint64_t seed, void *result, size_t size)
{
    run_shape("sm_90a", fault, seed, result, size / 2, LAYER_FP8, 264, 24, 320, false);
    run_shape("sm_90a", fault, seed, (char *)result + size / 2, size / 4, LAYER_FP8 | LAYER_PLAIN, 264, 24, 520, false);
    run_shape("sm_90a", fault, seed, (char *)result + size * 3 / 4, size / 4, LAYER_BIASED, 264, 24, 200, false);
}

/// With groups of experts and without.
static void run_router(const struct fault *fault, uint64_t seed, void *result, size_t size)
{
    enum { TOKENS = 37, EXPERTS_ALL = 64, WIDTH = 72, CHOICES = 6, ALL = TOKENS * CHOICES };
    struct code code;
    struct rng rng = {11};
    code_init(&code);
    code_add(&code, kernel_role_route,
                            (int64_t[]){WIDTH, EXPERTS_ALL, CHOICES, score_sigmoid, 1, dtype_f32, 8, 4, group_score_top2_sum, 0},
             10, 2.5);
    code_add(&code, kernel_role_route,
             (int64_t[]){WIDTH, EXPERTS_ALL, CHOICES, score_softmax, 1, dtype_f32, 1, 1, group_score_max, 0}, 10, 1);
    load(&code, "sm_80", fault, seed);
    float *x = block(TOKENS * WIDTH * 4), *w = block(EXPERTS_ALL * WIDTH * 4);
    for (int i = 0; i < TOKENS * WIDTH; i++)
        x[i] = i / WIDTH % 5 ? random_float(&rng) : 0; // some tokens with all scores equal
    for (int i = 0; i < EXPERTS_ALL * WIDTH; i++)
        w[i] = random_float(&rng);
    memset(result, 0xff, size);
    for (uint32_t k = 0; k < 2; k++) {
        char *at = (char *)result + k * 2 * ALL * 4;
        struct moe_kargs args = {.p = {x, w, at, at + ALL * 4}};
        code_run(&code, k, &args, 0, TOKENS);
    }
    free(x);
    free(w);
    code_free(&code);
}

enum { RESULT_BYTES = 512 << 10 };

static void (*const runs[])(const struct fault *, uint64_t, void *, size_t) = {
    [EXPERTS] = run_experts, [CODES] = run_codes, [ROUTER] = run_router, [WIDE] = run_wide, [WIDE_CODES] = run_wide_codes,
    [FP8] = run_fp8, [WIDE_FP8] = run_wide_fp8, [FEW] = run_few, [FEW_HIDDEN] = run_few_hidden};

/// 0: nothing was noticed. `good`: the results of the kernels without a fault.
static int notice(enum subject_kind kind, const struct fault *fault, const char *good)
{
    char *bad = block(RESULT_BYTES), reports[4096];
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        runs[kind](fault, seed * 17, bad, RESULT_BYTES);
        if (host_reports(reports, sizeof reports) || memcmp(good, bad, RESULT_BYTES) != 0)
            return 1;
    }
    return 0;
}

/// Whether the fault is found: in a child, whose crash is a finding too. 3: the test itself went wrong.
static int found(enum subject_kind kind, const struct fault *fault, const char *good)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setitimer(ITIMER_PROF, &(struct itimerval){.it_value = {.tv_sec = 60}}, NULL); // of its own: compilers and others may be slow
        _exit(notice(kind, fault, good));
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 3;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int collect(struct fault *faults, enum subject_kind *kinds, struct context *context)
{
    int count = 0;
    for (int f = 0; f < FILES; f++) {
        const char *text = embedded_text(context, files[f].file);
        for (size_t o = 0; o < sizeof orders / sizeof *orders; o++)
            for (int n = 0; nth(text, orders[o], n) && count < MOST_FAULTS; n++) {
                kinds[count] = files[f].kind;
                faults[count++] = (struct fault){files[f].file, orders[o], NULL, n};
            }
        for (size_t o = 0; o < sizeof others / sizeof *others; o++)
            if (!strcmp(others[o].file, files[f].file)) {
                CU_ASSERT_PTR_NOT_NULL_FATAL(nth(text, others[o].from, 0));
                kinds[count] = files[f].kind;
                faults[count++] = others[o];
            }
    }
    return count;
}

/// Whether the wrapper's removal is planted, as `gpu::name(` or `gpu::name<`.
static bool is_order(const char *name, size_t length)
{
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++)
        if (!strncmp(orders[o], "gpu::", 5) && !strncmp(orders[o] + 5, name, length) && strchr("(<", orders[o][5 + length]))
            return true;
    return false;
}

/// Every wrapper that a back defines either orders something, and is taken out, or is known to order nothing.
static void count_wrappers(struct context *context, const char *back)
{
    static const char define[] = "GPU_INLINE ", first[] = "namespace gpu {";
    int wrappers = 0;
    for (const char *at = strstr(embedded_text(context, back), first); (at = strstr(at, define)); wrappers++) {
        at += sizeof define - 1;
        const char *end = strchr(at, '('), *name = end;
        while (name > at && name[-1] != ' ' && name[-1] != '*')
            name--;
        bool known = is_order(name, (size_t)(end - name));
        for (size_t i = 0; i < sizeof no_orders / sizeof *no_orders && !known; i++)
            known = strlen(no_orders[i]) == (size_t)(end - name) && !strncmp(no_orders[i], name, (size_t)(end - name));
        if (!known)
            fprintf(stderr, "%s: `%.*s` is neither planted nor known to order nothing\n", back, (int)(end - name), name);
        CU_ASSERT(known);
    }
    CU_ASSERT(wrappers > 10);
}

/// A file with something to take out is one of `files`, which are searched whole.
static void check_listed(struct context *context, const char *file)
{
    const char *text = embedded_text(context, file);
    bool listed = false, orders_something = false;
    for (int f = 0; f < FILES; f++)
        listed = listed || !strcmp(files[f].file, file);
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++)
        orders_something = orders_something || nth(text, orders[o], 0);
    if (orders_something && !listed)
        fprintf(stderr, "%s has barriers or waits that nobody takes out\n", file);
    CU_ASSERT(listed || !orders_something);
}

static void test_every_order_is_planted(void)
{
    struct fault faults[MOST_FAULTS];
    enum subject_kind kinds[MOST_FAULTS];
    struct context context;
    context_init(&context);
    count_wrappers(&context, "device_ptx.h");
    count_wrappers(&context, "hopper_ptx.h");
    DIR *folder = opendir("stdlib/cuda");
    CU_ASSERT_PTR_NOT_NULL_FATAL(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        const char *name = entry->d_name, *end = strrchr(name, '.');
        if (end && (!strcmp(end, ".cu") || !strcmp(end, ".h")) && !is_back(name))
            check_listed(&context, name);
    }
    closedir(folder);
    CU_ASSERT(collect(faults, kinds, &context) < MOST_FAULTS); // all of them
    context_free(&context);
}

/// All of them are found.
static void test_planted(void)
{
    struct fault faults[MOST_FAULTS];
    enum subject_kind kinds[MOST_FAULTS];
    struct context context;
    int tried = 0, missed = 0;
    const char *wanted = getenv("MOE_CUDA_FAULTS"), *only = wanted && strchr(wanted, '.') ? wanted : NULL; // a file's, or all
    const char *text = only ? strchr(only, ':') : NULL; // `tiles.h:sync`: of these, whose text has that
    int every = wanted ? 1 : 12; // a sample, but in check-long
    char *good[KINDS], reports[4096];
    if (!level_runs_here("cuda:sm_80"))
        return;
    context_init(&context);
    for (int kind = 0; kind < KINDS; kind++)
        runs[kind](NULL, 1, good[kind] = block(RESULT_BYTES), RESULT_BYTES);
    CU_ASSERT_EQUAL(host_reports(reports, sizeof reports), 0);
    int count = collect(faults, kinds, &context);
    CU_ASSERT(count >= 25);
    for (int i = 0; i < count; i += every) {
        if (only && strncmp(faults[i].file, only, strcspn(only, ":")) != 0)
            continue;
        if (text && !strstr(faults[i].from, text + 1))
            continue;
        tried++;
        int verdict = found(kinds[i], &faults[i], good[kinds[i]]);
        CU_ASSERT_NOT_EQUAL(verdict, 3);
        if (verdict == 0) {
            printf("\n    not found: %s, `%s` number %d -> `%s`", faults[i].file, faults[i].from, faults[i].number,
                   faults[i].to ? faults[i].to : "");
            missed++;
        }
    }
    printf("\n    %d of %d planted faults found\n", tried - missed, tried);
    CU_ASSERT(missed * 20 <= tried);
    context_free(&context);
    for (int kind = 0; kind < KINDS; kind++)
        free(good[kind]);
}

void suite_planted(void);
void suite_planted(void)
{
    CU_pSuite suite = CU_add_suite("planted", NULL, NULL);
    CU_add_test(suite, "every barrier, wait, arrival and fence is among them", test_every_order_is_planted);
    CU_add_test(suite, "planted faults are found", test_planted);
}
