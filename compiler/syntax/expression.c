// One expression of the tree as canonical text, for messages: `2 * ffn`, `topk(x, w, k: 2)`, `expert[i+1]`.
#include "compiler/syntax/ast.h"

#include <stdlib.h>
#include <string.h>

static void print_expression(const struct context *context, const struct ast *ast, node_id id, bool tight, FILE *out);

static void print_list(const struct context *context, const struct ast *ast, node_id list, bool tight, FILE *out)
{
    EACH_NODE(ast, id, list)
    {
        print_expression(context, ast, id, tight, out);
        if (node_at(ast, id)->next)
            fputs(", ", out);
    }
}

/// The shortest text that reads back to the same number.
static void print_number(double number, FILE *out)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if (strtod(text, NULL) == number)
            break;
    }
    fputs(text, out);
}

static void print_string(const char *text, FILE *out)
{
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', out);
        if (*text == '\n')
            fputs("\\n", out);
        else
            fputc(*text, out);
    }
    fputc('"', out);
}

static void print_indices(const struct context *context, const struct ast *ast, node_id list, bool tight, FILE *out)
{
    if (!list)
        return;
    fputc('[', out);
    print_list(context, ast, list, tight, out);
    fputc(']', out);
}

static void print_binary(const struct context *context, const struct ast *ast, const struct ast_node *node, bool tight,
                         FILE *out)
{
    const char *text = text_of(context, node->text);
    bool space = !tight || !strchr("+-*", text[0]);
    print_expression(context, ast, node->slot[0], tight, out);
    fprintf(out, space ? " %s " : "%s", text);
    print_expression(context, ast, node->slot[1], tight, out);
}

static void print_path(const struct context *context, const struct ast *ast, node_id names, FILE *out)
{
    EACH_NODE(ast, id, names)
    fprintf(out, "%s%s", text_of(context, node_at(ast, id)->text), node_at(ast, id)->next ? "." : "");
}

static void print_record(const struct context *context, const struct ast *ast, const struct ast_node *node, FILE *out)
{
    fputs(node->slot[0] ? "{ " : "{}", out);
    print_list(context, ast, node->slot[0], false, out);
    fputs(node->slot[0] ? " }" : "", out);
}

static void print_expression(const struct context *context, const struct ast *ast, node_id id, bool tight, FILE *out)
{
    const struct ast_node *node = node_at(ast, id);
    const char *text = text_of(context, node->text);
    switch (node->kind) {
    case NODE_BINARY:
        print_binary(context, ast, node, tight, out);
        return;
    case NODE_UNARY:
        fprintf(out, "%s%s", text, strcmp(text, "not") ? "" : " ");
        print_expression(context, ast, node->slot[0], tight, out);
        return;
    case NODE_MEMBER:
        print_expression(context, ast, node->slot[0], tight, out);
        fprintf(out, ".%s", text);
        return;
    case NODE_INDEX:
    case NODE_INSTANCE:
    case NODE_TYPE:
        print_expression(context, ast, node->slot[0], tight, out);
        print_indices(context, ast, node->slot[1], node->kind != NODE_TYPE, out);
        return;
    case NODE_CALL:
        print_expression(context, ast, node->slot[0], tight, out);
        fputc('(', out);
        print_list(context, ast, node->slot[1], tight, out);
        fputc(')', out);
        return;
    case NODE_PAREN:
        fputc('(', out);
        print_expression(context, ast, node->slot[0], tight, out);
        fputc(')', out);
        return;
    case NODE_LIST:
        fputc('[', out);
        print_list(context, ast, node->slot[0], tight, out);
        fputc(']', out);
        return;
    case NODE_ARG:
    case NODE_FIELD:
        fprintf(out, "%s%s", text, node->text ? ": " : "");
        print_expression(context, ast, node->slot[0], tight, out);
        return;
    case NODE_RECORD:
        print_record(context, ast, node, out);
        return;
    case NODE_PATH:
        print_path(context, ast, node->slot[0], out);
        return;
    case NODE_RANGE:
        print_expression(context, ast, node->slot[0], tight, out);
        fputs("..", out);
        print_expression(context, ast, node->slot[1], tight, out);
        return;
    case NODE_QUANTITY:
    case NODE_PERCENT:
        print_number(node->number, out);
        fputs(node->kind == NODE_PERCENT ? "%" : text, out);
        return;
    case NODE_STRING:
        print_string(text, out);
        return;
    case NODE_BOOL:
        fputs(node->integer ? "true" : "false", out);
        return;
    default:
        fputs(text, out);
        return; // names, numbers as written
    }
}

const char *expression_text(struct context *context, const struct ast *ast, node_id expression)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        fatal(context, EXIT_SYSTEM, "out of memory");
    print_expression(context, ast, expression, false, out);
    fclose(out);
    const char *result = context_printf(context, "%s", text);
    free(text);
    return result;
}
