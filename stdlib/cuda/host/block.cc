// Blocks and fibers: who runs next, barriers, the end of a block. Fibers of a block take turns on one OS thread; the next
// one is drawn at random, so that no order of threads is relied on by accident.
#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "block.h"

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace host {

thread_local Block *running;

static std::atomic<uint64_t> seed{1};
static std::atomic<int> most_blocks{3};

uint32_t Block::draw(uint32_t below)
{
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return (uint32_t)((random >> 20) % below);
}

// ------------------------------------------------------------------------------------------------- changing stacks

#ifdef __x86_64__
extern "C" void host_switch(void **save, void *to);
// Callee-saved registers to the old stack, back from the new one.
asm(R"(
.text
.type host_switch, @function
host_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size host_switch, .-host_switch
)");

static void start_on(Fiber *fiber, void (*entry)(void))
{
    void **top = (void **)(fiber->stack + STACK_BYTES - 16);
    *--top = nullptr;                      // the address that the entry would return to; keeps the stack aligned
    memcpy(--top, &entry, sizeof entry);
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    fiber->stack_pointer = top;
}

static void change(void **save, void *to)
{
    host_switch(save, to);
}
#else
static void start_on(Fiber *fiber, void (*entry)(void))
{
    ucontext_t *context = (ucontext_t *)calloc(1, sizeof *context);
    getcontext(context);
    context->uc_stack.ss_sp = fiber->stack;
    context->uc_stack.ss_size = STACK_BYTES;
    makecontext(context, entry, 0);
    fiber->stack_pointer = context;
}

static void change(void **save, void *to)
{
    if (!*save)
        *save = calloc(1, sizeof(ucontext_t));
    swapcontext((ucontext_t *)*save, (ucontext_t *)to);
}
#endif

// ------------------------------------------------------------------------------------------------------- scheduling

/// The next fiber in a random order; NULL: none can run. Copies of boxes arrive now and then, at the latest when only they
/// can help.
static Fiber *take_ready(Block *block)
{
    while (!block->boxes.empty() && (block->ready.empty() || block->draw(8) == 0))
        finish_box(block->draw((uint32_t)block->boxes.size()));
    if (block->ready.empty())
        return nullptr;
    size_t i = block->draw((uint32_t)block->ready.size());
    Fiber *fiber = block->ready[i];
    block->ready[i] = block->ready.back();
    block->ready.pop_back();
    return fiber;
}

/// Leaves the current fiber for the next one, or for run() when there is none.
static void give_way(void)
{
    Block *block = running;
    Fiber *from = block->current, *to = take_ready(block);
    if (to == from)
        return;
    block->current = to;
    change(&from->stack_pointer, to ? to->stack_pointer : block->main_stack_pointer);
}

void make_ready(Fiber *fiber)
{
    fiber->waiting = Waiting::nothing;
    running->ready.push_back(fiber);
}

void wait_for(Waiting what, int op, const void *at)
{
    Fiber *fiber = running->current;
    fiber->waiting = what;
    fiber->op = op;
    fiber->at = at;
    give_way();
}

static void fiber_main(void)
{
    Block *block = running;
    block->kernel(block->args);
    Fiber *fiber = block->current;
    bool unfinished = !fiber->open.empty();
    for (const std::vector<Copy> &group : fiber->groups)
        unfinished |= !group.empty();
    if (unfinished)
        report(block->kernel_place(), "thread %d ends with asynchronous copies it has not waited for",
               fiber->place.thread);
    if (has_products(fiber))
        report(block->kernel_place(), "thread %d ends with products it has not waited for", fiber->place.thread);
    fiber->finished = true;
    block->live--;
    give_way();
    abort(); // nobody wakes a finished fiber
}

void run(Block *block)
{
    running = block;
    for (Fiber *fiber : block->fibers) {
        start_on(fiber, fiber_main);
        block->ready.push_back(fiber);
    }
    block->live = block->threads;
    block->current = take_ready(block);
    change(&block->main_stack_pointer, block->current->stack_pointer);
    if (block->live) {
        report_deadlock(block);
        block->failed = true;
    }
    if (!block->boxes.empty())
        report(block->kernel_place(), "block %d ends with copies of boxes under way", block->number);
    running = nullptr;
}

// ---------------------------------------------------------------------------------------------------- block memory

/// What a block needs, kept by the OS thread for the next one.
struct Pool {
    std::vector<Fiber *> fibers;
    char *shared = nullptr;
    size_t shared_bytes = 0;
    ~Pool()
    {
        for (Fiber *fiber : fibers) {
            free(fiber->stack);
            delete fiber;
        }
        free(shared);
    }
};
static thread_local Pool pool;

static Fiber *fiber_of(Block *block, int thread)
{
    if ((size_t)thread == pool.fibers.size()) {
        Fiber *made = new Fiber();
        made->stack = (char *)malloc(STACK_BYTES);
        pool.fibers.push_back(made);
    }
    Fiber *fiber = pool.fibers[(size_t)thread];
    fiber->place = {thread, block->number, 0, block->shared};
    fiber->waiting = Waiting::nothing;
    fiber->finished = false;
    fiber->copy_group = 0;
    fiber->open.clear();
    fiber->groups.clear();
    fiber->fences.clear();
    fiber->product_groups = 0;
    fiber->begun = false;
    if (block->checked) {
        fiber->clock.assign(block->agents(), 0);
        fiber->clock[(size_t)thread] = 1;
    }
    return fiber;
}

/// Shared memory begins where a kernel may expect it, and holds NaN: nothing in it is zero by luck.
static void set_shared(Block *block, int bytes)
{
    size_t needed = (size_t)bytes + 2048;
    if (pool.shared_bytes < needed) {
        free(pool.shared);
        pool.shared = (char *)malloc(needed);
        pool.shared_bytes = needed;
    }
    uintptr_t base = ((uintptr_t)pool.shared + 1023) / 1024 * 1024;
    block->shared = (char *)base;
    block->shared_bytes = bytes;
    memset(block->shared, 0xff, (size_t)bytes);
    if (block->checked)
        block->cells.assign((size_t)bytes / 2 + 1, Cell());
}

static void run_block(Block *block, int number, int blocks)
{
    block->number = number;
    block->arrived = 0;
    block->fibers.clear();
    block->ready.clear();
    set_shared(block, block->shared_bytes);
    block->warps.assign((size_t)block->threads / LANES, Warp());
    block->teams.clear();
    block->teams.resize((size_t)block->threads / TEAM);
    block->barriers.clear();
    block->boxes.clear();
    for (Named &named : block->named)
        named = Named();
    for (int t = 0; t < block->threads; t++) {
        Fiber *fiber = fiber_of(block, t);
        fiber->place.blocks = blocks;
        block->fibers.push_back(fiber);
    }
    run(block);
}

} // namespace host

