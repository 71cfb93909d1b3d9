// Arena offsets. Two buffers may share bytes when at every moment at most one of them holds something: their lifetimes,
// layer by layer, follow one another in the proven order. Greedy best fit, largest first; once for every class of ranks
// that own equally many experts. Control buffers hold pointers and share with nothing.
#include <stdlib.h>
#include <string.h>

#include "compiler/lower/lower.h"

enum { ARENA_ALIGN = 64 };

struct item {
    uint32_t row; // plan_buffer
    bool control;
    uint32_t first, count; // lifetimes: logical numbers, in layer order
    int64_t bytes, offset;
};

struct placing {
    struct lowering *l;
    struct item *items;
    uint32_t count;
    uint32_t *lifetimes;
    uint64_t *conflicts; // bit matrix
    uint32_t words;      // of a row of it
};

/// Lifetimes of each item are in order, so they interleave without overlap if each gap holds: merge them.
static bool may_share(const struct placing *p, const struct item *a, const struct item *b)
{
    if (a->control || b->control)
        return false;
    const uint32_t *x = p->lifetimes + a->first, *y = p->lifetimes + b->first;
    uint32_t next = 0;
    for (uint32_t i = 0; i < a->count; i++) {
        while (next < b->count && logical_before(p->l, y[next], x[i]))
            next++;
        if (next < b->count && !logical_before(p->l, x[i], y[next]))
            return false;
    }
    return true;
}

static void collect(struct placing *p)
{
    struct lowering *l = p->l;
    uint32_t first = l->first_buffer, total = COUNT(l->plan, plan_buffer) - first, used = 0;
    uint32_t *item_of = context_alloc(l->context, (total + 1) * sizeof *item_of);
    p->items = context_alloc(l->context, (total + 1) * sizeof *p->items);
    for (uint32_t i = 0; i < total; i++) {
        if (ROW(l->plan, plan_buffer, first + i)->kind != buffer_kind_arena)
            continue;
        item_of[i] = p->count;
        p->items[p->count++].row = first + i;
    }
    for (uint32_t i = 0; i < l->arena_count; i++)
        if (l->logicals[i].buffer != NONE)
            p->items[item_of[l->logicals[i].buffer - first]].count++, used++;
    p->lifetimes = context_alloc(l->context, (used + 1) * sizeof *p->lifetimes);
    used = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        p->items[i].first = used;
        used += p->items[i].count;
        p->items[i].count = 0;
    }
    // Logical numbers of one family and cell ascend with the layer.
    for (uint32_t i = 0; i < l->arena_count; i++) {
        if (l->logicals[i].buffer == NONE)
            continue;
        struct item *item = &p->items[item_of[l->logicals[i].buffer - first]];
        p->lifetimes[item->first + item->count++] = i;
        item->control = l->families[i / l->cells / l->layers].control;
    }
}

static void find_conflicts(struct placing *p)
{
    p->words = (p->count + 63) / 64;
    p->conflicts = context_alloc(p->l->context, ((size_t)p->count * p->words + 1) * sizeof *p->conflicts);
    for (uint32_t i = 0; i < p->count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (!may_share(p, &p->items[i], &p->items[j])) {
                p->conflicts[(size_t)i * p->words + j / 64] |= UINT64_C(1) << (j % 64);
                p->conflicts[(size_t)j * p->words + i / 64] |= UINT64_C(1) << (i % 64);
            }
}

static bool conflict(const struct placing *p, uint32_t i, uint32_t j)
{
    return p->conflicts[(size_t)i * p->words + j / 64] >> (j % 64) & 1;
}

struct ranked {
    int64_t key;
    uint32_t item;
};

static int largest_first(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    return x->item < y->item ? -1 : x->item > y->item;
}

/// The smallest gap between conflicting items already placed that holds it, else behind them all. `placed`: by offset.
static int64_t best_offset(const struct placing *p, uint32_t item, const uint32_t *placed, uint32_t count)
{
    int64_t end = 0, best = -1, best_gap = INT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const struct item *other = &p->items[placed[i]];
        if (!conflict(p, item, placed[i]))
            continue;
        int64_t gap = other->offset - end;
        if (gap >= p->items[item].bytes && gap < best_gap) {
            best = end;
            best_gap = gap;
        }
        if (other->offset + other->bytes > end)
            end = other->offset + other->bytes;
    }
    return best >= 0 ? best : end;
}

static void insert_placed(const struct placing *p, uint32_t item, uint32_t *placed, uint32_t count)
{
    while (count > 0 && p->items[placed[count - 1]].offset > p->items[item].offset) {
        placed[count] = placed[count - 1];
        count--;
    }
    placed[count] = item;
}

