// tune on ten pairs of a layer and a cluster: never worse than the best library schedule, on several better by 3% and more; what
// it says about splitting and expert parallelism; its winner is an ordinary schedule; a pair that runs here is measured.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/tune/tune.h"
#include "tests/simulate/fixture.h"

/// The last four run here: `make bench-tune` measures them.
static const char *const pairs[] = {"prefill_nodes", "ethernet",    "decode_pod", "small_batch",   "short_attention",
                                    "tiny",          "cpu_latency", "cpu_layers", "cpu_attention", "cpu_shared"};

struct tuned {
    struct tune_result result;
    char *winner, *name, *text, *out;
    enum exit_code code;
};

static struct tuned tune_file(const char *path, uint32_t evaluations, uint32_t confirm)
{
    struct tuned tuned = {.code = EXIT_BUG};
    struct context context;
    size_t size;
    FILE *out = open_memstream(&tuned.out, &size);
    struct tune_options options = {.driver = {.file = path, .check = {.layer = -1}}, .evaluations = evaluations,
                                   .confirm = confirm, .threads = 1, .out = out};
    context_init(&context);
    if (setjmp(context.fatal) == 0)
        tuned.code = tune(&context, &options, &tuned.result);
    else
        fprintf(stderr, "%s\n", context.fatal_message);
    if (tuned.code == EXIT_FINE) {
        tuned.winner = strdup(tuned.result.winner);
        tuned.name = strdup(tuned.result.name);
        tuned.text = strdup(tuned.result.text);
    }
    diag_print_all(&context, DIAG_TEXT, false, stderr);
    context_free(&context);
    fclose(out);
    return tuned;
}

static void tuned_free(struct tuned *tuned)
{
    free(tuned->winner);
    free(tuned->name);
    free(tuned->text);
    free(tuned->out);
}

static struct tuned tune_pair(const char *name, uint32_t evaluations, uint32_t confirm)
{
    char path[64];
    snprintf(path, sizeof path, "tests/tune/%s.moe", name);
    struct tuned tuned = tune_file(path, evaluations, confirm);
    CU_ASSERT_EQUAL(tuned.code, EXIT_FINE);
    return tuned;
}

/// The pair's file with the winner behind it, compiled to the proof of the lowered program, is predicted to be as quick.
static void check_winner(const char *name, const struct tuned *tuned)
{
    char path[64];
    snprintf(path, sizeof path, "tests/tune/%s.moe", name);
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size), *in = fopen(path, "r");
    char line[256], folder[1024];
    CU_ASSERT_PTR_NOT_NULL_FATAL(in);
    CU_ASSERT_PTR_NOT_NULL_FATAL(getcwd(folder, sizeof folder));
    while (fgets(line, sizeof line, in)) {
        static const char import[] = "import \"calibrated.moe\""; // the text is compiled elsewhere
        if (!strncmp(line, import, strlen(import)))
            fprintf(out, "import \"%s/tests/tune/calibrated.moe\"%s", folder, line + strlen(import));
        else
            fputs(line, out);
    }
    fclose(in);
    fprintf(out, "\n%s", tuned->text);
    fclose(out);
    struct simulated simulated = simulate_source_with(text, tuned->name);
    CU_ASSERT_EQUAL(simulated.code, EXIT_FINE);
    if (simulated.code == EXIT_FINE) {
        NEAR(1e9 * figure(simulated.out, NULL, "latency_s"), tuned->result.best_ns);
    } else
        fprintf(stderr, "%s: %s\n%s", name, simulated.errors, tuned->text);
    simulated_free(&simulated);
    free(text);
}

static void test_pairs(void)
{
    const char *all = getenv("MOE_TUNE_EVALUATIONS"); // more than a test has time for
    int better = 0, measurable = 0;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct tuned tuned = tune_pair(pairs[i], all ? (uint32_t)atoi(all) : 520, 0);
        const struct tune_result *r = &tuned.result;
        CU_ASSERT_TRUE(r->best_ns <= r->library_ns * (1 + 1e-9));
        double gain = r->library_ns / r->best_ns;
        better += gain >= 1.03;
        if (all)
            printf("\n%-18s %-32s %10.1f us, library %10.1f us: %5.1f%%", pairs[i], tuned.winner, 1e-3 * r->best_ns,
                   1e-3 * r->library_ns, 100 * (gain - 1));
        check_winner(pairs[i], &tuned);
        CU_ASSERT_EQUAL(r->split, strcmp(pairs[i], "tiny") != 0);
        bool runs_here = !strncmp(pairs[i], "cpu", 3), alone = !strcmp(pairs[i], "ethernet") || !strcmp(pairs[i], "prefill_nodes");
        measurable += runs_here && gain >= 1.03;
        CU_ASSERT_EQUAL(r->alone, alone || runs_here); // their links are slow, and one rank has room for all experts
        CU_ASSERT_EQUAL(strstr(tuned.out, "do not split") == NULL, r->split);
        CU_ASSERT_PTR_NOT_NULL(strstr(tuned.out, "\n// serial  ")); // what the speedups are over
        CU_ASSERT_EQUAL(strstr(tuned.out, "do not use expert parallelism here") != NULL, r->alone);
        tuned_free(&tuned);
    }
    CU_ASSERT_TRUE(better >= 3);
    CU_ASSERT_TRUE(measurable >= 2);
}

