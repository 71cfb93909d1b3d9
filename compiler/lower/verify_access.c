// Any two accesses to overlapping bytes of one rank's memory are ordered unless both read. Events are taken in an order
// that respects all waits; for every place the last read and write of each stream is remembered, on the buffer's own
// rank and on others, and compared with what the new access knows to have ended.
//
// Accesses through pointers follow the built-in that wrote the control buffer: what it was given is what they touch.
// A message writes its recv buffer and reads its send buffer from the start of the send to the end of the recv.
#include "compiler/lower/verify.h"

struct use {
    uint32_t place;
    bool write, remote;
};

struct history { // [side][stream]: 1 + position of the last access
    uint32_t *reads, *writes;
};

struct places {
    struct verifier *v;
    uint32_t buffers, parts, count;     // place = buffer, or buffers + buffer * parts + part for a slice
    uint32_t *overlap_first, *overlaps; // by place: the places that share bytes with it, itself first
    struct history *histories;
    uint32_t *writer; // by buffer: the instruction that wrote a control buffer, or NONE
    struct use uses[4 * 16];
    uint32_t use_count;
};

static uint32_t buffer_of(const struct places *p, uint32_t place)
{
    return place < p->buffers ? place : (place - p->buffers) / p->parts;
}

static const struct plan_buffer *buffer_row(const struct places *p, uint32_t buffer)
{
    return ROW(p->v->plan, plan_buffer, p->v->variant->buffers.first + buffer);
}

/// Token rows of two parts, or pieces of parts, are apart when their shares are.
static bool parts_apart(const struct places *p, uint32_t a, uint32_t b)
{
    const struct plan_part *x = ROW(p->v->plan, plan_part, p->v->variant->parts.first + a);
    const struct plan_part *y = ROW(p->v->plan, plan_part, p->v->variant->parts.first + b);
    return x->end * y->total <= y->begin * x->total || y->end * x->total <= x->begin * y->total;
}

static bool bytes_meet(const struct places *p, uint32_t a, uint32_t b)
{
    const struct verifier *v = p->v;
    for (uint32_t r = 0; r < v->info->ranks; r++) {
        if (r && v->programs[r].extents.first == v->programs[r - 1].extents.first)
            continue;
        const struct plan_extent *x = ROW(v->plan, plan_extent, v->programs[r].extents.first + a);
        const struct plan_extent *y = ROW(v->plan, plan_extent, v->programs[r].extents.first + b);
        if (x->bytes && y->bytes && x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes)
            return true;
    }
    return false;
}

static bool overlap(const struct places *p, uint32_t a, uint32_t b)
{
    uint32_t x = buffer_of(p, a), y = buffer_of(p, b);
    if (x != y) // the caller's buffers and parameters lie outside the arena
        return buffer_row(p, x)->kind == buffer_kind_arena && buffer_row(p, y)->kind == buffer_kind_arena &&
               bytes_meet(p, x, y);
    return a < p->buffers || b < p->buffers ||
           !parts_apart(p, (a - p->buffers) % p->parts, (b - p->buffers) % p->parts);
}

/// Places that some argument or exchange names; slices of others never occur.
static bool *used_places(const struct places *p)
{
    const struct verifier *v = p->v;
    bool *used = context_alloc(v->context, p->count + 1);
    for (uint32_t b = 0; b < p->buffers; b++)
        used[b] = buffer_row(p, b)->kind != buffer_kind_param;
    for (uint32_t e = 0; e < v->event_count; e++) {
        struct rows args = event_instr(v, e)->args;
        for (uint32_t i = 0; i < args.count; i++) {
            const struct plan_arg *arg = ROW(v->plan, plan_arg, args.first + i);
            if (arg->slice != NONE && arg->buffer != NONE)
                used[p->buffers + (arg->buffer - v->variant->buffers.first) * p->parts +
                     (arg->slice - v->variant->parts.first)] = true;
        }
    }
    return used;
}

