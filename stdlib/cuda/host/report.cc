// What went wrong, in words: places in a kernel by file and line, a deadlock by who waits where. Reports gather until they
// are taken; one place is reported once.
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <mutex>
#include <string>

#include "block.h"

namespace host {

enum { MOST_REPORTS = 20 };

static std::mutex lock;
static std::string gathered;
static std::map<std::string, int> known;
static int count;

/// `file:line` by addr2line, innermost inlined place first and then what inlined it, within the templates.
static std::string source_of(const Dl_info &info, const void *at)
{
    char command[1024], line[512];
    snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%zx 2>/dev/null", info.dli_fname,
             (size_t)((const char *)at - (const char *)info.dli_fbase - 1));
    FILE *pipe = popen(command, "r");
    if (!pipe)
        return "";
    std::string chain;
    while (fgets(line, sizeof line, pipe)) {
        line[strcspn(line, " \n")] = 0;
        const char *name = strrchr(line, '/') ? strrchr(line, '/') + 1 : line;
        if (strchr(name, '?') || strstr(name, "_host.h:"))
            continue; // the wrapper itself
        chain += chain.empty() ? name : std::string(", from ") + name;
    }
    pclose(pipe);
    return chain;
}

void describe_place(const void *at, char *text, size_t size)
{
    static std::map<const void *, std::string> places;
    std::lock_guard<std::mutex> guard(lock);
    std::string &place = places[at];
    Dl_info info;
    if (place.empty() && at && dladdr(at, &info)) {
        place = source_of(info, at);
        if (place.empty()) {
            snprintf(text, size, "kernel+0x%zx", (size_t)((const char *)at - (const char *)info.dli_fbase));
            place = text;
        }
    }
    snprintf(text, size, "%s", place.empty() ? "an unknown place" : place.c_str());
}

void report(const void *place, const char *format, ...)
{
    char where[256], what[512];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    describe_place(place, where, sizeof where);
    std::lock_guard<std::mutex> guard(lock);
    count++;
    if (known[where]++ == 0 && known.size() <= MOST_REPORTS)
        gathered += std::string(where) + ": " + what + "\n";
}

/// What a fiber waits in, in words.
static std::string wait_of(const Fiber *fiber)
{
    static const char *const ops[HOST_WARP_OPS] = {"sync_warp",     "shuffle",      "load_matrices",
                                                   "multiply_bf16", "multiply_f16", "multiply_codes"};
    char text[192];
    switch (fiber->waiting) {
    case Waiting::block_barrier:
        return "sync_block";
    case Waiting::named_barrier:
        snprintf(text, sizeof text, "sync_threads(%d)", fiber->op);
        return text;
    case Waiting::barrier:
        describe_wait(fiber, text, sizeof text);
        return text;
    case Waiting::team:
        return "multiply_group";
    default:
        return ops[fiber->op];
    }
}

void report_deadlock(const Block *block)
{
    struct Group {
        int first, last, threads;
    };
    std::map<std::string, Group> groups;
    for (const Fiber *fiber : block->fibers) {
        if (fiber->finished)
            continue;
        char where[256];
        describe_place(fiber->at, where, sizeof where);
        std::string key = wait_of(fiber) + " at " + where;
        Group &group = groups.emplace(key, Group{fiber->place.thread, 0, 0}).first->second;
        group.last = fiber->place.thread;
        group.threads++;
    }
    char line[512];
    snprintf(line, sizeof line, "deadlock: block %d, %d of %d threads wait and none can go on\n", block->number,
             block->live, block->threads);
    std::string text = line;
    for (const auto &group : groups) {
        snprintf(line, sizeof line, "  %d threads (%d to %d) wait in %s\n", group.second.threads, group.second.first,
                 group.second.last, group.first.c_str());
        text += line;
    }
    if (block->arrived) {
        snprintf(line, sizeof line, "  the block's barrier has %d of %d threads; %d have ended\n", block->arrived,
                 block->threads, block->threads - block->live);
        text += line;
    }
    std::lock_guard<std::mutex> guard(lock);
    count++;
    gathered += text;
}

} // namespace host

extern "C" int host_take_reports(char *text, size_t size)
{
    std::lock_guard<std::mutex> guard(host::lock);
    int taken = host::count;
    if (size)
        snprintf(text, size, "%s", host::gathered.c_str());
    host::gathered.clear();
    host::known.clear();
    host::count = 0;
    return taken;
}
