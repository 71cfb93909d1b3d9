// Inside the emulator: a block, its fibers, and the clocks that say what is ordered before what.
#ifndef MOE_HOST_BLOCK_H
#define MOE_HOST_BLOCK_H

#include <list>
#include <vector>

#include "emulator.h"

namespace host {

enum { LANES = 32, TEAM = 128, STACK_BYTES = 128 << 10, MOST_BARRIERS = 64, NAMED_BARRIERS = 16 };

// Whoever touches memory is an agent: thread t itself; as agent `threads + t`, the copies it has started; then, through the
// asynchronous proxy, the warpgroup products of each warp and the copies of each barrier. A clock is how far one agent has
// seen each agent's work; an epoch is one moment of one agent.
using Clock = std::vector<uint32_t>;
enum { CLOCK_BITS = 21, CLOCK_MASK = (1 << CLOCK_BITS) - 1 };

struct Copy {
    char *to;
    const char *from;
    int bytes;
    bool done;
};

/// What a thread had done when it published its writes to the asynchronous proxy.
struct Fence {
    uint32_t moment, copies;
};

enum class Waiting { nothing, block_barrier, named_barrier, barrier, warp, team };

struct Fiber {
    host_place place; // first: host_here() hands it out
    void *stack_pointer;
    char *stack;
    Waiting waiting;
    int op;                 // of the warp, or which barrier
    const void *at;         // place in the kernel that it waits at
    void *lane_record;      // waiting for the warp, the warpgroup, a barrier in shared memory
    bool finished;
    Clock clock;            // checked launches
    uint32_t copy_group;    // groups committed
    std::vector<Copy> open; // copies since the last commit
    std::vector<std::vector<Copy>> groups; // committed and not waited for, oldest first
    std::vector<Fence> fences; // oldest first
    uint32_t product_groups;   // of warpgroup products, committed
    bool begun;                // may multiply: multiply_begin since it last got sums
};

struct Warp {
    int arrived;
};

/// A barrier of some of the block's threads.
struct Named {
    std::vector<Fiber *> waiting;
    int threads;
};

/// A barrier in shared memory.
struct Barrier {
    const void *address;
    int arrivals, pending; // of a phase
    int64_t bytes;         // outstanding
    uint32_t phase, agent, initialised;
    Clock gathered, released; // of this phase's arrivals; of all that have ended
    std::vector<Fiber *> waiting;
};

/// A copy of a box that has started.
struct Box {
    char *to;
    host_map map;
    int x[4], bytes;
    size_t barrier; // which
    const void *at;
};

/// Sums that products add to and threads have not got back.
struct Chain {
    float *of_lane[TEAM];
    bool returned[TEAM];
    int columns, left; // left: lanes that have not got theirs
    uint32_t group;    // of the last product
    std::vector<float> sums; // [64][columns]
};

struct Product {
    Chain *chain;
    uint64_t a, b;
    bool add;
    enum host_operand type;
    uint32_t group;
};

/// Four warps that multiply together.
struct Team {
    int arrived;
    std::list<Chain> chains;
    std::vector<Product> products; // not done, oldest first
};

struct Cell {
    uint32_t write, reads[2]; // epochs; 0: none
    const void *written_at, *read_at;
};

/// Last accesses to global memory, by address, for a whole launch. Epochs carry the block's number
/// beside, as nothing in a launch orders its blocks.
struct GlobalCells {
    struct Entry {
        uintptr_t key;
        int write_block, read_block;
        Cell cell;
    };
    std::vector<Entry> entries;
    size_t used;
};

struct Block {
    int threads, number, shared_bytes;
    bool checked, failed;
    char *shared_base, *shared;
    std::vector<Fiber *> fibers, ready;
    std::vector<Warp> warps;
    std::vector<Team> teams;
    std::vector<Barrier> barriers;
    std::vector<Box> boxes;
    Named named[NAMED_BARRIERS];
    int live, arrived; // fibers not finished; at the block's barrier
    uint64_t random;
    Fiber *current;
    void *main_stack_pointer;
    void (*kernel)(const void *args);
    const char *name;
    const void *args;
    std::vector<Cell> cells; // of shared memory
    GlobalCells *global;

    uint32_t draw(uint32_t below);
    /// As a place, which is what a call would return to.
    const void *kernel_place() const { return (const char *)kernel + 1; }
    uint32_t agents() const { return products_of(threads / LANES) + MOST_BARRIERS; }
    uint32_t products_of(int warp) const { return (uint32_t)(2 * threads + warp); }
    uint32_t copies_of(size_t barrier) const { return products_of(threads / LANES) + (uint32_t)barrier; }
};

extern thread_local Block *running;

/// crash.cc: a block's beginning and end.
void begins(const Block *block);
void ends(const Block *block);

/// block.cc: gives way until somebody makes the current fiber ready again.
void wait_for(Waiting what, int op, const void *at);
void make_ready(Fiber *fiber);
void run(Block *block);
/// report.cc
void report(const void *kernel_place, const char *format, ...) __attribute__((format(printf, 2, 3)));
void describe_place(const void *at, char *text, size_t size);
void report_deadlock(const Block *block);
/// shadow.cc: memory order
void order_all(Fiber *const *fibers, size_t count);
void join(Clock &clock, const Clock &other);
bool seen(uint32_t epoch, const Clock &clock);
/// Whether an epoch of a thread was published to the asynchronous proxy, and whoever has this clock knows.
bool published(uint32_t epoch, const Clock &clock);
/// `moment` 0: the thread's own.
void check_access(const char *at, int bytes, bool is_write, const void *place, const Fiber *fiber, uint32_t agent,
                  uint32_t moment);
/// copies.cc
void finish_copies(Fiber *fiber, size_t left);
/// boxes.cc
void finish_box(size_t number);
void describe_wait(const Fiber *fiber, char *text, size_t size);
/// warpgroup.cc
bool has_products(const Fiber *fiber);
void check_sums(const Fiber *fiber, const char *at, int bytes, const void *place);
/// warp.cc: what an operation does once all lanes' records are there.
void complete_warp(int op, Fiber *const *lanes);

} // namespace host

#endif
