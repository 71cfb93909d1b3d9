// From a token's choices to its rows, and which copy of its experts computes each. The choice depends on who sends, on the
// token's place in the rank's sequence and on nothing else: not on time, load, or how the sequence is split.
#include "routes.h"

#include <limits.h>
#include <stdlib.h>

enum { INSERTED_MOST = 32 }; // choices that are sorted by insertion

struct routes routes_of(const struct stream *s, const void *ids, const void *weights, int64_t first_token,
                        uint32_t node)
{
    const struct moe_session *session = s->rank->session;
    return (struct routes){.session = session,
                           .ids = ids,
                           .weights = weights,
                           .choices = session->info->choices,
                           .me = s->rank->number,
                           .node = node,
                           .first_token = first_token};
}

static int by_owner(const void *a, const void *b)
{
    const struct route_pair *x = a, *y = b;
    return x->owner < y->owner ? -1 : x->owner > y->owner;
}

/// The pairs of a token in owner order. Returns their number, or -1.
static int token_pairs(const struct routes *r, int64_t token, struct route_pair pairs[])
{
    bool few = r->choices <= INSERTED_MOST;
    int count = 0;
    for (uint32_t c = 0; c < r->choices; c++) {
        int32_t id = r->ids[token * r->choices + c];
        if (id == -1)
            continue;
        if (id < 0 || (uint32_t)id >= r->session->info->experts)
            return -1;
        uint32_t owner = r->session->owner_row[id];
        struct route_pair p = {owner, (uint32_t)id, (int32_t)ROW(r->session->ir, plan_owner, owner)->local,
                               r->weights[token * r->choices + c]};
        int at = count++;
        for (; few && at > 0 && pairs[at - 1].owner > p.owner; at--)
            pairs[at] = pairs[at - 1];
        pairs[at] = p;
    }
    if (!few)
        qsort(pairs, (size_t)count, sizeof *pairs, by_owner);
    for (int i = 1; i < count; i++)
        if (pairs[i].owner == pairs[i - 1].owner)
            return -1;
    return count;
}

static uint32_t owner_of(const struct routes *r, const struct route_pair *pair)
{
    return ROW(r->session->ir, plan_owner, pair->owner)->rank;
}

/// Where a rank holds an expert: local id, or -1.
static int32_t held_at(const struct moe_session *session, uint32_t expert, uint32_t rank)
{
    for (uint32_t h = session->holder_first[expert]; h < session->holder_first[expert + 1]; h++) {
        const struct plan_owner *o = ROW(session->ir, plan_owner, session->holders[h]);
        if (o->rank >= rank)
            return o->rank == rank ? (int32_t)o->local : -1;
    }
    return -1;
}

/// A nearer rank has a larger number: the sender itself, else by the outermost axis between the two.
static int nearness(const struct routes *r, uint32_t rank)
{
    return rank == r->me ? INT_MAX : (int)axis_between(r->session->ir, r->me, rank);
}

/// The ranks that hold all experts of a row and are nearest: the `wanted`-th of them, or (`wanted` < 0) how many.
static int64_t nearest(const struct routes *r, const struct route_pair pairs[], const struct route_row *row,
                       int64_t wanted)
{
    const struct moe_session *session = r->session;
    uint32_t expert = pairs[row->first].expert;
    int best = -1;
    int64_t count = 0, found = r->me;
    for (uint32_t h = session->holder_first[expert]; h < session->holder_first[expert + 1]; h++) {
        uint32_t rank = ROW(session->ir, plan_owner, session->holders[h])->rank;
        int near = nearness(r, rank), i = row->first + 1;
        while (near >= best && i < row->end && held_at(session, pairs[i].expert, rank) >= 0)
            i++;
        if (near < best || i < row->end)
            continue;
        if (near > best) {
            best = near;
            count = 0;
        }
        if (count++ == wanted)
            found = rank;
    }
    return wanted < 0 ? count : found;
}

/// Several are equally near: they take turns by the token's number, each sender beginning with another.
static void choose_copy(const struct routes *r, int64_t token, struct route_pair pairs[], struct route_row *row)
{
    int64_t count = nearest(r, pairs, row, -1);
    row->rank = (uint32_t)nearest(r, pairs, row, (r->first_token + token + r->me) % count);
    for (int i = row->first; i < row->end; i++)
        pairs[i].local = held_at(r->session, pairs[i].expert, row->rank);
}

/// Through relays rows for one node stand together.
static void sort_by_rank(struct route *route)
{
    for (int i = 1; i < route->count; i++) {
        struct route_row row = route->rows[i];
        int at = i;
        for (; at > 0 && route->rows[at - 1].rank > row.rank; at--)
            route->rows[at] = route->rows[at - 1];
        route->rows[at] = row;
    }
}

bool route_token(const struct routes *r, int64_t token, struct route *route)
{
    int count = token_pairs(r, token, route->pairs);
    route->count = 0;
    for (int i = 0, next; i < count; i = next) {
        struct route_row *row = &route->rows[route->count++];
        *row = (struct route_row){owner_of(r, &route->pairs[i]), i, 0};
        for (next = i + 1; next < count && owner_of(r, &route->pairs[next]) == row->rank;)
            next++;
        row->end = next;
        if (slots_has_copies(r->session->ir))
            choose_copy(r, token, route->pairs, row);
    }
    if (r->node && slots_has_copies(r->session->ir))
        sort_by_rank(route);
    return count >= 0;
}
