// Conversions between wire formats: what a rank sends has been packed, in every format of the exchange and in that
// format, and what it computes with has been unpacked from each; sums that travel in another format are packed from their
// staging rows after they were made. What relays add up, and what sources add up of rows that went in rounds, is summed and
// packed before it goes on. A walk over the events in their order: verify_access.c has shown that whatever
// touches the same rows is ordered.
#include "compiler/lower/verify.h"
#include "runtime/plan/slots.h"

struct dispatch_state {
    bool binned, fanned;                // bin has filled its slots' tables; fan_out those of what arrived
    uint32_t packed, unpacked, replied; // tables, as bits, since bin, fan_out and mlp_down
    bool summed;                        // mlp_down has made the sums of the replies
    uint32_t y_dtype;                   // of those sums
    bool binned_sums;                   // bin has a second control, for replies that come in rounds
    bool folded;                        // (by combine) fold has filled its control
    struct relayed_sums {               // (by combine)
        bool made;       // by sum_rows, since then
        uint32_t packed; // tables since then
    } relay, spill;
};

struct formats {
    const struct verifier *v;
    struct dispatch_state *states; // by exchange of the variant
    int64_t *rows;                 // by buffer: control whose rows to multiply are in a format; 0: in none
    uint32_t *writer;              // by buffer of the variant: instruction that filled it as control, NONE: none
};

static const struct plan_exchange *exchange_row(const struct formats *f, uint32_t number)
{
    return ROW(f->v->plan, plan_exchange, number);
}

static struct dispatch_state *state_of(const struct formats *f, uint32_t exchange)
{
    return &f->states[(size_t)(exchange - f->v->variant->exchanges.first) * MOE_MAX_CHUNKS];
}

/// Of what a fan_out has listed: experts in pieces have several of a dispatch.
static struct dispatch_state *run_state(const struct formats *f, const struct plan_instr *fan_out)
{
    const struct plan_exchange *e = exchange_row(f, fan_out->exchange);
    return state_of(f, fan_out->exchange) + (e->runs.count ? fan_out->part - e->runs.first : 0);
}

static uint32_t *writer_of(const struct formats *f, const struct plan_instr *instr, uint32_t arg)
{
    uint32_t buffer = ROW(f->v->plan, plan_arg, instr->args.first + arg)->buffer;
    return &f->writer[buffer - f->v->variant->buffers.first];
}

static const struct plan_kernel *kernel_of(const struct formats *f, const struct plan_instr *instr)
{
    return ROW(f->v->plan, plan_kernel, instr->kernel);
}

/// The (first) combine that answers a dispatch.
static const struct plan_exchange *answer_of(const struct formats *f, uint32_t dispatch)
{
    struct rows rows = f->v->variant->exchanges;
    for (uint32_t i = 0; i < rows.count; i++) {
        const struct plan_exchange *e = exchange_row(f, rows.first + i);
        if (e->kind == exchange_kind_combine && e->base == dispatch)
            return e;
    }
    return NULL;
}

/// Does a side of a conversion hold rows of this format?
static bool is_side(const int64_t *n, int64_t dtype, const struct plan_wire *wire)
{
    return dtype == wire->dtype && (!wire->block || (n[3] == wire->block && n[4] == wire->scale));
}

static bool wrong_format(const struct formats *f, uint32_t event)
{
    return verify_fail(f->v, "%s converts rows of another format than they have", event_text(f->v, event));
}

/// The format of the rows to multiply that a control tells of.
static int64_t *rows_of(const struct formats *f, const struct plan_instr *instr, uint32_t arg)
{
    return &f->rows[writer_of(f, instr, arg) - f->writer];
}

/// Every conversion to rows of A that one control tells of gives them the same format.
static bool see_rows(const struct formats *f, uint32_t event, const struct plan_instr *instr)
{
    const int64_t *n = kernel_of(f, instr)->n;
    int64_t *rows = rows_of(f, instr, COPY_CONTROL);
    int64_t own = n[7] ? moe_wire_code((uint32_t)n[2], (uint32_t)n[3], (uint32_t)n[4]) : 0;
    bool same = *rows < 0 || *rows == own;
    *rows = own;
    return same || wrong_format(f, event);
}

