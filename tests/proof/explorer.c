// See explorer.h. A state is the set of sites (sites.h) that have been executed.
#include "tests/proof/explorer.h"

#include <stdlib.h>
#include <string.h>

#include "tests/proof/sites.h"

enum { MOST_SITES = 512, MOST_STREAMS = 4, WORDS = MOST_SITES / 64, UNIT = 16 };
enum { MOST_UNITS = 1024, MOST_LOOPS = 3, MOST_ROUNDS = 2 };

struct bits {
    uint64_t word[WORDS];
};

struct explorer {
    const struct ir *plan;
    const struct plan_variant *variant;
    uint32_t ranks, streams, site_count;
    unsigned steps;
    bool barrier;
    uint32_t rounds[MOST_LOOPS]; // by loop, in order of the pool's number
    bool all_run;                // every loop at least once
    struct site *sites;
    struct bits *conflicts;          // by site: sites that touch the same bytes, one of them writing
    struct bits *overwrites;         // by transfer: the recvs whose slot it writes into
    struct bits *needs, *signals;    // by site: all that must, and for a wait one that must, have been executed
    struct bits *disturbers;         // by site: of its conflicts, those that could come before it
    uint32_t words;                  // of a set that are in use
    uint32_t last[MOST_RANKS * MOST_STREAMS]; // last site of each stream, while listing
    struct bits *seen;               // hash table of states
    size_t seen_count, seen_capacity, most_states;
    struct exploration result;
};

static bool has(const struct bits *set, uint32_t site)
{
    return set->word[site / 64] >> site % 64 & 1;
}

static void add(struct bits *set, uint32_t site)
{
    set->word[site / 64] |= UINT64_C(1) << site % 64;
}

static const struct plan_instr *instr_of(const struct explorer *x, const struct site *site)
{
    return ROW(x->plan, plan_instr, site->instr);
}

static const struct plan_extent *extent_of(const struct explorer *x, uint32_t rank, uint32_t buffer)
{
    const struct plan_program *p = ROW(x->plan, plan_program, x->variant->programs.first + rank);
    return ROW(x->plan, plan_extent, p->extents.first + buffer - x->variant->buffers.first);
}

static void found(struct explorer *x, unsigned kind, const struct site *a, const struct site *b, const char *how)
{
    if (!x->result.found)
        snprintf(x->result.what, sizeof x->result.what, "%s: rank %u `%s`%s%s%s", how, a->rank,
                 ir_text(x->plan, instr_of(x, a)->label), a->op == TRANSFER ? " (its transfer)" : "",
                 b ? " and " : "", b ? ir_text(x->plan, instr_of(x, b)->label) : "");
    x->result.found |= kind;
}

// ------------------------------------------------------------------------------------------------------- listing

static uint32_t add_site(struct explorer *x, struct site site)
{
    if (x->site_count == MOST_SITES)
        return NONE;
    x->sites[x->site_count] = site;
    list_touches(x->plan, x->variant, &x->sites[x->site_count]);
    return x->site_count++;
}

static bool execute_instr(struct explorer *x, uint32_t rank, uint32_t stream, uint32_t row, unsigned step, uint32_t round,
                          bool last)
{
    const struct plan_instr *in = ROW(x->plan, plan_instr, row);
    uint32_t *ahead = &x->last[rank * MOST_STREAMS + stream];
    struct site site = {.op = in->op, .rank = rank, .stream = stream, .instr = row, .exchange = in->exchange, .before = *ahead};
    site.step = step, site.round = round;
    site.last_signal = last && in->op == opcode_signal;
    uint32_t made = *ahead = add_site(x, site);
    site.passed_on = in->op == opcode_forward;
    bool sends = in->op == opcode_send || site.passed_on;
    for (uint32_t peer = 0; sends && peer < x->ranks && made != NONE; peer++) {
        site.op = TRANSFER, site.peer = peer, site.before = *ahead;
        if (transfers(ROW(x->plan, plan_exchange, in->exchange), rank, peer, site.passed_on))
            made = add_site(x, site);
    }
    return made != NONE;
}

