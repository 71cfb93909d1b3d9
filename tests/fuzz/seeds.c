// Seeds for the fuzz target of plans: a printed plan as an image without native code, and, so that every refusal of
// validation is in the corpus, the same image with one field of one row changed, for the first and last row of each table.
// Usage: fuzz-seeds PREFIX <PLAN_TEXT; writes PREFIX.plan and PREFIX-N.plan.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/plan/plan.h"

static const char *prefix;
static unsigned written;

static char *read_all(FILE *in)
{
    size_t size = 0, capacity = 1 << 16;
    char *text = malloc(capacity);
    for (size_t got; text && (got = fread(text + size, 1, capacity - size - 1, in)) > 0;) {
        size += got;
        if (size + 1 == capacity)
            text = realloc(text, capacity *= 2);
    }
    if (text)
        text[size] = 0;
    return text;
}

static void write_bytes(const void *image, size_t bytes, const struct plan_trailer *trailer)
{
    char path[512];
    snprintf(path, sizeof path, written ? "%s-%u.plan" : "%s.plan", prefix, written);
    FILE *out = fopen(path, "wb");
    bool good = out && (!trailer || fwrite("#", 1, 1, out) == 1) && fwrite(image, 1, bytes, out) == bytes;
    if (!good || (trailer && fwrite(trailer, sizeof *trailer, 1, out) != 1) || fclose(out)) {
        perror(path);
        exit(3);
    }
    written++;
}

static void write_image(const struct ir *ir)
{
    void *image;
    size_t bytes;
    if (!plan_write(ir, "\xc3", 1, &image, &bytes))
        exit(3);
    write_bytes(image, bytes, NULL);
    free(image);
}

/// An executable that carries the plan three times, for several instruction sets; what a trailer says of the one before it
/// changed.
static void write_chain(const void *image, size_t bytes)
{
    static const char *const levels[] = {"v2", "v3", "bf16"};
    for (int damage = 0; damage < 4; damage++) {
        size_t at = 64, total = 64 + 3 * (bytes + 64 + sizeof(struct plan_trailer));
        char *file = calloc(1, total);
        if (!file)
            exit(3);
        for (int i = 0; i < 3; i++) {
            struct plan_trailer trailer = {.plan_offset = at, .plan_bytes = bytes, .before = i ? at : 0};
            strcpy(trailer.cpu_level, levels[i]);
            if (damage == 1 && i == 2)
                memset(trailer.cpu_level, 'x', sizeof trailer.cpu_level);
            if (damage == 2 && i == 2)
                trailer.before--;
            if (damage == 3 && i == 1)
                trailer.before = 1;
            plan_seal_trailer(&trailer);
            memcpy(file + at, image, bytes);
            memcpy(file + at + bytes, &trailer, sizeof trailer);
            at += bytes + sizeof trailer;
        }
        write_bytes(file, at, NULL);
        free(file);
    }
}

/// The image with one word of its header changed; cut off; behind an executable.
static void write_headers(const struct ir *ir)
{
    void *image;
    size_t bytes;
    if (!plan_write(ir, "\xc3", 1, &image, &bytes))
        exit(3);
    for (size_t i = 0; i < sizeof(struct plan_header); i += 4) {
        uint32_t kept;
        memcpy(&kept, (char *)image + i, 4);
        memset((char *)image + i, 0x7f, 4);
        write_bytes(image, bytes, NULL);
        memcpy((char *)image + i, &kept, 4);
    }
    write_bytes(image, 3, NULL);
    write_bytes(image, bytes - 64, NULL);
    struct plan_trailer right = {.plan_offset = 1, .plan_bytes = bytes}, wrong = {.plan_offset = bytes, .plan_bytes = 3};
    plan_seal_trailer(&right);
    plan_seal_trailer(&wrong);
    write_bytes(image, bytes, &right);
    write_bytes(image, bytes, &wrong);
    write_chain(image, bytes);
    free(image);
}

static void change_word(const struct ir *ir, uint8_t *at, size_t width)
{
    static const int64_t values[] = {-1, 0, INT64_C(1) << 50};
    uint8_t kept[8];
    int64_t now = 0;
    memcpy(kept, at, width);
    memcpy(&now, at, width);
    for (size_t v = 0; v <= sizeof values / sizeof *values; v++) {
        int64_t value = v < sizeof values / sizeof *values ? values[v] : now + 1;
        memcpy(at, &value, width);
        write_image(ir);
    }
    memcpy(at, kept, width);
}

static void change_row(const struct ir *ir, const struct table_type *type, uint8_t *row)
{
    static const size_t widths[] = {[FIELD_STR] = 4, [FIELD_ENUM] = 4, [FIELD_BOOL] = 4, [FIELD_U32] = 4, [FIELD_I64] = 8,
                                    [FIELD_F64] = 8, [FIELD_I64S] = 8, [FIELD_REF] = 4,  [FIELD_ROWS] = 4};
    for (uint32_t f = 0; f < type->field_count; f++) {
        const struct field *field = &type->fields[f];
        uint32_t count = field->type == FIELD_I64S ? field->length : field->type == FIELD_ROWS ? 2 : 1;
        for (uint32_t i = 0; i < count; i++)
            change_word(ir, row + field->offset + i * widths[field->type], widths[field->type]);
    }
}

int main(int argc, char **argv)
{
    struct ir ir;
    char error[256], *text = read_all(stdin);
    if (argc != 2 || !text || !ir_parse(&ir, &plan_ir, text, error, sizeof error)) {
        fprintf(stderr, "usage: fuzz-seeds PREFIX <PLAN_TEXT\n");
        return 2;
    }
    prefix = argv[1];
    for (uint32_t i = 0; i < COUNT(&ir, plan_kernel); i++)
        ROW(&ir, plan_kernel, i)->code_offset = 0;
    write_image(&ir);
    write_headers(&ir);
    for (uint32_t t = 0; t < plan_ir.table_count; t++) {
        const struct table_type *type = plan_ir.tables[t]();
        uint32_t count = ir.tables[t].count;
        for (uint32_t row = 0; row < count; row += count > 1 && row + 1 < count ? count - 1 : 1)
            change_row(&ir, type, (uint8_t *)ir.tables[t].rows + (size_t)row * type->row_size);
    }
    ir_free(&ir);
    free(text);
    return 0;
}