/// The combine that answers a dispatch; where the instruction is about one chunk, that.
static uint32_t answer_number(const struct formats *f, uint32_t dispatch, const struct plan_instr *instr)
{
    const struct plan_exchange *first = answer_of(f, dispatch);
    uint32_t number = first ? (uint32_t)(first - exchange_row(f, 0)) : NONE;
    return number != NONE && instr->exchange != NONE ? number + exchange_row(f, instr->exchange)->chunk : number;
}

/// The sums that a control buffer of fold, or of bin for rounds, is about; NULL: it is another kind of control.
static struct relayed_sums *sums_of(const struct formats *f, const struct plan_instr *instr, uint32_t argument)
{
    uint32_t by = *writer_of(f, instr, argument);
    const struct plan_instr *filler = by == NONE ? NULL : ROW(f->v->plan, plan_instr, by);
    if (!filler)
        return NULL;
    uint32_t role = kernel_of(f, filler)->role, control = ROW(f->v->plan, plan_arg, instr->args.first + argument)->buffer;
    uint32_t combine = role == kernel_role_fold  ? filler->exchange
                       : role == kernel_role_bin ? answer_number(f, filler->exchange, instr)
                                                 : NONE;
    struct dispatch_state *state = combine != NONE ? state_of(f, combine) : NULL;
    if (!state || (role == kernel_role_bin && ROW(f->v->plan, plan_arg, filler->args.first + BIN_BINS)->buffer == control))
        return NULL;
    return role == kernel_role_fold ? &state->relay : &state->spill;
}

/// A sum into the format in which it goes home.
static bool see_pack(const struct formats *f, uint32_t event, const struct plan_instr *instr, struct relayed_sums *sums)
{
    const struct plan_instr *filler = ROW(f->v->plan, plan_instr, *writer_of(f, instr, COPY_CONTROL));
    bool relay = kernel_of(f, filler)->role == kernel_role_fold;
    const struct plan_exchange *carrier = relay ? exchange_row(f, filler->exchange) : answer_of(f, filler->exchange);
    const int64_t *n = kernel_of(f, instr)->n;
    int64_t number = n[5] - TABLES_REPLY;
    if (!carrier || number < 0 || number >= carrier->wires.count)
        return verify_fail(f->v, "%s works through a table that no format has", event_text(f->v, event));
    if (!is_side(n, n[2], ROW(f->v->plan, plan_wire, carrier->wires.first + (uint32_t)number)) ||
        !is_side(n, n[1], ROW(f->v->plan, plan_wire, carrier->wires.first + carrier->handed)))
        return wrong_format(f, event);
    if (!sums->made)
        return verify_fail(f->v, "%s packs sums that are not made yet", event_text(f->v, event));
    sums->packed |= 1u << number;
    return true;
}

/// Sums that go on: made, and packed in every format that is not their own.
static bool sums_ready(const struct formats *f, uint32_t event, const struct relayed_sums *sums, const struct plan_exchange *combine)
{
    uint32_t needed = slots_sum_formats(f->v->plan, combine);
    if (!sums->made)
        return verify_fail(f->v, "%s sends sums that are not made yet", event_text(f->v, event));
    return (sums->packed & needed) == needed ||
           verify_fail(f->v, "%s sends rows that are not packed", event_text(f->v, event));
}