static bool list_stream(struct explorer *x, uint32_t rank, uint32_t stream, unsigned step)
{
    const struct plan_program *p = ROW(x->plan, plan_program, x->variant->programs.first + rank);
    struct rows rows = ROW(x->plan, plan_stream, p->streams.first + stream)->instrs;
    bool fits = true;
    for (uint32_t i = 0; i < rows.count && fits; i++) {
        const struct plan_instr *in = ROW(x->plan, plan_instr, rows.first + i);
        fits = execute_instr(x, rank, stream, rows.first + i, step, 0, i + 1 == rows.count);
        if (in->op != opcode_rounds)
            continue;
        uint32_t end = i + 1, loop = 0;
        while (end < rows.count && ROW(x->plan, plan_instr, rows.first + end)->op != opcode_end)
            end++;
        for (uint32_t e = x->variant->exchanges.first; e < in->exchange; e++)
            loop += ROW(x->plan, plan_exchange, e)->pool && ROW(x->plan, plan_exchange, e)->kind == exchange_kind_dispatch;
        for (uint32_t round = 0; round < x->rounds[loop]; round++)
            for (uint32_t j = i + 1; j < end && fits; j++)
                fits = execute_instr(x, rank, stream, rows.first + j, step, round, false);
        i = end;
    }
    return fits;
}

/// Bytes of an access when every rank has `tokens` tokens: [*begin, *end) of the arena, or of an outside buffer.
static void range_of(const struct explorer *x, const struct touched *a, int64_t tokens, int64_t *begin, int64_t *end)
{
    const struct plan_buffer *b = ROW(x->plan, plan_buffer, a->buffer);
    const struct plan_extent *extent = extent_of(x, a->rank, a->buffer);
    *begin = extent->offset + a->first;
    *end = *begin + (a->bytes < 0 ? extent->bytes : a->bytes);
    if (a->slice != NONE) {
        const struct plan_part *part = ROW(x->plan, plan_part, a->slice);
        *begin = extent->offset + tokens * part->begin / part->total * b->row_bytes;
        *end = extent->offset + tokens * part->end / part->total * b->row_bytes;
    }
}

static bool in_arena(const struct explorer *x, const struct touched *a)
{
    return ROW(x->plan, plan_buffer, a->buffer)->kind == buffer_kind_arena;
}

/// Of one buffer, rows and slots count; of two that share bytes, all of them: a buffer is what takes another one's place.
static bool meet(const struct explorer *x, const struct touched *a, const struct touched *b)
{
    if (a->rank != b->rank || (a->buffer != b->buffer && (!in_arena(x, a) || !in_arena(x, b))))
        return false;
    if (a->buffer != b->buffer) {
        const struct plan_extent *own = extent_of(x, a->rank, a->buffer), *other = extent_of(x, b->rank, b->buffer);
        return own->offset < other->offset + other->bytes && other->offset < own->offset + own->bytes;
    }
    for (int64_t tokens = 0; tokens <= x->variant->bound; tokens++) {
        int64_t begin_a, end_a, begin_b, end_b;
        range_of(x, a, tokens, &begin_a, &end_a);
        range_of(x, b, tokens, &begin_b, &end_b);
        if (begin_a < end_b && begin_b < end_a)
            return true;
    }
    return false;
}

/// Messages of one exchange, step and round lie apart by construction: slots of different ranks.
static bool same_messages(const struct site *a, const struct site *b)
{
    return a->op == TRANSFER && b->op == TRANSFER && a->exchange == b->exchange && a->step == b->step &&
           a->round == b->round && a->passed_on == b->passed_on;
}

/// The instruction after which all of an exchange's slots have arrived.
static bool completes(const struct explorer *x, const struct site *site)
{
    if (site->op != opcode_recv && site->op != opcode_settle)
        return false;
    const struct plan_exchange *e = ROW(x->plan, plan_exchange, site->exchange);
    return site->op == (e->node && e->kind == exchange_kind_dispatch ? opcode_settle : opcode_recv);
}

/// `rounds` goes by the number that was learned when the base dispatch had arrived.
static bool learns(const struct explorer *x, const struct site *recv, const struct site *rounds)
{
    return completes(x, recv) && rounds->op == opcode_rounds && recv->rank == rounds->rank &&
           recv->step == rounds->step && recv->exchange == ROW(x->plan, plan_exchange, rounds->exchange)->base;
}

/// `count` compares totals: all of its rank's other streams must be over, but for a last signal.
static bool counts(const struct site *count, const struct site *other)
{
    return count->op == opcode_count && other->rank == count->rank && other->step == count->step && !other->last_signal &&
           other->stream != count->stream && other->op != TRANSFER && other->op != opcode_host;
}

