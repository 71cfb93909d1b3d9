// See brute_force.h. Kept simple: a node per rank and instruction, the transitive closure as a bit matrix, a list
// of accesses, all pairs.
#include "tests/lower/brute_force.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/plan/kernels.h"

struct access_record {
    uint32_t node, instr, rank; // rank: whose memory
    uint32_t buffer, slice;
    bool write, remote;
    uint32_t puts; // exchange with relays whose messages the access puts into slots, or NONE
};

struct model {
    const struct ir *plan;
    const struct plan_variant *variant;
    const struct plan_program *programs;
    uint32_t ranks, first, instrs; // plan_instr rows of the program
    bool rounds;                   // overflow rounds run once, else never
    bool *absent;                  // by instruction: inside rounds that do not run
    uint32_t *before;              // by node: up to 2 + 2 * ranks predecessors, NONE-filled
    uint64_t *after;               // by node: bit per node that starts after it
    uint32_t nodes, words, slots;
    struct access_record *accesses;
    uint32_t access_count, access_capacity;
};

static const struct plan_instr *instr_at(const struct model *m, uint32_t number)
{
    return ROW(m->plan, plan_instr, m->first + number);
}

static uint32_t node_of(const struct model *m, uint32_t rank, uint32_t number)
{
    return rank * m->instrs + number;
}

static void add_before(struct model *m, uint32_t node, uint32_t before)
{
    for (uint32_t i = 0; i < m->slots; i++)
        if (m->before[node * m->slots + i] == NONE) {
            m->before[node * m->slots + i] = before;
            return;
        }
}

static uint32_t find(const struct model *m, uint32_t op, uint32_t exchange, uint32_t semaphore, int64_t value)
{
    for (uint32_t i = 0; i < m->instrs; i++) {
        const struct plan_instr *in = instr_at(m, i);
        if (in->op == op &&
            (op == opcode_signal ? in->semaphore == semaphore && in->value == value : in->exchange == exchange))
            return i;
    }
    return NONE;
}

// Two hops: ranks of one node, and ranks of one position in different nodes.

static bool is_near(const struct plan_exchange *e, uint32_t a, uint32_t b)
{
    return e->node && a != b && a / e->node == b / e->node;
}

static bool is_alike(const struct plan_exchange *e, uint32_t a, uint32_t b)
{
    return e->node && a != b && a % e->node == b % e->node;
}

/// Which instruction of rank q an arrival on rank r waits for; NONE: none.
static uint32_t awaited(const struct plan_exchange *e, uint32_t op, uint32_t r, uint32_t q)
{
    bool dispatch = e->kind == exchange_kind_dispatch;
    if (r == q || !e->node) // a recv waits for the own send too
        return opcode_send;
    if (op == opcode_settle)
        return !is_near(e, r, q) ? NONE : dispatch ? (uint32_t)opcode_forward : (uint32_t)opcode_send;
    if (is_near(e, r, q))
        return opcode_send;
    return !is_alike(e, r, q) ? NONE : dispatch ? (uint32_t)opcode_send : (uint32_t)opcode_forward;
}

static void add_arrivals(struct model *m, uint32_t rank, uint32_t number)
{
    const struct plan_instr *in = instr_at(m, number);
    const struct plan_exchange *e = ROW(m->plan, plan_exchange, in->exchange);
    for (uint32_t q = 0; q < m->ranks; q++) {
        uint32_t op = awaited(e, in->op, rank, q);
        if (op != NONE)
            add_before(m, node_of(m, rank, number), node_of(m, q, find(m, op, in->exchange, 0, 0)));
    }
}

static void add_edges(struct model *m)
{
    for (uint32_t s = 0; s < m->programs->streams.count; s++) {
        struct rows rows = ROW(m->plan, plan_stream, m->programs->streams.first + s)->instrs;
        uint32_t last = NONE;
        bool inside = false;
        for (uint32_t i = 0; i < rows.count; i++) {
            uint32_t number = rows.first + i - m->first;
            const struct plan_instr *in = instr_at(m, number);
            m->absent[number] = inside && in->op != opcode_end && !m->rounds;
            inside = in->op == opcode_rounds || (inside && in->op != opcode_end);
            if (m->absent[number])
                continue;
            for (uint32_t r = 0; r < m->ranks; r++) {
                if (last != NONE)
                    add_before(m, node_of(m, r, number), node_of(m, r, last));
                if (in->op == opcode_wait)
                    add_before(m, node_of(m, r, number),
                               node_of(m, r, find(m, opcode_signal, NONE, in->semaphore, in->value)));
                if (in->op == opcode_recv || in->op == opcode_settle)
                    add_arrivals(m, r, number);
            }
            last = number;
        }
    }
}

