// The plan's file form: one checksummed block of tables, strings and code that is written once and then used where it
// lies. Reading trusts nothing: sizes first, then the checksum, then every reference (ir_check) and every size
// (plan_validate). Also finds a plan at the end of an executable or shared object.
#include "plan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/mapped.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define RECORDS_DEF "plan.def"
#define RECORDS_TYPE plan_ir
#define RECORDS_NAME "plan"
#include "records_describe.h"

_Static_assert(sizeof(struct plan_header) % 8 == 0, "the tables after it stay aligned");

enum { BLOCK_ALIGN = 64, CODE_ALIGN = 4096, BINDING_BYTES = sizeof(XXH128_canonical_t) };

static uint64_t align_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

typedef XXH_errorcode update_fn(XXH3_state_t *state, const void *bytes, size_t size);

/// Feeds a digest the image as if its checksum field were zero.
static void feed(XXH3_state_t *state, update_fn *update, const uint8_t *image, size_t size)
{
    struct plan_header header;
    memcpy(&header, image, sizeof header);
    header.checksum = 0;
    update(state, &header, sizeof header);
    update(state, image + sizeof header, size - sizeof header);
}

/// XXH3 of the whole image.
static uint64_t checksum(const uint8_t *image, size_t size)
{
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    feed(&state, XXH3_64bits_update, image, size);
    return XXH3_64bits_digest(&state);
}

/// What the code says of everything before it: XXH3-128.
static XXH128_canonical_t binding(const uint8_t *image, size_t size)
{
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    feed(&state, XXH3_128bits_update, image, size);
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(&state));
    return bytes;
}

/// Offsets of every block; sets file_bytes.
static struct plan_header lay_out(const struct ir *ir, size_t code_bytes)
{
    struct plan_header header = {.magic = PLAN_MAGIC, .version = PLAN_VERSION, .table_count = plan_ir.table_count};
    uint64_t at = align_up(sizeof header, BLOCK_ALIGN);
    for (uint32_t t = 0; t < plan_ir.table_count; t++) {
        uint32_t row_size = plan_ir.tables[t]()->row_size;
        header.tables[t].offset = at;
        header.tables[t].count = ir->tables[t].count;
        header.tables[t].row_size = row_size;
        at = align_up(at + (uint64_t)ir->tables[t].count * row_size, BLOCK_ALIGN);
    }
    header.strings_offset = at;
    header.strings_bytes = ir->strings.size ? ir->strings.size : 1;
    at = align_up(at + header.strings_bytes, CODE_ALIGN);
    header.code_offset = at;
    header.code_bytes = code_bytes + BINDING_BYTES;
    header.file_bytes = align_up(at + header.code_bytes, BLOCK_ALIGN);
    return header;
}

bool plan_write(const struct ir *ir, const void *code, size_t code_bytes, void **image, size_t *image_bytes)
{
    struct plan_header header = lay_out(ir, code_bytes);
    uint8_t *bytes = calloc(1, header.file_bytes);
    if (!bytes)
        return false;
    for (uint32_t t = 0; t < plan_ir.table_count; t++)
        if (header.tables[t].count)
            memcpy(bytes + header.tables[t].offset, ir->tables[t].rows,
                   (size_t)header.tables[t].count * header.tables[t].row_size);
    if (ir->strings.size)
        memcpy(bytes + header.strings_offset, ir->strings.bytes, ir->strings.size);
    if (code_bytes)
        memcpy(bytes + header.code_offset, code, code_bytes);
    memcpy(bytes, &header, sizeof header);
    plan_seal(bytes, header.file_bytes);
    *image = bytes;
    *image_bytes = header.file_bytes;
    return true;
}

static bool inside(uint64_t offset, uint64_t bytes, uint64_t align, uint64_t file_bytes)
{
    return offset % align == 0 && offset >= sizeof(struct plan_header) && offset <= file_bytes &&
           bytes <= file_bytes - offset;
}

