// The schedules that test_schedule.c elaborates, with what should come of them. Each text begins its file, so that lines
// count from the schedule; a common layer, placement and pipeline follow.
#ifndef MOECC_SCHEDULE_TEXTS_H
#define MOECC_SCHEDULE_TEXTS_H

#include <stddef.h>
#include <stdint.h>

#define PRELUDE                                                                                \
    "\nimport std.ops;\nimport std.hw { laptop };\nimport std.schedules { serial, ladder };\n" \
    "dim tokens <= 2048;\ndim hidden = 64;\ndim ffn = 128;\ndim experts = 8;\n"
#define PARAMS                                                       \
    "layer moe(x: bf16[tokens, hidden]) -> bf16[tokens, hidden] {\n" \
    "    param w_router: f32[experts, hidden];\n"                    \
    "    param w_gate_up: bf16[experts, 2 * ffn, hidden];\n"         \
    "    param w_down: bf16[experts, hidden, ffn];\n"
#define STAGES                                        \
    "    stage route: r = topk(x, w_router, k: 2);\n" \
    "    stage dispatch: xd = dispatch(x, r);\n"      \
    "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n"
#define LAYER PARAMS STAGES "    stage combine: y = combine(yd, r);\n    yield y;\n}\n"
#define SHARED_LAYER                                                                                          \
    PARAMS "    param s_gate_up: bf16[1, 2 * ffn, hidden];\n    param s_down: bf16[1, hidden, ffn];\n" STAGES \
           "    stage combine: yr = combine(yd, r);\n"                                                        \
           "    stage shared: ys = swiglu(x, s_gate_up, s_down);\n"                                           \
           "    stage sum: y = add(yr, ys);\n    yield y;\n}\n"
#define PIPELINE_BEFORE_USE                                             \
    "placement two_each on laptop {\n    place experts over rank;\n}\n" \
    "pipeline test {\n    layer = moe;\n    cluster = laptop;\n    placement = two_each;\n    target = cpu;\n    "

#define STREAMS \
    " stream comp uses sm; stream tx uses net_out, net_in, copy[0]; stream rx uses net_out, net_in, copy[1];"
#define BINDS " bind route, expert to comp; bind dispatch to tx; bind combine to rx;"
/// Line 1; the body begins in line 2, column 1.
#define SPLIT(n) "schedule s for moe { split tokens into " #n " as i;" STREAMS BINDS "\n"
#define WAVES(g) "schedule s for moe { split experts into " #g " as w;" STREAMS BINDS "\n"
#define BOTH(n, g) \
    "schedule s for moe { split tokens into " #n " as i; split experts into " #g " as w;" STREAMS BINDS "\n"
#define WHOLE "schedule s for moe {" STREAMS BINDS "\n"

static const char SHARED_GRAPH[] = "route.whole: x -> r 1024 0\n"
                                   "dispatch.pack: x r -> dispatch.packed 0 178.286\n"
                                   "dispatch.send: dispatch.packed -> dispatch.sent 0 178.286\n"
                                   "dispatch.recv: dispatch.sent -> xd 0 178.286\n"
                                   "expert.whole: xd x dispatch.packed -> yd 98304 0\n"
                                   "combine.send: yd -> combine.sent 0 178.286\n"
                                   "combine.recv: combine.sent -> combine.replies 0 178.286\n"
                                   "combine.merge: combine.replies yd dispatch.packed r -> yr 0 356.571\n"
                                   "shared.whole: x -> ys 49152 0\n"
                                   "sum.whole: yr ys -> y 0 384\n";

struct stream_case {
    const char *text, *layer, *use;
    uint32_t layers;
    const char *streams;
};