/// The same twice, but for what is measured.
static void test_deterministic(void)
{
    struct tuned a = tune_pair("small_batch", 120, 0), b = tune_pair("small_batch", 120, 0);
    CU_ASSERT_STRING_EQUAL(a.out, b.out);
    tuned_free(&a);
    tuned_free(&b);
}

/// Where there are no waves, and micro-batches would do what is before the router twice, rows go in runs: each a message of its
/// own, taken by the expert and answered for itself. That is a split, too.
static void test_runs(void)
{
    struct tuned tuned = tune_pair("one_expert", 1000, 0);
    CU_ASSERT_TRUE(tuned.result.best_ns < tuned.result.library_ns);
    CU_ASSERT(tuned.text && strstr(tuned.text, "    split dispatch into ") && strstr(tuned.text, "    split expert into "));
    CU_ASSERT_TRUE(tuned.result.split);
    check_winner("one_expert", &tuned);
    tuned_free(&tuned);
}

/// What the table says was measured, has run.
static void test_confirmed(void)
{
    struct tuned tuned = tune_pair("cpu_latency", 60, 2);
    const char *line = tuned.out ? strstr(tuned.out, "exposed   measured\n") : NULL;
    CU_ASSERT_PTR_NOT_NULL_FATAL(line);
    for (int i = 0; i < 2 && line; i++) {
        line = strchr(line, '\n') + 1;
        const char *end = strchr(line, '\n');
        CU_ASSERT_TRUE(end[-1] == 's' || strstr(line, "s  rounds per wave")); // a time, not a dash
    }
    tuned_free(&tuned);
}

/// The winner is printed under tune's own name, whatever its own is: here a letter that `schedule` has too, with a knob that
/// has more values than can be tried.
static void test_renamed(void)
{
    char path[] = "/tmp/moe-tests-XXXXXX.moe", line[256];
    int file = mkstemps(path, 4);
    FILE *in = fopen("tests/tune/tiny.moe", "r"), *out = file < 0 ? NULL : fdopen(file, "w");
    CU_ASSERT_FATAL(in && out);
    while (fgets(line, sizeof line, in))
        fputs(line, out);
    fputs("schedule s(n: 1..9000000000000000000 = 1) for (route, dispatch, expert, combine) {\n"
          "    stream comp uses sm; stream wire uses net_out, net_in, copy[0];\n"
          "    bind route, expert to comp; bind dispatch, combine to wire;\n    route; dispatch; expert; combine;\n}\n", out);
    fclose(in);
    fclose(out);
    struct tuned tuned = tune_file(path, 60, 0);
    CU_ASSERT_EQUAL_FATAL(tuned.code, EXIT_FINE);
    CU_ASSERT_STRING_EQUAL(tuned.winner, "s(n: 1)");
    static const char begin[] = "schedule tuned(n: 1..9000000000000000000 = 1) for (route, dispatch, expert, combine) {\n";
    CU_ASSERT(!strncmp(tuned.text, begin, strlen(begin)));
    tuned_free(&tuned);
    unlink(path);
}

static void test_mistakes(void)
{
    struct tuned none = tune_file("stdlib/std/schedules.moe", 10, 0), wrong = tune_file("examples/errors/04_shape.moe", 10, 0);
    CU_ASSERT_EQUAL(none.code, EXIT_INPUT);
    CU_ASSERT_EQUAL(wrong.code, EXIT_INPUT);
    tuned_free(&none);
    tuned_free(&wrong);
}

void suite_tune(void);
void suite_tune(void)
{
    CU_pSuite suite = CU_add_suite("tune", NULL, NULL);
    CU_add_test(suite, "B45 ten layers and clusters", test_pairs);
    CU_add_test(suite, "the same twice", test_deterministic);
    CU_add_test(suite, "rows in runs", test_runs);
    CU_add_test(suite, "the best are measured", test_confirmed);
    CU_add_test(suite, "the winner has tune's own name", test_renamed);
    CU_add_test(suite, "files that cannot be tuned", test_mistakes);
}
