// Module -> Graph: which tasks a layer consists of and what flows between them.
#ifndef MOECC_GRAPH_H
#define MOECC_GRAPH_H

#include "compiler/check/module.h"

#define RECORDS_DEF "compiler/graph/graph.def"
#include "runtime/plan/records_structs.h"

extern const struct ir_type graph_ir;

/// Appends a row; ends the compilation when memory is out.
static inline uint32_t add_row(struct context *context, struct ir *ir, uint32_t table)
{
    uint32_t row = ir_add(ir, table);
    if (row == NONE)
        fatal(context, EXIT_SYSTEM, "out of memory");
    return row;
}
#define NEW_ROW(context, ir, record) add_row((context), (ir), T_##record)

/// Builds the graph of a layer (a row of mod_layer) as a schedule (of mod_schedule; NONE: no particular one) orders it:
/// an expert is one task, `up` and `down` together, unless the schedule's text names its phases. Operators that the
/// backend lacks are E0901 at the stage. Costs take the ranks of the first pipeline that uses the layer; without one, two.
/// On errors the graph is left empty.
bool build_graph(struct context *context, const struct program_text *program, const struct ir *module, uint32_t layer,
                 uint32_t schedule, struct ir *graph);
/// Every value has one producer before its readers; engines known.
bool graph_check(const struct ir *graph, char *error, size_t size);

#endif
