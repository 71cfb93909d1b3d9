// The last step's timeline in Chrome's trace format (chrome://tracing, Perfetto): a process per rank, a thread per stream,
// and one more per rank for messages under way. Every instance of a stage is one event (category `stage`); the kernels it
// is made of lie inside it (category `kernel`).
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/watch/spans.h"

static void write_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fprintf(out, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            fprintf(out, "\\u%04x", (unsigned)(unsigned char)*text);
        else
            fputc(*text, out);
    }
    fputc('"', out);
}

static void write_name(FILE *out, const char *what, uint32_t rank, uint32_t thread, const char *name)
{
    fprintf(out, ",\n{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":", what, rank, thread);
    write_text(out, name);
    fputs("}}", out);
}

static void write_span(FILE *out, const struct moe_session *session, const struct span_record *r, const char *name,
                       const char *category, uint32_t rank, uint32_t thread)
{
    const struct plan_instr *in = ROW(session->ir, plan_instr, r->instr);
    fputs(",\n{\"ph\":\"X\",\"name\":", out);
    write_text(out, name);
    fprintf(out, ",\"cat\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"layer\":%u", category, rank, thread,
            (double)r->begin * 1e-3, (double)(r->end - r->begin) * 1e-3, in->layer);
    if (r->peer != NONE)
        fprintf(out, ",\"to\":%u,\"bytes\":%lld", r->peer, (long long)r->bytes);
    fputs("}}", out);
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
    write_name(out, "process_name", rank, 0, name);
    uint32_t wire = session->streams_per_rank;
    write_name(out, "thread_name", rank, wire, "messages");
    for (uint32_t i = 0; i < session->streams_per_rank; i++) {
        const struct stream *s = &session->ranks[rank].streams[i];
        if (!s->plan)
            continue;
        write_name(out, "thread_name", rank, i, ir_text(session->ir, s->plan->name));
        write_stream(out, session, s, rank, i);
        write_messages(out, session, s, rank, wire);
    }
}

moe_status moe_session_trace(const moe_session *session, const char *path)
{
    if (!session || !path || !session->variant || !session->options.trace)
        return MOE_INVALID;
    FILE *out = fopen(path, "w");
    if (!out)
        return MOE_IO;
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"moecc\",\"pid\":0,\"tid\":0,"
          "\"args\":{}}",
          out);
    for (uint32_t r = 0; r < session->info->ranks; r++)
        write_rank(out, session, r);
    fputs("\n]}\n", out);
    bool good = !ferror(out);
    return fclose(out) == 0 && good ? MOE_OK : MOE_IO;
}
