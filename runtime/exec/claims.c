// Control data under two launches at once. It is pointers and counts that are followed: what compiled plans order and their
// verifier proves, the executor makes sure of for any plan, so that a reader never follows what another is writing.
#include "control.h"
#include "runtime/plan/roles.h"
#include "session.h"

enum use { USE_NONE, USE_READ, USE_WRITE };

static enum use control_use(const struct moe_session *session, const struct plan_instr *in, uint32_t i)
{
    const struct plan_kernel *k = ROW(session->ir, plan_kernel, in->kernel);
    const struct role_spec *spec = &role_specs[k->role];
    bool bin = k->role == kernel_role_bin;
    if (bin && i + 1 == in->args.count && ROW(session->ir, plan_exchange, in->exchange)->wave > 0)
        return USE_READ; // the bins of the wave before
    switch (i < spec->most ? spec->args[i] : ARG_NONE) {
    case ARG_BINS:
        return bin ? USE_WRITE : USE_READ;
    case ARG_PAIRS:
    case ARG_ROWS:
    case ARG_SUMS:
        return spec->builtin ? USE_WRITE : USE_READ;
    case ARG_TABLE:
        return USE_READ;
    default:
        return USE_NONE;
    }
}

static _Atomic int32_t *claim_of(const struct stream *s, const struct plan_instr *in, uint32_t i)
{
    return &s->rank->claims[ROW(s->rank->session->ir, plan_arg, in->args.first + i)->buffer];
}

/// Readers count up from 0, a writer is -1. Relaxed: nobody is ordered by this.
static bool take(_Atomic int32_t *claim, enum use use)
{
    int32_t held = atomic_load_explicit(claim, memory_order_relaxed);
    do {
        if (held < 0 || (use == USE_WRITE && held))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(claim, &held, use == USE_WRITE ? -1 : held + 1, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

bool control_claim(struct stream *s, const struct plan_instr *in)
{
    struct moe_session *session = s->rank->session;
    char where[256];
    for (uint32_t i = 0; i < in->args.count; i++) {
        enum use use = control_use(session, in, i);
        if (use != USE_NONE && !take(claim_of(s, in, i), use))
            return session_fail(session, MOE_LOST, "%s: its control data is in use by another launch",
                                stream_where(s, where, sizeof where));
    }
    return true;
}

void control_release(struct stream *s, const struct plan_instr *in)
{
    for (uint32_t i = 0; i < in->args.count; i++) {
        enum use use = control_use(s->rank->session, in, i);
        if (use != USE_NONE)
            atomic_fetch_add_explicit(claim_of(s, in, i), use == USE_WRITE ? 1 : -1, memory_order_relaxed);
    }
}