static void visit(struct model *m, uint32_t node, uint8_t *state, uint32_t *order, uint32_t *count)
{
    state[node] = 1;
    for (uint32_t i = 0; i < m->slots; i++) {
        uint32_t before = m->before[node * m->slots + i];
        if (before != NONE && !state[before])
            visit(m, before, state, order, count);
    }
    order[(*count)++] = node;
}

static void close_order(struct model *m)
{
    uint8_t *state = calloc(m->nodes, 1);
    uint32_t *order = calloc(m->nodes, sizeof *order), count = 0;
    for (uint32_t n = 0; n < m->nodes; n++)
        if (!state[n])
            visit(m, n, state, order, &count);
    while (count-- > 0) {
        uint32_t node = order[count];
        for (uint32_t i = 0; i < m->slots; i++) {
            uint32_t before = m->before[node * m->slots + i];
            if (before == NONE)
                continue;
            uint64_t *to = m->after + (size_t)before * m->words, *from = m->after + (size_t)node * m->words;
            for (uint32_t w = 0; w < m->words; w++)
                to[w] |= from[w];
            to[node / 64] |= UINT64_C(1) << node % 64;
        }
    }
    free(state);
    free(order);
}

static bool is_before(const struct model *m, uint32_t a, uint32_t b)
{
    return m->after[(size_t)a * m->words + b / 64] >> b % 64 & 1;
}

static void add_access(struct model *m, uint32_t rank, uint32_t number, uint32_t memory, uint32_t buffer,
                       uint32_t slice, bool write)
{
    if (m->access_count == m->access_capacity) {
        m->access_capacity = m->access_capacity ? m->access_capacity * 2 : 1024;
        m->accesses = realloc(m->accesses, m->access_capacity * sizeof *m->accesses);
    }
    m->accesses[m->access_count++] =
        (struct access_record){node_of(m, rank, number), number, memory, buffer, slice, write, rank != memory, NONE};
}

/// `slice`: of the argument's own, or NONE.
static void add_slice(struct model *m, uint32_t rank, uint32_t number, const struct plan_instr *of, uint32_t arg,
                      uint32_t slice, bool write)
{
    if (arg >= of->args.count)
        return;
    const struct plan_arg *a = ROW(m->plan, plan_arg, of->args.first + arg);
    if (ROW(m->plan, plan_buffer, a->buffer)->kind != buffer_kind_param)
        add_access(m, rank, number, rank, a->buffer, slice == NONE ? a->slice : slice, write);
}

static void add_argument(struct model *m, uint32_t rank, uint32_t number, const struct plan_instr *of, uint32_t arg,
                         bool write)
{
    add_slice(m, rank, number, of, arg, NONE, write);
}

/// The micro-batch of a part, which may be a piece of one.
static uint32_t batch_of(const struct model *m, uint32_t part)
{
    return part == NONE || ROW(m->plan, plan_part, part)->within == NONE ? part : ROW(m->plan, plan_part, part)->within;
}

/// The built-in of the same layer and part that fills the control buffer.
static const struct plan_instr *filler(const struct model *m, const struct plan_instr *in)
{
    uint32_t control = ROW(m->plan, plan_arg, in->args.first)->buffer;
    for (uint32_t i = 0; i < m->instrs; i++) {
        const struct plan_instr *other = instr_at(m, i);
        if (other->op != opcode_launch || other->layer != in->layer || batch_of(m, other->part) != batch_of(m, in->part) ||
            !ROW(m->plan, plan_kernel, other->kernel)->builtin)
            continue;
        for (uint32_t a = 0; a < other->args.count; a++) {
            const struct plan_arg *arg = ROW(m->plan, plan_arg, other->args.first + a);
            if (arg->buffer == control && arg->access == access_write)
                return other;
        }
    }
    return NULL;
}

