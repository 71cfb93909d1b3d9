// Rows in wire formats, end to end: what a layer's output loses, the bytes of slots on their way, formats by link axis,
// and that no schedule, capacity, wave, chunk, relay, device or thread count changes a byte of the result.
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/lower/program.h"
#include "runtime/exec/session.h"
#include "runtime/weights/safetensors.h"
#include "tests/codegen/fp8_reference.h"
#include "tests/end_to_end/harness.h"
#include "tests/end_to_end/reference.h"

enum { BOUND = 96, SEED = 5, MOST_RANKS = 8, FFN = 24, EXPERTS = 12, CHOICES = 3 };

static const char items[] =
    "format f128 = fp8_e4m3 { block: [1, 128], scale: f32 };\n"
    "format f64 = fp8_e4m3 { block: [1, 64], scale: f32 };\n"
    "format u128 = fp8_e4m3 { block: [1, 128], scale: ue8m0 };\n"
    "format u64 = fp8_e4m3 { block: [1, 64], scale: ue8m0 };\n"
    "schedule chunked(n: 1..4 = 2, c: 2..8 = 3) for (route, dispatch, expert, combine) {\n"
    "    split tokens into n as i; split combine into c as k;\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
    "    bind route, expert to comp; bind dispatch to tx; bind combine to rx;\n"
    "    pipelined i in 0..n { route[i+1]; dispatch[i+1] || expert[i]; combine[i, 0]; combine[i, 1]; combine[i, 2]; }\n"
    "}\n"
    "schedule all for (route, dispatch, expert, combine) {\n"
    "    split tokens into 2 as i; split experts into 2 as w; split combine into 3 as k { ratio: [2, 1, 2] };\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
    "    bind route, expert to comp; bind dispatch to tx; bind combine to rx;\n"
    "    for i in 0..2 { route[i]; for w in 0..2 { dispatch[i,w]; expert[i,w]; for k in 0..3 { combine[i,w,k]; } } }\n}\n"
    "schedule both(n: 1..8 = 2, g: 1..16 = 2) for (route, dispatch, expert, combine) {\n"
    "    split tokens into n as i; split experts into g as w;\n"
    "    stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];\n"
    "    bind route, expert to comp; bind dispatch to tx; bind combine to rx { sm: 2 };\n"
    "    for i in 0..n { route[i]; pipelined w in 0..g { dispatch[i,w+1] || expert[i,w] || combine[i,w-1]; } }\n}\n";

static const char line[] = "device = host; axis rank[4]; link shm across rank { bandwidth: 5GB/s, latency: 1us };";
static const char square[] = "device = host; axis node[2]; axis gpu[2];\n"
                             "    link ib across node { bandwidth: 1GB/s, latency: 20us, rail: true };\n"
                             "    link nv across gpu { bandwidth: 100GB/s, latency: 0us };";

static const char cube[] = "device = host; axis pod[2]; axis node[2]; axis gpu[2];\n"
                           "    link far across pod { bandwidth: 1GB/s, latency: 20us };\n"
                           "    link ib across node { bandwidth: 1GB/s, latency: 20us };\n"
                           "    link nv across gpu { bandwidth: 100GB/s, latency: 0us };";

struct setup {
    const char *cluster, *dtype, *dispatch, *combine; // options of the stages
    int hidden;
    uint32_t ranks;    // 0: the cluster's
    const char *level; // NULL: the best
};

static struct shape shape_of(const struct setup *s)
{
    return (struct shape){.hidden = s->hidden,
                          .ffn = FFN,
                          .experts = EXPERTS,
                          .choices = CHOICES,
                          .bound = BOUND,
                          .dtype = s->dtype,
                          .normalize = true};
}

