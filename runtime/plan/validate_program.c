// Validation of what one rank runs: its streams instruction by instruction, and how its buffers lie in the arena.
// Launches are judged in validate_launch.c.
#include <stdlib.h>

#include "slots.h"
#include "validate.h"

/// References of an instruction lie inside its variant.
static bool learn_instr(struct walk *w)
{
    const struct plan_instr *in = w->instr;
    if (in->part != NONE && !in_rows(w->variant->parts, in->part))
        return instr_fail(w, "its part is another variant's");
    if (in->exchange != NONE && !in_rows(w->variant->exchanges, in->exchange))
        return instr_fail(w, "its exchange is another variant's");
    if (in->layer >= w->c->info->layers)
        return instr_fail(w, "its layer is not in the step");
    if (in->args.count > MOE_MAX_ARGS)
        return instr_fail(w, "too many arguments");
    for (uint32_t i = 0; i < in->args.count; i++) {
        const struct plan_arg *a = arg_at(w, i);
        if (a->buffer == NONE || !in_rows(w->variant->buffers, a->buffer))
            return instr_fail(w, "an argument is no buffer of the variant");
        if (a->slice != NONE && !in_rows(w->variant->parts, a->slice))
            return instr_fail(w, "an argument's slice is another variant's");
    }
    if (in->op == opcode_launch)
        return learn_launch(w);
    for (uint32_t i = 0; i < in->args.count; i++)
        usage_at(w, i)->plain = true;
    return true;
}

static bool check_message(const struct walk *w)
{
    if (w->instr->exchange == NONE)
        return instr_fail(w, "names no exchange");
    const struct plan_exchange *e = ROW(w->c->ir, plan_exchange, w->instr->exchange);
    uint32_t pool = e->kind == exchange_kind_combine ? e->base : w->instr->exchange;
    if ((e->pool ? pool : NONE) != w->rounds)
        return instr_fail(w, "a pool's messages belong into its rounds, others outside");
    return true;
}

/// Only what relays is passed on or settled, and never in rounds.
static bool check_relay(const struct walk *w)
{
    if (w->instr->exchange == NONE || !ROW(w->c->ir, plan_exchange, w->instr->exchange)->node)
        return instr_fail(w, "names no exchange with relays");
    return w->rounds == NONE || instr_fail(w, "a relay inside overflow rounds");
}

static bool check_instr(struct walk *w)
{
    const struct plan_instr *in = w->instr;
    switch (in->op) {
    case opcode_launch:
        return check_launch(w);
    case opcode_copy:
        return check_copy(w);
    case opcode_host:
        return check_host(w);
    case opcode_send:
    case opcode_recv:
        return check_message(w);
    case opcode_forward:
    case opcode_settle:
        return check_relay(w);
    case opcode_wait:
    case opcode_signal:
        if (w->rounds != NONE)
            return instr_fail(w, "a semaphore inside overflow rounds");
        return (in->semaphore < w->variant->semaphores && in->value >= 0) || instr_fail(w, "no such semaphore");
    case opcode_rounds:
        if (w->rounds != NONE || in->exchange == NONE)
            return instr_fail(w, "rounds within rounds, or of nothing");
        w->rounds = in->exchange;
        const struct plan_exchange *e = ROW(w->c->ir, plan_exchange, in->exchange);
        return (e->pool && e->kind == exchange_kind_dispatch) || instr_fail(w, "rounds of something else than a pool");
    case opcode_end:
        if (w->rounds == NONE)
            return instr_fail(w, "an end without rounds");
        w->rounds = NONE;
        return true;
    default:
        return true;
    }
}

static bool walk_stream(struct walk *w, const struct plan_stream *stream, bool (*visit)(struct walk *w))
{
    w->rounds = NONE;
    for (uint32_t i = 0; i < stream->instrs.count; i++) {
        w->number = stream->instrs.first + i;
        w->instr = ROW(w->c->ir, plan_instr, w->number);
        if (!visit(w))
            return false;
    }
    return w->rounds == NONE || instr_fail(w, "rounds without an end");
}

