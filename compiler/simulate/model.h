// Inside the cost model: kinds of ranks, what a task costs on each, what its messages carry; then one predicted step.
//
//   ranks.c     which ranks are alike, which links lie between them
//   traffic.c   how many rows travel between them
//   load.c      how tokens spread over experts
//   rounds.c    what an uneven load makes travel in overflow rounds
//   costs.c     an operator's `flops` and `bytes`, evaluated for a part on a kind of rank
//   kernels.c   on a CUDA target: the kernels that a task launches, with their estimates
//   model.c     schedule -> tasks, messages and links for events.c -> a prediction
//   metrics.c   a prediction -> figures
//   budgets.c   `assert` and `expect` against the figures
//   path.c      the critical path, and why streams are idle
//   svg.c       a prediction as a picture
//   draw.c      a prediction as text;  report.c  as tables, JSON and a trace;  kernel_table.c  of its CUDA kernels
#ifndef MOECC_SIMULATE_MODEL_H
#define MOECC_SIMULATE_MODEL_H

#include "compiler/simulate/events.h"
#include "compiler/simulate/simulate.h"

enum { KINDS_MAX = 16, LOADS_MAX = 5, AXES_MAX = 8 };

/// Ranks that have the same device and equally many experts, with about the same load.
struct rank_kind {
    uint32_t device;            // mod_device row
    int64_t owned;
    uint32_t first, count;      // a rank that stands for them, and how many they are
};

struct model {
    struct context *context;
    const struct program_text *program;
    const struct ir *module, *graph;
    const struct mod_pipeline *pipeline;
    const struct mod_layer *layer;
    const struct mod_cluster *cluster;
    uint32_t ranks, axes;
    int64_t size[AXES_MAX], inner[AXES_MAX]; // of an axis; ranks in one step along it
    double bandwidth[AXES_MAX], latency[AXES_MAX]; // bytes per ns, ns
    uint32_t *kind_of;          // by rank
    const struct mod_placement *placement;
    bool copies;                // of experts: where rows go depends on who sends them
    int64_t *owned_of;          // by rank: experts that it holds
    uint32_t *first_owner;      // by rank, and one more: its experts' first row of `loads`
    double *shares;             // of copies, by sender and owner: of what the expert is asked for; NULL: no copies
    double *weights;            // by expert: its load over the mean
    double *loads;              // sums over experts, in the order of owners, of their load over the mean; a copy has a share
    struct rank_kind kinds[KINDS_MAX];
    uint32_t kind_count;
};

/// How a dispatch and the combine that answers it route rows.
struct routing {
    double experts, choices, groups, group_choices;
    double wave_begin, wave_end, wave_total; // the wave's share of each rank's experts
    uint32_t via;               // axis of two hops; NONE: direct
    bool combine;
    double handed[AXES_MAX];    // bytes of a reply on its way to a relay over those of one that needs none
    double entry[AXES_MAX];     // of a record that a relay gets, the share that each rank of its node has for itself
};

/// What the messages of one task carry between two kinds of ranks over one axis, per token: from one rank of the first,
/// to one rank of the second.
struct traffic {
    double out_rows[KINDS_MAX][KINDS_MAX][AXES_MAX];
    double in_rows[KINDS_MAX][KINDS_MAX][AXES_MAX];
};

void model_make(struct model *model, struct context *context, const struct program_text *program, const struct ir *module,
                uint32_t pipeline, const struct ir *graph, const struct load *load);
/// The load of each expert over the mean; their sum is their number. `choices`: of a token.
void load_weights(struct context *context, const struct load *load, uint32_t experts, double choices, double *weights);
/// Experts that a rank holds of the first `share` of `total` of every home's.
uint32_t held_before(const struct model *model, uint32_t rank, double share, double total);
/// The load of the share `from` to `to` of a rank's experts, in experts of the mean load.
double load_of_waves(const struct model *model, uint32_t rank, double from, double to, double total);
/// The chance that a token has an expert among `owned` neighbouring ones of the mean load.
double routing_hit(const struct routing *routing, double owned);
struct traffic *traffic_make(const struct model *model, const struct routing *routing, bool relay);

void traffic_add(struct traffic *sum, const struct traffic *more);

// ---- rounds.c

/// What of the rows that the experts of a task get finds no slot.
struct spill {
    double share[KINDS_MAX];    // of a kind of rank's rows
    double rows[KINDS_MAX];     // from each other rank
    double rounds;              // whole; 0: everything finds a slot
};
/// Of a part of `tokens` tokens and a wave.
struct spill spill_of_task(const struct model *model, const struct ir *schedule, uint32_t task, double tokens, uint32_t wave);
/// Takes rows that go in rounds out of a dispatch's traffic (`dispatch`: all of it; NULL: through relays), or their replies out
/// of a combine's.
void spill_take(const struct spill *spill, const struct traffic *dispatch, bool combine, struct traffic *traffic,
                uint32_t kinds, uint32_t axes);

