// `moecc fmt`: the one canonical text of a file. White space of the source does not matter, except whether a comment stands
// on a line of its own: lines, blank lines, breaks and columns follow from the tree alone.
#include "compiler/syntax/format.h"

#include <stdlib.h>
#include <string.h>

#include "moe.tab.h"

enum { DEPTH_LIMIT = AST_DEPTH_LIMIT + 2, NO_KIND = 0, NO_CLASS = -2 };

struct line {
    const char *text;
    uint32_t size;
    const char *comment; // trailing, or NULL
    uint32_t kind;       // lines of one kind are aligned with each other; NO_KIND: with none
    struct format_mark marks[FORMAT_MARKS];
    uint32_t mark_count;
    bool blank_before;
};

struct lines {
    struct formatter *formatter;
    struct line *at;
    uint32_t count, capacity;
    uint32_t depth;            // of blocks
    int previous[DEPTH_LIMIT]; // class of the statement before, by depth; 0: none
    bool decided;              // the blank line before the next statement went before its comments
};

static struct line *add_line(struct lines *lines, const char *text, uint32_t size)
{
    lines->at =
        context_grow(lines->formatter->context, lines->at, &lines->capacity, lines->count + 1, sizeof *lines->at);
    struct line *line = &lines->at[lines->count++];
    *line = (struct line){.text = text, .size = size};
    return line;
}

/// Statements of one class stand together; between classes there is a blank line. Negative: blank lines all around.
static int class_of(const struct ast_node *node, uint32_t depth)
{
    switch (node->kind) {
    case NODE_IMPORT:
    case NODE_CONST:
    case NODE_DIM:
    case NODE_FORMAT:
        return (int)node->kind;
    case NODE_ASSERT:
        return 1000;
    case NODE_STAGE:
    case NODE_YIELD:
        return 1001;
    case NODE_USE:
        return 1002;
    case NODE_SPLIT:
        return 1003;
    case NODE_STREAM:
    case NODE_BIND:
        return 1004;
    case NODE_LET:
        return 1005;
    case NODE_FLOW:
    case NODE_FILL:
    case NODE_DEFER:
    case NODE_ORDER:
    case NODE_SYNC:
        return 1006;
    case NODE_LOOP:
    case NODE_IF:
        return -1;
    default:
        return depth ? 1007 : -1;
    }
}

static bool blank_before(struct lines *lines, uint32_t token)
{
    const struct formatter *f = lines->formatter;
    if (token >= f->count)
        return lines->count > 0;
    if (!f->tokens[token].starts)
        return false;
    int class = class_of(node_at(&f->ast, f->tokens[token].starts), lines->depth);
    int previous = lines->previous[lines->depth];
    lines->previous[lines->depth] = class;
    return previous && (class != previous || class < 0);
}

static const char *comment_text(const struct lines *lines, const struct format_token *comment, uint32_t indent)
{
    return context_printf(lines->formatter->context, "%*s%.*s", (int)indent, "", (int)(comment->end - comment->begin),
                          lines->formatter->source + comment->begin);
}

static void add_trailing_comment(struct lines *lines, const struct format_token *comment)
{
    struct line *line = lines->count ? &lines->at[lines->count - 1] : add_line(lines, "", 0);
    const char *text = comment_text(lines, comment, 0);
    line->comment = line->comment ? context_printf(lines->formatter->context, "%s %s", line->comment, text) : text;
}

/// Comments on lines of their own belong to the statement after them; those that open a file stand apart.
static uint32_t set_comments(struct lines *lines, uint32_t token)
{
    struct formatter *f = lines->formatter;
    uint32_t next = token;
    while (next < f->count && f->tokens[next].comment)
        next++;
    bool header = !lines->count, blank = false;
    for (; token < next; token++) {
        const struct format_token *comment = &f->tokens[token];
        if (!comment->own_line) {
            add_trailing_comment(lines, comment);
            continue;
        }
        if (header && comment->kind == TOKEN_DOC) { // the documentation of the first item
            header = false;
            blank = lines->count > 0;
        }
        if (!lines->decided && !header)
            blank |= blank_before(lines, next);
        lines->decided = true;
        const char *text = comment_text(lines, comment, lines->depth * FORMAT_INDENT);
        add_line(lines, text, (uint32_t)strlen(text))->blank_before = blank;
        blank = false;
    }
    if (header && lines->count) { // no documentation after it
        lines->decided = false;
        lines->previous[0] = NO_CLASS;
    }
    return next;
}

