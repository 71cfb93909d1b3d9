// `moecc import`: for each public model of tests/data/models.json a configuration with Hugging Face's keys; the file that
// import writes from it alone is checked, simulated, and has the model's sizes. And what import refuses, with what words.
#include <CUnit/CUnit.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compiler/driver.h"
#include "compiler/import/import.h"
#include "runtime/plan/plan.h"

struct model {
    const char *name, *config; // in models.json; the fixture
    const char *absent;        // a constant that the fixture leaves to its default; NULL: none
};

static const struct model models[] = {
    {"Mixtral-8x7B", "Mixtral-8x7B", NULL},
    {"Mixtral-8x22B", "Mixtral-8x22B", NULL},
    {"Qwen1.5-MoE-A2.7B", "Qwen1.5-MoE-A2.7B", NULL},
    {"Qwen2-57B-A14B", "Qwen2-57B-A14B", NULL},
    {"Qwen3-30B-A3B", "Qwen3-30B-A3B", NULL},
    {"Qwen3-235B-A22B", "Qwen3-235B-A22B", NULL},
    {"Qwen3-Next-80B-A3B", "Qwen3-Next-80B-A3B", NULL},
    {"DeepSeek-V2-Lite", "DeepSeek-V2-Lite", NULL},
    {"DeepSeek-V2 (236B)", "DeepSeek-V2", NULL},
    {"DeepSeek-V3/R1 (671B)", "DeepSeek-V3", NULL},
    {"Kimi-K2", "Kimi-K2", NULL},
    {"GLM-4.5", "GLM-4.5", NULL},
    {"GLM-4.5-Air", "GLM-4.5-Air", NULL},
    {"dots.llm1", "dots.llm1", "n_group"},
    {"gpt-oss-20b", "gpt-oss-20b", "swiglu_alpha"},
    {"gpt-oss-120b", "gpt-oss-120b", "torch_dtype"},
    {"Llama-4-Scout", "Llama-4-Scout", NULL},
    {"Llama-4-Maverick", "Llama-4-Maverick", NULL},
    {"OLMoE-1B-7B", "OLMoE-1B-7B", NULL},
    {"Granite-3.0-1B-a400m", "Granite-3.0-1B-a400m", NULL},
    {"Granite-3.0-3B-a800m", "Granite-3.0-3B-a800m", NULL},
    {"Phi-3.5-MoE", "Phi-3.5-MoE", NULL},
    {"ERNIE-4.5-21B-A3B", "ERNIE-4.5-21B-A3B", NULL},
    {"ERNIE-4.5-300B-A47B", "ERNIE-4.5-300B-A47B", NULL},
    {"Hunyuan-A13B", "Hunyuan-A13B", NULL},
    {"JetMoE-8B", "JetMoE-8B", NULL},
    {"DBRX", "DBRX", NULL},
    {"Switch-base-8", "Switch-base-8", "torch_dtype"},
    {"NLLB-MoE-54B", "NLLB-MoE-54B", NULL},
};
enum { MODELS = sizeof models / sizeof *models };

/// The text that import writes for a path, copied; NULL with the context's diagnostics queued.
static char *import_path(struct context *context, const char *path, const char *cluster)
{
    struct import_options options = {.path = path, .cluster = cluster};
    context_init(context);
    if (setjmp(context->fatal))
        return NULL;
    const char *text = import_checkpoint(context, &options);
    return text ? strdup(text) : NULL;
}

/// The program of an imported file as plan tables: --emit=program, read back.
static bool lower_text(const char *text, struct ir *plan)
{
    char path[] = "/tmp/moe_import_XXXXXX", error[256] = "";
    int file = mkstemp(path);
    bool written = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);
    close(file);
    char *printed = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&printed, &size);
    struct driver_options options = {.file = path, .emit = "program", .out = out, .check = {.layer = -1}};
    struct driver_result result = {0};
    struct context context;
    context_init(&context);
    enum exit_code code = setjmp(context.fatal) ? EXIT_SYSTEM : compile(&context, &options, &result);
    fclose(out);
    bool fine = written && code == EXIT_FINE && ir_parse(plan, &plan_ir, printed, error, sizeof error);
    if (!fine) {
        diag_print_all(&context, DIAG_SHORT, false, stderr);
        fprintf(stderr, "%s\n", error);
    }
    free(result.image);
    context_free(&context);
    free(printed);
    unlink(path);
    return fine;
}

