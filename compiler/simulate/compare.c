// `moecc compare A B` (compare.h).
#include "compiler/simulate/compare.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/simulate/model.h"
#include "compiler/simulate/timeline.h"
#include "runtime/output.h"
#include "runtime/watch/trace_events.h"

enum { PARTINGS = 5 };

// ---- stages

/// `expert` of `expert[0]`; messages of both phases of a stage's send as `dispatch messages`.
static const char *stem_of(struct context *context, const struct span_event *e)
{
    if (e->message)
        return context_printf(context, "%.*s messages", (int)strcspn(e->name, "["), e->name);
    return context_printf(context, "%.*s", (int)strcspn(e->name, "["), e->name);
}

/// Mean over the ranks that have it of the time they spend in what is called so; NAN: nobody has it.
static double time_of(struct context *context, const struct timeline *t, const char *stem)
{
    double sum = 0;
    bool *has = context_alloc(context, t->ranks + 1);
    uint32_t ranks = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        if (strcmp(stem_of(context, &t->events[i]), stem) != 0)
            continue;
        sum += t->events[i].end - t->events[i].begin;
        ranks += !has[t->events[i].rank];
        has[t->events[i].rank] = true;
    }
    return ranks ? sum / ranks : NAN;
}

static void print_row(FILE *out, const char *name, double a, double b)
{
    fprintf(out, "%-26s %12.3f %12.3f %8.3f\n", name, a * 1e-3, b * 1e-3, b / a);
}

/// Returns how many stages both have.
static unsigned print_stages(struct context *context, const struct timeline *a, const struct timeline *b, FILE *out)
{
    const char **seen = context_alloc(context, (a->count + 1) * sizeof *seen);
    uint32_t count = 0;
    unsigned common = 0;
    for (uint32_t i = 0; i < a->count; i++) {
        const char *stem = stem_of(context, &a->events[i]);
        bool known = !a->events[i].message && timeline_moves(stem); // streams wait in these; the messages say how long
        for (uint32_t k = 0; k < count && !known; k++)
            known = !strcmp(seen[k], stem);
        if (known)
            continue;
        seen[count++] = stem;
        double left = time_of(context, a, stem), right = time_of(context, b, stem);
        if (!isnan(left) && !isnan(right)) {
            print_row(out, stem, left, right);
            common++;
        }
    }
    return common;
}

// ---- where they part

struct parting {
    const struct span_event *a, *b;
    double late, own;           // by how much it begins later in B than in A; of that, what no predecessor was late by
};

static const struct span_event *find(const struct timeline *t, const struct span_event *like)
{
    for (uint32_t i = 0; i < t->count; i++) {
        const struct span_event *e = &t->events[i];
        if (e->message == like->message && e->rank == like->rank && e->layer == like->layer && !strcmp(e->name, like->name))
            return e;
    }
    return NULL;
}

static int by_own(const void *left, const void *right)
{
    const struct parting *a = left, *b = right;
    return (fabs(a->own) < fabs(b->own)) - (fabs(a->own) > fabs(b->own));
}

/// Instances whose own time differs most: what they take, not when they could begin.
static void print_partings(struct context *context, const struct timeline *a, const struct timeline *b, FILE *out)
{
    struct parting *list = context_alloc(context, (a->count + 1) * sizeof *list);
    uint32_t count = 0;
    for (uint32_t i = 0; i < a->count; i++) {
        const struct span_event *x = &a->events[i], *y = find(b, x);
        if (!y || (!x->message && timeline_moves(x->name)))
            continue;
        list[count++] = (struct parting){x, y, y->begin - x->begin, (y->end - y->begin) - (x->end - x->begin)};
    }
    qsort(list, count, sizeof *list, by_own);
    fprintf(out, "they part most at\n");
    for (uint32_t i = 0; i < count && i < PARTINGS; i++) {
        const struct parting *p = &list[i];
        fprintf(out, "  rank %u layer %u %-20s %10.3f ms against %10.3f ms, %+.1f%% of the step; begins %+.3f ms\n", p->a->rank,
                p->a->layer, context_printf(context, "%s%s", p->a->name, p->a->message ? " (message)" : ""),
                (p->a->end - p->a->begin) * 1e-3, (p->b->end - p->b->begin) * 1e-3, 100 * p->own / a->step, p->late * 1e-3);
    }
}

// ---- both in one file

static void write_timeline(FILE *out, struct context *context, const struct timeline *t, uint32_t which)
{
    json_t *event;
    size_t i;
    json_array_foreach(json_object_get(t->root, "traceEvents"), i, event) {
        json_t *pid = json_object_get(event, "pid"), *name = json_object_get(json_object_get(event, "args"), "name");
        const char *kind = json_string_value(json_object_get(event, "name"));
        if (!json_is_integer(pid) || (kind && !strcmp(kind, "moecc")))
            continue;
        json_integer_set(pid, 2 * json_integer_value(pid) + which);
        if (name && kind && !strcmp(kind, "process_name"))
            json_string_set(name, context_printf(context, "%s: %s", t->path, json_string_value(name)));
        fputs(",\n", out);
        json_dumpf(event, out, JSON_COMPACT);
    }
}

/// Ranks of A and B in turn, so that they stand below one another.
static bool write_both(struct context *context, const struct timeline *a, const struct timeline *b, const char *path)
{
    struct output_file file;
    FILE *out = output_open(&file, path);
    if (!out)
        return false;
    trace_begin(out);
    write_timeline(out, context, a, 0);
    write_timeline(out, context, b, 1);
    trace_end(out);
    return output_close(&file, out);
}

enum exit_code compare_traces(struct context *context, const char *first, const char *second, const char *merged, FILE *out)
{
    struct timeline a, b;
    if (!timeline_read(context, first, &a) || !timeline_read(context, second, &b))
        return EXIT_INPUT;
    fprintf(out, "%-26s %12s %12s %8s\n", "ms per rank", "A", "B", "B / A");
    unsigned common = print_stages(context, &a, &b, out);
    print_row(out, "step", a.step, b.step);
    fprintf(out, "%-26s %11.1f%% %11.1f%% %+7.1f points\n", "exposed communication", 100 * a.exposed, 100 * b.exposed,
            100 * (b.exposed - a.exposed));
    if (!common) {
        fprintf(stderr, "moecc: %s and %s have no stage in common\n", first, second);
        return EXIT_INPUT;
    }
    print_partings(context, &a, &b, out);
    if (merged && !write_both(context, &a, &b, merged))
        fatal(context, EXIT_SYSTEM, "cannot write %s: %s", merged, strerror(errno));
    return EXIT_FINE;
}