using namespace host;

extern "C" struct host_place *host_here(void)
{
    return &running->current->place;
}

extern "C" void host_sync_block(void)
{
    Block *block = running;
    const void *at = __builtin_return_address(0);
    if (++block->arrived < block->threads) {
        wait_for(Waiting::block_barrier, 0, at);
        return;
    }
    block->arrived = 0;
    order_all(block->fibers.data(), block->fibers.size());
    Fiber *self = block->current;
    for (Fiber *fiber : block->fibers)
        if (fiber != self)
            make_ready(fiber);
    make_ready(self); // the last to come is not the first to go
    give_way();
}

extern "C" void host_sync_threads(int id, int threads)
{
    Block *block = running;
    Fiber *self = block->current;
    const void *at = __builtin_return_address(0);
    Named *named = &block->named[id & (NAMED_BARRIERS - 1)];
    if (id <= 0 || id >= NAMED_BARRIERS || threads % LANES || (!named->waiting.empty() && named->threads != threads))
        report(at, "thread %d comes to barrier %d of %d threads, which is none or has another number of them",
               self->place.thread, id, threads);
    named->threads = threads;
    named->waiting.push_back(self);
    if ((int)named->waiting.size() < threads) {
        wait_for(Waiting::named_barrier, id, at);
        return;
    }
    order_all(named->waiting.data(), named->waiting.size());
    for (Fiber *fiber : named->waiting)
        make_ready(fiber);
    named->waiting.clear();
    give_way();
}

extern "C" void host_configure(uint64_t new_seed, int blocks)
{
    seed = new_seed;
    most_blocks = blocks;
}

extern "C" void host_launch(void (*kernel)(const void *args), const char *name, const void *args, int threads,
                            int shared_bytes, int checked)
{
    Block block = {};
    GlobalCells cells = {};
    block.threads = threads;
    block.shared_bytes = shared_bytes;
    block.checked = checked != 0;
    block.kernel = kernel;
    block.name = name;
    block.args = args;
    block.global = &cells;
    block.random = (seed.fetch_add(1) + 1) * UINT64_C(0x9e3779b97f4a7c15) | 1;
    for (int i = 0; i < 4; i++)
        block.draw(2);
    int blocks = 1 + (int)block.draw((uint32_t)most_blocks.load());
    begins(&block);
    for (int b = 0; b < blocks && !block.failed; b++)
        run_block(&block, b, blocks);
    ends(&block);
}
