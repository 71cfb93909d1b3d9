// A schedule of tune's own, as numbers: micro-batches and their shares, waves of experts, which streams carry messages, pieces
// of what fills stalls, runs of the rows on their way and in the experts, chunks of the replies, and one list of steps, whose
// order is that of every stream. As text it is an ordinary schedule; its neighbours differ in one number or one step's place.
// Illegal ones fail to prove, like anyone's.
#include "compiler/tune/search.h"

#include <stdlib.h>
#include <string.h>

enum wiring { ONE_WIRE, TWO_WIRES, ALTERNATE, FOUR_WIRES, HOOK, WIRINGS };
enum what { BEFORE, DISPATCH, EXPERT, COMBINE };
enum { PARTS_MOST = 8, STEPS_MOST = 4 * PARTS_MOST, SHARE_MOST = 12, PIECES_MOST = 8, RUNS_MOST = 8, CHUNKS_MOST = 4, BEAM = 5, ROUNDS = 40 };

struct step {
    uint8_t what, unit; // wave `unit % waves` of micro-batch `unit / waves`
};

struct design {
    uint8_t parts, waves, wiring, pieces, runs, chunks; // parts * waves <= PARTS_MOST
    uint8_t shares[PARTS_MOST];
    uint8_t step_count;
    struct step steps[STEPS_MOST];
};

// ---- text -------------------------------------------------------------------------------------------------------------

static const char *join(struct tuning *t, const char *text, const char *const *names, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        text = context_printf(t->context, "%s%s%s", text, *text ? ", " : "", names[i]);
    return text;
}

static bool equal_shares(const struct design *d)
{
    for (uint32_t i = 1; i < d->parts; i++)
        if (d->shares[i] != d->shares[0])
            return false;
    return true;
}

static const char *splits_text(struct tuning *t, const struct design *d)
{
    const char *text = "", *shares = "";
    for (uint32_t i = 0; i < d->parts; i++)
        shares = context_printf(t->context, "%s%s%u", shares, i ? ", " : "", d->shares[i]);
    if (d->parts > 1)
        text = context_printf(t->context, "    split tokens into %u as i%s%s%s;\n", d->parts, equal_shares(d) ? "" : " { ratio: [",
                              equal_shares(d) ? "" : shares, equal_shares(d) ? "" : "] }");
    if (d->waves > 1)
        text = context_printf(t->context, "%s    split experts into %u as w;\n", text, d->waves);
    if (d->runs > 1)
        text = context_printf(t->context, "%s    split %s into %u as a;\n    split %s into %u as b;\n", text, t->shape.dispatch, d->runs,
                              t->shape.experts[0], d->runs);
    if (d->chunks > 1)
        text = context_printf(t->context, "%s    split %s into %u as k;\n", text, t->shape.combine, d->chunks);
    return text;
}

static const char *wiring_text(struct tuning *t, const struct design *d)
{
    const char *dispatch = t->shape.dispatch, *combine = t->shape.combine;
    switch (d->wiring) {
    case ONE_WIRE:
        return context_printf(t->context, "    stream comp uses sm;\n    stream wire uses net_out, net_in, copy[0];\n"
                                          "    bind %s, %s to wire;\n", dispatch, combine);
    case TWO_WIRES:
        return context_printf(t->context, "    stream comp uses sm;\n    stream tx uses net_out, net_in, copy[0];\n"
                                          "    stream rx uses net_out, net_in, copy[1];\n    bind %s to tx;\n    bind %s to rx;\n",
                              dispatch, combine);
    case ALTERNATE:
        return context_printf(t->context, "    stream comp uses sm;\n    stream io[2] uses net_out, net_in, copy;\n"
                                          "    bind %s, %s to io;\n", dispatch, combine);
    case FOUR_WIRES:
        return context_printf(t->context,
                              "    stream comp uses sm;\n    stream out uses net_out, copy[0];\n    stream back uses net_out, copy[1];\n"
                              "    stream d_in uses net_in;\n    stream c_in uses net_in;\n    bind %s.send to out;\n    bind %s.recv to d_in;\n"
                              "    bind %s.send to back;\n    bind %s.recv to c_in;\n", dispatch, dispatch, combine, combine);
    default:
        return context_printf(t->context,
                              "    stream comp uses sm, net_in;\n    stream out uses net_out, copy[0];\n"
                              "    stream back uses net_out, net_in, copy[1];\n    bind %s.send to out;\n    bind %s.recv to comp;\n"
                              "    bind %s to back;\n", dispatch, dispatch, combine);
    }
}

