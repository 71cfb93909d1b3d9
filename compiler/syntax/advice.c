// What was probably meant, where the grammar cannot go on: habits of other languages, words left out, misspelt words. Each rule
// looks at the token that is unexpected, at those around it and at what could have stood there.
#include "compiler/syntax/parser.h"

#include <string.h>

#include "compiler/syntax/words.h"
#include "moe.tab.h"

struct place {
    struct parser *parser;
    struct diag *diag;
    const struct expectation *expected;
    const struct token *token, *before, *earlier, *next; // earlier: the one before `before`
};

static bool is_remark(const struct token *token)
{
    return token->kind == TOKEN_COMMENT || token->kind == TOKEN_DOC;
}

static const struct token *previous(const struct parser *parser, const struct token *token)
{
    while (token && token > parser->tokens.at)
        if (!is_remark(--token))
            return token;
    return NULL;
}

static const struct token *following(const struct token *token)
{
    while (token->kind != TOKEN_END)
        if (!is_remark(++token))
            return token;
    return token;
}

static bool expects(const struct place *p, int token) { return parser_expects(p->expected, token); }
static bool stands(const struct token *token, int kind) { return token && token->kind == kind; }

static const char *spelling(const struct place *p, const struct token *token)
{
    const char *text = p->parser->context->files[p->parser->file].text + token->span.begin;
    return context_printf(p->parser->context, "%.*s", (int)(token->span.end - token->span.begin), text);
}

static bool help(const struct place *p, const char *text)
{
    diag_help(p->parser->context, p->diag, "%s", text);
    return true;
}

static bool replace(const struct place *p, struct span span, const char *with, const char *text)
{
    diag_help(p->parser->context, p->diag, "%s", text);
    diag_fix(p->parser->context, p->diag, span, with);
    return true;
}

static struct span ahead_of(const struct token *token)
{
    return (struct span){token->span.file, token->span.begin, token->span.begin};
}

static bool advise_assign(const struct place *p)
{
    if (stands(p->earlier, TOKEN_AXIS) && expects(p, TOKEN_OPEN_BRACKET) && stands(p->next, TOKEN_INT))
        return replace(p, (struct span){p->token->span.file, p->before->span.end, p->next->span.end},
                       context_printf(p->parser->context, "[%s]", spelling(p, p->next)), "an axis has its size in brackets");
    if (stands(p->earlier, TOKEN_STAGE))
        return help(p, "a stage has a name of its own, then what it makes: `stage route: r = topk(x, w, k: 2);`");
    if (expects(p, TOKEN_COLON) && expects(p, TOKEN_CLOSE_PAREN))
        return replace(p, p->token->span, ":", "options are given with `:`");
    if (expects(p, TOKEN_COLON))
        return replace(p, p->token->span, ":", "a type stands behind `:`");
    return expects(p, TOKEN_EQUAL) && replace(p, p->token->span, "==", "`==` compares");
}

static bool advise_brace(const struct place *p)
{
    if (stands(p->earlier, TOKEN_SCHEDULE))
        return help(p, "a schedule is `for` a layer, or for any that has the stages listed: `for (route, dispatch, expert, combine)`");
    if (stands(p->earlier, TOKEN_PLACEMENT))
        return help(p, "a placement is `on` a cluster");
    if (stands(p->earlier, TOKEN_LINK))
        return help(p, "a link is `across` an axis of the cluster");
    return expects(p, TOKEN_DOTS) && help(p, "a loop runs over a range, `0..n`: from 0 on, n left out");
}

/// Words that begin no statement where they stand, and what is written instead.
static bool advise_word(const struct place *p)
{
    const char *word = spelling(p, p->token);
    if (stands(p->token, TOKEN_IF) && expects(p, TOKEN_WHEN))
        return replace(p, p->token->span, "when", "a `use` has its condition behind `when`");
    if (stands(p->token, TOKEN_OVER) && expects(p, TOKEN_ASSIGN) && p->before)
        return replace(p, ahead_of(p->before), "place ", "experts are placed: `place experts over ...;`");
    if (stands(p->token, TOKEN_PIPELINE) && expects(p, TOKEN_PIPELINED))
        return replace(p, p->token->span, "pipelined", "the loop is `pipelined`");
    if (stands(p->before, TOKEN_INT) || stands(p->before, TOKEN_FLOAT))
        return find_unit(word) && replace(p, (struct span){p->token->span.file, p->before->span.end, p->token->span.begin}, "",
                                          "a unit stands right behind its number");
    if (!strcmp(word, "return") && expects(p, TOKEN_YIELD))
        return replace(p, p->token->span, "yield", "a layer ends in `yield`");
    const char *first = p->before && stands(p->before, TOKEN_IDENT) ? spelling(p, p->before) : "";
    return (!strcmp(first, "wait") || !strcmp(first, "signal")) && expects(p, TOKEN_OVERLAP) &&
           help(p, "waits are placed where data needs them; `order a before b;` adds one");
}

