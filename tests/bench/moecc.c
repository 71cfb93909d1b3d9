// moecc as an engine: a layer's text compiled in this process, its whole step run, router included.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/moe.h"
#include "tests/bench/engine.h"
#include "tests/bench/plan.h"

struct bench_moecc {
    moe_plan *plan;
    moe_session *session;
};

static void write_layer(const struct bench_shape *shape, enum bench_dtype dtype, int64_t tokens, FILE *file)
{
    const char *x = dtype == BENCH_F32 ? "f32" : "bf16", *type = bench_quantised(dtype) ? "coded" : x;
    const char *format = dtype == BENCH_E4M3    ? "format coded = fp8_e4m3 { block: [128, 128], scale: f32 };\n"
                         : dtype == BENCH_MXFP4 ? "format coded = mxfp4 { block: [1, 32], scale: ue8m0 };\n"
                                                : "";
    fprintf(file,
            "import std.ops;\nimport std.hw { laptop };\nimport std.schedules { serial };\n"
            "dim tokens <= %lld;\ndim hidden = %lld;\ndim ffn = %lld;\ndim experts = %d;\n%s"
            "layer moe(x: %s[tokens, hidden]) -> %s[tokens, hidden] {\n"
            "    param w_router: f32[experts, hidden];\n    param w_gate_up: %s[experts, 2 * ffn, hidden];\n"
            "    param w_down: %s[experts, hidden, ffn];\n",
            (long long)tokens, (long long)shape->hidden, (long long)shape->ffn, shape->experts, format, x, x, type, type);
    if (shape->shared)
        fprintf(file,
                "    param shared_gate_up: %s[%d, 2 * ffn, hidden];\n    param shared_down: %s[%d, hidden, ffn];\n", type,
                shape->shared, type, shape->shared);
    fprintf(file,
            "    stage route: r = topk(x, w_router, k: %d);\n    stage dispatch: xd = dispatch(x, r);\n"
            "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n",
            shape->choices);
    if (shape->shared)
        fprintf(file, "    stage shared: ys = swiglu(x, shared_gate_up, shared_down);\n"
                      "    stage combine: yr = combine(yd, r);\n    stage merge: y = add(yr, ys);\n");
    else
        fprintf(file, "    stage combine: y = combine(yd, r);\n");
    fprintf(file, "    yield y;\n}\nplacement p on laptop { place experts over rank; }\n"
                  "pipeline bench { layer = moe; cluster = laptop; placement = p; target = cpu; use serial; }\n");
}

struct bench_moecc *bench_moecc_load(const struct bench_shape *shape, enum bench_dtype dtype, unsigned threads,
                                     int64_t tokens)
{
    char path[] = "/tmp/moe-bench-XXXXXX";
    int fd = mkstemp(path);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    struct bench_moecc *moecc = calloc(1, sizeof *moecc);
    if (!file || !moecc) {
        perror(path);
        free(moecc);
        return NULL;
    }
    write_layer(shape, dtype, tokens, file);
    fclose(file);
    moecc->plan = bench_plan(path, &(struct check_options){.ranks = 1, .layer = -1});
    remove(path);
    moe_options options = {.threads = threads};
    if (!moecc->plan || moe_session_create(moecc->plan, &options, &moecc->session) != MOE_OK)
        fprintf(stderr, "%s\n", moe_last_error());
    else if (moe_session_load(moecc->session, "random") != MOE_OK)
        fprintf(stderr, "%s\n", moe_session_error(moecc->session));
    else
        return moecc;
    bench_moecc_unload(moecc);
    return NULL;
}

bool bench_moecc_run(struct bench_moecc *moecc, struct bench_batch *batch, void *y)
{
    moe_step step = {.tokens = batch->tokens, .in = batch->x, .out = y, .topk_ids = batch->ids, .topk_weights = batch->weights};
    if (moe_session_run(moecc->session, &step, 1) == MOE_OK)
        return true;
    fprintf(stderr, "%s\n", moe_session_error(moecc->session));
    return false;
}

void bench_moecc_unload(struct bench_moecc *moecc)
{
    moe_session_destroy(moecc->session);
    moe_plan_close(moecc->plan);
    free(moecc);
}
