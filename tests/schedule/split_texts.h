// Legal and illegal schedules of what can be split, deferred and filled. Texts as in schedule_texts.h: line 1 declares,
// the body begins in line 2. Every legal one also runs, against the bytes of `serial` (tests/end_to_end/test_schedules.c).
#ifndef MOECC_SPLIT_TEXTS_H
#define MOECC_SPLIT_TEXTS_H

#include "tests/schedule/schedule_texts.h"

#define ALL_BINDS " bind route, expert, shared, sum to comp; bind dispatch to tx; bind combine to rx;"
#define SHARED(splits) "schedule s for moe { " splits STREAMS ALL_BINDS "\n"
#define TOKENS(n) "split tokens into " #n " as i;"
#define PAIR "split layers into 2 as l;"
#define EXTERN_LAYER                                                                               \
    PARAMS "    extern stage attn: xa = attention(x, cost: 1us);\n"                                \
           "    stage route: r = topk(xa, w_router, k: 2);\n    stage dispatch: xd = dispatch(xa, r);\n" \
           "    stage expert: yd = swiglu(xd, w_gate_up, w_down);\n    stage combine: y = combine(yd, r);\n    yield y;\n}\n"
#define RATIO(n, list) "schedule s for moe { split tokens into " #n " as i { ratio: " list " };" STREAMS BINDS "\n"

