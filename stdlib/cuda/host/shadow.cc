// Which accesses are ordered: vector clocks of threads and of the copies they start, and the last accesses to every byte
// of global and every two bytes of shared memory. Two accesses to the same bytes, one of them a write, of which neither has seen the other, are a race,
// whatever the order in which this run happened to make them.
#include <algorithm>

#include "block.h"

namespace host {

void order_all(Fiber *const *fibers, size_t count)
{
    if (!running->checked)
        return;
    Clock all = fibers[0]->clock;
    for (size_t f = 1; f < count; f++)
        for (size_t i = 0; i < all.size(); i++)
            all[i] = std::max(all[i], fibers[f]->clock[i]);
    for (size_t f = 0; f < count; f++) {
        fibers[f]->clock = all;
        fibers[f]->clock[(size_t)fibers[f]->place.thread]++;
    }
}

void join(Clock &clock, const Clock &other)
{
    for (size_t i = 0; i < clock.size(); i++)
        clock[i] = std::max(clock[i], other[i]);
}

bool seen(uint32_t epoch, const Clock &clock)
{
    return !epoch || (epoch & CLOCK_MASK) <= clock[epoch >> CLOCK_BITS];
}

bool published(uint32_t epoch, const Clock &clock)
{
    uint32_t agent = epoch >> CLOCK_BITS, threads = (uint32_t)running->threads, moment = epoch & CLOCK_MASK;
    for (const Fence &fence : running->fibers[agent % threads]->fences)
        if ((agent < threads ? fence.moment : fence.copies) >= moment)
            return clock[agent % threads] > fence.moment;
    return false;
}

/// An agent in words, by the number that they give it.
struct Name {
    const char *what;
    unsigned number;
};

static Name name_of(uint32_t agent)
{
    const Block *block = running;
    uint32_t threads = (uint32_t)block->threads, products = block->products_of(0), copies = block->copies_of(0);
    if (agent < threads)
        return {"thread", agent};
    if (agent < products)
        return {"a copy started by thread", agent - threads};
    if (agent < copies)
        return {"the products of warp", agent - products};
    return {"a box copied for barrier", agent - copies};
}

/// `access` (at a place, by an agent) has not seen `earlier`, an access at another place.
static void race(const char *access, uint32_t agent, const void *at, const char *earlier, uint32_t epoch,
                 const void *earlier_at)
{
    const Name own = name_of(agent), other = name_of(epoch >> CLOCK_BITS);
    char place[256];
    describe_place(earlier_at, place, sizeof place);
    report(at, "%s by %s %u is not ordered after the %s by %s %u at %s", access, own.what, own.number, earlier, other.what,
           other.number, place);
}

/// An access through the asynchronous proxy to what a thread has written in the ordinary way and not published.
static void check_proxy(const Cell *cell, const char *access, const void *at, uint32_t agent, const Clock &clock)
{
    const uint32_t ordinary = running->products_of(0);
    if (agent < ordinary || !cell->write || cell->write >> CLOCK_BITS >= ordinary || published(cell->write, clock))
        return;
    const Name own = name_of(agent);
    char place[256];
    describe_place(cell->written_at, place, sizeof place);
    report(at, "%s by %s %u meets a write that was not published, at %s", access, own.what, own.number, place);
}

/// Compares one access with a cell's last ones and takes their place.
static void touch(Cell *cell, bool is_write, const void *place, uint32_t agent, uint32_t epoch, const Clock &clock)
{
    const char *access = is_write ? "write" : "read";
    if (!seen(cell->write, clock))
        race(access, agent, place, "write", cell->write, cell->written_at);
    else
        check_proxy(cell, access, place, agent, clock);
    if (is_write) {
        for (uint32_t read : cell->reads)
            if (!seen(read, clock))
                race(access, agent, place, "read", read, cell->read_at);
        *cell = {epoch, {0, 0}, place, nullptr};
        return;
    }
    cell->read_at = place;
    for (uint32_t &read : cell->reads)
        if (read >> CLOCK_BITS == agent || seen(read, clock)) {
            read = epoch;
            return;
        }
    cell->reads[running->draw(2)] = epoch;
}

// ---------------------------------------------------------------------------------------------------- global memory

static size_t place_of(const GlobalCells *cells, uintptr_t key)
{
    size_t mask = cells->entries.size() - 1, at = (key * UINT64_C(0x9e3779b97f4a7c15) >> 20) & mask;
    while (cells->entries[at].key && cells->entries[at].key != key)
        at = (at + 1) & mask;
    return at;
}

static GlobalCells::Entry *entry_of(GlobalCells *cells, uintptr_t key)
{
    if (cells->used * 2 >= cells->entries.size()) {
        std::vector<GlobalCells::Entry> old;
        old.swap(cells->entries);
        cells->entries.assign(old.empty() ? 4096 : old.size() * 2, GlobalCells::Entry());
        for (const GlobalCells::Entry &entry : old)
            if (entry.key)
                cells->entries[place_of(cells, entry.key)] = entry;
    }
    GlobalCells::Entry *entry = &cells->entries[place_of(cells, key)];
    if (!entry->key) {
        entry->key = key;
        entry->write_block = entry->read_block = -1;
        cells->used++;
    }
    return entry;
}

static void touch_global(uintptr_t key, bool is_write, const void *place, uint32_t agent, uint32_t epoch,
                         const Clock &clock)
{
    GlobalCells::Entry *entry = entry_of(running->global, key);
    int block = running->number;
    int other = entry->write_block >= 0 && entry->write_block != block  ? entry->write_block
                : is_write && entry->read_block >= 0 && entry->read_block != block ? entry->read_block
                                                                                   : -1;
    if (other >= 0) {
        char earlier[256];
        describe_place(entry->write_block == other ? entry->cell.written_at : entry->cell.read_at, earlier, sizeof earlier);
        report(place, "%s of global memory by block %d is not ordered after the access by block %d at %s",
               is_write ? "write" : "read", block, other, earlier);
    }
    if (entry->write_block != block) // another block's epochs mean nothing here
        entry->cell.write = 0;
    if (entry->read_block != block)
        entry->cell.reads[0] = entry->cell.reads[1] = 0;
    touch(&entry->cell, is_write, place, agent, epoch, clock);
    if (is_write) {
        entry->write_block = block;
        entry->read_block = -1;
    } else {
        entry->read_block = block;
    }
}

void check_access(const char *at, int bytes, bool is_write, const void *place, const Fiber *fiber, uint32_t agent,
                  uint32_t moment)
{
    Block *block = running;
    if (!block->checked || bytes <= 0)
        return;
    if (at >= fiber->stack && at < fiber->stack + STACK_BYTES) {
        check_sums(fiber, at, bytes, place);
        return;
    }
    const Clock &clock = fiber->clock;
    uint32_t epoch = agent << CLOCK_BITS | (moment ? moment : clock[agent]);
    if (at >= block->shared && at < block->shared + block->shared_bytes) {
        size_t first = (size_t)(at - block->shared) / 2, last = ((size_t)(at - block->shared) + (size_t)bytes - 1) / 2;
        for (size_t i = first; i <= last && i < block->cells.size(); i++) {
            Cell *cell = &block->cells[i];
            if (!is_write && !cell->write) {
                report(place, "thread %d reads shared memory that nobody has written", fiber->place.thread);
                return;
            }
            touch(cell, is_write, place, agent, epoch, clock);
        }
        return;
    }
    for (uintptr_t key = (uintptr_t)at; key < (uintptr_t)at + (uintptr_t)bytes; key++)
        touch_global(key, is_write, place, agent, epoch, clock);
}

} // namespace host

extern "C" void host_access(const void *at, int bytes, int is_write, const void *place)
{
    host::Block *block = host::running;
    if (block && block->current)
        host::check_access((const char *)at, bytes, is_write != 0, place, block->current,
                           (uint32_t)block->current->place.thread, 0);
}
