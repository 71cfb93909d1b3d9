// Ranks and threads on cores: what hwloc tells of machines, described ones and this one; where ranks, threads and memory
// are put on machines of every shape; that threads really are kept where it says.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "small_plan.h"

void suite_placement(void);

/// A topology made by hand: `cores` of each domain, `each` processors of a core.
static void make_topology(struct topology *t, uint32_t domains, const uint32_t *cores, uint32_t each)
{
    *t = (struct topology){.domain_count = domains, .apart = domains > 1, .imagined = true};
    t->domains = calloc(domains, sizeof *t->domains);
    for (uint32_t d = 0; d < domains; d++) {
        t->domains[d] = (struct domain){.first = t->core_count, .count = cores[d], .node = d};
        snprintf(t->domains[d].name, sizeof t->domains[d].name, "node %u", d);
        t->core_count += cores[d];
    }
    t->cores = calloc(t->core_count, sizeof *t->cores);
    for (uint32_t c = 0; c < t->core_count; c++)
        for (uint32_t p = 0; p < each; p++)
            CPU_SET(c + p * t->core_count, &t->cores[c]);
}

static bool disjoint(const struct placement *p, uint32_t a, uint32_t b)
{
    cpu_set_t one, other, both;
    placement_thread(p, a, &one);
    placement_thread(p, b, &other);
    CPU_AND(&both, &one, &other);
    return CPU_COUNT(&one) && CPU_COUNT(&other) && !CPU_COUNT(&both);
}

/// Threads of one domain share no core while there are cores, no processor while there are processors.
static uint32_t crowded(const struct placement *p, uint32_t each)
{
    uint32_t wrong = 0;
    for (uint32_t a = 0; a < p->threads; a++)
        for (uint32_t b = 0; b < a; b++) {
            uint32_t domain = p->seats[a].domain, room = p->topology.domains[domain].count * each;
            wrong += p->seats[b].domain == domain && p->seated[domain] <= room && !disjoint(p, a, b);
        }
    return wrong;
}

/// Who is near whom: a rank's memory is where threads are, its own team's where there are teams; ranks that are neighbours
/// stay so.
static uint32_t misplaced(const struct placement *p)
{
    uint32_t wrong = 0;
    for (uint32_t r = 0; r < p->ranks; r++) {
        wrong += p->homes[r].count == 0 || (r && p->homes[r].first < p->homes[r - 1].first);
        for (uint32_t u = p->homes[r].first; u < p->homes[r].first + p->homes[r].count; u++) {
            uint32_t near = 0;
            for (uint32_t t = 0; t < p->threads; t++)
                near += p->seats[t].domain == p->used[u] && (p->teams == 1 || t % p->teams == r);
            wrong += near == 0;
        }
    }
    for (uint32_t t = 0; t < p->threads && p->teams > 1; t++) {
        cpu_set_t rank, thread;
        placement_rank(p, t % p->teams, &rank);
        placement_thread(p, t, &thread);
        CPU_AND(&rank, &rank, &thread);
        wrong += p->topology.domain_count > 1 && !CPU_EQUAL(&rank, &thread);
    }
    return wrong;
}

/// Every rank once, those of the thread's own domain first.
static uint32_t disordered(const struct placement *p)
{
    uint32_t order[32], wrong = 0;
    for (uint32_t t = 0; t < p->threads; t++) {
        cpu_set_t rank, thread;
        uint64_t seen = 0;
        bool far = false;
        placement_thread(p, t, &thread);
        placement_order(p, p->ranks, t, order);
        for (uint32_t i = 0; i < p->ranks; i++) {
            seen |= (uint64_t)1 << order[i];
            placement_rank(p, order[i], &rank);
            CPU_AND(&rank, &rank, &thread);
            bool near = p->topology.domain_count < 2 || CPU_COUNT(&rank);
            wrong += near && far;
            far = far || !near;
        }
        wrong += seen != ((uint64_t)1 << p->ranks) - 1;
    }
    return wrong;
}

static void test_shapes(void)
{
    static const uint32_t machines[][4] = {{2}, {4, 4}, {1, 1, 1, 1}, {16, 1}, {3, 8, 2}, {64, 64}};
    static const uint32_t domains[] = {1, 2, 4, 2, 3, 2}, ranks[] = {1, 2, 3, 4, 8, 17};
    for (size_t m = 0; m < sizeof domains / sizeof *domains; m++)
        for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++)
            for (uint32_t n = 1; n <= 40; n = n * 2 + 1)
                for (int teams = 0; teams < 2; teams++) {
                    struct placement p = {0};
                    uint32_t each = n % 3 ? 2 : 1;
                    make_topology(&p.topology, domains[m], machines[m], each);
                    CU_ASSERT_TRUE_FATAL(placement_make(&p, ranks[r], teams ? n * ranks[r] : n, teams ? ranks[r] : 1, BIND_CORE));
                    CU_ASSERT_EQUAL(misplaced(&p), 0);
                    CU_ASSERT_EQUAL(crowded(&p, each), 0);
                    CU_ASSERT_EQUAL(disordered(&p), 0);
                    placement_free(&p);
                }
}

