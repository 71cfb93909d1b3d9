// Events of a program and their order: streams, semaphores, messages. Refuses waits that nobody ends and circles.
#include <string.h>

#include "compiler/lower/verify.h"

enum { ROUND_COPIES = 2 };

static uint32_t add_event(struct verifier *v, struct event event)
{
    v->events = context_grow(v->context, v->events, &v->event_capacity, v->event_count + 1, sizeof event);
    v->events[v->event_count] = event;
    return v->event_count++;
}

/// The `end` of the rounds at `at`, or NONE. Between them stand no rounds and no semaphores.
static uint32_t find_end(const struct verifier *v, struct rows instrs, uint32_t at)
{
    for (uint32_t i = at + 1; i < instrs.count; i++) {
        uint32_t op = ROW(v->plan, plan_instr, instrs.first + i)->op;
        if (op == opcode_end)
            return i;
        if (op == opcode_rounds || op == opcode_wait || op == opcode_signal)
            return NONE;
    }
    return NONE;
}

static bool list_stream(struct verifier *v, uint32_t stream, uint32_t *loops)
{
    struct rows instrs = ROW(v->plan, plan_stream, v->streams.first + stream)->instrs;
    v->stream_first[stream] = v->event_count;
    for (uint32_t i = 0; i < instrs.count; i++) {
        struct event event = {.stream = stream, .loop = NONE, .wakes = NONE};
        uint32_t op = ROW(v->plan, plan_instr, instrs.first + i)->op;
        uint32_t end = op == opcode_rounds ? find_end(v, instrs, i) : i;
        if (op == opcode_end || end == NONE) {
            event.instr = instrs.first + i;
            add_event(v, event);
            return verify_fail(v, "%s: rounds and ends do not match, or semaphores stand between them",
                               event_text(v, v->event_count - 1));
        }
        uint32_t copies = op == opcode_rounds ? ROUND_COPIES : 1;
        for (uint32_t copy = 0; copy < copies; copy++)
            for (uint32_t j = i; j <= end; j++) {
                event.position = v->event_count - v->stream_first[stream];
                event.instr = instrs.first + j;
                event.loop = op == opcode_rounds ? *loops : NONE;
                event.iteration = copy;
                add_event(v, event);
            }
        *loops += op == opcode_rounds;
        i = end;
    }
    v->stream_first[stream + 1] = v->event_count;
    return true;
}

// What ends a wait.

struct signals { // of one semaphore, in the one stream that signals it
    uint32_t stream, count, capacity;
    uint32_t *events;
};

static bool collect_signals(struct verifier *v, struct signals *signals)
{
    for (uint32_t e = 0; e < v->event_count; e++) {
        const struct plan_instr *instr = event_instr(v, e);
        if (instr->op != opcode_wait && instr->op != opcode_signal)
            continue;
        if (instr->semaphore >= v->variant->semaphores)
            return verify_fail(v, "%s: there is no semaphore %u", event_text(v, e), instr->semaphore);
        if (instr->op == opcode_wait)
            continue;
        struct signals *s = &signals[instr->semaphore];
        if (s->count && s->stream != v->events[e].stream)
            return verify_fail(v, "%s: two streams signal semaphore %u", event_text(v, e), instr->semaphore);
        if (s->count && event_instr(v, s->events[s->count - 1])->value >= instr->value)
            return verify_fail(v, "%s: semaphore %u does not grow", event_text(v, e), instr->semaphore);
        s->stream = v->events[e].stream;
        s->events = context_grow(v->context, s->events, &s->capacity, s->count + 1, sizeof *s->events);
        s->events[s->count++] = e;
    }
    return true;
}

static bool match_waits(struct verifier *v)
{
    struct signals *signals = context_alloc(v->context, (v->variant->semaphores + 1) * sizeof *signals);
    if (!collect_signals(v, signals))
        return false;
    for (uint32_t e = 0; e < v->event_count; e++) {
        const struct plan_instr *instr = event_instr(v, e);
        if (instr->op != opcode_wait)
            continue;
        const struct signals *s = &signals[instr->semaphore];
        uint32_t low = 0, high = s->count;
        while (low < high) {
            uint32_t middle = (low + high) / 2;
            if (event_instr(v, s->events[middle])->value < instr->value)
                low = middle + 1;
            else
                high = middle;
        }
        if (low == s->count || event_instr(v, s->events[low])->value != instr->value)
            return verify_fail(v, "%s waits for ever: nobody signals %lld on semaphore %u", event_text(v, e),
                               (long long)instr->value, instr->semaphore);
        v->events[e].wakes = s->events[low];
    }
    return true;
}

