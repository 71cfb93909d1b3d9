// The best candidates as they really run: compiled, with random weights, by turns, medians. Only where the target runs here.
#include "compiler/tune/search.h"

#include <stdlib.h>

#include "runtime/cli/batch.h"
#include "runtime/cli/cli.h"

enum { TURNS = 5, CONFIRMED_MOST = 8 };

struct measured {
    moe_plan *plan;
    moe_plan_info info;
    moe_session *session;
    struct batch batch;
    double times[TURNS];
};

static void ignore(void *user, const char *text) { (void)user, (void)text; }

static void close_measured(struct measured *m)
{
    if (m->session)
        moe_session_destroy(m->session);
    if (m->plan) {
        batch_free(&m->batch);
        moe_plan_close(m->plan);
    }
}

/// Links as the cluster states them, extern stages as long as the file says, random tokens and weights.
static bool open_measured(struct tuning *t, const struct candidate *c, struct measured *m)
{
    size_t bytes;
    char error[256];
    struct run_options run;
    void *image = compile_candidate(t, c, &bytes);
    bool fine = image && moe_plan_from_memory(image, bytes, &m->plan) == MOE_OK;
    free(image);
    if (!fine)
        return false;
    run_options_init(&run);
    for (uint32_t i = 0; i < t->shape.extern_count; i++)
        run.extern_stages[run.extern_count++] = t->shape.externs[i];
    moe_plan_describe(m->plan, &m->info);
    moe_options options = {.threads = t->options->threads, .emulate_links = 1};
    fine = batch_random(&m->batch, &m->info, &t->tokens, 1, 1, error, sizeof error) == MOE_OK &&
           moe_session_create(m->plan, &options, &m->session) == MOE_OK &&
           externs_attach(m->plan, m->session, &run, ignore, NULL, error, sizeof error) == MOE_OK &&
           moe_session_load(m->session, "random") == MOE_OK;
    run_options_free(&run);
    return fine;
}

static int by_time(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

void confirm(struct tuning *t, uint32_t count)
{
    struct measured measured[CONFIRMED_MOST] = {0};
    bool fine = true;
    count = count > CONFIRMED_MOST ? CONFIRMED_MOST : count > t->kept_count ? t->kept_count : count;
    for (uint32_t i = 0; i < count && fine; i++)
        fine = open_measured(t, &t->kept[i], &measured[i]);
    for (int turn = -1; turn < TURNS && fine; turn++) // the first warms up
        for (uint32_t i = 0; i < count && fine; i++) {
            moe_stats stats;
            fine = moe_session_run(measured[i].session, measured[i].batch.steps, t->ranks) == MOE_OK &&
                   moe_session_stats(measured[i].session, &stats) == MOE_OK;
            if (turn >= 0 && fine)
                measured[i].times[turn] = stats.step_s;
        }
    for (uint32_t i = 0; i < count; i++) {
        qsort(measured[i].times, TURNS, sizeof(double), by_time);
        if (fine)
            t->kept[i].measured_ns = 1e9 * measured[i].times[TURNS / 2];
        close_measured(&measured[i]);
    }
}
