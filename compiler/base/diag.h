// Diagnostics: queued records with several labelled places; diag.c is the only place that prints them.
// Messages: lower case, no full stop, the fact in the error, the remedy in `help`, code in backquotes.
#ifndef MOECC_DIAG_H
#define MOECC_DIAG_H

#include "base.h"

enum diag_code {
#define DIAG(code, title) code,
#include "codes.def"
#undef DIAG
    diag_code_count
};

enum diag_level { LEVEL_ERROR, LEVEL_WARNING };

/// Opens a record. `span` is the primary place; `...` the message. The record stays open for labels, notes, help until
/// the next one. A second error at the same primary place is dropped (one error per mistake), and so is a second one for
/// the same unknown name in a file: then a detached record is returned, so that callers need not check.
struct diag *diag_error(struct context *context, enum diag_code code, struct span span, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
struct diag *diag_warning(struct context *context, enum diag_code code, struct span span, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/// The text under the primary carets.
void diag_label(struct context *context, struct diag *diag, const char *format, ...) __attribute__((format(printf, 3, 4)));
/// A second place with its own text.
void diag_label_at(struct context *context, struct diag *diag, struct span span, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void diag_note(struct context *context, struct diag *diag, const char *format, ...) __attribute__((format(printf, 3, 4)));
/// A note that ends in "(path:line:col)".
void diag_note_at(struct context *context, struct diag *diag, struct span span, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/// Lines under the last note, as they are: a timeline, a table. The last newline is left out.
void diag_lines(struct context *context, struct diag *diag, const char *lines);
void diag_help(struct context *context, struct diag *diag, const char *format, ...) __attribute__((format(printf, 3, 4)));
/// A fix-it: replace `span` by `text` (insert where span is empty). Printed as a - and a + line.
void diag_fix(struct context *context, struct diag *diag, struct span span, const char *text);

/// Where the queue ends, to drop what is queued after it: for text that is parsed only to see whether it can be.
struct diag_mark {
    uint32_t errors, warnings;
    struct diag *last;
};
struct diag_mark diag_mark(const struct context *context);
void diag_forget(struct context *context, struct diag_mark mark);

/// How many errors of a code are queued.
uint32_t diag_errors_of(const struct context *context, enum diag_code code);

/// "an" before a vowel, else "a".
const char *article(const char *word);
/// "1 expert", "8 experts"
const char *counted(struct context *context, int64_t count, const char *noun);

/// "did you mean": the candidate nearest to `name` within a third of its length (at least 1, Damerau-Levenshtein), or NULL.
const char *nearest_name(const char *name, const char *const *candidates, size_t count);

/// Prints all queued records to `out`, sorted by file and place, at most 20 errors, then a line counting the rest.
void diag_print_all(const struct context *context, enum diag_format format, bool color, FILE *out);
/// "E0101" and its one-line title.
const char *diag_code_name(enum diag_code code);
const char *diag_code_title(enum diag_code code);

#endif