/// The rounds around a message belong to its pool; a message of the base stands in no rounds.
static bool message_in_place(const struct verifier *v, uint32_t e)
{
    const struct event *event = &v->events[e];
    const struct plan_instr *instr = event_instr(v, e);
    if (instr->exchange == NONE || instr->exchange - v->variant->exchanges.first >= v->variant->exchanges.count)
        return verify_fail(v, "%s: no exchange of its variant", event_text(v, e));
    const struct plan_exchange *x = ROW(v->plan, plan_exchange, instr->exchange);
    if ((event->loop != NONE) != (x->pool != 0))
        return verify_fail(v, "%s: a pool's messages stand in rounds, others outside", event_text(v, e));
    if (event->loop == NONE)
        return true;
    uint32_t first = e;
    while (event_instr(v, first)->op != opcode_rounds)
        first--;
    uint32_t pool = x->kind == exchange_kind_combine ? x->base : instr->exchange;
    return event_instr(v, first)->exchange == pool ||
           verify_fail(v, "%s: stands in the rounds of another pool", event_text(v, e));
}

/// Sends, receives, and with relays what is passed on and settled, of each exchange: their events, by iteration.
enum side { SENT, RECEIVED, FORWARDED, SETTLED, SIDES };

static enum side side_of(uint32_t op)
{
    return op == opcode_send      ? SENT
           : op == opcode_recv    ? RECEIVED
           : op == opcode_forward ? FORWARDED
           : op == opcode_settle  ? SETTLED
                                  : SIDES;
}

static bool collect_messages(struct verifier *v, uint32_t *events)
{
    for (uint32_t e = 0; e < v->event_count; e++) {
        const struct plan_instr *instr = event_instr(v, e);
        enum side side = side_of(instr->op);
        if (side == SIDES)
            continue;
        if (!message_in_place(v, e))
            return false;
        if (side >= FORWARDED && !ROW(v->plan, plan_exchange, instr->exchange)->node)
            return verify_fail(v, "%s: nothing is relayed there", event_text(v, e));
        uint32_t slot = (instr->exchange - v->variant->exchanges.first) * ROUND_COPIES + v->events[e].iteration;
        uint32_t *at = &events[slot * SIDES + side];
        if (*at != NONE)
            return verify_fail(v, "%s repeats %s", event_text(v, e), event_text(v, *at));
        *at = e;
    }
    return true;
}

static void wake(struct verifier *v, uint32_t event, uint32_t by, uint32_t from)
{
    v->events[event].wakes = by;
    v->events[event].from = from;
}

/// Who waits for whom with relays: one stream receives, passes on and settles a dispatch, and settles, passes on and
/// receives a combine, in that order, so that the last knows what the ones before have waited for.
static bool match_relays(struct verifier *v, const struct plan_exchange *x, const uint32_t *at)
{
    if (at[FORWARDED] == NONE || at[SETTLED] == NONE)
        return verify_fail(v, "exchange `%s` is not relayed", ir_text(v->plan, x->name));
    bool dispatch = x->kind == exchange_kind_dispatch;
    const struct event *first = &v->events[at[dispatch ? RECEIVED : SETTLED]], *forward = &v->events[at[FORWARDED]],
                       *last = &v->events[at[dispatch ? SETTLED : RECEIVED]];
    if (first->stream != forward->stream || forward->stream != last->stream || first->position > forward->position ||
        forward->position > last->position)
        return verify_fail(v, "exchange `%s` is relayed out of order", ir_text(v->plan, x->name));
    wake(v, at[RECEIVED], at[dispatch ? SENT : FORWARDED], dispatch ? FROM_NEAR | FROM_ALIKE : FROM_ALIKE);
    wake(v, at[SETTLED], at[dispatch ? FORWARDED : SENT], FROM_NEAR);
    return true;
}

/// Every exchange: one send and one recv in the program (in rounds: one each an iteration).
static bool match_messages(struct verifier *v)
{
    uint32_t count = v->variant->exchanges.count * ROUND_COPIES;
    uint32_t *events = context_alloc(v->context, ((size_t)count + 1) * SIDES * sizeof *events);
    for (uint32_t i = 0; i < count * SIDES; i++)
        events[i] = NONE;
    if (!collect_messages(v, events))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t *at = &events[(size_t)i * SIDES];
        const struct plan_exchange *x = ROW(v->plan, plan_exchange, v->variant->exchanges.first + i / ROUND_COPIES);
        if ((at[SENT] == NONE) != (at[RECEIVED] == NONE))
            return verify_fail(v, "%s has no %s on the other ranks",
                               event_text(v, at[SENT] == NONE ? at[RECEIVED] : at[SENT]),
                               at[SENT] == NONE ? "send" : "recv");
        if (i % ROUND_COPIES == 0 && at[SENT] == NONE)
            return verify_fail(v, "exchange `%s` is never sent", ir_text(v->plan, x->name));
        if (at[RECEIVED] != NONE && x->node && !match_relays(v, x, at))
            return false;
        if (at[RECEIVED] != NONE && !x->node)
            wake(v, at[RECEIVED], at[SENT], FROM_ALL);
    }
    return true;
}

