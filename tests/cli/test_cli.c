// The command line of a run: options, and the tokens that go in and come out of files.
#include "runtime/cli/batch.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/compare.h"
#include "runtime/cli/report.h"
#include "runtime/weights/random.h"
#include "runtime/weights/safetensors.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void suite_cli(void);

static char folder[64];

static int make_folder(void)
{
    strcpy(folder, "/tmp/moe-cli-XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) == 0 ? 0 : 1;
}

// --- options --------------------------------------------------------------------------------------------------------

/// Parses blank-separated options; the texts stay valid until the next call.
static bool parse(struct run_options *options, const char *line, char *error, size_t size)
{
    static char copy[512];
    char *argv[64], *rest = copy;
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    while (*line && argc < 64 && (argv[argc] = strsep(&rest, " ")))
        argc++;
    run_options_init(options);
    error[0] = 0;
    return run_options_parse(options, argc, argv, error, size);
}

static void test_options(void)
{
    struct run_options o;
    char error[256];
    CU_ASSERT(parse(&o, "", error, sizeof error));
    CU_ASSERT(!o.input && !o.token_counts && o.layer == -1 && o.iters == -1 && o.warmup == -1 && !o.ranks &&
              !o.threads);
    CU_ASSERT(parse(&o,
                    "--output out --tokens 5,6,0,7 --seed 18446744073709551615 --weights random --ranks=4 --layer 0 "
                    "--threads 3 --iters 10 --warmup=0 --trace t.json --stats=s.json --timeout 0.5 --target sim "
                    "--cpu-level v3 --pipeline p --inject drop:1 --gantt -v --help --version",
                    error, sizeof error));
    CU_ASSERT(o.token_counts == 4 && o.tokens[0] == 5 && o.tokens[2] == 0 && o.tokens[3] == 7 && o.seed == UINT64_MAX);
    CU_ASSERT(o.ranks == 4 && o.layer == 0 && o.threads == 3 && o.iters == 10 && o.warmup == 0 && o.timeout_s == 0.5);
    CU_ASSERT(!strcmp(o.output, "out") && !strcmp(o.weights, "random") && !strcmp(o.trace, "t.json"));
    CU_ASSERT(!strcmp(o.stats, "s.json") && !strcmp(o.target, "sim") && !strcmp(o.cpu_level, "v3"));
    CU_ASSERT(!strcmp(o.pipeline, "p") && !strcmp(o.fault, "drop:1"));
    CU_ASSERT(o.gantt && o.verbose && !o.quiet && o.help && o.version);
    run_options_free(&o);
    CU_ASSERT_PTR_NULL(o.tokens);
}

static void test_wrong_options(void)
{
    static const char *const wrong[][2] = {{"--tokns 5", "did you mean `--tokens`"},
                                           {"--treads=5", "did you mean `--threads`"},
                                           {"--frobnicate", "unknown option `--frobnicate`"},
                                           {"-x", "unknown option `-x`"},
                                           {"file.moe", "unexpected argument"},
                                           {"--tokens", "needs a value"},
                                           {"--tokens x", "expected N[,N...]"},
                                           {"--tokens 5,", "expected"},
                                           {"--tokens -1", "expected"},
                                           {"--tokens 5,,6", "expected"},
                                           {"--tokens 99999999999", "expected"},
                                           {"--tokens=", "expected"},
                                           {"--seed -1", "expected S"},
                                           {"--seed 18446744073709551616", "expected"},
                                           {"--ranks 0", "expected N"},
                                           {"--ranks 4x", "expected N"},
                                           {"--threads 0", "expected N"},
                                           {"--threads 99999999", "expected N"},
                                           {"--layer -1", "expected L"},
                                           {"--iters 0", "at least 1"},
                                           {"--iters 1.5", "expected N"},
                                           {"--timeout 0", "expected S"},
                                           {"--timeout nan", "expected S"},
                                           {"--timeout 5s", "expected S"},
                                           {"--input=", "expected F"},
                                           {"--gantt=1", "takes no value"},
                                           {"--extern attn", "expected NAME"},
                                           {"--extern attn=nothing", "`nothing`"},
                                           {"--extern attn=busy:4", "a time"},
                                           {"--input a --tokens 5", "exclude each other"},
                                           {"--output a --reference a", "`--reference` is a file"},
                                           {"--stats a --reference ./a", "`--reference` is a file"},
                                           {"-q -v", "exclude each other"}};
    struct run_options o;
    char error[256];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bool accepted = parse(&o, wrong[i][0], error, sizeof error);
        if (accepted || !strstr(error, wrong[i][1])) {
            fprintf(stderr, "`%s`: `%s`, expected `%s`\n", wrong[i][0], error, wrong[i][1]);
            CU_FAIL("wrong options");
        }
        run_options_free(&o);
    }
    CU_ASSERT_PTR_NULL(run_option_nearest("--schedule"));
    CU_ASSERT_PTR_NULL(run_option_nearest("-D"));
}

