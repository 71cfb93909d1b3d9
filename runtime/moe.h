// moe.h - the public interface of the moecc runtime (libmoe): open a plan, load weights, run steps, read statistics.
//
// Thread safety: different sessions may be used by different threads; one session by one thread at a time.
// Errors: every function returns a moe_status; outputs are set only on MOE_OK. moe_session_error / moe_last_error say in
// words what went wrong: file, tensor, rank, stream, instruction. After a failed step a session refuses further steps.
// Nothing here aborts, and nothing prints unless a log callback is set.
#ifndef MOE_H
#define MOE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define MOE_STATUSES(S)                                                                                                \
    S(MOE_OK, "fine")                                                                                                  \
    S(MOE_INVALID, "an argument is invalid")                                                                           \
    S(MOE_BAD_PLAN, "the plan is damaged or of another version")                                                       \
    S(MOE_BAD_WEIGHTS, "the weights do not fit the plan")                                                              \
    S(MOE_BAD_INPUT, "the step's input is wrong")                                                                      \
    S(MOE_UNSUPPORTED, "this machine or build cannot do that")                                                         \
    S(MOE_NO_MEMORY, "out of memory")                                                                                  \
    S(MOE_IO, "a file or device failed")                                                                               \
    S(MOE_TIMEOUT, "a rank made no progress")                                                                          \
    S(MOE_LOST, "a conservation check failed")                                                                         \
    S(MOE_BROKEN, "the session failed before")                                                                         \
    S(MOE_OVERFLOW, "a row found no slot and the layer says overflow: error")

typedef enum moe_status {
#define MOE_STATUS_ENUM(name, text) name,
    MOE_STATUSES(MOE_STATUS_ENUM)
#undef MOE_STATUS_ENUM
} moe_status;

/// "MOE_TIMEOUT: a rank made no progress"; static text.
const char *moe_status_text(moe_status status);

typedef struct moe_plan moe_plan;
typedef struct moe_session moe_session;

/// Opens a plan file, or an executable or shared object that carries a plan. The plan must outlive its sessions.
moe_status moe_plan_open(const char *path, moe_plan **plan);
/// Opens a plan held in memory; `bytes` are copied. 
moe_status moe_plan_from_memory(const void *bytes, size_t size, moe_plan **plan);
void moe_plan_close(moe_plan *plan);
/// What the last failing moe_plan_* or moe_session_create call of this thread had to say.
const char *moe_last_error(void);

typedef struct moe_plan_info {
    const char *name;               // the pipeline
    uint32_t ranks, experts, choices, layers, first_layer;
    int64_t width;                  // elements of a token row
    int64_t tokens_bound;           // most tokens per rank
    const char *x_dtype, *y_dtype;  // "f32", "f16", "bf16"
    const char *weights;            // checkpoint path the pipeline names, or ""
    double peak_flops;              // FLOP/s of all ranks together, as the cluster's devices state it; 0: they do not
    int quantised;                  // 1: some rows travel in blocks of fewer bits
    const char *target;             // what its kernels are for: "cpu", "cuda", "sim"
    const char *cpu_level;
    uint64_t hash;
} moe_plan_info;
void moe_plan_describe(const moe_plan *plan, moe_plan_info *info);

typedef struct moe_options {
    const char *device;             // "cpu" (default), "sim": a virtual clock, one thread, the same bytes
    const char *transport;          // "local" (default)
    uint32_t threads;               // compute threads of this process; 0: one per core that it may use. A session with one
                                    // rank and one stream has one less and computes in the calling thread, too
    double timeout_s;               // no progress for so long ends the step; 0: 30. What the calling thread itself computes
                                    // for a session with one stream is not timed
    uint64_t seed;                  // of random weights
    int trace;                      // record a timeline of each step (moe_session_trace)
    const char *bind;               // "node" (default): threads stay on their rank's memory node, or last-level cache, where
                                    // the machine has several and libhwloc is installed; "core": each on a core of its
                                    // own; "none". Never outside the processors that the calling thread may use
    int emulate_links;              // messages take what the cluster's bandwidth and latency say ("sim" always does so);
                                    // no rank's threads work for another if `threads` is a multiple of the ranks
    uint64_t jitter;                // testing, "sim": not 0: everything takes a random time, drawn from this
    int poison;                     // fill every buffer with NaN when its lifetime begins (always in debug builds)
    int use_single_layer;           // a step runs checkpoint layer `single_layer` alone, not the plan's layers
    int32_t single_layer;
    const char *fault;              // testing: "drop:RANK", "double:RANK", "misroute:RANK": one row of that rank's messages
    void (*log)(void *user, const char *message);
    void *log_user;
    void (*progress)(void *user, double share); // while weights load, 0..1
    void *progress_user;
} moe_options;

