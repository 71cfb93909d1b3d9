// Inside the runtime: a session, its ranks and streams, and the two tables that keep the executor free of special cases,
// device_ops (where work runs) and transport_ops (how messages travel).
#ifndef MOE_SESSION_H
#define MOE_SESSION_H

#include <pthread.h>

#include "event.h"
#include "pool.h"
#include "runtime/moe.h"
#include "runtime/plan/axes.h"
#include "runtime/plan/limits.h"
#include "runtime/plan/slots.h"
#include "runtime/watch/loss.h"

struct moe_plan {
    struct plan plan;
    void *code; // executable copy of the native code, or NULL
    size_t code_map_bytes;
    moe_kernel_fn **kernels; // one per plan_kernel; NULL for built-ins
};

/// One exchange as one rank sees it. Arrays have one element per rank.
struct exchange_state {
    struct event *arrived;  // messages from each source; the own one counts when the own send is done
    uint64_t received;      // receives done in this step
    uint32_t leaving;       // emulated links: messages of the own send that have departed and not left
    int64_t *source_offset; // slots.h, both sides; of a pool, set by bin in every step
    int64_t *target_offset;
    uint32_t combine; // dispatch: the exchange that answers it
    uint32_t pool;    // base dispatch: its pool dispatch, or NONE
    // Base dispatch, from the overflow vectors of all headers: rows to each rank and those of lower ranks before them,
    // rows from each rank and where they begin; rounds that all ranks agree on.
    int64_t *mine, *ahead, *from, *from_first;
    int64_t rounds;
    // Conservation: rows and pairs to and from each rank in this step.
    int64_t *sent_rows, *sent_pairs, *got_rows, *got_pairs;
    int64_t *awaited; // base dispatch: rows that each rank is to answer, which waves of experts may have sent earlier
};

struct rank {
    struct moe_session *session;
    uint32_t number;
    char *arena;
    void *arena_map, *param_map;
    size_t arena_map_bytes, param_map_bytes;
    void **params; // [plan_param * layers]
    void **bases;  // [plan_buffer] addresses; NULL for the caller's
    _Atomic int32_t *claims; // [plan_buffer] who uses control data (claims.c)
    struct event *semaphores;
    struct exchange_state *exchanges; // [plan_exchange]
    struct stream *streams;           // [session->streams_per_rank]
    const moe_step *step;
    double sm_free; // sim: when its SMs are next idle, ns
};

/// Something that took time: an instruction of a stream, or a message. Times in ns since the step began.
struct span_record {
    int64_t begin, end;
    uint32_t instr;
    uint32_t peer; // messages: destination; instructions: NONE
    int64_t bytes;
};

struct spans {
    struct span_record *at;
    uint32_t count, capacity;
    uint32_t dropped;
};

/// Bytes to be copied.
struct piece {
    char *to;
    const char *from;
    int64_t bytes;
};

/// A message that is to go to a peer.
struct passage {
    struct stream *stream;
    uint32_t exchange, peer;
    int64_t bytes;         // on the wire
    struct piece piece[2]; // header and rows; none: they lie there already
    double share;          // of its send's bytes across the same axis
    bool relayed;          // passed on: no send waits until it has left
};

struct stream {
    struct rank *rank;
    uint32_t index;
    pthread_t thread;
    const struct plan_stream *plan; // of the chosen variant; NULL: nothing to do in this step
    uint32_t pc;                    // next instruction, within plan->instrs
    int64_t began;                  // when it was first tried; < 0: not yet
    uint32_t loop;                  // pc of the open `rounds`
    int64_t round, rounds;
    struct launch launch;
    void *scratch;
    struct spans spans, messages;
    int64_t *routed, *last_routed; // [experts] pairs by the bins of this stream; of the last layer
    int64_t *computed;             // [ranks, owned] pairs by its fan_outs, by source and local id
    int32_t *busy;                 // [owned] of the launch: local experts that have rows
    int64_t overflowed, rounds_run, dropped;
    int64_t bytes_sent[MOE_MAX_AXES]; // by the axis they crossed
    struct loss_sums loss[LOSS_KINDS];
    double flops;
    int64_t experts_ns, beside_ns; // in kernels of the experts' products; in all others and local copies
    double time;               // sim: its clock, ns
    _Atomic uint64_t progress; // instructions done
    bool finished;
    struct event *blocked_on; // sim
    uint64_t blocked_for;
};

/// What a blocked instruction waits for.
struct blocked {
    struct event *event;
    uint64_t at_least;
    char what[96 + RANK_TEXT];
};

enum stepped { STEP_DONE, STEP_BLOCKED, STEP_FAILED, STEP_FINISHED };

struct device_ops {
    const char *name;
    bool (*create)(struct moe_session *session);
    void (*destroy)(struct moe_session *session);
    /// Runs the step's streams to their end or failure.
    void (*run)(struct moe_session *session);
    /// Runs a launch to its end. False: it made no progress for too long.
    bool (*launch)(struct stream *stream, struct launch *launch, double cost);
    int64_t (*now)(const struct stream *stream);
    /// Copies a message and raises its arrival: at once, or when links would have brought it. False: the session failed.
    bool (*carry)(const struct passage *passage);
    /// All messages of a send are on their way: raise the own arrival when they have left.
    void (*sent)(struct stream *stream, uint32_t exchange);
};

