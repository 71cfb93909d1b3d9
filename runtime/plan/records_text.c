// The text form of an intermediate representation: ir_print writes it, ir_parse reads it back to equal bytes. One line a
// row, every field in the order of its description, so that two representations can be compared with `diff`.
#include "records.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void print_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c == '\n')
            fputs("\\n", out);
        else if (c < 0x20 || c == 0x7f)
            fprintf(out, "\\x%02x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void print_double(FILE *out, double value)
{
    if (isnan(value))
        fputs("nan", out);
    else if (isinf(value))
        fputs(value < 0 ? "-inf" : "inf", out);
    else
        fprintf(out, "%.17g", value);
}

static void print_field(const struct ir *ir, const struct field *field, const char *row, FILE *out)
{
    const char *at = row + field->offset;
    uint32_t word = 0;
    int64_t integer = 0;
    double real = 0;
    struct rows rows;
    switch (field->type) {
    case FIELD_STR:
        memcpy(&word, at, sizeof word);
        print_text(out, ir_text(ir, word));
        break;
    case FIELD_ENUM:
        memcpy(&word, at, sizeof word);
        if (word < field->word_count)
            fputs(field->words[word], out);
        else
            fprintf(out, "%u", word);
        break;
    case FIELD_BOOL:
    case FIELD_U32:
        memcpy(&word, at, sizeof word);
        fprintf(out, "%u", word);
        break;
    case FIELD_REF:
        memcpy(&word, at, sizeof word);
        if (word == NONE)
            fputc('-', out);
        else
            fprintf(out, "%u", word);
        break;
    case FIELD_I64:
        memcpy(&integer, at, sizeof integer);
        fprintf(out, "%" PRId64, integer);
        break;
    case FIELD_F64:
        memcpy(&real, at, sizeof real);
        print_double(out, real);
        break;
    case FIELD_I64S:
        for (uint32_t i = 0; i < field->length; i++) {
            memcpy(&integer, at + i * sizeof integer, sizeof integer);
            fprintf(out, "%c%" PRId64, i ? ',' : '[', integer);
        }
        fputc(']', out);
        break;
    case FIELD_ROWS:
        memcpy(&rows, at, sizeof rows);
        fprintf(out, "%u+%u", rows.first, rows.count);
        break;
    }
}

void ir_print(const struct ir *ir, FILE *out)
{
    fprintf(out, "ir %s\n", ir->type->name);
    for (uint32_t t = 0; t < ir->type->table_count; t++) {
        const struct table_type *type = ir->type->tables[t]();
        for (uint32_t r = 0; r < ir->tables[t].count; r++) {
            const char *row = (const char *)ir->tables[t].rows + (size_t)r * type->row_size;
            fprintf(out, "%s %u", type->name, r);
            for (uint32_t f = 0; f < type->field_count; f++) {
                fprintf(out, " %s=", type->fields[f].name);
                print_field(ir, &type->fields[f], row, out);
            }
            fputc('\n', out);
        }
    }
}

struct reader {
    struct ir *ir;
    const char *at;
    uint32_t line;
    char *error;
    size_t size;
};

__attribute__((format(printf, 2, 3))) static bool bad(struct reader *reader, const char *format, ...)
{
    char message[160];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    snprintf(reader->error, reader->size, "line %u: %s", reader->line, message);
    return false;
}

static bool skip(struct reader *reader, const char *text)
{
    size_t length = strlen(text);
    if (strncmp(reader->at, text, length) != 0)
        return false;
    reader->at += length;
    return true;
}

/// The word at the reader: letters, digits, underscores.
static size_t word_length(const char *at)
{
    return strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
}

static bool read_u32(struct reader *reader, uint32_t *value)
{
    uint64_t number = 0;
    const char *at = reader->at;
    for (; *at >= '0' && *at <= '9'; at++) {
        number = number * 10 + (uint64_t)(*at - '0');
        if (number > UINT32_MAX)
            return false;
    }
    if (at == reader->at)
        return false;
    reader->at = at;
    *value = (uint32_t)number;
    return true;
}

static bool read_i64(struct reader *reader, int64_t *value)
{
    const char *digits = reader->at + (*reader->at == '-');
    if (*digits < '0' || *digits > '9')
        return false;
    char *end;
    errno = 0;
    long long number = strtoll(reader->at, &end, 10);
    if (errno)
        return false;
    reader->at = end;
    *value = number;
    return true;
}

static bool read_f64(struct reader *reader, double *value)
{
    static const struct {
        const char *text;
        double value;
    } special[] = {{"nan", NAN}, {"inf", INFINITY}, {"-inf", -INFINITY}};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (skip(reader, special[i].text)) {
            *value = special[i].value;
            return true;
        }
    size_t length = strspn(reader->at, "+-.0123456789e");
    char text[40], *end;
    if (!length || length >= sizeof text)
        return false;
    memcpy(text, reader->at, length);
    text[length] = 0;
    *value = strtod(text, &end);
    if (end != text + length || isinf(*value))
        return false;
    reader->at += length;
    return true;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/// One character of a quoted text into *out; false at the closing quote, the line's end or a bad escape.
static bool read_character(const char **at, char *out)
{
    char c = **at;
    if (!c || c == '\n' || c == '"')
        return false;
    if (c != '\\') {
        *out = c;
        *at += 1;
        return true;
    }
    char escape = (*at)[1];
    if (escape == 'x') {
        int high = hex_digit((*at)[2]);
        int low = high < 0 ? -1 : hex_digit((*at)[3]);
        if (low < 0 || (!high && !low))
            return false;
        *out = (char)(high * 16 + low);
        *at += 4;
        return true;
    }
    if (escape != 'n' && escape != '"' && escape != '\\')
        return false;
    *out = escape == 'n' ? '\n' : escape;
    *at += 2;
    return true;
}

static bool read_text(struct reader *reader, str_id *value)
{
    if (!skip(reader, "\""))
        return false;
    size_t longest = strcspn(reader->at, "\n");
    char *text = malloc(longest + 1);
    if (!text) {
        reader->ir->out_of_memory = true;
        return false;
    }
    size_t length = 0;
    while (read_character(&reader->at, &text[length]))
        length++;
    *value = ir_strn(reader->ir, text, length);
    free(text);
    return skip(reader, "\"") && !reader->ir->out_of_memory;
}

static bool read_word(struct reader *reader, const struct field *field, uint32_t *value)
{
    size_t length = word_length(reader->at);
    for (uint32_t i = 0; i < field->word_count; i++)
        if (strlen(field->words[i]) == length && !strncmp(reader->at, field->words[i], length)) {
            reader->at += length;
            *value = i;
            return true;
        }
    return read_u32(reader, value);
}

static bool read_i64s(struct reader *reader, const struct field *field, char *at)
{
    for (uint32_t i = 0; i < field->length; i++) {
        int64_t value;
        if (!skip(reader, i ? "," : "[") || !read_i64(reader, &value))
            return false;
        memcpy(at + i * sizeof value, &value, sizeof value);
    }
    return skip(reader, "]");
}

static bool read_field(struct reader *reader, const struct field *field, char *at)
{
    uint32_t word = NONE;
    int64_t integer;
    double real;
    struct rows rows;
    bool ok = false;
    switch (field->type) {
    case FIELD_STR:
        ok = read_text(reader, &word);
        break;
    case FIELD_ENUM:
        ok = read_word(reader, field, &word);
        break;
    case FIELD_BOOL:
    case FIELD_U32:
        ok = read_u32(reader, &word);
        break;
    case FIELD_REF:
        ok = skip(reader, "-") || read_u32(reader, &word);
        break;
    case FIELD_I64:
        if ((ok = read_i64(reader, &integer)))
            memcpy(at, &integer, sizeof integer);
        return ok;
    case FIELD_F64:
        if ((ok = read_f64(reader, &real)))
            memcpy(at, &real, sizeof real);
        return ok;
    case FIELD_I64S:
        return read_i64s(reader, field, at);
    case FIELD_ROWS:
        if ((ok = read_u32(reader, &rows.first) && skip(reader, "+") && read_u32(reader, &rows.count)))
            memcpy(at, &rows, sizeof rows);
        return ok;
    }
    if (ok)
        memcpy(at, &word, sizeof word);
    return ok;
}

static bool read_row(struct reader *reader)
{
    struct ir *ir = reader->ir;
    size_t length = word_length(reader->at);
    const struct table_type *type = NULL;
    uint32_t table = 0, number = 0;
    for (; table < ir->type->table_count; table++) {
        type = ir->type->tables[table]();
        if (strlen(type->name) == length && !strncmp(reader->at, type->name, length))
            break;
    }
    if (table == ir->type->table_count)
        return bad(reader, "no record of %s has this name", ir->type->name);
    reader->at += length;
    if (!skip(reader, " ") || !read_u32(reader, &number) || number != ir->tables[table].count)
        return bad(reader, "%s: expected row number %u", type->name, ir->tables[table].count);
    if (ir_add(ir, table) == NONE)
        return bad(reader, "out of memory");
    char *row = (char *)ir->tables[table].rows + (size_t)number * type->row_size;
    for (uint32_t f = 0; f < type->field_count; f++) {
        const struct field *field = &type->fields[f];
        if (!skip(reader, " ") || !skip(reader, field->name) || !skip(reader, "="))
            return bad(reader, "%s: expected field %s", type->name, field->name);
        if (!read_field(reader, field, row + field->offset))
            return bad(reader, "%s: bad value of field %s", type->name, field->name);
    }
    if (*reader->at && !skip(reader, "\n"))
        return bad(reader, "%s: text after the last field", type->name);
    return true;
}

bool ir_parse(struct ir *ir, const struct ir_type *type, const char *text, char *error, size_t size)
{
    ir_init(ir, type);
    struct reader reader = {.ir = ir, .at = text, .line = 1, .error = error, .size = size};
    if (ir->out_of_memory)
        return bad(&reader, "out of memory");
    if (!skip(&reader, "ir ") || !skip(&reader, type->name) || (*reader.at && !skip(&reader, "\n")))
        return bad(&reader, "expected `ir %s`", type->name);
    while (*reader.at) {
        reader.line++;
        if (!read_row(&reader))
            return false;
    }
    if (ir->out_of_memory)
        return bad(&reader, "out of memory");
    return true;
}
