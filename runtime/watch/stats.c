// Figures of the last step from its records: how long a rank computed, communicated, did neither; what went over the wire.
// Computed when asked for, so that a step costs nothing more.
#include <string.h>

#include "runtime/exec/session.h"

_Static_assert((int)MOE_AXES == (int)MOE_MAX_AXES, "a plan's axes fit the figures");

/// A change of what a rank does: +1 / -1 launches running, +1 / -1 messages outstanding.
struct change {
    int64_t at;
    int32_t compute, comm;
};
_Static_assert(sizeof(struct change) <= sizeof(struct span_record), "changes use the workspace of records");

struct changes {
    struct change *at;
    uint32_t count, capacity;
};

static void add_interval(struct changes *c, const struct span_record *r, int32_t compute, int32_t comm)
{
    if (c->count + 2 > c->capacity || r->end <= r->begin)
        return;
    c->at[c->count++] = (struct change){r->begin, compute, comm};
    c->at[c->count++] = (struct change){r->end, -compute, -comm};
}

static void sift(struct change *heap, uint32_t root, uint32_t count)
{
    for (uint32_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && heap[child + 1].at > heap[child].at)
            child++;
        if (heap[root].at >= heap[child].at)
            return;
        struct change t = heap[root];
        heap[root] = heap[child];
        heap[child] = t;
    }
}

/// Heap sort: in place, so no allocation after create.
static void sort_changes(struct changes *c)
{
    for (uint32_t i = c->count / 2; i-- > 0;)
        sift(c->at, i, c->count);
    for (uint32_t end = c->count; end-- > 1;) {
        struct change t = c->at[0];
        c->at[0] = c->at[end];
        c->at[end] = t;
        sift(c->at, 0, end);
    }
}

static bool is_compute(const struct plan_instr *in)
{
    return in->op == opcode_launch || in->op == opcode_host;
}

/// Everything rank `number` did: its launches, and messages from it or to it.
static void collect(const struct moe_session *session, uint32_t number, struct changes *c)
{
    c->count = 0;
    for (uint32_t r = 0; r < session->info->ranks; r++) {
        for (uint32_t i = 0; i < session->streams_per_rank; i++) {
            const struct stream *s = &session->ranks[r].streams[i];
            for (uint32_t j = 0; r == number && j < s->spans.count; j++)
                if (is_compute(ROW(session->ir, plan_instr, s->spans.at[j].instr)))
                    add_interval(c, &s->spans.at[j], 1, 0);
            for (uint32_t j = 0; j < s->messages.count; j++)
                if (r == number || s->messages.at[j].peer == number)
                    add_interval(c, &s->messages.at[j], 0, 1);
        }
    }
    sort_changes(c);
}

static void add_rank_times(struct moe_session *session, uint32_t number)
{
    struct changes c = {(struct change *)(void *)session->sorted, 0, session->sorted_capacity};
    collect(session, number, &c);
    int64_t compute = 0, comm = 0, compute_ns = 0, comm_ns = 0, exposed_ns = 0, busy_ns = 0, last = 0;
    for (uint32_t i = 0; i < c.count; i++) {
        int64_t passed = c.at[i].at - last;
        compute_ns += compute ? passed : 0;
        comm_ns += comm ? passed : 0;
        exposed_ns += comm && !compute ? passed : 0;
        busy_ns += comm || compute ? passed : 0;
        compute += c.at[i].compute;
        comm += c.at[i].comm;
        last = c.at[i].at;
    }
    double ranks = session->info->ranks, step = session->step_end > 0 ? (double)session->step_end : 1;
    moe_stats *stats = &session->stats;
    stats->compute_s += (double)compute_ns * 1e-9 / ranks;
    stats->comm_s += (double)comm_ns * 1e-9 / ranks;
    stats->exposed_comm += (double)exposed_ns / step / ranks;
    stats->idle += (step - (double)busy_ns) / step / ranks;
}

