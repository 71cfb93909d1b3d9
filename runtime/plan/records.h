// Records: every intermediate representation of moecc, and the plan itself, is a set of tables of plain fixed-size
// structs, described once in a `.def` file. From that description come the struct (records_structs.h), and its
// descriptor (records_describe.h), with which records.c prints a table as text, parses the text back, and checks that
// every reference stays inside its table. There are no pointers in a record: references are row numbers.
//
// A `.def` file reads:
//
//   RECORD(graph_task)                       one struct and one table
//     STR(name)                              text: an offset into the string pool of the representation
//     ENUM(role, task_role)                  a word of words.def
//     BOOL(external)
//     U32(n) I64(n) F64(x)
//     I64S(dims, 4)                          a fixed array
//     REF(stage, mod_stage)                  a row of another table, or NONE
//     ROWS(reads, graph_use)                 a run of rows of another table: .reads.first, .reads.count
//   END(graph_task)
#ifndef MOE_RECORDS_H
#define MOE_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define NONE UINT32_MAX

typedef uint32_t str_id; // offset of a NUL-terminated text in a string pool; 0 is the empty text

struct rows {
    uint32_t first, count;
};

enum field_type { FIELD_STR, FIELD_ENUM, FIELD_BOOL, FIELD_U32, FIELD_I64, FIELD_F64, FIELD_I64S, FIELD_REF, FIELD_ROWS };

struct field {
    const char *name;
    enum field_type type;
    uint32_t offset;
    uint32_t length;                // I64S: elements
    uint32_t target;                // REF and ROWS: the table's number in its ir_type
    const char *const *words;       // ENUM: names by value
    uint32_t word_count;
};

struct table_type {
    const char *name;
    uint32_t row_size;
    uint32_t field_count;
    const struct field *fields;
};

struct ir_type {
    const char *name;
    uint32_t table_count;
    const struct table_type *(*const *tables)(void); // one function a table: its description
};

struct table {
    void *rows;
    uint32_t count, capacity;
};

struct string_pool {
    char *bytes;
    uint32_t size, capacity;
    uint32_t *buckets;              // open addressing: offset + 1, 0 = empty
    uint32_t bucket_count, string_count;
};

/// One representation in memory: its tables in the order of its ir_type, and its strings.
struct ir {
    const struct ir_type *type;
    struct string_pool strings;
    struct table tables[32];
    bool out_of_memory;             // set by any call that could not grow; the contents stay valid but incomplete
    void (*no_memory)(void *user);  // called then, where set; need not return
    void *user;
};

/// The pool's copy of a text (up to its first NUL): equal texts, equal ids. NONE when memory is out. Pointers into the
/// pool become invalid when it grows.
str_id string_pool_add(struct string_pool *pool, const char *text, size_t length);
void string_pool_free(struct string_pool *pool);

void ir_init(struct ir *ir, const struct ir_type *type);
void ir_free(struct ir *ir);

/// Appends a zeroed row and returns its number (NONE when memory is out). Pointers into the table become invalid.
/// REF fields of the new row are NONE, not 0.
uint32_t ir_add(struct ir *ir, uint32_t table);

/// The pooled copy of a text; equal texts have equal ids.
str_id ir_str(struct ir *ir, const char *text);
str_id ir_strn(struct ir *ir, const char *text, size_t length);
static inline const char *ir_text(const struct ir *ir, str_id id)
{
    return ir->strings.bytes ? ir->strings.bytes + id : "";
}

/// Typed access: ROW(ir, graph_task, 3)->name. COUNT(ir, graph_task).
#define ROW(ir, record, number) (&((struct record *)(ir)->tables[T_##record].rows)[number])
#define COUNT(ir, record) ((ir)->tables[T_##record].count)
#define ADD(ir, record) ir_add((ir), T_##record)

/// Text form: a header line `ir NAME`, then one line a row: `record number field=value ...`. Parses back to equal bytes.
void ir_print(const struct ir *ir, FILE *out);
/// Parses what ir_print wrote. Returns false with a message ("line 12: ...") in `error` (size bytes) on bad text; ir_free
/// is the caller's in either case.
bool ir_parse(struct ir *ir, const struct ir_type *type, const char *text, char *error, size_t size);
/// Every REF, ROWS, ENUM and STR inside its range. Returns false with a message naming table, row and field.
bool ir_check(const struct ir *ir, char *error, size_t size);

#endif
