// What drafts of instructions are put together from (writer.h): their costs, their arguments and what they touch beside them,
// messages and what passes through relays. Messages are asynchronous: a send writes the peers' recv buffers, and its own send
// buffer stays in use until the peers' recv; both are recorded as remote touches.
#include "compiler/lower/writer.h"

#include <math.h>

#include "runtime/plan/axes.h"

double writer_tokens(const struct writer *w)
{
    return (double)ROW(w->l->plan, plan_part, w->l->first_part + w->range)->bound;
}

double writer_waves(const struct writer *w)
{
    return w->path->dense ? 1 : w->l->waves;
}

double writer_work(const struct writer *w, double flops, double bytes)
{
    double compute = w->l->flops_per_s > 0 ? flops / w->l->flops_per_s : 0;
    double memory = w->l->bytes_per_s > 0 ? bytes / w->l->bytes_per_s : 0;
    return 1e9 * (compute > memory ? compute : memory);
}

void writer_touch(struct writer *w, uint32_t logical, bool remote)
{
    struct lowering *l = w->l;
    if (logical >= l->arena_count || (remote && l->ranks == 1))
        return;
    for (uint32_t i = l->touch_count; i-- > 0 && l->touches[i].instance == w->instance;)
        if (l->touches[i].logical == logical && l->touches[i].remote == remote) {
            l->touches[i].last_step = w->step;
            return;
        }
    l->touches = context_grow(l->context, l->touches, &l->touch_capacity, l->touch_count + 1, sizeof *l->touches);
    l->touches[l->touch_count++] = (struct touch){logical, w->instance, w->step, w->step, remote};
}

uint32_t writer_cell(const struct writer *w)
{
    return w->part * w->l->waves + w->wave;
}

uint32_t writer_family_in(const struct writer *w, enum path_family kind, uint32_t wave)
{
    return logical_of(w->l, w->path->first_family + kind, w->layer, w->part * w->l->waves + wave);
}

uint32_t writer_family(const struct writer *w, enum path_family kind)
{
    bool whole = kind == F_IDS || kind == F_WEIGHTS || kind == F_TAKEN || kind == F_SUM;
    uint32_t place = w->path->workplaces > 1 ? w->piece * F_DENSE_COUNT + kind
                     : w->path->chunks > 1   ? chunk_family(kind, w->piece)
                                             : kind;
    return writer_family_in(w, (enum path_family)place, whole ? 0 : w->wave);
}

void writer_begin(struct writer *w, enum opcode op, double cost)
{
    struct lowering *l = w->l;
    l->drafts = context_grow(l->context, l->drafts, &l->draft_capacity, l->draft_count + 1, sizeof *l->drafts);
    w->draft = &l->drafts[l->draft_count++];
    *w->draft = (struct draft){
        .op = op, .phase = phase_words_count, .range = w->range, .kernel = NONE, .exchange = NONE, .cost = cost};
    l->of_instance[w->instance].count++;
    if (!w->looping)
        w->step++;
}

void writer_launch(struct writer *w, uint32_t kernel, double cost)
{
    writer_begin(w, opcode_launch, cost);
    w->draft->kernel = kernel;
    w->draft->by_experts = w->experts;
}

/// Does the buffer hold a row for each token: a value between stages, its route, or the sum of its replies so far?
static bool has_token_rows(const struct lowering *l, uint32_t buffer)
{
    if (buffer >= l->arena_count)
        return false;
    const struct family *family = &l->families[buffer / l->cells / l->layers];
    bool of_token = family->kind == F_SUM || family->kind == F_IDS || family->kind == F_WEIGHTS;
    return family->path == NONE || (!l->paths[family->path].dense && of_token);
}

void writer_argument(struct writer *w, uint32_t buffer, enum access access)
{
    struct draft *d = w->draft;
    bool caller = buffer == w->l->arena_count || buffer == w->l->arena_count + 1;
    bool piece = w->range != w->part && has_token_rows(w->l, buffer);
    d->operands[d->operand_count++] = (struct operand){buffer, access, caller || piece ? w->range : NONE, false};
    writer_touch(w, buffer, false);
}

void writer_own(struct writer *w, enum path_family kind, enum access access)
{
    writer_argument(w, writer_family(w, kind), access);
}

void writer_fresh(struct writer *w, enum path_family kind)
{
    writer_own(w, kind, access_write);
    w->draft->operands[w->draft->operand_count - 1].first = true;
}

void writer_param(struct writer *w, uint32_t param)
{
    writer_argument(w, w->l->arena_count + 2 + param * w->l->layers + w->layer, access_read);
}

uint32_t writer_value_buffer(const struct lowering *l, uint32_t value, uint32_t layer, uint32_t part)
{
    if (value == l->layer->input) {
        if (layer == 0)
            return l->arena_count;
        return writer_value_buffer(l, l->layer->output, layer - 1, part);
    }
    if (value == l->layer->output && layer + 1 == l->layers)
        return l->arena_count + 1;
    return logical_of(l, l->value_family[value], layer, part * l->waves);
}

