// A prediction as lines of text: one a stream, a column a slice of time, the stage's initial for what runs in it, the
// instance's first index in the middle of each run; below, the slices in which messages are under way and nothing computes.
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/simulate/model.h"

enum { LABEL_COLUMNS = 13 };

const char *time_text(struct context *context, double ns)
{
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
    size_t i = 0;
    while (i < 3 && ns < units[i].unit * 0.9995)
        i++;
    double value = ns / units[i].unit;
    return context_printf(context, "%.*f%s", value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, value, units[i].name);
}

struct canvas {
    double from, to;
    uint32_t columns;
};

static uint32_t column(const struct canvas *c, double time)
{
    double share = (time - c->from) / (c->to - c->from);
    return (uint32_t)fmax(0, fmin((double)c->columns, floor(share * c->columns + 0.5)));
}

static void draw_instance(const struct prediction *p, uint32_t kind, uint32_t instance, const struct canvas *c, char *line)
{
    const struct sched_instance *row = ROW(p->schedule, sched_instance, instance);
    const char *label = ir_text(p->schedule, row->label), *bracket = strchr(label, '[');
    uint32_t number = bracket ? (uint32_t)strtoul(bracket + 1, NULL, 10) : 0;
    char letter = (char)toupper((unsigned char)*label);
    struct intervals busy = {0};
    busy_of_instance(p, kind, instance, &busy);
    intervals_join(&busy);
    for (uint32_t i = 0; i < busy.count; i++) {
        uint32_t from = column(c, busy.at[i].begin), to = column(c, busy.at[i].end);
        if (busy.at[i].end < c->from || busy.at[i].begin > c->to)
            continue;
        memset(line + from, letter, to - from);
        if (to - from >= 3 && number < 10)
            line[from + (to - from) / 2] = (char)('0' + number);
    }
}

static const char *finish_line(const struct prediction *p, const char *text, const char *label, const char *line)
{
    return context_printf(p->model.context, "%s%*.*s |%s|\n", text, LABEL_COLUMNS, LABEL_COLUMNS, label, line);
}

static char *blank_line(const struct prediction *p, uint32_t columns)
{
    char *line = context_alloc(p->model.context, columns + 1);
    memset(line, '.', columns);
    return line;
}

/// Of several layers, one from the middle of the step: from the end of the layer before to its own.
static struct canvas window(const struct prediction *p, uint32_t columns, bool one_layer)
{
    double layer = p->events.end / p->layers, first = one_layer ? p->layers / 2 : 0;
    struct canvas c = {first * layer, one_layer ? (first + 1) * layer : p->events.end, columns};
    if (c.to <= c.from)
        c.to = c.from + 1;
    return c;
}

const char *draw_timeline(const struct prediction *p, uint32_t kind, uint32_t columns, bool one_layer)
{
    struct canvas c = window(p, columns, one_layer);
    const char *text = "";
    for (uint32_t s = 0; s < p->streams; s++) {
        char *line = blank_line(p, columns);
        for (uint32_t i = 0; i < p->instances; i++)
            if (ROW(p->schedule, sched_instance, i)->stream == s)
                draw_instance(p, kind, i, &c, line);
        text = finish_line(p, text, ir_text(p->schedule, ROW(p->schedule, sched_stream, s)->name), line);
    }
    char *line = blank_line(p, columns);
    struct intervals lost = exposed(p, kind);
    for (uint32_t i = 0; i < lost.count; i++)
        if (lost.at[i].end > c.from && lost.at[i].begin < c.to)
            for (uint32_t at = column(&c, lost.at[i].begin); at < column(&c, lost.at[i].end); at++)
                line[at] = 'x';
    return finish_line(p, text, "exposed", line);
}
