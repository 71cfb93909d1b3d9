// A diagnostic as text: the first line, the source with carets under the primary place and dashes under the others, notes,
// and one help whose fix is shown as a removed and an added line.
#include "compiler/base/diag_record.h"

#include <stdlib.h>
#include <string.h>

enum { TAB_WIDTH = 4, MARKS_SHOWN = 16 };

static const char BOLD[] = "\033[1m", RED[] = "\033[1;31m", YELLOW[] = "\033[1;33m", GREEN[] = "\033[32m",
                  BLUE[] = "\033[1;34m", PLAIN[] = "\033[0m";

struct printer {
    const struct context *context;
    FILE *out;
    bool color;
    const char *level_color;
};

/// A place on one line of source, in display columns from 0.
struct mark {
    const struct diag_place *place;
    uint32_t line, begin, end;
};

static void paint(const struct printer *printer, const char *color)
{
    if (printer->color)
        fputs(color, printer->out);
}

/// Prints bytes as a terminal shows them (when out is set) and returns the display column after them.
static uint32_t render(FILE *out, const char *text, size_t size, uint32_t column)
{
    for (size_t i = 0; i < size;) {
        uint32_t length = utf8_length(text + i, size - i), width = 1;
        if (text[i] == '\t') {
            width = TAB_WIDTH - column % TAB_WIDTH;
            if (out)
                fprintf(out, "%*s", (int)width, "");
        } else if (text[i] == '\r') {
            width = 0;
        } else if (out) {
            bool visible = length && (unsigned char)text[i] >= 0x20 && text[i] != 0x7f;
            if (visible)
                fwrite(text + i, 1, length, out);
            else
                fputc('?', out);
        }
        column += width;
        i += length ? length : 1;
    }
    return column;
}

static uint32_t line_begin(const struct source_file *file, uint32_t line)
{
    return file->line_starts[line - 1];
}

/// The end of a line, without its newline.
static uint32_t line_end(const struct source_file *file, uint32_t line)
{
    return line < file->line_count ? file->line_starts[line] - 1 : file->size;
}

static void print_source_line(const struct printer *printer, const struct source_file *file, uint32_t line)
{
    fprintf(printer->out, "%4u |", line);
    uint32_t begin = line_begin(file, line), end = line_end(file, line);
    if (end > begin) {
        fputc(' ', printer->out);
        render(printer->out, file->text + begin, end - begin, 0);
    }
    fputc('\n', printer->out);
}

static struct mark mark_of(const struct source_file *file, const struct diag_place *place)
{
    struct mark mark = {.place = place};
    uint32_t column;
    line_column(file, place->span.begin, &mark.line, &column);
    uint32_t begin = line_begin(file, mark.line), end = line_end(file, mark.line);
    uint32_t from = place->span.begin < end ? place->span.begin : end;
    uint32_t to = place->span.end < end ? place->span.end : end; // of several lines, the first
    mark.begin = render(NULL, file->text + begin, from - begin, 0);
    mark.end = to > from ? render(NULL, file->text + from, to - from, mark.begin) : mark.begin;
    if (mark.end == mark.begin)
        mark.end++;
    return mark;
}

static int by_line(const void *a, const void *b)
{
    const struct mark *left = a, *right = b;
    if (left->line != right->line)
        return left->line < right->line ? -1 : 1;
    if (left->begin != right->begin)
        return left->begin < right->begin ? -1 : 1;
    return (int)left->place->primary - (int)right->place->primary;
}

static size_t collect_marks(const struct printer *printer, const struct diag *diag, uint32_t file_number, bool primary,
                            struct mark *marks)
{
    size_t count = 0;
    const struct source_file *file = &printer->context->files[file_number];
    if (primary)
        marks[count++] = mark_of(file, &diag->primary);
    for (const struct diag_place *label = diag->labels; label && count < MARKS_SHOWN; label = label->next)
        if (label->span.file == file_number)
            marks[count++] = mark_of(file, label);
    qsort(marks, count, sizeof *marks, by_line);
    return count;
}

