// Executables and libraries that carry their plan: the stub's bytes, behind them the plan for each CPU level with a trailer
// that says where it is. The runtime finds it there (plan_open_file). Files are written as runtime/output.h says.
#include "compiler/plan/build.h"

#include <ctype.h>
#include <elf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/output.h"
#include "runtime/plan/plan.h"

enum { CARRIER_ALIGN = 64 };

static bool fail(struct context *context, const char *path, const char *reason)
{
    snprintf(context->fatal_message, sizeof context->fatal_message, "%.150s: %.90s", path, reason);
    return false;
}

struct piece {
    const void *bytes;
    size_t size;
};

/// The pieces, one behind the other, as the file `path`.
static bool write_pieces(struct context *context, const char *path, const struct piece *pieces, size_t count,
                         mode_t mode)
{
    struct output_file out;
    if (!output_begin(&out, path, mode))
        return fail(context, path, strerror(errno));
    bool fine = true;
    for (size_t i = 0; i < count && fine; i++)
        fine = output_write(&out, pieces[i].bytes, pieces[i].size);
    return output_end(&out, fine) || fail(context, path, strerror(errno));
}

static bool write_carrier(struct context *context, const struct piece *carrier, const struct carried_plan *plans,
                          size_t count, const char *path)
{
    static const char zeros[CARRIER_ALIGN];
    struct piece *pieces = context_alloc(context, (1 + 3 * count) * sizeof *pieces);
    struct plan_trailer *trailers = context_alloc(context, count * sizeof *trailers);
    size_t at = carrier->size;
    pieces[0] = *carrier;
    for (size_t i = 0; i < count; i++) {
        size_t gap = (CARRIER_ALIGN - at % CARRIER_ALIGN) % CARRIER_ALIGN;
        trailers[i] = (struct plan_trailer){
            .plan_offset = at + gap, .plan_bytes = plans[i].bytes, .before = i ? at : 0};
        snprintf(trailers[i].cpu_level, sizeof trailers[i].cpu_level, "%s", plans[i].cpu_level);
        plan_seal_trailer(&trailers[i]);
        pieces[3 * i + 1] = (struct piece){zeros, gap};
        pieces[3 * i + 2] = (struct piece){plans[i].image, plans[i].bytes};
        pieces[3 * i + 3] = (struct piece){&trailers[i], sizeof *trailers};
        at += gap + plans[i].bytes + sizeof *trailers;
    }
    return write_pieces(context, path, pieces, 1 + 3 * count, 0777);
}

static const char *machine_name(unsigned machine)
{
    return machine == EM_X86_64 ? "x86-64" : machine == EM_AARCH64 ? "aarch64" : "another machine";
}

bool carrier_fits(struct context *context, const char *path, const void *carrier, size_t size, unsigned machine)
{
    const Elf64_Ehdr *header = carrier;
    if (size < sizeof *header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64)
        return fail(context, path, "no 64-bit program that could carry a plan");
    if (header->e_machine == machine)
        return true;
    return fail(context, path, context_printf(context, "kernels for %s cannot be carried by a program for %s%s",
                                              machine_name(machine), machine_name(header->e_machine),
                                              ": name one with --carrier"));
}

bool write_executable(struct context *context, const void *stub, size_t stub_size, const struct carried_plan *plans,
                      size_t count, const char *path)
{
    struct piece carrier = {stub, stub_size};
    return stub ? write_carrier(context, &carrier, plans, count, path)
                : fail(context, path, "this moecc was built without the stub of executables");
}

// The header of a library.

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/// Names whose `NAME_open` a C library or moe.h has already.
static bool is_taken(const char *name)
{
    static const char *const taken[] = {"shm", "sem", "mq"};
    bool found = !strncmp(name, "moe_", 4);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        found = found || !strcmp(name, taken[i]);
    return found;
}