static const struct stream_case stream_cases[] = {
    // Rows are packed by waves after their route; the merges of all waves stand where the last one's reader would be.
    {WAVES(3) "route; pipelined w in 0..3 { dispatch[w+1] || expert[w] || combine[w-1]; } }\n", NULL, "use s; }\n", 1,
     "comp: route dispatch.pack[0] dispatch.pack[1] dispatch.pack[2] expert[0] expert[1] expert[2] combine.merge[0]"
     " combine.merge[1] combine.merge[2]\n"
     "tx: dispatch.send[0] dispatch.recv[0] dispatch.send[1] dispatch.recv[1] dispatch.send[2] dispatch.recv[2]\n"
     "rx: combine.send[0] combine.recv[0] combine.send[1] combine.recv[1] combine.send[2] combine.recv[2]\n"},
    {BOTH(2, 2) "for i in 0..2 { route[i]; } for i in 0..2 { for w in 0..2 { dispatch[i,w]; expert[i,w]; combine[i,w]; }"
                " } }\n",
     NULL, "use s; }\n", 1,
     "comp: route[0] dispatch.pack[0,0] dispatch.pack[0,1] route[1] dispatch.pack[1,0] dispatch.pack[1,1] expert[0,0]"
     " expert[0,1] expert[1,0] expert[1,1] combine.merge[0,0] combine.merge[0,1] combine.merge[1,0]"
     " combine.merge[1,1]\n"
     "tx: dispatch.send[0,0] dispatch.recv[0,0] dispatch.send[0,1] dispatch.recv[0,1] dispatch.send[1,0]"
     " dispatch.recv[1,0] dispatch.send[1,1] dispatch.recv[1,1]\n"
     "rx: combine.send[0,0] combine.recv[0,0] combine.send[0,1] combine.recv[0,1] combine.send[1,0]"
     " combine.recv[1,0] combine.send[1,1] combine.recv[1,1]\n"},
    {"", NULL, "use serial; }\n", 1,
     "main: route dispatch.pack dispatch.send dispatch.recv expert combine.send combine.recv combine.merge\n"},
    {"", NULL, "use serial; }\n", 3,
     "main: route dispatch.pack dispatch.send dispatch.recv expert combine.send combine.recv combine.merge"
     " L1.route L1.dispatch.pack L1.dispatch.send L1.dispatch.recv L1.expert L1.combine.send L1.combine.recv"
     " L1.combine.merge"
     " L2.route L2.dispatch.pack L2.dispatch.send L2.dispatch.recv L2.expert L2.combine.send L2.combine.recv"
     " L2.combine.merge\n"},
    {"", NULL, "use ladder(n: 2); }\n", 1,
     "comp: route[0] dispatch.pack[0] route[1] dispatch.pack[1] expert[0] expert[1] combine.merge[0] combine.merge[1]\n"
     "tx: dispatch.send[0] dispatch.recv[0] dispatch.send[1] dispatch.recv[1]\n"
     "rx: combine.send[0] combine.recv[0] combine.send[1] combine.recv[1]\n"},
    {"", NULL, "use ladder(n: 2); }\n", 3,
     "comp: route[0] dispatch.pack[0] route[1] dispatch.pack[1] expert[0] expert[1]"
     " combine.merge[0] L1.route[0] L1.dispatch.pack[0] combine.merge[1] L1.route[1] L1.dispatch.pack[1]"
     " L1.expert[0] L1.expert[1]"
     " L1.combine.merge[0] L2.route[0] L2.dispatch.pack[0] L1.combine.merge[1] L2.route[1] L2.dispatch.pack[1]"
     " L2.expert[0] L2.expert[1] L2.combine.merge[0] L2.combine.merge[1]\n"
     "tx: dispatch.send[0] dispatch.recv[0] dispatch.send[1] dispatch.recv[1]"
     " L1.dispatch.send[0] L1.dispatch.recv[0] L1.dispatch.send[1] L1.dispatch.recv[1]"
     " L2.dispatch.send[0] L2.dispatch.recv[0] L2.dispatch.send[1] L2.dispatch.recv[1]\n"
     "rx: combine.send[0] combine.recv[0] combine.send[1] combine.recv[1]"
     " L1.combine.send[0] L1.combine.recv[0] L1.combine.send[1] L1.combine.recv[1]"
     " L2.combine.send[0] L2.combine.recv[0] L2.combine.send[1] L2.combine.recv[1]\n"},
    {"", NULL, "use ladder(n: 3); }\n", 1,
     "comp: route[0] dispatch.pack[0] route[1] dispatch.pack[1] route[2] dispatch.pack[2] expert[0] expert[1] expert[2]"
     " combine.merge[0] combine.merge[1] combine.merge[2]\n"
     "tx: dispatch.send[0] dispatch.recv[0] dispatch.send[1] dispatch.recv[1] dispatch.send[2] dispatch.recv[2]\n"
     "rx: combine.send[0] combine.recv[0] combine.send[1] combine.recv[1] combine.send[2] combine.recv[2]\n"},
    {"", NULL, "use ladder(n: 4); }\n", 1,
     "comp: route[0] dispatch.pack[0] route[1] dispatch.pack[1] route[2] dispatch.pack[2] expert[0]"
     " route[3] dispatch.pack[3] expert[1] expert[2] expert[3]"
     " combine.merge[0] combine.merge[1] combine.merge[2] combine.merge[3]\n"
     "tx: dispatch.send[0] dispatch.recv[0] dispatch.send[1] dispatch.recv[1]"
     " dispatch.send[2] dispatch.recv[2] dispatch.send[3] dispatch.recv[3]\n"
     "rx: combine.send[0] combine.recv[0] combine.send[1] combine.recv[1]"
     " combine.send[2] combine.recv[2] combine.send[3] combine.recv[3]\n"},
    // Unnamed stages run on the stream of `sm`: the shared expert where it would stall, the sum before its reader.
    {"", SHARED_LAYER, "use ladder(n: 2); }\n", 2,
     "comp: route[0] dispatch.pack[0] route[1] dispatch.pack[1] shared[0] expert[0] shared[1] expert[1]"
     " combine.merge[0] sum[0] L1.route[0] L1.dispatch.pack[0] combine.merge[1] sum[1] L1.route[1] L1.dispatch.pack[1]"
     " L1.shared[0] L1.expert[0] L1.shared[1] L1.expert[1]"
     " L1.combine.merge[0] L1.sum[0] L1.combine.merge[1] L1.sum[1]\n"
     "tx: dispatch.send[0] dispatch.recv[0] dispatch.send[1] dispatch.recv[1]"
     " L1.dispatch.send[0] L1.dispatch.recv[0] L1.dispatch.send[1] L1.dispatch.recv[1]\n"
     "rx: combine.send[0] combine.recv[0] combine.send[1] combine.recv[1]"
     " L1.combine.send[0] L1.combine.recv[0] L1.combine.send[1] L1.combine.recv[1]\n"},
    // Lent SMs keep `pack` and `merge` on the stream.
    {"schedule s for moe { split tokens into 2 as i; stream comp uses sm; stream comm uses net_out, net_in;"
     " bind route, expert to comp; bind dispatch, combine to comm { sm: 8 };\n"
     "route[0]; route[1]; dispatch[0]; dispatch[1]; expert[0]; combine[0]; expert[1]; combine[1]; }\n",
     NULL, "use s; }\n", 2,
     "comp: route[0] route[1] expert[0] expert[1] L1.route[0] L1.route[1] L1.expert[0] L1.expert[1]\n"
     "comm: dispatch.pack[0] dispatch.send[0] dispatch.recv[0] dispatch.pack[1] dispatch.send[1] dispatch.recv[1]"
     " combine.send[0] combine.recv[0] combine.merge[0] combine.send[1] combine.recv[1] combine.merge[1]"
     " L1.dispatch.pack[0] L1.dispatch.send[0] L1.dispatch.recv[0]"
     " L1.dispatch.pack[1] L1.dispatch.send[1] L1.dispatch.recv[1]"
     " L1.combine.send[0] L1.combine.recv[0] L1.combine.merge[0]"
     " L1.combine.send[1] L1.combine.recv[1] L1.combine.merge[1]\n"},
    // Hook-style receive: the wait for arrived rows stands on the compute stream.
    {"schedule s for moe { split tokens into 2 as i; stream comp uses sm, net_in; stream tx uses net_out, copy[0];"
     " stream rx uses net_out, net_in, copy[1]; bind route, expert to comp; bind dispatch.send to tx;"
     " bind dispatch.recv to comp; bind combine to rx;\n"
     "for i in 0..2 { route[i]; dispatch.send[i]; } for i in 0..2 { dispatch.recv[i] -> expert[i]; combine[i]; } }\n",
     NULL, "use s; }\n", 1,
     "comp: route[0] dispatch.pack[0] route[1] dispatch.pack[1] dispatch.recv[0] expert[0] dispatch.recv[1] expert[1]"
     " combine.merge[0] combine.merge[1]\n"
     "tx: dispatch.send[0] dispatch.send[1]\n"
     "rx: combine.send[0] combine.recv[0] combine.send[1] combine.recv[1]\n"},
    // A phase with its own bind leaves the stage's stream, also when the stage is issued whole.
    {"schedule s for moe {" STREAMS " stream back uses net_in;" BINDS " bind dispatch.recv to back;\n"
     "route; dispatch; expert; combine; }\n",
     NULL, "use s; }\n", 1,
     "comp: route dispatch.pack expert combine.merge\n"
     "tx: dispatch.send\n"
     "rx: combine.send combine.recv\n"
     "back: dispatch.recv\n"},
    // An array of streams.
    {"schedule s for moe { split tokens into 3 as i; stream comp uses sm; stream io[2] uses net_out, net_in, copy;"
     " bind route, expert to comp; bind dispatch, combine to io;\n"
     "for i in 0..3 { route[i]; dispatch[i] on io[i mod 2]; } for i in 0..3 { expert[i]; combine[i] on io[1]; } }\n",
     NULL, "use s; }\n", 1,
     "comp: route[0] dispatch.pack[0] route[1] dispatch.pack[1] route[2] dispatch.pack[2] expert[0] expert[1] expert[2]"
     " combine.merge[0] combine.merge[1] combine.merge[2]\n"
     "io[0]: dispatch.send[0] dispatch.recv[0] dispatch.send[2] dispatch.recv[2]\n"
     "io[1]: dispatch.send[1] dispatch.recv[1] combine.send[0] combine.recv[0] combine.send[1] combine.recv[1]"
     " combine.send[2] combine.recv[2]\n"},
};

