// moe_session_run: what a step is given is judged before any data moves, all ranks take the same variant, and the step's
// end is examined before its results count.
#include <fenv.h>
#include <string.h>

#include "runtime/exec/control.h"
#include "runtime/open.h"

static moe_status bad_input(struct moe_session *session, moe_status status)
{
    if (session->options.log)
        session->options.log(session->options.log_user, session->error);
    return status;
}

#define BAD_INPUT(session, status, ...) \
    (snprintf((session)->error, sizeof(session)->error, __VA_ARGS__), bad_input(session, status))

/// Routes from the caller: ids inside -1..E-1, no expert twice in a token.
static moe_status check_given(struct moe_session *session, const moe_step *step)
{
    int64_t k = session->info->choices;
    if (!step->given_weights)
        return BAD_INPUT(session, MOE_BAD_INPUT, "rank %u: routes are given without weights", step->rank);
    for (int64_t t = 0; t < step->tokens; t++) {
        const int32_t *ids = step->given_ids + t * k;
        for (int64_t i = 0; i < k; i++) {
            if (ids[i] < -1 || (ids[i] >= 0 && (uint32_t)ids[i] >= session->info->experts))
                return BAD_INPUT(session, MOE_BAD_INPUT, "rank %u, token %lld: expert %d does not exist", step->rank,
                                 (long long)t, ids[i]);
            for (int64_t j = 0; j < i; j++)
                if (ids[i] >= 0 && ids[i] == ids[j])
                    return BAD_INPUT(session, MOE_BAD_INPUT, "rank %u, token %lld: expert %d is given twice",
                                     step->rank, (long long)t, ids[i]);
        }
    }
    return MOE_OK;
}

/// A result is written while other rows of the input are still to be read.
static bool shares_memory(const struct moe_session *session, const moe_step *step)
{
    size_t elements = (size_t)step->tokens * (size_t)session->info->width;
    uintptr_t in = (uintptr_t)step->in, out = (uintptr_t)step->out;
    return in < out + elements * (size_t)dtype_bytes(session->info->y_dtype) &&
           out < in + elements * (size_t)dtype_bytes(session->info->x_dtype);
}

static moe_status check_step(struct moe_session *session, const moe_step *step)
{
    if (step->rank >= session->info->ranks)
        return BAD_INPUT(session, MOE_BAD_INPUT, "rank %u of %u does not exist", step->rank, session->info->ranks);
    if (session->ranks[step->rank].step)
        return BAD_INPUT(session, MOE_BAD_INPUT, "rank %u is given twice", step->rank);
    if (step->tokens < 0 || step->tokens > session->info->tokens_bound)
        return BAD_INPUT(session, MOE_BAD_INPUT, "rank %u has %lld tokens, the plan's bound is %lld", step->rank,
                         (long long)step->tokens, (long long)session->info->tokens_bound);
    if (step->tokens && (!step->in || !step->out))
        return BAD_INPUT(session, MOE_BAD_INPUT, "rank %u has tokens but no input or output", step->rank);
    if (shares_memory(session, step))
        return BAD_INPUT(session, MOE_BAD_INPUT, "rank %u: its output lies where its input is", step->rank);
    session->ranks[step->rank].step = step;
    return step->given_ids ? check_given(session, step) : MOE_OK;
}

static moe_status check_steps(struct moe_session *session, const moe_step *steps, uint32_t count)
{
    for (uint32_t r = 0; r < session->info->ranks; r++)
        session->ranks[r].step = NULL;
    for (uint32_t i = 0; i < count; i++) {
        moe_status status = check_step(session, &steps[i]);
        if (status != MOE_OK)
            return status;
    }
    for (uint32_t r = 0; r < session->info->ranks; r++)
        if (!session->ranks[r].step)
            return BAD_INPUT(session, MOE_BAD_INPUT, "rank %u is given no step; all %u ranks are of this process", r,
                             session->info->ranks);
    for (uint32_t i = 0; i < session->host_count; i++)
        if (!session->hosts[i].fn)
            return BAD_INPUT(session, MOE_INVALID, "extern stage `%s` has no function (moe_session_extern)",
                             session->hosts[i].name);
    for (uint32_t i = 0; i < COUNT(session->ir, plan_kernel); i++)
        if (!ROW(session->ir, plan_kernel, i)->builtin && !session->kernels[i])
            return BAD_INPUT(session, MOE_BAD_PLAN, "the plan has no code for kernel `%s`",
                             ir_text(session->ir, ROW(session->ir, plan_kernel, i)->name));
    return MOE_OK;
}

