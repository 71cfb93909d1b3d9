// One instruction of a stream: done, or blocked on what. Devices drive this function from threads (cpu) or from an event
// loop with a virtual clock (sim); it knows neither.
#include <string.h>

#include "control.h"
#include "session.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MOE_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define MOE_TSAN 1
#endif
#ifdef MOE_TSAN
void __tsan_read_range(void *address, unsigned long bytes);
void __tsan_write_range(void *address, unsigned long bytes);
#endif

const struct plan_instr *stream_instr(const struct stream *s)
{
    return ROW(s->rank->session->ir, plan_instr, s->plan->instrs.first + s->pc);
}

const char *stream_where(const struct stream *s, char *text, size_t size)
{
    const struct ir *ir = s->rank->session->ir;
    const struct plan_instr *in = stream_instr(s);
    char rank[RANK_TEXT];
    snprintf(text, size, "%s, stream %s, instruction %u `%s` (%s)", rank_text(ir, s->rank->number, rank),
             ir_text(ir, s->plan->name), s->pc, ir_text(ir, in->label), opcode_words[in->op]);
    return text;
}

void part_range(const struct plan_part *part, int64_t tokens, int64_t *first, int64_t *count)
{
    *first = tokens * part->begin / part->total;
    *count = tokens * part->end / part->total - *first;
}

struct span_record *spans_add(struct spans *spans, struct span_record record)
{
    if (spans->count == spans->capacity) {
        spans->dropped++;
        return NULL;
    }
    spans->at[spans->count] = record;
    return &spans->at[spans->count++];
}

struct span_record passage_record(const struct passage *p, int64_t begin)
{
    return (struct span_record){.begin = begin,
                                .end = begin,
                                .bytes = p->bytes,
                                .peer = p->peer,
                                .instr = p->stream->plan->instrs.first + p->stream->pc};
}

static int64_t extent_bytes(const struct rank *rank, uint32_t buffer)
{
    const struct ir *ir = rank->session->ir;
    const struct plan_variant *v = rank->session->variant;
    const struct plan_program *p = ROW(ir, plan_program, v->programs.first + rank->number);
    return ROW(ir, plan_extent, p->extents.first + buffer - v->buffers.first)->bytes;
}

bool rank_holds(const struct rank *rank, uint32_t buffer, const char *at, int64_t bytes)
{
    int64_t begin = at - (const char *)rank->bases[buffer], size = extent_bytes(rank, buffer);
    return begin >= 0 && begin <= size && bytes >= 0 && bytes <= size - begin;
}

/// An argument's memory: address, and how many bytes of it this instruction may use.
struct region {
    char *at;
    int64_t bytes;
};

static struct region resolve(const struct stream *s, const struct plan_arg *arg, int64_t first, int64_t count)
{
    const struct rank *rank = s->rank;
    const struct ir *ir = rank->session->ir;
    const struct plan_buffer *b = ROW(ir, plan_buffer, arg->buffer);
    struct region r = {rank->bases[arg->buffer], extent_bytes(rank, arg->buffer)};
    if (b->kind == buffer_kind_input || b->kind == buffer_kind_output) {
        r.at = b->kind == buffer_kind_input ? (char *)(uintptr_t)rank->step->in : rank->step->out;
        r.bytes = rank->step->tokens * b->row_bytes;
    } else if (b->kind == buffer_kind_param) {
        const struct plan_param *param = ROW(ir, plan_param, b->param);
        r.bytes = param->bytes * plan_param_blocks(param, ROW(ir, plan_rank, rank->number)->owned.count);
    }
    if (arg->slice != NONE && r.at) {
        uint32_t whole = b->kind == buffer_kind_arena ? ROW(ir, plan_part, arg->slice)->within : NONE;
        int64_t start = 0, all;
        if (whole != NONE)
            part_range(ROW(ir, plan_part, whole), rank->step->tokens, &start, &all);
        r.at += (first - start) * b->row_bytes;
        r.bytes = count * b->row_bytes;
    }
    return r;
}

/// Of arrived slots and replies, experts in pieces touch those of their rows alone: a built-in, which ThreadSanitizer sees.
static bool is_touched_whole(const struct ir *ir, const struct plan_instr *in, uint32_t argument)
{
    bool fan_out = in->op == opcode_launch && ROW(ir, plan_kernel, in->kernel)->role == kernel_role_fan_out;
    return !fan_out || !ROW(ir, plan_exchange, in->exchange)->runs.count || (argument != FAN_ARRIVED && argument != FAN_REPLY);
}

