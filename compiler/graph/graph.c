// The graph's tables, and the invariants that every later stage relies on.
#include "compiler/graph/graph.h"

#define RECORDS_DEF "compiler/graph/graph.def"
#define RECORDS_TYPE graph_ir
#define RECORDS_NAME "graph"
#include "runtime/plan/records_describe.h"

static bool fails(char *error, size_t size, const char *what, uint32_t row)
{
    snprintf(error, size, "graph: %s (row %u)", what, row);
    return false;
}

/// Values are made before they are read: tasks stand in data order.
static bool check_task(const struct ir *graph, uint32_t number, char *error, size_t size)
{
    const struct graph_task *task = ROW(graph, graph_task, number);
    if (!task->engines)
        return fails(error, size, "a task occupies no engine", number);
    if (task->module_stage == NONE)
        return fails(error, size, "a task belongs to no stage", number);
    for (uint32_t i = 0; i < task->reads.count; i++) {
        uint32_t read = ROW(graph, graph_use, task->reads.first + i)->value;
        if (read == NONE)
            return fails(error, size, "a task reads nothing", number);
        const struct graph_value *value = ROW(graph, graph_value, read);
        if (value->task != NONE && value->task >= number)
            return fails(error, size, "a task reads a value that is made after it", number);
    }
    for (uint32_t i = 0; i < task->writes.count; i++) {
        uint32_t written = ROW(graph, graph_use, task->writes.first + i)->value;
        if (written == NONE || ROW(graph, graph_value, written)->task != number)
            return fails(error, size, "a value does not name the task that writes it", number);
    }
    return true;
}

static bool written_by(const struct ir *graph, const struct graph_task *task, uint32_t value)
{
    for (uint32_t i = 0; i < task->writes.count; i++)
        if (ROW(graph, graph_use, task->writes.first + i)->value == value)
            return true;
    return false;
}

bool graph_check(const struct ir *graph, char *error, size_t size)
{
    if (!ir_check(graph, error, size))
        return false;
    if (COUNT(graph, graph_info) != 1)
        return fails(error, size, "exactly one graph_info is needed", 0);
    const struct graph_info *info = ROW(graph, graph_info, 0);
    if (info->input == NONE || info->output == NONE)
        return fails(error, size, "the layer lacks its input or output", 0);
    if (ROW(graph, graph_value, info->input)->task != NONE)
        return fails(error, size, "the layer's input has a producer", info->input);
    for (uint32_t i = 0; i < COUNT(graph, graph_task); i++)
        if (!check_task(graph, i, error, size))
            return false;
    for (uint32_t i = 0; i < COUNT(graph, graph_value); i++) {
        uint32_t producer = ROW(graph, graph_value, i)->task;
        if (producer == NONE ? i != info->input : !written_by(graph, ROW(graph, graph_task, producer), i))
            return fails(error, size, "a value has no producer", i);
    }
    return true;
}
