// Instances -> draft instructions over logical buffers, and what each instance touches. A kernel that works through a
// control buffer touches what the buffer's writer was given, so those accesses are named here beside the arguments.
// Messages are asynchronous: a send writes the peers' recv buffers, and its own send buffer stays in use until the
// peers' recv; both are recorded as remote touches.
#include <math.h>
#include <string.h>

#include "compiler/lower/lower.h"
#include "runtime/plan/axes.h"

struct writer {
    struct lowering *l;
    uint32_t instance; // of the schedule
    const struct path *path;
    uint32_t path_number, layer, part, wave;
    uint32_t range; // its rows: the part, or a piece of it
    uint32_t piece;
    uint16_t step; // position inside the instance
    bool looping;  // inside overflow rounds: one step
    bool experts;  // what it launches is the work of the rank's experts
    struct draft *draft;
};

static double tokens(const struct writer *w)
{
    return (double)ROW(w->l->plan, plan_part, w->l->first_part + w->range)->bound;
}

/// Among how many instances a part's pairs are divided.
static double waves_of(const struct writer *w)
{
    return w->path->dense ? 1 : w->l->waves;
}

static double work(const struct writer *w, double flops, double bytes)
{
    double compute = w->l->flops_per_s > 0 ? flops / w->l->flops_per_s : 0;
    double memory = w->l->bytes_per_s > 0 ? bytes / w->l->bytes_per_s : 0;
    return 1e9 * (compute > memory ? compute : memory);
}

static void touch(struct writer *w, uint32_t logical, bool remote)
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

static uint32_t cell_of(const struct writer *w)
{
    return w->part * w->l->waves + w->wave;
}

static uint32_t family_in(const struct writer *w, enum path_family kind, uint32_t wave)
{
    return logical_of(w->l, w->path->first_family + kind, w->layer, w->part * w->l->waves + wave);
}

/// Routes and the sum of replies belong to the part, all else to the wave.
static uint32_t family(const struct writer *w, enum path_family kind)
{
    bool whole = kind == F_IDS || kind == F_WEIGHTS || kind == F_TAKEN || kind == F_SUM;
    uint32_t place = w->path->workplaces > 1 ? w->piece * F_DENSE_COUNT + kind
                     : w->path->chunks > 1   ? chunk_family(kind, w->piece)
                                             : kind;
    return family_in(w, (enum path_family)place, whole ? 0 : w->wave);
}

static void begin(struct writer *w, enum opcode op, double cost)
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

