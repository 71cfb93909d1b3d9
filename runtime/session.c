// Sessions: create from a plan, load weights, run steps, destroy. The step itself is the executor's (exec/step.c) and the
// device's; here its input is judged, its variant chosen, its end examined.
#include <errno.h>
#include <fenv.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/device/machine.h"
#include "runtime/open.h"
#include "runtime/weights/weights.h"

enum { THREADS_MOST = 4096 };

static const struct device_ops *const devices[] = {&device_cpu, &device_sim};
static const struct transport_ops *const transports[] = {&transport_local};

bool session_fail(struct moe_session *session, moe_status status, const char *format, ...)
{
    if (atomic_exchange(&session->failing, true))
        return false;
    va_list list;
    va_start(list, format);
    vsnprintf(session->error, sizeof session->error, format, list);
    va_end(list);
    atomic_store_explicit(&session->failed, (int)status, memory_order_release);
    return false;
}

/// An error before anything has moved: the session stays usable.
static moe_status refuse(struct moe_session *session, moe_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(session->error, sizeof session->error, format, list);
    va_end(list);
    if (session->options.log)
        session->options.log(session->options.log_user, session->error);
    return status;
}

static moe_status choose_fault(struct moe_session *session)
{
    static const char *const kinds[] = {
        [FAULT_DROP] = "drop:", [FAULT_DOUBLE] = "double:", [FAULT_MISROUTE] = "misroute:"};
    const char *text = session->options.fault;
    if (!text || !*text)
        return MOE_OK;
    for (size_t i = FAULT_DROP; i < sizeof kinds / sizeof *kinds; i++) {
        size_t length = strlen(kinds[i]);
        if (strncmp(text, kinds[i], length))
            continue;
        char *end;
        unsigned long rank = strtoul(text + length, &end, 10);
        if (end == text + length || *end || rank >= session->info->ranks)
            return open_fail(MOE_INVALID, "fault `%s`: no such rank", text);
        session->fault = (enum fault_kind)i;
        session->fault_rank = (uint32_t)rank;
        return MOE_OK;
    }
    return open_fail(MOE_INVALID, "fault `%s`: expected drop:RANK, double:RANK or misroute:RANK", text);
}

static moe_status choose_options(struct moe_session *session, const moe_options *options)
{
    if (options)
        session->options = *options;
    moe_options *o = &session->options;
    const char *device = o->device ? o->device : "cpu", *transport = o->transport ? o->transport : "local";
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (!strcmp(devices[i]->name, device))
            session->device = devices[i];
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++)
        if (!strcmp(transports[i]->name, transport))
            session->transport = transports[i];
    if (!session->device)
        return open_fail(MOE_UNSUPPORTED, "this build has no device `%s`", device);
    if (!session->transport)
        return open_fail(MOE_UNSUPPORTED, "this build has no transport `%s`", transport);
    if (!(o->timeout_s >= 0 && o->timeout_s <= 1e6))
        return open_fail(MOE_INVALID, "timeout_s is negative or too large");
    session->layers = o->use_single_layer ? 1 : session->info->layers;
    uint32_t choices = COUNT(session->ir, plan_choice);
    if (o->use_single_layer && (o->single_layer < 0 || (session->info->layers > 1 &&
                                                        !ROW(session->ir, plan_choice, choices - 1)->single)))
        return open_fail(MOE_INVALID, "the plan has no schedule for a layer alone");
    session->timeout_ns = (int64_t)((o->timeout_s > 0 ? o->timeout_s : 30) * 1e9);
    enum bind bind;
    if (!bind_named(o->bind, &bind))
        return open_fail(MOE_INVALID, "threads cannot be bound to `%s`: expected none, node or core", o->bind);
    if (!o->threads)
        o->threads = machine_cores();
    if (o->threads > THREADS_MOST)
        return open_fail(MOE_INVALID, "%u threads are more than the %d that a session can have", o->threads, THREADS_MOST);
#ifndef NDEBUG
    o->poison = 1;
#endif
    return choose_fault(session);
}

