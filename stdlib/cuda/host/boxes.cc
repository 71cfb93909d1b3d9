// Barriers in shared memory and copies of boxes by the tensor memory accelerator (sm_90a). A copy takes effect at some
// moment between its start and the end of its barrier's phase, which it is one of those to end; until then its target
// holds NaN. Its accesses belong to an agent of the barrier's, whose moments are the phases.
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "block.h"

namespace host {

enum { ROW_BYTES = 128, CHUNK = 16, GROUP_BYTES = 1024 };

/// The barrier at an address; NULL after a report. `copies`: wanted by the asynchronous proxy.
static Barrier *barrier_at(const void *address, const void *at, bool copies)
{
    Block *block = running;
    const Fiber *self = block->current;
    for (Barrier &barrier : block->barriers) {
        if (barrier.address != address)
            continue;
        uint32_t by = barrier.initialised >> CLOCK_BITS;
        if (block->checked && !seen(barrier.initialised, self->clock))
            report(at, "thread %d uses a barrier whose initialisation by thread %u it is not ordered after",
                   self->place.thread, by);
        else if (block->checked && copies && !published(barrier.initialised, self->clock))
            report(at, "thread %d lets copies use a barrier that thread %u has not published", self->place.thread, by);
        return &barrier;
    }
    report(at, "thread %d uses a barrier that nobody has initialised", self->place.thread);
    return nullptr;
}

/// Ends the phase when nothing is outstanding.
static void settle(Barrier *barrier)
{
    if (barrier->pending || barrier->bytes)
        return;
    barrier->phase++;
    barrier->pending = barrier->arrivals;
    if (running->checked) {
        join(barrier->released, barrier->gathered);
        barrier->released[barrier->agent] = barrier->phase;
        std::fill(barrier->gathered.begin(), barrier->gathered.end(), 0);
    }
    for (Fiber *fiber : barrier->waiting)
        make_ready(fiber);
    barrier->waiting.clear();
}

/// One row of a box, from the tensor to its permuted place.
static void copy_row(const Box &box, int row, const char *from, int64_t x)
{
    for (int chunk = 0; chunk < ROW_BYTES / CHUNK; chunk++) {
        char *to = box.to + row * ROW_BYTES + (chunk ^ (row % 8)) * CHUNK;
        int64_t left = (box.map.extents[0] - x) * box.map.strides[0] - chunk * CHUNK;
        memset(to, 0, CHUNK);
        if (from && left > 0)
            memcpy(to, from + chunk * CHUNK, (size_t)std::min<int64_t>(left, CHUNK));
    }
}

/// Calls body(row of the box, its address in the tensor or NULL: it lies outside).
template <class Body> static void each_row(const Box &box, Body body)
{
    const host_map &map = box.map;
    int rows = box.bytes / ROW_BYTES;
    for (int row = 0; row < rows; row++) {
        const char *from = map.base + box.x[0] * map.strides[0];
        int rest = row;
        bool inside = box.x[0] < map.extents[0];
        for (int d = 1; d < map.rank; d++) {
            int64_t at = (int64_t)box.x[d] + rest % map.box[d];
            rest /= map.box[d];
            inside = inside && at >= 0 && at < map.extents[d];
            from += at * map.strides[d];
        }
        body(row, inside ? from : nullptr);
    }
}

void finish_box(size_t number)
{
    Block *block = running;
    Box box = block->boxes[number];
    block->boxes[number] = block->boxes.back();
    block->boxes.pop_back();
    each_row(box, [&](int row, const char *from) { copy_row(box, row, from, box.x[0]); });
    Barrier *barrier = &block->barriers[box.barrier];
    barrier->bytes -= box.bytes;
    if (barrier->bytes < 0)
        report(box.at, "a copy of %d bytes arrives at a barrier that does not expect them", box.bytes);
    settle(barrier);
}

void describe_wait(const Fiber *fiber, char *text, size_t size)
{
    const Block *block = running;
    for (const Barrier &b : block->barriers)
        if (b.address == fiber->lane_record)
            snprintf(text, size, "barrier_wait for barrier %d, whose phase %u lacks %d of %d arrivals and %lld bytes,",
                     (int)(&b - block->barriers.data()), b.phase, b.pending, b.arrivals, (long long)b.bytes);
}

/// What a copy reads, now and then: global memory is compared by blocks of a launch, which read it in such pieces.
static void check_source(const Box &box, const Fiber *self, const char *from)
{
    int64_t left = (box.map.extents[0] - box.x[0]) * box.map.strides[0];
    for (int64_t at = 0; at < std::min<int64_t>(left, ROW_BYTES); at += CHUNK)
        check_access(from + at, 2, false, box.at, self, (uint32_t)self->place.thread, 0);
}

static bool box_fits(const Box &box, int rank)
{
    const Block *block = running;
    const host_map &map = box.map;
    bool shaped = map.rank == rank && map.box[0] * map.strides[0] == ROW_BYTES && (uintptr_t)map.base % CHUNK == 0;
    for (int d = 1; d < map.rank; d++)
        shaped = shaped && map.strides[d] % CHUNK == 0 && map.box[d] <= 256;
    return shaped && box.to >= block->shared && box.to + box.bytes <= block->shared + block->shared_bytes &&
           (box.to - block->shared) % GROUP_BYTES == 0;
}

} // namespace host

