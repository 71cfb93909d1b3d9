// What the files of lowering share. A schedule is lowered in four steps: the layer is read into paths (layer.c), every
// instance becomes draft instructions over logical buffers (instructions.c), logical buffers are laid onto plan buffers
// and the arena (buffers.c, arena.c), and the drafts are written as the plan's streams (program.c).
//
// A *family* is a role that a buffer plays (`xd.send`); a *logical buffer* is a family for one layer, part and wave of
// experts; several logical buffers of a family, part and wave share one plan_buffer where the order allows it, and
// plan_buffers share bytes. Part and wave are one number here, the *cell*: part * waves + wave; what is not split by waves
// is at home in wave 0.
#ifndef MOECC_LOWER_H
#define MOECC_LOWER_H

#include "compiler/lower/program.h"
#include "runtime/plan/limits.h"
#include "runtime/plan/roles.h"
#include "runtime/plan/slots.h"

// ------------------------------------------------------------------------------------------------- formulas (slots.c)

/// p_d = 1 - C(E - owned, k) / C(E, k): the chance that a token has an expert among `owned` of `experts`.
double slot_hit_share(int64_t experts, double owned, int64_t choices);
/// min(most, ceil(capacity * B * hit)); products within 1e-9 of an integer count as that integer.
int64_t slot_base_rows(int64_t bound, int64_t most, double capacity, double hit);
/// ceil(pool * ranks * base_rows): the elastic rows of one destination.
int64_t slot_pool_rows(double pool, int64_t ranks, int64_t base_rows);
/// Most overflow rounds at one destination: ceil((ranks - 1) * left_rows / pool_rows), `left_rows` being what one source can
/// have for it beyond its slots; -1: rows may be left over.
int64_t slot_rounds(int64_t ranks, int64_t left_rows, int64_t pool_rows);

// ------------------------------------------------------------------------------------------------- the layer (layer.c)

/// The formats in which the rows of an exchange travel, by the axis that they cross. Their sizes are filled in when the
/// exchange is made.
struct wire_set {
    struct plan_wire wires[MOE_MAX_WIRES];
    uint32_t count;
    int64_t of_axis[MOE_MAX_AXES];
    struct rows rows; // of plan_wire
};

/// One routed computation, route -> dispatch -> expert -> combine, or (dense) an expert over plain rows. Stage numbers
/// are rows of mod_stage, w_* rows of plan_param, kernels rows of plan_kernel.
struct path {
    bool dense;
    uint32_t route, dispatch, expert, combine;
    int64_t width, ffn, experts, choices; // experts: of the router; dense: that every token takes
    enum dtype x_dtype, a_dtype, y_dtype;
    int64_t arithmetic;          // format (moe_wire_code) that rows are multiplied in; 0: a_dtype
    enum dtype a_elements;       // of rows of A and of hidden ones: a_dtype, or what holds their codes
    struct wire_set wire, reply; // of the dispatch and of the combine
    bool by_row;                 // A has one row for each routed row, else one for each pair
    bool own_apart;              // own rows, which never take a wire format, have a table of their own
    uint32_t handed;             // with relays: the format in which replies are handed to them
    bool staged;                 // some replies are packed from staging rows
    double capacity, pool;
    enum overflow overflow;
    uint32_t w_router, w_up, w_down, b_up, b_down; // biases: NONE where there are none
    bool plain;                                    // experts of two matrices, without a gate
    bool weighted_input;       // the routing weight multiplies the expert's input instead of its output
    uint32_t bias, logit_bias; // NONE: one number for all experts
    int64_t a_stride, hidden_stride, acc_stride;
    bool limited; // experts take a limited number of a rank's tokens
    uint32_t route_kernel, bin_kernel, round_kernel, fan_kernel, unpack_kernel[MOE_MAX_WIRES], own_kernel, up_kernel,
        down_kernel, dense_kernel, fold_kernel, sum_kernel;
    uint32_t merge_kernels[2][2]; // [adds to a sum][ends: writes the result, not the sum]
    uint32_t pack_kernel[MOE_MAX_WIRES], reply_kernel[MOE_MAX_WIRES]; // reply: NONE where sums go out as they are
    uint32_t node;                // ranks that share a relay (`via`); 0: rows go directly
    uint32_t first_family;
    double *hits;        // by wave and rank: rows that a token has there, in expectation
    uint32_t pieces;     // messages that the rows of the dispatch go in: 1, or `split dispatch`
    uint32_t chunks;     // messages that each reply of the combine goes in: 1, or `split combine`
    uint32_t runs;       // pieces in which a routed expert takes the rows: 1, or `split expert`
    uint32_t workplaces; // dense: sets of the first four families, 1 or one per piece
};

