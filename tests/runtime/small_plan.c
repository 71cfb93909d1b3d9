// Hand-built plans for tests (small_plan.h).
#include "small_plan.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/plan/kernels.h"

#define MOST_PARTS 8

/// Row numbers of one part's buffers, exchanges and kernels.
struct part_rows {
    uint32_t part;
    uint32_t ids, weights, bins, send, recv, pairs, a, hidden, acc, reply_send, reply_recv, own;
    uint32_t pool_send, pool_recv, pool_pairs, round, pool_reply, spill;
    uint32_t dispatch, combine, pool_dispatch, pool_combine;
};

struct builder {
    struct ir *ir;
    struct small *small;
    uint32_t x, y;
    struct part_rows parts[MOST_PARTS];
    uint32_t kernels[kernel_role_words_count];
    uint32_t meddler;
    uint32_t signals;
};

static int64_t part_bound(const struct small *s)
{
    return (s->bound + s->parts - 1) / s->parts;
}

static void add_owners(struct builder *b)
{
    struct small *s = b->small;
    uint32_t owners = s->ranks - s->empty_ranks, next = 0;
    for (uint32_t r = 0; r < s->ranks; r++) {
        uint32_t rank = ADD(b->ir, plan_rank), first = next;
        for (uint32_t e = 0, local = 0; e < s->experts; e++) {
            if (e % owners != r)
                continue;
            uint32_t o = ADD(b->ir, plan_owner);
            *ROW(b->ir, plan_owner, o) = (struct plan_owner){e, r, local, r, local};
            local++;
            s->rank_of[e] = r;
            next++;
        }
        *ROW(b->ir, plan_rank, rank) = (struct plan_rank){.owned = {first, next - first}, .pace = 1};
    }
}

static uint32_t add_kernel(struct builder *b, uint32_t role, bool builtin, uint32_t unit, int64_t units,
                           const int64_t *n)
{
    uint32_t k = ADD(b->ir, plan_kernel);
    struct plan_kernel *row = ROW(b->ir, plan_kernel, k);
    row->name = ir_str(b->ir, kernel_role_words[role]);
    row = ROW(b->ir, plan_kernel, k);
    row->role = role;
    row->builtin = builtin;
    row->unit = unit;
    row->unit_count = units;
    row->grain = 3;
    row->scratch_bytes = 64;
    memcpy(row->n, n, sizeof row->n);
    return b->kernels[role] = k;
}

static void add_kernels(struct builder *b)
{
    int64_t h = b->small->width, e = b->small->experts, k = b->small->choices, row = moe_row_stride(h, 4);
    b->meddler = add_kernel(b, kernel_role_route, false, work_unit_tokens, 0, (int64_t[12]){h, e, k, 0, 0, dtype_f32});
    str_id meddle = ir_str(b->ir, "meddle");
    ROW(b->ir, plan_kernel, b->meddler)->name = meddle;
    ROW(b->ir, plan_kernel, b->meddler)->grain = MOE_MAX_UNITS;
    add_kernel(b, kernel_role_route, false, work_unit_tokens, 0, (int64_t[12]){h, e, k, 0, 0, dtype_f32});
    add_kernel(b, kernel_role_bin, true, work_unit_one, 0, (int64_t[12]){h, k, dtype_f32, 4});
    add_kernel(b, kernel_role_bin_round, true, work_unit_one, 0, (int64_t[12]){h, k, dtype_f32, 4});
    add_kernel(b, kernel_role_copy_rows, false, work_unit_rows, 0, (int64_t[12]){h, dtype_f32, dtype_f32});
    add_kernel(b, kernel_role_fan_out, true, work_unit_one, 0, (int64_t[12]){row, k, 0, dtype_f32});
    add_kernel(b, kernel_role_mlp_up, false, work_unit_fixed, 2, (int64_t[12]){h, h, 0, dtype_f32, row, row});
    add_kernel(b, kernel_role_mlp_down, false, work_unit_fixed, 2, (int64_t[12]){h, h, dtype_f32, dtype_f32, row, row});
    add_kernel(b, kernel_role_merge, false, work_unit_tokens, 0,
               (int64_t[12]){h, dtype_f32, dtype_f32, 0, 1, dtype_f32});
}

