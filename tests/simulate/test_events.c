// The event simulator against closed forms: queues, shared SMs, shared links, pipelines.
#include <CUnit/CUnit.h>
#include <math.h>
#include <string.h>

#include "compiler/simulate/events.h"
#include "tests/simulate/fixture.h"

enum { TASKS = 256, FLOWS = 128, ARCS = 512 };

struct scene {
    struct context context;
    struct event_task tasks[TASKS];
    struct event_flow flows[FLOWS];
    struct event_arc arcs[ARCS];
    double links[8];
    struct events events;
};

static void scene_make(struct scene *s, uint32_t streams)
{
    memset(s, 0, sizeof *s);
    context_init(&s->context);
    s->events = (struct events){
        .tasks = s->tasks, .flows = s->flows, .arcs = s->arcs, .links = s->links, .stream_count = streams, .pool_count = 2};
}

static uint32_t add_task(struct scene *s, enum event_kind kind, uint32_t stream, double work)
{
    s->tasks[s->events.task_count] = (struct event_task){.kind = kind, .stream = stream, .work = work};
    return s->events.task_count++;
}

static void add_arc(struct scene *s, uint32_t from, uint32_t to)
{
    s->arcs[s->events.arc_count++] = (struct event_arc){from, to};
}

static void add_flow(struct scene *s, uint32_t send, uint32_t recv, uint32_t out, uint32_t in, double bytes, double latency)
{
    s->flows[s->events.flow_count++] = (struct event_flow){
        .send = send, .recv = recv, .out = out, .in = in, .out_bytes = bytes, .in_bytes = bytes, .latency = latency};
}

static double finish(struct scene *s)
{
    CU_ASSERT_TRUE(run_events(&s->context, &s->events));
    return s->events.end;
}

static void test_queues(void)
{
    struct scene s;
    scene_make(&s, 2); // one after the other on a stream; an arc between streams
    uint32_t a = add_task(&s, EVENT_COMPUTE, 0, 10), b = add_task(&s, EVENT_COMPUTE, 0, 5);
    uint32_t c = add_task(&s, EVENT_COMPUTE, 1, 7);
    s.tasks[c].pool = 1;
    add_arc(&s, a, c);
    NEAR(finish(&s), 17);
    NEAR(s.tasks[b].begin, 10);
    NEAR(s.tasks[c].begin, 10);
    context_free(&s.context);

    scene_make(&s, 2); // two at once on the same SMs take twice as long, the longer one then runs alone
    add_task(&s, EVENT_COMPUTE, 0, 10);
    add_task(&s, EVENT_COMPUTE, 1, 30);
    NEAR(finish(&s), 40);
    NEAR(s.tasks[0].end, 20);
    context_free(&s.context);

    scene_make(&s, 2); // a stream that lends a fifth of the SMs slows the others while it works, reading less than arithmetic
    add_task(&s, EVENT_COMPUTE, 0, 16);
    b = add_task(&s, EVENT_COMPUTE, 1, 10);
    s.tasks[b].pool = 1;
    s.tasks[b].lends = 0.2;
    NEAR(finish(&s), 18);
    s.tasks[0].memory = 16;
    s.tasks[0].work = 1;
    NEAR(finish(&s), 16);
    context_free(&s.context);

    scene_make(&s, 3); // a receive takes SMs from its first message on, not while it waits for one
    add_task(&s, EVENT_COMPUTE, 0, 30);
    a = add_task(&s, EVENT_COMPUTE, 2, 10);
    s.tasks[a].pool = 1;
    b = add_task(&s, EVENT_SEND, 2, 0);
    c = add_task(&s, EVENT_RECV, 1, 0);
    s.tasks[c].lends = 0.5;
    s.events.link_count = 2;
    s.links[0] = s.links[1] = 1;
    add_flow(&s, b, c, 0, 1, 10, 0);
    NEAR(finish(&s), 35); // 10 alone, 10 at half speed, 15 alone
    NEAR(s.tasks[c].end, 20);
    context_free(&s.context);

    scene_make(&s, 2); // a circle never ends
    a = add_task(&s, EVENT_COMPUTE, 0, 1);
    b = add_task(&s, EVENT_COMPUTE, 1, 1);
    add_arc(&s, a, b);
    add_arc(&s, b, a);
    CU_ASSERT_FALSE(run_events(&s.context, &s.events));
    context_free(&s.context);
}

