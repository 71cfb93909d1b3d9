// Rows of one token that find slots together, and the waves and chunks that they belong to (bin.h).
#include "bin.h"

void bin_write_meta(const struct moe_session *session, const struct route_pair pairs[], int from, int to,
                    const struct plan_exchange *e, int64_t row_bytes, char *record)
{
    struct moe_row_meta *meta = (struct moe_row_meta *)(void *)(record + row_bytes - e->meta_bytes);
    for (int i = 0; i < (int)session->info->choices; i++)
        meta[i] = from + i < to ? (struct moe_row_meta){pairs[from + i].local, pairs[from + i].weight}
                                : (struct moe_row_meta){-1, 0};
}

void bin_wave_run(const struct moe_session *session, const struct plan_exchange *e, const struct route_pair pairs[],
                  uint32_t rank, int *from, int *to)
{
    if (e->waves == 1)
        return;
    int64_t first = slots_wave_first(session->ir, e, rank), end = first + slots_wave_experts(session->ir, e, rank);
    while (*from < *to && pairs[*from].local < first)
        ++*from;
    while (*to > *from && pairs[*to - 1].local >= end)
        --*to;
}

uint32_t bin_chunk_of(const int64_t ends[MOE_MAX_CHUNKS], int64_t token, uint32_t chunk)
{
    while (chunk + 1 < MOE_MAX_CHUNKS && token >= ends[chunk])
        chunk++;
    return chunk;
}

int bin_find_group(const struct moe_session *session, const struct plan_exchange *e, uint32_t me,
                   const struct route *route, int nth, int32_t *stored, struct group *g)
{
    uint32_t first = route->rows[nth].rank;
    bool relayed = e->node && first / e->node != me / e->node;
    g->count = 0;
    g->needed = g->there = false;
    do {
        const struct route_row *row = &route->rows[nth];
        int32_t *at = stored ? stored + nth : NULL;
        struct member m = {row->rank, row->first, row->end, row->end, at};
        bin_wave_run(session, e, route->pairs, row->rank, &m.first, &m.wave_end);
        if (m.first == row->end)
            continue;
        g->needed = g->needed || m.first < m.wave_end;
        g->there = g->there || (at && *at >= 0);
        g->members[g->count++] = m;
    } while (++nth < route->count && relayed && route->rows[nth].rank / e->node == first / e->node);
    return nth;
}

bool bin_all_fit(const struct moe_session *session, const struct plan_exchange *e, uint32_t me, const struct group *g,
                 const int64_t *taken)
{
    for (int i = 0, before = 0; i < g->count; i++) {
        uint32_t d = g->members[i].rank;
        before = i && g->members[i - 1].rank == d ? before + 1 : 0;
        if (d != me && taken[d] + before >= slots_rows(session->ir, e, d))
            return false;
    }
    return true;
}
