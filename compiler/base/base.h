// What every stage of the compiler shares: the compilation context, source files, memory.
// One context per compilation; one arena in it; nothing is freed singly. Out of memory ends the compilation through
// context->fatal (exit code 3), so callers need not check.
#ifndef MOECC_BASE_H
#define MOECC_BASE_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "runtime/plan/records.h"

struct arena;

/// A place in a source: byte offsets, end exclusive. file: number in context->files.
struct span {
    uint32_t file, begin, end;
};

struct source_file {
    const char *path;           // as given or as imported, for messages
    const char *text;           // NUL-terminated
    uint32_t size;
    const uint32_t *line_starts;
    uint32_t line_count;
    const char *module;         // "std.ops" for the standard library, else NULL
};

enum exit_code { EXIT_FINE = 0, EXIT_INPUT = 1, EXIT_USAGE = 2, EXIT_SYSTEM = 3, EXIT_BUDGET = 4, EXIT_BUG = 70 };

struct diag;
enum diag_format { DIAG_TEXT, DIAG_SHORT, DIAG_JSON };

struct context {
    struct arena *arena;
    struct string_pool strings;         // every name of the compilation: str_id, equal ids = equal names
    struct source_file *files;
    uint32_t file_count, file_capacity;
    struct owned *owned;                // context_slot
    struct diag *diags;                 // queued, in order of creation; diag.h
    uint32_t error_count, warning_count;
    jmp_buf fatal;                      // longjmp(fatal, EXIT_SYSTEM or EXIT_BUG) after fatal_message is set
    char fatal_message[256];
};

void context_init(struct context *context);
void context_free(struct context *context);

/// Zeroed, 16-byte aligned, lives as long as the context.
void *context_alloc(struct context *context, size_t bytes);
/// Grows an arena array of elements by doubling: array = context_grow(c, array, &capacity, needed, sizeof *array).
void *context_grow(struct context *context, void *array, uint32_t *capacity, uint32_t needed, size_t element);
/// A place for what is not in the arena; what it holds at the end (not NULL) is released with the context, also when the
/// compilation left through `fatal`.
void **context_slot(struct context *context, void (*release)(void *held));
/// An empty representation that is freed with the context; ir_free may come earlier.
struct ir *context_ir(struct context *context);
/// ir_init for a representation that takes the context's way out when memory is.
void context_ir_init(struct context *context, struct ir *ir, const struct ir_type *type);
str_id intern(struct context *context, const char *text);
str_id intern_n(struct context *context, const char *text, size_t length);
const char *text_of(const struct context *context, str_id id);
const char *context_printf(struct context *context, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void fatal(struct context *context, enum exit_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/// A whole file, a NUL behind it, that lives as long as the context; a pipe is read to its end. NULL with errno: EFBIG where it
/// is larger than any source.
const char *read_whole_file(struct context *context, const char *path, size_t *size);
/// Adds a file from memory; text is copied. Returns its number.
uint32_t add_source(struct context *context, const char *path, const char *text, size_t size, const char *module);
/// 1-based line and column (in characters) of an offset; a byte that is no part of one counts as one.
void line_column(const struct source_file *file, uint32_t offset, uint32_t *line, uint32_t *column);

/// Bytes of the UTF-8 character at `text`, of which `available` bytes may be read; 0 when it is not one.
uint32_t utf8_length(const char *text, size_t available);

/// Embedded files (the standard library): path as "std/ops.moe"; NULL when there is none.
const char *embedded_file(const char *path, size_t *size);

#endif
