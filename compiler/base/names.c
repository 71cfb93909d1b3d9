// Words of messages: articles, plurals, and "did you mean": the nearest of a list of names, by Damerau-Levenshtein distance (insert, delete, replace, swap).
#include "compiler/base/diag.h"

#include <string.h>

enum { LONGEST = 63 }; // longer names get no suggestion

const char *article(const char *word)
{
    return strchr("aeio", word[0]) ? "an" : "a";
}

const char *counted(struct context *context, int64_t count, const char *noun)
{
    return context_printf(context, "%lld %s%s", (long long)count, noun, count == 1 ? "" : "s");
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    uint32_t cost[LONGEST + 1][LONGEST + 1];
    for (uint32_t i = 0; i <= a_length; i++)
        cost[i][0] = i;
    for (uint32_t j = 0; j <= b_length; j++)
        cost[0][j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        for (size_t j = 1; j <= b_length; j++) {
            uint32_t replace = cost[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            cost[i][j] = least(replace, least(cost[i - 1][j], cost[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                cost[i][j] = least(cost[i][j], cost[i - 2][j - 2] + 1);
        }
    }
    return cost[a_length][b_length];
}

const char *nearest_name(const char *name, const char *const *candidates, size_t count)
{
    size_t length = strlen(name);
    if (!length || length > LONGEST)
        return NULL;
    uint32_t limit = length < 3 ? 1 : (uint32_t)(length / 3);
    const char *nearest = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t candidate_length = candidates[i] ? strlen(candidates[i]) : 0;
        if (!candidate_length || candidate_length > LONGEST)
            continue;
        uint32_t found = distance(name, length, candidates[i], candidate_length);
        if (found > limit || found >= length || (nearest && found == limit))
            continue;
        nearest = candidates[i];
        limit = found;
    }
    return nearest;
}
