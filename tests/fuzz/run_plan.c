// See run_plan.h. Generated kernels are stood in for by C functions that touch exactly the bytes which the calling
// convention (runtime/plan/kernels.h) says the real ones touch, and compute nothing: what is tried is whether a plan that
// validation lets through can lead anybody outside of memory.
#include "tests/fuzz/run_plan.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/exec/session.h"
#include "runtime/open.h"
#include "runtime/plan/roles.h"
#include "runtime/plan/kernels.h"
#include "runtime/plan/messages.h"

enum { KERNELS = 48, INSTRS = 4096, SMALL_BYTES = 1 << 22, RANKS = 16, TOKENS = 256, WIDTH = 4096 };

static const struct ir *plan_of_run;
static const struct moe_session *session_of_run;

static void read_bytes(const void *at, int64_t bytes)
{
    static volatile uint8_t sink;
    for (int64_t i = 0; i < bytes; i++)
        sink = (uint8_t)(sink ^ ((const uint8_t *)at)[i]);
}

static void write_bytes(void *at, int64_t bytes)
{
    if (bytes > 0)
        memset(at, 0, (size_t)bytes);
}

static int64_t size_of(int64_t dtype)
{
    return dtype > 0 && dtype < dtype_words_count ? dtype_bytes((uint32_t)dtype) : 0;
}

/// One side of copy_rows: in blocks where the format has them.
static int64_t side_size(const struct plan_kernel *k, int64_t dtype, bool coded)
{
    if (coded)
        return moe_coded_row_bytes(k->n[0], size_of(k->n[7]), k->n[3]);
    return size_of(dtype) ? moe_wire_bytes((uint32_t)dtype, k->n[0], dtype == dtype_fp8_e4m3 ? k->n[3] : 0, (uint32_t)k->n[4])
                          : 0;
}

static void touch_param(const struct moe_kargs *a, const struct plan_instr *in, uint32_t arg)
{
    const struct plan_buffer *b =
        ROW(plan_of_run, plan_buffer, ROW(plan_of_run, plan_arg, in->args.first + arg)->buffer);
    if (b->kind != buffer_kind_param)
        return;
    const struct plan_param *p = ROW(plan_of_run, plan_param, b->param);
    const struct plan_rank *rank = ROW(plan_of_run, plan_rank, (uint32_t)a->n[2]);
    read_bytes(a->p[arg], p->bytes * plan_param_blocks(p, rank->owned.count));
}

static void touch_route(const struct moe_kargs *a, const struct plan_kernel *k, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        read_bytes((const char *)a->p[ROUTE_X] + t * k->n[0] * size_of(k->n[5]), k->n[0] * size_of(k->n[5]));
        for (int64_t c = 0; c < k->n[2]; c++) {
            ((int32_t *)a->p[ROUTE_IDS])[t * k->n[2] + c] = (int32_t)((t + a->n[1] + 3 * a->n[2] + c) % k->n[1]);
            ((float *)a->p[ROUTE_WEIGHTS])[t * k->n[2] + c] = 1.0f / (float)k->n[2];
        }
    }
    int64_t vectors = (k->n[9] & 1) + (k->n[9] >> 1 & 1);
    for (int64_t i = 0; i < vectors; i++)
        read_bytes(a->p[ROUTE_ARGS + i], 4 * k->n[1]);
}

static void touch_copies(const struct moe_kargs *a, const struct plan_kernel *k, int64_t begin, int64_t end)
{
    const struct moe_row_table *table = (const struct moe_row_table *)a->p[COPY_CONTROL] + k->n[5];
    int64_t from = side_size(k, k->n[1], false), to = side_size(k, k->n[2], k->n[7] != 0);
    for (int64_t i = begin; i < end; i++) {
        read_bytes(table->src[i], from);
        memmove(table->dst[i], table->src[i], (size_t)(from < to ? from : to));
        write_bytes((char *)table->dst[i] + (from < to ? from : to), to > from ? to - from : 0);
    }
}

static void touch_up(const struct moe_kargs *a, const struct plan_kernel *k, int64_t begin, int64_t end)
{
    const struct moe_pairs_head *h = a->p[UP_PAIRS];
    for (int64_t u = begin; u < end; u++)
        for (int64_t p = h->expert_first[u / k->unit_count]; p < h->expert_first[u / k->unit_count + 1]; p++) {
            int64_t row = k->n[7] & MLP_BY_ROW ? h->pair_row[p] : p;
            read_bytes((const char *)a->p[UP_A] + row * k->n[4], k->n[11] ? k->n[4] : k->n[0] * size_of(k->n[3]));
            write_bytes((char *)a->p[UP_HIDDEN] + p * k->n[5], k->n[11] ? k->n[5] : k->n[1] * size_of(k->n[3]));
            read_bytes(&h->pair_weight[p], 4);
        }
}