struct transport_ops {
    const char *name;
    enum stepped (*send)(struct stream *stream, uint32_t exchange);
    enum stepped (*recv)(struct stream *stream, uint32_t exchange, struct blocked *on);
    /// Two hops: pass on what this rank relays; wait for what the node's relays pass on, or its ranks hand in.
    enum stepped (*forward)(struct stream *stream, uint32_t exchange);
    enum stepped (*settle)(struct stream *stream, uint32_t exchange, struct blocked *on);
};

extern const struct device_ops device_cpu, device_sim;
extern const struct transport_ops transport_local;

/// What stands for an extern stage.
struct host_function {
    const char *name;   // of the stage
    moe_extern_fn *fn;  // NULL: none given yet
    void *user;
};

enum fault_kind { FAULT_NONE, FAULT_DROP, FAULT_DOUBLE, FAULT_MISROUTE };

struct moe_session {
    const moe_plan *plan;
    const struct ir *ir;
    const struct plan_info *info;
    moe_options options;
    const struct device_ops *device;
    const struct transport_ops *transport;
    void *device_state;
    struct emulation *emulation; // of links; NULL: messages arrive at once
    struct placement placement; // of ranks and threads on cores; none on a virtual clock
    struct pool pool;
    moe_kernel_fn **kernels;
    struct rank *ranks;
    uint32_t streams_per_rank;
    uint32_t *owner_row; // [experts] row of plan_owner of an expert's owner: ascending = by rank, then expert id
    uint32_t *holder_first; // [experts + 1] of each expert in `holders`
    uint32_t *holders;      // rows of plan_owner, by expert, then rank: its owner and its copies
    uint32_t layers;     // of a step: the plan's, or 1
    struct host_function *hosts; // one per extern stage
    uint32_t host_count;
    uint32_t *loaded_layers;
    size_t scratch_bytes;
    bool loaded, broken, stuck, measures_loss;
    int64_t timeout_ns;

    // The step in progress.
    _Atomic bool running;
    const struct plan_variant *variant;
    uint64_t step_number;
    int64_t step_tokens;          // over all ranks; the caller's moe_step array is not looked at once a step has ended
    int64_t step_begin, step_end; // ns; sim: virtual
    _Atomic uint32_t epoch;       // bumped to start a step; futex
    struct event finished;        // streams that ended this step
    _Atomic bool stop;
    _Atomic int failed;   // moe_status of the step
    _Atomic bool failing; // somebody writes `error`
    char error[512];

    enum fault_kind fault;
    uint32_t fault_rank;
    _Atomic bool fault_done;

    moe_stats stats;
    int64_t *expert_load;
    struct span_record *sorted; // workspace of statistics: all records of one rank
    uint32_t sorted_capacity;
    void **owned; // every other allocation
    uint32_t owned_count, owned_capacity;
};

/// The function of an instruction that calls one; there is a row for each.
const struct host_function *session_host(const struct moe_session *session, const struct plan_instr *instr);

/// Records the step's failure; the first one wins. Returns false.
bool session_fail(struct moe_session *session, moe_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/// "rank 1 (node[0] gpu[1]), stream tx, instruction 7 `dispatch.send[0]`"
const char *stream_where(const struct stream *stream, char *text, size_t size);

static inline bool session_failed(const struct moe_session *session)
{
    return atomic_load_explicit(&session->failed, memory_order_acquire) != MOE_OK;
}

/// Tries the stream's next instruction. The one function that all devices drive.
enum stepped executor_step(struct stream *stream, struct blocked *on);
/// The instruction at the stream's pc.
const struct plan_instr *stream_instr(const struct stream *stream);
/// Do `bytes` from `at` on lie inside one of the rank's arena buffers?
bool rank_holds(const struct rank *rank, uint32_t buffer, const char *at, int64_t bytes);
/// Tokens of a part when a rank has `tokens`.
void part_range(const struct plan_part *part, int64_t tokens, int64_t *first, int64_t *count);
/// NULL: full, and counted as dropped.
struct span_record *spans_add(struct spans *spans, struct span_record record);
/// The record of a message that begins its way.
struct span_record passage_record(const struct passage *passage, int64_t begin);

void stream_begin_step(struct stream *stream);
/// After the step: counters of all ranks agree (I2), or the session has failed.
bool conservation_check(struct moe_session *session);

/// Is source `s`'s relayed message of a dispatch, as it lies here, one that can be followed: counts, marks, rows?
bool relayed_message_good(struct stream *stream, uint32_t dispatch, uint32_t s);
/// ...and those of the waves before it.
bool relayed_messages_good(struct stream *stream, uint32_t dispatch, uint32_t s);

/// A row of source `s` that a rank of the node answers in a wave.
struct relayed_row {
    int64_t number;    // among the rows that the messages of this wave and those before it brought
    int64_t answer;    // among the rank's answers to the source
    uint32_t position; // of the rank in the node
    bool first;        // of the ranks that answer the row
};
typedef void relayed_row_fn(const struct relayed_row *row, void *user);
/// Calls for all that answer in the wave of a dispatch, by row, then rank. Good messages give every row.
void relayed_rows(const struct rank *rank, uint32_t combine, uint32_t s, relayed_row_fn *fn, void *user);

/// Perturbs rank fault_rank's outgoing message once, for tests of the conservation check.
void fault_apply(struct stream *stream, uint32_t exchange);

/// Zeroed memory that lives as long as the session; NULL when out of memory.
void *session_alloc(struct moe_session *session, size_t count, size_t size);
/// Tests: replaces a generated kernel by name.
bool session_override_kernel(struct moe_session *session, const char *name, moe_kernel_fn *fn);

#endif