/// Everything the header claims about the image, before anything behind it is read.
static const char *header_problem(const struct plan_header *header, size_t image_bytes)
{
    if (memcmp(header->magic, PLAN_MAGIC, sizeof header->magic))
        return "not a plan: the magic is missing";
    if (header->version != PLAN_VERSION)
        return "made by another version of moecc";
    if (header->file_bytes != image_bytes)
        return "truncated or longer than it says";
    if (header->table_count != plan_ir.table_count)
        return "another set of tables";
    for (uint32_t t = 0; t < header->table_count; t++) {
        if (header->tables[t].row_size != plan_ir.tables[t]()->row_size)
            return "a table's rows have another size";
        uint64_t bytes = (uint64_t)header->tables[t].count * header->tables[t].row_size;
        if (!inside(header->tables[t].offset, bytes, BLOCK_ALIGN, image_bytes))
            return "a table lies outside the file";
    }
    if (header->strings_bytes == 0 || header->strings_bytes > UINT32_MAX ||
        !inside(header->strings_offset, header->strings_bytes, BLOCK_ALIGN, image_bytes))
        return "the strings lie outside the file";
    if (header->code_bytes < BINDING_BYTES ||
        !inside(header->code_offset, header->code_bytes, CODE_ALIGN, image_bytes))
        return "the code lies outside the file";
    return NULL;
}

void plan_seal(void *image, size_t image_bytes)
{
    struct plan_header header;
    uint8_t *bytes = image;
    if (image_bytes < sizeof header)
        return;
    memcpy(&header, bytes, sizeof header);
    if (header.code_bytes >= BINDING_BYTES && inside(header.code_offset, header.code_bytes, 1, image_bytes)) {
        XXH128_canonical_t bound = binding(bytes, header.code_offset);
        memcpy(bytes + header.code_offset + header.code_bytes - BINDING_BYTES, &bound, BINDING_BYTES);
    }
    header.checksum = checksum(bytes, image_bytes);
    memcpy(bytes, &header, sizeof header);
}

static bool refuse(struct plan *plan, char *error, size_t size, const char *problem)
{
    if (problem)
        snprintf(error, size, "%s", problem);
    plan_close(plan);
    return false;
}

/// Lets the tables view an image that outlives the plan, or that the plan already owns.
static bool view_image(struct plan *plan, const uint8_t *image, size_t image_bytes, char *error, size_t size)
{
    struct plan_header header;
    if (image_bytes < sizeof header)
        return refuse(plan, error, size, "not a plan: too short");
    memcpy(&header, image, sizeof header);
    const char *problem = header_problem(&header, image_bytes);
    if (problem)
        return refuse(plan, error, size, problem);
    if (checksum(image, image_bytes) != header.checksum)
        return refuse(plan, error, size, "damaged: the checksum does not match");
    size_t code_bytes = header.code_bytes - BINDING_BYTES;
    XXH128_canonical_t bound = binding(image, header.code_offset);
    if (memcmp(image + header.code_offset + code_bytes, &bound, BINDING_BYTES))
        return refuse(plan, error, size, "its code was made for other tables");
    plan->ir = (struct ir){.type = &plan_ir};
    for (uint32_t t = 0; t < header.table_count; t++)
        plan->ir.tables[t] = (struct table){.rows = (void *)(uintptr_t)(image + header.tables[t].offset),
                                            .count = header.tables[t].count};
    plan->ir.strings.bytes = (char *)(uintptr_t)(image + header.strings_offset);
    plan->ir.strings.size = (uint32_t)header.strings_bytes;
    plan->code = image + header.code_offset;
    plan->code_bytes = code_bytes;
    plan->hash = header.checksum;
    if (!ir_check(&plan->ir, error, size) || !plan_validate(&plan->ir, plan->code_bytes, error, size))
        return refuse(plan, NULL, 0, NULL);
    return true;
}

