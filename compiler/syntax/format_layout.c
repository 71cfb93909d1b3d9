// Sets one statement: on one line where it fits, else broken at its widest bracket with one element a line, or at the
// operators of a flow. Comments inside a statement force new lines, never more.
#include "compiler/syntax/format.h"

#include <string.h>

#include "compiler/syntax/words.h"
#include "moe.tab.h"

static void put_bytes(struct formatter *f, const char *bytes, uint32_t size)
{
    if (f->size + size + 1 > f->capacity) {
        uint32_t capacity = f->capacity;
        f->text = context_grow(f->context, f->text, &capacity, f->size + size + 1, 1);
        f->capacity = capacity;
    }
    memcpy(f->text + f->size, bytes, size);
    f->size += size;
    f->text[f->size] = 0;
}

static void new_line(struct formatter *f, uint32_t indent)
{
    put_bytes(f, "\n", 1);
    f->line_begin = f->size;
    for (uint32_t i = 0; i < indent; i++)
        put_bytes(f, " ", 1);
    f->previous = NONE;
    f->must_break = false;
}

static bool is_opening(int kind)
{
    return kind == TOKEN_OPEN_PAREN || kind == TOKEN_OPEN_BRACKET || kind == TOKEN_OPEN_BRACE;
}

static bool is_reserved(const struct formatter *f, const struct format_token *token)
{
    const struct reserved_word *word = find_reserved_word(f->source + token->begin, token->end - token->begin);
    return word && !word->soft && token->kind != TOKEN_TRUE && token->kind != TOKEN_FALSE;
}

/// Whether a space stands between two neighbours on a line.
static bool spaced(const struct formatter *f, const struct format_token *left, const struct format_token *right)
{
    int l = left->kind, r = right->kind;
    if (r == TOKEN_COMMA || r == TOKEN_SEMICOLON || r == TOKEN_CLOSE_PAREN || r == TOKEN_CLOSE_BRACKET)
        return false;
    if (left->comment || right->comment)
        return l != TOKEN_OPEN_PAREN && l != TOKEN_OPEN_BRACKET;
    if (l == TOKEN_OPEN_PAREN || l == TOKEN_OPEN_BRACKET || l == TOKEN_DOT || l == TOKEN_DOTS || left->unary ||
        left->tight)
        return false;
    if (r == TOKEN_DOT || r == TOKEN_DOTS || r == TOKEN_COLON || right->tight)
        return false;
    if (l == TOKEN_OPEN_BRACE && r == TOKEN_CLOSE_BRACE)
        return false;
    if (r == TOKEN_OPEN_PAREN || r == TOKEN_OPEN_BRACKET) {
        bool after_value = l == TOKEN_CLOSE_PAREN || l == TOKEN_CLOSE_BRACKET;
        bool after_word = l > 0 && l < TOKEN_SEMICOLON && !is_reserved(f, left);
        return !after_value && !after_word;
    }
    return true;
}

static void put(struct formatter *f, uint32_t number)
{
    const struct format_token *token = &f->tokens[number];
    if (f->must_break || (token->own_line && f->previous != NONE))
        new_line(f, f->continued);
    bool first = f->previous == NONE;
    if (!first && spaced(f, &f->tokens[f->previous], token))
        put_bytes(f, "  ", token->line_comment ? 2 : 1);
    uint32_t begin = f->size;
    put_bytes(f, f->source + token->begin, token->end - token->begin);
    if (token->align && f->mark_count < FORMAT_MARKS && !f->line_begin)
        f->marks[f->mark_count++] = (struct format_mark){begin, token->align == ALIGN_END ? f->size : begin};
    f->previous = number;
    f->must_break = token->line_comment || token->own_line || (token->comment && first);
}

static void put_all(struct formatter *f, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i < last; i++)
        put(f, i);
}

static bool breaks(const struct formatter *f, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i < last; i++)
        if (f->tokens[i].line_comment || f->tokens[i].own_line || f->tokens[i].many_lines)
            return true;
    return false;
}

uint32_t format_flat_width(const struct formatter *f, uint32_t first, uint32_t last)
{
    if (breaks(f, first, last))
        return FORMAT_WIDTH + 1;
    uint32_t width = 0;
    for (uint32_t i = first; i < last; i++) {
        width += f->tokens[i].end - f->tokens[i].begin;
        width += i > first && spaced(f, &f->tokens[i - 1], &f->tokens[i]);
    }
    return width;
}

/// The next token at the depth of `i`: past a bracket and what it holds.
static uint32_t next_at_depth(const struct formatter *f, uint32_t i)
{
    bool group = is_opening(f->tokens[i].kind) && !f->tokens[i].block && f->tokens[i].match != NONE;
    return group ? f->tokens[i].match + 1 : i + 1;
}

