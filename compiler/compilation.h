// Between the driver's files: one compilation on its way along the arrows of driver.c.
#ifndef MOECC_COMPILATION_H
#define MOECC_COMPILATION_H

#include <time.h>

#include "compiler/driver.h"
#include "compiler/simulate/simulate.h"

struct compilation {
    struct context *context;
    const struct driver_options *options;
    struct driver_result *result;
    struct program_text text;
    struct ir *module, *plan;
    const char *cpu_level;      // the one at hand; NULL: this machine's best
    bool again;                 // this pipeline has been compiled for another level: what there is to say is said
    struct rows pipelines;      // the chosen ones; more than one for `check` alone
    uint32_t pipeline;          // the one at hand; NONE: the file has none
    struct load load;
    struct timespec pass_start;
};

/// Is this what `--emit` asks for?
bool emitted(const struct compilation *c, const char *stage);

/// driver_cuda.c: the plan's CUDA kernels, as code for every chip of the target or, for `host`, as functions of this process.
bool generate_cuda(struct compilation *c, void **code, size_t *code_bytes);
/// Their sources, PTX or resources, where `--emit` asks for them. True: it does.
bool print_cuda(struct compilation *c);

#endif
