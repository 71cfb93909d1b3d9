// The runtime against hand-built plans: file form, validation, dispatch and combine under every shape of overflow,
// faults, timeouts, and the simulated device.
#include <CUnit/CUnit.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/exec/control.h"
#include "small_plan.h"

void suite_runtime(void);

static uint64_t random_state;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % limit);
}

/// One step's data for all ranks.
struct data {
    float *x, *y, *want, *weights;
    int32_t *ids;
    int64_t *tokens;
    moe_step *steps;
    const struct small *small;
};

static void data_make(struct data *d, const struct small *s, uint64_t seed, int skew)
{
    size_t rows = (size_t)s->ranks * (size_t)s->bound;
    random_state = seed;
    *d = (struct data){.x = calloc(rows * (size_t)s->width, 4),
                       .y = calloc(rows * (size_t)s->width, 4),
                       .want = calloc(rows * (size_t)s->width, 4),
                       .weights = calloc(rows * s->choices, 4),
                       .ids = calloc(rows * s->choices, 4),
                       .tokens = calloc(s->ranks, 8),
                       .steps = calloc(s->ranks, sizeof(moe_step)),
                       .small = s};
    for (size_t i = 0; i < rows * (size_t)s->width; i++)
        d->x[i] = (float)random_below(1000) / 500.0f - 1.0f;
    for (size_t i = 0; i < rows * s->choices; i++) {
        d->weights[i] = (float)random_below(1000) / 1000.0f;
        size_t first = i / s->choices * s->choices;
        bool again = true;
        while (again) { // skewed routes prefer the first experts; -1 now and then
            uint32_t limit = skew && random_below(8) ? s->choices : s->experts;
            d->ids[i] = random_below(10) ? (int32_t)random_below(limit) : -1;
            again = false;
            for (size_t j = first; j < i; j++)
                again = again || (d->ids[i] >= 0 && d->ids[j] == d->ids[i]);
        }
    }
}

static void data_steps(struct data *d, int how)
{
    const struct small *s = d->small;
    for (uint32_t r = 0; r < s->ranks; r++) {
        size_t at = (size_t)r * (size_t)s->bound;
        d->tokens[r] = how == 0   ? s->bound
                       : how == 1 ? 0
                       : how == 2 ? 1
                                  : (int64_t)random_below((uint32_t)s->bound + 1);
        if (how == 4 && r % 2)
            d->tokens[r] = 0;
        d->steps[r] = (moe_step){.rank = r,
                                 .tokens = d->tokens[r],
                                 .in = d->x + at * (size_t)s->width,
                                 .out = d->y + at * (size_t)s->width,
                                 .given_ids = d->ids + at * s->choices,
                                 .given_weights = d->weights + at * s->choices};
        small_reference(s, d->tokens[r], d->x + at * (size_t)s->width, d->ids + at * s->choices,
                        d->weights + at * s->choices, d->want + at * (size_t)s->width);
    }
    memset(d->y, 0xff, (size_t)s->ranks * (size_t)s->bound * (size_t)s->width * 4);
}

static bool data_right(const struct data *d)
{
    const struct small *s = d->small;
    for (uint32_t r = 0; r < s->ranks; r++) {
        size_t at = (size_t)r * (size_t)s->bound * (size_t)s->width;
        if (memcmp(d->y + at, d->want + at, (size_t)d->tokens[r] * (size_t)s->width * 4))
            return false;
    }
    return true;
}

static void data_free(struct data *d)
{
    free(d->x), free(d->y), free(d->want), free(d->weights), free(d->ids), free(d->tokens), free(d->steps);
}

