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

/// A file of edited kernels, while it is read.
struct reading {
    struct context *context;
    const char *path;
    int *lines; // of each source's heading; 0: not seen
};

static bool has_line(const char *text, const char *line, size_t length)
{
    for (const char *at = text; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (!strncmp(at, line, length) && strchr("\r\n \t/", at[length])) // or the end
            return true;
    return false;
}

/// What stands before the template is what the plan's buffers, weights and launches go by: an edited kernel has it too, but
/// for numbers that only enter its arithmetic.
static void require_constants(const struct reading *r, const struct cuda_source *source, const char *text, int first)
{
    static const char number[] = "constexpr float ";
    const char *end = strstr(source->text, "\n#line ");
    for (const char *at = source->text, *next; at && at < end; at = next) {
        size_t length = strcspn(at, "\n");
        next = at + length + 1;
        if (!length || !strncmp(at, number, sizeof number - 1) || has_line(text, at, length))
            continue;
        fatal(r->context, EXIT_INPUT,
              "%s:%d: kernel `%s` lacks the line `%.*s`: the rest of the plan goes by it, and `--emit=cuda` with the same "
              "options prints it",
              r->path, first, source->name, (int)length, at);
    }
}

/// The kernel whose heading is on line `line`, up to the next one; `next` is what follows the heading.
static void take_kernel(const struct reading *r, const struct cuda_sources *sources, const char *name, const char *next, int line)
{
    struct cuda_source *source = source_named(r->context, sources, r->path, name);
    int *seen = &r->lines[source - sources->at];
    if (*seen)
        fatal(r->context, EXIT_INPUT, "%s:%d: kernel `%s` is there twice, on line %d too", r->path, line, name, *seen);
    *seen = line;
    const char *end = strstr(next, "\n// kernel ");
    const char *text = context_printf(r->context, "%.*s", (int)(end ? end - next : (long)strlen(next)), next);
    require_constants(r, source, text, line);
    source->text = context_printf(r->context, "#line %d \"%s\"\n%s\n", line + 1, r->path, text);
    source->file = r->path;
    source->edited = true;
}

void cuda_use_file(struct context *context, struct cuda_sources *sources, const char *path)
{
    size_t size;
    const char *given = read_whole_file(context, path, &size);
    if (!given)
        fatal(context, EXIT_SYSTEM, "cannot read %s: %s", path, strerror(errno));
    char *text = memcpy(context_alloc(context, size + 1), given, size);
    struct reading reading = {context, path, context_alloc(context, (sources->count + 1) * sizeof *reading.lines)};
    int line = 1, found = 0;
    drop_line_directives(text);
    for (char *at = text; *at; line++) {
        size_t length = strcspn(at, "\n");
        char *next = at + length + (at[length] == '\n');
        bool headed = !strncmp(at, heading, sizeof heading - 1);
        if (headed)
            take_kernel(&reading, sources,
                        context_printf(context, "%.*s", (int)strcspn(at + sizeof heading - 1, ", \r\n"), at + sizeof heading - 1),
                        next, line);
        else if (!found && length > strspn(at, " \t\r") && strncmp(at, "//", 2) != 0)
            fatal(context, EXIT_INPUT, "%s:%d: this belongs to no kernel: each begins with a line `// kernel NAME`, as "
                  "`--emit=cuda` prints it", path, line);
        found += headed;
        at = next;
    }
    if (!found)
        fatal(context, EXIT_INPUT, "%s: no kernels in it; `--emit=cuda` shows the form", path);
}
