// See generator.h. Tasks are drawn in an order that could run, each on a random stream; a task waits for earlier ones on
// other streams that touch its buffers on the same rank. What holds between ranks is left to chance.
#include "tests/proof/generator.h"

#include <string.h>

#include "runtime/plan/slots.h"

enum { MOST_ITEMS = 64, MOST_BUFFERS = 32, MOST_EXCHANGES = 6, MOST_RANKS = 4, STREAMS = 3, MOST_USES = 6 };
enum { NEVER = 1000, BOUND = 4, ROW_BYTES = 16, NODE = 2, MARK_BYTES = sizeof(struct moe_row_mark), SLOTS = 384 };

struct use {
    int buffer, part; // part -1: all of it
    enum access access;
};

struct item {
    enum opcode op; // opcode_rounds: the whole loop, with what stands in it
    struct use uses[3];
    int use_count;
    int exchange, reply; // reply: a pool combine in the same rounds, or -1
    int signal;          // signal: its number; wait: the number it waits for, -1: none that comes
};

struct stream_items {
    struct item items[MOST_ITEMS];
    int count;
    int known[STREAMS]; // of each stream: tasks known to have ended
    int tasks;
};

struct buffer {
    int64_t offset, bytes[MOST_RANKS];
    bool sliced, written, aliased;
    int input;
};

struct exchange {
    int send, recv, base; // base -1: none
    bool combine, pool, packed, sent, received, looped;
    int relay, sums, stream, passed; // relay -1: none; where and how far it is relayed
    int64_t rows[MOST_RANKS];
};

struct task { // what has been issued, for the waits of later ones
    int stream, number, signal;
    struct use uses[MOST_USES];
    int use_count;
    int known[STREAMS];
};

struct generator {
    uint64_t state;
    int ranks, stream_count, parts;
    struct stream_items streams[STREAMS];
    struct buffer buffers[MOST_BUFFERS];
    int buffer_count;
    struct exchange exchanges[MOST_EXCHANGES];
    int exchange_count;
    struct task tasks[MOST_ITEMS];
    int task_count, signal_count;
    int skip; // percent of needed waits that are left out
    int64_t arena_bytes;
    struct ir *plan;
};

static uint32_t draw(struct generator *g, uint32_t below)
{
    uint64_t z = g->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 33) % below;
}

static bool chance(struct generator *g, uint32_t percent)
{
    return draw(g, 100) < percent;
}

static struct item *append(struct stream_items *stream, struct item item)
{
    if (stream->count == MOST_ITEMS)
        return &stream->items[MOST_ITEMS - 1];
    stream->items[stream->count] = item;
    return &stream->items[stream->count++];
}

// -------------------------------------------------------------------------------------------------------- issuing

static bool clash(const struct generator *g, const struct use *a, const struct use *b)
{
    const struct buffer *x = &g->buffers[a->buffer], *y = &g->buffers[b->buffer];
    if (a->access == access_read && b->access == access_read)
        return false;
    if (a->buffer == b->buffer)
        return a->part < 0 || b->part < 0 || a->part == b->part;
    return !x->input && !y->input && x->offset < y->offset + y->bytes[0] && y->offset < x->offset + x->bytes[0];
}

static bool must_follow(const struct generator *g, const struct task *task, const struct task *earlier)
{
    for (int i = 0; i < task->use_count; i++)
        for (int j = 0; j < earlier->use_count; j++)
            if (clash(g, &task->uses[i], &earlier->uses[j]))
                return true;
    return false;
}

/// The signal behind an issued task; made when first needed.
static int signal_behind(struct generator *g, struct task *task)
{
    if (task->signal >= 0)
        return task->signal;
    struct stream_items *s = &g->streams[task->stream];
    int at = 0, seen = 0;
    for (; at < s->count && seen < task->number; at++)
        seen += s->items[at].op != opcode_wait && s->items[at].op != opcode_signal;
    if (s->count == MOST_ITEMS)
        return -1;
    memmove(&s->items[at + 1], &s->items[at], (size_t)(s->count++ - at) * sizeof *s->items);
    s->items[at] = (struct item){.op = opcode_signal, .exchange = -1, .reply = -1, .signal = g->signal_count};
    return task->signal = g->signal_count++;
}