static const struct small shapes[] = {
    {.ranks = 1, .experts = 4, .choices = 2, .parts = 1, .width = 8, .bound = 16, .rows = -1},
    {.ranks = 2, .experts = 4, .choices = 2, .parts = 1, .width = 6, .bound = 16, .rows = -1},
    {.ranks = 4, .experts = 8, .choices = 3, .parts = 2, .width = 8, .bound = 33, .rows = -1},
    {.ranks = 4, .experts = 8, .choices = 2, .parts = 2, .width = 8, .bound = 32, .rows = 3, .pool = 5},
    {.ranks = 3, .experts = 9, .choices = 4, .parts = 3, .width = 4, .bound = 40, .rows = 0, .pool = 1},
    {.ranks = 5,
     .experts = 6,
     .choices = 2,
     .parts = 4,
     .width = 4,
     .bound = 21,
     .rows = 2,
     .pool = 3,
     .empty_ranks = 2},
    {.ranks = 4, .experts = 8, .choices = 8, .parts = 1, .width = 4, .bound = 24, .rows = 1, .pool = 100},
    {.ranks = 3,
     .experts = 5,
     .choices = 2,
     .parts = 2,
     .width = 4,
     .bound = 20,
     .rows = 4,
     .pool = 2,
     .own_thread = true},
    {.ranks = 1, .experts = 4, .choices = 2, .parts = 2, .width = 4, .bound = 9, .rows = 2, .pool = 2},
    {.ranks = 16, .experts = 32, .choices = 4, .parts = 2, .width = 4, .bound = 12, .rows = 2, .pool = 7},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void run_shape(struct small s, const char *device)
{
    moe_plan *plan;
    moe_session *session;
    moe_options options = {.device = device, .threads = 2, .timeout_s = 10, .trace = 1, .poison = 1};
    moe_status status = small_session(&s, &options, &plan, &session);
    CU_ASSERT_EQUAL_FATAL(status, MOE_OK);
    for (int how = 0; how < 10; how++) {
        struct data d;
        data_make(&d, &s, (uint64_t)how + 1, how % 2);
        data_steps(&d, how < 5 ? how : 3);
        status = moe_session_run(session, d.steps, s.ranks);
        if (status != MOE_OK)
            fprintf(stderr, "%s: %s\n", device, moe_session_error(session));
        CU_ASSERT_EQUAL(status, MOE_OK);
        CU_ASSERT(data_right(&d));
        data_free(&d);
    }
    moe_session_destroy(session);
    moe_plan_close(plan);
}

static void test_cpu(void)
{
    for (int i = 0; i < SHAPES; i++)
        run_shape(shapes[i], "cpu");
}

static void test_sim(void)
{
    for (int i = 0; i < SHAPES; i++)
        run_shape(shapes[i], "sim");
}

/// The simulator's times are the same in every run, and its figures add up.
static void test_sim_time(void)
{
    double step[2] = {0, 0};
    for (int run = 0; run < 2; run++) {
        struct small s = shapes[3];
        moe_plan *plan;
        moe_session *session;
        struct data d;
        moe_stats stats;
        CU_ASSERT_EQUAL_FATAL(small_session(&s, &(moe_options){.device = "sim", .trace = 1}, &plan, &session), MOE_OK);
        data_make(&d, &s, 7, 1);
        data_steps(&d, 0);
        CU_ASSERT_EQUAL(moe_session_run(session, d.steps, s.ranks), MOE_OK);
        CU_ASSERT_EQUAL(moe_session_stats(session, &stats), MOE_OK);
        step[run] = stats.step_s;
        CU_ASSERT(stats.rounds > 0 && stats.overflowed > 0 && stats.tokens == 4 * 32 && stats.bytes_sent > 0);
        CU_ASSERT(stats.compute_s > 0 && stats.comm_s > 0 && stats.exposed_comm > 0 && stats.exposed_comm < 1);
        CU_ASSERT(stats.compute_s / stats.step_s + stats.exposed_comm + stats.idle > 0.999 &&
                  stats.compute_s / stats.step_s + stats.exposed_comm + stats.idle < 1.001);
        char *text = NULL, path[] = "/tmp/moe-trace-XXXXXX";
        CU_ASSERT_EQUAL(moe_session_gantt(session, 60, &text), MOE_OK);
        CU_ASSERT(text && strstr(text, "0 comp |"));
        free(text);
        int fd = mkstemp(path);
        CU_ASSERT_EQUAL(moe_session_trace(session, path), MOE_OK);
        close(fd);
        unlink(path);
        data_free(&d);
        moe_session_destroy(session);
        moe_plan_close(plan);
    }
    CU_ASSERT(step[0] > 0 && step[0] == step[1]);
}

/// Costs and links that add up beyond what a clock can count: the step ends, late but not in the past.
static void test_sim_forever(void)
{
    for (int run = 0; run < 2; run++) {
        struct small s = shapes[3];
        struct ir ir;
        struct data d;
        void *image;
        size_t bytes;
        moe_plan *plan;
        moe_session *session;
        moe_stats stats;
        small_plan(&ir, &s);
        uint32_t axis = ADD(&ir, plan_axis);
        *ROW(&ir, plan_axis, axis) = (struct plan_axis){.size = s.ranks, .stride = 1, .bandwidth = 1e-12, .latency = 9e29};
        ROW(&ir, plan_info, 0)->axes = (struct rows){axis, 1};
        for (uint32_t i = 0; i < COUNT(&ir, plan_instr); i++)
            ROW(&ir, plan_instr, i)->cost = run ? 1e300 : 0;
        CU_ASSERT_FATAL(plan_write(&ir, "\xc3", 1, &image, &bytes));
        CU_ASSERT_EQUAL_FATAL(moe_plan_from_memory(image, bytes, &plan), MOE_OK);
        CU_ASSERT_EQUAL_FATAL(moe_session_create(plan, &(moe_options){.device = "sim", .trace = 1}, &session), MOE_OK);
        small_override(session, &s);
        data_make(&d, &s, 7, 1);
        data_steps(&d, 0);
        CU_ASSERT_EQUAL(moe_session_run(session, d.steps, s.ranks), MOE_OK);
        CU_ASSERT(data_right(&d));
        CU_ASSERT_EQUAL(moe_session_stats(session, &stats), MOE_OK);
        CU_ASSERT(stats.step_s > 8e9 && stats.comm_s >= 0 && stats.compute_s >= 0);
        char *text = NULL;
        CU_ASSERT_EQUAL(moe_session_gantt(session, 60, &text), MOE_OK);
        free(text);
        data_free(&d);
        moe_session_destroy(session);
        moe_plan_close(plan);
        free(image);
        ir_free(&ir);
    }
}

static void test_router(void)
{
    struct small s = shapes[2];
    moe_plan *plan;
    moe_session *session;
    struct data d;
    CU_ASSERT_EQUAL_FATAL(small_session(&s, &(moe_options){.threads = 2}, &plan, &session), MOE_OK);
    data_make(&d, &s, 3, 0);
    data_steps(&d, 0);
    int32_t *ids = calloc((size_t)s.bound * s.choices, 4);
    for (uint32_t r = 0; r < s.ranks; r++)
        d.steps[r].given_ids = NULL;
    d.steps[1].topk_ids = ids;
    CU_ASSERT_EQUAL(moe_session_run(session, d.steps, s.ranks), MOE_OK);
    CU_ASSERT(ids[0] == 0 && ids[1] == 3 && ids[20 * 3 + 1] == 23 % 8);
    free(ids);
    data_free(&d);
    moe_session_destroy(session);
    moe_plan_close(plan);
}

static void route_twice(const struct moe_kargs *a, int64_t begin, int64_t end, void *scratch)
{
    (void)scratch;
    for (int64_t i = begin * 3; i < end * 3; i++) {
        ((int32_t *)a->p[ROUTE_IDS])[i] = 1;
        ((float *)a->p[ROUTE_WEIGHTS])[i] = 1;
    }
}

/// Control buffers have room for distinct experts: a router that lies is found out before anything is written there.
static void test_router_twice(void)
{
    struct small s = {.ranks = 2, .experts = 4, .choices = 3, .parts = 1, .width = 16, .bound = 8, .rows = 8};
    moe_plan *plan;
    moe_session *session;
    struct data d;
    CU_ASSERT_EQUAL_FATAL(small_session(&s, &(moe_options){.threads = 1}, &plan, &session), MOE_OK);
    data_make(&d, &s, 3, 0);
    data_steps(&d, 0);
    for (uint32_t r = 0; r < s.ranks; r++)
        d.steps[r].given_ids = NULL;
    session_override_kernel(session, "route", route_twice);
    CU_ASSERT_EQUAL(moe_session_run(session, d.steps, s.ranks), MOE_LOST);
    CU_ASSERT_PTR_NOT_NULL(strstr(moe_session_error(session), "or one twice"));
    data_free(&d);
    moe_session_destroy(session);
    moe_plan_close(plan);
}

static void expect_input_error(moe_session *session, const struct data *d, uint32_t count, const char *part)
{
    CU_ASSERT_EQUAL(moe_session_run(session, d->steps, count), MOE_BAD_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(moe_session_error(session), part));
}

static void test_input(void)
{
    struct small s = shapes[1];
    moe_plan *plan;
    moe_session *session;
    struct data d;
    CU_ASSERT_EQUAL_FATAL(small_session(&s, &(moe_options){.threads = 1}, &plan, &session), MOE_OK);
    data_make(&d, &s, 3, 0);
    data_steps(&d, 0);
    d.steps[1].tokens = 17;
    expect_input_error(session, &d, 2, "rank 1 has 17 tokens, the plan's bound is 16");
    d.steps[1].tokens = 16;
    expect_input_error(session, &d, 1, "rank 1 is given no step");
    d.steps[1].rank = 0;
    expect_input_error(session, &d, 2, "rank 0 is given twice");
    d.steps[1].rank = 1;
    int32_t kept = d.ids[5];
    d.ids[5] = 4;
    expect_input_error(session, &d, 2, "token 2: expert 4 does not exist");
    d.ids[5] = kept;
    d.steps[0].given_weights = NULL;
    expect_input_error(session, &d, 2, "without weights");
    d.steps[0].given_weights = d.weights;
    void *out = d.steps[1].out;
    d.steps[1].out = (char *)(uintptr_t)d.steps[1].in + 64;
    expect_input_error(session, &d, 2, "rank 1: its output lies where its input is");
    d.steps[1].out = out;
    CU_ASSERT_EQUAL(moe_session_run(session, d.steps, 2), MOE_OK); // such errors do not break a session
    CU_ASSERT(data_right(&d));
    CU_ASSERT_STRING_EQUAL(moe_session_error(session), ""); // nor do their words outlive what follows
    CU_ASSERT_NOT_EQUAL(moe_session_load(session, "/no such folder"), MOE_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(moe_session_error(session), "/no such folder"));
    CU_ASSERT_EQUAL(moe_session_load(session, "random"), MOE_OK);
    CU_ASSERT_STRING_EQUAL(moe_session_error(session), "");
    // Figures are the last step's, also after a refused one and when the caller's array is gone.
    int64_t total = d.steps[0].tokens + d.steps[1].tokens;
    expect_input_error(session, &d, 1, "rank 1 is given no step");
    memset(d.steps, 0x5a, 2 * sizeof *d.steps);
    moe_stats stats;
    CU_ASSERT_EQUAL(moe_session_stats(session, &stats), MOE_OK);
    CU_ASSERT_EQUAL(stats.tokens, total);
    data_free(&d);
    moe_session_destroy(session);
    moe_plan_close(plan);
}

static void expect_failure(struct small s, moe_options options, moe_status wanted, const char *part)
{
    moe_plan *plan;
    moe_session *session;
    struct data d;
    CU_ASSERT_EQUAL_FATAL(small_session(&s, &options, &plan, &session), MOE_OK);
    data_make(&d, &s, 11, 1);
    data_steps(&d, 0);
    moe_status status = moe_session_run(session, d.steps, s.ranks);
    CU_ASSERT_EQUAL(status, wanted);
    CU_ASSERT_PTR_NOT_NULL(strstr(moe_session_error(session), part));
    if (status != wanted || !strstr(moe_session_error(session), part))
        fprintf(stderr, "wanted `%s`, got %s `%s`\n", part, moe_status_text(status), moe_session_error(session));
    CU_ASSERT_EQUAL(moe_session_run(session, d.steps, s.ranks), MOE_BROKEN);
    data_free(&d);
    moe_session_destroy(session);
    moe_plan_close(plan);
}

static void test_faults(void)
{
    static const char *const devices[] = {"cpu", "sim"};
    struct small two = shapes[1];
    two.choices = 1; // a single pair in a row: nowhere else to go than to another expert
    for (int i = 0; i < 2; i++) {
        moe_options o = {.device = devices[i], .threads = 2, .timeout_s = 5};
        o.fault = "drop:2";
        expect_failure(shapes[2], o, MOE_LOST, "rank 2 sent");
        o.fault = "double:1";
        expect_failure(shapes[2], o, MOE_LOST, "rank 1 sent");
        o.fault = "misroute:3";
        expect_failure(shapes[2], o, MOE_LOST, "rank 3 sent");
        expect_failure(shapes[3], (moe_options){.device = devices[i], .fault = "drop:0"}, MOE_LOST, "rank 0 sent");
        o.fault = "misroute:1";
        expect_failure(two, o, MOE_LOST, "rank 1 routed");
    }
}

static void test_overflow_error(void)
{
    struct small s = shapes[3];
    s.pool = 0;
    s.overflow_error = true;
    expect_failure(s, (moe_options){.threads = 1}, MOE_OVERFLOW, "its slots hold 3");
}

static void test_timeout(void)
{
    struct small s = shapes[2];
    s.lost_signal = true;
    expect_failure(s, (moe_options){.threads = 2, .timeout_s = 0.2}, MOE_TIMEOUT, "waiting for");
    expect_failure(s, (moe_options){.device = "sim"}, MOE_TIMEOUT, "waiting for semaphore 3 to reach 1 (it is 0)");
}

static atomic_bool let_go;

static void stuck_kernel(const struct moe_kargs *a, int64_t begin, int64_t end, void *scratch)
{
    (void)a, (void)begin, (void)end, (void)scratch;
    while (!atomic_load(&let_go))
        usleep(1000);
}

static void test_stuck_kernel(void)
{
    struct small s = shapes[1];
    moe_plan *plan;
    moe_session *session;
    struct data d;
    CU_ASSERT_EQUAL_FATAL(small_session(&s, &(moe_options){.threads = 4, .timeout_s = 0.1}, &plan, &session), MOE_OK);
    data_make(&d, &s, 3, 0);
    data_steps(&d, 0);
    atomic_store(&let_go, false);
    session_override_kernel(session, "mlp_up", stuck_kernel);
    CU_ASSERT_EQUAL(moe_session_run(session, d.steps, 2), MOE_TIMEOUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(moe_session_error(session), "mlp_up"));
    atomic_store(&let_go, true); // so the session's memory is released after all
    moe_session_destroy(session);
    moe_plan_close(plan);
    data_free(&d);
}

// What a built-in reads twice has changed in between, as it may where a plan's streams are not ordered as its data wants it:
// the step fails, and no memory is touched that is not the plan's. A page in the midst of what is read faults at its first
// reading; then what lies before it changes.

static struct {
    char *page, *first; // first: of what is read
    moe_session *session;
    void (*change)(void);
} trap;

static void sprung(int number, siginfo_t *info, void *context)
{
    (void)context;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at = info->si_addr;
    if (!trap.page || at < trap.page || at >= trap.page + page) {
        signal(number, SIG_DFL);
        return;
    }
    mprotect(trap.page, page, PROT_READ | PROT_WRITE);
    trap.page = NULL;
    trap.change();
}

/// The first whole page behind half of `bytes`.
static void set_trap(char *first, int64_t bytes, void (*change)(void))
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    trap.first = first;
    trap.change = change;
    trap.page = first + bytes / 2 + (page - (uintptr_t)(first + bytes / 2) % page);
    if (trap.page + page > first + bytes || mprotect(trap.page, page, PROT_NONE))
        abort();
}

