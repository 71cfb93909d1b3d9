// Validation of who holds which expert: every expert has one owner, a copy names the owner's row, and each rank's rows
// stand in the order that waves of experts rely on (slots.h).
#include "slots.h"
#include "validate.h"

/// Of two rows of a rank: does `a` stand before `b`? Homes have experts.
static bool stands_before(const struct ir *ir, const struct plan_owner *a, const struct plan_owner *b)
{
    int64_t first = ((int64_t)a->place + 1) * slots_own_experts(ir, b->home),
            second = ((int64_t)b->place + 1) * slots_own_experts(ir, a->home);
    return first != second ? first < second : a->home < b->home;
}

/// The row of an expert's owner, by its home and place; NULL when there is none. The home's rows stand in order.
static const struct plan_owner *row_at_home(const struct ir *ir, const struct plan_owner *copy)
{
    struct rows owned = ROW(ir, plan_rank, copy->home)->owned;
    uint32_t below = 0, end = owned.count;
    while (below < end) {
        uint32_t middle = (below + end) / 2;
        if (stands_before(ir, ROW(ir, plan_owner, owned.first + middle), copy))
            below = middle + 1;
        else
            end = middle;
    }
    const struct plan_owner *found = below < owned.count ? ROW(ir, plan_owner, owned.first + below) : NULL;
    return found && found->home == copy->home && found->place == copy->place ? found : NULL;
}

static bool validate_ranks(const struct check *c)
{
    int64_t next = 0, own = 0;
    if (COUNT(c->ir, plan_rank) != c->info->ranks)
        return check_fail(c, "plan_rank: %u rows for %u ranks", COUNT(c->ir, plan_rank), c->info->ranks);
    for (uint32_t r = 0; r < c->info->ranks; r++) {
        const struct plan_rank *rank = ROW(c->ir, plan_rank, r);
        if (!(rank->pace > 0 && rank->pace < 1e12))
            return check_fail(c, "plan_rank %u: pace %g", r, rank->pace);
        if (rank->owned.count && rank->owned.first != next)
            return check_fail(c, "plan_rank %u: its owners do not follow those of the rank before", r);
        if (rank->owned.count > c->info->experts || rank->copied > rank->owned.count)
            return check_fail(c, "plan_rank %u: %u experts, %u of them copies", r, rank->owned.count, rank->copied);
        next += rank->owned.count;
        own += slots_own_experts(c->ir, r);
    }
    if (next != COUNT(c->ir, plan_owner))
        return check_fail(c, "plan_owner: %u rows, ranks hold %lld", COUNT(c->ir, plan_owner), (long long)next);
    return own == c->info->experts ||
           check_fail(c, "plan_rank: %lld of %u experts owned", (long long)own, c->info->experts);
}

/// One rank's rows by themselves: in order, the owned ones numbered, its copies and their homes counted.
static bool validate_held(const struct check *c, uint32_t r, uint8_t seen[])
{
    const struct plan_rank *rank = ROW(c->ir, plan_rank, r);
    uint8_t homes[MOE_MAX_RANKS / 8] = {0};
    uint32_t own = 0, guests = 0, last = 0;
    for (uint32_t l = 0; l < rank->owned.count; l++) {
        uint32_t row = rank->owned.first + l;
        const struct plan_owner *o = ROW(c->ir, plan_owner, row);
        if (o->rank != r || o->local != l || o->expert >= c->info->experts || o->home >= c->info->ranks ||
            o->place >= slots_own_experts(c->ir, o->home) || (l && !stands_before(c->ir, o - 1, o)))
            return check_fail(c, "plan_owner %u: not expert, rank and local id in order", row);
        if (o->home != r) {
            guests += !(homes[o->home / 8] >> o->home % 8 & 1);
            homes[o->home / 8] = (uint8_t)(homes[o->home / 8] | 1u << o->home % 8);
            continue;
        }
        if (o->place != own || (own && o->expert <= last) || (seen[o->expert / 8] >> o->expert % 8 & 1))
            return check_fail(c, "plan_owner %u: owned twice, or out of order", row);
        seen[o->expert / 8] = (uint8_t)(seen[o->expert / 8] | 1u << o->expert % 8);
        last = o->expert;
        own++;
    }
    return (own + rank->copied == rank->owned.count && guests == rank->guests) ||
           check_fail(c, "plan_rank %u: %u of its experts are copies, of %u ranks", r, rank->owned.count - own, guests);
}

bool validate_owners(const struct check *c)
{
    uint8_t seen[MOE_MAX_EXPERTS / 8] = {0};
    if (!validate_ranks(c))
        return false;
    for (uint32_t r = 0; r < c->info->ranks; r++)
        if (!validate_held(c, r, seen))
            return false;
    for (uint32_t i = 0; i < COUNT(c->ir, plan_owner); i++) {
        const struct plan_owner *o = ROW(c->ir, plan_owner, i), *home = row_at_home(c->ir, o);
        if (!home || home->expert != o->expert)
            return check_fail(c, "plan_owner %u: a copy of what its home does not own", i);
    }
    return true;
}
