// One layer of published models at full size, with random weights made on the fly: how large it is, how long it loads, how
// long 8 tokens take, and whether some tokens' results are those of the formulas in float64. The layer is what `moecc
// import` writes for the model's configuration. Usage: moe-bench-models [NAME...] [--check N] [--require]
//
// A layer for which memory is short is left out, with what it would take. --require: exit code 1 when a result is wrong or a
// layer is left out.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/driver.h"
#include "compiler/import/import.h"
#include "runtime/exec/session.h"
#include "runtime/weights/random.h"
#include "runtime/weights/safetensors.h"
#include "tests/bench/models/reference.h"
#include "tests/bench/schedules/subject.h"
#include "tests/bench/plan.h"

enum { TOKENS = 8, STEPS = 15 };
static const double BOUND = 5e-3, WEIGHTS_OFF = 1e-4; // of results in bf16; of routing weights

static const struct reference_model models[] = {
    {"Qwen3-30B-A3B", "Qwen3-30B-A3B", "bf16", 0, ROUTER_SOFTMAX, 128, 8, 1, 1, 2048, 768, 1, false, false, false},
    {"DeepSeek-V3", "DeepSeek-V3", "E4M3", 3, ROUTER_SIGMOID_GROUPS, 256, 8, 8, 4, 7168, 2048, 2.5, false, false, true},
    {"gpt-oss-120b", "gpt-oss-120b", "MXFP4", 0, ROUTER_SOFTMAX_AFTER, 128, 4, 1, 1, 2880, 2880, 1, true, true, false},
};

struct layer {
    const struct reference_model *model;
    moe_plan *plan;
    moe_session *session;
    uint16_t *x, *y;
    int32_t *ids;
    float *weights;
    double bytes, load_s, step_s;
};

static bool write_import(const struct reference_model *model, const char *path)
{
    char config[256];
    static struct context context;
    snprintf(config, sizeof config, "tests/data/configs/%s.json", model->config);
    struct import_options options = {.path = config};
    context_init(&context);
    const char *text = setjmp(context.fatal) ? NULL : import_checkpoint(&context, &options);
    FILE *out = text ? fopen(path, "w") : NULL;
    char folder[4096] = "";
    bool fine = out && getcwd(folder, sizeof folder);
    const char *import = fine ? strstr(text, "import \"tests/") : NULL; // the file stands elsewhere
    if (import)
        fprintf(out, "%.*simport \"%s/%s", (int)(import - text), text, folder, import + strlen("import \""));
    fine = import && !ferror(out);
    if (out)
        fine = fclose(out) == 0 && fine;
    diag_print_all(&context, DIAG_TEXT, false, stderr);
    context_free(&context);
    return fine;
}

static moe_plan *compile_layer(const struct reference_model *model, const char *path)
{
    char dim[32];
    snprintf(dim, sizeof dim, "tokens=%d", TOKENS);
    const char *dims[] = {dim};
    struct check_options check = {.ranks = 1, .layer = model->layer, .schedule = "serial", .dims = dims, .dim_count = 1};
    return bench_plan(path, &check);
}

static double layer_bytes(const struct layer *l)
{
    const struct ir *ir = &l->plan->plan.ir;
    double bytes = 0;
    for (uint32_t i = 0; i < COUNT(ir, plan_param); i++) {
        const struct plan_param *p = ROW(ir, plan_param, i);
        bytes += (double)p->bytes * (double)plan_param_blocks(p, l->model->experts);
    }
    return bytes;
}

