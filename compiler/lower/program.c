// Schedule -> one plan_variant. lower_schedule is the table of contents of lowering; the rest of this file writes the
// drafts as the streams' instructions, with the waits and signals that the schedule asks for.
#include <string.h>

#include "compiler/lower/lower.h"

/// Do two tasks work in the same pieces?
static bool same_pieces(const struct ir *schedule, uint32_t a, uint32_t b)
{
    struct rows x = ROW(schedule, sched_task, a)->shares, y = ROW(schedule, sched_task, b)->shares;
    bool same = x.count == y.count;
    for (uint32_t i = 0; i < x.count && same; i++) {
        const struct sched_share *s = ROW(schedule, sched_share, x.first + i), *t = ROW(schedule, sched_share, y.first + i);
        same = s->begin == t->begin && s->end == t->end && s->total == t->total;
    }
    return same;
}

/// Rows of every part in the shares that a task works in; tasks with the same share them. Returns how many parts and pieces
/// there are.
static uint32_t add_pieces(struct lowering *l)
{
    uint32_t tasks = COUNT(l->schedule, sched_task), ranges = l->parts;
    l->first_piece = context_alloc(l->context, (tasks + 1) * sizeof *l->first_piece);
    for (uint32_t t = 0; t < tasks; t++) {
        uint32_t pieces = ROW(l->schedule, sched_task, t)->pieces, same = 0;
        struct rows shares = ROW(l->schedule, sched_task, t)->shares;
        while (same < t && !same_pieces(l->schedule, same, t))
            same++;
        l->first_piece[t] = same < t ? l->first_piece[same] : ranges;
        if (pieces == 1 || same < t)
            continue;
        for (uint32_t i = 0; i < l->parts; i++)
            for (uint32_t piece = 0; piece < pieces; piece++, ranges++) {
                struct plan_part whole = *ROW(l->plan, plan_part, l->first_part + i);
                const struct sched_share *share = ROW(l->schedule, sched_share, shares.first + piece);
                int64_t size = whole.end - whole.begin, from = whole.begin * share->total, total = whole.total * share->total;
                int64_t begin = from + size * share->begin, end = from + size * share->end;
                uint32_t row = lower_add(l->context, l->plan, T_plan_part);
                *ROW(l->plan, plan_part, row) = (struct plan_part){
                    begin, end, total, (l->bound * (end - begin) + total - 1) / total, l->first_part + i};
            }
    }
    return ranges;
}

static void start_variant(struct lowering *l)
{
    const struct sched_info *info = ROW(l->schedule, sched_info, 0);
    l->variant = lower_add(l->context, l->plan, T_plan_variant);
    l->first_part = COUNT(l->plan, plan_part);
    l->parts = info->parts.count;
    l->waves = info->waves;
    l->cells = l->parts * l->waves;
    l->layers = info->layers;
    l->bound = info->bound;
    for (uint32_t i = 0; i < l->parts; i++) {
        const struct sched_part *part = ROW(l->schedule, sched_part, info->parts.first + i);
        uint32_t row = lower_add(l->context, l->plan, T_plan_part);
        *ROW(l->plan, plan_part, row) = (struct plan_part){part->begin, part->end, part->total, part->bound, NONE};
    }
    uint32_t ranges = add_pieces(l);
    str_id name = ir_str(l->plan, ir_text(l->schedule, info->name));
    *ROW(l->plan, plan_variant, l->variant) = (struct plan_variant){.name = name,
                                                                    .bound = info->bound,
                                                                    .parts = {l->first_part, ranges},
                                                                    .semaphores = COUNT(l->schedule, sched_stream)};
}

static void read_speeds(struct lowering *l)
{
    const struct mod_cluster *cluster = ROW(l->module, mod_cluster, l->pipeline->cluster);
    const struct mod_device *device = cluster_device(l->module, cluster, 0);
    l->flops_per_s = device_rate(device);
    l->bytes_per_s = device->hbm;
}

/// Does the size of a rank's slots depend on where it stands among the others, or on whose copies it holds? Through relays
/// ranks of one node have slots for as many rows as the one of them with most experts.
static bool places_differ(const struct lowering *l)
{
    bool places = false, uneven = false;
    for (uint32_t i = 0; i < l->path_count; i++)
        places = places || l->paths[i].wire.count > 1 || l->paths[i].reply.count > 1 || l->paths[i].node;
    for (uint32_t r = 1; r < l->ranks; r++)
        uneven = uneven || ROW(l->plan, plan_rank, r)->owned.count != ROW(l->plan, plan_rank, 0)->owned.count;
    return (places && uneven) || slots_has_copies(l->plan);
}

static void find_classes(struct lowering *l)
{
    l->class_of_rank = context_alloc(l->context, (l->ranks + 1) * sizeof *l->class_of_rank);
    l->class_rank = context_alloc(l->context, (l->ranks + 1) * sizeof *l->class_rank);
    bool apart = places_differ(l);
    for (uint32_t rank = 0; rank < l->ranks; rank++) {
        uint32_t owned = ROW(l->plan, plan_rank, rank)->owned.count, class = 0;
        while (class < l->class_count && (apart || ROW(l->plan, plan_rank, l->class_rank[class])->owned.count != owned))
            class ++;
        if (class == l->class_count)
            l->class_rank[l->class_count++] = rank;
        l->class_of_rank[rank] = class;
    }
}