/// The first hundred tokens go to two experts of one rank.
static void route_to(int32_t *ids, int32_t rank)
{
    for (int32_t i = 0; i < 200; i++)
        ids[i] = 2 * (i % 2) + rank;
}

static void change_routes(void)
{
    route_to((int32_t *)(void *)trap.first, 0);
}

static void meddle_with_routes(const struct moe_kargs *a, int64_t begin, int64_t end, void *scratch)
{
    (void)end, (void)scratch;
    if (a->n[2] != 1 || begin != 0)
        return;
    route_to(a->p[ROUTE_IDS], 1);
    set_trap(a->p[ROUTE_IDS], a->n[0] * 2 * 4, change_routes);
}

static void change_rows(void)
{
    const struct plan_exchange *e = ROW(trap.session->ir, plan_exchange, 0);
    int64_t row_bytes = ROW(trap.session->ir, plan_wire, e->wires.first)->row_bytes;
    for (int64_t row = 0; row < 100; row++)
        ((struct moe_row_meta *)(void *)(trap.first + (row + 1) * row_bytes - e->meta_bytes))->local = 1;
}

static void meddle_with_rows(const struct moe_kargs *a, int64_t begin, int64_t end, void *scratch)
{
    (void)end, (void)scratch;
    const struct ir *ir = trap.session->ir;
    const struct plan_exchange *e = ROW(ir, plan_exchange, 0);
    const struct moe_message *m = a->p[ROUTE_IDS]; // of the only other rank
    if (a->n[2] == 1 && begin == 0)
        set_trap((char *)a->p[ROUTE_IDS] + e->header_bytes, m->rows * ROW(ir, plan_wire, e->wires.first)->row_bytes,
                 change_rows);
}