using namespace host;

extern "C" void host_barrier_init(uint64_t *address, int arrivals)
{
    Block *block = running;
    Fiber *self = block->current;
    const void *at = __builtin_return_address(0);
    char *place = (char *)address;
    if ((uintptr_t)address % 8 || place < block->shared || place + 8 > block->shared + block->shared_bytes ||
        block->barriers.size() == MOST_BARRIERS || arrivals <= 0) {
        report(at, "thread %d initialises a barrier that is not aligned, not in shared memory or one too many",
               self->place.thread);
        return;
    }
    uint32_t thread = (uint32_t)self->place.thread, agent = block->copies_of(block->barriers.size());
    check_access(place, 8, true, at, self, thread, 0);
    Barrier barrier = {};
    barrier.address = address;
    barrier.arrivals = barrier.pending = arrivals;
    barrier.agent = agent;
    if (block->checked) {
        barrier.initialised = thread << CLOCK_BITS | self->clock[thread];
        barrier.gathered.assign(block->agents(), 0);
        barrier.released.assign(block->agents(), 0);
    }
    block->barriers.push_back(barrier);
}

extern "C" void host_publish(void)
{
    Fiber *self = running->current;
    if (!running->checked)
        return;
    uint32_t *own = &self->clock[(size_t)self->place.thread];
    self->fences.push_back({*own, self->copy_group - (uint32_t)self->groups.size()});
    ++*own;
}

extern "C" void host_barrier_arrive(uint64_t *address, int bytes)
{
    Fiber *self = running->current;
    const void *at = __builtin_return_address(0);
    Barrier *barrier = barrier_at(address, at, false);
    if (!barrier)
        return;
    if (barrier->pending == 0)
        report(at, "thread %d arrives at a barrier of %d arrivals that has them all", self->place.thread, barrier->arrivals);
    else
        barrier->pending--;
    if (running->checked) {
        join(barrier->gathered, self->clock);
        self->clock[(size_t)self->place.thread]++;
    }
    barrier->bytes += bytes;
    settle(barrier);
}

extern "C" void host_barrier_wait(uint64_t *address, int parity)
{
    Fiber *self = running->current;
    const void *at = __builtin_return_address(0);
    Barrier *barrier;
    while ((barrier = barrier_at(address, at, false)) && (int)(barrier->phase & 1) == parity) {
        self->lane_record = address;
        barrier->waiting.push_back(self);
        wait_for(Waiting::barrier, 0, at);
    }
    if (barrier && running->checked)
        join(self->clock, barrier->released);
}

extern "C" void host_copy_box(void *to, const host_map *map, uint64_t *address, const int *x, int rank)
{
    Block *block = running;
    Fiber *self = block->current;
    const void *at = __builtin_return_address(0);
    Barrier *barrier = barrier_at(address, at, true);
    Box box = {(char *)to, *map, {x[0], x[1], x[2], x[3]}, (int)map->strides[0], 0, at};
    for (int d = 0; d < map->rank; d++)
        box.bytes *= map->box[d];
    if (!barrier || !box_fits(box, rank)) {
        report(at, "thread %d copies a box that is not aligned, not to shared memory or of another tensor", self->place.thread);
        return;
    }
    box.barrier = (size_t)(barrier - block->barriers.data());
    check_access(box.to, box.bytes, true, at, self, barrier->agent, barrier->phase + 1);
    if (block->checked)
        each_row(box, [&](int, const char *from) {
            if (from)
                check_source(box, self, from);
        });
    memset(box.to, 0xff, (size_t)box.bytes);
    block->boxes.push_back(box);
}
