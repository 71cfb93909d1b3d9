// See fuzz.h.
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compiler/driver.h"

const char *fuzz_file(const char *name, const void *data, size_t size)
{
    static char folder[64], path[128];
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "/tmp/moe_fuzz_%ld", (long)getpid());
        if (mkdir(folder, 0700) != 0 && access(folder, W_OK) != 0)
            abort();
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0)
        abort();
    return path;
}

void fuzz_check(const char *path)
{
    struct context *context = calloc(1, sizeof *context);
    struct driver_options options = {.file = path, .check_only = true, .out = stdout, .check = {.layer = -1}};
    struct driver_result *result = calloc(1, sizeof *result);
    if (!context || !result)
        abort();
    context_init(context);
    int jumped = setjmp(context->fatal);
    enum exit_code code = jumped ? (enum exit_code)jumped : compile(context, &options, result);
    if (code == EXIT_BUG) {
        fprintf(stderr, "%s\n", context->fatal_message);
        abort();
    }
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out) {
        diag_print_all(context, DIAG_TEXT, true, out);
        diag_print_all(context, DIAG_JSON, false, out);
        fclose(out);
    }
    free(text);
    free(result->image);
    free(result);
    context_free(context);
    free(context);
}