static void print_label(const struct printer *printer, const struct mark *mark)
{
    paint(printer, mark->place->primary ? printer->level_color : BLUE);
    fputs(mark->place->text, printer->out);
    paint(printer, PLAIN);
    fputc('\n', printer->out);
}

static char mark_at(const struct mark *marks, size_t count, uint32_t column)
{
    char found = ' ';
    for (size_t i = 0; i < count; i++)
        if (column >= marks[i].begin && column < marks[i].end && found != '^')
            found = marks[i].place->primary ? '^' : '-';
    return found;
}

/// The marks under one line. The label of the last stands behind it, the others on lines of their own, right to left.
static void print_marks(const struct printer *printer, const struct mark *marks, size_t count)
{
    uint32_t width = 0;
    size_t last = 0;
    for (size_t i = 0; i < count; i++) {
        if (marks[i].end < width)
            continue;
        width = marks[i].end;
        last = i;
    }
    fputs("     | ", printer->out);
    char now = ' ';
    for (uint32_t column = 0; column < width; column++) {
        char mark = mark_at(marks, count, column);
        if (mark != now)
            paint(printer, mark == ' ' ? PLAIN : mark == '^' ? printer->level_color : BLUE);
        fputc(now = mark, printer->out);
    }
    paint(printer, PLAIN);
    if (marks[last].place->text) {
        fputc(' ', printer->out);
        print_label(printer, &marks[last]);
    } else {
        fputc('\n', printer->out);
    }
    for (size_t i = count; i-- > 0;) {
        if (i == last || !marks[i].place->text)
            continue;
        fprintf(printer->out, "     | %*s", (int)marks[i].begin, "");
        print_label(printer, &marks[i]);
    }
}

static void print_snippet(const struct printer *printer, const struct source_file *file, const struct mark *marks,
                          size_t count)
{
    for (size_t i = 0, next; i < count; i = next) {
        for (next = i + 1; next < count && marks[next].line == marks[i].line;)
            next++;
        if (i && marks[i].line > marks[i - 1].line + 1)
            fputs("     ...\n", printer->out);
        print_source_line(printer, file, marks[i].line);
        print_marks(printer, marks + i, next - i);
    }
}

/// Labels in other files than the primary place, each file once.
static void print_other_files(const struct printer *printer, const struct diag *diag)
{
    struct mark marks[MARKS_SHOWN];
    for (const struct diag_place *label = diag->labels; label; label = label->next) {
        const struct source_file *file = diag_file(printer->context, label->span);
        bool seen = !file || label->span.file == diag->primary.span.file;
        for (const struct diag_place *before = diag->labels; before != label; before = before->next)
            seen |= before->span.file == label->span.file;
        if (seen)
            continue;
        size_t count = collect_marks(printer, diag, label->span.file, false, marks);
        uint32_t line, column;
        line_column(file, label->span.begin, &line, &column);
        fprintf(printer->out, "     in %s:%u:%u\n", file->path, line, column);
        print_snippet(printer, file, marks, count);
    }
}

static void print_changed_lines(const struct printer *printer, uint32_t line, char sign, const char *text, size_t size)
{
    for (size_t begin = 0; begin <= size; line++) {
        const char *newline = memchr(text + begin, '\n', size - begin);
        size_t end = newline ? (size_t)(newline - text) : size;
        paint(printer, sign == '-' ? RED : GREEN);
        fprintf(printer->out, "%4u %c ", line, sign);
        render(printer->out, text + begin, end - begin, 0);
        paint(printer, PLAIN);
        fputc('\n', printer->out);
        begin = end + 1;
    }
}

static int by_begin(const void *a, const void *b)
{
    const struct diag_place *left = *(const struct diag_place *const *)a, *right = *(const struct diag_place *const *)b;
    return (left->span.begin > right->span.begin) - (left->span.begin < right->span.begin);
}

