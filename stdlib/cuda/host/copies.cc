// cp.async. A copy may take effect at any moment between its start and the end of the wait for its group; here it does so
// at one of the two, by lot, and until then its target holds NaN.
#include <string.h>

#include "block.h"

namespace host {

static void take_effect(Copy *copy)
{
    if (!copy->done) {
        memset(copy->to, 0, 16);
        memcpy(copy->to, copy->from, (size_t)copy->bytes);
    }
    copy->done = true;
}

void finish_copies(Fiber *fiber, size_t left)
{
    while (fiber->groups.size() > left) {
        for (Copy &copy : fiber->groups.front())
            take_effect(&copy);
        fiber->groups.erase(fiber->groups.begin());
    }
}

} // namespace host

using namespace host;

extern "C" void host_copy_async(void *to, const void *from, int bytes)
{
    Block *block = running;
    Fiber *fiber = block->current;
    const void *at = __builtin_return_address(0);
    char *target = (char *)to;
    int thread = fiber->place.thread;
    bool inside = target >= block->shared && target + 16 <= block->shared + block->shared_bytes;
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || bytes < 0 || bytes > 16 || !inside) {
        report(at, "thread %d starts a copy of 16 bytes that is not aligned or not to shared memory", thread);
        return;
    }
    // Its write is an access of the thread's copies, in the group that comes next.
    check_access(target, 16, true, at, fiber, (uint32_t)(block->threads + thread), fiber->copy_group + 1);
    if (bytes)
        check_access((const char *)from, bytes, false, at, fiber, (uint32_t)thread, 0);
    Copy copy = {target, (const char *)from, bytes, false};
    if (block->draw(2))
        take_effect(&copy);
    else
        memset(target, 0xff, 16);
    fiber->open.push_back(copy);
}

extern "C" void host_copy_async_commit(void)
{
    Fiber *fiber = running->current;
    fiber->groups.push_back(fiber->open);
    fiber->open.clear();
    fiber->copy_group++;
}

extern "C" void host_copy_async_wait(int groups)
{
    Block *block = running;
    Fiber *fiber = block->current;
    finish_copies(fiber, (size_t)groups);
    if (block->checked && fiber->copy_group >= fiber->groups.size()) {
        uint32_t *seen = &fiber->clock[(size_t)(block->threads + fiber->place.thread)];
        uint32_t done = fiber->copy_group - (uint32_t)fiber->groups.size();
        *seen = done > *seen ? done : *seen;
    }
}
