// Which places of memory an event uses (verify_places.h). Accesses through pointers follow the built-in that wrote the
// control buffer: what it was given is what they touch.
#include "compiler/lower/verify_places.h"

#include "runtime/plan/slots.h"

/// Token rows of two parts, or pieces of parts, are apart when their shares are. In the arena a piece begins as far behind
/// the start as in its micro-batch, so that pieces of different ones may meet.
static bool parts_apart(const struct places *p, uint32_t buffer, uint32_t a, uint32_t b)
{
    const struct plan_part *x = ROW(p->v->plan, plan_part, p->v->variant->parts.first + a);
    const struct plan_part *y = ROW(p->v->plan, plan_part, p->v->variant->parts.first + b);
    return (x->within == y->within || buffer_row(p, buffer)->kind != buffer_kind_arena) && slots_parts_apart(x, y);
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

bool places_meet(const struct places *p, uint32_t a, uint32_t b)
{
    uint32_t x = buffer_of(p, a), y = buffer_of(p, b);
    if (x != y) // the caller's buffers and parameters lie outside the arena
        return buffer_row(p, x)->kind == buffer_kind_arena && buffer_row(p, y)->kind == buffer_kind_arena &&
               bytes_meet(p, x, y);
    return a < p->buffers || b < p->buffers ||
           !parts_apart(p, x, (a - p->buffers) % p->parts, (b - p->buffers) % p->parts);
}

static uint32_t buffer_place(const struct places *p, uint32_t buffer)
{
    return buffer - p->v->variant->buffers.first;
}

/// A buffer, or the run of its rows that belongs to a chunk of an exchange: chunks carry rows, or replies, of apart tokens,
/// which are apart in every slot.
static uint32_t chunk_place(const struct places *p, uint32_t place, uint32_t piece)
{
    if (piece == NONE || place == NONE || place >= p->buffers)
        return place;
    return p->buffers + place * p->parts + (piece - p->v->variant->parts.first);
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

static uint32_t role_of(const struct verifier *v, const struct plan_instr *instr)
{
    return ROW(v->plan, plan_kernel, instr->kernel)->role;
}

/// Of a fan_out for a piece of an expert: the piece; NONE: of all rows.
static uint32_t run_of(const struct verifier *v, const struct plan_instr *instr)
{
    bool fan_out = instr->op == opcode_launch && instr->kernel != NONE && role_of(v, instr) == kernel_role_fan_out;
    return fan_out && ROW(v->plan, plan_exchange, instr->exchange)->runs.count ? instr->part : NONE;
}

/// What bin was given for replies that come in rounds: each chunk's are rows of their own, summed and merged for themselves.
static void use_spilled_chunks(const struct places *p, bool *used)
{
    const struct verifier *v = p->v;
    for (uint32_t e = 0; e < v->event_count; e++) {
        const struct plan_instr *instr = event_instr(v, e);
        bool bin = instr->op == opcode_launch && instr->kernel != NONE && role_of(v, instr) == kernel_role_bin;
        if (!bin || !ROW(v->plan, plan_exchange, instr->exchange)->answers)
            continue;
        for (uint32_t i = 0; i < v->variant->exchanges.count; i++) {
            const struct plan_exchange *x = ROW(v->plan, plan_exchange, v->variant->exchanges.first + i);
            for (uint32_t arg = BIN_SPILL; arg <= BIN_PACKED && x->base == instr->exchange && x->piece != NONE; arg++)
                if (place_of(p, instr, arg) != NONE)
                    used[chunk_place(p, place_of(p, instr, arg), x->piece)] = true;
        }
    }
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
            if (run_of(v, event_instr(v, e)) != NONE && (i == FAN_ARRIVED || i == FAN_REPLY))
                used[chunk_place(p, buffer_place(p, arg->buffer), event_instr(v, e)->part)] = true;
        }
    }
    for (uint32_t i = 0; i < v->variant->exchanges.count; i++) {
        const struct plan_exchange *x = ROW(v->plan, plan_exchange, v->variant->exchanges.first + i);
        if (x->piece != NONE)
            used[chunk_place(p, buffer_place(p, x->send), x->piece)] =
                used[chunk_place(p, buffer_place(p, x->recv), x->piece)] = true;
    }
    use_spilled_chunks(p, used);
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
            if (list[j] == i || places_meet(p, i, list[j])) {
                p->overlaps = context_grow(p->v->context, p->overlaps, &capacity, total + 1, sizeof *p->overlaps);
                p->overlaps[total++] = list[j];
            }
    }
    p->overlap_first[p->count] = total;
}

