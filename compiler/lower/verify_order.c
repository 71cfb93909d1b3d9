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

/// Every exchange: one send and one recv in the program (in rounds: one each an iteration).
static bool match_messages(struct verifier *v)
{
    uint32_t count = v->variant->exchanges.count * ROUND_COPIES;
    uint32_t *send = context_alloc(v->context, (count + 1) * sizeof *send);
    uint32_t *recv = context_alloc(v->context, (count + 1) * sizeof *recv);
    for (uint32_t i = 0; i < count; i++)
        send[i] = recv[i] = NONE;
    for (uint32_t e = 0; e < v->event_count; e++) {
        const struct plan_instr *instr = event_instr(v, e);
        if (instr->op != opcode_send && instr->op != opcode_recv)
            continue;
        if (!message_in_place(v, e))
            return false;
        uint32_t slot = (instr->exchange - v->variant->exchanges.first) * ROUND_COPIES + v->events[e].iteration;
        uint32_t *side = instr->op == opcode_send ? send : recv;
        if (side[slot] != NONE)
            return verify_fail(v, "%s repeats %s", event_text(v, e), event_text(v, side[slot]));
        side[slot] = e;
    }
    for (uint32_t i = 0; i < count; i++) {
        if ((send[i] == NONE) != (recv[i] == NONE))
            return verify_fail(v, "%s has no %s on the other ranks", event_text(v, send[i] == NONE ? recv[i] : send[i]),
                               send[i] == NONE ? "send" : "recv");
        if (i % ROUND_COPIES == 0 && send[i] == NONE)
            return verify_fail(
                v, "exchange `%s` is never sent",
                ir_text(v->plan, ROW(v->plan, plan_exchange, v->variant->exchanges.first + i / ROUND_COPIES)->name));
        if (recv[i] != NONE)
            v->events[recv[i]].wakes = send[i];
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
    return clocks + (size_t)event * 2 * v->streams.count;
}

static void raise(uint32_t *to, uint32_t value)
{
    *to = value > *to ? value : *to;
}

/// `to` starts after `from` has ended: an event of its own rank.
static void join(const struct verifier *v, uint32_t *to, const uint32_t *from, uint32_t event)
{
    for (uint32_t i = 0; i < 2 * v->streams.count; i++)
        raise(&to[i], from[i]);
    raise(&to[v->events[event].stream], v->events[event].position + 1);
}

/// `to` starts after the sends of all ranks, its own too. What a peer knew of other ranks it knew of this one, and, where
/// there are more than two, of every third one.
static void join_messages(const struct verifier *v, uint32_t *to, const uint32_t *from, uint32_t event)
{
    uint32_t s = v->streams.count;
    join(v, to, from, event);
    if (v->info->ranks == 1)
        return;
    for (uint32_t i = 0; i < s; i++) {
        raise(&to[i], from[s + i]);
        raise(&to[s + i], from[i]);
    }
    raise(&to[s + v->events[event].stream], v->events[event].position + 1);
}

static void compute_clocks(struct verifier *v)
{
    size_t count = (size_t)v->event_count * 2 * v->streams.count + 1;
    v->clocks = context_alloc(v->context, count * sizeof *v->clocks);
    v->round_clocks = context_alloc(v->context, count * sizeof *v->round_clocks);
    for (uint32_t i = 0; i < v->event_count; i++) {
        uint32_t e = v->order[i], wakes = v->events[e].wakes;
        const struct event *event = &v->events[e];
        uint32_t *base = clock_of(v, v->clocks, e), *rounds = clock_of(v, v->round_clocks, e);
        bool message = event_instr(v, e)->op == opcode_recv, apart = message && event->loop != NONE;
        if (event->position)
            join(v, base, clock_of(v, v->clocks, e - 1), e - 1);
        if (wakes != NONE && !apart)
            (message ? join_messages : join)(v, base, clock_of(v, v->clocks, wakes), wakes);
        memcpy(rounds, base, 2 * v->streams.count * sizeof *base);
        if (event->loop == NONE)
            continue;
        if (event->position && v->events[e - 1].loop == event->loop)
            join(v, rounds, clock_of(v, v->round_clocks, e - 1), e - 1);
        if (apart && wakes != NONE)
            join_messages(v, rounds, clock_of(v, v->round_clocks, wakes), wakes);
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
        bool known = false;
        for (uint32_t r = 0; r < v->event_count && !known; r++)
            known = event_instr(v, r)->op == opcode_recv && event_instr(v, r)->exchange == base &&
                    event_clock(v, e, false)[v->events[r].stream] > v->events[r].position;
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
            if (s != v->events[e].stream && event_clock(v, e, false)[s] < needed)
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
