// `--emit=tokens`: the token list of a file, one token a line.
#include "compiler/syntax/parser.h"

#include "moe.tab.h"

static const char *kind_name(int kind)
{
    switch (kind) {
    case TOKEN_END:
        return "end";
    case TOKEN_COMMENT:
        return "comment";
    case TOKEN_DOC:
        return "doc";
    case TOKEN_INVALID:
        return "invalid";
    case TOKEN_IDENT:
        return "name";
    case TOKEN_INT:
        return "int";
    case TOKEN_FLOAT:
        return "float";
    case TOKEN_QUANTITY:
        return "quantity";
    case TOKEN_PERCENT:
        return "percent";
    case TOKEN_STRING:
        return "string";
    default:
        return kind >= TOKEN_SEMICOLON ? "sign" : "word";
    }
}

void print_tokens(struct context *context, uint32_t file, FILE *out)
{
    struct token_list tokens = {0};
    scan_file(context, file, &tokens);
    const struct source_file *source = &context->files[file];
    for (uint32_t i = 0; i < tokens.count; i++) {
        const struct token *token = &tokens.at[i];
        uint32_t line, column;
        line_column(source, token->span.begin, &line, &column);
        fprintf(out, "%u:%u %s", line, column, kind_name(token->kind));
        fputs(token->span.end > token->span.begin ? " " : "", out);
        for (uint32_t at = token->span.begin; at < token->span.end; at++) {
            unsigned char c = (unsigned char)source->text[at];
            if (c == '\n')
                fputs("\\n", out);
            else if (c < 0x20 || c == 0x7f)
                fprintf(out, "\\x%02x", c);
            else
                fputc(c, out);
        }
        fputc('\n', out);
    }
}
