// `--extern NAME=...`: what stands for an extern stage where no program embeds the runtime. Identity hands on the first
// tensor; busy does so after as long as a real stage would take; a shared object's function is called as the embedding
// program's would be.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/cli/cli.h"

struct stand_in {
    double busy_ns;      // for a whole bound of tokens
    int64_t bound;
};

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int stand_in_call(void *user, const moe_extern_call *call)
{
    const struct stand_in *s = user;
    double end = now_ns() + s->busy_ns * (double)call->count / (double)(s->bound > 0 ? s->bound : 1);
    if (call->row_bytes[0] != call->row_bytes[call->inputs])
        return 1;
    memcpy(call->out, call->in[0], (size_t)(call->count * call->row_bytes[0]));
    while (now_ns() < end)
        ;
    return 0;
}

/// "4.4ms" in ns; negative: no time.
static double parse_time(const char *text)
{
    static const struct {
        const char *unit;
        double ns;
    } units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
    char *end;
    double value = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units && end != text; i++)
        if (!strcmp(end, units[i].unit) && value >= 0 && value < 1e6)
            return value * units[i].ns;
    return -1;
}

bool extern_option_check(const char *text, char *error, size_t size)
{
    const char *value = strchr(text, '=') + 1, *colon = strrchr(value, ':');
    if (!strcmp(value, "identity"))
        return true;
    if (!strncmp(value, "busy:", 5)) {
        if (parse_time(value + 5) >= 0)
            return true;
        snprintf(error, size, "`--extern %s`: `%s` is not a time, as in `busy:4.4ms`", text, value + 5);
        return false;
    }
    if (colon && colon != value && colon[1])
        return true;
    snprintf(error, size, "`--extern %s`: `%s` is none of `identity`, `busy:4.4ms`, `LIB.so:symbol`", text, value);
    return false;
}

/// The function lives as long as the process, and so does what it is given.
static moe_extern_fn *load_function(const char *value, char *error, size_t size)
{
    const char *colon = strrchr(value, ':');
    char *path = strndup(value, (size_t)(colon - value));
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    void *symbol = library ? dlsym(library, colon + 1) : NULL;
    if (!symbol) {
        const char *why = path ? dlerror() : "out of memory";
        snprintf(error, size, "extern %s: %s", value, why ? why : "no such symbol");
    }
    free(path);
    moe_extern_fn *fn;
    memcpy(&fn, &symbol, sizeof fn);
    return fn;
}

static const char *value_for(const struct run_options *options, const char *name)
{
    const char *value = NULL;
    size_t length = strlen(name);
    for (uint32_t i = 0; i < options->extern_count; i++)
        if (!strncmp(options->extern_stages[i], name, length) && options->extern_stages[i][length] == '=')
            value = options->extern_stages[i] + length + 1;
    return value;
}

static moe_status attach(moe_session *session, const char *name, const char *value, int64_t bound, char *error, size_t size)
{
    static struct stand_in identity;
    moe_extern_fn *fn = stand_in_call;
    void *user = &identity;
    if (!strncmp(value, "busy:", 5)) {
        struct stand_in *busy = malloc(sizeof *busy);
        if (!busy)
            return snprintf(error, size, "out of memory"), MOE_NO_MEMORY;
        *busy = (struct stand_in){parse_time(value + 5), bound};
        user = busy;
    } else if (strcmp(value, "identity") != 0) {
        fn = load_function(value, error, size);
        user = NULL;
        if (!fn)
            return MOE_IO;
    }
    moe_status status = moe_session_extern(session, name, fn, user);
    if (status != MOE_OK)
        snprintf(error, size, "%s", moe_session_error(session));
    return status;
}

/// Every --extern names a stage that the plan has.
static bool all_known(const moe_plan *plan, const struct run_options *options, char *error, size_t size)
{
    for (uint32_t i = 0; i < options->extern_count; i++) {
        size_t length = strcspn(options->extern_stages[i], "=");
        const char *name;
        uint32_t n = 0;
        while ((name = moe_plan_extern(plan, n)) &&
               (strlen(name) != length || strncmp(name, options->extern_stages[i], length) != 0))
            n++;
        if (name)
            continue;
        const char *first = moe_plan_extern(plan, 0);
        snprintf(error, size, "`--extern %s`: there is no extern stage `%.*s`%s%s%s", options->extern_stages[i],
                 (int)length, options->extern_stages[i], first ? "; there is `" : "", first ? first : "", first ? "`" : "");
        return false;
    }
    return true;
}

moe_status externs_attach(const moe_plan *plan, moe_session *session, const struct run_options *options,
                          void (*note)(void *user, const char *text), void *user, char *error, size_t size)
{
    moe_plan_info info;
    const char *name;
    moe_plan_describe(plan, &info);
    if (!all_known(plan, options, error, size))
        return MOE_INVALID;
    for (uint32_t i = 0; (name = moe_plan_extern(plan, i)); i++) {
        const char *value = value_for(options, name);
        char text[256];
        snprintf(text, sizeof text, "extern stage `%.64s` hands on its first tensor (--extern %.64s=...)", name, name);
        if (!value)
            note(user, text);
        moe_status status = attach(session, name, value ? value : "identity", info.tokens_bound, error, size);
        if (status != MOE_OK)
            return status;
    }
    return MOE_OK;
}