struct schedule_case {
    const char *text, *error, *layer;
};

static const struct schedule_case refused[] = {
    // overlaps
    {SPLIT(2) "for i in 0..2 { route[i]; dispatch[i] || expert[i]; combine[i]; } }\n", "E0301 2:42", NULL},
    {SPLIT(2) "for i in 0..2 { expert[i] || dispatch[i]; route[i]; combine[i]; } }\n", "E0301 2:17", NULL},
    {SPLIT(2) "for i in 0..2 { route[i] || dispatch[i]; expert[i]; combine[i]; } }\n", "E0301 2:29", NULL},
    {SPLIT(2) "for i in 0..2 { route[i]; dispatch[i] || combine[i]; expert[i]; } }\n", "E0301 2:42", NULL},
    {SPLIT(2) "pipelined i in 0..2 { route[i+1]; dispatch[i] || expert[i]; combine[i]; } }\n", "E0301 2:50", NULL},
    {SPLIT(
         2) "order dispatch[0] before combine[0]; order dispatch[1] after expert[0];\n"
            "for i in 0..2 { route[i]; } dispatch[0]; dispatch[1] || expert[0]; expert[1]; combine[0]; combine[1]; }\n",
     "E0301 3:42", NULL},
    {SPLIT(2) "for i in 0..2 { route[i]; dispatch[i]; } expert[0] || expert[1]; combine[0]; combine[1]; }\n",
     "E0302 2:55", NULL},
    {SPLIT(2) "route[0] || route[1]; for i in 0..2 { dispatch[i]; expert[i]; combine[i]; } }\n", "E0302 2:13", NULL},
    // binds
    {"schedule s for moe {" STREAMS " bind route to comp; bind dispatch to tx; bind combine to rx;\n"
     "route; dispatch; expert; combine; }\n",
     "E0303 2:18", NULL},
    {"schedule s for moe {" STREAMS " bind route, expert to comp; bind dispatch.send to tx; bind combine to rx;\n"
     "route; dispatch; expert; combine; }\n",
     "E0303 2:8", NULL},
    {"schedule s for (dispatch, expert) {" STREAMS " bind expert to comp; bind dispatch to tx;\n"
     "dispatch; expert; }\n",
     "E0303 1:10", NULL},
    {WHOLE "bind route to comp;\nroute; dispatch; expert; combine; }\n", "E0102 2:6", NULL},
    {WHOLE "bind router to comp;\nroute; dispatch; expert; combine; }\n", "E0101 2:6", NULL},
    {WHOLE "bind route.go to comp;\nroute; dispatch; expert; combine; }\n", "E0101 2:12", NULL},
    {"schedule s for moe {" STREAMS "\nbind route to cmp;\nroute; }\n", "E0101 2:15", NULL},
    {WHOLE "stream comp uses sm;\nroute; dispatch; expert; combine; }\n", "E0102 2:8", NULL},
    {WHOLE "stream more uses smm;\nroute; dispatch; expert; combine; }\n", "E0101 2:18", NULL},
    {"schedule s for moe {" STREAMS
     " bind route, expert to comp; bind combine to rx;\nbind dispatch to tx { rate: 3 };\n"
     "route; dispatch; expert; combine; }\n",
     "E0106 2:23", NULL},
    {"schedule s for moe {" STREAMS
     " bind route, expert to comp; bind combine to rx;\nbind dispatch to tx { sm: -1 };\n"
     "route; dispatch; expert; combine; }\n",
     "E0206 2:27", NULL},
    {"schedule s for moe {" STREAMS " bind route, expert to comp; bind combine to rx;\n"
     "bind dispatch to tx { priority: urgent };\nroute; dispatch; expert; combine; }\n",
     "E0208 2:33", NULL},
    // once and only once
    {WHOLE "route; dispatch; expert; combine; route; }\n", "E0304 2:35", NULL},
    {SPLIT(2) "for i in 0..2 { route[0]; dispatch[i]; expert[i]; combine[i]; } }\n", "E0304 2:17", NULL},
    {WHOLE "route; dispatch; dispatch.recv; expert; combine; }\n", "E0304 2:18", NULL},
    {WHOLE "route; dispatch; expert; }\n", "E0305 1:179", NULL},
    {SPLIT(3) "for i in 0..2 { route[i]; dispatch[i]; expert[i]; combine[i]; } }\n", "E0305 2:17", NULL},
    {SPLIT(2) "route[0]; route[1]; dispatch.send[0]; dispatch.send[1]; dispatch.recv[1];\n"
              "for i in 0..2 { expert[i]; combine[i]; } }\n",
     "E0305 2:57", NULL},
    // engines
    {"schedule s for moe { stream comp uses sm; stream tx uses net_out, copy; bind route, expert to comp;\n"
     "bind dispatch to tx; bind combine to tx;\nroute; dispatch; expert; combine; }\n",
     "E0306 2:6", NULL},
    {"schedule s for moe {" STREAMS
     " bind route to comp; bind dispatch to tx; bind combine to rx;\nbind expert to tx;\n"
     "route; dispatch; expert; combine; }\n",
     "E0306 2:6", NULL},
    {WHOLE "route; dispatch.pack; dispatch; expert; combine; }\n", "E0306 1:158", NULL},
    {"schedule s for moe { stream comp uses sm; stream tx uses net_out, copy[-1];\n}\n", "E0307 1:67", NULL},
    {"schedule s for moe { stream comp uses sm; stream tx uses net_out, copy[64]; bind dispatch to tx;\n}\n",
     "E0307 1:67", NULL},
    // indices
    {SPLIT(2) "for i in 0..3 { route[i]; dispatch[i]; expert[i]; combine[i]; } }\n", "E0307 2:17", NULL},
    {SPLIT(2) "for i in 0..2 { route[i-1]; } }\n", "E0307 2:17", NULL},
    {WHOLE "route[0]; dispatch; expert; combine; }\n", "E0307 2:1", NULL},
    {SPLIT(2) "route; }\n", "E0307 2:1", NULL},
    {SPLIT(2) "route[0, 0]; }\n", "E0307 2:1", NULL},
    {SPLIT(2) "order route[0] before route[2]; }\n", "E0307 2:23", NULL},
    // cycles
    {WHOLE "expert; route; dispatch; combine; }\n", "E0308 2:9", NULL},
    {SPLIT(2) "for i in 0..2 { route[i]; dispatch[i]; expert[i]; combine[i]; }\norder combine[0] before route[0]; }\n",
     "E0308 3:1", NULL},
    {WHOLE "route; dispatch; expert; combine;\norder expert before expert; }\n", "E0308 3:1", NULL},
    {WHOLE "combine -> expert; route; dispatch; }\n", "E0308 2:12", NULL},
    {WHOLE "route; expert; sync; dispatch; combine; }\n", "E0308 2:16", NULL},
    {SPLIT(2) "route[0]; route[1]; dispatch.send[0]; dispatch.send[1]; dispatch.recv[1]; dispatch.recv[0];\n"
              "for i in 0..2 { expert[i]; combine[i]; } }\n",
     "E0308 2:75", NULL},
    {SPLIT(4096) "pipelined i in 0..4096 { route[i]; dispatch[i]; expert[i]; combine[i]; } }\n", "E0206 1:40", NULL},
    // loops without end
    {SPLIT(2) "pipelined i in 0..2 { route[i+1000000000]; } }\n", "E0206 2:29", NULL},
    {SPLIT(2) "pipelined i in 0..2 { route[i-9223372036854775807]; } }\n", "E0206 2:29", NULL},
    {SPLIT(2) "for i in 0..100000 { for j in 0..100000 { } } }\n", "E0206 2:22", NULL},
    {SPLIT(2) "for i in -9223372036854775807..9223372036854775807 { } }\n", "E0206 2:10", NULL},
    // statements
    {SPLIT(2) "pipelined i in 0..2 { sync; route[i]; } }\n", "E0309 2:23", NULL},
    {SPLIT(2) "pipelined i in 0..2 { route[0]; } }\n", "E0309 2:29", NULL},
    {SPLIT(2) "pipelined i in 0..2 { route[2*i]; } }\n", "E0309 2:29", NULL},
    {WHOLE "route; split tokens into 2 as i; }\n", "E0309 2:8", NULL},
    {SPLIT(2) "split tokens into 2 as k; }\n", "E0102 2:1", NULL},
    {SPLIT(1025) "}\n", "E0206 1:40", NULL},
    {SPLIT(2) "for i in 0..2 { for i in 0..2 { } } }\n", "E0102 2:21", NULL},
    {"schedule s for moe { stream comp[2] uses sm; stream tx uses net_out, net_in, copy; bind route, expert to comp;\n"
     "bind dispatch, combine to tx;\nroute; dispatch; expert on comp[0]; combine; }\n",
     "E0303 3:1", NULL},
    {"schedule s for moe { stream comp[65] uses sm; }\n", "E0206 1:29", NULL},
    {"schedule s for (route, dispatch, expert, combine) {" STREAMS BINDS "\nroute.pack; dispatch; expert; combine; }\n",
     "E0101 2:7", NULL},
    {WHOLE "pipelined i in 0..2 { route; } }\n", "E0309 2:23", NULL},
    {SPLIT(2) "for i in 0..1000 { for j in 0..300 { route[0]; } } }\n", "E0206 2:20", NULL},
    {SPLIT(2) "for i in 0..2 { route[i]; dispatch[i]; expert[i]; combine[i]; }\norder combine[0] before route[1];\n"
              "order combine[1] before expert[0]; order route[1] before dispatch[1]; }\n",
     "E0308 4:1", NULL},
    {"schedule s for moe {" STREAMS " bind route, expert to comp; bind combine to rx;\nbind dispatch to tx { sm: 65537 };\n}\n",
     "E0206 2:27", NULL},
    {SPLIT(0) "for i in 0..2 { route[i]; dispatch[i]; expert[i]; combine[i]; } }\n", "E0206 1:40", NULL},
    {SPLIT(2) "let j = 1 / 0; for i in 0..2 { route[j]; dispatch[j]; expert[i]; combine[i]; } }\n", "E0202 2:9", NULL},
    {SPLIT(2) "for k in 0..2 { route[i]; dispatch[i]; expert[i]; combine[i]; } }\n", "E0101 2:23", NULL},
    {SPLIT(2) "let n = 1; let n = 2; }\n", "E0102 2:16", NULL},
    // waves of experts
    {WAVES(2) "}\n", "E0305 1:157", NULL},
    {WAVES(2) "route[0]; }\n", "E0307 2:1", NULL},
    {WAVES(2) "route; dispatch; }\n", "E0307 2:8", NULL},
    {WAVES(2) "route; dispatch[2]; }\n", "E0307 2:8", NULL},
    {BOTH(2, 2) "route[0]; dispatch[0]; }\n", "E0307 2:11", NULL},
    {BOTH(2, 3) "route[0]; dispatch[2,0]; }\n", "E0307 2:11", NULL},
    {WAVES(17) "}\n", "E0206 1:41", NULL},
    {WAVES(0) "}\n", "E0206 1:41", NULL},
    {WAVES(2) "split experts into 2 as v; }\n", "E0102 2:1", NULL},
    {WAVES(2) "route; for w in 0..2 { dispatch[w]; expert[w]; } combine[0]; }\n", "E0305 2:50", NULL},
    {WAVES(2) "route; for w in 0..2 { dispatch[w] || expert[w]; combine[w]; } }\n", "E0301 2:39", NULL},
    {WAVES(2) "route; expert[0]; dispatch[0] -> expert[1]; for w in 0..2 { combine[w]; } dispatch[1];\n"
              "order combine[1] before dispatch[0]; }\n",
     "E0308 3:1", NULL},
    {WAVES(2) "bind combine.merge to comp; route; dispatch[0]; dispatch[1]; expert[0]; expert[1];\n"
              "combine[1]; combine[0]; }\n",
     "E0308 3:13", NULL},
    {WAVES(2) "route; pipelined w in 0..2 { dispatch[w]; expert[0]; } }\n", "E0309 2:50", NULL},
    {BOTH(2, 2) "pipelined i in 0..2 { dispatch[i,i]; } }\n", "E0309 2:34", NULL},
    // not built yet
};

