// Inside elaboration: the text of a schedule becomes items (instances as written, in issue order) and relations between
// them; items become units (one task of one part on one stream); units are repeated per layer and the tasks that rules
// place are put between them.
//
//   elaborate.c   knobs, and the table of contents
//   split.c       what is split into how many, and what an instance's indices mean
//   declare.c     stream, bind
//   interpret.c   loops, conditions and flows -> items and relations
//   resolve.c     items -> units: streams, engines
//   coverage.c    every instance issued exactly once
//   place.c       units -> all layers, automatic and deferred tasks: one list of spots
//   fill.c        moves what `fill` issued to where its stream is predicted to stall
//   tables.c      spots -> the schedule's tables: instances, streams, edges
#ifndef MOECC_ELABORATE_H
#define MOECC_ELABORATE_H

#include "compiler/schedule/schedule.h"

enum split_kind { SPLIT_TOKENS, SPLIT_EXPERTS, SPLIT_LAYERS, SPLIT_STAGE };
enum { SPLITS_MAX = 8, PIECES_MAX = 256 };

struct split_info { // one `split ... into count as name`, in the order of the text, which is that of indices
    enum split_kind kind;
    node_id node;
    int64_t count;
    uint32_t stage;  // SPLIT_STAGE: whose rows
    int64_t *shares; // [count + 1]: part p takes [shares[p], shares[p + 1]) of shares[count]
};

/// Which instance of a stage: a layer of the group (`split layers`), a part of the tokens, and of the part a piece: of each
/// wave of experts, where the stage handles routed rows, each run of its rows (`split STAGE`, or the pieces of a fill).
struct point {
    int64_t layer, part, piece; // piece ALL_PIECES: each of them
};
#define ALL_PIECES (-1)

struct stage_info {
    const char *name;
    uint32_t first_task, task_count; // rows of the graph
    bool named;                      // the schedule binds or issues it, or lists it: it must issue it
    bool routed;                     // handles routed rows: has an instance per wave of experts
    bool row_wise;                   // a row of its result needs that row of its arguments alone
    bool external;                   // the embedding program's function
    bool expert;                     // on routed rows: can take them in pieces, one after the other
    bool chunked;                    // a dispatch or a combine: rows, or replies, can go in chunks, each of a run of tokens
    int64_t runs;                    // of its rows of a part: what a split or a fill of the stage says; 1
    int64_t *shares;                 // [runs + 1]
    int64_t pieces;                  // of a part: runs of every wave
    node_id cut;                     // the split or fill that says runs; 0: none
};

struct binding {
    bool given;
    uint32_t stream; // NONE: a stream array whose element each step picks
    str_id stream_name;
    int64_t sms, priority;
    node_id path; // of the bind statement
};

struct task_info {
    const char *label; // `dispatch.send`
    uint32_t stage;
    uint32_t phase;
    uint32_t engines;
    uint32_t first_cell;  // of a layer's cells: one for every part and piece (after the text has run)
    struct binding bound; // `bind dispatch.send to`
};

struct stream_info {
    str_id name;       // of the array: `tx`
    const char *label; // `tx[0]`
    int64_t index;     // NONE as -1: no array
    uint32_t engines;
    int64_t sms, priority;
    node_id node;
};

enum issued { ISSUED_HERE, ISSUED_LATE, ISSUED_IN_STALLS }; // by a flow, by `defer`, by `fill`

struct item { // one instance as the text issues it; sync: a barrier
    bool sync;
    enum issued how;
    uint32_t stage;
    uint32_t task; // NONE: the whole stage
    struct point at;
    node_id instance; // of the text; a SYNC node for a barrier
    uint32_t stream;  // given by `on` or `fill`, else NONE
    node_id flow;
    struct rows units;
};

struct issue {
    uint32_t item, task, layer, part, piece, stream; // layer: of the group
};

enum relation_kind { RELATION_ORDER, RELATION_OVERLAP };
struct relation { // between all of one run of items and all of another
    enum relation_kind kind;
    struct rows left, right; // of items
    node_id node;
};

struct order_claim { // `order a before b`: what it names is looked up after everything is issued
    uint32_t stage[2], task[2];
    struct point at[2];
    node_id instance[2], node;
};

struct complaint { // an error that statements of one loop, or stages of one stream, share: said once
    enum diag_code code;
    node_id cause;
    str_id about;
};

struct claim { // `assert`, `expect`, and the names where it stands
    node_id node;
    struct name_value *names;
    uint32_t name_count;
};