static void test_links(void)
{
    struct scene s;
    scene_make(&s, 4); // one message: bytes over bandwidth, then latency; the sender does not wait for the latency
    uint32_t send = add_task(&s, EVENT_SEND, 0, 0), recv = add_task(&s, EVENT_RECV, 1, 0);
    s.events.link_count = 4;
    for (int i = 0; i < 4; i++)
        s.links[i] = 2;
    add_flow(&s, send, recv, 0, 1, 100, 8);
    NEAR(finish(&s), 58);
    NEAR(s.tasks[send].end, 50);
    NEAR(s.tasks[recv].end, 58);

    uint32_t other = add_task(&s, EVENT_SEND, 2, 0), other_recv = add_task(&s, EVENT_RECV, 3, 0);
    add_flow(&s, other, other_recv, 0, 2, 100, 0); // two streams share the link they leave by
    NEAR(finish(&s), 108);
    NEAR(s.tasks[other].end, 100);

    s.flows[1].out_bytes = s.flows[1].in_bytes = 50; // the shorter one ends first, the other then has the link alone
    NEAR(finish(&s), 83);
    NEAR(s.tasks[other].end, 50);
    NEAR(s.tasks[send].end, 75);

    s.flows[1].out_bytes = s.flows[1].in_bytes = 100;
    s.links[2] = 0.5; // what a slow link elsewhere leaves unused goes to the other message
    NEAR(finish(&s), 200);
    NEAR(s.tasks[send].end, 100 / 1.5);
    s.flows[0].limit = 0.25; // an end that cannot keep up slows its own message alone
    s.links[2] = 2;
    NEAR(finish(&s), 408);
    NEAR(s.tasks[other].end, 100 / 1.75);
    context_free(&s.context);
}

/// n senders with links of their own into one receiver: its link is shared, all end together after n messages' time; with a
/// slower sender among them, what it leaves goes to the others.
static void test_incast(void)
{
    for (uint32_t n = 1; n <= 6; n++) {
        struct scene s;
        scene_make(&s, 2 * n);
        s.events.link_count = n + 1;
        for (uint32_t i = 0; i <= n; i++)
            s.links[i] = 4;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t send = add_task(&s, EVENT_SEND, 2 * i, 0), recv = add_task(&s, EVENT_RECV, 2 * i + 1, 0);
            add_flow(&s, send, recv, i, n, 100, 3);
        }
        NEAR(finish(&s), n * 100 / 4.0 + 3);
        for (uint32_t i = 0; i < n; i++)
            NEAR(s.tasks[2 * i].end, n * 100 / 4.0);
        s.links[0] = 0.5;
        NEAR(finish(&s), fmax(203, n > 1 ? (n - 1) * 100 / 3.5 + 3 : 0));
        context_free(&s.context);
    }
}

/// `n` parts through dispatch, expert and combine on three streams, each taking the times given.
static double ladder(struct scene *s, uint32_t n, double dispatch, double expert, double combine)
{
    scene_make(s, 3);
    for (uint32_t i = 0; i < n; i++) {
        double times[3] = {dispatch, expert, combine};
        for (uint32_t k = 0; k < 3; k++) {
            uint32_t task = add_task(s, EVENT_COMPUTE, k, times[k] / n);
            s->tasks[task].pool = k;
            if (k)
                add_arc(s, task - 1, task);
        }
    }
    s->events.pool_count = 3;
    return finish(s);
}

static void test_pipeline(void)
{
    for (uint32_t n = 1; n <= 16; n++) {
        struct scene s;
        NEAR(ladder(&s, n, 1200, 1200, 1200), 1200.0 + 2 * 1200.0 / n); // fill and drain: (n + 2) turns of T / n
        context_free(&s.context);
        // As much communication as compute, half before and half after: all but 1/n of it is hidden.
        double exposed = ladder(&s, n, 600, 1200, 600) - 1200;
        NEAR(1 - exposed / 1200, 1 - 1.0 / n);
        context_free(&s.context);
    }
}

void suite_events(void);
void suite_events(void)
{
    CU_pSuite suite = CU_add_suite("events", NULL, NULL);
    CU_add_test(suite, "streams are queues, SMs are shared", test_queues);
    CU_add_test(suite, "links are shared", test_links);
    CU_add_test(suite, "many senders, one receiver", test_incast);
    CU_add_test(suite, "pipelines fill and drain", test_pipeline);
}
