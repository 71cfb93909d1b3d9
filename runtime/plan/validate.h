// Between the files of plan validation: the context, and which checks there are.
#ifndef MOE_VALIDATE_H
#define MOE_VALIDATE_H

#include "kernels.h"
#include "limits.h"
#include "plan.h"
#include "roles.h"

struct check {
    const struct ir *ir;
    const struct plan_info *info;
    size_t code_bytes;
    char *error;
    size_t size;
};

/// Writes the message and returns false.
bool check_fail(const struct check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline bool in_range(int64_t value, int64_t low, int64_t high)
{
    return value >= low && value <= high;
}

static inline bool in_rows(struct rows rows, uint32_t row)
{
    return row >= rows.first && row - rows.first < rows.count;
}

/// Do replies to rows that overflow come as ranks answer in the combine itself?
bool spills_alike(const struct check *c, const struct plan_exchange *combine, const struct plan_exchange *spill);

/// validate_owners.c: who holds which expert.
bool validate_owners(const struct check *c);
/// validate_program.c: streams, instructions and buffers of one rank under one variant.
bool validate_program(const struct check *c, const struct plan_variant *variant, const struct plan_program *program);

enum control_kind { CONTROL_NONE, CONTROL_BINS, CONTROL_PAIRS, CONTROL_ROWS, CONTROL_SUMS };

/// What is known of a buffer on this rank after the first pass.
struct usage {
    uint8_t control;              // control_kind
    bool plain;                   // used as anything else
    int64_t rows, pairs;          // most that a built-in writes into it
    int64_t src_bytes[TABLES_END], dst_bytes[TABLES_END]; // least bytes of each row of its tables on either side
    int64_t row_dst_bytes;                                // pairs: least bytes of a result row; bins: of an own row
    int64_t reply_bytes[MOE_MAX_WIRES];                   // bins: least bytes of a reply in each format
    int64_t reply_code[MOE_MAX_WIRES]; // bins: the formats that replies' addresses are marked with (moe_wire_code)
    uint32_t y_dtype;                  // bins: of own rows; none: no bin writes it
    bool mixed;                        // bins: several write it that do not agree
    int64_t tokens;
    bool routed;                  // pairs: of the rank's own experts
    bool folded;                  // sums: of a relay, which are one list
    bool by_row, by_pair;         // pairs: A has a row for each routed row, for each pair; both: who fills them disagree
    int64_t shared;               // pairs: of so many experts that every token takes; 0: of none
};

struct walk {
    const struct check *c;
    const struct plan_variant *variant;
    const struct plan_program *program;
    struct usage *usage; // one per buffer of the variant
    const struct plan_instr *instr;
    uint32_t number; // of the instruction
    uint32_t rounds; // exchange of the open `rounds`, or NONE
};

/// Kernels and their arguments. A program is walked twice: the first pass finds its control buffers (what built-ins write and
/// others follow pointers in) and how much each can come to hold (validate_control.c), the second checks every argument
/// against that (validate_launch.c).
bool validate_kernel(const struct check *c, uint32_t number);
/// The streams, in order, are all instructions once: no instruction belongs to two, or to none.
bool validate_streams(const struct check *c);
bool learn_launch(struct walk *w);
bool check_launch(const struct walk *w);
bool check_host(const struct walk *w);
bool check_copy(const struct walk *w);

/// About the instruction at hand; returns false.
bool instr_fail(const struct walk *w, const char *what);

/// Arguments of the role that a launch of an exchange's wave has beyond the listed ones.
uint32_t wave_arguments(const struct walk *w, const struct plan_kernel *k);
/// What argument `i` must be given; ARG_NONE: it only declares an access.
enum arg_kind argument_kind(const struct walk *w, const struct plan_kernel *k, uint32_t i);
/// Of a buffer on this rank.
int64_t extent_bytes(const struct walk *w, uint32_t buffer);
/// The combine that answers a dispatch; there is exactly one (validate_answers).
const struct plan_exchange *answer_of(const struct walk *w, uint32_t dispatch);
/// The pool's dispatch for what a dispatch leaves over, and its number; NULL: none.
const struct plan_exchange *pool_of(const struct walk *w, uint32_t dispatch, uint32_t *number);
/// A format of an exchange.
const struct plan_wire *wire_numbered(const struct walk *w, const struct plan_exchange *e, uint32_t number);
/// Bytes from one row of an argument to the next.
int64_t stride_of(const struct walk *w, uint32_t argument);

static inline const struct plan_arg *arg_at(const struct walk *w, uint32_t i)
{
    return ROW(w->c->ir, plan_arg, w->instr->args.first + i);
}

static inline struct usage *usage_at(const struct walk *w, uint32_t i)
{
    return &w->usage[arg_at(w, i)->buffer - w->variant->buffers.first];
}

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
