// Any two accesses to overlapping bytes of one rank's memory are ordered unless both read. Events are taken in an order
// that respects all waits; for every place the last read and write of each stream is remembered, on the buffer's own
// rank and on others, and compared with what the new access knows to have ended.
//
// A message writes its recv buffer and reads its send buffer from the start of the send to the end of the recv, at any
// moment between: what touches them comes before the send or after the recv. What is read must also be what was written
// to it: not bytes that another buffer has taken since.
#include <string.h>

#include "compiler/lower/verify_places.h"

struct rounds_access { // the last of one stream's rounds that accesses a place; earlier rounds behind it
    uint32_t position;
    struct rounds_access *earlier;
};

// By kind of accessor, seen from the memory, and stream: 1 + position of the last access outside rounds; in rounds.
struct history {
    uint32_t *reads, *writes;
    uint32_t *older; // the last write of another exchange than the one in `writes`
    struct rounds_access **round_reads, **round_writes;
    bool written;     // its bytes are what was written to it
    uint32_t lost_to; // 1 + the place whose write ended that
};

struct knowledge { // how many events of a stream have ended for certain on ranks of each kind
    uint32_t ended[KINDS];
};

/// On the rank that made the earlier access. The memory's rank is of kind `here` for this one, and of kind `there` for that
/// one, which thus is of one of several kinds for this one.
static uint32_t known_ended(const struct places *p, struct knowledge k, enum kind here, enum kind there)
{
    static const uint8_t kinds[KINDS][KINDS] = {
        {1 << OWN, 1 << NEAR, 1 << ALIKE, 1 << FAR},
        {1 << NEAR, 1 << OWN | 1 << NEAR, 1 << FAR, 1 << ALIKE | 1 << FAR},
        {1 << ALIKE, 1 << FAR, 1 << OWN | 1 << ALIKE, 1 << NEAR | 1 << FAR},
        {1 << FAR, 1 << ALIKE | 1 << FAR, 1 << NEAR | 1 << FAR, 1 << OWN | 1 << NEAR | 1 << ALIKE | 1 << FAR}};
    uint32_t mask = kinds[here][there], least = UINT32_MAX;
    if (here == there && (here == NEAR || here == ALIKE) && kind_size(p->v, here) == 1)
        mask = 1 << OWN; // the only rank of that kind is this one
    for (uint32_t kind = OWN; kind < p->v->kinds; kind++)
        if (mask >> kind & 1 && kind_size(p->v, (enum kind)kind) && k.ended[kind] < least)
            least = k.ended[kind];
    return least;
}

/// Everybody's send has ended: what is known of all ranks, or of all but those of one kind that were two.
static void learn(const struct verifier *v, struct knowledge *k, bool own, bool others, uint32_t ended)
{
    for (uint32_t kind = OWN; kind < v->kinds; kind++)
        if ((kind == OWN ? own : others) && ended > k->ended[kind])
            k->ended[kind] = ended;
}

/// An access inside rounds happens only when they run, and then their messages travel too: who is known to have received
/// one has waited for everybody's send.
static struct knowledge with_rounds(const struct verifier *v, struct knowledge k, uint32_t inside)
{
    uint32_t loop = v->events[inside].loop, streams_first = v->stream_first[v->events[inside].stream];
    uint32_t end = v->stream_first[v->events[inside].stream + 1];
    for (uint32_t e = inside; e > streams_first && v->events[e - 1].loop == loop; e--)
        inside = e - 1;
    struct knowledge more = k;
    for (uint32_t e = inside; e < end && v->events[e].loop == loop; e++) {
        if (event_instr(v, e)->op != opcode_recv)
            continue;
        uint32_t sent = v->events[v->events[e].wakes].position + 1, received = v->events[e].position;
        bool others = false;
        for (uint32_t kind = NEAR; kind < v->kinds; kind++)
            others = others || (kind_size(v, (enum kind)kind) && k.ended[kind] > received);
        learn(v, &more, others, others && v->info->ranks > 2, sent);
        learn(v, &more, k.ended[OWN] > received, k.ended[OWN] > received && v->info->ranks > 1, sent);
    }
    return more;
}

static bool report_race(const struct places *p, uint32_t event, const struct use *use, uint32_t place, uint32_t stream,
                        uint32_t position, bool earlier_remote, bool earlier_write)
{
    const struct verifier *v = p->v;
    const char *first = ir_text(v->plan, buffer_row(p, buffer_of(p, place))->name);
    const char *second = ir_text(v->plan, buffer_row(p, buffer_of(p, use->place))->name);
    return verify_fail(v, "%s %s `%s`%s and %s %s `%s`%s: nothing orders them",
                       event_text(v, v->stream_first[stream] + position), earlier_write ? "writes" : "reads", first,
                       earlier_remote ? " of another rank" : "", event_text(v, event), use->write ? "writes" : "reads",
                       second, use->kind != OWN ? " of another rank" : "");
}