void places_init(struct places *p, struct verifier *v)
{
    *p = (struct places){.v = v, .buffers = v->variant->buffers.count};
    p->parts = v->variant->parts.count ? v->variant->parts.count : 1;
    p->count = p->buffers * (1 + p->parts);
    find_overlaps(p);
    p->writer = context_alloc(v->context, (p->buffers + 1) * sizeof *p->writer);
    for (uint32_t b = 0; b < p->buffers; b++)
        p->writer[b] = NONE;
}

static void use_kind(struct places *p, uint32_t place, enum access access, enum kind kind)
{
    bool read = access != access_write, write = access != access_read;
    if (place == NONE || !kind_size(p->v, kind))
        return;
    for (uint32_t i = 0; i < p->use_count; i++)
        if (p->uses[i].place == place && p->uses[i].kind == kind) {
            p->uses[i].read |= read;
            p->uses[i].write |= write;
            return;
        }
    p->uses[p->use_count++] = (struct use){place, kind, read, write};
}

static void use_place(struct places *p, uint32_t place, enum access access)
{
    use_kind(p, place, access, OWN);
}

/// The same place on every rank of some kinds.
static void use_remote(struct places *p, uint32_t place, enum access access, uint32_t kinds)
{
    for (uint32_t kind = NEAR; kind < p->v->kinds; kind++)
        if (kinds >> kind & 1)
            use_kind(p, place, access, (enum kind)kind);
}

struct through { // what a role touches through the control that a writer filled; copy_rows through some tables of it
    uint32_t role, writer, first_table, end_table;
    uint8_t reads[4], writes[4]; // 1 + argument of the writer, 0: none
};

static const struct through throughs[] = {
    {kernel_role_copy_rows, kernel_role_bin, TABLES_PACK, TABLES_PACK_END, {BIN_X + 1}, {BIN_SEND + 1}},
    {kernel_role_copy_rows, kernel_role_bin_round, TABLES_PACK, TABLES_PACK_END, {ROUND_X + 1}, {ROUND_SEND + 1}},
    {kernel_role_copy_rows,
     kernel_role_fan_out,
     TABLES_UNPACK,
     TABLES_REPLY,
     {FAN_ARRIVED + 1, FAN_X + 1},
     {FAN_A + 1}},
    {kernel_role_copy_rows, kernel_role_fan_out, TABLES_REPLY, TABLE_OWN, {FAN_STAGE + 1}, {FAN_REPLY + 1}},
    {kernel_role_copy_rows, kernel_role_fan_out, TABLE_OWN, TABLES_END, {FAN_X + 1}, {FAN_A + 1}},
    {kernel_role_copy_rows, kernel_role_dense, TABLES_UNPACK, TABLES_REPLY, {DENSE_X + 1}, {DENSE_A + 1}},
    // a sum that is packed lies where its first part was
    {kernel_role_sum_rows, kernel_role_fold, 0, TABLES_END, {FOLD_REPLIES + 1}, {FOLD_SUMS + 1, FOLD_REPLIES + 1}},
    {kernel_role_copy_rows, kernel_role_fold, TABLES_REPLY, TABLE_OWN, {FOLD_REPLIES + 1}, {FOLD_SUMS + 1}},
    {kernel_role_copy_rows, kernel_role_bin, TABLES_REPLY, TABLE_OWN, {BIN_SPILL + 1}, {BIN_PACKED + 1}},
    {kernel_role_sum_rows, kernel_role_bin, 0, TABLES_END, {BIN_SPILL + 1}, {BIN_SPILL + 1}},
    {kernel_role_mlp_down, kernel_role_fan_out, 0, TABLES_END, {0}, {FAN_REPLY + 1, FAN_OWN + 1, FAN_STAGE + 1}},
    {kernel_role_mlp_down, kernel_role_dense, 0, TABLES_END, {0}, {DENSE_Y + 1}},
    {kernel_role_merge, kernel_role_bin, 0, TABLES_END, {BIN_REPLY + 1, BIN_OWN + 1, BIN_SPILL + 1, BIN_PACKED + 1}, {0}},
};

