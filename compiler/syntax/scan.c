// The actions of the scanner: what each token carries (names, decoded strings, numbers, units, the documentation before
// it), and the errors that concern single tokens.
#include "compiler/syntax/scan.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/syntax/words.h"
#include "moe.tab.h"

static const char *token_text(const struct scanner *scanner)
{
    return scanner->context->files[scanner->file].text + scanner->begin;
}

static struct span token_span(const struct scanner *scanner)
{
    return (struct span){scanner->file, scanner->begin, scanner->end};
}

static struct token *add_token(struct scanner *scanner, int kind)
{
    struct token_list *list = scanner->tokens;
    list->at = context_grow(scanner->context, list->at, &list->capacity, list->count + 1, sizeof *list->at);
    struct token *token = &list->at[list->count++];
    *token = (struct token){.kind = kind, .span = token_span(scanner)};
    if (kind != TOKEN_COMMENT && kind != TOKEN_DOC) {
        token->doc = scanner->doc;
        scanner->doc = 0;
    }
    return token;
}

void scan_simple(struct scanner *scanner, int kind)
{
    add_token(scanner, kind);
}

void scan_word(struct scanner *scanner)
{
    const char *text = token_text(scanner);
    size_t length = scanner->end - scanner->begin;
    const struct reserved_word *word = find_reserved_word(text, length);
    struct token *token = add_token(scanner, word ? word->token : TOKEN_IDENT);
    token->text = intern_n(scanner->context, text, length);
    token->integer = token->kind == TOKEN_TRUE;
}

void scan_comment(struct scanner *scanner, bool doc)
{
    add_token(scanner, doc ? TOKEN_DOC : TOKEN_COMMENT);
    if (memchr(token_text(scanner), 0, scanner->end - scanner->begin))
        diag_error(scanner->context, E0004, token_span(scanner), "a NUL byte in a comment");
    if (!doc)
        return;
    const char *text = token_text(scanner) + 3;
    size_t length = scanner->end - scanner->begin - 3;
    if (length && *text == ' ') {
        text++;
        length--;
    }
    while (length && isspace((unsigned char)text[length - 1]))
        length--;
    const char *before = text_of(scanner->context, scanner->doc);
    const char *joined = scanner->doc ? context_printf(scanner->context, "%s\n%.*s", before, (int)length, text)
                                      : context_printf(scanner->context, "%.*s", (int)length, text);
    scanner->doc = intern(scanner->context, joined);
}

void scan_unterminated_comment(struct scanner *scanner)
{
    add_token(scanner, TOKEN_INVALID);
    struct span span = token_span(scanner);
    span.end = span.begin + 2;
    struct diag *diag = diag_error(scanner->context, E0005, span, "this comment does not end");
    diag_label(scanner->context, diag, "opened here");
    diag_help(scanner->context, diag, "end it with `*/`, or use `//` for a comment of one line");
}

static bool decode_escape(char *escape)
{
    if (*escape == 'n')
        *escape = '\n';
    return *escape == '\n' || *escape == '"' || *escape == '\\';
}

static void report_escape(struct scanner *scanner, uint32_t offset)
{
    struct span span = {scanner->file, offset, offset + 2};
    struct diag *diag = diag_error(scanner->context, E0004, span, "unknown escape in a string");
    diag_label(scanner->context, diag, "known are `\\\"`, `\\\\` and `\\n`");
}

void scan_string(struct scanner *scanner, bool terminated)
{
    const char *text = token_text(scanner);
    size_t length = scanner->end - scanner->begin, used = 0;
    if (!terminated) {
        add_token(scanner, TOKEN_INVALID);
        struct diag *diag = diag_error(scanner->context, E0005, token_span(scanner), "this string does not end");
        diag_label(scanner->context, diag, "no `\"` before the end of the line");
        return;
    }
    char *decoded = context_alloc(scanner->context, length);
    for (size_t i = 1; i + 1 < length; i++) {
        char c = text[i];
        if (c == '\\') {
            c = text[++i];
            if (!decode_escape(&c))
                report_escape(scanner, scanner->begin + (uint32_t)i - 1);
        } else if (!c) {
            struct span span = {scanner->file, scanner->begin + (uint32_t)i, scanner->begin + (uint32_t)i + 1};
            diag_error(scanner->context, E0004, span, "a NUL byte in a string");
        }
        decoded[used++] = c;
    }
    str_id id = intern_n(scanner->context, decoded, used);
    add_token(scanner, TOKEN_STRING)->text = id;
}