/// Is the event one that puts messages of an exchange with relays into slots?
static uint32_t put_by(const struct verifier *v, uint32_t event)
{
    const struct plan_instr *instr = event_instr(v, event);
    bool message = instr->op == opcode_send || instr->op == opcode_forward;
    return message && ROW(v->plan, plan_exchange, instr->exchange)->node ? instr->exchange : NONE;
}

/// 1 + position of the last write of a stream that may meet what the event writes: what puts messages of one exchange
/// writes slots of its own for every pair of ranks (slots.h), whoever relays them.
static uint32_t last_write(const struct places *p, uint32_t event, const struct history *h, uint32_t at,
                           uint32_t stream)
{
    uint32_t written = h->writes[at], exchange = put_by(p->v, event);
    if (written && exchange != NONE && put_by(p->v, p->v->stream_first[stream] + written - 1) == exchange)
        return h->older[at];
    return written;
}

/// Is what a stream did to a place known to have ended? Its own record does not count: on another rank the same
/// instruction has a slot of its own.
static bool check_past(const struct places *p, uint32_t event, const struct use *use, uint32_t place, bool writes,
                       uint32_t side, uint32_t stream)
{
    const struct verifier *v = p->v;
    const struct history *h = &p->histories[place];
    const struct event *own = &v->events[event];
    struct knowledge k = {{0}};
    for (uint32_t kind = OWN; kind < v->kinds; kind++)
        k.ended[kind] = event_clock(v, event, (enum kind)kind)[stream];
    uint32_t at = side * v->streams.count + stream, itself = stream == own->stream ? own->position + 1 : 0;
    uint32_t last = writes ? last_write(p, event, h, at, stream) : h->reads[at];
    uint32_t known = known_ended(p, k, use->kind, (enum kind)side);
    if (last != itself && last > known)
        return report_race(p, event, use, place, stream, last - 1, side != OWN, writes);
    const struct rounds_access *r = (writes ? h->round_writes : h->round_reads)[at];
    for (; r && r->position >= known; r = r->earlier) {
        uint32_t inside = v->stream_first[stream] + r->position;
        if (r->position + 1 == itself)
            continue;
        if (v->events[inside].loop == own->loop ||
            r->position >= known_ended(p, with_rounds(v, k, inside), use->kind, (enum kind)side))
            return report_race(p, event, use, place, stream, r->position, side != OWN, writes);
    }
    return true;
}

/// Is every earlier access that conflicts with this one known to have ended?
static bool check_use(const struct places *p, uint32_t event, const struct use *use)
{
    for (uint32_t o = p->overlap_first[use->place]; o < p->overlap_first[use->place + 1]; o++)
        for (uint32_t side = OWN; side < p->v->kinds; side++)
            for (uint32_t s = 0; s < p->v->streams.count; s++)
                if (!check_past(p, event, use, p->overlaps[o], true, side, s) ||
                    (use->write && !check_past(p, event, use, p->overlaps[o], false, side, s)))
                    return false;
    return true;
}

/// Two buffers of one instruction that share bytes, one of them written.
static bool check_inside(const struct places *p, uint32_t event)
{
    for (uint32_t i = 0; i < p->use_count; i++)
        for (uint32_t j = 0; j < i; j++) {
            const struct use *a = &p->uses[i], *b = &p->uses[j];
            if (a->place != b->place && (a->write || b->write) && places_meet(p, a->place, b->place))
                return verify_fail(p->v, "%s: its buffers `%s` and `%s` share bytes", event_text(p->v, event),
                                   ir_text(p->v->plan, buffer_row(p, buffer_of(p, a->place))->name),
                                   ir_text(p->v->plan, buffer_row(p, buffer_of(p, b->place))->name));
        }
    return true;
}

/// What was accessed while a message was under way: for the recv `event`, everything must have ended before its send.
static bool check_flight(struct places *p, uint32_t event)
{
    const struct verifier *v = p->v;
    const struct plan_instr *instr = event_instr(v, event);
    uint32_t count = p->use_count, wakes = v->events[event].wakes;
    struct use uses[sizeof p->uses / sizeof *p->uses];
    bool fine = true;
    if (!v->events[event].from || v->info->ranks == 1)
        return true;
    memcpy(uses, p->uses, sizeof uses);
    p->use_count = 0;
    places_use_message(p, event_instr(v, wakes)->op, instr->exchange);
    for (uint32_t i = 0; i < p->use_count && fine; i++)
        fine = check_use(p, wakes, &p->uses[i]);
    memcpy(p->uses, uses, sizeof uses);
    p->use_count = count;
    return fine;
}

struct share { // of a buffer's token rows
    int64_t of, total;
};

static bool before(struct share a, struct share b)
{
    return a.of * b.total < b.of * a.total;
}

/// The micro-batch whose rows an arena buffer holds for a reader of all of it; NULL: every token.
static const struct plan_part *batch_of(const struct places *p, uint32_t event)
{
    const struct plan_instr *instr = event_instr(p->v, event);
    const struct plan_part *part = instr->part == NONE ? NULL : ROW(p->v->plan, plan_part, instr->part);
    return part && part->within != NONE ? ROW(p->v->plan, plan_part, part->within) : part;
}