static void wait_for(struct generator *g, int stream, struct task *task)
{
    struct stream_items *s = &g->streams[stream];
    append(s, (struct item){.op = opcode_wait, .exchange = -1, .reply = -1, .signal = signal_behind(g, task)});
    for (int i = 0; i < STREAMS; i++)
        s->known[i] = task->known[i] > s->known[i] ? task->known[i] : s->known[i];
}

/// Issues an item on a stream. `hidden`: buffers that a message touches besides the item's own uses.
static void issue_on(struct generator *g, int stream, struct item item, const struct use *hidden, int hidden_count)
{
    struct stream_items *s = &g->streams[stream];
    struct task task = {.stream = stream, .signal = -1};
    if (g->task_count == MOST_ITEMS)
        return;
    for (int i = 0; i < item.use_count; i++)
        task.uses[task.use_count++] = item.uses[i];
    for (int i = 0; i < hidden_count && task.use_count < MOST_USES; i++)
        task.uses[task.use_count++] = hidden[i];
    for (int t = g->task_count - 1; t >= 0; t--) {
        struct task *earlier = &g->tasks[t];
        if (earlier->stream != stream && earlier->number > s->known[earlier->stream] && must_follow(g, &task, earlier) &&
            !chance(g, (uint32_t)g->skip))
            wait_for(g, stream, earlier);
    }
    append(s, item);
    task.number = ++s->tasks;
    s->known[stream] = task.number;
    memcpy(task.known, s->known, sizeof task.known);
    g->tasks[g->task_count++] = task;
    for (int i = 0; i < task.use_count; i++)
        if (task.uses[i].access != access_read && (task.uses[i].part < 0 || chance(g, 70)))
            g->buffers[task.uses[i].buffer].written = true;
}

static void issue(struct generator *g, struct item item, const struct use *hidden, int hidden_count)
{
    issue_on(g, (int)draw(g, (uint32_t)g->stream_count), item, hidden, hidden_count);
}

static int add_buffer(struct generator *g, int64_t bytes, bool sliced)
{
    struct buffer *b = &g->buffers[g->buffer_count];
    *b = (struct buffer){.offset = g->arena_bytes, .bytes = {bytes, bytes, bytes, bytes}, .sliced = sliced};
    g->arena_bytes += (bytes + 63) / 64 * 64;
    return g->buffer_count++;
}

static struct use use_of(struct generator *g, int buffer, enum access access)
{
    int part = g->buffers[buffer].sliced && chance(g, 75) ? (int)draw(g, (uint32_t)g->parts) : -1;
    return (struct use){buffer, part, access};
}

static void issue_launch(struct generator *g, int must_write, int must_read)
{
    struct item item = {.op = opcode_launch, .exchange = -1, .reply = -1};
    int write = must_write >= 0 ? must_write : 1 + (int)draw(g, (uint32_t)g->buffer_count - 1);
    item.uses[item.use_count++] = use_of(g, write, access_write);
    if (g->buffers[write].written && chance(g, 20))
        item.uses[0].access = access_update;
    int wanted = must_read >= 0 ? 1 : (int)draw(g, 3);
    for (int i = 0; i < wanted; i++) {
        int read = must_read >= 0 ? must_read : (int)draw(g, (uint32_t)g->buffer_count);
        if (read != write && (g->buffers[read].written || g->buffers[read].input || chance(g, 3)))
            item.uses[item.use_count++] = use_of(g, read, access_read);
    }
    issue(g, item, NULL, 0);
}