static bool see_copy(const struct formats *f, uint32_t event, const struct plan_instr *instr)
{
    uint32_t by = *writer_of(f, instr, COPY_CONTROL);
    if (by == NONE)
        return true; // verify_access.c tells
    struct relayed_sums *sums = sums_of(f, instr, COPY_CONTROL);
    if (sums)
        return see_pack(f, event, instr, sums);
    const struct plan_instr *filler = ROW(f->v->plan, plan_instr, by);
    const int64_t *n = kernel_of(f, instr)->n;
    uint32_t role = kernel_of(f, filler)->role, table = (uint32_t)n[5];
    if (role == kernel_role_dense)
        return see_rows(f, event, instr);
    const struct plan_exchange *e = exchange_row(f, filler->exchange);
    struct dispatch_state *state = state_of(f, instr->exchange != NONE ? instr->exchange : filler->exchange);
    bool fanned = role == kernel_role_fan_out;
    state = fanned ? run_state(f, filler) : state;
    bool reply = fanned && table >= TABLES_REPLY && table < TABLE_OWN;
    const struct plan_exchange *carrier = reply ? answer_of(f, filler->exchange) : e;
    uint32_t number = reply ? table - TABLES_REPLY : table;
    if (fanned && table == TABLE_OWN) {
        state->unpacked |= 1u << TABLE_OWN;
        return see_rows(f, event, instr);
    }
    if (!carrier || number >= carrier->wires.count)
        return verify_fail(f->v, "%s works through a table that no format has", event_text(f->v, event));
    const struct plan_wire *wire = ROW(f->v->plan, plan_wire, carrier->wires.first + number);
    if (!is_side(n, fanned && !reply ? n[1] : n[2], wire))
        return wrong_format(f, event);
    if (reply && !state->summed)
        return verify_fail(f->v, "%s packs sums that are not made yet", event_text(f->v, event));
    *(reply ? &state->replied : fanned ? &state->unpacked : &state->packed) |= 1u << number;
    return !fanned || reply || see_rows(f, event, instr);
}

/// Tables of an exchange's formats, one bit each; of those that differ from `plain` only, where that is a type.
static uint32_t tables_of(const struct formats *f, const struct plan_exchange *e, uint32_t plain)
{
    uint32_t tables = 0;
    for (uint32_t i = 0; i < e->wires.count; i++)
        if (plain == dtype_none || !wire_is_plain(ROW(f->v->plan, plan_wire, e->wires.first + i), plain))
            tables |= 1u << i;
    return tables;
}

/// The kernel that computes with arrived rows needs them from every table of its fan_out.
static bool see_up(const struct formats *f, uint32_t event, const struct plan_instr *instr)
{
    uint32_t by = *writer_of(f, instr, UP_PAIRS);
    if (by != NONE && *rows_of(f, instr, UP_PAIRS) >= 0 && *rows_of(f, instr, UP_PAIRS) != kernel_of(f, instr)->n[11])
        return wrong_format(f, event);
    if (by == NONE)
        return true;
    const struct plan_instr *fan = ROW(f->v->plan, plan_instr, by);
    if (!kernel_of(f, fan)->n[4] != !(kernel_of(f, instr)->n[7] & MLP_BY_ROW))
        return verify_fail(f->v, "%s takes rows of A by another number than they have", event_text(f->v, event));
    if (kernel_of(f, fan)->role != kernel_role_fan_out)
        return true;
    const struct plan_exchange *e = exchange_row(f, fan->exchange);
    uint32_t needed = tables_of(f, e, dtype_none);
    if (kernel_of(f, fan)->n[2] && !e->pool)
        needed |= 1u << TABLE_OWN;
    return (run_state(f, fan)->unpacked & needed) == needed ||
           verify_fail(f->v, "%s computes with rows that are not unpacked", event_text(f->v, event));
}

/// Hidden rows have the format of the rows that they came from.
static bool see_down(const struct formats *f, uint32_t event, const struct plan_instr *instr)
{
    uint32_t by = *writer_of(f, instr, DOWN_PAIRS);
    if (by != NONE && *rows_of(f, instr, DOWN_PAIRS) >= 0 && *rows_of(f, instr, DOWN_PAIRS) != kernel_of(f, instr)->n[11])
        return wrong_format(f, event);
    if (by == NONE || kernel_of(f, ROW(f->v->plan, plan_instr, by))->role != kernel_role_fan_out)
        return true;
    struct dispatch_state *state = run_state(f, ROW(f->v->plan, plan_instr, by));
    state->summed = true;
    state->replied = 0;
    return true;
}