static int64_t place_class(struct placing *p, uint32_t rank)
{
    struct lowering *l = p->l;
    struct ranked *order = context_alloc(l->context, (p->count + 1) * sizeof *order);
    uint32_t *placed = context_alloc(l->context, (p->count + 1) * sizeof *placed);
    int64_t arena = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        struct item *item = &p->items[i];
        item->bytes = 0;
        item->offset = 0;
        for (uint32_t j = 0; j < item->count; j++) {
            int64_t bytes = logical_bytes(l, p->lifetimes[item->first + j], rank);
            item->bytes = bytes > item->bytes ? bytes : item->bytes;
        }
        item->bytes = (item->bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
        order[i] = (struct ranked){item->bytes, i};
    }
    qsort(order, p->count, sizeof *order, largest_first);
    for (uint32_t i = 0; i < p->count && order[i].key > 0; i++) {
        struct item *item = &p->items[order[i].item];
        item->offset = best_offset(p, order[i].item, placed, i);
        if (item->bytes > MOE_MAX_BYTES || item->offset > MOE_MAX_BYTES - item->bytes)
            return -1;
        insert_placed(p, order[i].item, placed, i);
        arena = item->offset + item->bytes > arena ? item->offset + item->bytes : arena;
    }
    return arena;
}

/// Caller's and parameter buffers lie elsewhere: only their sizes count.
static int64_t outside_bytes(const struct lowering *l, const struct plan_buffer *buffer, uint32_t rank)
{
    if (buffer->kind != buffer_kind_param)
        return l->bound * buffer->row_bytes;
    const struct plan_param *param = ROW(l->plan, plan_param, buffer->param);
    return param->bytes * plan_param_blocks(param, ROW(l->plan, plan_rank, rank)->owned.count);
}

static struct rows write_extents(struct placing *p, uint32_t rank)
{
    struct lowering *l = p->l;
    struct rows buffers = ROW(l->plan, plan_variant, l->variant)->buffers;
    struct rows extents = {COUNT(l->plan, plan_extent), buffers.count};
    for (uint32_t i = 0; i < buffers.count; i++) {
        int64_t bytes = outside_bytes(l, ROW(l->plan, plan_buffer, buffers.first + i), rank);
        uint32_t row = lower_add(l->context, l->plan, T_plan_extent);
        *ROW(l->plan, plan_extent, row) = (struct plan_extent){0, bytes};
    }
    for (uint32_t i = 0; i < p->count; i++)
        *ROW(l->plan, plan_extent, extents.first + p->items[i].row - buffers.first) =
            (struct plan_extent){p->items[i].offset, p->items[i].bytes};
    return extents;
}

/// Control data numbers the pairs of row and expert that a rank computes at once.
static bool pairs_fit(struct lowering *l)
{
    int64_t most = 0;
    for (uint32_t i = 0; i < l->path_count; i++)
        if (l->paths[i].dense && l->bound * l->paths[i].experts > most)
            most = l->bound * l->paths[i].experts;
    for (uint32_t i = 0; i < COUNT(l->plan, plan_exchange); i++) {
        const struct plan_exchange *e = ROW(l->plan, plan_exchange, i);
        for (uint32_t r = 0; r < l->ranks && e->kind == exchange_kind_dispatch; r++) {
            int64_t pairs = slots_fan_pairs(l->plan, e, e->part, r, l->ranks),
                    rows = slots_fan_rows(l->plan, e, e->part, r, l->ranks);
            most = pairs > most ? pairs : most;
            most = rows > most ? rows : most;
        }
    }
    if (most <= MOE_MAX_PAIRS)
        return true;
    lower_refuse(l, E0206, l->layer->stages.first, NULL, "%lld rows for the experts of one rank, more than the %lld that a plan can number",
                 (long long)most, (long long)MOE_MAX_PAIRS);
    return false;
}

bool place_buffers(struct lowering *l, struct rows *extents, int64_t *arena_bytes)
{
    struct placing p = {.l = l};
    if (!pairs_fit(l))
        return false;
    collect(&p);
    find_conflicts(&p);
    for (uint32_t class = 0; class < l->class_count; class ++) {
        arena_bytes[class] = place_class(&p, l->class_rank[class]);
        if (arena_bytes[class] < 0) {
            lower_refuse(l, E0206, l->layer->stages.first, NULL,
                         "buffers for %lld tokens are larger than a plan can say", (long long)l->bound);
            return false;
        }
        extents[class] = write_extents(&p, l->class_rank[class]);
    }
    return true;
}
