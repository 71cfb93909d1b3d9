// Messages for syntax errors: what is missing, or what stands where something else was expected. An error that is only a
// consequence of an earlier one in the file is not reported.
#include "compiler/syntax/parser.h"

#include <string.h>

#include "compiler/syntax/words.h"
#include "moe.tab.h"

enum { EXPECTED_SHOWN = 4, ERRORS_REPORTED = 200 };

bool parser_expects(const struct expectation *expectation, int token)
{
    for (int i = 0; i < expectation->count; i++)
        if (expectation->tokens[i] == token)
            return true;
    return false;
}

static bool is_comment(const struct token *token)
{
    return token->kind == TOKEN_COMMENT || token->kind == TOKEN_DOC;
}

static int closing(int kind)
{
    return kind == TOKEN_OPEN_PAREN     ? TOKEN_CLOSE_PAREN
           : kind == TOKEN_OPEN_BRACKET ? TOKEN_CLOSE_BRACKET
           : kind == TOKEN_OPEN_BRACE   ? TOKEN_CLOSE_BRACE
                                        : 0;
}

static bool is_closing(int kind)
{
    return kind == TOKEN_CLOSE_PAREN || kind == TOKEN_CLOSE_BRACKET || kind == TOKEN_CLOSE_BRACE;
}

/// The bracket of one kind that is still open before a token, or NONE.
static uint32_t open_bracket(const struct token_list *tokens, uint32_t before, int opening)
{
    uint32_t closed = 0;
    for (uint32_t i = before; i-- > 0;) {
        if (tokens->at[i].kind == closing(opening))
            closed++;
        else if (tokens->at[i].kind == opening && closed-- == 0)
            return i;
    }
    return NONE;
}

static const char *spelled(struct parser *parser, const struct token *token)
{
    if (token->kind == TOKEN_END)
        return "end of the file";
    const char *text = parser->context->files[parser->file].text + token->span.begin;
    uint32_t length = token->span.end - token->span.begin;
    return context_printf(parser->context, "`%.*s%s`", (int)(length > 40 ? 40 : length), text,
                          length > 40 ? "..." : "");
}

/// What a value may begin with, and what may continue an expression: never worth listing one by one.
static const int value_tokens[] = {
    TOKEN_INT, TOKEN_FLOAT, TOKEN_QUANTITY,   TOKEN_PERCENT,      TOKEN_STRING,     TOKEN_TRUE, TOKEN_FALSE,
    TOKEN_NOT, TOKEN_MINUS, TOKEN_OPEN_PAREN, TOKEN_OPEN_BRACKET, TOKEN_OPEN_BRACE, 0};
static const int operator_tokens[] = {TOKEN_PLUS,
                                      TOKEN_MINUS,
                                      TOKEN_TIMES,
                                      TOKEN_DIVIDE,
                                      TOKEN_MOD,
                                      TOKEN_LESS,
                                      TOKEN_LESS_EQUAL,
                                      TOKEN_GREATER,
                                      TOKEN_GREATER_EQUAL,
                                      TOKEN_EQUAL,
                                      TOKEN_NOT_EQUAL,
                                      TOKEN_AND,
                                      TOKEN_OR,
                                      TOKEN_DOT,
                                      TOKEN_OPEN_PAREN,
                                      TOKEN_OPEN_BRACKET,
                                      0};

static bool in_table(const int *table, int token)
{
    while (*table && *table != token)
        table++;
    return *table != 0;
}

/// "`=` or `<=`"; NULL when too many things could stand here to be worth a list.
static const char *expected_list(struct parser *parser, const struct expectation *expectation)
{
    bool value = parser_expects(expectation, TOKEN_INT) && parser_expects(expectation, TOKEN_STRING);
    bool name = parser_expects(expectation, TOKEN_IDENT), soft = parser_expects(expectation, TOKEN_WEIGHTS);
    bool operators = parser_expects(expectation, TOKEN_PLUS) && parser_expects(expectation, TOKEN_TIMES);
    const char *words[EXPECTED_SHOWN + 1];
    int count = 0;
    if (value)
        words[count++] = parser_expects(expectation, TOKEN_OPEN_BRACE) ? "a value" : "an expression";
    else if (name)
        words[count++] = "a name";
    for (int i = 0; i < expectation->count; i++) {
        int token = expectation->tokens[i];
        bool in_value = value && in_table(value_tokens, token);
        bool in_operator = operators && in_table(operator_tokens, token);
        const struct reserved_word *word = find_reserved_word(expectation->names[i], strlen(expectation->names[i]));
        bool in_name = token == TOKEN_IDENT || (soft && name && word && word->soft);
        if (in_value || in_operator || in_name)
            continue;
        if (count == EXPECTED_SHOWN)
            return NULL;
        bool kind = token == TOKEN_STRING || token == TOKEN_INT || token == TOKEN_END;
        words[count++] = kind ? expectation->names[i] : context_printf(parser->context, "`%s`", expectation->names[i]);
    }
    const char *list = count ? words[0] : NULL;
    for (int i = 1; i < count; i++)
        list = context_printf(parser->context, "%s%s%s", list, i + 1 == count ? " or " : ", ", words[i]);
    return list;
}