static moe_plan *compile_setup(const struct setup *s, const char *schedule)
{
    struct shape shape = shape_of(s);
    struct routed_layer layer = {.shape = &shape,
                                 .dispatch = s->dispatch,
                                 .combine = s->combine,
                                 .items = items,
                                 .cluster = s->cluster,
                                 .place = s->cluster == line   ? NULL
                                          : s->cluster == cube ? "place experts over pod, node, gpu { balance: even };"
                                                               : "place experts over node, gpu { balance: even };"};
    struct subject subject = {
        .text = routed_layer_text(&layer), .schedule = schedule, .ranks = s->ranks, .layer = -1, .cpu_level = s->level};
    return subject_compile(&subject);
}

static const float *tokens_in(const struct setup *s)
{
    static float in[MOST_RANKS * BOUND * 512];
    gaussian(in, (size_t)(MOST_RANKS * BOUND * s->hidden), 1);
    round_to_dtype(s->dtype, in, (size_t)(MOST_RANKS * BOUND * s->hidden));
    return in;
}

static const int64_t counts[MOST_RANKS] = {BOUND, 3, 0, 71, 40, 1, BOUND, 8};

static struct outcome run_setup(const struct setup *s, const char *schedule, moe_options options)
{
    struct outcome o = {.status = MOE_INVALID};
    moe_plan *plan = compile_setup(s, schedule);
    if (!plan)
        return o;
    options.seed = SEED;
    options.poison = 1;
    options.threads = options.threads ? options.threads : 2;
    struct run run = {.in = tokens_in(s), .tokens = counts, .options = options, .steps = 2};
    o = run_plan_once(plan, &run);
    if (o.status != MOE_OK)
        fprintf(stderr, "%s (%s) (%s): %s\n", schedule, s->dispatch, s->combine, o.error);
    CU_ASSERT_EQUAL(o.status, MOE_OK);
    moe_plan_close(plan);
    return o;
}

// ------------------------------------------------------------------------------------------------------- what it loses

struct loss {
    double l2, cosine;
};

static struct loss difference_of(const float *got, const float *want, size_t count)
{
    double difference = 0, a = 0, b = 0, both = 0;
    for (size_t i = 0; i < count; i++) {
        double x = (double)got[i], y = (double)want[i];
        difference += (x - y) * (x - y), a += x * x, b += y * y, both += x * y;
    }
    return (struct loss){sqrt(difference / b), 1 - both / sqrt(a * b)};
}

static struct loss layer_loss(const struct setup *s)
{
    struct outcome o = run_setup(s, "serial", (moe_options){0});
    struct shape shape = shape_of(s);
    size_t count = (size_t)(o.tokens * s->hidden);
    float *want = malloc((count + 1) * sizeof *want);
    reference_layer(&shape, SEED, tokens_in(s), o.tokens, o.ids, o.weights, want);
    struct loss loss = difference_of(o.out, want, count);
    free(want);
    outcome_free(&o);
    return loss;
}

static void test_loss(void)
{
    static const struct {
        const char *cluster, *dispatch, *combine;
        double l2, cosine;
    } cases[] = {{line, "", "", 0.005, 1e-5},
                 {line, "wire: f128", "", 0.04, 0.0008},
                 {line, "wire: u64", "", 0.04, 0.0008},
                 {line, "", "wire: f64", 0.04, 0.0008},
                 {line, "wire: f128", "wire: f128", 0.05, 0.0012},
                 {line, "wire: u128", "wire: u128", 0.05, 0.0012},
                 {cube, "via: node, capacity: 0.3x", "wire: f128", 0.04, 0.0008},
                 {square, "wire: u64, via: node", "wire: { node: f64 }", 0.05, 0.0012}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct setup s = {cases[i].cluster, "bf16", cases[i].dispatch, cases[i].combine, 512, // few own rows
                          cases[i].cluster == line ? 8 : 0, NULL};
        struct loss loss = layer_loss(&s);
        fprintf(stderr, "[%s; %s: %.4f, %.6f] ", s.dispatch, s.combine, loss.l2, loss.cosine);
        CU_ASSERT(loss.l2 <= cases[i].l2);
        CU_ASSERT(loss.cosine <= cases[i].cosine);
        CU_ASSERT(i == 0 || loss.l2 > 0.005); // rows did travel so
    }
}

