// How tokens spread over experts: evenly, by Zipf's law over the experts in a fixed random order (so that no rank is favoured by
// the numbers of its experts), or as a recorded `topk_ids` says.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/simulate/model.h"
#include "runtime/weights/safetensors.h"

static bool read_trace(struct context *context, const char *path, struct load *load, char *error, size_t size)
{
    struct tensor_set *set = tensors_open(path, error, size);
    const struct tensor *ids = set ? tensors_find(set, "topk_ids") : NULL;
    if (set && (!ids || strcmp(ids->dtype, "I32") != 0)) {
        snprintf(error, size, "%s has no tensor `topk_ids` of I32, as `moecc run --output` writes it", path);
        ids = NULL;
    }
    size_t count = ids ? ids->bytes / sizeof(int32_t) : 0;
    const int32_t *id = ids ? ids->data : NULL;
    load->kind = LOAD_TRACE;
    load->counts = context_alloc(context, LOAD_EXPERTS_MAX * sizeof *load->counts);
    bool fine = ids != NULL;
    for (size_t i = 0; i < count && fine; i++) {
        if (id[i] < -1 || id[i] >= LOAD_EXPERTS_MAX) {
            snprintf(error, size, "%s: `topk_ids` holds %d, which is no expert", path, id[i]);
            fine = false;
        } else if (id[i] >= 0) {
            load->counts[id[i]]++;
            load->total++;
            load->experts = (uint32_t)id[i] >= load->experts ? (uint32_t)id[i] + 1 : load->experts;
        }
    }
    if (fine && !load->total) {
        snprintf(error, size, "%s: `topk_ids` chooses no expert", path);
        fine = false;
    }
    if (set)
        tensors_close(set);
    return fine;
}

bool load_parse(struct context *context, const char *text, struct load *load, char *error, size_t size)
{
    char *end = NULL;
    *load = (struct load){.text = text};
    if (!strcmp(text, "uniform"))
        return true;
    if (strncmp(text, "zipf(", 5) != 0)
        return read_trace(context, text, load, error, size);
    load->kind = LOAD_ZIPF;
    load->exponent = strtod(text + 5, &end);
    if (end != text + 5 && !strcmp(end, ")") && load->exponent >= 0 && load->exponent <= 8)
        return true;
    snprintf(error, size, "`--load %s`: `uniform`, `zipf(0.7)` or a file with `topk_ids` is expected", text);
    return false;
}

/// No expert is chosen by more tokens than there are: what is too much goes to the others in proportion.
static void cap_weights(double *weights, uint32_t experts, double most)
{
    for (uint32_t round = 0; round < experts; round++) {
        double open = 0, excess = 0;
        for (uint32_t e = 0; e < experts; e++) {
            excess += fmax(0, weights[e] - most);
            open += weights[e] < most ? weights[e] : 0;
        }
        if (excess <= 1e-12 || open <= 0)
            return;
        for (uint32_t e = 0; e < experts; e++)
            weights[e] = weights[e] >= most ? most : weights[e] * (1 + excess / open);
    }
}

void load_weights(struct context *context, const struct load *load, uint32_t experts, double choices, double *weights)
{
    uint32_t *order = context_alloc(context, (experts + 1) * sizeof *order);
    uint64_t state = 0x9E3779B97F4A7C15u;
    double sum = 0;
    for (uint32_t e = 0; e < experts; e++)
        order[e] = e;
    for (uint32_t e = experts; e > 1; e--) { // Fisher and Yates, with a fixed seed
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t other = (uint32_t)((state >> 33) % e), held = order[e - 1];
        order[e - 1] = order[other];
        order[other] = held;
    }
    for (uint32_t e = 0; e < experts; e++) {
        double weight = 1;
        if (load && load->kind == LOAD_ZIPF)
            weight = pow(1.0 + order[e], -load->exponent);
        else if (load && load->kind == LOAD_TRACE)
            weight = e < load->experts ? (double)load->counts[e] : 0;
        weights[e] = weight;
        sum += weight;
    }
    for (uint32_t e = 0; e < experts && sum > 0; e++)
        weights[e] *= experts / sum;
    if (choices > 0)
        cap_weights(weights, experts, experts / choices);
}
