// Tables of plain structs, as described by `.def` files (records.h): storage, the string pool, and the check that every
// reference stays inside its table. The text form is in records_text.c. Used by the compiler and by the runtime, so it
// depends on neither.
#include "records.h"

#include <stdlib.h>
#include <string.h>

static uint32_t hash_text(const char *text, size_t length)
{
    uint32_t hash = 2166136261u; // FNV-1a
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (uint8_t)text[i]) * 16777619u;
    return hash ^ (hash >> 15);
}

static void insert_bucket(uint32_t *buckets, uint32_t bucket_count, uint32_t hash, str_id id)
{
    uint32_t slot = hash & (bucket_count - 1);
    while (buckets[slot])
        slot = (slot + 1) & (bucket_count - 1);
    buckets[slot] = id + 1;
}

static bool grow_buckets(struct string_pool *pool)
{
    if (pool->buckets && pool->string_count * 2 < pool->bucket_count)
        return true;
    uint32_t count = pool->buckets ? pool->bucket_count * 2 : 64;
    uint32_t *buckets = calloc(count, sizeof *buckets);
    if (!buckets)
        return false;
    // Walking the bytes, not the old buckets, also rebuilds the index of a pool that was read from a file.
    uint32_t strings = 0;
    for (uint32_t at = 0; at < pool->size; strings++) {
        size_t length = strnlen(pool->bytes + at, pool->size - at);
        insert_bucket(buckets, count, hash_text(pool->bytes + at, length), at);
        at += (uint32_t)length + 1;
        if ((strings + 1) * 2 >= count && at < pool->size) { // too small after all: start again
            free(buckets);
            count *= 2;
            buckets = calloc(count, sizeof *buckets);
            if (!buckets)
                return false;
            at = 0;
            strings = UINT32_MAX;
        }
    }
    free(pool->buckets);
    pool->buckets = buckets;
    pool->bucket_count = count;
    pool->string_count = strings;
    return true;
}

static bool grow_bytes(struct string_pool *pool, size_t needed)
{
    if (needed <= pool->capacity)
        return true;
    size_t capacity = pool->capacity ? pool->capacity : 256;
    while (capacity < needed)
        capacity *= 2;
    if (capacity > UINT32_MAX)
        return false;
    char *bytes = realloc(pool->bytes, capacity);
    if (!bytes)
        return false;
    pool->bytes = bytes;
    pool->capacity = (uint32_t)capacity;
    return true;
}

/// Offset 0 is the empty text in every pool.
static bool start_pool(struct string_pool *pool)
{
    if (pool->size)
        return true;
    if (!grow_bytes(pool, 1))
        return false;
    pool->bytes[0] = 0;
    pool->size = 1;
    return true;
}

str_id string_pool_add(struct string_pool *pool, const char *text, size_t length)
{
    length = length ? strnlen(text, length) : 0;
    if (!length)
        return start_pool(pool) ? 0 : NONE;
    if (!start_pool(pool) || !grow_buckets(pool))
        return NONE;
    uint32_t hash = hash_text(text, length);
    uint32_t slot = hash & (pool->bucket_count - 1);
    for (; pool->buckets[slot]; slot = (slot + 1) & (pool->bucket_count - 1)) {
        str_id id = pool->buckets[slot] - 1;
        if (pool->size - id > length && !memcmp(pool->bytes + id, text, length) && !pool->bytes[id + length])
            return id;
    }
    // `text` may point into the pool itself: remember where before the bytes move.
    bool inside = text >= pool->bytes && text < pool->bytes + pool->size;
    size_t offset = inside ? (size_t)(text - pool->bytes) : 0;
    if (!grow_bytes(pool, (size_t)pool->size + length + 1))
        return NONE;
    if (inside)
        text = pool->bytes + offset;
    str_id id = pool->size;
    memcpy(pool->bytes + id, text, length);
    pool->bytes[id + length] = 0;
    pool->size += (uint32_t)length + 1;
    pool->buckets[slot] = id + 1;
    pool->string_count++;
    return id;
}

void string_pool_free(struct string_pool *pool)
{
    free(pool->bytes);
    free(pool->buckets);
    *pool = (struct string_pool){0};
}