/// The bracket to break: the first that holds a comment which breaks, else the widest. NONE when there is none.
static uint32_t group_to_break(const struct formatter *f, uint32_t first, uint32_t last)
{
    uint32_t found = NONE, widest = 0;
    for (uint32_t i = first; i < last; i = next_at_depth(f, i)) {
        uint32_t end = next_at_depth(f, i);
        if (end < i + 3 || end > last)
            continue;
        if (breaks(f, i, end))
            return i;
        uint32_t width = format_flat_width(f, i, end);
        if (width > widest) {
            widest = width;
            found = i;
        }
    }
    return found;
}

/// The loosest operator at the top of a range that is too wide: `||`, then `->`, `or`, `and`; for the last, commas.
static int operator_to_break(const struct formatter *f, uint32_t first, uint32_t last)
{
    static const int loosest[] = {TOKEN_OVERLAP, TOKEN_THEN, TOKEN_OR, TOKEN_AND};
    for (size_t o = 0; o < sizeof loosest / sizeof *loosest; o++) {
        for (uint32_t i = first; i < last; i = next_at_depth(f, i)) {
            if (f->tokens[i].starts && f->ast.nodes[f->tokens[i].starts].kind != NODE_FLOW && loosest[o] == TOKEN_THEN)
                break; // the arrow of a signature
            if (f->tokens[i].kind == loosest[o] && i > first)
                return loosest[o];
        }
    }
    return 0;
}

static void layout(struct formatter *f, uint32_t first, uint32_t last, uint32_t indent, uint32_t reserve);

static void layout_operators(struct formatter *f, uint32_t first, uint32_t last, uint32_t indent, int kind)
{
    uint32_t begin = first;
    for (uint32_t i = next_at_depth(f, first); i < last; i = next_at_depth(f, i)) {
        if (f->tokens[i].kind != kind)
            continue;
        layout(f, begin, i, indent + FORMAT_INDENT, 0);
        new_line(f, indent + FORMAT_INDENT);
        put(f, i);
        begin = i + 1;
    }
    layout(f, begin, last, indent + FORMAT_INDENT, 0);
}

/// One element and its comma; returns the token after both and after the comments on the same line.
static uint32_t layout_element(struct formatter *f, uint32_t first, uint32_t close, uint32_t indent)
{
    uint32_t end = first;
    while (end < close && f->tokens[end].kind != TOKEN_COMMA)
        end = next_at_depth(f, end);
    uint32_t last = end;
    for (; first < last && f->tokens[first].comment; first++)
        put(f, first);
    while (last > first && f->tokens[last - 1].comment)
        last--;
    if (first < last && f->must_break)
        new_line(f, indent);
    layout(f, first, last, indent, 1);
    if (end < close)
        put(f, end);
    f->continued = indent;
    put_all(f, last, end);
    if (end < close)
        end++;
    for (; end < close && f->tokens[end].comment && !f->tokens[end].own_line; end++)
        put(f, end);
    return end;
}

static void layout_group(struct formatter *f, uint32_t open, uint32_t indent)
{
    uint32_t close = f->tokens[open].match, at = open + 1;
    put(f, open);
    f->continued = indent + FORMAT_INDENT;
    for (; at < close && f->tokens[at].comment && !f->tokens[at].own_line; at++)
        put(f, at);
    while (at < close) {
        new_line(f, indent + FORMAT_INDENT);
        f->continued = indent + FORMAT_INDENT;
        at = layout_element(f, at, close, indent + FORMAT_INDENT);
    }
    new_line(f, indent);
    put(f, close);
}

static void layout(struct formatter *f, uint32_t first, uint32_t last, uint32_t indent, uint32_t reserve)
{
    uint32_t column = f->size - f->line_begin;
    bool forced = breaks(f, first, last);
    if (!forced && column + format_flat_width(f, first, last) + reserve < FORMAT_WIDTH) {
        put_all(f, first, last);
        return;
    }
    f->continued = indent + FORMAT_INDENT;
    int loosest = forced ? 0 : operator_to_break(f, first, last);
    if (loosest) {
        layout_operators(f, first, last, indent, loosest);
        return;
    }
    uint32_t group = group_to_break(f, first, last);
    if (group == NONE || (forced && !breaks(f, group, f->tokens[group].match))) {
        put_all(f, first, last);
        return;
    }
    put_all(f, first, group);
    layout_group(f, group, indent);
    layout(f, f->tokens[group].match + 1, last, indent, reserve);
}

void format_layout(struct formatter *f, uint32_t first, uint32_t last, uint32_t indent)
{
    f->text = NULL;
    f->size = f->capacity = f->mark_count = 0;
    f->line_begin = 0;
    f->previous = NONE;
    f->must_break = false;
    f->continued = indent + FORMAT_INDENT;
    put_bytes(f, "", 0);
    for (uint32_t i = 0; i < indent; i++)
        put_bytes(f, " ", 1);
    layout(f, first, last, indent, 0);
}