/// Before a launch: a buffer whose lifetime begins is filled with NaN, and ThreadSanitizer, which does not see generated
/// code, is told what the launch touches.
static void declare(const struct stream *s, const struct plan_arg *arg, struct region r, bool whole)
{
    (void)whole;
    const struct plan_buffer *b = ROW(s->rank->session->ir, plan_buffer, arg->buffer);
    if (s->rank->session->options.poison && arg->first && b->kind == buffer_kind_arena && b->dtype != dtype_none)
        memset(r.at, 0xff, (size_t)r.bytes);
#ifdef MOE_TSAN
    if (whole && r.at && r.bytes && b->kind != buffer_kind_param) {
        if (arg->access == access_read)
            __tsan_read_range(r.at, (unsigned long)r.bytes);
        else
            __tsan_write_range(r.at, (unsigned long)r.bytes);
    }
#endif
}

/// Units of the experts that have rows. With few tokens most have none, and pieces of work are cut by what is left to do.
static int64_t busy_units(struct stream *s, const struct plan_kernel *k, const struct moe_pairs_head *pairs)
{
    int64_t busy = 0, owned = ROW(s->rank->session->ir, plan_rank, s->rank->number)->owned.count;
    for (int64_t e = 0; pairs->rows && pairs->experts <= owned && e < pairs->experts; e++)
        if (pairs->expert_first[e + 1] > pairs->expert_first[e])
            s->busy[busy++] = (int32_t)e;
    if (busy == 0 || busy == pairs->experts)
        return pairs->rows ? k->unit_count * pairs->experts : 0;
    s->launch.groups = s->busy;
    s->launch.group_units = k->unit_count;
    return k->unit_count * busy;
}

/// Units of a launch; control data says how many rows there are.
static int64_t count_units(struct stream *s, const struct plan_kernel *k, const struct moe_kargs *a)
{
    const struct moe_pairs_head *pairs = a->p[0];
    const struct moe_bins_head *bins = a->p[0];
    s->launch.groups = NULL;
    switch (k->role) {
    case kernel_role_copy_rows:
        return ((const struct moe_row_table *)a->p[COPY_CONTROL])[k->n[5]].rows;
    case kernel_role_sum_rows:
        return ((const struct moe_sums_head *)a->p[SUM_CONTROL])->sums.rows;
    case kernel_role_mlp_up:
        return busy_units(s, k, pairs);
    case kernel_role_mlp_down:
        return pairs->rows ? k->unit_count : 0;
    case kernel_role_merge:
        return bins->tokens < a->n[0] ? bins->tokens : a->n[0];
    default:
        return k->unit == work_unit_tokens ? a->n[0] : k->unit == work_unit_fixed ? k->unit_count : 1;
    }
}

/// Useful FLOPs: the router's product, and every pair's products.
static double count_flops(const struct stream *s, const struct plan_instr *in, const struct plan_kernel *k,
                          const struct moe_kargs *a)
{
    const struct ir *ir = s->rank->session->ir;
    if (k->role == kernel_role_route)
        return 2.0 * (double)a->n[0] * (double)k->n[0] * (double)k->n[1];
    if (k->role != kernel_role_mlp_up && k->role != kernel_role_mlp_down)
        return 0;
    const struct moe_pairs_head *h = a->p[0];
    const struct plan_buffer *b = ROW(ir, plan_buffer, ROW(ir, plan_arg, in->args.first + UP_W)->buffer);
    if (!h->expert_first || b->kind != buffer_kind_param)
        return 0;
    const struct plan_param *param = ROW(ir, plan_param, b->param);
    return 2.0 * (double)h->expert_first[h->experts] * (double)param->rows * (double)param->cols;
}

// Router and limit name the routes at other places among their arguments.
static void *ids_of(const struct plan_kernel *k, const struct moe_kargs *a)
{
    return a->p[k->role == kernel_role_limit ? LIMIT_IDS : ROUTE_IDS];
}

static void *weights_of(const struct plan_kernel *k, const struct moe_kargs *a)
{
    return a->p[k->role == kernel_role_limit ? LIMIT_WEIGHTS : ROUTE_WEIGHTS];
}

