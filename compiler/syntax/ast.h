// Text -> AST. One uniform node: a kind, a place, a name or value, and up to four child slots; a list is a chain of nodes
// through `next`. Kinds and slots are listed in ast_nodes.def. Nodes are numbered; there are no pointers.
#ifndef MOECC_AST_H
#define MOECC_AST_H

#include "compiler/base/diag.h"

typedef uint32_t node_id; // 0: none

enum node_kind {
    NODE_NONE,
#define NODE(kind, ...) NODE_##kind,
#include "ast_nodes.def"
#undef NODE
    node_kind_count
};

enum { AST_SLOTS = 4 };

struct ast_node {
    uint16_t kind;
    uint16_t flag;              // meaning by kind: see ast_nodes.def
    node_id slot[AST_SLOTS];
    node_id next;               // the next in the list this node stands in
    str_id text;                // name, string value, unit or operator
    int64_t integer;            // INT, BOOL; a QUANTITY's unit is in text
    double number;              // FLOAT, PERCENT, QUANTITY: the value as written (10% is 10)
    str_id doc;                 // items: their /// comment
    struct span span;           // the whole construct
    struct span name_span;      // its name, where it has one
};

struct ast {
    struct ast_node *nodes;
    uint32_t count, capacity;
};

static inline const struct ast_node *node_at(const struct ast *ast, node_id id) { return &ast->nodes[id]; }
#define EACH_NODE(ast, id, list) for (node_id id = (list); id; id = (ast)->nodes[id].next)

/// Parses one file of the context; nodes are appended to ast. Returns its FILE node (also when there were errors).
node_id parse_file(struct context *context, struct ast *ast, uint32_t file);

/// The token list of a file, one a line: `line:col kind text`.
void print_tokens(struct context *context, uint32_t file, FILE *out);
/// S-expression of a subtree; ast_read parses it back to an equal tree (places included).
void ast_print(const struct context *context, const struct ast *ast, node_id root, FILE *out);
node_id ast_read(struct context *context, struct ast *ast, const char *text, char *error, size_t size);
/// Slots filled as ast_nodes.def says, lists acyclic, places inside the file. A message names the node.
bool ast_check(const struct context *context, const struct ast *ast, node_id root, char *error, size_t size);

/// Canonical text of a file (comments kept). Idempotent. NULL when the file has syntax errors (queued).
const char *format_source(struct context *context, uint32_t file);
/// One expression as canonical text, for messages: `2 * ffn`.
const char *expression_text(struct context *context, const struct ast *ast, node_id expression);

/// A parsed program: the root file and everything it imports, in dependency order (imported before importing).
struct parsed_file {
    uint32_t file;
    node_id root;
};
struct program_text {
    struct ast ast;
    struct parsed_file *units;
    uint32_t unit_count, unit_capacity;
    struct known_constant *known; // by node, what checking has found its value to be (check/constants.c); NULL: nothing yet
    uint32_t known_count;
};

/// Parses `path` and, following `import`, all it needs: std.* from the embedded library, "x.moe" relative to the importing
/// file, JSON files are left to the checker. Circles and missing files are diagnosed at the import. False on errors.
bool load_program(struct context *context, struct program_text *program, const char *path);
/// A path without "./" and "folder/../": under this name load_program knows a file, and takes a text that was added with it
/// (add_source) instead of the file on disk.
const char *source_path(struct context *context, const char *path);
/// The file that an import node of `importing` leads to (already loaded), or NONE.
uint32_t import_target(struct context *context, const struct program_text *program, uint32_t importing, node_id import);

#endif
