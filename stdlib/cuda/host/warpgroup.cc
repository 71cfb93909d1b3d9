// Products by a warpgroup (sm_90a): 64 rows by up to 256 columns from matrices in shared memory, which a descriptor
// describes. A product reads its matrices at some moment between its issue and the end of the wait for its group, here at
// one of the two, by lot; until a thread has waited, its sums are NaN. Reads belong to the products of each warp, an agent
// whose moments are the groups.
#include <string.h>

#include "block.h"

namespace host {

enum { ROWS = 64, K_BYTES = 32, MOST_K = K_BYTES, ROW_BYTES = 128, CHUNK = 16, MOST_COLUMNS = 256 };

static Team *team_of(const Fiber *fiber)
{
    size_t number = (size_t)(fiber->place.thread / TEAM);
    return number < running->teams.size() ? &running->teams[number] : nullptr;
}

// ------------------------------------------------------------------------------------------------------- matrices

/// Whether a descriptor is of rows of 128 bytes, permuted in groups of eight, in shared memory.
static bool known_matrix(uint64_t matrix, int rows)
{
    uint64_t start = (matrix & 0x3fff) << 4, groups = (matrix >> 32 & 0x3fff) << 4;
    bool permuted = matrix >> 62 == 1 && (matrix >> 49 & 7) == 0 && start % 1024 + K_BYTES <= ROW_BYTES;
    return permuted && start / 1024 * 1024 + groups * (uint64_t)(rows / 8 - 1) + 1024 <= (uint64_t)running->shared_bytes;
}

/// Where 16 bytes of a row lie.
static const char *chunk_of(uint64_t matrix, int row, int chunk)
{
    uint64_t at = (matrix & 0x3fff) << 4, groups = (matrix >> 32 & 0x3fff) << 4;
    at += (uint64_t)(row / 8) * groups + (uint64_t)(row % 8) * ROW_BYTES + (uint64_t)chunk * CHUNK;
    return running->shared + (at ^ (at >> 7 & 7) << 4);
}

/// One row's k of a product, as f32; how many.
static int read_row(uint64_t matrix, int row, enum host_operand type, float *to)
{
    int count = 0;
    for (int chunk = 0; chunk < K_BYTES / CHUNK; chunk++) {
        uint32_t words[CHUNK / 4];
        memcpy(words, chunk_of(matrix, row, chunk), sizeof words);
        for (uint32_t word : words)
            count += host_widen(word, type, to + count);
    }
    return count;
}

/// The products are added up first, k by k, and then to the sums.
static void multiply(const Product &product)
{
    typedef float Eight __attribute__((vector_size(32), aligned(4)));
    Chain *chain = product.chain;
    const int columns = chain->columns;
    float a[ROWS][MOST_K], row[MOST_K];
    static thread_local float b[MOST_K][MOST_COLUMNS];
    int count = 0;
    for (int r = 0; r < ROWS; r++)
        count = read_row(product.a, r, product.type, a[r]);
    for (int c = 0; c < columns; c++) {
        read_row(product.b, c, product.type, row);
        for (int k = 0; k < count; k++)
            b[k][c] = row[k];
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < columns; c += 8) {
            Eight sum = {}, *to = (Eight *)&chain->sums[(size_t)(r * columns + c)];
            for (int k = 0; k < count; k++)
                sum += a[r][k] * *(const Eight *)&b[k][c];
            *to = product.add ? *to + sum : sum;
        }
}

/// Does the products of groups up to one, the oldest first.
static void multiply_until(Team *team, uint32_t group)
{
    size_t done = 0;
    while (done < team->products.size() && team->products[done].group <= group)
        multiply(team->products[done++]);
    team->products.erase(team->products.begin(), team->products.begin() + (long)done);
}

// ----------------------------------------------------------------------------------------------------------- sums

/// Between a lane's registers and the sums.
template <class Move> static void each_sum(Chain *chain, int lane, Move move)
{
    for (int n = 0; n < chain->columns / 8; n++)
        for (int i = 0; i < 4; i++) {
            int row = lane / LANES * 16 + lane % LANES / 4 + i / 2 * 8, column = 8 * n + lane % 4 * 2 + i % 2;
            move(chain->of_lane[lane][4 * n + i], chain->sums[(size_t)(row * chain->columns + column)]);
        }
}

/// The chain that a product adds to: one whose sums are under way, or what the threads hold now.
static Chain *chain_of(Team *team, Fiber *const *lanes)
{
    const host_group_lane *first = (const host_group_lane *)lanes[0]->lane_record;
    for (Chain &chain : team->chains)
        if (chain.left == TEAM && chain.of_lane[0] == first->d && chain.columns == first->columns)
            return &chain;
    team->chains.emplace_back();
    Chain *chain = &team->chains.back();
    chain->columns = first->columns;
    chain->left = TEAM;
    chain->sums.assign((size_t)(ROWS * first->columns), 0);
    for (int l = 0; l < TEAM; l++) {
        chain->of_lane[l] = ((const host_group_lane *)lanes[l]->lane_record)->d;
        chain->returned[l] = false;
        each_sum(chain, l, [](float own, float &sum) { sum = own; });
    }
    return chain;
}

bool has_products(const Fiber *fiber)
{
    const Team *team = team_of(fiber);
    if (team)
        for (const Chain &chain : team->chains)
            if (!chain.returned[fiber->place.thread % TEAM])
                return true;
    return false;
}

void check_sums(const Fiber *fiber, const char *at, int bytes, const void *place)
{
    const Team *team = team_of(fiber);
    const int lane = fiber->place.thread % TEAM;
    if (!team)
        return;
    for (const Chain &chain : team->chains) {
        const char *from = (const char *)chain.of_lane[lane];
        if (!chain.returned[lane] && at < from + chain.columns * 2 && at + bytes > from)
            report(place, "thread %d touches sums of products it has not waited for", fiber->place.thread);
    }
}

// --------------------------------------------------------------------------------------------------------- issuing

/// The reads of one matrix. Rows of A are read by their own warp, those of B by all: one of them is noted.
static void check_reads(const Fiber *const *lanes, uint64_t matrix, int rows, bool left)
{
    Block *block = running;
    int other = (int)block->draw(TEAM / LANES);
    for (int row = 0; row < rows; row++) {
        const int warp = left ? row / 16 : other;
        const Fiber *lane = lanes[warp * LANES + (int)block->draw(LANES)];
        for (int chunk = 0; chunk < K_BYTES / CHUNK; chunk++)
            check_access(chunk_of(matrix, row, chunk), CHUNK, false, lane->at, lane,
                         block->products_of(lane->place.thread / LANES), lane->product_groups + 1);
    }
}

/// All 128 have come.
static void issue(Team *team, Fiber *const *lanes)
{
    Block *block = running;
    const host_group_lane *first = (const host_group_lane *)lanes[0]->lane_record;
    for (int l = 0; l < TEAM; l++) {
        const host_group_lane *own = (const host_group_lane *)lanes[l]->lane_record;
        if (own->columns != first->columns || own->a != first->a || own->b != first->b || own->add != first->add ||
            own->type != first->type || lanes[l]->at != lanes[0]->at || lanes[l]->product_groups != lanes[0]->product_groups)
            report(lanes[l]->at, "thread %d multiplies other matrices than thread %d", lanes[l]->place.thread,
                   lanes[0]->place.thread);
        if (!lanes[l]->begun)
            report(lanes[l]->at, "thread %d multiplies into sums it has touched without multiply_begin",
                   lanes[l]->place.thread);
    }
    if (!known_matrix(first->a, ROWS) || !known_matrix(first->b, first->columns)) {
        report(lanes[0]->at, "a product of matrices that are not in shared memory or laid out otherwise");
        return;
    }
    if (block->checked) {
        check_reads(lanes, first->a, ROWS, true);
        check_reads(lanes, first->b, first->columns, false);
    }
    Chain *chain = chain_of(team, lanes);
    chain->group = lanes[0]->product_groups + 1;
    for (int l = 0; l < TEAM; l++)
        memset(chain->of_lane[l], 0xff, (size_t)chain->columns * 2);
    team->products.push_back({chain, first->a, first->b, first->add != 0, first->type, chain->group});
    if (block->draw(2))
        multiply_until(team, chain->group);
}

} // namespace host

