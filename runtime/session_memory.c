// All memory of a session, taken once at create: arenas, packed weights, semaphores, counters, traces. Every size comes
// from the plan.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/open.h"
#include "runtime/plan/limits.h"

// A worker that looks a little longer saves a wake-up per launch, where no stream's thread needs its core: about 0.1 ms,
// from the end of one step's experts to the next one's, so that threads which hand a step over find no core asleep.
enum { SPINS_ALONE = 400000, SPINS_CROWDED = 200 };
enum { HUGE_PAGES_FROM = 8 << 20, ROUND_SPANS = 4096, MESSAGE_SLACK = 1 << 15 };

void *session_alloc(struct moe_session *session, size_t count, size_t size)
{
    if (session->owned_count == session->owned_capacity) {
        uint32_t capacity = session->owned_capacity ? session->owned_capacity * 2 : 64;
        void **more = realloc(session->owned, capacity * sizeof *more);
        if (!more)
            return NULL;
        session->owned = more;
        session->owned_capacity = capacity;
    }
    void *memory = calloc(count ? count : 1, size);
    if (memory)
        session->owned[session->owned_count++] = memory;
    return memory;
}

/// Fresh zero pages of a rank between two that fault.
static void *guarded_map(const struct rank *rank, size_t bytes, void **map, size_t *map_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + page - 1) / page * page + page;
    char *all = mmap(NULL, inner + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return NULL;
    *map = all;
    *map_bytes = inner + 2 * page;
    if (mprotect(all + page, inner, PROT_READ | PROT_WRITE) != 0)
        return NULL;
    if (inner >= HUGE_PAGES_FROM)
        madvise(all + page, inner, MADV_HUGEPAGE);
    placement_pages(&rank->session->placement, rank->number, all + page, inner);
    return all + page + (inner - (bytes + 63) / 64 * 64); // the end touches the guard page, 64-byte aligned
}

static int64_t owned_experts(const struct moe_session *session, uint32_t rank)
{
    return ROW(session->ir, plan_rank, rank)->owned.count;
}

static size_t param_bytes(const struct moe_session *session, uint32_t rank, uint32_t number)
{
    const struct plan_param *param = ROW(session->ir, plan_param, number);
    return (size_t)(param->bytes * plan_param_blocks(param, owned_experts(session, rank)));
}

static size_t weight_bytes(const struct moe_session *session, uint32_t rank)
{
    size_t total = 0;
    for (uint32_t p = 0; p < COUNT(session->ir, plan_param); p++)
        total += param_bytes(session, rank, p) * session->layers;
    return total;
}

/// The largest variant's.
static size_t arena_bytes(const struct moe_session *session, uint32_t rank)
{
    const struct ir *ir = session->ir;
    int64_t bytes = 64;
    for (uint32_t v = 0; v < COUNT(ir, plan_variant); v++) {
        const struct plan_program *p = ROW(ir, plan_program, ROW(ir, plan_variant, v)->programs.first + rank);
        bytes = p->arena_bytes > bytes ? p->arena_bytes : bytes;
    }
    return (size_t)bytes;
}

size_t session_weight_bytes(const struct moe_session *session)
{
    size_t total = 0;
    for (uint32_t r = 0; r < session->info->ranks; r++)
        total += weight_bytes(session, r);
    return total;
}

size_t session_arena_bytes(const struct moe_session *session)
{
    size_t total = 0;
    for (uint32_t r = 0; r < session->info->ranks; r++)
        total += arena_bytes(session, r);
    return total;
}

/// Packed weights of one rank: one block, [layer][param].
static bool build_params(struct rank *rank)
{
    struct moe_session *session = rank->session;
    uint32_t params = COUNT(session->ir, plan_param), layers = session->layers;
    rank->params = session_alloc(session, (size_t)params * layers, sizeof(void *));
    char *at = guarded_map(rank, weight_bytes(session, rank->number), &rank->param_map, &rank->param_map_bytes);
    if (!rank->params || !at)
        return false;
    for (uint32_t l = 0; l < layers; l++) {
        for (uint32_t p = 0; p < params; p++) {
            rank->params[(size_t)l * params + p] = at;
            at += param_bytes(session, rank->number, p);
        }
    }
    return true;
}

