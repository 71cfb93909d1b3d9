// Any text as a `.moe` file: checked to the end, diagnostics printed in both forms, and formatted.
#include "compiler/syntax/format.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void format(const uint8_t *data, size_t size)
{
    struct context *context = calloc(1, sizeof *context);
    if (!context)
        abort();
    context_init(context);
    if (!setjmp(context->fatal)) {
        const char *once = format_source(context, add_source(context, "fuzz.moe", (const char *)data, size, NULL));
        if (once) {
            const char *twice = format_source(context, add_source(context, "again.moe", once, strlen(once), NULL));
            if (!twice || strcmp(once, twice))
                abort(); // formatting is idempotent
        }
    }
    context_free(context);
    free(context);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 1 << 16)
        return 0;
    format(data, size);
    fuzz_check(fuzz_file("fuzz.moe", data, size));
    return 0;
}