static void last_line_of(const struct source_file *file, const struct diag_place *fix, uint32_t *line)
{
    uint32_t column;
    line_column(file, fix->span.end, line, &column);
}

/// Prints the lines first..last as they are and as the fixes make them.
static void print_fixed_lines(const struct printer *printer, const struct source_file *file, uint32_t first,
                              uint32_t last, const struct diag_place *const *fixes, size_t count)
{
    uint32_t begin = line_begin(file, first), end = line_end(file, last), at = begin;
    char *text = NULL;
    size_t size = 0;
    FILE *fixed = open_memstream(&text, &size);
    if (!fixed)
        return;
    for (size_t i = 0; i < count; i++) {
        if (fixes[i]->span.begin < at)
            continue; // overlaps the one before
        fwrite(file->text + at, 1, fixes[i]->span.begin - at, fixed);
        fputs(fixes[i]->text, fixed);
        at = fixes[i]->span.end;
    }
    if (at < end)
        fwrite(file->text + at, 1, end - at, fixed);
    fclose(fixed);
    print_changed_lines(printer, first, '-', file->text + begin, end - begin);
    if (size)
        print_changed_lines(printer, first, '+', text, size);
    free(text);
}

static void print_fixes(const struct printer *printer, const struct diag *diag)
{
    const struct diag_place *fixes[MARKS_SHOWN];
    size_t count = 0;
    if (!diag->fixes)
        return;
    const struct source_file *file = diag_file(printer->context, diag->fixes->span);
    for (const struct diag_place *fix = diag->fixes; fix && file && count < MARKS_SHOWN; fix = fix->next)
        if (fix->span.file == diag->fixes->span.file && fix->span.begin <= fix->span.end && fix->span.end <= file->size)
            fixes[count++] = fix;
    qsort(fixes, count, sizeof *fixes, by_begin);
    for (size_t i = 0, next; i < count; i = next) {
        uint32_t first, last, column, begins, ends;
        line_column(file, fixes[i]->span.begin, &first, &column);
        last_line_of(file, fixes[i], &last);
        for (next = i + 1; next < count; next++) {
            line_column(file, fixes[next]->span.begin, &begins, &column);
            if (begins > last)
                break;
            last_line_of(file, fixes[next], &ends);
            last = ends > last ? ends : last;
        }
        print_fixed_lines(printer, file, first, last, fixes + i, next - i);
    }
}

static void print_first_line(const struct printer *printer, const struct diag *diag, const struct source_file *file)
{
    uint32_t line, column;
    paint(printer, BOLD);
    if (file) {
        line_column(file, diag->primary.span.begin, &line, &column);
        fprintf(printer->out, "%s:%u:%u: ", file->path, line, column);
    }
    paint(printer, printer->level_color);
    fprintf(printer->out, "%s[%s]", diag_level_name(diag->level), diag_code_name(diag->code));
    paint(printer, PLAIN);
    paint(printer, BOLD);
    fprintf(printer->out, ": %s", diag->message);
    paint(printer, PLAIN);
    fputc('\n', printer->out);
}

void diag_print_text(const struct context *context, const struct diag *diag, bool color, FILE *out)
{
    struct printer printer = {
        .context = context, .out = out, .color = color, .level_color = diag->level == LEVEL_ERROR ? RED : YELLOW};
    const struct source_file *file = diag_file(context, diag->primary.span);
    print_first_line(&printer, diag, file);
    if (file) {
        struct mark marks[MARKS_SHOWN];
        size_t count = collect_marks(&printer, diag, diag->primary.span.file, true, marks);
        print_snippet(&printer, file, marks, count);
    }
    print_other_files(&printer, diag);
    for (const struct diag_place *note = diag->notes; note; note = note->next)
        fprintf(out, "   = note: %s\n", note->text);
    if (diag->help)
        fprintf(out, "   = help: %s\n", diag->help);
    print_fixes(&printer, diag);
}
