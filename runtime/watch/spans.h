// A stage's instance is several instructions in a row (an expert: fan_out, copy, two products). Timelines show it as one.
#ifndef MOE_SPANS_H
#define MOE_SPANS_H

#include "runtime/exec/session.h"

/// The span over all records of one instance, from record *at on; *at moves to the next instance's first record.
static inline struct span_record stage_span(const struct moe_session *session, const struct stream *s, uint32_t *at)
{
    struct span_record whole = s->spans.at[*at];
    const struct plan_instr *first = ROW(session->ir, plan_instr, whole.instr);
    while (++*at < s->spans.count) {
        const struct span_record *next = &s->spans.at[*at];
        const struct plan_instr *in = ROW(session->ir, plan_instr, next->instr);
        if (in->label != first->label || in->layer != first->layer)
            break;
        whole.end = next->end;
    }
    return whole;
}

#endif