/// What a session says that rows lost: nothing where it is not asked, or no row is packed.
static void test_measured(void)
{
    struct setup s = {square, "bf16", "wire: { node: f128, gpu: bf16 }", "wire: f64", 512, 0, NULL};
    moe_plan *plan = compile_setup(&s, "ladder(n: 2)");
    moe_session *session = NULL;
    moe_plan_info info;
    CU_ASSERT_FATAL(plan && moe_session_create(plan, &(moe_options){.seed = SEED, .threads = 2}, &session) == MOE_OK);
    moe_plan_describe(plan, &info);
    CU_ASSERT_TRUE(info.quantised);
    CU_ASSERT_EQUAL(moe_session_load(session, "random"), MOE_OK);
    uint16_t *x = malloc(4 * BOUND * 512 * sizeof *x), *y = malloc(4 * BOUND * 512 * sizeof *y);
    elements_from_f32("BF16", tokens_in(&s), x, 4 * BOUND * 512);
    moe_step steps[4];
    for (uint32_t r = 0; r < 4; r++)
        steps[r] =
            (moe_step){.rank = r, .tokens = BOUND, .in = x + r * BOUND * 512, .out = y + (size_t)r * BOUND * 512};
    moe_stats stats[2];
    for (int on = 0; on < 2; on++) {
        CU_ASSERT_EQUAL(moe_session_measure_loss(session, on), MOE_OK);
        CU_ASSERT_EQUAL(moe_session_run(session, steps, 4), MOE_OK);
        CU_ASSERT_EQUAL(moe_session_stats(session, &stats[on]), MOE_OK);
    }
    CU_ASSERT_EQUAL(stats[0].dispatch_loss.rows, 0);
    const moe_wire_loss *dispatch = &stats[1].dispatch_loss, *combine = &stats[1].combine_loss;
    CU_ASSERT(dispatch->rows > 100 && dispatch->rows < combine->rows); // those between nodes; all
    CU_ASSERT(dispatch->relative_l2 > 0.02 && dispatch->relative_l2 <= 0.027);
    CU_ASSERT(dispatch->cosine > 0.0002 && dispatch->cosine <= 0.00035);
    CU_ASSERT(combine->relative_l2 > 0.02 && combine->relative_l2 <= 0.027 && combine->cosine <= 0.00035);
    moe_session_destroy(session);
    moe_plan_close(plan);
    free(x);
    free(y);
}

// --------------------------------------------------------------------------------------------------------- neutrality

static void expect_same(const struct setup *s, const struct outcome *first, const char *schedule, moe_options options)
{
    struct outcome o = run_setup(s, schedule, options);
    bool same = outcome_equal(first, &o);
    CU_ASSERT(same);
    if (!same)
        fprintf(stderr, "%s of (%s) (%s), hidden %d, %u ranks: other bytes\n", schedule, s->dispatch, s->combine,
                s->hidden, s->ranks);
    outcome_free(&o);
}

/// Against `serial`, one of the ways to run it otherwise, by number; with few slots, so that rows go in rounds, in some.
static void check_neutral(const struct setup *s, size_t number)
{
    static const struct {
        const char *schedule;
        bool tight;
        moe_options options;
    } ways[] = {{"ladder(n: 3)", false, {.threads = 3}},
                {"chunked", true, {.device = "sim"}},
                {"ladder(n: 2)", true, {0}},
                {"chunked(n: 1)", false, {0}}};
    char few[128];
    snprintf(few, sizeof few, "%s%scapacity: 0.2x, pool: 0.1x", s->dispatch, *s->dispatch ? ", " : "");
    struct setup tight = *s;
    tight.dispatch = few;
    struct outcome first = run_setup(s, "serial", (moe_options){.threads = 1});
    for (size_t i = 0; i < 2; i++) {
        size_t way = (number + i) % (sizeof ways / sizeof *ways);
        expect_same(ways[way].tight ? &tight : s, &first, ways[way].schedule, ways[way].options);
    }
    outcome_free(&first);
    first = run_setup(s, "waves(g: 2)", (moe_options){.device = "sim"});
    expect_same(number % 2 ? s : &tight, &first, number % 3 ? "both(n: 3)" : "all", (moe_options){0});
    outcome_free(&first);
}

