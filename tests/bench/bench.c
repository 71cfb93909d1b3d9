// Times whole MoE layers against the machine's own limits and against the libraries that one would otherwise use.
// Usage: moe-bench smoke|standard|full [--out FILE] [--fresh] [--require ROOFLINE] [--only TEXT] [--tokens N]
// --only measures the shapes whose name and dtype ("coarse H 1024 F 3584 E 8 k 2 bf16") contain TEXT; --tokens that many
// alone.
// Prints a table and writes FILE (bench.json beside the program). A finished group of `full` is kept beside FILE and not
// measured again unless --fresh. Exit code 1: --require is not met by moecc at 512 tokens; 3: an engine failed.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/device/topology.h"
#include "tests/bench/measure.h"

static const struct bench_shape fine_64 = {"fine H 2048 F 1024 E 64 k 8", 2048, 1024, 64, 8, 0};
static const struct bench_shape fine_128 = {"fine H 2048 F 768 E 128 k 8", 2048, 768, 128, 8, 0};
static const struct bench_shape coarse = {"coarse H 1024 F 3584 E 8 k 2", 1024, 3584, 8, 2, 0};
static const struct bench_shape mixtral = {"coarse H 4096 F 14336 E 8 k 2", 4096, 14336, 8, 2, 0};
static const struct bench_shape with_shared = {"shared H 2048 F 1408 E 64 k 6 + 2", 2048, 1408, 64, 6, 2};

static const struct bench_group smoke[] = {
    {&coarse, BENCH_BF16, 0, 2, 3, {1, 8, 64, 512}, {true}},
    {&fine_64, BENCH_BF16, 0, 2, 3, {8, 64}, {true}},
};
static const struct bench_group standard[] = {
    {&fine_64, BENCH_BF16, 0, 5, 3, {1, 8, 64, 512}, {true}},  {&fine_128, BENCH_BF16, 0, 5, 3, {1, 8, 64, 512}, {true}},
    {&coarse, BENCH_BF16, 0, 9, 3, {1, 8, 64, 512}, {true}},   {&mixtral, BENCH_BF16, 0, 3, 3, {1, 8, 64, 512}, {true}},
    {&fine_64, BENCH_F32, 0, 4, 3, {512}, {true}},             {&coarse, BENCH_F32, 0, 4, 3, {512}, {true}},
    {&fine_64, BENCH_E4M3, 0, 4, 3, {1, 8, 512}, {true}},      {&coarse, BENCH_E4M3, 0, 8, 3, {1, 8, 512}, {true}},
    {&fine_64, BENCH_MXFP4, 0, 4, 3, {1, 8}, {true}},          {&coarse, BENCH_MXFP4, 0, 8, 3, {1, 8}, {true}},
};

enum { FULL_GROUPS = 5 * BENCH_DTYPES * 2 };
static struct bench_group full[FULL_GROUPS]; // every shape, dtype, one thread and all

static void fill_full(void)
{
    static const struct bench_shape *const shapes[] = {&fine_64, &fine_128, &coarse, &mixtral, &with_shared};
    for (int i = 0; i < FULL_GROUPS; i++)
        full[i] = (struct bench_group){shapes[i / (2 * BENCH_DTYPES)], (enum bench_dtype)(i / 2 % BENCH_DTYPES),
                                       i % 2 ? 0u : 1u, 3, 3,
                                       {1, 8, 64, 512, 4096}, {true, true}};
}

struct report {
    FILE *json;
    unsigned written;
    double log_sum;                     // of the ratios to the best peer
    unsigned ratios;
    double required;
    bool met;
};

static void median_of(const struct bench_line *line, double *seconds, double *roofline)
{
    double values[BENCH_MOST_SAMPLES];
    for (unsigned i = 0; i < line->count; i++)
        values[i] = line->samples[i].seconds;
    *seconds = bench_median(values, line->count);
    for (unsigned i = 0; i < line->count; i++)
        values[i] = line->samples[i].roofline;
    *roofline = bench_median(values, line->count);
}