static const struct schedule_case split_refused[] = {
    // ratios
    {RATIO(2, "[1]") "}\n", "E0205 1:56", NULL},
    {RATIO(2, "[1, 2, 3]") "}\n", "E0205 1:56", NULL},
    {RATIO(2, "[1, 0]") "}\n", "E0206 1:60", NULL},
    {RATIO(2, "[1, -1]") "}\n", "E0206 1:60", NULL},
    {RATIO(2, "[4096, 1]") "}\n", "E0206 1:56", NULL},
    {RATIO(2, "[5000, 1]") "}\n", "E0206 1:57", NULL},
    {RATIO(2, "2") "}\n", "E0201 1:56", NULL},
    {RATIO(2, "[0.3, 0.7]") "}\n", "E0201 1:57", NULL},
    {RATIO(2, "[33%, 67%]") "}\n", "E0201 1:57", NULL},
    {"schedule s for moe { split tokens into 2 as i { shares: [1, 2] };" STREAMS BINDS "\n}\n", "E0106 1:49", NULL},
    {"schedule s for moe { split layers into 2 as l { ratio: [1, 2] };" STREAMS BINDS "\n}\n", "E0313 1:47", NULL},
    {RATIO(2, "[1, 3]") "for i in 0..3 { route[i]; } }\n", "E0307 2:17", NULL},
    // layers
    {SHARED("split layers into 0 as l;") "}\n", "E0206 1:40", SHARED_LAYER},
    {SHARED("split layers into 3 as l;") "}\n", "E0206 1:40", SHARED_LAYER},
    {SHARED(PAIR "split layers into 2 as k;") "}\n", "E0102 1:47", SHARED_LAYER},
    {SHARED(PAIR) "route; }\n", "E0307 2:1", SHARED_LAYER},
    {SHARED(PAIR) "route[2]; }\n", "E0307 2:1", SHARED_LAYER},
    {SHARED(TOKENS(2) PAIR) "route[0]; }\n", "E0307 2:1", SHARED_LAYER},
    {SHARED(TOKENS(3) PAIR) "route[0,2]; }\n", "E0307 2:1", SHARED_LAYER},
    {SHARED(PAIR TOKENS(3)) "route[2,0]; }\n", "E0307 2:1", SHARED_LAYER},
    {SHARED(PAIR) "for l in 0..1 { route[l]; dispatch[l]; expert[l]; shared[l]; combine[l]; sum[l]; } }\n",
     "E0305 2:17", SHARED_LAYER},
    {SHARED(PAIR) "for l in 0..2 { route[l]; dispatch[l]; expert[l]; shared[l]; combine[l]; sum[0]; } }\n",
     "E0304 2:74", SHARED_LAYER},
    {SHARED(PAIR) "for k in 0..2 { let l = 1 - k; route[l]; dispatch[l]; expert[l]; shared[l]; combine[l]; sum[l]; } }\n",
     "E0102 2:21", SHARED_LAYER},
    {SHARED(PAIR) "for k in 0..2 { route[1-k]; dispatch[1-k]; expert[1-k]; shared[1-k]; combine[1-k]; sum[1-k]; } }\n",
     "E0308 2:84", SHARED_LAYER},
    {SHARED(PAIR) "route[0] || route[1]; }\n", "E0302 2:13", SHARED_LAYER},
    {SHARED(PAIR) "route[0]; dispatch[0]; expert[0]; shared[0]; sum[0]; combine[0] || route[1]; dispatch[1];\n"
                  "shared[1]; expert[1]; combine[1]; sum[1]; }\n",
     "E0301 2:68", SHARED_LAYER},
    {SHARED(PAIR) "order sum[1] before route[0]; for l in 0..2 { route[l]; dispatch[l]; expert[l]; shared[l];\n"
                  "combine[l]; sum[l]; } }\n",
     "E0308 2:1", SHARED_LAYER},
    // the rows of one stage
    {SHARED("split shared into 0 as k;") "}\n", "E0206 1:40", SHARED_LAYER},
    {SHARED("split shared into 257 as k;") "}\n", "E0206 1:40", SHARED_LAYER},
    {SHARED("split shared into 2 as k; split shared into 2 as j;") "}\n", "E0102 1:48", SHARED_LAYER},
    {SHARED("split share into 2 as k;") "}\n", "E0101 1:28", SHARED_LAYER},
    {SHARED("split route into 2 as k;") "route; }\n", "E0307 2:1", SHARED_LAYER},
    {SHARED("split route into 2 as k;") "route[0]; dispatch; expert; combine; shared; sum; route[1]; }\n", "E0308 2:51",
     SHARED_LAYER},
    {"schedule s for moe { split attn into 2 as k;" STREAMS BINDS " bind attn to comp;\n}\n", "E0313 1:22", EXTERN_LAYER},
    {SHARED("split shared into 2 as k;") "route; dispatch; expert; combine; shared; sum; }\n", "E0307 2:35",
     SHARED_LAYER},
    {SHARED("split shared into 2 as k;") "route; dispatch; expert; combine; shared[0]; sum; }\n", "E0305 2:35",
     SHARED_LAYER},
    {SHARED("split shared into 2 as k;") "route; dispatch; expert; combine; shared[0]; shared[1] || sum; }\n",
     "E0302 2:59", SHARED_LAYER},
    {SHARED("split shared into 2 as k;") "route; dispatch; expert; combine; shared[1]; sum; shared[0]; }\n",
     "E0308 2:51", SHARED_LAYER},
    {SHARED("split shared into 2 as k;") "route[0]; }\n", "E0307 2:1", SHARED_LAYER},
    // chunks of a combine
    {SHARED("split combine into 9 as k;") "}\n", "E0206 1:41", SHARED_LAYER},
    {SHARED("split combine into 2 as k { ratio: [1] };") "}\n", "E0205 1:57", SHARED_LAYER},
    {SHARED("split shared into 2 as k { ratio: [1, 0] };") "}\n", "E0206 1:60", SHARED_LAYER},
    {SHARED("split combine into 2 as k; split experts into 2 as w;") "route; dispatch[0]; combine[0]; }\n", "E0307 2:21",
     SHARED_LAYER},
    {SHARED("split experts into 2 as w; split combine into 2 as k;") "route; shared; for w in 0..2 { dispatch[w];\n"
     "expert[w]; combine[w,0]; } combine[0,1]; sum; }\n",
     "E0305 3:12", SHARED_LAYER},
    {SHARED("split experts into 2 as w; split combine into 2 as k;") "route; shared; for w in 0..2 { dispatch[w]; }\n"
     "for w in 0..2 { expert[w]; } for k in 0..2 { combine[1,k]; combine.send[0,k] -> combine.recv[0,k]; } sum;\n"
     "order combine[1,0] before expert[0]; }\n",
     "E0308 4:1", SHARED_LAYER},
    {SHARED("split combine into 2 as k;") "route; dispatch; expert; combine; shared; sum; }\n", "E0307 2:26",
     SHARED_LAYER},
    {SHARED("split combine into 2 as k;") "route; dispatch; expert; combine[0]; shared; sum; }\n", "E0305 2:26",
     SHARED_LAYER},
    {SHARED("split combine into 2 as k;") "route; dispatch; expert; combine[0] -> combine[1]; combine[0]; shared;"
                                          " sum; }\n",
     "E0304 2:52", SHARED_LAYER},
    {SHARED("split combine into 2 as k;") "route; dispatch; combine[0] || expert; combine[1]; shared; sum; }\n",
     "E0301 2:18", SHARED_LAYER},
    {SHARED("split combine into 2 as k;") "route; dispatch; expert; shared; sum || combine[0]; combine[1]; }\n",
     "E0301 2:34", SHARED_LAYER},
    {SHARED("split combine into 2 as k; stream back uses net_in;") "bind combine.recv to back; route; dispatch; expert;\n"
     "combine.send[0]; combine.send[1]; combine.recv[1]; combine.recv[0]; shared; sum; }\n",
     "E0308 3:52", SHARED_LAYER},
    {SHARED("split combine into 2 as k;") "fill comp with combine.merge[0] { pieces: 2 }; }\n", "E0901 2:43",
     SHARED_LAYER},
    // pieces of a dispatch
    {SHARED("split dispatch into 9 as k;") "}\n", "E0206 1:42", SHARED_LAYER},
    {SHARED("split dispatch into 2 as k { ratio: [1, 0] };") "}\n", "E0206 1:62", SHARED_LAYER},
    {SHARED("split dispatch into 2 as k;") "route; dispatch; expert; combine; shared; sum; }\n", "E0307 2:8", SHARED_LAYER},
    {SHARED("split dispatch into 2 as k;") "route; dispatch[0]; expert; combine; shared; sum; }\n", "E0305 2:8", SHARED_LAYER},
    {SHARED("split dispatch into 2 as k;") "route; dispatch[0]; dispatch[1]; dispatch[0]; expert; combine; shared; sum; }\n",
     "E0304 2:34", SHARED_LAYER},
    {SHARED("split dispatch into 2 as k;") "route; dispatch[0]; dispatch[1] || expert; combine; shared; sum; }\n",
     "E0301 2:36", SHARED_LAYER},
    {SHARED("split dispatch into 2 as k;") "dispatch[0]; dispatch[1] || route; expert; combine; shared; sum; }\n",
     "E0301 2:14", SHARED_LAYER},
    {SHARED("split dispatch into 2 as k;") "bind dispatch.pack to comp; route; dispatch.pack[1]; dispatch.pack[0];\n"
     "for k in 0..2 { dispatch.send[k]; dispatch.recv[k]; } expert; combine; shared; sum; }\n",
     "E0308 2:54", SHARED_LAYER},
    {SHARED("split dispatch into 2 as k; stream ri uses net_in;") "bind dispatch.recv to ri; route; dispatch.send[0];\n"
     "dispatch.send[1]; dispatch.recv[1]; dispatch.recv[0]; expert; combine; shared; sum; }\n",
     "E0308 3:37", SHARED_LAYER},
    // pieces of an expert on routed rows
    {SHARED("split expert into 9 as k;") "}\n", "E0206 1:40", SHARED_LAYER},
    {SHARED("split expert into 2 as k { ratio: [2] };") "}\n", "E0205 1:56", SHARED_LAYER},
    {SHARED("split expert into 2 as k;") "route; dispatch; expert.up[0]; expert.down[0]; expert[1]; combine; shared; sum; }\n",
     "E0901 1:22", SHARED_LAYER},
    {SHARED("split expert into 2 as k;") "route; dispatch; expert[0]; combine; shared; sum; }\n", "E0305 2:18", SHARED_LAYER},
    {SHARED("split expert into 2 as k;") "route; dispatch; expert[1]; expert[0]; combine; shared; sum; }\n", "E0308 2:29",
     SHARED_LAYER},
    {SHARED("split expert into 2 as k; stream more uses sm;") "route; dispatch; expert[0] || expert[1] on more; combine;\n"
     "shared; sum; }\n",
     "E0301 2:31", SHARED_LAYER},
    {SHARED("split dispatch into 2 as d; split expert into 2 as k;") "route; dispatch[0]; expert[0]; dispatch[1] || expert[1];\n"
     "combine; shared; sum; }\n",
     "E0301 2:47", SHARED_LAYER},
    {SHARED("split expert into 2 as k; split combine into 2 as c;") "route; dispatch; expert[0]; combine[1] || expert[1];\n"
     "combine[0]; shared; sum; }\n",
     "E0301 2:29", SHARED_LAYER},
    // fill
    {SHARED(TOKENS(2)) "for i in 0..2 { fill comp with shared[i] { pieces: 0 }; } }\n", "E0206 2:52", SHARED_LAYER},
    {SHARED(TOKENS(2)) "for i in 0..2 { fill comp with shared[i] { pieces: 300 }; } }\n", "E0206 2:52", SHARED_LAYER},
    {SHARED(TOKENS(2)) "fill comp with shared[0] { pieces: 2 }; fill comp with shared[1] { pieces: 3 }; }\n",
     "E0206 2:76", SHARED_LAYER},
    {SHARED("") "fill comp with expert { pieces: 9 }; }\n", "E0206 2:33", SHARED_LAYER},
    {SHARED("") "fill comp with dispatch; }\n", "E0309 2:16", SHARED_LAYER},
    {SHARED("") "fill comp with shred; }\n", "E0101 2:16", SHARED_LAYER},
    {SHARED("") "fill cmp with shared; }\n", "E0101 2:6", SHARED_LAYER},
    {SHARED("") "fill comp with shared { peaces: 2 }; }\n", "E0106 2:25", SHARED_LAYER},
    {SHARED("") "route; dispatch; expert; combine; sum; fill tx with shared; }\n", "E0306 2:53", SHARED_LAYER},
    {SHARED("") "route; dispatch; shared; expert; combine; sum; fill comp with shared; }\n", "E0304 2:63", SHARED_LAYER},
    {SHARED(TOKENS(2)) "fill comp with shared; }\n", "E0307 2:16", SHARED_LAYER},
    {SHARED(TOKENS(2)) "for i in 0..2 { route[i]; dispatch[i]; expert[i]; combine[i]; sum[i]; }\n"
                       "fill comp with shared[0]; }\n",
     "E0305 3:16", SHARED_LAYER},
    {SHARED("") "route; dispatch; expert; combine; sum; fill comp with shared; order sum before shared; }\n",
     "E0308 2:63", SHARED_LAYER},
    {"schedule s for moe { stream io[2] uses sm, net_out, net_in, copy; bind route, dispatch, expert, combine, sum to"
     " io[0];\nroute; dispatch; expert; combine; sum; fill io with shared; }\n",
     "E0307 2:45", SHARED_LAYER},
    // defer
    {SHARED("") "route; dispatch; expert; combine; shared; sum; defer sum; }\n", "E0304 2:54", SHARED_LAYER},
    {SHARED("") "route; dispatch; expert; combine; shared; defer smu; }\n", "E0101 2:49", SHARED_LAYER},
    {SHARED(TOKENS(2)) "defer sum; }\n", "E0307 2:7", SHARED_LAYER},
    {SHARED(TOKENS(2)) "defer sum[2]; }\n", "E0307 2:7", SHARED_LAYER},
    {SHARED("") "route; dispatch; expert; combine; shared; defer sum; order sum before route; }\n", "E0308 2:54",
     SHARED_LAYER},
    {SHARED(TOKENS(2)) "for i in 0..2 { route[i]; dispatch[i]; expert[i]; combine[i]; shared[i]; } defer sum[0]; }\n",
     "E0305 2:82", SHARED_LAYER},
    {SHARED(TOKENS(2)) "pipelined i in 0..2 { defer sum[i]; route[i]; } }\n", "E0309 2:23", SHARED_LAYER},
    {SHARED(TOKENS(2)) "pipelined i in 0..2 { fill comp with shared[i]; route[i]; } }\n", "E0309 2:23", SHARED_LAYER},
    // phases of an expert
    {SHARED("") "route; dispatch; expert.up; combine; shared; sum; }\n", "E0305 1:138", SHARED_LAYER},
    {SHARED("") "route; dispatch; expert.down; expert.up; combine; shared; sum; }\n", "E0308 2:31", SHARED_LAYER},
    {SHARED("stream other uses sm;") "bind expert.down to other; route; dispatch; expert.up || expert.down; combine;\n"
                                     "shared; sum; }\n",
     "E0301 2:58", SHARED_LAYER},
    {SHARED("") "route; dispatch; expert.up || expert.down; combine; shared; sum; }\n", "E0302 2:31", SHARED_LAYER},
    {SHARED("") "route; dispatch; expert.up; expert; combine; shared; sum; }\n", "E0304 2:29", SHARED_LAYER},
    {SHARED("") "route; dispatch; expert.middle; combine; shared; sum; }\n", "E0101 2:25", SHARED_LAYER},
    {SHARED("") "route; dispatch; expert; combine; sum; fill comp with shared; order shared.up before route; }\n",
     "E0309 2:55", SHARED_LAYER},
    {SHARED(TOKENS(2)) "for i in 0..2 { route[i]; dispatch[i]; expert.up[i]; } combine[0] || expert.down[0];\n"
                       "expert.down[1]; combine[1]; shared[0]; shared[1]; sum[0]; sum[1]; }\n",
     "E0301 2:56", SHARED_LAYER},
};