/// What the system says can be used without swapping; INFINITY: it does not say.
static double free_memory(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[256];
    double kilobytes = INFINITY;
    while (file && fgets(line, sizeof line, file) && sscanf(line, "MemAvailable: %lf", &kilobytes) != 1)
        ;
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

static double now_s(void)
{
    return (double)clock_ns() * 1e-9;
}

static bool run_layer(struct layer *l)
{
    moe_options options = {.bind = "core"};
    size_t width = (size_t)l->model->hidden;
    float *row = malloc(width * sizeof *row);
    double begin = now_s(), times[STEPS];
    bool fine = row && moe_session_create(l->plan, &options, &l->session) == MOE_OK && moe_session_load(l->session, "random") == MOE_OK;
    l->load_s = now_s() - begin;
    for (int t = 0; t < TOKENS && fine; t++) {
        random_token(5, 0, t, row, width);
        elements_from_f32("BF16", row, l->x + (size_t)t * width, width);
    }
    moe_step step = {.tokens = TOKENS, .in = l->x, .out = l->y, .topk_ids = l->ids, .topk_weights = l->weights};
    for (int i = -2; i < STEPS && fine; i++) { // two to warm up
        begin = now_s();
        fine = moe_session_run(l->session, &step, 1) == MOE_OK;
        times[i < 0 ? 0 : i] = now_s() - begin;
    }
    if (!fine)
        fprintf(stderr, "%s: %s\n", l->model->name, l->session ? moe_session_error(l->session) : moe_last_error());
    free(row);
    if (fine)
        l->step_s = median_of(times, STEPS);
    return fine;
}

/// Relative L2 of some tokens' results; NAN where experts or their weights differ.
static double check_tokens(const struct layer *l, unsigned tokens)
{
    const struct reference_model *m = l->model;
    size_t width = (size_t)m->hidden;
    float *x = malloc(2 * width * sizeof *x), *y = x + width;
    double *want = malloc(width * sizeof *want), off = 0, size = 0, weights[REFERENCE_MOST_CHOICES];
    int32_t ids[REFERENCE_MOST_CHOICES];
    bool fine = x && want;
    for (unsigned i = 0; i < tokens && fine; i++) {
        unsigned t = i * TOKENS / tokens;
        elements_to_f32("BF16", l->x + t * width, x, width);
        elements_to_f32("BF16", l->y + t * width, y, width);
        fine = reference_token(m, &l->plan->plan.ir, x, want, ids, weights);
        for (uint32_t k = 0; k < m->choices && fine; k++)
            fine = ids[k] == l->ids[t * m->choices + k] && fabs(weights[k] - (double)l->weights[t * m->choices + k]) <= WEIGHTS_OFF;
        for (size_t c = 0; c < width && fine; c++) {
            off += ((double)y[c] - want[c]) * ((double)y[c] - want[c]);
            size += want[c] * want[c];
        }
    }
    free(x);
    free(want);
    return fine ? sqrt(off / size) : (double)NAN;
}

static bool make_batch(struct layer *l)
{
    size_t values = (size_t)(TOKENS * l->model->hidden), choices = TOKENS * l->model->choices;
    l->x = malloc(values * sizeof *l->x);
    l->y = malloc(values * sizeof *l->y);
    l->ids = malloc(choices * sizeof *l->ids);
    l->weights = malloc(choices * sizeof *l->weights);
    return l->x && l->y && l->ids && l->weights;
}

static void close_layer(struct layer *l)
{
    moe_session_destroy(l->session);
    moe_plan_close(l->plan);
    free(l->x);
    free(l->y);
    free(l->ids);
    free(l->weights);
}

/// False: its result is wrong, or it could not be run.
static bool bench(const struct reference_model *model, const char *path, unsigned checked, bool *left_out)
{
    struct layer l = {.model = model};
    if (write_import(model, path))
        l.plan = compile_layer(model, path);
    if (!l.plan || !make_batch(&l))
        return false;
    l.bytes = layer_bytes(&l);
    bool fine = true;
    if (l.bytes * 1.02 + 64e6 > free_memory()) {
        printf("| %s, %s | %.2f GB | left out: %.2f GB of memory are free | | | |\n", model->name, model->stored, l.bytes * 1e-9,
               free_memory() * 1e-9);
        *left_out = true;
    } else if ((fine = run_layer(&l))) {
        double error = check_tokens(&l, checked);
        fine = error <= BOUND;
        printf("| %s, %s | %.2f GB | %.1f s | %.2f ms | %.2e | %.0e%s |\n", model->name, model->stored, l.bytes * 1e-9, l.load_s,
               1e3 * l.step_s, error, BOUND, fine ? "" : " WRONG");
    }
    fflush(stdout);
    close_layer(&l);
    return fine;
}

int main(int argc, char **argv)
{
    unsigned checked = 2, names = 0;
    bool require = false, fine = true, left_out = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--check") && i + 1 < argc)
            checked = (unsigned)strtoul(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--require"))
            require = true;
        else
            argv[++names] = argv[i];
    }
    checked = checked < 1 ? 1 : checked > TOKENS ? TOKENS : checked;
    char path[] = "/tmp/moe-models-XXXXXX";
    int file = mkstemp(path);
    if (file < 0)
        return 3;
    close(file);
    printf("| model, experts stored as | one layer | loaded in | %d tokens | relative L2 | bound |\n|---|---|---|---|---|---|\n", TOKENS);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        bool wanted = !names;
        for (unsigned n = 1; n <= names; n++)
            wanted = wanted || !strcmp(argv[n], models[i].name);
        if (wanted)
            fine = bench(&models[i], path, checked, &left_out) && fine;
    }
    remove(path);
    return !fine || (require && left_out);
}
