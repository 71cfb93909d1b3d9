// The clock and the thread of emulated links (emulate.h); what passes when is links.c's to say.
#include "emulate.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>

#include "links.h"

enum { COPY_BYTES = 128 << 10 }; // between two looks at the clock
static const double MOST_LATE_NS = 50e3;

struct emulation {
    struct links *links;
    pthread_mutex_t lock;
    pthread_cond_t change; // something leaves earlier than the thread will wake
    pthread_t thread;
    double wakes;          // when it means to, ns since the step began
    double late;           // by how much it usually wakes later than it meant to: it means to that much earlier
    bool stop;
};

static double now_of(const struct emulation *e)
{
    return (double)(clock_ns() - e->links->session->step_begin);
}

/// Arrivals must not wait for a core that kernels keep busy: at once where the system allows it, soon elsewhere.
static void hurry(void)
{
    prctl(PR_SET_TIMERSLACK, 1);
    if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &(struct sched_param){.sched_priority = 1}) != 0)
        thread_prefer_short();
}

/// With the lock held: sleeps until `e->wakes`, or until something is sent.
static void sleep_until(struct emulation *e)
{
    int64_t at = e->links->session->step_begin + whole_ns(e->wakes - e->late);
    struct timespec until = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
    if (pthread_cond_timedwait(&e->change, &e->lock, &until) != ETIMEDOUT)
        return;
    double late = fmin(MOST_LATE_NS, fmax(0, now_of(e) - (e->wakes - e->late)));
    e->late += (late - e->late) / 8;
}

static void *emulation_main(void *argument)
{
    struct emulation *e = argument;
    hurry();
    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        links_advance(e->links, fmax(now_of(e) + e->late, e->links->now));
        if (links_copy(e->links, COPY_BYTES))
            continue;
        e->wakes = links_next(e->links);
        if (isinf(e->wakes))
            pthread_cond_wait(&e->change, &e->lock);
        else
            sleep_until(e);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

bool emulate_start(struct moe_session *session)
{
    struct emulation *e = session_alloc(session, 1, sizeof *e);
    pthread_condattr_t monotonic;
    if (!e || !(e->links = links_create(session)))
        return false;
    e->wakes = INFINITY;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    bool fine = pthread_mutex_init(&e->lock, NULL) == 0 && pthread_cond_init(&e->change, &monotonic) == 0 &&
                (errno = pthread_create(&e->thread, NULL, emulation_main, e)) == 0;
    pthread_condattr_destroy(&monotonic);
    session->emulation = fine ? e : NULL;
    return fine;
}

void emulate_stop(struct moe_session *session)
{
    struct emulation *e = session->emulation;
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->change);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    pthread_cond_destroy(&e->change);
    pthread_mutex_destroy(&e->lock);
    session->emulation = NULL;
}

void emulate_reset(struct moe_session *session)
{
    struct emulation *e = session->emulation;
    pthread_mutex_lock(&e->lock);
    session->step_begin = clock_ns();
    links_reset(e->links);
    pthread_mutex_unlock(&e->lock);
}

void emulate_end(struct moe_session *session)
{
    pthread_mutex_lock(&session->emulation->lock); // which it holds while it raises them
    pthread_mutex_unlock(&session->emulation->lock);
}

bool emulate_carry(const struct passage *p)
{
    struct emulation *e = p->stream->rank->session->emulation;
    pthread_mutex_lock(&e->lock);
    links_advance(e->links, fmax(now_of(e), e->links->now));
    struct span_record *record = spans_add(&p->stream->messages, passage_record(p, whole_ns(e->links->now)));
    bool fine = links_start(e->links, p, record);
    pthread_cond_signal(&e->change); // there are bytes to copy
    pthread_mutex_unlock(&e->lock);
    return fine;
}

void emulate_sent(struct stream *s, uint32_t exchange)
{
    struct emulation *e = s->rank->session->emulation;
    pthread_mutex_lock(&e->lock);
    links_sent(s->rank, exchange);
    pthread_mutex_unlock(&e->lock);
}

bool emulate_moves(const struct moe_session *session)
{
    return session->emulation && atomic_load(&session->emulation->links->under_way);
}
