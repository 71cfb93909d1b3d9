// Instances -> draft instructions over logical buffers (writer.h), and what each instance touches. A kernel that works through
// a control buffer touches what the buffer's writer was given, so those accesses are named here beside the arguments.
#include <string.h>

#include "compiler/lower/writer.h"

static void draft_dispatch_recv(struct writer *w)
{
    writer_message(w, opcode_recv, EXCHANGE_DISPATCH, F_SEND, F_RECV);
    if (!w->path->node)
        return;
    writer_relay(w, opcode_forward, EXCHANGE_DISPATCH);
    writer_relay(w, opcode_settle, EXCHANGE_DISPATCH);
}

/// Rows that earlier waves brought are read where they arrived, or where they were relayed.
static void earlier_slots(struct writer *w, enum path_family slots)
{
    for (uint32_t wave = 0; wave < w->wave; wave++)
        writer_argument(w, writer_family_in(w, slots, wave), access_read);
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
        writer_own(w, rows, access);
        return;
    }
    w->draft->exchange = writer_combine(w);
    writer_touch(w, writer_family(w, rows), false);
}

/// Sums into the formats in which they go home: of a relay, or of rows that overflowed.
static void draft_packed_sums(struct writer *w, enum path_family control, enum path_family from, enum path_family to, double bytes)
{
    for (uint32_t i = 0; i < w->path->reply.count; i++) {
        if (!is_packed(w, i))
            continue;
        writer_launch(w, w->path->reply_kernel[i], writer_work(w, 0, bytes));
        w->draft->phase = control == F_FOLDS ? phase_relay : w->draft->phase;
        writer_own(w, control, access_read);
        sums_rows(w, control, from, access_read);
        sums_rows(w, control, to, access_write);
    }
}

/// The relay sums its node's replies before it sends them home.
static void draft_combine_recv(struct writer *w)
{
    const struct path *p = w->path;
    if (p->node) {
        double bytes = writer_hit_rows(w) * (double)(p->width * dtype_bytes(p->y_dtype));
        writer_relay(w, opcode_settle, EXCHANGE_COMBINE);
        writer_launch(w, p->fold_kernel, writer_work(w, 0, writer_hit_rows(w) * 32));
        w->draft->phase = phase_relay;
        w->draft->exchange = writer_combine(w);
        writer_own(w, F_RELAY, access_read);
        writer_own(w, F_GATHER, access_read);
        writer_fresh(w, F_SUMS);
        writer_own(w, F_FOLDS, access_write);
        earlier_slots(w, F_RELAY);
        writer_launch(w, p->sum_kernel, writer_work(w, 0, 2 * bytes));
        w->draft->phase = phase_relay;
        writer_own(w, F_FOLDS, access_read);
        writer_own(w, F_GATHER, packs_sums(w) ? access_update : access_read);
        writer_own(w, F_SUMS, access_write);
        draft_packed_sums(w, F_FOLDS, F_GATHER, F_SUMS, bytes);
        writer_relay(w, opcode_forward, EXCHANGE_COMBINE);
    }
    writer_message(w, opcode_recv, EXCHANGE_COMBINE, F_REPLY_SEND, F_REPLY_RECV);
}

static void draft_router(struct writer *w)
{
    const struct path *p = w->path;
    double n = writer_tokens(w), elements = (double)p->experts * (double)p->width;
    writer_launch(w, p->route_kernel,
           writer_work(w, 2 * n * elements, 4 * elements + n * (double)(p->width * dtype_bytes(p->x_dtype))));
    writer_argument(w, writer_path_x(w), access_read);
    writer_param(w, p->w_router);
    writer_fresh(w, F_IDS);
    writer_fresh(w, F_WEIGHTS);
    if (p->bias != NONE)
        writer_param(w, p->bias);
    if (p->logit_bias != NONE)
        writer_param(w, p->logit_bias);
}

/// Places are taken in the order of choices, then of tokens: of a rank's micro-batches one after another.
static void draft_limit(struct writer *w, int64_t choice, int64_t end)
{
    const struct path *p = w->path;
    uint32_t part = w->part;
    writer_launch(w, limit_kernel(w->l, p, choice, end), writer_work(w, 0, writer_tokens(w) * (double)(end - choice) * 16));
    writer_own(w, F_IDS, access_update);
    writer_own(w, F_WEIGHTS, access_update);
    w->part = 0; // the counts of all parts
    if (part == 0 && choice == 0)
        writer_fresh(w, F_TAKEN);
    else
        writer_own(w, F_TAKEN, access_update);
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
    return exchange_of(w->l, w->path_number, w->layer, writer_cell(w), EXCHANGE_POOL_DISPATCH) != NONE;
}

