// Inside the checker: what its files share. A check is lazy: an item is elaborated into the module when something needs it,
// so a library that is merely imported costs nothing and cannot fail. Names are looked up in the AST itself.
#ifndef MOECC_CHECK_H
#define MOECC_CHECK_H

#include <jansson.h>

#include "compiler/check/module.h"

struct json_document {
    node_id import;
    json_t *root;               // NULL: could not be read, already diagnosed
    void **kept;                // holds what is to be released, should the compilation end early
};

/// A definition being evaluated, to find one that needs itself; a chain through the C stack.
struct pending {
    node_id node;
    const struct pending *outer;
};

struct checker {
    struct context *context;
    const struct program_text *program;
    const struct check_options *options;
    struct ir *module;
    uint32_t root_file;
    node_id root;
    uint32_t *rows;             // by node: the module row it became + 1; 0: not elaborated, NONE: failed
    uint32_t row_count;
    struct json_document *documents;
    uint32_t document_count, document_capacity;
    const struct pending *pending;
    node_id override_use;       // the USE of --schedule, 0: none
    bool ops_missing;           // said: an operator of std.ops, which the file does not import
};

static inline const struct ast_node *node_of(const struct checker *checker, node_id id)
{
    return &checker->program->ast.nodes[id];
}
static inline const char *name_text(const struct checker *checker, str_id id)
{
    return text_of(checker->context, id);
}
/// The module's copy of a name of the context.
str_id module_name(struct checker *checker, str_id id);

// ---- check.c: which row an item became -------------------------------------------------------------------------------

/// True when `node` was seen: then *row is its row, or NONE when it failed or is being made.
bool memo_find(const struct checker *checker, node_id node, uint32_t *row);
void memo_set(struct checker *checker, node_id node, uint32_t row);

// ---- report.c: places and common messages ---------------------------------------------------------------------------

struct names {
    const char **items;
    uint32_t count, capacity;
};
void names_add(struct checker *checker, struct names *names, const char *name);
/// "a, b, c"
const char *names_join(struct checker *checker, const struct names *names);

/// The source under a place.
const char *source_text(const struct checker *checker, struct span span);
struct span place_of(const struct checker *checker, node_id node);
struct span name_place(const struct checker *checker, node_id node);
/// Without a final `;`.
struct span statement_place(const struct checker *checker, node_id node);
/// Adds help and fix when a candidate is near: "a stage with a similar name exists".
void suggest(struct checker *checker, struct diag *diag, const char *what, const char *name, struct span span,
             const struct names *candidates);
/// E0101 "unknown stage `x`", with a suggestion.
void report_unknown(struct checker *checker, const char *what, const char *name, struct span span,
                    const struct names *candidates);
/// E0102, with the first definition as a second place.
/// The same of a short list of names, which is shown.
void report_unknown_of(struct checker *checker, const char *what, const char *name, struct span span,
                       const struct names *all);
void report_twice(struct checker *checker, const char *what, const char *name, struct span again, struct span first);
/// E0901 "... is not built yet".
void report_unbuilt(struct checker *checker, struct span span, const char *what);
/// Replaces a place, taking up blanks behind it so that columns to the right stay where they are.
void fix_in_column(struct checker *checker, struct diag *diag, struct span span, const char *text);

// ---- names.c: what a name means -------------------------------------------------------------------------------------

enum symbol_kind { SYMBOL_NONE, SYMBOL_ITEM, SYMBOL_MODULE, SYMBOL_JSON };
struct symbol {
    enum symbol_kind kind;
    node_id node;               // ITEM: the item; else the import
    uint32_t file;              // ITEM: its file; MODULE: the file it leads to; JSON: the importing file
    uint32_t part;              // the part of the path that named it
};

enum { PATH_PARTS = 8 };
struct path {
    uint32_t count;
    str_id name[PATH_PARTS];
    struct span span[PATH_PARTS];
    struct span whole;
};

const char *item_word(uint16_t kind);   // NODE_LAYER: "layer"
struct symbol find_name(struct checker *checker, uint32_t file, str_id name);
/// A PATH, a NAME or a chain of MEMBERs as a path; false when the node is something else.
bool path_of(const struct checker *checker, node_id node, struct path *path);
/// The item that a path of `file` names; SYMBOL_NONE with a message queued, unless `quiet`. `kind` (or NODE_NONE) steers
/// suggestions only.
struct symbol resolve(struct checker *checker, uint32_t file, const struct path *path, uint16_t kind, bool quiet);
/// The item of that kind which a PATH, NAME or MEMBER names; false with a message queued.
bool resolve_item(struct checker *checker, uint32_t file, node_id node, uint16_t kind, struct symbol *symbol);
/// Names visible in a file, of one kind of item or (NODE_NONE) all.
void visible_names(struct checker *checker, uint32_t file, uint16_t kind, struct names *names);
/// Duplicates and imports of every file.
void check_file_names(struct checker *checker, uint32_t file);