/// Is all of a place written: the whole buffer, or places that cover its rows from its first to its last?
static bool is_written(const struct places *p, uint32_t place, uint32_t event)
{
    uint32_t buffer = buffer_of(p, place), first = p->v->variant->parts.first;
    if (p->histories[place].written || p->histories[buffer].written)
        return true;
    const struct plan_part *part =
        place == buffer ? batch_of(p, event) : ROW(p->v->plan, plan_part, first + (place - p->buffers) % p->parts);
    struct share at = part ? (struct share){part->begin, part->total} : (struct share){0, 1};
    struct share end = part ? (struct share){part->end, part->total} : (struct share){1, 1};
    for (bool further = true; further && before(at, end);) {
        further = false;
        for (uint32_t i = 0; i < p->v->variant->parts.count; i++) {
            const struct plan_part *x = ROW(p->v->plan, plan_part, first + i);
            struct share x_begin = {x->begin, x->total}, x_end = {x->end, x->total};
            if (!p->histories[p->buffers + buffer * p->parts + i].written || before(at, x_begin) || !before(at, x_end))
                continue;
            at = x_end;
            further = true;
        }
    }
    return !before(at, end);
}

static bool check_written(const struct places *p, uint32_t event, const struct use *use)
{
    const struct plan_buffer *buffer = buffer_row(p, buffer_of(p, use->place));
    if (!use->read || buffer->kind != buffer_kind_arena || is_written(p, use->place, event))
        return true;
    const char *name = ir_text(p->v->plan, buffer->name);
    uint32_t lost_to = p->histories[use->place].lost_to;
    if (!lost_to)
        return verify_fail(p->v, "%s reads `%s` before anything writes it", event_text(p->v, event), name);
    return verify_fail(p->v, "%s reads `%s`, whose bytes `%s` has overwritten", event_text(p->v, event), name,
                       ir_text(p->v->plan, buffer_row(p, buffer_of(p, lost_to - 1))->name));
}

static void record_access(struct places *p, uint32_t event, uint32_t *last, struct rounds_access **in_rounds)
{
    const struct verifier *v = p->v;
    const struct event *e = &v->events[event];
    if (e->loop == NONE) {
        *last = e->position + 1;
        return;
    }
    if (!*in_rounds || v->events[v->stream_first[e->stream] + (*in_rounds)->position].loop != e->loop) {
        struct rounds_access *r = context_alloc(v->context, sizeof *r);
        r->earlier = *in_rounds;
        *in_rounds = r;
    }
    (*in_rounds)->position = e->position;
}

static void record_use(struct places *p, uint32_t event, const struct use *use)
{
    struct history *h = &p->histories[use->place];
    uint32_t stream = p->v->events[event].stream, at = use->kind * p->v->streams.count + stream, last = h->writes[at];
    if (use->write && last &&
        (put_by(p->v, event) == NONE || put_by(p->v, event) != put_by(p->v, p->v->stream_first[stream] + last - 1)))
        h->older[at] = last;
    if (use->read)
        record_access(p, event, &h->reads[at], &h->round_reads[at]);
    if (!use->write)
        return;
    record_access(p, event, &h->writes[at], &h->round_writes[at]);
    uint32_t op = event_instr(p->v, event)->op;
    h->written |= op != opcode_send && op != opcode_forward; // slots of some ranks, until what waits for them all
    for (uint32_t o = p->overlap_first[use->place]; o < p->overlap_first[use->place + 1]; o++) {
        struct history *other = &p->histories[p->overlaps[o]];
        if (buffer_of(p, p->overlaps[o]) == buffer_of(p, use->place))
            continue;
        other->written = false;
        other->lost_to = use->place + 1;
    }
}

static void start(struct places *p)
{
    struct verifier *v = p->v;
    size_t half = v->kinds * v->streams.count;
    p->histories = context_alloc(v->context, (p->count + 1) * sizeof *p->histories);
    for (uint32_t i = 0; i < p->count; i++)
        if (p->overlap_first[i] < p->overlap_first[i + 1]) {
            p->histories[i].reads = context_alloc(v->context, 3 * half * sizeof(uint32_t));
            p->histories[i].writes = p->histories[i].reads + half;
            p->histories[i].older = p->histories[i].writes + half;
            p->histories[i].round_reads = context_alloc(v->context, 2 * half * sizeof(struct rounds_access *));
            p->histories[i].round_writes = p->histories[i].round_reads + half;
        }
}

bool verify_accesses(struct verifier *v)
{
    struct places p;
    places_init(&p, v);
    start(&p);
    for (uint32_t i = 0; i < v->event_count; i++) {
        uint32_t event = v->order[i];
        if (!places_use(&p, event) || !check_inside(&p, event))
            return false;
        if (!check_flight(&p, event))
            return false;
        for (uint32_t u = 0; u < p.use_count; u++)
            if (!check_use(&p, event, &p.uses[u]) || !check_written(&p, event, &p.uses[u]))
                return false;
        for (uint32_t u = 0; u < p.use_count; u++)
            record_use(&p, event, &p.uses[u]);
    }
    return true;
}
