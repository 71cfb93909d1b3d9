// The writer of trace_events.h.
#include "runtime/watch/trace_events.h"

void trace_begin(FILE *out)
{
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"moecc\",\"pid\":0,\"tid\":0,"
          "\"args\":{}}",
          out);
}

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

void trace_name(FILE *out, const char *what, uint32_t rank, uint32_t thread, const char *name)
{
    fprintf(out, ",\n{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":", what, rank, thread);
    write_text(out, name);
    fputs("}}", out);
}

void trace_event(FILE *out, const struct trace_event *e)
{
    fputs(",\n{\"ph\":\"X\",\"name\":", out);
    write_text(out, e->name);
    fprintf(out, ",\"cat\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"layer\":%u", e->category, e->rank,
            e->thread, e->begin_ns * 1e-3, (e->end_ns - e->begin_ns) * 1e-3, e->layer);
    if (e->message)
        fprintf(out, ",\"to\":%u,\"bytes\":%lld", e->to, (long long)e->bytes);
    fputs("}}", out);
}

void trace_end(FILE *out) { fputs("\n]}\n", out); }
