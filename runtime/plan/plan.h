// The plan format: the one header at which the compiler and the runtime meet. A plan in memory is a set of tables
// (plan.def) and a block of position-independent native code; in a file it is one checksummed block, mapped as it is.
#ifndef MOE_PLAN_H
#define MOE_PLAN_H

#include "records.h"
#include "words.h"

#define RECORDS_DEF "plan.def"
#include "records_structs.h"

extern const struct ir_type plan_ir;

#define PLAN_MAGIC "MOEPLAN"    // 8 bytes with its NUL
#define PLAN_VERSION 4u

/// File layout, little endian: this header, the tables in order of plan.def, the string pool, the code. Every block is
/// 64-byte aligned (code 4096). `checksum` is XXH3-64 of the whole file with the field itself zero. The code is made for
/// exactly these tables, and the last 16 of its bytes say for which: XXH3-128 of all that stands before it.
struct plan_header {
    char magic[8];
    uint32_t version;
    uint32_t table_count;
    uint64_t file_bytes;
    uint64_t checksum;
    uint64_t strings_offset, strings_bytes;
    uint64_t code_offset, code_bytes;
    struct {
        uint64_t offset;
        uint32_t count, row_size;
    } tables[32];
};

/// A plan in memory. `ir` either owns its tables (made by the compiler) or views `image` (loaded).
struct plan {
    struct ir ir;
    const uint8_t *code;
    size_t code_bytes;
    uint64_t hash;              // the file's checksum: equal hashes, equal plans
    void *image;                // loaded: the mapping or copy that ir and code view
    size_t image_bytes;
    bool mapped;
};

/// Blocks of a parameter on a rank that owns `owned` experts.
static inline int64_t plan_param_blocks(const struct plan_param *param, int64_t owned)
{
    return param->per_expert ? owned : param->shared ? param->shared : 1;
}

// How many bytes panels take. A panel's codes come first, then its scales, by block of columns, padded to whole lines.
static inline int64_t plan_round_up(int64_t value, int64_t to)
{
    return (value + to - 1) / to * to;
}

static inline int64_t plan_panels(const struct plan_param *param)
{
    int64_t panel = param->panel > 0 ? param->panel : 1;
    return (param->rows + panel - 1) / panel;
}

static inline int64_t plan_panel_codes(const struct plan_param *param)
{
    return plan_round_up(param->cols, param->group) * param->panel * dtype_bits(param->dtype) / 8;
}

/// Units of work per expert of mlp_up: panels, or with coded hidden rows the blocks of its output features.
static inline int64_t plan_up_units(const struct plan_param *param, int64_t block)
{
    int64_t features = param->halves ? param->rows / 2 : param->rows;
    return block > 0 ? (features + block - 1) / block : plan_panels(param);
}

static inline int64_t plan_scale_bytes(const struct plan_param *param) // of one packed scale: f32, or a power of two
{
    return param->dtype == dtype_mxfp4 ? 1 : 4;
}

static inline int64_t plan_panel_bytes(const struct plan_param *param)
{
    if (!param->scales)
        return plan_panel_codes(param);
    int64_t blocks = (param->cols + param->block_cols - 1) / param->block_cols;
    return plan_panel_codes(param) + plan_round_up(blocks * param->scales * plan_scale_bytes(param), 64);
}

// Layout `rows` of codes: rows of whole 16 bytes, then for every block of columns the scales of all rows, one a row. Where
// rows are halves, the scales of each half begin at a multiple of 16.
static inline int64_t plan_row_bytes(const struct plan_param *param)
{
    int64_t bytes = param->cols * dtype_bits(param->dtype) / 8;
    return dtype_quantised(param->dtype) ? plan_round_up(bytes, 16) : bytes;
}

static inline int64_t plan_row_scales(const struct plan_param *param) // of a block of columns
{
    return param->halves ? 2 * plan_round_up(param->rows / 2, 16) : plan_round_up(param->rows, 16);
}

static inline int64_t plan_rows_bytes(const struct plan_param *param)
{
    int64_t bytes = param->rows * plan_row_bytes(param);
    if (!param->scales)
        return bytes;
    int64_t blocks = (param->cols + param->block_cols - 1) / param->block_cols;
    return plan_round_up(bytes, 64) + plan_round_up(blocks * param->scales * plan_scale_bytes(param), 64);
}

/// What a block of the parameter takes in its layout.
static inline int64_t plan_packed_bytes(const struct plan_param *param)
{
    return param->layout == layout_panels ? plan_panels(param) * plan_panel_bytes(param) : plan_rows_bytes(param);
}

/// Serialises tables and code into one malloc'ed image. Returns false when memory is out.
bool plan_write(const struct ir *ir, const void *code, size_t code_bytes, void **image, size_t *image_bytes);

/// What is said of a plan that may be good but for which memory does not suffice.
#define PLAN_NO_MEMORY "out of memory"

/// For who has changed an image: its code is for what stands before it now, and its checksum is right again.
void plan_seal(void *image, size_t image_bytes);

/// Opens an image: validates magic, version, sizes, checksum, every reference and every size before anything is used
/// (plan_validate). `image` is copied when `copy`, else must outlive the plan. False with a message on bad input.
bool plan_open(struct plan *plan, const void *image, size_t image_bytes, bool copy, char *error, size_t size);
/// Maps a plan file, or an executable or shared object that carries plans at its end. Of several the last one that `runs`
/// (which gets a CPU level) accepts; of none that it accepts, or with `runs` NULL, the last of all.
bool plan_open_file(struct plan *plan, const char *path, bool (*runs)(const char *cpu_level), char *error, size_t size);
void plan_close(struct plan *plan);

/// What the tables must satisfy beyond ir_check: one plan_info, choices cover 0..bound, one program a rank and variant,
/// arguments fit roles, extents inside arenas, exchanges' buffers large enough for their slots, semaphores in range.
bool plan_validate(const struct ir *ir, size_t code_bytes, char *error, size_t size);

/// A carrier (executable, shared object) has plans appended, each followed by this trailer: one for each CPU level it was
/// built for, the best one last.
struct plan_trailer {
    uint64_t plan_offset, plan_bytes;
    uint64_t before;            // where the trailer before this one ends; 0: this is the first
    char cpu_level[8];          // with its NUL
    uint64_t checksum;          // of what stands before it here
    char magic[8];              // PLAN_MAGIC
};

/// Fills in the trailer's magic and checksum.
void plan_seal_trailer(struct plan_trailer *trailer);

#endif