/// A C identifier made from the pipeline's name.
static char *identifier(struct context *context, const char *name, bool upper)
{
    const char *before = is_taken(name) ? "pipeline_" : isdigit((unsigned char)name[0]) ? "_" : "";
    name = context_printf(context, "%s%s", before, name);
    size_t length = strlen(name);
    char *text = context_alloc(context, length + 1), *at = text;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)name[i];
        *at++ = isalnum(c) ? (char)(upper ? toupper(c) : c) : '_';
    }
    return text;
}

static const char *header_text(struct context *context, const struct ir *plan, const char *library)
{
    const struct plan_info *info = ROW(plan, plan_info, 0);
    const char *name = ir_text(plan, info->name);
    const char *lower = identifier(context, name, false), *upper = identifier(context, name, true);
    const char *sizes =
        context_printf(context,
                       "#define %s_LIBRARY \"%s\"\n"
                       "#define %s_RANKS %u\n"
                       "#define %s_WIDTH %lld          // elements of a token row\n"
                       "#define %s_TOKENS_BOUND %lld   // most tokens per rank and step\n"
                       "#define %s_EXPERTS %u\n"
                       "#define %s_CHOICES %u          // experts of a token\n"
                       "#define %s_LAYERS %u\n"
                       "#define %s_X_DTYPE \"%s\"\n"
                       "#define %s_Y_DTYPE \"%s\"\n",
                       upper, library, upper, info->ranks, upper, (long long)info->width, upper,
                       (long long)info->tokens_bound, upper, info->experts, upper, info->choices, upper, info->layers,
                       upper, dtype_words[info->x_dtype], upper, dtype_words[info->y_dtype]);
    return context_printf(
        context,
        "// %s - pipeline `%s`, layer `%s`. Made by moecc %s.\n"
        "#ifndef %s_PLAN_H\n"
        "#define %s_PLAN_H\n\n"
        "#include <moe.h>\n\n"
        "%s\n"
        "/// Opens the plan that the library itself carries. `path`: where the library lies; NULL: %s_LIBRARY in\n"
        "/// the working directory. Close with moe_plan_close, after its sessions. Errors: as moe_plan_open.\n"
        "static inline moe_status %s_open(const char *path, moe_plan **plan)\n"
        "{\n"
        "    return moe_plan_open(path ? path : %s_LIBRARY, plan);\n"
        "}\n\n"
        "#endif\n",
        library, name, ir_text(plan, info->layer), ir_text(plan, info->compiler), upper, upper, sizes, upper, lower,
        upper);
}

const char *library_header_path(struct context *context, const char *path)
{
    const char *dot = strrchr(base_name(path), '.');
    int length = dot ? (int)(dot - path) : (int)strlen(path);
    return context_printf(context, "%.*s.h", length, path);
}

/// The runtime's shared object under the name of the file that it becomes; NULL after a failure.
static const void *name_library(struct context *context, const void *library, size_t size, const char *path)
{
    char room[SONAME_ROOM];
    const char *name = base_name(path);
    memset(room, '=', sizeof room);
    const char *at = library ? memmem(library, size, room, sizeof room) : NULL;
    if (!at || strlen(name) > sizeof room || !*name) {
        fail(context, path, !library ? "this moecc was built without the runtime library"
                            : !at    ? "the runtime library has no room for a name"
                                     : "no name for a library");
        return NULL;
    }
    char *named = context_alloc(context, size);
    memcpy(named, library, size);
    memset(named + (at - (const char *)library), 0, sizeof room);
    memcpy(named + (at - (const char *)library), name, strlen(name));
    return named;
}

bool write_library(struct context *context, const void *library, size_t library_size, const struct carried_plan *plans,
                   size_t count, const char *path)
{
    library = name_library(context, library, library_size, path);
    if (!library)
        return false;
    struct plan opened;
    char error[128];
    if (!plan_open(&opened, plans[0].image, plans[0].bytes, false, error, sizeof error))
        return fail(context, path, error);
    const char *text = header_text(context, &opened.ir, base_name(path));
    plan_close(&opened);
    struct piece carrier = {library, library_size}, header = {text, strlen(text)};
    return write_carrier(context, &carrier, plans, count, path) &&
           write_pieces(context, library_header_path(context, path), &header, 1, 0666);
}