static uint32_t add_buffer(struct builder *b, const char *name, uint32_t kind, uint32_t dtype, int64_t row_bytes)
{
    uint32_t number = ADD(b->ir, plan_buffer);
    str_id id = ir_str(b->ir, name);
    struct plan_buffer *row = ROW(b->ir, plan_buffer, number);
    row->name = id;
    row->kind = kind;
    row->dtype = dtype;
    row->row_bytes = row_bytes;
    return number;
}

static void add_buffers(struct builder *b)
{
    int64_t row = b->small->width * 4;
    b->x = add_buffer(b, "x", buffer_kind_input, dtype_f32, row);
    b->y = add_buffer(b, "y", buffer_kind_output, dtype_f32, row);
    for (uint32_t i = 0; i < b->small->parts; i++) {
        struct part_rows *p = &b->parts[i];
        static const char *const names[] = {"ids",       "weights",   "send",       "recv",  "a",          "hidden",
                                            "acc",       "reply",     "replies",    "own",   "bins",       "pairs",
                                            "pool_send", "pool_recv", "pool_reply", "spill", "pool_pairs", "round"};
        uint32_t *const numbers[] = {&p->ids,    &p->weights,    &p->send,       &p->recv,       &p->a,
                                     &p->hidden, &p->acc,        &p->reply_send, &p->reply_recv, &p->own,
                                     &p->bins,   &p->pairs,      &p->pool_send,  &p->pool_recv,  &p->pool_reply,
                                     &p->spill,  &p->pool_pairs, &p->round};
        size_t count = b->small->pool ? sizeof numbers / sizeof *numbers : 12;
        for (size_t n = 0; n < count; n++) {
            bool control = !strcmp(names[n], "bins") || !strcmp(names[n], "pairs") || !strcmp(names[n], "pool_pairs") ||
                           !strcmp(names[n], "round");
            bool own = !strcmp(names[n], "own");
            *numbers[n] = add_buffer(b, names[n], buffer_kind_arena, control ? dtype_none : dtype_f32,
                                     own ? moe_record_bytes(b->small->width * 4, 0) : 0);
        }
    }
}

static uint32_t add_exchange(struct builder *b, const char *name, uint32_t kind, bool pool, uint32_t part,
                             uint32_t send, uint32_t recv, uint32_t base)
{
    const struct small *s = b->small;
    uint32_t number = ADD(b->ir, plan_exchange), first = COUNT(b->ir, plan_slot);
    for (uint32_t d = 0; d < s->ranks; d++) {
        uint32_t slot = ADD(b->ir, plan_slot);
        int64_t rows = pool ? s->pool : s->rows >= 0 && s->rows < part_bound(s) ? s->rows : part_bound(s);
        ROW(b->ir, plan_slot, slot)->rows = d < s->ranks - s->empty_ranks ? rows : 0;
    }
    int64_t meta = kind == exchange_kind_dispatch ? s->choices * (int64_t)sizeof(struct moe_row_meta) : 0;
    str_id id = ir_str(b->ir, name);
    uint32_t wire = ADD(b->ir, plan_wire);
    *ROW(b->ir, plan_wire, wire) = (struct plan_wire){
        .dtype = dtype_f32, .data_bytes = s->width * 4, .row_bytes = moe_record_bytes(s->width * 4, meta)};
    *ROW(b->ir, plan_exchange, number) =
        (struct plan_exchange){.name = id,
                               .kind = kind,
                               .part = part,
                               .pool = pool,
                               .send = send,
                               .recv = recv,
                               .base = base,
                               .header_bytes = moe_header_bytes(s->ranks),
                               .meta_bytes = meta,
                               .waves = 1,
                               .wave_end = 1,
                               .wave_total = 1,
                               .earlier = NONE,
                               .piece = NONE,
                               .max_rounds = 100000,
                               .overflow = s->overflow_error ? overflow_error : overflow_pool,
                               .wires = {wire, 1},
                               .slots = {first, s->ranks}};
    return number;
}

