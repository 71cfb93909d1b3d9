// What the file and std.schedules offer: names, knobs and ranges from their text; then every knob over its range, or, where
// there are too many combinations, one knob at a time.
#include "compiler/tune/search.h"

#include <string.h>

enum { GRID_MOST = 64 };

static int64_t integer_at(const struct program_text *text, node_id id)
{
    return node_at(&text->ast, id)->kind == NODE_INT ? node_at(&text->ast, id)->integer : -1;
}

/// False: a knob whose range or default is no plain number is left alone, and so is its schedule.
static bool read_knob(struct tuning *t, const struct driver_study *study, const struct ast_node *schedule, node_id id,
                      struct offer *offer)
{
    const struct ast_node *knob = node_at(&study->text->ast, id), *value = node_at(&study->text->ast, knob->slot[1]);
    struct knob_range range = {.low = 1, .high = 0, .value = integer_at(study->text, knob->slot[1])};
    if (knob->slot[0]) {
        range.low = integer_at(study->text, node_at(&study->text->ast, knob->slot[0])->slot[0]);
        range.high = integer_at(study->text, node_at(&study->text->ast, knob->slot[0])->slot[1]);
    }
    range.name = context_printf(t->context, "%s", text_of(study->context, knob->text));
    if (range.value < 0 || offer->knob_count == KNOBS_MOST)
        return false;
    if (range.low > range.high || range.low < 0)
        range.low = range.high = range.value;
    offer->value_at[offer->knob_count] = value->span.begin - schedule->span.begin;
    offer->value_end[offer->knob_count] = value->span.end - schedule->span.begin;
    offer->knobs[offer->knob_count++] = range;
    return true;
}

void list_offers(struct tuning *t, const struct driver_study *study)
{
    const struct program_text *text = study->text;
    for (uint32_t u = text->unit_count; u-- > 0;) {
        const struct source_file *file = &study->context->files[text->units[u].file];
        if (u + 1 != text->unit_count && (!file->module || strcmp(file->module, "std.schedules") != 0))
            continue;
        EACH_NODE(&text->ast, id, node_at(&text->ast, text->units[u].root)->slot[0])
        {
            const struct ast_node *node = node_at(&text->ast, id);
            if (node->kind != NODE_SCHEDULE || t->offer_count == OFFERS_MOST)
                continue;
            struct offer offer = {.name = context_printf(t->context, "%s", text_of(study->context, node->text)),
                                  .name_at = node->name_span.begin - node->span.begin};
            bool fine = true, again = false;
            EACH_NODE(&text->ast, knob, node->slot[0])
                fine = fine && read_knob(t, study, node, knob, &offer);
            for (uint32_t i = 0; i < t->offer_count; i++) // the file's own goes before the library's
                again = again || !strcmp(t->offers[i].name, offer.name);
            offer.source = context_printf(t->context, "%.*s", (int)(node->span.end - node->span.begin), file->text + node->span.begin);
            if (fine && !again)
                t->offers[t->offer_count++] = offer;
        }
    }
}

static const char *use_of(struct tuning *t, const struct offer *offer, const int64_t *values)
{
    const char *text = offer->name;
    for (uint32_t k = 0; k < offer->knob_count; k++)
        text = context_printf(t->context, "%s%s%s: %lld", text, k ? ", " : "(", offer->knobs[k].name, (long long)values[k]);
    return offer->knob_count ? context_printf(t->context, "%s)", text) : text;
}

static double try_values(struct tuning *t, uint32_t number, const int64_t *values)
{
    struct candidate candidate = {.use = use_of(t, &t->offers[number], values), .offer = number};
    const struct candidate *kept = consider(t, candidate);
    return kept ? kept->step_ns : -1;
}

/// Every combination.
static void try_grid(struct tuning *t, uint32_t number)
{
    const struct offer *offer = &t->offers[number];
    int64_t values[KNOBS_MOST];
    for (uint32_t k = 0; k < offer->knob_count; k++)
        values[k] = offer->knobs[k].low;
    for (;;) {
        try_values(t, number, values);
        uint32_t k = 0;
        while (k < offer->knob_count && ++values[k] > offer->knobs[k].high) {
            values[k] = offer->knobs[k].low;
            k++;
        }
        if (k == offer->knob_count)
            return;
    }
}

/// One knob after the other, until none helps.
static void try_one_by_one(struct tuning *t, uint32_t number)
{
    const struct offer *offer = &t->offers[number];
    int64_t best[KNOBS_MOST];
    for (uint32_t k = 0; k < offer->knob_count; k++)
        best[k] = offer->knobs[k].value;
    double least = try_values(t, number, best);
    for (bool better = true; better;) {
        better = false;
        for (uint32_t k = 0; k < offer->knob_count; k++) {
            int64_t values[KNOBS_MOST], high = offer->knobs[k].high, low = offer->knobs[k].low;
            memcpy(values, best, sizeof values);
            for (values[k] = low; values[k] <= high && values[k] - low < GRID_MOST; values[k]++) {
                double step = values[k] == best[k] ? -1 : try_values(t, number, values);
                if (step < 0 || (least >= 0 && step >= least))
                    continue;
                least = step;
                memcpy(best, values, sizeof best);
                better = true;
            }
        }
    }
}

void try_offers(struct tuning *t)
{
    for (uint32_t i = 0; i < t->offer_count; i++) {
        int64_t combinations = 1;
        for (uint32_t k = 0; k < t->offers[i].knob_count && combinations <= GRID_MOST; k++) {
            int64_t more = t->offers[i].knobs[k].high - t->offers[i].knobs[k].low;
            combinations *= more < GRID_MOST ? more + 1 : GRID_MOST + 1;
        }
        if (combinations <= GRID_MOST)
            try_grid(t, i);
        else
            try_one_by_one(t, i);
    }
}

const char *offer_text(struct tuning *t, const struct candidate *candidate)
{
    const struct offer *offer = &t->offers[candidate->offer];
    uint32_t at = offer->name_at;
    const char *text = context_printf(t->context, "%.*s%s", (int)at, offer->source, t->name), *use = candidate->use;
    at += (uint32_t)strlen(offer->name);
    for (uint32_t k = 0; k < offer->knob_count; k++) {
        use = strstr(use, ": ") + 2;
        text = context_printf(t->context, "%s%.*s%.*s", text, (int)(offer->value_at[k] - at), offer->source + at,
                              (int)strcspn(use, ",)"), use);
        at = offer->value_end[k];
    }
    return context_printf(t->context, "%s%s\n", text, offer->source + at);
}