/// The end of the line that begins with a statement or a closing brace: after its `;`, or after the `{` of its block.
static uint32_t end_of_line(const struct formatter *f, uint32_t first)
{
    uint32_t i = first;
    bool closes = f->tokens[i].block && f->tokens[i].kind == TOKEN_CLOSE_BRACE;
    if (closes && (i + 1 >= f->count || f->tokens[i + 1].kind != TOKEN_ELSE))
        return i + 1;
    for (i += closes; i < f->count; i++) {
        const struct format_token *token = &f->tokens[i];
        if (token->kind == TOKEN_SEMICOLON)
            return i + 1;
        if (token->kind != TOKEN_OPEN_BRACE || !token->block)
            continue;
        if (token->match != i + 1)
            return i + 1;
        if (i + 2 >= f->count || f->tokens[i + 2].kind != TOKEN_ELSE)
            return i + 2; // an empty block
    }
    return f->count;
}

/// A short phase stands on one line.
static uint32_t end_of_phase(const struct formatter *f, uint32_t first, uint32_t indent)
{
    node_id node = f->tokens[first].starts;
    if (!node || f->ast.nodes[node].kind != NODE_PHASE)
        return 0;
    uint32_t open = first;
    while (!f->tokens[open].block)
        open++;
    uint32_t end = f->tokens[open].match + 1;
    return indent + format_flat_width(f, first, end) < FORMAT_WIDTH ? end : 0;
}

static void set_statement(struct lines *lines, uint32_t first, uint32_t end)
{
    struct formatter *f = lines->formatter;
    bool blank = !lines->decided && blank_before(lines, first);
    lines->decided = false;
    format_layout(f, first, end, lines->depth * FORMAT_INDENT);
    struct line *line = add_line(lines, f->text, f->size);
    line->blank_before = blank;
    node_id node = f->tokens[first].starts;
    if (!node)
        return;
    line->kind =
        (uint32_t)f->ast.nodes[node].kind * 2 + (f->ast.nodes[node].kind == NODE_STAGE && f->ast.nodes[node].flag);
    line->mark_count = f->mark_count;
    memcpy(line->marks, f->marks, sizeof f->marks);
}

static void set_lines(struct lines *lines)
{
    struct formatter *f = lines->formatter;
    for (uint32_t i = 0; i < f->count;) {
        if (f->tokens[i].comment) {
            i = set_comments(lines, i);
            continue;
        }
        bool closes = f->tokens[i].block && f->tokens[i].kind == TOKEN_CLOSE_BRACE;
        if (closes) {
            lines->depth--;
            lines->decided = false;
        }
        uint32_t end = end_of_phase(f, i, lines->depth * FORMAT_INDENT);
        if (!end)
            end = end_of_line(f, i);
        set_statement(lines, i, end);
        if (f->tokens[end - 1].block && f->tokens[end - 1].kind == TOKEN_OPEN_BRACE)
            lines->previous[++lines->depth] = 0;
        i = end;
    }
}