static void launch(struct writer *w, uint32_t kernel, double cost)
{
    begin(w, opcode_launch, cost);
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

static void argument(struct writer *w, uint32_t buffer, enum access access)
{
    struct draft *d = w->draft;
    bool caller = buffer == w->l->arena_count || buffer == w->l->arena_count + 1;
    bool piece = w->range != w->part && has_token_rows(w->l, buffer);
    d->operands[d->operand_count++] = (struct operand){buffer, access, caller || piece ? w->range : NONE, false};
    touch(w, buffer, false);
}

static void own(struct writer *w, enum path_family kind, enum access access)
{
    argument(w, family(w, kind), access);
}

/// The write with which a buffer's contents begin.
static void fresh(struct writer *w, enum path_family kind)
{
    own(w, kind, access_write);
    w->draft->operands[w->draft->operand_count - 1].first = true;
}

static void param(struct writer *w, uint32_t param)
{
    argument(w, w->l->arena_count + 2 + param * w->l->layers + w->layer, access_read);
}

/// The logical number of a plain value in a layer: the caller's buffers at both ends, the last layer's result as input.
static uint32_t value_buffer(const struct lowering *l, uint32_t value, uint32_t layer, uint32_t part)
{
    if (value == l->layer->input) {
        if (layer == 0)
            return l->arena_count;
        return value_buffer(l, l->layer->output, layer - 1, part);
    }
    if (value == l->layer->output && layer + 1 == l->layers)
        return l->arena_count + 1;
    return logical_of(l, l->value_family[value], layer, part * l->waves);
}

static uint32_t input_value(const struct writer *w, uint32_t stage, const char *name)
{
    const struct mod_arg *arg = stage_arg(w->l->module, lower_stage(w->l, stage), name);
    return value_buffer(w->l, arg->value, w->layer, w->part);
}

static uint32_t result_value(const struct writer *w, uint32_t stage)
{
    return value_buffer(w->l, lower_stage(w->l, stage)->result, w->layer, w->part);
}

static uint32_t path_x(const struct writer *w)
{
    return w->path->dense ? input_value(w, w->path->expert, "x") : input_value(w, w->path->dispatch, "x");
}

// What an exchange moves, per rank, in expectation.

static double hit_rows(const struct writer *w)
{
    const struct lowering *l = w->l;
    double rows = 0;
    for (uint32_t d = 0; d < l->ranks; d++) {
        rows += rank_hit(l, w->path, d, w->wave) * tokens(w) * (l->ranks - 1) / l->ranks;
    }
    return rows;
}

/// The slowest axis' time, for they run in parallel: a rank sends across an axis in proportion to the peers it has there.
static double wire_time(const struct writer *w, const struct plan_exchange *e)
{
    const struct lowering *l = w->l;
    double slowest = 0, rows = l->ranks > 1 ? hit_rows(w) / (l->ranks - 1) : 0;
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

/// The base combine, or the chunk of it that the instance is about.
static uint32_t combine_of(const struct writer *w)
{
    return exchange_of(w->l, w->path_number, w->layer, cell_of(w), EXCHANGE_COMBINE) + w->piece;
}

static void message(struct writer *w, enum opcode op, uint32_t kind, enum path_family send, enum path_family recv)
{
    uint32_t row = kind == EXCHANGE_COMBINE ? combine_of(w)
                                            : exchange_of(w->l, w->path_number, w->layer, cell_of(w), kind) +
                                                  (kind == EXCHANGE_DISPATCH ? w->piece : 0); // a chunk
    const struct plan_exchange *e = ROW(w->l->plan, plan_exchange, row);
    double cost = w->looping ? 0 : op == opcode_send ? wire_time(w, e) : latency(w);
    begin(w, op, cost);
    w->draft->exchange = row;
    if (op == opcode_send) {
        touch(w, family(w, send), false);
        touch(w, family(w, recv), true);
    } else {
        touch(w, family(w, recv), false);
        touch(w, family(w, send), true);
    }
    if (!e->node || op != opcode_send)
        return;
    if (kind == EXCHANGE_DISPATCH) {
        touch(w, family(w, F_RELAY), true);
    } else {
        touch(w, family(w, F_GATHER), true);
        touch(w, family(w, F_GATHER), false);
        // Written inside the receive, before all of its messages are there: free from here on.
        touch(w, family(w, F_SUMS), false);
    }
}

/// An instruction of a relay: it passes rows on, or waits for what others of its node pass on or hand in.
static void relay(struct writer *w, enum opcode op, uint32_t kind)
{
    begin(w, op, op == opcode_settle ? latency(w) : 0);
    w->draft->phase = phase_relay;
    bool dispatch = kind == EXCHANGE_DISPATCH;
    w->draft->exchange = dispatch ? exchange_of(w->l, w->path_number, w->layer, cell_of(w), kind) : combine_of(w);
    for (uint32_t wave = dispatch ? w->wave : 0; wave <= w->wave; wave++)
        touch(w, family_in(w, F_RELAY, wave), false);
    touch(w, family(w, dispatch ? F_RECV : F_REPLY_RECV), op == opcode_forward);
    touch(w, family(w, dispatch ? F_RECV : F_GATHER), false);
    if (dispatch)
        touch(w, family(w, F_RELAY), true);
    if (!dispatch && op == opcode_forward) {
        touch(w, family(w, F_SUMS), false);
        touch(w, family(w, F_SUMS), true);
    }
}

static void draft_dispatch_recv(struct writer *w)
{
    message(w, opcode_recv, EXCHANGE_DISPATCH, F_SEND, F_RECV);
    if (!w->path->node)
        return;
    relay(w, opcode_forward, EXCHANGE_DISPATCH);
    relay(w, opcode_settle, EXCHANGE_DISPATCH);
}

/// Rows that earlier waves brought are read where they arrived, or where they were relayed.
static void earlier_slots(struct writer *w, enum path_family slots)
{
    for (uint32_t wave = 0; wave < w->wave; wave++)
        argument(w, family_in(w, slots, wave), access_read);
}

/// Does a relay pack sums in this format?
static bool is_packed(const struct writer *w, uint32_t format)
{
    const struct path *p = w->path;
    return p->node && p->reply_kernel[format] != NONE && is_sum_format(w->l, p, format);
}

static bool packs_sums(const struct writer *w)
{
    bool packs = false;
    for (uint32_t i = 0; i < w->path->reply.count; i++)
        packs = packs || is_packed(w, i);
    return packs;
}

/// Rows of sums. Of those that come in rounds a chunk's launch has the chunk's only: the verifier knows which.
static void sums_rows(struct writer *w, enum path_family control, enum path_family rows, enum access access)
{
    if (control != F_SPILL_SUMS || w->path->chunks < 2) {
        own(w, rows, access);
        return;
    }
    w->draft->exchange = combine_of(w);
    touch(w, family(w, rows), false);
}

/// Sums into the formats in which they go home: of a relay, or of rows that overflowed.
static void draft_packed_sums(struct writer *w, enum path_family control, enum path_family from, enum path_family to, double bytes)
{
    for (uint32_t i = 0; i < w->path->reply.count; i++) {
        if (!is_packed(w, i))
            continue;
        launch(w, w->path->reply_kernel[i], work(w, 0, bytes));
        w->draft->phase = control == F_FOLDS ? phase_relay : w->draft->phase;
        own(w, control, access_read);
        sums_rows(w, control, from, access_read);
        sums_rows(w, control, to, access_write);
    }
}

/// The relay sums its node's replies before it sends them home.
static void draft_combine_recv(struct writer *w)
{
    const struct path *p = w->path;
    if (p->node) {
        double bytes = hit_rows(w) * (double)(p->width * dtype_bytes(p->y_dtype));
        relay(w, opcode_settle, EXCHANGE_COMBINE);
        launch(w, p->fold_kernel, work(w, 0, hit_rows(w) * 32));
        w->draft->phase = phase_relay;
        w->draft->exchange = combine_of(w);
        own(w, F_RELAY, access_read);
        own(w, F_GATHER, access_read);
        fresh(w, F_SUMS);
        own(w, F_FOLDS, access_write);
        earlier_slots(w, F_RELAY);
        launch(w, p->sum_kernel, work(w, 0, 2 * bytes));
        w->draft->phase = phase_relay;
        own(w, F_FOLDS, access_read);
        own(w, F_GATHER, packs_sums(w) ? access_update : access_read);
        own(w, F_SUMS, access_write);
        draft_packed_sums(w, F_FOLDS, F_GATHER, F_SUMS, bytes);
        relay(w, opcode_forward, EXCHANGE_COMBINE);
    }
    message(w, opcode_recv, EXCHANGE_COMBINE, F_REPLY_SEND, F_REPLY_RECV);
}

static void draft_router(struct writer *w)
{
    const struct path *p = w->path;
    double n = tokens(w), elements = (double)p->experts * (double)p->width;
    launch(w, p->route_kernel,
           work(w, 2 * n * elements, 4 * elements + n * (double)(p->width * dtype_bytes(p->x_dtype))));
    argument(w, path_x(w), access_read);
    param(w, p->w_router);
    fresh(w, F_IDS);
    fresh(w, F_WEIGHTS);
    if (p->bias != NONE)
        param(w, p->bias);
    if (p->logit_bias != NONE)
        param(w, p->logit_bias);
}

/// Places are taken in the order of choices, then of tokens: of a rank's micro-batches one after another.
static void draft_limit(struct writer *w, int64_t choice, int64_t end)
{
    const struct path *p = w->path;
    uint32_t part = w->part;
    launch(w, limit_kernel(w->l, p, choice, end), work(w, 0, tokens(w) * (double)(end - choice) * 16));
    own(w, F_IDS, access_update);
    own(w, F_WEIGHTS, access_update);
    w->part = 0; // the counts of all parts
    if (part == 0 && choice == 0)
        fresh(w, F_TAKEN);
    else
        own(w, F_TAKEN, access_update);
    w->part = part;
}

/// Where experts have a limit, the first micro-batch's instance routes all of a rank's tokens.
static void draft_route(struct writer *w)
{
    const struct path *p = w->path;
    if (!p->limited) {
        draft_router(w);
        return;
    }
    if (w->part || w->piece)
        return;
    for (w->part = 0; w->part < w->l->parts; w->part++) {
        w->range = w->part;
        draft_router(w);
    }
    int64_t step = w->l->parts == 1 ? p->choices : 1;
    for (int64_t choice = 0; choice < p->choices; choice += step)
        for (w->part = 0; w->part < w->l->parts; w->part++) {
            w->range = w->part;
            draft_limit(w, choice, choice + step);
        }
}

static bool has_pool(const struct writer *w)
{
    return exchange_of(w->l, w->path_number, w->layer, cell_of(w), EXCHANGE_POOL_DISPATCH) != NONE;
}

/// Rows of every format into their records; of a chunk, only its rows: the verifier knows which.
static void draft_pack_rows(struct writer *w, bool pool)
{
    const struct path *p = w->path;
    double bytes = pool ? 0 : hit_rows(w) * (double)(2 * p->width * dtype_bytes(p->x_dtype));
    for (uint32_t i = 0; i < p->wire.count; i++) {
        launch(w, p->pack_kernel[i], work(w, 0, bytes / p->wire.count));
        own(w, pool ? F_ROUND : F_BINS, access_read);
        argument(w, path_x(w), access_read);
        if (p->pieces > 1 && !pool) {
            w->draft->exchange = exchange_of(w->l, w->path_number, w->layer, cell_of(w), EXCHANGE_DISPATCH) + w->piece;
            touch(w, family(w, F_SEND), false);
        } else
            own(w, pool ? F_POOL_SEND : F_SEND, access_write);
    }
}

static void draft_bin(struct writer *w)
{
    const struct path *p = w->path;
    uint32_t x = path_x(w);
    launch(w, p->bin_kernel, work(w, 0, tokens(w) * (double)p->choices * 32));
    w->draft->exchange = exchange_of(w->l, w->path_number, w->layer, cell_of(w), EXCHANGE_DISPATCH);
    own(w, F_IDS, access_read);
    own(w, F_WEIGHTS, access_read);
    argument(w, x, access_read);
    own(w, F_BINS, access_write);
    fresh(w, F_SEND);
    fresh(w, F_REPLY_RECV);
    fresh(w, F_OWN);
    if (has_pool(w))
        fresh(w, F_SPILL);
    if (has_pool(w) && p->node)
        own(w, F_SPILL_SUMS, access_write);
    if (has_pool(w) && packs_sums(w))
        fresh(w, F_PACKED);
    if (w->wave > 0)
        argument(w, family_in(w, F_BINS, w->wave - 1), access_read);
}

/// The first piece's instance finds the slots of all.
static void draft_pack(struct writer *w)
{
    uint32_t range = w->range;
    w->range = w->part;
    if (!w->piece)
        draft_bin(w);
    w->range = range;
    draft_pack_rows(w, false);
}

static void draft_unpack(struct writer *w, bool pool, double bytes)
{
    const struct path *p = w->path;
    enum path_family control = pool ? F_POOL_PAIRS : F_PAIRS, a = pool ? F_POOL_A : F_A;
    for (uint32_t i = 0; i < p->wire.count; i++) {
        launch(w, p->unpack_kernel[i], work(w, 0, 2 * bytes / p->wire.count));
        own(w, control, access_read);
        if (!p->dense && !pool && p->runs > 1) // of what arrived only the piece's rows: the verifier knows which
            touch(w, family(w, F_RECV), false);
        else if (!p->dense)
            own(w, pool ? F_POOL_RECV : F_RECV, access_read);
        if (!p->dense && !pool)
            earlier_slots(w, F_RECV);
        if (!pool && !p->own_apart)
            argument(w, path_x(w), access_read);
        own(w, a, access_write);
    }
    if (!p->own_apart || pool)
        return;
    launch(w, p->own_kernel, work(w, 0, bytes));
    own(w, control, access_read);
    argument(w, path_x(w), access_read);
    own(w, a, access_write);
}

/// A launch writes replies; of an expert in pieces, those to its rows.
static void into_replies(struct writer *w, bool pool)
{
    if (!pool && w->path->runs > 1)
        touch(w, family(w, F_REPLY_SEND), false);
    else
        own(w, pool ? F_POOL_REPLY : F_REPLY_SEND, access_write);
}

/// Sums that travel in another format than their own.
static void draft_replies(struct writer *w, bool pool)
{
    const struct path *p = w->path;
    double bytes = pool ? 0 : hit_rows(w) * (double)(2 * p->width * dtype_bytes(p->y_dtype));
    for (uint32_t i = 0; i < p->reply.count && p->staged; i++) {
        if (p->reply_kernel[i] == NONE || !is_answer_format(w->l, p, i))
            continue;
        launch(w, p->reply_kernel[i], work(w, 0, bytes / p->reply.count));
        own(w, pool ? F_POOL_PAIRS : F_PAIRS, access_read);
        own(w, pool ? F_POOL_STAGE : F_STAGE, access_read);
        into_replies(w, pool);
    }
}

/// Pairs that the instance computes, in expectation; those of overflow rounds count nothing.
static double pairs_of(const struct writer *w, bool pool)
{
    const struct path *p = w->path;
    return pool ? 0 : tokens(w) * (double)(p->dense ? p->experts : p->choices) / waves_of(w);
}

/// The time of `products` matrix products of the pairs, each with one matrix of every expert.
static double mlp_work(const struct writer *w, bool pool, double products)
{
    const struct path *p = w->path;
    double size = (double)p->width * (double)p->ffn;
    double owned = (double)p->experts / (p->dense ? 1 : w->l->ranks * waves_of(w));
    const struct plan_param *up = ROW(w->l->plan, plan_param, p->w_up);
    double stored = (double)dtype_bits(up->dtype) / 8; // bytes of a weight, and of its share of a scale
    if (up->scales)
        stored += (double)plan_scale_bytes(up) / (double)(up->block_rows * up->block_cols);
    return work(w, products * 2 * pairs_of(w, pool) * size, pool ? 0 : products * owned * size * stored);
}

/// Rows into A, and the first grouped matrix product. `pool`: of an overflow round.
static void draft_up(struct writer *w, bool pool)
{
    const struct path *p = w->path;
    enum path_family control = pool ? F_POOL_PAIRS : F_PAIRS, a = pool ? F_POOL_A : F_A,
                     hidden = pool ? F_POOL_HIDDEN : F_HIDDEN;
    draft_unpack(w, pool, pairs_of(w, pool) * (double)(p->width * dtype_bytes(p->a_elements)));
    launch(w, p->up_kernel, mlp_work(w, pool, p->plain ? 1 : 2));
    own(w, control, access_read);
    own(w, a, access_read);
    param(w, p->w_up);
    fresh(w, hidden);
    if (p->b_up != NONE)
        param(w, p->b_up);
}

/// The second, with sums to where the rows' replies go.
static void draft_down(struct writer *w, bool pool)
{
    const struct path *p = w->path;
    enum path_family control = pool ? F_POOL_PAIRS : F_PAIRS, hidden = pool ? F_POOL_HIDDEN : F_HIDDEN,
                     acc = pool ? F_POOL_ACC : F_ACC;
    launch(w, p->down_kernel, mlp_work(w, pool, 1));
    own(w, control, access_read);
    own(w, hidden, access_read);
    param(w, p->w_down);
    fresh(w, acc);
    if (p->b_down != NONE)
        param(w, p->b_down);
    if (p->dense)
        argument(w, result_value(w, p->expert), access_write);
    else
        into_replies(w, pool);
    if (!p->dense && !pool)
        own(w, F_OWN, access_write);
    if (p->staged)
        own(w, pool ? F_POOL_STAGE : F_STAGE, access_write);
    draft_replies(w, pool);
}

static void draft_fan_out(struct writer *w, bool pool)
{
    const struct path *p = w->path;
    launch(w, p->fan_kernel, pool ? 0 : work(w, 0, tokens(w) * (double)p->choices * 32));
    w->draft->exchange =
        exchange_of(w->l, w->path_number, w->layer, cell_of(w), pool ? EXCHANGE_POOL_DISPATCH : EXCHANGE_DISPATCH);
    own(w, F_BINS, access_read);
    own(w, pool ? F_POOL_RECV : F_RECV, access_read);
    own(w, pool ? F_POOL_PAIRS : F_PAIRS, access_write);
    fresh(w, pool ? F_POOL_A : F_A);
    own(w, pool ? F_POOL_REPLY : F_REPLY_SEND, access_write);
    w->draft->operands[w->draft->operand_count - 1].first = pool || w->piece == 0;
    own(w, F_OWN, pool ? access_read : access_write);
    argument(w, path_x(w), access_read);
    if (p->staged)
        fresh(w, pool ? F_POOL_STAGE : F_STAGE);
    if (!pool)
        earlier_slots(w, F_RECV);
}

/// Overflow rounds read the headers of the base dispatch up to their end.
static void touch_base(struct writer *w)
{
    touch(w, family(w, F_SEND), false);
    touch(w, family(w, F_RECV), false);
}

static void draft_rounds(struct writer *w)
{
    const struct path *p = w->path;
    uint32_t pool = exchange_of(w->l, w->path_number, w->layer, cell_of(w), EXCHANGE_POOL_DISPATCH);
    begin(w, opcode_rounds, 0);
    w->draft->exchange = pool;
    w->looping = true;
    touch_base(w);
    launch(w, p->round_kernel, 0);
    w->draft->exchange = pool;
    own(w, F_IDS, access_read);
    own(w, F_WEIGHTS, access_read);
    argument(w, path_x(w), access_read);
    own(w, F_BINS, access_read);
    fresh(w, F_POOL_SEND);
    own(w, F_ROUND, access_write);
    draft_pack_rows(w, true);
    message(w, opcode_send, EXCHANGE_POOL_DISPATCH, F_POOL_SEND, F_POOL_RECV);
    message(w, opcode_recv, EXCHANGE_POOL_DISPATCH, F_POOL_SEND, F_POOL_RECV);
    draft_fan_out(w, true);
    draft_up(w, true);
    draft_down(w, true);
    message(w, opcode_send, EXCHANGE_POOL_COMBINE, F_POOL_REPLY, F_SPILL);
    message(w, opcode_recv, EXCHANGE_POOL_COMBINE, F_POOL_REPLY, F_SPILL);
    begin(w, opcode_end, 0);
    w->draft->exchange = pool;
    touch_base(w);
    w->looping = false;
}

static void draft_dense(struct writer *w)
{
    launch(w, w->path->dense_kernel, work(w, 0, tokens(w) * 32));
    own(w, F_PAIRS, access_write);
    fresh(w, F_A);
    argument(w, path_x(w), access_read);
    argument(w, result_value(w, w->path->expert), access_write);
}

/// Up to the hidden activations, down from them, or both. Rows that overflowed go with `down`, of the last piece.
static void draft_expert(struct writer *w, enum phase phase)
{
    bool dense = w->path->dense;
    w->experts = !dense;
    if (phase != phase_down) {
        if (dense)
            draft_dense(w);
        else
            draft_fan_out(w, false);
        draft_up(w, false);
    }
    if (phase != phase_up)
        draft_down(w, false);
    w->experts = false;
    if (phase != phase_up && !dense && has_pool(w) && w->piece + 1 == w->path->runs) {
        w->range = w->part;
        draft_rounds(w);
    }
}

static void draft_merge(struct writer *w)
{
    const struct path *p = w->path;
    bool adds = w->wave > 0, ends = w->wave + 1 == w->l->waves;
    if (has_pool(w) && p->node) {
        launch(w, p->sum_kernel, 0);
        own(w, F_SPILL_SUMS, access_read);
        sums_rows(w, F_SPILL_SUMS, F_SPILL, access_update);
        draft_packed_sums(w, F_SPILL_SUMS, F_SPILL, F_PACKED, 0);
    }
    launch(w, p->merge_kernels[adds][ends], work(w, 0, (hit_rows(w) + tokens(w)) * (double)p->width * 2 * 4));
    own(w, F_BINS, access_read);
    if (ends)
        argument(w, result_value(w, p->combine), access_write);
    else if (!adds)
        fresh(w, F_SUM);
    else
        own(w, F_SUM, access_update);
    if (adds)
        own(w, F_SUM, access_read);
    if (p->chunks > 1) { // of the replies only the chunk's rows: the verifier knows which
        w->draft->exchange = combine_of(w);
        touch(w, family(w, F_REPLY_RECV), false);
    } else
        own(w, F_REPLY_RECV, access_read);
    own(w, F_OWN, access_read);
    if (has_pool(w))
        sums_rows(w, F_SPILL_SUMS, F_SPILL, access_read);
    if (has_pool(w) && packs_sums(w))
        sums_rows(w, F_SPILL_SUMS, F_PACKED, access_read);
}

/// An operator on rows: what it reads in the order of the text, then the result.
static void draft_row_operator(struct writer *w, uint32_t stage, uint32_t role)
{
    const struct ir *module = w->l->module;
    const struct mod_stage *row = lower_stage(w->l, stage);
    const struct mod_value *result = ROW(module, mod_value, row->result);
    struct plan_kernel kernel = {.role = role, .n = {result->width}};
    int64_t bytes = 0;
    uint32_t values = 0;
    for (uint32_t i = 0; i <= row->args.count; i++) {
        const struct mod_arg *arg = i < row->args.count ? ROW(module, mod_arg, row->args.first + i) : NULL;
        if (arg && arg->value == NONE)
            continue;
        uint32_t dtype = (arg ? ROW(module, mod_value, arg->value) : result)->dtype;
        kernel.n[++values] = dtype;
        bytes += result->width * dtype_bytes(dtype);
    }
    launch(w, kernel_row(w->l, kernel), work(w, 0, tokens(w) * (double)bytes));
    for (uint32_t i = 0; i < row->args.count; i++) {
        const struct mod_arg *arg = ROW(module, mod_arg, row->args.first + i);
        if (arg->param != NONE)
            param(w, plan_param_of(w->l->plan, module, arg->param));
        else if (arg->value != NONE)
            argument(w, value_buffer(w->l, arg->value, w->layer, w->part), access_read);
    }
    argument(w, result_value(w, stage), access_write);
}

/// The host's function on the part's rows: inputs in the order of the text, then the result.
static void draft_extern(struct writer *w, uint32_t stage)
{
    const struct mod_stage *row = lower_stage(w->l, stage);
    double bound = (double)w->l->layer->tokens_bound;
    begin(w, opcode_host, bound > 0 ? row->cost * tokens(w) / bound : 0);
    for (uint32_t i = 0; i < row->args.count; i++)
        argument(w, value_buffer(w->l, ROW(w->l->module, mod_arg, row->args.first + i)->value, w->layer, w->part),
                 access_read);
    argument(w, result_value(w, stage), access_write);
}

static void draft_task(struct writer *w, uint32_t stage, uint32_t phase)
{
    const char *kernel = lower_kernel_name(w->l, stage);
    uint32_t role = row_operator(kernel);
    bool dispatch = !strcmp(kernel, "dispatch"), combine = !strcmp(kernel, "combine");
    if (lower_stage(w->l, stage)->external)
        draft_extern(w, stage);
    else if (role != kernel_role_words_count)
        draft_row_operator(w, stage, role);
    else if (!w->path)
        lower_refuse(w->l, E0901, stage, NULL, "this operator is not built yet");
    else if (!strcmp(kernel, "route"))
        draft_route(w);
    else if (lower_is_mlp(w->l, stage))
        draft_expert(w, (enum phase)phase);
    else if (dispatch && phase == phase_pack)
        draft_pack(w);
    else if (dispatch && phase == phase_send)
        message(w, opcode_send, EXCHANGE_DISPATCH, F_SEND, F_RECV);
    else if (dispatch && phase == phase_recv)
        draft_dispatch_recv(w);
    else if (combine && phase == phase_send)
        message(w, opcode_send, EXCHANGE_COMBINE, F_REPLY_SEND, F_REPLY_RECV);
    else if (combine && phase == phase_recv)
        draft_combine_recv(w);
    else if (combine && phase == phase_merge)
        draft_merge(w);
    else
        lower_refuse(w->l, E0901, stage, NULL, "this phase is not built yet");
}

void draft_instances(struct lowering *l)
{
    uint32_t count = COUNT(l->schedule, sched_instance);
    l->of_instance = context_alloc(l->context, (count + 1) * sizeof *l->of_instance);
    for (uint32_t i = 0; i < count; i++) {
        const struct sched_instance *instance = ROW(l->schedule, sched_instance, i);
        const struct graph_task *task = ROW(l->graph, graph_task, instance->task);
        uint32_t stage = ROW(l->graph, mod_stage_number, task->module_stage)->row;
        struct path *path = path_of_stage(l, stage);
        struct writer w = {.l = l,
                           .instance = i,
                           .path = path,
                           .path_number = path ? (uint32_t)(path - l->paths) : NONE,
                           .layer = instance->layer,
                           .part = instance->part,
                           .wave = instance->wave,
                           .range = instance_range(l, instance),
                           .piece = instance->piece};
        l->of_instance[i].first = l->draft_count;
        draft_task(&w, stage, task->phase);
    }
}