/// A name where only words can begin something: one of them misspelt, or left out.
static bool advise_beginning(const struct place *p)
{
    const char *nearest = p->token->kind == TOKEN_IDENT
                              ? nearest_name(spelling(p, p->token), p->expected->names, (size_t)p->expected->count)
                              : NULL;
    const struct reserved_word *meant = nearest ? find_reserved_word(nearest, strlen(nearest)) : NULL;
    if (meant && !expects(p, TOKEN_IDENT))
        return replace(p, p->token->span, nearest, "a word with a similar name exists");
    if (stands(p->next, TOKEN_ASSIGN) && expects(p, TOKEN_DIM))
        return replace(p, ahead_of(p->token), "dim ", "a size is a `dim`, any other value a `const`");
    if (stands(p->next, TOKEN_ASSIGN) && expects(p, TOKEN_STAGE))
        return replace(p, ahead_of(p->token), context_printf(p->parser->context, "stage %s: ", spelling(p, p->token)),
                       "a stage makes it, and has a name");
    return stands(p->next, TOKEN_COLON) && expects(p, TOKEN_PARAM) &&
           replace(p, ahead_of(p->token), "param ", "what a layer is given beside its input is a `param`");
}

/// A word of the language where nothing but a name can stand.
static bool advise_name(const struct place *p)
{
    const char *word = spelling(p, p->token);
    bool names = expects(p, TOKEN_IDENT);
    for (int i = 0; i < p->expected->count && names; i++) {
        const struct reserved_word *other = find_reserved_word(p->expected->names[i], strlen(p->expected->names[i]));
        names = p->expected->tokens[i] == TOKEN_IDENT || (other && other->soft);
    }
    return names && find_reserved_word(word, strlen(word)) &&
           help(p, context_printf(p->parser->context, "`%s` is a word of the language: another name, as `%s_`, is free", word, word));
}

static bool is_operator(int kind)
{
    return kind == TOKEN_PLUS || kind == TOKEN_MINUS || kind == TOKEN_TIMES || kind == TOKEN_DIVIDE;
}

bool parser_advise(struct parser *parser, struct diag *diag, const struct expectation *expectation, uint32_t number)
{
    const struct token *token = &parser->tokens.at[number];
    struct place p = {parser, diag, expectation, token, previous(parser, token), NULL, following(token)};
    p.earlier = previous(parser, p.before);
    if (token->kind == TOKEN_ASSIGN)
        return advise_assign(&p);
    if (token->kind == TOKEN_OPEN_BRACE)
        return advise_brace(&p);
    if (token->kind == TOKEN_OVERLAP && expects(&p, TOKEN_OR))
        return replace(&p, token->span, "or", "`or` joins conditions; `||` is for schedules");
    if (token->kind == TOKEN_COLON && expects(&p, TOKEN_ASSIGN))
        return replace(&p, token->span, " =", "attributes are set with `=`; `:` is for the fields of a record");
    if (token->kind == TOKEN_OPEN_PAREN && expects(&p, TOKEN_OPEN_BRACKET) && expects(&p, TOKEN_OVERLAP))
        return help(&p, "an instance has its index in brackets: `dispatch[i]`");
    if (is_operator(token->kind) && expects(&p, TOKEN_OPEN_PAREN) && !expects(&p, TOKEN_PLUS))
        return help(&p, "a stage is one operator, as in `add(a, b)`");
    if (token->kind == TOKEN_SEMICOLON && stands(p.before, TOKEN_STRING) && stands(p.earlier, TOKEN_IMPORT))
        return help(&p, "a module of the library has no quotes, `import std.ops;`; a file has a name here: `import \"a.moe\" as a;`");
    return advise_word(&p) || advise_beginning(&p) || advise_name(&p);
}

/// A keyword that begins an item: there a block of before may well have been left open.
static bool begins_item(int kind)
{
    static const int items[] = {TOKEN_IMPORT, TOKEN_CONST,  TOKEN_DIM,     TOKEN_FORMAT,   TOKEN_DEVICE,  TOKEN_CLUSTER, TOKEN_PLACEMENT,
                                TOKEN_OP,     TOKEN_LAYER, TOKEN_WEIGHTS, TOKEN_SCHEDULE, TOKEN_MONITOR, TOKEN_PIPELINE};
    for (size_t i = 0; i < sizeof items / sizeof *items; i++)
        if (items[i] == kind)
            return true;
    return false;
}

bool parser_is_statement(const struct parser *parser, const struct expectation *expectation, uint32_t number)
{
    const struct token *token = &parser->tokens.at[number], *before = previous(parser, token);
    bool between = before && (before->kind == TOKEN_SEMICOLON || before->kind == TOKEN_OPEN_BRACE || before->kind == TOKEN_CLOSE_BRACE);
    bool in_block = parser_expects(expectation, TOKEN_YIELD) || parser_expects(expectation, TOKEN_SPLIT) ||
                    parser_expects(expectation, TOKEN_PLACE) || parser_expects(expectation, TOKEN_AXIS) ||
                    parser_expects(expectation, TOKEN_USE) || parser_expects(expectation, TOKEN_ENGINE);
    bool loop = token->kind == TOKEN_PIPELINE && parser_expects(expectation, TOKEN_PIPELINED) &&
                following(following(token))->kind == TOKEN_IN;
    return between && in_block && (token->kind == TOKEN_IDENT || loop || !begins_item(token->kind)) &&
           token->kind != TOKEN_END && token->kind != TOKEN_CLOSE_BRACE && token->kind != TOKEN_CLOSE_PAREN &&
           token->kind != TOKEN_CLOSE_BRACKET;
}