/// Where an instance stands: its micro-batch, its wave, its run or chunk; negative where its stage has none.
struct place {
    int part, wave, piece;
};

static struct place place_of(const struct design *d, uint32_t unit, int piece)
{
    return (struct place){d->parts > 1 ? (int)(unit / d->waves) : -1, d->waves > 1 ? (int)(unit % d->waves) : -1, piece};
}

/// `stage.phase[part, wave, piece] on io[wire]; ` with the indices that there are.
static const char *message_text(struct tuning *t, const char *name, const char *phase, const struct design *d, struct place at,
                                uint32_t wire)
{
    const int indices[] = {at.part, at.wave, at.piece};
    const char *text = "";
    for (int i = 0; i < 3; i++)
        if (indices[i] >= 0)
            text = context_printf(t->context, "%s%s%d", text, *text ? ", " : "[", indices[i]);
    const char *on = d->wiring == ALTERNATE && wire < 2 ? context_printf(t->context, " on io[%u]", wire) : "";
    return context_printf(t->context, "%s%s%s%s%s; ", name, phase, text, *text ? "]" : "", on);
}

static const char *instance_text(struct tuning *t, const char *name, const char *phase, const struct design *d, struct place at)
{
    return message_text(t, name, phase, d, at, NONE);
}

/// The messages of a step, piece by piece; each arrives on its own stream, or where it is hooked.
static const char *rows_text(struct tuning *t, const struct design *d, uint32_t unit)
{
    const char *text = "", *sent = d->wiring == FOUR_WIRES || d->wiring == HOOK ? ".send" : "";
    for (int k = 0; k < d->runs; k++) {
        struct place at = place_of(d, unit, d->runs > 1 ? k : -1);
        text = context_printf(t->context, "%s%s", text, message_text(t, t->shape.dispatch, sent, d, at, unit % 2));
        if (d->wiring == FOUR_WIRES)
            text = context_printf(t->context, "%s%s", text, instance_text(t, t->shape.dispatch, ".recv", d, at));
    }
    return text;
}

static const char *experts_text(struct tuning *t, const struct design *d, uint32_t unit)
{
    const char *text = "";
    for (int k = 0; k < d->runs; k++) {
        struct place at = place_of(d, unit, d->runs > 1 ? k : -1);
        if (d->wiring == HOOK)
            text = context_printf(t->context, "%s%s", text, instance_text(t, t->shape.dispatch, ".recv", d, at));
        for (uint32_t i = 0; i < t->shape.expert_count; i++)
            text = context_printf(t->context, "%s%s", text, instance_text(t, t->shape.experts[i], "", d, at));
    }
    return text;
}

static const char *replies_text(struct tuning *t, const struct design *d, uint32_t unit)
{
    const char *text = "";
    bool apart = d->wiring == FOUR_WIRES;
    for (int k = 0; k < d->chunks; k++)
        for (int phase = 0; phase < (apart ? 2 : 1); phase++)
            text = context_printf(t->context, "%s%s", text,
                                  message_text(t, t->shape.combine, !apart ? "" : phase ? ".recv" : ".send", d,
                                               place_of(d, unit, d->chunks > 1 ? k : -1), (unit + 1) % 2));
    return text;
}

static const char *step_text(struct tuning *t, const struct design *d, struct step step)
{
    const char *text = "";
    struct place at = place_of(d, step.unit, -1);
    at.wave = -1;
    switch (step.what) {
    case BEFORE:
        for (uint32_t i = 0; i < t->shape.before_count; i++)
            text = context_printf(t->context, "%s%s", text, instance_text(t, t->shape.before[i], "", d, at));
        return text;
    case DISPATCH:
        return rows_text(t, d, step.unit);
    case EXPERT:
        return experts_text(t, d, step.unit);
    default:
        return replies_text(t, d, step.unit);
    }
}

static const char *fill_text(struct tuning *t, const struct design *d)
{
    const char *text = "", *each = "";
    for (uint32_t i = 0; i < t->shape.free_count && d->pieces; i++)
        each = context_printf(t->context, "%s        fill comp with %s%s%s;\n", each, t->shape.free[i], d->parts > 1 ? "[i]" : "",
                              d->pieces > 1 ? context_printf(t->context, " { pieces: %u }", d->pieces) : "");
    if (*each)
        text = d->parts > 1 ? context_printf(t->context, "    for i in 0..%u {\n%s    }\n", d->parts, each) : each;
    return text;
}