static void test_neutral(void)
{
    static const struct setup setups[] = {
        {line, "bf16", "wire: f128", "wire: f128", 72, 0, "v2"},
        {line, "f32", "wire: u64", "wire: bf16", 200, 3, "v2"},
        {line, "f16", "wire: bf16", "wire: u128", 72, 5, "v2"},
        {line, "bf16", "wire: f32", "wire: f64", 64, 1, "v2"},
        {square, "bf16", "wire: { node: f128, gpu: bf16 }", "wire: { node: f128, gpu: bf16 }", 136, 0, "v2"},
        {square, "f32", "wire: { node: u64, gpu: f16 }", "wire: { gpu: f128 }", 72, 0, "v2"},
        {line, "bf16", "wire: u128", "wire: f64", 136, 8, "v2"},
        {square, "bf16", "wire: f128, via: node", "", 72, 0, "v2"},
        {square, "bf16", "wire: { node: u64, gpu: f128 }, via: node", "wire: { node: f128 }", 200, 0, "v2"},
        {square, "bf16", "via: node", "wire: f64", 136, 0, "v2"},
        {square, "f32", "wire: { node: u64 }, via: node", "wire: { node: u128, gpu: bf16 }", 72, 0, "v2"},
        {square, "f16", "via: node", "wire: { gpu: u64 }", 72, 0, "v2"},
        {cube, "bf16", "wire: f128, via: node", "wire: { pod: u64, node: f128 }", 72, 0, "v2"}};
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++)
        check_neutral(&setups[i], i);
}

// ------------------------------------------------------------------------------------------------- bytes on their way

enum { MOST_RECORDS = 2048, RECORD = 3072 };

/// What every rank sent to every other, in order: data without the meta. One thread at a time: the `sim` device.
static struct capture {
    struct record {
        uint32_t from, to, dtype, block, scale;
        bool combine;
        int64_t bytes;
        uint8_t data[RECORD];
    } records[MOST_RECORDS];
    size_t count;
} captured;

static enum stepped spy_send(struct stream *stream, uint32_t exchange)
{
    const struct moe_session *session = stream->rank->session;
    const struct ir *ir = session->ir;
    const struct plan_exchange *e = ROW(ir, plan_exchange, exchange);
    uint32_t me = stream->rank->number;
    for (uint32_t peer = 0; peer < session->info->ranks && !e->pool; peer++) {
        if (peer == me)
            continue;
        const struct exchange_state *state = &stream->rank->exchanges[exchange];
        bool combine = e->kind == exchange_kind_combine;
        const char *slot =
            (const char *)stream->rank->bases[e->send] + (combine ? state->target_offset : state->source_offset)[peer];
        const struct plan_wire *wire = slots_wire(ir, e, me, peer);
        for (uint32_t i = 0; i < ((const struct moe_message *)(const void *)slot)->rows; i++) {
            CU_ASSERT_FATAL(captured.count < MOST_RECORDS && wire->data_bytes <= RECORD);
            struct record *r = &captured.records[captured.count++];
            *r = (struct record){me, peer, wire->dtype, wire->block, wire->scale, combine, wire->data_bytes, {0}};
            memcpy(r->data, slot + e->header_bytes + i * wire->row_bytes, (size_t)wire->data_bytes);
        }
    }
    return transport_local.send(stream, exchange);
}