static void expect_lines(const char *machine, uint32_t ranks, uint32_t threads, enum bind bind, const char *expected)
{
    struct placement p = {0};
    char text[1024] = "", line[320];
    setenv("HWLOC_SYNTHETIC", machine, 1);
    CU_ASSERT_TRUE_FATAL(topology_read(&p.topology));
    unsetenv("HWLOC_SYNTHETIC");
    CU_ASSERT_TRUE(p.topology.imagined);
    CU_ASSERT_TRUE_FATAL(placement_make(&p, ranks, threads, 1, bind));
    p.topology.imagined = false; // as on such a machine
    for (uint32_t i = 0; placement_line(&p, i, line, sizeof line); i++) {
        strcat(text, line);
        strcat(text, "\n");
    }
    p.topology.imagined = true;
    CU_ASSERT_STRING_EQUAL(text, expected);
    if (strcmp(text, expected))
        fprintf(stderr, "%s\n%s", machine, text);
    placement_free(&p);
}

/// Built with hwloc's header, and it is here?
static bool has_hwloc(void)
{
    struct topology t;
    setenv("HWLOC_SYNTHETIC", "node:1 core:1 pu:1", 1);
    CU_ASSERT_TRUE_FATAL(topology_read(&t));
    unsetenv("HWLOC_SYNTHETIC");
    bool has = !t.unread;
    topology_free(&t);
    if (!has)
        fprintf(stderr, "[skipped: no libhwloc] ");
    return has;
}

static void test_machines(void)
{
    if (!has_hwloc())
        return;
    expect_lines("node:2 core:2 pu:2", 4, 4, BIND_NODE,
                 "node 0: processors 0-3 (2 cores), ranks 0 to 1, 2 threads, bound to these\n"
                 "node 1: processors 4-7 (2 cores), ranks 2 to 3, 2 threads, bound to these\n");
    expect_lines("package:2 node:2 core:8 pu:1", 2, 3, BIND_CORE, // more nodes than threads
                 "node 0: processors 0-7 (8 cores), rank 0, 1 thread, each bound to a core\n"
                 "node 1: processors 8-15 (8 cores), rank 1, 1 thread, each bound to a core\n"
                 "node 2: processors 16-23 (8 cores), rank 1, 1 thread, each bound to a core\n");
    expect_lines("node:1 l3:2 core:2 pu:2", 1, 8, BIND_CORE, // one node, so by caches
                 "cache 0: processors 0-3 (2 cores), rank 0, 4 threads, each bound to a processor\n"
                 "cache 1: processors 4-7 (2 cores), rank 0, 4 threads, each bound to a processor\n");
    expect_lines("node:2 core:2 pu:1", 4, 2, BIND_NONE,
                 "this machine: processors 0-3 (4 cores), ranks 0 to 3, 2 threads, not bound\n");
    expect_lines("node:1 core:4 pu:1", 2, 2, BIND_NODE,
                 "this machine: processors 0-3 (4 cores), ranks 0 to 1, 2 threads, not bound\n");
}

/// The policy of the pages at an address: 0 is the system's own. -1: the system does not say.
static int policy_at(const char *at, unsigned long *nodes)
{
    enum { BY_ADDRESS = 2 };
    int policy = -1;
    *nodes = 0;
    return syscall(SYS_get_mempolicy, &policy, nodes, 8 * sizeof *nodes, at, BY_ADDRESS) == 0 ? policy : -1;
}