static const char *design_text(struct tuning *t, const struct design *d)
{
    const struct layer_shape *s = &t->shape;
    const char *computed = join(t, join(t, "", s->before, s->before_count), s->experts, s->expert_count), *steps = "";
    if (d->pieces)
        computed = join(t, computed, s->free, s->free_count);
    for (uint32_t i = 0; i < d->step_count; i++)
        steps = context_printf(t->context, "%s    %s\n", steps, step_text(t, d, d->steps[i]));
    const char *all = context_printf(t->context, "%s, %s, %s", computed, s->dispatch, s->combine);
    return context_printf(t->context, "schedule %s for (%s) {\n%s%s    bind %s to comp;\n%s%s}\n", t->name, all, splits_text(t, d),
                          wiring_text(t, d), computed, steps, fill_text(t, d));
}

// ---- where the search begins ------------------------------------------------------------------------------------------

static void add_step(struct design *d, enum what what, uint32_t unit)
{
    d->steps[d->step_count++] = (struct step){(uint8_t)what, (uint8_t)unit};
}

/// Dispatches run `lead` units ahead of the experts; lead beyond them: all before any expert.
static void order_steps(struct design *d, uint32_t lead)
{
    uint32_t sent = 0, units = (uint32_t)d->parts * d->waves;
    d->step_count = 0;
    for (uint32_t i = 0; i < units; i++) {
        for (; sent < units && sent <= i + lead; sent++) {
            if (sent % d->waves == 0)
                add_step(d, BEFORE, sent);
            add_step(d, DISPATCH, sent);
        }
        add_step(d, EXPERT, i);
        add_step(d, COMBINE, i);
    }
}

static void taper(struct design *d, bool first, bool last)
{
    for (uint32_t i = 0; i < d->parts; i++)
        d->shares[i] = first || last ? 2 : 1;
    if (first)
        d->shares[0] = 1;
    if (last)
        d->shares[d->parts - 1] = 1;
}

static const struct candidate *try_design(struct tuning *t, const struct design *d)
{
    struct design *own = context_alloc(t->context, sizeof *own);
    *own = *d;
    return consider(t, (struct candidate){.use = t->name, .text = design_text(t, d), .design = own});
}

static void try_orders(struct tuning *t, struct design d)
{
    static const uint8_t leads[] = {1, 2, PARTS_MOST};
    uint32_t units = (uint32_t)d.parts * d.waves;
    for (size_t l = 0; l < sizeof leads; l++)
        for (uint8_t wiring = 0; wiring < WIRINGS; wiring++)
            for (int ends = 0; ends < (d.parts > 2 ? 4 : 1); ends++) {
                if (l && leads[l - 1] + 1u >= units) // the same order
                    continue;
                d.wiring = wiring;
                taper(&d, ends & 1, ends & 2);
                order_steps(&d, leads[l]);
                try_design(t, &d);
            }
}

/// Can rows go, and be computed, in runs? Not through relays; and one expert stage says how its rows are cut.
static bool can_cut(const struct tuning *t)
{
    return !t->shape.relayed && t->shape.expert_count == 1;
}