static void expect_noticed(struct small s, moe_kernel_fn *kernel, const char *part)
{
    struct sigaction action = {.sa_sigaction = sprung, .sa_flags = SA_SIGINFO}, before;
    moe_plan *plan;
    struct data d;
    CU_ASSERT_EQUAL_FATAL(small_session(&s, &(moe_options){.device = "sim"}, &plan, &trap.session), MOE_OK);
    data_make(&d, &s, 3, 0);
    data_steps(&d, 0);
    for (uint32_t r = 0; r < s.ranks; r++)
        d.steps[r].given_ids = NULL;
    session_override_kernel(trap.session, "meddle", kernel);
    sigaction(SIGSEGV, &action, &before);
    CU_ASSERT_EQUAL(moe_session_run(trap.session, d.steps, s.ranks), MOE_LOST);
    sigaction(SIGSEGV, &before, NULL);
    CU_ASSERT_PTR_NULL(trap.page); // it was sprung
    CU_ASSERT_PTR_NOT_NULL(strstr(moe_session_error(trap.session), part));
    data_free(&d);
    moe_session_destroy(trap.session);
    moe_plan_close(plan);
}

static void test_changes(void)
{
    struct small s = {.ranks = 2, .experts = 8, .choices = 2, .parts = 1, .width = 8, .bound = 4096, .rows = -1};
    s.meddles = MEDDLE_ROUTES;
    expect_noticed(s, meddle_with_routes, "rank 1: the routes of `dispatch` have changed while they were read");
    s.rows = 100; // others overflow
    s.pool = 5000;
    expect_noticed(s, meddle_with_routes, "rank 1: the routes of `dispatch` have changed while they were read");
    s.rows = -1;
    s.pool = 0;
    s.meddles = MEDDLE_ROWS;
    expect_noticed(s, meddle_with_rows, "rank 1: rows of `dispatch` have changed while they were read");
}