/// Where an optional argument would stand, one about earlier waves may: bins, into which nothing is followed, or slots.
static bool is_earlier(const struct verifier *v, const struct plan_instr *writer, uint32_t arg)
{
    const struct plan_exchange *e = writer->exchange == NONE ? NULL : ROW(v->plan, plan_exchange, writer->exchange);
    if (role_of(v, writer) == kernel_role_bin)
        return (arg == BIN_SPILL && !moe_bin_has_spill(writer->args.count, e->wave)) ||
               (arg == BIN_PACKED && !moe_bin_has_packed(writer->args.count, e->wave));
    return role_of(v, writer) == kernel_role_fan_out && arg == FAN_STAGE &&
           !moe_fan_has_stage(writer->args.count, e->pool ? 0 : e->wave);
}

/// The arrived slots of earlier waves that a fan_out was given, behind its other arguments.
static void use_earlier_slots(struct places *p, const struct plan_instr *fan_out)
{
    const struct plan_exchange *e = ROW(p->v->plan, plan_exchange, fan_out->exchange);
    for (uint32_t i = 0; i < e->wave && !e->pool; i++)
        use_place(p, place_of(p, fan_out, fan_out->args.count - 1 - i), access_read);
}

/// What the writer was given, as far as what it wrote leads there: to the rows of a piece, or of a chunk.
static uint32_t place_through(const struct places *p, const struct plan_instr *writer, uint32_t arg, uint32_t chunk)
{
    uint32_t run = arg == FAN_ARRIVED || arg == FAN_REPLY ? run_of(p->v, writer) : NONE;
    return chunk_place(p, place_of(p, writer, arg), run != NONE ? run : chunk);
}