/// Every buffer's address is known from then on.
static bool build_arena(struct rank *rank)
{
    struct moe_session *session = rank->session;
    const struct ir *ir = session->ir;
    rank->arena = guarded_map(rank, arena_bytes(session, rank->number), &rank->arena_map, &rank->arena_map_bytes);
    rank->bases = session_alloc(session, COUNT(ir, plan_buffer), sizeof(void *));
    rank->claims = session_alloc(session, COUNT(ir, plan_buffer), sizeof *rank->claims);
    if (!rank->arena || !rank->bases || !rank->claims)
        return false;
    for (uint32_t v = 0; v < COUNT(ir, plan_variant); v++) {
        const struct plan_variant *variant = ROW(ir, plan_variant, v);
        const struct plan_program *p = ROW(ir, plan_program, variant->programs.first + rank->number);
        for (uint32_t i = 0; i < variant->buffers.count; i++) {
            const struct plan_buffer *b = ROW(ir, plan_buffer, variant->buffers.first + i);
            if (b->kind == buffer_kind_arena)
                rank->bases[variant->buffers.first + i] =
                    rank->arena + ROW(ir, plan_extent, p->extents.first + i)->offset;
            else if (b->kind == buffer_kind_param && b->layer < session->layers)
                rank->bases[variant->buffers.first + i] =
                    rank->params[(size_t)b->layer * COUNT(ir, plan_param) + b->param];
        }
    }
    return true;
}

static bool build_exchange(struct rank *rank, uint32_t number)
{
    struct moe_session *session = rank->session;
    const struct plan_exchange *e = ROW(session->ir, plan_exchange, number);
    struct exchange_state *x = &rank->exchanges[number];
    size_t ranks = session->info->ranks;
    int64_t *numbers = session_alloc(session, ranks * 11, sizeof *numbers);
    x->arrived = session_alloc(session, ranks, sizeof *x->arrived);
    if (!numbers || !x->arrived)
        return false;
    int64_t **const arrays[] = {&x->source_offset, &x->target_offset, &x->mine,       &x->ahead,
                                &x->from,          &x->from_first,    &x->sent_rows,  &x->sent_pairs,
                                &x->got_rows,      &x->got_pairs,     &x->awaited};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        *arrays[i] = numbers + i * ranks;
    int64_t at = 0;
    for (uint32_t d = 0; d < ranks; d++) {
        int64_t rows = e->pool ? 0 : slots_pair_rows(session->ir, e, d);
        x->source_offset[d] = at;
        x->target_offset[d] = slots_target_offset(session->ir, e, rank->number, d);
        at += d == rank->number ? 0 : e->header_bytes + rows * slots_record_bytes(session->ir, e, rank->number, d);
    }
    x->combine = x->pool = NONE;
    return true;
}

/// Links every dispatch to its combine and its pool.
static void link_exchanges(struct rank *rank, const struct rows *exchanges)
{
    const struct ir *ir = rank->session->ir;
    for (uint32_t i = exchanges->first; i < exchanges->first + exchanges->count; i++) {
        const struct plan_exchange *e = ROW(ir, plan_exchange, i);
        if (e->kind == exchange_kind_combine && !e->chunk) // further chunks follow it
            rank->exchanges[e->base].combine = i;
        else if (e->kind == exchange_kind_dispatch && e->pool)
            rank->exchanges[e->base].pool = i;
    }
}

/// Records that a stream can fill: one an instruction, with room for overflow rounds.
static bool build_traces(struct stream *s)
{
    struct moe_session *session = s->rank->session;
    const struct ir *ir = session->ir;
    uint32_t spans = 0, messages = 0, peers = session->info->ranks - 1;
    for (uint32_t v = 0; v < COUNT(ir, plan_variant); v++) {
        const struct plan_program *p =
            ROW(ir, plan_program, ROW(ir, plan_variant, v)->programs.first + s->rank->number);
        if (s->index >= p->streams.count)
            continue;
        struct rows instrs = ROW(ir, plan_stream, p->streams.first + s->index)->instrs;
        uint32_t sends = 0, rounds = 0;
        for (uint32_t i = 0; i < instrs.count; i++) {
            uint32_t op = ROW(ir, plan_instr, instrs.first + i)->op;
            sends += op == opcode_send || op == opcode_forward;
            rounds += ROW(ir, plan_instr, instrs.first + i)->op == opcode_rounds;
        }
        uint32_t slack = rounds ? (peers * 64 < MESSAGE_SLACK ? peers * 64 : MESSAGE_SLACK) : 0;
        spans = instrs.count + (rounds ? ROUND_SPANS : 0) > spans ? instrs.count + (rounds ? ROUND_SPANS : 0) : spans;
        messages = sends * peers + slack > messages ? sends * peers + slack : messages;
    }
    s->spans = (struct spans){session_alloc(session, spans, sizeof *s->spans.at), 0, spans, 0};
    s->messages = (struct spans){session_alloc(session, messages, sizeof *s->messages.at), 0, messages, 0};
    session->sorted_capacity += 2 * messages; // a message counts at both ends
    return s->spans.at && s->messages.at;
}

