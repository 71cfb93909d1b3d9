// A prediction as SVG: a row a stream and one of messages, for one rank of every kind; a box a task, its label as a tooltip and,
// where there is room, inside.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compiler/simulate/model.h"
#include "runtime/output.h"

static const double LEFT = 130, WIDE = 1400, HIGH = 22, LETTER = 7; // pixels

static const char *const fills[] = {"#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948",
                                    "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac"};

static double place(const struct prediction *p, double time) { return LEFT + WIDE * time / fmax(p->events.end, 1); }

static void box(const struct prediction *p, FILE *out, uint32_t stage, double row, double begin, double end, const char *label,
                const char *title)
{
    double x = place(p, begin), width = place(p, end) - x;
    if (width <= 0)
        return;
    fprintf(out, "<g><title>%s</title><rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\" fill=\"%s\"/>", title, x, row + 2,
            fmax(width, 0.3), HIGH - 4, fills[stage % (sizeof fills / sizeof *fills)]);
    if (width > LETTER * (double)strlen(label))
        fprintf(out, "<text x=\"%.2f\" y=\"%.0f\" fill=\"white\">%s</text>", x + 2, row + HIGH - 7, label);
    fprintf(out, "</g>\n");
}

static const char *took(const struct prediction *p, const char *label, double begin, double end)
{
    struct context *context = p->model.context;
    return context_printf(context, "%s: %s, from %s", label, time_text(context, end - begin), time_text(context, begin));
}

static void draw_tasks(const struct prediction *p, uint32_t kind, double top, FILE *out)
{
    for (uint32_t i = 0; i < p->instances; i++) {
        const struct sched_instance *row = ROW(p->schedule, sched_instance, i);
        uint32_t stage = ROW(p->model.graph, graph_task, row->task)->module_stage;
        const char *label = ir_text(p->schedule, row->label);
        struct intervals busy = {0};
        busy_of_instance(p, kind, i, &busy);
        intervals_join(&busy);
        for (uint32_t b = 0; b < busy.count; b++)
            box(p, out, stage, top + HIGH * row->stream, busy.at[b].begin, busy.at[b].end, label,
                took(p, label, busy.at[b].begin, busy.at[b].end));
    }
}

static void draw_exposed(const struct prediction *p, uint32_t kind, double row, FILE *out)
{
    struct intervals lost = exposed(p, kind);
    for (uint32_t i = 0; i < lost.count; i++)
        fprintf(out, "<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\" fill=\"#333\"><title>%s</title></rect>\n",
                place(p, lost.at[i].begin), row + 6, place(p, lost.at[i].end) - place(p, lost.at[i].begin), HIGH - 12,
                took(p, "messages under way, nothing computes", lost.at[i].begin, lost.at[i].end));
}

static void row_label(FILE *out, double row, const char *text)
{
    fprintf(out, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">%s</text>\n", LEFT - 6, row + HIGH - 7, text);
}

static void draw_kind(const struct prediction *p, uint32_t kind, double top, FILE *out)
{
    fprintf(out, "<text x=\"4\" y=\"%.0f\" font-weight=\"bold\">rank %u (one of %u alike)</text>\n", top + HIGH - 7,
            p->model.kinds[kind].first, p->model.kinds[kind].count);
    for (uint32_t s = 0; s < p->streams; s++)
        row_label(out, top + HIGH * (s + 1), ir_text(p->schedule, ROW(p->schedule, sched_stream, s)->name));
    row_label(out, top + HIGH * (p->streams + 1), "exposed");
    draw_tasks(p, kind, top + HIGH, out);
    draw_exposed(p, kind, top + HIGH * (p->streams + 1), out);
}

bool write_prediction_svg(const struct figures *figures, const char *path)
{
    const struct prediction *p = figures->prediction;
    struct output_file file;
    FILE *out = output_open(&file, path);
    uint32_t rows = p->streams + 2; // of a kind
    if (!out)
        return false;
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" font-size=\"12\">\n"
                 "<text x=\"4\" y=\"15\">%s: %s, %.2fx serial, %.1f%% exposed</text>\n", LEFT + WIDE + 10,
            HIGH * (1 + rows * p->model.kind_count), ir_text(p->schedule, ROW(p->schedule, sched_info, 0)->name),
            time_text(p->model.context, p->events.end), metric_value(figures, metric_speedup, NULL),
            100 * metric_value(figures, metric_exposed_comm, NULL));
    for (uint32_t kind = 0; kind < p->model.kind_count; kind++)
        draw_kind(p, kind, HIGH * (1 + (double)rows * kind), out);
    fprintf(out, "</svg>\n");
    return output_close(&file, out);
}
