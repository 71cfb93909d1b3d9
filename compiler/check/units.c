// Kinds of constants: units are typed, and a value of another kind than the one expected is an error that says what was
// expected and, where it can, how to write it.
#include "compiler/check/check.h"

#include <string.h>

static const struct {
    const char *phrase, *unit, *example;
} kinds[constant_kind_count] = {
    [CONSTANT_INTEGER] = {"an integer", "no unit", "`4`"},
    [CONSTANT_FLOAT] = {"a number", "no unit", "`0.5`"},
    [CONSTANT_BOOL] = {"a truth value", "a truth value", "`true` or `false`"},
    [CONSTANT_STRING] = {"a string", "text", "`\"text\"`"},
    [CONSTANT_AMOUNT] = {"an amount", "bytes", "`64KB`"},
    [CONSTANT_RATE] = {"a rate", "bytes per second", "`50GB/s`"},
    [CONSTANT_TIME] = {"a time", "seconds", "`5us`"},
    [CONSTANT_FLOPS] = {"a compute rate", "FLOP per second", "`989TFLOPS`"},
    [CONSTANT_RATIO] = {"a ratio", "a factor", "`1.25x`"},
    [CONSTANT_SHARE] = {"a share", "percent", "`10%`"},
};

const char *kind_phrase(enum constant_kind kind)
{
    return kinds[kind].phrase;
}

enum {
    KIND_BYTES = CONSTANT_AMOUNT,
    KIND_BYTES_PER_S = CONSTANT_RATE,
    KIND_BITS_PER_S = CONSTANT_RATE,
    KIND_FLOPS = CONSTANT_FLOPS,
    KIND_TIME = CONSTANT_TIME,
    KIND_RATIO = CONSTANT_RATIO,
};

static const struct {
    const char *text;
    enum constant_kind kind;
    double factor;
} units[] = {
#define UNIT(text, kind, factor) {text, (enum constant_kind)KIND_##kind, factor},
#include "grammar/words.def"
};

/// Times are kept in ns: a whole factor, so that 8us is exactly 8000.
static double to_base(enum constant_kind kind, double number, double factor)
{
    return kind == CONSTANT_TIME ? number * (double)(int64_t)(factor * 1e9 + 0.5) : number * factor;
}

bool unit_constant(const char *unit, double number, struct constant *value)
{
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(unit, units[i].text) != 0)
            continue;
        *value = (struct constant){.kind = units[i].kind, .number = to_base(units[i].kind, number, units[i].factor)};
        return true;
    }
    return false;
}

static bool has_unit(enum constant_kind kind)
{
    return kind >= CONSTANT_AMOUNT;
}

static bool is_number(enum constant_kind kind)
{
    return kind != CONSTANT_BOOL && kind != CONSTANT_STRING;
}

static void help_unit(struct checker *checker, struct diag *diag, node_id expression, const struct constant *value,
                      enum constant_kind kind)
{
    struct span span = place_of(checker, expression);
    const char *source = source_text(checker, span);
    uint16_t node = node_of(checker, expression)->kind;
    size_t length = strlen(source);
    if (kind == CONSTANT_RATE && value->kind == CONSTANT_AMOUNT && node == NODE_QUANTITY) {
        diag_help(checker->context, diag, "add the time");
        fix_in_column(checker, diag, span, context_printf(checker->context, "%s/s", source));
    } else if (kind == CONSTANT_AMOUNT && value->kind == CONSTANT_RATE && length > 2 &&
               !strcmp(source + length - 2, "/s")) {
        diag_help(checker->context, diag, "leave out the time");
        diag_fix(checker->context, diag, span, context_printf(checker->context, "%.*s", (int)length - 2, source));
    } else if (kind == CONSTANT_RATIO && (node == NODE_INT || node == NODE_FLOAT)) {
        diag_help(checker->context, diag, "write it as a factor");
        fix_in_column(checker, diag, span, context_printf(checker->context, "%sx", source));
    } else if (has_unit(kind)) {
        diag_help(checker->context, diag, "write it as in %s", kinds[kind].example);
    }
}

bool expect_kind(struct checker *checker, const char *name, node_id expression, const struct constant *value,
                 enum constant_kind kind)
{
    if (value->kind == kind || (kind == CONSTANT_FLOAT && value->kind == CONSTANT_INTEGER))
        return true;
    struct span span = place_of(checker, expression);
    bool units = is_number(kind) && is_number(value->kind) && (has_unit(kind) || has_unit(value->kind));
    const char *found = kinds[value->kind].phrase;
    if (units && !has_unit(value->kind))
        found = "a plain number";
    const char *wanted = kinds[kind].phrase;
    const char *fact = name ? context_printf(checker->context, "`%s` is %s", name, wanted)
                            : context_printf(checker->context, "%s is expected here", wanted);
    struct diag *diag = diag_error(checker->context, units ? E0207 : E0201, span, "%s, but `%s` is %s", fact,
                                   source_text(checker, span), found);
    if (units)
        diag_label(checker->context, diag, "%s, expected %s", kinds[value->kind].unit, kinds[kind].unit);
    else
        diag_label(checker->context, diag, "expected %s, as in %s", wanted, kinds[kind].example);
    help_unit(checker, diag, expression, value, kind);
    return false;
}

bool evaluate_as(struct checker *checker, const struct scope *scope, const char *name, node_id expression,
                 enum constant_kind kind, struct constant *value)
{
    return evaluate(checker, scope, expression, value) && expect_kind(checker, name, expression, value, kind);
}

bool expect_range(struct checker *checker, const char *name, node_id expression, int64_t value, int64_t low,
                  int64_t high)
{
    if (value >= low && value <= high)
        return true;
    struct diag *diag = diag_error(checker->context, E0206, place_of(checker, expression), "`%s` is %lld, out of range",
                                   name, (long long)value);
    if (high == INT64_MAX)
        diag_label(checker->context, diag, "at least %lld", (long long)low);
    else
        diag_label(checker->context, diag, "between %lld and %lld", (long long)low, (long long)high);
    return false;
}
