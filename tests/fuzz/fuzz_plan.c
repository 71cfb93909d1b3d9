// Any bytes as a plan, with the checksum put right so that what lies behind it is reached: opened, printed and run.
#include "runtime/plan/plan.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/run_plan.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct plan_header header;
    struct plan plan;
    char error[512];
    uint8_t *image = aligned_alloc(64, (size + 64) / 64 * 64);
    if (!image)
        abort();
    if (size)
        memcpy(image, data, size);
    if (size >= sizeof header && !memcmp(image, PLAN_MAGIC, 8)) { // not a carrier of one
        memcpy(&header, image, sizeof header);
        header.checksum = 0;
        memcpy(image, &header, sizeof header);
        header.checksum = XXH3_64bits(image, size);
        memcpy(image, &header, sizeof header);
    }
    if (plan_open_file(&plan, fuzz_file("fuzz.plan", image, size), NULL, error, sizeof error))
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
        plan_close(&plan);
        fuzz_run_plan(image, size);
    }
    free(image);
    return 0;
}
