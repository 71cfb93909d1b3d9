// What the parts of the formatter share. format_tokens.c turns a parsed file into annotated tokens, format_layout.c sets
// the tokens of one statement, format.c decides about lines: which there are, blank ones, and what is aligned.
#ifndef MOECC_SYNTAX_FORMAT_H
#define MOECC_SYNTAX_FORMAT_H

#include "compiler/syntax/parser.h"

enum { FORMAT_WIDTH = 120, FORMAT_INDENT = 4, FORMAT_MARKS = 3 };

enum format_align { ALIGN_NOT, ALIGN_BEGIN, ALIGN_END }; // with the tokens at its place in the lines around it

struct format_token {
    int kind;
    uint32_t begin, end;        // bytes of the source; comments without trailing white space
    bool comment, line_comment; // line_comment: nothing may follow on the line
    bool own_line;              // a comment that nothing stands before
    bool many_lines;            // a comment over several lines
    bool tight;                 // an operator without space around it: `i+1` inside an index
    bool unary;
    bool block;                 // a brace around statements, not around fields
    enum format_align align;
    uint32_t match;             // brackets: the other one
    node_id starts;             // the statement or item that begins here
};

struct format_mark {
    uint32_t begin, end;        // bytes of the line: where space goes in, and what is brought to one column
};

struct formatter {
    struct context *context;
    const char *source;
    struct ast ast;
    struct format_token *tokens;
    uint32_t count;
    // The text being set by format_layout.c.
    char *text;
    uint32_t size, capacity;
    uint32_t line_begin;        // where its last line begins
    uint32_t previous;          // the token set last, or NONE at the begin of a line
    bool must_break;            // after a line comment
    uint32_t continued;         // indentation of a forced new line
    struct format_mark marks[FORMAT_MARKS];
    uint32_t mark_count;
};

/// Fills tokens from a parsed file: comments moved behind the `,` `;` or `{` that they stand before, optional commas left
/// out, everything annotated.
void format_prepare(struct formatter *formatter, const struct token_list *tokens, node_id root);
/// Sets the tokens first..last (exclusive) of one statement, which starts in column `indent`, into formatter->text.
void format_layout(struct formatter *formatter, uint32_t first, uint32_t last, uint32_t indent);
/// The width of tokens set on one line, or FORMAT_WIDTH + 1 where a comment forbids that.
uint32_t format_flat_width(const struct formatter *formatter, uint32_t first, uint32_t last);

#endif
