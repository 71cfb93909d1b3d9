// The constants of a template and how they are written: a table of what a role's n[] are called, and the writer of a source.
#include "constants.h"

#include <math.h>

#include "runtime/plan/words.h"

enum constant_kind { LAST, SIZE, COUNT_OF, FLAG, WORD_OF };

/// What one of plan_kernel's n[] is called in a template.
struct constant {
    const char *name;
    enum constant_kind kind;
    const char *vocabulary; // WORD_OF: `score` of score_softmax
    const char *const *words;
};

#define VALUE(constant, kind) {constant, kind, 0, 0}
#define WORD_NAMED(constant, kind) {constant, WORD_OF, #kind, kind##_words}
/// How an expert's weights are stored and multiplied: the same for both of its products.
#define WEIGHT_CODES \
    WORD_NAMED("CODES", dtype), VALUE("CODE_BLOCK", COUNT_OF), VALUE("CODE_SCALES", SIZE), VALUE("ARITHMETIC", SIZE)

/// Everything about a role: its constants in the order of n[], what scale, alpha and limit are called (NULL: it has none).
struct role {
    struct constant n[12];
    const char *scale, *alpha, *limit;
};

static const struct role roles[kernel_role_words_count] = {
    [kernel_role_route] = {.n = {VALUE("HIDDEN", SIZE), VALUE("EXPERTS", COUNT_OF), VALUE("CHOICES", COUNT_OF),
                                 WORD_NAMED("SCORE", score), VALUE("NORMALIZE", FLAG), WORD_NAMED("SOURCE", dtype),
                                 VALUE("GROUPS", COUNT_OF), VALUE("GROUPS_KEPT", COUNT_OF),
                                 WORD_NAMED("GROUP_SCORE", group_score), VALUE("BIASES", COUNT_OF)},
                           .scale = "SCALE",
                           .alpha = "BIAS_NUMBER",
                           .limit = "LOGIT_BIAS_NUMBER"},
    [kernel_role_copy_rows] = {.n = {VALUE("WIDTH", SIZE), WORD_NAMED("SOURCE", dtype), WORD_NAMED("RESULT", dtype),
                                     VALUE("BLOCK", COUNT_OF), WORD_NAMED("SCALE_TYPE", scale_type),
                                     VALUE("TABLE", COUNT_OF), WORD_NAMED("BETWEEN", dtype),
                                     WORD_NAMED("MULTIPLIED", dtype)}},
    [kernel_role_mlp_up] = {.n = {VALUE("HIDDEN", SIZE), VALUE("FFN", SIZE), WORD_NAMED("ACTIVATION", activation),
                                  WORD_NAMED("DTYPE", dtype), VALUE("A_STRIDE", SIZE), VALUE("HIDDEN_STRIDE", SIZE),
                                  VALUE("WEIGHTED_INPUT", FLAG), VALUE("FORM", COUNT_OF), WEIGHT_CODES},
                            .alpha = "ALPHA",
                            .limit = "LIMIT"},
    [kernel_role_mlp_down] = {.n = {VALUE("FFN", SIZE), VALUE("WIDTH", SIZE), WORD_NAMED("DTYPE", dtype),
                                    WORD_NAMED("RESULT", dtype), VALUE("HIDDEN_STRIDE", SIZE),
                                    VALUE("ACC_STRIDE", SIZE), VALUE("UNWEIGHTED", FLAG), VALUE("FORM", COUNT_OF),
                                    WEIGHT_CODES}},
    [kernel_role_merge] = {.n = {VALUE("WIDTH", SIZE), WORD_NAMED("REPLY", dtype), WORD_NAMED("RESULT", dtype),
                                 VALUE("ADDS", FLAG), VALUE("FORMATS", COUNT_OF), VALUE("FORMAT_1", SIZE),
                                 VALUE("FORMAT_2", SIZE), VALUE("FORMAT_3", SIZE), VALUE("FORMAT_4", SIZE)}},
    [kernel_role_add] = {.n = {VALUE("WIDTH", SIZE), WORD_NAMED("A", dtype), WORD_NAMED("B", dtype),
                               WORD_NAMED("RESULT", dtype)}},
    [kernel_role_sum_rows] = {.n = {VALUE("WIDTH", SIZE), WORD_NAMED("DTYPE", dtype)}},
    [kernel_role_gate] = {.n = {VALUE("WIDTH", SIZE), WORD_NAMED("SOURCE", dtype), WORD_NAMED("REPLY", dtype),
                                WORD_NAMED("RESULT", dtype)}},
    [kernel_role_shift] = {.n = {VALUE("WIDTH", SIZE), WORD_NAMED("SOURCE", dtype), WORD_NAMED("RESULT", dtype)}},
};

void put_size(struct writer *w, const char *name, int64_t value)
{
    w->text = context_printf(w->context, "%sconstexpr int64_t %s = %lld;\n", w->text, name, (long long)value);
}

void put_count(struct writer *w, const char *name, int64_t value)
{
    w->text = context_printf(w->context, "%sconstexpr int %s = %lld;\n", w->text, name, (long long)value);
}

static void put_number(struct writer *w, const char *name, double value)
{
    if (name && isinf(value)) // NVRTC has no constant for it; nothing but infinity is beyond the largest number
        w->text = context_printf(w->context, "%sconstexpr float %s = %s0x1.fffffep127f; // none\n", w->text, name,
                                 value < 0 ? "-" : "");
    else if (name)
        w->text = context_printf(w->context, "%sconstexpr float %s = %af; // %g\n", w->text, name, (double)(float)value,
                                 value);
}

void put_flag(struct writer *w, const char *name, bool value)
{
    w->text = context_printf(w->context, "%sconstexpr bool %s = %s;\n", w->text, name, value ? "true" : "false");
}

static void put_constant(struct writer *w, const struct constant *c, int64_t value)
{
    if (c->kind == SIZE)
        put_size(w, c->name, value);
    else if (c->kind == COUNT_OF)
        put_count(w, c->name, value);
    else if (c->kind == FLAG)
        put_flag(w, c->name, value != 0);
    else
        w->text = context_printf(w->context, "%sconstexpr int %s = %s_%s;\n", w->text, c->name, c->vocabulary,
                                 c->words[value]);
}

void put_role(struct writer *w, const struct plan_kernel *kernel)
{
    const struct role *role = &roles[kernel->role];
    for (const struct constant *c = role->n; c < role->n + 12 && c->kind != LAST; c++)
        put_constant(w, c, kernel->n[c - role->n]);
    put_number(w, role->scale, kernel->scale);
    put_number(w, role->alpha, kernel->alpha);
    put_number(w, role->limit, kernel->limit);
    if (kernel->role == kernel_role_route) {
        put_number(w, "TEMPERATURE", kernel->temperature);
        put_number(w, "NOISE", MOE_NOISE_FACTOR(kernel->noise));
        put_size(w, "SEED", kernel->seed);
    }
}
