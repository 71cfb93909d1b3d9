// Inside import: what its files share.
#ifndef MOECC_IMPORT_INTERNAL_H
#define MOECC_IMPORT_INTERNAL_H

#include <jansson.h>

#include "compiler/import/import.h"
#include "compiler/syntax/ast.h"
#include "runtime/weights/safetensors.h"

// ---- config.c: the configuration -------------------------------------------------------------------------------------

struct config {
    struct context *context;
    const char *path;           // of config.json, as the written file will import it
    const char *folder;         // the checkpoint
    uint32_t file;              // number of its text among the context's files
    json_t *root;
};

/// A key that is there and not null. `name` is how it is written after `hf.`: "ffn_config.moe_top_k".
struct config_value {
    const char *name;
    const json_t *json;
};

bool config_open(struct context *context, const char *path, struct config *config);
/// The first of "a|b.c|d" that is there, at the top or inside an object that holds the language model's part.
bool config_find(const struct config *config, const char *keys, struct config_value *value);
/// The value as one word: `silu`, `true`, `2.5`; NULL for lists and objects.
const char *config_word(const struct config *config, const json_t *json);
/// Queues that a key holds what it cannot; `expected`: "a whole number".
void config_refuse(const struct config *config, const char *name, const json_t *json, const char *expected);
/// Where a key stands in the text.
struct span config_place(const struct config *config, const char *name);
/// The first of "a|b|c".
const char *first_key(struct context *context, const char *keys);

// ---- family.c: which model it is, and which of its layers have experts -------------------------------------------------

struct family {
    const char *model_type, *module, *layer;
};

struct moe_layers {
    const char *count_key, *first_key; // as they read after `hf.`; NULL: the value is no key's
    int64_t total, first, count, step; // layers first, first + step, ...: `count` of them
    const int64_t *numbers;            // all of them
};

bool find_family(const struct config *config, struct family *family);
bool find_layers(const struct config *config, const struct family *family, struct moe_layers *layers);
/// The keys that say what a constant of the module is; NULL: it is no size of a model.
const char *keys_of(const struct family *family, const char *constant);
/// What a missing key means: "": nothing sensible; NULL: the module's own value.
const char *default_of(const struct family *family, const char *constant);

/// An option that the configuration asks for and the module's text does not have.
struct option {
    const char *name, *value, *seen; // seen: "hidden_act = gelu"
    bool changes;                    // the module's text does not have it
};
enum { OPTIONS_MOST = 8 };
/// False with E0602 queued: a word that means nothing to us. `missing` names keys that were assumed.
bool find_options(const struct config *config, const struct family *family, struct option *options, uint32_t *count,
                  const char **missing);

// ---- library.c: the module's text, with changes ------------------------------------------------------------------------

struct library {
    struct context *context;
    struct program_text program;
    node_id root;               // of the module
    node_id layer, weights;     // the family's
    node_id cluster;
};

struct edit {
    struct span span;           // of the module's text; empty: an insertion
    const char *text;
};

/// Parses the module and the cluster's file.
bool library_open(struct context *context, const struct family *family, const struct import_options *options,
                  struct library *library);
const char *item_text(const struct library *library, struct span span);
/// The text of a place with the edits inside it made; edits in any order.
const char *edited_text(const struct library *library, struct span span, const struct edit *edits, uint32_t count);
/// A path as it stands between the quotes of a .moe file.
const char *quotable(struct context *context, const char *path);
/// Whether `name` stands in a text as a word.
bool has_word(const char *text, const char *name);

// ---- formats.c: how each tensor is stored ------------------------------------------------------------------------------

struct storage {
    const char *hidden;         // element type of the layer's rows: "bf16"
    bool assumed;               // nothing said so
    bool blocks;                // some parameter is E4M3 with scales
    const char *scale;          // the scales' type
    struct edit edits[64];      // of parameters' types and map entries
    uint32_t edit_count;
};

bool find_storage(const struct config *config, const struct library *library, const struct tensor_set *tensors,
                  const struct moe_layers *layers, struct storage *storage);

#endif