static void write_line(FILE *file, const struct bench_line *line, const char *before)
{
    double seconds, roofline;
    struct bench_batch batch = {.active = line->active};
    median_of(line, &seconds, &roofline);
    fprintf(file,
            "%s{\"engine\": \"%s\", \"shape\": \"%s\", \"tokens\": %lld, \"dtype\": \"%s\", \"threads\": %u, "
            "\"routing\": \"%s\", \"tokens_per_s\": %.6g, \"gflops\": %.6g, \"gbytes_per_s\": %.6g, \"roofline\": %.4f, "
            "\"samples\": %u}",
            before, line->engine->name, line->shape->name, (long long)line->tokens, bench_dtype_name(line->dtype),
            line->threads, bench_routing_name(line->routing), (double)line->tokens / seconds,
            1e-9 * bench_flops(line->shape, line->tokens) / seconds,
            1e-9 * bench_weight_bytes(line->shape, line->dtype, &batch) / seconds, roofline, line->count);
}

static void print_head(void)
{
    printf("%-33s %-5s %3s %-8s %6s %10s %10s %8s %8s   %s\n", "layer", "", "thr", "routing", "tokens", "ms", "tokens/s",
           "of peak", "roofline", "against the best of the others");
}

/// One row: moecc (lines[0]) and the best of the others for the same batch.
static void print_row(struct report *report, const struct bench_line *lines, unsigned engines)
{
    double seconds, roofline, best = 0;
    const struct bench_line *rival = NULL;
    for (unsigned e = 1; e < engines; e++) {
        median_of(&lines[e], &seconds, &roofline);
        rival = roofline > best ? &lines[e] : rival;
        best = roofline > best ? roofline : best;
    }
    median_of(lines, &seconds, &roofline);
    printf("%-33s %-5s %3u %-8s %6lld %10.3f %10.0f %7.1f%% %8.2f", lines->shape->name, bench_dtype_name(lines->dtype),
           lines->threads, bench_routing_name(lines->routing), (long long)lines->tokens, 1e3 * seconds,
           (double)lines->tokens / seconds, 100 * lines->peak_share, roofline);
    if (rival) {
        struct bench_ratio ratio = bench_compare(lines, rival);
        printf("   %.2fx %s (%.2f to %.2f)", ratio.median, rival->engine->name, ratio.low, ratio.high);
        report->log_sum += rival->engine->product ? log(ratio.median) : 0;
        report->ratios += rival->engine->product != NULL;
    }
    printf("\n");
    fflush(stdout);
    if (lines->tokens == 512 && !bench_quantised(lines->dtype) && roofline < report->required)
        report->met = false;
}

static void report_group(struct report *report, const struct bench_line *lines, unsigned count)
{
    unsigned engines = 1;
    while (engines < count && lines[engines].engine != lines[0].engine)
        engines++;
    for (unsigned i = 0; i < count; i += engines)
        print_row(report, lines + i, engines);
    for (unsigned i = 0; i < count; i++)
        write_line(report->json, &lines[i], report->written++ ? ",\n " : "[\n ");
}

// ---- finished groups, as they are in memory: the same program reads them back

static void part_path(const char *out, const struct bench_group *group, char *path, size_t size)
{
    snprintf(path, size, "%s.part-h%lld-f%lld-e%d-%s-%u", out, (long long)group->shape->hidden,
             (long long)group->shape->ffn, group->shape->experts, bench_dtype_name(group->dtype), group->threads);
}

struct part_head {
    uint64_t size;                      // of a line: another program's part is not taken
    uint32_t count;
};

static bool read_part(const char *path, const struct bench_group *group, struct bench_line *lines, unsigned *count)
{
    struct part_head head;
    FILE *file = fopen(path, "rb");
    bool fine = file && fread(&head, sizeof head, 1, file) == 1 && head.size == sizeof *lines &&
                head.count <= BENCH_MOST_ENGINES * BENCH_MOST_COUNTS * BENCH_ROUTINGS &&
                fread(lines, sizeof *lines, head.count, file) == head.count;
    if (file)
        fclose(file);
    for (unsigned i = 0; fine && i < head.count; i++) {
        uintptr_t number = (uintptr_t)lines[i].engine;
        fine = number < bench_engine_count;
        lines[i].engine = fine ? bench_engines[number] : NULL;
        lines[i].shape = group->shape;
    }
    *count = fine ? head.count : 0;
    return fine;
}