/// A driver takes the options it knows and leaves the rest in place.
static void test_take(void)
{
    struct run_options o;
    char error[256], *argv[] = {(char[]){"--schedule"}, (char[]){"--ranks"}, (char[]){"8"}, (char[]){"--ranks"}};
    int at = 0;
    run_options_init(&o);
    CU_ASSERT_EQUAL(run_option_take(&o, 4, argv, &at, error, sizeof error), RUN_OPTION_UNKNOWN);
    CU_ASSERT_EQUAL(at, 0);
    at = 1;
    CU_ASSERT_EQUAL(run_option_take(&o, 4, argv, &at, error, sizeof error), RUN_OPTION_TAKEN);
    CU_ASSERT(at == 3 && o.ranks == 8);
    CU_ASSERT_EQUAL(run_option_take(&o, 4, argv, &at, error, sizeof error), RUN_OPTION_BAD);
    CU_ASSERT_EQUAL(at, 3);
    run_options_free(&o);
}

static void test_exit_codes(void)
{
    CU_ASSERT_EQUAL(run_exit_code(MOE_OK), 0);
    CU_ASSERT_EQUAL(run_exit_code(MOE_INVALID), 2);
    const moe_status wrong[] = {MOE_BAD_PLAN, MOE_BAD_WEIGHTS, MOE_BAD_INPUT, MOE_OVERFLOW};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CU_ASSERT_EQUAL(run_exit_code(wrong[i]), 1);
    const moe_status failed[] = {MOE_UNSUPPORTED, MOE_NO_MEMORY, MOE_IO, MOE_TIMEOUT, MOE_LOST, MOE_BROKEN};
    for (size_t i = 0; i < sizeof failed / sizeof *failed; i++)
        CU_ASSERT_EQUAL(run_exit_code(failed[i]), 3);
}

static void test_percentiles(void)
{
    double values[200];
    for (int i = 0; i < 200; i++)
        values[i] = i + 1;
    CU_ASSERT_EQUAL(report_percentile(values, 200, 0.50), 100);
    CU_ASSERT_EQUAL(report_percentile(values, 200, 0.90), 180);
    CU_ASSERT_EQUAL(report_percentile(values, 200, 0.99), 198);
    CU_ASSERT_EQUAL(report_percentile(values, 1, 0.99), 1);
    CU_ASSERT_EQUAL(report_percentile(values, 3, 0.50), 2);
    CU_ASSERT_EQUAL(report_percentile(values, 0, 0.50), 0);
}

// --- tokens ---------------------------------------------------------------------------------------------------------

enum { WIDTH = 4, RANKS = 3, CHOICES = 2, EXPERTS = 8, BOUND = 6 };

static moe_plan_info make_info(const char *x_dtype, const char *y_dtype)
{
    return (moe_plan_info){.name = "p",
                           .ranks = RANKS,
                           .experts = EXPERTS,
                           .choices = CHOICES,
                           .layers = 1,
                           .width = WIDTH,
                           .tokens_bound = BOUND,
                           .x_dtype = x_dtype,
                           .y_dtype = y_dtype,
                           .weights = "",
                           .cpu_level = "v3"};
}

static struct tensor make_tensor(const char *name, const char *dtype, int64_t a, int64_t b, int64_t c, const void *data)
{
    struct tensor t = {.name = name, .data = data, .shape = {a, b, c}, .dims = c >= 0 ? 3 : b >= 0 ? 2 : 1};
    snprintf(t.dtype, sizeof t.dtype, "%s", dtype);
    t.bytes = (size_t)tensor_bytes(dtype, t.shape, t.dims);
    return t;
}

static moe_status read_back(struct batch *batch, const moe_plan_info *info, const struct tensor *tensors, size_t count,
                            char *error, size_t size)
{
    char path[128];
    snprintf(path, sizeof path, "%s/in.safetensors", folder);
    error[0] = 0;
    CU_ASSERT(tensors_write(path, tensors, count, error, size));
    return batch_read(batch, info, path, error, size);
}

static float values[RANKS * BOUND * WIDTH * 2];