void ir_init(struct ir *ir, const struct ir_type *type)
{
    *ir = (struct ir){.type = type};
    if (!start_pool(&ir->strings))
        ir->out_of_memory = true;
}

void ir_free(struct ir *ir)
{
    for (size_t i = 0; i < sizeof ir->tables / sizeof *ir->tables; i++)
        free(ir->tables[i].rows);
    string_pool_free(&ir->strings);
    *ir = (struct ir){.type = ir->type};
}

static void fail_memory(struct ir *ir)
{
    ir->out_of_memory = true;
    if (ir->no_memory)
        ir->no_memory(ir->user);
}

static bool grow_table(struct ir *ir, struct table *table, uint32_t row_size)
{
    if (table->count < table->capacity)
        return true;
    size_t capacity = table->capacity ? (size_t)table->capacity * 2 : 16;
    void *rows = capacity < NONE ? realloc(table->rows, capacity * row_size) : NULL;
    if (!rows) {
        fail_memory(ir);
        return false;
    }
    table->rows = rows;
    table->capacity = (uint32_t)capacity;
    return true;
}

uint32_t ir_add(struct ir *ir, uint32_t number)
{
    const struct table_type *type = ir->type->tables[number]();
    struct table *table = &ir->tables[number];
    if (!grow_table(ir, table, type->row_size))
        return NONE;
    char *row = (char *)table->rows + (size_t)table->count * type->row_size;
    memset(row, 0, type->row_size);
    for (uint32_t i = 0; i < type->field_count; i++)
        if (type->fields[i].type == FIELD_REF)
            memset(row + type->fields[i].offset, 0xff, sizeof(uint32_t));
    return table->count++;
}

str_id ir_strn(struct ir *ir, const char *text, size_t length)
{
    str_id id = string_pool_add(&ir->strings, text, length);
    if (id != NONE)
        return id;
    fail_memory(ir);
    return 0;
}

str_id ir_str(struct ir *ir, const char *text)
{
    return ir_strn(ir, text, strlen(text));
}

static bool check_text(const struct string_pool *pool, str_id id)
{
    if (id == 0)
        return true;
    return id < pool->size && pool->bytes[id - 1] == 0;
}

/// What is wrong with one field of one row; NULL when nothing is.
static const char *field_problem(const struct ir *ir, const struct field *field, const char *row)
{
    uint32_t value[2] = {0};
    bool rows = field->type == FIELD_ROWS;
    if (field->type == FIELD_I64 || field->type == FIELD_F64 || field->type == FIELD_I64S)
        return NULL;
    memcpy(value, row + field->offset, rows ? sizeof value : sizeof *value);
    switch (field->type) {
    case FIELD_STR:
        return check_text(&ir->strings, value[0]) ? NULL : "no text starts there";
    case FIELD_ENUM:
        return value[0] < field->word_count ? NULL : "not a word";
    case FIELD_BOOL:
        return value[0] <= 1 ? NULL : "neither 0 nor 1";
    case FIELD_REF:
        return value[0] == NONE || value[0] < ir->tables[field->target].count ? NULL : "row number out of range";
    case FIELD_ROWS:
        return (uint64_t)value[0] + value[1] <= ir->tables[field->target].count ? NULL : "rows out of range";
    default:
        return NULL;
    }
}

bool ir_check(const struct ir *ir, char *error, size_t size)
{
    const struct string_pool *pool = &ir->strings;
    if (pool->size && (pool->bytes[0] || pool->bytes[pool->size - 1])) {
        snprintf(error, size, "string pool: not terminated");
        return false;
    }
    for (uint32_t t = 0; t < ir->type->table_count; t++) {
        const struct table_type *type = ir->type->tables[t]();
        for (uint32_t r = 0; r < ir->tables[t].count; r++) {
            const char *row = (const char *)ir->tables[t].rows + (size_t)r * type->row_size;
            for (uint32_t f = 0; f < type->field_count; f++) {
                const char *problem = field_problem(ir, &type->fields[f], row);
                if (!problem)
                    continue;
                snprintf(error, size, "%s %u: %s: %s", type->name, r, type->fields[f].name, problem);
                return false;
            }
        }
    }
    return true;
}
