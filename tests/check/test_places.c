// Clusters of several axes and device kinds, and who owns which expert on them: tables of placements against an
// independent sharing-out, the order of axes, spare slots, routing groups, and what is refused.
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/check/module.h"

void suite_places(void);

struct checked {
    struct context context;
    struct program_text program;
    struct ir module;
    uint32_t pipeline;
    bool fine;
};

/// A pipeline of so many experts in `groups` routing groups over the given cluster and placement members.
static void check_places(struct checked *c, int experts, int groups, const char *cluster, const char *placement)
{
    static const char head[] = "import std.ops;\nimport std.hw { h100, a100 };\nimport std.schedules { serial };\n"
                               "dim tokens <= 64; dim hidden = 32; dim ffn = 32;\n";
    static const char layer[] =
        "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n"
        "    param w_router: f32[experts, hidden]; param w_gate_up: bf16[experts, 2 * ffn, hidden];\n"
        "    param w_down: bf16[experts, hidden, ffn];\n"
        "    stage route: r = topk(x, w_router, k: 1%s);\n    stage dispatch: xd = dispatch(x, r);\n"
        "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n    stage combine: y = combine(yd, r);\n    yield "
        "y;\n}\n";
    char text[8192], path[64] = "/tmp/moe_places_XXXXXX", grouped[64] = "", stages[2048];
    if (groups > 1)
        snprintf(grouped, sizeof grouped, ", groups: %d, group_k: 1, group_score: max", groups);
    snprintf(stages, sizeof stages, layer, grouped);
    snprintf(text, sizeof text,
             "%sdim experts = %d;\ndevice bare { sm = 4; }\n%scluster c {\n    %s\n}\nplacement p on c {\n    %s\n}\n"
             "pipeline main { layer = moe; cluster = c; placement = p; use serial; }\n",
             head, experts, stages, cluster, placement);
    int file = mkstemp(path);
    CU_ASSERT_FATAL(file >= 0);
    CU_ASSERT_EQUAL_FATAL(write(file, text, strlen(text)), (ssize_t)strlen(text));
    close(file);
    memset(c, 0, sizeof *c);
    context_init(&c->context);
    ir_init(&c->module, &module_ir);
    if (setjmp(c->context.fatal))
        CU_FAIL_FATAL("the checker ended in a fatal error");
    const struct check_options options = {.layer = -1};
    struct rows pipelines = {0};
    c->fine = load_program(&c->context, &c->program, path) &&
              check_program(&c->context, &c->program, &options, &c->module, &pipelines);
    c->pipeline = pipelines.count ? pipelines.first : NONE;
    unlink(path);
}

static void release(struct checked *c)
{
    ir_free(&c->module);
    context_free(&c->context);
}

static char *errors_of(const struct checked *c)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    diag_print_all(&c->context, DIAG_TEXT, false, out);
    fclose(out);
    return text;
}

static void expect_fine(const struct checked *c)
{
    CU_ASSERT_TRUE_FATAL(c->fine);
    char error[256] = "";
    CU_ASSERT_TRUE(module_check(&c->module, error, sizeof error));
}

static void expect_error(struct checked *c, const char *part)
{
    char *errors = errors_of(c);
    CU_ASSERT_FALSE(c->fine);
    CU_ASSERT_PTR_NOT_NULL(strstr(errors, part));
    if (!strstr(errors, part))
        printf("\nexpected %s, got\n%s", part, errors);
    free(errors);
    release(c);
}

static const struct mod_placement *placement_of(const struct checked *c)
{
    return ROW(&c->module, mod_placement, ROW(&c->module, mod_pipeline, c->pipeline)->placement);
}

static const struct mod_cluster *cluster_of(const struct checked *c)
{
    return ROW(&c->module, mod_cluster, ROW(&c->module, mod_pipeline, c->pipeline)->cluster);
}