/// `sm_80, sm_90a`: what the plan has code for.
static const char *chips_of(const struct moe_session *session, char *text, size_t size)
{
    const struct plan_gpu_code *last = NULL;
    int used = snprintf(text, size, "%s", COUNT(session->ir, plan_gpu_code) ? "" : "without code for any");
    for (uint32_t i = 0; i < COUNT(session->ir, plan_gpu_code); i++) {
        const struct plan_gpu_code *code = ROW(session->ir, plan_gpu_code, i);
        if ((!last || last->chip != code->chip) && used >= 0 && (size_t)used < size) // a chip's rows follow one another
            used += snprintf(text + used, size - (size_t)used, "%s%s", last ? ", " : "", ir_text(session->ir, code->chip));
        last = code;
    }
    return text;
}

static moe_status check_machine(const struct moe_session *session)
{
    char chips[128];
    const char *level = ir_text(session->ir, session->info->cpu_level);
    for (uint32_t i = 0; i < COUNT(session->ir, plan_kernel) && session->info->target == target_cuda; i++)
        if (!ROW(session->ir, plan_kernel, i)->builtin && !session->plan->kernels[i])
            return open_fail(MOE_UNSUPPORTED, "the plan's kernels are for GPUs (%s), which this runtime does not drive yet",
                             chips_of(session, chips, sizeof chips));
    if (session->info->target != target_cuda && session->plan->plan.code_bytes && !machine_runs(level))
        return open_fail(MOE_UNSUPPORTED, "the plan's code needs CPU level `%s`, which this machine lacks", level);
    return MOE_OK;
}

const char *moe_plan_extern(const moe_plan *plan, uint32_t number)
{
    const struct ir *ir = &plan->plan.ir;
    for (uint32_t i = 0; i < COUNT(ir, plan_instr); i++) {
        const struct plan_instr *in = ROW(ir, plan_instr, i);
        bool seen = in->op != opcode_host;
        for (uint32_t k = 0; k < i && !seen; k++) {
            const struct plan_instr *before = ROW(ir, plan_instr, k);
            seen = before->op == opcode_host && !strcmp(ir_text(ir, before->stage), ir_text(ir, in->stage));
        }
        if (!seen && number-- == 0)
            return ir_text(ir, in->stage);
    }
    return NULL;
}

static bool list_hosts(struct moe_session *session)
{
    while (moe_plan_extern(session->plan, session->host_count))
        session->host_count++;
    session->hosts = session_alloc(session, session->host_count, sizeof *session->hosts);
    for (uint32_t i = 0; i < session->host_count && session->hosts; i++)
        session->hosts[i].name = moe_plan_extern(session->plan, i);
    return session->hosts != NULL;
}

const struct host_function *session_host(const struct moe_session *session, const struct plan_instr *instr)
{
    uint32_t i = 0;
    while (strcmp(session->hosts[i].name, ir_text(session->ir, instr->stage)) != 0)
        i++;
    return &session->hosts[i];
}

moe_status moe_session_extern(moe_session *session, const char *name, moe_extern_fn *fn, void *user)
{
    if (!session || !name || !fn)
        return MOE_INVALID;
    for (uint32_t i = 0; i < session->host_count; i++)
        if (!strcmp(session->hosts[i].name, name)) {
            session->hosts[i].fn = fn;
            session->hosts[i].user = user;
            return MOE_OK;
        }
    return refuse(session, MOE_INVALID, "the plan has no extern stage `%s`", name);
}

/// Who sits where.
static void tell_placement(const struct moe_session *session)
{
    const moe_options *o = &session->options;
    char line[320];
    if (!o->log || session->device != &device_cpu)
        return;
    if (session->placement.topology.unread && session->placement.bind != BIND_NONE)
        o->log(o->log_user, "several memory nodes or caches, but libhwloc.so.15 is not there or cannot read them: they are taken for one");
    for (uint32_t i = 0; placement_line(&session->placement, i, line, sizeof line); i++)
        o->log(o->log_user, line);
}