/// What a copy_rows touches through control data of fan_out depends on its table.
static void add_fanned(struct model *m, uint32_t rank, uint32_t number, const struct plan_instr *in,
                       const struct plan_instr *from)
{
    int64_t table = ROW(m->plan, plan_kernel, in->kernel)->n[5];
    const struct plan_exchange *exchange = ROW(m->plan, plan_exchange, from->exchange);
    bool reply = table >= TABLES_REPLY && table < TABLE_OWN;
    bool staged = moe_fan_has_stage(from->args.count, exchange->pool ? 0 : exchange->wave);
    if (reply && staged)
        add_argument(m, rank, number, from, FAN_STAGE, false);
    else if (!reply)
        add_argument(m, rank, number, from, FAN_X, false);
    if (table < TABLES_REPLY) {
        add_argument(m, rank, number, from, FAN_ARRIVED, false);
        for (uint32_t earlier = exchange->earlier; earlier != NONE;
             earlier = ROW(m->plan, plan_exchange, earlier)->earlier)
            add_access(m, rank, number, rank, ROW(m->plan, plan_exchange, earlier)->recv, NONE, false);
    }
    add_argument(m, rank, number, from, reply ? FAN_REPLY : FAN_A, true);
}

static void add_pointed(struct model *m, uint32_t rank, uint32_t number, const struct plan_instr *in, uint32_t role)
{
    const struct plan_instr *from = filler(m, in);
    if (!from)
        return;
    uint32_t by = ROW(m->plan, plan_kernel, from->kernel)->role;
    uint32_t piece = in->exchange == NONE ? NONE : ROW(m->plan, plan_exchange, in->exchange)->piece;
    if (role == kernel_role_copy_rows && (by == kernel_role_bin || by == kernel_role_bin_round)) {
        bool sums = ROW(m->plan, plan_kernel, in->kernel)->n[5] >= TABLES_REPLY; // of replies that came in rounds
        add_slice(m, rank, number, from, sums ? BIN_SPILL : BIN_X, piece, false);
        add_slice(m, rank, number, from, sums ? BIN_PACKED : BIN_SEND, piece, true);
    } else if (role == kernel_role_copy_rows && by == kernel_role_fold) {
        add_argument(m, rank, number, from, FOLD_REPLIES, false);
        add_argument(m, rank, number, from, FOLD_SUMS, true);
    } else if (role == kernel_role_copy_rows && by == kernel_role_fan_out) {
        add_fanned(m, rank, number, in, from);
    } else if (role == kernel_role_copy_rows) {
        add_argument(m, rank, number, from, DENSE_X, false);
        add_argument(m, rank, number, from, DENSE_A, true);
    } else if (role == kernel_role_sum_rows && by == kernel_role_fold) {
        add_argument(m, rank, number, from, FOLD_REPLIES, true);
        add_argument(m, rank, number, from, FOLD_SUMS, true);
    } else if (role == kernel_role_sum_rows) {
        add_slice(m, rank, number, from, BIN_SPILL, piece, true);
    } else if (role == kernel_role_mlp_down && by == kernel_role_fan_out) {
        add_argument(m, rank, number, from, FAN_REPLY, true);
        add_argument(m, rank, number, from, FAN_OWN, true);
        const struct plan_exchange *e = ROW(m->plan, plan_exchange, from->exchange);
        if (moe_fan_has_stage(from->args.count, e->pool ? 0 : e->wave))
            add_argument(m, rank, number, from, FAN_STAGE, true);
    } else if (role == kernel_role_mlp_down) {
        add_argument(m, rank, number, from, DENSE_Y, true);
    } else if (role == kernel_role_merge) {
        add_slice(m, rank, number, from, BIN_REPLY, piece, false);
        add_argument(m, rank, number, from, BIN_OWN, false);
        if (moe_bin_has_spill(from->args.count, ROW(m->plan, plan_exchange, from->exchange)->wave))
            add_slice(m, rank, number, from, BIN_SPILL, piece, false);
        if (moe_bin_has_packed(from->args.count, ROW(m->plan, plan_exchange, from->exchange)->wave))
            add_slice(m, rank, number, from, BIN_PACKED, piece, false);
    }
}