static void add_exchanges(struct builder *b)
{
    for (uint32_t i = 0; i < b->small->parts; i++) {
        struct part_rows *p = &b->parts[i];
        p->dispatch = add_exchange(b, "dispatch", exchange_kind_dispatch, false, p->part, p->send, p->recv, NONE);
        p->combine = add_exchange(b, "combine", exchange_kind_combine, false, p->part, p->reply_send, p->reply_recv,
                                  p->dispatch);
        if (!b->small->pool)
            continue;
        p->pool_dispatch =
            add_exchange(b, "pool", exchange_kind_dispatch, true, p->part, p->pool_send, p->pool_recv, p->dispatch);
        p->pool_combine = add_exchange(b, "pool_back", exchange_kind_combine, true, p->part, p->pool_reply, p->spill,
                                       p->pool_dispatch);
    }
}

static struct plan_instr *add_instr(struct builder *b, uint32_t op, const char *label, uint32_t part)
{
    str_id id = ir_str(b->ir, label);
    uint32_t number = ADD(b->ir, plan_instr);
    struct plan_instr *in = ROW(b->ir, plan_instr, number);
    in->op = op;
    in->label = in->stage = id;
    in->part = part;
    in->cost = op == opcode_launch ? 1000 : 0;
    return in;
}

static void launch(struct builder *b, uint32_t role, uint32_t part, uint32_t exchange, const uint32_t *buffers,
                   uint32_t count)
{
    uint32_t first = COUNT(b->ir, plan_arg);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t a = ADD(b->ir, plan_arg);
        bool caller = buffers[i] == b->x || buffers[i] == b->y;
        struct plan_arg *arg = ROW(b->ir, plan_arg, a);
        arg->buffer = buffers[i];
        arg->access = role == kernel_role_merge && buffers[i] == b->y ? access_write : access_read;
        arg->slice = caller ? part : NONE;
    }
    struct plan_instr *in = add_instr(b, opcode_launch, kernel_role_words[role], part);
    in->kernel = b->kernels[role];
    in->args = (struct rows){first, count};
    in->exchange = exchange;
}
#define LAUNCH(b, role, part, exchange, ...)                                       \
    launch(b, kernel_role_##role, part, exchange, (const uint32_t[]){__VA_ARGS__}, \
           sizeof(const uint32_t[]){__VA_ARGS__} / sizeof(uint32_t))

static void message(struct builder *b, uint32_t op, uint32_t exchange, uint32_t part)
{
    add_instr(b, op, opcode_words[op], part)->exchange = exchange;
}

static void semaphore(struct builder *b, uint32_t op, uint32_t number)
{
    if (op == opcode_signal && b->small->lost_signal && b->signals++ == 1)
        return;
    struct plan_instr *in = add_instr(b, op, opcode_words[op], NONE);
    in->semaphore = number;
    in->value = 1;
}

static void add_rounds(struct builder *b, const struct part_rows *p)
{
    message(b, opcode_rounds, p->pool_dispatch, p->part);
    LAUNCH(b, bin_round, p->part, p->pool_dispatch, p->ids, p->weights, b->x, p->bins, p->pool_send, p->round);
    LAUNCH(b, copy_rows, p->part, NONE, p->round);
    message(b, opcode_send, p->pool_dispatch, p->part);
    message(b, opcode_recv, p->pool_dispatch, p->part);
    LAUNCH(b, fan_out, p->part, p->pool_dispatch, p->bins, p->pool_recv, p->pool_pairs, p->a, p->pool_reply, p->own,
           b->x);
    LAUNCH(b, copy_rows, p->part, NONE, p->pool_pairs);
    LAUNCH(b, mlp_up, p->part, NONE, p->pool_pairs, p->a, b->x, p->hidden);
    LAUNCH(b, mlp_down, p->part, NONE, p->pool_pairs, p->hidden, b->x, p->acc);
    message(b, opcode_send, p->pool_combine, p->part);
    message(b, opcode_recv, p->pool_combine, p->part);
    add_instr(b, opcode_end, "end", p->part);
}