/// Families of a routed path, in order; a dense path uses pairs to acc.
enum path_family {
    F_PAIRS,
    F_A,
    F_HIDDEN,
    F_ACC,
    F_IDS,
    F_WEIGHTS,
    F_BINS,
    F_SEND,
    F_RECV,
    F_STAGE,
    F_OWN,
    F_REPLY_SEND,
    F_REPLY_RECV,
    F_POOL_SEND,
    F_POOL_RECV,
    F_ROUND,
    F_POOL_PAIRS,
    F_POOL_A,
    F_POOL_HIDDEN,
    F_POOL_ACC,
    F_POOL_STAGE,
    F_POOL_REPLY,
    F_SPILL,
    F_SUM, // of the replies of waves that are merged already, f32
    F_SPILL_SUMS,
    F_PACKED, // sums of replies that came in rounds, as a relay would send them
    F_RELAY,
    F_GATHER,
    F_SUMS,
    F_FOLDS,
    F_TAKEN, // places of experts that tokens have taken, i32
    F_COUNT,
    F_DENSE_COUNT = F_ACC + 1,
    F_CHUNK_FIRST = F_GATHER, // replies in chunks through relays: these once for every chunk
    F_CHUNK_COUNT = F_FOLDS + 1 - F_GATHER
};

struct family {
    str_id name; // of the plan
    enum dtype dtype;
    int64_t row_bytes;
    bool control;  // shares no byte with anything else
    uint32_t path; // NONE: a value between stages
    enum path_family kind;
    uint32_t chunk; // of the replies
    uint32_t value; // mod_value row of such a value
};

// ------------------------------------------------------------------------------------------- drafts (instructions.c)

/// An access of one logical buffer by one instance: on its own rank, or (remote) on every other rank.
struct touch {
    uint32_t logical, instance;
    uint16_t first_step, last_step; // place inside the instance; an overflow loop is one step
    bool remote;
};

struct operand {
    uint32_t buffer; // logical number; from arena_count on: input, output, parameters
    enum access access;
    uint32_t slice; // part, or NONE
    bool first;     // begins the contents
};

struct draft {
    enum opcode op;
    uint32_t phase; // phase_words_count: the instance's
    uint32_t range; // whose rows it works on, as in instance_range
    uint32_t kernel, exchange;
    uint32_t operand_count;
    struct operand operands[MOE_MAX_ARGS];
    double cost;
    bool by_experts; // the cost grows with the experts that a rank owns
};

struct drafts { // of one instance
    uint32_t first, count;
};

enum { EXCHANGE_DISPATCH, EXCHANGE_COMBINE, EXCHANGE_POOL_DISPATCH, EXCHANGE_POOL_COMBINE, EXCHANGE_KINDS };

struct logical {
    uint32_t first_touch, touch_count; // after sort_touches
    uint32_t buffer;                   // plan_buffer row; NONE: unused
    uint32_t first_instance, last_instance;
    uint32_t *ends, *begins; // [touched from: own rank, others][stream]: see sum_up
};

struct lowering {
    struct context *context;
    const struct program_text *program; // NULL: no places
    const struct ir *module, *graph, *schedule;
    struct ir *plan;
    const struct mod_pipeline *pipeline;
    const struct mod_layer *layer;
    uint32_t ranks, layers, parts, waves, cells;
    uint32_t *first_piece; // by task of the graph that works in pieces: its first piece, counted like parts
    uint32_t variant, first_part; // plan rows
    int64_t bound;
    double flops_per_s, bytes_per_s;

    struct path *paths;
    uint32_t path_count, path_capacity;
    struct family *families;
    uint32_t family_count, family_capacity;
    uint32_t *value_family; // by mod_value row: family or NONE
    uint32_t *exchanges;    // [path][layer][cell][EXCHANGE_KINDS]: plan rows or NONE

    uint32_t arena_count; // logical buffers: family_count * layers * cells
    struct logical *logicals;
    uint32_t first_buffer; // plan row of the variant's first buffer; then input, output, parameters, arena
    struct touch *touches;
    uint32_t touch_count, touch_capacity;
    struct draft *drafts;
    uint32_t draft_count, draft_capacity;
    struct drafts *of_instance;

    struct order_closure *order;
    uint32_t *class_of_rank; // ranks that have equal buffers: they own equally many experts
    uint32_t *class_rank;    // a rank of each class
    uint32_t class_count;
    bool failed;
};

/// Queues an error at a stage of the module (at its option, where one is named) and marks the lowering failed. Returns
/// the open record.
struct diag *lower_refuse(struct lowering *l, enum diag_code code, uint32_t stage, const char *option,
                          const char *format, ...) __attribute__((format(printf, 5, 6)));

