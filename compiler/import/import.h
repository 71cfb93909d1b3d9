// `moecc import`: a .moe file for a Hugging Face checkpoint. config.json says which family it is and how large; the family's
// text is in stdlib/models/; the headers of the tensors, where there are any, say how each is stored.
#ifndef MOECC_IMPORT_H
#define MOECC_IMPORT_H

#include "compiler/base/base.h"

struct import_options {
    const char *path;           // a checkpoint directory, or a config.json
    const char *cluster;        // `hgx8` of std.hw, or `FILE.moe:NAME`; NULL: this machine
};

/// The file's text, canonical; NULL with diagnostics queued.
const char *import_checkpoint(struct context *context, const struct import_options *options);

#endif
