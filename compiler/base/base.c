// The compilation context: an arena that everything lives in, the table of names, the source files, and the way out when
// the system fails (context->fatal).
#include "compiler/base/base.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_CHUNK = 64 * 1024, ARENA_ALIGN = 16 };

struct chunk {
    struct chunk *next;
    size_t size, used;
    _Alignas(ARENA_ALIGN) char bytes[];
};

struct arena {
    struct chunk *chunks; // the newest first; only it has room
};

static void arena_free(struct arena *arena)
{
    if (!arena)
        return;
    for (struct chunk *chunk = arena->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(arena);
}

static void *arena_alloc(struct arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX - ARENA_CHUNK)
        return NULL;
    size_t size = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    struct chunk *chunk = arena->chunks;
    if (!chunk || chunk->size - chunk->used < size) {
        size_t capacity = size > ARENA_CHUNK ? size : ARENA_CHUNK;
        chunk = calloc(1, sizeof *chunk + capacity);
        if (!chunk)
            return NULL;
        chunk->size = capacity;
        chunk->next = arena->chunks;
        arena->chunks = chunk;
    }
    void *result = chunk->bytes + chunk->used;
    chunk->used += size;
    return result;
}

void context_init(struct context *context)
{
    *context = (struct context){.arena = calloc(1, sizeof(struct arena))};
}

struct owned {
    struct owned *next;
    void (*release)(void *held);
    void *held;
};

void **context_slot(struct context *context, void (*release)(void *held))
{
    struct owned *owned = context_alloc(context, sizeof *owned);
    *owned = (struct owned){context->owned, release, NULL};
    context->owned = owned;
    return &owned->held;
}

static void release_ir(void *ir)
{
    ir_free(ir);
}

struct ir *context_ir(struct context *context)
{
    void **slot = context_slot(context, release_ir);
    struct ir *ir = context_alloc(context, sizeof *ir);
    return *slot = ir;
}

static void leave_without_memory(void *context)
{
    fatal(context, EXIT_SYSTEM, "out of memory");
}

void context_ir_init(struct context *context, struct ir *ir, const struct ir_type *type)
{
    ir_init(ir, type);
    ir->no_memory = leave_without_memory;
    ir->user = context;
    if (ir->out_of_memory)
        leave_without_memory(context);
}

void context_free(struct context *context)
{
    for (struct owned *owned = context->owned; owned; owned = owned->next)
        if (owned->held)
            owned->release(owned->held);
    context->owned = NULL;
    context->strings.bytes = NULL; // in the arena
    string_pool_free(&context->strings);
    arena_free(context->arena);
    context->arena = NULL;
}

_Noreturn void fatal(struct context *context, enum exit_code code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(context->fatal_message, sizeof context->fatal_message, format, args);
    va_end(args);
    longjmp(context->fatal, (int)code);
}

void *context_alloc(struct context *context, size_t bytes)
{
    void *result = context->arena ? arena_alloc(context->arena, bytes) : NULL;
    if (!result)
        fatal(context, EXIT_SYSTEM, "out of memory (%zu bytes)", bytes);
    return result;
}

void *context_grow(struct context *context, void *array, uint32_t *capacity, uint32_t needed, size_t element)
{
    if (needed <= *capacity)
        return array;
    uint64_t grown = *capacity ? *capacity : 8;
    while (grown < needed)
        grown *= 2;
    if (grown > UINT32_MAX)
        fatal(context, EXIT_SYSTEM, "more than 2^32 elements in one table");
    void *result = context_alloc(context, (size_t)grown * element);
    if (*capacity)
        memcpy(result, array, *capacity * element);
    *capacity = (uint32_t)grown;
    return result;
}

/// The pool's bytes live in the arena and outgrown blocks stay, so that a text_of() is valid as long as the context.
static void reserve_text(struct context *context, size_t length)
{
    struct string_pool *pool = &context->strings;
    size_t needed = (size_t)pool->size + length + 2;
    if (needed <= pool->capacity)
        return;
    size_t capacity = pool->capacity ? pool->capacity : 4096;
    while (capacity < needed)
        capacity *= 2;
    if (capacity > UINT32_MAX)
        fatal(context, EXIT_SYSTEM, "the names of this program need more than 4 GiB");
    char *bytes = context_alloc(context, capacity);
    if (pool->size)
        memcpy(bytes, pool->bytes, pool->size);
    pool->bytes = bytes;
    pool->capacity = (uint32_t)capacity;
}

str_id intern_n(struct context *context, const char *text, size_t length)
{
    reserve_text(context, length);
    str_id id = string_pool_add(&context->strings, text, length);
    if (id == NONE)
        fatal(context, EXIT_SYSTEM, "out of memory");
    return id;
}

str_id intern(struct context *context, const char *text)
{
    return intern_n(context, text, strlen(text));
}

const char *text_of(const struct context *context, str_id id)
{
    return id && id < context->strings.size ? context->strings.bytes + id : "";
}

const char *context_printf(struct context *context, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = context_alloc(context, length < 0 ? 1 : (size_t)length + 1);
    if (length >= 0)
        vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}

static void find_lines(struct context *context, struct source_file *file)
{
    uint32_t count = 1;
    for (uint32_t i = 0; i < file->size; i++)
        count += file->text[i] == '\n';
    uint32_t *starts = context_alloc(context, count * sizeof *starts);
    file->line_count = 1;
    for (uint32_t i = 0; i < file->size; i++)
        if (file->text[i] == '\n')
            starts[file->line_count++] = i + 1;
    file->line_starts = starts;
}

uint32_t add_source(struct context *context, const char *path, const char *text, size_t size, const char *module)
{
    if (size >= UINT32_MAX / 2)
        fatal(context, EXIT_SYSTEM, "%.200s: larger than 2 GiB", path);
    context->files =
        context_grow(context, context->files, &context->file_capacity, context->file_count + 1, sizeof *context->files);
    char *copy = context_alloc(context, size + 1);
    memcpy(copy, text, size);
    struct source_file *file = &context->files[context->file_count];
    *file = (struct source_file){.path = context_printf(context, "%s", path),
                                 .text = copy,
                                 .size = (uint32_t)size,
                                 .module = module ? context_printf(context, "%s", module) : NULL};
    find_lines(context, file);
    return context->file_count++;
}

void line_column(const struct source_file *file, uint32_t offset, uint32_t *line, uint32_t *column)
{
    if (offset > file->size)
        offset = file->size;
    uint32_t low = 0, high = file->line_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (file->line_starts[middle] <= offset)
            low = middle;
        else
            high = middle;
    }
    *line = low + 1;
    *column = 1;
    for (uint32_t at = file->line_starts[low]; at < offset; ++*column) {
        uint32_t length = utf8_length(file->text + at, file->size - at);
        at += length ? length : 1;
    }
}

uint32_t utf8_length(const char *text, size_t available)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (!available)
        return 0;
    const unsigned char *at = (const unsigned char *)text;
    uint32_t length = at[0] < 0x80 ? 1 : at[0] < 0xc0 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : at[0] < 0xf8 ? 4 : 0;
    if (length <= 1 || length > available)
        return length > available ? 0 : length;
    uint32_t character = at[0] & (0x7fu >> length);
    for (uint32_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        character = character << 6 | (at[i] & 0x3f);
    }
    bool surrogate = character >= 0xd800 && character < 0xe000;
    return character < smallest[length] || surrogate || character > 0x10ffff ? 0 : length;
}