const struct mod_stage *lower_stage(const struct lowering *l, uint32_t stage);
/// Whether a stage is an expert, with or without a gate.
bool lower_is_mlp(const struct lowering *l, uint32_t stage);
/// The operator's kernel name for a stage: "route", "dispatch", "grouped_mlp", "combine", "add"; "" for extern stages.
const char *lower_kernel_name(const struct lowering *l, uint32_t stage);

bool read_layer(struct lowering *l); // paths, families, kernels
struct path *path_of_stage(const struct lowering *l, uint32_t stage);
/// Do ranks answer in this format of the combine's? Do relays pack sums in it, or send them so as they are?
bool is_answer_format(const struct lowering *l, const struct path *p, uint32_t format);
bool is_sum_format(const struct lowering *l, const struct path *p, uint32_t format);
/// The first task of a stage of the module; all of them work in the same pieces.
uint32_t task_of_stage(const struct lowering *l, uint32_t stage);

// kernels.c: rows of plan_kernel, equal ones shared over the whole plan
void make_kernels(struct lowering *l, struct path *path);
/// The row of a kernel with its role and constants; the rest is filled in.
uint32_t kernel_row(struct lowering *l, struct plan_kernel kernel);
/// Drops choices `first` to `end` of a token beyond the router's limit.
uint32_t limit_kernel(struct lowering *l, const struct path *p, int64_t first, int64_t end);

// params.c
/// The place of a stage, or of the option `name` in its call where the user wrote it.
struct span lower_place(const struct context *context, const struct program_text *program,
                        const struct mod_stage *stage, const char *option);
/// ir_add that cannot fail.
uint32_t lower_add(struct context *context, struct ir *plan, uint32_t table);
/// The plan_param row of a parameter of the module, or NONE.
uint32_t plan_param_of(const struct ir *plan, const struct ir *module, uint32_t param);

// hits.c
/// Fills the paths' `hits`.
void find_hits(struct lowering *l);
static inline double rank_hit(const struct lowering *l, const struct path *p, uint32_t rank, uint32_t wave)
{
    return p->hits[(size_t)wave * l->ranks + rank];
}

// exchanges.c
bool make_exchanges(struct lowering *l);
static inline uint32_t exchange_of(const struct lowering *l, uint32_t path, uint32_t layer, uint32_t cell,
                                   uint32_t kind)
{
    return l->exchanges[((path * l->layers + layer) * l->cells + cell) * EXCHANGE_KINDS + kind];
}
/// Experts of a rank in a wave.
static inline int64_t wave_experts(const struct lowering *l, uint32_t rank, uint32_t wave)
{
    struct sched_share share = wave_share(l->schedule, wave);
    return slots_wave_begin(l->plan, rank, share.end, share.total) - slots_wave_begin(l->plan, rank, share.begin, share.total);
}
/// The number of a family among those of its path; `chunk`: of the replies through relays.
static inline uint32_t chunk_family(uint32_t kind, uint32_t chunk)
{
    return chunk && kind >= F_CHUNK_FIRST && kind < F_CHUNK_FIRST + F_CHUNK_COUNT
               ? F_COUNT + (chunk - 1) * F_CHUNK_COUNT + kind - F_CHUNK_FIRST
               : kind;
}
/// `1` or, with waves, `1,0`: what follows a name.
const char *cell_text(const struct lowering *l, uint32_t cell);

// instructions.c
/// Which rows an instance works on, counted like parts: its part, or a piece of it.
static inline uint32_t instance_range(const struct lowering *l, const struct sched_instance *instance)
{
    uint32_t pieces = ROW(l->schedule, sched_task, instance->task)->pieces;
    return pieces == 1 ? instance->part : l->first_piece[instance->task] + instance->part * pieces + instance->piece;
}
static inline uint32_t logical_of(const struct lowering *l, uint32_t family, uint32_t layer, uint32_t cell)
{
    return (family * l->layers + layer) * l->cells + cell;
}
void draft_instances(struct lowering *l);

// buffers.c
bool make_buffers(struct lowering *l); // plan_buffer rows, exchanges' buffers
int64_t logical_bytes(struct lowering *l, uint32_t logical, uint32_t rank);
uint32_t buffer_of_operand(const struct lowering *l, const struct operand *operand);
/// Does every access of the first logical buffer end before any of the second begins?
bool logical_before(const struct lowering *l, uint32_t first, uint32_t second);

// arena.c
/// The extents of all buffers for each class of ranks, and the arena that they need.
bool place_buffers(struct lowering *l, struct rows *extents, int64_t *arena_bytes);

#endif
