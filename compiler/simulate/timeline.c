// The reader of timeline.h. Files are untrusted.
#include "compiler/simulate/timeline.h"

#include <math.h>
#include <string.h>

#include "compiler/simulate/model.h"

static double number_at(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_number(value) && isfinite(json_number_value(value)) ? json_number_value(value) : 0;
}

/// A message's name tells its destination too: `dispatch.send[0] to 1`.
static const char *own_name(struct context *context, const char *name, bool message)
{
    const char *end = message ? strstr(name, " to ") : NULL;
    return end ? context_printf(context, "%.*s", (int)(end - name), name) : name;
}

static void add_event(struct context *context, struct timeline *t, json_t *event)
{
    const char *category = json_string_value(json_object_get(event, "cat"));
    const char *name = json_string_value(json_object_get(event, "name"));
    bool message = category && !strcmp(category, "message");
    double rank = number_at(event, "pid");
    if (!name || !category || (!message && strcmp(category, "stage") != 0) || !(rank >= 0 && rank < 65536))
        return;
    json_t *arguments = json_object_get(event, "args");
    t->events = context_grow(context, t->events, &t->capacity, t->count + 1, sizeof *t->events);
    struct span_event *e = &t->events[t->count++];
    double begin = number_at(event, "ts"), to = number_at(arguments, "to"), layer = number_at(arguments, "layer");
    *e = (struct span_event){.name = own_name(context, name, message),
                             .rank = (uint32_t)rank,
                             .to = (uint32_t)fmin(fmax(to, 0), 65535),
                             .layer = (uint32_t)fmin(fmax(layer, 0), 65535),
                             .message = message,
                             .begin = begin,
                             .end = begin + fmax(0, number_at(event, "dur")),
                             .bytes = number_at(arguments, "bytes")};
}

bool timeline_moves(const char *name) { return strstr(name, ".send") || strstr(name, ".recv") || strstr(name, ".relay"); }

/// Mean over ranks of the time with messages to or from the rank under way and no compute.
static double exposed_time(struct context *context, const struct timeline *t)
{
    double sum = 0;
    for (uint32_t r = 0; r < t->ranks; r++) {
        struct intervals compute = {0}, messages = {0};
        for (uint32_t i = 0; i < t->count; i++) {
            const struct span_event *e = &t->events[i];
            if (e->message && (e->rank == r || e->to == r))
                intervals_add(context, &messages, e->begin, e->end);
            else if (!e->message && e->rank == r && !timeline_moves(e->name))
                intervals_add(context, &compute, e->begin, e->end);
        }
        intervals_join(&compute);
        intervals_join(&messages);
        struct intervals lost = intervals_cut(context, &messages, &compute, false);
        sum += intervals_length(&lost);
    }
    return t->ranks ? sum / t->ranks : 0;
}

static void release(void *held) { json_decref(held); }

bool timeline_read(struct context *context, const char *path, struct timeline *t)
{
    json_error_t error;
    *t = (struct timeline){.path = path, .root = json_load_file(path, 0, &error)};
    if (!t->root) {
        fprintf(stderr, "moecc: %s: %s\n", path, error.text);
        return false;
    }
    *context_slot(context, release) = t->root;
    json_t *list = json_object_get(t->root, "traceEvents"), *event;
    size_t i;
    json_array_foreach(list, i, event) {
        add_event(context, t, event);
    }
    for (uint32_t k = 0; k < t->count; k++) {
        t->step = fmax(t->step, t->events[k].end);
        t->ranks = t->events[k].rank + 1 > t->ranks ? t->events[k].rank + 1 : t->ranks;
    }
    if (t->count && t->step > 0)
        t->exposed = exposed_time(context, t) / t->step;
    else
        fprintf(stderr, "moecc: %s holds no stages: `moecc run --trace` or `moecc simulate --trace` writes them\n", path);
    return t->count && t->step > 0;
}