/// Rows of every format into their records; of a chunk, only its rows: the verifier knows which.
static void draft_pack_rows(struct writer *w, bool pool)
{
    const struct path *p = w->path;
    double bytes = pool ? 0 : writer_hit_rows(w) * (double)(2 * p->width * dtype_bytes(p->x_dtype));
    for (uint32_t i = 0; i < p->wire.count; i++) {
        writer_launch(w, p->pack_kernel[i], writer_work(w, 0, bytes / p->wire.count));
        writer_own(w, pool ? F_ROUND : F_BINS, access_read);
        writer_argument(w, writer_path_x(w), access_read);
        if (p->pieces > 1 && !pool) {
            w->draft->exchange = exchange_of(w->l, w->path_number, w->layer, writer_cell(w), EXCHANGE_DISPATCH) + w->piece;
            writer_touch(w, writer_family(w, F_SEND), false);
        } else
            writer_own(w, pool ? F_POOL_SEND : F_SEND, access_write);
    }
}

static void draft_bin(struct writer *w)
{
    const struct path *p = w->path;
    uint32_t x = writer_path_x(w);
    writer_launch(w, p->bin_kernel, writer_work(w, 0, writer_tokens(w) * (double)p->choices * 32));
    w->draft->exchange = exchange_of(w->l, w->path_number, w->layer, writer_cell(w), EXCHANGE_DISPATCH);
    writer_own(w, F_IDS, access_read);
    writer_own(w, F_WEIGHTS, access_read);
    writer_argument(w, x, access_read);
    writer_own(w, F_BINS, access_write);
    writer_fresh(w, F_SEND);
    writer_fresh(w, F_REPLY_RECV);
    writer_fresh(w, F_OWN);
    if (has_pool(w))
        writer_fresh(w, F_SPILL);
    if (has_pool(w) && p->node)
        writer_own(w, F_SPILL_SUMS, access_write);
    if (has_pool(w) && packs_sums(w))
        writer_fresh(w, F_PACKED);
    if (w->wave > 0)
        writer_argument(w, writer_family_in(w, F_BINS, w->wave - 1), access_read);
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
        writer_launch(w, p->unpack_kernel[i], writer_work(w, 0, 2 * bytes / p->wire.count));
        writer_own(w, control, access_read);
        if (!p->dense && !pool && p->runs > 1) // of what arrived only the piece's rows: the verifier knows which
            writer_touch(w, writer_family(w, F_RECV), false);
        else if (!p->dense)
            writer_own(w, pool ? F_POOL_RECV : F_RECV, access_read);
        if (!p->dense && !pool)
            earlier_slots(w, F_RECV);
        if (!pool && !p->own_apart)
            writer_argument(w, writer_path_x(w), access_read);
        writer_own(w, a, access_write);
    }
    if (!p->own_apart || pool)
        return;
    writer_launch(w, p->own_kernel, writer_work(w, 0, bytes));
    writer_own(w, control, access_read);
    writer_argument(w, writer_path_x(w), access_read);
    writer_own(w, a, access_write);
}

/// A launch writes replies; of an expert in pieces, those to its rows.
static void into_replies(struct writer *w, bool pool)
{
    if (!pool && w->path->runs > 1)
        writer_touch(w, writer_family(w, F_REPLY_SEND), false);
    else
        writer_own(w, pool ? F_POOL_REPLY : F_REPLY_SEND, access_write);
}

/// Sums that travel in another format than their own.
static void draft_replies(struct writer *w, bool pool)
{
    const struct path *p = w->path;
    double bytes = pool ? 0 : writer_hit_rows(w) * (double)(2 * p->width * dtype_bytes(p->y_dtype));
    for (uint32_t i = 0; i < p->reply.count && p->staged; i++) {
        if (p->reply_kernel[i] == NONE || !is_answer_format(w->l, p, i))
            continue;
        writer_launch(w, p->reply_kernel[i], writer_work(w, 0, bytes / p->reply.count));
        writer_own(w, pool ? F_POOL_PAIRS : F_PAIRS, access_read);
        writer_own(w, pool ? F_POOL_STAGE : F_STAGE, access_read);
        into_replies(w, pool);
    }
}

/// Pairs that the instance computes, in expectation; those of overflow rounds count nothing.
static double pairs_of(const struct writer *w, bool pool)
{
    const struct path *p = w->path;
    return pool ? 0 : writer_tokens(w) * (double)(p->dense ? p->experts : p->choices) / writer_waves(w);
}