static bool goes_through(const struct verifier *v, const struct through *t, const struct plan_instr *instr,
                         const struct plan_instr *writer)
{
    const struct plan_kernel *k = ROW(v->plan, plan_kernel, instr->kernel);
    return t->role == k->role && t->writer == role_of(v, writer) &&
           (k->role != kernel_role_copy_rows || (k->n[5] >= t->first_table && k->n[5] < t->end_table));
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
        if (!goes_through(v, &throughs[i], instr, writer))
            continue;
        uint32_t piece = instr->exchange != NONE ? ROW(v->plan, plan_exchange, instr->exchange)->piece : NONE;
        for (int j = 0; j < 4; j++) {
            uint32_t read = throughs[i].reads[j], write = throughs[i].writes[j];
            if (read && !is_earlier(v, writer, read - 1u)) // own rows, and those that are packed, are not cut
                use_place(p, place_through(p, writer, read - 1u, read == BIN_OWN + 1u || read == BIN_X + 1u ? NONE : piece), access_read);
            if (write && !is_earlier(v, writer, write - 1u))
                use_place(p, place_through(p, writer, write - 1u, piece), access_write);
        }
        if (throughs[i].role == kernel_role_copy_rows && throughs[i].writer == kernel_role_fan_out &&
            throughs[i].first_table == TABLES_UNPACK)
            use_earlier_slots(p, writer);
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
        if (ROW(p->v->plan, plan_exchange, instr->exchange)->node)
            note_writer(p, instr, row, BIN_SUMS);
        return true;
    case kernel_role_bin_round:
        note_writer(p, instr, row, ROUND_CONTROL);
        return true;
    case kernel_role_dense:
        note_writer(p, instr, row, DENSE_PAIRS);
        return true;
    case kernel_role_fan_out:
        note_writer(p, instr, row, FAN_PAIRS);
        return true;
    case kernel_role_fold:
        note_writer(p, instr, row, FOLD_CONTROL);
        return true;
    case kernel_role_sum_rows:
        return use_through(p, event, SUM_CONTROL);
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

static bool has_pool(const struct verifier *v, uint32_t exchange)
{
    struct rows rows = v->variant->exchanges;
    for (uint32_t i = 0; i < rows.count; i++) {
        const struct plan_exchange *e = ROW(v->plan, plan_exchange, rows.first + i);
        if (e->pool && e->kind == exchange_kind_dispatch && e->base == exchange)
            return true;
    }
    return false;
}

/// A relay knows which replies belong together from the rows that it relayed, in this wave and those before it.
static void use_asked(struct places *p, const struct plan_exchange *combine)
{
    if (!combine->node || combine->kind != exchange_kind_combine)
        return;
    for (uint32_t d = combine->base; d != NONE; d = ROW(p->v->plan, plan_exchange, d)->earlier)
        use_place(p, buffer_place(p, ROW(p->v->plan, plan_exchange, d)->relay), access_read);
}

/// What a message reads and writes here and on its other end. Put by the sender, it is read until the receiver has it.
void places_use_message(struct places *p, uint32_t op, uint32_t exchange)
{
    const struct plan_exchange *e = ROW(p->v->plan, plan_exchange, exchange);
    bool dispatch = e->kind == exchange_kind_dispatch,
         learns = op == (e->node && dispatch ? opcode_settle : opcode_recv);
    uint32_t direct = e->node ? FROM_NEAR : FROM_ALL, relay = e->node ? buffer_place(p, e->relay) : NONE;
    uint32_t send = chunk_place(p, buffer_place(p, e->send), e->piece),
             recv = chunk_place(p, buffer_place(p, e->recv), e->piece);
    uint32_t sums = e->node && !dispatch ? buffer_place(p, e->sums) : NONE;
    switch (op) {
    case opcode_send:
        use_place(p, send, access_read);
        use_remote(p, recv, access_write, direct);
        use_remote(p, relay, access_write, dispatch ? FROM_ALIKE : FROM_NEAR);
        use_place(p, dispatch ? NONE : relay, access_write);
        break;
    case opcode_recv:
        use_place(p, e->node && dispatch ? relay : recv, access_write); // the slots fill until they are settled
        if (!e->node || dispatch) // of relayed replies, what the own node has sent is here since `settle`
            use_remote(p, send, access_read, e->node ? FROM_NEAR | FROM_ALIKE : direct);
        use_remote(p, sums, access_read, FROM_ALIKE);
        break;
    case opcode_forward:
        use_place(p, relay, access_read);
        use_remote(p, recv, access_write, dispatch ? FROM_NEAR : FROM_ALIKE);
        use_place(p, dispatch ? recv : NONE, access_write);
        use_place(p, sums, access_read);
        use_asked(p, e);
        break;
    case opcode_settle:
        use_place(p, dispatch ? recv : relay, access_write);
        use_remote(p, dispatch ? relay : send, access_read, FROM_NEAR);
        use_asked(p, e);
        break;
    default:
        return;
    }
    if (learns && has_pool(p->v, exchange)) // the own overflow vector stands in the own headers
        use_place(p, send, access_read);
}

/// A piece of an expert looks at the chunks that it waits for, and writes the headers and rows of its answers.
static void use_run(struct places *p, const struct plan_instr *instr, uint32_t arg)
{
    const struct ir *plan = p->v->plan;
    const struct plan_exchange *e = ROW(plan, plan_exchange, instr->exchange);
    uint32_t place = place_of(p, instr, arg);
    if (arg == FAN_REPLY) {
        use_place(p, chunk_place(p, place, instr->part), access_write);
        return;
    }
    for (uint32_t k = 0; k == 0 || k < e->chunks; k++)
        if (slots_chunk_needed(plan, e, k, ROW(plan, plan_part, instr->part)))
            use_place(p, chunk_place(p, place, e[k].piece), access_read);
}

/// Everything that an event accesses.
bool places_use(struct places *p, uint32_t event)
{
    const struct verifier *v = p->v;
    const struct plan_instr *instr = event_instr(v, event);
    p->use_count = 0;
    for (uint32_t i = 0; i < instr->args.count; i++)
        if (run_of(v, instr) != NONE && (i == FAN_ARRIVED || i == FAN_REPLY))
            use_run(p, instr, i);
        else
            use_place(p, place_of(p, instr, i), ROW(v->plan, plan_arg, instr->args.first + i)->access);
    if (instr->op == opcode_launch)
        return use_launch(p, event);
    if (instr->exchange == NONE)
        return true;
    places_use_message(p, instr->op, instr->exchange);
    return true;
}