moe_status moe_session_create(const moe_plan *plan, const moe_options *options, moe_session **session)
{
    if (!plan || !session)
        return open_fail(MOE_INVALID, "no plan or no place for the session");
    moe_session *made = calloc(1, sizeof *made);
    if (!made)
        return open_fail(MOE_NO_MEMORY, "out of memory");
    made->plan = plan;
    made->ir = &plan->plan.ir;
    made->info = ROW(made->ir, plan_info, 0);
    moe_status status = choose_options(made, options);
    if (status == MOE_OK)
        status = check_machine(made);
    if (status == MOE_OK && !(session_build(made) && list_hosts(made)))
        status = open_fail(MOE_NO_MEMORY, "out of memory: the session needs %.1f MB for weights, %.1f MB for buffers",
                           1e-6 * (double)session_weight_bytes(made), 1e-6 * (double)session_arena_bytes(made));
    if (status == MOE_OK && !made->device->create(made))
        status = open_fail(MOE_NO_MEMORY, "the device `%s` could not start its threads, %u to compute and %u for streams: %s",
                           made->device->name, made->options.threads, made->info->ranks * made->streams_per_rank,
                           strerror(errno));
    if (status != MOE_OK) {
        moe_session_destroy(made);
        return status;
    }
    for (uint32_t i = 0; i < made->layers; i++)
        made->loaded_layers[i] =
            made->options.use_single_layer ? (uint32_t)made->options.single_layer : made->info->first_layer + i;
    made->loaded = COUNT(made->ir, plan_param) == 0;
    tell_placement(made);
    *session = made;
    return MOE_OK;
}

void moe_session_destroy(moe_session *session)
{
    if (!session)
        return;
    if (session->device)
        session->device->destroy(session);
    if (!session->stuck) // else a kernel still runs: better to leak than to pull memory from under it
        session_release(session);
}

moe_status moe_session_measure_loss(moe_session *session, int on)
{
    if (!session)
        return MOE_INVALID;
    session->measures_loss = on != 0;
    return MOE_OK;
}

bool session_override_kernel(struct moe_session *session, const char *name, moe_kernel_fn *fn)
{
    bool found = false;
    for (uint32_t i = 0; i < COUNT(session->ir, plan_kernel); i++)
        if (!strcmp(ir_text(session->ir, ROW(session->ir, plan_kernel, i)->name), name)) {
            session->kernels[i] = fn;
            found = true;
        }
    return found;
}

static void *param_place(void *user, uint32_t param, uint32_t layer_index, uint32_t rank_index)
{
    const struct moe_session *session = user;
    return session->ranks[rank_index].params[(size_t)layer_index * COUNT(session->ir, plan_param) + param];
}

moe_status moe_session_load(moe_session *session, const char *path)
{
    if (!session || !path)
        return MOE_INVALID;
    if (session->broken)
        return refuse(session, MOE_BROKEN, "the session failed before");
    uint32_t *ranks = malloc(session->info->ranks * sizeof *ranks);
    if (!ranks)
        return refuse(session, MOE_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < session->info->ranks; i++)
        ranks[i] = i;
    char problem[sizeof session->error - 1] = "the weights could not be loaded";
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV); // threads that load inherit it
    int status = weights_load(&(struct weights_request){.plan = session->ir,
                                                        .path = path,
                                                        .seed = session->options.seed,
                                                        .threads = session->options.threads,
                                                        .layer_count = session->layers,
                                                        .layers = session->loaded_layers,
                                                        .rank_count = session->info->ranks,
                                                        .ranks = ranks,
                                                        .destination = param_place,
                                                        .user = session,
                                                        .progress = session->options.progress,
                                                        .progress_user = session->options.progress_user},
                              problem, sizeof problem);
    fesetenv(&callers);
    free(ranks);
    if (status != MOE_OK)
        return refuse(session, (moe_status)status, "%s", problem);
    session->loaded = true;
    session->error[0] = 0;
    return MOE_OK;
}

const char *moe_session_error(const moe_session *session)
{
    return session ? session->error : "no session";
}
