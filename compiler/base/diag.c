// The queue of diagnostics: records are opened, then completed with labels, notes, a help and a fix, and printed together
// at the end, sorted by place, at most 20 errors and one per mistake.
#include "compiler/base/diag_record.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { DIAGS_KEPT = 1000 }; // a damaged file can have one at every byte

static const struct {
    const char *name, *title;
} codes[] = {
#define DIAG(code, title) {#code, title},
#include "compiler/base/codes.def"
#undef DIAG
};

const char *diag_code_name(enum diag_code code)
{
    return codes[code].name;
}

const char *diag_code_title(enum diag_code code)
{
    return codes[code].title;
}

const char *diag_level_name(enum diag_level level)
{
    return level == LEVEL_ERROR ? "error" : "warning";
}

const struct source_file *diag_file(const struct context *context, struct span span)
{
    return span.file < context->file_count ? &context->files[span.file] : NULL;
}

static const char *format_text(struct context *context, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *text = context_alloc(context, length < 0 ? 1 : (size_t)length + 1);
    if (length >= 0)
        vsnprintf(text, (size_t)length + 1, format, args);
    return text;
}

static struct diag *open_diag(struct context *context, enum diag_level level, enum diag_code code, struct span span,
                              const char *message)
{
    struct diag *diag = context_alloc(context, sizeof *diag);
    *diag = (struct diag){.code = code, .level = level, .message = message, .primary = {.span = span, .primary = true}};
    uint32_t *count = level == LEVEL_ERROR ? &context->error_count : &context->warning_count;
    struct diag **end = &context->diags;
    for (; *end; end = &(*end)->next) {
        struct span other = (*end)->primary.span;
        if (diag_file(context, span) && (*end)->level == level && other.file == span.file &&
            other.begin == span.begin && other.end == span.end)
            return diag; // one error per mistake: this one stays out of the queue
        if (code == E0101 && (*end)->code == E0101 && diag_file(context, span) && other.file == span.file &&
            !strcmp((*end)->message, message))
            return diag; // so does a name that is unknown wherever it stands
    }
    if ((*count)++ < DIAGS_KEPT)
        *end = diag;
    return diag;
}

struct diag *diag_error(struct context *context, enum diag_code code, struct span span, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const char *message = format_text(context, format, args);
    va_end(args);
    return open_diag(context, LEVEL_ERROR, code, span, message);
}

struct diag *diag_warning(struct context *context, enum diag_code code, struct span span, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const char *message = format_text(context, format, args);
    va_end(args);
    return open_diag(context, LEVEL_WARNING, code, span, message);
}

static void append(struct context *context, struct diag_place **list, struct span span, const char *text)
{
    struct diag_place *place = context_alloc(context, sizeof *place);
    *place = (struct diag_place){.span = span, .text = text};
    while (*list)
        list = &(*list)->next;
    *list = place;
}

void diag_label(struct context *context, struct diag *diag, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    diag->primary.text = format_text(context, format, args);
    va_end(args);
}

void diag_label_at(struct context *context, struct diag *diag, struct span span, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    append(context, &diag->labels, span, format_text(context, format, args));
    va_end(args);
}

void diag_note(struct context *context, struct diag *diag, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    append(context, &diag->notes, (struct span){NONE, 0, 0}, format_text(context, format, args));
    va_end(args);
}

void diag_note_at(struct context *context, struct diag *diag, struct span span, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const char *text = format_text(context, format, args);
    va_end(args);
    const struct source_file *file = diag_file(context, span);
    uint32_t line, column;
    if (file) {
        line_column(file, span.begin, &line, &column);
        text = context_printf(context, "%s (%s:%u:%u)", text, file->path, line, column);
    }
    append(context, &diag->notes, span, text);
}

void diag_lines(struct context *context, struct diag *diag, const char *lines)
{
    struct diag_place *last = diag->notes;
    size_t length = strlen(lines);
    while (last && last->next)
        last = last->next;
    if (last && length)
        last->text = context_printf(context, "%s\n%.*s", last->text, (int)length - (lines[length - 1] == '\n'), lines);
}

void diag_help(struct context *context, struct diag *diag, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    diag->help = format_text(context, format, args);
    va_end(args);
}

void diag_fix(struct context *context, struct diag *diag, struct span span, const char *text)
{
    append(context, &diag->fixes, span, context_printf(context, "%s", text));
}

struct diag_mark diag_mark(const struct context *context)
{
    struct diag_mark mark = {context->error_count, context->warning_count, context->diags};
    while (mark.last && mark.last->next)
        mark.last = mark.last->next;
    return mark;
}

void diag_forget(struct context *context, struct diag_mark mark)
{
    *(mark.last ? &mark.last->next : &context->diags) = NULL;
    context->error_count = mark.errors;
    context->warning_count = mark.warnings;
}

uint32_t diag_errors_of(const struct context *context, enum diag_code code)
{
    uint32_t count = 0;
    for (const struct diag *diag = context->diags; diag; diag = diag->next)
        count += diag->level == LEVEL_ERROR && diag->code == code;
    return count;
}

static int by_place(const void *a, const void *b)
{
    const struct diag *left = *(const struct diag *const *)a, *right = *(const struct diag *const *)b;
    struct span l = left->primary.span, r = right->primary.span;
    if (l.file != r.file)
        return l.file < r.file ? -1 : 1;
    if (l.begin != r.begin)
        return l.begin < r.begin ? -1 : 1;
    return (l.end > r.end) - (l.end < r.end);
}

static void print_short(const struct context *context, const struct diag *diag, FILE *out)
{
    const struct source_file *file = diag_file(context, diag->primary.span);
    uint32_t line, column;
    if (file) {
        line_column(file, diag->primary.span.begin, &line, &column);
        fprintf(out, "%s:%u:%u: ", file->path, line, column);
    }
    fprintf(out, "%s[%s]: %s\n", diag_level_name(diag->level), diag_code_name(diag->code), diag->message);
}

void diag_print_all(const struct context *context, enum diag_format format, bool color, FILE *out)
{
    size_t count = 0, shown = 0;
    for (const struct diag *diag = context->diags; diag; diag = diag->next)
        count++;
    const struct diag **sorted = calloc(count + 1, sizeof *sorted);
    if (!sorted)
        return;
    size_t filled = 0;
    for (const struct diag *diag = context->diags; diag; diag = diag->next)
        sorted[filled++] = diag;
    if (count)
        qsort(sorted, count, sizeof *sorted, by_place);
    for (size_t i = 0; i < count; i++) {
        if (sorted[i]->level == LEVEL_ERROR && shown++ >= DIAG_ERRORS_SHOWN)
            continue;
        if (format == DIAG_JSON)
            diag_print_json(context, sorted[i], out);
        else if (format == DIAG_SHORT)
            print_short(context, sorted[i], out);
        else {
            fputs(i ? "\n" : "", out);
            diag_print_text(context, sorted[i], color, out);
        }
    }
    free(sorted);
    if (context->error_count > DIAG_ERRORS_SHOWN && format != DIAG_JSON)
        fprintf(out, "%sand %u more errors\n", format == DIAG_TEXT ? "\n" : "",
                context->error_count - DIAG_ERRORS_SHOWN);
}