// ---- costs.c

struct task_cost {
    double flops, bytes;        // on SMs; bytes of memory, that go with them
    double moved_bytes;         // bytes before and after them, of rows that are copied
    double filling_flops;       // as many as the GEMMs could do while they fill and drain the SMs
    double filling_bytes;       // as many as the memory could give while blocks too few draw on it
    double fixed_ns;            // an extern stage's own, on all SMs
    double launch_ns;           // before it works
    double peak;                // FLOP/s that its element type allows, datasheet
    bool compute, send, recv, relay; // what the task is
};
/// One task of the graph on a kind of rank, for a part of `tokens` tokens and, of routed rows, a wave of experts (NULL: all).
struct task_cost cost_of_task(const struct model *model, uint32_t task, uint32_t kind, double tokens,
                              const struct sched_share *wave);
/// ns on a share of the device's SMs.
double cost_time(const struct model *model, const struct task_cost *cost, uint32_t kind, double share);
/// Bytes of all parameters of the layer, every expert's.
double layer_weight_bytes(const struct model *model);
void routing_wave(struct routing *routing, const struct sched_share *wave);
bool routing_of_task(const struct model *model, uint32_t task, struct routing *routing);
/// The dispatch whose rows it moves, computes or brings home; NULL: none.
const struct mod_stage *dispatch_of_task(const struct model *model, uint32_t task);
/// Bytes of a row of the task's messages over an axis, with its scales and, in a dispatch, ids and weights.
double row_bytes(const struct model *model, uint32_t task, uint32_t axis);

// ---- model.c

struct prediction {
    struct model model;
    struct ir *schedule;
    struct events events;
    uint32_t instances, streams, layers; // task (kind, instance) is kind * instances + instance
    int64_t bound;
    double rounds, overflowed;  // overflow rounds of the step, and the largest share of a rank's rows that needs them
    double *flops;              // by task: useful FLOPs
    double *peaks;              // and the peak of their type
    uint32_t *flow_axis;        // by flow
    uint32_t *stage_of_flow;    // by flow: stage number of the graph
};

static inline uint32_t prediction_task(const struct prediction *p, uint32_t kind, uint32_t instance)
{
    return kind * p->instances + instance;
}

/// Tokens that an instance handles: its part's, or a piece of them.
double instance_tokens(const struct prediction *p, const struct sched_instance *instance);

// ---- kernel_table.c

/// On a CUDA target the estimate of each kernel; nothing on others.
void print_kernels(const struct prediction *p, FILE *out);
struct json_t *kernels_json(const struct prediction *p);

// ---- metrics.c

struct interval {
    double begin, end;
};
struct intervals {
    struct interval *at;
    uint32_t count, capacity;
};
void intervals_add(struct context *context, struct intervals *list, double begin, double end);
/// Sorts and joins what touches.
void intervals_join(struct intervals *list);
double intervals_length(const struct intervals *list);
/// The parts of `a` that are, or are not, in `b`; both joined.
struct intervals intervals_cut(struct context *context, const struct intervals *a, const struct intervals *b, bool inside);

struct intervals computing(const struct prediction *p, uint32_t kind);
/// Time with messages under way and no compute.
struct intervals exposed(const struct prediction *p, uint32_t kind);
/// The kind of rank that loses most.
uint32_t most_exposed(const struct prediction *p);
/// When an instance does something on a kind of rank: a receive only while its messages are under way.
void busy_of_instance(const struct prediction *p, uint32_t kind, uint32_t instance, struct intervals *list);

/// What bounds every schedule: per step, on the rank that has most of it.
struct bounds {
    double wire_ns, compute_ns; // the busiest link's, all compute at all SMs
    double hiding_ns;           // compute there is to hide behind: at all SMs, or longer where this schedule lends some
    double exposed;             // mean over ranks of max(0, 1 - hiding / wire)
};
struct bounds bounds_of(const struct figures *figures, double combine_scale);

// ---- path.c

struct critical {
    uint32_t *tasks;            // from the last to the first
    uint32_t count;
};
struct critical critical_path(const struct prediction *p);
/// ns that a task of it is on the path.
double critical_time(const struct prediction *p, const struct critical *path, uint32_t at);
/// Its time by stage, and the longest gaps of streams that compute, with their reasons.
void print_reasons(const struct prediction *p, FILE *out);
/// What no schedule can beat here.
void print_bound(const struct figures *figures, FILE *out);
/// Is the stage predicted at the fp8 peak, for its weights are E4M3, though it multiplies them in its rows' type?
bool needs_fp8_arithmetic(const struct model *m, const struct mod_stage *stage, const struct mod_device *device);

// ---- draw.c

/// Lines of text, each ending in a newline: a line per stream of one kind of rank, and one of what is exposed.
const char *draw_timeline(const struct prediction *p, uint32_t kind, uint32_t columns, bool one_layer);

#endif