static const struct schedule_case split_accepted[] = {
    // ratios
    {RATIO(4, "[1, 2, 2, 1]") "pipelined i in 0..4 { route[i+2]; dispatch[i+1] || expert[i] || combine[i-1]; } }\n", NULL,
     NULL},
    {RATIO(2, "[7, 1]") "for i in 0..2 { route[i]; dispatch[i]; expert[i]; combine[i]; } }\n", NULL, NULL},
    {RATIO(3, "[1, 1, 4094]") "for i in 0..3 { route[i]; dispatch[i]; expert[i]; combine[i]; } }\n", NULL, NULL},
    {RATIO(1, "[3]") "route[0]; dispatch[0]; expert[0]; combine[0]; }\n", NULL, NULL},
    {RATIO(2, "[1 + 1, 2 * 3]") "route[1]; route[0]; for i in 0..2 { dispatch[i]; expert[i]; combine[i]; } }\n", NULL, NULL},
    {SPLIT(3) "for k in 0..3 { if k mod 2 == 0 { route[k]; } else { route[k]; sync; } dispatch[k]; } expert[0];\n"
              "expert[1] -> combine[0]; expert[2]; combine[1]; combine[2]; }\n",
     NULL, NULL},
    // layers
    {SHARED(PAIR) "for l in 0..2 { route[l]; dispatch[l]; shared[l]; expert[l]; combine[l]; sum[l]; } }\n", NULL,
     SHARED_LAYER},
    {SHARED(TOKENS(2) PAIR) "route[0,0]; dispatch[0,0] || route[1,0]; dispatch[1,0] || expert[0,0]; shared[0,0];\n"
                            "combine[0,0] || expert[1,0]; shared[1,0]; sum[0,0]; route[0,1]; combine[1,0] || dispatch[0,1];\n"
                            "sum[1,0]; route[1,1]; expert[0,1] || dispatch[1,1]; shared[0,1]; combine[0,1]; expert[1,1];\n"
                            "shared[1,1]; combine[1,1]; sum[0,1]; sum[1,1]; }\n",
     NULL, SHARED_LAYER},
    {SHARED(PAIR TOKENS(2)) "for l in 0..2 { pipelined i in 0..2 { route[l,i+1]; dispatch[l,i+1] || expert[l,i]; } \n"
                            "for i in 0..2 { shared[l,i]; combine[l,i]; sum[l,i]; } } }\n",
     NULL, SHARED_LAYER},
    {SHARED(PAIR) "for l in 0..2 { route[l]; dispatch[l]; expert[l]; combine[l]; fill comp with shared[l];\n"
                  "defer sum[l]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED(PAIR) "for l in 0..2 { route[l]; dispatch[l]; expert[l]; combine[l]; shared[l]; sum[l]; }\n"
                  "order combine[0] before dispatch[1]; }\n",
     NULL, SHARED_LAYER},
    {"schedule s for (route, dispatch, expert, combine) {" PAIR STREAMS BINDS
     " for l in 0..2 { route[l]; dispatch[l]; expert[l]; combine[l]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED("split layers into 1 as l;") "route[0]; dispatch[0]; shared[0]; expert[0]; combine[0]; sum[0]; }\n", NULL,
     SHARED_LAYER},
    // the rows of one stage
    {SHARED("split shared into 3 as k;") "route; dispatch || shared[0]; shared[1]; expert; combine || shared[2]; sum; }\n",
     NULL, SHARED_LAYER},
    {SHARED(TOKENS(2) "split shared into 2 as k;") "for i in 0..2 { route[i]; dispatch[i] || shared[i,0]; }\n"
                                                   "for i in 0..2 { expert[i]; combine[i] || shared[i,1]; sum[i]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED("split shared into 2 as k;" TOKENS(2)) "for i in 0..2 { route[i]; dispatch[i] || shared[1,i]; }\n"
                                                   "for i in 0..2 { expert[i]; combine[i] || shared[0,i]; sum[i]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED("split sum into 4 as k;") "route; dispatch || shared; expert; combine; for k in 0..4 { sum[3-k]; } }\n", NULL,
     SHARED_LAYER},
    {SHARED("split shared into 2 as k; split sum into 3 as j;") "route; dispatch || shared[0]; expert; shared[1];\n"
                                                                "combine; sum[0]; sum[2]; sum[1]; }\n",
     NULL, SHARED_LAYER},
    {SHARED(PAIR "split shared into 2 as k;") "for l in 0..2 { route[l]; dispatch[l] || shared[l,0]; expert[l];\n"
                                              "combine[l] || shared[l,1]; sum[l]; } }\n",
     NULL, SHARED_LAYER},
    {"schedule s for moe { split shared into 2 as k; stream other uses sm;" STREAMS
     " bind route, expert, sum to comp; bind shared to other; bind dispatch to tx; bind combine to rx;\n"
     "route; dispatch; shared[0] on comp; expert || shared[1]; combine; sum; }\n",
     NULL, SHARED_LAYER},
    {SHARED("split route into 3 as k { ratio: [1, 2, 2] };") "route[2]; route[0]; shared; route[1]; dispatch; expert;\n"
     "combine; sum; }\n",
     NULL, SHARED_LAYER},
    {SHARED(TOKENS(2)) "for i in 0..2 { fill comp with route[i] { pieces: 2 }; dispatch[i]; expert[i]; combine[i]; }\n"
                       "for i in 0..2 { shared[i]; sum[i]; } }\n",
     NULL, SHARED_LAYER},
    // chunks of a combine
    {SHARED("split combine into 2 as k;") "route; dispatch; expert; combine[0]; combine[1]; shared; sum; }\n", NULL,
     SHARED_LAYER},
    {SHARED("split combine into 8 as k;") "route; dispatch; expert; for k in 0..8 { combine[k]; } shared; sum; }\n", NULL,
     SHARED_LAYER},
    {SHARED("split combine into 1 as k;") "route; dispatch; expert; combine[0]; shared; sum; }\n", NULL, SHARED_LAYER},
    {SHARED("split combine into 3 as k; split sum into 3 as j;") "route; dispatch; expert; shared;\n"
     "for k in 0..3 { combine[2-k]; } for j in 0..3 { sum[j]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED(TOKENS(3) "split combine into 2 as k;") "for i in 0..3 { route[i]; dispatch[i]; }\n"
     "for i in 0..3 { expert[i]; for k in 0..2 { combine[i,k]; } } for i in 0..3 { shared[i]; sum[i]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED("split combine into 2 as k;" TOKENS(2) PAIR) "for l in 0..2 { for i in 0..2 { route[i,l]; dispatch[i,l]; }\n"
     "for i in 0..2 { expert[i,l]; combine[0,i,l]; combine[1,i,l]; shared[i,l]; sum[i,l]; } } }\n",
     NULL, SHARED_LAYER},
    {SHARED("split combine into 2 as k; stream back uses net_in;") "bind combine.recv to back; route; dispatch; expert;\n"
     "combine.send[0] || combine.recv[0]; combine.send[1] || combine.recv[1]; shared; defer sum; }\n",
     NULL, SHARED_LAYER},
    {SHARED("split combine into 3 as k;") "bind combine.merge to comp; route; dispatch; expert; shared;\n"
     "for k in 0..3 { combine.send[k]; combine.recv[k]; combine.merge[k]; } sum; }\n",
     NULL, SHARED_LAYER},
    {SHARED(TOKENS(2) "split combine into 4 as k;") "for i in 0..2 { route[i]; dispatch[i]; }\n"
     "for i in 0..2 { expert[i]; pipelined k in 0..4 { combine[i,k]; } fill comp with shared[i] { pieces: 2 };\n"
     "defer sum[i]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED("split combine into 3 as k { ratio: [1, 4, 2] };") "route; dispatch; expert; shared;\n"
     "for k in 0..3 { combine[k]; } sum; }\n",
     NULL, SHARED_LAYER},
    {SHARED("split shared into 3 as k { ratio: [3, 1, 1] }; split sum into 2 as j { ratio: [1, 5] };") "route;\n"
     "dispatch || shared[0]; expert; shared[2]; combine; shared[1]; sum[1]; sum[0]; }\n",
     NULL, SHARED_LAYER},
    // pieces of a dispatch
    {SHARED("split dispatch into 2 as k;") "route; dispatch[0]; dispatch[1]; expert; combine; shared; sum; }\n", NULL,
     SHARED_LAYER},
    {SHARED("split dispatch into 8 as k;") "route; for k in 0..8 { dispatch[7-k]; } expert; combine; shared; sum; }\n", NULL,
     SHARED_LAYER},
    {SHARED("split dispatch into 1 as k;") "route; dispatch[0] || shared; expert; combine; sum; }\n", NULL, SHARED_LAYER},
    {SHARED(TOKENS(2) "split dispatch into 3 as k { ratio: [1, 4, 2] };") "for i in 0..2 { route[i]; for k in 0..3 {\n"
     "dispatch[i,k]; } } for i in 0..2 { expert[i]; combine[i]; shared[i]; sum[i]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED("split dispatch into 3 as k; split combine into 2 as c; stream ri uses net_in;") "bind dispatch.recv to ri; route;\n"
     "for k in 0..3 { dispatch.send[k] || dispatch.recv[k]; } expert; combine[0]; shared; combine[1]; sum; }\n",
     NULL, SHARED_LAYER},
    {SHARED(PAIR "split dispatch into 2 as k; split route into 2 as j;") "for l in 0..2 { route[l,1]; route[l,0];\n"
     "dispatch[l,1]; dispatch[l,0] || shared[l]; expert.up[l]; expert.down[l]; combine[l]; sum[l]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED("split dispatch into 4 as k;") "bind dispatch.pack to comp; route; for k in 0..4 { dispatch.pack[k];\n"
     "dispatch.send[k]; } shared; for k in 0..4 { dispatch.recv[k]; } expert; combine; sum; }\n",
     NULL, SHARED_LAYER},
    {"schedule s for moe { split tokens into 2 as i; split dispatch into 2 as k; stream comp uses sm; stream comm uses"
     " net_out, net_in, copy[0]; bind route, expert, shared, sum to comp; bind dispatch, combine to comm { sm: 20 };\n"
     "route[0]; route[1]; dispatch[0,0]; dispatch[1,0] || shared[0]; dispatch[0,1]; dispatch[1,1] || expert[0];\n"
     "combine[0] || expert[1]; combine[1]; shared[1]; for i in 0..2 { defer sum[i]; } }\n",
     NULL, SHARED_LAYER},
    // pieces of an expert on routed rows
    {SHARED("split expert into 2 as k;") "route; dispatch; expert[0]; expert[1]; combine; shared; sum; }\n", NULL, SHARED_LAYER},
    {SHARED("split dispatch into 4 as d; split expert into 4 as k; split combine into 4 as c;") "route; dispatch[0];\n"
     "for k in 1..4 { dispatch[k] || expert[k-1]; combine.send[k-1]; } expert[3]; combine.send[3];\n"
     "for c in 0..4 { combine.recv[c]; } shared; sum; }\n",
     NULL, SHARED_LAYER},
    {SHARED("split dispatch into 2 as d; split expert into 3 as k { ratio: [1, 2, 4] }; split combine into 2 as c;") "route;\n"
     "for d in 0..2 { dispatch[d]; } for k in 0..3 { expert[k]; } combine[1]; combine[0]; shared; sum; }\n",
     NULL, SHARED_LAYER},
    {SHARED(TOKENS(2) "split expert into 2 as k; stream more uses sm;") "for i in 0..2 { route[i]; dispatch[i]; }\n"
     "expert[0,0]; expert[1,0] on more; expert[0,1] on more; expert[1,1]; for i in 0..2 { combine[i]; shared[i]; sum[i]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED(PAIR "split expert into 3 as k; split dispatch into 2 as d;") "for l in 0..2 { route[l]; dispatch[l,0];\n"
     "dispatch[l,1] || expert[l,0]; expert[l,1]; shared[l]; expert[l,2]; combine[l]; sum[l]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED("split expert into 1 as k; split combine into 3 as c;") "route; dispatch; expert[0]; combine[0]; combine[1];\n"
     "combine[2]; shared; sum; }\n",
     NULL, SHARED_LAYER},
    {SHARED("") "route; dispatch; combine; shared; sum; fill comp with expert { pieces: 3 }; }\n", NULL, SHARED_LAYER},
    // fill
    {SHARED("") "route; dispatch; expert; combine; sum; fill comp with shared; }\n", NULL, SHARED_LAYER},
    {SHARED("") "fill comp with shared { pieces: 4 }; route; dispatch; expert; combine; sum; }\n", NULL, SHARED_LAYER},
    {SHARED(TOKENS(2)) "for i in 0..2 { route[i]; dispatch[i]; } for i in 0..2 { expert[i]; combine[i]; sum[i]; }\n"
                       "for i in 0..2 { fill comp with shared[i] { pieces: 2 }; } }\n",
     NULL, SHARED_LAYER},
    {SHARED(TOKENS(2)) "for i in 0..2 { route[i]; dispatch[i]; } for i in 0..2 { expert[i]; combine[i]; }\n"
                       "for i in 0..2 { fill comp with shared[i] { pieces: 3 }; fill comp with sum[i] { pieces: 2 }; } }\n",
     NULL, SHARED_LAYER},
    {SHARED(TOKENS(2)) "shared[0]; for i in 0..2 { route[i]; dispatch[i]; } for i in 0..2 { expert[i]; combine[i]; sum[i]; }\n"
                       "fill comp with shared[1] { pieces: 2 }; }\n",
     NULL, SHARED_LAYER},
    {SHARED("") "route; dispatch; expert; combine; sync; sum; fill comp with shared { pieces: 2 }; }\n", NULL, SHARED_LAYER},
    {SHARED("") "route; sync; dispatch; sync; expert; combine; fill comp with shared; sum; }\n", NULL, SHARED_LAYER},
    {SHARED(TOKENS(3)) "pipelined i in 0..3 { route[i+2]; dispatch[i+1] || expert[i] || combine[i-1]; }\n"
                       "for i in 0..3 { fill comp with shared[i]; defer sum[i]; } order shared[2] before expert[2]; }\n",
     NULL, SHARED_LAYER},
    {"schedule s for moe { stream other uses sm;" STREAMS ALL_BINDS
     "\nroute; dispatch; expert; combine; sum; fill other with shared { pieces: 2 }; }\n",
     NULL, SHARED_LAYER},
    {SHARED("") "route; dispatch; expert; combine; shared; sum; fill comp with combine.merge; }\n", NULL, SHARED_LAYER},
    {SHARED("split shared into 2 as k;") "route; dispatch; expert; combine; sum; fill comp with shared[0];\n"
                                         "fill comp with shared[1]; }\n",
     NULL, SHARED_LAYER},
    {"schedule s for (route, dispatch, expert, combine, shared) {" TOKENS(2) STREAMS BINDS
     " for i in 0..2 { route[i]; dispatch[i]; } for i in 0..2 { expert[i]; combine[i]; fill comp with shared[i]; } }\n",
     NULL, SHARED_LAYER},
    // defer
    {SHARED("") "route; dispatch; shared; expert; combine; defer sum; }\n", NULL, SHARED_LAYER},
    {SHARED("") "route; dispatch; defer shared; expert; combine; defer sum; }\n", NULL, SHARED_LAYER},
    {SHARED("") "route; dispatch; shared; expert; defer combine, sum; }\n", NULL, SHARED_LAYER},
    {SHARED(TOKENS(2)) "route[0]; dispatch[0] || route[1]; dispatch[1] || expert[0]; combine[0] || expert[1]; combine[1];\n"
                       "for i in 0..2 { fill comp with shared[i] { pieces: 2 }; defer sum[i]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED(TOKENS(2)) "for i in 0..2 { defer route[i], dispatch[i], expert[i], combine[i], shared[i], sum[i]; } }\n", NULL,
     SHARED_LAYER},
    {"schedule s for moe { split tokens into 2 as i; stream comp uses sm; stream comm uses net_out, net_in, copy[0];"
     " bind route, expert, shared, sum to comp; bind dispatch, combine to comm { sm: 20 };\n"
     "route[0]; dispatch[0] || route[1]; dispatch[1] || expert[0]; combine[0] || expert[1]; combine[1];\n"
     "for i in 0..2 { fill comp with shared[i] { pieces: 2 }; defer sum[i]; } }\n",
     NULL, SHARED_LAYER},
    // phases of an expert
    {SHARED(TOKENS(3)) "pipelined i in 0..3 { route[i+2]; dispatch[i+1] || expert.up[i]; expert.down[i-1] || combine[i-2]; }\n"
                       "for i in 0..3 { shared[i]; sum[i]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED(TOKENS(2) "stream other uses sm;") "bind expert.down to other; for i in 0..2 { route[i]; dispatch[i]; }\n"
     "expert.up[0]; expert.up[1] || expert.down[0]; combine[0]; expert.down[1]; combine[1]; for i in 0..2 { shared[i]; sum[i]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED(PAIR) "for l in 0..2 { route[l]; dispatch[l] || shared.up[l]; expert.up[l]; shared.down[l]; expert.down[l];\n"
                  "combine[l]; sum[l]; } }\n",
     NULL, SHARED_LAYER},
    {SHARED("split shared into 3 as k;") "route; dispatch || shared.up[0]; shared.up[2]; shared.up[1]; expert; combine;\n"
                                         "shared.down[1]; shared.down[0]; shared.down[2]; sum; }\n",
     NULL, SHARED_LAYER},
    {SHARED("split combine into 2 as k;") "route; dispatch; expert.up; fill comp with shared { pieces: 2 }; expert.down;\n"
                                          "combine[0]; combine[1]; defer sum; }\n",
     NULL, SHARED_LAYER},
    {SPLIT(2) "route[0]; route[1]; dispatch[0]; dispatch[1]; expert.up[1]; expert[0]; expert.down[1]; combine[1]; combine[0]; }\n",
     NULL, NULL},
    // phases and streams
    {"schedule s for moe { split tokens into 4 as i; stream comp uses sm; stream out uses net_out, copy[0]; stream back uses"
     " net_out, copy[1]; stream d_in uses net_in; stream c_in uses net_in; bind route, expert, shared, sum to comp;"
     " bind dispatch.send to out { sm: 8 }; bind combine.send to back { sm: 8 }; bind dispatch.recv to d_in { sm: 8 };"
     " bind combine.recv to c_in { sm: 8 }; let last = 3;\n"
     "pipelined i in 0..4 { route[i+2]; dispatch.send[i+1] || dispatch.recv[i+1] || expert[i] || combine.send[i-1]"
     " || combine.recv[i-1]; }\n"
     "order combine.send[0] before dispatch.send[last]; for i in 0..4 { fill comp with shared[i]; defer sum[i]; } }\n",
     NULL, SHARED_LAYER},
    {"schedule s for moe { split tokens into 2 as i; split layers into 2 as l; stream comp uses sm, net_in; stream tx uses"
     " net_out, copy[0]; stream rx uses net_out, net_in, copy[1]; bind route, expert, shared, sum to comp;"
     " bind dispatch.send to tx; bind dispatch.recv to comp; bind combine to rx;\n"
     "for l in 0..2 { for i in 0..2 { route[i,l]; dispatch.send[i,l]; } for i in 0..2 { dispatch.recv[i,l] -> expert[i,l];\n"
     "combine[i,l] || shared[i,l]; sum[i,l]; } } }\n",
     NULL, SHARED_LAYER},
    {"schedule s for moe { split tokens into 4 as i; stream comp uses sm; stream io[2] uses net_out, net_in, copy;"
     " bind route, expert to comp; bind dispatch, combine to io;\n"
     "for i in 0..4 { route[i]; dispatch[i] on io[i mod 2]; } for i in 0..4 { expert[i]; combine[i] on io[(i + 1) mod 2]; }"
     " }\n",
     NULL, NULL},
};

#endif