/// Experts of each rank, counted from the owners; every expert exactly once.
static void count_owned(const struct checked *c, int experts, int *owned, int ranks)
{
    const struct mod_placement *p = placement_of(c);
    char *seen = calloc((size_t)experts, 1);
    memset(owned, 0, (size_t)ranks * sizeof *owned);
    CU_ASSERT_EQUAL_FATAL(p->experts, experts);
    CU_ASSERT_EQUAL_FATAL(p->owners.count, (uint32_t)experts);
    for (uint32_t i = 0; i < p->owners.count; i++) {
        const struct mod_owner *o = ROW(&c->module, mod_owner, p->owners.first + i);
        CU_ASSERT_FATAL((int)o->rank < ranks && (int)o->expert < experts);
        CU_ASSERT_FALSE(seen[o->expert]);
        seen[o->expert] = 1;
        owned[o->rank]++;
    }
    free(seen);
}

/// Largest remainders, in whole numbers: weight i is w[i], a share is total * w[i] / sum.
static void oracle(const int64_t *w, int count, int64_t total, int *shares)
{
    int64_t sum = 0, left = total;
    for (int i = 0; i < count; i++)
        sum += w[i];
    for (int i = 0; i < count; i++)
        left -= shares[i] = (int)(total * w[i] / sum);
    for (char *given = calloc((size_t)count, 1);; left--) {
        int best = -1;
        for (int i = 0; i < count; i++)
            if (!given[i] && (best < 0 || total * w[i] % sum > total * w[best] % sum))
                best = i;
        if (left <= 0) {
            free(given);
            return;
        }
        given[best] = 1;
        shares[best]++;
    }
}

static const int expert_counts[] = {1, 3, 6, 60, 128, 160, 256};
static const int grids[][2] = {{1, 4}, {2, 3}, {1, 8}, {6, 8}, {8, 8}};

static void make_cluster(char *text, size_t size, const int grid[2], const char *devices)
{
    snprintf(
        text, size,
        "%s axis node[%d]; axis gpu[%d];\n    link ib across node { bandwidth: 46GB/s, latency: 8us, rail: true };\n"
        "    link nvlink across gpu { bandwidth: 160GB/s, latency: 2us };",
        devices, grid[0], grid[1]);
}

static void test_even(void)
{
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++)
        for (size_t e = 0; e < sizeof expert_counts / sizeof *expert_counts; e++) {
            struct checked c;
            char cluster[512];
            int experts = expert_counts[e], ranks = grids[g][0] * grids[g][1], owned[64];
            make_cluster(cluster, sizeof cluster, grids[g], "device = h100;");
            check_places(&c, experts, 1, cluster, "place experts over node, gpu { balance: even };");
            expect_fine(&c);
            count_owned(&c, experts, owned, ranks);
            for (int r = 0; r < ranks; r++)
                CU_ASSERT_EQUAL(owned[r], experts / ranks + (r < experts % ranks));
            release(&c);
            // Without a balance: exactly where it divides.
            check_places(&c, experts, 1, cluster, "place experts over node, gpu;");
            CU_ASSERT_EQUAL(c.fine, experts % ranks == 0);
            release(&c);
        }
}

static void test_rate(void)
{
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++)
        for (size_t e = 0; e < sizeof expert_counts / sizeof *expert_counts; e++) {
            struct checked c;
            char cluster[512];
            int experts = expert_counts[e], ranks = grids[g][0] * grids[g][1], owned[64], wanted[64];
            int64_t weights[64]; // in 10 GFLOP/s: 989 at 65 %, 312 at 70 %
            make_cluster(cluster, sizeof cluster, grids[g], "device = a100; device h100 at gpu[1], gpu[2];");
            check_places(&c, experts, 1, cluster, "place experts over node, gpu { balance: rate };");
            expect_fine(&c);
            count_owned(&c, experts, owned, ranks);
            for (int r = 0; r < ranks; r++)
                weights[r] = r % grids[g][1] == 1 || r % grids[g][1] == 2 ? 64285 : 21840;
            oracle(weights, ranks, experts, wanted);
            CU_ASSERT_EQUAL(memcmp(owned, wanted, (size_t)ranks * sizeof *owned), 0);
            release(&c);
        }
}

static void test_room(void)
{
    static const int wanted[8] = {12, 12, 12, 12, 4, 4, 4, 4};
    struct checked c;
    char cluster[512];
    int owned[8];
    make_cluster(cluster, sizeof cluster, (const int[2]){2, 4}, "device h100 at node[0]; device a100 at node[1];");
    check_places(&c, 64, 1, cluster, "place experts over node, gpu { balance: rate };");
    expect_fine(&c);
    count_owned(&c, 64, owned, 8);
    CU_ASSERT_EQUAL(memcmp(owned, wanted, sizeof wanted), 0);
    const struct mod_cluster *row = cluster_of(&c);
    for (int64_t r = 0; r < 8; r++)
        CU_ASSERT_STRING_EQUAL(ir_text(&c.module, cluster_device(&c.module, row, r)->name), r < 4 ? "h100" : "a100");
    release(&c);
}