/// Rows of A that its tokens make, in expectation.
static double a_rows_of(const struct writer *w, bool pool)
{
    const struct path *p = w->path;
    double rows = 0;
    if (!p->by_row)
        return pairs_of(w, pool);
    for (uint32_t d = 0; d < w->l->ranks && !p->dense; d++)
        rows += rank_hit(w->l, p, d, w->wave);
    return pool ? 0 : writer_tokens(w) * (p->dense ? 1 : rows);
}

/// The time of `products` matrix products of the pairs, each with one matrix of every expert.
static double mlp_work(const struct writer *w, bool pool, double products)
{
    const struct path *p = w->path;
    double size = (double)p->width * (double)p->ffn;
    double owned = (double)p->experts / (p->dense ? 1 : w->l->ranks * writer_waves(w));
    const struct plan_param *up = ROW(w->l->plan, plan_param, p->w_up);
    double stored = (double)dtype_bits(up->dtype) / 8; // bytes of a weight, and of its share of a scale
    if (up->scales)
        stored += (double)plan_scale_bytes(up) / (double)(up->block_rows * up->block_cols);
    return writer_work(w, products * 2 * pairs_of(w, pool) * size, pool ? 0 : products * owned * size * stored);
}

/// Rows into A, and the first grouped matrix product. `pool`: of an overflow round.
static void draft_up(struct writer *w, bool pool)
{
    const struct path *p = w->path;
    enum path_family control = pool ? F_POOL_PAIRS : F_PAIRS, a = pool ? F_POOL_A : F_A,
                     hidden = pool ? F_POOL_HIDDEN : F_HIDDEN;
    draft_unpack(w, pool, a_rows_of(w, pool) * (double)(p->width * dtype_bytes(p->a_elements)));
    writer_launch(w, p->up_kernel, mlp_work(w, pool, p->plain ? 1 : 2));
    writer_own(w, control, access_read);
    writer_own(w, a, access_read);
    writer_param(w, p->w_up);
    writer_fresh(w, hidden);
    if (p->b_up != NONE)
        writer_param(w, p->b_up);
}

/// The second, with sums to where the rows' replies go.
static void draft_down(struct writer *w, bool pool)
{
    const struct path *p = w->path;
    enum path_family control = pool ? F_POOL_PAIRS : F_PAIRS, hidden = pool ? F_POOL_HIDDEN : F_HIDDEN,
                     acc = pool ? F_POOL_ACC : F_ACC;
    writer_launch(w, p->down_kernel, mlp_work(w, pool, 1));
    writer_own(w, control, access_read);
    writer_own(w, hidden, access_read);
    writer_param(w, p->w_down);
    writer_fresh(w, acc);
    if (p->b_down != NONE)
        writer_param(w, p->b_down);
    if (p->dense)
        writer_argument(w, writer_result_value(w, p->expert), access_write);
    else
        into_replies(w, pool);
    if (!p->dense && !pool)
        writer_own(w, F_OWN, access_write);
    if (p->staged)
        writer_own(w, pool ? F_POOL_STAGE : F_STAGE, access_write);
    draft_replies(w, pool);
}

static void draft_fan_out(struct writer *w, bool pool)
{
    const struct path *p = w->path;
    writer_launch(w, p->fan_kernel, pool ? 0 : writer_work(w, 0, writer_tokens(w) * (double)p->choices * 32));
    w->draft->exchange =
        exchange_of(w->l, w->path_number, w->layer, writer_cell(w), pool ? EXCHANGE_POOL_DISPATCH : EXCHANGE_DISPATCH);
    writer_own(w, F_BINS, access_read);
    writer_own(w, pool ? F_POOL_RECV : F_RECV, access_read);
    writer_own(w, pool ? F_POOL_PAIRS : F_PAIRS, access_write);
    writer_fresh(w, pool ? F_POOL_A : F_A);
    writer_own(w, pool ? F_POOL_REPLY : F_REPLY_SEND, access_write);
    w->draft->operands[w->draft->operand_count - 1].first = pool || w->piece == 0;
    writer_own(w, F_OWN, pool ? access_read : access_write);
    writer_argument(w, writer_path_x(w), access_read);
    if (p->staged)
        writer_fresh(w, pool ? F_POOL_STAGE : F_STAGE);
    if (!pool)
        earlier_slots(w, F_RECV);
}

/// Overflow rounds read the headers of the base dispatch up to their end.
static void touch_base(struct writer *w)
{
    writer_touch(w, writer_family(w, F_SEND), false);
    writer_touch(w, writer_family(w, F_RECV), false);
}

