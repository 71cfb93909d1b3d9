// Kernels that do not come back: one that touches what is no memory ends the process, after saying where it did; one that
// runs without end is named when somebody asks.
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "block.h"

namespace host {

enum { EXIT_BUG = 70, MOST_SECONDS = 10 };

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { SIGNALS = sizeof signals / sizeof *signals };
static struct sigaction before[SIGNALS];

static std::mutex lock;
static std::vector<const Block *> blocks; // that run

// ----------------------------------------------------------------------------------------------------- ended early

static const void *place_of(const ucontext_t *context)
{
#if defined __x86_64__
    return (const void *)context->uc_mcontext.gregs[REG_RIP];
#elif defined __aarch64__
    return (const void *)context->uc_mcontext.pc;
#else
    return nullptr;
#endif
}

/// Is this code of the kernel's own, rather than of a wrapper's here or of libc?
static bool within(const void *place, const void *kernel)
{
    Dl_info at, of;
    return place && dladdr(place, &at) && dladdr(kernel, &of) && at.dli_fbase == of.dli_fbase;
}

/// Nothing is to be saved any more, so what may hang when the kernel has destroyed the heap has some seconds.
[[noreturn]] static void tell(const Block *block, const siginfo_t *info, const void *place)
{
    char where[256], reports[8192];
    bool own = within(place, block->kernel_place());
    alarm(MOST_SECONDS);
    if (own)
        describe_place((const char *)place + 1, where, sizeof where);
    host_take_reports(reports, sizeof reports);
    fprintf(stderr, "%s%s: block %d, thread %d of kernel `%s`: %s, address %p\n"
                    "moecc: error: the CUDA kernels are wrong: one ended the step\n",
            reports, own ? where : "a function that is called", block->number, block->current ? block->current->place.thread : 0,
            block->name, strsignal(info->si_signo), info->si_addr);
    _exit(EXIT_BUG);
}

static void crashed(int number, siginfo_t *info, void *context)
{
    static std::atomic<bool> told{false};
    const Block *block = running;
    if (block && told.exchange(true))
        for (;;) // another thread tells
            pause();
    if (block)
        tell(block, info, place_of((const ucontext_t *)context));
    for (int i = 0; i < SIGNALS; i++) // not a kernel's: it happens again, to whoever was to hear of it
        if (signals[i] == number)
            sigaction(number, &before[i], nullptr);
}

static void listen(void)
{
    struct sigaction action = {};
    action.sa_sigaction = crashed;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < SIGNALS; i++)
        sigaction(signals[i], &action, &before[i]);
}

// ------------------------------------------------------------------------------------------------------- never ended

void begins(const Block *block)
{
    static std::once_flag once;
    std::call_once(once, listen);
    std::lock_guard<std::mutex> guard(lock);
    blocks.push_back(block);
}

void ends(const Block *block)
{
    std::lock_guard<std::mutex> guard(lock);
    blocks.erase(std::find(blocks.begin(), blocks.end(), block));
}

} // namespace host

extern "C" int host_unfinished(char *text, size_t size)
{
    using namespace host;
    std::lock_guard<std::mutex> guard(lock);
    if (size)
        *text = 0;
    for (const Block *block : blocks) {
        size_t used = strlen(text);
        snprintf(text + used, size - used, "note: kernel `%s` has not come back: its block %d runs, %d of %d threads have not ended\n",
                 block->name, block->number, block->live, block->threads);
    }
    return (int)blocks.size();
}