/// Routes that the caller gives instead of the router's, and the copy of routes that the caller wants.
static bool use_given(const struct stream *s, const struct plan_kernel *k, const struct moe_kargs *a)
{
    const moe_step *step = s->rank->step;
    int64_t choices = s->rank->session->info->choices, first = a->n[1] * choices, count = a->n[0] * choices;
    if (!step->given_ids)
        return false;
    if (count) {
        memcpy(ids_of(k, a), step->given_ids + first, (size_t)count * sizeof(int32_t));
        memcpy(weights_of(k, a), step->given_weights + first, (size_t)count * sizeof(float));
    }
    return true;
}

static void give_routes(const struct stream *s, const struct plan_instr *in, const struct plan_kernel *k,
                        const struct moe_kargs *a)
{
    const moe_step *step = s->rank->step;
    int64_t choices = s->rank->session->info->choices, first = a->n[1] * choices, count = a->n[0] * choices;
    if (in->layer != s->rank->session->layers - 1 || !count)
        return;
    if (step->topk_ids)
        memcpy(step->topk_ids + first, ids_of(k, a), (size_t)count * sizeof(int32_t));
    if (step->topk_weights)
        memcpy(step->topk_weights + first, weights_of(k, a), (size_t)count * sizeof(float));
}

static bool (*const builtins[kernel_role_words_count])(struct stream *, const struct moe_kargs *) = {
    [kernel_role_bin] = builtin_bin,         [kernel_role_bin_round] = builtin_bin_round,
    [kernel_role_fan_out] = builtin_fan_out, [kernel_role_fold] = builtin_fold,
    [kernel_role_dense] = builtin_dense,     [kernel_role_limit] = builtin_limit,
};

static enum stepped do_launch(struct stream *s, const struct plan_instr *in, struct blocked *on)
{
    (void)on;
    const struct moe_session *session = s->rank->session;
    const struct plan_kernel *k = ROW(session->ir, plan_kernel, in->kernel);
    struct launch *l = &s->launch;
    struct moe_kargs *a = &l->args;
    *a = (struct moe_kargs){.n = {[2] = s->rank->number, [3] = in->layer}};
    part_range(ROW(session->ir, plan_part, in->part), s->rank->step->tokens, &a->n[1], &a->n[0]);
    for (uint32_t i = 0; i < in->args.count; i++) {
        const struct plan_arg *arg = ROW(session->ir, plan_arg, in->args.first + i);
        struct region r = resolve(s, arg, a->n[1], a->n[0]);
        a->p[i] = r.at;
        declare(s, arg, r, is_touched_whole(session->ir, in, i));
    }
    uint32_t chunk = in->exchange == NONE ? 0 : ROW(session->ir, plan_exchange, in->exchange)->chunk;
    bool copies = k->role == kernel_role_copy_rows && in->exchange != NONE,
         packs = copies && ROW(session->ir, plan_exchange, in->exchange)->kind == exchange_kind_dispatch;
    if (packs || (k->role == kernel_role_merge && in->exchange != NONE))
        a->p[0] = moe_chunk_head(a->p[0], chunk);
    if (k->role == kernel_role_sum_rows || (copies && !packs))
        a->p[SUM_CONTROL] = moe_sums_chunk(a->p[SUM_CONTROL], chunk);
    if (!control_claim(s, in))
        return STEP_FAILED;
    bool routes = k->role == kernel_role_route || k->role == kernel_role_limit, given = routes && use_given(s, k, a);
    l->builtin = builtins[k->role];
    l->fn = session->kernels[in->kernel];
    l->units = given ? 0 : count_units(s, k, a);
    l->grain = k->grain > 0 ? k->grain : 1;
    l->urgent = k->role != kernel_role_mlp_up && k->role != kernel_role_mlp_down; // short, and messages wait for it
    if (!l->urgent) { // every worker several pieces, so that none has much left when the others are done
        int64_t share = l->units / (4 * (int64_t)pool_hands(&session->pool));
        l->grain = l->grain <= share ? l->grain : share > 0 ? share : 1;
    }
    atomic_store_explicit(&l->spent, 0, memory_order_relaxed);
    s->flops += given ? 0 : count_flops(s, in, k, a);
    if (!session->device->launch(s, l, l->units ? in->cost : 0) || session_failed(session))
        return STEP_FAILED;
    *(l->urgent ? &s->beside_ns : &s->experts_ns) += atomic_load_explicit(&l->spent, memory_order_relaxed);
    if (routes)
        give_routes(s, in, k, a);
    enum loss_kind kind;
    if (session->measures_loss && loss_concerns(k, &kind))
        loss_add(&s->loss[kind], k, (const struct moe_row_table *)a->p[COPY_CONTROL] + k->n[5]);
    control_release(s, in);
    return STEP_DONE;
}