static bool see_merge(const struct formats *f, uint32_t event, const struct plan_instr *instr)
{
    uint32_t by = *writer_of(f, instr, MERGE_BINS);
    if (by == NONE)
        return true;
    const struct plan_instr *bin = ROW(f->v->plan, plan_instr, by);
    const struct plan_exchange *reply = answer_of(f, bin->exchange);
    const int64_t *n = kernel_of(f, instr)->n;
    bool fits = reply && n[1] == kernel_of(f, bin)->n[2] && n[4] == reply->wires.count;
    for (uint32_t i = 0; fits && i < reply->wires.count; i++) {
        const struct plan_wire *wire = ROW(f->v->plan, plan_wire, reply->wires.first + i);
        fits = n[5 + i] == moe_wire_code(wire->dtype, wire->block, wire->scale);
    }
    if (!fits)
        return wrong_format(f, event);
    return !state_of(f, bin->exchange)->binned_sums ||
           sums_ready(f, event, &state_of(f, answer_number(f, bin->exchange, instr))->spill, reply);
}

/// Sums of a piece of the experts, in the formats that are not their own type.
static bool see_sums(const struct formats *f, uint32_t event, const struct plan_exchange *e, const struct dispatch_state *state)
{
    uint32_t needed = tables_of(f, e, state->y_dtype) & slots_answer_formats(f->v->plan, e);
    if (!state->fanned)
        return true; // what nothing fills is no row
    if (!state->summed)
        return verify_fail(f->v, "%s sends sums that are not made yet", event_text(f->v, event));
    return (state->replied & needed) == needed || verify_fail(f->v, "%s sends rows that are not packed", event_text(f->v, event));
}

/// Everything that a send may carry has been packed: rows in every format, and the sums of all pieces with rows in it.
static bool see_send(const struct formats *f, uint32_t event, uint32_t exchange)
{
    const struct plan_exchange *e = exchange_row(f, exchange);
    if (e->kind == exchange_kind_combine) {
        struct rows runs = exchange_row(f, e->base)->runs;
        const struct plan_part *tokens = ROW(f->v->plan, plan_part, e->piece != NONE ? e->piece : e->part);
        for (uint32_t k = 0; k == 0 || k < runs.count; k++)
            if ((!runs.count || !slots_parts_apart(tokens, ROW(f->v->plan, plan_part, runs.first + k))) &&
                !see_sums(f, event, e, state_of(f, e->base) + k))
                return false;
        return true;
    }
    uint32_t needed = tables_of(f, e, dtype_none);
    if (!state_of(f, exchange - e->chunk)->binned)
        return true;
    return (state_of(f, exchange)->packed & needed) == needed ||
           verify_fail(f->v, "%s sends rows that are not packed", event_text(f->v, event));
}

/// A relay passes on sums of what it was handed.
static bool see_forward(const struct formats *f, uint32_t event, uint32_t exchange)
{
    const struct plan_exchange *e = exchange_row(f, exchange);
    if (e->kind == exchange_kind_dispatch)
        return true;
    const struct dispatch_state *state = state_of(f, exchange);
    if (!state->folded) // what nothing fills is no row
        return !state_of(f, e->base)->fanned || verify_fail(f->v, "%s sends sums that are not made yet", event_text(f->v, event));
    return sums_ready(f, event, &state->relay, e);
}

/// What was summed of a dispatch's replies that come in rounds is no longer all there is.
static void forget_sums(const struct formats *f, uint32_t dispatch)
{
    struct rows rows = f->v->variant->exchanges;
    for (uint32_t i = rows.first; i < rows.first + rows.count; i++)
        if (exchange_row(f, i)->kind == exchange_kind_combine && exchange_row(f, i)->base == dispatch)
            state_of(f, i)->spill = (struct relayed_sums){.made = false};
}

