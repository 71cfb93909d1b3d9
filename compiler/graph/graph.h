// Module -> Graph: which tasks a layer consists of and what flows between them.
#ifndef MOECC_GRAPH_H
#define MOECC_GRAPH_H

#include "compiler/check/module.h"

#define RECORDS_DEF "compiler/graph/graph.def"
#include "runtime/plan/records_structs.h"

extern const struct ir_type graph_ir;

/// Builds the graph of a layer (a row of mod_layer). Operators that the backend lacks are E0901 at the stage. Costs take
/// the ranks of the first pipeline that uses the layer; without one, two.
bool build_graph(struct context *context, const struct program_text *program, const struct ir *module, uint32_t layer,
                 struct ir *graph);
/// Every value has one producer before its readers; engines known.
bool graph_check(const struct ir *graph, char *error, size_t size);

#endif