static enum stepped do_copy(struct stream *s, const struct plan_instr *in, struct blocked *on)
{
    (void)on;
    const struct ir *ir = s->rank->session->ir;
    int64_t first, count;
    part_range(ROW(ir, plan_part, in->part), s->rank->step->tokens, &first, &count);
    const struct plan_arg *to = ROW(ir, plan_arg, in->args.first), *from = to + 1;
    struct region dst = resolve(s, to, first, count), src = resolve(s, from, first, count);
    if (count)
        memmove(dst.at, src.at, (size_t)(count * ROW(ir, plan_buffer, to->buffer)->row_bytes));
    return STEP_DONE;
}

static enum stepped do_send(struct stream *s, const struct plan_instr *in, struct blocked *on)
{
    (void)on;
    return s->rank->session->transport->send(s, in->exchange);
}

static enum stepped do_recv(struct stream *s, const struct plan_instr *in, struct blocked *on)
{
    return s->rank->session->transport->recv(s, in->exchange, on);
}

static enum stepped do_forward(struct stream *s, const struct plan_instr *in, struct blocked *on)
{
    (void)on;
    return s->rank->session->transport->forward(s, in->exchange);
}

static enum stepped do_settle(struct stream *s, const struct plan_instr *in, struct blocked *on)
{
    return s->rank->session->transport->settle(s, in->exchange, on);
}

static enum stepped do_wait(struct stream *s, const struct plan_instr *in, struct blocked *on)
{
    struct event *e = &s->rank->semaphores[in->semaphore];
    if (event_reached(e, (uint64_t)in->value))
        return STEP_DONE;
    on->event = e;
    on->at_least = (uint64_t)in->value;
    snprintf(on->what, sizeof on->what, "semaphore %u to reach %lld (it is %llu)", in->semaphore, (long long)in->value,
             (unsigned long long)atomic_load(&e->value));
    return STEP_BLOCKED;
}

static enum stepped do_signal(struct stream *s, const struct plan_instr *in, struct blocked *on)
{
    (void)on;
    event_raise(&s->rank->semaphores[in->semaphore], (uint64_t)in->value);
    return STEP_DONE;
}

/// Enters the loop, or jumps to its end when nothing overflowed anywhere.
static enum stepped do_rounds(struct stream *s, const struct plan_instr *in, struct blocked *on)
{
    (void)on;
    struct moe_session *session = s->rank->session;
    const struct plan_exchange *e = ROW(session->ir, plan_exchange, in->exchange);
    s->loop = s->pc;
    s->round = 0;
    s->rounds = s->rank->exchanges[e->base].rounds;
    if (s->rounds > e->max_rounds) {
        session_fail(session, MOE_OVERFLOW, "`%s` needs %lld overflow rounds, the plan bounds them by %u",
                     ir_text(session->ir, e->name), (long long)s->rounds, e->max_rounds);
        return STEP_FAILED;
    }
    s->rounds_run += s->rounds;
    while (!s->rounds && stream_instr(s)->op != opcode_end)
        s->pc++; // validation has seen the end
    return STEP_DONE;
}

static enum stepped do_end(struct stream *s, const struct plan_instr *in, struct blocked *on)
{
    (void)in, (void)on;
    if (++s->round < s->rounds)
        s->pc = s->loop;
    return STEP_DONE;
}

/// The embedding program's function, run where a built-in kernel would.
static bool call_host(struct stream *s, const struct moe_kargs *a)
{
    const struct moe_session *session = s->rank->session;
    const struct plan_instr *in = stream_instr(s);
    const struct host_function *host = session_host(session, in);
    uint32_t inputs = in->args.count - 1;
    int64_t row_bytes[MOE_MAX_ARGS];
    for (uint32_t i = 0; i < in->args.count; i++)
        row_bytes[i] = ROW(session->ir, plan_buffer, ROW(session->ir, plan_arg, in->args.first + i)->buffer)->row_bytes;
    moe_extern_call call = {.layer = session->loaded_layers[in->layer],
                            .rank = s->rank->number,
                            .first = a->n[1],
                            .count = a->n[0],
                            .inputs = inputs,
                            .in = (const void *const *)a->p,
                            .out = a->p[inputs],
                            .row_bytes = row_bytes};
    int result = host->fn(host->user, &call);
    char where[256];
    return !result || session_fail(s->rank->session, MOE_BAD_INPUT, "%s: extern stage `%s` returned %d",
                                   stream_where(s, where, sizeof where), host->name, result);
}