static void capture(const struct setup *s, const float *in)
{
    static struct transport_ops spy;
    moe_plan *plan = compile_setup(s, "serial");
    moe_session *session = NULL;
    moe_options options = {.device = "sim", .seed = SEED, .poison = 1};
    CU_ASSERT_FATAL(plan && moe_session_create(plan, &options, &session) == MOE_OK);
    spy = transport_local;
    spy.send = spy_send;
    session->transport = &spy;
    captured.count = 0;
    uint32_t ranks = session->info->ranks;
    size_t bytes = strcmp(s->dtype, "f32") ? 2 : 4, rows = (size_t)ranks * BOUND;
    char *x = calloc(rows * (size_t)s->hidden, bytes), *y = calloc(rows * (size_t)s->hidden, bytes);
    elements_from_f32(bytes == 4 ? "F32" : "BF16", in, x, rows * (size_t)s->hidden);
    moe_step steps[MOST_RANKS];
    for (uint32_t r = 0; r < ranks; r++) {
        size_t at = r * BOUND * (size_t)s->hidden * bytes;
        steps[r] = (moe_step){.rank = r, .tokens = BOUND, .in = x + at, .out = y + at};
    }
    CU_ASSERT_EQUAL(moe_session_load(session, "random"), MOE_OK);
    CU_ASSERT_EQUAL(moe_session_run(session, steps, ranks), MOE_OK);
    moe_session_destroy(session);
    moe_plan_close(plan);
    free(x);
    free(y);
}

/// Rows of every sort: ordinary, zero, with NaN and infinities in one block, tiny, with one huge element.
static float *odd_rows(const struct setup *s, uint32_t ranks)
{
    size_t count = ranks * (size_t)BOUND * (size_t)s->hidden, width = (size_t)s->hidden;
    float *in = malloc(count * sizeof *in);
    gaussian(in, count, 9);
    for (size_t t = 0; t < ranks * (size_t)BOUND; t++)
        for (size_t i = 0; i < width && t % 3 == 0; i++) {
            float *x = &in[t * width + i];
            size_t kind = t / 3 % 5;
            *x = kind == 0 ? 0 : kind == 1 && i == 7 ? NAN : kind == 2 && i == width - 1 ? -INFINITY : *x;
            *x = kind == 3 ? *x * 1e-6f : kind == 4 && i == 70 ? 1e4f : *x;
        }
    round_to_dtype(s->dtype, in, count);
    return in;
}

static bool is_packed(const struct record *r, const float *values, int64_t width)
{
    uint8_t want[RECORD];
    if (r->dtype != dtype_fp8_e4m3)
        return false;
    int64_t bytes = fp8_pack(values, width, r->block, r->scale == scale_type_ue8m0, want);
    return !memcmp(r->data, want, (size_t)bytes);
}

/// Every record of a dispatch is a token of its sender, packed as plain C packs it; tokens come in their order.
static void test_dispatch_bytes(void)
{
    static const struct setup setups[] = {
        {square, "bf16", "wire: { node: f128, gpu: u64 }, capacity: 8x", "", 200, 0, NULL},
        {square, "f32", "wire: { node: u128, gpu: f64 }, capacity: 8x", "", 72, 0, "v2"},
        {square, "bf16", "wire: f128, capacity: 8x", "", 136, 0, "v3"}};
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        const struct setup *s = &setups[i];
        float *in = odd_rows(s, 4);
        size_t token[MOST_RANKS][MOST_RANKS] = {{0}}, found = 0, dispatched = 0;
        capture(s, in);
        for (size_t r = 0; r < captured.count; r++) {
            const struct record *record = &captured.records[r];
            if (record->combine)
                continue;
            size_t *t = &token[record->from][record->to];
            while (*t < BOUND &&
                   !is_packed(record, in + (record->from * (size_t)BOUND + *t) * (size_t)s->hidden, s->hidden))
                ++*t;
            found += (*t)++ < BOUND;
            dispatched++;
        }
        CU_ASSERT(dispatched > 400);
        CU_ASSERT_EQUAL(found, dispatched);
        free(in);
    }
}