static void draft_rounds(struct writer *w)
{
    const struct path *p = w->path;
    uint32_t pool = exchange_of(w->l, w->path_number, w->layer, writer_cell(w), EXCHANGE_POOL_DISPATCH);
    writer_begin(w, opcode_rounds, 0);
    w->draft->exchange = pool;
    w->looping = true;
    touch_base(w);
    writer_launch(w, p->round_kernel, 0);
    w->draft->exchange = pool;
    writer_own(w, F_IDS, access_read);
    writer_own(w, F_WEIGHTS, access_read);
    writer_argument(w, writer_path_x(w), access_read);
    writer_own(w, F_BINS, access_read);
    writer_fresh(w, F_POOL_SEND);
    writer_own(w, F_ROUND, access_write);
    draft_pack_rows(w, true);
    writer_message(w, opcode_send, EXCHANGE_POOL_DISPATCH, F_POOL_SEND, F_POOL_RECV);
    writer_message(w, opcode_recv, EXCHANGE_POOL_DISPATCH, F_POOL_SEND, F_POOL_RECV);
    draft_fan_out(w, true);
    draft_up(w, true);
    draft_down(w, true);
    writer_message(w, opcode_send, EXCHANGE_POOL_COMBINE, F_POOL_REPLY, F_SPILL);
    writer_message(w, opcode_recv, EXCHANGE_POOL_COMBINE, F_POOL_REPLY, F_SPILL);
    writer_begin(w, opcode_end, 0);
    w->draft->exchange = pool;
    touch_base(w);
    w->looping = false;
}

static void draft_dense(struct writer *w)
{
    writer_launch(w, w->path->dense_kernel, writer_work(w, 0, writer_tokens(w) * 32));
    writer_own(w, F_PAIRS, access_write);
    writer_fresh(w, F_A);
    writer_argument(w, writer_path_x(w), access_read);
    writer_argument(w, writer_result_value(w, w->path->expert), access_write);
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
        writer_launch(w, p->sum_kernel, 0);
        writer_own(w, F_SPILL_SUMS, access_read);
        sums_rows(w, F_SPILL_SUMS, F_SPILL, access_update);
        draft_packed_sums(w, F_SPILL_SUMS, F_SPILL, F_PACKED, 0);
    }
    double rows = writer_hit_rows(w) + writer_tokens(w);
    writer_launch(w, p->merge_kernels[adds][ends], writer_work(w, 0, rows * (double)p->width * 2 * 4));
    writer_own(w, F_BINS, access_read);
    if (ends)
        writer_argument(w, writer_result_value(w, p->combine), access_write);
    else if (!adds)
        writer_fresh(w, F_SUM);
    else
        writer_own(w, F_SUM, access_update);
    if (adds)
        writer_own(w, F_SUM, access_read);
    if (p->chunks > 1) { // of the replies only the chunk's rows: the verifier knows which
        w->draft->exchange = writer_combine(w);
        writer_touch(w, writer_family(w, F_REPLY_RECV), false);
    } else
        writer_own(w, F_REPLY_RECV, access_read);
    writer_own(w, F_OWN, access_read);
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
    writer_launch(w, kernel_row(w->l, kernel), writer_work(w, 0, writer_tokens(w) * (double)bytes));
    for (uint32_t i = 0; i < row->args.count; i++) {
        const struct mod_arg *arg = ROW(module, mod_arg, row->args.first + i);
        if (arg->param != NONE)
            writer_param(w, plan_param_of(w->l->plan, module, arg->param));
        else if (arg->value != NONE)
            writer_argument(w, writer_value_buffer(w->l, arg->value, w->layer, w->part), access_read);
    }
    writer_argument(w, writer_result_value(w, stage), access_write);
}

/// The host's function on the part's rows: inputs in the order of the text, then the result.
static void draft_extern(struct writer *w, uint32_t stage)
{
    const struct mod_stage *row = lower_stage(w->l, stage);
    double bound = (double)w->l->layer->tokens_bound;
    writer_begin(w, opcode_host, bound > 0 ? row->cost * writer_tokens(w) / bound : 0);
    for (uint32_t i = 0; i < row->args.count; i++)
        writer_argument(w, writer_value_buffer(w->l, ROW(w->l->module, mod_arg, row->args.first + i)->value, w->layer, w->part),
                 access_read);
    writer_argument(w, writer_result_value(w, stage), access_write);
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
        writer_message(w, opcode_send, EXCHANGE_DISPATCH, F_SEND, F_RECV);
    else if (dispatch && phase == phase_recv)
        draft_dispatch_recv(w);
    else if (combine && phase == phase_send)
        writer_message(w, opcode_send, EXCHANGE_COMBINE, F_REPLY_SEND, F_REPLY_RECV);
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