/// Buffers are sized later, when all exchanges are known: here only their numbers matter.
static void add_exchange(struct generator *g)
{
    struct exchange *e = &g->exchanges[g->exchange_count];
    *e = (struct exchange){.base = -1, .relay = -1, .sums = -1};
    for (int r = 0; r < MOST_RANKS; r++)
        e->rows[r] = draw(g, 3);
    int of = g->exchange_count ? (int)draw(g, (uint32_t)g->exchange_count) : -1;
    const struct exchange *other = of < 0 ? NULL : &g->exchanges[of];
    bool relayed = g->ranks == MOST_RANKS && chance(g, 75);
    if (other && !other->combine && !other->pool && chance(g, 60)) {
        e->combine = true;
        e->base = of;
        relayed = other->relay >= 0;
        memcpy(e->rows, other->rows, sizeof e->rows);
    }
    bool again = other && other->combine == e->combine && !other->pool && chance(g, 50);
    if (again) {
        relayed = other->relay >= 0;
        memcpy(e->rows, other->rows, sizeof e->rows);
    }
    e->send = again ? other->send : add_buffer(g, SLOTS, false);
    e->recv = again ? other->recv : add_buffer(g, SLOTS, false);
    if (relayed)
        e->relay = again ? other->relay : add_buffer(g, SLOTS, false);
    if (relayed && e->combine)
        e->sums = again ? other->sums : add_buffer(g, SLOTS, false);
    g->exchange_count++;
}

/// Rounds of a received dispatch: pack, send, recv, use, in one stream; half of them with a reply.
static void issue_rounds(struct generator *g, int base)
{
    if (g->exchange_count + 2 > MOST_EXCHANGES || g->buffer_count + 4 > MOST_BUFFERS)
        return;
    int pool = g->exchange_count++;
    struct exchange *e = &g->exchanges[pool];
    *e = (struct exchange){.base = base, .pool = true, .packed = true, .sent = true, .received = true, .looped = true};
    e->relay = e->sums = -1;
    for (int r = 0; r < MOST_RANKS; r++)
        e->rows[r] = 1 + draw(g, 2);
    e->send = add_buffer(g, SLOTS, false);
    e->recv = add_buffer(g, SLOTS, false);
    struct item item = {.op = opcode_rounds, .exchange = pool, .reply = -1};
    struct use hidden[5] = {{e->send, -1, access_write}, {e->recv, -1, access_write}};
    int hidden_count = 2;
    if (chance(g, 50)) {
        item.reply = g->exchange_count++;
        g->exchanges[item.reply] = *e;
        e = &g->exchanges[item.reply];
        e->combine = true;
        e->base = pool;
        e->send = add_buffer(g, SLOTS, false);
        e->recv = add_buffer(g, SLOTS, false);
        hidden[hidden_count++] = (struct use){e->send, -1, access_write};
        hidden[hidden_count++] = (struct use){e->recv, -1, access_write};
    }
    hidden[hidden_count++] = (struct use){g->exchanges[base].recv, -1, access_read}; // after the base's recv
    issue(g, item, hidden, hidden_count);
    g->exchanges[base].looped = true;
}

/// A message's step on its exchange: what it touches, with some chance also what others touch meanwhile.
static void issue_message(struct generator *g, int number, enum opcode op)
{
    struct exchange *e = &g->exchanges[number];
    bool relayed = e->relay >= 0;
    struct use hidden[MOST_USES] = {{e->send, -1, access_read}, {e->recv, -1, access_write}};
    int count = 2;
    if (op != opcode_send && !(relayed && e->combine == (op != opcode_recv)))
        hidden[0] = (struct use){e->recv, -1, access_write}, hidden[1] = (struct use){e->send, -1, access_read};
    if (!chance(g, 50))
        count = 1;
    if (relayed)
        hidden[count++] = (struct use){e->relay, -1, op == opcode_forward ? access_read : access_write};
    if (relayed && e->combine && op != opcode_send)
        hidden[count++] = (struct use){g->exchanges[e->base].relay, -1, access_read};
    if (relayed && e->combine && (op == opcode_forward || op == opcode_recv))
        hidden[count++] = (struct use){e->sums, -1, access_read};
    if (!e->passed) // the send, and what comes first behind it
        e->stream = (int)draw(g, (uint32_t)g->stream_count);
    issue_on(g, e->stream, (struct item){.op = op, .exchange = number, .reply = -1}, hidden, count);
}