static void touch_down(const struct moe_kargs *a, const struct plan_kernel *k)
{
    const struct moe_pairs_head *h = a->p[DOWN_PAIRS];
    for (int64_t p = 0; p < h->expert_first[h->experts]; p++) {
        read_bytes((const char *)a->p[DOWN_HIDDEN] + p * k->n[4], k->n[11] ? k->n[4] : k->n[0] * size_of(k->n[2]));
        write_bytes((char *)a->p[DOWN_ACC] + h->pair_row[p] * k->n[5], 4 * k->n[1]);
    }
    for (int64_t r = 0; r < h->rows; r++) {
        read_bytes((const char *)a->p[DOWN_ACC] + r * k->n[5], 4 * k->n[1]);
        write_bytes(h->row_dst[r], k->n[1] * size_of(k->n[3]));
    }
}

/// The low bits of a reply's address say in which format it is.
static void read_reply(const struct plan_kernel *k, const void *marked)
{
    uintptr_t mark = (uintptr_t)marked & 15;
    const char *row = (const char *)marked - mark;
    int64_t code = mark ? k->n[4 + mark] : 0;
    if (!mark)
        read_bytes(row, k->n[0] * size_of(k->n[1]));
    else
        read_bytes(row, moe_wire_bytes((uint32_t)(code & 0xff), k->n[0], code >> 16, (uint32_t)(code >> 8 & 0xff)));
}

static void touch_merge(const struct moe_kargs *a, const struct plan_kernel *k, int64_t begin, int64_t end)
{
    const struct moe_bins_head *bins = a->p[MERGE_BINS];
    int64_t row = k->n[0] * size_of(k->n[2]);
    for (int64_t t = begin; t < end; t++) {
        for (int64_t m = bins->merge_first[t]; m < bins->merge_first[t + 1]; m++)
            read_reply(k, bins->merge_rows[m]);
        if (k->n[3])
            read_bytes((const char *)a->p[MERGE_SUM] + t * 4 * k->n[0], 4 * k->n[0]);
        write_bytes((char *)a->p[MERGE_Y] + t * row, row);
    }
}

static void touch_sums(const struct moe_kargs *a, const struct plan_kernel *k, int64_t begin, int64_t end)
{
    const struct moe_sums_head *h = a->p[SUM_CONTROL];
    for (int64_t i = begin; i < end; i++) {
        for (int64_t m = h->first[i]; m < h->first[i + 1]; m++)
            read_bytes(h->parts[m], k->n[0] * size_of(k->n[1]));
        write_bytes(h->sums.dst[i], k->n[0] * size_of(k->n[1]));
    }
}

/// Rows in, rows out: what stands for the row operators.
static void touch_rows(const struct moe_kargs *a, const struct plan_kernel *k, int64_t begin, int64_t end)
{
    const struct role_spec *spec = &role_specs[k->role];
    for (uint32_t i = 0, values = 0; i < spec->most; i++) {
        bool vector = spec->args[i] == ARG_VECTOR;
        int64_t row = k->n[0] * (vector ? 4 : size_of(k->n[++values])), count = vector ? 1 : end - begin;
        char *at = (char *)a->p[i] + (vector ? 0 : begin * row);
        if (spec->args[i] == ARG_OUT)
            write_bytes(at, count * row);
        else
            read_bytes(at, count * row);
    }
}

/// The sim device runs one launch at a time: the instruction is that of the stream whose launch this is.
static const struct plan_instr *current(const struct moe_kargs *a)
{
    for (uint32_t i = 0; i < session_of_run->streams_per_rank; i++) {
        const struct stream *s = &session_of_run->ranks[a->n[2]].streams[i];
        if (&s->launch.args == a)
            return stream_instr(s);
    }
    abort();
}

static void touch(const struct moe_kargs *a, int64_t begin, int64_t end, void *scratch)
{
    const struct plan_instr *in = current(a);
    const struct plan_kernel *k = ROW(plan_of_run, plan_kernel, in->kernel);
    write_bytes(scratch, k->scratch_bytes);
    for (uint32_t i = 0; i < in->args.count; i++)
        touch_param(a, in, i);
    switch (k->role) {
    case kernel_role_route:
        touch_route(a, k, begin, end);
        break;
    case kernel_role_copy_rows:
        touch_copies(a, k, begin, end);
        break;
    case kernel_role_mlp_up:
        touch_up(a, k, begin, end);
        break;
    case kernel_role_mlp_down:
        touch_down(a, k);
        break;
    case kernel_role_merge:
        touch_merge(a, k, begin, end);
        break;
    case kernel_role_sum_rows:
        touch_sums(a, k, begin, end);
        break;
    default:
        touch_rows(a, k, begin, end);
        break;
    }
}