static bool write_part(const char *path, const struct bench_line *lines, unsigned count)
{
    struct part_head head = {sizeof *lines, count};
    FILE *file = fopen(path, "wb");
    bool fine = file && fwrite(&head, sizeof head, 1, file) == 1;
    for (unsigned i = 0; fine && i < count; i++) {
        struct bench_line line = lines[i];
        uintptr_t number = 0;
        while (bench_engines[number] != line.engine)
            number++;
        line.engine = (const struct bench_engine *)number; // NOLINT: a number stands in the file
        line.shape = NULL;
        fine = fwrite(&line, sizeof line, 1, file) == 1;
    }
    if (file)
        fine = fclose(file) == 0 && fine;
    return fine;
}

static bool run_group(struct report *report, const struct bench_group *group, const char *out, bool keep, bool fresh)
{
    enum { MOST = BENCH_MOST_ENGINES * BENCH_MOST_COUNTS * BENCH_ROUTINGS };
    struct bench_line *lines = calloc(MOST, sizeof *lines);
    char path[4096];
    unsigned count = 0;
    part_path(out, group, path, sizeof path);
    bool fine = lines && ((keep && !fresh && read_part(path, group, lines, &count)) ||
                          (bench_measure(group, lines, &count) && (!keep || write_part(path, lines, count))));
    if (fine)
        report_group(report, lines, count);
    free(lines);
    return fine;
}

/// Whether a group is to be measured; of one whose other token counts are not, leaves the one that is.
static bool wanted(struct bench_group *group, const char *only, int64_t tokens)
{
    char name[128];
    snprintf(name, sizeof name, "%s %s", group->shape->name, bench_dtype_name(group->dtype));
    if (only && !strstr(name, only))
        return false;
    for (int i = 0; tokens && i < BENCH_MOST_COUNTS && group->tokens[i]; i++)
        if (group->tokens[i] == tokens) {
            memset(group->tokens, 0, sizeof group->tokens);
            group->tokens[0] = tokens;
            return true;
        }
    return !tokens;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "", *out = "build/bench.json";
    struct report report = {.met = true};
    const char *only = NULL;
    int64_t tokens = 0;
    bool fresh = false;
    for (int i = 2; i < argc; i++)
        if (!strcmp(argv[i], "--fresh"))
            fresh = true;
        else if (!strcmp(argv[i], "--out") && i + 1 < argc)
            out = argv[++i];
        else if (!strcmp(argv[i], "--require") && i + 1 < argc)
            report.required = atof(argv[++i]);
        else if (!strcmp(argv[i], "--only") && i + 1 < argc)
            only = argv[++i];
        else if (!strcmp(argv[i], "--tokens") && i + 1 < argc)
            tokens = atoll(argv[++i]);
        else
            mode = "";
    fill_full();
    const struct bench_group *groups = !strcmp(mode, "smoke") ? smoke : !strcmp(mode, "standard") ? standard : full;
    size_t count = groups == smoke ? sizeof smoke / sizeof *smoke : groups == standard ? sizeof standard / sizeof *standard : FULL_GROUPS;
    if (groups == full && strcmp(mode, "full")) {
        fprintf(stderr, "usage: moe-bench smoke|standard|full [--out FILE] [--fresh] [--require ROOFLINE] [--only TEXT] [--tokens N]\n");
        return 2;
    }
    report.json = fopen(out, "w");
    if (!report.json) {
        fprintf(stderr, "%s: %s\n", out, strerror(errno));
        return 3;
    }
    print_head();
    for (size_t i = 0; i < count; i++) {
        struct bench_group group = groups[i];
        if (!wanted(&group, only, tokens))
            continue;
        group.threads = group.threads ? group.threads : machine_cores();
        if (!run_group(&report, &group, out, groups == full && !tokens, fresh))
            return 3;
    }
    fprintf(report.json, "\n]\n");
    if (fclose(report.json) != 0) {
        fprintf(stderr, "%s: %s\n", out, strerror(errno));
        return 3;
    }
    if (report.ratios)
        printf("geometric mean over %u rows: %.3fx the best of the others\n", report.ratios,
               exp(report.log_sum / report.ratios));
    return report.met ? 0 : 1;
}