static enum stepped do_host(struct stream *s, const struct plan_instr *in, struct blocked *on)
{
    (void)on;
    const struct moe_session *session = s->rank->session;
    struct launch *l = &s->launch;
    l->args = (struct moe_kargs){.n = {[2] = s->rank->number, [3] = in->layer}};
    part_range(ROW(session->ir, plan_part, in->part), s->rank->step->tokens, &l->args.n[1], &l->args.n[0]);
    for (uint32_t i = 0; i < in->args.count; i++) {
        const struct plan_arg *arg = ROW(session->ir, plan_arg, in->args.first + i);
        struct region r = resolve(s, arg, l->args.n[1], l->args.n[0]);
        l->args.p[i] = r.at;
        declare(s, arg, r, is_touched_whole(session->ir, in, i));
    }
    l->builtin = call_host;
    l->fn = NULL;
    l->units = l->args.n[0] ? 1 : 0;
    l->grain = 1;
    l->urgent = false;
    bool ran = session->device->launch(s, l, l->units ? in->cost : 0) && !session_failed(session);
    return ran ? STEP_DONE : STEP_FAILED;
}

/// The counters are kept all along and compared when every rank is at its end (conservation.c).
static enum stepped do_count(struct stream *s, const struct plan_instr *in, struct blocked *on)
{
    (void)s, (void)in, (void)on;
    return STEP_DONE;
}

static enum stepped (*const handlers[opcode_words_count])(struct stream *, const struct plan_instr *,
                                                          struct blocked *) = {
    [opcode_launch] = do_launch, [opcode_copy] = do_copy,       [opcode_send] = do_send,
    [opcode_recv] = do_recv,     [opcode_wait] = do_wait,       [opcode_signal] = do_signal,
    [opcode_rounds] = do_rounds, [opcode_end] = do_end,         [opcode_host] = do_host,
    [opcode_count] = do_count,   [opcode_forward] = do_forward, [opcode_settle] = do_settle,
};

enum stepped executor_step(struct stream *s, struct blocked *on)
{
    if (!s->plan || s->pc >= s->plan->instrs.count)
        return STEP_FINISHED;
    const struct device_ops *device = s->rank->session->device;
    if (s->began < 0)
        s->began = device->now(s);
    const struct plan_instr *in = stream_instr(s);
    enum stepped result = handlers[in->op](s, in, on);
    if (result != STEP_DONE)
        return result;
    if (in->op == opcode_launch || in->op == opcode_host || in->op == opcode_copy || in->op == opcode_send ||
        in->op == opcode_recv || in->op == opcode_forward || in->op == opcode_settle)
        spans_add(&s->spans,
                  (struct span_record){
                      .begin = s->began, .end = device->now(s), .instr = s->plan->instrs.first + s->pc, .peer = NONE});
    atomic_fetch_add_explicit(&s->progress, 1, memory_order_relaxed);
    s->began = -1;
    s->pc++;
    return STEP_DONE;
}

void stream_begin_step(struct stream *s)
{
    struct moe_session *session = s->rank->session;
    const struct plan_program *p = ROW(session->ir, plan_program, session->variant->programs.first + s->rank->number);
    size_t experts = session->info->experts * sizeof(int64_t);
    s->plan = s->index < p->streams.count ? ROW(session->ir, plan_stream, p->streams.first + s->index) : NULL;
    s->pc = s->loop = 0;
    s->began = -1;
    s->round = s->rounds = s->overflowed = s->rounds_run = s->dropped = 0;
    memset(s->bytes_sent, 0, sizeof s->bytes_sent);
    memset(s->loss, 0, sizeof s->loss);
    s->flops = s->time = 0;
    s->experts_ns = s->beside_ns = 0;
    s->finished = false;
    s->blocked_on = NULL;
    s->spans.count = s->messages.count = s->spans.dropped = s->messages.dropped = 0;
    memset(s->routed, 0, experts);
    memset(s->last_routed, 0, experts);
    memset(s->computed, 0,
           session->info->ranks * ROW(session->ir, plan_rank, s->rank->number)->owned.count * sizeof(int64_t));
}
