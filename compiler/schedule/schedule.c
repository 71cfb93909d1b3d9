// The schedule's tables, and what must hold of them whatever made them.
#include "compiler/schedule/schedule.h"

#include <stdlib.h>

#define RECORDS_DEF "compiler/schedule/schedule.def"
#define RECORDS_TYPE schedule_ir
#define RECORDS_NAME "schedule"
#include "runtime/plan/records_describe.h"

static bool fails(char *error, size_t size, const char *what, uint32_t row)
{
    snprintf(error, size, "schedule: %s (row %u)", what, row);
    return false;
}

static bool check_parts(const struct ir *schedule, const struct sched_info *info, char *error, size_t size)
{
    int64_t end = 0;
    for (uint32_t i = 0; i < info->parts.count; i++) {
        const struct sched_part *part = ROW(schedule, sched_part, info->parts.first + i);
        if (part->begin != end || part->end <= part->begin || part->total < part->end || part->bound < 0)
            return fails(error, size, "the parts do not follow each other", i);
        if (i + 1 == info->parts.count && part->end != part->total)
            return fails(error, size, "the parts do not cover the tokens", i);
        end = part->end;
    }
    return info->parts.count > 0 || fails(error, size, "there are no parts", 0);
}

static bool check_streams(const struct ir *schedule, char *error, size_t size)
{
    uint32_t placed = 0;
    for (uint32_t s = 0; s < COUNT(schedule, sched_stream); s++) {
        struct rows order = ROW(schedule, sched_stream, s)->order;
        for (uint32_t i = 0; i < order.count; i++) {
            uint32_t number = ROW(schedule, sched_slot, order.first + i)->instance;
            if (number == NONE)
                return fails(error, size, "a stream has an empty slot", s);
            const struct sched_instance *instance = ROW(schedule, sched_instance, number);
            if (instance->stream != s || instance->position != i)
                return fails(error, size, "an instance does not know its place", number);
        }
        placed += order.count;
    }
    return placed == COUNT(schedule, sched_instance) || fails(error, size, "an instance is in no stream", placed);
}

static uint32_t waves_of(const struct ir *graph, const struct sched_info *info, uint32_t task)
{
    return ROW(graph, graph_task, task)->routed ? info->waves : 1;
}

static bool check_shares(const struct ir *schedule, struct rows shares, uint32_t count, char *error, size_t size)
{
    int64_t end = 0;
    for (uint32_t i = 0; i < shares.count; i++) {
        const struct sched_share *share = ROW(schedule, sched_share, shares.first + i);
        if (share->begin != end || share->end <= end || (i + 1 == shares.count && share->end != share->total))
            return fails(error, size, "shares do not follow each other", shares.first + i);
        end = share->end;
    }
    return shares.count == count || fails(error, size, "there is not one share for each", shares.first);
}

/// Every task of every layer, part, wave (of routed tasks) and piece exactly once.
static bool check_instances(const struct ir *graph, const struct ir *schedule, const struct sched_info *info,
                            char *error, size_t size)
{
    uint32_t tasks = COUNT(graph, graph_task), count = COUNT(schedule, sched_instance), parts = info->parts.count;
    size_t cells = 0;
    if (COUNT(schedule, sched_task) != tasks)
        return fails(error, size, "there is not one sched_task per task", tasks);
    size_t *first = calloc(tasks + 1, sizeof *first);
    for (uint32_t t = 0; t < tasks && first; t++) {
        first[t] = cells;
        cells += (size_t)ROW(schedule, sched_task, t)->pieces * parts * waves_of(graph, info, t);
    }
    bool *seen = calloc(cells * info->layers + 1, sizeof *seen), good = true;
    if (!seen || !first) { // no memory to look with: nothing is known to be wrong
        free(seen);
        free(first);
        return true;
    }
    if (good && count != cells * info->layers)
        good = fails(error, size, "there is not one instance per task, layer, part, wave and piece", count);
    for (uint32_t i = 0; i < count && good; i++) {
        const struct sched_instance *row = ROW(schedule, sched_instance, i);
        good = row->task < tasks && row->layer < info->layers && row->part < parts &&
               row->piece < ROW(schedule, sched_task, row->task)->pieces &&
               row->wave < waves_of(graph, info, row->task);
        size_t pieces = good ? ROW(schedule, sched_task, row->task)->pieces : 1;
        size_t waves = good ? waves_of(graph, info, row->task) : 1;
        bool *cell = good ? &seen[row->layer * cells + first[row->task] +
                                  (row->part * waves + row->wave) * pieces + row->piece]
                          : NULL;
        good = good && !*cell;
        if (good)
            *cell = true;
        else
            fails(error, size, "an instance is out of range or stands twice", i);
    }
    free(first);
    free(seen);
    return good;
}

bool schedule_check(const struct ir *graph, const struct ir *schedule, char *error, size_t size)
{
    if (!ir_check(schedule, error, size))
        return false;
    if (COUNT(schedule, sched_info) != 1)
        return fails(error, size, "exactly one sched_info is needed", 0);
    const struct sched_info *info = ROW(schedule, sched_info, 0);
    if (!info->group || info->layers % info->group)
        return fails(error, size, "the layers are no whole groups", info->layers);
    if (!check_shares(schedule, info->wave_shares, info->waves, error, size))
        return false;
    for (uint32_t t = 0; t < COUNT(schedule, sched_task); t++)
        if (!check_shares(schedule, ROW(schedule, sched_task, t)->shares, ROW(schedule, sched_task, t)->pieces, error, size))
            return false;
    if (!check_parts(schedule, info, error, size) || !check_streams(schedule, error, size) ||
        !check_instances(graph, schedule, info, error, size))
        return false;
    for (uint32_t i = 0; i < COUNT(schedule, sched_edge); i++) {
        const struct sched_edge *edge = ROW(schedule, sched_edge, i);
        if (edge->from == NONE || edge->to == NONE || edge->from == edge->to)
            return fails(error, size, "an edge lacks an end or is a loop", i);
    }
    for (uint32_t i = 0; i < COUNT(schedule, sched_wait); i++) {
        const struct sched_wait *wait = ROW(schedule, sched_wait, i);
        if (wait->from == NONE || wait->to == NONE ||
            ROW(schedule, sched_instance, wait->from)->stream == ROW(schedule, sched_instance, wait->to)->stream)
            return fails(error, size, "a wait is not between two streams", i);
    }
    return true;
}
