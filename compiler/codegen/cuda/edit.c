// `--use-cuda FILE`: kernels that somebody has edited, in the form in which `--emit=cuda` prints them.
#include "cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char heading[] = "// kernel ";

/// Lines keep their numbers, in the file that was edited.
static void drop_line_directives(char *text)
{
    for (char *at = text; (at = strstr(at, "#line ")); at++)
        if (at == text || at[-1] == '\n')
            memset(at, ' ', strcspn(at, "\n"));
}

static struct cuda_source *source_named(struct context *context, const struct cuda_sources *sources, const char *path,
                                        const char *name)
{
    for (uint32_t i = 0; i < sources->count; i++)
        if (!strcmp(sources->at[i].name, name))
            return &sources->at[i];
    fatal(context, EXIT_INPUT, "%s: this pipeline has no kernel `%s`", path, name);
}

void cuda_use_file(struct context *context, struct cuda_sources *sources, const char *path)
{
    size_t size;
    const char *given = read_whole_file(context, path, &size);
    if (!given)
        fatal(context, EXIT_SYSTEM, "cannot read %s: %s", path, strerror(errno));
    char *text = memcpy(context_alloc(context, size + 1), given, size), *at = text;
    int line = 1, found = 0;
    drop_line_directives(text);
    while (*at) {
        size_t length = strcspn(at, "\n");
        char *next = at + length + (at[length] == '\n');
        if (!strncmp(at, heading, sizeof heading - 1)) {
            const char *name = context_printf(context, "%.*s", (int)strcspn(at + sizeof heading - 1, ", \n"),
                                              at + sizeof heading - 1);
            char *end = strstr(next, "\n// kernel ");
            struct cuda_source *source = source_named(context, sources, path, name);
            source->text = context_printf(context, "#line %d \"%s\"\n%.*s\n", line + 1, path,
                                          (int)(end ? end - next : (long)strlen(next)), next);
            source->file = path;
            source->edited = true;
            found++;
        }
        at = next;
        line++;
    }
    if (!found)
        fatal(context, EXIT_INPUT, "%s: no kernels in it; `--emit=cuda` shows the form", path);
}