static int host_rows(void *user, const moe_extern_call *call)
{
    (void)user;
    for (uint32_t i = 0; i < call->inputs; i++)
        read_bytes(call->in[i], call->count * call->row_bytes[i]);
    write_bytes(call->out, call->count * call->row_bytes[call->inputs]);
    return 0;
}

/// Small enough that a run takes milliseconds; sizes were validated, so sums do not overflow.
static bool is_small(const struct ir *ir)
{
    const struct plan_info *info = ROW(ir, plan_info, 0);
    int64_t params = 0;
    if (info->ranks > RANKS || info->tokens_bound > TOKENS || info->width > WIDTH || info->layers > 8 ||
        info->experts > 512 || COUNT(ir, plan_kernel) > KERNELS || COUNT(ir, plan_instr) > INSTRS)
        return false;
    for (uint32_t i = 0; i < COUNT(ir, plan_program); i++)
        if (ROW(ir, plan_program, i)->arena_bytes > SMALL_BYTES)
            return false;
    for (uint32_t i = 0; i < COUNT(ir, plan_kernel); i++)
        if (ROW(ir, plan_kernel, i)->scratch_bytes > SMALL_BYTES)
            return false;
    for (uint32_t i = 0; i < COUNT(ir, plan_variant); i++)
        if (ROW(ir, plan_variant, i)->semaphores > 1 << 14)
            return false;
    for (uint32_t i = 0; i < COUNT(ir, plan_exchange); i++)
        if (ROW(ir, plan_exchange, i)->max_rounds > 1 << 10)
            return false;
    for (uint32_t i = 0; i < COUNT(ir, plan_param); i++) {
        const struct plan_param *p = ROW(ir, plan_param, i);
        if (p->bytes > SMALL_BYTES || p->rows > SMALL_BYTES || p->cols > SMALL_BYTES || p->shared > 64)
            return false;
        params += p->bytes * (p->per_expert ? info->experts : p->shared ? p->shared : 1) * info->layers;
    }
    return params <= SMALL_BYTES;
}

static void run_steps(moe_session *session, const struct plan_info *info)
{
    moe_step steps[RANKS] = {0};
    for (int64_t round = 0; round < 2; round++) {
        for (uint32_t r = 0; r < info->ranks; r++) {
            int64_t tokens = round && r % 2 ? 0 : info->tokens_bound - (r && info->tokens_bound > r ? r : 0);
            size_t in = (size_t)(tokens * info->width * dtype_bytes(info->x_dtype));
            size_t out = (size_t)(tokens * info->width * dtype_bytes(info->y_dtype)), k = (size_t)tokens * info->choices;
            steps[r] = (moe_step){.rank = r, .tokens = tokens, .in = calloc(in + !in, 1), .out = calloc(out + !out, 1)};
            steps[r].topk_ids = calloc(k + !k, 4);
        }
        moe_session_run(session, steps, info->ranks);
        for (uint32_t r = 0; r < info->ranks; r++) {
            free((void *)(uintptr_t)steps[r].in);
            free(steps[r].out);
            free(steps[r].topk_ids);
        }
    }
}

void fuzz_run_plan(const void *image, size_t bytes)
{
    moe_plan *plan;
    moe_session *session;
    if (moe_plan_from_memory(image, bytes, &plan) != MOE_OK)
        return;
    const struct ir *ir = plan_of_run = &plan->plan.ir;
    if (is_small(ir) &&
        moe_session_create(plan, &(moe_options){.device = "sim", .threads = 1, .trace = 1, .poison = 1}, &session) == MOE_OK) {
        session_of_run = session;
        for (uint32_t i = 0; i < COUNT(ir, plan_kernel); i++)
            session->kernels[i] = touch;
        for (uint32_t i = 0; i < session->host_count; i++)
            moe_session_extern(session, session->hosts[i].name, host_rows, NULL);
        if (moe_session_load(session, "random") == MOE_OK)
            run_steps(session, session->info);
        moe_stats stats;
        moe_session_stats(session, &stats);
        char *gantt = NULL;
        if (moe_session_gantt(session, 80, &gantt) == MOE_OK)
            free(gantt);
        moe_session_destroy(session);
    }
    moe_plan_close(plan);
}