static bool simulate_text(const char *text)
{
    char path[] = "/tmp/moe_import_XXXXXX", *printed = NULL;
    int file = mkstemp(path);
    bool written = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);
    close(file);
    size_t size = 0;
    FILE *out = open_memstream(&printed, &size);
    struct driver_options options = {
        .file = path, .check_only = true, .simulate = true, .out = out, .check = {.layer = -1}};
    struct driver_result result = {0};
    struct context context;
    context_init(&context);
    enum exit_code code = setjmp(context.fatal) ? EXIT_SYSTEM : compile(&context, &options, &result);
    fclose(out);
    bool fine = written && code == EXIT_FINE && printed && strstr(printed, "latency") && result.schedules > 0;
    diag_print_all(&context, DIAG_SHORT, false, stderr);
    free(result.image);
    context_free(&context);
    free(printed);
    unlink(path);
    return fine;
}

/// Absolute, so that a file anywhere can import it.
static const char *config_path(const char *name, char *path, size_t size)
{
    char relative[256];
    snprintf(relative, sizeof relative, "tests/data/configs/%s.json", name);
    char *found = realpath(relative, NULL);
    snprintf(path, size, "%s", found ? found : relative);
    free(found);
    return path;
}

static const json_t *find_model(const json_t *all, const char *name)
{
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(all, "models"), i, row)
        if (!strcmp(json_string_value(json_object_get(row, "name")), name))
            return row;
    return NULL;
}

static int64_t number(const json_t *row, const char *key)
{
    if (!json_is_integer(json_object_get(row, key))) // dots.llm1 has no groups
        return 1;
    return json_integer_value(json_object_get(row, key));
}

static const struct plan_param *find_param(const struct ir *plan, const char *name)
{
    for (uint32_t i = 0; i < COUNT(plan, plan_param); i++)
        if (!strcmp(ir_text(plan, ROW(plan, plan_param, i)->name), name))
            return ROW(plan, plan_param, i);
    return NULL;
}

static const struct plan_kernel *find_route(const struct ir *plan)
{
    for (uint32_t i = 0; i < COUNT(plan, plan_kernel); i++)
        if (ROW(plan, plan_kernel, i)->role == kernel_role_route)
            return ROW(plan, plan_kernel, i);
    return NULL;
}

static void check_sizes(const struct ir *plan, const json_t *row)
{
    const struct plan_info *info = ROW(plan, plan_info, 0);
    const struct plan_param *down = find_param(plan, "w_down"), *shared = find_param(plan, "s_down");
    const struct plan_kernel *route = find_route(plan);
    CU_ASSERT_EQUAL(info->experts, number(row, "experts"));
    CU_ASSERT_EQUAL(info->choices, number(row, "top_k"));
    CU_ASSERT_EQUAL(info->width, number(row, "hidden"));
    CU_ASSERT_FATAL(down && route);
    CU_ASSERT_EQUAL(down->cols, number(row, "moe_ffn"));
    CU_ASSERT_EQUAL(shared ? shared->cols : 0, number(row, "shared_ffn"));
    CU_ASSERT_EQUAL(route->n[6], number(row, "n_group"));
    CU_ASSERT_EQUAL(route->n[7], number(row, "topk_group"));
    const json_t *norm = json_object_get(row, "norm_topk");
    if (json_is_boolean(norm))
        CU_ASSERT_EQUAL(route->n[4], json_is_true(norm));
    bool nllb = !strcmp(json_string_value(json_object_get(row, "name")), "NLLB-MoE-54B"); // 1 - moe_token_dropout
    CU_ASSERT_DOUBLE_EQUAL(route->scale, nllb ? 0.8 : json_number_value(json_object_get(row, "routed_scaling")), 1e-9);
}

static void test_models(void)
{
    json_t *all = json_load_file("tests/data/models.json", 0, NULL);
    CU_ASSERT_EQUAL_FATAL(json_array_size(json_object_get(all, "models")), MODELS);
    for (int i = 0; i < MODELS; i++) {
        struct context context;
        struct ir plan = {0};
        char path[1024];
        const json_t *row = find_model(all, models[i].name);
        CU_ASSERT_FATAL(row != NULL);
        char *text = import_path(&context, config_path(models[i].config, path, sizeof path), NULL);
        diag_print_all(&context, DIAG_SHORT, false, stderr);
        context_free(&context);
        CU_ASSERT_FATAL(text != NULL);
        bool lowered = lower_text(text, &plan);
        if (!lowered)
            fprintf(stderr, "  %s\n", models[i].name);
        CU_ASSERT(lowered);
        if (lowered)
            check_sizes(&plan, row);
        CU_ASSERT(simulate_text(text));
        char assumed[64];
        snprintf(assumed, sizeof assumed, "has no `%s`", models[i].absent ? models[i].absent : "");
        CU_ASSERT_EQUAL(models[i].absent != NULL, strstr(text, "assumed") != NULL);
        CU_ASSERT(!models[i].absent || strstr(text, assumed));
        ir_free(&plan);
        free(text);
    }
    json_decref(all);
}

