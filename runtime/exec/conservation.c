// Invariant I2: nothing is lost. After every step the counters of all ranks are compared: rows and pairs sent = received
// for every exchange and pair of ranks, replies = rows sent, pairs routed to each expert = pairs its rank computed.
#include "session.h"

static bool check_messages(struct moe_session *session, uint32_t exchange)
{
    const char *name = ir_text(session->ir, ROW(session->ir, plan_exchange, exchange)->name);
    for (uint32_t a = 0; a < session->info->ranks; a++) {
        for (uint32_t b = 0; b < session->info->ranks; b++) {
            const struct exchange_state *from = &session->ranks[a].exchanges[exchange],
                                        *to = &session->ranks[b].exchanges[exchange];
            if (a == b)
                continue;
            if (from->sent_rows[b] != to->got_rows[a])
                return session_fail(session, MOE_LOST,
                                    "rank %u sent %lld rows to rank %u by `%s`, rank %u received %lld", a,
                                    (long long)from->sent_rows[b], b, name, b, (long long)to->got_rows[a]);
            if (from->sent_pairs[b] != to->got_pairs[a])
                return session_fail(session, MOE_LOST,
                                    "rank %u sent %lld pairs to rank %u by `%s`, rank %u received %lld", a,
                                    (long long)from->sent_pairs[b], b, name, b, (long long)to->got_pairs[a]);
        }
    }
    return true;
}

/// Every row that a dispatch's combine is to answer came back: those that it sent and, with waves of experts, those that
/// earlier waves had sent.
static bool check_replies(struct moe_session *session, uint32_t dispatch)
{
    const struct ir *ir = session->ir;
    const struct plan_exchange *e = ROW(ir, plan_exchange, dispatch);
    for (uint32_t a = 0; a < session->info->ranks; a++) {
        const struct exchange_state *out = &session->ranks[a].exchanges[dispatch],
                                    *back = &session->ranks[a].exchanges[out->combine];
        uint32_t chunks = ROW(ir, plan_exchange, out->combine)->chunks;
        for (uint32_t d = 0; d < session->info->ranks; d++) {
            int64_t rows = e->pool ? out->sent_rows[d] : out->awaited[d], replies = back->got_rows[d];
            for (uint32_t k = 1; k < chunks; k++)
                replies += back[k].got_rows[d];
            if (d != a && rows != replies)
                return session_fail(session, MOE_LOST,
                                    "rank %u awaits %lld rows from rank %u for `%s`, `%s` brought %lld back", a,
                                    (long long)rows, d, ir_text(ir, e->name),
                                    ir_text(ir, ROW(ir, plan_exchange, out->combine)->name), (long long)replies);
        }
    }
    return true;
}

/// Every pair that a rank routed to an expert was listed for computing where the expert or a copy of it is, source by
/// source.
static bool check_expert(struct moe_session *session, uint32_t expert, uint32_t source)
{
    int64_t routed = 0, computed = 0;
    const uint32_t *first = session->holder_first;
    for (uint32_t s = 0; s < session->streams_per_rank; s++) {
        routed += session->ranks[source].streams[s].routed[expert];
        for (uint32_t h = first[expert]; h < first[expert + 1]; h++) {
            const struct plan_owner *o = ROW(session->ir, plan_owner, session->holders[h]);
            int64_t held = ROW(session->ir, plan_rank, o->rank)->owned.count;
            computed += session->ranks[o->rank].streams[s].computed[source * held + o->local];
        }
    }
    const struct plan_owner *owner = ROW(session->ir, plan_owner, session->owner_row[expert]);
    uint32_t copies = first[expert + 1] - first[expert] - 1;
    return routed == computed ||
           session_fail(session, MOE_LOST, "rank %u routed %lld pairs to expert %u, rank %u%s computed %lld of them",
                        source, (long long)routed, expert, owner->rank, copies ? " and those with copies" : "",
                        (long long)computed);
}

bool conservation_check(struct moe_session *session)
{
    struct rows exchanges = session->variant->exchanges;
    for (uint32_t i = 0; i < exchanges.count; i++)
        if (!check_messages(session, exchanges.first + i))
            return false;
    for (uint32_t i = 0; i < exchanges.count; i++)
        if (ROW(session->ir, plan_exchange, exchanges.first + i)->kind == exchange_kind_dispatch &&
            !ROW(session->ir, plan_exchange, exchanges.first + i)->chunk &&
            !check_replies(session, exchanges.first + i))
            return false;
    for (uint32_t i = 0; i < session->info->experts; i++)
        for (uint32_t r = 0; r < session->info->ranks; r++)
            if (!check_expert(session, i, r))
                return false;
    return true;
}
