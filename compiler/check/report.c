// Places in the source and the messages that many checks share: unknown names with a suggestion, names defined twice,
// features that are not built yet.
#include "compiler/check/check.h"

#include <string.h>

void names_add(struct checker *checker, struct names *names, const char *name)
{
    names->items =
        context_grow(checker->context, names->items, &names->capacity, names->count + 1, sizeof *names->items);
    names->items[names->count++] = name;
}

const char *names_join(struct checker *checker, const struct names *names)
{
    const char *text = "";
    for (uint32_t i = 0; i < names->count; i++)
        text = context_printf(checker->context, "%s%s%s", text, i ? ", " : "", names->items[i]);
    return text;
}

const char *source_text(const struct checker *checker, struct span span)
{
    const struct source_file *file = &checker->context->files[span.file];
    if (span.begin > file->size || span.end > file->size || span.end < span.begin)
        return "";
    return context_printf(checker->context, "%.*s", (int)(span.end - span.begin), file->text + span.begin);
}

enum { NAMES_LISTED = 16 }; // where no name is similar

struct span place_of(const struct checker *checker, node_id node)
{
    return node_of(checker, node)->span;
}

struct span name_place(const struct checker *checker, node_id node)
{
    struct span span = node_of(checker, node)->name_span;
    return span.end > span.begin ? span : place_of(checker, node);
}

struct span statement_place(const struct checker *checker, node_id node)
{
    struct span span = place_of(checker, node);
    const char *text = checker->context->files[span.file].text;
    while (span.end > span.begin && strchr("; \n\t\r", text[span.end - 1]))
        span.end--;
    return span;
}

void suggest(struct checker *checker, struct diag *diag, const char *what, const char *name, struct span span,
             const struct names *candidates)
{
    const char *nearest = nearest_name(name, candidates->items, candidates->count);
    if (!nearest)
        return;
    diag_help(checker->context, diag, "%s %s with a similar name exists", article(what), what);
    fix_in_column(checker, diag, span, nearest);
}

void report_unknown(struct checker *checker, const char *what, const char *name, struct span span,
                    const struct names *candidates)
{
    struct diag *diag = diag_error(checker->context, E0101, span, "unknown %s `%s`", what, name);
    diag_label(checker->context, diag, "not defined here");
    if (!nearest_name(name, candidates->items, candidates->count) && candidates->count && candidates->count <= NAMES_LISTED)
        diag_note(checker->context, diag, candidates->count == 1 ? "the only one is %s" : "it is one of %s", names_join(checker, candidates));
    suggest(checker, diag, what, name, span, candidates);
}

void report_unknown_of(struct checker *checker, const char *what, const char *name, struct span span,
                       const struct names *all)
{
    struct diag *diag = diag_error(checker->context, E0101, span, "unknown %s `%s`", what, name);
    diag_label(checker->context, diag, "not defined here");
    diag_note(checker->context, diag, "it is one of %s", names_join(checker, all));
    suggest(checker, diag, what, name, span, all);
}

void report_twice(struct checker *checker, const char *what, const char *name, struct span again, struct span first)
{
    struct diag *diag = diag_error(checker->context, E0102, again, "%s `%s` is defined twice", what, name);
    diag_label(checker->context, diag, "again here");
    diag_label_at(checker->context, diag, first, "first here");
}

void report_unbuilt(struct checker *checker, struct span span, const char *what)
{
    struct diag *diag = diag_error(checker->context, E0901, span, "%s", what);
    diag_label(checker->context, diag, "not built yet");
}

void fix_in_column(struct checker *checker, struct diag *diag, struct span span, const char *text)
{
    const struct source_file *file = &checker->context->files[span.file];
    size_t old = span.end - span.begin, new = strlen(text);
    uint32_t grown = new > old ? (uint32_t)(new - old) : 0;
    uint32_t at = span.end;
    if (at < file->size && strchr(",;:", file->text[at]))
        at++;
    uint32_t blanks = 0;
    while (at + blanks < file->size && file->text[at + blanks] == ' ')
        blanks++;
    if (grown && blanks > grown) {
        text = context_printf(checker->context, "%s%.*s", text, (int)(at - span.end), file->text + span.end);
        span.end = at + grown;
    }
    diag_fix(checker->context, diag, span, text);
}
