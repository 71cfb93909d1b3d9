// What benchmarks of schedules run (subject.h).
#include "tests/bench/schedules/subject.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/cli/report.h"
#include "runtime/exec/session.h"
#include "runtime/weights/safetensors.h"
#include "runtime/weights/random.h"
#include "tests/bench/plan.h"

static moe_plan *compile_subject(const struct subject *s)
{
    char dim[32];
    snprintf(dim, sizeof dim, "tokens=%lld", (long long)s->tokens);
    const char *dims[] = {dim};
    struct check_options check = {.pipeline = s->pipeline, .schedule = s->schedule, .layer = -1, .dims = dims};
    check.dim_count = s->tokens ? 1 : 0;
    return bench_plan(s->file, &check);
}

/// Two experts a token: all pairs in turn, so that no rank and no expert has more than another.
static void draw_routes(struct subject *s, size_t tokens)
{
    uint32_t a = 0, b = 1;
    for (size_t t = 0; t < tokens; t++) {
        s->ids[2 * t] = (int32_t)a;
        s->ids[2 * t + 1] = (int32_t)b;
        s->weights[2 * t] = 0.6f;
        s->weights[2 * t + 1] = 0.4f;
        if (++b == s->info.experts) {
            a = a + 2 < s->info.experts ? a + 1 : 0;
            b = a + 1;
        }
    }
}

static bool make_batch(struct subject *s)
{
    size_t rows = s->info.ranks * (size_t)s->tokens, width = (size_t)s->info.width;
    float *row = malloc(width * sizeof *row);
    s->in = malloc(rows * width * 2);
    s->out = malloc(rows * width * 2);
    s->ids = malloc(rows * 2 * sizeof *s->ids);
    s->weights = malloc(rows * 2 * sizeof *s->weights);
    s->steps = calloc(s->info.ranks, sizeof *s->steps);
    bool fine = row && s->in && s->out && s->ids && s->weights && s->steps && s->info.choices == 2;
    for (size_t t = 0; t < rows && fine; t++) {
        random_token(7, (uint32_t)(t / (size_t)s->tokens), (int64_t)(t % (size_t)s->tokens), row, width);
        elements_from_f32("BF16", row, (char *)s->in + t * width * 2, width);
    }
    free(row);
    if (fine)
        draw_routes(s, rows);
    for (uint32_t r = 0; r < s->info.ranks && fine; r++) {
        size_t first = r * (size_t)s->tokens;
        s->steps[r] = (moe_step){.rank = r,
                                 .tokens = s->tokens,
                                 .in = (char *)s->in + first * width * 2,
                                 .out = (char *)s->out + first * width * 2,
                                 .given_ids = s->ids + 2 * first,
                                 .given_weights = s->weights + 2 * first};
    }
    return fine;
}

/// Stands for attention: its input, after the time that the rank's tokens are worth.
static int attention(void *user, const moe_extern_call *call)
{
    const struct subject *s = user;
    int64_t until = clock_ns() + (int64_t)(1e9 * s->attention_s * (double)call->count / (double)s->running);
    memcpy(call->out, call->in[0], (size_t)(call->count * call->row_bytes[0]));
    while (clock_ns() < until)
        ;
    return 0;
}

void subject_tokens(struct subject *s, int64_t tokens)
{
    s->running = tokens;
    for (uint32_t r = 0; r < s->info.ranks; r++)
        s->steps[r].tokens = tokens;
}

bool subject_open(struct subject *s)
{
    s->plan = compile_subject(s);
    if (!s->plan)
        return false;
    moe_plan_describe(s->plan, &s->info);
    s->tokens = s->info.tokens_bound;
    moe_options options = {.trace = 1, .emulate_links = 1, .bind = "core"};
    if (moe_session_create(s->plan, &options, &s->session) != MOE_OK) {
        fprintf(stderr, "%s\n", moe_last_error());
        return false;
    }
    if (s->attention_s > 0)
        moe_session_extern(s->session, "attn", attention, s);
    if (moe_session_load(s->session, "random") == MOE_OK && make_batch(s)) {
        subject_tokens(s, s->tokens);
        return true;
    }
    fprintf(stderr, "%s: %s\n", s->schedule, moe_session_error(s->session));
    return false;
}

bool subject_step(struct subject *s, struct sample *sample)
{
    moe_stats stats;
    if (moe_session_run(s->session, s->steps, s->info.ranks) != MOE_OK || moe_session_stats(s->session, &stats) != MOE_OK) {
        fprintf(stderr, "%s: %s\n", s->schedule, moe_session_error(s->session));
        return false;
    }
    *sample = (struct sample){stats.step_s, stats.step_s * stats.exposed_comm, stats.step_s * stats.idle};
    return true;
}

void subject_scale_links(struct subject *s, double factor)
{
    struct ir *ir = &s->plan->plan.ir;
    for (uint32_t a = 0; a < COUNT(ir, plan_axis); a++)
        ROW(ir, plan_axis, a)->bandwidth *= factor;
}

uint64_t subject_output_hash(const struct subject *s)
{
    return XXH3_64bits(s->out, s->info.ranks * (size_t)(s->tokens * s->info.width) * 2);
}

void subject_close(struct subject *s)
{
    if (s->session)
        moe_session_destroy(s->session);
    if (s->plan)
        moe_plan_close(s->plan);
    free(s->in);
    free(s->out);
    free(s->ids);
    free(s->weights);
    free(s->steps);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median_of(double *values, unsigned count)
{
    qsort(values, count, sizeof *values, by_value);
    return report_percentile(values, count, 0.5);
}