static bool build_stream(struct rank *rank, uint32_t index)
{
    struct moe_session *session = rank->session;
    struct stream *s = &rank->streams[index];
    size_t experts = session->info->experts, owned = (size_t)owned_experts(session, rank->number);
    s->rank = rank;
    s->index = index;
    s->launch.stream = s;
    s->routed = session_alloc(session, experts, sizeof(int64_t));
    s->last_routed = session_alloc(session, experts, sizeof(int64_t));
    s->computed = session_alloc(session, owned * session->info->ranks, sizeof(int64_t));
    s->busy = session_alloc(session, owned, sizeof *s->busy);
    char *scratch = session_alloc(session, session->scratch_bytes + 128, 1);
    s->scratch = scratch ? scratch + (64 - (uintptr_t)scratch % 64) : NULL;
    return s->routed && s->last_routed && s->computed && s->busy && s->scratch && build_traces(s);
}

static bool build_rank(struct moe_session *session, uint32_t number)
{
    struct rank *rank = &session->ranks[number];
    const struct ir *ir = session->ir;
    uint32_t semaphores = 1;
    rank->session = session;
    rank->number = number;
    for (uint32_t v = 0; v < COUNT(ir, plan_variant); v++)
        if (ROW(ir, plan_variant, v)->semaphores > semaphores)
            semaphores = ROW(ir, plan_variant, v)->semaphores;
    rank->semaphores = session_alloc(session, semaphores, sizeof *rank->semaphores);
    rank->exchanges = session_alloc(session, COUNT(ir, plan_exchange), sizeof *rank->exchanges);
    rank->streams = session_alloc(session, session->streams_per_rank, sizeof *rank->streams);
    if (!rank->semaphores || !rank->exchanges || !rank->streams || !build_params(rank) || !build_arena(rank))
        return false;
    // Only exchanges of variants have been validated; others are never run.
    for (uint32_t v = 0; v < COUNT(ir, plan_variant); v++)
        for (uint32_t i = 0; i < ROW(ir, plan_variant, v)->exchanges.count; i++)
            if (!build_exchange(rank, ROW(ir, plan_variant, v)->exchanges.first + i))
                return false;
    for (uint32_t v = 0; v < COUNT(ir, plan_variant); v++)
        link_exchanges(rank, &ROW(ir, plan_variant, v)->exchanges);
    for (uint32_t i = 0; i < session->streams_per_rank; i++)
        if (!build_stream(rank, i))
            return false;
    return true;
}

/// A stream's priority: the highest that any variant gives it.
static int64_t priority_of(const struct moe_session *session, uint32_t index)
{
    const struct ir *ir = session->ir;
    int64_t best = INT64_MIN;
    for (uint32_t v = 0; v < COUNT(ir, plan_variant); v++) {
        struct rows streams = ROW(ir, plan_program, ROW(ir, plan_variant, v)->programs.first)->streams;
        if (index < streams.count && ROW(ir, plan_stream, streams.first + index)->priority > best)
            best = ROW(ir, plan_stream, streams.first + index)->priority;
    }
    return best;
}

/// Ranks whose links are emulated stand for machines: they do not help each other, where each can have threads.
static uint32_t team_count(const struct moe_session *session)
{
    bool apart = session->options.emulate_links && session->options.threads % session->info->ranks == 0;
    return apart ? session->info->ranks : 1;
}

static bool place(struct moe_session *session)
{
    struct placement *p = &session->placement;
    enum bind bind = BIND_NONE;
    bind_named(session->options.bind, &bind);
    return topology_read(&p->topology) &&
           placement_make(p, session->info->ranks, session->options.threads, team_count(session), bind);
}

static bool order_ranks(struct moe_session *session)
{
    struct pool *pool = &session->pool;
    uint32_t *orders = session_alloc(session, (size_t)pool->worker_count * pool->group, sizeof *orders);
    for (uint32_t i = 0; i < pool->worker_count && orders; i++, orders += pool->group) {
        placement_order(&session->placement, pool->group, i, orders);
        pool->workers[i].order = orders;
    }
    return orders != NULL;
}

