// The module as an IR: its description for printing and parsing, its invariants, and look-ups that later passes share.
#include "compiler/check/module.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#define RECORDS_DEF "compiler/check/module.def"
#define RECORDS_TYPE module_ir
#define RECORDS_NAME "module"
#include "runtime/plan/records_describe.h"

const struct mod_arg *stage_arg(const struct ir *module, const struct mod_stage *stage, const char *name)
{
    for (uint32_t i = 0; i < stage->args.count; i++) {
        const struct mod_arg *arg = ROW(module, mod_arg, stage->args.first + i);
        if (!strcmp(ir_text(module, arg->name), name))
            return arg;
    }
    return NULL;
}

static double option_number(const struct ir *module, const struct mod_stage *stage, const char *name, double otherwise)
{
    const struct mod_arg *arg = stage_arg(module, stage, name);
    return arg ? arg->number : otherwise;
}

bool route_is_limited(const struct ir *module, const struct mod_stage *route, int64_t bound)
{
    double experts = (double)ROW(module, mod_value, route->result)->width;
    bool all = option_number(module, route, "expert_capacity", INFINITY) * option_number(module, route, "k", 1) >= experts;
    return !all || option_number(module, route, "expert_tokens", INFINITY) < (double)bound; // a token chooses an expert once
}

uint32_t cluster_axis_between(const struct ir *module, const struct mod_cluster *cluster, int64_t a, int64_t b)
{
    for (uint32_t i = 0; i < cluster->axes.count; i++) {
        int64_t stride = ROW(module, mod_axis, cluster->axes.first + i)->stride;
        if (a / stride != b / stride)
            return cluster->axes.first + i;
    }
    return NONE;
}

const struct mod_device *cluster_device(const struct ir *module, const struct mod_cluster *cluster, int64_t rank)
{
    return ROW(module, mod_device, ROW(module, mod_rank, cluster->members.first + rank)->device);
}

double device_rate(const struct mod_device *device)
{
    return (device->peak_bf16 > 0 ? device->peak_bf16 : device->peak_f32) * device->derate;
}

struct report {
    char *text;
    size_t size;
};