/// A dispatch is received, passed on and settled; replies are settled, summed, passed on and received; in one stream.
static void advance_relay(struct generator *g, int number)
{
    static const enum opcode orders[2][3] = {{opcode_recv, opcode_forward, opcode_settle},
                                             {opcode_settle, opcode_forward, opcode_recv}};
    struct exchange *e = &g->exchanges[number];
    if (e->combine && e->passed == 1)
        issue_launch(g, e->sums, e->relay);
    issue_message(g, number, orders[e->combine][e->passed]);
    e->received = ++e->passed == 3;
}

/// One step on an exchange's way: packed, sent, received, its rounds.
static void advance(struct generator *g, int number)
{
    struct exchange *e = &g->exchanges[number];
    if (!e->packed) {
        issue_launch(g, e->send, -1);
        e->packed = true;
    } else if (!e->sent) {
        issue_message(g, number, opcode_send);
        e->sent = true;
    } else if (!e->received) {
        if (e->relay >= 0) {
            advance_relay(g, number);
        } else {
            issue_message(g, number, opcode_recv);
            e->received = true;
        }
        if (e->received && chance(g, 70))
            issue_launch(g, -1, e->recv);
    } else if (!e->looped && !e->combine && chance(g, 12)) {
        issue_rounds(g, number);
    }
}

static void issue_tasks(struct generator *g)
{
    int tasks = 3 + (int)draw(g, 8);
    for (int i = 0; i < tasks; i++) {
        uint32_t kind = draw(g, 10);
        if (kind < 3 && g->exchange_count < 4)
            add_exchange(g);
        if (kind < 7 && g->exchange_count)
            advance(g, (int)draw(g, (uint32_t)g->exchange_count));
        else
            issue_launch(g, -1, -1);
    }
    for (int e = 0; e < g->exchange_count; e++)
        while (!g->exchanges[e].received)
            advance(g, e);
    for (int s = 1; s < g->stream_count; s++) // the end: count waits for every stream
        for (int t = g->task_count - 1; t >= 0; t--)
            if (g->tasks[t].stream == s) {
                if (g->tasks[t].number > g->streams[0].known[s])
                    wait_for(g, 0, &g->tasks[t]);
                break;
            }
    append(&g->streams[0], (struct item){.op = opcode_count, .exchange = -1, .reply = -1});
}

// -------------------------------------------------------------------------------------------------------- damage

static int draw_item(struct generator *g, struct stream_items *s, enum opcode op)
{
    int at = s->count ? (int)draw(g, (uint32_t)s->count) : -1;
    for (int i = 0; i < s->count; i++, at = (at + 1) % s->count)
        if (s->items[at].op == op)
            return at;
    return -1;
}

static void remove_item(struct stream_items *s, int at)
{
    memmove(&s->items[at], &s->items[at + 1], (size_t)(--s->count - at) * sizeof *s->items);
}

static void move_item(struct generator *g, struct stream_items *s)
{
    if (s->count < 2)
        return;
    int from = (int)draw(g, (uint32_t)s->count), to = (int)draw(g, (uint32_t)s->count);
    struct item item = s->items[from];
    if (chance(g, 60))
        to = from ? from - 1 : 1;
    remove_item(s, from);
    memmove(&s->items[to + 1], &s->items[to], (size_t)(s->count++ - to) * sizeof *s->items);
    s->items[to] = item;
}

static void alias_buffers(struct generator *g)
{
    int a = 1 + (int)draw(g, (uint32_t)g->buffer_count - 1), b = 1 + (int)draw(g, (uint32_t)g->buffer_count - 1);
    if (g->buffers[a].sliced || g->buffers[b].sliced)
        return;
    g->buffers[a].offset = g->buffers[b].offset + (chance(g, 30) ? 64 : 0);
    g->arena_bytes += 64;
}

