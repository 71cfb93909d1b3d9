// Inside elaboration: the text of a schedule becomes items (instances as written, in issue order) and relations between
// them; items become units (one task of one part and wave on one stream); units are repeated per layer and the tasks that
// rules place are put between them.
//
// An instance's indices are one number here, its *cell*: part * waves + wave. Tasks that handle no routed rows have the
// cells of wave 0 only.
//
//   elaborate.c   knobs, and the table of contents
//   declare.c     split, stream, bind
//   interpret.c   loops, conditions and flows -> items and relations
//   resolve.c     items -> units: streams, engines
//   coverage.c    every instance issued exactly once
//   place.c       units -> all layers, automatic tasks, edges -> the schedule's tables
#ifndef MOECC_ELABORATE_H
#define MOECC_ELABORATE_H

#include "compiler/schedule/schedule.h"

struct stage_info {
    const char *name;
    uint32_t first_task, task_count; // rows of the graph
    bool named;                      // the schedule binds or issues it, or lists it: it must issue it
    bool routed;                     // has an instance per wave of experts
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

struct item { // one instance as the text issues it; sync: a barrier
    bool sync;
    uint32_t stage;
    uint32_t task; // NONE: the whole stage
    int64_t cell;
    node_id instance; // of the text; a SYNC node for a barrier
    uint32_t stream;  // given by `on`, else NONE
    node_id flow;
    struct rows units;
};

struct issue {
    uint32_t item, task, cell, stream;
};

enum relation_kind { RELATION_ORDER, RELATION_OVERLAP };
struct relation { // between all of one run of items and all of another
    enum relation_kind kind;
    struct rows left, right; // of items
    node_id node;
};

struct order_claim { // `order a before b`: what it names is looked up after everything is issued
    uint32_t stage[2], task[2];
    int64_t cell[2];
    node_id instance[2], node;
};

struct elaboration {
    struct context *context;
    const struct program_text *program;
    const struct ast *ast;
    const struct ir *module, *graph;
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
    node_id split; // of tokens; 0: one part
    int64_t parts;
    node_id wave_split; // of experts; 0: one wave
    int64_t waves;
    bool waves_first; // `split experts` stands before `split tokens`: so do the indices
    bool pipelined;
    uint32_t loop;     // the pipelined loop's variable, in names
    int64_t low, high; // its range
    struct item *items;
    uint32_t item_count, item_capacity;
    struct relation *relations;
    uint32_t relation_count, relation_capacity;
    struct order_claim *orders;
    uint32_t order_count, order_capacity;
    struct issue *units;
    uint32_t unit_count, unit_capacity;
    uint32_t *unit_of; // by task * cells + cell: the unit that issues it, or NONE
    bool failed;
};

#define APPEND(e, array, count, capacity)                                                                     \
    ((e)->array = context_grow((e)->context, (e)->array, &(e)->capacity, (e)->count + 1, sizeof *(e)->array), \
     &(e)->array[(e)->count++])

static inline const struct ast_node *ast_node_of(const struct elaboration *e, node_id id)
{
    return node_at(e->ast, id);
}
/// Where a split's number stands: `4` of `split tokens into 4 as i`.
static inline struct span split_span(const struct elaboration *e, node_id split)
{
    return ast_node_of(e, ast_node_of(e, split)->slot[1])->span;
}
static inline int64_t cell_count(const struct elaboration *e)
{
    return e->parts * e->waves;
}
static inline bool has_cell(const struct elaboration *e, uint32_t stage, int64_t cell)
{
    return e->stages[stage].routed || cell % e->waves == 0;
}
/// Opens an error at a node; elaboration goes on, to find more.
#define elaboration_error(e, code, span, ...) ((e)->failed = true, diag_error((e)->context, code, span, __VA_ARGS__))

/// The phases `pack` and `merge`, which go where their engine is unless the text says otherwise.
static inline bool is_placed_phase(uint32_t phase)
{
    return phase == phase_pack || phase == phase_merge;
}
/// Is the task issued by the stage's instance, or placed by rule?
bool left_to_rule(const struct elaboration *e, uint32_t task);
/// `dispatch.send[1]`, `dispatch.send[1,0]`, or without an index when nothing is split. task NONE: the stage.
const char *instance_label(const struct elaboration *e, uint32_t stage, uint32_t task, int64_t cell);
/// `[1,0]`, or nothing.
const char *index_label(const struct elaboration *e, uint32_t stage, int64_t cell);
/// Labels the splits that give a stage its indices: "makes microbatches 0..4".
void label_splits(const struct elaboration *e, struct diag *diag, uint32_t stage);

// names.c
bool push_name(struct elaboration *e, str_id name, int64_t value, struct span span);
bool find_stage(struct elaboration *e, node_id path, uint32_t *stage, uint32_t *task);
bool evaluate_here(struct elaboration *e, node_id expression, int64_t *value);
/// The stream of that name (and index, for an array); NONE with an error.
uint32_t find_stream(struct elaboration *e, str_id name, node_id index, struct span span);
const char *engine_names(struct context *context, uint32_t mask);

// declare.c
void declare_split(struct elaboration *e, node_id id);
void declare_stream(struct elaboration *e, node_id id);
void declare_bind(struct elaboration *e, node_id id);

// interpret.c, resolve.c, coverage.c, place.c
void interpret_block(struct elaboration *e, node_id block);
void resolve_items(struct elaboration *e);
void check_coverage(struct elaboration *e);
void place(struct elaboration *e, uint32_t layers, struct ir *schedule);

#endif
