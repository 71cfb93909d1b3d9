// Between the files that draft instructions: where a draft stands, and the words that drafts are put together from.
#ifndef MOECC_WRITER_H
#define MOECC_WRITER_H

#include "compiler/lower/lower.h"

struct writer {
    struct lowering *l;
    uint32_t instance; // of the schedule
    const struct path *path;
    uint32_t path_number, layer, part, wave;
    uint32_t range; // its rows: the part, or a piece of it
    uint32_t piece;
    uint16_t step; // position inside the instance
    bool looping;  // inside overflow rounds: one step
    bool experts;  // what it launches is the work of the rank's experts
    struct draft *draft;
};

/// Most tokens of its range.
double writer_tokens(const struct writer *w);
/// Among how many instances a part's pairs are divided.
double writer_waves(const struct writer *w);
/// Nanoseconds: the longer of computing and of moving.
double writer_work(const struct writer *w, double flops, double bytes);
/// The instance uses the buffer, here or on the ranks that it exchanges messages with.
void writer_touch(struct writer *w, uint32_t logical, bool remote);
/// Its part and wave, as one number.
uint32_t writer_cell(const struct writer *w);
/// The logical buffer of a kind, of the part's wave.
uint32_t writer_family_in(const struct writer *w, enum path_family kind, uint32_t wave);
/// ...of its own: routes and the sum of replies belong to the part, all else to the wave.
uint32_t writer_family(const struct writer *w, enum path_family kind);
/// The next draft: what follows is about it.
void writer_begin(struct writer *w, enum opcode op, double cost);
void writer_launch(struct writer *w, uint32_t kernel, double cost);
/// An argument, in order; `own`: a buffer of the path, `param`: packed weights of the layer.
void writer_argument(struct writer *w, uint32_t buffer, enum access access);
void writer_own(struct writer *w, enum path_family kind, enum access access);
/// The write with which a buffer's contents begin.
void writer_fresh(struct writer *w, enum path_family kind);
void writer_param(struct writer *w, uint32_t param);
/// The logical number of a plain value in a layer: the caller's buffers at both ends, the last layer's result as input.
uint32_t writer_value_buffer(const struct lowering *l, uint32_t value, uint32_t layer, uint32_t part);
uint32_t writer_result_value(const struct writer *w, uint32_t stage);
/// The tokens that the path's experts work on.
uint32_t writer_path_x(const struct writer *w);
/// Rows that a rank sends, in expectation.
double writer_hit_rows(const struct writer *w);
/// The base combine, or the chunk of it that the instance is about.
uint32_t writer_combine(const struct writer *w);
/// A message of an exchange, and the buffers at both of its ends.
void writer_message(struct writer *w, enum opcode op, uint32_t kind, enum path_family send, enum path_family recv);
/// An instruction of a relay: it passes rows on, or waits for what others of its node pass on or hand in.
void writer_relay(struct writer *w, enum opcode op, uint32_t kind);

#endif