static bool starts_line(const struct parser *parser, uint32_t from, uint32_t to)
{
    return memchr(parser->context->files[parser->file].text + from, '\n', to - from) != NULL;
}

/// The last byte of a token: where something is missing "after this".
static struct span end_of(const struct token *token)
{
    uint32_t begin = token->span.end > token->span.begin ? token->span.end - 1 : token->span.begin;
    return (struct span){token->span.file, begin, token->span.end};
}

static void report_missing_semicolon(struct parser *parser, const struct token *before)
{
    struct diag *diag = diag_error(parser->context, E0001, end_of(before), "expected `;`");
    diag_label(parser->context, diag, "after this");
    diag_help(parser->context, diag, "end the statement");
    diag_fix(parser->context, diag, (struct span){parser->file, before->span.end, before->span.end}, ";");
}

static bool report_missing_bracket(struct parser *parser, const struct expectation *expectation, uint32_t token,
                                   const struct token *before)
{
    static const int openings[] = {TOKEN_OPEN_PAREN, TOKEN_OPEN_BRACKET, TOKEN_OPEN_BRACE};
    static const char *const names[] = {")", "]", "}"};
    for (size_t i = 0; i < sizeof openings / sizeof *openings; i++) {
        if (!parser_expects(expectation, closing(openings[i])))
            continue;
        uint32_t opening = open_bracket(&parser->tokens, token, openings[i]);
        if (opening == NONE)
            continue;
        struct diag *diag = diag_error(parser->context, E0001, end_of(before), "expected `%s`", names[i]);
        diag_label(parser->context, diag, "after this");
        if (&parser->tokens.at[opening] != before)
            diag_label_at(parser->context, diag, parser->tokens.at[opening].span, "to close this");
        return true;
    }
    return false;
}

static void report_unexpected(struct parser *parser, const struct expectation *expectation, const struct token *token)
{
    struct span span = token->span;
    if (token->kind == TOKEN_END && span.begin) // the last byte of the text can be shown, what is behind it cannot
        span = (struct span){span.file, span.begin - 1, span.begin};
    struct diag *diag = diag_error(parser->context, E0003, span, "unexpected %s", spelled(parser, token));
    const char *list = expected_list(parser, expectation);
    if (list)
        diag_label(parser->context, diag, "expected %s", list);
    parser_advise(parser, diag, expectation, (uint32_t)(token - parser->tokens.at));
}

/// How many braces are open before a token.
static int64_t brace_depth(const struct token_list *tokens, uint32_t before)
{
    int64_t depth = 0;
    for (uint32_t i = 0; i < before; i++)
        depth += tokens->at[i].kind == TOKEN_OPEN_BRACE ? 1 : tokens->at[i].kind == TOKEN_CLOSE_BRACE ? -1 : 0;
    return depth;
}

/// After an error the parser may have left a block too early or be in one that has ended: what it says then is not about
/// the text.
static bool is_consequence(const struct parser *parser, const struct expectation *expectation, uint32_t token)
{
    if (!parser->errors)
        return false;
    int64_t depth = brace_depth(&parser->tokens, token);
    bool at_top = parser_expects(expectation, TOKEN_IMPORT);
    return at_top ? depth > 0 : depth <= 0 && parser->tokens.at[token].kind == TOKEN_END;
}

void parser_report(struct parser *parser, struct expectation expectation)
{
    uint32_t number = parser->current;
    const struct token *token = &parser->tokens.at[number];
    const struct token *before = NULL;
    for (uint32_t i = number; i-- > 0 && !before;)
        before = is_comment(&parser->tokens.at[i]) ? NULL : &parser->tokens.at[i];
    if (parser->errors > ERRORS_REPORTED || is_consequence(parser, &expectation, number))
        return;
    parser->errors++;
    bool ends = token->kind == TOKEN_END || is_closing(token->kind);
    bool new_line = before && starts_line(parser, before->span.end, token->span.begin);
    if (before && parser_expects(&expectation, TOKEN_SEMICOLON) && (ends || new_line)) {
        report_missing_semicolon(parser, before);
        return;
    }
    bool cut_off = ends || new_line || token->kind == TOKEN_SEMICOLON || token->kind == TOKEN_OPEN_BRACE;
    if (before && cut_off && !parser_is_statement(parser, &expectation, number) &&
        report_missing_bracket(parser, &expectation, number, before))
        return;
    report_unexpected(parser, &expectation, token);
}
