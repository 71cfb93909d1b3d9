// The engines there are, and what a loaded one is.
#include <stdlib.h>

#include "tests/bench/engine.h"

static bool all(enum bench_dtype dtype)
{
    (void)dtype;
    return true;
}

static const struct bench_engine moecc = {"moecc", all, NULL, false};
static const struct bench_engine plain = {"moecc bf16", bench_quantised, NULL, true};
extern const struct bench_engine bench_libxsmm, bench_onednn, bench_openblas; // without a name: not found at build time

const struct bench_engine *const bench_engines[] = {&moecc, &plain, &bench_libxsmm, &bench_onednn, &bench_openblas};
const unsigned bench_engine_count = sizeof bench_engines / sizeof *bench_engines;

struct bench_loaded {
    struct bench_moecc *moecc;
    struct bench_peer *peer;
};

struct bench_loaded *bench_load(const struct bench_engine *engine, const struct bench_shape *shape, enum bench_dtype dtype,
                                unsigned threads, int64_t tokens)
{
    struct bench_loaded *loaded = calloc(1, sizeof *loaded);
    if (!loaded)
        return NULL;
    if (engine->product)
        loaded->peer = bench_peer_load(engine->product, shape, dtype, threads, tokens);
    else
        loaded->moecc = bench_moecc_load(shape, engine->plain ? BENCH_BF16 : dtype, threads, tokens);
    if (loaded->peer || loaded->moecc)
        return loaded;
    free(loaded);
    return NULL;
}

bool bench_run(struct bench_loaded *loaded, struct bench_batch *batch, void *y)
{
    return loaded->peer ? bench_peer_run(loaded->peer, batch, y) : bench_moecc_run(loaded->moecc, batch, y);
}

void bench_unload(struct bench_loaded *loaded)
{
    if (loaded->peer)
        bench_peer_unload(loaded->peer);
    else
        bench_moecc_unload(loaded->moecc);
    free(loaded);
}