static void find_conflicts(struct explorer *x)
{
    for (uint32_t i = 0; i < x->site_count; i++)
        for (uint32_t j = 0; j < x->site_count; j++) {
            const struct site *a = &x->sites[i], *b = &x->sites[j];
            bool conflict = false, into = false;
            for (uint32_t m = 0; m < a->touch_count && i != j; m++)
                for (uint32_t n = 0; n < b->touch_count; n++) {
                    if (!(a->touched[m].write || b->touched[n].write) || !meet(x, &a->touched[m], &b->touched[n]))
                        continue;
                    conflict = true;
                    into |= a->op == TRANSFER && a->touched[m].write && completes(x, b);
                }
            conflict |= learns(x, a, b) || learns(x, b, a) || counts(a, b) || counts(b, a);
            bool own = a->exchange == b->exchange && a->step == b->step && a->round == b->round;
            if (conflict && !same_messages(a, b))
                add(&x->conflicts[i], j);
            if (into && !own && b->rank == a->peer)
                add(&x->overwrites[i], j);
        }
}

// -------------------------------------------------------------------------------------------------------- running

/// Of the messages to it: with relays a dispatch's recv does not wait for what is passed on, and settle not for other nodes.
static bool awaited(const struct explorer *x, const struct site *site, const struct site *transfer)
{
    const struct plan_exchange *e = ROW(x->plan, plan_exchange, site->exchange);
    if (site->op == opcode_settle)
        return is_near(e, site->rank, transfer->rank);
    return !e->node || e->kind == exchange_kind_combine || !transfer->passed_on;
}

/// What must have been executed before site `i`, besides what is ahead of it in its stream.
static bool needs(const struct explorer *x, uint32_t i, uint32_t other)
{
    const struct site *s = &x->sites[i], *o = &x->sites[other];
    bool same = o->exchange == s->exchange && o->step == s->step && o->round == s->round;
    if (other == s->before || (x->barrier && o->step < s->step))
        return true;
    if (s->op == opcode_recv || s->op == opcode_settle) // all messages to it, and its own send
        return same && ((o->op == TRANSFER && o->peer == s->rank && awaited(x, s, o)) ||
                        (o->op == opcode_send && o->rank == s->rank));
    bool earlier = o->step != s->step     ? o->step < s->step
                   : o->round != s->round ? o->round < s->round
                                          : o->passed_on < s->passed_on;
    return s->op == TRANSFER && o->op == TRANSFER && earlier && o->exchange == s->exchange && o->rank == s->rank &&
           o->peer == s->peer;
}

static bool wakes(const struct explorer *x, uint32_t wait, uint32_t signal)
{
    const struct site *w = &x->sites[wait], *s = &x->sites[signal];
    const struct plan_instr *a = instr_of(x, w), *b = instr_of(x, s);
    return w->op == opcode_wait && s->op == opcode_signal && s->rank == w->rank && s->step == w->step &&
           a->semaphore == b->semaphore && b->value >= a->value;
}

static void find_needs(struct explorer *x)
{
    for (uint32_t i = 0; i < x->site_count; i++) {
        bool awaits = (x->sites[i].op == opcode_recv || x->sites[i].op == opcode_settle) && x->ranks > 1;
        for (uint32_t j = 0; j < x->site_count; j++) {
            if (needs(x, i, j)) {
                add(&x->needs[i], j);
                awaits &= x->sites[j].op != TRANSFER;
            }
            if (wakes(x, i, j))
                add(&x->signals[i], j);
        }
        if (awaits) // nobody sends: it never ends
            add(&x->needs[i], i);
    }
}

/// What is executed ahead of site `i` whatever happens, from what is known of the sites that it needs. True: it has grown.
static bool grow_ahead(const struct explorer *x, struct bits *ahead, uint32_t i)
{
    struct bits more = ahead[i], any;
    memset(&any, 0xff, sizeof any);
    bool waits = false;
    for (uint32_t j = 0; j < x->site_count; j++)
        for (uint32_t w = 0; w < x->words && (has(&x->needs[i], j) || has(&x->signals[i], j)); w++) {
            uint64_t with = ahead[j].word[w] | (w == j / 64 ? UINT64_C(1) << j % 64 : 0);
            more.word[w] |= has(&x->needs[i], j) ? with : 0;
            any.word[w] &= has(&x->signals[i], j) ? with : UINT64_MAX;
            waits |= has(&x->signals[i], j);
        }
    for (uint32_t w = 0; w < x->words && waits && instr_of(x, &x->sites[i])->value > 0; w++)
        more.word[w] |= any.word[w]; // whichever signal it is that ends the wait
    bool grown = memcmp(&more, &ahead[i], sizeof more) != 0;
    ahead[i] = more;
    return grown;
}

