// Programs through the whole compiler, with what `moecc simulate` prints and what it complains of.
#include "tests/simulate/fixture.h"

#include <CUnit/CUnit.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct simulated simulate_options(const struct driver_options *given)
{
    struct simulated o = {EXIT_BUG, NULL, NULL};
    size_t size, error_size;
    struct context context;
    FILE *out = open_memstream(&o.out, &size), *errors = open_memstream(&o.errors, &error_size);
    struct driver_options options = *given;
    options.out = out;
    struct driver_result result = {0};
    context_init(&context);
    int left = setjmp(context.fatal);
    if (left)
        fprintf(errors, "%s\n", context.fatal_message);
    o.code = left ? (enum exit_code)left : compile(&context, &options, &result);
    diag_print_all(&context, DIAG_TEXT, false, errors);
    context_free(&context);
    fclose(out);
    fclose(errors);
    return o;
}

struct simulated simulate_file(const char *path, const char *schedule, bool simulate)
{
    return simulate_options(&(struct driver_options){.file = path,
                                                     .check = {.layer = -1, .schedule = schedule},
                                                     .check_only = true,
                                                     .simulate = simulate,
                                                     .json = true});
}

struct simulated simulate_report(const char *path)
{
    return simulate_options(
        &(struct driver_options){.file = path, .check = {.layer = -1}, .check_only = true, .simulate = true});
}

struct simulated simulate_file_for(const char *path, const char *schedule, const char *target)
{
    return simulate_options(&(struct driver_options){.file = path,
                                                     .check = {.layer = -1, .schedule = schedule, .target = target},
                                                     .check_only = true,
                                                     .simulate = true,
                                                     .json = true});
}

void simulated_free(struct simulated *o)
{
    free(o->out);
    free(o->errors);
}

static const char program[] =
    "import std.ops;\nimport std.schedules { serial, ladder, waves };\n"
    "dim tokens <= 1024;\ndim hidden = 512;\ndim ffn = 512;\ndim experts = %d;\n"
    "device fast { sm = 100; memory = 80GB; hbm = 100000TB/s; peak = { bf16: 3.221225472TFLOPS }; derate = 100%%;\n"
    "    engine copy[2], net_out, net_in; %s }\n"
    "cluster four { device = fast; axis rank[4]; link wire across rank { bandwidth: %s, latency: 0us }; }\n"
    "placement one_each on four { place experts over rank; }\n"
    "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n"
    "    param w_router: f32[experts, hidden];\n    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n"
    "    param w_down: bf16[experts, hidden, ffn];\n"
    "    stage route: r = topk(x, w_router, k: 2);\n    stage dispatch: xd = dispatch(x, r);\n"
    "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n    stage combine: y = combine(yd, r);\n    yield y;\n}\n%s"
    "pipeline main { layer = moe; cluster = four; placement = one_each; target = %s;\n%s\n}\n";

static struct simulated simulate_temporary(const char *text, const char *schedule, const char *load, bool simulate)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/simulate_%ld.moe", (long)getpid());
    FILE *file = fopen(path, "w");
    if (file) {
        fputs(text, file);
        fclose(file);
    }
    struct simulated o = simulate_options(&(struct driver_options){.file = path,
                                                                   .check = {.layer = -1, .schedule = schedule},
                                                                   .check_only = true,
                                                                   .simulate = simulate,
                                                                   .load = load,
                                                                   .json = true});
    unlink(path);
    return o;
}

struct simulated simulate_source(const char *text, bool simulate) { return simulate_temporary(text, NULL, NULL, simulate); }
struct simulated simulate_source_with(const char *text, const char *schedule) { return simulate_temporary(text, schedule, NULL, true); }
struct simulated simulate_source_loaded(const char *text, const char *load) { return simulate_temporary(text, NULL, load, true); }

static void setting_text(const struct setting *s, char *text, size_t size)
{
    snprintf(text, size, program, s->experts ? s->experts : 4, s->device ? s->device : "", s->bandwidth, s->items ? s->items : "", s->target ? s->target : "cpu",
             s->members);
}

struct simulated simulate_setting(const struct setting *s, bool simulate)
{
    char text[8192];
    setting_text(s, text, sizeof text);
    return simulate_source(text, simulate);
}

struct simulated simulate_loaded(const char *bandwidth, const char *members, const char *load)
{
    char text[8192];
    setting_text(&(struct setting){.bandwidth = bandwidth, .members = members}, text, sizeof text);
    return simulate_temporary(text, NULL, load, true);
}

struct simulated simulate_text(const char *bandwidth, const char *items, const char *members, bool simulate)
{
    return simulate_setting(&(struct setting){.bandwidth = bandwidth, .items = items, .members = members}, simulate);
}

double figure(const char *line, const char *object, const char *key)
{
    json_t *root = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
    json_t *inner = object ? json_object_get(root, object) : root;
    double value = json_number_value(json_object_get(inner, key));
    CU_ASSERT_PTR_NOT_NULL(json_object_get(inner, key));
    json_decref(root);
    return value;
}