/// Widens mark `column` of the statements first..last, in their first lines, so that all end at one place; not at all where a line became too long.
static void align_mark(struct lines *lines, uint32_t first, uint32_t last, uint32_t column)
{
    uint32_t widest = 0;
    for (uint32_t i = first; i < last; i++)
        if (lines->at[i].mark_count > column && lines->at[i].marks[column].end > widest)
            widest = lines->at[i].marks[column].end;
    for (uint32_t i = first; i < last; i++)
        if (lines->at[i].mark_count > column &&
            strcspn(lines->at[i].text, "\n") + widest - lines->at[i].marks[column].end > FORMAT_WIDTH)
            return;
    for (uint32_t i = first; i < last; i++) {
        struct line *line = &lines->at[i];
        if (line->mark_count <= column)
            continue;
        uint32_t at = line->marks[column].begin, space = widest - line->marks[column].end;
        line->text = context_printf(lines->formatter->context, "%.*s%*s%s", (int)at, line->text, (int)space, "",
                                    line->text + at);
        line->size += space;
        for (uint32_t later = column; later < line->mark_count; later++) {
            line->marks[later].begin += space;
            line->marks[later].end += space;
        }
    }
}

static bool same_group(const struct line *before, const struct line *line)
{
    return !line->blank_before && line->kind && line->kind == before->kind && line->mark_count && before->mark_count;
}

static void align_lines(struct lines *lines)
{
    for (uint32_t first = 0, last; first < lines->count; first = last) {
        for (last = first + 1; last < lines->count && same_group(&lines->at[last - 1], &lines->at[last]);)
            last++;
        for (uint32_t column = 0; last - first > 1 && column < FORMAT_MARKS; column++)
            align_mark(lines, first, last, column);
    }
}

/// Columns after the last newline of a line's text.
static uint32_t last_width(const struct line *line)
{
    uint32_t width = 0;
    while (width < line->size && line->text[line->size - 1 - width] != '\n')
        width++;
    return width;
}

/// The column of a line's comment: that of the comments around it, unless it would end beyond the margin.
static uint32_t comment_column(const struct lines *lines, uint32_t number)
{
    uint32_t first = number, last = number + 1, column = 0;
    while (first && !lines->at[first].blank_before && lines->at[first - 1].comment)
        first--;
    while (last < lines->count && !lines->at[last].blank_before && lines->at[last].comment)
        last++;
    for (uint32_t i = first; i < last; i++)
        if (last_width(&lines->at[i]) > column)
            column = last_width(&lines->at[i]);
    for (uint32_t i = first; i < last; i++)
        if (column + 2 + strlen(lines->at[i].comment) > FORMAT_WIDTH)
            return last_width(&lines->at[number]);
    return column;
}

static const char *join_lines(struct lines *lines)
{
    struct context *context = lines->formatter->context;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        fatal(context, EXIT_SYSTEM, "out of memory");
    for (uint32_t i = 0; i < lines->count; i++) {
        const struct line *line = &lines->at[i];
        fprintf(out, "%s%s", line->blank_before ? "\n" : "", line->text);
        if (line->comment)
            fprintf(out, "%*s  %s", (int)(comment_column(lines, i) - last_width(line)), "", line->comment);
        fputc('\n', out);
    }
    fclose(out);
    const char *result = context_printf(context, "%s", text);
    free(text);
    return result;
}

static const char *format_once(struct context *context, uint32_t file)
{
    struct formatter formatter = {.context = context, .source = context->files[file].text};
    struct token_list tokens = {0};
    uint32_t errors = context->error_count;
    node_id root = parse_file(context, &formatter.ast, file);
    if (context->error_count != errors)
        return NULL;
    scan_file(context, file, &tokens);
    format_prepare(&formatter, &tokens, root);
    struct lines lines = {.formatter = &formatter};
    set_lines(&lines);
    align_lines(&lines);
    return join_lines(&lines);
}

const char *format_source(struct context *context, uint32_t file)
{
    const char *text = format_once(context, file), *before = NULL;
    // A comment in the middle of a statement may get a line of its own and move what follows: repeated until all rests.
    for (int round = 0; text && round < 8 && (!before || strcmp(before, text) != 0); round++) {
        uint32_t again = add_source(context, context->files[file].path, text, strlen(text), NULL);
        before = text;
        text = format_once(context, again);
        if (!text)
            fatal(context, EXIT_BUG, "formatting made a text that does not parse");
        context->file_count--;
    }
    return text;
}