static void find_disturbers(struct explorer *x)
{
    struct bits *ahead = calloc(x->site_count, sizeof *ahead);
    for (bool grown = true; grown;) {
        grown = false;
        for (uint32_t i = 0; i < x->site_count; i++)
            grown |= grow_ahead(x, ahead, i);
    }
    for (uint32_t i = 0; i < x->site_count; i++)
        for (uint32_t j = 0; j < x->site_count; j++)
            if (has(&x->conflicts[i], j) && !has(&ahead[j], i))
                add(&x->disturbers[i], j);
    free(ahead);
}

static bool enabled(const struct explorer *x, const struct bits *done, uint32_t site)
{
    const struct site *s = &x->sites[site];
    uint64_t missing = 0, raised = 0;
    for (uint32_t w = 0; w < x->words; w++) {
        missing |= x->needs[site].word[w] & ~done->word[w];
        raised |= x->signals[site].word[w] & done->word[w];
    }
    return !has(done, site) && !missing && (s->op != opcode_wait || raised || instr_of(x, s)->value <= 0);
}

static bool all_done(const struct explorer *x, const struct bits *done)
{
    for (uint32_t i = 0; i < x->site_count; i++)
        if (!has(done, i))
            return false;
    return true;
}

/// Could something that may come before it, or with it, touch the same bytes?
static bool disturbed(const struct explorer *x, const struct bits *done, uint32_t site)
{
    for (uint32_t w = 0; w < x->words; w++)
        if (x->disturbers[site].word[w] & ~done->word[w])
            return true;
    return false;
}

static void look_for_races(struct explorer *x, const uint32_t *able, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (has(&x->conflicts[able[i]], able[j]))
                found(x, EXPLORED_RACE, &x->sites[able[i]], &x->sites[able[j]], "race");
}

/// A message into the slot of one that has arrived and has not been received.
static void look_for_overwriting(struct explorer *x, const struct bits *done, uint32_t transfer)
{
    for (uint32_t r = 0; r < x->site_count; r++) {
        if (!has(&x->overwrites[transfer], r) || has(done, r))
            continue;
        for (uint32_t i = 0; i < x->site_count; i++) {
            const struct site *s = &x->sites[i], *recv = &x->sites[r];
            if (s->op == TRANSFER && s->exchange == recv->exchange && s->step == recv->step && s->round == recv->round &&
                s->peer == recv->rank && has(done, i))
                found(x, EXPLORED_OVERFLOW, &x->sites[transfer], recv, "overwrites what has not been received");
        }
    }
}

/// Whose bytes they are: by rank and unit of the arena, 1 + the buffer that was last written there in this step.
struct shadow {
    uint16_t owner[MOST_RANKS][MOST_UNITS];
};

static void check_bounds(struct explorer *x, const struct site *site, const struct touched *a)
{
    const struct plan_extent *extent = extent_of(x, a->rank, a->buffer);
    int64_t arena = ROW(x->plan, plan_program, x->variant->programs.first + a->rank)->arena_bytes;
    if (in_arena(x, a) && (a->first + a->bytes > extent->bytes || extent->offset + extent->bytes > arena))
        found(x, EXPLORED_OVERFLOW, site, NULL, "reaches beyond its buffer");
}

/// A launch's units run at the same time: what one writes no other may touch under another name.
static bool meets_itself(const struct explorer *x, const struct site *site)
{
    for (uint32_t m = 0; m < site->touch_count && site->op == opcode_launch; m++)
        for (uint32_t n = 0; n < site->touch_count; n++)
            if (site->touched[m].write && (site->touched[m].buffer != site->touched[n].buffer ||
                                           site->touched[m].slice != site->touched[n].slice) &&
                meet(x, &site->touched[m], &site->touched[n]))
                return true;
    return false;
}