/// This machine, described as one with a node for each processor: threads are where they are said to be, results the same.
static void run_bound(const char *bind, bool apart)
{
    struct small s = {.ranks = 2, .experts = 4, .choices = 2, .parts = 1, .width = 4, .bound = 8, .rows = -1};
    float x[2][8 * 4], y[2][8 * 4], want[8 * 4], weights[16];
    int32_t ids[16];
    moe_plan *plan;
    moe_session *session;
    CU_ASSERT_EQUAL_FATAL(small_session(&s, &(moe_options){.threads = 2, .bind = bind}, &plan, &session), MOE_OK);
    for (uint32_t i = 0; i < 2; i++) {
        cpu_set_t set;
        CU_ASSERT_EQUAL(pthread_getaffinity_np(session->pool.workers[i].thread, sizeof set, &set), 0);
        CU_ASSERT_EQUAL(CPU_COUNT(&set), apart ? 1 : (int)machine_processors());
        CU_ASSERT_TRUE(!apart || CPU_ISSET(i, &set));
        CU_ASSERT_EQUAL(pthread_getaffinity_np(session->ranks[i].streams[0].thread, sizeof set, &set), 0);
        CU_ASSERT_TRUE(!apart || (CPU_COUNT(&set) == 1 && CPU_ISSET(i, &set)));
    }
    unsigned long nodes;
    int policy = policy_at(session->ranks[0].arena, &nodes);
    if (policy < 0)
        fprintf(stderr, "[memory's policy: not told] ");
    else
        CU_ASSERT_TRUE(apart ? policy > 0 && nodes == 1 : policy == 0);
    moe_step steps[2];
    for (uint32_t i = 0; i < 16; i++)
        ids[i] = (int32_t)(i % 4), weights[i] = 0.5f;
    for (uint32_t i = 0; i < 64; i++)
        x[i / 32][i % 32] = (float)i;
    for (uint32_t r = 0; r < 2; r++)
        steps[r] = (moe_step){.rank = r, .tokens = 8, .in = x[r], .out = y[r], .given_ids = ids, .given_weights = weights};
    CU_ASSERT_EQUAL(moe_session_run(session, steps, 2), MOE_OK);
    for (uint32_t r = 0; r < 2; r++) {
        small_reference(&s, 8, x[r], ids, weights, want);
        CU_ASSERT_EQUAL(memcmp(y[r], want, sizeof want), 0);
    }
    moe_session_destroy(session);
    moe_plan_close(plan);
}

static void test_kept(void)
{
    cpu_set_t given, one;
    if (!has_hwloc())
        return;
    CU_ASSERT_EQUAL_FATAL(sched_getaffinity(0, sizeof given, &given), 0);
    if (!CPU_ISSET(0, &given) || !CPU_ISSET(1, &given)) {
        fprintf(stderr, "[skipped: needs processors 0 and 1] ");
        return;
    }
    setenv("HWLOC_SYNTHETIC", "node:2 core:1 pu:1", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    run_bound("none", false);
    run_bound("node", true);
    run_bound("core", true);
    CPU_ZERO(&one); // what the process was not given is not used
    CPU_SET(1, &one);
    struct topology t;
    sched_setaffinity(0, sizeof one, &one);
    CU_ASSERT_TRUE(topology_read(&t));
    CU_ASSERT_EQUAL(machine_cores(), 1);
    sched_setaffinity(0, sizeof given, &given);
    CU_ASSERT_EQUAL(t.domain_count, 1);
    CU_ASSERT_EQUAL(t.core_count, 1);
    CU_ASSERT_TRUE(t.core_count == 1 && CPU_EQUAL(&t.cores[0], &one));
    topology_free(&t);
    unsetenv("HWLOC_SYNTHETIC");
    unsetenv("HWLOC_THISSYSTEM");
}

static void write_text(const char *folder, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fputs(text, file);
    fclose(file);
}

/// A container's share of time: the least that its groups, from its own up, leave.
static void test_quota(void)
{
    char root[] = "/tmp/moe-groups-XXXXXX", path[128], self[64];
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(root));
    snprintf(self, sizeof self, "%s/self", root);
    snprintf(path, sizeof path, "%s/pod", root);
    CU_ASSERT_EQUAL(mkdir(path, 0700), 0);
    strcat(path, "/job");
    CU_ASSERT_EQUAL(mkdir(path, 0700), 0);
    CU_ASSERT_EQUAL(quota_processors(self, root), 0); // no such file
    write_text(root, "self", "4:cpu:/elsewhere\n0::/pod/job\n");
    CU_ASSERT_EQUAL(quota_processors(self, root), 0);
    write_text(root, "pod/job/cpu.max", "max 100000\n");
    CU_ASSERT_EQUAL(quota_processors(self, root), 0);
    write_text(root, "pod/cpu.max", "250000 100000\n");
    CU_ASSERT_EQUAL(quota_processors(self, root), 2.5);
    write_text(root, "pod/job/cpu.max", "50000 100000\n");
    CU_ASSERT_EQUAL(quota_processors(self, root), 0.5);
    write_text(root, "self", "0::/\n");
    CU_ASSERT_EQUAL(quota_processors(self, root), 0);
    write_text(root, "cpu.max", "300000 100000\n"); // as a container sees its own
    CU_ASSERT_EQUAL(quota_processors(self, root), 3);
    snprintf(path, sizeof path, "rm -r %s", root);
    CU_ASSERT_EQUAL(system(path), 0);
}

void suite_placement(void)
{
    CU_pSuite suite = CU_add_suite("placement", NULL, NULL);
    CU_add_test(suite, "machines of every shape", test_shapes);
    CU_add_test(suite, "what hwloc describes", test_machines);
    CU_add_test(suite, "threads are kept there", test_kept);
    CU_add_test(suite, "a share of the time", test_quota);
}