static void add_meddling(struct builder *b, const struct part_rows *p, uint32_t buffer)
{
    LAUNCH(b, route, p->part, NONE, b->x, b->x, buffer, p->weights);
    ROW(b->ir, plan_instr, COUNT(b->ir, plan_instr) - 1)->kernel = b->meddler;
}

/// Semaphores of part i: 4i packed, 4i+1 arrived, 4i+2 computed, 4i+3 returned.
static void add_compute_stream(struct builder *b)
{
    for (uint32_t i = 0; i < b->small->parts; i++) {
        const struct part_rows *p = &b->parts[i];
        LAUNCH(b, route, p->part, NONE, b->x, b->x, p->ids, p->weights);
        if (b->small->meddles == MEDDLE_ROUTES)
            add_meddling(b, p, p->ids);
        if (b->small->pool)
            LAUNCH(b, bin, p->part, p->dispatch, p->ids, p->weights, b->x, p->bins, p->send, p->reply_recv, p->own,
                   p->spill);
        else
            LAUNCH(b, bin, p->part, p->dispatch, p->ids, p->weights, b->x, p->bins, p->send, p->reply_recv, p->own);
        LAUNCH(b, copy_rows, p->part, NONE, p->bins);
        semaphore(b, opcode_signal, 4 * i);
    }
    for (uint32_t i = 0; i < b->small->parts; i++) {
        const struct part_rows *p = &b->parts[i];
        semaphore(b, opcode_wait, 4 * i + 1);
        if (b->small->meddles == MEDDLE_ROWS)
            add_meddling(b, p, p->recv);
        LAUNCH(b, fan_out, p->part, p->dispatch, p->bins, p->recv, p->pairs, p->a, p->reply_send, p->own, b->x);
        LAUNCH(b, copy_rows, p->part, NONE, p->pairs);
        LAUNCH(b, mlp_up, p->part, NONE, p->pairs, p->a, b->x, p->hidden);
        LAUNCH(b, mlp_down, p->part, NONE, p->pairs, p->hidden, b->x, p->acc);
        semaphore(b, opcode_signal, 4 * i + 2);
        if (b->small->pool)
            add_rounds(b, p);
        semaphore(b, opcode_wait, 4 * i + 3);
        LAUNCH(b, merge, p->part, NONE, p->bins, b->y);
    }
    add_instr(b, opcode_count, "count", NONE);
}

static void add_wire_stream(struct builder *b)
{
    for (uint32_t i = 0; i < b->small->parts; i++) {
        semaphore(b, opcode_wait, 4 * i);
        message(b, opcode_send, b->parts[i].dispatch, b->parts[i].part);
        message(b, opcode_recv, b->parts[i].dispatch, b->parts[i].part);
        semaphore(b, opcode_signal, 4 * i + 1);
    }
    for (uint32_t i = 0; i < b->small->parts; i++) {
        semaphore(b, opcode_wait, 4 * i + 2);
        message(b, opcode_send, b->parts[i].combine, b->parts[i].part);
        message(b, opcode_recv, b->parts[i].combine, b->parts[i].part);
        semaphore(b, opcode_signal, 4 * i + 3);
    }
}

static struct rows add_streams(struct builder *b)
{
    uint32_t first = COUNT(b->ir, plan_stream);
    for (int i = 0; i < 2; i++) {
        uint32_t begin = COUNT(b->ir, plan_instr);
        if (i == 0)
            add_compute_stream(b);
        else
            add_wire_stream(b);
        str_id name = ir_str(b->ir, i == 0 ? "comp" : "wire");
        uint32_t s = ADD(b->ir, plan_stream);
        *ROW(b->ir, plan_stream, s) = (struct plan_stream){.name = name,
                                                           .engines = 1u << i,
                                                           .priority = i,
                                                           .own_thread = b->small->own_thread,
                                                           .instrs = {begin, COUNT(b->ir, plan_instr) - begin}};
    }
    return (struct rows){first, 2};
}