/// Of bin: it may have a second control, for sums of replies that come in rounds. What was summed before is not theirs.
static void see_bin(const struct formats *f, uint32_t event, const struct plan_instr *instr)
{
    struct dispatch_state *state = state_of(f, instr->exchange);
    const struct plan_exchange *e = exchange_row(f, instr->exchange);
    state->binned = true;
    for (uint32_t k = 0; k == 0 || k < e->chunks; k++)
        state_of(f, instr->exchange + k)->packed = 0;
    state->binned_sums = e->node && !e->pool && moe_bin_has_sums(instr->args.count, e->wave);
    forget_sums(f, instr->exchange);
    if (state->binned_sums)
        *writer_of(f, instr, BIN_SUMS) = f->v->events[event].instr;
}

/// Replies of another round come behind those that were summed.
static void see_end(const struct formats *f, uint32_t pool)
{
    forget_sums(f, exchange_row(f, pool)->base);
}

static bool see_launch(const struct formats *f, uint32_t event, const struct plan_instr *instr)
{
    static const uint32_t control[kernel_role_words_count] = {[kernel_role_bin] = BIN_BINS,
                                                              [kernel_role_bin_round] = ROUND_CONTROL,
                                                              [kernel_role_fan_out] = FAN_PAIRS,
                                                              [kernel_role_fold] = FOLD_CONTROL,
                                                              [kernel_role_dense] = DENSE_PAIRS};
    uint32_t role = kernel_of(f, instr)->role;
    switch (role) {
    case kernel_role_bin:
    case kernel_role_bin_round:
        see_bin(f, event, instr);
        break;
    case kernel_role_fold:
        state_of(f, instr->exchange)->folded = true;
        state_of(f, instr->exchange)->relay = (struct relayed_sums){.made = false};
        break;
    case kernel_role_sum_rows: {
        struct relayed_sums *sums = sums_of(f, instr, SUM_CONTROL);
        if (sums)
            *sums = (struct relayed_sums){.made = true};
        return true;
    }
    case kernel_role_fan_out:
        run_state(f, instr)->fanned = state_of(f, instr->exchange)->fanned = true;
        run_state(f, instr)->unpacked = run_state(f, instr)->replied = 0;
        run_state(f, instr)->summed = false;
        run_state(f, instr)->y_dtype = (uint32_t)kernel_of(f, instr)->n[3];
        break;
    case kernel_role_dense:
        break;
    case kernel_role_copy_rows:
        return see_copy(f, event, instr);
    case kernel_role_mlp_up:
        return see_up(f, event, instr);
    case kernel_role_mlp_down:
        return see_down(f, event, instr);
    case kernel_role_merge:
        return see_merge(f, event, instr);
    default:
        return true;
    }
    *writer_of(f, instr, control[role]) = f->v->events[event].instr;
    *rows_of(f, instr, control[role]) = -1; // not known before they are unpacked
    return true;
}

bool verify_formats(struct verifier *v)
{
    struct formats f = {.v = v};
    uint32_t buffers = v->variant->buffers.count;
    f.states = context_alloc(v->context, ((size_t)v->variant->exchanges.count + 1) * MOE_MAX_CHUNKS * sizeof *f.states);
    f.writer = context_alloc(v->context, (buffers + 1) * sizeof *f.writer);
    f.rows = context_alloc(v->context, (buffers + 1) * sizeof *f.rows);
    for (uint32_t b = 0; b < buffers; b++)
        f.writer[b] = NONE;
    for (uint32_t i = 0; i < v->event_count; i++) {
        const struct plan_instr *instr = event_instr(v, v->order[i]);
        if (instr->op == opcode_launch && instr->kernel != NONE && !see_launch(&f, v->order[i], instr))
            return false;
        if (instr->op == opcode_send && !see_send(&f, v->order[i], instr->exchange))
            return false;
        if (instr->op == opcode_forward && !see_forward(&f, v->order[i], instr->exchange))
            return false;
        if (instr->op == opcode_end)
            see_end(&f, instr->exchange);
    }
    return true;
}