/// Bytes of the buffers that base dispatches of the variant send from and receive into, on one rank.
static int64_t slot_bytes(const struct moe_session *session, uint32_t rank)
{
    const struct ir *ir = session->ir;
    const struct plan_variant *v = session->variant;
    const struct plan_program *p = ROW(ir, plan_program, v->programs.first + rank);
    int64_t bytes = 0;
    for (uint32_t b = 0; b < v->buffers.count; b++) {
        bool used = false;
        for (uint32_t i = 0; i < v->exchanges.count && !used; i++) {
            const struct plan_exchange *e = ROW(ir, plan_exchange, v->exchanges.first + i);
            used = e->kind == exchange_kind_dispatch && !e->pool &&
                   (e->send == v->buffers.first + b || e->recv == v->buffers.first + b);
        }
        bytes += used ? ROW(ir, plan_extent, p->extents.first + b)->bytes : 0;
    }
    return bytes;
}

/// Over all ranks.
static moe_wire_loss total_loss(const struct moe_session *session, enum loss_kind kind)
{
    struct loss_sums sum = {0};
    for (uint32_t i = 0; i < session->info->ranks * session->streams_per_rank; i++) {
        uint32_t rank = i / session->streams_per_rank, stream = i % session->streams_per_rank;
        const struct loss_sums *part = &session->ranks[rank].streams[stream].loss[kind];
        sum.rows += part->rows;
        sum.difference += part->difference;
        sum.before += part->before;
        sum.after += part->after;
        sum.product += part->product;
    }
    return loss_of(&sum);
}

static void add_counters(struct moe_session *session, uint32_t number)
{
    moe_stats *stats = &session->stats;
    int64_t sent = 0, crossed[MOE_MAX_AXES] = {0}, slots = slot_bytes(session, number);
    for (uint32_t i = 0; i < session->streams_per_rank; i++) {
        const struct stream *s = &session->ranks[number].streams[i];
        stats->overflowed += s->overflowed;
        stats->dropped += s->dropped;
        stats->rounds += number == 0 ? s->rounds_run : 0; // all ranks run the same
        stats->flops += s->flops;
        for (uint32_t a = 0; a < stats->axes; a++) {
            sent += s->bytes_sent[a];
            crossed[a] += s->bytes_sent[a];
        }
        for (uint32_t e = 0; e < session->info->experts; e++)
            session->expert_load[e] += s->last_routed[e];
    }
    sent /= session->layers;
    for (uint32_t a = 0; a < stats->axes; a++)
        if (crossed[a] / session->layers > stats->axis[a].bytes)
            stats->axis[a].bytes = crossed[a] / session->layers;
    stats->bytes_sent = sent > stats->bytes_sent ? sent : stats->bytes_sent;
    stats->slot_bytes = slots > stats->slot_bytes ? slots : stats->slot_bytes;
}

static double share_beside_experts(const struct moe_session *session)
{
    int64_t experts = 0, beside = 0;
    for (uint32_t i = 0; i < session->info->ranks * session->streams_per_rank; i++) {
        const struct stream *s = &session->ranks[i / session->streams_per_rank].streams[i % session->streams_per_rank];
        experts += s->experts_ns;
        beside += s->beside_ns;
    }
    return beside ? (double)beside / (double)(beside + experts) : 0;
}

static void stats_compute(struct moe_session *session)
{
    memset(session->expert_load, 0, session->info->experts * sizeof *session->expert_load);
    session->stats = (moe_stats){.schedule = ir_text(session->ir, session->variant->name),
                                 .tokens = session->step_tokens,
                                 .step_s = (double)session->step_end * 1e-9,
                                 .expert_load = session->expert_load,
                                 .experts = session->info->experts,
                                 .axes = session->info->axes.count,
                                 .dispatch_loss = total_loss(session, LOSS_DISPATCH),
                                 .combine_loss = total_loss(session, LOSS_COMBINE),
                                 .beside_experts = share_beside_experts(session),
                                 .cpu_level = ir_text(session->ir, session->info->cpu_level)};
    for (uint32_t a = 0; a < session->stats.axes; a++)
        session->stats.axis[a].name = ir_text(session->ir, axis_at(session->ir, a)->name);
    for (uint32_t r = 0; r < session->info->ranks; r++) {
        add_rank_times(session, r);
        add_counters(session, r);
    }
}

moe_status moe_session_stats(const moe_session *session, moe_stats *stats)
{
    if (!session || !stats || !session->variant || session->broken)
        return MOE_INVALID;
    struct moe_session *own =
        (struct moe_session *)(uintptr_t)session; // computed late; the session is the caller's alone
    if (!own->stats.schedule)
        stats_compute(own);
    *stats = own->stats;
    return MOE_OK;
}
