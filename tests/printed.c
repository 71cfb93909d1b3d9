// Text for tests (printed.h).
#include "tests/printed.h"

#include <stdio.h>

char *printed_ir(const struct ir *ir)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    ir_print(ir, out);
    fclose(out);
    return text;
}

char *printed_diagnostics(const struct context *context, enum diag_format format)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    diag_print_all(context, format, false, out);
    fclose(out);
    return text;
}
