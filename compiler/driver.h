// The compiler as one call: a `.moe` file in, a plan image out, with every stage between printable.
#ifndef MOECC_DRIVER_H
#define MOECC_DRIVER_H

#include "compiler/codegen/cuda/host.h"
#include "compiler/simulate/simulate.h"

/// A proven schedule of a pipeline and what is predicted for it, for whoever compares schedules (compiler/tune).
struct driver_study {
    struct context *context;
    const struct program_text *text;
    const struct ir *module, *graph, *schedule;
    uint32_t pipeline;
    struct figures figures;     // no peak_memory: nothing is lowered
};

enum { DRIVER_LEVELS = 5 };

struct driver_options {
    const char *file;
    struct check_options check;
    const char *cpu_level;      // NULL: this machine's best
    const char *const *levels;  // code for each of these CPU levels, ended by NULL, instead of that one; NULL: none
    const char *emit;           // stop after this stage and print it to `out`; NULL: go on
    bool check_only;            // stop after the proof of the lowered programs: no native code
    bool color;                 // what is printed goes to a terminal
    const char *svg;            // like `trace`, a picture
    bool simulate, json;        // `moecc simulate`: print each schedule's prediction to `out`
    struct host_options cuda_host; // how CUDA kernels run on the CPU
    bool verbose;               // say on stderr what was compiled and what found in the cache; simulate: print kernels too
    const char *use_cuda;       // a file with edited kernels; NULL: none
    const char *load;           // how tokens spread over experts (load_parse); NULL: uniform
    const char *trace;          // and write that of the schedule at the bound here; NULL: nowhere
    void (*study)(void *user, const struct driver_study *study); // called for each schedule; nothing is lowered then
    void *study_user;
    uint32_t study_layers;      // at most so many layers of a step; 0: all
    bool time_passes;           // a line a pass on stderr
    FILE *out;
};

/// What a compilation came to, for summaries.
struct driver_result {
    void *image;                // malloc'ed plan file image; NULL when emit or check_only stopped before
    size_t image_bytes;
    moe_kernel_fn **kernels;    // malloc'ed: CUDA kernels built for the CPU, one a plan_kernel; NULL: none were asked for
    struct driver_image {
        void *bytes;
        size_t size;
        bool cuda;              // code for GPUs, of no CPU level
    } images[DRIVER_LEVELS];    // for options.levels instead, in their order
    const char *pipeline;       // NULL: a library file; of several: their names
    uint32_t pipelines, schedules, instances, waits, instructions;
    double seconds;
};

/// The stages --emit knows, NULL-terminated, in the order of the data flow.
extern const char *const driver_stages[];

/// Is the path that of a source, which a result must not replace? NULL is none.
bool replaces_source(const struct context *context, const char *path);

/// Diagnostics are queued in the context; the exit code says what kind of failure it was.
enum exit_code compile(struct context *context, const struct driver_options *options, struct driver_result *result);

#endif