// ------------------------------------------------------------------------------------------------------- instructions

static struct plan_instr *add_instr(struct lowering *l, enum opcode op, const struct sched_instance *instance)
{
    uint32_t row = lower_add(l->context, l->plan, T_plan_instr);
    struct plan_instr *instr = ROW(l->plan, plan_instr, row);
    instr->op = op;
    if (!instance)
        return instr;
    const struct graph_task *task = ROW(l->graph, graph_task, instance->task);
    instr->phase = task->phase;
    instr->layer = instance->layer;
    instr->part = l->first_part + instance_range(l, instance);
    str_id stage = ir_str(l->plan, ir_text(l->graph, task->stage));
    str_id label = ir_str(l->plan, ir_text(l->schedule, instance->label));
    instr = ROW(l->plan, plan_instr, row);
    instr->stage = stage;
    instr->label = label;
    return instr;
}

static void add_semaphore(struct lowering *l, enum opcode op, const struct sched_instance *instance, uint32_t semaphore,
                          int64_t value)
{
    struct plan_instr *instr = add_instr(l, op, instance);
    instr->semaphore = semaphore;
    instr->value = value;
}

static void add_draft(struct lowering *l, const struct sched_instance *instance, const struct draft *draft)
{
    uint32_t first = COUNT(l->plan, plan_arg);
    for (uint32_t i = 0; i < draft->operand_count; i++) {
        const struct operand *operand = &draft->operands[i];
        uint32_t row = lower_add(l->context, l->plan, T_plan_arg);
        *ROW(l->plan, plan_arg, row) =
            (struct plan_arg){.buffer = buffer_of_operand(l, operand),
                              .access = operand->access,
                              .first = operand->first && operand->buffer < l->arena_count,
                              .slice = operand->slice == NONE ? NONE : l->first_part + operand->slice};
    }
    struct plan_instr *instr = add_instr(l, draft->op, instance);
    instr->part = l->first_part + draft->range;
    instr->kernel = draft->kernel;
    instr->exchange = draft->exchange;
    instr->args = (struct rows){first, draft->operand_count};
    instr->cost = draft->cost;
    instr->by_experts = draft->by_experts;
    if (draft->phase < phase_words_count)
        instr->phase = draft->phase;
}

/// By instance: what to wait for on each stream (0: nothing), and whether anyone waits for it.
struct waits {
    int64_t *values; // [instance][stream]
    bool *signals;
    int64_t *final; // what `count` waits for, by stream
};

static int64_t value_after(const struct lowering *l, uint32_t instance)
{
    return (int64_t)ROW(l->schedule, sched_instance, instance)->position + 1;
}

static struct waits collect_waits(struct lowering *l)
{
    uint32_t instances = COUNT(l->schedule, sched_instance), streams = COUNT(l->schedule, sched_stream);
    struct waits w = {.values = context_alloc(l->context, ((size_t)instances * streams + 1) * sizeof *w.values),
                      .signals = context_alloc(l->context, instances + 1),
                      .final = context_alloc(l->context, (streams + 1) * sizeof *w.final)};
    for (uint32_t i = 0; i < COUNT(l->schedule, sched_wait); i++) {
        const struct sched_wait *wait = ROW(l->schedule, sched_wait, i);
        uint32_t stream = ROW(l->schedule, sched_instance, wait->from)->stream;
        int64_t *value = &w.values[(size_t)wait->to * streams + stream];
        if (value_after(l, wait->from) > *value)
            *value = value_after(l, wait->from);
    }
    for (uint32_t i = 0; i < instances; i++)
        for (uint32_t s = 0; s < streams; s++) {
            int64_t value = w.values[(size_t)i * streams + s];
            if (value) {
                struct rows order = ROW(l->schedule, sched_stream, s)->order;
                w.signals[ROW(l->schedule, sched_slot, order.first + (uint32_t)value - 1)->instance] = true;
            }
        }
    return w;
}

static uint32_t last_of(const struct lowering *l, uint32_t stream)
{
    struct rows order = ROW(l->schedule, sched_stream, stream)->order;
    return order.count ? ROW(l->schedule, sched_slot, order.first + order.count - 1)->instance : NONE;
}

/// The stream whose last instance the fewest others outlast; it counts, after waiting for the others' ends.
static uint32_t plan_count(struct lowering *l, struct waits *w)
{
    uint32_t streams = COUNT(l->schedule, sched_stream), best = NONE, best_late = NONE;
    for (uint32_t s = 0; s < streams; s++) {
        uint32_t late = 0;
        for (uint32_t t = 0; t < streams && last_of(l, s) != NONE; t++)
            late += t != s && last_of(l, t) != NONE && !ordered(l->order, last_of(l, t), last_of(l, s), false);
        if (last_of(l, s) != NONE && late < best_late) {
            best = s;
            best_late = late;
        }
    }
    for (uint32_t t = 0; t < streams && best != NONE; t++) {
        uint32_t last = last_of(l, t);
        if (t == best || last == NONE || ordered(l->order, last, last_of(l, best), false))
            continue;
        w->final[t] = value_after(l, last);
        w->signals[last] = true;
    }
    return best;
}