/// B20 of tests/data/known_faults.json: 2880 elements are 22 blocks and a half. 23 scales a row, and nothing is read past
/// its end, where a much larger number lies.
static void test_half_block(void)
{
    struct setup s = {line, "bf16", "wire: f128, capacity: 8x", "wire: f64", 2880, 2, "v3"};
    size_t width = 2880, found = 0, dispatched = 0;
    float *in = malloc(2 * BOUND * width * sizeof *in);
    gaussian(in, 2 * BOUND * width, 20);
    for (size_t t = 1; t < 2 * BOUND; t += 2)
        in[t * width] = 4096;
    round_to_dtype("bf16", in, 2 * BOUND * width);
    capture(&s, in);
    for (size_t r = 0, t = 0; r < captured.count; r++) {
        const struct record *record = &captured.records[r];
        if (record->combine)
            continue;
        CU_ASSERT_EQUAL(record->bytes, 2880 + 23 * 4);
        for (t = dispatched && record->from == captured.records[r - 1].from ? t : 0; t < BOUND; t++)
            if (is_packed(record, in + (record->from * (size_t)BOUND + t) * width, 2880))
                break;
        found += t++ < BOUND;
        dispatched++;
    }
    CU_ASSERT(dispatched > 100);
    CU_ASSERT_EQUAL(found, dispatched);
    free(in);
}

/// A reply is what the layer's own type would have carried, packed.
static void test_reply_bytes(void)
{
    static struct capture plain;
    struct setup s = {square, "bf16", "wire: f128, capacity: 8x", "", 200, 0, NULL};
    float *in = odd_rows(&s, 4), values[200];
    capture(&s, in);
    plain = captured;
    s.combine = "wire: { node: f128, gpu: u64 }";
    capture(&s, in);
    CU_ASSERT_EQUAL_FATAL(captured.count, plain.count);
    size_t next[MOST_RANKS][MOST_RANKS] = {{0}}, right = 0, replies = 0;
    for (size_t r = 0; r < captured.count; r++) {
        const struct record *reply = &captured.records[r];
        if (!reply->combine)
            continue;
        size_t *p = &next[reply->from][reply->to];
        while (*p < plain.count && (!plain.records[*p].combine || plain.records[*p].from != reply->from ||
                                    plain.records[*p].to != reply->to))
            ++*p;
        CU_ASSERT_FATAL(*p < plain.count);
        elements_to_f32("BF16", plain.records[(*p)++].data, values, 200);
        right += is_packed(reply, values, 200);
        replies++;
    }
    CU_ASSERT(replies > 400);
    CU_ASSERT_EQUAL(right, replies);
    free(in);
}

/// What relays send home, as they packed it: in `sums` for each source, and what it was made of. Where it lies in the
/// replies, `sum_rows` has left the sum.
static size_t relayed_sums, relayed_right;

static void see_sum(const struct relayed_row *row, void *user)
{
    const struct stream *stream = ((const struct stream *const *)user)[0];
    const struct plan_exchange *e = ((const struct plan_exchange *const *)user)[1];
    const struct ir *ir = stream->rank->session->ir;
    uint32_t me = stream->rank->number, source = *((const uint32_t *const *)user)[2], ranks = stream->rank->session->info->ranks;
    const struct plan_wire *wire = slots_wire(ir, e, me, source);
    const char *sums = (const char *)stream->rank->bases[e->sums] + slots_relay_index(e, me, source) * slots_relay_slot_bytes(ir, e, me);
    const char *reply = (const char *)stream->rank->bases[e->relay] +
                        slots_gather_offset(ir, e, me, me / e->node * e->node + row->position, source, ranks) + e->header_bytes +
                        row->answer * slots_handed_bytes(ir, e);
    float values[200];
    if (!row->first)
        return;
    struct record r = {me, source, wire->dtype, wire->block, wire->scale, true, wire->data_bytes, {0}};
    memcpy(r.data, sums + e->header_bytes + row->number * slots_largest_record(ir, e), (size_t)wire->data_bytes);
    elements_to_f32("BF16", reply, values, 200);
    relayed_right += is_packed(&r, values, 200);
    relayed_sums++;
}