/// What rounds write is read behind them as far as they ran: whether it was written is judged where all ran.
static bool judged(const struct explorer *x, uint32_t buffer)
{
    bool inside = false;
    for (uint32_t i = 0; i < COUNT(x->plan, plan_instr) && !x->all_run; i++) {
        const struct plan_instr *in = ROW(x->plan, plan_instr, i);
        inside = in->op == opcode_rounds || (inside && in->op != opcode_end);
        for (uint32_t a = 0; inside && a < in->args.count; a++) {
            const struct plan_arg *arg = ROW(x->plan, plan_arg, in->args.first + a);
            if (arg->buffer == buffer && arg->access != access_read)
                return false;
        }
        if (inside && in->op == opcode_recv && ROW(x->plan, plan_exchange, in->exchange)->recv == buffer)
            return false;
    }
    return true;
}

static void perform(struct explorer *x, const struct bits *done, struct shadow *memory, uint32_t number)
{
    const struct site *site = &x->sites[number];
    int64_t begin, end;
    for (uint32_t i = 0; i < x->site_count; i++)
        if (learns(x, &x->sites[i], site) && !has(done, i))
            found(x, EXPLORED_UNWRITTEN, site, &x->sites[i], "goes by what has not been learned");
    for (uint32_t i = 0; site->op == opcode_count && i < x->site_count; i++)
        if (counts(site, &x->sites[i]) && !has(done, i))
            found(x, EXPLORED_UNWRITTEN, site, &x->sites[i], "counts what is not over");
    if (meets_itself(x, site))
        found(x, EXPLORED_RACE, site, NULL, "race within a launch");
    if (site->op == TRANSFER)
        look_for_overwriting(x, done, number);
    for (int write = 0; write < 2; write++)
        for (uint32_t i = 0; i < site->touch_count; i++) {
            const struct touched *a = &site->touched[i];
            if (a->write != (write != 0) || !in_arena(x, a))
                continue;
            check_bounds(x, site, a);
            range_of(x, a, x->variant->bound, &begin, &end);
            for (int64_t u = begin / UNIT; u < (end + UNIT - 1) / UNIT && u < MOST_UNITS; u++) {
                uint16_t *owner = &memory->owner[a->rank][u];
                if (!write && *owner != a->buffer + 1 && judged(x, a->buffer))
                    found(x, *owner ? EXPLORED_OVERFLOW : EXPLORED_UNWRITTEN, site, NULL,
                          *owner ? "reads what something else has overwritten" : "reads what nothing has written");
                if (write)
                    *owner = (uint16_t)(a->buffer + 1);
            }
        }
}

/// The state's place in the hash table, or the free one that it would take.
static struct bits *place_of(const struct explorer *x, const struct bits *state)
{
    uint64_t hash = 1469598103934665603u;
    for (uint32_t w = 0; w < x->words; w++)
        hash = (hash ^ state->word[w]) * 1099511628211u, hash ^= hash >> 29;
    size_t at = hash & (x->seen_capacity - 1);
    while (has(&x->seen[at], 0) && memcmp(&x->seen[at], state, sizeof *state)) // site 0 is in every state
        at = (at + 1) & (x->seen_capacity - 1);
    return &x->seen[at];
}

static void grow(struct explorer *x)
{
    struct bits *old = x->seen;
    size_t count = x->seen_capacity;
    x->seen_capacity = count ? 2 * count : 256;
    x->seen = calloc(x->seen_capacity, sizeof *x->seen);
    for (size_t i = 0; i < count; i++)
        if (has(&old[i], 0))
            *place_of(x, &old[i]) = old[i];
    free(old);
}

static bool remember(struct explorer *x, const struct bits *state)
{
    if (2 * x->seen_count >= x->seen_capacity)
        grow(x);
    struct bits *place = place_of(x, state);
    if (has(place, 0))
        return false;
    *place = *state;
    x->seen_count++;
    return true;
}

/// Executes what cannot be disturbed until nothing of that kind is left; lists what is then enabled.
static uint32_t settle(struct explorer *x, struct bits *done, struct shadow *memory, uint32_t *able)
{
    for (;;) {
        uint32_t count = 0, calm = NONE;
        for (uint32_t i = 0; i < x->site_count && calm == NONE; i++)
            if (enabled(x, done, i)) {
                able[count++] = i;
                if (!disturbed(x, done, i))
                    calm = i;
            }
        if (calm == NONE)
            return count;
        perform(x, done, memory, calm);
        add(done, calm);
    }
}

