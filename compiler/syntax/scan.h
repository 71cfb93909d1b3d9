// Between the scanner's rules (grammar/moe.l) and their actions (scan.c).
#ifndef MOECC_SYNTAX_SCAN_H
#define MOECC_SYNTAX_SCAN_H

#include "compiler/syntax/parser.h"

struct scanner {
    struct context *context;
    uint32_t file;
    uint32_t begin, end;        // the bytes of the token being made
    struct token_list *tokens;
    str_id doc;                 // of the next token
};

void scan_simple(struct scanner *scanner, int kind);
void scan_word(struct scanner *scanner);
void scan_comment(struct scanner *scanner, bool doc);
void scan_unterminated_comment(struct scanner *scanner);
void scan_string(struct scanner *scanner, bool terminated);
void scan_integer(struct scanner *scanner);
void scan_float(struct scanner *scanner);
void scan_percent(struct scanner *scanner);
/// A number and a unit. Returns how many bytes belong to the token: `64KB/seq` ends before the slash.
uint32_t scan_quantity(struct scanner *scanner);
void scan_stray(struct scanner *scanner);

#endif
