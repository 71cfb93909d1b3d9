// Any bytes as a plan, sealed so that what lies behind it is reached: opened, printed, written again
// and run; and as the plans that an executable carries.
#include "runtime/plan/plan.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/run_plan.h"

#include <stdlib.h>
#include <string.h>

static bool runs_some(const char *cpu_level)
{
    return !strcmp(cpu_level, "v2");
}

/// The trailers at the end of a carrier, put right from the last one back, so that what they say is followed.
static void seal_trailers(uint8_t *file, size_t end)
{
    struct plan_trailer trailer;
    while (end >= sizeof trailer) {
        memcpy(&trailer, file + end - sizeof trailer, sizeof trailer);
        if (memcmp(trailer.magic, PLAN_MAGIC, sizeof trailer.magic))
            return;
        plan_seal_trailer(&trailer);
        memcpy(file + end - sizeof trailer, &trailer, sizeof trailer);
        if (trailer.before >= end)
            return;
        end = trailer.before;
    }
}

/// What a plan says is the same when it has been written again.
static void write_again(const struct plan *plan)
{
    struct plan again;
    void *image;
    size_t bytes;
    char error[512];
    if (!plan_write(&plan->ir, plan->code, plan->code_bytes, &image, &bytes))
        return;
    if (!plan_open(&again, image, bytes, true, error, sizeof error) || again.code_bytes != plan->code_bytes)
        abort();
    for (uint32_t t = 0; t < plan_ir.table_count; t++)
        if (again.ir.tables[t].count != plan->ir.tables[t].count)
            abort();
    plan_close(&again);
    free(image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct plan plan;
    char error[512];
    uint8_t *image = aligned_alloc(64, (size + 64) / 64 * 64);
    if (!image)
        abort();
    if (size)
        memcpy(image, data, size);
    if (size >= 8 && !memcmp(image, PLAN_MAGIC, 8)) // not a carrier of one
        plan_seal(image, size);
    else
        seal_trailers(image, size);
    const char *path = fuzz_file("fuzz.plan", image, size);
    if (plan_open_file(&plan, path, NULL, error, sizeof error))
        plan_close(&plan);
    if (plan_open_file(&plan, path, runs_some, error, sizeof error))
        plan_close(&plan);
    if (plan_open(&plan, image, size, false, error, sizeof error)) {
        char *text = NULL;
        size_t length = 0;
        FILE *out = open_memstream(&text, &length);
        if (out) {
            ir_print(&plan.ir, out);
            fclose(out);
        }
        free(text);
        write_again(&plan);
        plan_close(&plan);
        fuzz_run_plan(image, size);
    }
    free(image);
    return 0;
}