static void find_overlaps(struct places *p)
{
    const bool *used = used_places(p);
    uint32_t *list = context_alloc(p->v->context, (p->count + 1) * sizeof *list), count = 0, total = 0, capacity = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (used[i])
            list[count++] = i;
    p->overlap_first = context_alloc(p->v->context, (p->count + 2) * sizeof *p->overlap_first);
    for (uint32_t i = 0; i < p->count; i++) {
        p->overlap_first[i] = total;
        if (!used[i])
            continue;
        for (uint32_t j = 0; j < count; j++)
            if (list[j] == i || overlap(p, i, list[j])) {
                p->overlaps = context_grow(p->v->context, p->overlaps, &capacity, total + 1, sizeof *p->overlaps);
                p->overlaps[total++] = list[j];
            }
    }
    p->overlap_first[p->count] = total;
}

static void use_place(struct places *p, uint32_t place, bool write, bool remote)
{
    if (place == NONE || (remote && p->v->info->ranks == 1))
        return;
    for (uint32_t i = 0; i < p->use_count; i++)
        if (p->uses[i].place == place && p->uses[i].remote == remote) {
            p->uses[i].write |= write;
            return;
        }
    p->uses[p->use_count++] = (struct use){place, write, remote};
}

/// The place an argument names; NONE for parameters, which nothing writes.
static uint32_t place_of(const struct places *p, const struct plan_instr *instr, uint32_t number)
{
    if (number >= instr->args.count)
        return NONE;
    const struct plan_arg *arg = ROW(p->v->plan, plan_arg, instr->args.first + number);
    uint32_t buffer = arg->buffer - p->v->variant->buffers.first;
    if (buffer_row(p, buffer)->kind == buffer_kind_param)
        return NONE;
    return arg->slice == NONE ? buffer : p->buffers + buffer * p->parts + (arg->slice - p->v->variant->parts.first);
}

static uint32_t buffer_place(const struct places *p, uint32_t buffer)
{
    return buffer - p->v->variant->buffers.first;
}

struct through { // what a role touches through the control that a writer filled
    uint32_t role, writer;
    uint8_t reads[4], writes[4]; // 1 + argument of the writer, 0: none
};

static const struct through throughs[] = {
    {kernel_role_copy_rows, kernel_role_bin, {BIN_X + 1}, {BIN_SEND + 1}},
    {kernel_role_copy_rows, kernel_role_bin_round, {ROUND_X + 1}, {ROUND_SEND + 1}},
    {kernel_role_copy_rows, kernel_role_fan_out, {FAN_ARRIVED + 1, FAN_X + 1}, {FAN_A + 1}},
    {kernel_role_copy_rows, kernel_role_dense, {DENSE_X + 1}, {DENSE_A + 1}},
    {kernel_role_mlp_down, kernel_role_fan_out, {0}, {FAN_REPLY + 1, FAN_OWN + 1}},
    {kernel_role_mlp_down, kernel_role_dense, {0}, {DENSE_Y + 1}},
    {kernel_role_merge, kernel_role_bin, {BIN_REPLY + 1, BIN_OWN + 1, BIN_SPILL + 1}, {0}},
};

static uint32_t role_of(const struct verifier *v, const struct plan_instr *instr)
{
    return ROW(v->plan, plan_kernel, instr->kernel)->role;
}

static bool use_through(struct places *p, uint32_t event, uint32_t control)
{
    const struct verifier *v = p->v;
    const struct plan_instr *instr = event_instr(v, event);
    uint32_t place = place_of(p, instr, control);
    uint32_t row = place == NONE ? NONE : p->writer[buffer_of(p, place)];
    if (row == NONE)
        return verify_fail(v, "%s follows control data that nothing wrote", event_text(v, event));
    const struct plan_instr *writer = ROW(v->plan, plan_instr, row);
    for (size_t i = 0; i < sizeof throughs / sizeof *throughs; i++) {
        if (throughs[i].role != role_of(v, instr) || throughs[i].writer != role_of(v, writer))
            continue;
        for (int j = 0; j < 4; j++) {
            if (throughs[i].reads[j])
                use_place(p, place_of(p, writer, throughs[i].reads[j] - 1u), false, false);
            if (throughs[i].writes[j])
                use_place(p, place_of(p, writer, throughs[i].writes[j] - 1u), true, false);
        }
        return true;
    }
    return verify_fail(v, "%s follows control data of the wrong kind", event_text(v, event));
}