// ---- clusters ---------------------------------------------------------------------------------------------------------

static void test_clusters(void)
{
    static const struct {
        const char *config, *cluster, *expected;
    } cases[] = {{"Qwen1.5-MoE-A2.7B", "hgx8", "place experts over gpu { balance: even };"},
                 {"Qwen3-30B-A3B", "hgx8", "place experts over gpu;"},
                 {"Qwen3-30B-A3B", "pod64", "place experts over node, gpu;"},
                 {"Granite-3.0-3B-a800m", "pod64", "place experts over node, gpu { balance: even };"},
                 {"Qwen3-30B-A3B", "hgx8", "target    = cuda(sm_90a);"},
                 {"Qwen3-30B-A3B", NULL, "target    = cpu;"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct context context;
        char path[1024];
        char *text = import_path(&context, config_path(cases[i].config, path, sizeof path), cases[i].cluster);
        CU_ASSERT(text && strstr(text, cases[i].expected));
        if (text)
            CU_ASSERT(simulate_text(text));
        free(text);
        context_free(&context);
    }
}

/// A folder's name is put between quotes as it is, whatever it holds; a cluster without ranks is refused.
static void test_names(void)
{
    char folder[64], path[128], text[4096] = "";
    struct context context;
    snprintf(folder, sizeof folder, "/tmp/moe \"import\\ %d", (int)getpid());
    CU_ASSERT_FATAL(mkdir(folder, 0700) == 0);
    FILE *from = fopen("tests/data/configs/Qwen3-30B-A3B.json", "r");
    size_t size = from ? fread(text, 1, sizeof text, from) : 0;
    CU_ASSERT_FATAL(size > 0 && size < sizeof text);
    fclose(from);
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *to = fopen(path, "w");
    CU_ASSERT_FATAL(to && fwrite(text, 1, size, to) == size && fclose(to) == 0);
    char *imported = import_path(&context, path, NULL);
    context_free(&context);
    CU_ASSERT(imported && simulate_text(imported));
    free(imported);

    char cluster[160], *printed = NULL;
    snprintf(cluster, sizeof cluster, "%s/none.moe", folder);
    to = fopen(cluster, "w");
    CU_ASSERT_FATAL(to && fputs("import std.hw { host };\ncluster none { device = host; axis gpu[0]; }\n", to) > 0 &&
                    fclose(to) == 0);
    strcat(cluster, ":none");
    CU_ASSERT_PTR_NULL(import_path(&context, path, cluster));
    FILE *out = open_memstream(&printed, &size);
    diag_print_all(&context, DIAG_SHORT, false, out);
    fclose(out);
    CU_ASSERT_PTR_NOT_NULL(strstr(printed, "E0602]: axis `gpu` has no size"));
    free(printed);
    context_free(&context);
    *strrchr(cluster, ':') = 0;
    unlink(cluster);
    unlink(path);
    rmdir(folder);
}

/// Whatever a configuration may call its activation, the file that import writes has it and compiles.
static void test_activations(void)
{
    static const struct {
        const char *module, *keys, *word, *option, *value;
    } words[] = {
#define WORD(...) {__VA_ARGS__},
#include "compiler/import/families.def"
#undef WORD
    };
    unsigned tried = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (*words[i].module || strcmp(words[i].option, "activation") != 0)
            continue;
        struct context context;
        struct ir plan = {0};
        char path[] = "/tmp/moe_config_XXXXXX.json", config[256], expected[64];
        snprintf(config, sizeof config,
                 "{\"model_type\": \"mixtral\", \"hidden_size\": 64, \"intermediate_size\": 64, \"num_hidden_layers\": 1,"
                 " \"num_experts_per_tok\": 2, \"num_local_experts\": 8, \"hidden_act\": \"%s\"}", words[i].word);
        snprintf(expected, sizeof expected, "activation: %s)", words[i].value);
        int file = mkstemps(path, 5);
        CU_ASSERT_FATAL(write(file, config, strlen(config)) == (ssize_t)strlen(config) && close(file) == 0);
        char *text = import_path(&context, path, NULL);
        CU_ASSERT(text && strstr(text, expected) && lower_text(text, &plan));
        ir_free(&plan);
        free(text);
        context_free(&context);
        unlink(path);
        tried++;
    }
    CU_ASSERT(tried > 0);
}

// ---- what is refused --------------------------------------------------------------------------------------------------

#define SIZES "\"hidden_size\": 64, \"num_hidden_layers\": 2, \"num_experts_per_tok\": 2"