static const struct plan_instr *first_launch(const moe_session *session, uint32_t role)
{
    for (uint32_t i = 0; i < COUNT(session->ir, plan_instr); i++) {
        const struct plan_instr *in = ROW(session->ir, plan_instr, i);
        if (in->op == opcode_launch && ROW(session->ir, plan_kernel, in->kernel)->role == role)
            return in;
    }
    return NULL;
}

/// Of the launches that use one control buffer any number read at a time, or one writes.
static void test_claims(void)
{
    struct small s = shapes[1];
    moe_plan *plan;
    moe_session *session;
    struct data d;
    CU_ASSERT_EQUAL_FATAL(small_session(&s, &(moe_options){.device = "sim"}, &plan, &session), MOE_OK);
    data_make(&d, &s, 3, 0);
    data_steps(&d, 0);
    CU_ASSERT_EQUAL(moe_session_run(session, d.steps, s.ranks), MOE_OK);
    struct stream *stream = &session->ranks[0].streams[0];
    stream->pc = 0;
    const struct plan_instr *bin = first_launch(session, kernel_role_bin), *copy = first_launch(session, kernel_role_copy_rows),
                            *fan = first_launch(session, kernel_role_fan_out), *up = first_launch(session, kernel_role_mlp_up);
    CU_ASSERT_FATAL(bin && copy && fan && up);
    CU_ASSERT(control_claim(stream, copy) && control_claim(stream, fan)); // both read bins
    control_release(stream, copy);
    control_release(stream, fan);
    CU_ASSERT(control_claim(stream, bin) && control_claim(stream, up));
    control_release(stream, bin);
    CU_ASSERT(!session_failed(session) && !control_claim(stream, fan)); // it would write pairs that `up` reads
    CU_ASSERT_PTR_NOT_NULL(strstr(moe_session_error(session), "is in use by another launch"));
    data_free(&d);
    moe_session_destroy(session);
    moe_plan_close(plan);
}