static void note_writer(struct places *p, const struct plan_instr *instr, uint32_t row, uint32_t control)
{
    uint32_t place = place_of(p, instr, control);
    if (place != NONE)
        p->writer[buffer_of(p, place)] = row;
}

static bool use_launch(struct places *p, uint32_t event)
{
    const struct plan_instr *instr = event_instr(p->v, event);
    if (instr->kernel == NONE)
        return verify_fail(p->v, "%s: no kernel", event_text(p->v, event));
    uint32_t row = p->v->events[event].instr;
    switch (role_of(p->v, instr)) {
    case kernel_role_bin:
        note_writer(p, instr, row, BIN_BINS);
        return true;
    case kernel_role_bin_round:
        note_writer(p, instr, row, ROUND_CONTROL);
        return true;
    case kernel_role_dense:
        note_writer(p, instr, row, DENSE_PAIRS);
        return true;
    case kernel_role_fan_out:
        note_writer(p, instr, row, FAN_PAIRS);
        note_writer(p, instr, row, FAN_OWN_TABLE);
        return true;
    case kernel_role_copy_rows:
        return use_through(p, event, COPY_CONTROL);
    case kernel_role_mlp_down:
        return use_through(p, event, DOWN_PAIRS);
    case kernel_role_merge:
        return use_through(p, event, MERGE_BINS);
    default:
        return true;
    }
}

/// Everything that an event accesses.
static bool collect_uses(struct places *p, uint32_t event)
{
    const struct verifier *v = p->v;
    const struct plan_instr *instr = event_instr(v, event);
    p->use_count = 0;
    for (uint32_t i = 0; i < instr->args.count; i++)
        use_place(p, place_of(p, instr, i), ROW(v->plan, plan_arg, instr->args.first + i)->access != access_read,
                  false);
    if (instr->op == opcode_launch)
        return use_launch(p, event);
    if (instr->exchange == NONE)
        return true;
    const struct plan_exchange *e = ROW(v->plan, plan_exchange, instr->exchange);
    bool send = instr->op == opcode_send, recv = instr->op == opcode_recv;
    if (send || recv) {
        use_place(p, buffer_place(p, e->send), false, recv);
        use_place(p, buffer_place(p, e->recv), true, send);
    } else if (instr->op == opcode_rounds || instr->op == opcode_end) {
        const struct plan_exchange *base = ROW(v->plan, plan_exchange, e->base);
        use_place(p, buffer_place(p, base->send), false, false);
        use_place(p, buffer_place(p, base->recv), false, false);
    }
    return true;
}

/// How many events of a stream have ended for certain on the rank that made the earlier access.
static uint32_t known_ended(const struct places *p, uint32_t event, bool remote, bool earlier_remote, uint32_t stream)
{
    const struct verifier *v = p->v;
    uint32_t same = event_clock(v, event, false)[stream], other = event_clock(v, event, true)[stream];
    if (!remote && !earlier_remote)
        return same;
    if (remote != earlier_remote)
        return other;
    return v->info->ranks > 2 && other < same ? other : same; // by the same other rank, or by two
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
                       second, use->remote ? " of another rank" : "");
}