static bool wrong(struct report report, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(struct report report, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(report.text, report.size, format, args);
    va_end(args);
    return false;
}

static bool check_values(const struct ir *module, struct report report)
{
    for (uint32_t i = 0; i < COUNT(module, mod_value); i++) {
        const struct mod_value *value = ROW(module, mod_value, i);
        if (value->width < 1)
            return wrong(report, "mod_value %u: no width", i);
        if ((value->kind == value_kind_routes) != (value->dtype == dtype_none))
            return wrong(report, "mod_value %u: kind and element type do not fit", i);
    }
    for (uint32_t i = 0; i < COUNT(module, mod_param); i++) {
        const struct mod_param *param = ROW(module, mod_param, i);
        if (param->format == NONE || param->ndims > 4)
            return wrong(report, "mod_param %u: not typed", i);
        for (uint32_t d = 0; d < param->ndims; d++)
            if (param->dims[d] < 1)
                return wrong(report, "mod_param %u: size %u is below 1", i, d);
    }
    return true;
}

/// Stages stand in data order: every value read is the layer's input or an earlier stage's.
static bool check_layers(const struct ir *module, struct report report)
{
    for (uint32_t i = 0; i < COUNT(module, mod_layer); i++) {
        const struct mod_layer *layer = ROW(module, mod_layer, i);
        if (layer->input == NONE || layer->output == NONE || layer->tokens_bound < 1)
            return wrong(report, "mod_layer %u: incomplete", i);
        for (uint32_t s = 0; s < layer->stages.count; s++) {
            uint32_t number = layer->stages.first + s;
            const struct mod_stage *stage = ROW(module, mod_stage, number);
            if (stage->external != (stage->op == NONE) || stage->result == NONE)
                return wrong(report, "mod_stage %u: operator or result missing", number);
            if (ROW(module, mod_value, stage->result)->stage != number)
                return wrong(report, "mod_stage %u: its result is another stage's", number);
            for (uint32_t a = 0; a < stage->args.count; a++) {
                uint32_t value = ROW(module, mod_arg, stage->args.first + a)->value;
                uint32_t maker = value == NONE ? NONE : ROW(module, mod_value, value)->stage;
                if (maker != NONE && (maker >= number || maker < layer->stages.first))
                    return wrong(report, "mod_stage %u reads what stage %u makes", number, maker);
            }
        }
    }
    return true;
}

/// Axes, links and ranks of every cluster fit each other.
static bool check_clusters(const struct ir *module, struct report report)
{
    for (uint32_t i = 0; i < COUNT(module, mod_cluster); i++) {
        const struct mod_cluster *cluster = ROW(module, mod_cluster, i);
        int64_t stride = 1;
        for (uint32_t a = cluster->axes.count; a-- > 0;) {
            const struct mod_axis *axis = ROW(module, mod_axis, cluster->axes.first + a);
            if (axis->stride != stride || axis->size < 1 || (axis->link == NONE && axis->size > 1))
                return wrong(report, "mod_cluster %u: axis %u is incomplete", i, a);
            if (axis->link != NONE && ROW(module, mod_link, axis->link)->axis != cluster->axes.first + a)
                return wrong(report, "mod_cluster %u: the link of axis %u crosses another", i, a);
            stride *= axis->size;
        }
        if (stride != cluster->ranks || cluster->members.count != cluster->ranks)
            return wrong(report, "mod_cluster %u: %lld ranks", i, (long long)cluster->ranks);
        for (uint32_t r = 0; r < cluster->members.count; r++)
            if (ROW(module, mod_rank, cluster->members.first + r)->device == NONE)
                return wrong(report, "mod_cluster %u: rank %u has no device", i, r);
    }
    return true;
}

/// Owners are sorted by rank, locals count from 0, and every expert has exactly one that is no copy.
static bool check_owners(const struct ir *module, struct report report)
{
    for (uint32_t i = 0; i < COUNT(module, mod_placement); i++) {
        const struct mod_placement *placement = ROW(module, mod_placement, i);
        if (placement->cluster == NONE)
            return wrong(report, "mod_placement %u: no cluster", i);
        uint64_t sum = 0, squares = 0, count = (uint64_t)placement->experts;
        for (uint32_t o = 0; o < placement->owners.count; o++) {
            const struct mod_owner *owner = ROW(module, mod_owner, placement->owners.first + o);
            const struct mod_owner *before = o ? owner - 1 : NULL;
            bool next = before && before->rank == owner->rank;
            if (owner->expert >= count || owner->rank >= ROW(module, mod_cluster, placement->cluster)->ranks ||
                (before && before->rank > owner->rank) || owner->local != (next ? before->local + 1 : 0) ||
                (next && before->home == owner->home && before->expert >= owner->expert))
                return wrong(report, "mod_placement %u: owner %u is out of order", i, o);
            if (owner->home != owner->rank)
                continue;
            sum += owner->expert;
            squares += (uint64_t)owner->expert * owner->expert;
        }
        if (count && (sum != count * (count - 1) / 2 || squares != (count - 1) * count * (2 * count - 1) / 6))
            return wrong(report, "mod_placement %u: not every expert has one owner", i);
    }
    return true;
}

static bool check_pipelines(const struct ir *module, struct report report)
{
    for (uint32_t i = 0; i < COUNT(module, mod_pipeline); i++) {
        const struct mod_pipeline *pipeline = ROW(module, mod_pipeline, i);
        if (pipeline->layer == NONE || pipeline->cluster == NONE || pipeline->placement == NONE || pipeline->repeat < 1)
            return wrong(report, "mod_pipeline %u: incomplete", i);
        int64_t next = 0;
        for (uint32_t c = 0; c < pipeline->choices.count; c++) {
            const struct mod_choice *choice = ROW(module, mod_choice, pipeline->choices.first + c);
            if (choice->first_tokens != next || choice->last_tokens < next || choice->use < pipeline->uses.first ||
                choice->use >= pipeline->uses.first + pipeline->uses.count)
                return wrong(report, "mod_pipeline %u: choice %u does not continue the one before", i, c);
            next = choice->last_tokens + 1;
        }
        if (next != ROW(module, mod_layer, pipeline->layer)->tokens_bound + 1)
            return wrong(report, "mod_pipeline %u: its choices end at %lld tokens", i, (long long)next - 1);
        for (uint32_t u = 0; u < pipeline->uses.count; u++) {
            const struct mod_use *use = ROW(module, mod_use, pipeline->uses.first + u);
            if (use->schedule == NONE || use->knobs.count != ROW(module, mod_schedule, use->schedule)->knobs.count)
                return wrong(report, "mod_pipeline %u: use %u lacks knobs", i, u);
        }
    }
    return true;
}

bool module_check(const struct ir *module, char *error, size_t size)
{
    struct report report = {error, size};
    return check_values(module, report) && check_layers(module, report) && check_clusters(module, report) &&
           check_owners(module, report) && check_pipelines(module, report);
}