static const struct schedule_case accepted[] = {
    {WHOLE "route; dispatch; expert; combine; }\n", NULL, NULL},
    {WHOLE "combine; dispatch; route; expert; }\n", NULL, NULL},
    {WAVES(1) "route; dispatch[0]; expert[0]; combine[0]; }\n", NULL, NULL},
    {WAVES(4) "route; pipelined w in 0..4 { dispatch[w+1] || expert[w] || combine[w-1]; } }\n", NULL, NULL},
    {WAVES(2) "route; expert[0]; expert[1]; for w in 0..2 { combine[w]; dispatch[w]; } }\n", NULL, NULL},
    // in a loop an order concerns one turn of the overlap, whatever stands around the loop
    {SPLIT(3) "pipelined i in 0..3 { route[i+1]; dispatch[i+1] || expert[i] || combine[i-1]; }\n"
              "order dispatch[1] before expert[0]; }\n",
     NULL, NULL},
    {SPLIT(3) "if 1 > 2 { sync; } else if 2 > 1 {\n"
              "pipelined i in 0..3 { route[i+1]; dispatch[i+1] || expert[i] || combine[i-1]; }\n"
              "order dispatch[1] before expert[0]; } }\n",
     NULL, NULL},
    {BOTH(2, 3) "for i in 0..2 { route[i]; pipelined w in 0..3 { dispatch[i,w+1] || expert[i,w] || combine[i,w-1]; } }\n"
                "}\n",
     NULL, NULL},
    {"schedule s for moe { split experts into 2 as w; split tokens into 3 as i;" STREAMS BINDS
     " for i in 0..3 { route[i]; } for w in 0..2 { pipelined i in 0..3 { dispatch[w,i+1] || expert[w,i]; }\n"
     " for i in 0..3 { combine[w,i]; } } }\n",
     NULL, NULL},
    {"schedule s for moe { split experts into 2 as w;" STREAMS BINDS
     " bind shared, sum to comp; route; dispatch[0]; dispatch[1] || shared; expert[0]; expert[1]; combine[0];"
     " combine[1]; sum; }\n",
     NULL, SHARED_LAYER},
    {WHOLE "route -> dispatch -> expert -> combine; }\n", NULL, NULL},
    {WHOLE "route; sync; dispatch; sync; expert; sync; combine; sync; }\n", NULL, NULL},
    {WHOLE "route; order route before dispatch, expert; dispatch; expert; combine; order combine after expert; }\n",
     NULL, NULL},
    {"schedule s for moe {" STREAMS BINDS " bind dispatch.recv to rx; bind combine.recv to tx;"
     " route; dispatch.send || dispatch.recv; expert; combine.send || combine.recv; }\n",
     NULL, NULL},
    {SPLIT(1) "route[0]; dispatch[0]; expert[0]; combine[0]; }\n", NULL, NULL},
    {SPLIT(2) "for i in 0..2 { route[i]; dispatch[i]; expert[i]; combine[i]; } }\n", NULL, NULL},
    {SPLIT(64) "for i in 0..0 { route[i]; } pipelined i in 0..64 { route[i]; dispatch[i]; expert[i]; combine[i]; } }\n",
     NULL, NULL},
    {SPLIT(2) "for i in 0..2 { combine[i]; } for i in 0..2 { dispatch[i]; route[i]; }\n"
              "for i in 0..2 { expert[i]; } }\n",
     NULL, NULL},
    {SPLIT(3) "pipelined i in 0..3 { route[i+2]; dispatch[i+1] || expert[i] || combine[i-1]; } }\n", NULL, NULL},
    {SPLIT(3) "pipelined i in 0..3 { route[i+3] -> dispatch[1+i+1]; expert[i]; combine[i-(2-1)]; } }\n", NULL, NULL},
    {SPLIT(2) "let n = 2; for i in 0..n { let k = n - 1 - i; route[k]; dispatch[k]; expert[k]; combine[k]; } }\n", NULL,
     NULL},
    {SPLIT(
         2) "if 1 < 2 { route[0]; route[1]; } else { sync; } for i in 0..2 { dispatch[i]; expert[i]; combine[i]; } }\n",
     NULL, NULL},
    {SPLIT(2) "if 1 > 2 { sync; } else if 2 > 1 { route[0]; } route[1]; for i in 0..2 { dispatch[i]; expert[i];"
              " combine[i]; } }\n",
     NULL, NULL},
    {SPLIT(2) "route[0] -> (dispatch[0] || route[1]) -> (expert[0] || dispatch[1]); expert[1]; combine[0] -> "
              "combine[1]; }\n",
     NULL, NULL},
    {SPLIT(2) "for i in 0..2 { for k in i..i+1 { route[k]; dispatch[k]; } } for i in 0..2 { expert[i]; combine[i]; }\n"
              "order combine[0] before dispatch[1]; }\n",
     NULL, NULL},
    {"schedule s(n: 1..8 = 3, depth: 1..3 = 1) for (route, dispatch, expert, combine) { split tokens into n as "
     "i;" STREAMS BINDS
     "\npipelined i in 0..n { route[i+depth+1]; dispatch[i+depth] || expert[i] || combine[i-1]; } }\n",
     NULL, NULL},
    {"schedule s for (route, dispatch, expert, combine) {" STREAMS BINDS " route; dispatch; expert; combine; }\n", NULL,
     SHARED_LAYER},
    {"schedule s for moe {" STREAMS BINDS
     " bind shared, sum to comp; route; dispatch || shared; expert; combine; sum; }\n",
     NULL, SHARED_LAYER},
    {"schedule s for moe { stream all uses sm, net_out, net_in, copy; bind route, dispatch, expert, combine to all {"
     " sm: 4, priority: low }; route; dispatch; expert; combine; }\n",
     NULL, NULL},
    {"schedule s for moe {" STREAMS BINDS " bind dispatch.pack to comp; bind combine.merge to comp;"
     " route; dispatch.pack; dispatch.send; dispatch.recv; expert; combine; }\n",
     NULL, NULL},
    {"schedule s for moe { split tokens into 2 as i; stream comp uses sm; stream a[2] uses net_out, net_in, copy;"
     " bind route, expert to comp; bind dispatch to a[0]; bind combine to a[1];"
     " for i in 0..2 { route[i]; dispatch[i]; } expert[0]; expert[1] || combine[0]; combine[1]; }\n",
     NULL, NULL},
};

