// Any text as a printed representation: what parses prints back to what parses to the same print; a plan's text is made
// an image of, and that is validated and run.
#include "runtime/plan/plan.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/run_plan.h"

#include <stdlib.h>
#include <string.h>

#include "compiler/check/module.h"
#include "compiler/graph/graph.h"
#include "compiler/schedule/schedule.h"

static char *printed(const struct ir *ir)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        abort();
    ir_print(ir, out);
    fclose(out);
    return text;
}

static void run_text(struct ir *ir)
{
    void *image;
    size_t bytes;
    for (uint32_t i = 0; i < COUNT(ir, plan_kernel); i++)
        ROW(ir, plan_kernel, i)->code_offset = 0;
    if (!plan_write(ir, "\xc3", 1, &image, &bytes))
        abort();
    fuzz_run_plan(image, bytes);
    free(image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct ir_type *const types[] = {&plan_ir, &module_ir, &graph_ir, &schedule_ir};
    char *text = malloc(size + 1), error[256];
    if (!text)
        abort();
    memcpy(text, data, size);
    text[size] = 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct ir ir, again;
        if (!ir_parse(&ir, types[i], text, error, sizeof error)) {
            ir_free(&ir);
            continue;
        }
        char *once = printed(&ir);
        if (!ir_parse(&again, types[i], once, error, sizeof error))
            abort();
        char *twice = printed(&again);
        if (strcmp(once, twice))
            abort();
        free(once);
        free(twice);
        ir_free(&again);
        if (types[i] == &plan_ir && ir_check(&ir, error, sizeof error))
            run_text(&ir);
        ir_free(&ir);
    }
    free(text);
    return 0;
}