static void fill_values(void)
{
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        values[i] = (float)i + 0.001f;
}

static void test_read_shapes(void)
{
    moe_plan_info info = make_info("f32", "f32");
    struct batch batch;
    char error[512];
    fill_values();
    struct tensor x = make_tensor("hidden_states", "F32", 10, WIDTH, -1, values);
    CU_ASSERT_EQUAL(read_back(&batch, &info, &x, 1, error, sizeof error), MOE_OK);
    CU_ASSERT(batch.shape == BATCH_FLAT && batch.first[1] == 3 && batch.first[2] == 6 && batch.first[3] == 10);
    CU_ASSERT(batch.steps[2].tokens == 4 && !memcmp(batch.steps[2].in, values + 6 * WIDTH, 4 * WIDTH * sizeof(float)));
    CU_ASSERT(!batch.steps[2].given_ids && (float *)batch.steps[2].out == (float *)batch.y + 6 * WIDTH);
    CU_ASSERT(batch.steps[2].topk_ids == batch.ids + 6 * CHOICES);
    batch_free(&batch);

    x = make_tensor("hidden_states", "F32", RANKS, 5, WIDTH, values);
    CU_ASSERT_EQUAL(read_back(&batch, &info, &x, 1, error, sizeof error), MOE_OK);
    CU_ASSERT(batch.shape == BATCH_RANKS && batch.first[1] == 5 && batch.first[3] == 15);
    batch_free(&batch);

    int64_t offsets[RANKS + 1] = {0, 0, 6, 10};
    struct tensor ragged[2] = {make_tensor("hidden_states", "F32", 10, WIDTH, -1, values),
                               make_tensor("rank_offsets", "I64", RANKS + 1, -1, -1, offsets)};
    CU_ASSERT_EQUAL(read_back(&batch, &info, ragged, 2, error, sizeof error), MOE_OK);
    CU_ASSERT(batch.shape == BATCH_RAGGED && batch.steps[0].tokens == 0 && batch.steps[1].tokens == 6);
    char path[128];
    snprintf(path, sizeof path, "%s/out.safetensors", folder);
    CU_ASSERT_EQUAL(batch_write(&batch, path, error, sizeof error), MOE_OK);
    batch_free(&batch);
    struct tensor_set *set = tensors_open(path, error, sizeof error);
    CU_ASSERT_PTR_NOT_NULL_FATAL(set);
    CU_ASSERT(!memcmp(tensors_find(set, "rank_offsets")->data, offsets, sizeof offsets));
    CU_ASSERT_EQUAL(tensors_find(set, "topk_ids")->shape[1], CHOICES);
    tensors_close(set);

    x = make_tensor("hidden_states", "F32", 0, WIDTH, -1, values);
    CU_ASSERT_EQUAL(read_back(&batch, &info, &x, 1, error, sizeof error), MOE_OK);
    CU_ASSERT_EQUAL(batch_tokens(&batch), 0);
    batch_free(&batch);
}

static void expect_refused(const struct tensor *tensors, size_t count, moe_status status, const char *message)
{
    moe_plan_info info = make_info("f32", "f32");
    struct batch batch;
    char error[512];
    moe_status got = read_back(&batch, &info, tensors, count, error, sizeof error);
    if (got != status || !strstr(error, message)) {
        fprintf(stderr, "status %d, `%s`, expected `%s`\n", (int)got, error, message);
        CU_FAIL("refused input");
    }
    batch_free(&batch);
}

