// Tensors as the checker sees them inside a layer, and the application of an operator to them.
#ifndef MOECC_CHECK_TYPES_H
#define MOECC_CHECK_TYPES_H

#include "compiler/check/check.h"

enum { MAX_DIMS = 4, MAX_ARGS = 32, MAX_VARIABLES = 16 };

/// A size. Two are equal when value and owner are: `tokens` (at most 4096) is not 4096.
struct dim {
    int64_t value;
    node_id owner;              // 0: static; else the `<=` dim, or the stage that makes as many rows as it needs
    const char *text;           // as written: `2 * ffn`
    node_id node;               // its expression, or 0
};

struct tensor {
    str_id name;
    enum value_kind kind;
    uint32_t format;            // module row; routes: NONE
    uint32_t dim_count;
    struct dim dims[MAX_DIMS];
    int64_t experts;            // of routes and routed rows
    const char *experts_text;
    uint32_t value, param;      // module rows: one is NONE
    struct span declared;       // its type, or the result's name
    bool is_declared;           // the place is a type that could be corrected
};

/// A named thing of a layer; stages are typed when something needs their result.
struct layer_name {
    str_id name;
    node_id node;               // where it is defined
    node_id stage;              // 0: input or parameter
    struct span span;
    struct tensor tensor;
};

enum stage_state { STAGE_NEW, STAGE_PENDING, STAGE_DONE, STAGE_FAILED };
struct layer_stage {
    node_id node;
    enum stage_state state;
};

struct layer_state {
    struct checker *checker;
    struct symbol item;
    struct scope scope;         // lets of the layer
    struct local *lets;
    uint32_t let_capacity;
    struct layer_name *names;
    uint32_t name_count, name_capacity;
    struct layer_stage *stages;
    uint32_t stage_count, stage_capacity;
};

/// What a NAME in the layer stands for, its stage typed first; NULL with a message queued.
struct tensor *find_tensor(struct layer_state *layer, node_id expression);
/// The same, but NULL and silent when there is no such name.
struct layer_name *find_layer_name(const struct layer_state *layer, str_id name);
/// "[experts, 2 * ffn, hidden]"
const char *dims_text(struct checker *checker, const struct dim *dims, uint32_t count);
bool dims_equal(const struct dim *a, const struct dim *b);
/// May rows travel in the formats that a `wire` option names, over axes that the cluster (NULL: not known) has?
bool check_wire(struct checker *checker, const struct mod_cluster *cluster, const struct mod_arg *arg,
                struct span place);
const char *format_name(const struct checker *checker, uint32_t format);
/// May rows of a type be multiplied in the format that an `arithmetic` option names?
bool check_arithmetic(struct checker *checker, const struct mod_arg *arg, uint32_t rows, struct span place);

/// Element types that may meet: equal, or f16 or bf16 with f32; block formats decode to whatever they meet.
bool formats_meet(const struct checker *checker, uint32_t a, uint32_t b);

struct variable {
    str_id name;
    struct dim dim;
    const char *source;         // the argument it comes from
};

/// One call of an operator in a stage.
struct application {
    struct layer_state *layer;
    struct symbol op;
    node_id stage, call;
    struct variable variables[MAX_VARIABLES];
    uint32_t variable_count;
    node_id params[MAX_ARGS];   // of the op: PARAM
    node_id given[MAX_ARGS];    // the argument's expression
    const struct tensor *tensors[MAX_ARGS];
    uint32_t param_count;
};

/// Types the call: `args` (MAX_ARGS) receives arguments and options in the op's order.
/// `kernel`: what the operator names, "" for none.
bool apply_operator(struct layer_state *layer, node_id stage, struct symbol op, const char *kernel,
                    struct tensor *result, struct mod_arg *args, uint32_t *arg_count);
/// Sizes and element types of the tensor arguments, and the result's.
bool unify_arguments(struct application *call);
bool unify_tensor(struct application *call, node_id type, const struct tensor *tensor, node_id expression, node_id declared);
bool make_result(struct application *call, struct tensor *result);
struct variable *find_variable(struct application *call, str_id name);
bool read_options(struct application *call, struct mod_arg *args, uint32_t *arg_count);
/// Whether a declaration that names a built-in kernel is that kernel's: arguments, result, options, phases (roles.c).
/// True for other kernels, which a later stage refuses.
bool check_role(struct checker *checker, const char *kernel, node_id op);
/// Whether the tensors of a call are of the kinds that the operator's kernel works on: rows or parameters.
bool check_role_arguments(struct application *call, const char *kernel);
/// Warns of results that nothing reads and parameters that nothing takes, in a layer without errors.
void warn_unused(struct checker *checker, const struct mod_layer *layer, node_id yield);
/// The single name that an op's type begins with: "any", "routes", "f32", "choice".
const char *type_word(const struct checker *checker, node_id type);

#endif
