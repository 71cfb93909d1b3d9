// The waits of a plan are needed, and a race detector sees it: delete any one wait from a lowered schedule and
// ThreadSanitizer reports the two accesses it ordered. The runtime declares what generated code reads and writes. Each
// mutant runs in a process of its own. Without ThreadSanitizer the unchanged plan alone is run.
#include <CUnit/CUnit.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/plan/plan.h"
#include "tests/end_to_end/harness.h"

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

// Exit statuses of a mutant's process: ThreadSanitizer reported something, or the step failed before the racing access
// came (a header read too early is refused). Such a run says nothing and is repeated.
enum { RACE_FOUND = 66, STEP_FAILED = 4, TRIES = 20 };

static const char text[] =
    "import std.ops;\nimport std.hw { laptop };\nimport std.schedules { serial, ladder, waves };\n"
    "dim tokens <= 64;\ndim hidden = 64;\ndim ffn = 32;\ndim experts = 8;\n"
    "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n"
    "    param w_router: f32[experts, hidden];\n    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n"
    "    param w_down: bf16[experts, hidden, ffn];\n"
    "    stage route: r = topk(x, w_router, k: 2);\n    stage dispatch: xd = dispatch(x, r);\n"
    "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n    stage combine: y = combine(yd, r);\n    yield y;\n}\n"
    "placement p on laptop { place experts over rank; }\n"
    "pipeline main { layer = moe; cluster = laptop; placement = p; target = cpu; use ladder(n: 2); }\n";

int run_plan_file(const char *path);
int run_plan_file(const char *path)
{
    moe_plan *plan;
    if (moe_plan_open(path, &plan) != MOE_OK)
        return 3;
    static float in[4 * 64 * 64];
    gaussian(in, sizeof in / sizeof *in, 1);
    const int64_t tokens[4] = {64, 64, 64, 64};
    struct run run = {.in = in, .tokens = tokens, .steps = 3, .options = {.threads = 2}};
    struct outcome o = run_plan_once(plan, &run);
    int status = o.status == MOE_OK ? 0 : STEP_FAILED;
    moe_plan_close(plan);
    outcome_free(&o);
    return status;
}

// Writes the plan with instruction `skip` (a wait) turned into a signal of 0, which does nothing. Launches run on their
// stream's own thread: a worker that serves two streams would order them by accident and hide what is missing.
static bool write_mutant(const void *image, size_t bytes, uint32_t skip, const char *path)
{
    char error[256];
    struct plan plan;
    if (!plan_open(&plan, image, bytes, true, error, sizeof error))
        return false;
    for (uint32_t i = 0; i < COUNT(&plan.ir, plan_stream); i++)
        ROW(&plan.ir, plan_stream, i)->own_thread = true;
    if (skip != NONE) {
        struct plan_instr *instr = ROW(&plan.ir, plan_instr, skip);
        instr->op = opcode_signal;
        instr->value = 0;
    }
    void *mutant;
    size_t mutant_bytes;
    bool fine = plan_write(&plan.ir, plan.code, plan.code_bytes, &mutant, &mutant_bytes);
    plan_close(&plan);
    FILE *file = fine ? fopen(path, "wb") : NULL;
    fine = file && fwrite(mutant, 1, mutant_bytes, file) == mutant_bytes;
    if (file)
        fclose(file);
    free(mutant);
    return fine;
}

static int status_of(const char *path)
{
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0)
        return -1;
    self[length] = 0;
    char option[] = "--run-plan", log[] = "TSAN_OPTIONS=exitcode=66:log_path=/dev/null";
    char *arguments[] = {self, option, (char *)(uintptr_t)path, NULL}, *environment[] = {log, NULL};
    pid_t child;
    int status;
    if (posix_spawn(&child, self, NULL, NULL, arguments, environment) || waitpid(child, &status, 0) < 0)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
}

static void check_every_wait(const char *schedule)
{
    size_t bytes;
    struct subject subject = {.text = text, .schedule = schedule, .layer = -1};
    void *image = subject_image(&subject, &bytes);
    char path[64], error[256];
    struct plan plan;
    snprintf(path, sizeof path, "/tmp/moe-race-%d.moeplan", (int)getpid());
    CU_ASSERT_FATAL(image && plan_open(&plan, image, bytes, true, error, sizeof error));
    CU_ASSERT(write_mutant(image, bytes, NONE, path));
    CU_ASSERT_EQUAL(status_of(path), 0);
    uint32_t waits = 0;
    for (uint32_t i = 0; UNDER_TSAN && i < COUNT(&plan.ir, plan_instr); i++) {
        const struct plan_instr *instr = ROW(&plan.ir, plan_instr, i);
        if (instr->op != opcode_wait)
            continue;
        waits++;
        CU_ASSERT(write_mutant(image, bytes, i, path));
        int status = STEP_FAILED;
        for (int t = 0; t < TRIES && status == STEP_FAILED; t++)
            status = status_of(path);
        CU_ASSERT_EQUAL(status, RACE_FOUND);
        if (status != RACE_FOUND)
            fprintf(stderr, "%s: the wait before `%s` can go unnoticed (status %d)\n", schedule, ir_text(&plan.ir, instr->label),
                    status);
    }
    CU_ASSERT(!UNDER_TSAN || waits >= 4);
    plan_close(&plan);
    free(image);
    remove(path);
}

static void test_every_wait(void)
{
    check_every_wait("ladder(n: 2)");
}

static void test_every_wait_of_waves(void)
{
    check_every_wait("waves(g: 2)");
}

void suite_races(void);
void suite_races(void)
{
    CU_pSuite suite = CU_add_suite("races", NULL, NULL);
    CU_add_test(suite, "a deleted wait is a reported race", test_every_wait);
    CU_add_test(suite, "so it is with waves of experts", test_every_wait_of_waves);
}
