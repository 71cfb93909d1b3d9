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

/// Every task of every layer and part, and of routed tasks every wave, exactly once.
static bool check_instances(const struct ir *graph, const struct ir *schedule, const struct sched_info *info,
                            char *error, size_t size)
{
    size_t tasks = COUNT(graph, graph_task), expected = 0;
    size_t cells = tasks * info->layers * info->parts.count * info->waves;
    uint32_t count = COUNT(schedule, sched_instance);
    for (uint32_t t = 0; t < tasks; t++)
        expected += (size_t)info->layers * info->parts.count * (ROW(graph, graph_task, t)->routed ? info->waves : 1);
    if (count != expected)
        return fails(error, size, "there is not one instance per task, layer, part and wave", count);
    bool *seen = calloc(cells + 1, sizeof *seen), good = seen != NULL;
    uint32_t i = 0;
    for (; i < count && good; i++) {
        const struct sched_instance *row = ROW(schedule, sched_instance, i);
        good = row->task < tasks && row->layer < info->layers && row->part < info->parts.count &&
               row->wave < (ROW(graph, graph_task, row->task)->routed ? info->waves : 1);
        if (!good)
            break;
        bool *cell = &seen[((row->layer * tasks + row->task) * info->parts.count + row->part) * info->waves + row->wave];
        good = !*cell;
        *cell = true;
    }
    free(seen);
    return good || fails(error, size, "an instance is out of range or stands twice", i);
}

bool schedule_check(const struct ir *graph, const struct ir *schedule, char *error, size_t size)
{
    if (!ir_check(schedule, error, size))
        return false;
    if (COUNT(schedule, sched_info) != 1)
        return fails(error, size, "exactly one sched_info is needed", 0);
    const struct sched_info *info = ROW(schedule, sched_info, 0);
    if (!info->waves)
        return fails(error, size, "there are no waves", 0);
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
