// The built-in kernel `limit`: the model's own limit on the tokens of an expert (Switch, NLLB). First choices take an
// expert's places in the order of the rank's tokens, then second choices; who finds none loses that choice: its id is -1,
// its weight 0. Micro-batches count on in the same places. Where weights are normalised, those a token is left with add
// up to the router's scale again.
#include <string.h>

#include "control.h"
#include "session.h"

struct limit { // of a part's tokens
    int32_t *ids;
    float *weights;
    int64_t tokens, choices, experts, places;
    int64_t first, end; // of the choices: later ones come when first ones of all parts have their places
};

/// The places of an expert: the smaller of both limits, at most every token. Products within 1e-9 of an integer are it.
static int64_t places_of(const struct plan_kernel *k, int64_t tokens)
{
    double mean = (double)tokens * (double)k->n[1] / (double)k->n[0];
    double share = k->alpha * mean - 1e-9, places = share < (double)tokens ? share : (double)tokens; // NaN: no limit
    // Rounded up by hand: libm's `ceil` cannot be linked statically beside a shared libc by every compiler.
    int64_t whole = places > 0 ? (int64_t)places + ((double)(int64_t)places < places) : 0;
    return k->limit < (double)whole ? (k->limit > 0 ? (int64_t)k->limit : 0) : whole;
}

static int64_t drop(const struct limit *l, int32_t *taken)
{
    int64_t dropped = 0;
    for (int64_t choice = l->first; choice < l->end; choice++)
        for (int64_t i = choice; i < l->tokens * l->choices; i += l->choices) {
            int32_t expert = l->ids[i];
            if (expert < 0 || expert >= l->experts)
                continue;
            if (taken[expert] < l->places) {
                taken[expert]++;
                continue;
            }
            l->ids[i] = -1;
            l->weights[i] = 0;
            dropped++;
        }
    return dropped;
}

/// Of a token that lost a choice, and has one left.
static void normalise(const struct limit *l, int64_t token, double scale)
{
    const int32_t *ids = l->ids + token * l->choices;
    float *weights = l->weights + token * l->choices, sum = 0;
    bool whole = true;
    for (int64_t i = 0; i < l->choices; i++) {
        sum += weights[i];
        whole = whole && ids[i] >= 0;
    }
    for (int64_t i = 0; i < l->choices && !whole && sum > 0; i++)
        weights[i] = weights[i] / sum * (float)scale;
}

bool builtin_limit(struct stream *s, const struct moe_kargs *a)
{
    const struct ir *ir = s->rank->session->ir;
    const struct plan_instr *in = stream_instr(s);
    const struct plan_kernel *k = ROW(ir, plan_kernel, in->kernel);
    struct limit l = {.ids = a->p[LIMIT_IDS],
                      .weights = a->p[LIMIT_WEIGHTS],
                      .tokens = a->n[0],
                      .choices = k->n[1],
                      .experts = k->n[0],
                      .places = places_of(k, s->rank->step->tokens),
                      .first = k->n[3],
                      .end = k->n[4]};
    if (l.first == 0 && ROW(ir, plan_part, in->part)->begin == 0)
        memset(a->p[LIMIT_TAKEN], 0, (size_t)k->n[0] * sizeof(int32_t));
    s->dropped += drop(&l, a->p[LIMIT_TAKEN]);
    for (int64_t t = 0; t < l.tokens && l.end == l.choices && k->n[2]; t++)
        normalise(&l, t, k->scale);
    return true;
}