/// What a buffer of a part needs on a rank.
static int64_t buffer_bytes(const struct builder *b, const struct part_rows *p, uint32_t buffer, uint32_t rank)
{
    const struct ir *ir = b->ir;
    const struct small *s = b->small;
    int64_t bound = part_bound(s), row = moe_row_stride(s->width, 4);
    const struct plan_exchange *d = ROW(ir, plan_exchange, p->dispatch), *c = ROW(ir, plan_exchange, p->combine);
    int64_t owned = ROW(ir, plan_rank, rank)->owned.count, rows = slots_fan_rows(ir, d, d->part, rank, s->ranks),
            pairs = slots_fan_pairs(ir, d, d->part, rank, s->ranks);
    if (s->pool) {
        const struct plan_exchange *pd = ROW(ir, plan_exchange, p->pool_dispatch),
                                   *pc = ROW(ir, plan_exchange, p->pool_combine);
        int64_t pool_rows = slots_fan_rows(ir, pd, pd->part, rank, s->ranks),
                pool_pairs = slots_fan_pairs(ir, pd, pd->part, rank, s->ranks);
        if (buffer == p->pool_send || buffer == p->pool_recv)
            return buffer == p->pool_send ? slots_send_bytes(ir, pd, rank, s->ranks)
                                          : slots_recv_bytes(ir, pd, rank, s->ranks);
        if (buffer == p->pool_reply || buffer == p->spill)
            return buffer == p->pool_reply ? slots_send_bytes(ir, pc, rank, s->ranks)
                                           : slots_recv_bytes(ir, pc, rank, s->ranks);
        if (buffer == p->pool_pairs)
            return moe_pairs_bytes(owned, pool_rows, pool_pairs);
        if (buffer == p->round)
            return moe_rows_bytes(slots_round_rows(ir, pd, rank, s->ranks));
        rows = pool_rows > rows ? pool_rows : rows;
        pairs = pool_pairs > pairs ? pool_pairs : pairs;
    }
    if (buffer == p->ids || buffer == p->weights)
        return bound * s->choices * 4;
    if (buffer == p->send || buffer == p->recv)
        return buffer == p->send ? slots_send_bytes(ir, d, rank, s->ranks) : slots_recv_bytes(ir, d, rank, s->ranks);
    if (buffer == p->reply_send || buffer == p->reply_recv)
        return buffer == p->reply_send ? slots_send_bytes(ir, c, rank, s->ranks)
                                       : slots_recv_bytes(ir, c, rank, s->ranks);
    if (buffer == p->own)
        return bound * ROW(ir, plan_wire, c->wires.first)->row_bytes;
    if (buffer == p->bins)
        return slots_bins_bytes(ir, d);
    if (buffer == p->pairs)
        return moe_pairs_bytes(owned, rows, pairs);
    return buffer == p->acc ? rows * row : pairs * row; // a, hidden
}

static void add_programs(struct builder *b, struct plan_variant *v, struct rows streams)
{
    v->programs.first = COUNT(b->ir, plan_program);
    for (uint32_t r = 0; r < b->small->ranks; r++) {
        uint32_t first = COUNT(b->ir, plan_extent);
        int64_t at = 0;
        for (uint32_t i = 0; i < v->buffers.count; i++) {
            uint32_t x = ADD(b->ir, plan_extent), buffer = v->buffers.first + i;
            uint32_t per_part = (v->buffers.count - 2) / b->small->parts;
            if (i < 2)
                continue;
            int64_t bytes = buffer_bytes(b, &b->parts[(i - 2) / per_part], buffer, r);
            *ROW(b->ir, plan_extent, x) = (struct plan_extent){at, bytes};
            at += (bytes + 63) / 64 * 64;
        }
        uint32_t p = ADD(b->ir, plan_program);
        *ROW(b->ir, plan_program, p) = (struct plan_program){r, streams, {first, v->buffers.count}, at};
        v->programs.count++;
    }
}