enum { OWN = 1, NEAR = 2, ALIKE = 4 };

struct message_use { // what an instruction of an exchange with relays touches, on which ranks
    uint32_t op, buffer, where;
    bool write;
};

/// On rank `q`, which may be the instruction's own.
static void add_relayed(struct model *m, uint32_t rank, uint32_t number, const struct plan_exchange *e, uint32_t q)
{
    const struct message_use dispatch[] = {
        {opcode_send, e->send, OWN, false},          {opcode_send, e->recv, NEAR, true},
        {opcode_send, e->relay, ALIKE, true},        {opcode_recv, e->relay, OWN, true},
        {opcode_recv, e->send, NEAR | ALIKE, false}, {opcode_forward, e->relay, OWN, false},
        {opcode_forward, e->recv, OWN | NEAR, true}, {opcode_settle, e->recv, OWN, true},
        {opcode_settle, e->relay, NEAR, false},
    };
    const struct message_use combine[] = {
        {opcode_send, e->send, OWN, false},        {opcode_send, e->recv, NEAR, true},
        {opcode_send, e->relay, OWN | NEAR, true}, {opcode_settle, e->relay, OWN, true},
        {opcode_settle, e->send, NEAR, false},     {opcode_forward, e->relay, OWN, false},
        {opcode_forward, e->sums, OWN, false},     {opcode_forward, e->recv, ALIKE, true},
        {opcode_recv, e->recv, OWN, true},         {opcode_recv, e->sums, ALIKE, false},
    };
    bool first = e->kind == exchange_kind_dispatch;
    size_t count = first ? sizeof dispatch / sizeof *dispatch : sizeof combine / sizeof *combine;
    uint32_t kind = q == rank ? OWN : is_near(e, rank, q) ? NEAR : is_alike(e, rank, q) ? ALIKE : 0;
    for (const struct message_use *u = first ? dispatch : combine; count > 0; u++, count--) {
        if (u->op != instr_at(m, number)->op || !(u->where & kind))
            continue;
        add_access(m, rank, number, q, u->buffer, u->buffer == e->send || u->buffer == e->recv ? e->piece : NONE, u->write);
        if (u->op == opcode_send || u->op == opcode_forward)
            m->accesses[m->access_count - 1].puts = instr_at(m, number)->exchange;
    }
}

/// A relay knows which replies belong together from the rows that it passed on, in this wave and earlier ones.
static void add_asked(struct model *m, uint32_t rank, uint32_t number, const struct plan_exchange *e)
{
    if (e->kind == exchange_kind_combine)
        for (uint32_t d = e->base; d != NONE; d = ROW(m->plan, plan_exchange, d)->earlier)
            add_access(m, rank, number, rank, ROW(m->plan, plan_exchange, d)->relay, NONE, false);
}

static void list_accesses(struct model *m, uint32_t rank, uint32_t number)
{
    const struct plan_instr *in = instr_at(m, number);
    for (uint32_t a = 0; a < in->args.count; a++)
        add_argument(m, rank, number, in, a, ROW(m->plan, plan_arg, in->args.first + a)->access != access_read);
    if (in->op == opcode_launch)
        add_pointed(m, rank, number, in, ROW(m->plan, plan_kernel, in->kernel)->role);
    bool relays = in->op == opcode_forward || in->op == opcode_settle;
    if (in->op != opcode_send && in->op != opcode_recv && !relays)
        return;
    const struct plan_exchange *e = ROW(m->plan, plan_exchange, in->exchange);
    for (uint32_t q = 0; q < m->ranks && e->node; q++)
        add_relayed(m, rank, number, e, q);
    if (relays)
        add_asked(m, rank, number, e);
    if (e->node)
        return;
    bool send = in->op == opcode_send;
    add_access(m, rank, number, rank, send ? e->send : e->recv, e->piece, !send);
    for (uint32_t q = 0; q < m->ranks; q++)
        if (q != rank)
            add_access(m, rank, number, q, send ? e->recv : e->send, e->piece, send);
}