/// Allocates everything a step needs, for all ranks of this process. `options` may be NULL.
moe_status moe_session_create(const moe_plan *plan, const moe_options *options, moe_session **session);
void moe_session_destroy(moe_session *session);

/// Loads weights: a safetensors file, a checkpoint directory, or "random" (reproducible: depends on seed, parameter, layer,
/// expert and index only). Must be called once before the first step.
moe_status moe_session_load(moe_session *session, const char *path);

/// What an `extern stage` gets: `count` rows of each of its tensors, tokens [first, first + count) of the rank. Rows are
/// contiguous, row_bytes[i] each; row_bytes[inputs] is the result's. An empty part is not called.
typedef struct moe_extern_call {
    uint32_t layer;                 // of the checkpoint
    uint32_t rank;
    int64_t first, count;
    uint32_t inputs;
    const void *const *in;          // [inputs], in the order of the stage's arguments
    void *out;
    const int64_t *row_bytes;       // [inputs + 1]
} moe_extern_call;
/// Returns 0, or anything else to end the step on all ranks. Called from the session's threads, for several ranks and
/// parts at once; where the session has one rank and one stream, from the thread that called moe_session_run.
typedef int moe_extern_fn(void *user, const moe_extern_call *call);
/// Name of the plan's number-th extern stage; NULL when it has no more.
const char *moe_plan_extern(const moe_plan *plan, uint32_t number);
/// What stands for an extern stage. Each needs one before the first step, which is refused otherwise.
moe_status moe_session_extern(moe_session *session, const char *name, moe_extern_fn *fn, void *user);

/// One rank's part of a step. Rows are contiguous, `width` elements of x_dtype / y_dtype.
typedef struct moe_step {
    uint32_t rank;
    int64_t tokens;
    const void *in;                 // [tokens, width]
    void *out;                      // [tokens, width], apart from `in`; whole results where the step succeeds
    int32_t *topk_ids;              // [tokens, choices] in order of choice, last layer's; may be NULL
    float *topk_weights;            // [tokens, choices]; may be NULL
    const int32_t *given_ids;       // replaces the router's choice; -1 skips a slot; may be NULL
    const float *given_weights;     // required with given_ids
} moe_step;

/// Runs one step: one entry per rank of this process. Returns when all are done. More tokens than the bound on any rank is
/// MOE_BAD_INPUT before any data moves.
moe_status moe_session_run(moe_session *session, const moe_step *steps, uint32_t count);

/// Measures, in the steps that follow (on: 1) or no longer (0), what rows lose in wire formats with blocks: such steps are
/// slower, their results the same.
moe_status moe_session_measure_loss(moe_session *session, int on);

enum { MOE_AXES = 8 };              // most axes of a cluster

/// What rows lost in their wire format, over all ranks and layers of a step that measured it.
typedef struct moe_wire_loss {
    int64_t rows;                   // that travelled so; 0: none, or not measured
    double relative_l2, cosine;     // |unpacked - row| / |row|; 1 - cosine of the angle between them
} moe_wire_loss;

/// Figures of the last step (times in seconds, shares as fractions, means over ranks unless said).
typedef struct moe_stats {
    const char *schedule;           // the variant that ran
    double step_s;
    double compute_s;               // time in which some kernel of a rank ran
    double comm_s;                  // time in which a message to or from a rank was outstanding
    double exposed_comm;            // share of the step: communication with no compute beside it
    double idle;                    // share of the step: neither
    double beside_experts;          // share of the time in kernels and local copies: what is no expert's product (over all ranks)
    int64_t tokens;                 // over all ranks
    int64_t dropped;                // pairs dropped by the model's own expert_capacity
    int64_t overflowed;             // rows that found no base slot
    int64_t rounds;                 // overflow rounds, summed over exchanges
    int64_t slot_bytes;             // base dispatch slots of one rank, both directions, largest over ranks
    int64_t bytes_sent;             // on the wire, largest over ranks, per layer
    struct {
        const char *name;           // of an axis of the cluster
        int64_t bytes;              // sent across it, largest over ranks, per layer
    } axis[MOE_AXES];               // outermost first
    uint32_t axes;
    double flops;                   // useful FLOPs of the step (router and experts)
    const int64_t *expert_load;     // [experts] tokens per expert, last layer's
    uint32_t experts;
    const char *cpu_level;
    moe_wire_loss dispatch_loss, combine_loss; // where the step measured it
} moe_stats;
moe_status moe_session_stats(const moe_session *session, moe_stats *stats);

/// The last step's measured timeline as Chrome trace JSON. Needs options.trace. MOE_IO leaves errno as the system set it.
moe_status moe_session_trace(const moe_session *session, const char *path);
/// The same as text, `columns` wide, one line per rank and stream. Free with free().
moe_status moe_session_gantt(const moe_session *session, uint32_t columns, char **text);

/// Words for the last error of this session; empty after a load or step that went well.
const char *moe_session_error(const moe_session *session);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