static void damage(struct generator *g)
{
    struct stream_items *s = &g->streams[draw(g, (uint32_t)g->stream_count)];
    int at = -1;
    switch (draw(g, 9)) {
    case 0:
    case 1:
        if ((at = draw_item(g, s, opcode_wait)) >= 0)
            remove_item(s, at);
        break;
    case 2:
        if ((at = draw_item(g, s, opcode_signal)) >= 0)
            remove_item(s, at);
        break;
    case 3:
        if ((at = draw_item(g, s, opcode_wait)) >= 0)
            s->items[at].signal = (int)draw(g, (uint32_t)g->signal_count + 1) - 1;
        break;
    case 4:
        alias_buffers(g);
        break;
    case 5:
        if ((at = draw_item(g, s, opcode_launch)) >= 0)
            s->items[at].uses[0].buffer = 1 + (int)draw(g, (uint32_t)g->buffer_count - 1), s->items[at].uses[0].part = -1;
        break;
    default:
        move_item(g, s);
        break;
    }
}

// ------------------------------------------------------------------------------------------------ the plan's records

static uint32_t emit(struct generator *g, int stream, enum opcode op, int exchange)
{
    char label[32];
    uint32_t row = ADD(g->plan, plan_instr);
    snprintf(label, sizeof label, "%s%d[%u]", opcode_words[op], stream, row);
    str_id text = ir_str(g->plan, label);
    struct plan_instr *in = ROW(g->plan, plan_instr, row);
    in->op = op;
    in->label = in->stage = text;
    in->exchange = exchange < 0 ? NONE : (uint32_t)exchange;
    in->args.first = COUNT(g->plan, plan_arg);
    return row;
}

static void emit_launch(struct generator *g, int stream, const struct use *uses, int count)
{
    uint32_t row = emit(g, stream, opcode_launch, -1);
    for (int i = 0; i < count; i++) {
        uint32_t arg = ADD(g->plan, plan_arg);
        struct plan_arg *a = ROW(g->plan, plan_arg, arg);
        a->buffer = (uint32_t)uses[i].buffer;
        a->access = uses[i].access;
        a->slice = uses[i].part < 0 ? NONE : (uint32_t)uses[i].part;
    }
    ROW(g->plan, plan_instr, row)->kernel = 0;
    ROW(g->plan, plan_instr, row)->args.count = (uint32_t)count;
}

static void emit_messages(struct generator *g, int stream, int exchange)
{
    struct use pack = {g->exchanges[exchange].send, -1, access_write}, read = {g->exchanges[exchange].recv, -1, access_read};
    emit_launch(g, stream, &pack, 1);
    emit(g, stream, opcode_send, exchange);
    emit(g, stream, opcode_recv, exchange);
    emit_launch(g, stream, &read, 1);
}

static void emit_item(struct generator *g, int stream, const struct item *item, const int64_t *values, const int *of)
{
    if (item->op == opcode_launch) {
        emit_launch(g, stream, item->uses, item->use_count);
    } else if (item->op == opcode_rounds) {
        emit(g, stream, opcode_rounds, item->exchange);
        emit_messages(g, stream, item->exchange);
        if (item->reply >= 0)
            emit_messages(g, stream, item->reply);
        emit(g, stream, opcode_end, item->exchange);
    } else {
        uint32_t row = emit(g, stream, item->op, item->exchange);
        struct plan_instr *in = ROW(g->plan, plan_instr, row);
        if (item->op != opcode_wait && item->op != opcode_signal)
            return;
        bool lost = item->signal < 0 || !values[item->signal];
        in->semaphore = (uint32_t)(lost ? stream : of[item->signal]);
        in->value = lost ? NEVER : values[item->signal];
    }
}