// Order.

static uint32_t predecessors(const struct verifier *v, uint32_t e, uint32_t out[2])
{
    uint32_t count = 0;
    if (v->events[e].position)
        out[count++] = e - 1;
    if (v->events[e].wakes != NONE)
        out[count++] = v->events[e].wakes;
    return count;
}

/// Walks back from an event that never becomes ready until an event repeats, and tells the circle.
static bool report_circle(struct verifier *v, uint32_t e, const uint32_t *missing)
{
    uint32_t *seen = context_alloc(v->context, (v->event_count + 1) * sizeof *seen), step = 1;
    uint32_t before[2];
    while (!seen[e]) {
        seen[e] = step++;
        uint32_t count = predecessors(v, e, before), next = before[0];
        if (!missing[next])
            next = before[count - 1];
        e = next;
    }
    const char *text = event_text(v, e);
    uint32_t at = e, told = 0;
    do {
        uint32_t count = predecessors(v, at, before);
        at = missing[before[0]] ? before[0] : before[count - 1];
        if (told++ < 12)
            text = context_printf(v->context, "%s waits for %s", text, event_text(v, at));
    } while (at != e);
    return verify_fail(v, "deadlock: %s%s", text, told > 12 ? " ..." : "");
}

static bool sort_events(struct verifier *v)
{
    uint32_t n = v->event_count, before[2], head = 0, tail = 0;
    uint32_t *missing = context_alloc(v->context, (n + 1) * sizeof *missing);
    uint32_t *first = context_alloc(v->context, (n + 2) * sizeof *first);
    uint32_t *next = context_alloc(v->context, (2 * (size_t)n + 1) * sizeof *next);
    v->order = context_alloc(v->context, (n + 1) * sizeof *v->order);
    for (uint32_t e = 0; e < n; e++) {
        missing[e] = predecessors(v, e, before);
        for (uint32_t i = 0; i < missing[e]; i++)
            first[before[i] + 2]++;
    }
    for (uint32_t e = 0; e < n; e++)
        first[e + 1] += first[e];
    for (uint32_t e = 0; e < n; e++)
        for (uint32_t i = predecessors(v, e, before); i-- > 0;)
            next[first[before[i] + 1]++] = e;
    for (uint32_t e = 0; e < n; e++)
        if (!missing[e])
            v->order[tail++] = e;
    while (head < tail) {
        uint32_t e = v->order[head++];
        for (uint32_t i = first[e]; i < first[e + 1]; i++)
            if (!--missing[next[i]])
                v->order[tail++] = next[i];
    }
    for (uint32_t e = 0; e < n && tail < n; e++)
        if (missing[e])
            return report_circle(v, e, missing);
    return true;
}

// Clocks.

static uint32_t *clock_of(const struct verifier *v, uint32_t *clocks, uint32_t event)
{
    return clocks + (size_t)event * v->kinds * v->streams.count;
}

static void raise(uint32_t *to, uint32_t value)
{
    *to = value > *to ? value : *to;
}

/// `to` starts after `from` has ended: an event of its own rank.
static void join(const struct verifier *v, uint32_t *to, const uint32_t *from, uint32_t event)
{
    for (uint32_t i = 0; i < v->kinds * v->streams.count; i++)
        raise(&to[i], from[i]);
    raise(&to[v->events[event].stream], v->events[event].position + 1);
}

static void raise_kind(const struct verifier *v, uint32_t *to, uint32_t kind, const uint32_t *from, uint32_t seen)
{
    for (uint32_t i = 0; i < v->streams.count; i++)
        raise(&to[kind * v->streams.count + i], from[seen * v->streams.count + i]);
}