static void visit(struct explorer *x, struct bits done, const struct shadow *before)
{
    uint32_t able[MOST_SITES];
    struct shadow *memory = malloc(sizeof *memory);
    *memory = *before;
    uint32_t count = settle(x, &done, memory, able);
    if (x->seen_count >= x->most_states)
        x->result.found |= EXPLORED_TOO_LARGE;
    else if (remember(x, &done)) {
        look_for_races(x, able, count);
        if (!count && !all_done(x, &done))
            for (uint32_t i = 0; i < x->site_count; i++)
                if (!has(&done, i)) {
                    found(x, EXPLORED_DEADLOCK, &x->sites[i], NULL, "waits for ever");
                    break;
                }
        // a race is enough, but one way is followed to its end for the other faults
        for (uint32_t i = 0; i < count && !(i && x->result.found) && !(x->result.found & EXPLORED_TOO_LARGE); i++) {
            struct bits next = done;
            struct shadow after = *memory;
            perform(x, &done, &after, able[i]);
            add(&next, able[i]);
            visit(x, next, &after);
        }
    }
    free(memory);
}

static bool list_sites(struct explorer *x)
{
    bool fits = true;
    x->site_count = 0;
    for (uint32_t i = 0; i < MOST_RANKS * MOST_STREAMS; i++)
        x->last[i] = NONE;
    x->sites[x->site_count++] = (struct site){.op = opcode_host, .before = NONE, .exchange = NONE}; // the beginning
    for (unsigned step = 0; step < x->steps; step++)
        for (uint32_t r = 0; r < x->ranks; r++)
            for (uint32_t s = 0; s < x->streams; s++)
                fits = fits && list_stream(x, r, s, step);
    return fits;
}

static void explore_rounds(struct explorer *x)
{
    if (!list_sites(x)) {
        x->result.found |= EXPLORED_TOO_LARGE;
        return;
    }
    struct bits *sets = calloc(5 * (size_t)x->site_count, sizeof *sets), done = {{0}};
    struct shadow *memory = calloc(1, sizeof *memory);
    x->words = (x->site_count + 63) / 64;
    x->conflicts = sets;
    x->overwrites = sets + x->site_count;
    x->needs = sets + 2 * x->site_count;
    x->signals = sets + 3 * x->site_count;
    x->disturbers = sets + 4 * x->site_count;
    x->seen = NULL;
    x->seen_count = x->seen_capacity = 0;
    find_conflicts(x);
    find_needs(x);
    find_disturbers(x);
    add(&done, 0);
    visit(x, done, memory);
    x->result.states += x->seen_count;
    free(memory);
    free(x->seen);
    free(sets);
}

struct exploration explore(const struct ir *plan, uint32_t variant, unsigned steps, bool barrier, size_t most_states)
{
    struct explorer x = {.plan = plan, .variant = ROW(plan, plan_variant, variant), .steps = steps, .barrier = barrier};
    x.ranks = x.variant->programs.count;
    x.streams = ROW(plan, plan_program, x.variant->programs.first)->streams.count;
    x.most_states = most_states;
    x.sites = calloc(MOST_SITES, sizeof *x.sites);
    uint32_t loops = 0, combinations = 1;
    for (uint32_t i = 0; i < x.variant->exchanges.count; i++) {
        const struct plan_exchange *e = ROW(plan, plan_exchange, x.variant->exchanges.first + i);
        loops += e->pool && e->kind == exchange_kind_dispatch;
    }
    for (uint32_t i = 0; i < loops; i++)
        combinations *= MOST_ROUNDS + 1;
    if (x.ranks > MOST_RANKS || x.streams > MOST_STREAMS || loops > MOST_LOOPS)
        x.result.found = EXPLORED_TOO_LARGE;
    for (uint32_t c = 0; c < combinations && !x.result.found; c++) {
        x.all_run = true;
        for (uint32_t i = 0, left = c; i < loops; i++, left /= MOST_ROUNDS + 1) {
            x.rounds[i] = left % (MOST_ROUNDS + 1);
            x.all_run = x.all_run && x.rounds[i];
        }
        explore_rounds(&x);
    }
    free(x.sites);
    return x.result;
}