struct full_text {
    const char *text, *errors;
};

static const struct full_text full_texts[] = {
    {"schedule s for moe {\n    split tokens into 2 as i;\n   " STREAMS "\n   " BINDS "\n"
     "    for i in 0..2 {\n        route[i] -> dispatch[i] -> expert[i];\n    }\n}\n",
     ":4:59: error[E0305]: `combine` is never issued\n"
     "   2 |     split tokens into 2 as i;\n"
     "     |                       - makes microbatches 0..2\n"
     "     ...\n"
     "   4 |     bind route, expert to comp; bind dispatch to tx; bind combine to rx;\n"
     "     |                                                           ^^^^^^^ bound here\n"
     "   = help: issue all 2 instances of it: `combine[i];` in a loop\n"},
    {"schedule s for moe {\n    split tokens into 2 as i;\n   " STREAMS "\n   " BINDS "\n"
     "    for i in 0..1 {\n        route[i] -> dispatch[i] -> expert[i] -> combine[i];\n    }\n}\n",
     ":6:9: error[E0305]: `route[1]` is never issued\n"
     "   2 |     split tokens into 2 as i;\n"
     "     |                       - makes microbatches 0..2\n"
     "     ...\n"
     "   6 |         route[i] -> dispatch[i] -> expert[i] -> combine[i];\n"
     "     |         ^^^^^^^^ issues route[0]\n"
     "   = note: the loop runs i in 0..1, so `route[1]` is left out\n"
     "   = note: nor are `dispatch[1]`, `expert[1]`, `combine[1]`\n"
     "   = help: let the loop run over all of them\n"
     "   5 -     for i in 0..1 {\n"
     "   5 +     for i in 0..2 {\n"},
    {"schedule s for moe {\n    split tokens into 2us as i;\n   " STREAMS "\n   " BINDS "\n}\n",
     ":2:23: error[E0207]: an integer is expected here, but `2us` is a time\n"
     "   2 |     split tokens into 2us as i;\n"
     "     |                       ^^^ seconds, expected no unit\n"},
    {"schedule s(n: 2..8 = 4) for moe {\n    split tokens into n as i;\n   " STREAMS "\n   " BINDS "\n\n"
     "    pipelined i in 0..n {\n        route[i];\n        dispatch[i] || expert[i] || combine[i-1];\n    }\n}\n",
     ":8:24: error[E0301]: `dispatch[i]` and `expert[i]` cannot overlap: one waits for the other\n"
     "   8 |         dispatch[i] || expert[i] || combine[i-1];\n"
     "     |         -----------    ^^^^^^^^^ reads `xd`...\n"
     "     |         ...which this writes, for the same microbatch\n"
     "   = note: stage expert: yd = swiglu(xd, ...)  (:25:5)\n"
     "   = help: send the next microbatch while this one computes\n"
     "   8 -         dispatch[i] || expert[i] || combine[i-1];\n"
     "   8 +         dispatch[i+1] || expert[i] || combine[i-1];\n"},
    {"schedule s(g: 2..8 = 4) for moe {\n    split experts into g as w;\n   " STREAMS "\n   " BINDS "\n\n"
     "    route;\n    pipelined w in 0..g {\n        dispatch[w] || expert[w] || combine[w-1];\n    }\n}\n",
     ":8:24: error[E0301]: `dispatch[w]` and `expert[w]` cannot overlap: one waits for the other\n"
     "   8 |         dispatch[w] || expert[w] || combine[w-1];\n"
     "     |         -----------    ^^^^^^^^^ reads `xd`...\n"
     "     |         ...which this writes, for the same wave\n"
     "   = note: stage expert: yd = swiglu(xd, ...)  (:25:5)\n"
     "   = help: send the next wave while this one computes\n"
     "   8 -         dispatch[w] || expert[w] || combine[w-1];\n"
     "   8 +         dispatch[w+1] || expert[w] || combine[w-1];\n"},
    {"schedule s for moe {\n    split experts into 2 as w;\n   " STREAMS "\n   " BINDS "\n"
     "    route[0]; for w in 0..2 { dispatch[w]; expert[w]; combine[w]; }\n}\n",
     ":5:5: error[E0307]: `route` has an index, but it handles no routed rows, so waves of experts do not split it\n"
     "   5 |     route[0]; for w in 0..2 { dispatch[w]; expert[w]; combine[w]; }\n"
     "     |     ^^^^^^^^\n"
     "   = help: write `route`, which serves all waves, or split the tokens too\n"},
    {"schedule s for moe {\n    split tokens into 4 as i;\n   " STREAMS "\n   " BINDS "\n\n"
     "    route[0] -> dispatch[0];\n    for i in 0..3 {\n        route[i+1];\n        dispatch[i+1] || expert[i];\n"
     "        combine[i];\n    }\n    expert[3];\n}\n",
     ":10:9: error[E0305]: `combine[3]` is never issued\n"
     "   2 |     split tokens into 4 as i;\n"
     "     |                       - makes microbatches 0..4\n"
     "     ...\n"
     "  10 |         combine[i];\n"
     "     |         ^^^^^^^^^^ issues combine[0], [1], [2]\n"
     "   = note: the loop runs i in 0..3, so the last microbatch is computed but never returned\n"
     "   = help: issue it after the loop\n"
     "  12 -     expert[3];\n"
     "  12 +     expert[3] -> combine[3];\n"},
    {"schedule s for moe {\n    split tokens into 2 as i;\n   " STREAMS "\n   " BINDS "\n\n"
     "    for i in 0..2 {\n        route[i];\n        dispatch[i];\n    }\n    combine[0];\n    combine[1];\n"
     "    expert[0] -> expert[1];\n    order combine[0] before dispatch[1];\n    order dispatch[1] before "
     "expert[0];\n}\n",
     ":14:5: error[E0308]: this order can never run: it waits for itself\n"
     "  14 |     order dispatch[1] before expert[0];\n"
     "     |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ closes the cycle\n"
     "   = note: expert[0]   waits for dispatch[1]   ordered here (:14:5)\n"
     "   = note: dispatch[1] waits for combine[0]    ordered here (:13:5)\n"
     "   = note: combine[0]  waits for expert[0]     it reads `yd` (:31:5)\n"
     "   = help: remove one of the two `order` statements; the data dependency cannot be removed\n"},
    {"schedule s for moe {" STREAMS BINDS "\n    expert;\n    route;\n    dispatch;\n    combine;\n}\n",
     ":3:5: error[E0308]: this order can never run: it waits for itself\n"
     "   3 |     route;\n"
     "     |     ^^^^^ closes the cycle\n"
     "   = note: route         waits for expert          issued before it on `comp` (:2:5)\n"
     "   = note: expert        waits for dispatch.pack   it reads `dispatch.packed` (:21:5)\n"
     "   = note: dispatch.pack waits for route           it reads `r` (:20:5)\n"
     "   = help: issue `route` before `expert`\n"},
    {"schedule s for moe {\n    split tokens into 2 as i;\n   " STREAMS "\n   " BINDS "\n"
     "    route[0]; route[1]; dispatch[0]; expert[0]; expert[1]; combine[0];\n"
     "    combine[1] || dispatch[1];\n}\n",
     ":6:5: error[E0301]: `combine[1]` and `dispatch[1]` cannot overlap: one waits for the other\n"
     "   6 |     combine[1] || dispatch[1];\n"
     "     |     ^^^^^^^^^^    ----------- ...for this\n"
     "     |     waits...\n"
     "   = note: combine[1]  waits for expert[1]     it reads `yd` (:23:5)\n"
     "   = note: expert[1]   waits for dispatch[1]   it reads `xd` (:22:5)\n"
     "   = help: overlap different microbatches, or write `->`\n"},
    {"schedule s for moe {\n    split tokens into 2 as i;\n   " STREAMS "\n   " BINDS "\n"
     "    route[0]; route[1]; dispatch[0]; expert[0]; expert[1]; combine[1];\n"
     "    order combine[0] before dispatch[1];\n    combine[0] || dispatch[1];\n}\n",
     ":7:19: error[E0301]: `combine[0]` and `dispatch[1]` cannot overlap: one waits for the other\n"
     "   7 |     combine[0] || dispatch[1];\n"
     "     |     ----------    ^^^^^^^^^^^ waits...\n"
     "     |     ...for this\n"
     "   = note: dispatch[1] waits for combine[0]   ordered here (:6:5)\n"
     "   = help: overlap different microbatches, or write `->`\n"},
    {"schedule s for moe {\n    split tokens into 2 as i;\n   " STREAMS "\n   " BINDS "\n"
     "    route[0]; route[1]; dispatch[0]; dispatch[1]; expert[0];\n    sync;\n    combine[0]; combine[1]; expert[1];\n"
     "    order combine[1] before expert[0];\n}\n",
     ":8:5: error[E0308]: this order can never run: it waits for itself\n"
     "   8 |     order combine[1] before expert[0];\n"
     "     |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ closes the cycle\n"
     "   = note: expert[0]  waits for combine[1]   ordered here (:8:5)\n"
     "   = note: combine[1] waits for expert[1]    it reads `yd` (:25:5)\n"
     "   = note: expert[1]  waits for expert[0]    issued before it on `comp` (:5:51)\n"
     "   = help: remove the `order` statement; the data dependency cannot be removed\n"},
};

#endif