// ---- json.c ---------------------------------------------------------------------------------------------------------

struct constant;
/// The document that a JSON import names, parsed once; NULL after an error.
json_t *open_document(struct checker *checker, uint32_t importing, node_id import);
/// The constant that `path` names below a JSON import (its first part is the alias).
bool json_constant(struct checker *checker, const struct symbol *symbol, const struct path *path, struct constant *value);
struct scope;
/// The same for a chain with indices: `hf.sizes[1]`.
bool json_element(struct checker *checker, const struct scope *scope, node_id expression, struct constant *value);
void json_close(struct checker *checker);
/// `path` relative to the folder of the file it is written in.
const char *relative_path(struct checker *checker, uint32_t file, const char *path);

// ---- constants.c, units.c -------------------------------------------------------------------------------------------

enum constant_kind {
    CONSTANT_INTEGER,
    CONSTANT_FLOAT,
    CONSTANT_BOOL,
    CONSTANT_STRING,
    CONSTANT_AMOUNT,            // bytes
    CONSTANT_RATE,              // bytes/s
    CONSTANT_TIME,              // ns
    CONSTANT_FLOPS,             // FLOP/s
    CONSTANT_RATIO,             // 1.25x
    CONSTANT_SHARE,             // 10% is 0.1
    constant_kind_count
};

struct constant {
    enum constant_kind kind;
    int64_t integer;            // INTEGER, BOOL
    double number;              // the others, and INTEGER as a double
    const char *text;           // STRING
};

struct local {
    str_id name;
    struct constant value;
};

struct scope {
    uint32_t file;
    const struct local *locals; // the last of a name counts
    uint32_t local_count;
    node_id tokens_dim;         // this `<=` dim has the value `tokens`
    int64_t tokens;
};

struct constant integer_constant(int64_t value);
bool evaluate(struct checker *checker, const struct scope *scope, node_id expression, struct constant *value);
/// Makes room for the values of definitions; drops those that are known, for the text has changed.
void forget_constants(struct checker *checker, struct program_text *program);
/// A DIM's or CONST's value.
bool evaluate_item(struct checker *checker, struct symbol symbol, const struct scope *scope, struct constant *value);

const char *kind_phrase(enum constant_kind kind);       // "a rate"
bool unit_constant(const char *unit, double number, struct constant *value);
/// E0207 or E0201 at the expression unless the value is of the kind; `name` is the attribute's.
bool expect_kind(struct checker *checker, const char *name, node_id expression, const struct constant *value,
                 enum constant_kind kind);
/// Evaluates and expects in one step. Integers are taken for FLOAT.
bool evaluate_as(struct checker *checker, const struct scope *scope, const char *name, node_id expression,
                 enum constant_kind kind, struct constant *value);
/// The same for stages after the check, which have a program and integers by name instead of a checker.
bool evaluate_among(struct context *context, const struct program_text *program, uint32_t file, node_id expression,
                    const struct name_value *names, uint32_t name_count, enum constant_kind kind, const char *what,
                    struct constant *constant);
/// A quantity of a machine: above 0, or 0 where `zero` allows it, and at most `most`.
bool expect_quantity(struct checker *checker, const char *name, node_id expression, double value, bool zero, double most);
/// The most that a machine has of anything: a day in nanoseconds, bytes, bytes or FLOP a second.
#define MACHINE_TIME 86400e9
#define MACHINE_RATE 1e24
/// E0206 unless low <= value <= high.
bool expect_range(struct checker *checker, const char *name, node_id expression, int64_t value, int64_t low, int64_t high);

// ---- attributes.c: records and attributes described by tables -------------------------------------------------------

struct attribute {
    const char *name;
    enum constant_kind kind;
    bool required;
};
struct attribute_value {
    node_id node;               // 0: not given
    struct constant value;
};
/// Evaluates ATTRs or FIELDs (others in the list are skipped) by a table. False when any was wrong, unknown, twice or missing.
bool read_attributes(struct checker *checker, uint32_t file, node_id list, const struct attribute *table, uint32_t count,
                     struct span owner, const char *owner_name, struct attribute_value *values);
/// The ATTR or FIELD of that name in a list, or 0.
node_id find_attribute(const struct checker *checker, node_id list, const char *name);
/// E0106 for every ATTR or FIELD not among `names`, E0102 for one that is there twice; false when there was one.
bool check_attributes(struct checker *checker, node_id list, const char *const *names, uint32_t count, const char *owner);
/// A bare name of a closed vocabulary: its number; -1 with E0208 queued.
int choose(struct checker *checker, const char *name, node_id expression, const char *const *words, uint32_t count);