static void test_refusals(void)
{
    static const struct {
        const char *config, *message;
    } cases[] = {
        {"{\"hidden_size\": 64}", "E0602]: `/tmp"},
        {"{\"model_type\": \"mixtrall\"}", "E0602]: no model of the library has the type `mixtrall`"},
        {"{\"model_type\": \"mixtral\", " SIZES ", \"hidden_act\": \"xielu\"}", "E0602]: `hidden_act` of mixtral is `xielu`"},
        {"{\"model_type\": \"deepseek_v3\", " SIZES ", \"scoring_func\": \"sqrtsoftplus\"}",
         "E0602]: `scoring_func` of deepseek_v3 is `sqrtsoftplus`"},
        {"{\"model_type\": \"deepseek_v2\", " SIZES ", \"topk_method\": \"noaux_tc\"}",
         "E0602]: `topk_method` of deepseek_v2 is `noaux_tc`"},
        {"{\"model_type\": \"phimoe\", " SIZES ", \"router_jitter_noise\": 0.02}",
         "E0602]: `router_jitter_noise` of phimoe is `0.02`"},
        {"{\"model_type\": \"dbrx\", \"ffn_config\": {\"moe_normalize_expert_weights\": 2.0}}",
         "E0602]: `ffn_config.moe_normalize_expert_weights` of dbrx is `2`"},
        {"{\"model_type\": \"mixtral\", " SIZES ", \"torch_dtype\": \"int8\"}", "E0602]: `torch_dtype` is `int8`"},
        {"{\"model_type\": \"mixtral\", " SIZES ", \"quantization_config\": {\"quant_method\": \"awq\"}}",
         "E0602]: weights quantised by `awq`"},
        {"{\"model_type\": \"mixtral\", \"hidden_size\": \"64\"}", "E0602]: `hidden_size` is `\"64\"`"},
        {"{\"model_type\": \"mixtral\", \"hidden_size\": 0}", "E0602]: `hidden_size` is `0`"},
        {"{\"model_type\": \"mixtral\", \"hidden_size\": 64.5}", "E0602]: `hidden_size` is `64.5`"},
        {"{\"model_type\": \"mixtral\", \"hidden_size\": {\"text\": 64}}", "E0602]: `hidden_size` is `{...}`"},
        {"{\"model_type\": \"qwen3_moe\", " SIZES ", \"norm_topk_prob\": 1}", "E0602]: `norm_topk_prob` is `1`"},
        {"{\"model_type\": \"mixtral\", \"num_hidden_layers\": \"two\"}", "E0602]: `num_hidden_layers` is `\"two\"`"},
        {"{\"model_type\": \"deepseek_v3\", " SIZES ", \"first_k_dense_replace\": -1}", "E0602]: `first_k_dense_replace` is `-1`"},
        {"{\"model_type\": \"dots1\", " SIZES "}", "has no `n_routed_experts`"},
        {"{\"model_type\": \"hunyuan_v1_moe\", \"num_hidden_layers\": 3, \"moe_topk\": [2, 2, 4]}",
         "E0602]: `moe_topk` is not the same in every layer"},
        {"{\"model_type\": \"hunyuan_v1_moe\", \"num_hidden_layers\": 3, \"moe_topk\": [2, 2]}",
         "E0602]: `moe_topk` is not the same in every layer"},
        {"{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 2, \"decoder_sparse_step\": 4}", "has experts"},
        {"[1, 2]", "E0105]: `/tmp"},
        {"{\"model_type\": ", "is not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[] = "/tmp/moe_config_XXXXXX", *printed = NULL;
        int file = mkstemp(path);
        CU_ASSERT_FATAL(write(file, cases[i].config, strlen(cases[i].config)) == (ssize_t)strlen(cases[i].config));
        close(file);
        struct context context;
        size_t size = 0;
        char *text = import_path(&context, path, NULL);
        FILE *out = open_memstream(&printed, &size);
        diag_print_all(&context, DIAG_SHORT, false, out);
        fclose(out);
        CU_ASSERT_PTR_NULL(text);
        bool said = strstr(printed, cases[i].message) != NULL;
        if (!said)
            fprintf(stderr, "expected %s, found %s\n", cases[i].message, printed);
        CU_ASSERT(said);
        free(text);
        free(printed);
        context_free(&context);
        unlink(path);
    }
}

void suite_import(void);
void suite_import(void)
{
    CU_pSuite suite = CU_add_suite("import", NULL, NULL);
    CU_add_test(suite, "29 public models from their configurations", test_models);
    CU_add_test(suite, "clusters: axes, uneven experts, targets", test_clusters);
    CU_add_test(suite, "names and clusters as they are given", test_names);
    CU_add_test(suite, "every word for an activation", test_activations);
    CU_add_test(suite, "what is not known is named", test_refusals);
}
