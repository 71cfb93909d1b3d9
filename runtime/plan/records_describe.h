// Included once, in one C file, with RECORDS_DEF set to a `.def` file and RECORDS_TYPE to the name of the
// `const struct ir_type` to define. The structs must have been defined before (records_structs.h).
// Each record becomes a function, so that its fields can name the struct they lie in (`self`).
#define RECORD(record)                                                                                                 \
    static const struct table_type *record##_describe(void)                                                            \
    {                                                                                                                  \
        typedef struct record self;                                                                                    \
        static const struct field fields[] = {
#define STR(n) {.name = #n, .type = FIELD_STR, .offset = (uint32_t)offsetof(self, n)},
#define ENUM(n, w)                                                                                                     \
    {.name = #n, .type = FIELD_ENUM, .offset = (uint32_t)offsetof(self, n), .words = w##_words, .word_count = w##_words_count},
#define BOOL(n) {.name = #n, .type = FIELD_BOOL, .offset = (uint32_t)offsetof(self, n)},
#define U32(n) {.name = #n, .type = FIELD_U32, .offset = (uint32_t)offsetof(self, n)},
#define I64(n) {.name = #n, .type = FIELD_I64, .offset = (uint32_t)offsetof(self, n)},
#define F64(n) {.name = #n, .type = FIELD_F64, .offset = (uint32_t)offsetof(self, n)},
#define I64S(n, l) {.name = #n, .type = FIELD_I64S, .offset = (uint32_t)offsetof(self, n), .length = l},
#define REF(n, r) {.name = #n, .type = FIELD_REF, .offset = (uint32_t)offsetof(self, n), .target = T_##r},
#define ROWS(n, r) {.name = #n, .type = FIELD_ROWS, .offset = (uint32_t)offsetof(self, n), .target = T_##r},
#define END(record)                                                                                                    \
        };                                                                                                             \
        static const struct table_type type = {.name = #record,                                                        \
                                               .row_size = sizeof(self),                                               \
                                               .field_count = sizeof fields / sizeof *fields,                          \
                                               .fields = fields};                                                      \
        return &type;                                                                                                  \
    }
#include RECORDS_DEF
#include "records_undef.h"

#define RECORD(record) record##_describe,
#define STR(name)
#define ENUM(name, words)
#define BOOL(name)
#define U32(name)
#define I64(name)
#define F64(name)
#define I64S(name, length)
#define REF(name, record)
#define ROWS(name, record)
#define END(record)
static const struct table_type *(*const RECORDS_TABLES[])(void) = {
#include RECORDS_DEF
};
#include "records_undef.h"

const struct ir_type RECORDS_TYPE = {.name = RECORDS_NAME,
                                     .table_count = sizeof RECORDS_TABLES / sizeof *RECORDS_TABLES,
                                     .tables = RECORDS_TABLES};
#undef RECORDS_DEF