bool plan_open(struct plan *plan, const void *image, size_t image_bytes, bool copy, char *error, size_t size)
{
    *plan = (struct plan){0};
    // A view needs the alignment that the file form promises; a copy always has it.
    if (!copy && (uintptr_t)image % BLOCK_ALIGN == 0)
        return view_image(plan, image, image_bytes, error, size);
    plan->image = aligned_alloc(CODE_ALIGN, align_up(image_bytes + 1, CODE_ALIGN));
    if (!plan->image)
        return refuse(plan, error, size, PLAN_NO_MEMORY);
    memcpy(plan->image, image, image_bytes);
    plan->image_bytes = image_bytes;
    return view_image(plan, plan->image, image_bytes, error, size);
}

void plan_seal_trailer(struct plan_trailer *trailer)
{
    memcpy(trailer->magic, PLAN_MAGIC, sizeof trailer->magic);
    trailer->checksum = XXH3_64bits(trailer, offsetof(struct plan_trailer, checksum));
}

/// The trailer that ends at `end`: what it says lies before it, and so does the one it names.
static bool read_trailer(const uint8_t *file, size_t end, struct plan_trailer *trailer)
{
    if (end < sizeof *trailer)
        return false;
    end -= sizeof *trailer;
    memcpy(trailer, file + end, sizeof *trailer);
    return !memcmp(trailer->magic, PLAN_MAGIC, sizeof trailer->magic) &&
           trailer->checksum == XXH3_64bits(trailer, offsetof(struct plan_trailer, checksum)) && trailer->plan_offset <= end &&
           trailer->plan_bytes <= end - trailer->plan_offset && trailer->before <= trailer->plan_offset &&
           memchr(trailer->cpu_level, 0, sizeof trailer->cpu_level);
}

/// Where the plan lies in a mapped file: all of it, or what a trailer says.
static bool find_plan(const uint8_t *file, size_t bytes, bool (*runs)(const char *), size_t *offset, size_t *length)
{
    *offset = 0;
    *length = bytes;
    if (bytes >= 8 && !memcmp(file, PLAN_MAGIC, 8))
        return true;
    struct plan_trailer chosen, trailer;
    if (!read_trailer(file, bytes, &chosen))
        return false;
    trailer = chosen;
    while (runs && !runs(trailer.cpu_level) && trailer.before && read_trailer(file, trailer.before, &trailer))
        if (runs(trailer.cpu_level))
            chosen = trailer;
    *offset = chosen.plan_offset;
    *length = chosen.plan_bytes;
    return true;
}

bool plan_open_file(struct plan *plan, const char *path, bool (*runs)(const char *cpu_level), char *error, size_t size)
{
    *plan = (struct plan){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // of a pipe that nobody writes to, no waiting
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0) {
        snprintf(error, size, "%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return false;
    }
    size_t bytes = S_ISREG(status.st_mode) ? (size_t)status.st_size : 0;
    void *map = bytes ? mapped_open(fd, bytes, path) : NULL;
    close(fd);
    if (!map) {
        snprintf(error, size, "%s: not a plan: %s", path, bytes ? "cannot be mapped" : "empty, or no file");
        return false;
    }
    size_t offset, length;
    if (!find_plan(map, bytes, runs, &offset, &length)) {
        mapped_close(map, bytes);
        snprintf(error, size, "%s: carries no plan", path);
        return false;
    }
    char problem[256] = "";
    bool good;
    if (offset % BLOCK_ALIGN) { // a carrier of odd size
        good = plan_open(plan, (uint8_t *)map + offset, length, true, problem, sizeof problem);
        mapped_close(map, bytes);
    } else {
        *plan = (struct plan){.image = map, .image_bytes = bytes, .mapped = true};
        good = view_image(plan, (uint8_t *)map + offset, length, problem, sizeof problem);
    }
    if (!good)
        snprintf(error, size, "%s: %s", path, problem);
    return good;
}

void plan_close(struct plan *plan)
{
    if (plan->mapped)
        mapped_close(plan->image, plan->image_bytes);
    else
        free(plan->image);
    *plan = (struct plan){0};
}