static enum stepped spy_forward(struct stream *stream, uint32_t exchange)
{
    const struct plan_exchange *e = ROW(stream->rank->session->ir, plan_exchange, exchange);
    uint32_t me = stream->rank->number;
    for (uint32_t s = me % e->node; e->kind == exchange_kind_combine && s < stream->rank->session->info->ranks; s += e->node) {
        const void *user[] = {stream, e, &s};
        if (s != me)
            relayed_rows(stream->rank, exchange, s, see_sum, user);
    }
    return transport_local.forward(stream, exchange);
}

static void test_relayed_bytes(void)
{
    static struct transport_ops spy;
    struct setup s = {square, "bf16", "via: node, capacity: 0.5x", "wire: { node: f128 }", 200, 0, NULL};
    moe_plan *plan = compile_setup(&s, "serial");
    moe_session *session = NULL;
    moe_options options = {.device = "sim", .seed = SEED, .poison = 1};
    CU_ASSERT_FATAL(plan && moe_session_create(plan, &options, &session) == MOE_OK);
    spy = transport_local;
    spy.forward = spy_forward;
    session->transport = &spy;
    float *in = odd_rows(&s, 4);
    uint16_t *x = malloc(4 * BOUND * 200 * sizeof *x), *y = malloc(4 * BOUND * 200 * sizeof *y);
    elements_from_f32("BF16", in, x, 4 * BOUND * 200);
    moe_step steps[4];
    for (uint32_t r = 0; r < 4; r++)
        steps[r] = (moe_step){.rank = r, .tokens = BOUND, .in = x + r * BOUND * 200, .out = y + (size_t)r * BOUND * 200};
    CU_ASSERT_EQUAL(moe_session_load(session, "random"), MOE_OK);
    CU_ASSERT_EQUAL(moe_session_measure_loss(session, true), MOE_OK);
    CU_ASSERT_EQUAL(moe_session_run(session, steps, 4), MOE_OK);
    moe_stats stats;
    CU_ASSERT_EQUAL(moe_session_stats(session, &stats), MOE_OK);
    CU_ASSERT(stats.rounds > 0 && relayed_sums > 50);
    CU_ASSERT_EQUAL(relayed_right, relayed_sums);
    CU_ASSERT(stats.combine_loss.rows > (int64_t)relayed_sums); // also those of replies that came in rounds
    moe_session_destroy(session);
    moe_plan_close(plan);
    free(in);
    free(x);
    free(y);
}

// --------------------------------------------------------------------------------------------------- what is proven

static bool is_verified(const struct ir *plan)
{
    struct context context;
    char error[512];
    context_init(&context);
    bool good = program_verify(&context, plan, 0, error, sizeof error);
    context_free(&context);
    return good;
}

static bool is_launched(const struct ir *plan, uint32_t kernel)
{
    for (uint32_t i = 0; i < COUNT(plan, plan_instr); i++)
        if (ROW(plan, plan_instr, i)->op == opcode_launch && ROW(plan, plan_instr, i)->kernel == kernel)
            return true;
    return false;
}