static void emit_streams(struct generator *g)
{
    int64_t values[MOST_ITEMS * STREAMS] = {0};
    int of[MOST_ITEMS * STREAMS] = {0};
    for (int s = 0; s < g->stream_count; s++)
        for (int i = 0, value = 0; i < g->streams[s].count; i++)
            if (g->streams[s].items[i].op == opcode_signal) {
                values[g->streams[s].items[i].signal] = ++value;
                of[g->streams[s].items[i].signal] = s;
            }
    for (int s = 0; s < g->stream_count; s++) {
        uint32_t row = ADD(g->plan, plan_stream), first = COUNT(g->plan, plan_instr);
        for (int i = 0; i < g->streams[s].count; i++)
            emit_item(g, s, &g->streams[s].items[i], values, of);
        ROW(g->plan, plan_stream, row)->instrs = (struct rows){first, COUNT(g->plan, plan_instr) - first};
    }
}

static void emit_exchanges(struct generator *g)
{
    for (int i = 0; i < g->exchange_count; i++) {
        const struct exchange *from = &g->exchanges[i];
        uint32_t row = ADD(g->plan, plan_exchange), slots = COUNT(g->plan, plan_slot), wire = ADD(g->plan, plan_wire);
        bool marked = from->relay >= 0 && !from->combine;
        *ROW(g->plan, plan_wire, wire) =
            (struct plan_wire){.data_bytes = ROW_BYTES, .row_bytes = ROW_BYTES + (marked ? MARK_BYTES : 0)};
        for (int r = 0; r < g->ranks; r++) {
            uint32_t slot = ADD(g->plan, plan_slot);
            ROW(g->plan, plan_slot, slot)->rows = from->rows[r];
        }
        str_id name = ir_str(g->plan, "exchange");
        struct plan_exchange *e = ROW(g->plan, plan_exchange, row);
        e->name = name;
        e->kind = from->combine ? exchange_kind_combine : exchange_kind_dispatch;
        e->part = 0;
        e->pool = from->pool;
        e->send = (uint32_t)from->send, e->recv = (uint32_t)from->recv;
        e->base = from->base < 0 ? NONE : (uint32_t)from->base;
        e->node = from->relay >= 0 ? NODE : 0;
        e->relay = from->relay >= 0 ? (uint32_t)from->relay : NONE;
        e->sums = from->sums >= 0 ? (uint32_t)from->sums : NONE;
        e->earlier = NONE;
        e->piece = NONE;
        e->header_bytes = 64;
        e->wires = (struct rows){wire, 1};
        e->max_rounds = 8;
        e->slots = (struct rows){slots, (uint32_t)g->ranks};
    }
}

static void make_room(int64_t *largest, uint32_t rank, int64_t bytes)
{
    largest[rank] = bytes > largest[rank] ? bytes : largest[rank];
}

/// Buffers of exchanges hold their slots on every rank; sometimes one is a row too small on one rank.
static void size_buffers(struct generator *g, bool careful)
{
    int64_t largest[MOST_BUFFERS][MOST_RANKS] = {{0}};
    for (int i = 0; i < g->exchange_count; i++)
        for (uint32_t r = 0, ranks = (uint32_t)g->ranks; r < ranks; r++) {
            const struct plan_exchange *e = ROW(g->plan, plan_exchange, i);
            make_room(largest[e->send], r, slots_send_bytes(g->plan, e, r, ranks));
            make_room(largest[e->recv], r, slots_recv_bytes(g->plan, e, r, ranks));
            if (e->node)
                make_room(largest[e->relay], r, slots_relay_bytes(g->plan, e, r, ranks));
            if (e->sums != NONE)
                make_room(largest[e->sums], r, slots_sums_bytes(g->plan, e, r, ranks));
        }
    for (int b = 0; b < g->buffer_count; b++)
        for (int r = 0; r < g->ranks; r++)
            if (largest[b][r])
                g->buffers[b].bytes[r] = largest[b][r];
    if (!careful && g->exchange_count && chance(g, 30)) {
        const struct exchange *e = &g->exchanges[draw(g, (uint32_t)g->exchange_count)];
        int small = e->relay >= 0 && chance(g, 50) ? (e->sums >= 0 && chance(g, 50) ? e->sums : e->relay)
                    : chance(g, 50)               ? e->send
                                                  : e->recv;
        g->buffers[small].bytes[draw(g, (uint32_t)g->ranks)] -= ROW_BYTES;
    }
}