static void test_refused(void)
{
    int64_t falling[RANKS + 1] = {0, 7, 6, 10}, late[RANKS + 1] = {1, 5, 6, 10}, lopsided[RANKS + 1] = {0, 8, 9, 10};
    struct tensor x = make_tensor("hidden_states", "F32", 10, WIDTH, -1, values);
    struct tensor offsets = make_tensor("rank_offsets", "I64", RANKS + 1, -1, -1, falling);
    expect_refused(&(struct tensor){.name = "x", .dtype = "F32", .dims = 1, .data = values}, 1, MOE_BAD_INPUT,
                   "no tensor `hidden_states`");
    expect_refused((struct tensor[]){x, offsets}, 2, MOE_BAD_INPUT, "must rise from 0 to 10");
    offsets.data = late;
    expect_refused((struct tensor[]){x, offsets}, 2, MOE_BAD_INPUT, "must rise");
    offsets.data = lopsided;
    expect_refused((struct tensor[]){x, offsets}, 2, MOE_BAD_INPUT, "rank 0 has 8 tokens, more than the bound of 6");
    offsets = make_tensor("rank_offsets", "I64", RANKS, -1, -1, falling);
    expect_refused((struct tensor[]){x, offsets}, 2, MOE_BAD_INPUT, "must be I64 [4]");
    x = make_tensor("hidden_states", "F32", 10, WIDTH + 1, -1, values);
    expect_refused(&x, 1, MOE_BAD_INPUT, "must be [tokens, 4]");
    x = make_tensor("hidden_states", "F32", 20, WIDTH, -1, values);
    expect_refused(&x, 1, MOE_BAD_INPUT, "rank 1 has 7 tokens");
    x = make_tensor("hidden_states", "F32", RANKS - 1, 2, WIDTH, values);
    expect_refused(&x, 1, MOE_BAD_INPUT, "for 2 ranks, the plan has 3");
    x = make_tensor("hidden_states", "I32", 10, WIDTH, -1, values);
    expect_refused(&x, 1, MOE_BAD_INPUT, "is I32, not F32");
    x = make_tensor("hidden_states", "F32", 10, -1, -1, values);
    expect_refused(&x, 1, MOE_BAD_INPUT, "must be [tokens");
}

/// A reference of a type that is no number of a row is refused, not compared with whatever lies in memory.
static void test_reference(void)
{
    moe_plan_info info = make_info("f32", "f32");
    struct batch batch;
    struct difference d;
    char error[512] = "", path[128];
    const int64_t counts[1] = {2};
    snprintf(path, sizeof path, "%s/reference.safetensors", folder);
    CU_ASSERT_EQUAL_FATAL(batch_random(&batch, &info, counts, 1, 3, error, sizeof error), MOE_OK);
    static const char *const types[] = {"F32", "BF16", "I32", "I16", "F8_E5M2"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct tensor x = make_tensor("hidden_states", types[i], 2 * RANKS, WIDTH, -1, values);
        CU_ASSERT(tensors_write(path, &x, 1, error, sizeof error));
        moe_status status = compare_output(&batch, path, &d, error, sizeof error);
        CU_ASSERT_EQUAL(status, i < 2 ? MOE_OK : MOE_BAD_INPUT);
        CU_ASSERT(i < 2 || strstr(error, "does not have the"));
    }
    batch_free(&batch);
}

static void test_routes(void)
{
    int32_t ids[10 * CHOICES];
    float weights[10 * CHOICES] = {0.5f};
    for (int i = 0; i < 10; i++)
        ids[2 * i] = i % 8, ids[2 * i + 1] = (i + 3) % 8;
    ids[8] = ids[9] = -1;
    struct tensor t[3] = {make_tensor("hidden_states", "F32", 10, WIDTH, -1, values),
                          make_tensor("topk_ids", "I32", 10, CHOICES, -1, ids),
                          make_tensor("topk_weights", "F32", 10, CHOICES, -1, weights)};
    moe_plan_info info = make_info("f32", "f32");
    struct batch batch;
    char error[512];
    CU_ASSERT_EQUAL(read_back(&batch, &info, t, 3, error, sizeof error), MOE_OK);
    CU_ASSERT(batch.steps[1].given_ids == batch.given_ids + 3 * CHOICES && batch.steps[1].given_ids[0] == 3);
    CU_ASSERT(batch.steps[1].given_weights == batch.given_weights + 3 * CHOICES);
    batch_free(&batch);
    expect_refused(t, 2, MOE_BAD_INPUT, "`topk_ids` without `topk_weights`");
    expect_refused((struct tensor[]){t[0], t[2]}, 2, MOE_BAD_INPUT, "`topk_weights` without `topk_ids`");
    ids[15] = EXPERTS;
    expect_refused(t, 3, MOE_BAD_INPUT, "token 7: expert 8 is outside -1..7");
    ids[15] = -2;
    expect_refused(t, 3, MOE_BAD_INPUT, "token 7: expert -2 is outside");
    ids[15] = ids[14];
    expect_refused(t, 3, MOE_BAD_INPUT, "token 7: expert 7 comes twice");
    t[1] = make_tensor("topk_ids", "I32", 9, CHOICES, -1, ids);
    expect_refused(t, 3, MOE_BAD_INPUT, "`topk_ids` must be I32");
    t[1] = make_tensor("topk_ids", "I64", 10, 1, -1, ids);
    expect_refused(t, 3, MOE_BAD_INPUT, "`topk_ids` must be I32");
    t[1] = make_tensor("topk_ids", "I32", 10, CHOICES, -1, ids);
    t[2] = make_tensor("topk_weights", "F32", 5, CHOICES, 2, weights);
    expect_refused(t, 3, MOE_BAD_INPUT, "`topk_weights` must be F32");
}