/// Without any one of the launches that add up or convert rows the plan is refused.
static void refuse_unpacked(struct ir *ir)
{
    for (uint32_t i = 0; i < COUNT(ir, plan_instr); i++) {
        struct plan_instr *in = ROW(ir, plan_instr, i);
        uint32_t role = in->op == opcode_launch ? ROW(ir, plan_kernel, in->kernel)->role : kernel_role_words_count;
        if (role != kernel_role_sum_rows && role != kernel_role_copy_rows)
            continue;
        in->op = opcode_count;
        bool refused = !is_verified(ir);
        CU_ASSERT_TRUE(refused);
        if (!refused)
            fprintf(stderr, "without %s, instruction %u\n", ir_text(ir, in->label), i);
        in->op = opcode_launch;
    }
}

/// A conversion of another format, or by another table, is refused: rows would travel unpacked or be read as others.
static void test_verified(void)
{
    static const struct setup setups[] = {
        {square, "bf16", "wire: { node: f128, gpu: u64 }", "wire: { node: f64, gpu: bf16 }", 136, 0, "v2"},
        {line, "f32", "wire: f128", "wire: u64", 72, 0, "v2"},
        {square, "bf16", "via: node, capacity: 0.3x", "wire: { node: f64, gpu: u128 }", 136, 0, "v2"}};
    static const char *const schedules_tried[] = {"serial", "ladder(n: 2)", "waves(g: 2)"};
    unsigned tried = 0;
    for (size_t i = 0; i < 9; i++) {
        const struct setup s = setups[i / 3];
        moe_plan *plan = compile_setup(&s, schedules_tried[i % 3]);
        CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
        struct ir *ir = &plan->plan.ir;
        char error[256];
        CU_ASSERT_TRUE(is_verified(ir));
        for (uint32_t k = 0; k < COUNT(ir, plan_kernel); k++) {
            struct plan_kernel *kernel = ROW(ir, plan_kernel, k), saved = *kernel;
            bool coded = kernel->n[1] == dtype_fp8_e4m3 || kernel->n[2] == dtype_fp8_e4m3;
            if (!is_launched(ir, k))
                continue;
            if (kernel->role == kernel_role_merge) {
                kernel->n[5] ^= INT64_C(64) << 16;
                CU_ASSERT_FALSE(is_verified(ir));
                CU_ASSERT_FALSE(plan_validate(ir, 1 << 20, error, sizeof error));
            }
            *kernel = saved;
            for (int field = 2; field <= 5 && kernel->role == kernel_role_copy_rows; field++) {
                *kernel = saved;
                kernel->n[field] += field == 3 ? 64 : 1;
                bool side = field != 2 || saved.n[2] == dtype_fp8_e4m3; // the other side is no format
                if ((field != 5 && !coded) || !side)
                    continue;
                bool refused = !is_verified(ir);
                CU_ASSERT_TRUE(refused);
                if (!refused)
                    fprintf(stderr, "%s of (%s): constant %d of kernel %u\n", schedules_tried[i % 3], s.dispatch, field,
                            k);
                tried++;
                *kernel = saved;
            }
            *kernel = saved;
        }
        CU_ASSERT_TRUE(is_verified(ir));
        refuse_unpacked(ir);
        moe_plan_close(plan);
    }
    CU_ASSERT(tried > 50);
}

void suite_wire(void);
void suite_wire(void)
{
    CU_pSuite suite = CU_add_suite("wire", NULL, NULL);
    CU_add_test(suite, "what a layer's output loses", test_loss);
    CU_add_test(suite, "bytes of dispatched rows", test_dispatch_bytes);
    CU_add_test(suite, "B20 half a block", test_half_block);
    CU_add_test(suite, "bytes of replies", test_reply_bytes);
    CU_add_test(suite, "bytes of sums through relays", test_relayed_bytes);
    CU_add_test(suite, "a step measures what its rows lose", test_measured);
    CU_add_test(suite, "the verifier follows formats", test_verified);
    CU_add_test(suite, "schedules, capacity, waves, chunks, devices: the same bytes", test_neutral);
}