/// Launch slots in order of priority, as the pool looks for work.
static bool build_pool(struct moe_session *session)
{
    struct pool *pool = &session->pool;
    uint32_t count = session->info->ranks * session->streams_per_rank;
    pool->helped = count == 1;
    pool->worker_count = session->options.threads - pool->helped;
    pool->placement = &session->placement;
    uint32_t busy = pool->worker_count + count;
    pool->idle_spins = busy <= machine_processors() ? SPINS_ALONE : SPINS_CROWDED;
    pool->workers = session_alloc(session, pool->worker_count, sizeof *pool->workers);
    pool->slots = session_alloc(session, count, sizeof *pool->slots);
    pool->teams = team_count(session);
    pool->urgent = session_alloc(session, pool->teams, sizeof *pool->urgent);
    if (!pool->workers || !pool->slots || !pool->urgent)
        return false;
    for (uint32_t i = 0; i < pool->worker_count; i++) {
        char *scratch = session_alloc(session, session->scratch_bytes + 128, 1);
        if (!scratch)
            return false;
        pool->workers[i].scratch = scratch + (64 - (uintptr_t)scratch % 64);
    }
    pool->group = session->info->ranks;
    if (!order_ranks(session))
        return false;
    uint32_t order[MOE_MAX_STREAMS];
    for (uint32_t i = 0; i < session->streams_per_rank; i++) {
        uint32_t at = i;
        for (; at > 0 && priority_of(session, order[at - 1]) < priority_of(session, i); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    for (uint32_t i = 0; i < session->streams_per_rank; i++)
        for (uint32_t r = 0; r < session->info->ranks; r++) {
            struct launch *launch = &session->ranks[r].streams[order[i]].launch;
            launch->team = r % pool->teams;
            pool->slots[pool->slot_count++] = launch;
        }
    return true;
}

/// Which ranks hold each expert.
static bool list_holders(struct moe_session *session)
{
    const struct ir *ir = session->ir;
    uint32_t experts = session->info->experts, rows = COUNT(ir, plan_owner);
    session->owner_row = session_alloc(session, experts, sizeof *session->owner_row);
    session->holder_first = session_alloc(session, (size_t)experts + 2, sizeof *session->holder_first);
    session->holders = session_alloc(session, rows, sizeof *session->holders);
    if (!session->owner_row || !session->holder_first || !session->holders)
        return false;
    uint32_t *first = session->holder_first + 1; // ends up one further on
    for (uint32_t i = 0; i < rows; i++)
        first[ROW(ir, plan_owner, i)->expert + 1]++;
    for (uint32_t e = 0; e < experts; e++)
        first[e + 1] += first[e];
    for (uint32_t i = 0; i < rows; i++) {
        const struct plan_owner *o = ROW(ir, plan_owner, i);
        session->holders[first[o->expert]++] = i;
        if (o->home == o->rank)
            session->owner_row[o->expert] = i;
    }
    return true;
}

bool session_build(struct moe_session *session)
{
    const struct ir *ir = session->ir;
    if (session->device == &device_cpu && !place(session))
        return false;
    session->streams_per_rank = 1;
    for (uint32_t v = 0; v < COUNT(ir, plan_variant); v++) {
        struct rows programs = ROW(ir, plan_variant, v)->programs;
        for (uint32_t p = 0; p < programs.count; p++)
            if (ROW(ir, plan_program, programs.first + p)->streams.count > session->streams_per_rank)
                session->streams_per_rank = ROW(ir, plan_program, programs.first + p)->streams.count;
    }
    for (uint32_t k = 0; k < COUNT(ir, plan_kernel); k++)
        if ((size_t)ROW(ir, plan_kernel, k)->scratch_bytes > session->scratch_bytes)
            session->scratch_bytes = (size_t)ROW(ir, plan_kernel, k)->scratch_bytes;
    session->ranks = session_alloc(session, session->info->ranks, sizeof *session->ranks);
    session->expert_load = session_alloc(session, session->info->experts, sizeof *session->expert_load);
    session->kernels = session_alloc(session, COUNT(ir, plan_kernel), sizeof *session->kernels);
    session->loaded_layers = session_alloc(session, session->layers, sizeof *session->loaded_layers);
    if (!session->ranks || !session->expert_load || !session->kernels || !session->loaded_layers || !list_holders(session))
        return false;
    memcpy(session->kernels, session->plan->kernels, COUNT(ir, plan_kernel) * sizeof *session->kernels);
    for (uint32_t r = 0; r < session->info->ranks; r++)
        if (!build_rank(session, r))
            return false;
    for (uint32_t r = 0; r < session->info->ranks; r++)
        for (uint32_t i = 0; i < session->streams_per_rank; i++)
            session->sorted_capacity += session->ranks[r].streams[i].spans.capacity;
    session->sorted_capacity = 2 * session->sorted_capacity + 2;
    session->sorted = session_alloc(session, session->sorted_capacity, sizeof *session->sorted);
    return session->sorted && build_pool(session);
}

void session_release(struct moe_session *session)
{
    for (uint32_t r = 0; session->ranks && r < session->info->ranks; r++) {
        struct rank *rank = &session->ranks[r];
        if (rank->arena_map)
            munmap(rank->arena_map, rank->arena_map_bytes);
        if (rank->param_map)
            munmap(rank->param_map, rank->param_map_bytes);
    }
    for (uint32_t i = 0; i < session->owned_count; i++)
        free(session->owned[i]);
    free(session->owned);
    placement_free(&session->placement);
    free(session);
}
