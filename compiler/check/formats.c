// Number formats: plain element types, and block formats that name one with a block shape and a scale type.
#include "compiler/check/types.h"

#include <string.h>

uint32_t dtype_format(struct checker *checker, enum dtype dtype)
{
    for (uint32_t i = 0; i < COUNT(checker->module, mod_format); i++) {
        const struct mod_format *row = ROW(checker->module, mod_format, i);
        if (row->base == dtype && !row->node)
            return i;
    }
    str_id name = ir_str(checker->module, dtype_words[dtype]);
    uint32_t row = ADD(checker->module, mod_format);
    *ROW(checker->module, mod_format, row) = (struct mod_format){.name = name, .base = dtype};
    return row;
}

const char *format_name(const struct checker *checker, uint32_t format)
{
    return format == NONE ? "routes" : ir_text(checker->module, ROW(checker->module, mod_format, format)->name);
}

static bool is_blocked(const struct checker *checker, uint32_t format)
{
    const struct mod_format *row = ROW(checker->module, mod_format, format);
    return row->block_cols || row->base == dtype_fp8_e4m3 || row->base == dtype_mxfp4;
}

bool formats_meet(const struct checker *checker, uint32_t a, uint32_t b)
{
    if (a == NONE || b == NONE)
        return a == b;
    uint32_t left = ROW(checker->module, mod_format, a)->base, right = ROW(checker->module, mod_format, b)->base;
    if (left == dtype_i32 || right == dtype_i32)
        return left == right;
    return left == right || left == dtype_f32 || right == dtype_f32 || is_blocked(checker, a) || is_blocked(checker, b);
}

static enum dtype find_dtype(const struct checker *checker, const struct path *path)
{
    for (uint32_t i = dtype_none + 1; path->count == 1 && i < dtype_words_count; i++)
        if (!strcmp(dtype_words[i], name_text(checker, path->name[0])))
            return (enum dtype)i;
    return dtype_none;
}

static bool read_block(struct checker *checker, uint32_t file, node_id field, struct mod_format *row)
{
    struct scope scope = {.file = file};
    const struct ast_node *list = node_of(checker, node_of(checker, field)->slot[0]);
    int64_t sizes[2];
    uint32_t count = 0;
    EACH_NODE(&checker->program->ast, id, list->kind == NODE_LIST ? list->slot[0] : 0) {
        struct constant value;
        if (count < 2) {
            if (!evaluate_as(checker, &scope, "block", id, CONSTANT_INTEGER, &value) ||
                !expect_range(checker, "block", id, value.integer, 1, 65536))
                return false;
            sizes[count] = value.integer;
        }
        count++;
    }
    if (count != 2) {
        struct diag *diag = diag_error(checker->context, E0201, list->span, "`block` is a pair, rows and columns");
        diag_label(checker->context, diag, "expected as in `[1, 128]`");
        return false;
    }
    row->block_rows = sizes[0];
    row->block_cols = sizes[1];
    return true;
}

static bool read_format(struct checker *checker, struct symbol item, struct mod_format *row)
{
    static const char *const names[] = {"block", "scale"};
    const struct ast_node *node = node_of(checker, item.node);
    const char *owner = context_printf(checker->context, "format `%s`", name_text(checker, node->text));
    node_id base = node->slot[0], record = node->slot[1];
    struct path path;
    path_of(checker, base, &path);
    row->base = find_dtype(checker, &path);
    bool fine = row->base != dtype_none;
    if (!fine) {
        struct names candidates = {0};
        for (uint32_t i = dtype_none + 1; i < dtype_words_count; i++)
            names_add(checker, &candidates, dtype_words[i]);
        report_unknown(checker, "element type", source_text(checker, path.whole), path.whole, &candidates);
    }
    if (!record)
        return fine;
    node_id fields = node_of(checker, record)->slot[0];
    fine = check_attributes(checker, fields, names, 2, owner) && fine;
    node_id block = find_attribute(checker, fields, "block"), scale = find_attribute(checker, fields, "scale");
    if (fine && !block != !scale) {
        struct diag *diag = diag_error(checker->context, E0107, place_of(checker, record), "%s lacks `%s`", owner,
                                       block ? "scale" : "block");
        diag_label(checker->context, diag, "a block has a shape and a scale");
        return false;
    }
    if (block)
        fine = read_block(checker, item.file, block, row) && fine;
    if (scale) {
        int choice = choose(checker, "scale", node_of(checker, scale)->slot[0], scale_type_words + 1,
                            scale_type_words_count - 1);
        row->scale = (uint32_t)(choice + 1);
        fine = fine && choice >= 0;
    }
    return fine;
}