/// Sends of an exchange belong to one stream, receives to one stream: the executor counts them there.
static bool check_message_streams(const struct walk *w)
{
    const struct ir *ir = w->c->ir;
    uint32_t *owner = malloc(((size_t)w->variant->exchanges.count + 1) * 3 * sizeof *owner);
    if (!owner)
        return check_fail(w->c, PLAN_NO_MEMORY);
    for (uint32_t i = 0; i < w->variant->exchanges.count * 3; i++)
        owner[i] = NONE;
    bool good = true;
    for (uint32_t s = 0; s < w->program->streams.count && good; s++) {
        struct rows instrs = ROW(ir, plan_stream, w->program->streams.first + s)->instrs;
        for (uint32_t i = 0; i < instrs.count && good; i++) {
            const struct plan_instr *in = ROW(ir, plan_instr, instrs.first + i);
            if (in->op != opcode_send && in->op != opcode_recv && in->op != opcode_rounds && in->op != opcode_settle)
                continue;
            uint32_t slot = (in->exchange - w->variant->exchanges.first) * 3 + (in->op == opcode_send     ? 0
                                                                                : in->op == opcode_rounds ? 2
                                                                                                          : 1);
            good = owner[slot] == NONE || owner[slot] == s;
            owner[slot] = s;
        }
    }
    free(owner);
    return good || check_fail(w->c, "rank %u: two streams send or receive one exchange", w->program->rank);
}

struct place {
    int64_t offset, end;
    bool control;
};

