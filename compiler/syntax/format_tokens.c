// The formatter's first step: tokens and comments of a file in the order in which they will be printed, with what the tree
// says about them.
#include "compiler/syntax/format.h"

#include <string.h>

#include "moe.tab.h"

struct annotator {
    struct formatter *formatter;
    const struct token_list *tokens;
    struct format_token *notes; // by token of the list
};

static uint32_t token_at(const struct annotator *annotator, uint32_t offset)
{
    uint32_t low = 0, high = annotator->tokens->count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (annotator->tokens->at[middle].span.begin <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void mark_token(struct annotator *annotator, uint32_t offset, enum format_align align)
{
    annotator->notes[token_at(annotator, offset)].align = align;
}

/// The first token of one kind at or after an offset.
static uint32_t find_kind(const struct annotator *annotator, uint32_t offset, int kind)
{
    uint32_t token = token_at(annotator, offset);
    while (annotator->tokens->at[token].kind != kind && token + 1 < annotator->tokens->count)
        token++;
    return token;
}

/// The operator between the operands of a BINARY node.
static uint32_t operator_token(const struct annotator *annotator, const struct ast_node *node)
{
    const struct ast *ast = &annotator->formatter->ast;
    uint32_t token = token_at(annotator, node_at(ast, node->slot[0])->span.end - 1) + 1;
    while (annotator->tokens->at[token].kind < 0)
        token++;
    return token;
}

static void annotate_expression(struct annotator *annotator, node_id id, bool tight)
{
    const struct ast *ast = &annotator->formatter->ast;
    const struct ast_node *node = node_at(ast, id);
    if (node->kind == NODE_BINARY && tight) {
        uint32_t token = operator_token(annotator, node);
        int kind = annotator->tokens->at[token].kind;
        annotator->notes[token].tight = kind == TOKEN_PLUS || kind == TOKEN_MINUS || kind == TOKEN_TIMES;
    }
    if (node->kind == NODE_UNARY && annotator->tokens->at[token_at(annotator, node->span.begin)].kind == TOKEN_MINUS)
        annotator->notes[token_at(annotator, node->span.begin)].unary = true;
    for (int i = 0; i < AST_SLOTS; i++) {
        bool index = (node->kind == NODE_INDEX || node->kind == NODE_INSTANCE) && i == 1;
        bool stream = (node->kind == NODE_STEP && i == 2) || (node->kind == NODE_BIND && i == 1);
        EACH_NODE(ast, child, node->slot[i])
        annotate_expression(annotator, child, tight || index || stream);
    }
}

/// What is brought to one column in consecutive statements of one kind.
static void annotate_alignment(struct annotator *annotator, node_id id, node_id parent)
{
    const struct ast *ast = &annotator->formatter->ast;
    const struct ast_node *node = node_at(ast, id);
    struct span name = node->name_span;
    const struct ast_node *first = node_at(ast, node->slot[0]);
    uint32_t relation;
    switch (node->kind) {
    case NODE_DIM:
        relation = token_at(annotator, name.begin) + 1;
        while (annotator->tokens->at[relation].kind < 0)
            relation++;
        annotator->notes[relation].align = ALIGN_END;
        break;
    case NODE_ATTR:
        if (node_at(ast, parent)->kind != NODE_PHASE)
            annotator->notes[find_kind(annotator, name.end, TOKEN_ASSIGN)].align = ALIGN_BEGIN;
        break;
    case NODE_PHASE: // mostly on one line: its brace, and its second member
        annotator->notes[find_kind(annotator, name.end, TOKEN_OPEN_BRACE)].align = ALIGN_BEGIN;
        if (node->slot[0] && first->next)
            mark_token(annotator, node_at(ast, first->next)->span.begin, ALIGN_BEGIN);
        break;
    case NODE_CONST:
    case NODE_FORMAT:
    case NODE_TRACK:
        annotator->notes[find_kind(annotator, name.end, TOKEN_ASSIGN)].align = ALIGN_BEGIN;
        break;
    case NODE_STAGE:
        mark_token(annotator, first->span.begin, ALIGN_BEGIN);
        annotator->notes[find_kind(annotator, first->span.end, TOKEN_ASSIGN)].align = ALIGN_BEGIN;
        break;
    case NODE_PARAM_DECL:
        if (node_at(ast, parent)->kind == NODE_LAYER)
            mark_token(annotator, node_at(ast, node->slot[1])->span.begin, ALIGN_BEGIN);
        break;
    case NODE_STREAM:
        annotator->notes[find_kind(annotator, name.end, TOKEN_USES)].align = ALIGN_BEGIN;
        break;
    case NODE_BIND:
        if (!first->next)
            annotator->notes[find_kind(annotator, first->span.end, TOKEN_TO)].align = ALIGN_BEGIN;
        if (!first->next && node->slot[2])
            mark_token(annotator, node_at(ast, node->slot[2])->span.begin, ALIGN_BEGIN);
        break;
    case NODE_LINK:
        annotator->notes[find_kind(annotator, name.end, TOKEN_ACROSS)].align = ALIGN_BEGIN;
        mark_token(annotator, node_at(ast, node->slot[1])->span.begin, ALIGN_BEGIN);
        break;
    case NODE_KERNEL:
        mark_token(annotator, first->span.begin, ALIGN_BEGIN);
        break;
    case NODE_ALERT:
        annotator->notes[find_kind(annotator, first->span.end, TOKEN_WHEN)].align = ALIGN_BEGIN;
        break;
    case NODE_ASSERT:
        if (first->kind == NODE_BINARY && node_at(ast, first->slot[0])->kind == NODE_NAME)
            annotator->notes[operator_token(annotator, first)].align = ALIGN_BEGIN;
        break;
    default:
        break;
    }
}

/// The braces whose closing one is the last byte of a node.
static void mark_block(struct annotator *annotator, node_id id)
{
    uint32_t close = token_at(annotator, node_at(&annotator->formatter->ast, id)->span.end - 1), depth = 0;
    for (uint32_t token = close + 1; token-- > 0;) {
        int kind = annotator->tokens->at[token].kind;
        depth += kind == TOKEN_CLOSE_BRACE;
        depth -= kind == TOKEN_OPEN_BRACE;
        if (depth)
            continue;
        annotator->notes[token].block = annotator->notes[close].block = true;
        return;
    }
}

static void annotate_statement(struct annotator *annotator, node_id id, node_id parent);

static void annotate_list(struct annotator *annotator, node_id list, node_id parent)
{
    EACH_NODE(&annotator->formatter->ast, id, list)
    annotate_statement(annotator, id, parent);
}

static void annotate_statement(struct annotator *annotator, node_id id, node_id parent)
{
    const struct ast_node *node = node_at(&annotator->formatter->ast, id);
    static const uint8_t member_slot[node_kind_count] = {
        // which slot holds statements, counted from 1
        [NODE_DEVICE] = 1,  [NODE_CLUSTER] = 1, [NODE_PLACEMENT] = 2, [NODE_OP] = 3,    [NODE_LAYER] = 3,
        [NODE_WEIGHTS] = 2, [NODE_MONITOR] = 2, [NODE_PIPELINE] = 1,  [NODE_PHASE] = 1, [NODE_BLOCK] = 1,
    };
    bool block = node->kind == NODE_BLOCK;
    if (!block)
        annotator->notes[token_at(annotator, node->span.begin)].starts = id;
    annotate_alignment(annotator, id, parent);
    uint8_t members = member_slot[node->kind];
    if (members) {
        mark_block(annotator, id);
        annotate_list(annotator, node->slot[members - 1], id);
    }
    int nested = node->kind == NODE_SCHEDULE ? 2 : node->kind == NODE_LOOP || node->kind == NODE_IF ? 1 : AST_SLOTS;
    if (nested < AST_SLOTS)
        annotate_statement(annotator, node->slot[nested], id);
    if (node->kind == NODE_IF && node->slot[2]) {
        annotate_statement(annotator, node->slot[2], id);
        if (node_at(&annotator->formatter->ast, node->slot[2])->kind == NODE_IF) // it stands behind `else`
            annotator->notes[token_at(annotator, node_at(&annotator->formatter->ast, node->slot[2])->span.begin)]
                .starts = 0;
    }
}

static bool dropped_comma(const struct token_list *tokens, uint32_t token)
{
    if (tokens->at[token].kind != TOKEN_COMMA)
        return false;
    for (token++; tokens->at[token].kind < 0;)
        token++;
    return tokens->at[token].kind == TOKEN_CLOSE_BRACE || tokens->at[token].kind == TOKEN_CLOSE_PAREN;
}

static struct format_token describe(const struct annotator *annotator, uint32_t number)
{
    const struct token *token = &annotator->tokens->at[number];
    const char *source = annotator->formatter->source;
    struct format_token described = annotator->notes[number];
    described.kind = token->kind;
    described.begin = token->span.begin;
    described.end = token->span.end;
    described.match = NONE;
    described.comment = token->kind < 0;
    if (!described.comment)
        return described;
    while (strchr(" \t\r\f\v", source[described.end - 1]))
        described.end--;
    uint32_t before = number ? annotator->tokens->at[number - 1].span.end : 0;
    described.own_line = !number || memchr(source + before, '\n', token->span.begin - before);
    described.line_comment = source[token->span.begin + 1] == '/';
    described.many_lines = memchr(source + token->span.begin, '\n', token->span.end - token->span.begin) != NULL;
    return described;
}

static void add_token(struct formatter *formatter, struct format_token token)
{
    bool else_of_if = token.kind == TOKEN_ELSE;
    uint32_t end = formatter->count, at = end;
    while (at && formatter->tokens[at - 1].comment)
        at--;
    else_of_if = else_of_if && at && formatter->tokens[at - 1].block;
    bool before_comments = token.kind == TOKEN_SEMICOLON || token.kind == TOKEN_COMMA || else_of_if ||
                           (token.kind == TOKEN_OPEN_BRACE && token.block);
    if (!before_comments)
        at = end;
    memmove(formatter->tokens + at + 1, formatter->tokens + at, (end - at) * sizeof *formatter->tokens);
    formatter->tokens[at] = token;
    formatter->count++;
}

static void match_brackets(struct formatter *formatter)
{
    uint32_t *open = context_alloc(formatter->context, (formatter->count + 1) * sizeof *open);
    uint32_t depth = 0;
    for (uint32_t i = 0; i < formatter->count; i++) {
        int kind = formatter->tokens[i].kind;
        if (kind == TOKEN_OPEN_BRACE || kind == TOKEN_OPEN_PAREN || kind == TOKEN_OPEN_BRACKET)
            open[depth++] = i;
        if ((kind == TOKEN_CLOSE_BRACE || kind == TOKEN_CLOSE_PAREN || kind == TOKEN_CLOSE_BRACKET) && depth) {
            formatter->tokens[i].match = open[--depth];
            formatter->tokens[open[depth]].match = i;
        }
    }
}

void format_prepare(struct formatter *formatter, const struct token_list *tokens, node_id root)
{
    struct annotator annotator = {.formatter = formatter, .tokens = tokens};
    annotator.notes = context_alloc(formatter->context, tokens->count * sizeof *annotator.notes);
    formatter->tokens = context_alloc(formatter->context, tokens->count * sizeof *formatter->tokens);
    annotate_list(&annotator, node_at(&formatter->ast, root)->slot[0], root);
    annotate_expression(&annotator, root, false);
    for (uint32_t i = 0; i < tokens->count && tokens->at[i].kind != TOKEN_END; i++)
        if (!dropped_comma(tokens, i))
            add_token(formatter, describe(&annotator, i));
    match_brackets(formatter);
}