/// `to` starts after an event of its own rank and of all ranks of some kinds (`from`). To such a rank this one is of the
/// same kind, so that what it knew of that kind holds here. Every far rank is alike to one rank of the own node and in the
/// node of one alike rank; a rank alike is far from all of the own node, and one of the own node from all that are alike.
static void join_messages(const struct verifier *v, uint32_t *to, const uint32_t *seen, uint32_t event, uint32_t from)
{
    static const uint8_t relayed[][3] = {
        {NEAR, FAR, ALIKE}, {ALIKE, FAR, NEAR}, {NEAR, ALIKE, FAR}, {ALIKE, NEAR, FAR}};
    join(v, to, seen, event);
    for (uint32_t kind = NEAR; kind < v->kinds; kind++) {
        if (!(from >> kind & 1) || !kind_size(v, (enum kind)kind))
            continue;
        raise_kind(v, to, OWN, seen, kind);
        raise_kind(v, to, kind, seen, OWN);
        raise(&to[kind * v->streams.count + v->events[event].stream], v->events[event].position + 1);
    }
    for (size_t i = 0; i < sizeof relayed / sizeof *relayed && v->kinds == KINDS; i++)
        if (from >> relayed[i][0] & 1)
            raise_kind(v, to, relayed[i][1], seen, relayed[i][2]);
}

static void join_wake(const struct verifier *v, uint32_t *to, const uint32_t *seen, const struct event *event)
{
    if (event->from)
        join_messages(v, to, seen, event->wakes, event->from);
    else
        join(v, to, seen, event->wakes);
}

static void compute_clocks(struct verifier *v)
{
    size_t count = (size_t)v->event_count * v->kinds * v->streams.count + 1;
    v->clocks = context_alloc(v->context, count * sizeof *v->clocks);
    v->round_clocks = context_alloc(v->context, count * sizeof *v->round_clocks);
    for (uint32_t i = 0; i < v->event_count; i++) {
        uint32_t e = v->order[i], wakes = v->events[e].wakes;
        const struct event *event = &v->events[e];
        uint32_t *base = clock_of(v, v->clocks, e), *rounds = clock_of(v, v->round_clocks, e);
        bool apart = event->from && event->loop != NONE;
        if (event->position)
            join(v, base, clock_of(v, v->clocks, e - 1), e - 1);
        if (wakes != NONE && !apart)
            join_wake(v, base, clock_of(v, v->clocks, wakes), event);
        memcpy(rounds, base, v->kinds * v->streams.count * sizeof *base);
        if (event->loop == NONE)
            continue;
        if (event->position && v->events[e - 1].loop == event->loop)
            join(v, rounds, clock_of(v, v->round_clocks, e - 1), e - 1);
        if (apart && wakes != NONE)
            join_wake(v, rounds, clock_of(v, v->round_clocks, wakes), event);
    }
}

/// The number of rounds is what the base dispatch's recv has learned.
static bool check_rounds(struct verifier *v)
{
    for (uint32_t e = 0; e < v->event_count; e++) {
        const struct plan_instr *instr = event_instr(v, e);
        if (instr->op != opcode_rounds)
            continue;
        uint32_t base = ROW(v->plan, plan_exchange, instr->exchange)->base;
        uint32_t learns = ROW(v->plan, plan_exchange, base)->node ? opcode_settle : opcode_recv;
        bool known = false;
        for (uint32_t r = 0; r < v->event_count && !known; r++)
            known = event_instr(v, r)->op == learns && event_instr(v, r)->exchange == base &&
                    event_clock(v, e, OWN)[v->events[r].stream] > v->events[r].position;
        if (!known)
            return verify_fail(v, "%s does not come after the recv of its base dispatch", event_text(v, e));
    }
    return true;
}

/// `count` compares totals of the whole step.
static bool check_count(struct verifier *v)
{
    uint32_t counts = 0;
    for (uint32_t e = 0; e < v->event_count; e++) {
        if (event_instr(v, e)->op != opcode_count)
            continue;
        counts++;
        for (uint32_t s = 0; s < v->streams.count; s++) {
            uint32_t length = v->stream_first[s + 1] - v->stream_first[s];
            // a signal that only this count waits for may be the last event
            uint32_t needed =
                length && event_instr(v, v->stream_first[s] + length - 1)->op == opcode_signal ? length - 1 : length;
            if (s != v->events[e].stream && event_clock(v, e, OWN)[s] < needed)
                return verify_fail(v, "%s does not come after all of stream `%s`", event_text(v, e),
                                   ir_text(v->plan, ROW(v->plan, plan_stream, v->streams.first + s)->name));
        }
    }
    return counts == 1 || verify_fail(v, "%u instructions count a step, not one", counts);
}

bool verify_events(struct verifier *v)
{
    uint32_t loops = 0;
    v->stream_first = context_alloc(v->context, (v->streams.count + 1) * sizeof *v->stream_first);
    for (uint32_t s = 0; s < v->streams.count; s++)
        if (!list_stream(v, s, &loops))
            return false;
    if (!match_waits(v) || !match_messages(v) || !sort_events(v))
        return false;
    compute_clocks(v);
    return check_rounds(v) && check_count(v);
}