static int by_offset(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/// Control buffers hold pointers, so they share no byte with anything else.
static bool check_overlap(const struct walk *w)
{
    uint32_t count = 0;
    struct place *places = malloc(((size_t)w->variant->buffers.count + 1) * sizeof *places);
    if (!places)
        return check_fail(w->c, PLAN_NO_MEMORY);
    for (uint32_t i = 0; i < w->variant->buffers.count; i++) {
        const struct plan_extent *x = ROW(w->c->ir, plan_extent, w->program->extents.first + i);
        if (ROW(w->c->ir, plan_buffer, w->variant->buffers.first + i)->kind == buffer_kind_arena && x->bytes)
            places[count++] = (struct place){x->offset, x->offset + x->bytes, w->usage[i].control != CONTROL_NONE};
    }
    qsort(places, count, sizeof *places, by_offset);
    int64_t end = 0, control_end = 0;
    bool good = true;
    for (uint32_t i = 0; i < count; i++) {
        good = good && places[i].offset >= (places[i].control ? end : control_end);
        end = most(end, places[i].end);
        control_end = places[i].control ? most(control_end, places[i].end) : control_end;
    }
    free(places);
    return good || check_fail(w->c, "rank %u: a control buffer shares memory", w->program->rank);
}

static bool check_extents(const struct check *c, const struct plan_variant *v, const struct plan_program *p)
{
    if (p->extents.count != v->buffers.count)
        return check_fail(c, "rank %u: %u extents for %u buffers", p->rank, p->extents.count, v->buffers.count);
    if (!in_range(p->arena_bytes, 0, MOE_MAX_BYTES))
        return check_fail(c, "rank %u: arena of %lld bytes", p->rank, (long long)p->arena_bytes);
    for (uint32_t i = 0; i < p->extents.count; i++) {
        const struct plan_extent *x = ROW(c->ir, plan_extent, p->extents.first + i);
        if (ROW(c->ir, plan_buffer, v->buffers.first + i)->kind == buffer_kind_arena &&
            (x->offset % 64 || !in_range(x->bytes, 0, p->arena_bytes) ||
             !in_range(x->offset, 0, p->arena_bytes - x->bytes)))
            return check_fail(c, "plan_extent %u: outside rank %u's arena", p->extents.first + i, p->rank);
    }
    for (uint32_t i = 0; i < v->exchanges.count; i++) {
        const struct plan_exchange *e = ROW(c->ir, plan_exchange, v->exchanges.first + i);
        const struct plan_extent *x = ROW(c->ir, plan_extent, p->extents.first);
        if (x[e->send - v->buffers.first].bytes < slots_send_bytes(c->ir, e, p->rank, c->info->ranks) ||
            x[e->recv - v->buffers.first].bytes < slots_recv_bytes(c->ir, e, p->rank, c->info->ranks))
            return check_fail(c, "plan_exchange %u: rank %u's buffers do not hold its slots", v->exchanges.first + i,
                              p->rank);
        if (e->node && (x[e->relay - v->buffers.first].bytes < slots_relay_bytes(c->ir, e, p->rank, c->info->ranks) ||
                        (e->kind == exchange_kind_combine &&
                         x[e->sums - v->buffers.first].bytes < slots_sums_bytes(c->ir, e, p->rank, c->info->ranks))))
            return check_fail(c, "plan_exchange %u: rank %u's buffers do not hold what it relays",
                              v->exchanges.first + i, p->rank);
    }
    return true;
}

bool validate_streams(const struct check *c)
{
    uint32_t next = 0;
    for (uint32_t i = 0; i < COUNT(c->ir, plan_stream); i++) {
        const struct plan_stream *stream = ROW(c->ir, plan_stream, i);
        if (stream->instrs.first != next && stream->instrs.count)
            return check_fail(c, "plan_stream %u: its instructions do not follow those of the stream before", i);
        next += stream->instrs.count;
        if (!in_range(stream->priority, -MOE_MAX_PRIORITY, MOE_MAX_PRIORITY))
            return check_fail(c, "plan_stream %u: priority %lld", i, (long long)stream->priority);
    }
    return next == COUNT(c->ir, plan_instr) ||
           check_fail(c, "plan_instr: %u rows, %u of them on streams", COUNT(c->ir, plan_instr), next);
}

bool validate_program(const struct check *c, const struct plan_variant *v, const struct plan_program *p)
{
    if (!check_extents(c, v, p))
        return false;
    if (p->streams.count > MOE_MAX_STREAMS)
        return check_fail(c, "rank %u: %u streams", p->rank, p->streams.count);
    struct usage *usage = calloc((size_t)v->buffers.count + 1, sizeof *usage);
    if (!usage)
        return check_fail(c, PLAN_NO_MEMORY);
    for (uint32_t i = 0; i < v->buffers.count; i++) {
        usage[i].row_dst_bytes = MOE_MAX_BYTES;
        for (int t = 0; t < TABLES_END; t++)
            usage[i].src_bytes[t] = usage[i].dst_bytes[t] = MOE_MAX_BYTES;
        for (int t = 0; t < MOE_MAX_WIRES; t++)
            usage[i].reply_bytes[t] = MOE_MAX_BYTES;
    }
    struct walk w = {.c = c, .variant = v, .program = p, .usage = usage, .rounds = NONE};
    for (uint32_t i = 0; i < v->exchanges.count; i++) {
        const struct plan_exchange *e = ROW(c->ir, plan_exchange, v->exchanges.first + i);
        usage[e->send - v->buffers.first].plain = usage[e->recv - v->buffers.first].plain = true;
        if (e->node)
            usage[e->relay - v->buffers.first].plain = true;
        if (e->node && e->kind == exchange_kind_combine)
            usage[e->sums - v->buffers.first].plain = true;
    }
    bool good = true;
    for (uint32_t s = 0; s < p->streams.count && good; s++)
        good = walk_stream(&w, ROW(c->ir, plan_stream, p->streams.first + s), learn_instr);
    for (uint32_t s = 0; s < p->streams.count && good; s++)
        good = walk_stream(&w, ROW(c->ir, plan_stream, p->streams.first + s), check_instr);
    good = good && check_message_streams(&w) && check_overlap(&w);
    free(usage);
    return good;
}
