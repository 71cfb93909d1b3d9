// Inside placement: the step as one list of spots, in which the order of each stream is the list's order.
#ifndef MOECC_PLACE_H
#define MOECC_PLACE_H

#include "compiler/schedule/elaborate.h"

struct spot { // an instance in the list
    uint32_t task, part, piece, layer, stream;
    uint32_t before, after; // neighbours in the list; 0: the list's head
    uint32_t position;      // in the list, where `numbered`; later the row of the instance
    node_id node;
    bool sync, automatic;
    bool filling; // goes where its stream would stall
};

struct placement {
    struct elaboration *e;
    struct ir *schedule;
    uint32_t layers, parts;
    struct spot *spots; // 0 is the head
    uint32_t spot_count, spot_capacity;
    bool numbered;
    uint32_t *spot_of;   // by layer and cell: 0 = not placed
    bool *after_message; // by task: waits, through any chain within the layer, for a recv
    bool *feeds_named;   // by task: a named stage reads it, through any chain
    uint32_t sm_stream;  // the first that uses sm; NONE: none does
};

/// Where a task's instance stands; 0: not placed yet.
static inline uint32_t *spot_at(const struct placement *p, uint32_t layer, uint32_t task, uint32_t part, uint32_t piece)
{
    return &p->spot_of[(size_t)layer * p->e->cells + cell_of(p->e, task, part, piece)];
}

static inline uint32_t pieces_of(const struct placement *p, uint32_t task)
{
    return (uint32_t)p->e->stages[p->e->tasks[task].stage].pieces;
}

static inline uint32_t runs_of(const struct placement *p, uint32_t task)
{
    return (uint32_t)p->e->stages[p->e->tasks[task].stage].runs;
}

/// Pieces of these follow others of the same task: a `pack` must know which rows earlier waves have sent, and the first run of
/// a wave's finds the slots of all; a `merge` adds to the sum of the wave before; runs of an expert's rows work in one place, one after the other.
/// Returns the one that a piece needs, or NONE.
uint32_t piece_needed(const struct placement *p, uint32_t task, uint32_t piece);

/// The pieces of `producer` that one piece of a reader waits for. Rows stay where they arrived, so an expert reads what all
/// waves up to its own brought; what reads no waves reads after the last one. Runs of rows are waited for together, but a chunk
/// is packed, sent, received and merged by itself, and of routed rows those up to the own last token are enough.
struct rows pieces_read(const struct placement *p, uint32_t reader, uint32_t piece, uint32_t producer);

/// Takes a spot out of the list and puts it back behind another.
void move_spot(struct placement *p, uint32_t spot, uint32_t behind);

// tables.c
/// Writes instances, streams and edges of the list as it stands into p->schedule; positions become instance rows.
void write_tables(struct placement *p);

// fill.c
/// Moves the filling spots to where their streams are predicted to stall.
void fill_stalls(struct placement *p);

#endif