/// The bytes of the number that the token begins with.
static size_t number_length(const char *text, size_t length)
{
    size_t at = 0;
    while (at < length && (isdigit((unsigned char)text[at]) || text[at] == '_'))
        at++;
    if (at + 1 < length && text[at] == '.' && isdigit((unsigned char)text[at + 1]))
        for (at++; at < length && (isdigit((unsigned char)text[at]) || text[at] == '_');)
            at++;
    if (at < length && (text[at] == 'e' || text[at] == 'E')) {
        size_t digits = at + 1 + (at + 1 < length && (text[at + 1] == '+' || text[at + 1] == '-'));
        if (digits < length && isdigit((unsigned char)text[digits]))
            for (at = digits; at < length && isdigit((unsigned char)text[at]);)
                at++;
    }
    return at;
}

static void report_range(struct scanner *scanner, const char *limit)
{
    struct diag *diag = diag_error(scanner->context, E0006, token_span(scanner), "this number is too large");
    diag_label(scanner->context, diag, "the largest is %s", limit);
}

/// A number without its underscores, in the arena.
static char *plain_number(struct scanner *scanner, size_t length)
{
    const char *text = token_text(scanner);
    char *plain = context_alloc(scanner->context, length + 1);
    size_t used = 0;
    for (size_t i = 0; i < length; i++)
        if (text[i] != '_')
            plain[used++] = text[i];
    return plain;
}

static double read_number(struct scanner *scanner, size_t length)
{
    double number = strtod(plain_number(scanner, length), NULL);
    if (isfinite(number))
        return number;
    report_range(scanner, "about 1.8e308");
    return 0;
}

void scan_integer(struct scanner *scanner)
{
    size_t length = scanner->end - scanner->begin;
    const char *plain = plain_number(scanner, length);
    bool hexadecimal = plain[0] == '0' && (plain[1] == 'x' || plain[1] == 'X');
    errno = 0;
    unsigned long long value = strtoull(plain, NULL, hexadecimal ? 16 : 10);
    if (errno || value > INT64_MAX) {
        report_range(scanner, "9223372036854775807");
        value = 0;
    }
    struct token *token = add_token(scanner, TOKEN_INT);
    token->integer = (int64_t)value;
    token->number = (double)value;
    token->text = intern_n(scanner->context, token_text(scanner), length);
}

void scan_float(struct scanner *scanner)
{
    size_t length = scanner->end - scanner->begin;
    double number = read_number(scanner, length);
    struct token *token = add_token(scanner, TOKEN_FLOAT);
    token->number = number;
    token->text = intern_n(scanner->context, token_text(scanner), length);
}

void scan_percent(struct scanner *scanner)
{
    double number = read_number(scanner, scanner->end - scanner->begin - 1);
    add_token(scanner, TOKEN_PERCENT)->number = number;
}

/// `GBps` and its like: the unit of bytes per second that was probably meant.
static const char *byte_rate_for(struct context *context, const char *unit)
{
    size_t length = strlen(unit);
    if (length < 3 || length > 5 || strcmp(unit + length - 3, "Bps") != 0)
        return NULL;
    const char *rate = context_printf(context, "%.*sB/s", (int)length - 3, unit);
    return find_unit(rate) ? rate : NULL;
}

/// Of `Gb/s` or `Gbit/s` the length of the prefix; 0: not such a unit.
static size_t length_of_bits(const char *unit)
{
    const char *b = strstr(unit, "b/s") ? strstr(unit, "b/s") : strstr(unit, "bit/s");
    return b && (b[1] == '/' ? b[3] : b[5]) == 0 ? (size_t)(b - unit) : 0;
}

static const char *similar_unit(const char *unit)
{
    const char *names[64];
    size_t count = 0;
    for (size_t i = 0; i < unit_table_count && count < 64; i++) {
        if (!strcasecmp(unit_table[i].text, unit))
            return unit_table[i].text;
        names[count++] = unit_table[i].text;
    }
    return nearest_name(unit, names, count);
}

