// What the scanner (grammar/moe.l), the grammar (grammar/moe.y) and their driver (parse.c) share: the token list of a file
// and the helpers with which the grammar's actions build nodes.
#ifndef MOECC_SYNTAX_PARSER_H
#define MOECC_SYNTAX_PARSER_H

#include "compiler/syntax/ast.h"

enum { AST_DEPTH_LIMIT = 200 }; // of nodes inside nodes; every pass may recurse over the tree

/// Comments stand in the token list beside the grammar's tokens (moe.tab.h); their kinds are below bison's.
enum { TOKEN_COMMENT = -10, TOKEN_DOC = -11, TOKEN_INVALID = -12 };

struct token {
    int kind;
    struct span span;
    str_id text;        // names, strings (decoded), units; numbers as written
    int64_t integer;
    double number;
    str_id doc;         // the /// lines before it
};

struct token_list {
    struct token *at;
    uint32_t count, capacity;
};

/// Splits a file into tokens, the last of which is the end of the file. Errors are queued; what they concern becomes
/// TOKEN_INVALID unless its kind is clear.
void scan_file(struct context *context, uint32_t file, struct token_list *tokens);

struct node_list {
    node_id first, last;
};

struct parser {
    struct context *context;
    struct ast *ast;
    uint32_t file;
    struct token_list tokens;
    uint32_t next, current;     // tokens: the one the grammar asks for next, and the last it asked for
    uint32_t first_node;        // of this file; depths[i] belongs to node first_node + i
    uint16_t *depths;
    uint32_t depth_capacity;
    bool too_deep;              // reported
    uint32_t errors;            // reported or met in the token list
    node_id root;
};

/// What the grammar expected where it stopped, for parse_report: token numbers and their printed names.
struct expectation {
    const int *tokens;
    const char *const *names;
    int count;
};

node_id parser_node(struct parser *parser, enum node_kind kind, struct span span, const node_id slots[AST_SLOTS]);
/// Gives a node its name from a token and returns the node.
node_id parser_named(struct parser *parser, node_id node, uint32_t token);
node_id parser_flagged(struct parser *parser, node_id node, uint16_t flag);
/// Gives a node the place of a construct around it.
node_id parser_extended(struct parser *parser, node_id node, struct span span);
node_id parser_documented(struct parser *parser, node_id node);
/// A node for a number, string or word that is one token.
node_id parser_literal(struct parser *parser, enum node_kind kind, uint32_t token);
node_id parser_operator(struct parser *parser, enum node_kind kind, struct span span, const char *text, node_id left,
                        node_id right);
struct node_list parser_append(struct parser *parser, struct node_list list, node_id node);
void parser_report(struct parser *parser, struct expectation expectation);
/// Is that token among what was expected?
bool parser_expects(const struct expectation *expectation, int token);
/// advice.c: help about a token that cannot stand where it does, where what was meant is clear. False: it is not.
bool parser_advise(struct parser *parser, struct diag *diag, const struct expectation *expectation, uint32_t token);
/// Does a statement or item of another block than the one that ends there begin with this token? Then it is not the block's
/// end that is missing.
bool parser_is_statement(const struct parser *parser, const struct expectation *expectation, uint32_t token);
void parser_report_too_deep(struct parser *parser, struct span span);

#endif