uint32_t elaborate_format_item(struct checker *checker, struct symbol item)
{
    uint32_t row;
    if (memo_find(checker, item.node, &row))
        return row;
    struct mod_format format = {.name = module_name(checker, node_of(checker, item.node)->text), .node = item.node};
    row = NONE;
    if (read_format(checker, item, &format)) {
        row = ADD(checker->module, mod_format);
        *ROW(checker->module, mod_format, row) = format;
    }
    memo_set(checker, item.node, row);
    return row;
}

uint32_t elaborate_format(struct checker *checker, uint32_t file, node_id node)
{
    struct path path;
    struct symbol symbol = {0};
    if (path_of(checker, node, &path))
        symbol = resolve(checker, file, &path, NODE_FORMAT, true);
    enum dtype dtype = path.count ? find_dtype(checker, &path) : dtype_none;
    if (!symbol.kind && dtype != dtype_none)
        return dtype_format(checker, dtype);
    if (!symbol.kind && path.count == 1) {
        struct names candidates = {0};
        visible_names(checker, file, NODE_FORMAT, &candidates);
        for (uint32_t i = dtype_none + 1; i < dtype_words_count; i++)
            names_add(checker, &candidates, dtype_words[i]);
        report_unknown_of(checker, "format", name_text(checker, path.name[0]), path.whole, &candidates);
        return NONE;
    }
    return resolve_item(checker, file, node, NODE_FORMAT, &symbol) ? elaborate_format_item(checker, symbol) : NONE;
}

/// A format in which rows can travel: an element type as it is, or E4M3 in blocks along the row.
static bool check_wire_format(struct checker *checker, uint32_t format, struct span place)
{
    const struct mod_format *row = ROW(checker->module, mod_format, format);
    bool plain = !row->block_cols && dtype_computes(row->base);
    bool coded =
        row->base == dtype_fp8_e4m3 && row->block_rows == 1 && (row->block_cols == 64 || row->block_cols == 128);
    if (plain || coded)
        return true;
    struct diag *diag =
        diag_error(checker->context, E0901, place, "rows cannot travel as `%s` yet", format_name(checker, format));
    diag_label(checker->context, diag, "not built yet");
    diag_help(checker->context, diag,
              "what can: f32, f16, bf16, and a format like `fp8_e4m3 { block: [1, 128], scale: f32 }`, with blocks of "
              "[1, 64] or [1, 128] and scales in f32 or ue8m0");
    return false;
}

bool check_arithmetic(struct checker *checker, const struct mod_arg *arg, uint32_t rows, struct span place)
{
    struct diag *diag;
    if (arg->axis_formats.count) {
        diag = diag_error(checker->context, E0201, place, "`arithmetic` is one format");
        diag_label(checker->context, diag, "rows are multiplied on one rank, across no axis");
        return false;
    }
    if (arg->format == NONE)
        return true;
    const struct mod_format *row = ROW(checker->module, mod_format, arg->format);
    if ((!row->block_cols && row->base == rows) ||
        (row->base == dtype_fp8_e4m3 && row->block_rows == 1 && row->block_cols == 128))
        return true;
    diag = diag_error(checker->context, E0901, place, "rows cannot be multiplied as `%s` yet", format_name(checker, arg->format));
    diag_label(checker->context, diag, "not built yet");
    diag_help(checker->context, diag,
              "what can: their own type, and `fp8_e4m3 { block: [1, 128], scale: f32 }` (or ue8m0) with weights of "
              "`fp8_e4m3 { block: [128, 128], scale: f32 }`");
    return false;
}

bool check_wire(struct checker *checker, const struct mod_cluster *cluster, const struct mod_arg *arg,
                struct span place)
{
    bool fine = arg->format == NONE || check_wire_format(checker, arg->format, place);
    for (uint32_t i = 0; i < arg->axis_formats.count; i++) {
        const struct mod_axis_format *named = ROW(checker->module, mod_axis_format, arg->axis_formats.first + i);
        fine = check_wire_format(checker, named->format, place_of(checker, node_of(checker, named->node)->slot[0])) &&
               fine;
        if (cluster && find_axis(checker, cluster, name_place(checker, named->node),
                                 ir_text(checker->module, named->axis)) == NONE)
            fine = false;
    }
    return fine;
}