static void report_unit(struct scanner *scanner, const char *unit, size_t number)
{
    struct context *context = scanner->context;
    struct diag *diag = diag_error(context, E0002, token_span(scanner), "unknown unit `%s`", unit);
    struct span place = {scanner->file, scanner->begin + (uint32_t)number, scanner->end};
    diag_label(context, diag, "not a unit");
    const char *rate = byte_rate_for(context, unit);
    if (rate) {
        diag_note(context, diag, "bandwidth is written in bytes (`%s`) or in bits (`%.*sbps`); they differ by 8x", rate,
                  (int)strlen(unit) - 3, unit);
        diag_help(context, diag, "if you meant bytes per second");
        diag_fix(context, diag, place, rate);
        return;
    }
    const char *similar = similar_unit(unit);
    const char *bits = length_of_bits(unit) ? context_printf(context, "%.*sbps", (int)length_of_bits(unit), unit) : NULL;
    if (bits && find_unit(bits)) {
        diag_help(context, diag, "bits per second are written `%s`", bits);
        diag_fix(context, diag, place, bits);
        return;
    }
    if (similar) {
        diag_help(context, diag, "a unit with a similar name exists");
        diag_fix(context, diag, place, similar);
        return;
    }
    diag_note(context, diag,
              "units are B, KB to TB, KiB to TiB, each also per second (GB/s); bps to Tbps; ns, us, ms, s; "
              "FLOPS to PFLOPS; x");
}

uint32_t scan_quantity(struct scanner *scanner)
{
    const struct source_file *source = &scanner->context->files[scanner->file];
    const char *text = token_text(scanner);
    size_t length = scanner->end - scanner->begin, number = number_length(text, length);
    // The slash belongs to the unit only where the whole is one: not in `64KB/seq`, nor in `2x/s`.
    if (length > 2 && !memcmp(text + length - 2, "/s", 2)) {
        bool longer = scanner->end < source->size && (isalnum((unsigned char)text[length]) || text[length] == '_');
        const char *amount = context_printf(scanner->context, "%.*s", (int)(length - 2 - number), text + number);
        const struct unit_word *unit = find_unit(amount);
        if (longer || (unit && unit->kind != UNIT_BYTES)) {
            scanner->end -= 2;
            length -= 2;
        }
    }
    double value = read_number(scanner, number);
    const char *unit = context_printf(scanner->context, "%.*s", (int)(length - number), text + number);
    if (!find_unit(unit))
        report_unit(scanner, unit, number);
    struct token *token = add_token(scanner, TOKEN_QUANTITY);
    token->number = value;
    token->text = intern(scanner->context, unit);
    return (uint32_t)length;
}

void scan_stray(struct scanner *scanner)
{
    struct context *context = scanner->context;
    const char *text = token_text(scanner);
    uint32_t size = scanner->end - scanner->begin, valid = 0;
    if (scanner->begin == 0 && size >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3) && size == 3)
        return; // a byte order mark
    struct token_list *list = scanner->tokens;
    struct token *before = list->count ? &list->at[list->count - 1] : NULL;
    if (before && before->kind == TOKEN_INVALID && before->span.end == scanner->begin) {
        before->span.end = scanner->end; // one error for a run of them
        return;
    }
    add_token(scanner, TOKEN_INVALID);
    while (valid < size && utf8_length(text + valid, size - valid))
        valid += utf8_length(text + valid, size - valid);
    if (valid < size) {
        diag_error(context, E0004, token_span(scanner), "this is not UTF-8");
        return;
    }
    if (!isprint((unsigned char)*text) && (unsigned char)*text < 0x80) {
        diag_error(context, E0004, token_span(scanner), "unexpected byte 0x%02x", (unsigned char)*text);
        return;
    }
    struct diag *diag = diag_error(context, E0004, token_span(scanner), "unexpected character `%.*s`", (int)size, text);
    static const struct {
        char character;
        const char *help;
    } known[] = {{'&', "conditions are joined by `and`; instances that are meant to overlap by `||`"},
                 {'|', "instances that are meant to overlap are joined by `||`"},
                 {'!', "this is written `not` here"},
                 {'%', "this is written `mod` here"},
                 {'#', "comments begin with `//`"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].character == *text)
            diag_help(context, diag, "%s", known[i].help);
}