/// Every pair of a file's and a layer's dtype: rounded as elements_from_f32 rounds.
static void test_dtypes(void)
{
    static const char *const file[] = {"F32", "F16", "BF16"}, *const layer[] = {"f32", "f16", "bf16"};
    uint8_t stored[10 * WIDTH * 4], wanted[10 * WIDTH * 4];
    float wide[10 * WIDTH];
    char error[512], path[128];
    fill_values();
    snprintf(path, sizeof path, "%s/out.safetensors", folder);
    for (int f = 0; f < 3; f++)
        for (int l = 0; l < 3; l++) {
            moe_plan_info info = make_info(layer[l], layer[f]);
            struct batch batch;
            elements_from_f32(file[f], values, stored, 10 * WIDTH);
            struct tensor x = make_tensor("hidden_states", file[f], 10, WIDTH, -1, stored);
            CU_ASSERT_EQUAL(read_back(&batch, &info, &x, 1, error, sizeof error), MOE_OK);
            elements_to_f32(file[f], stored, wide, 10 * WIDTH);
            elements_from_f32(file[l], wide, wanted, 10 * WIDTH);
            CU_ASSERT(!memcmp(batch.x, wanted, 10 * WIDTH * element_bytes(file[l])));
            CU_ASSERT_EQUAL(batch_write(&batch, path, error, sizeof error), MOE_OK);
            struct tensor_set *set = tensors_open(path, error, sizeof error);
            CU_ASSERT_PTR_NOT_NULL_FATAL(set);
            CU_ASSERT_STRING_EQUAL(tensors_find(set, "hidden_states")->dtype, file[f]); // the layer's result type
            CU_ASSERT_EQUAL(tensors_find(set, "hidden_states")->dims, 2);
            tensors_close(set);
            batch_free(&batch);
        }
}

static void test_random_tokens(void)
{
    moe_plan_info info = make_info("f32", "f32");
    struct batch few, many;
    char error[512];
    CU_ASSERT_EQUAL(batch_random(&few, &info, (int64_t[]){2}, 1, 9, error, sizeof error), MOE_OK);
    CU_ASSERT_EQUAL(batch_random(&many, &info, (int64_t[]){3, 0, 6}, 3, 9, error, sizeof error), MOE_OK);
    CU_ASSERT(few.shape == BATCH_RANKS && many.shape == BATCH_RAGGED && batch_tokens(&many) == 9);
    CU_ASSERT(!memcmp(few.steps[0].in, many.steps[0].in, 2 * WIDTH * sizeof(float)));
    CU_ASSERT(!memcmp(few.steps[2].in, many.steps[2].in, 2 * WIDTH * sizeof(float)));
    CU_ASSERT(memcmp(few.steps[0].in, few.steps[1].in, 2 * WIDTH * sizeof(float)) != 0);
    batch_free(&few), batch_free(&many);
    CU_ASSERT_EQUAL(batch_random(&few, &info, NULL, 0, 9, error, sizeof error), MOE_OK);
    CU_ASSERT(few.shape == BATCH_RANKS && few.steps[1].tokens == BOUND);
    batch_free(&few);
    CU_ASSERT_EQUAL(batch_random(&few, &info, (int64_t[]){1, 2}, 2, 9, error, sizeof error), MOE_INVALID);
    batch_free(&few);
    CU_ASSERT_EQUAL(batch_random(&few, &info, (int64_t[]){1, 7, 2}, 3, 9, error, sizeof error), MOE_BAD_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(error, "rank 1 has 7 tokens, more than the bound of 6"));
    batch_free(&few);
}

void suite_cli(void)
{
    CU_pSuite suite = CU_add_suite("cli", make_folder, remove_folder);
    CU_add_test(suite, "options", test_options);
    CU_add_test(suite, "wrong options", test_wrong_options);
    CU_add_test(suite, "options taken one by one", test_take);
    CU_add_test(suite, "exit codes", test_exit_codes);
    CU_add_test(suite, "percentiles", test_percentiles);
    CU_add_test(suite, "input shapes", test_read_shapes);
    CU_add_test(suite, "refused inputs", test_refused);
    CU_add_test(suite, "a reference of another type", test_reference);
    CU_add_test(suite, "supplied routes", test_routes);
    CU_add_test(suite, "element types", test_dtypes);
    CU_add_test(suite, "random tokens", test_random_tokens);
}
