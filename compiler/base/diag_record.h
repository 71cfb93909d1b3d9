// A queued diagnostic, shared by the files that queue it (diag.c) and print it (diag_text.c, diag_json.c).
#ifndef MOECC_DIAG_RECORD_H
#define MOECC_DIAG_RECORD_H

#include "compiler/base/diag.h"

enum { DIAG_ERRORS_SHOWN = 20 };

struct diag_place {
    struct diag_place *next;
    struct span span;
    const char *text; // a label, a note or the replacement of a fix; labels may lack one
    bool primary;
};

struct diag {
    struct diag *next;
    enum diag_code code;
    enum diag_level level;
    const char *message;
    struct diag_place primary; // its text is the label under the carets
    struct diag_place *labels, *notes, *fixes;
    const char *help;
};

/// The source file of a place, or NULL for a diagnostic about no place.
const struct source_file *diag_file(const struct context *context, struct span span);
const char *diag_level_name(enum diag_level level);

void diag_print_text(const struct context *context, const struct diag *diag, bool color, FILE *out);
void diag_print_json(const struct context *context, const struct diag *diag, FILE *out);

#endif