static void *small_image(struct small s, size_t *bytes)
{
    struct ir ir;
    void *image = NULL;
    small_plan(&ir, &s);
    CU_ASSERT_FATAL(plan_write(&ir, "\xc3", 1, &image, bytes));
    ir_free(&ir);
    return image;
}

static bool runs_v3(const char *level) { return !strcmp(level, "v2") || !strcmp(level, "v3"); }
static bool runs_v2(const char *level) { return !strcmp(level, "v2"); }
static bool runs_none(const char *level) { (void)level; return false; }

/// Which of three plans, told apart by their ranks, a carrier's reader takes; 0: none.
static uint32_t chosen_ranks(const char *path, bool (*runs)(const char *))
{
    struct plan plan;
    char error[256];
    if (!plan_open_file(&plan, path, runs, error, sizeof error))
        return 0;
    uint32_t ranks = COUNT(&plan.ir, plan_rank);
    plan_close(&plan);
    return ranks;
}

static void test_levels_of_a_carrier(void)
{
    static const char *const levels[] = {"v2", "v3", "v4"};
    char path[] = "/tmp/moe-plan-XXXXXX";
    int fd = mkstemp(path);
    size_t at = 3;
    struct plan_trailer trailer = {0};
    uint32_t ranks[3] = {0};
    CU_ASSERT_FATAL(fd >= 0 && pwrite(fd, "ELF", 3, 0) == 3);
    for (int i = 0; i < 3; i++) {
        size_t bytes;
        char *image = small_image(shapes[i], &bytes);
        ranks[i] = shapes[i].ranks;
        trailer = (struct plan_trailer){.plan_offset = at, .plan_bytes = bytes, .before = i ? at : 0};
        strcpy(trailer.cpu_level, levels[i]);
        plan_seal_trailer(&trailer);
        CU_ASSERT_FATAL(pwrite(fd, image, bytes, (off_t)at) == (ssize_t)bytes);
        at += bytes;
        CU_ASSERT_FATAL(pwrite(fd, &trailer, sizeof trailer, (off_t)at) == sizeof trailer);
        at += sizeof trailer;
        free(image);
    }
    CU_ASSERT(ranks[0] != ranks[1] && ranks[1] != ranks[2] && ranks[0] != ranks[2]);
    CU_ASSERT_EQUAL(chosen_ranks(path, NULL), ranks[2]);
    CU_ASSERT_EQUAL(chosen_ranks(path, runs_v3), ranks[1]);
    CU_ASSERT_EQUAL(chosen_ranks(path, runs_v2), ranks[0]);
    CU_ASSERT_EQUAL(chosen_ranks(path, runs_none), ranks[2]); // which then says what it lacks
    trailer.before = trailer.plan_offset + 1; // reads nothing behind itself, and does not go round
    plan_seal_trailer(&trailer);
    CU_ASSERT_FATAL(pwrite(fd, &trailer, sizeof trailer, (off_t)(at - sizeof trailer)) == sizeof trailer);
    CU_ASSERT_EQUAL(chosen_ranks(path, runs_v3), 0);
    close(fd);
    unlink(path);
}