static bool check_use(const struct places *p, uint32_t event, const struct use *use)
{
    uint32_t streams = p->v->streams.count;
    for (uint32_t o = p->overlap_first[use->place]; o < p->overlap_first[use->place + 1]; o++) {
        const struct history *h = &p->histories[p->overlaps[o]];
        for (uint32_t side = 0; side < 2; side++)
            for (uint32_t s = 0; s < streams; s++) {
                uint32_t written = h->writes[side * streams + s], read = use->write ? h->reads[side * streams + s] : 0;
                if (!written && !read)
                    continue;
                uint32_t known = known_ended(p, event, use->remote, side, s);
                if (written > known || read > known)
                    return report_race(p, event, use, p->overlaps[o], s, (written > known ? written : read) - 1, side,
                                       written > known);
            }
    }
    return true;
}

/// Two buffers of one instruction that share bytes, one of them written.
static bool check_inside(const struct places *p, uint32_t event)
{
    for (uint32_t i = 0; i < p->use_count; i++)
        for (uint32_t j = 0; j < i; j++) {
            const struct use *a = &p->uses[i], *b = &p->uses[j];
            if (a->place != b->place && (a->write || b->write) && overlap(p, a->place, b->place))
                return verify_fail(p->v, "%s: its buffers `%s` and `%s` share bytes", event_text(p->v, event),
                                   ir_text(p->v->plan, buffer_row(p, buffer_of(p, a->place))->name),
                                   ir_text(p->v->plan, buffer_row(p, buffer_of(p, b->place))->name));
        }
    return true;
}

static bool check_written(const struct places *p, uint32_t event, const struct use *use)
{
    const struct plan_buffer *buffer = buffer_row(p, buffer_of(p, use->place));
    if (use->write || buffer->kind != buffer_kind_arena)
        return true;
    for (uint32_t o = p->overlap_first[use->place]; o < p->overlap_first[use->place + 1]; o++) {
        const struct history *h = &p->histories[p->overlaps[o]];
        if (buffer_of(p, p->overlaps[o]) != buffer_of(p, use->place)) // other buffers may share its bytes
            continue;
        for (uint32_t i = 0; i < 2 * p->v->streams.count; i++)
            if (h->writes[i])
                return true;
    }
    return verify_fail(p->v, "%s reads `%s` before anything writes it", event_text(p->v, event),
                       ir_text(p->v->plan, buffer->name));
}

static void record_use(struct places *p, uint32_t event, const struct use *use)
{
    const struct event *e = &p->v->events[event];
    struct history *h = &p->histories[use->place];
    (use->write ? h->writes : h->reads)[use->remote * p->v->streams.count + e->stream] = e->position + 1;
}

static void start(struct places *p)
{
    struct verifier *v = p->v;
    size_t streams = v->streams.count;
    p->buffers = v->variant->buffers.count;
    p->parts = v->variant->parts.count ? v->variant->parts.count : 1;
    p->count = p->buffers * (1 + p->parts);
    find_overlaps(p);
    p->histories = context_alloc(v->context, (p->count + 1) * sizeof *p->histories);
    p->writer = context_alloc(v->context, (p->buffers + 1) * sizeof *p->writer);
    for (uint32_t b = 0; b < p->buffers; b++)
        p->writer[b] = NONE;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->overlap_first[i] < p->overlap_first[i + 1]) {
            p->histories[i].reads = context_alloc(v->context, 4 * streams * sizeof(uint32_t));
            p->histories[i].writes = p->histories[i].reads + 2 * streams;
        }
}

bool verify_accesses(struct verifier *v)
{
    struct places p = {.v = v};
    start(&p);
    for (uint32_t i = 0; i < v->event_count; i++) {
        uint32_t event = v->order[i];
        if (!collect_uses(&p, event) || !check_inside(&p, event))
            return false;
        for (uint32_t u = 0; u < p.use_count; u++)
            if (!check_use(&p, event, &p.uses[u]) || !check_written(&p, event, &p.uses[u]))
                return false;
        for (uint32_t u = 0; u < p.use_count; u++)
            record_use(&p, event, &p.uses[u]);
    }
    return true;
}
