// The last step's timeline as text: a line per rank and stream, a column per slice of time, the stage's initial for what
// ran in it, the instance's first index (part or wave) in the middle of each run; `-` where a stream waits for messages.
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/watch/spans.h"

enum { LEAST_COLUMNS = 16, MOST_COLUMNS = 4096, LABEL_COLUMNS = 20 };

/// The first index of an instruction's instance, of its label: `expert[1,0]`.
static uint32_t first_index(const struct moe_session *session, const struct plan_instr *in)
{
    const char *bracket = strchr(ir_text(session->ir, in->label), '[');
    return bracket ? (uint32_t)strtoul(bracket + 1, NULL, 10) : 0;
}

static void draw_span(const struct moe_session *session, const struct span_record *r, char *line, uint32_t columns)
{
    double step = session->step_end > 0 ? (double)session->step_end : 1;
    const struct plan_instr *in = ROW(session->ir, plan_instr, r->instr);
    const char *stage = ir_text(session->ir, in->stage);
    uint32_t from = (uint32_t)fmin((double)r->begin / step * columns, columns),
             to = (uint32_t)fmin((double)r->end / step * columns + 0.5, columns); // a failed step may end before them
    from = from < columns ? from : columns - 1;
    to = to < columns ? to : columns;
    if (in->op == opcode_recv) { // waiting is no work: it shows only where the stream does nothing else
        for (uint32_t i = from; i < to; i++)
            line[i] = line[i] == '.' ? '-' : line[i];
        return;
    }
    char letter = *stage ? (char)toupper((unsigned char)*stage) : '#';
    if (to <= from) { // too short for a column of its own
        line[from] = line[from] == '.' ? letter : line[from];
        return;
    }
    memset(line + from, letter, to - from);
    uint32_t number = first_index(session, in);
    if (to - from >= 3)
        line[from + (to - from) / 2] = number < 10 ? (char)('0' + number) : '+';
}

/// Launches and sends first, then messages still under way (virtual time), then waits.
static void draw(const struct moe_session *session, const struct stream *s, char *line, uint32_t columns)
{
    for (int waits = 0; waits < 2; waits++) {
        for (uint32_t next = 0; next < s->spans.count;) {
            struct span_record whole = stage_span(session, s, &next);
            if ((ROW(session->ir, plan_instr, whole.instr)->op == opcode_recv) == waits)
                draw_span(session, &whole, line, columns);
        }
        for (uint32_t i = 0; i < s->messages.count && !waits; i++)
            draw_span(session, &s->messages.at[i], line, columns);
    }
}

moe_status moe_session_gantt(const moe_session *session, uint32_t columns, char **text)
{
    if (!session || !text || !session->variant)
        return MOE_INVALID;
    columns = columns < LEAST_COLUMNS ? LEAST_COLUMNS : columns > MOST_COLUMNS ? MOST_COLUMNS : columns;
    size_t lines = (size_t)session->info->ranks * session->streams_per_rank, width = LABEL_COLUMNS + columns + 4;
    char *out = malloc(lines * width + 64), *at = out;
    if (!out)
        return MOE_NO_MEMORY;
    *at = 0;
    for (size_t i = 0; i < lines; i++) {
        uint32_t rank = (uint32_t)(i / session->streams_per_rank);
        const struct stream *s = &session->ranks[rank].streams[i % session->streams_per_rank];
        if (!s->plan)
            continue;
        char label[32];
        snprintf(label, sizeof label, "%u %.12s", rank, ir_text(session->ir, s->plan->name));
        at += sprintf(at, "%*s |", LABEL_COLUMNS - 2, label);
        memset(at, '.', columns);
        draw(session, s, at, columns);
        at += columns;
        at += sprintf(at, "|\n");
    }
    sprintf(at, "%*s  %.3f ms\n", LABEL_COLUMNS - 2, "step", (double)session->step_end * 1e-6);
    *text = out;
    return MOE_OK;
}
