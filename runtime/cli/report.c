// Prints what a run measured: a summary, the table of `--iters`, and the JSON of `--stats`.
#include "runtime/cli/report.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/output.h"

bool report_init(struct report *report, const moe_plan_info *info, const struct run_options *options,
                 const struct batch *batch, int64_t iters)
{
    *report = (struct report){.info = info, .options = options, .batch = batch, .capacity = iters};
    report->latency_s = calloc((size_t)iters, sizeof *report->latency_s);
    return report->latency_s != NULL;
}

void report_free(struct report *report)
{
    free(report->latency_s);
    *report = (struct report){0};
}

void report_add(struct report *report, double latency_s, const moe_stats *stats)
{
    if (report->count < report->capacity)
        report->latency_s[report->count++] = latency_s;
    report->exposed_comm += stats->exposed_comm;
    report->idle += stats->idle;
    report->beside_experts += stats->beside_experts;
    report->comm_s += stats->comm_s;
    report->compute_s += stats->compute_s;
    report->last = *stats;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double report_percentile(const double *sorted, int64_t count, double q)
{
    double exact = q * (double)count;
    int64_t rank = (int64_t)exact;
    if ((double)rank < exact)
        rank++;
    if (rank < 1)
        rank = 1;
    return count ? sorted[(rank < count ? rank : count) - 1] : 0.0;
}

/// What both forms of the report show.
struct figures {
    double p50, p90, p99, tokens_per_s, flops_per_s, bytes_per_s, exposed_comm, idle, beside_experts, comm_s, compute_s;
};

static struct figures compute_figures(struct report *report)
{
    int64_t n = report->count;
    double steps = n ? (double)n : 1.0;
    qsort(report->latency_s, (size_t)n, sizeof *report->latency_s, compare_doubles);
    struct figures f = {.p50 = report_percentile(report->latency_s, n, 0.50),
                        .p90 = report_percentile(report->latency_s, n, 0.90),
                        .p99 = report_percentile(report->latency_s, n, 0.99),
                        .exposed_comm = report->exposed_comm / steps,
                        .idle = report->idle / steps,
                        .beside_experts = report->beside_experts / steps,
                        .comm_s = report->comm_s / steps,
                        .compute_s = report->compute_s / steps};
    if (f.p50 > 0) {
        f.tokens_per_s = (double)report->last.tokens / f.p50;
        f.flops_per_s = report->last.flops / f.p50;
        f.bytes_per_s = (double)report->last.bytes_sent * report->info->layers / f.p50; // bytes_sent is per layer
    }
    return f;
}

static const char *text_or(const char *text, const char *otherwise)
{
    return text && *text ? text : otherwise;
}

static void print_loss(FILE *out, const char *stage, const moe_wire_loss *loss)
{
    if (loss->rows)
        fprintf(out, "%s: %" PRId64 " rows in blocks, loss by relative L2 %.3f %%, by 1 - cosine %.4f %%\n", stage,
                loss->rows, loss->relative_l2 * 100, loss->cosine * 100);
}

void report_print(struct report *report, FILE *out)
{
    struct figures f = compute_figures(report);
    const moe_stats *last = &report->last;
    fprintf(out, "%s: %s, %u rank%s, %" PRId64 " tokens, %s %s\n", report->info->name, text_or(last->schedule, "?"),
            report->info->ranks, report->info->ranks == 1 ? "" : "s", last->tokens,
            text_or(report->options->target, "cpu"), text_or(last->cpu_level, report->info->cpu_level));
    if (report->options->iters < 0)
        fprintf(out, "step %.3f ms", f.p50 * 1e3);
    else
        fprintf(out, "latency p50 %.3f ms, p90 %.3f ms, p99 %.3f ms (%" PRId64 " steps)\n", f.p50 * 1e3, f.p90 * 1e3,
                f.p99 * 1e3, report->count);
    fprintf(out, report->options->iters < 0 ? ", %.0f tokens/s" : "%.0f tokens/s", f.tokens_per_s);
    fprintf(out, ", %.2f GFLOP/s, %.3f GB/s sent per rank\n", f.flops_per_s * 1e-9, f.bytes_per_s * 1e-9);
    fprintf(out, "exposed communication %.1f %%, idle %.1f %%\n", f.exposed_comm * 100, f.idle * 100);
    if (last->dropped || last->overflowed)
        fprintf(out, "%" PRId64 " pairs dropped, %" PRId64 " rows overflowed, %" PRId64 " rounds\n", last->dropped,
                last->overflowed, last->rounds);
    print_loss(out, "dispatch", &report->dispatch_loss);
    print_loss(out, "combine", &report->combine_loss);
}

static json_t *token_counts(const struct batch *batch)
{
    json_t *list = json_array();
    for (uint32_t r = 0; r < batch->info->ranks; r++)
        json_array_append_new(list, json_integer(batch->first[r + 1] - batch->first[r]));
    return list;
}

static json_t *expert_load(const moe_stats *stats)
{
    json_t *list = json_array();
    for (uint32_t e = 0; stats->expert_load && e < stats->experts; e++)
        json_array_append_new(list, json_integer(stats->expert_load[e]));
    return list;
}

/// By the axis that the messages crossed.
static json_t *axis_bytes(const moe_stats *stats)
{
    json_t *bytes = json_object();
    for (uint32_t a = 0; a < stats->axes; a++)
        json_object_set_new(bytes, stats->axis[a].name, json_integer(stats->axis[a].bytes));
    return bytes;
}

static json_t *loss_json(const moe_wire_loss *loss)
{
    return json_pack("{s:I, s:f, s:f}", "rows", (json_int_t)loss->rows, "relative_l2", loss->relative_l2,
                     "one_minus_cosine", loss->cosine);
}

/// Useful FLOPs over what the cluster's devices could do; null where they do not say.
static json_t *mfu_json(double share)
{
    return share >= 0 && share <= 1e9 ? json_real(share) : json_null();
}

static json_t *make_json(struct report *report)
{
    struct figures f = compute_figures(report);
    const moe_plan_info *info = report->info;
    const moe_stats *last = &report->last;
    char hash[20];
    snprintf(hash, sizeof hash, "%016" PRIx64, info->hash);
    json_t *json = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "pipeline", info->name, "schedule",
        text_or(last->schedule, ""), "device", text_or(report->options->target, "cpu"), "cpu_level",
        text_or(last->cpu_level, info->cpu_level), "plan_hash", hash, "ranks", (json_int_t)info->ranks, "threads",
        (json_int_t)report->threads, "layers", (json_int_t)info->layers, "experts", (json_int_t)info->experts,
        "choices", (json_int_t)info->choices, "iters", (json_int_t)report->count, "tokens", (json_int_t)last->tokens);
    json_t *times = json_pack("{s:{s:f, s:f, s:f}, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "latency_s", "p50", f.p50,
                              "p90", f.p90, "p99", f.p99, "exposed_comm", f.exposed_comm, "idle", f.idle, "beside_experts",
                              f.beside_experts, "comm_s",
                              f.comm_s, "compute_s", f.compute_s, "tokens_per_s", f.tokens_per_s, "flops_per_s",
                              f.flops_per_s, "bytes_per_s", f.bytes_per_s, "mfu", mfu_json(f.flops_per_s / info->peak_flops));
    json_t *counts =
        json_pack("{s:f, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "flops", last->flops, "dropped",
                  (json_int_t)last->dropped, "overflowed", (json_int_t)last->overflowed, "rounds",
                  (json_int_t)last->rounds, "slot_bytes", (json_int_t)last->slot_bytes, "bytes", axis_bytes(last),
                  "tokens_per_rank", token_counts(report->batch), "expert_load", expert_load(last));
    bool fine =
        json && times && counts && json_object_update(json, times) == 0 && json_object_update(json, counts) == 0;
    if (report->dispatch_loss.rows || report->combine_loss.rows)
        fine = fine && json_object_set_new(json, "dispatch_loss", loss_json(&report->dispatch_loss)) == 0 &&
               json_object_set_new(json, "combine_loss", loss_json(&report->combine_loss)) == 0;
    json_decref(times);
    json_decref(counts);
    if (!fine) {
        json_decref(json);
        errno = ENOMEM;
        return NULL;
    }
    return json;
}

bool report_write(struct report *report, const char *path)
{
    struct output_file out;
    json_t *json = make_json(report);
    FILE *file = json ? output_open(&out, path) : NULL;
    bool fine = file != NULL;
    if (file) { // what cannot be written is seen when it is closed
        json_dumpf(json, file, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        fputc('\n', file);
        fine = output_close(&out, file);
    }
    int cause = errno;
    json_decref(json);
    errno = cause;
    return fine;
}