static void test_file(void)
{
    size_t bytes;
    char *image = small_image(shapes[3], &bytes), path[] = "/tmp/moe-plan-XXXXXX", error[256];
    struct plan plan;
    int fd = mkstemp(path);
    CU_ASSERT_FATAL(fd >= 0 && write(fd, image, bytes) == (ssize_t)bytes);
    CU_ASSERT(plan_open_file(&plan, path, NULL, error, sizeof error));
    CU_ASSERT(plan.mapped && COUNT(&plan.ir, plan_rank) == 4 && plan.code_bytes == 1);
    void *again = NULL;
    size_t again_bytes = 0;
    CU_ASSERT_FATAL(plan_write(&plan.ir, plan.code, plan.code_bytes, &again, &again_bytes));
    CU_ASSERT(again_bytes == bytes && !memcmp(again, image, bytes));
    free(again);
    plan_close(&plan);
    // The same plan behind an executable of odd size.
    CU_ASSERT_FATAL(ftruncate(fd, 0) == 0 && pwrite(fd, "#!ELF", 5, 0) == 5 &&
                    pwrite(fd, image, bytes, 5) == (ssize_t)bytes);
    struct plan_trailer trailer = {.plan_offset = 5, .plan_bytes = bytes};
    plan_seal_trailer(&trailer);
    CU_ASSERT_FATAL(pwrite(fd, &trailer, sizeof trailer, (off_t)(5 + bytes)) == sizeof trailer);
    CU_ASSERT(plan_open_file(&plan, path, NULL, error, sizeof error));
    plan_close(&plan);
    CU_ASSERT_FATAL(ftruncate(fd, (off_t)bytes) == 0);
    CU_ASSERT(!plan_open_file(&plan, path, NULL, error, sizeof error) && strstr(error, "carries no plan"));
    close(fd);
    unlink(path);
    free(image);
}

/// Any damaged byte is noticed by the checksum.
static void test_damage(void)
{
    size_t bytes;
    uint8_t *image = small_image(shapes[1], &bytes);
    char error[256];
    struct plan plan;
    for (size_t i = 0; i < bytes; i++) {
        image[i] ^= 0x10;
        CU_ASSERT_FATAL(!plan_open(&plan, image, bytes, true, error, sizeof error));
        image[i] ^= 0x10;
    }
    for (size_t i = 0; i < bytes; i += 61)
        CU_ASSERT_FATAL(!plan_open(&plan, image, i, true, error, sizeof error));
    CU_ASSERT(plan_open(&plan, image, bytes, true, error, sizeof error));
    plan_close(&plan);
    free(image);
}

