// Included with RECORDS_DEF set to a `.def` file: defines its structs, and T_name, each table's number.
#define RECORD(record) struct record {
#define STR(name) str_id name;
#define ENUM(name, words) uint32_t name;
#define BOOL(name) uint32_t name;
#define U32(name) uint32_t name;
#define I64(name) int64_t name;
#define F64(name) double name;
#define I64S(name, length) int64_t name[length];
#define REF(name, record) uint32_t name;
#define ROWS(name, record) struct rows name;
#define END(record) } __attribute__((aligned(8)));
#include RECORDS_DEF
#include "records_undef.h"

enum {
#define RECORD(record) T_##record,
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
#include RECORDS_DEF
#include "records_undef.h"
};
#undef RECORDS_DEF