using namespace host;

extern "C" void host_multiply_begin(void)
{
    running->current->begun = true;
}

extern "C" void host_multiply_group(host_group_lane *product)
{
    Block *block = running;
    Fiber *self = block->current;
    const void *at = __builtin_return_address(0);
    Team *team = team_of(self);
    if (!team) {
        report(at, "thread %d multiplies and belongs to no four warps", self->place.thread);
        return;
    }
    self->lane_record = product;
    self->at = at;
    if (++team->arrived < TEAM) {
        wait_for(Waiting::team, 0, at);
        return;
    }
    team->arrived = 0;
    Fiber **lanes = &block->fibers[(size_t)(self->place.thread / TEAM * TEAM)];
    issue(team, lanes);
    for (int l = 0; l < TEAM; l++)
        if (lanes[l] != self)
            make_ready(lanes[l]);
}

extern "C" void host_multiply_commit(void)
{
    running->current->product_groups++;
}

extern "C" void host_multiply_wait(int groups)
{
    Fiber *self = running->current;
    Team *team = team_of(self);
    const uint32_t done = self->product_groups > (uint32_t)groups ? self->product_groups - (uint32_t)groups : 0;
    const int lane = self->place.thread % TEAM;
    if (!team)
        return;
    multiply_until(team, done);
    for (auto chain = team->chains.begin(); chain != team->chains.end();) {
        if (!chain->returned[lane] && chain->group <= done) {
            each_sum(&*chain, lane, [](float &own, float sum) { own = sum; });
            chain->returned[lane] = true;
            chain->left--;
            self->begun = false;
        }
        chain = chain->left ? std::next(chain) : team->chains.erase(chain);
    }
    if (running->checked) {
        uint32_t *seen_by_self = &self->clock[running->products_of(self->place.thread / LANES)];
        *seen_by_self = done > *seen_by_self ? done : *seen_by_self;
    }
}
