// AST -> Module: names, units, shapes, places. All semantic errors that do not concern the order of a schedule live here.
#ifndef MOECC_MODULE_H
#define MOECC_MODULE_H

#include "compiler/syntax/ast.h"
#include "runtime/plan/words.h"

#define RECORDS_DEF "compiler/check/module.def"
#include "runtime/plan/records_structs.h"

extern const struct ir_type module_ir;

/// What the command line changes about a program before it is checked.
struct check_options {
    const char *pipeline;       // NULL: the only one
    bool every_pipeline;        // with `pipeline` NULL: all that the file has
    const char *schedule;       // `ladder(n: 4)`: replaces every use; NULL: none
    const char *const *dims;    // "tokens=2048"
    uint32_t dim_count;
    uint32_t ranks;             // 0: the cluster's own; resizes a cluster of one axis
    const char *target;         // "cpu", "sim", "cuda:sm_90a"; NULL: the pipeline's
    int64_t layer;              // checkpoint layer to run alone; -1: all
    bool deployed;              // for an executable: weight paths stay as written, relative to its working directory
};

enum { SM_MAX = 65536, COPY_ENGINES_MAX = 64 }; // of a device; schedules name copy engines copy[0] to copy[63]

/// Checks everything in the root file and what it uses. `module` is zeroed or empty (ir_init with module_ir); the caller
/// frees it, also after errors. Its strings are its own (ir_str). On success `*pipelines` are the rows of the chosen ones
/// (none when the file has none: a library file). False when errors were queued.
bool check_program(struct context *context, struct program_text *program, const struct check_options *options,
                   struct ir *module, struct rows *pipelines);

/// Semantic invariants of a module, after ir_check: owners cover every expert, values typed, choices cover 0..bound.
bool module_check(const struct ir *module, char *error, size_t size);

/// Constant evaluation for schedule elaboration: an integer expression over named integers (knobs, lets, indices) and the
/// module's dims and constants. False (queued) when it is not constant or not an integer.
struct name_value {
    str_id name;                // of the context
    int64_t value;
};
/// `what`: the attribute, for messages; NULL: just a place where an integer stands.
bool evaluate_integer(struct context *context, const struct program_text *program, uint32_t file, node_id expression,
                      const struct name_value *names, uint32_t name_count, const char *what, int64_t *value);
/// The same for a condition.
bool evaluate_condition(struct context *context, const struct program_text *program, uint32_t file, node_id expression,
                        const struct name_value *names, uint32_t name_count, bool *value);

/// The axis that a message between two ranks crosses: the outermost in which they differ (a row of mod_axis). NONE: a == b.
uint32_t cluster_axis_between(const struct ir *module, const struct mod_cluster *cluster, int64_t a, int64_t b);
/// How a rank shares out what it sends to an expert: by row of `owners`, the share of its rows for that expert alone which
/// that holder computes. Nearest first, those equally near alike. `near`: room for one of each expert.
struct nearest {
    uint32_t axis, count;
};
void copy_shares(const struct ir *module, const struct mod_placement *placement, int64_t source, struct nearest *near,
                 double *shares);
const struct mod_device *cluster_device(const struct ir *module, const struct mod_cluster *cluster, int64_t rank);
/// FLOP/s that a good kernel reaches there: the bf16 peak, or else the f32 peak, times derate. 0: no peak is given.
double device_rate(const struct mod_device *device);

/// One comparison of an `assert` or `expect`: a metric and its limit, whichever side the metric stands on.
struct budget {
    enum metric metric;
    node_id node, named, limit; // the comparison; the metric's NAME or CALL; the expression it is compared with
    const char *compare;        // with the metric on the left
};
/// False when the expression is no such comparison.
bool read_budget(const struct context *context, const struct ast *ast, node_id comparison, struct budget *budget);
/// The limit in the metric's unit (bytes, ns, shares and ratios as factors). False (queued) when it is of another kind.
bool evaluate_limit(struct context *context, const struct program_text *program, uint32_t file,
                    const struct budget *budget, const struct name_value *names, uint32_t name_count, double *value);

/// Options of a stage by the op's name for them; NULL when the op has none of that name.
const struct mod_arg *stage_arg(const struct ir *module, const struct mod_stage *stage, const char *name);
/// Does the router have a limit on an expert's tokens that some step of `bound` tokens a rank can meet?
bool route_is_limited(const struct ir *module, const struct mod_stage *route, int64_t bound);

#endif
