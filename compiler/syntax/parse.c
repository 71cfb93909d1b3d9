// From a file's tokens to its tree: the helpers that the grammar's actions call, the messages for syntax errors, and
// parse_file, which drives both.
#include "compiler/syntax/parser.h"

#include <stdlib.h>
#include <string.h>

#include "moe.tab.h"

static node_id new_node(struct parser *parser, enum node_kind kind, struct span span)
{
    struct ast *ast = parser->ast;
    ast->nodes = context_grow(parser->context, ast->nodes, &ast->capacity, ast->count + 1, sizeof *ast->nodes);
    parser->depths = context_grow(parser->context, parser->depths, &parser->depth_capacity,
                                  ast->count + 1 - parser->first_node, sizeof *parser->depths);
    node_id id = ast->count++;
    ast->nodes[id] = (struct ast_node){.kind = (uint16_t)kind, .span = span, .name_span = {span.file, 0, 0}};
    parser->depths[id - parser->first_node] = 1;
    return id;
}

void parser_report_too_deep(struct parser *parser, struct span span)
{
    if (parser->too_deep)
        return;
    parser->too_deep = true;
    parser->errors++;
    diag_error(parser->context, E0007, span, "nested more than %d deep", AST_DEPTH_LIMIT);
}

node_id parser_node(struct parser *parser, enum node_kind kind, struct span span, const node_id slots[AST_SLOTS])
{
    node_id id = new_node(parser, kind, span);
    uint16_t depth = 0;
    for (int i = 0; i < AST_SLOTS; i++) {
        parser->ast->nodes[id].slot[i] = slots[i];
        EACH_NODE(parser->ast, child, slots[i])
        {
            uint16_t below = parser->depths[child - parser->first_node];
            depth = below > depth ? below : depth;
        }
    }
    if (depth >= AST_DEPTH_LIMIT && kind != NODE_FILE) { // cut off what is below, so that no pass meets such a tree
        parser_report_too_deep(parser, (struct span){span.file, span.begin, span.begin + 1});
        memset(parser->ast->nodes[id].slot, 0, sizeof parser->ast->nodes[id].slot);
        depth = 0;
    }
    parser->depths[id - parser->first_node] = (uint16_t)(depth + 1);
    return id;
}

node_id parser_named(struct parser *parser, node_id node, uint32_t token)
{
    const struct token *name = &parser->tokens.at[token];
    parser->ast->nodes[node].text = name->text;
    parser->ast->nodes[node].name_span = name->span;
    return node;
}

node_id parser_flagged(struct parser *parser, node_id node, uint16_t flag)
{
    parser->ast->nodes[node].flag = flag;
    return node;
}

node_id parser_extended(struct parser *parser, node_id node, struct span span)
{
    parser->ast->nodes[node].span = span;
    return node;
}

/// The first token of the construct holds the /// lines before it.
node_id parser_documented(struct parser *parser, node_id node)
{
    uint32_t begin = parser->ast->nodes[node].span.begin, low = 0, high = parser->tokens.count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (parser->tokens.at[middle].span.begin <= begin)
            low = middle;
        else
            high = middle;
    }
    parser->ast->nodes[node].doc = parser->tokens.at[low].doc;
    return node;
}

node_id parser_literal(struct parser *parser, enum node_kind kind, uint32_t number)
{
    const struct token *token = &parser->tokens.at[number];
    node_id id = new_node(parser, kind, token->span);
    struct ast_node *node = &parser->ast->nodes[id];
    node->integer = token->integer;
    node->number = token->number;
    if (kind != NODE_BOOL)
        node->text = token->text;
    if (kind == NODE_NAME)
        node->name_span = token->span;
    return id;
}

node_id parser_operator(struct parser *parser, enum node_kind kind, struct span span, const char *text, node_id left,
                        node_id right)
{
    node_id id = parser_node(parser, kind, span, (const node_id[AST_SLOTS]){left, right});
    parser->ast->nodes[id].text = intern(parser->context, text);
    return id;
}

struct node_list parser_append(struct parser *parser, struct node_list list, node_id node)
{
    if (!node)
        return list;
    if (list.last)
        parser->ast->nodes[list.last].next = node;
    else
        list.first = node;
    list.last = node;
    return list;
}

node_id parse_file(struct context *context, struct ast *ast, uint32_t file)
{
    struct parser parser = {.context = context, .ast = ast, .file = file};
    uint32_t errors = context->error_count;
    if (!ast->count) { // node 0 is "none"
        ast->nodes = context_grow(context, ast->nodes, &ast->capacity, 1, sizeof *ast->nodes);
        ast->nodes[0] = (struct ast_node){0};
        ast->count = 1;
    }
    parser.first_node = ast->count;
    scan_file(context, file, &parser.tokens);
    parser.errors = context->error_count - errors;
    if (moe_parse(&parser) == 2)
        parser_report_too_deep(&parser, (struct span){file, 0, 0});
    struct span whole = {file, 0, context->files[file].size};
    if (!parser.root)
        parser.root = parser_node(&parser, NODE_FILE, whole, (const node_id[AST_SLOTS]){0});
    ast->nodes[parser.root].span = whole;
    return parser.root;
}