void small_plan(struct ir *ir, struct small *s)
{
    struct builder b = {.ir = ir, .small = s};
    ir_init(ir, &plan_ir);
    str_id name = ir_str(ir, "small"), level = ir_str(ir, "v2");
    ADD(ir, plan_info);
    *ROW(ir, plan_info, 0) = (struct plan_info){.name = name,
                                                .layer = name,
                                                .cpu_level = level,
                                                .ranks = s->ranks,
                                                .experts = s->experts,
                                                .choices = s->choices,
                                                .x_dtype = dtype_f32,
                                                .y_dtype = dtype_f32,
                                                .width = s->width,
                                                .tokens_bound = s->bound,
                                                .layers = 1,
                                                .axes = {0, 1}};
    str_id axis = ir_str(ir, "rank");
    ADD(ir, plan_axis);
    *ROW(ir, plan_axis, 0) =
        (struct plan_axis){.name = axis, .size = s->ranks, .stride = 1, .bandwidth = 1e9, .latency = 500};
    add_owners(&b);
    add_kernels(&b);
    struct plan_variant v = {.name = name, .bound = s->bound, .parts = {0, s->parts}, .semaphores = 4 * s->parts};
    for (uint32_t i = 0; i < s->parts; i++) {
        b.parts[i].part = ADD(ir, plan_part);
        *ROW(ir, plan_part, i) = (struct plan_part){i, i + 1, s->parts, part_bound(s), NONE};
    }
    add_buffers(&b);
    add_exchanges(&b);
    v.buffers.count = COUNT(ir, plan_buffer);
    v.exchanges.count = COUNT(ir, plan_exchange);
    add_programs(&b, &v, add_streams(&b));
    ADD(ir, plan_variant);
    *ROW(ir, plan_variant, 0) = v;
    ADD(ir, plan_choice);
    *ROW(ir, plan_choice, 0) = (struct plan_choice){.last_tokens = s->bound};
}

// Kernels in C.

static const struct small *model; // experts' owners for the kernels below; tests run one model at a time

static void k_route(const struct moe_kargs *a, int64_t begin, int64_t end, void *scratch)
{
    (void)scratch;
    for (int64_t t = begin; t < end; t++)
        for (uint32_t c = 0; c < model->choices; c++) {
            ((int32_t *)a->p[ROUTE_IDS])[t * model->choices + c] = (int32_t)((t + a->n[1] + 3 * c) % model->experts);
            ((float *)a->p[ROUTE_WEIGHTS])[t * model->choices + c] = 1.0f / (float)(c + 1);
        }
}

static void k_copy(const struct moe_kargs *a, int64_t begin, int64_t end, void *scratch)
{
    (void)scratch;
    const struct moe_row_table *t = a->p[COPY_CONTROL];
    for (int64_t i = begin; i < end; i++)
        memmove(t->dst[i], t->src[i], (size_t)model->width * 4);
}

static uint32_t expert_of(int64_t rank, int64_t local)
{
    for (uint32_t e = 0; e < model->experts; e++)
        if (model->rank_of[e] == rank && local-- == 0)
            return e;
    return 0; // a damaged plan's
}

static void half(int64_t panel, int64_t *from, int64_t *to)
{
    *from = panel ? model->width / 2 : 0;
    *to = panel ? model->width : model->width / 2;
}

