// Inside the emulator: a block, its fibers, and the clocks that say what is ordered before what.
#ifndef MOE_HOST_BLOCK_H
#define MOE_HOST_BLOCK_H

#include <vector>

#include "emulator.h"

namespace host {

enum { LANES = 32, STACK_BYTES = 128 << 10 };

// Whoever touches memory is an agent: thread t itself, and, as agent `threads + t`, the copies it has started. A clock is
// how far one agent has seen each agent's work; an epoch is one moment of one agent.
using Clock = std::vector<uint32_t>;
enum { CLOCK_BITS = 21, CLOCK_MASK = (1 << CLOCK_BITS) - 1 };

struct Copy {
    char *to;
    const char *from;
    int bytes;
    bool done;
};

enum class Waiting { nothing, block_barrier, warp };

struct Fiber {
    host_place place; // first: host_here() hands it out
    void *stack_pointer;
    char *stack;
    Waiting waiting;
    int op;                 // of the warp, or which barrier
    const void *at;         // place in the kernel that it waits at
    void *lane_record;      // waiting for the warp
    bool finished;
    Clock clock;            // checked launches
    uint32_t copy_group;    // groups committed
    std::vector<Copy> open; // copies since the last commit
    std::vector<std::vector<Copy>> groups; // committed and not waited for, oldest first
};

struct Warp {
    int arrived;
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
    int live, arrived; // fibers not finished; at the block's barrier
    uint64_t random;
    Fiber *current;
    void *main_stack_pointer;
    void (*kernel)(const void *args);
    const void *args;
    std::vector<Cell> cells; // of shared memory
    GlobalCells *global;

    uint32_t draw(uint32_t below);
};

extern thread_local Block *running;

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
void check_access(const char *at, int bytes, bool is_write, const void *place, uint32_t agent, uint32_t moment);
/// copies.cc
void finish_copies(Fiber *fiber, size_t left);
/// warp.cc: what an operation does once all lanes' records are there.
void complete_warp(int op, Fiber *const *lanes);

} // namespace host

#endif
