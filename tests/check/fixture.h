// A program and what the checker makes of it, for tests: files in a folder of the suite's own, the good program with a line
// replaced, modules and diagnostics as text.
#ifndef MOE_TEST_CHECK_FIXTURE_H
#define MOE_TEST_CHECK_FIXTURE_H

#include "compiler/check/module.h"
#include "compiler/driver.h"
#include "tests/printed.h"

struct checked {
    struct context context;
    struct program_text program;
    struct ir module;
    uint32_t pipeline;
    bool loaded, fine;
};

struct bad_line {
    int line;
    const char *text;
    const char *code;
};

extern const struct check_options no_options;

/// Checks a file. `checked` is filled, whatever comes out; free with release().
void check_path(struct checked *checked, const char *path, const struct check_options *options);
void release(struct checked *checked);

/// All diagnostics as text; free with free().
char *errors_of(const struct checked *checked, enum diag_format format);
void expect_fine(const struct checked *checked, const char *what);
/// Fails the test unless it was refused with `part` in its diagnostics; releases it.
void expect_error(struct checked *checked, const char *part);
const struct mod_pipeline *pipeline_of(const struct checked *checked);

extern char check_folder[64];
/// Set up and clean up of the suite's folder; a file in it, its path valid until the next call.
int make_folder(void);
int remove_folder(void);
const char *write_file(const char *name, const char *text);

/// The good program with one line replaced, into `text`; the place of the `@` in it (0, 0 without).
void make_program(int line, const char *replacement, char *text, size_t size, int *at_line, int *at_column);
/// The same, checked. Line 0: as it is.
void check_line(struct checked *checked, int line, const char *replacement, const struct check_options *options);

#endif