static uint32_t input_value(const struct writer *w, uint32_t stage, const char *name)
{
    const struct mod_arg *arg = stage_arg(w->l->module, lower_stage(w->l, stage), name);
    return writer_value_buffer(w->l, arg->value, w->layer, w->part);
}

uint32_t writer_result_value(const struct writer *w, uint32_t stage)
{
    return writer_value_buffer(w->l, lower_stage(w->l, stage)->result, w->layer, w->part);
}

uint32_t writer_path_x(const struct writer *w)
{
    return w->path->dense ? input_value(w, w->path->expert, "x") : input_value(w, w->path->dispatch, "x");
}

// What an exchange moves, per rank, in expectation.

double writer_hit_rows(const struct writer *w)
{
    const struct lowering *l = w->l;
    double rows = 0;
    for (uint32_t d = 0; d < l->ranks; d++) {
        rows += rank_hit(l, w->path, d, w->wave) * writer_tokens(w) * (l->ranks - 1) / l->ranks;
    }
    return rows;
}

/// The slowest axis' time, for they run in parallel: a rank sends across an axis in proportion to the peers it has there.
static double wire_time(const struct writer *w, const struct plan_exchange *e)
{
    const struct lowering *l = w->l;
    double slowest = 0, rows = l->ranks > 1 ? writer_hit_rows(w) / (l->ranks - 1) : 0;
    for (uint32_t i = 0; i < ROW(l->plan, plan_info, 0)->axes.count; i++) {
        const struct plan_axis *axis = axis_at(l->plan, i);
        const struct plan_wire *wire = ROW(l->plan, plan_wire, e->wires.first + (uint32_t)e->wire_of_axis[i]);
        double header = (double)(e->chunks ? e->header_bytes / e->chunks : e->header_bytes);
        double bytes = (double)axis_peers(axis) * (rows * (double)wire->row_bytes + header);
        if (axis->bandwidth > 0)
            slowest = fmax(slowest, 1e9 * bytes / axis->bandwidth);
    }
    return slowest;
}

static double latency(const struct writer *w)
{
    double longest = 0;
    for (uint32_t i = 0; i < ROW(w->l->plan, plan_info, 0)->axes.count; i++)
        if (axis_at(w->l->plan, i)->size > 1)
            longest = fmax(longest, axis_at(w->l->plan, i)->latency);
    return longest;
}

uint32_t writer_combine(const struct writer *w)
{
    return exchange_of(w->l, w->path_number, w->layer, writer_cell(w), EXCHANGE_COMBINE) + w->piece;
}

void writer_message(struct writer *w, enum opcode op, uint32_t kind, enum path_family send, enum path_family recv)
{
    uint32_t row = kind == EXCHANGE_COMBINE ? writer_combine(w)
                                            : exchange_of(w->l, w->path_number, w->layer, writer_cell(w), kind) +
                                                  (kind == EXCHANGE_DISPATCH ? w->piece : 0); // a chunk
    const struct plan_exchange *e = ROW(w->l->plan, plan_exchange, row);
    double cost = w->looping ? 0 : op == opcode_send ? wire_time(w, e) : latency(w);
    writer_begin(w, op, cost);
    w->draft->exchange = row;
    if (op == opcode_send) {
        writer_touch(w, writer_family(w, send), false);
        writer_touch(w, writer_family(w, recv), true);
    } else {
        writer_touch(w, writer_family(w, recv), false);
        writer_touch(w, writer_family(w, send), true);
    }
    if (!e->node || op != opcode_send)
        return;
    if (kind == EXCHANGE_DISPATCH) {
        writer_touch(w, writer_family(w, F_RELAY), true);
    } else {
        writer_touch(w, writer_family(w, F_GATHER), true);
        writer_touch(w, writer_family(w, F_GATHER), false);
        // Written inside the receive, before all of its messages are there: free from here on.
        writer_touch(w, writer_family(w, F_SUMS), false);
    }
}

void writer_relay(struct writer *w, enum opcode op, uint32_t kind)
{
    writer_begin(w, op, op == opcode_settle ? latency(w) : 0);
    w->draft->phase = phase_relay;
    bool dispatch = kind == EXCHANGE_DISPATCH;
    w->draft->exchange = dispatch ? exchange_of(w->l, w->path_number, w->layer, writer_cell(w), kind) : writer_combine(w);
    for (uint32_t wave = dispatch ? w->wave : 0; wave <= w->wave; wave++)
        writer_touch(w, writer_family_in(w, F_RELAY, wave), false);
    writer_touch(w, writer_family(w, dispatch ? F_RECV : F_REPLY_RECV), op == opcode_forward);
    writer_touch(w, writer_family(w, dispatch ? F_RECV : F_GATHER), false);
    if (dispatch)
        writer_touch(w, writer_family(w, F_RELAY), true);
    if (!dispatch && op == opcode_forward) {
        writer_touch(w, writer_family(w, F_SUMS), false);
        writer_touch(w, writer_family(w, F_SUMS), true);
    }
}