/// The checksum recomputed by writing the damaged tables again: refused by validation, or harmless in a run.
static void test_hostile(void)
{
    struct small s = shapes[5];
    s.bound = 6;
    s.parts = 2;
    struct ir ir;
    small_plan(&ir, &s);
    struct data d;
    data_make(&d, &s, 5, 1);
    data_steps(&d, 0);
    uint32_t opened = 0, ran = 0;
    for (uint32_t t = 0; t < plan_ir.table_count; t++) {
        size_t size = (size_t)ir.tables[t].count * plan_ir.tables[t]()->row_size;
        size_t stride = size > 20000 ? 7 : 1;
        for (size_t i = 0; i < size; i += stride) {
            uint8_t *at = (uint8_t *)ir.tables[t].rows + i, kept = *at;
            *at = (uint8_t)(kept ^ (1u << random_below(8)));
            void *image = NULL;
            size_t bytes;
            moe_plan *plan = NULL;
            moe_session *session = NULL;
            CU_ASSERT_FATAL(plan_write(&ir, "\xc3", 1, &image, &bytes));
            if (moe_plan_from_memory(image, bytes, &plan) == MOE_OK) {
                opened++;
                moe_plan_info info;
                moe_plan_describe(plan, &info);
                bool same = info.ranks == s.ranks && info.width == s.width && info.choices == s.choices &&
                            info.experts == s.experts &&
                            t != T_plan_kernel; // the C kernels are trusted, as native code is
                if (same &&
                    moe_session_create(plan, &(moe_options){.device = "sim", .threads = 1}, &session) == MOE_OK) {
                    small_override(session, &s);
                    moe_session_run(session, d.steps, s.ranks);
                    moe_session_destroy(session);
                    ran++;
                }
            }
            moe_plan_close(plan);
            free(image);
            *at = kept;
        }
    }
    CU_ASSERT(opened > 0 && ran > 0);
    data_free(&d);
    ir_free(&ir);
}

/// A variant for a layer alone has no other layer's instructions: the session has room for one.
static void test_layer_alone(void)
{
    struct small s = shapes[1];
    struct ir ir;
    small_plan(&ir, &s);
    ROW(&ir, plan_info, 0)->layers = 2;
    *ROW(&ir, plan_choice, ADD(&ir, plan_choice)) = (struct plan_choice){.single = 1, .last_tokens = s.bound};
    for (uint32_t layer = 0; layer < 2; layer++) {
        void *image = NULL;
        size_t bytes;
        char error[256] = "";
        struct plan plan;
        ROW(&ir, plan_instr, 0)->layer = layer;
        CU_ASSERT_FATAL(plan_write(&ir, "\xc3", 1, &image, &bytes));
        CU_ASSERT_EQUAL(plan_open(&plan, image, bytes, true, error, sizeof error), layer == 0);
        CU_ASSERT_STRING_EQUAL(error, layer ? "plan_instr 0: of layer 1 in a step of one" : "");
        plan_close(&plan);
        free(image);
    }
    ir_free(&ir);
}

static void test_options(void)
{
    struct small s = shapes[1];
    moe_plan *plan;
    moe_session *session;
    CU_ASSERT_EQUAL(small_session(&s, &(moe_options){.device = "quantum"}, &plan, &session), MOE_UNSUPPORTED);
    CU_ASSERT_PTR_NOT_NULL(strstr(moe_last_error(), "quantum"));
    moe_plan_close(plan);
    CU_ASSERT_EQUAL(small_session(&s, &(moe_options){.fault = "drop:9"}, &plan, &session), MOE_INVALID);
    moe_plan_close(plan);
    CU_ASSERT_EQUAL(moe_plan_open("/nonexistent", &plan), MOE_BAD_PLAN);
    CU_ASSERT_STRING_EQUAL(moe_status_text(MOE_LOST), "MOE_LOST: a conservation check failed");
}

void suite_runtime(void)
{
    CU_pSuite suite = CU_add_suite("runtime", NULL, NULL);
    CU_add_test(suite, "plan file round trip", test_file);
    CU_add_test(suite, "a carrier's plans by CPU level", test_levels_of_a_carrier);
    CU_add_test(suite, "damaged plans", test_damage);
    CU_add_test(suite, "hostile plans", test_hostile);
    CU_add_test(suite, "a layer alone", test_layer_alone);
    CU_add_test(suite, "dispatch and combine on threads", test_cpu);
    CU_add_test(suite, "dispatch and combine on the simulator", test_sim);
    CU_add_test(suite, "simulated time", test_sim_time);
    CU_add_test(suite, "simulated time beyond counting", test_sim_forever);
    CU_add_test(suite, "router's own choice", test_router);
    CU_add_test(suite, "a router that names an expert twice", test_router_twice);
    CU_add_test(suite, "wrong input", test_input);
    CU_add_test(suite, "injected faults are found", test_faults);
    CU_add_test(suite, "overflow: error", test_overflow_error);
    CU_add_test(suite, "timeouts", test_timeout);
    CU_add_test(suite, "control data is one writer's or readers'", test_claims);
    CU_add_test(suite, "what changes while it is read", test_changes);
    CU_add_test(suite, "stuck kernel", test_stuck_kernel);
    CU_add_test(suite, "options", test_options);
}