static void try_starts(struct tuning *t)
{
    static const uint8_t splits[][3] = {{1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {4, 1, 1}, {6, 1, 1}, {8, 1, 1}, {1, 2, 1},
                                        {1, 4, 1}, {1, 8, 1}, {2, 2, 1}, {2, 4, 1}, {1, 1, 2}, {1, 1, 4}, {2, 1, 2}};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
        if (splits[i][2] == 1 || can_cut(t))
            try_orders(t, (struct design){.parts = splits[i][0],
                                          .waves = splits[i][1],
                                          .runs = splits[i][2],
                                          .chunks = splits[i][2],
                                          .pieces = t->shape.free_count ? 2 : 0});
}

// ---- neighbours -------------------------------------------------------------------------------------------------------

/// The step at `from` stands at `to` instead.
static struct design moved(const struct design *d, uint32_t from, uint32_t to)
{
    struct design other = *d;
    struct step step = d->steps[from];
    if (from < to)
        memmove(&other.steps[from], &other.steps[from + 1], (to - from) * sizeof step);
    else
        memmove(&other.steps[to + 1], &other.steps[to], (from - to) * sizeof step);
    other.steps[to] = step;
    return other;
}

static bool on_comp(struct step step) { return step.what == BEFORE || step.what == EXPERT; }

/// Two steps whose order some stream shows.
static bool share_stream(const struct design *d, struct step a, struct step b)
{
    if (on_comp(a) != on_comp(b))
        return false;
    if (d->wiring == ALTERNATE && !on_comp(a))
        return (a.unit + (a.what == COMBINE)) % 2 == (b.unit + (b.what == COMBINE)) % 2;
    return on_comp(a) || d->wiring == ONE_WIRE || a.what == b.what;
}

static void try_moves(struct tuning *t, const struct design *d)
{
    for (uint32_t from = 0; from < d->step_count; from++)
        for (int way = -1; way <= 1; way += 2) {
            uint32_t crossed = 0;
            for (int to = (int)from + way; to >= 0 && to < d->step_count && crossed < 2; to += way) {
                if (!share_stream(d, d->steps[from], d->steps[to]))
                    continue;
                struct design other = moved(d, from, (uint32_t)to);
                try_design(t, &other);
                crossed++;
            }
        }
}

static void try_shares(struct tuning *t, const struct design *d)
{
    for (uint32_t i = 0; i < d->parts && d->parts > 1; i++)
        for (int way = -1; way <= 1; way += 2) {
            struct design other = *d;
            if (equal_shares(d)) // finer, so that a step is not a doubling
                for (uint32_t k = 0; k < d->parts; k++)
                    other.shares[k] = 4;
            int share = other.shares[i] + way;
            if (share < 1 || share > SHARE_MOST)
                continue;
            other.shares[i] = (uint8_t)share;
            try_design(t, &other);
        }
}

static void try_numbers(struct tuning *t, const struct design *d)
{
    for (int way = -1; way <= 1; way += 2) {
        struct design other = *d;
        other.pieces = (uint8_t)(d->pieces + way);
        if (t->shape.free_count && other.pieces >= 1 && other.pieces <= PIECES_MOST)
            try_design(t, &other);
        other = *d;
        other.chunks = (uint8_t)(d->chunks + way);
        if (other.chunks >= 1 && other.chunks <= CHUNKS_MOST)
            try_design(t, &other);
        other = *d;
        other.runs = (uint8_t)(d->runs + way);
        if (can_cut(t) && other.runs >= 1 && other.runs <= RUNS_MOST)
            try_design(t, &other);
    }
    for (uint8_t wiring = 0; wiring < WIRINGS; wiring++) {
        struct design other = *d;
        other.wiring = wiring;
        if (wiring != d->wiring)
            try_design(t, &other);
    }
}

static bool alike(const struct design *a, const struct design *b)
{
    return a->parts == b->parts && a->waves == b->waves && a->wiring == b->wiring && (a->runs > 1) == (b->runs > 1);
}

/// The best designs whose neighbours have not been tried, few of a kind.
static uint32_t next_beam(struct tuning *t, const struct design **done, uint32_t done_count, const struct design **beam)
{
    uint32_t count = 0, designs = 0;
    for (uint32_t i = 0; i < t->kept_count && designs < 8 * BEAM && count < BEAM; i++) {
        const struct design *d = t->kept[i].design;
        uint32_t same = 0;
        bool known = !d;
        designs += d != NULL;
        for (uint32_t k = 0; k < done_count && !known; k++)
            known = done[k] == d;
        for (uint32_t k = 0; k < count && !known; k++)
            same += alike(beam[k], d);
        if (!known && same < 2)
            beam[count++] = d;
    }
    return count;
}

void try_designs(struct tuning *t)
{
    if (!t->shape.dispatch || !t->shape.expert_count)
        return;
    const struct design *done[BEAM * ROUNDS], *beam[BEAM];
    uint32_t done_count = 0;
    try_starts(t);
    for (int round = 0; round < ROUNDS && t->evaluations < t->most; round++) {
        uint32_t count = next_beam(t, done, done_count, beam);
        for (uint32_t i = 0; i < count; i++) {
            done[done_count++] = beam[i];
            try_shares(t, beam[i]);
            try_numbers(t, beam[i]);
            try_moves(t, beam[i]);
        }
    }
}