// ---- elaboration: each makes the row of an item, once; NONE when it is wrong ------------------------------------------

uint32_t elaborate_device(struct checker *checker, struct symbol item);
uint32_t elaborate_cluster(struct checker *checker, struct symbol item);
/// The row of the axis of that name, written at `name`; NONE with E0101 queued.
uint32_t find_axis(struct checker *checker, const struct mod_cluster *cluster, struct span place, const char *text);
/// "node[0] gpu[3]"
const char *rank_position(struct checker *checker, const struct mod_cluster *cluster, int64_t rank);
uint32_t elaborate_placement(struct checker *checker, struct symbol item);

// arrange.c
/// Shares `total` things out in proportion to the weights: everyone's whole part, then one more each by the largest
/// remainder, the lower number first. Weights are above 0; equal weights: the first ones get one more.
void share_out(struct context *context, const double *weights, uint32_t count, int64_t total, int64_t *shares);
/// The owners of a placement's experts, its other fields known. `groups` > 1: each of so many runs of experts inside one
/// position of group_axis. False: with the slots that each rank has, some group finds no room; or (queued) a peak lacks.
bool arrange_experts(struct checker *checker, struct mod_placement *placement, int64_t experts, int64_t groups);

// copies.c
/// `replicate`: what a placement has copies of. Its cluster is known.
bool read_copies(struct checker *checker, struct symbol placement, node_id place, int64_t experts,
                 struct mod_placement *row);
/// Stages that a placement replicates run everywhere, as all but the experts do; it may name stages of other layers.
bool check_copied_stages(struct checker *checker, const struct mod_placement *placement, const struct mod_layer *layer);
/// The rows of a placement's owners, by expert in `owners`, and of the copies that it asks for. `own`: how many each rank
/// owns. False with E0505 queued where no slot is left.
bool add_owners(struct checker *checker, struct mod_placement *placement, const struct mod_owner *owners,
                int64_t experts, const int64_t *own);

/// The placement as a layer with so many routing groups needs it: the same row, or a new one. NONE with errors queued.
uint32_t placement_for_groups(struct checker *checker, uint32_t placement, int64_t groups);
uint32_t elaborate_format(struct checker *checker, uint32_t file, node_id path);
uint32_t elaborate_format_item(struct checker *checker, struct symbol item);
uint32_t elaborate_op(struct checker *checker, struct symbol item);
uint32_t elaborate_layer(struct checker *checker, struct symbol item);
/// Whether each of several layers has tensors of its own in a map.
bool check_layer_names(struct checker *checker, struct span place, uint32_t weights, int64_t layers);
uint32_t elaborate_weights(struct checker *checker, struct symbol item);
uint32_t elaborate_schedule(struct checker *checker, struct symbol item, bool own);
uint32_t elaborate_pipeline(struct checker *checker, struct symbol item);
uint32_t dtype_format(struct checker *checker, enum dtype dtype);
/// E0307: a number behind an engine of which a device has one.
void report_single_engine(struct checker *checker, node_id use);
/// A mask of engines from a `uses` or `engine` list; *copies (may be NULL) counts copy engines.
bool read_engines(struct checker *checker, uint32_t file, node_id uses, uint32_t *mask, int64_t *copies);

// ---- schedules.c ----------------------------------------------------------------------------------------------------

/// Names inside a schedule; the layer is the one it is for (NODE_NONE item: stages by its own list).
bool check_schedule_names(struct checker *checker, struct symbol item);
/// A `use`'s row: the schedule at its knobs. `scope_file` is where its names are looked up.
bool read_use(struct checker *checker, uint32_t scope_file, node_id use, struct symbol layer, struct mod_use *row);
/// The uses of a pipeline and which of them runs for which token count; choices.c.
bool read_uses(struct checker *checker, struct symbol pipeline, struct symbol layer, struct mod_pipeline *row);

// ---- budgets.c, monitors.c ------------------------------------------------------------------------------------------

/// The form of a budget's condition; with a scope, its limits as well.
bool check_condition(struct checker *checker, const struct scope *scope, node_id condition);
bool check_pipeline_budgets(struct checker *checker, struct symbol pipeline);
/// Assertions between the items of the root file are about constants.
void check_file_assertions(struct checker *checker);
/// What a monitor names: its stage, what it tracks, when it alerts, what it updates. Cached by node.
bool check_monitor(struct checker *checker, struct symbol item);

// ---- overrides.c: what the command line changes, written into the AST -------------------------------------------------

bool apply_overrides(struct checker *checker, struct program_text *program);
/// --ranks on the cluster of a pipeline.
bool override_ranks(struct checker *checker, struct program_text *program, struct symbol pipeline);

#endif