static void emit_buffers(struct generator *g)
{
    for (int b = 0; b < g->buffer_count; b++) {
        char name[16];
        snprintf(name, sizeof name, "b%d", b);
        uint32_t row = ADD(g->plan, plan_buffer);
        str_id text = ir_str(g->plan, name);
        struct plan_buffer *buffer = ROW(g->plan, plan_buffer, row);
        buffer->name = text;
        buffer->kind = g->buffers[b].input ? buffer_kind_input : buffer_kind_arena;
        buffer->row_bytes = g->buffers[b].sliced ? ROW_BYTES : 0;
    }
    for (int r = 0; r < g->ranks; r++)
        for (int b = 0; b < g->buffer_count; b++) {
            uint32_t row = ADD(g->plan, plan_extent);
            *ROW(g->plan, plan_extent, row) = (struct plan_extent){g->buffers[b].offset, g->buffers[b].bytes[r]};
        }
}

static void emit_plan(struct generator *g, bool careful)
{
    struct ir *plan = g->plan;
    ADD(plan, plan_info);
    *ROW(plan, plan_info, 0) =
        (struct plan_info){.ranks = (uint32_t)g->ranks, .tokens_bound = BOUND, .choices = 1, .layers = 1};
    ADD(plan, plan_kernel);
    ROW(plan, plan_kernel, 0)->role = kernel_role_add;
    for (int p = 0; p < g->parts; p++) {
        uint32_t row = ADD(plan, plan_part);
        *ROW(plan, plan_part, row) = (struct plan_part){p, p + 1, g->parts, BOUND / g->parts, NONE};
    }
    for (int r = 0; r < g->ranks; r++)
        ADD(plan, plan_rank);
    emit_exchanges(g);
    size_buffers(g, careful);
    emit_buffers(g);
    emit_streams(g);
    for (int r = 0; r < g->ranks; r++) {
        uint32_t row = ADD(plan, plan_program);
        *ROW(plan, plan_program, row) = (struct plan_program){
            .rank = (uint32_t)r, .streams = {0, (uint32_t)g->stream_count}, .arena_bytes = g->arena_bytes};
        ROW(plan, plan_program, row)->extents =
            (struct rows){(uint32_t)(r * g->buffer_count), (uint32_t)g->buffer_count};
    }
    uint32_t row = ADD(plan, plan_variant);
    struct plan_variant *v = ROW(plan, plan_variant, row);
    v->bound = BOUND;
    v->parts = (struct rows){0, (uint32_t)g->parts};
    v->buffers = (struct rows){0, (uint32_t)g->buffer_count};
    v->exchanges = (struct rows){0, (uint32_t)g->exchange_count};
    v->semaphores = STREAMS;
    v->programs = (struct rows){0, (uint32_t)g->ranks};
}

void generate_program(uint64_t seed, struct ir *plan)
{
    struct generator g = {.state = seed * 0x2545f4914f6cdd1du + 1};
    do {
        uint64_t state = g.state;
        memset(&g, 0, sizeof g);
        g.state = state;
        g.plan = plan;
        ir_init(plan, &plan_ir);
        g.ranks = chance(&g, 25) ? MOST_RANKS : 2 + chance(&g, 35);
        g.stream_count = 1 + (int)draw(&g, STREAMS);
        g.parts = 1 + (int)draw(&g, 2);
        bool careful = chance(&g, 70);
        g.skip = careful ? 0 : 10;
        g.buffers[add_buffer(&g, BOUND * ROW_BYTES, true)].input = 1;
        for (int i = 0, count = 2 + (int)draw(&g, 3); i < count; i++)
            add_buffer(&g, BOUND * ROW_BYTES, chance(&g, 40));
        issue_tasks(&g);
        for (int i = careful ? 0 : 1 + (int)draw(&g, 2); i > 0; i--)
            damage(&g);
        emit_plan(&g, careful);
        if (COUNT(plan, plan_instr) <= GENERATED_MOST_INSTRUCTIONS)
            return;
        ir_free(plan);
    } while (true);
}