/// By the largest token count, so that all ranks run the same schedule; choices cover 0..bound (plan_validate). A layer
/// alone has choices of its own in a plan of several layers.
static const struct plan_variant *choose_variant(const struct moe_session *session)
{
    int64_t most = 0;
    uint32_t i = 0;
    for (uint32_t r = 0; r < session->info->ranks; r++)
        most = session->ranks[r].step->tokens > most ? session->ranks[r].step->tokens : most;
    while (session->layers < session->info->layers && !ROW(session->ir, plan_choice, i)->single)
        i++;
    while (ROW(session->ir, plan_choice, i)->last_tokens < most)
        i++;
    return ROW(session->ir, plan_variant, ROW(session->ir, plan_choice, i)->variant);
}

/// What control buffers begin with: heads, in bins also one for each chunk.
enum { CONTROL_HEADS = 2048 };
_Static_assert((sizeof(struct moe_bins) + 63) / 64 * 64 + MOE_MAX_CHUNKS * sizeof(struct moe_bins_head) <= CONTROL_HEADS &&
                   sizeof(struct moe_pairs_head) <= CONTROL_HEADS,
               "all pointers to rows lie in heads");

/// Control data of the last step held pointers into it; cleared, it means "no rows".
static void clear_controls(struct rank *rank)
{
    const struct moe_session *session = rank->session;
    const struct plan_variant *v = session->variant;
    const struct plan_program *p = ROW(session->ir, plan_program, v->programs.first + rank->number);
    for (uint32_t i = 0; i < v->buffers.count; i++) {
        const struct plan_buffer *b = ROW(session->ir, plan_buffer, v->buffers.first + i);
        int64_t bytes = ROW(session->ir, plan_extent, p->extents.first + i)->bytes;
        if (b->kind == buffer_kind_arena && b->dtype == dtype_none)
            memset(rank->bases[v->buffers.first + i], 0, (size_t)(bytes < CONTROL_HEADS ? bytes : CONTROL_HEADS));
    }
}

static void begin_rank(struct rank *rank)
{
    const struct moe_session *session = rank->session;
    size_t ranks = session->info->ranks, row = ranks * sizeof(int64_t);
    memset(rank->semaphores, 0, session->variant->semaphores * sizeof *rank->semaphores);
    for (uint32_t i = 0; i < session->variant->exchanges.count; i++) {
        struct exchange_state *x = &rank->exchanges[session->variant->exchanges.first + i];
        memset(x->arrived, 0, ranks * sizeof *x->arrived);
        memset(x->mine, 0, 9 * row); // mine .. awaited lie one after the other
        x->received = 0;
        x->leaving = 0;
        x->rounds = 0;
    }
    clear_controls(rank);
    for (uint32_t i = 0; i < session->streams_per_rank; i++)
        stream_begin_step(&rank->streams[i]);
}

static moe_status run(moe_session *session, const moe_step *steps, uint32_t count)
{
    if (session->broken)
        return MOE_BROKEN; // the error text stays that of the first failure
    if (!session->loaded)
        return BAD_INPUT(session, MOE_INVALID, "the session has no weights yet");
    moe_status status = check_steps(session, steps, count);
    if (status != MOE_OK)
        return status;
    session->error[0] = 0;
    session->variant = choose_variant(session);
    session->step_number++;
    session->step_tokens = 0;
    for (uint32_t r = 0; r < session->info->ranks; r++)
        session->step_tokens += session->ranks[r].step->tokens;
    memset(&session->stats, 0, sizeof session->stats);
    for (uint32_t r = 0; r < session->info->ranks; r++)
        begin_rank(&session->ranks[r]);
    session->device->run(session);
    if (!session_failed(session))
        conservation_check(session);
    if (!session_failed(session))
        return MOE_OK;
    session->broken = true;
    return bad_input(session, (moe_status)atomic_load(&session->failed));
}

moe_status moe_session_run(moe_session *session, const moe_step *steps, uint32_t count)
{
    if (!session || (!steps && count))
        return MOE_INVALID;
    if (atomic_exchange(&session->running, true))
        return open_fail(MOE_INVALID, "the session is in a step, which an extern stage or another thread has not ended");
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV); // rounding is no matter of who calls
    moe_status status = run(session, steps, count);
    fesetenv(&callers);
    atomic_store(&session->running, false);
    return status;
}