static void write_instance(struct lowering *l, uint32_t number, const struct waits *w)
{
    const struct sched_instance *instance = ROW(l->schedule, sched_instance, number);
    uint32_t streams = COUNT(l->schedule, sched_stream);
    for (uint32_t s = 0; s < streams; s++)
        if (w->values[(size_t)number * streams + s])
            add_semaphore(l, opcode_wait, instance, s, w->values[(size_t)number * streams + s]);
    for (uint32_t i = 0; i < l->of_instance[number].count; i++)
        add_draft(l, instance, &l->drafts[l->of_instance[number].first + i]);
    if (w->signals[number])
        add_semaphore(l, opcode_signal, instance, instance->stream, value_after(l, number));
}

static void write_count(struct lowering *l, const struct waits *w)
{
    str_id label = ir_str(l->plan, "count");
    for (uint32_t s = 0; s <= COUNT(l->schedule, sched_stream); s++) {
        bool count = s == COUNT(l->schedule, sched_stream);
        if (!count && !w->final[s])
            continue;
        struct plan_instr *instr = add_instr(l, count ? opcode_count : opcode_wait, NULL);
        instr->label = instr->stage = label;
        instr->layer = l->layers - 1;
        instr->semaphore = count ? 0 : s;
        instr->value = count ? 0 : w->final[s];
    }
}

static struct rows write_streams(struct lowering *l)
{
    uint32_t streams = COUNT(l->schedule, sched_stream);
    struct waits w = collect_waits(l);
    uint32_t counting = plan_count(l, &w);
    struct rows rows = {COUNT(l->plan, plan_stream), streams};
    for (uint32_t s = 0; s < streams; s++)
        lower_add(l->context, l->plan, T_plan_stream);
    for (uint32_t s = 0; s < streams; s++) {
        const struct sched_stream *from = ROW(l->schedule, sched_stream, s);
        struct plan_stream stream = {.name = ir_str(l->plan, ir_text(l->schedule, from->name)),
                                     .engines = from->engines,
                                     .own_thread = from->own_thread,
                                     .priority = from->priority,
                                     .instrs = {COUNT(l->plan, plan_instr), 0}};
        for (uint32_t i = 0; i < from->order.count; i++)
            write_instance(l, ROW(l->schedule, sched_slot, from->order.first + i)->instance, &w);
        if (s == counting)
            write_count(l, &w);
        stream.instrs.count = COUNT(l->plan, plan_instr) - stream.instrs.first;
        *ROW(l->plan, plan_stream, rows.first + s) = stream;
    }
    return rows;
}

static bool write_programs(struct lowering *l)
{
    struct rows *extents = context_alloc(l->context, (l->class_count + 1) * sizeof *extents);
    int64_t *arena = context_alloc(l->context, (l->class_count + 1) * sizeof *arena);
    if (!place_buffers(l, extents, arena))
        return false;
    struct rows streams = write_streams(l), programs = {COUNT(l->plan, plan_program), l->ranks};
    for (uint32_t rank = 0; rank < l->ranks; rank++) {
        uint32_t row = lower_add(l->context, l->plan, T_plan_program), class = l->class_of_rank[rank];
        *ROW(l->plan, plan_program, row) = (struct plan_program){
            .rank = rank, .streams = streams, .extents = extents[class], .arena_bytes = arena[class]};
    }
    ROW(l->plan, plan_variant, l->variant)->programs = programs;
    return true;
}

uint32_t lower_schedule(struct context *context, const struct program_text *program, const struct ir *module,
                        uint32_t pipeline, const struct ir *graph, const struct ir *schedule, struct ir *plan)
{
    const struct mod_pipeline *from = ROW(module, mod_pipeline, pipeline);
    struct lowering l = {.context = context,
                         .program = program,
                         .module = module,
                         .graph = graph,
                         .schedule = schedule,
                         .plan = plan,
                         .pipeline = from,
                         .layer = ROW(module, mod_layer, from->layer),
                         .ranks = ROW(plan, plan_info, 0)->ranks};
    l.order = order_closure_make(context, graph, schedule);
    if (!l.order)
        fatal(context, EXIT_BUG, "a schedule is lowered that was not proven");
    start_variant(&l);
    read_speeds(&l);
    if (!read_layer(&l))
        return NONE;
    find_classes(&l);
    find_hits(&l);
    if (!make_exchanges(&l))
        return NONE;
    l.arena_count = l.family_count * l.layers * l.cells;
    draft_instances(&l);
    if (l.failed || !make_buffers(&l) || !write_programs(&l))
        return NONE;
    return l.variant;
}