/// Shares of the tokens; in the arena pieces of different micro-batches begin at the same place.
static bool slices_meet(const struct model *m, uint32_t buffer, uint32_t a, uint32_t b)
{
    const struct plan_part *x = ROW(m->plan, plan_part, a), *y = ROW(m->plan, plan_part, b);
    if (x->within != y->within && ROW(m->plan, plan_buffer, buffer)->kind == buffer_kind_arena)
        return true;
    return x->begin * y->total < y->end * x->total && y->begin * x->total < x->end * y->total;
}

static bool meet(const struct model *m, const struct access_record *a, const struct access_record *b)
{
    if (a->rank != b->rank || a->node == b->node || (!a->write && !b->write))
        return false;
    if (a->instr == b->instr && a->remote && b->remote)
        return false; // two senders fill their own slots
    if (a->write && b->write && a->puts != NONE && a->puts == b->puts)
        return false; // so do senders and relays
    if (a->buffer == b->buffer)
        return a->slice == NONE || b->slice == NONE || slices_meet(m, a->buffer, a->slice, b->slice);
    uint32_t first = m->variant->buffers.first;
    if (ROW(m->plan, plan_buffer, a->buffer)->kind != buffer_kind_arena ||
        ROW(m->plan, plan_buffer, b->buffer)->kind != buffer_kind_arena)
        return false;
    const struct plan_extent *extents = ROW(m->plan, plan_extent, m->programs[a->rank].extents.first);
    const struct plan_extent *x = &extents[a->buffer - first], *y = &extents[b->buffer - first];
    return x->bytes && y->bytes && x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
}

static bool all_ordered(struct model *m)
{
    for (uint32_t r = 0; r < m->ranks; r++)
        for (uint32_t i = 0; i < m->instrs; i++)
            if (!m->absent[i])
                list_accesses(m, r, i);
    for (uint32_t i = 0; i < m->access_count; i++)
        for (uint32_t j = 0; j < i; j++) {
            const struct access_record *a = &m->accesses[i], *b = &m->accesses[j];
            if (!meet(m, a, b) || is_before(m, a->node, b->node) || is_before(m, b->node, a->node))
                continue;
            fprintf(stderr, "brute force: %s on rank %u and %s on rank %u meet in `%s` and `%s` of rank %u\n",
                    ir_text(m->plan, instr_at(m, a->instr)->label), a->node / m->instrs,
                    ir_text(m->plan, instr_at(m, b->instr)->label), b->node / m->instrs,
                    ir_text(m->plan, ROW(m->plan, plan_buffer, a->buffer)->name),
                    ir_text(m->plan, ROW(m->plan, plan_buffer, b->buffer)->name), a->rank);
            return false;
        }
    return true;
}

static bool agrees(const struct ir *plan, uint32_t variant, bool rounds)
{
    struct model m = {.plan = plan, .variant = ROW(plan, plan_variant, variant), .rounds = rounds};
    m.programs = ROW(plan, plan_program, m.variant->programs.first);
    m.ranks = m.variant->programs.count;
    struct rows streams = m.programs->streams;
    const struct plan_stream *last = ROW(plan, plan_stream, streams.first + streams.count - 1);
    m.first = ROW(plan, plan_stream, streams.first)->instrs.first;
    m.instrs = last->instrs.first + last->instrs.count - m.first;
    m.nodes = m.ranks * m.instrs;
    m.words = (m.nodes + 63) / 64;
    m.slots = 2 + 2 * m.ranks;
    m.absent = calloc(m.instrs, 1);
    m.before = malloc((size_t)m.nodes * m.slots * sizeof *m.before);
    memset(m.before, 0xff, (size_t)m.nodes * m.slots * sizeof *m.before);
    m.after = calloc((size_t)m.nodes * m.words, sizeof *m.after);
    add_edges(&m);
    close_order(&m);
    bool good = all_ordered(&m);
    free(m.absent);
    free(m.before);
    free(m.after);
    free(m.accesses);
    return good;
}

bool brute_force_agrees(const struct ir *plan, uint32_t variant)
{
    return agrees(plan, variant, false) && agrees(plan, variant, true);
}