/// Messages cross the outermost axis in which their ends differ.
static void test_axes(void)
{
    struct checked c;
    check_places(&c, 24, 1,
                 "device = h100; axis rack[2]; axis node[3]; axis gpu[4];\n"
                 "link a across rack { bandwidth: 1GB/s, latency: 9us }; link b across node { bandwidth: 2GB/s, "
                 "latency: 3us };\n"
                 "link c across gpu { bandwidth: 9GB/s, latency: 1us };",
                 "place experts over rack, node, gpu;");
    expect_fine(&c);
    const struct mod_cluster *row = cluster_of(&c);
    for (int64_t a = 0; a < 24; a++)
        for (int64_t b = 0; b < 24; b++) {
            uint32_t axis = cluster_axis_between(&c.module, row, a, b);
            uint32_t wanted = a / 12 != b / 12 ? 0 : a / 4 != b / 4 ? 1 : a != b ? 2 : NONE;
            CU_ASSERT_EQUAL(axis, wanted == NONE ? NONE : row->axes.first + wanted);
        }
    release(&c);
}

static const struct mod_owner *owner_of(const struct checked *c, uint32_t expert)
{
    const struct mod_placement *p = placement_of(c);
    for (uint32_t i = 0; i < p->owners.count; i++) {
        const struct mod_owner *o = ROW(&c->module, mod_owner, p->owners.first + i);
        if (o->expert == expert && o->home == o->rank)
            return o;
    }
    return NULL;
}

/// The first axis of `over` is the slowest: `gpu, node` deals to the nodes in turn.
static void test_order_of_axes(void)
{
    static const char *const places[] = {"place experts over node, gpu;", "place experts over gpu, node;"};
    char cluster[512];
    make_cluster(cluster, sizeof cluster, (const int[2]){2, 4}, "device = h100;");
    for (uint32_t swapped = 0; swapped < 2; swapped++) {
        struct checked c;
        check_places(&c, 16, 1, cluster, places[swapped]);
        expect_fine(&c);
        for (uint32_t e = 0; e < 16; e++)
            CU_ASSERT_EQUAL(owner_of(&c, e)->rank, swapped ? e / 2 % 2 * 4 + e / 4 : e / 2);
        release(&c);
    }
}

static void test_spare(void)
{
    static const struct {
        int experts, spare, fine;
    } rows[] = {{256, 32, 1}, {256, 80, 1}, {256, 31, 0}, {256, 0, 0}, {240, 0, 1}, {1, 47, 1}, {240, 48, 1}};
    char cluster[512], placement[128];
    make_cluster(cluster, sizeof cluster, (const int[2]){6, 8}, "device = h100;");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct checked c;
        int owned[48], slots = (rows[i].experts + rows[i].spare) / 48;
        snprintf(placement, sizeof placement, "place experts over node, gpu; spare = %d;", rows[i].spare);
        check_places(&c, rows[i].experts, 1, cluster, placement);
        CU_ASSERT_EQUAL(c.fine, rows[i].fine);
        if (c.fine) {
            count_owned(&c, rows[i].experts, owned, 48);
            for (int r = 0; r < 48; r++)
                CU_ASSERT(owned[r] <= slots && owned[r] >= rows[i].experts / 48);
        }
        release(&c);
    }
}