struct elaboration {
    struct context *context;
    const struct program_text *program;
    const struct ast *ast;
    const struct ir *module, *graph;
    const struct forecast *forecast;
    const struct mod_schedule *source;
    const struct ast_node *text; // the SCHEDULE node
    uint32_t file;
    struct stage_info *stages;
    struct task_info *tasks;
    struct binding *whole; // by stage
    uint32_t stage_count, task_count;
    struct stream_info *streams;
    uint32_t stream_count, stream_capacity;
    struct name_value *names;
    uint32_t name_count, name_capacity;
    struct split_info splits[SPLITS_MAX];
    uint32_t split_count;
    int64_t parts;
    int64_t *shares;   // [parts + 1]: part p takes [shares[p], shares[p + 1]) of shares[parts]
    int64_t waves;     // of experts
    int64_t *wave_shares;
    int64_t layers;    // of the step
    int64_t group;     // consecutive layers that the text orders together
    str_id pipelined;  // the variable of the pipelined loop; 0: none
    int64_t low, high; // of that loop
    struct item *items;
    uint32_t item_count, item_capacity;
    uint32_t turns;    // of all loops together
    struct relation *relations;
    uint32_t relation_count, relation_capacity;
    struct complaint *complaints;
    uint32_t complaint_count, complaint_capacity;
    struct claim *claims;
    uint32_t claim_count, claim_capacity;
    struct order_claim *orders;
    uint32_t order_count, order_capacity;
    struct issue *units;
    uint32_t unit_count, unit_capacity;
    uint32_t cells;    // of one layer
    uint32_t *unit_of; // by layer of the group and cell: the unit that issues it, or NONE
    bool failed;
    bool undeclared;   // a declaration is wrong: what would rest on it is not asked any more
};

#define APPEND(e, array, count, capacity)                                                                     \
    ((e)->array = context_grow((e)->context, (e)->array, &(e)->capacity, (e)->count + 1, sizeof *(e)->array), \
     &(e)->array[(e)->count++])

static inline const struct ast_node *ast_node_of(const struct elaboration *e, node_id id)
{
    return node_at(e->ast, id);
}
/// Opens an error at a node; elaboration goes on, to find more.
#define elaboration_error(e, code, span, ...) ((e)->failed = true, diag_error((e)->context, code, span, __VA_ARGS__))

/// The phases `pack` and `merge`, which go where their engine is unless the text says otherwise.
static inline bool is_placed_phase(uint32_t phase)
{
    return phase == phase_pack || phase == phase_merge;
}
/// [count + 1] shares, all equal.
int64_t *equal_shares(struct elaboration *e, int64_t count);
/// The innermost loop around a place of the text; 0: none.
node_id loop_around(const struct elaboration *e, struct span place);
/// The same of any BLOCK.
node_id innermost_loop(const struct ast *ast, node_id block, struct span place);
/// False: the same was said for that cause (a loop, a stream) already.
bool first_complaint(struct elaboration *e, enum diag_code code, node_id cause, const char *about);
/// Is the task issued by the stage's instance, or placed by rule?
bool left_to_rule(const struct elaboration *e, uint32_t task);
/// The number of an instance of a task among a layer's.
static inline uint32_t cell_of(const struct elaboration *e, uint32_t task, int64_t part, int64_t piece)
{
    return e->tasks[task].first_cell + (uint32_t)(part * e->stages[e->tasks[task].stage].pieces + piece);
}

// split.c
void declare_split(struct elaboration *e, node_id id);
/// The split of a kind (and of a stage), or NULL.
const struct split_info *find_split(const struct elaboration *e, enum split_kind kind, uint32_t stage);
/// Where the count stands: `4` of `split tokens into 4 as i`.
struct span split_span(const struct elaboration *e, const struct split_info *split);
/// Labels at the splits that make a stage's instances: "makes microbatches 0..4".
void label_splits(struct elaboration *e, struct diag *diag, uint32_t stage);
/// `i, w`: the names of a stage's indices.
const char *index_names(const struct elaboration *e, uint32_t stage);
/// What the indices of an INSTANCE of that stage name. False: an error, or it vanishes (outside a pipelined loop's range,
/// or a layer that this step lacks).
bool instance_point(struct elaboration *e, node_id id, uint32_t stage, struct point *at);
/// `fill ... { pieces: k }` cuts the stage's rows.
bool cut_stage(struct elaboration *e, node_id fill, node_id record, uint32_t stage);
/// "[1]", "[0,1]", "" when nothing that concerns the stage is split; a piece of a fill is "[1].0".
const char *index_text(const struct elaboration *e, uint32_t stage, struct point at);
/// `dispatch.send[1]`; task NONE: the stage.
const char *instance_label(const struct elaboration *e, uint32_t stage, uint32_t task, struct point at);

// names.c
bool push_name(struct elaboration *e, str_id name, int64_t value, struct span span);
bool find_stage(struct elaboration *e, node_id path, uint32_t *stage, uint32_t *task);
bool evaluate_here(struct elaboration *e, node_id expression, int64_t *value);
/// The same of an attribute, for messages.
bool evaluate_named(struct elaboration *e, const char *what, node_id expression, int64_t *value);
/// The same with one more name.
bool evaluate_with(struct elaboration *e, str_id name, int64_t value, node_id expression, int64_t *result);
/// The stream of that name (and index, for an array); NONE with an error.
uint32_t find_stream(struct elaboration *e, str_id name, node_id index, struct span span);
const char *engine_names(struct context *context, uint32_t mask);

// declare.c
void declare_stream(struct elaboration *e, node_id id);
void declare_bind(struct elaboration *e, node_id id);

// interpret.c, resolve.c, coverage.c, place.c
void interpret_block(struct elaboration *e, node_id block);
void resolve_items(struct elaboration *e);
void check_coverage(struct elaboration *e);
void place(struct elaboration *e, struct ir *schedule);

#endif
