// The tree as an S-expression and back: `--emit=ast`, and the tests' way to compare trees. Every node is
//   (KIND begin:end [name@begin:end] [flag=1] [text="..."] [int=1] [num=0.5] [doc="..."] slot=[...] ...)
// with the fields that are zero or empty left out. ast_check states what a well-formed tree is.
#include "compiler/syntax/ast.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { READ_DEPTH = 400 };

static const struct node_description {
    const char *name;
    const char *slots[AST_SLOTS + 1]; // "?" at the end: may be empty
} descriptions[node_kind_count] = {
#define NODE(kind, text, flag, ...) [NODE_##kind] = {#kind, {__VA_ARGS__}},
#include "compiler/syntax/ast_nodes.def"
#undef NODE
};

static size_t slot_name_length(const char *slot)
{
    size_t length = strlen(slot);
    return length && slot[length - 1] == '?' ? length - 1 : length;
}

static void print_quoted(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            fprintf(out, "\\x%02x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void print_node(const struct context *context, const struct ast *ast, node_id id, int indent, FILE *out)
{
    const struct ast_node *node = node_at(ast, id);
    const struct node_description *description = &descriptions[node->kind];
    fprintf(out, "%*s(%s %u:%u", indent, "", description->name, node->span.begin, node->span.end);
    if (node->name_span.end)
        fprintf(out, " name@%u:%u", node->name_span.begin, node->name_span.end);
    if (node->flag)
        fprintf(out, " flag=%u", node->flag);
    if (node->text) {
        fputs(" text=", out);
        print_quoted(out, text_of(context, node->text));
    }
    if (node->integer)
        fprintf(out, " int=%" PRId64, node->integer);
    if (node->number != 0)
        fprintf(out, " num=%.17g", node->number);
    if (node->doc) {
        fputs(" doc=", out);
        print_quoted(out, text_of(context, node->doc));
    }
    for (int i = 0; i < AST_SLOTS && description->slots[i]; i++) {
        if (!node->slot[i])
            continue;
        fprintf(out, "\n%*s%.*s=[\n", indent + 2, "", (int)slot_name_length(description->slots[i]),
                description->slots[i]);
        EACH_NODE(ast, child, node->slot[i])
        print_node(context, ast, child, indent + 4, out);
        fprintf(out, "%*s]", indent + 2, "");
    }
    fputs(")\n", out);
}

void ast_print(const struct context *context, const struct ast *ast, node_id root, FILE *out)
{
    fprintf(out, "file %u\n", node_at(ast, root)->span.file);
    print_node(context, ast, root, 0, out);
}

struct reader {
    struct context *context;
    struct ast *ast;
    const char *text, *at;
    uint32_t file;
    char *error;
    size_t size;
};

/// Notes the first problem, with its offset; always false.
static bool bad(struct reader *reader, const char *message)
{
    if (!*reader->error)
        snprintf(reader->error, reader->size, "offset %zu: %s", (size_t)(reader->at - reader->text), message);
    return false;
}

static void skip_space(struct reader *reader)
{
    reader->at += strspn(reader->at, " \n");
}

static bool accept(struct reader *reader, const char *text)
{
    size_t length = strlen(text);
    if (strncmp(reader->at, text, length) != 0)
        return false;
    reader->at += length;
    return true;
}

static bool read_u32(struct reader *reader, uint32_t *value)
{
    uint64_t number = 0;
    const char *begin = reader->at;
    for (; *reader->at >= '0' && *reader->at <= '9' && number <= UINT32_MAX; reader->at++)
        number = number * 10 + (uint64_t)(*reader->at - '0');
    *value = (uint32_t)number;
    return (reader->at > begin && number <= UINT32_MAX) || bad(reader, "expected a number");
}

static bool read_span(struct reader *reader, struct span *span)
{
    span->file = reader->file;
    return read_u32(reader, &span->begin) && (accept(reader, ":") || bad(reader, "expected `:`")) &&
           read_u32(reader, &span->end);
}

static bool read_quoted(struct reader *reader, str_id *text)
{
    if (!accept(reader, "\""))
        return bad(reader, "expected a text");
    char *decoded = context_alloc(reader->context, strcspn(reader->at, "\n") + 1);
    size_t used = 0;
    while (*reader->at && *reader->at != '"' && *reader->at != '\n') {
        unsigned value;
        if (*reader->at != '\\') {
            decoded[used++] = *reader->at++;
        } else if (reader->at[1] == 'x' && sscanf(reader->at + 2, "%2x", &value) == 1 && value && reader->at[3]) {
            decoded[used++] = (char)value;
            reader->at += 4;
        } else if (reader->at[1] == '"' || reader->at[1] == '\\') {
            decoded[used++] = reader->at[1];
            reader->at += 2;
        } else {
            return bad(reader, "bad escape");
        }
    }
    *text = intern_n(reader->context, decoded, used);
    return accept(reader, "\"") || bad(reader, "unterminated text");
}

static bool read_field(struct reader *reader, struct ast_node *node)
{
    char *end;
    uint32_t flag;
    if (accept(reader, "name@"))
        return read_span(reader, &node->name_span);
    if (accept(reader, "flag=")) {
        if (!read_u32(reader, &flag) || flag > UINT16_MAX)
            return bad(reader, "bad flag");
        node->flag = (uint16_t)flag;
        return true;
    }
    if (accept(reader, "text="))
        return read_quoted(reader, &node->text);
    if (accept(reader, "doc="))
        return read_quoted(reader, &node->doc);
    if (accept(reader, "int=")) {
        node->integer = strtoll(reader->at, &end, 10);
    } else if (accept(reader, "num=")) {
        node->number = strtod(reader->at, &end);
    } else {
        return bad(reader, "unknown field");
    }
    bool moved = end > reader->at;
    reader->at = end;
    return moved || bad(reader, "expected a number");
}

static node_id read_node(struct reader *reader, int depth);

/// `name=[nodes]` where it is a slot of this kind of node; -1 where it is not, 0 on errors, 1 when read.
static int read_slot(struct reader *reader, node_id id, int depth)
{
    const struct node_description *description = &descriptions[reader->ast->nodes[id].kind];
    for (int i = 0; i < AST_SLOTS && description->slots[i]; i++) {
        size_t length = slot_name_length(description->slots[i]);
        if (strncmp(reader->at, description->slots[i], length) != 0 || strncmp(reader->at + length, "=[", 2) != 0)
            continue;
        reader->at += length + 2;
        node_id last = 0;
        for (skip_space(reader); !accept(reader, "]"); skip_space(reader)) {
            node_id child = read_node(reader, depth + 1);
            if (!child)
                return 0;
            if (last)
                reader->ast->nodes[last].next = child;
            else
                reader->ast->nodes[id].slot[i] = child;
            last = child;
        }
        return 1;
    }
    return -1;
}

static uint16_t read_kind(struct reader *reader)
{
    size_t length = strspn(reader->at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
    for (uint16_t kind = 1; kind < node_kind_count; kind++) {
        if (strlen(descriptions[kind].name) != length || strncmp(reader->at, descriptions[kind].name, length) != 0)
            continue;
        reader->at += length;
        return kind;
    }
    return 0;
}

static node_id read_node(struct reader *reader, int depth)
{
    struct ast_node node = {.name_span.file = reader->file};
    if (depth > READ_DEPTH)
        return bad(reader, "nested too deeply");
    if (!accept(reader, "("))
        return bad(reader, "expected `(`");
    node.kind = read_kind(reader);
    if (!node.kind || !accept(reader, " "))
        return bad(reader, "unknown kind of node");
    if (!read_span(reader, &node.span))
        return 0;
    struct ast *ast = reader->ast;
    ast->nodes = context_grow(reader->context, ast->nodes, &ast->capacity, ast->count + 1, sizeof *ast->nodes);
    node_id id = ast->count++;
    ast->nodes[id] = node;
    for (skip_space(reader); !accept(reader, ")"); skip_space(reader)) {
        int slot = read_slot(reader, id, depth);
        if (!slot || (slot < 0 && !read_field(reader, &ast->nodes[id])))
            return 0;
    }
    return id;
}

node_id ast_read(struct context *context, struct ast *ast, const char *text, char *error, size_t size)
{
    struct reader reader = {.context = context, .ast = ast, .text = text, .at = text, .error = error, .size = size};
    *error = 0;
    if (!ast->count) {
        ast->nodes = context_grow(context, ast->nodes, &ast->capacity, 1, sizeof *ast->nodes);
        ast->nodes[ast->count++] = (struct ast_node){0};
    }
    if (!accept(&reader, "file ") || !read_u32(&reader, &reader.file))
        return bad(&reader, "expected `file NUMBER`");
    skip_space(&reader);
    node_id root = read_node(&reader, 0);
    skip_space(&reader);
    if (root && *reader.at)
        return bad(&reader, "text after the tree");
    return root;
}

struct checker {
    const struct context *context;
    const struct ast *ast;
    bool *seen;
    char *error;
    size_t size;
};

__attribute__((format(printf, 3, 4))) static bool wrong(struct checker *checker, node_id id, const char *format, ...)
{
    char message[120];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    uint16_t kind = id < checker->ast->count ? checker->ast->nodes[id].kind : 0;
    snprintf(checker->error, checker->size, "node %u (%s): %s", id,
             kind && kind < node_kind_count ? descriptions[kind].name : "?", message);
    return false;
}

static bool check_place(struct checker *checker, struct span span)
{
    const struct context *context = checker->context;
    return span.file < context->file_count && span.begin <= span.end && span.end <= context->files[span.file].size;
}

static bool check_node(struct checker *checker, node_id id)
{
    if (id >= checker->ast->count)
        return wrong(checker, id, "no such node");
    if (checker->seen[id])
        return wrong(checker, id, "stands in the tree twice");
    checker->seen[id] = true;
    const struct ast_node *node = node_at(checker->ast, id);
    if (!node->kind || node->kind >= node_kind_count)
        return wrong(checker, id, "unknown kind");
    if (!check_place(checker, node->span) || !check_place(checker, node->name_span))
        return wrong(checker, id, "place outside its file");
    const char *const *slots = descriptions[node->kind].slots;
    bool past = false;
    for (int i = 0; i < AST_SLOTS; i++) {
        past |= !slots[i];
        if (past && node->slot[i])
            return wrong(checker, id, "slot %d is not used", i);
        if (!past && !node->slot[i] && slots[i][slot_name_length(slots[i])] != '?')
            return wrong(checker, id, "slot %s is empty", slots[i]);
        for (node_id child = node->slot[i]; child; child = checker->ast->nodes[child].next)
            if (!check_node(checker, child))
                return false;
    }
    return true;
}

bool ast_check(const struct context *context, const struct ast *ast, node_id root, char *error, size_t size)
{
    struct checker checker = {.context = context, .ast = ast, .error = error, .size = size};
    checker.seen = calloc((size_t)ast->count + 1, sizeof *checker.seen);
    if (!checker.seen) {
        snprintf(error, size, "out of memory");
        return false;
    }
    bool ok = check_node(&checker, root);
    free(checker.seen);
    return ok;
}
