// The last step's timeline in Chrome's trace format (chrome://tracing, Perfetto): a process per rank, a thread per stream,
// and one more per rank for messages under way. Every instance of a stage is one event (category `stage`); the kernels it
// is made of lie inside it (category `kernel`).
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/output.h"
#include "runtime/watch/spans.h"
#include "runtime/watch/trace_events.h"

static void write_span(FILE *out, const struct moe_session *session, const struct span_record *r, const char *name,
                       const char *category, uint32_t rank, uint32_t thread)
{
    const struct plan_instr *in = ROW(session->ir, plan_instr, r->instr);
    trace_event(out, &(struct trace_event){.name = name,
                                           .category = category,
                                           .rank = rank,
                                           .thread = thread,
                                           .begin_ns = (double)r->begin,
                                           .end_ns = (double)r->end,
                                           .layer = in->layer,
                                           .message = r->peer != NONE,
                                           .to = r->peer,
                                           .bytes = r->bytes});
}

static void write_stream(FILE *out, const struct moe_session *session, const struct stream *s, uint32_t rank, uint32_t thread)
{
    const struct ir *ir = session->ir;
    for (uint32_t next = 0; next < s->spans.count;) {
        uint32_t first = next;
        struct span_record whole = stage_span(session, s, &next);
        write_span(out, session, &whole, ir_text(ir, ROW(ir, plan_instr, whole.instr)->label), "stage", rank, thread);
        for (uint32_t i = first; i < next && next - first > 1; i++) {
            const struct plan_instr *in = ROW(ir, plan_instr, s->spans.at[i].instr);
            const char *name = in->kernel == NONE ? opcode_words[in->op] : ir_text(ir, ROW(ir, plan_kernel, in->kernel)->name);
            write_span(out, session, &s->spans.at[i], name, "kernel", rank, thread);
        }
    }
}

static void write_messages(FILE *out, const struct moe_session *session, const struct stream *s, uint32_t rank,
                           uint32_t thread)
{
    for (uint32_t i = 0; i < s->messages.count; i++) {
        const struct span_record *r = &s->messages.at[i];
        char name[96];
        snprintf(name, sizeof name, "%s to %u", ir_text(session->ir, ROW(session->ir, plan_instr, r->instr)->label), r->peer);
        write_span(out, session, r, name, "message", rank, thread);
    }
}

static void write_rank(FILE *out, const struct moe_session *session, uint32_t rank)
{
    char name[32];
    snprintf(name, sizeof name, "rank %u", rank);
    trace_name(out, "process_name", rank, 0, name);
    uint32_t wire = session->streams_per_rank;
    trace_name(out, "thread_name", rank, wire, "messages");
    for (uint32_t i = 0; i < session->streams_per_rank; i++) {
        const struct stream *s = &session->ranks[rank].streams[i];
        if (!s->plan)
            continue;
        trace_name(out, "thread_name", rank, i, ir_text(session->ir, s->plan->name));
        write_stream(out, session, s, rank, i);
        write_messages(out, session, s, rank, wire);
    }
}

moe_status moe_session_trace(const moe_session *session, const char *path)
{
    if (!session || !path || !session->variant || !session->options.trace)
        return MOE_INVALID;
    struct output_file file;
    FILE *out = output_open(&file, path);
    if (!out)
        return MOE_IO;
    trace_begin(out);
    for (uint32_t r = 0; r < session->info->ranks; r++)
        write_rank(out, session, r);
    trace_end(out);
    return output_close(&file, out) ? MOE_OK : MOE_IO;
}