static void k_up(const struct moe_kargs *a, int64_t begin, int64_t end, void *scratch)
{
    (void)scratch;
    const struct moe_pairs_head *h = a->p[UP_PAIRS];
    int64_t row = moe_row_stride(model->width, 4), from, to;
    for (int64_t u = begin; u < end; u++) {
        half(u % 2, &from, &to);
        float factor = 1.0f + (float)expert_of(a->n[2], u / 2);
        for (int64_t p = h->expert_first[u / 2]; p < h->expert_first[u / 2 + 1]; p++)
            for (int64_t i = from; i < to; i++)
                ((float *)((char *)a->p[UP_HIDDEN] + p * row))[i] =
                    ((float *)((char *)a->p[UP_A] + p * row))[i] * factor;
    }
}

static void k_down(const struct moe_kargs *a, int64_t begin, int64_t end, void *scratch)
{
    (void)scratch;
    const struct moe_pairs_head *h = a->p[DOWN_PAIRS];
    int64_t row = moe_row_stride(model->width, 4), from, to;
    char *acc = a->p[DOWN_ACC];
    for (int64_t u = begin; u < end; u++) {
        half(u, &from, &to);
        for (int64_t r = 0; r < h->rows; r++)
            memset(acc + r * row + from * 4, 0, (size_t)(to - from) * 4);
        for (int64_t p = 0; p < h->expert_first[h->experts]; p++)
            for (int64_t i = from; i < to; i++)
                ((float *)(acc + h->pair_row[p] * row))[i] +=
                    h->pair_weight[p] * ((float *)((char *)a->p[DOWN_HIDDEN] + p * row))[i];
        for (int64_t r = 0; r < h->rows; r++)
            memmove((char *)h->row_dst[r] + from * 4, acc + r * row + from * 4, (size_t)(to - from) * 4);
    }
}

static void k_merge(const struct moe_kargs *a, int64_t begin, int64_t end, void *scratch)
{
    (void)scratch;
    const struct moe_bins_head *b = a->p[MERGE_BINS];
    for (int64_t t = begin; t < end; t++) {
        float *y = (float *)a->p[MERGE_Y] + t * model->width;
        memset(y, 0, (size_t)model->width * 4);
        for (int64_t m = b->merge_first[t]; m < b->merge_first[t + 1]; m++)
            for (int64_t i = 0; i < model->width; i++)
                y[i] += ((const float *)b->merge_rows[m])[i];
    }
}

void small_override(moe_session *session, const struct small *small)
{
    model = small;
    session_override_kernel(session, "route", k_route);
    session_override_kernel(session, "copy_rows", k_copy);
    session_override_kernel(session, "mlp_up", k_up);
    session_override_kernel(session, "mlp_down", k_down);
    session_override_kernel(session, "merge", k_merge);
}

moe_status small_session(struct small *small, const moe_options *options, moe_plan **plan, moe_session **session)
{
    struct ir ir;
    void *image;
    size_t bytes;
    *plan = NULL;
    *session = NULL;
    small_plan(&ir, small);
    bool written = plan_write(&ir, "\xc3", 1, &image, &bytes);
    ir_free(&ir);
    if (!written)
        return MOE_NO_MEMORY;
    moe_status status = moe_plan_from_memory(image, bytes, plan);
    free(image);
    if (status == MOE_OK)
        status = moe_session_create(*plan, options, session);
    if (status == MOE_OK)
        small_override(*session, small);
    return status;
}

void small_reference(const struct small *s, int64_t tokens, const float *x, const int32_t *ids, const float *weights,
                     float *y)
{
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < s->width; i++) {
            float sum = 0;
            for (uint32_t r = 0; r < s->ranks; r++) {
                float part = 0;
                bool any = false;
                for (int32_t e = 0; e < (int32_t)s->experts; e++)
                    for (uint32_t c = 0; c < s->choices && s->rank_of[e] == r; c++)
                        if (ids[t * s->choices + c] == e) {
                            float hidden = x[t * s->width + i] * (1.0f + (float)e);
                            float product = weights[t * s->choices + c] * hidden;
                            part += product;
                            any = true;
                        }
                sum = any ? sum + part : sum;
            }
            y[t * s->width + i] = sum;
        }
    }
}