/// Every group's experts lie in one node, also where an equal deal would cut a group.
static void test_groups(void)
{
    static const struct {
        int experts, groups, grid[2];
        const char *place;
    } rows[] = {
        {256, 8, {8, 8}, "place experts over node, gpu; groups = node;"},
        {256, 8, {8, 8}, "place experts over node, gpu; spare = 64; groups = node; replicate shared;"},
        {256, 8, {8, 8}, "place experts over gpu, node; groups = node;"},
        {256, 8, {6, 8}, "place experts over node, gpu { balance: even }; groups = node;"},
        {256, 8, {6, 8}, "place experts over node, gpu; spare = 128; groups = node;"},
        {60, 6, {4, 2}, "place experts over node, gpu { balance: rate }; groups = node;"},
        {160, 4, {8, 2}, "place experts over node, gpu { balance: even }; groups = node;"},
        {12, 4, {2, 3}, "place experts over node, gpu; groups = node;"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct checked c;
        char cluster[512];
        int owned[64], size = rows[i].experts / rows[i].groups;
        make_cluster(cluster, sizeof cluster, rows[i].grid, "device = h100; device a100 at node[0];");
        check_places(&c, rows[i].experts, rows[i].groups, cluster, rows[i].place);
        expect_fine(&c);
        count_owned(&c, rows[i].experts, owned, rows[i].grid[0] * rows[i].grid[1]);
        for (int e = 0; e < rows[i].experts; e++)
            CU_ASSERT_EQUAL(owner_of(&c, (uint32_t)e)->rank / (uint32_t)rows[i].grid[1],
                            owner_of(&c, (uint32_t)(e / size * size))->rank / (uint32_t)rows[i].grid[1]);
        release(&c);
    }
}

/// Every rank holds its own experts and copies of others, each once; the share that senders give its holders adds up to 1.
static void check_held(const struct checked *c, int64_t copies)
{
    const struct mod_placement *p = placement_of(c);
    int64_t ranks = cluster_of(c)->ranks;
    char *held = calloc((size_t)(ranks * p->experts), 1);
    struct nearest *near = calloc((size_t)p->experts, sizeof *near);
    double *shares = calloc(p->owners.count, sizeof *shares), *sums = calloc((size_t)p->experts, sizeof *sums);
    CU_ASSERT_EQUAL_FATAL(p->owners.count, p->experts + copies);
    for (uint32_t i = 0; i < p->owners.count; i++) {
        const struct mod_owner *o = ROW(&c->module, mod_owner, p->owners.first + i);
        CU_ASSERT_FALSE(held[o->rank * p->experts + o->expert]);
        held[o->rank * p->experts + o->expert] = 1;
        const struct mod_owner *home = owner_of(c, o->expert);
        CU_ASSERT(home->rank == o->home && home->place == o->place);
    }
    for (int64_t source = 0; source < ranks; source++) {
        copy_shares(&c->module, p, source, near, shares);
        memset(sums, 0, (size_t)p->experts * sizeof *sums);
        for (uint32_t i = 0; i < p->owners.count; i++) {
            const struct mod_owner *o = ROW(&c->module, mod_owner, p->owners.first + i);
            CU_ASSERT(o->rank != source || shares[i] == 1);
            sums[o->expert] += shares[i];
        }
        for (int64_t e = 0; e < p->experts; e++)
            CU_ASSERT_DOUBLE_EQUAL(sums[e], 1, 1e-12);
    }
    free(held);
    free(near);
    free(shares);
    free(sums);
}

static void test_copies(void)
{
    char cluster[512];
    struct checked c;
    make_cluster(cluster, sizeof cluster, (const int[2]){6, 8}, "device = h100;");
    // A copy for each node: at the same position in all of them.
    check_places(&c, 48, 1, cluster, "place experts over node, gpu; replicate experts { copies: 6 };");
    expect_fine(&c);
    check_held(&c, 5 * 48);
    for (uint32_t i = 0; i < placement_of(&c)->owners.count; i++) {
        const struct mod_owner *o = ROW(&c.module, mod_owner, placement_of(&c)->owners.first + i);
        CU_ASSERT_EQUAL(o->rank % 8, o->home % 8);
    }
    release(&c);
    // Experts 0 to 3 are owned by ranks 0 and 1; a slot each beside that, so their copies move on to the next free one.
    check_places(&c, 96, 1, cluster,
                 "place experts over node, gpu; spare = 48; replicate experts { only: [0, 1, 2, 3], copies: 2 };");
    expect_fine(&c);
    check_held(&c, 4);
    for (uint32_t i = 0, found = 0; i < placement_of(&c)->owners.count; i++) {
        const struct mod_owner *o = ROW(&c.module, mod_owner, placement_of(&c)->owners.first + i);
        if (o->rank != o->home) {
            CU_ASSERT_EQUAL(o->rank, 24 + found);
            found++;
        }
    }
    release(&c);
    check_places(&c, 60, 1, cluster, "place experts over node, gpu { balance: even }; replicate experts;");
    expect_fine(&c);
    check_held(&c, 47 * 60);
    release(&c);
}

/// A shared expert is whole on every rank, so that no rank's share can end inside a block of its scales.
static void b19_shared_beside_divided(void)
{
    struct checked c;
    char cluster[512];
    make_cluster(cluster, sizeof cluster, (const int[2]){1, 8}, "device = h100;");
    check_places(&c, 64, 1, cluster, "place experts over node, gpu;\n    place shared over gpu;");
    expect_error(&c, "error[E0501]: `shared` cannot be divided beside `experts`");
    check_places(&c, 64, 1, cluster, "place experts over node, gpu;\n    place shared over gpu;");
    expect_error(&c, "+     replicate shared;");
    check_places(&c, 64, 1, cluster, "place experts over node, gpu;\n    place experts over gpu;");
    expect_error(&c, "error[E0102]: the place of `experts` is defined twice");
}

static void test_refused(void)
{
    struct checked c;
    char cluster[512];
    make_cluster(cluster, sizeof cluster, (const int[2]){6, 8}, "device = h100;");
    check_places(&c, 48, 1, cluster, "place experts over gpu;");
    expect_error(&c, "+     place experts over node, gpu;");
    check_places(&c, 48, 1, cluster, "place experts over gpu;");
    expect_error(&c, "error[E0503]: experts are not divided over axis `node`");
    check_places(&c, 48, 1, cluster, "place experts over gpu;");
    expect_error(&c, "`replicate experts { copies: 6 };` beside it lets each `node` hold all of them");
    check_places(&c, 48, 1, cluster, "place experts over node, gpu; replicate experts { copies: 49 };");
    expect_error(&c, "error[E0505]: 49 copies of an expert on 48 ranks");
    check_places(&c, 48, 1, cluster, "place experts over node, gpu; spare = 48; replicate experts { copies: 3 };");
    expect_error(&c, "+     place experts over node, gpu; spare = 96;");
    check_places(&c, 48, 1, cluster, "place experts over node, gpu; spare = 96; replicate experts { copies: 3 };");
    expect_fine(&c);
    release(&c);
    check_places(&c, 96, 8, cluster, "place experts over node, gpu; groups = node;");
    expect_error(&c, "error[E0504]: 8 routing groups of 12 experts do not fit into 6 positions of `node`");
    check_places(&c, 96, 8, cluster, "place experts over node, gpu; groups = node;");
    expect_error(&c, "`spare = 48` gives every rank 3 slots");
    check_places(&c, 96, 8, cluster, "place experts over node, gpu; spare = 48; groups = node;");
    expect_fine(&c);
    release(&c);
    check_places(&c, 256, 1, cluster, "place experts over node, gpu; spare = 3;");
    expect_error(&c, "+     place experts over node, gpu; spare = 32;");
    make_cluster(cluster, sizeof cluster, (const int[2]){2, 2}, "device = h100; device bare at node[1];");
    check_places(&c, 8, 1, cluster, "place experts over node, gpu { balance: rate };");
    expect_error(&c, "error[E0107]: device `bare` gives no `peak`");
    make_cluster(cluster, sizeof cluster, (const int[2]){2, 2}, "device h100 at node[1];");
    check_places(&c, 8, 1, cluster, "place experts over node, gpu;");
    expect_error(&c, "error[E0107]: node[0] gpu[0] of cluster `c` has no device");
}

void suite_places(void)
{
    CU_pSuite suite = CU_add_suite("places", NULL, NULL);
    CU_add_test(suite, "B43 even shares on every grid", test_even);
    CU_add_test(suite, "shares by rate on every grid", test_rate);
    CU_add_test(suite, "two kinds of device", test_room);
    CU_add_test(suite, "the axis between two ranks", test_axes);
    CU_add_test(suite, "the order of axes", test_order_of_axes);
    CU_add_test(suite, "spare slots", test_spare);
    CU_add_test(suite, "copies of experts", test_copies);
    CU_add_test(suite, "routing groups", test_groups);
    CU_add_test(suite, "B19 a shared expert beside divided ones", b19_shared_beside_divided);
    CU_add_test(suite, "what is refused", test_refused);
}
